//! The public behaviour of the store: what it writes, keeps, refuses and records.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepki::kube::names::CertName;
use nodepki::store::{
    Commit, Committed, Durability, ErrorClass, FileKind, IssuedRecord, LastError, Mode, NodeRoot,
    PathObstacle, Recovery, RequestPhase, RequestRecord, Slot, Store, StoreError, StoreNote,
};
use tempfile::TempDir;
use time::OffsetDateTime;
use time::macros::datetime;

pub(crate) const NOW: OffsetDateTime = datetime!(2026-03-04 05:06:07 UTC);
pub(crate) const PKI: &str = "/etc/kubernetes/pki";

/// A temporary root, in memory if the machine has a tmpfs.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            TempDir::new_in(memory)
        } else {
            TempDir::new()
        };
        Fixture { dir: dir.unwrap() }
    }

    pub(crate) fn on_disk() -> Fixture {
        Fixture {
            dir: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn root(&self) -> NodeRoot {
        NodeRoot::open(self.dir.path()).unwrap()
    }

    pub(crate) fn store(&self) -> Store {
        self.recover().0
    }

    pub(crate) fn recover(&self) -> (Store, Recovery) {
        open(&self.root()).unwrap()
    }

    pub(crate) fn path(&self, on_node: impl AsRef<Path>) -> PathBuf {
        self.dir
            .path()
            .join(on_node.as_ref().strip_prefix("/").unwrap())
    }

    pub(crate) fn write(&self, on_node: impl AsRef<Path>, text: &str, mode: u32) {
        let path = self.path(on_node);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn text(&self, on_node: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path(on_node)).unwrap()
    }

    pub(crate) fn mode(&self, on_node: impl AsRef<Path>) -> u32 {
        fs::metadata(self.path(on_node)).unwrap().mode() & 0o7777
    }
}

pub(crate) fn open(root: &NodeRoot) -> Result<(Store, Recovery), StoreError> {
    root.lock(Duration::ZERO, "nodepki test")?.recover(NOW)
}

fn commit(store: &mut Store, files: &[(&str, &str, Mode)]) -> Result<Committed, StoreError> {
    let mut commit = Commit::new();
    for (path, text, mode) in files {
        commit.file(*path, text.as_bytes().to_vec(), *mode);
    }
    store.commit(commit)
}

fn refusal(error: &StoreError) -> &PathObstacle {
    match error {
        StoreError::NotCommitted(inner) | StoreError::Unfinished(inner) => refusal(inner),
        StoreError::Unsafe { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn sets_modes_of_new_files_whatever_the_umask_is() {
    for umask in [0o000, 0o022, 0o027, 0o077] {
        let fixture = Fixture::new();
        let output = super::store_system::child("modes", fixture.dir.path())
            .env("NODEPKI_TEST_UMASK", umask.to_string())
            .output()
            .unwrap();
        super::store_system::assert_done(&output);
        assert_eq!(
            fixture.mode("/etc/kubernetes/pki/apiserver.key"),
            0o600,
            "umask {umask:04o}"
        );
        assert_eq!(
            fixture.mode("/etc/kubernetes/pki/apiserver.crt"),
            0o644,
            "umask {umask:04o}"
        );
        assert_eq!(
            fixture.mode("/etc/kubernetes/pki/sa.pub"),
            0o640,
            "umask {umask:04o}"
        );
        assert_eq!(
            fixture.mode("/etc/kubernetes/pki"),
            0o755,
            "umask {umask:04o}"
        );
        assert_eq!(fixture.mode("/var/lib/nodepki"), 0o700, "umask {umask:04o}");
        assert_eq!(
            fixture.mode("/var/lib/nodepki/pending/apiserver"),
            0o700,
            "umask {umask:04o}"
        );
        assert_eq!(
            fixture.mode("/var/lib/nodepki/pending/apiserver/key.pem"),
            0o600,
            "umask {umask:04o}"
        );
    }
}

const CURRENT_LINK: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
const DATED_FILE: &str = "kubelet-client-2026-03-04-05-06-07.pem";

#[test]
fn creates_replaces_and_keeps_symbolic_link() {
    let fixture = Fixture::new();
    let beside = Path::new(CURRENT_LINK).with_file_name(DATED_FILE);
    let put = |target: &str| {
        let mut commit = Commit::new();
        commit
            .link(CURRENT_LINK, target)
            .file(&beside, b"new".to_vec(), Mode::Private);
        fixture.store().commit(commit).unwrap()
    };
    // The target of the link is written first.
    let current = PathBuf::from(CURRENT_LINK);
    assert_eq!(put(DATED_FILE).written, [beside.clone(), current.clone()]);
    assert_eq!(fixture.text(CURRENT_LINK), "new");
    assert_eq!(
        fixture.root().link(CURRENT_LINK).unwrap().as_deref(),
        Some(Path::new(DATED_FILE))
    );
    assert_eq!(fixture.root().link(&beside).unwrap(), None);
    assert_eq!(fixture.root().link("/var/lib/none/such").unwrap(), None);
    assert_eq!(put(DATED_FILE).written, Vec::<PathBuf>::new());

    // A dangling link, or one that leads out of the root.
    for old in ["gone.pem", "/etc/shadow"] {
        fs::remove_file(fixture.path(CURRENT_LINK)).unwrap();
        symlink(old, fixture.path(CURRENT_LINK)).unwrap();
        assert_eq!(put(DATED_FILE).written, std::slice::from_ref(&current));
        assert_eq!(fixture.text(CURRENT_LINK), "new");
    }
    assert!(leftovers(fixture.dir.path()).is_empty());
}

#[test]
fn replaces_file_by_link_only_if_its_state_was_recorded() {
    let fixture = Fixture::new();
    fixture.write(CURRENT_LINK, "a key", 0o600);
    let refused = |commit: Commit| {
        let error = fixture.store().commit(commit).unwrap_err();
        assert_eq!(fixture.text(CURRENT_LINK), "a key");
        error
    };
    let mut commit = Commit::new();
    commit.link(CURRENT_LINK, DATED_FILE);
    assert!(matches!(refusal(&refused(commit)), PathObstacle::Differs));
    let mut commit = Commit::new();
    commit.link_over(CURRENT_LINK, DATED_FILE, b"another");
    assert!(matches!(refusal(&refused(commit)), PathObstacle::Changed));
    for elsewhere in ["../x.pem", "/x.pem", "", "..", "a/b"] {
        let mut commit = Commit::new();
        commit.link_over(CURRENT_LINK, elsewhere, b"a key");
        let error = refused(commit).to_string();
        assert!(error.contains("the name of one file"), "{error}");
    }
    let mut commit = Commit::new();
    commit.link_over(CURRENT_LINK, DATED_FILE, b"a key").file(
        Path::new(CURRENT_LINK).with_file_name(DATED_FILE),
        b"a key".to_vec(),
        Mode::Private,
    );
    fixture.store().commit(commit).unwrap();
    assert_eq!(fixture.text(CURRENT_LINK), "a key");
    assert!(fixture.root().link(CURRENT_LINK).unwrap().is_some());

    let fixture = Fixture::new();
    fs::create_dir_all(fixture.path(CURRENT_LINK)).unwrap();
    let mut commit = Commit::new();
    commit.link(CURRENT_LINK, DATED_FILE);
    let error = fixture.store().commit(commit).unwrap_err();
    assert!(matches!(refusal(&error), PathObstacle::Directory));
}

#[test]
fn touches_nothing_when_committing_the_same_bytes_again() {
    let fixture = Fixture::new();
    let mut store = fixture.store();
    let files = [
        ("/etc/kubernetes/pki/apiserver.key", "key", Mode::Private),
        ("/etc/kubernetes/pki/apiserver.crt", "crt", Mode::Public),
        ("/etc/kubernetes/admin.conf", "conf", Mode::Private),
    ];
    let first = commit(&mut store, &files).unwrap();
    assert_eq!(first.written.len(), 3);
    let stamp = |path: &str| {
        let found = fs::metadata(fixture.path(path)).unwrap();
        (
            found.ino(),
            found.mtime(),
            found.mtime_nsec(),
            found.ctime_nsec(),
        )
    };
    let before: Vec<_> = files.iter().map(|(path, ..)| stamp(path)).collect();
    let second = commit(&mut store, &files).unwrap();
    assert_eq!((second.written.len(), second.unchanged.len()), (0, 3));
    assert_eq!(
        before,
        files
            .iter()
            .map(|(path, ..)| stamp(path))
            .collect::<Vec<_>>()
    );
    assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn keeps_owner_group_mode_and_attributes_of_replaced_file() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "run the tests as root: files are given to other users"
    );
    for fixture in [Fixture::new(), Fixture::on_disk()] {
        let key = "/etc/kubernetes/pki/sa.key";
        fixture.write(key, "old", 0o640);
        std::os::unix::fs::chown(fixture.path(key), Some(1234), Some(4321)).unwrap();
        let labels = [
            (
                "security.selinux",
                b"system_u:object_r:kubernetes_file_t:s0\0".as_slice(),
            ),
            ("user.note", b"kept"),
            ("trusted.note", b"kept as well"),
            ("user.large", &[b'x'; 2000]),
        ];
        let mut set = Vec::new();
        for (name, value) in labels {
            match rustix::fs::setxattr(
                fixture.path(key),
                name,
                value,
                rustix::fs::XattrFlags::empty(),
            ) {
                Ok(()) => set.push((name, value)),
                Err(errno) => assert_eq!(errno, rustix::io::Errno::OPNOTSUPP, "{name}"),
            }
        }
        assert!(
            !set.is_empty(),
            "{} does not support extended attributes",
            fixture.dir.path().display()
        );
        let done = commit(&mut fixture.store(), &[(key, "new", Mode::Private)]).unwrap();
        assert_eq!(done.notes, []);
        let found = fs::metadata(fixture.path(key)).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode() & 0o7777),
            (1234, 4321, 0o640)
        );
        assert_eq!(fixture.text(key), "new");
        for (name, value) in set {
            let mut is = vec![0; 4096];
            let length = rustix::fs::getxattr(fixture.path(key), name, &mut is[..]).unwrap();
            assert_eq!(&is[..length], value, "{name}");
        }
    }
}

#[test]
fn gives_key_to_configured_group() {
    let fixture = Fixture::new();
    let [new, same, old] = ["new", "same", "old"].map(|name| format!("{PKI}/{name}.key"));
    fixture.write(&same, "same", 0o600);
    fixture.write(&old, "old", 0o444);
    std::os::unix::fs::chown(fixture.path(&old), Some(1234), None).unwrap();
    let files = [(&*new, "new"), (&*same, "same"), (&*old, "new")];
    let files = files.map(|(path, text)| (path, text, Mode::GroupPrivate(4321)));
    let done = commit(&mut fixture.store(), &files).unwrap();
    for (path, owner, mode) in [(&new, 0, 0o640), (&same, 0, 0o640), (&old, 1234, 0o440)] {
        let found = fs::metadata(fixture.path(path)).unwrap();
        let found = (found.uid(), found.gid(), found.mode() & 0o7777);
        assert_eq!(found, (owner, 4321, mode), "{path}");
    }
    let notes: Vec<String> = done.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].ends_with("old.key had mode 0444, now 0440"),
        "{notes:?}"
    );
    assert_eq!(
        commit(&mut fixture.store(), &files).unwrap().written,
        [""; 0].map(PathBuf::from)
    );
}

