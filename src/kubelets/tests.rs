use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;

use super::*;
use crate::kube::csr_object::{CsrObject, KubeletCertificate, NodeObject};
use crate::kube::kubeadm::{ClusterConfig, Host, HostPort, IpNet, San};
use crate::x509::der_encoding;
use crate::x509::{
    CertificateAuthority, Chain, ExtendedUsage, KeyAlgorithm, PrivateKey, Sans, Tolerance,
};

mod names;
mod node_names;
mod pods;
#[path = "../../tests/fixtures/kubelet_requests.rs"]
mod requests;

use requests::{CLIENT, CsrParts, Outcome, SERVING, Sender, dns, ip, names_of_w1, node, token};

const CREATED: OffsetDateTime = datetime!(2026-11-23 04:00:00 UTC);
const LATER: OffsetDateTime = datetime!(2026-11-23 04:10:00 UTC);

/// A cluster, its policy and the requests that were issued.
struct Rig {
    nodes: NodeIndex,
    reserved: ReservedNames,
    bindings: NodeBindings,
    issued: IssuanceIndex,
    policy: KubeletPolicy,
}

fn node_json(name: &str, addresses: &[(&str, &str)], ready: Value) -> Value {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|(kind, address)| json!({"type": kind, "address": address}))
        .collect();
    json!({
        "metadata": {
            "name": name,
            "uid": format!("uid-{name}"),
            "resourceVersion": "1",
            "creationTimestamp": "2026-11-20T00:00:00Z",
        },
        "status": {"addresses": addresses, "conditions": [{"type": "DiskPressure", "status": "False"}, ready]},
    })
}

fn is_ready() -> Value {
    json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-11-20T00:00:30Z"})
}

fn was_ready() -> Value {
    json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": "2026-11-22T00:00:00Z"})
}

/// Not ready since its registration.
fn never_ready() -> Value {
    json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "lastTransitionTime": "2026-11-19T23:59:59Z"})
}

fn addresses_of_evil() -> Vec<(&'static str, &'static str)> {
    let own = [("Hostname", "evil"), ("InternalIP", "192.0.2.24")];
    [&own[..], &requests::CLAIMS_OF_EVIL].concat()
}

impl Rig {
    fn new() -> Rig {
        let mut nodes = NodeIndex::default();
        let mut cp1 = node_json(
            "cp1",
            &[("Hostname", "cp1"), ("InternalIP", "192.0.2.11")],
            is_ready(),
        );
        cp1["metadata"]["labels"] = json!({"node-role.kubernetes.io/control-plane": ""});
        for object in [
            cp1,
            node_json(
                "w1",
                &[
                    ("Hostname", "w1"),
                    ("InternalIP", "192.0.2.21"),
                    ("InternalIP", "2001:db8::21"),
                    ("InternalDNS", "w1.example.com"),
                ],
                is_ready(),
            ),
            node_json(
                "w2",
                &[("Hostname", "w2"), ("InternalIP", "192.0.2.22")],
                is_ready(),
            ),
            node_json(
                "tired",
                &[("Hostname", "tired"), ("InternalIP", "192.0.2.23")],
                was_ready(),
            ),
            node_json("evil", &addresses_of_evil(), is_ready()),
        ] {
            assert!(nodes.insert(NodeObject::from_json(&object).unwrap()));
        }
        let cluster = ClusterConfig {
            control_plane_endpoint: Some(HostPort::parse("api.example.com:6443").unwrap().0),
            apiserver_cert_sans: vec![San::parse("*.apps.example.com").unwrap().0],
            ..ClusterConfig::default()
        };
        let api_server = Sans {
            dns: vec!["cp1".to_owned(), "kubernetes".to_owned()],
            ips: ["10.96.0.1", "192.0.2.11", "192.0.2.10"]
                .map(|ip| ip.parse().unwrap())
                .to_vec(),
        };
        Rig {
            nodes,
            reserved: ReservedNames::new(&cluster, &api_server),
            bindings: NodeBindings::default(),
            issued: IssuanceIndex::default(),
            policy: KubeletPolicy {
                sign: true,
                approve_serving: true,
                approve_client: true,
                domains: vec!["example.com".to_owned()],
                ..KubeletPolicy::default()
            },
        }
    }

    fn insert(&mut self, object: &Value) -> bool {
        self.nodes.insert(NodeObject::from_json(object).unwrap())
    }

    fn judge(&self, request: &CsrObject, now: OffsetDateTime) -> KubeletDecision {
        let context = RequestContext {
            nodes: &self.nodes,
            reserved: &self.reserved,
            bindings: &self.bindings,
            issued: &self.issued,
        };
        judge(request, context, &self.policy, now)
    }

    /// Returns the decision about a request, in one word and the reason.
    fn outcome(&self, request: &CsrObject, now: OffsetDateTime) -> String {
        match self.judge(request, now) {
            KubeletDecision::Ignore => "ignore".to_owned(),
            KubeletDecision::Approve { .. } => "approve".to_owned(),
            KubeletDecision::Sign(_) => "sign".to_owned(),
            KubeletDecision::Deny(finding) => format!("deny {}", finding.reason),
            KubeletDecision::Fail(finding) => format!("fail {}", finding.reason),
            KubeletDecision::Wait { finding, until } => match until {
                Some(_) => format!("wait-until {}", finding.reason),
                None => format!("wait {}", finding.reason),
            },
        }
    }
}

fn usages_of(signer_name: &str) -> Vec<&'static str> {
    match signer_name {
        CLIENT => vec!["digital signature", "client auth"],
        _ => vec!["digital signature", "server auth"],
    }
}

fn object(sender: &Sender, signer_name: &str, usages: &[&str], pem: &[u8]) -> Value {
    json!({
        "metadata": {
            "name": "csr-1",
            "uid": "uid-1",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-23T04:00:00Z",
        },
        "spec": {
            "request": BASE64_STANDARD.encode(pem),
            "signerName": signer_name,
            "usages": usages,
            "username": sender.user,
            "groups": sender.groups,
        },
        "status": {},
    })
}

