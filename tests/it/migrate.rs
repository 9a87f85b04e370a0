//! Moves the CA keys of a node that the real kubeadm created into a backup that OpenSSL reads, and back.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{KeyAlgorithm, PrivateKey};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kubeadm::{self, copy_tree};
use crate::node::{DAY, INIT, NODEPKI, Node, Ran, copy_authorities};
use crate::renew::{DUE, backdate};
#[cfg(feature = "failpoints")]
use crate::sample::sampled;
use crate::servers::bin;
use crate::servers::cluster::{self, AUTHORITY_KEYS, Authorities, Cluster};
use crate::servers::vault::{Bao, Space, put};
use crate::signer_vault::print_setup;
use crate::signing::{now, openssl, run_program, wanted, write_secret};
use crate::time::wait_until;

const PKI: &str = "/etc/kubernetes/pki";
const PASSPHRASE: &str = "correct horse battery staple";

/// Returns a first node as kubeadm creates it, with CA keys. The signer of [`Node::settings`] has the same keys.
fn kubeadm_node() -> Node {
    fill_by_kubeadm(Node::new())
}

fn fill_by_kubeadm(node: Node) -> Node {
    static KUBEADM_TREE: OnceLock<TempDir> = OnceLock::new();
    let made = KUBEADM_TREE.get_or_init(|| {
        let made = tempfile::tempdir().unwrap();
        for output in kubeadm::init(kubeadm::Node::new(made.path()), INIT) {
            Ran::from(output).done();
        }
        made
    });
    copy_tree(made.path(), &node.path("/etc/kubernetes"));
    copy_authorities(Authority::ALL, &node.path(PKI), &node.ca());
    write_secret(node.outside("passphrase"), format!("{PASSPHRASE}\n"));
    node
}

fn migrate(node: &Node, direction: &str, arguments: &[&str]) -> Command {
    let mut command = node.configured(["migrate", direction]);
    command.args(arguments);
    command
}

#[test]
fn refuses_backup_in_a_place_where_it_would_be_lost() {
    let node = kubeadm_node();
    let pki = node.path(PKI);
    fs::create_dir_all(node.path("/run/backups")).unwrap();
    fs::create_dir_all(node.path("/etc/kubernetes/backups")).unwrap();
    symlink(&pki, node.outside("link")).unwrap();
    let before = keys(&node);
    assert!(!before.is_empty());
    // The state directory exists after the first run that takes the lock.
    apply(&node, "root/etc/kubernetes/pki/ca-backup").ended(65);
    for failpoint in [
        "root/var/lib/nodepki/journal.json",
        "root/var/lib/nodepki/backup",
        "root/etc/kubernetes/pki/backup",
        "root/etc/kubernetes/pki/etcd/backup",
        "root/etc/kubernetes/backups/backup",
        "root/run/backups/backup",
        "link/backup",
    ] {
        let ran = apply(&node, failpoint);
        ran.ended(65)
            .says("cannot be the backup of the CA keys: it is below ");
        assert_eq!(keys(&node), before, "{failpoint}");
        assert!(!node.outside(failpoint).exists(), "{failpoint}");
    }
    // A file system in memory is no place for keys that are on a disk.
    let node = fill_by_kubeadm(Node::on_disk());
    let memory = TempDir::new_in("/dev/shm").unwrap();
    let before = keys(&node);
    apply(&node, memory.path().join("backup").to_str().unwrap())
        .ended(65)
        .says("its file system is in memory and is lost when the machine stops");
    assert_eq!(keys(&node), before);
    apply(&node, "backup").done();
}

#[test]
fn restores_keys_if_backup_cannot_be_read_after_the_commit() {
    let node = kubeadm_node();
    let before = keys(&node);
    let backup = node.outside("backup");
    let inner = apply_command(&node, "backup");
    // Slow enough to damage the backup between the removal of the keys and its last verification.
    let mut strace = Command::new("strace");
    strace
        .args(["-o", "/dev/null", "--trace=fadvise64"])
        .arg("--inject=fadvise64:delay_enter=500000")
        .arg(inner.get_program())
        .args(inner.get_args());
    let run = strace
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the commit", || keys(&node).is_empty() && backup.exists());
    fs::remove_file(&backup).unwrap();
    Ran::from(run.wait_with_output().unwrap())
        .ended(75)
        .says("cannot be read back after the CA keys were removed")
        .says("the keys were restored");
    assert_eq!(keys(&node), before);
    apply(&node, "backup").done();
    assert!(keys(&node).is_empty());
}

fn report(node: &Node) -> Ran {
    Ran::of(migrate(node, "to-external", &["--clock-wait", "0s"]).args(["--wait", "0s"]))
}

/// `to-external --apply` with the backup in `backup` outside the root.
fn apply_command(node: &Node, backup: &str) -> Command {
    let mut command = migrate(node, "to-external", &["--apply", "--wait", "0s"]);
    command
        .arg("--backup")
        .arg(node.outside(backup))
        .arg("--passphrase-file")
        .arg(node.outside("passphrase"));
    command
}

fn apply(node: &Node, backup: &str) -> Ran {
    Ran::of(&mut apply_command(node, backup))
}

fn restore(node: &Node, arguments: &[&str], backups: &[&str]) -> Ran {
    let mut command = migrate(node, "to-internal", arguments);
    for backup in backups {
        command.arg("--backup").arg(node.outside(backup));
    }
    Ran::of(
        command
            .arg("--passphrase-file")
            .arg(node.outside("passphrase")),
    )
}

fn keys(node: &Node) -> Vec<PathBuf> {
    let keys = AUTHORITY_KEYS.iter().map(|key| node.path(PKI).join(key));
    keys.filter(|key| key.exists()).collect()
}

