//! The texts below `cloud-init/ignition/`: the real Butane creates the configs, Ignition validates them and applies them to a
//! directory, and the machine in that directory runs what they install.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodepki::text::hex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use super::cluster_api::{ENDPOINT, SENTINEL, plane};
use super::machine::Machine;
use super::secrets::credentials;
use super::{EXAMPLES, example, kubeadm_takes};
use crate::capi::Management;
use crate::gateway::{Action, Gateway, Options, Rule};
use crate::node::{NODEPKI, Ran};
use crate::servers::bin;
use crate::signing::write_authorities;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");
const NODES: [&str; 2] = ["first", "join"];
/// The address of the program in the texts.
const PROGRAM_URL: &str = "https://downloads.example.com/nodepki";
/// The path for the script, as in kubeadm.service, with the stand-ins in place of the directories of a system.
const SCRIPT_PATH: &str = "PATH=/opt/bin:/programs:/usr/sbin:/usr/bin:/sbin:/bin";

fn unit(name: &str) -> String {
    fs::read_to_string(format!("{UNITS}/{name}")).unwrap()
}

/// Returns a unit without comments and empty lines.
fn settings_of(unit: &str) -> Vec<&str> {
    unit.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// Runs the command in the head of a Butane text, without the redirection.
fn butane(node: &str) -> Ran {
    let text = example(&format!("ignition/{node}.bu"));
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix("#   butane "))
        .unwrap();
    let (arguments, file) = command.split_once(" >").unwrap();
    assert_eq!(file, format!("{node}.ign"));
    Ran::of(
        Command::new(bin("butane"))
            .args(arguments.split(' '))
            .current_dir(format!("{EXAMPLES}/ignition")),
    )
}

/// Runs Ignition's validation; a warning is a failure.
fn validate(config: &str) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.ign");
    fs::write(&file, config).unwrap();
    Ran::of(Command::new(bin("ignition-validate")).arg(file))
}

/// The server from which a machine downloads the program, here a script that records its arguments and runs nodepki.
struct Downloads {
    server: Gateway,
    hash: String,
}

impl Downloads {
    fn new() -> Self {
        let program = format!("#!/bin/sh\necho nodepki \"$@\" >>/calls\nexec {NODEPKI} \"$@\"\n");
        Self::of(&program)
    }

    fn of(program: &str) -> Self {
        let server = Gateway::start(Options {
            plain: true,
            ..Options::default()
        });
        server.rule(Rule::on("GET", "/nodepki").then(Action::body(200, program)));
        let hash = format!("sha512-{}", hex(&Sha512::digest(program)));
        Downloads { server, hash }
    }

    /// Returns the config with this server's address, and with the hash of its program.
    fn edit(&self, config: &str) -> Value {
        let mut config: Value = serde_json::from_str(config).unwrap();
        let program = file_of(&mut config, "/opt/bin/nodepki");
        assert_eq!(program["contents"]["source"], PROGRAM_URL);
        program["contents"]["source"] = format!("{}/nodepki", self.server.url()).into();
        program["contents"]["verification"]["hash"] = self.hash.clone().into();
        // Without a limit, Ignition tries to download for as long as the machine runs.
        config["ignition"]["timeouts"] = json!({"httpTotal": 30});
        config
    }
}

fn file_of<'a>(config: &'a mut Value, path: &str) -> &'a mut Value {
    let files = config["storage"]["files"].as_array_mut().unwrap();
    files.iter_mut().find(|file| file["path"] == path).unwrap()
}

/// Applies a config to the machine, as Ignition does before the first boot.
fn apply(machine: &Machine, config: &Value) -> Ran {
    machine.write("config.ign", &config.to_string());
    let mut command = if nix::unistd::geteuid().is_root() {
        Command::new(bin("ignition-apply"))
    } else {
        let mut unshare = Command::new("unshare");
        unshare.arg("--map-root-user").arg(bin("ignition-apply"));
        unshare
    };
    // The program refuses to change anything except the directory of a container image.
    command.env("container", "test").arg("--root");
    Ran::of(command.arg(machine.root()).arg(machine.path("config.ign")))
}

