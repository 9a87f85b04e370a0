//! `nodepki capi secrets` and `nodepki capi check`: the Secrets of Cluster API's external-CA flow. `nodepki capi sync`: the
//! expiry of each machine's certificates.
//!
//! [`issue`] has the certificates signed, [`secrets`] defines the Secrets, [`apply`] writes them to the management
//! cluster, [`check`] and [`conditions`] judge them. [`etcd_clients`] is the CA of the controllers' etcd clients. [`migrate`]
//! removes the CA keys from the Secrets and restores them. [`sync`] is independent of the others.

mod apply;
mod check;
mod conditions;
mod etcd_clients;
mod issue;
mod migrate;
mod secrets;
mod sync;

use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;

use clap::{Args, Subcommand};
use zeroize::Zeroizing;

use super::options::{GlobalOptions, RunOptions};
use super::output::terminal::Terminal;
use super::output::{
    Closing, DocumentKind, print, print_exact, print_message, print_to_stderr, print_warnings,
    table,
};
use super::{now, runtime};
use crate::agent::load::{self, Location};
use crate::agent::{ExitCode, Failure};
use crate::config::Argument;
use crate::store::NodeRoot;
use crate::x509::rfc3339;
use conditions::{Findings, SecretState};
use issue::Order;
use secrets::{ClusterTarget, Format, SecretSpec};

#[derive(Debug, Subcommand)]
pub(super) enum CapiCommand {
    /// Create the Secrets that the controllers wait for, signed by the external signer
    ///
    /// CLUSTER-ca, CLUSTER-etcd and CLUSTER-proxy (certificates only), CLUSTER-apiserver-etcd-client and
    /// CLUSTER-kubeconfig, and CLUSTER-admin for the external-CA proposal. Cluster API creates CLUSTER-sa itself. Prints a
    /// manifest for `kubectl apply -f -`, writes it to a file with --out, or applies it to the cluster with --apply.
    ///
    /// Keys are generated here and stay in the cluster's state directory (0700). A repeated run prints the same Secrets;
    /// certificates that have expired or differ from the desired state are issued again.
    Secrets(Box<SecretsArgs>),
    /// Judge the Secrets by the conditions ExternalCAsReady and ExternalClientCertificatesReady
    ///
    /// Exit status: 0 if both are true; 65 if a Secret exists and cannot be used; 75 if a Secret is missing.
    Check(CheckArgs),
    /// Report to Cluster API when the certificates of each control-plane machine expire
    ///
    /// Reads the certificate that kube-apiserver presents at each Machine's address, and writes its expiry to the annotation
    /// machine.cluster.x-k8s.io/certificates-expiry of the Machine. Cluster API reads the expiry only once, so that
    /// rollout.before.certificatesExpiryDays would replace machines whose certificates were renewed. Run it from a timer.
    ///
    /// Exit status: 0 if all annotations are correct; 65 if a certificate is not one of the cluster; 69 if a machine does not
    /// answer.
    Sync(SyncArgs),
    /// Remove the CA keys from the Secrets, or restore them from a backup
    #[command(subcommand)]
    Migrate(migrate::CapiMigrateCommand),
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// Name of the Cluster object
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Namespace of the Cluster object
    #[arg(long, value_name = "NS", default_value = "default")]
    namespace: String,
    /// Consumer of the Secrets
    #[arg(long, value_enum, default_value_t = Format::Current)]
    format: Format,
    /// etcd is external: leave out its two Secrets, which you provide as without an external CA
    #[arg(long)]
    external_etcd: bool,
}

impl TargetArgs {
    fn target(&self) -> Result<ClusterTarget, Failure> {
        ClusterTarget::new(&self.cluster, &self.namespace)
            .map_err(|error| Failure::new(ExitCode::Usage, error))
    }
}

