//! A pod that reaches the API server with a client certificate instead of a token.

use std::fs;

use crate::cluster::Cluster;
use crate::cluster::site::WORK_IMAGE;

/// The roles of the node, and those that the kubelets and pods of all nodes share.
const ROLES: &str = r#"role: {default: "{certificate}", apiserver: "{certificate}-{node}", etcd-server: "{certificate}-{node}", etcd-peer: "{certificate}-{node}", nodepki.conf: "{certificate}-{node}", kubelet.conf: kubelets-client, kubelet-serving: kubelets-serving}"#;

/// OpenBao signs for a pod on the worker; the daemon of one control-plane node sends the request.
pub(crate) fn certificate(cluster: &mut Cluster) {
    let node = cluster.node("cp1");
    node.done(&format!(
        "sed -i 's/^\\( *\\)mount: pki.*/&\\n\\1{ROLES}/' /etc/nodepki/config.d/30-signer.yaml
         umask 077
         printf '%s\\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' \
           'kubelets: {{sign: true, signPods: true, networks: [10.77.0.0/24, \"fd77::/64\"]}}' >/etc/nodepki/config.d/50-kubelets.yaml"
    ));
    let script = node.done("nodepki config signer-setup vault");
    cluster.openbao.as_ref().unwrap().set_up(&script);
    cluster.finish(&["cp1"], "nodepki renew", "nodepki renew");
    cluster.node("cp1").done(
        "nodepki config signer-setup kubelets | kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f -
         systemctl disable --quiet --now nodepki-renew.timer
         systemctl enable --quiet nodepki.service && systemctl restart nodepki.service",
    );

    let manifest = cluster.site.path("pods.yaml");
    fs::write(&manifest, MANIFEST.replace("IMAGE", WORK_IMAGE)).unwrap();
    let first = cluster.nodes[0].name;
    let apply = format!("apply -f {}", manifest.display());
    cluster.kubectl(first, &apply).unwrap();
    cluster.until("the pod has reached the API server", |cluster| {
        let said = cluster.kubectl(first, "logs --namespace shop web")?;
        match said.contains("system:serviceaccount:shop:seller")
            && said.contains("settings of the shop")
        {
            true => Ok(()),
            false => {
                let described = cluster.kubectl(first, "describe pods --namespace shop")?;
                Err(format!("{said}\n{described}"))
            }
        }
    });
    let node = "get podcertificaterequests --namespace shop -o jsonpath={.items[*].spec.nodeName}";
    let node = cluster.kubectl(first, node).unwrap();
    cluster.say(&format!(
        "a pod on {node} is its ServiceAccount by a certificate of OpenBao, without a token"
    ));
}

const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: seller, namespace: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {text: settings of the shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: seller, namespace: shop}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [settings], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: seller, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: seller}
subjects: [{kind: ServiceAccount, name: seller, namespace: shop}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  serviceAccountName: seller
  automountServiceAccountToken: false
  containers:
  - name: web
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c]
    args:
    - |
      api() {
        kubectl --server="https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT" --certificate-authority=/identity/ca.crt \
          --client-certificate=/identity/credentials.pem --client-key=/identity/credentials.pem "$@"
      }
      until api auth whoami && api get configmap settings --namespace shop -o yaml; do sleep 2; done
      sleep 100000
    volumeMounts: [{name: identity, mountPath: /identity, readOnly: true}]
  volumes:
  - name: identity
    projected:
      sources:
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - podCertificate:
          signerName: kubernetes.io/kube-apiserver-client-pod
          keyType: ECDSAP256
          credentialBundlePath: credentials.pem
"#;
