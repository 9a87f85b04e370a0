//! What lies on the disk already: repaired where that loses nothing, refused by name where a person must look first.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{KeyAlgorithm, PrivateKey};

use crate::node::{EVERYTHING, INIT, JOIN, Node, Ran};
use crate::signing::{now, openssl, wanted, write_secret};

const PKI: &str = "/etc/kubernetes/pki";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The run is refused with 65 and these words, nobody is asked, and nothing below `/etc` changes.
fn refused(node: &Node, words: &[&str]) -> Ran {
    let before = node.etc();
    let ran = node.ask();
    ran.ended(65);
    for words in words {
        ran.says(&node.here(words));
    }
    before.unchanged(&node.etc());
    assert_eq!(node.exchanges(), []);
    // The plan says the same and ends the same.
    let plan = node.plan();
    plan.ended(65);
    for words in words {
        plan.says(&node.here(words));
    }
    ran
}

/// The run repairs what is wrong, tells these words of the row, and leaves everything else as it was.
fn repaired(node: &Node, name: CertName, words: &[&str]) -> Ran {
    let others: Vec<CertName> = EVERYTHING
        .into_iter()
        .filter(|other| *other != name)
        .collect();
    let keys = |node: &Node| -> Vec<Option<String>> {
        others
            .iter()
            .map(|other| node.leaf(*other).map(|_| node.key_in_place(*other)))
            .collect()
    };
    let before = keys(node);
    let ran = node.bootstrap();
    ran.done();
    for words in words {
        ran.row_says(name.as_str(), words);
    }
    node.assert_sound(&EVERYTHING);
    assert_eq!(before, keys(node), "the other keys are the same");
    let settled = node.etc();
    node.bootstrap().done();
    settled.unchanged(&node.etc());
    ran
}

