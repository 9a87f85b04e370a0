//! Offline signing: the bundle that `csr export` writes and the trees that `csr import` reads. Pure: lists of (path,
//! bytes) in and out; the caller accesses the files and verifies the imported certificates.
//!
//! The names in a bundle are those of `kubeadm certs generate-csr`, so runbooks written for it apply:
//!
//! | path | holds |
//! | --- | --- |
//! | `pki/apiserver.csr`, `pki/etcd/server.csr`, `admin.conf.csr`, … | the CSRs |
//! | the same with `.ext` | the profile as an OpenSSL extension file |
//! | `request.json` | for each slot its [`SignRequest`], the paths, the profile as text |
//! | `README` | the OpenSSL command for each |
//!
//! Imported certificates are matched by public key and never by file name: a certificate under another slot's name is
//! assigned to the slot whose key it has, and reported. A tree that kubeadm created contains keys as well
//! (`pki/*.key`, `client-key-data`): keys that have a certificate in the tree are returned with it, and the caller's
//! policy decides whether a key that was not generated here may be installed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use saphyr_parser::{Event, Parser};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::kube::names::{Authority, CertName};
use crate::signer::Request;
use crate::signer::shell::{one_line, quoted};
use crate::signer::wire::{API_VERSION, SignRequest, csr_sha256, profile_line};
use crate::text::hex;
use crate::x509::{Certificate, Csr, PrivateKey, Profile, PublicKey, certificates_of};

/// A file to be written below the bundle's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleFile {
    /// Relative path.
    pub path: PathBuf,
    /// Content.
    pub bytes: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// What a bundle is for. Its script verifies this before it signs.
#[derive(Clone, Debug, Default)]
pub struct BundleHeading {
    /// Name of the node.
    pub node: String,
    /// Name of its cluster.
    pub cluster: String,
    /// SHA-256 of the public keys of each authority that the node knows.
    pub authorities: BTreeMap<Authority, Vec<[u8; 32]>>,
}

impl BundleHeading {
    /// Returns the first lines of the README.
    fn title(&self) -> String {
        format!(
            "# Certificate signing requests of node {} of cluster {}, by nodepki. These files contain no secrets.\n",
            one_line(&self.node),
            one_line(&self.cluster)
        )
    }

    /// Returns the commands that end the script unless the bundle is for this node, and its CAs are those in `$CA`.
    fn checks(&self, requests: &[Request]) -> String {
        let mut text = String::new();
        for (variable, what, value) in [
            ("NODE", "node", &self.node),
            ("CLUSTER", "cluster", &self.cluster),
        ] {
            let value = quoted(&one_line(value));
            let _ = writeln!(
                text,
                "[ \"${{{variable}-}}\" = '' ] || [ \"${variable}\" = {value} ] || refuse \"this bundle is for {what} \"{value}"
            );
        }
        for request in requests {
            let csr = format!("{}.csr", bundle_base(request.name()));
            let _ = writeln!(text, "is_request {csr} {}", csr_sha256(&request.csr));
        }
        for authority in Authority::ALL {
            if !requests.iter().any(|one| one.wanted.authority == authority) {
                continue;
            }
            let base = authority.base_name();
            let _ = match self.authorities.get(&authority) {
                Some(keys) => {
                    let keys: Vec<String> = keys.iter().map(|key| hex(key)).collect();
                    writeln!(text, "is_ca {base} '{}'", keys.join(" "))
                }
                // The node does not know its CA yet.
                None => writeln!(text, "has_ca {base}"),
            };
        }
        text
    }
}

