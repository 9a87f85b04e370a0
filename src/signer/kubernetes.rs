//! `kubernetes`: CertificateSigningRequests of `certificates.k8s.io/v1`, signed by the controller that serves their
//! signer name: cert-manager, EJBCA, kube-controller-manager, or another one.
//!
//! The usual location is the API server of a management cluster. It must not be the API server that gets its first
//! certificates from this signer.
//!
//! # Preparation of the cluster
//! `nodepki config signer-setup kubernetes | kubectl apply -f -` creates the roles below, for the configured signer
//! names.
//! - The node may create and read requests, and nothing else: the ClusterRole `system:node-bootstrapper`, which every
//!   cluster has.
//!
//!   ```text
//!   kubectl create clusterrolebinding nodepki --clusterrole=system:node-bootstrapper --group=system:bootstrappers:nodepki
//!   ```
//!
//!   With this binding a bootstrap token in `tokenFile` is sufficient (`kubeadm token create --usages authentication
//!   --groups system:bootstrappers:nodepki`). A ServiceAccount token, a client certificate or a kubeconfig also work;
//!   bind their user or group. The credential must never hold `approve` or `sign`: the probe warns of one that may
//!   approve.
//! - An approver needs `update` on `certificatesigningrequests/approval`, and the verb `approve` on `signers` with the
//!   signer's name.
//! - The signer needs `update` on `certificatesigningrequests/status` and the verb `sign`. Each authority needs its own
//!   signer name: `signerName: pki.example.com/{authority}` separates the three in one entry of the configuration.
//! - cert-manager uses the names `clusterissuers.cert-manager.io/NAME` and `issuers.cert-manager.io/NAMESPACE.NAME`. Its
//!   controller needs `--feature-gates=ExperimentalCertificateSigningRequestControllers=true`, and for an Issuer the node
//!   needs the verb `reference` on `signers.cert-manager.io` in that namespace. It does not approve requests. Only its
//!   own issuers are supported; the kind `certManager` supports others.
//!
//! # Behaviour
//! - The response does not contain the authority's certificate, which must be on disk or pinned.
//! - "Approved" does not mean signed, and an approved request may have failed. A request with a name that no controller
//!   serves stays without conditions permanently, so the note names the component to check.
//! - The csrcleaner of kube-controller-manager removes decided requests after an hour and undecided ones after a day. A
//!   removed request is created again with the same key, unless it was denied, which this node remembers.
//! - The names `kubernetes.io/*` are suitable for few certificates, and always sign with the CA of the API server's own
//!   cluster: they can renew `controller-manager.conf` and similar certificates *in* that cluster.
//!   [`Signer::preflight`] refuses the others.
//! - The lifetime is requested with `expirationSeconds`, and for cert-manager with its annotation. Signers may shorten
//!   it, and API servers before 1.22 drop it; the dates in the certificate are authoritative.
//! - A user who may create requests may read all of them: they contain names and addresses of nodes, and no secrets.

mod signer_name;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map as JsonMap, json};

use super::cluster::{
    self, Advice, ClusterSigner, Dialect, Draft, Filed, MetadataTexts, ObjectState, Requests,
    no_issuer,
};
use super::per_certificate::PerCertificate;
use super::{
    About, Configured, NodeIdentity, Part, Request, RequestedCertificate, Signer, SignerError,
    SignerKind, SignerObstacle, Site, wire,
};
use crate::cluster::api::{ApiAccess, CSR};
use crate::kube::csr_object::KubeletCertificate;
use crate::kube::names::without_placeholders;
use crate::kube::rbac;
use crate::yaml::settings::{SettingsBlock, settings};
use crate::yaml::{Field, format_duration};

use signer_name::SignerName;

/// Limits of `expirationSeconds`.
const MIN_LIFETIME: Duration = Duration::from_secs(600);
const MAX_EXPIRATION_SECONDS: u64 = i32::MAX as u64;

const ADVICE: Advice = Advice {
    grant: "bind the ClusterRole system:node-bootstrapper to that user or its group: kubectl create clusterrolebinding \
            nodepki --clusterrole=system:node-bootstrapper --user=…",
    unknown_kind: "check that the address is an API server's, of Kubernetes 1.19 or later",
};

settings! {
    /// An API server and a signer name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// API server, `https://HOST:6443`.
        "server" => pub access: ApiAccess, flat cluster;
        /// Signer name: DOMAIN/NAME, issuers.cert-manager.io/NAMESPACE.NAME or clusterissuers.cert-manager.io/NAME.
        "signerName" => pub signer_name: PerCertificate,
            required "as in pki.example.com/{authority}", read read_signer_name;
        /// Request the configured lifetime (expirationSeconds).
        "requestLifetime" => pub request_lifetime: bool = true;
        /// Annotations of the requests: custom fields, templates or profiles of the issuer.
        "annotations" => pub annotations: MetadataTexts = MetadataTexts::default(), read cluster::read_annotations;
        /// Labels of the requests.
        "labels" => pub labels: MetadataTexts = MetadataTexts::default(), read cluster::read_labels;
    }
}

