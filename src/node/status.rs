//! `nodepki status`: the files of the node and their state.
//!
//! [`collect`] reads below the root and never fails: a file that is missing, empty, damaged, expired, unreadable or not
//! a regular file becomes a row with that state. It needs no configuration, takes no lock, writes nothing, and reads no
//! CA private key. The renderers are pure functions to text; the caller derives the exit status from
//! [`NodeStatus::worst`].
//!
//! # Expected certificates
//!
//! The node's [`NodeRole`] decides which rows exist. An empty node has no rows, and [`NodeStatus::worst`] is
//! [`RowState::Missing`]. A worker has rows for `ca.crt` and for the files of `kubelet.conf`. An etcd member has rows for
//! the CA and the three certificates of etcd, and for `apiserver-etcd-client` if its files exist. A control-plane node has a
//! row for every file that kubeadm creates, missing or not, with two exceptions:
//!
//! - An absent `super-admin.conf` has no row: kubeadm writes it on the first node only.
//! - With an external etcd, an absent certificate of etcd has no row. etcd is external if the directory `etcd/` does not
//!   exist, or if it contains only the CA while the static pods include kube-apiserver and not etcd.
//!
//! If the plan of the node is known, it decides whether etcd is external. A certificate of the plan then has a row even if
//! it is absent (`super-admin.conf` excepted), and an absent one that the settings omit has none.
//!
//! # Expiring certificates
//!
//! A certificate is expiring when less than 30 days *and* less than a third of its lifetime are left, so a
//! short-lived certificate is not always expiring. The lifetime starts at the recorded time of issue if there is a
//! record, because kubeadm copies `not_before` of a kubeconfig's certificate from the CA.
//!
//! # Extending
//!
//! A new fact is a field of one of the structs here, filled in by `collect`; JSON and YAML include it automatically. A
//! new output format is a function from `&NodeStatus` to text in a module of this one.

mod authority;
mod collect;
mod detail;
mod duration;
mod fault;
mod files;
mod findings;
mod kubeadm;
mod leaf;
mod phase;
mod policy;
mod rows;
mod service_account;
mod tabwriter;
mod text;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::serde::rfc3339;

use crate::kube::names::{Authority, CertName};
use crate::spec::assess::ReplacedCa;
use crate::spec::compliance::KeyVerdict;
use crate::store::{LastError, OFFLINE_SIGNER, RequestPhase};
use crate::text::{hex, rfc3339};
use crate::x509::Certificate;
use crate::yaml;

pub use super::read::ServiceSign;
pub use super::role::NodeRole;
pub use collect::collect;
pub use detail::CertificateDetail;
pub use duration::human_duration;
pub use fault::{FileFault, FilePart, FileProblem, RowFault, RowRemark};
pub use findings::RowFindings;
pub use kubeadm::{kubeadm_json, kubeadm_notes, kubeadm_table, kubeadm_yaml};
pub use phase::CertPhase;
pub use text::{table, tree};

/// The status of a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Time of the examination; every statement about validity refers to it.
    #[serde(with = "rfc3339")]
    pub at: OffsetDateTime,
    /// The root on this machine. Paths in `files` are relative to it; paths in messages are those of this machine.
    pub root: String,
    /// The directory of the certificates.
    pub certificates_dir: String,
    /// Role of the node.
    pub role: NodeRole,
    /// Whether this node runs etcd, or will.
    pub local_etcd: bool,
    /// The authorities, in kubeadm's order.
    pub authorities: Vec<AuthorityStatus>,
    /// The certificates and kubeconfigs, in kubeadm's order.
    pub certificates: Vec<CertStatus>,
    /// What shows that the node runs, or ran, an API server.
    #[serde(skip)]
    pub sign_of_service: Option<ServiceSign>,
    /// The service-account pair; control-plane nodes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountStatus>,
    /// Requests that wait for their signer.
    pub pending: Vec<PendingStatus>,
    /// Valid certificates of this node that the configuration no longer registers; also part of `notes`.
    #[serde(skip)]
    pub unregistered: Vec<UnregisteredCertificate>,
    /// Files and facts that could not be examined.
    pub notes: Vec<String>,
}

