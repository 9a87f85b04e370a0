//! The exit status of every command in every situation of [`SITUATIONS`], compared with `tests/golden/exit-codes.txt`.
//!
//! The list of commands is that of the program: a new command needs a line in [`LINES`]. `NODEPKI_BLESS=1 cargo test
//! --test it exit_codes` writes the table.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::kubeadm::copy_tree;
use crate::manual::leaves;
use crate::node::{INIT, NODEPKI, Node, Ran};
use crate::sample::sampled;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/exit-codes.txt");

/// The documented codes: those of all commands, and those of `needs-renewal`.
const CODES: [i32; 7] = [0, 64, 65, 69, 75, 77, 78];
const CODES_OF_NEEDS_RENEWAL: [i32; 5] = [0, 1, 2, 64, 255];

/// A command, and the arguments that it needs.
const LINES: [(&str, &[&str]); 50] = [
    ("plan", &[]),
    ("bootstrap", NO_WAIT),
    ("status", &[]),
    ("renew", NO_WAIT),
    ("doctor", &[]),
    ("init", &["puppet"]),
    ("preflight", &[]),
    ("config check", &[]),
    ("config show", &[]),
    ("config schema", &[]),
    ("config signer-setup", &["vault"]),
    ("needs-renewal", &[]),
    ("daemon", &[]),
    ("policy check", &[]),
    ("policy crd", &[]),
    ("policy export", &[]),
    ("crl", NO_WAIT),
    ("audit verify", &[]),
    ("audit show", &[]),
    ("csr export", &["@/requests"]),
    ("csr import", &["@/requests"]),
    ("csr show", &["apiserver"]),
    ("migrate to-external", &[]),
    (
        "migrate to-internal",
        &["--backup", "@/backup", "--passphrase-file", "@/passphrase"],
    ),
    ("authority stage", &["ca", "--certificate", "@/ca/ca.crt"]),
    ("authority activate", &["ca", "--all-nodes-staged"]),
    ("authority retire", &["ca"]),
    ("authority status", &[]),
    ("authority rotate", &["ca", "--certificate", "@/ca/ca.crt"]),
    ("authority pause", &["ca"]),
    ("authority resume", &["ca"]),
    ("authority undo", &["ca"]),
    ("authority watch", &["--once"]),
    ("certs key", &[]),
    ("certs download", &["--certificate-key-file", "@/key"]),
    ("certs upload", &[]),
    ("certs expire", &[]),
    ("cluster status", &[]),
    ("kubelets list", &[]),
    ("kubelets approve", &["csr-abc"]),
    ("kubelets deny", &["csr-abc"]),
    ("kubelets revoke", &["w1"]),
    ("capi secrets", NEW_CLUSTER),
    ("capi check", &["prod", "--from-file", "@/absent.yaml"]),
    ("capi sync", MANAGEMENT_CLUSTER),
    ("capi migrate to-external", MANAGEMENT_CLUSTER),
    (
        "capi migrate to-internal",
        &[
            "prod",
            "--kubeconfig",
            "@/etc/kubernetes/admin.conf",
            "--backup",
            "@/backup",
            "--passphrase-file",
            "@/passphrase",
        ],
    ),
    ("demo", &["@/demo"]),
    ("completions", &["bash"]),
    ("man", &[]),
];
const NO_WAIT: &[&str] = &["--wait", "0s", "--clock-wait", "0s"];
const MANAGEMENT_CLUSTER: &[&str] = &["prod", "--kubeconfig", "@/etc/kubernetes/admin.conf"];
const NEW_CLUSTER: &[&str] = &[
    "prod",
    "--show-secrets",
    "--endpoint",
    "api.example.com:6443",
    "--ca-dir",
    "@/ca",
    "--wait",
    "0s",
];

/// A node or command line with a fault, and the heading of its column.
struct Situation {
    heading: &'static str,
    damage: fn(&Node),
    /// Words before the command line.
    before: &'static [&'static str],
    /// Words after it.
    after: &'static [&'static str],
}

const SOUND: Situation = Situation {
    heading: "sound",
    damage: |_| {},
    before: &[],
    after: &[],
};

