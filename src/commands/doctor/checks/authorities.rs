//! Checks of the authorities' certificates and keys, and of the service-account pair.

use std::collections::BTreeMap;

use super::finding::CheckNote;
use super::picture::Picture;
use super::reader::{AuthorityKey, authority_of};
use crate::kube::kubeadm;
use crate::kube::names::{Authority, CertName};
use crate::node::status::{FileProblem, FileStatus, RowFault, RowSubject};
use crate::signer::quoted;
use crate::spec::assess::{
    COPY_SERVICE_ACCOUNT, MisplacedKey, ReplacedCa, restore_command, restored_together,
    shared_authorities,
};
use crate::spec::compliance::{self, FoundKey, KeyUse, PolicyDifference};
use crate::spec::policy::KeyOwner;
use crate::text::{hex, rfc3339};
use crate::x509::{KeyAlgorithm, KeyType};

/// The fix for a missing or empty `sa.pub`.
pub(super) const DERIVE_PUBLIC: &str = "run `nodepki bootstrap`, which derives it from sa.key";

pub(super) fn key_on_disk(picture: &Picture) -> Vec<CheckNote> {
    let present = picture.authorities.iter().filter(|(_, authority)| {
        matches!(
            authority.key,
            AuthorityKey::Closed | AuthorityKey::Usable(_)
        )
    });
    present
        .map(|(name, authority)| {
            let path = picture.here(&authority.key_path);
            match picture.configuration.external.get(name) {
                Some(signer) => CheckNote::error(
                    format!("{path} is the private key of {name}, for which the configuration has the signer {signer}"),
                    "run `nodepki migrate to-external`, which says what proves that the node does not need the key, then `nodepki migrate to-external --apply --backup BACKUP --passphrase-file PASSPHRASE`, which backs the key up and removes it",
                ),
                None => CheckNote::info(
                    format!("{path} is the private key of {name}"),
                    "every reader of the key is an administrator of the cluster until the CA expires; once a signer is configured, `nodepki migrate to-external` removes the key from the node",
                ),
            }
        })
        .collect()
}

pub(super) fn key_copy(picture: &Picture) -> Vec<CheckNote> {
    let mut notes = Vec::new();
    for (path, key) in &picture.trees.keys {
        for (name, authority) in &picture.authorities {
            let certificates = authority.bundle.present().into_iter();
            let mut certificates = certificates.flat_map(|bundle| bundle.certificates());
            if !certificates.any(|certificate| certificate.public_key() == key) {
                continue;
            }
            let evidence = format!("{} contains the private key of {name}", picture.here(path));
            let fix = "remove it from this node, after storing it elsewhere if it is the only copy";
            // kubeadm treats an authority without its key as external.
            let external = picture.configuration.external.contains_key(name)
                || matches!(authority.key, AuthorityKey::Absent);
            notes.push(if external {
                CheckNote::error(evidence, fix)
            } else {
                CheckNote::warning(evidence, fix)
            });
        }
    }
    notes
}

pub(super) fn missing(picture: &Picture) -> Vec<CheckNote> {
    let problems = picture.problems().into_iter();
    problems
        .filter(|problem| problem.fault.is_absence())
        .filter_map(|problem| {
            let restore = restored(picture, problem.authority()?);
            Some(problem.error(format!("{restore}; kubeadm would create a new authority")))
        })
        .collect()
}

/// Returns how to restore the file of an authority.
pub(super) fn restored(picture: &Picture, authority: Authority) -> String {
    const COPY: &str = "copy the CA certificate from the signer or another control-plane node";
    let kubeconfigs = CertName::ALL
        .into_iter()
        .filter(|_| authority == Authority::Ca);
    let copies: Vec<(CertName, String)> = kubeconfigs
        .filter_map(|name| {
            let authority = authority_of(picture.leaf(name)?);
            Some((name, authority.present()?.to_pem()))
        })
        .collect();
    // A kubeconfig alone may be the one of another cluster.
    let agrees = |(_, pem): &&(CertName, String)| {
        2 * copies.iter().filter(|(_, other)| other == pem).count() > copies.len()
    };
    let source = copies.iter().find(agrees);
    let file = source.and_then(|(name, _)| picture.status.certificate(*name)?.files.first());
    match (file, picture.authority(authority)) {
        (Some(kubeconfig), Some(found)) => format!(
            "restore the CA certificate from a kubeconfig (`{}`), or {COPY}",
            restore_command(
                &picture.here(kubeconfig.path.as_ref()),
                &picture.here(&found.path)
            )
        ),
        _ => COPY.to_owned(),
    }
}

