//! The settings of nodepki that change the table of certificates.

use std::collections::{BTreeMap, BTreeSet};

use super::registered::RegisteredCertificate;
use super::schedule::OnPolicyChange;
use crate::kube::kubeadm::San;
use crate::kube::names::{Authority, CertName};
use crate::x509::Tolerance;

/// The group that kubeadm binds to `cluster-admin`.
pub const CLUSTER_ADMINS: &str = "kubeadm:cluster-admins";
/// The group with all rights, which no RBAC rule can restrict.
pub const SYSTEM_MASTERS: &str = "system:masters";

/// The group of the daemons that approve and sign requests of kubelets. The roles that `nodepki config signer-setup
/// kubelets` prints are bound to it.
pub const KUBELET_SIGNERS_GROUP: &str = "nodepki:kubelet-signers";

words! {
    /// The location of the kubelet's client certificate.
    #[derive(Default)]
    pub enum KubeletLayout {
        /// In kubelet.conf, as `kubeadm init` writes it, until the kubelet has copied it to a file; then in that file, like
        /// `kubeadm init phase kubelet-finalize`.
        #[default]
        Auto = "auto",
        /// In a separate file from the beginning. A kubelet that rotates and finds its certificate in kubelet.conf requests
        /// another one immediately; that request stays pending in a cluster without a signer for it.
        File = "file",
    }
}

words! {
    /// Where controller-manager.conf and scheduler.conf have their certificate and key.
    #[derive(Default)]
    pub enum KubeconfigCredentials {
        /// In the kubeconfig, as kubeadm writes it. The component reads it at its start.
        #[default]
        Embedded = "embedded",
        /// In files that the kubeconfig names. The component reads them again while it runs.
        File = "file",
    }
}

words! {
    /// The organization of `apiserver-kubelet-client`, which kubeadm has changed twice.
    #[derive(Default)]
    pub enum KubeletClientSubject {
        /// By `kubernetesVersion`: none since 1.36.1 and 1.35.5, where kubeadm also creates the necessary binding;
        /// `kubeadm:cluster-admins` since 1.29; `system:masters` before. For an unknown version it is
        /// `kubeadm:cluster-admins`, which works with every kubeadm since 1.29.
        #[default]
        Auto = "auto",
        /// No organization.
        None = "none",
        /// `kubeadm:cluster-admins`.
        ClusterAdmins = CLUSTER_ADMINS,
        /// `system:masters`.
        Masters = SYSTEM_MASTERS,
    }
}

/// The settings of nodepki that change the table; kubeadm has no equivalent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// The organization of `apiserver-kubelet-client`.
    pub kubelet_client_subject: KubeletClientSubject,
    /// Common names that replace kubeadm's, with placeholders; only for [`CertName::has_free_common_name`].
    pub common_names: BTreeMap<CertName, String>,
    /// The accepted differences of each authority's certificates; none for an absent authority.
    pub tolerances: BTreeMap<Authority, Tolerance>,
    /// Names added to the API server's certificate.
    pub apiserver_sans: Vec<San>,
    /// Names added to the etcd server's certificate.
    pub etcd_server_sans: Vec<San>,
    /// Names added to the etcd peer's certificate.
    pub etcd_peer_sans: Vec<San>,
    /// Certificates that are not requested, if kubeadm's rules allow it.
    pub omit: BTreeSet<CertName>,
    /// True to issue the client certificate of an external etcd.
    pub external_etcd_client: bool,
    /// The kubeconfigs that name the files of their certificate and key, of those in
    /// [`BY_FILE`](super::credentials::BY_FILE).
    pub credentials_by_file: BTreeSet<CertName>,
    /// True to leave kubelet.conf to the kubelet's own TLS bootstrap, except on the first node.
    pub kubelet_bootstraps_itself: bool,
    /// The location of the kubelet's client certificate.
    pub kubelet_layout: KubeletLayout,
    /// True to issue the kubelet's serving certificate.
    pub kubelet_serving: bool,
    /// Names added to the kubelet's serving certificate.
    pub kubelet_serving_sans: Vec<San>,
    /// True if nodepki signs requests of kubelets, for which it has a kubeconfig of its own.
    pub signs_for_kubelets: bool,
    /// When a changed key algorithm takes effect.
    pub on_policy_change: OnPolicyChange,
    /// Certificates in addition to kubeadm's.
    pub registered: Vec<RegisteredCertificate>,
}
