//! `migrate`: a running node gives its CA keys away, and takes them back.
//!
//! [`to_external`] proves that the node can do without them: everything in place verifies, the signers of the
//! configuration answer for the same CAs and sign, nothing on the node reads the keys any more. Then it writes an encrypted
//! backup, reads it back, removes the keys in one commit, reads the backup again, and puts the keys back if that fails. [`to_internal`] puts the keys of a backup in place. Neither
//! touches a certificate or a manifest, and both look only, unless told to apply.
//!
//! A new demand is one more entry of [`Report::unproven`]; all of them are told at once.

mod backup;
mod to_external;
mod to_internal;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::agent::load::{self, Location};
use crate::agent::{ExitCode, Failure, Setup};
use crate::config::Argument;
use crate::kube::names::{Authority, NodePath};
use crate::spec::{BundleSpec, KUBECONFIG_DIR};
use crate::store::{Dir, READ_LIMIT, Root, STATE_DIR};
use crate::x509::{KeyError, PrivateKey};

pub use backup::{BadPassphrase, Passphrase};
pub use to_external::{ToExternal, to_external};
pub use to_internal::{ToInternal, to_internal};

/// What was found, and what was done or would be.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Which way.
    pub direction: Direction,
    /// False for a look, and where something is unproven.
    pub applied: bool,
    /// One an authority whose key is here, or in the backup.
    pub authorities: Vec<Row>,
    /// Why it is not done: everything, not only the first.
    #[serde(serialize_with = "messages")]
    pub unproven: Vec<Failure>,
    /// Where the keys are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<PathBuf>,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// What changes in the cluster, and what to do about it.
    pub changes: Vec<String>,
    /// What else deserves attention.
    pub notes: Vec<String>,
}

/// One authority.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// kubeadm's name.
    pub authority: Authority,
    /// Its private key on the node.
    pub key: NodePath,
    /// In a word or two.
    pub action: &'static str,
    /// What was proven.
    pub proven: Vec<String>,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// The keys leave the node.
    ToExternal,
    /// The keys come back.
    ToInternal,
}

fn messages<S: serde::Serializer>(failures: &[Failure], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(failures.iter().flat_map(|failure| &failure.messages))
}

