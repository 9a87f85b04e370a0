//! The key policy of the cluster, `pkis.config.openshift.io/cluster`, read by the daemon from the real kube-apiserver.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};

use crate::join_control_plane::{by_token, worker_configuration};
use crate::node::Ran;
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{
    Authorities, Caller, Cluster, ClusterNode, INIT, settings_with_idle_signer,
};
use crate::time::wait_until;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The settings for a command that uses the kept policy, since it cannot read the cluster's.
const OFFLINE: &str = "/etc/nodepki/offline.yaml";
const READER: &str = "/etc/nodepki/policy-reader.conf";

/// Writes settings that follow the cluster's policy. The certificates of the node stay as they are.
fn configure(node: &ClusterNode, more: &str) {
    let following = |more: &str| {
        let hook = "reload: {hooks: [{on: [kubelet], command: [/bin/true]}]}";
        settings_with_idle_signer(&format!("{hook}\nclusterPolicy: {{enabled: true{more}}}"))
    };
    node.write("/etc/nodepki/config.yaml", &following(more));
    node.write(OFFLINE, &following(", kubeconfig: /etc/nodepki/none.conf"));
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
}

/// Creates the definition of the resource, as OpenShift's for what nodepki reads, with this version.
fn define(admin: &Caller<'_>, version: &str) {
    let schema = json!({"openAPIV3Schema": {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
    }});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pkis.config.openshift.io"},
        "spec": {
            "group": "config.openshift.io",
            "names": {"plural": "pkis", "singular": "pki", "kind": "PKI", "listKind": "PKIList"},
            "scope": "Cluster",
            "versions": [{"name": version, "served": true, "storage": true, "schema": schema}],
        },
    });
    let (status, answer) = admin.post(CRDS, &definition);
    assert_eq!(status, 201, "{answer}");
}

fn policy(version: &str, curve: &str) -> Value {
    json!({
        "apiVersion": format!("config.openshift.io/{version}"),
        "kind": "PKI",
        "metadata": {"name": "cluster"},
        "spec": {"categories": [
            {"category": "ServingCertificate", "certificate": {"key": {"algorithm": "ECDSA", "ecdsa": {"curve": curve}}}},
        ]},
    })
}

/// Returns the key algorithm that the plan has for a certificate by the kept policy.
fn planned_key(node: &ClusterNode, name: &str) -> String {
    key_of(
        &node.nodepki(&["plan", "-o", "json", "--config", OFFLINE]),
        name,
    )
}

