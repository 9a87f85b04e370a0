//! Opens the signers of a configuration, each with access to its files, its credentials and its own state directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::CLUSTER_TIMEOUT;
use super::places::{self, DefinedFiles, KubeconfigFile};
use super::scratch::{ScratchMemory, SignerState};
use crate::agent::{Failure, signer_code};
use crate::cluster::api::{Api, ApiAccess};
use crate::config::{Origin, Settings};
use crate::kube::names::{Authority, NodePath};
use crate::process::machine;
use crate::signer::directory::{DropDir, Dropped, Meta, Shape};
use crate::signer::{self, Memory, NodeIdentity, Signer, exec};
use crate::store::{self, Dir, DirectoryTrust, FileKind, NodeRoot};
use crate::x509::KeyAlgorithm;
use crate::yaml::schema::SecretFile;

type Signers = BTreeMap<Authority, (String, Rc<dyn Signer>)>;

/// Opens the signers. `state_dir` is the state directory of the node or of the cluster that requests.
pub(crate) fn open_signers(
    root: &NodeRoot,
    state_dir: (&NodeRoot, &Path),
    settings: &Settings,
    identity: &NodeIdentity,
    authority_key: KeyAlgorithm,
    state: SignerState,
    now: OffsetDateTime,
) -> Result<Signers, Failure> {
    let mut opened: BTreeMap<String, Rc<dyn Signer>> = BTreeMap::new();
    let mut signers = Signers::new();
    for authority in Authority::ALL {
        let Some((name, config)) = settings.signer_of(authority) else {
            continue;
        };
        // One object for all its authorities: they share its login, whose credential may be of one use.
        let signer = match opened.get(name) {
            Some(signer) => Rc::clone(signer),
            None => {
                let origin = settings.signer_origin;
                let memories = SignerMemories::new(root, state_dir, name, state);
                let signer: Rc<dyn Signer> = open_signer(
                    root,
                    origin,
                    name,
                    config,
                    identity,
                    authority_key,
                    memories,
                    now,
                )?
                .into();
                opened.insert(name.to_owned(), Rc::clone(&signer));
                signer
            }
        };
        signers.insert(authority, (name.to_owned(), signer));
    }
    Ok(signers)
}

#[allow(
    clippy::too_many_arguments,
    reason = "the parts of a Site, each from another place"
)]
fn open_signer(
    root: &NodeRoot,
    origin: Origin,
    name: &str,
    config: &signer::Config,
    identity: &NodeIdentity,
    authority_key: KeyAlgorithm,
    memories: SignerMemories,
    now: OffsetDateTime,
) -> Result<Box<dyn Signer>, Failure> {
    let drop_dir = |path: &Path, owners: &[u32]| -> io::Result<Box<dyn DropDir>> {
        let found = places::defined(root, origin, path).map_err(io::Error::other)?;
        Ok(Box::new(RootedDrop {
            root: found.root,
            base: found.path,
            owners: owners.to_vec(),
        }))
    };
    let site = signer::Site {
        name,
        now,
        clock: OffsetDateTime::now_utc,
        identity: identity.clone(),
        authority_key,
        files: DefinedFiles::new(root, origin),
        credentials: credentials(root, origin),
        programs: if places::is_trusted(root, origin) {
            signer::Programs::Run
        } else {
            signer::Programs::Refused {
                below: root.path().to_owned(),
            }
        },
        memory: memories.requests,
        login_memory: memories.login,
        drop_dir: &drop_dir,
        user: &user,
    };
    config.open(&site).map_err(|error| {
        Failure::new(signer_code(&error), format!("signer {name}")).caused_by(error)
    })
}

/// Returns the settings with the values that signers read from other files of the node, and a message for each signer
/// for which that fails; its settings are unchanged.
pub fn with_resolved_signers(root: &NodeRoot, mut settings: Settings) -> (Settings, Vec<String>) {
    let files = DefinedFiles::new(root, settings.signer_origin);
    let mut failures = Vec::new();
    for (name, config) in &mut settings.signers {
        match config.resolved(name, files.as_ref()) {
            Ok(resolved) => *config = resolved,
            Err(error) => failures.push(format!("{error} ({})", error.advice)),
        }
    }
    (settings, failures)
}

