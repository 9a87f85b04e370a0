//! What lies on the node about an authority, read and never written.

use std::path::{Path, PathBuf};

use super::judge::{Evidence, Leaf, RolledBack, Signing, Trusting};
use crate::agent::{ExitCode, Failure, Setup, Survey};
use crate::kube::components::Change;
use crate::kube::names::{Authority, CertName};
use crate::node::{KubeconfigFile, NodeState};
use crate::spec::assess::Found;
use crate::spec::{BundleSpec, kubeconfig_path};
use crate::store::{self, RestartState, Root, Unsettled};
use crate::x509::{Certificate, Chain, certificates_of, rfc3339};

const CONTROLLER_MANAGER: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
const KUBELETS_OWN: &str = "the kubelet renews it by itself once who signs for kubelets does so with the new CA; to have it at once, remove the link kubelet-client-current.pem and give the kubelet a bootstrap kubeconfig, or issue kubelet.conf with nodepki bootstrap";
const SOMEBODYS: &str = "have who issued it issue it anew";

/// The bundle of an authority in the plan.
///
/// # Errors
/// This node has no such authority.
pub fn spec(setup: &Setup, authority: Authority) -> Result<&BundleSpec, Failure> {
    setup.plan.bundle(authority).ok_or_else(|| {
        Failure::new(
            ExitCode::Configuration,
            format!(
                "this node has no {authority}: it is a worker, or its etcd is external; run the command on a node that has it"
            ),
        )
    })
}

/// The kubeconfigs of a node that are kubeadm's, wherever they come from.
pub fn kubeconfigs() -> impl Iterator<Item = (CertName, PathBuf)> {
    let names = CertName::ALL.into_iter();
    names
        .filter(|name| name.is_kubeconfig())
        .map(|name| (name, kubeconfig_path(name)))
}