pub(super) fn replaced(picture: &Picture) -> Vec<CheckNote> {
    let mut notes = Vec::new();
    let all = picture.authorities.iter().filter_map(|(name, found)| {
        let replaced = replaced_authority(picture, *name)?;
        Some((*name, picture.here(&found.path), replaced))
    });
    let all: Vec<_> = all.collect();
    let together = restored_together(&all);
    for (name, path, replaced) in &all {
        let Some(found) = picture.authority(*name) else {
            continue;
        };
        let Some(present) = found.bundle.present() else {
            continue;
        };
        let names: Vec<&str> = replaced.names.iter().map(|name| name.as_str()).collect();
        let fix = match &together {
            Some((authorities, fix)) if authorities.contains(name) => fix.clone(),
            _ => replaced.fix(*name, path, present),
        };
        let note = |evidence: String| CheckNote::error(evidence, fix.clone());
        let mut problems = picture.problems().into_iter().filter(|problem| {
            problem.subject == RowSubject::Authority(*name)
                && matches!(problem.fault, RowFault::AuthorityReplaced { .. })
        });
        notes.extend(problems.next().map(|problem| problem.error_of_file(&fix)));
        notes.push(note(format!(
            "under the old CA: {}; {path} contains {present}",
            names.join(", ")
        )));
        if let AuthorityKey::Usable(key) = &found.key
            && present.first().public_key() != key
        {
            let key_path = picture.here(&found.key_path);
            notes.push(note(format!(
                "{key_path} is not the key of the CA certificate in place"
            )));
        }
    }
    notes
}

/// Reports CA changes of the whole cluster, as the daemon has last read them.
pub(super) fn cluster_rotation(picture: &Picture) -> Vec<CheckNote> {
    let mut notes = Vec::new();
    for (authority, rotation) in &picture.rotations {
        let (id, phase) = (&rotation.id, rotation.phase);
        let watch = format!("nodepki authority watch {authority}");
        if !phase.is_end() {
            let paused = if rotation.paused { ", paused" } else { "" };
            notes.push(CheckNote::info(
                format!("rotation {id} changes {authority} on all nodes: phase {phase}{paused}"),
                format!("{watch} shows what it waits for"),
            ));
        }
        if !rotation.excluded.is_empty() {
            let nodes: Vec<&str> = rotation.excluded.iter().map(String::as_str).collect();
            notes.push(CheckNote::warning(
                format!(
                    "rotation {id} of {authority}, phase {phase}, does not wait for {}, which may still use the former one",
                    nodes.join(", ")
                ),
                format!("compare them in {watch}: `proven` has completed the change; start nodepki.service on the others, or remove them from the cluster"),
            ));
        }
    }
    notes
}

/// Checks for authorities whose file also accepts certificates of another authority.
pub(super) fn shared(picture: &Picture) -> Vec<CheckNote> {
    // The check `ca-replaced` reports the file of another CA.
    let bundles: Vec<_> = Authority::ALL
        .into_iter()
        .filter(|name| replaced_authority(picture, *name).is_none())
        .filter_map(|name| Some((name, picture.bundle(name)?)))
        .collect();
    let shared = shared_authorities(&bundles).into_iter();
    shared
        .filter_map(|shared| {
            let path = picture.here(&picture.authority(shared.authority)?.path);
            let fix = shared.fix(&path, picture.apiserver.is_some());
            Some(CheckNote::error(shared.sentence(&path), fix))
        })
        .collect()
}

/// Returns the CA that the certificates of this node belong to, if another CA is in place instead. A CA that is pinned in
/// the settings, or was activated by `nodepki authority`, is intended.
pub(super) fn replaced_authority(picture: &Picture, name: Authority) -> Option<&ReplacedCa> {
    let replaced = picture.status.authority(name)?.replaced()?;
    let bundle = picture.bundle(name)?;
    let pins = picture.configuration.pins.get(&name);
    let is_pinned = pins.is_some_and(|pins| !pins.is_empty() && bundle.require_pins(pins).is_ok());
    let is_activated = picture.activated.get(&name) == Some(&hex(&bundle.first().fingerprint()));
    (!is_pinned && !is_activated).then_some(replaced)
}

pub(super) fn not_pinned(picture: &Picture) -> Vec<CheckNote> {
    let pins = picture.configuration.pins.iter();
    let pins = pins.filter(|(name, _)| replaced_authority(picture, **name).is_none());
    pins.filter_map(|(name, pins)| {
        let authority = picture.authority(*name)?;
        let refusal = authority.bundle.present()?.require_pins(pins).err()?;
        Some(CheckNote::error(
            format!("{name}: {}: {refusal}", picture.here(&authority.path)),
            "find out how the file or the pins (authorities.X.trust.sha256) were changed; the other control-plane nodes have the correct certificate",
        ))
    })
    .collect()
}

