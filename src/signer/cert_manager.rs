//! `certManager`: cert-manager's CertificateRequests, the way to its external issuers (AWS PCA, Google CAS, step and
//! others), which the kind `kubernetes` does not reach.
//!
//! # What the cluster needs
//! - cert-manager's CertificateRequest `cert-manager.io/v1`, and the issuer.
//! - The node may create and read requests in one namespace, and nothing else; `nodepki config signer-setup
//!   certManager | kubectl apply -f -` makes namespace, role and binding. Better isolated than the kind `kubernetes`: a
//!   namespace for each cluster or node keeps requests from being read by others.
//! - Somebody approves: cert-manager's own approver for its own issuers, approver-policy or `cmctl approve` for
//!   others, with the verb `approve` on `signers.cert-manager.io`. The node must never hold it.
//!
//! # Habits
//! - A request is tried once: after `Failed`, `Denied` or `InvalidRequest` it stays as it is for good, nothing removes
//!   it, and only a person who deletes it lets the same certificate be asked for again.
//! - "Approved" is not signed. A missing or unready issuer shows as `Ready: False, Pending`, or as nothing at all.
//! - With key usages in the CSR, cert-manager compares them with those of the request, the extended ones in order.
//!   Both are made from the same list.
//! - `status.ca` is the issuer's idea of its CA, without promise: a root, an intermediate or nothing. It is taken for a
//!   link that the chain may be missing, and never for trust.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map as JsonMap, Value, json};

use super::cluster::{self, Cluster, Draft, Filed, Words};
use super::per_certificate::PerCertificate;
use super::{
    About, Answer, Caps, Carry, Configured, Identity, Kind, Lookup, Part, Rejection, Request,
    Resubmit, Signer, SignerError, Site, Ticket, Wanted, endpoint, server, wire,
};
use crate::cluster::api::{Access, Resource};
use crate::kube::names::Authority;
use crate::x509::TrustBundle;
use crate::yaml::schema::{Form, Key, key, required, section};
use crate::yaml::{Map, format_duration};

const REQUESTS: Resource = Resource {
    group: "cert-manager.io",
    version: "v1",
    plural: "certificaterequests",
    kind: "CertificateRequest",
};

const WORDS: Words = Words {
    grant: "give that user a Role in the namespace with create and get on certificaterequests.cert-manager.io",
    absent: "check that the address is an API server's and that cert-manager's CertificateRequest is installed there",
};

/// A namespace of an API server, and an issuer that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where, and who we are there.
    pub access: Access,
    /// Where the requests go.
    pub namespace: String,
    /// Name of the issuer.
    pub issuer: PerCertificate,
    /// Its kind: `Issuer`, `ClusterIssuer`, `AWSPCAClusterIssuer`.
    pub issuer_kind: String,
    /// Its API group.
    pub issuer_group: String,
    /// Whether to say how long the certificate should be valid.
    pub request_lifetime: bool,
}

#[rustfmt::skip]
const OWN_KEYS: &[Key] = &[
    key("namespace", Form::Text, "Namespace for the requests."),
    key("issuerRef.name", Form::PerCertificate, "Name of the issuer."),
    key("issuerRef.kind", Form::Text, "Its kind; default Issuer."),
    key("issuerRef.group", Form::Text, "Its API group; default cert-manager.io."),
    key("requestLifetime", Form::Flag, "Ask for the configured lifetime (duration); default true."),
];

