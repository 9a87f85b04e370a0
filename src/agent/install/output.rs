//! Adds the files of one certificate to a commit: a PEM pair, a kubeconfig, or the kubelet's own layout.

use time::OffsetDateTime;

use crate::agent::Failure;
use crate::agent::kubelet::{KubeletFiles, unrepairable};
use crate::kube::components::{ReplacedFile, components_to_restart_for_named_pair};
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::kube::names::NodePath;
use crate::spec::assess::{ObservedKubeconfig, ObservedKubeletStore, kubeconfig_differences};
use crate::spec::{CertFiles, CertSpec, ClientPairSpec};
use crate::store::{Commit, Mode, NodeRoot};
use crate::x509::{Chain, PrivateKey, TrustBundle, verifies};

/// A certificate and its key, to be written.
pub(super) struct CertMaterial<'a> {
    pub(super) spec: &'a CertSpec,
    pub(super) trusted: &'a TrustBundle,
    pub(super) chain: &'a Chain,
    pub(super) key: &'a PrivateKey,
    /// The pair was just issued.
    pub(super) is_new: bool,
}

/// What exists in the place of a certificate that is written.
pub(super) struct FoundFiles {
    /// The kubeconfig.
    pub(super) kubeconfig: Option<ObservedKubeconfig>,
    /// The kubelet's directory.
    pub(super) store: Option<ObservedKubeletStore>,
    /// Until when the certificate is accepted; `None` if it may be refused at any time.
    pub(super) accepted_until: Option<OffsetDateTime>,
}

/// Returns until when a certificate is accepted: to its end, unless its CA is no longer the first one of the bundle and may
/// be retired.
pub(super) fn accepted_until(
    chain: &Chain,
    trusted: &TrustBundle,
    now: OffsetDateTime,
) -> Option<OffsetDateTime> {
    let first = TrustBundle::from_certificates(vec![trusted.first().clone()]).ok()?;
    verifies(chain, &first, now).then(|| chain.leaf().not_after())
}

impl CertMaterial<'_> {
    /// Adds the files to the commit.
    pub(super) fn add_to(
        self,
        commit: &mut Commit,
        root: &NodeRoot,
        now: OffsetDateTime,
        found: FoundFiles,
    ) -> Result<(), Failure> {
        let FoundFiles {
            kubeconfig,
            store,
            accepted_until,
        } = found;
        if let Some(store) = store {
            let files = KubeletFiles {
                spec: self.spec,
                trusted: self.trusted,
                chain: self.chain,
                key: self.key,
                is_new: self.is_new,
                store,
                document: kubeconfig.map(|kubeconfig| kubeconfig.document),
            };
            return files.add_to(commit, root, now);
        }
        let change = ReplacedFile::Certificate(self.spec.name());
        match &self.spec.output {
            CertFiles::Pair {
                certificate,
                key,
                group,
            } => {
                let key_mode = group.map_or(Mode::Private, Mode::GroupPrivate);
                self.add_pair(commit, certificate, key, key_mode);
                // A rollback restores both.
                for path in [certificate, key] {
                    commit.change(change, path.clone(), now);
                }
            }
            CertFiles::Kubeconfig { path, .. } => {
                if let Some(pair) = self.spec.output.named_pair() {
                    self.add_named_pair(commit, pair, accepted_until, now);
                    let is_complete = kubeconfig.as_ref().is_some_and(|found| {
                        kubeconfig_differences(&self.spec.output, found, self.trusted).is_empty()
                    });
                    // The component would have to be restarted for another text.
                    if is_complete {
                        return Ok(());
                    }
                    commit.together(path.clone(), pair.certificate.clone());
                }
                let text = self.kubeconfig(kubeconfig.map(|found| found.document))?;
                commit.file(path.clone(), text, Mode::Private);
                commit.change(change, path.clone(), now);
            }
        }
        Ok(())
    }

    fn add_pair(
        &self,
        commit: &mut Commit,
        certificate: &NodePath,
        key: &NodePath,
        key_mode: Mode,
    ) {
        let private = self.key.to_pem().as_bytes().to_vec();
        commit.file(key.clone(), private, key_mode);
        let public = self.chain.to_pem().into_bytes();
        commit.file(certificate.clone(), public, Mode::Public);
        commit.together(certificate.clone(), key.clone());
    }

    /// Adds the files that a kubeconfig names. If the component must be restarted for them, both are kept for a rollback.
    fn add_named_pair(
        &self,
        commit: &mut Commit,
        pair: &ClientPairSpec,
        accepted_until: Option<OffsetDateTime>,
        now: OffsetDateTime,
    ) {
        let ClientPairSpec {
            certificate, key, ..
        } = pair;
        self.add_pair(commit, certificate, key, Mode::Private);
        let name = self.spec.name();
        let readers = components_to_restart_for_named_pair(name, accepted_until, now);
        for path in [certificate, key] {
            let change = ReplacedFile::Certificate(name);
            commit.change_read_by(change, path.clone(), now, readers);
        }
    }

    /// Returns the text of the kubeconfig.
    fn kubeconfig(&self, found: Option<Kubeconfig>) -> Result<Vec<u8>, Failure> {
        let CertFiles::Kubeconfig {
            path,
            server,
            cluster,
            user,
            ..
        } = &self.spec.output
        else {
            return Ok(Vec::new());
        };
        let authority = &self.trusted.roots_to_pem();
        let mut document = found.unwrap_or_else(|| Kubeconfig::without_credentials(cluster, user));
        let changed = match self.spec.output.named_pair() {
            Some(pair) => document.set_cluster(server, authority).and_then(|()| {
                let [certificate, key] = [&pair.certificate, &pair.key]
                    .map(|path| path.as_os_str().to_string_lossy().into_owned());
                document.set_client_files(&certificate, &key)
            }),
            None => document.set_credentials(&Credentials {
                server,
                authority,
                certificate: &self.chain.to_pem(),
                key: &self.key.to_pem(),
            }),
        };
        changed.map_err(|error| unrepairable(path, error))?;
        Ok(document.to_yaml().as_bytes().to_vec())
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
