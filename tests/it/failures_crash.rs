//! Kills the whole run, or fails a system call, at every failpoint; the next run must end with consistent pairs, one
//! key per slot, and no request that the signer did not already have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nodepki::kube::names::{Authority, CertName};
use nodepki::process::failpoint;

use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::sample::{self, sampled};
use crate::store::leftovers;
use crate::time::wait_until;

/// The certificates of the scenarios: an external etcd keeps them few.
const CERTIFICATES: [CertName; 6] = [
    CertName::Apiserver,
    CertName::ApiserverKubeletClient,
    CertName::FrontProxyClient,
    CertName::AdminConf,
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
];
/// The certificate that a new API server name replaces.
const REPLACED: CertName = CertName::Apiserver;

/// Settings with which the kubelet obtains its own kubelet.conf.
const KUBELET_BOOTSTRAP: &str = "kubelet: {identity: bootstrap}\n";

/// kubeadm configuration of a first node with an external etcd.
fn init_with_external_etcd() -> String {
    format!("{INIT}etcd: {{external: {{endpoints: ['http://192.0.2.50:2379']}}}}\n")
}

fn init_with_new_name() -> String {
    format!(
        "{}apiServer: {{certSANs: [drift.example.com]}}\n",
        init_with_external_etcd()
    )
}

fn new_node() -> Node {
    let node = Node::of(&init_with_external_etcd());
    node.settings(KUBELET_BOOTSTRAP);
    node
}

/// Returns a complete node, to be copied.
fn complete_node() -> Node {
    let node = new_node();
    node.ask().done();
    node
}

/// Returns a copy whose API server names and kubeconfig endpoint differ from the configuration.
fn drifted_copy(complete: &Node) -> Node {
    let node = complete.copied();
    node.settings(KUBELET_BOOTSTRAP);
    fs::remove_file(node.outside("log")).unwrap();
    node.configure(&init_with_new_name().replace("api.example.com", "other.example.com"));
    node
}

fn names(node: &Node) -> Vec<CertName> {
    let mut names = CERTIFICATES.to_vec();
    if node.path("/etc/kubernetes/super-admin.conf").exists() {
        names.push(CertName::SuperAdminConf);
    }
    names
}

/// Runs `bootstrap` with a failpoint armed; false if the failpoint was not reached.
fn is_killed_at(node: &Node, failpoint: &str) -> bool {
    let ran = Ran::of(node.ask_command("0s").env("NODEPKI_FAILPOINT", failpoint));
    match (ran.code, ran.signal) {
        (_, Some(9)) => true,
        (Some(0 | 75), _) => false,
        _ => panic!("{failpoint}: {}", ran.said()),
    }
}

/// Asserts that no key is installed with another key's certificate at a moment at which a component can read both.
fn assert_no_mixed_pair(node: &Node, failpoint: &str, old: &BTreeMap<CertName, String>) {
    for name in CERTIFICATES {
        let Some((chain, key)) = node.leaf(name) else {
            assert!(!old.contains_key(&name), "{failpoint}: {name} is gone");
            continue;
        };
        // Between two renames a pair is inconsistent for a moment; the next start repairs it from the journal.
        let is_pair = chain.leaf().public_key() == key.public_key();
        assert!(
            is_pair || node.path("/var/lib/nodepki/journal.json").exists(),
            "{failpoint}: {name} is torn and no journal can repair it"
        );
    }
}

/// Asserts the state after the run that follows a crash.
fn assert_finished(node: &Node, failpoint: &str) {
    let all = names(node);
    node.assert_sound(&all);
    let seen = node.keys_seen();
    for name in &all {
        if let Some(keys) = seen.get(name.as_str()) {
            assert_eq!(keys.len(), 1, "{failpoint}: {name} has several keys");
            assert_eq!(
                *keys,
                [node.key_in_place(*name)],
                "{failpoint}: {name}: the installed key is not the one of the request"
            );
        }
    }
    // The signer keeps its first answer: repeating a request with the same identity issues no second certificate.
    let issued: BTreeSet<String> = node
        .exchanges()
        .into_iter()
        .filter(|(verb, ..)| verb == "sign")
        .map(|(_, slot, id)| format!("{slot} {id}"))
        .collect();
    let slots: BTreeSet<&str> = issued
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(
        issued.len(),
        slots.len(),
        "{failpoint}: more than one request per slot"
    );
    assert_eq!(
        leftovers(&node.root()),
        [] as [std::path::PathBuf; 0],
        "{failpoint}"
    );
    assert!(
        fs::read_dir(node.path("/var/lib/nodepki/pending")).map_or(0, |entries| entries.count())
            == 0,
        "{failpoint}: a request is still pending"
    );
    let settled = node.etc();
    let exchanges = node.exchanges().len();
    node.ask().done();
    settled.unchanged(&node.etc());
    assert_eq!(
        node.exchanges().len(),
        exchanges,
        "{failpoint}: a request was repeated after completion"
    );
}

