//! How names are written in the settings: of the node, SANs, common names, and certificates to omit.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::kube::kubeadm::{InvalidValue, NodeName, San, ValueNote};
use crate::kube::names::{self, CertName};
use crate::yaml::schema::{MapKey, ValueForm};
use crate::yaml::settings::Setting;
use crate::yaml::{self, Field, FieldPosition, Map};

/// Returns the value, or reports why it is refused.
pub(super) fn accepted<T>(field: &Field<'_>, read: Result<T, InvalidValue>) -> Option<T> {
    read.map_err(|refusal| field.error(refusal.message, refusal.fix))
        .ok()
}

/// As [`accepted`], for a value with notes, which are reported as warnings.
pub(super) fn accepted_with_notes<T>(
    field: &Field<'_>,
    read: Result<(T, impl IntoIterator<Item = ValueNote>), InvalidValue>,
) -> Option<T> {
    let (value, notes) = accepted(field, read)?;
    for note in notes {
        field.warning(note.message, note.fix);
    }
    Some(value)
}

impl Setting for NodeName {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        match field.string()?.parse() {
            Ok(name) => Some(name),
            Err(refusal) => {
                field.error(
                    refusal.message,
                    "use a DNS name, or remove nodeName to take kubeadm's",
                );
                None
            }
        }
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self))
    }
}

/// Common names that are not identities in Kubernetes.
#[rustfmt::skip]
const COMMON_NAMES: &[MapKey] = &[
    MapKey::new("apiserver", ValueForm::Text, "Common name in place of kube-apiserver; {node}, {cluster} and {certificate} are replaced."),
    MapKey::new("front-proxy-client", ValueForm::Text, "In place of front-proxy-client; must be among kube-apiserver's --requestheader-allowed-names."),
    MapKey::new("etcd-server", ValueForm::Text, "Common name in place of the node's."),
    MapKey::new("etcd-peer", ValueForm::Text, "Common name in place of the node's."),
    MapKey::new("etcd-healthcheck-client", ValueForm::Text, "Common name in place of kube-etcd-healthcheck-client."),
    MapKey::new("apiserver-etcd-client", ValueForm::Text, "Common name in place of kube-apiserver-etcd-client."),
];

impl Setting for BTreeMap<CertName, String> {
    const FORM: ValueForm = ValueForm::Block(COMMON_NAMES);

    fn read(field: &Field<'_>) -> Option<Self> {
        common_names(field)
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self))
    }
}

fn common_names(field: &Field<'_>) -> Option<BTreeMap<CertName, String>> {
    let mut read = BTreeMap::new();
    let map = field.map()?;
    for name in CertName::ALL {
        if !name.has_free_common_name() {
            refuse_common_name(&map, name);
            continue;
        }
        let Some(field) = map.get(name.as_str()) else {
            continue;
        };
        let Some(text) = field.string() else { continue };
        let printable = text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        if names::unknown_placeholder(&text) {
            field.error(
                format!("{text:?} has an unknown placeholder"),
                format!("use {}", names::PLACEHOLDERS.join(", ")),
            );
        } else if text.is_empty() || !printable || text.trim() != text {
            field.error(
                format!("{text:?} is not a valid common name"),
                "write printable ASCII, for instance etcd-peer.{node}",
            );
        } else if text.starts_with("system:") {
            field.error(
                format!("{text:?} is reserved by Kubernetes"),
                "use one that does not begin with system:",
            );
        } else {
            read.insert(name, text);
        }
    }
    map.finish();
    Some(read)
}

/// Reports why a common name cannot be changed, which is more specific than an unknown key.
fn refuse_common_name(map: &Map<'_>, name: CertName) {
    let Some(entry) = map.field().node().get(name.as_str()) else {
        return;
    };
    map.ignore(&[name.as_str()]);
    let free: Vec<_> = CertName::ALL
        .into_iter()
        .filter(|name| name.has_free_common_name())
        .map(CertName::as_str)
        .collect();
    let spot = FieldPosition {
        place: entry.place.clone(),
        field: format!("commonNames.{name}"),
    };
    map.field().walk().push(spot.error(
        format!("the common name of {name} is its identity in Kubernetes"),
        format!("remove it; free are those of {}", free.join(", ")),
    ));
}

impl Setting for San {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        accepted_with_notes(field, San::parse(&field.string()?))
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.to_string()))
    }
}

impl Setting for BTreeSet<CertName> {
    const FORM: ValueForm = ValueForm::List(&ValueForm::Choice(omittable));

    fn read(field: &Field<'_>) -> Option<Self> {
        Some(field.list()?.iter().filter_map(omitted).collect())
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self))
    }
}

fn omittable() -> Vec<&'static str> {
    CertName::OMITTABLE
        .into_iter()
        .map(CertName::as_str)
        .collect()
}

fn omitted(item: &Field<'_>) -> Option<CertName> {
    let text = item.string()?;
    let Ok(name) = text.parse::<CertName>() else {
        let otherwise = format!("use {}", omittable().join(" or "));
        let fix = yaml::fix_for(&text, omittable(), otherwise);
        item.error(format!("{text:?} is not the name of a certificate"), fix);
        return None;
    };
    if !CertName::OMITTABLE.contains(&name) {
        item.error(
            format!("{name} cannot be omitted: the node does not work without it"),
            format!("remove it; {} can be omitted", omittable().join(" and ")),
        );
        return None;
    }
    Some(name)
}
