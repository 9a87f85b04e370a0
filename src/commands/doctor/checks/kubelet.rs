//! Checks of the kubelet's identity.

use std::path::Path;

use serde_json::Value;

use super::finding::CheckNote;
use super::picture::Picture;
use crate::agent::load::NameSource;
use crate::kube::kubeadm;
use crate::kube::names::CertName;
use crate::kube::names::NODE_USER_PREFIX;
use crate::kube::paths::{KUBELET_CONF, KUBELET_CONFIGURATION};
use crate::node::status::NodeRole;
use crate::spec::CertFiles;
use crate::spec::assess::Observed;
use crate::store::FileKind;

pub(super) fn no_identity(picture: &Picture) -> Vec<CheckNote> {
    let is_absent = picture.leaf(CertName::KubeletConf).is_some_and(|leaf| {
        leaf.found.kubeconfig.is_none() && matches!(leaf.found.chain, Observed::Absent)
    });
    let is_node = picture.status.role != NodeRole::Empty || picture.configuration.node.is_some();
    // The kubelet of an etcd member has no API server.
    let is_standalone = match (&picture.configuration.node, picture.status.role) {
        (Some(node), NodeRole::Empty) => node.role == kubeadm::KubeadmRole::Etcd,
        (_, role) => role == NodeRole::Etcd,
    };
    if !is_absent || picture.kubelet.may_bootstrap || !is_node || is_standalone {
        return Vec::new();
    }
    let path = picture.here(KUBELET_CONF.as_ref());
    let evidence = format!("{path} and bootstrap-kubelet.conf are both missing");
    let joins = matches!(&picture.configuration.node, Some(node) if node.role != kubeadm::KubeadmRole::Init);
    let wanted = match &picture.configuration.plan {
        Some(plan) => plan.cert(CertName::KubeletConf).is_some(),
        None => !joins,
    };
    let fix = picture
        .not_issued(CertName::KubeletConf)
        .unwrap_or_else(|| {
            picture.unless_exported(
                "run `nodepki bootstrap`, which issues it, or `kubeadm join` with a token",
            )
        });
    match (picture.kubelet.is_set_up, wanted) {
        (true, _) => vec![CheckNote::error(evidence, fix)],
        (false, true) => vec![CheckNote::warning(evidence, fix)],
        // kubeadm join creates it.
        (false, false) => Vec::new(),
    }
}

pub(super) fn file_missing(picture: &Picture) -> Vec<CheckNote> {
    let found = picture.leaf(CertName::KubeletConf).map(|leaf| &leaf.found);
    let absent = found.filter(|found| matches!(found.chain, Observed::Absent));
    let missing = absent.and_then(|found| found.named_pair());
    missing.map(|[path, _]| {
        let problem = match picture.kubelet.link {
            Some(FileKind::Symlink) if *path == picture.kubelet.link_path => "is a dangling symbolic link",
            _ => "does not exist",
        };
        CheckNote::error(
            format!("kubelet.conf names {}, which {problem}", picture.here(path)),
            "run `nodepki bootstrap`, which issues a new certificate and repairs the link; or point the link to the newest kubelet-client-*.pem in its directory; if neither is possible, move kubelet.conf away and join again",
        )
    })
    .into_iter()
    .collect()
}

pub(super) fn not_a_link(picture: &Picture) -> Vec<CheckNote> {
    match picture.kubelet.link {
        None | Some(FileKind::Symlink) => Vec::new(),
        Some(_) => vec![CheckNote::error(
            format!(
                "{} is not a symbolic link",
                picture.here(&picture.kubelet.link_path)
            ),
            "run `nodepki bootstrap`, or rename the file (kubelet-client-2026-01-31-12-00-00.pem) and create a link to it in its place",
        )],
    }
}

pub(super) fn embedded(picture: &Picture) -> Vec<CheckNote> {
    if !picture.is_embedded(CertName::KubeletConf) {
        return Vec::new();
    }
    let path = picture.here(KUBELET_CONF.as_ref());
    let evidence = format!(
        "{path} contains a certificate, while the kubelet uses {}",
        picture.here(&picture.kubelet.link_path)
    );
    const FIX: &str = "run `nodepki bootstrap`, or kubeadm init phase kubelet-finalize: both replace the certificate with a file reference";
    vec![match picture.kubelet.link {
        // A kubelet with rotation creates the link on its first start, and uses it from then on.
        Some(FileKind::Symlink) => CheckNote::info(evidence, FIX),
        Some(_) => CheckNote::warning(evidence, FIX),
        None => CheckNote::info(
            format!("{path} contains certificate and key"),
            "nothing; a kubelet with rotation copies them to its own file, and immediately requests a new certificate from the cluster unless kubelet.clientCertificate is file",
        ),
    }]
}

