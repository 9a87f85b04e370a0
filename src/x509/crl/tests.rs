use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, DistinguishedName, DnType, DnValue, IsCa, Issuer, KeyIdMethod,
    RevocationReason, RevokedCertParams, SerialNumber,
};
use time::macros::datetime;

use super::{
    AuthorityCrls, Chain, Duration, MAX_CLOCK_LEAD, OffsetDateTime, PEM_BEGIN, RevocationList,
    TrustBundle, encode_pem,
};
use crate::x509::{CertificateAuthority, KeyAlgorithm, ListScope, PrivateKey};

fn refused(bytes: &[u8]) -> String {
    RevocationList::read_all(bytes).unwrap_err().to_string()
}

#[test]
fn distinguishes_damaged_lists_from_other_content() {
    let absent = "it does not contain a revocation list (neither PEM nor DER)";
    assert_eq!(refused(b""), absent);
    assert_eq!(
        refused(encode_pem("CERTIFICATE", &[0x30, 0]).as_bytes()),
        absent
    );
    let damaged = encode_pem("X509 CRL", &[0x30, 0]);
    for bytes in [damaged.as_bytes(), &[0x30, 0], &[0x30, 1]] {
        let error = refused(bytes);
        assert!(
            error.starts_with("a revocation list in it is damaged: "),
            "{error}"
        );
    }
    assert_eq!(
        refused(PEM_BEGIN),
        "a revocation list in it is damaged: it is truncated"
    );
}

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);
const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);

/// An authority whose lists the test signs.
struct Root {
    trust: TrustBundle,
    key: PrivateKey,
}

impl Root {
    fn new(name: &str) -> Root {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let own = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
        let root = CertificateAuthority::self_signed(name, key, NOW - YEAR, 10 * YEAR).unwrap();
        Root {
            trust: root.bundle().clone(),
            key: own,
        }
    }

    /// Returns a list that is issued at this time, is due to be replaced an hour later, and revokes these serial numbers.
    fn list(&self, issued: OffsetDateTime, serials: &[u64]) -> RevocationList {
        self.part(issued, serials, None)
    }

    /// Returns a list for the certificates that name a distribution point.
    fn part(&self, issued: OffsetDateTime, serials: &[u64], point: Option<&str>) -> RevocationList {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: issued,
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: issued,
            next_update: issued + Duration::HOUR,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: point.map(|uri| CrlIssuingDistributionPoint {
                distribution_point: CrlDistributionPoint {
                    uris: vec![uri.to_owned()],
                },
                scope: None,
            }),
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let made = params
            .signed_by(&Issuer::from_params(&self.params(), &self.key))
            .unwrap();
        RevocationList::from_der(made.der()).unwrap()
    }

    /// Returns the issuer's name without its key usages: kubeadm's CA certificates lack cRLSign, which rcgen requires.
    fn params(&self) -> CertificateParams {
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name = DistinguishedName::new();
        let name = self.trust.first().subject().to_string();
        let name = name.strip_prefix("CN=").unwrap();
        issuer.distinguished_name.push(
            DnType::CommonName,
            DnValue::PrintableString(name.try_into().unwrap()),
        );
        issuer
    }

    /// Returns a leaf with the serial number 7, which names a distribution point.
    fn leaf(&self, point: Option<&str>) -> Chain {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, DnValue::Utf8String("leaf".to_owned()));
        params.serial_number = Some(SerialNumber::from(7));
        params.crl_distribution_points = point
            .into_iter()
            .map(|uri| CrlDistributionPoint {
                uris: vec![uri.to_owned()],
            })
            .collect();
        let issuer = self.params();
        let issuer = Issuer::from_params(&issuer, &self.key);
        let made = params.signed_by(key.public_key(), &issuer).unwrap();
        Chain::from_response(made.der(), key.public_key()).unwrap()
    }

    fn verified(&self, lists: Vec<RevocationList>) -> Result<AuthorityCrls, String> {
        AuthorityCrls::verified(lists, &self.trust, &[]).map_err(|error| error.to_string())
    }
}

#[test]
fn reads_and_verifies_list() {
    let root = Root::new("etcd-ca");
    let list = root.list(NOW, &[7, 0x80]);
    assert_eq!((list.len(), list.is_empty()), (2, false));
    assert_eq!(format!("{list:?}"), "RevocationList(CN=etcd-ca, 2 revoked)");
    assert_eq!(list.this_update(), NOW);
    assert_eq!(list.next_update(), Some(NOW + Duration::HOUR));
    let read = RevocationList::read_all(list.der()).unwrap();
    assert_eq!(read, std::slice::from_ref(&list));
    let text = list.to_pem().repeat(2);
    assert_eq!(RevocationList::read_all(text.as_bytes()).unwrap().len(), 2);
    assert!(root.list(NOW, &[]).is_empty());
    let lists = root.verified(vec![list.clone()]).unwrap();
    assert_eq!(lists.lists(), std::slice::from_ref(&list));
    assert_eq!(lists.first_der(), list.der());
    assert_eq!(lists.to_pem(), list.to_pem());
    assert_eq!(lists.next_update(), Some(NOW + Duration::HOUR));
}

#[test]
fn refuses_list_of_other_authority_or_signature() {
    let (root, other) = (Root::new("etcd-ca"), Root::new("ca"));
    let list = other.list(NOW, &[]);
    assert_eq!(
        root.verified(vec![list.clone()]).unwrap_err(),
        "the list of CN=ca was not issued by a certificate of the authority"
    );
    let same_name = Root::new("etcd-ca").list(NOW, &[]);
    assert_eq!(
        root.verified(vec![same_name]).unwrap_err(),
        "the list of CN=etcd-ca has an invalid signature"
    );
    // A list of another authority in the same file is ignored.
    let own = root.list(NOW, &[]);
    assert_eq!(
        root.verified(vec![list, own.clone()]).unwrap().lists(),
        [own]
    );
}

