//! Skeletons of settings: the example of each kind of signer, with its placeholders filled in.
//!
//! The examples are the files below `packaging/examples/signers`, so a skeleton contains every comment of them. A
//! placeholder is a text of the example; a test fails if an example no longer contains it.

use crate::config::Settings;
use crate::signer::SignerKind;
use crate::yaml::{self, Faults};

/// What remains of a placeholder without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unset {
    /// The text of the example, which must be replaced.
    Replace,
    /// The text of the example, which is usable.
    Keep,
    /// Nothing: its line is removed.
    Remove,
}

/// What the value of a placeholder is the path of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Nothing: it is itself the value.
    Value,
    /// A file that only root may read.
    Secret,
    /// A file that every user may read.
    Certificate,
}

/// A part of a skeleton that depends on the site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placeholder {
    /// Name in `--set NAME=VALUE`.
    pub(super) name: &'static str,
    /// What the value is, as a noun phrase.
    pub(super) meaning: &'static str,
    /// The text in the example.
    pub(super) example: &'static str,
    pub(super) unset: Unset,
    pub(super) holds: Holds,
}

/// The skeleton of one kind.
pub(super) struct Skeleton {
    pub(super) kind: SignerKind,
    example: &'static str,
    pub(super) placeholders: &'static [Placeholder],
}

/// A skeleton with values.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) text: String,
    /// Placeholders that must still be replaced, with their lines, from 1.
    pub(super) open: Vec<(usize, Placeholder)>,
    /// The other placeholders in the text, with their values.
    pub(super) kept: Vec<(Placeholder, String)>,
}

/// Error for a value of a placeholder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadValue {
    /// The kind has no placeholder with this name.
    #[error("--set {name}: signers of kind {kind} have no such value; {fix}")]
    Unknown {
        name: String,
        kind: SignerKind,
        fix: String,
    },
    /// The value is given twice.
    #[error("--set {0} is given twice; keep one")]
    Twice(String),
    /// The result is not valid.
    #[error("{0}")]
    Unusable(String),
}

const fn replace(name: &'static str, meaning: &'static str, example: &'static str) -> Placeholder {
    Placeholder {
        name,
        meaning,
        example,
        unset: Unset::Replace,
        holds: Holds::Value,
    }
}

const fn keep(name: &'static str, meaning: &'static str, example: &'static str) -> Placeholder {
    Placeholder {
        unset: Unset::Keep,
        ..replace(name, meaning, example)
    }
}

const fn secret(name: &'static str, meaning: &'static str, example: &'static str) -> Placeholder {
    Placeholder {
        holds: Holds::Secret,
        ..keep(name, meaning, example)
    }
}

const fn certificate(
    name: &'static str,
    meaning: &'static str,
    example: &'static str,
) -> Placeholder {
    Placeholder {
        holds: Holds::Certificate,
        ..keep(name, meaning, example)
    }
}

const fn remove(name: &'static str, meaning: &'static str, example: &'static str) -> Placeholder {
    Placeholder {
        unset: Unset::Remove,
        ..replace(name, meaning, example)
    }
}

macro_rules! skeletons {
    ($($kind:ident $file:literal: [$($placeholder:expr,)+])+) => {
        /// Every kind with a server, a program or a directory that must be named.
        pub(super) const SKELETONS: &[Skeleton] = &[$(Skeleton {
            kind: SignerKind::$kind,
            example: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/examples/signers/", $file)),
            placeholders: &[$($placeholder,)+],
        },)+];
    };
}

