//! Machines that are lost, set up again, or off until all their certificates have expired.

use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cluster::authority::{AUTHORITIES, CertificateAuthorities};
use crate::cluster::node::Role;
use crate::cluster::{Cluster, runbook, shell};
use crate::machine::Machine;
use crate::system::run;

/// Loses a control-plane node, and boots a new machine with its name.
pub(crate) fn replaced(cluster: &mut Cluster) {
    cluster.lose("cp3");
    cluster.join("cp3", Role::ControlPlane);
}

/// Runs `kubeadm reset`, and lets the same machine join again at its next boot.
pub(crate) fn reset(cluster: &mut Cluster) {
    let node = cluster.node("cp3");
    node.done("kubeadm reset --force 2>&1");
    cluster.kubectl("cp1", "delete node cp3").unwrap();
    let node = cluster.node("cp3");
    node.done("rm /etc/kubernetes/kubeadm.done");
    node.machine.cut();
    node.boot();
    node.wait_until_joined();
    cluster.say("cp3 has joined again after kubeadm reset");
}

/// Lets every certificate on every machine expire while they are off. One machine is rescued offline by the runbook; the
/// others recover at their boot, once the signer answers.
pub(crate) fn expired(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        node.machine.cut();
    }
    let mut expired = 0;
    for node in &cluster.nodes {
        for folder in ["disk/upper/etc/kubernetes", "kubelet/pki"] {
            expired += expire(&node.machine.dir().join(folder), &cluster.authorities);
        }
    }
    cluster.say(&format!("{expired} certificates have expired"));
    cluster.set_signer_away(true);
    for node in &mut cluster.nodes {
        node.boot();
    }

    let media = cluster.site.path("media");
    for (authority, _) in AUTHORITIES {
        let base = media.join(match authority {
            "etcd-ca" => "etcd/ca",
            other => other,
        });
        fs::create_dir_all(base.parent().unwrap()).unwrap();
        for (name, extension) in [("cert.pem", "crt"), ("key.pem", "key")] {
            let file = cluster.authorities.file(authority, name);
            fs::copy(file, base.with_extension(extension)).unwrap();
        }
    }
    let node = cluster.node("cp1");
    node.machine.until("systemctl is-active containerd");
    let status = node.done("nodepki status");
    assert!(status.contains("expired"), "{status}");
    let diagnosis = node.machine.run("nodepki doctor");
    assert_eq!(diagnosis.status, 65, "{}", diagnosis.said);
    // 78: no signer is configured.
    let plan = node.machine.run("nodepki plan");
    assert!([0, 78].contains(&plan.status), "{}", plan.said);
    assert!(plan.said.contains("issue"), "{}", plan.said);
    node.done("nodepki csr export /run/tests/cp1");
    shell(&format!(
        "cd {}/cp1; CA={} sh README 2>&1",
        node.machine.shared().display(),
        media.display()
    ));
    node.done("nodepki csr import /run/tests/cp1");
    cluster.set_signer_away(false);
    let on_this_node = runbook::block(6, 0).replace("--root /mnt ", "");
    for node in &mut cluster.nodes {
        let over = "systemctl is-active -q nodepki-bootstrap.service";
        node.machine.until(over);
        node.machine.until(&on_this_node);
    }
}

/// Replaces each certificate below a folder by an expired one for the same key, and returns their number.
fn expire(folder: &Path, authorities: &CertificateAuthorities) -> usize {
    let mut expired = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            expired += expire(&path, authorities);
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let authority = match path.parent().unwrap().file_name().unwrap().to_str() {
            Some("etcd") => "etcd-ca",
            _ if name.starts_with("apiserver-etcd-client") => "etcd-ca",
            _ if name.starts_with("front-proxy-client") => "front-proxy-ca",
            _ => "ca",
        };
        let new = match name.rsplit_once('.') {
            Some((base, "crt")) if !base.ends_with("ca") && base != "kubelet" => {
                let key = fs::read_to_string(path.with_extension("key")).unwrap();
                expired_one(&text, &key, authority, authorities)
            }
            Some((_, "conf")) => {
                let field = |name: &str| {
                    let encoded = text.split(name).nth(1)?.lines().next()?.trim();
                    Some((encoded.to_owned(), STANDARD.decode(encoded).unwrap()))
                };
                let Some((old, certificate)) = field("client-certificate-data:") else {
                    continue;
                };
                let (_, key) = field("client-key-data:").unwrap();
                let certificate = String::from_utf8(certificate).unwrap();
                let key = String::from_utf8(key).unwrap();
                let new = expired_one(&certificate, &key, authority, authorities);
                text.replace(&old, &STANDARD.encode(new))
            }
            Some((base, "pem")) if base.starts_with("kubelet-client") => {
                let new = expired_one(&text, &text, authority, authorities);
                let (_, key) = text.split_once("-----END CERTIFICATE-----\n").unwrap();
                new + key
            }
            _ => continue,
        };
        fs::write(&path, new).unwrap();
        expired += 1;
    }
    expired
}

fn expired_one(
    certificate: &str,
    key: &str,
    authority: &str,
    authorities: &CertificateAuthorities,
) -> String {
    let dir = tempfile::tempdir().unwrap();
    let files = ["certificate", "key", "request"].map(|name| dir.path().join(name));
    fs::write(&files[0], certificate).unwrap();
    fs::write(&files[1], key).unwrap();
    run(Command::new("openssl")
        .args(["x509", "-x509toreq", "-copy_extensions", "copy", "-in"])
        .arg(&files[0])
        .arg("-signkey")
        .arg(&files[1])
        .arg("-out")
        .arg(&files[2]));
    authorities.expired(authority, &files[2])
}
