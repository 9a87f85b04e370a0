//! CertificateSigningRequests of kubelets (`certificates.k8s.io/v1`) and Node objects, from JSON.
//!
//! Any client that may create a CertificateSigningRequest, which includes every kubelet and every bootstrap token,
//! determines the content of one. Each list and text is therefore read up to a limit, and [`CsrObject::excess`] names the
//! field that exceeds it. A Node's addresses, conditions and labels are read; nothing else of it is kept.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::kubeadm::Host;
use super::kubeadm::parse_ip;
use super::names::{CONTROL_PLANE_LABEL, CertName};
use super::pod_request::POD_CLIENT_SIGNER;
use crate::x509::ExtendedUsage;

/// Group of CertificateSigningRequests.
pub const CSR_GROUP: &str = "certificates.k8s.io";
/// Largest request in bytes, in PEM or DER. The largest that a kubelet makes, for an RSA key of 4096 bits, has less than 4 KiB.
pub const MAX_CSR_PEM_BYTES: usize = 16 << 10;
/// Largest number of usages, groups or conditions of a request.
const MAX_CSR_LIST_ITEMS: usize = 32;
/// Largest length of a name, user name, group or usage, in bytes. Kubernetes limits the name of an object to 253.
const MAX_CSR_TEXT_BYTES: usize = 1024;
/// Largest number of addresses of a Node that are read. The cloud provider of AWS reports every private address of every
/// network interface, up to 15 with 50 each.
pub const MAX_NODE_ADDRESSES: usize = 1024;

words! {
    /// A certificate that a kubelet requests through the API, each with a signer name of its own.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum KubeletCertificate {
        /// The client certificate, by which the kubelet is `system:node:NAME`.
        Client = "client",
        /// The certificate of the kubelet's own server, port 10250.
        Serving = "serving",
        /// The client certificate of a pod, by which the pod is its ServiceAccount.
        Pod = "pod",
    }
}

impl KubeletCertificate {
    /// The kubelet's own, which it requests by CertificateSigningRequests.
    pub const OWN: [KubeletCertificate; 2] =
        [KubeletCertificate::Client, KubeletCertificate::Serving];

    /// Returns the signer name, `spec.signerName`.
    pub const fn signer_name(self) -> &'static str {
        match self {
            KubeletCertificate::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            KubeletCertificate::Serving => "kubernetes.io/kubelet-serving",
            KubeletCertificate::Pod => POD_CLIENT_SIGNER,
        }
    }

    /// Returns the name by which a signer selects role, profile or issuer: for the kubelet's own, the entry of nodepki's table
    /// with the same content.
    pub const fn cert_name(self) -> CertName {
        match self {
            KubeletCertificate::Client => CertName::KubeletConf,
            KubeletCertificate::Serving => CertName::KubeletServing,
            KubeletCertificate::Pod => CertName::PodClient,
        }
    }

    /// Returns the use of its key.
    pub const fn usage(self) -> ExtendedUsage {
        match self {
            KubeletCertificate::Client | KubeletCertificate::Pod => ExtendedUsage::ClientAuth,
            KubeletCertificate::Serving => ExtendedUsage::ServerAuth,
        }
    }
}

/// The reason why JSON is not a usable object. The API server never sends such an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {field} is missing or not valid")]
pub struct InvalidObject {
    kind: &'static str,
    field: &'static str,
}

/// A CertificateSigningRequest for one of a kubelet's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrObject {
    /// Name of the object.
    pub name: String,
    /// Unique over all times, unlike the name.
    pub uid: String,
    /// Version of this state.
    pub resource_version: String,
    /// Creation, by the clock of the API server.
    pub created: OffsetDateTime,
    /// The signer name.
    pub certificate: KubeletCertificate,
    /// `spec.request`: text in PEM, as sent by the requester. Empty if [`CsrObject::excess`] names it.
    pub request: Vec<u8>,
    /// `spec.usages`.
    pub usages: Vec<String>,
    /// `spec.expirationSeconds`.
    pub expiration: Option<Duration>,
    /// The user that created the object, set by the API server (`pkg/registry/certificates/certificates/strategy.go`,
    /// `PrepareForCreate`).
    pub requester: CsrRequester,
    /// The conditions `Approved`, `Denied` and `Failed`.
    pub conditions: Vec<CsrCondition>,
    /// True if `status.certificate` is set.
    pub is_issued: bool,
    /// The first field that exceeds its limit or is not valid; such a request is never signed.
    pub excess: Option<&'static str>,
}

