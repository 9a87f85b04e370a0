//! Below `--root`, every path in a message can be opened from the directory in which the command was given.
//!
//! Each case is a fault on a prepared node. Every command runs with it, and every path in its output must lead into
//! the node's root directory or be a path of the command line.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use nodepki::kube::names::Authority;
use nodepki::x509::{KeyAlgorithm, PrivateKey};
use serde_json::Value;

use crate::node::{DAY, INIT, JOIN, NODEPKI, Node, Ran};
use crate::sample::sampled;
use crate::signing::now;

const PKI: &str = "/etc/kubernetes/pki";
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Paths that do not belong to a file of the node.
const OTHER_PATHS: [&str; 9] = [
    // Files of this machine, used to resolve the names of servers.
    "/etc/hosts",
    "/etc/resolv.conf",
    // Programs of this machine: the signer of `config.yaml`, and those that `--signer` would start.
    "/bin/bash",
    "exec:/bin/bash",
    "exec:/usr/local/sbin/sign",
    "exec:/usr/libexec/corp-sign",
    // Paths of the API server.
    "/openid/v1/jwks",
    // Present or proposed flag values of a static pod, which sees the node's own paths.
    "s#--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt$#--cluster-signing-cert-file=/etc/kubernetes/pki/ca-signing.crt#",
    "cluster-signing-cert-file=/etc/kubernetes/pki/ca-signing.crt",
];

/// The further arguments of a command line.
#[derive(Clone, Copy)]
enum With {
    Nothing,
    /// `--kubeadm-config` and `--config`, which name files outside the root.
    Configuration,
    /// No further arguments: the command reads only files of the node.
    Node,
}

const COMMANDS: [(&[&str], With); 34] = [
    (&["plan"], With::Configuration),
    (&["plan"], With::Node),
    (&["plan", "-v"], With::Configuration),
    (&["config", "check"], With::Configuration),
    (&["config", "check"], With::Node),
    (&["needs-renewal", "-v"], With::Configuration),
    (&["needs-renewal", "-v"], With::Node),
    (&["status"], With::Nothing),
    (&["status", "-o", "tree"], With::Nothing),
    (&["status", "--kubeadm"], With::Nothing),
    (&["doctor"], With::Nothing),
    (&["doctor"], With::Configuration),
    (&["authority", "status"], With::Configuration),
    (
        &["authority", "stage", "ca", "--certificate", "@/new-ca.crt"],
        With::Configuration,
    ),
    (&["authority", "stage", "ca", "--undo"], With::Configuration),
    (
        &["authority", "activate", "ca", "--all-nodes-staged"],
        With::Configuration,
    ),
    (&["authority", "retire", "ca"], With::Configuration),
    (
        &[
            "authority",
            "retire",
            "ca",
            "--peer-report",
            "@/absent.json",
        ],
        With::Configuration,
    ),
    (&["certs", "upload"], With::Nothing),
    (
        &["certs", "upload", "--kubeconfig", "@/absent.conf"],
        With::Nothing,
    ),
    (
        &[
            "certs",
            "download",
            "--certificate-key-file",
            "@/absent.key",
        ],
        With::Nothing,
    ),
    (&["migrate", "to-external"], With::Configuration),
    (
        &[
            "migrate",
            "to-external",
            "--apply",
            "--backup",
            "@/backup",
            "--passphrase-file",
            "@/passphrase",
        ],
        With::Configuration,
    ),
    (
        &[
            "migrate",
            "to-internal",
            "--backup",
            "@/backup",
            "--passphrase-file",
            "@/passphrase",
        ],
        With::Configuration,
    ),
    (
        &["capi", "check", "prod", "--from-file", "@/absent.yaml"],
        With::Nothing,
    ),
    (&["crl", "--wait", "0s"], With::Configuration),
    (&["renew", "--dry-run"], With::Configuration),
    (&["renew", "--wait", "0s"], With::Configuration),
    (&["renew", "--wait", "0s"], With::Node),
    (
        &["csr", "export", "@/requests", "--wait", "0s"],
        With::Configuration,
    ),
    (
        &["csr", "import", "@/requests", "--wait", "0s"],
        With::Configuration,
    ),
    (
        &["csr", "import", "@/absent", "--wait", "0s"],
        With::Configuration,
    ),
    (
        &["bootstrap", "-v", "--wait", "0s", "--clock-wait", "0s"],
        With::Node,
    ),
    (
        &["bootstrap", "-v", "--wait", "0s", "--clock-wait", "0s"],
        With::Configuration,
    ),
];

