//! The issuance log: `audit.jsonl` in the state directory, and the files that it continues, `audit-SEQ.jsonl`.
//!
//! One line in JSON for each request, answer, installation and proof of use. Each line has a number and the SHA-256 of the
//! line before, so a line cannot be changed or removed without a trace (`chain`). Lines are only appended, with
//! `O_APPEND`, under a lock of this file: the daemon signs for kubelets without the lock of a run.
//!
//! A file above [`MAX_FILE_BYTES`] is renamed to `audit-SEQ.jsonl`, SEQ being the number of its last entry, and the chain
//! continues in a new `audit.jsonl`. At most [`MAX_RENAMED_FILES`] are kept; the removal of the oldest one is an entry.
//!
//! *A log that cannot be written never stops a renewal*: the caller logs the error and continues, and the next entry that
//! can be written has the number of those that are missing (`lost`). An incomplete line at the end is what a power failure
//! leaves. It stays as it is, and the next entry (`torn`) has its length and digest.

mod chain;
mod record;

/// Verifies a log of one file.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_log(bytes: &[u8]) {
    let mut verifier = ChainVerifier::new(None);
    let mut entries = 0;
    verifier.file("audit.log", bytes, &mut |_, _| entries += 1);
    let result = verifier.finish();
    assert!(result.entries == entries && result.head.is_some() == (entries > 0));
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_entry(bytes: &[u8]) {
    if let Some(entry) = AuditEntry::parse(bytes) {
        let _ = (entry.text("certificate"), entry.number("sequence"));
    }
}

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use time::OffsetDateTime;

use super::calls::openat;
use super::dir::{Dir, errno_of, stat_open};
use super::error::StoreError;
use super::lock::is_interruption;
use super::pending::Durability;
use super::{NodeRoot, STATE_DIR, failpoint};

use chain::ChainVerifier;
pub use chain::{AuditDifference, AuditVerification};
pub use record::{AuditEntry, AuditEvent, AuditHead, AuditRecord};
use record::{MAX_LINE_BYTES, NewLine, Writer, digest};

/// The file to which entries are appended.
pub(super) const AUDIT_LOG: &str = "audit.jsonl";
/// Size in bytes above which the file is renamed: some 20,000 entries.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// Upper bound for the number of renamed files.
const MAX_RENAMED_FILES: usize = 7;
/// Maximum size in bytes of a file that is read: one batch may exceed [`MAX_FILE_BYTES`].
const MAX_READ_BYTES: u64 = 2 * MAX_FILE_BYTES;
/// Length in bytes of the end of a file in which the last entry is searched.
const TAIL_BYTES: u64 = 4 * MAX_LINE_BYTES as u64;
/// Longest wait for another process that appends.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Interval between two attempts to lock the file.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Limits of the log.
#[derive(Clone, Copy)]
struct LogLimits {
    file_bytes: u64,
    renamed_files: usize,
}

const LIMITS: LogLimits = LogLimits {
    file_bytes: MAX_FILE_BYTES,
    renamed_files: MAX_RENAMED_FILES,
};

/// The end of a file.
struct Tail {
    /// The last entry; `None` if there is none.
    head: Option<AuditHead>,
    /// Bytes after it, without their last newline; `None` if the file ends with an entry.
    torn: Option<Vec<u8>>,
    ends_with_newline: bool,
}

impl NodeRoot {
    /// Appends entries to the issuance log, and returns the last one. Either all of them are written or none.
    ///
    /// # Errors
    /// Errors of the system; [`StoreError::Busy`] if another process holds the lock of the file for 5 s.
    pub fn append_audit(
        &self,
        records: &[AuditRecord],
        now: OffsetDateTime,
        durability: Durability,
    ) -> Result<AuditHead, StoreError> {
        let appended = self.append_audit_within(LIMITS, records, now, durability);
        let lost = self.lost_audit_entries();
        match &appended {
            Ok(_) => lost.store(0, Ordering::Relaxed),
            Err(_) => {
                lost.fetch_add(records.len() as u64, Ordering::Relaxed);
            }
        }
        appended
    }