/// Returns the bundle for these requests; the same requests give the same bytes.
pub fn export(requests: &[Request], heading: &BundleHeading) -> Vec<BundleFile> {
    let mut files = Vec::new();
    let mut items = Vec::new();
    let mut commands = heading.checks(requests);
    for request in requests {
        let name = request.name();
        let profile = &request.wanted.profile;
        let base = bundle_base(name);
        let (csr, extensions, certificate) = (
            format!("{base}.csr"),
            format!("{base}.ext"),
            format!("{base}.crt"),
        );
        files.push(public(&csr, request.csr.to_pem().into_bytes()));
        files.push(public(
            &extensions,
            openssl_extensions(profile).into_bytes(),
        ));
        let authority = request.wanted.authority.base_name();
        // Whole days, rounded up, because OpenSSL counts in days.
        let days = profile.lifetime.as_secs().div_ceil(24 * 60 * 60);
        let _ = writeln!(
            commands,
            "\n# {name}: {}\nsign {csr} {extensions} {days} {authority} {certificate}",
            profile_line(profile)
        );
        items.push(ManifestItem {
            csr_path: csr,
            csr_sha256: csr_sha256(&request.csr),
            extensions_path: extensions,
            certificate_path: certificate,
            profile: profile_line(profile),
            request: SignRequest::lasting(request),
        });
    }
    let manifest = BundleManifest {
        api_version: API_VERSION,
        kind: "SignRequestList",
        items,
    };
    let mut json = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
    json.push(b'\n');
    files.push(public(MANIFEST_FILE, json));
    let readme = format!("{}{README}{commands}", heading.title());
    files.push(public("README", readme.into_bytes()));
    files
}

/// The list of the requests of a bundle.
pub const MANIFEST_FILE: &str = "request.json";

const README: &str = include_str!("bundle/readme.txt");

fn public(path: &str, bytes: Vec<u8>) -> BundleFile {
    BundleFile {
        path: PathBuf::from(path),
        bytes,
        mode: 0o644,
    }
}

fn bundle_base(name: CertName) -> String {
    if name.is_kubeconfig() {
        name.base_name().to_owned()
    } else {
        format!("pki/{}", name.base_name())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BundleManifest {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<ManifestItem>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ManifestItem {
    csr_path: String,
    csr_sha256: String,
    extensions_path: String,
    certificate_path: String,
    profile: String,
    request: SignRequest,
}

/// The node whose requests a list contains.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct ListedNode {
    node: String,
    cluster: String,
}

/// Returns the node whose requests a list contains.
fn node_of(manifest: &[u8]) -> Option<ListedNode> {
    #[derive(Deserialize)]
    struct Listed {
        items: Vec<ListedItem>,
    }
    #[derive(Deserialize)]
    struct ListedItem {
        request: ListedNode,
    }
    let listed: Listed = serde_json::from_slice(manifest).ok()?;
    Some(listed.items.into_iter().next()?.request)
}

/// Why an export may not write into a directory: only files of an earlier export of the node are replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ExportConflict {
    #[error(
        "it contains the requests of {present}, which those of {own} would overwrite (name another directory)"
    )]
    OtherNode { present: String, own: String },
    #[error("{} is not of an earlier export of this node, and the export would overwrite it (name another directory)", path.display())]
    ForeignFile { path: PathBuf },
    #[error("{} has a key that this node neither uses nor keeps for a pending request: it may be of another node with this name, or an earlier one of this node (name another directory, or remove this one if its requests are not needed any more)", path.display())]
    UnknownKey { path: PathBuf },
    #[error("{} is the certificate for {}, which another request would replace, and it is not installed on this node (import the directory, or name another one)", certificate.display(), csr.display())]
    Unimported { certificate: PathBuf, csr: PathBuf },
}

/// Returns the certificate that a signer is to store next to a CSR of a bundle.
fn certificate_path(csr: &Path) -> PathBuf {
    csr.with_extension("crt")
}

/// Returns the paths of the files that [`conflict`] compares: those of the bundle, and the certificates next to its CSRs.
pub fn compared(files: &[BundleFile]) -> impl Iterator<Item = PathBuf> {
    files.iter().flat_map(|file| {
        let certificate = is_csr(&file.path).then(|| certificate_path(&file.path));
        std::iter::once(file.path.clone()).chain(certificate)
    })
}

fn is_csr(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "csr")
}

