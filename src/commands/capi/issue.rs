//! Issues the certificates of the Secrets that Cluster API's controllers wait for.
//!
//! The desired state is a small [`NodeSpec`]: the client certificates for etcd and for the kubeconfig, and the three
//! authorities. [`agent::bootstrap`] carries it out in a state directory for the cluster, which has the layout of a node
//! and keeps keys, pending requests and certificates between runs.
//!
//! The keys are for the controllers: they are stored in Secrets and on no node. The service-account pair is out of scope,
//! since Cluster API creates `<cluster>-sa` and no authority signs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use time::OffsetDateTime;

use crate::agent::authority::command::RotatedBundle;
use crate::agent::load::{self, LoadInputs, SignerState};
use crate::agent::{
    self, Clock, ClockPolicy, ExitCode, Failure, Progress, Provided, ProvidedBundle, RunReport,
    RunSetup, SurveyedBundle, SurveyedCert, TrustSource,
};
use crate::config::{Argument, Origin, Settings};
use crate::kube::kubeadm::{
    self, ClusterConfig, Etcd, HostPort, KubeadmRole, NodeConfig, NodeName,
};
use crate::kube::names::{Authority, CertName};
use crate::process::jitter::random_fraction;
use crate::signer::NodeIdentity;
use crate::spec::assess::{BundleRefusal, Observed};
use crate::spec::policy::KeyPolicy;
use crate::spec::schedule::OnPolicyChange;
use crate::spec::{self, BundleSpec, Choices, NodeSpec};
use crate::store::{Commit, Mode, NodeRoot, STATE_DIR};
use crate::x509::{CertDifference, PublicKey, TrustBundle, path_differences};

use super::secrets::{ClusterTarget, SecretMaterial};

/// Returns the default state directory of a cluster.
fn default_state(target: &ClusterTarget) -> PathBuf {
    Path::new(STATE_DIR)
        .join("capi")
        .join(target.namespace())
        .join(target.cluster())
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// The workload cluster.
    pub(super) target: ClusterTarget,
    /// The workload cluster's API server, instead of `controlPlaneEndpoint`.
    pub(super) endpoint: Option<String>,
    /// etcd is external, as with `etcd.external` in the ClusterConfiguration.
    pub(super) external_etcd: bool,
    /// Directory with the CA certificates, in kubeadm's layout.
    pub(super) ca_dir: Option<Argument>,
    /// CA certificates by the rotations of the workload cluster, which precede those of files. A rotation that has ended
    /// does so only until another CA is in the file or in the state directory.
    pub(super) rotated: BTreeMap<Authority, RotatedBundle>,
    /// State directory, instead of the one below `/var/lib/nodepki/capi`.
    pub(super) state: Option<Argument>,
}

/// A run whose inputs are loaded.
pub(super) struct PreparedIssue {
    setup: RunSetup,
    /// The cluster's state directory.
    state: NodeRoot,
    pub(super) warnings: Vec<String>,
}

/// Loads the inputs of a run at `now`, and creates the cluster's state directory.
///
/// Reads only the kubeadm configuration that `inputs` names: one at a default path on this machine belongs to another
/// cluster, usually the management cluster.
pub(super) fn load(
    root: &NodeRoot,
    inputs: &LoadInputs,
    order: &Order,
    now: OffsetDateTime,
) -> Result<PreparedIssue, Failure> {
    let (mut setup, warnings) = setup(root, inputs, order, now)?;
    let state = state(root, order)?;
    setup.plan = setup.plan.shown_below(state.path());
    Ok(PreparedIssue {
        setup,
        state,
        warnings,
    })
}

