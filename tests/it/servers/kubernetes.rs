//! A Kubernetes API with RBAC, bootstrap tokens and cert-manager's CertificateRequests: etcd, kube-apiserver and
//! kube-controller-manager; and its users: an administrator, an approver and a signer with separate rights.
//!
//! The process has one, shared by tests with different signer names and namespaces ([`Kubernetes::corner`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::http::{Call, Client, ClientIdentity, Endpoint, Method, Url};
use nodepki::kube::kubeconfig::{Credentials, Kubeconfig};
use nodepki::kube::names::Authority;
use nodepki::x509::{
    Certificate, CertificateAuthority, Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans,
    Subject, TrustBundle,
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{Server, SharedServer, bin, free_port, own_dir};
use crate::signing::{PlainFiles, now, run, write_authorities, write_secret};
use crate::time::{eventually, wait_until};

pub(crate) const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The group of the nodes' client certificates.
pub(crate) const NODES: &str = "nodepki:nodes";
const CERTIFICATE_REQUESTS: &str = "/apis/cert-manager.io/v1/certificaterequests";

/// The cluster.
pub(crate) struct Kubernetes {
    dir: PathBuf,
    port: u16,
    corners: AtomicUsize,
    _processes: Vec<Server>,
}

/// Returns the cluster of this process.
pub(crate) fn kubernetes() -> &'static Kubernetes {
    static SHARED: SharedServer<Kubernetes> = SharedServer::new();
    SHARED.get(|| {
        let mut cluster = Kubernetes::start("kubernetes");
        let manager =
            cluster.start_manager("csrsigning,csrapproving,csrcleaner,namespace", "manager");
        cluster._processes.push(manager);
        cluster
    })
}

/// Returns a cluster of this process in which no component approves or signs.
pub(crate) fn kubernetes_without_signer() -> &'static Kubernetes {
    static SHARED: SharedServer<Kubernetes> = SharedServer::new();
    SHARED.get(|| Kubernetes::start("kubernetes-without-signer"))
}

/// Starts a cluster for one control plane of Cluster API, whose controllers read all nodes, and defines Cluster API's
/// objects. It runs until this process ends, as the shared clusters do.
pub(crate) fn kubernetes_with_cluster_api(name: &str) -> &'static Kubernetes {
    let cluster = Kubernetes::start(&format!("cluster-api-{name}"));
    super::cluster_api::define(&cluster.admin());
    Box::leak(Box::new(cluster))
}

/// Address of the API server in the network of a node of [`crate::node::INIT`], to which a relay can listen.
pub(crate) const NODE_ADDRESS: &str = "192.0.2.11";

impl Kubernetes {
    fn start(name: &str) -> Self {
        let dir = own_dir(name);
        write_authorities(&dir.join("cluster"));
        write_authorities(&dir.join("authorities"));
        fs::rename(dir.join("cluster/ca.crt"), dir.join("ca.crt")).unwrap();
        fs::rename(dir.join("cluster/ca.key"), dir.join("ca.key")).unwrap();
        let account = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        write_secret(dir.join("sa.key"), account.to_pem().as_bytes());
        fs::write(dir.join("sa.pub"), account.public_key().to_pem()).unwrap();
        let mut cluster = Kubernetes {
            port: free_port(),
            corners: AtomicUsize::new(0),
            _processes: Vec::new(),
            dir,
        };
        let (chain, key) = cluster.pair("kube-apiserver", &[], true);
        fs::write(cluster.dir.join("api.crt"), chain).unwrap();
        write_secret(cluster.dir.join("api.key"), key);
        let etcd = cluster.start_etcd();
        let api = cluster.start_api(&etcd.1);
        cluster._processes.extend([etcd.0, api]);
        cluster.furnish();
        cluster
    }

    fn start_etcd(&self) -> (Server, String) {
        let (port, peer) = (free_port(), free_port());
        let url = format!("http://127.0.0.1:{port}");
        let peers = format!("http://127.0.0.1:{peer}");
        let mut command = Command::new(bin("etcd"));
        command
            .arg("--data-dir")
            .arg(self.dir.join("etcd"))
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args([
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
            ])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--unsafe-no-fsync", "--log-level", "warn"]);
        let mut etcd = Server::start(command, &self.dir.join("etcd.log"));
        etcd.wait_for_port(port);
        (etcd, url)
    }

