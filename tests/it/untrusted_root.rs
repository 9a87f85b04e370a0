//! `--root` on an untrusted system: no file of this machine is read or written on its behalf, and no program runs.
//!
//! Every test has an image whose files name paths of this machine, and a directory outside the image whose contents
//! must neither be sent nor change.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nodepki::kube::names::Authority;
use nodepki::store::{Commit, Mode, NodeRoot};
use nodepki::text::hex;
use serde_json::json;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::node::{INIT, NODEPKI, Node, Ran, Snapshot, copy_authorities, with_mounts};
use crate::signing::write_secret;
use crate::time::let_pass;

/// The text that must never leave this machine.
const SECRET: &str = "the-secret-of-this-machine";
const SETTINGS: &str = "/etc/nodepki/config.yaml";
const KUBEADM_FILE: &str = "/run/kubeadm/kubeadm.yaml";
const ALL_AUTHORITIES: &str =
    "authorities: {ca: {signer: s}, etcd-ca: {signer: s}, front-proxy-ca: {signer: s}}\n";

/// A server on loopback that records everything it receives and answers 401.
struct Recorder {
    address: String,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&heard);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, sink) = (stream.unwrap(), Arc::clone(&sink));
                thread::spawn(move || record(stream, &sink));
            }
        });
        Recorder { address, heard }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn assert_no_secret(&self) {
        let text = self.text();
        assert!(!text.contains(SECRET), "{text}");
    }
}

fn record(mut stream: TcpStream, sink: &Mutex<Vec<u8>>) {
    stream
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let mut buffer = [0; 8192];
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            return;
        }
        sink.lock().unwrap().extend_from_slice(&buffer[..length]);
        if buffer[..length].windows(4).any(|end| end == b"\r\n\r\n") {
            let answer =
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
            return;
        }
    }
}

/// An image, and the files of this machine that it names.
struct Image {
    node: Node,
}

impl Image {
    fn new() -> Self {
        Self::of(Node::new())
    }

    fn of(node: Node) -> Self {
        write_secret(node.outside("token"), SECRET);
        fs::set_permissions(node.outside("token"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(node.outside("theirs")).unwrap();
        node.write(KUBEADM_FILE, INIT);
        Image { node }
    }

    /// Returns an image that is already bootstrapped.
    fn bootstrapped() -> Self {
        Self::of(Node::bootstrapped())
    }

    fn settings(&self, more: &str) {
        let head = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";
        self.node.write(SETTINGS, format!("{head}{more}"));
    }

    /// Writes settings of the image with a local signer in it.
    fn use_local_signer(&self) {
        self.settings(&format!(
            "{ALL_AUTHORITIES}signers: {{s: {{local: {{directory: /ca}}}}}}\n"
        ));
    }

    /// Returns the path of a file of this machine that contains the secret.
    fn token(&self) -> PathBuf {
        self.node.outside("token")
    }

    /// Returns the files outside the image.
    fn outside(&self) -> Snapshot {
        Snapshot::of(&self.node.outside("theirs"))
    }

    /// Runs the commands and asserts that no file outside the image changes.
    #[track_caller]
    fn run_without_outside_changes(&self, commands: &[&[&str]]) -> Vec<Ran> {
        let before = self.outside();
        let token = fs::metadata(self.token()).unwrap();
        let ran: Vec<Ran> = commands
            .iter()
            .map(|arguments| {
                let mut command = self.node.command(*arguments);
                command.env("CREDENTIALS_DIRECTORY", self.node.root().parent().unwrap());
                Ran::of(&mut command)
            })
            .collect();
        for ran in &ran {
            ran.says_not(SECRET);
        }
        before.unchanged(&self.outside());
        assert_eq!(
            token.modified().unwrap(),
            fs::metadata(self.token()).unwrap().modified().unwrap()
        );
        ran
    }

    fn path(&self, on_node: &str) -> PathBuf {
        self.node.path(on_node)
    }
}

/// Commands that load the configuration or ask a cluster.
const LOADING_COMMANDS: &[&[&str]] = &[
    &["plan"],
    &["status"],
    &["doctor"],
    &["renew", "--wait", "1s", "--clock-wait", "0s"],
    &["needs-renewal"],
    &["crl", "--wait", "1s"],
    &["bootstrap", "--wait", "1s", "--clock-wait", "0s"],
    &["config", "check"],
    &["csr", "export", "@/root/requests"],
];

fn kubeconfig(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: u, user: {user}}}]\n"
    )
}

