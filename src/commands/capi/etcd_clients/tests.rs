use time::macros::datetime;

use super::*;
use crate::commands::capi::secrets::{ADOPTED_TYPE, ClusterTarget};
use crate::spec::policy::KeyRules;
use crate::yaml;

const START: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

struct StateDirectory {
    root: NodeRoot,
    _dir: tempfile::TempDir,
}

impl StateDirectory {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        StateDirectory { root, _dir: dir }
    }

    fn load(&self, policy: &KeyPolicy, now: OffsetDateTime) -> EtcdClientAuthority {
        load(&self.root, true, policy, now).unwrap().unwrap()
    }

    fn logged(&self) -> Vec<(String, String)> {
        let mut entries = Vec::new();
        let read = self.root.verify_audit(None, |entry, _| {
            assert_eq!(entry.text("certificate"), Some("etcd-client-ca"));
            let action = entry.text("action").unwrap_or_default().to_owned();
            entries.push((entry.event, action));
        });
        assert!(read.unwrap().differences.is_empty());
        entries
    }
}

fn policy(spec: &str) -> KeyPolicy {
    let text = format!("apiVersion: config.openshift.io/v1\nkind: PKI\nspec: {spec}");
    let nodes = yaml::parse("p", &text).unwrap();
    let (rules, _) = KeyRules::from_document(&nodes[0]).unwrap();
    KeyPolicy::new(rules, KeyAlgorithm::Rsa2048)
}

fn after(days: i64) -> OffsetDateTime {
    START + time::Duration::days(days)
}

/// CLUSTER-etcd with the authority: the certificates, and the key.
fn secret(authority: &EtcdClientAuthority) -> (TrustBundle, PrivateKey) {
    let etcd = CertificateAuthority::self_signed(
        "etcd-ca",
        PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap(),
        START,
        LIFETIME,
    );
    let pem = etcd.unwrap().bundle().to_pem();
    let mut secrets = [SecretSpec {
        purpose: Purpose::Etcd,
        target: ClusterTarget::new("prod", "default").unwrap(),
        kind: ADOPTED_TYPE,
        data: [("tls.crt", Zeroizing::new(pem.clone().into_bytes()))].into(),
    }];
    authority.add_to(&mut secrets);
    let [secret] = secrets;
    let text = String::from_utf8(secret.data["tls.crt"].to_vec()).unwrap();
    // What follows the line is the etcd CA and nothing else, as the script on the nodes expects.
    let (_, after) = text.split_once(ETCD_CA_FOLLOWS).unwrap();
    assert_eq!(after, pem);
    let bundle = TrustBundle::from_pem(text.as_bytes()).unwrap();
    let key = PrivateKey::from_pem(&secret.data["tls.key"]).unwrap();
    assert_eq!(bundle.first().public_key(), key.public_key());
    assert_eq!(without_client_authority(bundle.clone()).to_pem(), pem);
    (bundle, key)
}

#[test]
fn creates_authority_for_clients_with_key_of_policy() {
    let directory = StateDirectory::new();
    let policy = policy(
        "{categories: [{category: SignerCertificate, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}]}",
    );
    let authority = directory.load(&policy, START);
    let certificate = authority.bundle.first();
    assert_eq!(
        *certificate.public_key().key_type(),
        KeyType::Known(KeyAlgorithm::EcdsaP384)
    );
    assert!(certificate.allows(ExtendedUsage::ClientAuth));
    assert!(!certificate.allows(ExtendedUsage::ServerAuth));
    assert_eq!(certificate.not_after(), START + LIFETIME);
    let created = ("issued".to_owned(), "create".to_owned());
    assert_eq!(directory.logged(), [created]);
    // A rule for the name precedes that of the category.
    let named = self::policy(
        "{categories: [{category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}], overrides: [{certificateName: etcd-client-ca, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P521}}}}]}",
    );
    let authority = StateDirectory::new().load(&named, START);
    assert_eq!(
        *authority.bundle.first().public_key().key_type(),
        KeyType::Known(KeyAlgorithm::EcdsaP521)
    );
}

