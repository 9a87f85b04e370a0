//! Confinement on a kernel with Landlock: what a thread and the real program can no longer do, and that the work they
//! are asked to do still succeeds.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use nodepki::process::confine::{Rights, confine, spawn};
use tempfile::TempDir;

use crate::log::logged;
use crate::node::{INIT, NODEPKI, Node, Ran, SIGNER};
use crate::signing::{run_program, write_authorities};
use crate::time::eventually;

fn no_new_privs(status: &str) -> bool {
    let status = fs::read_to_string(status).unwrap();
    let line = status.lines().find(|line| line.starts_with("NoNewPrivs"));
    line.unwrap().ends_with('1')
}

/// Runs `act` in a thread confined to these directories, and returns the log of the confinement.
fn confined<T: Send>(
    writes: &[&Path],
    programs: bool,
    act: impl FnOnce() -> T + Send,
) -> (T, String) {
    let reach = Rights {
        writes: writes.iter().map(|path| path.to_path_buf()).collect(),
        programs,
        ..Rights::default()
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let ((), log) = logged(|| confine(&reach));
            (act(), log)
        });
        thread.join().unwrap()
    })
}

fn assert_denied<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn confined_thread_writes_only_to_its_directories() {
    let (inside, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (inside, outside) = (inside.path(), outside.path());
    fs::write(outside.join("there"), "unchanged").unwrap();
    fs::write(inside.join("program"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(inside.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    let ((), log) = confined(&[inside], false, || {
        fs::create_dir(inside.join("a")).unwrap();
        fs::write(inside.join("a/file"), "new").unwrap();
        // A rename between two of the directories, as when a request is set aside.
        fs::rename(inside.join("a/file"), inside.join("file")).unwrap();
        std::os::unix::fs::symlink("file", inside.join("link")).unwrap();
        fs::remove_file(inside.join("link")).unwrap();

        assert_denied(fs::write(outside.join("new"), ""));
        assert_denied(fs::write(outside.join("there"), "otherwise"));
        assert_denied(fs::remove_file(outside.join("there")));
        assert_denied(fs::create_dir(outside.join("dir")));
        assert_denied(std::os::unix::fs::symlink("there", outside.join("link")));
        fs::rename(inside.join("file"), outside.join("file")).unwrap_err();
        // Reading is not restricted.
        assert_eq!(
            fs::read_to_string(outside.join("there")).unwrap(),
            "unchanged"
        );

        // A program of the system runs, a program in a writable directory does not.
        let systemctl = Command::new("/usr/bin/systemctl").arg("--version").output();
        assert!(systemctl.unwrap().status.success());
        assert_denied(Command::new(inside.join("program")).status());
        assert_denied(TcpListener::bind("127.0.0.1:0"));
        assert!(no_new_privs("/proc/thread-self/status"));
        // Its child processes are confined too.
        let there = outside.join("there");
        let child = Command::new("/bin/sh")
            .args(["-c", "echo otherwise >\"$0\""])
            .arg(&there)
            .status();
        assert!(!child.unwrap().success());
        thread::scope(|scope| {
            scope
                .spawn(|| assert_denied(fs::write(&there, "")))
                .join()
                .unwrap()
        });
    });
    assert!(log.contains("confined in full"), "{log}");
    assert_eq!(fs::read_dir(outside).unwrap().count(), 1);
}

#[test]
fn creates_missing_directory_before_confinement() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("etc/kubernetes/pki");
    confined(&[&path], false, || {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("ca.crt"), "").unwrap();
    });
}

#[test]
fn starts_foreign_programs_unconfined() {
    let (inside, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = outside.path().join("status");
    confined(&[inside.path()], true, || {
        assert_denied(fs::write(&file, ""));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let status = runtime.block_on(async {
            let mut command = tokio::process::Command::new("/bin/sh");
            command
                .args(["-c", "cat /proc/self/status >\"$0\""])
                .arg(&file);
            spawn(command).unwrap().wait().await
        });
        assert!(status.unwrap().success());
    });
    assert!(!no_new_privs(file.to_str().unwrap()));
}

/// The administrator decides which files a plug-in writes and which privileges it has.
#[test]
fn does_not_confine_plug_in() {
    let node = Node::new();
    let script = node.outside("plugin.sh");
    let marker = TempDir::new().unwrap();
    let marker = marker.path().join("status");
    let text = format!(
        "#!/bin/bash\ncat /proc/self/status >{}\nexec bash {} \"$@\"\n",
        marker.display(),
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/signer.sh"),
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    node.edit_settings(SIGNER, script.to_str().unwrap());
    Ran::of(&mut node.ask_command("60s")).done();
    assert!(!no_new_privs(marker.to_str().unwrap()));
}

/// The program with a directory as its root, as on `/`, so it writes only there.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Machine(TempDir::new().unwrap());
        write_authorities(&machine.path("srv/ca"));
        for file in ["ca.crt", "front-proxy-ca.crt", "etcd/ca.crt"] {
            let pem = fs::read(machine.path("srv/ca").join(file)).unwrap();
            machine.write(&format!("etc/kubernetes/pki/{file}"), &pem);
        }
        machine.write("run/kubeadm/kubeadm.yaml", INIT.as_bytes());
        machine.write(
            "etc/nodepki/config.yaml",
            b"apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nsigners: {here: {local: {directory: /srv/ca}}}\nmetrics: {textfile: /srv/late/nodepki.prom}\n",
        );
        // With cp(1): a program that another test starts at this moment would inherit the open file of this process, and
        // execve(2) refuses a file that is open for writing (ETXTBSY).
        let copy = machine.path("nodepki");
        run_program("cp", &[NODEPKI, copy.to_str().unwrap()], b"");
        machine
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn nodepki(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if !nix::unistd::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command
            .arg(format!("--root={}", self.0.path().display()))
            .arg("/nodepki")
            .args(arguments);
        command.env_remove("JOURNAL_STREAM");
        command
    }

    fn daemon(&self) -> Daemon<'_> {
        let log = fs::File::create(self.path("log")).unwrap();
        let mut command = self.nodepki(&["daemon", "-v", "--log", "text"]);
        let child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Daemon {
            machine: self,
            child,
        }
    }
}

struct Daemon<'a> {
    machine: &'a Machine,
    child: Child,
}

impl Daemon<'_> {
    /// Waits until the daemon has logged `words`.
    #[track_caller]
    fn wait_for_log(&self, words: &str) -> String {
        eventually(|| {
            let log = fs::read_to_string(self.machine.path("log")).unwrap();
            if log.contains(words) {
                Ok(log)
            } else {
                Err(format!("{words:?} is missing in:\n{log}"))
            }
        })
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A member of an external etcd has no kubeconfig, so that nothing else is written in the directory of the copy.
#[test]
fn writes_copy_of_ca_file_while_confined() {
    let machine = Machine::new();
    machine.write(
        "etc/nodepki/config.d/exporter.yaml",
        b"apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nrole: etcd\ncertificates: {registered: {etcd-exporter-client: {authority: etcd-ca, category: ClientCertificate, commonName: exporter, caFiles: {etcd-ca: /etc/kubernetes/exporter/ca.crt}}}}\n",
    );
    // A missing directory would be created, with the right to write to its parent.
    fs::create_dir(machine.path("etc/kubernetes/manifests")).unwrap();
    Ran::of(&mut machine.nodepki(&["bootstrap"])).done();
    assert!(machine.path("etc/kubernetes/exporter/ca.crt").exists());
}

#[test]
fn daemon_works_while_confined() {
    let machine = Machine::new();
    Ran::of(&mut machine.nodepki(&["bootstrap"])).done();
    let daemon = machine.daemon();
    daemon.wait_for_log("everything is in place");
    let tasks = format!("/proc/{}/task", daemon.child.id());
    for task in fs::read_dir(tasks).unwrap() {
        let status = task.unwrap().path().join("status");
        assert!(no_new_privs(status.to_str().unwrap()));
    }

    // A directory created after the start is not writable; the certificate directory is.
    fs::create_dir(machine.path("srv/late")).unwrap();
    let certificate = machine.path("etc/kubernetes/pki/apiserver.crt");
    fs::remove_file(&certificate).unwrap();
    daemon.wait_for_log("Permission denied");
    assert!(certificate.exists());
    assert_eq!(fs::read_dir(machine.path("srv/late")).unwrap().count(), 0);

    // A configuration that needs more directories requires a new process.
    machine.write(
        "etc/nodepki/config.d/hooks.yaml",
        b"apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nreload: {hooks: [{on: [apiserver], command: [/bin/true]}]}\n",
    );
    daemon.wait_for_log("needs to run programs, which this process has given up the right to: run systemctl restart nodepki");
    drop(daemon);
    let daemon = machine.daemon();
    daemon.wait_for_log("everything is in place");
    drop(daemon);
}
