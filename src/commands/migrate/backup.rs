//! The backup file of CA keys: where it may be, and that it contains the keys.
//!
//! [`text`] has its format.

mod text;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::report::MigrationReport;
use crate::agent::load::{self, Location};
use crate::agent::{Failure, RunSetup};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::kube::paths::KUBERNETES_DIR;
use crate::spec::BundleSpec;
use crate::store::{Dir, KeyBackup, NodeRoot, READ_LIMIT, STATE_DIR};
use crate::x509::{KeyError, PrivateKey, TrustBundle};

pub(in crate::commands) use text::{BackupOrigin, Passphrase};

/// A backup file and its passphrase.
#[derive(Debug)]
pub(in crate::commands) struct Backup {
    location: Location,
    passphrase: Passphrase,
}

/// A backup file as it was read.
struct ReadBackup {
    keys: Result<Vec<PrivateKey>, KeyError>,
    record: KeyBackup,
}

impl Backup {
    /// Resolves the path of a backup: below the root, or on this machine if the directory exists only there.
    pub(in crate::commands) fn new(
        root: &NodeRoot,
        path: &Argument,
        passphrase: Passphrase,
    ) -> Result<Self, Failure> {
        let location = load::argument(root, path)?;
        let Location { root, path, .. } = &location;
        let directory = path.parent().unwrap_or(Path::new("/"));
        if root.dir(directory)?.is_none() {
            return Err(Failure::usage(format!(
                "--backup {}: directory {} does not exist (create or mount it)",
                root.on_this_machine(path).display(),
                root.on_this_machine(directory).display()
            )));
        }
        Ok(Backup {
            location,
            passphrase,
        })
    }

    pub(in crate::commands) fn shown(&self) -> PathBuf {
        self.location.on_this_machine()
    }

    /// Returns whether an interrupted run wrote this file as its backup.
    pub(in crate::commands) fn is_of(&self, earlier: &KeyBackup) -> bool {
        earlier.is_at(&self.location.path, self.location.on_node)
    }

