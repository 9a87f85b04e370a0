//! The reasons of a row, and the remarks on it: values that only the output of the commands turns into text.

use std::rc::Rc;

use serde::Serializer;
use serde::ser::SerializeMap;

use crate::agent::failure::{Failure, FailureMessage, sentence};
use crate::agent::request::{AnswerFault, PendingReason};
use crate::agent::survey::ServiceAccountFault;
use crate::kube::names::{Authority, CertName};
use crate::signer::{Rejection, SignerError};
use crate::spec::BundleCopy;
use crate::spec::assess::{CertNote, CertReason, CertRefusal, ObservedFault, RenewalHold};

/// A reason for the action of a row, or a remark.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum RowReason {
    /// Why a certificate is issued or its files are written.
    #[error("{0}")]
    Certificate(CertReason),
    /// A remark on a certificate.
    #[error("{0}")]
    Note(CertNote),
    /// Why nothing is done for a certificate, or under an authority.
    #[error("{0}")]
    Refusal(CertRefusal),
    /// Why the service-account pair is refused.
    #[error("{0}")]
    ServiceAccount(ServiceAccountFault),
    #[error("{0}")]
    BundleUnusable(ObservedFault),
    #[error("{} is not a copy of the CA certificates, which {} needs", .0.path, .0.of)]
    CopyDiffers(BundleCopy),
    /// Where the cluster provides a file.
    #[error("from {0}")]
    Provided(String),
    #[error("the pair is installed together with the certificates under {0}")]
    WaitsForCertificates(Authority),
    #[error(
        "signed; it is installed together with the other certificates of {authority} (missing: {})",
        names(missing)
    )]
    WaitsForOthers {
        authority: Authority,
        missing: Vec<CertName>,
    },
    #[error("{0}")]
    CannotSign(Rejection),
    #[error(
        "the control plane runs without {0}: `certificates: {{omit: [{0}]}}` in the settings omits it"
    )]
    Omittable(CertName),
    #[error("{0}")]
    Pending(PendingReason),
    /// The signer's reason.
    #[error(
        "the signer denied the request: {0} (resolve this with the administrator of the signer, and run again)"
    )]
    Denied(String),
    #[error("{0}")]
    Answer(AnswerFault),
    #[error(
        "this certificate was not installed; correct the signer's profile or the configuration and run again"
    )]
    NotInstalled,
    #[error("{}", sentence(.0.as_ref()))]
    SignerFailed(Rc<SignerError>),
    #[error("{0}")]
    Failed(FailureMessage),
    #[error("the certificate in place is kept and still valid")]
    StillValid,
    /// The proof that a component uses new files, or the problem and its remedy, in words.
    #[error("{0}")]
    Restart(String),
    /// The proof of a step of a CA change, in words.
    #[error("{0}")]
    AuthorityChange(String),
    /// The content of a revocation list, or the problem, in words.
    #[error("{0}")]
    RevocationList(String),
    /// The difference of a Secret, in words.
    #[error("{0}")]
    Secret(String),
}

codes!(RowReason {
    BundleUnusable, CopyDiffers, Provided, WaitsForCertificates, WaitsForOthers, CannotSign, Omittable, Denied,
    NotInstalled, SignerFailed, Failed, StillValid, Restart, AuthorityChange, RevocationList, Secret;
    Certificate, Note, Refusal, ServiceAccount, Pending, Answer
});

