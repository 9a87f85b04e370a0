//! Client certificates of pods: the kubelet of a pod requests one, and the pod is its ServiceAccount with it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::pod_request::POD_CLIENT_SIGNER;
use nodepki::kubelets::SERVICE_ACCOUNTS_GROUP;
use nodepki::x509::{
    Certificate, Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
};
use rcgen::{CertificateParams, DistinguishedName};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{
    cluster_authority, configure_names, grant, kubelet_of, prepared, put_answer, put_node,
    reason_of, verify, write_kubeconfig,
};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Caller, Cluster, INIT};
use crate::signing::now;
use crate::time::{eventually, wait_until};

const MINUTE: Duration = Duration::from_secs(60);
pub(super) const REQUESTS: &str =
    "/apis/certificates.k8s.io/v1/namespaces/shop/podcertificaterequests";

/// The empty CSR that a kubelet makes, and its key.
pub(super) fn empty_csr() -> (String, PrivateKey) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key).unwrap();
    (BASE64.encode(csr.der()), key)
}

/// A pod of `seller` on `w1` whose volume has a certificate.
pub(super) fn pod() -> Value {
    let source = json!({"podCertificate": {
        "signerName": POD_CLIENT_SIGNER, "keyType": "ECDSAP256",
        "credentialBundlePath": "bundle.pem"}});
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"nodeName": "w1", "serviceAccountName": "seller",
                 "containers": [{"name": "web", "image": "registry.example.com/web:1"}],
                 "volumes": [{"name": "identity", "projected": {"sources": [source]}}]}})
}

/// Creates an object as an administrator and returns its UID.
fn create(admin: &Caller<'_>, path: &str, object: &Value) -> String {
    let (status, made) = admin.post(path, object);
    assert_eq!(status, 201, "{made}");
    made["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Returns the request of the kubelet for the pod, with these UIDs of pod, ServiceAccount and Node.
pub(super) fn request(csr: &str, [pod, account, node]: &[String; 3]) -> Value {
    json!({"kind": "PodCertificateRequest", "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"generateName": "req-web-", "namespace": "shop"},
        "spec": {"signerName": POD_CLIENT_SIGNER,
                 "podName": "web", "podUID": pod,
                 "serviceAccountName": "seller", "serviceAccountUID": account,
                 "nodeName": "w1", "nodeUID": node,
                 "maxExpirationSeconds": 86400, "stubPKCS10Request": csr}})
}

/// Creates a request and waits for its end.
fn ended(user: &Caller<'_>, cluster: &Cluster, object: &Value, daemon: &Daemon<'_>) -> Value {
    let (status, made) = user.post(REQUESTS, object);
    assert_eq!(status, 201, "{made}");
    settled(cluster, &made, daemon)
}

/// Waits for the end of a request.
fn settled(cluster: &Cluster, made: &Value, daemon: &Daemon<'_>) -> Value {
    let path = format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().unwrap());
    let admin = cluster.admin();
    eventually(|| {
        let (_, object) = admin.get(&path);
        match object["status"]["conditions"].as_array() {
            Some(conditions) if !conditions.is_empty() => Ok(object),
            _ => Err(format!("{object}\n{}", daemon.said())),
        }
    })
}

/// Creates the Node `w1`, the ServiceAccount `seller` and its pod `web` there, and returns the UIDs for [`request`].
fn create_pod(cluster: &Cluster) -> [String; 3] {
    let admin = &cluster.admin();
    put_node(cluster, "w1", &[("InternalIP", "192.0.2.21")], true);
    let (_, found) = admin.get("/api/v1/nodes/w1");
    let node_uid = found["metadata"]["uid"].as_str().unwrap().to_owned();
    let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}});
    create(admin, "/api/v1/namespaces", &namespace);
    let account =
        json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "seller"}});
    let account_uid = create(admin, "/api/v1/namespaces/shop/serviceaccounts", &account);
    let pod_uid = create(admin, "/api/v1/namespaces/shop/pods", &pod());
    [pod_uid, account_uid, node_uid]
}

/// Signs the CSR of a pod of `seller`, for 70 minutes from then on.
fn sign(cluster: &Cluster, csr: &Path, not_before: OffsetDateTime) -> Certificate {
    let csr = Csr::from_pem(&fs::read(csr).unwrap()).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: "system:serviceaccount:shop:seller".to_owned(),
            organizations: vec![SERVICE_ACCOUNTS_GROUP.to_owned()],
        },
        sans: Sans::default(),
        usages: vec![ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: 70 * MINUTE,
    };
    cluster_authority(cluster)
        .issue_from(csr.public_key(), &profile, not_before)
        .unwrap()
}

