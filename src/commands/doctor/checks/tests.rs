use std::collections::BTreeSet;

use serde_json::json;

use super::answers::Answers;
use super::*;
use crate::kube::jwks;
use crate::kube::kubeadm::IpNet;
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::kube::manifest::StaticPod;
use crate::kube::names::{Authority, CertName};
use crate::kubelets::KubeletPolicy;
use crate::node::status::{CertPhase, CertStatus, RowFault, RowFindings, RowState};
use crate::spec::Choices;
use crate::spec::assess::Observed;
use crate::spec::authority_rotation::AuthorityRotation;
use crate::spec::tests::{INIT, JOIN, cluster as cluster_configuration, planned};
use crate::store::UnfinishedWork;
use crate::table::TextStyle;
use crate::x509::{
    CertificateAuthority, Chain, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
    TrustBundle,
};

fn now() -> OffsetDateTime {
    // 2030-01-01, after any release.
    OffsetDateTime::from_unix_timestamp(1_893_456_000).unwrap()
}

/// Returns the picture of an empty node.
fn blank() -> Picture {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    Picture::read(&root, &DiagnosisInputs::default(), now())
}

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn authority() -> CertificateAuthority {
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    CertificateAuthority::self_signed("kubernetes", key(), now(), day).unwrap()
}

/// Returns a certificate of this organization.
fn chain(authority: &CertificateAuthority, organization: Option<&str>) -> Chain {
    let profile = Profile {
        subject: Subject {
            common_name: "test-client".to_owned(),
            organizations: organization.map(str::to_owned).into_iter().collect(),
        },
        sans: Sans::default(),
        usages: Vec::new(),
        key: KeyAlgorithm::EcdsaP256,
        lifetime: std::time::Duration::from_secs(24 * 60 * 60),
    };
    let leaf = authority
        .issue(key().public_key(), &profile, now())
        .unwrap();
    Chain::from_pem(leaf.to_pem().as_bytes()).unwrap()
}

/// Returns the picture of a node with one certificate of this organization.
fn with_organization(name: CertName, organization: Option<&str>) -> Picture {
    let mut picture = blank();
    let chain = chain(&authority(), organization);
    picture.leaves.get_mut(&name).unwrap().found.chain = Observed::Present(chain);
    picture
}

/// Returns `severity id` of all findings.
fn found(picture: &Picture) -> Vec<String> {
    findings(picture)
        .iter()
        .map(|finding| format!("{} {}", finding.severity.as_str(), finding.id))
        .collect()
}

#[test]
fn reports_missing_role_binding_by_group_and_answer() {
    let (client, admin) = (CertName::ApiserverKubeletClient, CertName::AdminConf);
    let (group, masters) = (Some("kubeadm:cluster-admins"), Some("system:masters"));
    for (name, organization, answer, expected) in [
        (client, None, None, Some("info kubelet-client-rbac")),
        (client, None, Some(true), None),
        (client, None, Some(false), Some("error kubelet-client-rbac")),
        (
            client,
            group,
            Some(false),
            Some("error kubelet-client-rbac"),
        ),
        (client, masters, Some(true), Some("info system-masters")),
        (admin, group, None, Some("info admin-rbac")),
        (admin, group, Some(true), None),
        (admin, group, Some(false), Some("error admin-rbac")),
        (admin, masters, None, Some("info system-masters")),
    ] {
        let mut picture = with_organization(name, organization);
        picture.answers = answer.map(|answer| Answers {
            kubelet_client: Some(answer),
            admin: Some(answer),
            ..Answers::default()
        });
        let known = found(&blank());
        let mut found = found(&picture);
        found.retain(|one| !known.contains(one));
        let case = format!("{name} {organization:?} {answer:?}");
        assert_eq!(found, Vec::from_iter(expected.map(str::to_owned)), "{case}");
    }
}

#[test]
fn reports_second_signer_for_kubelets() {
    let manifest = |flags: &[&str]| {
        let flags = flags.iter().chain(&["controllers=*,tokencleaner"]);
        let arguments: Vec<String> = flags.map(|flag| format!("--{flag}")).collect();
        let pod = json!({"spec": {"containers": [{"command": arguments}]}});
        StaticPod::parse("/m.yaml".into(), pod.to_string().as_bytes()).unwrap()
    };
    let external = ["cluster-signing-cert-file=", "cluster-signing-key-file="];
    let own = ["cluster-signing-kubelet-serving-cert-file=/ca.crt"];
    for (flags, signs, expected) in [
        (&external[..], true, None),
        (&own[..], true, Some("error kubelets-two-signers")),
        (&own[..], false, None),
        (
            &external[..],
            false,
            Some("info controller-manager-no-signer"),
        ),
    ] {
        let mut picture = blank();
        picture.configuration.kubelets = signs.then(KubeletPolicy::default);
        picture.controller_manager = Some(manifest(flags));
        let known = found(&blank());
        let mut found = found(&picture);
        found.retain(|one| !known.contains(one) && !one.contains("kubelets-any-network"));
        assert_eq!(
            found,
            Vec::from_iter(expected.map(str::to_owned)),
            "{flags:?}"
        );
    }
}

