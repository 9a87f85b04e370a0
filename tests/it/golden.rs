//! The golden cases: the files that kubeadm v1.37.2 creates for a configuration. See `tests/golden/README.md`.
//!
//! This module loads a case, compares two trees, and verifies the recordings: every case is replayed with the real
//! kubeadm, and `NODEPKI_UPDATE_GOLDEN=1` records the result again.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::kubeadm::{self, Node};
use crate::openssl::{Tree, facts_of_tree};
use crate::sample::sampled;

/// One folder of `tests/golden`.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// `init/v1beta4-stacked`
    pub(crate) name: String,
    /// The kubeadm configuration; `certificatesDir` is `/etc/kubernetes/pki`.
    pub(crate) config: String,
    /// `expected.json`.
    pub(crate) expected: Value,
}

impl Case {
    /// Loads a case by group and folder: `init/v1beta4-stacked`.
    pub(crate) fn load(name: &str) -> Self {
        let folder = folder().join(name);
        let config = fs::read_to_string(folder.join("config.yaml")).unwrap();
        // The file does not exist while a new case is being recorded.
        let expected =
            fs::read_to_string(folder.join("expected.json")).unwrap_or_else(|_| "{}".into());
        Self {
            name: name.into(),
            config,
            expected: serde_json::from_str(&expected).unwrap(),
        }
    }

    /// Returns every case of a group (`csr`, `init`, `state`), by name.
    pub(crate) fn group(group: &str) -> Vec<Self> {
        let entries = fs::read_dir(folder().join(group)).unwrap();
        let names: BTreeSet<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names
            .iter()
            .map(|name| Self::load(&format!("{group}/{name}")))
            .collect()
    }

    /// Returns whether kubeadm succeeded.
    pub(crate) fn succeeds(&self) -> bool {
        self.expected["rc"]
            .as_array()
            .unwrap()
            .iter()
            .all(|code| code == 0)
    }

    /// Returns the files that kubeadm left below `/etc/kubernetes`; empty if it refused. Not recorded for `state`.
    pub(crate) fn files(&self) -> Tree {
        serde_json::from_value(self.expected.get("files").cloned().unwrap_or(json!({}))).unwrap()
    }

    /// Returns the umask kubeadm ran with.
    pub(crate) fn umask(&self) -> &str {
        self.expected
            .get("umask")
            .map_or("022", |umask| umask.as_str().unwrap())
    }
}

/// An intended difference between nodepki and kubeadm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Difference {
    /// The file, `*` for any run of characters: `pki/*.crt`.
    pub(crate) file: &'static str,
    /// The beginning of the path of the fact inside the file: `mode`, `pem[0].extensions`; "" stands for the whole file,
    /// even if only one side has it.
    pub(crate) fact: &'static str,
    /// The reason, for the reader of a failing test.
    pub(crate) why: &'static str,
}

/// Asserts that the trees are equal except for the named differences, each of which must occur.
pub(crate) fn assert_same(case: &str, kubeadm: &Tree, ours: &Tree, named: &[Difference]) {
    let mut unused: Vec<_> = named.iter().collect();
    let mut unnamed = Vec::new();
    for (file, fact, text) in differences(kubeadm, ours) {
        let covers = |difference: &Difference| {
            matches(difference.file, &file) && fact.starts_with(difference.fact)
        };
        if !named.iter().any(covers) {
            unnamed.push(text);
        }
        unused.retain(|difference| !covers(difference));
    }
    assert!(
        unnamed.is_empty(),
        "{case}: differs from kubeadm:\n{}",
        unnamed.join("\n")
    );
    let lines: Vec<_> = unused
        .iter()
        .map(|difference| {
            format!(
                "{}: {}: {}",
                difference.file, difference.fact, difference.why
            )
        })
        .collect();
    assert!(
        lines.is_empty(),
        "{case}: named differences that do not occur:\n{}",
        lines.join("\n")
    );
}

/// File, fact and description of each difference.
pub(crate) fn differences(kubeadm: &Tree, ours: &Tree) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let files: BTreeSet<_> = kubeadm.keys().chain(ours.keys()).collect();
    for file in files {
        let mut note = |fact: &str, text: String| found.push((file.clone(), fact.to_owned(), text));
        match (kubeadm.get(file), ours.get(file)) {
            (Some(kubeadm), Some(ours)) => {
                compare("", kubeadm, ours, &mut |fact, kubeadm, ours| {
                    note(
                        fact,
                        format!("{file}: {fact}: kubeadm {kubeadm}, here {ours}"),
                    );
                })
            }
            (Some(_), None) => note("", format!("{file}: kubeadm creates it, here it is absent")),
            _ => note("", format!("{file}: kubeadm does not create it")),
        }
    }
    found
}

