//! The failure of a run: exit status and messages.
//!
//! Defines the exit statuses, and maps the errors of other modules to them.

use std::cmp::Ordering;
use std::error::Error;
use std::fmt;
use std::rc::Rc;

use crate::cluster::{api, discovery};
use crate::process::machine;
use crate::signer::{FailureClass, SignerError};
use crate::{http, store};

use super::RunReport;

/// Exit status of a run, for unit files and scripts.
///
/// Ordered by gravity, in the order of declaration: a run with several faults ends with the gravest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// The node is in the desired state.
    Done = 0,
    /// A signature is pending, or a temporary fault occurred: run again.
    Pending = 75,
    /// The signer or the cluster is unreachable.
    Unreachable = 69,
    /// An operation is not permitted.
    NotPermitted = 77,
    /// The configuration is invalid.
    Configuration = 78,
    /// The command line is invalid.
    Usage = 64,
    /// A file on disk, or an answer, is not safe to use.
    Refused = 65,
}

impl ExitCode {
    /// Returns the rank for comparisons. The numbers of sysexits(3) are not ordered by gravity.
    const fn gravity(self) -> u8 {
        match self {
            ExitCode::Done => 0,
            ExitCode::Pending => 1,
            ExitCode::Unreachable => 2,
            ExitCode::NotPermitted => 3,
            ExitCode::Configuration => 4,
            ExitCode::Usage => 5,
            ExitCode::Refused => 6,
        }
    }

    /// Returns the exit status of a run.
    pub fn of(run: Result<&RunReport, &Failure>) -> ExitCode {
        match run {
            Ok(report) => report.code(),
            Err(failure) => failure.code,
        }
    }
}

impl From<ExitCode> for u8 {
    fn from(code: ExitCode) -> u8 {
        code as u8
    }
}

impl PartialOrd for ExitCode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExitCode {
    fn cmp(&self, other: &Self) -> Ordering {
        self.gravity().cmp(&other.gravity())
    }
}

/// The failure of a run that ended without a report. No certificate, key or kubeconfig was changed unless a message says
/// so. A run with a report may have installed the certificates of one authority and held back those of another.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub code: ExitCode,
    /// Messages, each with what failed, where, why, and what to do.
    pub messages: Vec<FailureMessage>,
}

/// One message of a failure: what failed, the error that caused it, and what to do.
#[derive(Clone, Debug)]
pub struct FailureMessage {
    what: String,
    cause: Option<Rc<dyn Error>>,
    advice: Option<String>,
}

impl PartialEq for FailureMessage {
    fn eq(&self, other: &Self) -> bool {
        let is_same_cause = match (&self.cause, &other.cause) {
            (Some(one), Some(other)) => Rc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same_cause && (&self.what, &self.advice) == (&other.what, &other.advice)
    }
}

impl FailureMessage {
    /// Returns whether two messages differ at most in the files that could not be used.
    pub(super) fn has_same_cause(&self, other: &FailureMessage) -> bool {
        let class = |message: &FailureMessage| {
            let error = message
                .cause
                .as_deref()?
                .downcast_ref::<store::StoreError>()?;
            Some(error.class())
        };
        let is_same_class = class(self).is_some() && class(self) == class(other);
        self == other || is_same_class && self.what == other.what
    }

    /// Adds the file, or another place, in which the failure occurred.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = if self.what.is_empty() {
            place.to_string()
        } else {
            format!("{place}: {}", self.what)
        };
        self
    }
}

impl<T: Into<String>> From<T> for FailureMessage {
    fn from(what: T) -> Self {
        FailureMessage {
            what: what.into(),
            cause: None,
            advice: None,
        }
    }
}

