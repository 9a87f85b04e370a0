//! The commands that texts suggest, with the options that name the node of this run.
//!
//! Texts name a command without these options; each output adds them here.

use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

use crate::commands::Cli;
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

/// The options of a command line that describe the node: the argument's identifier, and the option. The first two are
/// those of every command.
const OPTIONS: [(&str, &str); 5] = [
    ("root", "--root"),
    ("config", "--config"),
    ("kubeadm_config", "--kubeadm-config"),
    ("signer", "--signer"),
    ("node_name", "--node-name"),
];
const OF_EVERY_COMMAND: usize = 2;

/// An option of this run.
struct NodeOption {
    id: &'static str,
    name: &'static str,
    value: String,
}

impl NodeOption {
    fn is_of_every_command(&self) -> bool {
        let mut options = OPTIONS.iter().take(OF_EVERY_COMMAND);
        options.any(|(id, _)| *id == self.id)
    }

    /// Returns whether a command needs the option. Those of `csr` contact no signer.
    fn is_of(&self, command: &clap::Command) -> bool {
        let is_offline = ["export", "import"].contains(&command.get_name());
        let has_it = command.get_arguments().any(|it| it.get_id() == self.id);
        has_it && !(is_offline && self.id == "signer")
    }
}

static NODE_OPTIONS: OnceLock<Vec<NodeOption>> = OnceLock::new();

/// Sets the options of the command line. The first call counts.
pub(in super::super) fn set_node_options(matches: &ArgMatches) {
    let mut leaf = matches;
    while let Some((_, next)) = leaf.subcommand() {
        leaf = next;
    }
    let _ = NODE_OPTIONS.set(
        OPTIONS
            .into_iter()
            .flat_map(|(id, name)| {
                let is_given = matches!(leaf.try_contains_id(id), Ok(true))
                    && leaf.value_source(id) == Some(ValueSource::CommandLine);
                let values = leaf.try_get_raw(id).ok().flatten().filter(|_| is_given);
                let values = values.into_iter().flatten().filter(|value| *value != "/");
                values.map(move |value| NodeOption {
                    id,
                    name,
                    value: quoted(&value.to_string_lossy()),
                })
            })
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
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:".contains(c);
    match NODE_OPTIONS.get() {
        // A value with quotes would have to be escaped.
        Some(options) if options.iter().all(|one| one.value.chars().all(is_plain)) => {
            with_options(&text, options)
        }
        _ => text,
    }
}

fn with_options(text: &str, options: &[NodeOption]) -> String {
    const PROGRAM: &str = "nodepki";
    let program = Cli::command();
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
        let (words, _) = clause.split_once('`').unwrap_or((clause, ""));
        let is_alone = words.len() < clause.len() && !words.contains(['|', '&']);
        let is_quoted = is_alone && before.ends_with(&format!("`{PROGRAM}"));
        let (end, leaf) = subcommand(&program, command);
        let mut sources = String::new();
        let end = if is_quoted { words.len() } else { end };
        for option in options {
            if words.contains(&format!("{} ", option.name)) {
                continue;
            }
            let text = format!(" {} {}", option.name, option.value);
            if option.is_of_every_command() {
                shown.push_str(&text);
            } else if option.is_of(leaf) {
                sources.push_str(&text);
            }
        }
        shown.push_str(&command[..end]);
        shown.push_str(&sources);
        rest = &command[end..];
    }
    shown.push_str(rest);
    shown
}

/// Returns the command that the first words name, and where they end.
fn subcommand<'a>(program: &'a clap::Command, words: &str) -> (usize, &'a clap::Command) {
    let (mut end, mut found) = (0, program);
    loop {
        let rest = &words[end..];
        let start = rest.len() - rest.trim_start().len();
        let name = rest[start..].split(|c: char| !c.is_ascii_lowercase() && c != '-');
        let name = name.into_iter().next().unwrap_or_default();
        match found.find_subcommand(name) {
            Some(next) => (end, found) = (end + start + name.len(), next),
            None => return (end, found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_options_to_commands_for_this_node() {
        let values = ["/mnt", "'/a b'", "k.yaml", "local:ca", "cp1"];
        let options: Vec<NodeOption> = OPTIONS
            .into_iter()
            .zip(values)
            .map(|((id, name), value)| NodeOption {
                id,
                name,
                value: value.to_owned(),
            })
            .collect();
        let both = "--root /mnt --config '/a b'";
        let sources = "--kubeadm-config k.yaml --signer local:ca --node-name cp1";
        for (text, expected) in [
            (
                "run `nodepki renew --all`",
                format!("run `nodepki {both} renew --all {sources}`"),
            ),
            (
                "next: nodepki\n    plan",
                format!("next: nodepki {both}\n    plan {sources}"),
            ),
            (
                "next: nodepki plan --root /mnt",
                format!("next: nodepki --config '/a b' plan {sources} --root /mnt"),
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
                format!("nodepki {both} plan {sources}; nodepki {both} status"),
            ),
        ] {
            let expected = if expected.is_empty() { text } else { &expected };
            assert_eq!(with_options(text, &options), expected);
        }
    }

    #[test]
    fn names_commands_of_program() {
        let program = Cli::command();
        for name in COMMANDS {
            assert!(program.find_subcommand(name).is_some(), "{name}");
        }
    }
}