    fn append_audit_within(
        &self,
        limits: LogLimits,
        records: &[AuditRecord],
        now: OffsetDateTime,
        durability: Durability,
    ) -> Result<AuditHead, StoreError> {
        let state = self.create_dir(STATE_DIR, 0o700)?;
        let mut pruned = None;
        loop {
            let log = LockedLog::open(&state)?;
            let tail = log.tail()?;
            if log.size > limits.file_bytes
                && tail.torn.is_none()
                && let Some(head) = &tail.head
            {
                log.rename(head)?;
                pruned = oldest_to_remove(&state, limits)?;
                continue;
            }
            let mut records: Vec<AuditRecord> = records.to_vec();
            if let Some((_, removed)) = &pruned {
                records.insert(0, removed.clone());
            }
            let lost = self.lost_audit_entries().load(Ordering::Relaxed);
            let head = log.append(tail, &records, lost, now)?;
            failpoint("audit:written", state.path())?;
            log.sync(durability).inspect_err(|_| log.withdraw())?;
            if let Some((name, _)) = pruned {
                state.unlink(&name)?;
            }
            return Ok(head);
        }
    }

    /// Verifies the chain of the log, and searches the line with the digest `searched`. `see` receives each entry with the
    /// digest of its line, oldest first. An absent log has no entries.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn verify_audit(
        &self,
        searched: Option<&str>,
        mut see: impl FnMut(AuditEntry, &str),
    ) -> Result<AuditVerification, StoreError> {
        let mut verifier = ChainVerifier::new(searched);
        let Some(state) = self.dir(STATE_DIR)? else {
            return Ok(verifier.finish());
        };
        let mut names = renamed_files(&state)?;
        names.push(OsString::from(AUDIT_LOG));
        for name in names {
            if let Some(found) = state.read(&name, MAX_READ_BYTES)? {
                let path = state.path().join(&name);
                verifier.file(&path.display().to_string(), &found.bytes, &mut see);
            }
        }
        Ok(verifier.finish())
    }

    /// Returns the path of the log on this machine, for messages.
    pub fn audit_path(&self) -> PathBuf {
        self.on_this_machine(PathBuf::from(STATE_DIR).join(AUDIT_LOG))
    }
}

/// The open log, locked until it is dropped.
struct LockedLog<'a> {
    state: &'a Dir,
    file: File,
    size: u64,
    is_new: bool,
}

impl Drop for LockedLog<'_> {
    fn drop(&mut self) {
        // A child that was just forked shares the file until its exec.
        let _ = self.file.unlock();
    }
}

