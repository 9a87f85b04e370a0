use std::net::Ipv4Addr;
use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::agent::authority::report::{AuthorityReport, NodeReport, Nodes, PeerRequirement, Peers};
use crate::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
};

const NOW: OffsetDateTime = datetime!(2026-11-21 15:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn authority_with(name: &str, key: PrivateKey, now: OffsetDateTime) -> CertificateAuthority {
    CertificateAuthority::self_signed(name, key, now, 10 * YEAR).unwrap()
}

pub(in crate::agent::authority) fn authority(name: &str) -> CertificateAuthority {
    authority_with(name, key(), NOW)
}

pub(in crate::agent::authority) fn certificate(authority: &CertificateAuthority) -> Certificate {
    authority.bundle().first().clone()
}

fn leaf(authority: &CertificateAuthority) -> Chain {
    let profile = Profile {
        subject: Subject::new("kube-apiserver", &[]),
        sans: Sans {
            dns: vec!["kubernetes".to_owned()],
            ips: vec![Ipv4Addr::LOCALHOST.into()],
        },
        usages: vec![ExtendedUsage::ServerAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: YEAR,
    };
    let made = authority.issue(key().public_key(), &profile, NOW).unwrap();
    Chain::from_pem(made.to_pem().as_bytes()).unwrap()
}

/// Returns a node with one kubeconfig and one leaf under `issuer`, both trusting `bundle`.
pub(in crate::agent::authority) fn evidence(
    bundle: &[&CertificateAuthority],
    issuer: &CertificateAuthority,
) -> Evidence {
    let bundle: Vec<Certificate> = bundle.iter().map(|one| certificate(one)).collect();
    Evidence {
        authority: Authority::Ca,
        file: "ca.crt".to_owned(),
        kubeconfigs: vec![TrustingFile {
            file: "admin.conf".to_owned(),
            certificates: Ok(bundle.clone()),
            elsewhere: None,
        }],
        leaves: vec![SignedLeaf {
            name: "apiserver".to_owned(),
            file: "apiserver.crt".to_owned(),
            chain: Observed::Present(leaf(issuer)),
            foreign: None,
        }],
        bundle,
        signing: Vec::new(),
        change: None,
        restarts: Vec::new(),
        rolled_back: Vec::new(),
    }
}

fn recorded(old: &CertificateAuthority, new: &CertificateAuthority) -> Option<AuthorityChange> {
    Some(AuthorityChange {
        old: vec![fingerprint(&certificate(old))],
        new: fingerprint(&certificate(new)),
        staged: NOW,
        activated: None,
    })
}

#[test]
fn derives_phase_from_order_of_bundle() {
    let (old, new, extra) = (authority("old"), authority("new"), authority("extra"));
    for (bundle, record, phase) in [
        (vec![&old], false, ChangePhase::Settled),
        // Two trusted CAs without a recorded change.
        (vec![&old, &extra], false, ChangePhase::Settled),
        (vec![&old, &new], true, ChangePhase::Staged),
        (vec![&old, &extra, &new], true, ChangePhase::Staged),
        (vec![&new, &old], true, ChangePhase::Activated),
        (vec![&extra, &new, &old], true, ChangePhase::Staged),
        // The files override the record.
        (vec![&new], true, ChangePhase::Settled),
        (vec![&old], true, ChangePhase::Settled),
    ] {
        let mut found = evidence(&bundle, &old);
        found.change = record.then(|| recorded(&old, &new)).flatten();
        let names: Vec<_> = found.bundle.iter().map(named).collect();
        assert_eq!(found.phase(), phase, "{names:?} {record}");
    }
}

#[test]
fn reports_and_removes_new_ca_that_only_kubeconfigs_trust() {
    let (old, new) = (authority("old"), authority("new"));
    let (was, comes) = (certificate(&old), certificate(&new));
    let mut node = evidence(&[&old], &old);
    node.change = recorded(&old, &new);
    assert_eq!(node.unsettled(), Vec::<String>::new());
    assert!(node.undone().is_none());

    node.kubeconfigs[0].certificates = Ok(vec![was.clone(), comes.clone()]);
    assert_eq!(node.phase(), ChangePhase::Settled);
    let missing = AuthorityReport::of(&node, NOW).missing;
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(
        missing[0].contains("is trusted in admin.conf, but not in ca.crt"),
        "{missing:?}"
    );
    let undone = node.undone().unwrap();
    assert_eq!(undone.bundle, std::slice::from_ref(&was));
    assert_eq!(undone.kubeconfig(&[was.clone(), comes]), [was]);
    assert_eq!(undone.change, None);
}

#[test]
fn reports_rolled_back_step_and_allows_to_repeat_it() {
    let (old, new) = (authority("old"), authority("new"));
    let mut node = evidence(&[&new, &old], &new);
    node.change = recorded(&old, &new);
    node.rolled_back = vec![RolledBack {
        component: Component::Etcd,
        why: "it crashed".to_owned(),
    }];
    assert_eq!(node.phase(), ChangePhase::Activated);
    assert_eq!(node.unactivated(NOW), Vec::<String>::new());
    let restarts = AuthorityReport::of(&node, NOW).restarts;
    assert!(
        restarts[0].contains("it crashed") && restarts[0].contains("authority retire ca` again"),
        "{restarts:?}"
    );
    // Activation requires that the component has read both certificates.
    node.bundle.reverse();
    assert_eq!(node.unstaged().len(), 1, "{:?}", node.unstaged());
}

#[test]
fn judges_every_phase_of_a_change_and_its_undo() {
    let (old, new) = (authority("kubernetes"), authority("kubernetes"));
    let (was, comes) = (certificate(&old), certificate(&new));
    let mut node = evidence(&[&old], &old);

    let staged = node.staged(&comes, NOW).unwrap();
    assert_eq!(staged.bundle, [was.clone(), comes.clone()]);
    node.bundle = staged.bundle.clone();
    node.change = staged.change.clone();
    // The kubeconfig was not written yet.
    assert_eq!(node.unstaged().len(), 1, "{:?}", node.unstaged());
    node.kubeconfigs[0].certificates = Ok(staged.kubeconfig(std::slice::from_ref(&was)));
    assert_eq!(node.unstaged(), Vec::<String>::new());
    assert_eq!(node.kinship(&comes), Kinship::Other);
    // A repeated step has the same target.
    assert_eq!(node.staged(&comes, NOW + YEAR).unwrap(), staged);
    assert_eq!(node.undone().unwrap().bundle, std::slice::from_ref(&was));
    assert_eq!(node.unactivated(NOW).len(), 2);
    assert_eq!(node.stranded(&comes, NOW), None);
    node.leaves[0].chain = Observed::Present(leaf(&new));
    let why = node.stranded(&comes, NOW).unwrap();
    assert!(why.contains("only: apiserver (continue with"), "{why}");
    node.leaves[0].chain = Observed::Present(leaf(&old));

    let activated = node.activated(NOW).unwrap();
    assert_eq!(activated.bundle, [comes.clone(), was.clone()]);
    node.bundle = activated.bundle.clone();
    node.change = activated.change.clone();
    assert_eq!(node.phase(), ChangePhase::Activated);
    let missing = node.unactivated(NOW);
    assert!(missing[0].starts_with("apiserver (apiserver.crt) is not under the new CA yet"));
    assert_eq!(missing.len(), 1);
    node.leaves[0].chain = Observed::Present(leaf(&new));
    assert_eq!(node.unactivated(NOW), Vec::<String>::new());
    node.restarts = vec!["etcd is to be restarted".to_owned()];
    assert_eq!(node.unactivated(NOW), ["etcd is to be restarted"]);

    let retired = node.retired().unwrap();
    assert_eq!(retired.bundle, std::slice::from_ref(&comes));
    assert_eq!(retired.dropped, std::slice::from_ref(&was));
    assert_eq!(retired.change, None);
    assert_eq!(retired.kubeconfig(&[was, comes.clone()]), [comes]);
}

#[test]
fn keeps_other_trusted_certificates() {
    let (old, new) = (authority("old"), authority("new"));
    let (extra, own) = (authority("extra"), authority("load-balancer"));
    let mut node = evidence(&[&old, &extra], &old);
    let target = node.staged(&certificate(&new), NOW).unwrap();
    let all = [&old, &extra, &new].map(certificate);
    assert_eq!(target.bundle, all);
    assert_eq!(
        target
            .kubeconfig(&[certificate(&old), certificate(&own)])
            .len(),
        4
    );
    node.bundle = target.bundle;
    node.change = target.change;
    let retired = node.retired().unwrap();
    assert_eq!(retired.bundle, [&extra, &new].map(certificate));
    assert_eq!(retired.dropped, [certificate(&old)]);
}

#[test]
fn keeps_leaves_if_ca_is_renewed_with_its_key() {
    let pem = key().to_pem();
    let again = || PrivateKey::from_pem(pem.as_bytes()).unwrap();
    let old = authority_with("kubernetes", again(), NOW - 9 * YEAR);
    let new = authority_with("kubernetes", again(), NOW);
    let mut node = evidence(&[&new, &old], &old);
    assert_eq!(
        evidence(&[&old], &old).kinship(&certificate(&new)),
        Kinship::Renewal
    );
    node.change = recorded(&old, &new);
    assert_eq!(node.kinship(&certificate(&new)), Kinship::Renewal);
    assert_eq!(node.unactivated(NOW), Vec::<String>::new());
    // Another name with the same key is another CA.
    let renamed = authority_with("other", again(), NOW);
    assert_eq!(
        evidence(&[&old], &old).kinship(&certificate(&renamed)),
        Kinship::Other
    );
}

#[test]
fn rejects_unsuitable_new_ca_with_reason() {
    let (old, new, third) = (authority("old"), authority("new"), authority("third"));
    let settled = evidence(&[&old], &old);
    let admit = |evidence: &Evidence, offered: &[Certificate]| match evidence.admit(offered, NOW) {
        Ok(Offer::InPlace) => "in place".to_owned(),
        Ok(Offer::New(new)) => format!("new {}", new.subject()),
        Err(why) => why,
    };
    let of = |authority: &CertificateAuthority| vec![certificate(authority)];
    let mut in_progress = evidence(&[&old, &new], &old);
    in_progress.change = recorded(&old, &new);
    let expired = authority_with("late", key(), NOW - 11 * YEAR);
    let early = authority_with("early", key(), NOW + YEAR);
    let leaf_only = leaf(&old).leaf().clone();
    let both = vec![certificate(&old), certificate(&new)];
    for (evidence, offered, expected) in [
        (&settled, of(&new), "new CN=new"),
        (&settled, of(&old), "in place"),
        (&settled, both.clone(), "new CN=new"),
        (&in_progress, of(&new), "new CN=new"),
        (&in_progress, both, "new CN=new"),
        (
            &in_progress,
            of(&third),
            "is in progress since 2026-11-21T15:00:00Z",
        ),
        (
            &settled,
            vec![certificate(&new), certificate(&third)],
            "several new CA certificates",
        ),
        (&settled, of(&expired), "expired at"),
        (&settled, of(&early), "is not valid before"),
        (&settled, vec![leaf_only], "is not a CA certificate"),
        (&settled, vec![], "no self-signed CA certificate"),
    ] {
        let result = admit(evidence, &offered);
        assert!(result.contains(expected), "{result}, expected {expected}");
    }
}

#[test]
fn rejects_intermediate_and_cross_certificate_by_name() {
    let old = authority("old");
    let params = |name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
    };
    let old_key = rcgen::KeyPair::generate().unwrap();
    let root = rcgen::CertifiedIssuer::self_signed(params("root"), old_key).unwrap();
    let cross_key = rcgen::KeyPair::generate().unwrap();
    let cross = params("new").signed_by(&cross_key, &root).unwrap();
    let cross = Certificate::from_der(cross.der()).unwrap();
    let mut node = evidence(&[&old], &old);
    let why = node.admit(std::slice::from_ref(&cross), NOW).unwrap_err();
    assert!(why.contains("no self-signed CA certificate"), "{why}");
    node.bundle = vec![Certificate::from_der(root.der()).unwrap()];
    let why = node.admit(&[cross], NOW).unwrap_err();
    assert!(
        why.contains("is an intermediate or cross certificate"),
        "{why}"
    );
}

#[test]
fn takes_over_change_that_other_software_began() {
    let (old, new, extra) = (authority("old"), authority("new"), authority("extra"));
    let taken_over = |bundle: &[&CertificateAuthority]| {
        let mut node = evidence(bundle, &old);
        node.change = node.staged(&certificate(&new), NOW)?.change;
        Ok::<_, String>(node.phase())
    };
    assert_eq!(taken_over(&[&old, &new]), Ok(ChangePhase::Staged));
    assert_eq!(taken_over(&[&new, &old]), Ok(ChangePhase::Activated));
    let why = taken_over(&[&new, &old, &extra]).unwrap_err();
    assert!(why.contains("the CA to be replaced is ambiguous"), "{why}");
}

#[test]
fn requires_separate_signing_certificate_of_kube_controller_manager() {
    let (old, new) = (authority("old"), authority("new"));
    let mut node = evidence(&[&new, &old], &new);
    node.change = recorded(&old, &new);
    let mut signing = SigningFlag {
        flag: "cluster-signing-cert-file",
        value: "/pki/ca.crt".to_owned(),
        file: "/etc/kubernetes/pki/ca.crt".into(),
        is_bundle: true,
        manifest: "/etc/kubernetes/manifests/kcm.yaml".into(),
        certificates: vec![certificate(&old)],
    };
    node.signing = vec![signing];
    let trouble = node.signing_trouble();
    assert!(trouble[0].contains(
        "openssl x509 -in /etc/kubernetes/pki/ca.crt -out /etc/kubernetes/pki/ca-signing.crt && sed 's#--cluster-signing-cert-file=/pki/ca.crt$#--cluster-signing-cert-file=/pki/ca-signing.crt#'"
    ));
    assert!(node.unstaged().contains(&trouble[0]));
    signing = node.signing.remove(0);
    signing.is_bundle = false;
    signing.file = "/etc/kubernetes/pki/ca-signing.crt".into();
    node.signing = vec![signing];
    assert_eq!(node.unstaged(), Vec::<String>::new());
    let why = node.unactivated(NOW);
    assert!(
        why[0].contains("still signs kubelets' certificates with the old CA"),
        "{why:?}"
    );
    node.signing[0].certificates = vec![certificate(&new)];
    assert_eq!(node.unactivated(NOW), Vec::<String>::new());
}

#[test]
fn names_old_ca_in_files_of_others_before_its_retirement() {
    let (old, new) = (authority("old"), authority("new"));
    let mut node = evidence(&[&new, &old], &new);
    node.change = recorded(&old, &new);
    let dropped = node.retired().unwrap().dropped;
    assert_eq!(node.retained(&dropped), Vec::<String>::new());
    node.kubeconfigs.push(TrustingFile {
        file: "kube-apiserver (--client-ca-file)".to_owned(),
        certificates: Ok(node.bundle.clone()),
        elsewhere: Some("clients.crt".to_owned()),
    });
    assert_eq!(node.unactivated(NOW), Vec::<String>::new());
    let sentence = format!(
        "kube-apiserver (--client-ca-file) reads its CA from clients.crt, which contains {} (remove it there)",
        named(&certificate(&old))
    );
    assert_eq!(node.retained(&dropped), [sentence]);
    node.kubeconfigs[1].certificates = Ok(vec![certificate(&new)]);
    assert_eq!(node.retained(&dropped), Vec::<String>::new());
}

#[test]
fn requires_report_or_statement_for_peers() {
    let (old, new) = (authority("old"), authority("new"));
    let comes = certificate(&new);
    let report = |node: &str, evidence: &Evidence| NodeReport {
        node: node.to_owned(),
        cluster: Some("prod".to_owned()),
        at: NOW,
        authorities: vec![AuthorityReport::of(evidence, NOW)],
    };
    let mut settled = evidence(&[&old], &old);
    let mut staged = evidence(&[&old, &new], &old);
    staged.change = recorded(&old, &new);
    let mut activated = evidence(&[&new, &old], &new);
    activated.change = recorded(&old, &new);
    let retired = evidence(&[&new], &new);
    let mut waiting = evidence(&[&old, &new], &old);
    waiting.change = recorded(&old, &new);
    waiting.restarts = vec!["etcd is to be restarted".to_owned()];
    settled.restarts.clear();
    let nodes = || Nodes::Listed(["cp1", "cp2"].map(str::to_owned).into());
    let prove_with = |evidence: &Evidence, need: PeerRequirement<'_>| {
        let peers = Peers {
            reports: vec![("cp2.json".to_owned(), report("cp2", evidence))],
            stated: false,
        };
        // Reports are exchanged as JSON files.
        let text = serde_json::to_string(&peers.reports[0].1).unwrap();
        let peers = Peers {
            reports: vec![("cp2.json".to_owned(), serde_json::from_str(&text).unwrap())],
            stated: false,
        };
        let proven = peers.prove(("cp1", "prod"), Authority::Ca, need, &nodes(), NOW);
        match proven {
            Ok(_) => "yes".to_owned(),
            Err(why) => why.join("\n"),
        }
    };
    for (evidence, trusts, uses, does_without) in [
        (
            &settled,
            "not all files there trust CN=new",
            "apiserver is not under CN=new",
            "yes",
        ),
        (&staged, "yes", "apiserver is not under CN=new", "yes"),
        (
            &waiting,
            "restarts are due there: etcd",
            "apiserver is not",
            "yes",
        ),
        (&activated, "yes", "yes", "apiserver is under CN=new"),
        (&retired, "yes", "yes", "apiserver is under CN=new"),
    ] {
        for (need, expected) in [
            (PeerRequirement::Trusts(&comes), trusts),
            (PeerRequirement::Uses(&comes), uses),
            (PeerRequirement::DoesWithout(&comes), does_without),
        ] {
            let result = prove_with(evidence, need);
            assert!(
                result.contains(expected),
                "{need:?}: {result}, expected {expected}"
            );
        }
    }

    let prove = |peers: &Peers, nodes: &Nodes| {
        peers.prove(
            ("cp1", "prod"),
            Authority::Ca,
            PeerRequirement::Trusts(&comes),
            nodes,
            NOW,
        )
    };
    let none = Peers::default();
    let why = prove(&none, &nodes()).unwrap_err().join("\n");
    assert!(why.contains("the progress of cp2 is unknown"), "{why}");
    assert!(why.contains("--all-nodes-staged"), "{why}");
    let alone = Nodes::Listed(["cp1".to_owned()].into());
    assert_eq!(prove(&none, &alone), Ok(Vec::new()));
    let unknown = Nodes::Unknown("no answer".to_owned());
    let why = prove(&none, &unknown).unwrap_err().join("\n");
    assert!(
        why.contains("the other nodes are unknown: no answer"),
        "{why}"
    );
    let stated = Peers {
        stated: true,
        ..Peers::default()
    };
    assert!(prove(&stated, &unknown).is_ok());
    // A statement does not override a report.
    let stated = Peers {
        reports: vec![("cp2.json".to_owned(), report("cp2", &settled))],
        stated: true,
    };
    assert!(prove(&stated, &unknown).is_err());
    let mut old = report("cp2", &staged);
    old.at = NOW - time::Duration::hours(25);
    let peers = Peers {
        reports: vec![("cp2.json".to_owned(), old)],
        stated: true,
    };
    let why = prove(&peers, &nodes()).unwrap_err().join("\n");
    assert!(why.contains("cp2.json is too old"), "{why}");
    let mut foreign = report("cp2", &staged);
    foreign.cluster = Some("other".to_owned());
    let peers = Peers {
        reports: vec![("cp2.json".to_owned(), foreign)],
        stated: false,
    };
    let why = prove(&peers, &nodes()).unwrap_err().join("\n");
    assert!(why.contains("of cluster \"other\""), "{why}");
}

