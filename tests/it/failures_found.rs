//! Faulty files already on the disk: repaired if no data is lost, otherwise refused with the name of the file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{KeyAlgorithm, PrivateKey};

use crate::node::{DAY, EVERYTHING, INIT, JOIN, Node, Ran};
use crate::signing::{now, openssl, wanted, write_secret};

const PKI: &str = "/etc/kubernetes/pki";

/// Asserts that the run is refused with status 65 and `words`, sends no request and changes nothing below `/etc`.
fn assert_refused(node: &Node, words: &[&str]) -> Ran {
    let before = node.etc();
    let ran = node.ask();
    ran.ended(65);
    for words in words {
        ran.says(&node.here(words));
    }
    before.unchanged(&node.etc());
    assert_eq!(node.exchanges(), []);
    // `plan` reports the same with the same status.
    let plan = node.plan();
    plan.ended(65);
    for words in words {
        plan.says(&node.here(words));
    }
    ran
}

/// Damage that the next run repairs.
struct Damage {
    name: CertName,
    make: fn(&Node),
    /// Parts of the certificate's row.
    words: &'static [&'static str],
}

const fn damage(name: CertName, make: fn(&Node), words: &'static [&'static str]) -> Damage {
    Damage { name, make, words }
}

/// Issues a certificate for the present key as `signing::wanted` describes it, by another authority or at another time.
fn install_issued(node: &Node, name: CertName, by: Authority, at: time::OffsetDateTime) {
    let (_, key) = node.leaf(name).unwrap();
    let mut profile = wanted(name).profile;
    profile.lifetime = 30 * DAY;
    let leaf = node.authority(by).issue(key.public_key(), &profile, at);
    node.write(
        format!("{PKI}/{}.crt", name.base_name()),
        leaf.unwrap().to_pem(),
    );
}

/// Converts the key of the API server with OpenSSL, to another encoding or another key.
fn convert(node: &Node, arguments: &[&str]) {
    let pem = fs::read(node.path(format!("{PKI}/apiserver.key"))).unwrap();
    node.write(format!("{PKI}/apiserver.key"), openssl(arguments, &pem));
}

/// Issues a certificate of front-proxy-client with a SHA-1 signature.
fn sign_with_sha1(node: &Node) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let base = node.ca().join("front-proxy-ca");
    let [ca, ca_key] = ["crt", "key"].map(|extension| text(&base.with_extension(extension)));
    let key = text(&node.path(format!("{PKI}/front-proxy-client.key")));
    let extensions = node.outside("ext");
    fs::write(
        &extensions,
        "keyUsage = critical, digitalSignature, keyEncipherment\nextendedKeyUsage = clientAuth\n",
    )
    .unwrap();
    let extensions = text(&extensions);
    let csr = openssl(
        &[
            "req",
            "-new",
            "-key",
            &key,
            "-subj",
            "/CN=front-proxy-client",
        ],
        b"",
    );
    let arguments = ["x509", "-req", "-sha1", "-days", "30", "-CA", &ca, "-CAkey"];
    let leaf = openssl(
        &[&arguments[..], &[&ca_key, "-extfile", &extensions]].concat(),
        &csr,
    );
    node.write(format!("{PKI}/front-proxy-client.crt"), leaf);
}