#[test]
fn reports_signing_for_kubelets_of_any_network() {
    let warning = "warning kubelets-any-network".to_owned();
    let network = IpNet::parse("192.0.2.0/24").unwrap().0;
    for (networks, signs, expected) in [
        (Vec::new(), true, true),
        (vec![network], true, false),
        (Vec::new(), false, false),
    ] {
        let mut picture = blank();
        picture.configuration.kubelets = signs.then(|| KubeletPolicy {
            networks,
            ..KubeletPolicy::default()
        });
        assert_eq!(found(&picture).contains(&warning), expected);
    }
}

#[test]
fn proposes_role_binding_for_subject_of_certificate() {
    for (organization, binding) in [
        (None, "kubeadm:apiserver-kubelet-client"),
        (Some("kubeadm:cluster-admins"), "kubeadm:cluster-admins"),
    ] {
        let mut picture = with_organization(CertName::ApiserverKubeletClient, organization);
        picture.answers = Some(Answers {
            kubelet_client: Some(false),
            ..Answers::default()
        });
        let notes = cluster::kubelet_client(&picture);
        let manifest = format!("\nmetadata:\n  name: {binding}\n");
        assert!(notes[0].fix.contains(&manifest), "{}", notes[0].fix);
    }
}

#[test]
fn compares_service_account_key_with_key_set_of_cluster() {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let id = jwks::key_id(key.public_key());
    let members = key.public_key().jwk_members().unwrap();
    let own: serde_json::Map<String, serde_json::Value> = members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    for (set, words) in [
        (Some(json!({"keys": [own]})), None),
        (
            Some(json!({"keys": [{"kid": id}]})),
            Some("under which the cluster publishes another key"),
        ),
        (
            Some(json!({"keys": [{"kid": "another"}]})),
            Some("the cluster has another"),
        ),
        (Some(json!("nonsense")), Some("it is not a key set")),
        (None, None),
    ] {
        let mut picture = blank();
        picture.service_account = Observed::Present(key.public_key().clone());
        picture.answers = Some(Answers {
            jwks: set,
            ..Answers::default()
        });
        let notes = cluster::service_account(&picture);
        assert_eq!(notes.len(), usize::from(words.is_some()));
        for (note, words) in notes.iter().zip(words) {
            assert!(note.evidence.contains(words), "{}", note.evidence);
            assert!(note.evidence.contains(&id) || words.contains("not a key set"));
        }
    }
}

#[test]
fn remembers_nodes_that_a_rotation_excludes() {
    let ca = |name: &str| json!({"sha256": name, "certificate": ""});
    let rotation = |phase: &str, excluded: &[&str]| -> AuthorityRotation {
        serde_json::from_value(json!({
            "version": 1, "id": "7", "authority": "ca", "old": ca("a"), "new": ca("b"),
            "phase": phase, "paused": false, "excluded": excluded,
        }))
        .unwrap()
    };
    let ids = |rotation| {
        let mut picture = blank();
        picture.rotations.insert(Authority::Ca.into(), rotation);
        let notes = authorities::cluster_rotation(&picture);
        notes
            .into_iter()
            .map(|note| (note.severity, note.evidence))
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(rotation("done", &[])), []);
    assert_eq!(
        ids(rotation("trust", &[])),
        [(
            FindingSeverity::Info,
            "rotation 7 changes ca on all nodes: phase trust".to_owned()
        )]
    );
    assert_eq!(
        ids(rotation("done", &["w1", "w2"])),
        [(
            FindingSeverity::Warning,
            "rotation 7 of ca, phase done, does not wait for w1, w2, which may still use the former one".to_owned()
        )]
    );
}

