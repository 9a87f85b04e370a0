//! The signer of kubelets' requests, against the real kube-apiserver, with the users of Kubernetes: a bootstrap token, and
//! nodes with the client certificates that they were issued.
//!
//! | file | what happens |
//! | --- | --- |
//! | `hostile` | requests that must not be signed, and thousands of them at once |
//! | `names` | the names and addresses of serving certificates, from a hostile kubelet and from honest ones |
//! | `pods` | client certificates of pods |
//! | `rights` | the identity of the daemon tries what it may and may not do |
//! | `writers` | other writers, a compacted history, nothing to do |
//! | `answers` | a signer that is wrong, slow or down; decisions by hand |
//! | `crash` | the daemon is killed between request and answer |
//! | `kinds` | the real servers of other kinds of signers |
//! | `bench` | a thousand nodes join within a minute, ten thousand hostile requests; `tests/run bench kubelets` |

mod answers;
mod bench;
#[cfg(feature = "failpoints")]
mod crash;
mod hostile;
mod kinds;
mod names;
mod pods;
mod rights;
mod writers;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::csr_object::KubeletCertificate;
use nodepki::kube::kubeconfig::{Credentials, Kubeconfig};
use nodepki::kube::names::Authority;
use nodepki::x509::{
    Certificate, CertificateAuthority, Chain, Csr, ExtendedUsage, KeyAlgorithm, PrivateKey,
    Profile, Sans, Subject, UsageExtensions,
};
use serde_json::{Value, json};

use crate::join_control_plane::{prepare, start_components};
use crate::rotation_cluster::Daemon;
use crate::servers::bin;
use crate::servers::cluster::{Authorities, Caller, Cluster, ClusterNode, ENDPOINT, INIT, TOKEN};
use crate::signing::now;
use crate::time::{eventually, wait_until};

const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/nodepki-kubelets";
/// The ConfigMap that binds names to Nodes.
const BINDINGS: &str = "/api/v1/namespaces/kube-system/configmaps/nodepki-kubelets";
/// The CA keys, on a node that signs with them.
const CA_DIR: &str = "/var/lib/corp";

/// Writes settings with this signer for authority `ca`.
fn configure(node: &ClusterNode, ca: &str, signers: &str) {
    configure_names(node, ca, signers, "domains: [example.com]");
}

/// As [`configure`], with these settings for the names of serving certificates.
fn configure_names(node: &ClusterNode, ca: &str, signers: &str, names: &str) {
    let settings = format!(
        "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {{ca: {{signer: {ca}}}, etcd-ca: {{signer: corp}}, front-proxy-ca: {{signer: corp}}}}
signers: {{corp: {{local: {{directory: {CA_DIR}}}}}{signers}}}
pki: {{defaults: {{key: {{algorithm: ECDSA, ecdsa: {{curve: P256}}}}}}}}
reload: {{hooks: [{{on: [kubelet], command: [/bin/true]}}]}}
kubelets: {{sign: true, approveServing: true, approveClient: true, lifetime: 2h, tokenLifetime: 40m, {names}}}
metrics: {{listen: '127.0.0.1:9465'}}
"
    );
    node.write("/etc/nodepki/config.yaml", &settings);
}

/// Copies the CA keys to a node.
fn give_keys(cluster: &Cluster, node: &ClusterNode) {
    for authority in Authority::ALL {
        for (extension, is_secret) in [("crt", false), ("key", true)] {
            let file = format!("{}.{extension}", authority.base_name());
            let text = fs::read_to_string(cluster.authorities().join(&file)).unwrap();
            let path = format!("{CA_DIR}/{file}");
            if is_secret {
                node.write_secret(&path, &text)
            } else {
                node.write(&path, &text)
            }
        }
    }
}

/// Gives the group of the signing nodes the rights that nodepki prints.
fn grant(cluster: &Cluster) {
    let node = cluster.first();
    let setup = node.nodepki(&["config", "signer-setup", "kubelets"]);
    node.write("/var/tmp/setup.yaml", &setup.done().stdout);
    let kubectl = bin("kubectl");
    let arguments = [
        "--kubeconfig=/etc/kubernetes/super-admin.conf",
        "--cache-dir=/var/tmp/kubectl",
        "apply",
        "-f",
        "/var/tmp/setup.yaml",
    ];
    node.run(kubectl.to_str().unwrap(), &arguments).done();
}

