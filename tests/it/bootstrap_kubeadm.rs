//! The real kubeadm and OpenSSL judge the files that nodepki leaves on a node.
//!
//! No CA key is ever on the node, so kubeadm is in external-CA mode. Each of its conditions is also asserted directly,
//! since kubeadm accepts more than what works.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::golden::{self, Case};
use crate::kubeadm::{self, Node};
use crate::machine::{Authorities, Machine, make_key, openssl, stderr};
use crate::openssl::{
    Purpose, facts_of_cert, facts_of_certs, facts_of_tree, is_pair, key_header, public_key_of_key,
    verify,
};

/// URLs of the API server: the one of this node and the shared one.
#[derive(Clone, Copy)]
struct Servers {
    local: &'static str,
    shared: &'static str,
}

/// The URLs of most golden cases.
const SINGLE_NODE: Servers = Servers {
    local: "https://192.0.2.11:6443",
    shared: "https://192.0.2.11:6443",
};

/// The leaves: path, authority and purposes. A `*.conf` contains its leaf.
const LEAVES: &[(&str, &str, &[Purpose])] = &[
    ("apiserver", "ca", &[Purpose::Server]),
    ("apiserver-kubelet-client", "ca", &[Purpose::Client]),
    ("front-proxy-client", "front-proxy-ca", &[Purpose::Client]),
    (
        "etcd/server",
        "etcd/ca",
        &[Purpose::Server, Purpose::Client],
    ),
    ("etcd/peer", "etcd/ca", &[Purpose::Server, Purpose::Client]),
    ("etcd/healthcheck-client", "etcd/ca", &[Purpose::Client]),
    ("apiserver-etcd-client", "etcd/ca", &[Purpose::Client]),
    ("admin.conf", "ca", &[Purpose::Client]),
    ("super-admin.conf", "ca", &[Purpose::Client]),
    ("kubelet.conf", "ca", &[Purpose::Client]),
    ("controller-manager.conf", "ca", &[Purpose::Client]),
    ("scheduler.conf", "ca", &[Purpose::Client]),
];

#[test]
fn kubeadm_accepts_stacked_node() {
    assert_kubeadm_accepts(
        "init/v1beta4-stacked",
        &Authorities::new("RSA-2048"),
        SINGLE_NODE,
    );
}

#[test]
fn kubeadm_accepts_ecdsa_node() {
    assert_kubeadm_accepts(
        "init/v1beta4-alg-ECDSA-P256",
        &Authorities::new("ECDSA-P256"),
        SINGLE_NODE,
    );
}

#[test]
fn kubeadm_accepts_external_etcd() {
    assert_kubeadm_accepts(
        "init/v1beta4-external-etcd",
        &Authorities::new("ECDSA-P256"),
        SINGLE_NODE,
    );
}

#[test]
fn kubeadm_accepts_shared_endpoint() {
    let authorities = Authorities::new("ECDSA-P256");
    assert_kubeadm_accepts(
        "init/v1beta4-cpe-dns-port",
        &authorities,
        Servers {
            local: "https://192.0.2.11:7443",
            shared: "https://api.prod.example.com:8443",
        },
    );
}

fn assert_kubeadm_accepts(case: &str, authorities: &Authorities, servers: Servers) {
    kubeadm::binary();
    let config = Case::load(case).config;
    let machine = bootstrapped(&config, &authorities.signer());
    assert_phases_succeed(&machine, &config, servers);
}