impl Report {
    fn new(direction: Direction) -> Self {
        Report {
            direction,
            applied: false,
            authorities: Vec::new(),
            unproven: Vec::new(),
            backup: None,
            written: Vec::new(),
            removed: Vec::new(),
            changes: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The gravest of what is unproven.
    pub fn code(&self) -> ExitCode {
        let codes = self.unproven.iter().map(|failure| failure.code);
        codes.max().unwrap_or(ExitCode::Done)
    }

    fn keep_if_unproven(&mut self) {
        if !self.unproven.is_empty() {
            for row in &mut self.authorities {
                row.action = "kept";
            }
        }
    }

    fn refuse(&mut self, message: impl Into<String>) {
        self.unproven.push(Failure::new(ExitCode::Refused, message));
    }
}

/// Where a backup is, and what opens it.
#[derive(Debug)]
pub struct Backup {
    root: Root,
    path: PathBuf,
    passphrase: Passphrase,
}

impl Backup {
    /// A file that a person named: below the root, or on this machine when only that has its directory.
    ///
    /// # Errors
    /// The directory does not exist.
    pub fn new(root: &Root, path: &Argument, passphrase: Passphrase) -> Result<Self, Failure> {
        let Location { root, path, .. } = load::argument(root, path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        if root.dir(directory)?.is_none() {
            return Err(Failure::new(
                ExitCode::Usage,
                format!(
                    "--backup {}: there is no directory {}; make or mount it",
                    root.on_this_machine(&path).display(),
                    root.on_this_machine(directory).display()
                ),
            ));
        }
        Ok(Backup {
            root,
            path,
            passphrase,
        })
    }

    fn shown(&self) -> PathBuf {
        self.root.on_this_machine(&self.path)
    }

    /// Why the backup must not be here, if so: nodepki writes or removes files in this place, or the place does not outlive
    /// the machine's next start.
    fn misplaced(&self, root: &Root, setup: &Setup) -> Result<Option<String>, Failure> {
        let Some((directory, name)) = self.place()? else {
            return Ok(Some("its path does not name a file".to_owned()));
        };
        let mut own = vec![
            PathBuf::from(STATE_DIR),
            PathBuf::from(KUBECONFIG_DIR),
            PathBuf::from("/run"),
            PathBuf::from("/dev"),
        ];
        let bundles = setup.plan.bundles.iter();
        own.extend(bundles.filter_map(|bundle| bundle.key_path.parent().map(Path::to_owned)));
        let certs = setup.plan.certs.iter();
        let written = certs.flat_map(|cert| cert.output.paths());
        own.extend(written.filter_map(|path| path.parent().map(Path::to_owned)));
        for path in own {
            let Some(forbidden) = root.dir(&path)? else {
                continue;
            };
            if directory.is_below(&[forbidden.id()?])? {
                return Ok(Some(format!(
                    "it lies below {}, where files are replaced or removed",
                    root.on_this_machine(&path).display()
                )));
            }
        }
        if directory.is_mount_point(name)? {
            return Ok(Some("it is a mount point".to_owned()));
        }
        // Where the keys themselves are in memory, a backup beside them lasts as long as they do.
        let is_kept = |bundle: &BundleSpec| {
            let directory = bundle.key_path.parent().map(|path| root.dir(path));
            let directory = directory.transpose()?.flatten();
            directory
                .map(|directory| directory.is_volatile())
                .transpose()
        };
        for bundle in &setup.plan.bundles {
            if is_kept(bundle)? == Some(false) && directory.is_volatile()? {
                return Ok(Some(
                    "its file system is in memory and is lost when the machine stops".to_owned(),
                ));
            }
        }
        Ok(None)
    }

    /// The directory of the backup, and its name there.
    fn place(&self) -> Result<Option<(Dir, &OsStr)>, Failure> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Ok(None);
        };
        Ok(self.root.dir(parent)?.map(|directory| (directory, name)))
    }

    /// The keys in it, as the disk has them; `None` when there is no such file.
    fn read(&self) -> Result<Option<Result<Vec<PrivateKey>, KeyError>>, Failure> {
        let content = match self.place()? {
            Some((directory, name)) => directory.read_uncached(name, READ_LIMIT)?,
            None => None,
        };
        Ok(content.map(|content| backup::open(&content.bytes, &self.passphrase)))
    }

    /// Whether all of these keys are in it; false when there is no such file. One with anything else is in the way.
    fn holds(&self, keys: &BTreeMap<Authority, CaKey>) -> Result<bool, Failure> {
        let Some(there) = self.read()? else {
            return Ok(false);
        };
        let why = match &there {
            Err(error) => error.to_string(),
            Ok(there) => {
                let is_there =
                    |ours: &CaKey| there.iter().any(|one| one.to_pem() == ours.key.to_pem());
                match keys.iter().find(|(_, ours)| !is_there(ours)) {
                    None => return Ok(true),
                    Some((authority, _)) => format!("the key of {authority} is not in it"),
                }
            }
        };
        Err(Failure::new(
            ExitCode::Refused,
            format!(
                "{} exists and is not the backup of these keys ({why}); a backup is never overwritten: name another file with --backup",
                self.shown().display()
            ),
        ))
    }

    /// Writes it, and reads back what was written.
    fn write(
        &self,
        setup: &Setup,
        keys: &BTreeMap<Authority, CaKey>,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        if self.holds(keys)? {
            // Nobody knows whether who wrote it, an interrupted run or `cp`, has waited for the disk.
            return Ok(self.root.sync_around(&self.path)?);
        }
        let failed = |why: String| {
            Failure::new(
                ExitCode::Pending,
                format!(
                    "the backup {} cannot be made: {why}; nothing was removed",
                    self.shown().display()
                ),
            )
        };
        let named = keys.iter().map(|(authority, ours)| (*authority, &ours.key));
        let text = backup::seal(named, &setup.identity, now, &self.passphrase)
            .map_err(|error| failed(error.to_string()))?;
        let (directory, name) = self
            .place()?
            .ok_or_else(|| failed("its directory does not exist any more".to_owned()))?;
        directory.write_new(name, text.as_bytes())?;
        match self.holds(keys)? {
            true => Ok(()),
            false => Err(failed("it was gone right after it was written".to_owned())),
        }
    }
}

/// A CA key on the node, as it was read.
struct CaKey {
    key: PrivateKey,
    bytes: Zeroizing<Vec<u8>>,
}
