//! From the files of a node to the rows of its status. Nothing here fails; a fault becomes a problem of a row.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use time::{Duration, OffsetDateTime};

use super::text::minute;
use super::{
    AuthorityStatus, CertStatus, Facts, FileAccess, FileStatus, KubeconfigStatus, NodeRole,
    NodeStatus, PendingStatus, RowState, ServiceAccountStatus, Trouble, human_duration,
};
use crate::kube::kubeconfig::KubeconfigError;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{ETCD_MANIFEST, KUBERNETES_DIR};
use crate::node::role::{files_of_control_plane, role_of};
use crate::node::{KubeconfigState, NodeFile, NodeState};
use crate::spec::assess::{
    self, COPY_SERVICE_ACCOUNT, CaEvidence, Observed, ObservedKubeconfig, ReplacedCa, trusted_by,
};
use crate::spec::kubeconfig_path;
use crate::store::{self, FileKind, IssuedRecord, Metadata, RequestRecord, Slot};
use crate::x509::{
    CertDifference, Certificate, Chain, PrivateKey, PublicKey, TrustBundle, hex, is_same_authority,
    path_differences,
};

/// Returns the status of every file of kubeadm's PKI. `described` is the node's role by its kubeadm configuration. Never
/// fails.
pub fn collect(state: &NodeState, described: Option<NodeRole>, now: OffsetDateTime) -> NodeStatus {
    let root = state.root();
    let mut notes = Vec::new();
    let pending = root.tickets().unwrap_or_else(|error| {
        notes.push(format!("pending requests are unknown: {error}"));
        Vec::new()
    });
    let node = Node {
        state,
        now,
        // A damaged record costs only the times of issue and the origin of each certificate.
        issued: root.issued().unwrap_or_default(),
    };
    let role = role_of(state, &pending, described);
    let local_etcd = role == NodeRole::ControlPlane && node.runs_etcd();
    if role == NodeRole::Empty {
        notes.push(format!(
            "there is no certificate, key or kubeconfig in {} or {}",
            node.here(state.layout().certificates_dir()),
            node.here(Path::new(KUBERNETES_DIR))
        ));
    }

    if role == NodeRole::Worker {
        notes.extend(node.unused_on_worker());
    }

    let mut authorities: Vec<Bundle> = Authority::ALL
        .into_iter()
        .filter(|name| match (role, name) {
            (NodeRole::Empty, _) => false,
            (_, Authority::Ca) => true,
            (NodeRole::Worker, _) => false,
            (NodeRole::ControlPlane, Authority::FrontProxyCa) => true,
            (NodeRole::ControlPlane, Authority::EtcdCa) => {
                local_etcd || state.exists(&state.layout().authority(*name)[0])
            }
        })
        .map(|name| node.authority(name))
        .collect();
    let leaves: Vec<(CertName, LeafState)> = CertName::ALL
        .into_iter()
        .filter(|name| match (role, name) {
            (NodeRole::Empty, _) => false,
            (_, CertName::KubeletConf) => true,
            (_, CertName::KubeletServing) => node.has_issued_serving(&authorities),
            (NodeRole::Worker, _) => false,
            (NodeRole::ControlPlane, CertName::SuperAdminConf | CertName::NodepkiConf) => {
                state.has_files_of(*name)
            }
            (NodeRole::ControlPlane, name) => {
                name.authority() != Authority::EtcdCa || local_etcd || state.has_files_of(*name)
            }
        })
        .map(|name| (name, node.leaf(name)))
        .collect();
    let found: Vec<(Option<ReplacedCa>, Option<String>)> = authorities
        .iter()
        .map(|bundle| {
            let replaced = node.replaced(bundle, &authorities, &leaves);
            (replaced, node.valid_copy(bundle, &leaves))
        })
        .collect();
    for (bundle, (replaced, valid_copy)) in authorities.iter_mut().zip(found) {
        bundle.set_replaced(replaced, &node);
        bundle.status.remarks.extend(valid_copy.clone());
        bundle.status.valid_copy = valid_copy;
    }
    let server = local_server(&leaves);
    let certificates = leaves
        .into_iter()
        .map(|(name, leaf)| {
            let bundle = authorities
                .iter()
                .find(|bundle| bundle.status.name == name.authority());
            let server = server.as_deref().filter(|_| name == CertName::Apiserver);
            node.judge(name, leaf, bundle, server)
        })
        .collect();

    NodeStatus {
        at: now,
        root: root.path().display().to_string(),
        certificates_dir: state.layout().certificates_dir().display().to_string(),
        role,
        local_etcd,
        authorities: authorities
            .into_iter()
            .map(|bundle| bundle.status)
            .collect(),
        certificates,
        has_served: state.has_served(),
        service_account: (role == NodeRole::ControlPlane).then(|| node.service_account()),
        pending: pending.into_iter().map(pending_status).collect(),
        notes,
    }
}

