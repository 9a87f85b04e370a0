//! Reads the state files of each release in `tests/fixtures/state`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use tempfile::TempDir;
use time::macros::datetime;

use super::journal::{JOURNAL, Journal};
use super::staging::{STAGING, StagingRecord};
use super::*;
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::kubeadm::KubeadmRole;
use crate::kube::names::{Authority, CertName};

/// A reader of a state file.
type Read = fn(&NodeRoot) -> Result<(), StoreError>;

/// Path below the state directory, reader, and whether the file records work that a run finishes.
const STATE_FILES: [(&str, Read, bool); 7] = [
    ("issued.json", |root| root.issued().map(drop), false),
    ("node.json", |root| root.saved_node().map(drop), false),
    (
        "authorities.json",
        |root| root.authority_changes().map(drop),
        false,
    ),
    ("restarts.json", |root| root.unsettled().map(drop), true),
    ("staging.json", |root| staging(root).map(drop), true),
    ("journal.json", |root| journal(root).map(drop), true),
    (
        "pending/apiserver/ticket.json",
        |root| ticket(root).map(drop),
        true,
    ),
];

/// A root whose state directory contains the files of release 0.1.0.
struct Fixture {
    _dir: TempDir,
    state: PathBuf,
    root: NodeRoot,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join(&STATE_DIR[1..]);
    fs::create_dir_all(state.join("pending/apiserver")).unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let fixture = Fixture {
        _dir: dir,
        state,
        root,
    };
    for (name, ..) in STATE_FILES {
        fixture.write(name, &released(name));
    }
    fixture
}

