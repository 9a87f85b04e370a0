//! Collects the evidence on an authority from the files of the node; reads only.

use std::path::{Path, PathBuf};

use super::judge::{Evidence, RolledBack, SignedLeaf, SigningFlag, TrustingFile};
use crate::agent::{Failure, RunSetup, Survey};
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::names::{Authority, CLIENT_CA_FILE, CertName, FRONT_PROXY_CA_FILE};
use crate::kube::paths::CONTROLLER_MANAGER_MANIFEST;
use crate::node::{NodeCert, NodeState};
use crate::spec::assess::Observed;
use crate::spec::authority_rotation::RotationSubject;
use crate::spec::{BundleSpec, kubeconfig_path};
use crate::store::{self, NodeRoot, RestartState, Unsettled};
use crate::text::rfc3339;
use crate::x509::{Certificate, certificates_of};

/// Advice for a certificate that the kubelet requests itself.
const KUBELET_CLIENT_ADVICE: &str = "the kubelet renews it automatically once its signer uses the new CA; to renew it immediately, remove the link kubelet-client-current.pem and give the kubelet a bootstrap kubeconfig, or issue kubelet.conf with nodepki bootstrap";
/// Advice for a certificate that neither nodepki nor the kubelet requests.
const FOREIGN_CERTIFICATE_ADVICE: &str = "have its issuer issue it again";

/// Flags of kube-controller-manager that name a signing certificate
/// (`cmd/kube-controller-manager/app/options/csrsigningcontroller.go`).
const SIGNING_FLAGS: [&str; 5] = [
    "cluster-signing-cert-file",
    "cluster-signing-kubelet-serving-cert-file",
    "cluster-signing-kubelet-client-cert-file",
    "cluster-signing-kube-apiserver-client-cert-file",
    "cluster-signing-legacy-unknown-cert-file",
];

/// Returns the bundle of an authority in the plan.
///
/// # Errors
/// This node has no such authority.
pub fn spec(setup: &RunSetup, authority: Authority) -> Result<&BundleSpec, Failure> {
    setup.plan.bundle(authority).ok_or_else(|| {
        Failure::misconfigured(format!(
            "this node has no {authority}: a worker has only ca, an etcd member only etcd-ca, and a control-plane node with an external etcd may have no etcd-ca (run the command on a node that has it)"
        ))
    })
}

/// Names and paths of kubeadm's kubeconfigs, whichever tool wrote them.
pub fn kubeconfigs() -> impl Iterator<Item = (CertName, PathBuf)> {
    let names = CertName::ALL.into_iter();
    names
        .filter(|name| name.is_kubeconfig())
        .map(|name| (name, kubeconfig_path(name)))
}

/// Reads the evidence on an authority.
///
/// # Errors
/// A file that cannot be read, and a node without the CA certificate.
pub fn read(
    state: &NodeState,
    setup: &RunSetup,
    survey: &Survey,
    authority: Authority,
) -> Result<Evidence, Failure> {
    let root = state.root();
    let spec = spec(setup, authority)?;
    let shown = |path: &Path| root.on_this_machine(path).display().to_string();
    let bundle = match survey.bundles.iter().find(|one| one.spec.path == spec.path) {
        // A bundle of the settings or of the cluster is not what the components of this node have loaded.
        Some(found) if found.in_place => &found.found,
        _ => &Observed::Absent,
    };
    let Some(bundle) = bundle.present() else {
        let trouble = bundle.trouble().unwrap_or_default();
        return Err(Failure::refused(format!(
            "{} {trouble}: a CA change requires the CA certificate in place; install it and run again",
            shown(&spec.path)
        )));
    };
    let bundle = bundle.certificates().to_vec();
    let mut trusting = read_copies(state, spec)?;
    trusting.extend(read_client_trust(state, spec)?);
    let mut signing = Vec::new();
    if authority == Authority::Ca {
        for (_, path) in kubeconfigs() {
            trusting.extend(read_trusting(state, &path, spec)?);
        }
        signing = read_signing(state, spec)?;
    }
    let planned = survey
        .certs
        .iter()
        .filter(|cert| cert.spec.authority() == authority);
    let mut leaves: Vec<SignedLeaf> = planned
        .map(|cert| SignedLeaf {
            name: cert.spec.name().to_string(),
            file: cert
                .spec
                .output
                .paths()
                .last()
                .map_or_else(String::new, |path| shown(path)),
            chain: cert.found.chain.clone(),
            foreign: None,
        })
        .collect();
    if authority == Authority::Ca {
        leaves.extend(read_kubelet(state, survey, &bundle)?);
    }
    let (restarts, rolled_back) = unsettled(root, authority.into())?;
    Ok(Evidence {
        authority,
        file: shown(&spec.path),
        bundle,
        kubeconfigs: trusting,
        leaves,
        signing,
        change: root.authority_changes()?.remove(&authority),
        restarts,
        rolled_back,
    })
}

