//! The files of a node, each read at most once, and each certificate, private key and kubeconfig parsed at most once.
//!
//! `plan`, `bootstrap`, `renew`, `status`, `doctor`, `authority` and the metrics judge the same [`NodeState`], so
//! they agree on what is on the node. A file is read when it is first needed; later judgements see the same content, and
//! a failure to read it is part of the state. Reading needs no configuration: the paths come from a [`Layout`] or from
//! the plan.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::kube::components::Component;
use crate::kube::kubeconfig::KubeconfigError;
use crate::kube::manifest::StaticPod;
use crate::kube::names::{CertName, NodePath};
use crate::kube::paths::{APISERVER_MANIFEST, ETCD_MEMBER, KUBELET_FLAGS, MANIFESTS_DIR, cleaned};
use crate::spec::assess::{Observed, ObservedCert, is_our_form, read_kubeconfig};
use crate::spec::{Layout, kubeconfig_path};
use crate::store::{
    FileContent, FileKind, IssuedRecord, Metadata, NodeRecord, NodeRoot, PathObstacle,
    RequestRecord, Slot, StoreError,
};
use crate::x509::{Chain, PrivateKey};

/// The files of one node at one moment. A clone shares them.
#[derive(Clone)]
pub struct NodeState {
    root: NodeRoot,
    layout: Layout,
    files: Rc<RefCell<HashMap<PathBuf, Rc<NodeFile>>>>,
    records: Rc<Records>,
}

type Tickets = Vec<(Slot, Option<RequestRecord>)>;

/// The records in the state directory, each read when it is first needed.
#[derive(Default)]
struct Records {
    tickets: OnceCell<Result<Tickets, StoreError>>,
    node: OnceCell<Result<Option<NodeRecord>, StoreError>>,
    issued: OnceCell<Result<BTreeMap<CertName, IssuedRecord>, StoreError>>,
}

/// One file, or the place where it would be.
pub struct NodeFile {
    root: NodeRoot,
    path: PathBuf,
    content: OnceCell<Result<Option<FileContent>, StoreError>>,
    entry: OnceCell<Result<Option<Metadata>, StoreError>>,
    chain: OnceCell<Observed<Chain>>,
    key: OnceCell<Observed<PrivateKey>>,
    kubeconfig: OnceCell<Result<ObservedCert, KubeconfigError>>,
}

impl NodeState {
    /// Returns the state of the node at `root` from now on.
    pub fn new(root: &NodeRoot, layout: Layout) -> NodeState {
        NodeState {
            root: root.clone(),
            layout,
            files: Rc::default(),
            records: Rc::default(),
        }
    }

    /// Returns the same files, for a configuration that names these directories, or none. The kubelet's directory is then
    /// the one that kubeadm wrote for the kubelet.
    #[must_use]
    pub fn with_directories(
        &self,
        certificates_dir: Option<PathBuf>,
        kubelet_cert_dir: Option<PathBuf>,
    ) -> NodeState {
        let kubelet_cert_dir = kubelet_cert_dir.or_else(|| self.kubelet_cert_dir());
        self.with_layout(Layout::new(certificates_dir, kubelet_cert_dir))
    }

    /// Returns the same files, with other paths for the certificates.
    #[must_use]
    pub fn with_layout(&self, layout: Layout) -> NodeState {
        NodeState {
            layout,
            ..self.clone()
        }
    }

    /// Returns the state after a commit that wrote these files: they and the records are read again, and no others.
    #[must_use]
    pub fn after_commit(self, written: &[PathBuf]) -> NodeState {
        let files = self.files.borrow();
        let files = files.iter().filter(|(path, _)| !written.contains(path));
        let files = files.map(|(path, file)| (path.clone(), Rc::clone(file)));
        let files = Rc::new(RefCell::new(files.collect()));
        let records = Rc::default();
        NodeState {
            files,
            records,
            ..self
        }
    }

    /// Forgets the contents. A process that waits should have no private key in memory.
    pub fn forget(&mut self) {
        self.files = Rc::default();
        self.records = Rc::default();
    }

    /// Returns the node's root.
    pub fn root(&self) -> &NodeRoot {
        &self.root
    }

    /// Returns the paths of the node.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the file at a path of the node.
    pub fn file(&self, path: impl AsRef<Path>) -> Rc<NodeFile> {
        let path = path.as_ref();
        let mut files = self.files.borrow_mut();
        let file = files.entry(path.to_owned());
        let file = file.or_insert_with(|| Rc::new(NodeFile::new(&self.root, path)));
        Rc::clone(file)
    }

    /// Returns the pending slots and their tickets, as [`NodeRoot::tickets`].
    ///
    /// # Errors
    /// As of [`NodeRoot::tickets`].
    pub fn tickets(&self) -> Result<&[(Slot, Option<RequestRecord>)], StoreError> {
        let tickets = self.records.tickets.get_or_init(|| self.root.tickets());
        tickets.as_deref().map_err(Clone::clone)
    }

