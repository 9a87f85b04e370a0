//! `nodepki status`: what is on disk, whatever state it is in.
//!
//! [`collect`] reads below the root and never fails: a file that is missing, empty, damaged, expired, not readable or
//! not a file at all becomes a row that says so. It needs no configuration, takes no lock, writes nothing, and reads
//! no CA private key. The renderers are pure text; the exit status is the caller's business ([`NodeStatus::worst`]).
//!
//! # Which certificates a node is expected to have
//!
//! The node's [`NodeRole`] decides. An empty node has no rows, and [`NodeStatus::worst`] is [`RowState::Missing`].
//! Of a worker `ca.crt` and what belongs to `kubelet.conf` are shown, of a control-plane node everything that kubeadm
//! makes, missing or not, except:
//!
//!   `super-admin.conf`, which kubeadm gives to the first node only, when it is absent; and etcd's certificates when
//!   etcd is external, each of them unless it is there. etcd is external when there is no `etcd/` directory, or when
//!   there is nothing but its CA in it while the static pods have kube-apiserver and no etcd.
//!
//! # When a certificate is called expiring
//!
//! When less than 30 days *and* less than a third of its lifetime are left, so that a short-lived one is not always
//! expiring. The lifetime is counted from the recorded time of issue where there is one: kubeadm copies `not_before`
//! of a kubeconfig's certificate from the CA.
//!
//! To add a fact: a field of one of the structs here, filled in `collect`; JSON and YAML show it by themselves. To add
//! an output: a function from `&Status` to text, beside the others.

mod collect;
mod duration;
mod kubeadm;
mod tabwriter;
mod text;

use std::fmt;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::kube::names::{Authority, CertName};
use crate::spec::assess::ReplacedCa;
use crate::store::{LastError, RequestPhase};
use crate::yaml;

pub use super::role::NodeRole;
pub use collect::collect;
pub use duration::human_duration;
pub use kubeadm::{kubeadm_json, kubeadm_notes, kubeadm_table, kubeadm_yaml};
pub use text::{table, tree};

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// When it was looked at; all that is said about validity is said for this moment.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The root on this machine. Paths in `files` are those of the node, below it; paths in words are of this machine.
    pub root: String,
    /// Where the certificates were looked for.
    pub certificates_dir: String,
    /// What kind of node this is.
    pub role: NodeRole,
    /// This node runs etcd, or will.
    pub local_etcd: bool,
    /// The authorities, in kubeadm's order.
    pub authorities: Vec<AuthorityStatus>,
    /// The certificates and kubeconfigs, in kubeadm's order.
    pub certificates: Vec<CertStatus>,
    /// The API server of this node has a manifest, or a certificate and a controller manager beside it.
    #[serde(skip)]
    pub has_served: bool,
    /// The service-account pair; control-plane nodes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountStatus>,
    /// Requests that wait for their signer.
    pub pending: Vec<PendingStatus>,
    /// What could not be looked at.
    pub notes: Vec<String>,
}

impl NodeStatus {
    /// The gravest state of all rows; [`RowState::Missing`] on a node that holds nothing.
    pub fn worst(&self) -> RowState {
        let nothing = match self.role {
            NodeRole::Empty => RowState::Missing,
            NodeRole::ControlPlane | NodeRole::Worker => RowState::Ok,
        };
        let certificates = self.certificates.iter().map(|row| row.state);
        let authorities = self.authorities.iter().map(|row| row.state);
        let service_account = self.service_account.iter().map(|row| row.state);
        certificates
            .chain(authorities)
            .chain(service_account)
            .fold(nothing, RowState::max)
    }

    /// One certificate, unless its row is left out.
    pub fn certificate(&self, name: CertName) -> Option<&CertStatus> {
        self.certificates.iter().find(|row| row.name == name)
    }

    /// One authority, unless its row is left out.
    pub fn authority(&self, name: Authority) -> Option<&AuthorityStatus> {
        self.authorities.iter().find(|row| row.name == name)
    }
}

/// The state of a row in one word, the harmless first. What is known for certain is graver than what could not be
/// looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowState {
    /// Usable, with time left.
    Ok,
    /// Usable, but see the rule above.
    Expiring,
    /// There, but not what it should be, or not to be read by this user.
    Unreadable,
    /// The certificate, the key or both are not there.
    Missing,
    /// Usable, but not for its place: subject, names, usages, or the mode of a file.
    Unsafe,
    /// It does not verify under the authority on this node.
    Untrusted,
    /// Its validity has not begun.
    NotYetValid,
    /// Certificate and key do not belong together.
    Torn,
    /// Its validity is over.
    Expired,
}

impl RowState {
    /// All of them.
    pub const ALL: [RowState; 9] = [
        RowState::Ok,
        RowState::Expiring,
        RowState::Unreadable,
        RowState::Missing,
        RowState::Unsafe,
        RowState::Untrusted,
        RowState::NotYetValid,
        RowState::Torn,
        RowState::Expired,
    ];

    /// As people read it.
    pub const fn as_str(self) -> &'static str {
        match self {
            RowState::Ok => "ok",
            RowState::Expiring => "expiring",
            RowState::Unreadable => "unreadable",
            RowState::Missing => "missing",
            RowState::Unsafe => "unsafe",
            RowState::Untrusted => "untrusted",
            RowState::NotYetValid => "not yet valid",
            RowState::Torn => "torn",
            RowState::Expired => "expired",
        }
    }
}

