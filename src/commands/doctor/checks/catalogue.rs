//! The table of checks.

use serde::{Serialize, Serializer};

use super::finding::{CheckNote, FindingSeverity};
use super::picture::Picture;
use super::{
    access, authorities, cluster, configuration, external, kubeconfigs, kubelet, leaves, signers,
    static_pods,
};

/// One check.
#[derive(Serialize)]
pub struct Check {
    /// Stable id of the check and its findings.
    pub id: &'static str,
    /// Possible severities of the findings.
    #[serde(serialize_with = "names")]
    pub severities: &'static [FindingSeverity],
    /// Meaning of a finding.
    pub meaning: &'static str,
    #[serde(skip)]
    pub(super) run: fn(&Picture) -> Vec<CheckNote>,
}

fn names<S: Serializer>(severities: &&[FindingSeverity], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(severities.iter().map(|severity| severity.as_str()))
}

const E: &[FindingSeverity] = &[FindingSeverity::Error];
const W: &[FindingSeverity] = &[FindingSeverity::Warning];
const I: &[FindingSeverity] = &[FindingSeverity::Info];
const EW: &[FindingSeverity] = &[FindingSeverity::Error, FindingSeverity::Warning];
const EI: &[FindingSeverity] = &[FindingSeverity::Error, FindingSeverity::Info];
const WI: &[FindingSeverity] = &[FindingSeverity::Warning, FindingSeverity::Info];
const EWI: &[FindingSeverity] = &[
    FindingSeverity::Error,
    FindingSeverity::Warning,
    FindingSeverity::Info,
];

macro_rules! checks {
    ($($id:literal, $severities:ident, $run:path, $meaning:literal;)+) => {
        /// All checks, in the order of the report: what a run refuses comes before what it corrects.
        pub const CHECKS: &[Check] = &[
            $(Check { id: $id, severities: $severities, meaning: $meaning, run: $run },)+
        ];
    };
}