#[test]
fn tightens_private_file_that_everybody_can_read() {
    let fixture = Fixture::new();
    let key = "/etc/kubernetes/pki/apiserver.key";
    let conf = "/etc/kubernetes/admin.conf";
    let shared = "/etc/kubernetes/pki/sa.key";
    fixture.write(key, "old", 0o644);
    fixture.write(conf, "same", 0o666);
    fixture.write(shared, "old", 0o644);
    std::os::unix::fs::chown(fixture.path(shared), None, Some(4321)).unwrap();
    let files = [
        (key, "new", Mode::Private),
        (conf, "same", Mode::Private),
        (shared, "new", Mode::Private),
    ];
    let done = commit(&mut fixture.store(), &files).unwrap();
    assert_eq!(fixture.mode(key), 0o600);
    assert_eq!(fixture.mode(conf), 0o600, "same bytes, wrong mode");
    assert_eq!(
        fixture.mode(shared),
        0o640,
        "the owning group keeps its access"
    );
    assert_eq!(done.notes.len(), 3);
    assert!(
        done.notes[0]
            .to_string()
            .ends_with("apiserver.key had mode 0644, now 0600"),
        "{}",
        done.notes[0]
    );
}

#[test]
fn keeps_mode_that_cluster_api_set() {
    let fixture = Fixture::new();
    let ca = "/etc/kubernetes/pki/ca.crt";
    fixture.write(ca, "old", 0o640);
    commit(&mut fixture.store(), &[(ca, "new", Mode::Public)]).unwrap();
    assert_eq!(fixture.mode(ca), 0o640);
}

