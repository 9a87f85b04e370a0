//! Exposed secrets of the settings: files that other users can read or change, and CA keys on the node.
//!
//! Such a file is refused when it is used (see [`Metadata::require_private`](crate::store::Metadata)); this module finds
//! it earlier, without contacting a signer.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::places::{DefinedFiles, argument, defined};
use crate::cluster::api::is_of_node;
use crate::config::{Origin, Settings};
use crate::http::Files;
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::Authority;
use crate::signer;
use crate::store::{self, NodeRoot};
use crate::yaml;
use crate::yaml::schema::{self, SecretFile, ValueForm};

/// The risk of CA keys on the node, and the remedy.
pub const LOCAL_CA_KEYS_ADVICE: &str = "an attacker who controls the node can sign certificates for the whole cluster: outside a lab, configure a signer on another machine and remove the keys";

/// Keys of `InitConfiguration` and `JoinConfiguration` whose values are secrets.
const KUBEADM_SECRETS: [&str; 3] = ["token", "tlsBootstrapToken", "certificateKey"];

/// Returns each secret that other users can read or change: files that the settings name, and kubeadm's own. Missing and
/// unreadable files are omitted: the run that needs them reports them.
pub fn exposed_secrets(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let mut exposed = exposed_files(root, settings);
    exposed.extend(exposed_kubeadm_files(root, settings));
    exposed
}

/// Returns the kubeadm files that contain a secret and that every user can read. nodepki uses them nevertheless, as kubeadm
/// does; Cluster API gives them mode 0640.
fn exposed_kubeadm_files(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let arguments = settings.kubeadm.arguments.iter();
    let arguments = arguments.filter_map(|named| argument(root, named).ok());
    let files = settings.kubeadm.files.iter();
    let files = files.filter_map(|path| defined(root, Origin::Node, path).ok());
    arguments
        .chain(files)
        .filter_map(|file| {
            let content = file.read().ok()??;
            let mode = content.metadata.mode;
            let text = std::str::from_utf8(&content.bytes).ok()?;
            let secret = kubeadm_secret(text).filter(|_| mode & 0o007 != 0)?;
            let path = file.on_this_machine();
            let path = path.display();
            Some(format!(
                "{path}: mode {mode:04o} lets other users read the {secret} in it (chmod 600 {path})"
            ))
        })
        .collect()
}

/// Returns the first key of kubeadm's documents whose value is a secret.
fn kubeadm_secret(text: &str) -> Option<&'static str> {
    fn find(value: &Value) -> Option<&'static str> {
        match value {
            Value::Object(entries) => entries.iter().find_map(|(key, value)| {
                let secret = KUBEADM_SECRETS.into_iter().find(|secret| key == secret);
                match value {
                    Value::Object(_) | Value::Array(_) => find(value),
                    // YAML reads a key that consists of digits as a number.
                    Value::String(_) | Value::Number(_) => secret,
                    Value::Null | Value::Bool(_) => None,
                }
            }),
            Value::Array(items) => items.iter().find_map(find),
            _ => None,
        }
    }
    let documents = yaml::parse("", text).ok()?;
    documents
        .iter()
        .find_map(|document| find(&yaml::to_json(document)))
}

/// Returns each file that the settings of a signer, or `join.certificateKey`, name and that does not exist. Files with a
/// placeholder in their path are left out.
pub(super) fn absent_files(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let named = named_files(settings).into_iter().map(|named| {
        let purpose = match named.content {
            NamedContent::Kubeconfig => "put the kubeconfig there, mode 0600",
            NamedContent::Secret => "put the credential there, mode 0600",
            NamedContent::Public => "write its content there",
        };
        (named.setting, named.origin, named.path, purpose)
    });
    let trusted = trusted_files(settings).into_iter().map(|(setting, path)| {
        let purpose = "put the certificate of the server's CA there";
        (setting, settings.signer_origin, path, purpose)
    });
    let files = named.chain(trusted);
    files
        .filter(|(_, _, path, _)| !path.to_string_lossy().contains('{'))
        .filter_map(|(setting, origin, path, purpose)| {
            let found = defined(root, origin, &path).ok()?;
            let is_absent = matches!(found.root.metadata(&found.path), Ok(None));
            is_absent.then(|| {
                format!(
                    "{setting}: {} does not exist ({purpose})",
                    found.on_this_machine().display()
                )
            })
        })
        .collect()
}

