//! The requirements of each certificate that hold for every configuration: the part of kubeadm's table that is independent
//! of node names and versions.
//!
//! Pure. `status` has no configuration and judges by these alone; [`assess`](super::assess) is stricter.

use std::net::{IpAddr, Ipv4Addr};

use crate::kube::names::CertName;
use crate::spec::{CLUSTER_ADMINS, SYSTEM_MASTERS, usages};
use crate::x509::{CertDifference, Certificate, usage_differences};

/// Returns the reasons why `leaf` cannot be the certificate `name` in any cluster that kubeadm set up.
pub fn misplaced(name: CertName, leaf: &Certificate) -> Vec<CertDifference> {
    let mut found = usage_differences(leaf, &usages(name));
    found.extend(identity_differences(name, leaf));
    found.extend(missing_names(name, leaf));
    found
}

/// Returns the name or address that a server certificate lacks for clients that connect to `host`.
pub fn lacks_host(leaf: &Certificate, host: &str) -> Option<CertDifference> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        let has = leaf.ip_addresses().contains(&ip.to_canonical());
        return (!has).then_some(CertDifference::IpMissing(ip));
    }
    let matches = |name: &String| {
        name.eq_ignore_ascii_case(host)
            || name.strip_prefix("*.").is_some_and(|parent| {
                host.split_once('.')
                    .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
            })
    };
    let has = leaf.dns_names().iter().any(matches);
    (!has).then(|| CertDifference::DnsMissing(host.to_owned()))
}

/// Returns true for the certificates that some version of kubeadm puts into `system:masters`: super-admin.conf, and before
/// 1.29 admin.conf and three client certificates. Renewal by kubeadm keeps the subject.
pub fn may_be_in_masters(name: CertName) -> bool {
    matches!(
        name,
        CertName::SuperAdminConf
            | CertName::AdminConf
            | CertName::ApiserverKubeletClient
            | CertName::ApiserverEtcdClient
            | CertName::EtcdHealthcheckClient
    )
}

fn identity_differences(name: CertName, leaf: &Certificate) -> Vec<CertDifference> {
    const NODES_GROUP: &str = "system:nodes";
    let subject = leaf.subject();
    let organizations: Vec<&str> = subject.values("O").collect();
    let mut found = Vec::new();
    let required = match name {
        CertName::SuperAdminConf => Some(SYSTEM_MASTERS),
        CertName::KubeletConf => Some(NODES_GROUP),
        _ => None,
    };
    let missing = required.filter(|required| !organizations.contains(required));
    found.extend(missing.map(|missing| CertDifference::OrganizationMissing(missing.to_owned())));
    // The groups of these three are fixed. For the others, only the two administrator groups matter.
    let is_fixed = matches!(
        name,
        CertName::ControllerManagerConf | CertName::SchedulerConf | CertName::KubeletConf
    );
    let is_allowed = |organization: &str| match organization {
        SYSTEM_MASTERS => may_be_in_masters(name),
        CLUSTER_ADMINS => matches!(
            name,
            CertName::SuperAdminConf | CertName::AdminConf | CertName::ApiserverKubeletClient
        ),
        other => !is_fixed || required == Some(other),
    };
    let extra = organizations.iter().filter(|one| !is_allowed(one));
    found.extend(extra.map(|extra| CertDifference::OrganizationExtra((*extra).to_owned())));
    let user = match name {
        CertName::ControllerManagerConf => Some("system:kube-controller-manager"),
        CertName::SchedulerConf => Some("system:kube-scheduler"),
        // With a group, Kubernetes grants the rights to the group.
        CertName::ApiserverKubeletClient if organizations.is_empty() => {
            Some("kube-apiserver-kubelet-client")
        }
        CertName::KubeletConf => Some("system:node:"),
        _ => None,
    };
    let names: Vec<&str> = subject.values("CN").collect();
    let fits = |user: &str| match names.as_slice() {
        [only] if name == CertName::KubeletConf => {
            only.len() > user.len() && only.starts_with(user)
        }
        [only] => *only == user,
        _ => false,
    };
    found.extend(
        user.filter(|user| !fits(user))
            .map(|user| CertDifference::CommonName {
                wanted: match name {
                    CertName::KubeletConf => format!("{user}NAME"),
                    _ => user.to_owned(),
                },
                found: names.join(", "),
            }),
    );
    found
}

/// Returns the missing names of those that every certificate `name` has.
fn missing_names(name: CertName, leaf: &Certificate) -> Vec<CertDifference> {
    let (dns, ips): (&[&str], &[IpAddr]) = match name {
        CertName::Apiserver => (
            &["kubernetes", "kubernetes.default", "kubernetes.default.svc"],
            &[],
        ),
        CertName::EtcdServer | CertName::EtcdPeer => {
            (&["localhost"], &[IpAddr::V4(Ipv4Addr::LOCALHOST)])
        }
        _ => (&[], &[]),
    };
    let has = |name: &str| leaf.dns_names().iter().any(|one| one == name);
    let missing_dns = dns.iter().filter(|name| !has(name));
    let missing_ips = ips.iter().filter(|ip| !leaf.ip_addresses().contains(ip));
    let missing_dns = missing_dns.map(|name| CertDifference::DnsMissing((*name).to_owned()));
    missing_dns
        .chain(missing_ips.copied().map(CertDifference::IpMissing))
        .collect()
}

#[cfg(test)]
mod tests;