    /// Returns the identity of the last run with requests, as [`NodeRoot::saved_node`].
    pub(crate) fn saved_node(&self) -> Result<Option<&NodeRecord>, StoreError> {
        let node = self.records.node.get_or_init(|| self.root.saved_node());
        node.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    /// Returns the known issue times, as [`NodeRoot::issued`].
    ///
    /// # Errors
    /// As of [`NodeRoot::issued`].
    pub fn issued(&self) -> Result<&BTreeMap<CertName, IssuedRecord>, StoreError> {
        let issued = self.records.issued.get_or_init(|| self.root.issued());
        issued.as_ref().map_err(Clone::clone)
    }

    /// Returns whether something exists at a path of the node, even if it cannot be examined.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.file(path).exists()
    }

    /// Returns a static-pod manifest of kubeadm's by its file name.
    pub fn manifest(&self, name: &str) -> Observed<StaticPod> {
        let path = Path::new(MANIFESTS_DIR).join(name);
        self.file(&path)
            .found(|bytes| StaticPod::parse(path.clone(), bytes))
    }

    /// Returns kubeadm's manifest of a component; absent for the kubelet.
    pub fn component_manifest(&self, component: Component) -> Observed<StaticPod> {
        match component.manifest() {
            Some(path) => self
                .file(path)
                .found(|bytes| StaticPod::parse(path.into(), bytes)),
            None => Observed::Absent,
        }
    }

    /// Returns the value of a flag that kubeadm gave the kubelet.
    pub fn kubelet_flag(&self, name: &str) -> Option<String> {
        let file = self.file(KUBELET_FLAGS);
        let text = String::from_utf8_lossy(file.bytes().ok()??).into_owned();
        let (_, value) = text.rsplit_once(&format!("--{name}="))?;
        let value = value.split([' ', '"', '\n']).next()?;
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// Returns the `--cert-dir` that kubeadm gave the kubelet.
    pub fn kubelet_cert_dir(&self) -> Option<PathBuf> {
        let flag = self.kubelet_flag("cert-dir")?;
        let path = Path::new(&flag);
        path.is_absolute().then(|| cleaned(path))
    }

    /// Returns whether a file of this certificate exists.
    pub fn has_files_of(&self, name: CertName) -> bool {
        let files = self.layout.files(name);
        files.iter().any(|path| self.exists(path))
    }

    /// Returns what shows that the node runs, or ran, an API server; `None` if nothing does.
    pub fn sign_of_service(&self) -> Option<ServiceSign> {
        let [certificate, _] = self.layout.pair(CertName::Apiserver);
        let controller_manager = kubeconfig_path(CertName::ControllerManagerConf);
        if self.file(certificate).has_content() && self.file(controller_manager).has_content() {
            Some(ServiceSign::Certificates)
        } else if self.has_apiserver_manifest() {
            Some(ServiceSign::File(self.root.node_path(APISERVER_MANIFEST)))
        } else {
            self.exists(ETCD_MEMBER)
                .then(|| ServiceSign::File(self.root.node_path(ETCD_MEMBER)))
        }
    }

    /// Returns whether the node runs, or ran, an API server.
    pub fn has_served(&self) -> bool {
        self.sign_of_service().is_some()
    }

    /// Returns whether kubeadm's manifest of kube-apiserver exists.
    pub fn has_apiserver_manifest(&self) -> bool {
        self.exists(APISERVER_MANIFEST)
    }
}

/// What shows that a node runs, or ran, an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceSign {
    /// The certificate of kube-apiserver together with controller-manager.conf: nodepki installs these two together with
    /// the service-account pair.
    Certificates,
    /// The manifest of kube-apiserver, or the data of the etcd member.
    File(NodePath),
}

impl ServiceSign {
    /// Returns what to do on a node whose cluster does not exist any more, as the end of a sentence.
    pub fn way_out(&self) -> String {
        match self {
            ServiceSign::Certificates => String::new(),
            ServiceSign::File(path) => {
                format!("; if its cluster is not needed any more, move {path} away instead")
            }
        }
    }
}

impl NodeFile {
    /// Returns the file at a path inside a root, which is read when its content is asked for.
    pub(crate) fn new(root: &NodeRoot, path: &Path) -> NodeFile {
        NodeFile {
            root: root.clone(),
            path: path.to_owned(),
            content: OnceCell::new(),
            entry: OnceCell::new(),
            chain: OnceCell::new(),
            key: OnceCell::new(),
            kubeconfig: OnceCell::new(),
        }
    }

    /// Returns the path on the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content, links followed; `None` if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file.
    pub fn bytes(&self) -> Result<Option<&[u8]>, StoreError> {
        let content = self.content()?;
        Ok(content.map(|content| content.bytes.as_slice()))
    }

    /// Returns the certificate and its intermediates. A file that cannot be read is unreadable.
    pub fn chain(&self) -> Observed<Chain> {
        let chain = self.chain.get_or_init(|| self.found(Chain::from_pem));
        chain.clone()
    }

    /// Returns the private key. A file that cannot be read is unreadable.
    pub fn key(&self) -> Observed<PrivateKey> {
        let key = self.key.get_or_init(|| self.found(PrivateKey::from_pem));
        key.clone()
    }