/// Returns the host at which the components of this node expect its API server; `None` if they differ.
fn local_server(leaves: &[(CertName, LeafState)]) -> Option<String> {
    let server = |wanted: CertName| {
        let (_, leaf) = leaves.iter().find(|(name, _)| *name == wanted)?;
        leaf.kubeconfig.as_ref()?.server.as_deref()
    };
    let server = server(CertName::ControllerManagerConf)
        .filter(|one| server(CertName::SchedulerConf) == Some(*one))?;
    let authority = server.strip_prefix("https://")?.split('/').next()?;
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host),
    };
    Some(host.to_owned())
}

struct Node<'a> {
    state: &'a NodeState,
    now: OffsetDateTime,
    issued: BTreeMap<CertName, IssuedRecord>,
}

/// A fault of a file or a certificate.
#[derive(Debug)]
struct FileFault {
    trouble: Trouble,
    words: String,
}

impl FileFault {
    fn new(trouble: Trouble, words: impl Into<String>) -> FileFault {
        FileFault {
            trouble,
            words: words.into(),
        }
    }

    fn of_store(error: &store::StoreError) -> FileFault {
        let trouble = match error.class() {
            store::ErrorClass::Denied => Trouble::Denied,
            store::ErrorClass::Unsafe => Trouble::NotAFile,
            _ => Trouble::Damaged,
        };
        FileFault::new(trouble, error.to_string())
    }
}

/// The row of an authority, and the anchors that verify its leaves.
struct Bundle {
    status: AuthorityStatus,
    trust: Result<TrustBundle, FileFault>,
    path: PathBuf,
}

impl Bundle {
    fn set_replaced(&mut self, replaced: Option<ReplacedCa>, node: &Node<'_>) {
        if let Some(replaced) = &replaced {
            let words = replaced.sentence(&node.here(&self.path));
            self.status.problems.push(words);
            self.status.troubles.push(Trouble::Replaced);
            self.status.state = self.status.state.max(Trouble::Replaced.state());
        }
        self.status.replaced = replaced;
    }
}

/// A leaf certificate as read, from a pair of files or a kubeconfig.
struct LeafState {
    chain: Result<Chain, FileFault>,
    key: Result<PrivateKey, FileFault>,
    kubeconfig: Option<ObservedKubeconfig>,
    remarks: Vec<String>,
    files: Vec<FileStatus>,
}

// ---- selection of rows ----

