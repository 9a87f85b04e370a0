//! The rule of time in the sources of the integration tests and of the machines' tests: they wait, and let time pass, only
//! through `tests/fixtures/time.rs`.

use std::fs;
use std::path::Path;

/// What waits for a fixed time, has a deadline of its own, or limits the time that a slow machine may take.
const FORMS: [&str; 10] = [
    "sleep(",
    "Instant::now() +",
    "Instant::now() <",
    "Instant::now() >",
    "deadline = ",
    "elapsed() <",
    "elapsed() > ",
    "took <",
    "spin_loop",
    "yield_now",
];

/// Files that may contain such forms, each with the reason.
const ALLOWED: &str = "\
tests/it/discovery.rs: the deadline is an argument of the function under test
tests/it/gateway.rs: a server that delays its answers
tests/it/http_dns.rs: repeated until one request is faster than a silent name server allows
tests/it/kubelets/bench.rs: a signer that takes its time
tests/it/kubelets/kinds.rs: an administrator who signs from time to time
tests/it/rotation_cluster.rs: a signer misbehaves for some seconds
tests/it/rotation_cluster/measured.rs: measured some time after a renewal
tests/it/rotation_cluster/thousand.rs: a signer misbehaves for some seconds
tests/it/servers/remote_signer.rs: a server that accepts connections and waits for its mode
tests/it/servers/static_pods.rs: a kubelet that polls its manifests
tests/it/waiting.rs: names the forms
vm-tests/cluster/authority.rs: a signer that polls its folders
vm-tests/cluster/load.rs: clients that send requests at an interval";

/// Appends the lines below `dir` that have a form, each as path, number and text.
fn collect(root: &Path, dir: &Path, found: &mut Vec<(String, usize, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let source = fs::read_to_string(&path).unwrap();
            for (at, line) in source.lines().map(str::trim).enumerate() {
                if !line.starts_with("//") && FORMS.iter().any(|form| line.contains(form)) {
                    found.push((name.clone(), at + 1, line.to_owned()));
                }
            }
        }
    }
}

#[test]
fn tests_wait_only_through_the_module_of_time() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for dir in ["tests/it", "vm-tests"] {
        collect(root, &root.join(dir), &mut found);
    }
    let mut allowed: Vec<&str> = Vec::new();
    for line in ALLOWED.lines() {
        let (file, reason) = line.split_once(": ").unwrap();
        let is_needed = found.iter().any(|(name, ..)| name == file);
        assert!(is_needed, "{file} needs no exception any more: {reason}");
        allowed.push(file);
    }
    found.retain(|(name, ..)| !allowed.contains(&name.as_str()));
    let lines = found
        .iter()
        .map(|(name, line, text)| format!("{name}:{line}: {text}"));
    let lines: Vec<String> = lines.collect();
    assert!(
        lines.is_empty(),
        "use eventually, wait_until, within or let_pass of tests/fixtures/time.rs:\n{}",
        lines.join("\n")
    );
}
