//! Kills the process, or fails a system call, at every step of the store; the next start must leave every pair
//! consistent and lose no key.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nodepki::kube::names::CertName;
use nodepki::process::failpoint;
use nodepki::store::{
    Commit, Durability, ErrorClass, IssuedRecord, Mode, NodeRoot, Recovery, RequestPhase,
    RequestRecord, Store, StoreError, StoreNote,
};

use super::store::{CSR, Fixture, KEY, NOW, PKI, leftovers, open, ticket};

/// Two pairs that the commit replaces and one that it creates.
const PAIRS: [(&str, &str); 3] = [
    (
        "/etc/kubernetes/pki/apiserver.key",
        "/etc/kubernetes/pki/apiserver.crt",
    ),
    (
        "/etc/kubernetes/pki/etcd/server.key",
        "/etc/kubernetes/pki/etcd/server.crt",
    ),
    (
        "/etc/kubernetes/pki/front-proxy-client.key",
        "/etc/kubernetes/pki/front-proxy-client.crt",
    ),
];
/// A single file that the commit replaces.
const CONF: &str = "/etc/kubernetes/admin.conf";
const UNCHANGED: &str = "/etc/kubernetes/pki/sa.key";
const REMOVED: &str = "/etc/kubernetes/pki/ca.key";
const CA_KEY: &str = "the bytes of a CA key";
/// A symbolic link that the commit repoints, its new target and its old one.
const LINK: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
const NEW_TARGET: &str = "/var/lib/kubelet/pki/kubelet-client-2026-03-04-05-06-07.pem";
const OLD_TARGET: &str = "/var/lib/kubelet/pki/kubelet-client-2025-03-04-05-06-07.pem";

fn start() -> Fixture {
    let fixture = Fixture::new();
    for (key, crt) in &PAIRS[..2] {
        fixture.write(key, "old", 0o600);
        fixture.write(crt, "old", 0o644);
    }
    fixture.write(CONF, "old", 0o600);
    fixture.write(UNCHANGED, "kept", 0o600);
    fixture.write(REMOVED, CA_KEY, 0o600);
    fixture.write(OLD_TARGET, "old", 0o600);
    symlink(OLD_TARGET, fixture.path(LINK)).unwrap();
    let slot = CertName::Apiserver.into();
    fixture
        .store()
        .create_pending(slot, KEY, CSR, &ticket(), Durability::Cached)
        .unwrap();
    fixture
}

fn commit_of_all_kinds() -> Commit {
    let mut commit = Commit::new();
    for (key, crt) in PAIRS {
        commit
            .file(crt, b"new".to_vec(), Mode::Public)
            .file(key, b"new".to_vec(), Mode::Private);
    }
    commit
        .file(CONF, b"new".to_vec(), Mode::Private)
        .file(UNCHANGED, b"kept".to_vec(), Mode::Private)
        .remove(REMOVED, CA_KEY.as_bytes())
        .link(LINK, name_of(NEW_TARGET))
        .file(NEW_TARGET, b"new".to_vec(), Mode::Private)
        .completes(CertName::Apiserver.into())
        .issued(
            CertName::Apiserver,
            IssuedRecord {
                at: NOW,
                serial: "01".to_owned(),
                not_after: NOW,
                sha256: String::new(),
            },
        );
    commit
}

fn name_of(path: &str) -> &str {
    path.rsplit_once('/').unwrap().1
}

