//! Typical mistakes: the input, the message, the fix followed literally, and the result.
//!
//! Two forms. A [`Mistake`] is a wrong text in a correct input: `broken` replaces a text of the settings or of the kubeadm
//! configuration, the command must say `message` and end with `code`, `fix` follows the message literally, and the same
//! command must then end with 0. A [`Situation`] is everything else, as commands of a shell: what is wrong, the command
//! that must fail, the fix, and the command again.

mod advice;
mod files;
mod imports;
mod kubeadm_files;
mod node_state;
mod settings;
mod usage;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::node::{INIT, NODEPKI, Node, Ran};
use crate::signing::HEAD;

/// The input that contains the mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Settings,
    Kubeadm,
}

struct Mistake {
    name: &'static str,
    input: Input,
    /// Text of the correct input, and the mistake in its place.
    broken: (&'static str, &'static str),
    command: &'static [&'static str],
    code: i32,
    message: &'static str,
    /// Text of the broken input, and what the message says to write instead.
    fix: (&'static str, &'static str),
}

impl Mistake {
    /// An error of `config check`.
    const fn refused(
        input: Input,
        name: &'static str,
        broken: (&'static str, &'static str),
        message: &'static str,
        fix: (&'static str, &'static str),
    ) -> Mistake {
        Mistake {
            name,
            input,
            broken,
            command: CHECK,
            code: 78,
            message,
            fix,
        }
    }

    /// A warning of `config check`, which `--strict` refuses.
    const fn warned(
        input: Input,
        name: &'static str,
        broken: (&'static str, &'static str),
        message: &'static str,
        fix: (&'static str, &'static str),
    ) -> Mistake {
        Mistake {
            command: STRICT,
            ..Mistake::refused(input, name, broken, message, fix)
        }
    }
}

const CHECK: &[&str] = &["config", "check"];
const STRICT: &[&str] = &["config", "check", "--strict"];
const SETTINGS: &str = "\
authorities:
  ca: {signer: corp}
  etcd-ca: {signer: corp}
  front-proxy-ca: {signer: corp}
signers:
  corp:
    vault:
      address: https://vault.test:8200
      mount: pki/{authority}
      auth: {tokenFile: TOKEN}
      tls: {caFile: CA}
rotation: {renewAt: 66%}
";

/// Creates a node with the credential of [`SETTINGS`].
fn node() -> Node {
    let node = Node::new();
    crate::signing::write_secret(node.outside("token"), "a token\n");
    node
}

/// Writes the inputs and runs the command.
fn run(node: &Node, command: &[&str], settings: &str, kubeadm: &str) -> Ran {
    node.configure(kubeadm);
    let token = node.outside("token").display().to_string();
    let ca = node.ca().join("ca.crt").display().to_string();
    let settings = settings
        .replace("TOKEN", &token)
        .replace("caFile: CA", &format!("caFile: {ca}"));
    node.write_settings(&format!("{HEAD}{settings}"));
    Ran::of(&mut node.configured(command))
}

/// Replaces the first occurrence, which must exist.
#[track_caller]
fn replaced(text: &str, (from, to): (&str, &str), name: &str) -> String {
    assert!(text.contains(from), "{name}: {from:?} is not in:\n{text}");
    text.replacen(from, to, 1)
}

/// Returns settings and kubeadm configuration after these edits of one of them.
fn edited(mistake: &Mistake, edits: &[(&str, &str)]) -> (String, String) {
    let mut both = (SETTINGS.to_owned(), INIT.to_owned());
    for edit in edits {
        let text = match mistake.input {
            Input::Settings => &mut both.0,
            Input::Kubeadm => &mut both.1,
        };
        *text = replaced(text, *edit, mistake.name);
    }
    both
}

