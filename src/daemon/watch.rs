//! What somebody else changes on disk: the PKI, the kubeconfigs, the configuration.
//!
//! inotify(7) says that something happened, digests of the contents say whether it matters: the daemon's own writes, a
//! file that was only touched, and a temporary file that came and went, wake nobody. Directories that do not exist yet
//! are waited for in the nearest one that does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use sha2::{Digest, Sha256};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout};

use super::alarm::readable;
use crate::store::Root;

/// Whoever writes several files is done when nothing has happened for so long.
const QUIET: Duration = Duration::from_millis(300);
/// Whoever never stops writing is looked at all the same.
const LONGEST: Duration = Duration::from_secs(5);

/// Number of files in a directory whose changes are noticed; settings have far fewer.
const MAX_FILES_IN_DIRECTORY: usize = 1000;

/// What a file is to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Matter {
    /// What it keeps in order.
    Pki,
    /// What it goes by.
    Configuration,
}

/// Files, and directories of which every file counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    files: Vec<(Matter, Root, PathBuf)>,
    directories: Vec<(Matter, Root, PathBuf)>,
}

impl Watched {
    pub(super) fn file(&mut self, matter: Matter, root: &Root, path: &Path) {
        self.files.push((matter, root.clone(), path.to_owned()));
    }

    pub(super) fn directory(&mut self, matter: Matter, root: &Root, path: &Path) {
        let known = |(_, _, directory): &(Matter, Root, PathBuf)| directory == path;
        if !self.directories.iter().any(known) {
            self.directories
                .push((matter, root.clone(), path.to_owned()));
        }
    }

    /// Where something has to happen for a file to change, on this machine.
    fn places(&self) -> BTreeSet<PathBuf> {
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

    /// What is in the files, by their paths on this machine. What cannot be read counts as not being there.
    fn look(&self) -> Seen {
        let mut seen = Seen::new();
        for (matter, root, directory) in &self.directories {
            let names = root.list(directory).ok().flatten().unwrap_or_default();
            for name in names.into_iter().take(MAX_FILES_IN_DIRECTORY) {
                see(*matter, root, &directory.join(name), &mut seen);
            }
        }
        for (matter, root, path) in &self.files {
            see(*matter, root, path, &mut seen);
        }
        seen
    }
}

type Seen = BTreeMap<PathBuf, (Matter, [u8; 32])>;

fn see(matter: Matter, root: &Root, path: &Path, seen: &mut Seen) {
    if let Ok(Some(content)) = root.read(path) {
        let digest = Sha256::digest(&content.bytes).into();
        seen.insert(root.on_this_machine(path), (matter, digest));
    }
}

/// The kernel's messages, and what was last seen.
pub(super) struct Watch {
    inotify: Option<(Inotify, AsyncFd<OwnedFd>)>,
    watched: Watched,
    seen: Seen,
    /// Something happened and has not been looked at.
    stirred: bool,
}

impl Watch {
    /// Sees nothing yet. Without inotify nothing is ever seen, which is told once.
    pub(super) fn new() -> Self {
        let open = || -> io::Result<_> {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            let ready = readable(inotify.as_fd())?;
            Ok((inotify, ready))
        };
        let inotify = open()
            .inspect_err(|error| {
                tracing::warn!(
                    "files that others change are noticed only with the next renewal: inotify does not work ({error}); raise fs.inotify.max_user_instances and start nodepki again"
                );
            })
            .ok();
        Watch {
            inotify,
            watched: Watched::default(),
            seen: Seen::new(),
            stirred: false,
        }
    }

    /// Takes what is there now as known.
    pub(super) fn start(&mut self, watched: Watched) {
        self.watched = watched;
        self.arm();
        self.seen = self.watched.look();
    }

    /// What is at these paths now was written by this process.
    pub(super) fn own(&mut self, root: &Root, written: &[PathBuf]) {
        let now = self.watched.look();
        for path in written {
            let path = root.on_this_machine(path);
            match now.get(&path) {
                Some(found) => self.seen.insert(path, *found),
                None => self.seen.remove(&path),
            };
        }
    }

    /// Resolves when somebody has changed a file. May be dropped at any time; nothing is lost.
    pub(super) async fn changed(&mut self) -> Matter {
        loop {
            if !self.stirred {
                self.event().await;
                self.stirred = true;
            }
            let began = Instant::now();
            while began.elapsed() < LONGEST && timeout(QUIET, self.event()).await.is_ok() {}
            self.stirred = false;
            self.arm();
            let now = self.watched.look();
            let differ = |one: &Seen, other: &Seen| -> Vec<(PathBuf, Matter)> {
                let one = one
                    .iter()
                    .filter(|(path, found)| other.get(*path) != Some(found));
                one.map(|(path, (matter, _))| (path.clone(), *matter))
                    .collect()
            };
            let changed: BTreeMap<_, _> = differ(&now, &self.seen)
                .into_iter()
                .chain(differ(&self.seen, &now))
                .collect();
            self.seen = now;
            if let Some(matter) = changed.values().max() {
                let files: Vec<_> = changed
                    .keys()
                    .map(|path| path.display().to_string())
                    .collect();
                tracing::info!(
                    files = files.join(", "),
                    "PKI files changed outside nodepki: {}",
                    files.join(", ")
                );
                return *matter;
            }
        }
    }

    async fn event(&self) {
        let Some((inotify, ready)) = &self.inotify else {
            return std::future::pending().await;
        };
        loop {
            let Ok(mut guard) = ready.readable().await else {
                return std::future::pending().await;
            };
            match inotify.read_events() {
                Err(Errno::EAGAIN) => guard.clear_ready(),
                // Too many at once to be told one by one, or a name that is no text: something happened.
                _ => return,
            }
        }
    }

    /// Asks for messages from every directory that there is, and for its appearance where there is none.
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
        // A second request for a directory would take the place of the first.
        let mut wanted = BTreeMap::new();
        for place in self.watched.places() {
            if place.is_dir() {
                wanted.insert(place, change);
            } else if let Some(above) = place.ancestors().skip(1).find(|above| above.is_dir()) {
                wanted.entry(above.to_owned()).or_insert(appearance);
            }
        }
        for (directory, events) in wanted {
            if let Err(errno) = inotify.add_watch(&directory, events) {
                tracing::warn!(
                    "{} cannot be watched ({errno}): files there that others change are noticed only with the next renewal; raise fs.inotify.max_user_watches and start nodepki again",
                    directory.display()
                );
            }
        }
    }
}
