//! Offline bundles, signed with OpenSSL by their own README, and the trees of `kubeadm certs generate-csr`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::Request;
use nodepki::signer::bundle::{
    BundleHeading, Collection, Outstanding, Remark, collect, export, openssl_extensions,
};
use zeroize::Zeroizing;

use crate::kubeadm;
use crate::signer_bad::verdict;
use crate::signing::{
    openssl, request, request_with_key, run_program, tree, wanted, write_authorities, write_secret,
};

const SLOTS: [CertName; 5] = [
    CertName::Apiserver,
    CertName::FrontProxyClient,
    CertName::EtcdServer,
    CertName::EtcdPeer,
    CertName::AdminConf,
];

fn outstanding(requests: &[Request]) -> Vec<Outstanding> {
    requests
        .iter()
        .map(|request| Outstanding {
            name: request.name(),
            key: request.csr.public_key().clone(),
        })
        .collect()
}

/// The node of [`request`]; its authorities are not known.
fn heading() -> BundleHeading {
    BundleHeading {
        node: "cp1".to_owned(),
        cluster: "kubernetes".to_owned(),
        ..BundleHeading::default()
    }
}

fn write_bundle(dir: &Path, requests: &[Request]) {
    for file in export(requests, &heading()) {
        let path = dir.join(&file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file.bytes).unwrap();
    }
}

fn read_tree(dir: &Path) -> Vec<(PathBuf, Zeroizing<Vec<u8>>)> {
    tree(dir)
        .into_iter()
        .map(|(path, bytes)| {
            (
                path.strip_prefix(dir).unwrap().to_owned(),
                Zeroizing::new(bytes),
            )
        })
        .collect()
}

fn signed_bundle(dir: &Path, requests: &[Request]) -> PathBuf {
    let (ca, bundle) = (dir.join("ca-dir"), dir.join("bundle"));
    fs::create_dir_all(&ca).unwrap();
    write_authorities(&ca);
    fs::create_dir_all(&bundle).unwrap();
    write_bundle(&bundle, requests);
    let volume = dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let script = format!(
        "umask 022; mount -t tmpfs volume {volume}; cp -r {}/. {volume}; mount -o remount,ro {volume}; \
         cd {}; CA={volume} sh README",
        ca.display(),
        bundle.display(),
        volume = volume.display()
    );
    let mut arguments = vec!["--mount", "sh", "-euc", &script];
    if !nix::unistd::geteuid().is_root() {
        arguments.insert(0, "--map-root-user");
    }
    run_program("unshare", &arguments, b"");
    bundle
}

#[test]
fn failed_signature_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    fs::create_dir(&bundle).unwrap();
    write_bundle(&bundle, &[request(CertName::AdminConf)]);
    let before = read_tree(&bundle);
    let mut shell = Command::new("sh");
    shell.arg("README").env("CA", dir.path());
    let output = shell.current_dir(&bundle).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("/ca.crt does not exist; nothing was signed"),
        "{said}"
    );
    assert_eq!(read_tree(&bundle), before);
    let mut elsewhere = Command::new("sh");
    elsewhere.arg(bundle.join("README")).env("CA", dir.path());
    let output = elsewhere.current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("admin.conf.csr is not here: run this script in its own directory"),
        "{said}"
    );
}

/// Returns the request for a certificate.
fn requested(requests: &[Request], name: CertName) -> &Request {
    let mut requests = requests.iter();
    requests.find(|request| request.name() == name).unwrap()
}

fn names(collection: &Collection) -> Vec<CertName> {
    collection
        .candidates
        .iter()
        .map(|candidate| candidate.name)
        .collect()
}

#[test]
fn signs_bundle_with_its_own_readme() {
    let dir = tempfile::tempdir().unwrap();
    let requests: Vec<_> = SLOTS.into_iter().map(request).collect();
    let bundle = signed_bundle(dir.path(), &requests);
    for path in [
        "pki/apiserver.csr",
        "pki/etcd/server.ext",
        "pki/etcd/peer.csr",
        "admin.conf.csr",
        "request.json",
    ] {
        assert!(bundle.join(path).is_file(), "{path}");
    }
    let collection = collect(&read_tree(&bundle), &outstanding(&requests), &[]);
    assert_eq!(collection.remarks, []);
    assert_eq!(names(&collection), SLOTS);
    for candidate in &collection.candidates {
        let request = requested(&requests, candidate.name);
        let said = verdict(request, &candidate.answer, &dir.path().join("ca-dir"));
        assert_eq!(said, "", "{}", candidate.name);
        assert!(candidate.key.is_none());
    }
}