impl NodeStatus {
    /// Returns the gravest state of all rows; [`RowState::Missing`] on an empty node.
    pub fn worst(&self) -> RowState {
        let nothing = match self.role {
            NodeRole::Empty => RowState::Missing,
            NodeRole::ControlPlane | NodeRole::Worker | NodeRole::Etcd => RowState::Ok,
        };
        let rows = self.rows().into_iter();
        rows.map(|row| row.state).fold(nothing, RowState::max)
    }

    /// Returns all rows, in the order of the table.
    pub fn rows(&self) -> Vec<StatusRow<'_>> {
        let certificates = self.certificates.iter().map(|row| StatusRow {
            subject: RowSubject::Certificate(row.name),
            state: row.state,
            findings: &row.findings,
            files: &row.files,
        });
        let authorities = self.authorities.iter().map(|row| StatusRow {
            subject: RowSubject::Authority(row.name),
            state: row.state,
            findings: &row.findings,
            files: &row.files,
        });
        let pair = self.service_account.iter().map(|row| StatusRow {
            subject: RowSubject::ServiceAccount,
            state: row.state,
            findings: &row.findings,
            files: &row.files,
        });
        certificates.chain(authorities).chain(pair).collect()
    }

    /// Removes everything that is not about this certificate, except the notes.
    pub fn retain_certificate(&mut self, name: CertName) {
        self.certificates.retain(|row| row.name == name);
        self.authorities.retain(|row| row.name == name.authority());
        self.pending.retain(|row| row.name == name.as_str());
        self.service_account = None;
    }

    /// Returns the row of a certificate; `None` if the node has no row for it.
    pub fn certificate(&self, name: CertName) -> Option<&CertStatus> {
        self.certificates.iter().find(|row| row.name == name)
    }

    /// Returns whether a certificate is valid until its authority expires, or longer, so that a renewal would not prolong it.
    pub fn ends_with_authority(&self, name: CertName) -> bool {
        let end = self.certificate(name).and_then(|row| {
            let authority = self.authority(row.authority)?.certificates.iter();
            let authority_ends = authority.map(|facts| facts.not_after).max()?;
            Some(row.certificate.as_ref()?.not_after >= authority_ends)
        });
        end.unwrap_or(false)
    }

    /// Returns the row of an authority; `None` if the node has no row for it.
    pub fn authority(&self, name: Authority) -> Option<&AuthorityStatus> {
        self.authorities.iter().find(|row| row.name == name)
    }
}

/// What the rows of all kinds have in common.
#[derive(Clone, Copy, Debug)]
pub struct StatusRow<'a> {
    /// What the row is about.
    pub subject: RowSubject,
    /// State of the row.
    pub state: RowState,
    /// Reasons for the state, and findings that do not change it.
    pub findings: &'a RowFindings,
    /// The files of the row.
    pub files: &'a [FileStatus],
}

/// The subject of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSubject {
    /// A leaf certificate or kubeconfig.
    Certificate(CertName),
    /// An authority.
    Authority(Authority),
    /// The service-account pair.
    ServiceAccount,
}

impl RowSubject {
    /// Returns the name in tables and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            RowSubject::Certificate(name) => name.as_str(),
            RowSubject::Authority(name) => name.as_str(),
            RowSubject::ServiceAccount => "sa",
        }
    }
}

words! {
    /// The state of a row in one word, in ascending gravity. A fault that is certain is graver than a file that could not be
    /// examined.
    #[derive(PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum RowState {
        /// Usable, with time left.
        Ok = "ok",
        /// Usable, with little time left by the rule of the module.
        Expiring = "expiring",
        /// Present, but damaged, or not readable by this user.
        Unreadable = "unreadable",
        /// The certificate, the key or both do not exist.
        Missing = "missing",
        /// Usable, but subject, names, usages or the mode of a file are not those of its purpose.
        Unsafe = "unsafe",
        /// Does not verify under the authority on this node.
        Untrusted = "untrusted",
        /// The validity has not begun.
        NotYetValid = "not yet valid",
        /// Certificate and key do not match.
        Torn = "torn",
        /// The validity has ended.
        Expired = "expired",
    }
}

