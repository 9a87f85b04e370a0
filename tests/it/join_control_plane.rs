//! A second control-plane node for a cluster with external CAs, prepared by `nodepki bootstrap` alone: the real kubeadm
//! accepts it, the real components start on it and serve, and it never has a private key of an authority.

use std::fs;
use std::path::Path;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::names::CertName;
use serde_json::{Value, json};

use crate::kubeadm::{accepts_external_ca, copy_tree};
use crate::node::{Ran, SHARED_FILES, Snapshot};
use crate::pages;
use crate::servers::Server;
use crate::servers::cluster::{
    AUTHORITY_KEYS, Authorities, Caller, Cluster, ClusterNode, ENDPOINT, TOKEN, cluster,
};
use crate::servers::remote_signer::RemoteSigner;
use crate::signer_directory::sign_by_hand;
use crate::signing::tree;
use crate::time::wait_until;
use crate::workers;

const SETTINGS: &str = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {ca: {signer: offline}, etcd-ca: {signer: offline}, front-proxy-ca: {signer: offline}}
signers: {offline: {directory: {path: /var/lib/offline}}}
";

const KUBELET_CONF: &str = "FileAvailable--etc-kubernetes-kubelet.conf";

/// JoinConfiguration of a worker with the name of the node.
pub(crate) fn worker_configuration(node: &ClusterNode, discovery: &str) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {discovery}
nodeRegistration: {{name: {}, criSocket: 'unix:///run/containerd/containerd.sock'}}
",
        node.name()
    )
}

/// JoinConfiguration of a control-plane node with the name and address of the node.
fn join_configuration(node: &ClusterNode, discovery: &str) -> String {
    format!(
        "{}controlPlane: {{localAPIEndpoint: {{advertiseAddress: {}}}}}\n",
        worker_configuration(node, discovery),
        node.address()
    )
}

pub(crate) fn by_token(cluster: &Cluster) -> String {
    let pin = cluster.ca_pin();
    format!(
        "{{bootstrapToken: {{token: {TOKEN}, apiServerEndpoint: '{ENDPOINT}', caCertHashes: ['{pin}']}}}}"
    )
}

fn by_file(cluster: &Cluster, node: &ClusterNode) -> String {
    let (_, info) = cluster
        .admin()
        .get("/api/v1/namespaces/kube-public/configmaps/cluster-info");
    node.write(
        "/etc/nodepki/cluster.conf",
        info["data"]["kubeconfig"].as_str().unwrap(),
    );
    format!("{{file: {{kubeConfigPath: /etc/nodepki/cluster.conf}}, tlsBootstrapToken: {TOKEN}}}")
}

/// Bootstraps the node; between two runs the test signs the pending requests by hand.
fn bootstrap(node: &ClusterNode, authorities: &Path) {
    let run = || node.nodepki(&["bootstrap", "--wait", "0s"]);
    // A worker assumes defaults if a busy API server does not respond within a run that does not wait.
    wait_until("the node has read the configuration of its cluster", || {
        let ran = run();
        ran.ended(75);
        !ran.said().contains("this worker assumes")
    });
    let drop = node.path("/var/lib/offline");
    for name in CertName::KUBEADM {
        if drop.join(format!("outbox/{name}.csr")).exists() {
            sign_by_hand(&drop, authorities, name);
        }
    }
    run().done();
}

#[test]
fn reports_ca_as_preflight_conflict_on_worker() {
    let cluster = cluster();
    let node = cluster.add_node("w1", "192.0.2.41");
    fs::create_dir_all(node.pki("")).unwrap();
    fs::copy(cluster.first().pki("ca.crt"), node.pki("ca.crt")).unwrap();
    let config = worker_configuration(&node, &by_token(cluster));
    node.write("/run/kubeadm/kubeadm-join-config.yaml", &config);
    node.write("/etc/nodepki/config.yaml", SETTINGS);
    bootstrap(&node, &cluster.first().pki(""));
    let ca = "FileAvailable--etc-kubernetes-pki-ca.crt";
    assert_eq!(preflight_conflicts(&node, &config), [KUBELET_CONF, ca]);
    assert_eq!(
        preflight_conflicts(&node, &kubeadm_join_file(&node)),
        [""; 0]
    );
}

