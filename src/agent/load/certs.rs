//! The inputs of the `certs` commands: the cluster's API, its ClusterConfiguration and the certificate key.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::rc::Rc;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{
    DefinedFiles, KubeconfigFile, LoadInputs, cluster, credentials, existing_sources, faulty,
    read_settings,
};
use crate::agent::shared_certs;
use crate::agent::{ExitCode, Failure};
use crate::cluster::api::Api;
use crate::cluster::discovery;
use crate::config::Origin;
use crate::http::Files;
use crate::kube::kubeadm::{self, ClusterConfig, JoinDiscovery};
use crate::kube::kubeadm_certs::{CertificateKey, CertificateKeyError, UPLOAD_COMMAND};
use crate::store::NodeRoot;
use crate::yaml::schema::{NO_CREDENTIALS, SecretFile};

/// Upper bound for a secret that is read from a file descriptor, bytes.
const MAX_SECRET_BYTES: u64 = 1024;

/// The cluster whose shared certificates are read or written.
pub struct Sharing {
    /// Its API.
    pub api: Api,
    /// Its configuration: from the kubeadm files, or the one that kubeadm keeps in the cluster.
    pub cluster: ClusterConfig,
    /// The JoinConfiguration of this node, if there is one.
    pub join: Option<JoinDiscovery>,
    /// The certificate key that the settings name, with the origin of the settings.
    pub certificate_key: Option<(Origin, SecretFile)>,
    /// Warnings about settings, documents and discovery.
    pub warnings: Vec<String>,
}

/// Finds the cluster: by `kubeconfig`, or by the JoinConfiguration.
///
/// # Errors
/// All faults of the kubeadm configuration at once; a cluster that cannot be found.
pub async fn sharing(
    root: &NodeRoot,
    inputs: &LoadInputs,
    kubeconfig: Option<&KubeconfigFile>,
) -> Result<Sharing, Failure> {
    let (settings, mut warnings) = read_settings(root, inputs)?;
    let documents = kubeadm::load(&existing_sources(root, &settings)?);
    if documents.faults().has_errors() {
        return Err(faulty(documents.faults().clone()));
    }
    warnings.extend(documents.faults().clone());
    let mut warnings: Vec<_> = warnings.warnings().map(ToString::to_string).collect();
    let join = documents.join().cloned();
    let api = match (kubeconfig, &join) {
        (Some(kubeconfig), _) => cluster(root, kubeconfig)?,
        (None, Some(join)) => {
            let files: Rc<dyn Files> = DefinedFiles::new(root, Origin::Node);
            let credentials = credentials(root, Origin::Node);
            let deadline = tokio::time::Instant::now() + inputs.wait.unwrap_or(settings.wait);
            let clock = OffsetDateTime::now_utc;
            let found =
                discovery::discover(join, files.clone(), credentials.clone(), clock, deadline)
                    .await?;
            let api = found.api(files, credentials, clock)?;
            warnings.extend(found.notes);
            api
        }
        (None, None) => {
            return Err(Failure::usage(
                "the address of the cluster is unknown: name a kubeconfig with --kubeconfig FILE, or the node's JoinConfiguration with --kubeadm-config FILE",
            ));
        }
    };
    let cluster = match documents.cluster() {
        Some(cluster) => cluster.clone(),
        None => kept_cluster(&api).await?,
    };
    Ok(Sharing {
        api,
        cluster,
        join,
        certificate_key: settings
            .join
            .certificate_key
            .map(|file| (settings.origin, file)),
        warnings,
    })
}

/// Returns `certificateKey` of the node's InitConfiguration, and its position, as in `kubeadm.yaml:7: certificateKey`.
///
/// # Errors
/// All faults of the kubeadm configuration at once.
pub fn upload_key(
    root: &NodeRoot,
    inputs: &LoadInputs,
) -> Result<Option<(CertificateKey, String)>, Failure> {
    let (settings, _) = read_settings(root, inputs)?;
    let documents = kubeadm::load(&existing_sources(root, &settings)?);
    if documents.faults().has_errors() {
        return Err(faulty(documents.faults().clone()));
    }
    Ok(documents
        .upload_key()
        .map(|(key, spot)| (key.clone(), format!("{}: {}", spot.place, spot.field))))
}

