//! The provenance of a release, verified as its users do: with cosign.

use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::machine::openssl;
use crate::packages::{directory, file, said};
use crate::servers::bin;

/// What a DSSE envelope with an in-toto statement has as its type.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

#[test]
fn provenance_names_every_file_and_its_sources() {
    let statement: Value = serde_json::from_slice(&fs::read(provenance()).unwrap()).unwrap();
    let subjects: Vec<String> = statement["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let (digest, name) = (&one["digest"]["sha256"], &one["name"]);
            format!("{}  {}", digest.as_str().unwrap(), name.as_str().unwrap())
        })
        .collect();
    let sums = fs::read_to_string(directory().join("SHA256SUMS")).unwrap();
    let mut expected: Vec<_> = sums.lines().collect();
    expected.sort_by_key(|line| line.split_once("  ").unwrap().1);
    assert_eq!(subjects, expected);

    let definition = &statement["predicate"]["buildDefinition"];
    let version = said(Command::new("rustc").arg("--version"));
    assert_eq!(
        definition["internalParameters"]["tools"]["rustc"],
        version.trim()
    );
    let tools = definition["internalParameters"]["tools"]
        .as_object()
        .unwrap();
    for name in [
        "rustc",
        "gcc",
        "objcopy",
        "tar",
        "gzip",
        "python3",
        "glibc",
        "dpkg-deb",
        "rpmbuild",
        "mksquashfs",
        "xz",
    ] {
        let version = tools.get(name).and_then(Value::as_str).unwrap_or_default();
        let has_number = version.contains(|c: char| c.is_ascii_digit());
        assert!(has_number, "{name}: {version:?}");
    }
    assert_eq!(
        definition["externalParameters"]["target"],
        "x86_64-unknown-linux-gnu"
    );
    let git = |arguments: &[&str]| {
        let ran = Command::new("git").args(arguments).output().unwrap();
        ran.status.success().then_some(ran.stdout)
    };
    let commit = git(&["rev-parse", "HEAD"]).map(|hash| String::from_utf8(hash).unwrap());
    // Changed sources are not those of the commit.
    let is_unchanged = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    let expected = commit.filter(|_| is_unchanged);
    let mut sources = definition["resolvedDependencies"]
        .as_array()
        .unwrap()
        .iter();
    let named = sources.find_map(|one| one["digest"]["gitCommit"].as_str());
    assert_eq!(named, expected.as_deref().map(str::trim));
}

#[test]
fn provenance_follows_a_file_that_was_signed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("provenance.json");
    let mut statement: Value = serde_json::from_slice(&fs::read(provenance()).unwrap()).unwrap();
    statement["subject"] = json!([{"name": "x.rpm", "digest": {"sha256": "before"}}]);
    fs::write(&path, statement.to_string()).unwrap();
    fs::write(dir.path().join("x.rpm"), "abc").unwrap();
    said(
        Command::new("packaging/provenance")
            .arg("--update")
            .arg(&path),
    );
    // The digest of "abc" in FIPS 180-4.
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    statement["subject"][0]["digest"]["sha256"] = json!(digest);
    let updated: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(updated, statement);
}

#[test]
fn cosign_verifies_signed_provenance() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    openssl(&[
        "genpkey",
        "-algorithm=EC",
        "-pkeyopt=ec_paramgen_curve:P-256",
        "-out",
        &path("key.pem"),
    ]);
    openssl(&[
        "pkey",
        "-in",
        &path("key.pem"),
        "-pubout",
        "-out",
        &path("cosign.pub"),
    ]);
    fs::write(path("bundle.json"), bundle(dir.path()).to_string()).unwrap();
    // Without a transparency log, for which the network would be needed.
    let no_authority =
        json!({"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"});
    fs::write(path("root.json"), no_authority.to_string()).unwrap();

    for suffix in [".deb", ".rpm", ".tar.gz", ".oci.tar", ".raw", ".cdx.json"] {
        let file = file(suffix);
        fs::copy(&file, path("artifact")).unwrap();
        said(&mut cosign(dir.path()));
    }
    fs::write(path("artifact"), "another file").unwrap();
    let refused = cosign(dir.path()).output().unwrap();
    assert!(!refused.status.success());
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("does not match any digest"), "{errors}");
}

fn provenance() -> std::path::PathBuf {
    file(".provenance.json")
}

/// Returns the statement, signed with `key.pem`, in the form that `cosign attest-blob` writes.
fn bundle(dir: &Path) -> Value {
    let statement = fs::read(provenance()).unwrap();
    let mut signed = format!(
        "DSSEv1 {} {PAYLOAD_TYPE} {} ",
        PAYLOAD_TYPE.len(),
        statement.len()
    )
    .into_bytes();
    signed.extend_from_slice(&statement);
    fs::write(dir.join("signed"), signed).unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    openssl(&[
        "dgst",
        "-sha256",
        "-sign",
        &path("key.pem"),
        "-out",
        &path("signature"),
        &path("signed"),
    ]);
    let signature = fs::read(dir.join("signature")).unwrap();
    json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "release"}},
        "dsseEnvelope": {
            "payload": STANDARD.encode(statement),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": STANDARD.encode(signature)}],
        },
    })
}

/// Returns the command that verifies `artifact`.
fn cosign(dir: &Path) -> Command {
    let mut command = Command::new(bin("in-trixie"));
    command
        .arg("--bind")
        .arg(dir)
        .args(["/mnt", "--", "env", "HOME=/tmp", "cosign"])
        .args(["verify-blob-attestation", "--type=slsaprovenance1"])
        .args(["--key=/mnt/cosign.pub", "--bundle=/mnt/bundle.json"])
        .args(["--new-bundle-format", "--trusted-root=/mnt/root.json"])
        .args(["--insecure-ignore-tlog", "/mnt/artifact"]);
    command
}
