//! Paths in arguments with `--root DIR`: they are paths of this machine, and one that could also mean a file below DIR is
//! refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::manual::{help, leaves};
use crate::node::{NODEPKI, Node, Ran, Snapshot};

/// Every argument with a path: the command, the option (none for a positional argument), and what else the command
/// requires. `{}` is the place of the path in the option's value.
const ARGUMENTS: &[(&str, &str, &str)] = &[
    ("plan", "--config {}", ""),
    ("plan", "--kubeadm-config {}", ""),
    ("plan", "--signer local:{}", ""),
    ("plan", "--signer directory:{}", ""),
    ("authority activate", "--kubeconfig {}", "ca"),
    ("authority activate", "--peer-report {}", "ca"),
    ("authority pause", "--kubeconfig {}", "ca"),
    ("authority resume", "--kubeconfig {}", "ca"),
    ("authority retire", "--kubeconfig {}", "ca"),
    ("authority retire", "--peer-report {}", "ca"),
    ("authority rotate", "--certificate {}", "ca"),
    ("authority rotate", "--kubeconfig {}", "ca --exclude cp2"),
    ("authority stage", "--certificate {}", "ca"),
    ("authority stage", "--kubeconfig {}", "ca --undo"),
    ("authority stage", "--peer-report {}", "ca --undo"),
    ("authority status", "--kubeconfig {}", ""),
    ("authority undo", "--kubeconfig {}", "ca"),
    ("authority watch", "--kubeconfig {}", ""),
    ("capi check", "--from-file {}", "prod"),
    ("capi check", "--kubeconfig {}", "prod"),
    ("capi migrate to-external", "--backup {}", MIGRATE),
    ("capi migrate to-external", "--kubeconfig {}", "prod"),
    ("capi migrate to-external", "--passphrase-file {}", CLUSTER),
    ("capi migrate to-internal", "--backup {}", MIGRATE),
    ("capi migrate to-internal", "--kubeconfig {}", RESTORE),
    ("capi migrate to-internal", "--passphrase-file {}", BACKUP),
    ("capi secrets", "--ca-dir {}", "prod"),
    ("capi secrets", "--kubeconfig {}", "prod --apply"),
    ("capi secrets", "--out {}", "prod"),
    ("capi secrets", "--state {}", "prod"),
    ("capi secrets", "--workload-kubeconfig {}", "prod"),
    ("capi sync", "--kubeconfig {}", "prod"),
    ("certs download", "--certificate-key-file {}", ""),
    ("certs download", "--kubeconfig {}", ""),
    ("certs expire", "--kubeconfig {}", ""),
    ("certs key", "--out {}", ""),
    ("certs upload", "--certificate-key-file {}", ""),
    ("certs upload", "--certificate-key-out {}", ""),
    ("certs upload", "--kubeconfig {}", ""),
    ("csr export", "{}", ""),
    ("csr import", "{}", ""),
    ("doctor", "--cert-dir {}", ""),
    ("doctor", "--kubeconfig {}", ""),
    ("init", "--to {}", "directory"),
    ("cluster status", "--kubeconfig {}", ""),
    ("kubelets approve", "--kubeconfig {}", "csr-abc"),
    ("kubelets deny", "--kubeconfig {}", "csr-abc"),
    ("kubelets list", "--kubeconfig {}", ""),
    ("kubelets revoke", "--kubeconfig {}", "w1"),
    ("migrate to-external", "--backup {}", "--passphrase-fd 0"),
    ("migrate to-external", "--passphrase-file {}", ""),
    ("migrate to-internal", "--backup {}", "--passphrase-fd 0"),
    ("migrate to-internal", "--passphrase-file {}", "--backup b"),
    ("status", "--cert-dir {}", ""),
];
const CLUSTER: &str = "prod --kubeconfig k";
const MIGRATE: &str = "prod --kubeconfig k --passphrase-fd 0";
const RESTORE: &str = "prod --backup b --passphrase-fd 0";
const BACKUP: &str = "prod --kubeconfig k --backup b";

/// Arguments that are independent of `--root`: the root itself, and directories for output.
const INDEPENDENT: [&str; 3] = ["--root", "demo", "man"];
/// Options of all commands, or of many, which the table has once.
const SHARED: [&str; 2] = ["--config", "--kubeadm-config"];

/// A directory of this machine and the same path below the root.
struct Places {
    node: Node,
    here: PathBuf,
    below: PathBuf,
}

impl Places {
    fn new() -> Self {
        let node = Node::new();
        let here = node.outside("media");
        let below = node.path(here.to_str().unwrap());
        Places { node, here, below }
    }

    /// Returns the command with `path` as its argument.
    fn command(&self, (name, option, more): (&str, &str, &str), path: &Path) -> Command {
        let option = option.replace("{}", path.to_str().unwrap());
        let words = [name, more, &option].map(|words| words.split_whitespace());
        self.node.command(words.into_iter().flatten())
    }
}

