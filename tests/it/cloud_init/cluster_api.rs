//! The KubeadmControlPlane examples: a real API server accepts them, Cluster API's own code generates user data from
//! them, and the real cloud-init runs the user data.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use nodepki::http::Call;
use serde_json::{Value, json};

use super::machine::Machine;
use super::{example, kubeadm_takes, parsed};
use crate::capi::Management;
use crate::servers::bin;
use crate::servers::kubernetes::{Person, kubernetes};
use crate::time::wait_until;

pub(super) const ENDPOINT: &str = "api.prod.example.com:6443";
/// The file by which Cluster API recognizes the machine's success.
pub(super) const SENTINEL: &str = "run.last/cluster-api/bootstrap-success.complete";

/// Defines KubeadmControlPlane at the API server, with the field of the proposal.
fn definition() {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let text = fs::read_to_string(bin("kubeadmcontrolplanes.yaml")).unwrap();
        let mut definition = parsed(&text).remove(0);
        let versions = definition["spec"]["versions"].as_array_mut().unwrap();
        for version in versions {
            let spec =
                &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
            assert!(
                spec["externalCA"].is_null(),
                "Cluster API defines the field now: remove this addition"
            );
            spec["externalCA"] = json!({"type": "boolean"});
        }
        kubernetes().admin().create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        );
    });
}

/// Creates an object with strict validation: an unknown or duplicate field is an error.
fn create_strictly(admin: &Person, path: &str, object: &Value) {
    let call = Call::post(format!("{path}?fieldValidation=Strict"));
    let (status, answer) = admin.send(call.json(object));
    assert_eq!(status, 201, "{answer}");
}

/// Returns a management cluster with the objects of an example in it.
pub(super) fn plane(name: &str, secrets: &[&str]) -> Management {
    definition();
    let management = Management::new();
    management.apply(secrets).done();
    let admin = kubernetes().admin();
    let api = "/apis/controlplane.cluster.x-k8s.io/v1beta2";
    let planes = format!(
        "{api}/namespaces/{}/kubeadmcontrolplanes",
        management.namespace
    );
    wait_until("the API server serves KubeadmControlPlanes", || {
        admin.get(&planes).0 == 200
    });
    for mut object in parsed(&example(name)) {
        object["metadata"]["namespace"] = management.namespace.clone().into();
        let path = match object["kind"].as_str() {
            Some("Secret") => format!("/api/v1/namespaces/{}/secrets", management.namespace),
            _ => planes.clone(),
        };
        create_strictly(&admin, &path, &object);
    }
    management
}

fn user_data(management: &Management, role: &str) -> String {
    let output = Command::new(bin("cluster-api"))
        .arg("userdata")
        .arg(management.kubeconfig())
        .args([&management.namespace, "prod", role, ENDPOINT])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // A machine in a directory has no default route, which would determine its address.
    String::from_utf8(output.stdout).unwrap().replace(
        "localAPIEndpoint: {}",
        "localAPIEndpoint: {advertiseAddress: 192.0.2.11}",
    )
}

fn machine(user_data: &str) -> Machine {
    let machine = Machine::new();
    machine.user_data(user_data);
    machine
}

/// Asserts that a failed bootstrap fails the boot: kubeadm is not run, and the machine does not report success.
#[track_caller]
fn assert_bootstrap_failure_is_reported(user_data: &str) {
    let refused = machine(user_data);
    refused.stands_in("nodepki", "exit 65");
    let boot = refused.boot();
    boot.is("error");
    assert_eq!(
        (boot.count("nodepki"), boot.count("kubeadm")),
        (1, 0),
        "{:?}",
        boot.calls
    );
    assert!(!refused.path(SENTINEL).exists());
}

/// Asserts that the machine does not report success after a failed bootstrap, a unit that systemd skipped, or a failed
/// kubeadm.
#[track_caller]
fn assert_failures_are_reported(user_data: &str) {
    assert_bootstrap_failure_is_reported(user_data);
    let skipped = machine(user_data);
    skipped.stands_in("systemctl", "[ \"$1\" != is-active ] || exit 3");
    let boot = skipped.boot();
    boot.is("error");
    assert_eq!(boot.count("kubeadm"), 0, "{:?}", boot.calls);
    assert!(!skipped.path(SENTINEL).exists());

    let failed = machine(user_data);
    failed.stands_in("kubeadm", "exit 1");
    assert_eq!(failed.boot().count("kubeadm"), 1);
    assert!(!failed.path(SENTINEL).exists());
}

