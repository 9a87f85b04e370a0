//! Writes the kubelet's client certificate in the kubelet's own layout: a dated file, the link to it, and kubelet.conf,
//! which refers to the link by path.
//!
//! The previous target of the link is kept, so an administrator can restore it. Older files are removed if nodepki
//! created them, according to a list in the state directory; files that the kubelet created are never removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::macros::format_description;
use time::{Duration, OffsetDateTime, UtcOffset};
use zeroize::Zeroizing;

use super::Failure;
use crate::kube::components::ReplacedFile;
use crate::kube::kubeconfig::{Kubeconfig, KubeconfigError};
use crate::kube::names::NodePath;
use crate::kube::paths::KUBELET_CURRENT_LINK;
use crate::spec::assess::{KubeletLink, ObservedKubeletStore};
use crate::spec::{CertFiles, CertSpec};
use crate::store::{Commit, FormerContents, Mode, NodeRoot, STATE_DIR};
use crate::x509::{Chain, PrivateKey, TrustBundle};

/// File of the state directory that lists the files that nodepki created in the kubelet's directory.
const CREATED_FILES: &str = "kubelet-client.json";

#[derive(Default, Serialize, Deserialize)]
struct CreatedFiles {
    files: BTreeSet<PathBuf>,
}

impl CreatedFiles {
    fn path() -> PathBuf {
        Path::new(STATE_DIR).join(CREATED_FILES)
    }

    /// Returns an empty list if the file is unreadable, so nothing is removed.
    fn read(root: &NodeRoot) -> Self {
        let content = root.read(CreatedFiles::path()).ok().flatten();
        content
            .and_then(|content| serde_json::from_slice(&content.bytes).ok())
            .unwrap_or_default()
    }
}

/// The certificate to write, and the kubelet's files as found.
pub(super) struct KubeletFiles<'a> {
    pub(super) spec: &'a CertSpec,
    pub(super) trusted: &'a TrustBundle,
    pub(super) chain: &'a Chain,
    pub(super) key: &'a PrivateKey,
    /// The certificate was just issued; otherwise it is the one that was found.
    pub(super) is_new: bool,
    pub(super) store: ObservedKubeletStore,
    pub(super) document: Option<Kubeconfig>,
}

impl KubeletFiles<'_> {
    pub(super) fn add_to(
        self,
        commit: &mut Commit,
        root: &NodeRoot,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        match (self.is_new || !self.store.in_place, self.store.target()) {
            (true, _) => self.add_file(commit, root, now)?,
            // Only its mode can be wrong.
            (false, Some(target)) => {
                if let Some(pem) = self.store.on_disk.pem.clone() {
                    commit.file(target, pem, Mode::Private);
                }
            }
            (false, None) => {}
        }
        self.add_kubeconfig(commit, now)
    }

    fn add_file(
        &self,
        commit: &mut Commit,
        root: &NodeRoot,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        let before = CreatedFiles::read(root);
        let mut created = CreatedFiles::default();
        let mut names = FreeNames::new(root, &self.store.dir);
        let (name, path) = names.next(now)?;
        commit.file(path.clone(), pem(self.chain, self.key), Mode::Private);
        created.files.insert(path);

        let (link, found) = (self.store.link(), self.store.on_disk.pem.as_ref());
        let mut former = self.store.target();
        // A file in the place of the link has no other name to which a rollback could link.
        if let (None, Some(found)) = (&former, found) {
            let (_, path) = names.next(now)?;
            commit.file(path.clone(), found.clone(), Mode::Private);
            created.files.insert(path.clone());
            former = Some(path.into());
        }
        let former = found.zip(former).and_then(|(contents, former)| {
            Some(FormerContents {
                path: link.to_path_buf(),
                contents: contents.clone(),
                target: Some(former.file_name()?.to_str()?.to_owned()),
            })
        });
        let change = ReplacedFile::Certificate(self.spec.name());
        commit.change_link(change, link.clone(), now, former);
        match (&self.store.on_disk.current, found) {
            (KubeletLink::File, Some(found)) => commit.link_over(link, name, found),
            _ => commit.link(link, name),
        };
        if let Some((chain, key)) = &self.store.superseded {
            let (_, path) = names.next(now)?;
            commit.file(path.clone(), pem(chain, key), Mode::Private);
            created.files.insert(path);
        }

        let previous = self.store.target();
        let directory = &self.store.dir;
        for old in before
            .files
            .into_iter()
            .filter(|old| is_dated(directory, old))
        {
            if previous.as_deref() == Some(&old) {
                created.files.insert(old);
            } else if let Some(content) = root.read(&old)? {
                commit.remove(old, &content.bytes);
            }
        }
        let json = serde_json::json!(created).to_string().into_bytes();
        commit.file(CreatedFiles::path(), json, Mode::Private);
        Ok(())
    }

    fn add_kubeconfig(self, commit: &mut Commit, now: OffsetDateTime) -> Result<(), Failure> {
        let CertFiles::Kubeconfig {
            path,
            server,
            cluster,
            user,
            ..
        } = &self.spec.output
        else {
            return Ok(());
        };
        let mut document = self
            .document
            .unwrap_or_else(|| Kubeconfig::without_credentials(cluster, user));
        let file = self.store.dir.join(KUBELET_CURRENT_LINK);
        let file = file.to_string_lossy();
        document
            .set_cluster(server, &self.trusted.roots_to_pem())
            .and_then(|()| document.set_client_files(&file, &file))
            .map_err(|error| unrepairable(path, error))?;
        commit.file(
            path.clone(),
            document.to_yaml().as_bytes().to_vec(),
            Mode::Private,
        );
        commit.change(
            ReplacedFile::Certificate(self.spec.name()),
            path.clone(),
            now,
        );
        Ok(())
    }
}

