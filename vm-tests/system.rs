//! The system that all machines share: the cached Debian with nodepki's package and the company's CA.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// The installed system. Machines only read it: each has an overlay, or a disk backed by this one.
pub(crate) struct System {
    image: PathBuf,
    installed: TempDir,
}

impl System {
    /// # Panics
    /// If an input is missing; the message names the command that builds it.
    pub(crate) fn install() -> Self {
        let image = named("NODEPKI_VM_IMAGE");
        let package = named("NODEPKI_VM_PACKAGE");
        let multirootca = named("NODEPKI_TEST_SERVERS").join("multirootca");
        let installed = TempDir::with_prefix_in("vm-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let install = concat!(env!("CARGO_MANIFEST_DIR"), "/vm-tests/install");
        let mut command = Command::new(install);
        command.args([&image, &package, &multirootca]);
        run(command.arg(installed.path()));
        System { image, installed }
    }

    /// Returns the lower directories of a machine's overlay, in the syntax of mount(8).
    pub(crate) fn lower(&self) -> OsString {
        let mut lower = self.installed.path().join("changes").into_os_string();
        lower.push(":");
        lower.push(self.image.join("rootfs"));
        lower
    }

    /// Returns the same system as one ext4 file system.
    pub(crate) fn disk(&self) -> PathBuf {
        self.installed.path().join("disk")
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.image.join("vmlinuz")
    }

    /// Returns the host's path of an installed file.
    pub(crate) fn installed(&self, path: &str) -> PathBuf {
        self.installed.path().join("changes").join(path)
    }

    /// Returns a file of the company's CA: `crt`, `key` or `pin` of `ca`, `etcd_ca` or `front_proxy_ca`.
    pub(crate) fn corp(&self, label: &str, extension: &str) -> String {
        fs::read_to_string(self.corp_file(&format!("{label}.{extension}"))).unwrap()
    }

    /// Returns the credential that the CA requires of its clients.
    pub(crate) fn credential(&self) -> PathBuf {
        self.corp_file("cfssl-key")
    }

    fn corp_file(&self, name: &str) -> PathBuf {
        self.installed("opt/corp-ca").join(name)
    }
}

pub(crate) fn named(variable: &str) -> PathBuf {
    let value = std::env::var_os(variable);
    let path = PathBuf::from(value.unwrap_or_else(|| {
        panic!("{variable} is not set: run `tests/run vm` or `tests/run cluster`, which build its target")
    }));
    assert!(
        path.exists(),
        "{variable} names {}, which does not exist: run `tests/run vm` or `tests/run cluster`, which build it",
        path.display()
    );
    path
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; `tests/run vm` installs it"));
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        said(&output.stdout),
        said(&output.stderr)
    );
    said(&output.stdout)
}
