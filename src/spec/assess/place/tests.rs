use std::time::Duration;

use time::OffsetDateTime;

use super::*;
use crate::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
};

/// Returns a certificate with this subject, as `organization/common name`, and these names and addresses.
fn leaf(subject: &str, sans: &[&str], usages: Vec<ExtendedUsage>) -> Certificate {
    let year = Duration::from_secs(365 * 24 * 3600);
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let now = OffsetDateTime::UNIX_EPOCH;
    let authority = CertificateAuthority::self_signed("kubernetes", key(), now, year).unwrap();
    let (organizations, common_name) = subject.split_once('/').unwrap();
    let organizations = Some(organizations).filter(|one| !one.is_empty());
    let (ips, dns): (Vec<&str>, Vec<&str>) =
        sans.iter().partition(|san| san.parse::<IpAddr>().is_ok());
    let profile = Profile {
        subject: Subject::new(common_name, organizations.as_slice()),
        sans: Sans {
            dns: dns.into_iter().map(str::to_owned).collect(),
            ips: ips.into_iter().map(|ip| ip.parse().unwrap()).collect(),
        },
        usages,
        key: KeyAlgorithm::EcdsaP256,
        lifetime: year,
    };
    authority.issue(key().public_key(), &profile, now).unwrap()
}

fn differences(name: CertName, subject: &str, sans: &[&str]) -> String {
    let found = misplaced(name, &leaf(subject, sans, usages(name)));
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    found.join("; ")
}

#[test]
fn accepts_every_subject_of_kubeadm() {
    for (name, subject) in [
        (
            CertName::ApiserverKubeletClient,
            "/kube-apiserver-kubelet-client",
        ),
        (CertName::ApiserverKubeletClient, "kubeadm:cluster-admins/a"),
        (CertName::ApiserverKubeletClient, "system:masters/a"),
        (CertName::ApiserverEtcdClient, "system:masters/a"),
        (CertName::EtcdHealthcheckClient, "system:masters/a"),
        (CertName::FrontProxyClient, "/front-proxy-client"),
        (CertName::FrontProxyClient, "company/front-proxy-client"),
        (CertName::AdminConf, "kubeadm:cluster-admins/a"),
        (CertName::AdminConf, "system:masters/a"),
        (CertName::SuperAdminConf, "system:masters/a"),
        (CertName::KubeletConf, "system:nodes/system:node:cp1"),
        (
            CertName::ControllerManagerConf,
            "/system:kube-controller-manager",
        ),
        (CertName::SchedulerConf, "/system:kube-scheduler"),
    ] {
        assert_eq!(differences(name, subject, &[]), "", "{name}: {subject}");
    }
}

#[test]
fn reports_identity_that_no_version_of_kubeadm_gives() {
    let extra = |group: &str| {
        format!("unexpected O {group:?}: Kubernetes would treat it as membership of that group")
    };
    for (name, subject, expected) in [
        (
            CertName::FrontProxyClient,
            "system:masters/front-proxy-client",
            extra("system:masters"),
        ),
        (
            CertName::ApiserverEtcdClient,
            "kubeadm:cluster-admins/a",
            extra("kubeadm:cluster-admins"),
        ),
        (
            CertName::SchedulerConf,
            "company/system:kube-scheduler",
            extra("company"),
        ),
        (
            CertName::KubeletConf,
            "company/system:node:cp1",
            format!("O \"system:nodes\" is missing; {}", extra("company")),
        ),
        (
            CertName::KubeletConf,
            "/system:node:cp1",
            "O \"system:nodes\" is missing".to_owned(),
        ),
        (
            CertName::SuperAdminConf,
            "/a",
            "O \"system:masters\" is missing".to_owned(),
        ),
        (
            CertName::KubeletConf,
            "system:nodes/system:node:",
            "expected CN \"system:node:NAME\", found \"system:node:\"".to_owned(),
        ),
        (
            CertName::KubeletConf,
            "system:nodes/system:anonymous:cp1",
            "expected CN \"system:node:NAME\", found \"system:anonymous:cp1\"".to_owned(),
        ),
        (
            CertName::SchedulerConf,
            "/system:kube-controller-manager",
            "expected CN \"system:kube-scheduler\", found \"system:kube-controller-manager\""
                .to_owned(),
        ),
        (
            CertName::ControllerManagerConf,
            "/system:kube-scheduler",
            "expected CN \"system:kube-controller-manager\", found \"system:kube-scheduler\""
                .to_owned(),
        ),
        (
            CertName::ApiserverKubeletClient,
            "/a",
            "expected CN \"kube-apiserver-kubelet-client\", found \"a\"".to_owned(),
        ),
    ] {
        assert_eq!(
            differences(name, subject, &[]),
            expected,
            "{name}: {subject}"
        );
    }
}

#[test]
fn reports_missing_names_of_server_certificates() {
    let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    assert_eq!(differences(CertName::Apiserver, "/a", &service), "");
    assert_eq!(
        differences(CertName::Apiserver, "/a", &service[1..]),
        "SAN DNS:kubernetes is missing"
    );
    for name in [CertName::EtcdServer, CertName::EtcdPeer] {
        assert_eq!(differences(name, "/a", &["localhost", "127.0.0.1"]), "");
        assert_eq!(
            differences(name, "/a", &["cp1", "192.0.2.1"]),
            "SAN DNS:localhost is missing; SAN IP:127.0.0.1 is missing"
        );
    }
}

#[test]
fn reports_usages_of_another_certificate() {
    let leaf = leaf("/front-proxy-client", &[], vec![ExtendedUsage::ServerAuth]);
    let found = misplaced(CertName::FrontProxyClient, &leaf);
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    let found = found.join("; ");
    assert!(found.contains("client auth is missing"), "{found}");
}

#[test]
fn finds_host_by_name_wildcard_or_address() {
    let leaf = leaf(
        "/a",
        &["api.example", "*.lb.example", "192.0.2.1", "2001:db8::1"],
        vec![ExtendedUsage::ServerAuth],
    );
    for host in [
        "api.example",
        "API.example",
        "one.lb.example",
        "ONE.LB.example",
        "192.0.2.1",
        "::ffff:192.0.2.1",
        "2001:db8::1",
    ] {
        assert_eq!(lacks_host(&leaf, host), None, "{host}");
    }
    for host in [
        "example",
        "lb.example",
        "one.two.lb.example",
        "api.example.org",
    ] {
        let missing = Some(CertDifference::DnsMissing(host.to_owned()));
        assert_eq!(lacks_host(&leaf, host), missing, "{host}");
    }
    let other = "192.0.2.2";
    let missing = Some(CertDifference::IpMissing(other.parse().unwrap()));
    assert_eq!(lacks_host(&leaf, other), missing);
}