#[test]
fn keeps_host_token_from_kubeconfig_of_the_image() {
    let server = Recorder::start();
    let image = Image::bootstrapped();
    // Without a kubeadm file a running node asks its cluster, with these.
    fs::remove_file(image.path(KUBEADM_FILE)).unwrap();
    fs::remove_file(image.path("/var/lib/nodepki/cluster-configuration.yaml")).unwrap();
    let token = image.token();
    let token = token.display();
    let user = format!("{{tokenFile: {token}}}");
    for name in ["kubelet.conf", "admin.conf"] {
        let text = kubeconfig(&server.url(), &user);
        image.node.write(format!("/etc/kubernetes/{name}"), text);
    }
    let kubeconfig = image.path("/etc/kubernetes/kubelet.conf");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let mut commands = LOADING_COMMANDS.to_vec();
    let by_path = ["doctor", "--kubeconfig", "@/etc/kubernetes/kubelet.conf"];
    let by_host_path = ["doctor", "--kubeconfig", kubeconfig];
    let upload = ["certs", "upload", "--kubeconfig", kubeconfig];
    commands.extend([
        &by_path[..],
        &by_host_path[..],
        &upload[..],
        &["certs", "upload"],
    ]);
    image.run_without_outside_changes(&commands);
    server.assert_no_secret();

    // A token of the image does reach the server, so the missing secret above is not due to a broken server.
    image
        .node
        .write_secret("/etc/token", "the-secret-of-the-image");
    let text = kubeconfig_with_token(&server);
    image.node.write("/etc/kubernetes/kubelet.conf", text);
    image.run_without_outside_changes(&[&["doctor", "--kubeconfig", kubeconfig]]);
    assert!(server.text().contains("the-secret-of-the-image"));
}

fn kubeconfig_with_token(server: &Recorder) -> String {
    kubeconfig(&server.url(), "{tokenFile: /etc/token}")
}

#[test]
fn keeps_host_files_from_kubeconfigs_that_lead_out_by_links() {
    let server = Recorder::start();
    let image = Image::bootstrapped();
    let token = image.token();
    // Relative links, absolute links, and links through a directory all stay in the image.
    symlink(&token, image.path("/etc/absolute")).unwrap();
    symlink(token.parent().unwrap(), image.path("/etc/directory")).unwrap();
    let upward = format!("../../../../../../..{}", token.display());
    symlink(&upward, image.path("/etc/upward")).unwrap();
    for name in [
        "/etc/absolute",
        "/etc/directory/token",
        "/etc/upward",
        &upward,
    ] {
        let user = format!("{{tokenFile: '{name}'}}");
        let text = kubeconfig(&server.url(), &user);
        image.node.write("/etc/kubernetes/evil.conf", text);
        for given in [
            "/etc/kubernetes/evil.conf".to_owned(),
            image
                .path("/etc/kubernetes/evil.conf")
                .display()
                .to_string(),
        ] {
            image.run_without_outside_changes(&[&["doctor", "--kubeconfig", &given]]);
        }
    }
    // A kubeconfig of this machine that leads into the image by a link belongs to the image.
    symlink(image.path("/etc/kubernetes"), image.node.outside("link")).unwrap();
    let text = kubeconfig(
        &server.url(),
        &format!("{{tokenFile: {}}}", token.display()),
    );
    image.node.write("/etc/kubernetes/evil.conf", text);
    let by_link = image.node.outside("link").join("evil.conf");
    image.run_without_outside_changes(&[&["doctor", "--kubeconfig", by_link.to_str().unwrap()]]);
    server.assert_no_secret();
}

#[test]
fn reads_host_token_for_kubeconfig_of_this_machine() {
    let server = Recorder::start();
    let image = Image::bootstrapped();
    let conf = image.node.outside("mine.conf");
    write_secret(&conf, kubeconfig(&server.url(), "{tokenFile: token}"));
    // A file of the same name in the image is not used.
    let shadow = image.path(image.token().to_str().unwrap());
    fs::create_dir_all(shadow.parent().unwrap()).unwrap();
    fs::write(shadow, "not-this-one").unwrap();
    image
        .node
        .run(&["doctor", "--kubeconfig", conf.to_str().unwrap()]);
    assert!(server.text().contains(SECRET), "{}", server.text());
    assert!(!server.text().contains("not-this-one"));
}

