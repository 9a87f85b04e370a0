//! `nodepki capi secrets` and `nodepki capi check`: the Secrets of Cluster API's external-CA flow. `nodepki capi sync`: the
//! expiry of each machine's certificates.
//!
//! [`issue`] has the certificates signed, [`secrets`] defines the Secrets, [`apply`] writes them to the management
//! cluster, [`check`] and [`conditions`] judge them, [`status`] stores the conditions, and [`follow`] does so for every
//! change. [`workload`] compares the CAs with those of the workload cluster. [`etcd_clients`] is the CA of the controllers'
//! etcd clients. [`migrate`] removes the CA keys from the Secrets and restores them. [`sync`] is independent of the others.
//! [`rights`] prints the rights that a command needs.

mod apply;
mod check;
mod conditions;
mod etcd_clients;
mod follow;
mod issue;
mod migrate;
mod rights;
mod secrets;
mod status;
mod sync;
mod workload;

use std::collections::BTreeMap;

use clap::{Args, Subcommand, ValueEnum};

use super::options::{GlobalOptions, RunOptions};
use super::output::terminal::Terminal;
use super::output::{
    DocumentKind, print, print_exact, print_message, print_to_stderr, print_warnings, table,
};
use super::{now, runtime};
use crate::agent::authority::command::rotated_bundles;
use crate::agent::load::{self, Location};
use crate::agent::{ExitCode, Failure};
use crate::cluster::api::Resource;
use crate::config::Argument;
use crate::store::NodeRoot;
use crate::text::rfc3339;
use issue::Order;
use secrets::{ClusterTarget, Format, SecretSpec};

/// Returns a kind of Cluster API's core group, in the version of Cluster API v1.11 and newer.
const fn cluster_api(plural: &'static str, kind: &'static str) -> Resource {
    Resource::new("cluster.x-k8s.io", "v1beta2", plural, kind)
}

#[derive(Debug, Subcommand)]
pub(super) enum CapiCommand {
    /// Create the Secrets that the controllers wait for, signed by the external signer
    ///
    /// CLUSTER-ca, CLUSTER-etcd and CLUSTER-proxy (certificates only, unless --etcd-client-ca),
    /// CLUSTER-apiserver-etcd-client and CLUSTER-kubeconfig, and CLUSTER-admin for the external-CA proposal. Cluster API
    /// creates CLUSTER-sa itself. Applies them to the cluster with --apply, or writes a manifest to a file with --out.
    ///
    /// Keys are generated here and stay in the cluster's state directory (0700). A repeated run prints the same Secrets;
    /// certificates that have expired or differ from the desired state are issued again.
    Secrets(Box<SecretsArgs>),
    /// Judge the Secrets by the conditions ExternalCAsReady and ExternalClientCertificatesReady
    ///
    /// With --write, the conditions are stored in the status of the ControlPlanePKI of the same name, for
    /// `kubectl wait --for=condition=ExternalCAsReady controlplanepki/CLUSTER`. Its definition is printed by --crd.
    ///
    /// Exit status: 0 if both are true; 65 if a Secret exists and cannot be used; 75 if a Secret is missing. With --watch:
    /// 0 after SIGTERM or SIGINT.
    Check(check::CheckArgs),
    /// Report to Cluster API when the certificates of each control-plane machine expire
    ///
    /// Reads the certificate that kube-apiserver presents at each Machine's address, and writes its expiry to the annotation
    /// machine.cluster.x-k8s.io/certificates-expiry of the Machine. Cluster API reads the expiry only once, so
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
        ClusterTarget::new(&self.cluster, &self.namespace).map_err(Failure::usage)
    }

    /// Returns the names of the Secrets.
    fn secret_names(&self, target: &ClusterTarget) -> Vec<String> {
        let purposes = self.format.purposes(self.external_etcd);
        purposes.map(|purpose| target.name(purpose)).collect()
    }

    /// Returns the options that select the Secrets.
    fn options(&self) -> String {
        let mut options = String::new();
        let format = self.format.to_possible_value();
        if let (Format::Proposal | Format::Both, Some(format)) = (self.format, format) {
            options.push_str(&format!(" --format {}", format.get_name()));
        }
        if self.external_etcd {
            options.push_str(" --external-etcd");
        }
        options
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
    /// Kubeconfig of the workload cluster: an authority that `nodepki authority rotate` changes there has the CAs of the present
    /// phase, whatever the files contain; after the end, until the files contain another CA
    #[arg(long, value_name = "FILE")]
    workload_kubeconfig: Option<Argument>,
    /// State directory for keys and certificates; default: /var/lib/nodepki/capi/NS/CLUSTER
    #[arg(long, value_name = "DIR")]
    state: Option<Argument>,
    /// Add a placeholder tls.key to CLUSTER-ca and CLUSTER-proxy: today's Cluster API lets no node join without one
    #[arg(long)]
    placeholder_keys: bool,
    /// Create a CA for the controllers' etcd clients, with its private key in CLUSTER-etcd and in user data: today's Cluster
    /// API lets no further node with stacked etcd join without a key there. Later runs keep and replace it; only with
    /// --format current. See docs/cluster-api.md
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
    /// Print the manifest, with the private keys, to standard output
    #[arg(long, conflicts_with_all = ["out", "apply"])]
    show_secrets: bool,
    /// Print a ServiceAccount with the rights that --apply needs, for `kubectl apply -f -`
    #[arg(long, conflicts_with_all = ["out", "apply", "show_secrets"])]
    rights: bool,
    #[command(flatten)]
    run: RunOptions,
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
    /// Returns a ServiceAccount with exactly the rights that `--apply` needs. Secrets that do not exist have no name by which
    /// a Role could permit to create them.
    fn rights(&self) -> Result<String, Failure> {
        let target = self.target.target()?;
        let names = self.target.secret_names(&target);
        let rules = [
            rights::secrets(&names, &["get", "update"]),
            rights::secrets(&[], &["create"]),
        ];
        let options = self.target.options();
        Ok(rights::manifest(&target, "secrets", &options, &rules))
    }

    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        if self.rights {
            return print(&self.rights()?);
        }
        let root = global.open_root()?;
        let order = Order {
            target: self.target.target()?,
            endpoint: self.endpoint.clone(),
            external_etcd: self.target.external_etcd,
            ca_dir: self.ca_dir.clone(),
            rotated: match &self.workload_kubeconfig {
                Some(file) => runtime()?.block_on(rotated_bundles(&root, &file.into()))?,
                None => BTreeMap::new(),
            },
            state: self.state.clone(),
        };
        let prepared = issue::load(&root, &self.run.inputs(global)?, &order, now())?;
        self.require_format(prepared.state())?;
        let is_printed = self.out.is_none() && !self.apply;
        if is_printed && !self.show_secrets {
            return Err(Failure::usage(
                "the manifest contains private keys (use --out FILE or --apply; --show-secrets prints it to standard output)",
            ));
        }
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
        let (state, policy) = (prepared.state(), prepared.policy());
        if let Some(authority) = etcd_clients::load(state, self.etcd_client_ca, policy, now())? {
            authority.add_to(&mut secrets);
            report.notes.extend(authority.notes);
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            let api = load::cluster(&root, kubeconfig)?;
            let authorities = &material.authorities;
            let applied = apply::apply(&api, &secrets, authorities, self.replace, now());
            report.rows.extend(runtime.block_on(applied)?);
            return global.finish(DocumentKind::CapiSecrets, &report, report.code(), None);
        }
        for note in &report.notes {
            print_message(note);
        }
        match &self.out {
            Some(file) => write_manifest(&root, file, &secrets)?,
            None => print_exact(&secrets::manifest(&secrets))?,
        };
        Ok(report.code())
    }
}