fn key_of(plan: &Ran, name: &str) -> String {
    let plan: Value = serde_json::from_str(&plan.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", plan.said()));
    let rows = plan["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name).unwrap();
    row["key"].as_str().unwrap().to_owned()
}

/// Applies a file of the node as its administrator.
fn apply(node: &ClusterNode, file: &str) {
    let kubectl = crate::servers::bin("kubectl");
    let arguments = [
        "--kubeconfig=/etc/kubernetes/super-admin.conf",
        "--cache-dir=/var/tmp/kubectl",
        "apply",
        "-f",
        file,
    ];
    node.run(kubectl.to_str().unwrap(), &arguments).done();
}

/// Creates the role of `docs/configuration.md`.
fn permit_reading(node: &ClusterNode) {
    let document = include_str!("../../docs/configuration.md");
    let (_, role) = document
        .split_once("# The right to read the key policy")
        .unwrap();
    let (role, _) = role.split_once("```").unwrap();
    node.write("/var/tmp/role.yaml", &format!("#{role}"));
    apply(node, "/var/tmp/role.yaml");
}

fn wait_for_key(node: &ClusterNode, algorithm: &str) {
    wait_for_key_of(node, "apiserver", algorithm);
}

fn wait_for_key_of(node: &ClusterNode, name: &str, algorithm: &str) {
    wait_until(&format!("{name} is planned with {algorithm}"), || {
        planned_key(node, name) == algorithm
    });
}

#[test]
fn daemon_follows_policy_of_the_cluster_and_keeps_last_valid_one() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    configure(node, "");
    assert_eq!(planned_key(node, "apiserver"), "ECDSA-P256");
    node.nodepki(&["doctor"])
        .says("pkis.config.openshift.io/cluster was not read yet");
    let admin = cluster.admin();
    define(&admin, "v1alpha1");
    let objects = "/apis/config.openshift.io/v1alpha1/pkis";
    wait_until("the resource is served", || admin.get(objects).0 == 200);
    let mut daemon = Daemon::start(node);

    // A created, a changed and a faulty policy.
    assert_eq!(admin.post(objects, &policy("v1alpha1", "P384")).0, 201);
    wait_for_key(node, "ECDSA-P384");
    assert_eq!(planned_key(node, "scheduler.conf"), "ECDSA-P256");
    let object = format!("{objects}/cluster");
    let checked = node.nodepki(&["policy", "check", "--config", OFFLINE, "-o", "json"]);
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    let fields = admin.get(&object).1["metadata"]["managedFields"].clone();
    assert_eq!(checked["policySince"], fields[0]["time"]);
    let change = |curve: &str| json!({"spec": policy("v1alpha1", curve)["spec"]});
    assert_eq!(admin.patch(&object, &change("P521")).0, 200);
    wait_for_key(node, "ECDSA-P521");
    assert_eq!(admin.patch(&object, &change("P-521")).0, 200);
    wait_until("the fault is reported", || {
        let ran = node.nodepki(&["plan", "--config", OFFLINE]);
        ran.said().contains(
            "\"P-521\" is not a curve (use P256, P384 or P521); the last valid one is used",
        )
    });
    assert_eq!(planned_key(node, "apiserver"), "ECDSA-P521");
    assert!(
        daemon
            .said()
            .contains("pkis.config.openshift.io/cluster is not valid and is not used")
    );
    // Events of a type that `kubectl describe pki cluster` prints.
    let events = "/api/v1/namespaces/default/events?fieldSelector=reason%3DKeyPolicyInvalid";
    wait_until("an Event is written", || {
        let (_, list) = admin.get(events);
        list["items"]
            .as_array()
            .is_some_and(|items| items.len() == 1)
    });
    let event = admin.get(events).1["items"][0].clone();
    assert_eq!(event["involvedObject"]["kind"], "PKI");
    assert_eq!(event["type"], "Warning");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("\"P-521\" is not a curve"), "{message}");

    // The last valid policy survives the daemon, and a restarted daemon learns what has changed.
    daemon.stop();
    assert_eq!(admin.delete(&object).0, 200);
    assert_eq!(planned_key(node, "apiserver"), "ECDSA-P521");
    let mut daemon = Daemon::start(node);
    wait_for_key(node, "ECDSA-P256");
    daemon.is_running();
    daemon.stop();
}

#[test]
fn documented_role_is_sufficient_to_read_the_policy() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let admin = cluster.admin();
    define(&admin, "v1");
    let objects = "/apis/config.openshift.io/v1/pkis";
    wait_until("the resource is served", || admin.get(objects).0 == 200);
    assert_eq!(admin.post(objects, &policy("v1", "P384")).0, 201);

    // kubelet.conf may read nothing of the group without the role.
    node.write(
        READER,
        &std::fs::read_to_string(node.path("/etc/kubernetes/kubelet.conf")).unwrap(),
    );
    let object = format!("{objects}/cluster");
    assert_eq!(node.caller(READER).get(&object).0, 403);
    permit_reading(node);
    configure(node, ", kubeconfig: /etc/kubernetes/kubelet.conf");
    let mut daemon = Daemon::start(node);
    wait_for_key(node, "ECDSA-P384");
    assert_eq!(node.caller(READER).delete(&object).0, 403);
    daemon.stop();
}

/// One key in the form of a policy.
fn key(algorithm: &str, block: &str, field: &str, value: impl Into<Value>) -> Value {
    let value: Value = value.into();
    json!({"key": {"algorithm": algorithm, block: {field: value}}})
}

