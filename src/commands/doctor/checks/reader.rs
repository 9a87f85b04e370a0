//! Reads single files of the node for [`super::picture`]. Never fails: an unreadable file is part of the result.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::kube::components::Component;
use crate::kube::manifest::StaticPod;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{BOOTSTRAP_KUBELET_CONF, KUBELET_CONFIGURATION, MANIFESTS_DIR};
use crate::node::{NodeFile, NodeState};
use crate::spec::assess::{FoundKubeconfig, Observed};
use crate::spec::{credentials, kubeconfig_path};
use crate::store::{ErrorClass, FileKind};
use crate::x509::{Chain, KeyError, PublicKey, TrustBundle};
use crate::yaml;

pub(super) struct FoundAuthority {
    pub(super) path: PathBuf,
    pub(super) bundle: Observed<TrustBundle>,
    pub(super) key_path: PathBuf,
    pub(super) key: AuthorityKey,
}

/// State of the path of an authority's private key.
pub(super) enum AuthorityKey {
    Absent,
    /// A file exists, but this user cannot read it.
    Closed,
    /// This user cannot determine whether a file exists.
    Unknown,
    Unusable(String),
    Usable(PublicKey),
}

pub(super) struct FoundLeaf {
    pub(super) chain: Observed<Chain>,
    pub(super) key: Observed<PublicKey>,
    /// The kubeconfig; `None` for a pair.
    pub(super) kubeconfig: Option<Observed<KubeconfigPicture>>,
}

pub(super) struct KubeconfigPicture {
    pub(super) server: Option<String>,
    /// CA certificates, embedded or in the file that the kubeconfig names.
    pub(super) authority: Observed<Chain>,
    /// The files `client-certificate` and `client-key`.
    pub(super) files: Vec<PathBuf>,
    /// True if these are the files of `kubeconfig.credentials: file`.
    pub(super) are_own: bool,
    /// Why the component cannot read these files.
    pub(super) obstacle: Option<String>,
}

/// The CA files of kube-controller-manager.
pub(super) struct SignerFiles {
    pub(super) certificate: PathBuf,
    pub(super) chain: Observed<Chain>,
    pub(super) key_path: PathBuf,
    pub(super) key: AuthorityKey,
}

pub(super) struct Kubelet {
    pub(super) link_path: PathBuf,
    /// State of the path of the link to the newest certificate.
    pub(super) link: Option<FileKind>,
    /// Whether `bootstrap-kubelet.conf` exists.
    pub(super) may_bootstrap: bool,
    /// Whether kubeadm or another tool has set up the kubelet.
    pub(super) is_set_up: bool,
    /// The configuration file, if it can be read.
    pub(super) configuration: Option<Value>,
}

/// Reads files of a node.
pub(super) struct Reader<'a> {
    pub(super) state: &'a NodeState,
}

