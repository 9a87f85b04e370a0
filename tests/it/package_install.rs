//! Installs, upgrades, removes and purges the packages in temporary roots with the real dpkg and rpm. `tests/run package`
//! runs these tests.
//!
//! A root is a small Debian under an overlay, so nothing is copied, and the upper directory shows what a package
//! changed. systemd does not run there: the tests on booted machines cover what the scripts do with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::packages::{directory, file, one_in, program, said};

const CONFIG: &str = "etc/nodepki/config.yaml";
const CHANGED_CONFIG: &str =
    "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nwait: 5m\n";
/// Settings that change nothing.
const COMMENTED_CONFIG: &str =
    "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n# By hand.\n";
/// The line that the next revision adds to the default configuration.
const ADDED_LINE: &str = "# More of the next revision.\n";
const UNITS: [&str; 13] = [
    "nodepki-bootstrap.service",
    "nodepki-renew.service",
    "nodepki-certs-expire.service",
    "nodepki-certs-expire.timer",
    "nodepki-crl.service",
    "nodepki-crl.timer",
    "nodepki-capi-check@.service",
    "nodepki-capi-secrets@.service",
    "nodepki-capi-secrets@.timer",
    "nodepki-capi-sync@.service",
    "nodepki-capi-sync@.timer",
    "nodepki-renew.timer",
    "nodepki.service",
];
/// Files of nodepki and of the administrator, which no package may remove.
const KEPT_FILES: [&str; 3] = [
    "etc/kubernetes/pki/apiserver.key",
    "etc/nodepki/config.d/site.yaml",
    "var/lib/kubelet/pki/kubelet-client-current.pem",
];
const PENDING_KEY: &str = "var/lib/nodepki/pending/apiserver/key.pem";

pub(crate) struct Root {
    dir: TempDir,
}