#[test]
fn writes_same_bytes_for_the_same_requests() {
    let requests = [request(CertName::EtcdServer), request(CertName::AdminConf)];
    let later = requests.clone().map(|request| {
        let now = crate::signing::now();
        request.again(9, now, Some(now))
    });
    assert_eq!(export(&requests, &heading()), export(&later, &heading()));
    let files = export(&requests, &heading());
    let manifest = files
        .iter()
        .find(|file| file.path == Path::new("request.json"))
        .unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest.bytes).unwrap();
    let item = &manifest["items"][0];
    assert_eq!(item["csrPath"], "pki/etcd/server.csr");
    assert_eq!(item["certificatePath"], "pki/etcd/server.crt");
    assert_eq!(item["request"]["ca"], "etcd-ca");
    let words = item["profile"].as_str().unwrap();
    assert!(
        words.contains("CN=cp1")
            && words.contains("IP:192.0.2.11")
            && words.contains("server auth + client auth"),
        "{words}"
    );
    assert_eq!(manifest["items"][1]["certificatePath"], "admin.conf.crt");
}

#[test]
fn keeps_order_of_names_and_usages_in_extensions() {
    let text = openssl_extensions(&wanted(CertName::EtcdServer).profile);
    for part in [
        "extendedKeyUsage = serverAuth, clientAuth\n",
        "DNS.1 = cp1\nDNS.2 = localhost\nIP.1 = 192.0.2.11\nIP.2 = 127.0.0.1\nIP.3 = ::1\n",
        "basicConstraints = critical, CA:FALSE",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!openssl_extensions(&wanted(CertName::AdminConf).profile).contains("subjectAltName"));
}

#[test]
fn assigns_misnamed_certificates_by_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let requests: Vec<_> = SLOTS.into_iter().map(request).collect();
    let bundle = signed_bundle(dir.path(), &requests);
    let (server, peer, other) = (
        bundle.join("pki/etcd/server.crt"),
        bundle.join("pki/etcd/peer.crt"),
        bundle.join("swap"),
    );
    fs::rename(&server, &other).unwrap();
    fs::rename(&peer, &server).unwrap();
    fs::rename(&other, &peer).unwrap();
    let collection = collect(&read_tree(&bundle), &outstanding(&requests), &[]);
    assert_eq!(names(&collection), SLOTS);
    assert_eq!(
        collection.remarks,
        [
            Remark::Misnamed {
                path: "pki/etcd/peer.crt".into(),
                belongs_to: CertName::EtcdServer
            },
            Remark::Misnamed {
                path: "pki/etcd/server.crt".into(),
                belongs_to: CertName::EtcdPeer
            }
        ]
    );
    let message = collection.remarks[1].to_string();
    assert!(
        message.ends_with(
            "pki/etcd/server.crt has the key of etcd-peer, and is used as its certificate"
        ),
        "{message}"
    );
}