    /// Returns why the backup must not be in this place, if so: nodepki writes or removes files there, or the files are
    /// lost when the machine stops.
    pub(in crate::commands) fn misplaced(
        &self,
        root: &NodeRoot,
        setup: &RunSetup,
    ) -> Result<Option<String>, Failure> {
        let mut forbidden = Vec::new();
        let bundles = setup.plan.bundles.iter();
        forbidden.extend(bundles.filter_map(|bundle| bundle.key_path.parent().map(Path::to_owned)));
        let certs = setup.plan.certs.iter();
        let written = certs.flat_map(|cert| cert.output.paths());
        let bundles = setup.plan.bundles.iter();
        let copies = bundles.flat_map(|bundle| bundle.copies.iter().map(|copy| &copy.path));
        let written = written.chain(copies);
        forbidden.extend(written.filter_map(|path| path.parent().map(Path::to_owned)));
        if let Some(why) = self.misplaced_below(root, forbidden)? {
            return Ok(Some(why));
        }
        // If the keys themselves are in memory, a backup in memory lasts as long as they do.
        let is_volatile = |bundle: &BundleSpec| {
            let directory = bundle.key_path.parent().map(|path| root.dir(path));
            let directory = directory.transpose()?.flatten();
            directory
                .map(|directory| directory.is_volatile())
                .transpose()
        };
        for bundle in &setup.plan.bundles {
            if is_volatile(bundle)? == Some(false)
                && let Some(why) = self.is_lost_at_shutdown()?
            {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// As [`Backup::misplaced`] for these directories and nodepki's own, whichever file system the backup is on.
    pub(in crate::commands) fn misplaced_below(
        &self,
        root: &NodeRoot,
        directories: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Option<String>, Failure> {
        let Some((directory, name)) = self.directory()? else {
            return Ok(Some("its path does not name a file".to_owned()));
        };
        let always = [STATE_DIR, KUBERNETES_DIR, "/run", "/dev"].map(PathBuf::from);
        for path in always.into_iter().chain(directories) {
            let Some(found) = root.dir(&path)? else {
                continue;
            };
            if directory.is_below(&[found.id()?])? {
                return Ok(Some(format!(
                    "it is below {}, where files are replaced or removed",
                    root.on_this_machine(&path).display()
                )));
            }
        }
        if directory.is_mount_point(name)? {
            return Ok(Some("it is a mount point".to_owned()));
        }
        Ok(None)
    }

    /// Returns why the backup would not survive a shutdown of this machine, if so.
    pub(in crate::commands) fn is_lost_at_shutdown(&self) -> Result<Option<String>, Failure> {
        let volatile = match self.directory()? {
            Some((directory, _)) => directory.is_volatile()?,
            None => false,
        };
        Ok(volatile
            .then(|| "its file system is in memory and is lost when the machine stops".to_owned()))
    }

    /// Returns the directory of the backup, and its name there.
    fn directory(&self) -> Result<Option<(Dir, &OsStr)>, Failure> {
        let Location { root, path, .. } = &self.location;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(None);
        };
        Ok(root.dir(parent)?.map(|directory| (directory, name)))
    }

    /// Reads the keys, bypassing the page cache; `None` if the file does not exist.
    fn read(&self) -> Result<Option<ReadBackup>, Failure> {
        let content = match self.directory()? {
            Some((directory, name)) => directory.read_uncached(name, READ_LIMIT)?,
            None => None,
        };
        let Location { path, on_node, .. } = &self.location;
        Ok(content.map(|content| ReadBackup {
            keys: text::open(&content.bytes, &self.passphrase),
            record: KeyBackup::new(path, *on_node, &content.bytes),
        }))
    }

    /// Returns the description of the file if it exists and contains all of these keys.
    ///
    /// # Errors
    /// The file exists and lacks one of the keys, so the backup cannot be written there.
    pub(in crate::commands) fn holds(
        &self,
        keys: &BTreeMap<Authority, CaKey>,
    ) -> Result<Option<KeyBackup>, Failure> {
        let Some(found) = self.read()? else {
            return Ok(None);
        };
        let why = match &found.keys {
            Err(error) => error.to_string(),
            Ok(read) => {
                let is_found =
                    |ours: &CaKey| read.iter().any(|key| key.to_pem() == ours.key.to_pem());
                match keys.iter().find(|(_, ours)| !is_found(ours)) {
                    None => return Ok(Some(found.record)),
                    Some((authority, _)) => format!("it lacks the key of {authority}"),
                }
            }
        };
        Err(Failure::refused(format!(
            "{} exists and is not the backup of these keys ({why}); a backup is never overwritten: name another file with --backup",
            self.shown().display()
        )))
    }

    /// Reads the keys, and reports a backup that cannot be opened.
    pub(in crate::commands) fn open<K>(
        &self,
        report: &mut MigrationReport<K>,
    ) -> Result<Vec<PrivateKey>, Failure> {
        let shown = self.shown();
        match self.read()?.map(|found| found.keys) {
            Some(Ok(keys)) => return Ok(keys),
            Some(Err(error)) => report.refuse(format!(
                "{} cannot be opened: {error} (name the backup and the passphrase that belong together)",
                shown.display()
            )),
            None => report.refuse(format!(
                "{} does not exist (name the backup)",
                shown.display()
            )),
        }
        Ok(Vec::new())
    }

    /// Reports whether the keys can be written to this file. `misplaced` is the reason why it must not be in its place.
    pub(in crate::commands) fn prove<K>(
        &self,
        misplaced: Option<String>,
        keys: &BTreeMap<Authority, CaKey>,
        report: &mut MigrationReport<K>,
    ) {
        let shown = self.shown();
        if let Some(why) = misplaced {
            report.refuse(format!(
                "{} cannot be the backup of the CA keys: {why} (name a file on another disk or another machine with --backup)",
                shown.display()
            ));
        }
        match self.holds(keys) {
            Ok(None) => {}
            Ok(Some(_)) => report.notes.push(format!(
                "{} is already the backup of these keys",
                shown.display()
            )),
            Err(failure) => report.unproven.push(failure),
        }
        report.backup = Some(shown);
    }

    /// Returns why the keys cannot be read back, if so.
    pub(in crate::commands) fn lost(&self, keys: &BTreeMap<Authority, CaKey>) -> Option<String> {
        match self.holds(keys) {
            Ok(Some(_)) => None,
            Ok(None) => Some("the file does not exist".to_owned()),
            Err(failure) => Some(failure.to_string()),
        }
    }

    /// Reports whether this file is the backup of keys that an earlier run removed from `holder`, which has none any more:
    /// nothing can be written to it. `certificates` are the CA certificates of the selected authorities.
    pub(in crate::commands) fn prove_earlier<'a, K>(
        &self,
        certificates: impl IntoIterator<Item = (Authority, &'a TrustBundle)>,
        holder: &str,
        report: &mut MigrationReport<K>,
    ) -> Result<(), Failure> {
        let shown = self.shown();
        let keys = match self.read()?.map(|found| found.keys) {
            Some(Ok(keys)) => keys,
            found => {
                let why = match found {
                    Some(Err(error)) => format!("cannot be opened: {error}"),
                    _ => "does not exist".to_owned(),
                };
                report.refuse(format!(
                    "{holder} has no CA private key, so that no backup is written, and {} {why} (name the backup of the run that removed the keys, with its passphrase, or omit --backup)",
                    shown.display()
                ));
                return Ok(());
            }
        };
        let is_own = |trust: &TrustBundle| {
            keys.iter()
                .any(|key| key.public_key() == trust.first().public_key())
        };
        let own = certificates.into_iter().filter(|(_, trust)| is_own(trust));
        let own: Vec<String> = own.map(|(authority, _)| authority.to_string()).collect();
        if own.is_empty() {
            report.refuse(format!(
            "{holder} has no CA private key, so that no backup is written, and {} contains no key of its CA certificates (name the backup of the run that removed the keys, or omit --backup)",
            shown.display()
        ))
        } else {
            report.notes.push(format!(
                "{} is the backup of the keys of {}",
                shown.display(),
                own.join(", ")
            ))
        }
        Ok(())
    }

    /// Returns the failure of `--apply` without a backup.
    pub(in crate::commands) fn required() -> Failure {
        Failure::usage(
            "--apply removes CA keys and needs a backup (add --backup FILE and --passphrase-file FILE)",
        )
    }

    /// Writes the backup, reads it back and compares the keys. Returns the description of the file.
    pub(in crate::commands) fn write(
        &self,
        origin: &BackupOrigin<'_>,
        keys: &BTreeMap<Authority, CaKey>,
        now: OffsetDateTime,
    ) -> Result<KeyBackup, Failure> {
        if let Some(record) = self.holds(keys)? {
            // An interrupted run or `cp` may have written the file without an fsync.
            let Location { root, path, .. } = &self.location;
            root.sync_around(path)?;
            return Ok(record);
        }
        let unwritten = format!("the backup {} cannot be written", self.shown().display());
        let failed = |what: &str| Failure::pending(what).advise("nothing was removed");
        let named = keys.iter().map(|(authority, ours)| (*authority, &ours.key));
        let text = text::seal(named, origin, now, &self.passphrase)
            .map_err(|error| failed(&unwritten).caused_by(error))?;
        let (directory, name) = self.directory()?.ok_or_else(|| {
            failed(&format!(
                "{unwritten}: its directory does not exist any more"
            ))
        })?;
        directory.write_new(name, text.as_bytes())?;
        self.holds(keys)?.ok_or_else(|| {
            failed(&format!(
                "{unwritten}: the file does not exist immediately after it was written"
            ))
        })
    }
}

/// A CA key on the node or in a Secret.
pub(in crate::commands) struct CaKey {
    pub(in crate::commands) key: PrivateKey,
    /// Content of the file or of the Secret's entry.
    pub(in crate::commands) bytes: Zeroizing<Vec<u8>>,
}
