//! A cluster made by the real kubeadm: the real etcd, kube-apiserver, kube-controller-manager and kube-scheduler,
//! started with the flags of the manifests that kubeadm wrote.
//!
//! Owns: namespaces, processes, and access to the API. It contains no assertions about nodepki.
//!
//! A node ([`ClusterNode`]) has its own network, mounts and host name. `/etc`, `/var` and `/run` are directories of the
//! node ([`ClusterNode::path`]); everything else is that of this machine, so neither the programs nor this project
//! may be below one of the three. kubeadm, `nodepki --root /` and the components see the same files, at the paths of
//! production. The nodes are on one Ethernet and find the cluster's endpoint in `/etc/hosts`. They are isolated from every
//! other network.
//!
//! The tests of a process share [`cluster`] with different names of nodes, tokens and objects. A test that breaks its
//! cluster, or needs one without CA keys, starts its own with [`Cluster::start`], where a missing component or object can
//! be added. Only [`super::static_pods`] restarts a component whose manifest changes or that ends.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::text::hex;
use nodepki::x509::TrustBundle;
use serde_json::{Value, json};

use super::{Server, SharedServer, bin, own_dir};
use crate::node::{NODEPKI, Ran};
use crate::time::wait_until;

/// Name and port of the cluster.
pub(crate) const ENDPOINT: &str = "api.prod.example.com:6443";
/// The bootstrap token of the InitConfiguration, valid for a day.
pub(crate) const TOKEN: &str = "abcdef.0123456789abcdef";
/// Addresses of the first node, to which [`ENDPOINT`] resolves.
const ENDPOINT_ADDRESSES: [&str; 2] = ["192.0.2.100", "2001:db8::100"];

/// kubeadm's configuration of the cluster.
pub(crate) const INIT: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
nodeRegistration: {name: cp1, criSocket: 'unix:///run/containerd/containerd.sock'}
bootstrapTokens: [{token: abcdef.0123456789abcdef, ttl: 24h0m0s}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
encryptionAlgorithm: ECDSA-P256
controlPlaneEndpoint: api.prod.example.com:6443
apiServer: {certSANs: [192.0.2.100, '2001:db8::100']}
networking: {podSubnet: 10.244.0.0/16}
";

/// Returns settings with this block, and a signer that answers nothing: for nodes whose certificates are all there.
pub(crate) fn settings_with_idle_signer(block: &str) -> String {
    let authorities =
        "authorities: {ca: {signer: s}, etcd-ca: {signer: s}, front-proxy-ca: {signer: s}}";
    format!(
        "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
{authorities}
signers: {{s: {{exec: {{command: /bin/false}}}}}}
{block}
"
    )
}

/// Files of the authorities' private keys below `/etc/kubernetes/pki`.
pub(crate) const AUTHORITY_KEYS: [&str; 3] = ["ca.key", "etcd/ca.key", "front-proxy-ca.key"];

/// Returns the shared cluster, with CA keys on its node as kubeadm makes them.
pub(crate) fn cluster() -> &'static Cluster {
    static SHARED: SharedServer<Cluster> = SharedServer::new();
    SHARED.get(|| Cluster::start(Authorities::Internal))
}

/// Location of the private keys of the authorities.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Authorities {
    /// Below `/etc/kubernetes/pki` of the first node.
    Internal,
    /// In a directory outside of the nodes; nothing signs in the cluster.
    External,
}

/// The programs of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// kube-apiserver, kube-controller-manager and kube-scheduler as the other tests use them, and Debian's etcd.
    Usual,
    /// The same releases and etcd 3.7, built with Go 1.27, the first one with ML-DSA.
    Go1_27,
}

impl Programs {
    fn of(self, component: &str) -> PathBuf {
        match (self, component) {
            (Programs::Usual, _) => bin(component),
            (Programs::Go1_27, "etcd") => bin("etcd-3.7-go1.27"),
            (Programs::Go1_27, _) => bin(&format!("{component}-go1.27")),
        }
    }
}

