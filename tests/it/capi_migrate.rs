//! `nodepki capi migrate` against a real API server: removes the CA keys from Secrets as Cluster API writes them, and
//! restores them.

use std::path::PathBuf;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::Authority;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::capi::{Management, WITHOUT_CA_KEYS};
use crate::node::{NODEPKI, Ran};
use crate::pages;
use crate::servers::bin;
use crate::signing::{openssl, write_secret};
use crate::time::wait_until;

const PASSPHRASE: &str = "correct horse battery staple";
const AUTHORITIES: [(&str, Authority); 3] = [
    ("ca", Authority::Ca),
    ("etcd", Authority::EtcdCa),
    ("proxy", Authority::FrontProxyCa),
];

/// A management cluster whose Secrets contain the CA keys, and a directory for backups.
struct Migrated {
    management: Management,
    backups: TempDir,
}

impl Migrated {
    fn new() -> Self {
        let migrated = Migrated {
            management: Management::new(),
            // The directory for temporary files may be in memory, where no backup is accepted.
            backups: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        };
        let node = &migrated.management.node;
        write_secret(node.outside("passphrase"), format!("{PASSPHRASE}\n"));
        for (purpose, authority) in AUTHORITIES {
            let data = json!({
                "tls.crt": node.authority(authority).bundle().to_pem(),
                "tls.key": migrated.key(authority),
            });
            let annotations = json!({
                "kubectl.kubernetes.io/last-applied-configuration": data.to_string(),
                "team": "kept",
            });
            let labels = json!({"cluster.x-k8s.io/cluster-name": "prod"});
            let owner = json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "name": "prod", "uid": "1", "controller": true});
            let metadata =
                json!({"annotations": annotations, "labels": labels, "ownerReferences": [owner]});
            migrated.management.make(purpose, data, metadata);
        }
        migrated.management.apply(&[]).done();
        migrated
    }

    fn key(&self, authority: Authority) -> String {
        let file = self.management.node.ca().join(authority.base_name());
        std::fs::read_to_string(file.with_extension("key")).unwrap()
    }

    fn backup(&self) -> PathBuf {
        self.backups.path().join("ca-keys")
    }

    fn migrate(&self, direction: &str, more: &[&str]) -> std::process::Command {
        let management = &self.management;
        let mut command =
            management
                .node
                .command(["capi", "migrate", direction, "prod", "--namespace"]);
        command
            .arg(&management.namespace)
            .arg("--kubeconfig")
            .arg(management.kubeconfig());
        if direction == "to-external" {
            command
                .arg("--config")
                .arg(management.node.outside("config.yaml"));
        }
        command.args(more);
        command
    }

    /// Returns the command with a backup.
    fn with_backup(&self, direction: &str, more: &[&str]) -> std::process::Command {
        let mut command = self.migrate(direction, more);
        command
            .arg("--backup")
            .arg(self.backup())
            .arg("--passphrase-file")
            .arg(self.management.node.outside("passphrase"));
        command
    }

    fn to_external(&self, more: &[&str]) -> Ran {
        Ran::of(&mut self.with_backup("to-external", more))
    }

    fn to_internal(&self, more: &[&str]) -> Ran {
        Ran::of(&mut self.with_backup("to-internal", more))
    }

    /// Returns the Secrets that contain a private key of a CA.
    fn with_key(&self) -> Vec<&'static str> {
        let has_key = |secret: &Value| {
            let text = secret["data"]["tls.key"].as_str().unwrap_or_default();
            let copy = secret["metadata"]["annotations"].to_string();
            text.len() > 200 || copy.contains("PRIVATE KEY")
        };
        let purposes = AUTHORITIES.map(|(purpose, _)| purpose);
        let found = purposes
            .into_iter()
            .filter(|purpose| has_key(&self.management.secret(purpose)));
        found.collect()
    }
}

