//! `certs key`, `certs download` and `certs upload`: the files that control-plane nodes share.

use std::time::Duration;

use clap::{Args, Subcommand};
use zeroize::Zeroizing;

use super::options::{GlobalOptions, duration};
use super::output::{DocumentKind, print, print_exact, print_warnings};
use super::{now, runtime};
use crate::agent::load::{self, KubeconfigFile, LoadInputs, Location, certs::KeySource};
use crate::agent::shared_certs::{self, Download, MAX_SECRET_LIFETIME, Upload};
use crate::agent::{ExitCode, Failure};
use crate::config::{Argument, CommandLineSettings};
use crate::kube::kubeadm_certs::{CertificateKey, SealError};
use crate::store::{self, Dir, NodeRoot};
use crate::yaml::format_duration;

/// Longest wait for another run to end; `--wait` can shorten it.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(60);

/// Lifetime of the token of `kubeadm token create`.
const BOOTSTRAP_TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    /// Print a new certificate key, as `kubeadm certs certificate-key` does
    Key {
        /// Write the key to FILE (0600) instead; an existing file is never overwritten
        #[arg(long, value_name = "FILE")]
        out: Option<Argument>,
    },
    /// Install the files that control-plane nodes share, from the Secret kube-system/kubeadm-certs
    ///
    /// CA private keys stay in the cluster. A file that differs from the cluster's is never overwritten without
    /// --replace; a file with the same content is not touched.
    Download(DownloadArgs),
    /// Share this node's files with joining nodes for two hours, as `kubeadm init phase upload-certs` does
    ///
    /// Also works without CA private keys, while kubeadm requires them. A new certificate key is generated and printed,
    /// unless one is given, here or as certificateKey of the InitConfiguration.
    Upload(UploadArgs),
    /// Remove the Secret kube-system/kubeadm-certs and its token from the cluster
    ///
    /// kube-controller-manager removes both when they expire, unless its --controllers does not name tokencleaner.
    Expire(ExpireArgs),
}

#[derive(Debug, Args)]
pub(super) struct ExpireArgs {
    /// Remove the Secret only if its token has expired, for a timer
    #[arg(long)]
    if_expired: bool,
    /// Access the cluster with this kubeconfig, instead of the node's /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
}

#[derive(Debug, Args)]
pub(super) struct DownloadArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Access the cluster with this kubeconfig, instead of the discovery of the JoinConfiguration
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// kubeadm configuration file, instead of the configured ones; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Also write the CA private keys to this node
    #[arg(long)]
    with_ca_keys: bool,
    /// Replace files that differ from the cluster's
    #[arg(long)]
    replace: bool,
    /// How long to wait for the cluster and for another run to end, for example 90s or 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct UploadArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Write a new certificate key to FILE (0600) instead of printing it; an existing file is never overwritten
    #[arg(long, value_name = "FILE", conflicts_with_all = ["certificate_key_file", "certificate_key_fd"])]
    certificate_key_out: Option<Argument>,
    /// Access the cluster with this kubeconfig, instead of the node's /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// kubeadm configuration file, instead of the configured ones; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Leave out the CA private keys
    #[arg(long)]
    without_ca_keys: bool,
    /// Lifetime of the Secret, at most 168h
    #[arg(long, value_name = "DURATION", default_value = "2h", value_parser = lifetime)]
    ttl: Duration,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// Read the certificate key from FILE, or from credential:NAME of the systemd unit
    #[arg(long, value_name = "FILE", conflicts_with = "certificate_key_fd")]
    certificate_key_file: Option<String>,
    /// Read the certificate key from an open file descriptor
    #[arg(long, value_name = "N")]
    certificate_key_fd: Option<u32>,
}

impl KeyArgs {
    fn read(self, root: &NodeRoot) -> Result<Option<CertificateKey>, Failure> {
        let file = self.certificate_key_file.map(KeySource::File);
        file.or(self.certificate_key_fd.map(KeySource::Descriptor))
            .map(|source| load::certs::certificate_key(root, &source))
            .transpose()
    }
}

