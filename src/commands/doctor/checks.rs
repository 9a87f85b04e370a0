//! `nodepki doctor`: what is wrong with a node, by what one can tell, and what to do about it.
//!
//! [`diagnose`] reads a `Picture` of the node once: what `status` sees, the configuration where there is a usable one,
//! the manifests of the static pods, the kubelet's files, and, with a kubeconfig, a few answers of the cluster. The
//! checks are pure functions over that picture. Nothing is written, no lock is taken, and nothing ends a diagnosis:
//! what cannot be read or reached is a finding itself. Private keys are looked at for their public half only, and no
//! evidence has anything of them.
//!
//! To add a check: one entry of [`CHECKS`] and a function from the picture to notes, in the file of its area. A fact
//! that no check needed so far is a field of the picture.

mod access;
mod authorities;
mod cluster;
mod configuration;
mod external;
mod kubeconfigs;
mod kubelet;
mod leaves;
mod picture;
mod static_pods;
mod text;

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::agent::load;
use crate::config::Argument;
use crate::store::Root;

use picture::Picture;

pub use text::{list, table};

/// How bad a finding is; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work, or a key is where it must not be.
    Error,
    /// Something will not work, or not under every circumstance.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    /// As people read it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name, one of [`CHECKS`].
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was seen, one sentence a thing.
    pub evidence: Vec<String>,
    /// What to do.
    pub fix: String,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// When it was looked at.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The root on this machine.
    pub root: String,
    /// The worst first, those of one severity in the order of [`CHECKS`].
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// True with a finding of severity error.
    pub fn is_ill(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }
}

/// What a diagnosis is made from.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Where the configuration is.
    pub sources: load::Inputs,
    /// Certificates directory; `None` for that of the configuration, or kubeadm's default.
    pub certificates_dir: Option<PathBuf>,
    /// For what only the cluster can tell.
    pub kubeconfig: Option<Argument>,
}

/// Looks at a node.
pub async fn diagnose(root: &Root, inputs: &Inputs, now: OffsetDateTime) -> Diagnosis {
    let mut picture = Picture::read(root, inputs, now);
    if let Some(kubeconfig) = &inputs.kubeconfig {
        picture.answers = Some(cluster::ask(root, kubeconfig, &picture).await);
    }
    Diagnosis {
        at: now,
        root: root.path().display().to_string(),
        findings: findings(&picture)
            .into_iter()
            .map(|finding| Finding {
                fix: at_root(&finding.fix, root),
                ..finding
            })
            .collect(),
    }
}

/// The commands in an advice, for the root that was looked at.
fn at_root(fix: &str, root: &Root) -> String {
    match root.path() == Path::new("/") {
        true => fix.to_owned(),
        false => fix.replace(
            "`nodepki ",
            &format!("`nodepki --root {} ", root.path().display()),
        ),
    }
}