/// The actions of the child processes of this file.
pub(crate) fn child(what: &str, root: &Path) {
    let root = NodeRoot::open(root).unwrap();
    let done = |result: Result<(), StoreError>| {
        if let Err(error) = result {
            println!("\nerror {:?} {error}", error.class());
            std::process::exit(3);
        }
    };
    match what {
        "recover" => done(open(&root).map(drop)),
        "commit" => done(
            open(&root).and_then(|(mut store, _)| store.commit(commit_of_all_kinds()).map(drop)),
        ),
        "commit-files" => done(open(&root).and_then(|(mut store, _)| {
            let mut commit = Commit::new();
            commit.file(CONF, b"new".to_vec(), Mode::Private);
            store.commit(commit).map(drop)
        })),
        "commit-removal" => done(open(&root).and_then(|(mut store, _)| {
            let mut commit = Commit::new();
            commit
                .file(CONF, b"new".to_vec(), Mode::Private)
                .remove(REMOVED, CA_KEY.as_bytes());
            store.commit(commit).map(drop)
        })),
        "commit-twice" => done(open(&root).and_then(|(mut store, _)| {
            let first = store.commit(commit_of_all_kinds()).map(drop);
            assert!(first.is_err());
            store.commit(Commit::new()).map(drop)
        })),
        "pending" => done(open(&root).and_then(|(store, _)| pending(&store))),
        other => panic!("{other}"),
    }
}

fn pending(store: &Store) -> Result<(), StoreError> {
    let slot = CertName::EtcdPeer.into();
    store.create_pending(slot, KEY, CSR, &ticket(), Durability::Synced)?;
    let later = RequestRecord {
        phase: RequestPhase::Submitting,
        ..ticket()
    };
    store.update_ticket(slot, &later, Durability::Synced)?;
    store.save_answer(slot, b"answer", Durability::Synced)?;
    store.set_slot_aside(slot, "test", NOW).map(drop)
}

/// Runs a child with a failpoint armed, and returns its output for error messages.
fn run(what: &str, fixture: &Fixture, failpoint: &str) -> (ExitStatus, String) {
    let output = super::store_system::child(what, fixture.dir.path())
        .env("NODEPKI_FAILPOINT", failpoint)
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status, text)
}

fn killed(what: &str, fixture: &Fixture, failpoint: &str) -> bool {
    let (status, text) = run(what, fixture, failpoint);
    match (status.success(), status.signal()) {
        (true, _) => false,
        (_, Some(9)) => true,
        _ => panic!("{what} at {failpoint}: {status}: {text}"),
    }
}

/// Asserts that no file is half written at any moment.
fn assert_no_file_is_torn(fixture: &Fixture, failpoint: &str) {
    assert_link_target_complete(fixture, failpoint);
    for (index, (key, crt)) in PAIRS.iter().enumerate() {
        for path in [key, crt] {
            match fs::read_to_string(fixture.path(path)) {
                Ok(text) => assert!(
                    text == "new" || (text == "old" && index < 2),
                    "{failpoint}: {path} holds {text:?}"
                ),
                Err(_) => assert!(index == 2, "{failpoint}: {path} is gone"),
            }
        }
    }
}

/// Asserts that the link leads to a complete file at any moment; true if that is the new one.
fn assert_link_target_complete(fixture: &Fixture, failpoint: &str) -> bool {
    let link = fs::read_link(fixture.path(LINK)).unwrap();
    let new = link == Path::new(name_of(NEW_TARGET));
    assert!(
        new || link == Path::new(OLD_TARGET),
        "{failpoint}: {link:?}"
    );
    let beside = fixture.path(LINK).with_file_name(link.file_name().unwrap());
    let wanted = if new { "new" } else { "old" };
    assert_eq!(fs::read_to_string(beside).unwrap(), wanted, "{failpoint}");
    new
}