#[test]
fn explains_stray_files() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<_> = SLOTS.into_iter().map(request).collect();
    let bundle = signed_bundle(dir.path(), &all);
    // Its CSR was created on another node: the CSR is here, the key is not.
    let known = outstanding(&all[1..]);
    let collection = collect(&read_tree(&bundle), &known, &[]);
    assert_eq!(
        collection.remarks,
        [Remark::KeyElsewhere {
            path: "pki/apiserver.crt".into(),
            csr: "pki/apiserver.csr".into()
        }]
    );
    fs::remove_file(bundle.join("pki/apiserver.csr")).unwrap();
    fs::write(bundle.join("pki/etcd/peer.crt"), "garbage").unwrap();
    fs::copy(
        bundle.join("pki/front-proxy-client.crt"),
        bundle.join("again.crt"),
    )
    .unwrap();
    let collection = collect(&read_tree(&bundle), &known, &[]);
    let remarks: Vec<_> = collection.remarks.iter().map(ToString::to_string).collect();
    assert_eq!(remarks.len(), 2, "{remarks:?}");
    assert!(
        remarks[0]
            .contains("pki/apiserver.crt (CN=kube-apiserver) is for a key of no pending request"),
        "{remarks:?}"
    );
    assert!(
        remarks[1].contains("pki/etcd/peer.crt is not used"),
        "{remarks:?}"
    );
    // Two different certificates for one key.
    let other = tempfile::tempdir().unwrap();
    let second = signed_bundle(other.path(), &all);
    fs::copy(
        second.join("pki/front-proxy-client.crt"),
        bundle.join("again.crt"),
    )
    .unwrap();
    let collection = collect(&read_tree(&bundle), &known, &[]);
    let duplicate = "is already front-proxy-client's certificate; remove one of the two";
    assert!(
        collection
            .remarks
            .iter()
            .any(|remark| remark.to_string().ends_with(duplicate)),
        "{:?}",
        collection.remarks
    );
}

/// Signs a CSR with the requested extensions, under the authority of this path without its extension.
fn sign(csr: &Path, authority: &Path) -> Vec<u8> {
    let (ca, key) = (
        authority.with_extension("crt"),
        authority.with_extension("key"),
    );
    let [csr, ca, key] = [csr, &ca, &key].map(|path| path.to_str().unwrap());
    let mut arguments = vec!["x509", "-req", "-copy_extensions", "copy"];
    arguments.extend(["-in", csr, "-CA", ca, "-CAkey", key]);
    openssl(&arguments, b"")
}

/// Returns the requests of the tree that kubeadm creates, after it was signed by hand: `.crt` files next to the keys,
/// and for kubeconfigs embedded (`pasted`) or in `.crt` files too.
fn kubeadm_tree(dir: &Path, pasted: bool) -> Vec<Request> {
    let ca = dir.join("ca-dir");
    fs::create_dir_all(&ca).unwrap();
    write_authorities(&ca);
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("pki/etcd")).unwrap();
    fs::copy(ca.join("ca.crt"), tree.join("pki/ca.crt")).unwrap();
    fs::copy(ca.join("etcd/ca.crt"), tree.join("pki/etcd/ca.crt")).unwrap();
    // Files that belong to no slot.
    fs::copy(ca.join("ca.key"), tree.join("pki/sa.key")).unwrap();
    SLOTS
        .into_iter()
        .map(|slot| {
            let (request, key) = request_with_key(slot);
            let authority = ca.join(slot.authority().base_name());
            let csr = dir.join("csr");
            fs::write(&csr, request.csr.to_pem()).unwrap();
            let crt = sign(&csr, &authority);
            if slot.is_kubeconfig() {
                let mut conf = format!(
                    "apiVersion: v1\nkind: Config\nclusters:\n- name: kubernetes\n  cluster: {{server: 'https://192.0.2.1:6443'}}\nusers:\n- name: admin\n  user:\n    client-key-data: {}\n",
                    STANDARD.encode(key.to_pem().as_bytes())
                );
                if pasted {
                    // The output of base64 without -w0.
                    let encoded = STANDARD.encode(&crt);
                    let (one, two) = encoded.split_at(76);
                    conf.push_str(&format!(
                        "    client-certificate-data: |\n      {one}\n      {two}\n"
                    ));
                } else {
                    fs::write(tree.join(format!("{slot}.crt")), &crt).unwrap();
                }
                fs::write(tree.join(slot.as_str()), conf).unwrap();
                fs::write(tree.join(format!("{slot}.csr")), request.csr.to_pem()).unwrap();
            } else {
                let base = tree.join("pki").join(slot.base_name());
                fs::write(base.with_extension("csr"), request.csr.to_pem()).unwrap();
                write_secret(base.with_extension("key"), key.to_pem().as_bytes());
                fs::write(base.with_extension("crt"), crt).unwrap();
            }
            request
        })
        .collect()
}