    fn start_api(&self, etcd: &str) -> Server {
        let mut command = Command::new(bin("kube-apiserver"));
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.dir.join(name).display());
        command
            .arg(format!("--etcd-servers={etcd}"))
            .arg(format!("--secure-port={}", self.port))
            .args([
                "--bind-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
            ])
            .arg(file("tls-cert-file", "api.crt"))
            .arg(file("tls-private-key-file", "api.key"))
            .arg(file("client-ca-file", "ca.crt"))
            .arg(file("service-account-key-file", "sa.pub"))
            .arg(file("service-account-signing-key-file", "sa.key"))
            .arg(file("cert-dir", "certs"))
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--authorization-mode=Node,RBAC",
                "--enable-bootstrap-token-auth",
            ]);
        let mut api = Server::start(command, &self.dir.join("api.log"));
        let admin = self.admin();
        api.wait_until(|| admin.reaches("/readyz?exclude=poststarthook/rbac/bootstrap-roles"));
        api.wait_until(|| admin.reaches("/readyz"));
        api
    }

    /// Starts a kube-controller-manager with some of its controllers.
    fn start_manager(&self, controllers: &str, name: &str) -> Server {
        let kubeconfig = self.dir.join(format!("{name}.conf"));
        let text = self.kubeconfig_of("system:kube-controller-manager", &[]);
        write_secret(&kubeconfig, text);
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.dir.join(name).display());
        let mut command = Command::new(bin("kube-controller-manager"));
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--controllers={controllers}"))
            .arg(file("cluster-signing-cert-file", "ca.crt"))
            .arg(file("cluster-signing-key-file", "ca.key"))
            .arg(file("cert-dir", "certs"))
            .args([
                "--bind-address=127.0.0.1",
                "--secure-port=0",
                "--leader-elect=false",
                // The roles of its controllers are bound to ServiceAccounts.
                "--use-service-account-credentials",
            ]);
        Server::start(command, &self.dir.join(format!("{name}.log")))
    }

    /// Starts kube-controller-manager's removal of old requests without its delay.
    pub(crate) fn start_cleaner(&self) -> Server {
        let name = format!("cleaner-{}", self.corner());
        let kubeconfig = self.dir.join(format!("{name}.conf"));
        write_secret(
            &kubeconfig,
            self.kubeconfig_of("cleaner", &["system:masters"]),
        );
        let mut command = Command::new(bin("csrcleaner"));
        command.arg(kubeconfig);
        Server::start(command, &self.dir.join(format!("{name}.log")))
    }

    /// Starts kube-controller-manager's garbage collector, which deletes objects with their owners.
    pub(crate) fn start_garbage_collector(&self) -> Server {
        self.start_manager("garbagecollector", "garbage-collector")
    }

    /// Starts cert-manager's controllers in a namespace, and waits for an Issuer `k8s-AUTHORITY.SUFFIX` of each authority.
    pub(crate) fn start_cert_manager(&self, namespace: &str, suffix: &str) -> Server {
        let admin = self.admin();
        let issuers = format!("/apis/cert-manager.io/v1/namespaces/{namespace}/issuers");
        let names = Authority::ALL.map(|authority| format!("k8s-{authority}.{suffix}"));
        for (authority, name) in Authority::ALL.into_iter().zip(&names) {
            let base = self.authorities().join(authority.base_name());
            let read = |extension| fs::read_to_string(base.with_extension(extension)).unwrap();
            let secret = json!({"kind": "Secret", "apiVersion": "v1", "type": "kubernetes.io/tls",
                "metadata": {"name": name}, "stringData": {"tls.crt": read("crt"), "tls.key": read("key")}});
            admin.create(&format!("/api/v1/namespaces/{namespace}/secrets"), &secret);
            let issuer = json!({"kind": "Issuer", "apiVersion": "cert-manager.io/v1",
                "metadata": {"name": name}, "spec": {"ca": {"secretName": name}}});
            admin.create(&issuers, &issuer);
        }
        let kubeconfig = self.dir.join(format!("{namespace}.conf"));
        write_secret(
            &kubeconfig,
            self.kubeconfig_of("cert-manager", &["system:masters"]),
        );
        let mut command = Command::new(bin("cert-manager-controllers"));
        command.arg(kubeconfig).arg(namespace);
        let mut started = Server::start(command, &self.dir.join(format!("{namespace}.log")));
        started.wait_until(|| {
            names.iter().all(|name| {
                let (_, issuer) = admin.get(&format!("{issuers}/{name}"));
                issuer["status"]["conditions"][0]["status"] == "True"
            })
        });
        started
    }

    /// Creates roles, bindings, the bootstrap token and cert-manager's CustomResourceDefinition.
    fn furnish(&self) {
        let admin = self.admin();
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let group = |name: &str| json!({"kind": "Group", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
        let user = |name: &str| json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
        let read = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
                          "verbs": ["get", "list", "watch"]});
        let update = |part: &str| {
            json!({"apiGroups": ["certificates.k8s.io"],
                   "resources": [format!("certificatesigningrequests/{part}")], "verbs": ["update"]})
        };
        let on_signers = |verb: &str| {
            json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": [verb],
                   "resourceNames": ["pki.example.com/*", "clusterissuers.cert-manager.io/*", "issuers.cert-manager.io/*",
                                     "kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving"]})
        };
        let for_issuers = json!({"apiGroups": ["cert-manager.io"], "verbs": ["get", "list", "update"],
                                 "resources": ["certificaterequests", "certificaterequests/status"]});
        let ask = json!({"apiGroups": ["cert-manager.io"], "verbs": ["create", "get"],
                         "resources": ["certificaterequests"]});
        for (name, rules) in [
            (
                "csr-approver",
                json!([read, update("approval"), on_signers("approve")]),
            ),
            (
                "csr-signer",
                json!([read, update("status"), on_signers("sign")]),
            ),
            ("issuer", json!([for_issuers])),
            ("certificate-requester", json!([ask])),
        ] {
            let role = json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1",
                              "metadata": {"name": name}, "rules": rules});
            admin.create(&format!("{rbac}/clusterroles"), &role);
        }
        for (name, role, subjects) in [
            (
                "nodes",
                "system:node-bootstrapper",
                json!([
                    group("system:bootstrappers"),
                    group(NODES),
                    group("system:serviceaccounts:default")
                ]),
            ),
            (
                "kubelets",
                "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
                json!([group("system:bootstrappers")]),
            ),
            ("approver", "csr-approver", json!([user("approver")])),
            ("signer", "csr-signer", json!([user("signer")])),
            ("issuer", "issuer", json!([user("issuer")])),
        ] {
            let binding = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": {"name": name}, "subjects": subjects,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}});
            admin.create(&format!("{rbac}/clusterrolebindings"), &binding);
        }
        self.new_bootstrap_token("abcdef", "0123456789abcdef", "");
        for file in ["certificaterequests.yaml", "issuers.yaml"] {
            let crd = fs::read(bin(file)).unwrap();
            let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let made = admin.send(Call::post(crds).body("application/yaml", crd));
            assert_eq!(made.0, 201, "{}", made.1);
        }
        wait_until("the cluster is furnished", || {
            admin.reaches(CERTIFICATE_REQUESTS)
                && admin.reaches("/apis/cert-manager.io/v1/issuers")
                && self.person("approver", &[]).get(CSRS).0 == 200
                && self.person("issuer", &[]).get(CERTIFICATE_REQUESTS).0 == 200
        });
    }

    /// Creates a namespace in which bootstrap tokens may request certificates.
    pub(crate) fn new_namespace(&self, name: &str) {
        let admin = self.admin();
        let namespace =
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
        admin.create("/api/v1/namespaces", &namespace);
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let binding = json!({"kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": "nodepki"},
            "subjects": [{"kind": "Group", "name": "system:bootstrappers", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "certificate-requester"}});
        admin.create(&format!("{rbac}/namespaces/{name}/rolebindings"), &binding);
        let node = self.bearer("abcdef.0123456789abcdef");
        let path = format!("/apis/cert-manager.io/v1/namespaces/{name}/certificaterequests/none");
        wait_until("the API server has read the binding", || {
            node.get(&path).0 == 404
        });
    }

    /// Creates a bootstrap token with a further group, and returns it.
    pub(crate) fn new_bootstrap_token(&self, id: &str, secret: &str, group: &str) -> String {
        let object = json!({"kind": "Secret", "apiVersion": "v1", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "stringData": {"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "auth-extra-groups": group}});
        let path = "/api/v1/namespaces/kube-system/secrets";
        self.admin().create(path, &object);
        format!("{id}.{secret}")
    }

    /// Creates a ServiceAccount in the namespace `default`, and returns a token of it.
    pub(crate) fn service_account_token(&self, name: &str) -> String {
        let admin = self.admin();
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let account =
            json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": name}});
        admin.create(accounts, &account);
        let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
                             "spec": {"expirationSeconds": 3600}});
        let made = admin.create(&format!("{accounts}/{name}/token"), &request);
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Issues a certificate of the cluster's authority, and returns it with its key.
    pub(crate) fn pair(
        &self,
        common_name: &str,
        organizations: &[&str],
        serves: bool,
    ) -> (String, String) {
        let read = |name: &str| fs::read(self.dir.join(name)).unwrap();
        let authority = CertificateAuthority::from_pem(&read("ca.crt"), &read("ca.key")).unwrap();
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile = Profile {
            subject: Subject {
                common_name: common_name.to_owned(),
                organizations: organizations.iter().map(ToString::to_string).collect(),
            },
            sans: if serves {
                Sans {
                    dns: vec!["localhost".to_owned(), "kubernetes".to_owned()],
                    ips: vec!["127.0.0.1".parse().unwrap(), NODE_ADDRESS.parse().unwrap()],
                }
            } else {
                Sans::default()
            },
            usages: if serves {
                vec![ExtendedUsage::ServerAuth]
            } else {
                vec![ExtendedUsage::ClientAuth]
            },
            key: KeyAlgorithm::EcdsaP256,
            lifetime: Duration::from_secs(24 * 60 * 60),
        };
        let issued = authority.issue(key.public_key(), &profile, now()).unwrap();
        (issued.to_pem(), key.to_pem().to_string())
    }

    /// Returns a kubeconfig with a new client certificate.
    pub(crate) fn kubeconfig_of(&self, common_name: &str, organizations: &[&str]) -> String {
        let (certificate, key) = self.pair(common_name, organizations, false);
        let authority = fs::read_to_string(self.ca_file()).unwrap();
        let credentials = Credentials {
            server: &self.url(),
            authority: &authority,
            certificate: &certificate,
            key: &key,
        };
        Kubeconfig::new("kubernetes", common_name, &credentials)
            .to_yaml()
            .to_string()
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the CA file of the API server, with which kube-controller-manager signs.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Returns the three authorities that the tests sign with.
    pub(crate) fn authorities(&self) -> PathBuf {
        self.dir.join("authorities")
    }

    /// Returns a number that is unique in this process.
    pub(crate) fn corner(&self) -> usize {
        self.corners.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn admin(&self) -> Person {
        self.person("admin", &["system:masters"])
    }

    /// Returns a user with a client certificate.
    pub(crate) fn person(&self, name: &str, groups: &[&str]) -> Person {
        let (chain, key) = self.pair(name, groups, false);
        let client = self.client().with_identity(ClientIdentity {
            chain_pem: chain.into_bytes(),
            key_pem: key.into_bytes().into(),
        });
        Person {
            client,
            token: None,
        }
    }

    /// Returns a user with a token.
    pub(crate) fn bearer(&self, token: &str) -> Person {
        Person {
            client: self.client(),
            token: Some(token.to_owned()),
        }
    }

    fn client(&self) -> Client {
        let mut endpoint = Endpoint::new(Url::parse(&self.url()).unwrap());
        endpoint.tls.ca_file = Some(self.ca_file());
        Client::new(endpoint, Rc::new(PlainFiles), now).unwrap()
    }
}

/// A user of the API.
pub(crate) struct Person {
    client: Client,
    token: Option<String>,
}

impl Person {
    /// Sends a request, and returns status and body.
    pub(crate) fn send(&self, call: Call<'_>) -> (u16, Value) {
        let call = match &self.token {
            Some(token) => call.bearer(token.clone()),
            None => call,
        };
        let response = run(self.client.send(call.limit(16 << 20))).unwrap();
        let body = response.json().unwrap_or_else(|_| json!(response.text()));
        (response.status, body)
    }

    fn reaches(&self, path: &str) -> bool {
        run(self.client.send(Call::get(path))).is_ok_and(|answer| answer.status == 200)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.send(Call::get(path))
    }

    pub(crate) fn create(&self, path: &str, object: &Value) -> Value {
        let (status, body) = self.send(Call::post(path).json(object));
        assert_eq!(status, 201, "{path}: {body}");
        body
    }

    pub(crate) fn put(&self, path: &str, object: &Value) -> (u16, Value) {
        self.send(Call::put(path).json(object))
    }

    pub(crate) fn delete(&self, path: &str) {
        let (status, body) = self.send(Call::new(Method::DELETE, path));
        assert_eq!(status, 200, "{path}: {body}");
    }

    pub(crate) fn list(&self, path: &str) -> Vec<Value> {
        // 429 while the API server applies a change of a CustomResourceDefinition.
        let (status, body) = eventually(|| match self.get(path) {
            (429, body) => Err(body),
            other => Ok(other),
        });
        assert_eq!(status, 200, "{path}: {body}");
        body["items"].as_array().unwrap().clone()
    }

    /// Approves or denies a CertificateSigningRequest.
    pub(crate) fn decide(&self, name: &str, condition: Value) {
        let path = format!("{CSRS}/{name}");
        let (_, mut object) = self.get(&path);
        add_condition(&mut object, condition);
        let (status, body) = self.put(&format!("{path}/approval"), &object);
        assert_eq!(status, 200, "{body}");
    }

    /// Changes the status of a request.
    pub(crate) fn answer(&self, path: &str, change: impl Fn(&mut Value)) {
        let (_, mut object) = self.get(path);
        change(&mut object);
        let (status, body) = self.put(&format!("{path}/status"), &object);
        assert_eq!(status, 200, "{body}");
    }
}

/// Adds a condition to the status of an object.
pub(crate) fn add_condition(object: &mut Value, condition: Value) {
    let status = object
        .as_object_mut()
        .unwrap()
        .entry("status")
        .or_insert_with(|| json!({}));
    let conditions = status
        .as_object_mut()
        .unwrap()
        .entry("conditions")
        .or_insert_with(|| json!([]));
    conditions.as_array_mut().unwrap().push(condition);
}

pub(crate) fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message})
}

