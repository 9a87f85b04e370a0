//! The commands that change files, each on a prepared node.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodepki::kube::names::{Authority, CertName};
use serde_json::Value;

use super::api::Collection;
use super::judge::{self, Reference};
use crate::authority::{new_authority, new_key};
use crate::node::{INIT, Node, Ran, copy_authorities};
use crate::signer_directory::sign_by_hand;
use crate::signing::write_secret;
use crate::time::within;

/// A command on a prepared node.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Creates the node on which the command runs.
    pub(super) prepare: fn() -> Node,
    pub(super) command: fn(&Node) -> Command,
    /// Exit statuses of an undisturbed run.
    pub(super) ends: &'static [i32],
    /// Runs what an administrator runs after an interruption.
    pub(super) complete: fn(&Node) -> Result<(), String>,
    /// Verifies what only this command does.
    pub(super) judge: fn(&Node, &Reference) -> Result<(), String>,
    /// Verifies what must hold at every moment, also before the next run.
    pub(super) at_once: fn(&Node, &Reference) -> Result<(), String>,
    /// Whether every run leaves the same bytes outside of the state directory.
    pub(super) is_deterministic: bool,
    /// Whether the command runs until it is stopped, when it has reported its first step and done its work.
    pub(super) is_daemon: bool,
    /// Returns true when a daemon has done what it does after its first step.
    pub(super) is_done: fn() -> bool,
    /// Objects in an API server that the command reads or changes.
    pub(super) collections: &'static [Collection],
    /// Share of the cases in a sample, in proportion to those of other scenarios: less if a case takes long.
    pub(super) weight: usize,
}

const DROP: &str = "/var/lib/drop";
const BACKUP: &str = "/var/backups/ca-keys";
const BUNDLE: &str = "/var/lib/bundle";
pub(super) const PASSPHRASE: &str = "correct horse battery staple";

pub(super) const SCENARIOS: [Scenario; 22] = [
    Scenario {
        name: "bootstrap, signer exec",
        prepare: new_node,
        command: bootstrap_exec,
        judge: one_request_per_slot,
        ..COMMON
    },
    Scenario {
        name: "bootstrap, signer local",
        prepare: new_node,
        command: bootstrap_local,
        weight: 3,
        ..COMMON
    },
    Scenario {
        name: "bootstrap, signer directory, requests",
        prepare: new_node,
        command: bootstrap_drop,
        ends: &[75],
        complete: complete_drop,
        judge: no_temporary_file_in_drop,
        ..COMMON
    },
    Scenario {
        name: "bootstrap, signer directory, answers",
        prepare: node_with_answers,
        command: bootstrap_drop,
        complete: complete_drop,
        judge: no_temporary_file_in_drop,
        weight: 3,
        ..COMMON
    },
    Scenario {
        name: "renew, signer exec",
        prepare: drifted_exec,
        command: renew_exec,
        judge: one_request_per_slot,
        ..COMMON
    },
    Scenario {
        name: "renew, signer local",
        prepare: drifted_local,
        command: renew_local,
        ..COMMON
    },
    Scenario {
        name: "daemon, signer local",
        prepare: drifted_local,
        command: daemon_local,
        complete: complete_daemon,
        is_daemon: true,
        ..COMMON
    },
    Scenario {
        name: "authority stage",
        prepare: with_new_ca,
        command: stage,
        ends: &[0, 75],
        complete: |node| repeats(stage(node), &[0, 75]),
        is_deterministic: true,
        ..COMMON
    },
    Scenario {
        name: "authority stage --undo",
        prepare: staged,
        command: undo,
        ends: &[0, 75],
        complete: |node| repeats(undo(node), &[0, 75]),
        is_deterministic: true,
        weight: 3,
        ..COMMON
    },
    Scenario {
        name: "authority activate",
        prepare: ready_to_activate,
        command: activate,
        ends: &[0, 75],
        complete: |node| repeats(activate(node), &[0, 75]),
        ..COMMON
    },
    Scenario {
        name: "authority retire",
        prepare: activated,
        command: retire,
        ends: &[0, 75],
        complete: |node| repeats(retire(node), &[0, 75]),
        is_deterministic: true,
        weight: 3,
        ..COMMON
    },
    Scenario {
        name: "migrate to-external",
        prepare: with_ca_keys,
        command: to_external,
        judge: has_ca_keys_in_backup,
        at_once: has_ca_keys_in_backup,
        weight: 1,
        ..COMMON
    },
    Scenario {
        name: "migrate to-internal",
        prepare: without_ca_keys,
        command: to_internal,
        is_deterministic: true,
        weight: 1,
        ..COMMON
    },
    Scenario {
        name: "csr export",
        prepare: new_node,
        command: export,
        judge: has_same_requests_in_bundle,
        ..COMMON
    },
    Scenario {
        name: "csr import",
        prepare: with_signed_bundle,
        command: import,
        weight: 4,
        ..COMMON
    },
    Scenario {
        name: "crl",
        prepare: with_crl,
        command: crl,
        is_deterministic: true,
        weight: 5,
        ..COMMON
    },
    Scenario {
        name: "init",
        prepare: without_settings,
        command: init,
        complete: complete_init,
        is_deterministic: true,
        weight: 6,
        ..COMMON
    },
    Scenario {
        name: "init --to",
        prepare: without_settings,
        command: init_to,
        complete: complete_init_to,
        is_deterministic: true,
        weight: 6,
        ..COMMON
    },
    Scenario {
        name: "certs key",
        prepare: new_node,
        command: certificate_key,
        complete: complete_certificate_key,
        weight: 6,
        ..COMMON
    },
    Scenario {
        name: "capi secrets",
        prepare: new_node,
        command: capi_secrets,
        ..COMMON
    },
    Scenario {
        name: "demo",
        prepare: new_node,
        command: demo,
        weight: 1,
        ..COMMON
    },
    Scenario {
        name: "man",
        prepare: with_directory_for_pages,
        command: manual_pages,
        is_deterministic: true,
        weight: 6,
        ..COMMON
    },
];