/// The certificate is issued again.
#[rustfmt::skip]
const REISSUED: &[Damage] = &[
    damage(CertName::ControllerManagerConf,
        |node| node.write("/etc/kubernetes/controller-manager.conf", ""),
        &["empty file"]),
    damage(CertName::EtcdServer,
        |node| {
            node.write(format!("{PKI}/etcd/server.crt"), "");
            node.write(format!("{PKI}/etcd/server.key"), "\n");
        },
        &["empty file"]),
    damage(CertName::FrontProxyClient,
        |node| install_issued(node, CertName::FrontProxyClient, Authority::FrontProxyCa, now() - 90 * DAY),
        &["it expired at 20"]),
    damage(CertName::EtcdPeer,
        |node| node.remove(format!("{PKI}/etcd/peer.crt")),
        &["certificate is absent"]),
    damage(CertName::Apiserver,
        |node| node.remove(format!("{PKI}/apiserver.key")),
        &["key is absent"]),
    damage(CertName::Apiserver,
        |node| node.write(format!("{PKI}/apiserver.crt"), "-----BEGIN CERTIFICATE-----\nnonsense\n"),
        &["certificate is unreadable"]),
    damage(CertName::EtcdServer,
        |node| install_issued(node, CertName::EtcdServer, Authority::Ca, now()),
        &["no path from it to the trusted CN=etcd-ca: its issuer is CN=kubernetes"]),
    damage(CertName::EtcdServer,
        |node| node.write(format!("{PKI}/etcd/server.key"), node.read(format!("{PKI}/etcd/peer.key"))),
        &["it is for another key: certificate sha256:"]),
    damage(CertName::Apiserver,
        |node| convert(node, &["pkcs8", "-topk8", "-passout", "pass:secret"]),
        &["key is unreadable: the private key is encrypted; Kubernetes components cannot read it, decrypt it first (openssl pkey -in KEY -out NEW)"]),
    damage(CertName::Apiserver,
        |node| convert(node, &["genpkey", "-algorithm", "ed25519"]),
        &["key is unreadable: the private key is Ed25519, which kubeadm does not accept (neither RSA, ECDSA P-256, P-384 or P-521, nor ML-DSA)"]),
    damage(CertName::Apiserver,
        |node| convert(node, &["genrsa", "-traditional", "512"]),
        &["key is unreadable: the private key is RSA with 512 bits, and only keys of 1024 to 8192 bits can be used here"]),
    damage(CertName::FrontProxyClient,
        sign_with_sha1,
        &["is signed with ", "which Kubernetes components refuse"]),
];

/// The file is corrected and keeps its key.
#[rustfmt::skip]
const REWRITTEN: &[Damage] = &[
    damage(CertName::SchedulerConf,
        |node| {
            let path = "/etc/kubernetes/scheduler.conf";
            let mut kubeconfig = Kubeconfig::parse(&node.read(path)).unwrap();
            let server = kubeconfig.current().unwrap().server.unwrap();
            let other = Node::new().authority(Authority::Ca).bundle().to_pem();
            kubeconfig.set_cluster(&server, &other).unwrap();
            node.write(path, kubeconfig.to_yaml().as_bytes());
        },
        &["its CA is CN=kubernetes (certificate sha256:", ") instead of CN=kubernetes (certificate sha256:"]),
    damage(CertName::Apiserver,
        |node| convert(node, &["pkcs8", "-topk8", "-nocrypt"]),
        &["the key is PKCS#8; kubeadm writes PKCS#1 or SEC1"]),
    damage(CertName::EtcdServer,
        |node| node.set_mode(format!("{PKI}/etcd/server.key"), 0o644),
        &["the key is world-readable (mode 0644)"]),
    damage(CertName::AdminConf,
        |node| node.set_mode("/etc/kubernetes/admin.conf", 0o644),
        &["the key is world-readable (mode 0644)"]),
];

/// Makes each damage, and asserts that the run repairs it and keeps the keys of all other certificates.
fn assert_repairs(action: &str, damages: &[Damage]) {
    let node = Node::bootstrapped();
    for damage in damages {
        let own = damage.name.as_str();
        let mut before = node.keys_in_place();
        (damage.make)(&node);
        let ran = node.bootstrap();
        ran.done().row_says(own, action);
        for words in damage.words {
            ran.row_says(own, words);
        }
        node.assert_sound(&EVERYTHING);
        let mut after = node.keys_in_place();
        if action == "issued" {
            before.remove(&damage.name);
            after.remove(&damage.name);
        }
        assert_eq!(before, after, "{own}: {:?}", damage.words);
        let private = if damage.name.is_kubeconfig() {
            format!("/etc/kubernetes/{own}")
        } else {
            format!("{PKI}/{}.key", damage.name.base_name())
        };
        assert_eq!(node.mode(private), 0o600, "{own}");
        node.assert_bootstrap_changes_nothing();
    }
}

