//! The units in `systemd/`, verified by a current systemd that does not run: repeated sections are equal, and what the
//! units say about nodepki is correct.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use nodepki::agent::ExitCode;
use serde_json::Value;

use crate::node::{NODEPKI, Ran};
use crate::servers::bin;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");
const SERVICES: [&str; 5] = [
    "nodepki-bootstrap.service",
    "nodepki-certs-expire.service",
    "nodepki-crl.service",
    "nodepki-renew.service",
    "nodepki.service",
];
const TIMERS: [&str; 3] = [
    "nodepki-certs-expire.timer",
    "nodepki-crl.timer",
    "nodepki-renew.timer",
];
/// Templates, whose instances have the names of clusters.
const CLUSTER_SERVICES: [&str; 3] = [
    "nodepki-capi-check@.service",
    "nodepki-capi-secrets@.service",
    "nodepki-capi-sync@.service",
];
const CLUSTER_TIMERS: [&str; 2] = ["nodepki-capi-secrets@.timer", "nodepki-capi-sync@.timer"];
/// Upper limit of the exposure level, in tenths of the value that systemd-analyze prints.
const EXPOSURE_THRESHOLD: &str = "--threshold=25";

fn unit(name: &str) -> String {
    fs::read_to_string(format!("{UNITS}/{name}")).unwrap()
}

/// Returns the name of an instance of a template, and that of any other unit.
fn instance(name: &str) -> String {
    name.replace('@', "@prod.eu-1")
}

/// Returns the names of all units.
fn units() -> impl Iterator<Item = &'static str> {
    let of_node = SERVICES.into_iter().chain(TIMERS);
    of_node.chain(CLUSTER_SERVICES).chain(CLUSTER_TIMERS)
}

/// Returns every value of a key, in order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.collect()
}

/// The project's units below `/run/systemd/system` of the Debian root that tests/servers/debian created.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // A process in the chroot runs as root, but systemd-analyze requires files that every user can read.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in units() {
            fs::write(dir.path().join(name), unit(name)).unwrap();
        }
        Machine(dir)
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn analyze(&self, arguments: &[&str]) -> Output {
        Command::new(bin("in-trixie"))
            .arg("--bind")
            .args([self.0.path(), Path::new("/run/systemd/system")])
            .args(["--", "systemd-analyze", "--no-pager"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Fails on unknown keys and sections, cycles, and missing units and programs.
    fn verify(&self, unit: &str) -> Output {
        self.analyze(&["verify", "--man=no", "--recursive-errors=yes", unit])
    }

    fn security(&self, unit: &str) -> Output {
        self.analyze(&["security", "--offline=true", EXPOSURE_THRESHOLD, unit])
    }
}

fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr];
    both.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .join("\n")
}

fn assert_passes(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
}

#[test]
fn units_pass_systemd_analyze_without_warnings() {
    let machine = Machine::new();
    for name in units() {
        let output = machine.verify(&instance(name));
        assert_passes(&output);
        assert_eq!(text(&output).trim(), "", "{name}");
    }
    machine.file("nodepki-wrong.service", "[Service]\nExecStrat=/bin/true\n");
    let wrong = machine.verify("nodepki-wrong.service");
    assert!(!wrong.status.success(), "{}", text(&wrong));
}

/// Returns the names of all drop-ins with their texts.
fn drop_ins() -> Vec<(String, String)> {
    let entries = fs::read_dir(format!("{UNITS}/drop-ins")).unwrap();
    let files = entries.map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    });
    files.collect()
}

/// Returns the directories to which a drop-in says that it is copied.
fn folders_of(drop_in: &str) -> Vec<&str> {
    let places = drop_in.split("/etc/systemd/system/").skip(1);
    places
        .map(|place| place.split('/').next().unwrap())
        .collect()
}

