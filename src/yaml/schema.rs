//! The forms that values of the configuration have: how each is read, and what JSON Schema says of it.
//!
//! A module with keys of its own (the settings, each kind of signer) lists them as [`Key`]s and reads them with the
//! functions here, so that documentation, schema and faults agree. Faults go to the field's walk.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::yaml::{Field, Map, parse_duration};

/// The form of a value.
#[derive(Clone, Copy)]
pub enum Form {
    /// Exactly this text.
    Const(&'static str),
    /// Any text.
    Text,
    /// An absolute path.
    Path,
    /// A file with a secret in it, which must be private; see [`SecretFile`].
    Secret,
    /// As [`Form::Secret`], for a file that every user may read.
    Public,
    /// As [`Form::Secret`], for a kubeconfig: it must be private if it contains a credential.
    Kubeconfig,
    /// An absolute path of a file with a secret in it, which must be private.
    SecretPath,
    /// An `http` or `https` address.
    Url,
    /// A Go duration.
    Duration,
    /// A SHA-256 pin.
    Pin,
    /// True or false.
    Flag,
    /// A user name or number.
    User,
    /// A share of a hundred.
    Percent,
    /// One of these texts.
    Choice(fn() -> Vec<&'static str>),
    /// A map without keys.
    Empty,
    /// A text for all certificates, or a map from certificate names and `default` to texts.
    PerCertificate,
    /// What `$defs` of the schema document holds under this name.
    Defined(&'static str),
}

/// One key: its path (`*` a free name, `[]` a list item), form and meaning.
pub struct Key {
    /// Relative to whose key it is.
    pub path: &'static str,
    /// Form.
    pub form: Form,
    /// A sentence.
    pub meaning: &'static str,
}

/// A row of a table of keys.
pub const fn key(path: &'static str, form: Form, meaning: &'static str) -> Key {
    Key {
        path,
        form,
        meaning,
    }
}

/// Adds `key` below `prefix` to the schema of an object.
pub fn add(root: &mut Value, prefix: &str, key: &Key) {
    let path = match (prefix, key.path) {
        ("", path) => path.to_owned(),
        (prefix, "") => prefix.to_owned(),
        (prefix, path) => format!("{prefix}.{path}"),
    };
    let steps: Vec<&str> = path.split('.').collect();
    insert(root, &steps, key);
}

/// An object that allows no keys yet.
pub fn object() -> Value {
    json!({"type": "object", "additionalProperties": false})
}

fn insert(node: &mut Value, steps: &[&str], key: &Key) {
    let Some((step, rest)) = steps.split_first() else {
        return;
    };
    let Some(map) = node.as_object_mut() else {
        return;
    };
    let (name, list) = match step.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (*step, false),
    };
    let slot = if name == "*" {
        map.entry("additionalProperties")
            .or_insert(Value::Bool(false))
    } else {
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        match properties.as_object_mut() {
            Some(properties) => properties.entry(name).or_insert(Value::Null),
            None => return,
        }
    };
    if rest.is_empty() {
        let mut leaf = leaf(key.form);
        if list {
            leaf = json!({"type": "array", "items": leaf});
        }
        if let Some(leaf) = leaf.as_object_mut() {
            leaf.insert("description".to_owned(), json!(key.meaning));
        }
        *slot = leaf;
        return;
    }
    if !slot.is_object() {
        *slot = object();
        // A signer has exactly one kind.
        if name == "*"
            && let Some(slot) = slot.as_object_mut()
        {
            slot.insert("minProperties".to_owned(), json!(1));
            slot.insert("maxProperties".to_owned(), json!(1));
        }
    }
    insert(slot, rest, key);
}

fn leaf(form: Form) -> Value {
    match form {
        Form::Const(text) => json!({"const": text}),
        Form::Text => json!({"type": "string"}),
        Form::Path | Form::SecretPath => json!({"type": "string", "pattern": "^/"}),
        Form::Secret | Form::Public | Form::Kubeconfig => {
            json!({"type": "string", "pattern": "^(/|credential:[^/]+$)"})
        }
        Form::Url => json!({"type": "string", "pattern": "^https?://"}),
        Form::Duration => {
            json!({"type": "string", "pattern": "^\\+?(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$"})
        }
        Form::Percent => json!({"type": "string", "pattern": "^(100|[0-9]?[0-9]) ?%$"}),
        Form::Pin => {
            json!({"type": "string", "pattern": "^(sha256:)?([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}$"})
        }
        Form::Flag => json!({"type": "boolean"}),
        Form::User => json!({"type": ["string", "integer"]}),
        Form::Choice(choices) => json!({"enum": choices()}),
        Form::Empty => object(),
        Form::PerCertificate => json!({
            "oneOf": [
                {"type": "string"},
                {"type": "object", "additionalProperties": {"type": "string"}}
            ]
        }),
        Form::Defined(name) => json!({"$ref": format!("#/$defs/{name}")}),
    }
}

/// Why a systemd credential cannot be read. Settings below `--root` are not given those of this machine.
pub const NO_CREDENTIALS: &str =
    "systemd gave this run no credentials, or the settings that name it are below --root";

/// A file with a secret in it: an absolute path, or `credential:NAME` for a credential that systemd hands to the
/// unit (`LoadCredential=`, `$CREDENTIALS_DIRECTORY/NAME`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretFile {
    /// At this path.
    Path(PathBuf),
    /// Of this name.
    Credential(String),
}

impl SecretFile {
    /// Where it is, when systemd's credentials are in `credentials`; `None` for a credential without any there.
    pub fn path(&self, credentials: Option<&Path>) -> Option<PathBuf> {
        match self {
            SecretFile::Path(path) => Some(path.clone()),
            SecretFile::Credential(name) => Some(credentials?.join(name)),
        }
    }

