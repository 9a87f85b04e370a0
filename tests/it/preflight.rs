//! `nodepki preflight` and `nodepki doctor --online`: the table, the exit status, the fixes, and that nothing is written.
//!
//! `contract::*::passes_preflight_without_request_or_change` and `contract::*::reports_bad_responses_in_preflight` run it
//! against the server of every kind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nodepki::kube::names::Authority;
use nodepki::signer::SignerKind;
use nodepki::text::hex;
use serde_json::{Value, json};

use crate::kubeadm;
use crate::node::{INIT, JOIN, Node, Ran};
use crate::rig::{node, rig};
use crate::servers::vault::{Bao, put};
use crate::signing::{HEAD, now};

fn preflight(node: &Node) -> Ran {
    Ran::of(&mut node.configured(["preflight", "--wait", "0s"]))
}

/// The check of a JSON report with this id and subject.
#[track_caller]
fn check<'r>(report: &'r Value, id: &str, subject: Option<&str>) -> &'r Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks
        .iter()
        .find(|check| check["id"] == id && check["subject"].as_str() == subject);
    found.unwrap_or_else(|| panic!("no {id} {subject:?} in {report:#}"))
}

#[test]
fn prints_one_line_for_each_check_and_next_command() {
    let node = Node::new();
    let ran = preflight(&node);
    ran.done();
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("RESULT"), "{}", ran.said());
    let next = lines.last().unwrap();
    let (_, command) = next.split_once("next: ").unwrap();
    let (_, arguments) = command.split_once("nodepki ").unwrap();
    // The command works as printed.
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let mut command = std::process::Command::new(crate::node::NODEPKI);
    Ran::of(command.args(arguments)).done();
    assert!(!preflight(&node).done().closing().contains("next:"));
}

#[test]
fn prints_json_with_version_and_kind() {
    let node = Node::new();
    let ran = Ran::of(&mut node.configured(["preflight", "-o", "json"]));
    ran.done();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["apiVersion"], "nodepki.io/v1alpha1");
    assert_eq!(report["kind"], "Preflight");
    assert_eq!(check(&report, "signer", Some("s"))["result"], "ok");
    assert_eq!(check(&report, "authority", Some("etcd-ca"))["exitCode"], 0);
}

#[test]
fn passes_with_local_and_embedded_signer() {
    let node = Node::new();
    Ran::of(&mut node.with_local(&["preflight"], &[]))
        .done()
        .says("local-signer");
    let empty = Node::new();
    fs::remove_dir_all(empty.path("/etc/kubernetes/pki")).unwrap();
    let mut command = empty.command(["preflight", "--signer", "embedded", "--kubeadm-config"]);
    Ran::of(command.arg(empty.outside("kubeadm.yaml"))).done();
    // An embedded authority cannot sign for the CA of another one.
    let mut command = node.command(["preflight", "--signer", "embedded", "--kubeadm-config"]);
    Ran::of(command.arg(node.outside("kubeadm.yaml")))
        .ended(65)
        .says("signs with another ca");
}

/// Without ca.crt, nothing but the certificates in place shows that the signer has another CA.
#[test]
fn reports_other_ca_than_that_of_certificates_in_place() {
    let node = Node::bootstrapped();
    node.remove("/etc/kubernetes/pki/ca.crt");
    for extension in ["crt", "key"] {
        let file = |name: &str| node.ca().join(name).with_extension(extension);
        fs::copy(file("front-proxy-ca"), file("ca")).unwrap();
    }
    for command in ["preflight", "bootstrap"] {
        Ran::of(&mut node.with_local(&[command], &[]))
            .ended(65)
            .says("ca.crt is absent, and the signer has another CA");
    }
}

#[test]
fn reports_every_fault_of_configuration() {
    let node = Node::new();
    node.edit_settings("signer: s", "signer: other");
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P257"));
    preflight(&node)
        .ended(78)
        .says("other")
        .says("ECDSA-P257")
        .says("skipped");
}

#[test]
fn ends_with_78_without_signer() {
    let node = Node::new();
    node.write_settings(HEAD);
    preflight(&node)
        .ended(78)
        .says("authority ca has no signer");
}

/// A node whose requests are signed offline needs no signer until a certificate is due.
#[test]
fn warns_of_missing_signer_if_nothing_is_due() {
    let node = Node::bootstrapped();
    node.write_settings(HEAD);
    preflight(&node)
        .done()
        .says("authority ca has no signer: its certificates are complete");
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    preflight(&node)
        .ended(78)
        .says("authority ca has no signer; name one")
        .says("authority etcd-ca has no signer: its certificates are complete");
}

#[test]
fn reports_exposed_secret_and_wrong_pin() {
    let bao = Bao::shared();
    let node = Node::new();
    let token = node.outside("token");
    fs::write(&token, "whatever").unwrap();
    let pin = "00".repeat(32);
    node.write_settings(&format!(
        "{HEAD}authorities: {{ca: {{trust: {{sha256: [\"{pin}\"]}}}}}}\n\
         signers: {{v: {{vault: {{address: \"{}\", mount: pki, auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
        bao.url(),
        token.display(),
        bao.ca_file().display()
    ));
    preflight(&node)
        .ended(65)
        .says(&format!("chmod 600 {}", token.display()))
        .says("does not match the pins of authority ca")
        .says("correct authorities.ca.trust.sha256 or the file");
}