impl RowReason {
    /// Returns whether the rows of two certificates have the same cause: the reasons differ at most in the certificate and
    /// its files.
    pub fn has_same_cause(&self, other: &RowReason) -> bool {
        match (self, other) {
            (RowReason::Omittable(_), RowReason::Omittable(_)) => true,
            (RowReason::Refusal(one), RowReason::Refusal(other)) => one.has_same_cause(other),
            (RowReason::Pending(one), RowReason::Pending(other)) => one.has_same_cause(other),
            (RowReason::Failed(one), RowReason::Failed(other)) => one.has_same_cause(other),
            (RowReason::SignerFailed(one), RowReason::SignerFailed(other)) => {
                one.has_same_cause(other)
            }
            (RowReason::CannotSign(one), RowReason::CannotSign(other)) => {
                (&one.signer, &one.reason) == (&other.signer, &other.reason)
            }
            (
                RowReason::Note(CertNote::OldCopies { until: one, .. }),
                RowReason::Note(CertNote::OldCopies { until: other, .. }),
            ) => one == other,
            _ => self == other,
        }
    }

    /// Returns true if `renew --force` would have renewed the certificate.
    pub fn is_ended_by_force(&self) -> bool {
        let RowReason::Note(CertNote::HeldBack { hold, .. }) = self else {
            return false;
        };
        matches!(
            hold,
            RenewalHold::JustRenewed {
                is_requested: true,
                ..
            }
        )
    }

    /// Returns the authority whose activation installs the certificate.
    pub fn staged_authority(&self) -> Option<Authority> {
        match self {
            RowReason::Pending(PendingReason::UnderStagedAuthority(authority)) => Some(*authority),
            _ => None,
        }
    }

    /// Returns the reasons of a failure.
    pub(in crate::agent) fn of_failure(failure: &Failure) -> Vec<RowReason> {
        let messages = failure.messages.iter().cloned();
        messages.map(RowReason::Failed).collect()
    }
}

fn names(certificates: &[CertName]) -> String {
    let names: Vec<&str> = certificates.iter().map(|name| name.as_str()).collect();
    names.join(", ")
}

/// Serializes the reasons of a row as `reasons`, and their codes as `codes`.
pub(super) fn serialize<S: Serializer>(
    reasons: &[RowReason],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("reasons", &texts)?;
    map.serialize_entry("codes", &codes(reasons))?;
    map.end()
}

