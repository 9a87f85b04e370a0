//! Kubernetes versions.

use std::fmt;
use std::str::FromStr;

use super::address::InvalidValue;

/// A released version of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
    /// Patch.
    pub patch: u32,
    /// Pre-release, such as `alpha.1`.
    pub pre: Option<String>,
}

impl KubernetesVersion {
    /// Returns true for the given minor release and later ones.
    pub(crate) fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)?;
        match &self.pre {
            Some(pre) => write!(f, "-{pre}"),
            None => Ok(()),
        }
    }
}

impl FromStr for KubernetesVersion {
    type Err = InvalidValue;

    /// Parses `v1.37.2` or `1.37.2-alpha.1+build`; the build is dropped.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refusal = || InvalidValue {
            message: format!("{text:?} is not a Kubernetes version"),
            fix: "write it in full, such as v1.37.2, or remove it".to_owned(),
        };
        let bare = text.strip_prefix('v').unwrap_or(text);
        let (bare, _build) = bare.split_once('+').unwrap_or((bare, ""));
        let (release, pre) = match bare.split_once('-') {
            Some((release, pre)) => (release, Some(pre)),
            None => (bare, None),
        };
        let numbers: Option<Vec<u32>> = release.split('.').map(parse_number).collect();
        match numbers.as_deref() {
            Some(&[major, minor, patch]) if pre.is_none_or(is_pre_release) => {
                Ok(KubernetesVersion {
                    major,
                    minor,
                    patch,
                    pre: pre.map(str::to_owned),
                })
            }
            _ => Err(refusal()),
        }
    }
}

/// Parses a number without a sign and without leading zeros.
fn parse_number(text: &str) -> Option<u32> {
    let is_plain =
        text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

fn is_pre_release(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-';
    !text.is_empty() && text.bytes().all(is_allowed)
}