/// A running control plane.
pub(crate) struct Cluster {
    dir: PathBuf,
    programs: Programs,
    ethernet: Server,
    taken: Mutex<Vec<String>>,
    first: Option<ClusterNode>,
}

impl Cluster {
    /// Starts a cluster for one test.
    pub(crate) fn start(authorities: Authorities) -> Self {
        Self::made_of(INIT, authorities)
    }

    /// Starts a cluster for one test with another configuration, whose names and addresses are those of [`INIT`].
    pub(crate) fn made_of(config: &str, authorities: Authorities) -> Self {
        Self::with_programs(Programs::Usual, config, authorities)
    }

    /// As [`Cluster::made_of`], with these programs.
    pub(crate) fn with_programs(
        programs: Programs,
        config: &str,
        authorities: Authorities,
    ) -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let dir = own_dir("cluster").join(COUNT.fetch_add(1, Ordering::SeqCst).to_string());
        fs::create_dir_all(dir.join("authorities")).unwrap();
        let mut cluster = Cluster {
            ethernet: keep(
                &dir,
                "ethernet",
                "ip link add bridge type bridge\nip link set bridge up",
            ),
            taken: Mutex::default(),
            first: None,
            programs,
            dir,
        };
        let node = cluster.add_node("cp1", "192.0.2.11");
        for address in ENDPOINT_ADDRESSES {
            done(
                node.command("ip")
                    .args(["address", "add", address, "dev", "eth0"]),
            );
        }
        node.make(config, authorities, &cluster.authorities());
        node.start("etcd");
        node.start("kube-apiserver");
        node.start("kube-controller-manager");
        node.start("kube-scheduler");
        let config = Some(config);
        node.kubeadm(&["init", "phase", "upload-config", "all"], config)
            .done();
        node.kubeadm(&["init", "phase", "bootstrap-token"], config)
            .done();
        node.kubeadm(&["init", "phase", "addon", "kube-proxy"], config)
            .done();
        node.register(&node.caller("/etc/kubernetes/super-admin.conf"));
        cluster.first = Some(node);
        let admin = cluster.admin();
        // kube-controller-manager writes it some time after the token.
        wait_until("cluster-info is signed", || {
            let (_, info) = admin.get("/api/v1/namespaces/kube-public/configmaps/cluster-info");
            info["data"]["jws-kubeconfig-abcdef"].is_string()
        });
        cluster
    }

    /// Returns the node that kubeadm has made, `cp1`.
    pub(crate) fn first(&self) -> &ClusterNode {
        self.first.as_ref().unwrap()
    }

    /// Adds an empty node.
    ///
    /// # Panics
    /// If the cluster has, or had, a node with this name or address.
    pub(crate) fn add_node(&self, name: &str, address: &str) -> ClusterNode {
        let port = self.take(name, address);
        let dir = self.dir.join(name);
        for part in ["etc/kubernetes", "var/lib", "var/tmp", "run"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        let write = |path: &str, text: String| fs::write(dir.join(path), text).unwrap();
        let [four, six] = ENDPOINT_ADDRESSES;
        let endpoint = ENDPOINT.split_once(':').unwrap().0;
        write(
            "etc/hosts",
            format!(
                "127.0.0.1 localhost\n::1 localhost\n{address} {name}\n{four} {endpoint}\n{six} {endpoint}\n"
            ),
        );
        write("etc/hostname", format!("{name}\n"));
        // Refused at once.
        write("etc/resolv.conf", "nameserver 127.0.0.1\n".to_owned());
        write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n".to_owned());
        let script = format!(
            "hostname {name}\nfor part in etc var run; do mount --bind '{}'/$part /$part; done\n\
             mount -t tmpfs none '{}'",
            dir.display(),
            self.authorities().display()
        );
        let keeper = keep(&self.dir, name, &script);
        let ethernet = self.ethernet.id().to_string();
        let node = ClusterNode {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            dir,
            programs: self.programs,
            keeper: Arc::new(keeper),
            components: Arc::default(),
        };
        let id = node.keeper.id().to_string();
        let on_ethernet = |arguments: &str| {
            let mut command = enter(&ethernet, &["ip"]);
            done(command.args(arguments.split_whitespace()));
        };
        on_ethernet(&format!(
            "link add {port} type veth peer name eth0 netns {id}"
        ));
        on_ethernet(&format!("link set {port} master bridge up"));
        for arguments in [
            format!("address add {address}/24 dev eth0"),
            format!("address add {}/64 dev eth0 nodad", node.ipv6()),
            "link set eth0 up".to_owned(),
            // kubeadm requires a default route; packets to it are rejected as unreachable immediately.
            "route add default dev lo".to_owned(),
        ] {
            done(node.command("ip").args(arguments.split_whitespace()));
        }
        node
    }

    /// Reserves a name and an address for a node, and returns its port on the Ethernet.
    fn take(&self, name: &str, address: &str) -> String {
        let mut taken = self.taken.lock().unwrap();
        for one in [name, address] {
            assert!(!taken.iter().any(|other| other == one), "{one} is taken");
            taken.push(one.to_owned());
        }
        format!("port{}", taken.len())
    }

    /// Returns a directory with `ca.crt`, `ca.key` and so on in kubeadm's layout, which no node sees. With
    /// [`Authorities::Internal`] it is empty.
    pub(crate) fn authorities(&self) -> PathBuf {
        self.dir.join("authorities")
    }

    /// Returns the value of `--discovery-token-ca-cert-hash` and of `caCertHashes`.
    pub(crate) fn ca_pin(&self) -> String {
        let ca = fs::read(self.first().path("/etc/kubernetes/pki/ca.crt")).unwrap();
        let pin = TrustBundle::from_pem(&ca)
            .unwrap()
            .first()
            .public_key()
            .sha256();
        format!("sha256:{}", hex(&pin))
    }

    /// Returns the administrator on the first node.
    pub(crate) fn admin(&self) -> Caller<'_> {
        self.first().caller("/etc/kubernetes/super-admin.conf")
    }
}

