//! Reads the files of a row. A file that cannot be used is a [`FileFault`]; nothing is judged here.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;

use super::fault::{FileFault, FilePart, FileProblem};
use super::{FileAccess, FileStatus};
use crate::kube::names::{Authority, CertName};
use crate::node::{NodeCert, NodeFile, NodeState};
use crate::spec::assess::{self, Observed, ObservedKubeconfig};
use crate::store::{FileKind, IssuedRecord, Metadata};
use crate::text::hex;
use crate::x509::{Certificate, Chain, PrivateKey, PublicKey, TrustBundle};

/// One file of a row.
#[derive(Clone)]
pub(super) struct RowFile {
    pub(super) status: FileStatus,
    /// Path on this machine, for messages.
    pub(super) here: String,
}

/// A leaf certificate and its key, from a pair of files or a kubeconfig.
pub(super) struct LeafFiles {
    pub(super) name: CertName,
    pub(super) cert: NodeCert,
    /// Why the certificate and the key cannot be used; a fault of one file with both is reported once.
    pub(super) faults: Vec<FileFault>,
    /// What nodepki recorded when it last installed this certificate.
    pub(super) record: Option<IssuedRecord>,
    pub(super) files: Vec<RowFile>,
}

impl LeafFiles {
    /// Returns the certificate, if it can be parsed.
    pub(super) fn chain(&self) -> Option<&Chain> {
        self.cert.found.chain.present()
    }

    /// Returns the kubeconfig, if it can be parsed.
    pub(super) fn kubeconfig(&self) -> Option<&ObservedKubeconfig> {
        self.cert.found.kubeconfig.as_ref()
    }

    /// Returns whether the record is about this certificate; `None` without record or certificate.
    pub(super) fn is_recorded(&self) -> Option<bool> {
        let leaf = self.chain()?.leaf();
        Some(self.record.as_ref()?.sha256 == hex(&leaf.fingerprint()))
    }

    /// Returns the recorded time of issue, if the record is about this certificate.
    pub(super) fn issued(&self) -> Option<OffsetDateTime> {
        let record = self.record.as_ref();
        record
            .filter(|_| self.is_recorded() == Some(true))
            .map(|record| record.at)
    }
}

/// The bundle of an authority.
pub(super) struct AuthorityFiles {
    pub(super) name: Authority,
    /// Path of the bundle on this machine, for messages.
    pub(super) here: String,
    /// The certificates in order, even if they cannot serve as a CA.
    pub(super) certificates: Option<Chain>,
    /// The anchors that verify the leaves.
    pub(super) trust: Result<TrustBundle, FileFault>,
    pub(super) has_key: bool,
    /// A note on a private key among the certificates.
    pub(super) key_note: Option<String>,
    pub(super) files: Vec<RowFile>,
}

impl AuthorityFiles {
    /// Returns the certificates that verify leaves; none if the bundle is unusable.
    pub(super) fn anchors(&self) -> &[Certificate] {
        self.trust.as_ref().map_or(&[], TrustBundle::certificates)
    }
}

/// The service-account pair.
pub(super) struct ServiceAccountFiles {
    pub(super) private: Result<PrivateKey, FileFault>,
    /// While a pair is replaced, sa.pub contains the old and the new public key.
    pub(super) public: Result<Vec<PublicKey>, FileFault>,
    pub(super) key_form_is_ours: bool,
    /// Whether the node has run an API server, so tokens may exist.
    pub(super) has_served: bool,
    pub(super) files: Vec<RowFile>,
}

/// Reads the files of rows below a root.
pub(super) struct RowReader<'a> {
    state: &'a NodeState,
    issued: Option<&'a BTreeMap<CertName, IssuedRecord>>,
}