/// One leaf certificate or kubeconfig.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertStatus {
    /// kubeadm's name.
    pub name: CertName,
    /// The authority that should have signed it.
    pub authority: Authority,
    /// Purpose of a registered certificate, as configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// State of the row.
    pub state: RowState,
    /// Phase of the certificate over its life.
    pub phase: CertPhase,
    /// Reasons for the state, and findings that do not change it.
    #[serde(flatten)]
    pub findings: RowFindings,
    /// The certificate, if it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Facts>,
    /// Whether the certificate verifies under the authority on this node; absent without certificate or authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<bool>,
    /// When nodepki installed it, if that was recorded.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub issued: Option<OffsetDateTime>,
    /// The content of a kubeconfig other than its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<KubeconfigStatus>,
    /// The key compared with the key policy; `None` if no configuration is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<KeyVerdict>,
    /// The files of the certificate or kubeconfig.
    pub files: Vec<FileStatus>,
}

/// The content of a kubeconfig other than its certificate.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigStatus {
    /// `server` of the current context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Whether the CA data, or the file named in its place, is the first certificate of `ca.crt`, as kubeadm writes it, or
    /// that certificate followed by others of `ca.crt`, as during a CA change. Absent if either is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority_is_first: Option<bool>,
    /// Whether the kubeconfig names files for certificate and key, as the kubelet's does.
    pub by_file: bool,
}

/// One authority.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityStatus {
    /// kubeadm's name.
    pub name: Authority,
    /// State of its first certificate.
    pub state: RowState,
    /// Reasons for the state, and findings that do not change it.
    #[serde(flatten)]
    pub findings: RowFindings,
    /// All certificates of the bundle; kubeadm uses the first.
    pub certificates: Vec<Facts>,
    /// Whether the private key of the authority is on this node.
    pub has_key: bool,
    /// Whether it is in the file in which kubeadm looks for it.
    #[serde(skip)]
    pub has_key_file: bool,
    /// The key compared with the key policy; `None` if no configuration is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<KeyVerdict>,
    /// Certificate and key file.
    pub files: Vec<FileStatus>,
}

impl AuthorityStatus {
    /// Returns the CA that the certificates in place belong to, if it is another one.
    pub fn replaced(&self) -> Option<&ReplacedCa> {
        let mut faults = self.findings.faults.iter();
        faults.find_map(|fault| match fault {
            RowFault::AuthorityReplaced { replaced, .. } => Some(replaced.as_ref()),
            _ => None,
        })
    }
}

/// The properties of one certificate.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Subject.
    pub subject: String,
    /// Issuer.
    pub issuer: String,
    /// Serial number, hexadecimal.
    pub serial: String,
    /// Subject alternative names, `DNS:…` and `IP:…`.
    pub sans: Vec<String>,
    /// Extended key usages.
    pub usages: Vec<String>,
    /// Key algorithm.
    pub key: String,
    /// Start of validity.
    #[serde(with = "rfc3339")]
    pub not_before: OffsetDateTime,
    /// End of validity, inclusive.
    #[serde(with = "rfc3339")]
    pub not_after: OffsetDateTime,
    /// Seconds until `not_after`; negative after it.
    pub residual_seconds: i64,
    /// Hash of the public key as kubeadm pins it: `sha256:<hex>`.
    pub pin: String,
    /// SHA-256 of the certificate, hexadecimal.
    pub fingerprint: String,
    /// Subjects of the intermediate certificates that follow a leaf in its file, serialized as their number.
    #[serde(serialize_with = "count", skip_serializing_if = "Vec::is_empty")]
    pub intermediates: Vec<String>,
}