#[test]
fn d1_empty_files_are_absent_files() {
    let node = Node::bootstrapped();
    node.write("/etc/kubernetes/controller-manager.conf", "");
    repaired(
        &node,
        CertName::ControllerManagerConf,
        &["issued", "empty file"],
    );
    assert_eq!(node.mode("/etc/kubernetes/controller-manager.conf"), 0o600);
    node.write(format!("{PKI}/etcd/server.crt"), "");
    node.write(format!("{PKI}/etcd/server.key"), "\n");
    repaired(&node, CertName::EtcdServer, &["issued", "empty file"]);
    // An empty bundle is filled by a signer that may be believed.
    node.write(format!("{PKI}/ca.crt"), "");
    node.bootstrap().done().row_says("ca", "written");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn d1_a_directory_in_the_place_of_a_file_is_named() {
    for path in [
        "/etc/kubernetes/scheduler.conf",
        "/etc/kubernetes/pki/apiserver.crt",
        "/etc/kubernetes/pki/etcd/ca.crt",
        "/etc/kubernetes/pki/sa.key",
    ] {
        let node = Node::new();
        let _ = fs::remove_file(node.path(path));
        fs::create_dir(node.path(path)).unwrap();
        refused(
            &node,
            &[&format!(
                "nodepki: {} is a directory (a container runtime makes one when a hostPath file is missing); remove it with rmdir and run again",
                node.path(path).display()
            )],
        );
    }
}

/// Puts a certificate for the key in place, of a `profile` for `signing::wanted`, issued at another time.
fn install_issued_at(node: &Node, name: CertName, at: time::OffsetDateTime) {
    let (_, key) = node.leaf(name).unwrap();
    let mut profile = wanted(name).profile;
    profile.lifetime = 30 * DAY;
    let leaf = node
        .authority(name.authority())
        .issue(key.public_key(), &profile, at)
        .unwrap();
    node.write(format!("{PKI}/{}.crt", name.base_name()), leaf.to_pem());
}

#[test]
fn d2_an_expired_leaf_is_issued_anew() {
    let node = Node::bootstrapped();
    install_issued_at(&node, CertName::FrontProxyClient, now() - 90 * DAY);
    repaired(
        &node,
        CertName::FrontProxyClient,
        &["issued", "it expired at 20"],
    );
}

#[test]
fn d2_an_expired_ca_is_refused_with_what_hangs_on_it() {
    let node = Node::new();
    node.replace_authority(Authority::EtcdCa, now() - 400 * DAY, 365 * DAY);
    refused(
        &node,
        &[
            "nodepki: the CA certificate in @/etc/kubernetes/pki/etcd/ca.crt (CN=etcd-ca) expired at 20",
            ": every certificate, kubeconfig and kubelet under it is refused by its peers; replace the CA first, new leaves would not help",
        ],
    );
}

#[test]
fn d3_a_key_without_its_certificate_is_issued_anew() {
    let node = Node::bootstrapped();
    node.remove(format!("{PKI}/etcd/peer.crt"));
    repaired(
        &node,
        CertName::EtcdPeer,
        &["issued", "certificate is absent"],
    );
    node.remove(format!("{PKI}/apiserver.key"));
    repaired(&node, CertName::Apiserver, &["issued", "key is absent"]);
    node.write(
        format!("{PKI}/apiserver.crt"),
        "-----BEGIN CERTIFICATE-----\nnonsense\n",
    );
    repaired(
        &node,
        CertName::Apiserver,
        &["issued", "certificate is unreadable"],
    );
}

#[test]
fn d4_a_leaf_of_another_ca_names_both() {
    let node = Node::bootstrapped();
    // etcd's certificate under the cluster's CA.
    let (_, key) = node.leaf(CertName::EtcdServer).unwrap();
    let leaf = node
        .authority(Authority::Ca)
        .issue(
            key.public_key(),
            &wanted(CertName::EtcdServer).profile,
            now(),
        )
        .unwrap();
    node.write(format!("{PKI}/etcd/server.crt"), leaf.to_pem());
    repaired(
        &node,
        CertName::EtcdServer,
        &[
            "issued",
            "no path from it to the trusted CN=etcd-ca: its issuer is CN=kubernetes",
        ],
    );
}

#[test]
fn d4_a_kubeconfig_with_the_old_ca_gets_the_new_one() {
    let node = Node::bootstrapped();
    let other = Node::new();
    let path = "/etc/kubernetes/scheduler.conf";
    let mut kubeconfig = Kubeconfig::parse(&node.read(path)).unwrap();
    let server = kubeconfig.current().unwrap().server.unwrap();
    kubeconfig
        .set_cluster(&server, &other.authority(Authority::Ca).bundle().to_pem())
        .unwrap();
    node.write(path, kubeconfig.to_yaml().as_bytes());
    let key = node.key_in_place(CertName::SchedulerConf);
    repaired(
        &node,
        CertName::SchedulerConf,
        &[
            "rewritten",
            "its CA is CN=kubernetes (certificate sha256:",
            "), wanted CN=kubernetes (certificate sha256:",
        ],
    );
    assert_eq!(
        node.key_in_place(CertName::SchedulerConf),
        key,
        "only rewritten"
    );
}

#[test]
fn d5_bundles_of_every_shape_serve() {
    let root = |node: &Node| node.authority(Authority::Ca).bundle().to_pem();
    let node = Node::bootstrapped();
    let (own, foreign) = (root(&node), root(&Node::new()));
    let expired = {
        let old = Node::new();
        old.replace_authority(Authority::Ca, now() - 400 * DAY, 365 * DAY);
        root(&old)
    };
    for (label, bundle, words) in [
        ("duplicates", format!("{own}{own}"), ""),
        (
            "trailing text",
            format!("# the CA of the cluster\n{own}\nissued by hand\n"),
            "",
        ),
        ("CRLF", own.replace('\n', "\r\n"), ""),
        ("a second root", format!("{own}{foreign}"), ""),
        (
            "an expired second root",
            format!("{own}{expired}"),
            "note: @/etc/kubernetes/pki/ca.crt also holds CN=kubernetes, which expired at 20",
        ),
    ] {
        node.write(format!("{PKI}/ca.crt"), &bundle);
        let before = node.etc();
        let ran = node.bootstrap();
        ran.done().says(&node.here(words));
        before.unchanged(&node.etc());
        assert_eq!(node.read(format!("{PKI}/ca.crt")), bundle, "{label}");
    }
    // The issuing root second: kubeadm would fail, so it is told.
    node.write(format!("{PKI}/ca.crt"), format!("{foreign}{own}"));
    node.bootstrap().done().row_says(
        "apiserver",
        "but kubeadm only looks at the first certificate of the bundle, CN=kubernetes: put the issuing root first",
    );
    // No CA certificate first.
    let leaf = node.read(format!("{PKI}/apiserver.crt"));
    node.write(format!("{PKI}/ca.crt"), format!("{leaf}{own}"));
    refused(
        &node,
        &[
            "@/etc/kubernetes/pki/ca.crt cannot serve as the trust bundle of ca: its first certificate (CN=kube-apiserver) is not a CA certificate, and kubeadm takes the first one as the CA; put the CA certificate there and run again",
        ],
    );
    node.write(format!("{PKI}/ca.crt"), "no certificate at all\n");
    refused(
        &node,
        &[
            "@/etc/kubernetes/pki/ca.crt cannot serve as the trust bundle of ca: there is no certificate in it",
        ],
    );
}

#[test]
fn d6_stray_keys_and_requests_do_no_harm() {
    let node = Node::new();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write(format!("{PKI}/apiserver.key"), key.to_pem().as_bytes());
    node.write(format!("{PKI}/apiserver.csr"), "left by somebody");
    node.write(format!("{PKI}/unknown.key"), "not of kubeadm");
    node.bootstrap()
        .done()
        .row_says("apiserver", "certificate is absent");
    node.assert_sound(&EVERYTHING);
    assert_eq!(
        node.read(format!("{PKI}/apiserver.csr")),
        "left by somebody"
    );
    assert_eq!(node.read(format!("{PKI}/unknown.key")), "not of kubeadm");
}

#[test]
fn d7_a_ca_key_on_a_node_of_an_external_ca_is_told() {
    let node = Node::new();
    fs::copy(node.ca().join("ca.key"), node.path(format!("{PKI}/ca.key"))).unwrap();
    node.ask().done().says(&node.here(
        "note: @/etc/kubernetes/pki/ca.key is on this node although an external signer is configured for ca: nodepki migrate to-external proves that it is not needed, and removes it",
    ));
    assert!(node.path(format!("{PKI}/ca.key")).is_file());
}

#[test]
fn d8_a_joiner_never_makes_a_service_account_key() {
    let node = Node::of(JOIN);
    let words = "nodepki: @/etc/kubernetes/pki/sa.key is absent and this node belongs to a cluster: a new pair would differ from that of the other control-plane nodes and service-account tokens would fail; have it fetched from kubeadm-certs (join.certificateKey, or controlPlane.certificateKey of the JoinConfiguration), or copy sa.key and sa.pub from a control-plane node to @/etc/kubernetes/pki, and run again";
    refused(&node, &[words]);
    // With the key alone, the public half follows.
    let key = PrivateKey::generate(KeyAlgorithm::Rsa2048).unwrap();
    node.write(format!("{PKI}/sa.key"), key.to_pem().as_bytes());
    node.set_mode(format!("{PKI}/sa.key"), 0o600);
    node.bootstrap().done().row_says("sa", "sa.pub derived");
    assert_eq!(
        node.read(format!("{PKI}/sa.pub")),
        key.public_key().to_pem()
    );
    assert_eq!(node.read(format!("{PKI}/sa.key")), *key.to_pem());
    assert_eq!(node.mode(format!("{PKI}/sa.pub")), 0o600);
}

#[test]
fn advises_only_copy_of_service_account_pair_on_node_that_has_served() {
    const COPY: &str = "copy both sa.key and sa.pub from another control-plane node";
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let (key, public) = (format!("{PKI}/sa.key"), format!("{PKI}/sa.pub"));
    let remove_key = |node: &Node| node.remove(&key);
    let changes: [&dyn Fn(&Node); 6] = [
        &remove_key,
        &|node| node.write(&key, ""),
        &|node| node.write(&key, "nonsense"),
        &|node| node.write(&public, other.public_key().to_pem()),
        &|node| {
            node.remove(&key);
            node.remove(&public);
        },
        // kubeadm has made the manifest, and everything else is lost.
        &|node| {
            for path in ["/etc/kubernetes/controller-manager.conf", &key, &public] {
                node.remove(path);
            }
            node.write("/etc/kubernetes/manifests/kube-apiserver.yaml", "{}");
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let node = Node::bootstrapped();
        change(&node);
        let pair = || [&key, &public].map(|path| fs::read(node.path(path)).ok());
        let before = pair();
        let signer = format!("local:{}", node.ca().display());
        let config = node.outside("kubeadm.yaml");
        let configured = |command: &[&str]| {
            let mut run = node.command(command);
            run.args(["--signer", &signer, "--kubeadm-config"]);
            Ran::of(run.arg(&config))
        };
        for ran in [
            configured(&["bootstrap"]),
            configured(&["plan"]),
            configured(&["renew"]),
            configured(&["doctor"]),
            node.run(&["doctor"]),
            node.run(&["status"]),
        ] {
            assert!(ran.said().contains(COPY), "{number}: {}", ran.said());
            for wrong in [
                "remove sa.pub",
                "derive",
                "makes the pair",
                "remove the wrong",
            ] {
                assert!(!ran.said().contains(wrong), "{number}: {}", ran.said());
            }
        }
        assert!(pair() == before, "{number}: the pair was changed");
    }
}

#[test]
fn d8_service_account_pairs_that_do_not_fit_are_refused() {
    let node = Node::new();
    let own = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write(format!("{PKI}/sa.key"), own.to_pem().as_bytes());
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write(format!("{PKI}/sa.pub"), other.public_key().to_pem());
    refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.key and @/etc/kubernetes/pki/sa.pub are not a pair: tokens signed with the one are refused by the other; find out which of them the cluster uses (compare with another control-plane node), then remove the wrong one and run again",
        ],
    );
    node.remove(format!("{PKI}/sa.key"));
    refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.pub is there but @/etc/kubernetes/pki/sa.key is not; copy the matching sa.key from where sa.pub came, or remove sa.pub if the cluster is new, and run again",
        ],
    );
    node.write(format!("{PKI}/sa.key"), "nonsense");
    refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.key is not usable: no PEM block with a private key in it; restore it from another control-plane node and run again",
        ],
    );
    node.write(format!("{PKI}/sa.key"), other.to_pem().as_bytes());
    node.write(format!("{PKI}/sa.pub"), "nonsense");
    refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.pub is not usable: ",
            "; remove it to have it derived from sa.key and run again",
        ],
    );
    node.remove(format!("{PKI}/sa.pub"));
    node.set_mode(format!("{PKI}/sa.key"), 0o600);
    node.bootstrap().done().row_says("sa", "sa.pub derived");
    // Readable by everybody: made private, with the same key.
    node.set_mode(format!("{PKI}/sa.key"), 0o644);
    node.bootstrap()
        .done()
        .says(&node.here("@/etc/kubernetes/pki/sa.key had mode 0644, now 0600"));
    assert_eq!(node.mode(format!("{PKI}/sa.key")), 0o600);
    assert_eq!(node.read(format!("{PKI}/sa.key")), *other.to_pem());
}

