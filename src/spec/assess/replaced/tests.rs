use std::time::Duration;

use time::OffsetDateTime;

use super::*;
use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey, Profile, Sans, Subject};

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-20 09:57:29 UTC);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::self_signed("kubernetes", key(), NOW, DAY).unwrap()
}

fn leaf(authority: &CertificateAuthority) -> Chain {
    let profile = Profile {
        subject: Subject {
            common_name: "leaf".to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans::default(),
        usages: Vec::new(),
        key: KeyAlgorithm::EcdsaP256,
        lifetime: DAY,
    };
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
    let elsewhere = [("/pki/ca.crt".to_owned(), old.bundle().first().clone())];
    let found = replaced(new.bundle(), &[witness], &elsewhere).unwrap();
    assert!(found.sentence("x").contains("in /pki/ca.crt"));
    let fix = found.fix(Authority::FrontProxyCa, "x", new.bundle());
    assert!(fix.contains("restore the old CA certificate from /pki/ca.crt"));
}
