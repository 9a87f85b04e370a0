//! `puppet.conf` of the node's Puppet agent: the address of its CA server, and the file with its CA certificates. No I/O.
//!
//! The rules are those of Puppet 8 (`lib/puppet/settings`, `lib/puppet/defaults.rb`, `lib/puppet/http/client.rb`):
//!
//! - Section `[agent]` takes precedence over `[main]`, which is also the section of lines before the first header. The first
//!   of several lines for one setting counts.
//! - Server: `ca_server`; otherwise `server_list`, of which only the first entry is used here; otherwise `server`, which is
//!   `puppet` by default. Port: `ca_port`, otherwise `serverport` or `masterport`, otherwise 8140.
//! - CA certificates: `localcacert`, by default `$certdir/ca.pem`, that is `$ssldir/certs/ca.pem`, that is
//!   `$confdir/ssl/certs/ca.pem`.
//!
//! - With `use_srv_records`, the servers that DNS names for `_x-puppet-ca._tcp` in `srv_domain` are tried first, otherwise
//!   those for `_x-puppet._tcp` (`lib/puppet/http/dns.rb`). By default Puppet takes the domain of the host, where nodepki
//!   searches the domains of resolv.conf.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::http::{Service, Url};
use crate::signer::SignerObstacle;

/// Largest puppet.conf; Puppet's own has a few lines.
const MAX_CONF_BYTES: usize = 256 << 10;
/// Limit of variables within variables.
const MAX_DEPTH: usize = 8;
/// Port of a Puppet server.
const DEFAULT_PORT: u16 = 8140;
/// Names of the setting with the port for every service; the second is the older one.
const SERVER_PORT: [&str; 2] = ["serverport", "masterport"];
/// Required action for a value that cannot be used.
const ADVICE: &str = "correct the file, or set url";

/// The settings of the agent in a puppet.conf.
pub(super) struct AgentConf<'a> {
    /// Directory of the file, Puppet's `$confdir`.
    directory: &'a Path,
    agent: Vec<(&'a str, &'a str)>,
    main: Vec<(&'a str, &'a str)>,
}

