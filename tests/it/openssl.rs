//! Certificates, requests and keys as read by OpenSSL, for every test that judges nodepki's output.
//!
//! Owns: running the `openssl` program and reading its output. Nothing here may use nodepki's own X.509 code, or a fault
//! in it would confirm itself. `facts_of_tree` returns facts in the format of `tests/golden/**/expected.json`; a new fact
//! needs a key in `pem_facts` and new recordings.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use base64::Engine;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::signing::feed;

/// Files of a tree by path below its root, directories with a `/` at the end.
pub(crate) type Tree = BTreeMap<String, Value>;

/// One attribute of a distinguished name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attribute {
    /// Short name: `CN`, `O`, …
    pub(crate) name: String,
    pub(crate) value: String,
    /// ASN.1 type, in the spelling of X.680: `PrintableString`, `UTF8String`, …
    pub(crate) string_type: String,
}

impl Attribute {
    fn text(&self) -> String {
        format!("{}={} ({})", self.name, self.value, self.string_type)
    }
}

/// One X.509 extension, with the value in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extension {
    /// `keyUsage`, `subjectAltName`, …; OpenSSL's name if there is none below.
    pub(crate) name: String,
    pub(crate) critical: bool,
    pub(crate) values: Vec<String>,
}

/// The content of a certificate. Lists are in the order of the encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertFacts {
    pub(crate) subject: Vec<Attribute>,
    pub(crate) issuer: Vec<Attribute>,
    /// Upper-case hex without leading `0x`.
    pub(crate) serial: String,
    pub(crate) not_before: OffsetDateTime,
    pub(crate) not_after: OffsetDateTime,
    /// `RSA-2048`, `ECDSA-P256`, …
    pub(crate) key: String,
    /// SubjectPublicKeyInfo as PEM.
    pub(crate) public_key: String,
    /// `sha256WithRSAEncryption`, `ecdsa-with-SHA256`, …
    pub(crate) signature: String,
    pub(crate) extensions: Vec<Extension>,
}

impl CertFacts {
    /// `DNS:…` and `IP:…`, in the order of the encoding.
    pub(crate) fn sans(&self) -> &[String] {
        values_of(&self.extensions, "subjectAltName")
    }

    /// `digitalSignature`, `keyEncipherment`, …
    pub(crate) fn key_usage(&self) -> &[String] {
        values_of(&self.extensions, "keyUsage")
    }

    /// `serverAuth`, `clientAuth`, …
    pub(crate) fn extended_key_usage(&self) -> &[String] {
        values_of(&self.extensions, "extendedKeyUsage")
    }

    /// Returns the CA flag; false also without basic constraints.
    pub(crate) fn is_ca(&self) -> bool {
        values_of(&self.extensions, "basicConstraints")
            .iter()
            .any(|value| value == "CA:TRUE")
    }

    /// Colon-separated hex.
    pub(crate) fn subject_key_id(&self) -> Option<&str> {
        values_of(&self.extensions, "subjectKeyIdentifier")
            .first()
            .map(String::as_str)
    }

    /// Colon-separated hex.
    pub(crate) fn authority_key_id(&self) -> Option<&str> {
        values_of(&self.extensions, "authorityKeyIdentifier")
            .first()
            .map(String::as_str)
    }

    /// From `notBefore` to `notAfter`.
    pub(crate) fn validity_seconds(&self) -> i64 {
        (self.not_after - self.not_before).whole_seconds()
    }
}

/// The content of a certificate signing request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CsrFacts {
    pub(crate) subject: Vec<Attribute>,
    pub(crate) key: String,
    pub(crate) public_key: String,
    pub(crate) signature: String,
    pub(crate) extensions: Vec<Extension>,
}

impl CsrFacts {
    /// `DNS:…` and `IP:…`, in the order of the encoding.
    pub(crate) fn sans(&self) -> &[String] {
        values_of(&self.extensions, "subjectAltName")
    }
}

/// Reads the first certificate of a PEM file.
pub(crate) fn facts_of_cert(path: &Path) -> CertFacts {
    facts_of_certs(&read(path))
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("{}: no certificate in it", path.display()))
}

