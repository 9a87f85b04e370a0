//! The signer of kubelets' CertificateSigningRequests, and of their PodCertificateRequests: watch, judge, approve, have signed,
//! write the certificate.
//!
//! [`KubeletSigner::run`] waits for the Lease, and as long as it holds it, follows the requests and the Nodes of the
//! cluster. `kubelets` decides about each request; this module reads and writes what the decision is about. A request is
//! read again before it is judged, and so is its Node. Every write contains the resourceVersion that was judged: after a
//! conflict the request is read and judged again.
//!
//! | file | task |
//! | --- | --- |
//! | `election` | the Lease: who writes |
//! | `view` | what the watches have shown: unfinished requests, Nodes |
//! | `queue` | which request is processed next, and when |
//! | `process` | one request, from its decision to the written object |
//! | `pods` | one request for a pod, likewise |
//! | `exchange` | the signer |
//! | `bindings` | the ConfigMap that binds names to Nodes |
//! | `by_hand` | the decisions of an administrator |
//!
//! The certificates belong to other nodes: no key is on this node, nothing is installed, and the lock of a run is not
//! needed. Everything may be dropped at any await point: the record of an exchange is on disk before the signer is
//! contacted.

mod bindings;
mod by_hand;
mod election;
mod exchange;
mod object;
mod pace;
mod pods;
mod process;
mod queue;
mod view;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::load::{self, Loaded};
use super::{Clock, Failure, Progress};
use crate::cluster::api::Api;
use crate::cluster::lease::LeaseLock;
use crate::cluster::watch::Watch;
use crate::kube::csr_object::KubeletCertificate;
use crate::kube::names::{Authority, CertName, NodePath};
use crate::kube::pod_request::POD_CLIENT_SIGNER;
use crate::kubelets::{KubeletPolicy, RequestReason, ReservedNames};
use crate::signer::Signer;
use crate::spec::kubeconfig_path;
use crate::spec::registered::{NODE_PLACEHOLDER, RegisteredSan};
use crate::store::{NodeRoot, StoreError};
use crate::x509::{Sans, Tolerance, TrustBundle};

pub use by_hand::{HandDecision, ListedRequest, RequestDesk};
use election::Tenure;
use pace::{Pace, ProbeTime, ReportLimit};
use view::View;

/// Largest number of requests that are processed at the same time.
const MAX_CONCURRENT: usize = 16;
/// Time without a renewal after which another node takes over.
const LEASE_DURATION: Duration = Duration::from_secs(10);
/// Time limit for releasing the Lease when the process stops.
const MAX_RELEASE_TIME: Duration = Duration::from_secs(3);

/// Name of the log event for each decision about a request.
pub const DECIDED: &str = "kubelet-request-decided";
/// Name of the log event for a request that waits.
pub const WAITS: &str = "kubelet-request-waits";

/// The result of processing a request, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletResult {
    /// Approved by the rules.
    Approved,
    /// Denied by a rule.
    Denied(RequestReason),
    /// Approved by another user, and refused by a rule.
    Failed(RequestReason),
    /// The signer denied the request, or its answer was wrong.
    Refused,
    /// Issued, this time after the creation of the request.
    Issued(Duration),
}

/// Receives the results of the signer of kubelets' requests, and the exchanges with the configured signer.
pub trait KubeletObserver: Progress {
    /// A request was decided.
    fn decided(&self, certificate: KubeletCertificate, result: KubeletResult);

    /// The number of unfinished requests changed; `None` while another node signs.
    fn unfinished(&self, certificate: KubeletCertificate, count: Option<usize>);
}

/// The signer of kubelets' requests on this node.
pub struct KubeletSigner {
    signing: Signing,
    lock: LeaseLock,
    holds: Cell<bool>,
}

/// Everything that processing a request uses.
struct Signing {
    root: NodeRoot,
    api: Api,
    policy: KubeletPolicy,
    reserved: ReservedNames,
    signer: Rc<dyn Signer>,
    /// Name of the signer in the configuration.
    signer_name: String,
    /// How long the signer may take for one exchange.
    signer_wait: Duration,
    tolerance: Tolerance,
    /// Path of authority `ca`'s bundle.
    bundle: NodePath,
    cluster: String,
    clock: Clock,
    pace: Pace,
    probed: ProbeTime,
    reports: ReportLimit,
    observer: Rc<dyn KubeletObserver>,
    view: RefCell<View>,
    /// Wakes the processing after a change of the view.
    changed: Notify,
    /// Wakes the writer of the bindings.
    rebound: Notify,
    /// Whether the log has the reason why the bindings cannot be used.
    bindings_refused: Cell<bool>,
}

