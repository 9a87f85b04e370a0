//! Pending requests: requests that were sent or are about to be. They survive the process and a reboot.
//!
//! `pending/SLOT/` contains `key.pem` (0600), `request.csr`, `ticket.json` and, once there is an answer, `issued.pem`.
//! A slot is created under a temporary name and renamed, so it exists completely or not at all; and it exists before
//! the request is sent. A slot that is not resumed is moved to `aside/` with its key: its request may still be answered,
//! and an administrator may want to examine it. No certificate for such a key was ever installed, so after
//! [`ASIDE_MAX_AGE`], or if there are more than [`ASIDE_MAX_ENTRIES`], the oldest are removed at the start of a run.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::macros::format_description;
use time::serde::rfc3339;
use time::{OffsetDateTime, PrimitiveDateTime};
use zeroize::Zeroizing;

use super::dir::{Dir, FileKind, temporary_name};
use super::error::{Damage, StoreError, StoreNote};
use super::state_file::{StateFile, Versioned};
use super::{NodeRoot, READ_LIMIT, STATE_DIR, Store, failpoint, free_name, sync};
use crate::kube::names::{CertName, UnknownName};

pub(super) const PENDING: &str = "pending";
pub(super) const ASIDE: &str = "aside";
/// How long an entry of `aside/` is kept: a slot, or a damaged journal of an older release.
const ASIDE_MAX_AGE: time::Duration = time::Duration::days(30);
/// Upper bound for the entries of `aside/`.
const ASIDE_MAX_ENTRIES: usize = 50;
const KEY: &str = "key.pem";
const CSR: &str = "request.csr";
pub(super) const TICKET: StateFile = StateFile::of_work("ticket.json", 1);
const ISSUED: &str = "issued.pem";
/// Maximum number of unknown files among the slots that are reported by name.
const MAX_LISTED_UNKNOWN_FILES: usize = 10;

/// The certificate or key pair that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// A certificate.
    Certificate(CertName),
    /// The service account key pair, which needs no signature.
    ServiceAccount,
}

impl Slot {
    /// Returns kubeadm's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Slot::Certificate(name) => name.as_str(),
            Slot::ServiceAccount => "sa",
        }
    }
}

impl From<CertName> for Slot {
    fn from(name: CertName) -> Slot {
        Slot::Certificate(name)
    }
}

as_text!(Slot: Display, Serialize, Deserialize);

impl FromStr for Slot {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Slot, UnknownName> {
        match name {
            "sa" => Ok(Slot::ServiceAccount),
            name => name.parse().map(Slot::Certificate),
        }
    }
}

/// Whether a write must have reached the disk when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Required: a signer elsewhere may have recorded the request when the power fails here.
    Synced,
    /// Not required: the signer is this process, so the request ends with it.
    Cached,
}

words! {
    /// Progress of a request.
    pub enum RequestPhase: Serialize, Deserialize {
        /// Key and CSR exist; nothing was sent.
        Ready = "ready",
        /// The request is being sent: whether the signer has received it is unknown until the signer is asked.
        Submitting = "submitting",
        /// The signer has accepted the request.
        Requested = "requested",
        /// The answer is in `issued.pem`.
        Answered = "answered",
        /// The signer has denied the request.
        Denied = "denied",
        /// The answer did not match the request, or the signer cannot issue such a certificate.
        Failed = "failed",
    }
}

/// Value of `signer_config` in the record of a request that `csr export` has written.
pub const OFFLINE_SIGNER: &str = "offline";