/// The user that created a CertificateSigningRequest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsrRequester {
    /// `spec.username`.
    pub username: String,
    /// `spec.groups`.
    pub groups: Vec<String>,
}

/// A condition of a CertificateSigningRequest. `Approved`, `Denied` and `Failed` exist only with status True
/// (`pkg/apis/certificates/validation/validation.go`, `trueConditionTypes`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrCondition {
    /// `Approved`, `Denied`, `Failed`, or another one.
    pub kind: String,
    /// A code.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl CsrObject {
    /// Reads an object. Returns `None` if its signer name is not one of [`KubeletCertificate::OWN`].
    ///
    /// # Errors
    /// An object without name, UID, version or creation time.
    pub fn from_json(object: &Value) -> Result<Option<CsrObject>, InvalidObject> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let signer_name = spec["signerName"].as_str().unwrap_or_default();
        let mut own = KubeletCertificate::OWN.into_iter();
        let Some(certificate) = own.find(|one| one.signer_name() == signer_name) else {
            return Ok(None);
        };
        let metadata = ObjectMetadata::read("CertificateSigningRequest", object)?;
        let mut limits = Limits::default();
        let read = CsrObject {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            created: metadata.created,
            certificate,
            request: limits.base64("spec.request", &spec["request"]),
            usages: limits.texts("spec.usages", &spec["usages"]),
            expiration: limits.seconds("spec.expirationSeconds", &spec["expirationSeconds"]),
            requester: CsrRequester {
                username: limits.text("spec.username", &spec["username"]),
                groups: limits.texts("spec.groups", &spec["groups"]),
            },
            conditions: conditions(&status["conditions"]),
            is_issued: status["certificate"]
                .as_str()
                .is_some_and(|pem| !pem.is_empty()),
            excess: limits.excess,
        };
        Ok(Some(read))
    }

    /// Returns the condition of this type, if it is set.
    pub fn condition(&self, kind: &str) -> Option<&CsrCondition> {
        self.conditions
            .iter()
            .find(|condition| condition.kind == kind)
    }
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObject {
    /// Name of the object.
    pub name: String,
    /// Unique over all times, unlike the name.
    pub uid: String,
    /// Version of this state.
    pub resource_version: String,
    /// Creation, by the clock of the API server.
    pub created: OffsetDateTime,
    /// `status.addresses`, read as by the kubelet when it requests its serving certificate
    /// (`pkg/kubelet/certificate/kubelet.go`, `addressesToHostnamesAndIPs`). Names are in lower case.
    pub addresses: Vec<Host>,
    /// True if it has more than [`MAX_NODE_ADDRESSES`], of which the other ones are not read.
    pub has_unread_addresses: bool,
    /// True if it has the label of control-plane nodes, which a kubelet cannot set.
    pub is_control_plane: bool,
    /// True while it is being deleted.
    pub is_deleting: bool,
    /// The condition `Ready`, if it was ever set.
    pub ready: Option<NodeReadiness>,
}

/// The condition `Ready` of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReadiness {
    /// True if the kubelet reports that it is ready, and has done so recently.
    pub is_true: bool,
    /// A code: `KubeletReady`, `KubeletNotReady`, `NodeStatusUnknown`, `NodeStatusNeverUpdated`.
    pub reason: String,
    /// Last change of the status, by the clock of the kubelet or of kube-controller-manager.
    pub since: Option<OffsetDateTime>,
}

impl NodeObject {
    /// Reads an object.
    ///
    /// # Errors
    /// An object without name, UID, version or creation time.
    pub fn from_json(object: &Value) -> Result<NodeObject, InvalidObject> {
        let metadata = ObjectMetadata::read("Node", object)?;
        let (meta, status) = (&object["metadata"], &object["status"]);
        let addresses = status["addresses"].as_array();
        let addresses = addresses.map(Vec::as_slice).unwrap_or_default();
        Ok(NodeObject {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            created: metadata.created,
            addresses: addresses
                .iter()
                .take(MAX_NODE_ADDRESSES)
                .filter_map(node_address)
                .collect(),
            has_unread_addresses: addresses.len() > MAX_NODE_ADDRESSES,
            is_control_plane: meta["labels"].get(CONTROL_PLANE_LABEL).is_some(),
            is_deleting: !meta["deletionTimestamp"].is_null(),
            ready: readiness(&status["conditions"]),
        })
    }
}