/// Asserts that after a successful start all files are old or all are new, and that nothing is left over; true for
/// new.
fn assert_all_old_or_all_new(fixture: &Fixture, failpoint: &str) -> bool {
    let new = fixture.text(CONF) == "new";
    for (index, (key, crt)) in PAIRS.iter().enumerate() {
        for path in [key, crt] {
            let text = fs::read_to_string(fixture.path(path)).ok();
            let wanted = match (new, index) {
                (true, _) => Some("new"),
                (false, 2) => None,
                (false, _) => Some("old"),
            };
            assert_eq!(text.as_deref(), wanted, "{failpoint}: {path}");
        }
        if new {
            assert_eq!(
                (fixture.mode(key), fixture.mode(crt)),
                (0o600, 0o644),
                "{failpoint}"
            );
        }
    }
    assert_eq!(fixture.text(UNCHANGED), "kept", "{failpoint}");
    assert_eq!(
        assert_link_target_complete(fixture, failpoint),
        new,
        "{failpoint}"
    );
    assert_eq!(fixture.path(NEW_TARGET).exists(), new, "{failpoint}");
    let ca_key = fs::read_to_string(fixture.path(REMOVED)).ok();
    assert_eq!(ca_key.as_deref(), (!new).then_some(CA_KEY), "{failpoint}");
    assert_eq!(
        leftovers(fixture.dir.path()),
        Vec::<PathBuf>::new(),
        "{failpoint}"
    );
    let slot = fixture.path("/var/lib/nodepki/pending/apiserver/key.pem");
    assert_eq!(
        slot.exists(),
        !new,
        "{failpoint}: the pending key is removed exactly when the new pair is installed"
    );
    assert_eq!(
        fixture.root().issued().unwrap().len(),
        usize::from(new),
        "{failpoint}"
    );
    new
}

/// Returns the failpoints that `what` reaches, numbered by occurrence.
fn failpoints(what: &str, prepare: impl Fn() -> Fixture) -> Vec<String> {
    let mut failpoints = Vec::new();
    for name in failpoint::STORE {
        for number in 1.. {
            let failpoint = format!("{name}:{number}");
            if !killed(what, &prepare(), &failpoint) {
                break;
            }
            failpoints.push(failpoint);
        }
    }
    failpoints
}

fn names(failpoints: &[String]) -> BTreeSet<&str> {
    failpoints
        .iter()
        .map(|failpoint| failpoint.rsplit_once(':').unwrap().0)
        .collect()
}

#[test]
fn leaves_all_old_or_all_new_files_when_a_commit_is_killed() {
    let mut reached = BTreeSet::new();
    let commit_failpoints = failpoints("commit", start);
    reached.extend(names(&commit_failpoints).into_iter().map(str::to_owned));
    let (mut old, mut new) = (0, 0);
    for failpoint in &commit_failpoints {
        let fixture = start();
        assert!(killed("commit", &fixture, failpoint));
        assert_no_file_is_torn(&fixture, failpoint);
        let journal = fixture.path("/var/lib/nodepki/journal.json");
        let text = fs::read_to_string(&journal).unwrap_or_default();
        assert!(
            !text.contains(&BASE64_STANDARD.encode(CA_KEY)),
            "{failpoint}"
        );
        let journal = journal.exists();
        let (_, recovery) = fixture.recover();
        let is_new = assert_all_old_or_all_new(&fixture, failpoint);
        assert!(
            is_new || !journal,
            "{failpoint}: the commit was decided and not completed"
        );
        assert!(recovery.superseded.is_empty(), "{failpoint}");
        *(if is_new { &mut new } else { &mut old }) += 1;
        // A run that commits, and not only recovers, ends with the new files too.
        fixture.store().commit(commit_of_all_kinds()).unwrap();
        assert!(assert_all_old_or_all_new(&fixture, failpoint));
    }
    assert!(
        old > 8 && new > 8,
        "{old} failpoints before the point of commit, {new} after it"
    );

    // Each of these recoveries is killed at every failpoint in turn.
    let killed_at = |failpoint: &str| {
        let fixture = start();
        assert!(killed("commit", &fixture, failpoint));
        fixture
    };
    for first in [
        "commit:staged:1",
        "commit:journalled:1",
        "finish:rename-one:2",
        "finish:remove-one:1",
        "finish:renamed:1",
        "finish:durable:1",
    ] {
        assert!(
            commit_failpoints.iter().any(|failpoint| failpoint == first),
            "{first}"
        );
        let seconds = failpoints("recover", || killed_at(first));
        assert!(!seconds.is_empty());
        reached.extend(names(&seconds).into_iter().map(str::to_owned));
        for second in &seconds {
            let fixture = killed_at(first);
            assert!(killed("recover", &fixture, second));
            let failpoint = format!("{first}, then {second}");
            assert_no_file_is_torn(&fixture, &failpoint);
            drop(fixture.recover());
            assert_eq!(
                assert_all_old_or_all_new(&fixture, &failpoint),
                first != "commit:staged:1",
                "{failpoint}"
            );
        }
    }
    reached.extend(
        names(&failpoints("pending", Fixture::new))
            .into_iter()
            .map(str::to_owned),
    );
    let all: BTreeSet<String> = failpoint::STORE
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    assert_eq!(reached, all, "every failpoint in the list is reached");
}

