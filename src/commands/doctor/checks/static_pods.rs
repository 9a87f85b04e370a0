//! What the manifests of kube-apiserver and kube-controller-manager say, against the files.

use std::net::{IpAddr, SocketAddr};

use super::Note;
use super::authorities::replaced_authority;
use super::picture::{AuthorityKey, Picture, SignerFiles};
use crate::kube::names::{Authority, CertName};
use crate::spec::assess::Found;

/// With these, kube-controller-manager signs for kubelets though its general signer is off.
const KUBELET_SIGNER: &str = "cluster-signing-kubelet-client-cert-file";

/// `address:port` as kubeadm recorded it when it made the manifest.
pub(super) fn advertised(picture: &Picture) -> Option<&str> {
    picture.apiserver.as_ref()?.advertised()
}

pub(super) fn unreadable(picture: &Picture) -> Vec<Note> {
    let broken = picture.broken_manifests.iter();
    broken
        .map(|words| {
            Note::error(
                words,
                "write the manifest anew: kubeadm init phase control-plane all, or kubeadm init phase etcd local",
            )
        })
        .collect()
}

pub(super) fn no_signer(picture: &Picture) -> Vec<Note> {
    let manifests = picture.controller_manager.iter();
    manifests
        .filter(|manifest| {
            let unset = |flag| manifest.flag(flag).is_none_or(str::is_empty);
            unset("cluster-signing-cert-file") && unset(KUBELET_SIGNER)
        })
        .map(|manifest| {
            Note::info(
                format!(
                    "{} has no --cluster-signing-cert-file",
                    picture.here(&manifest.path)
                ),
                "have kubelets' requests (kubernetes.io/kube-apiserver-client-kubelet) signed by somebody, or give each node its kubelet.conf with `nodepki bootstrap`",
            )
        })
        .collect()
}

pub(super) fn signer_files(picture: &Picture) -> Vec<Note> {
    const FIX: &str = "with an external CA both flags belong empty (kubeadm init phase control-plane controller-manager writes them so); else put the files back: kube-controller-manager does not start without them";
    let Some(signer) = &picture.signer else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if matches!(signer.chain, Found::Absent | Found::Empty) {
        notes.push(Note::error(
            format!(
                "--cluster-signing-cert-file {} is not there",
                picture.here(&signer.certificate)
            ),
            FIX,
        ));
    }
    let key = || picture.here(&signer.key_path);
    match (&signer.key, &signer.chain) {
        (AuthorityKey::Absent, _) => notes.push(Note::error(
            format!("--cluster-signing-key-file {} is not there", key()),
            FIX,
        )),
        (AuthorityKey::Unusable(why), _) => notes.push(Note::error(
            format!("--cluster-signing-key-file {} is unreadable: {why}", key()),
            FIX,
        )),
        (AuthorityKey::Usable(found), Found::Present(chain))
            if chain.leaf().public_key() != found && !is_replaced(picture, signer) =>
        {
            notes.push(Note::error(
                format!(
                    "--cluster-signing-key-file {} does not belong to {}",
                    key(),
                    chain.leaf().subject()
                ),
                FIX,
            ));
        }
        _ => {}
    }
    notes
}

/// It signs with a CA certificate that was replaced, which is a finding itself.
fn is_replaced(picture: &Picture, signer: &SignerFiles) -> bool {
    Authority::ALL.into_iter().any(|name| {
        let found = picture.authority(name);
        found.is_some_and(|found| found.path == signer.certificate)
            && replaced_authority(picture, name).is_some()
    })
}

pub(super) fn signer_bundle(picture: &Picture) -> Vec<Note> {
    let signer = picture.signer.iter();
    signer
        .filter_map(|signer| {
            let others = signer.chain.present()?.intermediates().len();
            (others > 0).then(|| {
                Note::error(
                    format!(
                        "--cluster-signing-cert-file {} holds {} certificates, and kube-controller-manager wants exactly one",
                        picture.here(&signer.certificate),
                        others + 1
                    ),
                    "let --cluster-signing-cert-file name a file with the CA certificate of its key alone; the bundle stays where it is for everybody else",
                )
            })
        })
        .collect()
}

pub(super) fn address(picture: &Picture) -> Vec<Note> {
    let Some(endpoint) = advertised(picture) else {
        return Vec::new();
    };
    let Ok(endpoint) = endpoint.parse::<SocketAddr>() else {
        return vec![Note::warning(
            format!("kube-apiserver's manifest is annotated with the endpoint {endpoint:?}"),
            "write the manifest anew: kubeadm init phase control-plane apiserver",
        )];
    };
    let mut notes = Vec::new();
    let address: IpAddr = endpoint.ip();
    let chain = picture
        .leaf(CertName::Apiserver)
        .and_then(|leaf| leaf.chain.present());
    if let Some(chain) = chain
        && !chain.leaf().ip_addresses().contains(&address)
    {
        let names: Vec<String> = chain
            .leaf()
            .ip_addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        notes.push(Note::error(
            format!(
                "kube-apiserver advertises {address}, its certificate is for {}",
                if names.is_empty() { "no address".to_owned() } else { names.join(", ") }
            ),
            "set localAPIEndpoint.advertiseAddress to the address that the node keeps and run `nodepki bootstrap`; etcd's members have their addresses besides",
        ));
    }
    if let Some(node) = &picture.configuration.node
        && let Some(configured) = node.advertise_address
        && (configured, node.bind_port) != (address, endpoint.port())
    {
        notes.push(Note::warning(
            format!(
                "kube-apiserver advertises {endpoint}, the configuration says {}",
                SocketAddr::new(configured, node.bind_port)
            ),
            "correct localAPIEndpoint in the configuration, or write the manifest anew: kubeadm init phase control-plane apiserver",
        ));
    }
    notes
}
