//! Annotations and labels that the settings add to request objects: custom fields of Venafi, the template of AD CS, the
//! profile of EJBCA or AWS PCA.
//!
//! A key has one text for all certificates, or one for each. They are part of the name of the object: another text makes
//! another request, and an installed certificate is not affected.

use std::collections::BTreeMap;

use serde_json::{Map as JsonMap, Value, json};

use crate::signer::per_certificate::PerCertificate;
use crate::signer::{NodeIdentity, RequestedCertificate, SignerObstacle};
use crate::yaml::Field;
use crate::yaml::schema::ValueForm;
use crate::yaml::settings::Setting;

/// Largest length of the name in a key, and of the value of a label.
const MAX_NAME_LENGTH: usize = 63;
/// Largest length of the prefix of a key, an RFC 1123 subdomain.
const MAX_PREFIX_LENGTH: usize = 253;
/// Upper bound for the keys and values of all annotations. The API server's is 256 KiB, with those of nodepki.
const MAX_ANNOTATION_BYTES: usize = 192 * 1024;
/// Prefix of the keys that nodepki sets for the approver.
const OWN_PREFIX: &str = "nodepki.io/";
/// The label of every object.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// cert-manager's annotation for the lifetime of a CertificateSigningRequest.
pub(in crate::signer) const DURATION_ANNOTATION: &str =
    "experimental.cert-manager.io/request-duration";
/// Annotations of cert-manager that a request of a node must not have, with the reason
/// (`pkg/apis/certmanager/v1/types.go`, `pkg/apis/experimental/v1alpha1/types.go`).
const FORBIDDEN_ANNOTATIONS: [(&str, &str); 5] = [
    ("cert-manager.io/private-key-secret-name", NAMES_PRIVATE_KEY),
    (
        "experimental.cert-manager.io/private-key-secret-name",
        NAMES_PRIVATE_KEY,
    ),
    ("venafi.cert-manager.io/pickup-id", IS_PICKUP_ID),
    (
        "venafi.experimental.cert-manager.io/pickup-id",
        IS_PICKUP_ID,
    ),
    (
        "experimental.cert-manager.io/request-is-ca",
        "requests a CA certificate, which a node must not have",
    ),
];
const NAMES_PRIVATE_KEY: &str = "names a Secret with the private key, which never leaves the node";
const IS_PICKUP_ID: &str =
    "is set by cert-manager, and with another request's id returns that one's certificate";

/// Keys with a text for each certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataTexts(BTreeMap<String, PerCertificate>);

impl Setting for MetadataTexts {
    const FORM: ValueForm = ValueForm::Map(&ValueForm::PerCertificate);

    fn read(field: &Field<'_>) -> Option<Self> {
        read_annotations(field)
    }

    fn shown(&self) -> Option<Value> {
        let texts = self.0.iter();
        let texts: JsonMap<String, Value> = texts
            .filter_map(|(key, text)| Some((key.clone(), text.shown()?)))
            .collect();
        (!texts.is_empty()).then(|| Value::Object(texts))
    }
}

impl MetadataTexts {
    /// Returns the texts for a certificate. Keys without a text for it are left out.
    pub(super) fn of(
        &self,
        wanted: &RequestedCertificate,
        identity: &NodeIdentity,
    ) -> JsonMap<String, Value> {
        let texts = self.0.iter();
        texts
            .filter_map(|(key, text)| Some((key.clone(), json!(text.of(wanted, identity)?))))
            .collect()
    }

    /// Returns why one of these labels is not valid for a certificate: the name of a node may be too long.
    pub(super) fn label_obstacle(
        &self,
        wanted: &RequestedCertificate,
        identity: &NodeIdentity,
    ) -> Option<SignerObstacle> {
        let labels = self.of(wanted, identity);
        let found = labels.iter().find_map(|(key, value)| {
            let value = value.as_str().filter(|value| !is_label_value(value))?;
            Some((key, value.to_owned()))
        });
        let (key, value) = found?;
        Some(SignerObstacle::new(
            format!("its label {key} is {value:?}, which is not a valid value of a label"),
            format!(
                "set labels.{key} to at most {MAX_NAME_LENGTH} letters, digits, dashes, dots and underscores"
            ),
        ))
    }
}

/// Reads annotations.
pub(in crate::signer) fn read_annotations(field: &Field<'_>) -> Option<MetadataTexts> {
    let read = read_texts(field, "an annotation", |_, _| {})?;
    let longest = |text: &PerCertificate| {
        let texts = text.named.values().chain(&text.default);
        texts.map(String::len).max().unwrap_or_default()
    };
    let bytes: usize = read
        .0
        .iter()
        .map(|(key, text)| key.len() + longest(text))
        .sum();
    if bytes > MAX_ANNOTATION_BYTES {
        field.error(
            format!("has {bytes} bytes, and the API server accepts fewer"),
            format!("write at most {MAX_ANNOTATION_BYTES} bytes"),
        );
    }
    Some(read)
}