#[test]
fn reissues_damaged_certificates() {
    assert_repairs("issued", REISSUED);
}

#[test]
fn rewrites_files_and_keeps_their_keys() {
    assert_repairs("rewritten", REWRITTEN);
}

#[test]
fn writes_ca_certificate_of_signer_over_empty_file() {
    let node = Node::bootstrapped();
    node.write(format!("{PKI}/ca.crt"), "");
    node.bootstrap().done().row_says("ca", "written");
    node.assert_sound(&EVERYTHING);
}

/// The form that `openssl ecparam -genkey` writes.
#[test]
fn accepts_key_after_its_parameters() {
    let node = Node::bootstrapped();
    let path = format!("{PKI}/apiserver.key");
    let pem = node.read(&path);
    node.write(
        &path,
        format!(
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{pem}"
        ),
    );
    node.assert_bootstrap_changes_nothing();
}

#[test]
fn refuses_directory_in_place_of_a_file() {
    for path in [
        "/etc/kubernetes/scheduler.conf",
        "/etc/kubernetes/pki/apiserver.crt",
        "/etc/kubernetes/pki/etcd/ca.crt",
        "/etc/kubernetes/pki/sa.key",
    ] {
        let node = Node::new();
        let _ = fs::remove_file(node.path(path));
        fs::create_dir(node.path(path)).unwrap();
        assert_refused(
            &node,
            &[&format!(
                "nodepki: {} is a directory (a container runtime creates one if a hostPath file is missing); remove it with rmdir and run again",
                node.path(path).display()
            )],
        );
    }
}

#[test]
fn refuses_expired_ca_and_the_certificates_under_it() {
    let node = Node::new();
    node.replace_authority(Authority::EtcdCa, now() - 400 * DAY, 365 * DAY);
    assert_refused(
        &node,
        &[
            "nodepki: the CA certificate in @/etc/kubernetes/pki/etcd/ca.crt (CN=etcd-ca) expired at 20",
            ": peers refuse every certificate, kubeconfig and kubelet under it; replace the CA first, as new leaf certificates would be refused too",
        ],
    );
}

#[test]
fn accepts_bundles_of_every_shape() {
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
    // The issuing root is second: kubeadm would fail, so a note says so.
    node.write(format!("{PKI}/ca.crt"), format!("{foreign}{own}"));
    node.bootstrap().done().row_says(
        "apiserver",
        "but kubeadm uses only the first certificate of the bundle, CN=kubernetes: unless the CA is being changed, put the issuing root first",
    );
    // The first certificate is not a CA certificate.
    let leaf = node.read(format!("{PKI}/apiserver.crt"));
    node.write(format!("{PKI}/ca.crt"), format!("{leaf}{own}"));
    assert_refused(
        &node,
        &[
            "@/etc/kubernetes/pki/ca.crt is not a usable trust bundle of ca: its first certificate (CN=kube-apiserver) is not a CA certificate, and kubeadm uses the first one as the CA; put the CA certificate there and run again",
        ],
    );
    node.write(format!("{PKI}/ca.crt"), "no certificate at all\n");
    assert_refused(
        &node,
        &[
            "@/etc/kubernetes/pki/ca.crt is not a usable trust bundle of ca: it does not contain a certificate",
        ],
    );
}

#[test]
fn ignores_stray_keys_and_requests() {
    let node = Node::new();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write(format!("{PKI}/apiserver.key"), key.to_pem().as_bytes());
    node.write(format!("{PKI}/apiserver.csr"), "left over");
    node.write(format!("{PKI}/unknown.key"), "not of kubeadm");
    node.bootstrap()
        .done()
        .row_says("apiserver", "certificate is absent");
    node.assert_sound(&EVERYTHING);
    assert_eq!(node.read(format!("{PKI}/apiserver.csr")), "left over");
    assert_eq!(node.read(format!("{PKI}/unknown.key")), "not of kubeadm");
}

