//! The command line: clap types, and one function a command. Turns what the library returns into text and an exit
//! status; decides nothing else.

pub mod authority;
pub mod capi;
mod certs;
mod csr;
mod daemon;
mod demo;
pub mod doctor;
mod journal;
pub mod migrate;
mod renew;
mod screen;
mod table;
mod terminal;

use std::ffi::OsString;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use time::OffsetDateTime;

use crate::agent::join;
use crate::agent::load::{self, IdentityChange, Inputs, Loaded};
use crate::agent::rotation;
use crate::agent::{self, ExitCode, Failure, Report};
use crate::config::{Argument, Settings, StandIns};
use crate::daemon::metrics::{self, Metrics};
use crate::kube::kubeadm::{NodeName, Role};
use crate::kube::names::{Authority, CertName};
use crate::node::status;
use crate::process::confine::confine;
use crate::process::interrupt;
use crate::process::machine;
use crate::signer::{self, Identity, Kind, Part};
use crate::spec::{self, CERTIFICATES_DIR};
use crate::store::{IdentityPart, Root};
use crate::yaml::{self, parse_duration};

use screen::{print, print_exact, print_json, say};
use terminal::{LogFormat, Terminal};

/// Apart from a command's own options.
const GLOBAL: &str = "Global options";
/// kubeadm's default.

/// Gives a Kubernetes control-plane node its PKI without a CA private key ever being on the node.
///
/// Reads the kubeadm configuration, makes keys and certificate signing requests on the node, has them signed by an
/// external signer, verifies what comes back and writes /etc/kubernetes.
///
/// Exit status: 0 done; 64 usage; 65 refused, what is on disk or came back is not safe to use; 69 signer or cluster
/// unreachable; 75 pending, run again; 77 not permitted; 78 configuration.
#[derive(Debug, Parser)]
#[command(
    name = "nodepki",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Global {
    /// Configuration file, instead of /etc/nodepki/config.yaml and the fragments beside it
    #[arg(help_heading = GLOBAL, long, global = true, value_name = "FILE")]
    config: Option<Argument>,
    /// Work on the system below DIR: every path, the state directory and the host name are taken there
    #[arg(help_heading = GLOBAL, long, global = true, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Output format
    #[arg(help_heading = GLOBAL, short, long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Tell more; twice for debugging
    #[arg(help_heading = GLOBAL, short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Where events go
    #[arg(help_heading = GLOBAL, long, global = true, value_enum, default_value_t = LogFormat::Auto, value_name = "FORMAT")]
    log: LogFormat,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For people: authorities and what they signed.
    Tree,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
    /// For Prometheus; `status` only.
    Prometheus,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Give the node everything that is missing: keys, certificates, kubeconfigs
    ///
    /// Idempotent: a second run changes nothing. A run that was interrupted, or whose signer takes its time, is
    /// resumed by the next one with the same keys.
    Bootstrap(Run),
    /// Show what bootstrap would do, and why; nothing is written or sent
    ///
    /// Of a joining node that lacks something its cluster is read, as bootstrap would.
    Plan(Sources),
    /// Renew what is due or has drifted, each certificate on its own
    ///
    /// Certificates that serve survive whatever happens here. Exit status: 0 also when a renewal failed that has time
    /// yet, which is said; otherwise as for bootstrap.
    Renew(renew::Arguments),
    /// Say whether renew would have anything to do, for ExecCondition= of a unit
    ///
    /// Exit status: 0 yes; 1 no; 2 there are no certificates; 255 it cannot be told.
    NeedsRenewal(renew::NeedsArguments),
    /// Keep the certificates valid until stopped: renew what is due, mend what others broke, restart what has to be
    ///
    /// Sleeps while nothing is due. SIGHUP reads the configuration again, SIGTERM ends it; speaks sd_notify(3), so that
    /// a unit can have Type=notify-reload and WatchdogSec=.
    Daemon(daemon::Arguments),
    /// Show what is on disk; never fails on a broken or expired certificate
    Status(StatusArgs),
    /// Look for everything that is wrong with this node, with evidence and a fix for each finding
    ///
    /// Needs no configuration and no cluster. Exit status: 0 without a finding of severity error, whatever the warnings;
    /// 65 with one.
    Doctor(doctor::Arguments),
    /// Fetch the revocation lists of the signers that publish them, verify them, and put them in place
    Crl(Run),
    /// Have certificates signed offline
    #[command(subcommand)]
    Csr(csr::Command),
    /// Take the CA keys off a running node, or put them back
    #[command(subcommand)]
    Migrate(migrate::Command),
    /// Change a CA on a running cluster: both are trusted first, then the new one issues, then the old one goes
    #[command(subcommand)]
    Authority(authority::Command),
    /// The files that control-plane nodes share: kubeadm's certificate key, upload and download
    #[command(subcommand)]
    Certs(certs::Command),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// What Cluster API's external-CA flow needs in the management cluster
    #[command(subcommand)]
    Capi(capi::Command),
    /// Do the main job in DIR with a throw-away authority that lives in memory
    Demo {
        /// Directory that stands for the node's root
        dir: PathBuf,
        /// kubeadm configuration to use instead of the built-in example
        #[arg(long, value_name = "FILE")]
        kubeadm_config: Vec<Argument>,
    },
    /// Print shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command into DIR
    Man {
        /// Directory for the pages
        dir: Option<PathBuf>,
    },
}