#[test]
fn treats_empty_file_of_the_kubelet_as_absent() {
    let fixture = Fixture::new();
    let conf = "/etc/kubernetes/scheduler.conf";
    fixture.write(conf, "", 0o644);
    let mut wanted = Commit::new();
    wanted.file_if_absent(conf, b"conf".to_vec(), Mode::Private);
    let done = fixture.store().commit(wanted).unwrap();
    assert_eq!(done.written, [PathBuf::from(conf)]);
    assert_eq!(
        (fixture.text(conf).as_str(), fixture.mode(conf)),
        ("conf", 0o600)
    );
}

#[test]
fn refuses_to_overwrite_shared_file_with_other_contents() {
    let fixture = Fixture::new();
    let key = "/etc/kubernetes/pki/sa.key";
    fixture.write(key, "of the other nodes", 0o600);
    let mut store = fixture.store();
    let mut wanted = Commit::new();
    wanted
        .file(
            "/etc/kubernetes/pki/apiserver.crt",
            b"crt".to_vec(),
            Mode::Public,
        )
        .file_if_absent(key, b"mine".to_vec(), Mode::Private);
    let error = store.commit(wanted).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsafe);
    assert!(
        error
            .to_string()
            .contains("sa.key exists with other contents"),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("nothing was changed"),
        "{error}"
    );
    assert_eq!(fixture.text(key), "of the other nodes");
    assert!(!fixture.path("/etc/kubernetes/pki/apiserver.crt").exists());
    let mut same = Commit::new();
    same.file_if_absent(key, b"of the other nodes".to_vec(), Mode::Private);
    assert_eq!(store.commit(same).unwrap().unchanged, [PathBuf::from(key)]);
}

