//! Compares the desired with the observed state: keep, rewrite, issue or refuse each certificate, with the reason.
//!
//! Pure. The caller reads the files and passes them as [`Observed`], together with the time.

mod found;
mod kubelet;
mod kubelet_store;
mod place;
mod renewal;
mod replaced;
mod shared;

use time::OffsetDateTime;

use crate::kube::names::Authority;
use crate::spec::schedule::OnPolicyChange;
use crate::spec::{AuthorityProgress, BundleSpec, CertFiles, CertSpec, ClientPairSpec};
use crate::text::rfc3339;
use crate::x509::{
    CertDifference, Chain, PrivateKey, PublicKey, TrustBundle, contains_private_key, satisfies,
    unread_attributes,
};

pub use found::{
    Observed, ObservedCert, ObservedKubeconfig, ReadKubeconfig, is_our_form, read_kubeconfig,
};
pub use kubelet::{certificate_used_by_kubelet, rotation_after_kubelet};
pub use kubelet_store::{
    KubeletConfForm, KubeletLink, KubeletStoreContent, ObservedKubeletStore, store_dir,
};
pub use place::{lacks_host, may_be_in_masters, misplaced};
pub use renewal::{Age, RenewalCause, RenewalRules, Rotated, schedule_action};
pub use replaced::{CaEvidence, OldAuthority, ReplacedCa, replaced, trusted_by, valid_copy};
pub use shared::{SharedAuthority, shared_authorities};

/// The fix for an incomplete service-account pair on a node that has served: a new pair, or a public key derived from the
/// wrong private key, would invalidate the cluster's tokens.
pub const COPY_SERVICE_ACCOUNT: &str =
    "copy both sa.key and sa.pub from another control-plane node (or from a backup of this one)";

/// The planned action for one certificate.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// No change now.
    Keep {
        /// Remarks for the administrator.
        notes: Vec<String>,
        /// Differences, in words, that the next renewal corrects.
        at_renewal: Vec<String>,
    },
    /// Write the same certificate and key again, since their files have the wrong form.
    Rewrite {
        /// In words.
        reasons: Vec<String>,
    },
    /// Issue a new certificate for a new key.
    Issue {
        /// In words.
        reasons: Vec<String>,
    },
    /// Do nothing until an administrator has resolved the problem.
    Refuse {
        /// In words, with the fix.
        reason: String,
    },
}

/// Compares a certificate with its spec. `trust` is the bundle of its authority, if that is known.
pub fn assess(
    spec: &CertSpec,
    found: &ObservedCert,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Action {
    if let Some(kubeconfig) = &found.kubeconfig
        && let Some(refusal) = kubeconfig.refusals(false).next()
    {
        return Action::Refuse { reason: refusal };
    }
    let mut action = assess_content(spec, found, trust, now);
    if let Action::Issue { reasons } = &mut action {
        // The new file does not have these values.
        reasons.extend(refused_values(found));
    }
    action
}

/// Returns the reasons why clients refuse the values of a kubeconfig that nodepki writes.
fn refused_values(found: &ObservedCert) -> impl Iterator<Item = String> + '_ {
    let kubeconfig = found.kubeconfig.iter();
    let refusals = kubeconfig.flat_map(|kubeconfig| kubeconfig.refusals(true));
    refusals.map(|refusal| format!("every client of Kubernetes refuses it: {refusal}; replaced"))
}

