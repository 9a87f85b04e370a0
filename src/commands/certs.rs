//! `certs key`, `certs download` and `certs upload`: the files that control-plane nodes share.

use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use zeroize::Zeroizing;

use super::{Global, Output, duration, now, print, print_exact, runtime, warn};
use crate::agent::load::{self, Inputs, KubeconfigFile, Location, certs::KeySource};
use crate::agent::shared_certs::{self, Download};
use crate::agent::{ExitCode, Failure};
use crate::config::{Argument, StandIns};
use crate::kube::kubeadm_certs::{CertificateKey, SealError};
use crate::store::{self, Dir, Root};

/// How long to wait for another run to end, unless `--wait` says less.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// The node's kubeconfig with which files are uploaded unless `--kubeconfig` names another one.
const ADMIN: &str = "/etc/kubernetes/admin.conf";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print a new certificate key, as `kubeadm certs certificate-key` does
    Key {
        /// Write it to FILE (0600) instead; a file that exists is never overwritten
        #[arg(long, value_name = "FILE")]
        out: Option<Argument>,
    },
    /// Put the files that the cluster shares in place, from the Secret kube-system/kubeadm-certs
    ///
    /// The authorities' private keys are left in the cluster. Files that say something else than the cluster's are
    /// never overwritten without --replace; files that say the same are not touched.
    Download(DownloadArgs),
    /// Share this node's files with the nodes that join, for two hours, as `kubeadm init phase upload-certs` does
    ///
    /// Works without CA private keys too, where kubeadm refuses. A new certificate key is made and printed, unless one
    /// is given.
    Upload(UploadArgs),
}

#[derive(Debug, Args)]
pub(super) struct DownloadArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Reach the cluster with this kubeconfig, not by the discovery of the JoinConfiguration
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// kubeadm configuration file, instead of the configured ones; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Also write the authorities' private keys to this node
    #[arg(long)]
    with_ca_keys: bool,
    /// Replace files that say something else than the cluster's
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
    /// Write a new certificate key to FILE (0600) instead of printing it; a file that exists is never overwritten
    #[arg(long, value_name = "FILE", conflicts_with_all = ["certificate_key_file", "certificate_key_fd"])]
    certificate_key_out: Option<Argument>,
    /// Reach the cluster with this kubeconfig, instead of the node's /etc/kubernetes/admin.conf
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Argument>,
    /// kubeadm configuration file, instead of the configured ones; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Leave the authorities' private keys out
    #[arg(long)]
    without_ca_keys: bool,
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
    fn read(self, root: &Root) -> Result<Option<CertificateKey>, Failure> {
        let file = self.certificate_key_file.map(KeySource::File);
        file.or(self.certificate_key_fd.map(KeySource::Descriptor))
            .map(|source| load::certs::certificate_key(root, &source))
            .transpose()
    }
}

impl Command {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        match self {
            Command::Key { out } => {
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
            Command::Download(arguments) => download(global, arguments),
            Command::Upload(arguments) => upload(global, arguments),
        }
    }
}

fn download(global: &Global, arguments: DownloadArgs) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let given = arguments.key.read(&root)?;
    let inputs = inputs(global, arguments.kubeadm_config, arguments.wait);
    let report = runtime()?.block_on(async {
        let kubeconfig = arguments.kubeconfig.as_ref().map(KubeconfigFile::from);
        let sharing = load::certs::sharing(&root, &inputs, kubeconfig.as_ref()).await?;
        warn(&sharing.warnings);
        let configured = || match &sharing.certificate_key {
            Some((origin, file)) => load::certs::configured_key(&root, *origin, file).map(Some),
            None => Ok(sharing.join.as_ref().and_then(|join| {
                let written = join.certificate_key.as_ref()?;
                written.parse().ok()
            })),
        };
        let key = given.map_or_else(configured, |key| Ok(Some(key)))?;
        let key = key.ok_or_else(|| {
            Failure::new(
                ExitCode::Usage,
                "no certificate key is given: name a file with it (--certificate-key-file FILE, or --certificate-key-fd N), or set join.certificateKey in the nodepki configuration, or controlPlane.certificateKey in the JoinConfiguration",
            )
        })?;
        let what = Download {
            cluster: &sharing.cluster,
            with_ca_keys: arguments.with_ca_keys,
            replace: arguments.replace,
            lock_wait: arguments.wait.map_or(LOCK_WAIT, |wait| wait.min(LOCK_WAIT)),
        };
        shared_certs::download(&root, &sharing.api, &key, what, now).await
    })?;
    global.end_with(&report)
}

