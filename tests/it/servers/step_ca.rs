//! step-ca: three of them for the three authorities, and one with a policy.
//!
//! Provisioners of each: `x5c`, `jwk` and their numbered twins with the template of the printed script, `bare` without a
//! template, `short` with a maximum lifetime of a day, and `no-renewal`. A test with a twin of its own finds its own
//! requests in the server's log.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nodepki::http::{Call, Client, Endpoint, Url};
use nodepki::kube::names::Authority;
use nodepki::x509::{Chain, KeyAlgorithm, PrivateKey};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Server, SharedServer, bin, free_port, marker};
use crate::gateway::Upstream;
use crate::node::{INIT, NODEPKI};
use crate::signing::{PlainFiles, now, run, run_program, write_secret};
use crate::time::wait_until;

/// Number of twins of each provisioner.
const TWINS: usize = 100;

/// Running step-cas and the credentials that they accept.
pub(crate) struct StepCas {
    dir: TempDir,
    authorities: Vec<StepCa>,
    strict: OnceLock<StepCa>,
    jwk: PrivateKey,
}

/// One running step-ca.
pub(crate) struct StepCa {
    pub(crate) port: u16,
    /// SHA-256 of its root.
    pub(crate) fingerprint: [u8; 32],
    dir: PathBuf,
    _server: Server,
}

impl StepCa {
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn root_pem(&self) -> Vec<u8> {
        fs::read(self.dir.join("root.crt")).unwrap()
    }

    pub(crate) fn upstream(&self) -> Upstream {
        Upstream::tls(("127.0.0.1", self.port), &self.root_pem(), "localhost")
    }

    /// Returns the log lines of requests that create something, for one provisioner. The server writes a line after its
    /// response, so this waits for the line of a request that it sends last.
    pub(crate) fn sent(&self, provisioner: &str) -> Vec<String> {
        let read = || fs::read_to_string(self.dir.join("log")).unwrap();
        let marker = marker();
        let mut endpoint = Endpoint::new(Url::parse(&self.url()).unwrap());
        endpoint.tls.ca_file = Some(self.dir.join("root.crt"));
        let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
        run(client.send(Call::get(marker.clone()))).unwrap();
        wait_until("the server has logged the marker", || {
            read().contains(&marker)
        });
        read()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["method"] == "POST" && by(line) == provisioner)
            .map(|line| format!("{} {} {}", line["path"], line["status"], line["request-id"]))
            .collect()
    }
}