/// Returns messages on replaced files that may not be in effect yet, and the components that were rolled back in a step of
/// the change.
pub(super) fn unsettled(
    root: &NodeRoot,
    subject: RotationSubject,
) -> Result<(Vec<String>, Vec<RolledBack>), store::StoreError> {
    let concerns = |change: &ReplacedFile| match (change, subject) {
        (ReplacedFile::Bundle(of), RotationSubject::Authority(authority)) => *of == authority,
        (ReplacedFile::Certificate(name), RotationSubject::Authority(authority)) => {
            name.authority() == authority
        }
        (change, RotationSubject::ServiceAccount) => change.is_service_account(),
        _ => false,
    };
    let is_of_step = |change: &ReplacedFile| match subject {
        RotationSubject::Authority(authority) => *change == ReplacedFile::Bundle(authority),
        RotationSubject::ServiceAccount => change.is_service_account(),
    };
    let how = if root.path() == Path::new("/") {
        "`nodepki renew` performs it"
    } else {
        "no component is restarted below --root; `nodepki renew` on the node performs it"
    };
    let Unsettled {
        restarts, changed, ..
    } = root.unsettled()?;
    let mut words = Vec::new();
    let mut rolled_back = Vec::new();
    for restart in restarts {
        if !restart.causes.iter().any(concerns) {
            continue;
        }
        let component = restart.component;
        let of_step = restart.causes.iter().any(is_of_step);
        match restart.state {
            RestartState::Due => words.push(format!(
                "{component} was not restarted since {}; {how}",
                rfc3339(restart.since)
            )),
            RestartState::RolledBack { why } if of_step => {
                rolled_back.push(RolledBack { component, why });
            }
            RestartState::RolledBack { why } => words.push(format!(
                "{component} did not become ready after its restart, and the old files were restored ({why}); `nodepki renew` reports what to do"
            )),
        }
    }
    let unseen: Vec<&str> = changed
        .iter()
        .filter(|changed| concerns(&changed.change))
        .map(|changed| changed.change.as_str())
        .collect();
    if !unseen.is_empty() {
        words.push(format!(
            "it is not verified yet that the replaced files are in effect ({}); {how}",
            unseen.join(", ")
        ));
    }
    Ok((words, rolled_back))
}

fn read_trusting(
    state: &NodeState,
    path: &Path,
    spec: &BundleSpec,
) -> Result<Option<TrustingFile>, store::StoreError> {
    let shown = |path: &Path| state.root().on_this_machine(path).display().to_string();
    state.file(path).readable()?;
    let NodeCert {
        found,
        authority_file,
        unrepairable,
        ..
    } = state.cert_in(path);
    let mut elsewhere = None;
    let certificates = match (unrepairable, found.kubeconfig) {
        (Some(error), _) => Err(format!("{error}; repair it, or move it away")),
        // Absent or empty.
        (None, None) => return Ok(None),
        (None, Some(kubeconfig)) => match (kubeconfig.authority, authority_file) {
            (Some(data), _) => certificates(&data),
            (None, Some(file)) => {
                let shown = shown(file.path());
                elsewhere = (!is_written(state, spec, file.path())).then(|| shown.clone());
                match file.bytes()? {
                    Some(bytes) => certificates(bytes),
                    None => Err(format!("it takes its CA from {shown}, which is absent")),
                }
            }
            (None, None) => Err(
                "it does not name a CA, so that its clients trust those of the system; add certificate-authority-data"
                    .to_owned(),
            ),
        },
    };
    Ok(Some(TrustingFile {
        file: shown(path),
        certificates,
        elsewhere,
    }))
}

/// Returns whether nodepki writes a file together with the bundle.
fn is_written(state: &NodeState, spec: &BundleSpec, file: &Path) -> bool {
    let copies = spec.copies.iter().map(|copy| &copy.path);
    std::iter::once(&spec.path)
        .chain(copies)
        .any(|own| state.root().is_same_entry(file, own))
}

