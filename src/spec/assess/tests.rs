use std::path::Path;
use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::kube::names::{Authority, CertName};
use crate::spec::RequestedCertificate;
use crate::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
    Tolerance,
};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86400);

fn authority() -> CertificateAuthority {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    CertificateAuthority::self_signed("kubernetes", key, NOW, 10 * YEAR).unwrap()
}

fn subject(organization: Option<&str>) -> Subject {
    Subject {
        common_name: "kube-apiserver-kubelet-client".to_owned(),
        organizations: organization.map(str::to_owned).into_iter().collect(),
    }
}

fn spec() -> CertSpec {
    CertSpec {
        requested: RequestedCertificate {
            name: CertName::ApiserverKubeletClient,
            authority: Authority::Ca,
            profile: Profile {
                subject: subject(None),
                sans: Sans::default(),
                usages: vec![ExtendedUsage::ClientAuth],
                key: KeyAlgorithm::EcdsaP256,
                lifetime: YEAR,
            },
            tolerance: Tolerance::default(),
        },
        other_subjects: vec![subject(Some("kubeadm:cluster-admins"))],
        under_first: false,
        on_policy_change: OnPolicyChange::NextRenewal,
        is_omittable: false,
        description: None,
        output: CertFiles::Pair {
            certificate: "/c".into(),
            key: "/k".into(),
            group: None,
        },
    }
}

fn found(chain: Observed<Chain>, key: Observed<PrivateKey>) -> ObservedCert {
    ObservedCert {
        chain,
        key,
        key_form_is_ours: true,
        exposed: None,
        revoked: None,
        kubeconfig: None,
        store: None,
    }
}

/// Returns a pair that `authority` issued for `profile`.
fn issued(authority: &CertificateAuthority, profile: &Profile) -> ObservedCert {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let leaf = authority.issue(key.public_key(), profile, NOW).unwrap();
    found(
        Observed::Present(Chain::from_pem(leaf.to_pem().as_bytes()).unwrap()),
        Observed::Present(key),
    )
}

fn reasons(action: Action) -> Vec<String> {
    match action {
        Action::Issue { reasons } => reasons,
        other => panic!("not issued: {other:?}"),
    }
}

#[test]
fn keeps_certificate_that_matches_spec() {
    let authority = authority();
    let action = assess(
        &spec(),
        &issued(&authority, &spec().requested.profile),
        Some(authority.bundle()),
        NOW,
    );
    assert_eq!(
        action,
        Action::Keep {
            notes: Vec::new(),
            at_renewal: Vec::new()
        }
    );
}

#[test]
fn postpones_changed_key_algorithm_unless_content_drifted() {
    let authority = authority();
    let trust = Some(authority.bundle());
    let found = issued(&authority, &spec().requested.profile);
    let mut changed = spec();
    changed.requested.profile.key = KeyAlgorithm::EcdsaP384;
    let wanted = "key is ECDSA-P256, wanted ECDSA-P384";
    assert_eq!(
        assess(&changed, &found, trust, NOW),
        Action::Keep {
            notes: Vec::new(),
            at_renewal: vec![wanted.to_owned()],
        }
    );
    changed.on_policy_change = OnPolicyChange::Now;
    assert_eq!(reasons(assess(&changed, &found, trust, NOW)), [wanted]);
    changed.on_policy_change = OnPolicyChange::NextRenewal;
    changed.requested.profile.sans.dns = vec!["b".to_owned()];
    assert_eq!(
        reasons(assess(&changed, &found, trust, NOW)),
        [wanted, "SAN DNS:b is missing"]
    );
    changed.requested.profile.sans.dns.clear();
    let late = NOW + time::Duration::days(366);
    assert_eq!(reasons(assess(&changed, &found, trust, late)).len(), 2);
}

#[test]
fn keeps_tolerated_difference_until_it_is_not_tolerated() {
    let authority = authority();
    let mut both = spec().requested.profile;
    both.usages.insert(0, ExtendedUsage::ServerAuth);
    let found = issued(&authority, &both);
    assert_eq!(
        reasons(assess(&spec(), &found, Some(authority.bundle()), NOW)),
        ["extended key usage server auth is not wanted"]
    );
    let mut tolerant = spec();
    tolerant.requested.tolerance.extra_usages = true;
    assert_eq!(
        assess(&tolerant, &found, Some(authority.bundle()), NOW),
        Action::Keep {
            notes: Vec::new(),
            at_renewal: Vec::new()
        }
    );
}