fn keys(node: &Node) -> BTreeMap<CertName, String> {
    CERTIFICATES
        .into_iter()
        .filter(|name| node.leaf(*name).is_some())
        .map(|name| (name, node.key_in_place(name)))
        .collect()
}

/// Kills a run at a failpoint and completes it with the next run.
fn crash(node: &Node, failpoint: &str) {
    crash_after(node, failpoint, keys(node));
}

/// As [`crash`], for a node that had the keys `old` installed before.
fn crash_after(node: &Node, failpoint: &str, old: BTreeMap<CertName, String>) {
    assert!(is_killed_at(node, failpoint), "{failpoint} is not reached");
    assert_no_mixed_pair(node, failpoint, &old);
    let sent = node.keys_seen();
    node.ask().done();
    // The signer receives the same keys after the crash as before it.
    for (slot, keys) in sent {
        assert_eq!(node.keys_seen()[&slot], keys, "{failpoint}: {slot}");
    }
    assert_finished(node, failpoint);
    for (name, key) in old {
        if name == REPLACED {
            assert_ne!(
                node.key_in_place(name),
                key,
                "{failpoint}: {name} is not replaced"
            );
        } else {
            assert_eq!(
                node.key_in_place(name),
                key,
                "{failpoint}: {name} is not kept"
            );
        }
    }
}

/// Returns the failpoints of a run without pending requests and without an earlier crash.
fn failpoints_of_every_run() -> Vec<&'static str> {
    failpoint::AGENT
        .iter()
        .chain(failpoint::STORE)
        .copied()
        .filter(|failpoint| !failpoint.starts_with("recover:"))
        .filter(|failpoint| {
            !matches!(
                *failpoint,
                "request:pending" | "pending:set-aside" | "finish:remove-one"
            )
        })
        .collect()
}

#[test]
fn completes_new_node_after_a_kill_at_every_failpoint() {
    for failpoint in sampled(0, failpoints_of_every_run()) {
        crash(&new_node(), failpoint);
    }
    // Later occurrences of the failpoints that are passed more than once.
    for failpoint in [
        "request:answered:4",
        "request:submitting:3",
        "commit:staged-one:5",
        "finish:rename-one:7",
        "pending:ticket-updated:9",
    ] {
        crash(&new_node(), failpoint);
    }
}

#[test]
fn completes_renewal_after_a_kill_at_every_failpoint() {
    let complete = complete_node();
    for failpoint in sampled(1, failpoints_of_every_run()) {
        crash(&drifted_copy(&complete), failpoint);
    }
    for failpoint in [
        "finish:rename-one:2",
        "finish:rename-one:3",
        "commit:staged-one:2",
    ] {
        crash(&drifted_copy(&complete), failpoint);
    }
}

#[test]
fn completes_recovery_after_a_kill_at_every_failpoint() {
    let complete = complete_node();
    for failpoint in failpoint::STORE
        .iter()
        .filter(|failpoint| failpoint.starts_with("recover:"))
    {
        let node = drifted_copy(&complete);
        let old = keys(&node);
        // Before the point of commit, recovery removes temporary files; after it, recovery completes the commit.
        let first = if failpoint.starts_with("recover:swept") {
            "commit:staged"
        } else {
            "finish:rename-one:2"
        };
        assert!(is_killed_at(&node, first));
        crash_after(&node, failpoint, old);
    }
    // Repeated kills within the same commit.
    let node = drifted_copy(&complete);
    assert!(is_killed_at(&node, "commit:journalled"));
    for _ in 0..3 {
        assert!(is_killed_at(&node, "finish:rename-one"));
    }
    node.ask().done();
    assert_finished(&node, "three kills");
}

#[test]
fn resumes_pending_request_killed_before_and_after_its_ticket() {
    for failpoint in ["request:pending", "request:answered", "request:submitting"] {
        let node = new_node();
        node.signer_does("apiserver", "pending");
        assert!(is_killed_at(&node, failpoint), "{failpoint}");
        let requested = node.keys_seen();
        assert!(matches!(node.ask().code, Some(75)), "{failpoint}");
        node.signer_behaves();
        node.ask().done();
        for (slot, keys) in requested {
            assert_eq!(node.keys_seen()[&slot], keys, "{failpoint}");
        }
        assert_finished(&node, failpoint);
    }
}