pub(super) fn service_account_missing(picture: &Picture) -> Vec<CheckNote> {
    let Some(row) = &picture.status.service_account else {
        return Vec::new();
    };
    if let Some(found) = misplaced_key(picture).filter(|found| found.is_alone) {
        let then = format!(
            "run `nodepki bootstrap`, which issues the certificate for {} again",
            quoted(&found.path)
        );
        return vec![misplaced_note(found, &then)];
    }
    let absent = |file: &&FileStatus| file.access.is_none_or(|access| !access.regular);
    let files: Vec<&FileStatus> = row.files.iter().filter(absent).collect();
    if !row.findings.faults.iter().any(RowFault::is_absence) {
        return Vec::new();
    }
    let only_public = files.iter().all(|file| !file.secret);
    let is_first = picture
        .configuration
        .node
        .as_ref()
        .is_some_and(|node| node.role == kubeadm::KubeadmRole::Init);
    let fix = match (&picture.status.sign_of_service, is_first) {
        _ if only_public => DERIVE_PUBLIC.to_owned(),
        (Some(sign), _) => format!("{COPY_SERVICE_ACCOUNT}{}", sign.way_out()),
        (None, true) => {
            picture.unless_exported("for a new cluster, run `nodepki bootstrap`, which generates the pair; for a running cluster, copy both files from another control-plane node").to_owned()
        }
        (None, false) => {
            "copy sa.key and sa.pub from another control-plane node; never generate a new pair for a running cluster".to_owned()
        }
    };
    files
        .into_iter()
        .map(|file| {
            CheckNote::error(
                format!("{} is missing", picture.here(file.path.as_ref())),
                fix.clone(),
            )
            .with_code(FileProblem::Absent.code())
        })
        .collect()
}

pub(super) fn service_account_torn(picture: &Picture) -> Vec<CheckNote> {
    if let Some(found) = misplaced_key(picture).filter(|found| !found.is_alone) {
        return vec![misplaced_note(found, "run `nodepki doctor` again")];
    }
    let [key, public] = picture.service_account_files();
    let derive = format!(
        "find out which of both the cluster uses (with --kubeconfig, this command compares sa.key), and derive sa.pub again: `openssl pkey -in {} -pubout -out {}`",
        quoted(&key),
        quoted(&public)
    );
    let fix = match picture.status.sign_of_service {
        Some(_) => COPY_SERVICE_ACCOUNT.to_owned(),
        None => derive,
    };
    let problems = picture.problems().into_iter();
    problems
        .filter(|problem| matches!(problem.fault, RowFault::PairMismatch))
        .map(|problem| problem.error_of_file(fix.as_str()))
        .collect()
}

fn misplaced_note(found: &MisplacedKey, then: &str) -> CheckNote {
    let fault = RowFault::ServiceAccountKeyMisplaced(found.clone());
    CheckNote::error(found.to_string(), format!("{}, then {then}", found.fix()))
        .with_code(fault.code())
}

/// Returns the private key of `sa.pub`, if it is in the key file of a certificate.
pub(super) fn misplaced_key(picture: &Picture) -> Option<&MisplacedKey> {
    let row = picture.status.service_account.as_ref()?;
    row.findings.faults.iter().find_map(|fault| match fault {
        RowFault::ServiceAccountKeyMisplaced(found) => Some(found),
        _ => None,
    })
}

/// Returns whether an authority's certificate itself is unusable, so findings on the certificates under it are
/// omitted.
pub(super) fn is_unusable(picture: &Picture, name: Authority) -> bool {
    picture.status.authority(name).is_some_and(|row| {
        row.findings.faults.iter().any(|fault| match fault {
            RowFault::Expiring { .. }
            | RowFault::KeyExposed { .. }
            | RowFault::FileExposed { .. } => false,
            RowFault::AuthorityReplaced { .. } => replaced_authority(picture, name).is_some(),
            _ => true,
        })
    })
}

/// Returns whether kubeadm treats the authority as external.
pub(super) fn is_external(picture: &Picture, name: Authority) -> bool {
    picture
        .authority(name)
        .is_some_and(|authority| matches!(authority.key, AuthorityKey::Absent))
}