/// Writes the key of another cluster to the backup `foreign`, under the passphrase of the node's own.
fn write_foreign_backup(node: &Node) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let passphrase = format!("file:{}", node.outside("passphrase").display());
    let arguments = ["pkcs8", "-topk8", "-passout", &passphrase];
    let foreign = openssl(&arguments, key.to_pem().as_bytes());
    fs::write(node.outside("foreign"), foreign).unwrap();
}

/// Extracts the key of an authority from a backup with the command written in it.
fn extract_key(dir: &Path, backup: &Path, passphrase: &Path, authority: Authority) -> String {
    let text = fs::read_to_string(backup).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Without nodepki:  "))
        .unwrap();
    let command = line
        .replace("authority ca", &format!("authority {authority}"))
        .replace("THIS", backup.to_str().unwrap())
        .replace("file:FILE", &format!("file:{}", passphrase.display()))
        .replace("ca.key", dir.join("key").to_str().unwrap());
    run_program("sh", &["-euc", &command], b"");
    fs::read_to_string(dir.join("key")).unwrap()
}

fn public_key_of(certificate: &Path) -> Vec<u8> {
    let file = certificate.to_str().unwrap();
    openssl(&["x509", "-in", file, "-noout", "-pubkey"], b"")
}

/// Everything below `/etc` except the CA keys.
fn without_keys(node: &Node) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let etc = node.etc();
    let kept = etc.content().into_iter();
    kept.filter(|(path, ..)| {
        !AUTHORITY_KEYS
            .iter()
            .any(|key| path.ends_with(Path::new("pki").join(key)))
    })
    .map(|(path, mode, content)| (path.to_owned(), mode, content.to_vec()))
    .collect()
}

