//! The container image and the system extension of a release, with the programs of their users.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::package_install::Root;
use crate::packages::{file, program, said};

#[test]
fn container_image_contains_the_program_alone() {
    let dir = tempfile::tempdir().unwrap();
    let image = format!("oci-archive:{}", file(".oci.tar").display());
    // It verifies the digest and the size of every blob.
    said(
        Command::new("skopeo")
            .args(["--insecure-policy", "copy", "--quiet", &image])
            .arg(format!("dir:{}", dir.path().display())),
    );
    let config = said(Command::new("skopeo").args(["inspect", "--config", &image]));
    let config: Value = serde_json::from_str(&config).unwrap();
    let process = &config["config"];
    assert_eq!(
        process["Entrypoint"],
        serde_json::json!(["/usr/bin/nodepki"])
    );
    assert_eq!(process["User"], "65532:65532");

    let found = said(Command::new("skopeo").args(["inspect", &image]));
    let found: Value = serde_json::from_str(&found).unwrap();
    let layers = found["Layers"].as_array().unwrap();
    let [Value::String(layer)] = &layers[..] else {
        panic!("{found}");
    };
    let layer = dir.path().join(layer.trim_start_matches("sha256:"));
    let names = said(Command::new("tar").arg("-tzf").arg(&layer));
    assert_eq!(names, "usr/\nusr/bin/\nusr/bin/nodepki\n");
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    said(
        Command::new("tar")
            .arg("-xzf")
            .arg(&layer)
            .arg("-C")
            .arg(&root),
    );
    let installed = fs::read(root.join("usr/bin/nodepki")).unwrap();
    assert_eq!(installed, fs::read(program()).unwrap());
    let version = said(
        Command::new("chroot")
            .arg("--userspec=65532:65532")
            .arg(&root)
            .args(["/usr/bin/nodepki", "--version"]),
    );
    assert_eq!(
        version.trim(),
        concat!("nodepki ", env!("CARGO_PKG_VERSION"))
    );
}

/// The mount that systemd-sysext makes reaches a root whose mounts are shared, as those of a booted system are.
#[test]
fn system_extension_adds_program_and_units_to_usr() {
    let root = Root::new();
    let said = root.run(&format!(
        "mount --make-shared \"$root\"
        mount -t sysfs sysfs \"$root/sys\"
        mount -t tmpfs tmpfs \"$root/run\"
        mkdir \"$root/etc/extensions\"
        cp '{}' \"$root/etc/extensions/nodepki.raw\"
        chroot \"$root\" systemd-sysext refresh
        chroot \"$root\" nodepki --version
        chroot \"$root\" systemctl enable nodepki-bootstrap.service nodepki-renew.timer
        chroot \"$root\" systemd-analyze verify --man=no nodepki-bootstrap.service nodepki-renew.timer nodepki.service 2>&1",
        file(".raw").display()
    ));
    assert!(said.contains("nodepki 0"), "{said}");
    for link in [
        "multi-user.target.wants/nodepki-bootstrap.service",
        "timers.target.wants/nodepki-renew.timer",
    ] {
        assert!(root.has(&format!("etc/systemd/system/{link}")), "{link}");
    }
}
