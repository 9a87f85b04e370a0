//! `nodepki capi migrate`: removes the CA keys from the Secrets of a workload cluster, and restores them.
//!
//! Both directions only report without `--apply`. Each Secret is replaced with the `resourceVersion` with which it was
//! read, so a change by another client is never overwritten. A run that was interrupted is completed by the next one:
//! the backup is written before the first key is removed, and is accepted again if it contains the remaining keys.

mod to_external;
mod to_internal;

use std::collections::BTreeSet;
use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::super::migrate::PassphraseArgs;
use super::super::migrate::backup::Backup;
use super::super::migrate::report::MigrationReport;
use super::apply;
use super::etcd_clients::{is_client_authority_key, without_client_authority};
use super::secrets::{ClusterTarget, KEY_PLACEHOLDER, Object, Purpose};
use super::{TargetArgs, issue, rights};
use crate::agent::load;
use crate::agent::{ExitCode, Failure};
use crate::cluster::api::{Api, SECRET};
use crate::commands::options::{GlobalOptions, RunOptions};
use crate::commands::output::terminal::Terminal;
use crate::commands::output::{print, print_warnings};
use crate::commands::{now, runtime};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::store::NodeRoot;
use crate::x509::{PrivateKey, TrustBundle};
use to_external::ToExternal;

/// Entries of an authority's Secret that can contain its private key.
const KEY_ENTRIES: [&str; 2] = ["tls.key", "ca.key"];

/// `action` of the entry in the issuance log of a key that was restored.
const KEYS_RESTORED: &str = "keys restored";

#[derive(Debug, Subcommand)]
pub(in crate::commands) enum CapiMigrateCommand {
    /// Prove that the management cluster does not need the CA keys; with --apply, back them up and remove them
    ///
    /// All Secrets must be valid, no controller may renew the kubeconfig with the CA key, and the external signer of each
    /// authority must respond and have the same CA. All missing proofs are reported together, and nothing is removed
    /// then (65). Keys on nodes and in the bootstrap data of existing Machines are not removed.
    ToExternal(Box<ToExternalArgs>),
    /// Check that CA keys from a backup belong to the certificates in the Secrets; with --apply, restore them
    ToInternal(ToInternalArgs),
}

#[derive(Debug, Args)]
struct MigrationArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Kubeconfig of the management cluster
    #[arg(long, value_name = "FILE", required_unless_present = "rights")]
    kubeconfig: Option<Argument>,
    /// Only this authority: ca, front-proxy-ca or etcd-ca; may be repeated
    #[arg(long, value_name = "NAME")]
    authority: Vec<Authority>,
    /// Apply the change; without this, only report
    #[arg(long)]
    apply: bool,
    /// Print a ServiceAccount with the rights that --apply needs, for `kubectl apply -f -`
    #[arg(long, conflicts_with_all = ["kubeconfig", "apply"])]
    rights: bool,
}

impl MigrationArgs {
    /// Returns a ServiceAccount with exactly the rights that `command` needs, which reads the Secrets `read` besides those
    /// with CA keys.
    fn rights(
        &self,
        command: &str,
        read: impl FnOnce(&ClusterTarget) -> Vec<String>,
    ) -> Result<String, Failure> {
        let target = self.target.target()?;
        let authorities = self.authorities()?;
        let of_authorities: Vec<String> = authorities
            .iter()
            .map(|authority| target.name(Purpose::of(*authority)))
            .collect();
        let mut options = self.target.options();
        for authority in &self.authority {
            options.push_str(&format!(" --authority {authority}"));
        }
        let others = read(&target).into_iter();
        let others: Vec<String> = others
            .filter(|name| !of_authorities.contains(name))
            .collect();
        let mut rules = vec![rights::secrets(&of_authorities, &["get", "update"])];
        if !others.is_empty() {
            rules.push(rights::secrets(&others, &["get"]));
        }
        Ok(rights::manifest(&target, command, &options, &rules))
    }

    /// Returns the selected authorities.
    fn authorities(&self) -> Result<BTreeSet<Authority>, Failure> {
        let external_etcd = self.target.external_etcd;
        if external_etcd && self.authority.contains(&Authority::EtcdCa) {
            return Err(Failure::usage(
                "--authority etcd-ca contradicts --external-etcd (omit one of them)",
            ));
        }
        let selected = Authority::ALL.into_iter().filter(|authority| {
            let is_named = self.authority.is_empty() || self.authority.contains(authority);
            is_named && !(external_etcd && *authority == Authority::EtcdCa)
        });
        Ok(selected.collect())
    }
}