/// Returns the copies of the bundle for components of registered certificates.
fn read_copies(
    state: &NodeState,
    spec: &BundleSpec,
) -> Result<Vec<TrustingFile>, store::StoreError> {
    let mut copies = Vec::new();
    for copy in &spec.copies {
        copies.push(TrustingFile {
            file: copy.path.to_string(),
            certificates: match state.file(&copy.path).bytes()? {
                Some(bytes) => certificates(bytes),
                None => Err("it is absent; run nodepki bootstrap, which writes it".to_owned()),
            },
            elsewhere: None,
        });
    }
    Ok(copies)
}

/// Returns the files with which static pods verify certificates of this CA, as far as nodepki does not write them.
fn read_client_trust(
    state: &NodeState,
    spec: &BundleSpec,
) -> Result<Vec<TrustingFile>, store::StoreError> {
    let mut trusting = Vec::new();
    for (component, flag) in verifying_flags(spec.authority) {
        let manifest = state.component_manifest(*component);
        let pod = manifest.present();
        let file = pod.and_then(|pod| Some(pod.on_node(Path::new(pod.flag(flag)?))));
        let Some(file) = file.filter(|file| !is_written(state, spec, file)) else {
            continue;
        };
        let content = state.file(&file);
        trusting.push(TrustingFile {
            file: format!("{component} (--{flag})"),
            certificates: match content.bytes()? {
                Some(bytes) => certificates(bytes),
                None => Err(format!("{} is absent", file.display())),
            },
            elsewhere: Some(state.root().on_this_machine(file).display().to_string()),
        });
    }
    Ok(trusting)
}

/// Returns the flags of static pods that name a file with which they verify certificates of an authority.
const fn verifying_flags(authority: Authority) -> &'static [(Component, &'static str)] {
    match authority {
        Authority::Ca => &[(Component::KubeApiserver, CLIENT_CA_FILE)],
        Authority::FrontProxyCa => &[(Component::KubeApiserver, FRONT_PROXY_CA_FILE)],
        Authority::EtcdCa => &[
            (Component::Etcd, "trusted-ca-file"),
            (Component::Etcd, "peer-trusted-ca-file"),
            (Component::KubeApiserver, "etcd-cafile"),
        ],
    }
}

/// Returns the CA certificates in the data of a kubeconfig.
pub fn certificates(data: &[u8]) -> Result<Vec<Certificate>, String> {
    certificates_of(data).map_err(|error| format!("its CA data is unreadable: {error}"))
}

fn read_signing(
    state: &NodeState,
    spec: &BundleSpec,
) -> Result<Vec<SigningFlag>, store::StoreError> {
    let root = state.root();
    state.file(CONTROLLER_MANAGER_MANIFEST).readable()?;
    let manifest = state.component_manifest(Component::KubeControllerManager);
    let Some(pod) = manifest.present() else {
        return Ok(Vec::new());
    };
    let mut signing = Vec::new();
    for flag in SIGNING_FLAGS {
        let Some(value) = pod.flag(flag).filter(|value| !value.is_empty()) else {
            continue;
        };
        let file = pod.on_node(Path::new(value));
        let content = state.file(&file);
        let certificates = content.bytes()?.map(certificates_of);
        signing.push(SigningFlag {
            flag,
            value: value.to_owned(),
            is_bundle: root.is_same_entry(&file, &spec.path),
            file: root.node_path(file),
            manifest: root.node_path(CONTROLLER_MANAGER_MANIFEST),
            // kube-controller-manager cannot sign with an unreadable certificate.
            certificates: certificates.and_then(Result::ok).unwrap_or_default(),
        });
    }
    Ok(signing)
}

