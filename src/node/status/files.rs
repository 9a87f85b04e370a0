//! Reads the files of a row. A file that cannot be used is a [`FileFault`]; nothing is judged here.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;

use super::fault::{FileFault, FilePart, FileProblem};
use super::{FileAccess, FileStatus};
use crate::kube::names::{Authority, CertName};
use crate::node::{NodeFile, NodeState};
use crate::spec::assess::{self, FoundKubeconfig, Observed, ObservedKubeconfig};
use crate::spec::kubeconfig_path;
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
    pub(super) chain: Result<Chain, FileFault>,
    /// The fault is `None` if it is that of the chain.
    pub(super) key: Result<PrivateKey, Option<FileFault>>,
    /// False for a key that was read in another form than kubeadm's.
    pub(super) key_form_is_ours: bool,
    pub(super) kubeconfig: Option<ObservedKubeconfig>,
    /// Content of the file that the kubeconfig names in place of CA data.
    pub(super) named_authority: Option<Vec<u8>>,
    /// What nodepki recorded when it last installed this certificate.
    pub(super) record: Option<IssuedRecord>,
    pub(super) files: Vec<RowFile>,
}

impl LeafFiles {
    fn new(
        name: CertName,
        chain: Result<Chain, FileFault>,
        key: Result<PrivateKey, FileFault>,
    ) -> LeafFiles {
        LeafFiles {
            name,
            chain,
            key: key.map_err(Some),
            key_form_is_ours: true,
            kubeconfig: None,
            named_authority: None,
            record: None,
            files: Vec::new(),
        }
    }

    fn unusable(name: CertName, fault: FileFault) -> LeafFiles {
        LeafFiles {
            key: Err(None),
            ..LeafFiles::new(name, Err(fault.clone()), Err(fault))
        }
    }

    /// Returns whether the record is about this certificate; `None` without record or certificate.
    pub(super) fn is_recorded(&self) -> Option<bool> {
        let leaf = self.chain.as_ref().ok()?.leaf();
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
    issued: BTreeMap<CertName, IssuedRecord>,
}

impl RowReader<'_> {
    pub(super) fn new(state: &NodeState) -> RowReader<'_> {
        RowReader {
            state,
            // A damaged record costs only the times of issue and the origin of each certificate.
            issued: state.root().issued().unwrap_or_default(),
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
        let leaf = if name.is_kubeconfig() {
            self.kubeconfig(name)
        } else {
            self.pair(name)
        };
        LeafFiles {
            record: self.issued.get(&name).cloned(),
            named_authority: leaf.kubeconfig.as_ref().and_then(|kubeconfig| {
                let [file, _] = kubeconfig.required_files();
                // A file that cannot be read is among the refusals.
                let file = self.state.file(file?);
                file.bytes().ok()?.map(<[u8]>::to_vec)
            }),
            ..leaf
        }
    }

    fn pair(&self, name: CertName) -> LeafFiles {
        let layout = self.state.layout();
        let [certificate, key] = layout.pair(name).map(|path| self.state.file(path));
        let files = [(&certificate, false), (&key, true)];
        LeafFiles {
            files: files
                .map(|(file, secret)| self.row_file(file, secret))
                .into(),
            key_form_is_ours: key_form_is_ours(&key),
            ..LeafFiles::new(
                name,
                self.parse(&certificate, NodeFile::chain),
                self.parse(&key, NodeFile::key),
            )
        }
    }