/// The definition of `policy crd`, at the real API server: the example of OpenShift's enhancement, what nodepki adds, and each
/// fault that the enhancement's markers and rules find.
#[test]
fn definition_permits_valid_policies_only() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let admin = cluster.admin();
    let ran = node.nodepki(&["policy", "crd", "--registered", "webhook", "-o", "json"]);
    let definition: Value = serde_json::from_str(&ran.stdout).unwrap();
    let (status, answer) = admin.post(CRDS, &definition);
    assert_eq!(status, 201, "{answer}");
    let objects = "/apis/config.openshift.io/v1/pkis";
    wait_until("the resource is served", || admin.get(objects).0 == 200);

    let rsa = |size: i64| key("RSA", "rsa", "keySize", size);
    let ecdsa = |curve: &str| key("ECDSA", "ecdsa", "curve", curve);
    let category =
        |name: &str, certificate: Value| json!({"category": name, "certificate": certificate});
    let named = |name: &str, certificate: Value| json!({"certificateName": name, "certificate": certificate});
    let categories = |items: &[Value]| json!({"categories": items});
    let overrides = |items: &[Value]| json!({"overrides": items});
    let object = |name: &str, spec: &Value| {
        json!({
            "apiVersion": "config.openshift.io/v1",
            "kind": "PKI",
            "metadata": {"name": name},
            "spec": spec,
        })
    };
    let enhancement = json!({
        "defaults": rsa(2048),
        "categories": [
            category("SignerCertificate", rsa(4096)),
            category("ServingCertificate", ecdsa("P384")),
            category("ClientCertificate", ecdsa("P256")),
        ],
        "overrides": [named("etcd-signer", rsa(4096))],
    });
    for spec in [
        json!({}),
        enhancement,
        json!({"defaults": {"lifetime": "720h30m"}}),
        json!({"defaults": key("MLDSA", "mldsa", "parameterSet", "ML-DSA-65")}),
        overrides(&[
            named("etcd-server", ecdsa("P521")),
            named("super-admin.conf", json!({"lifetime": "24h"})),
            named("webhook", rsa(3072)),
            named("sa", rsa(4096)),
        ]),
    ] {
        let (status, answer) =
            admin.post(&format!("{objects}?dryRun=All"), &object("cluster", &spec));
        assert_eq!(status, 201, "{spec}: {answer}");
    }
    let union = "algorithm must match the configuration";
    for (spec, why) in [
        (json!({"defaults": rsa(1024)}), "Unsupported value: 1024"),
        (
            json!({"defaults": ecdsa("P-256")}),
            "Unsupported value: \"P-256\"",
        ),
        (
            json!({"defaults": key("DSA", "rsa", "keySize", 2048)}),
            "Unsupported value: \"DSA\"",
        ),
        (
            json!({"defaults": key("RSA", "ecdsa", "curve", "P256")}),
            union,
        ),
        (
            json!({"defaults": {"key": {"algorithm": "ECDSA", "ecdsa": {"curve": "P256"}, "rsa": {"keySize": 2048}}}}),
            union,
        ),
        (json!({"defaults": {"key": {"algorithm": "RSA"}}}), union),
        (
            json!({"defaults": {"key": {"rsa": {"keySize": 2048}}}}),
            "algorithm: Required value",
        ),
        (
            json!({"defaults": {"key": {"algorithm": "RSA", "rsa": {}}}}),
            "keySize: Required value",
        ),
        (json!({"defaults": {}}), "key is required"),
        (
            json!({"defaults": {"lifetime": "0s"}}),
            "must be longer than zero",
        ),
        (json!({"defaults": {"lifetime": "a year"}}), "lifetime"),
        (
            categories(&[category("Serving", rsa(2048))]),
            "Unsupported value: \"Serving\"",
        ),
        (
            categories(&[
                category("ClientCertificate", rsa(2048)),
                category("ClientCertificate", rsa(4096)),
            ]),
            "Duplicate value",
        ),
        (
            categories(&[category("SignerCertificate", json!({"lifetime": "24h"}))]),
            "lifetime is for leaf certificates only",
        ),
        (
            categories(&[json!({"category": "ClientCertificate"})]),
            "certificate: Required value",
        ),
        (
            overrides(&[named("etcd-sever", rsa(2048))]),
            "certificateName must be a well-known certificate name",
        ),
        (
            overrides(&[
                named("etcd-server", rsa(2048)),
                named("etcd-server", rsa(4096)),
            ]),
            "Duplicate value",
        ),
        (
            overrides(&[named("etcd-signer", json!({"lifetime": "24h"}))]),
            "lifetime is for leaf certificates only",
        ),
        (
            overrides(&[json!({"certificate": rsa(2048)})]),
            "certificateName: Required value",
        ),
    ] {
        let (status, answer) = admin.post(objects, &object("cluster", &spec));
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(status, 422, "{spec}: {answer}");
        assert!(message.contains(why), "{spec}: {message}");
    }
    let (status, answer) = admin.post(objects, &object("other", &json!({})));
    assert_eq!(status, 422, "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains("singleton"),
        "{answer}"
    );
}