skeletons! {
    Vault "vault.yaml": [
        replace("server", "https:// address of Vault or OpenBao", "https://vault-1.example.com:8200"),
        remove("standby", "https:// address of another server of the cluster", "https://vault-2.example.com:8200"),
        keep("mount", "PKI engine, with {authority} for one engine each", "pki/{authority}"),
        secret("role-id-file", "file with the AppRole's role_id", "/etc/nodepki/vault-role-id"),
        secret("secret-id-file", "file with the AppRole's wrapped secret_id", "/etc/nodepki/vault-secret-id"),
        certificate("ca-file", "PEM file with the CA of the server's own certificate", "/etc/nodepki/vault-ca.pem"),
    ]
    Cfssl "cfssl.yaml": [
        replace("server", "https:// address of multirootca or cfssl", "https://cfssl.example.com:8888"),
        secret("key-file", "file with the auth_key of the profiles", "/etc/nodepki/cfssl.key"),
        certificate("ca-file", "PEM file with the CA of the server's own certificate", "/etc/nodepki/cfssl-ca.pem"),
    ]
    StepCa "stepCA.yaml": [
        replace("server", "https:// address of the step-ca of authority ca", "https://ca.example.com:9000"),
        replace("root", "fingerprint of its root (step certificate fingerprint)", "4f3c1c2a9d0b7e6f5a4b3c2d1e0f99887766554433221100ffeeddccbbaa9988"),
        replace("etcd-server", "https:// address of the step-ca of etcd-ca", "https://etcd-ca.example.com:9000"),
        replace("etcd-root", "fingerprint of its root", "8a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9"),
        replace("front-proxy-server", "https:// address of the step-ca of front-proxy-ca", "https://front-proxy-ca.example.com:9000"),
        replace("front-proxy-root", "fingerprint of its root", "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"),
        certificate("certificate", "file with the X5C certificate of this node", "/etc/nodepki/bootstrap.crt"),
        secret("key", "file with the key of that certificate", "/etc/nodepki/bootstrap.key"),
        secret("jwk-file", "file with the key of the JWK provisioner of etcd-ca", "/etc/nodepki/etcd-provisioner.jwk"),
        secret("token-file", "file with a one-time token for each certificate", "/run/nodepki/tokens/{certificate}"),
    ]
    Est "est.yaml": [
        replace("server", "https:// address of the EST server, without /.well-known/est", "https://est.example.com:8443"),
        keep("label", "EST label, with {authority} for one label each", "k8s-{authority}"),
        replace("user", "user name of this node", "cp1"),
        secret("password-file", "file with its password", "/etc/nodepki/est-password"),
        certificate("ca-file", "PEM file with the CA of the server's own certificate", "/etc/nodepki/est-ca.pem"),
    ]
    Kubernetes "kubernetes.yaml": [
        replace("server", "https:// address of the API server", "https://management.example.com:6443"),
        replace("signer-name", "signer name, with {authority} for one each", "pki.example.com/{authority}"),
        secret("token-file", "file with the token of this node", "/etc/nodepki/token"),
        certificate("ca-file", "PEM file with the CA of the API server", "/etc/nodepki/management-ca.crt"),
    ]
    CertManager "certManager.yaml": [
        replace("server", "https:// address of the API server", "https://management.example.com:6443"),
        replace("namespace", "namespace of the requests of this node", "cp1-pki"),
        keep("issuer", "issuer, with {authority} for one each", "k8s-{authority}"),
        replace("issuer-kind", "kind of the issuer, such as ClusterIssuer", "AWSPCAClusterIssuer"),
        replace("issuer-group", "group of the issuer, such as cert-manager.io", "awspca.cert-manager.io"),
        secret("token-file", "file with the token of this node", "/etc/nodepki/token"),
        certificate("ca-file", "PEM file with the CA of the API server", "/etc/nodepki/management-ca.crt"),
    ]
    Puppet "puppet.yaml": [
        remove("server", "https:// address of the Puppet server; by default that of the Puppet agent of this node", "https://puppet.example.com:8140"),
        replace("command", "plug-in that signs for authority ca, which Puppet cannot", "/usr/libexec/corp-sign"),
        certificate("ca-file", "PEM file with the CA bundle of the Puppet agent", "/etc/puppetlabs/puppet/ssl/certs/ca.pem"),
    ]
    Directory "directory.yaml": [
        keep("path", "directory for requests and answers", "/srv/nodepki"),
    ]
    Exec "exec.yaml": [
        replace("command", "program that speaks signer.nodepki.dev/v1", "/usr/libexec/corp-sign"),
        remove("args", "argument of the program, before the verb", "/opt/corp/ca"),
    ]
    Local "local.yaml": [
        keep("directory", "directory with the CA keys", "/srv/ca"),
    ]
}

