//! The process is killed, or a system call fails, at every step of the store; the next start must leave every pair
//! whole, and lose no key.

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
    Class, Commit, Durability, Error, Issued, Mode, Note, Phase, Recovery, Root, Store, Ticket,
};

use super::store::{CSR, Fixture, KEY, NOW, PKI, leftovers, open, ticket};

/// Pairs that are replaced, one that is new, a file alone, one that stays as it is, and one that goes.
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
const CONF: &str = "/etc/kubernetes/admin.conf";
const KEPT: &str = "/etc/kubernetes/pki/sa.key";
const GONE: &str = "/etc/kubernetes/pki/ca.key";
const CA_KEY: &str = "the bytes of a CA key";
/// A link that leads elsewhere then, and the file beside it that is new.
const LINK: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
const LINKED: &str = "/var/lib/kubelet/pki/kubelet-client-2026-03-04-05-06-07.pem";
const OLD_LINKED: &str = "/var/lib/kubelet/pki/kubelet-client-2025-03-04-05-06-07.pem";

fn start() -> Fixture {
    let fixture = Fixture::new();
    for (key, crt) in &PAIRS[..2] {
        fixture.write(key, "old", 0o600);
        fixture.write(crt, "old", 0o644);
    }
    fixture.write(CONF, "old", 0o600);
    fixture.write(KEPT, "kept", 0o600);
    fixture.write(GONE, CA_KEY, 0o600);
    fixture.write(OLD_LINKED, "old", 0o600);
    symlink(OLD_LINKED, fixture.path(LINK)).unwrap();
    let slot = CertName::Apiserver.into();
    fixture
        .store()
        .create_pending(slot, KEY, CSR, &ticket(), Durability::Cached)
        .unwrap();
    fixture
}