/// Where the configuration comes from.
#[derive(Clone, Debug, Args)]
struct Sources {
    /// kubeadm configuration file, instead of the configured ones; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Signer for all authorities: embedded, local:DIR, directory:DIR or exec:PATH
    #[arg(long, value_name = "SIGNER")]
    signer: Option<signer::Config>,
    /// Node name, instead of nodeRegistration.name or the host name
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct Run {
    #[command(flatten)]
    sources: Sources,
    /// How long to wait for signers and signatures before ending as pending (75), for example 90s or 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// How long to wait for a clock that shows a time before any possible one
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    clock_wait: Option<Duration>,
    /// Go on although the clock cannot be right
    #[arg(long)]
    allow_unsynced: bool,
    /// Go on although the configuration says another address than the node's API server, or its pending requests, have
    #[arg(long)]
    accept_address_change: bool,
    /// Go on although the configuration says another name than the node, or its pending requests, have
    #[arg(long)]
    accept_name_change: bool,
    /// Go on although the pending requests were made for another role: first, joining or worker node
    #[arg(long)]
    accept_role_change: bool,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Print kubeadm's own expiry report: its table, or its CertificateExpirationInfo with -o json or yaml
    #[arg(long)]
    kubeadm: bool,
    /// Certificates directory [default: that of the configuration, or /etc/kubernetes/pki]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Validate settings and kubeadm configuration; every fault at once, with line and column
    Check(Sources),
    /// Print the effective settings, secrets left out
    Show(Sources),
    /// Print the JSON Schema of the settings
    Schema,
    /// Print what an administrator of the signers' server runs so that this node gets its certificates
    SignerSetup {
        /// Kind of signer, for example vault
        kind: String,
        /// Only the signer of this name
        #[arg(long, value_name = "SIGNER")]
        name: Option<String>,
        #[command(flatten)]
        sources: Sources,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
}

/// Runs the command line and returns the process's exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors.
            let code = if error.use_stderr() {
                ExitCode::Usage
            } else {
                ExitCode::Done
            };
            // These have nothing of the arguments in them.
            let is_fixed = matches!(
                error.kind(),
                ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            if !is_fixed {
                screen::print_aside(&error.render().to_string());
                return code as u8;
            }
            return match error.print() {
                // A closed pipe ends the output, as in `print`.
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    code.max(ExitCode::Pending) as u8
                }
                _ => code as u8,
            };
        }
    };
    terminal::subscribe(cli.global.log, cli.global.verbose);
    match cli.run() {
        Ok(code) => code,
        Err(failure) => {
            tell(&failure);
            failure.code as u8
        }
    }
}

fn tell_remainder(report: &Report) {
    if let Some(remainder) = report.remainder() {
        say(&remainder);
    }
}

fn tell(failure: &Failure) {
    for message in &failure.messages {
        say(message);
        tracing::debug!(exit = failure.code as u8, "{message}");
    }
}