impl<'a> LockedLog<'a> {
    /// Opens and locks the file. A missing one is created with mode 0600.
    fn open(state: &'a Dir) -> Result<LockedLog<'a>, StoreError> {
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            let file = open_file(state)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_RETRY_INTERVAL);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Busy {
                        path: state.path().join(AUDIT_LOG),
                        holder: "a process that appends to the issuance log".to_owned(),
                    });
                }
                Err(TryLockError::Error(source)) if is_interruption(&source) => continue,
                Err(TryLockError::Error(source)) => {
                    return Err(state.error("lock", OsStr::new(AUDIT_LOG), errno_of(&source)));
                }
            }
            let open = stat_open(&file).map_err(|errno| error(state, "look at", errno))?;
            let named = state.metadata(AUDIT_LOG)?;
            // Another process may have renamed the file while this one waited.
            if named.is_some_and(|named| (named.device, named.inode) == (open.device, open.inode)) {
                return Ok(LockedLog {
                    state,
                    file,
                    size: open.size,
                    is_new: open.size == 0,
                });
            }
            let _ = file.unlock();
        }
    }

    /// Returns the last entry. That of an empty file is in the newest renamed one.
    fn tail(&self) -> Result<Tail, StoreError> {
        if !self.is_new {
            return self.own_tail();
        }
        let Some(name) = renamed_files(self.state)?.pop() else {
            return Ok(Tail::of(&[]));
        };
        let found = self.state.read(&name, MAX_READ_BYTES)?;
        let bytes = found.map(|found| found.bytes).unwrap_or_default();
        let Tail { head, .. } = Tail::of(&bytes);
        Ok(Tail {
            head,
            ..Tail::of(&[])
        })
    }

    fn own_tail(&self) -> Result<Tail, StoreError> {
        let start = self.size.saturating_sub(TAIL_BYTES);
        // One more byte, so the end of the file is found without a larger buffer.
        let room = usize::try_from(self.size - start + 1).unwrap_or_default();
        let mut end = Vec::with_capacity(room);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.take(TAIL_BYTES).read_to_end(&mut end))
            .map_err(|source| error(self.state, "read", errno_of(&source)))?;
        // The first line of a part may be incomplete.
        let first = match start {
            0 => 0,
            _ => end
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1),
        };
        Ok(Tail::of(end.get(first..).unwrap_or_default()))
    }

    /// Renames the file, so the next one begins.
    fn rename(&self, head: &AuditHead) -> Result<(), StoreError> {
        let name = renamed_name(head.seq);
        self.state.rename(OsStr::new(AUDIT_LOG), &name)?;
        failpoint("audit:renamed", self.state.path())?;
        self.state.sync()
    }

    /// Appends the entries with one write. If it fails, the file gets its former length.
    fn append(
        &self,
        tail: Tail,
        records: &[AuditRecord],
        lost: u64,
        now: OffsetDateTime,
    ) -> Result<AuditHead, StoreError> {
        let mut head = tail.head.unwrap_or_else(AuditHead::empty);
        let mut bytes = Vec::new();
        let torn = tail.torn.map(|torn| {
            // The torn bytes stay as evidence, and the next entry begins on a line of its own.
            if !tail.ends_with_newline {
                bytes.push(b'\n');
            }
            AuditRecord {
                torn_bytes: Some(torn.len()),
                torn_sha256: Some(digest(&torn)),
                ..AuditRecord::of(AuditEvent::Torn)
            }
        });
        let mut lost = lost;
        for record in torn.into_iter().chain(records.iter().cloned()) {
            let line = serde_json::to_vec(&NewLine {
                seq: head.seq + 1,
                time: now,
                previous: &head.sha256,
                lost: std::mem::take(&mut lost),
                writer: &WRITER,
                record: &record.limited(),
            });
            let line = line.map_err(|source| StoreError::Damaged {
                path: self.state.path().join(AUDIT_LOG),
                source: super::Damage::Json(source.into()),
            })?;
            head = AuditHead {
                seq: head.seq + 1,
                sha256: digest(&line),
            };
            bytes.extend_from_slice(&line);
            bytes.push(b'\n');
        }
        let written = match failpoint("audit:write", self.state.path()) {
            Ok(()) => (&self.file)
                .write_all(&bytes)
                .map_err(|source| error(self.state, "append to", errno_of(&source))),
            injected => injected,
        };
        if written.is_err() {
            self.withdraw();
        }
        written.map(|()| head)
    }

    /// Removes what was appended. If this fails, the next entry records the tear.
    fn withdraw(&self) {
        let _ = self.file.set_len(self.size);
    }

    fn sync(&self, durability: Durability) -> Result<(), StoreError> {
        if durability == Durability::Cached {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|source| error(self.state, "write", errno_of(&source)))?;
        if self.is_new {
            self.state.sync()
        } else {
            Ok(())
        }
    }
}

impl Tail {
    /// Finds the last entry in the end of a file, which begins with a line.
    fn of(end: &[u8]) -> Tail {
        let ends_with_newline = end.last() == Some(&b'\n');
        let mut after = end.len();
        let mut head = None;
        // Lines, from the last one backward; `after` is the end of a line with its newline.
        while after > 0 {
            let Some(text) = end.get(..after) else { break };
            let complete = text.strip_suffix(b"\n");
            let line = complete.unwrap_or(text);
            let start = line
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            let entry = complete.and_then(|text| {
                let line = text.get(start..)?;
                Some((AuditEntry::parse(line)?.seq, digest(line)))
            });
            if let Some((seq, sha256)) = entry {
                head = Some(AuditHead { seq, sha256 });
                break;
            }
            after = start;
        }
        let rest = end.get(after..).unwrap_or_default();
        let torn = (!rest.is_empty()).then(|| rest.strip_suffix(b"\n").unwrap_or(rest).to_vec());
        Tail {
            head,
            torn,
            ends_with_newline,
        }
    }
}