/// Reads labels.
pub(in crate::signer) fn read_labels(field: &Field<'_>) -> Option<MetadataTexts> {
    read_texts(field, "a label", |field, text| {
        // With short names in place of the placeholders: the names of this node are verified for each certificate.
        if !is_label_value(&crate::kube::names::without_placeholders(text)) {
            field.error(
                format!("{text:?} is not a valid value of a label"),
                format!("use at most {MAX_NAME_LENGTH} letters, digits, dashes, dots and underscores, or an annotation"),
            );
        }
    })
}

fn read_texts(
    field: &Field<'_>,
    what: &str,
    check: impl Fn(&Field<'_>, &str),
) -> Option<MetadataTexts> {
    let mut read = MetadataTexts::default();
    for (key, field) in field.map()?.named() {
        if let Some((why, fix)) = key_fault(&key, what) {
            field.error(why, fix);
            continue;
        }
        if let Some(text) = PerCertificate::read_free_text(&field, &check) {
            read.0.insert(key, text);
        }
    }
    Some(read)
}

/// Returns why a key cannot be set, and what to write instead.
fn key_fault(key: &str, what: &str) -> Option<(String, String)> {
    if key == DURATION_ANNOTATION {
        return Some((
            format!("{key} is set by nodepki, from the lifetime of the certificate"),
            "remove it; requestLifetime: false omits it".to_owned(),
        ));
    }
    let mut forbidden = FORBIDDEN_ANNOTATIONS.iter();
    if let Some((_, why)) = forbidden.find(|(one, _)| *one == key) {
        return Some((format!("{key} {why}"), "remove it".to_owned()));
    }
    if key.starts_with(OWN_PREFIX) || key == MANAGED_BY {
        return Some((
            format!("{key} is set by nodepki"),
            format!("use another key for {what}"),
        ));
    }
    let is_valid = match key.split_once('/') {
        None => is_qualified_name(key),
        Some((prefix, name)) => is_subdomain(prefix) && is_qualified_name(name),
    };
    (!is_valid).then(|| {
        (
            format!("{key:?} is not a valid key of {what}"),
            "write NAME or DOMAIN/NAME; NAME has at most 63 letters, digits, dashes, dots and underscores"
                .to_owned(),
        )
    })
}

/// Returns whether a text is a qualified name of Kubernetes without its prefix
/// (`IsQualifiedName`, `k8s.io/apimachinery/pkg/util/validation`).
fn is_qualified_name(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    (1..=MAX_NAME_LENGTH).contains(&text.len())
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || "-_.".contains(c))
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified_name(text)
}

/// Returns whether a text is an RFC 1123 subdomain.
fn is_subdomain(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_end)
            && part.ends_with(is_end)
            && part.chars().all(|c| is_end(c) || c == '-')
    };
    text.len() <= MAX_PREFIX_LENGTH && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_keys_of_kubernetes_and_refuses_others() {
        for key in [
            "team",
            "venafi.cert-manager.io/custom-fields",
            "adcs.certmanager.csf.nokia.com/template",
            "a/B_c.d",
        ] {
            assert_eq!(key_fault(key, "an annotation"), None, "{key}");
        }
        let long = "x".repeat(64);
        for key in [
            "", "a b", "-a", "a/", "/a", "A.b/c", "a/b/c", "a..b/c", &long,
        ] {
            let fault = key_fault(key, "an annotation");
            assert!(fault.unwrap().0.contains("is not a valid key"), "{key}");
        }
        for key in ["nodepki.io/node", MANAGED_BY, DURATION_ANNOTATION] {
            let fault = key_fault(key, "a label");
            assert!(fault.unwrap().0.contains("is set by nodepki"), "{key}");
        }
        for (key, why) in FORBIDDEN_ANNOTATIONS {
            let fault = key_fault(key, "an annotation").unwrap();
            assert_eq!(fault.0, format!("{key} {why}"));
        }
    }

    #[test]
    fn accepts_values_of_labels_and_refuses_others() {
        for value in ["", "platform", "1.31", "a_b-c"] {
            assert!(is_label_value(value), "{value}");
        }
        for value in ["a b", "-a", "a.", "{}", &"x".repeat(64)] {
            assert!(!is_label_value(value), "{value}");
        }
    }
}
