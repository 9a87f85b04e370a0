//! The key policy in the cluster: OpenShift's object `pkis.config.openshift.io/cluster`.
//!
//! [`ClusterPolicyWatch`] follows the object within the daemon and keeps the last valid document in the state directory;
//! [`ClusterPolicy::read`] reads it there, without the cluster, for every command, and [`ClusterPolicy::fetch`] reads the
//! object once for a command that may issue certificates. A faulty document is reported, also by an Event about the object, and does not
//! replace the last valid one. Without the object, and without its definition, the policy of the node's own configuration
//! applies.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{Failure, load};
use crate::cluster::api::{Api, ApiError, Resource};
use crate::cluster::event::{self, EVENT, EVENT_NAMESPACE};
use crate::cluster::watch::{Watch, WatchChange};
use crate::config::ClusterPolicySettings;
use crate::spec::policy::{self, GROUP, KeyRules, SINGLETON as NAME};
use crate::store::{ClusterPolicyRecord, NodeRoot, StoreError};
use crate::text::hex;
#[cfg(test)]
use crate::text::rfc3339;
use crate::yaml;

/// The object, for messages.
const OBJECT: &str = "pkis.config.openshift.io/cluster";
/// The versions of the resource that are read, in the order of preference.
static VERSIONS: [Resource; 2] = [version(policy::VERSIONS[0]), version(policy::VERSIONS[1])];
/// Time after which the API server is asked again for the versions of the resource.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// Reason of the Event about a faulty document.
const INVALID: &str = "KeyPolicyInvalid";

const fn version(version: &'static str) -> Resource {
    Resource::new(GROUP, version, "pkis", "PKI")
}

/// The key policy of the cluster as it was last read.
#[derive(Default)]
pub(super) struct ClusterPolicy {
    /// Rules of the last valid document; `None` without one.
    pub(super) rules: Option<KeyRules>,
    /// Why it is not known what the policy in the cluster requires.
    pub(super) warning: Option<String>,
    /// Why this run could not read the policy again; the last one is used.
    pub(super) note: Option<String>,
    /// The last answer of the cluster.
    record: Option<ClusterPolicyRecord>,
    /// Whether the record is newer than that in the state directory.
    is_new: bool,
}

impl ClusterPolicy {
    /// Reads the state directory. A damaged file is a warning: the daemon writes it again.
    pub(super) fn read(root: &NodeRoot, settings: &ClusterPolicySettings) -> ClusterPolicy {
        if !settings.enabled {
            return ClusterPolicy::default();
        }
        let record = match root.cluster_policy() {
            Ok(record) => record,
            Err(error) => {
                return ClusterPolicy {
                    warning: Some(format!(
                        "the key policy of the cluster is ignored until it was read again: {error}"
                    )),
                    ..ClusterPolicy::default()
                };
            }
        };
        match record {
            Some(record) => ClusterPolicy::of(record),
            None => ClusterPolicy {
                warning: Some(format!(
                    "clusterPolicy.enabled: {OBJECT} was not read yet (nodepki renew and nodepki daemon read it)"
                )),
                ..ClusterPolicy::default()
            },
        }
    }

    fn of(record: ClusterPolicyRecord) -> ClusterPolicy {
        let ClusterPolicyRecord {
            document, refused, ..
        } = record.clone();
        let in_force = match document {
            Some(_) => "the last valid one is used",
            None => "the key policy of this node is used",
        };
        let mut warning = refused.map(|why| format!("{OBJECT} is not valid: {why}; {in_force}"));
        let rules = document.and_then(|document| match rules_of(&document) {
            Ok(rules) => Some(rules),
            Err(why) => {
                warning = Some(format!("{OBJECT} is not valid for this version: {why}"));
                None
            }
        });
        ClusterPolicy {
            rules,
            warning,
            record: Some(record),
            ..ClusterPolicy::default()
        }
    }

    /// Returns whether the cluster has ever answered.
    pub(super) fn was_read(&self) -> bool {
        self.record.is_some()
    }

    /// Returns whether it is known what the cluster requires, perhaps by an earlier document.
    pub(super) fn is_known(&self) -> bool {
        let has_none = self
            .record
            .as_ref()
            .is_some_and(|record| *record == ClusterPolicyRecord::default());
        self.rules.is_some() || has_none
    }

    /// Returns when the rules were written to the cluster.
    pub(super) fn since(&self) -> Option<OffsetDateTime> {
        let record = self.record.as_ref().filter(|_| self.rules.is_some());
        record.and_then(|record| record.since)
    }