/// Reads every certificate of a PEM text, in order.
pub(crate) fn facts_of_certs(pem: &str) -> Vec<CertFacts> {
    pem_blocks(pem)
        .iter()
        .filter(|(label, _)| *label == "CERTIFICATE")
        .map(|(_, block)| cert_facts(block))
        .collect()
}

/// Reads the request in a PEM file and verifies its self-signature.
pub(crate) fn facts_of_csr(path: &Path) -> CsrFacts {
    csr_facts(&read(path))
}

/// Returns the label of the first PEM block of a key file, such as `RSA PRIVATE KEY`.
pub(crate) fn key_header(path: &Path) -> String {
    let pem = read(path);
    pem_blocks(&pem)
        .first()
        .unwrap_or_else(|| panic!("{}: no PEM block in it", path.display()))
        .0
        .to_owned()
}

/// Returns the public key of a private key as PEM.
pub(crate) fn public_key_of_key(pem: &str) -> String {
    stdout(&["pkey", "-pubout"], pem)
}

/// Returns whether the first certificate of one file contains the public key of the other file's private key.
pub(crate) fn is_pair(certificate: &Path, key: &Path) -> bool {
    facts_of_cert(certificate).public_key == public_key_of_key(&read(key))
}

/// A purpose of `openssl verify -purpose`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Server,
    Client,
}

/// Builds and checks the path from the first certificate of `chain` to `ca`, with the rest of `chain` as
/// intermediates. Only `ca` is trusted. The error is OpenSSL's.
pub(crate) fn verify(chain: &Path, ca: &Path, purpose: Purpose) -> Result<(), String> {
    let purpose = match purpose {
        Purpose::Server => "sslserver",
        Purpose::Client => "sslclient",
    };
    let (chain, ca) = (text_of(chain), text_of(ca));
    let arguments = [
        "verify",
        "-no-CApath",
        "-no-CAstore",
        "-purpose",
        purpose,
        "-CAfile",
        ca,
        "-untrusted",
        chain,
        chain,
    ];
    let output = openssl(&arguments, "");
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Returns the facts of the files below `root`, as described in `tests/golden/README.md`.
pub(crate) fn facts_of_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(root, "", &mut tree);
    tree
}

fn walk(root: &Path, below: &str, tree: &mut Tree) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let mut path = format!("{below}{}", entry.file_name().into_string().unwrap());
        // Of the entry itself, not of the target of a symbolic link.
        let metadata = entry.metadata().unwrap();
        let mut facts = json!({"mode": format!("{:04o}", metadata.permissions().mode() & 0o7777)});
        if metadata.is_dir() {
            path.push('/');
            walk(root, &path, tree);
        } else if metadata.is_symlink() {
            facts = json!({"symlink": fs::read_link(entry.path()).unwrap()});
        } else if path.ends_with(".conf") {
            facts["kubeconfig"] = kubeconfig_facts(&read(&entry.path()), root);
        } else {
            let blocks: Vec<Value> = pem_blocks(&read(&entry.path()))
                .iter()
                .map(pem_facts)
                .collect();
            if !blocks.is_empty() {
                facts["pem"] = Value::Array(blocks);
            }
        }
        tree.insert(path, facts);
    }
}

/// Returns a kubeconfig with each base64 field replaced by the facts of its content. CA data that equals `pki/ca.crt` is
/// replaced by that name.
fn kubeconfig_facts(text: &str, root: &Path) -> Value {
    let mut kubeconfig = yaml(text);
    replace_data(
        &mut kubeconfig,
        &fs::read_to_string(root.join("pki/ca.crt")).unwrap_or_default(),
    );
    kubeconfig
}

fn replace_data(value: &mut Value, ca: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| replace_data(item, ca)),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if let (true, Value::String(data)) = (name.ends_with("-data"), &*field) {
                    let pem = base64::engine::general_purpose::STANDARD
                        .decode(data)
                        .unwrap();
                    let pem = String::from_utf8(pem).unwrap();
                    *field = if name == "certificate-authority-data" && pem == ca {
                        "pki/ca.crt".into()
                    } else {
                        pem_blocks(&pem).iter().map(pem_facts).collect()
                    };
                } else {
                    replace_data(field, ca);
                }
            }
        }
        _ => {}
    }
}