/// Reads everything.
///
/// # Errors
/// What the system does not let be read, and a node without the CA certificate.
pub fn read(
    state: &NodeState,
    setup: &Setup,
    survey: &Survey,
    authority: Authority,
) -> Result<Evidence, Failure> {
    let root = state.root();
    let spec = spec(setup, authority)?;
    let shown = |path: &Path| root.on_this_machine(path).display().to_string();
    let bundle = match survey.bundles.iter().find(|one| one.spec.path == spec.path) {
        Some(found) if found.in_place => &found.found,
        _ => &Found::Absent,
    };
    let Some(bundle) = bundle.present() else {
        let trouble = bundle.trouble().unwrap_or_default();
        return Err(Failure::new(
            ExitCode::Refused,
            format!(
                "{} {trouble}: without the CA certificate in place there is nothing to change; put it there and run again",
                shown(&spec.path)
            ),
        ));
    };
    let bundle = bundle.certificates().to_vec();
    let mut trusting = Vec::new();
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
        .filter(|cert| cert.spec.authority == authority);
    let mut leaves: Vec<Leaf> = planned
        .map(|cert| Leaf {
            name: cert.spec.name.to_string(),
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
    let (restarts, rolled_back) = unsettled(root, authority)?;
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

/// What was replaced and is not known to be in effect, in words, and what was rolled back in a step of the change.
fn unsettled(
    root: &Root,
    authority: Authority,
) -> Result<(Vec<String>, Vec<RolledBack>), store::Error> {
    let concerns = |change: &Change| match change {
        Change::Bundle(of) => *of == authority,
        Change::Certificate(name) => name.authority() == authority,
        _ => false,
    };
    let how = match root.path() == Path::new("/") {
        true => "`nodepki renew` carries out what is due",
        false => {
            "nothing is restarted below --root, and `nodepki renew` on the node itself carries out what is due"
        }
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
        let of_step = restart.causes.contains(&Change::Bundle(authority));
        match restart.state {
            RestartState::Due => words.push(format!(
                "{component} was not restarted since {}; {how}",
                rfc3339(restart.since)
            )),
            RestartState::RolledBack { why } if of_step => {
                rolled_back.push(RolledBack { component, why });
            }
            RestartState::RolledBack { why } => words.push(format!(
                "{component} did not come back after its restart, and the old files were put in place again ({why}); `nodepki renew` says what to do"
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
            "nobody has looked yet whether what was replaced is in effect ({}); {how}",
            unseen.join(", ")
        ));
    }
    Ok((words, rolled_back))
}

fn chain(found: &Found<Chain>) -> Result<Chain, String> {
    match found {
        Found::Present(chain) => Ok(chain.clone()),
        other => Err(other.trouble().unwrap_or_default()),
    }
}

fn read_trusting(
    state: &NodeState,
    path: &Path,
    bundle_path: &Path,
    bundle: &[Certificate],
) -> Result<Option<Trusting>, store::Error> {
    let shown = |path: &Path| state.root().on_this_machine(path).display().to_string();
    let kubeconfig = match state.kubeconfig(path)? {
        KubeconfigFile::Embedded(found) => match found.kubeconfig {
            Some(kubeconfig) => Ok(kubeconfig),
            // Absent or empty.
            None => return Ok(None),
        },
        KubeconfigFile::ByFile { kubeconfig, .. } => Ok(kubeconfig),
        KubeconfigFile::Unusable(error) => Err(error),
    };
    let mut elsewhere = None;
    let certificates = match &kubeconfig {
        Err(error) => Err(format!("{error}; mend it, or move it away")),
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
                "it names no CA, so that its reader trusts those of the system; give it certificate-authority-data"
                    .to_owned(),
            ),
        },
    };
    Ok(Some(Trusting {
        file: shown(path),
        certificates,
        elsewhere,
    }))
}

/// The CA certificates in the data of a kubeconfig.
pub fn certificates(data: &[u8]) -> Result<Vec<Certificate>, String> {
    certificates_of(data).map_err(|error| format!("its CA data is unreadable: {error}"))
}

fn read_signing(state: &NodeState, bundle: &Path) -> Result<Vec<Signing>, store::Error> {
    let root = state.root();
    let file = state.file(CONTROLLER_MANAGER);
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
        signing.push(Signing {
            flag: flag.to_owned(),
            file: root.node_path(file),
            is_bundle: Path::new(file) == bundle,
            manifest: root.node_path(CONTROLLER_MANAGER),
            // One that cannot be read signs nothing.
            certificates: certificates.and_then(Result::ok).unwrap_or_default(),
        });
    }
    Ok(signing)
}

/// The certificates of this CA that the kubelet has without nodepki.
fn read_kubelet(
    state: &NodeState,
    survey: &Survey,
    bundle: &[Certificate],
) -> Result<Vec<Leaf>, store::Error> {
    let shown = |path: &Path| state.root().on_this_machine(path).display().to_string();
    let mut leaves = Vec::new();
    if survey.cert(CertName::KubeletConf).is_none()
        && let KubeconfigFile::ByFile { certificate, .. } =
            state.kubeconfig(kubeconfig_path(CertName::KubeletConf))?
    {
        leaves.push(Leaf {
            name: CertName::KubeletConf.to_string(),
            file: shown(certificate.path()),
            chain: chain(&certificate.parse(Chain::from_pem)?),
            foreign: Some(KUBELETS_OWN),
        });
    }
    let [serving, _] = state.layout().pair(CertName::KubeletServing);
    if survey.cert(CertName::KubeletServing).is_none()
        && let Found::Present(chain) = state.file(&serving).parse(Chain::from_pem)?
    {
        // By default it is the kubelet's own authority that signed it.
        let mut issuers = bundle.iter();
        if issuers.any(|issuer| chain.leaf().names_issuer(issuer)) {
            leaves.push(Leaf {
                name: "the kubelet's serving certificate".to_owned(),
                file: shown(&serving),
                chain: Ok(chain),
                foreign: Some(SOMEBODYS),
            });
        }
    }
    Ok(leaves)
}
