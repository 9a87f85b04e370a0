//! Measures a full bootstrap of a stacked control-plane node, and the real kubeadm doing the same work.
//!
//!     cargo bench --bench bootstrap [-- RUNS]
//!
//! Prints tables in Markdown; no run fails for being slow. Every run is a separate process, and runs of nodepki and
//! kubeadm alternate, so the load of the machine affects both. On a busy machine trust minima and CPU time.
//! `tests/servers/build kubeadm` builds kubeadm; without it its rows are omitted with a note.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark that cannot run stops"
)]

mod authorities;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nodepki::kube::names::Authority;
use nodepki::x509::KeyAlgorithm;
use tempfile::TempDir;

use authorities::make_authorities;

/// Default number of runs of each kind, after one that is discarded.
const RUNS: usize = 11;
/// Fewer runs for RSA-4096, which takes long; its spread would need more.
const RUNS_RSA_4096: usize = 7;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == MEASURE) {
        return measure_here(&arguments[1..]);
    }
    let runs = arguments
        .iter()
        .find_map(|argument| argument.to_str()?.parse().ok());
    let kubeadm = kubeadm();
    heading(kubeadm.as_deref());
    let mut ratios = Vec::new();
    for algorithm in [
        KeyAlgorithm::EcdsaP256,
        KeyAlgorithm::Rsa2048,
        KeyAlgorithm::Rsa4096,
    ] {
        let runs = runs.unwrap_or(match algorithm {
            KeyAlgorithm::Rsa4096 => RUNS_RSA_4096,
            _ => RUNS,
        });
        ratios.extend(compare(algorithm, runs, kubeadm.as_deref()));
    }
    println!(
        "\n| goal | wanted | minimum wall | median wall | median CPU |\n| --- | --- | --- | --- | --- |"
    );
    for ratio in ratios {
        println!("{ratio}");
    }
}

fn heading(kubeadm: Option<&Path>) {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{} cores, load {}; each value is median [min..max] of n processes\n",
        available_parallelism().map_or(1, usize::from),
        load.split(' ').next().unwrap_or("unknown"),
    );
    if kubeadm.is_none() {
        println!("No kubeadm to compare with: `tests/servers/build kubeadm` makes it.\n");
    }
    println!("| work | keys | on | wall ms | CPU ms | CPU/wall | peak RSS MiB | n |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
}

/// Prints the rows of one algorithm and returns the lines on the goals.
fn compare(algorithm: KeyAlgorithm, runs: usize, kubeadm: Option<&Path>) -> Vec<String> {
    let tmpfs = Site::new(Path::new("/dev/shm"), algorithm);
    let disk = Site::new(Path::new(env!("CARGO_TARGET_TMPDIR")), algorithm);
    let (mut on_tmpfs, mut on_disk) = (Series::default(), Series::default());
    let (mut settled, mut status) = (Series::default(), Series::default());
    let (mut init, mut again, mut expiry) =
        (Series::default(), Series::default(), Series::default());
    for _ in 0..=runs {
        on_disk.push(disk.bootstrap());
        on_tmpfs.push(tmpfs.bootstrap());
        settled.push(tmpfs.bootstrap_again());
        status.push(tmpfs.nodepki(&["status"]));
        if let Some(kubeadm) = kubeadm {
            init.push(tmpfs.kubeadm_init(kubeadm));
            again.push(tmpfs.kubeadm_init_again(kubeadm));
            expiry.push(tmpfs.kubeadm(kubeadm, &["certs", "check-expiration"]));
        }
    }
    let keys = algorithm.to_string();
    on_disk.row("nodepki bootstrap", &keys, "disk");
    on_tmpfs.row("nodepki bootstrap", &keys, "tmpfs");
    init.row(
        "kubeadm init phase certs all, kubeconfig all",
        &keys,
        "tmpfs",
    );
    settled.row("nodepki bootstrap, nothing to do", &keys, "tmpfs");
    again.row("kubeadm, nothing to do", &keys, "tmpfs");
    status.row("nodepki status", &keys, "tmpfs");
    expiry.row("kubeadm certs check-expiration", &keys, "tmpfs");

    let wanted = if algorithm == KeyAlgorithm::EcdsaP256 {
        0.125
    } else {
        0.6
    };
    let mut lines = Vec::new();
    if kubeadm.is_some() {
        lines.push(on_tmpfs.against(&init, &format!("{keys} bootstrap : kubeadm"), wanted));
        lines.push(status.against(&expiry, &format!("{keys} status : check-expiration"), 0.1));
    }
    let peak = on_tmpfs.peak().max(on_disk.peak());
    lines.push(format!("| {keys} peak RSS | 12 MiB | {peak:.1} MiB | | |"));
    lines
}