/// Returns a client for the cluster of a kubeconfig.
///
/// # Errors
/// A kubeconfig that cannot be used; no request is sent.
pub fn cluster(root: &NodeRoot, kubeconfig: impl Into<KubeconfigFile>) -> Result<Api, Failure> {
    let kubeconfig = kubeconfig.into();
    let location = kubeconfig.location(root)?;
    let files = DefinedFiles::of(root, &location);
    let credentials = credentials(root, location.origin());
    let access = ApiAccess::Kubeconfig {
        file: SecretFile::Path(location.path),
        timeout: CLUSTER_TIMEOUT,
    };
    Api::new(access, files, credentials, OffsetDateTime::now_utc)
        .map_err(|error| Failure::of_cluster(kubeconfig.shown(root).display(), error))
}

/// Returns the directory of the unit's systemd credentials; `None` for definitions that must not use them.
pub(super) fn credentials(root: &NodeRoot, origin: Origin) -> Option<PathBuf> {
    if places::is_trusted(root, origin) {
        std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from)
    } else {
        None
    }
}

/// Returns a user by name or number, with its primary group, from `/etc/passwd` only: a static binary has no NSS.
fn user(user: &str) -> io::Result<Option<exec::RunAs>> {
    let passwd = match std::fs::read("/etc/passwd") {
        Err(error) if machine::is_fault(&error) => return Err(error),
        read => read.unwrap_or_default(),
    };
    let found = String::from_utf8_lossy(&passwd)
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find_map(|fields| match fields.as_slice() {
            [name, _, uid, gid, ..] if *name == user || *uid == user => Some(exec::RunAs {
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
            }),
            _ => None,
        });
    Ok(found)
}

/// Storage of a signer; [`signer::Site`] has the meaning of both.
struct SignerMemories {
    requests: Rc<dyn Memory>,
    login: Rc<dyn Memory>,
}

impl SignerMemories {
    fn new(
        root: &NodeRoot,
        state_dir: (&NodeRoot, &Path),
        signer: &str,
        state: SignerState,
    ) -> Self {
        let memory = |(root, state_dir): (&NodeRoot, &Path)| -> Rc<dyn Memory> {
            let memory = RootedMemory {
                root: root.clone(),
                state_dir: state_dir.to_owned(),
                directory: state_dir.join("signers").join(signer),
            };
            match state {
                SignerState::Kept => Rc::new(memory),
                SignerState::Discarded => Rc::new(ScratchMemory::over(memory)),
            }
        };
        SignerMemories {
            requests: memory(state_dir),
            login: memory((root, Path::new(store::STATE_DIR))),
        }
    }
}

/// A signer's own directory in a state directory.
struct RootedMemory {
    root: NodeRoot,
    state_dir: PathBuf,
    directory: PathBuf,
}

impl Memory for RootedMemory {
    fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let content = self.root.read(self.directory.join(name));
        Ok(content
            .map_err(io::Error::other)?
            .map(|content| content.bytes))
    }

    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let directory = self.root.create_dir(&self.directory, 0o700);
        let directory = directory.map_err(io::Error::other)?;
        // The daemon's signer of kubelets' requests and a run may keep the same file.
        let kept = directory.write_unlocked(name, bytes, 0o600);
        kept.map(drop).map_err(io::Error::other)
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        match self.root.dir(&self.directory).map_err(io::Error::other)? {
            Some(directory) => directory.remove(name).map(drop).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    fn state_dir(&self) -> NodePath {
        self.root.node_path(self.state_dir.as_path())
    }
}

/// The drop directory of a file-drop signer, inside its root. Every operation opens the directories again and verifies
/// the access rules of [`signer::directory`].
struct RootedDrop {
    root: NodeRoot,
    base: PathBuf,
    /// Users besides root and the running one that may own inbox and outbox.
    owners: Vec<u32>,
}

impl RootedDrop {
    /// Returns which owners and modes are accepted. Only the inbox may be a sticky directory of other users: a request
    /// that another user puts into the outbox would be signed.
    fn trust(&self, name: &str) -> DirectoryTrust<'_> {
        DirectoryTrust {
            owners: &self.owners,
            sticky: name == signer::directory::INBOX,
        }
    }

    /// Opens a directory of the base; `None` if it does not exist.
    fn open(&self, name: &str) -> Result<Option<Dir>, store::StoreError> {
        match self.root.trusted_dir(&self.base)? {
            Some(base) => base.trusted_dir(name, self.trust(name)),
            None => Ok(None),
        }
    }

    fn create(&self, name: &str, mode: u32) -> Result<Dir, store::StoreError> {
        let base = self.root.create_trusted_dir(&self.base, 0o755)?;
        base.make_trusted_dir(name, mode, self.trust(name))
    }
}