fn upload(global: &Global, arguments: UploadArgs) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let given = arguments.key.read(&root)?;
    let is_new = given.is_none();
    let for_people = matches!(global.output, Output::Table | Output::Tree);
    if is_new && arguments.certificate_key_out.is_none() && !for_people {
        return Err(Failure::new(
            ExitCode::Usage,
            "a report for programs has no place for a new certificate key: name a file for it with --certificate-key-out FILE",
        ));
    }
    let key = match given {
        Some(key) => key,
        None => new_key()?,
    };
    let inputs = inputs(global, arguments.kubeadm_config, None);
    // A file that could not be written after the upload would make the upload useless.
    let file = arguments
        .certificate_key_out
        .map(|out| KeyFile::prepare(&root, &out))
        .transpose()?;
    let report = runtime()?.block_on(async {
        let kubeconfig = match &arguments.kubeconfig {
            Some(given) => KubeconfigFile::from(given),
            None => KubeconfigFile::from(Path::new(ADMIN)),
        };
        let sharing = load::certs::sharing(&root, &inputs, Some(&kubeconfig)).await?;
        warn(&sharing.warnings);
        let with_ca_keys = !arguments.without_ca_keys;
        shared_certs::upload(
            &root,
            &sharing.api,
            &key,
            &sharing.cluster,
            with_ca_keys,
            now,
        )
        .await
    })?;
    // Only now: a file that exists says that the Secret was uploaded. A run that is killed in between leaves no file, and
    // the next one uploads with another key.
    if let Some(file) = &file {
        file.write(&key)?;
    }
    let code = global.end_with(&report)?;
    let printed = match file {
        _ if !is_new => return Ok(code),
        Some(file) if for_people => {
            print(&format!("certificate key written to {}\n", file.shown()))
        }
        Some(_) => return Ok(code),
        None => print(&format!("certificate key:\n{}", *text(&key))),
    };
    printed.map(|_| code)
}

fn inputs(global: &Global, kubeadm_configs: Vec<Argument>, wait: Option<Duration>) -> Inputs {
    Inputs {
        config: global.config.clone(),
        stand_ins: StandIns {
            kubeadm_configs,
            ..StandIns::default()
        },
        wait,
        ..Inputs::default()
    }
}

fn new_key() -> Result<CertificateKey, Failure> {
    CertificateKey::generate().map_err(|error: SealError| {
        Failure::new(
            ExitCode::Pending,
            format!("no key was made: {error}; run again"),
        )
    })
}

fn text(key: &CertificateKey) -> Zeroizing<String> {
    Zeroizing::new(format!("{}\n", *key.to_hex()))
}

/// A file with a new certificate key.
struct KeyFile {
    dir: Dir,
    name: std::ffi::OsString,
}

impl KeyFile {
    /// Makes the directory, and refuses a file that exists.
    fn prepare(root: &Root, out: &Argument) -> Result<Self, Failure> {
        let shown = load::shown(root, out);
        let Location { root, path, .. } = load::argument(root, out)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::new(
                ExitCode::Usage,
                format!("{} is a directory; name a file", shown.display()),
            ));
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

    /// Writes the key, unless the file was made by another process in the meantime.
    fn write(&self, key: &CertificateKey) -> Result<(), Failure> {
        match self.dir.write_new(&self.name, text(key).as_bytes()) {
            Err(store::Error::Unsafe { .. }) => Err(self.exists()),
            other => Ok(other?),
        }
    }

    fn exists(&self) -> Failure {
        Failure::new(
            ExitCode::Refused,
            format!(
                "{} exists, and what is in it may be in use; name another file, or remove it first",
                self.shown()
            ),
        )
    }

    fn shown(&self) -> String {
        self.dir.path().join(&self.name).display().to_string()
    }
}