/// Returns the codes of several reasons.
pub(crate) fn codes(reasons: &[RowReason]) -> Vec<&'static str> {
    reasons.iter().map(RowReason::code).collect()
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;
    use time::macros::datetime;

    use super::*;

    use crate::signer::FailureClass;
    use crate::x509::CertDifference;

    const AT: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

    #[test]
    fn states_each_reason_with_its_code() {
        let error = SignerError::new(FailureClass::Transient, "no route", "examine the network");
        let postponed = |submissions| {
            RowReason::Pending(PendingReason::Postponed {
                submissions,
                next: AT,
                name: CertName::Apiserver,
                last: Some("busy".to_owned()),
            })
        };
        for (reason, code, text) in [
            (
                RowReason::BundleUnusable(ObservedFault::Empty),
                "BundleUnusable",
                "is empty",
            ),
            (
                RowReason::CopyDiffers(BundleCopy {
                    of: CertName::EtcdServer,
                    path: "/copy.crt".into(),
                }),
                "CopyDiffers",
                "/copy.crt is not a copy of the CA certificates, which etcd-server needs",
            ),
            (
                RowReason::WaitsForCertificates(Authority::Ca),
                "WaitsForCertificates",
                "the pair is installed together with the certificates under ca",
            ),
            (
                RowReason::WaitsForOthers {
                    authority: Authority::EtcdCa,
                    missing: vec![CertName::EtcdServer, CertName::EtcdPeer],
                },
                "WaitsForOthers",
                "signed; it is installed together with the other certificates of etcd-ca (missing: etcd-server, etcd-peer)",
            ),
            (
                RowReason::Omittable(CertName::SuperAdminConf),
                "Omittable",
                "the control plane runs without super-admin.conf: `certificates: {omit: [super-admin.conf]}` in the settings omits it",
            ),
            (
                RowReason::Denied("no".to_owned()),
                "Denied",
                "the signer denied the request: no (resolve this with the administrator of the signer, and run again)",
            ),
            (
                RowReason::Answer(AnswerFault::NotLater { not_after: AT }),
                "NotLater",
                "it expires at 2026-06-01T12:00:00Z, no later than the certificate in place: the signer returned an earlier certificate, or now issues a shorter lifetime",
            ),
            (
                RowReason::Answer(AnswerFault::RevokedBySigner {
                    certificate: "CN=a (serial 1)".to_owned(),
                    since: AT,
                    signer: "corp".to_owned(),
                }),
                "RevokedBySigner",
                "CN=a (serial 1) is revoked since 2026-06-01T12:00:00Z by the list that corp publishes: ask the administrator of the signer for the reason; if the signer returns the same certificate again, it must be removed there",
            ),
            (
                RowReason::Answer(AnswerFault::TooLarge("1 MiB".to_owned())),
                "TooLarge",
                "the chain is too large to be installed: 1 MiB",
            ),
            (
                RowReason::Answer(AnswerFault::Differs(CertDifference::IsCa)),
                "IsCa",
                "it is a CA certificate, but a leaf certificate is required",
            ),
            (
                RowReason::NotInstalled,
                "NotInstalled",
                "this certificate was not installed; correct the signer's profile or the configuration and run again",
            ),
            (
                RowReason::SignerFailed(Rc::new(error)),
                "SignerFailed",
                "no route; examine the network",
            ),
            (
                RowReason::StillValid,
                "StillValid",
                "the certificate in place is kept and still valid",
            ),
            (
                RowReason::Pending(PendingReason::UnderStagedAuthority(Authority::Ca)),
                "UnderStagedAuthority",
                "the certificate was issued under the staged CA, which other nodes may not trust yet; it is kept, and installed by `nodepki authority activate ca`, or shortly before the certificate in place expires",
            ),
            (
                postponed(1),
                "Postponed",
                "1 request was sent without success, and the next one is sent after 2026-06-01T12:00:00Z (nodepki renew --name apiserver sends it now): busy",
            ),
            (
                postponed(9),
                "Postponed",
                "9 requests were sent without success, and the next one is sent after 2026-06-01T12:00:00Z (nodepki renew --name apiserver sends it now): busy",
            ),
            (
                RowReason::Pending(PendingReason::WaitsForValidity { at: AT }),
                "WaitsForValidity",
                "the certificate is not valid before 2026-06-01T12:00:00Z: the clock of the signer is ahead, or that of this node is behind; it is kept (correct the clock, or run nodepki bootstrap again after that time)",
            ),
        ] {
            assert_eq!((reason.code(), reason.to_string().as_str()), (code, text));
        }
    }

    #[test]
    fn finds_same_cause_in_rows_of_different_certificates() {
        let pending = |note: &str, is_uniform| {
            RowReason::Pending(PendingReason::Undecided {
                note: note.to_owned(),
                is_uniform,
            })
        };
        assert!(pending("a", true).has_same_cause(&pending("b", true)));
        assert!(!pending("a", false).has_same_cause(&pending("b", false)));
        assert!(pending("a", false).has_same_cause(&pending("a", false)));
        let [one, other] =
            [CertName::AdminConf, CertName::SuperAdminConf].map(RowReason::Omittable);
        assert!(one != other && one.has_same_cause(&other));
        let failed =
            |what: &str| RowReason::of_failure(&Failure::pending(what.to_owned())).remove(0);
        let signing = |doing: &str, status: u16| {
            let detail = format!("corp: {doing} failed: HTTP {status}");
            let error = SignerError::config(detail, "look").during(doing);
            RowReason::SignerFailed(Rc::new(error))
        };
        assert!(signing("signing a", 404).has_same_cause(&signing("signing b", 404)));
        assert!(!signing("signing a", 404).has_same_cause(&signing("signing b", 405)));
        assert!(failed("a").has_same_cause(&failed("a")));
        assert!(!failed("a").has_same_cause(&failed("b")));
        assert!(!failed("a").has_same_cause(&RowReason::StillValid));
    }
}