impl fmt::Display for FailureMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(cause) = &self.cause {
            let separator = if self.what.is_empty() { "" } else { ": " };
            write!(f, "{separator}{}", sentence(cause.as_ref()))?;
        }
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl Failure {
    /// Returns a failure with one message.
    pub fn new(code: ExitCode, what: impl Into<FailureMessage>) -> Self {
        Failure {
            code,
            messages: vec![what.into()],
        }
    }

    /// Returns the failure for what is not safe to use.
    pub fn refused(what: impl Into<FailureMessage>) -> Self {
        Failure::new(ExitCode::Refused, what)
    }

    /// Returns the failure for what a later run may complete.
    pub fn pending(what: impl Into<FailureMessage>) -> Self {
        Failure::new(ExitCode::Pending, what)
    }

    /// Returns the failure for a configuration that is not valid.
    pub fn misconfigured(what: impl Into<FailureMessage>) -> Self {
        Failure::new(ExitCode::Configuration, what)
    }

    /// Returns the failure for a command line that is not valid.
    pub fn usage(what: impl Into<FailureMessage>) -> Self {
        Failure::new(ExitCode::Usage, what)
    }

    /// Returns a failure with several messages.
    pub fn with_messages(
        code: ExitCode,
        messages: impl IntoIterator<Item = impl Into<FailureMessage>>,
    ) -> Self {
        Failure {
            code,
            messages: messages.into_iter().map(Into::into).collect(),
        }
    }

    /// Refuses with these messages, if there are any.
    pub fn require_none(refusals: Vec<impl Into<FailureMessage>>) -> Result<(), Failure> {
        if refusals.is_empty() {
            Ok(())
        } else {
            Err(Failure::with_messages(ExitCode::Refused, refusals))
        }
    }

    /// Returns a failure with the exit status that follows from its cause: pending for a fault of this machine, refused for
    /// a file that other users can access, `code` otherwise.
    pub fn caused(
        code: ExitCode,
        what: impl Into<FailureMessage>,
        cause: impl Error + 'static,
    ) -> Self {
        let code = match machine::is_fault(&cause) {
            true => ExitCode::Pending,
            false if store::is_access_refusal(&cause) => ExitCode::Refused,
            false => code,
        };
        Failure::new(code, what).caused_by(cause)
    }

    /// Adds the cause of the last message. The message then ends with it, unless advice follows.
    #[must_use]
    pub fn caused_by(self, cause: impl Error + 'static) -> Self {
        self.caused_by_shared(Rc::new(cause))
    }

    fn caused_by_shared(mut self, cause: Rc<dyn Error>) -> Self {
        if let Some(message) = self.messages.last_mut() {
            message.cause = Some(cause);
        }
        self
    }

    /// Adds what to do to the last message.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        if let Some(message) = self.messages.last_mut() {
            message.advice = Some(advice.into());
        }
        self
    }

    /// Returns the messages as texts, for reports.
    pub fn texts(&self) -> Vec<String> {
        self.messages.iter().map(ToString::to_string).collect()
    }

    /// Returns the messages on one line.
    pub fn one_line(&self) -> String {
        self.texts().join("; ")
    }

    /// Returns the failure of a call of a cluster's API. `doing` describes the call: `reading the Secret …`.
    pub fn of_cluster(doing: impl fmt::Display, error: api::ApiError) -> Self {
        let (code, advice) = match &error {
            api::ApiError::Http(error) => {
                let code = match error.kind() {
                    http::HttpErrorKind::Unreachable | http::HttpErrorKind::Lost => {
                        ExitCode::Unreachable
                    }
                    http::HttpErrorKind::Untrusted | http::HttpErrorKind::TooLarge => {
                        ExitCode::Refused
                    }
                    http::HttpErrorKind::Refused => ExitCode::NotPermitted,
                    http::HttpErrorKind::Redirected { .. }
                    | http::HttpErrorKind::OtherScheme
                    | http::HttpErrorKind::Local => ExitCode::Configuration,
                };
                (code, error.advice())
            }
            api::ApiError::Refused(status) => match status.code {
                401 => (
                    ExitCode::NotPermitted,
                    "the credential is unknown or has expired: use a valid one",
                ),
                403 => (
                    ExitCode::NotPermitted,
                    "use a credential with this permission, or grant it",
                ),
                429 | 500.. => (
                    ExitCode::Unreachable,
                    "wait until the API server is healthy",
                ),
                _ => (ExitCode::Refused, "check the message of the API server"),
            },
            api::ApiError::Unusable { .. } => (
                ExitCode::Refused,
                "verify that the address is that of a Kubernetes API server",
            ),
            api::ApiError::Unread { source, .. } => {
                let code = if store::is_not_permitted(source) {
                    ExitCode::NotPermitted
                } else {
                    ExitCode::Configuration
                };
                (code, api::unread_advice(source))
            }
            api::ApiError::Local { advice, .. } => (ExitCode::Configuration, *advice),
        };
        let advice = advice.to_owned();
        Failure::caused(code, doing.to_string(), error).advise(advice)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join("\n"))
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.messages
            .iter()
            .find_map(|message| message.cause.as_deref())
    }
}