/// The fields that most scenarios share.
pub(super) const COMMON: Scenario = Scenario {
    name: "",
    prepare: new_node,
    command: bootstrap_local,
    ends: &[0],
    complete: |_| Err(SAME_COMMAND.to_owned()),
    judge: |_, _| Ok(()),
    at_once: |_, _| Ok(()),
    is_deterministic: false,
    is_daemon: false,
    is_done: || true,
    collections: &[],
    weight: 2,
};
const SAME_COMMAND: &str = "the same command";

impl Scenario {
    /// Runs a command line of this scenario, perhaps below other programs. A daemon is stopped after `limit` at the latest.
    pub(super) fn run(&self, node: &Node, mut command: Command, limit: Duration) -> Ran {
        if self.is_daemon {
            first_step(node, command, self.is_done, limit)
        } else {
            Ran::of(&mut command)
        }
    }

    /// Runs what completes an interrupted run: by default the same command.
    pub(super) fn complete(&self, node: &Node) -> Result<(), String> {
        match (self.complete)(node) {
            Err(text) if text == SAME_COMMAND => repeats((self.command)(node), self.ends),
            result => result,
        }
    }
}

pub(super) fn repeats(mut command: Command, ends: &[i32]) -> Result<(), String> {
    let ran = Ran::of(&mut command);
    if ran.code.is_some_and(|code| ends.contains(&code)) {
        Ok(())
    } else {
        Err(format!(
            "the next run ends with {:?}:\n{}",
            ran.code,
            ran.said()
        ))
    }
}

/// kubeadm configuration of a first node with an external etcd, which keeps the certificates few.
pub(super) fn kubeadm() -> String {
    format!("{INIT}etcd: {{external: {{endpoints: ['http://192.0.2.50:2379']}}}}\n")
}

/// Returns a node with the CA certificates and files of the user.
pub(super) fn new_node() -> Node {
    let node = Node::of(&kubeadm());
    node.write("/etc/kubernetes/pki/notes.txt", "of the user\n");
    node.write_secret("/etc/kubernetes/pki/other.key", "of the user\n");
    node.write("/etc/kubernetes/audit-policy.yaml", "kind: Policy\n");
    fs::create_dir_all(node.path("/var/lib")).unwrap();
    node
}

fn bootstrap_exec(node: &Node) -> Command {
    node.ask_command("0s")
}

pub(super) fn bootstrap_local(node: &Node) -> Command {
    node.with_local(&["bootstrap", "--clock-wait", "0s"], &[])
}

fn bootstrap_drop(node: &Node) -> Command {
    let mut command = node.command(["bootstrap", "--wait", "0s", "--clock-wait", "0s"]);
    command
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"))
        .arg("--signer")
        .arg(format!("directory:{}", node.path(DROP).display()));
    command
}

/// Signs every request in the drop directory that has no answer.
fn sign_dropped(node: &Node) {
    for name in CertName::KUBEADM {
        let drop = node.path(DROP);
        let has = |file: String| drop.join(file).exists();
        if has(format!("outbox/{name}.csr")) && !has(format!("inbox/{name}.crt")) {
            sign_by_hand(&drop, &node.ca(), name);
        }
    }
}

