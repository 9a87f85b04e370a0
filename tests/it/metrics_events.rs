//! Events in the journal: the datagrams that the real binary sends, and the catalogue that `journalctl -x` reads.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::node::{Node, Ran, with_mounts};

type Entry = BTreeMap<String, String>;

/// Runs `command` with a private journal socket, and returns the entries that were sent to it.
fn run_with_journal(node: &Node, command: &Command) -> (Ran, Vec<Entry>) {
    let directory = node.outside("journal");
    fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("socket");
    let _ = fs::remove_file(&socket);
    let journal = UnixDatagram::bind(&socket).unwrap();
    journal
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let script = format!(
        "mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/journal; mount --bind {} /run/systemd/journal",
        directory.display()
    );
    // The socket's queue is short, so a thread reads while the command runs.
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut entries = Vec::new();
            let mut datagram = vec![0; 256 * 1024];
            loop {
                match journal.recv(&mut datagram) {
                    Ok(0) => {}
                    Ok(length) => entries.push(entry(&datagram[..length])),
                    Err(_) if over.load(std::sync::atomic::Ordering::Relaxed) => return entries,
                    Err(_) => {}
                }
            }
        });
        let ran = with_mounts(node, command, &script);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        (ran, reader.join().unwrap())
    })
}

/// Parses a datagram of <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>.
fn entry(mut datagram: &[u8]) -> Entry {
    let mut entry = Entry::new();
    while !datagram.is_empty() {
        let end = datagram.iter().position(|byte| *byte == b'\n').unwrap();
        let line = std::str::from_utf8(&datagram[..end]).unwrap();
        // A field is `NAME=value`, or the name alone, the length of the value, and the value.
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => {
                datagram = &datagram[end + 1..];
                (name, value)
            }
            None => {
                let (length, rest) = datagram[end + 1..].split_at(8);
                let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
                let value = std::str::from_utf8(&rest[..length]).unwrap();
                assert_eq!(rest[length], b'\n');
                datagram = &rest[length + 1..];
                (line, value)
            }
        };
        assert!(
            name.bytes()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_'),
            "{name}"
        );
        let twice = entry.insert(name.to_owned(), value.to_owned());
        assert_eq!(twice, None, "{name} occurs twice");
    }
    entry
}

/// Returns the id of a message on the documentation page, which a unit test compares with the code.
fn id(name: &str) -> String {
    let page = include_str!("../../packaging/journald.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{name}` |")))
        .unwrap();
    row.split('`').nth(3).unwrap().to_owned()
}

fn find<'a>(entries: &'a [Entry], message: &str, certificate: &str) -> &'a Entry {
    let id = id(message);
    entries
        .iter()
        .find(|entry| {
            entry.get("MESSAGE_ID") == Some(&id)
                && entry.get("NODEPKI_CERTIFICATE").map(String::as_str) == Some(certificate)
        })
        .unwrap_or_else(|| panic!("no {message} of {certificate} in {entries:#?}"))
}

fn bootstrap_with_journal_log(node: &Node) -> Command {
    let mut command = node.ask_command("0s");
    command.args(["--log", "journal"]);
    command
}

