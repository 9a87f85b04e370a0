//! `capi check --write`: the conditions in the status of a ControlPlanePKI, in an API server with Cluster API's definitions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodepki::http::{Call, Method};
use nodepki::kube::kubeconfig::{Credentials, Kubeconfig};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{Management, RBAC};
use crate::cloud_init::parsed;
use crate::gateway::{Action, Gateway, Rule, Upstream};
use crate::node::{NODEPKI, Ran};
use crate::pages;
use crate::servers::kubernetes::{Kubernetes, kubernetes_with_cluster_api};
use crate::servers::{SharedServer, bin};
use crate::signing::write_secret;
use crate::time::{eventually, let_pass, wait_until};

const ACCOUNT: &str = "nodepki-capi-check-prod";
/// Precision of `lastTransitionTime`.
const SECOND: Duration = Duration::from_secs(1);

/// Returns the cluster of these tests, with the definition of ControlPlanePKI.
fn cluster() -> &'static Kubernetes {
    static SHARED: SharedServer<&Kubernetes> = SharedServer::new();
    SHARED.get(|| {
        let cluster = kubernetes_with_cluster_api("status");
        Management::in_cluster(cluster).define_control_plane_pki();
        cluster
    })
}

impl Management {
    /// Returns a namespace with the Secrets of the Cluster `prod`.
    fn with_cluster() -> Self {
        let management = Management::in_cluster(cluster());
        management.apply(&[]).done();
        management.create_cluster();
        management
    }

    /// Creates the definition that `--crd` prints.
    pub(super) fn define_control_plane_pki(&self) {
        let definition = Ran::of(&mut self.command("check", &["--crd"]));
        let file = self.node.outside("crd.yaml");
        fs::write(&file, &definition.done().stdout).unwrap();
        let file = file.to_str().unwrap();
        self.kubectl(&["apply", "--server-side", "-f", file]);
        let name = "crd/controlplanepkis.nodepki.io";
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", name]);
    }

    fn create_cluster(&self) {
        let object = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "prod"},
            "spec": {"controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "prod"}}});
        self.cluster.admin().create(&self.clusters(), &object);
    }

    fn clusters(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{namespace}/clusters")
    }

    fn pki_path(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/nodepki.io/v1alpha1/namespaces/{namespace}/controlplanepkis/prod")
    }

    pub(super) fn pki(&self) -> Value {
        let (status, object) = self.cluster.admin().get(&self.pki_path());
        assert_eq!(status, 200, "{object}");
        object
    }

    /// Returns status, reason and `lastTransitionTime` of a condition.
    fn stored(&self, kind: &str) -> [String; 3] {
        let object = self.pki();
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|one| one["type"] == kind).unwrap();
        ["status", "reason", "lastTransitionTime"]
            .map(|name| found[name].as_str().unwrap().to_owned())
    }

    pub(super) fn write(&self) -> Ran {
        self.check(&["--write"])
    }

    fn kubectl(&self, arguments: &[&str]) {
        let mut command = Command::new(bin("kubectl"));
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig().display()))
            .arg(format!(
                "--cache-dir={}",
                self.node.outside("kubectl").display()
            ))
            .args(["-n", &self.namespace])
            .args(arguments);
        Ran::of(&mut command).done();
    }

    /// Returns `capi check` with the identity of the ServiceAccount.
    fn as_account(&self, more: &[&str]) -> Command {
        let mut command = self.command("check", more);
        let kubeconfig = self.node.outside(&format!("{ACCOUNT}.conf"));
        command.arg("--kubeconfig").arg(kubeconfig);
        command
    }
}