/// A condition of a unit that renews would end the renewal without a failure.
#[test]
fn only_bootstrap_unit_gets_conditions_by_drop_ins() {
    let drop_ins = drop_ins();
    assert!(drop_ins.len() >= 4);
    for (name, text) in drop_ins {
        let expected = if text.contains("\n[Unit]") {
            vec!["nodepki-bootstrap.service.d"]
        } else {
            vec!["nodepki-.service.d", "nodepki.service.d"]
        };
        assert_eq!(folders_of(&text), expected, "{name}");
    }
}

#[test]
fn drop_ins_pass_systemd_analyze_without_warnings() {
    let machine = Machine::new();
    for (name, text) in drop_ins() {
        for folder in folders_of(&text) {
            machine.file(&format!("{folder}/{name}"), &text);
        }
    }
    for name in SERVICES.into_iter().chain(CLUSTER_SERVICES) {
        let output = machine.verify(&instance(name));
        assert_passes(&output);
        assert_eq!(text(&output).trim(), "", "{name}");
    }
}

#[test]
fn units_are_within_the_exposure_limit() {
    let machine = Machine::new();
    for name in SERVICES.into_iter().chain(CLUSTER_SERVICES) {
        let output = machine.security(&instance(name));
        assert_passes(&output);
        let told = text(&output);
        let overall = told.lines().find(|line| line.contains("Overall exposure"));
        println!("{}", overall.unwrap());
    }
    machine.file(
        "nodepki-open.service",
        "[Service]\nExecStart=/usr/bin/nodepki daemon\n",
    );
    let open = machine.security("nodepki-open.service");
    assert!(!open.status.success(), "{}", text(&open));
}

/// Returns the text from the first comment about writable paths to the end of the section.
fn restrictions(name: &str) -> String {
    let unit = unit(name);
    let begin = unit.find("# Paths that a run may write").unwrap();
    let rest = &unit[begin..];
    rest.split("\n[Install]").next().unwrap().trim().to_owned()
}

#[test]
fn all_services_have_the_same_restrictions() {
    let first = restrictions(SERVICES[0]);
    assert!(first.lines().count() > 40);
    for name in SERVICES {
        assert_eq!(restrictions(name), first, "{name}");
    }
}

#[test]
fn units_of_clusters_have_no_other_restrictions_or_fewer() {
    /// What only files of a node require.
    const OF_NODES: [&str; 5] = [
        "ReadWritePaths=",
        "StateDirectory",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@chown",
        "SystemCallFilter=landlock",
    ];
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| {
            let is_of_node = OF_NODES.iter().any(|begin| line.starts_with(begin));
            !is_of_node && !line.starts_with('#') && !line.is_empty()
        });
        lines.map(str::to_owned).collect()
    };
    let common = lines(&restrictions(SERVICES[0]));
    assert!(common.len() > 25);
    for name in CLUSTER_SERVICES {
        let unit = unit(name);
        let begin = unit.find("ProtectSystem=").unwrap();
        let rest = unit[begin..].split("\n[Install]").next().unwrap();
        assert_eq!(lines(rest), common, "{name}");
        let capabilities = values(&unit, "CapabilityBoundingSet");
        let writes = name.contains("secrets");
        assert_eq!(capabilities == [""], !writes, "{name}");
        assert_eq!(values(&unit, "StateDirectory").len(), usize::from(writes));
    }
}

#[test]
fn units_do_not_retry_lasting_failures() {
    let lasting = [
        ExitCode::Usage,
        ExitCode::Refused,
        ExitCode::NotPermitted,
        ExitCode::Configuration,
    ];
    let lasting = lasting.map(|code| (code as u8).to_string()).join(" ");
    for name in [
        "nodepki-bootstrap.service",
        "nodepki.service",
        "nodepki-capi-check@.service",
    ] {
        let unit = unit(name);
        assert_eq!(values(&unit, "RestartPreventExitStatus"), [&lasting]);
        assert_eq!(values(&unit, "Restart"), ["on-failure"]);
        assert_eq!(values(&unit, "StartLimitIntervalSec"), ["0"]);
    }
    // Their timers retry.
    for name in [
        "nodepki-certs-expire.service",
        "nodepki-crl.service",
        "nodepki-renew.service",
        "nodepki-capi-secrets@.service",
        "nodepki-capi-sync@.service",
    ] {
        assert!(values(&unit(name), "Restart").is_empty());
    }
}

