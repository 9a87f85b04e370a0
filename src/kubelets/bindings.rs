//! Which UID the Node of a name had when it was first seen, and which names are revoked.
//!
//! A kubelet whose Node was deleted still has its certificate, and creates its Node again. The name alone is therefore not
//! enough to renew a certificate: the Node must be the one that was seen first. A certificate for a bootstrap token, the
//! approval of an administrator and the label of control-plane nodes, which no kubelet can set, end this binding, and the
//! Node that is seen next is bound.
//!
//! The bindings are the `data` of one ConfigMap: key NAME, value `uid=UID`, with `gone=DATE` once the Node was deleted and
//! `revoked=DATE` if no certificate may be signed for the name. `key=SHA-256` in place of the UID is the public key whose
//! certificate is for the next Node of a name that was bound. An administrator may edit it. This module knows its content
//! and what is still to be written; it does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Date, OffsetDateTime};

use crate::kube::csr_object::NodeObject;
use crate::text::hex;

/// Shortest time for which the binding of a deleted Node is kept: its certificates may be as old.
const MIN_KEPT: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Largest size of all entries in bytes, as [`stored_bytes`] counts them. etcd accepts requests of 1.5 MiB
/// (`DefaultMaxRequestBytes`), and the API server 1 MiB of values, which are less than four fifths of their entries
/// (`pkg/apis/core/validation/validation.go`, `MaxSecretSize`).
const MAX_STORED_BYTES: usize = 1280 << 10;
/// Largest size of an entry besides its value and twice its name: three tags and lengths of protobuf, and `"f:":{},`.
const ENTRY_BYTES: usize = 8 + 8;

const DATE: &[BorrowedFormatItem<'static>] = format_description!("[year]-[month]-[day]");

/// What is known about the Node of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeBinding {
    /// UID of the Node; empty if none was seen.
    uid: String,
    /// SHA-256, in hexadecimal, of the key whose certificate is for the next Node; empty if it was seen.
    key: String,
    /// When it was deleted.
    gone: Option<Date>,
    /// When the name was revoked.
    revoked: Option<Date>,
}

impl NodeBinding {
    /// Reads a value. A part that is not valid makes the binding match no Node: an administrator decides.
    fn parse(text: &str) -> NodeBinding {
        let mut binding = NodeBinding::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let date = || Date::parse(value, DATE).ok();
            match key {
                "uid" => value.clone_into(&mut binding.uid),
                "key" => value.clone_into(&mut binding.key),
                "gone" => binding.gone = date(),
                // A date that cannot be read must not end a revocation.
                "revoked" => binding.revoked = Some(date().unwrap_or(Date::MIN)),
                _ => word.clone_into(&mut binding.uid),
            }
        }
        binding
    }

    fn to_text(&self) -> String {
        let date = |date: &Date| date.format(DATE).unwrap_or_default();
        let mut words = Vec::new();
        for (key, value) in [("uid", &self.uid), ("key", &self.key)] {
            if !value.is_empty() {
                words.push(format!("{key}={value}"));
            }
        }
        words.extend(self.gone.iter().map(|at| format!("gone={}", date(at))));
        words.extend(
            self.revoked
                .iter()
                .map(|at| format!("revoked={}", date(at))),
        );
        words.join(" ")
    }
}

/// A change that is not stored yet.
#[derive(Clone, Debug)]
enum BindingChange {
    /// What the API server showed of the Node. A revocation replaces it.
    Seen(NodeBinding),
    /// A certificate of a token, or an administrator, confirmed this Node, or the next one of its name. It is stored beside a
    /// revocation, which may end again.
    Confirmed(NodeBinding),
}

impl BindingChange {
    /// Returns the binding to be stored.
    fn binding(&self) -> &NodeBinding {
        match self {
            BindingChange::Seen(binding) | BindingChange::Confirmed(binding) => binding,
        }
    }
}

/// The bindings of a cluster, as stored and with the changes that are not stored yet.
#[derive(Clone, Debug, Default)]
pub struct NodeBindings {
    stored: BTreeMap<String, NodeBinding>,
    changes: BTreeMap<String, BindingChange>,
}