fn read_signer_name(field: &Field<'_>) -> Option<PerCertificate> {
    let names = PerCertificate::read(field)?;
    for text in names.named.values().chain(&names.default) {
        if let Err(fault) = SignerName::parse(&without_placeholders(text)) {
            field.error(fault.reason, fault.advice);
        }
    }
    Some(names)
}

impl Configured for Config {
    const ABOUT: About = About {
        name: "kubernetes",
        signs_with: "the controller that serves the signer name of a CertificateSigningRequest: cert-manager, EJBCA, \
                     kube-controller-manager, your own",
        authentication: "bootstrap token, ServiceAccount token, client certificate, kubeconfig",
        caps: cluster::CAPS,
        keys: Config::KEYS,
    };

    fn setup(parts: &[Part<'_, Self>], identity: &NodeIdentity) -> Option<String> {
        let servers = Part::grouped(parts, |config| &config.access);
        let manifests = servers.into_iter().map(|(access, of_server)| {
            let names: BTreeSet<String> = of_server
                .into_iter()
                .flat_map(|part| {
                    let of = |wanted| part.config.signer_name.of(wanted, identity);
                    part.wanted.iter().copied().filter_map(of)
                })
                .collect();
            manifest(access, &names, &identity.cluster)
        });
        Some(manifests.collect())
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        // In its own cluster nodepki would find its requests there and submit them again.
        let is_of_kubelets = |text: &&String| {
            KubeletCertificate::OWN
                .iter()
                .any(|one| one.signer_name() == *text)
        };
        let texts = |name| {
            self.signer_name
                .named
                .get(&name)
                .or(self.signer_name.default.as_ref())
        };
        let names = KubeletCertificate::OWN.map(KubeletCertificate::cert_name);
        let name = names
            .into_iter()
            .find(|name| texts(*name).as_ref().is_some_and(is_of_kubelets));
        match name {
            Some(name) => Some(SignerObstacle::new(
                format!(
                    "its signerName for {name} is that of the requests which nodepki is to sign"
                ),
                format!(
                    "set signerName to a map with an entry {name}, as in {{{name}: pki.example.com/kubelets}}"
                ),
            )),
            None => self
                .signer_name
                .for_this_node_only("signerName", &PerCertificate::OF_KUBELETS),
        }
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let label = format!("{}:{}", Self::ABOUT.name, self.access);
        let (config, access) = (self.clone(), &self.access);
        let signer = ClusterSigner::open(config, label, access, &CSR, None, ADVICE, site)?;
        Ok(Box::new(signer))
    }
}

/// Returns the manifest with the node's right to create requests and, if needed, to reference cert-manager's Issuers, and
/// with one role each for approver and signer that is restricted to these names.
fn manifest(access: &ApiAccess, names: &BTreeSet<String>, cluster: &str) -> String {
    let group = CSR.group;
    let read =
        json!({"apiGroups": [group], "resources": [CSR.plural], "verbs": ["get", "list", "watch"]});
    let decide = |part: &str, verb: &str| {
        let update = json!({
            "apiGroups": [group],
            "resources": [format!("{}/{part}", CSR.plural)],
            "verbs": ["update"],
        });
        let on_signers = json!({
            "apiGroups": [group],
            "resources": ["signers"],
            "resourceNames": names,
            "verbs": [verb],
        });
        json!([read, update, on_signers])
    };
    // A management cluster has the roles of several clusters.
    let role = |what: &str| json!({"name": format!("nodepki-{what}-{cluster}")});
    let mut objects = vec![
        cluster::binding(&json!({"name": "nodepki"}), "system:node-bootstrapper"),
        rbac::role(&role("approver"), decide("approval", "approve")),
        rbac::role(&role("signer"), decide("status", "sign")),
    ];
    let mut issuers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names.iter().filter_map(|name| SignerName::parse(name).ok()) {
        if let Some((namespace, issuer)) = name.referenced() {
            issuers
                .entry(namespace.to_owned())
                .or_default()
                .push(issuer.to_owned());
        }
    }
    for (namespace, issuers) in issuers {
        let role = format!("nodepki-reference-{cluster}");
        let named = json!({"name": role, "namespace": namespace});
        let rules = json!([{
            "apiGroups": ["cert-manager.io"],
            "resources": ["signers"],
            "resourceNames": issuers,
            "verbs": ["reference"],
        }]);
        objects.push(cluster::binding(&named, &role));
        objects.push(rbac::role(&named, rules));
    }
    let then = format!(
        "Bind nodepki-approver-{cluster} to the approver and nodepki-signer-{cluster} to the controller that signs; bind \
         neither to a node."
    );
    cluster::manifest(access, &objects, &then)
}

impl Dialect for Config {
    type Issuer = SignerName;

