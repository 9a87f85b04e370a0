//! Help texts, manual pages and shell completions.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::SignerKind;

use crate::node::{NODEPKI, Ran};

/// Commands of daily use, which `nodepki -h` names first.
const DAILY_COMMANDS: [&str; 5] = ["plan", "bootstrap", "status", "renew", "doctor"];
/// Lines and columns of a terminal.
const SCREEN: (usize, usize) = (24, 80);

pub(crate) fn help(words: &[&str]) -> String {
    help_with_width(words, SCREEN.1)
}

fn help_with_width(words: &[&str], columns: usize) -> String {
    let mut command = Command::new(NODEPKI);
    let ran = Ran::of(command.args(words).env("COLUMNS", columns.to_string()));
    ran.done();
    ran.stdout
}

/// Returns all commands with their own arguments, from their `--help`.
fn commands() -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = vec![Vec::new()];
    let mut at = 0;
    while let Some(command) = all.get(at).cloned() {
        at += 1;
        let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
        words.push("--help");
        let text = help(&words);
        let (begin, end) = match command.len() {
            0 => ("\nStart:\n", "\nOptions:\n"),
            _ => ("\nCommands:\n", "\n\n"),
        };
        let Some((_, list)) = text.split_once(begin) else {
            continue;
        };
        let (list, _) = list.split_once(end).unwrap();
        let names = list.lines().filter_map(|line| {
            let name = line.strip_prefix("  ")?.split(' ').next()?;
            (!name.is_empty() && name != "help").then_some(name)
        });
        all.extend(names.map(|name| [command.clone(), vec![name.to_owned()]].concat()));
    }
    all
}

#[test]
fn short_help_fits_on_one_screen() {
    let daily = DAILY_COMMANDS.iter().map(|command| vec![*command, "-h"]);
    for words in std::iter::once(vec!["-h"]).chain(daily) {
        let text = help(&words);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines.len() <= SCREEN.0,
            "{words:?}: {} lines\n{text}",
            lines.len()
        );
        let longest = lines.iter().map(|line| line.chars().count()).max();
        assert!(longest <= Some(SCREEN.1), "{words:?}\n{text}");
    }
}

#[test]
fn help_of_each_command_fits_screen_width() {
    for mut words in commands() {
        words.push("--help".to_owned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = help(&words);
        // clap does not break the line of the usage.
        let mut lines = text.lines().filter(|line| !line.starts_with("Usage: "));
        let wide = lines.find(|line| line.chars().count() > SCREEN.1);
        assert_eq!(wide, None, "{words:?}");
    }
}

#[test]
fn short_help_begins_with_daily_commands_and_names_all() {
    let text = help(&["-h"]);
    let first: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "Daily use:")
        .skip(1)
        .map_while(|line| line.strip_prefix("  ")?.split(' ').next())
        .collect();
    assert_eq!(first, DAILY_COMMANDS);
    let long = help(&["--help"]);
    let words: BTreeSet<&str> = text
        .split(|c: char| c.is_whitespace() || c == ',')
        .collect();
    for command in commands().iter().filter(|command| command.len() == 1) {
        assert!(
            words.contains(command[0].as_str()),
            "{command:?} in\n{text}"
        );
    }
    for option in text
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|word| word.starts_with("--"))
    {
        assert!(long.contains(option), "{option}");
    }
    assert_eq!(help(&["help"]), long);
}

/// Each occasion names its commands, and no command is missing.
#[test]
fn long_help_groups_all_commands_by_occasion() {
    let text = help(&["--help"]);
    let titles = [
        "Start",
        "Every day",
        "When something is wrong",
        "Cluster",
        "Others",
        "Options",
    ];
    let start = text.split_once("\nStart:\n").unwrap().1;
    let names: Vec<&str> = start
        .lines()
        .map_while(|line| line.strip_prefix("  "))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(names, ["init", "preflight", "plan", "bootstrap"]);
    let at = titles.map(|title| text.find(&format!("\n{title}:\n")).unwrap());
    assert!(at.is_sorted(), "{text}");
    for (title, name) in [
        (0, "bootstrap"),
        (1, "renew"),
        (2, "doctor"),
        (3, "certs"),
        (4, "completions"),
        (5, "--root"),
    ] {
        let found = text[at[title]..].find(&format!(" {name} ")).unwrap() + at[title];
        assert!(
            at.get(title + 1).is_none_or(|end| found < *end),
            "{name}:\n{text}"
        );
    }
    let names: Vec<String> = commands()
        .into_iter()
        .filter(|one| one.len() == 1)
        .flatten()
        .collect();
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!((names.len(), unique.len()), (23, 23), "{names:?}");
}

#[test]
fn manual_pages_describe_every_option() {
    let dir = tempfile::tempdir().unwrap();
    Ran::of(Command::new(NODEPKI).arg("man").arg(dir.path())).done();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        assert!(page.contains("Work on the system below DIR"), "{path:?}");
        let options = page.split("\n.TP\n").skip(1);
        for option in options.filter(|option| option.starts_with("\\fB\\-")) {
            let text = option.lines().nth(1).unwrap_or_default();
            assert!(
                !text.is_empty() && !text.starts_with('.'),
                "{path:?}: {option}"
            );
        }
    }
}

/// Returns the commands that have no commands of their own, in words.
pub(crate) fn leaves() -> Vec<Vec<String>> {
    let all = commands();
    let is_leaf = |command: &Vec<String>| {
        !all.iter()
            .any(|other| other.len() > command.len() && other.starts_with(command))
    };
    all.iter()
        .filter(|command| is_leaf(command))
        .cloned()
        .collect()
}

