//! A model of a disk that loses its power: what POSIX guarantees to be there afterwards, and what may be there.
//!
//! fsync(2) of a file keeps its content and mode, fsync(2) of a directory keeps its names and its mode; nothing else is
//! kept. Of everything later, any part may be there:
//! - of the names, each create, rename and unlink independently; a rename is one change, also between directories;
//! - of the content of a file, what was synced, half of the remainder, all of it, or all of its length with zeros;
//! - the new mode or the old one.
//!
//! Files outside of the node's root belong to another machine, such as the signer, and are always kept.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::recording::Operation;
use super::tree::{Content, Entry, Tree};

type Inode = usize;
/// A name in a directory.
type Name = (Inode, OsString);

#[derive(Clone, Debug)]
struct File {
    content: Content,
    synced: Content,
    mode: u32,
    synced_mode: u32,
    names: BTreeMap<OsString, Inode>,
    synced_names: BTreeMap<OsString, Inode>,
    cursor: usize,
    is_exposed: bool,
}

/// A change of names that is not synced.
#[derive(Clone, Debug)]
struct NameChange {
    removed: Option<Name>,
    added: Option<(Name, Inode)>,
}

impl NameChange {
    fn names(&self) -> impl Iterator<Item = &Name> {
        let added = self.added.as_ref().map(|(name, _)| name);
        self.removed.iter().chain(added)
    }
}

/// What a power cut leaves of the unsynced content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remainder {
    Nothing,
    Half,
    All,
    Zeros,
}

/// One state after a power cut: which of the unsynced changes are there.
pub(super) struct Survival<'a> {
    /// Whether the unsynced change of names with this index is there, of so many.
    pub(super) name: &'a mut dyn FnMut(usize, usize) -> bool,
    pub(super) content: &'a mut dyn FnMut() -> Remainder,
    pub(super) mode: &'a mut dyn FnMut() -> bool,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    dir: PathBuf,
    files: Vec<File>,
    unsynced: Vec<NameChange>,
    umask: u32,
}

impl Disk {
    /// Returns a disk on which the tree in `dir` is synced.
    pub(super) fn new(dir: &Path, tree: &Tree) -> Self {
        let mut disk = Disk {
            dir: dir.to_owned(),
            files: Vec::new(),
            unsynced: Vec::new(),
            umask: 0o022,
        };
        for (path, entry) in &tree.0 {
            let inode = disk.create(entry.content.clone(), entry.mode, path.starts_with("root"));
            disk.files[inode].synced = entry.content.clone();
            if let Some((directory, name)) = disk.parent(path) {
                disk.files[directory].names.insert(name.clone(), inode);
                disk.files[directory].synced_names.insert(name, inode);
            }
        }
        disk
    }

    fn create(&mut self, content: Content, mode: u32, is_exposed: bool) -> Inode {
        let synced = match &content {
            Content::File(_) => Content::File(Vec::new()),
            other => other.clone(),
        };
        self.files.push(File {
            content,
            synced,
            mode,
            synced_mode: mode,
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            cursor: 0,
            is_exposed,
        });
        self.files.len() - 1
    }

    fn find(&self, path: &Path) -> Option<Inode> {
        path.components().try_fold(0, |inode: Inode, part| {
            self.files[inode].names.get(part.as_os_str()).copied()
        })
    }

    fn parent(&self, path: &Path) -> Option<Name> {
        let name = path.file_name()?.to_owned();
        Some((self.find(path.parent()?)?, name))
    }

    fn relative(&self, path: &Path) -> Option<PathBuf> {
        Some(path.strip_prefix(&self.dir).ok()?.to_owned())
    }

