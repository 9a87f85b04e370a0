//! Exit status after faults of this machine: 0 only if the node is in the desired state, 75 if another run may succeed.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use nodepki::kube::names::CertName;

use crate::node::{EVERYTHING, Node, Ran, with_mounts};
use crate::renew::backdate;
use crate::sample::sampled;
use crate::time::wait_until;

/// `renew` with the local signer.
pub(crate) fn renew(node: &Node) -> Command {
    node.with_local(&["renew", "--clock-wait", "0s"], &[])
}

/// Returns a node on which every certificate must be reissued, since another key algorithm is configured.
pub(crate) fn drifted() -> Node {
    let node = Node::bootstrapped();
    backdate(&node, &EVERYTHING, time::Duration::hours(2));
    node.change_keys_of_local_signer();
    node
}

/// Runs the command under strace(1), which changes system calls of the main thread: `error=EIO:when=N`.
pub(crate) fn with_injection(command: &Command, calls: &str, how: &str) -> Ran {
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

/// Number of times that the main thread makes each of these system calls.
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

#[test]
fn names_needed_kernel_if_openat2_is_refused() {
    let node = Node::bootstrapped();
    let ran = with_injection(&node.command(["status"]), "openat2", "error=ENOSYS");
    ran.ended(75).says(
        "this kernel or container refuses openat2(2), which is needed to resolve paths inside ",
    );
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
    for (first, error) in ["EIO", "EROFS", "EACCES", "ENOSPC"].into_iter().enumerate() {
        // The second rename is the one of a certificate whose key is already installed.
        let places = ["finish:rename-one:2", "finish:renamed", "finish:durable"];
        for place in sampled(first % places.len(), places) {
            let node = drifted();
            let armed = format!("{place}={error}");
            let ran = Ran::of(renew(&node).env("NODEPKI_FAILPOINT", &armed));
            ran.ended(75).says(
                "the new files are safe in the journal: run the same command again to finish",
            );
            // Other certificates are untouched and valid; this one is not.
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

/// System calls on files; the errors are those of a failing disk and of a full file table.
const FILE_CALLS: &str = "openat,openat2,read,write,statx,getdents64,fsync,fdatasync,renameat,renameat2,unlinkat,mkdirat,\
                          fchmod,fgetxattr,flistxattr,fstatfs,flock,readlinkat,symlinkat";

/// Fails single system calls of `renew`. With NODEPKI_SWEEP=all it fails every one, which takes an hour.
#[test]
#[cfg(feature = "failpoints")]
fn ends_0_under_injected_errors_only_if_everything_was_renewed() {
    let prepared = drifted();
    let old = prepared.keys_in_place();
    let counts = calls_of(&renew(&prepared.copied()), FILE_CALLS);
    let all = std::env::var("NODEPKI_SWEEP").is_ok_and(|value| value == "all");
    let errors = counts.iter().flat_map(|(call, count)| {
        let step = if all { 1 } else { count.div_ceil(6) };
        let places = (1..=*count).step_by(step).enumerate();
        places.map(move |(turn, when)| (call, turn, when))
    });
    for (call, turn, when) in sampled(1, errors) {
        let error = match call.as_str() {
            "openat" | "openat2" => ["EMFILE", "EIO", "ENOMEM", "ENFILE"][turn % 4],
            "write" | "mkdirat" => ["ENOSPC", "EIO", "EDQUOT"][turn % 3],
            "renameat" | "renameat2" | "unlinkat" => ["EIO", "EBUSY", "ENOSPC"][turn % 3],
            _ => ["EIO", "ENOMEM"][turn % 2],
        };
        let node = prepared.copied();
        let how = format!("error={error}:when={when}");
        let ran = with_injection(&renew(&node), call, &how);
        let what = format!("{call}:{how}: {:?}\n{}", ran.code, ran.said());
        assert!(ran.signal.is_none() && ran.code != Some(101), "{what}");
        if ran.code == Some(0) {
            for (name, key) in &old {
                assert!(
                    is_pair(&node, *name),
                    "{name}: certificate and key differ: {what}"
                );
                assert_ne!(
                    node.key_in_place(*name),
                    *key,
                    "{name} was not renewed: {what}"
                );
            }
            assert!(!ran.said().contains("still valid"), "{what}");
        }
        let again = Ran::of(&mut renew(&node));
        assert_eq!(again.code, Some(0), "{what}\nthen {}", again.said());
        node.assert_sound(&EVERYTHING);
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
            "@/etc/nodepki/certificate-key",
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
    // The upload has started, and the server never answers.
    let (connection, _) = listener.accept().unwrap();
    assert!(!file.exists(), "the key file exists before the Secret");
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
        "other files are left over"
    );
}

/// Commands that read, request and write.
pub(crate) fn commands(node: &Node) -> Vec<Command> {
    vec![
        node.with_local(&["plan"], &[]),
        node.command(["status"]),
        node.with_local(&["renew", "--clock-wait", "0s"], &[]),
        node.with_local(&["bootstrap", "--clock-wait", "0s"], &[]),
        node.with_local(&["config", "check"], &[]),
    ]
}

#[track_caller]
pub(crate) fn assert_done_or_temporary(ran: &Ran, what: &str) {
    assert!(
        matches!(ran.code, Some(0 | 75)),
        "{what}: {:?} {:?}\n{}",
        ran.code,
        ran.signal,
        ran.said()
    );
    assert!(ran.code == Some(0) || ran.stderr.contains("nodepki: ") || !ran.stdout.is_empty());
}

#[test]
fn ends_75_when_a_configuration_file_cannot_be_read() {
    let node = Node::bootstrapped();
    // The loop reads settings, the kubeadm file, the signer's files and the node's own.
    for command in commands(&node) {
        let counts = calls_of(&command, "openat2,openat,read,statx");
        let errors = counts.iter().flat_map(|(call, count)| {
            // Before the first openat2(2) only the loader and the runtime read files.
            let first = if call == "openat2" { 1 } else { 12 };
            let places = (first..=*count).step_by(count.div_ceil(8)).enumerate();
            places.map(move |(turn, when)| (call, turn, when))
        });
        for (call, turn, when) in sampled(1, errors) {
            let error = ["EIO", "EMFILE", "ENOMEM"][turn % 3];
            let ran = with_injection(&command, call, &format!("error={error}:when={when}"));
            let words: Vec<_> = command.get_args().skip(2).take(2).collect();
            assert_done_or_temporary(&ran, &format!("{words:?} {call} {when} {error}"));
        }
    }
}

#[test]
fn ends_75_when_standard_output_is_full_and_never_panics() {
    let node = Node::bootstrapped();
    let mut all = commands(&node);
    all.push(node.command(["--help"]));
    all.push(node.command(["completions", "bash"]));
    all.push(node.command(["man"]));
    all.push(node.command(["-vv", "status"]));
    for command in all {
        for (into, code) in [("/dev/full", 75), ("pipe", 0)] {
            let mut shell = Command::new("sh");
            let script = match into {
                "pipe" => "{ \"$@\"; echo $? >&3; } 3>&1 >&- 2>&-".to_owned(),
                file => format!("\"$@\" >{file} 2>{file}; echo $?"),
            };
            shell
                .args(["-c", &script, "sh"])
                .arg(command.get_program())
                .args(command.get_args())
                .env_remove("JOURNAL_STREAM");
            let ran = Ran::of(&mut shell);
            assert_eq!(
                ran.stdout.trim(),
                code.to_string(),
                "{into}: {:?}",
                command.get_args()
            );
        }
    }
}

#[test]
fn keeps_core_dumps_and_their_keys_off_the_disk() {
    let node = Node::new();
    let command = node.command(["status"]);
    let log = node.outside("calls");
    let mut strace = Command::new("strace");
    strace
        .arg("-o")
        .arg(&log)
        .args(["--trace=prctl,prlimit64,setrlimit"])
        .arg(command.get_program())
        .args(command.get_args());
    Ran::of(&mut strace);
    let calls = fs::read_to_string(log).unwrap();
    assert!(
        calls.contains("PR_SET_DUMPABLE, SUID_DUMP_DISABLE"),
        "{calls}"
    );
    assert!(
        calls.contains("RLIMIT_CORE, {rlim_cur=0, rlim_max=0}"),
        "{calls}"
    );
}

#[test]
fn ends_its_plug_in_when_a_signal_ends_the_run() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let node = Node::new();
        node.signer_does("etcd-peer", "hang");
        // The tests inherit an ignored SIGHUP if they run under nohup(1).
        let ask = node.ask_command("60s");
        let mut command = Command::new("env");
        let run = command
            .arg("--default-signal=HUP,INT,TERM")
            .arg(ask.get_program())
            .args(ask.get_args())
            .envs(
                ask.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the request is sent", || {
            node.submissions().contains_key("etcd-peer")
        });
        let pid = Pid::from_raw(i32::try_from(run.id()).unwrap());
        let programs = children(run.id());
        assert!(!programs.is_empty(), "the plug-in has ended");
        kill(pid, signal).unwrap();
        Ran::from(run.wait_with_output().unwrap())
            .ended(75)
            .says(&format!("nodepki: ended by {signal}"));
        for program in programs {
            wait_until("the plug-in has ended", || {
                killpg(program, None) == Err(Errno::ESRCH)
            });
        }
        let asked = node.keys_seen();
        node.signer_behaves();
        node.ask().done();
        for (slot, keys) in asked {
            assert_eq!(node.keys_seen()[&slot], keys, "{slot}: the key changed");
        }
        node.assert_sound(&EVERYTHING);
    }
}

/// Returns the child processes of a process.
fn children(parent: u32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).unwrap();
    let lists = tasks
        .map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    let words: String = lists.collect();
    words
        .split_whitespace()
        .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        .collect()
}