/// A node's root, authorities and configurations in a directory.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new(parent: &Path, algorithm: KeyAlgorithm) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let site = Site { dir };
        fs::create_dir(site.path("kubeadm")).unwrap();
        fs::write(
            site.path("nodepki.yaml"),
            config(algorithm, "/etc/kubernetes/pki"),
        )
        .unwrap();
        let pki = site.path("kubeadm/pki");
        fs::write(
            site.path("kubeadm.yaml"),
            config(algorithm, pki.to_str().unwrap()),
        )
        .unwrap();
        make_authorities(&site.path("authorities"), algorithm);
        site
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn nodepki(&self, arguments: &[&str]) -> Sample {
        let mut command = vec![env!("CARGO_BIN_EXE_nodepki").into(), "--root".into()];
        command.push(self.path("root").into_os_string());
        command.extend(arguments.iter().map(OsString::from));
        measure(None, &command)
    }

    fn bootstrap(&self) -> Sample {
        let _ = fs::remove_dir_all(self.path("root"));
        fs::create_dir(self.path("root")).unwrap();
        self.bootstrap_again()
    }

    fn bootstrap_again(&self) -> Sample {
        let signer = format!("local:{}", self.path("authorities").display());
        let config = self.path("nodepki.yaml");
        let config = config.to_str().unwrap();
        self.nodepki(&["bootstrap", "--signer", &signer, "--kubeadm-config", config])
    }

    /// Runs kubeadm without a network, so no lookup is measured.
    fn kubeadm(&self, kubeadm: &Path, arguments: &[&str]) -> Sample {
        let mut command = vec![kubeadm.as_os_str().to_owned()];
        command.extend(arguments.iter().map(OsString::from));
        command.extend([
            "--config".into(),
            self.path("kubeadm.yaml").into_os_string(),
        ]);
        measure(Some("--net"), &command)
    }

    /// The same work by kubeadm: leaves, service-account pair and kubeconfigs under existing authorities.
    fn kubeadm_init(&self, kubeadm: &Path) -> Sample {
        let _ = fs::remove_dir_all(self.path("kubeadm"));
        fs::create_dir_all(self.path("kubeadm/pki/etcd")).unwrap();
        for authority in Authority::ALL {
            for suffix in ["crt", "key"] {
                let file = format!("{}.{suffix}", authority.base_name());
                let to = self.path("kubeadm/pki").join(&file);
                fs::copy(self.path("authorities").join(&file), to).unwrap();
            }
        }
        self.kubeadm_init_again(kubeadm)
    }

    fn kubeadm_init_again(&self, kubeadm: &Path) -> Sample {
        let to = self.path("kubeadm");
        let phase = ["init", "phase", "kubeconfig", "all", "--kubeconfig-dir"];
        let certs = self.kubeadm(kubeadm, &["init", "phase", "certs", "all"]);
        let kubeconfigs = self.kubeadm(kubeadm, &[&phase[..], &[to.to_str().unwrap()]].concat());
        Sample {
            wall: certs.wall + kubeconfigs.wall,
            cpu: certs.cpu + kubeconfigs.cpu,
            rss: certs.rss.max(kubeconfigs.rss),
        }
    }
}

