//! The management cluster's side of Cluster API's external-CA flow: the Secrets that the controllers wait for, and the two
//! conditions that tell whether they are there.
//!
//! Issues nothing itself: what is wanted is a small [`Plan`] (the client certificates for etcd and for the kubeconfig, the
//! three authorities), and [`agent::bootstrap`] carries it out in a directory of the cluster's own, laid out as a node.
//! That is where keys, pending requests and certificates stay between runs; [`secrets`] renders it, [`apply`]
//! brings it to the management cluster, [`conditions`] judges what is there.
//!
//! The keys made here are the controllers' own: they go into Secrets, and no node has them. The service-account pair is no
//! concern of this module: Cluster API makes `<cluster>-sa` by itself, and no authority has to do with it.

pub mod apply;
pub mod conditions;
pub mod secrets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::Value;
use time::OffsetDateTime;

use crate::agent::load::{self, Inputs};
use crate::agent::{
    self, Clock, ClockPolicy, ExitCode, Failure, Progress, Provided, Report, Setup, SurveyedCert,
    TrustSource,
};
use crate::cluster::api::Api;
use crate::config::{Argument, Origin, Settings};
use crate::kube::kubeadm::{self, Cluster, Endpoint, Etcd, Node, NodeName, Role};
use crate::kube::names::{Authority, CertName};
use crate::signer::Identity;
use crate::spec::assess::Found;
use crate::spec::policy::Policy;
use crate::spec::{self, Plan};
use crate::store::{Root, STATE_DIR};
use crate::x509::TrustBundle;
use crate::yaml;

use conditions::Findings;
use secrets::{Format, Material, Object, Purpose, Target};

/// Where the clusters' directories are.
fn default_state(target: &Target) -> PathBuf {
    Path::new(STATE_DIR)
        .join("capi")
        .join(target.namespace())
        .join(target.cluster())
}

/// What is wanted of a run.
#[derive(Clone, Debug)]
pub struct Order {
    /// The workload cluster.
    pub target: Target,
    /// Its API server, instead of `controlPlaneEndpoint`.
    pub endpoint: Option<String>,
    /// etcd is somebody else's, as `etcd.external` says too.
    pub external_etcd: bool,
    /// The authorities' certificates, laid out as kubeadm's.
    pub ca_dir: Option<Argument>,
    /// Directory for keys and certificates, instead of the one below `/var/lib/nodepki/capi`.
    pub state: Option<Argument>,
}

/// A run, ready.
pub struct Prepared {
    /// What the agent works with.
    pub setup: Setup,
    /// The cluster's directory.
    pub state: Root,
    /// Faults that are not errors.
    pub warnings: Vec<String>,
}

/// Loads everything for a run at `now`, and makes the cluster's directory.
///
/// Of a kubeadm configuration only what `inputs` names is read: one that lies on this machine is that of another
/// cluster, the management cluster's if anybody's.
///
/// # Errors
/// All faults of all files at once.
pub fn load(
    root: &Root,
    inputs: &Inputs,
    order: &Order,
    now: OffsetDateTime,
) -> Result<Prepared, Failure> {
    let (settings, mut warnings) = load::read_settings(root, inputs)?;
    let mut sources = Vec::new();
    for path in &inputs.stand_ins.kubeadm_configs {
        let shown = load::shown(root, path).display().to_string();
        let text = load::read_argument(root, path).map_err(|error| {
            Failure::caused(ExitCode::Configuration, format!("{shown}: {error}"), &error)
        })?;
        sources.push((shown, text));
    }
    let documents = kubeadm::load(&sources);
    let ((), faults) = documents
        .faults()
        .clone()
        .outcome(())
        .map_err(load::faulty)?;
    warnings.extend(faults);
    let mut cluster = documents.cluster().cloned().unwrap_or_default();
    let (policy, faults) = Policy::assemble(
        settings.pki.as_ref(),
        documents.policies(),
        cluster.key_algorithm,
    )
    .map_err(load::faulty)?;
    warnings.extend(faults);
    wish(&mut cluster, order)?;

    let name = settings
        .node_name
        .as_ref()
        .map_or(order.target.cluster(), NodeName::as_str)
        .to_owned();
    let identity = Identity {
        node: name,
        cluster: order.target.cluster().to_owned(),
    };
    let mut setup = Setup {
        plan: table(&cluster, &identity, &policy, &load::choices(&settings))?,
        signers: load::open_signers(
            root,
            &settings,
            &identity,
            policy.key_for_authority(Authority::Ca),
            now,
        )?,
        kubeadm_follows: false,
        identity,
        trust: pins(&settings),
        provided: Provided {
            bundles: given(root, &settings, order)?,
            ..Provided::default()
        },
        record: None,
        rotation: settings.rotation.clone(),
        wait: inputs.wait.unwrap_or(settings.wait),
        lock_wait: inputs
            .wait
            .map_or(load::LOCK_WAIT, |wait| wait.min(load::LOCK_WAIT)),
        clock: ClockPolicy {
            max_wait: inputs.clock_wait.unwrap_or(settings.clock_max_wait),
            allow_unsynced: inputs.allow_unsynced,
        },
    };
    let state = state(root, order)?;
    setup.plan = setup.plan.shown_below(state.path());
    Ok(Prepared {
        setup,
        state,
        warnings: warnings.warnings().map(ToString::to_string).collect(),
    })
}