fn findings(picture: &Picture) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for check in CHECKS {
        for note in (check.look)(picture) {
            let same = findings.iter_mut().find(|finding| {
                finding.id == check.id
                    && finding.severity == note.severity
                    && finding.fix == note.fix
            });
            match same {
                Some(finding) => finding.evidence.push(note.evidence),
                None => findings.push(Finding {
                    id: check.id,
                    severity: note.severity,
                    evidence: vec![note.evidence],
                    fix: note.fix,
                }),
            }
        }
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// What a check says: notes with the same severity and fix become one finding.
struct Note {
    severity: Severity,
    evidence: String,
    fix: String,
}

impl Note {
    fn error(evidence: impl Into<String>, fix: impl Into<String>) -> Note {
        Note::new(Severity::Error, evidence, fix)
    }

    fn warning(evidence: impl Into<String>, fix: impl Into<String>) -> Note {
        Note::new(Severity::Warning, evidence, fix)
    }

    fn info(evidence: impl Into<String>, fix: impl Into<String>) -> Note {
        Note::new(Severity::Info, evidence, fix)
    }

    fn new(severity: Severity, evidence: impl Into<String>, fix: impl Into<String>) -> Note {
        Note {
            severity,
            evidence: evidence.into(),
            fix: fix.into(),
        }
    }
}

/// One thing that is looked for.
#[derive(Serialize)]
pub struct Check {
    /// Stable name of what it finds.
    pub id: &'static str,
    /// The severities that it may have.
    #[serde(serialize_with = "names")]
    pub severities: &'static [Severity],
    /// What it means.
    pub meaning: &'static str,
    #[serde(skip)]
    look: fn(&Picture) -> Vec<Note>,
}

fn names<S: Serializer>(severities: &&[Severity], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(severities.iter().map(|severity| severity.as_str()))
}

const E: &[Severity] = &[Severity::Error];
const W: &[Severity] = &[Severity::Warning];
const I: &[Severity] = &[Severity::Info];
const EW: &[Severity] = &[Severity::Error, Severity::Warning];
const EI: &[Severity] = &[Severity::Error, Severity::Info];
const WI: &[Severity] = &[Severity::Warning, Severity::Info];
const EWI: &[Severity] = &[Severity::Error, Severity::Warning, Severity::Info];

macro_rules! checks {
    ($($id:literal, $severities:ident, $look:path, $meaning:literal;)+) => {
        /// Everything that is looked for, in the order of the report.
        pub const CHECKS: &[Check] = &[
            $(Check { id: $id, severities: $severities, meaning: $meaning, look: $look },)+
        ];
    };
}

checks! {
    "config-unusable", E, configuration::unusable,
        "there is a configuration and it cannot be used; every check that needs it is left out";
    "config-absent", I, configuration::absent,
        "there is no configuration, or only a part of it: what is expected here follows from the files on disk alone";
    "empty-node", I, configuration::empty,
        "there is no certificate, key or kubeconfig";
    "hostname-override", W, configuration::hostname_override,
        "the kubelet registers under another name than the one in the certificates";
    "clock-behind", E, configuration::clock,
        "the clock shows a time before this release, or before an authority on this node began to be valid";
    "not-permitted", W, configuration::not_permitted,
        "a file could not be looked at by this user, so that nothing is known of it";
    "unfinished-commit", E, configuration::unfinished,
        "a run was interrupted while it put files in place; the next one finishes";
    "stray-files", WI, configuration::strays,
        "files that a crash or an unfinished procedure left behind";
    "too-many-files", W, configuration::crowded,
        "the directories of Kubernetes contain so many files that not all of them were examined";
    "pending-request", WI, configuration::pending,
        "a request waits for its signer, or is refused by it";
    "ca-key-on-disk", EI, authorities::key_on_disk,
        "the private key of an authority lies in its place on this node; an error where an external signer is configured";
    "ca-key-copy", EW, authorities::key_copy,
        "a file somewhere else holds the private key of an authority of this node";
    "missing-authority", E, authorities::missing,
        "the certificate of an authority is not there, so that nothing can be verified under it";
    "ca-replaced", E, authorities::replaced,
        "the certificates and kubeconfigs on this node belong to another CA than the one in place";
    "shared-authority", E, authorities::shared,
        "the file of an authority also accepts the certificates of another authority, so that a client certificate of one counts as one of the other";
    "local-signer", W, configuration::local_signer,
        "a configured signer signs with CA private keys on this node";
    "secret-exposed", E, configuration::exposed_secrets,
        "other users can read or change a file with a secret; a run that needs it refuses it, unless it is a kubeadm file";
    "authority-not-pinned", E, authorities::not_pinned,
        "the file of an authority holds a certificate that no configured pin speaks for";
    "external-etcd", E, leaves::external_etcd,
        "what the configuration names for an external etcd is missing or of no use";
    "unreadable", E, leaves::unreadable,
        "a file is empty, damaged, no file at all, or not what it should be";
    "missing-certificate", E, leaves::missing_certificate,
        "a certificate that this node needs is not there";
    "missing-key", E, leaves::missing_key,
        "a certificate is there and its private key is not";
    "torn-pair", E, leaves::torn,
        "certificate and private key do not belong together";
    "expired", E, leaves::expired,
        "the validity of a certificate is over";
    "not-yet-valid", E, leaves::not_yet_valid,
        "the validity of a certificate has not begun";
    "expiring", W, leaves::expiring,
        "less than 30 days and less than a third of its lifetime are left";
    "revoked", E, leaves::revoked,
        "the revocation list on this node names the certificate";
    "chain-broken", E, leaves::unverified,
        "a certificate does not verify under the authority on this node";
    "first-certificate", W, leaves::not_under_first,
        "a certificate verifies under the bundle, but not under its first certificate, which is all that kubeadm looks at";
    "misplaced-certificate", E, leaves::misplaced,
        "subject, names or usages of a certificate are not those of its place";
    "not-as-configured", EW, leaves::not_as_configured,
        "a certificate verifies, but subject, names, usages or key are not those of the configuration; an error where something is missing or too much is allowed";
    "mode-too-open", EW, leaves::modes,
        "others can read a private key, or change a file that is trusted";
    "directory-exposed", EW, access::directories,
        "other users can replace files in a directory that nodepki writes to, or the directory itself";
    "foreign-owner", W, access::owners,
        "a private key, certificate or kubeconfig belongs to the account of a person";
    "sa-missing", E, authorities::service_account_missing,
        "sa.key or sa.pub is not there: kube-apiserver does not start";
    "sa-pair", E, authorities::service_account_torn,
        "sa.pub does not belong to sa.key: tokens that are signed here are refused here";
    "sa-divergence", E, cluster::service_account,
        "the cluster does not know the key of sa.key: every token signed by this node is refused (needs --kubeconfig)";
    "kubeconfig-missing", E, kubeconfigs::missing,
        "a kubeconfig that this node needs is not there";
    "kubeconfig-empty", E, kubeconfigs::empty,
        "a kubeconfig has no content: the kubelet makes such a file for a static pod that starts before its kubeconfig";
    "kubeconfig-is-a-directory", E, kubeconfigs::directory,
        "something that is no file stands in the place of a kubeconfig: container runtimes make a directory for a missing one";
    "kubeconfig-dangling", E, kubeconfigs::dangling,
        "current-context of a kubeconfig leads nowhere";
    "kubeconfig-authority", EW, kubeconfigs::authority,
        "the CA data of a kubeconfig is not that of ca.crt, or not its first certificate";
    "kubeconfig-server", W, kubeconfigs::server,
        "a kubeconfig leads to another address than the one expected here";
    "kubeconfig-by-file", W, kubeconfigs::by_file,
        "a kubeconfig names files instead of holding certificate and key: kubeadm certs check-expiration and renew end with an error";
    "stale-copy", W, kubeconfigs::stale_copy,
        "a copy of a kubeconfig has expired";
    "copies", I, kubeconfigs::copies,
        "certificates outside their places, as in backups and /root/.kube/config, with the end of their validity";
    "super-admin-left", WI, kubeconfigs::super_admin,
        "super-admin.conf is needed once, by kubeadm init; no RBAC rule binds who has it";
    "kubelet-no-identity", EW, kubelet::no_identity,
        "the kubelet has neither kubelet.conf nor anything to get one with";
    "kubelet-file-missing", E, kubelet::file_missing,
        "kubelet.conf names a file that is not there";
    "kubelet-client-not-a-link", E, kubelet::not_a_link,
        "kubelet-client-current.pem is no symbolic link, which the kubelet refuses";
    "kubelet-embedded", WI, kubelet::embedded,
        "kubelet.conf holds its certificate instead of naming the file that the kubelet keeps it in";
    "kubelet-serving-unused", W, kubelet::serving_unused,
        "the kubelet's configuration keeps it from showing the certificate that is issued for it";
    "kubelet-other-node", EW, kubelet::other_node,
        "the kubelet's certificate is for another node";
    "manifest-unreadable", E, static_pods::unreadable,
        "the manifest of a static pod is no Pod, so that the kubelet does not run it";
    "controller-manager-no-signer", I, static_pods::no_signer,
        "kube-controller-manager signs nothing, as kubeadm starts it with an external CA: requests of kubelets wait for somebody else";
    "controller-manager-signer-files", E, static_pods::signer_files,
        "kube-controller-manager is to sign with files that do not exist or do not belong together";
    "controller-manager-signer-bundle", E, static_pods::signer_bundle,
        "kube-controller-manager is to sign with a file of several certificates, which it refuses";
    "address-drift", EW, static_pods::address,
        "the address that kube-apiserver advertises is not in its certificate, or not the configured one";
    "kubelet-client-rbac", EI, cluster::kubelet_client,
        "kube-apiserver may not reach kubelets with its certificate: logs, exec and top fail (proven only with --kubeconfig)";
    "admin-rbac", EI, cluster::admin,
        "admin.conf has no rights (proven only with --kubeconfig)";
    "system-masters", EWI, cluster::masters,
        "a certificate is in system:masters: no RBAC rule binds its holder, and nothing takes it back; an error where no version of kubeadm puts it, a warning where the configured version does not";
    "kubeadm-external-ca", EWI, external::init,
        "kubeadm init would refuse what is on disk, as it does with a CA whose key is not here";
    "kubeadm-renewal", W, external::renewal,
        "kubeadm certs check-expiration and renew would end with an error, though kubeadm init would not";
    "cluster-unreachable", E, cluster::unreachable,
        "the cluster of --kubeconfig could not be asked";
    "cluster-refused", W, cluster::refused,
        "the cluster did not answer a question, so that something remains unknown";
}

#[cfg(test)]
mod tests;
