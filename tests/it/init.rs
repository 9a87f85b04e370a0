//! `nodepki init` and the skeleton of `config signer-setup`, for every kind that they name.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use nodepki::kube::names::Authority;
use nodepki::text::hex;
use serde_json::Value;

use crate::node::{INIT, NODEPKI, Node, Ran};

/// Every kind, with the values that make its settings complete.
const KINDS: [(&str, &[&str]); 10] = [
    ("vault", &["server=https://pki.test:8200"]),
    ("cfssl", &["server=https://pki.test:8888"]),
    (
        "stepCA",
        &[
            "server=https://ca.pki.test:9000",
            "root=abababababababababababababababababababababababababababababababab",
            "etcd-server=https://etcd.pki.test:9000",
            "etcd-root=cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
            "front-proxy-server=https://proxy.pki.test:9000",
            "front-proxy-root=efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef",
        ],
    ),
    ("est", &["server=https://pki.test:8443", "user=cp7"]),
    (
        "kubernetes",
        &[
            "server=https://api.pki.test:6443",
            "signer-name=pki.test/{authority}",
        ],
    ),
    (
        "certManager",
        &[
            "server=https://api.pki.test:6443",
            "namespace=pki",
            "issuer-kind=ClusterIssuer",
            "issuer-group=cert-manager.io",
        ],
    ),
    ("puppet", &["command=/bin/true"]),
    ("directory", &[]),
    ("exec", &["command=/usr/bin/true"]),
    ("local", &[]),
];

/// A node without settings, on which Puppet's agent is set up.
fn bare() -> Node {
    let node = Node::new();
    fs::remove_file(node.outside("config.yaml")).unwrap();
    let agent = "[main]\nserver = puppet.pki.test\n";
    node.write("/etc/puppetlabs/puppet/puppet.conf", agent);
    node
}

fn init(node: &Node, kind: &str, values: &[&str], more: &[&str]) -> Ran {
    let mut command = node.command(["init", kind]);
    for value in values {
        command.args(["--set", value]);
    }
    Ran::of(command.args(more))
}

/// `config check` of the settings below the root.
fn check(node: &Node) -> Ran {
    let mut command = node.command(["config", "check", "--kubeadm-config"]);
    Ran::of(command.arg(node.outside("kubeadm.yaml")))
}

#[test]
fn settings_of_every_kind_pass_config_check() {
    for (kind, values) in KINDS {
        let node = bare();
        let kubeadm = node.outside("kubeadm.yaml");
        let ran = init(
            &node,
            kind,
            values,
            &["--kubeadm-config", kubeadm.to_str().unwrap()],
        );
        ran.done()
            .says("/etc/nodepki/config.yaml was written")
            .says("next:\n  1. ");
        ran.says_not("replace");
        check(&node).done();
        let scripts: Vec<String> = fs::read_dir(node.path("/etc/nodepki"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("signer-setup-"))
            .collect();
        let expected = match kind {
            "vault" | "cfssl" | "stepCA" | "est" | "puppet" => {
                vec![format!("signer-setup-{kind}.sh")]
            }
            "kubernetes" | "certManager" => vec![format!("signer-setup-{kind}.yaml")],
            _ => Vec::new(),
        };
        assert_eq!(scripts, expected, "{kind}");
        for script in scripts {
            let text = node.read(format!("/etc/nodepki/{script}"));
            assert!(!text.contains("example.com:"), "{text}");
            let is_program = script.ends_with(".sh");
            let mode = if is_program { 0o755 } else { 0o644 };
            assert_eq!(
                node.mode(format!("/etc/nodepki/{script}")),
                mode,
                "{script}"
            );
            if is_program {
                let file = node.path(format!("/etc/nodepki/{script}"));
                assert!(
                    Command::new("sh")
                        .arg("-n")
                        .arg(file)
                        .status()
                        .unwrap()
                        .success()
                );
            }
        }
    }
}

/// Follows each "replace" line literally.
#[test]
fn replaced_texts_of_every_kind_pass_config_check() {
    for (kind, values) in KINDS {
        let node = bare();
        let ran = init(&node, kind, &[], &["-o", "json"]);
        ran.done();
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["kind"], "Init");
        let file = Path::new(report["settings"].as_str().unwrap());
        let text = fs::read_to_string(file).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let replacements = report["replace"].as_array().unwrap();
        assert_eq!(replacements.len(), values.len(), "{kind}");
        for one in replacements {
            let line = &mut lines[one["line"].as_u64().unwrap() as usize - 1];
            let text = one["text"].as_str().unwrap();
            assert!(line.contains(text), "{line}");
            let name = one["name"].as_str().unwrap();
            let value = values
                .iter()
                .find_map(|value| value.strip_prefix(name)?.strip_prefix('='));
            *line = line.replace(text, value.unwrap());
        }
        fs::write(file, lines.join("\n")).unwrap();
        check(&node).done();
    }
}