impl NodeBindings {
    /// Takes in the stored object; `None` if it does not exist. Returns the names of which it knows something else.
    pub fn store(&mut self, object: Option<&Value>) -> Vec<String> {
        let data = object.and_then(|object| object.get("data")?.as_object());
        let text = |(name, value): (&String, &Value)| {
            let binding = NodeBinding::parse(value.as_str()?);
            Some((name.clone(), binding))
        };
        let present = data.into_iter().flatten().filter_map(text).collect();
        let former = std::mem::replace(&mut self.stored, present);
        let differs = |name: &&String| former.get(*name) != self.stored.get(*name);
        let names = former.keys().chain(self.stored.keys());
        let changed = names.filter(differs).cloned().collect();
        let (stored, changes) = (&self.stored, &mut self.changes);
        changes.retain(|name, change| {
            let stored = stored.get(name);
            let revoked = stored.and_then(|stored| stored.revoked);
            // Only an administrator changes whether a name is revoked.
            match change {
                BindingChange::Seen(_) if revoked.is_some() => return false,
                BindingChange::Seen(binding) | BindingChange::Confirmed(binding) => {
                    binding.revoked = revoked;
                }
            }
            stored != Some(change.binding())
        });
        changed
    }

    fn get(&self, name: &str) -> Option<&NodeBinding> {
        match self.changes.get(name) {
            Some(change) => Some(change.binding()),
            None => self.stored.get(name),
        }
    }

    fn change(&mut self, name: &str, change: BindingChange) {
        if self.is_revoked(name) {
            return;
        }
        if self.stored.get(name) == Some(change.binding()) {
            self.changes.remove(name)
        } else {
            self.changes.insert(name.to_owned(), change)
        };
    }

    /// Records what was seen of a Node. A confirmation that is not stored yet stays one.
    fn record(&mut self, name: &str, binding: NodeBinding) {
        let change = match self.changes.get(name) {
            Some(BindingChange::Confirmed(_)) => BindingChange::Confirmed(binding),
            _ => BindingChange::Seen(binding),
        };
        self.change(name, change);
    }

    /// Takes in a Node that exists. The first one of its name is bound.
    pub fn see(&mut self, node: &NodeObject) {
        let binding = match self.get(&node.name) {
            Some(known) if known.uid == node.uid => NodeBinding {
                gone: None,
                ..known.clone()
            },
            Some(known) if known.uid.is_empty() || node.is_control_plane => NodeBinding {
                uid: node.uid.clone(),
                key: String::new(),
                gone: None,
                ..known.clone()
            },
            Some(_) => return,
            None => NodeBinding {
                uid: node.uid.clone(),
                ..NodeBinding::default()
            },
        };
        if self.get(&node.name) != Some(&binding) {
            self.record(&node.name, binding);
        }
    }

    /// Takes in that no Node of this name exists. Its binding is kept.
    pub fn see_none(&mut self, name: &str, now: OffsetDateTime) {
        if let Some(known) = self.get(name)
            && known.gone.is_none()
        {
            let gone = NodeBinding {
                gone: Some(now.date()),
                ..known.clone()
            };
            self.record(name, gone);
        }
    }

    /// Takes in that the API server has only these Nodes.
    pub fn see_all(&mut self, exists: impl Fn(&str) -> bool, now: OffsetDateTime) {
        let names = self.stored.keys().chain(self.changes.keys());
        let gone: Vec<String> = names.filter(|name| !exists(name)).cloned().collect();
        gone.iter().for_each(|name| self.see_none(name, now));
    }

    /// Ends the binding of a name: the certificate for this key belongs to the present Node, or to the next.
    pub fn renew(&mut self, name: &str, node: Option<&NodeObject>, key: &[u8; 32]) {
        let mut binding = NodeBinding::default();
        match node {
            Some(node) => binding.uid.clone_from(&node.uid),
            None => binding.key = hex(key),
        }
        let is_same = match self.get(name) {
            Some(known) => (&known.uid, &known.key) == (&binding.uid, &binding.key),
            // The next Node is bound in any case.
            None => node.is_none(),
        };
        if !is_same {
            self.change(name, BindingChange::Confirmed(binding));
        }
    }

    /// Returns true if another Node of this name was seen before this one.
    pub fn is_replaced(&self, node: &NodeObject) -> bool {
        let known = self.get(&node.name);
        known.is_some_and(|known| !known.uid.is_empty() && known.uid != node.uid)
    }

    /// Returns true if a Node of this name was seen since the last certificate of a bootstrap token for it: that certificate
    /// ends the binding.
    pub(super) fn is_bound(&self, name: &str) -> bool {
        self.get(name).is_some_and(|known| !known.uid.is_empty())
    }

    /// Returns true if the last certificate for this name, whose former Node is gone, is for this key. It may not be published.
    pub(super) fn is_for_key(&self, name: &str, key: &[u8; 32]) -> bool {
        self.get(name).is_some_and(|known| known.key == hex(key))
    }

    /// Returns true if no certificate may be signed for this name.
    pub fn is_revoked(&self, name: &str) -> bool {
        self.get(name).is_some_and(|known| known.revoked.is_some())
    }

