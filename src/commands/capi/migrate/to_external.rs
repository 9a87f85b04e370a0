//! `capi migrate to-external`: proves that the management cluster does not need the CA keys, backs them up and removes them.
//!
//! 1. Prove: all Secrets are valid, no controller renews the kubeconfig with a CA key, and the signers of the configuration
//!    have the same CAs.
//! 2. Write an encrypted backup and read it back.
//! 3. Record the backup in the state directory of the cluster, and remove the keys, one Secret after the other. A run that
//!    follows an interrupted one accepts no other backup.
//! 4. Read the backup again, and restore the keys if that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::apply::{self, map_at};
use super::super::conditions::{self, SecretState};
use super::super::issue::{self, Order};
use super::super::secrets::{
    ADOPTED_TYPE, ClusterTarget, Format, KEY_PLACEHOLDER, MANAGED_BY_LABEL, MANAGED_BY_NODEPKI,
    Object, Purpose,
};
use super::{
    KEY_ENTRIES, KEYS_RESTORED, KeyEntry, SecretEntry, SecretsReport, anchors, contains_ca_key,
    replace, unwritable,
};
use crate::agent::audit::KEYS_REMOVED;
use crate::agent::{self, Clock, ExitCode, Failure, RunSetup, SignerAnswer, audit};
use crate::cluster::api::Api;
use crate::commands::migrate::backup::{Backup, BackupOrigin, CaKey};
use crate::commands::migrate::report::{AuthorityRow, Direction, KeyAction, MigrationReport};
use crate::commands::migrate::to_external::keys_records;
use crate::kube::kubeconfig::{Kubeconfig, wipe};
use crate::kube::names::Authority;
use crate::process::failpoint;
use crate::store::{KeyBackup, NodeRoot};

/// File in the state directory of the cluster with a [`RecordedRemoval`].
const REMOVAL_FILE: &str = "key-removal.json";
/// Annotation in which `kubectl apply` keeps a copy of the whole Secret, with the key.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(super) struct ToExternal<'a> {
    pub(super) root: &'a NodeRoot,
    pub(super) api: &'a Api,
    pub(super) target: ClusterTarget,
    pub(super) format: Format,
    pub(super) external_etcd: bool,
    pub(super) authorities: BTreeSet<Authority>,
    /// Remove the keys; otherwise only report.
    pub(super) apply: bool,
    /// Required by `apply`.
    pub(super) backup: Option<Backup>,
    /// Replace `tls.key` by the placeholder where Cluster API requires the entry.
    pub(super) placeholders: bool,
}

/// Keys in the Secrets.
#[derive(Default)]
struct FoundKeys {
    keys: BTreeMap<Authority, CaKey>,
    /// Entries that contain the key of an authority.
    entries: BTreeMap<Authority, Vec<&'static str>>,
}

/// Loads the signers' setup for the cluster of an order.
pub(super) type LoadSetup<'a> = dyn Fn(&Order) -> Result<RunSetup, Failure> + 'a;

