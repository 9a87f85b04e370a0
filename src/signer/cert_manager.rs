//! `certManager`: cert-manager's CertificateRequests. This kind reaches its external issuers (AWS PCA, Google CAS, step
//! and others), which the kind `kubernetes` does not.
//!
//! # Preparation of the cluster
//! - cert-manager's CertificateRequest `cert-manager.io/v1`, and the issuer.
//! - The node may create and read requests in one namespace, and nothing else; `nodepki config signer-setup
//!   certManager | kubectl apply -f -` creates namespace, role and binding. This isolates better than the kind
//!   `kubernetes`: with a namespace for each cluster or node, other nodes cannot read the requests.
//! - An approver: cert-manager's own for its own issuers, approver-policy or `cmctl approve` for others, with the verb
//!   `approve` on `signers.cert-manager.io`. The node must never hold that verb.
//!
//! # Behaviour
//! - cert-manager tries a request once: after `Failed`, `Denied` or `InvalidRequest` it does not change and is not
//!   removed, and the same certificate can be requested again only after an administrator has deleted it.
//! - "Approved" does not mean signed. A missing or unready issuer appears as `Ready: False, Pending`, or not at all.
//! - If the CSR contains key usages, cert-manager compares them with those of the request, the extended ones in order.
//!   Both are derived from the same list.
//! - `status.ca` is the issuer's CA, without guarantee: a root, an intermediate or nothing. It is used as a link that
//!   the chain may lack, and never for trust.

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
use crate::cluster::api::{ApiAccess, Resource};
use crate::kube::rbac;
use crate::x509::TrustBundle;
use crate::yaml::settings::{SettingsBlock, settings};
use crate::yaml::{Field, format_duration};

const REQUESTS: Resource = Resource {
    group: "cert-manager.io",
    version: "v1",
    plural: "certificaterequests",
    kind: "CertificateRequest",
};

const ADVICE: Advice = Advice {
    grant: "give that user a Role in the namespace with create and get on certificaterequests.cert-manager.io",
    unknown_kind: "check that the address is an API server's and that cert-manager's CertificateRequest is installed there",
};

/// Largest length of a namespace (RFC 1123 label) and of an issuer's name (RFC 1123 subdomain).
const MAX_LABEL_LENGTH: usize = 63;
const MAX_SUBDOMAIN_LENGTH: usize = 253;

settings! {
    /// A namespace of an API server, and an issuer that serves it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// API server, `https://HOST:6443`.
        "server" => pub access: ApiAccess, flat cluster;
        /// Namespace for the requests.
        "namespace" => pub namespace: String, required "with the one that this node may use", read read_namespace;
        /// Reference to the issuer.
        "issuerRef" => pub issuer_ref: IssuerRef, required "{name: …, kind: Issuer, group: cert-manager.io}";
        /// Request the configured lifetime (duration).
        "requestLifetime" => pub request_lifetime: bool = true;
        /// Annotations of the requests: custom fields, templates or profiles of the issuer.
        "annotations" => pub annotations: MetadataTexts = MetadataTexts::default(), read cluster::read_annotations;
        /// Labels of the requests.
        "labels" => pub labels: MetadataTexts = MetadataTexts::default(), read cluster::read_labels;
    }
}

settings! {
    /// Reference to an issuer.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IssuerRef {
        /// Name of the issuer.
        "name" => pub name: PerCertificate, required "with the issuer's name";
        /// Kind of the issuer, such as Issuer, ClusterIssuer or AWSPCAClusterIssuer.
        "kind" => pub kind: String = "Issuer".to_owned();
        /// API group of the issuer.
        "group" => pub group: String = "cert-manager.io".to_owned();
    }
}

fn read_namespace(field: &Field<'_>) -> Option<String> {
    let name = field.string()?;
    if !is_name(&name, MAX_LABEL_LENGTH) || name.contains('.') {
        field.error(
            format!("{name:?} is not a namespace"),
            "use lower-case letters, digits and dashes",
        );
    }
    Some(name)
}

impl Configured for Config {
    const ABOUT: About = About {
        name: "certManager",
        signs_with: "an issuer of cert-manager, external ones included, through a CertificateRequest",
        authentication: "ServiceAccount token, bootstrap token, client certificate, kubeconfig",
        caps: cluster::CAPS,
        keys: Config::KEYS,
    };

    fn setup(parts: &[Part<'_, Self>], _identity: &NodeIdentity) -> Option<String> {
        let places = Part::grouped(parts, |config| (&config.access, config.namespace.as_str()));
        let manifests = places.into_iter().map(|((access, namespace), _)| {
            let named = json!({"name": "nodepki", "namespace": namespace});
            let rules = json!([{
                "apiGroups": [REQUESTS.group],
                "resources": [REQUESTS.plural],
                "verbs": ["create", "get"],
            }]);
            let objects = [
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
                cluster::binding(&named, "nodepki"),
                rbac::role(&named, rules),
            ];
            let hint = "The approver needs the verb approve on signers.cert-manager.io; a node must not have it.";
            cluster::manifest(access, &objects, hint)
        });
        Some(manifests.collect())
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        self.issuer_ref
            .name
            .for_this_node_only("issuerRef.name", &PerCertificate::OF_KUBELETS)
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let label = format!(
            "{}:{} namespace {}",
            Self::ABOUT.name,
            self.access,
            self.namespace
        );
        let namespace = Some(self.namespace.clone());
        let (config, access) = (self.clone(), &self.access);
        let signer =
            ClusterSigner::open(config, label, access, &REQUESTS, namespace, ADVICE, site)?;
        Ok(Box::new(signer))
    }
}

/// Returns whether a text is a name by RFC 1123.
fn is_name(text: &str, longest: usize) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=longest).contains(&text.len())
        && text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|c| inner(c) || c == '-' || c == '.')
}