/// What belongs to this node.
#[derive(Debug, Default)]
pub struct OwnKeys {
    /// The keys of its certificates and of its pending requests.
    pub keys: Vec<PublicKey>,
    /// Fingerprints of its certificates.
    pub certificates: Vec<[u8; 32]>,
}

/// Returns why `files` may not be written into the directory with the files `present`; `None` if they may.
///
/// The list of requests is written almost last, so an interrupted export leaves files without it. They are repeated with
/// the same bytes.
pub fn conflict(
    files: &[BundleFile],
    heading: &BundleHeading,
    present: &BTreeMap<PathBuf, Vec<u8>>,
    own: &OwnKeys,
) -> Option<ExportConflict> {
    let BundleHeading { node, cluster, .. } = heading;
    let mut differing = files
        .iter()
        .filter(|file| present.get(&file.path).is_some_and(|it| *it != file.bytes));
    let listed = present.get(Path::new(MANIFEST_FILE));
    let Some(listed) = listed.and_then(|manifest| node_of(manifest)) else {
        let path = differing.next()?.path.clone();
        return Some(ExportConflict::ForeignFile { path });
    };
    if listed.node != *node {
        return Some(ExportConflict::OtherNode {
            present: format!("node {}", listed.node),
            own: node.clone(),
        });
    }
    if listed.cluster != *cluster {
        return Some(ExportConflict::OtherNode {
            present: format!("node {node} of cluster {}", listed.cluster),
            own: format!("cluster {cluster}"),
        });
    }
    differing.find_map(|file| {
        let csr = file.path.clone();
        let key = Csr::from_pem(present.get(&csr).filter(|_| is_csr(&csr))?).ok()?;
        if !own.keys.contains(key.public_key()) {
            return Some(ExportConflict::UnknownKey { path: csr });
        }
        let certificate = certificate_path(&csr);
        let answers = certificates_of(present.get(&certificate)?).ok()?;
        let is_unimported = answers.iter().any(|one| {
            one.public_key() == key.public_key() && !own.certificates.contains(&one.fingerprint())
        });
        is_unimported.then_some(ExportConflict::Unimported { certificate, csr })
    })
}

/// Returns the profile for `openssl x509 -req -extfile`. Names are written in a separate section, one per line, so
/// a comma in a name cannot become a second name.
pub fn openssl_extensions(profile: &Profile) -> String {
    let usages = profile.usages.iter().map(|usage| usage.rfc_name());
    let usages: Vec<_> = usages.collect();
    let mut text = format!(
        "# {}\nbasicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature{}\nextendedKeyUsage = {}\nauthorityKeyIdentifier = keyid\n",
        profile_line(profile),
        if profile.key.is_rsa() {
            ", keyEncipherment"
        } else {
            ""
        },
        usages.join(", ")
    );
    if !profile.sans.is_empty() {
        text.push_str("subjectAltName = @names\n\n[names]\n");
        for (index, name) in (1..).zip(&profile.sans.dns) {
            let _ = writeln!(text, "DNS.{index} = {name}");
        }
        for (index, ip) in (1..).zip(&profile.sans.ips) {
            let _ = writeln!(text, "IP.{index} = {ip}");
        }
    }
    text
}

/// A request without a certificate.
#[derive(Clone, Debug)]
pub struct Outstanding {
    /// The slot.
    pub name: CertName,
    /// Its pending key.
    pub key: PublicKey,
}

/// Content of an imported tree.
#[derive(Debug, Default)]
pub struct Collection {
    /// At most one per slot, in kubeadm's order.
    pub candidates: Vec<Candidate>,
    /// Slots whose installed certificate has the key of a certificate in the tree.
    pub installed: Vec<CertName>,
    /// CA certificates in the tree: candidates for trust, which files and pins decide.
    pub authorities: Vec<(Authority, PathBuf, Vec<u8>)>,
    /// The nodes whose requests the tree contains.
    pub nodes: BTreeSet<String>,
    /// Remarks for the user, in the order of the files.
    pub remarks: Vec<Remark>,
}

