//! Detects a CA certificate that was replaced: the certificates and kubeconfigs in place belong to another CA.
//!
//! Pure. With another `ca.crt`, all certificates of the node seem to differ from their spec. Issuing them under the new CA
//! would disconnect the node from its cluster, so [`assess`](super::assess) is not called then. The decision is by
//! majority: a single foreign kubeconfig is itself the exception, and an authority with a single certificate needs a second
//! sign.
//!
//! A CA certificate that was renewed with its key is the same CA. A root that was added to the bundle replaces nothing:
//! the certificates in place still belong to the bundle.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use crate::kube::names::{Authority, CertName};
use crate::text::{hex, quoted, rfc3339};
use crate::x509::{
    Certificate, Chain, TrustBundle, certificates_of, descends_from, is_same_authority,
};

/// One certificate of an authority, present or absent, as evidence.
pub struct CaEvidence<'a> {
    /// The name of the certificate.
    pub name: CertName,
    /// The kubeconfig that contains `trusts`, as messages display it.
    pub file: String,
    /// The certificate in place, if it is readable.
    pub chain: Option<&'a Chain>,
    /// The CA certificates in its kubeconfig; empty without one.
    pub trusts: Vec<Certificate>,
    /// True if nodepki installed this certificate; `None` if nodepki never installed one in its place.
    pub installed: Option<bool>,
}

/// Returns the CA certificates in the CA data of a kubeconfig; none if the data is absent or damaged.
pub fn trusted_by(authority_data: Option<&[u8]>) -> Vec<Certificate> {
    authority_data
        .and_then(|data| certificates_of(data).ok())
        .unwrap_or_default()
}

/// The relation of a witness to a bundle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Testimony {
    /// The witness belongs to the bundle.
    Own,
    /// The witness belongs to another CA.
    Foreign,
    /// The witness is absent, or its parts differ.
    Unknown,
}

impl CaEvidence<'_> {
    fn testify(&self, bundle: &[Certificate]) -> Testimony {
        let chain = self.chain.map(|chain| descends_from(chain, bundle));
        let trusts = (!self.trusts.is_empty()).then(|| self.trusts_one_of(bundle));
        match (chain, trusts) {
            (Some(true), None | Some(true)) | (None, Some(true)) => Testimony::Own,
            (Some(false), None | Some(false)) | (None, Some(false)) => Testimony::Foreign,
            (Some(true), Some(false)) | (Some(false), Some(true)) | (None, None) => {
                Testimony::Unknown
            }
        }
    }

    fn trusts_one_of(&self, bundle: &[Certificate]) -> bool {
        self.trusts
            .iter()
            .any(|trusted| bundle.iter().any(|one| is_same_authority(trusted, one)))
    }

    /// Returns true if the CA of this witness is in a file from which its own CA was removed.
    fn belongs_to_exchanged(&self, elsewhere: &[OtherCaFile<'_>]) -> bool {
        let mut replaced = elsewhere.iter().filter(|other| other.is_replaced);
        replaced.any(|other| self.testify(other.trust.certificates()) == Testimony::Own)
    }

    /// Returns true if this witness alone proves a replaced CA, for an authority without a second certificate.
    fn suffices(&self) -> bool {
        !self.trusts.is_empty() || self.installed != Some(false)
    }
}

/// A CA certificate of another CA than that of the node's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedCa {
    /// The certificates and kubeconfigs that belong to the old CA.
    pub names: Vec<CertName>,
    /// The old CA.
    pub old: OldAuthority,
}

/// The CA that was replaced, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldAuthority {
    /// A kubeconfig still contains its certificate.
    InKubeconfig {
        /// The certificate.
        certificate: Certificate,
        /// The kubeconfig, as messages display it.
        file: String,
    },
    /// Another CA file contains its certificate.
    InFile {
        /// The certificate.
        certificate: Certificate,
        /// The file, as messages display it.
        file: String,
    },
    /// Only its name is known: the issuer of the certificates in place.
    Named(String),
}

