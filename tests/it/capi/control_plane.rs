//! A control plane that Cluster API's controllers manage, with a machine for each Machine that they create.
//!
//! The management cluster is also the workload cluster. A machine is a directory in which the real cloud-init runs the
//! machine's user data, `nodepki bootstrap` issues the certificates, and a real etcd runs with the flags of kubeadm's
//! manifest. In place of kube-apiserver, `openssl s_server` presents its certificate. Static pods and the Node are objects
//! without a kubelet; the controllers reach the two servers by the port forwarding of the API server.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::http::Call;
use nodepki::kube::names::Authority;
use nodepki::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
};
use serde_json::{Value, json};

use super::Management;
use crate::cloud_init::machine::Machine;
use crate::cloud_init::{example, parsed};
use crate::node::{NODEPKI, Ran, copy_authorities};
use crate::servers::cluster_api::{Controllers, INFRASTRUCTURE};
use crate::servers::kubernetes::kubernetes_with_cluster_api;
use crate::servers::{Server, bin, free_port};
use crate::signing::now;
use crate::time::within;

const CORE: &str = "/apis/cluster.x-k8s.io/v1beta2";
const BOOTSTRAP: &str = "/apis/bootstrap.cluster.x-k8s.io/v1beta2";
const CONTROL_PLANE: &str = "/apis/controlplane.cluster.x-k8s.io/v1beta2";
const PODS: &str = "/api/v1/namespaces/kube-system/pods";
const COMPONENTS: [&str; 4] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];

pub(super) struct ControlPlane {
    pub(super) management: Management,
    controllers: Controllers,
    machines: BTreeMap<String, ControlPlaneMachine>,
    /// The ClusterConfiguration that Cluster API gives to the first machine.
    cluster_configuration: String,
    /// Lifetime of the certificate that a new machine presents instead of `apiserver`.
    pub(super) first_lifetime: Option<Duration>,
}

pub(super) struct ControlPlaneMachine {
    machine: Machine,
    _etcd: Server,
    etcd_port: u16,
    peer_url: String,
    api_server: Option<Server>,
    pub(super) api_server_port: u16,
}

impl ControlPlane {
    /// Creates the Secrets with `capi secrets --apply`, and the objects of `cloud-init/cluster-api.yaml` with this number
    /// of replicas and with other changes.
    /// `name` is a part of a directory's name, and unique.
    pub(super) fn start(
        name: &str,
        secrets: &[&str],
        replicas: usize,
        change: impl Fn(&mut Value),
    ) -> Self {
        let cluster = kubernetes_with_cluster_api(name);
        let management = Management::in_cluster(cluster);
        // The kubeconfig that nodepki creates is for the API server of this cluster.
        let ca = management.node.ca();
        for extension in ["crt", "key"] {
            let own = cluster.ca_file().with_extension(extension);
            fs::copy(own, ca.join("ca").with_extension(extension)).unwrap();
        }
        // Cluster API would create a pair that this API server does not publish, which a joining node refuses.
        let account = |file: &str| fs::read_to_string(cluster.ca_file().with_file_name(file));
        management.make(
            "sa",
            json!({"tls.crt": account("sa.pub").unwrap(), "tls.key": account("sa.key").unwrap()}),
            json!({"labels": {"cluster.x-k8s.io/cluster-name": "prod"}}),
        );
        let plane = ControlPlane {
            controllers: Controllers::start(
                &management.kubeconfig(),
                &management.node.outside("controllers.log"),
            ),
            management,
            machines: BTreeMap::new(),
            cluster_configuration: String::new(),
            first_lifetime: None,
        };
        plane.apply_secrets(secrets).done();
        plane.create_objects(replicas, change);
        plane
    }

    /// Runs `capi secrets --apply` with the local signer.
    pub(super) fn apply_secrets(&self, more: &[&str]) -> Ran {
        let server = self.management.cluster.url();
        let endpoint = server.strip_prefix("https://").unwrap();
        let mut command = self
            .management
            .command("secrets", &["--clock-wait", "0s", "--endpoint", endpoint]);
        command
            .arg("--signer")
            .arg(format!("local:{}", self.management.node.ca().display()))
            .args(["--apply", "--kubeconfig"])
            .arg(self.management.kubeconfig())
            .args(more);
        Ran::of(&mut command)
    }