/// The record of a request, in addition to key and CSR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Identifies the request to the signer.
    pub request_id: String,
    /// The signer's name in the configuration.
    pub signer: String,
    /// The signer's kind, for example `vault`.
    pub signer_kind: String,
    /// Kind and location of the signer as configured: another one requires a new request.
    pub signer_config: String,
    /// The signer's opaque reference for polling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// How many times the request was sent.
    pub attempt: u32,
    /// How many times this or another request for the same certificate was submitted, since the last hour without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub submissions: u32,
    /// When that was done last.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_submitted: Option<OffsetDateTime>,
    /// When the request was sent first.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_submitted: Option<OffsetDateTime>,
    /// When to poll again. A hint only: the clock may have been set since.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_poll: Option<OffsetDateTime>,
    /// Until when the signer has asked for no further request.
    #[serde(default, with = "rfc3339::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<OffsetDateTime>,
    /// Progress.
    pub phase: RequestPhase,
    /// The most recent error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Directory on the node with the bundle that contains the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exported_to: Option<PathBuf>,
    /// Whether the certificate only proves that the signer signs, and is discarded.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_proof: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl RequestRecord {
    /// Returns the record of a request that has not been sent. `id` identifies it to the signer named `signer`, of kind
    /// `kind`; `config` is the digest of the signer's configuration.
    pub fn ready(id: &str, signer: &str, kind: &str, config: &str) -> RequestRecord {
        RequestRecord {
            request_id: id.to_owned(),
            signer: signer.to_owned(),
            signer_kind: kind.to_owned(),
            signer_config: config.to_owned(),
            handle: None,
            attempt: 0,
            submissions: 0,
            last_submitted: None,
            first_submitted: None,
            next_poll: None,
            not_before: None,
            phase: RequestPhase::Ready,
            last_error: None,
            exported_to: None,
            is_proof: false,
        }
    }
}

/// The most recent error of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// The signer's class of the error: a lower-case word.
    pub class: String,
    /// Which step failed: a lower-case word.
    pub code: String,
    /// The message for the user; never contains a secret.
    pub detail: String,
    /// When it happened.
    #[serde(with = "rfc3339")]
    pub at: OffsetDateTime,
}

/// The contents of one slot.
pub struct PendingRequest {
    /// The requested certificate or key pair.
    pub slot: Slot,
    /// The key in PEM, with its last line.
    pub key_pem: Zeroizing<Vec<u8>>,
    /// The CSR in PEM; `None` if it is missing: create it again from the key.
    pub csr_pem: Option<Vec<u8>>,
    /// The ticket; `None` if it is missing or unreadable: create it again, as for a request of unknown outcome.
    pub ticket: Option<RequestRecord>,
    /// The signer's answer as it was received.
    pub issued_pem: Option<Vec<u8>>,
}

impl fmt::Debug for PendingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("slot", &self.slot)
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

/// The public part of a slot.
#[derive(Debug)]
pub struct RecordedRequest {
    /// The CSR in PEM.
    pub csr_pem: Vec<u8>,
    /// The ticket; `None` if it is missing or unreadable.
    pub ticket: Option<RequestRecord>,
}

/// All requests that can be resumed.
#[derive(Debug, Default)]
pub struct PendingRequests {
    /// Sorted by name.
    pub slots: Vec<PendingRequest>,
    /// Requests that were set aside or must be created again.
    pub notes: Vec<StoreNote>,
}

impl NodeRoot {
    /// Returns the pending slots and their tickets; `None` for a ticket that is missing or unreadable. Needs no lock and
    /// reads no key.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn tickets(&self) -> Result<Vec<(Slot, Option<RequestRecord>)>, StoreError> {
        let Some(pending) = self.dir(format!("{STATE_DIR}/{PENDING}"))? else {
            return Ok(Vec::new());
        };
        let mut tickets = Vec::new();
        for name in pending.list()? {
            // `Store::pending` reports anything else.
            let Some(slot) = slot_of(&name) else { continue };
            // Many names of files are valid names of registered certificates.
            if !is_directory(&pending, &name)? {
                continue;
            }
            let Some(dir) = pending.open_dir(&name)? else {
                continue;
            };
            tickets.push((slot, readable_ticket(&dir)?));
        }
        Ok(tickets)
    }

    /// Returns a pending request without its key; `None` if there is no CSR. Needs no lock.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn recorded_request(&self, slot: Slot) -> Result<Option<RecordedRequest>, StoreError> {
        let Some(dir) = self.dir(format!("{STATE_DIR}/{PENDING}/{slot}"))? else {
            return Ok(None);
        };
        let csr = dir.read(CSR, READ_LIMIT)?;
        let ticket = readable_ticket(&dir)?;
        Ok(csr.map(|csr| RecordedRequest {
            csr_pem: csr.bytes.to_vec(),
            ticket,
        }))
    }
}

