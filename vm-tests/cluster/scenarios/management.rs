//! nodepki on a host and in a Pod of a management cluster, as `docs/cluster-api.md` says. The cluster manages itself: as the
//! Cluster `prod`.

use std::fs;

use crate::cluster::Cluster;

const PAGE: &str = include_str!("../../../docs/cluster-api.md");
const EXPIRY: &str = r"{.metadata.annotations.machine\.cluster\.x-k8s\.io/certificates-expiry}";
const AUTHORITIES_READY: &str = "{.status.conditions[?(@.type==\"ExternalCAsReady\")]}";

/// The units create the Secrets and report the expiry of a machine; a Deployment from the release's container image follows
/// the Secrets.
pub(crate) fn host_and_deployment(cluster: &mut Cluster) {
    let first = cluster.nodes[0].name;
    let shared = cluster.node(first).machine.shared();
    let objects = OBJECTS.replace("ADDRESS", &crate::cluster::network::address(first));
    fs::write(shared.join("objects.yaml"), objects.replace("NODE", first)).unwrap();
    fs::write(shared.join("definitions.yaml"), definitions()).unwrap();
    cluster.node(first).done(
        "export KUBECONFIG=/etc/kubernetes/admin.conf
         kubectl apply -f /run/tests/definitions.yaml
         nodepki capi check prod --crd | kubectl apply -f -
         kubectl wait --for=condition=Established crd --all
         kubectl apply -f /run/tests/objects.yaml
         install -d -m 700 /etc/nodepki/capi
         install -m 600 $KUBECONFIG /etc/nodepki/capi/prod.kubeconfig
         cat > /etc/nodepki/capi/prod.env <<'END'
CAPI_OPTIONS=--namespace default
CAPI_SECRETS_OPTIONS=--endpoint api.cluster.test:6443 --placeholder-keys --ca-dir /etc/kubernetes/pki
END
         systemctl start nodepki-capi-secrets@prod.service
         systemctl start nodepki-capi-sync@prod.service nodepki-capi-check@prod.service ||
           journalctl --unit='nodepki-capi-*'",
    );
    until(cluster, "machine prod-1", EXPIRY, "Z");
    until(cluster, "controlplanepki prod", AUTHORITIES_READY, "True");
    cluster
        .node(first)
        .done("systemctl stop nodepki-capi-check@prod.service");
    cluster.say("the units create the Secrets, and report them and the expiry of a machine");

    deploy(cluster);
    cluster.kubectl(first, "delete secret prod-etcd").unwrap();
    until(
        cluster,
        "controlplanepki prod",
        AUTHORITIES_READY,
        "prod-etcd",
    );
    cluster
        .node(first)
        .done("systemctl start nodepki-capi-secrets@prod.service");
    until(cluster, "controlplanepki prod", AUTHORITIES_READY, "True");
    cluster.say("the release's container image reports the loss of a Secret, and its return");
    cluster.node(first).done(
        "export KUBECONFIG=/etc/kubernetes/admin.conf
         kubectl delete deployment nodepki-capi-check-prod
         rm -r /etc/nodepki/capi",
    );
}

/// Applies the Deployment of the page, with the container image of the release.
fn deploy(cluster: &mut Cluster) {
    let image = cluster.site.container_image();
    let worker = cluster.node("w1");
    fs::copy(&image, worker.machine.shared().join("nodepki.tar")).unwrap();
    let imported = worker.done("ctr --namespace k8s.io images import /run/tests/nodepki.tar 2>&1");
    let mut words = imported.split_whitespace();
    let name = words.find(|word| word.contains("nodepki:"));
    let name = name.unwrap_or_else(|| panic!("{imported}")).to_owned();

    let (_, section) = PAGE
        .split_once("\n### In the management cluster\n")
        .unwrap();
    let (_, manifest) = section.split_once("```yaml\n").unwrap();
    let (manifest, _) = manifest.split_once("```").unwrap();
    let of_page = "image: registry.example.com/nodepki:1";
    assert!(manifest.contains(of_page), "{manifest}");
    let image = format!("image: {name}\n        imagePullPolicy: Never");
    let manifest = manifest.replace(of_page, &image);
    let node = &mut cluster.nodes[0];
    fs::write(node.machine.shared().join("deployment.yaml"), manifest).unwrap();
    node.done(
        "export KUBECONFIG=/etc/kubernetes/admin.conf
         nodepki capi check prod --write --watch --rights | kubectl apply -f -
         kubectl apply -f /run/tests/deployment.yaml
         kubectl rollout status deployment nodepki-capi-check-prod",
    );
}

/// Waits until a field of an object contains a text.
fn until(cluster: &mut Cluster, object: &str, path: &str, expected: &str) {
    let first = cluster.nodes[0].name;
    cluster.until(&format!("{object} has {expected}"), |cluster| {
        let found = cluster.kubectl(first, &format!("get {object} --output=jsonpath={path}"))?;
        if found.contains(expected) {
            return Ok(());
        }
        let logs = cluster.kubectl(first, "logs deployment/nodepki-capi-check-prod --tail=20");
        Err(format!("{object}: {found}\n{logs:?}"))
    });
}

/// The definitions of Cluster API, as far as the commands need them.
fn definitions() -> String {
    let of = |kind: &str| {
        let plural = kind.to_lowercase() + "s";
        format!(
            "---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.cluster.x-k8s.io}}
spec:
  group: cluster.x-k8s.io
  names: {{kind: {kind}, plural: {plural}}}
  scope: Namespaced
  versions:
  - name: v1beta2
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
        )
    };
    of("Cluster") + &of("Machine")
}

const OBJECTS: &str = r"
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: default}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: prod-1
  namespace: default
  labels: {cluster.x-k8s.io/cluster-name: prod, cluster.x-k8s.io/control-plane: ''}
status:
  nodeRef: {name: NODE}
  addresses: [{type: InternalIP, address: ADDRESS}]
";