#[test]
fn refuses_every_argument_that_could_also_mean_a_file_of_the_node() {
    let places = Places::new();
    let Places { node, here, below } = &places;
    for (exists_here, directory_only) in [(true, false), (false, false), (false, true)] {
        for directory in [here, below] {
            let _ = fs::remove_dir_all(directory);
        }
        fs::create_dir_all(below).unwrap();
        if exists_here {
            fs::create_dir_all(here.join("given")).unwrap();
        }
        if !directory_only {
            fs::create_dir_all(below.join("given")).unwrap();
        }
        let given = here.join("given");
        let before = (node.snapshot(), exists_here.then(|| Snapshot::of(here)));
        for row in ARGUMENTS {
            let ran = Ran::of(&mut places.command(*row, &given));
            assert_eq!(ran.code, Some(64), "{row:?}: {}", ran.said());
            ran.says(&format!(
                "{} could also mean {}: a path on the command line is one of this machine (write {} for the file of the node",
                given.display(),
                below.join("given").display(),
                below.join("given").display()
            ));
            before.0.unchanged(&node.snapshot());
            match &before.1 {
                Some(before) => before.unchanged(&Snapshot::of(here)),
                None => assert!(!here.exists(), "{row:?}"),
            }
        }
    }
    // The answer of this command is its exit status.
    let ran =
        Ran::of(&mut places.command(("needs-renewal", "--config {}", ""), &here.join("given")));
    ran.ended(255).says(" could also mean ");
}

#[test]
fn table_has_every_argument_with_a_path() {
    let mut found = BTreeSet::new();
    for command in leaves() {
        let name = command.join(" ");
        let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
        words.push("--help");
        let text = help(&words);
        let options = text.lines().filter_map(|line| {
            let (names, value) = line.trim_start().split_once(" <")?;
            let value = value.split_once('>')?.0;
            ["FILE", "DIR", "MANIFEST"]
                .contains(&value)
                .then(|| names.rsplit(", ").next().unwrap())
        });
        let options = options.filter(|option| option.starts_with("--"));
        let rows =
            options.filter(|option| !SHARED.contains(option) && !INDEPENDENT.contains(option));
        found.extend(rows.map(|option| (name.clone(), format!("{option} {{}}"))));
        let has_directory = text
            .lines()
            .any(|line| line.trim() == "<DIR>" || line.trim() == "[DIR]");
        if has_directory && !INDEPENDENT.contains(&name.as_str()) {
            found.insert((name, "{}".to_owned()));
        }
    }
    let rows = ARGUMENTS.iter().filter(|(name, ..)| *name != "plan");
    let listed: BTreeSet<(String, String)> = rows
        .map(|(name, option, _)| ((*name).to_owned(), (*option).to_owned()))
        .collect();
    assert_eq!(listed, found);
}

#[test]
fn takes_paths_of_this_machine_and_those_below_the_root() {
    let Places { node, here, below } = &Places::new();
    let export = |path: &Path| {
        let mut command = node.configured(["csr", "export"]);
        command.arg(path).current_dir(here);
        Ran::of(&mut command)
    };
    // The directory exists in both places, the argument in none: it is a path of this machine.
    fs::create_dir_all(here).unwrap();
    fs::create_dir_all(below).unwrap();
    export(&here.join("requests")).done();
    assert!(here.join("requests").is_dir());
    assert_eq!(fs::read_dir(below).unwrap().count(), 0);
    // A path of the node is written with the root before it.
    export(&below.join("requests")).done();
    assert!(below.join("requests").is_dir());
    // Now both exist. A path relative to the working directory is one of this machine.
    export(&here.join("requests")).ended(64);
    fs::remove_dir_all(here.join("requests")).unwrap();
    export(Path::new("./requests")).done();
    assert!(here.join("requests").is_dir());
    // Neither the argument nor its directory exists anywhere: nothing is written below the root.
    let mut key = node.command(["certs", "key", "--out"]);
    Ran::of(key.arg(here.join("no/such")));
    assert!(!below.join("no").exists());
    // Without another root the rule has no effect.
    let mut own = Command::new(NODEPKI);
    Ran::of(own.args(["certs", "key", "--out"]).arg(here.join("key"))).done();
}

#[test]
fn names_certificates_directory_of_node_with_its_root() {
    let node = Node::bootstrapped();
    let pki = node.path("/etc/kubernetes/pki");
    let status = |path: &Path| Ran::of(node.command(["status", "--cert-dir"]).arg(path));
    status(&pki).done().says("apiserver");
    fs::create_dir(node.outside("pki")).unwrap();
    status(&node.outside("pki"))
        .ended(64)
        .says("--cert-dir: ")
        .says(" is not below ");
}
