//! The commands that texts suggest, with the options that name the node of this run.
//!
//! Texts name a command without `--root` and `--config`; each output adds them here.

use std::path::Path;
use std::sync::OnceLock;

use crate::commands::options::GlobalOptions;
use crate::signer::quoted;

/// The commands that read or change a node, or its settings.
const COMMANDS: [&str; 17] = [
    "audit",
    "authority",
    "bootstrap",
    "certs",
    "config",
    "crl",
    "csr",
    "doctor",
    "init",
    "kubelets",
    "migrate",
    "needs-renewal",
    "plan",
    "policy",
    "preflight",
    "renew",
    "status",
];

/// Words after a command that is to be run on other nodes too, whose paths are not those of this machine.
const ELSEWHERE: [&str; 6] = [
    " there",
    " on that",
    " on every",
    " on each",
    " on the",
    " on a",
];

/// An option and its value.
type NodeOption = (&'static str, String);

static NODE_OPTIONS: OnceLock<Vec<NodeOption>> = OnceLock::new();

/// Sets the options of the command line. The first call counts.
pub(in super::super) fn set_node_options(global: &GlobalOptions) {
    let root = (global.root != Path::new("/")).then_some(global.root.as_path());
    let config = global
        .config
        .as_ref()
        .map(|file| file.display().to_string());
    let options = [
        ("--root", root.map(|root| root.display().to_string())),
        ("--config", config),
    ];
    let options = options.into_iter();
    let _ = NODE_OPTIONS.set(
        options
            .filter_map(|(name, value)| Some((name, quoted(&value?))))
            .collect(),
    );
}

/// Adds the options of this run to the nodepki commands in a text for people.
pub(super) fn addressed(text: String) -> String {
    match NODE_OPTIONS.get() {
        Some(options) if !options.is_empty() => with_options(&text, options),
        _ => text,
    }
}

/// As [`addressed`], for a JSON or YAML document.
pub(super) fn addressed_document(text: String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    match NODE_OPTIONS.get() {
        // A value with quotes would have to be escaped.
        Some(options) if options.iter().all(|(_, value)| value.chars().all(is_plain)) => {
            with_options(&text, options)
        }
        _ => text,
    }
}

fn with_options(text: &str, options: &[NodeOption]) -> String {
    const PROGRAM: &str = "nodepki";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PROGRAM) {
        let (before, command) = rest.split_at(at + PROGRAM.len());
        shown.push_str(before);
        rest = command;
        let is_path = before.strip_suffix(PROGRAM).is_some_and(|before| {
            before.ends_with(|c: char| c.is_alphanumeric() || "/-_.".contains(c))
        });
        let name = command.trim_start();
        let name = name
            .split(|c: char| !c.is_ascii_lowercase() && c != '-')
            .next();
        if is_path
            || !command.starts_with(char::is_whitespace)
            || !name.is_some_and(|name| COMMANDS.contains(&name))
        {
            continue;
        }
        let clause = command
            .split([';', ',', ')', '"', '\n'])
            .next()
            .unwrap_or_default();
        if ELSEWHERE.iter().any(|words| clause.contains(words)) {
            continue;
        }
        let words = clause.split('`').next().unwrap_or_default();
        for (name, value) in options {
            if !words.contains(&format!("{name} ")) {
                shown.push_str(&format!(" {name} {value}"));
            }
        }
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_options_to_commands_for_this_node() {
        let options = [
            ("--root", "/mnt".to_owned()),
            ("--config", "'/a b'".to_owned()),
        ];
        let both = "--root /mnt --config '/a b'";
        for (text, expected) in [
            (
                "run `nodepki renew --all`",
                format!("run `nodepki {both} renew --all`"),
            ),
            (
                "next: nodepki\n    plan",
                format!("next: nodepki {both}\n    plan"),
            ),
            (
                "next: nodepki plan --root /mnt",
                "next: nodepki --config '/a b' plan --root /mnt".to_owned(),
            ),
            (
                "run nodepki authority stage ca on every node",
                String::new(),
            ),
            ("run `nodepki renew` on the node, or", String::new()),
            ("/usr/bin/nodepki renew", String::new()),
            (
                "nodepki renews them; nodepki.service; nodepki",
                String::new(),
            ),
            (
                "nodepki plan; nodepki status",
                format!("nodepki {both} plan; nodepki {both} status"),
            ),
        ] {
            let expected = if expected.is_empty() { text } else { &expected };
            assert_eq!(with_options(text, &options), expected);
        }
    }

    #[test]
    fn names_commands_of_program() {
        use clap::CommandFactory;
        let program = crate::commands::Cli::command();
        for name in COMMANDS {
            assert!(program.find_subcommand(name).is_some(), "{name}");
        }
    }
}
