//! Signers that answer wrongly, late, in part or not at all, and signing by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nodepki::kube::names::{Authority, CertName};
use nodepki::text::hex;
use nodepki::x509::{ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject};

use crate::kubeadm;
use crate::node::{DAY, EVERYTHING, INIT, Node, Ran};
use crate::signing::{now, openssl, write_secret};

/// INIT with an additional name for the API server, so only `apiserver` differs from the configuration.
fn drifted() -> String {
    format!("{INIT}apiServer: {{certSANs: [drift.example.com]}}\n")
}

const REFUSAL_ADVICE: &str = "this certificate was not installed; correct the signer's profile or the configuration and run again";

/// Asserts that answers of each mode for one slot are refused with the words of the mode.
fn assert_refuses(node: &Node, slot: &str, modes: &[(&str, &str)]) {
    let before = node.etc();
    let first = node.keys_seen()[slot].len();
    for (mode, words) in modes {
        node.signer_does(slot, &format!("bad {mode}"));
        node.ask()
            .ended(65)
            .row_says(slot, "refused")
            .row_says(slot, words)
            .row_says(slot, REFUSAL_ADVICE);
        before.unchanged(&node.etc());
    }
    // A key whose request was answered wrongly is never requested again.
    assert_eq!(node.keys_seen()[slot].len(), first + modes.len());
    node.assert_completes();
}

#[test]
fn refuses_wrong_answers_and_changes_nothing() {
    let node = Node::new();
    node.ask().done();
    let mut requested = node.keys_seen();
    node.configure(&drifted());
    assert_refuses(
        &node,
        "apiserver",
        &[
            (
                "wrong-key",
                "the certificate is for another key: it certifies sha256:",
            ),
            ("missing-san", "SAN DNS:api.example.com is missing"),
            ("extra-san", "unexpected SAN DNS:evil.example.com"),
            ("missing-eku", "extended key usage server auth is missing"),
            (
                "ca",
                "it is a CA certificate, but a leaf certificate is required",
            ),
            ("expired", "it expired at 2021-01-01T00:00:00Z"),
            ("future", "it is not valid before 20"),
            ("ahead:900", "it is not valid before 20"),
            (
                "reversed",
                "the chain is reversed or out of order: its first certificate is CN=kubernetes, the leaf must come first",
            ),
            (
                "other-authority",
                "no path from it to the trusted CN=kubernetes: its issuer is CN=etcd-ca",
            ),
            (
                "other-slot",
                "expected CN \"kube-apiserver\", found \"front-proxy-client\"",
            ),
            (
                "garbage",
                "it does not contain a certificate (neither PEM, DER nor PKCS#7)",
            ),
        ],
    );
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    assert!(
        chain
            .leaf()
            .dns_names()
            .contains(&"drift.example.com".to_owned())
    );
    node.remove("/etc/kubernetes/kubelet.conf");
    assert_refuses(
        &node,
        "kubelet.conf",
        &[
            ("missing-o", "O \"system:nodes\" is missing"),
            (
                "extra-o",
                "unexpected O \"system:masters\": Kubernetes would treat it as membership of that group",
            ),
        ],
    );
    // No other slot was requested again.
    for slot in ["apiserver", "kubelet.conf"] {
        requested.remove(slot);
    }
    for (slot, keys) in requested {
        assert_eq!(node.keys_seen()[&slot], keys, "{slot}");
    }
}

/// Creates a CA certificate issued by `issuer`; both are paths without extension.
fn sub_authority(issuer: &Path, at: &Path, common_name: &str, constraints: &str) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    let file =
        |base: &Path, extension: &str| base.with_extension(extension).to_str().unwrap().to_owned();
    fs::write(at.with_extension("ext"), format!("basicConstraints = critical, CA:TRUE{constraints}\nkeyUsage = critical, keyCertSign, digitalSignature\nsubjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n")).unwrap();
    let key = openssl(
        &["ecparam", "-genkey", "-name", "prime256v1", "-noout"],
        b"",
    );
    write_secret(at.with_extension("key"), key);
    let csr = openssl(
        &[
            "req",
            "-new",
            "-key",
            &file(at, "key"),
            "-subj",
            &format!("/CN={common_name}"),
        ],
        b"",
    );
    let crt = openssl(
        &[
            "x509",
            "-req",
            "-days",
            "30",
            "-CA",
            &file(issuer, "crt"),
            "-CAkey",
            &file(issuer, "key"),
            "-extfile",
            &file(at, "ext"),
        ],
        &csr,
    );
    fs::write(at.with_extension("crt"), crt).unwrap();
}

