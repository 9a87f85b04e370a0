//! The command line: one module for each command, with its arguments, the calls into the library and the output.
//!
//! `options` has the arguments that several commands share, `output` everything that prints. The commands `doctor`,
//! `authority`, `migrate` and `capi` keep their work in modules of their own, since no other room uses it.
//!
//! To add a command: a module here with a clap type and its `run`, and a variant of `Command`.

mod audit;
pub mod authority;
mod bootstrap;
mod capi;
mod certs;
mod cluster;
mod config;
mod crl;
mod csr;
mod daemon;
mod demo;
pub mod doctor;
mod examples;
mod init;
mod kubelets;
mod manual;
mod migrate;
mod options;
mod output;
mod policy;
mod preflight;
mod renew;
mod status;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use time::OffsetDateTime;

use crate::agent::load;
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::process::{interrupt, machine};
use crate::signer;
use crate::store::NodeRoot;

use options::{GlobalOptions, OutputFormat, RunOptions, SourceOptions};
use output::{
    print_failure, print_failure_document, print_message, print_to_stderr, print_warnings,
    release_log, set_colour, set_node_options, terminal,
};

/// Gives a Kubernetes control-plane node its PKI without a private key of its CAs on the node.
///
/// Reads the kubeadm configuration, generates keys and certificate signing requests on the node, has them signed by an
/// external signer, verifies the answers and writes /etc/kubernetes.
///
/// Exit status: 0 done; 64 usage; 65 refused, because a file on disk or an answer is not safe to use; 69 signer or
/// cluster unreachable; 75 pending, run again; 77 not permitted; 78 configuration.
#[derive(Debug, Parser)]
#[command(
    name = "nodepki",
    version,
    propagate_version = true,
    max_term_width = manual::HELP_WIDTH,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what bootstrap would do, and why; writes nothing and contacts no signer
    ///
    /// If a joining node lacks files, its cluster is read, as bootstrap does. Exit status: as for bootstrap, 78 if
    /// certificates are to be issued and no signer is configured.
    Plan(SourceOptions),
    /// Create everything that the node lacks: keys, certificates, kubeconfigs
    ///
    /// Idempotent: a second run changes nothing. If a run is interrupted, or its signer has not answered yet, the next
    /// run continues with the same keys.
    Bootstrap(RunOptions),
    /// Show the PKI files on disk; never fails on a broken or expired certificate
    Status(status::StatusArgs),
    /// Renew certificates that are due or have drifted, each independently
    ///
    /// A failed renewal never affects the certificate in use. Exit status: 0 also if a renewal failed that is not urgent
    /// yet, which is reported; otherwise as for bootstrap.
    Renew(renew::RenewArgs),
    /// Find everything that is wrong with this node, with evidence and a fix for each finding
    ///
    /// Needs no configuration and no cluster. Exit status: 0 without a finding of severity error, even with warnings; 65
    /// with one.
    Doctor(doctor::DoctorArgs),
    /// Write the settings for a signer, and the script for the administrator of its server
    ///
    /// KIND is vault, cfssl, stepCA, est, kubernetes, certManager, puppet, directory, exec or local. Values that are not given
    /// are asked for on a terminal; otherwise the file has the text of the example, and the output lists what to replace.
    /// Existing files are never overwritten.
    Init(init::InitArgs),
    /// Check everything that bootstrap needs: configuration, signers, CAs, pins, secrets, clock, names, space
    ///
    /// Logs in to every signer and asks what it may sign for this node. Requests no certificate and writes nothing. One
    /// line for each check, with the fix if it fails.
    ///
    /// Exit status: 0 without an error, even with warnings; otherwise that of the gravest check: 65 refused; 69 a signer is
    /// unreachable; 75 this machine, such as its clock or disk; 77 a signer does not accept this node; 78 configuration.
    Preflight(preflight::PreflightArgs),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Report whether renew has anything to do, for ExecCondition= of a unit
    ///
    /// Exit status: 0 yes; 1 no; 2 there are no certificates; 255 unknown.
    NeedsRenewal(renew::NeedsRenewalArgs),
    /// Keep the certificates valid until stopped: renew, repair what other processes broke, restart components
    ///
    /// Sleeps while nothing is due. SIGHUP reloads the configuration, SIGTERM stops the daemon. Implements sd_notify(3),
    /// so that a unit can have Type=notify-reload and WatchdogSec=.
    Daemon(daemon::DaemonArgs),
    /// Compare the keys of this node with the key policy
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Fetch the revocation lists that signers publish, verify them, and install them
    Crl(RunOptions),
    /// Show and verify the issuance log: what was requested, issued, installed and put into use
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Have certificates signed offline
    #[command(subcommand)]
    Csr(csr::CsrCommand),
    /// Remove the CA keys from a running node, or restore them
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    /// Change a CA on a running cluster: trust old and new, issue under the new one, then stop trusting the old one
    #[command(subcommand)]
    Authority(authority::AuthorityCommand),
    /// Share files between control-plane nodes: kubeadm's certificate key, upload and download
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Show the certificates of all nodes of the cluster
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// List, approve and deny the CertificateSigningRequests of kubelets
    #[command(subcommand)]
    Kubelets(kubelets::KubeletsCommand),
    /// Create and check the Secrets that Cluster API's external-CA flow needs in the management cluster
    #[command(subcommand)]
    Capi(capi::CapiCommand),
    /// Bootstrap a node in DIR with a temporary authority that exists in memory only
    Demo(demo::DemoArgs),
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

