//! The daemon as a service manager observes it: the real binary with a notify socket, signals, file changes and the
//! state on disk afterwards.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use serde_json::Value;

use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::signing::now;
use crate::time::{eventually, let_pass, patience, wait_until};

/// Longer than the daemon takes to react to a relevant file change.
const REACTION_TIME: Duration = Duration::from_secs(3);

/// A running daemon on a node, with the socket of the service manager.
struct Daemon {
    child: Child,
    socket: UnixDatagram,
    /// All notifications so far in order, one assignment per entry.
    notifications: Vec<String>,
    /// Number of notifications that the test has consumed.
    consumed: usize,
    log: std::path::PathBuf,
}

impl Daemon {
    /// Starts the daemon with the plug-in signer. `watchdog` is the WatchdogSec= of the unit.
    fn start(node: &Node, watchdog: Option<Duration>) -> Self {
        let socket = node.outside("notify");
        let _ = fs::remove_file(&socket);
        let log = node.outside("daemon.log");
        let mut command = node.configured(["daemon", "-v", "--log", "text"]);
        command
            .env("NOTIFY_SOCKET", &socket)
            .env_remove("WATCHDOG_PID")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap());
        if let Some(watchdog) = watchdog {
            command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        }
        let socket = UnixDatagram::bind(socket).unwrap();
        let child = command.spawn().unwrap();
        Daemon {
            child,
            socket,
            notifications: Vec::new(),
            consumed: 0,
            log,
        }
    }

    /// Starts the daemon and waits until its first step has completed the node.
    #[track_caller]
    fn start_settled(node: &Node) -> Self {
        let mut daemon = Self::start(node, None);
        daemon.wait_for_notification("STATUS=everything is in place");
        daemon
    }

    /// Reads notifications until one contains `words`, and returns it.
    #[track_caller]
    fn wait_for_notification(&mut self, words: &str) -> String {
        let mut buffer = [0; 4096];
        eventually(|| {
            while let Some(text) = self.notifications.get(self.consumed) {
                self.consumed += 1;
                if text.contains(words) {
                    return Ok(text.clone());
                }
            }
            self.socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            if let Ok(length) = self.socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                self.notifications.extend(text.lines().map(str::to_owned));
            }
            Err(format!(
                "{words:?} is missing in {:?}\n{}",
                self.notifications,
                self.log()
            ))
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Number of rotation steps so far.
    fn steps(&self) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains("rotation step: "))
            .count()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Sends SIGTERM and asserts that the daemon ends soon with status 0.
    #[track_caller]
    fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        self.wait_for_notification("STOPPING=1");
        let status = eventually(|| {
            let status = self.child.try_wait().unwrap();
            status.ok_or_else(|| format!("the daemon does not stop\n{}", self.log()))
        });
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn notifies_the_service_manager_of_its_state() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start(&node, Some(Duration::from_millis(400)));
    daemon.wait_for_notification("READY=1");
    let status = daemon.wait_for_notification("STATUS=everything is in place; next at 20");
    assert!(status.ends_with('Z'), "{status}");
    node.assert_sound(&EVERYTHING);
    for _ in 0..3 {
        daemon.wait_for_notification("WATCHDOG=1");
    }
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_notification("RELOADING=1");
    let since = daemon.wait_for_notification("MONOTONIC_USEC=");
    assert!(since["MONOTONIC_USEC=".len()..].parse::<u64>().unwrap() > 0);
    daemon.wait_for_notification("READY=1");
    daemon.wait_for_notification("STATUS=everything is in place");
    daemon.stop();
}