#[test]
fn d11_what_people_added_to_a_kubeconfig_stays() {
    let node = Node::bootstrapped();
    let path = "/etc/kubernetes/admin.conf";
    let edited = node
        .read(path)
        .replace(
            "users:\n",
            "users:\n- name: robot\n  user:\n    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: login\n      env: [{name: A, value: b}]\n",
        )
        .replace("contexts:\n", "contexts:\n- context: {cluster: kubernetes, user: robot, namespace: kube-system}\n  name: robots\n")
        .replace("    server: ", "    proxy-url: http://proxy.example.com:3128\n    server: ")
        + "preferences: {colors: true}\nextensions: [{name: mine, extension: {a: 1}}]\n";
    node.write(path, &edited);
    let before = node.etc();
    node.bootstrap().done();
    before.unchanged(&node.etc());
    // Another endpoint and another certificate: all of it is still there.
    node.configure(&INIT.replace("api.example.com", "other.example.com"));
    node.bootstrap().done().row_says("admin.conf", "rewritten");
    let text = node.read(path);
    for kept in [
        "proxy-url: http://proxy.example.com:3128",
        "command: login",
        "name: robots",
        "namespace: kube-system",
        "colors: true",
        "name: mine",
    ] {
        assert!(text.contains(kept), "{kept} is lost:\n{text}");
    }
    assert!(text.contains("server: https://other.example.com:6443"));
    node.assert_sound(&EVERYTHING);
}

