//! Output on a terminal: text from certificates, servers, files and arguments cannot control it, hide other text or
//! imitate a message of nodepki.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use serde_json::Value;

use crate::node::{INIT, NODEPKI, Node, Ran, SIGNER};
use crate::pty::{OnTerminal, screen};
use crate::signing::openssl;

/// Clears the screen in three ways, sets the title, hides and reverses text, and forges a message.
const HOSTILE: &str =
    "x\u{1b}[2J\u{9b}2J\u{1b}]0;t\u{7}\u{1b}[8m\r\u{202e}\u{200b}\u{7f}y\nnodepki: all is well";

/// Returns whether a character is invisible or changes the terminal's state.
fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\n'
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[track_caller]
fn assert_safe_for_terminal(ran: &Ran, what: &str) {
    let said = ran.said();
    assert!(!said.is_empty(), "{what}");
    let hidden: Vec<char> = said.chars().filter(|c| is_hidden(*c)).collect();
    assert!(hidden.is_empty(), "{what}: {hidden:?} in {said:?}");
    let is_forged = said.lines().any(|line| line == "nodepki: all is well");
    assert!(!is_forged, "{what}: {said}");
}

fn run_in_all_formats(node: &Node, arguments: &[&str], what: &str) -> Vec<Ran> {
    let config = node.outside("config.yaml");
    let kubeadm = node.outside("kubeadm.yaml");
    let mut all = Vec::new();
    for more in [
        &[][..],
        &["-vv"],
        &["-vv", "--log", "json"],
        &["-o", "json"],
        &["-o", "yaml"],
    ] {
        let mut command = node.command(arguments);
        command.args(more).arg("--config").arg(&config);
        if arguments[0] != "status" {
            command.arg("--kubeadm-config").arg(&kubeadm);
        }
        let ran = Ran::of(&mut command);
        assert_safe_for_terminal(&ran, &format!("{what}: {arguments:?} {more:?}"));
        all.push(ran);
    }
    all
}

#[test]
fn escapes_names_in_certificates_and_their_errors() {
    let node = Node::bootstrapped();
    let name = HOSTILE.replace('\n', " ");
    let subject = format!("/CN={name}");
    let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /dev/null -days 365 -utf8 -subj";
    let mut make: Vec<&str> = make.split(' ').collect();
    make.push(&subject);
    node.write("/etc/kubernetes/pki/etcd/ca.crt", openssl(&make, b""));
    for command in ["plan", "doctor", "status"] {
        run_in_all_formats(&node, &[command], "issuer");
    }
    // Parsers quote a PEM label and the text around it.
    let label = format!("-----BEGIN {name}-----\nAAAA\n-----END {name}-----\n");
    for file in ["etcd/ca.crt", "apiserver.crt", "apiserver.key", "sa.pub"] {
        let node = Node::bootstrapped();
        node.write(format!("/etc/kubernetes/pki/{file}"), &label);
        for command in ["plan", "doctor", "status"] {
            run_in_all_formats(&node, &[command], file);
        }
    }
}

#[test]
fn plan_repeats_no_refusal_of_a_row() {
    let node = Node::bootstrapped();
    let [from, to] = ["sa", "apiserver"].map(|name| format!("/etc/kubernetes/pki/{name}.key"));
    node.write(&to, node.read(&from));
    fs::remove_file(node.path(&from)).unwrap();
    let words = "contains the private key that belongs to sa.pub";
    let piped = node.run(&["plan"]);
    let rows = piped.stdout.matches(words).count();
    assert!(rows > 0 && piped.stderr.contains(words), "{}", piped.said());
    let (code, said) = OnTerminal::start(node.command(["plan"]), 500).end();
    let shown = screen(&said);
    assert_eq!(code, Some(65), "{shown}");
    assert_eq!(shown.matches(words).count(), rows, "{shown}");
}

