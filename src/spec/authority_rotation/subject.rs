//! What a rotation changes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kube::names::{Authority, UnknownName};

/// Name of the service-account pair, as of its files and in the key policy.
const SERVICE_ACCOUNT: &str = "sa";

/// What a rotation changes: the CA of an authority, or the service-account key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RotationSubject {
    /// The CA of this authority.
    Authority(Authority),
    /// The pair `sa.key` and `sa.pub`.
    ServiceAccount,
}

impl RotationSubject {
    /// All subjects.
    pub const ALL: [RotationSubject; 4] = [
        RotationSubject::Authority(Authority::Ca),
        RotationSubject::Authority(Authority::FrontProxyCa),
        RotationSubject::Authority(Authority::EtcdCa),
        RotationSubject::ServiceAccount,
    ];

    /// Returns kubeadm's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            RotationSubject::Authority(authority) => authority.as_str(),
            RotationSubject::ServiceAccount => SERVICE_ACCOUNT,
        }
    }

    /// Returns the authority whose CA is changed.
    pub const fn authority(self) -> Option<Authority> {
        match self {
            RotationSubject::Authority(authority) => Some(authority),
            RotationSubject::ServiceAccount => None,
        }
    }
}

impl From<Authority> for RotationSubject {
    fn from(authority: Authority) -> Self {
        RotationSubject::Authority(authority)
    }
}

impl fmt::Display for RotationSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for RotationSubject {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let mut all = RotationSubject::ALL.into_iter();
        all.find(|subject| subject.as_str() == name).ok_or_else(|| {
            let known = RotationSubject::ALL.map(RotationSubject::as_str);
            UnknownName::new("an authority or sa", name, &known)
        })
    }
}

impl Serialize for RotationSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RotationSubject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_displayed_names() {
        for subject in RotationSubject::ALL {
            let name = subject.to_string();
            assert_eq!(name.parse::<RotationSubject>().unwrap(), subject);
            let json = serde_json::to_value(subject).unwrap();
            assert_eq!(json, name);
            assert_eq!(
                serde_json::from_value::<RotationSubject>(json).unwrap(),
                subject
            );
        }
        assert!("sa.key".parse::<RotationSubject>().is_err());
    }
}