/// Makes each mistake, compares the message, follows it and runs the command again.
fn follow_messages(mistakes: &[Mistake]) {
    let node = node();
    run(&node, CHECK, SETTINGS, INIT)
        .done()
        .says("the configuration is valid");
    for mistake in mistakes {
        let name = mistake.name;
        let (settings, kubeadm) = edited(mistake, &[mistake.broken]);
        let ran = run(&node, mistake.command, &settings, &kubeadm);
        assert_eq!(ran.code, Some(mistake.code), "{name}:\n{}", ran.said());
        let token = node.outside("token").display().to_string();
        let ca = node.ca().join("ca.crt").display().to_string();
        let message = mistake
            .message
            .replace("TOKEN", &token)
            .replace("CA-absent", &format!("{ca}-absent"));
        assert!(
            ran.has(&message),
            "{name}: {message:?} is not in:\n{}",
            ran.said()
        );
        // A pin is copied from the message.
        let said = ran.said();
        let pin = said
            .split_once("public key sha256:")
            .map(|(_, rest)| rest.split_at(64).0);
        let fix = (
            mistake.fix.0,
            if mistake.fix.1 == "PIN" {
                pin.unwrap()
            } else {
                mistake.fix.1
            },
        );
        let (settings, kubeadm) = edited(mistake, &[mistake.broken, fix]);
        let ran = run(&node, mistake.command, &settings, &kubeadm);
        assert_eq!(ran.code, Some(0), "{name}, corrected:\n{}", ran.said());
    }
}

/// A mistake outside of the two inputs. Every field is a script for bash, which runs in the directory of the fixture:
/// `root` is the node, `ca` the authorities, `kubeadm.yaml` its configuration, and `$N` the options that name them.
struct Situation {
    name: &'static str,
    /// Makes the mistake.
    mistake: &'static str,
    /// The command that fails.
    command: &'static str,
    code: i32,
    /// Part of the output; `@` is the directory of the fixture.
    message: &'static str,
    /// What the message says to do.
    fix: &'static str,
    /// The command that must then succeed; empty for the same one.
    corrected: &'static str,
}

