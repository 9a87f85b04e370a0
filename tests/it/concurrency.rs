//! Commands that run at the same time, and commands that a signal ends at any moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodepki::kube::names::Authority;
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

use crate::node::{EVERYTHING, Node, Ran, copy_authorities};
use crate::renew::backdate;
use crate::sample::sampled;
use crate::signing::{now, write_secret};
use crate::store::leftovers;
use crate::time::{let_pass, wait_until};

/// A command that changes a node, as it is run on a copy of [`prepared`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Bootstrap,
    Renew,
    /// One certificate, with the plug-in signer.
    RenewWithPlugIn,
    Export,
    Import,
    Stage,
    Migrate,
    Crl,
}

const CHANGES: [Change; 8] = [
    Change::Bootstrap,
    Change::Renew,
    Change::RenewWithPlugIn,
    Change::Export,
    Change::Import,
    Change::Stage,
    Change::Migrate,
    Change::Crl,
];

impl Change {
    /// Returns the command. `turn` tells two runs of one command apart.
    fn command(self, node: &Node, turn: usize) -> Command {
        let outside = |name: &str| node.outside(name).to_str().unwrap().to_owned();
        let local = |arguments: &[&str]| node.with_local(arguments, &["--clock-wait", "0s"]);
        match self {
            Change::Bootstrap => local(&["bootstrap"]),
            Change::Renew => local(&["renew"]),
            Change::RenewWithPlugIn => {
                node.configured(["renew", "--force", "etcd-peer", "--clock-wait", "0s"])
            }
            Change::Export => local(&["csr", "export", &outside(&format!("export-{turn}"))]),
            Change::Import => local(&["csr", "import", &outside("bundle")]),
            Change::Stage => {
                let file = outside("new.crt");
                node.with_local(
                    &[
                        "authority",
                        "stage",
                        "front-proxy-ca",
                        "--certificate",
                        &file,
                    ],
                    &[],
                )
            }
            Change::Migrate => {
                let mut command = node.configured(["migrate", "to-external", "--apply"]);
                command
                    .args(["--backup", &outside(&format!("backup-{turn}"))])
                    .args(["--passphrase-file", &outside("passphrase"), "--wait", "0s"]);
                command
            }
            Change::Crl => node.with_local(&["crl"], &[]),
        }
    }

    /// Returns whether an exit code is one that this command may have next to another one. Below another root the step of
    /// a CA change ends with 75, since no component is restarted.
    fn may_end_with(self, code: i32) -> bool {
        match self {
            Change::Bootstrap
            | Change::Renew
            | Change::RenewWithPlugIn
            | Change::Export
            | Change::Crl => {
                matches!(code, 0 | 75)
            }
            Change::Import | Change::Migrate => matches!(code, 0 | 65 | 75),
            Change::Stage => matches!(code, 65 | 75),
        }
    }
}

/// Returns a node, to be copied, whose certificates must all be reissued, with CA keys on it, and with a signed bundle of
/// its requests.
fn prepared() -> Node {
    let node = Node::bootstrapped();
    backdate(&node, &EVERYTHING, time::Duration::hours(2));
    copy_authorities(
        Authority::ALL,
        &node.ca(),
        &node.path("/etc/kubernetes/pki"),
    );
    for authority in Authority::ALL {
        node.set_mode(
            format!("/etc/kubernetes/pki/{}.key", authority.base_name()),
            0o600,
        );
    }
    node.change_keys_of_local_signer();
    write_secret(node.outside("passphrase"), "correct horse battery staple\n");
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let year = Duration::from_secs(365 * 86_400);
    let new = CertificateAuthority::self_signed("front-proxy-ca", key, now(), year).unwrap();
    fs::write(node.outside("new.crt"), new.bundle().to_pem()).unwrap();
    let bundle = node.outside("bundle");
    Ran::of(&mut node.with_local(
        &["csr", "export", bundle.to_str().unwrap()],
        &["--clock-wait", "0s"],
    ))
    .done();
    node.sign_bundle(&bundle);
    node
}

/// Asserts that the next run completes the node.
#[track_caller]
fn assert_completes(node: &Node, what: &str) {
    let ran = node.bootstrap();
    assert_eq!(ran.code, Some(0), "{what}\nthen {}", ran.said());
    node.assert_sound(&EVERYTHING);
    assert_eq!(leftovers(&node.root()), [] as [PathBuf; 0], "{what}");
    for authority in Authority::ALL {
        // A step of a CA change may have added another CA behind the first one.
        let file = node.read(format!("/etc/kubernetes/pki/{}.crt", authority.base_name()));
        let old = fs::read_to_string(node.ca().join(authority.base_name()).with_extension("crt"))
            .unwrap();
        assert!(
            file.starts_with(old.trim_end()),
            "{what}: {authority} is another one"
        );
    }
}