    /// Takes the answer of the cluster.
    pub(super) fn learn(&mut self, read: Result<ClusterPolicyRecord, Failure>) {
        match read {
            Ok(record) if self.record.as_ref() != Some(&record) => {
                *self = ClusterPolicy {
                    is_new: true,
                    ..ClusterPolicy::of(record)
                };
            }
            Ok(_) => {}
            Err(failure) => {
                let why = format!("{OBJECT} cannot be read: {}", failure.one_line());
                if self.was_read() {
                    self.note = Some(format!("{why}; the policy that was read last is used"));
                } else {
                    self.warning = Some(why);
                }
            }
        }
    }

    /// Returns the record, if it is to be kept for runs without the cluster.
    pub(super) fn to_keep(&self) -> Option<&ClusterPolicyRecord> {
        self.record.as_ref().filter(|_| self.is_new)
    }

    /// Reads the object once. The record is empty if the object or its definition does not exist.
    pub(super) async fn fetch(&self, api: &Api) -> Result<ClusterPolicyRecord, ApiError> {
        let group = match api.document(&format!("/apis/{GROUP}")).await {
            Err(ApiError::Refused(status)) if status.code == 404 => Value::Null,
            group => group?,
        };
        let object = match known_version(&group) {
            Some(resource) => api
                .read(resource, None, NAME)
                .await?
                .map(|object| (object, resource)),
            None => None,
        };
        Ok(
            object.map_or_else(ClusterPolicyRecord::default, |(object, resource)| {
                accept(self.record.clone().unwrap_or_default(), &object, resource)
            }),
        )
    }
}

/// Reads a document; the error contains every fault.
fn rules_of(document: &Value) -> Result<KeyRules, String> {
    let nodes = yaml::parse(OBJECT, &document.to_string()).map_err(|faults| faults.to_string())?;
    let Some(node) = nodes.first() else {
        return Err("it is empty".to_owned());
    };
    match KeyRules::from_document(node) {
        Ok((rules, _)) => Ok(rules),
        Err(faults) => Err(faults.to_string().replace('\n', "; ")),
    }
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_document(bytes: &[u8]) {
    if let Ok(document) = serde_json::from_slice(bytes) {
        let _ = rules_of(&document);
    }
}

/// Follows the object.
pub(crate) struct ClusterPolicyWatch {
    root: NodeRoot,
    api: Api,
}

impl ClusterPolicyWatch {
    /// Returns `None` if the setting is off. Sends nothing.
    pub(crate) fn new(
        root: &NodeRoot,
        settings: &ClusterPolicySettings,
    ) -> Result<Option<ClusterPolicyWatch>, Failure> {
        if !settings.enabled {
            return Ok(None);
        }
        Ok(Some(ClusterPolicyWatch {
            root: root.clone(),
            api: load::cluster(root, settings.kubeconfig.as_path())?,
        }))
    }

    /// Keeps each valid document, until it is dropped. Failures are logged and retried.
    pub(crate) async fn run(&self) -> Infallible {
        let resource = self.served_version().await;
        let watch = Watch::of_object(resource, None, NAME);
        let mut is_listed = false;
        let (refused, events) = mpsc::unbounded_channel();
        let following = watch.run(&self.api, |change: WatchChange<Value>| match change {
            WatchChange::Listing => is_listed = false,
            WatchChange::Present(object) => {
                is_listed = true;
                if let Some(why) = self.keep(|former| accept(former, &object, resource)) {
                    // Fails only if the receiver is gone, which ends with this function.
                    let _ =
                        refused.send(invalid(&object, resource, &why, OffsetDateTime::now_utc()));
                }
            }
            WatchChange::Listed if !is_listed => {
                self.keep(|_| ClusterPolicyRecord::default());
            }
            WatchChange::Listed => {}
            WatchChange::Deleted(_) => {
                self.keep(|_| ClusterPolicyRecord::default());
            }
        });
        tokio::select! {
            never = following => never,
            never = self.write(events) => never,
        }
    }

    /// Creates the Events. A failure is not retried: the log and the commands report the same.
    async fn write(&self, mut events: mpsc::UnboundedReceiver<Value>) -> Infallible {
        while let Some(event) = events.recv().await {
            match self.api.create(&EVENT, Some(EVENT_NAMESPACE), &event).await {
                Ok(_) => {}
                // By another node.
                Err(ApiError::Refused(status)) if status.is_already_exists() => {}
                Err(error) => tracing::info!("no Event about {OBJECT} was written: {error}"),
            }
        }
        std::future::pending().await
    }

    /// Waits until the API server has a known version of the resource.
    async fn served_version(&self) -> &'static Resource {
        let mut reported = None;
        loop {
            let why = match self.api.document(&format!("/apis/{GROUP}")).await {
                Ok(group) => match known_version(&group) {
                    Some(resource) => return resource,
                    None => format!("no known version of {GROUP} is served"),
                },
                Err(error) => error.to_string(),
            };
            if reported.as_ref() != Some(&why) {
                tracing::warn!("{OBJECT} cannot be read: {why}; trying again");
                reported = Some(why);
            }
            sleep(DISCOVERY_INTERVAL).await;
        }
    }

    /// Replaces the record, and returns why a document is refused, if that is new. The daemon watches the file, and reads its
    /// configuration again after a change.
    fn keep(
        &self,
        change: impl FnOnce(ClusterPolicyRecord) -> ClusterPolicyRecord,
    ) -> Option<String> {
        let former = match self.root.cluster_policy() {
            // A damaged file is written again; that of a newer nodepki is not.
            Err(StoreError::Damaged { .. }) => None,
            Err(error) => {
                tracing::error!("{error}");
                return None;
            }
            Ok(former) => former,
        };
        let record = change(former.clone().unwrap_or_default());
        if former.as_ref() == Some(&record) {
            return None;
        }
        match (&record.refused, &record.document) {
            (Some(why), _) => tracing::error!(
                "{OBJECT} is not valid and is not used: {why} (correct it with kubectl edit pki cluster)"
            ),
            (None, Some(_)) => tracing::info!("{OBJECT} was read"),
            (None, None) => tracing::info!("{OBJECT} does not exist"),
        }
        if let Err(error) = self.root.keep_cluster_policy(&record) {
            tracing::error!("the key policy of the cluster cannot be kept: {error}");
        }
        record.refused
    }
}