    /// Revokes a name, or ends its revocation, as an administrator.
    pub fn revoke(&mut self, name: &str, revoked: Option<OffsetDateTime>) {
        self.changes.remove(name);
        let known = self.stored.entry(name.to_owned()).or_default();
        known.revoked = revoked.map(OffsetDateTime::date);
        if *known == NodeBinding::default() {
            self.stored.remove(name);
        }
    }

    /// Returns true if the binding of a name is not stored as it is known.
    pub fn is_changed(&self, name: &str) -> bool {
        self.changes.contains_key(name)
    }

    /// Returns true if there is something to write.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns the `data` to be written. Bindings of Nodes that were deleted so long ago that no certificate of them is
    /// valid, with this longest lifetime, are not in it; if there are too many, the oldest ones are not either.
    pub fn data(&self, lifetime: Duration, now: OffsetDateTime) -> Map<String, Value> {
        let mut all = self.stored.clone();
        for (name, change) in &self.changes {
            all.insert(name.clone(), change.binding().clone());
        }
        let oldest = (now - lifetime.max(MIN_KEPT)).date();
        let expires = |binding: &NodeBinding| binding.gone.filter(|_| binding.revoked.is_none());
        all.retain(|_, binding| expires(binding).is_none_or(|gone| gone >= oldest));
        let size =
            |(name, binding): (&String, &NodeBinding)| stored_bytes(name, &binding.to_text());
        let mut bytes: usize = all.iter().map(size).sum();
        let mut removable: Vec<(Date, String)> = all
            .iter()
            .filter_map(|(name, binding)| Some((expires(binding)?, name.clone())))
            .collect();
        removable.sort_unstable_by(|one, other| other.cmp(one));
        while bytes > MAX_STORED_BYTES
            && let Some((_, name)) = removable.pop()
            && let Some(binding) = all.remove(&name)
        {
            bytes -= size((&name, &binding));
        }
        let text = |(name, binding): (String, NodeBinding)| (name, json!(binding.to_text()));
        all.into_iter().map(text).collect()
    }
}

