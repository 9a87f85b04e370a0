//! Options that several commands share, and the inputs and nodes that they lead to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::ColourChoice;
use super::output::terminal::LogFormat;
use super::{now, print_warnings, runtime};
use crate::agent::load::{self, IdentityChange, LoadInputs, Loaded, SignerState};
use crate::agent::{ExitCode, Failure};
use crate::config::{Argument, CommandLineSettings};
use crate::kube::kubeadm::NodeName;
use crate::signer;
use crate::store::{IdentityPart, NodeRoot};
use crate::yaml::parse_duration;
use crate::yaml::schema::duration_fix;

/// Heading that separates these options from a command's own ones in its help.
const GLOBAL_HEADING: &str = "Global options";

#[derive(Debug, Args)]
pub(super) struct GlobalOptions {
    /// Configuration file of this machine, instead of /etc/nodepki/config.yaml and its fragments
    #[arg(help_heading = GLOBAL_HEADING, hide_short_help = true, long, global = true, value_name = "FILE")]
    pub(super) config: Option<Argument>,
    /// Work on the system below DIR. Paths in arguments are those of this machine: write DIR before a path of that system
    #[arg(help_heading = GLOBAL_HEADING, hide_short_help = true, long, global = true, value_name = "DIR", default_value = "/")]
    pub(super) root: PathBuf,
    /// Output format
    #[arg(help_heading = GLOBAL_HEADING, hide_short_help = true, short, long, global = true, value_enum, default_value_t = OutputFormat::Table)]
    pub(super) output: OutputFormat,
    /// Print more; twice for debug output
    #[arg(help_heading = GLOBAL_HEADING, hide_short_help = true, short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// When to colour the output; auto obeys NO_COLOR
    #[arg(help_heading = GLOBAL_HEADING, long, global = true, hide_short_help = true, value_enum, default_value_t = ColourChoice::Auto, value_name = "WHEN")]
    pub(super) color: ColourChoice,
    /// Destination and format of log events
    #[arg(help_heading = GLOBAL_HEADING, long, global = true, hide_short_help = true, value_enum, default_value_t = LogFormat::Auto, value_name = "FORMAT")]
    pub(super) log: LogFormat,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// Aligned text
    Table,
    /// Text: authorities, and the certificates that each has signed
    Tree,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// Prometheus metrics; `status` and `cluster status` only
    Prometheus,
}

impl OutputFormat {
    /// Returns whether a command prints its own text instead of a JSON or YAML document.
    pub(super) fn is_text(self) -> bool {
        matches!(self, OutputFormat::Table | OutputFormat::Tree)
    }
}

/// Sources of the configuration.
#[derive(Clone, Debug, Args)]
pub(super) struct SourceOptions {
    /// kubeadm configuration file, instead of the configured ones; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Signer for all authorities: embedded, local:DIR, directory:DIR or exec:PATH
    #[arg(long, value_name = "SIGNER", hide_short_help = true)]
    signer: Option<signer::Config>,
    /// Node name, instead of nodeRegistration.name or the host name
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    node_name: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(super) struct RunOptions {
    #[command(flatten)]
    sources: SourceOptions,
    /// How long to wait for signers and signatures before exiting as pending (75), for example 90s or 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// How long to wait for time synchronization if the clock shows an impossible time
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration)]
    clock_wait: Option<Duration>,
    /// Continue although the clock shows an impossible time
    #[arg(long, hide_short_help = true)]
    allow_unsynced: bool,
    /// Continue although the configured address differs from that of the node's API server or pending requests
    #[arg(long, hide_short_help = true)]
    accept_address_change: bool,
    /// Continue although the configured node name differs from that of the node or its pending requests
    #[arg(long, hide_short_help = true)]
    accept_name_change: bool,
    /// Continue although the pending requests were made for another role: first, joining or worker node
    #[arg(long, hide_short_help = true)]
    accept_role_change: bool,
}

impl From<SourceOptions> for RunOptions {
    fn from(sources: SourceOptions) -> Self {
        RunOptions {
            sources,
            wait: None,
            clock_wait: None,
            allow_unsynced: false,
            accept_address_change: false,
            accept_name_change: false,
            accept_role_change: false,
        }
    }
}

impl RunOptions {
    /// Returns a command with the sources of these options, as an administrator types it.
    pub(super) fn command(&self, global: &GlobalOptions, command: &str) -> String {
        self.sources.command(global, command)
    }

