//! The documents of `-o json`: each is valid by `docs/output.schema.json`, and has every field, with the same type, of the
//! document that was recorded in `tests/golden/output` when its kind was added.
//!
//! With NODEPKI_BLESS=1 a document is recorded if there is none of its name. A recorded document is never changed, since
//! programs rely on its fields.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use boon::{Compiler, Schemas};
use serde_json::{Value, json};

use crate::node::{Node, Ran};

const SCHEMA: &str = include_str!("../../docs/output.schema.json");
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/output");
/// Kinds whose documents need a cluster. The first three are runs, as `Bootstrap` is.
const OF_CLUSTERS: [&str; 6] = [
    "CertsDownload",
    "CertsUpload",
    "CertsExpiry",
    "CapiSecrets",
    "CapiConditions",
    "CapiSync",
];

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// Returns the kinds of the schema, in its order.
fn kinds() -> Vec<String> {
    let schema = schema();
    let kinds = schema["oneOf"].as_array().unwrap().iter();
    kinds
        .map(|kind| {
            let reference = kind["$ref"].as_str().unwrap();
            reference.strip_prefix("#/$defs/").unwrap().to_owned()
        })
        .collect()
}

/// Returns the schema without the freedom to add fields, so a field without description fails a test.
fn strict() -> Value {
    let mut schema = schema();
    let kinds = kinds();
    for (name, definition) in schema["$defs"].as_object_mut().unwrap() {
        match name.as_str() {
            // Part of each kind.
            "Envelope" | "Run" => close_inner(definition),
            name if kinds.iter().any(|kind| kind == name) => {
                close_inner(definition);
                definition["unevaluatedProperties"] = json!(false);
            }
            _ => close(definition),
        }
    }
    schema
}

/// Forbids further fields in this object and in the ones below it.
fn close(schema: &mut Value) {
    close_inner(schema);
    if schema.get("properties").is_some() {
        schema["additionalProperties"] = json!(false);
    }
}

fn close_inner(schema: &mut Value) {
    if let Some(items) = schema.get_mut("items") {
        close(items);
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (_, property) in properties.into_iter().flatten() {
        close(property);
    }
}

#[track_caller]
fn assert_valid(schema: &Value, document: &Value, what: &str) {
    let mut compiler = Compiler::new();
    compiler.enable_format_assertions();
    compiler
        .add_resource("output.json", schema.clone())
        .unwrap();
    let kind = document["kind"].as_str().unwrap();
    let place = format!("output.json#/$defs/{kind}");
    let mut schemas = Schemas::new();
    let index = compiler.compile(&place, &mut schemas).unwrap();
    if let Err(error) = schemas.validate(document, index) {
        panic!("{what}: {error:#}\n{document:#}");
    }
}

/// Returns the type of every field below a value. A list contributes the fields of all its elements.
fn fields(value: &Value, path: &str, found: &mut BTreeMap<String, &'static str>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(items) => {
            for item in items {
                fields(item, &format!("{path}[]"), found);
            }
            "list"
        }
        Value::Object(map) => {
            for (key, value) in map {
                // The keys of counts are data.
                if path != ".counts" {
                    fields(value, &format!("{path}.{key}"), found);
                }
            }
            "object"
        }
    };
    found.insert(path.to_owned(), kind);
}

fn recorded(name: &str) -> PathBuf {
    Path::new(RECORDED).join(format!("{name}.json"))
}

/// Returns the text with a fixed name for the directory of the test.
fn without_scratch(text: &str) -> String {
    let mut parts = text.split("/dev/shm/.tmp");
    let mut clean = parts.next().unwrap().to_owned();
    for part in parts {
        let (_, rest) = part.split_at(part.find('/').unwrap());
        clean.push_str(&format!("/srv/node{rest}"));
    }
    clean
}

