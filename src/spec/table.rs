//! The table that describes a node's desired state: its certificates, trust bundles and key pairs, and their files.

use std::path::Path;

use super::choices::KubeletLayout;
use super::layout::Layout;
use super::policy::KeyPolicy;
use super::schedule::OnPolicyChange;
use crate::kube::names::{Authority, CertName, NodePath};
use crate::x509::{KeyAlgorithm, Profile, Subject, Tolerance};

/// The desired state of one node's PKI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The paths of its files.
    pub layout: Layout,
    /// Leaf certificates, in the order in which kubeadm makes them.
    pub certs: Vec<CertSpec>,
    /// Trust bundles, in the order in which kubeadm makes them.
    pub bundles: Vec<BundleSpec>,
    /// The service-account key pair; `None` for a worker.
    pub service_account: Option<ServiceAccountSpec>,
    /// The client files of an external etcd: verified, never written.
    pub external_etcd: Option<ExternalEtcd>,
    /// The preflight checks that `kubeadm join` must ignore, as it refuses existing files that it would create itself
    /// (`JoinNodeChecks`); empty for a first node.
    pub ignore_preflight_errors: Vec<String>,
    /// Certificates that only [`Choices::omit`](super::Choices::omit) removes from the table.
    pub omitted: Vec<CertName>,
    /// Remarks for the administrator that are not errors.
    pub notes: Vec<String>,
    /// The key policy, also for keys that are not in the table.
    pub policy: KeyPolicy,
    /// Parts of the key policy that could not be read.
    pub policy_doubts: PolicyDoubts,
}

/// Why it is not known what the key policy requires. Certificates are issued by what is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDoubts {
    /// The policy of the cluster was not read, or its present document is not valid.
    pub rules: Option<String>,
    /// Whether nothing is issued until the policy of the cluster is known.
    pub blocks: bool,
    /// kubeadm's `encryptionAlgorithm`, which applies where no rule does, is assumed.
    pub algorithm: Option<String>,
}

impl NodeSpec {
    /// Returns the spec of one certificate, if this node holds it.
    pub fn cert(&self, name: CertName) -> Option<&CertSpec> {
        self.certs.iter().find(|spec| spec.name() == name)
    }

    /// Returns the bundle of one authority, if this node holds it.
    pub fn bundle(&self, authority: Authority) -> Option<&BundleSpec> {
        self.bundles.iter().find(|spec| spec.authority == authority)
    }

    /// Returns the same table with paths that messages display for a node below this root directory.
    #[must_use]
    pub(crate) fn shown_below(mut self, root: &Path) -> NodeSpec {
        let certs = self.certs.iter_mut();
        let outputs = certs.flat_map(|spec| match &mut spec.output {
            CertFiles::Pair {
                certificate, key, ..
            } => vec![certificate, key],
            CertFiles::Kubeconfig {
                path, store, pair, ..
            } => {
                let store = store.iter_mut().map(|store| &mut store.dir);
                let pair = pair.iter_mut();
                let pair = pair.flat_map(|pair| [&mut pair.certificate, &mut pair.key]);
                store.chain(pair).chain([path]).collect()
            }
        });
        let bundles = self.bundles.iter_mut();
        let bundles = bundles.flat_map(|spec| {
            let copies = spec.copies.iter_mut().map(|copy| &mut copy.path);
            copies.chain([&mut spec.path, &mut spec.key_path, &mut spec.crl_path])
        });
        let pair = self.service_account.iter_mut();
        let pair = pair.flat_map(|spec| [&mut spec.private, &mut spec.public]);
        let external = self.external_etcd.iter_mut();
        let external = external.flat_map(|files| {
            let ExternalEtcd {
                authority,
                certificate,
                key,
            } = files;
            [authority, certificate, key].into_iter().flatten()
        });
        for path in outputs.chain(bundles).chain(pair).chain(external) {
            *path = std::mem::replace(path, NodePath::from("")).below(root);
        }
        self
    }
}

/// One leaf certificate and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertSpec {
    /// The certificate that its signer is asked for.
    pub requested: RequestedCertificate,
    /// Subjects that other kubeadm versions give this certificate. A certificate on disk with one of them is kept, as
    /// the cluster may depend on it; one from a signer is refused.
    pub other_subjects: Vec<Subject>,
    /// Progress of a change of its authority's CA on this node.
    pub authority_change: AuthorityProgress,
    /// When a usable certificate is replaced because its key has another algorithm.
    pub on_policy_change: OnPolicyChange,
    /// True if [`Choices::omit`](super::Choices::omit) may contain it on this node.
    pub is_omittable: bool,
    /// Purpose of a registered certificate, as configured.
    pub description: Option<String>,
    /// Its files.
    pub output: CertFiles,
}

impl CertSpec {
    /// Returns kubeadm's name.
    pub fn name(&self) -> CertName {
        self.requested.name
    }

    /// Returns the authority that signs it.
    pub fn authority(&self) -> Authority {
        self.requested.authority
    }
}

