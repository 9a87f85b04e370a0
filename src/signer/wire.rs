//! The documents of `signer.nodepki.dev/v1`: the stdin of a plug-in, the files in an outbox, the manifest of an
//! offline bundle.
//!
//! Unknown fields are ignored by both sides. A new field that a reader must not ignore requires a new version.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Request, RequestedCertificate, Ticket};
use crate::kube::names::{Authority, CertName};
use crate::text::hex;
use crate::x509::{Csr, Profile, Subject};

/// Version of the contract.
pub const API_VERSION: &str = "signer.nodepki.dev/v1";

/// A request in its external form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignRequest {
    /// [`API_VERSION`].
    pub api_version: String,
    /// `SignRequest`, or `PollRequest`.
    pub kind: String,
    /// [`super::RequestId`].
    pub request_id: String,
    /// Number from 1. Absent in files, which must not change when they are written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// RFC 3339 time until which nodepki waits for the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Node name.
    pub node: String,
    /// Cluster name.
    pub cluster: String,
    /// The certificate.
    pub slot: CertName,
    /// Authority that must sign it.
    pub ca: Authority,
    /// PKCS#10.
    pub csr_pem: String,
    /// SHA-256 over the DER of the CSR, hexadecimal.
    pub csr_sha256: String,
    /// SHA-256 over the subject public key info, hexadecimal.
    pub spki_sha256: String,
    /// Requested subject.
    pub subject: WireSubject,
    /// Requested DNS names.
    pub dns_names: Vec<String>,
    /// Requested IP addresses.
    pub ip_addresses: Vec<String>,
    /// Requested key usages and extended key usages, by Kubernetes' names.
    pub usages: Vec<String>,
    /// Requested lifetime from the moment of issue.
    pub duration_seconds: u64,
    /// Values from the configuration.
    #[serde(default)]
    pub params: std::collections::BTreeMap<String, String>,
    /// The ticket of a pending request.
    pub handle: Option<String>,
}

/// Subject; both fields are always present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WireSubject {
    /// CN.
    pub common_name: String,
    /// O.
    pub organization: Vec<String>,
}

impl SignRequest {
    /// Returns the fields that do not change between attempts: the form for files.
    pub fn lasting(request: &Request) -> Self {
        let RequestedCertificate {
            name,
            authority,
            profile,
            ..
        } = &request.wanted;
        SignRequest {
            api_version: API_VERSION.to_owned(),
            kind: "SignRequest".to_owned(),
            request_id: request.id.to_string(),
            attempt: None,
            deadline: None,
            node: request.identity.node.clone(),
            cluster: request.identity.cluster.clone(),
            slot: *name,
            ca: *authority,
            csr_pem: request.csr.to_pem(),
            csr_sha256: csr_sha256(&request.csr),
            spki_sha256: hex(&request.spki_sha256),
            subject: WireSubject::from(&profile.subject),
            dns_names: profile.sans.dns.clone(),
            ip_addresses: profile.sans.ips.iter().map(ToString::to_string).collect(),
            usages: usages(profile),
            duration_seconds: profile.lifetime.as_secs(),
            params: Default::default(),
            handle: None,
        }
    }

    /// Returns the form for one exchange: with attempt, deadline, and the ticket for a poll.
    pub fn exchange(request: &Request, ticket: Option<&Ticket>) -> Self {
        SignRequest {
            kind: match ticket {
                Some(_) => "PollRequest".to_owned(),
                None => "SignRequest".to_owned(),
            },
            attempt: Some(request.attempt),
            deadline: request.deadline.and_then(rfc3339),
            handle: ticket.map(|ticket| ticket.as_str().to_owned()),
            ..Self::lasting(request)
        }
    }

    /// Returns indented JSON with a final newline, for files.
    pub fn to_file(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl From<&Subject> for WireSubject {
    fn from(subject: &Subject) -> Self {
        WireSubject {
            common_name: subject.common_name.clone(),
            organization: subject.organizations.clone(),
        }
    }
}

/// Returns the SHA-256 over the DER of a CSR, in hexadecimal.
pub fn csr_sha256(csr: &Csr) -> String {
    hex(&Sha256::digest(csr.der()))
}

/// Returns the profile as one line of text: for manual signing, and as part of a request's identity.
pub fn profile_line(profile: &Profile) -> String {
    let sans = if profile.sans.is_empty() {
        "no subject alternative names".to_owned()
    } else {
        format!("names {}", profile.sans)
    };
    format!(
        "{}, {sans}, key usages {}, {}, valid for {} seconds",
        profile.subject,
        usages(profile).join(" + "),
        profile.key,
        profile.lifetime.as_secs()
    )
}

/// Returns key usages and extended key usages by Kubernetes' names, in the order of the CSR.
pub(super) fn usages(profile: &Profile) -> Vec<String> {
    let extended = profile.usages.iter().map(ToString::to_string);
    let encipherment = profile.key.is_rsa().then_some("key encipherment");
    ["digital signature"]
        .into_iter()
        .chain(encipherment)
        .map(str::to_owned)
        .chain(extended)
        .collect()
}

fn rfc3339(moment: OffsetDateTime) -> Option<String> {
    moment.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()
}