const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ip_sans: Carry::AsConfigured,
    pends: true,
    lookup: Lookup::ByName,
    resubmit: Resubmit::Adopts,
    ..Caps::everything()
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "certManager",
        signs_with: "an issuer of cert-manager, external ones included, through a CertificateRequest",
        authentication: "ServiceAccount token, bootstrap token, client certificate, kubeconfig",
        caps: CAPS,
        keys: &[OWN_KEYS, cluster::KEYS, endpoint::KEYS],
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let access = cluster::read(map);
        let namespace = required(map, "namespace", "with the one that this node may use");
        let namespace = namespace.and_then(|field| {
            let name = field.string()?;
            if !is_name(&name, 63) || name.contains('.') {
                field.error(
                    format!("{name:?} is no namespace"),
                    "use lower-case letters, digits and dashes",
                );
            }
            Some(name)
        });
        let (mut issuer, mut kind, mut group) = (None, None, None);
        match section(map, "issuerRef") {
            Some(keys) => {
                issuer = required(&keys, "name", "with the issuer's name")
                    .and_then(|field| PerCertificate::read(&field));
                let text = |name| keys.get(name).and_then(|field| field.string());
                (kind, group) = (text("kind"), text("group"));
                keys.finish();
            }
            None => {
                required(
                    map,
                    "issuerRef",
                    "{name: …, kind: Issuer, group: cert-manager.io}",
                );
            }
        }
        let request_lifetime = map.get("requestLifetime");
        Some(Config {
            access: access?,
            namespace: namespace?,
            issuer: issuer?,
            issuer_kind: kind.unwrap_or_else(|| "Issuer".to_owned()),
            issuer_group: group.unwrap_or_else(|| "cert-manager.io".to_owned()),
            request_lifetime: request_lifetime
                .and_then(|field| field.boolean())
                .unwrap_or(true),
        })
    }

    fn redacted(&self) -> Value {
        let mut keys = JsonMap::new();
        cluster::redacted(&self.access, &mut keys);
        keys.insert("namespace".to_owned(), json!(self.namespace));
        keys.insert(
            "issuerRef".to_owned(),
            json!({
                "name": self.issuer.redacted(),
                "kind": self.issuer_kind,
                "group": self.issuer_group,
            }),
        );
        keys.insert("requestLifetime".to_owned(), json!(self.request_lifetime));
        Value::Object(keys)
    }

    fn setup(parts: &[Part<'_, Self>], _identity: &Identity) -> Option<String> {
        let mut places: Vec<(&Access, &str)> = Vec::new();
        for part in parts {
            let place = (&part.config.access, part.config.namespace.as_str());
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let manifests = places.into_iter().map(|(access, namespace)| {
            let named = json!({"name": "nodepki", "namespace": namespace});
            let rules = json!([{
                "apiGroups": [REQUESTS.group],
                "resources": [REQUESTS.plural],
                "verbs": ["create", "get"],
            }]);
            let objects = [
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
                cluster::binding("RoleBinding", named.clone(), "Role", "nodepki"),
                cluster::role("Role", named, rules),
            ];
            let then = "Whoever approves needs the verb approve on signers.cert-manager.io; a node must not have it.";
            cluster::manifest(access, &objects, then)
        });
        Some(manifests.collect())
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let label = format!(
            "{}:{} namespace {}",
            Self::ABOUT.name,
            self.access,
            self.namespace
        );
        Ok(Box::new(CertManager {
            cluster: Cluster::new(
                label,
                self.access.clone(),
                &REQUESTS,
                Some(self.namespace.clone()),
                WORDS,
                site,
            )?,
            identity: site.identity.clone(),
            config: self.clone(),
            caps: CAPS,
        }))
    }
}

/// RFC 1123.
fn is_name(text: &str, longest: usize) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=longest).contains(&text.len())
        && text.starts_with(inner)
        && text.ends_with(inner)
        && text.chars().all(|c| inner(c) || c == '-' || c == '.')
}

/// Asks for certificates with CertificateRequests.
struct CertManager {
    cluster: Cluster,
    identity: Identity,
    config: Config,
    caps: Caps,
}

impl CertManager {
    fn issuer(&self, wanted: &Wanted) -> Result<String, Rejection> {
        let name = self.config.issuer.of(wanted, &self.identity);
        let (reason, advice) = match name {
            Some(name) if is_name(&name, 253) => return Ok(name),
            Some(name) => (
                format!("{name:?} cannot be the name of its issuer"),
                "use lower-case letters, digits, dashes and dots".to_owned(),
            ),
            None => (
                "there is no issuer for it".to_owned(),
                format!(
                    "add `{}:` or `default:` below issuerRef.name, or give authority {} another signer",
                    wanted.name, wanted.authority
                ),
            ),
        };
        Err(Rejection {
            signer: self.cluster.label().to_owned(),
            name: wanted.name,
            reason,
            advice,
        })
    }

    /// "AWSPCAIssuer corp of awspca.cert-manager.io", for messages.
    fn described(&self, issuer: &str) -> String {
        format!(
            "{} {issuer} of {}",
            self.config.issuer_kind, self.config.issuer_group
        )
    }

    fn draft(&self, request: &Request) -> Result<(Draft, String), SignerError> {
        let issuer = self.issuer(&request.wanted).map_err(|rejection| {
            SignerError::config(rejection.to_string(), "run `nodepki plan`")
        })?;
        let profile = &request.wanted.profile;
        let mut spec = JsonMap::new();
        spec.insert("request".to_owned(), cluster::pem_in_base64(request));
        spec.insert(
            "issuerRef".to_owned(),
            json!({
                "name": issuer,
                "kind": self.config.issuer_kind,
                "group": self.config.issuer_group,
            }),
        );
        if self.config.request_lifetime {
            let whole = Duration::from_secs(profile.lifetime.as_secs());
            spec.insert("duration".to_owned(), json!(format_duration(whole)));
        }
        spec.insert("usages".to_owned(), json!(wire::usages(profile)));
        let draft = Draft {
            annotations: JsonMap::new(),
            spec,
            telling: &["request", "issuerRef", "usages"],
        };
        Ok((draft, issuer))
    }