/// The cluster as the certificates are to have it.
fn wish(cluster: &mut Cluster, order: &Order) -> Result<(), Failure> {
    cluster.cluster_name = order.target.cluster().to_owned();
    cluster.certificates_dir = Cluster::default().certificates_dir;
    if order.external_etcd {
        cluster.etcd = Etcd::External {
            endpoints: Vec::new(),
            ca_file: None,
            cert_file: None,
            key_file: None,
        };
    }
    if let Some(text) = &order.endpoint {
        let (endpoint, _) = Endpoint::parse(text).map_err(|refusal| {
            Failure::new(ExitCode::Usage, format!("--endpoint {text:?}: {refusal}"))
        })?;
        cluster.control_plane_endpoint = Some(endpoint);
    }
    match cluster.control_plane_endpoint {
        Some(_) => Ok(()),
        None => Err(Failure::new(
            ExitCode::Usage,
            "nothing says where the cluster's API server will be; add --endpoint HOST:PORT as in the Cluster's spec.controlPlaneEndpoint, or --kubeadm-config FILE with a ClusterConfiguration that has a controlPlaneEndpoint",
        )),
    }
}

/// The part of a first node's table that the management cluster needs.
fn table(
    cluster: &Cluster,
    identity: &Identity,
    policy: &Policy,
    choices: &spec::Choices,
) -> Result<Plan, Failure> {
    let name = NodeName::from_str(&identity.node)
        .map_err(|error| Failure::new(ExitCode::Usage, error.to_string()))?;
    let node = Node {
        role: Role::Init,
        name,
        advertise_address: None,
        bind_port: 6443,
        hostname_override: None,
        kubelet_addresses: Vec::new(),
        kubelet_cert_dir: None,
        join_endpoint: None,
        join: None,
    };
    let mut plan = spec::plan(cluster, &node, policy, choices);
    plan.certs.retain(|spec| {
        matches!(
            spec.name,
            CertName::ApiserverEtcdClient | CertName::AdminConf
        )
    });
    plan.service_account = None;
    plan.external_etcd = None;
    plan.notes.clear();
    Ok(plan)
}

fn pins(settings: &Settings) -> BTreeMap<Authority, TrustSource> {
    let source = |pins: &Vec<[u8; 32]>| TrustSource {
        file: None,
        pins: pins.clone(),
    };
    let authorities = settings.authorities.iter();
    authorities
        .map(|(authority, settings)| (*authority, source(&settings.trust_sha256)))
        .collect()
}

/// The authorities' certificates as far as a file has them.
fn given(
    root: &Root,
    settings: &Settings,
    order: &Order,
) -> Result<BTreeMap<Authority, (String, TrustBundle)>, Failure> {
    let mut bundles = BTreeMap::new();
    for authority in Authority::ALL {
        let of_settings = settings.authorities.get(&authority);
        let path = match &order.ca_dir {
            Some(dir) => {
                let name = format!("{}.crt", authority.base_name());
                Some((Origin::CommandLine, dir.as_given().join(name)))
            }
            None => {
                of_settings.and_then(|trust| Some((settings.origin, trust.trust_file.clone()?)))
            }
        };
        // An external etcd's CA is none of ours.
        let Some((origin, path)) =
            path.filter(|_| authority != Authority::EtcdCa || !order.external_etcd)
        else {
            continue;
        };
        let shown = load::shown_defined(root, origin, &path);
        let shown = shown.display().to_string();
        let wrong = |why: String| {
            Failure::new(
                ExitCode::Configuration,
                format!(
                    "{shown}, which should hold the certificate of authority {authority}: {why}"
                ),
            )
        };
        let found = load::defined(root, origin, &path)?.read()?;
        let found = found.ok_or_else(|| wrong("does not exist".to_owned()))?;
        let bundle =
            TrustBundle::from_pem(&found.bytes).map_err(|error| wrong(error.to_string()))?;
        bundles.insert(authority, (shown, bundle));
    }
    Ok(bundles)
}

/// The cluster's directory, made when there is none.
fn state(root: &Root, order: &Order) -> Result<Root, Failure> {
    let (place, path) = match &order.state {
        Some(path) => {
            let found = load::argument(root, path)?;
            (found.root, found.path)
        }
        None => {
            // The store wants its own state directory closed, whoever makes it.
            root.create_dir(STATE_DIR, 0o700)?;
            (root.clone(), default_state(&order.target))
        }
    };
    place.create_dir(&path, 0o700)?;
    place.below(&path)?.ok_or_else(|| {
        Failure::new(
            ExitCode::Pending,
            format!(
                "{} was removed a moment ago; run again",
                place.on_this_machine(&path).display()
            ),
        )
    })
}