impl Node<'_> {
    fn unused_on_worker(&self) -> Option<String> {
        let found = files_of_control_plane(self.state);
        (!found.is_empty()).then(|| {
            let found: Vec<String> = found.iter().map(|path| self.here(path)).collect();
            format!(
                "files of a control plane on a worker: {} (it joined without controlPlane; remove the files if no other program uses them)",
                found.join(", ")
            )
        })
    }

    fn runs_etcd(&self) -> bool {
        let state = self.state;
        let [ca, ca_key] = state.layout().authority(Authority::EtcdCa);
        if !ca.parent().is_some_and(|etcd| state.exists(etcd)) {
            return false;
        }
        // Cluster API puts the CA of an external etcd at etcd/ca.crt.
        let only_ca = !state.exists(ca_key)
            && ![
                CertName::EtcdServer,
                CertName::EtcdPeer,
                CertName::EtcdHealthcheckClient,
            ]
            .into_iter()
            .any(|name| state.has_files_of(name));
        let has_etcd_manifest = || state.exists(ETCD_MANIFEST);
        let external = only_ca && state.has_apiserver_manifest() && !has_etcd_manifest();
        !external
    }

    /// Returns whether the kubelet's serving certificate was issued by the cluster's CA. A self-signed one that the
    /// kubelet generated is not part of the status.
    fn has_issued_serving(&self, authorities: &[Bundle]) -> bool {
        let name = CertName::KubeletServing;
        let bundle = authorities
            .iter()
            .find(|one| one.status.name == name.authority());
        let of_authority = |leaf: &Certificate| {
            let trust = bundle.and_then(|bundle| bundle.trust.as_ref().ok());
            trust.is_some_and(|trust| {
                let mut certificates = trust.certificates().iter();
                certificates.any(|one| one.subject() == leaf.issuer())
            })
        };
        let leaf = self.read_pair(name);
        self.issued.contains_key(&name) || leaf.chain.is_ok_and(|chain| of_authority(chain.leaf()))
    }
}

// ---- files ----

impl Node<'_> {
    fn here(&self, path: &Path) -> String {
        self.state
            .root()
            .on_this_machine(path)
            .display()
            .to_string()
    }

    fn status_of(&self, file: &NodeFile, secret: bool) -> FileStatus {
        // Reading resolves a symbolic link: the metadata is then that of its target.
        let _ = file.bytes();
        FileStatus {
            path: file.path().display().to_string(),
            secret,
            access: file.metadata().map(access),
        }
    }

    /// Returns the parsed content of a file, or its fault.
    fn parse<T, E: fmt::Display>(
        &self,
        file: &NodeFile,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<T, FileFault> {
        let bytes = file.bytes().map_err(|error| FileFault::of_store(&error))?;
        let absent = match file.is_dangling() {
            true => "is a dangling symbolic link",
            false => "is missing",
        };
        required(
            Observed::read(bytes, parse),
            &self.here(file.path()),
            absent,
        )
    }

    /// Returns the fault of a private key that other users can read, or of a file that they can change.
    fn exposure(&self, file: &FileStatus) -> Option<FileFault> {
        let FileAccess { mode, .. } = file.access.filter(|access| access.regular)?;
        let here = self.here(Path::new(&file.path));
        let words = if file.secret && mode & 0o007 != 0 {
            format!(
                "{here} holds a private key and has mode {mode:04o}: every user of this machine can read it; run chmod 600 {here}"
            )
        } else if mode & 0o002 != 0 {
            format!(
                "{here} has mode {mode:04o}: every user of this machine can change it; run chmod o-w {here}"
            )
        } else {
            return None;
        };
        Some(FileFault::new(Trouble::Exposed, words))
    }
}

fn required<T>(found: Observed<T>, what: &str, absent: &str) -> Result<T, FileFault> {
    match found {
        Observed::Present(value) => Ok(value),
        Observed::Absent => Err(FileFault::new(Trouble::Absent, format!("{what} {absent}"))),
        Observed::Empty => Err(FileFault::new(Trouble::Empty, format!("{what} is empty"))),
        Observed::Unreadable(why) => Err(FileFault::new(
            Trouble::Damaged,
            format!("{what} is unreadable: {why}"),
        )),
    }
}

fn access(metadata: &Metadata) -> FileAccess {
    FileAccess {
        regular: metadata.kind == FileKind::File,
        mode: metadata.mode,
        uid: metadata.uid,
        gid: metadata.gid,
    }
}

// ---- leaves ----

