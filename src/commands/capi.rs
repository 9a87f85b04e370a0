//! `capi secrets` and `capi check`: the Secrets of Cluster API's external-CA flow, and the conditions that judge them.

pub mod cluster_api;

use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use zeroize::Zeroizing;

use super::terminal::Terminal;
use super::{Global, Output, Run, now, print, print_exact, runtime, say, screen, table, warn};
use crate::agent::load::{self, Location};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::store::Root;
use crate::x509::rfc3339;
use cluster_api::Order;
use cluster_api::conditions::Findings;
use cluster_api::secrets::{self, Secret, Target};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make the Secrets that the controllers wait for, signed by the external signer
    ///
    /// CLUSTER-ca, CLUSTER-etcd and CLUSTER-proxy (certificates only), CLUSTER-apiserver-etcd-client and
    /// CLUSTER-kubeconfig, and CLUSTER-admin for the external-CA proposal. Cluster API makes CLUSTER-sa itself. Prints a
    /// manifest for `kubectl apply -f -`, or writes it with --out, or brings it to the cluster with --apply.
    ///
    /// Keys are made here and stay in the cluster's state directory, 0700; run again, what is there is rendered anew and
    /// what has expired or differs from the wish is issued anew.
    Secrets(Box<SecretsArgs>),
    /// Judge the Secrets by the conditions ExternalCAsReady and ExternalClientCertificatesReady
    ///
    /// Exit status 0 when both are true, 65 when something is there and of no use, 75 when something is missing.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
struct Which {
    /// Name of the Cluster object
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Its namespace
    #[arg(long, value_name = "NS", default_value = "default")]
    namespace: String,
    /// Who reads the Secrets
    #[arg(long, value_enum, default_value_t = Format::Current)]
    format: Format,
    /// etcd is not stacked: its two Secrets are yours, as without an external CA
    #[arg(long)]
    external_etcd: bool,
}

/// Who reads the Secrets.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Cluster API as it is: tls.crt
    Current,
    /// The external-CA proposal: ca.crt, and CLUSTER-admin
    Proposal,
    /// Either
    Both,
}

impl From<Format> for secrets::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Current => secrets::Format::Current,
            Format::Proposal => secrets::Format::Proposal,
            Format::Both => secrets::Format::Both,
        }
    }
}

impl Which {
    fn target(&self) -> Result<Target, Failure> {
        Target::new(&self.cluster, &self.namespace)
            .map_err(|error| Failure::new(ExitCode::Usage, error))
    }
}

#[derive(Debug, Args)]
pub(super) struct SecretsArgs {
    #[command(flatten)]
    which: Which,
    /// The workload cluster's API server, instead of controlPlaneEndpoint of --kubeadm-config
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Option<String>,
    /// The authorities' certificates, laid out as below /etc/kubernetes/pki; default: authorities.X.trust.file, then the
    /// signer
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<Argument>,
    /// Where keys and certificates stay; default: /var/lib/nodepki/capi/NS/CLUSTER
    #[arg(long, value_name = "DIR")]
    state: Option<Argument>,
    /// Give CLUSTER-ca and CLUSTER-proxy a tls.key that is no key: Cluster API up to now lets no node join without one
    #[arg(long)]
    placeholder_keys: bool,
    /// Write the manifest into FILE, mode 0600
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    out: Option<Argument>,
    /// Create or renew the Secrets in the management cluster
    #[arg(long, requires = "kubeconfig")]
    apply: bool,
    /// The management cluster
    #[arg(long, value_name = "FILE", requires = "apply")]
    kubeconfig: Option<Argument>,
    /// Replace Secrets of other owners, other CAs and unreadable ones as well
    #[arg(long, requires = "apply")]
    replace: bool,
    /// Print private keys on a terminal
    #[arg(long)]
    show_secrets: bool,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: Place,
}

/// Where the Secrets are.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Place {
    /// The management cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// A manifest with the Secrets, or what `kubectl get secrets -o yaml` printed; - for standard input
    #[arg(long, value_name = "MANIFEST")]
    from_file: Option<Argument>,
}

impl Command {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        match self {
            Command::Secrets(arguments) => arguments.run(global),
            Command::Check(arguments) => arguments.run(global),
        }
    }
}

