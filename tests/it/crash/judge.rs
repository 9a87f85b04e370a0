//! What must hold after an interrupted run, and after the run that follows: judged by OpenSSL, and by comparison with an
//! undisturbed run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nodepki::kube::names::Authority;
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
fn openssl(arguments: &[impl AsRef<OsStr>]) -> Result<Vec<u8>, String> {
    let output = std::process::Command::new("openssl")
        .args(arguments)
        .env("SSL_CERT_FILE", "/dev/null")
        .output()
        .unwrap();
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(Ran::from(output).said())
    }
}

/// What OpenSSL has accepted: the same bytes need no second verification.
struct Accepted(Mutex<BTreeSet<Vec<u8>>>);

impl Accepted {
    const fn new() -> Self {
        Accepted(Mutex::new(BTreeSet::new()))
    }

    fn has(&self, parts: [&[u8]; 2]) -> bool {
        self.0.lock().unwrap().contains(&digest(parts))
    }

    fn add(&self, parts: [&[u8]; 2]) {
        self.0.lock().unwrap().insert(digest(parts));
    }
}

fn digest(parts: [&[u8]; 2]) -> Vec<u8> {
    Sha256::new()
        .chain_update(parts[0].len().to_be_bytes())
        .chain_update(parts[0])
        .chain_update(parts[1])
        .finalize()
        .to_vec()
}

/// Files for OpenSSL.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Scratch(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    /// Writes a file, and returns its path.
    fn file(&self, name: impl AsRef<Path>, bytes: &[u8]) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Returns an error unless OpenSSL says that each key belongs to its certificate.
///
/// A process of OpenSSL costs as much as a run of nodepki, so one process examines all pairs: it refuses to sign
/// with a key that does not belong to the signer's certificate (`CMS_add1_signer` in `crypto/cms/cms_sd.c`).
fn match_pairs(pairs: &[Pair]) -> Result<(), String> {
    static MATCHED: Accepted = Accepted::new();
    let is_new = |pair: &&Pair| !MATCHED.has([&pair.certificate, &pair.key]);
    let new: Vec<&Pair> = pairs.iter().filter(is_new).collect();
    if new.is_empty() {
        return Ok(());
    }
    let scratch = Scratch::new();
    let mut arguments: Vec<String> = ["cms", "-sign", "-binary", "-in", "/dev/null"]
        .into_iter()
        .chain(["-outform", "DER", "-out", "/dev/null"])
        .map(str::to_owned)
        .collect();
    for (number, pair) in new.iter().enumerate() {
        let certificate = scratch.file(format!("{number}.crt"), &pair.certificate);
        let key = scratch.file(format!("{number}.key"), &pair.key);
        arguments.extend(["-signer".to_owned(), certificate, "-inkey".to_owned(), key]);
    }
    if let Err(error) = openssl(&arguments) {
        return Err(match new.as_slice() {
            [pair] => format!("{}: certificate and key differ: {error}", pair.name),
            // Each pair again, for its name.
            _ => pairs
                .iter()
                .find_map(|pair| match_pairs(std::slice::from_ref(pair)).err())
                .unwrap_or(error),
        });
    }
    for pair in new {
        MATCHED.add([&pair.certificate, &pair.key]);
    }
    Ok(())
}

/// Returns an error unless OpenSSL says that the key belongs to the certificate.
pub(super) fn match_bytes(name: &str, certificate: Vec<u8>, key: Vec<u8>) -> Result<(), String> {
    match_pairs(&[Pair {
        name: name.to_owned(),
        certificate,
        key,
    }])
}

/// Returns an error unless OpenSSL reads this key of a CA from the backup.
pub(super) fn has_key_in_backup(
    backup: &str,
    authority: Authority,
    passphrase: &str,
    key: &[u8],
) -> Result<(), String> {
    static READ: Accepted = Accepted::new();
    let Some((_, block)) = backup.split_once(&format!("\nauthority {authority}\n")) else {
        return Err(format!(
            "the key of {authority} is neither in its place nor in the backup"
        ));
    };
    let parts = [block.as_bytes(), key];
    if READ.has(parts) {
        return Ok(());
    }
    let scratch = Scratch::new();
    let (block, key) = (scratch.file("block", parts[0]), scratch.file("key", key));
    let passphrase = format!("pass:{passphrase}");
    let of_backup = openssl(&["pkey", "-pubout", "-passin", &passphrase, "-in", &block])?;
    if of_backup != openssl(&["pkey", "-pubout", "-in", &key])? {
        return Err(format!("the backup has another key of {authority}"));
    }
    READ.add(parts);
    Ok(())
}