/// Returns the kubelet's certificates of this CA that nodepki does not manage.
fn read_kubelet(
    state: &NodeState,
    survey: &Survey,
    bundle: &[Certificate],
) -> Result<Vec<SignedLeaf>, store::StoreError> {
    let shown = |path: &Path| state.root().on_this_machine(path).display().to_string();
    let mut leaves = Vec::new();
    if survey.cert(CertName::KubeletConf).is_none() {
        let cert = state.cert(CertName::KubeletConf);
        cert.certificate.readable()?;
        let named = cert.found.named_pair();
        leaves.extend(named.map(|[certificate, _]| SignedLeaf {
            name: CertName::KubeletConf.to_string(),
            file: shown(certificate),
            chain: cert.found.chain.clone(),
            foreign: Some(KUBELET_CLIENT_ADVICE),
        }));
    }
    let [serving, _] = state.layout().pair(CertName::KubeletServing);
    if survey.cert(CertName::KubeletServing).is_none()
        && let Observed::Present(chain) = state.file(&serving).readable()?.chain()
    {
        // By default the kubelet signs it with an authority of its own.
        let mut issuers = bundle.iter();
        if issuers.any(|issuer| chain.leaf().names_issuer(issuer)) {
            leaves.push(SignedLeaf {
                name: "the kubelet's serving certificate".to_owned(),
                file: shown(&serving),
                chain: Observed::Present(chain),
                foreign: Some(FOREIGN_CERTIFICATE_ADVICE),
            });
        }
    }
    Ok(leaves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::authority::judge::named;
    use crate::agent::authority::judge::tests::{authority, certificate};
    use crate::kube::paths::{APISERVER_MANIFEST, ETCD_MANIFEST};
    use crate::spec::Layout;
    use crate::x509::KeyAlgorithm;

    fn write(root: &NodeRoot, path: &str, text: String) {
        let path = root.on_this_machine(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Returns a static pod that mounts `/data` as `/pki`.
    fn pod(command: &[&str]) -> String {
        let mounts = serde_json::json!([{"name": "pki", "mountPath": "/pki"}]);
        let container = serde_json::json!({"command": command, "volumeMounts": mounts});
        let volume = serde_json::json!({"name": "pki", "hostPath": {"path": "/data"}});
        serde_json::json!({"spec": {"containers": [container], "volumes": [volume]}}).to_string()
    }

    /// Returns the bundle `/own.crt`.
    fn own(authority: Authority) -> BundleSpec {
        BundleSpec {
            authority,
            path: "/own.crt".into(),
            key_path: "/own.key".into(),
            crl_path: "/crl.pem".into(),
            copies: Vec::new(),
            key: KeyAlgorithm::EcdsaP256,
        }
    }

    #[test]
    fn reads_signing_certificates_through_mounts() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let command = [
            "--cluster-signing-cert-file=/pki/own.crt",
            "--cluster-signing-kubelet-client-cert-file=/other.crt",
            "--cluster-signing-kubelet-serving-cert-file=",
        ];
        write(&root, CONTROLLER_MANAGER_MANIFEST, pod(&command));
        let ca = certificate(&authority("ca"));
        write(&root, "/own.crt", ca.to_pem());
        std::os::unix::fs::symlink(".", root.on_this_machine("/data")).unwrap();
        let state = NodeState::new(&root, Layout::default());
        let found = read_signing(&state, &own(Authority::Ca)).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|signing| (&*signing.value, signing.is_bundle, &*signing.certificates))
            .collect();
        assert_eq!(
            found,
            [
                ("/pki/own.crt", true, &[ca][..]),
                ("/other.crt", false, &[])
            ]
        );
    }

    #[test]
    fn reads_other_files_with_which_certificates_are_verified() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let (old, new) = (
            certificate(&authority("old")),
            certificate(&authority("new")),
        );
        let command = [
            "--client-ca-file=/clients.crt",
            "--requestheader-client-ca-file=/own.crt",
            "--etcd-cafile=/pki/own.crt",
        ];
        write(&root, APISERVER_MANIFEST, pod(&command));
        let command = [
            "--trusted-ca-file=/clients.crt",
            "--peer-trusted-ca-file=/data/own.crt",
        ];
        write(&root, ETCD_MANIFEST, pod(&command));
        write(&root, "/clients.crt", old.to_pem());
        // `/own.crt` is a file of a directory that is a link.
        let data = root.on_this_machine("/data");
        std::os::unix::fs::symlink(".", data).unwrap();
        let state = NodeState::new(&root, Layout::default());
        let read = |authority| read_client_trust(&state, &own(authority)).unwrap();
        assert!(read(Authority::FrontProxyCa).is_empty());
        let file = root.on_this_machine("/clients.crt");
        for (authority, name, restart) in [
            (Authority::Ca, "kube-apiserver (--client-ca-file)", ""),
            (
                Authority::EtcdCa,
                "etcd (--trusted-ca-file)",
                " and restart the component",
            ),
        ] {
            let [found] = <[TrustingFile; 1]>::try_from(read(authority)).ok().unwrap();
            let reads = format!("{name} reads its CA from {}, which", file.display());
            assert_eq!(
                found.lacks([&old, &new], authority),
                Some(format!(
                    "{reads} lacks {} (add it there{restart})",
                    named(&new)
                ))
            );
            assert_eq!(
                found.retains(&old, authority),
                Some(format!(
                    "{reads} contains {} (remove it there{restart})",
                    named(&old)
                ))
            );
        }
    }
}
