//! A directory tree in memory: content and mode of every file, to be copied, compared and written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::node::Node;

/// A file of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
}

/// Content and mode of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) content: Content,
    pub(super) mode: u32,
}

/// The files below a directory, by relative path. Parents sort before their files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tree(pub(super) BTreeMap<PathBuf, Entry>);

/// Returns the directory with the entries of [`Node`].
pub(super) fn directory(node: &Node) -> PathBuf {
    node.root().parent().unwrap().to_owned()
}

impl Tree {
    /// Reads a tree; sockets and files that disappear meanwhile are left out.
    pub(super) fn of(dir: &Path) -> Self {
        let mut tree = Tree::default();
        tree.read(dir, Path::new(""));
        tree
    }

    fn read(&mut self, dir: &Path, relative: &Path) {
        let path = dir.join(relative);
        let Ok(found) = path.symlink_metadata() else {
            return;
        };
        let content = if found.is_dir() {
            Content::Directory
        } else if found.is_symlink() {
            Content::Link(fs::read_link(&path).unwrap())
        } else if found.is_file() {
            Content::File(fs::read(&path).unwrap())
        } else {
            return;
        };
        let mode = found.permissions().mode() & 0o7777;
        self.0.insert(relative.to_owned(), Entry { content, mode });
        if found.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.read(dir, &relative.join(entry.unwrap().file_name()));
            }
        }
    }

    fn write(&self, dir: &Path) {
        for (path, entry) in &self.0 {
            let path = dir.join(path);
            match &entry.content {
                Content::Directory if path.is_dir() => {}
                Content::Directory => fs::create_dir(&path).unwrap(),
                Content::File(bytes) => fs::write(&path, bytes).unwrap(),
                Content::Link(target) => {
                    symlink(target, &path).unwrap();
                    continue;
                }
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(entry.mode)).unwrap();
        }
    }

    /// Returns a node with these files. Its settings name the new directory in place of `old`.
    pub(super) fn to_node(&self, old: &Path) -> Node {
        let dir = TempDir::new_in(old.parent().unwrap()).unwrap();
        self.write(dir.path());
        let settings = dir.path().join("config.yaml");
        if let Ok(text) = fs::read_to_string(&settings) {
            let text = text.replace(old.to_str().unwrap(), dir.path().to_str().unwrap());
            fs::write(settings, text).unwrap();
        }
        Node::in_directory(dir)
    }

    pub(super) fn bytes(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        match &self.0.get(path.as_ref())?.content {
            Content::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the entries below `dir`.
    pub(super) fn below(&self, dir: &str) -> impl Iterator<Item = (&Path, &Entry)> {
        let entries = self.0.iter().map(|(path, entry)| (path.as_path(), entry));
        entries.filter(move |(path, _)| path.starts_with(dir))
    }
}
