//! The examples below `cloud-init/`: the real cloud-init judges them, nodepki and kubeadm read what they write, and a real
//! API server and Cluster API's own code take the KubeadmControlPlane.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use nodepki::http::Call;
use nodepki::yaml;
use serde_json::Value;

use crate::capi::Management;
use crate::kubeadm;
use crate::node::{NODEPKI, Ran};
use crate::servers::bin;
use crate::servers::kubernetes::{Person, kubernetes};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cloud-init");

fn example(name: &str) -> String {
    fs::read_to_string(format!("{EXAMPLES}/{name}")).unwrap()
}

fn parsed(text: &str) -> Vec<Value> {
    let documents = yaml::parse("example", text).unwrap_or_else(|faults| panic!("{faults}"));
    documents.iter().map(yaml::to_json).collect()
}

fn cloud_init(text: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("user-data");
    fs::write(&file, text).unwrap();
    Command::new(bin("cloud-init"))
        .args(["schema", "--config-file"])
        .arg(file)
        .output()
        .unwrap()
}

/// What user data makes of a machine, in a directory.
struct Machine {
    root: tempfile::TempDir,
    commands: Vec<String>,
}

impl Machine {
    /// # Panics
    /// When cloud-init does not take it, or a file with a secret is open to others.
    fn of(user_data: &str) -> Self {
        let judged = cloud_init(user_data);
        assert!(judged.status.success(), "{judged:?}\n{user_data}");
        let data = parsed(user_data).remove(0);
        let root = tempfile::tempdir().unwrap();
        for file in data["write_files"].as_array().unwrap() {
            let path = root
                .path()
                .join(file["path"].as_str().unwrap().trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, file["content"].as_str().unwrap()).unwrap();
            let mode = u32::from_str_radix(file["permissions"].as_str().unwrap(), 8).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let commands = data["runcmd"].as_array().unwrap().iter();
        Machine {
            root,
            commands: commands
                .map(|line| line.as_str().unwrap().to_owned())
                .collect(),
        }
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.path().join(path)).unwrap()
    }

    fn config_check(&self) -> Ran {
        Ran::of(
            Command::new(NODEPKI)
                .arg("--root")
                .arg(self.root.path())
                .args(["config", "check"]),
        )
    }