    /// Returns false for a private key in another form than kubeadm's.
    pub(crate) fn has_our_key_form(&self) -> bool {
        let pem = self.bytes().ok().flatten();
        pem.is_none_or(is_our_form)
    }

    /// Returns the kubeconfig, without the files that it names.
    pub(super) fn kubeconfig(&self) -> Result<&Result<ObservedCert, KubeconfigError>, StoreError> {
        let bytes = self.bytes()?;
        let read = || read_kubeconfig(&self.path, bytes);
        Ok(self.kubeconfig.get_or_init(read))
    }

    /// As [`NodeFile::bytes`], for a file behind a link of the kubelet: a link that leads to itself is an absent file,
    /// which a new link may replace.
    ///
    /// # Errors
    /// As of [`NodeFile::bytes`].
    pub fn bytes_behind_link(&self) -> Result<Option<&[u8]>, StoreError> {
        match self.bytes() {
            Err(StoreError::Unsafe {
                why: PathObstacle::Loop,
                ..
            }) => Ok(None),
            other => other,
        }
    }

    /// Returns what `parse` makes of a file behind a link of the kubelet, as [`NodeFile::bytes_behind_link`].
    ///
    /// # Errors
    /// As of [`NodeFile::bytes`].
    pub fn behind_link<T>(
        &self,
        parse: impl FnOnce(&NodeFile) -> Observed<T>,
    ) -> Result<Observed<T>, StoreError> {
        let found = self.bytes_behind_link()?.map(|_| parse(self));
        Ok(found.unwrap_or(Observed::Absent))
    }

    /// Returns the file, once it is known that it can be read or does not exist.
    ///
    /// # Errors
    /// As of [`NodeFile::bytes`].
    pub fn readable(&self) -> Result<&NodeFile, StoreError> {
        self.bytes().map(|_| self)
    }

    /// Returns what `parse` makes of the content. A file that cannot be read is unreadable.
    pub fn found<T, E: fmt::Display>(
        &self,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Observed<T> {
        match self.bytes() {
            Ok(bytes) => Observed::read(bytes, parse),
            Err(error) => Observed::Unreadable(error.to_string()),
        }
    }

    /// As [`NodeFile::found`], with a file that cannot be read as an error.
    ///
    /// # Errors
    /// As of [`NodeFile::bytes`].
    pub fn parse<T, E: fmt::Display>(
        &self,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<Observed<T>, StoreError> {
        Ok(Observed::read(self.bytes()?, parse))
    }

    /// Returns the metadata of the file that was read, or else of the directory entry, a link not followed.
    pub fn metadata(&self) -> Option<&Metadata> {
        match self.content.get() {
            Some(Ok(Some(content))) => Some(&content.metadata),
            _ => self.entry().as_ref().ok()?.as_ref(),
        }
    }

    /// Returns whether something exists at the path, even if it cannot be examined.
    pub fn exists(&self) -> bool {
        match self.content.get() {
            Some(Ok(Some(_))) => true,
            _ => !matches!(self.entry(), Ok(None)),
        }
    }

    /// Returns true for a file that is not empty, even if it cannot be read.
    pub fn has_content(&self) -> bool {
        !matches!(
            self.found(|_| Ok::<_, String>(())),
            Observed::Absent | Observed::Empty
        )
    }

    /// Returns true for a symbolic link that does not lead to a file.
    pub fn is_dangling(&self) -> bool {
        let is_link = |entry: &Metadata| entry.kind == FileKind::Symlink;
        matches!(self.bytes(), Ok(None))
            && matches!(self.entry(), Ok(Some(entry)) if is_link(entry))
    }

    /// Returns the mode of a file that every user can read, change or execute.
    pub fn mode_if_exposed(&self) -> Option<u32> {
        let mode = self.content().ok()??.metadata.mode;
        (mode & 0o007 != 0).then_some(mode)
    }

    fn content(&self) -> Result<Option<&FileContent>, StoreError> {
        let read = || self.root.read(&self.path);
        match self.content.get_or_init(read) {
            Ok(content) => Ok(content.as_ref()),
            Err(error) => Err(error.clone()),
        }
    }

    fn entry(&self) -> &Result<Option<Metadata>, StoreError> {
        self.entry.get_or_init(|| self.root.metadata(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_written_files_again_after_commit() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let names = ["written", "other", "created"];
        write("written", "old");
        write("other", "old");
        let before = NodeState::new(&root, Layout::default());
        let contents = |state: &NodeState| {
            names.map(|name| {
                let file = state.file(Path::new("/").join(name));
                let text = file.bytes().unwrap().map(<[u8]>::to_vec);
                text.map(|text| String::from_utf8(text).unwrap())
            })
        };
        assert_eq!(
            contents(&before),
            [Some("old".to_owned()), Some("old".to_owned()), None]
        );

        // The content of `other` shows that the file is not read a second time.
        for name in names {
            write(name, "new");
        }
        let after = before.after_commit(&["/written".into(), "/created".into()]);
        let new = || Some("new".to_owned());
        assert_eq!(contents(&after), [new(), Some("old".to_owned()), new()]);
    }
}