/// Runs the command line and returns the process's exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = parse(&arguments).and_then(|matches| {
        let paths = given_paths(&matches);
        let cli = Cli::from_arg_matches(&matches)?;
        set_node_options(&matches);
        Ok((cli, paths))
    });
    let (cli, paths) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return print_clap_error(&error) as u8,
    };
    set_colour(cli.global.color);
    terminal::subscribe(cli.global.log, cli.global.verbose);
    let format = cli.global.output;
    let code = match cli.run(&paths) {
        Ok(code) => code,
        Err(failure) => {
            print_failure(&failure);
            print_failure_document(format, &failure);
            failure.code as u8
        }
    };
    release_log();
    code
}

/// Parses the command line. The texts of the help are added only if it is requested.
fn parse(arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    match Cli::command().try_get_matches_from(arguments) {
        Err(error) if is_help(&error) => {
            manual::with_help(Cli::command(), arguments).try_get_matches_from(arguments)
        }
        other => other,
    }
}

fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Returns the paths in the arguments of a command line.
fn given_paths(matches: &ArgMatches) -> Vec<Argument> {
    let mut found = Vec::new();
    for id in matches.ids().map(clap::Id::as_str) {
        if let Ok(Some(paths)) = matches.try_get_many::<Argument>(id) {
            found.extend(paths.cloned());
        }
        if let Ok(Some(signers)) = matches.try_get_many::<signer::Config>(id) {
            found.extend(signers.filter_map(options::signer_directory));
        }
        // These may also name a credential of systemd.
        if ["passphrase_file", "certificate_key_file"].contains(&id)
            && let Ok(Some(texts)) = matches.try_get_many::<String>(id)
        {
            found.extend(texts.map(|text| Argument::from(text.as_str())));
        }
    }
    let below = matches
        .subcommand()
        .map(|(_, matches)| given_paths(matches));
    found.extend(below.unwrap_or_default());
    found
}

/// Prints what clap returns instead of a command line: a usage error, or the requested help or version.
fn print_clap_error(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() {
        ExitCode::Usage
    } else {
        ExitCode::Done
    };
    // Any other text may quote the arguments, which are escaped for the terminal.
    if !is_help(error) && error.kind() != ErrorKind::DisplayVersion {
        print_to_stderr(&error.render().to_string());
        return code;
    }
    match error.print() {
        // A closed pipe ends the output, as in `print`.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => code.max(ExitCode::Pending),
        _ => code,
    }
}

impl Cli {
    /// `paths` are the paths in the arguments.
    fn run(self, paths: &[Argument]) -> Result<u8, Failure> {
        let Cli { global, command } = self;
        let has_metrics = matches!(command, Command::Status(_) | Command::Cluster(_));
        if global.output == OutputFormat::Prometheus && !has_metrics {
            return Err(Failure::usage(
                "only status and cluster status print metrics; use -o table, json or yaml",
            ));
        }
        // For needs-renewal, the failure is an answer too.
        if global.root != Path::new("/") && !matches!(command, Command::NeedsRenewal(_)) {
            load::verify_arguments(&global.open_root()?, paths)?;
        }
        if !matches!(command, Command::Daemon(_)) {
            interrupt::end_programs_too();
        }
        let code = match command {
            // Its exit status is an answer, for failures too.
            Command::NeedsRenewal(arguments) => return Ok(arguments.run(&global)),
            Command::Init(arguments) => arguments.run(&global),
            Command::Bootstrap(options) => bootstrap::bootstrap(&options, &global),
            Command::Plan(sources) => bootstrap::plan(sources, &global),
            Command::Preflight(arguments) => arguments.run(&global),
            Command::Renew(arguments) => arguments.run(&global),
            Command::Daemon(arguments) => arguments.run(&global),
            Command::Status(arguments) => arguments.run(&global),
            Command::Doctor(arguments) => arguments.run(&global),
            Command::Policy(command) => command.run(&global),
            Command::Crl(options) => crl::run(&options, &global),
            Command::Audit(command) => command.run(&global),
            Command::Csr(command) => command.run(&global),
            Command::Migrate(command) => command.run(&global),
            Command::Authority(command) => command.run(&global),
            Command::Certs(command) => command.run(&global),
            Command::Cluster(command) => command.run(&global),
            Command::Kubelets(command) => command.run(&global),
            Command::Config(command) => command.run(&global),
            Command::Capi(command) => command.run(&global),
            Command::Demo(arguments) => arguments.run(&global),
            Command::Completions { shell } => manual::print_completions(Cli::command(), shell),
            Command::Man { dir } => manual::print_pages(Cli::command(), dir.as_deref()),
        };
        Ok(code? as u8)
    }
}

/// Returns the exit code of a report on files: pending if this machine failed to read one of them, since the report may
/// be wrong then.
fn or_machine_fault(root: &NodeRoot, code: ExitCode) -> ExitCode {
    let Some(fault) = root.machine_fault() else {
        return code;
    };
    print_message(&format!(
        "{fault}; the report may be wrong: check the limits and the log of this machine (ulimit -a, dmesg) and run again"
    ));
    ExitCode::Pending
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let failed = |error: std::io::Error| {
        Failure::pending("the event loop cannot start")
            .caused_by(error)
            .advise("check the limits of this process (ulimit -a) and run again")
    };
    machine::require_descriptors().map_err(failed)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)
}