fn change() -> Commit {
    let mut commit = Commit::new();
    for (key, crt) in PAIRS {
        commit
            .file(crt, b"new".to_vec(), Mode::Public)
            .file(key, b"new".to_vec(), Mode::Private);
    }
    commit
        .file(CONF, b"new".to_vec(), Mode::Private)
        .file(KEPT, b"kept".to_vec(), Mode::Private)
        .remove(GONE, CA_KEY.as_bytes())
        .link(LINK, name_of(LINKED))
        .file(LINKED, b"new".to_vec(), Mode::Private)
        .completes(CertName::Apiserver.into())
        .issued(
            CertName::Apiserver,
            Issued {
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

/// What the child processes of this file do.
pub(crate) fn child(what: &str, root: &Path) {
    let root = Root::open(root).unwrap();
    let done = |result: Result<(), Error>| {
        if let Err(error) = result {
            println!("\nerror {:?} {error}", error.class());
            std::process::exit(3);
        }
    };
    match what {
        "recover" => done(open(&root).map(drop)),
        "commit" => done(open(&root).and_then(|(mut store, _)| store.commit(change()).map(drop))),
        "commit-files" => done(open(&root).and_then(|(mut store, _)| {
            let mut commit = Commit::new();
            commit.file(CONF, b"new".to_vec(), Mode::Private);
            store.commit(commit).map(drop)
        })),
        "commit-removal" => done(open(&root).and_then(|(mut store, _)| {
            let mut commit = Commit::new();
            commit
                .file(CONF, b"new".to_vec(), Mode::Private)
                .remove(GONE, CA_KEY.as_bytes());
            store.commit(commit).map(drop)
        })),
        "commit-twice" => done(open(&root).and_then(|(mut store, _)| {
            let first = store.commit(change()).map(drop);
            assert!(first.is_err());
            store.commit(Commit::new()).map(drop)
        })),
        "pending" => done(open(&root).and_then(|(store, _)| pending(&store))),
        other => panic!("{other}"),
    }
}

fn pending(store: &Store) -> Result<(), Error> {
    let slot = CertName::EtcdPeer.into();
    store.create_pending(slot, KEY, CSR, &ticket(), Durability::Synced)?;
    let later = Ticket {
        phase: Phase::Submitting,
        ..ticket()
    };
    store.update_ticket(slot, &later, Durability::Synced)?;
    store.keep_answer(slot, b"answer", Durability::Synced)?;
    store.set_slot_aside(slot, "test", NOW).map(drop)
}

/// Runs a child with a failpoint armed. Its output goes into the error message of whoever is not content.
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

/// A file is never half written, not even for a moment.
fn assert_no_file_is_torn(fixture: &Fixture, place: &str) {
    assert_link_leads_somewhere(fixture, place);
    for (index, (key, crt)) in PAIRS.iter().enumerate() {
        for path in [key, crt] {
            match fs::read_to_string(fixture.path(path)) {
                Ok(text) => assert!(
                    text == "new" || (text == "old" && index < 2),
                    "{place}: {path} holds {text:?}"
                ),
                Err(_) => assert!(index == 2, "{place}: {path} is gone"),
            }
        }
    }
}

/// The link leads to a whole file at every moment.
fn assert_link_leads_somewhere(fixture: &Fixture, place: &str) -> bool {
    let link = fs::read_link(fixture.path(LINK)).unwrap();
    let new = link == Path::new(name_of(LINKED));
    assert!(new || link == Path::new(OLD_LINKED), "{place}: {link:?}");
    let beside = fixture.path(LINK).with_file_name(link.file_name().unwrap());
    let wanted = if new { "new" } else { "old" };
    assert_eq!(fs::read_to_string(beside).unwrap(), wanted, "{place}");
    new
}

/// After a start that went through: old or new as a whole, nothing left behind. True for new.
fn assert_whole(fixture: &Fixture, place: &str) -> bool {
    let new = fixture.text(CONF) == "new";
    for (index, (key, crt)) in PAIRS.iter().enumerate() {
        for path in [key, crt] {
            let text = fs::read_to_string(fixture.path(path)).ok();
            let wanted = match (new, index) {
                (true, _) => Some("new"),
                (false, 2) => None,
                (false, _) => Some("old"),
            };
            assert_eq!(text.as_deref(), wanted, "{place}: {path}");
        }
        if new {
            assert_eq!(
                (fixture.mode(key), fixture.mode(crt)),
                (0o600, 0o644),
                "{place}"
            );
        }
    }
    assert_eq!(fixture.text(KEPT), "kept", "{place}");
    assert_eq!(assert_link_leads_somewhere(fixture, place), new, "{place}");
    assert_eq!(fixture.path(LINKED).exists(), new, "{place}");
    let ca_key = fs::read_to_string(fixture.path(GONE)).ok();
    assert_eq!(ca_key.as_deref(), (!new).then_some(CA_KEY), "{place}");
    assert_eq!(
        leftovers(fixture.dir.path()),
        Vec::<PathBuf>::new(),
        "{place}"
    );
    let slot = fixture.path("/var/lib/nodepki/pending/apiserver/key.pem");
    assert_eq!(
        slot.exists(),
        !new,
        "{place}: the pending key goes when and only when the new pair is there"
    );
    assert_eq!(
        fixture.root().issued().unwrap().len(),
        usize::from(new),
        "{place}"
    );
    new
}

/// Every place that `what` meets, each as often as it meets it.
fn places(what: &str, prepare: impl Fn() -> Fixture) -> Vec<String> {
    let mut places = Vec::new();
    for name in failpoint::STORE {
        for number in 1.. {
            let place = format!("{name}:{number}");
            if !killed(what, &prepare(), &place) {
                break;
            }
            places.push(place);
        }
    }
    places
}

fn names(places: &[String]) -> BTreeSet<&str> {
    places
        .iter()
        .map(|place| place.rsplit_once(':').unwrap().0)
        .collect()
}

#[test]
fn a_commit_killed_anywhere_is_old_or_new_after_the_next_start() {
    let mut met = BTreeSet::new();
    let commit_places = places("commit", start);
    met.extend(names(&commit_places).into_iter().map(str::to_owned));
    let (mut old, mut new) = (0, 0);
    for place in &commit_places {
        let fixture = start();
        assert!(killed("commit", &fixture, place));
        assert_no_file_is_torn(&fixture, place);
        let journal = fixture.path("/var/lib/nodepki/journal.json");
        let text = fs::read_to_string(&journal).unwrap_or_default();
        assert!(!text.contains(&BASE64_STANDARD.encode(CA_KEY)), "{place}");
        let journal = journal.exists();
        let (_, recovery) = fixture.recover();
        let is_new = assert_whole(&fixture, place);
        assert!(is_new || !journal, "{place}: decided and yet not done");
        assert!(recovery.superseded.is_empty(), "{place}");
        *(if is_new { &mut new } else { &mut old }) += 1;
        // And a run that commits, not only recovers, comes to the new files from there.
        fixture.store().commit(change()).unwrap();
        assert!(assert_whole(&fixture, place));
    }
    assert!(
        old > 8 && new > 8,
        "{old} places before the point of commit, {new} after it"
    );

    // The recovery of each of these is killed anywhere in turn.
    let killed_at = |place: &str| {
        let fixture = start();
        assert!(killed("commit", &fixture, place));
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
        assert!(commit_places.iter().any(|place| place == first), "{first}");
        let seconds = places("recover", || killed_at(first));
        assert!(!seconds.is_empty());
        met.extend(names(&seconds).into_iter().map(str::to_owned));
        for second in &seconds {
            let fixture = killed_at(first);
            assert!(killed("recover", &fixture, second));
            let place = format!("{first}, then {second}");
            assert_no_file_is_torn(&fixture, &place);
            drop(fixture.recover());
            assert_eq!(
                assert_whole(&fixture, &place),
                first != "commit:staged:1",
                "{place}"
            );
        }
    }
    met.extend(
        names(&places("pending", Fixture::new))
            .into_iter()
            .map(str::to_owned),
    );
    let all: BTreeSet<String> = failpoint::STORE
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    assert_eq!(met, all, "every place in the list is met");
}

#[test]
fn a_pending_key_survives_a_crash_at_every_step() {
    for place in places("pending", Fixture::new) {
        let fixture = Fixture::new();
        assert!(killed("pending", &fixture, &place));
        let (store, recovery) = fixture.recover();
        let found = store.pending(NOW).unwrap();
        assert_eq!(found.notes, [], "{place}");
        let aside = fixture.path("/var/lib/nodepki/aside").exists();
        let written = place == "pending:written:1";
        // Before the slot has its name nothing was sent, and the key is of no use to anybody.
        assert_eq!(
            found.slots.len(),
            usize::from(!written && !aside),
            "{place}"
        );
        assert_eq!(recovery.swept.is_empty(), !written, "{place}: {recovery:?}");
        for slot in found.slots {
            assert_eq!(slot.key_pem.as_slice(), KEY, "{place}");
            assert!(slot.ticket.is_some() && slot.csr_pem.is_some(), "{place}");
        }
    }
}

#[test]
fn an_error_before_the_point_of_commit_changes_nothing() {
    for name in [
        "commit:recorded",
        "commit:staged-one",
        "commit:staged",
        "commit:synced",
    ] {
        for (errno, class) in [
            ("ENOSPC", Class::NoSpace),
            ("EDQUOT", Class::NoSpace),
            ("EROFS", Class::ReadOnly),
            ("EACCES", Class::Denied),
            ("EPERM", Class::Denied),
            ("EIO", Class::Io),
        ] {
            let fixture = start();
            let (status, text) = run("commit", &fixture, &format!("{name}={errno}"));
            assert_eq!(status.code(), Some(3), "{name}={errno}: {text}");
            assert!(
                text.contains(&format!("error {class:?} ")),
                "{name}={errno}: {text}"
            );
            assert!(
                text.contains("nothing was changed"),
                "{name}={errno}: {text}"
            );
            assert_eq!(
                leftovers(fixture.dir.path()),
                Vec::<PathBuf>::new(),
                "{name}={errno}"
            );
            assert!(!fixture.path(PAIRS[2].0).exists());
            assert!(!assert_whole(&fixture, name));
        }
    }
}

#[test]
fn an_error_after_the_point_of_commit_is_mended_by_the_next_run() {
    for place in [
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
            ("ENOSPC", Class::NoSpace),
            ("EROFS", Class::ReadOnly),
            ("EIO", Class::Io),
        ] {
            let fixture = start();
            let (status, text) = run("commit", &fixture, &format!("{place}={errno}"));
            assert_eq!(status.code(), Some(3), "{place}={errno}: {text}");
            assert!(
                text.contains(&format!("error {class:?} ")),
                "{place}={errno}: {text}"
            );
            assert!(
                text.contains("run the same command again to finish"),
                "{place}={errno}: {text}"
            );
            assert_no_file_is_torn(&fixture, place);
            drop(fixture.recover());
            assert!(assert_whole(&fixture, place));
        }
    }
}

#[test]
fn an_error_in_one_pair_does_not_keep_the_others_from_being_whole() {
    let fixture = start();
    // The second rename is the certificate of the first pair.
    let (_, text) = run("commit", &fixture, "finish:rename-one:2=EROFS");
    assert!(
        text.contains("apiserver.crt"),
        "the private file goes first: {text}"
    );
    for (key, crt) in &PAIRS[1..] {
        assert_eq!(
            (fixture.text(key), fixture.text(crt)),
            ("new".to_owned(), "new".to_owned())
        );
    }
}

/// Kills a commit with the first pair half done, and lets `meddle` change something before the next start.
fn meddled(at: &str, meddle: impl FnOnce(&Fixture)) -> (Fixture, Result<Recovery, Error>) {
    let fixture = start();
    assert!(killed("commit", &fixture, at));
    meddle(&fixture);
    let result = open(&fixture.root()).map(|(_, recovery)| recovery);
    (fixture, result)
}

const NOTHING_RENAMED: &str = "finish:decided";
const KEY_RENAMED: &str = "finish:rename-one:2";
const LINKED_RENAMED: &str = "finish:rename-one:9";

#[test]
fn lost_or_damaged_unfinished_files_are_written_again_from_the_journal() {
    for at in [NOTHING_RENAMED, KEY_RENAMED] {
        let (fixture, recovery) = meddled(at, |fixture| {
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
fn a_pair_that_somebody_replaced_after_the_crash_is_left_to_him() {
    for at in [NOTHING_RENAMED, KEY_RENAMED] {
        let (fixture, recovery) = meddled(at, |fixture| {
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
fn half_a_pair_that_somebody_replaced_is_kept_beside_the_whole_new_one() {
    let (fixture, recovery) = meddled(KEY_RENAMED, |fixture| {
        fs::write(fixture.path(PAIRS[0].1), "pasted").unwrap()
    });
    let recovery = recovery.unwrap();
    assert!(
        matches!(recovery.notes[..], [Note::SetAside { .. }]),
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
fn an_unchanged_key_that_somebody_replaced_keeps_its_certificate_from_changing() {
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
fn a_file_to_be_removed_that_somebody_replaced_after_the_crash_stays() {
    for at in [NOTHING_RENAMED, "finish:remove-one"] {
        let (fixture, recovery) = meddled(at, |fixture| {
            fs::write(fixture.path(GONE), "another key").unwrap();
        });
        let recovery = recovery.unwrap();
        assert_eq!(recovery.superseded, [PathBuf::from(GONE)]);
        assert_eq!(fixture.text(GONE), "another key");
        assert_eq!(fixture.text(PAIRS[0].0), "new");
        assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    }
    let (fixture, recovery) = meddled("finish:remove-one", |_| {});
    assert_eq!(recovery.unwrap().removed, [PathBuf::from(GONE)]);
    assert!(!fixture.path(GONE).exists());
}

#[test]
fn a_link_that_somebody_moved_after_the_crash_is_left_to_him() {
    const THEIRS: &str = "/var/lib/kubelet/pki/kubelet-client-2026-09-09-09-09-09.pem";
    let move_it = |fixture: &Fixture| {
        fixture.write(THEIRS, "theirs", 0o600);
        fs::remove_file(fixture.path(LINK)).unwrap();
        symlink(THEIRS, fixture.path(LINK)).unwrap();
    };
    // Before our file was there, and when it was there and the link was not.
    for (at, ours) in [(NOTHING_RENAMED, false), (LINKED_RENAMED, true)] {
        let (fixture, recovery) = meddled(at, move_it);
        let superseded = recovery.unwrap().superseded;
        assert!(superseded.contains(&PathBuf::from(LINK)), "{at}");
        assert_eq!(
            fs::read_link(fixture.path(LINK)).unwrap(),
            Path::new(THEIRS)
        );
        assert_eq!(fixture.path(LINKED).exists(), ours, "{at}");
        assert_eq!(fixture.text(CONF), "new", "{at}");
        assert_eq!(leftovers(fixture.dir.path()), Vec::<PathBuf>::new());
    }
    // The same when a file was put there.
    let (fixture, recovery) = meddled(LINKED_RENAMED, |fixture| {
        fs::remove_file(fixture.path(LINK)).unwrap();
        fixture.write(LINK, "theirs", 0o600);
    });
    assert_eq!(recovery.unwrap().superseded, [PathBuf::from(LINK)]);
    assert_eq!(fixture.text(LINK), "theirs");
}

#[test]
fn a_link_in_the_journal_that_leads_elsewhere_is_damage() {
    let (fixture, recovery) = meddled(NOTHING_RENAMED, |fixture| {
        let path = fixture.path("/var/lib/nodepki/journal.json");
        let text = fs::read_to_string(&path).unwrap();
        let wanted = format!("link:{}", name_of(LINKED));
        assert!(text.contains(&wanted));
        fs::write(path, text.replace(&wanted, "link:../../../../tmp/x")).unwrap();
    });
    let error = recovery.unwrap_err().to_string();
    assert!(error.contains("the contents for"), "{error}");
    assert!(!assert_link_leads_somewhere(&fixture, "damaged"));
}

#[test]
fn only_a_journal_with_a_removal_or_a_link_is_beyond_an_older_nodepki() {
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
fn something_in_the_way_of_the_recovery_is_named_and_the_journal_kept() {
    let (fixture, recovery) = meddled(NOTHING_RENAMED, |fixture| {
        fs::remove_file(fixture.path(PAIRS[0].1)).unwrap();
        fs::create_dir(fixture.path(PAIRS[0].1)).unwrap();
    });
    let error = recovery.unwrap_err();
    assert_eq!(error.class(), Class::Unsafe);
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
    assert!(assert_whole(&fixture, "after the directory is gone"));
}

#[test]
fn refuses_damaged_journal_and_leaves_it_untouched() {
    for damage in ["{\"version\":1,\"entries\":[", "", "{\"version\":\"x\"}"] {
        let (fixture, recovery) = meddled(NOTHING_RENAMED, |fixture| {
            fs::write(fixture.path("/var/lib/nodepki/journal.json"), damage).unwrap();
        });
        let path = fixture.path("/var/lib/nodepki/journal.json");
        for error in [recovery.unwrap_err(), open(&fixture.root()).unwrap_err()] {
            assert_eq!(error.class(), Class::Unsafe);
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains("nodepki plan"), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        }
        fs::remove_file(path).unwrap();
        drop(fixture.recover());
        assert!(!assert_whole(&fixture, damage));
    }
}

#[test]
fn contents_that_do_not_fit_their_digest_are_not_installed() {
    let (fixture, recovery) = meddled(NOTHING_RENAMED, |fixture| {
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
fn the_journal_of_a_newer_nodepki_is_left_to_it() {
    let (fixture, recovery) = meddled(NOTHING_RENAMED, |fixture| {
        fs::write(
            fixture.path("/var/lib/nodepki/journal.json"),
            "{\"version\":4}",
        )
        .unwrap();
    });
    let error = recovery.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NewerFormat {
                version: 4,
                known: 3,
                ..
            }
        ),
        "{error}"
    );
    assert!(fixture.path("/var/lib/nodepki/journal.json").exists());
}

#[test]
fn no_second_commit_takes_the_place_of_an_unfinished_journal() {
    let fixture = start();
    let (_, text) = run("commit-twice", &fixture, "finish:rename-one:2=EIO");
    assert!(text.contains("an earlier commit is not finished"), "{text}");
    drop(fixture.recover());
    assert!(assert_whole(&fixture, "commit-twice"));
}