/// Starts a cluster with kubeadm's configuration `init`, whose first node has the rights and the settings to sign with this
/// signer for authority `ca`. No daemon runs.
fn prepared(init: &str, ca: &str, signers: &str) -> Cluster {
    let cluster = Cluster::made_of(init, Authorities::External);
    let node = cluster.first();
    give_keys(&cluster, node);
    configure(node, ca, signers);
    node.write("/run/kubeadm/kubeadm.yaml", init);
    grant(&cluster);
    cluster
}

/// A request of a kubelet.
struct Wanted<'a> {
    certificate: KubeletCertificate,
    node: &'a str,
    dns: &'a [&'a str],
    ips: &'a [&'a str],
    usages: Option<&'a [&'a str]>,
}

impl Wanted<'_> {
    fn client(node: &str) -> Wanted<'_> {
        Wanted {
            certificate: KubeletCertificate::Client,
            node,
            dns: &[],
            ips: &[],
            usages: None,
        }
    }

    fn profile(&self) -> Profile {
        Profile {
            subject: Subject {
                common_name: format!("system:node:{}", self.node),
                organizations: vec!["system:nodes".to_owned()],
            },
            sans: Sans {
                dns: self.dns.iter().map(|name| (*name).to_owned()).collect(),
                ips: self
                    .ips
                    .iter()
                    .map(|ip| ip.parse::<IpAddr>().unwrap())
                    .collect(),
            },
            usages: vec![ExtendedUsage::ClientAuth],
            key: KeyAlgorithm::EcdsaP256,
            lifetime: Duration::from_secs(3600),
        }
    }

    /// Returns the object with a request for a new key, and the key.
    fn object(&self) -> (Value, PrivateKey) {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let csr = Csr::create(&self.profile(), &key, UsageExtensions::Omitted).unwrap();
        let usual = match self.certificate {
            KubeletCertificate::Client | KubeletCertificate::Pod => {
                ["digital signature", "client auth"]
            }
            KubeletCertificate::Serving => ["digital signature", "server auth"],
        };
        let object = json!({"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
            "metadata": {"generateName": "csr-"},
            "spec": {"signerName": self.certificate.signer_name(), "request": BASE64.encode(csr.to_pem()),
                     "usages": self.usages.unwrap_or(&usual), "expirationSeconds": 3600}});
        (object, key)
    }

    /// Creates the object as this user, and returns its name, its UID and the key.
    fn create(&self, user: &Caller<'_>) -> (String, String, PrivateKey) {
        let (object, key) = self.object();
        let (status, made) = user.post(CSRS, &object);
        assert_eq!(status, 201, "{made}");
        let text = |field: &str| made["metadata"][field].as_str().unwrap().to_owned();
        (text("name"), text("uid"), key)
    }
}

/// Waits until a request is issued, denied or failed.
fn decided(cluster: &Cluster, name: &str, daemon: &Daemon<'_>) -> Value {
    let admin = cluster.admin();
    eventually(|| {
        let (_, object) = admin.get(&format!("{CSRS}/{name}"));
        let conditions = object["status"]["conditions"].as_array();
        let is_refused = conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Denied" || condition["type"] == "Failed");
        if is_refused || object["status"]["certificate"].is_string() {
            return Ok(object);
        }
        Err(format!("{object}\n{}", daemon.said()))
    })
}

/// Returns the certificate of an issued request.
fn certificate(object: &Value) -> Vec<u8> {
    let text = object["status"]["certificate"].as_str();
    BASE64
        .decode(text.unwrap_or_else(|| panic!("{object}")))
        .unwrap()
}

/// Returns the reason of the condition `Denied`, or `Failed` if kube-controller-manager had approved the request before.
fn refusal(object: &Value) -> &str {
    assert!(object["status"]["certificate"].is_null(), "{object}");
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let mut conditions = conditions.iter();
    let refused = conditions.find(|one| one["type"] == "Denied" || one["type"] == "Failed");
    refused.unwrap_or_else(|| panic!("{object}"))["reason"]
        .as_str()
        .unwrap()
}

