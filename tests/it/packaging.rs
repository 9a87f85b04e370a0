//! The default configuration that packages install, `packaging/config.yaml`, and the compiler's options of `packaging/build`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use nodepki::config::Settings;
use nodepki::yaml;
use serde_json::Value;

use crate::node::Ran;

const CONFIG: &str = include_str!("../../packaging/config.yaml");

/// Returns the file with every key uncommented: prose has one space after the `#`, a key none or at least two.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(' ') && !rest.starts_with("  ") => String::new(),
        Some(rest) if rest.starts_with("   nodepki ") => String::new(),
        Some(rest) => rest.to_owned(),
        None => line.to_owned(),
    };
    CONFIG.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn sets_nothing() {
    let bare = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";
    let read = |text: &str| Settings::from_fragments(&[("config.yaml", text.to_owned())]).unwrap();
    assert_eq!(read(CONFIG), read(bare));
}

#[test]
fn every_key_may_be_uncommented() {
    let text = uncommented();
    let (settings, warnings) = Settings::from_fragments(&[("config.yaml", text)])
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    // The values that are documented as defaults are the defaults.
    let (bare, _) = Settings::from_fragments(&[(
        "config.yaml",
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n".to_owned(),
    )])
    .unwrap();
    assert_eq!(settings.kubeadm.files, bare.kubeadm.files);
    assert_eq!(settings.kubeadm.from_cluster, bare.kubeadm.from_cluster);
    assert_eq!(settings.kubelet, bare.kubelet);
    assert_eq!(settings.kubelet_client_subject, bare.kubelet_client_subject);
    assert_eq!(settings.wait, bare.wait);
    assert_eq!(settings.clock_max_wait, bare.clock_max_wait);
    assert_eq!(settings.join.write_ca_keys, bare.join.write_ca_keys);
    assert_eq!(settings.rotation.renew_at, bare.rotation.renew_at);
    assert_eq!(settings.rotation.jitter, bare.rotation.jitter);
    assert_eq!(settings.rotation.min_remaining, bare.rotation.min_remaining);
    assert_eq!(settings.rotation.rekey, bare.rotation.rekey);
    assert_eq!(settings.reload.lease, bare.reload.lease);
    assert_eq!(settings.reload.timeout, bare.reload.timeout);
    assert_eq!(settings.reload.static_pods, bare.reload.static_pods);
    assert_eq!(settings.reload.coordinate, bare.reload.coordinate);
}

#[test]
fn contains_every_key_of_schema() {
    let schema = Settings::schema();
    let mut wanted = BTreeSet::new();
    collect(&schema, &schema, "", &mut wanted);
    assert!(wanted.len() > 50, "{wanted:?}");
    let text = uncommented();
    let missing: Vec<_> = wanted.iter().filter(|key| !names(&text, key)).collect();
    assert!(
        missing.is_empty(),
        "not in packaging/config.yaml: {missing:?}"
    );
}

/// Collects the names of all keys except those of signers, which have an example for each kind.
fn collect(schema: &Value, at: &Value, path: &str, keys: &mut BTreeSet<String>) {
    if let Some(name) = at["$ref"]
        .as_str()
        .and_then(|to| to.strip_prefix("#/$defs/"))
    {
        // The policy has three forms; the file shows the one without older names.
        if name != "policy" {
            collect(schema, &schema["$defs"][name], path, keys);
        }
    }
    if at["items"].is_object() {
        collect(schema, &at["items"], path, keys);
    }
    for (name, below) in at["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if path == ".signers" {
            continue;
        }
        keys.insert(path.clone());
        collect(schema, below, &path, keys);
    }
}

/// Returns whether a YAML text has a value at `.a.b`, in any item of a list.
fn names(text: &str, path: &str) -> bool {
    let documents = yaml::parse("config.yaml", text).unwrap();
    let value = yaml::to_json(&documents[0]);
    let mut found = vec![&value];
    for name in path.split('.').skip(1) {
        found = found
            .into_iter()
            .flat_map(|value| match value {
                Value::Array(items) => items.iter().filter_map(|item| item.get(name)).collect(),
                value => value.get(name).into_iter().collect::<Vec<_>>(),
            })
            .collect();
    }
    !found.is_empty()
}

/// The crate cc splits the variable into words.
#[test]
fn build_passes_directories_with_spaces_to_the_compiler() {
    let dir = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
    let cargo = dir.path().join("cargo");
    let words = "#!/bin/sh\n[ -n \"$CC_SHELL_ESCAPED_FLAGS\" ]\neval \"set -- $CFLAGS_t\"\nprintf '%s\\n' \"$@\" >&2\n";
    fs::write(&cargo, words).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let script = "set -eu; say() { :; }; rustc() { :; }; eval \"$(sed -n '/^compile()/,/^}/p' packaging/build)\"
        target=t tool_prefix='' target_dir=$PLACE/target PATH=$PLACE:$PATH; compile";
    let ran = Ran::of(
        Command::new("bash")
            .args(["-c", script])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_HOME", dir.path().join("home"))
            .env("PLACE", dir.path()),
    );
    let place = dir.path().display();
    let expected = format!(
        "-ffile-prefix-map={place}/target=/target\n-ffile-prefix-map={place}/home=/cargo\n"
    );
    assert_eq!(ran.done().stderr, expected);
}
