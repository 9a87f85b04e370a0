//! Adds the files of one certificate to a commit: a PEM pair, a kubeconfig, or the kubelet's own layout.

use time::OffsetDateTime;

use crate::agent::Failure;
use crate::agent::kubelet::{KubeletFiles, unrepairable};
use crate::kube::components::ReplacedFile;
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::spec::assess::ObservedKubeletStore;
use crate::spec::{CertFiles, CertSpec};
use crate::store::{Commit, Mode, NodeRoot};
use crate::x509::{Chain, PrivateKey, TrustBundle};

/// A certificate and its key, to be written.
pub(super) struct CertMaterial<'a> {
    pub(super) spec: &'a CertSpec,
    pub(super) trusted: &'a TrustBundle,
    pub(super) chain: &'a Chain,
    pub(super) key: &'a PrivateKey,
    /// The pair was just issued.
    pub(super) is_new: bool,
}

impl CertMaterial<'_> {
    /// Adds the files to the commit. `document` and `store` are the kubeconfig and the kubelet's directory as found.
    pub(super) fn add_to(
        self,
        commit: &mut Commit,
        root: &NodeRoot,
        now: OffsetDateTime,
        document: Option<Kubeconfig>,
        store: Option<ObservedKubeletStore>,
    ) -> Result<(), Failure> {
        if let Some(store) = store {
            let files = KubeletFiles {
                spec: self.spec,
                trusted: self.trusted,
                chain: self.chain,
                key: self.key,
                is_new: self.is_new,
                store,
                document,
            };
            return files.add_to(commit, root, now);
        }
        let changed = match &self.spec.output {
            CertFiles::Pair {
                certificate,
                key,
                group,
            } => {
                let private = self.key.to_pem().as_bytes().to_vec();
                commit.file(
                    key.clone(),
                    private,
                    group.map_or(Mode::Private, Mode::GroupPrivate),
                );
                let public = self.chain.to_pem().into_bytes();
                commit.file(certificate.clone(), public, Mode::Public);
                commit.together(certificate.clone(), key.clone());
                certificate
            }
            CertFiles::Kubeconfig {
                path,
                server,
                cluster,
                user,
                ..
            } => {
                let credentials = Credentials {
                    server,
                    authority: &self.trusted.roots_to_pem(),
                    certificate: &self.chain.to_pem(),
                    key: &self.key.to_pem(),
                };
                let document = match document {
                    Some(mut document) => {
                        document
                            .set_credentials(&credentials)
                            .map_err(|error| unrepairable(path, error))?;
                        document
                    }
                    None => Kubeconfig::new(cluster, user, &credentials),
                };
                let yaml = document.to_yaml().as_bytes().to_vec();
                commit.file(path.clone(), yaml, Mode::Private);
                path
            }
        };
        let change = ReplacedFile::Certificate(self.spec.name());
        commit.change(change, changed.clone(), now);
        Ok(())
    }
}

/// Adds a kubeconfig that refers to its certificate by file: the cluster entry only, because nodepki does not manage
/// those files.
pub(super) fn add_cluster(
    spec: &CertSpec,
    trusted: &TrustBundle,
    mut document: Kubeconfig,
    commit: &mut Commit,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    if let CertFiles::Kubeconfig { path, server, .. } = &spec.output {
        document
            .set_cluster(server, &trusted.roots_to_pem())
            .map_err(|error| unrepairable(path, error))?;
        let yaml = document.to_yaml().as_bytes().to_vec();
        commit.file(path.clone(), yaml, Mode::Private);
        commit.change(ReplacedFile::Certificate(spec.name()), path.clone(), now);
    }
    Ok(())
}
