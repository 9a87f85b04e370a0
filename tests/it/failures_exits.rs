//! Exit codes after faults of this machine: 0 only if the node is as wanted, 75 if another run may do better.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use nodepki::names::CertName;

use crate::node::{EVERYTHING, INIT, Node, Ran, with_mounts};
use crate::renew::made_before;

/// `renew` with the local signer.
fn renew(node: &Node) -> Command {
    node.with_local(&["renew", "--clock-wait", "0s"], &[])
}

/// A node on which every certificate is to be issued anew, since another key algorithm is wanted.
fn drifted() -> Node {
    let node = Node::bootstrapped();
    made_before(&node, &EVERYTHING, time::Duration::hours(2));
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    node
}

/// The command under strace(1), which makes system calls of the main thread fail: `error=EIO:when=N`.
fn injected(command: &Command, calls: &str, how: &str) -> Ran {
    let mut strace = Command::new("timeout");
    strace
        .args(["60", "strace", "-o", "/dev/null"])
        .arg(format!("--trace={calls}"))
        .arg(format!("--inject={calls}:{how}"))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    Ran::of(&mut strace)
}

/// How often the main thread makes each of these system calls.
fn calls_of(command: &Command, calls: &str) -> BTreeMap<String, usize> {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("calls");
    let mut strace = Command::new("strace");
    strace
        .arg("-o")
        .arg(&log)
        .arg(format!("--trace={calls}"))
        .arg(command.get_program())
        .args(command.get_args());
    Ran::of(&mut strace).done();
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        if let Some((call, _)) = line.split_once('(') {
            *counts.entry(call.to_owned()).or_default() += 1;
        }
    }
    counts
}

fn keys(node: &Node) -> BTreeMap<CertName, String> {
    let names = EVERYTHING.into_iter();
    names.map(|name| (name, node.key_in_place(name))).collect()
}

fn is_pair(node: &Node, name: CertName) -> bool {
    node.leaf(name)
        .is_some_and(|(chain, key)| chain.leaf().public_key() == key.public_key())
}

#[test]
fn refuses_bind_mounted_target_before_renaming_anything() {
    for file in ["apiserver.crt", "apiserver.key"] {
        let node = drifted();
        let before = node.etc();
        let path = format!("/etc/kubernetes/pki/{file}");
        // A bind mount of the same file system has the same device number.
        let script = format!("mount --bind \"$1{path}\" \"$1{path}\"");
        let apiserver = ["renew", "--name", "apiserver", "--clock-wait", "0s"];
        with_mounts(&node, &node.with_local(&apiserver, &[]), &script)
            .ended(65)
            .says(&format!("{path} is a mount point"))
            .says("unmount it (umount ")
            .says_not("kept and still valid");
        before.unchanged(&node.etc());
        let bootstrap = node.with_local(&["bootstrap", "--clock-wait", "0s"], &[]);
        with_mounts(&node, &bootstrap, &script)
            .ended(65)
            .says(&format!("{path} is a mount point"));
        before.unchanged(&node.etc());
        node.bootstrap().done();
        node.assert_sound(&EVERYTHING);
    }
}

#[test]
#[cfg(feature = "failpoints")]
fn never_ends_0_over_a_pair_that_is_half_renamed() {
    for error in ["EIO", "EBUSY", "EACCES", "ENOSPC"] {
        // The second rename is that of a certificate whose key is in place already.
        for place in ["finish:rename-one:2", "finish:renamed", "finish:durable"] {
            let node = drifted();
            let armed = format!("{place}={error}");
            let ran = Ran::of(renew(&node).env("NODEPKI_FAILPOINT", &armed));
            ran.ended(75).says(
                "the new files are safe in the journal: run the same command again to finish",
            );
            // Others were not touched and serve; this one does not.
            let torn = EVERYTHING.iter().filter(|name| !is_pair(&node, **name));
            for name in torn {
                assert!(
                    !ran.row(name.as_str()).contains("still valid"),
                    "{armed}: {}",
                    ran.said()
                );
            }
            let finished = Ran::of(&mut renew(&node));
            finished.done();
            if place.starts_with("finish:rename-one") {
                finished.says("was completed");
            }
            node.assert_sound(&EVERYTHING);
        }
    }
}

/// System calls that touch files; errors of a failing disk, and of a table that is full.
const FILE_CALLS: &str = "openat,openat2,read,write,statx,getdents64,fsync,fdatasync,renameat,renameat2,unlinkat,mkdirat,\
                          fchmod,fgetxattr,flistxattr,fstatfs,flock,readlinkat,symlinkat";

/// Fails single system calls of `renew`. With NODEPKI_SWEEP=all every one of them, which takes an hour.
#[test]
#[cfg(feature = "failpoints")]
fn ends_0_under_injected_errors_only_if_everything_was_renewed() {
    let whole = drifted();
    let old = keys(&whole);
    let counts = calls_of(&renew(&whole.copied()), FILE_CALLS);
    let all = std::env::var("NODEPKI_SWEEP").is_ok_and(|value| value == "all");
    for (call, count) in counts {
        let step = match all {
            true => 1,
            false => count.div_ceil(6),
        };
        for (turn, when) in (1..=count).step_by(step).enumerate() {
            let error = match call.as_str() {
                "openat" | "openat2" => ["EMFILE", "EIO", "ENOMEM", "ENFILE"][turn % 4],
                "write" | "mkdirat" => ["ENOSPC", "EIO", "EDQUOT"][turn % 3],
                "renameat" | "renameat2" | "unlinkat" => ["EIO", "EBUSY", "ENOSPC"][turn % 3],
                _ => ["EIO", "ENOMEM"][turn % 2],
            };
            let node = whole.copied();
            let how = format!("error={error}:when={when}");
            let ran = injected(&renew(&node), &call, &how);
            let what = format!("{call}:{how}: {:?}\n{}", ran.code, ran.said());
            assert!(ran.signal.is_none() && ran.code != Some(101), "{what}");
            if ran.code == Some(0) {
                for (name, key) in &old {
                    assert!(is_pair(&node, *name), "{name} is torn: {what}");
                    assert_ne!(node.key_in_place(*name), *key, "{name} is old: {what}");
                }
                assert!(!ran.said().contains("still valid"), "{what}");
            }
            let again = Ran::of(&mut renew(&node));
            assert_eq!(again.code, Some(0), "{what}\nthen {}", again.said());
            node.assert_sound(&EVERYTHING);
        }
    }
}

#[test]
fn writes_certificate_key_file_only_after_upload() {
    let node = Node::bootstrapped();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let admin = node.read("/etc/kubernetes/admin.conf");
    node.write(
        "/etc/kubernetes/admin.conf",
        admin.replace("api.example.com:6443", &server),
    );
    let upload = || {
        let mut command = node.command([
            "certs",
            "upload",
            "--certificate-key-out",
            "/etc/nodepki/certificate-key",
            "--kubeadm-config",
        ]);
        command.arg(node.outside("kubeadm.yaml"));
        command
    };
    let file = node.path("/etc/nodepki/certificate-key");
    let mut run = upload()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The upload is under way, and the server never answers.
    let (connection, _) = listener.accept().unwrap();
    assert!(!file.exists(), "a file says that the Secret is there");
    run.kill().unwrap();
    run.wait().unwrap();
    drop(connection);
    assert!(!file.exists());
    drop(listener);
    Ran::of(&mut upload()).ended(69);
    assert!(!file.exists());
    assert_eq!(
        fs::read_dir(file.parent().unwrap()).unwrap().count(),
        0,
        "nothing else is left either"
    );
}
