//! A machine in a directory that the real cloud-init boots, stage by stage, as often as one likes.
//!
//! In place of systemd, kubeadm and, unless told otherwise, nodepki stand programs that write down what they were called
//! with. Nothing of this machine can be written to.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::{NODEPKI, Ran};
use crate::servers::bin;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// The modules that the user data here use, in Debian's order. Those that set up a machine's disks and users are left out.
const CLOUD_CFG: &str = "\
datasource_list: [NoCloud]
cloud_init_modules: [bootcmd, write-files]
cloud_config_modules: [runcmd]
cloud_final_modules: [write-files-deferred, scripts-vendor, scripts-per-once, scripts-per-boot, scripts-user, final-message]
network: {config: disabled}
system_info: {distro: debian, paths: {cloud_dir: /var/lib/cloud/, templates_dir: /etc/cloud/templates/}}
";

/// The one that Debian's cloud-init runs with, and has its modules in.
const PYTHON: &str = "/usr/bin/python3";

/// What systemd makes of the unit, and `nodepki bootstrap` of its exit status.
const SYSTEMCTL: &str = r#"
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

/// `cloud-init` on this machine, for what changes nothing: once for each of the argument lists.
pub(super) fn cloud_init(runs: &[String]) -> Ran {
    Ran::of(
        Command::new(PYTHON)
            .arg(format!("{FIXTURES}/cloud_init.py"))
            .args(runs)
            .env("PYTHONPATH", packages()),
    )
}

/// See the module's page.
pub(super) struct Machine {
    dir: tempfile::TempDir,
    binds: Vec<PathBuf>,
}

/// How a boot ended.
pub(super) struct Boot {
    /// The output of `cloud-init status`: done, error.
    pub(super) status: String,
    /// The programs that were called, in order, with their arguments.
    pub(super) calls: Vec<String>,
    /// Everything that was printed.
    pub(super) ran: Ran,
}

impl Boot {
    #[track_caller]
    pub(super) fn is(&self, status: &str) -> &Self {
        assert_eq!(self.status, status, "{:?}\n{}", self.calls, self.ran.said());
        self
    }

    /// How often something was called with arguments that begin like this.
    pub(super) fn count(&self, call: &str) -> usize {
        let begins = |line: &&String| line.starts_with(call);
        self.calls.iter().filter(begins).count()
    }
}

impl Machine {
    pub(super) fn new() -> Self {
        let machine = Machine {
            dir: tempfile::tempdir().unwrap(),
            binds: vec![packages(), FIXTURES.into()],
        };
        machine.write("etc/cloud/cloud.cfg", CLOUD_CFG);
        machine.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        machine.write("etc/group", "root:x:0:\n");
        machine.meta_data(&[]);
        machine.user_data("");
        machine.stands_in("systemctl", SYSTEMCTL);
        for name in ["kubeadm", "nodepki", "journalctl", "sleep"] {
            machine.stands_in(name, "");
        }
        machine
    }

    pub(super) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(super) fn user_data(&self, text: &str) {
        self.write("var/lib/cloud/seed/nocloud/user-data", text);
    }

    pub(super) fn vendor_data(&self, text: &str) {
        self.write("var/lib/cloud/seed/nocloud/vendor-data", text);
    }

    /// In addition to instance id and host name `cp2`.
    pub(super) fn meta_data(&self, more: &[(&str, &str)]) {
        let mut text = "instance-id: i-1\nlocal-hostname: cp2\n".to_owned();
        for (key, value) in more {
            text.push_str(&format!("{key}: \"{value}\"\n"));
        }
        self.write("var/lib/cloud/seed/nocloud/meta-data", &text);
    }

    /// A program that writes down how it was called and does this, as a shell script; `$calls` is how often it was called.
    pub(super) fn stands_in(&self, name: &str, does: &str) {
        let head =
            format!("#!/bin/sh\necho {name} \"$@\" >>/calls\ncalls=$(grep -c '^{name} ' /calls)\n");
        self.write(&format!("programs/{name}"), &format!("{head}{does}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(&format!("programs/{name}")), mode).unwrap();
    }

    /// The real nodepki in place of the one that stands in for it.
    pub(super) fn with_nodepki(mut self) -> Self {
        self.binds.push(NODEPKI.into());
        self.stands_in("nodepki", &format!("exec {NODEPKI} \"$@\""));
        self
    }

    /// Runs a command inside.
    pub(super) fn run<A: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = A>) -> Ran {
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

    /// From power-on to the end of cloud-init's last stage.
    pub(super) fn boot(&self) -> Boot {
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

    /// The real nodepki, on what is there now.
    pub(super) fn nodepki(&self, arguments: &[&str]) -> Ran {
        Ran::of(
            Command::new(NODEPKI)
                .arg("--root")
                .arg(self.root())
                .args(arguments),
        )
    }

    /// No file of nodepki's configuration is open to others.
    pub(super) fn keeps_its_secrets(&self) {
        for entry in walk(&self.path("etc/nodepki")) {
            let mode = entry.metadata().unwrap().permissions().mode();
            assert!(
                entry.is_dir() || mode & 0o777 == 0o600,
                "{}: {mode:o}",
                entry.display()
            );
        }
    }

    /// Name and content of everything below a directory.
    pub(super) fn content(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
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
