//! What must hold after an interrupted run, and after the run that follows: judged by OpenSSL, and by comparison with an
//! undisturbed run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::scenarios::Scenario;
use super::tree::{Content, Entry, Tree, directory};
use crate::node::{Node, Ran};

/// The paths that a run leaves unchanged, creates, replaces and removes, according to an undisturbed run.
pub(super) struct Reference {
    pub(super) initial: Tree,
    /// After the run, or after the runs that complete it.
    pub(super) completed: Tree,
}

/// Kubernetes' files, in a [`Tree`].
const PKI: &str = "root/etc/kubernetes/pki";
const KUBERNETES: &str = "root/etc/kubernetes";
const JOURNAL: &str = "root/var/lib/nodepki/journal.json";

/// A certificate and its key.
struct Pair {
    name: String,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Returns the pairs of files and the kubeconfigs of a tree, read without nodepki.
fn pairs(tree: &Tree) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (path, _) in tree.below(KUBERNETES) {
        let Some(bytes) = tree.bytes(path) else {
            continue;
        };
        let name = path.strip_prefix(KUBERNETES).unwrap().display().to_string();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("crt") => {
                if let Some(key) = tree.bytes(path.with_extension("key")) {
                    pairs.push(Pair {
                        name,
                        certificate: bytes.to_vec(),
                        key: key.to_vec(),
                    });
                }
            }
            Some("conf") => {
                let text = String::from_utf8_lossy(bytes);
                let data = |field: &str| {
                    let (_, rest) = text.split_once(field)?;
                    let data = rest.lines().next()?.trim();
                    BASE64_STANDARD.decode(data.trim_matches('"')).ok()
                };
                let certificate = data("client-certificate-data:");
                if let (Some(certificate), Some(key)) = (certificate, data("client-key-data:")) {
                    pairs.push(Pair {
                        name,
                        certificate,
                        key,
                    });
                }
            }
            _ => {}
        }
    }
    pairs
}

/// Returns the CA file that verifies a certificate, from the file's name as kubeadm has it.
fn authority_of(name: &str) -> Option<&'static str> {
    match name {
        "pki/ca.crt" | "pki/front-proxy-ca.crt" | "pki/etcd/ca.crt" => None,
        "pki/front-proxy-client.crt" => Some("front-proxy-ca.crt"),
        "pki/apiserver-etcd-client.crt" => Some("etcd/ca.crt"),
        name if name.starts_with("pki/etcd/") => Some("etcd/ca.crt"),
        _ => Some("ca.crt"),
    }
}

/// Runs OpenSSL; the error text if it fails.
fn openssl(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let output = std::process::Command::new("openssl")
        .args(arguments)
        .env("SSL_CERT_FILE", "/dev/null")
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(Ran::from(output).said()),
    }
}

/// What OpenSSL has accepted: the same bytes need no second verification.
struct Accepted(Mutex<BTreeSet<Vec<u8>>>);

impl Accepted {
    const fn new() -> Self {
        Accepted(Mutex::new(BTreeSet::new()))
    }

    /// Runs the verification unless these bytes were accepted before.
    fn verify(
        &self,
        parts: [&[u8]; 2],
        verification: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let digest = Sha256::new()
            .chain_update(parts[0].len().to_be_bytes())
            .chain_update(parts[0])
            .chain_update(parts[1])
            .finalize()
            .to_vec();
        if self.0.lock().unwrap().contains(&digest) {
            return Ok(());
        }
        verification()?;
        self.0.lock().unwrap().insert(digest);
        Ok(())
    }
}

/// Writes the files `first` and `second` for OpenSSL, and returns their paths.
fn scratch(first: &[u8], second: &[u8]) -> (TempDir, String, String) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let paths = (path("first"), path("second"));
    fs::write(&paths.0, first).unwrap();
    fs::write(&paths.1, second).unwrap();
    (dir, paths.0, paths.1)
}

/// Returns an error unless OpenSSL says that the key belongs to the certificate.
fn match_pair(pair: &Pair) -> Result<(), String> {
    static MATCHED: Accepted = Accepted::new();
    MATCHED.verify([&pair.certificate, &pair.key], || {
        let (_dir, certificate, key) = scratch(&pair.certificate, &pair.key);
        let of_certificate = openssl(&["x509", "-noout", "-pubkey", "-in", &certificate])?;
        let of_key = openssl(&["pkey", "-pubout", "-in", &key])?;
        match of_certificate == of_key {
            true => Ok(()),
            false => Err(format!("{}: certificate and key differ", pair.name)),
        }
    })
}

