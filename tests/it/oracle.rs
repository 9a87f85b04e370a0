//! The judgement of Go's `crypto/x509` and `crypto/tls`: runs `tests/servers/oracle`.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::servers::bin;

/// Asks the oracle about each case. Each answer maps the parts that Go refuses to its error.
pub(crate) fn ask(cases: &[Value]) -> Vec<BTreeMap<String, String>> {
    let lines: String = cases.iter().map(|case| format!("{case}\n")).collect();
    let mut child = Command::new(bin("oracle"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let verdicts: Vec<_> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let verdict: BTreeMap<String, String> = serde_json::from_str(line).unwrap();
            let faults = verdict.into_iter();
            faults
                .filter(|(part, error)| part != "id" && !error.is_empty())
                .collect::<BTreeMap<_, _>>()
        })
        .collect();
    assert_eq!(verdicts.len(), cases.len());
    verdicts
}