#[test]
fn d11_a_kubeconfig_that_cannot_be_repaired_is_refused() {
    for (from, to, words) in [
        (
            "current-context: kubernetes-admin@kubernetes",
            "current-context: gone",
            "current-context names context \"gone\", which it does not contain",
        ),
        (
            "current-context: kubernetes-admin@kubernetes",
            "current-context: ''",
            "current-context is empty",
        ),
        ("kind: Config", "kind: [Config", "it is not YAML: "),
        (
            "    client-certificate-data: ",
            "    client-certificate-data: '*' # ",
            "client-certificate-data is not valid base64",
        ),
    ] {
        let node = Node::bootstrapped();
        let path = "/etc/kubernetes/admin.conf";
        node.write(path, node.read(path).replace(from, to));
        refused(
            &node,
            &[
                &format!("@/etc/kubernetes/admin.conf cannot be repaired without losing what is in it: {words}"),
                "; move it away and run again",
            ],
        )
        .says_not("PRIVATE KEY");
    }
}

/// Replaces the key of a pair with another form of itself or another key, by OpenSSL.
fn convert(node: &Node, path: &str, arguments: &[&str]) {
    let pem = fs::read(node.path(path)).unwrap();
    node.write(path, openssl(arguments, &pem));
}

#[test]
fn d12_pkcs8_keys_are_rewritten_and_kept() {
    let node = Node::bootstrapped();
    let path = format!("{PKI}/apiserver.key");
    let before = node.key_in_place(CertName::Apiserver);
    convert(&node, &path, &["pkcs8", "-topk8", "-nocrypt"]);
    repaired(
        &node,
        CertName::Apiserver,
        &[
            "rewritten",
            "the key is PKCS#8; kubeadm writes PKCS#1 or SEC1",
        ],
    );
    assert_eq!(node.key_in_place(CertName::Apiserver), before);
    assert!(
        node.read(&path)
            .starts_with("-----BEGIN EC PRIVATE KEY-----")
    );
    // As `openssl ecparam -genkey` writes it: fine as it is.
    let pem = node.read(&path);
    node.write(
        &path,
        format!(
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{pem}"
        ),
    );
    let before = node.etc();
    node.bootstrap().done();
    before.unchanged(&node.etc());
}