/// The policy in the settings of a node becomes that of the cluster, and the plan of the node stays the same.
#[test]
fn exported_policy_moves_to_the_cluster() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let admin = cluster.admin();
    configure(node, "");
    let settings = std::fs::read_to_string(node.path("/etc/nodepki/config.yaml")).unwrap();
    let rules = "\
pki:
  defaults: {lifetime: 4320h}
  categories: [{category: ClientCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 3072}}}}]
  overrides: [{certificateName: etcd-server, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}]
";
    node.write(
        "/etc/nodepki/config.yaml",
        &format!(
            "{}{rules}",
            settings.replace("enabled: true", "enabled: false")
        ),
    );
    let names = ["etcd-server", "scheduler.conf", "apiserver"];
    let planned = || {
        let plan = node.nodepki(&["plan", "-o", "json"]);
        names.map(|name| key_of(&plan, name))
    };
    let before = planned();
    assert_eq!(before, ["ECDSA-P384", "RSA-3072", "ECDSA-P256"]);
    let ran = node.nodepki(&["policy", "export"]);
    ran.says("note: keys that no rule names follow kubeadm's encryptionAlgorithm, here ECDSA-P256");
    node.write("/var/tmp/pki.yaml", &ran.stdout);
    let ran = node.nodepki(&["policy", "crd"]);
    node.write("/var/tmp/crd.yaml", &ran.stdout);
    apply(node, "/var/tmp/crd.yaml");
    let objects = "/apis/config.openshift.io/v1/pkis";
    wait_until("the resource is served", || admin.get(objects).0 == 200);
    apply(node, "/var/tmp/pki.yaml");

    node.write("/etc/nodepki/config.yaml", &settings);
    assert_eq!(planned_key(node, "scheduler.conf"), "ECDSA-P256");
    let mut daemon = Daemon::start(node);
    wait_for_key_of(node, "scheduler.conf", "RSA-3072");
    assert_eq!(planned(), before);
    // The policy of the cluster is exported as it is.
    let ran = node.nodepki(&["policy", "export"]);
    node.write("/var/tmp/again.yaml", &ran.stdout);
    let [first, again] = ["/var/tmp/pki.yaml", "/var/tmp/again.yaml"]
        .map(|path| std::fs::read_to_string(node.path(path)).unwrap());
    assert_eq!(first, again);
    daemon.stop();
}