fn config(algorithm: KeyAlgorithm, certificates_dir: &str) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 192.0.2.11}}
nodeRegistration: {{name: cp1}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
encryptionAlgorithm: {algorithm}
certificatesDir: {certificates_dir}
"
    )
}

fn kubeadm() -> Option<PathBuf> {
    let cached = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        Some(cache?.join("nodepki-tests/bin/kubeadm"))
    };
    let named = std::env::var_os("NODEPKI_TEST_KUBEADM").map(PathBuf::from);
    named.or_else(cached).filter(|path| path.exists())
}

// ---- Measurement of one process ----

/// Duration, CPU time and memory of a run, in milliseconds and MiB.
#[derive(Clone, Copy)]
struct Sample {
    wall: f64,
    cpu: f64,
    rss: f64,
}

/// Option with which this program runs another one and prints its measurements.
const MEASURE: &str = "--measure";

/// Measures a command in a new process of this program, whose only child it is: the kernel sums the usage of children.
fn measure(unshare: Option<&str>, command: &[OsString]) -> Sample {
    let this = std::env::current_exe().unwrap();
    let mut outer = match unshare {
        None => Command::new(&this),
        Some(namespace) => {
            let mut outer = Command::new("unshare");
            if !nix::unistd::geteuid().is_root() {
                outer.arg("--map-root-user");
            }
            outer.args([namespace, "--"]).arg(&this);
            outer
        }
    };
    let output = outer.arg(MEASURE).args(command).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    let numbers = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = numbers
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    let [wall, cpu, rss] = numbers[..] else {
        panic!("{numbers:?}")
    };
    Sample { wall, cpu, rss }
}

fn measure_here(command: &[OsString]) {
    let started = Instant::now();
    let status = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    let wall = started.elapsed();
    assert!(status.success(), "{status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let milliseconds = |time: TimeVal| time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3;
    println!(
        "{} {} {}",
        wall.as_secs_f64() * 1e3,
        milliseconds(usage.user_time()) + milliseconds(usage.system_time()),
        usage.max_rss() as f64 / 1024.0
    );
}

/// Runs of one kind, without the first.
#[derive(Default)]
struct Series {
    warm: bool,
    samples: Vec<Sample>,
}

impl Series {
    fn push(&mut self, sample: Sample) {
        if std::mem::replace(&mut self.warm, true) {
            self.samples.push(sample);
        }
    }

    fn sorted(&self, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let mut values: Vec<f64> = self.samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn row(&self, work: &str, keys: &str, on: &str) {
        if self.samples.is_empty() {
            return;
        }
        let text = |values: &[f64]| {
            let (first, last) = (values[0], values[values.len() - 1]);
            format!("{:.1} [{first:.1}..{last:.1}]", values[values.len() / 2])
        };
        let cores = self.sorted(|sample| sample.cpu / sample.wall);
        println!(
            "| {work} | {keys} | {on} | {} | {} | {:.2} | {:.1} | {} |",
            text(&self.sorted(|sample| sample.wall)),
            text(&self.sorted(|sample| sample.cpu)),
            cores[cores.len() / 2],
            self.peak(),
            self.samples.len()
        );
    }

    fn peak(&self) -> f64 {
        self.samples
            .iter()
            .map(|sample| sample.rss)
            .fold(0.0, f64::max)
    }

    /// Compares minima, which load affects least, and medians: the time of an RSA key is random.
    fn against(&self, other: &Series, what: &str, wanted: f64) -> String {
        let minimum = |of: fn(&Sample) -> f64| self.sorted(of)[0] / other.sorted(of)[0];
        let median = |of: fn(&Sample) -> f64| {
            let middle = |values: Vec<f64>| values[values.len() / 2];
            middle(self.sorted(of)) / middle(other.sorted(of))
        };
        format!(
            "| {what} | {wanted} | {:.3} | {:.3} | {:.3} |",
            minimum(|sample| sample.wall),
            median(|sample| sample.wall),
            median(|sample| sample.cpu)
        )
    }
}
