//! The store on a real full disk and a real read-only mount, and the child processes of its tests.
//!
//! A child is this test binary again, restricted to the "test" [`child_process`], with its action in the environment.
//! Mounts exist only in the mount namespace of the child.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nodepki::kube::names::CertName;
use nodepki::store::{Commit, Durability, ErrorClass, Mode, NodeRoot, StoreError};

use super::store::{CSR, KEY, PKI, leftovers, open, ticket};

use crate::time::{let_pass, patience};

/// This test binary as a child that performs the action `what` below `root`.
pub(crate) fn child(what: &str, root: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "store_system::child_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("NODEPKI_TEST_CHILD", what)
        .env("NODEPKI_TEST_ROOT", root)
        .env_remove("NODEPKI_FAILPOINT");
    command
}

/// The child in a new mount namespace, after a shell has run `mounts` there with the root as `$1`.
fn child_with_mounts(what: &str, root: &Path, mounts: &str) -> Output {
    let inner = child(what, root);
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args([
            "--propagation",
            "private",
            "sh",
            "-euc",
            &format!("{mounts}\nshift\nexec \"$@\""),
            "sh",
        ])
        .arg(root)
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().expect("this test needs unshare(1)")
}

pub(crate) fn assert_done(output: &Output) {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && text.contains("child is done"),
        "{}: {text}",
        output.status
    );
}

#[test]
fn child_process() {
    let (Ok(what), Ok(root)) = (
        std::env::var("NODEPKI_TEST_CHILD"),
        std::env::var("NODEPKI_TEST_ROOT"),
    ) else {
        return;
    };
    let root = Path::new(&root);
    match what.as_str() {
        "modes" => modes(root),
        "hold" => {
            let _lock = NodeRoot::open(root)
                .unwrap()
                .lock(std::time::Duration::ZERO, "nodepki hold")
                .unwrap();
            println!("\nholding");
            let_pass(patience());
        }
        "full-blocks" => full(root, |left| fill_blocks(root, left)),
        "full-inodes" => full(root, |left| fill_inodes(root, left)),
        "read-only-pki" => read_only_pki(root),
        "read-only-root" => read_only_root(root),
        #[cfg(feature = "failpoints")]
        other => super::store_crash::child(other, root),
        #[cfg(not(feature = "failpoints"))]
        other => panic!("{other}"),
    }
    println!("\nchild is done");
}

fn modes(root: &Path) {
    let umask = std::env::var("NODEPKI_TEST_UMASK")
        .unwrap()
        .parse()
        .unwrap();
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(umask));
    let (mut store, _) = open(&NodeRoot::open(root).unwrap()).unwrap();
    let mut commit = Commit::new();
    commit
        .file(format!("{PKI}/apiserver.key"), KEY.to_vec(), Mode::Private)
        .file(format!("{PKI}/apiserver.crt"), CSR.to_vec(), Mode::Public)
        .file(format!("{PKI}/sa.pub"), CSR.to_vec(), Mode::Other(0o640));
    store.commit(commit).unwrap();
    store
        .create_pending(
            CertName::Apiserver.into(),
            KEY,
            CSR,
            &ticket(),
            Durability::Cached,
        )
        .unwrap();
}

#[test]
fn changes_nothing_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    assert_done(&child_with_mounts(
        "full-blocks",
        dir.path(),
        "mount -t tmpfs -o size=128k tmpfs \"$1\"",
    ));
}

#[test]
fn changes_nothing_on_a_disk_without_inodes() {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1m,nr_inodes=64 tmpfs \"$1\"";
    assert_done(&child_with_mounts("full-inodes", dir.path(), mount));
}