/// What exactly is wrong, for programs: finer than [`RowState`], which follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Less than the rule above says is left.
    Expiring,
    /// Zero bytes.
    Empty,
    /// Not to be read by this user.
    Denied,
    /// A directory, or something else that is no file.
    NotAFile,
    /// A kubeconfig whose current context leads nowhere.
    NoContext,
    /// There, but not what it should be.
    Damaged,
    /// No such file, or no such part of a kubeconfig.
    Absent,
    /// Subject, names or usages are not those of its place.
    Misplaced,
    /// Other users can read a private key, or change a file that is trusted.
    Exposed,
    /// The CA data of a kubeconfig has nothing in common with `ca.crt`.
    OtherAuthority,
    /// `ca.crt` was replaced: the certificates in place belong to another CA.
    Replaced,
    /// There is nothing to verify it under.
    NoAuthority,
    /// It does not verify under the authority on this node.
    Unverified,
    /// Its validity has not begun.
    NotYetValid,
    /// Certificate and key do not belong together.
    Torn,
    /// Its validity is over.
    Expired,
}

impl Trouble {
    /// The state of a row with this in it.
    pub const fn state(self) -> RowState {
        match self {
            Trouble::Expiring => RowState::Expiring,
            Trouble::Empty
            | Trouble::Denied
            | Trouble::NotAFile
            | Trouble::NoContext
            | Trouble::Damaged => RowState::Unreadable,
            Trouble::Absent => RowState::Missing,
            Trouble::Misplaced | Trouble::Exposed => RowState::Unsafe,
            Trouble::OtherAuthority
            | Trouble::Replaced
            | Trouble::NoAuthority
            | Trouble::Unverified => RowState::Untrusted,
            Trouble::NotYetValid => RowState::NotYetValid,
            Trouble::Torn => RowState::Torn,
            Trouble::Expired => RowState::Expired,
        }
    }
}

impl fmt::Display for RowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
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
    /// Its state.
    pub state: RowState,
    /// Why it is in that state; empty when it is ok.
    pub problems: Vec<String>,
    /// What each problem is, in the same order.
    #[serde(skip)]
    pub troubles: Vec<Trouble>,
    /// What deserves attention all the same.
    pub remarks: Vec<String>,
    /// The certificate, where one could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Facts>,
    /// It verifies under the authority on this node; absent where there is nothing to verify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<bool>,
    /// When nodepki installed it, where that was recorded.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub issued: Option<OffsetDateTime>,
    /// The rest of a kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<KubeconfigStatus>,
    /// The files it consists of.
    pub files: Vec<FileStatus>,
}

/// What a kubeconfig says besides its certificate.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigStatus {
    /// `server` of the current context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Its CA data is the first certificate of `ca.crt`, as kubeadm writes it, or begins with it and holds others of
    /// `ca.crt`, as during a CA change; absent where one of them is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority_is_first: Option<bool>,
    /// Certificate and key are in files of their own, as the kubelet keeps them.
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
    /// Why it is in that state; empty when it is ok.
    pub problems: Vec<String>,
    /// What each problem is, in the same order.
    #[serde(skip)]
    pub troubles: Vec<Trouble>,
    /// What deserves attention all the same.
    pub remarks: Vec<String>,
    /// All certificates of its bundle; the first is the one that kubeadm uses.
    pub certificates: Vec<Facts>,
    /// The CA that its certificates in place belong to, if that is another one.
    #[serde(skip)]
    pub replaced: Option<ReplacedCa>,
    /// Where a valid certificate of the same CA key is, if the one in place has expired.
    #[serde(skip)]
    pub valid_copy: Option<String>,
    /// The private key of the authority lies on this node.
    pub has_key: bool,
    /// Its files.
    pub files: Vec<FileStatus>,
}

/// What is known of one certificate.
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
    #[serde(with = "time::serde::rfc3339")]
    pub not_before: OffsetDateTime,
    /// End of validity, inclusive.
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: OffsetDateTime,
    /// Seconds left; negative when it has expired.
    pub residual_seconds: i64,
    /// Hash of the public key as kubeadm pins it: `sha256:<hex>`.
    pub pin: String,
    /// SHA-256 of the certificate, hexadecimal.
    pub fingerprint: String,
    /// Intermediate certificates that follow a leaf in its file.
    #[serde(skip_serializing_if = "is_zero")]
    pub intermediates: usize,
}

/// The service-account pair.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountStatus {
    /// Its state.
    pub state: RowState,
    /// Why it is in that state; empty when it is ok.
    pub problems: Vec<String>,
    /// What each problem is, in the same order.
    #[serde(skip)]
    pub troubles: Vec<Trouble>,
    /// What deserves attention all the same.
    pub remarks: Vec<String>,
    /// Key algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `kid` of the tokens: the SHA-256 of the public key in unpadded base64url, as kube-apiserver computes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Its files.
    pub files: Vec<FileStatus>,
}

/// A request that waits for its signer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingStatus {
    /// What it is for.
    pub name: String,
    /// The signer's name in the configuration; absent with the phase where the ticket is missing or unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// How far it has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RequestPhase>,
    /// When it was sent first.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub since: Option<OffsetDateTime>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileStatus {
    /// Path on the node.
    pub path: String,
    /// A private key is in it, or belongs there.
    pub secret: bool,
    /// What stands there; absent where there is nothing.
    #[serde(flatten)]
    pub access: Option<FileAccess>,
}

/// Who may do what with a file. A symbolic link was followed, unless it leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FileAccess {
    /// False for a directory, a dangling link, and whatever else is no file.
    pub regular: bool,
    /// Permission bits; written in octal.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// All of it as JSON.
pub fn json(status: &NodeStatus) -> String {
    // Every field is a string, a number or a time within the years of X.509.
    let mut json = serde_json::to_string_pretty(status).unwrap_or_default();
    json.push('\n');
    json
}

/// All of it as YAML.
pub fn yaml(status: &NodeStatus) -> String {
    // JSON is YAML.
    yaml::to_string(status).unwrap_or_else(|_| json(status))
}

fn octal<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{mode:04o}"))
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests;