/// Has the signer sign for `ca` with the authority at `base` and add the intermediates `chain` to its answers.
fn sign_with(node: &Node, base: &Path, chain: &[&Path]) {
    let ca = node.ca().join("ca");
    if !ca.with_extension("root").exists() {
        fs::copy(ca.with_extension("crt"), ca.with_extension("root")).unwrap();
    }
    let pem: String = chain
        .iter()
        .map(|base| fs::read_to_string(base.with_extension("crt")).unwrap())
        .collect();
    fs::copy(base.with_extension("crt"), ca.with_extension("crt")).unwrap();
    fs::copy(base.with_extension("key"), ca.with_extension("key")).unwrap();
    fs::write(ca.with_extension("chain"), pem).unwrap();
}

#[test]
fn enforces_constraints_of_intermediate_cas() {
    let node = Node::new();
    let before = node.etc();
    let root = node.ca().join("ca");
    let (named, short, below, kept) = (
        node.outside("sub/named"),
        node.outside("sub/short"),
        node.outside("sub/below"),
        node.outside("sub/root"),
    );
    sub_authority(
        &root,
        &named,
        "Corporate",
        "\nnameConstraints = critical, permitted;DNS:.corp.example",
    );
    sub_authority(&root, &short, "Short", ", pathlen:0");
    sub_authority(&short, &below, "Below", "");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    sign_with(&node, &named, &[&named]);
    node.ask().ended(65).row_says(
        "apiserver",
        "a name constraint of its authority forbids its names",
    );
    assert!(!node.path("/etc/kubernetes/pki/apiserver.crt").exists());
    fs::remove_dir_all(node.outside("issued")).unwrap();
    sign_with(&node, &below, &[&below, &short]);
    node.ask().ended(65).row_says(
        "apiserver",
        "a path length constraint of its authority forbids the chain",
    );
    assert!(!node.path("/etc/kubernetes/pki/apiserver.crt").exists());
    // The certificates of the other authorities are installed.
    assert_ne!(before, node.etc());
    node.assert_sound(&[CertName::EtcdServer, CertName::FrontProxyClient]);
}

#[test]
fn sends_no_request_to_signer_with_another_ca() {
    let node = Node::new();
    let before = node.etc();
    let pem = fs::read(node.path("/etc/kubernetes/pki/ca.crt")).unwrap();
    node.replace_authority(Authority::Ca, now(), std::time::Duration::from_secs(99_999));
    node.write("/etc/kubernetes/pki/ca.crt", pem);
    let before = {
        drop(before);
        node.etc()
    };
    node.ask()
        .ended(65)
        .says("nodepki: exec:/bin/bash signs with another ca than the one on this node: it has CN=kubernetes (certificate sha256:")
        .says("), the node trusts CN=kubernetes (certificate sha256:")
        .says("; configure the signer that has the key of the authority, or install the new CA certificate on every node first");
    before.unchanged(&node.etc());
    assert!(node.submissions().is_empty());
}