/// The message names the group as well when it is missing, which `system-masters` does not report.
#[test]
fn reports_super_admin_without_its_group_as_misplaced() {
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let authority = CertificateAuthority::self_signed("kubernetes", key(), now(), day).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: "kubernetes-super-admin".to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans::default(),
        usages: vec![ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: day,
    };
    let key = key();
    let leaf = authority.issue(key.public_key(), &profile, now()).unwrap();
    let credentials = Credentials {
        server: "https://192.0.2.11:6443",
        authority: &authority.bundle().first().to_pem(),
        certificate: &leaf.to_pem(),
        key: &key.to_pem(),
    };
    let kubeconfig = Kubeconfig::new("kubernetes", "user", &credentials);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("etc/kubernetes/super-admin.conf");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, kubeconfig.to_yaml()).unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let picture = Picture::read(&root, &DiagnosisInputs::default(), now());
    let findings = findings(&picture);
    let found = findings
        .iter()
        .find(|finding| finding.id == "misplaced-certificate");
    let found = found.unwrap();
    assert_eq!(
        found.evidence,
        ["super-admin.conf: O \"system:masters\" is missing"]
    );
    assert_eq!(found.codes, ["OrganizationMissing"]);
}

/// Returns the row of a certificate with this fault.
fn faulty_row(name: CertName, state: RowState, fault: RowFault) -> CertStatus {
    CertStatus {
        name,
        authority: name.authority(),
        description: None,
        state,
        phase: CertPhase::Expired,
        findings: RowFindings {
            faults: vec![fault],
            remarks: Vec::new(),
        },
        certificate: None,
        verified: None,
        issued: None,
        kubeconfig: None,
        key_policy: None,
        files: Vec::new(),
    }
}

/// A bootstrap does nothing about a certificate that the plan does not contain.
#[test]
fn fix_names_bootstrap_only_for_certificates_of_plan() {
    const EXTERNAL_ETCD: &str = "etcd: {external: {endpoints: ['https://etcd:2379'], caFile: /e/ca.crt, certFile: /e/c.crt, keyFile: /e/c.key}}\n";
    let omits = Choices {
        omit: [CertName::SuperAdminConf].into(),
        ..Choices::default()
    };
    let bootstraps = Choices {
        kubelet_bootstraps_itself: true,
        ..Choices::default()
    };
    let (own, client) = (Choices::default(), CertName::ApiserverEtcdClient);
    let (admin, kubelet) = (CertName::SuperAdminConf, CertName::KubeletConf);
    for (node, fields, choices, name, words) in [
        (INIT, "", &own, client, None),
        (
            INIT,
            EXTERNAL_ETCD,
            &own,
            client,
            Some("administrators of etcd"),
        ),
        (INIT, "", &own, admin, None),
        (INIT, "", &omits, admin, Some("remove its files")),
        (JOIN, "", &own, kubelet, None),
        (
            JOIN,
            "",
            &bootstraps,
            kubelet,
            Some("write bootstrap-kubelet.conf"),
        ),
    ] {
        let mut picture = blank();
        let fields = format!("controlPlaneEndpoint: api.example\n{fields}");
        picture.configuration.plan = Some(planned(node, &cluster_configuration(&fields), choices));
        let (at, now) = (now(), now());
        let expired = RowFault::Expired { at, now };
        let expiring = RowFault::Expiring { at, now };
        picture.status.certificates = vec![
            faulty_row(name, RowState::Expired, expired),
            faulty_row(name, RowState::Expiring, expiring),
        ];
        let found = [leaves::expired(&picture), leaves::expiring(&picture)];
        let usual = ["run `nodepki bootstrap`", "run `nodepki renew`"];
        for (notes, usual) in found.iter().zip(usual) {
            let words = words.unwrap_or(usual);
            let fix = &notes[0].fix;
            assert!(fix.contains(words), "{name}: {fix}");
            assert_eq!(fix.contains(usual), words == usual, "{name}: {fix}");
        }
    }
}

/// A kubelet that bootstraps its own identity keeps the CA data of its kubeconfig.
#[test]
fn fix_of_ca_data_names_bootstrap_only_for_kubeconfigs_of_plan() {
    let bootstraps = Choices {
        kubelet_bootstraps_itself: true,
        ..Choices::default()
    };
    let (admin, kubelet) = (CertName::AdminConf, CertName::KubeletConf);
    for (name, words) in [
        (admin, "run `nodepki bootstrap`, which writes"),
        (
            kubelet,
            "write the certificates of ca.crt to its certificate-authority-data",
        ),
    ] {
        let mut picture = blank();
        let cluster = cluster_configuration("controlPlaneEndpoint: api.example\n");
        picture.configuration.plan = Some(planned(JOIN, &cluster, &bootstraps));
        let fault = RowFault::AuthorityDataExpired(now());
        picture.status.certificates = vec![faulty_row(name, RowState::Expired, fault)];
        let fix = &kubeconfigs::authority(&picture)[0].fix;
        assert!(fix.starts_with(words), "{name}: {fix}");
    }
}