/// What settings of this machine name is on this machine or missing: no file of the image takes its place.
#[test]
fn takes_no_trust_or_credential_for_machine_settings_from_the_image() {
    let server = Recorder::start();
    let image = Image::new();
    let named = image.node.outside("theirs").join("named");
    let shadow = image.path(named.to_str().unwrap());
    fs::create_dir_all(shadow.parent().unwrap()).unwrap();
    fs::copy(image.node.ca().join("ca.crt"), &shadow).unwrap();
    fs::set_permissions(&shadow, fs::Permissions::from_mode(0o600)).unwrap();
    let mine = image.node.outside("mine.yaml");
    let theirs = image.node.outside("theirs").display().to_string();
    let (token, named) = (image.token(), named.display().to_string());
    let token = token.display();
    let vault = |scheme: &str, token: &str, more: &str| {
        let address = &server.address;
        format!(
            "signers: {{s: {{vault: {{address: '{scheme}://{address}', mount: p, role: r, auth: {{tokenFile: {token}}}{more}}}}}}}\n"
        )
    };
    let own = token.to_string();
    let trust = ALL_AUTHORITIES.replacen(
        "ca: {signer: s}",
        "ca: {signer: s, trust: {file: NAMED}}",
        1,
    );
    for (setting, settings) in [
        (
            "tls.caFile",
            ALL_AUTHORITIES.to_owned() + &vault("https", &own, ", tls: {caFile: NAMED}"),
        ),
        (
            "tokenFile",
            ALL_AUTHORITIES.to_owned() + &vault("http", "NAMED", ""),
        ),
        (
            "tls.certificate",
            ALL_AUTHORITIES.to_owned()
                + &vault(
                    "https",
                    &own,
                    ", tls: {systemRoots: true, certificate: NAMED, key: NAMED}",
                ),
        ),
        (
            "trust.file",
            trust + &format!("signers: {{s: {{directory: {{path: {theirs}}}}}}}\n"),
        ),
        (
            "local",
            ALL_AUTHORITIES.to_owned() + "signers: {s: {local: {directory: NAMED}}}\n",
        ),
    ] {
        let head = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";
        write_secret(
            &mine,
            format!("{head}{}", settings.replace("NAMED", &named)),
        );
        let mine = mine.to_str().unwrap();
        let ran = image.node.run(&[
            "bootstrap",
            "--config",
            mine,
            "--wait",
            "0s",
            "--clock-wait",
            "0s",
        ]);
        assert_ne!(ran.code, Some(0), "{setting}");
        ran.says(&named).says_not(&shadow.display().to_string());
        assert!(!image.path("/etc/kubernetes/pki/apiserver.crt").exists());
        server.assert_no_secret();
    }
}

#[test]
fn takes_no_system_roots_for_machine_settings_from_the_image() {
    let server = Recorder::start();
    let image = Image::new();
    for file in [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    ] {
        let pem = fs::read(image.node.ca().join("ca.crt")).unwrap();
        image.node.write(file, pem);
    }
    let mine = image.node.outside("mine.yaml");
    let settings = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n{ALL_AUTHORITIES}\
         signers: {{s: {{vault: {{address: 'https://{}', mount: p, role: r, auth: {{tokenFile: {}}}, tls: {{systemRoots: true}}}}}}}}\n",
        server.address,
        image.token().display()
    );
    write_secret(&mine, settings);
    let mut command = image
        .node
        .command(["bootstrap", "--wait", "0s", "--clock-wait", "0s"]);
    command.arg("--config").arg(&mine);
    let script = "mount -t tmpfs none /etc/ssl; [ ! -d /etc/pki ] || mount -t tmpfs none /etc/pki";
    with_mounts(&image.node, &command, script).says("the system has no CA file");
    server.assert_no_secret();
}

#[test]
fn gives_kubeconfig_of_the_image_no_host_file_with_the_same_path() {
    let server = Recorder::start();
    let image = Image::bootstrapped();
    // The operator names a file of this machine, and the image has one at the same path.
    let meant = image.node.outside("mine.conf");
    fs::write(&meant, kubeconfig("http://127.0.0.1:1", "{}")).unwrap();
    let shadow = image.path(meant.to_str().unwrap());
    fs::create_dir_all(shadow.parent().unwrap()).unwrap();
    let user = format!("{{tokenFile: {}}}", image.token().display());
    fs::write(shadow, kubeconfig(&server.url(), &user)).unwrap();
    image.run_without_outside_changes(&[&["doctor", "--kubeconfig", meant.to_str().unwrap()]]);
    server.assert_no_secret();
}

#[test]
fn keeps_host_files_and_credentials_from_settings_of_the_image() {
    let server = Recorder::start();
    let image = Image::new();
    let token = image.token();
    let token = token.display();
    let url = server.url();
    let conf = image.node.outside("mine.conf");
    write_secret(&conf, kubeconfig(&url, &format!("{{token: {SECRET}}}")));
    let conf = conf.display();
    for signer in [
        format!("vault: {{address: '{url}', mount: pki, role: r, auth: {{tokenFile: {token}}}}}"),
        format!(
            "vault: {{address: '{url}', mount: pki, role: r, auth: {{tokenFile: 'credential:token'}}}}"
        ),
        format!("kubernetes: {{kubeconfig: {conf}, signerName: example.com/x}}"),
        "kubernetes: {kubeconfig: 'credential:mine.conf', signerName: example.com/x}".to_owned(),
        format!("kubernetes: {{server: '{url}', tokenFile: {token}, signerName: example.com/x}}"),
        format!("cfssl: {{url: '{url}', auth: {{keyFile: {token}}}}}"),
        format!("est: {{url: '{url}', auth: {{basic: {{username: u, passwordFile: {token}}}}}}}"),
        format!("local: {{directory: {}}}", image.node.ca().display()),
    ] {
        image.settings(&format!("{ALL_AUTHORITIES}signers: {{s: {{{signer}}}}}\n"));
        let ran = image.run_without_outside_changes(LOADING_COMMANDS);
        // No certificate was signed with a key outside the image.
        assert!(
            !image.path("/etc/kubernetes/pki/apiserver.crt").exists(),
            "{signer}\n{}",
            ran.last().unwrap().said()
        );
    }
    server.assert_no_secret();
}