/// Splits a name in a drop directory into directory and file.
fn dropped_file(name: &str) -> io::Result<(&str, &str)> {
    name.split_once('/')
        .ok_or_else(|| io::Error::other(format!("{name} is not the name of a file in a directory")))
}

impl DropDir for RootedDrop {
    fn shown(&self, dir: &Path) -> PathBuf {
        if self.root.is_this_machine() {
            dir.to_owned()
        } else {
            self.root.on_this_machine(&self.base)
        }
    }

    fn verify(&self) -> io::Result<()> {
        for name in [signer::directory::INBOX, signer::directory::OUTBOX] {
            self.open(name).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn make_dir(&self, name: &str, mode: u32) -> io::Result<()> {
        self.create(name, mode).map(drop).map_err(io::Error::other)
    }

    fn write_atomic(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let (directory, file) = dropped_file(name)?;
        let directory = self.create(directory, 0o755).map_err(io::Error::other)?;
        directory
            .write_atomic(file, bytes, mode)
            .map(drop)
            .map_err(io::Error::other)
    }

    fn read(&self, name: &str, limit: u64) -> io::Result<Option<Dropped>> {
        let (directory, file) = dropped_file(name)?;
        let Some(directory) = self.open(directory).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let Some(found) = directory.metadata(file).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let meta = |found: &store::Metadata| Meta {
            shape: match found.kind {
                FileKind::File => Shape::Regular,
                FileKind::Symlink => Shape::Symlink,
                _ => Shape::Other,
            },
            uid: found.uid,
            mode: found.mode,
            size: found.size,
            links: found.links,
            modified: (
                found.modified.unix_timestamp(),
                i64::from(found.modified.nanosecond()),
            ),
        };
        if found.kind != FileKind::File || found.size > limit {
            return Ok(Some(Dropped {
                bytes: Vec::new(),
                meta: meta(&found),
            }));
        }
        let Some(content) = directory.read(file, limit).map_err(io::Error::other)? else {
            return Ok(None);
        };
        Ok(Some(Dropped {
            bytes: content.bytes.to_vec(),
            meta: meta(&content.metadata),
        }))
    }

    fn list(&self, name: &str, limit: usize) -> io::Result<Vec<String>> {
        let Some(directory) = self.open(name).map_err(io::Error::other)? else {
            return Ok(Vec::new());
        };
        let mut names: Vec<String> = directory
            .list_at_most(limit)
            .map_err(io::Error::other)?
            .into_iter()
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (directory, file) = dropped_file(name)?;
        match self.open(directory).map_err(io::Error::other)? {
            Some(directory) => directory.remove(file).map(drop).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_requests_of_clusters_and_shares_login() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let [prod, dev] = ["prod", "dev"].map(|cluster| {
            let state_dir = Path::new("/var/lib/nodepki/capi/default").join(cluster);
            let state_dir = (&root, state_dir.as_path());
            SignerMemories::new(&root, state_dir, "drop", SignerState::Kept)
        });
        for (memories, place) in [(&prod, "capi/default/prod"), (&dev, "capi/default/dev")] {
            memories.requests.keep("denied", place.as_bytes()).unwrap();
            let shown = memories.requests.state_dir().to_string();
            assert!(shown.ends_with(place), "{shown}");
        }
        let read = |memory: &Rc<dyn Memory>, name| memory.recall(name).unwrap().unwrap().to_vec();
        assert_eq!(read(&prod.requests, "denied"), b"capi/default/prod");
        prod.login.keep("secret-id", b"unwrapped").unwrap();
        assert_eq!(read(&dev.login, "secret-id"), b"unwrapped");
        let node = (&root, Path::new(store::STATE_DIR));
        let node = SignerMemories::new(&root, node, "drop", SignerState::Kept);
        assert_eq!(read(&node.requests, "secret-id"), b"unwrapped");
    }
}