impl Store {
    /// Creates a slot with a new key, its CSR and its ticket. The request may be sent once this returns.
    ///
    /// # Errors
    /// [`StoreError::SlotTaken`] if the slot exists already, and errors of the system.
    pub fn create_pending(
        &self,
        slot: Slot,
        key_pem: &[u8],
        csr_pem: &[u8],
        ticket: &RequestRecord,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let name = OsStr::new(slot.as_str());
        let (pending, made) = self.state.make_dir(OsStr::new(PENDING), 0o700)?;
        // A crash must not lose the directory of the slot either.
        if made && durability == Durability::Synced {
            self.state.sync()?;
        }
        if pending.metadata(name)?.is_some() {
            return Err(StoreError::SlotTaken {
                path: pending.path().join(name),
            });
        }
        let temp = temporary_name(name);
        pending.remove_dir(&temp)?;
        let files = [
            (KEY, key_pem),
            (CSR, csr_pem),
            (TICKET.name, &ticket_json(ticket)?),
        ];
        let result = write_slot(&pending, &temp, name, &files, durability);
        if result.is_err() {
            let _ = pending.remove_dir(&temp);
        }
        result?;
        failpoint("pending:created", pending.path().join(name))?;
        match durability {
            Durability::Synced => pending.sync(),
            Durability::Cached => Ok(()),
        }
    }

    /// Replaces the ticket of a slot.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn update_ticket(
        &self,
        slot: Slot,
        ticket: &RequestRecord,
        durability: Durability,
    ) -> Result<(), StoreError> {
        self.put(slot, TICKET.name, &ticket_json(ticket)?, durability)
    }

    /// Replaces the CSR of a slot.
    pub(crate) fn save_csr(
        &self,
        slot: Slot,
        csr_pem: &[u8],
        durability: Durability,
    ) -> Result<(), StoreError> {
        self.put(slot, CSR, csr_pem, durability)
    }

    /// Stores the signer's answer until a commit installs the certificate.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn save_answer(
        &self,
        slot: Slot,
        issued_pem: &[u8],
        durability: Durability,
    ) -> Result<(), StoreError> {
        self.put(slot, ISSUED, issued_pem, durability)
    }

    /// Returns all pending requests. A slot without a complete key is set aside.
    ///
    /// # Errors
    /// [`StoreError::NewerFormat`] for the ticket of a newer nodepki, and errors of the system.
    pub fn pending(&self, now: OffsetDateTime) -> Result<PendingRequests, StoreError> {
        let mut resumable = PendingRequests::default();
        let Some(pending) = self.state.open_dir(OsStr::new(PENDING))? else {
            return Ok(resumable);
        };
        let mut unknown = 0;
        for name in pending.list()? {
            let kind = pending.metadata(&name)?.map(|metadata| metadata.kind);
            let (Some(slot), Some(FileKind::Directory)) = (slot_of(&name), kind) else {
                unknown += 1;
                if unknown <= MAX_LISTED_UNKNOWN_FILES {
                    let path = pending.path().join(&name);
                    resumable.notes.push(StoreNote::UnknownFile { path });
                }
                continue;
            };
            let Some(dir) = pending.open_dir(&name)? else {
                continue;
            };
            match read_slot(&dir, slot, &mut resumable.notes)? {
                Ok(found) => resumable.slots.push(found),
                Err(why) => resumable.notes.push(self.set_slot_aside(slot, why, now)?),
            }
        }
        if unknown > MAX_LISTED_UNKNOWN_FILES {
            resumable.notes.push(StoreNote::MoreUnknownFiles {
                path: pending.path().to_owned(),
                more: unknown - MAX_LISTED_UNKNOWN_FILES,
            });
        }
        Ok(resumable)
    }

    /// Moves a slot with all its files to `aside/`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn set_slot_aside(
        &self,
        slot: Slot,
        why: &str,
        now: OffsetDateTime,
    ) -> Result<StoreNote, StoreError> {
        let name = OsStr::new(slot.as_str());
        let path = self.state.path().join(PENDING).join(name);
        let Some(pending) = self.state.open_dir(OsStr::new(PENDING))? else {
            return Err(StoreError::io("set aside", path, nix::errno::Errno::ENOENT));
        };
        let aside = self.aside()?;
        let mut stem = name.to_owned();
        stem.push("-");
        let to = free_name(&aside, &stem, now)?;
        pending.rename_into(name, &aside, &to)?;
        failpoint("pending:set-aside", &path)?;
        aside.sync()?;
        pending.sync()?;
        Ok(StoreNote::SetAside {
            path,
            to: aside.path().join(to),
            why: why.to_owned(),
        })
    }

    fn aside(&self) -> Result<Dir, StoreError> {
        let (dir, created) = self.state.make_dir(OsStr::new(ASIDE), 0o700)?;
        if created {
            self.state.sync()?;
        }
        Ok(dir)
    }

    fn put(
        &self,
        slot: Slot,
        file: &str,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<(), StoreError> {
        let path: PathBuf = self.state.path().join(PENDING).join(slot.as_str());
        let missing = || StoreError::io("write to", &path, nix::errno::Errno::ENOENT);
        let dir = self
            .state
            .open_dir(OsStr::new(PENDING))?
            .ok_or_else(missing)?
            .open_dir(OsStr::new(slot.as_str()))?
            .ok_or_else(missing)?;
        failpoint("pending:ticket-written", &path)?;
        dir.replace(
            OsStr::new(file),
            bytes,
            0o600,
            durability == Durability::Synced,
        )?;
        failpoint("pending:ticket-updated", &path)
    }
}