impl IssuerRef {
    /// Returns "AWSPCAIssuer corp of awspca.cert-manager.io", for messages.
    fn described(&self, name: &str) -> String {
        format!("{} {name} of {}", self.kind, self.group)
    }
}

impl Dialect for Config {
    /// Name of the issuer.
    type Issuer = String;

    const KIND: SignerKind = SignerKind::CertManager;

    fn issuer(
        &self,
        wanted: &RequestedCertificate,
        identity: &NodeIdentity,
    ) -> Result<String, SignerObstacle> {
        match self.issuer_ref.name.of(wanted, identity) {
            Some(name) if is_name(&name, MAX_SUBDOMAIN_LENGTH) => Ok(name),
            Some(name) => Err(SignerObstacle::new(
                format!("{name:?} is not a valid name of an issuer"),
                "use lower-case letters, digits, dashes and dots",
            )),
            None => Err(no_issuer("issuer", "issuerRef.name", wanted)),
        }
    }

    fn annotations(&self) -> &MetadataTexts {
        &self.annotations
    }

    fn labels(&self) -> &MetadataTexts {
        &self.labels
    }

    fn draft(&self, request: &Request, issuer: &String) -> Draft {
        let profile = &request.wanted.profile;
        let mut spec = JsonMap::new();
        spec.insert("request".to_owned(), cluster::pem_in_base64(request));
        spec.insert(
            "issuerRef".to_owned(),
            json!({
                "name": issuer,
                "kind": self.issuer_ref.kind,
                "group": self.issuer_ref.group,
            }),
        );
        if self.request_lifetime {
            let seconds = Duration::from_secs(profile.lifetime.as_secs());
            spec.insert("duration".to_owned(), json!(format_duration(seconds)));
        }
        spec.insert("usages".to_owned(), json!(wire::usages(profile)));
        Draft {
            annotations: JsonMap::new(),
            labels: JsonMap::new(),
            spec,
            identifying_fields: &["request", "issuerRef", "usages"],
        }
    }

    fn outcome(&self, requests: &Requests, filed: &Filed, issuer: &String) -> ObjectState {
        let object = requests.object(&filed.name);
        let described = self.issuer_ref.described(issuer);
        let failed = |why: String| ObjectState::Failed {
            why,
            advice: format!(
                "correct what it names and remove the request, which is tried only once ({}); then run again",
                requests.kubectl("delete", &filed.name)
            ),
        };
        if let Some(denied) = filed.condition("Denied") {
            return ObjectState::Denied(denied.said());
        }
        if let Some(invalid) = filed.condition("InvalidRequest") {
            return failed(format!("{object} is invalid: {}", invalid.said()));
        }
        let unready = filed.condition_of("Ready", "False");
        let reason = unready.as_ref().map(|unready| unready.reason.as_str());
        let said = unready.as_ref().map(|unready| unready.said());
        match (reason, &said) {
            (Some("Denied"), Some(said)) => return ObjectState::Denied(said.clone()),
            (Some("Failed"), Some(said)) => {
                return failed(format!("the {described} reports for {object}: {said}"));
            }
            _ => {}
        }
        if filed.condition("Ready").is_some() {
            return match issued(filed) {
                Ok(chain) => ObjectState::Issued(chain),
                Err(why) => ObjectState::Failed {
                    why: format!("{object} is damaged: {why}"),
                    advice: "check it with the administrators of the cluster".to_owned(),
                },
            };
        }
        let said = said.map_or(String::new(), |said| format!(" (it reports: {said})"));
        let since = filed.since();
        ObjectState::Pending(match filed.condition("Approved") {
            Some(approved) => format!(
                "{object} is approved ({}) and waits since {since} for the {described}{said}: check that it exists and \
                 is Ready, and that its controller runs",
                approved.said()
            ),
            None => format!(
                "{object} for the {described} waits for approval since {since}{said}, which cert-manager gives \
                 automatically only for its own issuers: cmctl approve -n {} {}",
                self.namespace, filed.name
            ),
        })
    }
}

/// Returns the certificate, and the issuer's CA certificates if they are readable.
fn issued(filed: &Filed) -> Result<Vec<u8>, String> {
    let mut answer = filed
        .pem("certificate")?
        .ok_or_else(|| "it is Ready and has no certificate".to_owned())?;
    if let Ok(Some(ca)) = filed.pem("ca")
        && let Ok(ca) = TrustBundle::from_pem(&ca)
    {
        answer.push(b'\n');
        answer.extend(ca.to_pem().into_bytes());
    }
    Ok(answer)
}
