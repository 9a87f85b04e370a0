//! The user data contains no private key and no long-lived credential.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{EXAMPLES, example, signers};

/// Returns the kinds of credential that the text contains.
pub(super) fn credentials(text: &str) -> Vec<&'static str> {
    let mut found: Vec<_> = text.lines().filter_map(credential).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn credential(line: &str) -> Option<&'static str> {
    if line.contains("PRIVATE KEY-----") {
        return Some("private key");
    }
    let has_value = |key: &str| {
        let value = line
            .trim_start()
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix(':'));
        value.is_some_and(|value| !value.trim().is_empty())
    };
    if [
        "client-key-data",
        "password",
        "secret",
        "tokenID",
        "keyPassphrase",
    ]
    .into_iter()
    .any(has_value)
    {
        return Some("other secret");
    }
    let words = line.split(|letter: char| letter.is_whitespace() || "\"',[]{}".contains(letter));
    words.filter(|word| !word.is_empty()).find_map(|word| {
        let is = |part: &str, letters: usize| {
            part.len() == letters
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let token = word
            .split_once('.')
            .is_some_and(|(id, secret)| is(id, 6) && is(secret, 16));
        let inner = BASE64.decode(word).unwrap_or_default();
        let hidden = String::from_utf8_lossy(&inner);
        match word {
            _ if token => Some("bootstrap token"),
            _ if word.starts_with("hvs.") || word.starts_with("hvb.") => Some("token of Vault"),
            _ if word.starts_with("eyJ") => Some("JSON Web Token"),
            _ if is(word, 64) && !line.to_lowercase().contains("sha256") => {
                Some("key of kubeadm-certs")
            }
            _ if hidden.contains("PRIVATE KEY") => Some("private key"),
            _ => None,
        }
    })
}

/// Returns the names of all files below `cloud-init/`.
fn every_file() -> Vec<String> {
    let mut names: Vec<String> = signers()
        .iter()
        .map(|name| format!("signers/{name}.yaml"))
        .collect();
    for folder in ["", "ignition/"] {
        for entry in fs::read_dir(format!("{EXAMPLES}/{folder}")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.file_name().unwrap().to_str().unwrap();
                names.push(format!("{folder}{name}"));
            }
        }
    }
    names.sort();
    names
}

#[test]
fn contains_no_private_key_and_no_long_lived_credential() {
    let found: Vec<(String, Vec<&str>)> = every_file()
        .into_iter()
        .map(|name| (name.clone(), credentials(&example(&name))))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    let found: Vec<(&str, &[&str])> = found
        .iter()
        .map(|(name, found)| (name.as_str(), &found[..]))
        .collect();
    // A new credential needs its lifetime in README.md, and an entry here.
    assert_eq!(
        found,
        [
            (
                "ignition/join.bu",
                &["bootstrap token", "key of kubeadm-certs"][..]
            ),
            ("signers/certManager.yaml", &["bootstrap token"]),
            ("signers/kubernetes.yaml", &["bootstrap token"]),
            ("signers/stepCA.yaml", &["JSON Web Token"]),
            ("signers/vault.yaml", &["token of Vault"]),
            (
                "user-data-join.yaml",
                &["bootstrap token", "key of kubeadm-certs"]
            ),
        ]
    );
    assert!(example("signers/vault.yaml").contains("wrapped: true"));
}

#[test]
fn detects_credentials_in_text() {
    let pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n";
    for (text, what) in [
        (pem, "private key"),
        (&format!("content: {}", BASE64.encode(pem)), "private key"),
        ("    client-key-data: LS0t", "other secret"),
        ("  password: hunter2", "other secret"),
        ("token: abcdef.0123456789abcdef", "bootstrap token"),
        ("hvs.CAESIJ", "token of Vault"),
        ("apiserver eyJhbGciOiJFUzI1NiJ9.e30.x", "JSON Web Token"),
        (&"0f".repeat(32), "key of kubeadm-certs"),
    ] {
        assert_eq!(credentials(text), [what], "{text}");
    }
    for text in [
        format!("trust: {{sha256: [\"{}\"]}}", "0f".repeat(32)),
        "passwordFile: \"credential:est-password\"".to_owned(),
        "password:".to_owned(),
        "grep -qs 'PRIVATE KEY' ca.key".to_owned(),
    ] {
        assert_eq!(credentials(&text), [""; 0], "{text}");
    }
}