/// Boots the machine with a signer that is pending at first, and keeps its `/run`.
#[track_caller]
fn boot_with_slow_signer(machine: &Machine) {
    machine.stands_in("nodepki", "[ $calls -gt 2 ] || exit $((63 + calls * 6))");
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(
        (
            boot.count("nodepki bootstrap"),
            boot.count("kubeadm"),
            boot.count("sleep")
        ),
        (3, 1, 2)
    );
    assert_eq!(
        boot.count("systemctl enable --now nodepki-renew.timer nodepki-crl.timer"),
        1,
        "{:?}",
        boot.calls
    );
    assert!(machine.path(SENTINEL).exists());
    fs::remove_dir(machine.path("run")).unwrap();
    fs::rename(machine.path("run.last"), machine.path("run")).unwrap();
}

#[test]
fn boots_control_plane_of_current_cluster_api() {
    let management = plane("cluster-api.yaml", &["--placeholder-keys"]);
    assert!(!example("cluster-api.yaml").contains("externalCA"));
    let (init, join) = (
        user_data(&management, "init"),
        user_data(&management, "join"),
    );
    assert_failures_are_reported(&init);
    assert_bootstrap_failure_is_reported(&join);
    let first = machine(&init);
    boot_with_slow_signer(&first);
    first
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2, cluster prod, 12 certificates");
    kubeadm_takes(&first, "run/kubeadm/kubeadm.yaml");
    let joining = machine(&join);
    boot_with_slow_signer(&joining);
    joining
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2");
    kubeadm_takes(&joining, "run/kubeadm/kubeadm-join-config.yaml");
    // The placeholders in the user data were removed; a private key is kept.
    for text in [&init, &join] {
        assert!(text.contains("/etc/kubernetes/pki/ca.key") && !text.contains("PRIVATE KEY-----"));
    }
    for machine in [&first, &joining] {
        let exists = |name: &str| machine.path("etc/kubernetes/pki").join(name).exists();
        assert!(exists("ca.crt") && exists("etcd/ca.crt") && !exists("etcd/ca.key"));
        assert!(!exists("ca.key") && !exists("front-proxy-ca.key"));
    }
    let planted = machine(&init.replace(
        "runcmd:\n",
        "runcmd:\n  - echo '-----BEGIN EC PRIVATE KEY-----' >/etc/kubernetes/pki/front-proxy-ca.key\n",
    ));
    planted.boot();
    assert!(
        planted
            .path("etc/kubernetes/pki/front-proxy-ca.key")
            .exists()
    );
}

/// With the proposal, no CA key exists, and a joining node has the ClusterConfiguration too. The current code of Cluster
/// API reads the certificates from the Secrets of `--format both`.
#[test]
fn boots_control_plane_of_proposal() {
    let management = plane("cluster-api-proposal.yaml", &["--format", "both"]);
    let init = user_data(&management, "init");
    assert!(!init.contains("ca.key"), "{init}");
    let first = machine(&init);
    boot_with_slow_signer(&first);
    first
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2, cluster prod, 12 certificates");

    let join = user_data(&management, "join");
    let joining = machine(&with_file_of(&join, &init, "/run/kubeadm/kubeadm.yaml"));
    boot_with_slow_signer(&joining);
    joining
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2, cluster prod");
    let plan = joining.nodepki(&["plan"]);
    plan.says("etcd-server").says_not("kubeadm-config");
    for machine in [&first, &joining] {
        assert!(
            machine
                .content("etc/kubernetes")
                .iter()
                .all(|(path, _)| path.extension() != Some("key".as_ref()))
        );
    }
}

/// Returns user data with the addition of a file that other user data write.
fn with_file_of(user_data: &str, other: &str, path: &str) -> String {
    let data = |text: &str| parsed(&text.replace("## template: jinja\n", "")).remove(0);
    let mut merged = data(user_data);
    let files = data(other)["write_files"].as_array().unwrap().clone();
    let file = files.into_iter().find(|file| file["path"] == path).unwrap();
    merged["write_files"].as_array_mut().unwrap().push(file);
    format!("## template: jinja\n#cloud-config\n{merged}\n")
}
