//! A Puppet CA, shared by the whole process: it takes 15 seconds to start and half a gigabyte of memory.
//!
//! Certnames below [`AUTO`] are signed immediately; all others wait for [`Puppet::sign`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use nodepki::http::{Call, Client, Endpoint, HttpResponse, Method, Tls, Url};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{Server, SharedServer, bin, free_port, marker};
use crate::signing::{PlainFiles, run, run_program};
use crate::time::{eventually, wait_until};

/// Suffix of certnames that are signed immediately.
pub(crate) const AUTO: &str = "auto.test";

/// A running Puppet CA.
pub(crate) struct Puppet {
    dir: PathBuf,
    port: u16,
    _server: Server,
}

/// The shared CA, and two copies of it made before it issued anything.
fn shared_and_copies() -> &'static (Puppet, [PathBuf; 2]) {
    static SHARED: SharedServer<(Puppet, [PathBuf; 2])> = SharedServer::new();
    SHARED.get(|| {
        let puppet = Puppet::start(directory());
        let copies = [directory(), directory()];
        for copy in &copies {
            let (from, to) = (puppet.dir.join("."), copy.to_str().unwrap());
            run_program("cp", &["--archive", from.to_str().unwrap(), to], b"");
        }
        (puppet, copies)
    })
}

/// Returns the CA that all tests share. Every test has certnames of its own.
pub(crate) fn shared() -> &'static Puppet {
    &shared_and_copies().0
}

/// Returns the same CA with default settings: no alternative names, no renewals. It does not know the certificates of the
/// other one.
pub(crate) fn strict() -> &'static Puppet {
    static STRICT: SharedServer<Puppet> = SharedServer::new();
    STRICT.get(|| {
        let dir = shared_and_copies().1[0].clone();
        let conf = dir.join("etc/puppetserver/conf.d/ca.conf");
        const DEFAULTS: &str = "certificate-authority: {}\n";
        let configured = fs::read_to_string(&conf).unwrap();
        assert!(configured.contains("allow-") || configured == DEFAULTS);
        fs::write(conf, DEFAULTS).unwrap();
        Puppet::start(dir)
    })
}

/// Starts the same CA with the configuration of the package, after `prepare` has changed the files in its `conf.d`. Only one
/// test may do so.
pub(crate) fn packaged(prepare: impl FnOnce(&Path)) -> Puppet {
    let dir = shared_and_copies().1[1].clone();
    let conf = dir.join("etc/puppetserver/conf.d");
    let package = bin("puppetserver")
        .canonicalize()
        .unwrap()
        .with_file_name("");
    for file in ["ca.conf", "auth.conf"] {
        let original = package.join("../trixie/etc/puppet/puppetserver/conf.d");
        fs::copy(original.join(file), conf.join(file)).unwrap();
    }
    prepare(&conf);
    Puppet::start(dir)
}

impl Puppet {
    fn start(dir: PathBuf) -> Self {
        let autosign = dir.join("autosign");
        fs::write(&autosign, format!("*.{AUTO}\n")).unwrap();
        let port = free_port();
        let mut command = Command::new(bin("puppetserver"));
        command
            .arg("--dir")
            .arg(&dir)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .arg("--autosign")
            .arg(&autosign);
        let mut server = Server::start(command, &dir.join("said"));
        server.wait_until(|| dir.join("ca.pem").exists() && is_running(&client(&dir, port, false)));
        Puppet {
            dir,
            port,
            _server: server,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    pub(crate) fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.port)
    }

