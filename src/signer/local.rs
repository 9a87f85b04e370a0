//! `local`: CA keys on disk, in the layout of kubeadm's certificates directory (`ca.crt` + `ca.key`, `etcd/ca.*`,
//! `front-proxy-ca.*`).
//!
//! For joining nodes that received CA keys from `kubeadm-certs`, for migration, and for test environments. Issues as
//! kubeadm does. The files are read once, when the signer is created; a missing or unusable authority rejects only the
//! certificates that need it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use super::{
    About, Answer, Caps, Configured, Rejection, Request, RequestedCertificate, Signer, SignerError,
    SignerKind, Site,
};
use crate::http::Files;
use crate::kube::names::{Authority, CertName};
use crate::process::machine;
use crate::store;
use crate::x509::CertificateAuthority;
use crate::yaml::settings::{SettingsBlock, settings};

settings! {
    /// kubeadm's CA files in a directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// Directory with ca.crt, ca.key, etcd/ca.* and front-proxy-ca.*.
        "directory" => pub directory: PathBuf, required "with an absolute path";
    }
}

impl Config {
    /// Returns the path of the private key of an authority.
    pub fn key(&self, authority: Authority) -> PathBuf {
        path(&self.directory, authority, "key")
    }
}

/// How long before the request a certificate for a pod begins: clocks differ.
const POD_BACKDATE: Duration = Duration::from_secs(60);

const CAPS: Caps = Caps::everything();

impl Configured for Config {
    const ABOUT: About = About {
        name: "local",
        signs_with: "CA keys in a directory laid out as kubeadm's",
        authentication: "file permissions",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let signer = Local::new(&self.directory, site.files.as_ref());
        for found in signer.authorities.values() {
            if let (Err(why), Some(error)) = (&found.signing, &found.unread)
                && (machine::is_fault(error) || store::is_access_refusal(error))
            {
                return Err(SignerError::config(why.clone(), "then run again").marked_by(error));
            }
        }
        Ok(Box::new(signer))
    }
}

/// Signs with CA keys from files, or from memory.
pub struct Local {
    label: String,
    configured: String,
    authorities: BTreeMap<Authority, CaOnDisk>,
}

struct CaOnDisk {
    /// `ca.crt` as it is on disk, with or without its key.
    certificate: Option<Vec<u8>>,
    signing: Result<CertificateAuthority, String>,
    /// Why one of the files could not be read.
    unread: Option<io::Error>,
}

impl Local {
    /// Reads the three pairs below `dir` through `files`.
    pub fn new(dir: &Path, files: &dyn Files) -> Self {
        let authorities = Authority::ALL
            .into_iter()
            .map(|authority| (authority, find(dir, authority, files)))
            .collect();
        Local {
            label: format!("local:{}", files.shown(dir).display()),
            configured: format!("local:{}", dir.display()),
            authorities,
        }
    }

    /// Creates a signer with authorities that are not on this machine's disk; `label` names their source.
    pub fn in_memory(
        label: impl Into<String>,
        authorities: impl IntoIterator<Item = (Authority, CertificateAuthority)>,
    ) -> Self {
        let found = |signing: CertificateAuthority| CaOnDisk {
            certificate: Some(signing.bundle().to_pem().into_bytes()),
            signing: Ok(signing),
            unread: None,
        };
        let label = label.into();
        Local {
            configured: label.clone(),
            label,
            authorities: authorities
                .into_iter()
                .map(|(authority, signing)| (authority, found(signing)))
                .collect(),
        }
    }

    fn authority(&self, authority: Authority) -> Result<&CertificateAuthority, String> {
        match self.authorities.get(&authority).map(|found| &found.signing) {
            Some(Ok(signing)) => Ok(signing),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("authority {authority} does not exist")),
        }
    }
}

fn path(dir: &Path, authority: Authority, extension: &str) -> PathBuf {
    dir.join(format!("{}.{extension}", authority.base_name()))
}

