//! What a person sees: the closing line of every command, tables on terminals of any width, and the progress of a run that
//! waits.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::node::{EVERYTHING, NODEPKI, Node, Ran};
use crate::pty::{OnTerminal, screen};
use crate::signer_directory::sign_by_hand;
use crate::time::{let_pass, wait_until};

/// The first line of the table of a run.
const HEADING: &str = "NAME ";

/// A node with a drop directory, and the command that bootstraps it.
fn waiting(node: &Node, wait: &str) -> Command {
    let drop = node.outside("drop");
    fs::create_dir_all(&drop).unwrap();
    let mut command = node.command(["bootstrap", "--clock-wait", "0s", "--wait", wait]);
    command
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"))
        .arg("--signer")
        .arg(format!("directory:{}", drop.display()));
    command
}

#[test]
fn demo_prints_status_in_requested_format_and_refuses_other_node() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("demo");
    let demo = |options: &[&str]| {
        let mut command = Command::new(NODEPKI);
        command.args(options).arg("demo").arg(&root);
        Ran::of(command.env_remove("JOURNAL_STREAM"))
    };
    let other = dir.path().to_str().unwrap();
    for (option, value) in [("--root", other), ("--config", "/etc/nodepki/config.yaml")] {
        demo(&[option, value])
            .ended(64)
            .says(&format!("remove {option}"));
        assert!(!root.exists());
    }
    let ran = demo(&["-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&ran.done().stdout).unwrap();
    assert_eq!(document["kind"], "Status");
    let count = document["certificates"].as_array().unwrap().len();
    assert_eq!(count, EVERYTHING.len());
    demo(&[]).done().says("No CA private key was written.");
}

#[test]
fn ends_each_command_with_counts_and_next_command() {
    let node = Node::new();
    let ca = node.ca().display().to_string();
    let [root, kubeadm] =
        [node.root(), node.outside("kubeadm.yaml")].map(|path| path.display().to_string());
    let options = format!("--root {root} --kubeadm-config {kubeadm} --signer local:{ca}");
    let plan = node.plan();
    plan.done();
    assert_eq!(
        plan.closing(),
        format!("12 to issue, 1 to make, 1 to write, 3 to keep; next: nodepki bootstrap {options}")
    );
    let preflight = Ran::of(&mut node.with_local(&["preflight"], &[]));
    let closing = preflight.closing();
    assert!(closing.contains(" ok"), "{closing}");
    let status = node.run(&["status"]);
    let closing = status.done().closing();
    assert!(
        closing.ends_with(&format!(" ok; next: nodepki --root {root} plan")),
        "{closing}"
    );
    let found = Ran::of(&mut node.with_local(&["doctor", "-o", "json"], &[]));
    found.says(&format!(
        "`nodepki --root {root} bootstrap --kubeadm-config {kubeadm} --signer local:{ca}`"
    ));
    let ran = node.bootstrap();
    ran.done();
    // The file is not on the node.
    let boot = format!(
        "next: nodepki --root {root} doctor --kubeadm-config {kubeadm} --signer local:{ca}, then copy {kubeadm} to the node, boot it and run there: kubeadm init --config FILE"
    );
    assert_eq!(
        ran.closing(),
        format!("12 issued, 1 written, 1 made, 3 kept; {boot}")
    );
    let again = node.bootstrap();
    assert_eq!(again.done().closing(), format!("16 kept; {boot}"));
    assert_eq!(node.run(&["status"]).closing(), "16 ok");
    let bundle = node.outside("bundle");
    let export = node.csr("export", &bundle);
    assert_eq!(export.done().closing(), "nothing to do");
    // kubeadm has run: it is never the next command again.
    node.write(
        "/var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\n",
    );
    assert_eq!(node.bootstrap().done().closing(), "16 kept");
    assert_eq!(node.plan().done().closing(), "16 to keep");
    node.write("/etc/kubernetes/pki/apiserver.crt", "damaged");
    let status = node.run(&["status"]);
    assert_eq!(
        status.closing(),
        format!("1 unreadable, 15 ok; next: nodepki --root {root} doctor")
    );
    let doctor = Ran::of(&mut node.with_local(&["doctor"], &[]));
    let closing = doctor.ended(65).closing();
    assert!(
        closing.contains(" error")
            && closing
                .contains("; next: apply the fixes from the top, then run nodepki doctor --root"),
        "{closing}"
    );
}

#[test]
fn names_node_in_every_suggested_command() {
    let node = Node::new();
    node.write_settings("");
    let bootstrapped = Node::bootstrapped();
    bootstrapped.write("/etc/kubernetes/pki/apiserver.crt", "damaged");
    bootstrapped.remove("/etc/kubernetes/pki/etcd/peer.key");
    let config = bootstrapped.outside("config.yaml");
    let mut suggested = 0;
    for (node, arguments) in [
        (&node, &["plan"][..]),
        (&node, &["bootstrap"]),
        (&node, &["preflight"]),
        (&node, &["renew"]),
        (&node, &["csr", "show", "apiserver"]),
        (&node, &["authority", "activate", "ca"]),
        (&node, &["authority", "watch"]),
        (&bootstrapped, &["plan"]),
        (&bootstrapped, &["preflight"]),
        (&bootstrapped, &["doctor"]),
        (&bootstrapped, &["doctor", "-o", "json"]),
        (&bootstrapped, &["status"]),
        (&bootstrapped, &["authority", "status", "ca"]),
    ] {
        let ran = Ran::of(node.command(arguments).arg("--config").arg(&config));
        let said = ran.said();
        for command in said.split("nodepki ").skip(1) {
            let command = command.split(['`', ',', ')', '\n']).next().unwrap();
            let verbs = [
                "--",
                "audit ",
                "authority ",
                "bootstrap",
                "config ",
                "csr ",
                "doctor",
                "migrate ",
                "plan",
                "preflight",
                "renew ",
                "renew",
                "status",
            ];
            if !verbs.iter().any(|verb| command.starts_with(verb))
                || command.starts_with("renews")
                || command.contains(" on every node")
            {
                continue;
            }
            suggested += 1;
            for option in ["--root ", "--config "] {
                assert!(command.contains(option), "{arguments:?}: {command}\n{said}");
            }
        }
    }
    assert!(suggested > 10, "{suggested}");
}

#[test]
fn ends_failed_run_with_next_command() {
    let node = Node::new();
    node.signer_does("all", "unreachable");
    let ran = node.ask();
    ran.ended(69);
    let last = ran.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("nodepki: next: nodepki bootstrap --root ")
            && last.contains(", once the signer answers; without the network: nodepki --root "),
        "{last}"
    );
    // A single message that contains its fix is the closing line; several are counted.
    node.write_settings("unknownA: 1\nunknownB: 2\n");
    let ran = node.ask();
    let last = ran.ended(78).stderr.lines().last().unwrap();
    assert!(
        last.contains(" faults; next: correct them, then run nodepki bootstrap --root "),
        "{last}"
    );
}