impl Fixture {
    fn write(&self, name: &str, text: &str) {
        let path = self.state.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn released(name: &str) -> String {
    let release = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/state/0.1.0");
    fs::read_to_string(Path::new(release).join(name)).unwrap()
}

fn state_dir(root: &NodeRoot) -> Dir {
    root.dir(STATE_DIR).unwrap().unwrap()
}

fn journal(root: &NodeRoot) -> Result<Journal, StoreError> {
    Journal::load(root, &state_dir(root)).map(Option::unwrap)
}

fn staging(root: &NodeRoot) -> Result<StagingRecord, StoreError> {
    StagingRecord::load(&state_dir(root)).map(Option::unwrap)
}

fn ticket(root: &NodeRoot) -> Result<RequestRecord, StoreError> {
    let path = Path::new(STATE_DIR).join("pending/apiserver/ticket.json");
    let found = root.read(&path)?.unwrap();
    pending::TICKET.parse(&found.bytes, root.on_this_machine(path))
}

#[test]
fn reads_knowledge_of_release_0_1_0() {
    let fixture = fixture();
    let root = &fixture.root;
    let issued = root.issued().unwrap();
    assert_eq!(issued.len(), 2);
    let apiserver = &issued[&CertName::Apiserver];
    assert_eq!(apiserver.at, datetime!(2026-11-20 09:57:29 UTC));
    assert_eq!(apiserver.serial, "3a1f");

    let NodeRecord { node, accepted } = root.saved_node().unwrap().unwrap();
    assert_eq!((node.name.as_str(), node.role), ("cp2", KubeadmRole::Join));
    assert_eq!(node.bind_port, 7443);
    assert_eq!(node.join_endpoint.unwrap().port, Some(6443));
    assert_eq!(
        accepted,
        BTreeSet::from([
            IdentityPart::Name,
            IdentityPart::Address,
            IdentityPart::Role
        ])
    );

    let changes = root.authority_changes().unwrap();
    let activated = datetime!(2026-11-20 08:00 UTC);
    assert_eq!(changes[&Authority::Ca].activated, Some(activated));
    assert_eq!(changes[&Authority::FrontProxyCa].activated, None);
}

#[test]
fn reads_restarts_of_release_0_1_0() {
    let unsettled = fixture().root.unsettled().unwrap();
    let [scheduler, kubelet] = &unsettled.restarts[..] else {
        panic!("{unsettled:?}");
    };
    assert_eq!(scheduler.component, Component::KubeScheduler);
    assert_eq!(scheduler.state, RestartState::Due);
    assert_eq!(*scheduler.previous[0].contents, b"old kubeconfig");
    assert_eq!(
        kubelet.state,
        RestartState::RolledBack {
            why: "the kubelet did not become ready".to_owned()
        }
    );
    assert_eq!(unsettled.changed[1].change, ReplacedFile::ServiceAccount);
    let step = &unsettled.trust_steps[0];
    assert_eq!(step.former.subject, Authority::Ca.into());
    assert_eq!(*step.former.files[0].contents, b"old ca");
}

#[test]
fn reads_unfinished_work_of_release_0_1_0() {
    let fixture = fixture();
    let root = &fixture.root;
    let journal = journal(root).unwrap();
    assert_eq!(journal.entries.len(), 4);
    assert_eq!(*journal.entries[0].content.as_ref().unwrap().0, b"key");
    assert!(journal.entries[2].link().is_some());
    assert!(journal.entries[3].removes());
    assert_eq!(
        journal.slots,
        [CertName::Apiserver.into(), Slot::ServiceAccount]
    );
    let directories = [
        Path::new("/etc/kubernetes/pki"),
        Path::new("/etc/kubernetes"),
    ];
    assert_eq!(staging(root).unwrap().directories, directories);
    assert_eq!(root.staging_directories().unwrap(), directories);

    let ticket = ticket(root).unwrap();
    assert_eq!(ticket.phase, RequestPhase::Requested);
    assert_eq!(ticket.last_error.as_ref().unwrap().class, "transient");
    let tickets = root.tickets().unwrap();
    assert_eq!(tickets, [(CertName::Apiserver.into(), Some(ticket))]);
}

/// A renamed Rust type, variant or field must not change a file.
#[test]
fn writes_state_files_as_release_0_1_0_did() {
    let fixture = fixture();
    let root = &fixture.root;
    let restarts = restarts::to_json(root.unsettled().unwrap()).unwrap();
    for (name, written) in [
        ("issued.json", issued::to_json(root.issued().unwrap())),
        (
            "node.json",
            node::to_json(&root.saved_node().unwrap().unwrap()),
        ),
        (
            "authorities.json",
            changes::to_json(root.authority_changes().unwrap()),
        ),
        ("restarts.json", restarts.to_vec()),
        (
            "journal.json",
            journal(root).unwrap().to_json().unwrap().to_vec(),
        ),
        (
            "pending/apiserver/ticket.json",
            pending::ticket_json(&ticket(root).unwrap()).unwrap(),
        ),
    ] {
        assert_eq!(
            String::from_utf8(written).unwrap(),
            released(name),
            "{name}"
        );
    }
}

#[test]
fn writes_every_phase_under_its_stored_name() {
    for (phase, stored) in [
        (RequestPhase::Ready, "ready"),
        (RequestPhase::Submitting, "submitting"),
        (RequestPhase::Requested, "requested"),
        (RequestPhase::Answered, "answered"),
        (RequestPhase::Denied, "denied"),
        (RequestPhase::Failed, "failed"),
    ] {
        assert_eq!(serde_json::to_value(phase).unwrap(), stored);
        let read: RequestPhase = serde_json::from_value(stored.into()).unwrap();
        assert_eq!(read, phase);
    }
}

#[test]
fn reads_file_without_version_as_version_1() {
    let fixture = fixture();
    for (name, read, _) in STATE_FILES {
        let mut json: serde_json::Value = serde_json::from_str(&released(name)).unwrap();
        json.as_object_mut().unwrap().shift_remove("version");
        fixture.write(name, &json.to_string());
        if let Err(error) = read(&fixture.root) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn refuses_file_of_newer_version_with_path_and_fix() {
    let fixture = fixture();
    for (name, read, is_work) in STATE_FILES {
        let mut json: serde_json::Value = serde_json::from_str(&released(name)).unwrap();
        json["version"] = 99.into();
        fixture.write(name, &json.to_string());
        let error = read(&fixture.root).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat { version: 99, .. }));
        let path = fixture.state.join(name);
        let start = format!("{} has format version 99", path.display());
        let fix = if is_work {
            "run the newer nodepki once"
        } else {
            "use the newer nodepki, or move the file away"
        };
        let message = error.to_string();
        assert!(
            message.starts_with(&start) && message.contains(fix),
            "{message}"
        );
    }
}

#[test]
fn accepts_staging_record_that_power_cut_truncated() {
    let fixture = fixture();
    fixture.write(STAGING.name, "{\"version\":1,\"direc");
    assert!(staging(&fixture.root).unwrap().directories.is_empty());
}

#[test]
fn keeps_cause_of_damage() {
    let fixture = fixture();
    fixture.write(JOURNAL.name, "{");
    let Err(error) = journal(&fixture.root) else {
        panic!("a truncated journal was read");
    };
    let StoreError::JournalDamaged { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(matches!(source, Damage::Json(json) if json.is_eof()));
    assert!(error.to_string().contains("EOF while parsing"), "{error}");
}

#[test]
fn names_action_file_and_fix_of_each_error_of_the_system() {
    for (errno, message) in [
        (
            Errno::ENOSPC,
            "cannot write /x: ENOSPC: No space left on device; free some space (see `df -h` and `df -i`) and run again",
        ),
        (
            Errno::EROFS,
            "cannot write /x: the file system is read-only; mount it read-write (`mount -o remount,rw ...`), or add the \
             directory to ReadWritePaths= of the systemd unit that runs nodepki, and run again",
        ),
        (
            Errno::EACCES,
            "cannot write /x: EACCES: Permission denied; run as root; if nodepki runs as root, examine the security policy \
             (SELinux, AppArmor)",
        ),
        (Errno::EIO, "cannot write /x: EIO: I/O error"),
    ] {
        assert_eq!(StoreError::io("write", "/x", errno).to_string(), message);
    }
    let quota = StoreError::io("write", "/x", Errno::EDQUOT);
    assert!(matches!(quota, StoreError::NoSpace { .. }), "{quota}");
}

#[test]
fn writer_without_lock_removes_what_ended_processes_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let (ended, running) = (ended.id(), std::os::unix::process::parent_id());
    let kept = [
        format!(".nodepki-new.key~{running}~"),
        // A target named key~1, and one named key.
        format!(".nodepki-new.key~1~{ended}~"),
        ".nodepki-new.key~".to_owned(),
    ];
    let left = format!(".nodepki-new.key~{ended}~");
    let write = |name: &String| fs::write(dir.path().join(name), "half").unwrap();
    let written = root.dir("/").unwrap().unwrap();
    let new = |name: &str| written.write_new(name, b"new").unwrap();
    let unlocked = |name: &str| {
        let is_written = written.write_unlocked(name, b"other", 0o600);
        assert!(is_written.unwrap());
    };
    for writes in [&new as &dyn Fn(&str), &unlocked] {
        kept.iter().chain([&left]).for_each(write);
        writes("key");
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(names.len(), kept.len() + 1);
        assert!(!dir.path().join(&left).exists());
    }
}

/// The cluster's records are written without the lock, while another process recovers.
#[test]
fn recovery_keeps_temporary_files_of_running_processes() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let state = dir.path().join(&STATE_DIR[1..]);
    fs::create_dir_all(&state).unwrap();
    let of_other_writer = state.join(".nodepki-new.cluster-rotations.json~");
    fs::write(&of_other_writer, "half").unwrap();
    root.keep_cluster_rotations(&ClusterRotations::default())
        .unwrap();
    assert!(of_other_writer.exists());
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let running = std::os::unix::process::parent_id();
    let temporary = [
        "".to_owned(),
        format!("{}~", ended.id()),
        format!("{running}~"),
    ]
    .map(|process| {
        let path = state.join(format!(".nodepki-new.cluster-policy.json~{process}"));
        fs::write(&path, "half").unwrap();
        path
    });
    let locked = root.lock(std::time::Duration::ZERO, "test").unwrap();
    locked.recover(datetime!(2026-11-21 12:00 UTC)).unwrap();
    assert_eq!(temporary.map(|path| path.exists()), [false, false, true]);
    assert!(state.join("cluster-rotations.json").exists());
}