#[test]
fn replaces_request_killed_while_the_old_one_is_set_aside() {
    let node = new_node();
    node.signer_does("apiserver", "pending");
    node.ask().ended(75);
    node.configure(&init_with_new_name());
    assert!(is_killed_at(&node, "pending:set-aside"));
    node.signer_behaves();
    node.ask().done();
    node.assert_sound(&names(&node));
    assert_eq!(
        node.keys_seen()["apiserver"].len(),
        2,
        "one key per configuration"
    );
    assert_eq!(leftovers(&node.root()), [] as [std::path::PathBuf; 0]);
}

#[test]
fn reaches_every_failpoint_of_the_agent() {
    for failpoint in failpoint::AGENT {
        let node = new_node();
        node.signer_does(
            "apiserver",
            if *failpoint == "request:pending" {
                "pending"
            } else {
                "sign"
            },
        );
        assert!(is_killed_at(&node, failpoint), "{failpoint} is not reached");
    }
}

#[test]
fn reports_disk_faults_and_loses_nothing() {
    let complete = complete_node();
    for (error, code, words) in [
        (
            "ENOSPC",
            75,
            "free some space (see `df -h` and `df -i`) and run again",
        ),
        (
            "EROFS",
            77,
            "the file system is read-only; mount it read-write (`mount -o remount,rw ...`), or add the directory to ReadWritePaths= of the systemd unit that runs nodepki, and run again",
        ),
        ("EIO", 75, "EIO: I/O error"),
        (
            "EACCES",
            77,
            "run as root; if nodepki runs as root, examine the security policy (SELinux, AppArmor)",
        ),
    ] {
        // ENOSPC runs at every failpoint; the other errors show the exit codes.
        let failpoints = match error {
            "ENOSPC" => sampled(3, failpoint::STORE.iter().copied()),
            _ => vec!["pending:created", "commit:staged", "finish:rename-one"],
        };
        for failpoint in failpoints {
            // Cleaning up after a commit may fail without failing the commit; recovery needs another run.
            if failpoint.starts_with("recover:")
                || matches!(failpoint, "pending:set-aside" | "finish:remove-one")
            {
                continue;
            }
            let node = drifted_copy(&complete);
            let before = node.etc();
            let armed = format!("{failpoint}={error}");
            let ran = Ran::of(node.ask_command("0s").env("NODEPKI_FAILPOINT", &armed));
            if ran.code != Some(0) {
                // After the point of commit the next run completes it, whatever the error was.
                let code = if failpoint.starts_with("finish:") {
                    75
                } else {
                    code
                };
                ran.ended(code).says(words).says("nodepki: ");
                let promise = ran.stderr.clone();
                if promise.contains("nothing was changed") || failpoint.starts_with("pending:") {
                    assert_eq!(before.content(), node.etc().content(), "{armed}: {promise}");
                } else {
                    assert!(promise.contains("the new files are safe in the journal: run the same command again to finish"), "{armed}: {promise}");
                }
            }
            let sent = node.keys_seen();
            node.ask().done();
            for (slot, keys) in sent {
                assert_eq!(node.keys_seen()[&slot], keys, "{armed}: {slot}");
            }
            assert_finished(&node, &armed);
        }
    }
}

#[test]
fn keeps_keys_of_a_run_killed_while_its_signer_hangs() {
    let node = Node::new();
    let mut run = node.start_hanging_run("etcd-peer");
    wait_until("every request is sent", || {
        node.keys_seen().len() == EVERYTHING.len()
    });
    run.kill().unwrap();
    run.wait().unwrap();
    let requested = node.keys_seen();
    assert_eq!(requested.len(), EVERYTHING.len());
    node.signer_behaves();
    node.ask().done();
    assert_eq!(node.keys_seen(), requested, "the keys changed");
    node.assert_sound(&EVERYTHING);
    for name in EVERYTHING {
        assert_eq!(
            requested[name.as_str()],
            [node.key_in_place(name)],
            "{name}"
        );
    }
    assert_eq!(leftovers(&node.root()), [] as [std::path::PathBuf; 0]);
}

#[test]
fn keeps_no_pending_keys_for_the_local_signer() {
    // Its requests end with the process: a killed run leaves nothing that the next one could continue.
    for failpoint in [
        "request:submitting:3",
        "request:answered",
        "request:verified",
        "run:before-commit",
        "finish:rename-one:3",
    ] {
        let node = Node::of(&init_with_external_etcd());
        let ran = Ran::of(
            node.with_local(&["bootstrap"], &[])
                .env("NODEPKI_FAILPOINT", failpoint),
        );
        assert_eq!(ran.signal, Some(9), "{failpoint}");
        assert_eq!(node.pending_keys().len(), 0, "{failpoint}");
        node.bootstrap().done();
        node.assert_sound(&names(&node));
        assert_eq!(
            leftovers(&node.root()),
            [] as [std::path::PathBuf; 0],
            "{failpoint}"
        );
        assert!(node.authority(Authority::Ca).bundle().certificates().len() == 1);
    }
}

