//! The rights of the daemon's identity on the real kube-apiserver: those that `config signer-setup kubelets` grants, and
//! nothing else.

use std::collections::BTreeSet;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::{CSRS, Wanted, prepared, token};
use crate::servers::cluster::{Caller, Cluster, INIT};
use crate::time::wait_until;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Name of the roles that are granted.
const ROLE: &str = "nodepki:kubelet-signer";
const CONF: &str = "/etc/kubernetes/nodepki.conf";

/// Returns each rule in a list as one line.
fn lines(rules: &Value) -> BTreeSet<String> {
    let words = |value: &Value| {
        let mut words: Vec<&str> = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        words.sort_unstable();
        words.join(",")
    };
    let rules = rules.as_array().into_iter().flatten();
    rules
        .map(|rule| {
            let fields = [
                "apiGroups",
                "resources",
                "resourceNames",
                "nonResourceURLs",
                "verbs",
            ];
            fields.map(|field| words(&rule[field])).join(" | ")
        })
        .collect()
}

/// Returns the rules of a user in a namespace, as the API server evaluates them.
fn rules(user: &Caller<'_>, namespace: &str) -> BTreeSet<String> {
    let review = json!({"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": {"namespace": namespace}});
    let (status, answer) = user.post(&format!("{REVIEWS}/selfsubjectrulesreviews"), &review);
    assert_eq!(status, 201, "{answer}");
    let status = &answer["status"];
    let mut rules = lines(&status["resourceRules"]);
    rules.extend(lines(&status["nonResourceRules"]));
    rules
}

/// Returns the rules of a role that exists in the cluster.
fn granted(cluster: &Cluster, path: &str) -> BTreeSet<String> {
    let (status, role) = cluster.admin().get(&format!("{RBAC}/{path}/{ROLE}"));
    assert_eq!(status, 200, "{role}");
    let rules = lines(&role["rules"]);
    assert!(!rules.is_empty());
    rules
}

/// Returns whether a user may do this: `verb group/resource/subresource name namespace`, `-` for none.
fn may(user: &Caller<'_>, action: &str) -> bool {
    let words: Vec<&str> = action
        .split(' ')
        .map(|word| if word == "-" { "" } else { word })
        .collect();
    let [verb, resource, name, namespace] = words[..] else {
        panic!("{action}")
    };
    let parts: Vec<&str> = resource.split('/').collect();
    let attributes = json!({"verb": verb, "group": parts[0], "resource": parts[1],
        "subresource": parts.get(2).unwrap_or(&""), "name": name, "namespace": namespace});
    let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": attributes}});
    let (status, answer) = user.post(&format!("{REVIEWS}/selfsubjectaccessreviews"), &review);
    assert_eq!(status, 201, "{answer}");
    answer["status"]["allowed"].as_bool().unwrap()
}

const ALLOWED: [&str; 20] = [
    "get certificates.k8s.io/certificatesigningrequests csr-1 -",
    "list certificates.k8s.io/certificatesigningrequests - -",
    "watch certificates.k8s.io/certificatesigningrequests - -",
    "update certificates.k8s.io/certificatesigningrequests/approval csr-1 -",
    "update certificates.k8s.io/certificatesigningrequests/status csr-1 -",
    "approve certificates.k8s.io/signers kubernetes.io/kubelet-serving -",
    "sign certificates.k8s.io/signers kubernetes.io/kubelet-serving -",
    "approve certificates.k8s.io/signers kubernetes.io/kube-apiserver-client-kubelet -",
    "sign certificates.k8s.io/signers kubernetes.io/kube-apiserver-client-kubelet -",
    "get /nodes w1 -",
    "list /nodes - -",
    "watch /nodes - -",
    "get coordination.k8s.io/leases nodepki-kubelets kube-system",
    "create coordination.k8s.io/leases nodepki-kubelets kube-system",
    "update coordination.k8s.io/leases nodepki-kubelets kube-system",
    "get /configmaps nodepki-kubelets kube-system",
    "list /configmaps nodepki-kubelets kube-system",
    "watch /configmaps nodepki-kubelets kube-system",
    "update /configmaps nodepki-kubelets kube-system",
    "create /events - default",
];

const FORBIDDEN: [&str; 38] = [
    "create certificates.k8s.io/certificatesigningrequests - -",
    "update certificates.k8s.io/certificatesigningrequests csr-1 -",
    "patch certificates.k8s.io/certificatesigningrequests csr-1 -",
    "delete certificates.k8s.io/certificatesigningrequests csr-1 -",
    "deletecollection certificates.k8s.io/certificatesigningrequests - -",
    "approve certificates.k8s.io/signers kubernetes.io/kube-apiserver-client -",
    "sign certificates.k8s.io/signers kubernetes.io/kube-apiserver-client -",
    "approve certificates.k8s.io/signers kubernetes.io/legacy-unknown -",
    "sign certificates.k8s.io/signers example.com/other -",
    "sign certificates.k8s.io/signers - -",
    "attest certificates.k8s.io/signers kubernetes.io/kubelet-serving -",
    "create /nodes - -",
    "update /nodes w1 -",
    "patch /nodes w1 -",
    "delete /nodes w1 -",
    "update /nodes/status w1 -",
    "get /nodes/proxy w1 -",
    "create /nodes/proxy w1 -",
    "get /secrets - kube-system",
    "list /secrets - -",
    "get /configmaps kubeadm-config kube-system",
    "list /configmaps - kube-system",
    "create /configmaps nodepki-kubelets kube-system",
    "delete /configmaps nodepki-kubelets kube-system",
    "update /configmaps kubeadm-config kube-system",
    "list /pods - -",
    "create /pods - kube-system",
    "create /pods/exec - kube-system",
    "create /serviceaccounts/token - kube-system",
    "update coordination.k8s.io/leases kube-controller-manager kube-system",
    "delete coordination.k8s.io/leases nodepki-kubelets kube-system",
    "update coordination.k8s.io/leases nodepki-kubelets default",
    "list /events - default",
    "create /events - kube-system",
    "impersonate /users system:node:w1 -",
    "impersonate /groups system:masters -",
    "bind rbac.authorization.k8s.io/clusterroles cluster-admin -",
    "escalate rbac.authorization.k8s.io/clusterroles nodepki:kubelet-signer -",
];