fn pem_facts((label, block): &(&str, String)) -> Value {
    let names =
        |attributes: &[Attribute]| attributes.iter().map(Attribute::text).collect::<Vec<_>>();
    match *label {
        "CERTIFICATE" => {
            let facts = cert_facts(block);
            json!({
                "type": label, "key": facts.key, "signature": facts.signature, "subject": names(&facts.subject),
                "issuer": names(&facts.issuer), "extensions": extension_facts(&facts.extensions),
                // The certificate of kubeadm's kubeconfig begins with its CA, some seconds earlier.
                "seconds": facts.validity_seconds() / 30 * 30,
            })
        }
        "CERTIFICATE REQUEST" => {
            let facts = csr_facts(block);
            json!({
                "type": label, "key": facts.key, "signature": facts.signature, "subject": names(&facts.subject),
                "extensions": extension_facts(&facts.extensions),
            })
        }
        "PUBLIC KEY" => {
            json!({"type": label, "key": key_facts(&stdout(&["pkey", "-pubin", "-noout", "-text"], block))})
        }
        _ if label.ends_with("PRIVATE KEY") => {
            json!({"type": label, "key": key_facts(&stdout(&["pkey", "-noout", "-text"], block))})
        }
        _ => json!({"type": label}),
    }
}

fn extension_facts(extensions: &[Extension]) -> Vec<String> {
    let line = |extension: &Extension| {
        let critical = if extension.critical { " critical" } else { "" };
        let value = match extension.name.as_str() {
            // Key identifiers differ with every key, so only their format is compared.
            "subjectKeyIdentifier" => {
                format!(": {} bytes", extension.values.concat().split(':').count())
            }
            "authorityKeyIdentifier" => String::new(),
            _ => format!(": {}", extension.values.join(", ")),
        };
        format!("{}{critical}{value}", extension.name)
    };
    extensions.iter().map(line).collect()
}

fn values_of<'a>(extensions: &'a [Extension], name: &str) -> &'a [String] {
    extensions
        .iter()
        .find(|extension| extension.name == name)
        .map_or(&[], |extension| &extension.values)
}

// ---- OpenSSL's output ----

/// Prints names without escapes, one attribute on each line, with the string type before the value.
const NAMES: &str = "sep_multiline,sname,show_type,utf8";

fn cert_facts(block: &str) -> CertFacts {
    let arguments = [
        "x509",
        "-noout",
        "-serial",
        "-startdate",
        "-enddate",
        "-dateopt",
        "iso_8601",
        "-pubkey",
        "-text",
        "-nameopt",
        NAMES,
    ];
    let text = stdout(&arguments, block);
    CertFacts {
        subject: name_in(&text, "Subject:"),
        issuer: name_in(&text, "Issuer:"),
        serial: after(&text, "serial=").to_owned(),
        not_before: date(after(&text, "notBefore=")),
        not_after: date(after(&text, "notAfter=")),
        key: key_facts(&text),
        public_key: public_key_in(&text),
        signature: after(&text, "Signature Algorithm: ").to_owned(),
        extensions: extensions_in(&text, "X509v3 extensions:"),
    }
}

fn csr_facts(block: &str) -> CsrFacts {
    let output = openssl(
        &[
            "req", "-noout", "-verify", "-pubkey", "-text", "-nameopt", NAMES,
        ],
        block,
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // OpenSSL 3.0 exits with 0 even if the self-signature is wrong.
    assert!(
        output.status.success() && said.contains("verify OK"),
        "openssl req -verify: {said}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    CsrFacts {
        subject: name_in(&text, "Subject:"),
        key: key_facts(&text),
        public_key: public_key_in(&text),
        signature: after(&text, "Signature Algorithm: ").to_owned(),
        extensions: extensions_in(&text, "Requested Extensions:"),
    }
}

/// Returns `RSA-2048`, `ECDSA-P256` and the like, with an RSA exponent other than 65537.
fn key_facts(text: &str) -> String {
    let bits = text
        .lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix("Public-Key: (")
                .or(line.trim().strip_prefix("Private-Key: ("))
        })
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or("unknown");
    if let Some(curve) = find(text, "NIST CURVE: ") {
        return format!("ECDSA-{}", curve.replace('-', ""));
    }
    // `Exponent:` in a public key, `publicExponent:` in a private one.
    match find(text, "Exponent: ").or_else(|| find(text, "publicExponent: ")) {
        Some("65537 (0x10001)") => format!("RSA-{bits}"),
        Some(exponent) => format!("RSA-{bits} e={exponent}"),
        None => format!("neither RSA nor ECDSA, {bits} bits"),
    }
}