fn complete_drop(node: &Node) -> Result<(), String> {
    repeats(bootstrap_drop(node), &[0, 75])?;
    sign_dropped(node);
    repeats(bootstrap_drop(node), &[0])
}

fn node_with_answers() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_drop(&node)).ended(75);
    sign_dropped(&node);
    node
}

/// Asserts that no temporary file is left in the drop directory.
fn no_temporary_file_in_drop(node: &Node, _: &Reference) -> Result<(), String> {
    let left = crate::store::leftovers(&node.path(DROP));
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("{left:?}"))
    }
}

/// Asserts that the signer received one key and one request for each certificate.
pub(super) fn one_request_per_slot(node: &Node, _: &Reference) -> Result<(), String> {
    for (slot, keys) in node.keys_seen() {
        if keys.len() != 1 {
            return Err(format!("the signer has {} keys of {slot}", keys.len()));
        }
    }
    let mut requests: Vec<(String, String)> = node
        .exchanges()
        .into_iter()
        .filter(|(verb, ..)| verb == "sign")
        .map(|(_, slot, id)| (slot, id))
        .collect();
    requests.sort();
    requests.dedup();
    let mut slots: Vec<&String> = requests.iter().map(|(slot, _)| slot).collect();
    slots.dedup();
    if slots.len() == requests.len() {
        Ok(())
    } else {
        Err(format!("a certificate was requested twice: {requests:?}"))
    }
}

/// Sets the times of issue to two hours ago, and configures another key algorithm.
fn drift(node: &Node) {
    const ISSUED: &str = "/var/lib/nodepki/issued.json";
    let mut record: Value = serde_json::from_str(&node.read(ISSUED)).unwrap();
    let at = (time::OffsetDateTime::now_utc() - time::Duration::hours(2))
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap();
    for certificate in record["certificates"].as_object_mut().unwrap().values_mut() {
        certificate["at"] = at.clone().into();
    }
    node.write(ISSUED, serde_json::to_vec_pretty(&record).unwrap());
    node.configure(&kubeadm().replace("ECDSA-P256", "ECDSA-P384"));
}

fn drifted_exec() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_exec(&node)).done();
    drift(&node);
    fs::remove_file(node.outside("log")).unwrap();
    node.settings("rotation: {onPolicyChange: now}\n");
    node
}

fn drifted_local() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_local(&node)).done();
    drift(&node);
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nrotation: {onPolicyChange: now}\n",
    );
    node
}

fn renew_exec(node: &Node) -> Command {
    node.configured(["renew", "--wait", "0s", "--clock-wait", "0s"])
}

fn renew_local(node: &Node) -> Command {
    node.with_local(&["renew", "--clock-wait", "0s"], &[])
}

pub(super) fn daemon_local(node: &Node) -> Command {
    let mut command = node.with_local(&["daemon"], &["--log", "text"]);
    command
        .env("NOTIFY_SOCKET", node.outside("notify"))
        .env_remove("WATCHDOG_PID")
        .env_remove("WATCHDOG_USEC");
    command
}

/// Runs the daemon again, as its service manager does, until everything is in place.
fn complete_daemon(node: &Node) -> Result<(), String> {
    let ran = first_step(node, daemon_local(node), || true, UNDISTURBED);
    if ran.code == Some(0) {
        Ok(())
    } else {
        Err(format!("{:?}:\n{}", ran.code, ran.said()))
    }
}

/// How long an undisturbed daemon may take for a step.
pub(super) const UNDISTURBED: Duration = Duration::from_secs(300);
/// How long a daemon runs that an error of a system call may have kept from its work.
pub(super) const DISTURBED: Duration = Duration::from_secs(10);

/// Runs a daemon, and stops it with SIGTERM when it has reported the result of its first step and `is_done`.
pub(super) fn first_step(
    node: &Node,
    mut command: Command,
    is_done: fn() -> bool,
    limit: Duration,
) -> Ran {
    let path = node.outside("notify");
    let _ = fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = child.id();
    let ended = thread::spawn(move || child.wait_with_output().unwrap());
    let mut buffer = [0; 4096];
    let mut is_reported = false;
    let _ = within(limit, || {
        let length = socket.recv(&mut buffer).unwrap_or(0);
        // Every status but the first one is that of a step.
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        is_reported |= text.contains("STATUS=") && !text.contains("STATUS=starting");
        if ended.is_finished() || (is_reported && is_done()) {
            Ok(())
        } else {
            Err(())
        }
    });
    if !ended.is_finished() {
        let innermost = innermost(id).try_into().unwrap();
        let _ = kill(Pid::from_raw(innermost), Signal::SIGTERM);
    }
    let ran = Ran::from(ended.join().unwrap());
    fs::remove_file(path).unwrap();
    ran
}

