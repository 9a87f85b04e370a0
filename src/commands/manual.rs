//! `nodepki man` and `nodepki completions`, and the help texts that clap does not generate.

use std::ffi::OsString;
use std::io::Error;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use super::examples;
use super::output::print_exact;
use crate::agent::{ExitCode, Failure};
use crate::kube::names::{Authority, CertName};
use crate::signer::SignerKind;

/// What `nodepki -h` prints: at most 24 lines of 80 columns. `nodepki --help` prints all commands and options.
const SHORT_HELP: &str = "\
Gives a Kubernetes control-plane node its PKI without a CA private key on the
node.

Usage: nodepki [OPTIONS] <COMMAND>

Daily use:
  plan       Show what bootstrap would do, and why
  bootstrap  Create everything that the node lacks
  status     Show the PKI files on disk
  renew      Renew certificates that are due or have drifted
  doctor     Find everything that is wrong with this node

More commands: init, preflight, config, policy, audit, needs-renewal, daemon,
  crl, csr, migrate, authority, certs, cluster, kubelets, capi, demo,
  completions, man

Options:
      --config <FILE>    Configuration file, instead of /etc/nodepki/config.yaml
      --root <DIR>       Work on the system below DIR
  -o, --output <FORMAT>  table, tree, json, yaml; prometheus for status
  -v, --verbose          Print more; twice for debug output
  -h, --help             This help; with --help all commands and options
  -V, --version          Print version
";

/// Columns of the help, also on a wider terminal.
pub(super) const HELP_WIDTH: usize = 80;

/// The commands in the order of `nodepki --help`, by occasion. All others follow.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start", &["init", "preflight", "plan", "bootstrap"]),
    ("Every day", &["status", "renew", "daemon"]),
    ("When something is wrong", &["doctor", "audit", "csr"]),
    (
        "Cluster",
        &[
            "cluster",
            "certs",
            "kubelets",
            "authority",
            "migrate",
            "capi",
        ],
    ),
];

/// The end of `-h` of each command, in place of the global options.
const GLOBAL_OPTIONS: &str =
    "--help also prints: --config, --root, --output and other options, and examples";

/// Returns the program with the examples of each command in `--help`. `-h` prints [`SHORT_HELP`].
pub(super) fn with_help(program: Command, arguments: &[OsString]) -> Command {
    let is_long = arguments
        .iter()
        .skip(1)
        .any(|argument| argument == "--help" || argument == "help");
    let program = with_examples(program, "");
    if is_long {
        let template = grouped(&program);
        program.help_template(template)
    } else {
        program.override_help(SHORT_HELP)
    }
}

/// Returns the template of the help with the commands in [`GROUPS`], which clap itself does not know.
fn grouped(program: &Command) -> String {
    let is_other = |command: &&Command| {
        let mut groups = GROUPS.iter();
        !groups.any(|(_, names)| names.contains(&command.get_name()))
    };
    let group = |title: &str, commands: Vec<Command>| {
        let commands = commands.into_iter().enumerate();
        let commands = commands.map(|(at, command)| command.display_order(at));
        let list = Command::new("")
            .max_term_width(HELP_WIDTH)
            .help_template("{subcommands}")
            .disable_help_subcommand(true)
            .subcommands(commands)
            .render_help()
            .to_string();
        format!("{title}:\n{}\n", list.trim_end())
    };
    let mut lists: Vec<String> = GROUPS
        .iter()
        .map(|(title, names)| {
            let commands = names
                .iter()
                .filter_map(|name| program.find_subcommand(name));
            group(title, commands.cloned().collect())
        })
        .collect();
    let others = program.get_subcommands().filter(is_other);
    lists.push(group("Others", others.cloned().collect()));
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\nOptions:\n{{options}}{{after-help}}",
        lists.join("\n")
    )
}

/// Breaks a command that is wider than the help before an option, so that it can still be copied.
fn on_screen(line: &str) -> String {
    // Room for the margin and the backslash.
    let room = HELP_WIDTH - 4;
    let mut parts = line.split(" --");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    let mut width = shown.chars().count();
    for part in parts {
        let more = part.chars().count() + 3;
        if width + more > room {
            shown.push_str(" \\\n     ");
            width = 3;
        }
        shown.push_str(&format!(" --{part}"));
        width += more;
    }
    shown
}