/// A node described by cloud-init or Cluster API is bootstrapped when one of the files named in the settings exists.
#[test]
fn bootstrap_unit_waits_for_the_files_of_the_settings() {
    let root = tempfile::tempdir().unwrap();
    let shown = Ran::of(
        Command::new(NODEPKI)
            .arg("--root")
            .arg(root.path())
            .args(["config", "show", "-o", "json"]),
    );
    shown.done();
    let settings: Value = serde_json::from_str(&shown.stdout).unwrap();
    let unit = unit("nodepki-bootstrap.service");
    let conditions = values(&unit, "ConditionPathExists");
    let files = settings["kubeadm"]["files"].as_array().unwrap();
    assert!(!files.is_empty());
    for file in files {
        let condition = format!("|{}", file.as_str().unwrap());
        assert!(conditions.contains(&condition.as_str()), "{condition}");
    }
    let kept = format!("|{}", nodepki::agent::join::CLUSTER_CONFIGURATION_COPY);
    assert!(conditions.contains(&kept.as_str()), "{kept}");
    // The only record of a worker whose request is pending.
    assert!(conditions.contains(&"|/var/lib/nodepki/node.json"));
}

#[test]
fn units_run_existing_commands() {
    for name in SERVICES.into_iter().chain(CLUSTER_SERVICES) {
        let unit = unit(name).replace("%i", "prod");
        for key in ["ExecStart", "ExecCondition"] {
            for command in values(&unit, key) {
                // Variables of the file of the cluster.
                let command = command.split(" $").next().unwrap();
                let mut words = command.split(' ');
                assert_eq!(words.next(), Some("/usr/bin/nodepki"), "{command}");
                Ran::of(Command::new(NODEPKI).args(words).arg("--help")).done();
            }
        }
    }
}

/// Existing directories keep their mode.
#[test]
fn tmpfiles_create_the_directories_that_units_write_to() {
    let root = tempfile::tempdir().unwrap();
    let create = || {
        let output = Command::new("systemd-tmpfiles")
            .arg("--create")
            .arg(format!("--root={}", root.path().display()))
            .arg(format!("{UNITS}/tmpfiles.conf"))
            .output()
            .unwrap();
        assert_passes(&output);
        assert_eq!(text(&output).trim(), "");
    };
    let mode = |path: &str| {
        let metadata = fs::metadata(root.path().join(path)).unwrap();
        metadata.permissions().mode() & 0o7777
    };
    create();
    assert_eq!(mode("etc/kubernetes"), 0o755);
    assert_eq!(mode("var/lib/kubelet"), 0o755);
    assert_eq!(mode("var/lib/kubelet/pki"), 0o755);
    assert_eq!(mode("var/lib/nodepki"), 0o700);
    for (path, changed) in [("etc/kubernetes", 0o700), ("var/lib/kubelet", 0o750)] {
        let permissions = fs::Permissions::from_mode(changed);
        fs::set_permissions(root.path().join(path), permissions).unwrap();
        create();
        assert_eq!(mode(path), changed);
    }
    // Releases before systemd 252 do not know modes with this prefix.
    let lines = fs::read_to_string(format!("{UNITS}/tmpfiles.conf")).unwrap();
    assert!(
        !lines
            .lines()
            .any(|line| !line.starts_with('#') && line.contains(':'))
    );

    let unit = unit(SERVICES[0]);
    let written = values(&unit, "ReadWritePaths").join(" ");
    for path in ["/etc/kubernetes", "/var/lib/kubelet/pki"] {
        assert!(written.split(' ').any(|word| word == format!("-{path}")));
    }
}
