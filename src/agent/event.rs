//! What a run tells while it works, for whoever shows, counts or records it.
//!
//! Nothing here changes a run. Whoever listens implements [`Progress`] and may pass on to another one. An event
//! carries no secret, and no text that came from outside is longer than the messages of a run are anyway.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::kube::names::CertName;
use crate::signer::{Class, SignerError};
use crate::store::Slot;
use crate::x509::KeyAlgorithm;

/// Who listens to a run.
pub trait Progress {
    /// Something happened.
    fn event(&self, event: Event);
}

/// What can happen during a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// So many keys and signatures are to be had.
    Started {
        /// Keys to make.
        keys: usize,
        /// Certificates to have signed.
        certificates: usize,
    },
    /// A key is ready.
    KeyMade {
        /// What it is for.
        slot: Slot,
        /// Its algorithm.
        algorithm: KeyAlgorithm,
        /// How long the search took.
        took: Duration,
    },
    /// A signer was asked something, and has answered or failed to.
    Asked {
        /// Its name in the configuration.
        signer: String,
        /// What it was asked.
        operation: Operation,
        /// How long that took.
        took: Duration,
        /// Whether the exchange succeeded. A denial is an answer like any other.
        result: Result<(), Class>,
    },
    /// A request is on its way.
    Submitted(CertName),
    /// The signer is thinking, or a person is.
    Waiting(CertName, String),
    /// A verified certificate is here.
    Signed(CertName),
    /// The commit with a new certificate is durable.
    Installed {
        /// Which one.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// Serial number, in hexadecimal.
        serial: String,
        /// End of its validity.
        not_after: OffsetDateTime,
        /// There was one before.
        renewed: bool,
    },
    /// The run ends, and the signer has not decided yet.
    Pending {
        /// Which one.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// What is being waited for.
        why: String,
    },
    /// Somebody said no, or what came back is not what was asked for.
    Refused {
        /// Which one.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// The reason, or the differences.
        why: String,
    },
    /// The exchange failed for this run.
    Failed {
        /// Which one.
        name: CertName,
        /// Name of the signer in the configuration.
        signer: String,
        /// What is wrong.
        why: String,
    },
    /// A new certificate was wanted and there is none; the one in place goes on until its end.
    Expiring {
        /// Which one.
        name: CertName,
        /// The end.
        not_after: OffsetDateTime,
    },
    /// A component serves with what is on disk.
    Restarted {
        /// Name of the static pod, or of the unit.
        component: &'static str,
    },
    /// A component did not come back with what was new, and has what it had before.
    RolledBack {
        /// Name of the static pod, or of the unit.
        component: &'static str,
        /// What was seen.
        why: String,
    },
    /// The clock is behind; in words.
    ClockBehind(String),
}

/// What a signer can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Whether it is there.
    Probe,
    /// The certificates of an authority.
    Trust,
    /// For a certificate.
    Submit,
    /// For a certificate in exchange for the one in place.
    Renew,
    /// What became of an earlier request.
    Recover,
    /// Whether it has decided.
    Poll,
    /// For the revocation list of an authority.
    Crl,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 7] = [
        Operation::Probe,
        Operation::Trust,
        Operation::Submit,
        Operation::Renew,
        Operation::Recover,
        Operation::Poll,
        Operation::Crl,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Operation::Probe => "probe",
            Operation::Trust => "trust",
            Operation::Submit => "submit",
            Operation::Renew => "renew",
            Operation::Recover => "recover",
            Operation::Poll => "poll",
            Operation::Crl => "crl",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Waits for a signer's answer and tells how long that took.
pub(super) async fn asked<T>(
    progress: &dyn Progress,
    signer: &str,
    operation: Operation,
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
