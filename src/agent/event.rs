//! Events of a run, for the log, the progress line and metrics.
//!
//! A listener implements [`Progress`], and may forward events to another one; it cannot change the run. An event contains
//! no secret, and text from outside is no longer than in the messages of a run.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::kube::names::CertName;
use crate::signer::{FailureClass, SignerError};
use crate::store::Slot;
use crate::x509::KeyAlgorithm;

/// Receives the events of a run.
pub trait Progress {
    /// Handles one event.
    fn event(&self, event: Event);
}

/// An event of a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// The run has determined what it needs.
    Started {
        /// Number of keys to generate.
        keys: usize,
        /// Number of certificates to have signed.
        certificates: usize,
    },
    /// A key was generated.
    KeyMade {
        /// Slot of the pending request.
        slot: Slot,
        /// Key algorithm.
        algorithm: KeyAlgorithm,
        /// Duration of the generation.
        took: Duration,
    },
    /// An exchange with a signer ended.
    Asked {
        /// Name of the signer in the configuration.
        signer: String,
        /// The requested operation.
        operation: SignerOperation,
        /// Duration of the exchange.
        took: Duration,
        /// Whether the exchange succeeded. A denial is a successful exchange.
        result: Result<(), FailureClass>,
    },
    /// A request was submitted.
    Submitted(CertName),
    /// The signer has not decided yet.
    Waiting {
        /// Name of the certificate.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// The signer's note.
        note: String,
    },
    /// An exchange failed and is repeated after a delay.
    Retrying {
        /// Name of the signer in the configuration.
        signer: String,
        /// The error.
        why: String,
    },
    /// A certificate was received and verified.
    Signed(CertName),
    /// A new certificate was committed durably.
    Installed {
        /// Name of the certificate.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// Serial number, in hexadecimal.
        serial: String,
        /// End of validity.
        not_after: OffsetDateTime,
        /// The certificate replaces an earlier one.
        renewed: bool,
    },
    /// The run ended before the signer decided.
    Pending {
        /// Name of the certificate.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// The reason for the wait.
        why: String,
        /// Its code.
        code: &'static str,
    },
    /// The request was denied, or the answer does not match it.
    Refused {
        /// Name of the certificate.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// The reason, or the differences.
        why: String,
        /// Its code.
        code: &'static str,
    },
    /// The exchange failed in this run.
    Failed {
        /// Name of the certificate.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// The error.
        why: String,
        /// Its code.
        code: &'static str,
    },
    /// A certificate was due and was not replaced; the one in place stays until it expires.
    Expiring {
        /// Name of the certificate.
        name: CertName,
        /// End of validity of the certificate in place.
        not_after: OffsetDateTime,
    },
    /// The run waits for a component, or for other nodes.
    Awaiting {
        /// What it waits for.
        what: String,
        /// What must become true.
        until: &'static str,
        /// The longest wait.
        limit: Duration,
    },
    /// A component was restarted and uses the files on disk.
    Restarted {
        /// Name of the static pod, or of the unit.
        component: &'static str,
    },
    /// A component did not become ready with new files, and has its former files again.
    RolledBack {
        /// Name of the static pod, or of the unit.
        component: &'static str,
        /// The observation.
        why: String,
    },
    /// The clock is behind; with a sentence for the log.
    ClockBehind(String),
}

words! {
    /// An operation of a signer.
    #[derive(PartialOrd, Ord)]
    pub enum SignerOperation {
        /// Tests whether the signer is reachable.
        Probe = "probe",
        /// Fetches the CA certificates of an authority.
        Trust = "trust",
        /// Submits a request.
        Submit = "submit",
        /// Submits a request that the certificate in place authenticates.
        Renew = "renew",
        /// Looks up an earlier request.
        Recover = "recover",
        /// Asks for the decision on a request.
        Poll = "poll",
        /// Fetches the revocation list of an authority.
        Crl = "crl",
    }
}

/// Waits for a signer's answer, and reports the exchange.
pub(super) async fn asked<T>(
    progress: &dyn Progress,
    signer: &str,
    operation: SignerOperation,
    answer: impl Future<Output = Result<T, SignerError>>,
) -> Result<T, SignerError> {
    let began = Instant::now();
    let answer = answer.await;
    progress.event(Event::Asked {
        signer: signer.to_owned(),
        operation,
        took: began.elapsed(),
        result: answer.as_ref().map(|_| ()).map_err(|error| error.class),
    });
    answer
}