impl Node<'_> {
    fn leaf(&self, name: CertName) -> LeafState {
        match name.is_kubeconfig() {
            true => self.read_kubeconfig(name),
            false => self.read_pair(name),
        }
    }

    /// Returns the CA that the certificates in place belong to, if it is not the one in `bundle`.
    fn replaced(
        &self,
        bundle: &Bundle,
        authorities: &[Bundle],
        leaves: &[(CertName, LeafState)],
    ) -> Option<ReplacedCa> {
        let trust = bundle.trust.as_ref().ok()?;
        let witnesses = self.witnesses(bundle, leaves);
        let others = authorities
            .iter()
            .filter(|other| other.status.name != bundle.status.name);
        let elsewhere: Vec<(String, Certificate)> = others
            .filter_map(|other| Some((self.here(&other.path), other.trust.as_ref().ok()?)))
            .flat_map(|(file, trust)| {
                let certificates = trust.certificates().iter().cloned();
                certificates.map(move |certificate| (file.clone(), certificate))
            })
            .collect();
        assess::replaced(trust, &witnesses, &elsewhere)
    }

    fn valid_copy(&self, bundle: &Bundle, leaves: &[(CertName, LeafState)]) -> Option<String> {
        let trust = bundle.trust.as_ref().ok()?;
        let witnesses = self.witnesses(bundle, leaves);
        assess::valid_copy(trust, &witnesses, &self.here(&bundle.path), self.now)
    }

    fn witnesses<'l>(
        &self,
        bundle: &Bundle,
        leaves: &'l [(CertName, LeafState)],
    ) -> Vec<CaEvidence<'l>> {
        leaves
            .iter()
            .filter(|(name, _)| name.authority() == bundle.status.name)
            .map(|(name, leaf)| {
                let chain = leaf.chain.as_ref().ok();
                let kubeconfig = leaf.kubeconfig.as_ref();
                let file = leaf.files.first();
                CaEvidence {
                    name: *name,
                    file: file.map_or_else(String::new, |file| self.here(file.path.as_ref())),
                    chain,
                    trusts: trusted_by(kubeconfig.and_then(|found| found.authority.as_deref())),
                    installed: self.issued.get(name).and_then(|record| {
                        Some(record.sha256 == hex(&chain?.leaf().fingerprint()))
                    }),
                }
            })
            .collect()
    }

    fn read_pair(&self, name: CertName) -> LeafState {
        let [certificate, key] = self
            .state
            .layout()
            .pair(name)
            .map(|path| self.state.file(path));
        let mut remarks = Vec::new();
        if let Ok(Some(pem)) = key.bytes()
            && !assess::is_our_form(pem)
        {
            remarks.push(PKCS8_REMARK.to_owned());
        }
        LeafState {
            files: vec![
                self.status_of(&certificate, false),
                self.status_of(&key, true),
            ],
            chain: self.parse(&certificate, Chain::from_pem),
            key: self.parse(&key, PrivateKey::from_pem),
            kubeconfig: None,
            remarks,
        }
    }

    fn read_kubeconfig(&self, name: CertName) -> LeafState {
        let file = self.state.file(kubeconfig_path(name));
        let files = vec![self.status_of(&file, true)];
        let here = self.here(file.path());
        // An absent, empty or unreadable kubeconfig has the same faults as any other file.
        let read = self.parse(&file, |_| Ok::<_, String>(())).and_then(|()| {
            let read = self.state.kubeconfig(file.path());
            read.map_err(|error| FileFault::of_store(&error))
        });
        let unusable = |fault: FileFault| LeafState {
            key: Err(FileFault::new(fault.trouble, String::new())),
            chain: Err(fault),
            kubeconfig: None,
            remarks: Vec::new(),
            files: files.clone(),
        };
        match read {
            Err(fault) => unusable(fault),
            Ok(KubeconfigState::Embedded(found)) => LeafState {
                chain: required(
                    found.chain,
                    &format!("the client certificate in {here}"),
                    "is missing",
                ),
                key: required(
                    found.key,
                    &format!("the client key in {here}"),
                    "is missing",
                ),
                kubeconfig: found.kubeconfig,
                remarks: match found.key_form_is_ours {
                    true => Vec::new(),
                    false => vec![PKCS8_REMARK.to_owned()],
                },
                files,
            },
            Ok(KubeconfigState::ByFile {
                certificate,
                key,
                kubeconfig,
            }) => self.read_by_file(&certificate, &key, kubeconfig, files),
            Ok(KubeconfigState::Unusable(error)) => {
                let trouble = match error {
                    KubeconfigError::NoCurrentContext | KubeconfigError::Dangling(_) => {
                        Trouble::NoContext
                    }
                    _ => Trouble::Damaged,
                };
                unusable(FileFault::new(
                    trouble,
                    format!("{here} is unreadable: {error}"),
                ))
            }
        }
    }

    fn read_by_file(
        &self,
        certificate: &NodeFile,
        key: &NodeFile,
        kubeconfig: ObservedKubeconfig,
        mut files: Vec<FileStatus>,
    ) -> LeafState {
        let same = certificate.path() == key.path();
        // A kubeconfig that names files does not contain a private key.
        if let Some(file) = files.first_mut() {
            file.secret = false;
        }
        files.push(self.status_of(certificate, same));
        if !same {
            files.push(self.status_of(key, true));
        }
        let chain = self.parse(certificate, Chain::from_pem);
        let mut key = self.parse(key, PrivateKey::from_pem);
        if let (true, Err(chain), Err(key)) = (same, &chain, &mut key)
            && chain.words == key.words
        {
            key.words.clear();
        }
        LeafState {
            chain,
            key,
            kubeconfig: Some(kubeconfig),
            remarks: Vec::new(),
            files,
        }
    }

    /// Returns the row of a leaf. `server` is a host that the certificate must contain, for kube-apiserver's only.
    fn judge(
        &self,
        name: CertName,
        leaf: LeafState,
        bundle: Option<&Bundle>,
        server: Option<&str>,
    ) -> CertStatus {
        let mut faults = Vec::new();
        let mut remarks = leaf.remarks;
        let mut verified = None;
        let mut issued = None;
        if let Ok(chain) = &leaf.chain {
            let certificate = chain.leaf();
            issued = self.issue_time(name, certificate);
            faults.extend(self.validity(certificate, issued));
            if let Ok(key) = &leaf.key
                && key.public_key() != certificate.public_key()
            {
                faults.push(FileFault::new(
                    Trouble::Torn,
                    "the key does not match the certificate; issue the certificate again, or restore the file that was lost",
                ));
            }
            let mut misplaced = assess::misplaced(name, certificate);
            misplaced.extend(server.and_then(|server| assess::lacks_host(certificate, server)));
            faults.extend(
                misplaced
                    .iter()
                    .map(|difference| FileFault::new(Trouble::Misplaced, difference.to_string())),
            );
            verified = self.verify(name, chain, bundle, &mut faults, &mut remarks);
        }
        let kubeconfig = leaf
            .kubeconfig
            .map(|found| kubeconfig_status(&found, bundle, &mut faults, &mut remarks));
        let certificate = leaf
            .chain
            .as_ref()
            .ok()
            .map(|chain| self.facts(chain.leaf(), chain.intermediates().len()));
        faults.extend(leaf.chain.err());
        faults.extend(leaf.key.err());
        faults.extend(leaf.files.iter().filter_map(|file| self.exposure(file)));
        let state = gravest(&faults);
        let (problems, troubles) = by_gravity(faults);
        CertStatus {
            name,
            authority: name.authority(),
            state,
            problems,
            troubles,
            remarks,
            certificate,
            verified,
            issued,
            kubeconfig,
            files: leaf.files,
        }
    }

    /// Returns the recorded time of issue, if the record is about this certificate.
    fn issue_time(&self, name: CertName, certificate: &Certificate) -> Option<OffsetDateTime> {
        let record = self.issued.get(&name)?;
        (record.sha256 == hex(&certificate.fingerprint())).then_some(record.at)
    }

    fn validity(
        &self,
        certificate: &Certificate,
        issued: Option<OffsetDateTime>,
    ) -> Option<FileFault> {
        let (not_before, not_after) = (certificate.not_before(), certificate.not_after());
        let left = not_after - self.now;
        if left.is_negative() {
            let ago = human_duration(-left.whole_seconds());
            return Some(FileFault::new(
                Trouble::Expired,
                format!("it expired at {}, {ago} ago", minute(not_after)),
            ));
        }
        if self.now < not_before {
            return Some(FileFault::new(
                Trouble::NotYetValid,
                format!(
                    "it is not valid before {}; if that is not in the future, the clock of this machine is wrong",
                    minute(not_before)
                ),
            ));
        }
        let lifetime = not_after - issued.unwrap_or(not_before);
        (left < Duration::days(30) && left < lifetime / 3).then(|| {
            FileFault::new(
                Trouble::Expiring,
                format!(
                    "it expires at {}, in {}",
                    minute(not_after),
                    human_duration(left.whole_seconds())
                ),
            )
        })
    }

    fn verify(
        &self,
        name: CertName,
        chain: &Chain,
        bundle: Option<&Bundle>,
        faults: &mut Vec<FileFault>,
        remarks: &mut Vec<String>,
    ) -> Option<bool> {
        let Some(bundle) = bundle else {
            remarks.push(format!(
                "not verified: {} is not on this node",
                name.authority()
            ));
            return None;
        };
        let trust = match &bundle.trust {
            Ok(trust) => trust,
            Err(fault) => {
                faults.push(FileFault::new(
                    Trouble::NoAuthority,
                    format!("it cannot be verified: {}", fault.words),
                ));
                return None;
            }
        };
        let mut good = true;
        for difference in path_differences(chain, trust, self.now) {
            if matches!(difference, CertDifference::NotUnderFirst { .. }) {
                remarks.push(difference.to_string());
                continue;
            }
            good = false;
            // `assess::misplaced` has reported this, without an authority.
            if difference == CertDifference::IsCa {
                continue;
            }
            let anchors = || {
                format!(
                    "in {}: its issuer is {}, the anchor there is {trust}",
                    self.here(&bundle.path),
                    chain.leaf().issuer()
                )
            };
            let mut candidates = trust.certificates().iter();
            let words = match difference {
                CertDifference::UntrustedIssuer { .. } => format!(
                    "no certification path connects it with the authority {}; {}",
                    anchors(),
                    match candidates.any(|anchor| chain.leaf().names_issuer(anchor)) {
                        true => "the name is the same, the key is not",
                        false => {
                            "another authority signed it, or intermediates are missing in its file"
                        }
                    }
                ),
                // The path builder's term, without the bytes that follow it.
                CertDifference::Path(why) => format!(
                    "it does not verify under the authority {} ({})",
                    anchors(),
                    why.split([' ', '(', '{']).next().unwrap_or_default()
                ),
                other => other.to_string(),
            };
            faults.push(FileFault::new(Trouble::Unverified, words));
        }
        let end = trust
            .certificates()
            .iter()
            .map(Certificate::not_after)
            .max();
        if let Some(end) = end
            && chain.leaf().not_after() > end
        {
            remarks.push(format!(
                "it outlives its authority, which expires at {}",
                minute(end)
            ));
        }
        Some(good)
    }

    fn facts(&self, certificate: &Certificate, intermediates: usize) -> Facts {
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
            residual_seconds: (certificate.not_after() - self.now).whole_seconds(),
            pin: format!("sha256:{}", hex(&certificate.public_key().sha256())),
            fingerprint: hex(&certificate.fingerprint()),
            intermediates,
        }
    }
}

