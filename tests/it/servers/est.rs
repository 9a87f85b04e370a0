//! Two EST servers with different behaviour: Cisco's libest, and the strict mock CA of GlobalSign.
//!
//! Both sign with `ca.pem` and `ca.key` of their directory, which also issue the server certificate.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nodepki::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject,
};
use tempfile::TempDir;

use super::{Server, bin, free_port};
use crate::gateway::Upstream;
use crate::signing::{now, write_secret};

/// The user of libest's server.
pub(crate) const USER: &str = "estuser";
pub(crate) const PASSWORD: &str = "estpwd";

/// A running EST server of either vendor.
pub(crate) struct Est {
    dir: TempDir,
    port: u16,
    server: Server,
}

/// Makes a directory with a new authority of this name.
pub(crate) fn with_authority(common_name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let pem = key.to_pem();
    let made = CertificateAuthority::self_signed(
        common_name,
        key,
        now(),
        Duration::from_secs(10 * 365 * 24 * 60 * 60),
    )
    .unwrap();
    fs::write(dir.path().join("ca.pem"), made.bundle().to_pem()).unwrap();
    write_secret(dir.path().join("ca.key"), pem.as_bytes());
    dir
}

/// Copies an authority into a directory of its own.
pub(crate) fn like(base: &Path) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(base.with_extension("crt"), dir.path().join("ca.pem")).unwrap();
    fs::copy(base.with_extension("key"), dir.path().join("ca.key")).unwrap();
    dir
}

impl Est {
    /// Starts libest's server with further options (`-m 3`: a first request has to wait).
    pub(crate) fn libest(dir: TempDir, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let port = free_port();
        let mut command = Command::new(bin("estserver"));
        command
            .arg("--dir")
            .arg(dir.path())
            .args(["--listen", &format!("127.0.0.1:{port}"), "--", "-v"])
            .args(options)
            .envs(variables.iter().copied());
        Self::start(command, dir, port)
    }

    /// Starts GlobalSign's server, which accepts every label.
    pub(crate) fn globalsign(dir: TempDir) -> Self {
        let port = free_port();
        let path = |name: &str| dir.path().join(name);
        let server = pair(dir.path(), "est server", &[ExtendedUsage::ServerAuth]);
        fs::write(path("server.pem"), server.0).unwrap();
        write_secret(path("server.key"), server.1);
        let config = serde_json::json!({
            "mock_ca": {"certificates": path("ca.pem"), "private_key": path("ca.key")},
            "tls": {
                "listen_address": format!("127.0.0.1:{port}"),
                "certificates": path("server.pem"),
                "private_key": path("server.key"),
                "client_cas": [path("ca.pem")],
            },
            "healthcheck_password": "xyzzy",
            "rate_limit": 1000,
            "timeout": 10,
        });
        fs::write(path("config.json"), config.to_string()).unwrap();
        let mut command = Command::new(bin("globalsign-estserver"));
        command.arg("-config").arg(path("config.json"));
        Self::start(command, dir, port)
    }

    fn start(command: Command, dir: TempDir, port: u16) -> Self {
        let mut server = Server::start(command, &dir.path().join("said"));
        server.wait_for_port(port);
        Est { dir, port, server }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Returns the certificate of the authority, which has also issued the server certificate.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(crate) fn upstream(&self) -> Upstream {
        let ca = fs::read(self.ca_file()).unwrap();
        Upstream::tls(("127.0.0.1", self.port), &ca, "localhost")
    }

    /// Returns the whole output.
    pub(crate) fn said(&self) -> String {
        let text = fs::read(self.dir.path().join("said")).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns one line of the log for each received request with a body.
    pub(crate) fn posts(&self) -> Vec<String> {
        let said = self.said();
        let posts = said
            .lines()
            .filter(|line| line.contains("\"POST ") || line.contains("POST\""));
        posts.map(str::to_owned).collect()
    }

    /// Returns the reason why it does not run, for a failing test.
    #[allow(dead_code, reason = "read in the debug output of a failing test")]
    pub(crate) fn last_words(&self) -> String {
        self.server.said()
    }

    /// Writes a client certificate of its authority and the key into one file.
    pub(crate) fn client(&self, common_name: &str) -> PathBuf {
        let (chain, key) = pair(self.dir.path(), common_name, &[ExtendedUsage::ClientAuth]);
        let file = self.dir.path().join(format!("{common_name}.client.pem"));
        write_secret(&file, [chain, key].concat());
        file
    }

    /// Returns the file with the password.
    pub(crate) fn password_file(&self) -> PathBuf {
        let file = self.dir.path().join("password");
        write_secret(&file, format!("{PASSWORD}\n"));
        file
    }
}

/// Returns a server certificate of the authority in `dir` for 127.0.0.1 and localhost with its key, as PEM.
fn pair(dir: &Path, common_name: &str, usages: &[ExtendedUsage]) -> (Vec<u8>, Vec<u8>) {
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    let authority = CertificateAuthority::from_pem(&read("ca.pem"), &read("ca.key")).unwrap();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: common_name.to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans {
            dns: vec!["localhost".to_owned()],
            ips: vec![IpAddr::from([127, 0, 0, 1])],
        },
        usages: usages.to_vec(),
        key: KeyAlgorithm::EcdsaP256,
        lifetime: Duration::from_secs(24 * 60 * 60),
    };
    let certificate = authority.issue(key.public_key(), &profile, now()).unwrap();
    (
        certificate.to_pem().into_bytes(),
        key.to_pem().as_bytes().to_vec(),
    )
}