/// Returns the process that `id` runs through other programs: strace(1), timeout(1).
fn innermost(id: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    match children.split_whitespace().next() {
        Some(child) => innermost(child.parse().unwrap()),
        None => id,
    }
}

fn with_new_ca() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_local(&node)).done();
    new_authority(&node, Authority::Ca, new_key());
    node
}

fn step(node: &Node, step: &str, more: &[&str]) -> Command {
    node.with_local(&["authority", step, "ca"], more)
}

fn stage(node: &Node) -> Command {
    let certificate = node.outside("new/ca.crt");
    step(
        node,
        "stage",
        &["--certificate", certificate.to_str().unwrap()],
    )
}

fn undo(node: &Node) -> Command {
    step(node, "stage", &["--undo", "--no-node-activated"])
}

/// Removes the record of due restarts, as a reload does: below another root no component runs.
fn complete_restarts(node: &Node) {
    let _ = fs::remove_file(node.path("/var/lib/nodepki/restarts.json"));
}

fn staged() -> Node {
    let node = with_new_ca();
    Ran::of(&mut stage(&node)).done_or_temporary();
    complete_restarts(&node);
    node
}

fn ready_to_activate() -> Node {
    let node = staged();
    copy_authorities([Authority::Ca], &node.outside("new"), &node.ca());
    node
}

fn activate(node: &Node) -> Command {
    step(node, "activate", &["--all-nodes-staged"])
}

fn activated() -> Node {
    let node = ready_to_activate();
    Ran::of(&mut activate(&node)).done_or_temporary();
    complete_restarts(&node);
    node
}

fn retire(node: &Node) -> Command {
    step(node, "retire", &["--all-nodes-activated"])
}

/// Returns a complete node with the CA keys, as kubeadm leaves it.
fn with_ca_keys() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_exec(&node)).done();
    let authorities = [Authority::Ca, Authority::FrontProxyCa];
    copy_authorities(authorities, &node.ca(), &node.path("/etc/kubernetes/pki"));
    fs::create_dir_all(node.path(BACKUP).parent().unwrap()).unwrap();
    write_secret(node.outside("passphrase"), format!("{PASSPHRASE}\n"));
    node
}

fn migrate(node: &Node, direction: &str) -> Command {
    let mut command = node.configured(["migrate", direction, "--apply"]);
    command
        .arg("--backup")
        .arg(node.path(BACKUP))
        .arg("--passphrase-file")
        .arg(node.outside("passphrase"));
    command
}

fn to_external(node: &Node) -> Command {
    let mut command = migrate(node, "to-external");
    command.args(["--wait", "0s"]);
    command
}

fn to_internal(node: &Node) -> Command {
    migrate(node, "to-internal")
}

fn without_ca_keys() -> Node {
    let node = with_ca_keys();
    Ran::of(&mut to_external(&node)).done();
    node
}

/// Asserts that OpenSSL reads each CA key from its file or from the backup.
fn has_ca_keys_in_backup(node: &Node, _: &Reference) -> Result<(), String> {
    for authority in [Authority::Ca, Authority::FrontProxyCa] {
        let file = format!("/etc/kubernetes/pki/{}.key", authority.base_name());
        if node.path(file).exists() {
            continue;
        }
        let backup = fs::read_to_string(node.path(BACKUP)).unwrap_or_default();
        let key = node.ca().join(authority.base_name()).with_extension("key");
        judge::has_key_in_backup(&backup, authority, PASSPHRASE, &fs::read(key).unwrap())?;
    }
    Ok(())
}

fn bundle_command(node: &Node, verb: &str) -> Command {
    let mut command = node.configured(["csr", verb]);
    command.arg(node.path(BUNDLE));
    command
}

fn export(node: &Node) -> Command {
    bundle_command(node, "export")
}

fn import(node: &Node) -> Command {
    bundle_command(node, "import")
}

fn with_signed_bundle() -> Node {
    let node = new_node();
    Ran::of(&mut export(&node)).done();
    node.sign_bundle(&node.path(BUNDLE));
    node
}

/// Asserts that the exported requests can be signed and imported.
fn has_same_requests_in_bundle(node: &Node, _: &Reference) -> Result<(), String> {
    node.sign_bundle(&node.path(BUNDLE));
    repeats(import(node), &[0])
}