#[test]
fn refuses_to_replace_anything_but_regular_files() {
    let fixture = Fixture::new();
    let mut store = fixture.store();
    let pki = fixture.path(PKI);
    fs::create_dir_all(&pki).unwrap();
    let secret = fixture.path("/secret");
    fs::write(&secret, "elsewhere").unwrap();
    symlink("/secret", pki.join("link.key")).unwrap();
    symlink("/nowhere", pki.join("dangling.key")).unwrap();
    fs::create_dir(pki.join("directory.key")).unwrap();
    nix::unistd::mkfifo(&pki.join("pipe.key"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(pki.join("socket.key")).unwrap();
    nix::sys::stat::mknod(
        &pki.join("device.key"),
        nix::sys::stat::SFlag::S_IFCHR,
        nix::sys::stat::Mode::S_IRWXU,
        nix::libc::makedev(1, 3),
    )
    .unwrap();
    fs::write(pki.join("file.key"), "not a directory").unwrap();
    let nowhere = fixture.path("/nowhere");
    let [to_secret, to_nowhere] =
        [&secret, &nowhere].map(|target| format!("is a symbolic link to {}", target.display()));
    for (name, obstacle, words) in [
        (
            "link.key",
            PathObstacle::Symlink(secret.clone()),
            to_secret.as_str(),
        ),
        (
            "dangling.key",
            PathObstacle::Symlink(nowhere.clone()),
            to_nowhere.as_str(),
        ),
        (
            "directory.key",
            PathObstacle::Directory,
            "remove it with rmdir and run again",
        ),
        (
            "pipe.key",
            PathObstacle::Fifo,
            "is a named pipe, not a file; remove it and run again",
        ),
        (
            "socket.key",
            PathObstacle::Socket,
            "is a socket, not a file; remove it and run again",
        ),
        ("device.key", PathObstacle::Device, "is a device node"),
        (
            "file.key/x.key",
            PathObstacle::NotADirectory,
            "file.key is not a directory",
        ),
    ] {
        let path = format!("{PKI}/{name}");
        let before = leftovers(fixture.dir.path());
        let error = commit(
            &mut store,
            &[
                ("/etc/kubernetes/admin.conf", "conf", Mode::Private),
                (&path, "key", Mode::Private),
            ],
        )
        .unwrap_err();
        assert_eq!(refusal(&error), &obstacle, "{name}");
        assert_eq!(error.class(), ErrorClass::Unsafe);
        assert!(error.to_string().contains(words), "{error}");
        assert!(
            error
                .to_string()
                .contains(fixture.path(PKI).to_str().unwrap()),
            "{error}"
        );
        assert!(
            !fixture.path("/etc/kubernetes/admin.conf").exists(),
            "{name}: a part was committed"
        );
        assert_eq!(leftovers(fixture.dir.path()), before, "{name}");
        let errors = fixture
            .root()
            .preflight([(Path::new(&path), 100)], 0)
            .unwrap_err();
        assert_eq!(
            refusal(&errors[0]),
            &obstacle,
            "{name}: found before a request is sent"
        );
    }
    assert_eq!(fs::read_to_string(secret).unwrap(), "elsewhere");
}

#[test]
fn refuses_to_read_anything_but_regular_files() {
    let fixture = Fixture::new();
    let root = fixture.root();
    fs::create_dir_all(fixture.path("/etc/kubernetes/scheduler.conf")).unwrap();
    nix::unistd::mkfifo(&fixture.path("/etc/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("loop", fixture.path("/etc/loop")).unwrap();
    fixture.write("/etc/large", &"x".repeat(1024 * 1024 + 1), 0o600);
    fixture.write("/etc/file", "x", 0o600);
    for (path, words) in [
        (
            "/etc/kubernetes/scheduler.conf",
            "a container runtime creates one if a hostPath file is missing",
        ),
        ("/etc/pipe", "is a named pipe"),
        ("/etc/loop", "too many symbolic links"),
        (
            "/etc/large",
            "has 1048577 bytes, more than the limit of 1048576; put the right file in its place",
        ),
        ("/etc/file/below", "/etc/file is not a directory"),
    ] {
        let error = root.read(path).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unsafe, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let relative = root.preflight([(Path::new("etc/file"), 1)], 0).unwrap_err();
    assert_eq!(
        relative[0].to_string(),
        "\"etc/file\" cannot be used as the absolute path of a file"
    );
    assert!(root.read("/etc/nothing/there").unwrap().is_none());
    assert!(root.metadata("/etc/nothing/there").unwrap().is_none());
    assert!(root.list("/etc/nothing").unwrap().is_none());
    assert_eq!(
        root.metadata("/etc/loop").unwrap().unwrap().kind,
        FileKind::Symlink
    );
    assert_eq!(
        root.list("/etc").unwrap().unwrap(),
        ["file", "kubernetes", "large", "loop", "pipe"]
    );
    assert!(
        !fixture.path("/var").exists(),
        "reading creates no state directory"
    );
}

#[test]
fn resolves_every_path_below_the_root() {
    let fixture = Fixture::new();
    fixture.write("/etc/passwd", "of the node", 0o644);
    fs::create_dir_all(fixture.path("/etc/kubernetes")).unwrap();
    symlink("/etc/passwd", fixture.path("/etc/kubernetes/absolute")).unwrap();
    symlink(
        "../../../../../../../../etc/passwd",
        fixture.path("/etc/kubernetes/relative"),
    )
    .unwrap();
    symlink("/data/pki", fixture.path("/etc/kubernetes/pki")).unwrap();
    symlink(
        "/proc/self/root/etc/passwd",
        fixture.path("/etc/kubernetes/magic"),
    )
    .unwrap();
    let root = fixture.root();
    for path in [
        "/etc/kubernetes/absolute",
        "/etc/kubernetes/relative",
        "/../../../../../../../../etc/passwd",
        "/etc/kubernetes/../../../../../../etc/passwd",
    ] {
        assert_eq!(
            root.read(path).unwrap().unwrap().bytes.as_slice(),
            b"of the node",
            "{path}"
        );
    }
    assert!(root.read("/etc/kubernetes/magic").unwrap().is_none());
    // A directory may be a link inside the root, once its target exists.
    let key = "/etc/kubernetes/pki/apiserver.key";
    let mut store = fixture.store();
    let error = commit(&mut store, &[(key, "key", Mode::Private)]).unwrap_err();
    assert_eq!(refusal(&error), &PathObstacle::Dangling);
    fs::create_dir_all(fixture.path("/data/pki")).unwrap();
    commit(&mut store, &[(key, "key", Mode::Private)]).unwrap();
    assert_eq!(fixture.text("/data/pki/apiserver.key"), "key");
    commit(
        &mut store,
        &[(
            "/../../../../../../../../tmp-of-the-node/x",
            "x",
            Mode::Public,
        )],
    )
    .unwrap();
    assert_eq!(fixture.text("/tmp-of-the-node/x"), "x");
    // One commit cannot write a file under two paths.
    let twice = [
        ("/data/pki/x", "x", Mode::Public),
        ("/etc/kubernetes/pki/x", "y", Mode::Public),
    ];
    assert_eq!(
        commit(&mut store, &twice).unwrap_err().class(),
        ErrorClass::Path
    );
    for path in ["relative/x.key", "/", "/etc/..", ""] {
        let error = commit(&mut store, &[(path, "x", Mode::Public)]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Path, "{path}");
    }
}

#[test]
fn accepts_the_root_of_the_machine() {
    let fixture = Fixture::new();
    fixture.write("/file", "here", 0o600);
    let root = NodeRoot::open("/").unwrap();
    assert_eq!(
        root.read(fixture.path("/file"))
            .unwrap()
            .unwrap()
            .bytes
            .as_slice(),
        b"here"
    );
    assert_eq!(
        root.on_this_machine("/etc/kubernetes"),
        Path::new("/etc/kubernetes")
    );
    assert_eq!(
        NodeRoot::open(fixture.path("/file")).unwrap_err().class(),
        ErrorClass::Unsafe
    );
}

#[test]
fn names_immutable_file_or_directory() {
    for fixture in [Fixture::on_disk(), Fixture::new()] {
        let key = "/etc/kubernetes/pki/apiserver.key";
        fixture.write(key, "old", 0o600);
        for target in [fixture.path(key), fixture.path(PKI)] {
            let mut store = fixture.store();
            let guard = Immutable::set(&target);
            let error = commit(&mut store, &[(key, "new", Mode::Private)]).unwrap_err();
            assert_eq!(refusal(&error), &PathObstacle::Immutable);
            assert!(
                error
                    .to_string()
                    .contains(&format!("{} is immutable", target.display())),
                "{error}"
            );
            assert!(error.to_string().contains("chattr -i"), "{error}");
            let errors = fixture
                .root()
                .preflight([(Path::new(key), 3)], 0)
                .unwrap_err();
            assert_eq!(refusal(&errors[0]), &PathObstacle::Immutable);
            drop(guard);
            assert_eq!(fixture.text(key), "old");
        }
        let mut store = fixture.store();
        let guard = Immutable::set(&fixture.path(key));
        commit(&mut store, &[(key, "old", Mode::Private)])
            .expect("a commit without changes is not refused");
        drop(guard);
    }
}

struct Immutable(PathBuf);

impl Immutable {
    fn set(path: &Path) -> Immutable {
        let flags = |path: &Path, on: bool| {
            let file = fs::File::open(path).unwrap();
            let mut flags = rustix::fs::ioctl_getflags(&file)
                .expect("this test needs a file system with chattr(1)");
            flags.set(rustix::fs::IFlags::IMMUTABLE, on);
            rustix::fs::ioctl_setflags(&file, flags)
                .expect("this test needs CAP_LINUX_IMMUTABLE: run it as root");
        };
        flags(path, true);
        Immutable(path.to_owned())
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        let file = fs::File::open(&self.0).unwrap();
        let mut flags = rustix::fs::ioctl_getflags(&file).unwrap();
        flags.remove(rustix::fs::IFlags::IMMUTABLE);
        rustix::fs::ioctl_setflags(&file, flags).unwrap();
    }
}

#[test]
fn keeps_contents_of_hard_link_and_mentions_it() {
    let fixture = Fixture::new();
    let key = "/etc/kubernetes/pki/apiserver.key";
    fixture.write(key, "old", 0o600);
    fs::hard_link(fixture.path(key), fixture.path("/backup.key")).unwrap();
    let done = commit(&mut fixture.store(), &[(key, "new", Mode::Private)]).unwrap();
    assert!(
        matches!(done.notes[..], [StoreNote::HardLinked { links: 2, .. }]),
        "{:?}",
        done.notes
    );
    let note = done.notes[0].to_string();
    assert!(
        note.ends_with("apiserver.key had 2 hard links; the other names keep the old contents"),
        "{note}"
    );
    assert_eq!(
        (fixture.text(key), fixture.text("/backup.key")),
        ("new".to_owned(), "old".to_owned())
    );
}

#[test]
fn removes_file_only_in_its_recorded_state() {
    let fixture = Fixture::on_disk();
    let key = format!("{PKI}/ca.key");
    let remove = |contents: &str| {
        let mut commit = Commit::new();
        commit.remove(&key, contents.as_bytes()).file(
            format!("{PKI}/new"),
            b"new".to_vec(),
            Mode::Public,
        );
        fixture.store().commit(commit)
    };
    fixture.write(&key, "a key", 0o600);
    let error = remove("another").unwrap_err();
    assert_eq!(*refusal(&error), PathObstacle::Changed);
    assert!(
        error.to_string().contains("ca.key has changed since"),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("; nothing was changed"),
        "{error}"
    );
    assert!(!fixture.path(format!("{PKI}/new")).exists());

    fs::hard_link(fixture.path(&key), fixture.path("/copy")).unwrap();
    let done = remove("a key").unwrap();
    assert_eq!(done.removed, [PathBuf::from(&key)]);
    assert!(
        matches!(done.notes[..], [StoreNote::HardLinked { links: 2, .. }]),
        "{done:?}"
    );
    assert!(!fixture.path(&key).exists());
    assert_eq!(fixture.text(format!("{PKI}/new")), "new");
    assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());

    let again = remove("a key").unwrap();
    assert!(
        again.removed.is_empty() && again.written.is_empty(),
        "{again:?}"
    );

    symlink("elsewhere", fixture.path(&key)).unwrap();
    let error = remove("a key").unwrap_err();
    assert!(
        matches!(refusal(&error), PathObstacle::Symlink(_)),
        "{error}"
    );
    assert!(fixture.path(&key).symlink_metadata().is_ok());
}

#[test]
fn refuses_to_overwrite_when_creating_a_new_file() {
    let fixture = Fixture::on_disk();
    let dir = fixture.root().create_dir("/backup", 0o700).unwrap();
    dir.write_new("keys", b"first").unwrap();
    assert_eq!(
        (
            fixture.text("/backup/keys").as_str(),
            fixture.mode("/backup/keys")
        ),
        ("first", 0o600)
    );
    symlink("nowhere", fixture.path("/backup/link")).unwrap();
    for name in ["keys", "link"] {
        let error = dir.write_new(name, b"second").unwrap_err();
        assert_eq!(*refusal(&error), PathObstacle::Differs, "{error}");
    }
    assert_eq!(fixture.text("/backup/keys"), "first");
    assert!(!fixture.path("/backup/nowhere").exists());
    assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn waits_for_the_lock_and_then_names_its_holder() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let first = root.lock(Duration::ZERO, "nodepki bootstrap").unwrap();
    let started = std::time::Instant::now();
    let error = root
        .lock(Duration::from_millis(150), "nodepki renew")
        .unwrap_err();
    assert!(started.elapsed() >= Duration::from_millis(150));
    assert_eq!(error.class(), ErrorClass::Busy);
    let words = format!("(pid {}: nodepki bootstrap, lock ", std::process::id());
    assert!(error.to_string().contains(&words), "{error}");
    let waiting = std::thread::spawn(move || {
        root.lock(Duration::from_secs(20), "nodepki renew")
            .map(drop)
    });
    crate::time::let_pass(Duration::from_millis(50));
    drop(first);
    waiting.join().unwrap().unwrap();
}

#[test]
fn releases_lock_of_killed_process() {
    use std::io::{BufRead, BufReader};
    let fixture = Fixture::new();
    let mut holder = super::store_system::child("hold", fixture.dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().ends_with("holding") {}
    let error = fixture.root().lock(Duration::ZERO, "x").unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("pid {}: nodepki hold", holder.id())),
        "{error}"
    );
    holder.kill().unwrap();
    holder.wait().unwrap();
    fixture.root().lock(Duration::from_secs(5), "x").unwrap();
}

#[test]
fn closes_state_directory_and_refuses_one_of_another_user() {
    let fixture = Fixture::new();
    drop(fixture.store());
    let state = fixture.path("/var/lib/nodepki");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    let (store, recovery) = fixture.recover();
    drop(store);
    assert!(matches!(
        recovery.notes[..],
        [StoreNote::Tightened {
            from: 0o755,
            to: 0o700,
            ..
        }]
    ));
    assert_eq!(fixture.mode("/var/lib/nodepki"), 0o700);
    std::os::unix::fs::chown(&state, Some(1234), None).unwrap();
    let error = open(&fixture.root()).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "belongs to user 1234, not to user 0; change the owner with chown and run again"
        ),
        "{error}"
    );
}

#[test]
fn merges_issue_times_and_ignores_damaged_record() {
    let fixture = Fixture::new();
    let issued = |serial: &str| IssuedRecord {
        at: NOW,
        serial: serial.to_owned(),
        not_after: NOW + Duration::from_secs(86400),
        sha256: "00".repeat(32),
    };
    assert!(fixture.root().issued().unwrap().is_empty());
    let mut store = fixture.store();
    let mut record = |name: CertName, serial: &str| {
        let mut wanted = Commit::new();
        wanted.issued(name, issued(serial));
        store.commit(wanted).unwrap()
    };
    record(CertName::Apiserver, "01");
    record(CertName::AdminConf, "02");
    record(CertName::Apiserver, "03");
    let found = fixture.root().issued().unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found[&CertName::Apiserver], issued("03"));
    fs::write(fixture.path("/var/lib/nodepki/issued.json"), "{").unwrap();
    assert_eq!(
        fixture.root().issued().unwrap_err().class(),
        ErrorClass::Unsafe
    );
    let done = record(CertName::EtcdPeer, "04");
    assert!(matches!(done.notes[..], [StoreNote::Rebuilt { .. }]));
    let note = done.notes[0].to_string();
    assert!(
        note.contains("issued.json is damaged (") && note.ends_with(") and is created again"),
        "{note}"
    );
    assert_eq!(fixture.root().issued().unwrap().len(), 1);
}

