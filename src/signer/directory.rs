//! `directory`: requests are written as files, and a signer (an administrator, a program, `rsync`) drops answers.
//!
//! | file | writer | content |
//! | --- | --- | --- |
//! | `outbox/SLOT.csr` | nodepki | the CSR, PEM |
//! | `outbox/SLOT.json` | nodepki | [`SignRequest`]: the requested certificate, and the SHA-256 of that CSR |
//! | `inbox/SLOT.crt` | the signer | leaf and intermediates, PEM, DER or PKCS#7 |
//! | `inbox/SLOT.denied` | the signer | instead of the former: the reason for a denial, text |
//!
//! SLOT is the certificate's name (`etcd-server`, `admin.conf`), and for another node's kubelet the certificate's name with
//! the UID of its CertificateSigningRequest (`kubelet-serving.6f1c…`). An answer is accepted if it is a regular file owned
//! by root, the running user or a configured user, not writable by others, without further hard links, at most 256
//! KiB, complete, and for this request's key. Any other file is left in place and reported once per version: an
//! unfinished copy looks like a damaged file. Writing the same request again changes no byte. A new request removes
//! the answers to the slot's earlier one, which could be mistaken for its own; a request whose outbox file or ticket
//! exists is not new. A pending request of another cluster is never replaced: on a host, `capi secrets` of several clusters
//! may use the same directory. The slot's files are removed when the certificate is installed.
//!
//! # Access rules
//!
//! nodepki runs as root and creates and removes files here, so another user must not be able to redirect it:
//!
//! | directory | owner | writable by group or others |
//! | --- | --- | --- |
//! | the base and every directory above it | root or the running user | only if it is sticky, as `/tmp` is |
//! | `inbox` | these, or one of `trustedUsers` | only if it is sticky |
//! | `outbox` | these, or one of `trustedUsers` | never: a CSR put there by another user would be signed |
//!
//! A program that answers as another user therefore has its user id in `trustedUsers`, and the inbox belongs to it
//! (`chown UID inbox`) or is sticky (`chmod 1777 inbox`). Anything else ends the run with exit status 65 before a key
//! is generated. Every operation opens the directories again, one component at a time, and works on the open
//! directories; `inbox` and `outbox` are never symbolic links.
//!
//! The inbox is not read as a whole: a request needs two names in it. To find an answer under a wrong name, the names
//! of the other certificates are read as well, and all other names if there are at most [`MAX_INBOX_NAMES`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use nix::unistd::geteuid;
use serde_json::{Value, json};

use super::wire::SignRequest;
use super::{
    About, Answer, Caps, Carry, Configured, FailureClass, Request, RequestLookup, Resubmit, Signer,
    SignerError, SignerKind, Site, Ticket, certifies, printable,
};
use crate::kube::names::CertName;
use crate::store;
use crate::x509::{Chain, ChainError, Csr};
use crate::yaml::Field;
use crate::yaml::schema::ValueForm;
use crate::yaml::settings::{SettingsBlock, settings};

/// Largest size of an answer, in bytes.
pub const ANSWER_LIMIT: u64 = 256 << 10;
/// Largest number of files in the inbox for which unexpected names are read.
pub const MAX_INBOX_NAMES: usize = 64;

/// Directory of the answers, below the base.
pub const INBOX: &str = "inbox";
/// Directory of the requests, below the base.
pub const OUTBOX: &str = "outbox";

