//! Requests that were sent, or are about to be: they outlive the process and the boot.
//!
//! `pending/SLOT/` holds `key.pem` (0600), `request.csr`, `ticket.json` and, once there is an answer, `issued.pem`.
//! A slot is made under an unfinished name and renamed, so it is there whole or not at all; and it is there before the
//! request is sent. A slot that is not resumed is moved to `aside/` with its key: its request may still be answered, and
//! an administrator may want to look at it. No certificate for such a key was ever installed, so after
//! [`ASIDE_MAX_AGE`], or if there are more than [`ASIDE_MAX_ENTRIES`], the oldest are removed at the start of a run.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};
use zeroize::Zeroizing;

use super::dir::{Dir, FileKind, unfinished};
use super::error::{Error, Note};
use super::{READ_LIMIT, Root, STATE_DIR, Store, failpoint, free_name, sync};
use crate::kube::names::{CertName, UnknownName};

pub(super) const PENDING: &str = "pending";
pub(super) const ASIDE: &str = "aside";
/// How long a slot or a damaged journal is kept in `aside/`.
const ASIDE_MAX_AGE: time::Duration = time::Duration::days(30);
/// Upper bound for the entries of `aside/`.
const ASIDE_MAX_ENTRIES: usize = 50;
const KEY: &str = "key.pem";
const CSR: &str = "request.csr";
const TICKET: &str = "ticket.json";
const ISSUED: &str = "issued.pem";
const VERSION: u64 = 1;
/// Number of files among the slots that are reported by name.
const MAX_LISTED_STRANGERS: usize = 10;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// A certificate.
    Certificate(CertName),
    /// The service account key pair, which nobody signs.
    ServiceAccount,
}

impl Slot {
    /// kubeadm's name.
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

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Slot {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Slot, UnknownName> {
        match name {
            "sa" => Ok(Slot::ServiceAccount),
            name => name.parse().map(Slot::Certificate),
        }
    }
}

impl Serialize for Slot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Slot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Slot, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Whether a write must have reached the disk when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It must: a signer elsewhere may remember the request after a power cut.
    Synced,
    /// It need not: the signer is this process, and forgets with it.
    Cached,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Key and CSR are there; nothing was sent.
    Ready,
    /// Being sent: whether the signer has it is unknown until it was asked.
    Submitting,
    /// The signer has it.
    Requested,
    /// The answer is in `issued.pem`.
    Answered,
    /// The signer said no.
    Denied,
    /// The answer was not what was asked for, or the signer cannot do it.
    Failed,
}

/// What is remembered of a request besides key and CSR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The request's identity towards the signer.
    pub request_id: String,
    /// The signer's name in the configuration.
    pub signer: String,
    /// The signer's kind, for example `vault`.
    pub signer_kind: String,
    /// Digest of the signer's configuration: another one means another request.
    pub signer_config: String,
    /// The signer's own word for the request. It is opaque here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// How often it was sent.
    pub attempt: u32,
    /// When it was sent first.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub first_submitted: Option<OffsetDateTime>,
    /// When to ask again. The clock may have jumped since: this is a hint.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub next_poll: Option<OffsetDateTime>,
    /// How far it has come.
    pub phase: Phase,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

impl Ticket {
    /// Of a request that has not been sent: `id` towards the signer called `signer`, of kind `kind`, as configured by
    /// what `config` is a digest of.
    pub fn ready(id: &str, signer: &str, kind: &str, config: &str) -> Ticket {
        Ticket {
            request_id: id.to_owned(),
            signer: signer.to_owned(),
            signer_kind: kind.to_owned(),
            signer_config: config.to_owned(),
            handle: None,
            attempt: 0,
            first_submitted: None,
            next_poll: None,
            phase: Phase::Ready,
            last_error: None,
        }
    }
}

/// An error as a ticket remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// The signer's class of the error.
    pub class: String,
    /// A short fixed word.
    pub code: String,
    /// For people; never a secret.
    pub detail: String,
    /// When it happened.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    #[serde(flatten)]
    ticket: &'a Ticket,
}