#[test]
fn d12_leaf_keys_that_no_component_reads_are_named_and_replaced() {
    let node = Node::bootstrapped();
    let path = format!("{PKI}/apiserver.key");
    convert(
        &node,
        &path,
        &["pkcs8", "-topk8", "-passout", "pass:secret"],
    );
    repaired(
        &node,
        CertName::Apiserver,
        &[
            "issued",
            "key is unreadable: the private key is encrypted; Kubernetes components cannot read it, decrypt it first (openssl pkey -in KEY -out KEY)",
        ],
    );
    convert(&node, &path, &["genpkey", "-algorithm", "ed25519"]);
    repaired(
        &node,
        CertName::Apiserver,
        &[
            "issued",
            "key is unreadable: the private key is Ed25519, which kubeadm does not accept (neither RSA nor ECDSA P-256, P-384 or P-521)",
        ],
    );
    convert(&node, &path, &["genrsa", "-traditional", "1024"]);
    repaired(
        &node,
        CertName::Apiserver,
        &[
            "issued",
            "key is unreadable: the private key is RSA with 1024 bits",
        ],
    );
}

#[test]
fn d12_ca_keys_of_the_local_signer_that_cannot_be_used_are_named() {
    for (arguments, words) in [
        (
            &["genpkey", "-algorithm", "ed25519"][..],
            "the private key is Ed25519",
        ),
        (
            &[
                "genpkey",
                "-algorithm",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-aes256",
                "-pass",
                "pass:x",
            ][..],
            "the private key is encrypted",
        ),
        (
            &[
                "genpkey",
                "-algorithm",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ][..],
            "CN=etcd-ca",
        ),
    ] {
        let node = Node::new();
        let before = node.etc();
        write_secret(node.ca().join("etcd/ca.key"), openssl(arguments, b""));
        node.bootstrap()
            .ended(78)
            .says("etcd/ca.crt and ")
            .says("etcd/ca.key: ")
            .says(words)
            .says("put the pair of authority etcd-ca there, or give it another signer");
        before.unchanged(&node.etc());
    }
}