#[test]
fn runs_no_program_that_the_image_names() {
    let image = Image::new();
    let marker = image.node.outside("theirs").join("ran");
    let script = format!("echo ran >>{}", marker.display());
    let exec = format!("exec: {{command: /bin/sh, args: [-c, '{script}']}}");
    image.settings(&format!(
        "{ALL_AUTHORITIES}signers: {{s: {{{exec}}}}}\n\
         reload: {{hooks: [{{on: [apiserver], command: [/bin/sh, -c, '{script}']}}], units: [{{on: [apiserver], unit: x.service}}]}}\n"
    ));
    for arguments in LOADING_COMMANDS {
        image.run_without_outside_changes(&[arguments]);
    }
    assert!(!marker.exists());
    image
        .node
        .run(&["bootstrap", "--wait", "1s", "--clock-wait", "0s"])
        .ended(78)
        .says(&image.node.here("name the program @/bin/sh (exec.command)"))
        // An option would drop the arguments.
        .says_not("--signer exec:")
        .says("--config FILE");
    // A file of the image named with --config belongs to the image, whatever the form of its path.
    let link = image.node.outside("into");
    symlink(image.path("/etc"), &link).unwrap();
    for config in [
        link.join("nodepki/config.yaml").display().to_string(),
        image.path(SETTINGS).display().to_string(),
    ] {
        image
            .node
            .run(&[
                "bootstrap",
                "--wait",
                "1s",
                "--clock-wait",
                "0s",
                "--config",
                &config,
            ])
            .ended(78)
            .says(&image.node.here("name the program @/bin/sh"));
    }
    // Offline signing needs no signer.
    let requests = image.node.outside("requests");
    fs::create_dir(&requests).unwrap();
    image
        .node
        .run(&["csr", "export", requests.to_str().unwrap()])
        .done();
    assert!(!marker.exists());

    // A settings file of this machine belongs to the operator.
    image
        .node
        .run(&[
            "bootstrap",
            "--clock-wait",
            "0s",
            "--config",
            image.node.outside("config.yaml").to_str().unwrap(),
        ])
        .done();
    assert!(!image.node.exchanges().is_empty());
}

#[test]
fn runs_no_hook_of_the_image_after_a_renewal() {
    let image = Image::bootstrapped();
    let marker = image.node.outside("theirs").join("ran");
    let hook = format!("[/bin/sh, -c, 'echo ran >{}']", marker.display());
    image.settings(&format!(
        "{ALL_AUTHORITIES}signers: {{s: {{local: {{directory: /ca}}}}}}\n\
         reload: {{hooks: [{{on: [apiserver, kube-apiserver, scheduler.conf], command: {hook}}}]}}\n"
    ));
    copy_authorities(Authority::ALL, &image.node.ca(), &image.path("/ca"));
    image
        .node
        .write("/etc/kubernetes/manifests/kube-apiserver.yaml", "{}\n");
    fs::remove_file(image.path("/var/lib/nodepki/issued.json")).unwrap();
    let ran = image.run_without_outside_changes(&[&["renew", "--all", "--clock-wait", "0s"]]);
    ran[0].done().row_says("apiserver", "rekeyed");
    ran[0].says("was not restarted");
    assert!(!marker.exists());
}

#[test]
fn refuses_kubeconfig_of_the_image_that_runs_a_program() {
    let server = Recorder::start();
    let image = Image::bootstrapped();
    let marker = image.node.outside("theirs").join("ran");
    let user = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, args: [-c, 'echo ran >{}']}}}}",
        marker.display()
    );
    image.node.write(
        "/etc/kubernetes/kubelet.conf",
        kubeconfig(&server.url(), &user),
    );
    let ran = image.run_without_outside_changes(&[
        &["doctor", "--kubeconfig", "@/etc/kubernetes/kubelet.conf"],
        &[
            "certs",
            "upload",
            "--kubeconfig",
            "@/etc/kubernetes/kubelet.conf",
        ],
    ]);
    ran[1]
        .ended(78)
        .says("has exec, which nodepki does not follow");
    assert!(!marker.exists());
}