/// Progress of a change of an authority's CA on this node, as far as the authority's certificates depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthorityProgress {
    /// No change is recorded.
    #[default]
    Unchanged,
    /// This node trusts the new CA, which has this SHA-256 in hexadecimal. The other nodes may not trust it yet.
    Staged(String),
    /// The new CA issues: a certificate that was not issued under the first certificate of the bundle is issued again
    /// instead of kept with a note.
    Activated,
}

/// The part of a certificate's spec that its signer sees, also before the key exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedCertificate {
    /// kubeadm's name.
    pub name: CertName,
    /// The authority that must sign it.
    pub authority: Authority,
    /// Subject, names, usages, lifetime, key algorithm.
    pub profile: Profile,
    /// Deviations that the verification accepts.
    pub tolerance: Tolerance,
}

/// The files that contain a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertFiles {
    /// `.crt` (0644) and `.key` (0600).
    Pair {
        /// PEM, leaf first.
        certificate: NodePath,
        /// PEM, PKCS#1 or SEC1.
        key: NodePath,
        /// Numeric ID of a group that may read the key (0640).
        group: Option<u32>,
    },
    /// A kubeconfig (0600) that contains both, or names their files.
    Kubeconfig {
        /// The file.
        path: NodePath,
        /// URL of the API server.
        server: String,
        /// Name of the cluster entry.
        cluster: String,
        /// Name of the user entry.
        user: String,
        /// For kubelet.conf: the directory of the kubelet's client certificates.
        store: Option<KubeletStoreSpec>,
        /// For controller-manager.conf and scheduler.conf: the files of certificate and key.
        pair: Option<ClientPairSpec>,
    },
}

/// The files of the certificate and key of a component's kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPairSpec {
    /// `client-certificate`, PEM, leaf first, 0644.
    pub certificate: NodePath,
    /// `client-key`, PEM, PKCS#1 or SEC1, 0600.
    pub key: NodePath,
    /// True if the kubeconfig names the files; otherwise it contains certificate and key, and the files do not exist.
    pub is_named: bool,
}

impl ClientPairSpec {
    /// Returns whether these are the files that a kubeconfig names.
    pub fn is(&self, certificate: &Path, key: &Path) -> bool {
        *self.certificate == *certificate && *self.key == *key
    }
}

/// The directory of the kubelet's client certificates: dated files with certificate and key, and a link to the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletStoreSpec {
    /// The directory.
    pub dir: NodePath,
    /// When nodepki stores the certificate there.
    pub layout: KubeletLayout,
}

impl CertFiles {
    /// Returns the files of this output; a pair's key first, a kubeconfig last.
    pub fn paths(&self) -> Vec<&NodePath> {
        match self {
            CertFiles::Pair {
                certificate, key, ..
            } => vec![key, certificate],
            CertFiles::Kubeconfig { path, .. } => {
                let pair = self.named_pair().into_iter();
                let pair = pair.flat_map(|pair| [&pair.key, &pair.certificate]);
                pair.chain([path]).collect()
            }
        }
    }

    /// Returns the files of certificate and key that a kubeconfig names.
    pub fn named_pair(&self) -> Option<&ClientPairSpec> {
        match self {
            CertFiles::Kubeconfig { pair, .. } => pair.as_ref().filter(|pair| pair.is_named),
            CertFiles::Pair { .. } => None,
        }
    }
}

/// The trust bundle of one authority: its `ca.crt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSpec {
    /// The authority.
    pub authority: Authority,
    /// `ca.crt`, 0644.
    pub path: NodePath,
    /// The path at which kubeadm expects the CA key. The file should not exist.
    pub key_path: NodePath,
    /// `crl.pem`, 0644: the revocation lists, if the signer publishes any. `crl.der` in the same directory contains only
    /// the list for the authority's leaves, which is the form that etcd 3.6 reads; etcd 3.5 reads either.
    pub crl_path: NodePath,
    /// Copies of `path` for components of registered certificates.
    pub copies: Vec<BundleCopy>,
    /// Key algorithm of a CA certificate that a demonstration authority creates.
    pub key: KeyAlgorithm,
}

/// A copy of a trust bundle for the component of a registered certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleCopy {
    /// The registered certificate.
    pub of: CertName,
    /// The copy, 0644.
    pub path: NodePath,
}

/// The key pair that signs service-account tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccountSpec {
    /// `sa.key`, 0600.
    pub private: NodePath,
    /// `sa.pub`, 0600 as `kubeadm init` writes it.
    pub public: NodePath,
    /// Algorithm for a new pair.
    pub key: KeyAlgorithm,
    /// True on the first node only: with two different pairs, half of all tokens fail.
    pub may_make: bool,
}

/// The files of an external etcd that `etcd.external` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalEtcd {
    /// `caFile`.
    pub authority: Option<NodePath>,
    /// `certFile`.
    pub certificate: Option<NodePath>,
    /// `keyFile`.
    pub key: Option<NodePath>,
}
