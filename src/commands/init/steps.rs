//! The numbered list at the end of `nodepki init`: everything that is still to be done for this kind of signer.

use std::path::Path;

use super::skeleton::{Filled, Holds};
use crate::signer::{SignerKind, quoted};

/// Commands of the list, with the options of this run.
pub(super) struct NextCommands {
    /// `nodepki config signer-setup KIND`.
    pub(super) setup: String,
    /// `nodepki preflight`.
    pub(super) preflight: String,
}

/// Returns the steps in their order.
pub(super) fn steps(
    kind: SignerKind,
    filled: &Filled,
    script: Option<&Path>,
    commands: &NextCommands,
) -> Vec<String> {
    let mut steps = Vec::new();
    if !filled.open.is_empty() {
        steps.push("replace the texts above".to_owned());
    }
    steps.push(match script {
        Some(script) => {
            let script = quoted(&script.display().to_string());
            format!("{}: {}", administrator(kind), run(kind, &script))
        }
        None if has_setup(kind) => format!(
            "{}: {}, where `{}` writes FILE once the kubeadm configuration exists",
            administrator(kind),
            run(kind, "FILE"),
            commands.setup
        ),
        None => without_server(kind, filled),
    });
    for (placeholder, value) in &filled.kept {
        let (mode, meaning) = match placeholder.holds {
            Holds::Value => continue,
            Holds::Secret => ("0600", placeholder.meaning),
            Holds::Certificate => ("0644", placeholder.meaning),
        };
        steps.push(if value.starts_with('/') {
            format!("install the {meaning}: {value}, mode {mode}")
        } else {
            format!("provide the {meaning}: {value}")
        });
    }
    steps.push(
        "install the certificates of the three CAs as ca.crt, etcd/ca.crt and front-proxy-ca.crt in /etc/kubernetes/pki, mode 0644; or pin their keys in authorities.*.trust.sha256, by `openssl x509 -in CA.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum`"
            .to_owned(),
    );
    steps.push(format!(
        "run `{}`, which verifies all of this",
        commands.preflight
    ));
    steps
}

/// Whether `config signer-setup` prints anything for this kind.
pub(super) const fn has_setup(kind: SignerKind) -> bool {
    !matches!(
        kind,
        SignerKind::Directory | SignerKind::Exec | SignerKind::Local | SignerKind::Embedded
    )
}

fn administrator(kind: SignerKind) -> &'static str {
    match kind {
        SignerKind::Vault => "an administrator of Vault or OpenBao, logged in there, runs",
        SignerKind::Cfssl => {
            "an administrator of CFSSL, in the directory where it is started, runs"
        }
        SignerKind::StepCa => "an administrator of each step-ca runs, with the name of its signer",
        SignerKind::Est => {
            "an administrator of the EST server, where its CAs' directories belong, runs"
        }
        SignerKind::Puppet => "an administrator of the Puppet CA server, there, runs",
        _ => "an administrator of the cluster whose API server gets the requests runs",
    }
}

/// Returns the command that applies the file of `config signer-setup`.
fn run(kind: SignerKind, file: &str) -> String {
    match kind {
        SignerKind::Kubernetes | SignerKind::CertManager => format!("`kubectl apply -f {file}`"),
        SignerKind::StepCa => format!("`sh {file} NAME`"),
        _ => format!("`sh {file}`"),
    }
}

/// Returns the step for a kind whose server needs no preparation.
fn without_server(kind: SignerKind, filled: &Filled) -> String {
    let value = |name: &str| {
        let mut kept = filled.kept.iter();
        let found = kept.find(|(placeholder, _)| placeholder.name == name);
        found.map_or("that the settings name", |(_, value)| value.as_str())
    };
    match kind {
        SignerKind::Exec => format!(
            "install the program {}, owned by root, mode 0755 (docs/signers/exec.md)",
            value("command")
        ),
        SignerKind::Local => format!(
            "put the CA keys into {}, owned by root, mode 0600: ca.key, etcd/ca.key and front-proxy-ca.key, each with its .crt",
            value("directory")
        ),
        _ => format!(
            "a person or a program answers each {0}/outbox/SLOT.csr with {0}/inbox/SLOT.crt (docs/signers/directory.md)",
            value("path")
        ),
    }
}