/// Commits with increasing room until it succeeds, so the disk is full at each step once.
fn full(root: &Path, fill: impl Fn(u64)) {
    let names = [
        "apiserver.key",
        "apiserver.crt",
        "front-proxy-client.key",
        "etcd/server.key",
    ];
    let path = |name: &str| format!("{PKI}/{name}");
    let here = |name: &str| root.join(path(name).strip_prefix('/').unwrap());
    let (mut store, _) = open(&NodeRoot::open(root).unwrap()).unwrap();
    let wanted = |text: &str| {
        let mut commit = Commit::new();
        for name in names {
            commit.file(path(name), text.repeat(100).into_bytes(), Mode::Private);
        }
        commit
    };
    store.commit(wanted("old ")).unwrap();
    let mut failures = 0;
    for left in 0..64 {
        fill(left);
        let result = store.commit(wanted("new "));
        let preflight = store
            .root()
            .preflight(names.map(path).iter().map(|path| (Path::new(path), 400)), 0);
        let _ = fs::remove_dir_all(root.join("filler"));
        match result {
            Ok(done) => {
                assert_eq!(done.written.len(), names.len());
                break;
            }
            Err(error) => {
                failures += 1;
                assert!(
                    preflight.is_err(),
                    "{left} left: preflight found enough room, the commit did not"
                );
                assert_eq!(error.class(), ErrorClass::NoSpace, "{left} left: {error}");
                assert!(
                    matches!(error, StoreError::NotCommitted(_)),
                    "{left} left: {error}"
                );
                assert!(
                    error.to_string().contains("No space left on device"),
                    "{error}"
                );
                assert!(
                    error.to_string().ends_with("nothing was changed"),
                    "{error}"
                );
            }
        }
        for name in names {
            assert_eq!(
                fs::read_to_string(here(name)).unwrap(),
                "old ".repeat(100),
                "{left} left"
            );
        }
        assert_eq!(
            leftovers(root),
            Vec::<std::path::PathBuf>::new(),
            "{left} left"
        );
    }
    assert!(failures >= 5, "only {failures} steps found the disk full");
    for name in names {
        assert_eq!(fs::read_to_string(here(name)).unwrap(), "new ".repeat(100));
    }
}

fn fill_blocks(root: &Path, left: u64) {
    fs::create_dir(root.join("filler")).unwrap();
    let free = nix::sys::statvfs::statvfs(root).unwrap().blocks_available();
    let bytes = free.saturating_sub(left) * 4096;
    fs::write(
        root.join("filler/file"),
        vec![0; usize::try_from(bytes).unwrap()],
    )
    .unwrap();
}

fn fill_inodes(root: &Path, left: u64) {
    fs::create_dir(root.join("filler")).unwrap();
    let free = nix::sys::statvfs::statvfs(root).unwrap().files_available();
    for number in 0..free.saturating_sub(left) {
        fs::write(root.join(format!("filler/{number}")), "").unwrap();
    }
}

#[test]
fn changes_nothing_in_a_read_only_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc/kubernetes/pki")).unwrap();
    fs::write(dir.path().join("etc/kubernetes/pki/apiserver.key"), "old").unwrap();
    let mounts = "mount --bind \"$1/etc/kubernetes\" \"$1/etc/kubernetes\"\n\
                  mount -o remount,bind,ro \"$1/etc/kubernetes\"";
    assert_done(&child_with_mounts("read-only-pki", dir.path(), mounts));
    assert_eq!(leftovers(dir.path()), Vec::<std::path::PathBuf>::new());
}

fn read_only_pki(root: &Path) {
    let (mut store, _) = open(&NodeRoot::open(root).unwrap()).unwrap();
    let path = format!("{PKI}/apiserver.key");
    let errors = store
        .root()
        .preflight([(Path::new(&path), 3)], 0)
        .unwrap_err();
    assert_eq!(errors[0].class(), ErrorClass::ReadOnly, "{errors:?}");
    let mut commit = Commit::new();
    commit
        .file("/etc/other.conf", b"new".to_vec(), Mode::Private)
        .file(&path, b"new".to_vec(), Mode::Private);
    let error = store.commit(commit).unwrap_err();
    assert_eq!(error.class(), ErrorClass::ReadOnly);
    assert!(
        error
            .to_string()
            .contains("apiserver.key: the file system is read-only; mount it read-write"),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("nothing was changed"),
        "{error}"
    );
    assert!(!root.join("etc/other.conf").exists());
    assert_eq!(leftovers(root), Vec::<std::path::PathBuf>::new());
}

#[test]
fn reads_but_does_not_lock_a_read_only_root() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc")).unwrap();
    fs::write(dir.path().join("etc/file"), "text").unwrap();
    let mounts = "mount --bind \"$1\" \"$1\"\nmount -o remount,bind,ro \"$1\"";
    assert_done(&child_with_mounts("read-only-root", dir.path(), mounts));
}

fn read_only_root(root: &Path) {
    let root = NodeRoot::open(root).unwrap();
    assert_eq!(
        root.read("/etc/file").unwrap().unwrap().bytes.as_slice(),
        b"text"
    );
    assert!(root.issued().unwrap().is_empty());
    assert!(root.tickets().unwrap().is_empty());
    let error = open(&root).unwrap_err();
    assert_eq!(error.class(), ErrorClass::ReadOnly, "{error}");
    let errors = root.preflight([], 0).unwrap_err();
    assert_eq!(errors[0].class(), ErrorClass::ReadOnly);
}