impl Reader<'_> {
    fn found<T, E: std::fmt::Display>(
        &self,
        path: &Path,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Observed<T> {
        self.state.file(path).found(parse)
    }

    pub(super) fn chain(&self, path: &Path) -> Observed<Chain> {
        self.state.file(path).chain()
    }

    pub(super) fn key(&self, path: &Path) -> Observed<PublicKey> {
        public_half(&self.state.file(path))
    }

    pub(super) fn authority(&self, name: Authority) -> FoundAuthority {
        let [path, key_path] = self.state.layout().authority(name);
        FoundAuthority {
            bundle: self.found(&path, TrustBundle::from_pem),
            path,
            key: self.authority_key(&key_path),
            key_path,
        }
    }

    fn authority_key(&self, path: &Path) -> AuthorityKey {
        let file = self.state.file(path);
        match file.bytes() {
            Ok(None) => AuthorityKey::Absent,
            Ok(Some(_)) => match public_half(&file) {
                Observed::Present(key) => AuthorityKey::Usable(key),
                Observed::Unreadable(why) => AuthorityKey::Unusable(why),
                _ => AuthorityKey::Unusable(KeyError::NoKey.to_string()),
            },
            Err(error) if error.class() == ErrorClass::Denied => match file.metadata() {
                Some(_) => AuthorityKey::Closed,
                None => AuthorityKey::Unknown,
            },
            Err(error) => AuthorityKey::Unusable(error.to_string()),
        }
    }

    pub(super) fn leaf(&self, name: CertName) -> FoundLeaf {
        if name.is_kubeconfig() {
            return self.kubeconfig(&kubeconfig_path(name));
        }
        let [certificate, key] = self.state.layout().pair(name);
        FoundLeaf {
            chain: self.chain(&certificate),
            key: self.key(&key),
            kubeconfig: None,
        }
    }

    pub(super) fn kubeconfig(&self, path: &Path) -> FoundLeaf {
        let unreadable = |why: String| {
            no_kubeconfig(Observed::Unreadable(why.clone()), Observed::Unreadable(why))
        };
        let (chain, key, kubeconfig, files) = match self.state.kubeconfig(path) {
            Err(error) => return unreadable(error.to_string()),
            Ok(FoundKubeconfig::Unusable(error)) => return unreadable(error.to_string()),
            Ok(FoundKubeconfig::Embedded(found)) => match (found.kubeconfig, found.chain) {
                (None, Observed::Empty) => return no_kubeconfig(Observed::Empty, Observed::Empty),
                (None, _) => return no_kubeconfig(Observed::Absent, Observed::Absent),
                (Some(kubeconfig), chain) => {
                    let key = found.key.map(|key| key.public_key().clone());
                    (chain, key, kubeconfig, Vec::new())
                }
            },
            Ok(FoundKubeconfig::ByFile {
                certificate,
                key,
                kubeconfig,
            }) => (
                certificate.chain(),
                public_half(&key),
                kubeconfig,
                vec![certificate.path().to_owned(), key.path().to_owned()],
            ),
        };
        let authority = match (&kubeconfig.authority, &kubeconfig.authority_file) {
            (None, Some(file)) => self.chain(file),
            (data, _) => Observed::read(data.as_deref(), Chain::from_pem),
        };
        let own = self.reader_of_own(&files);
        let obstacle = own.and_then(|(component, directory)| {
            let manifest = self.state.component_manifest(component);
            credentials::obstacle(manifest.present()?, component, directory)
        });
        FoundLeaf {
            chain,
            key,
            kubeconfig: Some(Observed::Present(KubeconfigPicture {
                server: kubeconfig.server,
                authority,
                are_own: own.is_some(),
                obstacle,
                files,
            })),
        }
    }

    /// Returns the component that reads these files of `kubeconfig.credentials: file`, and their directory.
    fn reader_of_own<'a>(&self, files: &'a [PathBuf]) -> Option<(Component, &'a Path)> {
        let layout = self.state.layout();
        let mut known = credentials::BY_FILE.into_iter();
        let (_, component) = known.find(|(name, _)| {
            let pair = layout.client_pair(*name);
            pair.is_some_and(|pair| pair == files)
        })?;
        Some((component, files.first()?.parent()?))
    }

    pub(super) fn manifest(&self, name: &str) -> Observed<StaticPod> {
        let file = self.state.file(Path::new(MANIFESTS_DIR).join(name));
        match file.bytes() {
            // `not-permitted` reports this for every file.
            Err(error) if error.class() == ErrorClass::Denied => Observed::Absent,
            _ => self.state.manifest(name),
        }
    }

    pub(super) fn signer(&self, manifest: &StaticPod) -> Option<SignerFiles> {
        let [certificate, key_path] = ["cluster-signing-cert-file", "cluster-signing-key-file"]
            .map(|flag| PathBuf::from(manifest.flag(flag).unwrap_or_default()));
        // The path in the pod equals the path on the node only in the certificates directory.
        let is_known = |path: &PathBuf| path.starts_with(self.dir());
        (is_known(&certificate) && is_known(&key_path)).then(|| SignerFiles {
            chain: self.chain(&certificate),
            certificate,
            key: self.authority_key(&key_path),
            key_path,
        })
    }

    pub(super) fn kubelet(&self) -> Kubelet {
        let configuration = Path::new(KUBELET_CONFIGURATION);
        let link_path = self.state.layout().kubelet_link();
        let link = self.state.root().metadata(&link_path).ok().flatten();
        Kubelet {
            link: link.map(|found| found.kind),
            link_path,
            may_bootstrap: self.state.exists(BOOTSTRAP_KUBELET_CONF),
            is_set_up: self.state.exists(configuration),
            configuration: self.found(configuration, document).present().cloned(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        self.state.layout().certificates_dir()
    }
}

fn no_kubeconfig(chain: Observed<Chain>, kubeconfig: Observed<KubeconfigPicture>) -> FoundLeaf {
    FoundLeaf {
        chain,
        key: Observed::Absent,
        kubeconfig: Some(kubeconfig),
    }
}

pub(super) fn public_half(file: &NodeFile) -> Observed<PublicKey> {
    file.key().map(|key| key.public_key().clone())
}

/// Returns the first document of a YAML file.
fn document(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let documents = yaml::parse("config.yaml", text).map_err(|faults| faults.to_string())?;
    Ok(documents.first().map(yaml::to_json).unwrap_or_default())
}
