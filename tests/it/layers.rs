//! Imports go downward only: the `use` lines of the library against the order of its layers.

use std::fs;
use std::path::Path;

/// From top to bottom. A module may use what stands further down, and those that share its line.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["demo", "capi", "migrate", "doctor", "daemon", "authority"],
    &["rotation"],
    &["load"],
    &[
        "join", "certs", "agent", "reload", "status", "offline", "metrics",
    ],
    &["settings"],
    &["signer"],
    &["discovery"],
    &["kubeapi"],
    &["http"],
    &["store"],
    &["confine"],
    &["harden", "interrupt"],
    &["failpoint", "machine"],
    &["assess"],
    &["plan"],
    &["policy"],
    &["schedule", "schema"],
    &["components", "clusterinfo"],
    &["kubeadm", "sharedcerts"],
    &["kubeconfig", "manifest", "jwks"],
    &["x509", "yaml"],
    &["names"],
];

/// The pure modules: no file system, network, environment or clock.
const PURE: &[&str] = &[
    "assess",
    "plan",
    "policy",
    "schedule",
    "schema",
    "components",
    "clusterinfo",
    "kubeadm",
    "sharedcerts",
    "kubeconfig",
    "manifest",
    "jwks",
    "x509",
    "yaml",
    "names",
];

fn depth(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
        .unwrap_or_else(|| {
            panic!(
                "src/{module}.rs stands in no layer: add it to LAYERS and to the page in src/lib.rs"
            )
        })
}

/// The modules of the library with their source text, files below `foo/` under `foo`.
fn sources() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    collect(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")),
        None,
        &mut found,
    );
    assert!(found.len() > 20, "the sources were not found");
    found
}

fn collect(dir: &Path, module: Option<&str>, found: &mut Vec<(String, String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = module.unwrap_or(&stem);
        if path.is_dir() {
            collect(&path, Some(module), found);
        } else if !matches!(module, "main" | "lib") && stem != "tests" {
            found.push((
                module.to_owned(),
                path.display().to_string(),
                fs::read_to_string(&path).unwrap(),
            ));
        }
    }
}

/// Code without comments and without the tests at its end.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn imports_go_downward() {
    for (module, path, source) in sources() {
        let code = code(&source);
        for used in code.split("crate::").skip(1) {
            let name: String = used
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            if name.is_empty() || name == module {
                continue;
            }
            assert!(
                depth(&module) <= depth(&name),
                "{path} uses crate::{name}, which stands above it"
            );
        }
    }
}

#[test]
fn pure_modules_do_no_io() {
    let forbidden = [
        "std::fs",
        "std::net::Tcp",
        "std::net::Udp",
        "std::env",
        "SystemTime::now",
        "now_utc",
        "tokio::",
        "nix::",
        "rustix::",
    ];
    for (module, path, source) in sources() {
        if PURE.contains(&module.as_str()) {
            for word in forbidden {
                assert!(
                    !code(&source).contains(word),
                    "{path} is pure and must not use {word}"
                );
            }
        }
    }
}
