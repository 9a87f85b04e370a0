//! What a node tells the cluster about its certificates, in an annotation of its Node: for each its name, authority, end,
//! renewal and state. No key, no serial number, no name of a user.
//!
//! Other nodes write what is read here, so it is limited in size and in characters, and unknown fields are ignored.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::status::NodeStatus;
use crate::kube::names::CertName;

/// Key of the annotation.
pub const ANNOTATION: &str = "nodepki.io/certificates";
/// Largest annotation in bytes. One of a control-plane node has 3,000; all annotations of an object together may have 256 KiB.
const MAX_BYTES: usize = 64 << 10;
/// Largest number of certificates, of which kubeadm has 16, with the CAs.
const MAX_CERTIFICATES: usize = 200;
/// Largest length of a word, as of a label of Prometheus that is not truncated in a table.
const MAX_WORD: usize = 63;
/// Time after a renewal is due from which a node without another report has a problem.
const OVERDUE: time::Duration = time::Duration::hours(1);

/// The certificates of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSummary {
    /// Version of nodepki on the node.
    pub version: String,
    /// Time of the last change of the report.
    #[serde(with = "rfc3339")]
    pub reported: OffsetDateTime,
    /// The certificates and authorities.
    pub certificates: Vec<CertificateSummary>,
}

/// One certificate, or the first one of an authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSummary {
    /// kubeadm's name.
    pub name: String,
    /// Authority that should have signed it; absent for an authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// State on the node, in the words of `nodepki status`.
    pub state: String,
    /// End of validity.
    #[serde(with = "rfc3339::option", default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<OffsetDateTime>,
    /// When the node renews it.
    #[serde(with = "rfc3339::option", default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal: Option<OffsetDateTime>,
    /// Verdict of the key policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<String>,
}

/// An annotation that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SummaryError {
    /// More than the limit.
    #[error("it has more than {MAX_BYTES} bytes or {MAX_CERTIFICATES} certificates")]
    TooLarge,
    /// Another format.
    #[error("it is not a report of nodepki: {0}")]
    Format(String),
    /// A name, state or version with other characters than those of a name.
    #[error(
        "it contains a word with other characters than letters, digits, spaces, \".\", \"+\" and \"-\""
    )]
    Word,
}

impl NodeSummary {
    /// Returns the report on a status; `renewal` is the time at which the node renews a certificate.
    pub fn of(
        status: &NodeStatus,
        renewal: impl Fn(CertName) -> Option<OffsetDateTime>,
    ) -> NodeSummary {
        let certificates = status.certificates.iter().map(|row| CertificateSummary {
            name: row.name.to_string(),
            authority: Some(row.authority.to_string()),
            state: row.state.to_string(),
            not_after: row.certificate.as_ref().map(|facts| facts.not_after),
            renewal: renewal(row.name),
            key_policy: row.key_policy.map(|verdict| verdict.as_str().to_owned()),
        });
        let authorities = status.authorities.iter().map(|row| CertificateSummary {
            name: row.name.to_string(),
            authority: None,
            state: row.state.to_string(),
            not_after: row.certificates.first().map(|facts| facts.not_after),
            renewal: None,
            key_policy: row.key_policy.map(|verdict| verdict.as_str().to_owned()),
        });
        NodeSummary {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            reported: status.at,
            certificates: certificates
                .chain(authorities)
                .take(MAX_CERTIFICATES)
                .collect(),
        }
    }

    /// Reads an annotation.
    ///
    /// # Errors
    /// See [`SummaryError`].
    pub fn parse(text: &str) -> Result<NodeSummary, SummaryError> {
        if text.len() > MAX_BYTES {
            return Err(SummaryError::TooLarge);
        }
        let summary: NodeSummary =
            serde_json::from_str(text).map_err(|error| SummaryError::Format(error.to_string()))?;
        if summary.certificates.len() > MAX_CERTIFICATES {
            return Err(SummaryError::TooLarge);
        }
        let words = summary.certificates.iter().flat_map(|one| {
            let optional = [&one.authority, &one.key_policy];
            [&one.name, &one.state]
                .into_iter()
                .chain(optional.into_iter().flatten())
        });
        if !words.chain([&summary.version]).all(|word| is_word(word)) {
            return Err(SummaryError::Word);
        }
        Ok(summary)
    }

