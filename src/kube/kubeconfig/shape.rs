//! Types of the fields of a kubeconfig (client-go, `tools/clientcmd/api/v1`). A component refuses a file with a value of
//! another type, also in entries that it does not use.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use zeroize::Zeroizing;

use super::KubeconfigError;

/// The type of a value. `null` belongs to every type.
enum Shape {
    Text,
    Flag,
    /// Text in base64.
    Bytes,
    Any,
    List(&'static Shape),
    /// A list of mappings whose `name` is unique.
    Named(&'static Shape),
    /// A mapping with any keys.
    MapOf(&'static Shape),
    /// A mapping with these keys; others are ignored.
    Fields(&'static [(&'static str, Shape)]),
}
use Shape::{Any, Bytes, Fields, Flag, List, MapOf, Named, Text};

const EXTENSIONS: Shape = Named(&Fields(&[("name", Text), ("extension", Any)]));

const CONFIG_FIELDS: Shape = Fields(&[
    ("kind", Text),
    ("apiVersion", Text),
    (
        "preferences",
        Fields(&[("colors", Flag), ("extensions", EXTENSIONS)]),
    ),
    (
        "clusters",
        Named(&Fields(&[("name", Text), ("cluster", CLUSTER_FIELDS)])),
    ),
    (
        "users",
        Named(&Fields(&[("name", Text), ("user", USER_FIELDS)])),
    ),
    (
        "contexts",
        Named(&Fields(&[("name", Text), ("context", CONTEXT_FIELDS)])),
    ),
    ("current-context", Text),
    ("extensions", EXTENSIONS),
]);

const CLUSTER_FIELDS: Shape = Fields(&[
    ("server", Text),
    ("tls-server-name", Text),
    ("insecure-skip-tls-verify", Flag),
    ("certificate-authority", Text),
    ("certificate-authority-data", Bytes),
    ("proxy-url", Text),
    ("disable-compression", Flag),
    ("extensions", EXTENSIONS),
]);

const USER_FIELDS: Shape = Fields(&[
    ("client-certificate", Text),
    ("client-certificate-data", Bytes),
    ("client-key", Text),
    ("client-key-data", Bytes),
    ("token", Text),
    ("tokenFile", Text),
    ("as", Text),
    ("as-uid", Text),
    ("as-groups", List(&Text)),
    ("as-user-extra", MapOf(&List(&Text))),
    ("username", Text),
    ("password", Text),
    (
        "auth-provider",
        Fields(&[("name", Text), ("config", MapOf(&Text))]),
    ),
    (
        "exec",
        Fields(&[
            ("command", Text),
            ("args", List(&Text)),
            ("env", List(&Fields(&[("name", Text), ("value", Text)]))),
            ("apiVersion", Text),
            ("installHint", Text),
            ("provideClusterInfo", Flag),
            ("interactiveMode", Text),
        ]),
    ),
    ("extensions", EXTENSIONS),
]);

const CONTEXT_FIELDS: Shape = Fields(&[
    ("cluster", Text),
    ("user", Text),
    ("namespace", Text),
    ("extensions", EXTENSIONS),
]);

/// Verifies that every field of a kubeconfig has its type.
pub(super) fn verify(document: &Value) -> Result<(), KubeconfigError> {
    verify_field(document, &CONFIG_FIELDS, "")
}

fn verify_field(value: &Value, shape: &Shape, field: &str) -> Result<(), KubeconfigError> {
    let wrong = |expected| {
        Err(KubeconfigError::WrongType {
            field: field.trim_start_matches('.').to_owned(),
            expected,
        })
    };
    match (shape, value) {
        (_, Value::Null) | (Any, _) | (Text, Value::String(_)) | (Flag, Value::Bool(_)) => Ok(()),
        (Bytes, Value::String(text)) if decoded(text).is_some() => Ok(()),
        (List(item) | Named(item), Value::Array(items)) => {
            items.iter().enumerate().try_for_each(|(index, value)| {
                verify_field(value, item, &format!("{field}[{index}]"))
            })?;
            match shape {
                Named(_) => verify_names(items, field),
                _ => Ok(()),
            }
        }
        (MapOf(item), Value::Object(entries)) => entries
            .iter()
            .try_for_each(|(key, value)| verify_field(value, item, &format!("{field}.{key:?}"))),
        (Fields(fields), Value::Object(entries)) => fields.iter().try_for_each(|(key, shape)| {
            let value = entries.get(*key).unwrap_or(&Value::Null);
            verify_field(value, shape, &format!("{field}.{key}"))
        }),
        (Text, _) => wrong("text"),
        (Flag, _) => wrong("true or false"),
        (Bytes, _) => wrong("valid base64"),
        (List(_) | Named(_), _) => wrong("a list"),
        (MapOf(_) | Fields(_), _) => wrong("a mapping"),
    }
}

/// Verifies that the names of a list are unique (client-go, `tools/clientcmd/api/v1/conversion.go`).
fn verify_names(items: &[Value], field: &str) -> Result<(), KubeconfigError> {
    let mut names = BTreeSet::new();
    for item in items {
        let name = item.get("name").and_then(Value::as_str).unwrap_or_default();
        if !names.insert(name) {
            return Err(KubeconfigError::DuplicateName {
                list: field.trim_start_matches('.').to_owned(),
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}

/// Decodes base64 as Go does, which ignores line ends.
pub(super) fn decoded(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let compact: Zeroizing<String> =
        Zeroizing::new(text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect());
    BASE64.decode(compact.as_bytes()).ok().map(Zeroizing::new)
}
