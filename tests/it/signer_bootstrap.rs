//! Every kind of signer and a whole control-plane node: the real binary against the kind's rig.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
#[cfg(feature = "failpoints")]
use std::process::Stdio;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::Kind;
#[cfg(feature = "failpoints")]
use nodepki::signer::{Lookup, Resubmit};

use crate::node::{INIT, Node, Ran};
use crate::rig::{Rig, rig};

/// A node without anything but the authorities' certificates, and the settings for the rig's signer.
pub(crate) fn node(rig: &dyn Rig) -> Node {
    let node = Node::new();
    for authority in Authority::ALL {
        let file = format!("{}.crt", authority.base_name());
        let pem = fs::read(rig.authorities().join(&file)).unwrap();
        node.write(format!("/etc/kubernetes/pki/{file}"), &pem);
    }
    fs::write(node.outside("config.yaml"), rig.settings()).unwrap();
    node
}

/// Runs `bootstrap` until it is done, the people at the signer acting between runs.
pub(crate) fn complete(node: &Node, rig: &dyn Rig) {
    let mut ran = Ran::of(&mut node.ask_command("1s"));
    for _ in 0..3 {
        // A certificate that still serves does not make a run end as pending.
        if ran.code == Some(0) && !ran.stdout.contains("pending") {
            break;
        }
        rig.approve();
        ran = Ran::of(&mut node.ask_command("1s"));
    }
    ran.done().says_not("pending");
}

/// The kinds that know their authorities for longer than a process.
fn lasting() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| *kind != Kind::Embedded)
}

#[test]
fn a_whole_control_plane_node_and_then_nothing_more() {
    for kind in lasting() {
        let rig = rig(kind);
        let node = node(rig.as_ref());
        complete(&node, rig.as_ref());
        node.assert_sound(&CertName::KUBEADM);
        let (sent, before) = (rig.sent(), node.snapshot());
        Ran::of(&mut node.ask_command("0s")).done();
        assert_eq!(rig.sent(), sent, "{kind} was asked again");
        before.unchanged(&node.snapshot());
    }
}

/// The files that the settings name and that only their owner may read. An AppRole's role_id is not secret: it is the
/// user name to the secret_id.
fn secrets(settings: &str) -> Vec<PathBuf> {
    let words = settings.split(|c: char| c.is_whitespace() || "{}[],'\"".contains(c));
    let paths = words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from);
    let mode = |path: &PathBuf| Some(fs::metadata(path).ok()?.mode());
    let mut secrets: Vec<PathBuf> = paths
        .filter(|path| !path.ends_with("role-id"))
        .filter(|path| path.is_file() && mode(path).is_some_and(|mode| mode & 0o777 == 0o600))
        .collect();
    secrets.sort();
    secrets.dedup();
    secrets
}

#[test]
fn refuses_each_secret_that_other_users_can_read() {
    let mut without = Vec::new();
    for kind in lasting() {
        let rig = rig(kind);
        let secrets = secrets(&rig.settings());
        if secrets.is_empty() {
            without.push(kind.as_str());
        }
        for secret in secrets {
            let node = node(rig.as_ref());
            let set = |mode| fs::set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
            set(0o644);
            let ran = Ran::of(&mut node.ask_command("0s"));
            set(0o600);
            let fix = format!("chmod 600 {}", secret.display());
            println!("{kind}: {fix}");
            ran.ended(65).says("mode 0644").says(&fix);
        }
    }
    assert_eq!(without, ["puppet", "exec", "directory", "local"]);
}

/// Ends the process with SIGKILL as soon as the first request was taken, and where the signer pends, as soon as the
/// first ticket is on disk.
#[cfg(feature = "failpoints")]
#[test]
fn killed_between_submit_and_poll_the_next_run_goes_on_with_the_same_keys() {
    for kind in lasting() {
        for place in ["request:answered", "request:pending"] {
            let rig = rig(kind);
            let signer = rig.open(Authority::EtcdCa);
            let (pends, lookup, resubmit) = {
                let caps = signer.caps();
                (caps.pends, caps.lookup, caps.resubmit)
            };
            if place == "request:pending" && !pends {
                continue;
            }
            let node = node(rig.as_ref());
            let mut killed = node.ask_command("1s");
            killed.env("NODEPKI_FAILPOINT", place).stdout(Stdio::null());
            let ran = Ran::of(&mut killed);
            assert_eq!(ran.signal, Some(9), "{kind} {place}: {}", ran.said());
            let keys = node.pending_keys();
            assert!(!keys.is_empty(), "{kind} {place}");
            complete(&node, rig.as_ref());
            node.assert_sound(&CertName::KUBEADM);
            for (name, key) in &keys {
                assert_eq!(node.key_in_place(*name), *key, "{kind} {place} {name}");
            }
            let adopts = resubmit == Resubmit::Adopts && lookup == Lookup::ByName;
            if adopts {
                let all = rig.sent();
                let mut once = all.clone();
                once.sort();
                once.dedup();
                assert_eq!(
                    once.len(),
                    all.len(),
                    "{kind} {place}: asked twice: {all:?}"
                );
            }
        }
    }
}

/// With another key algorithm the same names are wanted: signers that renew are given the old certificate in exchange.
#[test]
fn another_key_algorithm_replaces_everything_in_place() {
    for kind in lasting() {
        let rig = rig(kind);
        let node = node(rig.as_ref());
        complete(&node, rig.as_ref());
        node.configure(&INIT.replace("ECDSA-P256", "RSA-2048"));
        rig.make_room();
        complete(&node, rig.as_ref());
        node.assert_sound(&CertName::KUBEADM);
        for name in CertName::KUBEADM {
            let (chain, _) = node.leaf(name).unwrap();
            let key = chain.leaf().public_key().key_type().to_string();
            assert_eq!(key, "RSA-2048", "{kind} {name}");
        }
    }
}
