//! Why [`assess`](super::assess) and rotation decide as they do: values with their data, which only the output turns into
//! text.

use std::fmt;
use std::path::PathBuf;

use time::{Duration, OffsetDateTime};

use super::found::ObservedFault;
use super::kubelet_store::KubeletStoreFault;
use super::replaced::ReplacedCa;
use super::service_account::MisplacedKey;
use crate::kube::components::Component;
use crate::kube::kubeconfig::{ClientRefusal, KubeconfigError};
use crate::kube::names::{Authority, CertName, NodePath};
use crate::spec::schedule::{Due, NoWindow, length_in_words};
use crate::text::rfc3339;
use crate::x509::{CertDifference, Subject};

/// A reason to write the files of a certificate, with a new certificate or the present one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertReason {
    #[error("absent")]
    Absent,
    /// It was absent before this run.
    #[error("was absent")]
    WasAbsent,
    #[error("empty file")]
    Empty,
    #[error("{0} leads nowhere")]
    DanglingLink(NodePath),
    #[error("certificate {0}")]
    CertificateUnusable(ObservedFault),
    #[error("key {0}")]
    KeyUnusable(ObservedFault),
    #[error("the CA certificate of its authority is not on this node yet")]
    AuthorityUnknown,
    #[error("{0}")]
    Differs(CertDifference),
    #[error("{certificate} is revoked since {} according to {list}", rfc3339(*since))]
    Revoked {
        certificate: String,
        since: OffsetDateTime,
        list: NodePath,
    },
    #[error("every client of Kubernetes refuses it: {0}; replaced")]
    RefusedByClients(ClientRefusal),
    #[error("the key is PKCS#8; kubeadm writes PKCS#1 or SEC1")]
    KeyForm,
    #[error("the key is world-readable (mode {mode:04o})")]
    KeyExposed { mode: u32 },
    #[error("{0}")]
    KubeletStore(KubeletStoreFault),
    #[error("{0}")]
    Kubeconfig(KubeconfigDifference),
    #[error("{0}")]
    Due(Due),
    #[error("requested")]
    Requested,
    #[error("requested with --force")]
    Forced,
    #[error("its authority was changed")]
    AuthorityChanged,
    #[error("{0}")]
    NoWindow(NoWindow),
    /// A remark on a certificate whose files are written again.
    #[error("{0}")]
    Note(CertNote),
}

codes!(CertReason {
    Absent, WasAbsent, Empty, DanglingLink, CertificateUnusable, KeyUnusable, AuthorityUnknown, Revoked, RefusedByClients,
    KeyForm, KeyExposed, Due, Requested, Forced, AuthorityChanged;
    Differs, KubeletStore, Kubeconfig, NoWindow, Note
});

/// A difference between a kubeconfig, apart from its certificate and key, and the spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum KubeconfigDifference {
    #[error("expected server {wanted}, found {}", found.as_deref().unwrap_or("none"))]
    OtherServer {
        found: Option<String>,
        wanted: String,
    },
    #[error("its CA is {found} instead of {wanted}")]
    OtherAuthority {
        found: KubeconfigAuthority,
        /// The CA certificates of the bundle, in words.
        wanted: String,
    },
    #[error("it names {} and {} instead of {} and {}", found[0].display(), found[1].display(), wanted[0], wanted[1])]
    NamesOtherFiles {
        found: [PathBuf; 2],
        wanted: [NodePath; 2],
    },
    #[error("it contains its certificate and key instead of naming {} and {}", .0[0], .0[1])]
    ContainsPair([NodePath; 2]),
    #[error("it names {} and {} instead of embedded certificate and key", .0[0], .0[1])]
    NamesPair([NodePath; 2]),
}

codes!(KubeconfigDifference {
    OtherServer,
    OtherAuthority,
    NamesOtherFiles,
    ContainsPair,
    NamesPair
});

/// The CA of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigAuthority {
    /// Embedded; the certificates, in words.
    #[error("{0}")]
    Embedded(String),
    /// In another file.
    #[error("in the file {}", .0.display())]
    InFile(PathBuf),
    /// None.
    #[error("missing")]
    Missing,
}

/// A remark on a certificate that is in place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertNote {
    #[error("subject is {0}, of another kubeadm version; kept, since the cluster may rely on it")]
    SubjectOfOtherVersion(Subject),
    #[error("{0}")]
    Differs(CertDifference),
    #[error("{0}; kept, since the kubelet made the key when it requested the certificate")]
    KeyOfKubelet(CertDifference),
    #[error("it outlives its authority, which expires at {}; it is unusable after that", rfc3339(*authority_ends))]
    OutlivesAuthority { authority_ends: OffsetDateTime },
    #[error("its subject also has {}, which the signer added and no component of Kubernetes reads", .0.join(", "))]
    UnreadAttributes(Vec<String>),
    #[error("it expires with its authority, at {}: a new certificate would expire no later; replace the authority", rfc3339(*authority_ends))]
    ExpiresWithAuthority { authority_ends: OffsetDateTime },
    /// The reasons of a renewal that takes place later.
    #[error("{}; {hold}", joined(reasons))]
    HeldBack {
        reasons: Vec<CertReason>,
        hold: RenewalHold,
    },
    #[error("{difference}: takes effect at the next renewal{}", due.map(|due| format!(", which is due at {}", rfc3339(due))).unwrap_or_default())]
    AtRenewal {
        difference: CertDifference,
        due: Option<OffsetDateTime>,
    },
    #[error("its lifetime is {lives} instead of the requested {asked}")]
    OtherLifetime { lives: String, asked: String },
    #[error("copies of the old {name} work until {}; distribute new ones by then", rfc3339(*until))]
    OldCopies {
        name: CertName,
        until: OffsetDateTime,
    },
}

