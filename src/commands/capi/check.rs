//! `capi check`: reads the Secrets of a workload cluster, from a management cluster or from a manifest, judges them, and
//! prints or stores the conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::stdin;
use std::path::Path;

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::conditions::{self, Findings, SecretState};
use super::follow::{self, Interval};
use super::secrets::{ClusterTarget, Format, Object, Purpose};
use super::status::{self, StatusChange};
use super::sync::{self, Expiries};
use super::{TargetArgs, apply, render_expiries, rights, workload};
use crate::agent::{ExitCode, Failure, load};
use crate::cluster::api::Api;
use crate::commands::options::GlobalOptions;
use crate::commands::output::{DocumentKind, print, table};
use crate::commands::{now, runtime};
use crate::config::Argument;
use crate::store::NodeRoot;
use crate::text::rfc3339;
use crate::yaml;

#[derive(Debug, Args)]
pub(in crate::commands) struct CheckArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    source: SecretSource,
    /// Note differences from the CAs that the workload cluster trusts, read with CLUSTER-kubeconfig
    #[arg(long, conflicts_with_all = ["from_file", "crd"])]
    workload: bool,
    /// Compare the certificates of the control-plane machines with the expiry that Cluster API knows
    #[arg(long, conflicts_with_all = ["from_file", "crd", "watch"])]
    machines: bool,
    /// Port of kube-apiserver on the machines
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 6443,
        requires = "machines"
    )]
    api_port: u16,
    /// Store the conditions in the status of the ControlPlanePKI of the same name
    #[arg(long, conflicts_with_all = ["from_file", "crd"])]
    write: bool,
    /// Continue until SIGTERM, and store the conditions after every change
    #[arg(long, requires = "write")]
    watch: bool,
    /// Maximum time between two checks with --watch, from 10s to 24h
    #[arg(
        long,
        value_name = "DURATION",
        requires = "watch",
        default_value = "10m"
    )]
    interval: Interval,
}

/// Source of the Secrets, or a manifest to print instead.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SecretSource {
    /// Kubeconfig of the management cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// Manifest with the Secrets, or the output of `kubectl get secrets -o yaml`; - for standard input
    #[arg(long, value_name = "MANIFEST")]
    from_file: Option<Argument>,
    /// Print a ServiceAccount with the rights that the other options need, for `kubectl apply -f -`
    #[arg(long)]
    rights: bool,
    /// Print the definition of ControlPlanePKI, for `kubectl apply -f -`
    #[arg(long)]
    crd: bool,
}

/// The Secrets to judge.
pub(super) struct JudgedSecrets {
    pub(super) target: ClusterTarget,
    pub(super) format: Format,
    pub(super) external_etcd: bool,
    /// Compare them with the workload cluster.
    workload: bool,
}

impl JudgedSecrets {
    /// Returns the Secrets to read.
    fn purposes(&self) -> BTreeSet<Purpose> {
        let access = self.workload.then_some(Purpose::Kubeconfig);
        let judged = conditions::judged(self.format, self.external_etcd);
        judged.chain(access).collect()
    }

    /// Returns their names.
    pub(super) fn names(&self) -> Vec<String> {
        let purposes = self.purposes().into_iter();
        purposes.map(|purpose| self.target.name(purpose)).collect()
    }

    /// Reads and judges the Secrets in a management cluster.
    ///
    /// # Errors
    /// Errors of the API server, except for a Secret that does not exist.
    async fn check(&self, api: &Api, now: OffsetDateTime) -> Result<Findings, Failure> {
        let found = apply::read(api, &self.target, self.purposes().into_iter()).await?;
        let mut findings = self.judge(&found, now);
        if self.workload {
            workload::compare(&self.target, &found, &mut findings).await;
        }
        Ok(findings)
    }

    /// As [`JudgedSecrets::check`], and stores the conditions.
    pub(super) async fn store(
        &self,
        api: &Api,
        now: OffsetDateTime,
    ) -> Result<(Findings, StatusChange), Failure> {
        let mut findings = self.check(api, now).await?;
        let change = status::write(api, &self.target, &mut findings, now).await?;
        Ok((findings, change))
    }

    fn judge(&self, found: &BTreeMap<Purpose, Object>, now: OffsetDateTime) -> Findings {
        conditions::judge(&self.target, self.format, self.external_etcd, found, now)
    }
}