/// Verifies a certificate with OpenSSL against the cluster's CA.
fn verify(node: &ClusterNode, certificate: &[u8], arguments: &[&str]) {
    let file = node.path("/var/tmp/issued.crt");
    fs::write(&file, certificate).unwrap();
    let ca = node.pki("ca.crt");
    let output = std::process::Command::new("openssl")
        .args(["verify", "-x509_strict", "-CAfile"])
        .arg(ca)
        .args(arguments)
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Writes a kubeconfig with this certificate on a node.
fn write_kubeconfig(
    node: &ClusterNode,
    path: &str,
    user: &str,
    certificate: &[u8],
    key: &PrivateKey,
) {
    let authority = fs::read_to_string(node.pki("ca.crt")).unwrap();
    let key = key.to_pem();
    let credentials = Credentials {
        server: &format!("https://{ENDPOINT}"),
        authority: &authority,
        certificate: std::str::from_utf8(certificate).unwrap(),
        key: &key,
    };
    let text = Kubeconfig::new("kubernetes", user, &credentials).to_yaml();
    node.write_secret(path, &text);
}

/// Returns the user of the bootstrap token.
fn token(cluster: &Cluster) -> Caller<'_> {
    cluster
        .first()
        .bearer(&format!("https://{ENDPOINT}"), TOKEN)
}

/// Sets the addresses and the readiness of a Node as its kubelet does.
fn set_status(user: &Caller<'_>, name: &str, address: &str, ready: &str) {
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletReady",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let (code, body) = user.patch(&format!("/api/v1/nodes/{name}/status"), &status);
    assert_eq!(code, 200, "{body}");
}

fn serving<'a>(node: &'a str, dns: &'a [&'a str], ips: &'a [&'a str]) -> Wanted<'a> {
    Wanted {
        certificate: KubeletCertificate::Serving,
        dns,
        ips,
        ..Wanted::client(node)
    }
}

#[test]
fn daemon_signs_for_kubelets_of_a_cluster_without_ca_keys() {
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    let daemon = &Daemon::start(node);

    // A bootstrap token requests the identity of a new node.
    let (name, _, key) = Wanted::client("w1").create(&token(cluster));
    let issued = certificate(&decided(cluster, &name, daemon));
    verify(node, &issued, &["-purpose", "sslclient"]);
    let chain = Chain::from_response(&issued, key.public_key()).unwrap();
    let lifetime = chain.leaf().not_after() - now();
    assert!(lifetime <= time::Duration::minutes(40), "{lifetime}");
    let (first_object, first_serial) = (name.clone(), chain.leaf().serial().to_owned());
    let path = "/var/tmp/w1.conf";
    write_kubeconfig(node, path, "w1", &issued, &key);
    let w1 = &node.caller(path);
    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "w1"}});
    let (status, body) = w1.post("/api/v1/nodes", &object);
    assert_eq!(status, 201, "{body}");
    set_status(w1, "w1", "192.0.2.21", "False");

    // The node requests its serving certificate.
    let own = serving("w1", &["w1"], &["192.0.2.21"]);
    let (name, _, _) = own.create(w1);
    let issued = certificate(&decided(cluster, &name, daemon));
    let names = ["-purpose", "sslserver", "-verify_ip", "192.0.2.21"];
    verify(node, &issued, &names);
    verify(node, &issued, &["-verify_hostname", "w1"]);
    let renewed = Chain::from_pem(&issued).unwrap().leaf().not_after() - now();
    assert!(renewed > time::Duration::minutes(40), "{renewed}");

    // Names that are not its own. NodeRestriction refuses the name of another node in the subject.
    for (wanted, reason) in [
        (serving("w1", &[], &["192.0.2.11"]), "SanOfApiServer"),
        (
            serving("w1", &["kubernetes.default.svc"], &[]),
            "SanOfService",
        ),
        (serving("w1", &[], &["10.96.0.1"]), "SanOfService"),
        (serving("w1", &[], &["127.0.0.1"]), "SanSpecial"),
        (serving("w1", &[], &[]), "SanRequired"),
        (
            Wanted {
                usages: Some(&["digital signature", "server auth", "client auth"]),
                ..serving("w1", &["w1"], &[])
            },
            "UsagesNotAllowed",
        ),
    ] {
        let (name, _, _) = wanted.create(w1);
        let object = decided(cluster, &name, daemon);
        assert_eq!(refusal(&object), reason, "{object}");
    }
    // A token cannot take over a living node.
    set_status(w1, "w1", "192.0.2.21", "True");
    let (name, _, _) = Wanted::client("w1").create(&token(cluster));
    assert_eq!(refusal(&decided(cluster, &name, daemon)), "NodeExists");

    // The watches continue after a restart of the API server.
    node.stop("kube-apiserver");
    node.start("kube-apiserver");
    let (name, _, _) = own.create(w1);
    let issued = certificate(&decided(cluster, &name, daemon));
    verify(node, &issued, &names);

    let listed = node.nodepki(&["kubelets", "list", "-o", "json"]);
    let listed = crate::documents::verify("kubelet-requests", listed.done());
    let states: Vec<&str> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["state"].as_str().unwrap())
        .collect();
    let count = |state| states.iter().filter(|one| **one == state).count();
    let refused = count("denied") + count("failed");
    assert_eq!((count("issued"), refused), (3, 7), "{listed}");
    let page = node.run("curl", &["--silent", "http://127.0.0.1:9465/metrics"]);
    for sample in [
        "nodepki_kubelet_requests_total{certificate=\"serving\",signer=\"corp\",result=\"issued\"} 2",
        "nodepki_kubelet_requests_refused_total{certificate=\"serving\",reason=\"SanOfService\"} 2",
        "nodepki_kubelet_request_duration_seconds_count{certificate=\"client\"} 1",
    ] {
        assert!(page.stdout.contains(sample), "{sample}:\n{}", page.stdout);
    }
    let shown = node.nodepki(&["audit", "show", "-o", "json"]);
    let log: Value = serde_json::from_str(&shown.done().stdout).unwrap();
    let entries = log["items"].as_array().unwrap().iter();
    let issued_entries: Vec<&Value> = entries
        .filter(|entry| entry["event"] == "kubelet-request" && entry["action"] == "issued")
        .collect();
    assert_eq!(issued_entries.len(), 3, "{log}");
    assert_eq!(issued_entries[0]["object"], first_object);
    assert_eq!(issued_entries[0]["node"], "w1");
    assert_eq!(issued_entries[0]["requester"], "system:bootstrap:abcdef");
    assert_eq!(issued_entries[0]["serial"], first_serial);
    node.nodepki(&["audit", "verify"]).done();
    let said = daemon.said();
    let audit = said
        .lines()
        .filter(|line| line.contains("kubelet request csr-"));
    assert!(audit.count() >= 10, "{said}");
    end_rights_of_deleted_node(cluster, daemon, w1);
}

