//! Paths given on the command line, and where a definition comes from.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A path given on the command line: the only kind of path that is also resolved on this machine when `--root` names
/// another system.
///
/// It deliberately implements neither `Deref` nor `AsRef`, so functions for paths on the node do not accept it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument(PathBuf);

impl Argument {
    /// Returns the path as given, possibly relative to the working directory.
    pub fn as_given(&self) -> &Path {
        &self.0
    }

    /// Returns the path as given, for messages.
    pub fn display(&self) -> std::path::Display<'_> {
        self.0.display()
    }
}

impl From<PathBuf> for Argument {
    fn from(path: PathBuf) -> Self {
        Argument(path)
    }
}

impl From<OsString> for Argument {
    fn from(path: OsString) -> Self {
        Argument(path.into())
    }
}

impl From<&str> for Argument {
    fn from(path: &str) -> Self {
        Argument(path.into())
    }
}

/// Source of a definition. It determines where the paths in the definition are resolved and whether its programs may run
/// when `--root` names another system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A file below the root: its paths are resolved below the root, and its programs do not run.
    #[default]
    Node,
    /// A file of this machine, named with `--config`: its paths are resolved on this machine first.
    Machine,
    /// The command line: its paths are resolved below the root first.
    CommandLine,
}