// ---- csr import ----

/// Runs `csr import` of `dir`, killed at `failpoint` unless that is empty.
fn import(node: &Node, dir: &std::path::Path, failpoint: &str) -> Ran {
    let mut command = node.configured(["csr", "import"]);
    command.arg(dir);
    if !failpoint.is_empty() {
        command.env("NODEPKI_FAILPOINT", failpoint);
    }
    Ran::of(&mut command)
}

/// Returns a node with a signed bundle of its own requests.
fn with_signed_bundle() -> Node {
    let node = new_node();
    let bundle = node.outside("bundle");
    Ran::of(node.configured(["csr", "export"]).arg(&bundle)).done();
    let script = format!(
        "set -e; cd {}; CA={}; . ./README",
        bundle.display(),
        node.ca().display()
    );
    crate::signing::run_program("/bin/bash", &["-c", &script], b"");
    node
}

/// Moves the private keys into the bundle, as kubeadm lays them out, so nothing is pending on the node.
fn move_keys_to_bundle(node: &Node) {
    for (name, _) in node.pending_keys() {
        let slot = node.path(format!("/var/lib/nodepki/pending/{name}/key.pem"));
        let key = fs::read_to_string(slot).unwrap();
        if name.is_kubeconfig() {
            use base64::Engine as _;
            let text = format!(
                "users: [{{user: {{client-key-data: {}}}}}]\n",
                base64::engine::general_purpose::STANDARD.encode(key)
            );
            fs::write(node.outside("bundle").join(name.as_str()), text).unwrap();
        } else {
            let path = format!("bundle/pki/{}.key", name.base_name());
            fs::write(node.outside(&path), key).unwrap();
        }
    }
    fs::remove_dir_all(node.path("/var/lib/nodepki/pending")).unwrap();
}

#[test]
fn completes_import_that_was_killed_and_accepts_repetition() {
    let exported = with_signed_bundle();
    let with_tree_keys = exported.copied();
    move_keys_to_bundle(&with_tree_keys);
    let sources = [("bundle", &exported), ("tree with keys", &with_tree_keys)];
    for (first, (kind, source)) in sources.into_iter().enumerate() {
        let bundle = source.outside("bundle");
        let mut reached = 0;
        for failpoint in sampled(first + 2, failpoint::STORE.iter().chain(failpoint::AGENT)) {
            for hit in [1, 2, 5] {
                let failpoint = format!("{failpoint}:{hit}");
                let node = source.copied();
                let ran = import(&node, &bundle, &failpoint);
                match ran.signal {
                    Some(9) => reached += 1,
                    _ => {
                        ran.done();
                        break;
                    }
                }
                let ran = import(&node, &bundle, "");
                assert_eq!(ran.code, Some(0), "{kind}, {failpoint}: {}", ran.said());
                node.assert_sound(&names(&node));
                assert_eq!(
                    leftovers(&node.root()),
                    [] as [std::path::PathBuf; 0],
                    "{kind}, {failpoint}"
                );
                let settled = node.etc();
                import(&node, &bundle, "").done();
                settled.unchanged(&node.etc());
                assert!(node.pending_keys().is_empty(), "{kind}, {failpoint}");
            }
        }
        assert!(
            reached > 20 / sample::step(),
            "{kind}: only {reached} failpoints were reached"
        );
    }
}

#[test]
fn repeats_import_of_an_incomplete_bundle_as_pending() {
    let node = with_signed_bundle();
    let missing = node.outside("bundle/pki/apiserver.crt");
    let kept = node.outside("apiserver.crt");
    fs::rename(&missing, &kept).unwrap();
    for _ in 0..3 {
        import(&node, &node.outside("bundle"), "")
            .ended(75)
            .row_says("apiserver", "no certificate for its key was imported");
    }
    fs::rename(&kept, &missing).unwrap();
    import(&node, &node.outside("bundle"), "").done();
    node.assert_sound(&names(&node));
}

#[test]
fn refuses_import_without_any_certificate_of_the_node() {
    let (node, other) = (with_signed_bundle(), with_signed_bundle());
    import(&node, &other.outside("bundle"), "")
        .ended(65)
        .says("the import contains no certificate for any request of this node");
    import(&node, &node.outside("bundle"), "").done();
    // The bundle of another node changes nothing on a complete node.
    let settled = node.etc();
    import(&node, &other.outside("bundle"), "").done();
    settled.unchanged(&node.etc());
}
