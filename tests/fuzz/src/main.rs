//! One program for all fuzz targets: the variable NODEPKI_FUZZ_TARGET selects one, or all targets of a room, which then read
//! the same input one after the other. The arguments are libFuzzer's. With `list` it prints each target and its room.

#![no_main]

mod differential;
mod oracle;

use std::sync::OnceLock;

use libfuzzer_sys::{fuzz_target, Corpus};

type Target = (&'static str, fn(&[u8]));

/// Returns the targets of every room, and those that compare nodepki with Go.
fn rooms() -> [(&'static str, Vec<Target>); 12] {
    [
        ("x509", nodepki::x509::fuzz::TARGETS.to_vec()),
        ("yaml", nodepki::yaml::fuzz::TARGETS.to_vec()),
        ("kube", nodepki::kube::fuzz::TARGETS.to_vec()),
        ("kubelets", nodepki::kubelets::fuzz::TARGETS.to_vec()),
        ("spec", nodepki::spec::fuzz::TARGETS.to_vec()),
        ("store", nodepki::store::fuzz::TARGETS.to_vec()),
        ("http", nodepki::http::fuzz::TARGETS.to_vec()),
        ("cluster", nodepki::cluster::fuzz::TARGETS.to_vec()),
        ("signer", nodepki::signer::fuzz::targets()),
        ("config", nodepki::config::fuzz::TARGETS.to_vec()),
        ("agent", nodepki::agent::fuzz::TARGETS.to_vec()),
        ("go", differential::TARGETS.to_vec()),
    ]
}

fn selected() -> &'static [Target] {
    static SELECTED: OnceLock<Vec<Target>> = OnceLock::new();
    SELECTED.get_or_init(|| {
        let wanted = std::env::var("NODEPKI_FUZZ_TARGET").unwrap_or_default();
        let mut found = Vec::new();
        for (room, targets) in rooms() {
            for (name, read) in targets {
                if wanted == "list" {
                    println!("{name} {room}");
                } else if wanted == room || wanted == name {
                    found.push((name, read));
                }
            }
        }
        if wanted == "list" {
            std::process::exit(0);
        }
        if found.is_empty() {
            eprintln!("NODEPKI_FUZZ_TARGET: {wanted:?} is not a target (see NODEPKI_FUZZ_TARGET=list)");
            std::process::exit(64);
        }
        found
    })
}

fuzz_target!(
    init: { selected(); },
    |bytes: &[u8]| -> Corpus {
        for (_, read) in selected() {
            read(bytes);
        }
        Corpus::Keep
    }
);