impl CertsCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        match self {
            CertsCommand::Key { out } => {
                let key = new_key()?;
                match out {
                    None => print_exact(&text(&key)),
                    Some(out) => {
                        let file = KeyFile::prepare(&global.open_root()?, &out)?;
                        file.write(&key)?;
                        print(&format!("certificate key written to {}\n", file.shown()))
                    }
                }
            }
            CertsCommand::Download(arguments) => download(global, arguments),
            CertsCommand::Upload(arguments) => upload(global, arguments),
            CertsCommand::Expire(arguments) => expire(global, &arguments),
        }
    }
}

fn download(global: &GlobalOptions, arguments: DownloadArgs) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let given = arguments.key.read(&root)?;
    let inputs = inputs(global, arguments.kubeadm_config, arguments.wait);
    let report = runtime()?.block_on(async {
        let kubeconfig = arguments.kubeconfig.as_ref().map(KubeconfigFile::from);
        let sharing = load::certs::sharing(&root, &inputs, kubeconfig.as_ref()).await?;
        print_warnings(&sharing.warnings);
        let configured = || match &sharing.certificate_key {
            Some((origin, file)) => load::certs::configured_key(&root, *origin, file).map(Some),
            None => Ok(sharing.join.as_ref().and_then(|join| {
                let written = join.certificate_key.as_ref()?;
                written.parse().ok()
            })),
        };
        let key = given.map_or_else(configured, |key| Ok(Some(key)))?;
        let key = key.ok_or_else(|| {
            Failure::usage(
                "no certificate key is given (use --certificate-key-file FILE or --certificate-key-fd N, or set join.certificateKey in the nodepki configuration, or controlPlane.certificateKey in the JoinConfiguration)",
            )
        })?;
        let what = Download {
            cluster: &sharing.cluster,
            with_ca_keys: arguments.with_ca_keys,
            replace: arguments.replace,
            lock_wait: arguments
                .wait
                .map_or(MAX_LOCK_WAIT, |wait| wait.min(MAX_LOCK_WAIT)),
        };
        shared_certs::download(&root, &sharing.api, &key, what, now).await
    })?;
    global.finish(DocumentKind::CertsDownload, &report, report.code(), None)
}

fn upload(global: &GlobalOptions, arguments: UploadArgs) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let inputs = inputs(global, arguments.kubeadm_config, None);
    let is_text = global.output.is_text();
    let given = match arguments.key.read(&root)? {
        Some(key) => Some((key, None)),
        // --certificate-key-out is for a new key, whatever the InitConfiguration contains.
        None if arguments.certificate_key_out.is_some() => None,
        None => load::certs::upload_key(&root, &inputs)?.map(|(key, place)| (key, Some(place))),
    };
    let is_new = given.is_none();
    if is_new && arguments.certificate_key_out.is_none() && !is_text {
        return Err(Failure::usage(
            "a JSON or YAML report does not contain the new certificate key: name a file for the key with --certificate-key-out FILE",
        ));
    }
    let (key, place) = match given {
        Some(given) => given,
        None => (new_key()?, None),
    };
    // Before the upload, since the Secret is unusable if the key cannot be written afterwards.
    let file = arguments
        .certificate_key_out
        .map(|out| KeyFile::prepare(&root, &out))
        .transpose()?;
    let mut report = runtime()?.block_on(async {
        let kubeconfig = KubeconfigFile::of_admin(arguments.kubeconfig.as_ref());
        let sharing = load::certs::sharing(&root, &inputs, Some(&kubeconfig)).await?;
        print_warnings(&sharing.warnings);
        let what = Upload {
            cluster: &sharing.cluster,
            with_ca_keys: !arguments.without_ca_keys,
            lifetime: arguments.ttl,
        };
        shared_certs::upload(&root, &sharing.api, &key, what, now).await
    })?;
    if arguments.ttl > BOOTSTRAP_TOKEN_LIFETIME {
        report.notes.push(format!(
            "the Secret lives for {}, longer than the token of `kubeadm token create` (24h): whoever has the certificate key can decrypt it for as long; nodepki certs expire removes it when all nodes have joined",
            format_duration(arguments.ttl)
        ));
    }
    if let Some(place) = place {
        report
            .notes
            .push(format!("encrypted with the certificate key of {place}"));
    }
    // After the upload, so an existing file proves that the Secret was uploaded. If the run is killed in between,
    // there is no file, and the next run uploads with another key.
    if let Some(file) = &file {
        file.write(&key)?;
    }
    let code = global.finish(DocumentKind::CertsUpload, &report, report.code(), None)?;
    let printed = match file {
        _ if !is_new => return Ok(code),
        Some(file) if is_text => print(&format!("certificate key written to {}\n", file.shown())),
        Some(_) => return Ok(code),
        None => print(&format!("certificate key:\n{}", *text(&key))),
    };
    printed.map(|_| code)
}

