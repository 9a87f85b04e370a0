//! The documents of `signer.nodepki.dev/v1`: what a plug-in reads on stdin, what lies in an outbox, what an
//! offline bundle's manifest holds.
//!
//! Unknown fields are ignored both ways. A new field that a reader must not ignore is a new version.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Request, Ticket, Wanted};
use crate::kube::names::{Authority, CertName};
use crate::x509::{Csr, Profile, Subject, hex};

/// The version of the contract.
pub const API_VERSION: &str = "signer.nodepki.dev/v1";

/// Kubernetes' words for the key usages of every leaf that kubeadm makes, whatever its key.
const KEY_USAGES: [&str; 2] = ["digital signature", "key encipherment"];

/// A request as others read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignRequest {
    /// [`API_VERSION`].
    pub api_version: String,
    /// `SignRequest`, or `PollRequest`.
    pub kind: String,
    /// [`super::RequestId`].
    pub request_id: String,
    /// From 1. Absent in files, which must not change when they are written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// RFC 3339: after it the answer is not waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Node name.
    pub node: String,
    /// Cluster name.
    pub cluster: String,
    /// Which certificate.
    pub slot: CertName,
    /// Which authority must sign it.
    pub ca: Authority,
    /// PKCS#10.
    pub csr_pem: String,
    /// SHA-256 over the DER of the CSR, hexadecimal.
    pub csr_sha256: String,
    /// SHA-256 over the subject public key info, hexadecimal.
    pub spki_sha256: String,
    /// Wanted subject.
    pub subject: WireSubject,
    /// Wanted DNS names.
    pub dns_names: Vec<String>,
    /// Wanted IP addresses.
    pub ip_addresses: Vec<String>,
    /// Wanted key usages and extended key usages, in Kubernetes' words.
    pub usages: Vec<String>,
    /// Wanted lifetime from the moment of issue.
    pub duration_seconds: u64,
    /// Free strings from the configuration.
    #[serde(default)]
    pub params: std::collections::BTreeMap<String, String>,
    /// The ticket of a pending request.
    pub handle: Option<String>,
}

/// Subject, both fields always present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WireSubject {
    /// CN.
    pub common_name: String,
    /// O.
    pub organization: Vec<String>,
}

impl SignRequest {
    /// What is the same whenever the request is asked: the form that lies in files.
    pub fn lasting(request: &Request) -> Self {
        let Wanted {
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

    /// One exchange: with attempt, deadline, and the ticket when it is a poll.
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

    /// Indented JSON with a final newline, for files.
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

/// SHA-256 over the DER of a CSR, hexadecimal.
pub fn csr_sha256(csr: &Csr) -> String {
    hex(&Sha256::digest(csr.der()))
}

/// The profile in one line of words: for people who sign by hand, and as part of a request's identity.
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

/// Key usages and extended key usages in Kubernetes' words, in the order that the CSR has them in.
pub(super) fn usages(profile: &Profile) -> Vec<String> {
    let extended = profile.usages.iter().map(ToString::to_string);
    KEY_USAGES
        .iter()
        .map(|usage| (*usage).to_owned())
        .chain(extended)
        .collect()
}

fn rfc3339(moment: OffsetDateTime) -> Option<String> {
    moment.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()
}
