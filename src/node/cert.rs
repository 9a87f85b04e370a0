//! Reads a certificate and its key: from a pair of files, from a kubeconfig and the files that it names, or from the
//! kubelet's store. `status`, `doctor`, the survey and a CA change judge the result.

use std::path::Path;
use std::rc::Rc;

use zeroize::Zeroizing;

use super::{NodeFile, NodeState};
use crate::kube::kubeconfig::KubeconfigError;
use crate::kube::names::CertName;
use crate::kube::paths::KUBELET_CURRENT_LINK;
use crate::spec::assess::{
    KubeletLink, KubeletStoreContent, Observed, ObservedCert, ObservedKubeconfig,
};
use crate::store::StoreError;

/// A certificate and its key as found, and the files with them.
pub struct NodeCert {
    /// The content, which is unreadable if a file cannot be read. [`NodeFile::bytes`] returns the error.
    pub found: ObservedCert,
    /// The kubeconfig; `None` for a pair of files.
    pub kubeconfig: Option<Rc<NodeFile>>,
    /// The file with the certificate, perhaps the kubeconfig.
    pub certificate: Rc<NodeFile>,
    /// The file with the key, perhaps that of the certificate.
    pub key: Rc<NodeFile>,
    /// The file with the CA certificates, if the kubeconfig contains no CA data.
    pub authority_file: Option<Rc<NodeFile>>,
    /// Why the kubeconfig cannot be repaired; replacing it would lose its content.
    pub unrepairable: Option<KubeconfigError>,
}

impl NodeCert {
    /// Returns the kubeconfig, the file with the certificate and that with the key, each once.
    pub fn files(&self) -> Vec<&NodeFile> {
        let files = self.kubeconfig.iter().chain([&self.certificate, &self.key]);
        let mut files: Vec<&NodeFile> = files.map(|file| &**file).collect();
        files.dedup_by_key(|file| file.path());
        files
    }

    /// Returns the certificate, once it is known that its files can be read or do not exist. Those that a kubeconfig names
    /// may be behind a link of the kubelet; see [`NodeFile::bytes_behind_link`].
    ///
    /// # Errors
    /// As of [`NodeFile::bytes`].
    pub fn readable(mut self) -> Result<NodeCert, StoreError> {
        if self.found.named_pair().is_some() {
            self.found.key = self.key.behind_link(NodeFile::key)?;
            self.found.chain = self.certificate.behind_link(NodeFile::chain)?;
        } else {
            self.certificate.readable()?;
            self.key.readable()?;
        }
        Ok(self)
    }
}

impl NodeState {
    /// Returns a certificate by its name.
    pub fn cert(&self, name: CertName) -> NodeCert {
        let [certificate, key] = self.layout().pair(name);
        if name.is_kubeconfig() {
            self.cert_in(certificate)
        } else {
            self.pair(certificate, key)
        }
    }

    /// Returns the certificate in a pair of files.
    pub fn pair(&self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> NodeCert {
        let (certificate, key) = (self.file(certificate), self.file(key));
        NodeCert {
            found: ObservedCert {
                key_form_is_ours: key.has_our_key_form(),
                exposed: key.mode_if_exposed(),
                ..ObservedCert::new(certificate.chain(), key.key())
            },
            kubeconfig: None,
            certificate,
            key,
            authority_file: None,
            unrepairable: None,
        }
    }

    /// Returns the certificate in a kubeconfig, or in the files that it names. These have the form that the kubelet or
    /// another tool chose.
    pub fn cert_in(&self, kubeconfig: impl AsRef<Path>) -> NodeCert {
        let file = self.file(kubeconfig);
        let unreadable = |why: String| {
            ObservedCert::new(Observed::Unreadable(why.clone()), Observed::Unreadable(why))
        };
        let (found, unrepairable) = match file.kubeconfig() {
            Ok(Ok(found)) => (found.clone(), None),
            Ok(Err(error)) => (unreadable(error.to_string()), Some(error.clone())),
            Err(error) => (unreadable(error.to_string()), None),
        };
        let mut cert = NodeCert {
            found,
            certificate: Rc::clone(&file),
            key: Rc::clone(&file),
            kubeconfig: Some(file),
            authority_file: None,
            unrepairable,
        };
        let Some(kubeconfig) = &mut cert.found.kubeconfig else {
            return cert;
        };
        self.require_files(kubeconfig);
        let [authority_file, _] = kubeconfig.required_files();
        cert.authority_file = authority_file.map(|path| self.file(path));
        if let Some([certificate, key]) = kubeconfig.pair.as_deref() {
            cert.certificate = self.file(certificate);
            cert.key = self.file(key);
            cert.found.chain = cert.certificate.chain();
            cert.found.key = cert.key.key();
        } else {
            cert.found.exposed = cert.key.mode_if_exposed();
        }
        cert
    }

    /// Returns the kubelet's store of client certificates in a directory.
    ///
    /// # Errors
    /// The link cannot be examined, or its target cannot be read.
    pub fn kubelet_store(&self, dir: &Path) -> Result<KubeletStoreContent, StoreError> {
        let file = self.file(dir.join(KUBELET_CURRENT_LINK));
        let (current, bytes) = match self.root().link(file.path())? {
            Some(target) => (KubeletLink::Link(target), file.bytes_behind_link()?),
            None if self.root().metadata(file.path())?.is_some() => {
                (KubeletLink::File, file.bytes()?)
            }
            None => (KubeletLink::Nothing, file.bytes()?),
        };
        Ok(KubeletStoreContent {
            current,
            pem: bytes.map(|bytes| Zeroizing::new(bytes.to_vec())),
            exposed: file.mode_if_exposed(),
        })
    }

    /// Reads the files that a kubeconfig names besides certificate and key.
    fn require_files(&self, kubeconfig: &mut ObservedKubeconfig) {
        for path in kubeconfig.required_files().into_iter().flatten() {
            let is_token = kubeconfig.token_file.as_deref() == Some(path.as_path());
            let is_usable = match self.file(&path).bytes() {
                Ok(Some(bytes)) => !is_token || !bytes.iter().all(u8::is_ascii_whitespace),
                _ => false,
            };
            if !is_usable {
                let here = self.root().on_this_machine(&path).display().to_string();
                kubeconfig.lacks(&path, here);
            }
        }
    }
}
