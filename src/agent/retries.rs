//! Calls to signers that belong to no request. A call that fails transiently is repeated until the deadline.

use tokio::time::Instant;

use super::request::next::wait_before_retry;
use super::{Event, Failure, Jitter, Progress, RunSetup, SignerOperation, event};
use crate::kube::names::Authority;
use crate::signer::{Signer, SignerError};
use crate::x509::{Certificate, TrustBundle, certificates_of};

/// How calls are repeated, and who learns of them.
pub(super) struct Retries<'a> {
    pub(super) deadline: Instant,
    pub(super) jitter: Jitter,
    pub(super) progress: &'a dyn Progress,
}

impl Retries<'_> {
    /// Returns the retries of a command that installs nothing, which logs them only.
    pub(super) fn logged(setup: &RunSetup) -> Retries<'static> {
        Retries {
            deadline: Instant::now() + setup.wait,
            jitter: setup.jitter,
            progress: &RetryLog,
        }
    }

    /// Makes a call to the signer of this name in the configuration.
    pub(super) async fn call<T>(
        &self,
        name: &str,
        operation: SignerOperation,
        call: impl AsyncFn() -> Result<T, SignerError>,
    ) -> Result<T, SignerError> {
        let mut failures = 0;
        loop {
            let error = match event::asked(self.progress, name, operation, call()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            failures += 1;
            let time_left = self.deadline.saturating_duration_since(Instant::now());
            let wait = wait_before_retry(&error, failures, time_left, (self.jitter)());
            let Some(wait) = wait else {
                return Err(error);
            };
            self.progress.event(Event::Retrying {
                signer: name.to_owned(),
                why: error.to_string(),
            });
            tokio::time::sleep(wait).await;
        }
    }

    /// Tests whether a signer is reachable.
    pub(super) async fn probe(&self, name: &str, signer: &dyn Signer) -> Result<(), SignerError> {
        self.call(name, SignerOperation::Probe, || signer.probe())
            .await
    }

    /// Asks a signer for the CA of an authority; `None` if it does not publish it.
    pub(super) async fn ca(
        &self,
        name: &str,
        signer: &dyn Signer,
        authority: Authority,
    ) -> Result<Option<PublishedCa>, SignerError> {
        let ask = || signer.trust(authority);
        let answer = self.call(name, SignerOperation::Trust, ask).await?;
        Ok(answer.map(|answer| PublishedCa {
            answer,
            authority,
            signer: signer.label(),
        }))
    }
}

/// The CA that a signer publishes, not verified.
pub(super) struct PublishedCa {
    answer: Vec<u8>,
    authority: Authority,
    signer: String,
}

impl PublishedCa {
    /// Returns it as the trust bundle of its authority.
    pub(super) fn bundle(&self) -> Result<TrustBundle, Failure> {
        TrustBundle::from_response(&self.answer).map_err(|error| self.unusable(error))
    }

    /// Returns its certificates, of which none needs to be a CA's.
    pub(super) fn certificates(&self) -> Result<Vec<Certificate>, Failure> {
        certificates_of(&self.answer).map_err(|error| self.unusable(error))
    }

    fn unusable(&self, error: impl std::error::Error + Send + Sync + 'static) -> Failure {
        let problem = format!(
            "the certificate of authority {} from {} is unusable",
            self.authority, self.signer
        );
        Failure::refused(problem)
            .caused_by(error)
            .advise("check which service has that address")
    }
}

/// Logs that a call is repeated.
struct RetryLog;

impl Progress for RetryLog {
    fn event(&self, event: Event) {
        if let Event::Retrying { signer, why } = event {
            tracing::info!(signer, "{why}; trying again");
        }
    }
}
