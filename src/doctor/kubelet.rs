//! The kubelet's own identity.

use super::Note;
use super::picture::Picture;
use crate::assess::Found;
use crate::kubeadm;
use crate::names::CertName;
use crate::status::Role;
use crate::store::FileKind;

const USER: &str = "system:node:";

fn kubeconfig(picture: &Picture) -> Option<&Found<super::picture::FoundKubeconfig>> {
    picture.leaf(CertName::KubeletConf)?.kubeconfig.as_ref()
}

pub(super) fn no_identity(picture: &Picture) -> Vec<Note> {
    let is_absent = matches!(kubeconfig(picture), Some(Found::Absent));
    let is_node = picture.status.role != Role::Empty || picture.configuration.node.is_some();
    if !is_absent || picture.kubelet.may_bootstrap || !is_node {
        return Vec::new();
    }
    let path = picture.here("/etc/kubernetes/kubelet.conf".as_ref());
    let evidence = format!("{path} is not there, and no bootstrap-kubelet.conf beside it");
    let joins =
        matches!(&picture.configuration.node, Some(node) if node.role != kubeadm::Role::Init);
    let wanted = match &picture.configuration.plan {
        Some(plan) => plan.cert(CertName::KubeletConf).is_some(),
        None => !joins,
    };
    let fix = "run `nodepki bootstrap`, which issues it, or `kubeadm join` with a token";
    match (picture.kubelet.is_set_up, wanted) {
        (true, _) => vec![Note::error(evidence, fix)],
        (false, true) => vec![Note::warning(evidence, fix)],
        // kubeadm join brings it.
        (false, false) => Vec::new(),
    }
}

pub(super) fn file_missing(picture: &Picture) -> Vec<Note> {
    let Some(Found::Present(found)) = kubeconfig(picture) else {
        return Vec::new();
    };
    let gone = found.files.first().filter(|_| {
        let leaf = picture.leaf(CertName::KubeletConf);
        leaf.is_some_and(|leaf| matches!(leaf.chain, Found::Absent))
    });
    gone.map(|path| {
        let leads = match picture.kubelet.link {
            Some(FileKind::Symlink) if *path == picture.kubelet.link_path => "is a link that leads nowhere",
            _ => "is not there",
        };
        Note::error(
            format!("kubelet.conf names {}, which {leads}", picture.here(path)),
            "let the link lead to the newest kubelet-client-*.pem beside it; without one move kubelet.conf away and join again, or run `nodepki bootstrap`",
        )
    })
    .into_iter()
    .collect()
}

pub(super) fn not_a_link(picture: &Picture) -> Vec<Note> {
    match picture.kubelet.link {
        None | Some(FileKind::Symlink) => Vec::new(),
        Some(_) => vec![Note::error(
            format!(
                "{} is no symbolic link",
                picture.here(&picture.kubelet.link_path)
            ),
            "give the file a dated name (kubelet-client-2026-01-31-12-00-00.pem) and put a link to it in its place",
        )],
    }
}

pub(super) fn embedded(picture: &Picture) -> Vec<Note> {
    match kubeconfig(picture) {
        Some(Found::Present(found)) if found.files.is_empty() => vec![Note::info(
            format!(
                "{} holds certificate and key itself",
                picture.here("/etc/kubernetes/kubelet.conf".as_ref())
            ),
            "where the cluster signs for kubelets, kubeadm init phase kubelet-finalize makes it a reference; where nodepki does, nothing",
        )],
        _ => Vec::new(),
    }
}

pub(super) fn other_node(picture: &Picture) -> Vec<Note> {
    let names = |name: CertName| -> Vec<String> {
        let chain = picture.leaf(name).and_then(|leaf| leaf.chain.present());
        let subjects = chain
            .iter()
            .flat_map(|chain| chain.leaf().subject().values("CN"));
        subjects.map(str::to_owned).collect()
    };
    let found = names(CertName::KubeletConf);
    let Some(found) = found.first() else {
        return Vec::new();
    };
    let fix = "find out which name the Node object has; then correct nodeRegistration.name, or move kubelet.conf away and run `nodepki bootstrap`";
    if let Some(node) = &picture.configuration.node {
        let expected = format!("{USER}{}", node.name.as_str());
        return (*found != expected)
            .then(|| {
                Note::error(
                    format!("the kubelet is {found}, this node is {expected}"),
                    fix,
                )
            })
            .into_iter()
            .collect();
    }
    // kubeadm writes the node's name into it; the subject may be another, as `commonNames` says.
    let etcd = picture.leaf(CertName::EtcdServer);
    let etcd = etcd.and_then(|leaf| leaf.chain.present());
    let Some(names) = etcd.map(|chain| chain.leaf().dns_names()) else {
        return Vec::new();
    };
    let is_node = |name: &str| *found == format!("{USER}{name}");
    if names.iter().any(|name| is_node(name)) {
        return Vec::new();
    }
    vec![Note::warning(
        format!(
            "the kubelet is {found}, while etcd's certificate is for {}",
            names.join(", ")
        ),
        fix,
    )]
}
