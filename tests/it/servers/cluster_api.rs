//! Cluster API's controllers for Clusters, Machines, KubeadmConfigs and KubeadmControlPlanes, without its webhooks, and the
//! definitions of their objects and of an infrastructure provider (`TestCluster`, `TestMachine`, `TestMachineTemplate`).

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::kubernetes::Person;
use super::{Server, bin, free_port};
use crate::cloud_init::parsed;
use crate::time::wait_until;

/// API path of the infrastructure provider's objects.
pub(crate) const INFRASTRUCTURE: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta2";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Running controllers.
pub(crate) struct Controllers {
    server: Server,
    /// Port at which they serve port forwarding in place of kubelets.
    pub(crate) kubelet_port: u16,
}

impl Controllers {
    /// Starts the controllers.
    pub(crate) fn start(kubeconfig: &Path, log: &Path) -> Self {
        let kubelet_port = free_port();
        let mut command = Command::new(bin("cluster-api-managers"));
        command.arg(kubeconfig).arg(kubelet_port.to_string());
        let mut server = Server::start(command, log);
        server.wait_for_port(kubelet_port);
        Controllers {
            server,
            kubelet_port,
        }
    }

    /// Returns the end of their output.
    pub(crate) fn said(&self) -> String {
        self.server.said()
    }
}

/// Creates the definitions, and waits until the API server serves the objects.
pub(super) fn define(admin: &Person) {
    let text = fs::read_to_string(bin("cluster-api.yaml")).unwrap();
    let mut definitions = parsed(&text);
    definitions.extend(["TestCluster", "TestMachine", "TestMachineTemplate"].map(infrastructure));
    for mut definition in definitions {
        // Cluster API adds these labels when it builds its release; its controllers find the versions by them.
        let labels = &mut definition["metadata"]["labels"];
        labels["cluster.x-k8s.io/v1beta1"] = json!("v1beta1");
        labels["cluster.x-k8s.io/v1beta2"] = json!("v1beta2");
        admin.create(DEFINITIONS, &definition);
    }
    let established = |definition: &Value| {
        let conditions = definition["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
    };
    wait_until("the API server serves Cluster API's objects", || {
        admin.list(DEFINITIONS).iter().all(established)
    });
}

fn infrastructure(kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.infrastructure.cluster.x-k8s.io"), "labels": {}},
        "spec": {
            "group": "infrastructure.cluster.x-k8s.io", "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": "v1beta2", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    })
}