#[test]
fn sends_events_of_certificates_with_id_and_fields() {
    let node = Node::new();
    node.settings("");
    let (ran, entries) = run_with_journal(&node, &bootstrap_with_journal_log(&node));
    ran.done();
    let issued = find(&entries, "certificate-issued", "etcd-peer");
    let (chain, _) = node.leaf(nodepki::kube::names::CertName::EtcdPeer).unwrap();
    assert_eq!(issued["NODEPKI_AUTHORITY"], "etcd-ca");
    assert_eq!(issued["NODEPKI_SIGNER"], "s");
    assert_eq!(issued["NODEPKI_SERIAL"], chain.leaf().serial());
    assert_eq!(
        issued["NODEPKI_NOT_AFTER"],
        nodepki::text::rfc3339(chain.leaf().not_after())
    );
    assert_eq!(issued["SYSLOG_IDENTIFIER"], "nodepki");
    assert_eq!(issued["PRIORITY"], "5");
    // `journalctl -t nodepki` shows the message alone.
    let message = format!(
        "etcd-peer: issued by s, serial {}, valid until {}",
        chain.leaf().serial(),
        nodepki::text::rfc3339(chain.leaf().not_after())
    );
    assert_eq!(issued["MESSAGE"], message.as_str());
    for entry in &entries {
        let message = &entry["MESSAGE"];
        assert!(!message.is_empty(), "{entry:?}");
        for field in ["NODEPKI_CERTIFICATE", "NODEPKI_WHY"] {
            let value = entry.get(field).map_or("", String::as_str);
            assert!(message.contains(value), "{entry:?}");
        }
    }
    // Only messages of the catalogue have an id, and every field of nodepki has its prefix.
    for entry in &entries {
        for name in entry.keys() {
            let known = [
                "MESSAGE",
                "MESSAGE_ID",
                "PRIORITY",
                "SYSLOG_IDENTIFIER",
                "TARGET",
                "CODE_FILE",
                "CODE_LINE",
            ];
            assert!(
                name.starts_with("NODEPKI_") || known.contains(&name.as_str()),
                "{name}"
            );
        }
        assert!(
            !entry.values().any(|value| value.contains("PRIVATE KEY")),
            "{entry:?}"
        );
    }

    // A new name of the API server: the installed certificate no longer matches.
    node.settings("extraSANs: {apiserver: [other.example.com]}\n");
    node.signer_does("apiserver", "pending");
    let (ran, entries) = run_with_journal(&node, &bootstrap_with_journal_log(&node));
    assert_ne!(ran.code, Some(64), "{}", ran.said());
    let pending = find(&entries, "certificate-pending", "apiserver");
    assert!(!pending["NODEPKI_WHY"].is_empty());
    let expiring = find(&entries, "certificate-expiring", "apiserver");
    assert!(expiring["NODEPKI_NOT_AFTER"].ends_with('Z'), "{expiring:?}");
    node.signer_behaves();
    let (ran, entries) = run_with_journal(&node, &bootstrap_with_journal_log(&node));
    ran.done();
    find(&entries, "certificate-renewed", "apiserver");
    node.settings("extraSANs: {apiserver: [third.example.com]}\n");
    node.signer_does("apiserver", "bad wrong-key");
    let (ran, entries) = run_with_journal(&node, &bootstrap_with_journal_log(&node));
    ran.ended(65);
    let refused = find(&entries, "certificate-refused", "apiserver");
    assert!(refused["NODEPKI_WHY"].contains("key"), "{refused:?}");
}

/// Only the journal contains ids: text and JSON logs do not.
#[test]
fn omits_ids_from_other_logs() {
    for format in ["text", "json"] {
        let node = Node::new();
        node.settings("");
        let mut command = node.ask_command("0s");
        let ran = Ran::of(command.args(["-v", "--log", format]));
        ran.done()
            .says("issued")
            .says("certificate")
            .says_not(&id("certificate-issued"));
    }
}

#[test]
fn journalctl_reads_the_message_catalogue() {
    let dir = tempfile::tempdir().unwrap();
    let catalogues = dir.path().join("usr/lib/systemd/catalog");
    fs::create_dir_all(&catalogues).unwrap();
    fs::create_dir_all(dir.path().join("var/lib/systemd/catalog")).unwrap();
    fs::write(
        catalogues.join("nodepki.catalog"),
        include_str!("../../packaging/nodepki.catalog"),
    )
    .unwrap();
    let journalctl = |what: &str| {
        let mut command = Command::new("journalctl");
        let ran = Ran::of(command.arg("--root").arg(dir.path()).arg(what));
        ran.done();
        ran
    };
    journalctl("--update-catalog").says_not("nodepki.catalog:");
    let listed = journalctl("--list-catalog");
    let page = include_str!("../../packaging/journald.md");
    let ids = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| row.split('`').nth(3).unwrap());
    for id in ids {
        listed.says(&format!("{id} nodepki: "));
    }
}