pub(crate) const KEY: &[u8] =
    b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";
pub(crate) const CSR: &[u8] =
    b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";

pub(crate) fn ticket() -> RequestRecord {
    RequestRecord {
        request_id: "0123".to_owned(),
        signer: "corp".to_owned(),
        signer_kind: "vault".to_owned(),
        signer_config: "4567".to_owned(),
        handle: None,
        attempt: 0,
        submissions: 0,
        last_submitted: None,
        first_submitted: None,
        next_poll: None,
        not_before: None,
        phase: RequestPhase::Ready,
        last_error: None,
        exported_to: None,
        is_proof: false,
    }
}

#[test]
fn restores_pending_request_as_it_was_saved() {
    let fixture = Fixture::new();
    let slot = Slot::from(CertName::EtcdServer);
    let store = fixture.store();
    store
        .create_pending(slot, KEY, CSR, &ticket(), Durability::Synced)
        .unwrap();
    store
        .create_pending(
            Slot::ServiceAccount,
            KEY,
            CSR,
            &ticket(),
            Durability::Cached,
        )
        .unwrap();
    let again = store
        .create_pending(slot, b"other", CSR, &ticket(), Durability::Synced)
        .unwrap_err();
    assert!(
        again
            .to_string()
            .ends_with("pending/etcd-server exists already: a request is pending; resume that request or set it aside"),
        "{again}"
    );
    let later = RequestRecord {
        handle: Some("csr-x7f2".to_owned()),
        attempt: 2,
        submissions: 2,
        last_submitted: Some(NOW),
        first_submitted: Some(NOW),
        next_poll: Some(NOW + Duration::from_secs(30)),
        not_before: Some(NOW + Duration::from_secs(60)),
        phase: RequestPhase::Requested,
        last_error: Some(LastError {
            class: "transient".to_owned(),
            code: "503".to_owned(),
            detail: "busy".to_owned(),
            at: NOW,
        }),
        ..ticket()
    };
    store
        .update_ticket(slot, &later, Durability::Synced)
        .unwrap();
    store
        .save_answer(slot, b"answer", Durability::Synced)
        .unwrap();
    drop(store);
    let found = fixture.store().pending(NOW).unwrap();
    assert_eq!(found.notes, []);
    assert_eq!(found.slots.len(), 2);
    let [first, second] = &found.slots[..] else {
        panic!()
    };
    assert_eq!((first.slot, second.slot), (slot, Slot::ServiceAccount));
    assert_eq!(first.key_pem.as_slice(), KEY);
    assert_eq!(first.csr_pem.as_deref(), Some(CSR));
    assert_eq!(first.ticket.as_ref(), Some(&later));
    assert_eq!(first.issued_pem.as_deref(), Some(b"answer".as_slice()));
    assert_eq!(second.issued_pem, None);
    assert_eq!(fixture.root().tickets().unwrap()[0], (slot, Some(later)));
    assert!(
        !format!("{found:?}").contains("BEGIN"),
        "no key in Debug output"
    );
}