/// The first commands of `docs/cluster-api.md`, and those that remove the keys, as a user with the usual umask runs them.
/// Root, namespace, settings and time limits are those of the test; `cluster-api.yaml` is tested with Cluster API.
#[test]
fn documented_commands_work_with_umask_022() {
    let migrated = Migrated::new();
    let node = &migrated.management.node;
    let block = |heading| {
        let section = pages::section("docs/cluster-api.md", heading);
        pages::blocks(&section, "sh").remove(0)
    };
    let removal = block("## Removing CA keys from the Secrets");
    assert!(removal.contains("--backup /mnt/usb/ca-keys"));
    let removal = removal.replace("/mnt/usb/ca-keys", migrated.backup().to_str().unwrap());
    let script = format!(
        "set -eu
umask 022
nodepki() {{
  case \"$*\" in
  *--ca-dir*|*check*|*migrate*) ;;
  *) set -- \"$@\" --ca-dir ca ;;
  esac
  [ \"$2\" = check ] || set -- \"$@\" --config config.yaml --wait 0s --clock-wait 0s
  {NODEPKI} --root {} \"$@\" --namespace {namespace}
}}
kubectl() {{
  [ \"$1\" = apply ] || {} --kubeconfig management.conf --cache-dir cache --namespace {namespace} \"$@\"
}}
{}{removal}",
        node.root().display(),
        bin("kubectl").display(),
        block("# Cluster API"),
        namespace = migrated.management.namespace,
    );
    let mut shell = std::process::Command::new("sh");
    let ran = Ran::of(shell.args(["-c", &script]).current_dir(node.outside("")));
    ran.done().says("ExternalCAsReady");
    assert!(migrated.with_key().is_empty());
    assert!(migrated.backup().exists());
}

#[test]
fn removes_ca_keys_from_secrets_after_backup() {
    let migrated = Migrated::new();
    let management = &migrated.management;
    let before = management.versions();
    let report = Ran::of(&mut migrated.migrate("to-external", &[]));
    report
        .done()
        .row_says("ca", "to be removed")
        .says("answers and has this CA")
        .says("prod-kubeconfig is valid and was issued through nodepki")
        .says("prod-apiserver-etcd-client is valid and was issued through nodepki")
        .says("bootstrap data of their Machines")
        .says("nothing was changed (to remove the keys, add --apply")
        .says_not("PRIVATE KEY");
    Ran::of(&mut migrated.migrate("to-external", &["--apply"]))
        .ended(64)
        .says("--backup FILE");
    assert_eq!(management.versions(), before);

    let ran = migrated.to_external(&["--apply", "-o", "json"]);
    ran.done();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["kind"], "Migration");
    assert_eq!(report["applied"], true);
    let removed = AUTHORITIES
        .map(|(purpose, _)| json!(format!("{}/prod-{purpose}/tls.key", management.namespace)));
    let mut found = report["removed"].as_array().unwrap().clone();
    found.sort_by_key(Value::to_string);
    assert_eq!(found, removed);
    assert_eq!(migrated.with_key(), [""; 0]);
    for (purpose, authority) in AUTHORITIES {
        let secret = management.secret(purpose);
        let entries: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(entries, ["tls.crt"], "{purpose}");
        assert_eq!(secret["metadata"]["annotations"]["team"], "kept");
        // OpenSSL alone restores the key.
        let backup = std::fs::read_to_string(migrated.backup()).unwrap();
        let (_, block) = backup
            .split_once(&format!("\nauthority {authority}\n"))
            .unwrap();
        let passphrase = format!("pass:{PASSPHRASE}");
        let public = |key: &str, more: &[&str]| {
            openssl(&[&["pkey", "-pubout"], more].concat(), key.as_bytes())
        };
        assert_eq!(
            public(block, &["-passin", &passphrase]),
            public(&migrated.key(authority), &[])
        );
    }
    // Cluster API's own code reads the Secrets, as those that never had a key.
    assert_eq!(management.cluster_api_says(), WITHOUT_CA_KEYS);
    management.check(&[]).done();
    let after = management.versions();
    migrated
        .to_external(&["--apply"])
        .done()
        .says("nothing to do: the management cluster has no CA private key to remove");
    assert_eq!(management.versions(), after);
}

