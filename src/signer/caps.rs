//! What a signer can certify, and the refusal of what it cannot.

use serde::Serialize;

use super::RequestedCertificate;
use crate::kube::names::CertName;
use crate::x509::UsageExtensions;

/// Capabilities of a signer: the certificates that it can issue, and its handling of a repeated request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Caps {
    /// Organizations in the subject.
    pub organization: Carry,
    /// Common names with a colon in them (`system:node:cp1`).
    pub colon_common_name: Carry,
    /// IP addresses among the subject alternative names.
    pub ip_sans: Carry,
    /// ML-DSA keys.
    pub ml_dsa: Carry,
    /// Requests of other nodes' kubelets, which this node submits for them.
    pub other_nodes: Carry,
    /// CSRs without subject, as kubelets make them for pods: the signer takes the subject from elsewhere in the request.
    pub empty_csr: Carry,
    /// The signer adds the common name to the alternative names, as a DNS name, without being asked. The verification
    /// accepts this name, because it repeats the subject.
    pub own_name_san: bool,
    /// The usage extensions of the CSR.
    #[serde(skip)]
    pub usage_extensions: UsageExtensions,
    /// A response may take long: a person, a queue.
    pub pends: bool,
    /// How an earlier request is found.
    pub lookup: RequestLookup,
    /// Effect of sending a request twice.
    pub resubmit: Resubmit,
    /// Whether a certificate can be obtained in exchange for the one that it replaces.
    pub renewal: Renewal,
    /// Whether the signer publishes revocation lists.
    pub crl: Carry,
}

words! {
    /// Whether a requested property reaches the certificate. Ordered from good to bad.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub enum Carry {
        /// As requested.
        Yes = "yes",
        /// Depends on the server's configuration; the verification decides.
        AsConfigured = "as the server decides",
        /// Never.
        No = "no",
    }
}

/// How a signer finds an earlier request of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestLookup {
    /// By a name derived from the request.
    ByName,
    /// By the ticket only: a request whose response was lost cannot be found.
    ByTicket,
    /// Sending the request again is the look-up.
    ByResubmit,
    /// Not at all.
    None,
}

/// A signer's reaction to a request that it already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Resubmit {
    /// Recognizes it as the same request.
    Adopts,
    /// Issues a second certificate for the same key: harmless, but it consumes quota.
    Duplicates,
    /// Requires a new credential first.
    FreshCredential,
    /// Must not receive the request twice; an administrator must check.
    Forbidden,
}

/// How a certificate is replaced by a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Renewal {
    /// Like a first certificate.
    Submit,
    /// In exchange for the current certificate, for the same key only.
    SameKey,
    /// In exchange for the current certificate, also for a new key.
    Rekey,
}

impl Caps {
    /// Capabilities of a signer that certifies everything and responds immediately.
    pub const fn everything() -> Self {
        Caps {
            organization: Carry::Yes,
            colon_common_name: Carry::Yes,
            ip_sans: Carry::Yes,
            ml_dsa: Carry::Yes,
            other_nodes: Carry::Yes,
            empty_csr: Carry::Yes,
            own_name_san: false,
            usage_extensions: UsageExtensions::Requested,
            pends: false,
            lookup: RequestLookup::None,
            resubmit: Resubmit::Duplicates,
            renewal: Renewal::Submit,
            crl: Carry::No,
        }
    }

    /// Returns the worst of the capabilities that a certificate needs.
    pub fn carry(&self, wanted: &RequestedCertificate) -> Carry {
        let subject = &wanted.profile.subject;
        let needed = [
            (self.organization, !subject.organizations.is_empty()),
            (self.colon_common_name, subject.common_name.contains(':')),
            (self.ip_sans, !wanted.profile.sans.ips.is_empty()),
            (self.ml_dsa, wanted.profile.key.is_ml_dsa()),
        ];
        let needed = needed.into_iter().filter(|(_, needed)| *needed);
        needed.map(|(carry, _)| carry).max().unwrap_or(Carry::Yes)
    }

    /// Performs the part of [`Signer::preflight`](super::Signer::preflight) that follows from the capabilities alone. Reports every obstacle.
    pub fn carries(&self, label: &str, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        let profile = &wanted.profile;
        let mut obstacles = Vec::new();
        if self.organization == Carry::No && !profile.subject.organizations.is_empty() {
            obstacles.push(format!(
                "it cannot put an organization (O={}) into a certificate",
                profile.subject.organizations.join(", O=")
            ));
        }
        if self.colon_common_name == Carry::No && profile.subject.common_name.contains(':') {
            obstacles.push(format!(
                "it cannot certify a common name with a colon (CN={})",
                profile.subject.common_name
            ));
        }
        if self.ip_sans == Carry::No && !profile.sans.ips.is_empty() {
            let ips: Vec<_> = profile.sans.ips.iter().map(ToString::to_string).collect();
            obstacles.push(format!(
                "it cannot certify IP addresses ({})",
                ips.join(", ")
            ));
        }
        if self.ml_dsa == Carry::No && profile.key.is_ml_dsa() {
            obstacles.push(format!("it cannot certify a key of {}", profile.key));
        }
        if self.empty_csr == Carry::No && wanted.name == CertName::PodClient {
            obstacles
                .push("it takes the subject from the CSR, and that of a pod has none".to_owned());
        }
        if obstacles.is_empty() {
            return Ok(());
        }
        let advice = format!(
            "configure a signer that can for authority {}, in `authorities`",
            wanted.authority
        );
        Err(Rejection::new(label, wanted, obstacles.join("; "), advice))
    }
}

/// Error for a certificate that a signer, as configured, cannot issue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{signer} cannot sign {name}: {reason}; {advice}")]
pub struct Rejection {
    /// The signer's label.
    pub signer: String,
    /// The certificate.
    pub name: CertName,
    /// Reason.
    pub reason: String,
    /// Required action.
    pub advice: String,
}

impl Rejection {
    pub(crate) fn new(
        signer: &str,
        wanted: &RequestedCertificate,
        reason: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Rejection {
            signer: signer.to_owned(),
            name: wanted.name,
            reason: reason.into(),
            advice: advice.into(),
        }
    }
}
