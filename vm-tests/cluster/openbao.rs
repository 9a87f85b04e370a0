//! An OpenBao server in the cluster's network, outside the nodes: the CAs are in PKI engines, and each node has an AppRole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::authority::{AUTHORITIES, CertificateAuthorities};
use super::network::{OPENBAO, OPENBAO_IPV6, has_ipv6};
use super::site::{self, Site};
use crate::system::run;

/// Path of the server's root certificate on the nodes.
pub(crate) const ROOT_FILE: &str = "/etc/ssl/certs/corp-root.pem";

/// A running server, which is killed with its data when dropped.
pub(crate) struct OpenBao {
    program: PathBuf,
    dir: PathBuf,
    /// Root of a system with nodepki, for the administrator's commands.
    bench: PathBuf,
    unseal_key: String,
    token: String,
    server: Child,
}

/// The credential with which a node logs in.
pub(crate) struct Credential {
    pub(crate) role_id: String,
    /// The token that wraps a secret id.
    pub(crate) wrapping_token: String,
}

impl OpenBao {
    /// Starts, initialises and unseals a server.
    pub(crate) fn start(site: &Site, name: &str) -> Self {
        let dir = site.path(&format!("openbao-{name}"));
        fs::create_dir_all(&dir).unwrap();
        make_certificates(&dir);
        let addresses = match has_ipv6() {
            true => vec![
                format!("{}:8200", OPENBAO.0),
                format!("[{OPENBAO_IPV6}]:8200"),
            ],
            false => vec![format!("{}:8200", OPENBAO.0)],
        };
        let mut text = format!(
            "storage \"inmem\" {{}}\napi_addr = \"{}\"\n",
            OpenBao::url()
        );
        for address in addresses {
            text.push_str(&format!(
                "listener \"tcp\" {{\n  address = \"{address}\"\n  tls_cert_file = \"server.pem\"\n  tls_key_file = \"server.key\"\n}}\n"
            ));
        }
        fs::write(dir.join("config.hcl"), text).unwrap();
        let program = site.program("bao", site::CURRENT);
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new(&program);
        command
            .args(["server", "-config=config.hcl"])
            .current_dir(&dir)
            .env("HOME", &dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut bao = OpenBao {
            program,
            dir,
            bench: site.root(),
            unseal_key: String::new(),
            token: String::new(),
            server: command.spawn().unwrap(),
        };
        bao.wait_until_started();
        let made = bao
            .administrator("\"$VAULT\" operator init -key-shares=1 -key-threshold=1 -format=json");
        let made: Value = serde_json::from_str(&made).unwrap();
        bao.unseal_key = made["unseal_keys_b64"][0].as_str().unwrap().to_owned();
        bao.token = made["root_token"].as_str().unwrap().to_owned();
        bao.set_sealed(false);
        bao
    }

    /// Returns the address that nodes use.
    pub(crate) fn url() -> String {
        format!("https://{}:8200", OPENBAO.1)
    }

    /// Returns the root of the server's certificate as PEM.
    pub(crate) fn root_certificate(&self) -> String {
        fs::read_to_string(self.dir.join("root.pem")).unwrap()
    }

    /// Runs the script that `nodepki config signer-setup vault` prints for a node's settings and kubeadm configuration, and
    /// imports the CAs.
    pub(crate) fn enroll(
        &self,
        name: &str,
        authorities: &CertificateAuthorities,
        settings: &str,
        kubeadm: &str,
    ) -> Credential {
        let setup = Path::new("root").join(format!("setup-{name}"));
        let files = self.bench.join(&setup);
        fs::create_dir_all(&files).unwrap();
        fs::write(files.join("signer.yaml"), settings).unwrap();
        fs::write(files.join("kubeadm.yaml"), kubeadm).unwrap();
        let script = run(Command::new("chroot").arg(&self.bench).args([
            "nodepki",
            "config",
            "signer-setup",
            "vault",
            "--config",
            &format!("/{}/signer.yaml", setup.display()),
            "--kubeadm-config",
            &format!("/{}/kubeadm.yaml", setup.display()),
        ]));
        // It prints the commands that are left to do, and ends with 75 as long as there is no CA.
        let script = script.replace("exit 75", "exit 0");
        let said = self.administrator(&format!("exec 2>&1\n{script}"));
        for (authority, _) in AUTHORITIES {
            let import = format!("pki/{authority}/issuers/import/bundle");
            if let Some(command) = command_in(&said, &import) {
                let read = |file| fs::read_to_string(authorities.file(authority, file)).unwrap();
                let bundle = read("cert.pem") + &read("key.pem");
                fs::write(self.dir.join("ca-and-key.pem"), bundle).unwrap();
                self.administrator(&command);
            }
        }
        let printed = |part| {
            let command = command_in(&said, part).unwrap_or_else(|| panic!("{part}: {said}"));
            self.administrator(&command).trim().to_owned()
        };
        Credential {
            role_id: printed("/role-id "),
            wrapping_token: printed("/secret-id "),
        }
    }

    /// Runs a script that `nodepki config signer-setup vault` prints.
    pub(crate) fn set_up(&self, script: &str) {
        self.administrator(script);
    }

    /// Seals or unseals the server. A sealed server answers all requests with status 503.
    pub(crate) fn set_sealed(&self, is_sealed: bool) {
        self.administrator(&match is_sealed {
            true => "\"$VAULT\" operator seal".to_owned(),
            false => format!("\"$VAULT\" operator unseal '{}'", self.unseal_key),
        });
    }

    /// Number of certificates that the engines have issued, including the CAs' own.
    pub(crate) fn signed(&self) -> u64 {
        let count = |(authority, _): (&str, &str)| {
            let listed = self.administrator(&format!(
                "\"$VAULT\" list -format=json pki/{authority}/certs"
            ));
            let listed: Vec<String> = serde_json::from_str(&listed).unwrap();
            listed.len() as u64
        };
        AUTHORITIES.into_iter().map(count).sum()
    }

    /// Waits until the server answers; it is not initialised at that time.
    fn wait_until_started(&self) {
        // Exit status 1: no answer; 2: the server is sealed.
        self.administrator(
            "for _ in $(seq 300); do
               status=0; \"$VAULT\" status >status 2>&1 || status=$?
               [ $status = 1 ] || exit 0
               sleep 0.1
             done
             cat status log >&2; exit 1",
        );
    }

    /// Runs a script with the rights of the server's administrator.
    fn administrator(&self, script: &str) -> String {
        run(Command::new("sh")
            .args(["-euc", script])
            .current_dir(&self.dir)
            .env("VAULT", &self.program)
            .env("VAULT_ADDR", format!("https://{}:8200", OPENBAO.0))
            .env("VAULT_CACERT", self.dir.join("root.pem"))
            .env("VAULT_TLS_SERVER_NAME", OPENBAO.1)
            .env("VAULT_TOKEN", &self.token)
            .env("HOME", &self.dir))
    }
}

impl Drop for OpenBao {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Returns a command that a script of `nodepki config signer-setup vault` has printed.
fn command_in(said: &str, part: &str) -> Option<String> {
    let mut commands = said.lines().filter_map(|line| line.strip_prefix("  "));
    commands
        .find(|line| line.contains(part))
        .map(ToOwned::to_owned)
}

/// Creates the server's certificate, and a root that signs nothing else.
fn make_certificates(dir: &Path) {
    let script = format!(
        "openssl req -x509 -nodes -days 30 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=corp-root \
           -addext keyUsage=critical,keyCertSign -keyout root.key -out root.pem
         openssl req -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=vault -keyout server.key -out server.csr
         echo 'subjectAltName=DNS:{}' >server.ext
         openssl x509 -req -in server.csr -CA root.pem -CAkey root.key -days 30 -extfile server.ext -out server.pem",
        OPENBAO.1
    );
    run(Command::new("sh").args(["-euc", &script]).current_dir(dir));
}