    /// kubeadm takes a file for what it is.
    fn kubeadm_takes(&self, path: &str) {
        let output = Command::new(kubeadm::binary())
            .args(["config", "validate", "--config"])
            .arg(self.root.path().join(path))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Runs the commands as cloud-init does, one script, with programs in the place of nodepki and kubeadm. Gives the
    /// status and what they were called with.
    fn run(&self, nodepki: &str) -> (Option<i32>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        for (name, does) in [
            ("nodepki", nodepki),
            ("kubeadm", "exit 0"),
            ("sleep", "exit 0"),
            ("rm", "exit 0"),
        ] {
            let text = format!(
                "#!/bin/sh\necho {name} \"$@\" >>{0}\ncalls=$(grep -c ^{name} {0})\n{does}\n",
                log.display()
            );
            let program = dir.path().join(name);
            fs::write(&program, text).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = std::env::var("PATH").unwrap();
        let status = Command::new("sh")
            .arg("-c")
            .arg(
                self.commands
                    .join("\n")
                    .replace("/run/cluster-api/", &format!("{}/", dir.path().display())),
            )
            .env("PATH", format!("{}:{path}", dir.path().display()))
            .status()
            .unwrap();
        let log = fs::read_to_string(log).unwrap();
        (status.code(), log.lines().map(str::to_owned).collect())
    }

    /// kubeadm is run after nodepki has done its work, after what passes, and not at all after anything else.
    fn kubeadm_waits_for_nodepki(&self) {
        let (status, patient) =
            self.run("[ \"$1\" != bootstrap ] || [ $calls -gt 2 ] || exit $((63 + calls * 6))");
        assert_eq!(status, Some(0), "{patient:?}");
        let boots = patient
            .iter()
            .filter(|line| line.starts_with("nodepki bootstrap"))
            .count();
        assert_eq!(boots, 3, "{patient:?}");
        assert!(
            patient.iter().any(|line| line.starts_with("kubeadm ")),
            "{patient:?}"
        );
        let (status, refused) = self.run("exit 65");
        assert_eq!(status, Some(1));
        let called = refused
            .iter()
            .filter(|line| !line.starts_with("rm "))
            .count();
        assert_eq!(called, 1, "{refused:?}");
    }
}

#[test]
fn cloud_init_refuses_what_is_wrong() {
    assert!(!cloud_init("#cloud-config\nruncmd: 5\n").status.success());
}

#[test]
fn the_first_node() {
    let machine = Machine::of(&example("user-data-first.yaml"));
    machine
        .config_check()
        .done()
        .says("node cp1, cluster prod, 12 certificates");
    machine.kubeadm_takes("etc/nodepki/kubeadm.yaml");
    machine.kubeadm_waits_for_nodepki();
    let modes = fs::read_dir(machine.root.path().join("etc/nodepki")).unwrap();
    for entry in modes {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn a_joining_node() {
    let machine = Machine::of(&example("user-data-join.yaml"));
    machine.config_check().done().says("node cp2");
    machine.kubeadm_takes("etc/nodepki/kubeadm.yaml");
    machine.kubeadm_waits_for_nodepki();
    // The two are of one cluster.
    let first = Machine::of(&example("user-data-first.yaml"));
    let signers = |machine: &Machine| {
        let settings = parsed(&machine.read("etc/nodepki/config.yaml")).remove(0);
        (settings["signers"].clone(), settings["authorities"].clone())
    };
    assert_eq!(signers(&first), signers(&machine));
}

/// Sends objects with every unknown or doubled field an error.
fn create_strictly(admin: &Person, path: &str, object: &Value) {
    let call = Call::post(format!("{path}?fieldValidation=Strict"));
    let (status, answer) = admin.send(call.json(object));
    assert_eq!(status, 201, "{answer}");
}

#[test]
fn a_kubeadm_control_plane() {
    let management = Management::new();
    management.apply(&["--placeholder-keys"]).done();
    let admin = kubernetes().admin();
    let crd = fs::read(bin("kubeadmcontrolplanes.yaml")).unwrap();
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (status, answer) = admin.send(Call::post(crds).body("application/yaml", crd));
    assert_eq!(status, 201, "{answer}");
    let api = "/apis/controlplane.cluster.x-k8s.io/v1beta2";
    let planes = format!(
        "{api}/namespaces/{}/kubeadmcontrolplanes",
        management.namespace
    );
    let begin = std::time::Instant::now();
    while admin.get(&planes).0 != 200 {
        assert!(
            begin.elapsed().as_secs() < 30,
            "the API server does not serve {planes}"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    for mut object in parsed(&example("cluster-api.yaml")) {
        object["metadata"]["namespace"] = management.namespace.clone().into();
        let path = match object["kind"].as_str() {
            Some("Secret") => format!("/api/v1/namespaces/{}/secrets", management.namespace),
            _ => planes.clone(),
        };
        create_strictly(&admin, &path, &object);
    }
    let user_data = |role: &str| {
        let output = Command::new(bin("cluster-api"))
            .arg("userdata")
            .arg(management.kubeconfig())
            .args([
                &management.namespace,
                "prod",
                role,
                "api.prod.example.com:6443",
            ])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        // What cloud-init makes of it, and of an address that a machine in a directory has no route to know.
        String::from_utf8(output.stdout)
            .unwrap()
            .replace("## template: jinja\n", "")
            .replace("{{ ds.meta_data.local_hostname }}", "cp1")
            .replace(
                "localAPIEndpoint: {}",
                "localAPIEndpoint: {advertiseAddress: 192.0.2.11}",
            )
    };
    let first = Machine::of(&user_data("init"));
    first
        .config_check()
        .done()
        .says("node cp1, cluster prod, 12 certificates");
    first.kubeadm_takes("run/kubeadm/kubeadm.yaml");
    first.kubeadm_waits_for_nodepki();
    let joining = Machine::of(&user_data("join"));
    joining.config_check().done().says("node cp1");
    joining.kubeadm_takes("run/kubeadm/kubeadm-join-config.yaml");
    joining.kubeadm_waits_for_nodepki();
    for machine in [first, joining] {
        let pki = machine.root.path().join("etc/kubernetes/pki");
        let is_there = |name: &str| pki.join(name).exists();
        assert!(is_there("ca.crt") && is_there("etcd/ca.crt") && !is_there("etcd/ca.key"));
        assert!(is_there("ca.key") && is_there("front-proxy-ca.key"));
        assert!(
            !machine
                .read("etc/kubernetes/pki/ca.key")
                .contains("PRIVATE KEY")
        );
        // The placeholders go, a key would stay.
        fs::write(
            pki.join("front-proxy-ca.key"),
            "-----BEGIN EC PRIVATE KEY-----\n",
        )
        .unwrap();
        shell(&machine.commands[0], machine.root.path());
        assert!(!is_there("ca.key") && is_there("front-proxy-ca.key"));
    }
}

/// Runs a command with the machine's directory for `/etc`.
fn shell(command: &str, root: &Path) {
    let command = command.replace("/etc/", &format!("{}/etc/", root.display()));
    let status = Command::new("sh")
        .args(["-euc", &command])
        .status()
        .unwrap();
    assert!(status.success());
}
