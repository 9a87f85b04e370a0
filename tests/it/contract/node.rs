//! Clauses about a whole control-plane node: the real binary with the kind's rig.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
#[cfg(feature = "failpoints")]
use std::process::Stdio;

use nodepki::kube::names::CertName;
use nodepki::signer::SignerKind;
#[cfg(feature = "failpoints")]
use nodepki::{
    kube::names::Authority,
    signer::{RequestLookup, Resubmit},
};

use crate::node::Ran;
use crate::rig::{Rig, complete, node};
use crate::time::eventually;

/// The kinds whose settings do not name a secret of their own.
const WITHOUT_SECRETS: [SignerKind; 4] = [
    SignerKind::Puppet,
    SignerKind::Exec,
    SignerKind::Directory,
    SignerKind::Local,
];

/// Least length of a word in a secret file that cannot also occur elsewhere, such as a key id or a JSON key.
const MIN_SECRET_WORD: usize = 16;

/// A second run changes nothing.
pub(super) fn bootstraps_control_plane_once(rig: &dyn Rig) {
    let node = node(rig);
    complete(&node, rig);
    node.assert_sound(&CertName::KUBEADM);
    let (sent, before) = (rig.sent(), node.snapshot());
    node.ask().done();
    assert_eq!(rig.sent(), sent);
    before.unchanged(&node.snapshot());
}

pub(super) fn passes_preflight_without_request_or_change(rig: &dyn Rig) {
    let node = node(rig);
    let (sent, before) = (rig.sent(), node.snapshot());
    let ran = Ran::of(&mut node.configured(["preflight", "--wait", "0s"]));
    ran.done().says("; next: nodepki bootstrap");
    assert_eq!(rig.sent(), sent);
    before.unchanged(&node.snapshot());
    complete(&node, rig);
    Ran::of(&mut node.configured(["preflight", "--wait", "0s"]))
        .done()
        .says_not("next:");
}

pub(super) fn sends_requests_once_while_waiting_for_approval(rig: &dyn Rig) {
    let node = node(rig);
    let run = || node.ask();
    run().ended(75);
    let sent = rig.sent();
    let carried = CertName::KUBEADM.iter().filter(|name| rig.carries(**name));
    assert_eq!(sent.len(), carried.count(), "{sent:?}");
    run().ended(75);
    assert_eq!(rig.sent(), sent);
    rig.approve();
    run().done();
    node.assert_sound(&CertName::KUBEADM);
    assert!(rig.sent().len() <= sent.len(), "{:?}", rig.sent());
}

/// Returns the files with mode 0600 that settings name. An AppRole's role_id is not secret: it is the user name to the
/// secret_id.
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

/// A copy of the secret is readable: other tests use the secret itself.
pub(super) fn refuses_each_secret_that_other_users_can_read(rig: &dyn Rig) {
    let secrets = secrets(&rig.settings());
    assert_eq!(secrets.is_empty(), WITHOUT_SECRETS.contains(&rig.kind()));
    for secret in secrets {
        let node = node(rig);
        let copy = node.outside("readable-secret");
        fs::copy(&secret, &copy).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o644)).unwrap();
        let [of_secret, of_copy] = [&secret, &copy].map(|path| path.to_str().unwrap());
        let settings = rig.settings().replace(of_secret, of_copy);
        fs::write(node.outside("config.yaml"), settings).unwrap();
        let fix = format!("chmod 600 {of_copy}");
        node.ask().ended(65).says("mode 0644").says(&fix);
    }
}

pub(super) fn keeps_secrets_out_of_verbose_output(rig: &dyn Rig) {
    let node = node(rig);
    // A run that waits for nothing ends if the server is busy for a few seconds.
    let ran = eventually(|| {
        let ran = Ran::of(node.ask_command("0s").arg("-vv"));
        match ran.code {
            Some(0 | 75) => Ok(ran),
            _ => Err(ran.said()),
        }
    });
    // The encoded start of a JSON Web Token.
    ran.says_not("eyJ").says_not("PRIVATE KEY");
    for secret in secrets(&rig.settings()) {
        let text = fs::read_to_string(&secret).unwrap();
        let private = match text.split_once("PRIVATE KEY-----") {
            Some((_, key)) => key,
            None => &text,
        };
        let words = private.split(|c: char| c.is_whitespace() || "{}[],:\"".contains(c));
        for word in words.filter(|word| word.len() >= MIN_SECRET_WORD) {
            ran.says_not(word);
        }
    }
}

/// Ends the process with SIGKILL as soon as the first request is accepted and, for a kind that pends, as soon as the
/// first ticket is on disk. A signer in the killed process has no request that could be continued.
#[cfg(feature = "failpoints")]
pub(super) fn continues_with_same_keys_after_kill(rig: &dyn Rig) {
    let kind = rig.kind();
    let signer = rig.open(Authority::EtcdCa);
    let caps = signer.caps();
    // Certificates that the kind cannot sign are signed in the process, perhaps first.
    let names = CertName::KUBEADM.into_iter();
    let foreign = names.filter(|name| !rig.carries(*name)).count();
    let mut places = vec![format!("request:answered:{}", foreign + 1)];
    if caps.pends {
        places.push("request:pending".to_owned());
    }
    for place in &places {
        let rig = crate::rig::rig(kind);
        let node = node(rig.as_ref());
        let mut killed = node.ask_command("1s");
        killed.env("NODEPKI_FAILPOINT", place).stdout(Stdio::null());
        let ran = Ran::of(&mut killed);
        assert_eq!(ran.signal, Some(9), "{place}: {}", ran.said());
        let keys = node.pending_keys();
        assert_eq!(keys.is_empty(), kind.is_in_process(), "{place}");
        complete(&node, rig.as_ref());
        node.assert_sound(&CertName::KUBEADM);
        for (name, key) in &keys {
            assert_eq!(node.key_in_place(*name), *key, "{place} {name}");
        }
        if caps.resubmit == Resubmit::Adopts && caps.lookup == RequestLookup::ByName {
            assert_nothing_sent_twice(rig.as_ref());
        }
    }
}

#[track_caller]
pub(super) fn assert_nothing_sent_twice(rig: &dyn Rig) {
    let mut sent = rig.sent();
    let all = sent.len();
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), all, "{:?}", rig.sent());
}

/// The desired names stay the same, so a kind that renews receives the old certificate in exchange.
pub(super) fn replaces_everything_for_another_key_algorithm(rig: &dyn Rig) {
    let node = node(rig);
    complete(&node, rig);
    node.change_keys("RSA-2048");
    rig.make_room();
    complete(&node, rig);
    node.assert_sound(&CertName::KUBEADM);
    for name in CertName::KUBEADM {
        let (chain, _) = node.leaf(name).unwrap();
        let key = chain.leaf().public_key().key_type().to_string();
        assert_eq!(key, "RSA-2048", "{name}");
    }
}