impl Cli {
    fn run(self) -> Result<u8, Failure> {
        let Cli { global, command } = self;
        if global.output == Output::Prometheus && !matches!(command, Command::Status(_)) {
            return Err(Failure::new(
                ExitCode::Usage,
                "only status prints metrics; use -o table, json or yaml",
            ));
        }
        if !matches!(command, Command::Daemon(_)) {
            interrupt::end_programs_too();
        }
        let code = match command {
            // The one command whose exit status is an answer.
            Command::NeedsRenewal(arguments) => return Ok(arguments.run(&global)),
            Command::Bootstrap(run) => {
                let loaded = global.load_joining(&run.inputs(&global)?)?;
                global.bootstrap(loaded)
            }
            Command::Plan(sources) => {
                let inputs = Inputs {
                    identity_change: IdentityChange::Show,
                    ..Run::of(sources).inputs(&global)?
                };
                global.plan(&global.load_joining(&inputs)?)
            }
            Command::Renew(arguments) => arguments.run(&global),
            Command::Daemon(arguments) => arguments.run(&global),
            Command::Status(arguments) => global.status(&arguments),
            Command::Doctor(arguments) => arguments.run(&global),
            Command::Crl(run) => global.crl(&global.load_running(&run.inputs(&global)?)?),
            Command::Csr(command) => command.run(&global),
            Command::Migrate(command) => command.run(&global),
            Command::Authority(command) => command.run(&global),
            Command::Certs(command) => command.run(&global),
            Command::Config(command) => global.config(command),
            Command::Capi(command) => command.run(&global),
            Command::Demo {
                dir,
                kubeadm_config,
            } => global.demo(&dir, kubeadm_config),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "nodepki", &mut script);
                print_exact(&String::from_utf8_lossy(&script))
            }
            Command::Man { dir } => manual(dir.as_deref()),
        };
        Ok(code? as u8)
    }
}

impl Global {
    fn open_root(&self) -> Result<Root, Failure> {
        Root::open(&self.root).map_err(|error| {
            Failure::caused(
                ExitCode::Usage,
                format!("--root: {error}; name an existing directory"),
                &error,
            )
        })
    }

    /// With what a joining node has from its cluster.
    fn load_joining(&self, inputs: &Inputs) -> Result<Loaded, Failure> {
        let root = self.open_root()?;
        let loaded = runtime()?.block_on(load::load_joining(&root, inputs, now))?;
        warn(&loaded.warnings);
        Ok(loaded)
    }

    /// Of a node that was set up before.
    fn load_running(&self, inputs: &Inputs) -> Result<Loaded, Failure> {
        let root = self.open_root()?;
        let loaded = runtime()?.block_on(load::load_running(&root, inputs, now))?;
        warn(&loaded.warnings);
        Ok(loaded)
    }

