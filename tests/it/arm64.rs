//! The packages for arm64: their programs run under the emulation of QEMU. `tests/run arm64` runs these tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use nodepki::kube::names::CertName;
use nodepki::x509::{KeyAlgorithm, KeyType};

use crate::node::{EVERYTHING, INIT, Node, Ran};
use crate::package_budget::daemon::authorities::make_authorities;
use crate::package_budget::{assert_within, budget};
use crate::package_install::Root;
use crate::packages::{file, program, said};

fn emulated(words: &[&str]) -> Command {
    let mut command = Command::new("qemu-aarch64");
    command.arg(program()).args(words);
    command
}

#[test]
fn program_is_static_and_for_arm64() {
    let described = said(Command::new("file").arg("--brief").arg(program()));
    assert!(
        described.contains("ARM aarch64") && described.contains("static"),
        "{described}"
    );
    said(&mut emulated(&["--version"]));
}

#[test]
fn packages_stay_within_their_budget() {
    let size = |path: &Path| fs::metadata(path).unwrap().len() as f64;
    let measurements = BTreeMap::from([
        ("arm64_program", size(program())),
        ("arm64_deb", size(&file(".deb"))),
        ("arm64_rpm", size(&file(".rpm"))),
    ]);
    let mut budget = budget();
    budget.retain(|key, _| key.starts_with("arm64_"));
    assert_within(&budget, &measurements);
}

#[test]
fn installs_beside_packages_of_another_architecture() {
    let root = Root::new();
    let package = root.add_package(&file(".deb"));
    root.run("chroot \"$root\" dpkg --add-architecture arm64");
    root.dpkg(&format!("--install {package}"));
    assert!(root.has("usr/bin/nodepki") && root.has("usr/lib/systemd/system/nodepki.service"));
    let shown = root.run("chroot \"$root\" dpkg-query -W -f '${Architecture}' nodepki");
    assert_eq!(shown, "arm64");
    root.dpkg("--purge nodepki");
    root.run("test ! -e \"$root/usr/bin/nodepki\"");
}

/// The program of this machine judges the files.
#[test]
fn bootstraps_and_renews_every_algorithm() {
    for algorithm in [
        KeyAlgorithm::Rsa2048,
        KeyAlgorithm::EcdsaP256,
        KeyAlgorithm::EcdsaP384,
    ] {
        let node = Node::of(&INIT.replace("ECDSA-P256", algorithm.as_str()));
        let authorities = tempfile::tempdir().unwrap();
        make_authorities(authorities.path(), algorithm);
        for name in ["ca.crt", "front-proxy-ca.crt", "etcd/ca.crt"] {
            let here = node.path(format!("/etc/kubernetes/pki/{name}"));
            fs::copy(authorities.path().join(name), here).unwrap();
        }
        let config = node.outside("kubeadm.yaml").display().to_string();
        let root = node.root().display().to_string();
        let signer = format!("local:{}", authorities.path().display());
        let run = |words: &[&str]| {
            let common = ["--root", &root];
            let inputs = [
                "--kubeadm-config",
                &config,
                "--signer",
                &signer,
                "--clock-wait",
                "0s",
            ];
            let ran = Ran::of(&mut emulated(&[&common, words, &inputs].concat()));
            ran.done();
        };
        run(&["bootstrap"]);
        node.assert_sound(&EVERYTHING);
        let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
        assert_eq!(
            *chain.leaf().public_key().key_type(),
            KeyType::Known(algorithm)
        );
        let before = node.keys_in_place();
        run(&["renew", "--all", "--force"]);
        node.assert_sound(&EVERYTHING);
        assert_ne!(node.keys_in_place(), before);
    }
}