/// Writes the files of a slot under the temporary name, then renames the slot.
fn write_slot(
    pending: &Dir,
    temp: &OsStr,
    name: &OsStr,
    files: &[(&str, &[u8]); 3],
    durability: Durability,
) -> Result<(), StoreError> {
    let (dir, _) = pending.make_dir(temp, 0o700)?;
    let files = files
        .iter()
        .map(|(file, bytes)| dir.create(OsStr::new(file), bytes))
        .collect::<Result<Vec<File>, StoreError>>()?;
    failpoint("pending:written", pending.path().join(name))?;
    if durability == Durability::Synced {
        let mut open: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        open.push(dir.as_fd());
        sync::all(&open).map_err(|(_, errno)| StoreError::io("write", dir.path(), errno))?;
    }
    pending.rename(temp, name)
}

/// Returns the ticket in the directory of a slot; `None` if it is missing or unreadable.
fn readable_ticket(dir: &Dir) -> Result<Option<RequestRecord>, StoreError> {
    let ticket = dir.read(TICKET.name, READ_LIMIT)?;
    let path = || dir.path().join(TICKET.name);
    Ok(ticket.and_then(|found| TICKET.parse(&found.bytes, path()).ok()))
}

/// Reads a slot; `Ok(Err(reason))` if its key is unusable. Notes the files that must be created again.
fn read_slot(
    dir: &Dir,
    slot: Slot,
    notes: &mut Vec<StoreNote>,
) -> Result<Result<PendingRequest, &'static str>, StoreError> {
    let read = |file: &str| {
        dir.read(file, READ_LIMIT)
            .map(|found| found.map(|content| content.bytes))
    };
    // Only the key cannot be made again: without it, no certificate for the request could be used.
    let key_pem = match read(KEY)? {
        Some(key) if is_complete_pem(&key) => key,
        Some(_) => return Ok(Err("its key is torn")),
        None => return Ok(Err("it has no key")),
    };
    let rebuilt = |file: &str, why: String| StoreNote::Rebuilt {
        path: dir.path().join(file),
        why,
    };
    let csr_pem = read(CSR)?
        .filter(|csr| is_complete_pem(csr))
        .map(|csr| csr.to_vec());
    if csr_pem.is_none() {
        notes.push(rebuilt(CSR, "missing or torn".to_owned()));
    }
    let ticket = match read(TICKET.name)? {
        None => Err("missing".to_owned()),
        Some(json) => match TICKET.parse(&json, dir.path().join(TICKET.name)) {
            Ok(ticket) => Ok(ticket),
            Err(StoreError::Damaged { source, .. }) => Err(source.to_string()),
            // A newer format is not damage: the request of a newer nodepki must not be made again.
            Err(error) => return Err(error),
        },
    };
    Ok(Ok(PendingRequest {
        slot,
        key_pem,
        csr_pem,
        ticket: ticket
            .map_err(|why| notes.push(rebuilt(TICKET.name, why)))
            .ok(),
        issued_pem: read(ISSUED)?.map(|answer| answer.to_vec()),
    }))
}