/// The commands of `docs/joining.md` about control-plane nodes, unchanged.
#[test]
fn page_is_correct_on_second_control_plane() {
    let page = pages::section("docs/joining.md", "# Joining nodes and external etcd");
    let [join, share, ..] = &pages::blocks(&page, "sh")[..] else {
        panic!("the page has other blocks");
    };
    let (upload, download) = share.split_once('\n').unwrap();
    let cluster = &Cluster::start(Authorities::External);
    let node = cluster.add_node("cp2", "192.0.2.12");
    cluster.first().write("/etc/nodepki/config.yaml", SETTINGS);
    workers::run(cluster.first(), upload).done();

    let key_file = "/etc/nodepki/certificate-key";
    let key = fs::read_to_string(cluster.first().path(key_file)).unwrap();
    node.write_secret(key_file, &key);
    let config = join_configuration(&node, &by_token(cluster));
    node.write_secret("/etc/nodepki/join.yaml", &config);
    workers::add_programs(&node);
    let _signer = RemoteSigner::start(&node.path(workers::SOCKET), &cluster.authorities());
    let settings = SETTINGS.replace(
        "{directory: {path: /var/lib/offline}}",
        "{exec: {command: /etc/nodepki/corp-signer}}",
    );
    let settings = format!("{settings}join: {{certificateKey: {key_file}}}\n");
    node.write("/etc/nodepki/config.yaml", &settings);
    workers::run(&node, join)
        .done()
        .row_says("apiserver", "issued");
    let calls = fs::read_to_string(node.path("/var/tmp/calls")).unwrap();
    assert_eq!(
        calls.lines().last(),
        Some("kubeadm join --config /var/lib/nodepki/kubeadm-join.yaml")
    );
    workers::run(&node, download).done();
    for file in SHARED_FILES {
        let [first, own] = [cluster.first(), &node].map(|node| fs::read(node.pki(file)).unwrap());
        assert_eq!(own, first, "{file}");
    }
}

#[test]
fn serves_on_second_control_plane_without_ca_keys() {
    let cluster = &Cluster::start(Authorities::External);
    let node = cluster.add_node("cp2", "192.0.2.12");
    prepare(cluster, &node);
    assert_no_authority_key(cluster, &node);
    assert_kubeadm_accepts(cluster, &node);
    start_components(&node);
    assert_serves(cluster, &node);
    assert_client_certificates(&node);
    assert_takes_over(cluster, &node);
    assert_no_authority_key(cluster, &node);
}

/// Bootstraps the node with the settings and the JoinConfiguration; the rest comes from the cluster.
pub(crate) fn prepare(cluster: &Cluster, node: &ClusterNode) {
    cluster.first().write("/etc/nodepki/config.yaml", SETTINGS);
    prepare_beside(cluster, node);
}

/// As [`prepare`], and keeps the settings of the first node.
pub(crate) fn prepare_beside(cluster: &Cluster, node: &ClusterNode) {
    let key_file = "/etc/nodepki/certificate-key";
    drop(fs::remove_file(cluster.first().path(key_file)));
    let upload = ["certs", "upload", "--certificate-key-out", key_file];
    cluster.first().nodepki(&upload).done();
    let key = fs::read_to_string(cluster.first().path(key_file)).unwrap();
    node.write_secret(key_file, &key);
    let config = join_configuration(node, &by_token(cluster));
    node.write("/run/kubeadm/kubeadm-join-config.yaml", &config);
    let with_key = format!("{SETTINGS}join: {{certificateKey: {key_file}}}\n");
    node.write("/etc/nodepki/config.yaml", &with_key);
    bootstrap(node, &cluster.authorities());
    for file in SHARED_FILES {
        let [first, own] = [cluster.first(), node].map(|node| fs::read(node.pki(file)).unwrap());
        assert_eq!(own, first, "{file}");
    }
}

/// Asserts that the authorities' directory is invisible on the node, and that none of its files contains the private
/// number of an authority's key, plain or in base64.
fn assert_no_authority_key(cluster: &Cluster, node: &ClusterNode) {
    let seen = node.run("ls", &[cluster.authorities().to_str().unwrap()]);
    assert_eq!(seen.done().stdout, "");
    for key in AUTHORITY_KEYS {
        let pem = fs::read(cluster.authorities().join(key)).unwrap();
        let der = decoded_base64(&pem).pop().unwrap();
        // RFC 5915: SEQUENCE, version 1, an OCTET STRING of 32 bytes.
        assert_eq!(der[2..7], [2, 1, 1, 4, 32]);
        let number = &der[7..39];
        assert!(contains(&pem, number));
        let quoted = json!({"file": String::from_utf8_lossy(&pem)}).to_string();
        let named = format!("client-key-data: {}\nkind: Config\n", BASE64.encode(&pem));
        assert!(contains(quoted.as_bytes(), number) && contains(named.as_bytes(), number));
        for part in ["/etc", "/var", "/run"] {
            for (path, content) in tree(&node.path(part)) {
                // The files of etcd belong to the cluster, and are large.
                if path.starts_with(node.path("/var/lib/etcd")) {
                    continue;
                }
                assert!(
                    !contains(&content, number),
                    "{key} is in {}",
                    path.display()
                );
            }
        }
    }
}