/// Returns the preferred one of the known versions in a document of `/apis/GROUP`.
fn known_version(group: &Value) -> Option<&'static Resource> {
    let served = group.get("versions")?.as_array()?;
    VERSIONS.iter().find(|known| {
        served
            .iter()
            .any(|one| one.get("version").and_then(Value::as_str) == Some(known.version))
    })
}

/// Returns the record after the object was read. Items of a list lack `apiVersion` and `kind`; `metadata` and `status`
/// change without a change of the policy.
fn accept(former: ClusterPolicyRecord, object: &Value, resource: &Resource) -> ClusterPolicyRecord {
    let mut document = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {"name": NAME},
    });
    if let (Some(spec), Some(fields)) = (object.get("spec"), document.as_object_mut()) {
        fields.insert("spec".to_owned(), spec.clone());
    }
    match rules_of(&document) {
        Ok(_) => ClusterPolicyRecord {
            since: former
                .since
                .filter(|_| former.document.as_ref() == Some(&document))
                .or_else(|| written_at(object)),
            document: Some(document),
            refused: None,
        },
        Err(why) => ClusterPolicyRecord {
            refused: Some(why),
            ..former
        },
    }
}

/// Returns when the spec was written, by the latest entry of `managedFields` that is not of a subresource. An object without
/// the field has at least a time of creation.
fn written_at(object: &Value) -> Option<OffsetDateTime> {
    let time = |value: Option<&Value>| OffsetDateTime::parse(value?.as_str()?, &Rfc3339).ok();
    let entries = object.pointer("/metadata/managedFields");
    let entries = entries.and_then(Value::as_array).into_iter().flatten();
    entries
        .filter(|entry| entry.get("subresource").is_none())
        .filter_map(|entry| time(entry.get("time")))
        .max()
        .or_else(|| time(object.pointer("/metadata/creationTimestamp")))
}