#[test]
fn reports_damaged_slot_and_never_deletes_it() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let slots = [
        CertName::Apiserver,
        CertName::EtcdPeer,
        CertName::EtcdServer,
        CertName::AdminConf,
    ];
    for name in slots {
        store
            .create_pending(name.into(), KEY, CSR, &ticket(), Durability::Cached)
            .unwrap();
    }
    let pending = fixture.path("/var/lib/nodepki/pending");
    fs::write(pending.join("apiserver/ticket.json"), "{\"version\":1,").unwrap();
    fs::write(pending.join("etcd-peer/key.pem"), &KEY[..40]).unwrap();
    fs::write(pending.join("etcd-server/key.pem"), "").unwrap();
    fs::write(pending.join("admin.conf/request.csr"), &CSR[..50]).unwrap();
    fs::create_dir(pending.join("lost+found")).unwrap();
    let found = store.pending(NOW).unwrap();
    let notes: Vec<String> = found.notes.iter().map(ToString::to_string).collect();
    let expected = [
        "admin.conf/request.csr is damaged (missing or torn)",
        "apiserver/ticket.json is damaged (EOF while parsing",
        "pending/etcd-peer was set aside as ",
        "aside/etcd-server-20260304T050607Z: its key is torn",
        "lost+found does not belong to nodepki and is not touched",
    ];
    assert_eq!(notes.len(), expected.len(), "{notes:#?}");
    for (note, words) in notes.iter().zip(expected) {
        assert!(note.contains(words), "{words}: {notes:#?}");
    }
    assert!(
        notes[2].ends_with("aside/etcd-peer-20260304T050607Z: its key is torn"),
        "{notes:#?}"
    );
    let [conf, apiserver] = &found.slots[..] else {
        panic!()
    };
    assert!(conf.csr_pem.is_none() && conf.ticket.is_some());
    assert!(apiserver.csr_pem.is_some() && apiserver.ticket.is_none());
    assert_eq!(
        fs::read(fixture.path("/var/lib/nodepki/aside/etcd-peer-20260304T050607Z/key.pem"))
            .unwrap(),
        &KEY[..40]
    );
    store
        .create_pending(
            CertName::EtcdPeer.into(),
            KEY,
            CSR,
            &ticket(),
            Durability::Cached,
        )
        .unwrap();
    store
        .set_slot_aside(CertName::EtcdPeer.into(), "the plan changed", NOW)
        .unwrap();
    assert!(
        fixture
            .path("/var/lib/nodepki/aside/etcd-peer-20260304T050607Z-2/key.pem")
            .exists()
    );
}