/// Returns a machine named cp2 with kubeadm's and systemd's stand-ins, before Ignition.
fn machine() -> Machine {
    let machine = Machine::new().with_nodepki();
    // What the machine calls `nodepki` is the downloaded program.
    fs::remove_file(machine.path("programs/nodepki")).unwrap();
    machine.write("etc/hostname", "cp2\n");
    machine
}

fn applied(node: &str, downloads: &Downloads) -> Machine {
    let machine = machine();
    let config = example(&format!("ignition/{node}.ign"));
    apply(&machine, &downloads.edit(&config)).done();
    machine
}

fn calls(machine: &Machine) -> Vec<String> {
    let calls = fs::read_to_string(machine.path("calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

fn count(machine: &Machine, call: &str) -> usize {
    calls(machine)
        .iter()
        .filter(|line| line.starts_with(call))
        .count()
}

/// `NODEPKI_BLESS=1` writes the configs.
#[test]
fn butane_creates_the_configs_of_this_folder() {
    for node in NODES {
        let created = butane(node);
        created.done();
        assert_eq!(created.stderr, "", "{node}");
        let file = format!("{EXAMPLES}/ignition/{node}.ign");
        if std::env::var_os("NODEPKI_BLESS").is_some() {
            fs::write(&file, &created.stdout).unwrap();
        }
        assert!(
            fs::read_to_string(&file).unwrap() == created.stdout,
            "ignition/{node}.ign differs from what Butane creates from {node}.bu and systemd/: run NODEPKI_BLESS=1 cargo test --test it cloud_init::ignition"
        );
    }
}

#[test]
fn ignition_accepts_configs_without_warnings() {
    for node in NODES {
        let ran = validate(&example(&format!("ignition/{node}.ign")));
        assert_eq!(
            (ran.done().said().trim(), ran.code),
            ("", Some(0)),
            "{node}"
        );
    }
    let unknown = validate(r#"{"ignition": {"version": "3.4.0"}, "storage": {"flies": []}}"#);
    unknown.says("flies");
    assert_eq!(validate("{}").code, Some(1));
}

/// The limit of user data on EC2 is 16 KiB, the smallest of the large clouds.
#[test]
fn configs_fit_into_user_data() {
    for node in NODES {
        let config: Value =
            serde_json::from_str(&example(&format!("ignition/{node}.ign"))).unwrap();
        let size = config.to_string().len();
        assert!(size < 16 << 10, "{node}: {size} bytes");
    }
}

#[test]
fn ignition_installs_the_program_only_with_its_hash() {
    let downloads = Downloads::new();
    let installed = applied("first", &downloads);
    installed
        .run(["sh", "-c", "stat -c %a:%u /opt/bin/nodepki"])
        .done()
        .says("755:0");
    let replaced = Downloads {
        hash: downloads.hash,
        ..Downloads::of("#!/bin/sh\nexit 0\n")
    };
    let machine = machine();
    let config = example("ignition/first.ign");
    let ran = apply(&machine, &replaced.edit(&config));
    assert_eq!(ran.code, Some(1), "{}", ran.said());
    ran.says("hash verification failed");
    assert!(!machine.path("opt/bin/nodepki").exists());
}

#[test]
fn configs_contain_units_and_script_of_the_project() {
    for (node, user_data) in [
        ("first", "user-data-first.yaml"),
        ("join", "user-data-join.yaml"),
    ] {
        let machine = applied(node, &Downloads::new());
        for name in [
            "nodepki-bootstrap.service",
            "nodepki-renew.service",
            "nodepki-renew.timer",
            "nodepki-crl.service",
            "nodepki-crl.timer",
        ] {
            let installed = machine.read(&format!("etc/systemd/system/{name}"));
            assert!(installed == unit(name), "{node}: {name}");
        }
        assert_eq!(
            machine.read("etc/tmpfiles.d/nodepki.conf"),
            unit("tmpfiles.conf")
        );
        assert_eq!(
            machine.read("etc/systemd/system-preset/20-ignition.preset"),
            "enable kubeadm.service\nenable nodepki-bootstrap.service\nenable nodepki-crl.timer\n"
        );
        // The same script as with cloud-init.
        let text = example(user_data);
        let (_, rest) = text.split_once("50-kubeadm 700 <<'EOF'\n").unwrap();
        let (script, _) = rest.split_once("    EOF\n").unwrap();
        let lines: Vec<&str> = script.lines().map(|line| &line[4..]).collect();
        let installed = machine.read("opt/libexec/nodepki-kubeadm");
        assert_eq!(installed.lines().collect::<Vec<_>>(), lines, "{node}");
        machine.assert_secrets_are_private();
    }
}

/// systemd verifies the installed units with their drop-ins: keys, programs, cycles.
#[test]
fn installed_units_pass_systemd_analyze() {
    use std::os::unix::fs::PermissionsExt as _;

    for node in NODES {
        let machine = applied(node, &Downloads::new());
        fs::set_permissions(machine.root(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in [
            "nodepki-bootstrap.service",
            "nodepki-renew.service",
            "nodepki-crl.service",
            "nodepki-crl.timer",
            "kubeadm.service",
        ] {
            let ran = Ran::of(
                Command::new(bin("in-trixie"))
                    .arg("--bind")
                    .args([
                        &machine.path("etc/systemd/system"),
                        Path::new("/run/systemd/system"),
                    ])
                    .arg("--bind")
                    .args([&machine.path("opt"), Path::new("/opt")])
                    .args(["--", "systemd-analyze", "--no-pager", "verify", "--man=no"])
                    .args(["--recursive-errors=yes", name]),
            );
            assert_eq!(ran.done().said().trim(), "", "{node}: {name}");
        }
        // The drop-ins replace every program of the units.
        for (name, keys) in [
            ("nodepki-bootstrap.service", &["ExecStart"][..]),
            ("nodepki-renew.service", &["ExecCondition", "ExecStart"]),
            ("nodepki-crl.service", &["ExecStart"]),
        ] {
            let drop_in = machine.read(&format!("etc/systemd/system/{name}.d/10-program.conf"));
            let mut expected = vec!["[Service]".to_owned()];
            for key in keys {
                let of_unit = unit(name);
                let line = of_unit.lines().find(|line| line.starts_with(key)).unwrap();
                expected.push(format!("{key}="));
                expected.push(line.replace("/usr/bin/", "/opt/bin/"));
            }
            assert_eq!(drop_in.lines().collect::<Vec<_>>(), expected, "{name}");
            assert_eq!(unit(name).matches("/usr/bin/nodepki").count(), keys.len());
        }
    }
}

#[test]
fn nodepki_and_kubeadm_accept_installed_files() {
    for (node, says) in [
        ("first", "node cp1, cluster prod, 12 certificates"),
        ("join", "node cp2"),
    ] {
        let machine = applied(node, &Downloads::new());
        // A machine in a directory has no default route, which would determine its address.
        let text = machine.read("etc/nodepki/kubeadm.yaml").replace(
            "controlPlane: {}",
            "controlPlane: {localAPIEndpoint: {advertiseAddress: 192.0.2.12}}",
        );
        machine.write("etc/nodepki/kubeadm.yaml", &text);
        machine.nodepki(&["config", "check"]).done().says(says);
        kubeadm_takes(&machine, "etc/nodepki/kubeadm.yaml");
    }
    let machine = applied("first", &Downloads::new());
    machine.nodepki(&["plan"]).says("etcd-server").says("vault");
}

/// The signer is a directory with CA keys in place of Vault; everything else is as installed.
#[test]
fn first_node_bootstraps_before_kubeadm() {
    let machine = applied("first", &Downloads::new());
    let text = machine.read("etc/nodepki/config.d/30-signer.yaml");
    let pins = text.lines().find(|line| line.contains("etcd-ca:")).unwrap();
    assert!(pins.contains("signer: vault"));
    machine.write(
        "etc/nodepki/config.d/30-signer.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nauthorities:\n  ca: {signer: disk}\n  \
         etcd-ca: {signer: disk}\n  front-proxy-ca: {signer: disk}\nsigners:\n  disk: {local: {directory: /ca}}\n",
    );
    write_authorities(&machine.path("ca"));
    // The script and the directories, as systemd would start and create them.
    for dir in ["etc/kubernetes", "var/lib/kubelet/pki", "var/lib/nodepki"] {
        fs::create_dir_all(machine.path(dir)).unwrap();
    }
    machine.stands_in(
        "kubeadm",
        "for file in apiserver.crt etcd/server.crt front-proxy-client.crt; do [ -s /etc/kubernetes/pki/$file ] || exit 1; done",
    );
    // There is no cluster to which certificates could be uploaded.
    machine.write("etc/nodepki/certificate-key", "key\n");
    let script = ["env", SCRIPT_PATH, "/opt/libexec/nodepki-kubeadm"];
    machine.run(script).done();
    assert_eq!(count(&machine, "nodepki bootstrap"), 1);
    assert_eq!(
        count(&machine, "kubeadm init --config /etc/nodepki/kubeadm.yaml"),
        1
    );
    assert_eq!(
        count(&machine, "systemctl enable --now nodepki-renew.timer"),
        1
    );
    assert!(!machine.path("etc/kubernetes/pki/ca.key").exists());
    machine.nodepki(&["status"]).done();

    // A later boot verifies the PKI and does not run kubeadm again.
    machine.run(script).done();
    assert_eq!(count(&machine, "nodepki bootstrap"), 2);
    assert_eq!(count(&machine, "kubeadm"), 1);
}

/// The credentials are those of the cloud-init texts: README.md names the lifetime of each.
#[test]
fn installed_files_contain_no_private_key_and_no_long_lived_credential() {
    for (node, expected) in [
        ("first", &[][..]),
        ("join", &["bootstrap token", "key of kubeadm-certs"]),
    ] {
        let machine = applied(node, &Downloads::new());
        let mut found: Vec<&str> = ["etc", "opt"]
            .iter()
            .flat_map(|dir| machine.content(dir))
            .flat_map(|(_, bytes)| credentials(&String::from_utf8(bytes).unwrap()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{node}");
    }
}

// ---- Cluster API ----

/// Returns the config that Cluster API's own code generates, in the version that Ignition translates it to.
fn config_of(management: &Management, role: &str) -> Value {
    let ran = Ran::of(
        Command::new(bin("cluster-api-ignition"))
            .arg(management.kubeconfig())
            .args([&management.namespace, "prod", role, ENDPOINT]),
    );
    let text = ran.done().stdout.replace(
        // A machine in a directory has no default route, which would determine its address.
        "localAPIEndpoint%3A%20%7B%7D",
        "localAPIEndpoint%3A%20%7BadvertiseAddress%3A%20192.0.2.11%7D",
    );
    translated(&serde_json::from_str(&text).unwrap())
}

/// Translates version 2.3 of the config, which Cluster API creates, to version 3, as Ignition on Flatcar does.
fn translated(old: &Value) -> Value {
    assert_eq!(old["ignition"]["version"], "2.3.0");
    let files = old["storage"]["files"].as_array().unwrap().iter();
    let files: Vec<Value> = files
        .map(|file| {
            assert_eq!(file["filesystem"], "root");
            let mut contents = Map::new();
            contents.insert("source".into(), file["contents"]["source"].clone());
            if let hash @ Value::String(_) = &file["contents"]["verification"]["hash"] {
                contents.insert("verification".into(), json!({"hash": hash}));
            }
            let mode = file["mode"].as_u64().unwrap_or(0o644);
            json!({"path": file["path"], "mode": mode, "overwrite": true, "contents": contents})
        })
        .collect();
    let units = &old["systemd"]["units"];
    json!({"ignition": {"version": "3.4.0"}, "storage": {"files": files}, "systemd": {"units": units}})
}

fn cluster_api_machine(config: &Value) -> Machine {
    assert_eq!(validate(&config.to_string()).done().said().trim(), "");
    let machine = machine();
    let downloads = Downloads::of("#!/bin/sh\nexec /programs/nodepki \"$@\"\n");
    apply(&machine, &downloads.edit(&config.to_string())).done();
    machine.stands_in("nodepki", "");
    machine
}

/// Runs the script of Cluster API's kubeadm.service.
fn boot(machine: &Machine) -> Ran {
    let _ = fs::remove_file(machine.path("calls"));
    machine.run(["env", SCRIPT_PATH, "bash", "/etc/kubeadm.sh"])
}

#[test]
fn cluster_api_text_contains_units_of_the_project() {
    let management = plane("ignition/cluster-api.yaml", &["--placeholder-keys"]);
    let machine = cluster_api_machine(&config_of(&management, "init"));
    for name in [
        "nodepki-bootstrap.service",
        "nodepki-renew.service",
        "nodepki-renew.timer",
        "nodepki-crl.service",
        "nodepki-crl.timer",
    ] {
        let installed = machine.read(&format!("etc/systemd/system/{name}"));
        assert_eq!(settings_of(&installed), settings_of(&unit(name)), "{name}");
    }
    let installed = machine.read("etc/tmpfiles.d/nodepki.conf");
    assert_eq!(settings_of(&installed), settings_of(&unit("tmpfiles.conf")));
    // The drop-ins are those of the Butane texts, with the file of Cluster API.
    let other = applied("first", &Downloads::new());
    for name in ["nodepki-renew.service", "nodepki-crl.service"] {
        let file = format!("etc/systemd/system/{name}.d/10-program.conf");
        assert_eq!(machine.read(&file), other.read(&file), "{name}");
    }
    let file = "etc/systemd/system/nodepki-bootstrap.service.d/10-program.conf";
    let condition = "[Unit]\nConditionPathExists=|/etc/kubeadm.yml\n";
    assert_eq!(
        machine.read(file),
        format!("{condition}{}", other.read(file))
    );
}

#[test]
fn boots_control_plane_of_cluster_api_with_ignition() {
    let secrets = ["--placeholder-keys", "--etcd-client-ca"];
    let management = plane("ignition/cluster-api.yaml", &secrets);
    for (role, says) in [
        ("init", "node cp2, cluster prod, 12 certificates"),
        ("join", "node cp2"),
    ] {
        let config = config_of(&management, role);
        let machine = cluster_api_machine(&config);
        machine.nodepki(&["config", "check"]).done().says(says);
        kubeadm_takes(&machine, "etc/kubeadm.yml");
        let ran = boot(&machine);
        ran.done();
        assert_eq!(
            (
                count(&machine, "nodepki bootstrap"),
                count(&machine, &format!("kubeadm {role}"))
            ),
            (1, 1),
            "{}",
            ran.said()
        );
        assert_eq!(
            count(
                &machine,
                "systemctl enable --now nodepki-renew.timer nodepki-crl.timer"
            ),
            1
        );
        assert!(machine.path(SENTINEL).exists());
        let exists = |name: &str| machine.path("etc/kubernetes/pki").join(name).exists();
        assert!(!exists("ca.key") && !exists("front-proxy-ca.key") && !exists("etcd/ca.key"));
        let certificates = |name: &str| {
            let text = machine.read(&format!("etc/kubernetes/pki/etcd/{name}"));
            text.matches("-----BEGIN CERTIFICATE").count()
        };
        assert_eq!(
            (certificates("clients.crt"), certificates("ca.crt")),
            (2, 1)
        );

        // A permanent failure ends the script, and the next boot runs it again, with the same files.
        let machine = cluster_api_machine(&config);
        machine.stands_in("nodepki", "exit 65");
        assert_ne!(boot(&machine).code, Some(0));
        assert_eq!(count(&machine, "kubeadm"), 0);
        assert!(!machine.path(SENTINEL).exists());
        machine.stands_in("nodepki", "");
        boot(&machine).done();
        assert_eq!(count(&machine, "kubeadm"), 1);
        let text = machine.read("etc/kubernetes/pki/etcd/clients.crt");
        assert_eq!(text.matches("-----BEGIN CERTIFICATE").count(), 2);
    }
}