    /// Returns the text of the annotation.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns whether an annotation says the same, at whatever time.
    pub fn is_in(&self, annotation: &str) -> bool {
        NodeSummary::parse(annotation).is_ok_and(|mut other| {
            other.reported = self.reported;
            other == *self
        })
    }
}

impl CertificateSummary {
    /// Returns the state now, of which the report may know nothing: `expired`, or `overdue` if the node has not renewed it.
    pub fn state_at(&self, now: OffsetDateTime) -> &str {
        if self.not_after.is_some_and(|end| end <= now) {
            return "expired";
        }
        if self.renewal.is_some_and(|due| due + OVERDUE <= now) {
            return "overdue";
        }
        &self.state
    }
}

fn is_word(text: &str) -> bool {
    let is_character = |c: char| c.is_ascii_alphanumeric() || " .+-".contains(c);
    (1..=MAX_WORD).contains(&text.len()) && text.chars().all(is_character)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const END: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);

    fn summary() -> NodeSummary {
        NodeSummary {
            version: "0.1.0".to_owned(),
            reported: datetime!(2026-11-01 00:00 UTC),
            certificates: vec![CertificateSummary {
                name: "apiserver".to_owned(),
                authority: Some("ca".to_owned()),
                state: "ok".to_owned(),
                not_after: Some(END),
                renewal: Some(datetime!(2026-12-01 00:00 UTC)),
                key_policy: Some("not compliant".to_owned()),
            }],
        }
    }

    #[test]
    fn says_the_same_at_another_time_and_with_unknown_fields() {
        let mut later = summary();
        later.reported += time::Duration::days(1);
        assert!(later.is_in(&summary().to_text()));
        let newer = summary().to_text().replacen('{', "{\"signer\":1,", 1);
        assert!(later.is_in(&newer));
        later.certificates[0].renewal = None;
        assert!(!later.is_in(&summary().to_text()));
        assert!(!later.is_in("no JSON"));
    }

    #[test]
    fn refuses_what_another_node_must_not_print() {
        let with = |change: fn(&mut NodeSummary)| {
            let mut changed = summary();
            change(&mut changed);
            NodeSummary::parse(&changed.to_text()).unwrap_err()
        };
        let word = |change: fn(&mut CertificateSummary)| {
            let mut changed = summary();
            change(&mut changed.certificates[0]);
            NodeSummary::parse(&changed.to_text())
        };
        assert_eq!(word(|_| ()), Ok(summary()));
        assert_eq!(
            word(|one| one.name = "\u{1b}[2J".to_owned()),
            Err(SummaryError::Word)
        );
        assert_eq!(
            word(|one| one.state = "o\nk".to_owned()),
            Err(SummaryError::Word)
        );
        assert_eq!(
            word(|one| one.name = "x".repeat(64)),
            Err(SummaryError::Word)
        );
        assert_eq!(
            word(|one| one.authority = Some(String::new())),
            Err(SummaryError::Word)
        );
        assert_eq!(
            with(|all| all.version = "\"".to_owned()),
            SummaryError::Word
        );
        assert_eq!(
            with(|all| all.certificates = vec![all.certificates[0].clone(); 201]),
            SummaryError::TooLarge
        );
        let long = " ".repeat(MAX_BYTES + 1);
        let said = |text: &str| NodeSummary::parse(text).unwrap_err().to_string();
        assert_eq!(
            said(&long),
            "it has more than 65536 bytes or 200 certificates"
        );
        let other = said("7");
        assert!(
            other.starts_with("it is not a report of nodepki: "),
            "{other}"
        );
    }

    #[test]
    fn state_follows_the_time() {
        let certificate = &summary().certificates[0];
        for (at, state) in [
            (datetime!(2026-12-01 00:59 UTC), "ok"),
            (datetime!(2026-12-01 01:00 UTC), "overdue"),
            (END, "expired"),
        ] {
            assert_eq!(certificate.state_at(at), state);
        }
    }
}
