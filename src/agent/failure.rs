//! How a run ends: an exit status, and sentences.
//!
//! Owns the numbers of the exit statuses, and which fault of a layer below means which of them.

use std::cmp::Ordering;
use std::fmt;

use crate::cluster::{api, discovery};
use crate::kube::names::Authority;
use crate::process::machine;
use crate::signer::{Class, SignerError};
use crate::{http, store};

use super::Report;

/// How a run ended, as an exit status that unit files can act on.
///
/// Ordered by gravity, as declared: of everything that went wrong in a run, the gravest is its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// Everything is as wanted.
    Done = 0,
    /// Pending, or a passing fault: run again.
    Pending = 75,
    /// Signer or cluster unreachable.
    Unreachable = 69,
    /// Not permitted.
    NotPermitted = 77,
    /// The configuration is wrong.
    Configuration = 78,
    /// The command line is wrong.
    Usage = 64,
    /// What is on disk, or came back, is not safe to use.
    Refused = 65,
}

impl ExitCode {
    /// The numbers, set by sysexits(3), say nothing about gravity.
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
}

impl ExitCode {
    /// How a run ended.
    pub fn of(run: Result<&Report, &Failure>) -> ExitCode {
        match run {
            Ok(report) => report.code(),
            Err(failure) => failure.code,
        }
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

/// A run that ended before its report. No certificate, key or kubeconfig was changed unless a message says so. A run
/// with a report may have installed the certificates of one authority and held back those of another.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub code: ExitCode,
    /// Each a whole sentence: what, where, why, what to do now.
    pub messages: Vec<String>,
}

impl Failure {
    /// A failure with one message.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Failure {
            code,
            messages: vec![message.into()],
        }
    }
}

impl Failure {
    /// A failure caused by `cause`: of `code`, unless this machine is at fault, so that another run may do better, or a
    /// file is refused because other users can get at it.
    pub fn caused(
        code: ExitCode,
        message: impl Into<String>,
        cause: &(dyn std::error::Error + 'static),
    ) -> Self {
        let code = match machine::is_fault(cause) {
            true => ExitCode::Pending,
            false if store::is_access_refusal(cause) => ExitCode::Refused,
            false => code,
        };
        Failure::new(code, message)
    }

    /// A failed call of a cluster's API, made in order to be `doing` something: `reading the Secret …`.
    pub fn of_cluster(doing: impl fmt::Display, error: &api::Error) -> Self {
        let (code, advice) = match error {
            api::Error::Http(error) => {
                let code = match error.kind() {
                    http::Kind::Unreachable | http::Kind::Lost => ExitCode::Unreachable,
                    http::Kind::Untrusted | http::Kind::TooLarge => ExitCode::Refused,
                    http::Kind::Refused => ExitCode::NotPermitted,
                    http::Kind::Redirected { .. } | http::Kind::Local => ExitCode::Configuration,
                };
                (code, error.advice())
            }
            api::Error::Refused(status) => match status.code {
                401 => (
                    ExitCode::NotPermitted,
                    "the credential is unknown or has expired: use one that is valid",
                ),
                403 => (
                    ExitCode::NotPermitted,
                    "use a credential that may do this, or have it permitted",
                ),
                429 | 500.. => (
                    ExitCode::Unreachable,
                    "run again once the API server is well",
                ),
                _ => (ExitCode::Refused, "see what the API server says"),
            },
            api::Error::Unusable { .. } => (
                ExitCode::Refused,
                "make sure that the address is that of a Kubernetes API server",
            ),
            api::Error::Unread { source, .. } => {
                (ExitCode::Configuration, api::unread_advice(source))
            }
            api::Error::Local { advice, .. } => (ExitCode::Configuration, *advice),
        };
        Failure::caused(
            code,
            format!("{doing}: {}; {advice}", sentence(error)),
            error,
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("\n"))
    }
}

impl std::error::Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        let code = match error.class() {
            // After the point of commit the next run finishes, unless an obstacle has to be removed by hand first.
            class
                if matches!(error, store::Error::Unfinished(_))
                    && class != store::Class::Unsafe =>
            {
                ExitCode::Pending
            }
            store::Class::NoSpace | store::Class::Busy | store::Class::Io => ExitCode::Pending,
            store::Class::ReadOnly | store::Class::Denied => ExitCode::NotPermitted,
            store::Class::Unsafe => ExitCode::Refused,
            store::Class::Path => ExitCode::Configuration,
        };
        Failure::new(code, sentence(&error))
    }
}

impl From<discovery::Error> for Failure {
    fn from(error: discovery::Error) -> Self {
        use discovery::Error as E;
        let code = match &error {
            E::Call { doing, source } => return Failure::of_cluster(doing, source),
            E::Nothing | E::File { .. } | E::Unread { .. } | E::NoCredential { .. } => {
                ExitCode::Configuration
            }
            E::Anonymous { .. } | E::NoSignature { .. } | E::WrongSecret { .. } => {
                ExitCode::NotPermitted
            }
            E::NoClusterInfo { .. } => ExitCode::Unreachable,
            E::Refused { .. } | E::Tampered { .. } | E::Impostor { .. } | E::Changed { .. } => {
                ExitCode::Refused
            }
        };
        Failure::caused(code, sentence(&error), &error)
    }
}

/// An error with its causes, in one line.
pub(super) fn sentence(error: &dyn std::error::Error) -> String {
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

pub(super) fn signer_failure(error: &SignerError, authority: Authority) -> Failure {
    Failure::new(
        signer_code(error),
        format!("signer of {authority}: {}", sentence(error)),
    )
}

/// Returns the exit status for a failed exchange: that of its class, unless this machine is at fault.
pub(crate) fn signer_code(error: &SignerError) -> ExitCode {
    if error.machine_fault {
        return ExitCode::Pending;
    }
    match error.class {
        Class::Transient | Class::Ambiguous => ExitCode::Unreachable,
        Class::Auth => ExitCode::NotPermitted,
        Class::Config => ExitCode::Configuration,
        Class::Permanent => ExitCode::Refused,
    }
}