/// Returns the skeleton of a kind; `None` for a kind without settings.
pub(super) fn of(kind: SignerKind) -> Option<&'static Skeleton> {
    SKELETONS.iter().find(|skeleton| skeleton.kind == kind)
}

impl Skeleton {
    /// Verifies the names of values.
    pub(super) fn verify(&self, values: &[(String, String)]) -> Result<(), BadValue> {
        for (at, (name, _)) in values.iter().enumerate() {
            if values.iter().take(at).any(|(other, _)| other == name) {
                return Err(BadValue::Twice(name.clone()));
            }
            let known: Vec<&str> = self.placeholders.iter().map(|known| known.name).collect();
            if known.contains(&name.as_str()) {
                continue;
            }
            let otherwise = format!("use one of {}", known.join(", "));
            let fix = yaml::fix_for(name, known, otherwise);
            return Err(BadValue::Unknown {
                name: name.clone(),
                kind: self.kind,
                fix,
            });
        }
        Ok(())
    }

    /// Returns whether signers of this kind start a program that the settings name.
    pub(super) fn starts_program(&self) -> bool {
        let mut placeholders = self.placeholders.iter();
        placeholders.any(|placeholder| placeholder.name == "command")
    }

    /// Returns the settings with these values, which are `(name, value)`.
    pub(super) fn fill(&self, values: &[(String, String)]) -> Result<Filled, BadValue> {
        self.verify(values)?;
        let value = |placeholder: &Placeholder| {
            let mut values = values.iter();
            let found = values.find(|(name, _)| name == placeholder.name)?;
            Some(found.1.as_str())
        };
        let (mut lines, mut open, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut given: Vec<(usize, &str)> = Vec::new();
        for line in self.example.lines() {
            let here = || {
                let all = self.placeholders.iter();
                all.filter(|placeholder| is_in(line, placeholder))
            };
            if here().any(|one| one.unset == Unset::Remove && value(one).is_none()) {
                continue;
            }
            let mut filled = line.to_owned();
            for placeholder in here() {
                match value(placeholder) {
                    // JSON strings are YAML, in flow and block context.
                    Some(value) => {
                        let quoted = serde_json::Value::from(value).to_string();
                        let bare = placeholder.example;
                        let written = if filled.contains(&format!("\"{bare}\"")) {
                            format!("\"{bare}\"")
                        } else {
                            bare.to_owned()
                        };
                        filled = filled.replacen(&written, &quoted, 1);
                        given.push((lines.len() + 1, placeholder.name));
                        kept.push((*placeholder, value.to_owned()));
                    }
                    None if placeholder.unset == Unset::Replace => {
                        open.push((lines.len() + 1, *placeholder));
                    }
                    None => kept.push((*placeholder, placeholder.example.to_owned())),
                }
            }
            lines.push(filled);
        }
        let text = lines.join("\n") + "\n";
        let unusable = |faults: Faults| {
            // The settings are not written, so that their lines mean nothing to the administrator.
            let described = faults.iter().map(|fault| {
                let mut given = given.iter();
                let culprit = given.find(|(line, _)| *line == fault.place.line);
                let place = culprit.map_or_else(|| fault.field.clone(), |(_, name)| option(name));
                format!("{place}: {} ({})", fault.message, fault.fix)
            });
            BadValue::Unusable(described.collect::<Vec<_>>().join("\n"))
        };
        Settings::from_fragments(&[("the new settings", text.as_str())]).map_err(unusable)?;
        Ok(Filled { text, open, kept })
    }
}

/// Returns the option for a value.
fn option(name: &str) -> String {
    match name {
        "server" => "--server".to_owned(),
        name => format!("--set {name}"),
    }
}

/// Returns whether the line contains the placeholder, outside a comment.
fn is_in(line: &str, placeholder: &Placeholder) -> bool {
    let code = line.split_once('#').map_or(line, |(code, _)| code);
    // `cp1` is also part of other words.
    let words = code.split(|c: char| c.is_whitespace() || "{}[],\"".contains(c));
    let braced = placeholder.example.contains('{');
    if braced {
        code.contains(placeholder.example)
    } else {
        words.into_iter().any(|word| word == placeholder.example)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn every_placeholder_occurs_once_in_its_example() {
        for skeleton in SKELETONS {
            for placeholder in skeleton.placeholders {
                let lines = skeleton.example.lines();
                let count = lines.filter(|line| is_in(line, placeholder)).count();
                assert_eq!(count, 1, "{}: {}", skeleton.kind, placeholder.name);
            }
        }
    }

    #[test]
    fn lists_what_must_be_replaced_with_its_line() {
        let skeleton = of(SignerKind::Vault).unwrap();
        let filled = skeleton.fill(&[]).unwrap();
        let [(line, placeholder)] = filled.open[..] else {
            panic!("{:?}", filled.open)
        };
        assert_eq!(placeholder.name, "server");
        let found = filled.text.lines().nth(line - 1).unwrap();
        assert!(
            found.contains("address: https://vault-1.example.com:8200"),
            "{found}"
        );
        assert!(!filled.text.contains("vault-2.example.com"));
    }

    #[test]
    fn no_placeholder_remains_if_all_are_set() {
        for skeleton in SKELETONS {
            let required = skeleton.placeholders.iter();
            let required = required.filter(|one| one.unset == Unset::Replace);
            let values: Vec<_> = required
                .map(|one| match one.example.len() {
                    64 => set(one.name, &"ab".repeat(32)),
                    _ if one.name.ends_with("server") => set(one.name, "https://pki.test:1"),
                    _ if one.name == "command" => set(one.name, "/usr/bin/sign"),
                    _ => set(one.name, "pki.test/{authority}"),
                })
                .filter(|(name, _)| name != "namespace" && !name.starts_with("issuer-"))
                .chain(match skeleton.kind {
                    SignerKind::CertManager => vec![
                        set("namespace", "pki"),
                        set("issuer-kind", "ClusterIssuer"),
                        set("issuer-group", "cert-manager.io"),
                    ],
                    _ => Vec::new(),
                })
                .collect();
            let filled = skeleton.fill(&values).unwrap();
            assert!(
                filled.open.is_empty(),
                "{}: {:?}",
                skeleton.kind,
                filled.open
            );
            let left = filled
                .text
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'));
            let left: Vec<&str> = left.filter(|line| line.contains("example.com")).collect();
            assert!(left.is_empty(), "{}: {left:?}", skeleton.kind);
        }
    }

    #[test]
    fn value_cannot_add_keys() {
        let skeleton = of(SignerKind::Vault).unwrap();
        let values = [
            set("server", "https://v:1"),
            set("mount", "x\n      verbatim: true"),
        ];
        let filled = skeleton.fill(&values);
        let adds = |filled: Filled| {
            filled
                .text
                .lines()
                .any(|line| line.trim() == "verbatim: true")
        };
        assert!(!filled.is_ok_and(adds));
    }

    #[test]
    fn names_option_of_value_that_is_not_valid() {
        let skeleton = of(SignerKind::Vault).unwrap();
        for (name, value, expected) in [
            ("server", "vault.test", "--server: "),
            ("mount", "a//b", "--set mount: "),
        ] {
            let error = skeleton.fill(&[set(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(
                error.contains(value) && !error.contains("the new"),
                "{error}"
            );
        }
    }

    #[test]
    fn names_the_nearest_value() {
        let skeleton = of(SignerKind::Est).unwrap();
        let error = skeleton.fill(&[set("sever", "x")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--set sever: signers of kind est have no such value; did you mean server?"
        );
        let error = skeleton
            .fill(&[set("server", "x"), set("server", "y")])
            .unwrap_err();
        assert_eq!(error.to_string(), "--set server is given twice; keep one");
    }
}