#[test]
fn issues_missing_certificate_and_names_missing_half() {
    let authority = authority();
    let judge =
        |found: ObservedCert| reasons(assess(&spec(), &found, Some(authority.bundle()), NOW));
    assert_eq!(judge(found(Observed::Absent, Observed::Absent)), ["absent"]);
    assert_eq!(
        judge(found(Observed::Empty, Observed::Empty)),
        ["empty file"]
    );
    let whole = issued(&authority, &spec().requested.profile);
    assert_eq!(
        judge(ObservedCert {
            key: Observed::Absent,
            ..whole
        }),
        ["key is absent"]
    );
    let whole = issued(&authority, &spec().requested.profile);
    assert_eq!(
        judge(ObservedCert {
            chain: Observed::Unreadable("garbage".to_owned()),
            ..whole
        }),
        ["certificate is unreadable: garbage"]
    );
}

#[test]
fn keeps_subject_of_other_kubeadm_version_with_note() {
    let authority = authority();
    let mut older = spec().requested.profile;
    older.subject = subject(Some("kubeadm:cluster-admins"));
    match assess(
        &spec(),
        &issued(&authority, &older),
        Some(authority.bundle()),
        NOW,
    ) {
        Action::Keep { notes, .. } => {
            assert!(notes[0].contains("of another kubeadm version"), "{notes:?}")
        }
        other => panic!("{other:?}"),
    }
    let mut foreign = spec().requested.profile;
    foreign.subject = subject(Some("wheel"));
    let action = assess(
        &spec(),
        &issued(&authority, &foreign),
        Some(authority.bundle()),
        NOW,
    );
    assert!(reasons(action)[0].contains("wheel"));
}

#[test]
fn issues_for_mismatched_pair_expired_leaf_and_foreign_authority() {
    let (authority, foreign) = (authority(), authority());
    let torn = ObservedCert {
        key: Observed::Present(PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()),
        ..issued(&authority, &spec().requested.profile)
    };
    assert!(
        reasons(assess(&spec(), &torn, Some(authority.bundle()), NOW))[0]
            .contains("for another key")
    );
    let later = NOW + 2 * YEAR;
    let old = issued(&authority, &spec().requested.profile);
    assert_eq!(
        reasons(assess(&spec(), &old, Some(authority.bundle()), later)),
        ["it expired at 2027-06-01T12:00:00Z"]
    );
    assert!(
        reasons(assess(&spec(), &old, Some(foreign.bundle()), NOW))[0].contains("no path from it")
    );
}

#[test]
fn rewrites_if_only_form_differs() {
    let authority = authority();
    let pkcs8 = ObservedCert {
        key_form_is_ours: false,
        ..issued(&authority, &spec().requested.profile)
    };
    let exposed = ObservedCert {
        exposed: Some(0o644),
        ..issued(&authority, &spec().requested.profile)
    };
    for (found, why) in [(pkcs8, "PKCS#8"), (exposed, "0644")] {
        match assess(&spec(), &found, Some(authority.bundle()), NOW) {
            Action::Rewrite { reasons } => assert!(reasons[0].contains(why), "{reasons:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn refuses_expired_authority() {
    let authority = authority();
    let spec = BundleSpec {
        authority: Authority::Ca,
        path: "/etc/kubernetes/pki/ca.crt".into(),
        key_path: "/etc/kubernetes/pki/ca.key".into(),
        crl_path: "/etc/kubernetes/pki/crl.pem".into(),
        copies: Vec::new(),
        key: KeyAlgorithm::EcdsaP256,
    };
    let bundle = Observed::Present(authority.bundle().clone());
    assert!(assess_bundle(&spec, &bundle, &[], NOW).is_ok());
    let refusal = assess_bundle(&spec, &bundle, &[], NOW + 11 * YEAR).unwrap_err();
    assert!(refusal.contains("replace the CA first"), "{refusal}");
    let refusal = assess_bundle(&spec, &bundle, &[[0; 32]], NOW).unwrap_err();
    assert!(refusal.contains("authorities.ca.trust.sha256"), "{refusal}");
}

#[test]
fn distinguishes_unrepairable_from_empty_kubeconfig() {
    assert!(matches!(
        read_kubeconfig(Path::new("/etc/kubernetes/kubelet.conf"), Some(b"  \n")),
        ReadKubeconfig::Usable(found) if matches!(found.chain, Observed::Empty)
    ));
    for broken in [
        &b"\xff\xfe"[..],
        b"- a\n",
        b"current-context: gone\n",
        b"a: [\n",
    ] {
        assert!(matches!(
            read_kubeconfig(Path::new("/etc/kubernetes/kubelet.conf"), Some(broken)),
            ReadKubeconfig::Unrepairable(_)
        ));
    }
}