/// Checks whether the kubelet serves the issued certificate: it uses the pair in its directory if its configuration names
/// no other pair and does not enable serverTLSBootstrap (`InitializeTLS`).
pub(super) fn serving_unused(picture: &Picture) -> Vec<CheckNote> {
    let wanted = picture.configuration.plan.as_ref();
    let Some(CertFiles::Pair {
        certificate, key, ..
    }) = wanted
        .and_then(|plan| plan.cert(CertName::KubeletServing))
        .map(|spec| &spec.output)
    else {
        return Vec::new();
    };
    let Some(configuration) = &picture.kubelet.configuration else {
        return Vec::new();
    };
    let differs = |field: &str, path: &Path| {
        let named = configuration.get(field).and_then(Value::as_str);
        let named = named.filter(|named| !named.is_empty() && *named != path.to_string_lossy());
        named.map(|named| format!("{field} is {named}"))
    };
    let bootstraps = configuration.get("serverTLSBootstrap") == Some(&Value::Bool(true));
    let evidence: Vec<String> = bootstraps
        .then(|| "serverTLSBootstrap is true".to_owned())
        .into_iter()
        .chain(differs("tlsCertFile", certificate))
        .chain(differs("tlsPrivateKeyFile", key))
        .collect();
    if evidence.is_empty() {
        return Vec::new();
    }
    vec![CheckNote::warning(
        format!(
            "in {}: {}",
            picture.here(KUBELET_CONFIGURATION.as_ref()),
            evidence.join(", ")
        ),
        format!(
            "set `serverTLSBootstrap: false`, `tlsCertFile: {}` and `tlsPrivateKeyFile: {}` in the KubeletConfiguration, or in kubeletconfiguration0+merge.yaml in kubeadm's patches directory, and restart the kubelet; or set kubelet.serving to false",
            // Configuration files contain paths of the node, not of this machine.
            Path::display(certificate),
            Path::display(key)
        ),
    )]
}

pub(super) fn other_node(picture: &Picture) -> Vec<CheckNote> {
    let names = |name: CertName| -> Vec<String> {
        let chain = picture.chain(name);
        let subjects = chain
            .iter()
            .flat_map(|chain| chain.leaf().subject().values("CN"));
        subjects.map(str::to_owned).collect()
    };
    let found = names(CertName::KubeletConf);
    let Some(found) = found.first() else {
        return Vec::new();
    };
    if let Some(most) = picture.disputed_name() {
        let files = picture.names.iter();
        let files: Vec<String> = files
            .map(|NameSource { name, file, .. }| format!("{file} says {name}"))
            .collect();
        return vec![CheckNote::error(
            format!(
                "the sources of this node's name disagree: {}",
                files.join(", ")
            ),
            match most {
                Some(name) => format!(
                    "most files say {name}: run `nodepki bootstrap --node-name {name}`, which replaces the certificates with other names; if the Node object has another name, correct the files with the wrong one first"
                ),
                None => "find out which name the Node object has (kubectl get nodes); then run `nodepki bootstrap --node-name NAME --accept-name-change`, which replaces the certificates with other names, or correct the file with the wrong name".to_owned(),
            },
        )];
    }
    let fix = "find out which name the Node object has; then correct nodeRegistration.name, or move kubelet.conf away and run `nodepki bootstrap`";
    if let Some(node) = &picture.configuration.node {
        let expected = format!("{NODE_USER_PREFIX}{}", node.name.as_str());
        return (*found != expected)
            .then(|| {
                CheckNote::error(
                    format!("the kubelet is {found}, but this node is {expected}"),
                    fix,
                )
            })
            .into_iter()
            .collect();
    }
    // kubeadm adds the node's name as a DNS name; the subject may differ because of `commonNames`.
    let etcd = picture.chain(CertName::EtcdServer);
    let Some(names) = etcd.map(|chain| chain.leaf().dns_names()) else {
        return Vec::new();
    };
    let is_node = |name: &str| *found == format!("{NODE_USER_PREFIX}{name}");
    if names.iter().any(|name| is_node(name)) {
        return Vec::new();
    }
    vec![CheckNote::warning(
        format!(
            "the kubelet is {found}, but etcd's certificate is for {}",
            names.join(", ")
        ),
        fix,
    )]
}
