//! The scripts and objects of `config signer-setup`, with names that contain shell and YAML syntax.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::node::{INIT, NODEPKI, Ran};
use crate::signing::HEAD;

const AUTHORITIES: &str =
    "authorities: {ca: {signer: a}, etcd-ca: {signer: b}, front-proxy-ca: {signer: a}}\n";

/// Runs `config signer-setup` for settings and a kubeadm configuration, which it writes into `dir`.
pub(crate) fn print_setup(dir: &Path, settings: &str, kubeadm: &str, arguments: &[&str]) -> Ran {
    fs::write(dir.join("setup.yaml"), settings).unwrap();
    fs::write(dir.join("kubeadm.yaml"), kubeadm).unwrap();
    Ran::of(
        Command::new(NODEPKI)
            .args(["config", "signer-setup"])
            .args(arguments)
            .arg("--config")
            .arg(dir.join("setup.yaml"))
            .arg("--kubeadm-config")
            .arg(dir.join("kubeadm.yaml")),
    )
}

fn settings(signers: &str) -> String {
    format!("{HEAD}{AUTHORITIES}signers:\n{signers}")
}

/// Program that logs the server that it is sent to, its arguments and, if the last one is `-`, its stdin.
const STUB: &str = r#"#!/bin/sh
echo "${0##*/} ${VAULT_ADDR:-} ${BAO_ADDR:-} ${VAULT_NAMESPACE:-none}: $*" >>"$LOG"
case "$*" in
"secrets list"*) echo '"pki-k8s/": {}' ;;
*" -") cat >>"$LOG" ;;
esac
"#;

