//! `nodepki renew` and `nodepki needs-renewal`.

use std::collections::BTreeSet;

use clap::Args;

use super::options::{GlobalOptions, RunOptions};
use super::output::next::{self, NodeFacts};
use super::output::terminal::{Terminal, log_rows};
use super::output::{DocumentKind, print, print_failure, print_message, print_warnings};
use super::{now, runtime};
use crate::agent::authority::rotate::Follower;
use crate::agent::load::Loaded;
use crate::agent::node_report;
use crate::agent::rotation;
use crate::agent::{self, ExitCode, Failure, RenewalVerdict, Scope, Survey};
use crate::daemon::metrics::Metrics;
use crate::kube::names::CertName;
use crate::process::confine::confine;
use crate::signer;
use crate::yaml;

/// Exit status of `needs-renewal` if the answer is unknown. `ExecCondition=` treats 255 as a failure of the unit. With any
/// other status, systemd would skip the unit silently, for example because of a misspelled `--name`.
const UNKNOWN_STATUS: u8 = 255;

#[derive(Debug, Args)]
pub(super) struct RenewArgs {
    #[command(flatten)]
    names: NameArgs,
    /// Renew every certificate, due or not
    #[arg(long, conflicts_with_all = ["name", "certificates"])]
    all: bool,
    /// Include certificates renewed within the last hour, and use new keys regardless of rotation.rekey: for keys that
    /// may be compromised
    #[arg(long)]
    force: bool,
    /// Show what would be done, and why; writes nothing and contacts no signer
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Debug, Args)]
pub(super) struct NeedsRenewalArgs {
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Only these certificates, by kubeadm's names, as in apiserver,admin.conf; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        hide_short_help = true
    )]
    name: Vec<String>,
    /// Only these certificates, by kubeadm's names, as in apiserver
    #[arg(value_name = "CERTIFICATE", value_delimiter = ',')]
    certificates: Vec<String>,
}

impl NameArgs {
    fn given(&self) -> impl Iterator<Item = &String> {
        self.name.iter().chain(&self.certificates)
    }

    /// Returns the given names, or `None` if there are none.
    fn parse(&self) -> Result<Option<BTreeSet<CertName>>, Failure> {
        let names: BTreeSet<CertName> = self
            .given()
            .map(|name| parse_name(name))
            .collect::<Result<_, Failure>>()?;
        Ok((!names.is_empty()).then_some(names))
    }
}

/// Returns the certificate of this name, which may be a registered one.
fn parse_name(name: &str) -> Result<CertName, Failure> {
    name.parse().map_err(|_| unknown_name(name, &[]))
}

/// Returns the certificate of this name, which the node has by its configuration.
pub(super) fn planned_name(name: &str, loaded: &Loaded) -> Result<CertName, Failure> {
    let name = parse_name(name)?;
    require_planned(&BTreeSet::from([name]), loaded)?;
    Ok(name)
}

/// Reports a name that is neither always defined nor among `registered`.
pub(super) fn unknown_name(name: &str, registered: &[&str]) -> Failure {
    let known: [&[&str]; 2] = [&CertName::ALL.map(CertName::as_str), registered];
    let known = known.concat();
    let otherwise = format!("use one of {}", known.join(", "));
    let fix = yaml::fix_for(name, known, otherwise);
    Failure::usage(format!("{name:?} is not the name of a certificate ({fix})"))
}

/// Verifies that the node has all these certificates by its configuration.
fn require_planned(names: &BTreeSet<CertName>, loaded: &Loaded) -> Result<(), Failure> {
    let plan = &loaded.setup.plan;
    let Some(name) = names.iter().find(|name| plan.cert(**name).is_none()) else {
        return Ok(());
    };
    let registered = loaded.settings.registered.certificates();
    let registered: Vec<&str> = registered.iter().map(|one| one.name.as_str()).collect();
    if let CertName::Registered(name) = name
        && !registered.contains(&name.as_str())
    {
        return Err(unknown_name(name.as_str(), &registered));
    }
    let planned: Vec<_> = plan.certs.iter().map(|spec| spec.name().as_str()).collect();
    Err(Failure::usage(format!(
        "{name}: this node does not have such a certificate by its configuration (use one of {})",
        planned.join(", ")
    )))
}

impl RenewArgs {
    fn scope(&self, names: Option<BTreeSet<CertName>>, loaded: &Loaded) -> Result<Scope, Failure> {
        let every = || {
            let certs = loaded.setup.plan.certs.iter();
            certs.map(|spec| spec.name()).collect()
        };
        if let Some(names) = &names {
            require_planned(names, loaded)?;
        }
        Ok(match (names, self.all, self.force) {
            (Some(names), _, true) => Scope::Forced(names),
            (Some(names), _, false) => Scope::Names(names),
            (None, true, true) => Scope::Forced(every()),
            (None, true, false) => Scope::All,
            (None, false, false) => Scope::Due,
            (None, false, true) => {
                return Err(Failure::usage(
                    "--force needs the certificates to renew (add their names, or --all)",
                ));
            }
        })
    }