/// Returns the examples in the help of each of the [`leaves`]: the command and its lines.
fn examples() -> Vec<(Vec<String>, Vec<String>)> {
    leaves()
        .iter()
        .map(|command| {
            let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
            words.push("--help");
            // A wide line continues after a backslash.
            let text = help_with_width(&words, 400).replace(" \\\n      ", " ");
            let (_, lines) = text
                .split_once("\nExamples:\n")
                .unwrap_or_else(|| panic!("{command:?} has no examples:\n{text}"));
            let lines = lines.lines().filter_map(|line| line.strip_prefix("  "));
            let lines = lines.filter(|line| line.starts_with("nodepki"));
            (command.clone(), lines.map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn manual_pages_contain_examples() {
    let dir = tempfile::tempdir().unwrap();
    Ran::of(Command::new(NODEPKI).arg("man").arg(dir.path())).done();
    for (command, lines) in examples() {
        let name = format!("nodepki-{}.1", command.join("-"));
        let page = fs::read_to_string(dir.path().join(&name)).unwrap();
        let (_, section) = page.split_once("\n.SH EXAMPLES\n").unwrap();
        assert!(!lines.is_empty(), "{command:?}");
        for line in lines {
            let escaped = line.replace('-', "\\-").replace('\'', "\\(aq");
            assert!(
                section.contains(&format!("\\fB{escaped}\\fR")),
                "{line}:\n{section}"
            );
        }
    }
}

/// Returns what bash offers for the last of these words.
fn completed_by_bash(words: &[&str], dir: &std::path::Path) -> Vec<String> {
    let script = format!(
        "source <(\"$0\" completions bash); COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         COMP_LINE=\"${{COMP_WORDS[*]}}\"; COMP_POINT=${{#COMP_LINE}}; \
         _nodepki nodepki \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ")
    );
    let ran = Ran::of(
        Command::new("bash")
            .args(["-c", &script, NODEPKI])
            .current_dir(dir),
    );
    ran.done();
    let words = ran.stdout.lines().map(str::trim);
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn bash_completes_names_and_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeadm.yaml"), "").unwrap();
    fs::create_dir(dir.path().join("requests")).unwrap();
    let complete = |words: &[&str]| completed_by_bash(words, dir.path());
    assert!(complete(&["nodepki", "boot"]).contains(&"bootstrap".to_owned()));
    for words in [
        &["nodepki", "renew", "--name", ""][..],
        &["nodepki", "renew", ""],
        &["nodepki", "status", ""],
        &["nodepki", "audit", "show", "--certificate", ""],
        &["nodepki", "needs-renewal", "--name", ""],
    ] {
        let offered = complete(words);
        for name in CertName::ALL {
            assert!(
                offered.contains(&name.to_string()),
                "{words:?}: {offered:?}"
            );
        }
    }
    for words in [
        &["nodepki", "authority", "stage", ""][..],
        &["nodepki", "migrate", "to-external", "--authority", ""],
    ] {
        let offered = complete(words);
        for authority in Authority::ALL {
            assert!(
                offered.contains(&authority.to_string()),
                "{words:?}: {offered:?}"
            );
        }
    }
    for words in [
        &["nodepki", "init", ""][..],
        &["nodepki", "config", "signer-setup", ""],
    ] {
        let offered = complete(words);
        let is_init = words[1] == "init";
        for kind in SignerKind::ALL {
            let is_offered = !is_init || kind != SignerKind::Embedded;
            assert_eq!(
                offered.contains(&kind.to_string()),
                is_offered,
                "{words:?}: {offered:?}"
            );
        }
        assert_eq!(offered.contains(&"kubelets".to_owned()), !is_init);
    }
    assert_eq!(
        complete(&["nodepki", "renew", "--name", "etcd-h"]),
        ["etcd-healthcheck-client"]
    );
    let offered = complete(&["nodepki", "bootstrap", "--kubeadm-config", "kube"]);
    assert_eq!(offered, ["kubeadm.yaml"]);
    // `compopt` adds directories, which works in an interactive shell only.
    Ran::of(Command::new(NODEPKI).args(["completions", "bash"])).says("compopt -o plusdirs");
    // A certificate is no answer to the name of a request.
    let offered = complete(&["nodepki", "kubelets", "approve", ""]);
    assert!(!offered.contains(&"apiserver".to_owned()), "{offered:?}");
}

/// Scripts of the other shells contain the same names; their syntax is checked by the shell if this machine has it.
#[test]
fn scripts_of_other_shells_contain_names() {
    // clap_complete completes options only for fish.
    const OPTIONS: &[&str] = &["etcd-healthcheck-client", "front-proxy-ca"];
    const ARGUMENTS: &[&str] = &["etcd-healthcheck-client", "front-proxy-ca", "certManager"];
    for (shell, syntax, names) in [("zsh", "-n", ARGUMENTS), ("fish", "--no-execute", OPTIONS)] {
        let ran = Ran::of(Command::new(NODEPKI).args(["completions", shell]));
        ran.done();
        for name in names {
            assert!(ran.stdout.contains(name), "{shell}: {name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        fs::write(&file, &ran.stdout).unwrap();
        if let Ok(status) = Command::new(shell).arg(syntax).arg(&file).status() {
            assert!(status.success(), "{shell} {syntax}");
        }
        let first = match shell {
            "zsh" => "#compdef nodepki\n",
            _ => {
                "# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.\n"
            }
        };
        assert!(ran.stdout.starts_with(first), "{shell}");
    }
}
