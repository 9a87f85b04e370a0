//! Whether a CA certificate was replaced: the certificates and kubeconfigs in place belong to another CA.
//!
//! Pure. A `ca.crt` that somebody exchanged looks like a node on which everything has drifted. To issue everything anew
//! under it would cut the node off from its cluster, so [`assess`](super::assess) is not asked then. The decision is a
//! majority: one foreign kubeconfig is odd itself, and one authority with a single certificate needs a second sign.
//!
//! A CA certificate that was renewed with its key is the same CA, and a root that was added to the bundle replaces
//! nothing: the certificates in place still belong to the bundle.

use time::OffsetDateTime;

use crate::kube::names::{Authority, CertName};
use crate::x509::{
    Certificate, Chain, TrustBundle, certificates_of, descends_from, hex, is_same_authority,
    rfc3339,
};

/// One certificate of an authority as evidence, present or not.
pub struct Witness<'a> {
    /// Its name.
    pub name: CertName,
    /// The kubeconfig that holds `trusts`, as messages show it.
    pub file: String,
    /// The certificate in place, if there is a readable one.
    pub chain: Option<&'a Chain>,
    /// The CA certificates in its kubeconfig; empty without one.
    pub trusts: Vec<Certificate>,
    /// Whether nodepki installed this certificate; `None` if it never installed one in this place.
    pub installed: Option<bool>,
}

/// The CA certificates in the CA data of a kubeconfig; none if it is absent or damaged.
pub fn trusted_by(authority_data: Option<&[u8]>) -> Vec<Certificate> {
    authority_data
        .and_then(|data| certificates_of(data).ok())
        .unwrap_or_default()
}

/// What a witness says about a bundle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Testimony {
    /// It belongs to the bundle.
    Own,
    /// It belongs to another CA.
    Foreign,
    /// It is absent, or its parts disagree.
    Nothing,
}

impl Witness<'_> {
    fn testify(&self, bundle: &[Certificate]) -> Testimony {
        let chain = self.chain.map(|chain| descends_from(chain, bundle));
        let trusts = (!self.trusts.is_empty()).then(|| self.trusts_one_of(bundle));
        match (chain, trusts) {
            (Some(true), None | Some(true)) | (None, Some(true)) => Testimony::Own,
            (Some(false), None | Some(false)) | (None, Some(false)) => Testimony::Foreign,
            (Some(true), Some(false)) | (Some(false), Some(true)) | (None, None) => {
                Testimony::Nothing
            }
        }
    }

    fn trusts_one_of(&self, bundle: &[Certificate]) -> bool {
        self.trusts
            .iter()
            .any(|trusted| bundle.iter().any(|one| is_same_authority(trusted, one)))
    }

    /// Returns true if this one alone proves that the CA is another one, where an authority has no second certificate.
    fn suffices(&self) -> bool {
        !self.trusts.is_empty() || self.installed != Some(false)
    }
}

/// A CA certificate that is not the one that this node belongs to.
#[derive(Clone, Debug)]
pub struct Replaced {
    /// The certificates and kubeconfigs that belong to the old CA.
    pub names: Vec<CertName>,
    /// The old CA.
    pub old: OldAuthority,
}

/// What is known of the CA that was replaced.
#[derive(Clone, Debug)]
pub enum OldAuthority {
    /// A kubeconfig still has its certificate.
    InKubeconfig {
        /// The certificate.
        certificate: Certificate,
        /// The kubeconfig, as messages show it.
        file: String,
    },
    /// Another CA file holds its certificate.
    InFile {
        /// The certificate.
        certificate: Certificate,
        /// The file, as messages show it.
        file: String,
    },
    /// Its name alone: the issuer of the certificates in place.
    Named(String),
}

