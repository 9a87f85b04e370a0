//! The faults and remarks of rows as values. Their [`Display`](fmt::Display) is the only place that makes text of them.

use std::fmt;
use std::path::Path;

use time::OffsetDateTime;

use super::RowState;
use super::human_duration;
use super::text::minute;
use crate::kube::kubeconfig::{ClientRefusal, KubeconfigError};
use crate::kube::names::Authority;
use crate::spec::assess::{COPY_SERVICE_ACCOUNT, MisplacedKey, ReplacedCa};
use crate::spec::compliance::PolicyDifference;
use crate::store::{ErrorClass, StoreError};
use crate::x509::{CertDifference, TrustBundle};

/// A fault of a row, which determines its state.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum RowFault {
    #[error("it expires at {}, in {}", minute(*at), human_duration((*at - *now).whole_seconds()))]
    Expiring {
        at: OffsetDateTime,
        now: OffsetDateTime,
    },
    #[error("{0}")]
    File(FileFault),
    /// sa.key, without which the tokens of the cluster would become invalid.
    #[error("{0}; {COPY_SERVICE_ACCOUNT}")]
    PrivateKeyLost(FileFault),
    /// sa.pub.
    #[error("{0}; it can be derived from sa.key")]
    PublicKeyAbsent(FileFault),
    #[error("every client of Kubernetes refuses it: {0}")]
    RefusedByClients(ClientRefusal),
    /// Subject, names or usages are not those of the certificate's purpose.
    #[error("{0}")]
    Misplaced(CertDifference),
    #[error(
        "{path} holds a private key and has mode {mode:04o}: every user of this machine can read it; run chmod 600 {path}"
    )]
    KeyExposed { path: String, mode: u32 },
    #[error(
        "{path} has mode {mode:04o}: every user of this machine can change it; run chmod o-w {path}"
    )]
    FileExposed { path: String, mode: u32 },
    #[error("its CA data is {found}, but ca.crt holds {trusted}: it does not trust the API server")]
    OtherAuthority {
        found: TrustBundle,
        trusted: TrustBundle,
    },
    #[error(
        "the CA certificate in its CA data expired at {}, and ca.crt holds a valid one: it does not trust the API server",
        minute(*.0)
    )]
    AuthorityDataExpired(OffsetDateTime),
    /// The certificates in place belong to another CA than the one at `path`.
    #[error("{}", replaced.sentence(path))]
    AuthorityReplaced {
        path: String,
        replaced: Box<ReplacedCa>,
    },
    #[error("it cannot be verified: {0}")]
    AuthorityUnusable(FileFault),
    #[error(
        "no certification path connects it with the authority in {path}: its issuer is {issuer}, the anchor there is {trust}; {}",
        if *has_issuer_name {
            "the name is the same, the key is not"
        } else {
            "another authority signed it, or intermediates are missing in its file"
        }
    )]
    UntrustedIssuer {
        path: String,
        issuer: String,
        trust: TrustBundle,
        /// Whether a certificate of the bundle has the name of the issuer.
        has_issuer_name: bool,
    },
    #[error("{0}")]
    Unverified(CertDifference),
    #[error(
        "it is not valid before {}; if that is not in the future, the clock of this machine is wrong",
        minute(*.0)
    )]
    NotYetValid(OffsetDateTime),
    #[error(
        "the key does not match the certificate; issue the certificate again, or restore the file that was lost"
    )]
    KeyMismatch,
    #[error(
        "sa.key and sa.pub are not a pair: tokens signed with the one are refused by the other; {COPY_SERVICE_ACCOUNT}"
    )]
    PairMismatch,
    #[error("{0}: {fix}", fix = .0.fix())]
    ServiceAccountKeyMisplaced(MisplacedKey),
    #[error("it expired at {}, {} ago", minute(*at), human_duration((*now - *at).whole_seconds()))]
    Expired {
        at: OffsetDateTime,
        now: OffsetDateTime,
    },
}

codes!(RowFault {
    Expiring, RefusedByClients, KeyExposed, FileExposed, OtherAuthority, AuthorityDataExpired, AuthorityReplaced,
    AuthorityUnusable, UntrustedIssuer, NotYetValid, KeyMismatch, PairMismatch, ServiceAccountKeyMisplaced, Expired;
    File, PrivateKeyLost, PublicKeyAbsent, Misplaced, Unverified
});