/// One machine of a cluster; a clone is the same machine.
#[derive(Clone)]
pub(crate) struct ClusterNode {
    name: String,
    address: Ipv4Addr,
    dir: PathBuf,
    programs: Programs,
    keeper: Arc<Server>,
    components: Arc<Mutex<Vec<(String, Server)>>>,
}

impl ClusterNode {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// IPv6 address: `2001:db8::11` if the IPv4 address ends in 11.
    pub(crate) fn ipv6(&self) -> String {
        format!("2001:db8::{}", self.address.octets()[3])
    }

    /// Returns the path on this machine of a path below `/etc`, `/var` or `/run` of the node.
    pub(crate) fn path(&self, on_node: &str) -> PathBuf {
        self.dir.join(on_node.trim_start_matches('/'))
    }

    /// Returns the root of the node's own files; [`ClusterNode::path`] of `/`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a file below `/etc/kubernetes/pki`.
    pub(crate) fn pki(&self, file: &str) -> PathBuf {
        self.path("/etc/kubernetes/pki").join(file)
    }

    pub(crate) fn write(&self, on_node: &str, text: &str) {
        let path = self.path(on_node);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// As [`ClusterNode::write`], with mode 0600.
    pub(crate) fn write_secret(&self, on_node: &str, text: &str) {
        self.write(on_node, text);
        fs::set_permissions(self.path(on_node), Permissions::from_mode(0o600)).unwrap();
    }

    /// Returns a command for a program on the node.
    pub(crate) fn command(&self, program: &str) -> Command {
        enter(&self.keeper.id().to_string(), &[program])
    }

    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        self.command(program)
            .args(arguments)
            .output()
            .unwrap()
            .into()
    }

