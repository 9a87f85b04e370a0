//! The daemon as a service manager sees it: the real binary, a notify socket, signals, files, and what is on disk after.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use serde_json::Value;

use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::signing::now;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the daemon takes to notice a change of files that concerns it.
const QUIET: Duration = Duration::from_secs(3);

/// A daemon on a node, and the service manager that it tells.
struct Daemon {
    child: Child,
    socket: UnixDatagram,
    /// All that it was told so far, in order, each assignment on its own.
    told: Vec<String>,
    /// How many of them a test has seen.
    heard: usize,
    log: std::path::PathBuf,
}

impl Daemon {
    /// With the signer that logs. `watchdog` as the unit's WatchdogSec=.
    fn start(node: &Node, watchdog: Option<Duration>) -> Self {
        let socket = node.outside("notify");
        let _ = fs::remove_file(&socket);
        let log = node.outside("daemon.log");
        let mut command = node.command(["daemon", "-v", "--log", "text", "--config"]);
        command
            .arg(node.outside("config.yaml"))
            .arg("--kubeadm-config")
            .arg(node.outside("kubeadm.yaml"))
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
            told: Vec::new(),
            heard: 0,
            log,
        }
    }

    /// Reads what it is told until `words` are in it, and gives the whole assignment.
    #[track_caller]
    fn tells(&mut self, words: &str) -> String {
        let give_up = Instant::now() + PATIENCE;
        let mut buffer = [0; 4096];
        while Instant::now() < give_up {
            while let Some(text) = self.told.get(self.heard) {
                self.heard += 1;
                if text.contains(words) {
                    return text.clone();
                }
            }
            self.socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            if let Ok(length) = self.socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                self.told.extend(text.lines().map(str::to_owned));
            }
        }
        panic!(
            "{words:?} was never told, but {:?}\n{}",
            self.told,
            self.log()
        );
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// How many steps it has taken.
    fn steps(&self) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains("rotation step: "))
            .count()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Sends SIGTERM; it must end well, and soon.
    #[track_caller]
    fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        self.tells("STOPPING=1");
        let asked = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                asked.elapsed() < Duration::from_secs(5),
                "it does not stop\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        };
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
fn it_tells_the_service_manager_how_things_are() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start(&node, Some(Duration::from_millis(400)));
    daemon.tells("READY=1");
    let status = daemon.tells("STATUS=everything is in place; next at 20");
    assert!(status.ends_with('Z'), "{status}");
    node.assert_sound(&EVERYTHING);
    for _ in 0..3 {
        daemon.tells("WATCHDOG=1");
    }
    daemon.signal(Signal::SIGHUP);
    daemon.tells("RELOADING=1");
    let since = daemon.tells("MONOTONIC_USEC=");
    assert!(since["MONOTONIC_USEC=".len()..].parse::<u64>().unwrap() > 0);
    daemon.tells("READY=1");
    daemon.tells("STATUS=everything is in place");
    daemon.stop();
}