/// Returns the Event about a faulty object. Every node derives the same name for the same revision.
fn invalid(object: &Value, resource: &Resource, why: &str, now: OffsetDateTime) -> Value {
    let field = |name: &str| object.pointer(&format!("/metadata/{name}"));
    let uid = field("uid").and_then(Value::as_str).unwrap_or_default();
    let revision = field("generation").or_else(|| field("resourceVersion"));
    let revision = revision.map(Value::to_string).unwrap_or_default();
    let digest = hex(&Sha256::digest(format!("{uid}/{revision}")));
    let name = format!("nodepki-policy-{}", digest.get(..16).unwrap_or(&digest));
    let message = format!("this version of the key policy is not used: {why}");
    event::warning(&name, resource, (NAME, uid), INVALID, &message, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: Value) -> Value {
        json!({"metadata": {"name": "cluster", "resourceVersion": "7"}, "spec": spec})
    }

    #[test]
    fn faulty_document_does_not_replace_last_valid_one() {
        let curve = |curve: &str| json!({"defaults": {"key": {"algorithm": "ECDSA", "ecdsa": {"curve": curve}}}});
        let [v1, v1alpha1] = &VERSIONS;
        let valid = accept(ClusterPolicyRecord::default(), &object(curve("P384")), v1);
        assert_eq!(valid.refused, None);
        let document = valid.document.clone().unwrap();
        assert_eq!(document["apiVersion"], "config.openshift.io/v1");
        assert_eq!(document["metadata"], json!({"name": "cluster"}));
        let refused = accept(valid.clone(), &object(curve("P-384")), v1);
        assert_eq!(refused.document, valid.document);
        let why = refused.refused.clone().unwrap();
        assert!(why.contains("spec.defaults.key.ecdsa.curve"), "{why}");
        let corrected = accept(refused, &object(json!({})), v1alpha1);
        assert_eq!(corrected.refused, None);
        assert_eq!(corrected.since, None);
        assert_ne!(corrected.document, valid.document);
    }

    #[test]
    fn keeps_time_at_which_the_spec_was_written() {
        let [v1, _] = &VERSIONS;
        let written = |size: i64, at: &str| {
            let mut object = object(json!({
                "defaults": {"key": {"algorithm": "RSA", "rsa": {"keySize": size}}},
            }));
            object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            object["metadata"]["managedFields"] = json!([
                {"time": "2026-02-01T00:00:00Z"},
                {"time": at},
                {"time": "2027-01-01T00:00:00Z", "subresource": "status"},
            ]);
            object
        };
        let first = accept(
            ClusterPolicyRecord::default(),
            &written(2048, "2026-03-01T00:00:00Z"),
            v1,
        );
        assert_eq!(
            first.since.map(rfc3339).as_deref(),
            Some("2026-03-01T00:00:00Z")
        );
        // A new annotation is no new policy.
        let annotated = accept(first.clone(), &written(2048, "2026-04-01T00:00:00Z"), v1);
        assert_eq!(annotated, first);
        let changed = accept(first, &written(4096, "2026-05-01T00:00:00Z"), v1);
        assert_eq!(
            changed.since.map(rfc3339).as_deref(),
            Some("2026-05-01T00:00:00Z")
        );
        let mut bare = written(3072, "");
        bare["metadata"]["managedFields"] = json!(null);
        let bare = accept(changed, &bare, v1);
        assert_eq!(
            bare.since.map(rfc3339).as_deref(),
            Some("2026-01-01T00:00:00Z")
        );
    }

    #[test]
    fn prefers_v1_of_the_served_versions() {
        let group = |versions: &[&str]| {
            let versions: Vec<Value> = versions.iter().map(|one| json!({"version": one})).collect();
            json!({"versions": versions})
        };
        let version = |versions: &[&str]| known_version(&group(versions)).map(|one| one.version);
        assert_eq!(version(&["v1alpha1", "v1"]), Some("v1"));
        assert_eq!(version(&["v1alpha1"]), Some("v1alpha1"));
        assert_eq!(version(&["v2"]), None);
        assert_eq!(known_version(&json!({})).map(|one| one.version), None);
    }

    #[test]
    fn nodes_create_one_event_for_each_faulty_revision() {
        let [v1, _] = &VERSIONS;
        let now = OffsetDateTime::UNIX_EPOCH;
        let event = |generation: u64, status: &str| {
            let object = json!({"metadata": {
                "name": "cluster", "uid": "u-1", "generation": generation, "resourceVersion": status,
            }});
            invalid(&object, v1, "spec.defaults\u{1b}: wrong", now)
        };
        let first = event(1, "7");
        assert_eq!(first["metadata"], event(1, "8")["metadata"]);
        assert_ne!(first["metadata"]["name"], event(2, "8")["metadata"]["name"]);
        assert_eq!(first["reason"], "KeyPolicyInvalid");
        let about = json!({"apiVersion": "config.openshift.io/v1", "kind": "PKI", "name": "cluster", "uid": "u-1"});
        assert_eq!(first["involvedObject"], about);
        let message = first["message"].as_str().unwrap();
        assert!(
            message.contains("spec.defaults") && !message.contains('\u{1b}'),
            "{message}"
        );
    }
}