#[test]
fn identity_of_daemon_has_only_the_rights_that_are_granted() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.nodepki(&["renew"]).done();
    let daemon = &node.caller(CONF);
    let stranger = &cluster
        .admin()
        .with(&["--header", "Impersonate-User: nobody"]);

    let everywhere = granted(cluster, "clusterroles");
    let in_system = granted(cluster, "namespaces/kube-system/roles");
    let in_default = granted(cluster, "namespaces/default/roles");
    for (namespace, own) in [
        ("kube-system", Some(&in_system)),
        ("default", Some(&in_default)),
        ("kube-public", None),
    ] {
        let mut expected = rules(stranger, namespace);
        expected.extend(everywhere.iter().cloned());
        expected.extend(own.into_iter().flatten().cloned());
        assert_eq!(rules(daemon, namespace), expected, "{namespace}");
    }
    for action in ALLOWED {
        assert!(may(daemon, action), "{action}");
        assert!(!may(stranger, action), "{action}");
    }
    for action in FORBIDDEN {
        assert!(!may(daemon, action), "{action}");
    }
    assert_doctor_reviews_rights(cluster);
}

/// Verifies that `doctor` finds a missing right, and a second signer.
fn assert_doctor_reviews_rights(cluster: &Cluster) {
    let node = cluster.first();
    let doctor = || {
        let kubeconfig = "/etc/kubernetes/super-admin.conf";
        node.nodepki(&["doctor", "--kubeconfig", kubeconfig]).stdout
    };
    let found = doctor();
    for finding in [
        "kubelet-signer-rbac",
        "kubelets-two-signers",
        "controller-manager-no-signer",
    ] {
        assert!(!found.contains(finding), "{found}");
    }
    let path = format!("{RBAC}/clusterrolebindings/{ROLE}");
    let (status, body) = cluster.admin().delete(&path);
    assert_eq!(status, 200, "{body}");
    let missing = "nodepki.conf is not allowed to sign signers kubernetes.io/kubelet-serving";
    wait_until("doctor names the missing right", || {
        let found = doctor();
        found.contains("kubelet-signer-rbac") && found.contains(missing)
    });
    let manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
    let text = fs::read_to_string(node.path(manifest)).unwrap();
    let unset = "--cluster-signing-cert-file=";
    assert!(text.contains(unset), "{text}");
    node.write(
        manifest,
        &text.replace(unset, &format!("{unset}/etc/kubernetes/pki/ca.crt")),
    );
    let found = doctor();
    assert!(found.contains("kubelets-two-signers"), "{found}");
}

#[test]
fn api_server_refuses_what_the_daemon_must_not_do() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.nodepki(&["renew"]).done();
    let daemon = &node.caller(CONF);

    // A request for a certificate of another signer name, which the daemon must not approve.
    let (name, _, _) = Wanted::client("w1").create(&token(cluster));
    let (_, mut other) = cluster.admin().get(&format!("{CSRS}/{name}"));
    other["metadata"] = json!({"name": "administrator"});
    other["spec"]["signerName"] = json!("kubernetes.io/kube-apiserver-client");
    other["status"] = json!({});
    let (status, mut other) = cluster.admin().post(CSRS, &other);
    assert_eq!(status, 201, "{other}");
    other["status"] =
        json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Stolen"}]});
    let path = format!("{CSRS}/administrator/approval");
    let (status, answer) = daemon.put(&path, &other);
    assert_eq!(status, 403, "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains("approve"),
        "{answer}"
    );
    let certificate = fs::read(node.pki("ca.crt")).unwrap();
    other["status"] = json!({"certificate": BASE64.encode(certificate)});
    let (status, answer) = daemon.put(&format!("{CSRS}/administrator/status"), &other);
    assert_eq!(status, 403, "{answer}");

    for (method, path) in [
        ("POST", CSRS),
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        (
            "GET",
            "/api/v1/namespaces/kube-system/configmaps/kubeadm-config",
        ),
        ("DELETE", "/api/v1/nodes/cp1"),
    ] {
        let object = json!({"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"name": "mine"}, "spec": other["spec"]});
        let body = (method == "POST").then_some(&object);
        let (status, answer) = daemon.send(method, path, body);
        assert_eq!(status, 403, "{method} {path}: {answer}");
    }
}
