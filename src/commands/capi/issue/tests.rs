use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::spec::authority_rotation::{AuthorityRotation, RotatedCa, RotationPhase};
use crate::text::hex;
use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn new_ca(name: &str) -> TrustBundle {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let made = CertificateAuthority::self_signed(name, key, NOW, YEAR);
    made.unwrap().bundle().clone()
}

/// Returns a certificate for the same key as `authority`, with another lifetime.
fn renewed(key: &PrivateKey, name: &str) -> TrustBundle {
    let key = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
    let made = CertificateAuthority::self_signed(name, key, NOW, YEAR * 2);
    made.unwrap().bundle().clone()
}

/// Returns a CA, and another one that it has signed.
fn signed_ca() -> (TrustBundle, TrustBundle) {
    let parameters = || {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters
    };
    let [key, other] = [(); 2].map(|()| rcgen::KeyPair::generate().unwrap());
    let root = rcgen::CertifiedIssuer::self_signed(parameters(), key).unwrap();
    let below = parameters().signed_by(&other, &root).unwrap();
    let read = |der: &[u8]| TrustBundle::from_response(der).unwrap();
    (read(root.der()), read(below.der()))
}

fn both(one: &TrustBundle, other: &TrustBundle) -> TrustBundle {
    let certificates = [one.certificates(), other.certificates()].concat();
    TrustBundle::from_certificates(certificates).unwrap()
}

fn order() -> Order {
    Order {
        target: ClusterTarget::new("prod", "default").unwrap(),
        endpoint: None,
        external_etcd: false,
        ca_dir: None,
        rotated: BTreeMap::new(),
        state: None,
    }
}

fn rotation(old: &TrustBundle, new: &TrustBundle, phase: RotationPhase) -> RotatedBundle {
    let rotated = |bundle: &TrustBundle| RotatedCa {
        sha256: hex(&bundle.first().fingerprint()),
        certificate: bundle.to_pem(),
    };
    let rotation =
        AuthorityRotation::new("1", Authority::Ca, [old, new].map(rotated)).in_phase(phase);
    RotatedBundle::of(&rotation).unwrap()
}

/// A later change on each node replaces the CA of a rotation that has ended.
#[test]
fn prefers_rotation_that_has_ended_only_to_its_own_cas() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let [one, two, three] = ["one", "two", "three"].map(new_ca);
    let (later, activated) = (both(&two, &three), both(&two, &one));
    let done = RotationPhase::Done;
    let cases = [
        (
            RotationPhase::Trust,
            Some(&later),
            Some(&later),
            Some(both(&one, &two)),
        ),
        (done, Some(&one), Some(&one), Some(two.clone())),
        (done, Some(&activated), None, Some(two.clone())),
        (done, None, Some(&one), Some(two.clone())),
        (done, None, None, Some(two.clone())),
        (done, Some(&later), Some(&two), Some(later.clone())),
        (done, Some(&two), Some(&later), Some(two.clone())),
        (done, None, Some(&later), None),
        (
            RotationPhase::Undone,
            Some(&two),
            Some(&two),
            Some(one.clone()),
        ),
    ];
    for (phase, file, present, expected) in cases {
        let path = dir.path().join("ca.crt");
        let mut settings = Settings::default();
        if let Some(file) = file {
            std::fs::write(&path, file.to_pem()).unwrap();
            let trust = settings.authorities.get_mut(&Authority::Ca).unwrap();
            trust.trust_file = Some("/ca.crt".into());
        }
        let mut order = order();
        let rotated = rotation(&one, &two, phase);
        order.rotated.insert(Authority::Ca, rotated);
        let given = given_bundles(&root, &settings, &order, |_| Ok(present.cloned())).unwrap();
        let given = given.get(&Authority::Ca).map(|given| given.bundle.clone());
        assert_eq!(given, expected, "{phase}, {file:?}, {present:?}");
    }
}

#[test]
fn follows_steps_of_ca_change_and_renewed_certificate() {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let copy = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
    let made = CertificateAuthority::self_signed("one", copy, NOW, YEAR);
    let one = made.unwrap().bundle().clone();
    let (two, renewed) = (new_ca("two"), renewed(&key, "one"));
    assert_ne!(renewed, one);
    let (root, below) = signed_ca();
    assert!(root.accepts(&below));
    for (present, given, expected) in [
        (&one, &one, CaChange::None),
        (&one, &both(&one, &two), CaChange::Followed),
        (&both(&two, &one), &two, CaChange::Followed),
        (&one, &renewed, CaChange::Followed),
        (
            &both(&two, &one),
            &both(&renewed, &new_ca("three")),
            CaChange::Followed,
        ),
        (&one, &two, CaChange::Refused),
        (&root, &below, CaChange::Refused),
    ] {
        assert_eq!(CaChange::between(present, given), expected, "{given}");
    }
}

#[test]
fn reads_ca_certificates_in_the_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let order = order();
    let plan = plan();
    let read = || present_bundle(&root, &order, &plan, Authority::Ca).unwrap();
    assert_eq!(read(), None);
    let ca = new_ca("one");
    let state = state(&root, &order).unwrap();
    let pki = state.create_dir("/etc/kubernetes/pki", 0o755).unwrap();
    pki.write_atomic("ca.crt", ca.to_pem().as_bytes(), 0o644)
        .unwrap();
    assert_eq!(read(), Some(ca));
}

fn plan() -> NodeSpec {
    let identity = NodeIdentity {
        node: "prod".to_owned(),
        cluster: "prod".to_owned(),
    };
    let policy = KeyPolicy::new(Default::default(), KeyAlgorithm::Rsa2048);
    let choices = load::choices(&Settings::default());
    table(&ClusterConfig::default(), &identity, &policy, &choices).unwrap()
}