/// Proves that the Secrets of the cluster are sufficient without the CA keys, and removes the keys if `wish.apply` is set.
///
/// # Errors
/// The Secrets could not be read or written. Reasons against the removal are in the report, and nothing is removed then.
pub(super) async fn to_external(
    wish: &ToExternal<'_>,
    load_setup: &LoadSetup<'_>,
    clock: Clock,
) -> Result<SecretsReport, Failure> {
    let mut report = MigrationReport::new(Direction::ToExternal);
    let purposes = wish.format.purposes(wish.external_etcd);
    let found = apply::read(wish.api, &wish.target, purposes).await?;
    let FoundKeys { keys, entries } = find_keys(wish, &found, &mut report);
    if keys.is_empty() {
        if let Some(backup) = &wish.backup {
            prove_earlier_backup(wish, backup, &found, &mut report)?;
        }
        return Ok(report);
    }
    prove_secrets(wish, &found, clock, &mut report);
    let order = Order {
        target: wish.target.clone(),
        endpoint: endpoint(&found),
        external_etcd: wish.external_etcd,
        ca_dir: None,
        rotated: BTreeMap::new(),
        state: None,
    };
    // Without a server, the removal has been refused already.
    if order.endpoint.is_some() {
        let setup = load_setup(&order)?;
        for (authority, entries) in &entries {
            prove_authority(wish, &setup, *authority, entries, &found, &mut report).await;
        }
    }
    if let Some(backup) = &wish.backup {
        let misplaced = match backup.misplaced_below(wish.root, [])? {
            Some(why) => Some(why),
            // Unlike those of a node, keys in a cluster outlast this machine.
            None => backup.is_lost_at_shutdown()?,
        };
        backup.prove(misplaced, &keys, &mut report);
    }
    report.changes = changes_without_keys(wish, &keys);
    report.keep_if_unproven();
    let Some(backup) = wish.backup.as_ref().filter(|_| wish.apply) else {
        return Ok(report);
    };
    if !report.unproven.is_empty() {
        return Ok(report);
    }
    failpoint::reached("migrate:proven");
    let origin = BackupOrigin::Secrets {
        cluster: wish.target.cluster(),
        namespace: wish.target.namespace(),
    };
    let state = issue::state(wish.root, &order)?;
    let earlier = RecordedRemoval::read(&state)?;
    if let Some(earlier) = &earlier {
        report.notes.extend(earlier.follow(wish, backup, &found)?);
    }
    let earlier = earlier.filter(|earlier| backup.is_of(&earlier.backup));
    let before = earlier.map(|earlier| earlier.authorities);
    let written = backup.write(&origin, &keys, clock())?;
    failpoint::reached("migrate:backed-up");
    let authorities = keys.keys().copied().chain(before.unwrap_or_default());
    let removal = RecordedRemoval {
        backup: written,
        authorities: authorities.collect(),
    };
    // Before the first Secret is changed: afterwards no Secret shows which file contains all keys.
    removal.write(&state)?;
    remove_keys(wish, &state, &entries, found, clock, &mut report).await?;
    if let Some(why) = backup.lost(&keys) {
        let keys = FoundKeys { keys, entries };
        return Err(restore_keys(wish, &state, keys, backup, &why, clock).await);
    }
    RecordedRemoval::forget(&state)?;
    report.applied = true;
    Ok(report)
}

/// A removal of keys and its backup, recorded while keys are removed.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedRemoval {
    backup: KeyBackup,
    authorities: BTreeSet<Authority>,
}

impl RecordedRemoval {
    /// Returns the removal that an earlier run has not finished.
    fn read(state: &NodeRoot) -> Result<Option<Self>, Failure> {
        let path = Path::new("/").join(REMOVAL_FILE);
        let Some(found) = state.read(&path)? else {
            return Ok(None);
        };
        serde_json::from_slice(&found.bytes)
            .map(Some)
            .map_err(|error| {
                let file = state.on_this_machine(&path);
                let what = format!("{}: the record of the backup is not valid", file.display());
                Failure::refused(what)
                    .caused_by(error)
                    .advise("find the backup of the earlier run and remove the record")
            })
    }

    fn write(&self, state: &NodeRoot) -> Result<(), Failure> {
        let failed = |error| {
            let what = "the record of the backup cannot be written";
            Failure::caused(ExitCode::Pending, what, error)
        };
        let text = serde_json::to_vec(self).map_err(failed)?;
        let directory = state.create_dir("/", 0o700)?;
        directory.write_atomic(REMOVAL_FILE, &text, 0o600)?;
        Ok(())
    }

    fn forget(state: &NodeRoot) -> Result<(), Failure> {
        state.create_dir("/", 0o700)?.remove(REMOVAL_FILE)?;
        Ok(())
    }

    /// Refuses another backup if the earlier run has removed a key: neither file would contain all of them. Returns a note if
    /// the earlier backup is lost.
    fn follow(
        &self,
        wish: &ToExternal<'_>,
        backup: &Backup,
        found: &BTreeMap<Purpose, Object>,
    ) -> Result<Option<String>, Failure> {
        let is_gone = |authority: &&Authority| {
            let object = found.get(&Purpose::of(**authority));
            !object.is_some_and(contains_ca_key)
        };
        let gone: Vec<&str> = self
            .authorities
            .iter()
            .filter(is_gone)
            .map(|authority| authority.as_str())
            .collect();
        if gone.is_empty() || backup.is_of(&self.backup) {
            return Ok(None);
        }
        let gone = gone.join(", ");
        let earlier = self.backup.shown(wish.root);
        let earlier = earlier.display();
        if let Some(why) = self.backup.loss(wish.root) {
            return Ok(Some(format!(
                "an interrupted run has removed the key of {gone} and written its backup to {earlier}, which is lost: {why}"
            )));
        }
        Err(Failure::refused(format!(
            "an interrupted run has removed the key of {gone} and written its backup to {earlier}, so that {} would lack it",
            backup.shown().display()
        ))
        .advise(format!(
            "run again with --backup {earlier} and its passphrase; for another backup, first restore the keys: nodepki capi migrate to-internal {} --namespace {} --kubeconfig FILE --backup {earlier} --passphrase-file FILE --apply",
            wish.target.cluster(),
            wish.target.namespace()
        )))
    }
}