#[test]
fn notes_ca_key_on_node_with_external_ca() {
    let node = Node::new();
    fs::copy(node.ca().join("ca.key"), node.path(format!("{PKI}/ca.key"))).unwrap();
    node.ask().done().says(&node.here(
        "note: @/etc/kubernetes/pki/ca.key is on this node although an external signer is configured for ca: nodepki migrate to-external proves that it is not needed, and removes it",
    ));
    assert!(node.path(format!("{PKI}/ca.key")).is_file());
}

#[test]
fn notes_ca_key_inside_ca_certificate() {
    let node = Node::new();
    node.ask().done();
    for (authority, file) in [
        ("ca", "ca.crt"),
        ("front-proxy-ca", "front-proxy-ca.crt"),
        ("etcd-ca", "etcd/ca.crt"),
    ] {
        let path = node.path(format!("{PKI}/{file}"));
        let certificate = fs::read_to_string(&path).unwrap();
        let key = node.ca().join(file).with_extension("key");
        let both = certificate.clone() + &fs::read_to_string(key).unwrap();
        fs::write(&path, both).unwrap();
        let words = node.here(&format!(
            "@/etc/kubernetes/pki/{file} contains the private key of {authority}, and every reader of the CA certificate has it: leave the key with its CA, and only certificates in the file (openssl crl2pkcs7 -nocrl -certfile FILE | openssl pkcs7 -print_certs -out NEW)"
        ));
        node.ask().done().says(&format!("note: {words}"));
        node.run(&["status"]).says(&words).says("on this node");
        let advice = format!(
            "cd {} && openssl crl2pkcs7 -nocrl -certfile {file} | openssl pkcs7 -print_certs -out NEW && mv NEW {file}",
            node.path(PKI).display()
        );
        let status = std::process::Command::new("bash")
            .args(["-c", &advice])
            .status();
        assert!(status.unwrap().success());
        let ran = node.ask();
        ran.done();
        assert!(!ran.said().contains("the private key of"), "{}", ran.said());
        assert!(!fs::read_to_string(&path).unwrap().contains("PRIVATE"));
    }
}