    pub(super) fn inputs(&self, global: &GlobalOptions) -> Result<LoadInputs, Failure> {
        self.sources.verify_paths(&global.open_root()?)?;
        let node_name = self
            .sources
            .node_name
            .as_deref()
            .map(node_name)
            .transpose()?;
        let accepted = [
            (self.accept_name_change, IdentityPart::Name),
            (self.accept_address_change, IdentityPart::Address),
            (self.accept_role_change, IdentityPart::Role),
        ];
        let accepted = accepted.into_iter().filter(|(given, _)| *given);
        let accepted = accepted.map(|(_, part)| part).collect();
        Ok(LoadInputs {
            config: global.config.clone(),
            stand_ins: CommandLineSettings {
                kubeadm_configs: self.sources.kubeadm_config.clone(),
                signer: self.sources.signer.clone(),
                node_name,
            },
            wait: self.wait,
            clock_wait: self.clock_wait,
            allow_unsynced: self.allow_unsynced,
            identity_change: IdentityChange::Accept(accepted),
            signer_state: SignerState::Kept,
        })
    }
}

impl SourceOptions {
    /// Refuses files and directories that could also mean those of the node. A program is always one of this machine.
    fn verify_paths(&self, root: &NodeRoot) -> Result<(), Failure> {
        let directory = self.signer.as_ref().and_then(signer_directory);
        let given = self.kubeadm_config.iter().chain(&directory);
        Ok(load::verify_arguments(root, given)?)
    }

    /// Returns a command with these options, as an administrator types it. A signer that has no such form is left out.
    pub(super) fn command(&self, global: &GlobalOptions, command: &str) -> String {
        let mut words = vec!["nodepki".to_owned()];
        let mut option = |name: &str, value: &str| {
            words.extend([name.to_owned(), signer::quoted(value)]);
        };
        if global.root != Path::new("/") {
            option("--root", &global.root.display().to_string());
        }
        if let Some(file) = &global.config {
            option("--config", &file.display().to_string());
        }
        for file in &self.kubeadm_config {
            option("--kubeadm-config", &file.display().to_string());
        }
        if let Some(signer) = self.signer.as_ref().and_then(signer::Config::as_flag) {
            option("--signer", &signer);
        }
        if let Some(name) = &self.node_name {
            option("--node-name", name);
        }
        words.insert(1, command.to_owned());
        words.join(" ")
    }

    pub(super) fn inputs(self, global: &GlobalOptions) -> Result<LoadInputs, Failure> {
        RunOptions::from(self).inputs(global)
    }
}

impl GlobalOptions {
    pub(super) fn open_root(&self) -> Result<NodeRoot, Failure> {
        let is_file = self.root.metadata().is_ok_and(|found| !found.is_dir());
        if is_file {
            let message = format!(
                "--root: {} is not a directory (name the directory that contains the system)",
                self.root.display()
            );
            return Err(Failure::usage(message));
        }
        let root = NodeRoot::open(&self.root).map_err(|error| match self.root.try_exists() {
            Ok(false) => Failure::caused(ExitCode::Usage, "--root", error)
                .advise("name an existing directory"),
            _ => Failure::from(error),
        })?;
        load::verify_arguments(&root, &self.config)?;
        Ok(root)
    }

    /// Loads the inputs of a node that may be about to join, and what it needs from its cluster.
    pub(super) fn load_joining(&self, inputs: &LoadInputs) -> Result<Loaded, Failure> {
        let root = self.open_root()?;
        let loaded = runtime()?.block_on(load::load_joining(&root, inputs, now))?;
        print_warnings(&loaded.warnings);
        Ok(loaded)
    }

    /// Loads the inputs of a node that was set up before.
    pub(super) fn load_running(&self, inputs: &LoadInputs) -> Result<Loaded, Failure> {
        let root = self.open_root()?;
        let loaded = runtime()?.block_on(load::load_running(&root, inputs, now))?;
        print_warnings(&loaded.warnings);
        Ok(loaded)
    }
}

/// Returns the directory that `--signer` names.
pub(super) fn signer_directory(signer: &signer::Config) -> Option<Argument> {
    match signer {
        signer::Config::Local(local) => Some(local.directory.clone().into()),
        signer::Config::Directory(drop) => Some(drop.path.clone().into()),
        _ => None,
    }
}

/// Returns the directory of the node that an option names by its path on this machine.
pub(super) fn node_directory(
    root: &NodeRoot,
    option: &str,
    given: Option<&Argument>,
) -> Result<Option<PathBuf>, Failure> {
    let Some(given) = given else {
        return Ok(None);
    };
    let found = load::argument(root, given)?;
    if found.on_node {
        Ok(Some(found.path))
    } else {
        Err(Failure::usage(format!(
            "{option}: {} is not below {} (write {} for the directory of the node)",
            given.display(),
            root.path().display(),
            root.on_this_machine(&found.path).display()
        )))
    }
}

pub(super) fn node_name(given: &str) -> Result<NodeName, Failure> {
    given
        .parse()
        .map_err(|error| Failure::usage(format!("--node-name {given:?}")).caused_by(error))
}

/// Parses a duration on the command line.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| format!("{error} ({})", duration_fix(text, "90s or 10m")))
}
