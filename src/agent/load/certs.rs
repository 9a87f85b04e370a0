//! What the `certs` commands work with: the cluster's API, its ClusterConfiguration and the certificate key.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{
    DefinedFiles, KubeconfigFile, LoadInputs, absolute, cluster, credentials, existing_sources,
    faulty, read_settings,
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

/// Nobody writes more than a key and a line end.
const KEY_LIMIT: u64 = 1024;

/// A cluster whose files are shared.
pub struct Sharing {
    /// Its API.
    pub api: Api,
    /// Its configuration: the files', or the one that kubeadm keeps in the cluster.
    pub cluster: ClusterConfig,
    /// The JoinConfiguration of this node, where it has one.
    pub join: Option<JoinDiscovery>,
    /// Where the settings have the certificate key, and where those were found.
    pub certificate_key: Option<(Origin, SecretFile)>,
    /// What deserves a warning.
    pub warnings: Vec<String>,
}

/// Finds the cluster: by `kubeconfig`, or as the JoinConfiguration says.
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
            return Err(Failure::new(
                ExitCode::Usage,
                "nothing says where the cluster is: name a kubeconfig with --kubeconfig FILE, or the node's JoinConfiguration with --kubeadm-config FILE",
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

async fn kept_cluster(api: &Api) -> Result<ClusterConfig, Failure> {
    let (name, text) = shared_certs::configuration(api).await?;
    let kept = kubeadm::load(&[(&name, &text)]);
    match kept.cluster() {
        Some(cluster) if !kept.faults().has_errors() => Ok(cluster.clone()),
        Some(_) => Err(faulty(kept.faults().clone())),
        None => Err(Failure::new(
            ExitCode::Refused,
            format!(
                "{name} is no ClusterConfiguration; name a file with it: --kubeadm-config FILE"
            ),
        )),
    }
}

/// Where a secret is written, as the command line has it.
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
/// A source that cannot be read, or has no key in it.
pub fn certificate_key(root: &NodeRoot, source: &KeySource) -> Result<CertificateKey, Failure> {
    if let KeySource::File(text) = source
        && text.parse::<CertificateKey>().is_ok()
    {
        return Err(Failure::new(
            ExitCode::Usage,
            "--certificate-key-file takes the name of a file, and was given a certificate key, which everybody on this machine could see in the list of processes: put the key into a file of mode 0600, and upload again with another key",
        ));
    }
    let (what, read) = open(root, source)?;
    key_in(&what, read)
}

/// A secret that the command line names and never holds, with what to call its source.
///
/// # Errors
/// What cannot be read.
pub fn secret(
    root: &NodeRoot,
    source: &KeySource,
) -> Result<(String, Zeroizing<Vec<u8>>), Failure> {
    let (what, read) = open(root, source)?;
    match read {
        Ok(bytes) => Ok((what, bytes)),
        Err(error) => Err(Failure::caused(
            ExitCode::Configuration,
            format!(
                "{what} cannot be read: {error}; name a file that is there, or a descriptor that is open"
            ),
            &error,
        )),
    }
}

type Read = io::Result<Zeroizing<Vec<u8>>>;

/// What to call the source, and what it gives.
fn open(root: &NodeRoot, source: &KeySource) -> Result<(String, Read), Failure> {
    match source {
        KeySource::File(text) => {
            let file = match text.starts_with("credential:") {
                true => SecretFile::parse(text).map_err(|(what, fix)| {
                    Failure::new(ExitCode::Usage, format!("{text} {what}; {fix}"))
                })?,
                false => SecretFile::Path(absolute(Path::new(text))),
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

/// The certificate key that the settings name.
///
/// # Errors
/// As [`certificate_key`].
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

fn key_in(what: &str, read: Read) -> Result<CertificateKey, Failure> {
    let unusable = |why: String| {
        Failure::new(
            ExitCode::Configuration,
            format!(
                "the certificate key in {what}: {why}; write into it what `{UPLOAD_COMMAND}` prints"
            ),
        )
    };
    let bytes = read.map_err(|error| {
        let Failure { code, messages } = unusable(error.to_string());
        Failure::caused(code, messages.join("; "), &error)
    })?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    text.parse()
        .map_err(|error: CertificateKeyError| unusable(error.to_string()))
}

/// The file, for messages.
fn shown_secret(root: &NodeRoot, origin: Origin, file: &SecretFile) -> String {
    let files: Rc<dyn Files> = DefinedFiles::new(root, origin);
    files.shown_secret(file)
}

fn read_file(root: &NodeRoot, origin: Origin, file: &SecretFile) -> Read {
    let path = file
        .path(credentials(root, origin).as_deref())
        .ok_or_else(|| {
            io::Error::other(format!("{NO_CREDENTIALS}, add LoadCredential= to the unit"))
        })?;
    DefinedFiles::new(root, origin).read_secret(&path)
}

fn read_descriptor(number: u32) -> Read {
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_LIMIT as usize));
    let file = File::open(PathBuf::from(format!("/proc/self/fd/{number}")))?;
    file.take(KEY_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}