fn prove_earlier_backup(
    wish: &ToExternal<'_>,
    backup: &Backup,
    found: &BTreeMap<Purpose, Object>,
    report: &mut SecretsReport,
) -> Result<(), Failure> {
    let certificates = wish.authorities.iter().filter_map(|authority| {
        let object = found.get(&Purpose::of(*authority))?;
        Some((*authority, anchors(object).ok()?))
    });
    let certificates: Vec<_> = certificates.collect();
    let certificates = certificates.iter().map(|(name, trust)| (*name, trust));
    backup.prove_earlier(certificates, "the management cluster", report)
}

/// Returns the keys in the Secrets of the selected authorities, and reports the entries that cannot be backed up.
fn find_keys(
    wish: &ToExternal<'_>,
    found: &BTreeMap<Purpose, Object>,
    report: &mut SecretsReport,
) -> FoundKeys {
    let mut all = FoundKeys::default();
    for authority in &wish.authorities {
        let purpose = Purpose::of(*authority);
        let Some(object) = found.get(&purpose) else {
            continue;
        };
        for entry in KEY_ENTRIES {
            let location = SecretEntry::new(&wish.target, purpose, entry);
            let key = match KeyEntry::read(object, entry) {
                // The key of the etcd client CA stays, since the controllers sign with it.
                KeyEntry::Free | KeyEntry::OfEtcdClients => continue,
                KeyEntry::Other(why) => {
                    report.refuse(format!(
                        "{location} cannot be backed up: {why} (find out what it is and remove it)"
                    ));
                    continue;
                }
                KeyEntry::Key(key) => key,
            };
            let is_own =
                anchors(object).is_ok_and(|trust| trust.first().public_key() == key.public_key());
            if !is_own {
                report.refuse(format!(
                    "{location} is not the key of the CA certificate in the same Secret (find out which CA it belongs to, and store it elsewhere)"
                ));
                continue;
            }
            report.authorities.push(AuthorityRow {
                authority: *authority,
                key: location,
                action: KeyAction::ToBeRemoved,
                proven: Vec::new(),
            });
            let bytes = object.data(entry).unwrap_or_default();
            all.keys
                .entry(*authority)
                .or_insert_with(|| CaKey { key, bytes });
            all.entries.entry(*authority).or_default().push(entry);
        }
        if let (Some(why), true) = (unwritable(object), all.keys.contains_key(authority)) {
            let name = wish.target.name(purpose);
            report.refuse(format!("Secret {name}: {why}"));
        }
    }
    all
}

/// Verifies that all Secrets are valid and that no controller needs a CA key for them.
fn prove_secrets(
    wish: &ToExternal<'_>,
    found: &BTreeMap<Purpose, Object>,
    clock: Clock,
    report: &mut SecretsReport,
) {
    let (target, external) = (&wish.target, wish.external_etcd);
    let findings = conditions::judge(target, wish.format, external, found, clock());
    for evidence in findings.evidence {
        let name = evidence.secret;
        match evidence.state {
            SecretState::Ready => {}
            SecretState::Missing => report.refuse(format!(
                "Secret {name} does not exist, and Cluster API would create it with the CA key (create it with nodepki capi secrets {} --apply)",
                target.cluster()
            )),
            SecretState::Invalid => report.refuse(format!(
                "Secret {name} is not valid: {} (correct it with nodepki capi secrets {} --apply)",
                evidence.faults.join("; "),
                target.cluster()
            )),
        }
    }
    for purpose in [Purpose::Kubeconfig, Purpose::EtcdClient] {
        let Some(object) = found.get(&purpose) else {
            continue;
        };
        let name = target.name(purpose);
        let adopted = |owner: &String| owner.starts_with("KubeadmControlPlane/");
        let is_renewed = purpose == Purpose::Kubeconfig
            && (object.kind() == ADOPTED_TYPE || object.owners().iter().any(adopted));
        if is_renewed {
            report.refuse(format!(
                "Secret {name} is renewed by KubeadmControlPlane with the CA key: its type is {}, its owners are [{}] (delete it and create it with nodepki capi secrets {} --apply)",
                object.kind(),
                object.owners().join(", "),
                target.cluster()
            ));
        } else if !is_managed(object) {
            report.refuse(format!(
                "Secret {name} was not issued through nodepki, so that nothing renews it without the CA key (delete it and create it with nodepki capi secrets {} --apply)",
                target.cluster()
            ));
        }
    }
    if endpoint(found).is_none() {
        report.refuse(format!(
            "Secret {} does not name an API server, so that the signers cannot be examined",
            target.name(Purpose::Kubeconfig)
        ));
    }
}