/// Runs the printed script with programs that only log their calls, and returns the log.
fn logged_calls(
    dir: &Path,
    kind: &str,
    signers: &str,
    cluster: &str,
    arguments: &[&str],
) -> String {
    let kubeadm = format!("{INIT}clusterName: {cluster}\n");
    let ran = print_setup(dir, &settings(signers), &kubeadm, &[kind]);
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

/// A name that ends a comment, a here-document and a quoted word.
const ODD: &str = r#""x\nEOF\nEND\ntouch owned\n'; touch owned; '$(touch owned)`touch owned`""#;

#[test]
fn quotes_names_in_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let vault = |auth: &str| {
        format!(
            "{{vault: {{address: \"https://v:8200/;touch owned;\", mount: \"{{authority}}/{{cluster}}\", issuer: \"{{cluster}}\", \
             role: \"{{certificate}}-{{cluster}}\", auth: {auth}, tls: {{systemRoots: true}}}}}}"
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
        let calls = logged_calls(dir.path(), "vault", &signers, ODD, &[]);
        assert!(calls.contains("policy write nodepki-x"), "{calls}");
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
        let calls = logged_calls(dir.path(), "stepCA", &signers, ODD, &[name]);
        assert!(calls.contains("ca provisioner add p'"), "{calls}");
    }

    let cfssl = "{cfssl: {url: \"https://c/\", label: \"{authority};touch owned;{cluster}\", profile: \"p\\ntouch owned\\n\", \
                 auth: {keyFile: \"/k\\ntouch owned\\n\"}, tls: {systemRoots: true}}}";
    let signers = format!("  a: {cfssl}\n  b: {cfssl}\n");
    logged_calls(dir.path(), "cfssl", &signers, ODD, &[]);

    let est = "{est: {url: \"https://e/\", label: \"{authority};touch owned;{cluster}\", tls: {systemRoots: true}, \
               auth: {basic: {user: \"u\\ntouch owned\\n\", passwordFile: /p}}}}";
    let signers = format!("  a: {est}\n  b: {est}\n");
    logged_calls(dir.path(), "est", &signers, ODD, &[]);

    let puppet = "{puppet: {url: \"https://p/;touch owned;\", tls: {systemRoots: true}, acceptSharedCA: true}}";
    let settings = settings(&format!("  a: {puppet}\n  b: {puppet}\n"))
        + "commonNames: {etcd-peer: \"etcd.{node}.{cluster}\"}\n";
    let kubeadm = format!("{INIT}clusterName: {ODD}\n");
    let ran = print_setup(dir.path(), &settings, &kubeadm, &["puppet"]);
    ran.done();
    let owned = |line: &&str| line.contains("touch owned") && !line.starts_with('#');
    assert_eq!(ran.stdout.lines().find(owned), None);
}

#[test]
fn quotes_names_in_objects() {
    let dir = tempfile::tempdir().unwrap();
    let signer = "{kubernetes: {kubeconfig: \"/k\\nkind: Owned\\n\", signerName: \"x.example/{authority}\"}}";
    let settings = settings(&format!("  a: {signer}\n  b: {signer}\n"));
    let cluster = r#""x\rkind: Owned\nkind: Owned\n""#;
    let kubeadm = format!("{INIT}clusterName: {cluster}\n");
    let ran = print_setup(dir.path(), &settings, &kubeadm, &["kubernetes"]);
    ran.done();
    let mut lines = ran.stdout.split(['\n', '\r']);
    assert!(
        !lines.any(|line| line.starts_with("kind: Owned")),
        "{}",
        ran.stdout
    );
}

#[test]
fn sends_commands_to_server_of_each_signer() {
    let dir = tempfile::tempdir().unwrap();
    let signers = "  a: {vault: {address: \"https://one:8200\", namespace: team, mount: pki-ca, auth: {tokenFile: /t}, tls: {systemRoots: true}}}\n  \
                   b: {vault: {address: \"https://two:8200\", mount: pki-etcd, auth: {tokenFile: /t}, tls: {systemRoots: true}}}\n";
    let calls = logged_calls(dir.path(), "vault", signers, "x", &[]);
    let at = |words: &str| calls.lines().find(|line| line.ends_with(words)).unwrap();
    let one = at("write pki-ca/roles/admin-conf -");
    assert!(
        one.contains("https://one:8200 https://one:8200 team:"),
        "{calls}"
    );
    let two = at("write pki-etcd/roles/etcd-peer-cp1 -");
    assert!(
        two.contains("https://two:8200 https://two:8200 none:"),
        "{calls}"
    );
}

#[test]
fn matches_engine_names_literally() {
    let dir = tempfile::tempdir().unwrap();
    let vault = |mount: &str| {
        format!(
            "{{vault: {{address: \"https://v\", mount: {mount}, auth: {{tokenFile: /t}}, tls: {{systemRoots: true}}}}}}"
        )
    };
    let signers = format!("  a: {}\n  b: {}\n", vault("pki.k8s"), vault("pki-k8s"));
    let calls = logged_calls(dir.path(), "vault", &signers, "x", &[]);
    assert!(calls.contains("secrets enable -path=pki.k8s "), "{calls}");
    assert!(!calls.contains("secrets enable -path=pki-k8s "), "{calls}");
}

#[test]
fn names_roles_of_node_whose_name_is_part_of_another_word() {
    let dir = tempfile::tempdir().unwrap();
    let vault = "{vault: {address: \"https://v\", mount: \"pki/{authority}\", role: \"{certificate}\", auth: {tokenFile: /t}, tls: {systemRoots: true}}}";
    let settings = settings(&format!("  a: {vault}\n  b: {vault}\n"));
    let kubeadm = INIT.replace("name: cp1", "name: api");
    let ran = print_setup(dir.path(), &settings, &kubeadm, &["vault"]);
    ran.done().says("put pki/ca/roles/apiserver-api -");
}

#[test]
fn separates_clusters_on_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let vault = "{vault: {address: \"https://v\", mount: \"{cluster}/{authority}\", auth: {appRole: {roleID: r, secretIDFile: /s}}, tls: {systemRoots: true}}}";
    let cfssl = "{cfssl: {url: \"https://c\", label: \"{cluster}_{authority}\", profile: p, auth: {keyFile: /k}, tls: {systemRoots: true}}}";
    for cluster in ["east", "west"] {
        let signers = format!("  a: {vault}\n  b: {vault}\n");
        let calls = logged_calls(dir.path(), "vault", &signers, cluster, &[]);
        for words in ["policy write", "write auth/approle/role/"] {
            let own = format!("nodepki-{cluster}-cp1 -");
            let said = |line: &&str| line.contains(words) && line.ends_with(&own);
            assert_eq!(calls.lines().filter(said).count(), 1, "{words}\n{calls}");
        }
        let signers = format!("  a: {cfssl}\n  b: {cfssl}\n");
        logged_calls(dir.path(), "cfssl", &signers, cluster, &[]);
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