/// Twelve certificates fail for one reason: it is stated once, on the closing line.
#[test]
fn states_shared_cause_once() {
    let node = Node::bootstrapped();
    node.signer_does("all", "denied");
    let ran = Ran::of(&mut node.configured([
        "renew",
        "--all",
        "--force",
        "--clock-wait",
        "0s",
        "--wait",
        "0s",
    ]));
    ran.ended(65);
    assert_eq!(
        ran.said().matches("not on a Friday").count(),
        1,
        "{}",
        ran.said()
    );
    assert!(ran.closing().starts_with("12 denied, "), "{}", ran.said());
    assert!(ran.closing().contains("not on a Friday"), "{}", ran.said());
    assert!(ran.closing().contains(" --all --force"), "{}", ran.said());
    // Two causes: each with its names.
    node.signer_does("etcd-peer", "failed");
    let ran = Ran::of(&mut node.configured([
        "renew",
        "--all",
        "--force",
        "--clock-wait",
        "0s",
        "--wait",
        "0s",
    ]));
    assert_eq!(
        ran.said().matches("not on a Friday").count(),
        1,
        "{}",
        ran.said()
    );
    assert!(!ran.closing().contains("not on a Friday"), "{}", ran.said());
    ran.row_says("scheduler.conf", "not on a Friday")
        .row_says("etcd-peer", "cannot read it");
    // An absent certificate is a row in the past once it is issued.
    node.signer_behaves();
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    node.remove("/etc/kubernetes/pki/apiserver.key");
    node.plan().row_says("apiserver", "absent");
    node.bootstrap().done().row_says("apiserver", "was absent");
}

