use std::path::{Path, PathBuf};
use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::kube::names::{Authority, CertName};
use crate::spec::RequestedCertificate;
use crate::text::rfc3339;
use crate::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject, Tolerance,
};

pub(super) const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86400);

pub(super) fn authority() -> CertificateAuthority {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    CertificateAuthority::self_signed("kubernetes", key, NOW, 10 * YEAR).unwrap()
}

fn subject(organization: Option<&str>) -> Subject {
    Subject::new("kube-apiserver-kubelet-client", organization.as_slice())
}

pub(super) fn spec() -> CertSpec {
    CertSpec {
        requested: RequestedCertificate {
            name: CertName::ApiserverKubeletClient,
            authority: Authority::Ca,
            profile: Profile::of_tests(subject(None), &[ExtendedUsage::ClientAuth], YEAR),
            tolerance: Tolerance::default(),
        },
        other_subjects: vec![subject(Some("kubeadm:cluster-admins"))],
        authority_change: AuthorityProgress::Unchanged,
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

/// Returns a pair that `authority` issued for `profile`.
pub(super) fn issued(authority: &CertificateAuthority, profile: &Profile) -> ObservedCert {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let leaf = authority.issue(key.public_key(), profile, NOW).unwrap();
    ObservedCert::new(
        Observed::Present(Chain::from_pem(leaf.to_pem().as_bytes()).unwrap()),
        Observed::Present(key),
    )
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn reasons(action: Action) -> Vec<String> {
    match action {
        Action::Issue { reasons } => texts(&reasons),
        other => panic!("not issued: {other:?}"),
    }
}

/// Returns an action in words.
pub(super) fn words(action: &Action) -> String {
    match action {
        Action::Keep { notes, .. } => format!("keep: {}", joined(notes)),
        Action::Rewrite { reasons } => format!("rewrite: {}", joined(reasons)),
        Action::Issue { reasons } => format!("issue: {}", joined(reasons)),
        Action::Refuse { reason } => format!("refuse: {reason}"),
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
    let wanted = "expected key ECDSA-P384, found ECDSA-P256";
    match assess(&changed, &found, trust, NOW) {
        Action::Keep { notes, at_renewal } => {
            assert_eq!(
                (notes, texts(&at_renewal)),
                (vec![], vec![wanted.to_owned()])
            );
        }
        other => panic!("{other:?}"),
    }
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
        ["unexpected extended key usage server auth"]
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
    assert_eq!(
        judge(ObservedCert::new(Observed::Absent, Observed::Absent)),
        ["absent"]
    );
    assert_eq!(
        judge(ObservedCert::new(Observed::Empty, Observed::Empty)),
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
        Action::Keep { notes, .. } => assert_eq!(
            joined(&notes),
            "subject is O=kubeadm:cluster-admins, CN=kube-apiserver-kubelet-client, of another kubeadm version; kept, since the cluster may rely on it"
        ),
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
fn subject_that_fits_no_version_better_is_compared_with_the_desired_one() {
    let authority = authority();
    let mut foreign = spec().requested.profile;
    foreign.subject = subject(Some("wheel"));
    let mut desired = spec();
    desired.requested.profile.subject = subject(Some("kubeadm:cluster-admins"));
    desired.other_subjects = vec![subject(Some("system:masters"))];
    let found = issued(&authority, &foreign);
    let reasons = reasons(assess(&desired, &found, Some(authority.bundle()), NOW));
    let missing = "O \"kubeadm:cluster-admins\" is missing".to_owned();
    assert!(reasons.contains(&missing), "{reasons:?}");
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
    for (found, why) in [
        (pkcs8, "the key is PKCS#8; kubeadm writes PKCS#1 or SEC1"),
        (exposed, "the key is world-readable (mode 0644)"),
    ] {
        match assess(&spec(), &found, Some(authority.bundle()), NOW) {
            Action::Rewrite { reasons } => assert_eq!(joined(&reasons), why),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the notes of a certificate that is kept.
fn notes(action: Action) -> Vec<String> {
    match action {
        Action::Keep { notes, .. } => texts(&notes),
        other => panic!("not kept: {other:?}"),
    }
}

/// Returns the reasons to write the files again.
fn faults_of_form(action: Action) -> Vec<String> {
    match action {
        Action::Rewrite { reasons } => texts(&reasons),
        other => panic!("not rewritten: {other:?}"),
    }
}

#[test]
fn serves_while_valid_and_of_its_key() {
    let (authority, foreign) = (authority(), authority());
    let pair = issued(&authority, &spec().requested.profile);
    let (chain, key) = (pair.chain.present().unwrap(), pair.key.present().unwrap());
    let other = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let trust = authority.bundle();
    assert!(still_serves(chain, key.public_key(), trust, NOW));
    assert!(!still_serves(chain, other.public_key(), trust, NOW));
    assert!(!still_serves(
        chain,
        key.public_key(),
        foreign.bundle(),
        NOW
    ));
    assert!(!still_serves(
        chain,
        other.public_key(),
        foreign.bundle(),
        NOW
    ));
    assert!(!still_serves(
        chain,
        key.public_key(),
        trust,
        NOW + 2 * YEAR
    ));
}

#[test]
fn lists_differences_of_complete_pair_only() {
    let authority = authority();
    let mut wanted = spec();
    wanted.requested.profile.sans.dns = vec!["b".to_owned()];
    let differences = |found: &ObservedCert| {
        let found = differences_from_spec(&wanted, found, authority.bundle(), NOW);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let pair = issued(&authority, &spec().requested.profile);
    assert_eq!(differences(&pair), ["SAN DNS:b is missing"]);
    let torn = ObservedCert {
        key: Observed::Absent,
        ..pair
    };
    assert_eq!(differences(&torn), [""; 0]);
}

#[test]
fn certificate_under_second_ca_of_bundle_is_kept_unless_first_is_required() {
    let (first, second) = (authority(), authority());
    let both = [&first, &second].map(|one| one.bundle().first().clone());
    let trust = TrustBundle::from_certificates(both.to_vec()).unwrap();
    let found = issued(&second, &spec().requested.profile);
    let notes = notes(assess(&spec(), &found, Some(&trust), NOW));
    assert_eq!(notes.len(), 1, "{notes:?}");
    let strict = CertSpec {
        authority_change: AuthorityProgress::Activated,
        ..spec()
    };
    assert_eq!(reasons(assess(&strict, &found, Some(&trust), NOW)), notes);
}

#[test]
fn keeps_key_that_kubelet_made_whatever_the_policy() {
    let authority = authority();
    let of_kubelet = |algorithm, in_place, requested_by_kubelet| {
        let key = PrivateKey::generate(algorithm).unwrap();
        let profile = spec().requested.profile;
        let leaf = authority.issue(key.public_key(), &profile, NOW).unwrap();
        let store = ObservedKubeletStore {
            dir: "/var/lib/kubelet/pki".into(),
            on_disk: KubeletStoreContent {
                current: KubeletLink::Link("kubelet-client-2026.pem".into()),
                pem: None,
                exposed: None,
            },
            in_place,
            requested_by_kubelet,
            faults: Vec::new(),
            superseded: None,
        };
        ObservedCert {
            store: Some(store),
            ..ObservedCert::new(
                Observed::Present(Chain::from_pem(leaf.to_pem().as_bytes()).unwrap()),
                Observed::Present(key),
            )
        }
    };
    let mut wanted = spec();
    wanted.on_policy_change = OnPolicyChange::Now;
    wanted.requested.profile.key = KeyAlgorithm::EcdsaP521;
    for (algorithm, in_place, requested, is_kept) in [
        (KeyAlgorithm::EcdsaP256, true, true, true),
        (KeyAlgorithm::EcdsaP256, false, true, false),
        (KeyAlgorithm::EcdsaP256, true, false, false),
        // The kubelet makes no such key.
        (KeyAlgorithm::EcdsaP384, true, true, false),
    ] {
        let found = of_kubelet(algorithm, in_place, requested);
        let action = assess(&wanted, &found, Some(authority.bundle()), NOW);
        if is_kept {
            assert!(notes(action)[0].ends_with("when it requested the certificate"))
        } else {
            assert_eq!(
                reasons(action),
                [format!(
                    "expected key ECDSA-P521, found {}",
                    algorithm.as_str()
                )]
            )
        }
    }
}

#[test]
fn notes_certificate_that_outlives_its_authority() {
    let chain = |lifetime: Duration| {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let leaf = CertificateAuthority::self_signed("leaf", key, NOW, lifetime).unwrap();
        Chain::from_pem(leaf.bundle().first().to_pem().as_bytes()).unwrap()
    };
    let (short, long) = (authority(), {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        CertificateAuthority::self_signed("kubernetes", key, NOW, 20 * YEAR).unwrap()
    });
    assert_eq!(beyond_authority(&chain(10 * YEAR), short.bundle()), None);
    let late = chain(10 * YEAR + Duration::from_secs(1));
    let end = rfc3339(short.bundle().first().not_after());
    assert_eq!(
        beyond_authority(&late, short.bundle()).map(|note| note.to_string()),
        Some(format!(
            "it outlives its authority, which expires at {end}; it is unusable after that"
        ))
    );
    // The authority that lives longest counts.
    let both = [&short, &long].map(|one| one.bundle().first().clone());
    let both = TrustBundle::from_certificates(both.to_vec()).unwrap();
    assert_eq!(beyond_authority(&late, &both), None);
}

#[test]
fn rewrites_kubeconfig_with_other_server_or_ca() {
    let (authority, foreign) = (authority(), authority());
    let server = "https://192.0.2.11:6443";
    let wanted = CertSpec {
        output: CertFiles::Kubeconfig {
            path: "/etc/kubernetes/admin.conf".into(),
            server: server.to_owned(),
            cluster: "kubernetes".to_owned(),
            user: "kubernetes-admin".to_owned(),
            store: None,
            pair: None,
        },
        ..spec()
    };
    let judge_edited = |server: &str, trusted: &CertificateAuthority, edit: fn(&str) -> String| {
        let pair = issued(&authority, &spec().requested.profile);
        let (chain, key) = (pair.chain.present().unwrap(), pair.key.present().unwrap());
        let credentials = Credentials {
            server,
            authority: &trusted.bundle().first().to_pem(),
            certificate: &chain.leaf().to_pem(),
            key: &key.to_pem(),
        };
        let text = Kubeconfig::new("kubernetes", "kubernetes-admin", &credentials).to_yaml();
        let text = edit(&text);
        let path = Path::new("/etc/kubernetes/admin.conf");
        let found = read_kubeconfig(path, Some(text.as_bytes())).unwrap();
        assess(&wanted, &found, Some(authority.bundle()), NOW)
    };
    let judge = |server: &str, trusted| judge_edited(server, trusted, str::to_owned);
    assert_eq!(notes(judge(server, &authority)), [""; 0]);
    let by_file = |text: &str| {
        let lines = text.lines().map(|line| {
            if line.contains("authority-data") {
                "    certificate-authority: pki/ca.crt\n".to_owned()
            } else {
                format!("{line}\n")
            }
        });
        lines.collect()
    };
    assert_eq!(
        faults_of_form(judge_edited(server, &authority, by_file)),
        [format!(
            "its CA is in the file /etc/kubernetes/pki/ca.crt instead of {}",
            authority.bundle()
        )]
    );
    assert_eq!(
        faults_of_form(judge("https://192.0.2.12:6443", &authority)),
        [format!(
            "expected server {server}, found https://192.0.2.12:6443"
        )]
    );
    assert_eq!(
        faults_of_form(judge(server, &foreign)),
        [format!(
            "its CA is {} instead of {}",
            foreign.bundle(),
            authority.bundle()
        )]
    );
}

#[test]
fn rewrites_kubeconfig_with_credentials_in_other_place() {
    const PAIR: [&str; 2] = [
        "/etc/kubernetes/pki/scheduler/client.crt",
        "/etc/kubernetes/pki/scheduler/client.key",
    ];
    const OTHER: [&str; 2] = ["/srv/scheduler.pem", "/srv/scheduler.pem"];
    let authority = authority();
    let judge = |is_named: bool, named: Option<[&str; 2]>| {
        let wanted = CertSpec {
            output: CertFiles::Kubeconfig {
                path: "/etc/kubernetes/scheduler.conf".into(),
                server: "https://192.0.2.11:6443".to_owned(),
                cluster: "kubernetes".to_owned(),
                user: "system:kube-scheduler".to_owned(),
                store: None,
                pair: Some(ClientPairSpec {
                    certificate: PAIR[0].into(),
                    key: PAIR[1].into(),
                    is_named,
                }),
            },
            ..spec()
        };
        let mut found = issued(&authority, &spec().requested.profile);
        let credentials = Credentials {
            server: "https://192.0.2.11:6443",
            authority: &authority.bundle().first().to_pem(),
            certificate: &found.chain.present().unwrap().to_pem(),
            key: &found.key.present().unwrap().to_pem(),
        };
        let mut document = Kubeconfig::new("kubernetes", "me", &credentials);
        if let Some([certificate, key]) = named {
            document.set_client_files(certificate, key).unwrap();
        }
        let path = Path::new("/etc/kubernetes/scheduler.conf");
        let text = document.to_yaml();
        let read = read_kubeconfig(path, Some(text.as_bytes())).unwrap();
        found.kubeconfig = read.kubeconfig;
        assess(&wanted, &found, Some(authority.bundle()), NOW)
    };
    assert_eq!(notes(judge(true, Some(PAIR))), [""; 0]);
    assert_eq!(notes(judge(false, None)), [""; 0]);
    // Files of another tool are kept until they are to be in a certain place.
    assert_eq!(notes(judge(false, Some(OTHER))), [""; 0]);
    let [certificate, key] = PAIR;
    assert_eq!(
        faults_of_form(judge(true, Some(OTHER))),
        [format!(
            "it names {0} and {0} instead of {certificate} and {key}",
            OTHER[0]
        )]
    );
    assert_eq!(
        faults_of_form(judge(true, None)),
        [format!(
            "it contains its certificate and key instead of naming {certificate} and {key}"
        )]
    );
    assert_eq!(
        faults_of_form(judge(false, Some(PAIR))),
        [format!(
            "it names {certificate} and {key} instead of embedded certificate and key"
        )]
    );
}

#[test]
fn reads_kubeconfig_by_file_only_without_embedded_certificate() {
    let path = Path::new("/etc/kubernetes/kubelet.conf");
    let text = |data: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://192.0.2.11:6443'}}}}]\n\
             users: [{{name: u, user: {{client-certificate: pki/c.pem, client-key: /k.pem{data}}}}}]\n"
        )
    };
    let read = |data: &str| read_kubeconfig(path, Some(text(data).as_bytes())).unwrap();
    for data in ["", ", client-key-data: Zm9v"] {
        let found = read(data);
        assert!(matches!(found.key, Observed::Absent), "{data}");
        let named = found.named_pair().unwrap();
        let expected = ["/etc/kubernetes/pki/c.pem", "/k.pem"];
        assert_eq!(*named, expected.map(PathBuf::from), "{data}");
        assert!(found.kubeconfig.unwrap().by_file);
    }
    let found = read(", client-certificate-data: Zm9v, client-key-data: Zm9v");
    assert!(matches!(found.chain, Observed::Unreadable(_)));
    assert_eq!(found.named_pair(), None);
    assert!(!found.kubeconfig.unwrap().by_file);
}

#[test]
fn blank_file_is_empty() {
    let read = |bytes| Observed::<()>::read(bytes, |_| Err("no"));
    assert!(matches!(read(None), Observed::Absent));
    assert!(matches!(read(Some(b"")), Observed::Empty));
    assert!(matches!(read(Some(b" \r\n\t")), Observed::Empty));
    assert_eq!(
        read(Some(b"x\n")).trouble().as_deref(),
        Some("is unreadable: no")
    );
}

#[test]
fn recognizes_form_of_kubeadms_keys() {
    let ec = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    assert!(is_our_form(ec.to_pem().as_bytes()));
    assert!(is_our_form(b"-----BEGIN RSA PRIVATE KEY-----"));
    assert!(!is_our_form(b"# note\n-----BEGIN PRIVATE KEY-----\n"));
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
    let end = authority.bundle().first().not_after();
    assert!(assess_bundle(&spec, &bundle, &[], end).is_ok());
    let refusal = assess_bundle(&spec, &bundle, &[], NOW + 11 * YEAR).unwrap_err();
    let refusal = refusal.to_string();
    assert!(refusal.contains("replace the CA first"), "{refusal}");
    let refusal = assess_bundle(&spec, &bundle, &[[0; 32]], NOW).unwrap_err();
    let refusal = refusal.to_string();
    assert!(refusal.contains("authorities.ca.trust.sha256"), "{refusal}");
}

#[test]
fn distinguishes_unrepairable_from_empty_kubeconfig() {
    assert!(matches!(
        read_kubeconfig(Path::new("/etc/kubernetes/kubelet.conf"), Some(b"  \n")),
        Ok(found) if matches!(found.chain, Observed::Empty)
    ));
    for broken in [
        &b"\xff\xfe"[..],
        b"- a\n",
        b"current-context: gone\n",
        b"a: [\n",
    ] {
        let path = Path::new("/etc/kubernetes/kubelet.conf");
        assert!(read_kubeconfig(path, Some(broken)).is_err());
    }
}