#[test]
fn restores_ca_keys_of_secrets_from_backup() {
    let migrated = Migrated::new();
    let management = &migrated.management;
    migrated
        .to_external(&["--apply", "--placeholder-keys"])
        .done();
    assert_eq!(migrated.with_key(), [""; 0]);
    assert_eq!(
        management.cluster_api_says(),
        ["init ok", "join ok", "kubeconfig ok", "etcd ok"]
    );
    let before = management.versions();
    migrated
        .to_internal(&[])
        .done()
        .row_says("ca", "to be written")
        .says("nothing was changed");
    assert_eq!(management.versions(), before);
    migrated
        .to_internal(&["--apply", "--authority", "etcd-ca"])
        .done();
    assert_eq!(migrated.with_key(), ["etcd"]);
    migrated.to_internal(&["--apply"]).done();
    for (purpose, authority) in AUTHORITIES {
        let key = management.data(purpose, "tls.key");
        assert_eq!(
            openssl(&["pkey", "-pubout"], &key),
            openssl(&["pkey", "-pubout"], migrated.key(authority).as_bytes()),
            "{purpose}"
        );
    }
    let after = management.versions();
    migrated
        .to_internal(&["--apply"])
        .done()
        .says("nothing to do: the keys are in place");
    assert_eq!(management.versions(), after);
    // The same backup serves again.
    migrated.to_external(&["--apply"]).done();
    assert_eq!(migrated.with_key(), [""; 0]);
}

#[test]
fn refuses_to_remove_ca_keys_that_are_needed() {
    let migrated = Migrated::new();
    let management = &migrated.management;
    let refuses = |words: &str| {
        migrated.to_external(&["--apply"]).ended(65).says(words);
        assert_eq!(migrated.with_key(), ["ca", "etcd", "proxy"]);
        assert!(!migrated.backup().exists());
    };
    // KubeadmControlPlane renews a kubeconfig of its own type.
    let kept = management.secret("kubeconfig");
    let recreate = |kind: &str, labels: Value| {
        management.remove("kubeconfig");
        let object = json!({
            "kind": "Secret", "apiVersion": "v1", "type": kind, "data": kept["data"],
            "metadata": {"name": "prod-kubeconfig", "labels": labels},
        });
        management.create(&object);
    };
    recreate(
        "cluster.x-k8s.io/secret",
        kept["metadata"]["labels"].clone(),
    );
    refuses("Secret prod-kubeconfig is renewed by KubeadmControlPlane with the CA key");
    recreate("Opaque", json!({}));
    refuses("Secret prod-kubeconfig was not issued through nodepki");
    recreate("Opaque", kept["metadata"]["labels"].clone());
    management.remove("apiserver-etcd-client");
    refuses("Secret prod-apiserver-etcd-client does not exist");
    management.apply(&[]).done();

    // A signer on this machine reads the keys itself.
    let mut local = migrated.migrate("to-external", &["--signer"]);
    local.arg(format!("local:{}", management.node.ca().display()));
    Ran::of(&mut local)
        .ended(65)
        .says("which reads the CA key itself");
    // The signer has another CA.
    let ca = management.node.ca();
    let old = std::fs::read(ca.join("front-proxy-ca.crt")).unwrap();
    management.node.replace_authority(
        Authority::FrontProxyCa,
        crate::signing::now(),
        crate::node::DAY * 365,
    );
    refuses("front-proxy-ca");
    assert_ne!(std::fs::read(ca.join("front-proxy-ca.crt")).unwrap(), old);
}

