//! The texts below `cloud-init/`: the real cloud-init validates, merges and runs them, nodepki and kubeadm read the files
//! that they write, a real OpenBao unwraps the wrapped credentials, and a real API server and Cluster API's own code accept
//! the KubeadmControlPlanes.

mod cluster_api;
mod ignition;
pub(crate) mod machine;
mod running;
mod secrets;
mod wrapped;

use std::fs;
use std::path::Path;
use std::process::Command;

use nodepki::signer::SignerKind;
use nodepki::yaml;
use serde_json::{Value, json};

use crate::kubeadm;
use machine::{Machine, cloud_init};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cloud-init");

/// The command of README.md that combines a flow and a signer.
const COMPOSE: &str =
    "{ cat user-data-first.yaml; sed '1,/^bootcmd:/d' signers/vault.yaml; } >user-data";

pub(crate) fn example(name: &str) -> String {
    fs::read_to_string(format!("{EXAMPLES}/{name}")).unwrap()
}

/// Returns the names of the signers' parts.
fn signers() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(format!("{EXAMPLES}/signers"))
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    names.sort();
    names
}

/// Returns the command of README.md that creates user data for a worker.
fn worker_command() -> String {
    let page = example("README.md");
    let (_, section) = page.split_once("### Workers").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    block.split_once("\n```").unwrap().0.to_owned()
}

#[test]
fn edits_turn_joining_user_data_into_that_of_a_worker() {
    let command = worker_command();
    let (command, file) = command.split_once(" >").unwrap();
    assert_eq!(file, "user-data-worker.yaml");
    let edited = Command::new("sh")
        .args(["-euc", command])
        .current_dir(EXAMPLES)
        .output()
        .unwrap();
    assert!(edited.status.success());
    let text = String::from_utf8(edited.stdout).unwrap();
    assert!(!text.contains("certificateKey:") && !text.contains("/etc/nodepki/certificate-key"));
    // All other lines are those of a joining node, in the same order.
    let joining = example("user-data-join.yaml");
    let mut lines = joining.lines();
    assert!(
        text.lines().all(|line| lines.any(|of| of == line)),
        "{text}"
    );
    assert!(text.contains("kubeadm join --config") && text.contains("nodepki-renew.timer"));

    let file = |path: &str| {
        let (_, rest) = text.split_once(&format!("put {path} <<'EOF'\n")).unwrap();
        let (content, _) = rest.split_once("\n    EOF").unwrap();
        content.replace("\n    ", "\n").trim_start().to_owned()
    };
    let loaded =
        nodepki::kube::kubeadm::load(&[("kubeadm.yaml", file("/etc/nodepki/kubeadm.yaml"))]);
    assert_eq!(
        loaded.role(),
        Some(nodepki::kube::kubeadm::KubeadmRole::Worker)
    );
    assert!(!loaded.faults().has_errors(), "{:?}", loaded.faults());
    let settings = file("/etc/nodepki/config.d/20-node.yaml");
    let fragments = [("20-node.yaml", settings)];
    let (settings, _) = nodepki::config::Settings::from_fragments(&fragments).unwrap();
    assert!(settings.join.certificate_key.is_none());
}

/// Combines a flow and a signer in one text, as README.md says.
fn composed(flow: &str, signer: &str) -> String {
    let command = COMPOSE
        .replace("user-data-first.yaml", flow)
        .replace("vault", signer)
        .replace(" >user-data", "");
    let output = Command::new("sh")
        .args(["-euc", &command])
        .current_dir(EXAMPLES)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn parsed(text: &str) -> Vec<Value> {
    let documents =
        yaml::parse("example", text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    documents.iter().map(yaml::to_json).collect()
}

/// Returns the templates as cloud-init renders them on an instance with these data.
fn rendered(texts: &[String], instance: &Value) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("instance-data.json");
    fs::write(&data, instance.to_string()).unwrap();
    let runs: Vec<String> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| {
            let file = dir.path().join(at.to_string());
            fs::write(&file, text).unwrap();
            format!("devel render -i {} {}", data.display(), file.display())
        })
        .collect();
    let ran = cloud_init(&runs);
    let texts: Vec<String> = runs
        .iter()
        .scan(ran.stdout.as_str(), |rest, run| {
            let (text, more) = rest.split_once(&format!("== {run}: 0\n"))?;
            *rest = more;
            Some(format!("{}\n", text.trim_end()))
        })
        .collect();
    assert_eq!(texts.len(), runs.len(), "{}", ran.said());
    for text in &texts {
        assert!(
            !text.contains("CI_MISSING_JINJA_VAR") && !text.contains("{%"),
            "{text}"
        );
    }
    texts
}

/// Returns the output of `cloud-init schema` for each text that it rejects.
fn faults(texts: &[String]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let runs: Vec<String> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| {
            let file = dir.path().join(at.to_string());
            fs::write(&file, text).unwrap();
            format!("schema --config-file {}", file.display())
        })
        .collect();
    let ran = cloud_init(&runs);
    let passed = |run: &&String| !ran.stdout.contains(&format!("== {run}: 0\n"));
    runs.iter()
        .filter(passed)
        .map(|run| format!("{run}:\n{}", ran.said()))
        .collect()
}

/// Returns the data of an instance that a template sees.
fn instance(more: &[(&str, &str)]) -> Value {
    let mut meta_data = json!({"local_hostname": "cp2", "local_ipv4": "192.0.2.12"});
    for (key, value) in more {
        meta_data[key] = json!(value);
    }
    json!({"v1": {"local_hostname": "cp2"}, "ds": {"meta_data": meta_data}})
}