    /// Returns the real kubeadm on the node, with the text `config` as `--config`.
    pub(crate) fn kubeadm(&self, arguments: &[&str], config: Option<&str>) -> Ran {
        let kubeadm = crate::kubeadm::binary();
        let mut command = self.command(kubeadm.to_str().unwrap());
        command.args(arguments);
        let Some(config) = config else {
            return command.output().unwrap().into();
        };
        let mut file = tempfile::NamedTempFile::new_in(self.path("/var/tmp")).unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let name = file.path().file_name().unwrap().to_str().unwrap();
        command.arg("--config").arg(format!("/var/tmp/{name}"));
        command.output().unwrap().into()
    }

    /// Runs `nodepki --root / ARGUMENTS` on the node.
    pub(crate) fn nodepki(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(NODEPKI);
        command.args(["--root", "/"]).args(arguments);
        command.output().unwrap().into()
    }

    /// Starts a component by its manifest in `/etc/kubernetes/manifests`, and waits until it is ready.
    pub(crate) fn start(&self, component: &str) {
        self.start_with(component, &[]);
    }

    /// As [`ClusterNode::start`], with flags after those of the manifest.
    pub(crate) fn start_with(&self, component: &str, flags: &[&str]) {
        let manifest = format!("/etc/kubernetes/manifests/{component}.yaml");
        let manifest = fs::read_to_string(self.path(&manifest)).unwrap();
        let mut server = self.launch(component, &manifest, flags);
        server.wait_until(|| self.is_ready(component));
        self.components
            .lock()
            .unwrap()
            .push((component.to_owned(), server));
    }

    /// Starts a component by a manifest without waiting. The caller ends it.
    pub(crate) fn launch(&self, component: &str, manifest: &str, flags: &[&str]) -> Server {
        let mut more = flags.to_vec();
        if component == "etcd" {
            more.extend(["--unsafe-no-fsync", "--log-level", "warn"]);
        }
        self.launch_program(&self.programs.of(component), component, manifest, &more)
    }

    /// As [`ClusterNode::launch`], with a program and the name of its log.
    pub(crate) fn launch_program(
        &self,
        program: &Path,
        log: &str,
        manifest: &str,
        flags: &[&str],
    ) -> Server {
        let mut command = self.command(program.to_str().unwrap());
        command.args(flags_of(manifest)).args(flags);
        Server::start(command, &self.dir.join(format!("{log}.log")))
    }

    /// Returns whether a component is ready.
    pub(crate) fn is_ready(&self, component: &str) -> bool {
        let health = match component {
            "etcd" => "http://127.0.0.1:2381/readyz".to_owned(),
            // It responds to anonymous clients once its roles exist.
            "kube-apiserver" => format!("https://{}:6443/readyz", self.address),
            "kube-controller-manager" => "https://127.0.0.1:10257/healthz".to_owned(),
            "kube-scheduler" => "https://127.0.0.1:10259/readyz".to_owned(),
            other => panic!("no component is called {other}"),
        };
        let mut curl = self.command("curl");
        // The tests verify its certificate.
        curl.args([
            "--silent",
            "--fail",
            "--insecure",
            "--max-time",
            "10",
            &health,
        ]);
        curl.output().unwrap().status.success()
    }

    /// Ends a component.
    pub(crate) fn stop(&self, component: &str) {
        let mut components = self.components.lock().unwrap();
        components.retain(|(name, _)| name != component);
    }

    /// Takes out the running components; the caller ends them.
    pub(super) fn hand_over(&self) -> Vec<(String, Server)> {
        std::mem::take(&mut *self.components.lock().unwrap())
    }