#[test]
fn reads_certificates_and_keys_of_kubeadm_tree() {
    for pasted in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let requests = kubeadm_tree(dir.path(), pasted);
        let collection = collect(&read_tree(&dir.path().join("tree")), &[], &[]);
        assert_eq!(collection.remarks, [], "{pasted}");
        assert_eq!(names(&collection), SLOTS);
        for candidate in &collection.candidates {
            let request = requested(&requests, candidate.name);
            let key = candidate.key.as_ref().unwrap();
            assert_eq!(key.public_key(), request.csr.public_key());
            let said = verdict(request, &candidate.answer, &dir.path().join("ca-dir"));
            assert_eq!(said, "", "{}", candidate.name);
            assert!(!format!("{candidate:?}").contains("PrivateKey"));
        }
        let authorities: Vec<_> = collection
            .authorities
            .iter()
            .map(|(name, ..)| *name)
            .collect();
        assert_eq!(authorities, [Authority::Ca, Authority::EtcdCa]);
        // A pending key takes precedence over a key of the same slot in the tree.
        let pending = outstanding(&requests);
        let collection = collect(&read_tree(&dir.path().join("tree")), &pending, &[]);
        assert!(
            collection
                .candidates
                .iter()
                .all(|candidate| candidate.key.is_none())
        );
    }
}

#[test]
fn names_bad_kubeconfigs() {
    let files = |text: &str| {
        vec![(
            "admin.conf".into(),
            Zeroizing::new(text.as_bytes().to_vec()),
        )]
    };
    for (text, words) in [
        ("users: [", "not YAML"),
        ("user: {client-certificate-data: '!!'}", "base64 -w0"),
        ("user: {client-key-data: aGFsbG8=}", "not used"),
    ] {
        let collection = collect(&files(text), &[], &[]);
        assert_eq!(collection.candidates.len(), 0);
        let message = collection.remarks[0].to_string();
        assert!(
            message.contains(words) && message.contains("admin.conf"),
            "{message}"
        );
    }
    // A kubeconfig as kubeadm leaves it before signing: no certificate and no remark.
    let collection = collect(&files("user: {client-certificate-data: \"\"}"), &[], &[]);
    assert_eq!(collection.remarks, []);
}

#[test]
fn reads_tree_of_the_real_kubeadm() {
    let dir = tempfile::tempdir().unwrap();
    let (etc, ca) = (dir.path().join("etc"), dir.path().join("ca-dir"));
    fs::create_dir_all(&etc).unwrap();
    fs::create_dir_all(&ca).unwrap();
    write_authorities(&ca);
    let config = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.37.2\nencryptionAlgorithm: ECDSA-P256\n";
    let output = kubeadm::generate_csr(kubeadm::Node::new(&etc), config);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Before signing there is nothing to import and no remark.
    let collection = collect(&read_tree(&etc), &[], &[]);
    assert_eq!(collection.remarks, []);
    assert_eq!(names(&collection), []);
    for slot in CertName::KUBEADM {
        let base = if slot.is_kubeconfig() {
            etc.join(slot.as_str())
        } else {
            etc.join("pki").join(slot.base_name())
        };
        let beside = |extension: &str| PathBuf::from(format!("{}.{extension}", base.display()));
        let authority = ca.join(slot.authority().base_name());
        let crt = sign(&beside("csr"), &authority);
        if slot == CertName::AdminConf {
            // Embedded with kubectl's own field name.
            let conf = fs::read_to_string(&base).unwrap();
            assert!(conf.contains("    client-key-data:"), "{conf}");
            let pasted = format!(
                "    client-certificate-data: {}\n    client-key-data:",
                STANDARD.encode(crt)
            );
            fs::write(&base, conf.replace("    client-key-data:", &pasted)).unwrap();
        } else {
            fs::write(beside("crt"), crt).unwrap();
        }
    }
    let collection = collect(&read_tree(&etc), &[], &[]);
    assert_eq!(collection.remarks, []);
    assert_eq!(names(&collection), CertName::KUBEADM);
    for candidate in &collection.candidates {
        let key = candidate.key.as_ref().unwrap().public_key();
        let chain = nodepki::x509::Chain::from_response(&candidate.answer, key).unwrap();
        assert_eq!(chain.leaf().public_key(), key, "{}", candidate.name);
    }
}