#[test]
fn fits_tables_to_width_of_terminal() {
    let node = Node::bootstrapped();
    for columns in [60, 80, 200] {
        for arguments in [&["status"][..], &["status", "-o", "tree"]] {
            let run = OnTerminal::start(node.command(arguments), columns);
            let (code, said) = run.end();
            assert_eq!(code, Some(0));
            let shown = screen(&said);
            let widest = shown
                .lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap();
            assert!(widest <= usize::from(columns), "{columns}:\n{shown}");
            assert_eq!(shown.contains('…'), columns < 200, "{columns}:\n{shown}");
            for name in EVERYTHING {
                assert!(shown.contains(name.as_str()), "{name}:\n{shown}");
            }
            if arguments.len() == 3 && columns >= 80 {
                assert!(shown.contains("ok  364d left  ECDSA-P256"), "{shown}");
                assert!(shown.contains("ECDSA-P256, not on this node"), "{shown}");
            }
            if arguments.len() == 1 {
                assert!(shown.contains("DNS:kubernetes.default.svc"), "{shown}");
            }
        }
    }
    // Name and state are never cut.
    let mut command = node.command(["status"]);
    command.env("COLUMNS", "12");
    let (_, said) = OnTerminal::start(command, 200).end();
    let shown = screen(&said);
    assert!(
        shown.contains("\napiserver-kubelet-client  ok\n"),
        "{shown}"
    );
    // Someone looks at what is behind a pipe: sentences are wrapped, and no table is cut.
    let program = node.command(["plan"]);
    let mut command = Command::new("sh");
    command
        .args(["-c", "\"$@\" | cat", "sh"])
        .arg(program.get_program());
    command.args(program.get_args());
    command.env("COLUMNS", "60");
    let (_, said) = OnTerminal::start(command, 200).end();
    let shown = screen(&said);
    assert!(!shown.contains('…'), "{shown}");
    let names = |line: &&str| line.contains("DNS:");
    let (sentences, rows): (Vec<&str>, Vec<&str>) = shown.lines().partition(names);
    assert!(sentences.iter().all(|line| line.len() <= 60), "{shown}");
    assert!(rows.iter().any(|line| line.len() > 60), "{shown}");
    let mut command = node.with_local(&["plan"], &[]);
    command.env("COLUMNS", "40");
    let plain = Ran::of(&mut command);
    assert!(!plain.done().stdout.contains('…'), "{}", plain.stdout);
    plain
        .row_says("apiserver", "DNS:kubernetes.default.svc")
        .row_says("apiserver", "server auth")
        .says("signer of ca, front-proxy-ca, etcd-ca: local:");
}

/// Only a command, which can be copied, and a word without a blank may be wider than the terminal.
#[test]
fn breaks_sentences_between_words() {
    let node = Node::bootstrapped();
    node.write("/etc/kubernetes/pki/apiserver.crt", "damaged");
    let settings = node.outside("config.yaml").display().to_string();
    for columns in [60, 120, 80, 70] {
        for arguments in [
            &["plan"][..],
            &["doctor"],
            &["config", "check"],
            &["status"],
            &["status", "etcd-server"],
        ] {
            let arguments = [arguments, &["--config", &settings]].concat();
            let run = OnTerminal::start(node.command(&arguments), columns);
            let shown = screen(&run.end().1);
            for line in shown.lines() {
                let words = line.trim_start();
                let is_whole = words.contains("nodepki ")
                    || words.contains('`')
                    || words.split("  ").all(|cell| !cell.trim().contains(' '));
                assert!(
                    line.chars().count() <= usize::from(columns) || is_whole,
                    "{columns}: {line}\n{shown}"
                );
            }
        }
        // The last rounds are with faults of the configuration.
        if columns == 120 {
            node.edit_settings("kind: ", "rotation: {daemon: 1}\nkind: ");
        }
    }
}

/// COLUMNS has precedence over the size of the terminal.
#[test]
fn obeys_columns_on_terminal() {
    let node = Node::bootstrapped();
    let mut command = node.command(["status"]);
    command.env("COLUMNS", "50");
    let (_, said) = OnTerminal::start(command, 200).end();
    let shown = screen(&said);
    let widest = shown
        .lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap();
    assert!(widest <= 50, "{shown}");
}

/// Sends the requests, and returns a directory with the signed certificates.
fn sign_aside(node: &Node) -> PathBuf {
    Ran::of(&mut waiting(node, "0s")).ended(75);
    for name in EVERYTHING {
        sign_by_hand(&node.outside("drop"), &node.ca(), name);
    }
    let aside = node.outside("signed");
    fs::rename(node.outside("drop/inbox"), &aside).unwrap();
    fs::create_dir(node.outside("drop/inbox")).unwrap();
    aside
}