#[test]
fn never_overwrites_files() {
    let node = bare();
    init(&node, "vault", &[], &[])
        .done()
        .says("replace https://vault-1.example.com:8200");
    let before = node.etc();
    init(&node, "vault", &[], &[])
        .ended(65)
        .says("already have the signer vault");
    before.unchanged(&node.etc());
    // The packages install a file that defines no signer.
    let node = bare();
    let packaged = include_str!("../../packaging/config.yaml");
    node.write("/etc/nodepki/config.yaml", packaged);
    init(&node, "directory", &[], &[])
        .done()
        .says("config.d/signer.yaml was written");
    check(&node).done();
    // A file of this machine.
    let file = node.outside("mine.yaml");
    let to = ["--to", file.to_str().unwrap()];
    init(&node, "est", &[], &to).done();
    init(&node, "est", &[], &to)
        .ended(65)
        .says("is not overwritten");
}

#[test]
fn rejects_unknown_kinds_values_and_addresses() {
    let node = bare();
    init(&node, "valt", &[], &[])
        .ended(64)
        .says("did you mean vault?");
    init(&node, "embedded", &[], &[])
        .ended(64)
        .says("vault, cfssl, stepCA, est");
    init(&node, "vault", &["sever=x"], &[])
        .ended(64)
        .says("did you mean server?");
    init(&node, "vault", &[], &["--server", "pki.test"])
        .ended(64)
        .says("nodepki: --server: ")
        .says("pki.test")
        .says_not("the new settings");
    assert!(!node.path("/etc/nodepki").exists());
    init(&node, "vault", &[], &["--list"])
        .done()
        .says("secret-id-file")
        .says("(required)");
    assert!(!node.path("/etc/nodepki").exists());
}

#[test]
fn signer_setup_without_settings_prints_skeleton() {
    let node = bare();
    for (kind, _) in KINDS {
        let ran = node.run(&["config", "signer-setup", kind]);
        ran.done()
            .says("nodepki init")
            .says("kind: NodePKIConfiguration");
    }
    let help = Ran::of(Command::new(NODEPKI).args(["init", "--help"]));
    for (kind, _) in KINDS {
        help.says(kind);
    }
}

