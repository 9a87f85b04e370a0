//! The verification of the chain: a pure pass over the files of a log, oldest first.
//!
//! The chain shows that no line was changed, removed or inserted before the last line. It does not protect the last line,
//! and it does not stop a user with the rights of root from writing the whole log again: that is what the digests in the
//! journal are for ([`ChainVerifier::finish`] searches one).

use time::OffsetDateTime;

use super::record::{AuditEntry, AuditHead, NO_PREVIOUS, digest};

/// A place at which the log is not what nodepki wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditDifference {
    /// The file.
    pub file: String,
    /// Line in the file, from 1; `None` for the log as a whole.
    pub line: Option<usize>,
    /// What differs.
    pub what: String,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditVerification {
    /// Number of entries.
    pub entries: u64,
    /// Number of the first entry.
    pub first: Option<u64>,
    /// The last entry.
    pub head: Option<AuditHead>,
    /// Number and time of the entry with the searched digest.
    pub found: Option<(u64, OffsetDateTime)>,
    /// Differences, in the order of the log.
    pub differences: Vec<AuditDifference>,
    /// Facts that are no differences: torn ends, entries that could not be written, removed files.
    pub notes: Vec<String>,
}

/// Invalid lines in a row, which the next entry must explain.
struct Tear {
    line: usize,
    bytes: Vec<u8>,
}

/// Verifies a log line by line.
pub(super) struct ChainVerifier<'a> {
    result: AuditVerification,
    /// The digest that an entry must have; see [`AuditVerification::found`].
    searched: Option<&'a str>,
    head: AuditHead,
    /// The claim of the first entry, if the log does not begin with entry 1: `seq` and digest of the one before.
    before_first: Option<AuditHead>,
    is_removal_recorded: bool,
    tear: Option<Tear>,
    file: String,
}

impl<'a> ChainVerifier<'a> {
    /// Begins a verification that searches the digest of a line, if one is given.
    pub(super) fn new(searched: Option<&'a str>) -> ChainVerifier<'a> {
        ChainVerifier {
            result: AuditVerification::default(),
            searched,
            head: AuditHead::empty(),
            before_first: None,
            is_removal_recorded: false,
            tear: None,
            file: String::new(),
        }
    }

    /// Verifies the next file. `see` receives each entry with the digest of its line.
    pub(super) fn file(&mut self, name: &str, bytes: &[u8], see: &mut dyn FnMut(AuditEntry, &str)) {
        self.end_file();
        name.clone_into(&mut self.file);
        let mut lines = bytes.split(|byte| *byte == b'\n').enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let is_end = lines.peek().is_none();
            // After the last newline.
            if is_end && line.is_empty() {
                break;
            }
            match AuditEntry::parse(line).filter(|_| !is_end) {
                Some(entry) => {
                    let sha256 = digest(line);
                    self.entry(index + 1, &entry, &sha256);
                    see(entry, &sha256);
                }
                None => self.invalid(index + 1, line),
            }
        }
    }

    /// Ends the verification.
    pub(super) fn finish(mut self) -> AuditVerification {
        if let Some(tear) = self.tear.take() {
            // The next entry will record it.
            self.result.notes.push(format!(
                "{}, line {}: the last {} bytes are not a complete entry: a process is writing, or was stopped by a power failure; the next entry records this",
                self.file,
                tear.line,
                tear.bytes.len()
            ));
        }
        if let Some(before) = &self.before_first {
            if self.is_removal_recorded {
                self.result.notes.push(format!(
                "entries 1 to {} were removed to limit the size of the log, as a later entry records",
                before.seq
            ))
            } else {
                let what = format!(
                    "the log begins after entry {}, and no entry records the removal of older files",
                    before.seq
                );
                self.result.differences.insert(
                    0,
                    AuditDifference {
                        file: self.file.clone(),
                        line: None,
                        what,
                    },
                );
            }
        }
        if let Some(searched) = self.searched
            && self.result.found.is_none()
        {
            let what = format!(
                "no entry has the digest {searched}: the log was written again, or entries at its end were removed"
            );
            self.differs(None, what);
        }
        self.result.head = (self.result.entries > 0).then_some(self.head);
        self.result
    }

    fn entry(&mut self, line: usize, entry: &AuditEntry, sha256: &str) {
        self.verify_tear(line, entry);
        // The oldest files are pruned: an entry says which one was the last of them.
        if self.result.entries == 0 && entry.seq > 1 {
            self.before_first = Some(AuditHead {
                seq: entry.seq - 1,
                sha256: entry.previous.clone(),
            });
        } else if entry.previous != self.head.sha256 {
            let what = if entry.previous == NO_PREVIOUS {
                format!(
                    "entry {} begins a new chain: entry {} is not its predecessor",
                    entry.seq, self.head.seq
                )
            } else {
                format!(
                    "entry {} names {} as the digest of the line before, which has {}: one of the two was changed, or lines between them were removed",
                    entry.seq, entry.previous, self.head.sha256
                )
            };
            self.differs(Some(line), what);
        } else if entry.seq != self.head.seq + 1 {
            let what = format!(
                "entry {} follows entry {}, although its digest is right",
                entry.seq, self.head.seq
            );
            self.differs(Some(line), what);
        }
        if let Some(lost) = entry.number("lost") {
            self.result.notes.push(format!(
                "{}, line {line}: before entry {} this number of entries could not be written: {lost}; they are in the journal",
                self.file, entry.seq
            ));
        }
        if let Some(before) = &self.before_first {
            self.is_removal_recorded |= entry.event == "pruned"
                && entry.number("removedThrough") == Some(before.seq)
                && entry.text("removedHead") == Some(&before.sha256);
        }
        if self.searched == Some(sha256) {
            self.result.found = Some((entry.seq, entry.time));
        }
        self.result.first.get_or_insert(entry.seq);
        self.result.entries += 1;
        self.head = AuditHead {
            seq: entry.seq,
            sha256: sha256.to_owned(),
        };
    }

    /// Compares the invalid lines before an entry with the tear that it records.
    fn verify_tear(&mut self, line: usize, entry: &AuditEntry) {
        let recorded = (entry.event == "torn").then(|| entry.text("tornSha256"));
        match (self.tear.take(), recorded.flatten()) {
            (None, None) => {}
            (Some(tear), Some(sha256)) if digest(&tear.bytes) == sha256 => {
                self.result.notes.push(format!(
                    "{}, line {}: {} bytes of an incomplete entry, as entry {} records",
                    self.file,
                    tear.line,
                    tear.bytes.len(),
                    entry.seq
                ));
            }
            (Some(tear), _) => {
                self.differs(Some(tear.line), "the line is not an entry".to_owned());
            }
            (None, Some(_)) => {
                let what = format!(
                    "entry {} records an incomplete entry that is not in the log",
                    entry.seq
                );
                self.differs(Some(line), what);
            }
        }
    }

    fn invalid(&mut self, line: usize, bytes: &[u8]) {
        match &mut self.tear {
            Some(tear) => {
                tear.bytes.push(b'\n');
                tear.bytes.extend_from_slice(bytes);
            }
            None => {
                self.tear = Some(Tear {
                    line,
                    bytes: bytes.to_vec(),
                });
            }
        }
    }

    /// Ends a file that another one follows. nodepki never continues a file after it has begun the next one.
    fn end_file(&mut self) {
        if let Some(tear) = self.tear.take() {
            self.differs(Some(tear.line), "the line is not an entry".to_owned());
        }
    }

    fn differs(&mut self, line: Option<usize>, what: String) {
        self.result.differences.push(AuditDifference {
            file: self.file.clone(),
            line,
            what,
        });
    }
}
