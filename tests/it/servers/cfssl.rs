//! CFSSL: `cfssl serve` with one CA and `multirootca` with several, started in a directory that holds their files.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use time::OffsetDateTime;

use super::{Server, bin, free_port};
use crate::gateway::{Issuer, Pair, Upstream};
use crate::signing::{run_program, write_secret};

/// CFSSL's `certdb/sqlite/migrations`, which are usually applied by `goose`.
const TABLES: &str = "
CREATE TABLE certificates (
  serial_number            blob NOT NULL,
  authority_key_identifier blob NOT NULL,
  ca_label                 blob,
  status                   blob NOT NULL,
  reason                   int,
  expiry                   timestamp,
  revoked_at               timestamp,
  pem                      blob NOT NULL,
  issued_at                timestamp,
  not_before               timestamp,
  metadata                 text,
  sans                     text,
  common_name              text,
  PRIMARY KEY(serial_number, authority_key_identifier)
);
CREATE TABLE ocsp_responses (
  serial_number            blob NOT NULL,
  authority_key_identifier blob NOT NULL,
  body                     blob NOT NULL,
  expiry                   timestamp,
  PRIMARY KEY(serial_number, authority_key_identifier),
  FOREIGN KEY(serial_number, authority_key_identifier) REFERENCES certificates(serial_number, authority_key_identifier)
);
";

/// The directory and port of a server, with TLS files and the files of a test.
pub(crate) struct Site {
    dir: PathBuf,
    port: u16,
    issuer: Issuer,
}

/// A running server.
pub(crate) struct Cfssl {
    server: Server,
    log: PathBuf,
}

impl Site {
    pub(crate) fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let issuer = Issuer::new("tls-ca");
        let ips: [IpAddr; 1] = ["127.0.0.1".parse().unwrap()];
        let day = Duration::from_secs(24 * 60 * 60);
        let pair = issuer.server(&["localhost"], &ips, OffsetDateTime::now_utc(), day);
        fs::write(dir.join("tls-ca.crt"), issuer.pem()).unwrap();
        put_pair(dir, "tls", &pair);
        Site {
            dir: dir.to_owned(),
            port: free_port(),
            issuer,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("tls-ca.crt")
    }

    pub(crate) fn upstream(&self) -> Upstream {
        Upstream::tls(("127.0.0.1", self.port), &self.issuer.pem(), "localhost")
    }

    /// Writes a client certificate that `-mutual-tls-ca tls-ca.crt` accepts, as `NAME.crt` and `NAME.key`.
    pub(crate) fn client(&self, name: &str, common_name: &str) {
        put_pair(&self.dir, name, &self.issuer.client(common_name));
    }

    /// Makes a database for `-db-config NAME.json`, with CFSSL's tables or without tables.
    pub(crate) fn database(&self, name: &str, tables: bool) {
        let file = self.dir.join(format!("{name}.sqlite"));
        let sql = if tables {
            TABLES
        } else {
            "PRAGMA user_version = 1;"
        };
        run_program("sqlite3", &[file.to_str().unwrap()], sql.as_bytes());
        let config = format!(
            "{{\"driver\": \"sqlite3\", \"data_source\": \"{}\"}}",
            file.display()
        );
        fs::write(self.dir.join(format!("{name}.json")), config).unwrap();
    }

    /// Starts `multirootca` with the sections of `roots.ini`.
    pub(crate) fn multirootca(&self) -> Cfssl {
        let mut command = Command::new(bin("multirootca"));
        let address = format!("127.0.0.1:{}", self.port);
        command.args(["-a", &address, "-roots", "roots.ini"]);
        command.args(["-tls-cert", "tls.crt", "-tls-key", "tls.key"]);
        self.start(command)
    }

    /// Starts `cfssl serve` with `LABEL.crt`, `LABEL.key` and `LABEL.json`.
    pub(crate) fn serve(&self, label: &str, more: &[&str]) -> Cfssl {
        let mut command = Command::new(bin("cfssl"));
        let port = self.port.to_string();
        command.args(["serve", "-address", "127.0.0.1", "-port", &port]);
        for (flag, extension) in [("-ca", "crt"), ("-ca-key", "key"), ("-config", "json")] {
            command.arg(flag).arg(format!("{label}.{extension}"));
        }
        command.args(["-tls-cert", "tls.crt", "-tls-key", "tls.key"]);
        command.args(more);
        self.start(command)
    }

    fn start(&self, mut command: Command) -> Cfssl {
        command.current_dir(&self.dir);
        let log = self.dir.join("log");
        let mut server = Server::start(command, &log);
        server.wait_for_port(self.port);
        Cfssl { server, log }
    }
}

impl Cfssl {
    /// Returns one line for each certificate that a `multirootca` has signed.
    pub(crate) fn signed(&self) -> Vec<String> {
        self.said()
            .lines()
            .filter_map(|line| Some(line.split_once("signature: requester=")?.1.to_owned()))
            .collect()
    }

    /// Returns the whole output.
    pub(crate) fn said(&self) -> String {
        let _ = &self.server;
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }
}

fn put_pair(dir: &Path, name: &str, pair: &Pair) {
    fs::write(dir.join(name).with_extension("crt"), &pair.chain_pem).unwrap();
    write_secret(dir.join(name).with_extension("key"), &pair.key_pem);
}
