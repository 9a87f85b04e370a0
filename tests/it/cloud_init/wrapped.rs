//! Single-use credentials of a real OpenBao, from end to end: the administrator's commands, the user data, cloud-init,
//! the node.

use std::fs;
use std::process::Command;

use nodepki::kube::names::{Authority, CertName};
use serde_json::json;

use super::machine::Machine;
use super::{bootcmd, composed};
use crate::node::{NODEPKI, Ran};
use crate::servers::vault::{Bao, text};
use crate::signer_vault::commented;

/// Computes a pin, as the comment in the signer's part describes it.
const PIN: &str =
    "openssl x509 -in \"$1\" -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum";

fn shell(script: &str, argument: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-euc", script, "sh", argument]);
    shell
}

/// Returns a machine with the real nodepki, except for the upload, for which no cluster exists.
fn machine(bao: &Bao, user_data: &str) -> Machine {
    let machine = Machine::new().with_nodepki();
    machine.stands_in(
        "nodepki",
        &format!(
            "[ \"$1\" != certs ] || {{ umask 077; echo key >\"$4\"; exit; }}\nexec {NODEPKI} \"$@\""
        ),
    );
    machine.write(
        "etc/ssl/certs/corp-root.pem",
        &fs::read_to_string(bao.ca_file()).unwrap(),
    );
    machine.user_data(user_data);
    machine
}

#[test]
fn wrapped_secret_id_serves_one_node_permanently() {
    let bao = Bao::start();
    let mut user_data = composed("user-data-first.yaml", "vault")
        .replace("https://vault.example.com:8200", &bao.url());

    // Commands of the server's administrator.
    let bench = machine(&bao, "");
    bench.run(["sh", "-c", &bootcmd(&user_data)]).done();
    let setup = bench.nodepki(&["config", "signer-setup", "vault"]);
    let authorized = |script: &str| {
        let mut shell = shell(script, "");
        bao.authorize(&mut shell);
        let ran = Ran::of(&mut shell);
        // The script of the setup reports that there are no CAs yet.
        assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.said());
        ran.stdout.trim().to_owned()
    };
    authorized(&setup.done().stdout);
    for authority in Authority::ALL {
        authorized(&commented(
            &setup.stdout,
            &format!("pki/{authority}/root/generate/internal"),
        ));
        let answer = bao.root().read(&format!("pki/{authority}/cert/ca"));
        bench.write("ca.crt", &text(&answer["data"]["certificate"]));
        let pin = Ran::of(&mut shell(PIN, bench.path("ca.crt").to_str().unwrap()));
        let pin = pin
            .done()
            .stdout
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned();
        user_data = with_pin(&user_data, authority, &pin);
    }
    let role_id = authorized(&commented(&setup.stdout, "/role-id"));
    let wrapping = authorized(&commented(&setup.stdout, "/secret-id"));
    let user_data = user_data
        .replace("5b7a2f0e-7f7b-4ab9-9a43-9b5a4f3d5a11", &role_id)
        .replace("hvs.CAESIJexamplewrappingtoken", &wrapping);

    // Boot of the node.
    let node = machine(&bao, &user_data);
    let boot = node.boot();
    boot.is("done").ran.says_not(&role_id).says_not(&wrapping);
    for name in CertName::KUBEADM {
        let file = if name.is_kubeconfig() {
            name.to_string()
        } else {
            format!("pki/{}.crt", name.base_name())
        };
        assert!(
            node.path(&format!("etc/kubernetes/{file}")).exists(),
            "{name}"
        );
    }
    node.assert_secrets_are_private();

    // A later reader of the user data cannot use its credential, and a machine that boots with it reports this.
    let (status, answer) = bao
        .root()
        .as_token(&wrapping, "sys/wrapping/unwrap", json!({}));
    assert_ne!(status, 200, "{answer}");
    let second = machine(&bao, &user_data);
    let boot = second.boot();
    boot.is("error").ran.says("SECURITY");
    assert_eq!(boot.count("kubeadm"), 0);

    // The used token is written again at every boot. It prevents neither a later issue …
    let leaf = "etc/kubernetes/pki/apiserver-etcd-client.crt";
    let before = node.read(leaf);
    fs::remove_file(node.path(leaf)).unwrap();
    node.boot().is("done");
    assert_ne!(before, node.read(leaf));
    // … nor a boot while the server is unreachable.
    drop(bao);
    let before = node.content("etc/kubernetes");
    let boot = node.boot();
    boot.is("done");
    assert!(before == node.content("etc/kubernetes"));
}

fn with_pin(text: &str, authority: Authority, pin: &str) -> String {
    let begin = format!("{authority}:");
    text.lines()
        .map(|line| match line.split_once("sha256: [\"") {
            Some((head, tail)) if head.trim_start().starts_with(&begin) => {
                let (_, tail) = tail.split_once('"').unwrap();
                format!("{head}sha256: [\"{pin}\"{tail}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect()
}
