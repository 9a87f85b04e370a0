//! The scripts of `config signer-setup` as such, whatever server they are for: names with anything in them stay names.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::node::{INIT, NODEPKI, Ran};

const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
    authorities: {ca: {signer: a}, etcd-ca: {signer: b}, front-proxy-ca: {signer: a}}\n";

/// Says where it was sent and what for.
const STUB: &str = r#"#!/bin/sh
echo "${0##*/} ${VAULT_ADDR:-} ${BAO_ADDR:-} ${VAULT_NAMESPACE:-none}: $*" >>"$LOG"
case "$*" in
"secrets list"*) echo '"pki-k8s/": {}' ;;
*" -") cat >>"$LOG" ;;
esac
"#;

/// What a script does with programs that only write down what they are told.
fn carried_out(dir: &Path, kind: &str, signers: &str, cluster: &str, arguments: &[&str]) -> String {
    let settings = dir.join("setup.yaml");
    fs::write(&settings, format!("{HEAD}signers:\n{signers}")).unwrap();
    let kubeadm = dir.join("kubeadm.yaml");
    fs::write(&kubeadm, format!("{INIT}clusterName: {cluster}\n")).unwrap();
    let ran = Ran::of(
        Command::new(NODEPKI)
            .args(["config", "signer-setup", kind, "--config"])
            .arg(&settings)
            .arg("--kubeadm-config")
            .arg(&kubeadm),
    );
    ran.done();
    let programs = dir.join("bin");
    fs::create_dir_all(&programs).unwrap();
    for name in ["vault", "step"] {
        let program = programs.join(name);
        fs::write(&program, STUB).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = dir.join("setup.sh");
    fs::write(&script, &ran.stdout).unwrap();
    let log = dir.join("log");
    let _ = fs::remove_file(&log);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let done = Command::new("sh")
        .arg(&script)
        .args(arguments)
        .current_dir(dir)
        .env("PATH", path)
        .env("LOG", &log)
        .env_remove("VAULT_ADDR")
        .env_remove("BAO_ADDR")
        .env("VAULT_NAMESPACE", "the-callers")
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}\n{}", ran.stdout);
    assert!(!dir.join("owned").exists(), "{}", ran.stdout);
    fs::read_to_string(&log).unwrap_or_default()
}

/// Ends a comment, a here-document of any kind, and a quoted word.
const ODD: &str = r#""x\nEOF\nEND\ntouch owned\n'; touch owned; '$(touch owned)`touch owned`""#;

#[test]
fn no_name_becomes_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let vault = |auth: &str| {
        format!(
            "{{vault: {{address: \"https://v:8200/$(touch owned)\", mount: \"{{authority}}/{{cluster}}\", issuer: \"{{cluster}}\", \
             role: \"{{certificate}}-{{cluster}}\", auth: {auth}}}}}"
        )
    };
    let role = "\"r\\ntouch owned\\n\"";
    for auth in [
        "{tokenFile: \"/t\\ntouch owned\\n\"}".to_owned(),
        format!("{{appRole: {{role: {role}, roleID: r, secretIDFile: \"/s\\ntouch owned\\n\"}}}}"),
        format!("{{jwt: {{role: {role}, file: /j}}}}"),
        format!("{{kubernetes: {{role: {role}, file: /k}}}}"),
    ] {
        let signers = format!("  a: {}\n  b: {}\n", vault(&auth), vault(&auth));
        let did = carried_out(dir.path(), "vault", &signers, ODD, &[]);
        assert!(did.contains("policy write nodepki-x"), "{did}");
    }

    let pin = "00".repeat(32);
    let step = |auth: &str| {
        format!(
            "{{stepCA: {{url: \"https://s/\", provisioner: \"p'\\ntouch owned\\n\", rootSHA256: \"{pin}\", auth: {auth}}}}}"
        )
    };
    let token = step("{token: {file: \"/t\\ntouch owned\\n{certificate}\"}}");
    let key = step("{jwk: {keyFile: \"/k\\ntouch owned\\n\"}}");
    let signers = format!("  a: {token}\n  b: {key}\n");
    for name in ["a", "b"] {
        let did = carried_out(dir.path(), "stepCA", &signers, ODD, &[name]);
        assert!(did.contains("ca provisioner add p'"), "{did}");
    }

    let cfssl = "{cfssl: {url: \"https://c/\", label: \"{authority};touch owned;{cluster}\", profile: \"p\\ntouch owned\\n\", \
                 auth: {keyFile: \"/k\\ntouch owned\\n\"}}}";
    let signers = format!("  a: {cfssl}\n  b: {cfssl}\n");
    carried_out(dir.path(), "cfssl", &signers, ODD, &[]);
}

