//! The requests that must not be signed (`tests/fixtures/kubelet_requests.rs`), sent to the real kube-apiserver by the users
//! that they claim, as new requests and as requests that a person has approved; and the same one thousands of times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::{
    CSRS, Wanted, all_requests, approve, certificate, decided, events_about, kubelet_of, memory,
    prepared, put_node, reason_of, serving, token,
};
use crate::kubelet_rules::requests::{self, HostileRequest, Outcome, Sender};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Caller, Cluster, INIT};
use crate::time::{eventually, wait_until};

/// Number of equal requests that one node sends at once. The benchmark sends 10,000.
const FLOOD: usize = 500;
/// Upper bound for the daemon's memory in KiB. It has about 20 MiB without requests.
const MAX_MEMORY: u64 = 64 << 10;

/// kubeadm's configuration with the names of the cluster in the fixture.
fn init() -> String {
    let ours = "[192.0.2.100, '2001:db8::100']";
    assert!(INIT.contains(ours));
    INIT.replace(
        ours,
        "[192.0.2.100, '2001:db8::100', api.example.com, 192.0.2.10, '*.apps.example.com']",
    )
}

/// The users of the cluster in the fixture.
struct Users<'a> {
    cluster: &'a Cluster,
    kubelets: BTreeMap<&'static str, Caller<'a>>,
    token: Caller<'a>,
}

impl<'a> Users<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let names = ["w1", "w2", "tired", "gone", "evil"];
        Users {
            cluster,
            kubelets: names
                .map(|name| (name, kubelet_of(cluster, name)))
                .into_iter()
                .collect(),
            token: token(cluster),
        }
    }

    /// Sends an object with the credential of this sender: a node's certificate, the bootstrap token, or for a combination
    /// of name and groups for which the API server issues no credential, impersonation.
    fn create(&self, sender: &Sender, object: &Value) -> (u16, Value) {
        let is = |other: &Sender| other.user == sender.user && other.groups == sender.groups;
        let kubelet = self
            .kubelets
            .iter()
            .find(|(name, _)| is(&requests::node(name)));
        if let Some((_, kubelet)) = kubelet {
            return kubelet.post(CSRS, object);
        }
        if is(&requests::token()) {
            return self.token.post(CSRS, object);
        }
        let user = format!("Impersonate-User: {}", sender.user);
        let mut headers = vec!["--header".to_owned(), user];
        for group in &sender.groups {
            headers.extend(["--header".to_owned(), format!("Impersonate-Group: {group}")]);
        }
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.cluster.admin().with(&headers).post(CSRS, object)
    }
}

pub(super) fn object_of(case: &HostileRequest, prefix: &str) -> Value {
    json!({"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"generateName": prefix},
        "spec": {"signerName": case.signer_name, "request": BASE64.encode(&case.pem),
                 "usages": case.usages}})
}

/// Sends every case with this prefix of the object's name; returns the objects that the API server has created.
fn create_all(users: &Users<'_>, prefix: &str) -> Vec<(HostileRequest, Value)> {
    let (mut created, mut wrong) = (Vec::new(), Vec::new());
    for case in requests::all() {
        let (status, body) = users.create(&case.sender, &object_of(&case, prefix));
        let name = case.name;
        let expected: &[u16] = if case.refused_by_node_restriction {
            &[403]
        } else if case.pem.len() > 1 << 20 {
            // The API server closes the connection before it has read all, perhaps before the response is complete.
            &[413, 0]
        } else if case.refused_by_api_server {
            // NodeRestriction parses the request of a node before the API server validates the object.
            &[400, 403, 413, 422]
        } else {
            &[201]
        };
        if !expected.contains(&status) {
            wrong.push(format!("{name}: {status} {body}"));
        } else if status == 201 {
            created.push((case, body));
        } else {
            println!("{name}: refused by the API server with {status}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let names = created
        .iter()
        .map(|(_, object)| &object["metadata"]["name"]);
    let names: BTreeSet<&str> = names.map(|name| name.as_str().unwrap()).collect();
    assert!(names.iter().all(|name| name.starts_with(prefix)));
    let exist = by_name(users.cluster);
    let exist = exist.keys().filter(|name| name.starts_with(prefix));
    assert_eq!(exist.count(), created.len(), "nothing else was created");
    created
}

/// Lets every user create requests: the rules must not depend on the cluster's roles.
fn let_everyone_request(cluster: &Cluster) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": "everyone-requests"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
                   "verbs": ["create"]}]});
    let binding = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": "everyone-requests"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "everyone-requests"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]});
    for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let (status, body) = cluster.admin().post(&format!("{rbac}/{kind}"), &object);
        assert_eq!(status, 201, "{body}");
    }
}

