//! `renew` and `needs-renewal`.

use std::collections::BTreeSet;

use clap::Args;

use super::terminal::Terminal;
use super::{Global, Output, Run, now, print, runtime, say, tell, tell_remainder, warn};
use crate::agent::load::{IdentityChange, Loaded};
use crate::agent::rotation;
use crate::agent::{self, Answer, ExitCode, Failure, Scope};
use crate::daemon::metrics::Metrics;
use crate::kube::names::CertName;
use crate::process::confine::confine;
use crate::yaml;

/// "Cannot tell": what ExecCondition= takes for a failure of the unit. By any other status than 0 a unit with a name that
/// is none would be skipped for ever, and nobody told.
const CANNOT_TELL: u8 = 255;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    names: Names,
    /// Renew every certificate, due or not
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Also what was renewed within the last hour, and with new keys whatever rotation.rekey says: for keys that may be
    /// known to others
    #[arg(long)]
    force: bool,
    /// Show what would be done, and why; nothing is written or sent
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Args)]
pub(super) struct NeedsArguments {
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Args)]
struct Names {
    /// Only these, by kubeadm's names, as in apiserver,admin.conf; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    name: Vec<String>,
}

impl Names {
    /// `None` when none is given.
    fn parse(&self) -> Result<Option<BTreeSet<CertName>>, Failure> {
        let names: BTreeSet<CertName> = self
            .name
            .iter()
            .map(|name| name.parse().map_err(|_| unknown(name)))
            .collect::<Result<_, Failure>>()?;
        Ok((!names.is_empty()).then_some(names))
    }
}

fn unknown(name: &str) -> Failure {
    let known = || CertName::ALL.into_iter().map(CertName::as_str);
    let fix = match yaml::did_you_mean(name, known()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("use one of {}", known().collect::<Vec<_>>().join(", ")),
    };
    Failure::new(
        ExitCode::Usage,
        format!("--name {name:?} is no certificate; {fix}"),
    )
}

/// A name that is right, but not here.
fn held(names: &BTreeSet<CertName>, loaded: &Loaded) -> Result<(), Failure> {
    let plan = &loaded.setup.plan;
    match names.iter().find(|name| plan.cert(**name).is_none()) {
        None => Ok(()),
        Some(name) => {
            let held: Vec<_> = plan.certs.iter().map(|spec| spec.name.as_str()).collect();
            Err(Failure::new(
                ExitCode::Usage,
                format!(
                    "--name {name}: this node holds no such certificate by its configuration; it holds {}",
                    held.join(", ")
                ),
            ))
        }
    }
}

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let names = self.names.parse()?;
        let mut inputs = self.run.inputs(global)?;
        if self.dry_run {
            inputs.identity_change = IdentityChange::Show;
        }
        let loaded = global.load_running(&inputs)?;
        let every = || {
            loaded
                .setup
                .plan
                .certs
                .iter()
                .map(|spec| spec.name)
                .collect()
        };
        let scope = match names {
            Some(names) => {
                held(&names, &loaded)?;
                match self.force {
                    true => Scope::Forced(names),
                    false => Scope::Names(names),
                }
            }
            None if self.all && self.force => Scope::Forced(every()),
            None if self.all => Scope::All,
            None if self.force => {
                return Err(Failure::new(
                    ExitCode::Usage,
                    "--force does not say what is to be renewed (add --name NAME or --all)",
                ));
            }
            None => Scope::Due,
        };
        let root = global.open_root()?;
        if self.dry_run {
            let survey = agent::look(&root, &loaded.setup, &scope, now())?;
            let report = agent::report::planned(&loaded.setup, &survey);
            return global.end_with(&report);
        }
        confine(&loaded.reach(&root)?);
        let terminal = Terminal::new(global.verbose);
        let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "renew");
        let recorder = metrics.recorder(&loaded.setup, &terminal, now());
        let renew = rotation::step(&root, &loaded, &scope, now, &recorder);
        let renewed = runtime()?.block_on(renew);
        drop(terminal);
        let code = ExitCode::of(renewed.as_ref().map(|renewed| &renewed.report));
        let next = renewed.as_ref().ok().and_then(|renewed| renewed.next);
        warn(&metrics.ended(&loaded.setup, code, next, now()));
        let report = renewed?.report;
        rotation::log(&report);
        let code = global.end_with(&report)?;
        tell_remainder(&report);
        Ok(code.max(metrics.code()))
    }
}

impl NeedsArguments {
    /// The exit status; a failure too is an answer.
    pub(super) fn run(self, global: &Global) -> u8 {
        match self.answer(global) {
            Ok(Answer::Yes) => 0,
            Ok(Answer::No) => 1,
            Ok(Answer::Nothing) => 2,
            Ok(Answer::Unknown) => CANNOT_TELL,
            Err(failure) => {
                tell(&failure);
                CANNOT_TELL
            }
        }
    }

    fn answer(self, global: &Global) -> Result<Answer, Failure> {
        let names = self.names.parse()?;
        let loaded = global.load_running(&self.run.inputs(global)?)?;
        let scope = match names {
            Some(names) => {
                held(&names, &loaded)?;
                Scope::Names(names)
            }
            None => Scope::Due,
        };
        let need = agent::needs_renewal(&global.open_root()?, &loaded.setup, &scope, now())?;
        if need.answer == Answer::Unknown {
            say(&need.reason);
        }
        match global.output {
            Output::Table | Output::Tree => print(&format!("{}\n", need.reason))?,
            _ => global.print_value(&need, global.output)?,
        };
        Ok(need.answer)
    }
}
