//! The required content of a leaf certificate.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::KeyAlgorithm;

/// The required subject. In DER the organization comes first, as in Go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// The common name (CN).
    pub common_name: String,
    /// The organizations (O), at most one in kubeadm's table. Kubernetes treats them as group memberships.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        rename = "organization"
    )]
    pub organizations: Vec<String>,
}

impl Subject {
    /// Creates a subject.
    pub fn new(common_name: impl Into<String>, organizations: &[&str]) -> Self {
        Subject {
            common_name: common_name.into(),
            organizations: organizations.iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for organization in &self.organizations {
            write!(f, "O={organization}, ")?;
        }
        write!(f, "CN={}", self.common_name)
    }
}

/// The required subject alternative names, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sans {
    /// DNS names.
    pub dns: Vec<String>,
    /// IP addresses. IPv4-mapped IPv6 addresses are stored as IPv4.
    pub ips: Vec<IpAddr>,
}

impl Sans {
    /// Returns true if the certificate needs no extension for names.
    pub fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.ips.is_empty()
    }
}

/// Differences from the profile that are accepted. Requests do not contain them; they are for signers that add content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tolerance {
    /// True to accept server auth on a client certificate and client auth on a server certificate, but no other usage.
    pub extra_usages: bool,
    /// True to accept the required common name as a DNS name.
    pub common_name_as_dns: bool,
    /// True to accept subject attributes that no component of Kubernetes reads, such as C and OU.
    pub unread_attributes: bool,
    /// Longest lifetime of a new certificate; by default [`LIFETIME_FACTOR`](super::LIFETIME_FACTOR) times the requested
    /// one.
    pub max_lifetime: Option<Duration>,
}

impl Sans {
    /// Returns the names as `DNS:…` and `IP:…`.
    pub fn to_strings(&self) -> Vec<String> {
        let dns = self.dns.iter().map(|name| format!("DNS:{name}"));
        let ips = self.ips.iter().map(|ip| format!("IP:{ip}"));
        dns.chain(ips).collect()
    }
}

impl fmt::Display for Sans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_strings().join(", "))
    }
}

words! {
    /// The extended key usages of kubeadm's table.
    pub enum ExtendedUsage: Serialize, Deserialize {
        /// id-kp-serverAuth.
        ServerAuth = "server auth",
        /// id-kp-clientAuth.
        ClientAuth = "client auth",
    }
}

impl ExtendedUsage {
    /// Returns the name in RFC 5280, which OpenSSL and step-ca use.
    pub(crate) const fn rfc_name(self) -> &'static str {
        match self {
            ExtendedUsage::ServerAuth => "serverAuth",
            ExtendedUsage::ClientAuth => "clientAuth",
        }
    }
}

/// The required content of one leaf certificate.
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
    /// Requested validity from the time of issue. Signers may grant less.
    pub lifetime: Duration,
}

#[cfg(any(test, feature = "fuzzing"))]
impl Profile {
    /// Returns a profile without alternative names, for an ECDSA key.
    pub(crate) fn of_tests(subject: Subject, usages: &[ExtendedUsage], lifetime: Duration) -> Self {
        Profile {
            subject,
            sans: Sans::default(),
            usages: usages.to_vec(),
            key: KeyAlgorithm::EcdsaP256,
            lifetime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_organizations_before_common_name() {
        for (organizations, expected) in [
            (&[][..], "CN=a"),
            (&["x"][..], "O=x, CN=a"),
            (&["x", "y"][..], "O=x, O=y, CN=a"),
        ] {
            let subject = Subject::new("a", organizations);
            assert_eq!(subject.to_string(), expected);
        }
    }
}
