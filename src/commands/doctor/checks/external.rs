//! Checks whether kubeadm accepts authorities whose keys are not on this node, by exactly its conditions
//! (`UsingExternalCA`, `UsingExternalFrontProxyCA`, `UsingExternalEtcdCA`, `ValidateKubeconfigsForExternalCA`,
//! `runCertPhase`). Other modules check what kubeadm does not.

use super::authorities::replaced_authority;
use super::finding::{CheckNote, FindingSeverity};
use super::leaves::organizations;
use super::picture::Picture;
use super::reader::{AuthorityKey, FoundAuthority, authority_of};
use crate::kube::kubeadm::KubeadmRole;
use crate::kube::names::{Authority, CertName};
use crate::node::NodeCert;
use crate::spec::SYSTEM_MASTERS;
use crate::spec::assess::Observed;
use crate::x509::verifies;

const KUBECONFIGS: [CertName; 5] = [
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
    CertName::AdminConf,
    CertName::SuperAdminConf,
    CertName::KubeletConf,
];

pub(super) fn init(picture: &Picture) -> Vec<CheckNote> {
    if !picture.is_control_plane() {
        return Vec::new();
    }
    let mut notes = Vec::new();
    for (name, authority) in authorities(picture) {
        if replaced_authority(picture, name).is_some() {
            continue;
        }
        let refusals = CertName::KUBEADM
            .into_iter()
            .filter(|leaf| !leaf.is_kubeconfig() && leaf.authority() == name)
            .filter_map(|name| {
                Some((name, leaf_refusal(picture.leaf(name)?, authority, picture)?))
            });
        notes.extend(
            refusals.map(|(name, why)| CheckNote::error(format!("{name}: {why}"), LEAF_FIX)),
        );
    }
    let Some(authority) = picture
        .authority(Authority::Ca)
        .filter(|found| is_external(found))
        .filter(|_| replaced_authority(picture, Authority::Ca).is_none())
    else {
        return notes;
    };
    if let AuthorityKey::Unusable(why) = &authority.key {
        notes.push(CheckNote::error(
            format!(
                "{} exists, but kubeadm cannot use it ({why}): certificate phases ignore it, kubeconfig phases fail",
                picture.here(&authority.key_path)
            ),
            "remove it from this node, as for an external CA, or replace it with a usable key",
        ));
        return notes;
    }
    let severity = match (&picture.configuration.node, &picture.apiserver) {
        // kubeadm init has run, and reads these files only if it is repeated.
        (_, Some(_)) => FindingSeverity::Info,
        (Some(node), None) if node.role == KubeadmRole::Init => FindingSeverity::Error,
        // kubeadm join checks no kubeconfig.
        (Some(_), None) => return notes,
        (None, None) => FindingSeverity::Warning,
    };
    let fix = match severity {
        FindingSeverity::Info => "nothing, unless kubeadm init is to be run here again",
        _ => picture.unless_exported(
            "after the fixes above, run `nodepki bootstrap` before kubeadm init; kubeadm join does not check these",
        ),
    };
    let is_omitted = |name| {
        let plan = picture.configuration.plan.as_ref();
        plan.is_some_and(|plan| plan.omitted.contains(&name))
    };
    let names = KUBECONFIGS.into_iter();
    for name in names.filter(|name| *name != CertName::SuperAdminConf || has_super_admin(picture)) {
        let leaf = picture.leaf(name);
        let refusal = leaf.and_then(|leaf| kubeconfig_refusal(leaf, authority));
        let fix = if severity == FindingSeverity::Error && is_omitted(name) {
            "put one there for kubeadm init, or remove it from certificates.omit until kubeadm init has run, and run `nodepki bootstrap`"
        } else {
            fix
        };
        notes.extend(refusal.map(|why| CheckNote::new(severity, format!("{name}: {why}"), fix)));
    }
    notes
}

/// Returns whether the kubeadm version has super-admin.conf. Before 1.29, admin.conf has the group system:masters instead.
fn has_super_admin(picture: &Picture) -> bool {
    match &picture.configuration.plan {
        Some(plan) => {
            let name = CertName::SuperAdminConf;
            plan.cert(name).is_some() || plan.omitted.contains(&name)
        }
        None => !organizations(picture, CertName::AdminConf)
            .unwrap_or_default()
            .iter()
            .any(|group| group == SYSTEM_MASTERS),
    }
}

const LEAF_FIX: &str = "run `nodepki bootstrap`: kubeadm cannot issue it without the CA key";

/// Checks the conditions of `UsingExternalEtcdCA`, which kubeadm init does not call.
pub(super) fn renewal(picture: &Picture) -> Vec<CheckNote> {
    if !picture.is_control_plane() {
        return Vec::new();
    }
    let etcd = authorities(picture).filter(|(name, _)| *name == Authority::EtcdCa);
    let keyless = etcd.filter(|(_, authority)| matches!(authority.key, AuthorityKey::Absent));
    let leaves = keyless.flat_map(|_| {
        CertName::KUBEADM
            .into_iter()
            .filter(|name| name.authority() == Authority::EtcdCa)
    });
    leaves
        .filter_map(|name| {
            let trouble = picture.leaf(name)?.found.key.trouble()?;
            Some(CheckNote::warning(
                format!("{name}: its key {trouble}"),
                LEAF_FIX,
            ))
        })
        .collect()
}

/// Returns the authorities that kubeadm treats as external.
fn authorities(picture: &Picture) -> impl Iterator<Item = (Authority, &FoundAuthority)> {
    let found = picture
        .authorities
        .iter()
        .map(|(name, found)| (*name, found));
    found
        .filter(|(_, found)| is_external(found))
        .filter(|(name, _)| *name != Authority::EtcdCa || picture.has_etcd())
}

fn is_external(found: &FoundAuthority) -> bool {
    found.bundle.present().is_some()
        && matches!(found.key, AuthorityKey::Absent | AuthorityKey::Unusable(_))
}

fn leaf_refusal(leaf: &NodeCert, authority: &FoundAuthority, picture: &Picture) -> Option<String> {
    let bundle = authority.bundle.present()?;
    let chain = match &leaf.found.chain {
        Observed::Present(chain) => chain,
        other => return other.trouble(),
    };
    let first = bundle.first_alone();
    if !verifies(chain, &first, picture.at) {
        return Some(format!(
            "it does not verify now under {}, the first certificate in {}",
            first.first().subject(),
            picture.here(&authority.path)
        ));
    }
    // The certificate phases do not check leaf keys under an etcd CA without key.
    let checks_key =
        !authority.path.ends_with("etcd/ca.crt") && matches!(authority.key, AuthorityKey::Absent);
    let trouble = leaf.found.key.trouble().filter(|_| checks_key)?;
    Some(format!("its key {trouble}"))
}

fn kubeconfig_refusal(leaf: &NodeCert, authority: &FoundAuthority) -> Option<String> {
    let bundle = authority.bundle.present()?;
    if leaf.found.kubeconfig.is_none() {
        return leaf.found.chain.trouble();
    }
    let data = match authority_of(leaf) {
        Observed::Present(chain) => chain,
        other => {
            return Some(format!(
                "its CA data {}",
                other.trouble().unwrap_or_default()
            ));
        }
    };
    (!bundle.certificates().contains(data.leaf())).then(|| {
        format!(
            "the first certificate of its CA data, {}, is not in ca.crt",
            data.leaf().subject()
        )
    })
}