#[test]
fn writes_directory_signer_of_the_image_inside_it() {
    let image = Image::new();
    let theirs = image.node.outside("theirs");
    symlink(&theirs, image.path("/var-drop-link")).unwrap();
    for path in [
        theirs.to_str().unwrap(),
        "/var-drop-link",
        "/../../../../tmp",
    ] {
        image.settings(&format!(
            "{ALL_AUTHORITIES}signers: {{s: {{directory: {{path: '{path}'}}}}}}\n"
        ));
        image.run_without_outside_changes(LOADING_COMMANDS);
    }
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    // A directory named on the command line belongs to this machine.
    let mine = image.node.outside("mine");
    fs::create_dir(&mine).unwrap();
    let signer = format!("directory:{}", mine.display());
    image.node.run(&[
        "bootstrap",
        "--wait",
        "0s",
        "--clock-wait",
        "0s",
        "--signer",
        &signer,
    ]);
    assert!(fs::read_dir(&mine).unwrap().count() > 0);
}

#[test]
fn keeps_host_files_from_kubeadm_configuration_of_the_image() {
    let server = Recorder::start();
    let image = Image::new();
    let conf = image.node.outside("theirs").join("discovery.conf");
    write_secret(
        &conf,
        kubeconfig(&server.url(), &format!("{{token: {SECRET}}}")),
    );
    image.settings(&format!(
        "join: {{certificateKey: {}}}\n",
        image.token().display()
    ));
    image.node.write(
        KUBEADM_FILE,
        format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
             discovery: {{file: {{kubeConfigPath: {}}}}}\nnodeRegistration: {{name: cp2}}\n\
             controlPlane: {{localAPIEndpoint: {{advertiseAddress: 192.0.2.12}}}}\n",
            conf.display()
        ),
    );
    let ran = image.run_without_outside_changes(LOADING_COMMANDS);
    ran[0].says("cannot be read");
    assert_eq!(
        server.text(),
        "",
        "the discovery file of this machine was used"
    );
}