const SITUATIONS: [Situation; 9] = [
    SOUND,
    Situation {
        heading: "option",
        after: &["--no-such-option"],
        ..SOUND
    },
    Situation {
        heading: "settings",
        damage: |node| node.write("/etc/nodepki/config.yaml", "kind: [\n"),
        ..SOUND
    },
    Situation {
        heading: "kubeadm",
        damage: |node| node.write("/run/kubeadm/kubeadm.yaml", "kind: [\n"),
        ..SOUND
    },
    Situation {
        heading: "torn",
        damage: |node| {
            let other = node.read("/etc/kubernetes/pki/front-proxy-client.key");
            node.write_secret("/etc/kubernetes/pki/apiserver.key", other);
        },
        ..SOUND
    },
    Situation {
        heading: "state",
        damage: |node| node.write_secret("/var/lib/nodepki/journal.json", "{"),
        ..SOUND
    },
    Situation {
        heading: "signer",
        damage: |node| {
            node.write("/etc/nodepki/config.yaml", UNREACHABLE);
            node.remove("/etc/kubernetes/pki/apiserver.crt");
        },
        ..SOUND
    },
    Situation {
        heading: "user",
        before: &[
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--",
        ],
        ..SOUND
    },
    Situation {
        heading: "output",
        before: &["sh", "-c", "exec \"$@\" >/dev/full", "sh"],
        ..SOUND
    },
];

const SETTINGS: &str = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {ca: {signer: s}, etcd-ca: {signer: s}, front-proxy-ca: {signer: s}}
signers: {s: {local: {directory: /ca}}}
";
/// A signer at a port without a server.
const UNREACHABLE: &str = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {ca: {signer: s}, etcd-ca: {signer: s}, front-proxy-ca: {signer: s}}
signers:
  s:
    vault:
      address: https://127.0.0.1:9
      mount: pki/{authority}
      auth: {tokenFile: /token}
      tls: {caFile: /ca/ca.crt}
";

/// Returns a complete node with its settings in place.
fn prepared() -> Node {
    let node = Node::with_service_account();
    node.bootstrap().done();
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    node.write("/etc/nodepki/config.yaml", SETTINGS);
    fs::create_dir(node.path("/ca")).unwrap();
    copy_tree(&node.ca(), &node.path("/ca"));
    node.write_secret("/token", "a token\n");
    node
}

/// Returns the exit status of a command in a situation.
fn exit_code(prepared: &Node, (name, arguments): (&str, &[&str]), situation: &Situation) -> i32 {
    let node = prepared.copied();
    (situation.damage)(&node);
    let mut command = Command::new("timeout");
    // The daemon runs until it is stopped.
    let seconds = if name == "daemon" { "5" } else { "60" };
    command
        .args(["--preserve-status", "--kill-after=20", seconds])
        .args(situation.before)
        .arg(NODEPKI);
    // It creates its own root.
    if name != "demo" {
        command.arg("--root").arg(node.root());
    }
    command
        .args(name.split(' '))
        .args(arguments.iter().map(|argument| node.here(argument)))
        .args(situation.after)
        .env_remove("JOURNAL_STREAM");
    let ran = Ran::of(&mut command);
    let documented = match name {
        "needs-renewal" => &CODES_OF_NEEDS_RENEWAL[..],
        _ => &CODES[..],
    };
    match ran.code {
        Some(code) if documented.contains(&code) => code,
        other => panic!(
            "{name} in the situation {:?} ended with {other:?}, signal {:?}:\n{}",
            situation.heading,
            ran.signal,
            ran.said()
        ),
    }
}

#[test]
fn every_command_ends_with_documented_code_in_every_situation() {
    let mut listed: Vec<&str> = LINES.iter().map(|(name, _)| *name).collect();
    let commands = leaves();
    let mut commands: Vec<String> = commands.iter().map(|words| words.join(" ")).collect();
    listed.sort_unstable();
    commands.sort();
    assert_eq!(listed, commands, "the commands of LINES and of the program");
    let prepared = prepared();
    let is_blessed = std::env::var_os("NODEPKI_BLESS").is_some();
    let headings: Vec<&str> = SITUATIONS.iter().map(|one| one.heading).collect();
    let mut table = format!("{:<26}{}\n", "command", columns(&headings));
    let golden = if is_blessed {
        String::new()
    } else {
        fs::read_to_string(GOLDEN).unwrap()
    };
    let mut wrong = Vec::new();
    let lines: Vec<_> = if is_blessed {
        LINES.iter().collect()
    } else {
        sampled(0, &LINES)
    };
    for line in lines {
        let codes = SITUATIONS
            .each_ref()
            .map(|one| exit_code(&prepared, *line, one).to_string());
        let codes: Vec<&str> = codes.iter().map(String::as_str).collect();
        let row = format!("{:<26}{}", line.0, columns(&codes));
        if !golden.lines().any(|known| known == row) {
            wrong.push(row.clone());
        }
        table.push_str(&format!("{row}\n"));
    }
    if is_blessed {
        fs::write(Path::new(GOLDEN), table).unwrap();
        return;
    }
    assert!(
        wrong.is_empty(),
        "other codes than in tests/golden/exit-codes.txt:\n{}",
        wrong.join("\n")
    );
}

fn columns(cells: &[&str]) -> String {
    let cells = cells.iter().map(|cell| format!("{cell:<10}"));
    cells.collect::<String>().trim_end().to_owned()
}