impl StepCas {
    /// Returns the step-cas that all tests of this process share.
    pub(crate) fn shared() -> &'static StepCas {
        static SHARED: SharedServer<StepCas> = SharedServer::new();
        SHARED.get(Self::start)
    }

    fn start() -> Self {
        bin("step-ca");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        openssl(
            dir.path(),
            &format!(
                "req -x509 {EC} -keyout bootstrap-ca.key -out bootstrap-ca.crt -days 3650 -subj /CN=bootstrap-ca"
            ),
        );
        for (name, key) in [("node", EC), ("node-rsa", "-newkey rsa:2048 -nodes")] {
            vouch(
                dir.path(),
                name,
                key,
                "-days 1095 -addext extendedKeyUsage=clientAuth",
            );
        }
        let jwk = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        write_secret(path("provisioner.key"), &*jwk.to_pem());
        set_up(dir.path());
        let mut cas = StepCas {
            authorities: Vec::new(),
            strict: OnceLock::new(),
            dir,
            jwk,
        };
        for authority in Authority::ALL {
            let ca = cas.launch(authority.as_str(), json!({}));
            cas.authorities.push(ca);
        }
        write_secret(cas.jwk_file(), cas.private_jwk().to_string());
        cas
    }

    /// Returns a number of twins that is unique in this process.
    pub(crate) fn twin(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < TWINS, "increase TWINS");
        number
    }

    pub(crate) fn of(&self, authority: Authority) -> &StepCa {
        let at = Authority::ALL.iter().position(|one| *one == authority);
        &self.authorities[at.unwrap()]
    }

    /// Returns a step-ca whose policy forbids the name `kubernetes.default`.
    pub(crate) fn strict(&self) -> &StepCa {
        self.strict.get_or_init(|| {
            let policy = json!({"x509": {"deny": {"dns": ["kubernetes.default"]}}});
            self.launch("strict", json!({"policy": policy}))
        })
    }

    /// Returns the directory with `node.crt` and `node.key` (P-256), `node-rsa.*`, and `bootstrap-ca.*`, their issuer.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the file with the private key of the JWK provisioners, kid `nodepki-1`.
    pub(crate) fn jwk_file(&self) -> PathBuf {
        self.dir.path().join("provisioner.jwk")
    }

    /// Returns the file with the same key as PEM.
    pub(crate) fn jwk_pem_file(&self) -> PathBuf {
        self.dir.path().join("provisioner.key")
    }

    pub(crate) fn jwk(&self) -> &PrivateKey {
        &self.jwk
    }

    fn private_jwk(&self) -> Value {
        // OpenSSL prints the scalar; nodepki does not export private keys.
        let file = self.jwk_pem_file();
        let text = run_program(
            "openssl",
            &["ec", "-in", file.to_str().unwrap(), "-noout", "-text"],
            b"",
        );
        let text = String::from_utf8(text).unwrap();
        let scalar: String = text
            .split("priv:")
            .nth(1)
            .unwrap()
            .split("pub:")
            .next()
            .unwrap()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .collect();
        let bytes: Vec<u8> = (0..scalar.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&scalar[at..at + 2], 16).unwrap())
            .collect();
        // OpenSSL may omit leading zeros or add one.
        let mut fixed = vec![0; 32_usize.saturating_sub(bytes.len())];
        fixed.extend(&bytes[bytes.len().saturating_sub(32)..]);
        let mut jwk = self.public_jwk("nodepki-1");
        jwk["d"] = json!(URL_SAFE_NO_PAD.encode(fixed));
        jwk
    }

    fn public_jwk(&self, kid: &str) -> Value {
        let mut jwk = json!({"use": "sig", "alg": "ES256", "kid": kid});
        for (name, value) in self.jwk.public_key().jwk_members().unwrap() {
            jwk[name] = json!(value);
        }
        jwk
    }

    /// Starts a step-ca with its own root and intermediate.
    fn launch(&self, name: &str, authority: Value) -> StepCa {
        let dir = self.dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        make_authority(&dir, name);
        let roots = STANDARD.encode(fs::read(self.dir.path().join("bootstrap-ca.crt")).unwrap());
        let template = json!({"x509": {"templateFile": self.dir.path().join("nodepki.tpl")}});
        let jwk = |name: &str, kid: &str, options: &Value, claims: Value| json!({"type": "JWK", "name": name, "key": self.public_jwk(kid), "options": options, "claims": claims});
        let mut config_authority = json!({
            "claims": {"maxTLSCertDuration": "8760h"},
            "provisioners": [
                {"type": "X5C", "name": "x5c", "roots": roots, "options": template},
                jwk("jwk", "nodepki-1", &template, json!({})),
                jwk("bare", "nodepki-1", &json!({}), json!({})),
                jwk("short", "nodepki-1", &template, json!({"maxTLSCertDuration": "24h"})),
                jwk("no-renewal", "nodepki-1", &template, json!({"disableRenewal": true})),
                {"type": "ACME", "name": "acme"},
            ],
        });
        let list = config_authority["provisioners"].as_array_mut().unwrap();
        for number in 0..TWINS {
            list.push(json!({"type": "X5C", "name": format!("x5c-{number}"), "roots": roots, "options": template}));
            list.push(jwk(
                &format!("jwk-{number}"),
                "nodepki-1",
                &template,
                json!({}),
            ));
        }
        for (key, value) in authority.as_object().unwrap() {
            config_authority[key] = value.clone();
        }
        let port = free_port();
        let config = json!({
            "root": dir.join("root.crt"),
            "crt": dir.join("inter.crt"),
            "key": dir.join("inter.key"),
            "address": format!("127.0.0.1:{port}"),
            "dnsNames": ["127.0.0.1", "localhost"],
            "logger": {"format": "json"},
            "db": {"type": "bbolt", "dataSource": dir.join("db")},
            "crl": {"enabled": name != "front-proxy-ca", "generateOnRevoke": true},
            "authority": config_authority,
        });
        fs::write(dir.join("ca.json"), config.to_string()).unwrap();
        let mut command = Command::new(bin("step-ca"));
        command.arg(dir.join("ca.json")).env("STEPPATH", &dir);
        let mut server = Server::start(command, &dir.join("log"));
        server.wait_for_port(port);
        let root = fs::read(dir.join("root.crt")).unwrap();
        let fingerprint = Chain::from_pem(&root).unwrap().leaf().fingerprint();
        StepCa {
            port,
            fingerprint,
            dir,
            _server: server,
        }
    }
}