/// Moves the certificates to the inbox after `delay`, while a run waits for `wait`, and expects that it installs them.
fn answer_during(delay: Duration, wait: &str) {
    let node = Node::new();
    let aside = sign_aside(&node);
    let mut command = waiting(&node, wait);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let_pass(delay);
    for entry in fs::read_dir(&aside).unwrap() {
        let from = entry.unwrap().path();
        let name = from.file_name().unwrap();
        fs::rename(&from, node.outside("drop/inbox").join(name)).unwrap();
    }
    wait_until("the run has ended", || run.try_wait().unwrap().is_some());
    Ran::from(run.wait_with_output().unwrap()).done();
    node.assert_sound(&EVERYTHING);
}

#[test]
fn shows_progress_on_terminal_and_no_log_above_table() {
    let node = Node::new();
    let run = OnTerminal::start(waiting(&node, "5s"), 80);
    let (code, said) = run.end();
    assert_eq!(code, Some(75), "{said}");
    let line = "signer: waiting for apiserver +11 (Ctrl-C is safe, the next run continues)";
    // A busy machine may leave a second out.
    let shows = |second: &u32| said.contains(&format!("\r\u{1b}[K{second}s {line}"));
    assert!((1..=5).filter(shows).count() >= 2, "{said:?}");
    for part in said.split("\r\u{1b}[K").skip(1) {
        let first = part.lines().next().unwrap_or_default();
        assert!(first.chars().count() <= 80, "{first:?}");
    }
    let shown = screen(&said);
    assert!(shown.starts_with(HEADING), "{shown}");
    assert!(!shown.contains("WARN"), "{shown}");
    let (_, closing) = shown.split_once("\n12 pending, ").unwrap();
    // The command is wider than the terminal, and has a line of its own.
    assert!(closing.contains("\nnext:\n    nodepki "), "{shown}");
    assert!(
        closing.ends_with("\n    which continues with the same keys\n"),
        "{shown}"
    );
}

#[test]
fn keeps_requests_when_interrupted_while_waiting() {
    let node = Node::new();
    let run = OnTerminal::start(waiting(&node, "60s"), 100);
    let outbox = node.outside("drop/outbox");
    wait_until("every request is written", || {
        fs::read_dir(&outbox).is_ok_and(|requests| requests.count() >= 24)
    });
    // The handler is installed after the first line that shows the wait.
    let shown = run.count("waiting for");
    wait_until("the wait is shown again", || {
        run.count("waiting for") > shown
    });
    run.interrupt();
    let (code, said) = run.end();
    assert_eq!(code, Some(75), "{said}");
    assert!(
        screen(&said).ends_with("nodepki: interrupted while waiting; keys and requests are kept, and the next run continues with them\n"),
        "{said:?}"
    );
    for name in EVERYTHING {
        sign_by_hand(&node.outside("drop"), &node.ca(), name);
    }
    Ran::of(&mut waiting(&node, "0s")).done();
    node.assert_sound(&EVERYTHING);
}

/// A signer that never answers: the run lasts as long as `--wait` says, and reports progress on a stream that is not a
/// terminal.
#[test]
fn waits_as_long_as_it_was_told() {
    let node = Node::new();
    let began = Instant::now();
    let ran = Ran::of(&mut waiting(&node, "12s"));
    let took = began.elapsed();
    ran.ended(75);
    assert!(took >= Duration::from_secs(12), "{took:?}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", ran.stderr);
    assert!(
        lines[0].starts_with("nodepki: signer: waiting for apiserver +11 since 1")
            && lines[0].ends_with(
                "(a run that is stopped keeps keys and requests, and the next one continues)"
            ),
        "{}",
        ran.stderr
    );
}

#[test]
fn ends_wait_when_signer_answers() {
    answer_during(Duration::from_secs(2), "24h");
}

/// A certificate that arrives between the last regular poll and the deadline is installed: polls are 5 s apart.
#[test]
fn polls_once_more_at_the_deadline() {
    answer_during(Duration::from_millis(1500), "4s");
}

#[test]
fn daemon_says_on_terminal_what_it_waits_for() {
    let node = Node::bootstrapped();
    let daemon = OnTerminal::start(node.with_local(&["daemon"], &[]), 100);
    let words = "everything is in place; next at 20";
    wait_until("the daemon waits", || daemon.count(words) == 1);
    daemon.interrupt();
    let (code, said) = daemon.end();
    assert_eq!(code, Some(0), "{said}");
    let shown = screen(&said);
    assert!(
        shown.trim_start().starts_with(&format!("INFO {words}")),
        "{shown}"
    );
    assert_eq!(shown.lines().count(), 1, "{shown}");
}