#[test]
fn reports_sealed_server_as_unreachable() {
    let bao = Bao::start();
    bao.root().engine("pki");
    let node = Node::new();
    let token = put(node.ca().parent().unwrap(), "token", "whatever");
    node.write_settings(&format!(
        "{HEAD}signers: {{v: {{vault: {{address: \"{}\", mount: pki, auth: {{tokenFile: {}}}, tls: {{caFile: {}}}}}}}}}\n",
        bao.url(),
        token.display(),
        bao.ca_file().display()
    ));
    bao.root().write("sys/seal", json!({}));
    let ran = preflight(&node);
    ran.ended(69)
        .says("is sealed")
        .says("fix: ask the server's operators to unseal it");
    let doctor = Ran::of(&mut node.configured(["doctor", "--online"]));
    doctor.ended(65).says("signer-login").says("is sealed");
}

#[test]
fn doctor_names_offline_way_if_signer_fails() {
    let node = Node::new();
    node.settings("wait: 1s\n");
    node.ask().done();
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    Ran::of(&mut node.configured(["doctor"])).says("with --online, this command asks the signers");
    node.signer_does("all", "unreachable");
    let doctor = Ran::of(&mut node.configured(["doctor", "--online"]));
    doctor
        .ended(65)
        .says("and have the requests signed, or correct what `signer-login` reports");
    node.signer_behaves();
    let doctor = Ran::of(&mut node.configured(["doctor", "--online"]));
    doctor
        .says("which issues a new one; with the CA key")
        .says_not("signer-login");
}

#[test]
fn doctor_reports_that_no_signer_was_examined() {
    let (join, _) = JOIN.split_once("---").unwrap();
    let node = Node::of(join);
    let doctor = |arguments: &[&str]| Ran::of(&mut node.configured(arguments));
    doctor(&["doctor"]).says_not("signer-login");
    doctor(&["doctor", "--online"])
        .ended(65)
        .says("signer-login")
        .says("no signer was examined: ");
    node.configure(JOIN);
    doctor(&["doctor", "--online"]).says_not("no signer was examined");
}

/// A worker needs no kubeadm configuration after its join.
#[test]
fn doctor_reads_configuration_of_worker_without_kubeadm_file() {
    let node = Node::bootstrapped();
    let doctor = || {
        let mut command = node.command(["doctor", "--online", "--config"]);
        Ran::of(command.arg(node.outside("config.yaml")))
    };
    fs::remove_dir_all(node.path("/var/lib/nodepki")).unwrap();
    doctor().ended(65).says("no signer was examined");
    for file in ["admin", "super-admin", "controller-manager", "scheduler"] {
        node.remove(format!("/etc/kubernetes/{file}.conf"));
    }
    let ca = node.read("/etc/kubernetes/pki/ca.crt");
    fs::remove_dir_all(node.path("/etc/kubernetes/pki")).unwrap();
    node.write("/etc/kubernetes/pki/ca.crt", ca);
    doctor()
        .says_not("config-absent")
        .says_not("no signer was examined");
}

#[test]
fn reports_other_authority_and_missing_role() {
    let rig = rig(SignerKind::Vault);
    let node = node(&*rig);
    node.replace_authority(
        Authority::EtcdCa,
        now(),
        std::time::Duration::from_secs(3600),
    );
    let before = node.snapshot();
    let ran = Ran::of(&mut node.configured(["preflight", "--wait", "0s", "-o", "json"]));
    ran.ended(65);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let etcd = check(&report, "authority", Some("etcd-ca"));
    assert_eq!(etcd["exitCode"], 65, "{report:#}");
    assert_eq!(check(&report, "authority", Some("ca"))["result"], "ok");
    let doctor = Ran::of(&mut node.configured(["doctor", "--online"]));
    doctor.ended(65).says("signer-authority");
    // Without --online no signer is asked.
    Ran::of(&mut node.configured(["doctor"])).says_not("signer-");
    before.unchanged(&node.snapshot());

    let node = crate::rig::node(&*rig);
    node.edit_settings("mount:", "role: unknown, mount:");
    let ran = preflight(&node);
    let bootstrap = Ran::of(&mut node.configured(["bootstrap", "--wait", "0s"]));
    let setup = "or set the server up, and name its roles, as printed by `nodepki config signer-setup vault`";
    for ran in [&ran, &bootstrap] {
        ran.ended(78)
            .says("cannot sign apiserver, ")
            .says(setup)
            .says(" --kubeadm-config ");
    }
    assert_eq!(
        ran.stdout.matches("cannot sign").count(),
        3,
        "{}",
        ran.said()
    );
}