fn node_address(entry: &Value) -> Option<Host> {
    let text = entry["address"]
        .as_str()
        .filter(|text| !text.is_empty() && text.len() <= MAX_CSR_TEXT_BYTES)?;
    let ip = || parse_ip(text).map(|(ip, _)| Host::Ip(ip));
    let name = || Host::Dns(text.to_ascii_lowercase());
    match entry["type"].as_str()? {
        "Hostname" => Some(ip().unwrap_or_else(name)),
        "InternalIP" | "ExternalIP" => ip(),
        "InternalDNS" | "ExternalDNS" => Some(name()),
        _ => None,
    }
}

fn readiness(conditions: &Value) -> Option<NodeReadiness> {
    let conditions = conditions.as_array()?.iter();
    let ready = conditions
        .into_iter()
        .find(|condition| condition["type"] == "Ready")?;
    Some(NodeReadiness {
        is_true: ready["status"] == "True",
        reason: ready["reason"].as_str().unwrap_or_default().to_owned(),
        since: time_of(&ready["lastTransitionTime"]),
    })
}

/// What every object has.
pub(super) struct ObjectMetadata {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) created: OffsetDateTime,
}

impl ObjectMetadata {
    pub(super) fn read(kind: &'static str, object: &Value) -> Result<Self, InvalidObject> {
        let metadata = &object["metadata"];
        let text = |field, key| required_text(kind, field, &metadata[key]);
        Ok(ObjectMetadata {
            name: text("metadata.name", "name")?,
            uid: text("metadata.uid", "uid")?,
            resource_version: text("metadata.resourceVersion", "resourceVersion")?,
            created: time_of(&metadata["creationTimestamp"]).ok_or(InvalidObject {
                kind,
                field: "metadata.creationTimestamp",
            })?,
        })
    }
}

/// Returns a text that no object lacks.
pub(super) fn required_text(
    kind: &'static str,
    field: &'static str,
    value: &Value,
) -> Result<String, InvalidObject> {
    let text = value.as_str();
    let text = text.filter(|text| (1..=MAX_CSR_TEXT_BYTES).contains(&text.len()));
    text.map(str::to_owned).ok_or(InvalidObject { kind, field })
}

fn time_of(value: &Value) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(value.as_str()?, &Rfc3339).ok()
}

/// Reads fields up to their limits and keeps the name of the first that is refused.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) excess: Option<&'static str>,
}

impl Limits {
    fn refuse<T: Default>(&mut self, field: &'static str) -> T {
        self.excess = self.excess.or(Some(field));
        T::default()
    }

    pub(super) fn base64(&mut self, field: &'static str, value: &Value) -> Vec<u8> {
        let text = value.as_str().unwrap_or_default();
        if text.len() > MAX_CSR_PEM_BYTES.div_ceil(3) * 4 {
            return self.refuse(field);
        }
        match BASE64_STANDARD.decode(text) {
            Ok(bytes) if bytes.len() <= MAX_CSR_PEM_BYTES => bytes,
            _ => self.refuse(field),
        }
    }

    pub(super) fn text(&mut self, field: &'static str, value: &Value) -> String {
        match value.as_str() {
            Some(text) if text.len() <= MAX_CSR_TEXT_BYTES => text.to_owned(),
            // The API server omits empty fields.
            None if value.is_null() => String::new(),
            _ => self.refuse(field),
        }
    }

    fn texts(&mut self, field: &'static str, value: &Value) -> Vec<String> {
        match value.as_array() {
            Some(items) if items.len() <= MAX_CSR_LIST_ITEMS => {
                items.iter().map(|item| self.text(field, item)).collect()
            }
            None if value.is_null() => Vec::new(),
            _ => self.refuse(field),
        }
    }

    pub(super) fn seconds(&mut self, field: &'static str, value: &Value) -> Option<Duration> {
        match value.as_u64() {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None if value.is_null() => None,
            None => self.refuse(field),
        }
    }
}

/// Types of the conditions that decide about a request.
const DECIDING_CONDITIONS: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Reads the deciding conditions. Their texts come from users that may approve or sign, and are only shown.
fn conditions(value: &Value) -> Vec<CsrCondition> {
    let text = |condition: &Value, key: &str| {
        let text = condition[key].as_str().unwrap_or_default().chars();
        text.take(MAX_CSR_TEXT_BYTES).collect::<String>()
    };
    let all = value.as_array().into_iter().flatten();
    all.map(|condition| CsrCondition {
        kind: text(condition, "type"),
        reason: text(condition, "reason"),
        message: text(condition, "message"),
    })
    .filter(|condition| DECIDING_CONDITIONS.contains(&condition.kind.as_str()))
    .take(MAX_CSR_LIST_ITEMS)
    .collect()
}