/// An imported certificate for a slot, not verified.
pub struct Candidate {
    /// The slot.
    pub name: CertName,
    /// Path of its file.
    pub path: PathBuf,
    /// Bytes in any form that a chain may have.
    pub answer: Vec<u8>,
    /// The key in the tree, if it is not one of the pending ones.
    pub key: Option<PrivateKey>,
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("key", &self.key.as_ref().map(|_| "redacted"))
            .finish_non_exhaustive()
    }
}

/// Remark about a file of the tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum Remark {
    #[error("{} has the key of {belongs_to}, and is used as its certificate", path.display())]
    Misnamed { path: PathBuf, belongs_to: CertName },
    #[error("{} certifies the key of {}, and that private key is neither pending here nor in the tree: import it on the node that created the CSR, or sign the CSRs of the last export", path.display(), csr.display())]
    KeyElsewhere { path: PathBuf, csr: PathBuf },
    #[error("{} ({subject}) is for a key of no pending request: sign the CSRs of the last `nodepki csr export`", path.display())]
    UnknownKey { path: PathBuf, subject: String },
    #[error("{} is not used: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{} is not used: {} is already {name}'s certificate; remove one of the two", path.display(), instead.display())]
    Duplicate {
        path: PathBuf,
        instead: PathBuf,
        name: CertName,
    },
}

/// Returns whether a file may be part of an import, by its name.
pub fn is_imported(path: &Path) -> bool {
    matches!(
        path.extension().and_then(|extension| extension.to_str()),
        Some("crt" | "cer" | "pem" | "der" | "p7b" | "p7c" | "key" | "csr" | "conf")
    ) || path.ends_with(MANIFEST_FILE)
}

/// Assigns a tree of files, paths relative to its top: an exported bundle after signing, the tree of `kubeadm certs
/// generate-csr` after signing (certificates next to the keys, or pasted into the kubeconfigs), or an inbox.
/// `installed` are the keys of certificates that need no replacement, which a repeated import finds.
pub fn collect(
    files: &[(PathBuf, Zeroizing<Vec<u8>>)],
    outstanding: &[Outstanding],
    installed: &[Outstanding],
) -> Collection {
    let mut tree = Tree::default();
    let mut found = Collection::default();
    for (path, bytes) in files {
        tree.take(path, bytes, &mut found);
    }
    let certificates = std::mem::take(&mut tree.certificates);
    let owners = Owners::new(&tree, outstanding, installed);
    for (path, bytes) in certificates {
        if let Some(PathName::Authority(authority)) = place(&path) {
            found.authorities.push((authority, path, bytes));
            continue;
        }
        // By the key: the name of a file may be wrong.
        match owners.of(&bytes) {
            Ok(Owner::Installed(name)) => {
                if !found.installed.contains(&name) {
                    found.installed.push(name);
                }
            }
            Ok(Owner::Wanted(name, key)) => {
                if let Some(PathName::Slot(by_path)) = place(&path)
                    && by_path != name
                {
                    found.remarks.push(Remark::Misnamed {
                        path: path.clone(),
                        belongs_to: name,
                    });
                }
                found.add(Candidate {
                    name,
                    path,
                    answer: bytes,
                    key,
                });
            }
            Err(why) => found.remarks.push(why.about(path)),
        }
    }
    found.candidates.sort_by_key(|candidate| candidate.name);
    found
}

impl Collection {
    fn add(&mut self, candidate: Candidate) {
        let name = candidate.name;
        match self.candidates.iter_mut().find(|other| other.name == name) {
            None => self.candidates.push(candidate),
            // The same certificate twice, as a file and pasted into the kubeconfig.
            Some(other) if other.answer == candidate.answer => {}
            Some(other) => {
                // A key that was generated here takes precedence over an imported one.
                let (used, unused) = if other.key.is_some() && candidate.key.is_none() {
                    let unused = std::mem::replace(other, candidate);
                    (other.path.clone(), unused.path)
                } else {
                    (other.path.clone(), candidate.path)
                };
                self.remarks.push(Remark::Duplicate {
                    path: unused,
                    instead: used,
                    name,
                });
            }
        }
    }
}

