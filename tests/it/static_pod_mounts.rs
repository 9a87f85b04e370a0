//! Static pods that mount files of the PKI: kube-vip is restarted for a new admin.conf and HAProxy is not. The API server is
//! real; the test takes the kubelet's part and reports the state of the pods.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::node::Ran;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT};
use crate::time::{let_pass, wait_until};

/// The output of `kube-vip manifest pod --controlplane --arp --leaderElection --interface eth0 --address 192.0.2.100`.
const KUBE_VIP: &str = include_str!("../fixtures/static-pods/kube-vip.yaml");
/// As in kubeadm's guide to software load balancing.
const HAPROXY: &str = include_str!("../fixtures/static-pods/haproxy.yaml");
const MANIFEST: &str = "/etc/kubernetes/manifests/kube-vip.yaml";
const PODS: &str = "/api/v1/namespaces/kube-system/pods";

struct Vip {
    cluster: Cluster,
}

impl Vip {
    fn start() -> Self {
        let cluster = Cluster::start(Authorities::Internal);
        let node = cluster.first();
        node.write("/run/kubeadm/kubeadm.yaml", INIT);
        node.write(MANIFEST, KUBE_VIP);
        node.write("/etc/kubernetes/manifests/haproxy.yaml", HAPROXY);
        let pod = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "kube-vip-cp1", "annotations": {"kubernetes.io/config.mirror": "cp1"}},
            "spec": {"nodeName": "cp1", "hostNetwork": true, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "kube-vip", "image": "ghcr.io/kube-vip/kube-vip"}]}});
        let (status, made) = cluster.admin().post(PODS, &pod);
        assert_eq!(status, 201, "{made}");
        let vip = Vip { cluster };
        vip.report_start();
        vip.configure("timeout: 3s");
        vip
    }

    fn node(&self) -> &ClusterNode {
        self.cluster.first()
    }

    fn configure(&self, reload: &str) {
        let settings = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {{own: {{local: {{directory: /etc/kubernetes/pki}}}}}}\nreload: {{{reload}, lease: {{duration: 10s}}}}\n"
        );
        self.node().write("/etc/nodepki/config.yaml", &settings);
    }

    fn manifest(&self) -> String {
        fs::read_to_string(self.node().path(MANIFEST)).unwrap()
    }

    /// Reports, as the kubelet, that the container was started. The time has whole seconds, and is later than all that the
    /// test did before.
    fn report_start(&self) {
        let now = OffsetDateTime::now_utc();
        let_pass(Duration::from_nanos(
            1_000_000_000 - u64::from(now.nanosecond()),
        ));
        let at = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap();
        let at = at.format(&Rfc3339).unwrap();
        let path = format!("{PODS}/kube-vip-cp1");
        let (_, mut pod) = self.cluster.admin().get(&path);
        pod["status"] = json!({"phase": "Running", "containerStatuses": [{
            "name": "kube-vip", "ready": true, "started": true, "restartCount": 0,
            "image": "ghcr.io/kube-vip/kube-vip", "imageID": "x",
            "state": {"running": {"startedAt": at}}}]});
        let (status, put) = self.cluster.admin().put(&format!("{path}/status"), &pod);
        assert_eq!(status, 200, "{put}");
    }

    fn renew(&self, name: &str) -> Ran {
        let _ = fs::remove_file(self.node().path("/var/lib/nodepki/issued.json"));
        self.node()
            .nodepki(&["renew", "--clock-wait", "0s", "--name", name])
    }

    fn settle(&self) -> Ran {
        self.node().nodepki(&["renew", "--clock-wait", "0s"])
    }

    fn finding(&self) -> Value {
        let ran = self.node().nodepki(&["doctor", "-o", "json"]);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let mut findings = report["findings"].as_array().unwrap().iter();
        let found = findings.find(|finding| finding["id"] == "static-pod-mounts");
        found.unwrap().clone()
    }
}

#[test]
fn restarts_static_pod_that_mounts_renewed_kubeconfig() {
    let vip = Vip::start();
    let sentence = "static pod kube-vip mounts admin.conf: it is restarted after they are replaced";
    vip.node().nodepki(&["plan"]).says(sentence);
    let status = vip.node().nodepki(&["status"]);
    status.says("static pod kube-vip mounts it, and is restarted after it is replaced");
    status.says_not("haproxy");
    assert_eq!(vip.finding()["severity"], "info");

    // The kubelet has not restarted the pod yet: the manifest is changed once, and the check is repeated.
    let ran = vip.renew("admin.conf");
    ran.ended(75)
        .row_says("kube-vip", "was restarted for admin.conf")
        .row_says("kube-vip", "still the one from before");
    let annotated = vip.manifest();
    assert!(annotated.contains("nodepki.io/restarted-at"), "{annotated}");
    vip.node()
        .nodepki(&["needs-renewal"])
        .ended(0)
        .says("admin.conf was replaced and has not taken effect");
    vip.settle().ended(75).row_says("kube-vip", "still the one");
    assert_eq!(vip.manifest(), annotated);
    vip.report_start();
    vip.settle().done();
    assert_eq!(vip.manifest(), annotated);
    assert!(!vip.node().path("/var/lib/nodepki/restarts.json").exists());

    // A certificate that the pod does not mount.
    vip.renew("apiserver-kubelet-client").done();
    assert_eq!(vip.manifest(), annotated);

    // The kubelet restarts the pod meanwhile. Only one node at a time does so.
    vip.configure("timeout: 60s");
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the manifest is annotated", || vip.manifest() != annotated);
            vip.report_start();
        });
        vip.renew("admin.conf")
            .done()
            .row_says("kube-vip", "in effect")
            .row_says("kube-vip", "kube-system/kube-vip-cp1 runs and is ready");
    });
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/nodepki-reload";
    let (_, lease) = vip.cluster.admin().get(lease);
    assert_eq!(lease["spec"]["holderIdentity"], "");
    let haproxy = vip.node().path("/etc/kubernetes/manifests/haproxy.yaml");
    assert_eq!(fs::read_to_string(haproxy).unwrap(), HAPROXY);
}

#[test]
fn leaves_static_pod_that_must_not_be_restarted() {
    let vip = Vip::start();
    vip.configure("staticPods: false");
    vip.renew("admin.conf")
        .ended(75)
        .row_says("kube-vip", "restart it manually");
    assert_eq!(vip.manifest(), KUBE_VIP);
    vip.report_start();
    vip.settle().done();

    let never = KUBE_VIP.replacen(
        "metadata:\n",
        "metadata:\n  annotations: {nodepki.io/restart: never}\n",
        1,
    );
    vip.node().write(MANIFEST, &never);
    vip.configure("timeout: 3s");
    vip.renew("admin.conf").done().says_not("kube-vip");
    assert_eq!(vip.manifest(), never);
    vip.node()
        .nodepki(&["plan"])
        .says("it is not restarted (nodepki.io/restart: never)");

    // kube-vip's workaround for `kubeadm init`, which is still in place.
    let workaround = KUBE_VIP.replace(
        "path: /etc/kubernetes/admin.conf",
        "path: /etc/kubernetes/super-admin.conf",
    );
    vip.node().write(MANIFEST, &workaround);
    let finding = vip.finding();
    assert_eq!(finding["severity"], "warning");
    let fix = finding["fix"].as_str().unwrap();
    let command = fix.split_once(": ").unwrap().1;
    vip.node().run("sh", &["-c", command]).done();
    assert_eq!(vip.manifest(), KUBE_VIP);
}