fn expire(global: &GlobalOptions, arguments: &ExpireArgs) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let kubeconfig = KubeconfigFile::of_admin(arguments.kubeconfig.as_ref());
    let api = load::cluster(&root, &kubeconfig)?;
    let expiry = runtime()?.block_on(shared_certs::expire(&api, arguments.if_expired, now()))?;
    let (kind, code) = (DocumentKind::CertsExpiry, ExitCode::Done);
    global.print_body(kind, code, &expiry, || format!("{expiry}\n"))
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = duration(text)?;
    if lifetime.is_zero() || lifetime > MAX_SECRET_LIFETIME {
        return Err(
            "the Secret contains keys of the cluster: use a lifetime from 1s to 168h".to_owned(),
        );
    }
    Ok(lifetime)
}

fn inputs(
    global: &GlobalOptions,
    kubeadm_configs: Vec<Argument>,
    wait: Option<Duration>,
) -> LoadInputs {
    LoadInputs {
        config: global.config.clone(),
        stand_ins: CommandLineSettings {
            kubeadm_configs,
            ..CommandLineSettings::default()
        },
        wait,
        ..LoadInputs::default()
    }
}

fn new_key() -> Result<CertificateKey, Failure> {
    CertificateKey::generate().map_err(|error: SealError| {
        Failure::pending("no certificate key could be generated")
            .caused_by(error)
            .advise("run again")
    })
}

fn text(key: &CertificateKey) -> Zeroizing<String> {
    Zeroizing::new(format!("{}\n", *key.to_hex()))
}

/// File for a new certificate key.
struct KeyFile {
    dir: Dir,
    name: std::ffi::OsString,
}

impl KeyFile {
    /// Creates the directory, and refuses a file that exists.
    fn prepare(root: &NodeRoot, out: &Argument) -> Result<Self, Failure> {
        let shown = load::shown(root, out);
        let Location { root, path, .. } = load::argument(root, out)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::usage(format!(
                "{} is a directory; name a file",
                shown.display()
            )));
        };
        let file = KeyFile {
            dir: root.create_dir(parent, 0o755)?,
            name: name.to_owned(),
        };
        match file.dir.metadata(name)? {
            Some(_) => Err(file.exists()),
            None => Ok(file),
        }
    }

    /// Writes the key, unless another process has created the file in the meantime.
    fn write(&self, key: &CertificateKey) -> Result<(), Failure> {
        match self.dir.write_new(&self.name, text(key).as_bytes()) {
            Err(store::StoreError::Unsafe { .. }) => Err(self.exists()),
            other => Ok(other?),
        }
    }

    fn exists(&self) -> Failure {
        Failure::refused(format!(
            "{} exists, and its content may be in use; name another file, or remove this one first",
            self.shown()
        ))
    }

    fn shown(&self) -> String {
        self.dir.path().join(&self.name).display().to_string()
    }
}
