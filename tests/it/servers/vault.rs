//! OpenBao in memory: unsealed, with a self-made certificate and a known root token.
//!
//! The process has one server, in which each test has a namespace of its own ([`Bao::space`]). A test that changes the
//! whole server starts another one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nodepki::http::{Call, Client, Endpoint, Method, Url};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{Server, SharedServer, bin, free_port};
use crate::gateway::{Issuer, Upstream};
use crate::signing::{PlainFiles, now, run, write_secret};
use crate::time::eventually;

const ROOT: &str = "root-of-all";

/// A running server.
pub(crate) struct Bao {
    server: Server,
    dir: PathBuf,
    port: u16,
    root_token: String,
}

impl Bao {
    /// Returns the server of this process.
    pub(crate) fn shared() -> &'static Bao {
        static SHARED: SharedServer<Bao> = SharedServer::new();
        SHARED.get(Bao::start)
    }

    pub(crate) fn start() -> Bao {
        let dir = tempfile::tempdir().unwrap().keep();
        let port = free_port();
        let mut command = Command::new(bin("bao"));
        command
            .args(["server", "-dev", "-dev-no-store-token", "-dev-tls"])
            .arg(format!("-dev-tls-cert-dir={}", dir.display()))
            .arg(format!("-dev-root-token-id={ROOT}"))
            .arg(format!("-dev-listen-address=127.0.0.1:{port}"))
            .env("HOME", &dir);
        let mut server = Server::start(command, &dir.join("log"));
        let ca = dir.join("vault-ca.pem");
        server.wait_for_port(port);
        assert!(ca.exists(), "{}", server.said());
        let bao = Bao {
            server,
            dir,
            port,
            root_token: ROOT.to_owned(),
        };
        bao.reaches(200);
        bao
    }

    /// Starts the active node and a standby of a cluster. The standby does not vote, so on a busy machine the active
    /// node remains active.
    pub(crate) fn cluster() -> (Bao, Bao) {
        let issuer = Issuer::new("cluster");
        let (mut active, mut standby) = (Bao::node(&issuer), Bao::node(&issuer));
        let put = |bao: &Bao, path: &str, body: Value| {
            let (status, answer) = bao.root().send(Method::PUT, path, None, Some(&body), &[]);
            assert_eq!(status, 200, "{path}: {answer}");
            answer
        };
        let shares = json!({"secret_shares": 1, "secret_threshold": 1});
        let keys = put(&active, "sys/init", shares);
        let unseal = json!({"key": keys["keys"][0]});
        put(&active, "sys/unseal", unseal.clone());
        active.root_token = text(&keys["root_token"]);
        active.reaches(200);
        let join = json!({
            "leader_api_addr": active.url(),
            "leader_ca_cert": String::from_utf8(issuer.pem()).unwrap(),
            "non_voter": true,
        });
        put(&standby, "sys/storage/raft/join", join);
        put(&standby, "sys/unseal", unseal);
        standby.root_token.clone_from(&active.root_token);
        standby.reaches(429);
        standby.waits_until("it knows the active node", |space| {
            let (_, leader) = space.send(Method::GET, "sys/leader", None, None, &[]);
            leader["leader_address"] == active.url()
        });
        (active, standby)
    }

    /// Starts a sealed node that does not belong to a cluster yet.
    fn node(issuer: &Issuer) -> Bao {
        let dir = tempfile::tempdir().unwrap().keep();
        let (port, cluster_port) = (free_port(), free_port());
        let pair = issuer.server(
            &[],
            &["127.0.0.1".parse().unwrap()],
            now(),
            Duration::from_secs(3600),
        );
        for (name, pem) in [
            ("vault-ca.pem", issuer.pem()),
            ("cert.pem", pair.chain_pem),
            ("key.pem", pair.key_pem),
        ] {
            std::fs::write(dir.join(name), pem).unwrap();
        }
        std::fs::create_dir(dir.join("raft")).unwrap();
        let at = dir.display();
        let config = format!(
            "storage \"raft\" {{\n  path = \"{at}/raft\"\n  node_id = \"n{port}\"\n}}\n\
             listener \"tcp\" {{\n  address = \"127.0.0.1:{port}\"\n  cluster_address = \"127.0.0.1:{cluster_port}\"\n  \
             tls_cert_file = \"{at}/cert.pem\"\n  tls_key_file = \"{at}/key.pem\"\n}}\n\
             api_addr = \"https://127.0.0.1:{port}\"\ncluster_addr = \"https://127.0.0.1:{cluster_port}\"\n"
        );
        std::fs::write(dir.join("config.hcl"), config).unwrap();
        let mut command = Command::new(bin("bao"));
        command
            .arg("server")
            .arg(format!("-config={at}/config.hcl"))
            .env("HOME", &dir);
        let mut server = Server::start(command, &dir.join("log"));
        server.wait_for_port(port);
        let bao = Bao {
            server,
            dir,
            port,
            root_token: String::new(),
        };
        // It listens before it has loaded its certificate, and ends handshakes with an alert until then.
        bao.waits_until("it answers", |space| {
            space
                .send(Method::GET, "sys/seal-status", None, None, &[])
                .0
                == 200
        });
        bao
    }

    fn reaches(&self, health: u16) {
        self.waits_until(&format!("sys/health is {health}"), |space| {
            space.send(Method::GET, "sys/health", None, None, &[]).0 == health
        });
    }

    fn waits_until(&self, what: &str, ready: impl Fn(&Space) -> bool) {
        eventually(|| {
            let error = || format!("{what}; {}", self.server.said());
            ready(&self.root()).then_some(()).ok_or_else(error)
        });
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn root_token(&self) -> &str {
        &self.root_token
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("vault-ca.pem")
    }

    pub(crate) fn upstream(&self) -> Upstream {
        let ca = std::fs::read(self.ca_file()).unwrap();
        Upstream::tls(("127.0.0.1", self.port), &ca, "127.0.0.1")
    }

    /// Returns the root namespace.
    pub(crate) fn root(&self) -> Space<'_> {
        self.space_named("")
    }

    /// Creates a namespace.
    pub(crate) fn space(&self) -> Space<'_> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("space-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.root()
            .write(&format!("sys/namespaces/{name}"), json!({}));
        self.space_named(&name)
    }

    fn space_named(&self, name: &str) -> Space<'_> {
        Space {
            bao: self,
            namespace: name.to_owned(),
        }
    }

    /// Gives a command the address and the root token.
    pub(crate) fn authorize(&self, command: &mut Command) {
        command
            .env("VAULT_ADDR", self.url())
            .env("VAULT_CACERT", self.ca_file())
            .env("VAULT_TOKEN", &self.root_token)
            .env("VAULT", bin("bao"))
            .env("HOME", &self.dir);
    }
}