fn with_crl() -> Node {
    let node = new_node();
    Ran::of(&mut bootstrap_exec(&node)).done();
    fs::create_dir_all(node.outside("crl")).unwrap();
    let config = format!(
        "[ca]\ndefault_ca = d\n[d]\ndatabase = {0}/index.txt\ndefault_md = sha256\ncrlnumber = {0}/number\n",
        node.outside("crl").display()
    );
    for (file, text) in [("index.txt", ""), ("number", "01\n"), ("ca.cnf", &config)] {
        fs::write(node.outside("crl").join(file), text).unwrap();
    }
    let path = |name: &str| node.outside(name).to_str().unwrap().to_owned();
    let list = crate::signing::openssl(
        &[
            "ca",
            "-gencrl",
            "-crldays",
            "30",
            "-config",
            &path("crl/ca.cnf"),
            "-cert",
            &path("ca/ca.crt"),
            "-keyfile",
            &path("ca/ca.key"),
        ],
        b"",
    );
    fs::write(node.outside("crl/ca"), list).unwrap();
    node
}

fn crl(node: &Node) -> Command {
    node.configured(["crl", "--wait", "0s"])
}

fn without_settings() -> Node {
    let node = new_node();
    fs::remove_file(node.outside("config.yaml")).unwrap();
    node
}

fn init(node: &Node) -> Command {
    let mut command = node.command(["init", "vault", "--no-input"]);
    command
        .args(["--server", "https://pki.test:8200", "--kubeadm-config"])
        .arg(node.outside("kubeadm.yaml"));
    command
}

/// Runs the command again. Complete settings are never overwritten, and are written after the script.
fn complete_init(node: &Node) -> Result<(), String> {
    let ends = if node.path("/etc/nodepki/config.yaml").exists() {
        65
    } else {
        0
    };
    repeats(init(node), &[ends])
}

const SETTINGS_FILE: &str = "/var/lib/vault.yaml";

fn init_to(node: &Node) -> Command {
    let mut command = init(node);
    command.arg("--to").arg(node.path(SETTINGS_FILE));
    command
}

/// As [`complete_init`], for the settings in a file of this machine.
fn complete_init_to(node: &Node) -> Result<(), String> {
    let ends = if node.path(SETTINGS_FILE).exists() {
        65
    } else {
        0
    };
    repeats(init_to(node), &[ends])
}

pub(super) const CERTIFICATE_KEY: &str = "/etc/nodepki/certificate-key";

fn certificate_key(node: &Node) -> Command {
    node.command([
        "certs".into(),
        "key".into(),
        "--out".into(),
        node.path(CERTIFICATE_KEY),
    ])
}

/// Runs the command again; an existing key is complete, and is never overwritten.
fn complete_certificate_key(node: &Node) -> Result<(), String> {
    if has_certificate_key(node)? {
        repeats(certificate_key(node), &[65])
    } else {
        repeats(certificate_key(node), &[0])
    }
}

/// Returns whether there is a certificate key.
///
/// # Errors
/// If there is a part of one.
pub(super) fn has_certificate_key(node: &Node) -> Result<bool, String> {
    let Ok(key) = fs::read_to_string(node.path(CERTIFICATE_KEY)) else {
        return Ok(false);
    };
    let is_complete =
        key.trim_end().len() == 64 && key.bytes().filter(|b| *b == b'\n').count() == 1;
    if is_complete {
        Ok(true)
    } else {
        Err(format!("the certificate key has {} bytes", key.len()))
    }
}

fn capi_secrets(node: &Node) -> Command {
    let mut command = node.command(["capi", "secrets", "prod", "--namespace", "clusters"]);
    command
        .args(["--wait", "0s", "--clock-wait", "0s", "--config"])
        .arg(node.outside("config.yaml"))
        .arg("--ca-dir")
        .arg(node.ca())
        .args(["--endpoint", "api.example.com:6443", "--out"])
        .arg(node.path("/var/lib/secrets.yaml"));
    command
}

fn demo(node: &Node) -> Command {
    let mut command = Command::new(crate::node::NODEPKI);
    command
        .arg("demo")
        .arg(node.path("/var/lib/demo"))
        .env_remove("NODEPKI_FAILPOINT")
        .env_remove("JOURNAL_STREAM");
    command
}

fn with_directory_for_pages() -> Node {
    let node = new_node();
    fs::create_dir(node.path("/var/lib/man")).unwrap();
    node
}

fn manual_pages(node: &Node) -> Command {
    let mut command = node.command(["man"]);
    command.arg(node.path("/var/lib/man"));
    command
}