/// One slot as it was found.
pub struct Pending {
    /// What it is for.
    pub slot: Slot,
    /// The key in PEM, whole as far as its last line tells.
    pub key_pem: Zeroizing<Vec<u8>>,
    /// The CSR in PEM; `None` when it is missing: make it again from the key.
    pub csr_pem: Option<Vec<u8>>,
    /// The ticket; `None` when it is missing or unreadable: make it again, as for a request whose fate is unknown.
    pub ticket: Option<Ticket>,
    /// The signer's answer as it came.
    pub issued_pem: Option<Vec<u8>>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("slot", &self.slot)
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

/// Everything that can be resumed.
#[derive(Debug, Default)]
pub struct Resumable {
    /// One a slot, sorted by name.
    pub slots: Vec<Pending>,
    /// What was set aside or has to be made again.
    pub notes: Vec<Note>,
}

impl Root {
    /// The pending slots and their tickets, without the lock and without a key being read; `None` for a ticket that is
    /// missing or unreadable.
    ///
    /// # Errors
    /// What the system says.
    pub fn tickets(&self) -> Result<Vec<(Slot, Option<Ticket>)>, Error> {
        let Some(pending) = self.dir(format!("{STATE_DIR}/{PENDING}"))? else {
            return Ok(Vec::new());
        };
        let mut tickets = Vec::new();
        for name in pending.list()? {
            // Anything else in there is reported by `Store::pending`.
            let Some(slot) = slot_of(&name) else { continue };
            let Some(dir) = pending.open_dir(&name)? else {
                continue;
            };
            let ticket = dir.read(TICKET, READ_LIMIT)?;
            tickets.push((slot, ticket.and_then(|found| parse(&found.bytes).ok())));
        }
        Ok(tickets)
    }
}

impl Store {
    /// Keeps a new key, its CSR and its ticket. They are there before the request may be sent.
    ///
    /// # Errors
    /// [`Error::SlotTaken`] when there is a key already; what the system says.
    pub fn create_pending(
        &self,
        slot: Slot,
        key_pem: &[u8],
        csr_pem: &[u8],
        ticket: &Ticket,
        durability: Durability,
    ) -> Result<(), Error> {
        let name = OsStr::new(slot.as_str());
        let (pending, made) = self.state.make_dir(OsStr::new(PENDING), 0o700)?;
        if made && durability == Durability::Synced {
            self.state.sync()?;
        }
        if pending.metadata(name)?.is_some() {
            return Err(Error::SlotTaken {
                path: pending.path().join(name),
            });
        }
        let temp = unfinished(name);
        pending.remove_dir(&temp)?;
        let result = (|| {
            let (dir, _) = pending.make_dir(&temp, 0o700)?;
            let files = [
                dir.create(OsStr::new(KEY), key_pem)?,
                dir.create(OsStr::new(CSR), csr_pem)?,
                dir.create(OsStr::new(TICKET), &ticket_json(ticket)?)?,
            ];
            failpoint("pending:written", pending.path().join(name))?;
            if durability == Durability::Synced {
                let open: [BorrowedFd<'_>; 4] = [
                    files[0].as_fd(),
                    files[1].as_fd(),
                    files[2].as_fd(),
                    dir.as_fd(),
                ];
                sync::all(&open).map_err(|(_, errno)| Error::io("write", dir.path(), errno))?;
            }
            pending.rename(&temp, name)
        })();
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
    /// What the system says.
    pub fn update_ticket(
        &self,
        slot: Slot,
        ticket: &Ticket,
        durability: Durability,
    ) -> Result<(), Error> {
        self.put(slot, TICKET, &ticket_json(ticket)?, durability)
    }

    /// Replaces the CSR of a slot.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep_csr(
        &self,
        slot: Slot,
        csr_pem: &[u8],
        durability: Durability,
    ) -> Result<(), Error> {
        self.put(slot, CSR, csr_pem, durability)
    }

    /// Keeps the signer's answer until a commit has put the certificate in place.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep_answer(
        &self,
        slot: Slot,
        issued_pem: &[u8],
        durability: Durability,
    ) -> Result<(), Error> {
        self.put(slot, ISSUED, issued_pem, durability)
    }