fn contains(content: &[u8], number: &[u8]) -> bool {
    content.windows(number.len()).any(|part| part == number)
        || decoded_base64(content)
            .iter()
            .any(|inner| contains(inner, number))
}

/// Decodes every long run of base64, line by line and joined, with the line ends of files and of JSON.
fn decoded_base64(content: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(content).replace("\\n", "\n");
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=\r\n".contains(c)))
        .flat_map(|run| {
            run.lines()
                .map(str::to_owned)
                .chain([run.replace(['\r', '\n'], "")])
        })
        .filter(|run| run.len() >= 40)
        .filter_map(|run| BASE64.decode(run).ok())
        .collect()
}

/// Asserts that kubeadm's phases of `join` accept the files, and that `init` treats them as those of an external CA.
fn assert_kubeadm_accepts(cluster: &Cluster, node: &ClusterNode) {
    for discovery in [by_token(cluster), by_file(cluster, node)] {
        let config = join_configuration(node, &discovery);
        assert_eq!(preflight_conflicts(node, &config), [KUBELET_CONF]);
    }
    let config = kubeadm_join_file(node);
    assert_eq!(preflight_conflicts(node, &config), [""; 0]);

    let before = Snapshot::of(&node.path("/etc/kubernetes"));
    let phase = |name: &str| {
        let ran = node.kubeadm(
            &["join", "phase", "control-plane-prepare", name],
            Some(&config),
        );
        ran.done();
        ran
    };
    phase("certs").says("Valid certificates and keys now exist");
    phase("kubeconfig").says("External CA mode: Using user provided");
    before.unchanged(&Snapshot::of(&node.path("/etc/kubernetes")));

    let copy = tempfile::tempdir().unwrap();
    copy_tree(&node.path("/etc/kubernetes"), copy.path());
    // The only file that is exclusive to the first node.
    let first = cluster.first().path("/etc/kubernetes/super-admin.conf");
    fs::copy(first, copy.path().join("super-admin.conf")).unwrap();
    accepts_external_ca(copy.path(), &init_configuration(cluster, node));
}

/// Returns the names for `ignorePreflightErrors` of the files that kubeadm does not expect. Checks of the machine itself
/// are ignored until kubeadm reports none.
fn preflight_conflicts(node: &ClusterNode, config: &str) -> Vec<String> {
    let mut ignored = Vec::new();
    loop {
        let ignore = format!("--ignore-preflight-errors={}", ignored.join(","));
        let ran = node.kubeadm(&["join", "phase", "preflight", &ignore], Some(config));
        let lines = ran.stderr.lines();
        let failed =
            lines.filter_map(|line| line.trim().strip_prefix("[ERROR ")?.split(']').next());
        let before = ignored.len();
        ignored.extend(failed.map(str::to_owned));
        if ignored.len() == before {
            ran.done();
            ignored.retain(|name| name.contains("Available"));
            return ignored;
        }
    }
}

/// Returns the configuration with which `kubeadm join` proceeds.
fn kubeadm_join_file(node: &ClusterNode) -> String {
    fs::read_to_string(node.path("/var/lib/nodepki/kubeadm-join.yaml")).unwrap()
}

fn init_configuration(cluster: &Cluster, node: &ClusterNode) -> String {
    let admin = cluster.admin();
    let (_, kubeadm) = admin.get("/api/v1/namespaces/kube-system/configmaps/kubeadm-config");
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
         nodeRegistration: {{name: {}}}\nlocalAPIEndpoint: {{advertiseAddress: {}}}\n---\n{}",
        node.name(),
        node.address(),
        kubeadm["data"]["ClusterConfiguration"].as_str().unwrap()
    )
}

