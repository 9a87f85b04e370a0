//! The forms of the fields that nodepki does not use: `kubeadm config validate` refuses a file for them as well.

use super::fields::absolute;
use crate::yaml::schema::duration_fix;
use crate::yaml::{Field, Map, parse_duration};

/// The form of one value.
pub(super) enum Shape {
    Text,
    Boolean,
    /// An absolute path.
    Path,
    /// A duration in Go's notation.
    Duration,
    OneOf(&'static [&'static str]),
    List(&'static Shape),
    Map(&'static [(&'static str, Shape)]),
    /// Not verified.
    Any,
}

pub(super) const PATCHES: Shape = Shape::Map(&[("directory", Shape::Text)]);
pub(super) const TEXTS: Shape = Shape::List(&Shape::Text);
pub(super) const DNS: Shape = Shape::Map(&[
    ("imageRepository", Shape::Text),
    ("imageTag", Shape::Text),
    ("disabled", Shape::Boolean),
]);
pub(super) const PROXY: Shape = Shape::Map(&[("disabled", Shape::Boolean)]);
pub(super) const VOLUMES: Shape = Shape::List(&Shape::Map(&[
    ("name", Shape::Text),
    ("hostPath", Shape::Text),
    ("mountPath", Shape::Text),
    ("readOnly", Shape::Boolean),
    ("pathType", Shape::Text),
]));
pub(super) const TIMEOUTS: Shape = Shape::Map(&[
    ("controlPlaneComponentHealthCheck", Shape::Duration),
    ("kubeletHealthCheck", Shape::Duration),
    ("kubernetesAPICall", Shape::Duration),
    ("etcdAPICall", Shape::Duration),
    ("tlsBootstrap", Shape::Duration),
    ("discovery", Shape::Duration),
    ("upgradeManifests", Shape::Duration),
]);
pub(super) const PULL_POLICY: Shape = Shape::OneOf(&["Always", "IfNotPresent", "Never"]);
pub(super) const TOKEN_USAGES: Shape = Shape::List(&Shape::OneOf(&["signing", "authentication"]));

impl Shape {
    fn check(&self, field: &Field<'_>) {
        match self {
            Shape::Text => _ = field.string(),
            Shape::Boolean => _ = field.boolean(),
            Shape::Path => {
                if let Some(text) = field.string().filter(|text| !text.is_empty()) {
                    absolute(field, &text);
                }
            }
            Shape::Duration => {
                if let Some(text) = field.string()
                    && let Err(message) = parse_duration(&text)
                {
                    field.error(message, duration_fix(&text, "5m0s"));
                }
            }
            Shape::OneOf(values) => {
                if let Some(text) = field.string().filter(|text| !text.is_empty())
                    && !values.contains(&text.as_str())
                {
                    let fix = format!("use {}", values.join(" or "));
                    field.error(format!("{text:?} is not possible here"), fix);
                }
            }
            Shape::List(item) => {
                for field in field.list().unwrap_or_default() {
                    item.check(&field);
                }
            }
            Shape::Map(fields) => {
                if let Some(map) = field.map() {
                    unused(&map, fields);
                    map.finish();
                }
            }
            Shape::Any => {}
        }
    }
}

/// Marks fields as known that nodepki does not use. A strict walk verifies their form.
pub(super) fn unused(map: &Map<'_>, fields: &[(&str, Shape)]) {
    for (key, shape) in fields {
        if map.field().walk().is_strict() {
            _ = map.get(key).map(|field| shape.check(&field));
        } else {
            map.ignore(&[key]);
        }
    }
}
