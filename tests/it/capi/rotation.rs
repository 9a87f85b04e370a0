//! A CA changes in the workload cluster: the machines that Cluster API's controllers create in each phase trust the others,
//! and the others trust them.

use std::fs;
use std::path::PathBuf;

use nodepki::kube::names::Authority;
use nodepki::spec::authority_rotation::{AuthorityRotation, RotatedCa, RotationPhase};
use nodepki::text::hex;
use nodepki::x509::certificates_of;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use crate::authority::{new_key, self_signed};
use crate::signing::openssl;

const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const NAME: &str = "nodepki-authority-rotation";
/// CA that the controllers do not use themselves: their connections do not depend on the phase.
const AUTHORITY: Authority = Authority::FrontProxyCa;

#[test]
fn machine_of_each_phase_trusts_and_is_trusted() {
    let mut plane = ControlPlane::start(
        "rotation",
        &["--placeholder-keys", "--etcd-client-ca"],
        1,
        |_| {},
    );
    let signer = plane.management.node.ca().join(AUTHORITY.base_name());
    let old = fs::read_to_string(signer.with_extension("crt")).unwrap();
    let key = new_key();
    let key_pem = key.to_pem().to_string();
    let new = self_signed(AUTHORITY, key).bundle().to_pem();
    let cas = [&old, &new].map(|pem| rotated(pem));
    let mut rotation = AuthorityRotation::new("test", AUTHORITY, cas);
    let mut machines = vec![next_machine(&mut plane, &[])];
    for phase in [
        RotationPhase::Trust,
        RotationPhase::Activate,
        RotationPhase::Retire,
    ] {
        rotation.phase = phase;
        publish(&plane, &rotation);
        if phase == RotationPhase::Activate {
            fs::write(signer.with_extension("crt"), &new).unwrap();
            fs::write(signer.with_extension("key"), &key_pem).unwrap();
        }
        let kubeconfig = plane.management.kubeconfig();
        let workload = ["--workload-kubeconfig", kubeconfig.to_str().unwrap()];
        plane
            .apply_secrets(&[&["--placeholder-keys"], &workload[..]].concat())
            .done();
        plane.edit(|object| object["spec"]["replicas"] = json!(machines.len() + 1));
        machines.push(next_machine(&mut plane, &machines));
    }
    let pki = |name: &String, file: &str| -> PathBuf { plane.machine(name).pki(file) };
    let bundles = machines.iter().map(|name| {
        let pem = fs::read_to_string(pki(name, "front-proxy-ca.crt")).unwrap();
        certificates_of(pem.as_bytes()).unwrap()
    });
    let expected = [
        old.clone(),
        format!("{old}{new}"),
        format!("{new}{old}"),
        new.clone(),
    ];
    let expected = expected.map(|pem| certificates_of(pem.as_bytes()).unwrap());
    assert!(bundles.eq(expected));
    // No node is more than one phase behind another.
    for neighbours in machines.windows(2) {
        for (verifier, presenter) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let [verifier, presenter] = [verifier, presenter].map(|place| &neighbours[place]);
            let authority = pki(verifier, "front-proxy-ca.crt");
            let leaf = pki(presenter, "front-proxy-client.crt");
            let files = [authority.to_str().unwrap(), leaf.to_str().unwrap()];
            openssl(&["verify", "-CAfile", files[0], files[1]], b"");
        }
    }
}

fn rotated(pem: &str) -> RotatedCa {
    let certificate = &certificates_of(pem.as_bytes()).unwrap()[0];
    RotatedCa {
        sha256: hex(&certificate.fingerprint()),
        certificate: pem.to_owned(),
    }
}

/// Writes the rotation as its leader does.
fn publish(plane: &ControlPlane, rotation: &AuthorityRotation) {
    let text = serde_json::to_string(rotation).unwrap();
    let data = json!({(AUTHORITY.as_str()): text});
    let admin = plane.management.cluster.admin();
    let (status, _) = admin.get(&format!("{CONFIG_MAPS}/{NAME}"));
    if status == 200 {
        plane.update(&format!("{CONFIG_MAPS}/{NAME}"), |object| {
            object["data"] = data.clone();
        });
        return;
    }
    let object: Value =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": NAME}, "data": data});
    admin.create(CONFIG_MAPS, &object);
}

/// Waits for one more machine, and returns its name.
fn next_machine(plane: &mut ControlPlane, known: &[String]) -> String {
    plane.run_until("one more machine", |plane| {
        let names = plane.machine_names();
        names.len() == known.len() + 1 && plane.object()["status"]["readyReplicas"] == names.len()
    });
    let mut names = plane.machine_names().into_iter();
    names.find(|name| !known.contains(name)).unwrap()
}