/// Starts the components as `kubeadm join` and a kubelet do.
pub(crate) fn start_components(node: &ClusterNode) {
    let config = kubeadm_join_file(node);
    let manifests = ["join", "phase", "control-plane-prepare", "control-plane"];
    node.kubeadm(&manifests, Some(&config)).done();
    thread::scope(|scope| {
        let joined = scope.spawn(|| node.kubeadm(&["join", "phase", "etcd-join"], Some(&config)));
        let manifest = node.path("/etc/kubernetes/manifests/etcd.yaml");
        // kubeadm does not write it at once; this is its last line.
        let is_complete =
            || fs::read_to_string(&manifest).is_ok_and(|text| text.ends_with("status: {}\n"));
        wait_until("kubeadm has announced the member", || {
            is_complete() || joined.is_finished()
        });
        if is_complete() {
            node.start("etcd");
        }
        joined.join().unwrap().done();
    });
    node.start("kube-apiserver");
    node.start("kube-controller-manager");
    node.start("kube-scheduler");
}

/// Asserts that etcd serves, and that the new API server accepts every credential of the node.
fn assert_serves(cluster: &Cluster, node: &ClusterNode) {
    assert_etcd_has_both(cluster, node);
    let first = format!("https://{}:6443", cluster.first().address());
    let own = format!("https://{}:6443", node.address());
    for server in [&own, &format!("https://{}:6443", node.name())] {
        let (status, ready) = node.anonymous(server).get("/readyz");
        assert_eq!((status, &ready), (200, &json!("ok")), "{server}");
    }
    for (file, name, group) in [
        ("admin.conf", "kubernetes-admin", "kubeadm:cluster-admins"),
        (
            "controller-manager.conf",
            "system:kube-controller-manager",
            "system:authenticated",
        ),
        (
            "scheduler.conf",
            "system:kube-scheduler",
            "system:authenticated",
        ),
        ("kubelet.conf", "system:node:cp2", "system:nodes"),
    ] {
        for server in [&own, &first] {
            let caller = node.caller(&format!("/etc/kubernetes/{file}")).at(server);
            let (user, groups) = who_am_i(&caller);
            assert_eq!(user, name, "{file} at {server}");
            assert!(groups.contains(&group.to_owned()), "{file}: {groups:?}");
        }
    }
    // The rights of administrators and of this node.
    let (status, namespaces) = node
        .caller("/etc/kubernetes/admin.conf")
        .at(&own)
        .get("/api/v1/namespaces");
    assert_eq!(status, 200, "{namespaces}");
    let kubelet = node.caller("/etc/kubernetes/kubelet.conf");
    let name = node.name();
    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
    assert_eq!(kubelet.post("/api/v1/nodes", &object).0, 201);
    let others = format!("/api/v1/nodes/{}", cluster.first().name());
    assert_eq!(kubelet.get(&others).0, 403);

    // The service-account keys are the same: each API server accepts tokens of the other.
    for (issuer, verifier) in [(&first, &own), (&own, &first)] {
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let request =
            json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
        let (status, token) = cluster.admin().at(issuer).post(path, &request);
        assert_eq!(status, 201, "{token}");
        let token = token["status"]["token"].as_str().unwrap();
        let (user, _) = who_am_i(&node.bearer(verifier, token));
        assert_eq!(user, "system:serviceaccount:default:default");
    }
}

/// Sends a request to an etcd server with the health-check client's certificate of a node.
pub(crate) fn post_to_etcd(node: &ClusterNode, url: &str, body: &str) -> Ran {
    let [ca, certificate, key] = ["ca.crt", "healthcheck-client.crt", "healthcheck-client.key"]
        .map(|file| format!("/etc/kubernetes/pki/etcd/{file}"));
    let mut arguments = vec!["--silent", "--show-error", "--fail", "--cacert", &ca];
    arguments.extend(["--cert", &certificate, "--key", &key, "--data", body, url]);
    node.run("curl", &arguments)
}

/// Asserts that both members vote, and that each is healthy for a client of the other node.
fn assert_etcd_has_both(cluster: &Cluster, node: &ClusterNode) {
    for (from, to) in [(cluster.first(), node), (node, cluster.first())] {
        let etcd = |path: &str, body: &str| -> Value {
            let url = format!("https://{}:2379{path}", to.address());
            let ran = post_to_etcd(from, &url, body);
            ran.done();
            serde_json::from_str(&ran.stdout).unwrap()
        };
        let linearizable = etcd("/v3/kv/range", r#"{"key": "AA=="}"#);
        assert!(linearizable["header"]["raft_term"].is_string());
        let members = etcd("/v3/cluster/member/list", "{}");
        let members = members["members"].as_array().unwrap();
        let names: Vec<_> = members.iter().map(|member| &member["name"]).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.contains(&&json!("cp1")) && names.contains(&&json!("cp2")));
        assert!(
            members
                .iter()
                .all(|member| member["isLearner"] != json!(true))
        );
    }
}