/// Runs without a daemon: `plan` only reads, `renew` keeps what it has read, and both use it while the cluster is away.
#[test]
fn each_run_reads_the_policy_and_renew_keeps_it() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let admin = cluster.admin();
    define(&admin, "v1");
    let objects = "/apis/config.openshift.io/v1/pkis";
    wait_until("the resource is served", || admin.get(objects).0 == 200);
    assert_eq!(admin.post(objects, &policy("v1", "P384")).0, 201);
    configure(node, "");
    let kept = node.path("/var/lib/nodepki/cluster-policy.json");
    let plan = || node.nodepki(&["plan", "-o", "json"]);
    wait_until("plan has read the policy", || {
        key_of(&plan(), "apiserver") == "ECDSA-P384"
    });
    assert!(!kept.exists());
    node.nodepki(&["renew", "--wait", "0s"]).done();
    assert!(kept.exists());

    let admin_conf = std::fs::read_to_string(node.path("/etc/kubernetes/admin.conf")).unwrap();
    let server = admin_conf.lines().find(|line| line.contains("server:"));
    let away = admin_conf.replace(server.unwrap(), "    server: https://127.0.0.1:1");
    node.write("/etc/nodepki/away.conf", &away);
    configure(node, ", required: true, kubeconfig: /etc/nodepki/away.conf");
    let ran = plan();
    ran.says("pkis.config.openshift.io/cluster cannot be read")
        .says("the policy that was read last is used");
    assert_eq!(key_of(&ran, "apiserver"), "ECDSA-P384");

    // An invalid policy stops no node that knows an earlier one, and every node that does not.
    let renew = ["renew", "--force", "apiserver", "--wait", "0s"];
    let object = format!("{objects}/cluster");
    let invalid = json!({"spec": policy("v1", "P-521")["spec"]});
    assert_eq!(admin.patch(&object, &invalid).0, 200);
    configure(node, ", required: true");
    node.nodepki(&renew)
        .says("the last valid one is used")
        .says_not("nothing is issued");
    std::fs::remove_file(&kept).unwrap();
    node.nodepki(&renew)
        .ended(75)
        .says("nothing is issued, since clusterPolicy.required is true")
        .says("is not a curve");

    // Neither does a node that has never read the policy issue anything.
    std::fs::remove_file(&kept).unwrap();
    configure(node, ", required: true, kubeconfig: /etc/nodepki/away.conf");
    node.nodepki(&renew)
        .ended(75)
        .says("nothing is issued, since clusterPolicy.required is true")
        .says("pkis.config.openshift.io/cluster cannot be read");
    configure(node, ", kubeconfig: /etc/nodepki/away.conf");
    node.nodepki(&renew).says_not("nothing is issued");
}

/// A worker follows the policy of its cluster from its first key, with the rights of the documented role only.
#[test]
fn joining_node_follows_the_policy_from_its_first_key() {
    let cluster = Cluster::start(Authorities::External);
    let first = cluster.first();
    let admin = cluster.admin();
    define(&admin, "v1");
    let objects = "/apis/config.openshift.io/v1/pkis";
    wait_until("the resource is served", || admin.get(objects).0 == 200);
    let mut policy = policy("v1", "P384");
    policy["spec"] = json!({"defaults": key("ECDSA", "ecdsa", "curve", "P384")});
    assert_eq!(admin.post(objects, &policy).0, 201);

    let node = cluster.add_node("w1", "192.0.2.41");
    let config = worker_configuration(&node, &by_token(&cluster));
    node.write("/run/kubeadm/kubeadm-join-config.yaml", &config);
    let settings = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {ca: {signer: offline}}
signers: {offline: {directory: {path: /var/lib/offline}}}
clusterPolicy: {enabled: true, required: true, kubeconfig: /etc/kubernetes/kubelet.conf}
";
    node.write("/etc/nodepki/config.yaml", settings);
    let request = node.path("/var/lib/offline/outbox/kubelet.conf.csr");
    let bootstrap = || node.nodepki(&["bootstrap", "--wait", "0s"]);
    wait_until("the API server forbids to read the policy", || {
        let ran = bootstrap();
        ran.ended(75)
            .says("nothing is issued, since clusterPolicy.required is true");
        assert!(!request.exists());
        ran.said().contains("is forbidden")
    });
    let private = std::fs::Permissions::from_mode(0o600);
    let file = node.path("/run/kubeadm/kubeadm-join-config.yaml");
    std::fs::set_permissions(file, private).unwrap();
    node.nodepki(&["preflight", "--wait", "0s"])
        .ended(75)
        .says("nothing is issued, since clusterPolicy.required is true");
    permit_reading(first);
    wait_until("the request is sent", || {
        bootstrap().ended(75);
        request.exists()
    });
    let text = ["req", "-in", request.to_str().unwrap(), "-noout", "-text"];
    Ran::of(Command::new("openssl").args(text)).says("NIST CURVE: P-384");
}