/// Commands that read no file which the faults concern.
const UNAFFECTED_COMMANDS: [(&[&str], With); 2] = [
    (
        &[
            "capi",
            "secrets",
            "prod",
            "--show-secrets",
            "--endpoint",
            "api.example.com:6443",
            "--ca-dir",
            "@/absent-ca",
            "--wait",
            "0s",
        ],
        With::Node,
    ),
    (
        &[
            "capi",
            "secrets",
            "prod",
            "--show-secrets",
            "--endpoint",
            "api.example.com:6443",
            "--clock-wait",
            "0s",
            "--wait",
            "0s",
        ],
        With::Configuration,
    ),
];

fn command_line(node: &Node, (words, with): (&[&str], With)) -> Command {
    match with {
        With::Configuration => node.configured(words),
        With::Nothing | With::Node => node.command(words),
    }
}

/// Returns the words of a text that are or contain an absolute path.
fn absolute_paths(text: &str) -> BTreeSet<&str> {
    let separates = |c: char| c.is_whitespace() || "\"'`()<>,;{}[]".contains(c);
    let tokens = text
        .split(separates)
        .map(|token| token.trim_end_matches([':', '.', '$']));
    tokens
        .filter(|token| {
            let starts = token.match_indices('/').map(|(at, _)| (at, &token[..at]));
            let mut paths = starts.filter(|(at, before)| {
                let begins = before.is_empty() || before.ends_with(['=', ':', '#', '|', '@']);
                // `https://` contains a slash that does not begin a path.
                let is_url = token[*at..].starts_with("//") || token.len() == 1;
                begins && !is_url
            });
            paths.next().is_some()
        })
        .collect()
}

/// Returns the paths in a text that cannot be opened on this machine.
fn not_openable<'a>(text: &'a str, node: &Node) -> Vec<&'a str> {
    let beside = node.outside("");
    let beside = beside.to_str().unwrap();
    let root = node.root();
    let found = absolute_paths(text).into_iter();
    found
        .filter(|token| !OTHER_PATHS.contains(token))
        .filter(|token| {
            let at = token.find('/').unwrap();
            let path = &token[at..];
            let is_beside = path
                .strip_prefix(beside)
                .is_some_and(|rest| !rest.starts_with("etc"));
            !path.starts_with(root.to_str().unwrap()) && !is_beside
        })
        .collect()
}

/// Adds a line for each fault in the paths of a run.
fn check_paths(node: &Node, fault: &str, command: &Command, ran: &Ran, wrong: &mut Vec<String>) {
    let text = ran.said();
    let paths = not_openable(&text, node);
    let arguments: Vec<_> = command.get_args().skip(2).collect();
    if !paths.is_empty() {
        wrong.push(format!("{fault}: {arguments:?} names {paths:?}:\n{text}"));
    }
    if ran.code.is_none() || text.contains("error: unexpected argument") {
        wrong.push(format!(
            "{fault}: {arguments:?} ended by signal {:?} or is not a command line:\n{text}",
            ran.signal
        ));
    }
}

/// Returns a node in use: certificates, manifests, kubeadm's files, and an administrator's copies.
fn prepared() -> Node {
    let node = Node::with_service_account();
    node.bootstrap().done();
    let settings = fs::read_to_string(node.outside("config.yaml")).unwrap();
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    node.write("/etc/nodepki/config.yaml", settings);
    node.write("/passphrase", "correct horse battery staple\n");
    let pod = |name: &str, arguments: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: kube-system\n  annotations: \
             {{kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: '192.0.2.11:6443'}}\nspec:\n  containers:\n  \
             - name: {name}\n    command:\n    - {name}\n{arguments}"
        )
    };
    node.write(
        format!("{MANIFESTS}/kube-controller-manager.yaml"),
        pod(
            "kube-controller-manager",
            "    - --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt\n    - --cluster-signing-key-file=/etc/kubernetes/pki/ca.key\n",
        ),
    );
    node.write(
        format!("{MANIFESTS}/kube-apiserver.yaml"),
        pod(
            "kube-apiserver",
            "    - --tls-cert-file=/etc/kubernetes/pki/other.crt\n",
        ),
    );
    node.write(
        "/etc/kubernetes/old.conf",
        node.read("/etc/kubernetes/admin.conf"),
    );
    node.write(
        "/root/.kube/config",
        node.read("/etc/kubernetes/admin.conf"),
    );
    node.write("/new-ca.crt", other_authority(&node));
    node
}

