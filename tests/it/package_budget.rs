//! Compares the resource use of a release binary with `packaging/budget.toml`. `tests/run package` runs this.

#[path = "../bench/daemon.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
pub(crate) mod daemon;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::node::INIT;
use crate::packages::{file, program, said};
use daemon::Daemon;
use daemon::authorities::make_authorities;

/// Tolerated multiple of the budget.
const TOLERANCE: f64 = 1.1;
/// Number of runs of which the mean is taken, since one run is too short for the process clock.
const RUNS: u32 = 50;

/// Returns the limits, by name.
pub(crate) fn budget() -> BTreeMap<String, f64> {
    let text = include_str!("../../packaging/budget.toml");
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (key, value) = line.split_once(" = ").unwrap();
            (key.to_owned(), value.replace('_', "").parse().unwrap())
        })
        .collect()
}

fn measurements() -> BTreeMap<&'static str, f64> {
    let size = |path: &Path| fs::metadata(path).unwrap().len() as f64;
    let empty = TempDir::new().unwrap();
    let root = empty.path().display().to_string();
    let version = ["--version"];
    let status = ["--root", &root, "status"];
    let (version_cpu, _) = cpu_and_resident(&version);
    let (status_cpu, status_resident) = cpu_and_resident(&status);
    let idle = Daemon::start(program(), "24h", None).seen_for(Duration::from_secs(5));
    BTreeMap::from([
        ("program", size(program())),
        ("deb", size(&file(".deb"))),
        ("rpm", size(&file(".rpm"))),
        ("version_calls", system_calls(&version)),
        ("status_calls", system_calls(&status)),
        ("status_node_calls", status_node_calls()),
        ("version_cpu", version_cpu),
        ("status_cpu", status_cpu),
        ("status_resident", status_resident),
        ("bootstrap_resident", bootstrap_resident()),
        ("daemon_resident", idle.rss * 1024.0),
        ("daemon_anonymous", (idle.rss - idle.rss_of_files) * 1024.0),
    ])
}

fn system_calls(arguments: &[&str]) -> f64 {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("calls");
    said(
        Command::new("strace")
            .args(["-f", "-o"])
            .arg(&log)
            .arg(program())
            .args(arguments),
    );
    let log = fs::read_to_string(log).unwrap();
    log.lines().filter(|line| line.contains('(')).count() as f64
}

/// System calls of `status` on a control-plane node with all its certificates.
fn status_node_calls() -> f64 {
    let dir = TempDir::new().unwrap();
    let root = dir.path().display().to_string();
    said(Command::new(program()).args(["demo", &root]));
    system_calls(&["--root", &root, "status"])
}

/// Mean milliseconds of CPU of a run, and the largest resident KiB.
fn cpu_and_resident(arguments: &[&str]) -> (f64, f64) {
    let many = format!("i=0; while [ $i -lt {RUNS} ]; do \"$@\" >/dev/null; i=$((i+1)); done");
    let script = [
        &["sh", "-euc", &many, "sh"],
        &[program().to_str().unwrap()][..],
        arguments,
    ]
    .concat();
    let (cpu, resident) = cpu_and_memory(&script);
    (cpu / f64::from(RUNS), resident)
}

fn bootstrap_resident() -> f64 {
    let dir = TempDir::new().unwrap();
    let path = |below: &str| dir.path().join(below).display().to_string();
    make_authorities(
        &dir.path().join("authorities"),
        nodepki::x509::KeyAlgorithm::EcdsaP256,
    );
    fs::create_dir_all(path("root/etc")).unwrap();
    fs::write(path("kubeadm.yaml"), INIT.replace("ECDSA-P256", "RSA-2048")).unwrap();
    let (root, config, signer) = (
        path("root"),
        path("kubeadm.yaml"),
        format!("local:{}", path("authorities")),
    );
    let program = program().to_str().unwrap();
    let command = [
        program,
        "--root",
        &root,
        "bootstrap",
        "--kubeadm-config",
        &config,
        "--signer",
        &signer,
    ];
    cpu_and_memory(&command).1
}

/// Milliseconds of CPU and the largest resident KiB of a command and its children, measured by GNU time: it is small,
/// and a process starts with the resident memory of the process that forked it.
fn cpu_and_memory(command: &[&str]) -> (f64, f64) {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("time");
    said(
        Command::new("/usr/bin/time")
            .args(["--format=%U %S %M", "--output"])
            .arg(&log)
            .args(command),
    );
    let log = fs::read_to_string(log).unwrap();
    let numbers: Vec<f64> = log
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    ((numbers[0] + numbers[1]) * 1e3, numbers[2])
}

#[test]
fn release_stays_within_its_budget() {
    let mut budget = budget();
    budget.retain(|key, _| !key.starts_with("arm64_"));
    assert_within(&budget, &measurements());
}

/// Prints the measurements, and asserts that they are within the limits of the same names.
#[track_caller]
pub(crate) fn assert_within(
    budget: &BTreeMap<String, f64>,
    measurements: &BTreeMap<&'static str, f64>,
) {
    println!("\n| | seen | budget | |\n| --- | --- | --- | --- |");
    for (key, value) in measurements {
        let allowed = budget[*key];
        println!(
            "| {key} | {value:.1} | {allowed} | {:.0} % |",
            value / allowed * 100.0
        );
    }
    let keys: Vec<_> = measurements.keys().copied().collect();
    assert_eq!(
        keys,
        budget.keys().collect::<Vec<_>>(),
        "packaging/budget.toml has other keys"
    );
    let over: Vec<_> = measurements
        .iter()
        .filter(|(key, value)| **value > budget[**key] * TOLERANCE)
        .collect();
    assert!(over.is_empty(), "over packaging/budget.toml: {over:?}");
    // A smaller size must be recorded. Memory and time also depend on the machine.
    let loose: Vec<_> = measurements
        .iter()
        .filter(|(key, value)| {
            let is_size = ["program", "deb", "rpm"]
                .iter()
                .any(|size| key.ends_with(size));
            is_size && **value < budget[**key] * 0.8
        })
        .collect();
    assert!(
        loose.is_empty(),
        "far below packaging/budget.toml: lower the budget: {loose:?}"
    );
}