    fn judge(
        &self,
        request: &Request,
        draft: &Draft,
        issuer: &str,
        filed: Filed,
    ) -> Result<Answer, SignerError> {
        let cluster = &self.cluster;
        let object = cluster.object(&filed.name);
        let error = |why: String, advice: String| {
            SignerError::permanent(
                format!(
                    "{}: {} failed: {why}",
                    cluster.label(),
                    server::signing(request)
                ),
                advice,
            )
        };
        let again = format!(
            "mend what it names and remove the request, which is tried only once ({}); then run again",
            cluster.kubectl("delete", &filed.name)
        );
        if let Some(denied) = filed.condition("Denied") {
            return Ok(cluster.denied(request, draft, &filed, &denied.said()));
        }
        if let Some(invalid) = filed.condition("InvalidRequest") {
            return Err(error(
                format!("{object} is invalid: {}", invalid.said()),
                again,
            ));
        }
        let unready = filed.condition_of("Ready", "False");
        match unready.as_ref().map(|unready| unready.reason.as_str()) {
            Some("Denied") => {
                let said = unready.map(|unready| unready.said()).unwrap_or_default();
                return Ok(cluster.denied(request, draft, &filed, &said));
            }
            Some("Failed") => {
                let said = unready.map(|unready| unready.said()).unwrap_or_default();
                return Err(error(
                    format!("the {} says of {object}: {said}", self.described(issuer)),
                    again,
                ));
            }
            _ => {}
        }
        if filed.condition("Ready").is_some() {
            let damaged = |why: String| {
                error(
                    format!("{object} is damaged: {why}"),
                    "look at it with the administrators of the cluster".to_owned(),
                )
            };
            let mut answer = filed
                .pem("certificate")
                .map_err(damaged)?
                .ok_or_else(|| damaged("it is Ready and has no certificate".to_owned()))?;
            if let Ok(Some(ca)) = filed.pem("ca")
                && let Ok(ca) = TrustBundle::from_pem(&ca)
            {
                answer.push(b'\n');
                answer.extend(ca.to_pem().into_bytes());
            }
            return Ok(Answer::Issued(answer));
        }
        let said = unready.map_or(String::new(), |unready| {
            format!(" (it says: {})", unready.said())
        });
        let note = match filed.condition("Approved") {
            Some(approved) => format!(
                "{object} is approved ({}) and waits since {} for the {}{said}: see that it exists and is Ready, and \
                 that its controller runs",
                approved.said(),
                filed.since(),
                self.described(issuer)
            ),
            None => format!(
                "{object} for the {} waits for approval since {}{said}, which cert-manager does by itself for its \
                 own issuers only: cmctl approve -n {} {}",
                self.described(issuer),
                filed.since(),
                self.config.namespace,
                filed.name
            ),
        };
        cluster.pending(request, filed, note)
    }
}

#[async_trait(?Send)]
impl Signer for CertManager {
    fn kind(&self) -> Kind {
        Kind::CertManager
    }

    fn label(&self) -> String {
        self.cluster.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    async fn probe(&self) -> Result<(), SignerError> {
        self.cluster.probe().await
    }

    fn preflight(&self, wanted: &Wanted) -> Result<(), Rejection> {
        self.caps.carries(self.cluster.label(), wanted)?;
        self.issuer(wanted).map(|_| ())
    }

    async fn trust(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(None)
    }

    async fn recover(
        &self,
        request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        let (draft, issuer) = self.draft(request)?;
        let judge = |filed| self.judge(request, &draft, &issuer, filed);
        self.cluster.recover(request, &draft, judge).await
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let (draft, issuer) = self.draft(request)?;
        let judge = |filed| self.judge(request, &draft, &issuer, filed);
        self.cluster.submit(request, &draft, judge).await
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        let (draft, issuer) = self.draft(request)?;
        let judge = |filed| self.judge(request, &draft, &issuer, filed);
        self.cluster.poll(request, &draft, ticket, judge).await
    }

    async fn settled(&self, request: &Request) -> Result<(), SignerError> {
        self.cluster.forget(request);
        Ok(())
    }
}
