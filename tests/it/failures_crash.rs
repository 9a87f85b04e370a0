//! The whole run is killed, or a system call fails, at every named place; the next run must finish with whole pairs,
//! one key a slot and no request that the signer did not already have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use nodepki::kube::names::{Authority, CertName};
use nodepki::process::failpoint;

use crate::failures_host::wait_until;
use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::store::leftovers;

/// Kinds of certificates that are asked for in the scenarios: an external etcd keeps them few.
const FEW: [CertName; 6] = [
    CertName::Apiserver,
    CertName::ApiserverKubeletClient,
    CertName::FrontProxyClient,
    CertName::AdminConf,
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
];
/// What changes when a name is added: one pair, and etcd's two when those are local.
const REPLACED: CertName = CertName::Apiserver;

/// Settings that leave kubelet.conf to the kubelet.
const BOOTSTRAP: &str = "kubelet: {identity: bootstrap}\n";

/// The first node with an external etcd and a kubelet that bootstraps itself.
fn small() -> String {
    format!("{INIT}etcd: {{external: {{endpoints: ['http://192.0.2.50:2379']}}}}\n")
}

fn small_and_drifted() -> String {
    format!("{}apiServer: {{certSANs: [drift.example.com]}}\n", small())
}

fn fresh() -> Node {
    let node = Node::of(&small());
    node.settings(BOOTSTRAP);
    node
}

/// A node on which everything is in place, to be copied.
fn whole() -> Node {
    let node = fresh();
    node.ask().done();
    node
}

/// A copy of it where the name of one pair and the endpoint of the kubeconfigs have drifted.
fn drifted(whole: &Node) -> Node {
    let node = whole.copied();
    node.settings(BOOTSTRAP);
    fs::remove_file(node.outside("log")).unwrap();
    node.configure(&small_and_drifted().replace("api.example.com", "other.example.com"));
    node
}

fn names(node: &Node) -> Vec<CertName> {
    let mut names = FEW.to_vec();
    if node.path("/etc/kubernetes/super-admin.conf").exists() {
        names.push(CertName::SuperAdminConf);
    }
    names
}

/// A run that is killed at a place; false when it never came there.
fn killed(node: &Node, place: &str) -> bool {
    let ran = Ran::of(node.ask_command("0s").env("NODEPKI_FAILPOINT", place));
    match (ran.code, ran.signal) {
        (_, Some(9)) => true,
        (Some(0 | 75), _) => false,
        _ => panic!("{place}: {}", ran.said()),
    }
}

/// No key stands beside another key's certificate, at any moment that a component could look.
fn assert_no_mixed_pair(node: &Node, place: &str, old: &BTreeMap<CertName, String>) {
    for name in FEW {
        let Some((chain, key)) = node.leaf(name) else {
            assert!(!old.contains_key(&name), "{place}: {name} is gone");
            continue;
        };
        // Between two renames a pair is torn for an instant; the next start mends it from the journal.
        let whole = chain.leaf().public_key() == key.public_key();
        assert!(
            whole || node.path("/var/lib/nodepki/journal.json").exists(),
            "{place}: {name} is torn for good"
        );
    }
}

/// What must hold when the run after a crash has ended.
fn assert_finished(node: &Node, place: &str) {
    let all = names(node);
    node.assert_sound(&all);
    let seen = node.keys_seen();
    for name in &all {
        if let Some(keys) = seen.get(name.as_str()) {
            assert_eq!(keys.len(), 1, "{place}: {name} has one key");
            assert_eq!(
                *keys,
                [node.key_in_place(*name)],
                "{place}: {name}: the key that was sent is the one in place"
            );
        }
    }
    // The certificate in place is the one that was issued first: asking again with the same identity makes no second.
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
    assert_eq!(issued.len(), slots.len(), "{place}: one request a slot");
    assert_eq!(
        leftovers(&node.root()),
        [] as [std::path::PathBuf; 0],
        "{place}"
    );
    assert!(
        fs::read_dir(node.path("/var/lib/nodepki/pending")).map_or(0, |entries| entries.count())
            == 0,
        "{place}: nothing is pending"
    );
    let settled = node.etc();
    let exchanges = node.exchanges().len();
    node.ask().done();
    settled.unchanged(&node.etc());
    assert_eq!(
        node.exchanges().len(),
        exchanges,
        "{place}: nobody is asked any more"
    );
}

fn keys(node: &Node) -> BTreeMap<CertName, String> {
    FEW.into_iter()
        .filter(|name| node.leaf(*name).is_some())
        .map(|name| (name, node.key_in_place(name)))
        .collect()
}

/// Kills a run at a place and lets the next one finish.
fn crash(node: &Node, place: &str) {
    crash_after(node, place, keys(node));
}