/// The certificates are valid and kept: only the row of the authority has the reason for the exit status.
#[test]
fn plan_shows_refused_authority_in_its_row() {
    let node = Node::bootstrapped();
    let pinned = format!(
        "etcd-ca: {{signer: s, trust: {{sha256: [\"{}\"]}}}}",
        "00".repeat(32)
    );
    node.edit_settings("etcd-ca: {signer: s}", &pinned);
    let words = "does not match the pins of authority etcd-ca";
    let piped = Ran::of(&mut node.configured(["plan"]));
    piped.ended(65).row_says("etcd-ca", "refuse");
    piped.row_says("etcd-server", "keep");
    assert_eq!(piped.stdout.matches(words).count(), 1, "{}", piped.said());
    let (code, said) = OnTerminal::start(node.configured(["plan"]), 500).end();
    let shown = screen(&said);
    assert_eq!(code, Some(65), "{shown}");
    assert_eq!(shown.matches(words).count(), 1, "{shown}");
    let (code, said) = OnTerminal::start(node.configured(["plan", "-o", "json"]), 500).end();
    assert_eq!(code, Some(65), "{said}");
    let document: Value = serde_json::from_str(&said).unwrap();
    let rows = document["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "etcd-ca").unwrap();
    assert_eq!(row["codes"][0], "AuthorityRefused", "{said}");
}

#[test]
fn escapes_answers_of_signers() {
    for verb in ["denied", "pending", "failed", "stderr"] {
        let node = Node::new();
        let script = node.outside("signer.sh");
        let result = match verb {
            "denied" => r#""result":"denied","reason":"Policy","message":MESSAGE"#,
            "pending" => r#""result":"pending","handle":"t","message":MESSAGE"#,
            _ => r#""result":"failed","reason":"BadRequest","message":MESSAGE"#,
        };
        let result = result.replace("MESSAGE", &serde_json::to_string(HOSTILE).unwrap());
        fs::write(node.outside("said"), HOSTILE).unwrap();
        let script_text = format!(
            "request=$(cat)\nif [ $1 = info ]; then echo '{{\"kind\":\"InfoResponse\",\"apiVersions\":[\"signer.nodepki.dev/v1\"]}}'; exit; fi\n\
             if [ {verb} = stderr ]; then cat {said} >&2; exit 3; fi\n\
             [[ $request =~ \\\"requestId\\\":\\\"([^\\\"]*)\\\" ]]\n\
             cat <<EOF\n{{\"apiVersion\":\"signer.nodepki.dev/v1\",\"kind\":\"SignResponse\",\"requestId\":\"${{BASH_REMATCH[1]}}\",{result}}}\nEOF\n",
            said = node.outside("said").display(),
        );
        fs::write(&script, script_text).unwrap();
        let arguments = format!("[{SIGNER}, {}]", node.ca().parent().unwrap().display());
        node.edit_settings(&arguments, &format!("[{}]", script.display()));
        let ran = run_in_all_formats(
            &node,
            &["bootstrap", "--wait", "0s", "--clock-wait", "0s"],
            verb,
        );
        assert!(ran.iter().all(|ran| ran.code != Some(0)), "{verb}");
        // The stderr of a plug-in is logged with -v.
        let is_shown = ran.iter().any(|ran| ran.said().contains("\\u{1b}"));
        assert!(is_shown, "{verb}: {}", ran[0].said());
        // The value in JSON output is the text, except for what was escaped when it was read.
        if let Ok(report) = serde_json::from_str::<Value>(&ran[3].stdout) {
            assert!(report["rows"].is_array(), "{report}");
        }
    }
}

#[test]
fn escapes_configuration_and_file_names() {
    let node = Node::new();
    let name = HOSTILE.replace('\n', " ").replace('/', "_");
    let file = node.outside(&name);
    fs::write(&file, INIT).unwrap();
    for arguments in [
        vec![
            "plan".as_ref(),
            "--kubeadm-config".as_ref(),
            file.as_os_str(),
            "--signer".as_ref(),
            "embedded".as_ref(),
        ],
        vec!["plan".as_ref(), "--config".as_ref(), file.as_os_str()],
        vec!["csr".as_ref(), "import".as_ref(), file.as_os_str()],
    ] {
        assert_safe_for_terminal(&Ran::of(&mut node.command(&arguments)), "file name");
    }
    for key in [
        "kubernetesVersion",
        "clusterName",
        "certificatesDir",
        "unknownKey",
    ] {
        let quoted = serde_json::to_string(HOSTILE).unwrap();
        node.configure(&INIT.replace("kubernetesVersion: v1.37.2", &format!("{key}: {quoted}")));
        run_in_all_formats(&node, &["plan"], key);
        run_in_all_formats(&node, &["doctor"], key);
    }
    node.configure(INIT);
    node.settings(&format!("{}: 1\n", serde_json::to_string(HOSTILE).unwrap()));
    run_in_all_formats(&node, &["plan"], "key of the settings");
}

#[test]
fn escapes_arguments_that_are_wrong() {
    let hostile = OsStr::from_bytes(HOSTILE.as_bytes());
    let invalid = OsStr::from_bytes(b"\xff\x1b[2J");
    for word in [hostile, invalid] {
        for before in [
            &[][..],
            &["plan"],
            &["plan", "--wait"],
            &["plan", "--signer"],
            &["plan", "--node-name"],
            &["plan", "--kubeadm-config"],
            &["renew", "--name"],
            &["status", "-o"],
            &["--root"],
        ] {
            let mut command = Command::new(NODEPKI);
            command.args(before).arg(word).env_remove("JOURNAL_STREAM");
            if before == ["--root"] {
                command.arg("plan");
            }
            let ran = Ran::of(&mut command);
            assert_ne!(ran.code, Some(0), "{before:?}");
            assert_safe_for_terminal(&ran, &format!("{before:?}"));
        }
    }
    Ran::of(Command::new(NODEPKI).arg("bootstrp"))
        .ended(64)
        .says("bootstrap");
}

/// JSON and YAML output keep the value and use the escapes of their formats.
#[test]
fn keeps_values_in_machine_readable_output() {
    let node = Node::new();
    let name = "s\u{202e}x\u{9b}2J";
    node.settings(
        "reload: {hooks: [{on: [apiserver], command: [/bin/true, \"s\\u202ex\\u009b2J\"]}]}\n",
    );
    let shown = run_in_all_formats(&node, &["config", "show"], "config show");
    for ran in [&shown[3], &shown[4]] {
        ran.done();
        let value = match serde_json::from_str::<Value>(&ran.stdout) {
            Ok(json) => json,
            Err(_) => nodepki::yaml::to_json(&nodepki::yaml::parse("y", &ran.stdout).unwrap()[0]),
        };
        assert_eq!(
            value["reload"]["hooks"][0]["command"][1], name,
            "{}",
            ran.stdout
        );
    }
}
