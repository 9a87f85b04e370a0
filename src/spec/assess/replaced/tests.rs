use std::time::Duration;

use time::OffsetDateTime;

use super::*;
use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey, Profile, Subject};

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-20 09:57:29 UTC);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::self_signed("kubernetes", key(), NOW, DAY).unwrap()
}

fn leaf(authority: &CertificateAuthority) -> Chain {
    let profile = Profile::of_tests(Subject::new("leaf", &[]), &[], DAY);
    let leaf = authority.issue(key().public_key(), &profile, NOW).unwrap();
    Chain::from_pem(leaf.to_pem().as_bytes()).unwrap()
}

/// A witness: the CA of its certificate, and the CA that its kubeconfig trusts.
type Case<'a> = (
    CertName,
    Option<&'a CertificateAuthority>,
    Option<&'a CertificateAuthority>,
    Option<bool>,
);

fn judge(trust: &TrustBundle, cases: &[Case<'_>]) -> Option<ReplacedCa> {
    let chains: Vec<Option<Chain>> = cases.iter().map(|case| case.1.map(leaf)).collect();
    let witnesses: Vec<CaEvidence<'_>> = cases
        .iter()
        .zip(&chains)
        .map(|((name, _, trusts, installed), chain)| CaEvidence {
            name: *name,
            file: format!("/etc/kubernetes/{name}"),
            chain: chain.as_ref(),
            trusts: trusts.map_or_else(Vec::new, |ca| ca.bundle().certificates().to_vec()),
            installed: *installed,
        })
        .collect();
    replaced(trust, &witnesses, &[])
}

const PAIR: CertName = CertName::Apiserver;
const SECOND: CertName = CertName::ApiserverKubeletClient;
const CONF: CertName = CertName::SchedulerConf;

#[test]
fn names_old_ca_when_everything_belongs_to_it() {
    let (old, new) = (authority(), authority());
    let all = [
        (PAIR, Some(&old), None, None),
        (SECOND, Some(&old), None, None),
        (CONF, Some(&old), Some(&old), None),
    ];
    let found = judge(new.bundle(), &all).unwrap();
    assert_eq!(found.names, [PAIR, SECOND, CONF]);
    let sentence = found.sentence("/pki/ca.crt");
    let print = hex(&old.bundle().first().fingerprint());
    assert_eq!(
        sentence,
        format!(
            "/pki/ca.crt was replaced; certificates and kubeconfigs belong to sha256:{print} (certificate fingerprint of CN=kubernetes in /etc/kubernetes/scheduler.conf)"
        )
    );
    assert!(judge(old.bundle(), &all).is_none());
}

#[test]
fn accepts_bundle_that_still_has_old_root() {
    let (old, new) = (authority(), authority());
    let both = [new.bundle().first(), old.bundle().first()].map(Clone::clone);
    let both = TrustBundle::from_certificates(both.to_vec()).unwrap();
    let all = [
        (PAIR, Some(&old), None, None),
        (SECOND, Some(&old), None, None),
        (CONF, Some(&old), Some(&old), None),
    ];
    assert!(judge(&both, &all).is_none());
}

#[test]
fn accepts_ca_certificate_renewed_with_its_key() {
    let shared = key();
    let same = PrivateKey::from_pem(shared.to_pem().as_bytes()).unwrap();
    let old = CertificateAuthority::self_signed("kubernetes", shared, NOW, DAY).unwrap();
    let renewed = CertificateAuthority::self_signed("kubernetes", same, NOW, 2 * DAY).unwrap();
    assert_ne!(old.bundle(), renewed.bundle());
    let all = [
        (PAIR, Some(&old), None, None),
        (CONF, Some(&old), Some(&old), None),
    ];
    assert!(judge(renewed.bundle(), &all).is_none());
}

#[test]
fn counts_the_majority_of_certificates() {
    let (own, other) = (authority(), authority());
    let trust = own.bundle();
    let foreign = |name| (name, Some(&other), None, None);
    let good = |name| (name, Some(&own), None, None);
    let absent = |name| (name, None, None, None);
    for (cases, expected, case) in [
        (vec![], false, "no certificate"),
        (vec![absent(PAIR), absent(SECOND)], false, "all are absent"),
        (
            vec![foreign(PAIR), good(SECOND)],
            false,
            "one of two is foreign",
        ),
        (
            vec![foreign(PAIR), absent(SECOND)],
            false,
            "the only one present is foreign",
        ),
        (
            vec![foreign(PAIR), foreign(SECOND), good(CONF)],
            true,
            "most are foreign",
        ),
        (
            vec![(CONF, Some(&other), Some(&own), None), good(PAIR)],
            false,
            "a kubeconfig with a foreign client certificate",
        ),
        (
            vec![(CONF, Some(&own), Some(&other), None), absent(PAIR)],
            false,
            "a kubeconfig that trusts a foreign CA",
        ),
    ] {
        assert_eq!(judge(trust, &cases).is_some(), expected, "{case}");
    }
}

#[test]
fn needs_second_sign_for_authority_with_one_certificate() {
    let (own, other) = (authority(), authority());
    let judge = |witness| judge(own.bundle(), &[witness]).is_some();
    let client = CertName::FrontProxyClient;
    assert!(judge((client, Some(&other), None, None)));
    assert!(judge((client, Some(&other), None, Some(true))));
    // nodepki installed another certificate there, so this one is foreign.
    assert!(!judge((client, Some(&other), None, Some(false))));
    // A worker's kubelet has rotated its certificate; its kubeconfig trusts the old CA too.
    let kubelet = CertName::KubeletConf;
    assert!(judge((kubelet, Some(&other), Some(&other), Some(false))));
}

#[test]
fn finds_old_ca_in_other_ca_file() {
    let (old, new) = (authority(), authority());
    let chain = leaf(&old);
    let witness = CaEvidence {
        name: CertName::FrontProxyClient,
        file: String::new(),
        chain: Some(&chain),
        trusts: Vec::new(),
        installed: None,
    };
    let elsewhere = [other_file("/pki/ca.crt", old.bundle(), false)];
    let found = replaced(new.bundle(), &[witness], &elsewhere).unwrap();
    assert!(found.sentence("x").contains("in /pki/ca.crt"));
    let fix = found.fix(Authority::FrontProxyCa, "x", new.bundle());
    let restore =
        "restore the old CA certificate from /pki/ca.crt (`cp x x.new && cp /pki/ca.crt x`)";
    assert!(fix.starts_with(restore), "{fix}");
}

fn other_file<'a>(file: &str, trust: &'a TrustBundle, is_replaced: bool) -> OtherCaFile<'a> {
    OtherCaFile {
        file: file.to_owned(),
        trust,
        is_replaced,
    }
}

