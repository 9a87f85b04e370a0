//! The numbered list at the end of `nodepki init`: everything that is still to be done for this kind of signer.

use std::path::{Path, PathBuf};

use super::skeleton::{self, Filled, Holds};
use crate::agent::load;
use crate::signer::{SignerKind, quoted};

/// Commands of the list, with the options of this run.
pub(super) struct NextCommands {
    /// `nodepki config signer-setup KIND`.
    pub(super) setup: String,
    /// The command above names the kubeadm configuration.
    pub(super) names_kubeadm_config: bool,
    /// `nodepki preflight`, in quotes, with the place where it runs if that is another one.
    pub(super) preflight: String,
}

/// Paths of the node on this machine.
pub(super) struct NodePlaces<'a> {
    /// Returns the file that a path in the settings means.
    pub(super) named: &'a dyn Fn(&Path) -> PathBuf,
    /// The certificates directory.
    pub(super) pki: PathBuf,
}

/// Returns the steps in their order.
pub(super) fn steps(
    kind: SignerKind,
    filled: &Filled,
    script: Option<&Path>,
    commands: &NextCommands,
    places: &NodePlaces<'_>,
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
            "{}: {}, where `{}` writes FILE{}",
            administrator(kind),
            run(kind, "FILE"),
            commands.setup,
            if commands.names_kubeadm_config {
                ""
            } else {
                " once the kubeadm configuration exists"
            }
        ),
        None => without_server(kind, filled, places),
    });
    steps.extend(rights_of_units(kind, filled, places));
    for (placeholder, value) in &filled.kept {
        let (mode, meaning) = match placeholder.holds {
            Holds::Value => continue,
            Holds::Secret => ("0600", placeholder.meaning),
            Holds::Certificate => ("0644", placeholder.meaning),
        };
        steps.push(if value.starts_with('/') {
            let file = (places.named)(Path::new(value));
            format!("install the {meaning}: {}, mode {mode}", file.display())
        } else {
            format!("provide the {meaning}: {value}")
        });
    }
    steps.push(format!(
        "install the certificates of the three CAs as ca.crt, etcd/ca.crt and front-proxy-ca.crt in {}, mode 0644; or pin their keys in authorities.*.trust.sha256, by `openssl x509 -in CA.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum`",
        places.pki.display()
    ));
    steps.push(format!(
        "run {}, which verifies all of this",
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

/// Returns the step for a kind that needs more than nodepki's systemd units permit.
fn rights_of_units(kind: SignerKind, filled: &Filled, places: &NodePlaces<'_>) -> Option<String> {
    if kind == SignerKind::Directory {
        let mut kept = filled.kept.iter();
        let (_, path) = kept.find(|(placeholder, _)| placeholder.name == "path")?;
        let path = Path::new(path);
        return (!load::is_writable_by_units(path)).then(|| {
            format!(
                "let nodepki's systemd units write there: add {}; then `systemctl daemon-reload`",
                load::drop_in_for_writes(path, places.named)
            )
        });
    }
    skeleton::of(kind)?.starts_program().then(|| {
        "if the program writes files, let nodepki's systemd units do so: add ReadWritePaths=-DIR as in systemd/drop-ins/programs.conf; then `systemctl daemon-reload`".to_owned()
    })
}

/// Returns the step for a kind whose server needs no preparation.
fn without_server(kind: SignerKind, filled: &Filled, places: &NodePlaces<'_>) -> String {
    let value = |name: &str| {
        let mut kept = filled.kept.iter();
        let found = kept.find(|(placeholder, _)| placeholder.name == name);
        found.map_or("that the settings name".to_owned(), |(_, value)| {
            (places.named)(Path::new(value)).display().to_string()
        })
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