/// The functions of the scripts: settings of a signer with these files, a client certificate, and the signature of one
/// request by OpenSSL.
const PRELUDE: &str = r#"
set -euo pipefail
D=$PWD
N="--root $D/root --kubeadm-config $D/kubeadm.yaml"
L="--signer local:$D/ca"
# `openssl x509 -req` would read all CA certificates of this machine first.
openssl() { SSL_CERT_FILE=/dev/null command openssl "$@"; }
sign() { # REQUEST OUTPUT
  case $1 in *front-proxy*) a=front-proxy-ca ;; *etcd/* | *apiserver-etcd*) a=etcd/ca ;; *) a=ca ;; esac
  openssl x509 -req -in "bundle/$1.csr" -extfile "bundle/$1.ext" -days 365 \
    -CA "ca/$a.crt" -CAkey "ca/$a.key" -CAcreateserial -out "$2" 2>/dev/null
}
vault() { # AUTH TLS [TRUST]
  printf '%s\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' \
    "authorities: {ca: {signer: corp${3-}}, etcd-ca: {signer: corp}, front-proxy-ca: {signer: corp}}" \
    'signers: {corp: {vault: {address: "https://vault.test:8200", mount: "pki/{authority}",' \
    "  auth: $1," "  tls: {$2}}}}" > config.yaml
}
plugin() { # COMMAND
  printf '%s\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' \
    "signers: {corp: {exec: {command: $1}}}" > config.yaml
}
client() { # [DAYS]
  openssl ecparam -name prime256v1 -genkey -noout -out client.key
  chmod 600 client.key
  openssl req -new -key client.key -subj /CN=cp1 -out client.csr
  openssl x509 -req -in client.csr -days "${1-9}" -CA ca/ca.crt -CAkey ca/ca.key -CAcreateserial \
    -out client.crt 2>/dev/null
}
"#;

/// Runs a script as its user types it.
fn shell(dir: &Path, script: &str) -> Ran {
    let mut path = vec![Path::new(NODEPKI).parent().unwrap().to_owned()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    Ran::of(
        Command::new("bash")
            .arg("-c")
            .arg(format!("{PRELUDE}{script}"))
            .current_dir(dir)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env_remove("JOURNAL_STREAM"),
    )
}

/// Makes each mistake on a copy of the node, compares the message, follows it and runs the command again.
fn follow_scripts(node: &Node, situations: &[Situation]) {
    follow_scripts_after(node, "", situations);
}

/// As [`follow_scripts`], after a script that runs in each copy before the mistake.
fn follow_scripts_after(node: &Node, setup: &str, situations: &[Situation]) {
    for situation in situations {
        let name = situation.name;
        let dir = tempfile::tempdir_in(node.outside("").parent().unwrap()).unwrap();
        crate::kubeadm::copy_tree(&node.outside(""), dir.path());
        let made = shell(dir.path(), &format!("{setup}\n{}", situation.mistake));
        assert_eq!(made.code, Some(0), "{name}: {}", made.said());
        let ran = shell(dir.path(), situation.command);
        assert_eq!(ran.code, Some(situation.code), "{name}:\n{}", ran.said());
        let message = situation
            .message
            .replace('@', &dir.path().display().to_string());
        assert!(
            ran.has(&message),
            "{name}: {message:?} is not in:\n{}",
            ran.said()
        );
        let fixed = shell(dir.path(), situation.fix);
        assert_eq!(fixed.code, Some(0), "{name}, fix:\n{}", fixed.said());
        let corrected = match situation.corrected {
            "" => situation.command,
            other => other,
        };
        let ran = shell(dir.path(), corrected);
        assert_eq!(ran.code, Some(0), "{name}, corrected:\n{}", ran.said());
    }
}

#[test]
fn counts_warnings_and_accepts_them_without_strict() {
    let node = node();
    let settings = replaced(SETTINGS, ("pki/{authority}", "pki"), "mount");
    let settings = replaced(&settings, ("66%", "30%"), "renewAt");
    run(&node, CHECK, &settings, INIT)
        .done()
        .says("config.yaml:14:21: rotation.renewAt")
        .says("the configuration is usable, 2 warnings: node cp1");
    fs::remove_file(node.path("/etc/kubernetes/pki/ca.crt")).unwrap();
    run(&node, CHECK, SETTINGS, INIT)
        .done()
        .says("usable, 1 warning: ")
        .says("ca.crt does not exist, and no pin confirms the CA of the signer");
}

/// A fault of a file has the position of the setting that names it.
#[test]
fn names_position_of_setting_of_unusable_file() {
    let node = node();
    let ca = node.ca().join("ca.crt");
    let trusted = format!(
        "authorities:\n  ca: {{signer: corp, trust: {{file: {}}}}}",
        ca.display()
    );
    let settings = replaced(
        SETTINGS,
        ("authorities:\n  ca: {signer: corp}", &trusted),
        "trust",
    );
    fs::write(&ca, "damaged").unwrap();
    fs::remove_file(node.outside("token")).unwrap();
    fs::create_dir(node.outside("token")).unwrap();
    let file = node.outside("config.yaml").display().to_string();
    run(&node, CHECK, &settings, INIT)
        .ended(78)
        .says(&format!(
            "nodepki: {file}:4:36: authorities.ca.trust.file: "
        ))
        .says(&format!(
            "nodepki: {file}:12:25: signers.corp.vault.auth.tokenFile: "
        ))
        .says(&format!(
            "nodepki: {file}:13:21: signers.corp.vault.tls.caFile: "
        ));
    fs::remove_dir(node.outside("token")).unwrap();
    run(&node, CHECK, &settings, INIT).ended(78).says(&format!(
        "nodepki: warning: {file}:12:25: signers.corp.vault.auth.tokenFile: "
    ));
}
