//! Recorded responses of servers, each with what the signer must make of it.
//!
//! A recording is a file `tests/golden/signers/KIND/NAME.http`: lines that begin with `#`, then the response as it is
//! sent, status line first.
//!
//! | line | meaning |
//! | --- | --- |
//! | `# call: CALL` | `submit` (default), `recover`, `trust` or `crl` |
//! | `# answers: METHOD PATH` | the exchange that receives the response, if it is not the one that carries the CSR |
//! | `# expect: RESULT` | a class of errors, `pending`, `denied`, or `none` |
//! | `# retry-after: 7s` | the waiting time that the error carries, otherwise none |
//! | `# says: TEXT` | a part of the error's message |
//!
//! Any other line is a comment.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, FailureClass, Request, Signer, SignerError, SignerKind};

use crate::gateway::{Action, Gateway, Rule};
use crate::rig::Rig;
use crate::signing::{open, run};

/// A recorded response.
pub(crate) struct Recording {
    pub(crate) name: String,
    lines: Vec<(String, String)>,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Recording {
    /// Returns the recordings of a kind, by name.
    pub(crate) fn all(kind: SignerKind) -> Vec<Self> {
        let files = fs::read_dir(dir(kind)).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".http").map(str::to_owned))
            .collect();
        names.sort();
        names.iter().map(|name| Self::read(kind, name)).collect()
    }

    pub(crate) fn read(kind: SignerKind, name: &str) -> Self {
        let bytes = fs::read(dir(kind).join(format!("{name}.http"))).unwrap();
        let end = bytes
            .windows(2)
            .position(|pair| pair == b"\n\n")
            .unwrap_or_else(|| panic!("{name}: an empty line ends the head"));
        let text = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let (notes, head): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with('#'));
        let notes = notes.iter().filter_map(|line| line[1..].split_once(": "));
        Recording {
            name: name.to_owned(),
            lines: notes
                .map(|(key, value)| (key.trim().to_owned(), value.to_owned()))
                .collect(),
            head: head.join("\r\n"),
            body: bytes[end + 2..].to_vec(),
        }
    }

    fn lines(&self, key: &str) -> impl Iterator<Item = &str> {
        let lines = self.lines.iter().filter(move |(found, _)| found == key);
        lines.map(|(_, value)| value.as_str())
    }

    fn call(&self) -> &str {
        self.lines("call").next().unwrap_or("submit")
    }

    /// Sends the recorded bytes.
    fn action(&self) -> Action {
        let head = format!("{}\r\n\r\n", self.head).into_bytes();
        Action::Raw([head, self.body.clone()].concat(), true)
    }

    fn rule(&self, submit: (&str, &str)) -> Rule {
        let (method, path) = match self.lines("answers").next() {
            Some(line) => line.split_once(' ').unwrap(),
            None => submit,
        };
        Rule::on(method, path).then(self.action())
    }

    /// Makes the call and describes its result in the words of `expect`.
    fn result(&self, signer: &dyn Signer, request: &Request) -> Result<&'static str, SignerError> {
        let answer = match self.call() {
            "submit" => run(signer.submit(request)).map(Some)?,
            "recover" => run(signer.recover(request, None))?,
            "trust" => run(signer.trust(Authority::EtcdCa))?.map(Answer::Issued),
            "crl" => run(signer.crl(Authority::EtcdCa))?.map(Answer::Issued),
            other => panic!("{}: unknown call {other}", self.name),
        };
        Ok(match answer {
            None => "none",
            Some(Answer::Pending { .. }) => "pending",
            Some(Answer::Denied { .. }) => "denied",
            Some(Answer::Issued(_)) => "issued",
            Some(Answer::Gone) => "gone",
        })
    }

    /// Returns the differences between a result and the lines of the recording.
    fn differences(
        &self,
        kind: SignerKind,
        result: Result<&'static str, SignerError>,
    ) -> Vec<String> {
        let expected = self.lines("expect").next().unwrap();
        let error = match result {
            Ok(result) if result == expected => return Vec::new(),
            Ok(result) => return vec![format!("expected {expected}, found {result}")],
            Err(error) => error,
        };
        let mut differences = Vec::new();
        let class = match error.class {
            FailureClass::Transient => "transient",
            FailureClass::Ambiguous => "ambiguous",
            FailureClass::Auth => "auth",
            FailureClass::Config => "config",
            FailureClass::Permanent => "permanent",
        };
        let message = error.to_string();
        if class != expected {
            differences.push(format!("expected {expected}, found {class}: {message}"));
        }
        let wait = self.lines("retry-after").next();
        let wait =
            wait.map(|text| Duration::from_secs(text.trim_end_matches('s').parse().unwrap()));
        if error.retry_after != wait {
            differences.push(format!(
                "retry-after {wait:?}, found {:?}",
                error.retry_after
            ));
        }
        let mut words = vec![kind.as_str()];
        if matches!(self.call(), "submit" | "recover") {
            words.extend(["etcd-server", "etcd-ca"]);
        }
        words.extend(self.lines("says"));
        words.retain(|words| !message.contains(words));
        differences.extend(
            words
                .iter()
                .map(|words| format!("{words:?} is missing in: {message}")),
        );
        differences
    }
}

fn dir(kind: SignerKind) -> PathBuf {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signers");
    all.join(kind.as_str())
}

/// Responses that a real server does not give on demand.
pub(super) fn classifies_recorded_responses(rig: &dyn Rig) {
    let front = rig.front().unwrap();
    let gateway = Gateway::to(Some(front.upstream.clone()));
    let settings = (front.settings)(&gateway.url(), &gateway.trusted());
    let signer = open(&settings, Authority::EtcdCa, &rig.scratch().join("memory"));
    let before = rig.sent();
    let mut differences: Vec<String> = Vec::new();
    for recording in Recording::all(rig.kind()) {
        gateway.only(recording.rule(front.submit));
        let request = rig.request(CertName::EtcdServer);
        let result = recording.result(signer.as_ref(), &request);
        let found = recording.differences(rig.kind(), result).into_iter();
        differences.extend(found.map(|difference| format!("{}: {difference}", recording.name)));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(rig.sent(), before);
}