/// A renewal issues no certificate that outlives its authority.
#[test]
fn fix_of_expiring_certificate_is_its_authority_if_both_end_together() {
    let ca = authority();
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("etc/kubernetes/pki");
    std::fs::create_dir_all(&pki).unwrap();
    std::fs::write(pki.join("front-proxy-ca.crt"), ca.bundle().to_pem()).unwrap();
    let path = pki.join("front-proxy-client.crt");
    std::fs::write(path, chain(&ca, None).to_pem()).unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let at = now() + time::Duration::hours(20);
    let picture = Picture::read(&root, &DiagnosisInputs::default(), at);
    let notes = leaves::expiring(&picture);
    let found: Vec<_> = notes
        .iter()
        .map(|note| note.evidence.split(':').next())
        .collect();
    assert_eq!(found, [Some("front-proxy-ca"), Some("front-proxy-client")]);
    for note in notes {
        assert!(
            note.fix.starts_with("replace the authority"),
            "{}",
            note.fix
        );
    }
}

/// After `authority activate` the new CA is first, while a certificate of the old one may still be pending.
#[test]
fn names_command_for_ca_change_before_order_of_bundle() {
    let (old, new) = (authority(), authority());
    let bundle = format!("{}{}", new.bundle().to_pem(), old.bundle().to_pem());
    let mut picture = blank();
    let leaf = picture.leaves.get_mut(&CertName::FrontProxyClient);
    leaf.unwrap().found.chain = Observed::Present(chain(&old, None));
    let found = picture.authorities.get_mut(&Authority::FrontProxyCa);
    let bundle = TrustBundle::from_pem(bundle.as_bytes()).unwrap();
    found.unwrap().bundle = Observed::Present(bundle);
    let notes = leaves::not_under_first(&picture);
    let words = "run `nodepki authority status front-proxy-ca`, which names the next step";
    assert!(notes[0].fix.starts_with(words), "{}", notes[0].fix);
}

#[test]
fn merges_notes_with_same_fix_and_sorts_by_severity() {
    let mut picture = blank();
    picture.configuration.faults = vec!["one".to_owned(), "two".to_owned()];
    picture.unfinished = Some(UnfinishedWork::Files);
    picture.trees.unfinished = vec!["/etc/kubernetes/.nodepki-new.x".into()];
    let findings = findings(&picture);
    let ids: Vec<&str> = findings.iter().map(|finding| finding.id).collect();
    assert_eq!(
        ids,
        [
            "config-unusable",
            "unfinished-commit",
            "stray-files",
            "empty-node"
        ]
    );
    assert_eq!(findings[0].evidence, ["one", "two"]);
    let diagnosis = Diagnosis {
        at: now(),
        root: "/".to_owned(),
        findings,
    };
    let text = table(&diagnosis, TextStyle::default());
    assert!(
        text.starts_with("error    config-unusable\n    one\n    two\n    fix: "),
        "{text}"
    );
}

#[test]
fn prints_fix_of_several_findings_once() {
    let finding = |id| Finding {
        id,
        severity: FindingSeverity::Error,
        evidence: vec!["evidence".to_owned()],
        codes: Vec::new(),
        fix: "run it".to_owned(),
    };
    let diagnosis = Diagnosis {
        at: now(),
        root: "/".to_owned(),
        findings: vec![finding("first"), finding("second"), finding("third")],
    };
    let text = table(&diagnosis, TextStyle::default());
    let fixes: Vec<&str> = text.lines().filter(|line| line.contains("fix: ")).collect();
    let other = "    fix: that of first, above";
    assert_eq!(fixes, ["    fix: run it", other, other]);
}

#[test]
fn escapes_control_characters_from_files() {
    let mut picture = blank();
    picture.configuration.faults = vec!["a\u{1b}[31mb".to_owned()];
    let diagnosis = Diagnosis {
        at: now(),
        root: "/".to_owned(),
        findings: findings(&picture),
    };
    let text = table(&diagnosis, TextStyle::default());
    assert!(
        !text.contains('\u{1b}') && text.contains("\\u{1b}[31m"),
        "{text}"
    );
}

#[test]
fn lists_checks_with_unique_ids_and_sorted_severities() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len(), "an id is used twice");
    for check in CHECKS {
        let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(check.id.chars().all(kebab), "{}", check.id);
        assert!(check.severities.is_sorted() && !check.severities.is_empty());
        assert!(!check.meaning.ends_with('.'), "{}", check.id);
    }
}