#[test]
fn pod_is_its_service_account_with_a_signed_certificate() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    configure_names(node, "corp", "", "signPods: true");
    // `lifetime: 2h` of the settings is the longest of the pod's, too.
    grant(cluster);
    let daemon = &Daemon::start(node);
    let admin = &cluster.admin();
    let uids = create_pod(cluster);
    put_node(cluster, "w2", &[("InternalIP", "192.0.2.22")], true);

    // The kubelet's request, as NodeRestriction lets it through.
    let (csr, key) = empty_csr();
    let w1 = &kubelet_of(cluster, "w1");
    let object = ended(w1, cluster, &request(&csr, &uids), daemon);
    assert_eq!(reason_of(&object, "Issued"), Some("Issued"), "{object}");
    let chain = object["status"]["certificateChain"].as_str().unwrap();
    verify(node, chain.as_bytes(), &["-purpose", "sslclient"]);

    // With it, the pod is its ServiceAccount, as with its token.
    let path = "/var/tmp/pod.conf";
    write_kubeconfig(node, path, "seller", chain.as_bytes(), &key);
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (status, answer) = node.caller(path).post(reviews, &review);
    assert_eq!(status, 201, "{answer}");
    let user = &answer["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:shop:seller");
    let groups = json!(["system:serviceaccounts", "system:authenticated"]);
    assert_eq!(user["groups"], groups, "{answer}");

    // The kubelet of another node cannot ask for it.
    let w2 = &kubelet_of(cluster, "w2");
    let (status, body) = w2.post(REQUESTS, &request(&csr, &uids));
    assert_eq!(status, 403, "{body}");

    // Requests of another user whose content is false are denied.
    let [pod, account, node_uid] = uids.clone();
    let stranger = "00000000-0000-0000-0000-000000000000".to_owned();
    let with = |field: &str, value: Value| {
        let mut object = request(&csr, &uids);
        object["spec"][field] = value;
        object
    };
    for (object, reason) in [
        (
            request(&csr, &[stranger.clone(), account.clone(), node_uid.clone()]),
            "PodNotFound",
        ),
        (
            request(&csr, &[pod.clone(), stranger.clone(), node_uid.clone()]),
            "ServiceAccountDiffers",
        ),
        (request(&csr, &[pod, account, stranger]), "NodeNotFound"),
        (
            with("serviceAccountName", json!("default")),
            "ServiceAccountDiffers",
        ),
        (
            with("unverifiedUserAnnotations", json!({"example.com/a": "b"})),
            "InvalidUnverifiedUserAnnotations",
        ),
    ] {
        let object = ended(admin, cluster, &object, daemon);
        assert_eq!(reason_of(&object, "Denied"), Some(reason), "{object}");
    }
    let page = node.run("curl", &["--silent", "http://127.0.0.1:9465/metrics"]);
    let sample =
        "nodepki_kubelet_requests_total{certificate=\"pod\",signer=\"corp\",result=\"issued\"} 1";
    assert!(page.stdout.contains(sample), "{}", page.stdout);
    let shown = node.nodepki(&["audit", "show", "-o", "json"]);
    let log: Value = serde_json::from_str(&shown.done().stdout).unwrap();
    let entries = log["items"].as_array().unwrap();
    let entry = entries
        .iter()
        .find(|entry| entry["requester"] == "pod shop/web");
    let entry = entry.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(entry["action"], "issued");
    assert_eq!(entry["node"], "w1");

    // `local` issues exactly the lifetime that is requested, the shortest too.
    let object = ended(
        w1,
        cluster,
        &with("maxExpirationSeconds", json!(3600)),
        daemon,
    );
    assert_eq!(reason_of(&object, "Issued"), Some("Issued"), "{object}");
}

/// The API server refuses a certificate that begins more than five minutes ago, so the signer is asked for another one.
#[test]
fn requests_another_certificate_if_that_on_record_is_too_old() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    node.nodepki(&["renew"]).done();
    let drop = node.path("/var/lib/drop");
    let signer = ", drop: {directory: {path: /var/lib/drop}}";
    configure_names(node, "drop", signer, "signPods: true");
    grant(cluster);
    let mut daemon = Daemon::start(node);
    let uids = create_pod(cluster);
    let (csr, _) = empty_csr();
    let (status, made) = kubelet_of(cluster, "w1").post(REQUESTS, &request(&csr, &uids));
    assert_eq!(status, 201, "{made}");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let stem = format!("pod-client.{uid}");
    let csr = drop.join(format!("outbox/{stem}.csr"));
    wait_until("the signer has the request", || csr.exists());
    daemon.stop();
    let record = node.path(&format!("/var/lib/nodepki/kubelets/{uid}.json"));
    let mut recorded: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let old = sign(cluster, &csr, now() - 6 * MINUTE);
    recorded["chain"] = json!(old.to_pem());
    fs::write(&record, recorded.to_string()).unwrap();

    daemon.replace();
    let new = sign(cluster, &csr, now());
    put_answer(&drop, &stem, &new);
    let object = settled(cluster, &made, &daemon);
    assert_eq!(reason_of(&object, "Issued"), Some("Issued"), "{object}");
    assert_eq!(object["status"]["certificateChain"], new.to_pem());
}
