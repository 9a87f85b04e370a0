//! Whether kubeadm goes on with authorities whose keys are not on this node: its own conditions, no more and no less
//! (`UsingExternalCA`, `UsingExternalFrontProxyCA`, `UsingExternalEtcdCA`, `ValidateKubeconfigsForExternalCA`,
//! `runCertPhase`). What kubeadm does not look at has findings of its own.

use super::authorities::replaced_authority;
use super::cluster::MASTERS;
use super::leaves::organizations;
use super::picture::{AuthorityKey, FoundAuthority, FoundLeaf, Picture};
use super::{Note, Severity};
use crate::kube::kubeadm::Role;
use crate::kube::names::{Authority, CertName};
use crate::spec::assess::Found;
use crate::x509::verifies;

const KUBECONFIGS: [CertName; 5] = [
    CertName::ControllerManagerConf,
    CertName::SchedulerConf,
    CertName::AdminConf,
    CertName::SuperAdminConf,
    CertName::KubeletConf,
];

pub(super) fn init(picture: &Picture) -> Vec<Note> {
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
        notes.extend(refusals.map(|(name, why)| Note::error(format!("{name}: {why}"), LEAVES)));
    }
    let Some(authority) = picture
        .authority(Authority::Ca)
        .filter(|found| is_external(found))
        .filter(|_| replaced_authority(picture, Authority::Ca).is_none())
    else {
        return notes;
    };
    if let AuthorityKey::Unusable(why) = &authority.key {
        notes.push(Note::error(
            format!(
                "{} is there, and kubeadm cannot use it ({why}): it does without it for certificates and fails at kubeconfigs",
                picture.here(&authority.key_path)
            ),
            "take it off this node, as an external CA has none here, or put a usable one there",
        ));
        return notes;
    }
    let severity = match (&picture.configuration.node, &picture.apiserver) {
        (_, Some(_)) => Severity::Info,
        (Some(node), None) if node.role == Role::Init => Severity::Error,
        // kubeadm join looks at no kubeconfig.
        (Some(_), None) => return notes,
        (None, None) => Severity::Warning,
    };
    let fix = match severity {
        Severity::Info => "nothing, unless kubeadm init is to run here once more",
        _ => "run `nodepki bootstrap` before kubeadm init; kubeadm join looks at none of these",
    };
    let names = KUBECONFIGS.into_iter();
    for name in names.filter(|name| *name != CertName::SuperAdminConf || knows_super_admin(picture))
    {
        let leaf = picture.leaf(name);
        let refusal = leaf.and_then(|leaf| kubeconfig_refusal(leaf, authority));
        notes.extend(refusal.map(|why| Note::new(severity, format!("{name}: {why}"), fix)));
    }
    notes
}

/// kubeadm before 1.29 has no super-admin.conf: its admin.conf is one.
fn knows_super_admin(picture: &Picture) -> bool {
    match &picture.configuration.plan {
        Some(plan) => {
            let name = CertName::SuperAdminConf;
            plan.cert(name).is_some() || plan.omitted.contains(&name)
        }
        None => !organizations(picture, CertName::AdminConf)
            .unwrap_or_default()
            .iter()
            .any(|group| group == MASTERS),
    }
}

const LEAVES: &str = "run `nodepki bootstrap`: kubeadm cannot make it without the CA key";

/// What only `UsingExternalEtcdCA` looks at, which no kubeadm init calls.
pub(super) fn renewal(picture: &Picture) -> Vec<Note> {
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
            let trouble = picture.leaf(name)?.key.trouble()?;
            Some(Note::warning(format!("{name}: its key {trouble}"), LEAVES))
        })
        .collect()
}

/// Those of which kubeadm believes that somebody else has the key.
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

fn leaf_refusal(leaf: &FoundLeaf, authority: &FoundAuthority, picture: &Picture) -> Option<String> {
    let bundle = authority.bundle.present()?;
    let chain = match &leaf.chain {
        Found::Present(chain) => chain,
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
    // For the certificate phases a keyless etcd CA is no reason to look at keys.
    let looks_at_key =
        !authority.path.ends_with("etcd/ca.crt") && matches!(authority.key, AuthorityKey::Absent);
    let trouble = leaf.key.trouble().filter(|_| looks_at_key)?;
    Some(format!("its key {trouble}"))
}

fn kubeconfig_refusal(leaf: &FoundLeaf, authority: &FoundAuthority) -> Option<String> {
    let bundle = authority.bundle.present()?;
    let found = match leaf.kubeconfig.as_ref()? {
        Found::Present(found) => found,
        other => return other.trouble(),
    };
    let data = match &found.authority {
        Found::Present(chain) => chain,
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