/// The CA files of the signers' servers, with their settings.
pub(super) fn trusted_files(settings: &Settings) -> Vec<(String, PathBuf)> {
    let signers = settings.signers.iter();
    signers
        .filter_map(|(name, config)| {
            let kind = config.kind().as_str();
            let shown = config.redacted();
            let path = shown.pointer(&format!("/{kind}/tls/caFile"))?.as_str()?;
            Some((format!("signers.{name}.{kind}.tls.caFile"), path.into()))
        })
        .collect()
}

pub(super) fn exposed_files(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let named = named_files(settings).into_iter();
    named
        .filter_map(|named| {
            let files = DefinedFiles::new(root, named.origin);
            let is_public = match named.content {
                NamedContent::Kubeconfig => {
                    is_of_node(&named.path) || !has_secret(files.as_ref(), &named.path)
                }
                NamedContent::Secret => false,
                NamedContent::Public => true,
            };
            if is_public {
                return None;
            }
            let error = files.read_secret(&named.path).err()?;
            store::is_access_refusal(&error).then(|| format!("{}: {error}", named.setting))
        })
        .collect()
}

fn has_secret(files: &dyn Files, kubeconfig: &Path) -> bool {
    let bytes = files.read(kubeconfig).unwrap_or_default();
    let kubeconfig = std::str::from_utf8(&bytes).map(Kubeconfig::parse);
    let current = kubeconfig.map(|parsed| parsed.and_then(|kubeconfig| kubeconfig.current()));
    matches!(current, Ok(Ok(current)) if current.has_secret())
}

/// Returns each `local` signer whose CA private keys are on the node.
pub fn local_ca_keys(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let signers = settings.signers.iter();
    signers
        .filter_map(|(name, config)| {
            let signer::Config::Local(local) = config else {
                return None;
            };
            let keys: Vec<Authority> = Authority::ALL
                .into_iter()
                .filter(|authority| is_on_node(root, settings.signer_origin, &local.key(*authority)))
                .collect();
            let names: Vec<&str> = keys.iter().map(|authority| authority.as_str()).collect();
            let directory = defined(root, settings.signer_origin, &local.directory).ok()?;
            (!names.is_empty()).then(|| {
                format!(
                    "signers.{name}.local.directory: {} contains the private keys of {} on this node",
                    directory.on_this_machine().display(),
                    names.join(", ")
                )
            })
        })
        .collect()
}

fn is_on_node(root: &NodeRoot, origin: Origin, path: &Path) -> bool {
    let Ok(found) = defined(root, origin, path) else {
        return false;
    };
    found.on_node && matches!(found.root.metadata(&found.path), Ok(Some(_)))
}

/// The content of a file that a setting names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedContent {
    Secret,
    /// It must be private if it contains a credential.
    Kubeconfig,
    /// Every user may read it.
    Public,
}

/// A file that a setting names.
pub(super) struct NamedFile {
    pub(super) setting: String,
    content: NamedContent,
    pub(super) origin: Origin,
    pub(super) path: PathBuf,
}

/// Returns the files that the settings name, apart from certificates of CAs. Credentials of systemd are private and omitted.
pub(super) fn named_files(settings: &Settings) -> Vec<NamedFile> {
    let mut named = Vec::new();
    for (name, config) in &settings.signers {
        let about = config.kind().about();
        let shown = config.redacted();
        for key in schema::rows("", about.keys) {
            let pointer = format!("/{}/{}", about.name, key.path.replace('.', "/"));
            let text = shown.pointer(&pointer).and_then(Value::as_str);
            let content = match key.form {
                ValueForm::Secret | ValueForm::SecretPath => NamedContent::Secret,
                ValueForm::Kubeconfig => NamedContent::Kubeconfig,
                ValueForm::Public => NamedContent::Public,
                _ => continue,
            };
            if let Some(Ok(SecretFile::Path(path))) = text.map(SecretFile::parse) {
                named.push(NamedFile {
                    setting: format!("signers.{name}.{}.{}", about.name, key.path),
                    content,
                    origin: settings.signer_origin,
                    path,
                });
            }
        }
    }
    if let Some(SecretFile::Path(path)) = &settings.join.certificate_key {
        named.push(NamedFile {
            setting: "join.certificateKey".to_owned(),
            content: NamedContent::Secret,
            origin: settings.origin,
            path: path.clone(),
        });
    }
    named
}