/// Issues a certificate as an issuer that honours requests: names and key from the CSR, usages and lifetime from the
/// request. With `chained` it signs through an intermediate, whose certificate it appends.
pub(crate) fn sign(
    authorities: &Path,
    authority: Authority,
    request: &str,
    usages: &Value,
    lifetime: Duration,
    chained: bool,
) -> String {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateSigningRequestParams,
        ExtendedKeyUsagePurpose as Extended, IsCa, Issuer, KeyPair, KeyUsagePurpose as Usage,
    };
    let base = authorities.join(authority.base_name());
    let read = |extension| fs::read(base.with_extension(extension)).unwrap();
    let root = TrustBundle::from_pem(&read("crt")).unwrap();
    let root_key = PrivateKey::from_pem(&read("key")).unwrap();
    let root = Issuer::from_ca_cert_der(&root.first().der().into(), &root_key).unwrap();
    let csr = Csr::from_pem(&BASE64.decode(request).unwrap()).unwrap();
    let mut csr = CertificateSigningRequestParams::from_der(&csr.der().into()).unwrap();
    let params = &mut csr.params;
    params.key_usages.clear();
    params.extended_key_usages.clear();
    for usage in usages.as_array().unwrap() {
        match usage.as_str().unwrap() {
            "digital signature" => params.key_usages.push(Usage::DigitalSignature),
            "key encipherment" => params.key_usages.push(Usage::KeyEncipherment),
            "server auth" => params.extended_key_usages.push(Extended::ServerAuth),
            "client auth" => params.extended_key_usages.push(Extended::ClientAuth),
            other => panic!("{other}"),
        }
    }
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    let begin = OffsetDateTime::now_utc() - Duration::from_secs(60);
    params.not_before = begin;
    params.not_after = OffsetDateTime::now_utc() + lifetime;
    if !chained {
        return pem(csr.signed_by(&root).unwrap().der());
    }
    let key = KeyPair::generate().unwrap();
    let mut middle = CertificateParams::default();
    middle.distinguished_name.push(
        rcgen::DnType::CommonName,
        format!("{authority} intermediate"),
    );
    middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    middle.key_usages = vec![Usage::KeyCertSign, Usage::DigitalSignature];
    middle.use_authority_key_identifier_extension = true;
    middle.not_before = begin;
    middle.not_after = OffsetDateTime::now_utc() + Duration::from_secs(5 * 365 * 24 * 60 * 60);
    let middle_pem = pem(middle.signed_by(&key, &root).unwrap().der());
    let middle = Issuer::new(middle, key);
    let leaf = pem(csr.signed_by(&middle).unwrap().der());
    format!("issued for a test\n{leaf}{middle_pem}")
}

fn pem(der: &[u8]) -> String {
    Certificate::from_der(der).unwrap().to_pem()
}
