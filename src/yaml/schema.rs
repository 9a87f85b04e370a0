//! Forms of the values in the configuration: their JSON Schema, their documentation, and how they are read.
//!
//! Settings are declared with [`settings!`](super::settings) as tables of [`MapKey`]s. Faults are reported to the field's
//! walk.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::yaml::{Field, Map, fix_for, parse_duration, suggest_duration};

/// The form of a value.
#[derive(Clone, Copy)]
pub enum ValueForm {
    /// Exactly this text.
    Const(&'static str),
    /// Any text.
    Text,
    /// An absolute path.
    Path,
    /// A private file with a secret; see [`SecretFile`].
    Secret,
    /// As [`ValueForm::Secret`], for a file that every user may read.
    Public,
    /// As [`ValueForm::Secret`], for a kubeconfig: it must be private if it contains a credential.
    Kubeconfig,
    /// The absolute path of a private file with a secret.
    SecretPath,
    /// An `http` or `https` address.
    Url,
    /// A Go duration.
    Duration,
    /// A SHA-256 pin.
    Pin,
    /// True or false.
    Flag,
    /// A whole number that is not negative.
    Number,
    /// A user name or number.
    User,
    /// A percentage.
    Percent,
    /// One of these texts.
    Choice(fn() -> Vec<&'static str>),
    /// A text for all certificates, or a map from certificate names and `default` to texts.
    PerCertificate,
    /// A list of values.
    List(&'static ValueForm),
    /// A list of at most one value.
    AtMostOne(&'static ValueForm),
    /// A map from free names to values.
    Map(&'static ValueForm),
    /// A map with these keys.
    Block(&'static [MapKey]),
    /// A definition in `$defs` of the schema document, with a short description of its form.
    Defined(&'static str, &'static str),
}

/// One key of a map.
pub struct MapKey {
    /// Name. A dot in it names a map within the map.
    pub name: &'static str,
    /// Form of the value.
    pub form: ValueForm,
    /// Meaning, as a sentence.
    pub meaning: &'static str,
    /// Whether the key must be set.
    pub is_required: bool,
    /// Returns the default as written in the configuration.
    pub default: fn() -> Option<Value>,
    /// Further keys of the same map.
    pub beside: &'static [MapKey],
}

impl MapKey {
    /// Returns a key without a default.
    pub const fn new(name: &'static str, form: ValueForm, meaning: &'static str) -> MapKey {
        MapKey {
            name,
            form,
            meaning,
            is_required: false,
            default: || None,
            beside: &[],
        }
    }

    /// Returns the default as text: `None` for absent, empty and nested values.
    pub(crate) fn default_text(&self) -> Option<String> {
        match (self.default)()? {
            Value::String(text) => Some(text),
            Value::Bool(flag) => Some(flag.to_string()),
            Value::Array(items) if !items.is_empty() => {
                let items = items.iter().filter_map(Value::as_str);
                Some(format!("[{}]", items.collect::<Vec<_>>().join(", ")))
            }
            _ => None,
        }
    }

    /// Returns the meaning with the default.
    fn description(&self) -> String {
        let meaning = self.meaning.trim();
        match self.default_text() {
            Some(default) => format!("{meaning} Default: {default}."),
            None => meaning.to_owned(),
        }
    }
}

/// A value of the configuration with its full path: a row of the documentation.
pub struct SchemaRow {
    /// Path from the top of the map. `[]` is a list item, `*` a free name.
    pub path: String,
    /// Form of the value, or of the item.
    pub form: ValueForm,
    /// The key that declares it.
    pub key: &'static MapKey,
}

/// Lists every value below these keys, in the order of declaration.
pub fn rows(prefix: &str, keys: &'static [MapKey]) -> Vec<SchemaRow> {
    let mut all = Vec::new();
    for key in keys {
        add_rows(&mut all, super::walk::join(prefix, key.name), key.form, key);
        all.extend(rows(prefix, key.beside));
    }
    all
}

fn add_rows(all: &mut Vec<SchemaRow>, path: String, form: ValueForm, key: &'static MapKey) {
    match form {
        ValueForm::Block(keys) => all.extend(rows(&path, keys)),
        ValueForm::List(item) | ValueForm::AtMostOne(item) => {
            add_rows(all, format!("{path}[]"), *item, key)
        }
        ValueForm::Map(value) => add_rows(all, format!("{path}.*"), *value, key),
        form => all.push(SchemaRow { path, form, key }),
    }
}

/// Renders these rows as a Markdown table: key, form, default, meaning.
pub fn markdown(rows: &[SchemaRow]) -> String {
    let mut text = "| key | form | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for row in rows {
        let default = match (row.key.is_required, row.key.default_text()) {
            (true, _) => "required".to_owned(),
            (false, Some(default)) => format!("`{default}`"),
            (false, None) => String::new(),
        };
        let cells = [
            format!("`{}`", row.path),
            row.form.to_string(),
            default,
            row.key.meaning.trim().to_owned(),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

impl fmt::Display for ValueForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ValueForm::Const(text) => return write!(f, "`{text}`"),
            ValueForm::Choice(choices) => return write!(f, "`{}`", choices().join("`, `")),
            ValueForm::Text => "text",
            ValueForm::Path => "absolute path",
            ValueForm::Secret => "private file, or `credential:NAME`",
            ValueForm::Public => "file, or `credential:NAME`",
            ValueForm::Kubeconfig => "kubeconfig file, or `credential:NAME`",
            ValueForm::SecretPath => "private file",
            ValueForm::Url => "http or https address",
            ValueForm::Duration => "duration",
            ValueForm::Pin => "SHA-256, 64 hex digits",
            ValueForm::Flag => "`true`, `false`",
            ValueForm::Number => "whole number",
            ValueForm::User => "user name or number",
            ValueForm::Percent => "percentage",
            ValueForm::Block(_) | ValueForm::Map(_) => "map",
            ValueForm::PerCertificate => "text, or map from certificate names to texts",
            ValueForm::List(_) | ValueForm::AtMostOne(_) => "list",
            ValueForm::Defined(_, form) => form,
        };
        f.write_str(text)
    }
}

/// Returns the JSON Schema of a map with these keys and no others.
pub fn object(keys: &[MapKey]) -> Value {
    let mut properties = JsonMap::new();
    add_properties(&mut properties, keys);
    let mut object = json!({"type": "object", "additionalProperties": false});
    if let Some(object) = object.as_object_mut()
        && !properties.is_empty()
    {
        object.insert("properties".to_owned(), Value::Object(properties));
    }
    object
}

fn add_properties(properties: &mut JsonMap<String, Value>, keys: &[MapKey]) {
    for key in keys {
        let mut schema = schema_of(key.form);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), json!(key.description()));
        }
        match key.name.split_once('.') {
            None => {
                properties.insert(key.name.to_owned(), schema);
            }
            Some((outer, inner)) => {
                let section = properties.entry(outer).or_insert_with(
                    || json!({"type": "object", "additionalProperties": false, "properties": {}}),
                );
                if let Some(section) = section.get_mut("properties").and_then(Value::as_object_mut)
                {
                    section.insert(inner.to_owned(), schema);
                }
            }
        }
        add_properties(properties, key.beside);
    }
}

fn schema_of(form: ValueForm) -> Value {
    match form {
        ValueForm::Const(text) => json!({"const": text}),
        ValueForm::Text => json!({"type": "string"}),
        ValueForm::Path | ValueForm::SecretPath => json!({"type": "string", "pattern": "^/"}),
        ValueForm::Secret | ValueForm::Public | ValueForm::Kubeconfig => {
            json!({"type": "string", "pattern": "^(/|credential:[^/]+$)"})
        }
        ValueForm::Url => json!({"type": "string", "pattern": "^https?://"}),
        ValueForm::Duration => json!({"type": "string", "pattern": DURATION_PATTERN}),
        ValueForm::Percent => json!({"type": "string", "pattern": PERCENT_PATTERN}),
        ValueForm::Pin => {
            json!({"type": "string", "pattern": "^(sha256:)?([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}$"})
        }
        ValueForm::Flag => json!({"type": "boolean"}),
        ValueForm::Number => json!({"type": "integer", "minimum": 0}),
        ValueForm::User => json!({"type": ["string", "integer"]}),
        ValueForm::Choice(choices) => json!({"enum": choices()}),
        ValueForm::PerCertificate => json!({
            "oneOf": [
                {"type": "string"},
                {"type": "object", "additionalProperties": {"type": "string"}}
            ]
        }),
        ValueForm::List(item) => json!({"type": "array", "items": schema_of(*item)}),
        ValueForm::AtMostOne(item) => {
            json!({"type": "array", "maxItems": 1, "items": schema_of(*item)})
        }
        ValueForm::Map(value) => {
            json!({"type": "object", "additionalProperties": schema_of(*value)})
        }
        ValueForm::Block(keys) => object(keys),
        ValueForm::Defined(name, _) => json!({"$ref": format!("#/$defs/{name}")}),
    }
}

/// Regular expression of a Go duration.
pub const DURATION_PATTERN: &str = r"^\+?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";
/// Regular expression of a percentage.
pub const PERCENT_PATTERN: &str = "^(100|[0-9]?[0-9]) ?%$";

/// Why a systemd credential cannot be read. Settings below `--root` have no access to the credentials of this
/// machine.
pub const NO_CREDENTIALS: &str =
    "systemd gave this run no credentials, or the settings that name it are below --root";

/// A file with a secret: an absolute path, or `credential:NAME` for a credential that systemd passes to the unit
/// (`LoadCredential=`, `$CREDENTIALS_DIRECTORY/NAME`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretFile {
    /// A path.
    Path(PathBuf),
    /// The name of a credential.
    Credential(String),
}

impl SecretFile {
    /// Returns the path, if systemd's credentials are in `credentials`; `None` for a credential without that
    /// directory.
    pub fn path(&self, credentials: Option<&Path>) -> Option<PathBuf> {
        match self {
            SecretFile::Path(path) => Some(path.clone()),
            SecretFile::Credential(name) => Some(credentials?.join(name)),
        }
    }

