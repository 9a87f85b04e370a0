//! Compares the desired with the observed state: keep, rewrite, issue or refuse each certificate, with the reason.
//!
//! Pure. The caller reads the files and passes them as [`Observed`], together with the time.

mod decision;
mod found;
mod kubelet;
mod kubelet_store;
mod place;
mod reason;
mod renewal;
mod replaced;
mod service_account;
mod shared;

use time::OffsetDateTime;

use crate::kube::names::Authority;
use crate::spec::schedule::OnPolicyChange;
use crate::spec::{AuthorityProgress, BundleSpec, CertFiles, CertSpec, ClientPairSpec};
use crate::x509::{
    CertDifference, Chain, PrivateKey, PublicKey, TrustBundle, contains_private_key, satisfies,
    unread_attributes,
};

pub use decision::{CertCase, CertDecision, DecisionMode, decide};
pub use found::{
    Observed, ObservedCert, ObservedFault, ObservedKubeconfig, is_our_form, read_kubeconfig,
};
pub use kubelet::{certificate_used_by_kubelet, rotation_after_kubelet};
pub use kubelet_store::{
    KubeletLink, KubeletStoreContent, KubeletStoreFault, ObservedKubeletStore, store_dir,
};
pub use place::{lacks_host, may_be_in_masters, misplaced};
pub(crate) use reason::joined;
pub use reason::{
    BundleRefusal, CertNote, CertReason, CertRefusal, KubeconfigAuthority, KubeconfigDifference,
    RenewalHold,
};
use renewal::RenewalRules;
pub use renewal::{Age, RenewalCause};
pub use replaced::{
    CaEvidence, CaFile, OldAuthority, OtherCaFile, ReplacedCa, replaced, replaced_among,
    restore_command, restored_together, trusted_by, valid_copy,
};
pub use service_account::{KeyFile, MisplacedKey, misplaced_service_account_keys};
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
        notes: Vec<CertNote>,
        /// Differences that the next renewal corrects.
        at_renewal: Vec<CertDifference>,
    },
    /// Write the same certificate and key again, since their files have the wrong form.
    Rewrite {
        /// The differences of form.
        reasons: Vec<CertReason>,
    },
    /// Issue a new certificate for a new key.
    Issue {
        /// The differences of content, and the demand for a renewal.
        reasons: Vec<CertReason>,
    },
    /// Do nothing until an administrator has resolved the problem.
    Refuse {
        /// The problem, with the fix.
        reason: CertRefusal,
    },
}

/// Compares a certificate with its spec. `trust` is the bundle of its authority, if that is known.
pub fn assess(
    spec: &CertSpec,
    found: &ObservedCert,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Action {
    if let (CertFiles::Kubeconfig { path, .. }, Some(kubeconfig)) =
        (&spec.output, &found.kubeconfig)
        && let Some(refusal) = kubeconfig.refusals(false).next()
    {
        let path = path.clone();
        return Action::Refuse {
            reason: CertRefusal::RefusedByClients { path, refusal },
        };
    }
    let mut action = assess_content(spec, found, trust, now);
    if let Action::Issue { reasons } = &mut action {
        // The new file does not have these values.
        reasons.extend(refused_values(found));
    }
    action
}

/// Returns the reasons why clients refuse the values of a kubeconfig that nodepki writes.
fn refused_values(found: &ObservedCert) -> impl Iterator<Item = CertReason> + '_ {
    let kubeconfig = found.kubeconfig.iter();
    let refusals = kubeconfig.flat_map(|kubeconfig| kubeconfig.refusals(true));
    refusals.map(CertReason::RefusedByClients)
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
                reasons: vec![store.map_or(CertReason::Absent, ObservedKubeletStore::absence)],
            };
        }
        (Observed::Empty, Observed::Empty) => {
            return Action::Issue {
                reasons: vec![CertReason::Empty],
            };
        }
        (chain, key) => {
            let problems = [
                chain.fault().map(CertReason::CertificateUnusable),
                key.fault().map(CertReason::KeyUnusable),
            ];
            return Action::Issue {
                reasons: problems.into_iter().flatten().collect(),
            };
        }
    };
    let Some(trust) = trust else {
        return Action::Issue {
            reasons: vec![CertReason::AuthorityUnknown],
        };
    };
    let (mut differences, mut notes) =
        differences(spec, found, chain, key.public_key(), trust, now);
    let waits = spec.on_policy_change == OnPolicyChange::NextRenewal
        // A revoked certificate is replaced in any case, and the new one follows the policy.
        && found.revoked.is_none()
        && differences.iter().all(is_of_policy);
    let at_renewal = if waits {
        std::mem::take(&mut differences)
    } else {
        Vec::new()
    };
    let differences = differences.into_iter().map(CertReason::Differs);
    let reasons: Vec<CertReason> = differences.chain(found.revoked.clone()).collect();
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
) -> (Vec<CertDifference>, Vec<CertNote>) {
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
            notes.push(CertNote::SubjectOfOtherVersion(subject.clone()));
            remaining = other;
            break;
        }
    }
    let mut reasons = Vec::new();
    for difference in remaining {
        match difference {
            // It verifies under another CA of the bundle, and is replaced only once a change to the first one is activated.
            CertDifference::NotUnderFirst { .. }
                if spec.authority_change != AuthorityProgress::Activated =>
            {
                notes.push(CertNote::Differs(difference));
            }
            CertDifference::KeyAlgorithm { .. } if found.has_key_of_kubelet(key) => {
                notes.push(CertNote::KeyOfKubelet(difference));
            }
            difference => reasons.push(difference),
        }
    }
    (reasons, notes)
}