/// Reports keys and lifetimes that differ from the key policy. The keys of certificates that nodepki issues are part of
/// `not-as-configured`.
pub(super) fn key_policy(picture: &Picture) -> Vec<CheckNote> {
    let mut notes = Vec::new();
    for key in &picture.configuration.keys {
        let judgement = compliance::judge(key);
        for difference in &judgement.differences {
            notes.extend(policy_note(key, difference));
        }
    }
    notes
}

fn policy_note(key: &KeyUse, difference: &PolicyDifference) -> Option<CheckNote> {
    let owner = key.owner;
    let evidence = match difference {
        PolicyDifference::Key {
            found, required, ..
        } => {
            let is_reported = matches!((owner, &key.found), (KeyOwner::Leaf(_), FoundKey::Key(_)));
            if is_reported {
                return None;
            }
            format!("the key of {owner} is {found}, and the policy requires {required}")
        }
        PolicyDifference::OtherKey { .. } | PolicyDifference::Lifetime { .. } => {
            format!("{owner}: {difference}")
        }
    };
    let is_lifetime = matches!(difference, PolicyDifference::Lifetime { .. });
    let fix = match (owner, &key.found) {
        (_, FoundKey::OfKubelet(_)) if is_lifetime => "shorten the lifetime at the signer of the kubelets' requests (kube-controller-manager: --cluster-signing-duration), or add an override with a lifetime to the policy".to_owned(),
        (_, FoundKey::OfKubelet(found)) if *found != KeyType::Known(KeyAlgorithm::EcdsaP256) => "the kubelet has signed this certificate itself: let it request one (serverTLSBootstrap), or let nodepki issue it (kubelet.serving)".to_owned(),
        (_, FoundKey::OfKubelet(_)) => "the kubelet generates ECDSA P256 keys only: add an override with that key for this name to the policy".to_owned(),
        (KeyOwner::Leaf(name), _) if is_lifetime => match key.replaced_at {
            Some(at) => format!("the next renewal, which is due at {}, replaces the certificate; `nodepki renew --force {name}` replaces it now", rfc3339(at)),
            None => "issue the certificate again with a shorter lifetime, or change the policy".to_owned(),
        },
        (KeyOwner::Authority(authority), _) => {
            format!("create a CA with that key at the signer, then follow nodepki authority stage {authority}; or change the policy")
        }
        (KeyOwner::ServiceAccount, _) => "a new pair invalidates all tokens of service accounts: replace it on all nodes together in a maintenance window, or add an override for sa to the policy".to_owned(),
        (KeyOwner::EtcdClientAuthority, _) => "replace the etcd client CA as docs/cluster-api.md describes, or add an override for etcd-client-ca to the policy".to_owned(),
        (KeyOwner::Leaf(_) | KeyOwner::SignedForKubelets(_), _) => "issue the certificate again with that key, or add an override for this name to the policy".to_owned(),
    };
    Some(CheckNote::warning(evidence, fix))
}

/// Reports what a policy of algorithms alone does not show.
pub(super) fn key_strength(picture: &Picture) -> Vec<CheckNote> {
    let configuration = &picture.configuration;
    let plan = configuration.plan.as_ref();
    let requested = plan.and_then(|plan| compliance::large_keys_of_short_lived(&plan.certs));
    let warnings = compliance::warnings(&configuration.keys).into_iter();
    warnings
        .chain(requested)
        .map(|warning| {
            CheckNote::info(
                warning,
                "choose the algorithm of each key in the key policy, which applies from the next renewal on; a CA with another key is made at the signer and follows nodepki authority stage",
            )
        })
        .collect()
}

/// Reports keys of which it is not known whether they comply. Other checks report files of the plan that cannot be read.
pub(super) fn key_policy_unknown(picture: &Picture) -> Vec<CheckNote> {
    let mut owners_by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for key in &picture.configuration.keys {
        let of_plan = matches!(
            (key.owner, &key.found),
            (
                KeyOwner::Authority(_) | KeyOwner::Leaf(_) | KeyOwner::ServiceAccount,
                FoundKey::Absent | FoundKey::Unreadable(_)
            )
        );
        let reasons = if of_plan {
            key.doubts.clone()
        } else {
            compliance::judge(key).unknown
        };
        for reason in reasons {
            let owners = owners_by_reason.entry(reason).or_default();
            owners.push(key.owner.to_string());
        }
    }
    let notes = owners_by_reason.into_iter();
    notes
        .map(|(reason, owners)| {
            CheckNote::warning(
                format!(
                    "not compared with the key policy: {}: {reason}",
                    owners.join(", ")
                ),
                "remove the cause, then run `nodepki policy check`, which ends with 0 only if everything was compared",
            )
        })
        .collect()
}