    fn bootstrap(&self, loaded: Loaded) -> Result<ExitCode, Failure> {
        let terminal = Terminal::new(self.verbose);
        let root = self.open_root()?;
        confine(&loaded.reach(&root)?);
        let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "bootstrap");
        let recorder = metrics.recorder(&loaded.setup, &terminal, now());
        let report = runtime()?.block_on(agent::bootstrap(&root, &loaded.setup, now, &recorder));
        drop(terminal);
        warn(&metrics.ended(&loaded.setup, ExitCode::of(report.as_ref()), None, now()));
        let report = report?;
        rotation::log(&report);
        let code = self.end_with(&report)?.max(metrics.code());
        tell_remainder(&report);
        if report.code() == ExitCode::Pending {
            say(
                "some signatures are pending; run the same command again to go on with the same keys",
            );
        }
        if loaded.node.role == Role::Join && !report.written.is_empty() {
            // Now there is somebody who may ask.
            self.compare_service_account(&loaded)?;
        }
        Ok(code)
    }

    fn compare_service_account(&self, loaded: &Loaded) -> Result<(), Failure> {
        let root = self.open_root()?;
        let spec = loaded.setup.plan.cert(CertName::AdminConf);
        let Some(spec::Output::Kubeconfig { path, .. }) = spec.map(|spec| &spec.output) else {
            return Ok(());
        };
        let api = load::cluster(&root, path.as_ref())?;
        runtime()?.block_on(join::compare_service_account(&root, &loaded.setup, &api))
    }

    fn plan(&self, loaded: &Loaded) -> Result<ExitCode, Failure> {
        let survey = loaded.setup.survey(&self.open_root()?, now())?;
        let code = self.end_with(&agent::report::planned(&loaded.setup, &survey))?;
        if survey.refusals.is_empty() {
            return Ok(code);
        }
        Err(Failure {
            code: ExitCode::Refused,
            messages: survey.refusals,
        })
    }

    fn crl(&self, loaded: &Loaded) -> Result<ExitCode, Failure> {
        let root = self.open_root()?;
        confine(&loaded.reach(&root)?);
        let terminal = Terminal::new(self.verbose);
        let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "crl");
        let recorder = metrics.recorder(&loaded.setup, &terminal, now());
        let update = agent::update_revocations(&root, &loaded.setup, now, &recorder);
        let report = runtime()?.block_on(update);
        warn(&metrics.ended(&loaded.setup, ExitCode::of(report.as_ref()), None, now()));
        Ok(self.end_with(&report?)?.max(metrics.code()))
    }

    fn status(&self, arguments: &StatusArgs) -> Result<ExitCode, Failure> {
        let root = self.open_root()?;
        let inputs = Inputs {
            config: self.config.clone(),
            ..Inputs::default()
        };
        let described = load::described(&root, &inputs, arguments.cert_dir.clone());
        let role = described.role.map(status::Role::from);
        let status = status::collect(&described.state, role, now());
        let code = |_| judged_from(&root, ExitCode::Done);
        if self.output == Output::Prometheus {
            return print_exact(&metrics::of_status(&root, &status)).map(code);
        }
        if arguments.kubeadm {
            for note in status::kubeadm_notes(&status) {
                say(&note);
            }
            return match self.output {
                Output::Json => print_json(&status::kubeadm_json(&status)),
                Output::Yaml => print_exact(&status::kubeadm_yaml(&status)),
                _ => print(&status::kubeadm_table(&status)),
            }
            .map(code);
        }
        match self.output {
            Output::Tree => print(&status::tree(&status, stdout().is_terminal())),
            Output::Json => print_json(&status::json(&status)),
            Output::Yaml => print_exact(&status::yaml(&status)),
            _ => print(&status::table(&status, stdout().is_terminal())),
        }
        .map(code)
    }

    fn config(&self, command: ConfigCommand) -> Result<ExitCode, Failure> {
        let inputs = |sources: Sources| Run::of(sources).inputs(self);
        match command {
            ConfigCommand::Check(sources) => {
                let (loaded, certificates) =
                    load::check(&self.open_root()?, &inputs(sources)?, now())?;
                warn(&loaded.warnings);
                let Identity { node, cluster } = &loaded.setup.identity;
                print(&match certificates {
                    Some(count) => format!(
                        "the configuration is sound: node {node}, cluster {cluster}, {count} certificates\n"
                    ),
                    None => format!(
                        "the configuration is sound as far as it is on this node: node {node}; bootstrap and plan ask the cluster for its ClusterConfiguration\n"
                    ),
                })
            }
            ConfigCommand::Show(sources) => {
                let (settings, warnings) =
                    load::read_settings(&self.open_root()?, &inputs(sources)?)?;
                warn(
                    &warnings
                        .warnings()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>(),
                );
                self.print_value(&settings.redacted(), Output::Yaml)
            }
            ConfigCommand::Schema => self.print_value(&Settings::schema(), Output::Json),
            ConfigCommand::SignerSetup {
                kind,
                name,
                sources,
            } => {
                let loaded = load::load(&self.open_root()?, &inputs(sources)?, now())?;
                warn(&loaded.warnings);
                print_exact(&signer_setup(&loaded, &kind, name.as_deref())?)
            }
        }
    }

    fn demo(&self, dir: &Path, kubeadm_configs: Vec<Argument>) -> Result<ExitCode, Failure> {
        let (root, inputs) = demo::prepare(dir, kubeadm_configs)?;
        let loaded = load::load(&root, &inputs, now())?;
        warn(&loaded.warnings);
        let terminal = Terminal::new(self.verbose);
        let report = runtime()?.block_on(agent::bootstrap(&root, &loaded.setup, now, &terminal));
        drop(terminal);
        let report = report?;
        let role = Some(loaded.node.role.into());
        let state = loaded.setup.state(&root);
        let status = status::collect(&state, role, now());
        print(&status::tree(&status, stdout().is_terminal()))?;
        let pki = root.on_this_machine(CERTIFICATES_DIR);
        print(&format!(
            "\nNo CA private key was written. Look for yourself:\n  openssl verify -CAfile {pki}/ca.crt {pki}/apiserver.crt\n  nodepki --root {dir} status\n",
            pki = pki.display(),
            dir = dir.display()
        ))?;
        Ok(report.code())
    }

    /// Prints a report and returns the gravest code of its rows. A report that cannot be printed never hides a graver one.
    fn end_with(&self, report: &Report) -> Result<ExitCode, Failure> {
        let code = report.code();
        match self.print_report(report) {
            Err(failure) if failure.code > code => Err(failure),
            Err(failure) => {
                tell(&failure);
                Ok(code)
            }
            Ok(_) => Ok(code),
        }
    }

    fn print_report(&self, report: &Report) -> Result<ExitCode, Failure> {
        match self.output {
            Output::Table | Output::Tree => {
                print(&table::render(report, self.verbose > 0, &self.root))
            }
            _ => self.print_value(report, self.output),
        }
    }

    /// As asked for with `-o`; `default` where that says table.
    fn print_value(&self, value: &impl Serialize, default: Output) -> Result<ExitCode, Failure> {
        let format = match self.output {
            Output::Table | Output::Tree => default,
            chosen => chosen,
        };
        let unprintable = |error: String| {
            Failure::new(
                ExitCode::Pending,
                format!("the result cannot be printed: {error}"),
            )
        };
        match format {
            Output::Yaml => {
                let text =
                    yaml::to_string(value).map_err(|error| unprintable(error.to_string()))?;
                print_exact(&text)
            }
            _ => {
                let text = serde_json::to_string_pretty(value)
                    .map_err(|error| unprintable(error.to_string()))?;
                print_json(&(text + "\n"))
            }
        }
    }
}