impl OldAuthority {
    /// Returns the CA file that contains the certificate.
    fn ca_file(&self) -> Option<&str> {
        match self {
            OldAuthority::InFile { file, .. } => Some(file),
            OldAuthority::InKubeconfig { .. } | OldAuthority::Named(_) => None,
        }
    }
}

/// A CA file of the node, with what shows whether its CA was replaced.
pub struct CaFile<'a> {
    /// Its authority.
    pub authority: Authority,
    /// The file, as messages display it.
    pub file: String,
    /// Its content.
    pub trust: &'a TrustBundle,
    /// The certificates of the authority.
    pub witnesses: Vec<CaEvidence<'a>>,
    /// The settings or the cluster say that this is the right CA.
    pub is_confirmed: bool,
}

/// Another CA file of the node, which may contain the old CA.
pub struct OtherCaFile<'a> {
    /// The file, as messages display it.
    pub file: String,
    /// Its content.
    pub trust: &'a TrustBundle,
    /// The CA of this file was replaced too, so that the file contains a CA that does not belong there.
    pub is_replaced: bool,
}

/// Decides for each CA file of the node whether its CA was replaced.
pub fn replaced_among(files: &[CaFile<'_>]) -> BTreeMap<Authority, ReplacedCa> {
    let mut found = BTreeMap::new();
    // An authority whose only certificate is no proof may have been exchanged with one that is proven.
    for _ in 0..2 {
        let proven: Vec<Authority> = found.keys().copied().collect();
        let open = |file: &&CaFile<'_>| !file.is_confirmed && !proven.contains(&file.authority);
        for own in files.iter().filter(open) {
            let others = files.iter().filter(|one| one.authority != own.authority);
            let elsewhere: Vec<OtherCaFile<'_>> = others
                .map(|other| OtherCaFile {
                    file: other.file.clone(),
                    trust: other.trust,
                    is_replaced: proven.contains(&other.authority),
                })
                .collect();
            let replaced = replaced(own.trust, &own.witnesses, &elsewhere);
            found.extend(replaced.map(|replaced| (own.authority, replaced)));
        }
    }
    found
}

/// Decides whether `trust` replaced the CA of the `witnesses`.
pub fn replaced(
    trust: &TrustBundle,
    witnesses: &[CaEvidence<'_>],
    elsewhere: &[OtherCaFile<'_>],
) -> Option<ReplacedCa> {
    let bundle = trust.certificates();
    let with = |testimony| {
        let witnesses = witnesses.iter();
        witnesses.filter(move |witness| witness.testify(bundle) == testimony)
    };
    let foreign: Vec<&CaEvidence<'_>> = with(Testimony::Foreign).collect();
    let is_proven = match foreign.as_slice() {
        [] => false,
        [only] => witnesses.len() == 1 && (only.suffices() || only.belongs_to_exchanged(elsewhere)),
        several => several.len() > with(Testimony::Own).count(),
    };
    is_proven.then(|| ReplacedCa {
        names: foreign.iter().map(|witness| witness.name).collect(),
        old: old_authority(bundle, &foreign, elsewhere),
    })
}

fn old_authority(
    bundle: &[Certificate],
    foreign: &[&CaEvidence<'_>],
    elsewhere: &[OtherCaFile<'_>],
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
    for other in elsewhere {
        if let Some(certificate) = other.trust.certificates().iter().find(|one| is_old(one)) {
            return OldAuthority::InFile {
                certificate: certificate.clone(),
                file: other.file.clone(),
            };
        }
    }
    let issuer = chains.first().map(|chain| {
        let last = chain.intermediates().last().unwrap_or(chain.leaf());
        last.issuer().to_string()
    });
    OldAuthority::Named(issuer.unwrap_or_else(|| "an unknown CA".to_owned()))
}

impl ReplacedCa {
    /// States the finding in one sentence; `path` is the CA file, as messages display it.
    pub(crate) fn sentence(&self, path: &str) -> String {
        let has_kubeconfig = self.names.iter().any(|name| name.is_kubeconfig());
        let what = if has_kubeconfig {
            "certificates and kubeconfigs"
        } else {
            "certificates"
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

    /// Returns the fix; `present` is the bundle in place.
    pub fn fix(&self, authority: Authority, path: &str, present: &TrustBundle) -> String {
        let restore = match &self.old {
            OldAuthority::InKubeconfig { file, .. } => format!(
                "restore the old CA certificate (`{}`)",
                restore_command(file, path)
            ),
            // The present certificate may be the only one of its CA on this node.
            OldAuthority::InFile { file, .. } => format!(
                "restore the old CA certificate from {file} (`cp {path} {path}.new && cp {file} {path}`)",
                path = quoted(path),
                file = quoted(file),
            ),
            OldAuthority::Named(_) => copy_advice(path),
        };
        format!(
            "{restore}; to change the CA, do this first and continue with `nodepki authority stage {authority} --certificate NEW`; to issue everything under the CA in place, pin its public key sha256:{} under authorities.{authority}.trust.sha256",
            hex(&present.first().public_key().sha256())
        )
    }
}

/// Returns the authorities among `all` whose CA files are to be restored together, and the one fix that restores them: the
/// file of one contains the old certificate of another, so that restoring one after the other would overwrite a
/// certificate that is still needed. Each authority has its file, as messages display it.
pub fn restored_together(
    all: &[(Authority, String, &ReplacedCa)],
) -> Option<(Vec<Authority>, String)> {
    let sources: Vec<&str> = all
        .iter()
        .filter_map(|(_, _, replaced)| replaced.old.ca_file())
        .collect();
    let is_restored = |file: &str| all.iter().any(|(_, path, _)| path == file);
    let mut authorities = Vec::new();
    let (mut copies, mut moves, mut unknown) = (Vec::new(), Vec::new(), String::new());
    for (authority, path, replaced) in all {
        let source = replaced.old.ca_file();
        if !sources.contains(&path.as_str()) && !source.is_some_and(is_restored) {
            continue;
        }
        authorities.push(*authority);
        match &replaced.old {
            OldAuthority::InFile { file, .. } => {
                copies.push(format!("cp {} {}.old", quoted(file), quoted(path)));
            }
            OldAuthority::InKubeconfig { file, .. } => copies.push(extract_command(file, path)),
            OldAuthority::Named(_) => {
                unknown.push_str(&format!("; then {}", copy_advice(path)));
                continue;
            }
        }
        moves.push(move_command(path));
    }
    copies.append(&mut moves);
    (!authorities.is_empty()).then(|| {
        let fix = format!(
            "these CA files contain certificates of each other's CAs: restore them with one command (`{}`){unknown}",
            copies.join(" && ")
        );
        (authorities, fix)
    })
}

/// Returns a hint to the kubeconfig that contains a valid certificate of the same CA key, if the CA certificate in place
/// has expired.
pub fn valid_copy(
    trust: &TrustBundle,
    witnesses: &[CaEvidence<'_>],
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
                "{} contains a certificate of the same CA key, certificate sha256:{}, which is valid until {}, while {path} contains certificate sha256:{}: install the valid one (`{}`)",
                witness.file,
                hex(&first.fingerprint()),
                rfc3339(first.not_after()),
                hex(&expired.fingerprint()),
                restore_command(&witness.file, path)
            )
        })
    })
}

fn copy_advice(path: &str) -> String {
    format!(
        "copy the old CA certificate from its signer, another control-plane node or a backup to {path}"
    )
}

/// Returns the shell command that writes the CA data of a kubeconfig to a CA file.
pub fn restore_command(kubeconfig: &str, path: &str) -> String {
    format!(
        "{} && {}",
        extract_command(kubeconfig, path),
        move_command(path)
    )
}

/// Returns the shell command that writes the CA data of a kubeconfig next to a CA file.
fn extract_command(kubeconfig: &str, path: &str) -> String {
    format!(
        "sed -n 's/.*certificate-authority-data: //p' {kubeconfig} | base64 -d > {path}.old && test -s {path}.old",
        kubeconfig = quoted(kubeconfig),
        path = quoted(path)
    )
}

/// Returns the shell command that installs what is next to a CA file.
fn move_command(path: &str) -> String {
    let path = quoted(path);
    format!("mv {path}.old {path}")
}

#[cfg(test)]
mod tests;