impl Signing {
    fn now(&self) -> OffsetDateTime {
        (self.clock)()
    }

    /// Reads the trusted certificates, which a CA change replaces while the daemon runs.
    fn trust(&self) -> Result<TrustBundle, String> {
        let shown = self.root.node_path(self.bundle.clone());
        let found = self.root.read(&self.bundle);
        let found = found.map_err(|error| error.to_string())?;
        let Some(found) = found else {
            return Err(format!("{shown} does not exist (run nodepki renew)"));
        };
        TrustBundle::from_pem(&found.bytes).map_err(|error| format!("{shown}: {error}"))
    }
}

impl KubeletSigner {
    /// Returns the signer of this configuration; `None` if it is off. Sends nothing.
    ///
    /// # Errors
    /// Authority `ca` without a signer, and a kubeconfig that cannot be used.
    pub fn new(
        root: &NodeRoot,
        loaded: &Loaded,
        clock: Clock,
        observer: Rc<dyn KubeletObserver>,
    ) -> Result<Option<KubeletSigner>, Failure> {
        let policy = &loaded.settings.kubelets;
        if !policy.sign {
            return Ok(None);
        }
        let setup = &loaded.setup;
        let bundle = setup.plan.bundle(Authority::Ca);
        let (Some(bundle), Some(reserved)) = (bundle, reserved_names(loaded)) else {
            tracing::info!("kubelets.sign has no effect: this node is not a control-plane node");
            return Ok(None);
        };
        let Some((signer_name, signer)) = setup.signers.get(&Authority::Ca) else {
            return Err(Failure::misconfigured(
                "kubelets.sign: no signer is configured for authority ca (configure one, or set kubelets.sign to false)",
            ));
        };
        if policy.networks.is_empty() {
            tracing::warn!(
                "kubelets.networks is not set: a kubelet gets a certificate for any private address that it reports and no other Node does (list the networks of the nodes)"
            );
        }
        let kubeconfig = kubeconfig_path(CertName::NodepkiConf);
        let api = || load::cluster(root, kubeconfig.as_path());
        let lock = LeaseLock::new(
            api()?,
            &policy.lease,
            &setup.identity.node,
            LEASE_DURATION,
            clock,
        )
        .of_equal_holders();
        let signing = Signing {
            root: root.clone(),
            api: api()?,
            reserved,
            signer: Rc::clone(signer),
            signer_name: signer_name.clone(),
            signer_wait: setup.wait,
            tolerance: load::tolerance(&loaded.settings, Authority::Ca),
            bundle: bundle.path.clone(),
            cluster: setup.identity.cluster.clone(),
            clock,
            pace: Pace::new(policy.requests_per_second, Instant::now()),
            probed: ProbeTime::default(),
            reports: ReportLimit::new(Instant::now()),
            policy: policy.clone(),
            observer,
            view: RefCell::default(),
            changed: Notify::new(),
            rebound: Notify::new(),
            bindings_refused: Cell::new(false),
        };
        Ok(Some(KubeletSigner {
            signing,
            lock,
            holds: Cell::new(false),
        }))
    }

    /// Serves requests whenever this node holds the Lease, until it is dropped.
    pub async fn run(&self) -> Infallible {
        loop {
            election::acquire(&self.lock).await;
            self.holds.set(true);
            tracing::info!("this node signs the requests of kubelets");
            let tenure = Tenure::begin(self.lock.duration());
            tokio::select! {
                biased;
                why = tenure.keep(&self.lock) => {
                    tracing::warn!("this node stops signing the requests of kubelets: {why}");
                }
                never = self.signing.serve(&tenure) => match never {},
            }
            self.holds.set(false);
            self.signing.probed.forget();
            self.signing.view.replace(View::default());
            self.signing.report_unfinished(false);
        }
    }

    /// Lets another node take over at once. Called when the process stops.
    pub async fn release(&self) {
        if self.holds.replace(false) {
            let _ = tokio::time::timeout(MAX_RELEASE_TIME, self.lock.release()).await;
        }
    }
}

impl Signing {
    /// Follows and processes the requests of the cluster.
    async fn serve(&self, tenure: &Tenure) -> Infallible {
        let [client, serving] = KubeletCertificate::OWN;
        let nodes = Watch::of_kind(&object::NODE);
        self.read_bindings().await;
        tokio::select! {
            never = self.follow(client) => never,
            never = self.follow(serving) => never,
            never = self.follow_pods() => never,
            never = nodes.run(&self.api, |change| {
                self.view.borrow_mut().node(change, self.now());
                self.changed.notify_one();
            }) => never,
            never = self.follow_bindings() => never,
            never = self.write_bindings(tenure) => never,
            never = self.process_all(tenure) => never,
        }
    }