/// The commands of `docs/cluster-api.md`, as a user with the usual umask runs them. Root and namespace are those of the test.
#[test]
fn documented_commands_work_with_umask_022() {
    let management = Management::with_cluster();
    let heading = "### Conditions in the management cluster";
    let section = pages::section("docs/cluster-api.md", heading);
    let script = format!(
        "set -eu
umask 022
nodepki() {{ {NODEPKI} --root {} \"$@\" --namespace {namespace}; }}
kubectl() {{ {} --kubeconfig management.conf --cache-dir cache --namespace {namespace} \"$@\"; }}
{}",
        management.node.root().display(),
        bin("kubectl").display(),
        pages::blocks(&section, "sh").remove(0),
        namespace = management.namespace,
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let ran = Ran::of(shell.current_dir(management.node.outside("")));
    ran.done()
        .says("controlplanepki.nodepki.io/prod condition met");
}

#[test]
fn stores_conditions_that_kubectl_waits_for() {
    let management = Management::with_cluster();
    management.write().done();
    let object = management.pki();
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("Cluster"), &json!("prod"))
    );
    let label = &object["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"];
    assert_eq!(label, "prod");
    let secrets = object["status"]["secrets"].as_array().unwrap();
    assert_eq!(secrets.len(), 5);
    assert!(
        secrets
            .iter()
            .all(|one| one["state"] == "ready" && one["notAfter"].is_string())
    );
    let wait = |condition: &str| {
        let condition = format!("--for=condition={condition}");
        management.kubectl(&["wait", &condition, "--timeout=10s", "controlplanepki/prod"]);
    };
    wait("ExternalCAsReady");
    wait("ExternalClientCertificatesReady");

    // Nothing is written without a change.
    let_pass(SECOND);
    let printed = management.check(&["--write", "-o", "json"]);
    let printed: Value = serde_json::from_str(&printed.done().stdout).unwrap();
    assert_eq!(printed["conditions"], object["status"]["conditions"]);
    assert_eq!(management.pki(), object);

    let [_, _, authorities] = management.stored("ExternalCAsReady");
    let [_, _, clients] = management.stored("ExternalClientCertificatesReady");
    management.remove("etcd");
    let_pass(SECOND);
    management.write().ended(75).says("prod-etcd");
    let [status, reason, changed] = management.stored("ExternalCAsReady");
    assert_eq!((&*status, &*reason), ("False", "MissingSecret"));
    assert!(changed > authorities, "{changed} {authorities}");
    assert_eq!(
        management.stored("ExternalClientCertificatesReady")[2],
        clients
    );
    wait("ExternalCAsReady=false");
    // Another message and another reason, with the same status.
    let_pass(SECOND);
    management.apply(&[]).done();
    management.remove("ca");
    management.make("ca", json!({"tls.crt": "unreadable"}), json!({}));
    management.write().ended(65);
    let [_, reason, time] = management.stored("ExternalCAsReady");
    assert_eq!((&*reason, &time), ("InvalidCertificate", &changed));
}

/// A running `capi check --watch`.
struct Watcher {
    child: Child,
    log: NamedTempFile,
}

impl Watcher {
    fn start(management: &Management) -> Self {
        Self::of(management.as_account(&["--write", "--watch"]))
    }

    fn of(mut command: Command) -> Self {
        let log = NamedTempFile::new().unwrap();
        let child = command.stderr(log.reopen().unwrap()).spawn().unwrap();
        Watcher { child, log }
    }

    /// Waits until the process has logged `words`.
    #[track_caller]
    fn wait_for_log(&self, words: &str) {
        eventually(|| {
            let log = fs::read_to_string(&self.log).unwrap();
            log.contains(words).then_some(()).ok_or(log)
        });
    }

    /// Ends the process as systemd does, and returns its log.
    fn end(mut self) -> String {
        let id = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        let log = fs::read_to_string(&self.log).unwrap();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }
}

#[test]
fn follows_changes_with_the_printed_rights() {
    let management = Management::with_cluster();
    let rights = management.command("check", &["--write", "--watch", "--rights"]);
    management.grant(rights, ACCOUNT);
    let admin = management.cluster.admin();
    let exists = || admin.get(&management.pki_path()).0 == 200;
    let is = |status: &str| {
        let object = management.pki();
        object["status"]["conditions"][0]["status"] == status
    };
    let watcher = Watcher::start(&management);
    wait_until("the first conditions", || exists() && is("True"));
    // The interval is ten minutes: only the watches cause a check.
    for _ in 0..2 {
        management.remove("etcd");
        wait_until("the missing Secret in the status", || is("False"));
        management.apply(&[]).done();
        wait_until("the new Secret in the status", || is("True"));
    }
    let log = watcher.end();
    assert!(
        log.contains("ExternalCAsReady is False (MissingSecret)"),
        "{log}"
    );
    assert!(!log.contains("cannot be watched"), "{log}");
}

#[test]
fn needs_each_of_the_printed_rights() {
    let management = Management::with_cluster();
    let rights = management.command("check", &["--write", "--rights"]);
    let objects = management.grant(rights, ACCOUNT);
    let role = objects
        .iter()
        .find(|object| object["kind"] == "Role")
        .unwrap();
    let rules = role["rules"].as_array().unwrap();
    assert!(
        rules
            .iter()
            .all(|rule| rule["verbs"].as_array().unwrap().len() == 1)
    );
    let path = format!("{RBAC}/namespaces/{}/roles/{ACCOUNT}", management.namespace);
    let admin = management.cluster.admin();
    let run = || Ran::of(&mut management.as_account(&["--write"]));
    // The API server reads a Role some time after it was written.
    wait_until("the new Role", || run().code == Some(0));
    // `--watch` needs more verbs.
    let watcher = Watcher::start(&management);
    for object in [
        "secrets with metadata.name=prod-ca",
        "clusters with metadata.name=prod",
    ] {
        watcher.wait_for_log(&format!("{object} cannot be watched"));
    }
    watcher.end();
    for (left_out, rule) in rules.iter().enumerate() {
        let mut less = role.clone();
        less["rules"].as_array_mut().unwrap().remove(left_out);
        assert_eq!(admin.put(&path, &less).0, 200);
        // Each right is used only by a run that creates the object.
        let run = || {
            let (status, _) = admin.send(Call::new(Method::DELETE, management.pki_path()));
            assert!(matches!(status, 200 | 404));
            run().code == Some(77)
        };
        wait_until(&format!("a run without {rule}"), run);
    }
    // Other Secrets of the namespace cannot be read.
    let secret = &rules[0];
    assert_eq!(secret["resources"], json!(["secrets"]));
    assert_eq!(secret["resourceNames"].as_array().unwrap().len(), 5);
}

#[test]
fn names_command_that_prints_the_missing_definition() {
    let management = Management::new();
    management
        .write()
        .ended(78)
        .says("nodepki capi check prod --crd | kubectl apply -f -");
    management.check(&["--write", "--watch"]).ended(78);
}

#[test]
fn waits_for_the_cluster_object() {
    let management = Management::in_cluster(cluster());
    management.apply(&[]).done();
    management
        .write()
        .ended(75)
        .says("the Cluster prod")
        .says("does not exist");
    assert_eq!(
        management.cluster.admin().get(&management.pki_path()).0,
        404
    );
    let rights = management.command("check", &["--write", "--watch", "--rights"]);
    management.grant(rights, ACCOUNT);
    let watcher = Watcher::start(&management);
    let_pass(SECOND);
    management.create_cluster();
    let admin = management.cluster.admin();
    wait_until("the object", || admin.get(&management.pki_path()).0 == 200);
    watcher.end();
}

#[test]
fn concurrent_runs_store_the_same_conditions() {
    let management = Management::with_cluster();
    let start = || {
        let mut command = management.command("check", &["--write", "--kubeconfig"]);
        command.arg(management.kubeconfig()).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let runs: Vec<Child> = (0..6).map(|_| start()).collect();
    for mut run in runs {
        assert_eq!(run.wait().unwrap().code(), Some(0));
    }
    let object = management.pki();
    assert_eq!(object["status"]["conditions"].as_array().unwrap().len(), 2);
    management.write().done();
    assert_eq!(management.pki(), object);
}

#[test]
fn object_is_deleted_with_its_cluster() {
    let management = Management::with_cluster();
    management.write().done();
    let _collector = management.cluster.start_garbage_collector();
    let admin = management.cluster.admin();
    admin.delete(&format!("{}/prod", management.clusters()));
    wait_until("the deletion", || {
        admin.get(&management.pki_path()).0 == 404
    });
    management.write().ended(75);
    assert_eq!(admin.get(&management.pki_path()).0, 404);
}

impl Management {
    /// Starts a gateway in front of the API server, and writes a kubeconfig `gateway.conf` for it.
    fn gateway(&self) -> Gateway {
        let (chain, key) = self.cluster.pair("gateway", &["system:masters"], false);
        let ca = fs::read(self.cluster.ca_file()).unwrap();
        let address = ("127.0.0.1", self.cluster.port());
        let (chain_pem, key_pem) = (chain.as_bytes(), key.as_bytes());
        let upstream = Upstream::mutual_tls(address, &ca, "localhost", chain_pem, key_pem);
        let gateway = Gateway::to(Some(upstream));
        let authority = String::from_utf8(gateway.ca_pem()).unwrap();
        let credentials = Credentials {
            server: &gateway.url(),
            authority: &authority,
            certificate: &chain,
            key: &key,
        };
        let kubeconfig = Kubeconfig::new("kubernetes", "gateway", &credentials).to_yaml();
        write_secret(self.node.outside("gateway.conf"), &*kubeconfig);
        gateway
    }

    fn through_gateway(&self, more: &[&str]) -> Command {
        let mut command = self.command("check", more);
        command
            .arg("--kubeconfig")
            .arg(self.node.outside("gateway.conf"));
        command
    }
}

#[test]
fn writes_again_after_a_conflict() {
    let management = Management::with_cluster();
    management.write().done();
    management.remove("etcd");
    let gateway = management.gateway();
    // The API server refuses a change of an old version.
    let read_old = || {
        Rule::on("GET", "/controlplanepkis/prod").then(Action::change_json(|object| {
            object["metadata"]["resourceVersion"] = json!("1");
        }))
    };
    let writes = || {
        let requests = gateway.requests();
        requests
            .iter()
            .filter(|request| request.method == "PUT")
            .count()
    };
    gateway.rule(read_old());
    let run = || Ran::of(&mut management.through_gateway(&["--write"]));
    run()
        .ended(75)
        .says("other clients changed it at the same time; run again");
    assert!(writes() > 1);
    assert_eq!(management.stored("ExternalCAsReady")[0], "True");
    let before = writes();
    gateway.only(read_old().times(1));
    run()
        .ended(75)
        .says("MissingSecret")
        .says_not("other clients");
    assert_eq!(writes() - before, 2);
    assert_eq!(management.stored("ExternalCAsReady")[0], "False");
}

#[test]
fn watch_survives_an_outage_of_the_api_server() {
    let management = Management::with_cluster();
    let gateway = management.gateway();
    gateway.rule(Rule::on("*", "").then(Action::status(503)));
    let watcher = Watcher::of(management.through_gateway(&["-v", "--write", "--watch"]));
    wait_until("several attempts", || gateway.requests().len() > 15);
    let admin = management.cluster.admin();
    assert_eq!(admin.get(&management.pki_path()).0, 404);
    gateway.behave();
    wait_until("the conditions", || {
        admin.get(&management.pki_path()).1["status"].is_object()
    });
    watcher.wait_for_log("the conditions can be stored again");
    let log = watcher.end();
    assert_eq!(log.matches("; trying again").count(), 1, "{log}");
}

/// Returns the ConfigMap and the Deployment of the page.
fn example_of_deployment() -> [Value; 2] {
    let page = include_str!("../../../docs/cluster-api.md");
    let mut blocks = page.split("```yaml\n");
    let block = blocks
        .find(|block| block.contains("kind: Deployment"))
        .unwrap();
    let objects = parsed(block.split("```").next().unwrap());
    objects.try_into().unwrap()
}

/// The kubelet writes the files of a pod through links, and the token for the user of the pod alone.
#[test]
fn example_of_deployment_works_with_the_token_of_a_pod() {
    let management = Management::with_cluster();
    let admin = management.cluster.admin();
    let [config_map, deployment] = example_of_deployment();
    let path = |path: &str| format!("{path}?dryRun=All&fieldValidation=Strict");
    admin.create(&path("/api/v1/namespaces/default/configmaps"), &config_map);
    admin.create(
        &path("/apis/apps/v1/namespaces/default/deployments"),
        &deployment,
    );

    let account = &deployment["spec"]["template"]["spec"]["serviceAccountName"];
    assert_eq!(account, ACCOUNT);
    let rights = management.command("check", &["--write", "--rights"]);
    management.grant(rights, ACCOUNT);
    let namespace = &management.namespace;
    let request =
        json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let made = admin.create(&format!("{accounts}/{ACCOUNT}/token"), &request);
    let mount = management.node.outside("serviceaccount");
    let content = mount.join("..2026_11_23");
    fs::create_dir_all(&content).unwrap();
    write_secret(
        content.join("token"),
        made["status"]["token"].as_str().unwrap(),
    );
    fs::copy(management.cluster.ca_file(), content.join("ca.crt")).unwrap();
    symlink("..2026_11_23", mount.join("..data")).unwrap();
    for name in ["token", "ca.crt"] {
        symlink(format!("..data/{name}"), mount.join(name)).unwrap();
    }
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o1777)).unwrap();
    let kubeconfig = config_map["data"]["kubeconfig"].as_str().unwrap();
    let kubeconfig = kubeconfig
        .replace("https://kubernetes.default.svc", &management.cluster.url())
        .replace(
            "/var/run/secrets/kubernetes.io/serviceaccount",
            mount.to_str().unwrap(),
        );
    let file = management.node.outside("kubeconfig");
    fs::write(&file, kubeconfig).unwrap();

    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| match argument.as_str().unwrap() {
        "/etc/nodepki-capi/kubeconfig" => file.to_str().unwrap(),
        "default" => namespace,
        other => other,
    });
    let arguments: Vec<&str> = arguments
        .filter(|argument| *argument != "--watch")
        .collect();
    let run = || Ran::of(&mut management.node.command(&arguments));
    wait_until("the rights of the ServiceAccount", || run().code == Some(0));
    assert_eq!(management.stored("ExternalCAsReady")[0], "True");
    fs::set_permissions(content.join("token"), fs::Permissions::from_mode(0o644)).unwrap();
    run()
        .ended(65)
        .says("lets other users read or change the secret");
}

/// Writes the `ca.crt` that kube-controller-manager publishes. It does not run here.
fn publish(management: &Management, authority: &str) {
    let admin = management.cluster.admin();
    let path = "/api/v1/namespaces/kube-system/configmaps";
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "kube-root-ca.crt"},
        "data": {"ca.crt": authority}});
    match admin.put(&format!("{path}/kube-root-ca.crt"), &object) {
        (200 | 201, _) => {}
        (404, _) => drop(admin.create(path, &object)),
        (status, body) => panic!("{status} {body}"),
    }
}

