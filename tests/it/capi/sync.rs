//! `capi sync`: Cluster API's controllers keep a machine whose certificates were renewed in place.

use std::time::Duration;

use nodepki::kube::names::Authority;
use serde_json::{Value, json};

use super::DAY;
use super::control_plane::ControlPlane;
use crate::node::{Node, Ran};
use crate::time::let_pass;

const ANNOTATION: &str = "machine.cluster.x-k8s.io/certificates-expiry";
/// Two periods of the controllers' synchronization.
const TWO_PERIODS: Duration = Duration::from_secs(22);

fn annotation(object: &Value) -> Option<String> {
    let annotation = object["metadata"]["annotations"][ANNOTATION].as_str();
    annotation.map(str::to_owned)
}

fn sync(plane: &ControlPlane, name: &str) -> Ran {
    let port = plane.machine(name).api_server_port.to_string();
    let mut command = plane
        .management
        .command("sync", &["--api-port", &port, "--kubeconfig"]);
    Ran::of(command.arg(plane.management.node.outside("nodepki-capi-sync-prod.conf")))
}

#[test]
fn keeps_machine_that_was_renewed_in_place() {
    let mut plane = ControlPlane::start("sync", &["--placeholder-keys"], 1, |_| {});
    plane.first_lifetime = Some(20 * DAY);
    plane.run_until("Cluster API's annotation", |plane| {
        plane
            .kubeadm_configs()
            .iter()
            .any(|config| annotation(config).is_some())
            && plane.machines()[0]["status"]["certificatesExpiryDate"].is_string()
    });
    let name = plane.machine_names()[0].clone();
    let expiry = |plane: &ControlPlane| {
        let expiry = plane.machines()[0]["status"]["certificatesExpiryDate"].clone();
        expiry.as_str().map(str::to_owned)
    };
    let old = annotation(&plane.kubeadm_configs()[0]);
    assert_eq!(expiry(&plane), old);
    // A renewal in place is not noticed.
    plane.machine_mut(&name).present_own();
    let_pass(TWO_PERIODS);
    assert_eq!(annotation(&plane.kubeadm_configs()[0]), old);
    assert_eq!(expiry(&plane), old);

    // `capi check` says so, with rights of its own.
    let rights = plane
        .management
        .command("check", &["--machines", "--rights"]);
    plane.management.grant(rights, "nodepki-capi-check-prod");
    let check = |plane: &ControlPlane| {
        let port = plane.machine(&name).api_server_port.to_string();
        let options = ["--machines", "--api-port", &port, "--kubeconfig"];
        let mut command = plane.management.command("check", &options);
        Ran::of(
            command.arg(
                plane
                    .management
                    .node
                    .outside("nodepki-capi-check-prod.conf"),
            ),
        )
    };
    check(&plane).ended(75).row_says(&name, "stale");

    let rights = plane.management.command("sync", &["--rights"]);
    plane.management.grant(rights, "nodepki-capi-sync-prod");
    sync(&plane, &name).done().row_says(&name, "written");
    let new = annotation(&plane.machines()[0]);
    assert!(new > old, "{new:?}");
    plane.run_until("the new expiry in the status", |plane| expiry(plane) == new);
    sync(&plane, &name).done().row_says(&name, "kept");
    check(&plane).done().row_says(&name, "current");
    // Certificates with another name or another issuer, and a machine that does not answer, change nothing.
    let authority = plane.management.node.authority(Authority::Ca);
    let machine = plane.machine_mut(&name);
    machine.present_new(&authority, "kube-scheduler", 30 * DAY);
    sync(&plane, &name)
        .ended(65)
        .says("is that of CN=kube-scheduler");
    let other = Node::new().authority(Authority::Ca);
    let machine = plane.machine_mut(&name);
    machine.present_new(&other, "kube-apiserver", 30 * DAY);
    sync(&plane, &name)
        .ended(65)
        .says("is not one of this cluster");
    plane.machine_mut(&name).stop_api_server();
    sync(&plane, &name).ended(69).row_says(&name, "unreachable");
    check(&plane).ended(69).row_says(&name, "unreachable");
    assert_eq!(annotation(&plane.machines()[0]), new);

    // They know nothing of the object with the conditions, whose owner is their Cluster.
    plane.management.define_control_plane_pki();
    plane.management.write().done();
    let stored = plane.management.pki();

    // The controllers keep the machine, and replace it if nothing reports the renewal.
    plane.machine_mut(&name).present_own();
    plane.edit(|object| {
        object["spec"]["rollout"]["before"] = json!({"certificatesExpiryDays": 30});
    });
    let_pass(TWO_PERIODS);
    assert_eq!(plane.machines().len(), 1);
    assert_eq!(plane.condition("RollingOut"), "False");
    plane.management.write().done();
    assert_eq!(plane.management.pki(), stored);
    plane.edit_machine(&name, |machine| {
        let annotations = machine["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(ANNOTATION).unwrap();
    });
    plane.run_until("the replacement of the machine", |plane| {
        plane.condition("RollingOut") == "True"
    });
}
