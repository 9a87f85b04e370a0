//! Watches for changes by other processes: of the PKI, the kubeconfigs and the configuration.
//!
//! inotify(7) reports that something happened, and digests of the contents show whether a file changed. The daemon's own
//! writes, a touched file and a short-lived temporary file do not wake the loop. A missing directory is watched for in
//! its nearest existing parent. Where inotify(7) fails, the digests are compared each minute.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use sha2::{Digest, Sha256};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until, timeout};

use super::alarm::readable;
use crate::store::NodeRoot;

/// A series of writes counts as complete after this time without an event.
const QUIET_TIME: Duration = Duration::from_millis(300);
/// Longest time to wait for a series of writes to complete.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(5);

/// Number of files in a directory whose changes are noticed; settings have far fewer.
const MAX_FILES_IN_DIRECTORY: usize = 1000;

/// The use of a watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileRole {
    /// A file that the daemon renews.
    Pki,
    /// A file that the daemon reads its configuration from.
    Configuration,
}

/// The watched files, and the directories in which every file is watched.
#[derive(Clone, Debug, Default)]
pub struct WatchedFiles {
    files: Vec<(FileRole, NodeRoot, PathBuf)>,
    directories: Vec<(FileRole, NodeRoot, PathBuf)>,
}

impl WatchedFiles {
    pub(super) fn file(&mut self, role: FileRole, root: &NodeRoot, path: &Path) {
        self.files.push((role, root.clone(), path.to_owned()));
    }

    pub(super) fn directory(&mut self, role: FileRole, root: &NodeRoot, path: &Path) {
        let known = |(_, _, directory): &(FileRole, NodeRoot, PathBuf)| directory == path;
        if !self.directories.iter().any(known) {
            self.directories.push((role, root.clone(), path.to_owned()));
        }
    }

    /// Returns the directories that contain the watched files, as paths on this machine.
    fn containing_directories(&self) -> BTreeSet<PathBuf> {
        let parents = self
            .files
            .iter()
            .filter_map(|(_, root, path)| Some((root, path.parent()?)));
        let directories = self
            .directories
            .iter()
            .map(|(_, root, path)| (root, path.as_path()));
        parents
            .chain(directories)
            .map(|(root, path)| root.on_this_machine(path))
            .collect()
    }

    /// Returns whether a file at this path on this machine is one of these.
    fn includes(&self, path: &Path) -> bool {
        let mut files = self.files.iter();
        let mut directories = self.directories.iter();
        files.any(|(_, root, file)| root.on_this_machine(file) == path)
            || directories
                .any(|(_, root, directory)| path.parent() == Some(&root.on_this_machine(directory)))
    }

    /// Returns the digests of the files, by their paths on this machine. An unreadable file counts as missing.
    fn digests(&self) -> Digests {
        let mut digests = Digests::new();
        for (role, root, directory) in &self.directories {
            let names = root.list(directory).ok().flatten().unwrap_or_default();
            for name in names.into_iter().take(MAX_FILES_IN_DIRECTORY) {
                read_digest(*role, root, &directory.join(name), &mut digests);
            }
        }
        for (role, root, path) in &self.files {
            read_digest(*role, root, path, &mut digests);
        }
        digests
    }
}

type Digests = BTreeMap<PathBuf, (FileRole, [u8; 32])>;

fn read_digest(role: FileRole, root: &NodeRoot, path: &Path, digests: &mut Digests) {
    if let Ok(Some(content)) = root.read(path) {
        let digest = Sha256::digest(&content.bytes).into();
        digests.insert(root.on_this_machine(path), (role, digest));
    }
}

/// Time between two checks while inotify does not report every change: its limits are shared with all processes of the user,
/// and kubelet and container runtime use many instances.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// An inotify instance, and the digests at the last check.
pub(super) struct FileWatch {
    inotify: Option<(Inotify, AsyncFd<OwnedFd>)>,
    /// Directories that inotify does not watch.
    unwatched: RefCell<BTreeSet<PathBuf>>,
    /// The last check.
    checked: Cell<Instant>,
    watched: WatchedFiles,
    seen: Digests,
    /// An event occurred and has not been examined yet.
    has_event: bool,
}

impl FileWatch {
    /// Returns an instance without watched files. If inotify fails, it logs that once and compares the files at intervals.
    pub(super) fn new() -> Self {
        let open = || -> io::Result<_> {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            let ready = readable(inotify.as_fd())?;
            Ok((inotify, ready))
        };
        let inotify = open()
            .inspect_err(|error| {
                tracing::warn!(
                    "inotify failed ({error}), so changes by other processes are noticed within a minute; raise fs.inotify.max_user_instances and restart nodepki to notice them at once"
                );
            })
            .ok();
        FileWatch {
            inotify,
            unwatched: RefCell::new(BTreeSet::new()),
            checked: Cell::new(Instant::now()),
            watched: WatchedFiles::default(),
            seen: Digests::new(),
            has_event: false,
        }
    }

    /// Replaces the watched files. Accepts the current contents of those that were not watched before: the others may have
    /// changed since they were read.
    pub(super) fn start(&mut self, watched: WatchedFiles) {
        let before = std::mem::replace(&mut self.watched, watched);
        self.arm();
        let mut seen = std::mem::take(&mut self.seen);
        seen.retain(|path, _| self.watched.includes(path));
        let now = self.digests().into_iter();
        seen.extend(now.filter(|(path, _)| !before.includes(path)));
        self.seen = seen;
    }

    /// Accepts the current contents of the watched files.
    pub(super) fn accept_contents(&mut self) {
        self.seen = self.digests();
    }