impl RowFault {
    /// Returns the state of a row with this fault and no graver one.
    pub fn state(&self) -> RowState {
        match self {
            RowFault::Expiring { .. } => RowState::Expiring,
            fault if fault.is_absence() => RowState::Missing,
            RowFault::File(_)
            | RowFault::PrivateKeyLost(_)
            | RowFault::PublicKeyAbsent(_)
            | RowFault::RefusedByClients(_) => RowState::Unreadable,
            RowFault::Misplaced(_) | RowFault::KeyExposed { .. } | RowFault::FileExposed { .. } => {
                RowState::Unsafe
            }
            RowFault::OtherAuthority { .. }
            | RowFault::AuthorityDataExpired(_)
            | RowFault::AuthorityReplaced { .. }
            | RowFault::AuthorityUnusable(_)
            | RowFault::UntrustedIssuer { .. }
            | RowFault::Unverified(_) => RowState::Untrusted,
            RowFault::NotYetValid(_) => RowState::NotYetValid,
            RowFault::ServiceAccountKeyMisplaced(found) if found.is_alone => RowState::Missing,
            RowFault::KeyMismatch
            | RowFault::PairMismatch
            | RowFault::ServiceAccountKeyMisplaced(_) => RowState::Torn,
            RowFault::Expired { .. } => RowState::Expired,
        }
    }

    /// Returns the fault of a file of the row, or of a part of its kubeconfig.
    pub fn file(&self) -> Option<&FileFault> {
        match self {
            RowFault::File(fault)
            | RowFault::PrivateKeyLost(fault)
            | RowFault::PublicKeyAbsent(fault) => Some(fault),
            _ => None,
        }
    }

    /// Returns the problem of this file.
    pub fn file_problem(&self) -> Option<&FileProblem> {
        self.file().map(|file| &file.problem)
    }

    /// Returns whether a file of the row, or a part of its kubeconfig, does not exist.
    pub fn is_absence(&self) -> bool {
        self.file().is_some_and(FileFault::is_absence)
    }

    /// Returns the file of this row that the text names.
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            RowFault::KeyExposed { path, .. } | RowFault::FileExposed { path, .. } => Some(path),
            fault => fault.file().map(|file| file.path.as_str()),
        }
    }

    /// Returns the fault as it is compared with those of other rows: with times to the minute, and with the extension only
    /// of the file's path.
    pub(super) fn general(&self) -> RowFault {
        let mut general = self.clone();
        match &mut general {
            RowFault::Expired { at, .. } | RowFault::Expiring { at, .. } => {
                *at = at.truncate_to_minute();
            }
            RowFault::NotYetValid(at) | RowFault::AuthorityDataExpired(at) => {
                *at = at.truncate_to_minute();
            }
            RowFault::File(FileFault { path, .. })
            | RowFault::KeyExposed { path, .. }
            | RowFault::FileExposed { path, .. } => {
                let extension = Path::new(path).extension().unwrap_or_default();
                *path = extension.to_string_lossy().into_owned();
            }
            _ => {}
        }
        general
    }
}

/// A file that cannot be used, or a part of a kubeconfig.
#[derive(Clone, Debug, PartialEq)]
pub struct FileFault {
    /// The unusable part.
    pub part: FilePart,
    /// Path of the file on this machine.
    pub path: String,
    /// Why it cannot be used.
    pub problem: FileProblem,
}

/// What of a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePart {
    /// The file.
    Whole,
    /// The client certificate in a kubeconfig.
    ClientCertificate,
    /// The client key in a kubeconfig.
    ClientKey,
    /// The CA data in a kubeconfig.
    AuthorityData,
}

/// Why a file, or a part of a kubeconfig, cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum FileProblem {
    #[error("is missing")]
    Absent,
    #[error("is a dangling symbolic link")]
    DanglingLink,
    #[error("is empty")]
    Empty,
    /// This user may not read it.
    #[error("{0}")]
    Denied(StoreError),
    /// A directory, or another object that is not a regular file.
    #[error("{0}")]
    NotAFile(StoreError),
    /// It could not be read for another reason.
    #[error("{0}")]
    NotRead(StoreError),
    /// The content is not of the expected form; contains the parser's reason.
    #[error("is unreadable: {0}")]
    Damaged(String),
    #[error("cannot serve as a CA: {0}")]
    NotATrustBundle(String),
    /// The current context of a kubeconfig does not exist.
    #[error("is unreadable: {0}")]
    NoContext(KubeconfigError),
    #[error("is unreadable: {0}")]
    NotAKubeconfig(KubeconfigError),
}

codes!(FileProblem {
    Absent,
    DanglingLink,
    Empty,
    Denied,
    NotAFile,
    NotRead,
    Damaged,
    NotATrustBundle,
    NoContext,
    NotAKubeconfig
});

/// Errors of the store are equal if they are of one kind: each contains the path of its file.
impl PartialEq for FileProblem {
    fn eq(&self, other: &FileProblem) -> bool {
        use FileProblem::{Damaged, NoContext, NotAFile, NotAKubeconfig, NotATrustBundle};
        match (self, other) {
            (Damaged(one), Damaged(other)) | (NotATrustBundle(one), NotATrustBundle(other)) => {
                one == other
            }
            (NoContext(one), NoContext(other)) | (NotAKubeconfig(one), NotAKubeconfig(other)) => {
                one == other
            }
            (
                NotAFile(StoreError::Unsafe { why: one, .. }),
                NotAFile(StoreError::Unsafe { why: other, .. }),
            ) => one == other,
            _ => self.code() == other.code(),
        }
    }
}