fn compare(at: &str, kubeadm: &Value, ours: &Value, note: &mut dyn FnMut(&str, &Value, &Value)) {
    match (kubeadm, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for name in names {
                let at = if at.is_empty() {
                    name.clone()
                } else {
                    format!("{at}.{name}")
                };
                compare(&at, &kubeadm[name], &ours[name], note);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{at}[{index}]"), left, right, note);
            }
        }
        _ if kubeadm == ours => {}
        _ => note(at, kubeadm, ours),
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => {
            let tail = text.strip_prefix(start);
            tail.is_some_and(|tail| {
                (0..=tail.len()).any(|at| tail.get(at..).is_some_and(|tail| matches(rest, tail)))
            })
        }
    }
}

/// Samples the cases with RSA keys, kubeadm's default: generating the keys takes most of the time of a test.
pub(crate) fn sample(first: usize, cases: Vec<Case>) -> Vec<Case> {
    let has_rsa_keys = |case: &Case| case.succeeds() && !case.config.contains("ECDSA");
    let (rsa, mut cases): (Vec<_>, Vec<_>) = cases.into_iter().partition(has_rsa_keys);
    cases.extend(sampled(first, rsa));
    cases
}

/// Copies `tests/golden/check-expiration/kubernetes` with the modes, which git does not record.
pub(crate) fn copy_check_expiration_tree(to: &Path) {
    kubeadm::copy_tree(&folder().join("check-expiration/kubernetes"), to);
    for file in facts_of_tree(to).keys() {
        let mode = if file.ends_with('/') {
            0o755
        } else if file.ends_with(".crt") {
            0o644
        } else {
            0o600
        };
        fs::set_permissions(to.join(file), fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

// ---- Replay with the real kubeadm ----

#[test]
fn replays_csr_cases() {
    replay("csr", &|case, work| {
        let output = kubeadm::generate_csr(
            Node {
                umask: case.umask(),
                ..Node::new(work)
            },
            &case.config,
        );
        recording(case, &[output], json!({"files": facts_of_tree(work)}))
    });
}

#[test]
fn replays_init_cases() {
    replay("init", &|case, work| {
        let outputs = kubeadm::init(
            Node {
                umask: case.umask(),
                ..Node::new(work)
            },
            &case.config,
        );
        recording(case, &outputs, json!({"files": facts_of_tree(work)}))
    });
}

#[test]
fn replays_state_cases() {
    let base = Case::load("init/v1beta4-alg-ECDSA-P256");
    let [own, other] = [(); 2].map(|()| {
        let tree = tempfile::tempdir().unwrap();
        for output in kubeadm::init(Node::new(tree.path()), &base.config) {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        tree
    });
    let modes = |tree: Tree| {
        tree.into_iter()
            .map(|(file, facts)| (file, facts["mode"].clone()))
            .collect()
    };
    let before: Tree = modes(base.files());
    replay("state", &|case, work| {
        kubeadm::copy_tree(own.path(), work);
        if let Some(change) = case.expected.get("change") {
            let mut shell = Command::new("bash");
            shell
                .args(["-euc", change.as_str().unwrap()])
                .current_dir(work)
                .env("OTHER", other.path());
            assert!(shell.status().unwrap().success(), "{}: {change}", case.name);
        }
        let outputs = kubeadm::init(Node::new(work), &case.config);
        let after: Tree = modes(facts_of_tree_modes(work));
        let missing: Vec<_> = before
            .keys()
            .filter(|file| !after.contains_key(*file))
            .collect();
        let changed: Tree = after
            .iter()
            .filter(|(file, mode)| before.get(*file) != Some(*mode))
            .map(|(f, m)| (f.clone(), m.clone()))
            .collect();
        recording(
            case,
            &outputs,
            json!({"missing": missing, "modes": changed}),
        )
    });
}

/// Modes only, since a state may contain files from which no facts can be read.
fn facts_of_tree_modes(root: &Path) -> Tree {
    let output = Command::new("find")
        .arg(root)
        .args(["-mindepth", "1", "-printf", "%y %m %P\n"])
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let entry = |line: &str| {
        let [kind, mode, path] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            unreachable!("{line}")
        };
        let slash = if kind == "d" { "/" } else { "" };
        (
            format!("{path}{slash}"),
            json!({"mode": format!("{mode:0>4}")}),
        )
    };
    lines.lines().map(entry).collect()
}

/// Runs each case of a group in its own directory, on all cores; those with RSA keys in a sample, unless they are recorded.
fn replay(group: &str, run: &(dyn Fn(&Case, &Path) -> Value + Sync)) {
    let records = std::env::var_os("NODEPKI_UPDATE_GOLDEN").is_some();
    let mut cases = Case::group(group);
    if !records {
        cases = sample(0, cases);
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) =
                    cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let work = tempfile::tempdir().unwrap();
                    let found = run(case, work.path());
                    if records {
                        let text = format!("{}\n", compact(&found, 0));
                        fs::write(folder().join(&case.name).join("expected.json"), text).unwrap();
                        continue;
                    }
                    compare("", &case.expected, &found, &mut |fact, recorded, found| {
                        let line =
                            format!("{}: {fact}: recorded {recorded}, now {found}", case.name);
                        failures.lock().unwrap().push(line);
                    });
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "the real kubeadm differs from the recording:\n{}",
        failures.join("\n")
    );
}

/// Returns the content of `expected.json`: command, result and files. Empty parts are omitted.
fn recording(case: &Case, outputs: &[Output], after: Value) -> Value {
    let mut stderr: Vec<String> = Vec::new();
    for output in outputs {
        for line in String::from_utf8_lossy(&output.stderr).lines() {
            let line = shorten(line);
            let noise = line.is_empty() || line.starts_with("To see the stack trace of this error");
            if !noise && !stderr.contains(&line) {
                stderr.push(line);
            }
        }
    }
    let mut all = json!({});
    for given in ["umask", "change"] {
        all[given] = case.expected[given].clone();
    }
    all["rc"] = outputs
        .iter()
        .map(|output| output.status.code())
        .collect::<Vec<_>>()
        .into();
    all["stderr"] = stderr.into();
    for (name, part) in after.as_object().unwrap() {
        all[name] = part.clone();
    }
    let empty = [Value::Null, json!([]), json!({})];
    let fields = all
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, value)| !empty.contains(value));
    Value::Object(
        fields
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

/// Removes klog's `W1120 12:50:00.295913   22227 common.go:198] ` and cuts the line after 200 characters: kubeadm quotes
/// whole regular expressions.
fn shorten(line: &str) -> String {
    let is_klog = |start: &str| start.contains(".go:") && start.starts_with(['I', 'W', 'E']);
    let line = match line.split_once("] ") {
        Some((start, rest)) if is_klog(start) => rest,
        _ => line,
    };
    match line.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.trim_end().to_owned(),
    }
}

/// Formats JSON with every value that fits on one line of 110 characters.
fn compact(value: &Value, depth: usize) -> String {
    let flat = match value {
        Value::Array(items) => format!(
            "[{}]",
            items
                .iter()
                .map(|item| compact(item, 0))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        Value::Object(fields) => {
            let field = |(name, value)| format!("{}: {}", json!(name), compact(value, 0));
            format!(
                "{{{}}}",
                fields.iter().map(field).collect::<Vec<_>>().join(", ")
            )
        }
        _ => value.to_string(),
    };
    let inner = depth + 1;
    let lines: Vec<String> = match value {
        // A part may itself have several lines if it did not fit.
        _ if !flat.contains('\n') && flat.len() + 2 * depth <= 110 => return flat,
        Value::Array(items) => items.iter().map(|item| compact(item, inner)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{}: {}", json!(name), compact(value, inner)))
            .collect(),
        _ => return flat,
    };
    let (open, close) = if value.is_array() {
        ('[', ']')
    } else {
        ('{', '}')
    };
    let indent = "  ".repeat(inner);
    format!(
        "{open}\n{indent}{}\n{}{close}",
        lines.join(&format!(",\n{indent}")),
        "  ".repeat(depth)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Tree {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn reads_result_of_a_case() {
        assert!(Case::load("init/v1beta4-stacked").succeeds());
        assert_eq!(Case::load("init/v1beta4-stacked").files().len(), 29);
        let refused = Case::load("csr/v1beta4-svc30");
        assert!(!refused.succeeds() && refused.files().is_empty());
        assert_eq!(Case::load("csr/umask-077").umask(), "077");
    }

    #[test]
    fn requires_named_differences_to_cover_and_occur() {
        let kubeadm = tree(r#"{"pki/sa.pub": {"mode": "0600"}, "pki/ca.key": {"mode": "0600"}}"#);
        let ours = tree(r#"{"pki/sa.pub": {"mode": "0644"}}"#);
        let mode = Difference {
            file: "pki/sa.*",
            fact: "mode",
            why: "public",
        };
        let absent = Difference {
            file: "pki/ca.key",
            fact: "",
            why: "external CA",
        };
        assert_same("both", &kubeadm, &ours, &[mode, absent]);
        assert!(
            std::panic::catch_unwind(|| assert_same("one unnamed", &kubeadm, &ours, &[mode]))
                .is_err()
        );
        let never = Difference {
            file: "pki/*.crt",
            fact: "pem",
            why: "",
        };
        assert!(
            std::panic::catch_unwind(|| assert_same(
                "one unused",
                &kubeadm,
                &ours,
                &[mode, absent, never]
            ))
            .is_err()
        );
    }

    #[test]
    fn names_file_and_fact_of_a_difference() {
        let kubeadm = tree(r#"{"pki/a.crt": {"pem": [{"key": "RSA-2048"}]}}"#);
        let ours = tree(r#"{"pki/a.crt": {"pem": [{"key": "ECDSA-P256"}]}}"#);
        let (file, fact, line) = differences(&kubeadm, &ours).remove(0);
        assert_eq!((file.as_str(), fact.as_str()), ("pki/a.crt", "pem[0].key"));
        assert_eq!(
            line,
            r#"pki/a.crt: pem[0].key: kubeadm "RSA-2048", here "ECDSA-P256""#
        );
    }
}