/// The usual offline setup: the root is trusted, an intermediate signs, and the leaf's chain contains it. The bundle
/// also contains the previous root.
#[test]
fn kubeadm_accepts_intermediates_and_bundle() {
    kubeadm::binary();
    let config = Case::load("init/v1beta4-alg-ECDSA-P256").config;
    let roots = Authorities::new("ECDSA-P256");
    let earlier = Authorities::new("ECDSA-P256");
    let machine = Machine::new();
    for authority in ["ca", "etcd/ca", "front-proxy-ca"] {
        let file = format!("{authority}.crt");
        let [root, old] =
            [&roots, &earlier].map(|from| fs::read_to_string(from.dir().join(&file)).unwrap());
        machine.write(
            &format!("etc/kubernetes/pki/{file}"),
            &format!("{root}{old}"),
        );
        make_intermediate(roots.dir(), authority);
    }
    let config_file = machine.write("kubeadm.yaml", &config);
    let bundle = machine.root().join("bundle");
    let [config_file, bundle] = [&config_file, &bundle].map(|path| path.to_str().unwrap());
    machine.done(&["csr", "export", bundle, "--kubeadm-config", config_file]);
    for (leaf, authority, _) in LEAVES {
        let base = if leaf.ends_with(".conf") {
            format!("{bundle}/{leaf}")
        } else {
            format!("{bundle}/pki/{leaf}")
        };
        let issuer = format!("{}/{authority}-intermediate", roots.dir().display());
        let leaf = openssl(&[
            "x509",
            "-req",
            "-in",
            &format!("{base}.csr"),
            "-extfile",
            &format!("{base}.ext"),
            "-days",
            "365",
            "-CA",
            &format!("{issuer}.crt"),
            "-CAkey",
            &format!("{issuer}.key"),
        ]);
        let intermediate = fs::read_to_string(format!("{issuer}.crt")).unwrap();
        fs::write(format!("{base}.crt"), leaf + &intermediate).unwrap();
    }
    machine.done(&["csr", "import", bundle, "--kubeadm-config", config_file]);
    let apiserver = fs::read_to_string(machine.pki("apiserver.crt")).unwrap();
    assert_eq!(
        facts_of_certs(&apiserver).len(),
        2,
        "the intermediate is needed to verify"
    );
    assert_phases_succeed(&machine, &config, SINGLE_NODE);
}

/// Creates `<authority>-intermediate.crt` and `.key` in the authority's directory.
fn make_intermediate(dir: &Path, authority: &str) {
    let path = |suffix: &str| format!("{}/{authority}{suffix}", dir.display());
    let (key, csr, extensions) = (
        path("-intermediate.key"),
        path("-intermediate.csr"),
        path("-intermediate.ext"),
    );
    make_key(Path::new(&key), "ECDSA-P256");
    openssl(&[
        "req",
        "-new",
        "-key",
        &key,
        "-subj",
        "/CN=issuing-ca",
        "-out",
        &csr,
    ]);
    fs::write(
        &extensions,
        "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n",
    )
    .unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        &csr,
        "-extfile",
        &extensions,
        "-days",
        "1825",
        "-CA",
        &path(".crt"),
        "-CAkey",
        &path(".key"),
        "-out",
        &path("-intermediate.crt"),
    ]);
}

/// Asserts that kubeadm's certificate and kubeconfig phases succeed without a change, and that its expiry report works.
fn assert_phases_succeed(machine: &Machine, config: &str, servers: Servers) {
    assert_external_ca_conditions(machine, servers);
    let [certs, kubeconfigs] = kubeadm::accepts_external_ca(&machine.etc_kubernetes(), config);
    let said = String::from_utf8_lossy(&certs.stdout).into_owned();
    assert!(
        said.contains("Using existing ca keyless certificate authority"),
        "{said}"
    );
    let said = String::from_utf8_lossy(&kubeconfigs.stdout).into_owned();
    assert!(!said.contains("Writing"), "{said}");
    let etc = machine.etc_kubernetes();
    let report = kubeadm::check_expiration(Node::new(&etc), config, "json");
    assert!(report.status.success(), "{}", stderr(&report));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    for certificate in report["certificates"].as_array().unwrap() {
        assert_ne!(certificate["missing"], true, "{certificate}");
        assert_eq!(certificate["externallyManaged"], true, "{certificate}");
    }
}