    /// Reads the value as written in the configuration.
    pub fn read(field: &Field<'_>) -> Option<Self> {
        match Self::parse(&field.string()?) {
            Ok(file) => Some(file),
            Err((what, fix)) => {
                field.error(what, fix);
                None
            }
        }
    }

    /// Parses a text. The error is a fault and its correction.
    pub fn parse(text: &str) -> Result<Self, (String, &'static str)> {
        match text.strip_prefix("credential:") {
            Some("") => Err(("names no credential".to_owned(), "write credential:NAME")),
            Some(name) if name.contains('/') || name.starts_with('.') => Err((
                format!("{name:?} is not the name of a credential"),
                "write its name in LoadCredential=",
            )),
            Some(name) => Ok(SecretFile::Credential(name.to_owned())),
            None if text.starts_with('/') => Ok(SecretFile::Path(PathBuf::from(text))),
            // The text may be the secret itself.
            None => Err((
                "is neither an absolute path nor credential:NAME".to_owned(),
                "write the path of a file of mode 0600 with the secret, beginning with /",
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

/// Returns the map under `key`.
pub fn section<'a>(map: &Map<'a>, key: &str) -> Option<Map<'a>> {
    map.get(key)?.map()
}

/// Returns a required value, or reports its absence.
pub fn required<'a>(map: &Map<'a>, key: &str, example: &str) -> Option<Field<'a>> {
    let field = map.get(key);
    if field.is_none() {
        map.field()
            .error(format!("has no {key}"), format!("add {key}: {example}"));
    }
    field
}

/// Reads an absolute path.
pub fn absolute(field: &Field<'_>) -> Option<PathBuf> {
    let text = field.string()?;
    if text.starts_with('/') {
        return Some(PathBuf::from(text));
    }
    let fix = if text.starts_with(['$', '~']) {
        "write the path itself, beginning with /: variables and ~ are not replaced"
    } else {
        "begin it with /"
    };
    field.error(format!("{text:?} is not an absolute path"), fix);
    None
}

/// Reads a duration in Go's notation.
pub fn duration(field: Option<Field<'_>>) -> Option<(Field<'_>, Duration)> {
    let field = field?;
    let text = field.written()?;
    match parse_duration(&text) {
        Ok(duration) => Some((field, duration)),
        Err(message) => {
            field.error(message, duration_fix(&text, "1m30s"));
            None
        }
    }
}

/// Returns the correction of a text that is not a duration.
pub(crate) fn duration_fix(text: &str, example: &str) -> String {
    match suggest_duration(text) {
        Some(near) => format!("write {near}; units are h, m and s"),
        None => format!("use hours, minutes and seconds, as in {example}"),
    }
}

/// Reads one value of a closed set.
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
        let otherwise = format!("use {}", names.join(", "));
        let fix = fix_for(&text, names, otherwise);
        field.error(format!("{text:?} is not possible here"), fix);
    }
    found
}

/// Reads a pin of a certificate or its key.
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

/// Parses 64 hex digits, optionally with `sha256:` in front and colons between them, as printed by openssl and
/// kubeadm.
pub fn sha256(text: &str) -> Option<[u8; 32]> {
    let digits = text
        .strip_prefix("sha256:")
        .unwrap_or(text)
        .replace(':', "");
    let mut sum = [0; 32];
    (base16ct::mixed::decode(digits, &mut sum).ok()?.len() == 32).then_some(sum)
}
