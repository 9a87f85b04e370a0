//! Faults in a signer's configuration: each names the field and the fix, and none repeats a secret.
//!
//! The cases of a kind are in `tests/golden/signers/KIND/faults.txt`: an unindented line holds the keys of the signer
//! (`-` for none, `ZEROS` for an empty fingerprint), and each indented line after it a part of the fault. The word
//! `hunter2` stands for a secret that was written where its file belongs.

use std::fs;
use std::path::{Path, PathBuf};

use nodepki::config::Settings;
use nodepki::signer::SignerKind;
use serde_json::json;

use crate::signing::{HEAD, contains, settings};

/// Kinds whose keys are tested with the settings themselves.
const WITHOUT_CASES: [SignerKind; 4] = [
    SignerKind::Embedded,
    SignerKind::Local,
    SignerKind::Exec,
    SignerKind::Directory,
];

fn golden(kind: SignerKind) -> PathBuf {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/signers");
    all.join(kind.as_str())
}

/// Returns the keys of each case with the parts of its fault.
fn cases(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut cases: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(part) => cases.last_mut().unwrap().1.push(part),
            None => cases.push((line, Vec::new())),
        }
    }
    cases
}

#[test]
fn names_field_and_fix_of_each_fault() {
    for kind in SignerKind::ALL {
        let Ok(text) = fs::read_to_string(golden(kind).join("faults.txt")) else {
            assert!(WITHOUT_CASES.contains(&kind), "{kind} has no faults.txt");
            continue;
        };
        for (keys, parts) in cases(&text) {
            let keys = keys.trim_start_matches('-');
            let keys = keys.replace("ZEROS", &"00".repeat(32));
            let text = settings(&format!("{kind}: {{{keys}}}"));
            let faults = match Settings::from_fragments(&[("faults.yaml", text)]) {
                Ok((_, faults)) | Err(faults) => faults,
            };
            assert!(faults.has_errors(), "{kind}: {keys}");
            let said = faults.to_string();
            contains(&said, &[&format!("signers.s.{kind}")]);
            contains(&said, &parts);
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}

/// `exec` hides the values of `env` and `params`.
#[test]
fn reads_shown_keys_of_each_kind_back_unchanged() {
    for kind in SignerKind::ALL
        .into_iter()
        .filter(|kind| *kind != SignerKind::Exec)
    {
        for file in fs::read_dir(golden(kind)).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|one| one != "yaml") {
                continue;
            }
            // A file with several signers assigns none, which is a warning.
            let read = |text: &str| {
                let fragments = [("keys.yaml", text)];
                let read = Settings::from_fragments(&fragments);
                read.unwrap_or_else(|faults| panic!("{faults}")).0.signers
            };
            for config in read(&fs::read_to_string(&path).unwrap()).values() {
                let shown = json!({"signers": {"s": config.redacted()}});
                let shown = nodepki::yaml::to_string(&shown).unwrap();
                let again = read(&format!("{HEAD}{shown}"));
                assert_eq!(again.values().collect::<Vec<_>>(), [config], "{path:?}");
            }
        }
    }
}