#[test]
fn keeps_pending_key_when_killed_at_any_step() {
    for failpoint in failpoints("pending", Fixture::new) {
        let fixture = Fixture::new();
        assert!(killed("pending", &fixture, &failpoint));
        let (store, recovery) = fixture.recover();
        let found = store.pending(NOW).unwrap();
        assert_eq!(found.notes, [], "{failpoint}");
        let aside = fixture.path("/var/lib/nodepki/aside").exists();
        let written = failpoint == "pending:written:1";
        // Before the slot has its name no request was sent, and the key is not needed.
        assert_eq!(
            found.slots.len(),
            usize::from(!written && !aside),
            "{failpoint}"
        );
        assert_eq!(
            recovery.swept.is_empty(),
            !written,
            "{failpoint}: {recovery:?}"
        );
        for slot in found.slots {
            assert_eq!(slot.key_pem.as_slice(), KEY, "{failpoint}");
            assert!(
                slot.ticket.is_some() && slot.csr_pem.is_some(),
                "{failpoint}"
            );
        }
    }
}

/// Runs a commit with a failing system call, and asserts the class of the error and what its message promises.
fn fail_commit(fixture: &Fixture, failpoint: &str, class: ErrorClass, promise: &str) {
    let (status, text) = run("commit", fixture, failpoint);
    assert_eq!(status.code(), Some(3), "{failpoint}: {text}");
    assert!(
        text.contains(&format!("error {class:?} ")),
        "{failpoint}: {text}"
    );
    assert!(text.contains(promise), "{failpoint}: {text}");
}

#[test]
fn changes_nothing_on_an_error_before_the_point_of_commit() {
    for name in [
        "commit:recorded",
        "commit:staged-one",
        "commit:staged",
        "commit:synced",
    ] {
        for (errno, class) in [
            ("ENOSPC", ErrorClass::NoSpace),
            ("EDQUOT", ErrorClass::NoSpace),
            ("EROFS", ErrorClass::ReadOnly),
            ("EACCES", ErrorClass::Denied),
            ("EPERM", ErrorClass::Denied),
            ("EIO", ErrorClass::Io),
        ] {
            let fixture = start();
            fail_commit(
                &fixture,
                &format!("{name}={errno}"),
                class,
                "nothing was changed",
            );
            assert_eq!(
                leftovers(fixture.dir.path()),
                Vec::<PathBuf>::new(),
                "{name}={errno}"
            );
            assert!(!fixture.path(PAIRS[2].0).exists());
            assert!(!assert_all_old_or_all_new(&fixture, name));
        }
    }
}

#[test]
fn completes_in_the_next_run_after_an_error_past_the_point_of_commit() {
    for failpoint in [
        "commit:journalled",
        "finish:decided",
        "finish:rename-one:1",
        "finish:rename-one:2",
        "finish:rename-one:3",
        "finish:rename-one:8",
        "finish:remove-one",
        "finish:renamed",
        "finish:durable",
        "finish:slot-removed",
        "finish:slots-removed",
        "finish:journal-removed",
        "finish:record-removed",
    ] {
        for (errno, class) in [
            ("ENOSPC", ErrorClass::NoSpace),
            ("EROFS", ErrorClass::ReadOnly),
            ("EIO", ErrorClass::Io),
        ] {
            let fixture = start();
            fail_commit(
                &fixture,
                &format!("{failpoint}={errno}"),
                class,
                "run the same command again to finish",
            );
            assert_no_file_is_torn(&fixture, failpoint);
            drop(fixture.recover());
            assert!(assert_all_old_or_all_new(&fixture, failpoint));
        }
    }
}