impl SecretsArgs {
    /// Verifies that the etcd client CA is wanted by the consumer of the Secrets: only today's Cluster API signs with a key
    /// in CLUSTER-etcd.
    fn require_format(&self, state: &NodeRoot) -> Result<(), Failure> {
        if self.target.format == Format::Current {
            return Ok(());
        }
        let cause = match (self.etcd_client_ca, etcd_clients::exists(state)?) {
            (true, _) => {
                "--etcd-client-ca is for --format current only (omit one of them)".to_owned()
            }
            (false, true) => format!(
                "{} has an etcd client CA, which is for --format current only (to give it up, remove tls.key from CLUSTER-etcd and etcd-client-ca.pem from this directory)",
                state.path().display()
            ),
            (false, false) => return Ok(()),
        };
        Err(Failure::usage(format!(
            "{cause}: the external-CA proposal needs no key in CLUSTER-etcd, and reads ca.crt, in which no such CA may be"
        )))
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
        return Err(Failure::usage(format!(
            "--out {}: the directory does not exist (create it first)",
            shown.display()
        )));
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

impl SyncArgs {
    fn run(&self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let target = ClusterTarget::new(&self.cluster, &self.namespace).map_err(Failure::usage)?;
        let Some(kubeconfig) = &self.kubeconfig else {
            // clap requires --rights then.
            return print(&sync::rights(&target));
        };
        let api = load::cluster(&global.open_root()?, kubeconfig)?;
        let expiries = runtime()?.block_on(sync::sync(&api, &target, self.api_port, now))?;
        global.print_body(DocumentKind::CapiSync, expiries.code(), &expiries, || {
            render_expiries("ANNOTATION", &expiries.machines)
        })
    }
}

fn render_expiries(title: &str, machines: &[sync::MachineExpiry]) -> String {
    let rows = machines.iter().map(|machine| {
        let end = machine.not_after.map_or_else(|| "-".to_owned(), rfc3339);
        let cells = vec![
            machine.machine.clone(),
            machine.action.as_str().to_owned(),
            end,
        ];
        (cells, machine.reasons.clone())
    });
    table::aligned(&["MACHINE", title, "NOT AFTER"], rows.collect())
}