fn assess_content(
    spec: &CertSpec,
    found: &ObservedCert,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Action {
    let (chain, key) = match (&found.chain, &found.key) {
        (Observed::Present(chain), Observed::Present(key)) => (chain, key),
        (Observed::Absent, Observed::Absent) => {
            let store = found.store.as_ref();
            return Action::Issue {
                reasons: vec![
                    store.map_or_else(|| "absent".to_owned(), ObservedKubeletStore::absence),
                ],
            };
        }
        (Observed::Empty, Observed::Empty) => {
            return Action::Issue {
                reasons: vec!["empty file".to_owned()],
            };
        }
        (chain, key) => {
            let problems = [chain.problem("certificate"), key.problem("key")];
            return Action::Issue {
                reasons: problems.into_iter().flatten().collect(),
            };
        }
    };
    let Some(trust) = trust else {
        return Action::Issue {
            reasons: vec!["the CA certificate of its authority is not on this node yet".to_owned()],
        };
    };
    let (differences, mut notes) = differences(spec, found, chain, key.public_key(), trust, now);
    let waits = spec.on_policy_change == OnPolicyChange::NextRenewal
        && found.revoked.is_none()
        && differences.iter().all(is_of_policy);
    let mut reasons: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let at_renewal = if waits {
        std::mem::take(&mut reasons)
    } else {
        Vec::new()
    };
    reasons.extend(found.revoked.clone());
    if !reasons.is_empty() {
        return Action::Issue { reasons };
    }
    notes.extend(beyond_authority(chain, trust));
    notes.extend(with_unread_attributes(chain));
    let reasons = form_differences(spec, found, trust);
    if reasons.is_empty() {
        Action::Keep { notes, at_renewal }
    } else {
        Action::Rewrite { reasons }
    }
}

/// Returns whether a difference is one of key parameters only. Names, usages and identities are never postponed.
pub fn is_of_policy(difference: &CertDifference) -> bool {
    matches!(difference, CertDifference::KeyAlgorithm { .. })
}

/// Returns true if a chain belongs to its key and verifies now, whatever its content.
pub fn still_serves(
    chain: &Chain,
    key: &PublicKey,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> bool {
    chain.leaf().public_key() == key && crate::x509::verifies(chain, trust, now)
}

/// Returns the differences, other than revocation, for which [`assess`] issues a new certificate in place of a complete
/// pair.
pub fn differences_from_spec(
    spec: &CertSpec,
    found: &ObservedCert,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<CertDifference> {
    match (&found.chain, &found.key) {
        (Observed::Present(chain), Observed::Present(key)) => {
            differences(spec, found, chain, key.public_key(), trust, now).0
        }
        _ => Vec::new(),
    }
}

/// Splits the differences into reasons for a new certificate and notes about one that remains usable.
fn differences(
    spec: &CertSpec,
    found: &ObservedCert,
    chain: &Chain,
    key: &PublicKey,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> (Vec<CertDifference>, Vec<String>) {
    let mut remaining = satisfies(
        chain,
        &spec.requested.profile,
        spec.requested.tolerance,
        key,
        trust,
        now,
    );
    let mut notes = Vec::new();
    for subject in &spec.other_subjects {
        if remaining.is_empty() {
            break;
        }
        let mut profile = spec.requested.profile.clone();
        profile.subject = subject.clone();
        let other = satisfies(chain, &profile, spec.requested.tolerance, key, trust, now);
        if other.len() < remaining.len() {
            notes.push(format!(
                "subject is {subject}, of another kubeadm version; kept, since the cluster may rely on it"
            ));
            remaining = other;
            break;
        }
    }
    let mut reasons = Vec::new();
    for difference in remaining {
        match difference {
            CertDifference::NotUnderFirst { .. }
                if spec.authority_change != AuthorityProgress::Activated =>
            {
                notes.push(difference.to_string());
            }
            CertDifference::KeyAlgorithm { .. } if found.has_key_of_kubelet(key) => {
                notes.push(format!(
                    "{difference}; kept, since the kubelet made the key when it requested the certificate"
                ));
            }
            difference => reasons.push(difference),
        }
    }
    (reasons, notes)
}

/// Returns a note if a chain is valid for longer than its authority.
pub fn beyond_authority(chain: &Chain, trust: &TrustBundle) -> Option<String> {
    let end = trust
        .certificates()
        .iter()
        .map(|authority| authority.not_after())
        .max()?;
    (chain.leaf().not_after() > end).then(|| {
        format!(
            "it outlives its authority, which expires at {}; it is unusable after that",
            rfc3339(end)
        )
    })
}

/// Returns a note if the signer added attributes to the subject that no component reads.
pub fn with_unread_attributes(chain: &Chain) -> Option<String> {
    let added = unread_attributes(chain.leaf());
    (!added.is_empty()).then(|| {
        format!(
            "its subject also has {}, which the signer added and no component of Kubernetes reads",
            added.join(", ")
        )
    })
}

/// Returns the reasons to write the same certificate and key again.
fn form_differences(spec: &CertSpec, found: &ObservedCert, trust: &TrustBundle) -> Vec<String> {
    let mut reasons = Vec::new();
    reasons.extend(found.store.iter().flat_map(|store| store.faults.clone()));
    if !found.key_form_is_ours {
        reasons.push("the key is PKCS#8; kubeadm writes PKCS#1 or SEC1".to_owned());
    }
    if let Some(mode) = found.exposed {
        reasons.push(format!("the key is world-readable (mode {mode:04o})"));
    }
    reasons.extend(refused_values(found));
    if let Some(kubeconfig) = &found.kubeconfig {
        reasons.extend(kubeconfig_differences(&spec.output, kubeconfig, trust));
    }
    reasons
}

/// Returns the reasons to write a kubeconfig again, apart from the certificate and key.
pub fn kubeconfig_differences(
    output: &CertFiles,
    kubeconfig: &ObservedKubeconfig,
    trust: &TrustBundle,
) -> Vec<String> {
    let CertFiles::Kubeconfig { server, pair, .. } = output else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    if kubeconfig.server.as_deref() != Some(server) {
        let old = kubeconfig.server.as_deref().unwrap_or("missing");
        reasons.push(format!("server is {old}, wanted {server}"));
    }
    let trusted = kubeconfig
        .authority
        .as_deref()
        .and_then(|pem| TrustBundle::from_pem(pem).ok());
    if trusted.as_ref().map(TrustBundle::first) != Some(trust.first()) {
        let old = match (trusted, &kubeconfig.authority_file) {
            (Some(bundle), _) => bundle.to_string(),
            (None, Some(file)) => format!("in the file {}", file.display()),
            (None, None) => "missing".to_owned(),
        };
        reasons.push(format!("its CA is {old}, wanted {trust}"));
    }
    reasons.extend(
        pair.as_ref()
            .and_then(|pair| pair_difference(pair, kubeconfig)),
    );
    reasons
}

/// Returns how the location of certificate and key differs from the spec. Files of another tool are kept as long as the spec
/// requires no files.
fn pair_difference(spec: &ClientPairSpec, kubeconfig: &ObservedKubeconfig) -> Option<String> {
    let ClientPairSpec {
        certificate, key, ..
    } = spec;
    let found = kubeconfig.pair.as_deref();
    let names_pair = found.is_some_and(|[certificate, key]| spec.is(certificate, key));
    match (spec.is_named, found) {
        (true, _) if names_pair => None,
        (true, Some([other, other_key])) => Some(format!(
            "it names {} and {}, wanted {certificate} and {key}",
            other.display(),
            other_key.display()
        )),
        (true, None) => Some(format!(
            "it contains its certificate and key, wanted {certificate} and {key}"
        )),
        (false, _) if names_pair => Some(format!(
            "it names {certificate} and {key}, wanted embedded certificate and key"
        )),
        (false, _) => None,
    }
}

/// Verifies that an authority's bundle is usable. The error names the fix, which an administrator must apply.
pub fn assess_bundle(
    spec: &BundleSpec,
    found: &Observed<TrustBundle>,
    pins: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<(), String> {
    let path = &spec.path;
    let bundle = match found {
        Observed::Absent | Observed::Empty => return Ok(()),
        Observed::Unreadable(why) => {
            return Err(format!(
                "{path} is not a usable trust bundle of {}: {why}; put the CA certificate there and run again",
                spec.authority
            ));
        }
        Observed::Present(bundle) => bundle,
    };
    bundle.require_pins(pins).map_err(|error| {
        format!(
            "{path} does not match the pins of authority {}: {error}; correct authorities.{}.trust.sha256 or the file",
            spec.authority, spec.authority
        )
    })?;
    let first = bundle.first();
    if now > first.not_after() {
        return Err(format!(
            "the CA certificate in {path} ({}) expired at {}: peers refuse every certificate, kubeconfig and kubelet under it; replace the CA first, as new leaf certificates would be refused too",
            first.subject(),
            rfc3339(first.not_after())
        ));
    }
    Ok(())
}

/// Returns a note if a file of CA certificates also contains a private key, even one that cannot be read. `path` is that on
/// this machine.
pub fn key_among_certificates(
    path: &str,
    authority: Authority,
    content: &[u8],
    bundle: Option<&TrustBundle>,
) -> Option<String> {
    if !contains_private_key(content) {
        return None;
    }
    let keys = PrivateKey::all_from_pem(content).unwrap_or_default();
    let certificates = bundle.map_or(&[][..], TrustBundle::certificates);
    let is_of_authority = certificates.iter().any(|certificate| {
        let mut keys = keys.iter();
        keys.any(|key| key.public_key() == certificate.public_key())
    });
    let key = if is_of_authority {
        format!("the private key of {authority}")
    } else {
        "a private key".to_owned()
    };
    Some(format!(
        "{path} contains {key}, and every reader of the CA certificate has it: leave the key with its CA, and only certificates in the file (openssl crl2pkcs7 -nocrl -certfile FILE | openssl pkcs7 -print_certs -out NEW)"
    ))
}

#[cfg(test)]
mod tests;
