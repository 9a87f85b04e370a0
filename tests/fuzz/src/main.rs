//! One program for all fuzz targets: the variable NODEPKI_FUZZ_TARGET selects one, the arguments are libFuzzer's. With the
//! target `list` it prints the names.

#![no_main]

mod differential;
mod oracle;

use std::sync::OnceLock;

use libfuzzer_sys::{fuzz_target, Corpus};

type Target = (&'static str, fn(&[u8]));

fn targets() -> Vec<Target> {
    [
        nodepki::x509::fuzz::TARGETS,
        nodepki::yaml::fuzz::TARGETS,
        nodepki::kube::fuzz::TARGETS,
        nodepki::kubelets::fuzz::TARGETS,
        nodepki::spec::fuzz::TARGETS,
        nodepki::store::fuzz::TARGETS,
        nodepki::http::fuzz::TARGETS,
        nodepki::cluster::fuzz::TARGETS,
        &nodepki::signer::fuzz::targets(),
        nodepki::config::fuzz::TARGETS,
        nodepki::agent::fuzz::TARGETS,
        differential::TARGETS,
    ]
    .concat()
}

fn selected() -> fn(&[u8]) {
    static SELECTED: OnceLock<fn(&[u8])> = OnceLock::new();
    *SELECTED.get_or_init(|| {
        let name = std::env::var("NODEPKI_FUZZ_TARGET").unwrap_or_default();
        if name == "list" {
            for (name, _) in targets() {
                println!("{name}");
            }
            std::process::exit(0);
        }
        match targets().into_iter().find(|(target, _)| *target == name) {
            Some((_, read)) => read,
            None => {
                eprintln!("NODEPKI_FUZZ_TARGET: {name:?} is not a target (see NODEPKI_FUZZ_TARGET=list)");
                std::process::exit(64);
            }
        }
    })
}

fuzz_target!(
    init: { selected(); },
    |bytes: &[u8]| -> Corpus {
        selected()(bytes);
        Corpus::Keep
    }
);