#[test]
fn trusts_ca_certificate_of_signer_only_if_pinned() {
    let node = Node::new();
    node.remove("/etc/kubernetes/pki/ca.crt");
    let before = node.etc();
    let pin = hex(&node.authority(Authority::Ca).public_key().sha256());
    node.ask().ended(78).says(&format!(
        ", but no file or pin confirms that it is the right one; put the certificate on the node, or pin sha256:{pin} under authorities.ca.trust.sha256 after comparing it with the CA's owner"
    ));
    before.unchanged(&node.etc());
    assert!(node.submissions().is_empty());
    let pinned = |pin: &str| {
        let authority = format!("{{ca: {{signer: s, trust: {{sha256: [\"{pin}\"]}}}}");
        node.settings("");
        node.edit_settings("{ca: {signer: s}", &authority);
    };
    pinned(&"0".repeat(64));
    node.ask().ended(65).says("the CA certificate that exec:/bin/bash offers for authority ca is refused: it contains a certificate that is neither pinned nor issued by a pinned one; found public key sha256:");
    pinned(&pin);
    node.ask().done().row_says("ca", "written");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn reports_all_missing_pins_at_once() {
    let node = Node::new();
    let authorities = [Authority::Ca, Authority::EtcdCa, Authority::FrontProxyCa];
    for path in ["ca.crt", "etcd/ca.crt", "front-proxy-ca.crt"] {
        node.remove(format!("/etc/kubernetes/pki/{path}"));
    }
    let planned = Ran::of(&mut node.configured(["plan"]));
    let asked = node.ask();
    asked.ended(78);
    for authority in authorities {
        let setting = format!("authorities.{authority}.trust.sha256");
        planned.ended(78).says(&format!("and no pin confirms the CA of the signer (put the CA certificate there, or its pin under {setting})"));
        asked.says(&setting);
    }
}

#[test]
fn resumes_pending_request_with_its_key() {
    let node = Node::new();
    let before = node.etc();
    node.signer_does("all", "pending");
    let ran = node.ask();
    ran.ended(75)
        .row_says("apiserver", "pending")
        .row_says("apiserver", "an officer must approve")
        .says(", which continues with the same keys");
    before.unchanged(&node.etc());
    node.ask().ended(75);
    let requested = node.keys_seen();
    node.assert_completes();
    assert_eq!(node.keys_seen(), requested);
    for name in EVERYTHING {
        assert_eq!(
            requested[name.as_str()],
            [node.key_in_place(name)],
            "{name}"
        );
        assert_eq!(
            node.submissions()[name.as_str()],
            1,
            "{name} was submitted more than once"
        );
    }
    assert!(!node.path("/var/lib/nodepki/pending/apiserver").exists());
}

#[test]
fn keeps_certificate_until_it_is_valid() {
    let node = Node::new();
    let before = node.etc();
    node.signer_does("all", "bad ahead:280");
    for _ in 0..2 {
        node.ask()
            .ended(75)
            .row_says("apiserver", "pending")
            .row_says("apiserver", "the certificate is not valid before 20");
        before.unchanged(&node.etc());
    }
    for name in EVERYTHING {
        assert_eq!(node.submissions()[name.as_str()], 1, "{name}");
    }
}

#[test]
fn installs_certificate_once_it_is_valid() {
    let node = Node::new();
    node.signer_does("all", "bad ahead:3");
    Ran::of(&mut node.ask_command("60s")).done();
    for name in EVERYTHING {
        let (chain, _) = node.leaf(name).unwrap();
        assert!(chain.leaf().not_before() <= now(), "{name}");
        assert_eq!(node.submissions()[name.as_str()], 1, "{name}");
    }
}

#[test]
fn sends_new_request_after_configuration_change() {
    let node = Node::new();
    node.signer_does("apiserver", "pending");
    node.ask().ended(75);
    node.configure(&drifted());
    node.signer_behaves();
    node.ask().done();
    assert_eq!(node.keys_seen()["apiserver"].len(), 2);
    assert_eq!(
        node.keys_seen()["scheduler.conf"].len(),
        1,
        "held back with the key it had"
    );
    node.assert_sound(&EVERYTHING);
    assert!(
        fs::read_dir(node.path("/var/lib/nodepki/aside"))
            .unwrap()
            .next()
            .is_some(),
        "a key was discarded"
    );
}

#[test]
fn reports_denial_with_its_reason() {
    let node = Node::new();
    node.signer_does("apiserver", "denied");
    node.ask().ended(65).row_says("apiserver", "denied").row_says(
        "apiserver",
        "the signer denied the request: Policy: not on a Friday (resolve this with the administrator of the signer, and run again)",
    );
    let first = node.keys_seen()["apiserver"].clone();
    node.signer_behaves();
    node.ask().done();
    assert_eq!(
        node.keys_seen()["apiserver"],
        first,
        "a new request after the denial"
    );
    node.assert_sound(&EVERYTHING);
}

#[test]
fn exits_with_the_most_severe_status() {
    let node = Node::new();
    node.signer_does("all", "pending");
    node.signer_does("front-proxy-client", "retry");
    node.ask().ended(69).row_says(
        "front-proxy-client",
        "exec:/bin/bash asks for a retry: come back later",
    );
    node.signer_does("etcd-peer", "denied");
    node.ask()
        .ended(65)
        .row_says("apiserver", "pending")
        .row_says("etcd-peer", "denied");
}

#[test]
fn ends_0_in_an_outage_while_certificates_are_valid() {
    let node = Node::new();
    node.ask().done();
    // Names and endpoint differ from the configuration, and everything is valid.
    node.configure(&drifted().replace("api.example.com", "other.example.com"));
    let before = node.etc();
    for how in ["unreachable", "retry", "pending"] {
        node.signer_does("all", how);
        let ran = node.ask();
        ran.done().row_says(
            "apiserver",
            "the certificate in place is kept and still valid",
        );
        assert!(
            ran.closing().contains("; next: nodepki bootstrap --root "),
            "{}",
            ran.said()
        );
        before.unchanged(&node.etc());
        node.signer_behaves();
    }
    // A missing certificate makes the outage a failure.
    node.signer_does("all", "unreachable");
    node.remove("/etc/kubernetes/kubelet.conf");
    let ran = node.ask();
    ran.ended(69)
        .says("nodepki: signer of ca: exec:/bin/bash asks for a retry (exit code 75)");
    // The cause, and the next command.
    assert_eq!(ran.stderr.lines().count(), 2, "repeated: {}", ran.stderr);
    node.assert_completes();
}

#[test]
fn installs_certificates_of_one_authority_together() {
    for (how, code, words) in [("denied", 65, "denied"), ("pending", 75, "pending")] {
        let node = Node::new();
        node.signer_does("etcd-peer", how);
        node.signer_does("etcd-healthcheck-client", how);
        let ran = node.ask();
        ran.ended(code)
            .row_says("etcd-peer", words)
            .row_says("etcd-server", "held back")
            .row_says(
                "etcd-server",
                "signed; it is installed together with the other certificates of etcd-ca (missing: etcd-peer, etcd-healthcheck-client)",
            );
        let closing = format!("2 {words}, 2 held back, 8 issued, ");
        assert!(ran.closing().starts_with(&closing), "{}", ran.said());
        let etcd: Vec<CertName> = EVERYTHING
            .into_iter()
            .filter(|name| name.authority() == Authority::EtcdCa)
            .collect();
        let others: Vec<CertName> = EVERYTHING
            .into_iter()
            .filter(|name| !etcd.contains(name))
            .collect();
        node.assert_sound(&others);
        for name in &etcd {
            assert!(node.leaf(*name).is_none(), "{name}");
        }
        node.assert_completes();
        for (slot, keys) in node.keys_seen() {
            assert_eq!(keys.len(), 1, "{slot}");
        }
        // The certificate signed in the first run was not requested again.
        assert_eq!(node.submissions()["etcd-server"], 1);
    }
}

#[test]
fn repeats_same_requests_after_unusable_answers() {
    let node = Node::new();
    let before = node.etc();
    node.signer_does("all", "bad empty");
    let ran = node.ask();
    let fault = "exec:/bin/bash gave no usable response to `sign`: its result is issued without a certificatePem; run it by hand, as in `nodepki";
    ran.ended(65).row_says("apiserver", fault);
    assert_eq!(
        ran.stdout.matches(fault).count(),
        1,
        "stated once, not for each certificate:\n{}",
        ran.said()
    );
    before.unchanged(&node.etc());
    let requested = node.keys_seen();
    node.signer_behaves();
    node.ask().done();
    assert_eq!(node.keys_seen(), requested, "the same requests again");
    node.signer_does("scheduler.conf", "failed");
    node.remove("/etc/kubernetes/scheduler.conf");
    node.ask().ended(65).row_says(
        "scheduler.conf",
        "exec:/bin/bash refused permanently: BadRequest: cannot read it",
    );
}

// ---- Signing by hand ----

/// Signs a CSR with OpenSSL as an administrator would.
fn sign_by_hand(node: &Node, name: CertName, csr: &Path) -> Vec<u8> {
    let base = node.ca().join(name.authority().base_name());
    let (ca, key) = (base.with_extension("crt"), base.with_extension("key"));
    let [csr, ca, key] = [csr, &ca, &key].map(|path| path.to_str().unwrap());
    let mut arguments = vec!["x509", "-req", "-in", csr, "-CA", ca, "-CAkey", key];
    arguments.extend(["-copy_extensions", "copyall", "-days", "90"]);
    openssl(&arguments, b"")
}

fn key_of_csr(path: &Path) -> String {
    let pem = fs::read(path).unwrap();
    hex(&nodepki::x509::Csr::from_pem(&pem)
        .unwrap()
        .public_key()
        .sha256())
}

#[test]
fn imports_signed_bundle_of_its_own_requests() {
    let node = Node::new();
    let bundle = node.outside("stick");
    let before = node.etc();
    node.csr("export", &bundle).done().says(&format!("12 requests written to {0}; next: have them signed (the README is a script for OpenSSL), store each certificate next to its CSR as .crt, then run nodepki csr import {0} --root {1}", bundle.display(), node.root().display()));
    before.unchanged(&node.etc());
    for (path, bytes) in crate::signing::tree(&bundle) {
        assert!(
            !String::from_utf8_lossy(&bytes).contains("PRIVATE KEY"),
            "{}",
            path.display()
        );
    }
    let path = |name: CertName, extension: &str| -> PathBuf {
        let base = if name.is_kubeconfig() {
            name.as_str().to_owned()
        } else {
            format!("pki/{}", name.base_name())
        };
        bundle.join(format!("{base}.{extension}"))
    };
    let exported: Vec<String> = EVERYTHING
        .iter()
        .map(|name| key_of_csr(&path(*name, "csr")))
        .collect();
    // A second export writes the same files.
    let first = crate::signing::tree(&bundle);
    node.csr("export", &bundle).done();
    assert!(first == crate::signing::tree(&bundle));
    node.sign_bundle(&bundle);
    // One certificate missing and one of another slot: their authority waits, the others are installed.
    let kept = fs::read(path(CertName::EtcdPeer, "crt")).unwrap();
    fs::copy(
        path(CertName::EtcdServer, "crt"),
        path(CertName::EtcdPeer, "crt"),
    )
    .unwrap();
    let ran = node.csr("import", &bundle);
    ran.ended(75)
        .row_says(
            "etcd-peer",
            "no certificate for its key was imported; have its CSR signed and import again",
        )
        .row_says("etcd-server", "held back")
        .row_says("apiserver", "issued");
    fs::write(path(CertName::EtcdPeer, "crt"), kept).unwrap();
    node.csr("import", &bundle).done();
    node.assert_sound(&EVERYTHING);
    let installed: Vec<String> = EVERYTHING
        .iter()
        .map(|name| node.key_in_place(*name))
        .collect();
    assert_eq!(installed, exported);
    node.csr("export", &bundle)
        .done()
        .says("nothing to sign: all certificates are in place");
}

#[test]
fn import_keeps_ticket_of_request_that_it_does_not_answer() {
    let node = Node::new();
    node.signer_does("all", "pending");
    node.ask().ended(75);
    let bundle = node.outside("stick");
    node.csr("export", &bundle).done();
    node.sign_bundle(&bundle);
    fs::remove_file(bundle.join("pki/etcd/peer.crt")).unwrap();
    let ticket = || node.read("/var/lib/nodepki/pending/etcd-peer/ticket.json");
    let before = ticket();
    node.csr("import", &bundle)
        .ended(75)
        .row_says("etcd-peer", "no certificate for its key was imported");
    assert_eq!(ticket(), before);
    // The signer still has the request.
    node.signer_does("all", "sign");
    node.ask().done();
    let exchanges = node.exchanges().into_iter();
    let verbs: Vec<String> = exchanges
        .filter(|(_, slot, _)| slot == "etcd-peer")
        .map(|(verb, ..)| verb)
        .collect();
    assert_eq!(verbs, ["sign", "poll"]);
}

#[test]
fn imports_tree_of_kubeadm_with_its_keys() {
    let node = Node::new();
    let tree = node.outside("kubeadm-tree");
    fs::create_dir(&tree).unwrap();
    let output = kubeadm::generate_csr(kubeadm::Node::new(&tree), INIT);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // kubeadm's CSRs contain neither key usage nor extended key usage, so the signer must know the profiles. The test
    // takes them from a bundle of another node with the same configuration.
    let (other, profiles) = (Node::new(), node.outside("profiles"));
    other.csr("export", &profiles).done();
    let (mut keys, mut files) = (BTreeMap::new(), Vec::new());
    for name in EVERYTHING {
        let base = if name.is_kubeconfig() {
            tree.join(name.as_str())
        } else {
            tree.join("pki").join(name.base_name())
        };
        let beside = |extension: &str| PathBuf::from(format!("{}.{extension}", base.display()));
        let signed = sign_by_hand(&node, name, &beside("csr"));
        fs::write(beside("crt"), signed).unwrap();
        keys.insert(name, key_of_csr(&beside("csr")));
        files.push((name, beside("csr"), beside("crt")));
    }
    let before = node.etc();
    node.csr("import", &tree)
        .ended(65)
        .row_says("apiserver", "extended key usage server auth is missing")
        .row_says(
            "scheduler.conf",
            "it is an X.509 v1 certificate: the signer dropped all extensions of the request",
        );
    before.unchanged(&node.etc());
    for (name, csr, crt) in files {
        let below = crt.strip_prefix(&tree).unwrap();
        let profile = profiles.join(below).with_extension("ext");
        let ca = node.ca().join(name.authority().base_name());
        let file = |path: &Path| path.to_str().unwrap().to_owned();
        let signed = openssl(
            &[
                "x509",
                "-req",
                "-in",
                &file(&csr),
                "-extfile",
                &file(&profile),
                "-CA",
                &file(&ca.with_extension("crt")),
                "-CAkey",
                &file(&ca.with_extension("key")),
            ],
            b"",
        );
        fs::write(crt, signed).unwrap();
    }
    let before = crate::signing::tree(&tree);
    node.csr("import", &tree).done();
    node.assert_sound(&EVERYTHING);
    for (name, key) in keys {
        assert_eq!(
            node.key_in_place(name),
            key,
            "{name}: the key of kubeadm's tree"
        );
    }
    assert!(
        before == crate::signing::tree(&tree),
        "the second import replaced files"
    );
    node.assert_bootstrap_changes_nothing();
}

#[test]
fn keeps_pending_keys_if_import_is_of_another_node() {
    let node = Node::new();
    node.signer_does("all", "pending");
    node.ask().ended(75);
    let tree = node.outside("cp2");
    fs::create_dir_all(tree.join("pki")).unwrap();
    let profile = |common_name: &str, usage| Profile {
        subject: Subject {
            common_name: common_name.to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans::default(),
        usages: vec![usage],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: DAY * 365,
    };
    // The second one satisfies the plan of each node.
    for (name, profile) in [
        (
            CertName::Apiserver,
            profile("kube-apiserver", ExtendedUsage::ServerAuth),
        ),
        (
            CertName::FrontProxyClient,
            profile("front-proxy-client", ExtendedUsage::ClientAuth),
        ),
    ] {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let authority = node.authority(name.authority());
        let leaf = authority.issue(key.public_key(), &profile, now()).unwrap();
        let file = tree.join("pki").join(name.base_name());
        fs::write(file.with_extension("crt"), leaf.to_pem()).unwrap();
        write_secret(file.with_extension("key"), key.to_pem().as_bytes());
    }
    let state = node.path("/var/lib/nodepki");
    let requests = || ["pending", "aside"].map(|directory| files_in(&state.join(directory)));
    let before = (node.etc(), requests());
    node.csr("import", &tree)
        .ended(65)
        .row_says("apiserver", "SAN DNS:cp1 is missing")
        .row_says(
            "front-proxy-client",
            "nothing is requested, since certificates that were imported with their keys are refused: apiserver",
        )
        .row_says("scheduler.conf", "import the files of this node");
    before.0.unchanged(&node.etc());
    assert!(before.1 == requests(), "the import changed the requests");
    node.assert_completes();
}

/// Returns the files of a directory; none if it does not exist.
fn files_in(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    if directory.exists() {
        crate::signing::tree(directory)
    } else {
        Vec::new()
    }
}

#[test]
fn uses_plug_in_without_trust_for_authority_on_disk() {
    let node = Node::new();
    node.signer_does("all", "without-trust");
    node.ask().done();
    // Without the authority on disk its certificate is unknown.
    let node = Node::new();
    node.signer_does("all", "without-trust");
    node.remove("/etc/kubernetes/pki/ca.crt");
    node.ask().ended(78);
}

#[test]
fn omits_kubeconfig_of_administrator_that_signer_denies() {
    let pair = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    for (config, name, role) in [
        (INIT, "super-admin.conf", "first"),
        (crate::node::JOIN, "admin.conf", "joining"),
    ] {
        let node = Node::of(config);
        node.write("/etc/kubernetes/pki/sa.key", pair.to_pem().as_bytes());
        node.set_mode("/etc/kubernetes/pki/sa.key", 0o600);
        node.signer_does(name, "denied");
        let omit = format!("certificates: {{omit: [{name}]}}");
        node.ask()
            .ended(65)
            .row_says(name, "denied")
            .row_says(
                name,
                &format!("the control plane runs without {name}: `{omit}`"),
            )
            .row_says("apiserver", "held back")
            .row_says("apiserver", &format!("(missing: {name})"));
        node.settings(&format!("{omit}\n"));
        let done = node.ask();
        done.done()
            .says(&format!("{name} is omitted (certificates.omit)"));
        assert!(
            !done.stdout.lines().any(|line| line.starts_with(name)),
            "{role}: {}",
            done.said()
        );
        assert!(!node.path(format!("/etc/kubernetes/{name}")).exists());
        let rest: Vec<CertName> = EVERYTHING
            .into_iter()
            .filter(|held| held.as_str() != name && *held != CertName::SuperAdminConf)
            .collect();
        node.assert_sound(&rest);
        node.ask().done();
    }
    // The first node always has super-admin.conf: kubeadm init does not proceed without it.
    let node = Node::new();
    node.settings("certificates: {omit: [admin.conf]}\n");
    node.ask().done();
    assert!(node.path("/etc/kubernetes/admin.conf").exists());
}

#[test]
fn names_setting_for_wrong_answer_and_for_signer_that_cannot_carry_it() {
    let node = Node::new();
    node.signer_does("super-admin.conf", "bad wrong-key");
    node.ask()
        .ended(65)
        .row_says("super-admin.conf", "refused")
        .row_says(
            "super-admin.conf",
            "`certificates: {omit: [super-admin.conf]}`",
        );
}

/// The exit status and the rows agree with the files on the disk.
#[test]
fn reports_what_one_authority_installed_before_refusal() {
    let node = Node::new();
    node.signer_does("apiserver", "bad wrong-key");
    let ran = node.ask();
    ran.ended(65);
    for name in EVERYTHING {
        let action = match (node.leaf(name).is_some(), name) {
            (true, _) => "issued",
            (false, CertName::Apiserver) => "refused",
            (false, _) => "held back",
        };
        ran.row_says(name.as_str(), action);
    }
    assert!(ran.closing().starts_with("1 refused, "), "{}", ran.said());
    // The case in which nothing was installed.
    let node = Node::new();
    let before = node.etc();
    node.signer_does("all", "bad wrong-key");
    let ran = node.ask();
    assert!(
        ran.ended(65).closing().starts_with("12 refused, "),
        "{}",
        ran.said()
    );
    before.unchanged(&node.etc());
}

/// A lifetime far longer than requested is refused, and a shorter one is reported.
#[test]
fn compares_lifetime_with_the_request() {
    const DAY: u64 = 86_400;
    let node = Node::new();
    node.ask().done();
    node.configure(&drifted());
    assert_refuses(
        &node,
        "apiserver",
        &[
            (
                "life:315360000",
                "its lifetime is 3649d instead of the requested 365d: at most 2190d is accepted",
            ),
            ("life:30", "it would expire before it can be renewed"),
        ],
    );
    for (slot, days, words) in [
        (
            "etcd-peer",
            730,
            "its lifetime is 729d instead of the requested 365d",
        ),
        (
            "etcd-server",
            30,
            "its lifetime is 29d instead of the requested 365d",
        ),
        ("etcd-healthcheck-client", 366, ""),
    ] {
        for extension in ["crt", "key"] {
            let base = slot
                .replace('-', "/")
                .replace("healthcheck/", "healthcheck-");
            node.remove(format!("/etc/kubernetes/pki/{base}.{extension}"));
        }
        node.signer_does(slot, &format!("bad life:{}", days * DAY));
        let ran = node.ask();
        ran.done().row_says(slot, words);
        assert_eq!(ran.said().contains("its lifetime is"), !words.is_empty());
    }
    // With a configured limit, the longer lifetime is accepted and reported.
    node.edit_settings(
        "front-proxy-ca: {signer: s}",
        "front-proxy-ca: {signer: s, maxLifetime: 87600h}",
    );
    node.remove("/etc/kubernetes/pki/front-proxy-client.crt");
    node.signer_does("front-proxy-client", &format!("bad life:{}", 3650 * DAY));
    node.ask().done().row_says(
        "front-proxy-client",
        "its lifetime is 3649d instead of the requested 365d",
    );
}
