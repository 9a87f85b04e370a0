//! The object `PKI` and its `CustomResourceDefinition`, for API servers that do not have OpenShift's.
//!
//! The schema is that of OpenShift's enhancement, with `lifetime`, ML-DSA and the names of kubeadm's certificates in
//! addition. It accepts what [`KeyRules::from_document`] reads in the enhancement's form, and a test holds the two together.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::read::{OPENSHIFT_NAMES, SINGLETON};
use super::{Category, Choice, KeyOwner, KeyRules};
use crate::x509::{KeyAlgorithm, KeyFamily};
use crate::yaml::format_duration;

/// The group of the resource.
pub(crate) const GROUP: &str = "config.openshift.io";
/// The versions of the resource, the preferred one first.
pub(crate) const VERSIONS: [&str; 2] = ["v1", "v1alpha1"];
/// The API server limits what the rules of a schema may cost, so lists and texts in them need a limit.
const MAX_OVERRIDES: usize = 128;
const MAX_NAME: usize = 253;
const MAX_DURATION: usize = 64;

/// Returns the definition of the resource. `registered` are names that an override may have besides those that are known
/// everywhere.
pub(crate) fn definition(registered: &[String]) -> Value {
    let versions = VERSIONS.map(|version| {
        json!({
            "name": version,
            "served": true,
            "storage": version == VERSIONS[0],
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema(registered)},
        })
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("pkis.{GROUP}")},
        "spec": {
            "group": GROUP,
            "names": {"plural": "pkis", "singular": "pki", "kind": "PKI", "listKind": "PKIList"},
            "scope": "Cluster",
            "versions": versions,
        },
    })
}

fn schema(registered: &[String]) -> Value {
    let categories = Category::ALL.map(Category::as_str);
    json!({
        "description": "The key algorithm and the lifetime of the certificates of this cluster.",
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [{
            "rule": format!("self.metadata.name == '{SINGLETON}'"),
            "message": format!("the PKI resource is a singleton: its name is {SINGLETON}"),
        }],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {
                "type": "object",
                "properties": {
                    "defaults": certificate("For all certificates that neither a category nor an override names."),
                    "categories": {
                        "description": "Takes precedence over the defaults.",
                        "type": "array",
                        "maxItems": categories.len(),
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["category"],
                        "items": {
                            "type": "object",
                            "required": ["category", "certificate"],
                            "properties": {
                                "category": {"type": "string", "enum": categories},
                                "certificate": certificate("For all certificates of the category."),
                            },
                            "x-kubernetes-validations": [{
                                "rule": format!(
                                    "self.category != '{}' || !has(self.certificate.lifetime)",
                                    Category::Signer.as_str()
                                ),
                                "message": "lifetime is for leaf certificates only: the owner of a CA decides on the lifetime of its certificate",
                            }],
                        },
                    },
                    "overrides": overrides(registered),
                },
            },
            "status": {"type": "object"},
        },
    })
}

fn overrides(registered: &[String]) -> Value {
    let own = KeyOwner::named().map(|owner| owner.to_string());
    let openshift = OPENSHIFT_NAMES.iter().map(|(name, _)| (*name).to_owned());
    let names: Vec<String> = own
        .chain(openshift)
        .chain(registered.iter().cloned())
        .collect();
    let is_leaf = |owner: &KeyOwner| matches!(owner, KeyOwner::Leaf(_));
    let own = KeyOwner::named().filter(|owner| !is_leaf(owner));
    let own = own.map(|owner| owner.to_string());
    let openshift = OPENSHIFT_NAMES
        .iter()
        .filter(|(_, owners)| owners.iter().any(|owner| !is_leaf(owner)))
        .map(|(name, _)| (*name).to_owned());
    let without_lifetime: Vec<String> = own.chain(openshift).collect();
    json!({
        "description": "Takes precedence over categories and defaults.",
        "type": "array",
        "maxItems": MAX_OVERRIDES,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["certificateName"],
        "items": {
            "type": "object",
            "required": ["certificateName", "certificate"],
            "properties": {
                "certificateName": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
                "certificate": certificate("For this certificate."),
            },
            "x-kubernetes-validations": [
                {
                    "rule": format!("self.certificateName in {}", cel_list(&names)),
                    "message": "certificateName must be a well-known certificate name",
                },
                {
                    "rule": format!(
                        "!has(self.certificate.lifetime) || !(self.certificateName in {})",
                        cel_list(&without_lifetime)
                    ),
                    "message": "lifetime is for leaf certificates only",
                },
            ],
        },
    })
}

/// Returns a list of CEL; the names contain neither quotes nor backslashes.
fn cel_list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(", "))
}