#[test]
fn d13_keys_that_everybody_can_read_are_made_private() {
    let node = Node::bootstrapped();
    for (name, path) in [
        (CertName::EtcdServer, "/etc/kubernetes/pki/etcd/server.key"),
        (CertName::AdminConf, "/etc/kubernetes/admin.conf"),
    ] {
        let key = node.key_in_place(name);
        node.set_mode(path, 0o644);
        let ran = repaired(
            &node,
            name,
            &["rewritten", "everybody can read the key (mode 0644)"],
        );
        ran.says(&format!(
            "note: {} had mode 0644, now 0600",
            node.path(path).display()
        ));
        assert_eq!(node.mode(path), 0o600);
        assert_eq!(node.key_in_place(name), key);
    }
}

#[test]
fn d13_links_in_the_place_of_files_are_never_written_through() {
    let node = Node::bootstrapped();
    let (inside, path) = ("/srv/server.key", "/etc/kubernetes/pki/etcd/server.key");
    node.write(inside, node.read(path));
    node.set_mode(inside, 0o600);
    node.remove(path);
    symlink(inside, node.path(path)).unwrap();
    // It serves, inside the root.
    let before = node.etc();
    node.bootstrap().done();
    before.unchanged(&node.etc());
    // Its replacement would be another thing.
    node.write(inside, "");
    let words = format!(
        "nodepki: {} is a symbolic link to {}; nodepki replaces files, not what links point to: put the file itself here and run again",
        node.path(path).display(),
        node.path(inside).display()
    );
    let before = node.etc();
    node.ask().ended(65).says(&words);
    before.unchanged(&node.etc());
    assert_eq!(node.exchanges(), []);
    // One that leads out of the root leads nowhere in it.
    let outside = node.outside("secret.key");
    fs::write(&outside, "untouched").unwrap();
    node.remove(path);
    symlink(
        Path::new("../../../../..").join("secret.key"),
        node.path(path),
    )
    .unwrap();
    node.ask().ended(65).says(" is a symbolic link to ");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
}

#[test]
fn d14_weak_leaves_are_issued_anew() {
    let node = Node::bootstrapped();
    // SHA-1 under the right CA, with the right names.
    let base = node.ca().join("front-proxy-ca");
    let key = node.path(format!("{PKI}/front-proxy-client.key"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let extensions = node.outside("ext");
    fs::write(
        &extensions,
        "keyUsage = critical, digitalSignature, keyEncipherment\nextendedKeyUsage = clientAuth\n",
    )
    .unwrap();
    let csr = openssl(
        &[
            "req",
            "-new",
            "-key",
            &text(&key),
            "-subj",
            "/CN=front-proxy-client",
        ],
        b"",
    );
    let leaf = openssl(
        &[
            "x509",
            "-req",
            "-sha1",
            "-days",
            "30",
            "-CA",
            &text(&base.with_extension("crt")),
            "-CAkey",
            &text(&base.with_extension("key")),
            "-extfile",
            &text(&extensions),
        ],
        &csr,
    );
    node.write(format!("{PKI}/front-proxy-client.crt"), leaf);
    repaired(
        &node,
        CertName::FrontProxyClient,
        &[
            "issued",
            "is signed with ",
            "which Kubernetes components refuse",
        ],
    );
    // A key that is not of the wanted kind.
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    node.bootstrap()
        .done()
        .row_says("front-proxy-client", "key is ECDSA-P256, wanted ECDSA-P384");
    node.assert_sound(&EVERYTHING);
}
