//! Fuzz targets: the judgement of a kubelet's request.
#![allow(
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::sync::OnceLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use time::macros::datetime;

use super::{
    IssuanceIndex, KubeletDecision, KubeletPolicy, NodeBindings, NodeIndex, RequestContext,
    ReservedNames, judge,
};
use crate::kube::csr_object::{CsrObject, NodeObject};
use crate::kube::kubeadm::{self, ClusterConfig};
use crate::text::is_hidden;
use crate::x509::Sans;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[("kubelet-judgement", judgement)];

fn cluster() -> &'static ClusterConfig {
    static CLUSTER: OnceLock<ClusterConfig> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let text = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.0\n";
        let documents = kubeadm::load(&[("kubeadm.yaml", text)]);
        documents.cluster().cloned().expect("the document is valid")
    })
}

/// The input has three parts, separated by lines with `%%`: the CSR in PEM, the object without `spec.request`, and the Node.
fn judgement(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split("\n%%\n");
    let (Some(pem), Some(object)) = (parts.next(), parts.next()) else {
        return;
    };
    let Ok(mut object) = serde_json::from_str::<Value>(object) else {
        return;
    };
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let request = format!("{pem}\n");
        spec.insert("request".to_owned(), json!(BASE64_STANDARD.encode(request)));
    }
    let Ok(Some(request)) = CsrObject::from_json(&object) else {
        return;
    };
    let mut nodes = NodeIndex::default();
    let node = parts
        .next()
        .and_then(|text| serde_json::from_str(text).ok());
    if let Some(node) = node.and_then(|node| NodeObject::from_json(&node).ok()) {
        nodes.insert(node);
    }
    let api_server = Sans {
        dns: vec!["kubernetes".to_owned()],
        ips: vec![[10, 96, 0, 1].into()],
    };
    let context = RequestContext {
        nodes: &nodes,
        reserved: &ReservedNames::new(cluster(), &api_server),
        bindings: &NodeBindings::default(),
        issued: &IssuanceIndex::default(),
    };
    let policy = KubeletPolicy {
        sign: true,
        approve_serving: true,
        approve_client: true,
        ..KubeletPolicy::default()
    };
    let now = datetime!(2026-06-01 12:00 UTC);
    let decision = judge(&request, context, &policy, now);
    let finding = match &decision {
        KubeletDecision::Sign(order) => {
            assert!(request.condition("Approved").is_some() && !request.is_issued);
            assert_eq!(
                order.profile.subject.common_name,
                format!("system:node:{}", order.node)
            );
            assert_eq!(order.profile.subject.organizations, ["system:nodes"]);
            assert!(order.profile.lifetime <= policy.lifetime);
            let is_reserved = |name: &String| api_server.dns.contains(name);
            assert!(!order.profile.sans.dns.iter().any(is_reserved));
            let is_reserved = |ip| api_server.ips.contains(ip);
            assert!(!order.profile.sans.ips.iter().any(is_reserved));
            return;
        }
        KubeletDecision::Deny(finding)
        | KubeletDecision::Fail(finding)
        | KubeletDecision::Wait { finding, .. } => finding.to_string(),
        KubeletDecision::Approve { message, .. } => message.clone(),
        KubeletDecision::Ignore => return,
    };
    // The text becomes a condition of the object, which `kubectl describe` prints.
    assert!(!finding.chars().any(is_hidden), "{finding:?}");
}