    /// Returns the command with these options, as an administrator types it.
    fn command(&self, global: &GlobalOptions) -> String {
        let mut command = self.run.command(global, "renew");
        for name in self.names.given() {
            command.push_str(&format!(" {}", signer::quoted(name)));
        }
        for (option, is_given) in [("--all", self.all), ("--force", self.force)] {
            if is_given {
                command.push_str(&format!(" {option}"));
            }
        }
        command
    }

    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let command = self.command(global);
        self.renew(global, &command)
            .map_err(|failure| next::closed(failure, &command))
    }

    fn renew(self, global: &GlobalOptions, command: &str) -> Result<ExitCode, Failure> {
        let names = self.names.parse()?;
        let mut inputs = self.run.inputs(global)?;
        if self.dry_run {
            inputs.identity_change = inputs.identity_change.shown();
        }
        let loaded = global.load_running(&inputs)?;
        let scope = self.scope(names, &loaded)?;
        let root = global.open_root()?;
        if self.dry_run {
            return dry_run(
                global,
                &loaded,
                &agent::planned_renewal(&root, &loaded.setup, &scope, now())?,
                command,
            );
        }
        loaded.keep_cluster_policy(&root)?;
        confine(&loaded.reach(&root)?);
        let terminal = Terminal::new(global.verbose);
        let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "renew");
        let recorder = metrics.recorder(&loaded.setup, &terminal, now());
        let mut follower = Follower::default();
        let renew = rotation::step(&root, &loaded, &scope, &mut follower, now, &recorder);
        let runtime = runtime()?;
        let renewed = runtime.block_on(terminal.during(renew));
        drop(terminal);
        let reported = runtime.block_on(node_report::write(&root, &loaded, now()));
        if let Err(failure) = reported {
            print_warnings(&[format!("nodeReport: {failure}")]);
        }
        let code = ExitCode::of(renewed.as_ref().map(|renewed| &renewed.report));
        let due = renewed.as_ref().ok().and_then(|renewed| renewed.next);
        print_warnings(&metrics.ended(&loaded.setup, code, due, now()));
        let report = renewed?.report;
        log_rows(&report);
        let code = code.max(metrics.code());
        let next = next::after_run(global, &NodeFacts::of(&loaded), &report, code, command);
        global.finish(DocumentKind::Renewal, &report, code, next)
    }
}

fn dry_run(
    global: &GlobalOptions,
    loaded: &Loaded,
    survey: &Survey,
    command: &str,
) -> Result<ExitCode, Failure> {
    let report = agent::report::planned(&loaded.setup, survey);
    let code = match loaded.setup.identity_conflicts.as_slice() {
        [] => report.code(),
        // The report has them among its notes.
        _ => report.code().max(ExitCode::Refused),
    };
    let next = match code {
        ExitCode::Done if survey.is_settled() => None,
        ExitCode::Done => Some(command.to_owned()),
        code => next::other_command(&report, command).or_else(|| Some(next::again(code, command))),
    };
    global.finish(DocumentKind::Plan, &report, code, next)
}

/// Returns the exit status for an answer.
const fn status_of(answer: RenewalVerdict) -> u8 {
    match answer {
        RenewalVerdict::Yes => 0,
        RenewalVerdict::No => 1,
        RenewalVerdict::Nothing => 2,
        RenewalVerdict::Unknown => UNKNOWN_STATUS,
    }
}

impl NeedsRenewalArgs {
    /// Returns the exit status; a failure is an answer too.
    pub(super) fn run(self, global: &GlobalOptions) -> u8 {
        match self.answer(global) {
            Ok(answer) => status_of(answer),
            Err(failure) => {
                print_failure(&failure);
                UNKNOWN_STATUS
            }
        }
    }

    fn answer(self, global: &GlobalOptions) -> Result<RenewalVerdict, Failure> {
        let names = self.names.parse()?;
        let loaded = global.load_running(&self.run.inputs(global)?)?;
        let scope = match names {
            Some(names) => {
                require_planned(&names, &loaded)?;
                Scope::Names(names)
            }
            None => Scope::Due,
        };
        let need = agent::needs_renewal(&global.open_root()?, &loaded.setup, &scope, now())?;
        if need.answer == RenewalVerdict::Unknown {
            print_message(&need.reason);
        }
        if global.output.is_text() {
            print(&format!("{}\n", need.reason))?;
        } else {
            let kind = DocumentKind::RenewalNeed;
            global.print_body(kind, status_of(need.answer), &need, String::new)?;
        }
        Ok(need.answer)
    }
}
