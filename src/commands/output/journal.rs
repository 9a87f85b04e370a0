//! Log events in the journal's native protocol, and the catalogue of messages that have an id.
//!
//! An event whose name is in the catalogue gets its id as `MESSAGE_ID` in the journal; text and JSON lines do not contain
//! the id. The field `x` of an event is the field `NODEPKI_X` of the entry.
//!
//! To add a message: a row here with a new id (`systemd-id128 new`), its text in `packaging/nodepki.catalog`, its row in
//! `packaging/journald.md`, and an event of this name. The tests compare the three. An id is never reused.

use std::io;

use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::agent::{audit, kubelet_requests};

macro_rules! catalogue {
    ($($name:ident: $text:literal, $id:literal;)+ @agent { $($of_agent:path, $agent_id:literal;)+ }) => {
        $(pub(super) const $name: &str = $text;)+
        /// Names of events with their ids.
        const CATALOGUE: &[(&str, &str)] = &[$(($text, $id),)+ $(($of_agent, $agent_id)),+];
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
    // Events that the agent logs itself.
    @agent {
        kubelet_requests::DECIDED, "8796509fb10c440ab213b3882c5e8e89";
        kubelet_requests::WAITS, "570bc14fa5e246599355ed397298e5a1";
        audit::RECORDED, "918eb6e681e7403e9c64d12b0330da70";
        audit::NOT_RECORDED, "83ccdc42873245b286523d2a99d765fe";
    }
}

/// Returns the layers that send every event to the journal. A custom field has the same value in all entries of a layer,
/// so that each message of the catalogue has its own layer.
pub(super) fn layers<S>() -> io::Result<Vec<Box<dyn Layer<S> + Send + Sync>>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let mut layers = vec![
        layer()?
            .with_filter(filter_fn(|event| id(event).is_none()))
            .boxed(),
    ];
    for (_, message_id) in CATALOGUE {
        let has_id = filter_fn(move |event| id(event) == Some(message_id));
        let layer = layer()?.with_custom_fields([("MESSAGE_ID", message_id)]);
        layers.push(layer.with_filter(has_id).boxed());
    }
    Ok(layers)
}

fn layer() -> io::Result<tracing_journald::Layer> {
    Ok(tracing_journald::layer()?
        .with_field_prefix(Some("NODEPKI".to_owned()))
        .with_syslog_identifier("nodepki".to_owned()))
}

fn id(event: &Metadata<'_>) -> Option<&'static str> {
    let row = CATALOGUE.iter().find(|(name, _)| *name == event.name());
    row.map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_unique_names_and_valid_ids() {
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

    /// `journalctl -x` shows these texts.
    #[test]
    fn has_one_catalogue_text_for_each_message() {
        let catalogue = include_str!("../../../packaging/nodepki.catalog");
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
    fn documents_each_message_with_its_id() {
        let page = include_str!("../../../packaging/journald.md");
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
}