#[derive(Debug, Args)]
pub(super) struct SecretsArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The workload cluster's API server, instead of controlPlaneEndpoint of --kubeadm-config
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Option<String>,
    /// Directory with the CA certificates, in the layout of /etc/kubernetes/pki; default: authorities.X.trust.file, then
    /// the signer
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<Argument>,
    /// State directory for keys and certificates; default: /var/lib/nodepki/capi/NS/CLUSTER
    #[arg(long, value_name = "DIR")]
    state: Option<Argument>,
    /// Add a placeholder tls.key to CLUSTER-ca and CLUSTER-proxy: today's Cluster API lets no node join without one
    #[arg(long)]
    placeholder_keys: bool,
    /// Create a CA for the controllers' etcd clients, with its key in CLUSTER-etcd: today's Cluster API lets no further
    /// node with stacked etcd join without a key there. Later runs keep it. See docs/cluster-api.md
    #[arg(long, conflicts_with = "external_etcd")]
    etcd_client_ca: bool,
    /// Write the manifest to FILE, mode 0600
    #[arg(long, value_name = "FILE", conflicts_with = "apply")]
    out: Option<Argument>,
    /// Create or update the Secrets in the management cluster
    #[arg(long, requires = "kubeconfig")]
    apply: bool,
    /// Kubeconfig of the management cluster
    #[arg(long, value_name = "FILE", requires = "apply")]
    kubeconfig: Option<Argument>,
    /// Also replace Secrets with another owner, with another CA, or with unreadable content
    #[arg(long, requires = "apply")]
    replace: bool,
    /// Print private keys even if standard output is a terminal
    #[arg(long)]
    show_secrets: bool,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    source: SecretSource,
}

/// Source of the Secrets.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SecretSource {
    /// Kubeconfig of the management cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// Manifest with the Secrets, or the output of `kubectl get secrets -o yaml`; - for standard input
    #[arg(long, value_name = "MANIFEST")]
    from_file: Option<Argument>,
}

#[derive(Debug, Args)]
pub(super) struct SyncArgs {
    /// Name of the Cluster object
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Namespace of the Cluster object
    #[arg(long, value_name = "NS", default_value = "default")]
    namespace: String,
    /// Kubeconfig of the management cluster
    #[arg(long, value_name = "FILE", required_unless_present = "rights")]
    kubeconfig: Option<Argument>,
    /// Port of kube-apiserver on the machines
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    api_port: u16,
    /// Print a ServiceAccount with the rights that this command needs, for `kubectl apply -f -`
    #[arg(long, conflicts_with = "kubeconfig")]
    rights: bool,
}

impl CapiCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        match self {
            CapiCommand::Secrets(arguments) => arguments.run(global),
            CapiCommand::Check(arguments) => arguments.run(global),
            CapiCommand::Sync(arguments) => arguments.run(global),
            CapiCommand::Migrate(command) => command.run(global),
        }
    }
}

impl SecretsArgs {
    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let is_printed = self.out.is_none() && !self.apply;
        if is_printed && stdout().is_terminal() && !self.show_secrets {
            return Err(Failure::new(
                ExitCode::Usage,
                "the manifest contains private keys, but standard output is a terminal (pipe it into kubectl apply -f -, or use --out FILE or --apply; --show-secrets prints it anyway)",
            ));
        }
        let root = global.open_root()?;
        let order = Order {
            target: self.target.target()?,
            endpoint: self.endpoint.clone(),
            external_etcd: self.target.external_etcd,
            ca_dir: self.ca_dir.clone(),
            state: self.state.clone(),
        };
        let prepared = issue::load(&root, &self.run.inputs(global)?, &order, now())?;
        print_warnings(&prepared.warnings);
        let terminal = Terminal::new(global.verbose);
        let runtime = runtime()?;
        let issued = runtime.block_on(terminal.during(prepared.issue(now, &terminal)));
        drop(terminal);
        let (mut report, material) = issued?;
        let Some(material) = material else {
            // Standard output is for the manifest only.
            print_to_stderr(&table::render(&report, global.row_detail()));
            print_message(
                "no Secret was created; run the same command again to continue with the same keys",
            );
            return Ok(report.code());
        };
        let mut secrets =
            material.secrets(&order.target, self.target.format, self.placeholder_keys);
        if let Some(authority) = etcd_clients::load(prepared.state(), self.etcd_client_ca, now())? {
            authority.add_to(&mut secrets);
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            let api = load::cluster(&root, kubeconfig)?;
            let authorities = &material.authorities;
            let applied = apply::apply(&api, &secrets, authorities, self.replace, now());
            report.rows.extend(runtime.block_on(applied)?);
            return global.finish(DocumentKind::CapiSecrets, &report, report.code(), None);
        }
        print_warnings(&report.notes);
        match &self.out {
            Some(file) => write_manifest(&root, file, &secrets)?,
            None => print_exact(&secrets::manifest(&secrets))?,
        };
        Ok(report.code())
    }
}