#[test]
fn exchanged_ca_file_proves_what_one_foreign_certificate_does_not() {
    let (old, new) = (authority(), authority());
    let chain = leaf(&old);
    let is_found = |is_replaced| {
        let witness = CaEvidence {
            name: CertName::FrontProxyClient,
            file: String::new(),
            chain: Some(&chain),
            trusts: Vec::new(),
            installed: Some(false),
        };
        let elsewhere = [other_file("/pki/ca.crt", old.bundle(), is_replaced)];
        replaced(new.bundle(), &[witness], &elsewhere).is_some()
    };
    assert!(is_found(true));
    // The certificate itself is in the wrong place.
    assert!(!is_found(false));
}

#[test]
fn restores_exchanged_ca_files_with_one_command() {
    let one = authority();
    let old = |old| ReplacedCa {
        names: vec![PAIR],
        old,
    };
    let of_file = |file: &str| {
        old(OldAuthority::InFile {
            certificate: one.bundle().first().clone(),
            file: file.to_owned(),
        })
    };
    let (in_etcd, in_proxy) = (of_file("/etcd.crt"), of_file("/proxy.crt"));
    let unknown = old(OldAuthority::Named("CN=x".to_owned()));
    let together = |etcd, proxy| {
        restored_together(&[
            (Authority::EtcdCa, "/etcd.crt".to_owned(), etcd),
            (Authority::FrontProxyCa, "/proxy.crt".to_owned(), proxy),
        ])
    };
    let both = vec![Authority::EtcdCa, Authority::FrontProxyCa];
    let words =
        "these CA files contain certificates of each other's CAs: restore them with one command";
    assert_eq!(
        together(&in_proxy, &in_etcd),
        Some((
            both.clone(),
            format!(
                "{words} (`cp /proxy.crt /etcd.crt.old && cp /etcd.crt /proxy.crt.old && mv /etcd.crt.old /etcd.crt && mv /proxy.crt.old /proxy.crt`)"
            )
        ))
    );
    assert_eq!(
        together(&unknown, &in_etcd),
        Some((
            both,
            format!(
                "{words} (`cp /etcd.crt /proxy.crt.old && mv /proxy.crt.old /proxy.crt`); then copy the old CA certificate from its signer, another control-plane node or a backup to /etcd.crt"
            )
        ))
    );
    assert_eq!(together(&unknown, &unknown), None);
    assert_eq!(together(&unknown, &of_file("/ca.crt")), None);
}