    fn digests(&self) -> Digests {
        self.checked.set(Instant::now());
        self.watched.digests()
    }

    /// Accepts the current contents of files that this process has written.
    pub(super) fn accept_own_writes(&mut self, root: &NodeRoot, written: &[PathBuf]) {
        let now = self.watched.digests();
        for path in written {
            let path = root.on_this_machine(path);
            match now.get(&path) {
                Some(found) => self.seen.insert(path, *found),
                None => self.seen.remove(&path),
            };
        }
    }

    /// Resolves when another process has changed a watched file. May be dropped at any time without losing an event.
    pub(super) async fn changed(&mut self) -> FileRole {
        loop {
            if !self.has_event {
                self.event().await;
                self.has_event = true;
            }
            let began = Instant::now();
            while began.elapsed() < MAX_SETTLE_TIME
                && timeout(QUIET_TIME, self.reported()).await.is_ok()
            {}
            self.has_event = false;
            // Before the files are read: a later change causes another event.
            self.arm();
            let now = self.digests();
            let differ = |one: &Digests, other: &Digests| -> Vec<(PathBuf, FileRole)> {
                let one = one
                    .iter()
                    .filter(|(path, found)| other.get(*path) != Some(found));
                one.map(|(path, (role, _))| (path.clone(), *role)).collect()
            };
            let changed: BTreeMap<_, _> = differ(&now, &self.seen)
                .into_iter()
                .chain(differ(&self.seen, &now))
                .collect();
            self.seen = now;
            if let Some(role) = changed.values().max() {
                let files: Vec<_> = changed
                    .keys()
                    .map(|path| path.display().to_string())
                    .collect();
                tracing::info!(
                    files = files.join(", "),
                    "PKI files changed outside nodepki: {}",
                    files.join(", ")
                );
                return *role;
            }
        }
    }

    /// Resolves when something may have happened.
    async fn event(&self) {
        let polled = async {
            if self.inotify.is_some() && self.unwatched.borrow().is_empty() {
                return std::future::pending().await;
            }
            // The daemon drops this future at other events, and some of them are more frequent.
            sleep_until(self.checked.get() + POLL_INTERVAL).await;
        };
        tokio::select! {
            () = polled => {}
            () = self.reported() => {}
        }
    }

    /// Resolves when inotify reports an event.
    async fn reported(&self) {
        let Some((inotify, ready)) = &self.inotify else {
            return std::future::pending().await;
        };
        loop {
            let Ok(mut guard) = ready.readable().await else {
                return std::future::pending().await;
            };
            match inotify.read_events() {
                Err(Errno::EAGAIN) => guard.clear_ready(),
                // Also a queue overflow, or a name that is not UTF-8: something happened.
                _ => return,
            }
        }
    }

    /// Watches every existing directory, and the nearest parent of every missing one.
    fn arm(&self) {
        let Some((inotify, _)) = &self.inotify else {
            return;
        };
        let change = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let appearance = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        // A second watch of a directory would replace the first.
        let mut watches = BTreeMap::new();
        for directory in self.watched.containing_directories() {
            if directory.is_dir() {
                watches.insert(directory, change);
            } else if let Some(above) = directory.ancestors().skip(1).find(|above| above.is_dir()) {
                watches.entry(above.to_owned()).or_insert(appearance);
            }
        }
        let mut unwatched = self.unwatched.borrow_mut();
        let known = std::mem::take(&mut *unwatched);
        for (directory, events) in watches {
            if let Err(errno) = inotify.add_watch(&directory, events) {
                if !known.contains(&directory) {
                    tracing::warn!(
                        "cannot watch {} ({errno}), so changes in it by other processes are noticed within a minute; raise fs.inotify.max_user_watches and restart nodepki to notice them at once",
                        directory.display()
                    );
                }
                unwatched.insert(directory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn notices_change_without_inotify() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let file = dir.path().join("config.yaml");
        fs::write(&file, "one").unwrap();
        let mut watched = WatchedFiles::default();
        watched.file(FileRole::Configuration, &root, Path::new("/config.yaml"));
        let mut watch = FileWatch {
            inotify: None,
            ..FileWatch::new()
        };
        watch.start(watched);
        fs::write(&file, "two").unwrap();
        // Other events are more frequent.
        let mut drops = 0;
        while timeout(POLL_INTERVAL / 4, watch.changed()).await != Ok(FileRole::Configuration) {
            drops += 1;
            assert!(drops < 8);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn notices_change_while_configuration_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let watched = |names: &[&str]| {
            let mut watched = WatchedFiles::default();
            watched.directory(FileRole::Configuration, &root, Path::new("/config.d"));
            for name in names {
                watched.file(FileRole::Configuration, &root, &Path::new("/").join(name));
            }
            watched
        };
        let mut watch = FileWatch {
            inotify: None,
            ..FileWatch::new()
        };
        let is_changed =
            async |watch: &mut FileWatch| timeout(2 * POLL_INTERVAL, watch.changed()).await.is_ok();
        fs::create_dir(dir.path().join("config.d")).unwrap();
        write("config.yaml", "one");
        watch.start(watched(&["config.yaml"]));
        write("config.yaml", "two");
        watch.accept_contents();
        watch.start(watched(&["config.yaml"]));
        assert!(!is_changed(&mut watch).await);
        for name in ["config.yaml", "config.d/more.yaml"] {
            watch.accept_contents();
            write(name, "three");
            watch.start(watched(&["config.yaml"]));
            assert!(is_changed(&mut watch).await, "{name}");
        }
        // The new configuration names another file.
        write("kubeadm.yaml", "one");
        watch.start(watched(&["kubeadm.yaml"]));
        assert!(!is_changed(&mut watch).await);
    }
}