/// Asserts the conditions of `UsingExternalCA`, `UsingExternalFrontProxyCA`, `UsingExternalEtcdCA`, `CreateTree` and
/// `ValidateKubeconfigsForExternalCA`, and those that they omit: each certificate matches its key, the certificates
/// in the kubeconfigs verify, and the service-account pair exists.
fn assert_external_ca_conditions(machine: &Machine, servers: Servers) {
    let scratch = tempfile::tempdir().unwrap();
    for authority in ["ca", "front-proxy-ca", "etcd/ca"] {
        if authority == "etcd/ca" && !has_etcd(machine) {
            continue;
        }
        let certificate = machine.pki(&format!("{authority}.crt"));
        assert!(facts_of_cert(&certificate).is_ca(), "{authority}");
        assert!(
            !machine.pki(&format!("{authority}.key")).exists(),
            "{authority}"
        );
    }
    for leaf in leaves(machine, &scratch) {
        let first = scratch.path().join("first.crt");
        fs::write(&first, first_certificate(&leaf.authority)).unwrap();
        for purpose in leaf.purposes {
            verify(&leaf.chain, &first, *purpose)
                .unwrap_or_else(|error| panic!("{} as {purpose:?}: {error}", leaf.name));
        }
        assert!(is_pair(&leaf.chain, &leaf.key), "{}", leaf.name);
    }
    let tree = facts_of_tree(&machine.etc_kubernetes());
    for (conf, server) in [
        ("admin.conf", servers.shared),
        ("super-admin.conf", servers.shared),
        // kubeadm expects the shared endpoint here and only warns; `kubeadm init` itself writes the local one.
        ("kubelet.conf", servers.local),
        ("controller-manager.conf", servers.local),
        ("scheduler.conf", servers.local),
    ] {
        let path = machine.etc_kubernetes().join(conf);
        let text = fs::read_to_string(&path).unwrap();
        let authority = conf_data(&text, "certificate-authority-data");
        // The kubeconfigs trust the whole bundle, including the previous root.
        let bundle = fs::read_to_string(machine.pki("ca.crt")).unwrap();
        assert_eq!(authority, bundle, "{conf}");
        let kubeconfig = &tree[conf]["kubeconfig"];
        let named = |list: &str, name: &serde_json::Value| {
            let items = kubeconfig[list].as_array().unwrap();
            items
                .iter()
                .find(|item| item["name"] == *name)
                .unwrap()
                .clone()
        };
        let context = named("contexts", &kubeconfig["current-context"]);
        let cluster = named("clusters", &context["context"]["cluster"]);
        named("users", &context["context"]["user"]);
        assert_eq!(cluster["cluster"]["server"], server, "{conf}");
    }
    let key = public_key_of_key(&fs::read_to_string(machine.pki("sa.key")).unwrap());
    let public = fs::read_to_string(machine.pki("sa.pub")).unwrap();
    assert_eq!(public.trim(), key.trim());
}

#[test]
fn certificates_match_every_name_and_address_of_the_servers() {
    let config = Case::load("init/v1beta4-certsans-valid").config.replace(
        "kubernetesVersion",
        "encryptionAlgorithm: ECDSA-P256\nkubernetesVersion",
    );
    let machine = bootstrapped(&config, &Authorities::new("ECDSA-P256").signer());
    for (leaf, least) in [
        ("apiserver.crt", 15),
        ("etcd/server.crt", 8),
        ("etcd/peer.crt", 7),
    ] {
        let path = machine.pki(leaf);
        let sans = facts_of_cert(&path).sans().to_vec();
        assert!(sans.len() >= least, "{leaf}: {sans:?}");
        for san in sans {
            let (option, value) = match san.split_once(':').unwrap() {
                ("DNS", name) => ("-checkhost", name.replace('*', "any")),
                ("IP", address) => ("-checkip", address.to_owned()),
                _ => panic!("{leaf}: {san}"),
            };
            let path = path.to_str().unwrap();
            let said = openssl(&["x509", "-noout", "-in", path, option, &value]);
            assert!(said.contains("does match certificate"), "{leaf}: {said}");
        }
        let path = path.to_str().unwrap();
        let said = openssl(&[
            "x509",
            "-noout",
            "-in",
            path,
            "-checkhost",
            "other.example.com",
        ]);
        assert!(said.contains("does NOT match"), "{leaf}: {said}");
    }
}