/// Creates the Nodes of the fixture.
fn put_nodes(cluster: &Cluster) {
    let w1 = [
        ("InternalIP", "192.0.2.21"),
        ("InternalIP", "2001:db8::21"),
        ("Hostname", "w1"),
        ("InternalDNS", "w1.example.com"),
    ];
    put_node(cluster, "w1", &w1, true);
    let own = |ip: &'static str, name: &'static str| [("InternalIP", ip), ("Hostname", name)];
    put_node(cluster, "w2", &own("192.0.2.22", "w2"), true);
    put_node(cluster, "tired", &own("192.0.2.23", "tired"), false);
    let evil = [&own("192.0.2.24", "evil")[..], &requests::CLAIMS_OF_EVIL].concat();
    put_node(cluster, "evil", &evil, true);
    put_node(cluster, "cp1", &own("192.0.2.11", "cp1"), true);
    let label = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    let (status, body) = cluster.admin().patch("/api/v1/nodes/cp1", &label);
    assert_eq!(status, 200, "{body}");
}

/// Requests that were valid when a person approved them; each with what has changed since.
fn approved_before_change(cluster: &Cluster) -> Vec<(&'static str, Value)> {
    let create = |name: &'static str, address: &str| {
        put_node(cluster, name, &[("InternalIP", address)], true);
        let wanted =
            serving(name, &[], std::slice::from_ref(&address)).create(&kubelet_of(cluster, name));
        let (_, object) = cluster.admin().get(&format!("{CSRS}/{}", wanted.0));
        approve(cluster, &object);
        object
    };
    let moved = create("moved", "192.0.2.31");
    put_node(cluster, "moved", &[("InternalIP", "192.0.2.32")], true);
    let deleted = create("deleted", "192.0.2.33");
    let (status, body) = cluster.admin().delete("/api/v1/nodes/deleted");
    assert_eq!(status, 200, "{body}");
    let taken = create("taken", "192.0.2.34");
    put_node(cluster, "taken", &[("InternalIP", "192.0.2.35")], true);
    put_node(cluster, "other", &[("InternalIP", "192.0.2.34")], true);
    vec![
        ("SanNotOfNode", moved),
        ("NodeNotFound", deleted),
        ("SanOfOtherNode", taken),
    ]
}

/// Returns the present state of every request by name.
fn by_name(cluster: &Cluster) -> BTreeMap<String, Value> {
    let all = all_requests(cluster).into_iter();
    all.map(|object| {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        (name, object)
    })
    .collect()
}

/// Waits until each of these requests has its reason in a condition of this type, or stays pending with an Event.
fn assert_refused(cluster: &Cluster, kind: &str, cases: &[(HostileRequest, Value)]) {
    eventually(|| {
        let now = by_name(cluster);
        let state = |created: &Value| &now[created["metadata"]["name"].as_str().unwrap()];
        let is_open = |(case, created): &&(HostileRequest, Value)| {
            case.outcome != Outcome::Waits && reason_of(state(created), kind).is_none()
        };
        let open: Vec<_> = cases.iter().filter(is_open).collect();
        match open.first() {
            None => Ok(()),
            Some((case, created)) => Err(format!("{}: {}", case.name, state(created))),
        }
    });
    let now = by_name(cluster);
    for (case, created) in cases {
        let name = created["metadata"]["name"].as_str().unwrap();
        let object = &now[name];
        assert!(
            object["status"]["certificate"].is_null(),
            "{}: {object}",
            case.name
        );
        if kind == "Denied" {
            assert_eq!(
                reason_of(object, "Approved"),
                None,
                "{}: {object}",
                case.name
            );
        }
        let reason = match case.outcome {
            Outcome::Waits => {
                assert_eq!(reason_of(object, kind), None, "{}: {object}", case.name);
                "an Event"
            }
            _ => reason_of(object, kind).unwrap(),
        };
        if case.outcome != Outcome::Waits {
            assert_eq!(reason, case.reason, "{}: {object}", case.name);
        }
        println!("{}: {kind} with {reason}", case.name);
    }
    assert_waiting_said_once(cluster, cases);
}

