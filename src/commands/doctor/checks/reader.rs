//! Reads single files of the node for [`super::picture`]. Never fails: an unreadable file is part of the result.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::kube::manifest::StaticPod;
use crate::kube::names::Authority;
use crate::kube::paths::{BOOTSTRAP_KUBELET_CONF, KUBELET_CONFIGURATION, MANIFESTS_DIR};
use crate::node::{NodeCert, NodeFile, NodeState};
use crate::spec::assess::Observed;
use crate::spec::credentials;
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

    /// Returns the files of `kubeconfig.credentials: file`, each pair with the reason why its component cannot read it.
    pub(super) fn own_pairs(&self) -> Vec<([PathBuf; 2], Option<String>)> {
        let known = credentials::BY_FILE.into_iter();
        known
            .filter_map(|(name, component)| {
                let pair = self.state.layout().client_pair(name)?;
                let manifest = self.state.component_manifest(component);
                let mounted = manifest.present().zip(pair[0].parent());
                let obstacle = mounted
                    .and_then(|(pod, directory)| credentials::obstacle(pod, component, directory));
                Some((pair, obstacle))
            })
            .collect()
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

/// Returns the CA certificates of a kubeconfig, embedded or in the file that it names.
pub(super) fn authority_of(leaf: &NodeCert) -> Observed<Chain> {
    if let Some(file) = &leaf.authority_file {
        return file.chain();
    }
    let kubeconfig = leaf.found.kubeconfig.as_ref();
    let data = kubeconfig.and_then(|kubeconfig| kubeconfig.authority.as_deref());
    Observed::read(data, Chain::from_pem)
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
