//! The real daemon observed from outside: its resource use while nothing is due, and the delay of its renewals.
//! Used by the benchmark and by the budget test of a release.

#[path = "authorities.rs"]
pub(crate) mod authorities;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodepki::spec::schedule::{self, CertLife, Rotation};
use nodepki::store::{IssuedRecord, NodeRoot};
use nodepki::x509::{KeyAlgorithm, PrivateKey};
use tempfile::TempDir;
use time::OffsetDateTime;

use authorities::make_authorities;

const NODE: &str = "cp1";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a daemon to become idle after its last step.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// A daemon on a node whose certificates it has just issued.
pub(crate) struct Daemon {
    dir: TempDir,
    child: Child,
    notifications: UnixDatagram,
    issued: BTreeMap<String, IssuedRecord>,
}

impl Daemon {
    pub(crate) fn start(program: &Path, lifetime: &str, watchdog: Option<Duration>) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |below: &str| dir.path().join(below);
        fs::create_dir(path("root")).unwrap();
        make_authorities(&path("authorities"), KeyAlgorithm::EcdsaP256);
        let config = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 192.0.2.11}}
nodeRegistration: {{name: {NODE}}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
encryptionAlgorithm: ECDSA-P256
certificateValidityPeriod: {lifetime}
"
        );
        // Only `bootstrap` generates the service-account pair.
        let pki = path("root/etc/kubernetes/pki");
        fs::create_dir_all(&pki).unwrap();
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        fs::write(pki.join("sa.key"), key.to_pem().as_bytes()).unwrap();
        fs::write(pki.join("sa.pub"), key.public_key().to_pem()).unwrap();
        fs::write(path("kubeadm.yaml"), config).unwrap();
        let notifications = UnixDatagram::bind(path("notify")).unwrap();
        notifications.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut command = Command::new(program);
        command
            .arg("--root")
            .arg(path("root"))
            .args(["daemon", "--signer"])
            .arg(format!("local:{}", path("authorities").display()))
            .arg("--kubeadm-config")
            .arg(path("kubeadm.yaml"))
            .env("NOTIFY_SOCKET", path("notify"))
            .env_remove("WATCHDOG_PID")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stderr(fs::File::create(path("log")).unwrap());
        if let Some(watchdog) = watchdog {
            command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        }
        let child = command.spawn().unwrap();
        let mut daemon = Daemon {
            dir,
            child,
            notifications,
            issued: BTreeMap::new(),
        };
        daemon.settle();
        daemon
    }

    /// Waits until the daemon reports that everything is in place.
    fn settle(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            let length = self
                .notifications
                .recv(&mut buffer)
                .unwrap_or_else(|error| {
                    let log = fs::read_to_string(self.dir.path().join("log"));
                    panic!("{error}\n{}", log.unwrap())
                });
            if buffer[..length].starts_with(b"STATUS=everything is in place") {
                break;
            }
        }
        let root = NodeRoot::open(self.dir.path().join("root")).unwrap();
        let issued = root.issued().unwrap().into_iter();
        self.issued = issued
            .map(|(name, issued)| (name.to_string(), issued))
            .collect();
    }

    /// Delay in milliseconds from due to installed, for the next renewal of each certificate.
    pub(crate) fn renewal(&mut self) -> Vec<f64> {
        let due: BTreeMap<_, _> = self.issued.clone();
        let begun = Instant::now();
        while due.keys().any(|name| due[name] == self.issued[name]) {
            assert!(begun.elapsed() < TIMEOUT, "nothing is renewed");
            self.settle();
        }
        due.into_iter()
            .map(|(name, issued)| {
                let life = CertLife {
                    issued_at: issued.at,
                    not_after: issued.not_after,
                };
                let due = schedule::due_at(&life, &Rotation::default(), NODE).at;
                let file = self
                    .dir
                    .path()
                    .join("root/etc/kubernetes")
                    .join(file(&name));
                let installed = fs::metadata(file).unwrap().modified().unwrap();
                (OffsetDateTime::from(installed) - due).as_seconds_f64() * 1e3
            })
            .collect()
    }

    /// Reads notifications as systemd does: a socket with a full queue would block the daemon.
    fn listen_for(&self, length: Duration) {
        let end = Instant::now() + length;
        let left = || end.saturating_duration_since(Instant::now());
        while !left().is_zero() {
            self.notifications
                .set_read_timeout(Some(left().max(Duration::from_millis(1))))
                .unwrap();
            let _ = self.notifications.recv(&mut [0; 4096]);
        }
        self.notifications.set_read_timeout(Some(TIMEOUT)).unwrap();
    }

    pub(crate) fn seen_for(&self, length: Duration) -> Seen {
        self.listen_for(SETTLE_TIME);
        let process = PathBuf::from(format!("/proc/{}", self.child.id()));
        let before = (context_switches(&process), cpu(&process));
        self.listen_for(length);
        let status = fs::read_to_string(process.join("status")).unwrap();
        Seen {
            length,
            rss: field(&status, "VmRSS:") / 1024.0,
            rss_of_files: field(&status, "RssFile:") / 1024.0,
            context_switches: context_switches(&process) - before.0,
            cpu: cpu(&process) - before.1,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// Resource use of a daemon within a period.
pub(crate) struct Seen {
    length: Duration,
    pub(crate) rss: f64,
    pub(crate) rss_of_files: f64,
    context_switches: f64,
    cpu: f64,
}

impl Seen {
    pub(crate) fn wake_ups_an_hour(&self) -> f64 {
        self.context_switches / self.length.as_secs_f64() * 3600.0
    }

    pub(crate) fn cpu_a_day(&self) -> f64 {
        self.cpu / self.length.as_secs_f64() * 86_400.0
    }
}

fn file(name: &str) -> String {
    match name.strip_prefix("etcd-") {
        _ if name.ends_with(".conf") => name.to_owned(),
        Some(of_etcd) => format!("pki/etcd/{of_etcd}.crt"),
        None => format!("pki/{name}.crt"),
    }
}

fn field(status: &str, name: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn tasks(process: &Path) -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir(process.join("task")).unwrap();
    tasks.map(|task| task.unwrap().path())
}

/// Number of voluntary context switches: each is a sleep, which ends with a wake-up.
fn context_switches(process: &Path) -> f64 {
    tasks(process)
        .map(|task| fs::read_to_string(task.join("status")).unwrap())
        .map(|status| field(&status, "voluntary_ctxt_switches:"))
        .sum()
}

/// CPU seconds counted by the scheduler: utime and stime are too coarse for a process that sleeps.
fn cpu(process: &Path) -> f64 {
    tasks(process)
        .map(|task| fs::read_to_string(task.join("schedstat")).unwrap())
        .map(|counts| {
            counts
                .split_whitespace()
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
                / 1e9
        })
        .sum()
}