    const KIND: SignerKind = SignerKind::Kubernetes;

    fn issuer(
        &self,
        wanted: &RequestedCertificate,
        identity: &NodeIdentity,
    ) -> Result<SignerName, SignerObstacle> {
        let text = self
            .signer_name
            .of(wanted, identity)
            .ok_or_else(|| no_issuer("signerName", "signerName", wanted))?;
        SignerName::parse(&text)
            .map_err(|fault| SignerObstacle::new(format!("its signerName {fault}"), fault.advice))
    }

    fn obstacle(
        &self,
        wanted: &RequestedCertificate,
        signer: &SignerName,
    ) -> Option<SignerObstacle> {
        let mut obstacles = signer.obstacles(wanted);
        if self.request_lifetime && wanted.profile.lifetime < MIN_LIFETIME {
            obstacles.push(format!(
                "the API accepts no lifetime below {} ({} is requested; requestLifetime: false leaves it to the signer)",
                format_duration(MIN_LIFETIME),
                format_duration(wanted.profile.lifetime)
            ));
        }
        (!obstacles.is_empty()).then(|| {
            SignerObstacle::new(
                format!(
                    "with signerName {}, {}",
                    signer.as_str(),
                    obstacles.join("; ")
                ),
                format!(
                    "configure another signerName for it, or another signer for authority {}",
                    wanted.authority
                ),
            )
        })
    }

    fn annotations(&self) -> &MetadataTexts {
        &self.annotations
    }

    fn labels(&self) -> &MetadataTexts {
        &self.labels
    }

    fn draft(&self, request: &Request, signer: &SignerName) -> Draft {
        let profile = &request.wanted.profile;
        let mut annotations = JsonMap::new();
        let mut spec = JsonMap::new();
        spec.insert("request".to_owned(), cluster::pem_in_base64(request));
        spec.insert("signerName".to_owned(), json!(signer.as_str()));
        if self.request_lifetime {
            let seconds = profile.lifetime.as_secs();
            let expiration = seconds.min(MAX_EXPIRATION_SECONDS);
            spec.insert("expirationSeconds".to_owned(), json!(expiration));
            if signer.is_cert_manager() {
                let duration = format_duration(Duration::from_secs(seconds));
                annotations.insert(cluster::DURATION_ANNOTATION.to_owned(), json!(duration));
            }
        }
        spec.insert("usages".to_owned(), json!(wire::usages(profile)));
        Draft {
            annotations,
            labels: JsonMap::new(),
            spec,
            identifying_fields: &["request", "signerName", "usages"],
        }
    }

    /// Checks the conditions in order of precedence: an approved request may be signed, failed or neither.
    fn outcome(&self, requests: &Requests, filed: &Filed, signer: &SignerName) -> ObjectState {
        let object = requests.object(&filed.name);
        // The API server keeps a certificate together with these two conditions, and kubectl shows them first.
        if let Some(denied) = filed.condition("Denied") {
            return ObjectState::Denied(denied.said());
        }
        if let Some(failure) = filed.condition("Failed") {
            return ObjectState::Failed {
                why: format!(
                    "the signer {} reports for {object}: {}",
                    signer.as_str(),
                    failure.said()
                ),
                advice: format!(
                    "correct what it names and remove the request ({}), or wait an hour for its removal; then run again",
                    requests.kubectl("delete", &filed.name)
                ),
            };
        }
        match filed.pem("certificate") {
            Ok(Some(certificate)) => return ObjectState::Issued(certificate),
            Ok(None) => {}
            Err(why) => {
                return ObjectState::Failed {
                    why: format!("{object} is damaged: {why}"),
                    advice: "check it with the administrators of the cluster".to_owned(),
                };
            }
        }
        ObjectState::Pending(match filed.condition("Approved") {
            Some(approved) => format!(
                "{object} is approved ({}) and waits since {} {}",
                approved.said(),
                filed.since(),
                signer.missing()
            ),
            None => format!(
                "{object} for signer {} waits for approval since {}{}: kubectl certificate approve {}",
                signer.as_str(),
                filed.since(),
                signer.approver(),
                filed.name
            ),
        })
    }
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_signer_name(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = SignerName::parse(text);
    }
}
