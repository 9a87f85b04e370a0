//! What a rotation changes.

use crate::kube::names::Authority;

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

as_text!(RotationSubject: Display, FromStr "an authority or sa", Serialize, Deserialize);

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