/// Decides whether `trust` replaced the CA that the `witnesses` belong to. `elsewhere` are CA certificates in other files
/// of the node, in which the old one is looked for.
pub fn replaced(
    trust: &TrustBundle,
    witnesses: &[Witness<'_>],
    elsewhere: &[(String, Certificate)],
) -> Option<Replaced> {
    let bundle = trust.certificates();
    let of = |wanted| {
        let testimonies = witnesses.iter();
        testimonies.filter(move |witness| witness.testify(bundle) == wanted)
    };
    let foreign: Vec<&Witness<'_>> = of(Testimony::Foreign).collect();
    let enough = match foreign.as_slice() {
        [] => false,
        [only] => witnesses.len() == 1 && only.suffices(),
        several => several.len() > of(Testimony::Own).count(),
    };
    enough.then(|| Replaced {
        names: foreign.iter().map(|witness| witness.name).collect(),
        old: old_authority(bundle, &foreign, elsewhere),
    })
}

fn old_authority(
    bundle: &[Certificate],
    foreign: &[&Witness<'_>],
    elsewhere: &[(String, Certificate)],
) -> OldAuthority {
    let chains: Vec<&Chain> = foreign.iter().filter_map(|witness| witness.chain).collect();
    let is_old = |certificate: &Certificate| {
        let alone = std::slice::from_ref(certificate);
        !bundle.contains(certificate)
            && (chains.is_empty() || chains.iter().any(|chain| descends_from(chain, alone)))
    };
    for witness in foreign {
        // `ca.crt` can be restored from a file that begins with the old CA.
        if let Some(first) = witness.trusts.first().filter(|first| is_old(first)) {
            return OldAuthority::InKubeconfig {
                certificate: first.clone(),
                file: witness.file.clone(),
            };
        }
    }
    if let Some((file, certificate)) = elsewhere.iter().find(|(_, one)| is_old(one)) {
        return OldAuthority::InFile {
            certificate: certificate.clone(),
            file: file.clone(),
        };
    }
    let issuer = chains.first().map(|chain| {
        let last = chain.intermediates().last().unwrap_or(chain.leaf());
        last.issuer().to_string()
    });
    OldAuthority::Named(issuer.unwrap_or_else(|| "an unknown CA".to_owned()))
}

impl Replaced {
    /// The finding in one sentence; `path` is that of the CA file, as messages show it.
    pub fn sentence(&self, path: &str) -> String {
        let has_kubeconfig = self.names.iter().any(|name| name.is_kubeconfig());
        let what = match has_kubeconfig {
            true => "certificates and kubeconfigs",
            false => "certificates",
        };
        match &self.old {
            OldAuthority::InKubeconfig { certificate, file }
            | OldAuthority::InFile { certificate, file } => format!(
                "{path} was replaced; {what} belong to sha256:{} (certificate fingerprint of {} in {file})",
                hex(&certificate.fingerprint()),
                certificate.subject(),
            ),
            OldAuthority::Named(name) => format!(
                "{path} was replaced; {what} belong to another CA, {name}, whose certificate is not on this node"
            ),
        }
    }

    /// What to do about it; `present` is the bundle in place.
    pub fn fix(&self, authority: Authority, path: &str, present: &TrustBundle) -> String {
        let restore = match &self.old {
            OldAuthority::InKubeconfig { file, .. } => format!(
                "put the old CA certificate back (`{}`)",
                restore_command(file, path)
            ),
            OldAuthority::InFile { file, .. } => {
                format!("put the old CA certificate back from {file}")
            }
            OldAuthority::Named(_) => format!(
                "copy the old CA certificate from another control-plane node or from a backup to {path}"
            ),
        };
        format!(
            "{restore}; if the CA is to be changed, do this first and continue with `nodepki authority stage {authority} --certificate NEW`; to have everything issued under the CA in place, pin its public key sha256:{} under authorities.{authority}.trust.sha256",
            hex(&present.first().public_key().sha256())
        )
    }
}

/// Says which kubeconfig holds a valid certificate of the same CA key, if the CA certificate in place has expired.
pub fn valid_copy(
    trust: &TrustBundle,
    witnesses: &[Witness<'_>],
    path: &str,
    now: OffsetDateTime,
) -> Option<String> {
    let expired = trust.first();
    if now <= expired.not_after() {
        return None;
    }
    witnesses.iter().find_map(|witness| {
        let first = witness.trusts.first()?;
        let is_valid = (first.not_before()..=first.not_after()).contains(&now);
        (is_valid && is_same_authority(first, expired)).then(|| {
            format!(
                "{} holds a certificate of the same CA key, certificate sha256:{}, which is valid until {}, while {path} holds certificate sha256:{}: put the valid one in place (`{}`)",
                witness.file,
                hex(&first.fingerprint()),
                rfc3339(first.not_after()),
                hex(&expired.fingerprint()),
                restore_command(&witness.file, path)
            )
        })
    })
}

/// The shell command that writes the CA data of a kubeconfig to a CA file.
fn restore_command(kubeconfig: &str, path: &str) -> String {
    format!(
        "sed -n 's/.*certificate-authority-data: //p' {kubeconfig} | base64 -d > {path}.old && test -s {path}.old && mv {path}.old {path}"
    )
}

#[cfg(test)]
mod tests;