/// The same, for a node on which these keys were in place when everything was well.
fn crash_after(node: &Node, place: &str, old: BTreeMap<CertName, String>) {
    assert!(killed(node, place), "{place} is never reached");
    assert_no_mixed_pair(node, place, &old);
    let sent = node.keys_seen();
    node.ask().done();
    // Every key that the signer saw before the crash is the one that it saw after it.
    for (slot, keys) in sent {
        assert_eq!(node.keys_seen()[&slot], keys, "{place}: {slot}");
    }
    assert_finished(node, place);
    for (name, key) in old {
        if name == REPLACED {
            assert_ne!(node.key_in_place(name), key, "{place}: {name} is new");
        } else {
            assert_eq!(
                node.key_in_place(name),
                key,
                "{place}: {name} is the old one"
            );
        }
    }
}

/// Places that a run without a pending answer and without an earlier crash comes by.
fn in_every_run() -> Vec<&'static str> {
    failpoint::AGENT
        .iter()
        .chain(failpoint::STORE)
        .copied()
        .filter(|place| !place.starts_with("recover:"))
        .filter(|place| {
            !matches!(
                *place,
                "request:pending" | "pending:set-aside" | "finish:remove-one"
            )
        })
        .collect()
}

#[test]
fn a_fresh_node_killed_at_every_place() {
    for place in in_every_run() {
        crash(&fresh(), place);
    }
    // At later hits of the places that come more than once.
    for place in [
        "request:answered:4",
        "request:submitting:3",
        "commit:staged-one:5",
        "finish:rename-one:7",
        "pending:ticket-updated:9",
    ] {
        crash(&fresh(), place);
    }
}

#[test]
fn a_node_with_old_certificates_killed_at_every_place() {
    let whole = whole();
    for place in in_every_run() {
        crash(&drifted(&whole), place);
    }
    for place in [
        "finish:rename-one:2",
        "finish:rename-one:3",
        "commit:staged-one:2",
    ] {
        crash(&drifted(&whole), place);
    }
}

#[test]
fn a_recovery_killed_at_every_place() {
    let whole = whole();
    for place in failpoint::STORE
        .iter()
        .filter(|place| place.starts_with("recover:"))
    {
        let node = drifted(&whole);
        let old = keys(&node);
        // Before the point of commit there is something to sweep, after it something to finish.
        let first = if place.starts_with("recover:swept") {
            "commit:staged"
        } else {
            "finish:rename-one:2"
        };
        assert!(killed(&node, first));
        crash_after(&node, place, old);
    }
    // And again and again in the middle of the same commit.
    let node = drifted(&whole);
    assert!(killed(&node, "commit:journalled"));
    for _ in 0..3 {
        assert!(killed(&node, "finish:rename-one"));
    }
    node.ask().done();
    assert_finished(&node, "thrice");
}

#[test]
fn a_pending_request_killed_before_and_after_its_ticket() {
    for place in ["request:pending", "request:answered", "request:submitting"] {
        let node = fresh();
        node.signer_does("apiserver", "pending");
        assert!(killed(&node, place), "{place}");
        let asked = node.keys_seen();
        assert!(matches!(node.ask().code, Some(75)), "{place}");
        node.signer_behaves();
        node.ask().done();
        for (slot, keys) in asked {
            assert_eq!(node.keys_seen()[&slot], keys, "{place}");
        }
        assert_finished(&node, place);
    }
}

#[test]
fn a_wish_that_changes_killed_while_the_old_request_is_put_aside() {
    let node = fresh();
    node.signer_does("apiserver", "pending");
    node.ask().ended(75);
    node.configure(&small_and_drifted());
    assert!(killed(&node, "pending:set-aside"));
    node.signer_behaves();
    node.ask().done();
    node.assert_sound(&names(&node));
    assert_eq!(node.keys_seen()["apiserver"].len(), 2, "one for each wish");
    assert_eq!(leftovers(&node.root()), [] as [std::path::PathBuf; 0]);
}

#[test]
fn every_place_of_the_agent_is_reached() {
    for place in failpoint::AGENT {
        let node = fresh();
        node.signer_does(
            "apiserver",
            if *place == "request:pending" {
                "pending"
            } else {
                "sign"
            },
        );
        assert!(killed(&node, place), "{place} is never reached");
    }
}