    /// Reads it as written in the configuration.
    pub fn read(field: &Field<'_>) -> Option<Self> {
        match Self::parse(&field.string()?) {
            Ok(file) => Some(file),
            Err((what, fix)) => {
                field.error(what, fix);
                None
            }
        }
    }

    /// The same from a text, with the fault and its mending.
    pub fn parse(text: &str) -> Result<Self, (String, &'static str)> {
        match text.strip_prefix("credential:") {
            Some("") => Err(("names no credential".to_owned(), "write credential:NAME")),
            Some(name) if name.contains('/') || name.starts_with('.') => Err((
                format!("{name:?} is not the name of a credential"),
                "write the name that LoadCredential= gives it",
            )),
            Some(name) => Ok(SecretFile::Credential(name.to_owned())),
            None if text.starts_with('/') => Ok(SecretFile::Path(PathBuf::from(text))),
            // The text may be the secret itself.
            None => Err((
                "is neither an absolute path nor credential:NAME".to_owned(),
                "put the secret into a file of mode 0600 and name that file",
            )),
        }
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretFile::Path(path) => path.display().fmt(f),
            SecretFile::Credential(name) => write!(f, "credential:{name}"),
        }
    }
}

/// The map under `key`.
pub fn section<'a>(map: &Map<'a>, key: &str) -> Option<Map<'a>> {
    map.get(key)?.map()
}

/// A value that must be there.
pub fn required<'a>(map: &Map<'a>, key: &str, example: &str) -> Option<Field<'a>> {
    let field = map.get(key);
    if field.is_none() {
        map.field()
            .error(format!("has no {key}"), format!("add {key}: {example}"));
    }
    field
}

/// An absolute path.
pub fn absolute(field: &Field<'_>) -> Option<PathBuf> {
    let text = field.string()?;
    if text.starts_with('/') {
        return Some(PathBuf::from(text));
    }
    field.error(
        format!("{text:?} is not an absolute path"),
        "begin it with /",
    );
    None
}

/// A list of texts.
pub fn texts(field: Option<Field<'_>>) -> Vec<String> {
    let items = field.and_then(|field| field.list()).unwrap_or_default();
    items.iter().filter_map(Field::string).collect()
}

/// A map from free names to values as written: a value may be a secret, so that no fault may quote it.
pub fn free_map(field: Option<Field<'_>>) -> BTreeMap<String, String> {
    let Some(map) = field.and_then(|field| field.map()) else {
        return BTreeMap::new();
    };
    map.named()
        .into_iter()
        .filter_map(|(name, field)| Some((name, field.written()?)))
        .collect()
}

/// A duration in Go's notation.
pub fn duration(field: Option<Field<'_>>) -> Option<(Field<'_>, Duration)> {
    let field = field?;
    match parse_duration(&field.written()?) {
        Ok(duration) => Some((field, duration)),
        Err(message) => {
            field.error(message, "use hours, minutes and seconds, as in 1m30s");
            None
        }
    }
}

/// One of a closed set.
pub fn choice<T: Copy, const N: usize>(
    field: Option<Field<'_>>,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Option<T> {
    let field = field?;
    let text = field.string()?;
    let found = all.into_iter().find(|one| name(*one) == text);
    if found.is_none() {
        let names: Vec<&str> = all.into_iter().map(name).collect();
        field.error(
            format!("{text:?} is not possible here"),
            format!("use {}", names.join(", ")),
        );
    }
    found
}

/// A list of pins.
pub fn pins(field: Option<Field<'_>>) -> Vec<[u8; 32]> {
    let items = field.and_then(|field| field.list()).unwrap_or_default();
    items.iter().filter_map(pin).collect()
}

/// A pin of a certificate or its key.
pub fn pin(field: &Field<'_>) -> Option<[u8; 32]> {
    let pin = sha256(&field.written()?);
    if pin.is_none() {
        field.error(
            "is not a SHA-256 pin of 64 hex digits",
            "print it with: openssl x509 -in ca.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum",
        );
    }
    pin
}

/// 64 hex digits, with or without `sha256:` before and colons between, as openssl and kubeadm print them.
pub fn sha256(text: &str) -> Option<[u8; 32]> {
    let digits = text
        .strip_prefix("sha256:")
        .unwrap_or(text)
        .replace(':', "");
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut sum = [0_u8; 32];
    for (index, byte) in sum.iter_mut().enumerate() {
        let pair = digits.get(2 * index..2 * index + 2)?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(sum)
}