    /// Applies an operation; false if it concerns no file of the tree.
    pub(super) fn apply(&mut self, operation: &Operation) -> bool {
        let relative = |path: &Path| self.relative(path);
        match operation {
            Operation::Open {
                path,
                creates,
                truncates,
                appends,
                mode,
            } => {
                let Some(path) = relative(path) else {
                    return false;
                };
                match self.find(&path) {
                    None if *creates => {
                        self.add(&path, Content::File(Vec::new()), *mode & !self.umask);
                    }
                    None => return false,
                    Some(inode) => self.reopen(inode, *truncates, *appends),
                }
            }
            Operation::Write { path, bytes, at } => {
                let Some(inode) = relative(path).and_then(|path| self.find(&path)) else {
                    return false;
                };
                let at_cursor = at.is_none();
                let begin = at.unwrap_or(self.files[inode].cursor);
                self.change(inode, |content| {
                    content.resize(content.len().max(begin + bytes.len()), 0);
                    content[begin..begin + bytes.len()].copy_from_slice(bytes);
                });
                if at_cursor {
                    self.files[inode].cursor = begin + bytes.len();
                }
            }
            Operation::Truncate { path, length } => {
                let Some(inode) = relative(path).and_then(|path| self.find(&path)) else {
                    return false;
                };
                self.change(inode, |content| content.resize(*length, 0));
            }
            Operation::Rename { from, to } => {
                let (Some(from), Some(to)) = (relative(from), relative(to)) else {
                    return false;
                };
                let inode = self.find(&from);
                let inode = inode.unwrap_or_else(|| panic!("{operation:?} of an unknown file"));
                self.ensure_parent(&to);
                let (removed, added) = (self.parent(&from).unwrap(), self.parent(&to).unwrap());
                self.rename(Some(removed), Some((added, inode)));
            }
            Operation::Link { from, to } => {
                let Some(to) = relative(to) else {
                    return false;
                };
                let from = relative(from).and_then(|from| self.find(&from));
                let inode =
                    from.unwrap_or_else(|| panic!("the target of {operation:?} is unknown"));
                let added = self.parent(&to).unwrap();
                self.rename(None, Some((added, inode)));
            }
            Operation::Symlink { target, path } => {
                let Some(path) = relative(path) else {
                    return false;
                };
                self.add(&path, Content::Link(target.clone()), 0o777);
            }
            Operation::Remove { path } => {
                let Some(path) = relative(path) else {
                    return false;
                };
                let removed = self.parent(&path).unwrap();
                self.rename(Some(removed), None);
            }
            Operation::MakeDirectory { path, mode } => {
                let Some(path) = relative(path) else {
                    return false;
                };
                self.add(&path, Content::Directory, *mode & !self.umask);
            }
            Operation::SetMode { path, mode } => {
                let Some(inode) = relative(path).and_then(|path| self.find(&path)) else {
                    return false;
                };
                let file = &mut self.files[inode];
                file.mode = *mode;
                if !file.is_exposed {
                    file.synced_mode = *mode;
                }
            }
            Operation::Sync { path } => {
                let Some(inode) = relative(path).and_then(|path| self.find(&path)) else {
                    return false;
                };
                self.sync(inode);
            }
            Operation::Umask(umask) => {
                self.umask = *umask;
                return false;
            }
            Operation::SyncAll => (0..self.files.len()).for_each(|inode| self.sync(inode)),
        }
        true
    }

    fn add(&mut self, path: &Path, content: Content, mode: u32) {
        self.ensure_parent(path);
        let name = self
            .parent(path)
            .unwrap_or_else(|| panic!("the directory of {} is unknown", path.display()));
        let inode = self.create(content, mode, path.starts_with("root"));
        self.rename(None, Some((name, inode)));
    }

    /// Adds the directory of a path outside of the root: mkdir(1) of the signer creates it relative to another one.
    fn ensure_parent(&mut self, path: &Path) {
        if self.parent(path).is_none() && !path.starts_with("root") {
            self.add(path.parent().unwrap(), Content::Directory, 0o755);
        }
    }

    fn reopen(&mut self, inode: Inode, truncates: bool, appends: bool) {
        if truncates {
            self.change(inode, Vec::clear);
        }
        let Content::File(bytes) = &self.files[inode].content else {
            return;
        };
        let end = bytes.len();
        self.files[inode].cursor = if appends { end } else { 0 };
    }

    fn change(&mut self, inode: Inode, change: impl FnOnce(&mut Vec<u8>)) {
        let file = &mut self.files[inode];
        let Content::File(bytes) = &mut file.content else {
            return;
        };
        change(bytes);
        if !file.is_exposed {
            file.synced = file.content.clone();
        }
    }

    fn rename(&mut self, removed: Option<Name>, added: Option<(Name, Inode)>) {
        if let Some((directory, name)) = &removed {
            self.files[*directory].names.remove(name);
        }
        if let Some(((directory, name), inode)) = &added {
            self.files[*directory].names.insert(name.clone(), *inode);
        }
        let change = NameChange { removed, added };
        let is_exposed = change
            .names()
            .any(|(directory, _)| self.files[*directory].is_exposed);
        self.unsynced.push(change);
        if !is_exposed {
            self.keep_names(|change, files: &[File]| {
                change
                    .names()
                    .all(|(directory, _)| !files[*directory].is_exposed)
            });
        }
    }

    fn sync(&mut self, inode: Inode) {
        let file = &mut self.files[inode];
        file.synced = file.content.clone();
        file.synced_mode = file.mode;
        if file.content == Content::Directory {
            self.keep_names(|change, _| change.names().any(|(directory, _)| *directory == inode));
        }
    }

    /// Moves the matching changes to the synced names.
    fn keep_names(&mut self, matches: impl Fn(&NameChange, &[File]) -> bool) {
        let mut rest: Vec<NameChange> = Vec::new();
        for change in std::mem::take(&mut self.unsynced) {
            if !matches(&change, &self.files) {
                rest.push(change);
                continue;
            }
            // An earlier change of the same name cannot come after this one.
            rest.retain(|earlier| {
                !earlier
                    .names()
                    .any(|name| change.names().any(|n| n == name))
            });
            if let Some((directory, name)) = &change.removed {
                self.files[*directory].synced_names.remove(name);
            }
            if let Some(((directory, name), inode)) = &change.added {
                self.files[*directory]
                    .synced_names
                    .insert(name.clone(), *inode);
            }
        }
        self.unsynced = rest;
    }