#[test]
fn faults_of_the_disk_lose_nothing_and_are_told() {
    let whole = whole();
    for (error, code, words) in [
        (
            "ENOSPC",
            75,
            "free some space (see `df -h` and `df -i`) and run again",
        ),
        (
            "EROFS",
            77,
            "the file system is read-only; mount it read-write (`mount -o remount,rw ...`), or name the directory in ReadWritePaths= of the systemd unit that this is run by, and run again",
        ),
        ("EIO", 75, "EIO: I/O error"),
        (
            "EACCES",
            77,
            "run as root, and look for a security policy (SELinux, AppArmor) if this is root",
        ),
    ] {
        for place in failpoint::STORE {
            // The clean-up behind a commit may fail without failing it; recovery is another run.
            if place.starts_with("recover:")
                || matches!(*place, "pending:set-aside" | "finish:remove-one")
            {
                continue;
            }
            // One error shows every place; the others show the exit codes.
            if error != "ENOSPC"
                && !matches!(
                    *place,
                    "pending:created" | "commit:staged" | "finish:rename-one"
                )
            {
                continue;
            }
            let node = drifted(&whole);
            let before = node.etc();
            let armed = format!("{place}={error}");
            let ran = Ran::of(node.ask_command("0s").env("NODEPKI_FAILPOINT", &armed));
            if ran.code != Some(0) {
                // After the point of commit the next run finishes, whatever the error.
                let code = match place.starts_with("finish:") {
                    true => 75,
                    false => code,
                };
                ran.ended(code).says(words).says("nodepki: ");
                let promise = ran.stderr.clone();
                if promise.contains("nothing was changed") || place.starts_with("pending:") {
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
fn a_run_killed_while_its_signer_hangs() {
    let node = Node::new();
    node.signer_does("etcd-peer", "hang");
    let mut run = node
        .ask_command("60s")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| node.keys_seen().len() == EVERYTHING.len());
    run.kill().unwrap();
    run.wait().unwrap();
    let asked = node.keys_seen();
    assert_eq!(asked.len(), EVERYTHING.len());
    node.signer_behaves();
    node.ask().done();
    assert_eq!(node.keys_seen(), asked, "the same keys");
    node.assert_sound(&EVERYTHING);
    for name in EVERYTHING {
        assert_eq!(asked[name.as_str()], [node.key_in_place(name)], "{name}");
    }
    assert_eq!(leftovers(&node.root()), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_local_signer_forgets_with_the_process() {
    // Nothing is synced before the commit there, and nothing needs to be.
    for place in [
        "request:key-kept",
        "request:verified",
        "run:before-commit",
        "finish:rename-one:3",
    ] {
        let node = Node::of(&small());
        let ran = Ran::of(
            node.with_local(&["bootstrap"], &[])
                .env("NODEPKI_FAILPOINT", place),
        );
        assert_eq!(ran.signal, Some(9), "{place}");
        node.bootstrap().done();
        node.assert_sound(&names(&node));
        assert_eq!(
            leftovers(&node.root()),
            [] as [std::path::PathBuf; 0],
            "{place}"
        );
        assert!(node.authority(Authority::Ca).bundle().certificates().len() == 1);
    }
}

// ---- csr import ----

/// `csr import` of `dir`, killed at `place` unless that is empty.
fn import(node: &Node, dir: &std::path::Path, place: &str) -> Ran {
    let mut command = node.configured(["csr", "import"]);
    command.arg(dir);
    if !place.is_empty() {
        command.env("NODEPKI_FAILPOINT", place);
    }
    Ran::of(&mut command)
}

/// A node with a signed bundle of its own requests beside it.
fn with_signed_bundle() -> Node {
    let node = fresh();
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

/// The bundle with the private keys beside the certificates, as kubeadm lays them out, and nothing pending on the node.
fn with_keys(node: &Node) {
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
fn finishes_import_that_was_killed_at_any_place_and_accepts_repetition() {
    let exported = with_signed_bundle();
    let with_tree_keys = exported.copied();
    with_keys(&with_tree_keys);
    for (kind, source) in [("bundle", &exported), ("tree with keys", &with_tree_keys)] {
        let bundle = source.outside("bundle");
        let mut reached = 0;
        for place in failpoint::STORE.iter().chain(failpoint::AGENT) {
            for hit in [1, 2, 5] {
                let place = format!("{place}:{hit}");
                let node = source.copied();
                let ran = import(&node, &bundle, &place);
                match ran.signal {
                    Some(9) => reached += 1,
                    _ => {
                        ran.done();
                        break;
                    }
                }
                let ran = import(&node, &bundle, "");
                assert_eq!(ran.code, Some(0), "{kind}, {place}: {}", ran.said());
                node.assert_sound(&names(&node));
                assert_eq!(
                    leftovers(&node.root()),
                    [] as [std::path::PathBuf; 0],
                    "{kind}, {place}"
                );
                let settled = node.etc();
                import(&node, &bundle, "").done();
                settled.unchanged(&node.etc());
                assert!(node.pending_keys().is_empty(), "{kind}, {place}");
            }
        }
        assert!(reached > 20, "{kind}: {reached} places were reached");
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
        .says("there is no certificate in it for any request of this node");
    import(&node, &node.outside("bundle"), "").done();
    // Another node's bundle changes nothing on a node that needs nothing.
    let settled = node.etc();
    import(&node, &other.outside("bundle"), "").done();
    settled.unchanged(&node.etc());
}
