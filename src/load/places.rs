//! Where a path leads: below the root, or on this machine.
//!
//! The rule under `--root DIR`, where DIR may hold a system that is not trusted:
//!
//! - A path in a document of the node (settings, kubeadm files, kubeconfigs, state files) is resolved below DIR only.
//!   Such a document starts no program, and no systemd credential of this machine is read for it.
//! - A path on the command line ([`Argument`]) is resolved below DIR, and if nothing exists there, on this machine.
//! - A settings file or kubeconfig of this machine that the command line names (`--config`, `--kubeconfig`) is the
//!   operator's own: its signers, its certificate key and its credentials are files of this machine, and its programs
//!   run. A path of such a settings file that does not exist on this machine is resolved below DIR.
//! - A path of this machine that leads into DIR is resolved below DIR, so that no link of DIR leads out of it.
//!
//! With `--root /` all of these are the same.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use zeroize::Zeroizing;

use crate::agent::Failure;
use crate::http::Files;
use crate::settings::{Argument, Origin};
use crate::store::{Content, Error, Root};

/// A path together with the root that it is resolved in.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    /// The node's root, or `/` of this machine.
    pub(crate) root: Root,
    /// The absolute path inside `root`.
    pub(crate) path: PathBuf,
    /// Whether `root` is the node's.
    pub(crate) on_node: bool,
}

impl Location {
    /// The path on this machine, for messages.
    pub(crate) fn on_this_machine(&self) -> PathBuf {
        self.root.on_this_machine(&self.path)
    }

    /// Reads the file; `None` if it does not exist.
    pub(crate) fn read(&self) -> Result<Option<Content>, Error> {
        self.root.read(&self.path)
    }

    /// The place where this document was found, for the paths in it.
    pub(crate) fn origin(&self) -> Origin {
        match self.on_node {
            true => Origin::Node,
            false => Origin::Machine,
        }
    }
}

/// The systems that are searched for a path, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    Node,
    Machine,
    NodeThenMachine,
    MachineThenNode,
}

impl From<Origin> for Search {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Node => Search::Node,
            Origin::Machine => Search::MachineThenNode,
            Origin::CommandLine => Search::NodeThenMachine,
        }
    }
}

/// Returns where a path of the command line leads. A path that does not exist yet leads to where its directory is.
///
/// # Errors
/// What the system reports for the path below the root.
pub(crate) fn argument(root: &Root, argument: &Argument) -> Result<Location, Error> {
    locate(root, Origin::CommandLine.into(), argument.as_given())
}

/// Returns where a path in a definition leads, by the place of the definition.
///
/// # Errors
/// As for [`argument`].
pub(crate) fn defined(root: &Root, origin: Origin, path: &Path) -> Result<Location, Error> {
    locate(root, origin.into(), path)
}

/// Whether a definition found at `origin` may start programs and use systemd credentials of this machine.
pub(crate) fn is_trusted(root: &Root, origin: Origin) -> bool {
    origin != Origin::Node || root.is_this_machine()
}

fn locate(root: &Root, search: Search, path: &Path) -> Result<Location, Error> {
    let path = super::absolute(path);
    let on_node = |path| Location {
        root: root.clone(),
        path,
        on_node: true,
    };
    if search == Search::Node || root.is_this_machine() {
        return Ok(on_node(path));
    }
    if let Some(inside) = root.inside(&path) {
        return Ok(on_node(inside));
    }
    let here = Location {
        root: Root::open("/")?,
        path: path.clone(),
        on_node: false,
    };
    let (first, second) = match search {
        Search::Node => return Ok(on_node(path)),
        Search::Machine => return Ok(here),
        Search::NodeThenMachine => (on_node(path.clone()), here),
        Search::MachineThenNode => (here, on_node(path.clone())),
    };
    for ancestor in path.ancestors().take(2) {
        for place in [&first, &second] {
            if place.root.metadata(ancestor)?.is_some() {
                return Ok(place.clone());
            }
        }
    }
    Ok(on_node(path))
}

/// The files that a definition may name, by the place of the definition.
pub(crate) struct DefinedFiles {
    root: Root,
    search: Search,
}

impl DefinedFiles {
    /// The files for definitions found at `origin`.
    pub(crate) fn new(root: &Root, origin: Origin) -> Rc<Self> {
        Rc::new(DefinedFiles {
            root: root.clone(),
            search: origin.into(),
        })
    }

    /// The files for what is named in the document at `location`, which is found nowhere else.
    pub(crate) fn of(root: &Root, location: &Location) -> Rc<Self> {
        Rc::new(DefinedFiles {
            root: root.clone(),
            search: match location.on_node {
                true => Search::Node,
                false => Search::Machine,
            },
        })
    }
}

impl Files for DefinedFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        let location = locate(&self.root, self.search, path).map_err(io::Error::other)?;
        match location.read().map_err(io::Error::other)? {
            Some(content) => Ok(content.bytes),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "does not exist")),
        }
    }

    fn named_in(&self, document: &Path) -> io::Result<Option<Rc<dyn Files>>> {
        let location = locate(&self.root, self.search, document).map_err(io::Error::other)?;
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
    pub(super) fn location(&self, root: &Root) -> Result<Location, Failure> {
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

impl fmt::Display for KubeconfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KubeconfigFile::OnNode(path) => path.display().fmt(f),
            KubeconfigFile::Given(given) => given.display().fmt(f),
        }
    }
}