#[test]
fn refuses_foreign_keys_and_backups() {
    let migrated = Migrated::new();
    let management = &migrated.management;
    // A place in the state directory of nodepki, and the file of another program.
    let state = management.node.path("/var/lib/nodepki/keys");
    let mut misplaced = migrated.migrate("to-external", &["--apply", "--backup"]);
    misplaced
        .arg(&state)
        .arg("--passphrase-file")
        .arg(management.node.outside("passphrase"));
    Ran::of(&mut misplaced)
        .ended(65)
        .says("where files are replaced or removed");
    std::fs::write(migrated.backup(), "notes").unwrap();
    migrated
        .to_external(&["--apply"])
        .ended(65)
        .says("a backup is never overwritten");
    std::fs::remove_file(migrated.backup()).unwrap();
    assert_eq!(migrated.with_key(), ["ca", "etcd", "proxy"]);
    migrated.to_external(&["--apply"]).done();

    let mut proxy = management.secret("proxy");
    proxy["metadata"] = json!({"name": "prod-proxy"});
    proxy["stringData"] = json!({"tls.key": "precious"});
    management.remove("proxy");
    management.create(&proxy);
    migrated
        .to_internal(&["--apply"])
        .ended(65)
        .says("prod-proxy/tls.key exists")
        .says("is not overwritten")
        .says_not("precious");
    assert_eq!(management.data("proxy", "tls.key"), b"precious");
    migrated
        .to_external(&["--apply"])
        .says("prod-proxy/tls.key cannot be backed up");
    // Keys of another cluster.
    let other = Migrated::new();
    other.to_external(&["--apply"]).done();
    let mut wrong = migrated.migrate("to-internal", &["--apply", "--backup"]);
    wrong
        .arg(other.backup())
        .arg("--passphrase-file")
        .arg(other.management.node.outside("passphrase"));
    Ran::of(&mut wrong)
        .ended(65)
        .says("belongs to no CA certificate in the Secrets of prod");
}

/// After a crash at any step the keys are in the Secrets or in the backup, and the next run completes.
#[cfg(feature = "failpoints")]
#[test]
fn completes_removal_of_ca_keys_after_crash() {
    let migrated = Migrated::new();
    for (failpoint, with_key) in [
        ("migrate:proven", &["ca", "etcd", "proxy"][..]),
        ("migrate:backed-up", &["ca", "etcd", "proxy"]),
        ("migrate:committed", &["etcd", "proxy"]),
        ("migrate:committed", &["proxy"]),
    ] {
        let mut command = migrated.with_backup("to-external", &["--apply"]);
        let status = command.env("NODEPKI_FAILPOINT", failpoint).status();
        assert!(!status.unwrap().success(), "{failpoint}");
        assert_eq!(migrated.with_key(), with_key, "{failpoint}");
    }
    let mut other = migrated.migrate("to-external", &["--apply", "--backup"]);
    other
        .arg(migrated.backups.path().join("other"))
        .arg("--passphrase-file")
        .arg(migrated.management.node.outside("passphrase"));
    Ran::of(&mut other)
        .ended(65)
        .says("an interrupted run has removed the key of ca, etcd-ca and written its backup to");
    assert_eq!(migrated.with_key(), ["proxy"]);
    migrated.to_external(&["--apply"]).done();
    assert_eq!(migrated.with_key(), [""; 0]);
    migrated.to_internal(&["--apply"]).done();
    assert_eq!(migrated.with_key(), ["ca", "etcd", "proxy"]);
}