/// Returns the vendor data, rendered for a first and for a joining node.
fn vendor_data() -> Vec<String> {
    let text = [example("vendor-data.yaml")];
    let joins = [
        ("nodepki_role", "join"),
        ("join_token", "abcdef.0123456789abcdef"),
        ("certificate_key", "00"),
    ];
    [&[("nodepki_role", "first")][..], &joins]
        .iter()
        .flat_map(|more| rendered(&text, &instance(more)))
        .collect()
}

/// Returns every text that a machine may be given, with a name.
fn all() -> Vec<(String, String)> {
    let mut named = Vec::new();
    let mut joining = Vec::new();
    for signer in signers() {
        named.push((
            format!("first, {signer}"),
            composed("user-data-first.yaml", &signer),
        ));
        joining.push((
            format!("join, {signer}"),
            composed("user-data-join.yaml", &signer),
        ));
    }
    let (names, texts): (Vec<_>, Vec<_>) = joining.into_iter().unzip();
    named.extend(names.into_iter().zip(rendered(&texts, &instance(&[]))));
    let roles = ["vendor data, first", "vendor data, join"].map(str::to_owned);
    named.extend(roles.into_iter().zip(vendor_data()));
    named
}

#[test]
fn every_kind_of_signer_has_a_part() {
    let names = signers();
    for kind in SignerKind::ALL {
        assert!(
            names.contains(&kind.to_string()),
            "cloud-init/signers/{kind}.yaml is missing"
        );
    }
    let readme = example("README.md");
    assert!(readme.contains(&format!("\n{COMPOSE}\n")));
    for name in names {
        assert!(
            readme.contains(&format!("| `{name}` |")),
            "README.md does not mention signers/{name}.yaml"
        );
    }
}

/// `nodepki-renew.timer` renews certificates only, and Vault publishes revocation lists.
#[test]
fn texts_with_vault_enable_timer_of_revocation_lists() {
    let mut count = 0;
    for folder in [".", "signers", "ignition"] {
        for entry in fs::read_dir(Path::new(EXAMPLES).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            if !name.ends_with(".yaml") && !name.ends_with(".bu") {
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            if text.contains("mount: pki/{authority}") {
                assert!(text.contains("nodepki-crl.timer"), "{name}");
                count += 1;
            }
        }
    }
    assert!(count >= 8);
}

#[test]
fn cloud_init_accepts_every_flow_with_every_signer() {
    let (_, texts): (Vec<_>, Vec<_>) = all().into_iter().unzip();
    assert_eq!(faults(&texts), [""; 0]);
    let parts: Vec<String> = signers()
        .iter()
        .map(|name| example(&format!("signers/{name}.yaml")))
        .collect();
    assert_eq!(faults(&parts), [""; 0]);
    assert_eq!(faults(&["#cloud-config\nbootcmd: 5\n".to_owned()]).len(), 1);
}

/// Runs each `bootcmd` three times, and has nodepki and kubeadm validate the files that it has written.
#[test]
fn nodepki_and_kubeadm_accept_written_files() {
    for (name, text) in all() {
        let machine = Machine::new();
        let script = bootcmd(&text);
        machine.run(["sh", "-c", &script]).done();
        let before = machine.content("etc");
        machine.run(["sh", "-c", &script]).done();
        assert!(
            before == machine.content("etc"),
            "{name}: a second boot changes something"
        );
        let changed = ["kubeadm.yaml", "config.d/30-signer.yaml"].map(|file| {
            let file = machine.path(&format!("etc/nodepki/{file}"));
            (
                file.clone(),
                fs::read_to_string(file).unwrap() + "# local\n",
            )
        });
        for (file, text) in &changed {
            fs::write(file, text).unwrap();
        }
        machine.run(["sh", "-c", &script]).done();
        for (file, text) in &changed {
            assert_eq!(fs::read_to_string(file).unwrap(), *text, "{name}");
        }
        machine.assert_secrets_are_private();
        let says = if name.contains("first") {
            "cluster prod, 12 certificates"
        } else {
            "node cp2"
        };
        let ran = machine.nodepki(&["config", "check"]);
        assert!(
            ran.code == Some(0) && ran.said().contains(says),
            "{name}: {}",
            ran.said()
        );
        kubeadm_takes(&machine, "etc/nodepki/kubeadm.yaml");
        let calls = machine.read("calls");
        let enabled = "systemctl enable --now --no-block nodepki-bootstrap.service\n";
        assert_eq!(calls.matches(enabled).count(), 3, "{name}: {calls}");
        // systemd must reload changed units.
        let units = machine.path("etc/systemd/system").exists();
        assert_eq!(
            units,
            calls.contains("systemctl daemon-reload\n"),
            "{name}: {calls}"
        );
    }
}

/// Returns the commands that cloud-init passes to the shell.
fn bootcmd(text: &str) -> String {
    let data = parsed(text).remove(0);
    let commands = data["bootcmd"].as_array().unwrap().iter();
    commands
        .map(|command| format!("{}\n", command.as_str().unwrap()))
        .collect()
}

fn kubeadm_takes(machine: &Machine, file: &str) {
    let output = Command::new(kubeadm::binary())
        .args(["config", "validate", "--config"])
        .arg(machine.path(file))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