    /// Starts a TLS server with this certificate and key, which requires a client certificate of this authority and
    /// responds with its subject.
    pub(crate) fn tells_who_came(&self, port: &str, files: [&str; 3]) -> Server {
        let mut python = self.command("python3");
        python.args(["-c", TELLS_WHO_CAME, port]).args(files);
        let mut server = Server::start(python, &self.dir.join(format!("{port}.log")));
        let probe = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
        server.wait_until(|| self.run("bash", &["-c", &probe]).code == Some(0));
        server
    }

    /// Creates what the node's kubelet would: the Node, and the Pod of etcd, by which kubeadm finds the members.
    pub(crate) fn register(&self, admin: &Caller<'_>) {
        let name = &self.name;
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
        let url = format!("https://{}:2379", self.address);
        let etcd = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": format!("etcd-{name}"),
                "labels": {"component": "etcd", "tier": "control-plane"},
                "annotations": {"kubernetes.io/config.mirror": name.as_str(),
                    "kubeadm.kubernetes.io/etcd.advertise-client-urls": url}},
            "spec": {"nodeName": name, "hostNetwork": true, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "etcd", "image": "registry.k8s.io/etcd"}]}});
        for (path, object) in [
            ("/api/v1/nodes", node),
            ("/api/v1/namespaces/kube-system/pods", etcd),
        ] {
            let (status, made) = admin.post(path, &object);
            assert_eq!(status, 201, "{made}");
        }
    }

    /// Returns the user of the current context of a kubeconfig on this node.
    pub(crate) fn caller(&self, kubeconfig: &str) -> Caller<'_> {
        let text = fs::read_to_string(self.path(kubeconfig)).unwrap();
        let current = Kubeconfig::parse(&text).unwrap().current().unwrap();
        let files = tempfile::tempdir_in(self.path("/var/tmp")).unwrap();
        let mut arguments = Vec::new();
        let parts = [
            ("--cacert", current.authority.as_deref()),
            ("--cert", current.certificate.as_deref()),
            ("--key", current.key.as_ref().map(|key| key.as_slice())),
        ];
        for (option, content) in parts {
            let Some(content) = content else { continue };
            let file = files.path().join(&option[2..]);
            fs::write(&file, content).unwrap();
            let on_node = Path::new("/").join(file.strip_prefix(&self.dir).unwrap());
            arguments.extend([option.to_owned(), on_node.display().to_string()]);
        }
        Caller {
            node: self,
            server: current.server.unwrap(),
            arguments,
            _files: Some(files),
        }
    }

    /// Returns the user of a token at `server`; TLS is verified by this node's `ca.crt`.
    pub(crate) fn bearer(&self, server: &str, token: &str) -> Caller<'_> {
        let mut caller = self.anonymous(server);
        let header = format!("Authorization: Bearer {token}");
        caller.arguments.extend(["--header".to_owned(), header]);
        caller
    }

    /// Returns an anonymous user at `server`; TLS is verified by this node's `ca.crt`.
    pub(crate) fn anonymous(&self, server: &str) -> Caller<'_> {
        let authority = ["--cacert", "/etc/kubernetes/pki/ca.crt"];
        Caller {
            node: self,
            server: server.to_owned(),
            arguments: authority.map(str::to_owned).to_vec(),
            _files: None,
        }
    }

    /// Runs kubeadm on the first node.
    fn make(&self, config: &str, authorities: Authorities, outside: &Path) {
        let phases: [&[&str]; 4] = [
            &["certs", "all"],
            &["kubeconfig", "all"],
            &["control-plane", "all"],
            &["etcd", "local"],
        ];
        for phase in phases {
            // The manifests depend on whether the CA keys exist.
            if authorities == Authorities::External && phase == ["control-plane", "all"] {
                self.give_up_keys(outside);
            }
            self.kubeadm(&[&["init", "phase"], phase].concat(), Some(config))
                .done();
        }
    }

    fn give_up_keys(&self, outside: &Path) {
        for key in AUTHORITY_KEYS {
            let here = self.path("/etc/kubernetes/pki").join(key);
            let there = outside.join(key);
            fs::create_dir_all(there.parent().unwrap()).unwrap();
            fs::rename(&here, &there).unwrap();
            fs::copy(here.with_extension("crt"), there.with_extension("crt")).unwrap();
        }
    }
}