    /// Number of changes of names that are not synced.
    pub(super) fn unsynced_names(&self) -> usize {
        self.unsynced.len()
    }

    /// Returns the tree as the running machine has it.
    pub(super) fn present(&self) -> Tree {
        let names = |inode: Inode| self.files[inode].names.clone();
        let mut whole = |inode: Inode| Entry {
            content: self.files[inode].content.clone(),
            mode: self.files[inode].mode,
        };
        collect(&names, &mut whole)
    }

    /// Returns a tree that a power cut may leave.
    pub(super) fn after_power_cut(&self, survival: &mut Survival<'_>) -> Tree {
        let mut names: BTreeMap<Inode, BTreeMap<OsString, Inode>> = BTreeMap::new();
        for (inode, file) in self.files.iter().enumerate() {
            names.insert(inode, file.synced_names.clone());
        }
        for (index, change) in self.unsynced.iter().enumerate() {
            if !(survival.name)(index, self.unsynced.len()) {
                continue;
            }
            if let Some((directory, name)) = &change.removed {
                names.get_mut(directory).unwrap().remove(name);
            }
            if let Some(((directory, name), inode)) = &change.added {
                names
                    .get_mut(directory)
                    .unwrap()
                    .insert(name.clone(), *inode);
            }
        }
        let mut surviving = |inode: Inode| {
            let file = &self.files[inode];
            let content = match (&file.content, &file.synced) {
                (Content::File(new), Content::File(old)) if new != old => {
                    Content::File(remainder(old, new, (survival.content)()))
                }
                (content, _) => content.clone(),
            };
            let mode = if file.mode == file.synced_mode || (survival.mode)() {
                file.mode
            } else {
                file.synced_mode
            };
            Entry { content, mode }
        };
        collect(&|inode| names[&inode].clone(), &mut surviving)
    }
}

fn remainder(old: &[u8], new: &[u8], kept: Remainder) -> Vec<u8> {
    let common = if new.starts_with(old) { old.len() } else { 0 };
    let half = common + (new.len() - common) / 2;
    match kept {
        Remainder::Nothing => old.to_vec(),
        Remainder::Half => new[..half].to_vec(),
        Remainder::All => new.to_vec(),
        Remainder::Zeros => {
            let mut bytes = new[..common].to_vec();
            bytes.resize(new.len(), 0);
            bytes
        }
    }
}

/// Returns the tree that is reachable from the first inode.
fn collect(
    names: &dyn Fn(Inode) -> BTreeMap<OsString, Inode>,
    entry: &mut dyn FnMut(Inode) -> Entry,
) -> Tree {
    let mut tree = Tree::default();
    let mut open = vec![(PathBuf::new(), 0)];
    while let Some((path, inode)) = open.pop() {
        tree.0.insert(path.clone(), entry(inode));
        let below = names(inode).into_iter();
        open.extend(below.map(|(name, inode)| (path.join(name), inode)));
    }
    tree
}

#[test]
fn keeps_only_what_was_synced() {
    let mut tree = Tree::default();
    for path in ["", "root", "root/etc"] {
        let entry = Entry {
            content: Content::Directory,
            mode: 0o755,
        };
        tree.0.insert(path.into(), entry);
    }
    let mut disk = Disk::new(Path::new("/x"), &tree);
    let path = |name: &str| Path::new("/x/root/etc").join(name);
    let write = |disk: &mut Disk, name: &str| {
        disk.apply(&Operation::Open {
            path: path(name),
            creates: true,
            truncates: true,
            appends: false,
            mode: 0o600,
        });
        disk.apply(&Operation::Write {
            path: path(name),
            bytes: b"text".to_vec(),
            at: None,
        });
    };
    let cut = |disk: &Disk, names: bool, kept: Remainder| {
        let tree = disk.after_power_cut(&mut Survival {
            name: &mut |_, _| names,
            content: &mut || kept,
            mode: &mut || false,
        });
        tree.bytes("root/etc/new").map(<[u8]>::to_vec)
    };
    write(&mut disk, "tmp");
    disk.apply(&Operation::Rename {
        from: path("tmp"),
        to: path("new"),
    });
    assert_eq!(cut(&disk, false, Remainder::All), None);
    assert_eq!(cut(&disk, true, Remainder::Nothing), Some(b"".to_vec()));
    assert_eq!(cut(&disk, true, Remainder::Half), Some(b"te".to_vec()));
    assert_eq!(cut(&disk, true, Remainder::Zeros), Some(vec![0; 4]));
    disk.apply(&Operation::Sync { path: path("new") });
    assert_eq!(cut(&disk, false, Remainder::Nothing), None);
    assert_eq!(cut(&disk, true, Remainder::Nothing), Some(b"text".to_vec()));
    disk.apply(&Operation::Sync { path: path("") });
    assert_eq!(
        cut(&disk, false, Remainder::Nothing),
        Some(b"text".to_vec())
    );
    assert_eq!(disk.unsynced_names(), 0);
}