impl Root {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["upper", "work", "merged"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Root { dir }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join("upper").join(file)
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.path(file).symlink_metadata().is_ok()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs a shell script with the root mounted at `$root`.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> String {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache =
            cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
        let base = cache.join("nodepki-tests/trixie").canonicalize();
        let base = base.expect("the Debian of tests/servers/debian: run tests/run package");
        let setup = "cd \"$1\"
            mount -t overlay overlay -o \"lowerdir=$2,upperdir=upper,workdir=work\" merged
            root=$1/merged
            mount --bind /dev \"$root/dev\"
            mount -t proc proc \"$root/proc\"
            export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin\n";
        said(
            Command::new("unshare")
                .args([
                    "--mount",
                    "--pid",
                    "--fork",
                    "--propagation",
                    "private",
                    "sh",
                    "-euc",
                ])
                .arg(format!("{setup}{script}"))
                .arg("sh")
                .arg(self.dir.path())
                .arg(base)
                .env("HOME", "/root"),
        )
    }

    pub(crate) fn dpkg(&self, arguments: &str) -> String {
        // Debian's image excludes documentation; a real machine does not.
        self.run(&format!(
            "chroot \"$root\" dpkg --path-include='/usr/share/doc/*' {arguments} 2>&1"
        ))
    }

    fn rpm(&self, arguments: &str) -> String {
        self.run(&format!(
            "rpm --root \"$root\" --dbpath /var/lib/rpm {arguments} 2>&1"
        ))
    }

    /// Makes a package available in the root, and returns its path there.
    pub(crate) fn add_package(&self, package: &Path) -> String {
        let name = package.file_name().unwrap().to_string_lossy().into_owned();
        fs::create_dir_all(self.path("packages")).unwrap();
        fs::copy(package, self.path("packages").join(&name)).unwrap();
        format!("/packages/{name}")
    }

    fn put_in_use(&self) {
        self.run(
            "chroot \"$root\" systemctl enable nodepki-bootstrap.service nodepki-renew.timer nodepki-capi-check@prod.service 2>&1",
        );
        assert!(self.has("etc/systemd/system/multi-user.target.wants/nodepki-bootstrap.service"));
        for file in KEPT_FILES {
            self.write(file, COMMENTED_CONFIG);
        }
        self.write(PENDING_KEY, COMMENTED_CONFIG);
    }

    #[track_caller]
    fn assert_installed(&self) {
        let version = self.run("chroot \"$root\" nodepki --version");
        assert!(version.starts_with("nodepki "), "{version}");
        assert!(self.has(CONFIG) && self.path("etc/nodepki/config.d").is_dir());
        for unit in UNITS {
            assert!(
                self.has(&format!("usr/lib/systemd/system/{unit}")),
                "{unit}"
            );
        }
        for file in [
            "usr/lib/tmpfiles.d/nodepki.conf",
            "usr/lib/systemd/catalog/nodepki.catalog",
            "usr/share/man/man1/nodepki.1.gz",
            "usr/share/man/man1/nodepki-bootstrap.1.gz",
            "usr/share/bash-completion/completions/nodepki",
            "usr/share/fish/vendor_completions.d/nodepki.fish",
            "usr/share/doc/nodepki/README.md",
            "usr/share/doc/nodepki/docs/runbook.md",
            "usr/share/doc/nodepki/docs/signers/vault.md",
            "usr/share/doc/nodepki/sbom.cdx.json",
            "usr/share/doc/nodepki/examples/signers/vault.yaml",
            "usr/share/doc/nodepki/examples/exec-signer/signer.sh",
            "usr/share/doc/nodepki/examples/exec-signer/signer.py",
        ] {
            assert!(self.has(file), "{file}");
        }
        self.run("chroot \"$root\" nodepki config show >/dev/null");
        self.run("chroot \"$root\" nodepki status >/dev/null");
    }

    #[track_caller]
    fn assert_nothing_enabled(&self) {
        let links = self.links();
        assert!(links.is_empty(), "{links:?}");
    }

    /// Returns the links below /etc/systemd that lead to units of the package.
    fn links(&self) -> Vec<String> {
        let found = self.run("find \"$root/etc/systemd\" -name 'nodepki*'");
        found.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_removed(&self) {
        let left = self.run("find \"$root/usr\" -name '*nodepki*'");
        assert_eq!(left, "");
        for file in KEPT_FILES {
            assert_eq!(self.read(file), COMMENTED_CONFIG, "{file}");
        }
    }
}

/// Builds packages of the next revision from the same program, with another default configuration.
fn next_revision(format: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let sources = dir.path().join("sources");
    fs::create_dir(&sources).unwrap();
    said(
        Command::new("sh")
            .args([
                "-euc",
                "tar --exclude=./target --exclude=./.git -c . | tar -x -C \"$1\"",
                "sh",
            ])
            .arg(&sources)
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    let config = sources.join("packaging/config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + ADDED_LINE).unwrap();
    let out = dir.path().join("out");
    said(
        Command::new(sources.join("packaging/build"))
            .args(["--revision", "2", "--only", format, "--out"])
            .arg(&out)
            .arg("--binary")
            .arg(program()),
    );
    let package = one_in(&out, &format!(".{format}"));
    (dir, package)
}

#[test]
fn installs_and_removes_deb_without_touching_other_files() {
    let root = Root::new();
    let first = root.add_package(&file(".deb"));
    let (_next, next) = next_revision("deb");
    let next = root.add_package(&next);

    root.dpkg(&format!("--install {first}"));
    root.assert_installed();
    root.assert_nothing_enabled();
    assert_eq!(root.dpkg("--verify nodepki"), "");
    assert_eq!(root.dpkg("--audit"), "");

    // An unchanged configuration file is replaced by the new default.
    root.dpkg(&format!("--install {next}"));
    assert!(root.read(CONFIG).ends_with(ADDED_LINE));
    root.dpkg("--purge nodepki");
    assert!(!root.has(CONFIG));

    // A changed one is kept, without a question if the default is the same as before.
    root.dpkg(&format!("--install {first}"));
    root.write(CONFIG, CHANGED_CONFIG);
    root.put_in_use();
    root.dpkg(&format!("--install {first}"));
    assert_eq!(root.read(CONFIG), CHANGED_CONFIG);
    assert!(!root.has("etc/nodepki/config.yaml.dpkg-dist"));
    root.dpkg(&format!("--force-confdef --force-confold --install {next}"));
    assert_eq!(root.read(CONFIG), CHANGED_CONFIG);
    assert!(
        root.read("etc/nodepki/config.yaml.dpkg-dist")
            .ends_with(ADDED_LINE)
    );
    assert_eq!(root.links().len(), 3, "{:?}", root.links());
    let version = root.run("chroot \"$root\" dpkg-query -W -f '${Version}' nodepki");
    assert!(version.ends_with("-2"), "{version}");
    root.assert_installed();

    root.dpkg("--remove nodepki");
    root.assert_removed();
    assert_eq!(root.read(CONFIG), CHANGED_CONFIG);
    assert_eq!(root.read(PENDING_KEY), COMMENTED_CONFIG);

    root.dpkg("--purge nodepki");
    root.assert_removed();
    assert!(!root.has(CONFIG) && !root.has("var/lib/nodepki"));
    root.assert_nothing_enabled();
    let helper = root.run("find \"$root/var/lib/systemd\" -name '*nodepki*'");
    assert_eq!(helper, "");
}

#[test]
fn installs_and_removes_rpm_without_touching_other_files() {
    let root = Root::new();
    let first = file(".rpm").display().to_string();
    let (_next, next) = next_revision("rpm");
    let next = next.display().to_string();
    let requires = said(Command::new("rpm").args(["-qp", "--requires", &first]));
    let foreign: Vec<_> = requires
        .lines()
        .filter(|line| {
            !line.starts_with("rpmlib(") && !line.starts_with("config(") && *line != "/bin/sh"
        })
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");

    // rpm does not know that Debian's root has a /bin/sh.
    root.rpm(&format!("--nodeps --install {first}"));
    root.assert_installed();
    root.assert_nothing_enabled();
    assert_eq!(root.rpm("--verify --nodeps nodepki"), "");

    root.rpm(&format!("--nodeps --upgrade {next}"));
    assert!(root.read(CONFIG).ends_with(ADDED_LINE));
    root.rpm("--erase nodepki");
    assert!(!root.has(CONFIG));

    root.rpm(&format!("--nodeps --install {first}"));
    root.write(CONFIG, CHANGED_CONFIG);
    root.put_in_use();
    root.rpm(&format!("--nodeps --upgrade {next}"));
    assert_eq!(root.read(CONFIG), CHANGED_CONFIG);
    assert!(
        root.read("etc/nodepki/config.yaml.rpmnew")
            .ends_with(ADDED_LINE)
    );
    assert_eq!(root.links().len(), 3, "{:?}", root.links());
    assert_eq!(root.rpm("--query nodepki --queryformat '%{RELEASE}'"), "2");
    root.assert_installed();

    root.rpm("--erase nodepki");
    root.assert_removed();
    root.assert_nothing_enabled();
    assert!(!root.has(CONFIG));
    assert_eq!(root.read("etc/nodepki/config.yaml.rpmsave"), CHANGED_CONFIG);
    assert_eq!(root.read(PENDING_KEY), COMMENTED_CONFIG);
}

/// The tarball contains the same files as the packages.
#[test]
fn tarball_contains_the_files_of_the_packages() {
    let root = Root::new();
    let tarball = file(".tar.gz");
    root.run(&format!(
        "tar --extract --file '{}' --strip-components 1 --keep-directory-symlink -C \"$root\"",
        tarball.display()
    ));
    root.assert_installed();
    assert_eq!(
        fs::read(root.path("usr/bin/nodepki")).unwrap(),
        fs::read(program()).unwrap()
    );
}

/// Builds the packages again from a copy of the sources in another directory: path and time have no influence.
#[test]
fn builds_identical_packages_in_another_directory() {
    let out = tempfile::tempdir().unwrap();
    let epoch = said(
        Command::new("sh")
            .args(["-euc", "stat -c %Y \"$1\"", "sh"])
            .arg(program()),
    );
    said(
        Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/build"))
            .arg("--binary")
            .arg(program())
            .arg("--out")
            .arg(out.path())
            .env("SOURCE_DATE_EPOCH", epoch.trim())
            .env("TZ", "Asia/Tokyo"),
    );
    let sums = |dir: &Path| fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(out.path()), sums(&directory()));
}
