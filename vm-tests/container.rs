//! A container: the tests' system under its own systemd, with an overlay in place of a disk. It shares kernel, clock and
//! page cache with the host; its network is its own loopback interface.
//!
//! `container.sh` creates its mounts and its cgroup.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::bench::Tally;
use crate::machine::{MAX_WAIT, Machine, Shell, connected};
use crate::seed::Seed;
use crate::system::run;
use crate::time::{wait_until, within};

/// The cgroups of the host that a container gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cgroups {
    /// Those that systemd needs.
    Systemd,
    /// The controllers too: the container runs containers itself.
    All,
}

/// A container, which is killed and unmounted when dropped.
pub(crate) struct Container {
    name: String,
    tally: Arc<Tally>,
    /// Lower directories of its overlay, in the syntax of mount(8).
    lower: OsString,
    /// `upper`: its changes to the system; `seed`; `shared`: its /run/tests; `log`: its console.
    dir: Option<TempDir>,
    cgroups: Cgroups,
    options: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
    running: Option<Child>,
    shell: Option<Shell>,
}

impl Container {
    pub(crate) fn new(name: &str, tally: Arc<Tally>, lower: OsString, seed: &Seed) -> Self {
        // Not below the project: the path of a socket must be short.
        let dir = TempDir::with_prefix("nodepki-vm-").unwrap();
        for name in ["disk/upper", "disk/work", "root", "shared"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        seed.write(&dir.path().join("seed"));
        Container {
            name: name.to_owned(),
            tally,
            lower,
            dir: Some(dir),
            cgroups: Cgroups::Systemd,
            options: Vec::new(),
            environment: Vec::new(),
            running: None,
            shell: None,
        }
    }

    /// Adds an option of systemd-nspawn.
    pub(crate) fn option(mut self, option: String) -> Self {
        self.options.push(option);
        self
    }

    /// Adds an environment variable of systemd-nspawn.
    pub(crate) fn environment(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    pub(crate) fn cgroups(mut self, cgroups: Cgroups) -> Self {
        self.cgroups = cgroups;
        self
    }

    /// Puts all that it writes on a file system of this size in MiB.
    pub(crate) fn with_disk_of(self, mebibytes: u64) -> Self {
        let disk = self.dir().join("disk.ext4");
        let file = fs::File::create(&disk).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        run(Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-m", "0"])
            .arg(&disk));
        self
    }

    /// Returns the folder that contains everything it writes.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    /// Returns the host's path of a file that the container wrote, also when it is off. Not with a disk of its own.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir()
            .join("disk/upper")
            .join(path.trim_start_matches('/'))
    }

    /// Writes a file to its disk before it starts.
    pub(crate) fn put(&self, path: &str, text: &str) {
        assert!(self.running.is_none(), "the container's disk is in use");
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Returns the folder mounted at its /run/tests.
    pub(crate) fn shared(&self) -> PathBuf {
        self.dir().join("shared")
    }

    fn cgroup(&self) -> String {
        let dir = self.dir().file_name().unwrap().to_string_lossy();
        format!("{dir}-{}", std::process::id())
    }

    fn wait(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.wait().unwrap();
        }
        self.shell = None;
        for mount in cgroup_hierarchies(self.cgroups) {
            remove_cgroup(&mount.join(self.cgroup()));
        }
    }
}

impl Machine for Container {
    fn start(&mut self) {
        assert!(self.running.is_none(), "the container runs already");
        self.tally.count_boot();
        let dir = self.dir().to_owned();
        let _ = fs::remove_file(dir.join("shared/shell"));
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"));
        let log = log.unwrap();
        let mut command = Command::new("setpriv");
        // A process namespace: when this program ends, so do all processes in it.
        command.args([
            "--pdeathsig",
            "KILL",
            "--",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
        ]);
        command.args(["--kill-child", "--mount-proc", "bash"]);
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/vm-tests/container.sh"
        ));
        command.arg(&dir).arg(&self.lower);
        for mount in cgroup_hierarchies(self.cgroups) {
            command.arg(made_cgroup(&mount, &self.cgroup()));
        }
        command.arg("--").args(&self.options);
        command.envs(self.environment.iter().copied());
        command.env_remove("PYTHONDONTWRITEBYTECODE");
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        self.running = Some(command.stderr(log).spawn().unwrap());
    }

    fn cut(&mut self) {
        self.tally.count_cut();
        let running = self.running.as_ref().expect("the container is off");
        // The first process of the namespace: the kernel ends all others before it disappears.
        let id = running.id();
        let first = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        for process in first.split_whitespace() {
            kill(Pid::from_raw(process.parse().unwrap()), Signal::SIGKILL).unwrap();
        }
        self.wait();
    }

    fn wait_off(&mut self) {
        let running = self.running.as_mut().expect("the container is off");
        wait_until("the container is off", || {
            running.try_wait().unwrap().is_some()
        });
        self.wait();
    }

    fn shell(&mut self) -> &mut Shell {
        let socket = self.shared().join("shell");
        connected(&mut self.shell, self.running.as_mut(), &socket, MAX_WAIT)
    }

    fn time_factor(&self) -> u32 {
        1
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            let _ = running.kill();
            self.wait();
        }
        crate::machine::leave(self.dir.take(), &self.name);
    }
}

/// Mount points of the cgroup hierarchies that a container gets.
fn cgroup_hierarchies(wanted: Cgroups) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|mount| mount[1].starts_with("/sys/fs/cgroup"))
        .filter(|mount| match mount[2] {
            "cgroup2" => true,
            "cgroup" => wanted == Cgroups::All || mount[3].contains("name=systemd"),
            _ => false,
        })
        .map(|mount| PathBuf::from(mount[1]))
        .collect()
}

fn made_cgroup(hierarchy: &Path, name: &str) -> PathBuf {
    // cgroups(7): a group of version 2 has the controllers that its parent has in `cgroup.subtree_control`; systemd writes
    // there only those that its units use. With all controllers on version 1 the list is empty.
    for controller in fs::read_to_string(hierarchy.join("cgroup.controllers"))
        .unwrap_or_default()
        .split_whitespace()
    {
        fs::write(
            hierarchy.join("cgroup.subtree_control"),
            format!("+{controller}"),
        )
        .unwrap();
    }
    let own = hierarchy.join(name);
    fs::create_dir_all(&own).unwrap();
    // cpuset(7): a new group of version 1 accepts no process before it has processors and memory nodes.
    for setting in ["cpuset.cpus", "cpuset.mems"] {
        let inherited = hierarchy.join(setting);
        if inherited.exists() {
            fs::copy(inherited, own.join(setting)).unwrap();
        }
    }
    own
}

/// Removes a cgroup and those below it, waiting a moment for processes that are still ending.
fn remove_cgroup(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = within(Duration::from_secs(1), || match group.exists() {
        true => fs::remove_dir(group),
        false => Ok(()),
    });
}