/// Verifies one document, and compares it with the recorded one.
#[track_caller]
pub(crate) fn verify(name: &str, ran: &Ran) -> Value {
    let document: Value = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{name}: {error}\n{}", ran.said()));
    assert_eq!(document["apiVersion"], "nodepki.io/v1alpha1");
    assert_eq!(document["exitCode"], ran.code.unwrap(), "{name}");
    assert_valid(&strict(), &document, name);
    let file = recorded(name);
    if !file.exists() {
        assert!(
            std::env::var_os("NODEPKI_BLESS").is_some(),
            "{name} is not recorded; run: NODEPKI_BLESS=1 cargo test --test it documents"
        );
        fs::create_dir_all(RECORDED).unwrap();
        fs::write(&file, without_scratch(&format!("{document:#}\n"))).unwrap();
    }
    let former: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(former["kind"], document["kind"], "{name}");
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    fields(&former, "", &mut before);
    fields(&document, "", &mut after);
    for (path, kind) in before {
        assert_eq!(
            after.get(&path),
            Some(&kind),
            "{name}: {path} of the recorded document"
        );
    }
    document
}

fn json(node: &Node, arguments: &[&str]) -> Ran {
    let mut command = node.configured(arguments);
    Ran::of(command.args(["-o", "json"]))
}

fn status(node: &Node) -> Ran {
    let mut command = node.command(["status", "-o", "json", "--config"]);
    Ran::of(command.arg(node.outside("config.yaml")))
}

fn phase_of<'a>(status: &'a Value, name: &str) -> &'a str {
    let rows = status["certificates"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name).unwrap();
    row["phase"].as_str().unwrap()
}

const NO_WAIT: [&str; 4] = ["--wait", "0s", "--clock-wait", "0s"];

#[test]
fn documents_of_a_node_from_plan_to_renewal() {
    let node = Node::new();
    let plan = verify("plan", &json(&node, &["plan"]));
    let failed = node.run(&["plan", "--config", "/absent.yaml", "-o", "json"]);
    let failure = verify("failure", &failed);
    assert!(
        failed
            .stderr
            .contains(failure["messages"][0].as_str().unwrap())
    );
    let mut command = node.command(["plan", "--config", "/absent.yaml", "--log", "json"]);
    for line in Ran::of(&mut command).stderr.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&event["level"], &event["fields"]["exit"]),
            (&json!("ERROR"), &json!(78))
        );
    }
    assert_eq!(plan["counts"]["issue"], 12);
    assert!(
        plan["next"]
            .as_str()
            .unwrap()
            .starts_with("nodepki bootstrap ")
    );
    verify("preflight", &json(&node, &["preflight"]));
    node.signer_does("all", "pending");
    let waiting = verify(
        "pending",
        &json(&node, &[&["bootstrap"], &NO_WAIT[..]].concat()),
    );
    assert_eq!(waiting["counts"]["pending"], 12);
    assert_eq!(waiting["cause"], "an officer must approve");
    let pending = verify("status-pending", &status(&node));
    assert_eq!(phase_of(&pending, "apiserver"), "waiting-for-signer");
    node.signer_behaves();
    let done = verify(
        "bootstrap",
        &json(&node, &[&["bootstrap"], &NO_WAIT[..]].concat()),
    );
    let manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml";
    let installed = verify("status", &status(&node));
    assert_eq!(phase_of(&installed, "apiserver"), "installed");
    node.write(manifest, "kind: Pod\n");
    let running: Value = serde_json::from_str(&status(&node).done().stdout).unwrap();
    assert_eq!(phase_of(&running, "apiserver"), "in-use");
    node.remove(manifest);
    let status = installed;
    // The same facts have the same names and types.
    let row = |document: &Value, list: &str| {
        let rows = document[list].as_array().unwrap().iter();
        let mut rows = rows.filter(|row| row["name"] == "apiserver");
        rows.next().unwrap().clone()
    };
    let (planned, issued) = (row(&plan, "rows"), row(&done, "rows"));
    let found = &row(&status, "certificates")["certificate"];
    for field in ["subject", "usages", "key"] {
        assert_eq!(planned[field], issued[field], "{field}");
        assert_eq!(planned[field], found[field], "{field}");
    }
    assert_eq!(issued["notAfter"], found["notAfter"]);
    assert!(planned["sans"].is_array() && found["sans"].is_array());
    verify("needs-renewal", &json(&node, &["needs-renewal"]));
    verify("dry-run", &json(&node, &["renew", "--all", "--dry-run"]));
    let renewed = json(
        &node,
        &[&["renew", "--all", "--force"], &NO_WAIT[..]].concat(),
    );
    verify("renewal", &renewed);
    verify(
        "audit-verify",
        &node.run(&["audit", "verify", "-o", "json"]),
    );
    verify("audit-show", &node.run(&["audit", "show", "-o", "json"]));
    verify("doctor", &json(&node, &["doctor"]));
    verify("policy", &json(&node, &["policy", "check"]));
    verify("doctor-checks", &json(&node, &["doctor", "--list"]));
    node.signer_does("all", "denied");
    let denied = json(
        &node,
        &[&["renew", "--all", "--force"], &NO_WAIT[..]].concat(),
    );
    let denied = verify("renewal-denied", &denied);
    assert_eq!(denied["counts"]["denied"], 12);
}

