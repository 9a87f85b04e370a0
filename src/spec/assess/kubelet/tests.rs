use std::path::Path;

use std::time::Duration;

use time::macros::datetime;
use zeroize::Zeroizing;

use super::*;
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::kube::names::NodePath;
use crate::spec::assess::{joined, read_kubeconfig};
use crate::x509::{CertificateAuthority, ExtendedUsage, KeyAlgorithm, Profile, Subject};

const NOW: OffsetDateTime = datetime!(2026-03-04 05:06:07 UTC);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DATED: &str = "kubelet-client-2026-03-01-00-00-00.pem";
const LINK: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

struct TestIssuer {
    authority: CertificateAuthority,
}

impl TestIssuer {
    fn new() -> TestIssuer {
        let authority = CertificateAuthority::self_signed(
            "kubernetes",
            PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap(),
            NOW - DAY * 30,
            DAY * 100,
        )
        .unwrap();
        TestIssuer { authority }
    }

    /// Returns certificate and key of a pair that was issued `days_ago`, for ten days.
    fn pair(&self, days_ago: u32) -> (String, String) {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile = Profile::of_tests(
            Subject::new("system:node:cp1", &["system:nodes"]),
            &[ExtendedUsage::ClientAuth],
            DAY * 10,
        );
        let at = NOW - DAY * days_ago;
        let leaf = self
            .authority
            .issue(key.public_key(), &profile, at)
            .unwrap();
        (leaf.to_pem(), key.to_pem().to_string())
    }
}

/// Returns what the reader returns for a kubelet.conf that contains this pair; without one, for an absent file.
fn conf(pair: Option<&(String, String)>) -> ObservedCert {
    let text = pair.map(|(certificate, key)| {
        let credentials = Credentials {
            server: "https://192.0.2.11:6443",
            authority: "CA",
            certificate,
            key,
        };
        Kubeconfig::new("kubernetes", "me", &credentials).to_yaml()
    });
    let text = text.as_deref().map(|text| text.as_bytes());
    read_kubeconfig(Path::new("/etc/kubernetes/kubelet.conf"), text).unwrap()
}

/// Returns what the reader returns for a kubelet.conf that names files with this content.
fn by_file(certificate: &str, key: &str, pem: Option<&(String, String)>) -> ObservedCert {
    let mut named = Kubeconfig::without_credentials("kubernetes", "me");
    named.set_client_files(certificate, key).unwrap();
    let path = Path::new("/etc/kubernetes/kubelet.conf");
    let named = read_kubeconfig(path, Some(named.to_yaml().as_bytes())).unwrap();
    ObservedCert {
        kubeconfig: named.kubeconfig,
        ..conf(pem)
    }
}

fn on_disk(current: KubeletLink, pair: Option<&(String, String)>) -> KubeletStoreContent {
    let pem = |(certificate, key): &(String, String)| format!("{certificate}{key}").into_bytes();
    KubeletStoreContent {
        current,
        pem: pair.map(pem).map(Zeroizing::new),
        exposed: None,
    }
}

fn link(target: &str) -> KubeletLink {
    KubeletLink::Link(target.into())
}

fn leaf_of(found: &ObservedCert) -> Option<String> {
    Some(found.chain.present()?.leaf().to_pem())
}

