//! The rules about the content of a request that need no Node: usages, subject, key, form.

use std::collections::BTreeSet;

use super::judge::Violation;
use super::requester::{NODES_GROUP, quoted};
use super::{KubeletPolicy, RequestReason};
use crate::kube::csr_object::{CsrObject, KubeletCertificate};
use crate::kube::kubeadm::is_dns_subdomain;
use crate::kube::names::NODE_USER_PREFIX;
use crate::x509::{
    Csr, CsrContent, CsrContentError, DistinguishedName, KeyAlgorithm, KeyType, Sans,
};

/// What a valid request asks for.
#[derive(Debug)]
pub(super) struct RequestContent {
    /// Name of the node in the subject.
    pub(super) node: String,
    /// Names and addresses, as written; none for a client certificate.
    pub(super) sans: Sans,
    /// Type of the key.
    pub(super) key: KeyAlgorithm,
    /// The request.
    pub(super) csr: Csr,
}

/// Verifies the content. Kubernetes' rules for the two signer names are in `pkg/apis/certificates/helpers.go`,
/// `ValidateKubeletClientCSR` and `ValidateKubeletServingCSR`; the rules about form, key and duplicates are nodepki's.
pub(super) fn content(
    request: &CsrObject,
    policy: &KubeletPolicy,
) -> Result<RequestContent, Violation> {
    verify_usages(request)?;
    let csr = CsrContent::from_pem(&request.request).map_err(unreadable)?;
    let node = node_of(csr.subject())?;
    let key = key_of(&csr, policy)?;
    if !csr.is_signed() {
        return Err(Violation::proven(
            RequestReason::SignatureInvalid,
            "the request's own signature does not verify, or its algorithm is not secure",
        ));
    }
    verify_presence(request.certificate, csr.sans())?;
    let sans = csr.sans().cloned().unwrap_or_default();
    let csr = csr
        .into_csr()
        .map_err(|error| Violation::proven(RequestReason::RequestUnreadable, error.to_string()))?;
    Ok(RequestContent {
        node,
        sans,
        key,
        csr,
    })
}

fn verify_usages(request: &CsrObject) -> Result<(), Violation> {
    let own = request.certificate.usage().to_string();
    let found: BTreeSet<&str> = request.usages.iter().map(String::as_str).collect();
    let required = BTreeSet::from(["digital signature", own.as_str()]);
    let mut with_encipherment = required.clone();
    with_encipherment.insert("key encipherment");
    let is_unique = found.len() == request.usages.len();
    if is_unique && (found == required || found == with_encipherment) {
        return Ok(());
    }
    let found: Vec<String> = request.usages.iter().map(|usage| quoted(usage)).collect();
    Err(Violation::proven(
        RequestReason::UsagesNotAllowed,
        format!(
            "the usages are {}, but required are exactly digital signature, {own} and optionally key encipherment",
            found.join(", ")
        ),
    ))
}

fn unreadable(error: CsrContentError) -> Violation {
    let reason = match error {
        CsrContentError::NotOneBlock | CsrContentError::Damaged(_) => {
            RequestReason::RequestUnreadable
        }
        CsrContentError::Subject(_) => RequestReason::SubjectNotAllowed,
        CsrContentError::Key(_) => RequestReason::KeyNotAllowed,
        CsrContentError::Attribute(_) => RequestReason::AttributeNotAllowed,
        CsrContentError::Extension(_) => RequestReason::ExtensionNotAllowed,
        CsrContentError::NameKind(_) => RequestReason::SanNotValid,
    };
    Violation::proven(reason, quoted(&error.to_string()))
}

/// Returns the node's name in a subject with exactly one organization and one common name.
fn node_of(subject: &DistinguishedName) -> Result<String, Violation> {
    let attributes: BTreeSet<&str> = subject.attributes().map(|(kind, _)| kind).collect();
    let count = subject.attributes().count();
    let common_name = subject.values("CN").next().unwrap_or_default();
    let is_in_group = subject.values("O").eq([NODES_GROUP]);
    let name = common_name.strip_prefix(NODE_USER_PREFIX);
    let (Some(name), true, true) = (
        name,
        is_in_group,
        count == 2 && attributes == BTreeSet::from(["CN", "O"]),
    ) else {
        return Err(Violation::proven(
            RequestReason::SubjectNotAllowed,
            format!(
                "the subject is {}, but required is exactly O=system:nodes, CN=system:node:NAME",
                quoted(&subject.to_string())
            ),
        ));
    };
    if !is_dns_subdomain(name) {
        return Err(Violation::proven(
            RequestReason::NodeNameInvalid,
            format!("{:?} is not a valid node name", quoted(name)),
        ));
    }
    Ok(name.to_owned())
}

fn key_of(csr: &CsrContent, policy: &KubeletPolicy) -> Result<KeyAlgorithm, Violation> {
    let refuse = |problem: String| Err(Violation::proven(RequestReason::KeyNotAllowed, problem));
    if let Some(problem) = csr.unusable_key() {
        return refuse(format!("the key is not usable: {problem}"));
    }
    match csr.public_key().key_type() {
        KeyType::Known(key) if policy.keys.contains(key) => Ok(*key),
        other => {
            let allowed: Vec<&str> = policy.keys.iter().map(|key| key.as_str()).collect();
            refuse(format!(
                "the key is {}, but allowed are {}",
                quoted(&other.to_string()),
                allowed.join(", ")
            ))
        }
    }
}

fn verify_presence(certificate: KubeletCertificate, sans: Option<&Sans>) -> Result<(), Violation> {
    match (certificate, sans) {
        (KubeletCertificate::Client, Some(_)) => Err(Violation::proven(
            RequestReason::SanNotAllowed,
            "a kubelet's client certificate must not contain subject alternative names",
        )),
        (KubeletCertificate::Serving, sans) if sans.is_none_or(Sans::is_empty) => {
            Err(Violation::proven(
                RequestReason::SanRequired,
                "a kubelet's serving certificate requires a DNS name or an IP address",
            ))
        }
        _ => Ok(()),
    }
}