/// Loads the inputs of a run at `now`, with warnings. Creates nothing.
pub(super) fn setup(
    root: &NodeRoot,
    inputs: &LoadInputs,
    order: &Order,
    now: OffsetDateTime,
) -> Result<(RunSetup, Vec<String>), Failure> {
    let (settings, mut warnings) = load::read_settings(root, inputs)?;
    let mut sources = Vec::new();
    for path in &inputs.stand_ins.kubeadm_configs {
        let shown = load::shown(root, path).display().to_string();
        let text = load::read_argument(root, path)
            .map_err(|error| Failure::caused(ExitCode::Configuration, shown.as_str(), error))?;
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
    let (policy, faults) = KeyPolicy::assemble(
        settings.pki.as_ref(),
        documents.policies(),
        cluster.key_algorithm,
    )
    .map_err(load::faulty)?;
    warnings.extend(faults);
    adapt(&mut cluster, order)?;

    let name = settings
        .node_name
        .as_ref()
        .map_or(order.target.cluster(), NodeName::as_str)
        .to_owned();
    let identity = NodeIdentity {
        node: name,
        cluster: order.target.cluster().to_owned(),
    };
    // No component of this machine restarts for a Secret, and nothing else renews it before it expires.
    let choices = Choices {
        on_policy_change: OnPolicyChange::Now,
        ..load::choices(&settings)
    };
    let plan = table(&cluster, &identity, &policy, &choices)?;
    let (place, path) = state_place(root, order)?;
    let setup = RunSetup {
        signers: load::open_signers(
            root,
            (&place, &path.join(STATE_DIR.trim_start_matches('/'))),
            &settings,
            &identity,
            policy.key_for_authority(Authority::Ca),
            SignerState::Kept,
            now,
        )?,
        kubeadm_follows: false,
        identity,
        trust: pins(&settings),
        provided: Provided {
            bundles: given_bundles(root, &settings, order, |authority| {
                present_bundle(root, order, &plan, authority)
            })?,
            ..Provided::default()
        },
        plan,
        identity_conflicts: Vec::new(),
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
        jitter: random_fraction,
    };
    let warnings = warnings.warnings().map(ToString::to_string).collect();
    Ok((setup, warnings))
}

/// Adapts the ClusterConfiguration to the order.
fn adapt(cluster: &mut ClusterConfig, order: &Order) -> Result<(), Failure> {
    cluster.cluster_name = order.target.cluster().to_owned();
    cluster.certificates_dir = ClusterConfig::default().certificates_dir;
    if order.external_etcd {
        cluster.etcd = Etcd::External {
            endpoints: Vec::new(),
            ca_file: None,
            cert_file: None,
            key_file: None,
        };
    }
    if let Some(text) = &order.endpoint {
        let (endpoint, _) = HostPort::parse(text)
            .map_err(|refusal| Failure::usage(format!("--endpoint {text:?}: {refusal}")))?;
        cluster.control_plane_endpoint = Some(endpoint);
    }
    match cluster.control_plane_endpoint {
        Some(_) => Ok(()),
        None => Err(Failure::usage(
            "the endpoint of the cluster's API server is unknown (add --endpoint HOST:PORT as in the Cluster's spec.controlPlaneEndpoint, or --kubeadm-config FILE with a ClusterConfiguration that has a controlPlaneEndpoint)",
        )),
    }
}

/// Returns the part of a first node's plan that the management cluster needs.
fn table(
    cluster: &ClusterConfig,
    identity: &NodeIdentity,
    policy: &KeyPolicy,
    choices: &Choices,
) -> Result<NodeSpec, Failure> {
    let name =
        NodeName::from_str(&identity.node).map_err(|error| Failure::usage("").caused_by(error))?;
    let node = NodeConfig {
        role: KubeadmRole::Init,
        name,
        advertise_address: None,
        bind_port: 6443,
        hostname_override: None,
        kubelet_addresses: Vec::new(),
        kubelet_cert_dir: None,
        server: None,
        join_endpoint: None,
        join: None,
    };
    let mut plan = spec::node_spec(cluster, &node, policy, choices);
    plan.certs.retain(|spec| {
        matches!(
            spec.name(),
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

/// Returns the CA certificates of the authorities that are changed in the workload cluster, or for which a file is configured.
/// `present` returns those in the state directory.
fn given_bundles(
    root: &NodeRoot,
    settings: &Settings,
    order: &Order,
    present: impl Fn(Authority) -> Result<Option<TrustBundle>, Failure>,
) -> Result<BTreeMap<Authority, ProvidedBundle>, Failure> {
    let mut bundles = BTreeMap::new();
    for authority in Authority::ALL {
        let file = GivenFile::of(root, settings, order, authority);
        if let Some(rotated) = order.rotated.get(&authority) {
            let mut known = Vec::new();
            if rotated.has_ended() {
                let given = file.as_ref().map(|file| file.read(root)).transpose()?;
                known.extend(given.flatten());
                known.extend(present(authority)?);
            }
            if known.iter().all(|bundle| rotated.contains(bundle)) {
                let source = format!("the rotation of {authority} in the workload cluster");
                let bundle = ProvidedBundle::new(source, rotated.bundle.clone());
                bundles.insert(authority, bundle);
                continue;
            }
        }
        let Some(file) = file else { continue };
        let bundle = file.read(root)?.ok_or_else(|| {
            file.unusable(
                "the file does not exist (put it there, or name another directory with --ca-dir)",
            )
        })?;
        bundles.insert(authority, ProvidedBundle::new(file.shown, bundle));
    }
    Ok(bundles)
}

/// A configured file with the CA certificates of an authority.
struct GivenFile {
    authority: Authority,
    origin: Origin,
    path: PathBuf,
    shown: String,
}

impl GivenFile {
    fn of(
        root: &NodeRoot,
        settings: &Settings,
        order: &Order,
        authority: Authority,
    ) -> Option<Self> {
        // The CA of an external etcd is not managed here.
        if authority == Authority::EtcdCa && order.external_etcd {
            return None;
        }
        let (origin, path) = match &order.ca_dir {
            Some(dir) => {
                let name = format!("{}.crt", authority.base_name());
                (Origin::CommandLine, dir.as_given().join(name))
            }
            None => {
                let trust = settings.authorities.get(&authority)?;
                (settings.origin, trust.trust_file.clone()?)
            }
        };
        let shown = load::shown_defined(root, origin, &path);
        Some(GivenFile {
            authority,
            origin,
            path,
            shown: shown.display().to_string(),
        })
    }

    fn unusable(&self, problem: &str) -> Failure {
        let GivenFile {
            authority, shown, ..
        } = self;
        let message = format!("certificate of authority {authority}: {shown}: {problem}");
        Failure::misconfigured(message)
    }

    /// Returns the certificates; `None` if the file does not exist.
    fn read(&self, root: &NodeRoot) -> Result<Option<TrustBundle>, Failure> {
        let found = load::defined(root, self.origin, &self.path)?.read()?;
        let bundle = found.map(|found| TrustBundle::from_pem(&found.bytes));
        bundle
            .transpose()
            .map_err(|error| self.unusable(&error.to_string()))
    }
}

/// Returns the readable CA certificates of an authority in the cluster's state directory.
fn present_bundle(
    root: &NodeRoot,
    order: &Order,
    plan: &NodeSpec,
    authority: Authority,
) -> Result<Option<TrustBundle>, Failure> {
    let (place, path) = state_place(root, order)?;
    let (Some(state), Some(spec)) = (place.subroot(&path)?, plan.bundle(authority)) else {
        return Ok(None);
    };
    let found = state.read(&spec.path)?;
    Ok(found.and_then(|found| TrustBundle::from_pem(&found.bytes).ok()))
}

/// Returns the root and the path of the cluster's state directory.
fn state_place(root: &NodeRoot, order: &Order) -> Result<(NodeRoot, PathBuf), Failure> {
    Ok(match &order.state {
        Some(path) => {
            let found = load::argument(root, path)?;
            (found.root, found.path)
        }
        None => (root.clone(), default_state(&order.target)),
    })
}

/// Opens the cluster's state directory, and creates it if it does not exist.
pub(super) fn state(root: &NodeRoot, order: &Order) -> Result<NodeRoot, Failure> {
    let (place, path) = state_place(root, order)?;
    if order.state.is_none() {
        // The store requires that its state directory is private, whichever code creates it.
        root.create_dir(STATE_DIR, 0o700)?;
    }
    place.create_dir(&path, 0o700)?;
    place.subroot(&path)?.ok_or_else(|| {
        Failure::pending(format!(
            "{} was just removed by another process; run again",
            place.on_this_machine(&path).display()
        ))
    })
}

/// A change of the CA certificates in a configured file.
#[derive(Debug, PartialEq, Eq)]
enum CaChange {
    None,
    /// Both have a key in common: a step of a change of the CA, or a renewed certificate.
    Followed,
    /// Another CA, even if the one in the state directory has signed it.
    Refused,
}

impl CaChange {
    fn between(present: &TrustBundle, given: &TrustBundle) -> Self {
        let keys = |bundle: &TrustBundle| -> Vec<PublicKey> {
            let certificates = bundle.certificates().iter();
            certificates.map(|one| one.public_key().clone()).collect()
        };
        let given_keys = keys(given);
        if present == given {
            CaChange::None
        } else if keys(present).iter().any(|key| given_keys.contains(key)) {
            CaChange::Followed
        } else {
            CaChange::Refused
        }
    }
}

impl PreparedIssue {
    /// Returns the cluster's state directory.
    pub(super) fn state(&self) -> &NodeRoot {
        &self.state
    }

    /// Returns the key policy.
    pub(super) fn policy(&self) -> &KeyPolicy {
        &self.setup.plan.policy
    }

    /// Issues what is missing, and returns the material of the Secrets once it is complete.
    pub(super) async fn issue(
        &self,
        clock: Clock,
        progress: &dyn Progress,
    ) -> Result<(RunReport, Option<SecretMaterial>), Failure> {
        let changes = self
            .follow_ca_change(clock)
            .map_err(|failure| self.with_location(failure))?;
        let report = agent::bootstrap(&self.state, &self.setup, clock, progress).await;
        let mut report = report.map_err(|failure| self.with_location(failure))?;
        report.notes.extend(changes);
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

    /// Replaces the CA certificates in the state directory by those of the configured files if both have a key in common,
    /// as after each step of `nodepki authority`; returns a note for each.
    ///
    /// # Errors
    /// A configured file contains other CAs; errors of the file system.
    fn follow_ca_change(&self, clock: Clock) -> Result<Vec<String>, Failure> {
        if self.changed_bundles(clock())?.is_empty() {
            return Ok(Vec::new());
        }
        let (mut store, mut notes) =
            agent::open_store(&self.state, &self.setup, "capi secrets", clock)?;
        let mut commit = Commit::new();
        // Read again under the lock.
        for (spec, ProvidedBundle { from, bundle, .. }) in self.changed_bundles(clock())? {
            notes.push(format!(
                "{}: the CA certificates changed to those of {from}: {bundle}",
                spec.authority
            ));
            self.follow_in_certificates(spec.authority, bundle, &mut commit, clock())?;
            commit.file(
                spec.path.clone(),
                bundle.to_pem().into_bytes(),
                Mode::Public,
            );
        }
        store.commit(commit)?;
        Ok(notes)
    }

    /// Removes the client certificates of an authority that are not under the first certificate of its new bundle, so
    /// they are issued again, and replaces the CA certificates in its other kubeconfigs.
    fn follow_in_certificates(
        &self,
        authority: Authority,
        given: &TrustBundle,
        commit: &mut Commit,
        now: OffsetDateTime,
    ) -> Result<(), Failure> {
        let survey = self.setup.survey(&self.state, now)?;
        for mut cert in survey.certs {
            let Some(chain) = cert.found.chain.present() else {
                continue;
            };
            if cert.spec.authority() != authority {
                continue;
            }
            let differences = path_differences(chain, given, now);
            let is_outside = differences.iter().any(|difference| {
                matches!(
                    difference,
                    CertDifference::NotUnderFirst { .. } | CertDifference::UntrustedIssuer { .. }
                )
            });
            for path in cert.spec.output.paths() {
                let Some(content) = self.state.read(path)? else {
                    continue;
                };
                let path = path.to_path_buf();
                if is_outside {
                    commit.remove(path, &content.bytes);
                } else if let Some(kubeconfig) = &mut cert.found.kubeconfig
                    && kubeconfig.document.set_authority(&given.to_pem()).is_ok()
                {
                    let yaml = kubeconfig.document.to_yaml().as_bytes().to_vec();
                    commit.file(path, yaml, Mode::Private);
                }
            }
        }
        Ok(())
    }

    /// Returns the bundles that differ from the configured file and have a key in common with it.
    ///
    /// # Errors
    /// A configured file contains other CAs.
    fn changed_bundles(
        &self,
        now: OffsetDateTime,
    ) -> Result<Vec<(BundleSpec, &ProvidedBundle)>, Failure> {
        let survey = self.setup.survey(&self.state, now)?;
        let (mut changed, mut refusals) = (Vec::new(), Vec::new());
        for SurveyedBundle { spec, found, .. } in survey.bundles {
            let given = self.setup.provided.bundles.get(&spec.authority);
            let (Some(given), Some(present)) = (given, found.present()) else {
                continue;
            };
            match CaChange::between(present, &given.bundle) {
                CaChange::None => {}
                CaChange::Followed => changed.push((spec, given)),
                CaChange::Refused => refusals.push(
                    BundleRefusal::NotOfCluster {
                        path: spec.path,
                        authority: spec.authority,
                        found: present.to_string(),
                        from: given.from.clone(),
                        wanted: given.bundle.to_string(),
                    }
                    .to_string(),
                ),
            }
        }
        Failure::require_none(refusals)?;
        Ok(changed)
    }

    /// Adds the state directory to the messages, since not every message names it.
    fn with_location(&self, mut failure: Failure) -> Failure {
        let place = format!("below {}", self.state.path().display());
        let messages = std::mem::take(&mut failure.messages);
        failure.messages = messages
            .into_iter()
            .map(|message| message.at(&place))
            .collect();
        failure
    }

    /// Reads the material from the state directory. The lock is not held any more, so another run may be writing.
    fn material(&self, now: OffsetDateTime) -> Result<SecretMaterial, Failure> {
        let survey = self.setup.survey(&self.state, now)?;
        let bundles = survey.bundles.iter();
        let authorities: BTreeMap<Authority, TrustBundle> = bundles
            .filter_map(|bundle| Some((bundle.spec.authority, bundle.found.present()?.clone())))
            .collect();
        let mut pairs = BTreeMap::new();
        let mut kubeconfig = None;
        for SurveyedCert { spec, found, .. } in survey.certs {
            if let (Observed::Present(chain), Observed::Present(key)) = (found.chain, found.key)
                && chain.leaf().public_key() == key.public_key()
            {
                pairs.insert(spec.name(), (chain, key));
            }
            kubeconfig = kubeconfig.or(found.kubeconfig);
        }
        let plan = &self.setup.plan;
        let is_complete =
            pairs.len() == plan.certs.len() && authorities.len() == plan.bundles.len();
        match (pairs.remove(&CertName::AdminConf), kubeconfig) {
            (Some(admin), Some(kubeconfig)) if is_complete => Ok(SecretMaterial {
                authorities,
                etcd_client: pairs.remove(&CertName::ApiserverEtcdClient),
                admin,
                kubeconfig: kubeconfig.document.to_yaml().as_bytes().to_vec().into(),
            }),
            _ => Err(Failure::pending(format!(
                "{} was changed by another run while the Secrets were created; run again",
                self.state.path().display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