#[test]
fn completes_other_pairs_when_one_pair_fails() {
    let fixture = start();
    // The second rename is the certificate of the first pair.
    let (_, text) = run("commit", &fixture, "finish:rename-one:2=EROFS");
    assert!(
        text.contains("apiserver.crt"),
        "the private key is renamed first: {text}"
    );
    for (key, crt) in &PAIRS[1..] {
        assert_eq!(
            (fixture.text(key), fixture.text(crt)),
            ("new".to_owned(), "new".to_owned())
        );
    }
}

/// Kills a commit half-way through the first pair, and lets `meddle` change files before the next start.
fn recover_after(
    at: &str,
    meddle: impl FnOnce(&Fixture),
) -> (Fixture, Result<Recovery, StoreError>) {
    let fixture = start();
    assert!(killed("commit", &fixture, at));
    meddle(&fixture);
    let result = open(&fixture.root()).map(|(_, recovery)| recovery);
    (fixture, result)
}

const NOTHING_RENAMED: &str = "finish:decided";
const KEY_RENAMED: &str = "finish:rename-one:2";
const TARGET_RENAMED: &str = "finish:rename-one:9";

#[test]
fn rewrites_lost_or_damaged_temporary_files_from_the_journal() {
    for at in [NOTHING_RENAMED, KEY_RENAMED] {
        let (fixture, recovery) = recover_after(at, |fixture| {
            let _ = fs::remove_file(fixture.path(format!("{PKI}/.nodepki-new.apiserver.key~")));
            fs::write(
                fixture.path(format!("{PKI}/.nodepki-new.apiserver.crt~")),
                "",
            )
            .unwrap();
            fs::remove_dir_all(fixture.path(format!("{PKI}/etcd"))).unwrap();
            fs::create_dir(fixture.path(format!("{PKI}/etcd"))).unwrap();
            for name in ["server.key", "server.crt"] {
                fixture.write(format!("{PKI}/etcd/{name}"), "old", 0o640);
            }
        });
        recovery.unwrap();
        for (key, crt) in PAIRS {
            assert_eq!(
                (fixture.text(key), fixture.text(crt)),
                ("new".to_owned(), "new".to_owned()),
                "{at}"
            );
        }
        assert_eq!(fixture.mode(format!("{PKI}/apiserver.key")), 0o600);
        assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn keeps_pair_that_another_process_replaced_after_the_crash() {
    for at in [NOTHING_RENAMED, KEY_RENAMED] {
        let (fixture, recovery) = recover_after(at, |fixture| {
            for path in [PAIRS[0].0, PAIRS[0].1] {
                fs::write(fixture.path(path), "kubeadm").unwrap();
            }
        });
        let recovery = recovery.unwrap();
        assert_eq!(
            recovery.superseded,
            [PathBuf::from(PAIRS[0].0), PathBuf::from(PAIRS[0].1)]
        );
        assert_eq!(fixture.text(PAIRS[0].0), "kubeadm");
        assert_eq!(fixture.text(PAIRS[0].1), "kubeadm");
        assert_eq!(fixture.text(PAIRS[1].0), "new");
        assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn keeps_replaced_half_of_a_pair_as_a_copy() {
    let (fixture, recovery) = recover_after(KEY_RENAMED, |fixture| {
        fs::write(fixture.path(PAIRS[0].1), "pasted").unwrap()
    });
    let recovery = recovery.unwrap();
    assert!(
        matches!(recovery.notes[..], [StoreNote::SetAside { .. }]),
        "{recovery:?}"
    );
    assert_eq!(
        (fixture.text(PAIRS[0].0), fixture.text(PAIRS[0].1)),
        ("new".to_owned(), "new".to_owned())
    );
    assert_eq!(
        fixture.text(format!("{PKI}/apiserver.crt.nodepki-20260304T050607Z")),
        "pasted"
    );
}

#[test]
fn keeps_certificate_when_its_unchanged_key_was_replaced() {
    let fixture = Fixture::new();
    let mut commit = Commit::new();
    commit
        .file(PAIRS[0].0, b"new".to_vec(), Mode::Private)
        .file(PAIRS[0].1, b"older".to_vec(), Mode::Public);
    fixture.store().commit(commit).unwrap();
    assert!(killed("commit", &fixture, "finish:decided"));
    fs::write(fixture.path(PAIRS[0].0), "kubeadm").unwrap();
    let (_, recovery) = fixture.recover();
    assert_eq!(recovery.superseded, [PathBuf::from(PAIRS[0].1)]);
    assert_eq!(fixture.text(PAIRS[0].1), "older");
}

#[test]
fn keeps_file_to_be_removed_that_was_replaced_after_the_crash() {
    for at in [NOTHING_RENAMED, "finish:remove-one"] {
        let (fixture, recovery) = recover_after(at, |fixture| {
            fs::write(fixture.path(REMOVED), "another key").unwrap();
        });
        let recovery = recovery.unwrap();
        assert_eq!(recovery.superseded, [PathBuf::from(REMOVED)]);
        assert_eq!(fixture.text(REMOVED), "another key");
        assert_eq!(fixture.text(PAIRS[0].0), "new");
        assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    }
    let (fixture, recovery) = recover_after("finish:remove-one", |_| {});
    assert_eq!(recovery.unwrap().removed, [PathBuf::from(REMOVED)]);
    assert!(!fixture.path(REMOVED).exists());
}

#[test]
fn keeps_link_that_another_process_moved_after_the_crash() {
    const THEIRS: &str = "/var/lib/kubelet/pki/kubelet-client-2026-09-09-09-09-09.pem";
    let move_it = |fixture: &Fixture| {
        fixture.write(THEIRS, "theirs", 0o600);
        fs::remove_file(fixture.path(LINK)).unwrap();
        symlink(THEIRS, fixture.path(LINK)).unwrap();
    };
    // Before the new target existed, and when it existed and the link was not yet moved.
    for (at, ours) in [(NOTHING_RENAMED, false), (TARGET_RENAMED, true)] {
        let (fixture, recovery) = recover_after(at, move_it);
        let superseded = recovery.unwrap().superseded;
        assert!(superseded.contains(&PathBuf::from(LINK)), "{at}");
        assert_eq!(
            fs::read_link(fixture.path(LINK)).unwrap(),
            Path::new(THEIRS)
        );
        assert_eq!(fixture.path(NEW_TARGET).exists(), ours, "{at}");
        assert_eq!(fixture.text(CONF), "new", "{at}");
        assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    }
    // The same with a file in place of the link.
    let (fixture, recovery) = recover_after(TARGET_RENAMED, |fixture| {
        fs::remove_file(fixture.path(LINK)).unwrap();
        fixture.write(LINK, "theirs", 0o600);
    });
    assert_eq!(recovery.unwrap().superseded, [PathBuf::from(LINK)]);
    assert_eq!(fixture.text(LINK), "theirs");
}

#[test]
fn refuses_journal_whose_link_has_another_target() {
    let (fixture, recovery) = recover_after(NOTHING_RENAMED, |fixture| {
        let path = fixture.path("/var/lib/nodepki/journal.json");
        let text = fs::read_to_string(&path).unwrap();
        let wanted = format!("link:{}", name_of(NEW_TARGET));
        assert!(text.contains(&wanted));
        fs::write(path, text.replace(&wanted, "link:../../../../tmp/x")).unwrap();
    });
    let error = recovery.unwrap_err().to_string();
    assert!(error.contains("the contents for"), "{error}");
    assert!(!assert_link_target_complete(&fixture, "damaged"));
}

#[test]
fn raises_journal_version_only_for_removals_and_links() {
    let version = |what: &str| {
        let fixture = start();
        assert!(killed(what, &fixture, "finish:decided"));
        let text = fixture.text("/var/lib/nodepki/journal.json");
        text[..12].to_owned()
    };
    assert_eq!(version("commit"), "{\"version\":3");
    assert_eq!(version("commit-removal"), "{\"version\":2");
    assert_eq!(version("commit-files"), "{\"version\":1");
}

#[test]
fn names_obstacle_to_recovery_and_keeps_the_journal() {
    let (fixture, recovery) = recover_after(NOTHING_RENAMED, |fixture| {
        fs::remove_file(fixture.path(PAIRS[0].1)).unwrap();
        fs::create_dir(fixture.path(PAIRS[0].1)).unwrap();
    });
    let error = recovery.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsafe);
    assert!(
        error.to_string().contains("apiserver.crt is a directory"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("run the same command again to finish"),
        "{error}"
    );
    fs::remove_dir(fixture.path(PAIRS[0].1)).unwrap();
    fixture.write(PAIRS[0].1, "old", 0o644);
    drop(fixture.recover());
    assert!(assert_all_old_or_all_new(
        &fixture,
        "after the directory is gone"
    ));
}

#[test]
fn refuses_damaged_journal_and_leaves_it_untouched() {
    for damage in ["{\"version\":1,\"entries\":[", "", "{\"version\":\"x\"}"] {
        let (fixture, recovery) = recover_after(NOTHING_RENAMED, |fixture| {
            fs::write(fixture.path("/var/lib/nodepki/journal.json"), damage).unwrap();
        });
        let path = fixture.path("/var/lib/nodepki/journal.json");
        for error in [recovery.unwrap_err(), open(&fixture.root()).unwrap_err()] {
            assert_eq!(error.class(), ErrorClass::Unsafe);
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains("nodepki plan"), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        }
        fs::remove_file(path).unwrap();
        drop(fixture.recover());
        assert!(!assert_all_old_or_all_new(&fixture, damage));
    }
}

#[test]
fn refuses_contents_that_differ_from_their_digest() {
    let (fixture, recovery) = recover_after(NOTHING_RENAMED, |fixture| {
        let path = fixture.path("/var/lib/nodepki/journal.json");
        // "new" in base64 becomes "nex".
        let text = fs::read_to_string(&path)
            .unwrap()
            .replacen("bmV3", "bmV4", 1);
        fs::write(path, text).unwrap();
    });
    let error = recovery.unwrap_err().to_string();
    let key = fixture.path("/etc/kubernetes/pki/apiserver.key");
    let words = format!("the contents for {} do not fit their digest", key.display());
    assert!(error.contains(&words), "{error}");
    assert_eq!(fixture.text(PAIRS[0].0), "old");
}

#[test]
fn refuses_journal_of_a_newer_version() {
    let (fixture, recovery) = recover_after(NOTHING_RENAMED, |fixture| {
        fs::write(
            fixture.path("/var/lib/nodepki/journal.json"),
            "{\"version\":5}",
        )
        .unwrap();
    });
    let error = recovery.unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::NewerFormat {
                version: 5,
                known: 4,
                ..
            }
        ),
        "{error}"
    );
    assert!(fixture.path("/var/lib/nodepki/journal.json").exists());
}

#[test]
fn refuses_second_commit_over_an_unfinished_journal() {
    let fixture = start();
    let (_, text) = run("commit-twice", &fixture, "finish:rename-one:2=EIO");
    assert!(text.contains("an earlier commit is not finished"), "{text}");
    drop(fixture.recover());
    assert!(assert_all_old_or_all_new(&fixture, "commit-twice"));
}