    fn create_objects(&self, replicas: usize, change: impl Fn(&mut Value)) {
        let namespace = &self.management.namespace;
        let admin = self.management.cluster.admin();
        let binding = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": format!("cluster-admins-{namespace}")},
            "subjects": [{"kind": "Group", "name": "kubeadm:cluster-admins", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
        admin.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            &binding,
        );
        let infrastructure = |kind: &str, spec: Value| {
            json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": kind,
                "metadata": {"name": "prod"}, "spec": spec, "status": {"initialization": {"provisioned": true}}})
        };
        let endpoint = json!({"host": "127.0.0.1", "port": self.management.cluster.port()});
        admin.create(
            &self.objects(INFRASTRUCTURE, "testclusters"),
            &infrastructure("TestCluster", json!({"controlPlaneEndpoint": endpoint})),
        );
        admin.create(
            &self.objects(INFRASTRUCTURE, "testmachinetemplates"),
            &infrastructure(
                "TestMachineTemplate",
                json!({"template": {"spec": {"size": "small"}}}),
            ),
        );
        let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "prod"},
            "spec": {
                "controlPlaneEndpoint": endpoint,
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "prod"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestCluster", "name": "prod"}}});
        admin.create(&self.objects(CORE, "clusters"), &cluster);
        for mut object in parsed(&example("cluster-api.yaml")) {
            object["metadata"]["namespace"] = json!(namespace);
            if object["kind"] == "Secret" {
                admin.create(&self.management.path(), &object);
                continue;
            }
            let spec = &mut object["spec"];
            spec["replicas"] = json!(replicas);
            let infrastructure = &mut spec["machineTemplate"]["spec"]["infrastructureRef"];
            infrastructure["kind"] = json!("TestMachineTemplate");
            infrastructure["name"] = json!("prod");
            // Defaults of Cluster API's webhook, which does not run here.
            spec["rollout"]["strategy"] =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}});
            spec["kubeadmConfigSpec"]["format"] = json!("cloud-config");
            change(spec);
            admin.create(
                &self.objects(CONTROL_PLANE, "kubeadmcontrolplanes"),
                &object,
            );
        }
    }

    fn objects(&self, group: &str, plural: &str) -> String {
        format!("{group}/namespaces/{}/{plural}", self.management.namespace)
    }

    fn get(&self, path: &str) -> Value {
        let (status, object) = self.management.cluster.admin().get(path);
        assert_eq!(status, 200, "{path}: {object}");
        object
    }

    /// Changes an object, again if another client changed it at the same time.
    pub(super) fn update(&self, path: &str, change: impl Fn(&mut Value)) {
        let admin = self.management.cluster.admin();
        loop {
            let mut object = self.get(path.trim_end_matches("/status"));
            change(&mut object);
            match admin.put(path, &object) {
                (200, _) => return,
                (409, _) => {}
                (status, body) => panic!("{path}: {status} {body}"),
            }
        }
    }

    /// Returns the KubeadmControlPlane.
    pub(super) fn object(&self) -> Value {
        let path = self.objects(CONTROL_PLANE, "kubeadmcontrolplanes");
        self.get(&format!("{path}/prod"))
    }

    /// Changes the KubeadmControlPlane.
    pub(super) fn edit(&self, change: impl Fn(&mut Value)) {
        let path = self.objects(CONTROL_PLANE, "kubeadmcontrolplanes");
        self.update(&format!("{path}/prod"), change);
    }

    /// Returns all Machines.
    pub(super) fn machines(&self) -> Vec<Value> {
        let admin = self.management.cluster.admin();
        admin.list(&self.objects(CORE, "machines"))
    }

    /// Returns the KubeadmConfigs.
    pub(super) fn kubeadm_configs(&self) -> Vec<Value> {
        let admin = self.management.cluster.admin();
        admin.list(&self.objects(BOOTSTRAP, "kubeadmconfigs"))
    }

    /// Returns the status of a condition of the KubeadmControlPlane.
    pub(super) fn condition(&self, kind: &str) -> String {
        let object = self.object();
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition["type"] == kind);
        let status = found.and_then(|condition| condition["status"].as_str());
        status.unwrap_or_default().to_owned()
    }

    /// Boots machines for Machines that have user data, until `done` is true.
    #[track_caller]
    pub(super) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let happened = within(Duration::from_secs(600), || {
            self.provision();
            done(self).then_some(()).ok_or(())
        });
        assert!(
            happened.is_ok(),
            "{what} did not happen:\n{:#}\n{}",
            self.object()["status"],
            self.controllers.said()
        );
    }

    /// Acts as infrastructure provider: boots a machine for each Machine that has user data.
    fn provision(&mut self) {
        for machine in self.machines() {
            let name = machine["metadata"]["name"].as_str().unwrap().to_owned();
            let secret = machine["spec"]["bootstrap"]["dataSecretName"].as_str();
            let Some(secret) = secret.filter(|_| !self.machines.contains_key(&name)) else {
                continue;
            };
            let secret = self.get(&format!("{}/{secret}", self.management.path()));
            let data = BASE64.decode(secret["data"]["value"].as_str().unwrap());
            let user_data = String::from_utf8(data.unwrap()).unwrap();
            let booted = self.boot(&name, &user_data);
            self.machines.insert(name.clone(), booted);
            self.register(&name);
        }
    }

    fn boot(&mut self, name: &str, user_data: &str) -> ControlPlaneMachine {
        let machine = Machine::new();
        machine.write(
            "var/lib/cloud/seed/nocloud/meta-data",
            &format!("instance-id: {name}\nlocal-hostname: {name}\n"),
        );
        // A machine in a directory has no default route, which would determine its address.
        machine.user_data(&user_data.replace(
            "localAPIEndpoint: {}",
            "localAPIEndpoint: {advertiseAddress: 192.0.2.11}",
        ));
        machine.boot().is("done");
        // The signer of the example does not run here.
        fs::remove_dir_all(machine.path("etc/nodepki")).unwrap();
        let is_first = self.machines.is_empty();
        let file = if is_first {
            "kubeadm.yaml"
        } else {
            "kubeadm-join-config.yaml"
        };
        let mut configuration = machine.read(&format!("run.last/kubeadm/{file}"));
        if is_first {
            let documents = configuration.split("---\n");
            let cluster = documents.filter(|text| text.contains("kind: ClusterConfiguration"));
            self.cluster_configuration = cluster.collect();
            self.publish_cluster_configuration();
        } else {
            // nodepki would read it from the cluster, where cluster-info is not signed.
            configuration += &format!("---\n{}", self.cluster_configuration);
        }
        machine.write("kubeadm.yaml", &configuration);
        let authorities = machine.path("authorities");
        copy_authorities(Authority::ALL, &self.management.node.ca(), &authorities);
        Ran::of(
            Command::new(NODEPKI)
                .arg("--root")
                .arg(machine.root())
                .args(["bootstrap", "--clock-wait", "0s", "--kubeadm-config"])
                .arg(machine.path("kubeadm.yaml"))
                .arg("--signer")
                .arg(format!("local:{}", authorities.display())),
        )
        .done();
        let (etcd_port, api_server_port) = (free_port(), free_port());
        let peer_url = format!("https://127.0.0.1:{}", free_port());
        let mut etcd = self.start_etcd(name, &machine, etcd_port, &peer_url);
        etcd.wait_for_port(etcd_port);
        let mut booted = ControlPlaneMachine {
            api_server: None,
            machine,
            _etcd: etcd,
            etcd_port,
            peer_url,
            api_server_port,
        };
        match self.first_lifetime {
            Some(lifetime) => {
                let authority = self.management.node.authority(Authority::Ca);
                booted.present_new(&authority, "kube-apiserver", lifetime);
            }
            None => booted.present_own(),
        }
        booted
    }

    /// Starts a member with the flags of kubeadm's manifest (`getEtcdCommand` in `cmd/kubeadm/app/phases/etcd`), and the
    /// `extraArgs` of the ClusterConfiguration.
    fn start_etcd(&self, name: &str, machine: &Machine, port: u16, peer_url: &str) -> Server {
        let members = self.machines.iter();
        let mut members: Vec<String> = members
            .map(|(name, machine)| format!("{name}={}", machine.peer_url))
            .collect();
        members.push(format!("{name}={peer_url}"));
        let state = match self.machines.values().next() {
            Some(member) => {
                member.etcdctl(&["member", "add", name, &format!("--peer-urls={peer_url}")]);
                "existing"
            }
            None => "new",
        };
        let pki = |file: &str| machine.path("etc/kubernetes/pki/etcd").join(file);
        let paths = [
            ("cert-file", pki("server.crt")),
            ("key-file", pki("server.key")),
            ("trusted-ca-file", pki("ca.crt")),
            ("peer-cert-file", pki("peer.crt")),
            ("peer-key-file", pki("peer.key")),
            ("peer-trusted-ca-file", pki("ca.crt")),
            ("data-dir", machine.path("var/lib/etcd")),
        ];
        let mut flags: BTreeMap<String, String> = paths
            .into_iter()
            .map(|(flag, path)| (flag.to_owned(), path.display().to_string()))
            .collect();
        let configuration = parsed(&self.cluster_configuration).remove(0);
        let extra = configuration["etcd"]["local"]["extraArgs"].as_array();
        for argument in extra.into_iter().flatten() {
            let value = argument["value"].as_str().unwrap();
            let value = match value.strip_prefix('/') {
                Some(path) => machine.path(path).display().to_string(),
                None => value.to_owned(),
            };
            flags.insert(argument["name"].as_str().unwrap().to_owned(), value);
        }
        let url = format!("https://127.0.0.1:{port}");
        let mut command = Command::new(bin("etcd-3.7"));
        command
            .args(
                flags
                    .iter()
                    .map(|(flag, value)| format!("--{flag}={value}")),
            )
            .args(["--client-cert-auth=true", "--peer-client-cert-auth=true"])
            .args(["--unsafe-no-fsync", "--log-level=warn"])
            .args([
                format!("--name={name}"),
                format!("--initial-cluster={}", members.join(",")),
                format!("--initial-cluster-state={state}"),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
            ]);
        Server::start(command, &machine.path("etcd.log"))
    }

    /// Creates what kubeadm uploads, by which KubeadmControlPlane recognizes an initialized cluster.
    fn publish_cluster_configuration(&self) {
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "kubeadm-config"},
            "data": {"ClusterConfiguration": self.cluster_configuration}});
        let call = Call::post("/api/v1/namespaces/kube-system/configmaps");
        let (status, body) = self.management.cluster.admin().send(call.json(&object));
        // The tests of a process share the cluster.
        assert!(status == 201 || status == 409, "{body}");
    }

    /// Creates the Node and its static pods, and reports the machine as provisioned.
    fn register(&self, name: &str) {
        let machine = self.machine(name);
        let admin = self.management.cluster.admin();
        let conditions = [("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False")]
            .map(|(kind, status)| json!({"type": kind, "status": status, "reason": "Kubelet", "message": ""}));
        let node = json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name, "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/hostname": name}},
            "spec": {"providerID": format!("test:///{name}"),
                "taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "conditions": conditions,
                "nodeInfo": {"kubeletVersion": "v1.37.2", "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "",
                    "osImage": "", "containerRuntimeVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""},
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.controllers.kubelet_port}}}});
        admin.create("/api/v1/nodes", &node);
        for component in COMPONENTS {
            let pod = format!("{component}-{name}");
            let object = json!({"kind": "Pod", "apiVersion": "v1",
                "metadata": {"name": pod, "labels": {"tier": "control-plane", "component": component},
                    "annotations": {
                        "kubernetes.io/config.mirror": "test",
                        "test/forward-2379": format!("127.0.0.1:{}", machine.etcd_port),
                        "test/forward-6443": format!("127.0.0.1:{}", machine.api_server_port)}},
                "spec": {"nodeName": name, "containers": [{"name": component, "image": component}]}});
            admin.create(PODS, &object);
            self.update(&format!("{PODS}/{pod}/status"), |pod| {
                pod["status"] =
                    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
            });
        }
        let path = self.objects(INFRASTRUCTURE, "testmachines");
        self.update(&format!("{path}/{name}"), |machine| {
            machine["spec"]["providerID"] = json!(format!("test:///{name}"));
            machine["status"] = json!({"initialization": {"provisioned": true},
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]});
        });
    }

    pub(super) fn machine(&self, name: &str) -> &ControlPlaneMachine {
        &self.machines[name]
    }

    pub(super) fn machine_mut(&mut self, name: &str) -> &mut ControlPlaneMachine {
        self.machines.get_mut(name).unwrap()
    }

    /// Changes a Machine.
    pub(super) fn edit_machine(&self, name: &str, change: impl Fn(&mut Value)) {
        let path = self.objects(CORE, "machines");
        self.update(&format!("{path}/{name}"), change);
    }

    pub(super) fn machine_names(&self) -> Vec<String> {
        self.machines.keys().cloned().collect()
    }
}