/// Returns an error unless OpenSSL verifies each certificate, with its dates, under its CA in the tree.
fn verify_chains(tree: &Tree, pairs: &[Pair]) -> Result<(), String> {
    static VERIFIED: Accepted = Accepted::new();
    let mut by_authority: BTreeMap<&str, Vec<&Pair>> = BTreeMap::new();
    for pair in pairs {
        if let Some(authority) = authority_of(&pair.name) {
            by_authority.entry(authority).or_default().push(pair);
        }
    }
    for (authority, mut pairs) in by_authority {
        let path = Path::new(PKI).join(authority);
        let Some(authority) = tree.bytes(&path) else {
            return Err(format!("{} is missing", path.display()));
        };
        pairs.retain(|pair| !VERIFIED.has([&pair.certificate, authority]));
        if pairs.is_empty() {
            continue;
        }
        let scratch = Scratch::new();
        let ca = scratch.file("ca", authority);
        let mut arguments = ["verify", "-CAfile", &ca].map(str::to_owned).to_vec();
        let names = pairs.iter().map(|pair| pair.name.replace('/', "-"));
        let files: Vec<String> = names
            .zip(&pairs)
            .map(|(name, pair)| scratch.file(name, &pair.certificate))
            .collect();
        for file in &files {
            arguments.extend(["-untrusted".to_owned(), file.clone()]);
        }
        arguments.extend(files);
        openssl(&arguments)?;
        for pair in pairs {
            VERIFIED.add([&pair.certificate, authority]);
        }
    }
    Ok(())
}

/// Returns an error unless OpenSSL verifies the certificate of a client under this CA.
pub(super) fn verify_client(certificate: &[u8], authority: &[u8]) -> Result<(), String> {
    let scratch = Scratch::new();
    let certificate = scratch.file("certificate", certificate);
    let ca = scratch.file("ca", authority);
    let arguments = ["verify", "-purpose", "sslclient", "-CAfile"];
    openssl(&[arguments.as_slice(), &[&ca, &certificate]].concat()).map(drop)
}

/// Judges the files as they are after a crash, before any further run.
///
/// # Errors
/// If a pair is mixed and no journal repairs it, or a file that was complete is torn or gone.
pub(super) fn interrupted(reference: &Reference, tree: &Tree) -> Result<(), String> {
    let has_journal = tree.0.contains_key(Path::new(JOURNAL));
    if !has_journal {
        match_pairs(&pairs(tree)).map_err(|error| format!("after the interruption: {error}"))?;
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
    let pairs = pairs(&tree);
    match_pairs(&pairs)?;
    verify_chains(&tree, &pairs)?;
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
        if wanted != there {
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
    is_of_network: bool,
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
        // A daemon ends with success whenever it is stopped.
        if code == 0 && !scenario.is_daemon {
            replaced(scenario, reference, tree)
                .map_err(|what| format!("status 0, but {what}:\n{said}"))?;
            match_pairs(&pairs(tree)).map_err(|what| format!("status 0, but {what}:\n{said}"))?;
        }
        return Ok(());
    }
    let allowed: &[i32] = match error {
        "EINTR" => &[],
        _ if is_of_network => &[69, 75],
        "EROFS" => &[75, 77],
        _ => &[75],
    };
    if !allowed.contains(&code) {
        return Err(format!("status {code} after {error}:\n{said}"));
    }
    let cause = match error {
        "EROFS" => "the file system is read-only",
        other => other,
    };
    let names_cause = if is_of_network {
        said.contains("(os error ")
    } else {
        said.contains(cause)
    };
    if !ran.stderr.contains("nodepki: ") && !names_cause {
        return Err(format!("no message names {error}:\n{said}"));
    }
    Ok(())
}

/// Returns the paths of files in `tree` that `initial` does not have, for messages.
pub(super) fn new_paths(initial: &Tree, tree: &Tree) -> Vec<PathBuf> {
    let new = tree.0.keys().filter(|path| !initial.0.contains_key(*path));
    new.cloned().collect()
}