/// The files of a tree by content.
#[derive(Default)]
struct Tree {
    certificates: Vec<(PathBuf, Vec<u8>)>,
    keys: Vec<(PathBuf, PrivateKey)>,
    csrs: Vec<(PathBuf, Csr)>,
}

enum Stray {
    KeyElsewhere(PathBuf),
    UnknownKey(String),
    Damaged(String),
}

impl Stray {
    fn about(self, path: PathBuf) -> Remark {
        match self {
            Stray::KeyElsewhere(csr) => Remark::KeyElsewhere { path, csr },
            Stray::UnknownKey(subject) => Remark::UnknownKey { path, subject },
            Stray::Damaged(why) => Remark::Damaged { path, why },
        }
    }
}

impl Tree {
    fn take(&mut self, path: &Path, bytes: &[u8], found: &mut Collection) {
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension {
            Some("crt" | "cer" | "pem" | "der" | "p7b" | "p7c") => {
                if contains(bytes, b"PRIVATE KEY-----") {
                    self.take_key(path, bytes, found);
                }
                self.certificates.push((path.to_owned(), bytes.to_vec()));
            }
            // sa.key belongs to no certificate, and the private keys of CAs are not imported.
            Some("key") if matches!(place(path), Some(PathName::Slot(_))) => {
                self.take_key(path, bytes, found);
            }
            Some("csr") => {
                if let Ok(csr) = Csr::from_pem(bytes).or_else(|_| Csr::from_der(bytes)) {
                    self.csrs.push((path.to_owned(), csr));
                }
            }
            Some("conf") => self.take_kubeconfig(path, bytes, found),
            Some("json") => found.nodes.extend(node_of(bytes).map(|listed| listed.node)),
            _ => {}
        }
    }

    fn take_key(&mut self, path: &Path, bytes: &[u8], found: &mut Collection) {
        match PrivateKey::from_pem(bytes) {
            Ok(key) => self.keys.push((path.to_owned(), key)),
            Err(error) => found.remarks.push(Remark::Damaged {
                path: path.to_owned(),
                why: error.to_string(),
            }),
        }
    }

    fn take_kubeconfig(&mut self, path: &Path, bytes: &[u8], found: &mut Collection) {
        let pasted = match pasted_data(bytes) {
            Ok(pasted) => pasted,
            Err(why) => {
                return found.remarks.push(Remark::Damaged {
                    path: path.to_owned(),
                    why,
                });
            }
        };
        for (field, bytes) in pasted {
            match field {
                Pasted::Certificate => self.certificates.push((path.to_owned(), bytes.to_vec())),
                Pasted::Key => self.take_key(path, &bytes, found),
            }
        }
    }
}

/// The slot that a certificate belongs to.
enum Owner {
    /// The slot, with the private key if the tree contains it.
    Wanted(CertName, Option<PrivateKey>),
    Installed(CertName),
}

/// Holders of private keys, by the SHA-256 of the public key.
struct Owners<'a> {
    outstanding: HashMap<[u8; 32], CertName>,
    installed: HashMap<[u8; 32], CertName>,
    keys: HashMap<[u8; 32], &'a (PathBuf, PrivateKey)>,
    csrs: HashMap<[u8; 32], &'a Path>,
}

impl<'a> Owners<'a> {
    fn new(tree: &'a Tree, outstanding: &[Outstanding], installed: &[Outstanding]) -> Self {
        let by_key = |slots: &[Outstanding]| {
            let slots = slots.iter().rev();
            slots.map(|slot| (slot.key.sha256(), slot.name)).collect()
        };
        // Of two files with one key the first one is used.
        let keys = tree.keys.iter().rev();
        let csrs = tree.csrs.iter().rev();
        Owners {
            outstanding: by_key(outstanding),
            installed: by_key(installed),
            keys: keys
                .map(|held| (held.1.public_key().sha256(), held))
                .collect(),
            csrs: csrs
                .map(|(path, csr)| (csr.public_key().sha256(), path.as_path()))
                .collect(),
        }
    }

