//! Keys, requests, certificates, chains and the check of what a signer returned.
//!
//! Wraps the crypto crates entirely: nothing outside this module names rcgen, webpki, x509-parser or `rsa`, and
//! aws-lc-rs for symmetric keys only. Pure: no files, no network, no clock; the time is an argument. (Key generation
//! and signing draw from the kernel's random generator.)
//!
//! [`Profile`] is the wish, [`satisfies`] compares a [`Chain`] with it and returns every difference in words.

mod authority;
mod blocks;
mod certificate;
mod chain;
mod constraints;
mod crl;
mod csr;
mod der;
mod key;
mod lifetime;
mod lineage;
mod path;
mod policies;
mod strict;
mod verify;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use authority::{AuthorityError, CertificateAuthority};
pub(crate) use certificate::is_hidden;
pub use certificate::{Certificate, CertificateError, Name, shown_certificate};
pub use chain::{
    Chain, ChainError, MAX_ANSWER_BYTES, MAX_ANSWER_CERTIFICATES, MAX_BUNDLE_CERTIFICATES,
    MAX_BUNDLE_SUBJECT_BYTES, MAX_CHAIN_BYTES, TrustBundle, TrustError, certificates_of,
};
pub use crl::{CrlError, RevocationList, Revocations};
pub use csr::{Csr, CsrError, UsageExtensions};
pub use key::{
    JwkError, KeyAlgorithm, KeyError, KeyType, PrivateKey, PublicKey, UnknownAlgorithm, hex,
};
pub use lifetime::{LIFETIME_FACTOR, Lifetime, judge_lifetime};
pub use lineage::{descends_from, is_same_authority};
pub use verify::{
    Difference, along_path, is_for_names, path_differences, rfc3339, satisfies, usage_differences,
    verifies,
};

/// The wanted subject. In DER the organization comes first, as Go writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// CN.
    pub common_name: String,
    /// O, at most one in kubeadm's table. Kubernetes reads it as group membership.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        rename = "organization"
    )]
    pub organizations: Vec<String>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for organization in &self.organizations {
            write!(f, "O={organization}, ")?;
        }
        write!(f, "CN={}", self.common_name)
    }
}

/// The wanted subject alternative names, in the order in which they go into the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sans {
    /// DNS names.
    pub dns: Vec<String>,
    /// IP addresses. IPv4-mapped IPv6 addresses never occur: they are IPv4.
    pub ips: Vec<IpAddr>,
}

impl Sans {
    /// True when no extension is wanted at all.
    pub fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.ips.is_empty()
    }
}

/// What a certificate may say beyond the wish and still be taken. None of it is in a request: it is about signers that
/// add something of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tolerance {
    /// Server auth on a client's certificate and client auth on a server's; never any other usage.
    pub extra_usages: bool,
    /// The wanted common name as a DNS name.
    pub own_name: bool,
    /// Longest life of a new certificate; by default [`LIFETIME_FACTOR`] times what was asked for.
    pub max_lifetime: Option<Duration>,
}

impl fmt::Display for Sans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dns = self.dns.iter().map(|name| format!("DNS:{name}"));
        let ips = self.ips.iter().map(|ip| format!("IP:{ip}"));
        f.write_str(&dns.chain(ips).collect::<Vec<_>>().join(", "))
    }
}

/// The extended key usages of kubeadm's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtendedUsage {
    /// id-kp-serverAuth.
    #[serde(rename = "server auth")]
    ServerAuth,
    /// id-kp-clientAuth.
    #[serde(rename = "client auth")]
    ClientAuth,
}

impl fmt::Display for ExtendedUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ExtendedUsage::ServerAuth => "server auth",
            ExtendedUsage::ClientAuth => "client auth",
        })
    }
}

/// Everything that is wanted of one leaf certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// Subject.
    pub subject: Subject,
    /// Subject alternative names.
    pub sans: Sans,
    /// Extended key usages, in order.
    pub usages: Vec<ExtendedUsage>,
    /// Key algorithm.
    pub key: KeyAlgorithm,
    /// Wanted validity from the moment of issue. Signers may give less.
    pub lifetime: Duration,
}
