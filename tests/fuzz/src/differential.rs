//! Differential targets: what nodepki accepts, Go accepts too, with the same main values. The components of Kubernetes are
//! written in Go, so a file that only nodepki accepts would stop them.
//!
//! Go may accept more. A case in which nodepki accepts more, or reads something else, is a bug or has a row in
//! [`EXCEPTIONS`].

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::x509::fuzz::pem_of;
use nodepki::text::hex;
use nodepki::x509::{Certificate, Chain, CsrContent, DistinguishedName, PrivateKey, PublicKey, RevocationList};
use nodepki::yaml::{self, Node, NodeKind};
use serde_json::{Value, json};

use crate::oracle;

/// Name and function of each target.
pub(crate) const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("go-certificate", certificate),
    ("go-chain", chain),
    ("go-request", request),
    ("go-private-key", private_key),
    ("go-revocation-list", revocation_list),
    ("go-kubeconfig", kubeconfig),
    ("go-yaml", yaml_document),
];

/// Errors of Go about an object that nodepki accepts: kind, a part of the error, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("yaml", "did not find expected", YAML_1_2),
    ("yaml", "found character that cannot start any token", YAML_1_2),
    ("yaml", "could not find expected ':'", YAML_1_2),
    ("yaml", "found unexpected end of stream", YAML_1_2),
    ("yaml", "found a tab character that violates indentation", YAML_1_2),
    ("yaml", "mapping values are not allowed in this context", YAML_1_2),
    ("yaml", "block sequence entries are not allowed in this context", YAML_1_2),
    ("yaml", "block collection entries are not allowed in this context", YAML_1_2),
    ("kubeconfig", "did not find expected", YAML_1_2),
    ("kubeconfig", "found character that cannot start any token", YAML_1_2),
    ("kubeconfig", "could not find expected ':'", YAML_1_2),
    ("kubeconfig", "found a tab character that violates indentation", YAML_1_2),
    ("kubeconfig", "mapping values are not allowed in this context", YAML_1_2),
    ("yaml", "json: unsupported value", "JSON has neither infinity nor NaN; no field accepts them"),
];

/// Why nodepki accepts syntax that Go does not. A kubeconfig that nodepki changes is written again without it, and kubeadm
/// reports it in the other documents.
const YAML_1_2: &str = "Go's library reads YAML 1.1: `{a:?}`, `{:'}` and a tab before a key are valid in 1.2 only";

/// Returns what Go reads; `None` for an exception.
fn go(kind: &str, bytes: &[u8]) -> Option<Value> {
    match oracle::read(kind, bytes) {
        Ok(facts) => Some(facts),
        Err(error) => {
            let known = EXCEPTIONS
                .iter()
                .any(|(of, part, _)| *of == kind && error.contains(part));
            assert!(known, "nodepki accepts this {kind}, and Go does not: {error}");
            None
        }
    }
}

fn compare(kind: &str, bytes: &[u8], read: Value) {
    if let Some(facts) = go(kind, bytes) {
        assert_eq!(read, facts, "nodepki (left) and Go (right) read this {kind} differently");
    }
}

/// Returns a list as Go's encoder writes it: `null` if it is empty.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> Value {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.is_empty() {
        true => Value::Null,
        false => json!(items),
    }
}

fn values(name: &DistinguishedName, kind: &str) -> Value {
    list(name.values(kind))
}

fn key_of(key: &PublicKey) -> String {
    hex(&key.sha256())
}

/// Returns the object identifier of an extended key usage, which nodepki shows by its name if it has one.
fn identifier(usage: &str) -> &str {
    match usage {
        "any" => "2.5.29.37.0",
        "server auth" => "1.3.6.1.5.5.7.3.1",
        "client auth" => "1.3.6.1.5.5.7.3.2",
        "code signing" => "1.3.6.1.5.5.7.3.3",
        "email protection" => "1.3.6.1.5.5.7.3.4",
        "time stamping" => "1.3.6.1.5.5.7.3.8",
        "OCSP signing" => "1.3.6.1.5.5.7.3.9",
        other => other,
    }
}

fn certificate(bytes: &[u8]) {
    let Ok(found) = Certificate::from_der(bytes) else {
        return;
    };
    let usages = found.extended_usages().map(|usages| {
        let mut usages: Vec<&str> = usages.iter().map(|usage| identifier(usage)).collect();
        usages.sort_unstable();
        usages
    });
    let read = json!({
        "serial": found.serial().replace(':', "").trim_start_matches('0').to_ascii_lowercase(),
        "commonNames": values(found.subject(), "CN"),
        "organizations": values(found.subject(), "O"),
        "dns": list(found.dns_names()),
        "ips": list(found.ip_addresses()),
        "notBefore": found.not_before().unix_timestamp(),
        "notAfter": found.not_after().unix_timestamp(),
        "isCA": found.is_ca(),
        "usages": usages,
        "key": key_of(found.public_key()),
    });
    compare("certificate", bytes, read);
}