checks! {
    "config-unusable", E, configuration::unusable,
        "the configuration cannot be used; all checks that need it are skipped";
    "config-absent", I, configuration::absent,
        "there is no configuration, or only a part of it: the expected state is derived from the files on disk only";
    "empty-node", EI, configuration::empty,
        "there is no certificate, key or kubeconfig; an error if the root has no /etc";
    "hostname-override", W, configuration::hostname_override,
        "the kubelet registers with a name that differs from the name in the certificates";
    "clock-behind", E, configuration::clock,
        "the clock shows a time before this release, or before an authority on this node became valid";
    "not-permitted", W, configuration::not_permitted,
        "a file could not be examined with the permissions of this user";
    "unfinished-commit", E, configuration::unfinished,
        "a run was interrupted while it installed files or removed CA keys; the next run completes or reverts that";
    "stray-files", WI, configuration::strays,
        "temporary files of a crash or an unfinished procedure exist";
    "unregistered-certificate", I, configuration::unregistered,
        "a certificate that nodepki issued is not registered in the configuration: it stays in place and is not renewed";
    "too-many-files", W, configuration::crowded,
        "the directories of Kubernetes contain so many files that not all of them were examined";
    "pending-request", WI, configuration::pending,
        "a request waits for its signer, or was refused by it";
    "ca-key-on-disk", EI, authorities::key_on_disk,
        "the private key of an authority is on this node; an error if an external signer is configured";
    "ca-key-copy", EW, authorities::key_copy,
        "a file in another place contains the private key of an authority of this node";
    "missing-authority", E, authorities::missing,
        "the certificate of an authority is missing, so that nothing can be verified under it";
    "ca-replaced", E, authorities::replaced,
        "the certificates and kubeconfigs on this node belong to a CA other than the one in place";
    "cluster-rotation", WI, authorities::cluster_rotation,
        "a CA of the whole cluster is being changed, or was changed without some nodes";
    "shared-authority", E, authorities::shared,
        "the file of an authority also accepts the certificates of another authority, so that a client certificate of one counts as one of the other";
    "local-signer", W, configuration::local_signer,
        "a configured signer signs with CA private keys on this node";
    "secret-exposed", E, configuration::exposed_secrets,
        "other users can read or change a file with a secret; a run that needs it refuses it, unless it is a kubeadm file";
    "authority-not-pinned", E, authorities::not_pinned,
        "the file of an authority contains a certificate that matches no configured pin";
    "no-room", E, configuration::no_room,
        "the file system is full or read-only, so that the next run cannot write its files";
    "external-etcd", E, leaves::external_etcd,
        "a file that the configuration names for an external etcd is missing or unusable";
    "sa-missing", E, authorities::service_account_missing,
        "sa.key or sa.pub is missing: kube-apiserver does not start";
    "sa-pair", E, authorities::service_account_torn,
        "sa.pub does not belong to sa.key: tokens signed on this node are rejected on this node";
    "kubeconfig-is-a-directory", E, kubeconfigs::directory,
        "the path of a kubeconfig is not a regular file: container runtimes create a directory for a missing file";
    "kubeconfig-dangling", E, kubeconfigs::dangling,
        "current-context of a kubeconfig is invalid";
    "kubeconfig-refused", E, kubeconfigs::refused,
        "a kubeconfig has a value that every client of Kubernetes refuses";
    "directory-exposed", EW, access::directories,
        "other users can replace files in a directory that nodepki writes to, or the directory itself";
    "kubelet-other-node", EW, kubelet::other_node,
        "the kubelet's certificate is for another node";
    "unreadable", E, leaves::unreadable,
        "a file is empty, damaged, not a regular file, or not of the expected kind";
    "missing-certificate", E, leaves::missing_certificate,
        "a certificate that this node needs is missing";
    "missing-key", E, leaves::missing_key,
        "a certificate exists without its private key";
    "torn-pair", E, leaves::torn,
        "certificate and private key do not belong together";
    "expired", E, leaves::expired,
        "a certificate has expired";
    "not-yet-valid", E, leaves::not_yet_valid,
        "a certificate is not valid yet";
    "expiring", W, leaves::expiring,
        "less than 30 days and less than a third of its lifetime are left";
    "revoked", E, leaves::revoked,
        "the revocation list on this node contains the certificate";
    "chain-broken", E, leaves::unverified,
        "a certificate does not verify under the authority on this node";
    "first-certificate", W, leaves::not_under_first,
        "a certificate verifies under the bundle, but not under the first certificate of the bundle, which kubeadm uses";
    "misplaced-certificate", E, leaves::misplaced,
        "subject, names or usages of a certificate do not match its file";
    "key-policy", W, authorities::key_policy,
        "a key that nodepki does not replace does not have the algorithm of the policy, or a certificate is valid for longer than the policy permits";
    "key-policy-unknown", W, authorities::key_policy_unknown,
        "the key policy was not read, or a key to which it applies was not";
    "key-strength", I, authorities::key_strength,
        "a chain is only as strong as its weakest key, or a key is used for longer than NIST SP 800-57 accepts it";
    "not-as-configured", EW, leaves::not_as_configured,
        "a certificate verifies, but subject, names, usages or key differ from the configuration; an error if something is missing or too much is allowed";
    "static-pod-mounts", WI, static_pods::mounts,
        "a static pod that kubeadm did not write mounts files that nodepki replaces; a warning if it mounts super-admin.conf";
    "mode-too-open", EW, leaves::modes,
        "other users can read a private key, or change a trusted file";
    "foreign-owner", W, access::owners,
        "a private key, certificate or kubeconfig belongs to a personal account";
    "sa-divergence", E, cluster::service_account,
        "the cluster does not have the public key of sa.key: every token signed by this node is rejected (needs --kubeconfig)";
    "kubeconfig-missing", E, kubeconfigs::missing,
        "a kubeconfig that this node needs is missing";
    "kubeconfig-empty", E, kubeconfigs::empty,
        "a kubeconfig is empty: the kubelet creates such a file for a static pod that starts before its kubeconfig exists";
    "kubeconfig-authority", EW, kubeconfigs::authority,
        "the CA data of a kubeconfig differs from ca.crt, or from its first certificate";
    "kubeconfig-server", W, kubeconfigs::server,
        "a kubeconfig has an unexpected server address";
    "kubeconfig-by-file", EW, kubeconfigs::by_file,
        "a kubeconfig names files that its component cannot read, or files of another tool";
    "stale-copy", W, kubeconfigs::stale_copy,
        "a copy of a kubeconfig has expired";
    "copies", I, kubeconfigs::copies,
        "copies of certificates, for example in backups and /root/.kube/config, with the end of their validity";
    "super-admin-left", WI, kubeconfigs::super_admin,
        "super-admin.conf is needed only by kubeadm init; its holder bypasses RBAC";
    "kubelet-no-identity", EW, kubelet::no_identity,
        "the kubelet has neither kubelet.conf nor bootstrap-kubelet.conf";
    "kubelet-file-missing", E, kubelet::file_missing,
        "kubelet.conf names a file that does not exist";
    "kubelet-client-not-a-link", E, kubelet::not_a_link,
        "kubelet-client-current.pem is not a symbolic link, which the kubelet requires";
    "kubelet-embedded", WI, kubelet::embedded,
        "kubelet.conf contains its certificate instead of naming the file that the kubelet maintains";
    "kubelet-serving-unused", W, kubelet::serving_unused,
        "the kubelet's configuration prevents it from serving the certificate that is issued for it";
    "manifest-unreadable", E, static_pods::unreadable,
        "the manifest of a static pod is not a valid Pod, so that the kubelet does not run it";
    "controller-manager-no-signer", I, static_pods::no_signer,
        "kube-controller-manager signs nothing, as configured by kubeadm for an external CA: CSRs of kubelets need another signer";
    "controller-manager-token-cleaner", W, static_pods::no_token_cleaner,
        "no controller removes expired bootstrap tokens, so that the Secret kubeadm-certs never expires";
    "etcd-revocation-ignored", E, static_pods::etcd_revocation,
        "etcd accepts revoked client certificates (GHSA-3wh4-j44w-pg92)";
    "kubelets-two-signers", E, static_pods::two_signers,
        "kubelets.sign is set, and kube-controller-manager signs the requests of kubelets as well: by other rules, and after a change of CA with another key";
    "kubelets-any-network", W, configuration::any_network,
        "kubelets.sign is set without kubelets.networks: a kubelet chooses its address, and gets a certificate for any private one that no other Node reports";
    "controller-manager-signer-files", E, static_pods::signer_files,
        "the signing files of kube-controller-manager do not exist or do not belong together";
    "controller-manager-signer-bundle", E, static_pods::signer_bundle,
        "the signing certificate file of kube-controller-manager contains several certificates, which it rejects";
    "address-drift", EW, static_pods::address,
        "the address that kube-apiserver advertises is missing in its certificate, or differs from the configuration";
    "kubelet-client-rbac", EI, cluster::kubelet_client,
        "kube-apiserver is not allowed to access kubelets with its certificate: logs, exec and top fail (proven only with --kubeconfig)";
    "kubelet-signer-rbac", E, cluster::kubelet_signer,
        "kubelets.sign is set, and nodepki.conf lacks rights that the daemon needs for it (needs --kubeconfig)";
    "admin-rbac", EI, cluster::admin,
        "admin.conf has no rights (proven only with --kubeconfig)";
    "system-masters", EWI, cluster::masters,
        "a certificate has the group system:masters: its holder bypasses RBAC, and the permission cannot be revoked; an error if no version of kubeadm does this, a warning if the configured version does not";
    "kubeadm-external-ca", EWI, external::init,
        "kubeadm init would refuse the files on disk, since the CA's key is not on this node";
    "kubeadm-renewal", W, external::renewal,
        "kubeadm certs check-expiration and renew would fail, although kubeadm init would not";
    "signer-missing", EW, signers::missing,
        "no signer is configured for an authority whose certificates this node needs; a warning if none is due (needs --online)";
    "signer-login", EW, signers::login,
        "a signer is unreachable, or does not accept this node, or none could be examined (needs --online)";
    "signer-authority", EI, signers::authority,
        "a signer has another CA than this node, or one that no pin confirms (needs --online)";
    "signer-profile", EI, signers::profile,
        "a signer, as configured, cannot issue a certificate that this node needs (needs --online)";
    "cluster-unreachable", E, cluster::unreachable,
        "the cluster of --kubeconfig is unreachable";
    "cluster-refused", W, cluster::refused,
        "the cluster refused a request, so that a check could not be made";
}