fn public_key_in(text: &str) -> String {
    let (_, block) = pem_blocks(text)
        .into_iter()
        .find(|(label, _)| *label == "PUBLIC KEY")
        .unwrap();
    block
}

fn name_in(text: &str, heading: &str) -> Vec<Attribute> {
    section(text, heading)
        .iter()
        .map(|line| {
            let (name, rest) = line.trim().split_once('=').unwrap();
            let (string_type, value) = rest.split_once(':').unwrap();
            let string_type = match string_type {
                "PRINTABLESTRING" => "PrintableString",
                "UTF8STRING" => "UTF8String",
                "IA5STRING" => "IA5String",
                other => other,
            };
            Attribute {
                name: name.into(),
                value: value.into(),
                string_type: string_type.into(),
            }
        })
        .collect()
}

fn extensions_in(text: &str, heading: &str) -> Vec<Extension> {
    let lines = section(text, heading);
    let outer = lines.first().map_or(0, |line| indent(line));
    let mut extensions: Vec<Extension> = Vec::new();
    for line in lines {
        let trimmed = line.trim();
        if indent(line) == outer {
            let (name, rest) = trimmed.split_once(':').unwrap_or((trimmed, ""));
            extensions.push(Extension {
                name: short_name(name).into(),
                critical: rest.trim() == "critical",
                values: Vec::new(),
            });
        } else if let Some(extension) = extensions.last_mut() {
            extension
                .values
                .extend(trimmed.split(", ").map(value_in_words));
        }
    }
    extensions
}

fn short_name(printed: &str) -> &str {
    match printed {
        "X509v3 Key Usage" => "keyUsage",
        "X509v3 Extended Key Usage" => "extendedKeyUsage",
        "X509v3 Basic Constraints" => "basicConstraints",
        "X509v3 Subject Key Identifier" => "subjectKeyIdentifier",
        "X509v3 Authority Key Identifier" => "authorityKeyIdentifier",
        "X509v3 Subject Alternative Name" => "subjectAltName",
        "X509v3 Name Constraints" => "nameConstraints",
        other => other,
    }
}

fn value_in_words(printed: &str) -> String {
    if let Some(address) = printed.strip_prefix("IP Address:") {
        // OpenSSL prints all eight groups of an IPv6 address.
        return format!("IP:{}", address.parse::<IpAddr>().unwrap());
    }
    let words = match printed {
        "Digital Signature" => "digitalSignature",
        "Non Repudiation" => "contentCommitment",
        "Key Encipherment" => "keyEncipherment",
        "Data Encipherment" => "dataEncipherment",
        "Key Agreement" => "keyAgreement",
        "Certificate Sign" => "keyCertSign",
        "CRL Sign" => "cRLSign",
        "TLS Web Server Authentication" => "serverAuth",
        "TLS Web Client Authentication" => "clientAuth",
        other => other,
    };
    words.to_owned()
}

/// Returns the lines after a heading that are indented more than it.
fn section<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let mut lines = text.lines().skip_while(|line| line.trim() != heading);
    let Some(first) = lines.next() else {
        return Vec::new();
    };
    lines
        .take_while(|line| indent(line) > indent(first))
        .collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn find<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.trim().strip_prefix(prefix))
}

fn after<'a>(text: &'a str, prefix: &str) -> &'a str {
    find(text, prefix).unwrap_or_else(|| panic!("openssl printed no `{prefix}`:\n{text}"))
}

fn date(printed: &str) -> OffsetDateTime {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z");
    time::PrimitiveDateTime::parse(printed, format)
        .unwrap()
        .assume_utc()
}

/// Returns each PEM block with its label, without the text between blocks.
fn pem_blocks(text: &str) -> Vec<(&str, String)> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(label) = line
            .strip_prefix("-----BEGIN ")
            .and_then(|rest| rest.strip_suffix("-----"))
        {
            blocks.push((label, String::new()));
            inside = true;
        }
        if inside && let Some((_, block)) = blocks.last_mut() {
            block.push_str(line);
            block.push('\n');
        }
        inside &= !line.starts_with("-----END ");
    }
    blocks
}