#[derive(Debug, Args)]
pub(in crate::commands) struct ToExternalArgs {
    #[command(flatten)]
    what: MigrationArgs,
    #[command(flatten)]
    run: RunOptions,
    /// File for the encrypted keys; created, never overwritten
    #[arg(long, value_name = "FILE", requires = "passphrase")]
    backup: Option<Argument>,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// Replace the keys in CLUSTER-ca and CLUSTER-proxy by a placeholder: today's Cluster API lets no node join without one
    #[arg(long)]
    placeholder_keys: bool,
}

#[derive(Debug, Args)]
pub(in crate::commands) struct ToInternalArgs {
    #[command(flatten)]
    what: MigrationArgs,
    /// File with encrypted keys; may be repeated
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "rights",
        requires = "passphrase"
    )]
    backup: Vec<Argument>,
    #[command(flatten)]
    passphrase: PassphraseArgs,
}

impl CapiMigrateCommand {
    pub(super) fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let report = match self {
            CapiMigrateCommand::ToExternal(arguments) => {
                let what = &arguments.what;
                let Some(kubeconfig) = &what.kubeconfig else {
                    // clap requires --rights then.
                    let read = |target: &ClusterTarget| what.target.secret_names(target);
                    return print(&what.rights("migrate to-external", read)?);
                };
                arguments.run(global, &root, kubeconfig)?
            }
            CapiMigrateCommand::ToInternal(arguments) => {
                let what = &arguments.what;
                let Some(kubeconfig) = &what.kubeconfig else {
                    return print(&what.rights("migrate to-internal", |_| Vec::new())?);
                };
                arguments.run(&root, kubeconfig)?
            }
        };
        report.print(global, "the management cluster")
    }
}

impl ToExternalArgs {
    fn run(
        &self,
        global: &GlobalOptions,
        root: &NodeRoot,
        kubeconfig: &Argument,
    ) -> Result<SecretsReport, Failure> {
        let what = &self.what;
        let target = what.target.target()?;
        let backup = self.passphrase.backups(root, self.backup.as_slice())?.pop();
        if what.apply && backup.is_none() {
            return Err(Backup::required());
        }
        let api = load::cluster(root, kubeconfig)?;
        let inputs = self.run.inputs(global)?;
        let wish = ToExternal {
            root,
            api: &api,
            format: what.target.format,
            external_etcd: what.target.external_etcd,
            authorities: what.authorities()?,
            apply: what.apply,
            backup,
            placeholders: self.placeholder_keys,
            target,
        };
        let load_setup = |order: &issue::Order| {
            let (setup, warnings) = issue::setup(root, &inputs, order, now())?;
            print_warnings(&warnings);
            Ok(setup)
        };
        let terminal = Terminal::new(global.verbose);
        let done = to_external::to_external(&wish, &load_setup, now);
        runtime()?.block_on(terminal.during(done))
    }
}

impl ToInternalArgs {
    fn run(&self, root: &NodeRoot, kubeconfig: &Argument) -> Result<SecretsReport, Failure> {
        let target = self.what.target.target()?;
        let backups = self.passphrase.backups(root, &self.backup)?;
        let api = load::cluster(root, kubeconfig)?;
        let wish = to_internal::ToInternal {
            root,
            api: &api,
            authorities: self.what.authorities()?,
            is_selective: !self.what.authority.is_empty(),
            apply: self.what.apply,
            backups,
            target,
        };
        runtime()?.block_on(to_internal::to_internal(&wish, now))
    }
}

/// The report of a migration of Secrets.
type SecretsReport = MigrationReport<SecretEntry>;

/// An entry of a Secret, shown as `NAMESPACE/SECRET/ENTRY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct SecretEntry(String);

impl SecretEntry {
    fn new(target: &ClusterTarget, purpose: Purpose, entry: &str) -> Self {
        SecretEntry(format!(
            "{}/{}/{entry}",
            target.namespace(),
            target.name(purpose)
        ))
    }
}

impl fmt::Display for SecretEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Content of an entry for a private key.
enum KeyEntry {
    /// The entry is absent or empty, or contains nodepki's placeholder.
    Free,
    /// The key of the etcd client CA, which stays.
    OfEtcdClients,
    Key(PrivateKey),
    /// The reason why the entry is neither.
    Other(String),
}

impl KeyEntry {
    fn read(object: &Object, entry: &str) -> Self {
        let Some(bytes) = object.data(entry) else {
            return KeyEntry::Free;
        };
        if bytes.trim_ascii().is_empty() || bytes.as_slice() == KEY_PLACEHOLDER {
            return KeyEntry::Free;
        }
        let mut keys = match PrivateKey::all_from_pem(&bytes) {
            Ok(keys) => keys,
            Err(error) => return KeyEntry::Other(error.to_string()),
        };
        match (keys.pop(), keys.is_empty()) {
            (Some(key), true) => {
                let bundle = certificates(object);
                let is_of_clients =
                    bundle.is_ok_and(|bundle| is_client_authority_key(&bundle, key.public_key()));
                if is_of_clients {
                    KeyEntry::OfEtcdClients
                } else {
                    KeyEntry::Key(key)
                }
            }
            (None, _) => KeyEntry::Other("it does not contain a private key".to_owned()),
            (Some(_), false) => KeyEntry::Other("it contains several private keys".to_owned()),
        }
    }
}