fn read(object: &Value) -> CsrObject {
    CsrObject::from_json(object).unwrap().unwrap()
}

fn request(sender: &Sender, signer_name: &str, csr: &CsrParts) -> CsrObject {
    read(&object(
        sender,
        signer_name,
        &usages_of(signer_name),
        &csr.pem(),
    ))
}

fn approved(request: &CsrObject, reason: &str) -> CsrObject {
    let mut object = json!({
        "metadata": {
            "name": request.name,
            "uid": request.uid,
            "resourceVersion": "8",
            "creationTimestamp": "2026-11-23T04:00:00Z",
        },
        "spec": {"signerName": request.certificate.signer_name()},
    });
    object["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": reason, "message": "m"}]);
    CsrObject {
        conditions: read(&object).conditions,
        ..request.clone()
    }
}

#[test]
fn refuses_every_hostile_request() {
    let rig = Rig::new();
    let cases = requests::all();
    assert!(cases.len() >= 40, "{}", cases.len());
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len(), "each case has a name of its own");
    let mut wrong = Vec::new();
    for case in cases {
        let request = read(&object(
            &case.sender,
            case.signer_name,
            &case.usages,
            &case.pem,
        ));
        let reason = case.reason;
        // The rule must not depend on the API server's admission.
        if case.refused_by_node_restriction {
            assert_eq!(reason, "NameOfOtherNode", "{}", case.name);
        }
        let (early, late, failed) = match case.outcome {
            Outcome::Denied => (
                format!("deny {reason}"),
                format!("deny {reason}"),
                format!("fail {reason}"),
            ),
            Outcome::DeniedLater => (
                format!("wait-until {reason}"),
                format!("deny {reason}"),
                format!("fail {reason}"),
            ),
            Outcome::Waits => (
                format!("wait {reason}"),
                format!("wait {reason}"),
                format!("wait {reason}"),
            ),
        };
        let found = [
            (rig.outcome(&request, CREATED), early),
            (rig.outcome(&request, LATER), late),
            // Approved by kube-controller-manager.
            (
                rig.outcome(&approved(&request, "AutoApproved"), LATER),
                failed,
            ),
        ];
        for (found, expected) in found {
            if found != expected {
                wrong.push(format!("{}: {found}, expected {expected}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn messages_of_refusals_are_one_safe_line() {
    let rig = Rig::new();
    for case in requests::all() {
        let request = read(&object(
            &case.sender,
            case.signer_name,
            &case.usages,
            &case.pem,
        ));
        let finding = match rig.judge(&request, LATER) {
            KubeletDecision::Deny(finding) | KubeletDecision::Wait { finding, .. } => finding,
            other => panic!("{}: {other:?}", case.name),
        };
        let message = &finding.message;
        assert!(
            !message.chars().any(char::is_control),
            "{}: {message:?}",
            case.name
        );
        assert!(message.len() < 700, "{}: {message}", case.name);
        assert!(!message.ends_with('.'), "{}: {message}", case.name);
    }
}

#[test]
fn requires_each_group_of_a_token_exactly_once() {
    let rig = Rig::new();
    let own = token();
    let outcome = |groups: &[&'static str]| {
        let sender = Sender {
            groups: groups.to_vec(),
            ..token()
        };
        rig.outcome(&request(&sender, CLIENT, &CsrParts::client("new")), CREATED)
    };
    assert_eq!(outcome(&own.groups), "approve");
    for i in 0..own.groups.len() {
        let mut groups = own.groups.clone();
        groups.push(own.groups[i]);
        assert_eq!(outcome(&groups), "deny GroupsNotAllowed", "{groups:?}");
        let mut groups = own.groups.clone();
        groups.remove(i);
        assert_eq!(outcome(&groups), "deny GroupsNotAllowed", "{groups:?}");
    }
}

#[test]
fn refusals_quote_text_of_the_request_without_hidden_characters() {
    let rig = Rig::new();
    let refusal = |user: String| {
        let sender = Sender { user, ..token() };
        match rig.judge(&request(&sender, CLIENT, &CsrParts::client("new")), CREATED) {
            KubeletDecision::Deny(finding) => finding.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let expected = |quoted: &str| {
        format!(
            "RequesterNotAllowed: the requester is {quoted}, but only a node or a bootstrap token may request a \
             kubelet's client certificate"
        )
    };
    assert_eq!(
        refusal("jane\u{202e}\n".to_owned()),
        expected("jane\u{fffd}\u{fffd}")
    );
    let longest = "u".repeat(100);
    assert_eq!(refusal(longest.clone()), expected(&longest));
    assert_eq!(
        refusal(format!("{longest}u")),
        expected(&format!("{longest}…"))
    );
}

#[test]
fn approves_and_signs_requests_of_kubelets() {
    let rig = Rig::new();
    for (sender, signer_name, csr) in [
        (node("w1"), SERVING, CsrParts::serving("w1", &names_of_w1())),
        (
            node("w1"),
            SERVING,
            CsrParts::serving("w1", &[ip("192.0.2.21")]),
        ),
        (node("w1"), CLIENT, CsrParts::client("w1")),
        (token(), CLIENT, CsrParts::client("new")),
        // The API server's address is its own.
        (
            node("cp1"),
            SERVING,
            CsrParts::serving("cp1", &[dns("cp1"), ip("192.0.2.11")]),
        ),
    ] {
        let request = request(&sender, signer_name, &csr);
        assert_eq!(rig.outcome(&request, CREATED), "approve", "{sender:?}");
        let request = approved(&request, APPROVED_BY_RULES);
        let KubeletDecision::Sign(order) = rig.judge(&request, CREATED) else {
            panic!("{sender:?}: {}", rig.outcome(&request, CREATED));
        };
        assert_eq!(order.csr.to_pem().into_bytes(), request.request);
        // The profile is that of the request.
        assert_eq!(order.csr.differences(&order.profile), []);
        let usage = match signer_name {
            CLIENT => ExtendedUsage::ClientAuth,
            _ => ExtendedUsage::ServerAuth,
        };
        assert_eq!(order.profile.usages, [usage]);
    }
}

#[test]
fn accepts_rsa_key_and_key_encipherment() {
    let rig = Rig::new();
    let pem = include_bytes!("../../tests/fixtures/kubelet-requests/rsa-2048.csr");
    for usages in [
        &["digital signature", "key encipherment", "server auth"][..],
        &["server auth", "digital signature"],
    ] {
        let request = read(&object(&node("w1"), SERVING, usages, pem));
        assert_eq!(rig.outcome(&request, CREATED), "approve");
    }
    let mut rig = rig;
    rig.policy.keys = vec![KeyAlgorithm::EcdsaP256];
    let request = read(&object(&node("w1"), SERVING, &usages_of(SERVING), pem));
    assert_eq!(rig.outcome(&request, CREATED), "deny KeyNotAllowed");
}

#[test]
fn ignores_requests_that_are_decided_or_not_for_kubelets() {
    let mut rig = Rig::new();
    let fields = object(
        &node("w1"),
        SERVING,
        &usages_of(SERVING),
        &CsrParts::serving("w1", &names_of_w1()).pem(),
    );
    for status in [
        json!({"certificate": "LS0tLS1CRUdJTg=="}),
        json!({"conditions": [{"type": "Denied", "status": "True"}]}),
        json!({"conditions": [{"type": "Approved", "status": "True"}, {"type": "Failed", "status": "True"}]}),
        // Objects of old releases may have both.
        json!({"conditions": [{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]}),
    ] {
        let mut fields = fields.clone();
        fields["status"] = status;
        assert_eq!(rig.outcome(&read(&fields), LATER), "ignore");
    }
    rig.policy.sign = false;
    assert_eq!(rig.outcome(&read(&fields), LATER), "ignore");
    let mut fields = fields;
    fields["spec"]["signerName"] = json!("kubernetes.io/kube-apiserver-client");
    assert_eq!(CsrObject::from_json(&fields), Ok(None));
}

#[test]
fn leaves_approval_to_others_by_default() {
    let mut rig = Rig::new();
    let serving = request(
        &node("w1"),
        SERVING,
        &CsrParts::serving("w1", &names_of_w1()),
    );
    let client = request(&token(), CLIENT, &CsrParts::client("new"));
    rig.policy.approve_client = false;
    assert_eq!(rig.outcome(&serving, CREATED), "approve");
    assert_eq!(rig.outcome(&client, CREATED), "wait ApprovalRequired");
    rig.policy.approve_serving = false;
    assert_eq!(rig.outcome(&serving, LATER), "wait ApprovalRequired");
    for request in [serving, client] {
        assert_eq!(
            rig.outcome(&approved(&request, "KubectlApprove"), LATER),
            "sign"
        );
    }
}

/// A request for the client certificate of a node that was issued at this time.
fn issued(user: &str, name: &str, at: OffsetDateTime) -> ApprovedRequest {
    issued_for(user, name, [7; 32], at)
}

/// As [`issued`], for a key with this SHA-256.
fn issued_for(user: &str, name: &str, key: [u8; 32], at: OffsetDateTime) -> ApprovedRequest {
    ApprovedRequest {
        uid: format!("uid-{user}-{name}-{at}"),
        name: format!("csr-{name}"),
        created: at,
        certificate: KubeletCertificate::Client,
        user: user.to_owned(),
        identity: RequestedIdentity {
            node: name.to_owned(),
            key,
            hosts: BTreeSet::new(),
        },
        progress: IssuanceProgress::Issued {
            since: at,
            until: at + 10 * ISSUANCE_WINDOW,
        },
    }
}

#[test]
fn token_replaces_only_node_that_it_created_and_that_was_never_ready() {
    const TOKEN: &str = "system:bootstrap:abcdef";
    let minutes = |minutes: i64| LATER - time::Duration::minutes(minutes);
    let own = || Some(issued(TOKEN, "new", minutes(30)));
    let never_updated = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusNeverUpdated", "lastTransitionTime": "2026-11-20T00:01:00Z"});
    let ready_for_a_while = json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "lastTransitionTime": "2026-11-20T00:05:00Z"});
    let no_time = json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady"});
    for (ready, issued, expected) in [
        (never_ready(), own(), "approve"),
        (never_updated, own(), "approve"),
        (json!({"type": "Other", "status": "True"}), own(), "approve"),
        (never_ready(), None, "wait NodeExists"),
        (
            never_ready(),
            Some(issued("system:bootstrap:999999", "new", minutes(30))),
            "wait NodeExists",
        ),
        (
            never_ready(),
            Some(issued(TOKEN, "other", minutes(30))),
            "wait NodeExists",
        ),
        // The object still exists, but it is older than an hour.
        (
            never_ready(),
            Some(issued(TOKEN, "new", minutes(60))),
            "wait NodeExists",
        ),
        (
            never_ready(),
            Some(issued(TOKEN, "new", minutes(59))),
            "approve",
        ),
        (ready_for_a_while, own(), "wait NodeExists"),
        (no_time, own(), "wait NodeExists"),
        (was_ready(), own(), "wait NodeExists"),
        (is_ready(), own(), "deny NodeExists"),
    ] {
        let mut rig = Rig::new();
        rig.insert(&node_json(
            "new",
            &[("InternalIP", "192.0.2.30")],
            ready.clone(),
        ));
        issued.into_iter().for_each(|one| rig.issued.insert(one));
        let request = request(&token(), CLIENT, &CsrParts::client("new"));
        assert_eq!(rig.outcome(&request, LATER), expected, "{ready}");
    }
}

#[test]
fn token_does_not_take_over_control_plane_node_or_node_that_is_being_deleted() {
    for (change, expected) in [
        ("/metadata/labels", "wait NodeExists"),
        ("/metadata/deletionTimestamp", "deny NodeDeleting"),
    ] {
        let mut rig = Rig::new();
        let mut new = node_json("new", &[("InternalIP", "192.0.2.30")], never_ready());
        let value = match change {
            "/metadata/labels" => json!({"node-role.kubernetes.io/control-plane": ""}),
            _ => json!("2026-11-23T04:05:00Z"),
        };
        new["metadata"][change.rsplit('/').next().unwrap()] = value;
        rig.insert(&new);
        let at = LATER - time::Duration::minutes(5);
        rig.issued
            .insert(issued("system:bootstrap:abcdef", "new", at));
        let request = request(&token(), CLIENT, &CsrParts::client("new"));
        assert_eq!(rig.outcome(&request, LATER), expected, "{change}");
        // Without the Node, the name is free, unless the token asked for it with another key.
        assert!(rig.nodes.remove("new"));
        assert_eq!(
            rig.outcome(&request, LATER),
            "wait NodeNameTaken",
            "{change}"
        );
        rig.issued = IssuanceIndex::default();
        assert_eq!(rig.outcome(&request, LATER), "approve", "{change}");
    }
}

#[test]
fn node_that_is_deleted_or_replaced_gets_no_certificate() {
    let mut rig = Rig::new();
    let known = rig.nodes.get("w1").unwrap().clone();
    rig.bindings.see(&known);
    let client = request(&node("w1"), CLIENT, &CsrParts::client("w1"));
    let serving = request(&node("w1"), SERVING, &CsrParts::serving("w1", &[dns("w1")]));
    let addresses = [("Hostname", "w1")];
    let mut again = node_json("w1", &addresses, is_ready());
    for request in [&client, &serving] {
        assert_eq!(rig.outcome(request, LATER), "approve");
    }
    again["metadata"]["deletionTimestamp"] = json!("2026-11-23T04:05:00Z");
    rig.insert(&again);
    for request in [&client, &serving] {
        assert_eq!(rig.outcome(request, LATER), "deny NodeDeleting");
        let confirmed = approved(request, APPROVED_BY_ADMINISTRATOR);
        assert_eq!(rig.outcome(&confirmed, LATER), "fail NodeDeleting");
    }
    // Created again by the kubelet, with the certificate that it still has.
    again["metadata"]["deletionTimestamp"] = json!(null);
    again["metadata"]["uid"] = json!("another");
    rig.insert(&again);
    for request in [&client, &serving] {
        assert_eq!(rig.outcome(request, LATER), "wait NodeReplaced");
        let by_other = approved(request, "AutoApproved");
        assert_eq!(rig.outcome(&by_other, LATER), "wait NodeReplaced");
        let confirmed = approved(request, APPROVED_BY_ADMINISTRATOR);
        assert_eq!(rig.outcome(&confirmed, LATER), "sign");
    }
    rig.bindings.renew("w1", rig.nodes.get("w1"), &[7; 32]);
    assert_eq!(rig.outcome(&client, LATER), "approve");
}

#[test]
fn revoked_name_gets_no_certificate() {
    for by_policy in [true, false] {
        let mut rig = Rig::new();
        for name in ["w1", "new"] {
            if by_policy {
                rig.policy.revoked.push(name.to_owned())
            } else {
                rig.bindings.revoke(name, Some(CREATED))
            }
        }
        let own = request(&node("w1"), CLIENT, &CsrParts::client("w1"));
        let by_token = request(&token(), CLIENT, &CsrParts::client("new"));
        for request in [&own, &by_token] {
            assert_eq!(rig.outcome(request, LATER), "deny NodeRevoked");
            let confirmed = approved(request, APPROVED_BY_ADMINISTRATOR);
            assert_eq!(rig.outcome(&confirmed, LATER), "fail NodeRevoked");
        }
        let other = request(&node("w2"), CLIENT, &CsrParts::client("w2"));
        assert_eq!(rig.outcome(&other, LATER), "approve");
    }
}

/// What has become of requests that were served in turn.
#[derive(Debug, Default, PartialEq, Eq)]
struct Served {
    /// Sent to the signer.
    signed: usize,
    /// Answered with the certificate of another request.
    repeated: usize,
    waiting: usize,
}

impl Rig {
    /// Approves and issues what the rules allow, in this order.
    fn serve(&mut self, requests: impl Iterator<Item = CsrObject>, now: OffsetDateTime) -> Served {
        let mut served = Served::default();
        for request in requests {
            match self.outcome(&request, now).as_str() {
                "approve" => {}
                "wait-until LimitReached" | "wait NodeNameTaken" => {
                    served.waiting += 1;
                    continue;
                }
                other => panic!("{other}"),
            }
            let KubeletDecision::Sign(order) = self.judge(&approved(&request, "x"), now) else {
                panic!("{}", self.outcome(&approved(&request, "x"), now));
            };
            match order.answer {
                Some(_) => served.repeated += 1,
                None => served.signed += 1,
            }
            self.issued.insert(ApprovedRequest {
                uid: request.uid.clone(),
                name: request.name.clone(),
                created: request.created,
                certificate: request.certificate,
                user: request.requester.username.clone(),
                identity: RequestedIdentity::of(&request).unwrap(),
                progress: IssuanceProgress::Issued {
                    since: now,
                    until: now + order.profile.lifetime,
                },
            });
        }
        served
    }
}

/// Returns a request of a bootstrap token for a new node.
fn joins(number: usize, token_id: &str, csr: &CsrParts) -> CsrObject {
    let mut sender = token();
    sender.user = format!("system:bootstrap:{token_id}");
    CsrObject {
        uid: format!("uid-{token_id}-{number:05}"),
        name: format!("csr-{token_id}-{number}"),
        ..request(&sender, CLIENT, csr)
    }
}

#[test]
fn burst_of_one_token_is_bounded_while_honest_nodes_join() {
    const BURST: usize = 3000;
    let honest = |token_id: &'static str| {
        (0..100).map(move |number| {
            let csr = CsrParts::client(&format!("honest-{token_id}-{number}"));
            joins(number + BURST, token_id, &csr)
        })
    };
    let all = Served {
        signed: 100,
        ..Served::default()
    };

    // The same request again and again costs one signature.
    let mut rig = Rig::new();
    let same = CsrParts::client("burst");
    let burst = (0..BURST / 10).map(|number| joins(number, "aaaaaa", &same));
    let served = rig.serve(burst, CREATED);
    assert_eq!((served.signed, served.repeated), (1, BURST / 10 - 1));
    assert_eq!(rig.serve(honest("aaaaaa"), CREATED), all);

    // A new key for the same name each time: the first one has it.
    let mut rig = Rig::new();
    let burst = (0..BURST).map(|number| joins(number, "aaaaaa", &CsrParts::client("burst")));
    let served = rig.serve(burst, CREATED);
    assert_eq!((served.signed, served.waiting), (1, BURST - 1));
    assert_eq!(rig.serve(honest("aaaaaa"), CREATED), all);

    // A new name each time, without a Node: the token has no room, other tokens have.
    let mut rig = Rig::new();
    let name = |number: usize| CsrParts::client(&format!("evil-{number}"));
    let burst = (0..BURST).map(|number| joins(number, "aaaaaa", &name(number)));
    let served = rig.serve(burst, CREATED);
    assert_eq!((served.signed, served.waiting), (300, BURST - 300));
    assert_eq!(rig.serve(honest("bbbbbb"), CREATED), all);

    // The same with Nodes, up to the configured number.
    let mut rig = Rig::new();
    rig.policy.nodes_per_token = 400;
    for number in 0..500 {
        rig.serve(
            std::iter::once(joins(number, "aaaaaa", &name(number))),
            CREATED,
        );
        rig.insert(&node_json(&format!("evil-{number}"), &[], never_ready()));
    }
    let named = rig.issued.of_node("evil-399").count() + rig.issued.of_node("evil-400").count();
    assert_eq!(named, 1);
    // After an hour the first ones do not count.
    let later = CREATED + ISSUANCE_WINDOW;
    let request = CsrObject {
        created: later,
        ..joins(BURST, "aaaaaa", &name(BURST))
    };
    assert_eq!(rig.outcome(&request, later), "approve");
    // Before, it would have waited; one that has waited for an hour is refused.
    let before = CREATED + ISSUANCE_WINDOW - Duration::from_secs(1);
    assert_eq!(rig.outcome(&request, before), "wait-until LimitReached");
    let old = joins(BURST, "aaaaaa", &name(BURST));
    rig.policy.nodes_per_token = 1;
    rig.serve(honest("aaaaaa").take(1), later - Duration::from_secs(2));
    assert_eq!(rig.outcome(&old, before), "wait-until LimitReached");
}

#[test]
fn limits_certificates_of_node_by_those_that_are_valid() {
    let mut rig = Rig::new();
    let own = |number: usize, at| CsrObject {
        uid: format!("uid-{number:03}"),
        created: at,
        ..request(&node("w1"), CLIENT, &CsrParts::client("w1"))
    };
    assert_eq!(
        rig.serve((0..9).map(|number| own(number, CREATED)), CREATED)
            .signed,
        5
    );
    // The serving certificate has a limit of its own.
    let serving = request(&node("w1"), SERVING, &CsrParts::serving("w1", &[dns("w1")]));
    assert_eq!(rig.outcome(&serving, CREATED), "approve");
    // A denied request is not repeated by the next one; one of another user does not count.
    assert_eq!(
        rig.outcome(&own(10, CREATED), CREATED),
        "wait-until LimitReached"
    );
    // Certificates of ten minutes are renewed more often.
    rig.policy.lifetime = Duration::from_secs(600);
    let mut rig = Rig {
        issued: IssuanceIndex::default(),
        ..rig
    };
    for number in 0..20 {
        let at = CREATED + number * Duration::from_secs(480);
        assert_eq!(
            rig.serve(std::iter::once(own(number as usize, at)), at)
                .signed,
            1
        );
    }
}

#[test]
fn approved_requests_count_in_the_order_of_their_creation() {
    let mut rig = Rig::new();
    let requests: Vec<CsrObject> = (0..8)
        .map(|number| CsrObject {
            uid: format!("uid-{number}"),
            ..request(&node("w1"), CLIENT, &CsrParts::client("w1"))
        })
        .collect();
    for request in &requests {
        rig.issued.insert(approved_only(request));
    }
    let outcomes = requests
        .iter()
        .map(|request| rig.outcome(&approved(request, "x"), CREATED));
    let signed = outcomes.filter(|outcome| outcome == "sign").count();
    assert_eq!(signed, 5);
}

/// Returns requests that one kubelet sent every 15 minutes, the first one at [`CREATED`].
fn attempts(number: u32, sender: &Sender, csr: &CsrParts) -> Vec<CsrObject> {
    let attempt = |number: u32| CsrObject {
        uid: format!("uid-{number}"),
        name: format!("csr-{number}"),
        created: CREATED + number * Duration::from_secs(15 * 60),
        ..request(sender, CLIENT, csr)
    };
    (0..number).map(attempt).collect()
}

#[test]
fn signs_only_last_of_the_requests_that_a_kubelet_sent_during_an_outage() {
    for (sender, name) in [(node("w1"), "w1"), (token(), "new")] {
        let mut rig = Rig::new();
        let attempts = attempts(7, &sender, &CsrParts::client(name));
        let now = attempts[6].created;
        for request in &attempts {
            assert_eq!(rig.outcome(request, now), "approve", "{}", request.name);
            rig.issued.insert(approved_only(request));
        }
        let (last, abandoned) = attempts.split_last().unwrap();
        let last = approved(last, "x");
        for one in abandoned {
            // Both may be processed at the same time: the last one waits until this one has failed.
            let waits = "wait-until RequestRepeated";
            assert_eq!(rig.outcome(&last, now), waits, "{}", one.name);
            let fails = "fail RequestAbandoned";
            assert_eq!(rig.outcome(&approved(one, "x"), now), fails);
            assert_eq!(rig.outcome(one, now), "deny RequestAbandoned");
            assert!(rig.issued.remove(&one.uid).is_some());
        }
        assert_eq!(rig.outcome(&last, now), "sign");
    }
}

#[test]
fn request_counts_as_long_as_its_kubelet_may_wait_for_it() {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let join = joins(1, "aaaaaa", &CsrParts::client("new"));
    let second = Duration::from_secs(1);
    for (token_id, later, expected) in [
        ("aaaaaa", minutes(15) - second, "wait NodeNameTaken"),
        ("aaaaaa", minutes(15), "approve"),
        // Only its own requester shows that a request is abandoned.
        ("bbbbbb", minutes(60), "wait NodeNameTaken"),
    ] {
        let mut rig = Rig::new();
        rig.issued.insert(approved_only(&join));
        let again = CsrObject {
            created: join.created + later,
            ..joins(2, token_id, &CsrParts::client("new"))
        };
        let now = again.created;
        assert_eq!(rig.outcome(&again, now), expected, "{token_id}");
        // Issued meanwhile, for example by another leader: it counts.
        rig.issued.insert(ApprovedRequest {
            progress: IssuanceProgress::Issued {
                since: now,
                until: now + ISSUANCE_WINDOW,
            },
            ..approved_only(&join)
        });
        for again in [again.clone(), approved(&again, "x")] {
            assert_eq!(rig.outcome(&again, now), "wait NodeNameTaken", "{token_id}");
        }
    }
    // The limit of new nodes counts an abandoned request too, until it has failed.
    let mut rig = Rig::new();
    rig.policy.nodes_per_token = 1;
    rig.issued.insert(approved_only(&join));
    let other = CsrObject {
        created: join.created + minutes(20),
        ..joins(2, "aaaaaa", &CsrParts::client("other"))
    };
    assert_eq!(
        rig.outcome(&other, other.created),
        "wait-until LimitReached"
    );
}

#[test]
fn request_sent_again_is_not_signed_again() {
    let mut rig = Rig::new();
    let first = joins(1, "aaaaaa", &CsrParts::client("new"));
    rig.issued.insert(approved_only(&first));
    let replayed = CsrObject {
        request: first.request.clone(),
        ..joins(2, "bbbbbb", &CsrParts::client("new"))
    };
    assert_eq!(rig.outcome(&replayed, CREATED), "wait NodeNameTaken");
    let replayed = CsrObject {
        request: first.request.clone(),
        ..joins(2, "aaaaaa", &CsrParts::client("new"))
    };
    assert_eq!(rig.outcome(&replayed, CREATED), "wait RequestRepeated");
}

/// Returns a request as it counts once it is approved.
fn approved_only(request: &CsrObject) -> ApprovedRequest {
    ApprovedRequest {
        uid: request.uid.clone(),
        progress: IssuanceProgress::Approved,
        identity: RequestedIdentity::of(request).unwrap(),
        ..issued(&request.requester.username, "new", request.created)
    }
}

#[test]
fn administrator_confirms_replacement_of_node_that_is_not_ready() {
    let mut rig = Rig::new();
    let request = request(&token(), CLIENT, &CsrParts::client("tired"));
    for (reason, expected) in [
        ("AutoApproved", "wait NodeExists"),
        ("KubectlApprove", "wait NodeExists"),
        (APPROVED_BY_RULES, "wait NodeExists"),
        (APPROVED_BY_ADMINISTRATOR, "sign"),
    ] {
        assert_eq!(
            rig.outcome(&approved(&request, reason), LATER),
            expected,
            "{reason}"
        );
    }
    // A node that is ready again is alive, whatever was confirmed before.
    rig.insert(&node_json(
        "tired",
        &[("InternalIP", "192.0.2.23")],
        is_ready(),
    ));
    let request = approved(&request, APPROVED_BY_ADMINISTRATOR);
    assert_eq!(rig.outcome(&request, LATER), "fail NodeExists");
}

#[test]
fn waits_for_node_and_judges_again() {
    let mut rig = Rig::new();
    let names = [dns("w3"), ip("192.0.2.33")];
    let request = request(&node("w3"), SERVING, &CsrParts::serving("w3", &names));
    let KubeletDecision::Wait { until, .. } = rig.judge(&request, CREATED) else {
        panic!("the Node may be created later");
    };
    assert_eq!(until, Some(CREATED + NODE_GRACE));
    assert!(rig.insert(&node_json("w3", &[("Hostname", "w3")], is_ready())));
    assert_eq!(rig.outcome(&request, CREATED), "wait-until SanNotOfNode");
    let mut complete = node_json(
        "w3",
        &[("Hostname", "w3"), ("InternalIP", "192.0.2.33")],
        is_ready(),
    );
    assert!(rig.insert(&complete));
    assert_eq!(rig.outcome(&request, CREATED), "approve");
    complete["metadata"]["resourceVersion"] = json!("2");
    complete["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-11-23T04:00:00Z");
    assert!(!rig.insert(&complete), "a heartbeat changes nothing");
    let names: BTreeSet<&str> = rig.nodes.names().collect();
    assert_eq!(
        names,
        BTreeSet::from(["cp1", "evil", "tired", "w1", "w2", "w3"])
    );
    assert!(rig.nodes.remove("w3"));
    assert!(!rig.nodes.remove("w3"));
    assert_eq!(rig.outcome(&request, LATER), "deny NodeNotFound");
    let last_wait = CREATED + NODE_GRACE - Duration::from_secs(1);
    assert_eq!(rig.outcome(&request, last_wait), "wait-until NodeNotFound");
    assert_eq!(
        rig.outcome(&request, CREATED + NODE_GRACE),
        "deny NodeNotFound"
    );
}

#[test]
fn control_plane_node_waits_for_its_label() {
    let mut rig = Rig::new();
    let addresses = [("Hostname", "cp1"), ("InternalIP", "192.0.2.11")];
    rig.insert(&node_json("cp1", &addresses, is_ready()));
    let names = [dns("cp1"), ip("192.0.2.11")];
    let request = request(&node("cp1"), SERVING, &CsrParts::serving("cp1", &names));
    assert_eq!(rig.outcome(&request, CREATED), "wait-until SanOfApiServer");
    assert_eq!(rig.outcome(&request, LATER), "deny SanOfApiServer");
}

#[test]
fn node_that_claims_foreign_address_gets_no_certificate() {
    let mut rig = Rig::new();
    let claim = |kind: &str, address: &str| {
        node_json("w1", &[("Hostname", "w1"), (kind, address)], is_ready())
    };
    for (kind, address, name, expected) in [
        (
            "InternalIP",
            "192.0.2.22",
            ip("192.0.2.22"),
            "wait SanClaimedTwice",
        ),
        ("InternalDNS", "w2", dns("w2"), "deny SanOfOtherNode"),
        (
            "InternalIP",
            "10.96.0.1",
            ip("10.96.0.1"),
            "deny SanOfService",
        ),
        (
            "InternalDNS",
            "kubernetes.default.svc",
            dns("kubernetes.default.svc"),
            "deny SanOfService",
        ),
        (
            "ExternalDNS",
            "api.example.com",
            dns("api.example.com"),
            "deny SanOfApiServer",
        ),
        (
            "InternalIP",
            "127.0.0.1",
            ip("127.0.0.1"),
            "deny SanSpecial",
        ),
        ("Hostname", "localhost", dns("localhost"), "deny SanSpecial"),
    ] {
        rig.insert(&claim(kind, address));
        let request = request(&node("w1"), SERVING, &CsrParts::serving("w1", &[name]));
        assert_eq!(rig.outcome(&request, LATER), expected, "{address}");
    }
    // The other node must not be denied its own address.
    rig.insert(&claim("InternalIP", "192.0.2.22"));
    let request = request(
        &node("w2"),
        SERVING,
        &CsrParts::serving("w2", &[ip("192.0.2.22")]),
    );
    assert_eq!(rig.outcome(&request, LATER), "wait SanClaimedTwice");
    rig.nodes.remove("w1");
    assert_eq!(rig.outcome(&request, LATER), "approve");
}

#[test]
fn configured_names_and_networks_bound_the_addresses() {
    let mut rig = Rig::new();
    rig.policy.names = vec!["{node}.nodes.example.com".parse().unwrap()];
    rig.policy.networks = vec![IpNet::parse("192.0.2.0/24").unwrap().0];
    let judge = |rig: &Rig, names: &[requests::GeneralName]| {
        let request = request(&node("w1"), SERVING, &CsrParts::serving("w1", names));
        rig.outcome(&request, LATER)
    };
    assert_eq!(
        judge(&rig, &[dns("w1.nodes.example.com"), ip("192.0.2.21")]),
        "approve"
    );
    assert_eq!(judge(&rig, &[dns("W1.nodes.example.com")]), "approve");
    assert_eq!(
        judge(&rig, &[dns("w2.nodes.example.com")]),
        "deny SanOfOtherNode"
    );
    assert_eq!(
        judge(&rig, &[ip("2001:db8::21")]),
        "deny SanOutsideNetworks"
    );
    // A pattern gives no node the name of another.
    rig.policy.names = vec!["{node}2".parse().unwrap()];
    rig.insert(&node_json("w12", &[("Hostname", "w12")], is_ready()));
    assert_eq!(judge(&rig, &[dns("w12")]), "deny SanOfOtherNode");
}

#[test]
fn limits_lifetime() {
    let mut rig = Rig::new();
    rig.policy.lifetime = Duration::from_secs(3600);
    for (seconds, expected) in [
        (json!(null), 3600),
        (json!(600), 600),
        (json!(1800), 1800),
        (json!(31_536_000), 3600),
        (json!(1), 600),
        (json!(0), 600),
    ] {
        let pem = CsrParts::client("w1").pem();
        let mut fields = object(&node("w1"), CLIENT, &usages_of(CLIENT), &pem);
        fields["spec"]["expirationSeconds"] = seconds.clone();
        fields["status"]["conditions"] = json!([{"type": "Approved", "status": "True"}]);
        let KubeletDecision::Sign(order) = rig.judge(&read(&fields), CREATED) else {
            panic!("{seconds}");
        };
        assert_eq!(order.profile.lifetime.as_secs(), expected, "{seconds}");
    }
    let pem = CsrParts::client("w1").pem();
    let mut fields = object(&node("w1"), CLIENT, &usages_of(CLIENT), &pem);
    fields["spec"]["expirationSeconds"] = json!(-1);
    assert_eq!(rig.outcome(&read(&fields), CREATED), "deny FieldOverLimit");
}

#[test]
fn reads_objects_within_limits() {
    let pem = CsrParts::client("w1").pem();
    let fields = object(&node("w1"), CLIENT, &usages_of(CLIENT), &pem);
    assert_eq!(read(&fields).request, pem);
    for (pointer, value, field) in [
        ("/spec/request", json!("!"), "spec.request"),
        ("/spec/request", json!("A".repeat(30_000)), "spec.request"),
        ("/spec/usages", json!(vec!["any"; 33]), "spec.usages"),
        ("/spec/usages", json!("any"), "spec.usages"),
        ("/spec/usages", json!([1]), "spec.usages"),
        ("/spec/groups", json!(["g".repeat(1025)]), "spec.groups"),
        ("/spec/username", json!("u".repeat(1025)), "spec.username"),
    ] {
        let mut fields = fields.clone();
        *fields.pointer_mut(pointer).unwrap() = value;
        let request = read(&fields);
        assert_eq!(request.excess, Some(field));
        assert!(request.request.len() <= 16 << 10);
        assert_eq!(Rig::new().outcome(&request, CREATED), "deny FieldOverLimit");
    }
    for key in ["name", "uid", "resourceVersion", "creationTimestamp"] {
        let mut fields = fields.clone();
        fields["metadata"].as_object_mut().unwrap().remove(key);
        let refusal = CsrObject::from_json(&fields).unwrap_err().to_string();
        assert_eq!(
            refusal,
            format!("CertificateSigningRequest: metadata.{key} is missing or not valid")
        );
    }
}

#[test]
fn reads_addresses_as_the_kubelet_does() {
    let addresses = [
        ("Hostname", "W1"),
        ("Hostname", "192.0.2.1"),
        ("InternalIP", "2001:db8::1"),
        ("ExternalIP", "not an address"),
        ("InternalDNS", "w1.example.com"),
        ("Other", "w1.example.net"),
        ("ExternalDNS", ""),
    ];
    let node = NodeObject::from_json(&node_json("w1", &addresses, is_ready())).unwrap();
    let dns = |name: &str| Host::Dns(name.to_owned());
    let ip = |text: &str| Host::Ip(text.parse::<IpAddr>().unwrap());
    assert_eq!(
        node.addresses,
        [
            dns("w1"),
            ip("192.0.2.1"),
            ip("2001:db8::1"),
            dns("w1.example.com")
        ]
    );
    assert!(!node.is_control_plane && !node.is_deleting);
}

#[test]
fn compares_every_address_of_a_node_or_signs_none() {
    let ip_of = |number: usize| format!("10.0.{}.{}", number / 256, number % 256);
    let all: Vec<String> = (0..1025).map(ip_of).collect();
    let typed: Vec<(&str, &str)> = all.iter().map(|ip| ("InternalIP", ip.as_str())).collect();
    let mut rig = Rig::new();
    let outcome = |rig: &Rig, name: &str, number: usize| {
        let names = [ip(&all[number])];
        let request = request(&node(name), SERVING, &CsrParts::serving(name, &names));
        rig.outcome(&request, LATER)
    };
    rig.insert(&node_json("w1", &typed[..1024], is_ready()));
    for number in [0, 64, 1023] {
        assert_eq!(outcome(&rig, "w1", number), "approve", "{number}");
    }
    rig.insert(&node_json("evil", &typed[1023..1024], is_ready()));
    assert_eq!(outcome(&rig, "evil", 1023), "wait SanClaimedTwice");
    rig.insert(&node_json("w1", &typed, is_ready()));
    for number in [0, 1024] {
        let found = outcome(&rig, "w1", number);
        assert_eq!(found, "wait FieldOverLimit", "{number}");
    }
}

#[test]
fn parses_only_patterns_with_the_node() {
    for (text, expected) in [
        ("{node}.nodes.example.com", Some("w1.nodes.example.com")),
        ("storage-{node}", Some("storage-w1")),
        ("node.example.com", None),
        ("*.example.com", None),
        ("{node}.{node}", None),
        ("{Node}.example.com", None),
        ("{node}_x", None),
        ("{node}.Example.com", None),
        ("", None),
    ] {
        let pattern = text.parse::<NodeNamePattern>().ok();
        let shown = pattern.as_ref().map(ToString::to_string);
        assert_eq!(shown.as_deref(), expected.map(|_| text));
        let name = pattern.map(|pattern| pattern.of("w1"));
        assert_eq!(name.as_deref(), expected, "{text}");
    }
}

#[test]
fn codes_are_camel_case_and_have_a_sentence() {
    for reason in RequestReason::ALL {
        let code = reason.as_str();
        assert!(code.starts_with(|c: char| c.is_ascii_uppercase()), "{code}");
        assert!(code.chars().all(|c| c.is_ascii_alphanumeric()), "{code}");
        assert!(reason.meaning().ends_with('.'), "{code}");
    }
}

#[test]
fn reports_every_difference_of_the_signers_answer() {
    let rig = Rig::new();
    let request = request(
        &node("w1"),
        SERVING,
        &CsrParts::serving("w1", &names_of_w1()),
    );
    let KubeletDecision::Sign(order) = rig.judge(&approved(&request, "x"), CREATED) else {
        panic!("the request is valid");
    };
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let ten_years = Duration::from_secs(10 * 365 * 24 * 3600);
    let authority = |name: &str| {
        CertificateAuthority::self_signed(name, key(), CREATED, 2 * ten_years).unwrap()
    };
    let (own, other) = (authority("kubernetes"), authority("other"));
    let trust = own.bundle().clone();
    let stranger = key();
    let differences = |signer: &CertificateAuthority,
                       own_key: bool,
                       change: &dyn Fn(&mut Profile)| {
        let mut profile = order.profile.clone();
        change(&mut profile);
        let public = if own_key {
            order.csr.public_key()
        } else {
            stranger.public_key()
        };
        let leaf = signer.issue(public, &profile, CREATED).unwrap();
        let chain = Chain::from_pem(leaf.to_pem().as_bytes()).unwrap();
        let found = certificate_differences(&order, &chain, Tolerance::default(), &trust, CREATED);
        found
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert_eq!(differences(&own, true, &|_| {}), "");
    type Change<'a> = &'a dyn Fn(&mut Profile);
    let cases: [(Change<'_>, &str); 8] = [
        (
            &|p| p.subject.common_name = "system:node:w2".to_owned(),
            "found \"system:node:w2\"",
        ),
        (
            &|p| p.subject.organizations = vec!["system:masters".to_owned()],
            "unexpected O \"system:masters\"",
        ),
        (
            &|p| p.subject.organizations.clear(),
            "O \"system:nodes\" is missing",
        ),
        (
            &|p| p.sans.dns.push("w2".to_owned()),
            "unexpected SAN DNS:w2",
        ),
        (
            &|p| p.sans.ips.truncate(1),
            "SAN IP:2001:db8::21 is missing",
        ),
        (
            &|p| p.usages = vec![ExtendedUsage::ClientAuth],
            "server auth is missing",
        ),
        (
            &|p| p.usages.push(ExtendedUsage::ClientAuth),
            "unexpected extended key usage client auth",
        ),
        (&|p| p.lifetime = ten_years, "its lifetime is 3650d"),
    ];
    for (change, expected) in cases {
        let found = differences(&own, true, change);
        assert!(found.contains(expected), "{found:?}, expected {expected}");
    }
    assert!(differences(&own, false, &|_| {}).contains("another key"));
    assert!(differences(&other, true, &|_| {}).contains("no path from it"));
    let ca = Chain::from_pem(trust.first().to_pem().as_bytes()).unwrap();
    let found = certificate_differences(&order, &ca, Tolerance::default(), &trust, CREATED);
    assert!(
        found
            .iter()
            .any(|one| one.to_string().contains("CA certificate")),
        "{found:?}"
    );
}
