//! Names of certificates that the configuration registers in addition to kubeadm's.
//!
//! Such a name follows the form of kubeadm's names, so it contains the two facts that all rooms need without the
//! configuration, for instance for a record of a certificate that is registered no longer:
//!
//! | name | meaning | kubeadm's example |
//! | --- | --- | --- |
//! | `etcd-…`, `…-etcd-client` | signed by `etcd-ca`; all others by `ca` | `etcd-peer`, `apiserver-etcd-client` |
//! | `…-client` | a client certificate; all others are serving certificates | `front-proxy-client` |

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use super::{Authority, CertName};

/// Longest name, in bytes: that of a DNS label, since signers put names into those of objects.
const MAX_NAME_BYTES: usize = 63;
/// Names with another meaning where the name of a certificate is written.
const RESERVED: [&str; 10] = [
    "default",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubelet-configuration",
    "nodepki",
    "pod-client",
    "sa",
];
/// Prefix of the names of certificates of `etcd-ca`.
const ETCD_PREFIX: &str = "etcd-";
/// Suffix of the names of client certificates of `etcd-ca`.
const ETCD_CLIENT_SUFFIX: &str = "-etcd-client";
/// Suffix of the names of client certificates.
const CLIENT_SUFFIX: &str = "-client";
/// Prefix of the names of certificates of `front-proxy-ca`, of which none can be registered.
const FRONT_PROXY_PREFIX: &str = "front-proxy-";

/// All names that this process has parsed. Each is allocated once and never freed, so a name can be copied like
/// kubeadm's; names come from the configuration and from root's own files only.
static INTERNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The name of a registered certificate: a DNS label that has no other meaning to nodepki.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisteredName(&'static str);

impl RegisteredName {
    /// Returns the name as written in the configuration.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns the authority that signs the certificate.
    pub fn authority(self) -> Authority {
        if self.0.starts_with(ETCD_PREFIX) || self.0.ends_with(ETCD_CLIENT_SUFFIX) {
            Authority::EtcdCa
        } else {
            Authority::Ca
        }
    }

    /// Returns true for a client certificate, false for a serving certificate.
    pub fn is_client(self) -> bool {
        self.0.ends_with(CLIENT_SUFFIX)
    }
}

as_text!(RegisteredName: Display);

impl FromStr for RegisteredName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let is_edge =
            |c: Option<char>| c.is_some_and(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_label = name.len() <= MAX_NAME_BYTES
            && is_edge(name.chars().next())
            && is_edge(name.chars().next_back())
            && name.chars().all(fits);
        if !is_label {
            return Err(InvalidName::Form);
        }
        let is_authority = Authority::ALL.iter().any(|known| known.as_str() == name);
        let is_certificate = CertName::ALL.iter().any(|known| known.as_str() == name);
        if is_certificate || is_authority || RESERVED.contains(&name) {
            return Err(InvalidName::Taken);
        }
        if name.starts_with(FRONT_PROXY_PREFIX) {
            return Err(InvalidName::FrontProxy);
        }
        let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = interned.get(name) {
            return Ok(RegisteredName(known));
        }
        let name: &'static str = Box::leak(name.into());
        interned.insert(name);
        Ok(RegisteredName(name))
    }
}

/// Why a certificate cannot be registered under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It is not a DNS label.
    #[error("is not a valid name of a certificate")]
    Form,
    /// It has another meaning.
    #[error("is a name of Kubernetes or nodepki")]
    Taken,
    /// Its authority issues no registered certificates.
    #[error("would be a certificate of front-proxy-ca")]
    FrontProxy,
}

impl InvalidName {
    /// Returns what to do instead.
    pub const fn fix(self) -> &'static str {
        match self {
            InvalidName::Form => {
                "use at most 63 lower-case letters, digits and dashes, as in konnectivity-server"
            }
            InvalidName::Taken => "choose another name, as in konnectivity-server",
            InvalidName::FrontProxy => {
                "choose another name: kube-apiserver accepts any identity from a client of front-proxy-ca, so that only front-proxy-client is issued under it"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_authority_and_usage_from_name() {
        for (name, authority, is_client) in [
            ("konnectivity-server", Authority::Ca, false),
            ("konnectivity-client", Authority::Ca, true),
            ("etcd-metrics", Authority::EtcdCa, false),
            ("etcd-backup-client", Authority::EtcdCa, true),
            ("calico-etcd-client", Authority::EtcdCa, true),
            ("client-webhook", Authority::Ca, false),
        ] {
            let parsed: RegisteredName = name.parse().unwrap();
            assert_eq!(parsed.as_str(), name);
            assert_eq!(parsed.authority(), authority, "{name}");
            assert_eq!(parsed.is_client(), is_client, "{name}");
            let name: CertName = name.parse().unwrap();
            assert_eq!(name, CertName::Registered(parsed));
        }
    }

    #[test]
    fn refuses_names_with_another_meaning() {
        let long = "a".repeat(64);
        for (name, reason) in [
            ("", InvalidName::Form),
            ("-webhook", InvalidName::Form),
            ("webhook-", InvalidName::Form),
            ("Webhook", InvalidName::Form),
            ("webhook.conf", InvalidName::Form),
            ("../webhook", InvalidName::Form),
            (&long, InvalidName::Form),
            ("apiserver", InvalidName::Taken),
            ("etcd-ca", InvalidName::Taken),
            ("sa", InvalidName::Taken),
            ("default", InvalidName::Taken),
            ("kubelet", InvalidName::Taken),
            ("front-proxy-webhook", InvalidName::FrontProxy),
        ] {
            assert_eq!(name.parse::<RegisteredName>(), Err(reason), "{name:?}");
        }
    }

    #[test]
    fn interns_equal_names_once() {
        let one: RegisteredName = "webhook-for-interning".parse().unwrap();
        let other: RegisteredName = "webhook-for-interning".parse().unwrap();
        assert!(std::ptr::eq(one.as_str(), other.as_str()));
    }
}
