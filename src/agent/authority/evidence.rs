//! Collects the evidence on an authority from the files of the node; reads only.

use std::path::{Path, PathBuf};

use super::judge::{Evidence, RolledBack, SignedLeaf, SigningFlag, TrustingFile};
use crate::agent::{ExitCode, Failure, RunSetup, Survey};
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::CONTROLLER_MANAGER_MANIFEST;
use crate::node::NodeState;
use crate::spec::assess::{FoundKubeconfig, Observed};
use crate::spec::authority_rotation::RotationSubject;
use crate::spec::{BundleSpec, kubeconfig_path};
use crate::store::{self, NodeRoot, RestartState, Unsettled};
use crate::text::rfc3339;
use crate::x509::{Certificate, Chain, certificates_of};

/// Advice for a certificate that the kubelet requests itself.
const KUBELET_CLIENT_ADVICE: &str = "the kubelet renews it automatically once its signer uses the new CA; to renew it immediately, remove the link kubelet-client-current.pem and give the kubelet a bootstrap kubeconfig, or issue kubelet.conf with nodepki bootstrap";
/// Advice for a certificate that neither nodepki nor the kubelet requests.
const FOREIGN_CERTIFICATE_ADVICE: &str = "have its issuer issue it again";

/// Returns the bundle of an authority in the plan.
///
/// # Errors
/// This node has no such authority.
pub fn spec(setup: &RunSetup, authority: Authority) -> Result<&BundleSpec, Failure> {
    setup.plan.bundle(authority).ok_or_else(|| {
        Failure::new(
            ExitCode::Configuration,
            format!(
                "this node has no {authority}: a worker has only ca, an etcd member only etcd-ca, and a control-plane node with an external etcd may have no etcd-ca (run the command on a node that has it)"
            ),
        )
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
        Some(found) if found.in_place => &found.found,
        _ => &Observed::Absent,
    };
    let Some(bundle) = bundle.present() else {
        let trouble = bundle.trouble().unwrap_or_default();
        return Err(Failure::new(
            ExitCode::Refused,
            format!(
                "{} {trouble}: a CA change requires the CA certificate in place; install it and run again",
                shown(&spec.path)
            ),
        ));
    };
    let bundle = bundle.certificates().to_vec();
    let mut trusting = read_copies(state, spec)?;
    trusting.extend(read_client_trust(state, authority, &spec.path)?);
    let mut signing = Vec::new();
    if authority == Authority::Ca {
        for (_, path) in kubeconfigs() {
            trusting.extend(read_trusting(state, &path, &spec.path, &bundle)?);
        }
        signing = read_signing(state, &spec.path)?;
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
            chain: chain(&cert.found.chain),
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

fn chain(found: &Observed<Chain>) -> Result<Chain, String> {
    match found {
        Observed::Present(chain) => Ok(chain.clone()),
        other => Err(other.trouble().unwrap_or_default()),
    }
}

fn read_trusting(
    state: &NodeState,
    path: &Path,
    bundle_path: &Path,
    bundle: &[Certificate],
) -> Result<Option<TrustingFile>, store::StoreError> {
    let shown = |path: &Path| state.root().on_this_machine(path).display().to_string();
    let kubeconfig = match state.kubeconfig(path)? {
        FoundKubeconfig::Embedded(found) => match found.kubeconfig {
            Some(kubeconfig) => Ok(kubeconfig),
            // Absent or empty.
            None => return Ok(None),
        },
        FoundKubeconfig::ByFile { kubeconfig, .. } => Ok(kubeconfig),
        FoundKubeconfig::Unusable(error) => Err(error),
    };
    let mut elsewhere = None;
    let certificates = match &kubeconfig {
        Err(error) => Err(format!("{error}; repair it, or move it away")),
        Ok(kubeconfig) => match (&kubeconfig.authority, &kubeconfig.authority_file) {
            (Some(data), _) => certificates(data),
            (None, Some(file)) if file == bundle_path => Ok(bundle.to_vec()),
            (None, Some(file)) => {
                elsewhere = Some(shown(file));
                match state.file(file).bytes()? {
                    Some(bytes) => certificates(bytes),
                    None => Err(format!("it takes its CA from {}, which is absent", shown(file))),
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

/// Returns the file with which kube-apiserver verifies clients of this CA, if it is not the bundle.
fn read_client_trust(
    state: &NodeState,
    authority: Authority,
    bundle: &Path,
) -> Result<Option<TrustingFile>, store::StoreError> {
    let Some(flag) = authority.client_ca_flag() else {
        return Ok(None);
    };
    let manifest = state.component_manifest(Component::KubeApiserver);
    let pod = manifest.present();
    let file = pod.and_then(|pod| Some(pod.on_node(Path::new(pod.flag(flag)?))));
    let Some(file) = file.filter(|file| file != bundle) else {
        return Ok(None);
    };
    let content = state.file(&file);
    Ok(Some(TrustingFile {
        file: format!("kube-apiserver (--{flag})"),
        certificates: match content.bytes()? {
            Some(bytes) => certificates(bytes),
            None => Err(format!("{} is absent", file.display())),
        },
        elsewhere: Some(state.root().on_this_machine(file).display().to_string()),
    }))
}

/// Returns the CA certificates in the data of a kubeconfig.
pub fn certificates(data: &[u8]) -> Result<Vec<Certificate>, String> {
    certificates_of(data).map_err(|error| format!("its CA data is unreadable: {error}"))
}

fn read_signing(state: &NodeState, bundle: &Path) -> Result<Vec<SigningFlag>, store::StoreError> {
    let root = state.root();
    let file = state.file(CONTROLLER_MANAGER_MANIFEST);
    let Some(manifest) = file.bytes()? else {
        return Ok(Vec::new());
    };
    let text = String::from_utf8_lossy(manifest);
    let flags = text.lines().filter_map(|line| {
        let argument = line.trim().strip_prefix("- ")?.trim_matches(['"', '\'']);
        let (flag, file) = argument.strip_prefix("--")?.split_once('=')?;
        let signs = flag.starts_with("cluster-signing-") && flag.ends_with("cert-file");
        (signs && !file.is_empty()).then_some((flag, file))
    });
    let mut signing = Vec::new();
    for (flag, file) in flags {
        let content = state.file(file);
        let certificates = content.bytes()?.map(certificates_of);
        signing.push(SigningFlag {
            flag: flag.to_owned(),
            file: root.node_path(file),
            is_bundle: Path::new(file) == bundle,
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
    if survey.cert(CertName::KubeletConf).is_none()
        && let FoundKubeconfig::ByFile { certificate, .. } =
            state.kubeconfig(kubeconfig_path(CertName::KubeletConf))?
    {
        leaves.push(SignedLeaf {
            name: CertName::KubeletConf.to_string(),
            file: shown(certificate.path()),
            chain: chain(&certificate.readable()?.chain()),
            foreign: Some(KUBELET_CLIENT_ADVICE),
        });
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
                chain: Ok(chain),
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
    use crate::spec::Layout;

    #[test]
    fn reads_other_file_with_which_clients_are_verified() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let (old, new) = (
            certificate(&authority("old")),
            certificate(&authority("new")),
        );
        let manifest = root.on_this_machine("/etc/kubernetes/manifests/kube-apiserver.yaml");
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        let command = [
            "--client-ca-file=/clients.crt",
            "--requestheader-client-ca-file=/own.crt",
        ];
        let pod = serde_json::json!({"spec": {"containers": [{"command": command}]}});
        std::fs::write(&manifest, pod.to_string()).unwrap();
        let clients = root.on_this_machine("/clients.crt");
        std::fs::write(&clients, old.to_pem()).unwrap();
        let state = NodeState::new(&root, Layout::default());
        let read = |of| read_client_trust(&state, of, Path::new("/own.crt")).unwrap();
        assert!(read(Authority::FrontProxyCa).is_none());
        assert!(read(Authority::EtcdCa).is_none());
        let found = read(Authority::Ca).unwrap();
        let file = clients.display();
        assert_eq!(
            found.lacks([&old, &new], Authority::Ca),
            Some(format!(
                "kube-apiserver (--client-ca-file) reads its CA from {file}, which lacks {} (add it there)",
                named(&new)
            ))
        );
        assert_eq!(
            found.retains(&old),
            Some(format!(
                "kube-apiserver (--client-ca-file) reads its CA from {file}, which contains {} (remove it there)",
                named(&old)
            ))
        );
    }
}