/// Runs `init` on a pseudo-terminal, with these lines typed.
fn init_on_terminal(node: &Node, words: &str, typed: &str) -> Ran {
    let line = format!("{NODEPKI} --root {} init {words}", node.root().display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(typed.as_bytes()).unwrap();
    drop(input);
    child.wait_with_output().unwrap().into()
}

#[test]
fn asks_for_missing_values_on_a_terminal() {
    let node = bare();
    let typed = "https://est.pki.test:8443\ncp7\n";
    let ran = init_on_terminal(&node, "est", typed);
    ran.done()
        .says("https:// address of the EST server, without /.well-known/est: ")
        .says("user name of this node: ")
        .says("config.yaml was written");
    ran.says_not("replace ");
    let text = node.read("/etc/nodepki/config.yaml");
    assert!(text.contains("https://est.pki.test:8443"), "{text}");
    assert!(text.contains("cp7"), "{text}");
    check(&node).done();
}

#[test]
fn keeps_texts_of_example_after_empty_answers() {
    let node = bare();
    let ran = init_on_terminal(&node, "est", "\ncp7\n");
    ran.done()
        .says("replace https://est.example.com:8443 by the https:// address of the EST server");
    ran.says_not("replace cp1");
    // The end of the input is an empty answer too.
    let node = bare();
    init_on_terminal(&node, "est", "https://est.pki.test:8443\n\u{4}")
        .done()
        .says("replace cp1 by the user name of this node");
}

#[test]
fn asks_only_for_values_that_are_not_given() {
    let node = bare();
    let ran = init_on_terminal(&node, "est --server https://est.pki.test:8443", "cp7\n");
    ran.done().says("user name of this node: ");
    ran.says_not("address of the EST server");
    let node = bare();
    let ran = init_on_terminal(&node, "est --no-input", "");
    ran.done().says("replace cp1");
    ran.says_not("user name of this node: ");
}

#[test]
fn lists_program_that_is_not_named_yet() {
    init(&bare(), "exec", &[], &["--no-input"])
        .done()
        .says("  1. replace the texts above")
        .says("  2. install the program that the settings name, owned by root");
}

#[test]
fn asks_again_for_value_that_is_not_valid() {
    let node = bare();
    let typed = "est.pki.test\nhttps://est.pki.test:8443\ncp7\n";
    let ran = init_on_terminal(&node, "est", typed);
    ran.done().says("(write https://est.pki.test)");
    ran.says_not("replace ");
    check(&node).done();
    // A wrong last answer keeps the others.
    let node = bare();
    let kubeadm = node.outside("kubeadm.yaml");
    let typed = format!(
        "https://est.pki.test:8443\ncp7\n/nowhere.yaml\n{}\n",
        kubeadm.display()
    );
    let ran = init_on_terminal(&node, "est", &typed);
    ran.done()
        .says("kubeadm configuration file, if it exists already: ")
        .says("/nowhere.yaml")
        .says("signer-setup-est.sh was written");
    ran.says(&format!("--kubeadm-config {}", kubeadm.display()));
}

/// The script is for the certificates of all settings of the node.
#[test]
fn script_follows_the_settings_that_exist() {
    let node = bare();
    node.write_secret("/etc/nodepki/kubeadm.yaml", INIT);
    let settings = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
                    kubeadm: {files: [/etc/nodepki/kubeadm.yaml]}\nnodeName: cp8\n";
    node.write("/etc/nodepki/config.yaml", settings);
    init(&node, "vault", &["server=https://pki.test:8200"], &[])
        .done()
        .says("signer-setup-vault.sh was written");
    let script = fs::read_to_string(node.path("/etc/nodepki/signer-setup-vault.sh")).unwrap();
    assert!(script.contains("system:node:cp8"), "{script}");
}

#[test]
fn asks_for_no_kubeadm_configuration_that_exists_or_is_not_needed() {
    let node = bare();
    node.write_secret("/run/kubeadm/kubeadm.yaml", INIT);
    let ran = init_on_terminal(&node, "vault", "https://pki.test:8200\n");
    ran.done().says("signer-setup-vault.sh was written");
    ran.says_not("kubeadm configuration file");
    let ran = init_on_terminal(&bare(), "exec", "/usr/libexec/corp-sign\n");
    ran.done().says_not("kubeadm configuration file");
}

#[test]
fn lists_all_that_is_left_to_do_for_each_kind() {
    #[rustfmt::skip]
    let expected: [(&str, &[&str]); 10] = [
        ("vault", &["sh /etc/nodepki/signer-setup-vault.sh", "wrapped secret_id: /etc/nodepki/vault-secret-id, mode 0600", "/etc/nodepki/vault-ca.pem, mode 0644"]),
        ("cfssl", &["sh /etc/nodepki/signer-setup-cfssl.sh", "/etc/nodepki/cfssl.key, mode 0600", "/etc/nodepki/cfssl-ca.pem, mode 0644"]),
        ("stepCA", &["sh /etc/nodepki/signer-setup-stepCA.sh NAME", "/etc/nodepki/bootstrap.key, mode 0600", "/etc/nodepki/bootstrap.crt, mode 0644"]),
        ("est", &["sh /etc/nodepki/signer-setup-est.sh", "/etc/nodepki/est-password, mode 0600", "/etc/nodepki/est-ca.pem, mode 0644"]),
        ("kubernetes", &["kubectl apply -f /etc/nodepki/signer-setup-kubernetes.yaml", "/etc/nodepki/token, mode 0600", "/etc/nodepki/management-ca.crt, mode 0644"]),
        ("certManager", &["kubectl apply -f /etc/nodepki/signer-setup-certManager.yaml", "/etc/nodepki/token, mode 0600", "/etc/nodepki/management-ca.crt, mode 0644"]),
        ("puppet", &["sh /etc/nodepki/signer-setup-puppet.sh", "ca.pem, mode 0644"]),
        ("directory", &["/srv/nodepki/outbox/SLOT.csr", "ReadWritePaths=-/srv/nodepki below [Service] in /etc/systemd/system/nodepki-.service.d/paths.conf"]),
        ("exec", &["install the program /usr/bin/true", "ReadWritePaths=-DIR as in systemd/drop-ins/programs.conf"]),
        ("local", &["put the CA keys into /srv/ca"]),
    ];
    for ((kind, values), (listed, words)) in KINDS.into_iter().zip(expected) {
        assert_eq!(kind, listed);
        let node = bare();
        node.write_secret("/run/kubeadm/kubeadm.yaml", INIT);
        let ran = init(&node, kind, values, &[]);
        let said = &ran.done().stdout;
        let said = said.replace(node.root().to_str().unwrap(), "");
        let (_, list) = said.split_once("next:\n").unwrap();
        for words in words {
            assert!(list.contains(words), "{kind}: {words}: {list}");
        }
        let steps: Vec<&str> = list.lines().collect();
        for (at, step) in steps.iter().enumerate() {
            assert!(step.starts_with(&format!("{:>3}. ", at + 1)), "{list}");
        }
        let [.., pin, last] = &steps[..] else {
            panic!("{list}")
        };
        assert!(pin.contains("trust.sha256"), "{list}");
        let (_, command) = pin.split_once('`').unwrap();
        let ca = node.ca().join("ca.crt");
        let command = command
            .trim_end_matches('`')
            .replace("CA.crt", ca.to_str().unwrap());
        let printed = Ran::of(Command::new("sh").args(["-c", &command]));
        let key = node.authority(Authority::Ca).public_key().sha256();
        assert!(printed.done().stdout.starts_with(&hex(&key)), "{kind}");
        assert!(last.contains("run `nodepki preflight"), "{list}");
    }
}

#[test]
fn config_check_warns_until_units_may_write_to_directory() {
    let node = bare();
    let warning = &node.here(
        "signers.drop.directory.path: nodepki's systemd units cannot write below @/srv/nodepki",
    );
    init(&node, "directory", &[], &[]).done();
    check(&node).done().says(warning);
    let preflight = ["preflight", "--kubeadm-config"];
    let kubeadm = node.outside("kubeadm.yaml");
    Ran::of(node.command(preflight).arg(&kubeadm)).says(warning);
    let drop_in = include_str!("../../systemd/drop-ins/paths.conf");
    node.write("/etc/systemd/system/nodepki-.service.d/paths.conf", drop_in);
    check(&node).done().says_not("cannot write below");
    // A certificatesDir of kubeadm, and a directory that the units write to.
    let node = bare();
    let state = ["path=/var/lib/nodepki/drop"];
    init(&node, "directory", &state, &[])
        .done()
        .says_not("ReadWritePaths=");
    let text = fs::read_to_string(node.outside("kubeadm.yaml")).unwrap();
    let elsewhere = format!("{text}certificatesDir: /srv/pki\n");
    fs::write(node.outside("kubeadm.yaml"), elsewhere).unwrap();
    check(&node)
        .done()
        .says(&node.here(
            "nodepki's systemd units cannot write below @/srv/pki (add ReadWritePaths=-/srv/pki ",
        ))
        .says_not("/srv/pki/etcd (add")
        .says_not("/var/lib/nodepki/drop");
}

/// The paths of the steps are those of the system below `--root`, and the commands name it.
#[test]
fn lists_paths_below_root_and_says_where_programs_start() {
    let node = bare();
    let ran = init(&node, "vault", &["server=https://pki.test:8200"], &[]);
    for file in [
        "/etc/nodepki/vault-role-id, mode 0600",
        "/etc/nodepki/vault-ca.pem, mode 0644",
        "/etc/kubernetes/pki, mode 0644",
    ] {
        ran.done().says(&format!(" {}", node.path(file).display()));
    }
    let root = node.root().display().to_string();
    ran.says(&format!("run `nodepki preflight --root {root}`, which"));

    for (kind, values) in KINDS {
        let node = bare();
        let root = node.root().display().to_string();
        let ran = init(&node, kind, values, &[]);
        let starts_nothing = ran.done().has(&format!(
            "with --root, nodepki starts no program that settings below {root} name (write the settings elsewhere with --to FILE, or run nodepki on the booted node)"
        ));
        assert_eq!(starts_nothing, matches!(kind, "exec" | "puppet"), "{kind}");
        let command = if starts_nothing {
            "run `nodepki preflight` on the booted node, which".to_owned()
        } else {
            format!("run `nodepki preflight --root {root}`, which")
        };
        ran.says(&command);
    }
    let ran = init_on_terminal(&bare(), "exec", "/usr/libexec/corp-sign\n").said();
    let (before, _) = ran.split_once("program that speaks signer").unwrap();
    assert!(before.contains("starts no program"), "{ran}");
    let node = bare();
    let file = node.outside("exec.yaml").display().to_string();
    init(&node, "exec", &["command=/usr/bin/true"], &["--to", &file])
        .done()
        .says("install the program /usr/bin/true, ")
        .says_not("starts no program");
}

#[test]
fn completes_run_that_was_interrupted_after_the_script() {
    let node = bare();
    let kubeadm = node.outside("kubeadm.yaml");
    let more = ["--kubeadm-config", kubeadm.to_str().unwrap()];
    let values = ["server=https://pki.test:8200"];
    init(&node, "vault", &values, &more).done();
    let (settings, script) = (
        "/etc/nodepki/config.yaml",
        "/etc/nodepki/signer-setup-vault.sh",
    );
    let written = [node.read(settings), node.read(script)];
    node.remove(settings);
    init(&node, "vault", &values, &more).done();
    assert_eq!([node.read(settings), node.read(script)], written);
    // A script of the administrator is kept.
    node.remove(settings);
    node.write(script, "#!/bin/sh\n");
    init(&node, "vault", &values, &more)
        .ended(65)
        .says("is not overwritten");
    assert!(!node.path(settings).exists());
}

#[test]
fn every_page_of_a_kind_starts_with_init() {
    for (kind, _) in KINDS {
        let page = format!("{}/docs/signers/{kind}.md", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(page).unwrap();
        let (before, _) = text.split_once("<!-- generated").unwrap();
        let start = before.find(&format!("tart with `nodepki init {kind}`"));
        let other = before.find("nodepki config signer-setup");
        assert!(start.is_some(), "{kind}");
        assert!(other.is_none_or(|other| Some(other) > start), "{kind}");
    }
    assert!(include_str!("../../README.md").contains("`nodepki init KIND`"));
}
