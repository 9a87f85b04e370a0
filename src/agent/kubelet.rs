//! The kubelet's client certificate in the kubelet's own layout: a dated file, the link to it, kubelet.conf by name.
//!
//! The file that the link led to before stays beside the new one, so that there is a way back; older ones go when
//! nodepki made them, which a list in the state directory says. Those of the kubelet are the kubelet's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::macros::format_description;
use time::{Duration, OffsetDateTime, UtcOffset};
use zeroize::Zeroizing;

use super::Failure;
use super::install::unrepairable;
use crate::kube::components::Change;
use crate::kube::kubeconfig::Kubeconfig;
use crate::spec::assess::{FoundStore, KubeletCurrent as Current};
use crate::spec::{CertSpec, Output};
use crate::store::{Commit, Mode, Root, STATE_DIR};
use crate::x509::{Chain, PrivateKey, TrustBundle};

/// Files that nodepki has made in the kubelet's directory.
const MADE: &str = "kubelet-client.json";

#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Made {
    files: BTreeSet<PathBuf>,
}

impl Made {
    fn path() -> PathBuf {
        Path::new(STATE_DIR).join(MADE)
    }

    /// Without the list nothing is removed.
    fn read(root: &Root) -> Made {
        let content = root.read(Made::path()).ok().flatten();
        content
            .and_then(|content| serde_json::from_slice(&content.bytes).ok())
            .unwrap_or_default()
    }
}

/// What is to be put in place.
pub(super) struct Identity<'a> {
    pub(super) spec: &'a CertSpec,
    pub(super) trusted: &'a TrustBundle,
    pub(super) chain: &'a Chain,
    pub(super) key: &'a PrivateKey,
    /// It is new, not the one that was found.
    pub(super) issued: bool,
    pub(super) store: FoundStore,
    pub(super) document: Option<Kubeconfig>,
}

impl Identity<'_> {
    pub(super) fn add_to(
        self,
        commit: &mut Commit,
        root: &Root,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        match (self.issued || !self.store.in_place, self.store.target()) {
            (true, _) => self.add_file(commit, root, now)?,
            // Nothing but its mode can be wrong.
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
        root: &Root,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        let before = Made::read(root);
        let mut made = Made::default();
        let mut free = Free::new(root, &self.store.dir);
        let (name, path) = free.name(now)?;
        commit.file(path.clone(), pem(self.chain, self.key), Mode::Private);
        made.files.insert(path);

        let link = self.store.link();
        commit.change(Change::Certificate(self.spec.name), link.clone(), now);
        match (&self.store.on_disk.current, &self.store.on_disk.pem) {
            (Current::File, Some(found)) => {
                let (_, path) = free.name(now)?;
                commit.file(path.clone(), found.clone(), Mode::Private);
                made.files.insert(path);
                commit.link_over(link, name, found);
            }
            _ => {
                commit.link(link, name);
            }
        }
        if let Some((chain, key)) = &self.store.superseded {
            let (_, path) = free.name(now)?;
            commit.file(path.clone(), pem(chain, key), Mode::Private);
            made.files.insert(path);
        }

        let previous = self.store.target();
        let directory = &self.store.dir;
        for old in before
            .files
            .into_iter()
            .filter(|old| is_dated(directory, old))
        {
            if previous.as_deref() == Some(&old) {
                made.files.insert(old);
            } else if let Some(content) = root.read(&old)? {
                commit.remove(old, &content.bytes);
            }
        }
        let json = serde_json::json!(made).to_string().into_bytes();
        commit.file(Made::path(), json, Mode::Private);
        Ok(())
    }

    fn add_kubeconfig(self, commit: &mut Commit, now: OffsetDateTime) -> Result<(), Failure> {
        let Output::Kubeconfig {
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
        let file = self.store.dir.join(crate::spec::KUBELET_CURRENT);
        document
            .set_cluster(server, &self.trusted.roots_to_pem())
            .and_then(|()| document.set_client_file(&file.to_string_lossy()))
            .map_err(|error| unrepairable(path, &error))?;
        commit.file(
            path.clone(),
            document.to_yaml().as_bytes().to_vec(),
            Mode::Private,
        );
        commit.change(Change::Certificate(self.spec.name), path.clone(), now);
        Ok(())
    }
}

/// Whether a path of the list is that of a dated file in the kubelet's directory. The list may be that of another
/// system, and nothing else in it is removed.
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

/// As the kubelet writes it: the leaf, its intermediates, the key.
fn pem(chain: &Chain, key: &PrivateKey) -> Zeroizing<Vec<u8>> {
    let (chain, key) = (chain.to_pem(), key.to_pem());
    let mut pem = Zeroizing::new(Vec::with_capacity(chain.len() + key.len()));
    pem.extend_from_slice(chain.as_bytes());
    pem.extend_from_slice(key.as_bytes());
    pem
}

/// Names that nobody has in a directory.
struct Free<'a> {
    root: &'a Root,
    dir: &'a Path,
    given: BTreeSet<String>,
}

impl<'a> Free<'a> {
    fn new(root: &'a Root, dir: &'a Path) -> Self {
        Free {
            root,
            dir,
            given: BTreeSet::new(),
        }
    }

    /// The name for a time, in the kubelet's format, or for a second near it.
    fn name(&mut self, at: OffsetDateTime) -> Result<(String, PathBuf), Failure> {
        let mut at = at.to_offset(UtcOffset::UTC);
        loop {
            let date = at
                .format(format_description!(
                    "[year]-[month]-[day]-[hour]-[minute]-[second]"
                ))
                .unwrap_or_else(|_| at.unix_timestamp().to_string());
            let name = format!("kubelet-client-{date}.pem");
            let path = self.dir.join(&name);
            if !self.given.contains(&name) && self.root.metadata(&path)?.is_none() {
                self.given.insert(name.clone());
                return Ok((name, path));
            }
            at += Duration::SECOND;
        }
    }
}