impl ControlPlaneMachine {
    pub(super) fn pki(&self, file: &str) -> PathBuf {
        self.machine.path("etc/kubernetes/pki").join(file)
    }

    pub(super) fn client_url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.etcd_port)
    }

    pub(super) fn peer_address(&self) -> String {
        self.peer_url.trim_start_matches("https://").to_owned()
    }

    /// Runs etcdctl with the certificate of kubeadm's health checks.
    pub(super) fn etcdctl(&self, arguments: &[&str]) -> String {
        let pki = |flag: &str, file: &str| format!("--{flag}={}", self.pki(file).display());
        let ran = Ran::of(
            Command::new(bin("etcdctl-3.7"))
                .arg(format!("--endpoints={}", self.client_url("")))
                .arg(pki("cacert", "etcd/ca.crt"))
                .arg(pki("cert", "etcd/healthcheck-client.crt"))
                .arg(pki("key", "etcd/healthcheck-client.key"))
                .args(arguments),
        );
        ran.done();
        ran.stdout
    }

    /// Presents the machine's `apiserver` certificate, as kube-apiserver does.
    pub(super) fn present_own(&mut self) {
        self.present("etc/kubernetes/pki/apiserver");
    }

    /// Presents a new certificate.
    pub(super) fn present_new(
        &mut self,
        authority: &CertificateAuthority,
        common_name: &str,
        lifetime: Duration,
    ) {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile = Profile {
            subject: Subject {
                common_name: common_name.to_owned(),
                organizations: Vec::new(),
            },
            sans: Sans::default(),
            usages: vec![ExtendedUsage::ServerAuth],
            key: KeyAlgorithm::EcdsaP256,
            lifetime,
        };
        let leaf = authority.issue(key.public_key(), &profile, now()).unwrap();
        self.machine.write("presented.crt", &leaf.to_pem());
        self.machine.write("presented.key", &key.to_pem());
        self.present("presented");
    }

    fn present(&mut self, pair: &str) {
        self.stop_api_server();
        let mut command = Command::new("openssl");
        command
            .args(["s_server", "-quiet", "-accept"])
            .arg(self.api_server_port.to_string())
            .arg("-cert")
            .arg(self.machine.path(&format!("{pair}.crt")))
            .arg("-key")
            .arg(self.machine.path(&format!("{pair}.key")));
        let mut server = Server::start(command, &self.machine.path("s_server.log"));
        server.wait_for_port(self.api_server_port);
        self.api_server = Some(server);
    }

    /// Stops presenting a certificate.
    pub(super) fn stop_api_server(&mut self) {
        self.api_server = None;
    }
}
