//! Resolution of paths: below the root, or on this machine.
//!
//! The rule under `--root DIR`, where DIR may hold a system that is not trusted:
//!
//! - A path in a document of the node (settings, kubeadm files, kubeconfigs, state files) is resolved below DIR only.
//!   Such a document starts no program, and no systemd credential of this machine is read for it.
//! - A path on the command line ([`Argument`]) is a path of this machine; a file of the node is written with DIR before
//!   it. An absolute path that could mean either is refused ([`StoreError::Ambiguous`]): it exists below DIR too, or its
//!   directory exists there and not on this machine.
//! - A settings file or kubeconfig of this machine that the command line names (`--config`, `--kubeconfig`) is the
//!   operator's own: the CAs, credentials, directories and programs that it names are those of this machine, or errors.
//!   `kubeadm.files` and `kubeadm.clusterConfiguration` describe the node and are below DIR.
//! - A path of this machine that leads into DIR is resolved below DIR, so no link of DIR leads out of it.
//!
//! With `--root /` all of these are the same. A message names a file by the path on this machine to which these rules
//! lead ([`shown`]).

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use zeroize::Zeroizing;

use crate::agent::Failure;
use crate::config::{Argument, Origin};
use crate::http::Files;
use crate::kube::paths::ADMIN_CONF;
use crate::store::{FileContent, NodeRoot, StoreError};

/// Directory in which systemd puts the credentials of units.
const CREDENTIALS_ROOT: &str = "/run/credentials";

/// A path together with the root that it is resolved in.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    /// The node's root, or `/` of this machine.
    pub(crate) root: NodeRoot,
    /// The absolute path inside `root`.
    pub(crate) path: PathBuf,
    /// Whether `root` is the node's.
    pub(crate) on_node: bool,
}

impl Location {
    /// Returns the path on this machine, for messages.
    pub(crate) fn on_this_machine(&self) -> PathBuf {
        self.root.on_this_machine(&self.path)
    }

    /// Reads the file; `None` if it does not exist.
    pub(crate) fn read(&self) -> Result<Option<FileContent>, StoreError> {
        self.root.read(&self.path)
    }

    /// Returns the origin of this document, which decides how the paths in it are resolved.
    pub(crate) fn origin(&self) -> Origin {
        if self.on_node {
            Origin::Node
        } else {
            Origin::Machine
        }
    }
}

/// The system that a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathRule {
    Node,
    Machine,
    /// This machine, unless the path could mean a file of the node.
    UnambiguousMachine,
}

impl From<Origin> for PathRule {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Node => PathRule::Node,
            Origin::Machine => PathRule::Machine,
            Origin::CommandLine => PathRule::UnambiguousMachine,
        }
    }
}

/// Resolves a path of the command line.
///
/// # Errors
/// [`StoreError::Ambiguous`] for a path that could also mean a file of the node.
pub(crate) fn argument(root: &NodeRoot, argument: &Argument) -> Result<Location, StoreError> {
    locate(root, Origin::CommandLine.into(), argument.as_given())
}

/// Refuses paths of the command line that could also mean files of the node.
pub(crate) fn verify_arguments<'a>(
    root: &NodeRoot,
    given: impl IntoIterator<Item = &'a Argument>,
) -> Result<(), StoreError> {
    let mut given = given.into_iter();
    given.try_for_each(|path| argument(root, path).map(drop))
}

/// Returns the path of an argument for messages: as given, unless it is resolved below `--root DIR`.
pub(crate) fn shown(root: &NodeRoot, given: &Argument) -> PathBuf {
    shown_as(root, Origin::CommandLine.into(), given.as_given())
}

/// As [`shown`], for a path in a definition found at `origin`.
pub(crate) fn shown_defined(root: &NodeRoot, origin: Origin, path: &Path) -> PathBuf {
    shown_as(root, origin.into(), path)
}

fn shown_as(root: &NodeRoot, rule: PathRule, path: &Path) -> PathBuf {
    match locate(root, rule, path) {
        _ if root.is_this_machine() => path.to_owned(),
        Ok(found) if !found.on_node => path.to_owned(),
        Ok(found) => found.on_this_machine(),
        Err(_) => path.to_owned(),
    }
}

/// Resolves a path in a definition found at `origin`.
pub(crate) fn defined(
    root: &NodeRoot,
    origin: Origin,
    path: &Path,
) -> Result<Location, StoreError> {
    locate(root, origin.into(), path)
}

/// Returns whether a path is that of a systemd credential.
///
/// Other users have no access to the directory of credentials. The unit's user reads them by an access control list,
/// which the mode shows as permissions of the group (systemd.exec(5), `LoadCredential=`).
fn is_credential(path: &Path) -> bool {
    let own = std::env::var_os("CREDENTIALS_DIRECTORY");
    path.starts_with(CREDENTIALS_ROOT) || own.is_some_and(|own| path.starts_with(own))
}