    /// Returns the slot to which a certificate belongs.
    fn of(&self, bytes: &[u8]) -> Result<Owner, Stray> {
        let certificates =
            certificates_of(bytes).map_err(|error| Stray::Damaged(error.to_string()))?;
        let keys: Vec<[u8; 32]> = certificates
            .iter()
            .map(|certificate| certificate.public_key().sha256())
            .collect();
        if let Some(name) = keys.iter().find_map(|key| self.outstanding.get(key)) {
            return Ok(Owner::Wanted(*name, None));
        }
        if let Some(name) = keys.iter().find_map(|key| self.installed.get(key)) {
            return Ok(Owner::Installed(*name));
        }
        if let Some((path, key)) = keys.iter().find_map(|key| self.keys.get(key)) {
            return match place(path) {
                Some(PathName::Slot(name)) => Ok(Owner::Wanted(name, Some(key.clone()))),
                _ => Err(Stray::Damaged(format!(
                    "its key is in {}, which is not the name of a certificate",
                    path.display()
                ))),
            };
        }
        if let Some(path) = keys.iter().find_map(|key| self.csrs.get(key)) {
            return Err(Stray::KeyElsewhere((*path).to_owned()));
        }
        Err(match certificates.first() {
            Some(certificate) => Stray::UnknownKey(Certificate::subject(certificate).to_string()),
            None => Stray::Damaged("it does not contain a certificate".to_owned()),
        })
    }
}

enum PathName {
    Slot(CertName),
    Authority(Authority),
}

/// Returns what a path names: `…/pki/etcd/server.crt`, `etcd-server.crt`, `admin.conf.crt` or `admin.conf`.
fn place(path: &Path) -> Option<PathName> {
    let stem = if path
        .extension()
        .is_some_and(|extension| extension == "conf")
    {
        path.to_owned()
    } else {
        path.with_extension("")
    };
    // Compares whole path components, so `apiserver` does not match `kube-apiserver`; `etcd/ca` takes precedence over
    // `ca`.
    let slot = CertName::ALL
        .into_iter()
        .find(|name| stem.ends_with(name.base_name()) || stem.ends_with(name.as_str()));
    let authority = [Authority::EtcdCa, Authority::FrontProxyCa, Authority::Ca]
        .into_iter()
        .find(|name| stem.ends_with(name.base_name()) || stem.ends_with(name.as_str()));
    slot.map(PathName::Slot)
        .or(authority.map(PathName::Authority))
}

type PastedData = Vec<(Pasted, Zeroizing<Vec<u8>>)>;

#[derive(Clone, Copy)]
enum Pasted {
    Certificate,
    Key,
}

/// Returns the decoded `client-certificate-data` and `client-key-data` of a kubeconfig (YAML or JSON), in its order.
fn pasted_data(text: &[u8]) -> Result<PastedData, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let mut pasted = Vec::new();
    let mut expecting = None;
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| format!("it is not YAML: {error}"))?;
        let Event::Scalar(value, ..) = event else {
            expecting = None;
            continue;
        };
        match (expecting.take(), value.as_ref()) {
            (None, "client-certificate-data") => expecting = Some(Pasted::Certificate),
            (None, "client-key-data") => expecting = Some(Pasted::Key),
            (None, _) | (Some(_), "" | "~" | "null") => {}
            (Some(field), value) => {
                // `base64` without -w0 breaks lines, and pasting keeps them.
                let joined: Zeroizing<String> =
                    Zeroizing::new(value.split_ascii_whitespace().collect());
                let bytes = STANDARD.decode(joined.as_bytes()).map_err(|_| {
                    let name = match field {
                        Pasted::Certificate => "client-certificate-data",
                        Pasted::Key => "client-key-data",
                    };
                    format!("its {name} is not base64; paste the output of: base64 -w0 FILE")
                })?;
                pasted.push((field, Zeroizing::new(bytes)));
            }
        }
    }
    Ok(pasted)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests;