    /// Returns the CA bundle.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    pub(crate) fn ca_pem(&self) -> Vec<u8> {
        fs::read(self.ca_file()).unwrap()
    }

    /// Does what `puppetserver ca sign --certname` does.
    pub(crate) fn sign(&self, certname: &str) {
        let response = self.status(certname, "signed");
        assert_eq!(response.status, 204, "{certname}: {}", response.text());
    }

    /// Does what `puppetserver ca revoke --certname` does.
    pub(crate) fn revoke(&self, certname: &str) {
        let response = self.status(certname, "revoked");
        assert_eq!(response.status, 204, "{certname}: {}", response.text());
    }

    /// Sets the status of a certificate, as an administrator of the CA, and returns the response.
    pub(crate) fn status(&self, certname: &str, desired: &str) -> HttpResponse {
        let path = format!("/puppet-ca/v1/certificate_status/{certname}");
        self.ask(|| Call::put(path.clone()).json(&json!({"desired_state": desired})))
    }

    /// Removes certificate and request, as `puppetserver ca clean` does after revoking.
    pub(crate) fn remove(&self, certname: &str) {
        let path = format!("/puppet-ca/v1/certificate_status/{certname}");
        let response = self.ask(|| Call::new(Method::DELETE, path.clone()));
        assert_eq!(response.status, 204, "{certname}: {}", response.text());
    }

    /// Returns names and states of everything that the CA holds below a name.
    pub(crate) fn holds(&self, below: &str) -> Vec<(String, String)> {
        let path = "/puppet-ca/v1/certificate_statuses/any";
        let ask = || self.ask(|| Call::get(path).accept("application/json").limit(16 << 20));
        let mut response = ask();
        // It fails on a file that another test removes while it reads all of them.
        for _ in 0..20 {
            if response.status == 200 {
                break;
            }
            assert!(
                response.text().contains("FileNotFound"),
                "{}",
                response.text()
            );
            response = ask();
        }
        assert_eq!(response.status, 200, "{}", response.text());
        let all: Vec<Value> = response.json().unwrap();
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let mut held: Vec<_> = all
            .iter()
            .map(|one| (text(one, "name"), text(one, "state")))
            .filter(|(name, _)| name.ends_with(&format!(".{below}")))
            .collect();
        held.sort();
        held
    }

    /// Returns every queued or refused request for a certname below a name, from the server's access log. The server writes
    /// a line after its response, so this waits for the line of a request that it sends last.
    pub(crate) fn sent(&self, below: &str) -> Vec<String> {
        let read = || fs::read_to_string(self.dir.join("log/puppetserver-access.log")).unwrap();
        let marker = marker();
        self.ask(|| Call::get(marker.clone()));
        wait_until("the server has logged the marker", || {
            read().contains(&marker)
        });
        read()
            .lines()
            .filter_map(|line| line.split('"').nth(1))
            .filter(|request| request.starts_with("PUT /puppet-ca/v1/certificate_request/"))
            .filter(|request| request.contains(&format!(".{below} ")))
            .map(str::to_owned)
            .collect()
    }

    /// Asks as an administrator of the CA. A handshake fails while the server reads its changed revocation list.
    fn ask<'a>(&self, call: impl Fn() -> Call<'a>) -> HttpResponse {
        let client = client(&self.dir, self.port, true);
        eventually(|| run(client.send(call())))
    }
}

fn client(dir: &Path, port: u16, admin: bool) -> Client {
    let url = Url::parse(&format!("https://localhost:{port}")).unwrap();
    let mut endpoint = Endpoint::new(url);
    endpoint.tls = Tls {
        ca_file: Some(dir.join("ca.pem")),
        certificate: admin.then(|| dir.join("admin.pem")),
        key: admin.then(|| dir.join("admin.key")),
        ..Tls::default()
    };
    Client::new(endpoint, Rc::new(PlainFiles), OffsetDateTime::now_utc).unwrap()
}

fn is_running(client: &Client) -> bool {
    run(client.send(Call::get("/status/v1/simple")))
        .is_ok_and(|response| response.text() == "running")
}

/// Returns a directory of this process. Those of processes that have ended are removed, since statics are not dropped.
fn directory() -> PathBuf {
    let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix("puppet-")
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(path);
        }
    }
    tempfile::Builder::new()
        .prefix(&format!("puppet-{}-", std::process::id()))
        .tempdir_in(below)
        .unwrap()
        .keep()
}