fn chain(bytes: &[u8]) {
    if let Ok(chain) = Chain::from_pem(bytes) {
        go("chain", bytes);
        go("chain", chain.to_pem().as_bytes());
    }
}

fn request(bytes: &[u8]) {
    let bytes = &*pem_of(bytes);
    let Ok(content) = CsrContent::from_pem(bytes) else {
        return;
    };
    if !content.is_signed() || content.unusable_key().is_some() {
        return;
    }
    let sans = content.sans().cloned().unwrap_or_default();
    let read = json!({
        "commonNames": values(content.subject(), "CN"),
        "organizations": values(content.subject(), "O"),
        "dns": list(&sans.dns),
        "ips": list(&sans.ips),
        "key": key_of(content.public_key()),
        "signed": true,
    });
    compare("request", bytes, read);
}

fn private_key(bytes: &[u8]) {
    let bytes = &*pem_of(bytes);
    if let Ok(key) = PrivateKey::from_pem(bytes) {
        compare("key", bytes, json!(key_of(key.public_key())));
        compare("key", key.to_pem().as_bytes(), json!(key_of(key.public_key())));
    }
}

fn revocation_list(bytes: &[u8]) {
    for list in RevocationList::read_all(bytes).into_iter().flatten() {
        if let Some(facts) = go("list", list.der()) {
            assert_eq!(facts["entries"], json!(list.len()), "number of entries");
        }
    }
}

fn kubeconfig(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if reads_alike(text)
        && let Ok(config) = Kubeconfig::parse(text)
        && let Ok(current) = config.current()
        && let Some(facts) = go("kubeconfig", bytes)
    {
        assert_eq!(json!(current.server.unwrap_or_default()), facts["server"]);
        // What nodepki writes is read in the same way.
        if let Some(written) = go("kubeconfig", config.to_yaml().as_bytes()) {
            assert_eq!(written, facts, "a kubeconfig that nodepki writes again");
        }
    }
}

fn yaml_document(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Without the last line end, Go reads a block scalar without it too.
    let text = &format!("{text}\n");
    if !reads_alike(text) {
        return;
    }
    let Ok(documents) = yaml::parse("fuzz.yaml", text) else {
        return;
    };
    // Every document of Kubernetes is a map.
    if let [document] = documents.as_slice()
        && matches!(document.kind, NodeKind::Map(_))
        && !has_typed_key(document)
    {
        let mut faults = yaml::Faults::default();
        document.duplicates(yaml::FaultSeverity::Error, &mut faults);
        if faults.is_empty()
            && let Some(facts) = go("yaml", text.as_bytes())
        {
            let read = yaml::to_json(document);
            assert_eq!(numbers(read), numbers(facts), "nodepki (left) and Go (right)");
        }
    }
}

/// Returns whether a text has the same meaning in YAML 1.1, which Go reads, and in 1.2.
fn reads_alike(text: &str) -> bool {
    // Go reads the first document of several, which may be empty.
    let is_marker = |line: &str| line.starts_with("---") || line.starts_with("...");
    // In a flow collection, `a:}` is the key `a` in 1.2 and `a:` in 1.1, and `?a` is `?a` in 1.2 and `a` in 1.1. The names
    // of anchors and tags end at other characters. U+0085, U+2028 and U+2029 end a line in 1.1 only.
    let is_ambiguous = [":}", ":]", ":,"].iter().any(|part| text.contains(part))
        || text.contains(['?', '&', '*', '!', '%', '\u{85}', '\u{2028}', '\u{2029}']);
    !is_ambiguous && !text.lines().any(is_marker)
}

/// Returns whether a key would be a boolean, a number or null as a value, such as `y`. Go converts its value into text
/// (`true`), and nodepki keeps the text. No document of Kubernetes has such a key.
fn has_typed_key(node: &Node) -> bool {
    let is_text = |key: &str| match yaml::parse("key", key) {
        Ok(nodes) => matches!(nodes.as_slice(), [Node { kind: NodeKind::Scalar(scalar), .. }]
            if matches!(scalar.resolve(), yaml::Value::Str(_))),
        Err(_) => true,
    };
    match &node.kind {
        NodeKind::Map(entries) => entries
            .iter()
            .any(|entry| !is_text(&entry.key) || has_typed_key(&entry.value)),
        NodeKind::Seq(items) => items.iter().any(has_typed_key),
        NodeKind::Scalar(_) => false,
    }
}

/// Returns the document with each number as a text of twelve digits: Go writes 8.0 as 8, and serde_json rounds long numbers.
fn numbers(document: Value) -> Value {
    match document {
        Value::Number(number) => json!(number.as_f64().map(|number| format!("{number:.12e}"))),
        Value::Array(items) => items.into_iter().map(numbers).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            members.map(|(key, value)| (key, numbers(value))).collect()
        }
        other => other,
    }
}