#[test]
fn rejects_report_without_cluster_name() {
    let (old, new) = (authority("old"), authority("new"));
    let mut staged = evidence(&[&old, &new], &old);
    staged.change = recorded(&old, &new);
    let report = NodeReport {
        node: "w1".to_owned(),
        cluster: None,
        at: NOW,
        authorities: vec![AuthorityReport::of(&staged, NOW)],
    };
    let text = serde_json::to_string(&report).unwrap();
    assert!(!text.contains("cluster\":"), "{text}");
    let peers = Peers {
        reports: vec![("w1.json".to_owned(), serde_json::from_str(&text).unwrap())],
        stated: false,
    };
    let nodes = Nodes::Listed(["cp1", "w1"].map(str::to_owned).into());
    let need = PeerRequirement::Trusts(&certificate(&new));
    let why = peers.prove(("cp1", "prod"), Authority::Ca, need, &nodes, NOW);
    let why = why.unwrap_err().join("\n");
    assert!(
        why.contains("w1.json does not name the cluster of w1"),
        "{why}"
    );
    assert!(
        why.contains("kubeadm-config") && why.contains("nodepki renew"),
        "{why}"
    );
}

/// A node may have joined in any phase, with either CA.
#[test]
fn rotation_takes_each_part_from_whatever_the_node_trusts() {
    let (old, new, extra) = (authority("old"), authority("new"), authority("extra"));
    let both = [certificate(&old), certificate(&new)];
    let [was, comes] = &both;
    let target = |bundle: &[&CertificateAuthority], part| {
        let found = evidence(bundle, bundle[0]).rotated((was, comes), part, NOW);
        let activated = found.change.as_ref().map(|change| {
            assert_eq!(change.old, [fingerprint(was)]);
            assert_eq!(change.new, fingerprint(comes));
            change.activated.is_some()
        });
        let names: Vec<_> = found
            .bundle
            .iter()
            .map(|one| one.subject().to_string())
            .collect();
        (names.join(" "), activated)
    };
    let names = |list: &[&str]| {
        let names: Vec<_> = list.iter().map(|name| format!("CN={name}")).collect();
        names.join(" ")
    };
    use TrustPart::{Add, Lead, Remove};
    for (bundle, part, expected, activated) in [
        (&[&old][..], Add(comes), &["old", "new"][..], Some(false)),
        (
            &[&old, &extra],
            Add(comes),
            &["old", "extra", "new"],
            Some(false),
        ),
        (&[&new], Add(was), &["new", "old"], Some(true)),
        (&[&old, &new], Add(comes), &["old", "new"], Some(false)),
        (&[&old, &new], Lead(comes), &["new", "old"], Some(true)),
        (&[&new, &old], Lead(was), &["old", "new"], Some(false)),
        (&[&new, &old, &extra], Remove(was), &["new", "extra"], None),
        (&[&old, &new], Remove(comes), &["old"], None),
        (&[&new], Remove(was), &["new"], None),
    ] {
        assert_eq!(
            target(bundle, part),
            (names(expected), activated),
            "{part:?}"
        );
    }
    // The record of the same change is kept, with its times; that of another one is replaced.
    let mut node = evidence(&[&old, &new], &old);
    let staged = NOW - Duration::from_secs(60);
    node.change = recorded(&old, &new).map(|change| AuthorityChange { staged, ..change });
    let kept = node.rotated((was, comes), Lead(comes), NOW).change.unwrap();
    assert_eq!((kept.staged, kept.activated), (staged, Some(NOW)));
    node.change = recorded(&old, &extra);
    let replaced = node.rotated((was, comes), Add(comes), NOW).change.unwrap();
    assert_eq!(replaced.new, fingerprint(comes));
}