/// A namespace of a server, seen by its administrator.
pub(crate) struct Space<'a> {
    pub(crate) bao: &'a Bao,
    /// Empty for the root namespace.
    pub(crate) namespace: String,
}

impl Space<'_> {
    /// Sends a request, and returns status and body. `path` follows `/v1/`.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> (u16, Value) {
        let mut endpoint = Endpoint::new(Url::parse(&self.bao.url()).unwrap());
        endpoint.tls.ca_file = Some(self.bao.ca_file());
        let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
        let mut call = Call::new(method, format!("/v1/{path}")).header("X-Vault-Request", "true");
        if !self.namespace.is_empty() {
            call = call.header("X-Vault-Namespace", self.namespace.as_str());
        }
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        if let Some(token) = token {
            call = call.secret("X-Vault-Token", Zeroizing::new(token.to_owned()));
        }
        if let Some(body) = body {
            call = call.json(body);
        }
        match run(client.send(call)) {
            Ok(response) => (response.status, response.json().unwrap_or(Value::Null)),
            Err(error) => (0, json!(error.to_string())),
        }
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.send(method, path, Some(&self.bao.root_token), body, &[]);
        assert!(matches!(status, 200 | 204), "{path}: {status} {answer}");
        answer
    }

    /// Writes as root.
    pub(crate) fn write(&self, path: &str, body: Value) -> Value {
        self.ask(Method::POST, path, Some(&body))
    }

    /// Reads as root.
    pub(crate) fn read(&self, path: &str) -> Value {
        self.ask(Method::GET, path, None)
    }

    /// Writes with a token, and returns status and body.
    pub(crate) fn as_token(&self, token: &str, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::POST, path, Some(token), Some(&body), &[])
    }

    /// Returns the serial numbers of all certificates of an engine.
    pub(crate) fn certified(&self, mount: &str) -> Vec<String> {
        let path = format!("{mount}/certs?list=true");
        let (_, answer) = self.send(Method::GET, &path, Some(&self.bao.root_token), None, &[]);
        let keys = answer["data"]["keys"].as_array().cloned();
        keys.unwrap_or_default()
            .iter()
            .map(|key| key.as_str().unwrap().to_owned())
            .collect()
    }

    /// Enables a PKI engine without a CA.
    pub(crate) fn engine(&self, mount: &str) {
        self.write(
            &format!("sys/mounts/{mount}"),
            json!({"type": "pki", "config": {"max_lease_ttl": "87600h"}}),
        );
    }

    /// Makes a self-signed CA in an engine.
    pub(crate) fn root_ca(&self, mount: &str, name: &str) -> String {
        let answer = self.write(
            &format!("{mount}/root/generate/internal"),
            json!({"common_name": name, "issuer_name": name, "key_type": "ec", "key_bits": 256,
                   "ttl": "87600h", "exclude_cn_from_sans": true}),
        );
        text(&answer["data"]["certificate"])
    }

    /// Makes a CA in an engine under one of another engine, and returns the certificate of the latter.
    pub(crate) fn intermediate_ca(&self, mount: &str, name: &str, above: &str) -> String {
        self.engine(above);
        let root = self.root_ca(above, &format!("{name}-root"));
        let csr = self.write(
            &format!("{mount}/intermediate/generate/internal"),
            json!({"common_name": name, "key_type": "ec", "key_bits": 256}),
        );
        let signed = self.write(
            &format!("{above}/root/sign-intermediate"),
            json!({"csr": csr["data"]["csr"], "ttl": "43800h", "use_csr_values": true}),
        );
        let chain = format!("{}\n{root}", text(&signed["data"]["certificate"]));
        self.write(
            &format!("{mount}/intermediate/set-signed"),
            json!({ "certificate": chain }),
        );
        root
    }

    /// Creates a token with a policy of this text.
    pub(crate) fn token(&self, policy: &str) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("of-test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let path = format!("sys/policies/acl/{name}");
        self.write(&path, json!({ "policy": policy }));
        let made = self.write("auth/token/create", json!({ "policies": [name] }));
        text(&made["auth"]["client_token"])
    }

    /// Creates an unrestricted token.
    pub(crate) fn any_token(&self) -> String {
        self.token("path \"*\" { capabilities = [\"create\", \"read\", \"update\", \"delete\", \"list\", \"sudo\"] }")
    }

    /// Creates a wrapped response, and returns the wrapping token.
    pub(crate) fn wrapped(&self, path: &str, body: &Value) -> String {
        let wrap = [("X-Vault-Wrap-TTL", "600")];
        let (status, answer) = self.send(
            Method::POST,
            path,
            Some(&self.bao.root_token),
            Some(body),
            &wrap,
        );
        assert_eq!(status, 200, "{answer}");
        text(&answer["wrap_info"]["token"])
    }

    /// Returns whether the server accepts a token.
    pub(crate) fn is_alive(&self, token: &str) -> bool {
        self.write_status("auth/token/lookup", json!({ "token": token })) == 200
    }

    fn write_status(&self, path: &str, body: Value) -> u16 {
        self.send(
            Method::POST,
            path,
            Some(&self.bao.root_token),
            Some(&body),
            &[],
        )
        .0
    }

    /// Applies a script of `nodepki config signer-setup vault` without a process for each line. Another test runs the
    /// script in a shell.
    pub(crate) fn apply(&self, script: &str) {
        let mut lines = script.lines();
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line
                .split_whitespace()
                .map(|word| word.trim_matches('\''))
                .collect();
            let mut document = || -> String {
                lines
                    .by_ref()
                    .take_while(|line| *line != "EOF")
                    .map(|line| format!("{line}\n"))
                    .collect()
            };
            let option = |words: &[&str]| -> String {
                let path = words.iter().find_map(|word| word.strip_prefix("-path="));
                path.unwrap().trim_matches('\'').to_owned()
            };
            match words.as_slice() {
                ["put", path, "-", "<<'EOF" | "<<'EOF'"] => {
                    self.write(path, serde_json::from_str(&document()).unwrap());
                }
                ["put", path, pairs @ ..] => {
                    let body: serde_json::Map<String, Value> = pairs
                        .iter()
                        .map(|pair| pair.split_once('=').unwrap())
                        .map(|(key, value)| (key.to_owned(), json!(value)))
                        .collect();
                    self.write(path, Value::Object(body));
                }
                ["\"$VAULT\"", "policy", "write", name, ..] => {
                    self.write(
                        &format!("sys/policies/acl/{name}"),
                        json!({ "policy": document() }),
                    );
                }
                ["\"$VAULT\"", "secrets", "enable", ..] => self.engine(&option(&words)),
                ["\"$VAULT\"", "auth", "enable", .., kind] => {
                    let path = format!("sys/auth/{}", option(&words));
                    self.write(&path, json!({ "type": kind }));
                }
                _ => {}
            }
        }
    }
}

/// Returns the text of a JSON string.
pub(crate) fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

/// Writes a secret to a file, and returns its path.
pub(crate) fn put(dir: &Path, name: &str, secret: &str) -> PathBuf {
    let path = dir.join(name);
    write_secret(&path, format!("{secret}\n"));
    path
}