fn write_manifest(
    root: &NodeRoot,
    file: &Argument,
    made: &[SecretSpec],
) -> Result<ExitCode, Failure> {
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
                "--out {}: the directory does not exist (create it first)",
                shown.display()
            ),
        ));
    };
    directory.write_atomic(name, secrets::manifest(made).as_bytes(), 0o600)?;
    let names: Vec<String> = made.iter().map(SecretSpec::name).collect();
    print(&format!(
        "{} written to {}; to apply, run: kubectl apply -f {}\n",
        names.join(", "),
        shown.display(),
        shown.display()
    ))
}

impl CheckArgs {
    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let root = global.open_root()?;
        let target = self.target.target()?;
        let (format, external) = (self.target.format, self.target.external_etcd);
        let findings = match (&self.source.from_file, &self.source.kubeconfig) {
            (Some(file), _) => {
                let text = read_manifest(&root, file)?;
                let file = load::shown(&root, file).display().to_string();
                check::check_manifest(&file, &text, &target, format, external, now())?
            }
            (None, Some(kubeconfig)) => {
                let api = load::cluster(&root, kubeconfig)?;
                let check = check::check_cluster(&api, &target, format, external, now());
                runtime()?.block_on(check)?
            }
            // clap requires one of them.
            (None, None) => {
                return Err(Failure::new(
                    ExitCode::Usage,
                    "name a management cluster with --kubeconfig FILE, or a manifest with --from-file MANIFEST",
                ));
            }
        };
        let code = if findings.any(SecretState::Invalid) {
            ExitCode::Refused
        } else if findings.any(SecretState::Missing) {
            ExitCode::Pending
        } else {
            ExitCode::Done
        };
        let closing = Closing::default();
        global.print_body(
            DocumentKind::CapiConditions,
            code,
            &closing,
            &findings,
            || render(&findings),
        )?;
        Ok(code)
    }
}

impl SyncArgs {
    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let target = ClusterTarget::new(&self.cluster, &self.namespace)
            .map_err(|error| Failure::new(ExitCode::Usage, error))?;
        let Some(kubeconfig) = &self.kubeconfig else {
            // clap requires --rights then.
            return print(&sync::rights(&target));
        };
        let api = load::cluster(&global.open_root()?, kubeconfig)?;
        let expiries = runtime()?.block_on(sync::sync(&api, &target, self.api_port, now))?;
        let code = expiries.code();
        global.print_body(
            DocumentKind::CapiSync,
            code,
            &Closing::default(),
            &expiries,
            || render_expiries(&expiries),
        )?;
        Ok(code)
    }
}

fn render_expiries(expiries: &sync::Expiries) -> String {
    let rows = expiries.machines.iter().map(|machine| {
        let end = machine.not_after.map_or_else(|| "-".to_owned(), rfc3339);
        let cells = vec![
            machine.machine.clone(),
            machine.action.as_str().to_owned(),
            end,
        ];
        (cells, machine.reasons.clone())
    });
    table::aligned(&["MACHINE", "ANNOTATION", "NOT AFTER"], rows.collect())
}

/// Reads a manifest from a file, or from standard input, which keeps its private keys off the disk.
fn read_manifest(root: &NodeRoot, file: &Argument) -> Result<Zeroizing<String>, Failure> {
    let read = match file.as_given() == Path::new("-") {
        true => std::io::read_to_string(stdin()),
        false => load::read_argument(root, file),
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