#[test]
fn removes_slots_that_a_commit_completes() {
    let fixture = Fixture::new();
    let mut store = fixture.store();
    for name in [CertName::Apiserver, CertName::EtcdPeer] {
        store
            .create_pending(name.into(), KEY, CSR, &ticket(), Durability::Cached)
            .unwrap();
    }
    let mut wanted = Commit::new();
    wanted
        .file(
            "/etc/kubernetes/pki/apiserver.key",
            KEY.to_vec(),
            Mode::Private,
        )
        .completes(CertName::Apiserver.into());
    store.commit(wanted).unwrap();
    let left = store.pending(NOW).unwrap().slots;
    assert_eq!(
        left.iter()
            .map(|pending| pending.slot.as_str())
            .collect::<Vec<_>>(),
        ["etcd-peer"]
    );
    // Nothing to write and a slot to remove: the previous run may have ended between the two.
    let mut wanted = Commit::new();
    wanted.completes(CertName::EtcdPeer.into());
    store.commit(wanted).unwrap();
    assert!(store.pending(NOW).unwrap().slots.is_empty());
}

#[test]
fn names_directory_when_it_has_its_mode() {
    let fixture = Fixture::new();
    // An interrupted run leaves the directory under its temporary name.
    let temporary = fixture.path("/drop/.nodepki-new.out~");
    fs::create_dir_all(&temporary).unwrap();
    fixture.root().create_dir("/drop/out", 0o750).unwrap();
    assert_eq!(fixture.mode("/drop/out"), 0o750);
    assert!(!temporary.exists());
    // The mode of an existing directory belongs to the administrator.
    fixture.root().create_dir("/drop/out", 0o755).unwrap();
    assert_eq!(fixture.mode("/drop/out"), 0o750);
}

#[test]
fn reads_and_writes_drop_directory_without_following_links() {
    let fixture = Fixture::new();
    let root = fixture.root();
    assert!(root.dir("/drop/out").unwrap().is_none());
    let dir = root.create_dir("/drop/out", 0o750).unwrap();
    assert_eq!(fixture.mode("/drop/out"), 0o750);
    assert!(dir.write_atomic("apiserver.csr", CSR, 0o644).unwrap());
    let inode = dir.metadata("apiserver.csr").unwrap().unwrap().inode;
    assert!(
        !dir.write_atomic("apiserver.csr", CSR, 0o644).unwrap(),
        "the same bytes again"
    );
    assert_eq!(dir.metadata("apiserver.csr").unwrap().unwrap().inode, inode);
    assert!(
        dir.write_atomic("apiserver.csr", CSR, 0o640).unwrap(),
        "another mode"
    );
    assert!(
        dir.write_atomic("apiserver.csr", b"x", 0o640).unwrap(),
        "other bytes"
    );
    let read = dir.read("apiserver.csr", 10).unwrap().unwrap();
    assert_eq!(
        (read.bytes.as_slice(), read.metadata.mode),
        (b"x".as_slice(), 0o640)
    );
    symlink("apiserver.csr", fixture.path("/drop/out/link")).unwrap();
    assert_eq!(
        refusal(&dir.read("link", 10).unwrap_err()),
        &PathObstacle::Symlink("apiserver.csr".into())
    );
    assert_eq!(
        refusal(&dir.write_atomic("link", b"", 0o600).unwrap_err()),
        &PathObstacle::Symlink("apiserver.csr".into())
    );
    fixture.write("/drop/out/large", "0123456789", 0o644);
    assert!(
        dir.read("large", 9)
            .unwrap_err()
            .to_string()
            .contains("has 10 bytes, more than the limit of 9")
    );
    for name in ["", ".", "..", "a/b", "/etc/passwd", "a/"] {
        assert_eq!(
            dir.read(name, 10).unwrap_err().class(),
            ErrorClass::Path,
            "{name:?}"
        );
        assert_eq!(
            dir.write_atomic(name, b"", 0o600).unwrap_err().class(),
            ErrorClass::Path,
            "{name:?}"
        );
    }
    // A crash leaves an unfinished file; the next write replaces it, and no listing shows it.
    fixture.write("/drop/out/.nodepki-new.apiserver.csr~", "half", 0o600);
    assert_eq!(dir.list().unwrap(), ["apiserver.csr", "large", "link"]);
    dir.write_atomic("apiserver.csr", b"y", 0o640).unwrap();
    assert!(
        !fixture
            .path("/drop/out/.nodepki-new.apiserver.csr~")
            .exists()
    );
    assert!(dir.remove("apiserver.csr").unwrap());
    assert!(!dir.remove("apiserver.csr").unwrap());
}

