//! The journal's native protocol, and the catalogue of messages that are known by an id.
//!
//! A message of the catalogue is an event whose name is in the table; the id goes to the journal only, so that lines
//! for people and JSON stay as they are. Every field `x` of an event is the field `NODEPKI_X` of the entry.
//!
//! To add a message: a row here with a new id (`systemd-id128 new`), its text in `packaging/nodepki.catalog`, its row in
//! `packaging/journald.md`, and an event of its name where it happens. The tests hold the three against each other. An
//! id is never used for anything else again.

use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

const SOCKET: &str = "/run/systemd/journal/socket";
/// Of a value: all fields of an entry have to fit into one datagram.
const LONGEST: usize = 16 * 1024;

macro_rules! catalogue {
    ($($name:ident: $text:literal, $id:literal;)+) => {
        $(pub(super) const $name: &str = $text;)+
        /// Names of events, and what the journal knows them by.
        const CATALOGUE: &[(&str, &str)] = &[$(($text, $id)),+];
    };
}

catalogue! {
    ISSUED: "certificate-issued", "109b7f12a5064b7c8f39e0847a9002b7";
    RENEWED: "certificate-renewed", "6525a2b8040940e59317ba1bf01216a6";
    PENDING: "certificate-pending", "319644b0feac4ebda1afd8261bb27bdc";
    REFUSED: "certificate-refused", "45bcf726a4f64542ad561b554d104621";
    FAILED: "certificate-failed", "6e1a6c62a04a4fa4a3a3be349b3c7f68";
    EXPIRING: "certificate-expiring", "04d31f83f82c42bb8654a1f7ef366a35";
    RESTARTED: "component-restarted", "9a0a55b9132940368abe46c5d4d2bdf6";
    ROLLED_BACK: "component-rolled-back", "72b5947491a0497c9db4af9ef36ca91a";
    CLOCK_DOUBTED: "clock-doubted", "00d20d44e2b84a3e9fe51bf6572216f0";
}

/// Sends every event to the journal.
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// # Errors
    /// When there is no journal.
    pub(super) fn open() -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        // The journal throws an empty datagram away.
        socket.send_to(&[], SOCKET)?;
        Ok(Journal(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Nobody is left to tell.
        let _ = self.0.send_to(&entry(event), SOCKET);
    }
}

fn entry(event: &Event<'_>) -> Vec<u8> {
    let metadata = event.metadata();
    let mut entry = Entry(Vec::new());
    entry.put("SYSLOG_IDENTIFIER", "nodepki");
    entry.put("PRIORITY", priority(*metadata.level()));
    if let Some((_, id)) = CATALOGUE.iter().find(|(name, _)| *name == metadata.name()) {
        entry.put("MESSAGE_ID", id);
    }
    event.record(&mut entry);
    entry.0
}

const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    }
}

/// <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>
struct Entry(Vec<u8>);

impl Entry {
    fn put(&mut self, name: &str, value: &str) {
        let mut end = value.len().min(LONGEST);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let value = value.get(..end).unwrap_or_default();
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.0
            .extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }

    fn put_field(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return self.put("MESSAGE", value);
        }
        let upper = |c: char| match c {
            c if c.is_ascii_alphanumeric() => c.to_ascii_uppercase(),
            _ => '_',
        };
        let name: String = field.name().chars().map(upper).collect();
        self.put(&format!("NODEPKI_{name}"), value);
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_field(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ids_and_nothing_is_there_twice() {
        for (index, (name, id)) in CATALOGUE.iter().enumerate() {
            assert_eq!(id.len(), 32, "{name}");
            assert!(
                id.chars()
                    .all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)),
                "{name}"
            );
            for (other, other_id) in &CATALOGUE[..index] {
                assert_ne!(name, other);
                assert_ne!(id, other_id);
            }
        }
    }

    /// What `journalctl -x` shows: one text for each message and no other.
    #[test]
    fn the_message_catalogue_has_a_text_for_each() {
        let catalogue = include_str!("../../packaging/nodepki.catalog");
        let heads = catalogue
            .lines()
            .filter_map(|line| line.strip_prefix("-- "));
        let ids: Vec<&str> = CATALOGUE.iter().map(|(_, id)| *id).collect();
        assert_eq!(heads.collect::<Vec<_>>(), ids);
        for text in catalogue.split("\n-- ").skip(1) {
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[1].starts_with("Subject: "), "{text}");
            assert_eq!(lines[2], "Defined-By: nodepki", "{text}");
            assert!(lines[3].is_empty() && lines[4].ends_with('.'), "{text}");
        }
    }

    #[test]
    fn the_page_names_each_with_its_id() {
        let page = include_str!("../../packaging/journald.md");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let rows: Vec<String> = rows
            .map(|row| {
                row.split('|')
                    .skip(1)
                    .take(2)
                    .map(str::trim)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        let wanted: Vec<String> = CATALOGUE
            .iter()
            .map(|(name, id)| format!("`{name}` `{id}`"))
            .collect();
        assert_eq!(rows, wanted);
    }

    #[test]
    fn a_value_cannot_forge_a_field_and_is_cut_where_a_character_ends() {
        let mut entry = Entry(Vec::new());
        entry.put("MESSAGE", "a\nMESSAGE_ID=0");
        assert_eq!(entry.0, b"MESSAGE\n\x0e\0\0\0\0\0\0\0a\nMESSAGE_ID=0\n");
        let mut entry = Entry(Vec::new());
        entry.put("MESSAGE", &"€".repeat(LONGEST));
        assert_eq!(entry.0.len(), "MESSAGE\n".len() + 8 + LONGEST / 3 * 3 + 1);
    }
}