fn is_managed(object: &Object) -> bool {
    object.label(MANAGED_BY_LABEL) == Some(MANAGED_BY_NODEPKI)
}

/// Returns the API server of the workload cluster from its kubeconfig.
fn endpoint(found: &BTreeMap<Purpose, Object>) -> Option<String> {
    let text = found.get(&Purpose::Kubeconfig)?.data("value")?;
    let kubeconfig = Kubeconfig::parse(std::str::from_utf8(&text).ok()?).ok()?;
    let server = kubeconfig.current().ok()?.server?;
    let address = server.strip_prefix("https://")?;
    Some(address.trim_end_matches('/').to_owned())
}

/// Verifies that the signer of an authority has the CA of its Secret.
async fn prove_authority(
    wish: &ToExternal<'_>,
    setup: &RunSetup,
    authority: Authority,
    entries: &[&'static str],
    found: &BTreeMap<Purpose, Object>,
    report: &mut SecretsReport,
) {
    let Some(Ok(trust)) = found.get(&Purpose::of(authority)).map(anchors) else {
        return;
    };
    let signer = setup.signers.get(&authority);
    let label = signer.map_or_else(String::new, |(_, signer)| signer.label());
    // The key in the Secret belongs to the first certificate; others have other keys.
    let mut proven = match agent::verify_signer(setup, authority, &trust.first_alone()).await {
        Ok(SignerAnswer::SameAuthority) => vec![format!("{label} answers and has this CA")],
        Ok(SignerAnswer::Silent) => {
            report.refuse(format!(
                "{label} does not report its CA, so that it is unproven that it has {authority} (configure a signer that reports it, or leave the authority out by naming the others with --authority)"
            ));
            return;
        }
        Err(failures) => {
            report.unproven.extend(failures);
            return;
        }
    };
    let issued = [Purpose::EtcdClient, Purpose::Kubeconfig].into_iter();
    for purpose in issued.filter(|purpose| purpose.authority() == authority) {
        if found.get(&purpose).is_some_and(is_managed) {
            let name = wish.target.name(purpose);
            proven.push(format!("{name} is valid and was issued through nodepki"));
        }
    }
    for entry in entries {
        let location = SecretEntry::new(&wish.target, Purpose::of(authority), entry);
        let row = report
            .authorities
            .iter_mut()
            .find(|row| row.key == location);
        if let Some(row) = row {
            row.proven.extend(proven.iter().cloned());
        }
    }
}

/// Removes the keys, one Secret after the other.
async fn remove_keys(
    wish: &ToExternal<'_>,
    state: &NodeRoot,
    entries: &BTreeMap<Authority, Vec<&'static str>>,
    mut found: BTreeMap<Purpose, Object>,
    clock: Clock,
    report: &mut SecretsReport,
) -> Result<(), Failure> {
    for (authority, entries) in entries {
        let purpose = Purpose::of(*authority);
        let Some(mut object) = found.remove(&purpose) else {
            continue;
        };
        let had_copy = strip(&mut object, purpose, entries, wish.placeholders);
        replace(wish.api, &wish.target, purpose, &object).await?;
        let records = keys_records(std::iter::once(authority), KEYS_REMOVED);
        audit::append(state, clock(), &records);
        failpoint::reached("migrate:committed");
        let name = wish.target.name(purpose);
        for entry in entries {
            let location = SecretEntry::new(&wish.target, purpose, entry);
            report.removed.push(PathBuf::from(location.to_string()));
        }
        if had_copy {
            report.notes.push(format!(
                "the annotation {LAST_APPLIED} of {name} contained the key too and was removed"
            ));
        }
    }
    report.replace_action(KeyAction::ToBeRemoved, KeyAction::Removed);
    Ok(())
}

/// Removes key entries, and returns whether an annotation with a copy of them was removed as well.
fn strip(object: &mut Object, purpose: Purpose, entries: &[&str], placeholders: bool) -> bool {
    for part in ["data", "stringData"] {
        let Some(Value::Object(data)) = object.0.get_mut(part) else {
            continue;
        };
        for entry in entries {
            if let Some(mut content) = data.remove(*entry) {
                wipe(&mut content);
            }
        }
    }
    // KubeadmControlPlane signs with any `tls.key` in `<cluster>-etcd`.
    if placeholders
        && purpose != Purpose::Etcd
        && let Some(data) = map_at(&mut object.0, &["data"])
    {
        data.insert(
            "tls.key".to_owned(),
            Value::String(BASE64.encode(KEY_PLACEHOLDER)),
        );
    }
    let annotations = object.0.pointer_mut("/metadata/annotations");
    let copy = annotations
        .and_then(Value::as_object_mut)
        .and_then(|annotations| annotations.remove(LAST_APPLIED));
    match copy {
        Some(mut copy) => {
            wipe(&mut copy);
            true
        }
        None => false,
    }
}

/// Restores the removed keys after their backup was lost, and returns the failure to report.
async fn restore_keys(
    wish: &ToExternal<'_>,
    state: &NodeRoot,
    found_keys: FoundKeys,
    backup: &Backup,
    why: &str,
    clock: Clock,
) -> Failure {
    let FoundKeys { keys, entries } = found_keys;
    let lost = format!(
        "the backup {} cannot be read back after the CA keys were removed: {why}",
        backup.shown().display()
    );
    let restored = async {
        let purposes = keys.keys().map(|authority| Purpose::of(*authority));
        // The API server refuses a write to a version that the removal has replaced.
        let found = apply::read(wish.api, &wish.target, purposes).await?;
        for (purpose, mut object) in found {
            let authority = purpose.authority();
            let (Some(key), Some(entries)) = (keys.get(&authority), entries.get(&authority)) else {
                continue;
            };
            if let Some(data) = map_at(&mut object.0, &["data"]) {
                for entry in entries {
                    let content = Value::String(BASE64.encode(&key.bytes));
                    data.insert((*entry).to_owned(), content);
                }
            }
            replace(wish.api, &wish.target, purpose, &object).await?;
            let records = keys_records(std::iter::once(&authority), KEYS_RESTORED);
            audit::append(state, clock(), &records);
        }
        Ok::<(), Failure>(())
    };
    match restored.await {
        Ok(()) => Failure::pending(format!(
            "{lost}; the keys were restored (name another file with --backup and run again)"
        )),
        Err(error) => Failure::refused(format!("{lost}; the keys could not be restored"))
            .caused_by(error)
            .advise(
                "copy them from a control-plane node or from a backup of the management cluster",
            ),
    }
}

fn changes_without_keys(wish: &ToExternal<'_>, keys: &BTreeMap<Authority, CaKey>) -> Vec<String> {
    let name = |purpose| wish.target.name(purpose);
    let mut changes = vec![
        "the keys still exist on the control-plane nodes (nodepki migrate to-external removes them) and in the bootstrap data of their Machines: Secrets of type cluster.x-k8s.io/secret with the entry value, which Cluster API deletes with the Machine (roll out the control plane to replace them)".to_owned(),
        "etcd of the management cluster keeps earlier revisions until it is compacted and defragmented; its backups, and copies in a Git repository, keep the keys longer".to_owned(),
    ];
    if keys.contains_key(&Authority::Ca) {
        changes.push(format!(
            "nodepki capi secrets {} --apply must run regularly: Cluster API cannot renew {}",
            wish.target.cluster(),
            name(Purpose::Kubeconfig)
        ));
    }
    changes.push(if wish.placeholders { format!(
        "workers join with the placeholder in {} and {}; further control-plane nodes with stacked etcd need nodepki capi secrets --etcd-client-ca (see docs/cluster-api.md) or a Cluster API that implements the external-CA proposal",
        name(Purpose::Ca),
        name(Purpose::Proxy)
    ) } else { "Cluster API as released creates no bootstrap data for new Machines without a tls.key: workers, and further control-plane nodes with an external etcd, need --placeholder-keys; further control-plane nodes with stacked etcd also need nodepki capi secrets --etcd-client-ca (see docs/cluster-api.md)".to_owned() });
    changes
}

#[cfg(test)]
mod tests;