#[test]
fn notes_differences_from_the_workload_cluster() {
    let cluster = cluster();
    let management = Management::in_cluster(cluster);
    // The management cluster is also the workload cluster.
    let endpoint = cluster.url();
    let endpoint = endpoint.strip_prefix("https://").unwrap();
    let ca = management.node.ca();
    for extension in ["crt", "key"] {
        let own = cluster.ca_file().with_extension(extension);
        fs::copy(own, ca.join("ca").with_extension(extension)).unwrap();
    }
    let apply = |more: &[&str]| {
        let mut command =
            management.command("secrets", &["--clock-wait", "0s", "--endpoint", endpoint]);
        let signer = format!("local:{}", ca.display());
        command.args(["--signer", &signer, "--apply", "--kubeconfig"]);
        Ran::of(command.arg(management.kubeconfig()).args(more));
    };
    apply(&[]);
    let check = |more: &[&str]| {
        let ran = management.check(&[&["--workload"], more].concat());
        ran.done();
        ran
    };
    // The rights of the administrator's group are not furnished here.
    management
        .check(&["--workload"])
        .done()
        .says("it was not compared")
        .says("cannot get resource");
    let binding = json!({"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": format!("cluster-admins-{}", management.namespace)},
        "subjects": [{"kind": "Group", "name": "kubeadm:cluster-admins", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    cluster
        .admin()
        .create(&format!("{RBAC}/clusterrolebindings"), &binding);

    let old = fs::read_to_string(cluster.ca_file()).unwrap();
    let new = management.authority(nodepki::kube::names::Authority::EtcdCa);
    publish(&management, &old);
    wait_until("the comparison", || {
        !check(&[]).said().contains("it was not compared")
    });
    check(&[]).says_not("it lacks").says_not("it contains");
    // Staged on the nodes.
    publish(&management, &format!("{old}{new}"));
    check(&[]).says("prod-ca").says("it lacks CN=");
    publish(&management, &new);
    check(&[])
        .says("it lacks CN=")
        .says("which is not in ca.crt of kube-controller-manager");
    // The kubeconfig cannot name files of this machine.
    management.remove("kubeconfig");
    management.make("kubeconfig", json!({"value": "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1', certificate-authority: /etc/hostname}}]\nusers: [{name: a, user: {tokenFile: /etc/shadow}}]\n"}), json!({}));
    management
        .check(&["--workload"])
        .ended(65)
        .says("must contain its certificates and keys");
}