    /// Follows the requests for one certificate.
    async fn follow(&self, certificate: KubeletCertificate) -> Infallible {
        let watch = Watch::of_signer(&object::CSR, certificate.signer_name());
        let sink = |change| {
            let now = Instant::now();
            self.view.borrow_mut().request(certificate, change, now);
            self.changed.notify_one();
        };
        watch.run(&self.api, sink).await
    }

    /// Follows the requests for pods, if they are signed.
    async fn follow_pods(&self) -> Infallible {
        if !self.policy.sign_pods {
            return std::future::pending().await;
        }
        let watch = Watch::of_signer(&object::POD_REQUEST, POD_CLIENT_SIGNER);
        let sink = |change| {
            let now = Instant::now();
            self.view.borrow_mut().pod_request(change, now);
            self.changed.notify_one();
        };
        watch.run(&self.api, sink).await
    }

    /// Processes requests in the order of their arrival, several at the same time.
    async fn process_all(&self, tenure: &Tenure) -> Infallible {
        let mut running = FuturesUnordered::new();
        let mut has_resumed = false;
        loop {
            if !has_resumed && self.view.borrow().is_complete() {
                self.resume_records();
                has_resumed = true;
            }
            while running.len() < MAX_CONCURRENT
                && let Some(work) = self.view.borrow_mut().take(Instant::now())
            {
                running.push(async move {
                    let result = self.process(&work, tenure).await;
                    (work, result)
                });
            }
            self.report_unfinished(true);
            if self.view.borrow().bindings.has_changes() {
                self.rebound.notify_one();
            }
            let due = if running.len() < MAX_CONCURRENT {
                self.view.borrow().next_due()
            } else {
                None
            };
            tokio::select! {
                Some((work, result)) = running.next(), if !running.is_empty() => {
                    let mut view = self.view.borrow_mut();
                    view.queue.ended(&work, result, Instant::now());
                }
                () = self.changed.notified() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// Processes the requests of which only a record exists: they ended while this node was not the leader.
    fn resume_records(&self) {
        let uids = match self.root.kubelet_requests() {
            Ok(uids) => uids,
            Err(error) => return tracing::warn!("{error}"),
        };
        for uid in uids {
            if self.view.borrow().queue.contains(&uid) {
                continue;
            }
            let record = match self.root.kubelet_request(&uid) {
                // A damaged record is removed; that of a newer nodepki is not.
                Err(StoreError::Damaged { .. }) => None,
                Err(error) => {
                    tracing::warn!("{error}");
                    continue;
                }
                Ok(record) => record,
            };
            let certificate = |name| {
                let mut all = KubeletCertificate::ALL.into_iter();
                all.find(|one| one.cert_name() == name)
            };
            match record.and_then(|record| Some((certificate(record.name)?, record.object))) {
                Some((certificate, name)) => {
                    let queue = &mut self.view.borrow_mut().queue;
                    queue.insert(&uid, &name, certificate);
                }
                None => self.forget(&uid),
            }
        }
    }

    fn report_unfinished(&self, leads: bool) {
        for certificate in KubeletCertificate::ALL {
            let count = leads.then(|| self.view.borrow().queue.unfinished(certificate));
            self.observer.unfinished(certificate, count);
        }
    }
}

/// Returns the names that no kubelet may have; `None` on a worker, where those of the API server are unknown. Those of
/// registered certificates count for every node.
fn reserved_names(loaded: &Loaded) -> Option<ReservedNames> {
    let plan = &loaded.setup.plan;
    plan.cert(CertName::Apiserver)?;
    let mut certified = Sans::default();
    for cert in &plan.certs {
        let sans = &cert.requested.profile.sans;
        certified.dns.extend(sans.dns.iter().cloned());
        certified.ips.extend(&sans.ips);
    }
    let mut reserved = ReservedNames::new(&loaded.cluster, &certified);
    let registered = loaded.settings.registered.certificates();
    for san in registered.iter().flat_map(|one| &one.sans) {
        match san {
            RegisteredSan::Fixed(san) => reserved.add(san),
            // The name of a node alone is the node's own.
            RegisteredSan::OfNode(template) => {
                if let Ok(pattern) = template.parse()
                    && template != NODE_PLACEHOLDER
                {
                    reserved.add_pattern(pattern);
                }
            }
            RegisteredSan::Addresses => {}
        }
    }
    Some(reserved)
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
