//! Searches the directories of Kubernetes and of nodepki for files that should not be there, and for certificates in copies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::reader::{FoundAuthority, Reader, public_half};
use crate::kube::names::Authority;
use crate::kube::paths::{KUBERNETES_DIR, MANIFESTS_DIR};
use crate::spec::assess::Observed;
use crate::store::{ErrorClass, FileKind, STATE_DIR, StoreError};
use crate::x509::{Certificate, PrivateKey, PublicKey};

/// Largest file that is searched for a private key, in bytes. Longer files, such as backups, are not keys.
const MAX_KEY_FILE_BYTES: u64 = 64 * 1024;
/// Largest directory depth that is searched; more than that of `/etc/kubernetes/tmp/kubeadm-backup-…/pki/etcd`.
pub(super) const MAX_SEARCH_DEPTH: usize = 6;
/// Number of directory entries that are examined below the directories of Kubernetes, and again for backups in them.
const MAX_EXAMINED_ENTRIES: usize = 10_000;

/// Unexpected files below `/etc/kubernetes` and the state directory.
#[derive(Default)]
pub(super) struct Trees {
    pub(super) keys: Vec<(PathBuf, PublicKey)>,
    pub(super) unfinished: Vec<PathBuf>,
    pub(super) requests: Vec<PathBuf>,
    pub(super) denied: Vec<PathBuf>,
    /// Number of entries that were examined.
    examined: usize,
}

impl Trees {
    /// Returns the limit of examined entries, if the search stopped there.
    pub(super) fn limit(&self) -> Option<usize> {
        (self.examined > MAX_EXAMINED_ENTRIES).then_some(MAX_EXAMINED_ENTRIES)
    }
}

impl Reader<'_> {
    /// Returns the certificates of files that are not in use: neither manifests, nor files of the certificates directory
    /// itself.
    pub(super) fn copies(&self, path: &Path, depth: usize) -> Vec<(PathBuf, Certificate)> {
        self.copies_below(path, depth, &mut 0)
    }

    fn copies_below(
        &self,
        path: &Path,
        depth: usize,
        examined: &mut usize,
    ) -> Vec<(PathBuf, Certificate)> {
        let etcd = self.dir().join("etcd");
        let in_use = [Path::new(MANIFESTS_DIR), self.dir(), &etcd].contains(&path);
        let layout = self.state.layout();
        let in_place: Vec<PathBuf> = layout
            .certificates()
            .flat_map(|name| self.state.layout().files(name))
            .collect();
        let names = self
            .state
            .root()
            .list(path)
            .ok()
            .flatten()
            .unwrap_or_default();
        let mut copies = Vec::new();
        for path in names.into_iter().map(|name| path.join(name)) {
            *examined += 1;
            if *examined > MAX_EXAMINED_ENTRIES {
                break;
            }
            let Ok(Some(found)) = self.state.root().metadata(&path) else {
                continue;
            };
            match found.kind {
                FileKind::Directory if depth > 0 => {
                    copies.extend(self.copies_below(&path, depth - 1, examined));
                }
                FileKind::File
                    if !in_use && found.size <= MAX_KEY_FILE_BYTES && !in_place.contains(&path) =>
                {
                    let chain = self.chain(&path);
                    let held = match chain {
                        Observed::Present(_) => chain,
                        _ => self.state.cert_in(&path).found.chain,
                    };
                    let leaf = held.present().map(|chain| chain.leaf().clone());
                    copies.extend(leaf.map(|leaf| (path, leaf)));
                }
                _ => {}
            }
        }
        copies
    }

    /// Returns the public halves of all keys of a file that can be read.
    fn public_halves(&self, path: &Path, pem: &[u8]) -> Vec<PublicKey> {
        let first = public_half(&self.state.file(path)).present().cloned();
        if first.is_some() && key_markers(pem) <= 2 {
            return first.into_iter().collect();
        }
        match PrivateKey::all_from_pem(pem) {
            Ok(keys) => keys.iter().map(|key| key.public_key().clone()).collect(),
            Err(_) => first.into_iter().collect(),
        }
    }

    pub(super) fn trees(&self, authorities: &BTreeMap<Authority, FoundAuthority>) -> Trees {
        let places: Vec<&Path> = authorities
            .values()
            .map(|authority| authority.key_path.as_path())
            .collect();
        let mut trees = Trees::default();
        let mut roots = vec![PathBuf::from(KUBERNETES_DIR), PathBuf::from(STATE_DIR)];
        if !self.dir().starts_with(KUBERNETES_DIR) {
            roots.push(self.dir().to_owned());
        }
        for path in roots {
            self.search_below(&path, MAX_SEARCH_DEPTH, &places, &mut trees);
        }
        trees
    }

    fn search_below(&self, path: &Path, depth: usize, places: &[&Path], trees: &mut Trees) {
        let denied = |error: &StoreError| error.class() == ErrorClass::Denied;
        let dir = match self.state.root().dir(path) {
            Ok(Some(dir)) => dir,
            Ok(None) => return,
            Err(error) => {
                if denied(&error) {
                    trees.denied.push(path.to_owned());
                }
                return;
            }
        };
        let unfinished = dir.temporary_files().unwrap_or_default();
        trees
            .unfinished
            .extend(unfinished.into_iter().map(|name| path.join(name)));
        for name in dir.list().unwrap_or_default() {
            trees.examined += 1;
            if trees.examined > MAX_EXAMINED_ENTRIES {
                return;
            }
            let path = path.join(&name);
            let Ok(Some(found)) = dir.metadata(&name) else {
                continue;
            };
            match found.kind {
                FileKind::Directory if depth > 0 => {
                    self.search_below(&path, depth - 1, places, trees);
                }
                // The requests below the state directory are nodepki's own, which `pending-request` reports.
                FileKind::File if is_request(&path) && path.starts_with(STATE_DIR) => {}
                FileKind::File if is_request(&path) => trees.requests.push(path),
                FileKind::File
                    if found.size <= MAX_KEY_FILE_BYTES && !places.contains(&path.as_path()) =>
                {
                    match dir.read(&name, MAX_KEY_FILE_BYTES) {
                        Ok(Some(content)) => {
                            let keys = is_key(&content.bytes)
                                .then(|| self.public_halves(&path, &content.bytes));
                            let keys = keys.into_iter().flatten();
                            trees.keys.extend(keys.map(|key| (path.clone(), key)));
                        }
                        Err(error) if denied(&error) => trees.denied.push(path),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_request(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "csr")
}

fn is_key(bytes: &[u8]) -> bool {
    key_markers(bytes) > 0
}

/// Returns the number of lines that begin or end a private key.
fn key_markers(bytes: &[u8]) -> usize {
    const KEY_MARKER: &[u8] = b"PRIVATE KEY-----";
    let windows = bytes.windows(KEY_MARKER.len());
    windows.filter(|window| *window == KEY_MARKER).count()
}