/// Returns whether a definition found at `origin` may start programs and use systemd credentials of this machine.
pub(crate) fn is_trusted(root: &NodeRoot, origin: Origin) -> bool {
    origin != Origin::Node || root.is_this_machine()
}

fn locate(root: &NodeRoot, rule: PathRule, given: &Path) -> Result<Location, StoreError> {
    let path = super::absolute(given);
    let on_node = |path| Location {
        root: root.clone(),
        path,
        on_node: true,
    };
    if rule == PathRule::Node || root.is_this_machine() {
        return Ok(on_node(path));
    }
    if let Some(inside) = root.inside(&path) {
        return Ok(on_node(inside));
    }
    // A relative path begins in the working directory, which is one of this machine.
    if rule == PathRule::UnambiguousMachine && given.is_absolute() && is_ambiguous(root, &path) {
        return Err(StoreError::Ambiguous {
            below: root.on_this_machine(&path),
            path,
        });
    }
    Ok(Location {
        root: NodeRoot::open("/")?,
        path,
        on_node: false,
    })
}

/// Returns whether a path outside the root could mean a file of the node: it exists there, or only there it could be
/// created.
fn is_ambiguous(root: &NodeRoot, path: &Path) -> bool {
    // Mounts of this machine below the root do not belong to the node.
    let is_on_node = |path: &Path| matches!(root.metadata(path), Ok(Some(_)));
    let creatable = |path: &Path| is_on_node(path) && path.symlink_metadata().is_err();
    is_on_node(path) || path.parent().is_some_and(creatable)
}

/// Access to the files that a definition names, resolved by the origin of the definition.
pub(crate) struct DefinedFiles {
    root: NodeRoot,
    rule: PathRule,
}

impl DefinedFiles {
    /// Returns access for definitions found at `origin`.
    pub(crate) fn new(root: &NodeRoot, origin: Origin) -> Rc<Self> {
        Rc::new(DefinedFiles {
            root: root.clone(),
            rule: origin.into(),
        })
    }

    /// Returns access to the files that the document at `location` names, which are searched in its root only.
    pub(crate) fn of(root: &NodeRoot, location: &Location) -> Rc<Self> {
        Rc::new(DefinedFiles {
            root: root.clone(),
            rule: if location.on_node {
                PathRule::Node
            } else {
                PathRule::Machine
            },
        })
    }
}

impl DefinedFiles {
    fn open(&self, path: &Path) -> io::Result<(Location, FileContent)> {
        let location = locate(&self.root, self.rule, path).map_err(io::Error::other)?;
        match location.read().map_err(io::Error::other)? {
            Some(content) => Ok((location, content)),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "does not exist")),
        }
    }
}

impl Files for DefinedFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.open(path).map(|(_, content)| content.bytes)
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        let (location, content) = self.open(path)?;
        if !is_credential(path) {
            let verified = content
                .metadata
                .require_private(&location.on_this_machine());
            verified.map_err(io::Error::other)?;
        }
        Ok(content.bytes)
    }

    fn shown(&self, path: &Path) -> PathBuf {
        shown_as(&self.root, self.rule, path)
    }

    fn named_in(&self, document: &Path) -> io::Result<Option<Rc<dyn Files>>> {
        let location = locate(&self.root, self.rule, document).map_err(io::Error::other)?;
        Ok(Some(DefinedFiles::of(&self.root, &location)))
    }
}

/// A kubeconfig on the node, or one that the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeconfigFile {
    /// At this path on the node.
    OnNode(PathBuf),
    /// Named on the command line.
    Given(Argument),
}

impl KubeconfigFile {
    /// Returns the kubeconfig that the command line names, or that of an administrator on the node.
    pub(crate) fn of_admin(given: Option<&Argument>) -> KubeconfigFile {
        given.map_or_else(|| Path::new(ADMIN_CONF).into(), KubeconfigFile::from)
    }

    /// Returns the path for messages.
    pub(super) fn shown(&self, root: &NodeRoot) -> PathBuf {
        match self {
            KubeconfigFile::OnNode(path) => root.on_this_machine(path),
            KubeconfigFile::Given(given) => shown(root, given),
        }
    }

    pub(super) fn location(&self, root: &NodeRoot) -> Result<Location, Failure> {
        Ok(match self {
            KubeconfigFile::OnNode(path) => defined(root, Origin::Node, path)?,
            KubeconfigFile::Given(given) => argument(root, given)?,
        })
    }
}

impl From<&Path> for KubeconfigFile {
    fn from(path: &Path) -> Self {
        KubeconfigFile::OnNode(path.to_owned())
    }
}

impl From<&Argument> for KubeconfigFile {
    fn from(given: &Argument) -> Self {
        KubeconfigFile::Given(given.clone())
    }
}

impl From<&KubeconfigFile> for KubeconfigFile {
    fn from(file: &KubeconfigFile) -> Self {
        file.clone()
    }
}