impl SecretsArgs {
    fn run(&self, global: &Global) -> Result<ExitCode, Failure> {
        let printed = self.out.is_none() && !self.apply;
        if printed && stdout().is_terminal() && !self.show_secrets {
            return Err(Failure::new(
                ExitCode::Usage,
                "the manifest holds private keys and standard output is a terminal; pipe it into kubectl apply -f -, or use --out FILE or --apply (--show-secrets prints it all the same)",
            ));
        }
        let root = global.open_root()?;
        let order = Order {
            target: self.which.target()?,
            endpoint: self.endpoint.clone(),
            external_etcd: self.which.external_etcd,
            ca_dir: self.ca_dir.clone(),
            state: self.state.clone(),
        };
        let prepared = cluster_api::load(&root, &self.run.inputs(global)?, &order, now())?;
        warn(&prepared.warnings);
        let terminal = Terminal::new(global.verbose);
        let runtime = runtime()?;
        let issued = runtime.block_on(prepared.issue(now, &terminal));
        drop(terminal);
        let (mut report, material) = issued?;
        let Some(material) = material else {
            // Standard output is for a manifest, and there is none.
            screen::print_aside(&table::render(&report, global.verbose > 0, &global.root));
            say("no Secret was made; run the same command again to go on with the same keys");
            return Ok(report.code());
        };
        let made = material.secrets(
            &order.target,
            self.which.format.into(),
            self.placeholder_keys,
        );
        if let Some(kubeconfig) = &self.kubeconfig {
            let api = load::cluster(&root, kubeconfig)?;
            let applied =
                cluster_api::apply::apply(&api, &made, &material.authorities, self.replace, now());
            report.rows.extend(runtime.block_on(applied)?);
            return global.end_with(&report);
        }
        warn(&report.notes);
        match &self.out {
            Some(file) => write(&root, file, &made)?,
            None => print_exact(&secrets::manifest(&made))?,
        };
        Ok(report.code())
    }
}

fn write(root: &Root, file: &Argument, made: &[Secret]) -> Result<ExitCode, Failure> {
    let shown = load::shown(root, file);
    let Location { root, path, .. } = load::argument(root, file)?;
    let named = path.parent().zip(path.file_name());
    let directory = match named {
        Some((parent, _)) => root.dir(parent)?,
        None => None,
    };
    let (Some(directory), Some((_, name))) = (directory, named) else {
        return Err(Failure::new(
            ExitCode::Usage,
            format!(
                "--out {}: its directory does not exist; make it first",
                shown.display()
            ),
        ));
    };
    directory.write_atomic(name, secrets::manifest(made).as_bytes(), 0o600)?;
    let names: Vec<String> = made.iter().map(Secret::name).collect();
    print(&format!(
        "{} written to {}; apply it with: kubectl apply -f {}\n",
        names.join(", "),
        shown.display(),
        shown.display()
    ))
}

impl CheckArgs {
    fn run(&self, global: &Global) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let target = self.which.target()?;
        let (format, external) = (self.which.format.into(), self.which.external_etcd);
        let findings = match (&self.place.from_file, &self.place.kubeconfig) {
            (Some(file), _) => {
                let text = manifest(&root, file)?;
                let file = load::shown(&root, file).display().to_string();
                cluster_api::check_manifest(&file, &text, &target, format, external, now())?
            }
            (None, Some(kubeconfig)) => {
                let api = load::cluster(&root, kubeconfig)?;
                runtime()?.block_on(cluster_api::check(&api, &target, format, external, now()))?
            }
            // clap asks for one of them.
            (None, None) => {
                return Err(Failure::new(
                    ExitCode::Usage,
                    "name a management cluster with --kubeconfig FILE, or a manifest with --from-file MANIFEST",
                ));
            }
        };
        match global.output {
            Output::Table | Output::Tree => print(&render(&findings))?,
            _ => global.print_value(&findings, Output::Json)?,
        };
        Ok(match (findings.has_invalid(), findings.has_missing()) {
            (true, _) => ExitCode::Refused,
            (false, true) => ExitCode::Pending,
            (false, false) => ExitCode::Done,
        })
    }
}

/// There are keys in it, and a pipe leaves them on no disk.
fn manifest(root: &Root, file: &Argument) -> Result<Zeroizing<String>, Failure> {
    let read = match file.as_given() == Path::new("-") {
        true => std::io::read_to_string(stdin()),
        false => load::read_argument(root, file),
    };
    read.map(Zeroizing::new).map_err(|error| {
        Failure::caused(
            ExitCode::Configuration,
            format!("{}: {error}", load::shown(root, file).display()),
            &error,
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
            vec![
                evidence.secret.clone(),
                evidence.state.as_str().to_owned(),
                end,
            ],
            evidence.faults.iter().cloned().chain(notes).collect(),
        )
    });
    let conditions = table::aligned(&["CONDITION", "STATUS", "REASON"], conditions.collect());
    let evidence = table::aligned(&["SECRET", "STATE", "NOT AFTER"], evidence.collect());
    format!("{conditions}\n{evidence}")
}