#[test]
fn refuses_list_that_is_older_early_or_late() {
    let root = Root::new("etcd-ca");
    let at = |issued| root.verified(vec![root.list(issued, &[])]).unwrap();
    let list = at(NOW);
    let reason = |in_place: Option<&AuthorityCrls>, now| {
        let reason = list.reason_not_to_install(in_place, now);
        reason.map_or_else(String::new, |error| error.to_string())
    };
    for now in [NOW - MAX_CLOCK_LEAD, NOW, NOW + Duration::HOUR] {
        assert_eq!(reason(None, now), "", "{now}");
        assert_eq!(reason(Some(&list), now), "", "{now}");
    }
    assert_eq!(
        reason(None, NOW - MAX_CLOCK_LEAD - Duration::SECOND),
        "the list of CN=etcd-ca is dated in the future: it was issued at 2026-06-01T12:00:00Z"
    );
    assert_eq!(
        reason(None, NOW + Duration::HOUR + Duration::SECOND),
        "the list of CN=etcd-ca is stale: a newer one was due at 2026-06-01T13:00:00Z"
    );
    let newer = at(NOW + Duration::SECOND);
    assert_eq!(
        reason(Some(&newer), NOW),
        "the list of CN=etcd-ca was issued at 2026-06-01T12:00:00Z, before the one in place (2026-06-01T12:00:01Z): the \
         server returned an old list"
    );
    let older = at(NOW - Duration::SECOND);
    assert_eq!(reason(Some(&older), NOW), "");
}

#[test]
fn finds_revoked_leaf_by_issuer_and_serial() {
    let (root, other) = (Root::new("etcd-ca"), Root::new("ca"));
    let leaf = root.leaf(None);
    let revoked_by = |lists: Vec<RevocationList>| root.verified(lists).unwrap().revokes(&leaf);
    let (what, since) = revoked_by(vec![root.list(NOW, &[6, 7])]).unwrap();
    assert_eq!((what.as_str(), since), ("CN=leaf (serial 07)", NOW));
    assert!(revoked_by(vec![root.list(NOW, &[6])]).is_none());
    // The serial number of another authority.
    let foreign = other.list(NOW, &[7]);
    assert!(foreign.revokes(leaf.leaf()).is_none());
    assert!(foreign.revokes(other.leaf(None).leaf()).is_some());
}

#[test]
fn part_of_a_list_covers_certificates_that_name_its_point() {
    let root = Root::new("etcd-ca");
    let (one, two) = ("http://ca/1.crl", "http://ca/2.crl");
    let gap = |part: Option<&str>, of_leaf: Option<&str>| {
        let lists = root.verified(vec![root.part(NOW, &[], part)]).unwrap();
        lists
            .gap(&root.leaf(of_leaf))
            .map(|error| error.to_string())
    };
    for (part, of_leaf) in [(None, None), (None, Some(two)), (Some(one), Some(one))] {
        assert_eq!(gap(part, of_leaf), None, "{part:?} {of_leaf:?}");
    }
    for of_leaf in [Some(two), None] {
        assert_eq!(
            gap(Some(one), of_leaf).unwrap(),
            "the list of CN=etcd-ca is one of several parts, and none of those given covers CN=leaf"
        );
    }
    // The only list of a publisher covers a certificate without a point, and no certificate with another one.
    let lists = root.verified(vec![root.part(NOW, &[], Some(one))]).unwrap();
    let gap = |of_leaf| lists.gap_in(ListScope::AllOfIssuer, &root.leaf(of_leaf));
    assert!(gap(None).is_none());
    assert!(gap(Some(two)).is_some());
    let lists = root.verified(vec![root.list(NOW, &[])]).unwrap();
    assert_eq!(
        lists.gap(&Root::new("ca").leaf(None)).unwrap().to_string(),
        "no list is from CN=ca, which issued CN=leaf"
    );
}

#[test]
fn accepts_lists_of_intermediates_only_if_they_are_cas() {
    let root = Root::new("etcd-ca");
    let leaf_key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    for (is_ca, accepted) in [
        (IsCa::Ca(BasicConstraints::Unconstrained), true),
        (IsCa::ExplicitNoCa, false),
    ] {
        let middle = Root::new("middle");
        let mut params = middle.params();
        params.is_ca = is_ca;
        let issuer = root.params();
        let issuer = Issuer::from_params(&issuer, &root.key);
        let made = params.signed_by(middle.key.public_key(), &issuer).unwrap();
        let certificate = encode_pem("CERTIFICATE", made.der());
        // A leaf of the intermediate.
        let issuer = middle.params();
        let issuer = Issuer::from_params(&issuer, &middle.key);
        let leaf = CertificateParams::default();
        let leaf = leaf.signed_by(leaf_key.public_key(), &issuer).unwrap();
        let text = encode_pem("CERTIFICATE", leaf.der()) + &certificate;
        let chain = Chain::from_response(text.as_bytes(), leaf_key.public_key()).unwrap();
        assert_eq!(chain.intermediates().len(), 1);
        let list = Root::new("middle").list(NOW, &[]);
        assert!(AuthorityCrls::verified(vec![list], &root.trust, &[&chain]).is_err());
        let list = middle.list(NOW, &[]);
        let verified = AuthorityCrls::verified(vec![list], &root.trust, &[&chain]);
        assert_eq!(verified.is_ok(), accepted, "{verified:?}");
    }
}