#[test]
fn needs_more_foreign_than_own_certificates() {
    let (own, other) = (authority(), authority());
    let cases = [
        (PAIR, Some(&other), None, None),
        (SECOND, Some(&own), None, None),
        (CONF, Some(&other), None, None),
        (CertName::AdminConf, Some(&own), None, None),
    ];
    assert!(judge(own.bundle(), &cases).is_none(), "two against two");
    assert!(
        judge(own.bundle(), &cases[..3]).is_some(),
        "two against one"
    );
}

#[test]
fn kubeconfig_without_certificate_that_trusts_own_ca_is_no_evidence() {
    let own = authority();
    assert!(judge(own.bundle(), &[(CONF, None, Some(&own), None)]).is_none());
    let other = authority();
    assert!(judge(own.bundle(), &[(CONF, None, Some(&other), None)]).is_some());
}

#[test]
fn old_ca_is_the_one_that_signed_the_certificates() {
    let (old, new, unrelated) = (authority(), authority(), authority());
    let chain = leaf(&old);
    let witness = CaEvidence {
        name: CertName::FrontProxyClient,
        file: String::new(),
        chain: Some(&chain),
        trusts: Vec::new(),
        installed: None,
    };
    let elsewhere = [other_file("/pki/x.crt", unrelated.bundle(), false)];
    let found = replaced(new.bundle(), &[witness], &elsewhere).unwrap();
    let sentence = found.sentence("/pki/ca.crt");
    assert!(
        sentence.ends_with("CN=kubernetes, whose certificate is not on this node"),
        "{sentence}"
    );
}

#[test]
fn reads_cas_that_a_kubeconfig_trusts() {
    let one = authority();
    let pem = one.bundle().first().to_pem();
    assert_eq!(
        trusted_by(Some(pem.as_bytes())),
        one.bundle().certificates()
    );
    assert_eq!(trusted_by(Some(b"damaged")), []);
    assert_eq!(trusted_by(None), []);
}

#[test]
fn points_to_valid_certificate_of_expired_ca_key() {
    let shared = key();
    let same = PrivateKey::from_pem(shared.to_pem().as_bytes()).unwrap();
    let expired = CertificateAuthority::self_signed("kubernetes", shared, NOW, DAY).unwrap();
    let renewed = CertificateAuthority::self_signed("kubernetes", same, NOW, 9 * DAY).unwrap();
    let other = CertificateAuthority::self_signed("kubernetes", key(), NOW, 9 * DAY).unwrap();
    let hint = |trusted: &CertificateAuthority, now| {
        let witness = CaEvidence {
            name: CONF,
            file: "/etc/kubernetes/scheduler.conf".to_owned(),
            chain: None,
            trusts: trusted.bundle().certificates().to_vec(),
            installed: None,
        };
        valid_copy(expired.bundle(), &[witness], "/pki/ca.crt", now)
    };
    let [old, new] = [&expired, &renewed].map(|one| one.bundle().first());
    let (end, later) = (old.not_after(), NOW + 2 * DAY);
    assert_eq!(hint(&renewed, end), None, "it has not expired");
    assert_eq!(hint(&expired, later), None, "the copy has expired too");
    assert_eq!(hint(&other, later), None, "of another key");
    let expected = format!(
        "/etc/kubernetes/scheduler.conf contains a certificate of the same CA key, certificate sha256:{}, which is \
         valid until {}, while /pki/ca.crt contains certificate sha256:{}: install the valid one (`sed -n \
         's/.*certificate-authority-data: //p' /etc/kubernetes/scheduler.conf | base64 -d > /pki/ca.crt.old && \
         test -s /pki/ca.crt.old && mv /pki/ca.crt.old /pki/ca.crt`)",
        hex(&new.fingerprint()),
        rfc3339(new.not_after()),
        hex(&old.fingerprint())
    );
    assert_eq!(hint(&renewed, later), Some(expected));
}
