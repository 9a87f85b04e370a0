use rcgen::{
    CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, DnValue, Issuer,
    KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
};
use time::macros::datetime;

use super::{
    AuthorityCrls, Duration, MAX_CLOCK_LEAD, OffsetDateTime, PEM_BEGIN, RevocationList,
    TrustBundle, encode_pem,
};
use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

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
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        // kubeadm's CA certificates lack cRLSign, which rcgen requires.
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name = DistinguishedName::new();
        let name = self.trust.first().subject().to_string();
        let name = name.strip_prefix("CN=").unwrap();
        issuer.distinguished_name.push(
            DnType::CommonName,
            DnValue::PrintableString(name.try_into().unwrap()),
        );
        let made = params
            .signed_by(&Issuer::from_params(&issuer, &self.key))
            .unwrap();
        RevocationList::from_der(made.der()).unwrap()
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
    assert_eq!(
        RevocationList::read_all(list.der()).unwrap(),
        [list.clone()]
    );
    let text = list.to_pem().repeat(2);
    assert_eq!(RevocationList::read_all(text.as_bytes()).unwrap().len(), 2);
    assert!(root.list(NOW, &[]).is_empty());
    let lists = root.verified(vec![list.clone()]).unwrap();
    assert_eq!(lists.lists(), [list.clone()]);
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