impl Facts {
    /// Returns the properties of a certificate that these intermediate certificates follow in its file.
    fn of(certificate: &Certificate, intermediates: &[Certificate], now: OffsetDateTime) -> Facts {
        let dns = certificate.dns_names().iter();
        let ips = certificate.ip_addresses().iter();
        Facts {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            serial: certificate.serial().to_owned(),
            sans: dns
                .map(|name| format!("DNS:{name}"))
                .chain(ips.map(|ip| format!("IP:{ip}")))
                .chain(certificate.other_names().iter().cloned())
                .collect(),
            usages: certificate.extended_usages().unwrap_or_default().to_vec(),
            key: certificate.public_key().key_type().to_string(),
            not_before: certificate.not_before(),
            not_after: certificate.not_after(),
            residual_seconds: (certificate.not_after() - now).whole_seconds(),
            pin: format!("sha256:{}", hex(&certificate.public_key().sha256())),
            fingerprint: hex(&certificate.fingerprint()),
            intermediates: intermediates
                .iter()
                .map(|one| one.subject().to_string())
                .collect(),
        }
    }
}

/// The service-account pair.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountStatus {
    /// State of the row.
    pub state: RowState,
    /// Reasons for the state, and findings that do not change it.
    #[serde(flatten)]
    pub findings: RowFindings,
    /// Key algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `kid` of the tokens: the SHA-256 of the public key in unpadded base64url, as kube-apiserver computes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The key compared with the key policy; `None` if no configuration is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<KeyVerdict>,
    /// Certificate and key file.
    pub files: Vec<FileStatus>,
}

/// A request that waits for its signer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingStatus {
    /// The certificate or key pair that was requested.
    pub name: String,
    /// The signer's name in the configuration. Signer and phase are absent if the ticket is missing or unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// Kind and location of the signer as configured.
    #[serde(skip)]
    pub signer_config: Option<String>,
    /// Progress of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RequestPhase>,
    /// When the request was first sent.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub since: Option<OffsetDateTime>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

impl PendingStatus {
    /// Returns whether the request waits for `csr import`.
    pub fn is_exported(&self) -> bool {
        self.signer_config.as_deref() == Some(OFFLINE_SIGNER)
    }
}

/// A valid certificate that nodepki issued and that the configuration does not register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnregisteredCertificate {
    /// Its name.
    pub name: CertName,
    /// End of its validity.
    pub not_after: OffsetDateTime,
    /// Its files in the certificates directory, on this machine. Files in other places are unknown.
    pub files: Vec<String>,
}

impl UnregisteredCertificate {
    /// How to resolve it.
    pub const FIX: &str = "register it again under certificates.registered, or remove its files and /var/lib/nodepki/pending/NAME once no component uses them";

    /// Returns the fact and its consequence.
    pub fn fact(&self) -> String {
        let files = if self.files.is_empty() {
            "its files".to_owned()
        } else {
            self.files.join(" and ")
        };
        format!(
            "{} is not registered in the configuration: {files} stay in place and are not renewed; the certificate expires at {}",
            self.name,
            rfc3339(self.not_after)
        )
    }

    fn sentence(&self) -> String {
        format!("{} ({})", self.fact(), Self::FIX)
    }
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileStatus {
    /// Path on the node.
    pub path: String,
    /// Whether the file contains, or is to contain, a private key.
    pub secret: bool,
    /// Kind, mode and owner; absent if the file does not exist.
    #[serde(flatten)]
    pub access: Option<FileAccess>,
}

/// Kind, mode and owner of a file: of the target of a symbolic link, or of the link if it is dangling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FileAccess {
    /// True for a regular file.
    pub regular: bool,
    /// Permission bits, serialized in octal.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Returns the status as JSON.
pub fn json(status: &NodeStatus) -> String {
    // Every field is a string, a number or a time within the years of X.509.
    let mut json = serde_json::to_string_pretty(status).unwrap_or_default();
    json.push('\n');
    json
}

/// Returns the status as YAML.
pub fn yaml(status: &NodeStatus) -> String {
    // JSON is YAML.
    yaml::to_string(status).unwrap_or_else(|_| json(status))
}

fn octal<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{mode:04o}"))
}

fn count<S: Serializer>(items: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    items.len().serialize(serializer)
}

#[cfg(test)]
mod tests;
