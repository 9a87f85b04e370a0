//! Checks of the manifests of kube-apiserver and kube-controller-manager against the files that they name.

use std::net::{IpAddr, SocketAddr};

use super::authorities::replaced_authority;
use super::finding::CheckNote;
use super::picture::Picture;
use super::reader::{AuthorityKey, SignerFiles};
use crate::kube::components::ReplacedFile;
use crate::kube::manifest::{RESTART_ANNOTATION, StaticPod};
use crate::kube::names::{Authority, CertName};
use crate::signer::quoted;
use crate::spec::assess::Observed;

/// Flags with each of which kube-controller-manager signs requests of kubelets (`pkg/controller/certificates/signer`).
const SIGNER_FLAGS: [&str; 3] = [
    "cluster-signing-cert-file",
    "cluster-signing-kubelet-client-cert-file",
    "cluster-signing-kubelet-serving-cert-file",
];

/// Returns the `address:port` that kubeadm recorded when it wrote the manifest.
pub(super) fn advertised(picture: &Picture) -> Option<&str> {
    picture.apiserver.as_ref()?.advertised()
}

pub(super) fn unreadable(picture: &Picture) -> Vec<CheckNote> {
    let broken = picture.broken_manifests.iter();
    broken
        .map(|message| {
            CheckNote::error(
                message,
                "write a new manifest with the configuration of the cluster: kubeadm init phase control-plane all --config FILE, or kubeadm init phase etcd local --config FILE",
            )
        })
        .collect()
}

pub(super) fn no_signer(picture: &Picture) -> Vec<CheckNote> {
    let manifests = picture.controller_manager.iter();
    manifests
        .filter(|_| picture.configuration.kubelets.is_none())
        .filter(|manifest| signer_flags(manifest).next().is_none())
        .map(|manifest| {
            CheckNote::info(
                format!(
                    "{} has no --cluster-signing-cert-file",
                    picture.here(&manifest.path)
                ),
                "use another signer for kubelets' CSRs (kubernetes.io/kube-apiserver-client-kubelet), or issue each node's kubelet.conf with `nodepki bootstrap`",
            )
        })
        .collect()
}

pub(super) fn no_token_cleaner(picture: &Picture) -> Vec<CheckNote> {
    let manifests = picture.controller_manager.iter();
    manifests
        .filter(|manifest| !manifest.removes_expired_tokens())
        .map(|manifest| {
            CheckNote::warning(
                format!(
                    "--controllers in {} does not name tokencleaner: expired bootstrap tokens and the Secret kubeadm-certs remain in the cluster",
                    picture.here(&manifest.path)
                ),
                "write --controllers=*,bootstrapsigner,tokencleaner, as kubeadm does, or enable nodepki-certs-expire.timer on one control-plane node",
            )
        })
        .collect()
}

pub(super) fn etcd_revocation(picture: &Picture) -> Vec<CheckNote> {
    let etcd = picture.etcd.as_ref();
    let found = etcd.and_then(|etcd| Some((etcd, etcd.etcd_without_revocation()?)));
    found
        .into_iter()
        .map(|(etcd, version)| {
            CheckNote::error(
                format!(
                    "{} runs etcd {version} with --client-crl-file and --listen-client-http-urls",
                    picture.here(&etcd.path)
                ),
                "use etcd 3.5.32, 3.6.13 or newer; until then remove --listen-client-http-urls",
            )
        })
        .collect()
}

/// Names the static pods that mount files of the PKI. kube-vip needs super-admin.conf on the first node until `kubeadm init`
/// has created the role binding of admin.conf (kube-vip#684), and not afterwards.
pub(super) fn mounts(picture: &Picture) -> Vec<CheckNote> {
    let pods = picture.mounting_pods.iter();
    pods.map(|(pod, files)| {
        let path = picture.here(&pod.path);
        let names: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        let evidence = format!("{path} mounts {}", names.join(", "));
        let super_admin = ReplacedFile::Certificate(CertName::SuperAdminConf);
        if files.contains(&super_admin) && picture.apiserver.is_some() {
            return CheckNote::warning(
                evidence,
                format!("once kubeadm init has ended, name admin.conf in its place: `sed -i 's#/super-admin.conf#/admin.conf#' {}`", quoted(&path)),
            );
        }
        let fix = if pod.is_restarted_for_files() {
            format!("nothing; it is restarted after they are replaced, unless it has the annotation {RESTART_ANNOTATION}: never")
        } else {
            format!("nothing if it reads replaced files itself; otherwise remove its annotation {RESTART_ANNOTATION}")
        };
        CheckNote::info(evidence, fix)
    })
    .collect()
}