/// Remark on a key in another form than kubeadm's.
const PKCS8_REMARK: &str = "the key is PKCS#8, which some components of Kubernetes cannot read; kubeadm writes PKCS#1 or SEC1";

fn kubeconfig_status(
    found: &ObservedKubeconfig,
    bundle: Option<&Bundle>,
    faults: &mut Vec<FileFault>,
    remarks: &mut Vec<String>,
) -> KubeconfigStatus {
    if found.server.is_none() {
        remarks.push("it does not name a server".to_owned());
    }
    let own = match found.authority.as_deref().map(TrustBundle::from_pem) {
        Some(Ok(own)) => Some(own),
        Some(Err(error)) => {
            faults.push(FileFault::new(
                Trouble::Damaged,
                format!("its CA data is unreadable: {error}"),
            ));
            None
        }
        None => {
            remarks.push("it does not embed CA data".to_owned());
            None
        }
    };
    let trust = bundle.and_then(|bundle| bundle.trust.as_ref().ok());
    let (Some(own), Some(trust)) = (own, trust) else {
        return KubeconfigStatus {
            server: found.server.clone(),
            authority_is_first: None,
            by_file: found.by_file,
        };
    };
    let is_trusted = |certificate| trust.certificates().contains(certificate);
    let mut certificates = own.certificates().iter();
    // During a CA change the CA data contains the old and the new CA.
    let is_first = own.first() == trust.first() && certificates.clone().all(is_trusted);
    // A CA certificate that was renewed with its key verifies the same certificates.
    let common = certificates.any(|certificate| {
        let mut trusted = trust.certificates().iter();
        trusted.any(|trusted| is_same_authority(trusted, certificate))
    });
    if !common {
        faults.push(FileFault::new(
            Trouble::OtherAuthority,
            format!(
                "its CA data is {own}, but ca.crt holds {trust}: it does not trust the API server"
            ),
        ));
    } else if !is_first {
        remarks.push(format!(
            "its CA data is {own}; kubeadm writes the first certificate of ca.crt"
        ));
    }
    KubeconfigStatus {
        server: found.server.clone(),
        authority_is_first: Some(is_first),
        by_file: found.by_file,
    }
}