/// Returns an error unless OpenSSL verifies the certificate, with its dates, under its CA in the tree.
fn verify_chain(tree: &Tree, pair: &Pair) -> Result<(), String> {
    static VERIFIED: Accepted = Accepted::new();
    let Some(authority) = authority_of(&pair.name) else {
        return Ok(());
    };
    let path = Path::new(PKI).join(authority);
    let Some(authority) = tree.bytes(&path) else {
        return Err(format!("{} is missing", path.display()));
    };
    VERIFIED.verify([&pair.certificate, authority], || {
        let (_dir, certificate, ca) = scratch(&pair.certificate, authority);
        let arguments = [
            "verify",
            "-CAfile",
            &ca,
            "-untrusted",
            &certificate,
            &certificate,
        ];
        let result = openssl(&arguments).map(drop);
        result.map_err(|error| format!("{}: {error}", pair.name))
    })
}

/// Judges the files as they are after a crash, before any further run.
///
/// # Errors
/// If a pair is mixed and no journal repairs it, or a file that was complete is torn or gone.
pub(super) fn interrupted(reference: &Reference, tree: &Tree) -> Result<(), String> {
    let has_journal = tree.0.contains_key(Path::new(JOURNAL));
    if !has_journal {
        for pair in pairs(tree) {
            match_pair(&pair).map_err(|error| format!("after the interruption: {error}"))?;
        }
    }
    // Every file of the user, and every file that the run replaces, is whole.
    for (path, entry) in &reference.initial.0 {
        let is_kept = reference.completed.0.get(path) == Some(entry);
        if is_kept && is_of_node(path) && tree.0.get(path) != Some(entry) {
            let now = tree.0.get(path).map(shown);
            return Err(format!(
                "after the interruption: {} changed: {now:?}",
                path.display()
            ));
        }
        let is_replaced = reference.completed.0.contains_key(path);
        if is_replaced && !tree.0.contains_key(path) && path.starts_with(KUBERNETES) {
            return Err(format!(
                "after the interruption: {} is gone",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Judges the files after the run that follows.
///
/// # Errors
/// The first difference from what an undisturbed run leaves.
pub(super) fn completed(
    scenario: &Scenario,
    reference: &Reference,
    node: &Node,
) -> Result<(), String> {
    let tree = Tree::of(&directory(node));
    for pair in pairs(&tree) {
        match_pair(&pair)?;
        verify_chain(&tree, &pair)?;
    }
    same_shape(&reference.completed, &tree)?;
    for (path, entry) in &reference.initial.0 {
        let is_kept = reference.completed.0.get(path) == Some(entry);
        if is_kept && is_of_node(path) && tree.0.get(path) != Some(entry) {
            return Err(format!("{} is not kept", path.display()));
        }
    }
    replaced(scenario, reference, &tree)?;
    (scenario.judge)(node, reference)
}

/// Returns an error unless the files that an undisturbed run replaces are replaced.
///
/// # Errors
/// The first file that still has its former content, or content other than that of the undisturbed run if that is fixed.
pub(super) fn replaced(
    scenario: &Scenario,
    reference: &Reference,
    tree: &Tree,
) -> Result<(), String> {
    for (path, entry) in reference.completed.below("root") {
        if path.starts_with("root/var/lib/nodepki") || !is_of_node(path) {
            continue;
        }
        let now = tree.0.get(path);
        let before = reference.initial.0.get(path);
        if before != Some(entry) && before.is_some() && now == before {
            return Err(format!("{} has its former content", path.display()));
        }
        if now.is_none() {
            return Err(format!("{} is missing", path.display()));
        }
        let is_directory = entry.content == Content::Directory;
        if scenario.is_deterministic && !is_directory && now != Some(entry) {
            return Err(format!(
                "{} differs from that of an undisturbed run",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Files of the machine under test. The kubeadm configuration and the signer belong to the test.
fn is_of_node(path: &Path) -> bool {
    path.starts_with("root") && !VARYING.iter().any(|file| path == Path::new(file))
}

/// Files whose presence or content depends on timing.
const VARYING: [&str; 1] = ["root/var/lib/nodepki/lock"];

/// Returns true for files that only an interrupted run leaves: those set aside, and the requests and answers in a drop
/// directory if the run ended after the commit. A new request replaces these.
fn is_left_on_purpose(path: &Path) -> bool {
    let text = path.display().to_string();
    text.contains("/var/lib/nodepki/aside") || text.contains("/var/lib/drop/")
}

fn shown(entry: &Entry) -> String {
    match &entry.content {
        Content::File(bytes) => format!("{:o}, {} bytes", entry.mode, bytes.len()),
        other => format!("{:o}, {other:?}", entry.mode),
    }
}

/// Returns an error unless both trees have the same paths with the same kinds and modes.
fn same_shape(expected: &Tree, tree: &Tree) -> Result<(), String> {
    let shape = |tree: &Tree| -> BTreeMap<String, (bool, u32)> {
        let entries = tree.below("root");
        let kept = entries.filter(|(path, _)| !is_left_on_purpose(path));
        kept.map(|(path, entry)| {
            let is_directory = entry.content == Content::Directory;
            (without_time(path), (is_directory, entry.mode))
        })
        .collect()
    };
    let (expected, found) = (shape(expected), shape(tree));
    let show = |found: Option<&(bool, u32)>| match found {
        Some((true, mode)) => format!("a directory {mode:o}"),
        Some((false, mode)) => format!("a file {mode:o}"),
        None => "nothing".to_owned(),
    };
    let paths: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for path in paths {
        let (wanted, there) = (expected.get(path), found.get(path));
        // A directory is created with mode 0700, and an interrupted run may leave it so.
        let is_stricter = matches!((wanted, there), (Some((true, _)), Some((true, 0o700))));
        if wanted != there && !is_stricter {
            return Err(format!(
                "{path}: an undisturbed run leaves {}, this one {}",
                show(wanted),
                show(there)
            ));
        }
    }
    Ok(())
}

/// Replaces digits, since names such as `kubelet-client-2026-01-01-00-00-00.pem` differ between runs.
fn without_time(path: &Path) -> String {
    let text = path.display().to_string();
    let Some((stem, time)) = text.split_once("kubelet-client-2") else {
        return text;
    };
    let time: String = time
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    format!("{stem}kubelet-client-2{time}")
}

/// Judges the exit status and the messages of a run in which a system call failed.
///
/// # Errors
/// For a panic, a signal, a status that does not fit, and success without the work.
pub(super) fn failed_call(
    scenario: &Scenario,
    reference: &Reference,
    error: &str,
    ran: &Ran,
    tree: &Tree,
) -> Result<(), String> {
    let said = ran.said();
    if said.contains("panicked") || ran.code == Some(101) {
        return Err(format!("panic:\n{said}"));
    }
    let Some(code) = ran.code else {
        return Err(format!("signal {:?}:\n{said}", ran.signal));
    };
    if scenario.ends.contains(&code) {
        // Success, or the status of an undisturbed run such as 75 for pending requests.
        if code == 0 {
            replaced(scenario, reference, tree)
                .map_err(|what| format!("status 0, but {what}:\n{said}"))?;
            for pair in pairs(tree) {
                match_pair(&pair).map_err(|what| format!("status 0, but {what}:\n{said}"))?;
            }
        }
        return Ok(());
    }
    let allowed: &[i32] = match error {
        "EINTR" => &[],
        // 78: the drop directory of a signer is part of the configuration.
        "EROFS" => &[75, 77, 78],
        _ => &[75],
    };
    if !allowed.contains(&code) {
        return Err(format!("status {code} after {error}:\n{said}"));
    }
    let cause = match error {
        "EROFS" => "the file system is read-only",
        other => other,
    };
    if !ran.stderr.contains("nodepki: ") && !said.contains(cause) {
        return Err(format!("no message names {error}:\n{said}"));
    }
    Ok(())
}

/// Returns the paths of files in `tree` that `initial` does not have, for messages.
pub(super) fn new_paths(initial: &Tree, tree: &Tree) -> Vec<PathBuf> {
    let new = tree.0.keys().filter(|path| !initial.0.contains_key(*path));
    new.cloned().collect()
}