impl FileFault {
    pub(super) fn new(path: &str, problem: FileProblem) -> FileFault {
        FileFault {
            part: FilePart::Whole,
            path: path.to_owned(),
            problem,
        }
    }

    /// Returns the fault of a file that could not be read.
    pub(super) fn of_store(here: &str, error: &StoreError) -> FileFault {
        let problem = match error.class() {
            ErrorClass::Denied => FileProblem::Denied,
            ErrorClass::Unsafe => FileProblem::NotAFile,
            _ => FileProblem::NotRead,
        };
        // A directory above the file may be the obstacle.
        let path = match error {
            StoreError::Denied { path, .. } | StoreError::Unsafe { path, .. } => {
                path.display().to_string()
            }
            _ => here.to_owned(),
        };
        FileFault::new(&path, problem(error.clone()))
    }

    /// Returns the fault of a kubeconfig.
    pub(super) fn of_kubeconfig(here: &str, error: KubeconfigError) -> FileFault {
        let problem = match error {
            KubeconfigError::NoCurrentContext | KubeconfigError::Dangling(_) => {
                FileProblem::NoContext
            }
            _ => FileProblem::NotAKubeconfig,
        };
        FileFault::new(here, problem(error))
    }

    /// Returns whether nothing exists.
    pub fn is_absence(&self) -> bool {
        matches!(
            self.problem,
            FileProblem::Absent | FileProblem::DanglingLink
        )
    }

    /// Returns the stable code.
    pub fn code(&self) -> &'static str {
        self.problem.code()
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileFault { path, problem, .. } = self;
        match (problem, self.part) {
            // The error names the path.
            (FileProblem::Denied(_) | FileProblem::NotAFile(_) | FileProblem::NotRead(_), _) => {
                write!(f, "{problem}")
            }
            (_, FilePart::Whole) => write!(f, "{path} {problem}"),
            (_, FilePart::ClientCertificate) => {
                write!(f, "the client certificate in {path} {problem}")
            }
            (_, FilePart::ClientKey) => write!(f, "the client key in {path} {problem}"),
            (_, FilePart::AuthorityData) => write!(f, "its CA data {problem}"),
        }
    }
}

/// A finding that does not change the state of a row.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum RowRemark {
    #[error("its bundle also holds {subject}, which expired at {}; remove it when convenient", minute(*at))]
    ExpiredInBundle { subject: String, at: OffsetDateTime },
    /// The file of a CA certificate also contains a private key.
    #[error("{0}")]
    KeyAmongCertificates(String),
    /// A kubeconfig contains a valid certificate of the CA key, and the one in place has expired.
    #[error("{0}")]
    ValidCopy(String),
    #[error(
        "the key is PKCS#8, which some components of Kubernetes cannot read; kubeadm writes PKCS#1 or SEC1"
    )]
    KeyForm,
    #[error("not verified: {0} is not on this node")]
    NotVerified(Authority),
    /// [`CertDifference::NotUnderFirst`].
    #[error("{0}")]
    NotUnderFirst(CertDifference),
    #[error("it outlives its authority, which expires at {}", minute(*.0))]
    OutlivesAuthority(OffsetDateTime),
    #[error("it does not embed CA data")]
    NoAuthorityData,
    #[error("its CA data is {0}; kubeadm writes the first certificate of ca.crt")]
    NotFirstAuthority(TrustBundle),
    #[error("{difference}{}", replacement(difference, *replaced_at))]
    KeyPolicy {
        difference: PolicyDifference,
        replaced_at: Option<OffsetDateTime>,
    },
    #[error(
        "static pod {pod} mounts it, and is {}restarted after it is replaced",
        if *is_restarted { "" } else { "not " }
    )]
    MountedBy { pod: String, is_restarted: bool },
}

codes!(RowRemark {
    ExpiredInBundle,
    KeyAmongCertificates,
    ValidCopy,
    KeyForm,
    NotVerified,
    NotUnderFirst,
    OutlivesAuthority,
    NoAuthorityData,
    NotFirstAuthority,
    KeyPolicy,
    MountedBy
});

impl RowRemark {
    /// Returns the remark as it is compared with those of other rows: with times to the minute.
    pub(super) fn general(&self) -> RowRemark {
        let mut general = self.clone();
        if let RowRemark::OutlivesAuthority(at)
        | RowRemark::KeyPolicy {
            replaced_at: Some(at),
            ..
        } = &mut general
        {
            *at = at.truncate_to_minute();
        }
        general
    }
}

fn replacement(difference: &PolicyDifference, at: Option<OffsetDateTime>) -> String {
    at.map_or_else(String::new, |at| {
        format!(
            "; the next renewal, which is due at {}, replaces {}",
            minute(at),
            difference.replaced()
        )
    })
}

#[cfg(test)]
mod tests;