#[test]
fn generates_sound_keys_of_every_algorithm() {
    let key = |algorithm: &str| match algorithm.split_once('-').unwrap() {
        ("RSA", bits) => format!("{{algorithm: RSA, rsa: {{keySize: {bits}}}}}"),
        (_, curve) => format!("{{algorithm: ECDSA, ecdsa: {{curve: {curve}}}}}"),
    };
    let wanted = [
        ("apiserver", "apiserver", "RSA-2048"),
        (
            "apiserver-kubelet-client",
            "apiserver-kubelet-client",
            "RSA-3072",
        ),
        ("front-proxy-client", "front-proxy-client", "RSA-4096"),
        ("etcd-server", "etcd/server", "ECDSA-P256"),
        ("etcd-peer", "etcd/peer", "ECDSA-P384"),
        (
            "etcd-healthcheck-client",
            "etcd/healthcheck-client",
            "ECDSA-P521",
        ),
        ("sa", "sa", "ECDSA-P384"),
    ];
    let overrides = wanted.map(|(name, _, algorithm)| {
        format!(
            "  - {{certificateName: {name}, certificate: {{key: {}}}}}\n",
            key(algorithm)
        )
    });
    let machine = Machine::new();
    machine.write(
        "etc/nodepki/config.yaml",
        &format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\npki:\n  defaults: {{key: {}}}\n  overrides:\n{}",
            key("ECDSA-P256"),
            overrides.concat()
        ),
    );
    bootstrap(
        &machine,
        &Case::load("init/v1beta4-stacked").config,
        &Authorities::new("ECDSA-P384").signer(),
    );
    for (_, base, algorithm) in wanted {
        let path = machine.pki(&format!("{base}.key"));
        let header = if algorithm.starts_with("RSA") {
            "RSA PRIVATE KEY"
        } else {
            "EC PRIVATE KEY"
        };
        assert_eq!(key_header(&path), header, "{base}");
        if base != "sa" {
            assert_eq!(
                facts_of_cert(&machine.pki(&format!("{base}.crt"))).key,
                algorithm,
                "{base}"
            );
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    let keys = leaves(&machine, &scratch).into_iter().map(|leaf| leaf.key);
    for key in keys.chain([machine.pki("sa.key")]) {
        let said = openssl(&["pkey", "-noout", "-check", "-in", key.to_str().unwrap()]);
        assert!(said.contains("Key is valid"), "{}: {said}", key.display());
    }
    assert_external_ca_conditions(&machine, SINGLE_NODE);
}

/// kubeadm starts the certificates in kubeconfigs with their CA, years back on an old cluster. A renewal at a share of
/// the lifetime then comes too late.
#[test]
fn starts_certificates_at_issue_time_and_not_with_their_ca() {
    kubeadm::binary();
    let config = Case::load("init/v1beta4-alg-ECDSA-P256").config;
    let [theirs, authorities] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    golden::copy_check_expiration_tree(authorities.path());
    let before = OffsetDateTime::now_utc();
    let signer = format!("local:{}", authorities.path().join("pki").display());
    let machine = bootstrapped(&config, &signer);
    let scratch = tempfile::tempdir().unwrap();
    let five_minutes = time::Duration::minutes(5);
    for leaf in leaves(&machine, &scratch) {
        let start = facts_of_cert(&leaf.chain).not_before + five_minutes;
        assert!(
            start >= before - time::Duration::seconds(1),
            "{}: {start}",
            leaf.name
        );
        assert!(start <= OffsetDateTime::now_utc(), "{}: {start}", leaf.name);
    }

    kubeadm::copy_tree(authorities.path(), theirs.path());
    fs::remove_file(theirs.path().join("admin.conf")).unwrap();
    let output = Node::new(theirs.path()).run(&config, &["init", "phase", "kubeconfig", "admin"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let conf = fs::read_to_string(theirs.path().join("admin.conf")).unwrap();
    let admin = facts_of_certs(&conf_data(&conf, "client-certificate-data")).remove(0);
    let authority = facts_of_cert(&theirs.path().join("pki/ca.crt"));
    assert_eq!(admin.not_before, authority.not_before);
}

#[test]
fn changes_nothing_and_sends_no_request_in_a_second_run() {
    const SIGNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bad-signer.sh");
    let machine = Machine::new();
    let authorities = Authorities::new("ECDSA-P256");
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("asked");
    for authority in ["ca", "etcd/ca", "front-proxy-ca"] {
        let certificate = fs::read_to_string(authorities.dir().join(format!("{authority}.crt")));
        machine.write(
            &format!("etc/kubernetes/pki/{authority}.crt"),
            &certificate.unwrap(),
        );
    }
    let script = format!(
        "echo $1 >>{}; exec {SIGNER} good {} $1",
        log.display(),
        authorities.dir().display()
    );
    // The settings of this machine may name a program, the settings below --root may not.
    let settings = log.with_file_name("config.yaml");
    fs::write(
        &settings,
        format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners:\n  corp: {{exec: {{command: /bin/bash, args: [-c, '{script}', plugin]}}}}\nauthorities:\n  ca: {{signer: corp}}\n  etcd-ca: {{signer: corp}}\n  front-proxy-ca: {{signer: corp}}\n"
        ),
    )
    .unwrap();
    let config = Case::load("init/v1beta4-alg-ECDSA-P256").config;
    let config = machine.write("kubeadm.yaml", &config);
    let (config, settings) = (config.to_str().unwrap(), settings.to_str().unwrap());
    let arguments = [
        "bootstrap",
        "--config",
        settings,
        "--kubeadm-config",
        config,
    ];
    machine.done(&arguments);
    let asked = fs::read_to_string(&log).unwrap();
    assert_eq!(
        asked.lines().filter(|verb| *verb == "sign").count(),
        LEAVES.len(),
        "{asked}"
    );
    assert_external_ca_conditions(&machine, SINGLE_NODE);

    let before = file_states(machine.root());
    let again = machine.done(&arguments);
    assert_eq!(fs::read_to_string(&log).unwrap(), asked);
    let text = String::from_utf8(again.stdout).unwrap();
    assert!(text.contains("kept") && !text.contains("issued"), "{text}");
    machine.done(&["plan", "--config", settings, "--kubeadm-config", config]);
    machine.done(&["status"]);
    let after = file_states(machine.root());
    for (path, found) in &after {
        assert_eq!(before.get(path), Some(found), "{}", path.display());
    }
    assert_eq!(before.len(), after.len());
    assert_eq!(fs::read_to_string(&log).unwrap(), asked);
}

fn bootstrapped(config: &str, signer: &str) -> Machine {
    let machine = Machine::new();
    bootstrap(&machine, config, signer);
    machine
}

fn bootstrap(machine: &Machine, config: &str, signer: &str) {
    let config = machine.write("kubeadm.yaml", config);
    let config = config.to_str().unwrap();
    machine.done(&["bootstrap", "--kubeadm-config", config, "--signer", signer]);
}

fn has_etcd(machine: &Machine) -> bool {
    machine.pki("etcd").exists()
}

/// A leaf on the machine, with its files.
struct Leaf {
    name: &'static str,
    chain: PathBuf,
    key: PathBuf,
    authority: PathBuf,
    purposes: &'static [Purpose],
}

/// Returns all leaves; those of kubeconfigs are extracted below `scratch`.
fn leaves(machine: &Machine, scratch: &TempDir) -> Vec<Leaf> {
    let here = LEAVES
        .iter()
        .filter(|(_, authority, _)| *authority != "etcd/ca" || has_etcd(machine));
    here.map(|(name, authority, purposes)| {
        let (chain, key) = if name.ends_with(".conf") {
            let text = fs::read_to_string(machine.etc_kubernetes().join(name)).unwrap();
            let unpack = |field: &str| {
                let path = scratch.path().join(format!("{name}.{field}"));
                fs::write(&path, conf_data(&text, field)).unwrap();
                path
            };
            (unpack("client-certificate-data"), unpack("client-key-data"))
        } else {
            (
                machine.pki(&format!("{name}.crt")),
                machine.pki(&format!("{name}.key")),
            )
        };
        let authority = machine.pki(&format!("{authority}.crt"));
        Leaf {
            name,
            chain,
            key,
            authority,
            purposes,
        }
    })
    .collect()
}

/// Returns the decoded value of a `*-data` field of a kubeconfig.
fn conf_data(kubeconfig: &str, field: &str) -> String {
    let line = kubeconfig.lines().find_map(|line| {
        line.trim_start_matches([' ', '-'])
            .strip_prefix(field)?
            .strip_prefix(": ")
    });
    let data = line.unwrap_or_else(|| panic!("no {field} in {kubeconfig}"));
    String::from_utf8(STANDARD.decode(data.trim()).unwrap()).unwrap()
}

fn first_certificate(bundle: &Path) -> String {
    const END: &str = "-----END CERTIFICATE-----\n";
    let text = fs::read_to_string(bundle).unwrap();
    let end = text.find(END).unwrap() + END.len();
    text[..end].to_owned()
}

/// Inode, mode, modification and change time, and content of a file.
type FileState = (u64, u32, [i64; 4], Vec<u8>);

fn file_states(dir: &Path) -> BTreeMap<PathBuf, FileState> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        let times = [
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ];
        let content = if metadata.is_dir() {
            found.append(&mut file_states(&path));
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        found.insert(path, (metadata.ino(), metadata.mode(), times, content));
    }
    found
}