#[test]
fn documents_of_offline_signing_and_of_a_change_of_ca() {
    let node = Node::new();
    let bundle = node.outside("bundle");
    let bundle = bundle.to_str().unwrap();
    verify("csr-export", &json(&node, &["csr", "export", bundle]));
    node.sign_bundle(Path::new(bundle));
    verify("csr-import", &json(&node, &["csr", "import", bundle]));
    verify("authority-status", &json(&node, &["authority", "status"]));
    let certificate = node.outside("new.crt");
    let other = Node::new();
    fs::copy(other.ca().join("front-proxy-ca.crt"), &certificate).unwrap();
    let stage = [
        "authority",
        "stage",
        "front-proxy-ca",
        "--certificate",
        certificate.to_str().unwrap(),
    ];
    verify("authority-stage", &json(&node, &stage));
    verify("authority-staged", &json(&node, &["authority", "status"]));
    let local = ["-o", "json", "migrate", "to-external"];
    let pem = fs::read(node.ca().join("ca.key")).unwrap();
    node.write_secret("/etc/kubernetes/pki/ca.key", pem);
    verify("migration", &Ran::of(&mut node.configured(local)));
    verify("crl", &json(&node, &["crl", "--wait", "0s"]));
}

#[test]
fn documents_of_init() {
    let node = Node::new();
    let init = |more: &[&str]| {
        let mut command = node.command(["init", "vault", "-o", "json"]);
        Ran::of(command.args(more))
    };
    verify("init-values", &init(&["--list"]));
    let settings = node.outside("made.yaml");
    verify(
        "init",
        &init(&["--no-input", "--to", settings.to_str().unwrap()]),
    );
}

#[test]
fn schema_describes_recorded_documents_of_every_kind() {
    let mut seen: Vec<String> = OF_CLUSTERS.map(str::to_owned).to_vec();
    for entry in fs::read_dir(RECORDED).unwrap() {
        let path = entry.unwrap().path();
        let document: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_valid(&schema(), &document, &path.display().to_string());
        seen.push(document["kind"].as_str().unwrap().to_owned());
    }
    seen.sort();
    seen.dedup();
    let mut kinds = kinds();
    kinds.sort();
    assert_eq!(seen, kinds);
}

#[test]
fn rejects_document_with_wrong_type_or_unknown_field() {
    let text = fs::read_to_string(recorded("plan")).unwrap();
    let plan: Value = serde_json::from_str(&text).unwrap();
    let is_valid = |schema: &Value, document: &Value| {
        std::panic::catch_unwind(|| assert_valid(schema, document, "")).is_ok()
    };
    assert!(is_valid(&schema(), &plan));
    for (pointer, value) in [
        ("/rows/3/sans", json!("DNS:a")),
        ("/exitCode", json!("0")),
        ("/at", json!("yesterday")),
        ("/rows/0/action", json!("guess")),
    ] {
        let mut wrong = plan.clone();
        *wrong.pointer_mut(pointer).unwrap() = value;
        assert!(!is_valid(&schema(), &wrong), "{pointer}");
    }
    let mut more = plan;
    more["rows"][0]["unknown"] = json!(1);
    assert!(is_valid(&schema(), &more) && !is_valid(&strict(), &more));
}
