//! The KubeadmControlPlanes: a real API server takes them, Cluster API's own code makes user data of them, and the real
//! cloud-init runs these.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nodepki::http::Call;
use serde_json::{Value, json};

use super::machine::Machine;
use super::{example, kubeadm_takes, parsed};
use crate::capi::Management;
use crate::servers::bin;
use crate::servers::kubernetes::{Person, kubernetes};

const ENDPOINT: &str = "api.prod.example.com:6443";
/// The file by which Cluster API recognizes the machine's success.
const SENTINEL: &str = "run.last/cluster-api/bootstrap-success.complete";

/// Has the API server know KubeadmControlPlane, with the field of the proposal.
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
                "Cluster API has it now: no need to add it"
            );
            spec["externalCA"] = json!({"type": "boolean"});
        }
        kubernetes().admin().create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        );
    });
}

/// Sends objects with every unknown or doubled field an error.
fn create_strictly(admin: &Person, path: &str, object: &Value) {
    let call = Call::post(format!("{path}?fieldValidation=Strict"));
    let (status, answer) = admin.send(call.json(object));
    assert_eq!(status, 201, "{answer}");
}

/// A management cluster with the objects of an example in it.
fn plane(name: &str, secrets: &[&str]) -> Management {
    definition();
    let management = Management::new();
    management.apply(secrets).done();
    let admin = kubernetes().admin();
    let api = "/apis/controlplane.cluster.x-k8s.io/v1beta2";
    let planes = format!(
        "{api}/namespaces/{}/kubeadmcontrolplanes",
        management.namespace
    );
    let begin = Instant::now();
    while admin.get(&planes).0 != 200 {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "the API server does not serve {planes}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
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
    // A machine in a directory has no route by which to know its address.
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

/// kubeadm is not run on half a PKI, and nothing tells of success.
#[track_caller]
fn is_refused(user_data: &str) {
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

/// Nor when systemd had no reason to start the unit, nor when kubeadm itself has failed.
#[track_caller]
fn tells_the_truth(user_data: &str) {
    is_refused(user_data);
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

/// Boots the machine with a signer that takes its time, and leaves `/run` for others to look at.
#[track_caller]
fn is_patient(machine: &Machine) {
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
        boot.count("systemctl enable --now nodepki-renew.timer"),
        1,
        "{:?}",
        boot.calls
    );
    assert!(machine.path(SENTINEL).exists());
    fs::remove_dir(machine.path("run")).unwrap();
    fs::rename(machine.path("run.last"), machine.path("run")).unwrap();
}

#[test]
fn todays_control_plane() {
    let management = plane("cluster-api.yaml", &["--placeholder-keys"]);
    assert!(!example("cluster-api.yaml").contains("externalCA"));
    let (init, join) = (
        user_data(&management, "init"),
        user_data(&management, "join"),
    );
    tells_the_truth(&init);
    is_refused(&join);
    let first = machine(&init);
    is_patient(&first);
    first
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2, cluster prod, 12 certificates");
    kubeadm_takes(&first, "run/kubeadm/kubeadm.yaml");
    let joining = machine(&join);
    is_patient(&joining);
    joining
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2");
    kubeadm_takes(&joining, "run/kubeadm/kubeadm-join-config.yaml");
    // Placeholders came with the user data and have gone; a key would have stayed.
    for text in [&init, &join] {
        assert!(text.contains("/etc/kubernetes/pki/ca.key") && !text.contains("PRIVATE KEY-----"));
    }
    for machine in [&first, &joining] {
        let is_there = |name: &str| machine.path("etc/kubernetes/pki").join(name).exists();
        assert!(is_there("ca.crt") && is_there("etcd/ca.crt") && !is_there("etcd/ca.key"));
        assert!(!is_there("ca.key") && !is_there("front-proxy-ca.key"));
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

/// As the proposal has it: no key of a CA anywhere, and the joining node has the ClusterConfiguration too. Cluster API's
/// code of today reads the certificates from the Secrets of `--format both`.
#[test]
fn the_control_plane_of_the_proposal() {
    let management = plane("cluster-api-proposal.yaml", &["--format", "both"]);
    let init = user_data(&management, "init");
    assert!(!init.contains("ca.key"), "{init}");
    let first = machine(&init);
    is_patient(&first);
    first
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2, cluster prod, 12 certificates");

    let join = user_data(&management, "join");
    let joining = machine(&with_file_of(&join, &init, "/run/kubeadm/kubeadm.yaml"));
    is_patient(&joining);
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

/// User data with a file that other user data write.
fn with_file_of(user_data: &str, other: &str, path: &str) -> String {
    let data = |text: &str| parsed(&text.replace("## template: jinja\n", "")).remove(0);
    let mut merged = data(user_data);
    let files = data(other)["write_files"].as_array().unwrap().clone();
    let file = files.into_iter().find(|file| file["path"] == path).unwrap();
    merged["write_files"].as_array_mut().unwrap().push(file);
    format!("## template: jinja\n#cloud-config\n{merged}\n")
}