#[test]
fn notifies_abstract_socket() {
    use std::os::linux::net::SocketAddrExt;
    let node = Node::bootstrapped();
    let name = format!("nodepki-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(patience())).unwrap();
    let mut child = node
        .with_local(&["daemon"], &[])
        .env("NOTIFY_SOCKET", format!("@{name}"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn reports_broken_configuration_and_keeps_the_previous_one() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start_settled(&node);
    // The file change alone triggers a reload; the signal triggers another one.
    node.write_settings(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nrotatoin: {}\n",
    );
    let notification = daemon.wait_for_notification(
        "STATUS=the new configuration is faulty and the previous one stays in force",
    );
    assert!(notification.contains("config.yaml:3:1"), "{notification}");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_notification("RELOADING=1");
    daemon.wait_for_notification("READY=1");
    daemon.wait_for_notification("STATUS=the new configuration is faulty");
    assert!(daemon.log().contains("config.yaml:3:1"), "{}", daemon.log());
    // The daemon keeps working.
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    daemon.wait_for_notification("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    // A valid configuration is used again.
    node.settings("");
    daemon.wait_for_notification("RELOADING=1");
    daemon.wait_for_notification("STATUS=everything is in place");
    daemon.stop();
}

#[test]
fn exits_at_start_on_broken_configuration() {
    let node = Node::new();
    node.write_settings("kind: NodePKIConfiguration\n");
    node.run(&[
        "daemon",
        "--config",
        node.outside("config.yaml").to_str().unwrap(),
    ])
    .ended(78)
    .says("config.yaml");
}

#[test]
fn follows_changed_kubeadm_configuration() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start_settled(&node);
    node.configure(&INIT.replace(
        "api.example.com:6443",
        "api.example.com:6443\napiServer: {certSANs: [more.example.com]}",
    ));
    daemon.wait_for_notification("RELOADING=1");
    daemon.wait_for_notification("STATUS=everything is in place");
    // The new certificate is within its cool-down first.
    assert!(
        daemon.log().contains("more.example.com"),
        "{}",
        daemon.log()
    );
    daemon.stop();
}

#[test]
fn wakes_on_changes_by_other_processes_and_not_on_its_own() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start_settled(&node);
    let_pass(REACTION_TIME);
    assert_eq!(
        daemon.steps(),
        1,
        "its own file changes wake the daemon:\n{}",
        daemon.log()
    );
    // kubeadm writes one file after the other in place; the daemon must see the final state.
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    node.write("/etc/kubernetes/scheduler.conf", "");
    daemon.wait_for_notification("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    let_pass(REACTION_TIME);
    let steps = daemon.steps();
    assert!(steps <= 3, "the daemon loops:\n{}", daemon.log());
    // Rewriting the same content is not a change, and neither is a file that is created and removed.
    let apiserver = node.path("/etc/kubernetes/pki/apiserver.crt");
    fs::write(&apiserver, fs::read(&apiserver).unwrap()).unwrap();
    node.write("/etc/kubernetes/pki/.swp", "x");
    node.remove("/etc/kubernetes/pki/.swp");
    let_pass(REACTION_TIME);
    assert_eq!(daemon.steps(), steps, "{}", daemon.log());
    daemon.stop();
}

/// Slots with a pending key.
fn pending_slots(node: &Node) -> Vec<String> {
    let slots = node.path("/var/lib/nodepki/pending");
    let mut keys: Vec<String> = fs::read_dir(slots)
        .unwrap()
        .filter_map(|slot| fs::read_to_string(slot.unwrap().path().join("key.pem")).ok())
        .collect();
    keys.sort();
    keys
}

fn assert_next_run_completes_with_the_same_keys(node: &Node) {
    node.signer_behaves();
    let mut daemon = Daemon::start(node, None);
    daemon.wait_for_notification("STATUS=everything is in place");
    daemon.stop();
    node.assert_sound(&EVERYTHING);
    for (slot, keys) in node.keys_seen() {
        assert_eq!(keys.len(), 1, "{slot} was requested with several keys");
    }
}

#[test]
fn keeps_pending_requests_when_stopped() {
    let node = Node::with_service_account();
    node.signer_does("all", "pending");
    let mut daemon = Daemon::start(&node, None);
    daemon.wait_for_notification("READY=1");
    wait_until("every request is sent", || {
        node.submissions().len() == EVERYTHING.len()
    });
    daemon.stop();
    let before = pending_slots(&node);
    assert_eq!(before.len(), EVERYTHING.len());
    assert_next_run_completes_with_the_same_keys(&node);
}

#[test]
fn keeps_pending_requests_when_killed() {
    let node = Node::with_service_account();
    node.signer_does("all", "hang");
    let mut daemon = Daemon::start(&node, None);
    daemon.wait_for_notification("READY=1");
    wait_until("every request is sent", || {
        node.submissions().len() == EVERYTHING.len()
    });
    daemon.signal(Signal::SIGKILL);
    daemon.child.wait().unwrap();
    drop(daemon);
    assert_next_run_completes_with_the_same_keys(&node);
}

#[test]
fn waits_while_another_run_holds_the_lock() {
    let node = Node::with_service_account();
    let mut other = node.start_hanging_run("all");
    wait_until("a request is sent", || !node.submissions().is_empty());
    let mut daemon = Daemon::start(&node, None);
    daemon.wait_for_notification("READY=1");
    let status = daemon.wait_for_notification("STATUS=another run holds the lock: pid ");
    assert!(status.contains("bootstrap"), "{status}");
    // Retried many times, logged once.
    for _ in 0..2 {
        daemon.wait_for_notification("STATUS=another run holds the lock: pid ");
    }
    let logged = |words: &str| {
        let log = daemon.log();
        let lines = log.lines().filter(|line| line.contains("INFO"));
        lines.filter(|line| line.contains(words)).count()
    };
    assert_eq!(logged("another run holds the lock: pid "), 1);
    assert_eq!(
        (logged("rotation step"), logged("the lock is free")),
        (0, 0)
    );
    node.signer_behaves();
    other.wait().unwrap();
    daemon.wait_for_notification("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    let log = daemon.log();
    assert_eq!(log.matches("the lock is free again").count(), 1, "{log}");
    assert!(
        !daemon.log().contains("WARN"),
        "no failure:\n{}",
        daemon.log()
    );
    daemon.stop();
}

#[test]
fn manual_command_succeeds_while_daemon_waits_for_a_signer() {
    let node = Node::with_service_account();
    // The daemon may wait for the signer longer than any command waits for the lock.
    node.settings("wait: 10m\n");
    node.signer_does("apiserver", "pending");
    let mut daemon = Daemon::start(&node, None);
    daemon.wait_for_notification("READY=1");
    wait_until("the request is sent", || {
        node.submissions().contains_key("apiserver")
    });
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let lifetime = Duration::from_secs(365 * 86_400);
    let new = CertificateAuthority::self_signed("front-proxy-ca", key, now(), lifetime).unwrap();
    let file = node.outside("new.crt");
    fs::write(&file, new.bundle().to_pem()).unwrap();
    let ran = Ran::of(&mut node.with_local(
        &["-o", "json", "authority", "stage", "front-proxy-ca"],
        &["--certificate", file.to_str().unwrap()],
    ));
    // The restarts are recorded only: below another root no component runs.
    ran.ended(75);
    let outcome: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(outcome["applied"], true, "{}", ran.said());
    // The daemon continues with the same request.
    node.signer_behaves();
    daemon.wait_for_notification("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    daemon.stop();
}

#[test]
fn shows_refusal_of_signer_in_the_status() {
    let node = Node::with_service_account();
    node.signer_does("etcd-peer", "denied");
    let mut daemon = Daemon::start(&node, None);
    let status = daemon.wait_for_notification("STATUS=etcd-peer");
    assert!(status.contains("not on a Friday"), "{status}");
    assert!(
        status.contains("this needs manual action, next at 20"),
        "{status}"
    );
    daemon.stop();
}

/// Counts context switches as the kernel reports them.
#[test]
fn stays_asleep_while_idle() {
    let node = Node::bootstrapped();
    let daemon = Daemon::start_settled(&node);
    let switches_during = |time| {
        let before = context_switches(daemon.child.id());
        let_pass(time);
        context_switches(daemon.child.id()) - before
    };
    wait_until("the daemon sleeps", || {
        switches_during(Duration::from_secs(1)) == 0
    });
    let switches = switches_during(Duration::from_secs(5));
    assert_eq!(switches, 0, "context switches while nothing is due");
    daemon.stop();
}

/// Number of voluntary context switches of all threads of a process.
fn context_switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"))
                .unwrap();
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

#[track_caller]
#[test]
fn arms_alarm_that_is_cancelled_when_the_clock_is_set() {
    // A test must not set the machine's clock. /proc shows the timer flag that makes the kernel wake the daemon when
    // the clock is set.
    let node = Node::bootstrapped();
    let daemon = Daemon::start_settled(&node);
    let descriptors = format!("/proc/{}/fdinfo", daemon.child.id());
    let timers = || -> Vec<String> {
        let entries = fs::read_dir(Path::new(&descriptors)).unwrap();
        let texts = entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
        texts.filter(|text| text.contains("clockid:")).collect()
    };
    wait_until("every timer is absolute", || {
        timers()
            .iter()
            .all(|timer| !timer.contains("settime flags: 00"))
    });
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().to_owned()
    };
    let timers = timers();
    let timer = &timers[0];
    assert_eq!(field(timer, "clockid:"), "0", "CLOCK_REALTIME");
    // TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, in octal.
    assert_eq!(field(timer, "settime flags:"), "03", "{timer}");
    assert_ne!(
        field(timer, "it_value:"),
        "(0, 0)",
        "the timer is not armed"
    );
    daemon.stop();
}