#[test]
fn replaces_authority_in_steps_before_its_end() {
    let directory = StateDirectory::new();
    let policy = policy("{}");
    let first = directory.load(&policy, START);
    assert_eq!(first.notes, Vec::<String>::new());
    let (before, former_key) = secret(&first);
    assert_eq!(before.certificates().len(), 2);

    // The successor is published, and the controllers sign with the same key as before.
    let published = directory.load(&policy, after(183));
    assert!(published.notes[0].contains("append the certificate in"));
    let (both, key) = secret(&published);
    assert_eq!(both.certificates().len(), 3);
    assert_eq!(key.public_key(), former_key.public_key());
    let again = directory.load(&policy, after(183 + 129));
    assert_eq!(
        secret(&again).0.certificates()[..2],
        both.certificates()[..2]
    );

    // Nodes that were created since then trust the key with which the controllers sign now.
    let activated = directory.load(&policy, after(183 + 130));
    assert_eq!(activated.notes, Vec::<String>::new());
    let (now, key) = secret(&activated);
    assert_eq!(now.first(), &both.certificates()[1]);
    assert_eq!(now.certificates()[1], both.certificates()[0]);
    assert!(is_predecessor_key(&now, former_key.public_key()));
    assert!(!is_predecessor_key(&now, key.public_key()));
    let log = directory.logged();
    let steps: Vec<&str> = log.iter().map(|(_, action)| action.as_str()).collect();
    assert_eq!(steps, ["create", "create", "activate"]);
}

/// After a pause of the runs that outlasts the authority, one run replaces it, and the key in CLUSTER-etcd is recognized.
#[test]
fn replaces_expired_authority_in_one_run() {
    for (runs, pause, steps) in [
        (&[0][..], 366, &["create", "create", "activate"][..]),
        (&[0, 183], 366, &["create", "create", "activate", "create"]),
        (
            &[0, 183],
            900,
            &["create", "create", "discard", "create", "activate"],
        ),
    ] {
        let directory = StateDirectory::new();
        let policy = policy("{}");
        let mut former = None;
        for day in runs {
            former = Some(directory.load(&policy, after(*day)));
        }
        let former_key = secret(&former.unwrap()).1;
        let replaced = directory.load(&policy, after(pause));
        let (bundle, key) = secret(&replaced);
        assert!(bundle.first().not_after() > after(pause), "{steps:?}");
        assert!(is_predecessor_key(&bundle, former_key.public_key()));
        assert_ne!(key.public_key(), former_key.public_key());
        let log = directory.logged();
        let logged: Vec<&str> = log.iter().map(|(_, action)| action.as_str()).collect();
        assert_eq!(logged, steps);
        let mut notes = replaced.notes.iter();
        let has_note = notes.any(|note| note.contains("expired before nodes had"));
        assert_eq!(has_note, steps.last() == Some(&"activate"), "{steps:?}");
        // The next run changes nothing.
        let again = directory.load(&policy, after(pause));
        assert_eq!(again.bundle, replaced.bundle);
        assert_eq!(directory.logged().len(), steps.len());
    }
}

#[test]
fn adopts_authority_that_another_run_created_meanwhile() {
    let directory = StateDirectory::new();
    let state = &directory.root;
    let store = AuthorityStore { state, now: START };
    let [first, second] = [(); 2].map(|()| store.create(AUTHORITY_FILE, DEFAULT_KEY).unwrap());
    assert_eq!(second.certificate(), first.certificate());
    assert_eq!(*second.key, *first.key);
    assert_eq!(directory.logged().len(), 1);
}

/// A successor whose activation was interrupted between its two files is not activated twice.
#[test]
fn completes_interrupted_activation() {
    let directory = StateDirectory::new();
    let policy = policy("{}");
    directory.load(&policy, START);
    directory.load(&policy, after(183));
    let path = Path::new("/").join(NEXT_FILE);
    let next = directory.root.read(&path).unwrap().unwrap();
    let activated = directory.load(&policy, after(320));
    let root = directory.root.create_dir("/", 0o700).unwrap();
    root.write_atomic(NEXT_FILE, &next.bytes, 0o600).unwrap();
    let completed = directory.load(&policy, after(320));
    assert_eq!(completed.bundle, activated.bundle);
    assert_eq!(directory.root.metadata(&path).unwrap(), None);
}

/// An authority of ten years without usages, as earlier releases created it, and one that the policy does not permit.
#[test]
fn replaces_authority_that_is_not_as_desired() {
    let policy = policy("{}");
    let directory = StateDirectory::new();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let pem = key.to_pem();
    let old = CertificateAuthority::self_signed(COMMON_NAME, key, START, LIFETIME * 10).unwrap();
    let pem = [old.bundle().to_pem().as_bytes(), pem.as_bytes()].concat();
    let root = directory.root.create_dir("/", 0o700).unwrap();
    root.write_atomic(AUTHORITY_FILE, &pem, 0o600).unwrap();
    let loaded = directory.load(&policy, after(1));
    assert_eq!(loaded.bundle, *old.bundle());
    assert!(loaded.next.is_some() && !loaded.notes.is_empty());

    let directory = StateDirectory::new();
    directory.load(&policy, START);
    let stricter = self::policy("{defaults: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}");
    let next = directory.load(&stricter, after(1)).next.unwrap();
    assert_eq!(
        *next.first().public_key().key_type(),
        KeyType::Known(KeyAlgorithm::EcdsaP384)
    );
}
