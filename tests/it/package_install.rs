//! The packages in throw-away roots: installed, upgraded, removed, purged, by the real dpkg and rpm. `tests/run package`
//! runs these.
//!
//! A root is a small Debian under an overlay, so that nothing is copied and what a package did is what lies in the upper
//! directory. No systemd runs there: what the scripts do under one is for the machines that boot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::packages::{directory, file, one_in, program, said};

const CONFIG: &str = "etc/nodepki/config.yaml";
const OWN: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nwait: 5m\n";
/// Settings that change nothing.
const BY_HAND: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n# By hand.\n";
/// What the default configuration of the next revision says more.
const NEWS: &str = "# More of the next revision.\n";
const UNITS: [&str; 4] = [
    "nodepki-bootstrap.service",
    "nodepki-renew.service",
    "nodepki-renew.timer",
    "nodepki.service",
];
/// What nodepki and its administrator make, and what no package may ever take along.
const KEPT: [&str; 3] = [
    "etc/kubernetes/pki/apiserver.key",
    "etc/nodepki/config.d/site.yaml",
    "var/lib/kubelet/pki/kubelet-client-current.pem",
];
const STATE: &str = "var/lib/nodepki/pending/apiserver/key.pem";

struct Root {
    dir: TempDir,
}

impl Root {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["upper", "work", "merged"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Root { dir }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join("upper").join(file)
    }

    fn has(&self, file: &str) -> bool {
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

    /// A shell script with the root mounted at `$root`.
    #[track_caller]
    fn run(&self, script: &str) -> String {
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

    fn dpkg(&self, arguments: &str) -> String {
        // Debian's image leaves documentation out; a machine does not.
        self.run(&format!(
            "chroot \"$root\" dpkg --path-include='/usr/share/doc/*' {arguments} 2>&1"
        ))
    }

    fn rpm(&self, arguments: &str) -> String {
        self.run(&format!(
            "rpm --root \"$root\" --dbpath /var/lib/rpm {arguments} 2>&1"
        ))
    }

    /// Makes a package reachable inside.
    fn give(&self, package: &Path) -> String {
        let name = package.file_name().unwrap().to_string_lossy().into_owned();
        fs::create_dir_all(self.path("packages")).unwrap();
        fs::copy(package, self.path("packages").join(&name)).unwrap();
        format!("/packages/{name}")
    }

    fn in_use(&self) {
        self.run(
            "chroot \"$root\" systemctl enable nodepki-bootstrap.service nodepki-renew.timer 2>&1",
        );
        assert!(self.has("etc/systemd/system/multi-user.target.wants/nodepki-bootstrap.service"));
        for file in KEPT {
            self.write(file, BY_HAND);
        }
        self.write(STATE, BY_HAND);
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
            "usr/share/doc/nodepki/sbom.cdx.json",
            "usr/share/doc/nodepki/examples/signers/vault.yaml",
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

    /// Below /etc/systemd, to units of the package.
    fn links(&self) -> Vec<String> {
        let found = self.run("find \"$root/etc/systemd\" -name 'nodepki*'");
        found.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_removed(&self) {
        let left = self.run("find \"$root/usr\" -name '*nodepki*'");
        assert_eq!(left, "");
        for file in KEPT {
            assert_eq!(self.read(file), BY_HAND, "{file}");
        }
    }
}

/// Packages of the next revision, whose default configuration differs, made elsewhere from the same program.
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
    fs::write(&config, text + NEWS).unwrap();
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
fn a_deb_comes_and_goes_and_leaves_what_is_not_its_own() {
    let root = Root::new();
    let first = root.give(&file(".deb"));
    let (_next, next) = next_revision("deb");
    let next = root.give(&next);

    root.dpkg(&format!("--install {first}"));
    root.assert_installed();
    root.assert_nothing_enabled();
    assert_eq!(root.dpkg("--verify nodepki"), "");
    assert_eq!(root.dpkg("--audit"), "");

    // A default that nobody has changed follows the package.
    root.dpkg(&format!("--install {next}"));
    assert!(root.read(CONFIG).ends_with(NEWS));
    root.dpkg("--purge nodepki");
    assert!(!root.has(CONFIG));

    // One that somebody has changed stays, without a question where the package's own is the same as before.
    root.dpkg(&format!("--install {first}"));
    root.write(CONFIG, OWN);
    root.in_use();
    root.dpkg(&format!("--install {first}"));
    assert_eq!(root.read(CONFIG), OWN);
    assert!(!root.has("etc/nodepki/config.yaml.dpkg-dist"));
    root.dpkg(&format!("--force-confdef --force-confold --install {next}"));
    assert_eq!(root.read(CONFIG), OWN);
    assert!(
        root.read("etc/nodepki/config.yaml.dpkg-dist")
            .ends_with(NEWS)
    );
    assert_eq!(root.links().len(), 2, "{:?}", root.links());
    let version = root.run("chroot \"$root\" dpkg-query -W -f '${Version}' nodepki");
    assert!(version.ends_with("-2"), "{version}");
    root.assert_installed();

    root.dpkg("--remove nodepki");
    root.assert_removed();
    assert_eq!(root.read(CONFIG), OWN);
    assert_eq!(root.read(STATE), BY_HAND);

    root.dpkg("--purge nodepki");
    root.assert_removed();
    assert!(!root.has(CONFIG) && !root.has("var/lib/nodepki"));
    root.assert_nothing_enabled();
    let helper = root.run("find \"$root/var/lib/systemd\" -name '*nodepki*'");
    assert_eq!(helper, "");
}

#[test]
fn an_rpm_comes_and_goes_and_leaves_what_is_not_its_own() {
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

    // Debian's root has a /bin/sh that rpm knows nothing of.
    root.rpm(&format!("--nodeps --install {first}"));
    root.assert_installed();
    root.assert_nothing_enabled();
    assert_eq!(root.rpm("--verify --nodeps nodepki"), "");

    root.rpm(&format!("--nodeps --upgrade {next}"));
    assert!(root.read(CONFIG).ends_with(NEWS));
    root.rpm("--erase nodepki");
    assert!(!root.has(CONFIG));

    root.rpm(&format!("--nodeps --install {first}"));
    root.write(CONFIG, OWN);
    root.in_use();
    root.rpm(&format!("--nodeps --upgrade {next}"));
    assert_eq!(root.read(CONFIG), OWN);
    assert!(root.read("etc/nodepki/config.yaml.rpmnew").ends_with(NEWS));
    assert_eq!(root.links().len(), 2, "{:?}", root.links());
    assert_eq!(root.rpm("--query nodepki --queryformat '%{RELEASE}'"), "2");
    root.assert_installed();

    root.rpm("--erase nodepki");
    root.assert_removed();
    root.assert_nothing_enabled();
    assert!(!root.has(CONFIG));
    assert_eq!(root.read("etc/nodepki/config.yaml.rpmsave"), OWN);
    assert_eq!(root.read(STATE), BY_HAND);
}

/// For everything else: unpacked into a root, it is all there.
#[test]
fn the_tarball_is_what_the_packages_install() {
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

/// Packaged once more, from a copy of the sources in another directory: nothing of place or time gets in.
#[test]
fn the_same_program_gives_the_same_packages_elsewhere() {
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