impl Run {
    fn of(sources: Sources) -> Self {
        Run {
            sources,
            wait: None,
            clock_wait: None,
            allow_unsynced: false,
            accept_address_change: false,
            accept_name_change: false,
            accept_role_change: false,
        }
    }

    fn inputs(&self, global: &Global) -> Result<Inputs, Failure> {
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
        Ok(Inputs {
            config: global.config.clone(),
            stand_ins: StandIns {
                kubeadm_configs: self.sources.kubeadm_config.clone(),
                signer: self.sources.signer.clone(),
                node_name,
            },
            wait: self.wait,
            clock_wait: self.clock_wait,
            allow_unsynced: self.allow_unsynced,
            identity_change: IdentityChange::Accept(accepted),
        })
    }
}

/// The script of the signers of a kind that the configuration uses.
fn signer_setup(loaded: &Loaded, kind: &str, only: Option<&str>) -> Result<String, Failure> {
    let kinds = || Kind::ALL.into_iter().map(Kind::as_str);
    let Some(kind) = Kind::ALL.into_iter().find(|one| one.as_str() == kind) else {
        let fix = match yaml::did_you_mean(kind, kinds()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("use one of {}", kinds().collect::<Vec<_>>().join(", ")),
        };
        let message = format!("{kind:?} is no kind of signer; {fix}");
        return Err(Failure::new(ExitCode::Usage, message));
    };
    let mut parts: Vec<Part<'_, signer::Config>> = Vec::new();
    for authority in Authority::ALL {
        let Some((name, config)) = loaded.settings.signer_of(authority) else {
            continue;
        };
        if config.kind() != kind || only.is_some_and(|only| only != name) {
            continue;
        }
        let wanted = loaded.setup.wanted(authority);
        match parts.iter_mut().find(|part| part.name == name) {
            Some(part) => part.wanted.extend(wanted),
            None => parts.push(Part {
                name,
                config,
                wanted,
            }),
        }
    }
    if parts.is_empty() {
        let called = only.map_or_else(String::new, |name| format!(" {name}"));
        return Err(Failure::new(
            ExitCode::Configuration,
            format!(
                "no authority of the configuration has a signer{called} of kind {kind}; name one under authorities.*.signer"
            ),
        ));
    }
    kind.setup(&parts, &loaded.setup.identity).ok_or_else(|| {
        Failure::new(
            ExitCode::Usage,
            format!(
                "signers of kind {kind} need nothing set up on a server that nodepki could print"
            ),
        )
    })
}

fn node_name(given: &str) -> Result<NodeName, Failure> {
    given
        .parse()
        .map_err(|error| Failure::new(ExitCode::Usage, format!("--node-name {given:?}: {error}")))
}

fn manual(dir: Option<&Path>) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        Failure::caused(
            ExitCode::NotPermitted,
            format!("the manual pages could not be written: {error}"),
            &error,
        )
    };
    match dir {
        Some(dir) => clap_mangen::generate_to(Cli::command(), dir).map_err(failed)?,
        None => clap_mangen::Man::new(Cli::command())
            .render(&mut stdout())
            .and_then(|()| stdout().flush())
            .map_err(failed)?,
    }
    Ok(ExitCode::Done)
}

/// The exit code of a report on files: if this machine failed to read one of them, the report may be wrong.
fn judged_from(root: &Root, code: ExitCode) -> ExitCode {
    let Some(fault) = root.machine_fault() else {
        return code;
    };
    say(&format!(
        "{fault}; the report may be wrong: see the limits and the log of this machine (ulimit -a, dmesg) and run again"
    ));
    ExitCode::Pending
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        say(warning);
    }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            ExitCode::Pending,
            format!(
                "the event loop cannot start: {error}; see the limits of this process (ulimit -a) and run again"
            ),
        )
    };
    machine::require_descriptors().map_err(failed)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)
}