/// The steps of `authority stage`, `activate` and `retire` reach the Secrets through the CA files of a node.
#[test]
fn follows_change_of_ca_in_secrets() {
    let management = Management::new();
    management.apply(&[]).done();
    let ca = management.node.ca();
    let file = ca.join("ca.crt");
    let old = management.node.authority(Authority::Ca).bundle().to_pem();
    management
        .node
        .replace_authority(Authority::Ca, crate::signing::now(), crate::node::DAY * 365);
    let new = management.node.authority(Authority::Ca).bundle().to_pem();
    assert_ne!(old, new);
    let secret = || String::from_utf8(management.data("ca", "tls.crt")).unwrap();
    let kubeconfig = || {
        let text = String::from_utf8(management.data("kubeconfig", "value")).unwrap();
        Kubeconfig::parse(&text).unwrap().current().unwrap()
    };
    let first = kubeconfig().certificate.unwrap();
    // Without the intermediate step, the old CA remains in the Secrets.
    management.apply(&[]).ended(65);
    assert_eq!(secret(), old);
    for (step, bundle) in [
        ("stage", format!("{old}{new}")),
        ("activate", format!("{new}{old}")),
        ("retire", new.clone()),
    ] {
        std::fs::write(&file, &bundle).unwrap();
        let ran = management.apply(&[]);
        ran.done().row_says("prod-ca", "replaced");
        assert_eq!(secret(), bundle, "{step}");
        // The controllers trust what the nodes trust.
        let current = kubeconfig();
        let trusted = String::from_utf8(current.authority.unwrap()).unwrap();
        assert_eq!(trusted, bundle, "{step}");
        let is_first = current.certificate.unwrap() == first;
        assert_eq!(is_first, step == "stage", "{step}");
        management.check(&[]).done();
        management.apply(&[]).done().row_says("prod-ca", "kept");
    }
}

/// The Secrets of a migrated cluster, of which KubeadmControlPlane is the owner, follow a change of CA, and get an etcd client
/// CA.
#[test]
fn follows_change_of_ca_in_migrated_secrets() {
    let migrated = Migrated::new();
    let management = &migrated.management;
    let old = management.node.authority(Authority::Ca).bundle().to_pem();
    migrated.to_external(&["--apply"]).done();
    let (now, life) = (crate::signing::now(), crate::node::DAY * 365);
    management.node.replace_authority(Authority::Ca, now, life);
    let new = management.node.authority(Authority::Ca).bundle().to_pem();
    let staged = format!("{old}{new}");
    std::fs::write(management.node.ca().join("ca.crt"), &staged).unwrap();
    management
        .apply(&["--etcd-client-ca"])
        .done()
        .row_says("prod-ca", "replaced")
        .row_says("prod-etcd", "replaced");
    assert_eq!(management.data("ca", "tls.crt"), staged.into_bytes());
    management.check(&[]).done();
}

/// Each command with `--apply`, as the ServiceAccount that its `--rights` prints.
#[test]
fn applies_with_the_printed_rights() {
    let migrated = Migrated::new();
    let Migrated { management, .. } = &migrated;
    let act_as = |command: &[&str]| {
        let mut rights = management.node.command(["capi"]);
        rights.args(command);
        rights.args(["prod", "--namespace", &management.namespace, "--rights"]);
        let account = format!("nodepki-capi-{}-prod", command.join("-"));
        management.grant(rights, &account);
        let kubeconfig = management.node.outside(&format!("{account}.conf"));
        std::fs::copy(kubeconfig, management.kubeconfig()).unwrap();
    };
    let admin = management.cluster.admin();
    let secret = |name: &str| format!("/api/v1/namespaces/{}/secrets/{name}", management.namespace);

    // One Secret is created, the others are read.
    admin.delete(&secret("prod-kubeconfig"));
    act_as(&["secrets"]);
    wait_until("the rights of capi secrets", || {
        management.apply(&[]).code == Some(0)
    });
    assert_eq!(admin.get(&secret("prod-kubeconfig")).0, 200);
    assert_eq!(migrated.with_key().len(), AUTHORITIES.len());

    act_as(&["migrate", "to-external"]);
    wait_until("the rights of to-external", || {
        migrated.to_external(&["--apply"]).code == Some(0)
    });
    assert_eq!(migrated.with_key(), Vec::<&str>::new());
    act_as(&["migrate", "to-internal"]);
    wait_until("the rights of to-internal", || {
        migrated.to_internal(&["--apply"]).code == Some(0)
    });
    assert_eq!(migrated.with_key().len(), AUTHORITIES.len());
    // The account may not read what it does not need.
    assert_eq!(migrated.to_external(&[]).code, Some(77));
}