#[test]
fn writes_metrics_and_ports_of_the_image_nowhere_on_this_machine() {
    let image = Image::bootstrapped();
    let theirs = image.node.outside("theirs");
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    image.settings(&format!(
        "metrics: {{textfile: {}/x.prom, listen: '{address}'}}\n",
        theirs.display()
    ));
    image.run_without_outside_changes(&[&["renew", "--clock-wait", "0s"]]);
    let mut daemon = image
        .node
        .command(["daemon"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let told = "do not open a port of this machine";
    let mut said = String::new();
    let mut stderr = daemon.stderr.take().unwrap();
    let mut byte = [0];
    while !said.contains(told) && stderr.read(&mut byte).unwrap() == 1 {
        said.push(char::from(byte[0]));
    }
    assert!(said.contains(told), "{said}");
    let_pass(Duration::from_millis(300));
    assert!(TcpStream::connect(address).is_err());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

// ---- State files ----

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// Returns the journal of a hostile image, with one file to be written.
fn journal(path: &str, mode: u32) -> String {
    json!({
        "version": 1,
        "entries": [{
            "path": path, "group": 0, "mode": mode, "old": null, "uid": 0, "gid": 0,
            "new": digest("#!/bin/sh\n"), "content": BASE64_STANDARD.encode("#!/bin/sh\n"),
        }],
        "kept": [],
        "slots": [],
    })
    .to_string()
}

const JOURNAL: &str = "/var/lib/nodepki/journal.json";

impl Image {
    fn state(&self, name: &str, text: &str) {
        let path = format!("/var/lib/nodepki/{name}");
        self.node.write(&path, text);
        self.node.set_mode(&path, 0o600);
        self.node.set_mode("/var/lib/nodepki", 0o700);
    }

    /// Asserts that every command that recovers refuses the state file and changes nothing.
    #[track_caller]
    fn assert_refused(&self, words: &str) {
        let before = Snapshot::of(&self.path("/etc"));
        let state = self.node.path("/var/lib/nodepki");
        let read = |name: &str| fs::read(state.join(name)).ok();
        let kept = (read("journal.json"), read("staging.json"));
        for arguments in [
            &["renew", "--all", "--clock-wait", "0s"][..],
            &["csr", "export", "@/root/requests"],
        ] {
            self.node
                .run(arguments)
                .ended(65)
                .says(words)
                .says("nothing was changed");
        }
        before.unchanged(&Snapshot::of(&self.path("/etc")));
        assert_eq!(kept, (read("journal.json"), read("staging.json")));
        self.node.run(&["status"]).done();
    }
}

#[test]
fn refuses_journal_that_names_other_places() {
    let image = Image::bootstrapped();
    image.use_local_signer();
    for path in [
        "/usr/bin/su",
        "/etc/cron.d/x",
        "/etc/kubernetes/../cron.d/x",
        "/../../../../../../etc/cron.d/x",
        "/root/.ssh/authorized_keys",
        "/var/lib/kubelet/config.yaml",
        "/var/lib/nodepki/staging.json",
        "/var/lib/nodepki/aside/x",
        "etc/kubernetes/pki/x",
    ] {
        image.state("journal.json", &journal(path, 0o644));
        image.assert_refused("which is not in a directory of Kubernetes' PKI");
        assert!(!image.path("/usr/bin/su").exists() && !image.path("/etc/cron.d").exists());
    }
}

#[test]
fn refuses_journal_with_modes_that_no_certificate_has() {
    let image = Image::bootstrapped();
    image.use_local_signer();
    let path = "/etc/kubernetes/pki/apiserver.crt.new";
    for mode in [0o4755, 0o2755, 0o1644, 0o755, 0o4644, 0o100_644] {
        image.state("journal.json", &journal(path, mode));
        image.assert_refused("which is not the mode of a certificate or key");
        assert!(!image.path(path).exists());
    }
}

#[test]
fn refuses_state_files_that_another_user_can_write() {
    let image = Image::bootstrapped();
    image.use_local_signer();
    image.state("journal.json", &journal("/etc/kubernetes/pki/x.crt", 0o644));
    image.node.set_mode(JOURNAL, 0o666);
    image.assert_refused("has mode 0666");
    if nix::unistd::geteuid().is_root() {
        image.node.set_mode(JOURNAL, 0o600);
        std::os::unix::fs::chown(image.path(JOURNAL), Some(4711), None).unwrap();
        image.assert_refused("belongs to user 4711");
    }
}

#[test]
fn refuses_damaged_journal_each_time_and_says_what_to_do() {
    let image = Image::bootstrapped();
    image.use_local_signer();
    image.state("journal.json", "{\"version\":1,");
    let path = image.path(JOURNAL).display().to_string();
    image.assert_refused(&path);
    image.assert_refused("move the journal away and run again");
}

#[test]
fn refuses_record_of_unfinished_files_in_other_directories() {
    let image = Image::bootstrapped();
    image.use_local_signer();
    let left = "/home/user/.nodepki-new.notes~";
    image.node.write(left, "mine");
    image.state("staging.json", "{\"directories\":[\"/home/user\"]}");
    image.assert_refused("which is not a directory of Kubernetes' PKI");
    assert!(image.path(left).exists());
}

#[test]
fn finishes_journal_of_configured_directory() {
    let image = Image::new();
    let config = format!("{INIT}certificatesDir: /opt/pki\n");
    image.node.write(KUBEADM_FILE, &config);
    for (from, to) in [
        ("ca", "ca"),
        ("front-proxy-ca", "front-proxy-ca"),
        ("etcd/ca", "etcd/ca"),
    ] {
        let pem = fs::read(image.node.ca().join(format!("{from}.crt"))).unwrap();
        image.node.write(format!("/opt/pki/{to}.crt"), pem);
    }
    image.state("journal.json", &journal("/opt/pki/interrupted.crt", 0o644));
    let signer = format!("local:{}", image.node.ca().display());
    image
        .node
        .run(&["bootstrap", "--clock-wait", "0s", "--signer", &signer])
        .done();
    let written = fs::metadata(image.path("/opt/pki/interrupted.crt")).unwrap();
    assert_eq!(written.mode() & 0o7777, 0o644);
}

#[test]
fn never_gives_new_file_the_set_user_id_or_execute_bits_of_the_old_one() {
    let node = Node::new();
    let (certificate, key) = ("/etc/kubernetes/pki/x.crt", "/etc/kubernetes/pki/x.key");
    for (path, mode) in [(certificate, 0o4755), (key, 0o6750)] {
        node.write(path, "old");
        node.set_mode(path, mode);
    }
    let root = NodeRoot::open(node.root()).unwrap();
    let locked = root.lock(Duration::ZERO, "test").unwrap();
    let mut store = locked.recover(OffsetDateTime::now_utc()).unwrap().0;
    let mut commit = Commit::new();
    commit.file(certificate, b"new".to_vec(), Mode::Public);
    commit.file(key, b"new".to_vec(), Mode::Private);
    let notes = store.commit(commit).unwrap().notes;
    assert_eq!((node.mode(certificate), node.mode(key)), (0o644, 0o640));
    assert!(notes[0].to_string().contains("had mode"), "{notes:?}");
}

#[test]
fn removes_only_dated_files_from_list_of_kubelet_certificates() {
    let image = Image::bootstrapped();
    let precious = "/etc/kubernetes/pki/sa.key";
    let before = image.node.read(precious);
    image.state(
        "kubelet-client.json",
        &json!({"files": [precious, "/etc/passwd", "/var/lib/kubelet/pki/../../../../etc/passwd"]})
            .to_string(),
    );
    image
        .node
        .write("/etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    image.settings("kubelet: {clientCertificate: file}\n");
    let signer = format!("local:{}", image.node.ca().display());
    fs::remove_file(image.path("/etc/kubernetes/kubelet.conf")).unwrap();
    image
        .node
        .run(&["bootstrap", "--clock-wait", "0s", "--signer", &signer])
        .done();
    let made = image.node.read("/var/lib/nodepki/kubelet-client.json");
    assert!(
        made.contains("/var/lib/kubelet/pki/kubelet-client-"),
        "{made}"
    );
    assert_eq!(image.node.read(precious), before);
    assert!(image.path("/etc/passwd").exists());
}

#[test]
fn writes_lock_to_no_device_and_no_second_name_of_a_file() {
    let image = Image::bootstrapped();
    image.use_local_signer();
    let lock = image.path("/var/lib/nodepki/lock");
    fs::remove_file(&lock).unwrap();
    let precious = image.node.outside("theirs").join("precious");
    fs::write(
        &precious,
        "precious, and longer than what a run writes into the lock",
    )
    .unwrap();
    fs::hard_link(&precious, &lock).unwrap();
    let export = ["csr", "export", "@/root/requests"];
    image
        .node
        .run(&export)
        .ended(65)
        .says("it has 2 hard links");
    fs::remove_file(&lock).unwrap();
    let made = nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU);
    made.unwrap();
    image.node.run(&export).ended(65).says("is a named pipe");
    assert!(
        fs::read_to_string(&precious)
            .unwrap()
            .starts_with("precious")
    );
}

#[test]
fn opens_no_device_of_the_image() {
    let image = Image::bootstrapped();
    let certificate = image.path("/etc/kubernetes/pki/apiserver.crt");
    fs::remove_file(&certificate).unwrap();
    let mode = nix::sys::stat::Mode::S_IRUSR;
    let zero = nix::sys::stat::makedev(1, 5);
    // In a container without CAP_MKNOD no device can be created, so the test is not needed.
    let kind = nix::sys::stat::SFlag::S_IFCHR;
    match nix::sys::stat::mknod(&certificate, kind, mode, zero) {
        Ok(()) => {}
        Err(nix::errno::Errno::EPERM) => return,
        Err(errno) => panic!("{errno}"),
    }
    let log = image.node.outside("strace");
    for arguments in LOADING_COMMANDS {
        Command::new("strace")
            .args(["-f", "-e", "trace=open,openat,openat2", "-o"])
            .arg(&log)
            .arg(NODEPKI)
            .arg("--root")
            .arg(image.node.root())
            .args(*arguments)
            .output()
            .unwrap();
        let log = fs::read_to_string(&log).unwrap();
        for line in log.lines().filter(|line| line.contains("apiserver.crt\"")) {
            assert!(line.contains("O_PATH") || line.contains("= -1"), "{line}");
        }
    }
}

// ---- Mounts of this machine below the root ----

#[test]
fn reads_and_writes_nothing_on_mounts_of_this_machine() {
    let image = Image::bootstrapped();
    let theirs = image.node.outside("theirs");
    let server = Recorder::start();
    let text = kubeconfig(&server.url(), "{tokenFile: /mnt/token}");
    image.node.write("/etc/kubernetes/evil.conf", text);
    image.node.write("/mnt/.keep", "");
    write_secret(theirs.join("token"), SECRET);
    image.settings(&format!(
        "{ALL_AUTHORITIES}signers: {{s: {{directory: {{path: /mnt/drop}}}}}}\n"
    ));
    fs::remove_file(image.path("/etc/kubernetes/pki/apiserver.crt")).unwrap();
    let script = format!("mount --bind {} \"$1/mnt\"", theirs.display());
    let before = Snapshot::of(&theirs);
    let mounted = |arguments: &[&str], script: &str| {
        with_mounts(&image.node, &image.node.command(arguments), script)
    };
    mounted(
        &["doctor", "--kubeconfig", "@/etc/kubernetes/evil.conf"],
        &script,
    )
    .says("belongs to this machine, not to the system below the root");
    mounted(
        &["renew", "--all", "--wait", "0s", "--clock-wait", "0s"],
        &script,
    )
    .says("belongs to this machine");
    before.unchanged(&Snapshot::of(&theirs));
    server.assert_no_secret();

    // A journal does not reach a mounted directory, whether nodepki knows the path or not.
    let journal = journal("/etc/kubernetes/tmp/x.crt", 0o644);
    image.node.write("/etc/kubernetes/tmp/.keep", "");
    image.state("journal.json", &journal);
    let script = format!(
        "mount --bind {} \"$1/etc/kubernetes/tmp\"",
        theirs.display()
    );
    mounted(
        &["renew", "--all", "--wait", "0s", "--clock-wait", "0s"],
        &script,
    )
    .ended(65)
    .says("belongs to this machine");
    before.unchanged(&Snapshot::of(&theirs));
}

#[test]
fn accepts_separate_file_systems_of_the_image() {
    let node = Node::new();
    // A separate partition, and a directory of the image mounted at a second path in it.
    let script = "mkdir -p \"$1/var\" \"$1/data/kubernetes\"\n\
                  cp -a \"$1/etc/kubernetes/.\" \"$1/data/kubernetes\"\n\
                  mount -t tmpfs none \"$1/var\"\n\
                  mount --bind \"$1/data/kubernetes\" \"$1/etc/kubernetes\"";
    let signer = node.with_local(&["bootstrap", "--clock-wait", "0s"], &[]);
    with_mounts(&node, &signer, script).done();
    assert!(node.path("/data/kubernetes/pki/apiserver.crt").exists());
}

#[test]
fn ignores_run_directory_of_the_rescue_system() {
    let node = Node::bootstrapped();
    let run = node.outside("run");
    fs::create_dir_all(run.join("nodepki")).unwrap();
    fs::write(
        run.join("nodepki/host.yaml"),
        "this is not a settings file\n",
    )
    .unwrap();
    fs::create_dir_all(node.path("/run")).unwrap();
    let script = format!("mount --bind {} \"$1/run\"", run.display());
    let plan = node.with_local(&["plan"], &[]);
    with_mounts(&node, &plan, &script).done();
}

/// Verifies with system-call traces that the commands open no file of this machine that the image names.
#[test]
fn opens_no_file_of_this_machine_that_the_image_names() {
    let image = Image::bootstrapped();
    fs::remove_file(image.path(KUBEADM_FILE)).unwrap();
    let token = image.token();
    let user = format!("{{tokenFile: {}}}", token.display());
    for name in ["kubelet.conf", "admin.conf"] {
        let text = kubeconfig("http://127.0.0.1:9", &user);
        image.node.write(format!("/etc/kubernetes/{name}"), text);
    }
    symlink(
        &token,
        image.path("/etc/kubernetes/pki/front-proxy-client.crt.link"),
    )
    .unwrap();
    image.settings(&format!(
        "{ALL_AUTHORITIES}signers: {{s: {{vault: {{address: 'http://127.0.0.1:9', mount: p, role: r, auth: {{tokenFile: {}}}}}}}}}\n",
        token.display()
    ));
    for (run, arguments) in LOADING_COMMANDS.iter().enumerate() {
        // One file per thread, so no line is split by another thread.
        let logs = image.node.outside(&format!("strace-{run}"));
        fs::create_dir(&logs).unwrap();
        let traced = Command::new("strace")
            .args(["-ff", "-e", "trace=open,openat,openat2", "-o"])
            .arg(logs.join("log"))
            .arg(NODEPKI)
            .arg("--root")
            .arg(image.node.root())
            .args(*arguments)
            .output()
            .unwrap();
        let log: String = fs::read_dir(&logs)
            .unwrap()
            .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        assert!(
            !log.is_empty(),
            "{}",
            String::from_utf8_lossy(&traced.stderr)
        );
        let opened = format!("AT_FDCWD, \"{}\"", token.display());
        assert!(!log.contains(&opened), "{arguments:?}");
        // Every access to the file is resolved in the image, where it does not exist.
        for line in log.lines().filter(|line| line.contains("/token\"")) {
            assert!(
                line.contains("RESOLVE_IN_ROOT") && line.contains("= -1"),
                "{line}"
            );
        }
    }
}

#[test]
fn resolves_arguments_that_lead_into_the_root_inside_it() {
    let image = Image::new();
    // /etc/nodepki of the image is a link to a directory of this machine.
    let theirs = image.node.outside("theirs");
    fs::write(theirs.join("config.yaml"), format!("{SECRET}: 1\n")).unwrap();
    fs::create_dir_all(image.path("/etc")).unwrap();
    symlink(&theirs, image.path("/etc/nodepki")).unwrap();
    let link = image.node.outside("into");
    symlink(image.path("/etc"), &link).unwrap();
    for given in [
        image.path("/etc/nodepki/config.yaml"),
        link.join("nodepki/config.yaml"),
        image.node.outside("root/../root/etc/nodepki/config.yaml"),
    ] {
        let ran = image
            .node
            .run(&["config", "show", "--config", given.to_str().unwrap()]);
        ran.ended(78).says_not(SECRET).says("does not exist");
    }
    // The same with a relative --root.
    let inside = Command::new(NODEPKI)
        .args([
            "--root",
            "root",
            "config",
            "show",
            "--config",
            "root/etc/nodepki/config.yaml",
        ])
        .current_dir(image.node.root().parent().unwrap())
        .output()
        .unwrap();
    Ran::from(inside).ended(78).says_not(SECRET);
}

#[test]
fn never_takes_admin_kubeconfig_of_this_machine_by_default() {
    let image = Image::bootstrapped();
    fs::remove_file(image.path("/etc/kubernetes/admin.conf")).unwrap();
    let ran = image.run_without_outside_changes(&[&["certs", "upload"]]);
    ran[0]
        .ended(78)
        .says("/etc/kubernetes/admin.conf")
        .says("does not exist");
}