/// Converts YAML to JSON with all scalars as text, without nodepki's own reader; enough for a kubeconfig.
fn yaml(text: &str) -> Value {
    use saphyr_parser::{Event, Parser};
    enum Open {
        List(Vec<Value>),
        Map(Map<String, Value>, Option<String>),
    }
    let mut open: Vec<Open> = Vec::new();
    let mut document = Value::Null;
    for event in Parser::new_from_str(text) {
        let complete = match event.unwrap().0 {
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::Scalar(text, ..) => Value::String(text.into_owned()),
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => Value::Array(items),
                Some(Open::Map(fields, _)) => Value::Object(fields),
                None => unreachable!("an end without a start"),
            },
            _ => continue,
        };
        match open.last_mut() {
            None => document = complete,
            Some(Open::List(items)) => items.push(complete),
            Some(Open::Map(fields, name)) => match name.take() {
                None => *name = complete.as_str().map(str::to_owned),
                Some(name) => drop(fields.insert(name, complete)),
            },
        }
    }
    document
}

fn stdout(arguments: &[&str], input: &str) -> String {
    let output = openssl(arguments, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "openssl {}: {said}",
        arguments.join(" ")
    );
    String::from_utf8(output.stdout).unwrap()
}

fn openssl(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new("openssl")
        .args(arguments)
        // The settings of this machine must not affect the output.
        .env("OPENSSL_CONF", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run openssl ({error}): apt-get install openssl"));
    feed(&mut child, input.as_bytes());
    child.wait_with_output().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::kubeadm::{self, Node};

    const CONFIG: &str = include_str!("../golden/init/v1beta4-alg-ECDSA-P256/config.yaml");

    fn recorded_tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        golden::copy_check_expiration_tree(tree.path());
        tree
    }

    #[test]
    fn reads_certificate_of_kubeadm() {
        let tree = recorded_tree();
        let pki = tree.path().join("pki");
        let facts = facts_of_cert(&pki.join("apiserver.crt"));
        let name = |value: &str| {
            vec![Attribute {
                name: "CN".into(),
                value: value.into(),
                string_type: "PrintableString".into(),
            }]
        };
        assert_eq!(facts.subject, name("kube-apiserver"));
        assert_eq!(facts.issuer, name("kubernetes"));
        assert_eq!(facts.serial, "03AAE637BF1E96BA");
        assert_eq!(
            facts.not_before,
            time::macros::datetime!(2026-11-20 09:44:27 UTC)
        );
        assert_eq!(facts.validity_seconds(), 31_536_300);
        assert_eq!(
            (facts.key.as_str(), facts.signature.as_str()),
            ("RSA-2048", "sha256WithRSAEncryption")
        );
        assert_eq!(
            facts.sans(),
            [
                "DNS:api.prod.example.com",
                "DNS:cp1",
                "DNS:kubernetes",
                "DNS:kubernetes.default",
                "DNS:kubernetes.default.svc",
                "DNS:kubernetes.default.svc.cluster.local",
                "IP:10.96.0.1",
                "IP:192.0.2.11"
            ]
        );
        assert_eq!(
            facts_of_cert(&pki.join("etcd/server.crt"))
                .sans()
                .last()
                .unwrap(),
            "IP:::1"
        );
        assert_eq!(facts.key_usage(), ["digitalSignature", "keyEncipherment"]);
        assert_eq!(facts.extended_key_usage(), ["serverAuth"]);
        assert!(!facts.is_ca());
        let order: Vec<_> = facts
            .extensions
            .iter()
            .map(|extension| (&*extension.name, extension.critical))
            .collect();
        assert_eq!(
            order,
            [
                ("keyUsage", true),
                ("extendedKeyUsage", false),
                ("basicConstraints", true),
                ("authorityKeyIdentifier", false),
                ("subjectAltName", false)
            ]
        );

        let ca = facts_of_cert(&pki.join("ca.crt"));
        assert!(ca.is_ca());
        assert_eq!(facts.authority_key_id(), ca.subject_key_id());
        assert_eq!(
            ca.subject_key_id(),
            Some("0A:E5:BD:DA:A0:18:81:72:69:AD:2A:1A:F2:73:6D:B6:D3:C4:D2:5C")
        );
    }

    #[test]
    fn tells_matching_pair_from_other_keys() {
        let tree = recorded_tree();
        let pki = tree.path().join("pki");
        assert!(is_pair(
            &pki.join("apiserver.crt"),
            &pki.join("apiserver.key")
        ));
        assert!(!is_pair(
            &pki.join("apiserver.crt"),
            &pki.join("etcd/server.key")
        ));
        assert_eq!(key_header(&pki.join("sa.key")), "RSA PRIVATE KEY");
        assert_eq!(
            public_key_of_key(&read(&pki.join("sa.key"))),
            read(&pki.join("sa.pub"))
        );
    }

    #[test]
    fn verifies_for_one_authority_and_purpose() {
        let tree = tempfile::tempdir().unwrap();
        for output in kubeadm::init(Node::new(tree.path()), CONFIG) {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let pki = tree.path().join("pki");
        let (leaf, ca) = (pki.join("apiserver.crt"), pki.join("ca.crt"));
        assert_eq!(verify(&leaf, &ca, Purpose::Server), Ok(()));
        assert!(
            verify(&leaf, &ca, Purpose::Client)
                .unwrap_err()
                .contains("unsuitable certificate purpose")
        );
        assert!(
            verify(&leaf, &pki.join("etcd/ca.crt"), Purpose::Server)
                .unwrap_err()
                .contains("unable to get")
        );
        assert_eq!(
            verify(
                &pki.join("front-proxy-client.crt"),
                &pki.join("front-proxy-ca.crt"),
                Purpose::Client
            ),
            Ok(())
        );
    }

    #[test]
    fn reads_csr_of_kubeadm() {
        let tree = tempfile::tempdir().unwrap();
        assert!(
            kubeadm::generate_csr(Node::new(tree.path()), CONFIG)
                .status
                .success()
        );
        let csr = tree.path().join("pki/etcd/peer.csr");
        let facts = facts_of_csr(&csr);
        assert_eq!(
            facts.sans(),
            [
                "DNS:cp1",
                "DNS:localhost",
                "IP:192.0.2.11",
                "IP:127.0.0.1",
                "IP:::1"
            ]
        );
        assert_eq!(
            facts.public_key,
            public_key_of_key(&read(&csr.with_extension("key")))
        );
        assert_eq!(facts.subject[0].text(), "CN=cp1 (PrintableString)");
        assert_eq!(
            facts_of_csr(&tree.path().join("pki/apiserver-etcd-client.csr")).extensions,
            []
        );
        assert_eq!(
            (facts.key.as_str(), facts.signature.as_str()),
            ("ECDSA-P256", "ecdsa-with-SHA256")
        );
    }

    #[test]
    fn detects_wrong_self_signature_of_csr() {
        let tree = tempfile::tempdir().unwrap();
        assert!(
            kubeadm::generate_csr(Node::new(tree.path()), CONFIG)
                .status
                .success()
        );
        let pki = tree.path().join("pki");
        let der = |file: &str| {
            let pem = read(&pki.join(file));
            let base64: String = pem
                .lines()
                .filter(|line| !line.starts_with("-----"))
                .collect();
            base64::engine::general_purpose::STANDARD
                .decode(base64)
                .unwrap()
        };
        let mut request = der("apiserver.csr");
        let last = request.len() - 1;
        request[last] ^= 1;
        let base64 = base64::engine::general_purpose::STANDARD.encode(request);
        let pem = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{base64}\n-----END CERTIFICATE REQUEST-----\n"
        );
        assert!(std::panic::catch_unwind(|| csr_facts(&pem)).is_err());
    }

    #[test]
    fn reads_bundle_with_text_between_blocks() {
        let tree = recorded_tree();
        let pki = tree.path().join("pki");
        let bundle = format!(
            "subject=CN\n{}# next\n{}",
            read(&pki.join("ca.crt")),
            read(&pki.join("etcd/ca.crt"))
        );
        let subjects: Vec<_> = facts_of_certs(&bundle)
            .iter()
            .map(|facts| facts.subject[0].value.clone())
            .collect();
        assert_eq!(subjects, ["kubernetes", "etcd-ca"]);
    }
}