// ---- authorities, the service-account pair, pending requests ----

impl Node<'_> {
    fn authority(&self, name: Authority) -> Bundle {
        let [path, key_path] = self.state.layout().authority(name);
        let certificate = self.state.file(&path);
        let mut files = vec![self.status_of(&certificate, false)];
        // The key is never opened. Opening it as a directory shows whether a link has a target.
        let key_file = self.state.file(&key_path);
        let is_dangling = || {
            let metadata = key_file.metadata();
            metadata.is_some_and(|found| found.kind == FileKind::Symlink)
                && matches!(self.state.root().dir(&key_path), Ok(None))
        };
        let has_key = key_file.exists() && !is_dangling();
        files.push(FileStatus {
            path: key_path.display().to_string(),
            secret: true,
            access: key_file.metadata().map(access),
        });

        let mut remarks: Vec<String> = Vec::new();
        let mut faults = Vec::new();
        // Any sequence of certificates parses as a chain, so that a row exists even for an unusable bundle.
        let both = self.parse(&certificate, |bytes| {
            Chain::from_pem(bytes).map(|chain| (chain, TrustBundle::from_pem(bytes)))
        });
        let (certificates, trust) = match both {
            Ok((chain, trust)) => {
                faults.extend(self.validity(chain.leaf(), None));
                for other in chain.intermediates() {
                    if self.now > other.not_after() {
                        remarks.push(format!(
                            "its bundle also holds {}, which expired at {}; remove it when convenient",
                            other.subject(),
                            minute(other.not_after())
                        ));
                    }
                }
                let certificates = std::iter::once(chain.leaf()).chain(chain.intermediates());
                let facts = certificates.map(|certificate| self.facts(certificate, 0));
                let trust = trust.map_err(|error| {
                    FileFault::new(
                        Trouble::Damaged,
                        format!("{} cannot serve as a CA: {error}", self.here(&path)),
                    )
                });
                (facts.collect(), trust)
            }
            Err(fault) => (Vec::new(), Err(fault)),
        };
        if let Err(fault) = &trust {
            faults.push(FileFault::new(fault.trouble, fault.words.clone()));
        }
        faults.extend(files.iter().filter_map(|file| self.exposure(file)));
        let state = gravest(&faults);
        let (problems, troubles) = by_gravity(faults);
        Bundle {
            status: AuthorityStatus {
                name,
                state,
                problems,
                troubles,
                remarks,
                certificates,
                replaced: None,
                valid_copy: None,
                has_key,
                files,
            },
            trust,
            path,
        }
    }

    fn service_account(&self) -> ServiceAccountStatus {
        let layout = self.state.layout();
        let [private, public] = layout.service_account().map(|path| self.state.file(path));
        let files = vec![
            self.status_of(&private, true),
            self.status_of(&public, false),
        ];
        let mut remarks: Vec<String> = Vec::new();
        if let Ok(Some(pem)) = private.bytes()
            && !assess::is_our_form(pem)
        {
            remarks.push(PKCS8_REMARK.to_owned());
        }
        let private = self.parse(&private, PrivateKey::from_pem);
        // While a pair is replaced, sa.pub contains the old and the new public key.
        let public = self.parse(&public, PublicKey::all_from_pem);
        let key = match (&private, &public) {
            (Ok(private), _) => Some(private.public_key().clone()),
            (_, Ok(public)) => public.first().cloned(),
            _ => None,
        };
        let mut faults = Vec::new();
        match (private, public) {
            (Ok(private), Ok(public)) if !public.contains(private.public_key()) => {
                faults.push(FileFault::new(
                    Trouble::Torn,
                    format!("sa.key and sa.pub are not a pair: tokens signed with the one are refused by the other; {COPY_SERVICE_ACCOUNT}"),
                ));
            }
            (Ok(_), Err(mut fault)) => {
                if fault.trouble == Trouble::Absent {
                    fault.words.push_str("; it can be derived from sa.key");
                }
                faults.push(fault);
            }
            (private, public) => {
                let unusable = private.err().map(|mut fault| {
                    if self.state.has_served() && fault.trouble != Trouble::Denied {
                        fault.words.push_str(&format!("; {COPY_SERVICE_ACCOUNT}"));
                    }
                    fault
                });
                faults.extend(unusable);
                faults.extend(public.err());
            }
        }
        faults.extend(files.iter().filter_map(|file| self.exposure(file)));
        let state = gravest(&faults);
        let (problems, troubles) = by_gravity(faults);
        ServiceAccountStatus {
            state,
            problems,
            troubles,
            remarks,
            key: key.as_ref().map(|key| key.key_type().to_string()),
            key_id: key.map(|key| URL_SAFE_NO_PAD.encode(key.sha256())),
            files,
        }
    }
}

fn pending_status((slot, ticket): (Slot, Option<RequestRecord>)) -> PendingStatus {
    let name = slot.to_string();
    match ticket {
        Some(ticket) => PendingStatus {
            name,
            signer: Some(ticket.signer),
            phase: Some(ticket.phase),
            since: ticket.first_submitted,
            last_error: ticket.last_error,
        },
        None => PendingStatus {
            name,
            signer: None,
            phase: None,
            since: None,
            last_error: None,
        },
    }
}

fn gravest(faults: &[FileFault]) -> RowState {
    faults
        .iter()
        .map(|fault| fault.trouble.state())
        .fold(RowState::Ok, RowState::max)
}

/// Returns text and kind of each fault, gravest first. A fault without text repeats another one and is omitted.
fn by_gravity(mut faults: Vec<FileFault>) -> (Vec<String>, Vec<Trouble>) {
    faults.sort_by_key(|fault| std::cmp::Reverse(fault.trouble.state()));
    faults
        .into_iter()
        .filter(|fault| !fault.words.is_empty())
        .map(|fault| (fault.words, fault.trouble))
        .unzip()
}