/// Returns whether an authority's Secret contains a private key other than that of the etcd client CA, or an entry for one with
/// unknown content.
pub(super) fn contains_ca_key(object: &Object) -> bool {
    KEY_ENTRIES.into_iter().any(|entry| {
        let read = KeyEntry::read(object, entry);
        matches!(read, KeyEntry::Key(_) | KeyEntry::Other(_))
    })
}

/// Returns the CA certificates of an authority's Secret.
pub(super) fn certificates(object: &Object) -> Result<TrustBundle, String> {
    let pem = object.data("tls.crt").or_else(|| object.data("ca.crt"));
    let pem = pem.ok_or("it contains neither tls.crt nor ca.crt")?;
    TrustBundle::from_pem(&pem).map_err(|error| format!("its certificate is unusable: {error}"))
}

/// As [`certificates`], without the etcd client CA.
fn anchors(object: &Object) -> Result<TrustBundle, String> {
    certificates(object).map(without_client_authority)
}

/// Returns why a Secret cannot be replaced, if so.
fn unwritable(object: &Object) -> Option<&'static str> {
    if object.0.get("immutable") == Some(&Value::Bool(true)) {
        return Some(
            "it is immutable, so that no entry can be changed (delete the Secret and create it again without immutable: true)",
        );
    }
    let version = object.0.pointer("/metadata/resourceVersion");
    match version.and_then(Value::as_str) {
        Some(version) if !version.is_empty() => None,
        _ => Some("the API server returned it without a resourceVersion"),
    }
}

/// Replaces a Secret unless another client has changed it since it was read.
async fn replace(
    api: &Api,
    target: &ClusterTarget,
    purpose: Purpose,
    object: &Object,
) -> Result<Object, Failure> {
    let (namespace, name) = (target.namespace(), target.name(purpose));
    let replaced = api
        .replace(&SECRET, Some(namespace), &name, &object.0)
        .await;
    replaced
        .map(Object)
        .map_err(|error| apply::failed("replacing", namespace, &name, error))
}

#[cfg(test)]
mod tests {
    use base64::prelude::*;
    use serde_json::json;
    use time::macros::datetime;

    use super::*;
    use crate::commands::capi::etcd_clients;
    use crate::spec::policy::{KeyPolicy, KeyRules};
    use crate::x509::{CertificateAuthority, KeyAlgorithm};

    fn pem_of(keys: &[&PrivateKey]) -> String {
        keys.iter().map(|key| key.to_pem().to_string()).collect()
    }

    #[test]
    fn distinguishes_key_of_etcd_client_authority() {
        let now = datetime!(2026-06-01 12:00 UTC);
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let policy = KeyPolicy::new(KeyRules::default(), KeyAlgorithm::Rsa2048);
        etcd_clients::load(&root, true, &policy, now).unwrap();
        let clients = root.read("/etcd-client-ca.pem").unwrap().unwrap().bytes;
        let client_key = PrivateKey::from_pem(&clients).unwrap();
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let etcd_key = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
        let life = std::time::Duration::from_secs(86_400);
        let etcd = CertificateAuthority::self_signed("etcd-ca", key, now, life).unwrap();
        let etcd = etcd.bundle().to_pem();
        let bundle = [
            TrustBundle::from_pem(&clients).unwrap().to_pem(),
            etcd.clone(),
        ]
        .concat();
        let secret = |keys: &[&PrivateKey]| {
            let encoded = |text: &str| BASE64_STANDARD.encode(text);
            Object(json!({"data": {
                "tls.crt": encoded(&bundle),
                "tls.key": encoded(&pem_of(keys)),
            }}))
        };
        let object = secret(&[&client_key]);
        assert_eq!(anchors(&object).unwrap().to_pem(), etcd);
        let read = KeyEntry::read(&object, "tls.key");
        assert!(matches!(read, KeyEntry::OfEtcdClients));
        let object = secret(&[&etcd_key]);
        let KeyEntry::Key(read) = KeyEntry::read(&object, "tls.key") else {
            panic!("the key of the etcd CA is not read");
        };
        let anchors = anchors(&object).unwrap();
        assert_eq!(anchors.first().public_key(), read.public_key());
        let several = secret(&[&etcd_key, &client_key]);
        let read = KeyEntry::read(&several, "tls.key");
        assert!(matches!(read, KeyEntry::Other(_)));
    }
}