codes!(CertNote {
    SubjectOfOtherVersion, KeyOfKubelet, OutlivesAuthority, UnreadAttributes, ExpiresWithAuthority, HeldBack, AtRenewal,
    OtherLifetime, OldCopies;
    Differs
});

/// The reason why a usable certificate is renewed later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum RenewalHold {
    #[error(
        "renewed {} ago, not renewed again before {}{}",
        length_in_words(*age),
        rfc3339(*until),
        if *is_requested { " (--force renews it now)" } else { "" }
    )]
    JustRenewed {
        age: Duration,
        until: OffsetDateTime,
        is_requested: bool,
    },
    #[error("waits for the window that opens at {}", rfc3339(*opens))]
    WaitsForWindow { opens: OffsetDateTime },
}

/// The reason why nothing is done for a certificate until an administrator has acted, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum CertRefusal {
    #[error(
        "{path} is refused by every client of Kubernetes: {refusal} (correct the field, which nodepki does not change, or move the file away and run again)"
    )]
    RefusedByClients {
        path: NodePath,
        refusal: ClientRefusal,
    },
    #[error(
        "{path} cannot be repaired without losing what is in it: {error}; move it away and run again"
    )]
    Unrepairable {
        path: NodePath,
        error: KubeconfigError,
    },
    #[error("{0}, and a new certificate would replace it: {fix}, then run again", fix = .0.fix())]
    ServiceAccountKey(MisplacedKey),
    /// Nothing is issued under its authority.
    #[error("{}", joined(.0))]
    AuthorityRefused(Vec<BundleRefusal>),
    #[error(
        "{component} did not become ready with the last certificate: {why}; find out why, then run `nodepki renew --name {name}`"
    )]
    ComponentNotReady {
        component: Component,
        why: String,
        name: CertName,
    },
}

codes!(CertRefusal {
    RefusedByClients,
    Unrepairable,
    ServiceAccountKey,
    AuthorityRefused,
    ComponentNotReady
});

impl CertRefusal {
    /// Returns whether two certificates are refused for the same cause.
    pub(crate) fn has_same_cause(&self, other: &CertRefusal) -> bool {
        use CertRefusal as R;
        match (self, other) {
            (
                R::RefusedByClients { refusal: one, .. },
                R::RefusedByClients { refusal: other, .. },
            ) => one == other,
            (R::Unrepairable { error: one, .. }, R::Unrepairable { error: other, .. }) => {
                one == other
            }
            (
                R::ComponentNotReady { component: one, .. },
                R::ComponentNotReady {
                    component: other, ..
                },
            ) => one == other,
            _ => self == other,
        }
    }
}

/// The reason why nothing is issued under an authority, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum BundleRefusal {
    #[error("{} is absent, but authorities.{authority}.trust.file names it as the CA certificate: put the certificate there or correct the setting", file.display())]
    TrustFileAbsent { file: PathBuf, authority: Authority },
    #[error(
        "{path} is not the {authority} of the cluster: it contains {found}, {from} has {wanted}; find out which one is right; if it is the cluster's, move the file away and run again"
    )]
    NotOfCluster {
        path: NodePath,
        authority: Authority,
        /// The CA certificates of the file, in words.
        found: String,
        /// Where the cluster provides its own.
        from: String,
        wanted: String,
    },
    #[error("{path} is not the {authority} of authorities.{authority}.trust.file: it contains {found}, {} has {wanted}; find out which one is right", file.display())]
    NotOfTrustFile {
        path: NodePath,
        authority: Authority,
        found: String,
        file: PathBuf,
        wanted: String,
    },
    #[error(
        "{path} is not a usable trust bundle of {authority}: {why}; put the CA certificate there and run again"
    )]
    Unusable {
        path: NodePath,
        authority: Authority,
        why: String,
    },
    #[error(
        "{path} does not match the pins of authority {authority}: {why}; correct authorities.{authority}.trust.sha256 or the file"
    )]
    NotPinned {
        path: NodePath,
        authority: Authority,
        why: String,
    },
    #[error("the CA certificate in {path} ({subject}) expired at {}: peers refuse every certificate, kubeconfig and kubelet under it; replace the CA first, as new leaf certificates would be refused too", rfc3339(*at))]
    Expired {
        path: NodePath,
        subject: String,
        at: OffsetDateTime,
    },
    #[error("{}", replaced.sentence(path))]
    Replaced {
        replaced: Box<ReplacedCa>,
        path: String,
    },
}

/// Returns the texts of several values in one line.
pub(crate) fn joined<T: fmt::Display>(values: &[T]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests;