/// Returns the flags with which kube-controller-manager signs requests of kubelets.
fn signer_flags(manifest: &StaticPod) -> impl Iterator<Item = (&'static str, &str)> {
    let flags = SIGNER_FLAGS.into_iter();
    flags.filter_map(|flag| Some((flag, manifest.flag(flag).filter(|file| !file.is_empty())?)))
}

pub(super) fn two_signers(picture: &Picture) -> Vec<CheckNote> {
    if picture.configuration.kubelets.is_none() {
        return Vec::new();
    }
    let manifests = picture.controller_manager.iter();
    manifests
        .flat_map(|manifest| signer_flags(manifest).map(move |flag| (manifest, flag)))
        .map(|(manifest, (flag, file))| {
            CheckNote::error(
                format!("{} has --{flag}={file}", picture.here(&manifest.path)),
                "set this flag and its --cluster-signing-…key-file to an empty value on every control-plane node, as kubeadm writes them with an external CA; or remove kubelets.sign",
            )
        })
        .collect()
}

pub(super) fn signer_files(picture: &Picture) -> Vec<CheckNote> {
    const FIX: &str = "with an external CA, both flags must be empty (as kubeadm init phase control-plane controller-manager writes them); otherwise restore the files: kube-controller-manager does not start without them";
    let Some(signer) = &picture.signer else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if matches!(signer.chain, Observed::Absent | Observed::Empty) {
        notes.push(CheckNote::error(
            format!(
                "--cluster-signing-cert-file {} does not exist",
                picture.here(&signer.certificate)
            ),
            FIX,
        ));
    }
    let key = || picture.here(&signer.key_path);
    match (&signer.key, &signer.chain) {
        (AuthorityKey::Absent, _) => notes.push(CheckNote::error(
            format!("--cluster-signing-key-file {} does not exist", key()),
            FIX,
        )),
        (AuthorityKey::Unusable(why), _) => notes.push(CheckNote::error(
            format!("--cluster-signing-key-file {} is unreadable: {why}", key()),
            FIX,
        )),
        (AuthorityKey::Usable(found), Observed::Present(chain))
            if chain.leaf().public_key() != found && !is_replaced(picture, signer) =>
        {
            notes.push(CheckNote::error(
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

/// Returns whether the signing certificate is a CA certificate that was replaced, which has its own finding.
fn is_replaced(picture: &Picture, signer: &SignerFiles) -> bool {
    Authority::ALL.into_iter().any(|name| {
        let found = picture.authority(name);
        found.is_some_and(|found| found.path == signer.certificate)
            && replaced_authority(picture, name).is_some()
    })
}

pub(super) fn signer_bundle(picture: &Picture) -> Vec<CheckNote> {
    let signer = picture.signer.iter();
    signer
        .filter_map(|signer| {
            let others = signer.chain.present()?.intermediates().len();
            (others > 0).then(|| {
                CheckNote::error(
                    format!(
                        "--cluster-signing-cert-file {} contains {} certificates, but kube-controller-manager accepts exactly one",
                        picture.here(&signer.certificate),
                        others + 1
                    ),
                    "set --cluster-signing-cert-file to a file that contains only the CA certificate of its key; keep the bundle for all other uses",
                )
            })
        })
        .collect()
}

pub(super) fn address(picture: &Picture) -> Vec<CheckNote> {
    let Some(endpoint) = advertised(picture) else {
        return Vec::new();
    };
    let Ok(endpoint) = endpoint.parse::<SocketAddr>() else {
        return vec![CheckNote::warning(
            format!("kube-apiserver's manifest is annotated with the endpoint {endpoint:?}"),
            "write a new manifest: kubeadm init phase control-plane apiserver --config FILE",
        )];
    };
    let mut notes = Vec::new();
    let address: IpAddr = endpoint.ip();
    if let Some(chain) = picture.chain(CertName::Apiserver)
        && !chain.leaf().ip_addresses().contains(&address)
    {
        let names: Vec<String> = chain
            .leaf()
            .ip_addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        notes.push(CheckNote::error(
            format!(
                "kube-apiserver advertises {address}, but its certificate is for {}",
                if names.is_empty() { "no address".to_owned() } else { names.join(", ") }
            ),
            "set localAPIEndpoint.advertiseAddress to the permanent address of the node and run `nodepki bootstrap`; the etcd members also have recorded addresses",
        ));
    }
    if let Some(node) = &picture.configuration.node
        && let Some(configured) = node.advertise_address
        && (configured, node.bind_port) != (address, endpoint.port())
    {
        notes.push(CheckNote::warning(
            format!(
                "kube-apiserver advertises {endpoint}, but the configuration has {}",
                SocketAddr::new(configured, node.bind_port)
            ),
            "correct localAPIEndpoint in the configuration, or write a new manifest: kubeadm init phase control-plane apiserver --config FILE",
        ));
    }
    notes
}