/// Waits until each request that stays pending has its only Event.
fn assert_waiting_said_once(cluster: &Cluster, cases: &[(HostileRequest, Value)]) {
    let waiting = cases
        .iter()
        .filter(|(case, _)| case.outcome == Outcome::Waits);
    for (case, created) in waiting {
        let name = created["metadata"]["name"].as_str().unwrap();
        let about = || events_about(cluster, name);
        wait_until(case.name, || !about().is_empty());
        assert_eq!(about(), [case.reason], "{}", case.name);
    }
}

#[test]
fn signs_no_hostile_request_of_any_user() {
    let cluster = &prepared(&init(), "corp", "");
    let node = cluster.first();
    // Its approver would approve some of them, and its cleaner and node controller change objects of this test.
    node.stop("kube-controller-manager");
    let_everyone_request(cluster);
    put_nodes(cluster);
    let users = &Users::of(cluster);

    // A person approves every request while no daemon runs.
    let approved = create_all(users, "hostile-approved-");
    for (_, object) in &approved {
        approve(cluster, object);
    }
    let changed = approved_before_change(cluster);
    let mut daemon = Daemon::start(node);
    let requested = create_all(users, "hostile-new-");
    assert!(requested.len() >= 75, "{}", requested.len());
    flood(cluster, users, &daemon);

    assert_refused(cluster, "Denied", &requested);
    assert_refused(cluster, "Failed", &approved);
    // The next leader does not repeat the Events.
    daemon.stop();
    let daemon = &Daemon::start(node);
    let (name, _, _) = Wanted::client("another").create(&users.token);
    certificate(&decided(cluster, &name, daemon));
    assert_waiting_said_once(cluster, &requested);
    assert_waiting_said_once(cluster, &approved);
    for (reason, object) in changed {
        let name = object["metadata"]["name"].as_str().unwrap();
        let failed = decided(cluster, name, daemon);
        assert_eq!(reason_of(&failed, "Failed"), Some(reason), "{failed}");
    }
    let signed = all_requests(cluster).into_iter().filter(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        name.starts_with("hostile-") && !object["status"]["certificate"].is_null()
    });
    assert_eq!(signed.count(), 0);
}

/// A client may nest `managedFields` deeper than serde_json reads.
#[test]
fn signs_beside_object_that_its_author_nested() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.stop("kube-controller-manager");
    node.nodepki(&["renew"]).done();
    put_node(cluster, "w1", &[("InternalIP", "192.0.2.21")], true);
    let w1 = &kubelet_of(cluster, "w1");
    let (mut nested, _) = serving("w1", &[], &["192.0.2.21"]).object();
    let fields = (0..200).fold(json!({}), |inner, _| json!({"f:a": inner}));
    nested["metadata"]["managedFields"] = json!([{"manager": "evil", "operation": "Update",
        "apiVersion": "certificates.k8s.io/v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": fields}]);
    let (status, stored) = w1.post(CSRS, &nested);
    assert_eq!(status, 201, "{stored}");
    assert!(stored.is_string(), "this test reads it: {stored}");
    // The first list contains it.
    let daemon = &Daemon::start(node);
    let (name, _, _) = Wanted::client("new").create(&token(cluster));
    certificate(&decided(cluster, &name, daemon));
    node.nodepki(&["kubelets", "list"]).done().says(&name);
}

/// Has one node send the same request thousands of times. Another node gets its certificate, and memory stays bounded.
fn flood(cluster: &Cluster, users: &Users<'_>, daemon: &Daemon<'_>) {
    let stolen = requests::all()
        .into_iter()
        .find(|case| case.name == "another node's name")
        .unwrap();
    let before = memory(daemon);
    let began = Instant::now();
    users.kubelets["w1"].flood(CSRS, &object_of(&stolen, "hostile-flood-"), FLOOD);
    let created = began.elapsed();
    let (name, _, _) = serving("w2", &["w2"], &["192.0.2.22"]).create(&users.kubelets["w2"]);
    certificate(&decided(cluster, &name, daemon));
    let served = began.elapsed();
    let after = memory(daemon);
    println!(
        "{FLOOD} requests created in {created:.1?}, those of another node served after {served:.1?}; peak memory {before} KiB before, {after} KiB after"
    );
    assert!(after < MAX_MEMORY, "{after} KiB");
    let is_open = |object: &Value| {
        object["metadata"]["generateName"] == "hostile-flood-"
            && reason_of(object, "Denied").is_none()
    };
    wait_until("the last ones are refused", || {
        !all_requests(cluster).iter().any(is_open)
    });
    let (name, _, _) = Wanted::client("new").create(&users.token);
    certificate(&decided(cluster, &name, daemon));
}