#[test]
fn revokes_its_token_and_keeps_one_time_credential() {
    let rig = rig(SignerKind::Vault);
    let node = node(&*rig);
    preflight(&node).done();
    assert!(!node.path("/var/lib/nodepki").exists());
    // A wrapped secret_id is left to the run that stores it.
    node.edit_settings("secretIDFile:", "wrapped: true, secretIDFile:");
    preflight(&node)
        .ended(78)
        .says("contains a plain secret_id, not a wrapping token");
    assert!(!node.path("/var/lib/nodepki").exists());
}

#[test]
fn prints_one_line_for_requests_that_wait_for_the_same_signer() {
    let node = Node::new();
    node.csr("export", &node.outside("bundle")).done();
    for entry in fs::read_dir(node.path("/var/lib/nodepki/pending")).unwrap() {
        let slot = entry.unwrap().path();
        let file = slot.join("ticket.json");
        let mut ticket: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let name = slot.file_name().unwrap().to_str().unwrap();
        ticket["last_error"] = json!({
            "class": "auth",
            "code": "submit",
            "detail": format!("signing {name} failed: HTTP 403"),
            "at": "2026-11-20T09:57:29Z",
        });
        fs::write(&file, ticket.to_string()).unwrap();
    }
    let ran = preflight(&node);
    ran.done()
        .says("apiserver, apiserver-etcd-client, ")
        .says("the last error of the first: signing ");
    assert_eq!(
        ran.stdout.matches("failed: HTTP 403").count(),
        1,
        "{}",
        ran.said()
    );
}

#[test]
fn names_ca_that_no_file_and_no_pin_confirms() {
    let rig = rig(SignerKind::StepCa);
    let node = node(&*rig);
    node.remove("/etc/kubernetes/pki/ca.crt");
    let ran = preflight(&node);
    ran.ended(78)
        .says("no file or pin confirms that it is the right one");
    let (_, pin) = ran.stdout.split_once("or pin sha256:").unwrap();
    let pin = &pin[..64];
    node.edit_settings(
        "ca: {signer: k}",
        &format!("ca: {{signer: k, trust: {{sha256: [\"{pin}\"]}}}}"),
    );
    preflight(&node)
        .done()
        .says("the CA is not on this node yet");
    node.edit_settings(pin, &hex(&[7; 32]));
    preflight(&node).ended(65).says("is refused");
}

#[test]
fn reports_one_ca_in_several_places_and_clock() {
    let node = Node::new();
    let ca = node.read("/etc/kubernetes/pki/ca.crt");
    node.write("/etc/kubernetes/pki/front-proxy-ca.crt", ca);
    preflight(&node)
        .ended(65)
        .says("warning  shared-authority")
        .says("fix: create a separate CA for front-proxy-ca");

    let node = Node::new();
    let tomorrow = now() + std::time::Duration::from_secs(86400);
    node.replace_authority(
        Authority::Ca,
        tomorrow,
        std::time::Duration::from_secs(86400),
    );
    preflight(&node).says("clock-behind").says("chrony");
}

#[test]
fn has_kubeadm_validate_its_file() {
    let node = Node::new();
    let programs = node.outside("bin");
    fs::create_dir(&programs).unwrap();
    symlink(kubeadm::binary(), programs.join("kubeadm")).unwrap();
    let run = || {
        let mut command = node.configured(["preflight", "--wait", "0s"]);
        Ran::of(command.env("PATH", format!("{}:/usr/bin:/bin", programs.display())))
    };
    run().done().says("kubeadm config validate accepts it");
    // Valid for nodepki, which does not read the networking of pods.
    node.configure(&format!(
        "{INIT}apiServer: {{timeoutForControlPlane: 4m}}\n"
    ));
    run()
        .ended(78)
        .says("kubeadm config validate refuses it")
        .says("timeoutForControlPlane");
}

#[test]
fn runs_no_kubeadm_of_another_user_or_of_the_image() {
    let node = Node::new();
    let ran = node.outside("ran");
    let script = format!("#!/bin/sh\ntouch {}\n", ran.display());
    let preflight = |programs: &Path| {
        let mut command = node.configured(["preflight", "--wait", "0s"]);
        Ran::of(command.env("PATH", format!("{}:/usr/bin:/bin", programs.display())))
    };
    let install = |programs: &Path| {
        fs::create_dir_all(programs).unwrap();
        let program = programs.join("kubeadm");
        fs::write(&program, &script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let writable = node.outside("bin");
    install(&writable);
    fs::set_permissions(&writable, fs::Permissions::from_mode(0o777)).unwrap();
    preflight(&writable)
        .says("kubeadm is not run: ")
        .says("is writable by others (mode 0777)");
    // A link of this machine leads into the image as well.
    let image = node.path("/usr/bin");
    install(&image);
    let link = node.outside("link");
    fs::create_dir(&link).unwrap();
    symlink(image.join("kubeadm"), link.join("kubeadm")).unwrap();
    for programs in [&image, &link] {
        preflight(programs).says("whose programs are not run");
    }
    assert!(!ran.exists());
    // The same program runs from a directory of this user only.
    fs::set_permissions(&writable, fs::Permissions::from_mode(0o755)).unwrap();
    preflight(&writable).says("kubeadm config validate accepts it");
    assert!(ran.exists());
}