fn find(dir: &Path, authority: Authority, files: &dyn Files) -> CaOnDisk {
    let path = |extension| path(dir, authority, extension);
    let shown = |path: &Path| files.shown(path);
    let (certificate_path, key_path) = (path("crt"), path("key"));
    let (certificate, key) = (files.read(&certificate_path), files.read_secret(&key_path));
    let signing = match (&certificate, &key) {
        (_, Err(error)) if store::is_access_refusal(error) => {
            Err(format!("{}: {error}", shown(&key_path).display()))
        }
        (Err(error), _) => Err(format!("{}: {error}", shown(&certificate_path).display())),
        (_, Err(error)) => Err(format!("{}: {error}", shown(&key_path).display())),
        (Ok(certificate), Ok(key)) => {
            CertificateAuthority::from_pem(certificate, key).map_err(|error| {
                format!(
                    "{} and {}: {error}",
                    shown(&certificate_path).display(),
                    shown(&key_path).display()
                )
            })
        }
    };
    let (certificate, unread) = match (certificate, key.err()) {
        (Ok(certificate), unread) => (Some(certificate.to_vec()), unread),
        (Err(error), _) => (None, Some(error)),
    };
    CaOnDisk {
        certificate,
        signing,
        unread,
    }
}

#[async_trait(?Send)]
impl Signer for Local {
    fn kind(&self) -> SignerKind {
        SignerKind::Local
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn configured(&self) -> String {
        self.configured.clone()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        let found = self.authorities.get(&wanted.authority);
        let unread = found.and_then(|found| found.unread.as_ref());
        // The file is often a CA key, which the message of the store would have moved.
        if let Some(path) = unread.and_then(|error| store::not_a_directory(error)) {
            return Err(Rejection::new(
                &self.label,
                wanted,
                format!("{} is not a directory", path.display()),
                "name a directory with ca.crt, ca.key, etcd/ca.* and front-proxy-ca.*",
            ));
        }
        self.authority(wanted.authority)
            .map(drop)
            .map_err(|reason| {
                let advice = format!(
                    "provide the key pair of authority {} there, or configure another signer for it",
                    wanted.authority
                );
                Rejection::new(&self.label, wanted, reason, advice)
            })
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let found = self.authorities.get(&authority);
        Ok(found.and_then(|found| found.certificate.clone()))
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let authority = self.authority(request.wanted.authority).map_err(|why| {
            SignerError::config(
                format!(
                    "no authority {} to sign with: {why}",
                    request.wanted.authority
                ),
                "provide its key pair there, or configure another signer for it",
            )
        })?;
        issue(authority, request)
    }
}

/// Issues a certificate immediately. The profile determines the content and the CSR only the key, but the two must agree:
/// a CSR with another content was not made for this request.
pub(super) fn issue(
    authority: &CertificateAuthority,
    request: &Request,
) -> Result<Answer, SignerError> {
    let RequestedCertificate { name, profile, .. } = &request.wanted;
    // The CSR of a pod is empty.
    let is_for_pod = *name == CertName::PodClient;
    if !is_for_pod && !request.csr.matches(profile) {
        return Err(SignerError::permanent(
            format!(
                "the CSR of {name} does not request {} with names [{}]",
                profile.subject, profile.sans
            ),
            "remove the pending request and run again, which creates a new one",
        ));
    }
    // The API server accepts a certificate for a pod that begins within five minutes of its own time.
    let issued = if is_for_pod {
        authority.issue_from(
            request.csr.public_key(),
            profile,
            request.now - POD_BACKDATE,
        )
    } else {
        authority.issue(request.csr.public_key(), profile, request.now)
    };
    let certificate = issued.map_err(|error| {
        SignerError::permanent(
            format!("{name} could not be signed"),
            "check the authority's key and the requested names",
        )
        .caused_by(error)
    })?;
    Ok(Answer::Issued(certificate.to_pem().into_bytes()))
}