    fn kubeconfig(&self, name: CertName) -> LeafFiles {
        let file = self.state.file(kubeconfig_path(name));
        let row_file = self.row_file(&file, true);
        let here = self.here(file.path());
        // An absent, empty or unreadable kubeconfig has the same faults as any other file.
        let read = self.parse(&file, has_text).and_then(|()| {
            let read = self.state.kubeconfig(file.path());
            read.map_err(|error| FileFault::of_store(&here, &error))
        });
        let mut leaf = match read {
            Ok(FoundKubeconfig::Embedded(found)) => {
                let of = |part, problem| FileFault {
                    part,
                    ..FileFault::new(&here, problem)
                };
                let chain = required(found.chain, false);
                let chain = chain.map_err(|problem| of(FilePart::ClientCertificate, problem));
                let key = required(found.key, false);
                let key = key.map_err(|problem| of(FilePart::ClientKey, problem));
                LeafFiles {
                    kubeconfig: found.kubeconfig,
                    key_form_is_ours: found.key_form_is_ours,
                    ..LeafFiles::new(name, chain, key)
                }
            }
            Ok(FoundKubeconfig::ByFile {
                certificate,
                key,
                kubeconfig,
            }) => return self.named_pair(name, row_file, (&certificate, &key), kubeconfig),
            Ok(FoundKubeconfig::Unusable(error)) => {
                LeafFiles::unusable(name, FileFault::of_kubeconfig(&here, error))
            }
            Err(fault) => LeafFiles::unusable(name, fault),
        };
        leaf.files.push(row_file);
        leaf
    }

    /// Returns the certificate and key in the files that a kubeconfig names, perhaps the same.
    fn named_pair(
        &self,
        name: CertName,
        mut row_file: RowFile,
        (certificate, key): (&NodeFile, &NodeFile),
        kubeconfig: ObservedKubeconfig,
    ) -> LeafFiles {
        // A kubeconfig that names files does not contain a private key.
        row_file.status.secret = false;
        let is_combined = certificate.path() == key.path();
        let mut files = vec![row_file, self.row_file(certificate, is_combined)];
        if !is_combined {
            files.push(self.row_file(key, true));
        }
        let leaf = match self.parse(certificate, has_text) {
            // A fault of one file is reported once.
            Err(fault) if is_combined => LeafFiles::unusable(name, fault),
            _ => LeafFiles::new(
                name,
                self.parse(certificate, NodeFile::chain),
                self.parse(key, NodeFile::key),
            ),
        };
        LeafFiles {
            kubeconfig: Some(kubeconfig),
            files,
            ..leaf
        }
    }

    pub(super) fn authority(&self, name: Authority) -> AuthorityFiles {
        let [path, key_path] = self.state.layout().authority(name);
        let here = self.here(&path);
        let certificate = self.state.file(&path);
        let file = self.row_file(&certificate, false);
        // Any sequence of certificates parses as a chain, so a row exists even for an unusable bundle.
        let both = self.parse(&certificate, |file| {
            file.found(|bytes| {
                Chain::from_pem(bytes).map(|chain| (chain, TrustBundle::from_pem(bytes)))
            })
        });
        let (certificates, trust) = match both {
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
            private: self.parse(&private, NodeFile::key),
            public: self.parse(&public, |file| file.found(PublicKey::all_from_pem)),
            key_form_is_ours: key_form_is_ours(&private),
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

    /// Returns the parsed content of a file, or its fault.
    fn parse<T>(
        &self,
        file: &NodeFile,
        parse: impl FnOnce(&NodeFile) -> Observed<T>,
    ) -> Result<T, FileFault> {
        let here = self.here(file.path());
        file.bytes()
            .map_err(|error| FileFault::of_store(&here, &error))?;
        required(parse(file), file.is_dangling()).map_err(|problem| FileFault::new(&here, problem))
    }
}

/// Returns whether a file has content, whatever it is.
fn has_text(file: &NodeFile) -> Observed<()> {
    file.found(|_| Ok::<_, String>(()))
}

/// Returns false for a private key in another form than kubeadm's.
fn key_form_is_ours(file: &NodeFile) -> bool {
    match file.bytes() {
        Ok(Some(pem)) => assess::is_our_form(pem),
        _ => true,
    }
}

fn required<T>(found: Observed<T>, is_dangling: bool) -> Result<T, FileProblem> {
    match found {
        Observed::Present(value) => Ok(value),
        Observed::Absent if is_dangling => Err(FileProblem::DanglingLink),
        Observed::Absent => Err(FileProblem::Absent),
        Observed::Empty => Err(FileProblem::Empty),
        Observed::Unreadable(why) => Err(FileProblem::Damaged(why)),
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