impl From<store::StoreError> for Failure {
    fn from(error: store::StoreError) -> Self {
        let code = match error.class() {
            // After the point of commit, the next run completes the transaction, unless an obstacle needs manual action.
            class
                if matches!(error, store::StoreError::Unfinished(_))
                    && class != store::ErrorClass::Unsafe =>
            {
                ExitCode::Pending
            }
            store::ErrorClass::NoSpace | store::ErrorClass::Busy | store::ErrorClass::Io => {
                ExitCode::Pending
            }
            store::ErrorClass::ReadOnly | store::ErrorClass::Denied => ExitCode::NotPermitted,
            store::ErrorClass::Unsafe => ExitCode::Refused,
            store::ErrorClass::Path => ExitCode::Configuration,
            store::ErrorClass::Argument => ExitCode::Usage,
        };
        Failure::new(code, "").caused_by(error)
    }
}

impl From<discovery::DiscoveryError> for Failure {
    fn from(error: discovery::DiscoveryError) -> Self {
        use discovery::DiscoveryError as E;
        let error = match error {
            E::Call { doing, source } => return Failure::of_cluster(doing, source),
            error => error,
        };
        let code = match &error {
            E::Call { .. } => ExitCode::Unreachable,
            E::Nothing | E::File { .. } | E::Unread { .. } | E::NoCredential { .. } => {
                ExitCode::Configuration
            }
            // `kubeadm init` creates the ConfigMap and permits reading it late, and kube-controller-manager signs it later.
            E::NoClusterInfo { .. } | E::Anonymous { status: 403, .. } | E::NoSignature { .. } => {
                ExitCode::Unreachable
            }
            E::Anonymous { .. } | E::WrongSecret { .. } => ExitCode::NotPermitted,
            // Another server, or this one after its renewal, may have a certificate of the pinned CA.
            E::Unpinned { .. } => ExitCode::Pending,
            E::Refused { .. } | E::Tampered { .. } | E::Impostor { .. } | E::Changed { .. } => {
                ExitCode::Refused
            }
        };
        Failure::caused(code, "", error)
    }
}

/// Returns an error with its causes, on one line.
pub(super) fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Returns the failure of an exchange with a signer. `doing` names the signer, or what it was asked for.
pub(super) fn signer_failure(
    doing: impl Into<String>,
    error: impl Into<Rc<SignerError>>,
) -> Failure {
    let error = error.into();
    Failure::new(signer_code(&error), doing.into()).caused_by_shared(error)
}

/// Returns the exit status for a failed exchange: that of its class, unless this machine or the answer is at fault.
pub(crate) fn signer_code(error: &SignerError) -> ExitCode {
    if error.machine_fault {
        return ExitCode::Pending;
    }
    if error.bad_answer {
        return ExitCode::Refused;
    }
    match error.class {
        FailureClass::Transient | FailureClass::Ambiguous => ExitCode::Unreachable,
        FailureClass::Auth => ExitCode::NotPermitted,
        FailureClass::Config if store::is_not_permitted(error) => ExitCode::NotPermitted,
        FailureClass::Config => ExitCode::Configuration,
        FailureClass::Permanent => ExitCode::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::discovery::DiscoveryError as E;
    use super::*;

    #[test]
    fn classifies_discovery_by_whether_it_may_succeed_later() {
        let server = || "https://192.0.2.11:6443".to_owned();
        let id = || "abcdef".to_owned();
        let anonymous = |status| E::Anonymous {
            server: server(),
            status,
        };
        let no_signature = E::NoSignature {
            server: server(),
            id: id(),
        };
        let wrong_secret = E::WrongSecret {
            server: server(),
            id: id(),
        };
        for (error, expected) in [
            (E::NoClusterInfo { server: server() }, ExitCode::Unreachable),
            (anonymous(403), ExitCode::Unreachable),
            (no_signature, ExitCode::Unreachable),
            (anonymous(401), ExitCode::NotPermitted),
            (wrong_secret, ExitCode::NotPermitted),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.code, expected, "{failure}");
        }
    }
}