/// Responds to every request with the name in the client certificate. The API server keeps unused connections open, so
/// one thread is not enough.
const TELLS_WHO_CAME: &str = r#"
import http.server, ssl, sys

port, certificate, key, authority = sys.argv[1:]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        subject = dict(pair for name in self.connection.getpeercert()["subject"] for pair in name)
        body = f"CN={subject['commonName']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
context.load_verify_locations(authority)
context.verify_mode = ssl.CERT_REQUIRED
server = http.server.ThreadingHTTPServer(("", int(port)), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
"#;

/// A user of the API: curl on a node.
pub(crate) struct Caller<'a> {
    node: &'a ClusterNode,
    server: String,
    arguments: Vec<String>,
    _files: Option<tempfile::TempDir>,
}

impl Caller<'_> {
    /// Returns the same user at another server.
    pub(crate) fn at(mut self, server: &str) -> Self {
        server.clone_into(&mut self.server);
        self
    }

    /// Adds arguments of curl.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        let more = arguments.iter().map(|argument| (*argument).to_owned());
        self.arguments.extend(more);
        self
    }

    /// Sends a request, and returns status and body: a string if it is not JSON. Without a response the status is 0, and
    /// the body is curl's message.
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut curl = self.node.command("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--request",
            method,
        ])
        .args(["--write-out", "\n%{http_code}", "--data-binary", "@-"])
        .args(["--header", &format!("Content-Type: {kind}")])
        .args(&self.arguments)
        .arg(format!("{}{path}", self.server));
        let body = body.map(Value::to_string).unwrap_or_default();
        let output = fed(curl, &body);
        if !output.status.success() {
            return (0, String::from_utf8_lossy(&output.stderr).into());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let (body, status) = text.rsplit_once('\n').unwrap();
        let body = serde_json::from_str(body).unwrap_or_else(|_| body.into());
        (status.parse().unwrap(), body)
    }

    /// Creates the same object `count` times in one process, 32 at a time. Each must be created; as client-go does, a request
    /// is repeated if the API server has no time for it.
    pub(crate) fn flood(&self, path: &str, object: &Value, count: usize) {
        let mut curl = self.node.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "600"])
            .args(["--parallel", "--parallel-max", "32", "--retry", "5"])
            .args(["--request", "POST", "--data-binary", "@-"])
            .args(["--header", "Content-Type: application/json"])
            .args(&self.arguments)
            // A fragment is not sent: curl expands the range to as many equal requests.
            .args(["--output", "/dev/null"])
            .arg(format!("{}{path}#[1-{count}]", self.server));
        let output = fed(curl, &object.to_string());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    /// Creates objects in one process, 32 at a time, each with the headers beside it. Each must be created.
    pub(crate) fn create_all(&self, path: &str, objects: &[(Value, Vec<String>)]) {
        let quoted = |text: &str| {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{escaped}\"")
        };
        let mut config = String::from("parallel\nparallel-max = 32\n");
        for (object, headers) in objects {
            for pair in self.arguments.chunks(2) {
                config += &format!("{} = {}\n", &pair[0][2..], quoted(&pair[1]));
            }
            for header in headers {
                config += &format!("header = {}\n", quoted(header));
            }
            let fields = [
                ("url", format!("{}{path}", self.server)),
                ("header", "Content-Type: application/json".to_owned()),
                ("data-binary", object.to_string()),
                ("output", "/dev/null".to_owned()),
            ];
            for (name, value) in fields {
                config += &format!("{name} = {}\n", quoted(&value));
            }
            config += "silent\nshow-error\nfail\nnext\n";
        }
        let mut curl = self.node.command("curl");
        curl.args(["--config", "-"]);
        let output = fed(curl, config.trim_end_matches("next\n"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, object: &Value) -> (u16, Value) {
        self.send("POST", path, Some(object))
    }

    pub(crate) fn put(&self, path: &str, object: &Value) -> (u16, Value) {
        self.send("PUT", path, Some(object))
    }

    /// Sends a merge patch.
    pub(crate) fn patch(&self, path: &str, change: &Value) -> (u16, Value) {
        self.send("PATCH", path, Some(change))
    }

    pub(crate) fn delete(&self, path: &str) -> (u16, Value) {
        self.send("DELETE", path, None)
    }
}