async fn kept_cluster(api: &Api) -> Result<ClusterConfig, Failure> {
    let (name, text) = shared_certs::configuration(api).await?;
    let kept = kubeadm::load(&[(&name, &text)]);
    match kept.cluster() {
        Some(cluster) if !kept.faults().has_errors() => Ok(cluster.clone()),
        Some(_) => Err(faulty(kept.faults().clone())),
        None => Err(Failure::refused(format!(
            "{name} is not a ClusterConfiguration; name a file that contains one: --kubeadm-config FILE"
        ))),
    }
}

/// The source of a secret, as the command line names it.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// `FILE` or `credential:NAME`.
    File(String),
    /// An open file descriptor.
    Descriptor(u32),
}

/// Reads a certificate key.
///
/// # Errors
/// A source that cannot be read, or does not contain a key.
pub fn certificate_key(root: &NodeRoot, source: &KeySource) -> Result<CertificateKey, Failure> {
    if let KeySource::File(text) = source
        && text.parse::<CertificateKey>().is_ok()
    {
        return Err(Failure::usage(
            "--certificate-key-file takes the name of a file, and was given a certificate key, which every user of this machine can see in the list of processes: upload again with another key, and put that key into a file of mode 0600",
        ));
    }
    let (what, read) = open(root, source)?;
    key_in(&what, read)
}

/// Reads a secret from the source that the command line names. Returns it with the source's name for messages.
///
/// # Errors
/// A source that cannot be read.
pub fn secret(
    root: &NodeRoot,
    source: &KeySource,
) -> Result<(String, Zeroizing<Vec<u8>>), Failure> {
    let (what, read) = open(root, source)?;
    match read {
        Ok(bytes) => Ok((what, bytes)),
        Err(error) => Err(Failure::caused(
            ExitCode::Configuration,
            format!("{what} cannot be read"),
            error,
        )
        .advise("name an existing file or an open file descriptor")),
    }
}

type ReadResult = io::Result<Zeroizing<Vec<u8>>>;

/// Reads a source. Returns its name for messages and its content.
fn open(root: &NodeRoot, source: &KeySource) -> Result<(String, ReadResult), Failure> {
    match source {
        KeySource::File(text) => {
            let file = if text.starts_with("credential:") {
                SecretFile::parse(text)
                    .map_err(|(what, fix)| Failure::usage(format!("{text} {what}; {fix}")))?
            } else {
                SecretFile::Path(text.into())
            };
            let read = read_file(root, Origin::CommandLine, &file);
            Ok((shown_secret(root, Origin::CommandLine, &file), read))
        }
        KeySource::Descriptor(number) => Ok((
            format!("file descriptor {number}"),
            read_descriptor(*number),
        )),
    }
}

/// Reads the certificate key that the settings name.
///
/// # Errors
/// As for [`certificate_key`].
pub fn configured_key(
    root: &NodeRoot,
    origin: Origin,
    file: &SecretFile,
) -> Result<CertificateKey, Failure> {
    key_in(
        &shown_secret(root, origin, file),
        read_file(root, origin, file),
    )
}

fn key_in(what: &str, read: ReadResult) -> Result<CertificateKey, Failure> {
    let key = || format!("the certificate key in {what}");
    let advice = format!("write the key that `{UPLOAD_COMMAND}` prints to it");
    let bytes = read.map_err(|error| {
        Failure::caused(ExitCode::Configuration, key(), error).advise(advice.as_str())
    })?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    text.parse().map_err(|error: CertificateKeyError| {
        Failure::misconfigured(key())
            .caused_by(error)
            .advise(advice.as_str())
    })
}

/// Returns the name of a secret's file for messages.
fn shown_secret(root: &NodeRoot, origin: Origin, file: &SecretFile) -> String {
    let files: Rc<dyn Files> = DefinedFiles::new(root, origin);
    files.shown_secret(file)
}

fn read_file(root: &NodeRoot, origin: Origin, file: &SecretFile) -> ReadResult {
    let path = file
        .path(credentials(root, origin).as_deref())
        .ok_or_else(|| {
            io::Error::other(format!("{NO_CREDENTIALS}, add LoadCredential= to the unit"))
        })?;
    DefinedFiles::new(root, origin).read_secret(&path)
}

fn read_descriptor(number: u32) -> ReadResult {
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_SECRET_BYTES as usize));
    let file = File::open(PathBuf::from(format!("/proc/self/fd/{number}")))?;
    file.take(MAX_SECRET_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