/// The commands of the document, as a user with the usual umask runs them.
#[test]
fn documented_commands_work_with_umask_022() {
    const DOCUMENT: &str = include_str!("../../docs/migrating.md");
    let node = kubeadm_node();
    let block = DOCUMENT.split("```").nth(1).unwrap();
    let commands = block.strip_prefix("sh\n").unwrap();
    assert!(commands.contains("/root/passphrase") && commands.contains("/mnt/usb/ca-keys"));
    let commands = commands
        .replace(
            "/root/passphrase",
            &node.outside("new").display().to_string(),
        )
        .replace(
            "/mnt/usb/ca-keys",
            &node.outside("ca-keys").display().to_string(),
        );
    // The settings, the root and the time limits are those of the test.
    let usual = migrate(
        &node,
        "to-external",
        &["--wait", "0s", "--clock-wait", "0s"],
    );
    let words = std::iter::once(usual.get_program()).chain(usual.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().unwrap()));
    let words: Vec<String> = words.collect();
    let script = format!(
        "set -eu\numask 022\nnodepki() {{ shift 2; {} \"$@\"; }}\n{commands}",
        words.join(" ")
    );
    Ran::of(Command::new("sh").args(["-c", &script])).done();
    assert!(keys(&node).is_empty());
    let mode = fs::metadata(node.outside("new"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn moves_keys_of_kubeadm_node_to_backup_and_back() {
    let node = kubeadm_node();
    let before = node.snapshot();
    report(&node)
        .done()
        .says(&node.here("ca              to be removed   @/etc/kubernetes/pki/ca.key"))
        .says("in place and valid: etcd-server, etcd-peer, etcd-healthcheck-client, apiserver-etcd-client")
        .says("answers and has this CA")
        .says("signed a certificate as proof, add --apply --backup FILE --passphrase-file FILE)");
    before.unchanged(&node.snapshot());
    assert!(node.submissions().is_empty(), "a report sends no request");

    let (others, originals) = (without_keys(&node), keys(&node));
    assert_eq!(originals.len(), 3);
    let originals: Vec<String> = originals
        .iter()
        .map(|key| fs::read_to_string(key).unwrap())
        .collect();
    apply(&node, "backup")
        .done()
        .says(&node.here("etcd-ca         removed         @/etc/kubernetes/pki/etcd/ca.key"))
        .says("it signed a certificate like scheduler.conf, which was discarded")
        .says("kubeadm certs renew skips the certificates under them")
        .says("kubeadm init phase upload-certs refuses to run; use nodepki certs upload")
        .says("kube-controller-manager of this node signs nothing")
        .says("(run this on each)")
        .says_not(PASSPHRASE);
    assert!(keys(&node).is_empty());
    assert_eq!(without_keys(&node), others);
    assert_eq!(
        node.submissions().len(),
        3,
        "one test request for each authority"
    );
    assert!(node.submissions().values().all(|count| *count == 1));
    let pending = fs::read_dir(node.path("/var/lib/nodepki/pending")).unwrap();
    assert_eq!(pending.count(), 0, "the test requests are discarded");
    kubeadm::accepts_external_ca(&node.path("/etc/kubernetes"), INIT);

    let backup = node.outside("backup");
    let mode = fs::metadata(&backup).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let scratch = tempfile::tempdir().unwrap();
    for authority in Authority::ALL {
        let key = extract_key(
            scratch.path(),
            &backup,
            &node.outside("passphrase"),
            authority,
        );
        let public = openssl(&["pkey", "-pubout"], key.as_bytes());
        let certificate = node
            .path(PKI)
            .join(format!("{}.crt", authority.base_name()));
        assert_eq!(public, public_key_of(&certificate), "{authority}");
    }

    // The same command again.
    let settled = node.snapshot();
    for ran in [report(&node), apply(&node, "backup")] {
        ran.done()
            .says("nothing to do: this node has no CA private key to remove");
    }
    settled.unchanged(&node.snapshot());
    // The first bootstrap on this node records its ClusterConfiguration.
    node.ask().done();
    let settled = node.snapshot();
    node.ask().done();
    settled.unchanged(&node.snapshot());

    restore(&node, &[], &["backup"])
        .done()
        .says(&node.here("ca              to be written   @/etc/kubernetes/pki/ca.key"))
        .says("nothing was changed (to restore the keys, add --apply)");
    settled.unchanged(&node.snapshot());
    restore(&node, &["--apply"], &["backup"])
        .done()
        .says(&node.here("ca              written         @/etc/kubernetes/pki/ca.key"))
        .says("--cluster-signing-key-file=/etc/kubernetes/pki/ca.key");
    let restored: Vec<String> = keys(&node)
        .iter()
        .map(|key| fs::read_to_string(key).unwrap())
        .collect();
    assert_eq!(restored, originals);
    for key in AUTHORITY_KEYS {
        assert_eq!(node.mode(format!("{PKI}/{key}")), 0o600);
    }
    assert_eq!(without_keys(&node), others);
    let settled = node.snapshot();
    restore(&node, &["--apply"], &["backup"])
        .done()
        .says("nothing to do: the keys are in place");
    settled.unchanged(&node.snapshot());

    // The earlier backup restores the keys as well as a new one.
    apply(&node, "backup")
        .done()
        .says("is already the backup of these keys");
    assert!(keys(&node).is_empty());
}

#[test]
fn keeps_and_renews_registered_certificates_without_ca_key() {
    let node = kubeadm_node();
    node.settings(&crate::registered::registrations());
    node.ask().done().row_says("policy-webhook", "issued");
    let path = "/etc/kubernetes/policy-webhook/tls.crt";
    let before = node.read(path);
    apply(&node, "backup").done();
    assert!(keys(&node).is_empty());
    assert_eq!(node.read(path), before);
    node.remove("/var/lib/nodepki/issued.json");
    let mut renew = node.configured(["renew", "--clock-wait", "0s", "--name", "policy-webhook"]);
    Ran::of(&mut renew).done();
    assert_ne!(node.read(path), before);
    restore(&node, &[], &["backup"]).done();
    node.assert_bootstrap_changes_nothing();
}

#[test]
fn prints_report_as_json() {
    let node = kubeadm_node();
    node.remove(format!("{PKI}/sa.pub"));
    let ran =
        Ran::of(migrate(&node, "to-external", &["-o", "json"]).args(["--authority", "etcd-ca"]));
    let report: Value = serde_json::from_str(&ran.ended(65).stdout).unwrap();
    assert_eq!(report["direction"], "toExternal");
    assert_eq!(report["applied"], false);
    assert_eq!(report["authorities"][0]["authority"], "etcd-ca");
    assert_eq!(report["authorities"][0]["action"], "kept");
    assert_eq!(report["authorities"].as_array().unwrap().len(), 1);
    let unproven = report["unproven"].as_array().unwrap();
    assert!(unproven[0].as_str().unwrap().contains("sa.pub"), "{report}");
}

/// Asserts that both the report and `--apply` refuse with the same words, and that nothing changes.
#[track_caller]
fn assert_refused(node: &Node, code: i32, words: &[&str]) {
    let refused = |ran: Ran| {
        ran.ended(code)
            .says("not everything is proven; nothing was changed")
            .says_not(PASSPHRASE);
        for words in words {
            ran.says(&node.here(words));
        }
    };
    let (all, etc) = (node.snapshot(), node.etc());
    refused(report(node));
    all.unchanged(&node.snapshot());
    refused(apply(node, "backup"));
    etc.unchanged(&node.etc());
    assert!(!node.outside("backup").exists());
    assert!(node.submissions().is_empty(), "a request was sent");
}

fn expire(node: &Node, name: CertName) {
    let (_, key) = node.leaf(name).unwrap();
    let mut profile = wanted(name).profile;
    profile.lifetime = 30 * DAY;
    let leaf = node
        .authority(name.authority())
        .issue(key.public_key(), &profile, now() - 90 * DAY)
        .unwrap();
    node.write(format!("{PKI}/{}.crt", name.base_name()), leaf.to_pem());
}

#[test]
fn reports_expired_leaf_and_torn_pair_together() {
    let node = kubeadm_node();
    expire(&node, CertName::FrontProxyClient);
    node.write(
        format!("{PKI}/etcd/peer.key"),
        node.read(format!("{PKI}/etcd/server.key")),
    );
    node.remove("/etc/kubernetes/scheduler.conf");
    assert_refused(
        &node,
        65,
        &[
            "nodepki: front-proxy-client needs the key of front-proxy-ca to be repaired: it expired at 20",
            "nodepki: etcd-peer needs the key of etcd-ca to be repaired: it is for another key",
            "nodepki: scheduler.conf needs the key of ca to be repaired: absent; run nodepki bootstrap, which corrects this, then run this command again",
        ],
    );
    node.write("/etc/kubernetes/admin.conf", "no kubeconfig");
    report(&node)
        .ended(65)
        .says(&node.here("@/etc/kubernetes/admin.conf cannot be repaired"))
        .says_not("admin.conf would not do");
    node.remove("/etc/kubernetes/admin.conf");
    // The advice works.
    node.ask().done();
    report(&node).done();
}

/// Gives the signer the authority of another cluster.
fn replace_authority_of_signer(node: &Node, authority: Authority) {
    copy_authorities([authority], &Node::new().ca(), &node.ca());
}

/// What keeps the keys on the node, the exit status and parts of the message.
type Obstacle = (fn(&Node), i32, &'static [&'static str]);

const OBSTACLES: &[Obstacle] = &[
    (
        |node| replace_authority_of_signer(node, Authority::EtcdCa),
        65,
        &["signs with another etcd-ca than the one on this node"],
    ),
    (
        // The signer has the second CA of the bundle.
        |node| {
            replace_authority_of_signer(node, Authority::FrontProxyCa);
            let [own, next] = [node.path(PKI), node.ca()]
                .map(|dir| fs::read_to_string(dir.join("front-proxy-ca.crt")).unwrap());
            node.write(format!("{PKI}/front-proxy-ca.crt"), own + &next);
        },
        65,
        &["signs with another front-proxy-ca than the one on this node"],
    ),
    (
        |node| node.signer_does("all", "unreachable"),
        69,
        &["nodepki: signer of ca: ", "nodepki: signer of etcd-ca: "],
    ),
    (
        |node| node.remove(format!("{PKI}/sa.key")),
        65,
        &["copy both sa.key and sa.pub from another control-plane node"],
    ),
    (
        |node| {
            node.remove(format!("{PKI}/sa.key"));
            node.remove(format!("{PKI}/sa.pub"));
        },
        65,
        &["copy both sa.key and sa.pub from another control-plane node"],
    ),
    (
        |node| {
            let other = fs::read_to_string(Node::new().ca().join("front-proxy-ca.crt")).unwrap();
            let own = node.read(format!("{PKI}/front-proxy-ca.crt"));
            node.write(format!("{PKI}/front-proxy-ca.crt"), other + &own);
        },
        65,
        &[
            "front-proxy-client needs the key of front-proxy-ca to be repaired: it verifies under",
            "but kubeadm uses only the first certificate of the bundle",
            "put the issuing root first, then run this command again",
            "@/etc/kubernetes/pki/front-proxy-ca.key is not the key of @/etc/kubernetes/pki/front-proxy-ca.crt",
        ],
    ),
    (
        |node| {
            let second = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
            let first = node.read(format!("{PKI}/ca.key"));
            node.write(format!("{PKI}/ca.key"), first + &*second.to_pem());
        },
        65,
        &["@/etc/kubernetes/pki/ca.key cannot be backed up: it contains several private keys"],
    ),
    (
        |node| {
            let key = node.path(format!("{PKI}/ca.key"));
            fs::rename(&key, node.path(format!("{PKI}/real.key"))).unwrap();
            symlink("real.key", &key).unwrap();
        },
        65,
        &["@/etc/kubernetes/pki/ca.key is a symbolic link"],
    ),
];

#[test]
fn refuses_while_not_everything_is_proven() {
    for (make, code, words) in OBSTACLES {
        let node = kubeadm_node();
        make(&node);
        assert_refused(&node, *code, words);
    }
}

#[test]
fn refuses_signer_that_reads_the_key_itself() {
    let node = kubeadm_node();
    let local = format!("local:{}", node.ca().display());
    let before = node.etc();
    for more in [&[][..], &["--skip-signing-proof"]] {
        Ran::of(
            apply_command(&node, "backup")
                .args(["--signer", &local])
                .args(more),
        )
        .ended(65)
        .says("which reads the CA key itself");
    }
    before.unchanged(&node.etc());
}

#[test]
fn refuses_while_a_manifest_names_the_key() {
    let node = kubeadm_node();
    let manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
    node.write(
        manifest,
        "    - --cluster-signing-key-file=/etc/kubernetes/pki/ca.key\n",
    );
    assert_refused(
        &node,
        65,
        &[
            "@/etc/kubernetes/manifests/kube-controller-manager.yaml names @/etc/kubernetes/pki/ca.key, ",
        ],
    );
    node.write(
        manifest,
        "    - --cluster-signing-key-file=\n    # /etc/kubernetes/pki/ca.key\n",
    );
    report(&node).done();
    let other = "/etc/kubernetes/manifests/copier.yaml";
    node.write(other, "  - /etc/kubernetes/pki/etcd/ca.key\n");
    assert_refused(
        &node,
        65,
        &[
            "copier.yaml names @/etc/kubernetes/pki/etcd/ca.key, and the pod may not start without it",
        ],
    );
}

#[test]
fn refuses_signer_that_answers_without_a_certificate() {
    for (how, code, words) in [
        (
            "denied",
            65,
            "the signer denied it: Policy: not on a Friday",
        ),
        (
            "bad wrong-key",
            65,
            "the certificate differs from the request",
        ),
        (
            "pending",
            75,
            "an officer must approve; run the same command again to continue with the same request",
        ),
    ] {
        let node = kubeadm_node();
        node.signer_does("all", how);
        report(&node).done();
        let etc = node.etc();
        for _ in 0..2 {
            apply(&node, "backup").ended(code).says(words);
        }
        etc.unchanged(&node.etc());
        assert!(!node.outside("backup").exists());
        if how == "pending" {
            assert!(
                node.keys_seen().values().all(|keys| keys.len() == 1),
                "the same request"
            );
        }
        node.signer_behaves();
        if how == "pending" {
            apply(&node, "backup").done();
            assert!(
                node.keys_seen().values().all(|keys| keys.len() == 1),
                "the same request"
            );
            assert!(keys(&node).is_empty());
        }
    }
}

fn renew(node: &Node, more: &[&str]) -> Ran {
    let command = ["renew", "--wait", "0s", "--clock-wait", "0s"];
    Ran::of(node.configured(command).args(more))
}

#[test]
fn keeps_pending_renewal_beside_test_signature() {
    for is_forced in [false, true] {
        let node = kubeadm_node();
        let forced = ["--force", "scheduler.conf"];
        if !is_forced {
            renew(&node, &forced).done();
            backdate(&node, &[CertName::SchedulerConf], DUE);
        }
        node.signer_does("scheduler.conf", "pending");
        let more = if is_forced { &forced[..] } else { &[] };
        renew(&node, more).row_says("scheduler.conf", "pending");
        node.signer_behaves();
        apply(&node, "backup")
            .done()
            .says("it signed a certificate like controller-manager.conf, which was discarded");
        let pending = node.path("/var/lib/nodepki/pending/scheduler.conf");
        assert!(pending.exists());
    }
}

#[test]
fn refuses_test_signature_that_would_discard_renewals() {
    let node = kubeadm_node();
    node.signer_does("all", "pending");
    renew(&node, &["--all", "--force"]).row_says("scheduler.conf", "pending");
    node.signer_behaves();
    // No component uses it, and it would be a certificate of system:masters.
    node.remove("/etc/kubernetes/super-admin.conf");
    let pending = node.path("/var/lib/nodepki/pending");
    fs::remove_dir_all(pending.join("super-admin.conf")).unwrap();
    let slots = || {
        let entries = fs::read_dir(&pending).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.collect::<BTreeSet<_>>()
    };
    let before = slots();
    apply(&node, "backup")
        .ended(75)
        .says("the requests for all certificates under ca are pending")
        .says("finish these renewals, then run this command again");
    assert_eq!(slots(), before);
    assert_eq!(keys(&node).len(), 3);
    renew(&node, &["--all", "--force"]).done();
    apply(&node, "backup").done();
}

#[test]
fn requires_test_signature_if_signer_does_not_name_its_ca() {
    let node = kubeadm_node();
    node.signer_does("all", "without-trust");
    report(&node)
        .done()
        .says("answers, but does not report its CA");
    Ran::of(apply_command(&node, "backup").arg("--skip-signing-proof"))
        .ended(65)
        .says("only a signature proves that it has ca (omit --skip-signing-proof)");
    assert_eq!(keys(&node).len(), 3);
    apply(&node, "backup").done();
    assert!(keys(&node).is_empty());
}

#[test]
fn skips_test_signature_on_request() {
    let node = kubeadm_node();
    Ran::of(apply_command(&node, "backup").arg("--skip-signing-proof"))
        .done()
        .says("whether the signers sign was not proven, because of --skip-signing-proof");
    assert!(keys(&node).is_empty());
    assert!(node.submissions().is_empty());
}

#[test]
fn refuses_to_overwrite_backup() {
    let node = kubeadm_node();
    let before = node.etc();
    fs::write(node.outside("backup"), "last year's").unwrap();
    apply(&node, "backup")
        .ended(65)
        .says("exists and is not the backup of these keys (it does not contain a PEM private key)")
        .says("a backup is never overwritten: name another file with --backup");
    assert_eq!(
        fs::read_to_string(node.outside("backup")).unwrap(),
        "last year's"
    );
    apply(&node, "absent/backup")
        .ended(64)
        .says("create or mount it");
    before.unchanged(&node.etc());

    // The same keys under another passphrase are a different backup.
    apply(&node, "good").done();
    restore(&node, &["--apply"], &["good"]).done();
    fs::write(
        node.outside("passphrase"),
        "another one that is long enough",
    )
    .unwrap();
    apply(&node, "good")
        .ended(65)
        .says("the private key was encrypted with another passphrase, or is damaged");
    restore(&node, &["--apply"], &["good"])
        .ended(65)
        .says("good cannot be opened: the private key was encrypted with another passphrase");
}

#[test]
fn removes_no_key_if_backup_does_not_fit_on_the_disk() {
    let node = kubeadm_node();
    let before = node.etc();
    // Two blocks, which is less than a backup of the keys takes.
    let limited = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let run = apply_command(&node, "backup");
    let mut shell = Command::new("bash");
    shell.args(["-c", limited, "bash"]).arg(run.get_program());
    shell.args(run.get_args()).arg("--skip-signing-proof");
    Ran::of(&mut shell).ended(75).says("backup");
    before.unchanged(&node.etc());
    assert!(!node.outside("backup").exists());
    let dangling = node.outside("link");
    symlink("nowhere", &dangling).unwrap();
    apply(&node, "link").ended(65).says("link");
    before.unchanged(&node.etc());
    // Below the root, given as a path on the node or on this machine.
    Ran::of(apply_command(&node, "root/etc/keys").arg("--skip-signing-proof")).done();
    assert!(node.path("/etc/keys").exists());
    restore(&node, &["--apply"], &["root/etc/keys"]).done();
    assert_eq!(keys(&node).len(), 3);
}

#[test]
fn requires_passphrase_and_never_as_an_argument() {
    let node = kubeadm_node();
    let before = node.snapshot();
    Ran::of(&mut migrate(&node, "to-external", &["--apply"]))
        .ended(64)
        .says("add --backup FILE and --passphrase-file FILE");
    Ran::of(migrate(&node, "to-external", &["--apply", "--backup"]).arg(node.outside("backup")))
        .ended(64)
        .says("--passphrase-file");
    for (passphrase, words) in [
        ("", "it has 0 characters"),
        ("short", "it has 5 characters, but at least 16 are needed"),
        (
            "two lines of text\nand more",
            "it contains more than one line",
        ),
    ] {
        write_secret(node.outside("passphrase"), passphrase);
        apply(&node, "backup")
            .ended(78)
            .says(words)
            .says_not("and more");
    }
    before.unchanged(&node.snapshot());

    write_secret(node.outside("passphrase"), PASSPHRASE);
    let mut command = migrate(
        &node,
        "to-external",
        &["--apply", "--passphrase-fd", "0", "--backup"],
    );
    let stdin = fs::File::open(node.outside("passphrase")).unwrap();
    Ran::of(command.arg(node.outside("backup")).stdin(stdin)).done();
    let mut command = migrate(
        &node,
        "to-internal",
        &["--passphrase-file", "credential:passphrase", "--backup"],
    );
    command.arg(node.outside("backup"));
    Ran::of(&mut command)
        .ended(78)
        .says("systemd gave this run no credentials");
    Ran::of(command.env("CREDENTIALS_DIRECTORY", node.outside(""))).done();
}

#[test]
fn moves_single_authorities_and_restores_from_several_backups() {
    let node = kubeadm_node();
    // Moving etcd-ca alone does not require anything of ca.
    node.remove("/etc/kubernetes/scheduler.conf");
    Ran::of(apply_command(&node, "etcd").args(["--authority", "etcd-ca"]))
        .done()
        .says_not("kube-controller-manager");
    assert_eq!(keys(&node).len(), 2);
    node.ask().done();
    apply(&node, "rest").done();
    assert!(keys(&node).is_empty());

    let settled = node.snapshot();
    restore(&node, &["--apply", "--authority", "etcd-ca"], &["rest"])
        .ended(65)
        .says("no backup contains the key of etcd-ca");
    // A key of another cluster.
    write_foreign_backup(&node);
    restore(&node, &["--apply"], &["etcd", "foreign", "absent"])
        .ended(65)
        .says("foreign contains a key (public key sha256:")
        .says("that belongs to no CA certificate on this node")
        .says("absent does not exist");
    settled.unchanged(&node.snapshot());

    node.write(format!("{PKI}/ca.key"), "something else");
    restore(&node, &["--apply"], &["etcd", "rest"])
        .ended(65)
        .says(&node.here("@/etc/kubernetes/pki/ca.key exists, is not the key of @/etc/kubernetes/pki/ca.crt and is not overwritten"));
    assert_eq!(keys(&node).len(), 1);
    node.remove(format!("{PKI}/ca.key"));
    restore(&node, &["--apply"], &["etcd", "rest"]).done();
    assert_eq!(keys(&node).len(), 3);
}

#[test]
fn restores_one_key_to_two_authorities_that_share_it() {
    let node = kubeadm_node();
    apply(&node, "backup").done();
    let own = node.read(format!("{PKI}/ca.crt"));
    node.write(format!("{PKI}/front-proxy-ca.crt"), own);
    restore(&node, &["--apply"], &["backup"])
        .ended(65)
        .says("belongs to no CA certificate on this node")
        .says("select authorities with --authority");
    // The key of front-proxy-ca in the backup belongs to no certificate and is not required.
    let both = [
        "--apply",
        "--authority",
        "ca",
        "--authority",
        "front-proxy-ca",
    ];
    restore(&node, &both, &["backup"]).done();
    assert_eq!(keys(&node).len(), 2);
    assert_eq!(
        node.read(format!("{PKI}/front-proxy-ca.key")),
        node.read(format!("{PKI}/ca.key"))
    );
}

#[test]
fn notes_super_admin_kubeconfig_that_was_removed() {
    let node = kubeadm_node();
    node.remove("/etc/kubernetes/super-admin.conf");
    report(&node)
        .done()
        .says_not("super-admin.conf,")
        .says(&node.here("@/etc/kubernetes/super-admin.conf is absent: no component uses it, but kubeadm init and its phases refuse an external CA without it"));
}

/// After a crash at any failpoint the keys are on the node or in a readable backup, and the next run completes.
#[cfg(feature = "failpoints")]
#[test]
fn loses_no_key_in_a_crash() {
    use crate::store::leftovers;
    use nodepki::process::failpoint;

    let commits = failpoint::STORE
        .iter()
        .filter(|failpoint| failpoint.starts_with("commit:") || failpoint.starts_with("finish:"));
    let places = failpoint::MIGRATE
        .iter()
        .chain(commits)
        .filter(|failpoint| {
            !matches!(
                **failpoint,
                "commit:staged-one" | "finish:rename-one" | "finish:slot-removed"
            )
        })
        .map(|failpoint| (*failpoint).to_owned())
        .chain(["finish:remove-one:2", "finish:remove-one:3"].map(str::to_owned));
    for failpoint in sampled(0, places) {
        let node = kubeadm_node();
        let originals: Vec<(PathBuf, String)> = keys(&node)
            .into_iter()
            .map(|key| (key.clone(), fs::read_to_string(key).unwrap()))
            .collect();
        // The test signature commits too, and would reach the failpoints first.
        let mut run = apply_command(&node, "backup");
        run.arg("--skip-signing-proof");
        let ran = Ran::of(run.env("NODEPKI_FAILPOINT", &failpoint));
        assert_eq!(ran.signal, Some(9), "{failpoint}: {}", ran.said());
        if !node.outside("backup").exists() {
            assert_eq!(keys(&node).len(), 3, "{failpoint}");
        }
        apply(&node, "backup").done();
        assert!(keys(&node).is_empty(), "{failpoint}");
        assert_eq!(
            leftovers(&node.root()),
            Vec::<PathBuf>::new(),
            "{failpoint}"
        );
        restore(&node, &["--apply"], &["backup"]).done();
        for (key, text) in originals {
            assert_eq!(fs::read_to_string(key).unwrap(), text, "{failpoint}");
        }
    }
}

/// Kills `to-external` at a failpoint of its commit, with the backup in `backup`.
#[cfg(feature = "failpoints")]
fn interrupted_removal(failpoint: &str) -> Node {
    let node = kubeadm_node();
    let mut run = apply_command(&node, "backup");
    run.arg("--skip-signing-proof");
    let ran = Ran::of(run.env("NODEPKI_FAILPOINT", failpoint));
    assert_eq!(ran.signal, Some(9), "{failpoint}: {}", ran.said());
    node
}

#[cfg(feature = "failpoints")]
#[test]
fn keeps_ca_keys_of_interrupted_removal_without_its_backup() {
    type Loss = fn(&Path);
    let losses: [(&str, Loss, &str); 4] = [
        (
            "removed",
            |backup| fs::remove_file(backup).unwrap(),
            "it does not exist any more",
        ),
        (
            "truncated",
            |backup| fs::write(backup, "").unwrap(),
            "it was changed after it had been verified",
        ),
        (
            "another backup",
            |backup| {
                let text = fs::read_to_string(backup).unwrap();
                fs::write(backup, text.replace("CA", "ca")).unwrap();
            },
            "it was changed after it had been verified",
        ),
        (
            "a directory",
            |backup| {
                fs::remove_file(backup).unwrap();
                fs::create_dir(backup).unwrap();
            },
            "is a directory",
        ),
    ];
    let moments = [
        ("finish:remove-one:2", 2),
        ("commit:journalled", 3),
        ("finish:remove-one", 3),
        ("finish:renamed", 0),
    ];
    let cases = losses
        .into_iter()
        .flat_map(|loss| moments.map(|moment| (moment, loss)));
    for ((failpoint, left), (loss, lose, words)) in sampled(0, cases) {
        let node = interrupted_removal(failpoint);
        let case = format!("{failpoint}, {loss}");
        let before = keys(&node);
        assert_eq!(before.len(), left, "{case}");
        lose(&node.outside("backup"));
        let ran = renew(&node, &[]);
        ran.done()
            .says("backup is lost, the backup of a removal of CA keys that was interrupted: ")
            .says(words)
            .says("keys that are kept: ");
        for key in &before {
            ran.says(&key.display().to_string());
        }
        if left == 2 {
            ran.says("an interrupted run had already removed");
        }
        assert_eq!(keys(&node), before, "{case}");
        node.run(&["status"]).done().says_not("was interrupted");
    }
}

#[cfg(feature = "failpoints")]
#[test]
fn completes_interrupted_removal_with_unchanged_backup() {
    let node = interrupted_removal("finish:remove-one:2");
    let words = "a run was interrupted while it removed CA keys, or is in progress";
    node.run(&["status"])
        .done()
        .says(words)
        .says("if the backup ")
        .says_not("installed files");
    Ran::of(&mut node.configured(["doctor"])).says("interrupted while it removed CA keys");
    report(&node).says("interrupted while it removed CA keys");
    renew(&node, &[])
        .done()
        .says("contains the removed CA keys: it has not changed since it was verified; its passphrase was not tried again");
    assert!(keys(&node).is_empty());
    restore(&node, &["--apply"], &["backup"]).done();
    assert_eq!(keys(&node).len(), 3);
}

#[cfg(feature = "failpoints")]
#[test]
fn writes_second_backup_after_interrupted_removal_or_refuses() {
    let forget = |node: &Node| write_secret(node.outside("passphrase"), "another that is long");
    // No key is removed yet: the second backup contains all of them.
    let node = interrupted_removal("finish:remove-one");
    forget(&node);
    apply(&node, "backup")
        .ended(65)
        .says("the private key was encrypted with another passphrase");
    assert_eq!(keys(&node).len(), 3);
    let node = interrupted_removal("finish:remove-one");
    forget(&node);
    apply(&node, "second").done();
    assert!(keys(&node).is_empty());
    restore(&node, &["--apply"], &["second"]).done();
    assert_eq!(keys(&node).len(), 3);

    // One is removed: a second backup would lack it.
    let node = interrupted_removal("finish:remove-one:2");
    let gone: Vec<_> = AUTHORITY_KEYS
        .iter()
        .map(|key| node.path(PKI).join(key))
        .filter(|key| !key.exists())
        .collect();
    forget(&node);
    apply(&node, "second")
        .ended(65)
        .says(&gone[0].display().to_string())
        .says("second would lack these keys")
        .says("nodepki migrate to-internal --backup ");
    assert_eq!(keys(&node).len(), 2);
    assert!(!node.outside("second").exists());
    fs::remove_file(node.outside("backup")).unwrap();
    apply(&node, "second")
        .done()
        .says("an interrupted run had already removed")
        .says("backup is lost");
    assert!(keys(&node).is_empty());

    // All are removed.
    let node = interrupted_removal("finish:renamed");
    apply(&node, "second").ended(65);
    forget(&node);
    apply(&node, "backup")
        .ended(65)
        .says("no backup is written")
        .says("backup cannot be opened: the private key was encrypted with another passphrase");
}

#[test]
fn refuses_another_backup_after_removal_of_ca_keys() {
    let node = kubeadm_node();
    apply(&node, "backup").done();
    let settled = node.snapshot();
    apply(&node, "backup")
        .done()
        .says("backup is the backup of the keys of ca, front-proxy-ca, etcd-ca")
        .says("nothing to do: this node has no CA private key to remove");
    apply(&node, "second")
        .ended(65)
        .says("this node has no CA private key, so that no backup is written")
        .says("second does not exist");
    write_foreign_backup(&node);
    apply(&node, "foreign")
        .ended(65)
        .says("foreign contains no key of its CA certificates");
    write_secret(node.outside("passphrase"), "another that is long");
    apply(&node, "backup")
        .ended(65)
        .says("backup cannot be opened: the private key was encrypted with another passphrase");
    report(&node).done();
    assert!(!node.outside("second").exists());
    settled.unchanged(&node.snapshot());
}

/// A running cluster, and OpenBao with its CA keys.
#[test]
fn keeps_running_cluster_working_with_openbao() {
    let cluster = Cluster::start(Authorities::Internal);
    let node = cluster.first();
    let outside = tempfile::tempdir().unwrap();
    let space = Bao::shared().space();
    let config = openbao_settings(&space, &node.path(PKI), outside.path());
    write_secret(outside.path().join("passphrase"), PASSPHRASE);
    fs::write(outside.path().join("kubeadm.yaml"), cluster::INIT).unwrap();
    let beside = |name: &str| outside.path().join(name).display().to_string();
    let nodepki = |arguments: &[&str]| {
        let mut command = Command::new(NODEPKI);
        command.arg("--root").arg(node.dir()).args(arguments);
        command
            .args(["--config", &config])
            .args(["--kubeadm-config", &beside("kubeadm.yaml")]);
        Ran::of(&mut command)
    };
    let (backup, passphrase) = (beside("backup"), beside("passphrase"));
    let apply = [
        "migrate",
        "to-external",
        "--apply",
        "--backup",
        &backup,
        "--passphrase-file",
        &passphrase,
    ];

    // kubeadm's manifest names the key, and the message says how to change it.
    let refused = nodepki(&apply);
    let key = node.path(PKI).join("ca.key");
    refused.ended(65).says(&format!("names {}", key.display()));
    let command = refused.stderr.split_once("for an external CA: ").unwrap().1;
    let manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
    let original = fs::read_to_string(node.path(manifest)).unwrap();
    // The command in the message was followed.
    Ran::of(Command::new("sh").args(["-euc", command.trim()])).done();
    let text_now = fs::read_to_string(node.path(manifest)).unwrap();
    for flag in ["cert", "key"] {
        assert!(
            text_now.contains(&format!("    - --cluster-signing-{flag}-file=\n")),
            "{text_now}"
        );
    }
    node.stop("kube-controller-manager");
    node.start("kube-controller-manager");

    nodepki(&apply)
        .done()
        .says("it signed a certificate like apiserver-etcd-client, which was discarded");
    for key in AUTHORITY_KEYS {
        assert!(!node.path(PKI).join(key).exists());
    }
    kubeadm::accepts_external_ca(&node.path("/etc/kubernetes"), cluster::INIT);
    for authority in Authority::ALL {
        let key = extract_key(
            outside.path(),
            Path::new(&backup),
            Path::new(&passphrase),
            authority,
        );
        let certificate = node
            .path(PKI)
            .join(format!("{}.crt", authority.base_name()));
        let public = openssl(&["pkey", "-pubout"], key.as_bytes());
        assert_eq!(public, public_key_of(&certificate), "{authority}");
    }

    // The report describes the cluster.
    node.kubeadm(
        &["init", "phase", "upload-certs", "--upload-certs"],
        Some(cluster::INIT),
    )
    .ended(1)
    .says("can't use upload-certs with an external CA or an external front-proxy CA");
    let leaf = fs::read(node.path(PKI).join("apiserver.crt")).unwrap();
    node.kubeadm(&["certs", "renew", "apiserver"], Some(cluster::INIT))
        .done()
        .says("external");
    assert_eq!(
        fs::read(node.path(PKI).join("apiserver.crt")).unwrap(),
        leaf
    );

    // kube-controller-manager with kubeadm's flags fails to start without the key; with the new flags it starts.
    node.stop("kube-controller-manager");
    fs::write(node.path(manifest), original).unwrap();
    node.write(
        "/var/tmp/manager.sh",
        &manager_command(&node.path(manifest)),
    );
    node.run("sh", &["/var/tmp/manager.sh"])
        .ended(1)
        .says("error reading CA cert file")
        .says("ca.key");
    fs::write(node.path(manifest), text_now).unwrap();
    node.start("kube-controller-manager");

    // Back to local keys.
    let restore = [
        "migrate",
        "to-internal",
        "--apply",
        "--backup",
        &backup,
        "--passphrase-file",
        &passphrase,
    ];
    nodepki(&restore).done();
    node.kubeadm(&["certs", "renew", "apiserver"], Some(cluster::INIT))
        .done()
        .says("renewed");
    assert_ne!(
        fs::read(node.path(PKI).join("apiserver.crt")).unwrap(),
        leaf
    );
}

/// Returns a command that runs kube-controller-manager with the flags of a manifest for at most a minute.
fn manager_command(manifest: &Path) -> String {
    let manifest = fs::read_to_string(manifest).unwrap();
    let flags: Vec<&str> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("    - --"))
        .collect();
    let program = bin("kube-controller-manager");
    format!(
        "exec timeout 60 {} '--{}'\n",
        program.display(),
        flags.join("' '--")
    )
}

/// Writes settings for engines of OpenBao that sign with the CA keys of a node, and returns the path of the file.
fn openbao_settings(space: &Space<'_>, pki: &Path, dir: &Path) -> String {
    let token = put(dir, "token", &space.any_token());
    let settings = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         signers: {{v: {{vault: {{address: \"{}\", namespace: {}, mount: \"pki/{{authority}}\", \
         auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
        space.bao.url(),
        space.namespace,
        token.display(),
        space.bao.ca_file().display()
    );
    space.apply(&print_setup(dir, &settings, cluster::INIT, &["vault"]).stdout);
    for authority in Authority::ALL {
        let base = pki.join(authority.base_name());
        let pem = ["crt", "key"]
            .map(|extension| fs::read_to_string(base.with_extension(extension)).unwrap())
            .concat();
        space.write(
            &format!("pki/{authority}/config/ca"),
            json!({ "pem_bundle": pem }),
        );
    }
    dir.join("setup.yaml").display().to_string()
}