/// File access below one directory. Names are relative, `outbox/apiserver.csr`.
pub trait DropDir {
    /// Verifies the access rules in the module's header for the directories that exist.
    fn verify(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the directory on this machine, for messages; `dir` is the configured path.
    fn shown(&self, dir: &Path) -> PathBuf {
        dir.to_owned()
    }

    /// Creates a directory if it does not exist.
    fn make_dir(&self, name: &str, mode: u32) -> io::Result<()>;

    /// Writes a file under a temporary name in the same directory, fsyncs it, renames it, fsyncs the directory.
    fn write_atomic(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()>;

    /// Reads at most `limit` + 1 bytes; `None` if there is no such file. Must neither follow a symbolic link in the
    /// last component nor block on a FIFO (`O_NOFOLLOW | O_NONBLOCK`): these are returned as [`Shape`], without
    /// content.
    fn read(&self, name: &str, limit: u64) -> io::Result<Option<Dropped>>;

    /// Returns the names in a directory: all of them, or any `limit` + 1 if there are more; empty if it does not
    /// exist.
    fn list(&self, name: &str, limit: usize) -> io::Result<Vec<String>>;

    /// Removes a file and fsyncs the directory; a missing file is not an error.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// Opens a drop directory whose inbox and outbox may belong to the users with these ids.
pub type OpenDrop<'a> = dyn Fn(&Path, &[u32]) -> io::Result<Box<dyn DropDir>> + 'a;

/// A file of the drop directory.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// Content; empty for anything but a regular file.
    pub bytes: Vec<u8>,
    /// From fstat on the descriptor that was read.
    pub meta: Meta,
}

/// Attributes that decide whether a file is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Type of the entry.
    pub shape: Shape,
    /// Owner.
    pub uid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of hard links.
    pub links: u64,
    /// Last modification, seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
    /// Directory, FIFO, socket, device.
    Other,
}

settings! {
    /// A directory for requests and answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// Directory for requests (outbox) and answers (inbox).
        "path" => pub path: PathBuf, required "with an absolute path";
        /// User id besides root whose answers are accepted, and that may own inbox and outbox.
        "trustedUsers" => pub trusted_uids: Vec<u32>,
            read read_uids, form ValueForm::List(&ValueForm::User), show show_uids;
    }
}

fn read_uids(field: &Field<'_>) -> Option<Vec<u32>> {
    let read = |item: &Field<'_>| {
        let uid = item.written().and_then(|text| text.parse().ok());
        if uid.is_none() {
            item.error(
                "is not a numeric user id",
                "write it as a number: id -u NAME",
            );
        }
        uid
    };
    Some(field.list()?.iter().filter_map(read).collect())
}

fn show_uids(uids: &[u32]) -> Option<Value> {
    Some(json!(uids))
}

impl Config {
    /// Creates a configuration that accepts answers of root and of the running user.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Config {
            path: path.into(),
            trusted_uids: Vec::new(),
        }
    }
}

const CAPS: Caps = Caps {
    ml_dsa: Carry::AsConfigured,
    empty_csr: Carry::AsConfigured,
    pends: true,
    lookup: RequestLookup::ByName,
    resubmit: Resubmit::Adopts,
    ..Caps::everything()
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "directory",
        signs_with: "a program or person that reads `outbox/*.csr` and writes `inbox/*.crt`",
        authentication: "file owner",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let files = (site.drop_dir)(&self.path, &self.trusted_uids).map_err(|error| {
            SignerError::config(
                format!(
                    "the drop directory {} cannot be opened",
                    site.files.shown(&self.path).display()
                ),
                "create it, or configure another one",
            )
            .caused_by(error)
        })?;
        Ok(Box::new(Directory::new(
            &self.path,
            files,
            self.trusted_uids.clone(),
        )))
    }
}

/// Exchanges requests and answers as files.
pub struct Directory {
    dir: PathBuf,
    files: Box<dyn DropDir>,
    trusted_uids: Vec<u32>,
    /// Inbox files whose refusal was already reported, with their attributes.
    reported: RefCell<BTreeMap<String, Meta>>,
}