impl CheckArgs {
    pub(super) fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let judged = JudgedSecrets {
            target: self.target.target()?,
            format: self.target.format,
            external_etcd: self.target.external_etcd,
            workload: self.workload,
        };
        if self.source.crd {
            return print(&status::definition(&judged.target));
        }
        if let Some(file) = &self.source.from_file {
            let root = global.open_root()?;
            let text = read_manifest(&root, file)?;
            let file = load::shown(&root, file).display().to_string();
            let findings = check_manifest(&file, &text, &judged, now())?;
            return Checked::of(findings).print(global);
        }
        let Some(kubeconfig) = &self.source.kubeconfig else {
            // clap requires --rights then.
            return print(&self.rights(&judged));
        };
        let api = load::cluster(&global.open_root()?, kubeconfig)?;
        let runtime = runtime()?;
        if self.watch {
            runtime.block_on(follow::follow(&api, &judged, self.interval, now))?;
            return Ok(ExitCode::Done);
        }
        // First, so that conditions are printed whenever they are stored.
        let expiries = if self.machines {
            let compared = sync::compare(&api, &judged.target, self.api_port, now);
            Some(runtime.block_on(compared)?)
        } else {
            None
        };
        let findings = if self.write {
            runtime.block_on(judged.store(&api, now()))?.0
        } else {
            runtime.block_on(judged.check(&api, now()))?
        };
        Checked { findings, expiries }.print(global)
    }

    /// Returns a ServiceAccount with exactly the rights that the command needs with these options.
    fn rights(&self, judged: &JudgedSecrets) -> String {
        let target = &judged.target;
        let verbs: &[&str] = if self.watch {
            &["get", "list", "watch"]
        } else {
            &["get"]
        };
        let mut rules = vec![rights::secrets(&judged.names(), verbs)];
        let mut options = self.target.options();
        if self.workload {
            options.push_str(" --workload");
        }
        if self.machines {
            rules.push(sync::rule_to_compare());
            options.push_str(" --machines");
        }
        if self.write {
            rules.extend(status::rules(target, verbs));
            options.push_str(" --write");
        }
        if self.watch {
            options.push_str(" --watch");
        }
        rights::manifest(target, "check", &options, &rules)
    }
}

/// What the command prints.
#[derive(Serialize)]
struct Checked {
    #[serde(flatten)]
    findings: Findings,
    /// With `--machines`.
    #[serde(flatten)]
    expiries: Option<Expiries>,
}

impl Checked {
    fn of(findings: Findings) -> Checked {
        Checked {
            findings,
            expiries: None,
        }
    }

    /// Prints the document, and returns the gravest state of a Secret or a machine.
    fn print(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let secrets = if self.findings.any(SecretState::Invalid) {
            ExitCode::Refused
        } else if self.findings.any(SecretState::Missing) {
            ExitCode::Pending
        } else {
            ExitCode::Done
        };
        let machines = self.expiries.as_ref().map(Expiries::code);
        let code = machines.map_or(secrets, |machines| machines.max(secrets));
        global.print_body(DocumentKind::CapiConditions, code, self, || self.render())
    }

    fn render(&self) -> String {
        let mut text = render(&self.findings);
        if let Some(expiries) = &self.expiries {
            text.push('\n');
            text.push_str(&render_expiries("EXPIRY", &expiries.machines));
        }
        text
    }
}

/// Judges the Secrets of a manifest: YAML documents, or the List that `kubectl get -o yaml` prints. A Secret without a
/// namespace is taken as one of the cluster's namespace. `file` is the name for messages.
fn check_manifest(
    file: &str,
    text: &str,
    judged: &JudgedSecrets,
    now: OffsetDateTime,
) -> Result<Findings, Failure> {
    let documents = yaml::parse(file, text).map_err(load::faulty)?;
    let mut found = BTreeMap::new();
    for document in &documents {
        let mut document = Object(yaml::to_json(document));
        let items = document.0.get_mut("items").map(Value::take);
        let objects = match items {
            Some(Value::Array(items)) => items.into_iter().map(Object).collect(),
            _ => vec![document],
        };
        for object in objects {
            let is_candidate = object.0.get("kind").and_then(Value::as_str) == Some("Secret")
                && object
                    .namespace()
                    .is_none_or(|namespace| namespace == judged.target.namespace());
            let name = object.name().map(str::to_owned);
            let mut purposes = Purpose::ALL.into_iter().filter(|_| is_candidate);
            if let Some(purpose) =
                purposes.find(|purpose| Some(judged.target.name(*purpose)) == name)
            {
                found.insert(purpose, object);
            }
        }
    }
    Ok(judged.judge(&found, now))
}

/// Reads a manifest from a file, or from standard input, which keeps its private keys off the disk.
fn read_manifest(root: &NodeRoot, file: &Argument) -> Result<Zeroizing<String>, Failure> {
    let read = if file.as_given() == Path::new("-") {
        std::io::read_to_string(stdin())
    } else {
        load::read_argument(root, file)
    };
    read.map(Zeroizing::new).map_err(|error| {
        Failure::caused(
            ExitCode::Configuration,
            load::shown(root, file).display().to_string(),
            error,
        )
    })
}

fn render(findings: &Findings) -> String {
    let conditions = findings.conditions.iter().map(|condition| {
        let cells = [condition.kind, condition.status, condition.reason];
        let message = (!condition.message.is_empty()).then(|| condition.message.clone());
        (
            cells.map(str::to_owned).to_vec(),
            message.into_iter().collect(),
        )
    });
    let evidence = findings.evidence.iter().map(|evidence| {
        let end = evidence.not_after.map_or_else(|| "-".to_owned(), rfc3339);
        let notes = evidence.notes.iter().map(|note| format!("note: {note}"));
        (
            vec![evidence.secret.clone(), evidence.state.to_string(), end],
            evidence.faults.iter().cloned().chain(notes).collect(),
        )
    });
    let conditions = table::aligned(&["CONDITION", "STATUS", "REASON"], conditions.collect());
    let evidence = table::aligned(&["SECRET", "STATE", "NOT AFTER"], evidence.collect());
    format!("{conditions}\n{evidence}")
}
