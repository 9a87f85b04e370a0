//! `capi migrate to-internal`: restores CA keys from backups to the Secrets with their certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::super::apply::{self, map_at};
use super::super::issue::{self, Order};
use super::super::secrets::{ClusterTarget, Object, Purpose};
use super::{KEYS_RESTORED, KeyEntry, SecretEntry, SecretsReport, anchors, replace, unwritable};
use crate::agent::{Clock, Failure, audit};
use crate::cluster::api::Api;
use crate::commands::migrate::backup::Backup;
use crate::commands::migrate::report::{AuthorityRow, Direction, KeyAction, MigrationReport};
use crate::commands::migrate::to_external::keys_records;
use crate::kube::names::Authority;
use crate::process::failpoint;
use crate::store::NodeRoot;
use crate::text::hex;
use crate::x509::PrivateKey;

/// Entry in which Cluster API reads the key of an authority.
const KEY_ENTRY: &str = "tls.key";

pub(super) struct ToInternal<'a> {
    pub(super) root: &'a NodeRoot,
    pub(super) api: &'a Api,
    pub(super) target: ClusterTarget,
    pub(super) authorities: BTreeSet<Authority>,
    /// The authorities were named, so keys of others in the backups are ignored and each named one is required.
    pub(super) is_selective: bool,
    /// Write the keys; otherwise only report.
    pub(super) apply: bool,
    pub(super) backups: Vec<Backup>,
}

/// Restores the CA keys of backups if each belongs to the certificate in its Secret.
///
/// # Errors
/// The Secrets could not be read or written. Reasons against the restore are in the report, and nothing is written then.
pub(super) async fn to_internal(
    wish: &ToInternal<'_>,
    clock: Clock,
) -> Result<SecretsReport, Failure> {
    let mut report = MigrationReport::new(Direction::ToInternal);
    let purposes = wish.authorities.iter().copied().map(Purpose::of);
    let mut found = apply::read(wish.api, &wish.target, purposes).await?;
    let mut missing: BTreeMap<Authority, Rc<PrivateKey>> = BTreeMap::new();
    for key in backup_keys(wish, &mut report)? {
        compare(wish, &found, Rc::new(key), &mut report, &mut missing);
    }
    if wish.is_selective {
        report.require_keys(&wish.authorities, |authority| {
            let name = wish.target.name(Purpose::of(authority));
            format!("the certificate in Secret {name}")
        });
    }
    if !report.unproven.is_empty() {
        report.replace_action(KeyAction::ToBeWritten, KeyAction::LeftOut);
        return Ok(report);
    }
    if !missing.is_empty() {
        report.changes = changes_with_keys(wish);
    }
    if !wish.apply || missing.is_empty() {
        return Ok(report);
    }
    let order = Order {
        target: wish.target.clone(),
        endpoint: None,
        external_etcd: false,
        ca_dir: None,
        rotated: BTreeMap::new(),
        state: None,
    };
    let state = issue::state(wish.root, &order)?;
    for (authority, key) in &missing {
        let purpose = Purpose::of(*authority);
        let Some(mut object) = found.remove(&purpose) else {
            continue;
        };
        if let Some(data) = map_at(&mut object.0, &["data"]) {
            let content = Value::String(BASE64.encode(key.to_pem().as_bytes()));
            data.insert(KEY_ENTRY.to_owned(), content);
        }
        replace(wish.api, &wish.target, purpose, &object).await?;
        // One entry for each Secret, so that an interruption leaves none of the restored keys without one.
        let records = keys_records(std::iter::once(authority), KEYS_RESTORED);
        audit::append(&state, clock(), &records);
        failpoint::reached("migrate:committed");
        let location = SecretEntry::new(&wish.target, purpose, KEY_ENTRY);
        report.written.push(PathBuf::from(location.to_string()));
    }
    report.replace_action(KeyAction::ToBeWritten, KeyAction::Written);
    report.applied = true;
    Ok(report)
}

/// Returns the keys of all backups, and reports the backups that cannot be opened.
fn backup_keys(
    wish: &ToInternal<'_>,
    report: &mut SecretsReport,
) -> Result<Vec<PrivateKey>, Failure> {
    let mut keys = Vec::new();
    for backup in &wish.backups {
        keys.extend(backup.open(report)?);
    }
    Ok(keys)
}

/// Compares a key of a backup with the Secrets whose certificate it belongs to, and adds their rows.
fn compare(
    wish: &ToInternal<'_>,
    found: &BTreeMap<Purpose, Object>,
    key: Rc<PrivateKey>,
    report: &mut SecretsReport,
    missing: &mut BTreeMap<Authority, Rc<PrivateKey>>,
) {
    let mut is_used = false;
    for (purpose, object) in found {
        let is_own =
            anchors(object).is_ok_and(|trust| trust.first().public_key() == key.public_key());
        if !is_own {
            continue;
        }
        is_used = true;
        let authority = purpose.authority();
        // Several backups may contain the same key.
        if report.contains(authority) {
            continue;
        }
        let location = SecretEntry::new(&wish.target, *purpose, KEY_ENTRY);
        let action = match KeyEntry::read(object, KEY_ENTRY) {
            KeyEntry::Free => KeyAction::ToBeWritten,
            KeyEntry::Key(present) if present.public_key() == key.public_key() => {
                KeyAction::InPlace
            }
            KeyEntry::OfEtcdClients => {
                report.refuse(format!(
                    "{location} is the key of the etcd client CA, with which the controllers sign, and is not overwritten (leave the authority out by naming the others with --authority)"
                ));
                KeyAction::Kept
            }
            KeyEntry::Key(_) | KeyEntry::Other(_) => {
                report.refuse(format!(
                    "{location} exists, is not the key of the CA certificate in the same Secret and is not overwritten (find out what it is, and remove it)"
                ));
                KeyAction::Kept
            }
        };
        if action == KeyAction::ToBeWritten {
            if let Some(why) = unwritable(object) {
                let name = wish.target.name(*purpose);
                report.refuse(format!("Secret {name}: {why}"));
            }
            missing.insert(authority, Rc::clone(&key));
        }
        let name = wish.target.name(*purpose);
        report.authorities.push(AuthorityRow {
            authority,
            key: location,
            action,
            proven: vec![format!("the key belongs to the certificate in {name}")],
        });
    }
    if !is_used && !wish.is_selective {
        report.refuse(format!(
            "a backup contains a key (public key sha256:{}) that belongs to no CA certificate in the Secrets of {} in {} (name the backup of this cluster, correct --namespace, or select authorities with --authority)",
            hex(&key.public_key().sha256()),
            wish.target.cluster(),
            wish.target.namespace()
        ));
    }
}

fn changes_with_keys(wish: &ToInternal<'_>) -> Vec<String> {
    let name = |purpose| wish.target.name(purpose);
    vec![
        "Cluster API signs with these keys again and writes them to new control-plane nodes; every reader of the Secrets can sign for the authorities".to_owned(),
        format!(
            "Cluster API renews {} only after you delete the Secret, which it then creates with a type of its own; end the timer of nodepki capi secrets first",
            name(Purpose::Kubeconfig)
        ),
        "the KubeadmControlPlane still installs nodepki on new machines: remove its files and preKubeadmCommands from the template".to_owned(),
    ]
}