#[test]
fn an_abstract_socket_is_told_too() {
    use std::os::linux::net::SocketAddrExt;
    let node = Node::bootstrapped();
    let name = format!("nodepki-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
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
fn a_broken_configuration_is_reported_and_the_old_one_stays() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("STATUS=everything is in place");
    // The change of the file alone is enough; the signal says it again.
    fs::write(
        node.outside("config.yaml"),
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nrotatoin: {}\n",
    )
    .unwrap();
    let told =
        daemon.tells("STATUS=the new configuration is faulty and the one before stays in force");
    assert!(told.contains("config.yaml:3:1"), "{told}");
    daemon.signal(Signal::SIGHUP);
    daemon.tells("RELOADING=1");
    daemon.tells("READY=1");
    daemon.tells("STATUS=the new configuration is faulty");
    assert!(daemon.log().contains("config.yaml:3:1"), "{}", daemon.log());
    // It still does its work.
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    daemon.tells("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    // And with the right one it goes on as if nothing had been.
    node.settings("");
    daemon.tells("RELOADING=1");
    daemon.tells("STATUS=everything is in place");
    daemon.stop();
}

#[test]
fn at_the_start_a_broken_configuration_is_the_end() {
    let node = Node::new();
    fs::write(node.outside("config.yaml"), "kind: NodePKIConfiguration\n").unwrap();
    node.run(&[
        "daemon",
        "--config",
        node.outside("config.yaml").to_str().unwrap(),
    ])
    .ended(78)
    .says("config.yaml");
}

#[test]
fn a_configuration_of_kubeadm_that_changes_is_followed() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("STATUS=everything is in place");
    node.configure(&INIT.replace(
        "api.example.com:6443",
        "api.example.com:6443\napiServer: {certSANs: [more.example.com]}",
    ));
    daemon.tells("RELOADING=1");
    daemon.tells("STATUS=everything is in place");
    // What was issued a moment ago cools down first.
    assert!(
        daemon.log().contains("more.example.com"),
        "{}",
        daemon.log()
    );
    daemon.stop();
}

#[test]
fn what_others_do_wakes_it_and_what_it_does_itself_does_not() {
    let node = Node::with_service_account();
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("STATUS=everything is in place");
    std::thread::sleep(QUIET);
    assert_eq!(
        daemon.steps(),
        1,
        "its own files wake it:\n{}",
        daemon.log()
    );
    // kubeadm writes one after the other, in place; what matters is that the end is seen.
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    node.write("/etc/kubernetes/scheduler.conf", "");
    daemon.tells("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    std::thread::sleep(QUIET);
    let steps = daemon.steps();
    assert!(steps <= 3, "it goes round in circles:\n{}", daemon.log());
    // A file that says the same is no change, and neither is one that came and went.
    let apiserver = node.path("/etc/kubernetes/pki/apiserver.crt");
    fs::write(&apiserver, fs::read(&apiserver).unwrap()).unwrap();
    node.write("/etc/kubernetes/pki/.swp", "x");
    node.remove("/etc/kubernetes/pki/.swp");
    std::thread::sleep(QUIET);
    assert_eq!(daemon.steps(), steps, "{}", daemon.log());
    daemon.stop();
}

/// Which keys wait for a signer.
fn waiting(node: &Node) -> Vec<String> {
    let slots = node.path("/var/lib/nodepki/pending");
    let mut keys: Vec<String> = fs::read_dir(slots)
        .unwrap()
        .filter_map(|slot| fs::read_to_string(slot.unwrap().path().join("key.pem")).ok())
        .collect();
    keys.sort();
    keys
}

fn the_next_one_finishes_with_the_same_keys(node: &Node) {
    node.signer_behaves();
    let mut daemon = Daemon::start(node, None);
    daemon.tells("STATUS=everything is in place");
    daemon.stop();
    node.assert_sound(&EVERYTHING);
    for (slot, keys) in node.keys_seen() {
        assert_eq!(keys.len(), 1, "{slot} was asked for with several keys");
    }
}

#[test]
fn a_stop_while_a_request_is_pending_loses_nothing() {
    let node = Node::with_service_account();
    node.signer_does("all", "pending");
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("READY=1");
    wait_for(|| node.submissions().len() == EVERYTHING.len());
    daemon.stop();
    let before = waiting(&node);
    assert_eq!(before.len(), EVERYTHING.len());
    the_next_one_finishes_with_the_same_keys(&node);
}

#[test]
fn kill_9_is_harmless() {
    let node = Node::with_service_account();
    node.signer_does("all", "hang");
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("READY=1");
    wait_for(|| node.submissions().len() == EVERYTHING.len());
    daemon.signal(Signal::SIGKILL);
    daemon.child.wait().unwrap();
    drop(daemon);
    the_next_one_finishes_with_the_same_keys(&node);
}

#[test]
fn it_waits_its_turn_while_another_run_is_at_work() {
    let node = Node::with_service_account();
    node.signer_does("all", "hang");
    let mut other = node
        .ask_command("60s")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| !node.submissions().is_empty());
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("READY=1");
    let status = daemon.tells("STATUS=another run holds the lock: pid ");
    assert!(status.contains("bootstrap"), "{status}");
    // Tried again and again, and logged once.
    for _ in 0..2 {
        daemon.tells("STATUS=another run holds the lock: pid ");
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
    daemon.tells("STATUS=everything is in place");
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
    // A daemon that may wait for longer than any command waits for the lock.
    node.settings("wait: 10m\n");
    node.signer_does("apiserver", "pending");
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("READY=1");
    wait_for(|| node.submissions().contains_key("apiserver"));
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let lifetime = Duration::from_secs(365 * 86_400);
    let new = CertificateAuthority::self_signed("front-proxy-ca", key, now(), lifetime).unwrap();
    let file = node.outside("new.crt");
    fs::write(&file, new.bundle().to_pem()).unwrap();
    let begin = Instant::now();
    let ran = Ran::of(&mut node.with_local(
        &["-o", "json", "authority", "stage", "front-proxy-ca"],
        &["--certificate", file.to_str().unwrap()],
    ));
    // Restarts are due for it, and nothing runs below a root of its own.
    ran.ended(75);
    let outcome: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(outcome["applied"], true, "{}", ran.said());
    assert!(begin.elapsed() < Duration::from_secs(40), "{}", ran.said());
    // The daemon goes on with the same request.
    node.signer_behaves();
    daemon.tells("STATUS=everything is in place");
    node.assert_sound(&EVERYTHING);
    daemon.stop();
}

#[test]
fn a_refusal_is_said_in_the_status() {
    let node = Node::with_service_account();
    node.signer_does("etcd-peer", "denied");
    let mut daemon = Daemon::start(&node, None);
    let status = daemon.tells("STATUS=etcd-peer");
    assert!(status.contains("not on a Friday"), "{status}");
    assert!(
        status.contains("somebody has to see to it, next at 20"),
        "{status}"
    );
    daemon.stop();
}

/// The kernel's own tale: nothing wakes an idle daemon.
#[test]
fn an_idle_daemon_is_not_woken() {
    let node = Node::bootstrapped();
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("STATUS=everything is in place");
    std::thread::sleep(Duration::from_secs(1));
    let before = switches(daemon.child.id());
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(
        switches(daemon.child.id()),
        before,
        "context switches while nothing is due"
    );
    daemon.stop();
}

/// Voluntary context switches of all threads of a process.
fn switches(pid: u32) -> u64 {
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
fn wait_for(met: impl Fn() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < give_up, "it never happens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_alarm_is_cancelled_when_the_clock_is_set() {
    // Setting the machine's clock is not for a test. What the kernel was asked for can be read: the bit with which it
    // wakes the daemon when somebody else sets it.
    let node = Node::bootstrapped();
    let mut daemon = Daemon::start(&node, None);
    daemon.tells("STATUS=everything is in place");
    let descriptors = format!("/proc/{}/fdinfo", daemon.child.id());
    let timers = || -> Vec<String> {
        let entries = fs::read_dir(Path::new(&descriptors)).unwrap();
        let texts = entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
        texts.filter(|text| text.contains("clockid:")).collect()
    };
    wait_for(|| {
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
    assert_ne!(field(timer, "it_value:"), "(0, 0)", "it is armed");
    daemon.stop();
}