fn certificate(description: &str) -> Value {
    let sizes = of_family(KeyFamily::Rsa).map(|key| parameter(key).1);
    let curves = of_family(KeyFamily::Ecdsa).map(|key| parameter(key).1);
    let sets = of_family(KeyFamily::MlDsa).map(|key| parameter(key).1);
    let block = |field: &str, kind: &str, values: Vec<Value>| {
        json!({
            "type": "object",
            "required": [field],
            "properties": {field: {"type": kind, "enum": values}},
        })
    };
    json!({
        "description": description,
        "type": "object",
        "properties": {
            "key": {
                "type": "object",
                "required": ["algorithm"],
                "properties": {
                    "algorithm": {"type": "string", "enum": ["RSA", "ECDSA", "MLDSA"]},
                    "rsa": block("keySize", "integer", sizes.collect()),
                    "ecdsa": block("curve", "string", curves.collect()),
                    "mldsa": block("parameterSet", "string", sets.collect()),
                },
                "x-kubernetes-validations": [{
                    "rule": "has(self.rsa) == (self.algorithm == 'RSA') && has(self.ecdsa) == (self.algorithm == 'ECDSA') && has(self.mldsa) == (self.algorithm == 'MLDSA')",
                    "message": "algorithm must match the configuration: use rsa for RSA, ecdsa for ECDSA, mldsa for MLDSA",
                }],
            },
            "lifetime": {
                "description": "Longest validity of a leaf certificate, as in 2160h.",
                "type": "string",
                "maxLength": MAX_DURATION,
                "x-kubernetes-validations": [{
                    "rule": "duration(self) > duration('0s')",
                    "message": "must be longer than zero",
                }],
            },
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.key) || has(self.lifetime)",
            "message": "key is required, unless there is a lifetime",
        }],
    })
}

fn of_family(family: KeyFamily) -> impl Iterator<Item = KeyAlgorithm> {
    let all = KeyAlgorithm::ALL.into_iter();
    all.filter(move |key| key.family() == family)
}

/// Returns the name of the parameter of an algorithm, and its value.
fn parameter(key: KeyAlgorithm) -> (&'static str, Value) {
    match key {
        KeyAlgorithm::Rsa2048 => ("keySize", json!(2048)),
        KeyAlgorithm::Rsa3072 => ("keySize", json!(3072)),
        KeyAlgorithm::Rsa4096 => ("keySize", json!(4096)),
        KeyAlgorithm::EcdsaP256 => ("curve", json!("P256")),
        KeyAlgorithm::EcdsaP384 => ("curve", json!("P384")),
        KeyAlgorithm::EcdsaP521 => ("curve", json!("P521")),
        KeyAlgorithm::MlDsa44 | KeyAlgorithm::MlDsa65 | KeyAlgorithm::MlDsa87 => {
            ("parameterSet", json!(key.as_str()))
        }
    }
}

impl KeyRules {
    /// Returns the rules as the object for the cluster, in the enhancement's form.
    pub(crate) fn to_object(&self) -> Value {
        let mut spec = Map::new();
        if let Some(defaults) = &self.defaults {
            spec.insert("defaults".to_owned(), defaults.to_value());
        }
        let mut list = |name: &str, items: Vec<Value>| {
            if !items.is_empty() {
                spec.insert(name.to_owned(), Value::Array(items));
            }
        };
        let categories = self.categories.iter().map(|(category, choice)| {
            json!({"category": category.as_str(), "certificate": choice.to_value()})
        });
        list("categories", categories.collect());
        let overrides = self.overrides.iter().map(|(owner, choice)| {
            json!({"certificateName": owner.to_string(), "certificate": choice.to_value()})
        });
        list("overrides", overrides.collect());
        json!({
            "apiVersion": format!("{GROUP}/{}", VERSIONS[0]),
            "kind": "PKI",
            "metadata": {"name": SINGLETON},
            "spec": spec,
        })
    }

    /// Returns the names in the overrides that are not known everywhere.
    pub(crate) fn registered_names(&self) -> impl Iterator<Item = String> {
        let owners = self.overrides.keys().map(ToString::to_string);
        owners.filter(|name| KeyOwner::parse(name).is_none())
    }
}

impl Choice {
    fn to_value(&self) -> Value {
        let mut value = Map::new();
        if let Some(key) = &self.key {
            let (algorithm, block) = match key.value.family() {
                KeyFamily::Rsa => ("RSA", "rsa"),
                KeyFamily::Ecdsa => ("ECDSA", "ecdsa"),
                KeyFamily::MlDsa => ("MLDSA", "mldsa"),
            };
            let (name, parameter) = parameter(key.value);
            let key = json!({"algorithm": algorithm, block: {name: parameter}});
            value.insert("key".to_owned(), key);
        }
        let lifetime = self.lifetime.as_ref().map(|lifetime| lifetime.value);
        value.extend(
            lifetime.map(|lifetime: Duration| {
                ("lifetime".to_owned(), json!(format_duration(lifetime)))
            }),
        );
        Value::Object(value)
    }
}