impl Directory {
    /// Creates a signer; `dir` is the configured path, and `files` is rooted there.
    pub fn new(dir: &Path, files: Box<dyn DropDir>, trusted_uids: Vec<u32>) -> Self {
        Directory {
            dir: dir.to_owned(),
            files,
            trusted_uids,
            reported: RefCell::default(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.files.shown(&self.dir).join(name).display().to_string()
    }

    fn failed(&self, doing: &str, name: &str, error: io::Error) -> SignerError {
        let path = self.path(name);
        let inner = error.get_ref();
        let inner = inner.and_then(|inner| inner.downcast_ref::<store::StoreError>());
        if let Some(refused) = inner
            && refused.class() == store::ErrorClass::Unsafe
        {
            return SignerError::permanent(
                format!("{} is not safe to use: {refused}", self.label()),
                "then run again",
            );
        }
        // Full and read-only file systems may be repaired while the node waits.
        SignerError::new(
            FailureClass::Config,
            format!("{path} could not be {doing}"),
            "check that it exists, its owner and mode, and that its file system is mounted, writable and not full",
        )
        .caused_by(error)
    }

    fn read(&self, name: &str) -> Result<Option<Dropped>, SignerError> {
        self.files
            .read(name, ANSWER_LIMIT)
            .map_err(|error| self.failed("read", name, error))
    }

    /// Returns the CSR in the outbox of a slot, if it is complete.
    fn outstanding(&self, name: &str) -> Result<Option<Csr>, SignerError> {
        let file = self.read(&outbox(name, "csr"))?;
        Ok(file.and_then(|file| Csr::from_pem(&file.bytes).ok()))
    }

    fn is_laid_out(&self, request: &Request) -> Result<bool, SignerError> {
        Ok(self
            .outstanding(&request.key())?
            .is_some_and(|csr| csr.der() == request.csr.der()))
    }

    /// Refuses to replace a pending request of another cluster that uses the same directory.
    fn require_no_other_cluster(&self, request: &Request) -> Result<(), SignerError> {
        let name = &request.key();
        let json = outbox(name, "json");
        let (Some(file), Some(_)) = (self.read(&json)?, self.outstanding(name)?) else {
            return Ok(());
        };
        let other = serde_json::from_slice::<SignRequest>(&file.bytes);
        let other = other.map(|other| other.cluster).unwrap_or_default();
        if other.is_empty() || other == request.identity.cluster {
            return Ok(());
        }
        Err(SignerError::config(
            format!(
                "{} is a pending request of the cluster {}",
                self.path(&json),
                printable(&other, 200)
            ),
            format!(
                "run again once it is answered and installed, or configure another directory for each cluster; if that cluster no longer exists, remove the files {name}.* in {} and {}",
                self.path(OUTBOX),
                self.path(INBOX)
            ),
        ))
    }

    /// Writes a file unless it exists with these bytes.
    fn lay_out(&self, name: &str, bytes: &[u8]) -> Result<(), SignerError> {
        let there = self
            .read(name)?
            .is_some_and(|file| file.meta.shape == Shape::Regular && file.bytes == bytes);
        if there {
            return Ok(());
        }
        self.files
            .write_atomic(name, bytes, 0o644)
            .map_err(|error| self.failed("written", name, error))
    }

    fn remove(&self, name: &str) -> Result<(), SignerError> {
        self.files
            .remove(name)
            .map_err(|error| self.failed("removed", name, error))
    }

    /// Returns the state of a request from its files in the inbox.
    fn state_of(&self, request: &Request) -> Result<Answer, SignerError> {
        let name = request.key();
        let (crt, denied) = (inbox(&name, "crt"), inbox(&name, "denied"));
        let mut refusals = Vec::new();
        if let Some(file) = self.read(&crt)? {
            let taken = self
                .acceptable(&file)
                .and_then(|()| self.answers(request, &file.bytes));
            match taken {
                Ok(()) => return Ok(Answer::Issued(file.bytes)),
                Err(why) => refusals.push(self.refuse(&crt, &file.meta, why)),
            }
        }
        // Only without a usable certificate, since an earlier denial may not have been removed.
        if let Some(file) = self.read(&denied)? {
            match self.acceptable(&file) {
                Ok(()) => {
                    let text = String::from_utf8_lossy(&file.bytes);
                    let said = printable(&text, 1 << 10);
                    let reason = if said.is_empty() {
                        "no reason given"
                    } else {
                        &said
                    };
                    return Ok(Answer::Denied {
                        reason: format!(
                            "{reason} ({}; remove that file to ask again)",
                            self.path(&denied)
                        ),
                    });
                }
                Err(why) => refusals.push(self.refuse(&denied, &file.meta, why)),
            }
        }
        if let Some(elsewhere) = self.under_another_name(request)? {
            refusals.push(elsewhere);
        }
        Ok(Answer::Pending {
            ticket: ticket(request)?,
            after: None,
            is_uniform: refusals.is_empty(),
            note: if refusals.is_empty() {
                format!("waiting for {}", self.path(&crt))
            } else {
                refusals.join("; ")
            },
        })
    }

    fn acceptable(&self, file: &Dropped) -> Result<(), String> {
        let Meta {
            shape,
            uid,
            mode,
            size,
            links,
            ..
        } = file.meta;
        match shape {
            Shape::Regular => {}
            Shape::Symlink => return Err("it is a symbolic link; drop a regular file".to_owned()),
            Shape::Other => return Err("it is not a regular file".to_owned()),
        }
        if uid != 0 && uid != geteuid().as_raw() && !self.trusted_uids.contains(&uid) {
            return Err(format!(
                "it belongs to user {uid}, who is not trusted; chown it to root"
            ));
        }
        if mode & 0o002 != 0 {
            return Err(format!(
                "every user may write it (mode {mode:04o}); chmod it to 0644"
            ));
        }
        // Another user can link a file that only root may read, and a denial is logged.
        if links > 1 {
            return Err(format!(
                "it has {links} hard links; drop a copy of the file"
            ));
        }
        if size > ANSWER_LIMIT || file.bytes.len() as u64 > ANSWER_LIMIT {
            return Err(format!("it is larger than {ANSWER_LIMIT} bytes"));
        }
        Ok(())
    }

    /// Returns whether `bytes` are complete and for this request's key. The verification checks the rest.
    fn answers(&self, request: &Request, bytes: &[u8]) -> Result<(), String> {
        complete(bytes)?;
        match Chain::from_response(bytes, request.csr.public_key()) {
            // An answer in the wrong order is still for this key; the verification refuses it.
            Ok(_) | Err(ChainError::LeafNotFirst { .. }) => Ok(()),
            Err(ChainError::OtherKey { .. }) => Err(match self.whose(&request.key(), bytes) {
                Some(owner) => format!(
                    "it is {owner}'s certificate; rename it to {}",
                    inbox(owner.as_str(), "crt")
                ),
                None => "it is for another key, perhaps that of an earlier request; sign the CSR that is in the outbox now".to_owned(),
            }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the names that are always defined, and those of other requests in the outbox. Only advice depends on them.
    fn known_names(&self) -> Vec<CertName> {
        let listed = self.files.list(OUTBOX, MAX_INBOX_NAMES).unwrap_or_default();
        let requested = listed.iter().filter_map(|name| name.strip_suffix(".csr"));
        let requested = requested.filter_map(|name| name.parse().ok());
        let registered = requested.filter(|name| matches!(name, CertName::Registered(_)));
        CertName::ALL.into_iter().chain(registered).collect()
    }

    /// Returns the other pending request that these bytes answer.
    fn whose(&self, but: &str, bytes: &[u8]) -> Option<CertName> {
        self.known_names()
            .into_iter()
            .filter(|name| name.as_str() != but)
            .find(|name| match self.outstanding(name.as_str()) {
                Ok(Some(csr)) => certifies(bytes, csr.public_key()),
                _ => false,
            })
    }

    /// Finds this request's certificate under another name.
    fn under_another_name(&self, request: &Request) -> Result<Option<String>, SignerError> {
        let own = inbox(&request.key(), "crt");
        let listed = self
            .files
            .list(INBOX, MAX_INBOX_NAMES)
            .map_err(|error| self.failed("listed", INBOX, error))?;
        let paths: Vec<String> = if listed.len() > MAX_INBOX_NAMES {
            tracing::debug!(
                signer = %self.label(),
                "{} has more than {MAX_INBOX_NAMES} files: only the names of certificates are read",
                self.path(INBOX)
            );
            let expected = self.known_names().into_iter();
            expected.map(|name| inbox(name.as_str(), "crt")).collect()
        } else {
            listed
                .iter()
                .map(|name| format!("{INBOX}/{name}"))
                .collect()
        };
        for path in paths.into_iter().filter(|path| *path != own) {
            if let Some(file) = self.read(&path)?
                && self.acceptable(&file).is_ok()
                && certifies(&file.bytes, request.csr.public_key())
            {
                let why = format!("it is {}'s certificate; rename it to {own}", request.name());
                return Ok(Some(self.refuse(&path, &file.meta, why)));
            }
        }
        Ok(None)
    }

    /// Returns the message for a refused file, and logs it once per version of the file.
    fn refuse(&self, name: &str, meta: &Meta, why: String) -> String {
        let before = self.reported.borrow_mut().insert(name.to_owned(), *meta);
        let message = format!("{} is not accepted: {why}", self.path(name));
        if before.is_none_or(|before| {
            (before.modified, before.size, before.mode, before.uid)
                != (meta.modified, meta.size, meta.mode, meta.uid)
        }) {
            tracing::warn!(signer = %self.label(), file = %self.path(name), "{message}");
        }
        message
    }
}

#[async_trait(?Send)]
impl Signer for Directory {
    fn kind(&self) -> SignerKind {
        SignerKind::Directory
    }

    fn label(&self) -> String {
        format!("directory:{}", self.files.shown(&self.dir).display())
    }

    fn configured(&self) -> String {
        format!("directory:{}", self.dir.display())
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        self.files
            .verify()
            .map_err(|error| self.failed("verified", "", error))
    }

    async fn recover(
        &self,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        let ours = ticket.is_some_and(|ticket| ticket.as_str() == request.id.as_str())
            || self.is_laid_out(request)?;
        if !ours {
            return Ok(None);
        }
        match self.state_of(request)? {
            // Without its CSR the request cannot be signed: it must be written again.
            Answer::Pending { .. } if !self.is_laid_out(request)? => Ok(None),
            answer => Ok(Some(answer)),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let name = &request.key();
        for dir in [OUTBOX, INBOX] {
            self.files
                .make_dir(dir, 0o755)
                .map_err(|error| self.failed("made", dir, error))?;
        }
        if !self.is_laid_out(request)? {
            self.require_no_other_cluster(request)?;
            for extension in ["crt", "denied"] {
                self.remove(&inbox(name, extension))?;
            }
        }
        // The CSR is written last, so its description exists when it appears.
        let description = SignRequest::lasting(request).to_file();
        self.lay_out(&outbox(name, "json"), &description)?;
        self.lay_out(&outbox(name, "csr"), request.csr.to_pem().as_bytes())?;
        self.state_of(request)
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        if ticket.as_str() != request.id.as_str() {
            return Ok(Answer::Gone);
        }
        match self.state_of(request)? {
            Answer::Pending { .. } if !self.is_laid_out(request)? => Ok(Answer::Gone),
            answer => Ok(answer),
        }
    }

    async fn settled(&self, name: &str) -> Result<(), SignerError> {
        // Answers are removed first: an outbox without its answer is a pending request, an answer without its outbox
        // is ambiguous.
        for extension in ["crt", "denied"] {
            self.remove(&inbox(name, extension))?;
        }
        for extension in ["csr", "json"] {
            self.remove(&outbox(name, extension))?;
        }
        Ok(())
    }
}

fn outbox(name: &str, extension: &str) -> String {
    format!("{OUTBOX}/{name}.{extension}")
}

fn inbox(name: &str, extension: &str) -> String {
    format!("{INBOX}/{name}.{extension}")
}

fn ticket(request: &Request) -> Result<Ticket, SignerError> {
    Ticket::try_from(request.id.to_string())
        .map_err(|error| SignerError::permanent(error.to_string(), "report this as a bug"))
}

/// Rejects PEM that ends within a block, an unfinished copy; PEM readers tend to ignore such a block.
fn complete(bytes: &[u8]) -> Result<(), String> {
    let count = |marker: &[u8]| {
        bytes
            .windows(marker.len())
            .filter(|window| *window == marker)
            .count()
    };
    if bytes.is_empty() {
        return Err("it is empty".to_owned());
    }
    if count(b"-----BEGIN ") != count(b"-----END ") {
        return Err("it ends within a PEM block: is it still being copied?".to_owned());
    }
    // The marker of the last block may itself be incomplete.
    if count(b"-----END ") > 0 && !bytes.trim_ascii_end().ends_with(b"-----") {
        let last = bytes
            .windows(9)
            .rposition(|window| window == b"-----END ")
            .unwrap_or(0);
        let tail = bytes.get(last + 9..).unwrap_or_default();
        if !tail.windows(5).any(|window| window == b"-----") {
            return Err("it ends within a PEM block: is it still being copied?".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::complete;

    #[test]
    fn rejects_every_cut_within_a_pem_block() {
        let block = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        let whole = [b"text\n".as_slice(), block, block, b"text after"].concat();
        assert!(complete(&whole).is_ok());
        let two = [block.as_slice(), block].concat();
        // From within the second block's first marker to before its end: a cut before "-----BEGIN " is complete
        // leaves one complete block and stray dashes, which readers ignore.
        for cut in block.len() + 11..two.len() - 1 {
            assert!(complete(two.get(..cut).unwrap()).is_err(), "{cut}");
        }
        assert!(complete(b"").is_err());
    }
}
