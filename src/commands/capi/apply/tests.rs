use std::time::Duration;

use serde_json::json;
use time::macros::datetime;
use zeroize::Zeroizing;

use super::*;
use crate::commands::capi::etcd_clients;
use crate::commands::capi::secrets::{ADOPTED_TYPE, KEY_PLACEHOLDER};
use crate::spec::policy::{KeyPolicy, KeyRules};
use crate::store::NodeRoot;
use crate::x509::{CertificateAuthority, KeyAlgorithm};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

struct TestCa {
    pem: String,
    key: String,
}

impl TestCa {
    fn new(name: &str) -> Self {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let key_pem = key.to_pem().to_string();
        let life = Duration::from_secs(86_400);
        let made = CertificateAuthority::self_signed(name, key, NOW, life).unwrap();
        TestCa {
            pem: made.bundle().to_pem(),
            key: key_pem,
        }
    }
}

fn bundle(pem: &str) -> TrustBundle {
    TrustBundle::from_pem(pem.as_bytes()).unwrap()
}

fn desired(purpose: Purpose, pem: &str) -> SecretSpec {
    SecretSpec {
        purpose,
        target: ClusterTarget::new("prod", "default").unwrap(),
        kind: ADOPTED_TYPE,
        data: [("tls.crt", Zeroizing::new(pem.as_bytes().to_vec()))].into(),
    }
}

/// A Secret that KubeadmControlPlane created.
fn adopted(purpose: Purpose, entries: &[(&str, &str)]) -> Object {
    let encoded = |(entry, text): &(&str, &str)| ((*entry).to_owned(), json!(BASE64.encode(text)));
    let data: Map<String, Value> = entries.iter().map(encoded).collect();
    let owner = json!({"kind": "KubeadmControlPlane", "name": "prod", "controller": true});
    let secret = desired(purpose, "");
    Object(json!({
        "metadata": {
            "name": secret.name(),
            "labels": {CLUSTER_LABEL: "prod"},
            "ownerReferences": [owner],
        },
        "type": ADOPTED_TYPE,
        "data": data,
    }))
}

/// After `capi migrate to-external`, the Secrets of the CAs belong to KubeadmControlPlane and have no label of nodepki.
#[test]
fn follows_ca_change_in_migrated_secret() {
    let (old, new) = (TestCa::new("old"), TestCa::new("new"));
    let staged = format!("{}{}", old.pem, new.pem);
    let placeholder = std::str::from_utf8(KEY_PLACEHOLDER).unwrap();
    let decided = |purpose, entries: &[(&str, &str)], wanted: &str| {
        let (secret, found) = (desired(purpose, wanted), adopted(purpose, entries));
        match decide(&secret, Some(found), Some(&bundle(wanted)), false, NOW) {
            Ok(SecretChange::Update { object, .. }) => Ok(object),
            Ok(_) => panic!("the change is not written"),
            Err(refusal) => Err(refusal.why),
        }
    };
    let certificate = ("tls.crt", old.pem.as_str());
    for entries in [&[certificate][..], &[certificate, ("tls.key", placeholder)]] {
        let object = decided(Purpose::Ca, entries, &staged).unwrap();
        assert_eq!(
            object.data("tls.crt").unwrap().as_slice(),
            staged.as_bytes()
        );
        assert_eq!(object.label(MANAGED_BY_LABEL), Some(MANAGED_BY_NODEPKI));
    }
    let owned = "it is owned by KubeadmControlPlane/prod";
    let refused = |purpose, entries: &[(&str, &str)], wanted| {
        decided(purpose, entries, wanted).err().unwrap()
    };
    // KubeadmControlPlane signs with a key.
    let with_key = [certificate, ("tls.key", old.key.as_str())];
    assert_eq!(refused(Purpose::Ca, &with_key, &staged), owned);
    // It renews the kubeconfig.
    assert_eq!(refused(Purpose::Kubeconfig, &[], &staged), owned);
    let other = refused(Purpose::Ca, &[certificate], &new.pem);
    assert!(other.starts_with("it contains another CA"), "{other}");
}

#[test]
fn adds_etcd_client_authority_to_migrated_secret() {
    let etcd = TestCa::new("etcd-ca");
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let policy = KeyPolicy::new(KeyRules::default(), KeyAlgorithm::Rsa2048);
    let clients = etcd_clients::load(&root, true, &policy, NOW)
        .unwrap()
        .unwrap();
    let mut secrets = [desired(Purpose::Etcd, &etcd.pem)];
    clients.add_to(&mut secrets);
    let [secret] = secrets;
    let found = adopted(Purpose::Etcd, &[("tls.crt", &etcd.pem)]);
    let decided = decide(&secret, Some(found), Some(&bundle(&etcd.pem)), false, NOW);
    assert!(matches!(decided, Ok(SecretChange::Update { .. })));
}
