use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

/// A node with an issuance log.
struct LogNode {
    dir: TempDir,
    root: NodeRoot,
}

impl LogNode {
    fn new() -> LogNode {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        LogNode { dir, root }
    }

    /// Appends an entry with this reason.
    fn append(&self, reason: &str) -> AuditHead {
        let record = record(reason);
        let appended = self.root.append_audit(&[record], NOW, Durability::Synced);
        appended.unwrap()
    }

    /// As [`LogNode::append`]; every entry begins a new file, and two renamed ones are kept.
    fn append_to_new_file(&self, reason: &str) {
        let limits = LogLimits {
            file_bytes: 0,
            renamed_files: 2,
        };
        let records = [record(reason)];
        let appended = self
            .root
            .append_audit_within(limits, &records, NOW, Durability::Cached);
        appended.unwrap();
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join(&STATE_DIR[1..])
    }

    fn log(&self) -> PathBuf {
        self.state().join(AUDIT_LOG)
    }

    fn read(&self) -> String {
        fs::read_to_string(self.log()).unwrap()
    }

    fn write(&self, bytes: impl AsRef<[u8]>) {
        fs::write(self.log(), bytes).unwrap();
    }

    fn verify(&self) -> AuditVerification {
        self.root.verify_audit(None, |_, _| {}).unwrap()
    }

    /// Returns line and text of each difference.
    fn differences(&self) -> Vec<(Option<usize>, String)> {
        let differences = self.verify().differences.into_iter();
        differences.map(|one| (one.line, one.what)).collect()
    }

    fn events(&self) -> Vec<String> {
        let mut events = Vec::new();
        let see = |entry: AuditEntry, _: &str| events.push(entry.event);
        self.root.verify_audit(None, see).unwrap();
        events
    }

    fn file_names(&self) -> Vec<String> {
        let names = fs::read_dir(self.state()).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn record(reason: &str) -> AuditRecord {
    AuditRecord {
        certificate: Some("apiserver".to_owned()),
        reason: Some(reason.to_owned()),
        ..AuditRecord::of(AuditEvent::Failed)
    }
}

#[test]
fn chains_each_line_to_the_line_before() {
    let node = LogNode::new();
    assert_eq!(node.verify(), AuditVerification::default());
    node.append("one");
    let head = node.append("two");
    assert_eq!(head.seq, 2);
    let text = node.read();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(head.sha256, digest(lines[1].as_bytes()));
    let first = AuditEntry::parse(lines[0].as_bytes()).unwrap();
    let second = AuditEntry::parse(lines[1].as_bytes()).unwrap();
    assert_eq!(first.previous, "0".repeat(64));
    assert_eq!(second.previous, digest(lines[0].as_bytes()));
    assert_eq!((second.seq, second.time), (2, NOW));
    assert_eq!(second.text("reason"), Some("two"));
    let mode = fs::metadata(node.log()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let verified = node.verify();
    assert_eq!((verified.entries, verified.head), (2, Some(head)));
    assert!(verified.differences.is_empty() && verified.notes.is_empty());
}

#[test]
fn reports_changed_removed_and_inserted_lines() {
    let node = LogNode::new();
    for reason in ["one", "two", "three", "four"] {
        node.append(reason);
    }
    let text = node.read();
    let lines: Vec<&str> = text.lines().collect();
    let joined = |lines: &[&str]| lines.join("\n") + "\n";

    node.write(text.replace("\"two\"", "\"2\""));
    let found = node.differences();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, Some(3));
    assert!(found[0].1.contains("was changed, or lines"), "{found:?}");

    node.write(joined(&[lines[0], lines[2], lines[3]]));
    assert_eq!(node.differences()[0].0, Some(2));

    node.write(joined(&[lines[0], lines[1], lines[1], lines[2], lines[3]]));
    assert_eq!(node.differences()[0].0, Some(3));

    node.write(joined(&[lines[0], "{}", lines[1], lines[2], lines[3]]));
    assert_eq!(
        node.differences(),
        [(Some(2), "the line is not an entry".to_owned())]
    );

    node.write(joined(&lines[1..]));
    let found = node.differences();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("no entry records the removal"));
}

#[test]
fn finds_digest_of_earlier_head_unless_log_was_rewritten() {
    let node = LogNode::new();
    let head = node.append("one");
    node.append("two");
    let search = |sha256: &str| node.root.verify_audit(Some(sha256), |_, _| {}).unwrap();
    let verified = search(&head.sha256);
    assert_eq!(verified.found, Some((1, NOW)));
    assert!(verified.differences.is_empty());

    fs::remove_file(node.log()).unwrap();
    node.append("another one");
    node.append("two");
    assert!(node.differences().is_empty());
    let verified = search(&head.sha256);
    assert_eq!(verified.found, None);
    assert!(verified.differences[0].what.contains(&head.sha256));
}

#[test]
fn records_torn_end_and_continues() {
    for torn in ["{\"seq\":3,\"ti", "\0\0\0\0", "\0\0\n", "{}\n\0", "\n"] {
        let node = LogNode::new();
        node.append("one");
        let head = node.append("two");
        node.write(node.read() + torn);
        let verified = node.verify();
        assert_eq!(verified.head, Some(head), "{torn:?}");
        assert_eq!(verified.notes.len(), 1, "{torn:?}");

        node.append("three");
        let verified = node.verify();
        assert_eq!(verified.differences, [], "{torn:?}");
        assert_eq!(verified.entries, 4, "{torn:?}");
        assert_eq!(verified.notes.len(), 1, "{torn:?}");
        assert_eq!(node.events(), ["failed", "failed", "torn", "failed"]);
        assert!(node.read().contains(torn), "the torn bytes stay: {torn:?}");
    }
}

#[test]
fn reports_torn_bytes_that_were_changed_later() {
    let node = LogNode::new();
    node.append("one");
    node.write(node.read() + "{\"seq\":2");
    node.append("two");
    node.write(node.read().replace("{\"seq\":2\n", "{\"seq\":9\n"));
    assert_eq!(node.differences().len(), 1);
    assert_eq!(node.differences()[0].0, Some(2));
}

#[test]
fn continues_chain_over_files_and_records_removal_of_oldest() {
    let node = LogNode::new();
    for number in 1..=3 {
        node.append_to_new_file(&number.to_string());
    }
    let names = [
        "audit-00000000000000000001.jsonl",
        "audit-00000000000000000002.jsonl",
        "audit.jsonl",
    ];
    assert_eq!(node.file_names(), names);
    let verified = node.verify();
    assert_eq!((verified.first, verified.entries), (Some(1), 3));
    assert!(verified.differences.is_empty());

    node.append_to_new_file("4");
    assert_eq!(node.file_names()[0], names[1]);
    assert_eq!(node.file_names().len(), 3);
    let verified = node.verify();
    assert_eq!(verified.differences, []);
    assert_eq!(verified.first, Some(2));
    assert_eq!(verified.notes.len(), 1);
    assert_eq!(node.events(), ["failed", "failed", "pruned", "failed"]);

    fs::remove_file(node.state().join(names[1])).unwrap();
    let found = node.differences();
    assert!(
        found[0].1.contains("no entry records the removal"),
        "{found:?}"
    );
}

#[test]
fn continues_after_crash_between_rename_and_first_entry() {
    let node = LogNode::new();
    node.append("one");
    let renamed = node.state().join(renamed_name(1));
    fs::rename(node.log(), renamed).unwrap();
    assert_eq!(node.append("two").seq, 2);
    assert!(node.differences().is_empty());
}

#[test]
fn keeps_one_chain_for_concurrent_writers() {
    let node = LogNode::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let node = &node;
            scope.spawn(move || {
                let root = NodeRoot::open(node.dir.path()).unwrap();
                for number in 0..20 {
                    let record = record(&format!("{writer}/{number}"));
                    let appended = root.append_audit(&[record], NOW, Durability::Cached);
                    appended.unwrap();
                }
            });
        }
    });
    let verified = node.verify();
    assert_eq!(verified.entries, 80);
    assert_eq!(verified.differences, []);
}