#[test]
fn never_generates_service_account_key_on_joining_node() {
    let node = Node::of(JOIN);
    let words = "nodepki: @/etc/kubernetes/pki/sa.key is absent and this node belongs to a cluster: a new pair would differ from that of the other control-plane nodes and service-account tokens would fail; have it fetched from kubeadm-certs (join.certificateKey, or controlPlane.certificateKey of the JoinConfiguration), or copy sa.key and sa.pub from a control-plane node to @/etc/kubernetes/pki, and run again";
    assert_refused(&node, &[words]);
    // Given the key, the public half is derived.
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

/// The key may be the only copy.
#[test]
fn replaces_no_key_file_that_contains_service_account_key() {
    for is_exchanged in [true, false] {
        let node = Node::bootstrapped();
        let [key, other] = ["sa.key", "apiserver.key"].map(|file| node.path(PKI).join(file));
        let kept = fs::read(&key).unwrap();
        let leaf = fs::read(&other).unwrap();
        fs::rename(&key, &other).unwrap();
        if is_exchanged {
            write_secret(&key, &leaf);
        }
        let words = node.here(
            "@/etc/kubernetes/pki/apiserver.key contains the private key that belongs to sa.pub",
        );
        let renew = node.with_local(&["renew"], &[]);
        let forced = node.with_local(&["renew"], &["--force", "apiserver"]);
        let bootstrap = node.with_local(&["bootstrap"], &[]);
        for mut command in [renew, forced, bootstrap] {
            let ran = Ran::of(&mut command);
            ran.ended(65)
                .says(&words)
                .says(", and a new certificate would replace it: ")
                .says(", then run again");
            assert_eq!(fs::read(&other).unwrap(), kept, "{}", ran.said());
        }
        // As the message of bootstrap says.
        fs::rename(&other, &key).unwrap();
        if is_exchanged {
            write_secret(&other, &leaf);
        }
        node.bootstrap().done();
        assert_eq!(fs::read(&key).unwrap(), kept);
    }
}

#[test]
fn advises_only_copy_of_service_account_pair_on_node_that_has_served() {
    const ADVICE: &str = "copy both sa.key and sa.pub from another control-plane node";
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
        // kubeadm has written the manifest, and all other files are lost.
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
            assert!(ran.said().contains(ADVICE), "{number}: {}", ran.said());
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
fn refuses_service_account_files_that_are_not_a_pair() {
    let node = Node::new();
    let own = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write(format!("{PKI}/sa.key"), own.to_pem().as_bytes());
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    node.write(format!("{PKI}/sa.pub"), other.public_key().to_pem());
    assert_refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.key and @/etc/kubernetes/pki/sa.pub are not a pair: tokens signed with the one are refused by the other; find out which of them the cluster uses (compare with another control-plane node), then remove the wrong one and run again",
        ],
    );
    node.remove(format!("{PKI}/sa.key"));
    assert_refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.pub exists, and @/etc/kubernetes/pki/sa.key is absent; copy the matching sa.key from where sa.pub came, or remove sa.pub if the cluster is new, and run again",
        ],
    );
    node.write(format!("{PKI}/sa.key"), "nonsense");
    assert_refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.key is not usable: it does not contain a PEM private key; restore it from another control-plane node and run again",
        ],
    );
    node.write(format!("{PKI}/sa.key"), other.to_pem().as_bytes());
    node.write(format!("{PKI}/sa.pub"), "nonsense");
    assert_refused(
        &node,
        &[
            "@/etc/kubernetes/pki/sa.pub is not usable: ",
            "; remove it to have it derived from sa.key and run again",
        ],
    );
    node.remove(format!("{PKI}/sa.pub"));
    node.set_mode(format!("{PKI}/sa.key"), 0o600);
    node.bootstrap().done().row_says("sa", "sa.pub derived");
    // A key readable by every user is made private and kept.
    node.set_mode(format!("{PKI}/sa.key"), 0o644);
    node.bootstrap()
        .done()
        .says(&node.here("@/etc/kubernetes/pki/sa.key had mode 0644, now 0600"));
    assert_eq!(node.mode(format!("{PKI}/sa.key")), 0o600);
    assert_eq!(node.read(format!("{PKI}/sa.key")), *other.to_pem());
}

#[test]
fn keeps_administrator_additions_in_kubeconfig() {
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
    node.assert_bootstrap_changes_nothing();
    // A new endpoint and a new certificate keep all of them.
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
fn refuses_kubeconfig_that_cannot_be_repaired() {
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
            "users[0].user.client-certificate-data is not valid base64",
        ),
    ] {
        let node = Node::bootstrapped();
        let path = "/etc/kubernetes/admin.conf";
        node.write(path, node.read(path).replace(from, to));
        assert_refused(
            &node,
            &[
                &format!("@/etc/kubernetes/admin.conf cannot be repaired without losing what is in it: {words}"),
                "; move it away and run again",
            ],
        )
        .says_not("PRIVATE KEY");
    }
}

#[test]
fn refuses_unusable_ca_keys_of_the_local_signer() {
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
            .says("provide the key pair of authority etcd-ca there, or configure another signer for it");
        before.unchanged(&node.etc());
    }
}

#[test]
fn never_writes_through_symbolic_links() {
    let node = Node::bootstrapped();
    let (inside, path) = ("/srv/server.key", "/etc/kubernetes/pki/etcd/server.key");
    node.write(inside, node.read(path));
    node.set_mode(inside, 0o600);
    node.remove(path);
    symlink(inside, node.path(path)).unwrap();
    // A link inside the root is read.
    node.assert_bootstrap_changes_nothing();
    // It is not replaced.
    node.write(inside, "");
    let words = format!(
        "nodepki: {} is a symbolic link to {}; nodepki replaces files, not the targets of links: put the file itself here and run again",
        node.path(path).display(),
        node.path(inside).display()
    );
    let before = node.etc();
    node.ask().ended(65).says(&words);
    before.unchanged(&node.etc());
    assert_eq!(node.exchanges(), []);
    // A link that leads out of the root is dangling in it.
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
