//! All settings as one table, and the JSON Schema and the documentation made from it.

use serde_json::{Map, Value, json};

use super::{API_VERSION, AuthoritySettings, KIND, Settings, reload, rotation};
use crate::signer::SignerKind;
use crate::yaml::schema::{self, MapKey, ValueForm};
use crate::yaml::settings::{SettingsBlock, insert};

const AUTHORITY: ValueForm = ValueForm::Block(AuthoritySettings::KEYS);

/// The keys of a fragment, except signers.
#[rustfmt::skip]
pub(super) const FRAGMENT: &[MapKey] = &[
    MapKey::new("apiVersion", ValueForm::Const(API_VERSION), "Version of this format."),
    MapKey {
        beside: Settings::KEYS,
        ..MapKey::new("kind", ValueForm::Const(KIND), "Kind of this document.")
    },
    MapKey::new("authorities.ca", AUTHORITY, "Authority of Kubernetes."),
    MapKey::new("authorities.etcd-ca", AUTHORITY, "Authority of etcd."),
    MapKey::new("authorities.front-proxy-ca", AUTHORITY, "Authority of the front proxy."),
    MapKey::new("pki", ValueForm::Defined("policy", "key policy"), "Key parameters and lifetimes in the form of OpenShift's PKI policy."),
];

/// Returns the JSON Schema of a fragment.
pub(super) fn document() -> Value {
    let mut kinds = Map::new();
    for kind in SignerKind::ALL {
        kinds.insert(kind.to_string(), schema::object(kind.about().keys));
    }
    let signers = json!({
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": false,
            // A signer has exactly one kind.
            "minProperties": 1,
            "maxProperties": 1,
            "properties": kinds,
        }
    });
    let mut definitions = policy_definitions();
    if let Some(definitions) = definitions.as_object_mut() {
        definitions.extend(rotation::definitions());
        definitions.extend(reload::definitions());
    }
    let mut root = Map::new();
    let version = json!("https://json-schema.org/draft/2020-12/schema");
    insert(&mut root, "$schema", Some(version));
    insert(&mut root, "title", Some(json!(KIND)));
    if let Value::Object(mut fragment) = schema::object(FRAGMENT) {
        root.append(&mut fragment);
    }
    insert(&mut root, "required", Some(json!(["apiVersion", "kind"])));
    insert(&mut root, "properties.signers", Some(signers));
    insert(&mut root, "$defs", Some(definitions));
    Value::Object(root)
}

/// Renders the table of all settings, those of signers excepted.
pub(super) fn markdown() -> String {
    schema::markdown(&schema::rows("", FRAGMENT))
}

/// Returns the `$defs` of the key policy, in all four forms that are read.
fn policy_definitions() -> Value {
    let certificate = json!({"$ref": "#/$defs/certificate"});
    json!({
        "policy": {
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "defaults": certificate,
                "signerCertificates": certificate,
                "servingCertificates": certificate,
                "clientCertificates": certificate,
                "categories": {"type": "array", "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["category", "certificate"],
                    "properties": {"category": {"$ref": "#/$defs/category"}, "certificate": certificate}
                }},
                "overrides": {"type": "array", "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["certificateName", "certificate"],
                    "properties": {"certificateName": {"type": "string"}, "certificate": certificate}
                }},
                "certificateManagement": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["mode"],
                    "properties": {
                        "mode": {"enum": ["Unmanaged", "Default", "Custom"]},
                        "custom": {"$ref": "#/$defs/customPolicy"}
                    }
                }
            }
        },
        "customPolicy": {
            "type": "object",
            "additionalProperties": false,
            "required": ["defaults"],
            "properties": {
                "defaults": certificate,
                "signerCertificates": certificate,
                "servingCertificates": certificate,
                "clientCertificates": certificate,
                "overrides": {"type": "array", "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["type", "category", "certificate"],
                    "properties": {
                        "type": {"const": "Category"},
                        "category": {
                            "type": "object",
                            "additionalProperties": false,
                            "required": ["name"],
                            "properties": {"name": {"$ref": "#/$defs/category"}}
                        },
                        "certificate": certificate
                    }
                }}
            }
        },
        "category": {"enum": [
            "SignerCertificate", "ServingCertificate", "ClientCertificate", "Signer", "Serving", "Client"
        ]},
        "certificate": {
            "type": "object",
            "additionalProperties": false,
            "minProperties": 1,
            "properties": {"lifetime": {"type": "string", "pattern": schema::DURATION_PATTERN}, "key": {"oneOf": [
                key("RSA", "rsa", "keySize", &json!([2048, 3072, 4096])),
                key("ECDSA", "ecdsa", "curve", &json!(["P256", "P384", "P521"])),
                key("MLDSA", "mldsa", "parameterSet", &json!(["ML-DSA-44", "ML-DSA-65", "ML-DSA-87"]))
            ]}}
        }
    })
}

/// Returns the schema of a key of this algorithm, whose choice is a field in a block.
fn key(algorithm: &str, block: &str, field: &str, choices: &Value) -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["algorithm", block],
        "properties": {
            "algorithm": {"const": algorithm},
            block: {
                "type": "object",
                "additionalProperties": false,
                "required": [field],
                "properties": {field: {"enum": choices}}
            }
        }
    })
}