/// Returns the arguments in a manifest. etcd 3.5 has longer names for two of the flags.
fn flags_of(manifest: &str) -> Vec<String> {
    let lines = manifest
        .lines()
        .skip_while(|line| line.trim() != "- command:");
    lines
        .skip(2)
        .map_while(|line| line.strip_prefix("    - "))
        .map(|flag| match flag.split_once('=') {
            Some(("--feature-gates", "InitialCorruptCheck=true")) => {
                "--experimental-initial-corrupt-check=true".to_owned()
            }
            Some(("--watch-progress-notify-interval", interval)) => {
                format!("--experimental-watch-progress-notify-interval={interval}")
            }
            _ => flag.to_owned(),
        })
        .collect()
}

/// Starts a process that keeps namespaces of its own, in which `script` has run.
pub(crate) fn keep(dir: &Path, name: &str, script: &str) -> Server {
    let mut unshare = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    let ready = dir.join(format!("{name}.ready"));
    unshare
        .args([
            "--mount",
            "--net",
            "--uts",
            "--propagation",
            "private",
            "--",
        ])
        .args(["bash", "-euc"])
        // The descriptor was opened before the mounts.
        .arg(format!(
            "exec 3>>\"$0\"\nip link set lo up\n{script}\necho yes >&3\nexec sleep infinity"
        ))
        .arg(&ready);
    let mut keeper = Server::start(unshare, &dir.join(format!("{name}.log")));
    keeper.wait_until(|| fs::read(&ready).is_ok_and(|said| !said.is_empty()));
    keeper
}

/// Returns a command in the namespaces of a process.
pub(crate) fn enter(process: &str, command: &[&str]) -> Command {
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["--target", process, "--mount", "--net", "--uts"]);
    if !nix::unistd::geteuid().is_root() {
        nsenter.args(["--user", "--preserve-credentials"]);
    }
    nsenter.arg("--").args(command).current_dir("/");
    nsenter
}

fn fed(mut command: Command, input: &str) -> Output {
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // A process that has ended has printed the reason.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn done(command: &mut Command) {
    Ran::from(command.output().unwrap()).done();
}

#[test]
fn serves_cluster_that_kubeadm_created() {
    let cluster = cluster();
    let admin = cluster.admin();
    let ready = admin.get("/readyz");
    assert_eq!(ready, (200, "ok".into()));

    let server = format!("https://{ENDPOINT}");
    let anonymous = cluster.first().anonymous(&server);
    let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    let (status, info) = anonymous.get(path);
    assert_eq!(status, 200, "{info}");
    let jws = info["data"]["jws-kubeconfig-abcdef"].as_str().unwrap();
    assert!(jws.contains(".."), "{jws}");

    let joiner = cluster
        .first()
        .bearer("https://[2001:db8::100]:6443", TOKEN);
    for name in ["kubeadm-config", "kube-proxy", "kubelet-config"] {
        let (status, map) =
            joiner.get(&format!("/api/v1/namespaces/kube-system/configmaps/{name}"));
        assert_eq!(status, 200, "{name}: {map}");
    }
    assert!(cluster.ca_pin().starts_with("sha256:"));
}