#[test]
fn reports_every_obstacle_in_preflight() {
    let fixture = Fixture::new();
    let root = fixture.root();
    let files = [(Path::new("/etc/kubernetes/pki/etcd/server.key"), 1000)];
    root.preflight(files, 0).unwrap();
    assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    assert!(!fixture.path("/etc").exists(), "preflight changes nothing");
    fs::create_dir_all(fixture.path("/etc/kubernetes/admin.conf")).unwrap();
    symlink("x", fixture.path("/etc/kubernetes/link.conf")).unwrap();
    let errors = root
        .preflight(
            [
                (Path::new("/etc/kubernetes/admin.conf"), 1),
                (Path::new("/etc/kubernetes/link.conf"), 1),
                (Path::new("/etc/kubernetes/huge.conf"), u64::MAX / 4),
                (Path::new("relative"), 1),
            ],
            0,
        )
        .unwrap_err();
    let classes: Vec<ErrorClass> = errors.iter().map(StoreError::class).collect();
    assert_eq!(
        classes,
        [
            ErrorClass::Unsafe,
            ErrorClass::Unsafe,
            ErrorClass::Path,
            ErrorClass::NoSpace
        ],
        "{errors:?}"
    );
}

/// Temporary files that no completed run leaves behind.
pub(crate) fn leftovers(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with(".nodepki-") || name == "journal.json" || name == "staging.json" {
            found.push(entry.path());
        }
        if entry.file_type().unwrap().is_dir() {
            found.extend(leftovers(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn removes_set_aside_keys_older_than_30_days_or_beyond_50() {
    let fixture = Fixture::new();
    drop(fixture.store());
    let aside = "/var/lib/nodepki/aside";
    let slot = |name: &str| {
        fixture.write(format!("{aside}/{name}/key.pem"), "a key", 0o600);
    };
    // NOW is the fourth of March at 05:06:07.
    slot("etcd-server-20260202T050606Z");
    slot("etcd-server-20260202T050608Z");
    slot("etcd-server-20260202T050608Z-2");
    fixture.write(
        format!("{aside}/journal.json-20260101T000000Z"),
        "{}",
        0o600,
    );
    fixture.write(
        format!("{aside}/journal.json-20260301T000000Z"),
        "{}",
        0o600,
    );
    slot("of-another-clock-20990101T000000Z");
    slot("somebody's");
    let names = || {
        let entries = fs::read_dir(fixture.path(aside)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    drop(fixture.store());
    assert_eq!(
        names(),
        [
            "etcd-server-20260202T050608Z",
            "etcd-server-20260202T050608Z-2",
            "journal.json-20260301T000000Z",
            "of-another-clock-20990101T000000Z",
            "somebody's",
        ]
    );
    for number in 0..60 {
        slot(&format!("apiserver-20260303T0506{number:02}Z"));
    }
    drop(fixture.store());
    let left = names();
    assert_eq!(
        left.len(),
        51,
        "50 slots and one unrelated directory: {left:?}"
    );
    assert!(!left.contains(&"apiserver-20260303T050600Z".to_owned()));
    assert!(left.contains(&"apiserver-20260303T050659Z".to_owned()));
}

#[test]
fn names_set_aside_key_that_cannot_be_removed() {
    let fixture = Fixture::new();
    drop(fixture.store());
    let old = "/var/lib/nodepki/aside/etcd-server-20260101T000000Z/key.pem";
    fixture.write(old, "a key", 0o600);
    let guard = Immutable::set(&fixture.path(old));
    let (_, recovery) = fixture.recover();
    drop(guard);
    assert_eq!(fixture.text(old), "a key");
    let [note] = &recovery.notes[..] else {
        panic!("{:?}", recovery.notes);
    };
    let note = note.to_string();
    assert!(
        note.contains("etcd-server-20260101T000000Z is no longer needed and cannot be removed (")
            && note.ends_with("); it may contain a private key: remove it"),
        "{note}"
    );
}

#[test]
fn lists_only_a_few_of_many_unknown_files_among_pending_requests() {
    let fixture = Fixture::new();
    drop(fixture.store());
    for number in 0..15 {
        fixture.write(format!("/var/lib/nodepki/pending/{number:02}"), "", 0o600);
    }
    let notes = fixture.store().pending(NOW).unwrap().notes;
    assert_eq!(notes.len(), 11);
    assert!(
        notes[10]
            .to_string()
            .ends_with("pending contains 5 more files that do not belong to nodepki"),
        "{}",
        notes[10]
    );
    // None of them is reported as an unreadable slot.
    assert!(fixture.root().tickets().unwrap().is_empty());
}