/// Opens the file for appending, if it is a regular file of this user with one name.
fn open_file(state: &Dir) -> Result<File, StoreError> {
    let name = OsStr::new(AUDIT_LOG);
    let implausible = |why| {
        let path = state.path().join(AUDIT_LOG);
        Err(StoreError::Implausible { path, why })
    };
    let own = nix::unistd::geteuid().as_raw();
    match state.metadata(name)? {
        None => {}
        Some(found) => {
            if let Some(obstacle) = state.obstacle_of(name, &found) {
                return Err(obstacle);
            }
            if found.uid != own {
                return implausible(format!("it belongs to user {}", found.uid));
            }
            if found.links > 1 {
                return implausible(format!("it has {} hard links", found.links));
            }
        }
    }
    let flags = OFlag::O_RDWR
        | OFlag::O_APPEND
        | OFlag::O_CREAT
        | OFlag::O_NOFOLLOW
        | OFlag::O_CLOEXEC
        | OFlag::O_NONBLOCK;
    let opened = openat(state, name, flags, Mode::S_IRUSR | Mode::S_IWUSR);
    opened
        .map(File::from)
        .map_err(|errno| error(state, "open", errno))
}

fn error(state: &Dir, action: &'static str, errno: nix::errno::Errno) -> StoreError {
    state.error(action, OsStr::new(AUDIT_LOG), errno)
}

/// Returns the name of a file whose last entry has this number. The names sort by number.
fn renamed_name(last: u64) -> OsString {
    format!("audit-{last:020}.jsonl").into()
}

/// Returns the renamed files, oldest first.
fn renamed_files(state: &Dir) -> Result<Vec<OsString>, StoreError> {
    let is_renamed = |name: &OsString| {
        let number = |name: &OsString| {
            let number = name.to_str()?.strip_prefix("audit-")?;
            number.strip_suffix(".jsonl")?.parse::<u64>().ok()
        };
        number(name).is_some_and(|number| renamed_name(number) == **name)
    };
    let mut names = state.list()?;
    names.retain(is_renamed);
    Ok(names)
}

/// Returns the oldest renamed file and the record of its removal, if there are too many.
fn oldest_to_remove(
    state: &Dir,
    limits: LogLimits,
) -> Result<Option<(OsString, AuditRecord)>, StoreError> {
    let names = renamed_files(state)?;
    if names.len() <= limits.renamed_files {
        return Ok(None);
    }
    let Some(oldest) = names.into_iter().next() else {
        return Ok(None);
    };
    let found = state.read(&oldest, MAX_READ_BYTES)?;
    let bytes = found.map(|found| found.bytes).unwrap_or_default();
    let head = Tail::of(&bytes).head;
    let record = AuditRecord {
        reason: Some(format!("{} was removed", oldest.display())),
        removed_through: head.as_ref().map(|head| head.seq),
        removed_head: head.map(|head| head.sha256),
        ..AuditRecord::of(AuditEvent::Pruned)
    };
    Ok(Some((oldest, record)))
}

/// The fields that identify this process.
static WRITER: LazyLock<Writer> = LazyLock::new(|| {
    let invocation = std::env::var("INVOCATION_ID").ok();
    let is_id = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let login_uid = std::fs::read_to_string("/proc/self/loginuid").ok();
    Writer {
        invocation: invocation.filter(is_id),
        // 4294967295: no user has logged in.
        login_uid: login_uid
            .and_then(|text| text.trim().parse().ok())
            .filter(|uid| *uid != u32::MAX),
        pid: std::process::id(),
    }
});