/// Returns whether a listed path is a dated file in the kubelet's directory. The list may come from another system, so
/// no other path in it is removed.
fn is_dated(directory: &Path, path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_dated = |name: &str| {
        let date = name.strip_prefix("kubelet-client-");
        let date = date.and_then(|name| name.strip_suffix(".pem"));
        date.is_some_and(|date| {
            date.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'-')
        })
    };
    path.parent() == Some(directory) && name.is_some_and(is_dated)
}

/// Returns a pair in the kubelet's file format: the leaf, its intermediates, the key.
fn pem(chain: &Chain, key: &PrivateKey) -> Zeroizing<Vec<u8>> {
    let (chain, key) = (chain.to_pem(), key.to_pem());
    let mut pem = Zeroizing::new(Vec::with_capacity(chain.len() + key.len()));
    pem.extend_from_slice(chain.as_bytes());
    pem.extend_from_slice(key.as_bytes());
    pem
}

/// Generates unused file names in a directory.
struct FreeNames<'a> {
    root: &'a NodeRoot,
    dir: &'a Path,
    used: BTreeSet<String>,
}

impl<'a> FreeNames<'a> {
    fn new(root: &'a NodeRoot, dir: &'a Path) -> Self {
        FreeNames {
            root,
            dir,
            used: BTreeSet::new(),
        }
    }

    /// Returns the name for `at` in the kubelet's format, or for the next second whose name is unused.
    fn next(&mut self, at: OffsetDateTime) -> Result<(String, PathBuf), Failure> {
        let mut at = at.to_offset(UtcOffset::UTC);
        loop {
            let date = at
                .format(format_description!(
                    "[year]-[month]-[day]-[hour]-[minute]-[second]"
                ))
                .unwrap_or_else(|_| at.unix_timestamp().to_string());
            let name = format!("kubelet-client-{date}.pem");
            let path = self.dir.join(&name);
            if !self.used.contains(&name) && self.root.metadata(&path)?.is_none() {
                self.used.insert(name.clone());
                return Ok((name, path));
            }
            at += Duration::SECOND;
        }
    }
}

/// Returns the failure for a kubeconfig that cannot be changed without losing data.
pub(super) fn unrepairable(path: &NodePath, error: KubeconfigError) -> Failure {
    Failure::refused(path.to_string())
        .caused_by(error)
        .advise("move it away and run again")
}