#[test]
fn creates_directory_once_for_concurrent_writers() {
    for _ in 0..40 {
        let node = LogNode::new();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let (node, start) = (&node, &start);
                scope.spawn(move || {
                    let root = NodeRoot::open(node.dir.path()).unwrap();
                    start.wait();
                    let record = record(&writer.to_string());
                    let appended = root.append_audit(&[record], NOW, Durability::Cached);
                    appended.unwrap();
                });
            }
        });
        assert_eq!(node.verify().entries, 8);
        let var = node.dir.path().join("var");
        let names = fs::read_dir(&var).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["lib"]);
    }
}

#[test]
fn records_number_of_entries_that_could_not_be_written() {
    let node = LogNode::new();
    node.append("one");
    let aside = node.state().join("elsewhere");
    fs::rename(node.log(), &aside).unwrap();
    fs::create_dir(node.log()).unwrap();
    let records = [record("two"), record("three")];
    let failed = node.root.append_audit(&records, NOW, Durability::Synced);
    assert!(
        matches!(failed, Err(StoreError::Unsafe { .. })),
        "{failed:?}"
    );
    fs::remove_dir(node.log()).unwrap();
    fs::rename(&aside, node.log()).unwrap();
    node.append("four");
    let last = node.read().lines().last().unwrap().to_owned();
    let last = AuditEntry::parse(last.as_bytes()).unwrap();
    assert_eq!((last.seq, last.number("lost")), (2, Some(2)));
    let notes = node.verify().notes;
    assert!(
        notes[0].contains("before entry 2 this number of entries could not be written: 2"),
        "{notes:?}"
    );
    node.append("five");
    assert_eq!(node.read().matches("\"lost\"").count(), 1);
}

#[test]
fn refuses_log_with_second_name() {
    let node = LogNode::new();
    node.append("one");
    fs::hard_link(node.log(), node.dir.path().join("elsewhere")).unwrap();
    let refused = node
        .root
        .append_audit(&[record("two")], NOW, Durability::Synced);
    let error = refused.unwrap_err();
    assert!(matches!(error, StoreError::Implausible { .. }), "{error:?}");
    let start = format!(
        "{} is not a state file that nodepki wrote for this node and its configuration: ",
        node.log().display()
    );
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[test]
fn cuts_long_texts() {
    let node = LogNode::new();
    let long = "\u{1}é".repeat(3000);
    let record = AuditRecord {
        signer: Some(long.clone()),
        requester: Some(long.clone()),
        ..record(&long)
    };
    for _ in 0..2 {
        node.root
            .append_audit(std::slice::from_ref(&record), NOW, Durability::Cached)
            .unwrap();
    }
    let text = node.read();
    assert!(text.lines().all(|line| line.len() < MAX_LINE_BYTES));
    assert!(node.differences().is_empty());
}