fn other_authority(node: &Node) -> String {
    let before = fs::read(node.ca().join("ca.crt")).unwrap();
    let key = fs::read(node.ca().join("ca.key")).unwrap();
    node.replace_authority(Authority::Ca, now(), 365 * DAY);
    let other = node.read(format!("{PKI}/ca.crt"));
    fs::write(node.ca().join("ca.crt"), &before).unwrap();
    fs::write(node.ca().join("ca.key"), key).unwrap();
    node.write(format!("{PKI}/ca.crt"), before);
    other
}

fn another_key() -> Vec<u8> {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    key.to_pem().as_bytes().to_vec()
}

type Fault = (&'static str, fn(&Node));

const FAULTS: &[Fault] = &[
    ("nothing", |_| {}),
    ("torn pair", |node| {
        node.write(format!("{PKI}/apiserver.key"), another_key());
    }),
    ("torn service-account pair", |node| {
        node.write(format!("{PKI}/sa.key"), another_key());
    }),
    ("service-account key is missing", |node| {
        node.remove(format!("{PKI}/sa.key"));
        node.set_mode("/etc/kubernetes/admin.conf", 0o644);
    }),
    ("foreign CA", |node| {
        node.write(format!("{PKI}/ca.crt"), node.read("/new-ca.crt"));
    }),
    ("damaged CA", |node| {
        node.write(format!("{PKI}/front-proxy-ca.crt"), "damaged");
        node.write(format!("{PKI}/crl.pem"), "damaged");
    }),
    ("CA keys on the node", |node| {
        for name in ["ca", "etcd/ca", "front-proxy-ca"] {
            let key = fs::read(node.ca().join(format!("{name}.key"))).unwrap();
            node.write(format!("{PKI}/{name}.key"), &key);
            node.write(format!("/etc/kubernetes/backup/{name}.key"), key);
        }
    }),
    ("directory in the place of a file", |node| {
        node.remove("/etc/kubernetes/scheduler.conf");
        fs::create_dir(node.path("/etc/kubernetes/scheduler.conf")).unwrap();
    }),
    ("kubeconfigs", |node| {
        node.write(
            "/etc/kubernetes/admin.conf",
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n",
        );
        node.write("/etc/kubernetes/scheduler.conf", "");
        node.write("/etc/kubernetes/controller-manager.conf", "[");
        node.remove("/etc/kubernetes/kubelet.conf");
    }),
    ("kubelet by file", |node| {
        let link = "/var/lib/kubelet/pki/kubelet-client-current.pem";
        fs::create_dir_all(node.path("/var/lib/kubelet/pki")).unwrap();
        symlink("gone.pem", node.path(link)).unwrap();
        node.write("/var/lib/kubelet/config.yaml", "tlsCertFile: ''\n");
    }),
    ("links and modes", |node| {
        let key = format!("{PKI}/etcd/server.key");
        fs::rename(node.path(&key), node.path("/moved.key")).unwrap();
        symlink("/moved.key", node.path(&key)).unwrap();
        node.set_mode(format!("{PKI}/etcd/peer.key"), 0o644);
        node.set_mode(PKI, 0o777);
        node.write(format!("{PKI}/.nodepki-new.ca.crt~"), "left");
        node.write(format!("{PKI}/apiserver.csr"), "request");
    }),
    ("damaged journal", |node| {
        node.write("/var/lib/nodepki/journal.json", "{\"version\": 1");
    }),
    ("journal of another program", |node| {
        node.write(
            "/var/lib/nodepki/journal.json",
            r#"{"version": 1, "entries": [], "kept": [{"path": "/etc/passwd", "sha256": ""}]}"#,
        );
        node.write(
            "/var/lib/nodepki/staging.json",
            r#"{"version": 1, "directories": ["/etc/cron.d"]}"#,
        );
    }),
    ("damaged state", |node| {
        node.write("/var/lib/nodepki/issued.json", "damaged");
        node.write("/var/lib/nodepki/node.json", "damaged");
        node.write("/var/lib/nodepki/cluster-configuration.yaml", "kind: [");
    }),
    ("kubeadm files", |node| {
        let text = INIT.replace("advertiseAddress: 192.0.2.11", "advertiseAddress: nowhere");
        node.write("/run/kubeadm/kubeadm.yaml", &text);
        node.configure(&text);
    }),
    ("settings", |node| {
        node.write(
            "/etc/nodepki/config.yaml",
            "kind: NodePKIConfiguration\nx: 1\n",
        );
        node.write(
            "/etc/nodepki/config.d/10-more.yaml",
            "apiVersion: nodepki.io/v1alpha1\nkind: None\n",
        );
        node.settings("unknown: 1\n");
    }),
    ("settings that are a directory", |node| {
        node.remove("/etc/nodepki/config.yaml");
        fs::create_dir(node.path("/etc/nodepki/config.yaml")).unwrap();
        node.remove("/run/kubeadm/kubeadm.yaml");
    }),
    ("files that settings name", |node| {
        let text = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             kubeadm: {clusterConfiguration: /etc/absent.yaml}\n\
             authorities: {ca: {signer: d, trust: {file: /etc/absent.crt}}, etcd-ca: {signer: l}, front-proxy-ca: {signer: l}}\n\
             signers:\n  d: {directory: {path: /drop}}\n  l: {local: {directory: /absent-ca}}\n";
        node.write("/etc/nodepki/config.yaml", text);
        fs::create_dir_all(node.path("/drop")).unwrap();
        node.write("/drop/inbox", "no directory");
        for file in ["ca.crt", "etcd/server.crt", "front-proxy-client.crt"] {
            node.remove(format!("{PKI}/{file}"));
        }
    }),
    ("files that settings name, alone", |node| {
        node.write(
            "/etc/nodepki/config.yaml",
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             authorities: {ca: {signer: d}, etcd-ca: {signer: l}, front-proxy-ca: {signer: x}}\n\
             signers:\n  d: {directory: {path: /drop}}\n  l: {local: {directory: /absent-ca}}\n  \
             x: {exec: {command: /usr/local/sbin/sign}}\n",
        );
        fs::create_dir_all(node.path("/drop")).unwrap();
        node.write("/drop/inbox", "no directory");
        for file in ["apiserver.crt", "etcd/server.crt", "front-proxy-client.crt"] {
            node.remove(format!("{PKI}/{file}"));
        }
    }),
    ("trust file and metrics", |node| {
        node.write(
            "/etc/nodepki/config.yaml",
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             metrics: {textfile: /absent/nodepki.prom}\n\
             authorities: {ca: {signer: l, trust: {file: /etc/absent.crt}}, etcd-ca: {signer: l}, front-proxy-ca: {signer: l}}\n\
             signers: {l: {local: {directory: /absent-ca}}}\n",
        );
        node.remove(format!("{PKI}/ca.crt"));
        node.remove(format!("{PKI}/etcd/server.crt"));
    }),
    ("another name and address", |node| {
        let text = INIT
            .replace("192.0.2.11", "192.0.2.99")
            .replace("name: cp1", "name: cp9");
        node.write("/run/kubeadm/kubeadm.yaml", &text);
        node.configure(&text);
    }),
    ("joins without a cluster", |node| {
        let join = JOIN.split("---").next().unwrap();
        let file = "discovery: {file: {kubeConfigPath: /etc/absent-discovery.conf}}";
        let lines: Vec<&str> = join
            .lines()
            .map(|command_line| {
                if command_line.starts_with("discovery:") {
                    file
                } else {
                    command_line
                }
            })
            .collect();
        node.write("/run/kubeadm/kubeadm.yaml", lines.join("\n"));
        node.configure(&lines.join("\n"));
        fs::remove_dir_all(node.path("/etc/kubernetes")).unwrap();
        fs::remove_dir_all(node.path("/var/lib/nodepki")).unwrap();
    }),
    ("external etcd", |node| {
        let text = format!(
            "{INIT}etcd: {{external: {{endpoints: ['https://192.0.2.5:2379'], caFile: /etc/etcd/ca.crt, certFile: /etc/etcd/c.crt, keyFile: /etc/etcd/c.key}}}}\n"
        );
        node.write("/run/kubeadm/kubeadm.yaml", &text);
        node.configure(&text);
        node.write("/etc/etcd/c.crt", "damaged");
    }),
    ("nothing at all", |node| {
        fs::remove_dir_all(node.root()).unwrap();
        fs::create_dir(node.root()).unwrap();
    }),
];

#[test]
fn names_paths_below_root_as_paths_on_this_machine() {
    let mut wrong = Vec::new();
    for (number, (fault, damage)) in FAULTS.iter().enumerate() {
        let node = prepared();
        damage(&node);
        let beside = UNAFFECTED_COMMANDS.iter().filter(|_| *fault == "nothing");
        for words in sampled(number, COMMANDS.iter().chain(beside)) {
            let mut command = command_line(&node, *words);
            let ran = Ran::of(&mut command);
            check_paths(&node, fault, &command, &ran, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_paths_below_relative_root_from_working_directory() {
    for (fault, damage) in sampled(0, FAULTS) {
        let node = prepared();
        damage(&node);
        let run = |words: &[&str]| {
            let mut command = Command::new(NODEPKI);
            command.args(["--root", "root"]).args(words);
            command
                .current_dir(node.outside(""))
                .env_remove("JOURNAL_STREAM");
            let ran = Ran::of(&mut command);
            let text = ran.said();
            let absolute = absolute_paths(&text).into_iter();
            let wrong: Vec<&str> = absolute
                .filter(|token| !OTHER_PATHS.contains(token))
                .collect();
            assert!(
                wrong.is_empty(),
                "{fault}: {words:?} names {wrong:?}:\n{text}"
            );
            for path in text.split([' ', '\n', ',', ';', '`', '(', ')']) {
                let Some(below) = path.strip_prefix("root/etc/kubernetes/pki/") else {
                    continue;
                };
                assert!(!below.contains("root/"), "{fault}: {path}");
            }
            text
        };
        run(&["status"]);
        run(&["doctor"]);
        let said = run(&["plan", "-v"]);
        if *fault == "nothing" {
            assert!(
                said.contains("root/etc/kubernetes/pki/apiserver.crt"),
                "{said}"
            );
        }
        run(&["needs-renewal", "-v"]);
        run(&["renew", "--dry-run"]);
    }
}

#[test]
fn names_files_of_signers_as_paths_on_this_machine() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/examples/signers");
    let mut wrong = Vec::new();
    for example in fs::read_dir(examples).unwrap() {
        let example = example.unwrap().path();
        let fault = example.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&example).unwrap();
        let node = prepared();
        node.write("/etc/nodepki/config.yaml", &text);
        for leaf in ["apiserver", "etcd/server", "front-proxy-client"] {
            node.remove(format!("{PKI}/{leaf}.crt"));
        }
        let run = |wrong: &mut Vec<String>| {
            for words in ["bootstrap", "renew"] {
                let words = [words, "--wait", "0s", "--clock-wait", "0s"];
                let mut command = command_line(&node, (&words, With::Node));
                let ran = Ran::of(&mut command);
                check_paths(&node, &fault, &command, &ran, wrong);
            }
        };
        run(&mut wrong);
        // With the CA file present, the next missing file is named.
        for named in text.split("caFile: ").skip(1) {
            let file = named.split([' ', '\n', '}', ',']).next().unwrap();
            if file.starts_with('/') {
                node.write(file, fs::read(node.ca().join("ca.crt")).unwrap());
            }
        }
        run(&mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn points_at_faults_of_files_below_root() {
    let node = prepared();
    let text = INIT.replace("advertiseAddress: 192.0.2.11", "advertiseAddress: nowhere");
    node.write("/run/kubeadm/kubeadm.yaml", text);
    node.run(&["config", "check"]).ended(78).says(
        &node.here("nodepki: @/run/kubeadm/kubeadm.yaml:3:38: localAPIEndpoint.advertiseAddress"),
    );
    node.write("/run/kubeadm/kubeadm.yaml", INIT);
    node.write(
        "/etc/nodepki/config.d/10.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nwiat: 1s\n",
    );
    node.run(&["config", "check"])
        .ended(78)
        .says(&node.here("nodepki: @/etc/nodepki/config.d/10.yaml:3:1: "));
}

/// Every string of a value whose key holds sentences.
fn sentences(value: &Value, found: &mut Vec<String>) {
    const KEYS: [&str; 12] = [
        "reasons", "notes", "evidence", "fix", "problems", "remarks", "unproven", "changes",
        "done", "missing", "restarts", "proven",
    ];
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if KEYS.contains(&key.as_str()) => found.push(text.clone()),
                    Value::Array(items) if KEYS.contains(&key.as_str()) => {
                        found.extend(items.iter().filter_map(Value::as_str).map(str::to_owned));
                    }
                    other => sentences(other, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| sentences(item, found)),
        _ => {}
    }
}

#[test]
fn names_paths_on_this_machine_in_sentences_of_structured_output() {
    let node = prepared();
    for (fault, damage) in FAULTS {
        if [
            "torn pair",
            "CA keys on the node",
            "links and modes",
            "kubelet by file",
            "kubeconfigs",
        ]
        .contains(fault)
        {
            damage(&node);
        }
    }
    for words in [
        (&["plan", "-o", "json"][..], With::Configuration),
        (&["status", "-o", "json"], With::Nothing),
        (&["doctor", "-o", "json"], With::Configuration),
        (
            &["migrate", "to-external", "-o", "json"],
            With::Configuration,
        ),
    ] {
        let ran = Ran::of(&mut command_line(&node, words));
        let printed: Value = serde_json::from_str(&ran.stdout).unwrap();
        let mut found = Vec::new();
        sentences(&printed, &mut found);
        assert!(!found.is_empty(), "{}", ran.stdout);
        for text in found {
            assert_eq!(not_openable(&text, &node), [""; 0], "{text}");
        }
        assert_eq!(not_openable(&ran.stderr, &node), [""; 0], "{}", ran.stderr);
    }
    // Data fields contain the path on the node.
    let printed = Ran::of(&mut command_line(
        &node,
        (&["plan", "-o", "json"], With::Configuration),
    ));
    let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
    let rows = printed["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "apiserver").unwrap();
    assert_eq!(row["paths"][0], "/etc/kubernetes/pki/apiserver.crt");
}

#[test]
fn keeps_pending_request_when_root_is_named_differently() {
    let node = prepared();
    node.remove(format!("{PKI}/apiserver.crt"));
    fs::remove_file(node.outside("kubeadm.yaml")).unwrap();
    fs::create_dir(node.path("/drop")).unwrap();
    node.write(
        "/etc/nodepki/config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities: {ca: {signer: d}, etcd-ca: {signer: d}, front-proxy-ca: {signer: d}}\n\
         signers: {d: {directory: {path: /drop}}}\n",
    );
    let outbox = || -> Vec<PathBuf> {
        let names = fs::read_dir(node.path("/drop/outbox")).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().path()).collect();
        names.sort();
        names
    };
    let words = ["bootstrap", "--wait", "0s", "--clock-wait", "0s"];
    let ran = node.run(&words);
    ran.ended(75)
        .says(&node.here("waiting for @/drop/inbox/apiserver.crt"));
    let before = outbox();
    assert!(!before.is_empty());
    let mut command = Command::new(NODEPKI);
    command.args(["--root", "root"]).args(words);
    command
        .current_dir(node.outside(""))
        .env_remove("JOURNAL_STREAM");
    Ran::of(&mut command)
        .ended(75)
        .says("waiting for root/drop/inbox/apiserver.crt");
    assert_eq!(outbox(), before);
}

#[test]
fn finds_paths_in_text() {
    let text = "a/b https://x/y and/or --f=/a/b local:/c (/d), `cat /e`: /f. s#--g=/h$#/i# /";
    let found: Vec<&str> = absolute_paths(text).into_iter().collect();
    assert_eq!(
        found,
        ["--f=/a/b", "/d", "/e", "/f", "local:/c", "s#--g=/h$#/i#"]
    );
}