impl RowReader<'_> {
    pub(super) fn new(state: &NodeState) -> RowReader<'_> {
        RowReader {
            state,
            // A damaged record costs only the times of issue and the origin of each certificate.
            issued: state.issued().ok(),
        }
    }

    /// Returns a path on this machine.
    pub(super) fn here(&self, path: &Path) -> String {
        self.state
            .root()
            .on_this_machine(path)
            .display()
            .to_string()
    }

    pub(super) fn leaf(&self, name: CertName) -> LeafFiles {
        let cert = self.state.cert(name);
        let files = cert.files().into_iter();
        LeafFiles {
            name,
            faults: self.faults(&cert),
            record: self.issued.and_then(|issued| issued.get(&name)).cloned(),
            files: files
                .map(|file| self.row_file(file, file.path() == cert.key.path()))
                .collect(),
            cert,
        }
    }

    /// Returns why certificate and key cannot be used.
    fn faults(&self, cert: &NodeCert) -> Vec<FileFault> {
        let NodeCert {
            found,
            certificate,
            key,
            ..
        } = cert;
        if let Some(error) = &cert.unrepairable {
            let here = self.here(certificate.path());
            return vec![FileFault::of_kubeconfig(&here, error.clone())];
        }
        let content = certificate.found(|_| Ok::<_, String>(()));
        if certificate.path() == key.path()
            && let Err(fault) = self.required(certificate, content)
        {
            return vec![fault];
        }
        let [of_certificate, of_key] = match &found.kubeconfig {
            Some(kubeconfig) if kubeconfig.pair.is_none() => {
                [FilePart::ClientCertificate, FilePart::ClientKey]
            }
            _ => [FilePart::Whole; 2],
        };
        let parts = [
            (of_certificate, certificate, found.chain.clone().map(drop)),
            (of_key, key, found.key.clone().map(drop)),
        ];
        let faults = parts.into_iter().filter_map(|(part, file, found)| {
            let fault = self.required(file, found).err()?;
            Some(FileFault { part, ..fault })
        });
        faults.collect()
    }

    pub(super) fn authority(&self, name: Authority) -> AuthorityFiles {
        let [path, key_path] = self.state.layout().authority(name);
        let here = self.here(&path);
        let certificate = self.state.file(&path);
        let file = self.row_file(&certificate, false);
        // Any sequence of certificates parses as a chain, so a row exists even for an unusable bundle.
        let both = certificate.found(|bytes| {
            Chain::from_pem(bytes).map(|chain| (chain, TrustBundle::from_pem(bytes)))
        });
        let (certificates, trust) = match self.required(&certificate, both) {
            Ok((chain, trust)) => {
                let trust = trust.map_err(|error| {
                    FileFault::new(&here, FileProblem::NotATrustBundle(error.to_string()))
                });
                (Some(chain), trust)
            }
            Err(fault) => (None, Err(fault)),
        };
        // The key is never opened. Opening it as a directory shows whether a link has a target.
        let key = self.state.file(&key_path);
        let is_dangling = || {
            let metadata = key.metadata();
            metadata.is_some_and(|found| found.kind == FileKind::Symlink)
                && matches!(self.state.root().dir(&key_path), Ok(None))
        };
        let content = certificate.bytes().ok().flatten().unwrap_or_default();
        let bundle = trust.as_ref().ok();
        AuthorityFiles {
            key_note: assess::key_among_certificates(&here, name, content, bundle),
            name,
            certificates,
            trust,
            has_key: key.exists() && !is_dangling(),
            files: vec![file, self.entry(&key, true)],
            here,
        }
    }

    pub(super) fn service_account(&self) -> ServiceAccountFiles {
        let layout = self.state.layout();
        let [private, public] = layout.service_account().map(|path| self.state.file(path));
        ServiceAccountFiles {
            files: vec![self.row_file(&private, true), self.row_file(&public, false)],
            private: self.required(&private, private.key()),
            public: self.required(&public, public.found(PublicKey::all_from_pem)),
            key_form_is_ours: private.has_our_key_form(),
            has_served: self.state.has_served(),
        }
    }

    /// Returns the status of a file that is read.
    fn row_file(&self, file: &NodeFile, secret: bool) -> RowFile {
        // Reading resolves a symbolic link: the metadata is then that of its target.
        let _ = file.bytes();
        self.entry(file, secret)
    }

    /// Returns the status of a file without reading it.
    fn entry(&self, file: &NodeFile, secret: bool) -> RowFile {
        RowFile {
            status: FileStatus {
                path: file.path().display().to_string(),
                secret,
                access: file.metadata().map(access),
            },
            here: self.here(file.path()),
        }
    }

    /// Returns the content found in a file, or the file's fault.
    fn required<T>(&self, file: &NodeFile, found: Observed<T>) -> Result<T, FileFault> {
        let here = self.here(file.path());
        file.bytes()
            .map_err(|error| FileFault::of_store(&here, &error))?;
        let problem = match found {
            Observed::Present(value) => return Ok(value),
            Observed::Absent if file.is_dangling() => FileProblem::DanglingLink,
            Observed::Absent => FileProblem::Absent,
            Observed::Empty => FileProblem::Empty,
            Observed::Unreadable(why) => FileProblem::Damaged(why),
        };
        Err(FileFault::new(&here, problem))
    }
}

fn access(metadata: &Metadata) -> FileAccess {
    FileAccess {
        regular: metadata.kind == FileKind::File,
        mode: metadata.mode,
        uid: metadata.uid,
        gid: metadata.gid,
    }
}