impl Prepared {
    /// Issues what is missing and gives what the Secrets are made of, once all of it is there.
    ///
    /// # Errors
    /// As for [`agent::bootstrap`].
    pub async fn issue(
        &self,
        clock: Clock,
        progress: &dyn Progress,
    ) -> Result<(Report, Option<Material>), Failure> {
        let report = agent::bootstrap(&self.state, &self.setup, clock, progress).await;
        let mut report = report.map_err(|failure| self.located(failure))?;
        for path in report.rows.iter_mut().flat_map(|row| &mut row.paths) {
            *path = self.state.on_this_machine(&path).into();
        }
        for path in &mut report.written {
            *path = self.state.on_this_machine(&path);
        }
        let material = match report.code() {
            ExitCode::Done => Some(self.material(clock())?),
            _ => None,
        };
        Ok((report, material))
    }

    /// Names the cluster's directory, which not every message does.
    fn located(&self, mut failure: Failure) -> Failure {
        for message in &mut failure.messages {
            *message = format!("below {}: {message}", self.state.path().display());
        }
        failure
    }

    /// What lies in the directory now: the lock is not held any more, and another run may be writing.
    fn material(&self, now: OffsetDateTime) -> Result<Material, Failure> {
        let survey = self.setup.survey(&self.state, now)?;
        let bundles = survey.bundles.iter();
        let authorities: BTreeMap<Authority, TrustBundle> = bundles
            .filter_map(|bundle| Some((bundle.spec.authority, bundle.found.present()?.clone())))
            .collect();
        let mut pairs = BTreeMap::new();
        let mut kubeconfig = None;
        for SurveyedCert { spec, found, .. } in survey.certs {
            if let (Found::Present(chain), Found::Present(key)) = (found.chain, found.key)
                && chain.leaf().public_key() == key.public_key()
            {
                pairs.insert(spec.name, (chain, key));
            }
            kubeconfig = kubeconfig.or(found.kubeconfig);
        }
        let plan = &self.setup.plan;
        let whole = pairs.len() == plan.certs.len() && authorities.len() == plan.bundles.len();
        match (pairs.remove(&CertName::AdminConf), kubeconfig) {
            (Some(admin), Some(kubeconfig)) if whole => Ok(Material {
                authorities,
                etcd_client: pairs.remove(&CertName::ApiserverEtcdClient),
                admin,
                kubeconfig: kubeconfig.document.to_yaml().as_bytes().to_vec().into(),
            }),
            _ => Err(Failure::new(
                ExitCode::Pending,
                format!(
                    "what lies below {} changed while the Secrets were being made; run again",
                    self.state.path().display()
                ),
            )),
        }
    }
}

/// Judges the Secrets of a management cluster.
///
/// # Errors
/// What the API server says, but for a Secret that does not exist.
pub async fn check(
    api: &Api,
    target: &Target,
    format: Format,
    external_etcd: bool,
    now: OffsetDateTime,
) -> Result<Findings, Failure> {
    let purposes = conditions::judged(format, external_etcd);
    let found = apply::read(api, target, purposes).await?;
    Ok(conditions::judge(
        target,
        format,
        external_etcd,
        &found,
        now,
    ))
}

/// Judges the Secrets of a manifest: documents, or the List that `kubectl get -o yaml` prints. A Secret that names no
/// namespace goes for one of the cluster's. `file` is for messages.
///
/// # Errors
/// A text that is no YAML.
pub fn check_manifest(
    file: &str,
    text: &str,
    target: &Target,
    format: Format,
    external_etcd: bool,
    now: OffsetDateTime,
) -> Result<Findings, Failure> {
    let documents = yaml::parse(file, text).map_err(load::faulty)?;
    let mut found = BTreeMap::new();
    for document in &documents {
        let mut document = Object(yaml::to_json(document));
        let items = document.0.get_mut("items").map(Value::take);
        let objects = match items {
            Some(Value::Array(items)) => items.into_iter().map(Object).collect(),
            _ => vec![document],
        };
        for object in objects {
            let ours = object.0.get("kind").and_then(Value::as_str) == Some("Secret")
                && object
                    .namespace()
                    .is_none_or(|namespace| namespace == target.namespace());
            let name = object.name().map(str::to_owned);
            let mut purposes = Purpose::ALL.into_iter().filter(|_| ours);
            if let Some(purpose) = purposes.find(|purpose| Some(target.name(*purpose)) == name) {
                found.insert(purpose, object);
            }
        }
    }
    Ok(conditions::judge(
        target,
        format,
        external_etcd,
        &found,
        now,
    ))
}