fn with_examples(command: Command, path: &str) -> Command {
    let mut command = command;
    if !path.is_empty() {
        command = command.after_help(GLOBAL_OPTIONS);
    }
    if let Some(examples) = examples::of(path) {
        let lines: Vec<String> = examples
            .lines
            .iter()
            .map(|(line, meaning)| format!("  {}\n      {meaning}", on_screen(line)))
            .collect();
        command = command.after_long_help(format!("Examples:\n{}", lines.join("\n")));
    }
    command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        with_examples(subcommand, path.trim_start())
    })
}

/// Prints the manual page of `program`, or writes a page for each command into `dir`.
pub(super) fn print_pages(program: Command, dir: Option<&Path>) -> Result<ExitCode, Failure> {
    let Some(dir) = dir else {
        let page = page(program, "").map_err(|error| unwritten(Path::new("-"), error))?;
        return print_exact(&page);
    };
    if !dir.is_dir() {
        let message = format!(
            "{}: is not an existing directory (create it, or name another one)",
            dir.display()
        );
        return Err(Failure::usage(message));
    }
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_pages(program, "", dir)?;
    Ok(ExitCode::Done)
}

/// Writes the pages of a command and of those below it.
fn write_pages(command: Command, path: &str, dir: &Path) -> Result<(), Failure> {
    for subcommand in command.get_subcommands().cloned() {
        let path = format!("{path} {}", subcommand.get_name());
        write_pages(subcommand, path.trim_start(), dir)?;
    }
    let name = clap_mangen::Man::new(command.clone()).get_filename();
    let file = dir.join(name);
    page(command, path)
        .and_then(|page| std::fs::write(&file, page))
        .map_err(|error| unwritten(&file, error))
}

fn unwritten(file: &Path, error: Error) -> Failure {
    let message = format!("{}: the manual page cannot be written", file.display());
    Failure::caused(ExitCode::NotPermitted, message, error)
}

/// Returns the page of one command, with its examples before the version.
fn page(command: Command, path: &str) -> Result<String, Error> {
    let mut bytes = Vec::new();
    // The page is the long help: it also describes what the short one leaves out.
    let command = command.mut_args(|argument| argument.hide_short_help(false));
    clap_mangen::Man::new(command).render(&mut bytes)?;
    let mut page = String::from_utf8_lossy(&bytes).into_owned();
    let Some(examples) = examples::of(path) else {
        return Ok(page);
    };
    let mut section = ".SH EXAMPLES\n".to_owned();
    for (line, meaning) in examples.lines {
        section.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", roff(line), roff(meaning)));
    }
    let at = page.find("\n.SH VERSION\n").map_or(page.len(), |at| at + 1);
    page.insert_str(at, &section);
    Ok(page)
}

/// Escapes text for roff. No line of an example begins with a control character.
fn roff(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
}

pub(super) fn print_completions(program: Command, shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut completed(program), "nodepki", &mut script);
    print_exact(&String::from_utf8_lossy(&script))
}

/// Returns the program with the values that a shell can complete. Only completions use it: the commands themselves parse
/// these values, with their own messages.
fn completed(program: Command) -> Command {
    program
        .mut_args(completed_argument)
        .mut_subcommands(completed)
}

/// Excludes the name of a CertificateSigningRequest, a positional argument.
fn is_option_or_list(argument: &Arg) -> bool {
    argument.get_long().is_some() || argument.get_id() == "certificates"
}

fn completed_argument(argument: Arg) -> Arg {
    let value = argument
        .get_value_names()
        .and_then(|names| names.first())
        .map(ToString::to_string);
    let values = |names: Vec<&'static str>| PossibleValuesParser::new(names);
    match (argument.get_id().as_str(), value.as_deref()) {
        ("certificates", _) | ("name", Some("NAME")) if is_option_or_list(&argument) => {
            let names = CertName::ALL.into_iter().map(CertName::as_str).collect();
            argument.value_parser(values(names))
        }
        ("certificate", Some("CERTIFICATE" | "NAME")) => {
            let names = CertName::ALL.into_iter().map(CertName::as_str).collect();
            argument.value_parser(values(names))
        }
        ("authority" | "authorities", _) => {
            let names = Authority::ALL.into_iter().map(Authority::as_str).collect();
            argument.value_parser(values(names))
        }
        ("kind", _) => {
            let kinds = SignerKind::ALL.into_iter().map(SignerKind::as_str);
            argument.value_parser(values(kinds.chain(["kubelets"]).collect()))
        }
        ("init-kind", _) => argument.value_parser(values(super::init::kinds())),
        (_, Some("FILE" | "MANIFEST")) => argument.value_hint(ValueHint::FilePath),
        (_, Some("DIR")) => argument.value_hint(ValueHint::DirPath),
        _ => argument,
    }
}
