//! The end of a request in a run: a signed certificate, or the reason why there is none.

use std::rc::Rc;

use time::OffsetDateTime;

use crate::agent::Failure;
use crate::kube::names::{Authority, CertName};
use crate::signer::{Request, SignerError};
use crate::text::rfc3339;
use crate::x509::{CertDifference, Chain, PrivateKey};

/// The end of a request in this run.
pub(in crate::agent) type RequestOutcome = Result<SignedCertificate, Unsigned>;

/// What became of a certificate that is due, whether or not it was requested.
pub(in crate::agent) type IssuanceOutcome = Result<SignedCertificate, NotInstalled>;

/// A verified certificate and its key, ready to be installed.
#[derive(Debug)]
pub(in crate::agent) struct SignedCertificate {
    pub(in crate::agent) chain: Chain,
    pub(in crate::agent) key: PrivateKey,
    /// The request, for `Signer::settled` after the commit.
    pub(in crate::agent) request: Box<Request>,
}

/// The reason why a certificate that is due is not installed in this run.
#[derive(Debug)]
pub(in crate::agent) enum NotInstalled {
    /// The request has no certificate.
    Unsigned(Unsigned),
    /// Nothing was requested or installed, because the signer, the authority or the output path is unusable.
    Undone(Rc<Failure>),
}

/// The reason why a request has no certificate that can be installed in this run.
#[derive(Debug)]
pub(in crate::agent) enum Unsigned {
    /// A later run asks again.
    Pending(PendingReason),
    /// The signer denied the request.
    Denied(String),
    /// The answer does not match the request; each difference.
    Refused(Vec<AnswerFault>),
    /// The communication with the signer failed.
    Failed(Rc<SignerError>),
}

impl From<Unsigned> for NotInstalled {
    fn from(unsigned: Unsigned) -> NotInstalled {
        NotInstalled::Unsigned(unsigned)
    }
}

impl NotInstalled {
    /// Returns whether the signer denied the request, or its answer was refused.
    pub(in crate::agent) fn is_refusal(&self) -> bool {
        matches!(
            self,
            NotInstalled::Unsigned(Unsigned::Refused(_) | Unsigned::Denied(_))
        )
    }
}

impl Unsigned {
    pub(super) fn failed(error: SignerError) -> Unsigned {
        Unsigned::Failed(Rc::new(error))
    }
}

/// The reason why a request is left to a later run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PendingReason {
    /// The signer has not decided; in its words.
    #[error("{note}")]
    Undecided {
        /// The signer's note.
        note: String,
        /// Whether all requests wait for the same.
        is_uniform: bool,
    },
    /// The number of requests is limited, or the signer has asked to wait.
    #[error(
        "{} sent without success, and the next one is sent after {} (nodepki renew --name {name} sends it now){}",
        if *submissions == 1 { "1 request was".to_owned() } else { format!("{submissions} requests were") },
        rfc3339(*next),
        last.as_ref().map(|last| format!(": {last}")).unwrap_or_default()
    )]
    Postponed {
        /// Number of requests.
        submissions: u32,
        /// Time of the next one.
        next: OffsetDateTime,
        /// The certificate.
        name: CertName,
        /// The last error, in words.
        last: Option<String>,
    },
    /// The answer is kept.
    #[error(
        "the certificate was issued under the staged CA, which other nodes may not trust yet; it is kept, and installed by `nodepki authority activate {0}`, or shortly before the certificate in place expires"
    )]
    UnderStagedAuthority(Authority),
    /// The certificate was issued by a clock that is ahead of this node's. The answer is kept.
    #[error(
        "the certificate is not valid before {}: the clock of the signer is ahead, or that of this node is behind; it is kept (correct the clock, or run nodepki bootstrap again after that time)",
        rfc3339(*at)
    )]
    WaitsForValidity {
        /// Start of its validity.
        at: OffsetDateTime,
    },
}

codes!(PendingReason {
    Undecided,
    Postponed,
    UnderStagedAuthority,
    WaitsForValidity
});

impl PendingReason {
    /// Returns whether the requests for two certificates wait for the same.
    pub(in crate::agent) fn has_same_cause(&self, other: &PendingReason) -> bool {
        use PendingReason::{Postponed, Undecided, WaitsForValidity};
        match (self, other) {
            (
                Undecided {
                    is_uniform: true, ..
                },
                Undecided {
                    is_uniform: true, ..
                },
            ) => true,
            (
                Postponed {
                    submissions: one, ..
                },
                Postponed {
                    submissions: other, ..
                },
            ) => one == other,
            (WaitsForValidity { .. }, WaitsForValidity { .. }) => true,
            _ => self == other,
        }
    }
}

/// The reason why a signer's answer is not installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// It is not a usable chain; the error, in words.
    #[error("{0}")]
    Unusable(String),
    /// The chain is too large; the limit, in words.
    #[error("the chain is too large to be installed: {0}")]
    TooLarge(String),
    /// The certificate differs from the request.
    #[error("{0}")]
    Differs(CertDifference),
    /// The certificate expires no later than the one in place.
    #[error(
        "it expires at {}, no later than the certificate in place: the signer returned an earlier certificate, or now issues a shorter lifetime",
        rfc3339(*not_after)
    )]
    NotLater {
        /// Its expiry.
        not_after: OffsetDateTime,
    },
    /// The signer has revoked the certificate.
    #[error(
        "{certificate} is revoked since {} by the list that {signer} publishes: ask the administrator of the signer for the reason; if the signer returns the same certificate again, it must be removed there",
        rfc3339(*since)
    )]
    RevokedBySigner {
        /// The certificate, in words.
        certificate: String,
        /// Time of the revocation.
        since: OffsetDateTime,
        /// The signer's label.
        signer: String,
    },
}

codes!(AnswerFault { Unusable, TooLarge, NotLater, RevokedBySigner; Differs });