/// Deletes the Node of `w1`, which its kubelet creates again with its old certificate; then revokes the name.
fn end_rights_of_deleted_node(cluster: &Cluster, daemon: &Daemon<'_>, w1: &Caller<'_>) {
    let (admin, node) = (&cluster.admin(), cluster.first());
    let known = || {
        let (_, map) = admin.get(BINDINGS);
        map["data"]["w1"].as_str().unwrap_or_default().to_owned()
    };
    wait_until("the Node is known", || known().starts_with("uid="));
    let (status, body) = admin.delete("/api/v1/nodes/w1");
    assert_eq!(status, 200, "{body}");
    wait_until("its deletion is recorded", || known().contains(" gone="));
    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "w1"}});
    let (status, body) = w1.post("/api/v1/nodes", &object);
    assert_eq!(status, 201, "{body}");
    set_status(w1, "w1", "192.0.2.21", "True");
    let (name, _, _) = Wanted::client("w1").create(w1);
    wait_until("an Event explains the wait", || {
        events_about(cluster, &name) == ["NodeReplaced"]
    });
    node.nodepki(&["kubelets", "approve", &name]).done();
    certificate(&decided(cluster, &name, daemon));
    // A leader that follows now knows the Node too.
    let (_, again) = admin.get("/api/v1/nodes/w1");
    let uid = again["metadata"]["uid"].as_str().unwrap();
    assert_eq!(known(), format!("uid={uid}"));

    let own = serving("w1", &["w1"], &["192.0.2.21"]);
    node.nodepki(&["kubelets", "revoke", "w1"])
        .done()
        .says("next: kubectl delete node w1");
    let (name, _, _) = own.create(w1);
    assert_eq!(refusal(&decided(cluster, &name, daemon)), "NodeRevoked");
    node.nodepki(&["kubelets", "revoke", "w1", "--undo"]).done();
    let (name, _, _) = own.create(w1);
    certificate(&decided(cluster, &name, daemon));
}