/// Returns the provisioner of a log line.
fn by(line: &Value) -> String {
    if let Some(name) = line["provisioner"].as_str() {
        // "NAME (kid)"
        return name.split(' ').next().unwrap_or_default().to_owned();
    }
    let payload = line["ott"].as_str().and_then(|ott| ott.split('.').nth(1));
    let claims = payload.and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
    let claims: Option<Value> = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
    claims
        .and_then(|claims| claims["iss"].as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Runs the printed script with a program `step` that only logs its arguments. [`StepCas::launch`] makes the changes to
/// ca.json that the real `step` would make.
fn set_up(dir: &Path) {
    fs::write(
        dir.join("setup.yaml"),
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         signers: {s: {stepCA: {url: 'https://127.0.0.1', provisioner: x5c, tls: {systemRoots: true}, \
         auth: {x5c: {certificate: /c, key: /k}}}}}\n",
    )
    .unwrap();
    fs::write(dir.join("kubeadm.yaml"), INIT).unwrap();
    let printed = run_program(
        NODEPKI,
        &[
            "config",
            "signer-setup",
            "stepCA",
            "--config",
            dir.join("setup.yaml").to_str().unwrap(),
            "--kubeadm-config",
            dir.join("kubeadm.yaml").to_str().unwrap(),
        ],
        b"",
    );
    fs::create_dir(dir.join("bin")).unwrap();
    let step = dir.join("bin/step");
    fs::write(&step, "#!/bin/sh\necho \"$@\" >> \"$CALLED\"\n").unwrap();
    fs::set_permissions(&step, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.join("bin").display());
    let mut shell = Command::new("sh");
    shell
        .arg("-s")
        .current_dir(dir)
        .env("PATH", path)
        .env("CALLED", dir.join("called"))
        .stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&printed).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Makes `root.crt`, `inter.crt` and `inter.key` with OpenSSL.
fn make_authority(dir: &Path, name: &str) {
    let usage = "-addext keyUsage=critical,keyCertSign,cRLSign";
    openssl(
        dir,
        &format!(
            "req -x509 {EC} -keyout root.key -out root.crt -days 3650 -subj /CN={name}-root \
         -addext basicConstraints=critical,CA:TRUE,pathlen:1 {usage}"
        ),
    );
    openssl(
        dir,
        &format!(
            "req -x509 {EC} -keyout inter.key -out inter.crt -days 3650 -subj /CN={name}-intermediate \
         -CA root.crt -CAkey root.key -addext basicConstraints=critical,CA:TRUE,pathlen:0 {usage}"
        ),
    );
}

/// Makes a certificate `NAME.crt` of `bootstrap-ca` with its key `NAME.key`.
pub(crate) fn vouch(dir: &Path, name: &str, key: &str, more: &str) {
    openssl(
        dir,
        &format!(
            "req -x509 {key} -keyout {name}.key -out {name}.crt -subj /CN={name} -CA bootstrap-ca.crt \
             -CAkey bootstrap-ca.key -addext basicConstraints=critical,CA:FALSE \
             -addext keyUsage=critical,digitalSignature {more}"
        ),
    );
}

pub(crate) const EC: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

fn openssl(dir: &Path, arguments: &str) {
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let output = Command::new("openssl")
        .args(&arguments)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "openssl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