    /// Everything that is pending. A slot without a whole key is set aside.
    ///
    /// # Errors
    /// What the system says.
    pub fn pending(&self, now: OffsetDateTime) -> Result<Resumable, Error> {
        let mut found = Resumable::default();
        let Some(pending) = self.state.open_dir(OsStr::new(PENDING))? else {
            return Ok(found);
        };
        let mut strangers = 0;
        for name in pending.list()? {
            let path = pending.path().join(&name);
            let (Some(slot), Some(FileKind::Directory)) = (
                slot_of(&name),
                pending.metadata(&name)?.map(|metadata| metadata.kind),
            ) else {
                strangers += 1;
                if strangers <= MAX_LISTED_STRANGERS {
                    found.notes.push(Note::Stranger { path });
                }
                continue;
            };
            let Some(dir) = pending.open_dir(&name)? else {
                continue;
            };
            let read = |file: &str| {
                dir.read(file, READ_LIMIT)
                    .map(|found| found.map(|content| content.bytes))
            };
            let key_pem = match read(KEY)? {
                Some(key) if whole_pem(&key) => key,
                other => {
                    let why = match other {
                        Some(_) => "its key is torn",
                        None => "it has no key",
                    };
                    found.notes.push(self.set_slot_aside(slot, why, now)?);
                    continue;
                }
            };
            let csr_pem = read(CSR)?
                .filter(|csr| whole_pem(csr))
                .map(|csr| csr.to_vec());
            if csr_pem.is_none() {
                found.notes.push(Note::Rebuilt {
                    path: dir.path().join(CSR),
                    why: "missing or torn".to_owned(),
                });
            }
            let ticket = match read(TICKET)?
                .map_or_else(|| Err("missing".to_owned()), |json| parse(&json))
            {
                Ok(ticket) => Some(ticket),
                Err(why) => {
                    let path = dir.path().join(TICKET);
                    found.notes.push(Note::Rebuilt { path, why });
                    None
                }
            };
            found.slots.push(Pending {
                slot,
                key_pem,
                csr_pem,
                ticket,
                issued_pem: read(ISSUED)?.map(|answer| answer.to_vec()),
            });
        }
        if strangers > MAX_LISTED_STRANGERS {
            found.notes.push(Note::MoreStrangers {
                path: pending.path().to_owned(),
                more: strangers - MAX_LISTED_STRANGERS,
            });
        }
        Ok(found)
    }

    /// Moves a slot out of the way with all that is in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_slot_aside(
        &self,
        slot: Slot,
        why: &str,
        now: OffsetDateTime,
    ) -> Result<Note, Error> {
        let name = OsStr::new(slot.as_str());
        let path = self.state.path().join(PENDING).join(name);
        let Some(pending) = self.state.open_dir(OsStr::new(PENDING))? else {
            return Err(Error::io("set aside", path, nix::errno::Errno::ENOENT));
        };
        let aside = self.aside()?;
        let mut stem = name.to_owned();
        stem.push("-");
        let to = free_name(&aside, &stem, now)?;
        pending.rename_into(name, &aside, &to)?;
        failpoint("pending:set-aside", &path)?;
        aside.sync()?;
        pending.sync()?;
        Ok(Note::SetAside {
            path,
            to: aside.path().join(to),
            why: why.to_owned(),
        })
    }

    fn put(
        &self,
        slot: Slot,
        file: &str,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<(), Error> {
        let path: PathBuf = self.state.path().join(PENDING).join(slot.as_str());
        let missing = || Error::io("write to", &path, nix::errno::Errno::ENOENT);
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

/// Removes from `aside/` what is older than [`ASIDE_MAX_AGE`], and the oldest entries above [`ASIDE_MAX_ENTRIES`].
///
/// An entry that cannot be removed is a note. One that is newer than `now` was made by another clock and has no age.
pub(super) fn limit_aside(
    state: &Dir,
    now: OffsetDateTime,
    notes: &mut Vec<Note>,
) -> Result<(), Error> {
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
        let gone = match is_slot_dir(&aside, &name)? {
            true => aside.remove_dir(&name),
            false => aside.unlink(&name),
        };
        match gone {
            Ok(_) => removed = true,
            Err(error) => notes.push(Note::Undeleted {
                path: aside.path().join(name),
                why: error.to_string(),
            }),
        }
    }
    match removed {
        true => aside.sync(),
        false => Ok(()),
    }
}

/// When an entry of `aside/` was moved there, by its name (see [`free_name`]); `None` for a file that is not ours.
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

/// Removes slots whose key and certificate are in place.
pub(super) fn remove(state: &Dir, slots: &[Slot]) -> Result<(), Error> {
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

/// True for an unfinished slot.
pub(super) fn is_slot_dir(dir: &Dir, name: &OsStr) -> Result<bool, Error> {
    Ok(dir
        .metadata(name)?
        .is_some_and(|metadata| metadata.kind == FileKind::Directory))
}

fn slot_of(name: &OsString) -> Option<Slot> {
    name.to_str()?.parse().ok()
}

fn ticket_json(ticket: &Ticket) -> Result<Vec<u8>, Error> {
    let written = Written {
        version: VERSION,
        ticket,
    };
    serde_json::to_vec_pretty(&written).map_err(|source| Error::Damaged {
        path: PathBuf::from(TICKET),
        why: source.to_string(),
    })
}

fn parse(json: &[u8]) -> Result<Ticket, String> {
    #[derive(Deserialize)]
    struct Header {
        version: u64,
    }
    let header: Header = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if header.version != VERSION {
        return Err(format!(
            "format version {}, known is {VERSION}",
            header.version
        ));
    }
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

/// A file that was cut off by a crash has no last line.
fn whole_pem(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    text.starts_with(b"-----BEGIN ")
        && text.ends_with(b"-----")
        && text.windows(9).any(|window| window == b"-----END ")
}