impl<'a> AgentConf<'a> {
    /// Reads the content of the file `path`.
    pub(super) fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<Self, SignerObstacle> {
        if bytes.len() > MAX_CONF_BYTES {
            return Err(SignerObstacle::new(
                format!("has {} bytes, more than {MAX_CONF_BYTES}", bytes.len()),
                ADVICE,
            ));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| SignerObstacle::new("is not UTF-8 text", ADVICE))?;
        let mut conf = AgentConf {
            directory: path.parent().unwrap_or(Path::new("/")),
            agent: Vec::new(),
            main: Vec::new(),
        };
        let mut section = "main";
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                && is_word(name)
            {
                section = name;
                continue;
            }
            let setting = line
                .split_once('=')
                .map(|(name, value)| (name.trim_end(), value));
            let Some((name, value)) = setting.filter(|(name, _)| is_word(name)) else {
                return Err(SignerObstacle::new(
                    format!("line {number} is neither a section nor a setting"),
                    ADVICE,
                ));
            };
            let value = plain(value);
            match section {
                "agent" => conf.agent.push((name, value)),
                "main" => conf.main.push((name, value)),
                // Those of a server, and of `puppet apply`.
                _ => {}
            }
        }
        Ok(conf)
    }

    /// Returns the service whose servers are tried before the address.
    pub(super) fn service(&self) -> Result<Option<Service>, SignerObstacle> {
        let uses_dns = self.value("use_srv_records", 0)?;
        match uses_dns.map(|value| value.to_ascii_lowercase()).as_deref() {
            None | Some("false") => return Ok(None),
            Some("true") => {}
            Some(other) => {
                let problem = format!("use_srv_records: {other:?} is neither true nor false");
                return Err(SignerObstacle::new(problem, ADVICE));
            }
        }
        let domain = match self.value("srv_domain", 0)?.as_deref() {
            None | Some("") => None,
            Some(given) => {
                let domain = given.strip_suffix('.').unwrap_or(given);
                if !is_domain(domain) {
                    let problem = format!("srv_domain: {given:?} is not a domain");
                    return Err(SignerObstacle::new(problem, ADVICE));
                }
                Some(domain.to_owned())
            }
        };
        Ok(Some(Service {
            names: &["_x-puppet-ca._tcp", "_x-puppet._tcp"],
            domain,
        }))
    }

    /// Returns the address of the CA server.
    pub(super) fn url(&self) -> Result<Url, SignerObstacle> {
        if let Some(host) = self.value("ca_server", 0)? {
            return self.address("ca_server", &host, None);
        }
        if let Some(list) = self.value("server_list", 0)? {
            let first = list.split(',').next().unwrap_or_default().trim();
            if !first.is_empty() {
                // As Puppet, which splits each entry at its colons.
                let (host, port) = match first.split_once(':') {
                    Some((host, port)) => (host, port),
                    None => (first, ""),
                };
                let port = match port {
                    "" => self.port(&SERVER_PORT)?,
                    port => Some(number("server_list", port)?),
                };
                return self.address("server_list", host, port.or(Some(DEFAULT_PORT)));
            }
        }
        let host = self.value("server", 0)?;
        self.address("server", host.as_deref().unwrap_or("puppet"), None)
    }

    /// Returns the file with the CA certificates.
    pub(super) fn ca_file(&self) -> Result<PathBuf, SignerObstacle> {
        let path = PathBuf::from(self.variable("localcacert", "localcacert", 0)?);
        if path.is_absolute() {
            Ok(path)
        } else {
            Err(SignerObstacle::new(
                format!("localcacert: {} is not an absolute path", path.display()),
                "correct the file, or set tls.caFile",
            ))
        }
    }

    /// Returns the address with this host; `port` is that of the CA by default.
    fn address(&self, setting: &str, host: &str, port: Option<u16>) -> Result<Url, SignerObstacle> {
        let port = match port {
            Some(port) => port,
            None => {
                let [new, old] = SERVER_PORT;
                self.port(&["ca_port", new, old])?.unwrap_or(DEFAULT_PORT)
            }
        };
        let bare = host.trim_matches(['[', ']']);
        let text = match bare.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => format!("https://[{bare}]:{port}"),
            Ok(IpAddr::V4(_)) => format!("https://{bare}:{port}"),
            Err(_) => format!("https://{host}:{port}"),
        };
        let is_address = bare.parse::<IpAddr>().is_ok();
        let url = if is_address || !host.is_empty() && host.bytes().all(is_host_byte) {
            Url::parse(&text).ok()
        } else {
            None
        };
        url.ok_or_else(|| {
            SignerObstacle::new(
                format!("{setting}: {host:?} is not the name of a host"),
                ADVICE,
            )
        })
    }

    /// Returns the first of these settings that is set.
    fn port(&self, names: &[&str]) -> Result<Option<u16>, SignerObstacle> {
        for name in names {
            if let Some(text) = self.value(name, 0)? {
                return number(name, &text).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns a setting with its variables replaced; `None` if it is not set.
    fn value(&self, name: &str, depth: usize) -> Result<Option<String>, SignerObstacle> {
        let found = [&self.agent, &self.main]
            .into_iter()
            .find_map(|section| section.iter().find(|(key, _)| *key == name));
        found
            .map(|(_, value)| self.interpolated(name, value, depth))
            .transpose()
    }

    /// Replaces `$name` and `${name}`.
    fn interpolated(
        &self,
        setting: &str,
        value: &str,
        depth: usize,
    ) -> Result<String, SignerObstacle> {
        let mut text = String::new();
        let mut rest = value;
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            let braced = after
                .strip_prefix('{')
                .and_then(|inner| inner.split_once('}'));
            let (name, tail) = match braced {
                Some((name, tail)) if is_word(name) => (name, tail),
                _ => {
                    let end = after
                        .find(|c: char| !is_word_char(c))
                        .unwrap_or(after.len());
                    after.split_at(end)
                }
            };
            if name.is_empty() {
                text.push('$');
            } else {
                text.push_str(&self.variable(setting, name, depth + 1)?);
            }
            rest = tail;
        }
        text.push_str(rest);
        Ok(text)
    }

    /// Returns the value of a variable, with Puppet's defaults for those that the settings here refer to.
    fn variable(&self, setting: &str, name: &str, depth: usize) -> Result<String, SignerObstacle> {
        let fault = |why: &str| {
            SignerObstacle::new(
                format!("{setting}: ${name} {why}"),
                "write the value in the file, or set url and tls.caFile",
            )
        };
        if depth > MAX_DEPTH {
            return Err(fault("refers to itself"));
        }
        if let Some(value) = self.value(name, depth)? {
            return Ok(value);
        }
        let default = match name {
            "confdir" => return Ok(self.directory.display().to_string()),
            "ssldir" => "$confdir/ssl",
            "certdir" => "$ssldir/certs",
            "localcacert" => "$certdir/ca.pem",
            "server" => "puppet",
            _ => return Err(fault("has no value there")),
        };
        self.interpolated(setting, default, depth)
    }
}

/// Returns a value without the options of a file (`{ owner = root }`) and without quotation marks, as Puppet reads it.
fn plain(value: &str) -> &str {
    let value = value.trim();
    let value = match value.rfind('{') {
        Some(at) if value.ends_with('}') && !value[..at].ends_with('$') => value[..at].trim_end(),
        _ => value,
    };
    value.trim_matches(['"', '\''])
}

fn number(setting: &str, text: &str) -> Result<u16, SignerObstacle> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| SignerObstacle::new(format!("{setting}: {text:?} is not a port"), ADVICE))
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}