/// Returns the size of an entry in etcd: `managedFields` contain its name too.
fn stored_bytes(name: &str, value: &str) -> usize {
    2 * name.len() + value.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-26 12:00 UTC);
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    const KEY: [u8; 32] = [7; 32];

    fn node(name: &str, uid: &str) -> NodeObject {
        NodeObject::from_json(
            &json!({"metadata": {"name": name, "uid": uid, "resourceVersion": "1",
            "creationTimestamp": "2026-11-26T11:00:00Z"}}),
        )
        .unwrap()
    }

    fn control_plane(name: &str, uid: &str) -> NodeObject {
        NodeObject {
            is_control_plane: true,
            ..node(name, uid)
        }
    }

    /// Returns the data, and what the next leader knows.
    fn written(bindings: &NodeBindings) -> (Value, NodeBindings) {
        let data = Value::Object(bindings.data(YEAR, NOW));
        let mut next = NodeBindings::default();
        next.store(Some(&json!({"data": data})));
        (data, next)
    }

    #[test]
    fn deleted_node_that_is_created_again_is_not_the_same() {
        let mut bindings = NodeBindings::default();
        bindings.see(&node("w1", "a"));
        bindings.see(&node("w2", "b"));
        assert!(bindings.has_changes());
        let (data, mut bindings) = written(&bindings);
        assert_eq!(data, json!({"w1": "uid=a", "w2": "uid=b"}));
        assert!(!bindings.is_replaced(&node("w1", "a")));
        bindings.see_all(|name| name == "w2", NOW);
        let (data, mut bindings) = written(&bindings);
        assert_eq!(data, json!({"w1": "uid=a gone=2026-11-26", "w2": "uid=b"}));
        for _ in 0..2 {
            bindings.see(&node("w1", "stolen"));
            assert!(bindings.is_replaced(&node("w1", "stolen")));
            bindings.see_none("w1", NOW);
        }
        assert!(!bindings.has_changes());
        // The former one was only unseen.
        bindings.see(&node("w1", "a"));
        assert_eq!(written(&bindings).0["w1"], "uid=a");
    }

    #[test]
    fn confirmation_binds_present_or_next_node() {
        let mut bindings = NodeBindings::default();
        bindings.see(&node("w1", "a"));
        // A bootstrap token got a certificate before the Node exists.
        bindings.renew("w1", None, &KEY);
        let (data, mut bindings) = written(&bindings);
        assert_eq!(data, json!({"w1": format!("key={}", hex(&KEY))}));
        assert!(bindings.is_for_key("w1", &KEY) && !bindings.is_for_key("w1", &[8; 32]));
        bindings.renew("w1", None, &KEY);
        bindings.renew("w2", None, &KEY);
        assert!(!bindings.has_changes());
        bindings.see_none("w1", NOW);
        bindings.see(&node("w1", "b"));
        assert!(!bindings.is_for_key("w1", &KEY));
        assert!(!bindings.is_replaced(&node("w1", "b")));
        assert!(bindings.is_replaced(&node("w1", "a")));
        // An administrator approved the request of a Node that exists.
        bindings.renew("w1", Some(&node("w1", "c")), &KEY);
        assert_eq!(written(&bindings).0, json!({"w1": "uid=c"}));
        // Only an administrator sets the label of control-plane nodes.
        bindings.see(&control_plane("w1", "d"));
        assert_eq!(written(&bindings).0, json!({"w1": "uid=d"}));
        // The same after the first binding was stored.
        let (_, mut bindings) = written(&bindings);
        assert!(!bindings.is_changed("w1"));
        bindings.renew("w1", None, &KEY);
        assert!(bindings.is_changed("w1") && !bindings.is_changed("w2"));
    }

    #[test]
    fn only_administrator_ends_revocation() {
        let mut bindings = NodeBindings::default();
        bindings.see(&node("w1", "a"));
        let (_, mut bindings) = written(&bindings);
        bindings.revoke("w1", Some(NOW));
        bindings.revoke("new", Some(NOW));
        let (data, mut bindings) = written(&bindings);
        let expected = json!({"w1": "uid=a revoked=2026-11-26", "new": "revoked=2026-11-26"});
        assert_eq!(data, expected);
        bindings.see(&node("new", "b"));
        bindings.see_none("w1", NOW);
        bindings.renew("w1", None, &KEY);
        assert!(bindings.is_revoked("w1") && bindings.is_revoked("new"));
        assert!(!bindings.is_revoked("w2"));
        // Revoked while this leader has a change of its own.
        let mut other = NodeBindings::default();
        other.see(&node("w1", "b"));
        assert_eq!(other.store(Some(&json!({"data": expected}))), ["new", "w1"]);
        assert!(other.is_revoked("w1"));
        assert_eq!(other.data(YEAR, NOW)["w1"], expected["w1"]);
        // A confirmed Node stays confirmed when the revocation ends.
        let mut other = NodeBindings::default();
        other.store(Some(&json!({"data": {"w1": "uid=a gone=2026-11-26"}})));
        other.renew("w1", Some(&node("w1", "b")), &KEY);
        for (data, written) in [
            ("uid=a revoked=2026-11-26", "uid=b revoked=2026-11-26"),
            ("uid=a", "uid=b"),
        ] {
            other.store(Some(&json!({"data": {"w1": data}})));
            assert_eq!(other.data(YEAR, NOW)["w1"], written);
        }
        assert!(!other.is_replaced(&node("w1", "b")));
        bindings.revoke("w1", None);
        bindings.revoke("new", None);
        assert!(!bindings.is_revoked("w1") && !bindings.is_revoked("new"));
        // A value that cannot be read matches no Node, and a date that cannot be read ends no revocation.
        let edited = json!({"data": {"w1": "a", "w2": "uid=b revoked=tomorrow", "w3": 7}});
        bindings.store(Some(&edited));
        assert!(bindings.is_replaced(&node("w1", "x")));
        assert!(bindings.is_revoked("w2") && !bindings.is_revoked("w3"));
    }

    #[test]
    fn forgets_deleted_nodes_without_valid_certificate_and_above_size_limit() {
        let mut data = Map::new();
        data.insert("old".to_owned(), json!("uid=a gone=2024-01-01"));
        data.insert(
            "older-revoked".to_owned(),
            json!("uid=b gone=2023-01-01 revoked=2023-01-01"),
        );
        data.insert("living".to_owned(), json!("uid=c"));
        for number in 0..20_000 {
            let day = 1 + number % 28;
            let value = format!("uid={number:036} gone=2026-10-{day:02}");
            data.insert(format!("autoscaled-{number:05}.example.com"), json!(value));
        }
        let mut bindings = NodeBindings::default();
        bindings.store(Some(&json!({"data": data})));
        let kept = bindings.data(YEAR, NOW);
        // The object as the API server sends it.
        let fields: Map<String, Value> = kept
            .keys()
            .map(|name| (format!("f:{name}"), json!({})))
            .collect();
        let size = json!({"data": kept, "managedFields": fields}).to_string();
        let size = size.len();
        assert!((1_200_000..1_400_000).contains(&size), "{size}");
        assert!(kept.contains_key("living") && kept.contains_key("older-revoked"));
        assert!(!kept.contains_key("old"));
        let has = |number: &str| kept.contains_key(&format!("autoscaled-{number}.example.com"));
        assert!(
            has("00027") && !has("00000"),
            "the oldest ones are forgotten"
        );
        // Certificates of ten years outlive the usual time.
        assert!(bindings.data(10 * YEAR, NOW).contains_key("living"));
    }
}
