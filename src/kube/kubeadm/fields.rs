//! Readers of single fields that the documents share.

use std::path::{Path, PathBuf};

use super::address::{HostPort, InvalidValue, San, ValueNote};
use crate::kube::paths::cleaned;
use crate::yaml::{self, Field, FieldPosition, Map, unrendered};

/// Above this number of names in one certificate; many signers refuse the request.
const MANY_SANS: usize = 100;

/// Keys that are often written at the top of another document, and where they belong: a document, or a map of this one.
pub(super) type Misplaced = (&'static str, &'static [&'static str]);

/// The versions of kubeadm's configuration API that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiVersion {
    V1beta3,
    V1beta4,
}

/// Defines the corrections for keys that belong elsewhere.
pub(super) fn misplaced(map: &Map<'_>, places: &[Misplaced]) {
    for (place, keys) in places {
        map.belong_elsewhere(keys.iter().map(|key| {
            let fix = if place.ends_with("Configuration") {
                format!("move it to the {place}")
            } else {
                format!("move it below {place}: {place}.{key}")
            };
            (*key, fix)
        }));
    }
}

/// Reads extra arguments as `(name, value, spot)`: a map in v1beta3, a list of name and value in v1beta4.
pub(super) fn extra_args(
    field: Option<Field<'_>>,
    api: ApiVersion,
) -> Vec<(String, String, FieldPosition)> {
    let Some(field) = field else {
        return Vec::new();
    };
    let mut args = Vec::new();
    match (api, &field.node().kind) {
        (ApiVersion::V1beta3, yaml::NodeKind::Seq(_)) => field.error(
            "is a list, but kubeadm.k8s.io/v1beta3 requires a map",
            "write `name: value` lines, or change the document to v1beta4",
        ),
        (ApiVersion::V1beta4, yaml::NodeKind::Map(_)) => field.error(
            "is a map, but kubeadm.k8s.io/v1beta4 requires a list",
            "write `- name: NAME` and `value: VALUE`, or change the document to v1beta3",
        ),
        (ApiVersion::V1beta3, _) => {
            for (name, value) in field.map().map(|map| map.named()).unwrap_or_default() {
                if let Some(text) = value.string() {
                    args.push((name, text, value.spot()));
                }
            }
        }
        (ApiVersion::V1beta4, _) => {
            for item in field.list().unwrap_or_default() {
                let Some(map) = item.map() else { continue };
                let name = map.get("name").and_then(|field| field.string());
                let value = map
                    .get("value")
                    .and_then(|field| field.string().map(|text| (field.spot(), text)));
                map.finish();
                match name.filter(|name| !name.is_empty()) {
                    Some(name) => {
                        let (spot, text) = value.unwrap_or_else(|| (item.spot(), String::new()));
                        args.push((name, text, spot));
                    }
                    None => item.error(
                        "the argument has no name",
                        "write `- name: NAME` and `value: VALUE`",
                    ),
                }
            }
        }
    }
    args
}

/// How kubeadm treats upper-case letters in a list of SANs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpperCase {
    /// Converted to lower case, as in those of the API server.
    Accepted,
    /// Refused, as in those of etcd; nodepki converts them with a warning.
    Refused,
}

/// Reads a list of SANs.
pub(super) fn sans(field: Option<Field<'_>>, upper_case: UpperCase) -> Vec<San> {
    let Some(field) = field else {
        return Vec::new();
    };
    let mut sans = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(text) = item.string() else { continue };
        match San::parse(&text) {
            Ok((san, notes)) => {
                warn(&item, notes);
                if let San::Dns(name) = &san
                    && upper_case == UpperCase::Refused
                    && *name != text
                {
                    item.warning(
                        format!(
                            "{text:?} is read as {name:?}; kubeadm refuses upper-case letters here"
                        ),
                        "write it in lower case",
                    );
                }
                sans.push(san);
            }
            Err(refusal) => report(&item, refusal),
        }
    }
    if sans.len() > MANY_SANS {
        field.warning(
            format!(
                "{} names in one certificate; many signers refuse more than {MANY_SANS}",
                sans.len()
            ),
            "use a wildcard or fewer names",
        );
    }
    sans
}

/// Parses an endpoint; reports its notes, or why it is refused.
pub(super) fn endpoint(field: &Field<'_>, text: &str) -> Option<HostPort> {
    match HostPort::parse(text) {
        Ok((endpoint, notes)) => {
            warn(field, notes);
            Some(endpoint)
        }
        Err(refusal) => {
            report(field, refusal);
            None
        }
    }
}

/// Returns the path, cleaned, if it is absolute; otherwise reports it.
pub(super) fn absolute(field: &Field<'_>, text: &str) -> Option<PathBuf> {
    if text.starts_with('/') {
        warn_of_placeholder(field, text);
        return Some(cleaned(Path::new(text)));
    }
    field.error(
        format!("{text:?} is not an absolute path"),
        "begin it with /",
    );
    None
}

/// Warns of a placeholder that was not replaced in a value that kubeadm accepts as it is.
pub(super) fn warn_of_placeholder(field: &Field<'_>, text: &str) {
    if let Some(fix) = unrendered(text) {
        field.warning("contains a placeholder that was not replaced", fix);
    }
}

/// Adds a refusal as an error of the field.
pub(super) fn report(field: &Field<'_>, refusal: InvalidValue) {
    field.error(refusal.message, refusal.fix);
}

/// Adds notes as warnings of the field.
pub(super) fn warn(field: &Field<'_>, notes: impl IntoIterator<Item = ValueNote>) {
    for note in notes {
        field.warning(note.message, note.fix);
    }
}

/// Returns a text field that is present and not empty; kubeadm treats an empty one as absent.
pub(super) fn filled(field: Option<Field<'_>>) -> Option<(Field<'_>, String)> {
    let field = field?;
    let text = field.string()?;
    (!text.is_empty()).then_some((field, text))
}