/// Returns whether `text` consists of labels of a valid length (RFC 1035, section 2.3.4).
fn is_domain(text: &str) -> bool {
    let mut lengths = text.split('.').map(str::len);
    text.bytes().all(is_host_byte)
        && text.len() < 254
        && lengths.all(|length| (1..64).contains(&length))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_word_char)
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "/etc/puppetlabs/puppet/puppet.conf";

    fn conf(text: &str) -> Result<AgentConf<'_>, SignerObstacle> {
        AgentConf::parse(Path::new(CONF), text.as_bytes())
    }

    #[track_caller]
    fn url(text: &str) -> String {
        let url = conf(text).and_then(|conf| conf.url());
        url.map_or_else(
            |fault| format!("{fault} ({})", fault.advice),
            |url| url.to_string(),
        )
    }

    fn ca_file(text: &str) -> String {
        match conf(text).and_then(|conf| conf.ca_file()) {
            Ok(path) => path.display().to_string(),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn finds_the_service_as_the_agent_does() {
        let service = |text| conf(text).unwrap().service().unwrap();
        assert_eq!(service("server = p\n"), None);
        assert_eq!(
            service("use_srv_records = false\nsrv_domain = a.test\n"),
            None
        );
        let of_host = service("[agent]\nuse_srv_records = True\n").unwrap();
        assert_eq!(of_host.domain, None);
        assert_eq!(of_host.to_string(), "_x-puppet-ca._tcp");
        let text = "use_srv_records = true\nserver = p\nsrv_domain = $server.test\n";
        let of_domain = service(text).unwrap();
        assert_eq!(of_domain.to_string(), "_x-puppet-ca._tcp.p.test");
        assert_eq!(url(text), "https://p:8140/");
    }

    #[test]
    fn refuses_a_service_that_cannot_be_found() {
        let long = format!("srv_domain: \"{}\" is not a domain", "l".repeat(64));
        let long_line = format!("srv_domain = {}\n", "l".repeat(64));
        for (lines, expected) in [
            (
                "srv_domain = a..test\n",
                "srv_domain: \"a..test\" is not a domain",
            ),
            (
                "srv_domain = https://a.test\n",
                "srv_domain: \"https://a.test\" is not a domain",
            ),
            ("srv_domain = .\n", "srv_domain: \".\" is not a domain"),
            ("srv_domain = a b\n", "srv_domain: \"a b\" is not a domain"),
            (&long_line, &long),
            (
                "[agent]\nuse_srv_records = yes\n",
                "use_srv_records: \"yes\" is neither true nor false",
            ),
        ] {
            let text = format!("use_srv_records = true\n{lines}");
            let fault = conf(&text).unwrap().service().unwrap_err();
            assert_eq!(fault.to_string(), expected);
            assert_eq!(fault.advice, ADVICE);
        }
        let ends_with_dot = "use_srv_records = true\nsrv_domain = a.test.\n";
        let service = conf(ends_with_dot).unwrap().service().unwrap().unwrap();
        assert_eq!(service.domain.as_deref(), Some("a.test"));
    }

    #[test]
    fn finds_the_server_as_the_agent_does() {
        for (text, expected) in [
            ("", "https://puppet:8140/"),
            ("server = p.example.com\n", "https://p.example.com:8140/"),
            ("[main]\nserver=p\nserverport=8141", "https://p:8141/"),
            ("[main]\nserver = p\nmasterport = 8142\n", "https://p:8142/"),
            ("[main]\nserver = p\nca_server = ca\n", "https://ca:8140/"),
            (
                "[main]\nserver = p\nserverport = 8141\n[agent]\nca_server = ca\nca_port = 9140\n",
                "https://ca:9140/",
            ),
            // [agent] takes precedence, wherever it is.
            (
                "[agent]\nserver = a\n[main]\nserver = m\n",
                "https://a:8140/",
            ),
            // The sections of a server and of `puppet apply` are not those of the agent.
            (
                "[server]\nca_server = s\n[user]\nserver = u\n[master]\nserver = x\n",
                "https://puppet:8140/",
            ),
            // The first line counts, in a section with several headers too.
            (
                "[agent]\nserver = a\n[main]\n[agent]\nserver = b\n",
                "https://a:8140/",
            ),
            (
                "[main]\nserver = p\nca_server = $server\n",
                "https://p:8140/",
            ),
            (
                "[main]\nserver = p\nca_server = ca-${server}x\n",
                "https://ca-px:8140/",
            ),
            (
                "[main]\r\n  server = \"p\"  \r\n# ca_server = no\r\n",
                "https://p:8140/",
            ),
            ("[main]\nserver_list = one:8150,two\n", "https://one:8150/"),
            (
                "[main]\nserver_list = one, two\nserverport = 8151\nca_port = 1\n",
                "https://one:8151/",
            ),
            (
                "[main]\nserver_list = one\nca_server = ca\n",
                "https://ca:8140/",
            ),
            ("[main]\nserver_list =\nserver = p\n", "https://p:8140/"),
            ("[main]\nserver = 192.0.2.1\n", "https://192.0.2.1:8140/"),
            (
                "[main]\nserver = 2001:db8::1\n",
                "https://[2001:db8::1]:8140/",
            ),
            (
                "[main]\nuse_srv_records = false\nserver = p\n",
                "https://p:8140/",
            ),
        ] {
            assert_eq!(url(text), expected, "{text}");
        }
    }

    #[test]
    fn finds_the_ca_certificates_as_the_agent_does() {
        for (text, expected) in [
            ("", "/etc/puppetlabs/puppet/ssl/certs/ca.pem"),
            (
                "ssldir = /var/lib/puppet/ssl",
                "/var/lib/puppet/ssl/certs/ca.pem",
            ),
            (
                "[agent]\ncertdir = $confdir/c\n",
                "/etc/puppetlabs/puppet/c/ca.pem",
            ),
            (
                "[agent]\nlocalcacert = /ca.pem { owner = root, mode = 644 }\n",
                "/ca.pem",
            ),
            (
                "ssldir = ${confdir}/x",
                "/etc/puppetlabs/puppet/x/certs/ca.pem",
            ),
        ] {
            assert_eq!(ca_file(text), expected, "{text}");
        }
        for (text, part) in [
            ("localcacert = ca.pem", "is not an absolute path"),
            ("ssldir = $vardir/ssl", "ssldir: $vardir has no value there"),
            ("ssldir = $certdir", "refers to itself"),
        ] {
            assert!(ca_file(text).contains(part), "{}", ca_file(text));
        }
    }

    #[test]
    fn refuses_hostile_and_damaged_files() {
        let long = format!("server = {}", "x".repeat(MAX_CONF_BYTES));
        let deep = "server = ".to_owned() + &"$server".repeat(9);
        for (text, part) in [
            (
                "server = p/puppet-ca\n",
                "server: \"p/puppet-ca\" is not the name of a host",
            ),
            ("server = user@p\n", "is not the name of a host"),
            ("server = p:8140\n", "is not the name of a host"),
            ("ca_server = p?x#y\n", "ca_server"),
            ("ca_server = \n", "\"\" is not the name of a host"),
            ("server = p\u{202e}q\n", "\\u{202e}"),
            ("server = \u{1b}[31mp\n", "\\u{1b}"),
            ("ca_port = 0\n", "ca_port: \"0\" is not a port"),
            ("ca_port = 65536\n", "is not a port"),
            ("server_list = one:x\n", "server_list: \"x\" is not a port"),
            (
                "server = $certname\n",
                "server: $certname has no value there",
            ),
            ("[main]\nserver p\n", "line 2 is neither"),
            ("[main\nserver = p\n", "line 1 is neither"),
            ("<<<<<<< HEAD\n", "line 1 is neither"),
            (&*long, "more than 262144"),
            (&*deep, "refers to itself"),
        ] {
            assert!(url(text).contains(part), "{}", url(text));
        }
        let path = Path::new(CONF);
        assert!(AgentConf::parse(path, b"server = \xff\n").is_err());
        assert!(AgentConf::parse(path, b"\0\0\0").is_err());
    }
}