#[test]
fn no_name_becomes_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("setup.yaml");
    let signer = "{kubernetes: {kubeconfig: \"/k\\nkind: Owned\\n\", signerName: \"x.example/{authority}\"}}";
    fs::write(
        &settings,
        format!("{HEAD}signers: {{a: {signer}, b: {signer}}}\n"),
    )
    .unwrap();
    let kubeadm = dir.path().join("kubeadm.yaml");
    let cluster = r#""x\rkind: Owned\nkind: Owned\n""#;
    fs::write(&kubeadm, format!("{INIT}clusterName: {cluster}\n")).unwrap();
    let ran = Ran::of(
        Command::new(NODEPKI)
            .args(["config", "signer-setup", "kubernetes", "--config"])
            .arg(&settings)
            .arg("--kubeadm-config")
            .arg(&kubeadm),
    );
    ran.done();
    let mut lines = ran.stdout.split(['\n', '\r']);
    assert!(
        !lines.any(|line| line.starts_with("kind: Owned")),
        "{}",
        ran.stdout
    );
}

#[test]
fn each_vault_is_told_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let signers = "  a: {vault: {address: \"https://one:8200\", namespace: team, mount: pki-ca, auth: {tokenFile: /t}}}\n  \
                   b: {vault: {address: \"https://two:8200\", mount: pki-etcd, auth: {tokenFile: /t}}}\n";
    let did = carried_out(dir.path(), "vault", signers, "x", &[]);
    let at = |words: &str| did.lines().find(|line| line.ends_with(words)).unwrap();
    let one = at("write pki-ca/roles/admin-conf -");
    assert!(
        one.contains("https://one:8200 https://one:8200 team:"),
        "{did}"
    );
    let two = at("write pki-etcd/roles/etcd-peer-cp1 -");
    assert!(
        two.contains("https://two:8200 https://two:8200 none:"),
        "{did}"
    );
}

#[test]
fn an_engine_of_a_similar_name_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let vault = |mount: &str| {
        format!("{{vault: {{address: \"https://v\", mount: {mount}, auth: {{tokenFile: /t}}}}}}")
    };
    let signers = format!("  a: {}\n  b: {}\n", vault("pki.k8s"), vault("pki-k8s"));
    let did = carried_out(dir.path(), "vault", &signers, "x", &[]);
    assert!(did.contains("secrets enable -path=pki.k8s "), "{did}");
    assert!(!did.contains("secrets enable -path=pki-k8s "), "{did}");
}

#[test]
fn a_node_whose_name_is_part_of_another_word_has_roles_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let vault = "{vault: {address: \"https://v\", mount: \"pki/{authority}\", role: \"{certificate}\", auth: {tokenFile: /t}}}";
    let settings = dir.path().join("setup.yaml");
    fs::write(
        &settings,
        format!("{HEAD}signers: {{a: {vault}, b: {vault}}}\n"),
    )
    .unwrap();
    let kubeadm = dir.path().join("kubeadm.yaml");
    fs::write(&kubeadm, INIT.replace("name: cp1", "name: api")).unwrap();
    let ran = Ran::of(
        Command::new(NODEPKI)
            .args(["config", "signer-setup", "vault", "--config"])
            .arg(&settings)
            .arg("--kubeadm-config")
            .arg(&kubeadm),
    );
    ran.done().says("write pki/ca/roles/apiserver-api -");
}

#[test]
fn clusters_on_one_server_share_neither_rights_nor_keys() {
    let dir = tempfile::tempdir().unwrap();
    let vault = "{vault: {address: \"https://v\", mount: \"{cluster}/{authority}\", auth: {appRole: {roleID: r, secretIDFile: /s}}}}";
    let cfssl = "{cfssl: {url: \"https://c\", label: \"{cluster}_{authority}\", profile: p, auth: {keyFile: /k}}}";
    for cluster in ["east", "west"] {
        let signers = format!("  a: {vault}\n  b: {vault}\n");
        let did = carried_out(dir.path(), "vault", &signers, cluster, &[]);
        for words in ["policy write", "write auth/approle/role/"] {
            let own = format!("nodepki-{cluster}-cp1 -");
            let said = |line: &&str| line.contains(words) && line.ends_with(&own);
            assert_eq!(did.lines().filter(said).count(), 1, "{words}\n{did}");
        }
        let signers = format!("  a: {cfssl}\n  b: {cfssl}\n");
        carried_out(dir.path(), "cfssl", &signers, cluster, &[]);
    }
    let key = |cluster: &str| {
        fs::read_to_string(dir.path().join(format!("nodepki-{cluster}-cp1.key"))).unwrap()
    };
    assert_ne!(key("east"), key("west"));
    let configuration = fs::read_to_string(dir.path().join("west_ca.json")).unwrap();
    assert!(
        configuration.contains("file:nodepki-west-cp1.key"),
        "{configuration}"
    );
}
