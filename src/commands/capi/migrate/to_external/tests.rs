use std::time::Duration;

use serde_json::json;
use time::OffsetDateTime;
use time::macros::datetime;

use super::*;
use crate::agent::load;
use crate::commands::migrate::backup::Passphrase;
use crate::config::Argument;
use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

/// Returns the key of a new CA and its Secret.
fn new_ca(authority: Authority) -> (CaKey, Object) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let pem = key.to_pem().to_string();
    let copy = PrivateKey::from_pem(pem.as_bytes()).unwrap();
    let life = Duration::from_secs(86_400);
    let made = CertificateAuthority::self_signed(authority.common_name(), copy, NOW, life);
    let certificate = made.unwrap().bundle().to_pem();
    let object = Object(json!({"data": {
        "tls.crt": BASE64.encode(certificate),
        "tls.key": BASE64.encode(&pem),
    }}));
    let bytes = pem.into_bytes().into();
    (CaKey { key, bytes }, object)
}

#[test]
fn refuses_second_backup_after_interrupted_removal() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    root.create_dir("/backups", 0o700).unwrap();
    let backup = |name: &str| {
        let passphrase = Passphrase::from_file(b"correct horse battery staple\n").unwrap();
        let path = Argument::from(dir.path().join("backups").join(name));
        Backup::new(&root, &path, passphrase).unwrap()
    };
    let (first, second) = (backup("first"), backup("second"));
    let api = load::cluster(&root, Path::new("/absent.conf")).unwrap();
    let wish = ToExternal {
        root: &root,
        api: &api,
        target: ClusterTarget::new("prod", "default").unwrap(),
        format: Format::Current,
        external_etcd: false,
        authorities: Authority::ALL.into_iter().collect(),
        apply: true,
        backup: None,
        placeholders: false,
    };
    let (mut keys, mut found) = (BTreeMap::new(), BTreeMap::new());
    for authority in [Authority::Ca, Authority::EtcdCa] {
        let (key, object) = new_ca(authority);
        keys.insert(authority, key);
        found.insert(Purpose::of(authority), object);
    }
    let origin = BackupOrigin::Secrets {
        cluster: "prod",
        namespace: "default",
    };
    let removal = RecordedRemoval {
        backup: first.write(&origin, &keys, NOW).unwrap(),
        authorities: keys.keys().copied().collect(),
    };
    removal.write(&root).unwrap();
    let removal = RecordedRemoval::read(&root).unwrap().unwrap();
    // Nothing was removed yet.
    assert_eq!(removal.follow(&wish, &second, &found).unwrap(), None);

    let object = found.get_mut(&Purpose::Ca).unwrap();
    strip(object, Purpose::Ca, &["tls.key"], false);
    assert_eq!(removal.follow(&wish, &first, &found).unwrap(), None);
    let refused = removal.follow(&wish, &second, &found).unwrap_err();
    assert_eq!(refused.code, ExitCode::Refused);
    let text = refused.one_line();
    assert!(
        text.contains("has removed the key of ca and written its backup to"),
        "{text}"
    );

    let backups = root.create_dir("/backups", 0o700).unwrap();
    backups.remove("first").unwrap();
    let note = removal.follow(&wish, &second, &found).unwrap().unwrap();
    assert!(
        note.contains("which is lost: it does not exist any more"),
        "{note}"
    );
    RecordedRemoval::forget(&root).unwrap();
    assert!(RecordedRemoval::read(&root).unwrap().is_none());
}
