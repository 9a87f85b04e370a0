//! The input of a machine's first boot: a NoCloud seed with the user data of `cloud-init/`, edited as its README asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::system::{System, run};

const FIRST: &str = include_str!("../cloud-init/user-data-first.yaml");
const CFSSL: &str = include_str!("../cloud-init/signers/cfssl.yaml");
const DIRECTORY: &str = include_str!("../cloud-init/signers/directory.yaml");

/// The kind of signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    /// The company's CA in the machine, whose key is passed as a credential.
    Cfssl,
    /// The folder /srv/nodepki, with answers written by hand.
    Directory,
}

/// The files of a seed; see cloud-init's NoCloud data source.
pub(crate) struct Seed {
    user_data: String,
    meta_data: String,
}

impl Seed {
    /// Returns the seed of the first control-plane node, with the additions of a scenario.
    pub(crate) fn of(system: &System, signer: Signer, more: &str) -> Self {
        let signer = match signer {
            Signer::Cfssl => CFSSL,
            Signer::Directory => DIRECTORY,
        };
        Seed::bare(&archive(&[FIRST, &filled_in(signer, system), more]))
    }

    /// Returns the seed of a machine that is not a node.
    pub(crate) fn bare(user_data: &str) -> Self {
        Seed::of_instance(
            user_data.to_owned(),
            "instance-id: i-tests\nlocal-hostname: cp1\n".to_owned(),
        )
    }

    pub(crate) fn of_instance(user_data: String, meta_data: String) -> Self {
        Seed {
            user_data,
            meta_data,
        }
    }

    pub(crate) fn write(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        let files = [
            ("user-data", self.user_data.as_str()),
            ("meta-data", self.meta_data.as_str()),
            ("network-config", "version: 2\nethernets: {}\n"),
        ];
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    /// Writes the disk that clouds attach, which cloud-init finds by its label.
    pub(crate) fn write_iso(&self, dir: &Path) -> PathBuf {
        let (files, iso) = (dir.join("seed"), dir.join("seed.iso"));
        self.write(&files);
        let mut command = Command::new("genisoimage");
        command.args(["-quiet", "-joliet", "-rock", "-volid", "CIDATA", "-output"]);
        run(command.arg(&iso).arg(&files));
        iso
    }
}

/// Replaces the pins and certificates of the examples by those of this company's authorities.
fn filled_in(signer: &str, system: &System) -> String {
    let mut filled = signer.to_owned();
    for (authority, label) in [
        ("ca", "ca"),
        ("etcd-ca", "etcd_ca"),
        ("front-proxy-ca", "front_proxy_ca"),
    ] {
        let lines: Vec<_> = filled
            .lines()
            .map(|line| match line.split_once("sha256: [\"") {
                Some((before, _)) if line.trim_start().starts_with(&format!("{authority}:")) => {
                    format!(
                        "{before}sha256: [\"{}\"]}}}}",
                        system.corp(label, "pin").trim()
                    )
                }
                _ => line.to_owned(),
            })
            .collect();
        filled = lines.join("\n") + "\n";
        let whole = system.corp(label, "crt");
        let indented = whole.trim().replace('\n', "\n    ");
        let example = format!(
            "-----BEGIN CERTIFICATE-----\n    (of {authority})\n    -----END CERTIFICATE-----"
        );
        filled = filled.replace(&example, &indented);
    }
    filled
}

/// Joins several cloud-configs in an archive; each says how it is merged with the previous ones.
fn archive(parts: &[&str]) -> String {
    let mut archive = "#cloud-config-archive\n".to_owned();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        archive.push_str("- type: text/cloud-config\n  content: |\n");
        for line in part.lines() {
            archive.push_str("    ");
            archive.push_str(line);
            archive.push('\n');
        }
    }
    archive
}
