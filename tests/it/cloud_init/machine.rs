//! A machine in a directory, which the real cloud-init boots stage by stage, any number of times.
//!
//! Stand-in programs replace systemd, kubeadm and, by default, nodepki, and record their arguments. The machine has no
//! write access to the host.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::{NODEPKI, Ran};
use crate::servers::bin;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// The cloud-init modules that the user data need, in Debian's order, without those that set up disks and users.
const CLOUD_CFG: &str = "\
datasource_list: [NoCloud]
cloud_init_modules: [bootcmd, write-files]
cloud_config_modules: [runcmd]
cloud_final_modules: [write-files-deferred, scripts-vendor, scripts-per-once, scripts-per-boot, scripts-user, final-message]
network: {config: disabled}
system_info: {distro: debian, paths: {cloud_dir: /var/lib/cloud/, templates_dir: /etc/cloud/templates/}}
";

/// The interpreter of Debian's cloud-init, which has its modules.
const PYTHON: &str = "/usr/bin/python3";

/// Stand-in for systemctl: runs the unit's program, and derives the unit's state from its exit status.
const SYSTEMCTL_SCRIPT: &str = r#"
case "$*" in
'start nodepki-bootstrap.service')
    [ ! -e /run/active ] || exit 0
    nodepki bootstrap
    echo $? >/run/bootstrap
    read -r status </run/bootstrap
    [ "$status" != 0 ] || : >/run/active
    exit "$status"
    ;;
'is-failed --quiet nodepki-bootstrap.service')
    read -r status </run/bootstrap
    case $status in 64 | 65 | 77 | 78) ;; *) exit 1 ;; esac
    ;;
'is-active nodepki-bootstrap.service') [ -e /run/active ] ;;
esac
"#;

/// Returns the directory of the unpacked cloud-init.
fn packages() -> PathBuf {
    let cache = bin("cloud-init")
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("cloud-init");
    cache.join("usr/lib/python3/dist-packages")
}

/// Runs `cloud-init` on the host once for each argument list, for commands that change nothing.
pub(crate) fn cloud_init(runs: &[String]) -> Ran {
    Ran::of(
        Command::new(PYTHON)
            .arg(format!("{FIXTURES}/cloud_init.py"))
            .args(runs)
            .env("PYTHONPATH", packages()),
    )
}

/// A machine in a directory, as the module describes it.
pub(crate) struct Machine {
    dir: tempfile::TempDir,
    binds: Vec<PathBuf>,
}

/// Result of a boot.
pub(crate) struct Boot {
    /// The output of `cloud-init status`: done, error.
    pub(crate) status: String,
    /// The programs that were called, in order, with their arguments.
    pub(crate) calls: Vec<String>,
    /// The output.
    pub(crate) ran: Ran,
}

impl Boot {
    #[track_caller]
    pub(crate) fn is(&self, status: &str) -> &Self {
        assert_eq!(self.status, status, "{:?}\n{}", self.calls, self.ran.said());
        self
    }

    /// Returns the number of calls that begin with `call`.
    pub(crate) fn count(&self, call: &str) -> usize {
        let begins = |line: &&String| line.starts_with(call);
        self.calls.iter().filter(begins).count()
    }
}

impl Machine {
    pub(crate) fn new() -> Self {
        let machine = Machine {
            dir: tempfile::tempdir().unwrap(),
            binds: vec![packages(), FIXTURES.into()],
        };
        machine.write("etc/cloud/cloud.cfg", CLOUD_CFG);
        machine.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        machine.write("etc/group", "root:x:0:\n");
        machine.meta_data(&[]);
        machine.user_data("");
        machine.stands_in("systemctl", SYSTEMCTL_SCRIPT);
        for name in ["kubeadm", "nodepki", "journalctl", "sleep"] {
            machine.stands_in(name, "");
        }
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn user_data(&self, text: &str) {
        self.write("var/lib/cloud/seed/nocloud/user-data", text);
    }

    pub(crate) fn vendor_data(&self, text: &str) {
        self.write("var/lib/cloud/seed/nocloud/vendor-data", text);
    }

    /// Writes the metadata: instance id, host name `cp2`, and `more`.
    pub(crate) fn meta_data(&self, more: &[(&str, &str)]) {
        let mut text = "instance-id: i-1\nlocal-hostname: cp2\n".to_owned();
        for (key, value) in more {
            text.push_str(&format!("{key}: \"{value}\"\n"));
        }
        self.write("var/lib/cloud/seed/nocloud/meta-data", &text);
    }

    /// Installs a stand-in program that records its arguments and runs `does`, a shell script in which `$calls` is the
    /// number of calls so far.
    pub(crate) fn stands_in(&self, name: &str, does: &str) {
        let head =
            format!("#!/bin/sh\necho {name} \"$@\" >>/calls\ncalls=$(grep -c '^{name} ' /calls)\n");
        self.write(&format!("programs/{name}"), &format!("{head}{does}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(&format!("programs/{name}")), mode).unwrap();
    }

    /// Replaces the stand-in for nodepki by the real program.
    pub(crate) fn with_nodepki(mut self) -> Self {
        self.binds.push(NODEPKI.into());
        self.stands_in("nodepki", &format!("exec {NODEPKI} \"$@\""));
        self
    }

    /// Runs a command on the machine.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = A>) -> Ran {
        let mut unshare = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        unshare
            .args([
                "--mount",
                "--uts",
                "--ipc",
                "--pid",
                "--fork",
                "--propagation",
                "private",
            ])
            .arg(format!("{FIXTURES}/boot.sh"))
            .arg(self.root())
            .args(&self.binds)
            .arg("--")
            .args(command)
            .env("PYTHONPATH", packages())
            .env("PATH", "/programs:/usr/sbin:/usr/bin:/sbin:/bin")
            .env_remove("JOURNAL_STREAM");
        Ran::of(&mut unshare)
    }

    /// Boots the machine, up to the end of cloud-init's last stage.
    pub(crate) fn boot(&self) -> Boot {
        let stages = [
            "init --local",
            "init",
            "modules --mode=config",
            "modules --mode=final",
            "status",
        ];
        let _ = fs::remove_file(self.path("calls"));
        let program = format!("{FIXTURES}/cloud_init.py");
        let ran = self.run([PYTHON, &program].iter().chain(&stages));
        let status = ran
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("status: "))
            .next_back();
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        Boot {
            status: status.unwrap_or_default().to_owned(),
            calls: calls.lines().map(str::to_owned).collect(),
            ran,
        }
    }

    /// Runs the real nodepki on the machine's files.
    pub(crate) fn nodepki(&self, arguments: &[&str]) -> Ran {
        Ran::of(
            Command::new(NODEPKI)
                .arg("--root")
                .arg(self.root())
                .args(arguments),
        )
    }

    /// Asserts that other users cannot read nodepki's configuration.
    pub(crate) fn assert_secrets_are_private(&self) {
        for entry in walk(&self.path("etc/nodepki")) {
            let mode = entry.metadata().unwrap().permissions().mode();
            assert!(
                entry.is_dir() || mode & 0o777 == 0o600,
                "{}: {mode:o}",
                entry.display()
            );
        }
    }

    /// Returns path and content of every file below a directory.
    pub(crate) fn content(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found: Vec<_> = walk(&self.path(name))
            .into_iter()
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        found.sort();
        found
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}
