//! The table of keys and the JSON Schema made from it.

use serde_json::{Map, Value, json};

use super::{API_VERSION, KIND, KubeletClientSubject, KubeletIdentity};

/// The form of a value.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Exactly this text.
    Const(&'static str),
    /// Any text.
    Text,
    /// An absolute path.
    Path,
    /// A Go duration.
    Duration,
    /// A SHA-256 pin.
    Pin,
    /// A user name or number.
    User,
    /// One of these texts.
    Choice(fn() -> Vec<&'static str>),
    /// A map without keys.
    Empty,
    /// The policy of key parameters.
    Policy,
}

/// One key: its path (`*` a free name, `[]` a list item), form and meaning.
pub(super) struct Key {
    pub(super) path: &'static str,
    pub(super) form: Form,
    pub(super) meaning: &'static str,
}

const fn key(path: &'static str, form: Form, meaning: &'static str) -> Key {
    Key {
        path,
        form,
        meaning,
    }
}

fn subjects() -> Vec<&'static str> {
    KubeletClientSubject::ALL
        .into_iter()
        .map(KubeletClientSubject::as_str)
        .collect()
}

fn identities() -> Vec<&'static str> {
    KubeletIdentity::ALL
        .into_iter()
        .map(KubeletIdentity::as_str)
        .collect()
}

/// Every key of a fragment.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("apiVersion", Form::Const(API_VERSION), "Version of this format."),
    key("kind", Form::Const(KIND), "Kind of this document."),
    key("kubeadm.files[]", Form::Path, "kubeadm configuration files; those that exist are merged."),
    key("kubeadm.clusterConfiguration", Form::Path, "File with the ClusterConfiguration, for a joining node."),
    key("nodeName", Form::Text, "Node name in place of kubeadm's."),
    key("authorities.ca.signer", Form::Text, "Name of the signer for the authority ca."),
    key("authorities.ca.trust.file", Form::Path, "PEM file with the trusted certificates."),
    key("authorities.ca.trust.sha256[]", Form::Pin, "SHA-256 of a trusted certificate's public key (SPKI), in hex."),
    key("authorities.etcd-ca.signer", Form::Text, "Name of the signer for the authority etcd-ca."),
    key("authorities.etcd-ca.trust.file", Form::Path, "PEM file with the trusted certificates."),
    key("authorities.etcd-ca.trust.sha256[]", Form::Pin, "SHA-256 of a trusted certificate's public key (SPKI), in hex."),
    key("authorities.front-proxy-ca.signer", Form::Text, "Name of the signer for the authority front-proxy-ca."),
    key("authorities.front-proxy-ca.trust.file", Form::Path, "PEM file with the trusted certificates."),
    key("authorities.front-proxy-ca.trust.sha256[]", Form::Pin, "SHA-256 of a trusted certificate's public key (SPKI), in hex."),
    key("signers.*.embedded", Form::Empty, "A throw-away authority in memory."),
    key("signers.*.local.directory", Form::Path, "Directory with ca.crt, ca.key, etcd/ca.* and front-proxy-ca.*."),
    key("signers.*.directory.path", Form::Path, "Directory for requests (outbox) and answers (inbox)."),
    key("signers.*.exec.command", Form::Path, "The plug-in program."),
    key("signers.*.exec.args[]", Form::Text, "Argument before the verb."),
    key("signers.*.exec.env.*", Form::Text, "Environment variable of the plug-in."),
    key("signers.*.exec.timeout", Form::Duration, "Longest run of one call, up to 10m; default 60s."),
    key("signers.*.exec.runAsUser", Form::User, "User name or number to run as."),
    key("signers.*.exec.params.*", Form::Text, "Free value passed in each request."),
    key("pki", Form::Policy, "Key parameters in the shape of OpenShift's PKI policy."),
    key("subjects.apiserver-kubelet-client", Form::Choice(subjects), "Organization of apiserver-kubelet-client; default auto."),
    key("extraSANs.apiserver[]", Form::Text, "Further DNS name or IP address in apiserver."),
    key("extraSANs.etcd-server[]", Form::Text, "Further DNS name or IP address in etcd-server."),
    key("extraSANs.etcd-peer[]", Form::Text, "Further DNS name or IP address in etcd-peer."),
    key("kubelet.identity", Form::Choice(identities), "How the kubelet gets its client certificate; default issue."),
    key("wait", Form::Duration, "How long a run waits for pending signatures; default 30s."),
    key("clock.maxWait", Form::Duration, "How long a run waits for a believable clock; default 2m."),
];

/// The schema document.
pub(super) fn document() -> Value {
    let mut root = object();
    for key in KEYS {
        let steps: Vec<&str> = key.path.split('.').collect();
        insert(&mut root, &steps, key);
    }
    if let Some(map) = root.as_object_mut() {
        map.insert("required".to_owned(), json!(["apiVersion", "kind"]));
        map.insert("$defs".to_owned(), policy_definitions());
        let mut schema = Map::new();
        schema.insert(
            "$schema".to_owned(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        schema.insert("title".to_owned(), json!(KIND));
        schema.append(map);
        return Value::Object(schema);
    }
    root
}

fn object() -> Value {
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
        Form::Path => json!({"type": "string", "pattern": "^/"}),
        Form::Duration => {
            json!({"type": "string", "pattern": "^\\+?(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$"})
        }
        Form::Pin => {
            json!({"type": "string", "pattern": "^(sha256:)?([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}$"})
        }
        Form::User => json!({"type": ["string", "integer"]}),
        Form::Choice(choices) => json!({"enum": choices()}),
        Form::Empty => object(),
        Form::Policy => json!({"$ref": "#/$defs/policy"}),
    }
}

/// The policy's own shape, in all three forms that are read.
fn policy_definitions() -> Value {
    let certificate = json!({"$ref": "#/$defs/certificate"});
    json!({
        "policy": {
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "defaults": certificate,
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
                        "custom": {
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
                        }
                    }
                }
            }
        },
        "category": {"enum": [
            "SignerCertificate", "ServingCertificate", "ClientCertificate", "Signer", "Serving", "Client"
        ]},
        "certificate": {
            "type": "object",
            "additionalProperties": false,
            "required": ["key"],
            "properties": {"key": {"oneOf": [
                {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["algorithm", "rsa"],
                    "properties": {
                        "algorithm": {"const": "RSA"},
                        "rsa": {
                            "type": "object",
                            "additionalProperties": false,
                            "required": ["keySize"],
                            "properties": {"keySize": {"enum": [2048, 3072, 4096]}}
                        }
                    }
                },
                {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["algorithm", "ecdsa"],
                    "properties": {
                        "algorithm": {"const": "ECDSA"},
                        "ecdsa": {
                            "type": "object",
                            "additionalProperties": false,
                            "required": ["curve"],
                            "properties": {"curve": {"enum": ["P256", "P384", "P521"]}}
                        }
                    }
                }
            ]}}
        }
    })
}
