//! The table of the settings' own keys, and the JSON Schema made from it and the signers' keys.

use serde_json::{Map, Value, json};

use super::{
    API_VERSION, FromCluster, KIND, KubeletClientSubject, KubeletIdentity, reload, rotation,
};
use crate::kube::names::CertName;
use crate::signer::Kind;
use crate::spec::KubeletLayout;
use crate::yaml::schema::{self, Form, Key, key};

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

fn layouts() -> Vec<&'static str> {
    KubeletLayout::ALL
        .into_iter()
        .map(KubeletLayout::as_str)
        .collect()
}

fn omittable() -> Vec<&'static str> {
    CertName::OMITTABLE
        .into_iter()
        .map(CertName::as_str)
        .collect()
}

fn fetching() -> Vec<&'static str> {
    FromCluster::ALL
        .into_iter()
        .map(FromCluster::as_str)
        .collect()
}

/// Every key of a fragment.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("apiVersion", Form::Const(API_VERSION), "Version of this format."),
    key("kind", Form::Const(KIND), "Kind of this document."),
    key("kubeadm.files[]", Form::Path, "kubeadm configuration files; those that exist are merged."),
    key("kubeadm.clusterConfiguration", Form::Path, "File with the ClusterConfiguration, for a joining node."),
    key("kubeadm.fromCluster", Form::Choice(fetching), "When a joining node asks the cluster for its ClusterConfiguration; default ifMissing."),
    key("join.certificateKey", Form::Secret, "File with the key of kubeadm-certs, in place of controlPlane.certificateKey."),
    key("join.writeCAKeys", Form::Flag, "Write the CA private keys of kubeadm-certs to the node; default false."),
    key("nodeName", Form::Text, "Node name in place of kubeadm's."),
    key("authorities.ca.signer", Form::Text, "Name of the signer for the authority ca."),
    key("authorities.ca.allowExtraUsages", Form::Flag, "Take certificates that are good for TLS servers and clients both; default false."),
    key("authorities.ca.maxLifetime", Form::Duration, "Longest life of a certificate that is taken from the signer, as in 43800h; default six times what is asked for."),
    key("authorities.ca.trust.file", Form::Path, "PEM file with the trusted certificates."),
    key("authorities.ca.trust.sha256[]", Form::Pin, "SHA-256 of a trusted certificate's public key (SPKI), in hex."),
    key("authorities.etcd-ca.signer", Form::Text, "Name of the signer for the authority etcd-ca."),
    key("authorities.etcd-ca.allowExtraUsages", Form::Flag, "Take certificates that are good for TLS servers and clients both; default false."),
    key("authorities.etcd-ca.maxLifetime", Form::Duration, "Longest life of a certificate that is taken from the signer, as in 43800h; default six times what is asked for."),
    key("authorities.etcd-ca.trust.file", Form::Path, "PEM file with the trusted certificates."),
    key("authorities.etcd-ca.trust.sha256[]", Form::Pin, "SHA-256 of a trusted certificate's public key (SPKI), in hex."),
    key("authorities.front-proxy-ca.signer", Form::Text, "Name of the signer for the authority front-proxy-ca."),
    key("authorities.front-proxy-ca.allowExtraUsages", Form::Flag, "Take certificates that are good for TLS servers and clients both; default false."),
    key("authorities.front-proxy-ca.maxLifetime", Form::Duration, "Longest life of a certificate that is taken from the signer, as in 43800h; default six times what is asked for."),
    key("authorities.front-proxy-ca.trust.file", Form::Path, "PEM file with the trusted certificates."),
    key("authorities.front-proxy-ca.trust.sha256[]", Form::Pin, "SHA-256 of a trusted certificate's public key (SPKI), in hex."),
    key("pki", Form::Defined("policy"), "Key parameters in the shape of OpenShift's PKI policy."),
    key("subjects.apiserver-kubelet-client", Form::Choice(subjects), "Organization of apiserver-kubelet-client; default auto."),
    key("commonNames.apiserver", Form::Text, "Common name in place of kube-apiserver; {node}, {cluster} and {certificate} are filled in."),
    key("commonNames.front-proxy-client", Form::Text, "In place of front-proxy-client; must be among kube-apiserver's --requestheader-allowed-names."),
    key("commonNames.etcd-server", Form::Text, "Common name in place of the node's."),
    key("commonNames.etcd-peer", Form::Text, "Common name in place of the node's."),
    key("commonNames.etcd-healthcheck-client", Form::Text, "Common name in place of kube-etcd-healthcheck-client."),
    key("commonNames.apiserver-etcd-client", Form::Text, "Common name in place of kube-apiserver-etcd-client."),
    key("extraSANs.apiserver[]", Form::Text, "Further DNS name or IP address in apiserver."),
    key("extraSANs.etcd-server[]", Form::Text, "Further DNS name or IP address in etcd-server."),
    key("extraSANs.etcd-peer[]", Form::Text, "Further DNS name or IP address in etcd-peer."),
    key("extraSANs.kubelet-serving[]", Form::Text, "Further DNS name or IP address in kubelet-serving."),
    key("certificates.omit[]", Form::Choice(omittable), "Certificate that is not requested: super-admin.conf, or admin.conf on a joining node."),
    key("kubelet.identity", Form::Choice(identities), "How the kubelet gets its client certificate; default issue."),
    key("kubelet.clientCertificate", Form::Choice(layouts), "Where it goes: file, or auto (in kubelet.conf until the kubelet keeps it as a file); default auto."),
    key("kubelet.serving", Form::Flag, "Issue the kubelet's serving certificate as well; default false."),
    key("wait", Form::Duration, "How long a run waits for pending signatures; default 30s."),
    key("clock.maxWait", Form::Duration, "How long a run waits for a believable clock; default 2m."),
    key("rotation.renewAt", Form::Defined("renewAt"), "When a certificate is due: the share of its life that is over, or a duration before its end; never before half of its life; default 66%."),
    key("rotation.jitter", Form::Percent, "By up to this share of its life a node renews earlier, each node by its own amount; default 10%."),
    key("rotation.minRemaining", Form::Duration, "A certificate is due at the latest when this is left of its life; default 1h."),
    key("rotation.window", Form::Defined("window"), "When renewals may happen, in UTC, as in Sun 02:00-05:00; one that is about to expire does not wait."),
    key("rotation.rekey", Form::Flag, "Make a new key for every renewal; default true."),
    key("reload.staticPods", Form::Flag, "Restart static pods that do not see a new file, by an annotation in their manifests; default true."),
    key("reload.coordinateWithLease", Form::Flag, "One control-plane node at a time restarts something; default true."),
    key("reload.timeout", Form::Duration, "How long a component may take until it serves again, and how long a run waits for other nodes, up to 10m; default 5m."),
    key("reload.lease.kubeconfig", Form::Path, "Kubeconfig that may use the Lease kube-system/nodepki-reload; default /etc/kubernetes/admin.conf."),
    key("reload.lease.duration", Form::Duration, "How long a node that vanishes keeps the others waiting; default 1m."),
    key("reload.hooks", Form::Defined("hooks"), "Programs to run: for a certificate once it was replaced, for a component to restart it."),
    key("reload.units", Form::Defined("units"), "systemd units to restart or reload, likewise."),
    key("metrics.textfile", Form::Path, "File for node_exporter's textfile collector; its name ends with .prom."),
    key("metrics.listen", Form::Text, "Address at which the daemon serves /metrics and /healthz, for example 127.0.0.1:9465; read when it starts."),
];

/// The schema document.
pub(super) fn document() -> Value {
    let mut root = schema::object();
    for key in KEYS {
        schema::add(&mut root, "", key);
    }
    for kind in Kind::ALL {
        let prefix = format!("signers.*.{kind}");
        for key in kind.about().keys.iter().copied().flatten() {
            schema::add(&mut root, &prefix, key);
        }
    }
    if let Some(map) = root.as_object_mut() {
        map.insert("required".to_owned(), json!(["apiVersion", "kind"]));
        let mut definitions = policy_definitions();
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.extend(rotation::definitions());
            definitions.extend(reload::definitions());
        }
        map.insert("$defs".to_owned(), definitions);
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