/// Files with this extension in a directory, without it.
fn stems(dir: &Path, extension: &str) -> Vec<String> {
    let files = fs::read_dir(dir).into_iter().flatten();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// Signs the only request for a kubelet in a drop directory, as an administrator does.
fn answer(cluster: &Cluster, drop: &Path, stem: &str, wanted: &Wanted<'_>) {
    let csr = fs::read(drop.join("outbox").join(format!("{stem}.csr"))).unwrap();
    let csr = Csr::from_pem(&csr).unwrap();
    let issued = cluster_authority(cluster)
        .issue(csr.public_key(), &wanted.profile(), now())
        .unwrap();
    put_answer(drop, stem, &issued);
}

fn cluster_authority(cluster: &Cluster) -> CertificateAuthority {
    let read = |file: &str| fs::read(cluster.authorities().join(file)).unwrap();
    CertificateAuthority::from_pem(&read("ca.crt"), &read("ca.key")).unwrap()
}

fn put_answer(drop: &Path, stem: &str, issued: &Certificate) {
    let file = drop.join("inbox").join(format!("{stem}.crt"));
    let partial = file.with_extension("tmp");
    fs::write(&partial, issued.to_pem()).unwrap();
    fs::rename(partial, file).unwrap();
}

#[test]
fn follower_takes_over_and_signer_has_one_request() {
    let cluster = &Cluster::start(Authorities::External);
    let second = &cluster.add_node("cp2", "192.0.2.12");
    prepare(cluster, second);
    start_components(second);
    let first = cluster.first();
    first.write("/run/kubeadm/kubeadm.yaml", INIT);
    // A directory that both nodes see.
    let shared = tempfile::tempdir().unwrap();
    let drop: PathBuf = shared.path().join("drop");
    let signer = format!(", drop: {{directory: {{path: '{}'}}}}", drop.display());
    for node in [first, second] {
        give_keys(cluster, node);
        configure(node, "corp", "");
        // nodepki.conf is signed locally; the requests of kubelets by an administrator.
        node.nodepki(&["renew"]).done();
        assert!(node.path("/etc/kubernetes/nodepki.conf").exists());
        configure(node, "drop", &signer);
    }
    grant(cluster);
    // The rights suffice to create it again.
    let (status, body) = cluster.admin().delete(LEASE);
    assert_eq!(status, 200, "{body}");
    let mut daemons: Vec<Option<Daemon<'_>>> =
        [first, second].map(|node| Some(Daemon::start(node))).into();
    let admin = &cluster.admin();
    let holder = || {
        let (_, lease) = admin.get(LEASE);
        lease["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    wait_until("a node signs", || !holder().is_empty());
    let leader = usize::from(holder() != "cp1");

    let wanted = Wanted::client("w1");
    let (name, uid, key) = wanted.create(&token(cluster));
    let outbox = drop.join("outbox");
    let stem = format!("kubelet.conf.{uid}");
    wait_until("the request is in the outbox", || {
        stems(&outbox, "csr") == [stem.clone()]
    });
    let before = fs::read(outbox.join(format!("{stem}.json"))).unwrap();
    // Killed, so the Lease is not released.
    daemons[leader] = None;
    let begin = Instant::now();
    let other = ["cp2", "cp1"][leader];
    wait_until("the follower signs", || holder() == other);
    println!("the follower took over after {:.1?}", begin.elapsed());

    // The new leader asks the signer about the request and does not send another one.
    let follower = daemons[1 - leader].as_ref().unwrap();
    wait_until("the new leader knows the request", || {
        let path = format!("/var/lib/nodepki/kubelets/{uid}.json");
        [first, second][1 - leader].path(&path).exists()
    });
    assert_eq!(stems(&outbox, "csr"), std::slice::from_ref(&stem));
    assert_eq!(
        fs::read(outbox.join(format!("{stem}.json"))).unwrap(),
        before
    );
    answer(cluster, &drop, &stem, &wanted);
    let issued = certificate(&decided(cluster, &name, follower));
    Chain::from_response(&issued, key.public_key()).unwrap();
    wait_until("the drop directory is empty", || {
        stems(&outbox, "csr").is_empty() && stems(&drop.join("inbox"), "crt").is_empty()
    });
    // A regular stop releases the Lease.
    if let Some(mut daemon) = daemons[1 - leader].take() {
        daemon.stop();
    }
    assert_eq!(holder(), "");
}

/// Returns the largest resident size of a daemon in KiB.
fn memory(daemon: &Daemon<'_>) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Returns all CertificateSigningRequests.
fn all_requests(cluster: &Cluster) -> Vec<Value> {
    let (status, list) = cluster.admin().get(CSRS);
    assert_eq!(status, 200, "{list}");
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Returns the reason of a condition of an object, if it is set.
fn reason_of<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let mut conditions = object["status"]["conditions"].as_array()?.iter();
    conditions.find(|one| one["type"] == kind)?["reason"].as_str()
}

/// Returns the reasons of the Events about an object.
fn events_about(cluster: &Cluster, name: &str) -> Vec<String> {
    let path =
        format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}");
    let (status, list) = cluster.admin().get(&path);
    assert_eq!(status, 200, "{list}");
    let events = list["items"].as_array().into_iter().flatten();
    events
        .map(|event| event["reason"].as_str().unwrap().to_owned())
        .collect()
}

/// Approves a request as `kubectl certificate approve` does.
fn approve(cluster: &Cluster, object: &Value) {
    let mut object = object.clone();
    object["status"] = json!({"conditions": [{"type": "Approved", "status": "True",
        "reason": "KubectlApprove", "message": "approved by a person"}]});
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let path = format!("{CSRS}/{name}/approval");
    let (status, body) = cluster.admin().put(&path, &object);
    assert_eq!(status, 200, "{body}");
}

/// Creates a Node, or sets addresses and readiness of an existing one. It was ready since the beginning of the year, or
/// until then.
fn put_node(cluster: &Cluster, name: &str, addresses: &[(&str, &str)], is_ready: bool) {
    let admin = cluster.admin();
    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
    let (status, body) = admin.post("/api/v1/nodes", &object);
    assert!(status == 201 || status == 409, "{body}");
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|(kind, address)| json!({"type": kind, "address": address}))
        .collect();
    let ready = if is_ready { "True" } else { "False" };
    let status = json!({"status": {
        "addresses": addresses,
        "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletReady",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let (code, body) = admin.patch(&format!("/api/v1/nodes/{name}/status"), &status);
    assert_eq!(code, 200, "{body}");
}

/// Returns the user of a node, with a client certificate that the cluster's authority issues here.
fn kubelet_of<'a>(cluster: &'a Cluster, name: &str) -> Caller<'a> {
    let node = cluster.first();
    let read = |file: &str| fs::read(cluster.authorities().join(file)).unwrap();
    let authority = CertificateAuthority::from_pem(&read("ca.crt"), &read("ca.key")).unwrap();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Wanted::client(name).profile();
    let issued = authority.issue(key.public_key(), &profile, now()).unwrap();
    let path = format!("/var/tmp/{name}.conf");
    write_kubeconfig(node, &path, name, issued.to_pem().as_bytes(), &key);
    node.caller(&path)
}

#[test]
fn serves_burst_of_joining_nodes() {
    const NODES: usize = 240;
    const THREADS: usize = 4;
    let cluster = &prepared(INIT, "corp", "");
    let node = cluster.first();
    let daemon = &Daemon::start(node);
    let (name, _, _) = Wanted::client("first").create(&token(cluster));
    decided(cluster, &name, daemon);
    let before = memory(daemon);

    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let user = token(cluster);
                for number in (thread..NODES).step_by(THREADS) {
                    Wanted::client(&format!("w{number}")).create(&user);
                }
            });
        }
    });
    let created = began.elapsed();
    let page = || {
        let page = node.run("curl", &["--silent", "http://127.0.0.1:9465/metrics"]);
        page.stdout
    };
    let none_waits = "nodepki_kubelet_requests_pending{certificate=\"client\"} 0";
    wait_until("no request waits", || page().contains(none_waits));
    eventually(|| {
        let requests = all_requests(cluster);
        let waiting = requests
            .iter()
            .find(|request| !request["status"]["certificate"].is_string());
        match waiting {
            None if requests.len() > NODES => Ok(()),
            None => Err(format!("{} requests exist", requests.len())),
            Some(request) => Err(format!("{request}\n{}\n{}", page(), daemon.said())),
        }
    });
    let served = began.elapsed();
    let page = page();
    let buckets = page
        .lines()
        .filter(|line| line.contains("duration_seconds_bucket{certificate=\"client\""));
    let buckets: Vec<&str> = buckets.collect();
    let memory = memory(daemon);
    println!(
        "{NODES} requests created in {created:.1?}, all issued after {served:.1?}; peak memory {before} KiB before, {memory} KiB after\n{}",
        buckets.join("\n")
    );
    assert!(memory < 64 << 10, "{memory} KiB");
}