/// Returns a note if a chain is valid for longer than its authority.
pub fn beyond_authority(chain: &Chain, trust: &TrustBundle) -> Option<CertNote> {
    let authority_ends = trust
        .certificates()
        .iter()
        .map(|authority| authority.not_after())
        .max()?;
    let is_beyond = chain.leaf().not_after() > authority_ends;
    is_beyond.then_some(CertNote::OutlivesAuthority { authority_ends })
}

/// Returns a note if the signer added attributes to the subject that no component reads.
pub fn with_unread_attributes(chain: &Chain) -> Option<CertNote> {
    let added = unread_attributes(chain.leaf());
    let owned = || added.iter().map(|kind| (*kind).to_owned()).collect();
    (!added.is_empty()).then(|| CertNote::UnreadAttributes(owned()))
}

/// Returns the reasons to write the same certificate and key again.
fn form_differences(spec: &CertSpec, found: &ObservedCert, trust: &TrustBundle) -> Vec<CertReason> {
    let faults = found.store.iter().flat_map(|store| store.faults.clone());
    let mut reasons: Vec<CertReason> = faults.map(CertReason::KubeletStore).collect();
    if !found.key_form_is_ours {
        reasons.push(CertReason::KeyForm);
    }
    reasons.extend(found.exposed.map(|mode| CertReason::KeyExposed { mode }));
    reasons.extend(refused_values(found));
    if let Some(kubeconfig) = &found.kubeconfig {
        let differences = kubeconfig_differences(&spec.output, kubeconfig, trust).into_iter();
        reasons.extend(differences.map(CertReason::Kubeconfig));
    }
    reasons
}

/// Returns the reasons to write a kubeconfig again, apart from the certificate and key.
pub fn kubeconfig_differences(
    output: &CertFiles,
    kubeconfig: &ObservedKubeconfig,
    trust: &TrustBundle,
) -> Vec<KubeconfigDifference> {
    let CertFiles::Kubeconfig { server, pair, .. } = output else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    if kubeconfig.server.as_deref() != Some(server) {
        reasons.push(KubeconfigDifference::OtherServer {
            found: kubeconfig.server.clone(),
            wanted: server.clone(),
        });
    }
    let trusted = kubeconfig
        .authority
        .as_deref()
        .and_then(|pem| TrustBundle::from_pem(pem).ok());
    if trusted.as_ref().map(TrustBundle::first) != Some(trust.first()) {
        reasons.push(KubeconfigDifference::OtherAuthority {
            found: match (trusted, &kubeconfig.authority_file) {
                (Some(bundle), _) => KubeconfigAuthority::Embedded(bundle.to_string()),
                (None, Some(file)) => KubeconfigAuthority::InFile(file.clone()),
                (None, None) => KubeconfigAuthority::Missing,
            },
            wanted: trust.to_string(),
        });
    }
    reasons.extend(
        pair.as_ref()
            .and_then(|pair| pair_difference(pair, kubeconfig)),
    );
    reasons
}

/// Returns how the location of certificate and key differs from the spec. Files of another tool are kept as long as the spec
/// requires no files.
fn pair_difference(
    spec: &ClientPairSpec,
    kubeconfig: &ObservedKubeconfig,
) -> Option<KubeconfigDifference> {
    let own = [spec.certificate.clone(), spec.key.clone()];
    let found = kubeconfig.pair.as_deref();
    let names_pair = found.is_some_and(|[certificate, key]| spec.is(certificate, key));
    match (spec.is_named, found) {
        (true, _) if names_pair => None,
        (true, Some(found)) => Some(KubeconfigDifference::NamesOtherFiles {
            found: found.clone(),
            wanted: own,
        }),
        (true, None) => Some(KubeconfigDifference::ContainsPair(own)),
        (false, _) if names_pair => Some(KubeconfigDifference::NamesPair(own)),
        (false, _) => None,
    }
}

/// Verifies that an authority's bundle is usable. The error names the fix, which an administrator must apply.
pub fn assess_bundle(
    spec: &BundleSpec,
    found: &Observed<TrustBundle>,
    pins: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<(), BundleRefusal> {
    let (path, authority) = (spec.path.clone(), spec.authority);
    let bundle = match found {
        Observed::Absent | Observed::Empty => return Ok(()),
        Observed::Unreadable(why) => {
            return Err(BundleRefusal::Unusable {
                path,
                authority,
                why: why.clone(),
            });
        }
        Observed::Present(bundle) => bundle,
    };
    if let Err(error) = bundle.require_pins(pins) {
        return Err(BundleRefusal::NotPinned {
            path,
            authority,
            why: error.to_string(),
        });
    }
    let first = bundle.first();
    if now > first.not_after() {
        return Err(BundleRefusal::Expired {
            path,
            subject: first.subject().to_string(),
            at: first.not_after(),
        });
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