fn who_am_i(caller: &Caller<'_>) -> (String, Vec<String>) {
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let (status, review) = caller.post(path, &review);
    assert_eq!(status, 201, "{review}");
    let user = &review["status"]["userInfo"];
    let groups = user["groups"].as_array().unwrap().iter();
    let groups = groups
        .map(|group| group.as_str().unwrap().to_owned())
        .collect();
    (user["username"].as_str().unwrap().to_owned(), groups)
}

/// Asserts which client certificates the API server presents to the kubelet and to an aggregated API server.
fn assert_client_certificates(node: &ClusterNode) {
    let own = format!("https://{}:6443", node.address());
    let kubelet = node.caller("/etc/kubernetes/kubelet.conf").at(&own);
    let admin = node.caller("/etc/kubernetes/admin.conf").at(&own);

    let _kubelet = start_tls_recorder(node, "10250", "ca.crt");
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": node.address()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    let (code, answer) = kubelet.patch(&format!("/api/v1/nodes/{}/status", node.name()), &status);
    assert_eq!(code, 200, "{answer}");
    let (code, seen) = admin.get(&format!("/api/v1/nodes/{}/proxy/", node.name()));
    assert_eq!(code, 200, "{seen}");
    assert_eq!(seen, json!("CN=kube-apiserver-kubelet-client"));

    let _behind = start_tls_recorder(node, "9443", "front-proxy-ca.crt");
    let service = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "behind"},
        "spec": {"type": "ExternalName", "externalName": node.name(), "ports": [{"port": 9443}]}});
    let api = json!({"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"name": "v1.behind.example.com"},
        "spec": {"group": "behind.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true,
            "service": {"namespace": "default", "name": "behind", "port": 9443}}});
    for (path, object) in [
        ("/api/v1/namespaces/default/services", service),
        ("/apis/apiregistration.k8s.io/v1/apiservices", api),
    ] {
        let (code, made) = admin.post(path, &object);
        assert_eq!(code, 201, "{made}");
    }
    let mut seen = Value::Null;
    wait_until("the API server behind is reached", || {
        let (code, answer) = admin.get("/apis/behind.example.com/v1");
        seen = answer;
        code == 200
    });
    assert_eq!(seen, json!("CN=front-proxy-client"));
}

/// Starts a TLS server that demands a client certificate of an authority and reports its subject.
fn start_tls_recorder(node: &ClusterNode, port: &str, authority: &str) -> Server {
    let pki = |file: &str| format!("/etc/kubernetes/pki/{file}");
    node.tells_who_came(
        port,
        [
            &pki("apiserver.crt"),
            &pki("apiserver.key"),
            &pki(authority),
        ],
    )
}

/// Stops the first node's controllers and waits until those of the second one work.
fn assert_takes_over(cluster: &Cluster, node: &ClusterNode) {
    let admin = node.caller("/etc/kubernetes/admin.conf");
    for component in ["kube-controller-manager", "kube-scheduler"] {
        cluster.first().stop(component);
        let lease =
            format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{component}");
        assert_eq!(admin.delete(&lease).0, 200);
        wait_until(&format!("{component} of {} leads", node.name()), || {
            let (_, lease) = admin.get(&lease);
            let holder = lease["spec"]["holderIdentity"].as_str();
            holder.is_some_and(|holder| holder.starts_with(node.name()))
        });
    }
    let namespace =
        json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "taken-over"}});
    assert_eq!(admin.post("/api/v1/namespaces", &namespace).0, 201);
    let authority = fs::read_to_string(node.pki("ca.crt")).unwrap();
    wait_until("kube-controller-manager fills the namespace", || {
        let (_, map) = admin.get("/api/v1/namespaces/taken-over/configmaps/kube-root-ca.crt");
        let account = admin.get("/api/v1/namespaces/taken-over/serviceaccounts/default");
        map["data"]["ca.crt"] == authority.as_str() && account.0 == 200
    });
    let pods = "/api/v1/namespaces/taken-over/pods";
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "nowhere"},
        "spec": {"containers": [{"name": "one", "image": "none"}]}});
    let (status, made) = admin.post(pods, &pod);
    assert_eq!(status, 201, "{made}");
    wait_until("kube-scheduler has looked at the Pod", || {
        let (_, pod) = admin.get(&format!("{pods}/nowhere"));
        pod["status"]["conditions"][0]["type"] == "PodScheduled"
    });
}