/// Removes entries of `aside/` that are older than [`ASIDE_MAX_AGE`], and the oldest ones above [`ASIDE_MAX_ENTRIES`].
///
/// An entry that cannot be removed is noted. An entry that is newer than `now` was created under another clock and has no
/// known age.
pub(super) fn limit_aside(
    state: &Dir,
    now: OffsetDateTime,
    notes: &mut Vec<StoreNote>,
) -> Result<(), StoreError> {
    let Some(aside) = state.open_dir(OsStr::new(ASIDE))? else {
        return Ok(());
    };
    let mut entries: Vec<(OffsetDateTime, OsString)> = aside
        .names()?
        .into_iter()
        .filter_map(|name| Some((set_aside_at(&name)?, name)))
        .collect();
    entries.sort();
    let excess = entries.len().saturating_sub(ASIDE_MAX_ENTRIES);
    let mut removed = false;
    for (place, (at, name)) in entries.into_iter().enumerate() {
        if place >= excess && now - at <= ASIDE_MAX_AGE {
            continue;
        }
        let gone = if is_directory(&aside, &name)? {
            aside.remove_dir(&name)
        } else {
            aside.unlink(&name)
        };
        match gone {
            Ok(_) => removed = true,
            Err(error) => notes.push(StoreNote::Undeleted {
                path: aside.path().join(name),
                why: error.to_string(),
            }),
        }
    }
    if removed { aside.sync() } else { Ok(()) }
}

/// Returns when an entry was moved to `aside/`, according to its name (see [`free_name`]); `None` for a file that nodepki
/// did not put there.
fn set_aside_at(name: &OsStr) -> Option<OffsetDateTime> {
    const TIME: &[time::format_description::BorrowedFormatItem<'_>] =
        format_description!("[year][month][day]T[hour][minute][second]Z");
    let text = name.to_str()?;
    text.match_indices('-').find_map(|(at, _)| {
        let time = text.get(at + 1..)?.split('-').next()?;
        let time = PrimitiveDateTime::parse(time, TIME).ok()?;
        Some(time.assume_utc())
    })
}

/// Removes slots whose key and certificate are installed.
pub(super) fn remove(state: &Dir, slots: &[Slot]) -> Result<(), StoreError> {
    if slots.is_empty() {
        return Ok(());
    }
    let Some(pending) = state.open_dir(OsStr::new(PENDING))? else {
        return Ok(());
    };
    for slot in slots {
        pending.remove_dir(OsStr::new(slot.as_str()))?;
        failpoint("finish:slot-removed", pending.path())?;
    }
    pending.sync()
}

/// Returns true for a directory: a slot, as opposed to a file.
pub(super) fn is_directory(dir: &Dir, name: &OsStr) -> Result<bool, StoreError> {
    Ok(dir
        .metadata(name)?
        .is_some_and(|metadata| metadata.kind == FileKind::Directory))
}

fn slot_of(name: &OsString) -> Option<Slot> {
    name.to_str()?.parse().ok()
}

pub(super) fn ticket_json(ticket: &RequestRecord) -> Result<Vec<u8>, StoreError> {
    let versioned = Versioned {
        version: TICKET.version,
        record: ticket,
    };
    serde_json::to_vec_pretty(&versioned).map_err(|source| StoreError::Damaged {
        path: PathBuf::from(TICKET.name),
        source: Damage::Json(source.into()),
    })
}

/// Returns true if the last line is there. A file that a crash has truncated lacks it.
fn is_complete_pem(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    text.starts_with(b"-----BEGIN ")
        && text.ends_with(b"-----")
        && text.windows(9).any(|window| window == b"-----END ")
}