fn start(command: &mut Command) -> std::process::Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn two_commands_at_once_leave_a_complete_node() {
    let prepared = prepared();
    let pairs = CHANGES
        .iter()
        .enumerate()
        .flat_map(|(at, one)| CHANGES[at..].iter().map(move |other| (*one, *other)));
    for (turn, (one, other)) in sampled(0, pairs.enumerate()) {
        let node = prepared.copied();
        let first = start(&mut one.command(&node, 1));
        // Some commands start together, others while the first one is at work.
        let_pass(Duration::from_millis(15 * (turn as u64 % 4)));
        let second = start(&mut other.command(&node, 2));
        for (change, child) in [(one, first), (other, second)] {
            let ran = Ran::from(child.wait_with_output().unwrap());
            let what = format!(
                "{change:?} of {one:?} and {other:?}: {:?}\n{}",
                (ran.code, ran.signal),
                ran.said()
            );
            assert!(
                ran.code.is_some_and(|code| change.may_end_with(code)),
                "{what}"
            );
            assert!(!ran.said().is_empty(), "{what}");
        }
        assert_completes(&node, &format!("{one:?} and {other:?}"));
    }
}

const SIGNALS: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGKILL,
    Signal::SIGPIPE,
    Signal::SIGXFSZ,
    Signal::SIGXCPU,
    Signal::SIGALRM,
];

/// Starts a command with the default handling of signals: the tests may run under nohup(1).
fn start_with_default_signals(command: &Command) -> std::process::Child {
    let mut env = Command::new("env");
    env.arg("--default-signal")
        .arg(command.get_program())
        .args(command.get_args())
        .env_remove("NODEPKI_FAILPOINT");
    env.env_remove("JOURNAL_STREAM");
    start(&mut env)
}

fn send(signal: Signal, child: &std::process::Child) {
    // The process was not waited for, so its id is not reused.
    let _ = kill(Pid::from_raw(child.id().try_into().unwrap()), signal);
}

/// Returns the time that a command takes.
fn duration(node: &Node, change: Change) -> Duration {
    let begin = Instant::now();
    Ran::of(&mut change.command(node, 0));
    begin.elapsed()
}

#[test]
fn completes_command_that_a_signal_ended_at_any_moment() {
    let prepared = prepared();
    let cases = CHANGES
        .into_iter()
        .flat_map(|change| SIGNALS.map(|signal| (change, signal)));
    let lengths = CHANGES.map(|change| duration(&prepared.copied(), change));
    let mut ended = 0;
    for (turn, (change, signal)) in sampled(0, cases.enumerate()) {
        let node = prepared.copied();
        // The moments are spread over the length of the command.
        let share = (turn as f64 * 0.618).fract();
        let child = start_with_default_signals(&change.command(&node, 1));
        let_pass(lengths[change as usize].mul_f64(share));
        send(signal, &child);
        let ran = Ran::from(child.wait_with_output().unwrap());
        let what = format!(
            "{change:?} {signal} at {share:.2}: {:?}\n{}",
            (ran.code, ran.signal),
            ran.said()
        );
        match ran.code {
            None => assert_eq!(ran.signal, Some(signal as i32), "{what}"),
            Some(code) => assert!(change.may_end_with(code), "{what}"),
        }
        // A run with a plug-in ends the plug-in first.
        let is_ended_with_programs = ran.code == Some(75) && change != Change::Stage;
        let words = format!("nodepki: ended by {signal}");
        assert_eq!(
            is_ended_with_programs,
            ran.stderr.contains(&words),
            "{what}"
        );
        ended += usize::from(ran.signal.is_some() || is_ended_with_programs);
        let again = Ran::of(&mut change.command(&node, 1));
        assert!(
            again.code.is_some_and(|code| change.may_end_with(code)),
            "{what}\nthen {}",
            again.said()
        );
        assert_completes(&node, &what);
        assert_no_half_backup(&node.outside("backup-1"), &what);
    }
    assert!(ended > 0, "no signal came in time");
}

/// A backup is written under another name first.
fn assert_no_half_backup(backup: &Path, what: &str) {
    let Ok(text) = fs::read_to_string(backup) else {
        return;
    };
    assert_eq!(
        text.matches("-----BEGIN").count(),
        text.matches("-----END").count(),
        "{what}"
    );
}

#[test]
fn daemon_ends_as_signal_says_and_next_run_completes_the_node() {
    let signals = [
        (Signal::SIGTERM, Some(0)),
        (Signal::SIGINT, Some(0)),
        (Signal::SIGHUP, None),
        (Signal::SIGPIPE, None),
        (Signal::SIGXFSZ, None),
        (Signal::SIGQUIT, Some(-3)),
        (Signal::SIGKILL, Some(-9)),
    ];
    let prepared = prepared();
    let cases = signals
        .into_iter()
        .flat_map(|signal| (0..4).map(move |turn| (signal, turn)));
    for ((signal, end), turn) in sampled(0, cases) {
        let node = prepared.copied();
        let ready = node.path("/var/lib/nodepki/lock");
        let _ = fs::remove_file(&ready);
        let child = start_with_default_signals(&node.with_local(&["daemon"], &[]));
        // The first step takes the lock.
        wait_until("the daemon takes the lock", || ready.exists());
        let_pass(Duration::from_millis(70 * turn));
        send(signal, &child);
        if end.is_none() {
            let_pass(Duration::from_millis(50));
            send(Signal::SIGTERM, &child);
        }
        let ran = Ran::from(child.wait_with_output().unwrap());
        let ended = ran.code.or(ran.signal.map(|signal| -signal));
        assert_eq!(ended, Some(end.unwrap_or(0)), "{signal}\n{}", ran.said());
        assert_completes(&node, signal.as_str());
    }
}
