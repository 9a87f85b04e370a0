//! Kills a renewal, or fails a system call, at every failpoint; the next run must end with consistent pairs, one key per
//! slot, and no request that the signer did not already have. `crash` interrupts every command at its system calls, and
//! `store_crash` each step of the store and of its recovery.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nodepki::kube::names::{Authority, CertName};
use nodepki::process::failpoint;

use crate::node::{INIT, Node, Ran};
use crate::sample::sampled;
use crate::store::leftovers;

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
    Node::of(&init_with_external_etcd())
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
    node.settings("");
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
    let old = keys(node);
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
        for failpoint in ["pending:created", "commit:staged", "finish:rename-one"] {
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