#[test]
fn returns_certificate_that_kubelet_uses() {
    let issuer = TestIssuer::new();
    let (old, fresh, expired) = (issuer.pair(5), issuer.pair(1), issuer.pair(20));
    let weighed = |layout, found: ObservedCert, disk: KubeletStoreContent| {
        let store = KubeletStoreSpec {
            dir: "/var/lib/kubelet/pki".into(),
            layout,
        };
        certificate_used_by_kubelet(found, &store, disk, NOW)
    };
    use KubeletLayout::{Auto, File};

    // Only kubelet.conf exists: kubeadm's layout, unless the configuration selects the file.
    let found = weighed(
        Auto,
        conf(Some(&fresh)),
        on_disk(KubeletLink::Nothing, None),
    );
    assert!(found.store.is_none());
    let found = weighed(Auto, conf(None), on_disk(KubeletLink::Nothing, None));
    assert!(found.store.is_none());
    let found = weighed(
        File,
        conf(Some(&fresh)),
        on_disk(KubeletLink::Nothing, None),
    );
    assert_eq!(leaf_of(&found).as_ref(), Some(&fresh.0));
    let store = found.store.unwrap();
    assert_eq!(
        joined(&store.faults),
        format!("kubelet.conf contains the certificate, but must name {LINK}")
    );
    assert!(!store.in_place && store.superseded.is_none());

    for layout in [Auto, File] {
        // No fault.
        let disk = || on_disk(link(DATED), Some(&fresh));
        let found = weighed(layout, by_file(LINK, LINK, Some(&fresh)), disk());
        let store = found.store.as_ref().unwrap();
        assert_eq!(store.faults, []);
        assert!(store.in_place);
        assert_eq!(leaf_of(&found).as_ref(), Some(&fresh.0));
        assert_eq!(
            store.target().unwrap(),
            NodePath::from("/var/lib/kubelet/pki").join(DATED)
        );

        // kubeadm init before kubelet-finalize, and every join: the kubelet has rotated, kubelet.conf is old.
        let found = weighed(layout, conf(Some(&old)), disk());
        assert_eq!(leaf_of(&found).as_ref(), Some(&fresh.0));
        let store = found.store.unwrap();
        assert_eq!(
            joined(&store.faults),
            format!("kubelet.conf contains a certificate, while the kubelet uses {LINK}")
        );
        assert_eq!(store.superseded.unwrap().0.leaf().to_pem(), old.0);
        // The same certificate in both places is not superseded.
        let found = weighed(layout, conf(Some(&fresh)), disk());
        assert!(found.store.unwrap().superseded.is_none());

        // kubelet.conf names a certificate that the kubelet does not use.
        let found = weighed(layout, by_file("/k.pem", "/k.pem", Some(&old)), disk());
        assert_eq!(
            joined(&found.store.unwrap().faults),
            format!("kubelet.conf names /k.pem, while the kubelet uses {LINK}")
        );

        // kubelet.conf is lost.
        let found = weighed(layout, conf(None), disk());
        assert_eq!(leaf_of(&found).as_ref(), Some(&fresh.0));
        assert_eq!(
            joined(&found.store.unwrap().faults),
            "kubelet.conf is absent"
        );

        // Pairs that the kubelet does not use.
        for pair in [Some(&expired), None] {
            let found = weighed(layout, conf(Some(&fresh)), on_disk(link("gone.pem"), pair));
            assert_eq!(leaf_of(&found).as_ref(), Some(&fresh.0));
            assert!(!found.store.unwrap().in_place);
        }
        let torn = (expired.0.clone(), fresh.1.clone());
        let found = weighed(
            layout,
            conf(Some(&fresh)),
            on_disk(link(DATED), Some(&torn)),
        );
        assert_eq!(leaf_of(&found).as_ref(), Some(&fresh.0));

        // A dangling link is an absent certificate, and the reason names the link.
        let found = weighed(
            layout,
            by_file(LINK, LINK, None),
            on_disk(link("gone.pem"), None),
        );
        assert!(matches!(found.chain, Observed::Absent));
        assert_eq!(
            found.store.unwrap().absence().to_string(),
            format!("{LINK} leads nowhere")
        );

        // A regular file at the path of the link.
        let found = weighed(
            layout,
            by_file(LINK, LINK, Some(&fresh)),
            on_disk(KubeletLink::File, Some(&fresh)),
        );
        let store = found.store.unwrap();
        assert_eq!(
            joined(&store.faults),
            format!(
                "{LINK} is not a link to a file in its directory, so the kubelet cannot replace its certificate"
            )
        );
        assert!(!store.in_place);
    }

    // Files elsewhere are kept while they are usable and the kubelet's store is empty.
    let found = weighed(
        Auto,
        by_file("/etc/k/kubelet.pem", "/etc/k/kubelet.pem", Some(&fresh)),
        on_disk(KubeletLink::Nothing, None),
    );
    let store = found.store.unwrap();
    assert_eq!(store.faults, []);
    assert!(!store.in_place);

    // Another directory, set with --cert-dir.
    let elsewhere = "/data/pki/kubelet-client-current.pem";
    let found = weighed(
        Auto,
        by_file(elsewhere, elsewhere, Some(&fresh)),
        on_disk(link(DATED), Some(&fresh)),
    );
    assert_eq!(found.store.unwrap().link(), NodePath::from(elsewhere));
}

#[test]
fn uses_store_if_named_usable_or_only_one() {
    let issuer = TestIssuer::new();
    let (fresh, expired) = (issuer.pair(1), issuer.pair(20));
    let torn = (expired.0.clone(), fresh.1.clone());
    for (case, found, disk, expected) in [
        (
            "named by kubelet.conf",
            by_file(LINK, LINK, None),
            on_disk(KubeletLink::Nothing, None),
            true,
        ),
        (
            "usable",
            conf(Some(&fresh)),
            on_disk(link(DATED), Some(&fresh)),
            true,
        ),
        (
            "expired",
            conf(Some(&fresh)),
            on_disk(link(DATED), Some(&expired)),
            false,
        ),
        (
            "certificate and key differ",
            conf(Some(&fresh)),
            on_disk(link(DATED), Some(&torn)),
            false,
        ),
        (
            "expired, without another one",
            conf(None),
            on_disk(link(DATED), Some(&expired)),
            true,
        ),
        (
            "neither",
            conf(None),
            on_disk(KubeletLink::Nothing, None),
            false,
        ),
    ] {
        let stored = StoredPair::read(&disk);
        assert_eq!(uses_store(&found, &disk, &stored, NOW), expected, "{case}");
    }
}

#[test]
fn pair_in_store_is_usable_until_it_expires() {
    let issuer = TestIssuer::new();
    let stored = StoredPair::read(&on_disk(link(DATED), Some(&issuer.pair(1))));
    let end = stored.chain.present().unwrap().leaf().not_after();
    assert!(stored.is_usable(end - time::Duration::SECOND));
    assert!(!stored.is_usable(end));
}

#[test]
fn store_is_known_by_name_of_its_link_for_both_files() {
    let other = "/var/lib/kubelet/pki/kubelet.pem";
    for (certificate, key, expected) in [
        (LINK, LINK, true),
        (other, other, false),
        (LINK, other, false),
        (other, LINK, false),
    ] {
        let found = by_file(certificate, key, None);
        let store = expected.then(|| NodePath::from("/var/lib/kubelet/pki"));
        assert_eq!(named_store(&found), store, "{certificate} {key}");
    }
}

#[test]
fn renews_certificate_of_kubelet_only_after_its_own_deadline() {
    let configured = Rotation {
        rekey: false,
        min_remaining: DAY,
        ..Rotation::default()
    };
    let expected = Rotation {
        renew_at: RenewAt::Share(Percent::new(95).unwrap()),
        jitter: Percent::ZERO,
        ..configured.clone()
    };
    assert_eq!(rotation_after_kubelet(&configured), expected);
}
