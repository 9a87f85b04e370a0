//! `kubernetes`: CertificateSigningRequests of `certificates.k8s.io/v1`, for whoever serves their signer name.
//!
//! A controller of your own, cert-manager, EJBCA's, or kube-controller-manager itself. The API server of a management
//! cluster is the usual place. It must not be the API server that is to get its first certificates this way.
//!
//! # What the cluster needs
//! `nodepki config signer-setup kubernetes | kubectl apply -f -` makes the roles below, for the signer names of the
//! configuration.
//! - The node may create and read requests, and nothing else: the ClusterRole `system:node-bootstrapper`, which is in
//!   every cluster.
//!
//!   ```text
//!   kubectl create clusterrolebinding nodepki --clusterrole=system:node-bootstrapper --group=system:bootstrappers:nodepki
//!   ```
//!
//!   With that, a bootstrap token in `tokenFile` is enough (`kubeadm token create --usages authentication --groups
//!   system:bootstrappers:nodepki`). A ServiceAccount's token, a client
//!   certificate or a kubeconfig do as well; bind their user or group. It must never hold `approve` or `sign`: the
//!   probe warns of a credential that may approve.
//! - Somebody approves: `update` on `certificatesigningrequests/approval`, and the verb `approve` on `signers` with
//!   the signer's name.
//! - Somebody signs: `update` on `certificatesigningrequests/status` and the verb `sign`. One signer name for each
//!   authority: `signerName: pki.example.com/{authority}` keeps the three apart in one entry of the configuration.
//! - For cert-manager: `clusterissuers.cert-manager.io/NAME` or `issuers.cert-manager.io/NAMESPACE.NAME`, its
//!   controller with `--feature-gates=ExperimentalCertificateSigningRequestControllers=true`, and for an Issuer the
//!   verb `reference` on `signers.cert-manager.io` in that namespace for the node. It approves nothing by itself. Only
//!   its own issuers do this; for others there is the kind `certManager`.
//!
//! # Habits
//! - The answer does not bring the authority's certificate: that is on disk, or pinned.
//! - "Approved" is not signed, and an approved request may have failed. A name that nobody serves stays without any
//!   condition for good, so that the note says whom to look for.
//! - kube-controller-manager's csrcleaner removes what was decided after an hour and what was not after a day. A
//!   request that is gone is made again with the same key; one that was denied is not, and this node remembers so.
//! - `kubernetes.io/*` fit few certificates, and always with the CA of the API server's own cluster: useful to renew
//!   `controller-manager.conf` and its like *in* that cluster. [`Signer::preflight`] says which.
//! - A lifetime is asked for with `expirationSeconds`, and with cert-manager's annotation where that is who signs.
//!   Signers cap it, and API servers before 1.22 drop it; the dates of the certificate are what counts.
//! - Whoever may create requests may read everybody's: they hold names and addresses of nodes, and no secrets.

mod signer_name;

use std::collections::{BTreeMap, BTreeSet};
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
use crate::yaml::schema::{Form, Key, key, required};
use crate::yaml::{Map, format_duration};

use signer_name::SignerName;

/// The API takes no less.
const SHORTEST: Duration = Duration::from_secs(600);
const LONGEST: u64 = i32::MAX as u64;
const DURATION_ANNOTATION: &str = "experimental.cert-manager.io/request-duration";

const REQUESTS: Resource = Resource {
    group: "certificates.k8s.io",
    version: "v1",
    plural: "certificatesigningrequests",
    kind: "CertificateSigningRequest",
};

const WORDS: Words = Words {
    grant: "bind the ClusterRole system:node-bootstrapper to that user or its group: kubectl create clusterrolebinding \
            nodepki --clusterrole=system:node-bootstrapper --user=…",
    absent: "check that the address is an API server's, of Kubernetes 1.19 or later",
};

/// An API server and a signer name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where, and who we are there.
    pub access: Access,
    /// `DOMAIN/NAME`.
    pub signer_name: PerCertificate,
    /// Whether to say how long the certificate should be valid.
    pub request_lifetime: bool,
}

#[rustfmt::skip]
const OWN_KEYS: &[Key] = &[
    key("signerName", Form::PerCertificate, "Who is to sign: DOMAIN/NAME, issuers.cert-manager.io/NAMESPACE.NAME or clusterissuers.cert-manager.io/NAME."),
    key("requestLifetime", Form::Flag, "Ask for the configured lifetime (expirationSeconds); default true."),
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
        name: "kubernetes",
        signs_with: "whoever serves the signer name of a CertificateSigningRequest: cert-manager, EJBCA, \
                     kube-controller-manager, a controller of yours",
        authentication: "bootstrap token, ServiceAccount token, client certificate, kubeconfig",
        caps: CAPS,
        keys: &[OWN_KEYS, cluster::KEYS, endpoint::KEYS],
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let access = cluster::read(map);
        let field = required(map, "signerName", "as in pki.example.com/{authority}");
        let signer_name = field.as_ref().and_then(PerCertificate::read);
        if let (Some(field), Some(names)) = (&field, &signer_name) {
            for text in names.named.values().chain(&names.default) {
                if let Err(fault) = SignerName::parse(&sample(text)) {
                    field.error(fault.what, fault.fix);
                }
            }
        }
        let request_lifetime = map.get("requestLifetime");
        Some(Config {
            access: access?,
            signer_name: signer_name?,
            request_lifetime: request_lifetime
                .and_then(|field| field.boolean())
                .unwrap_or(true),
        })
    }

    fn redacted(&self) -> Value {
        let mut keys = JsonMap::new();
        cluster::redacted(&self.access, &mut keys);
        keys.insert("signerName".to_owned(), self.signer_name.redacted());
        keys.insert("requestLifetime".to_owned(), json!(self.request_lifetime));
        Value::Object(keys)
    }

    fn setup(parts: &[Part<'_, Self>], identity: &Identity) -> Option<String> {
        let mut servers: Vec<&Access> = Vec::new();
        for part in parts {
            if !servers.contains(&&part.config.access) {
                servers.push(&part.config.access);
            }
        }
        let manifests = servers.into_iter().map(|access| {
            let of_server = parts.iter().filter(|part| part.config.access == *access);
            let names: BTreeSet<String> = of_server
                .flat_map(|part| {
                    let of = |wanted| part.config.signer_name.of(wanted, identity);
                    part.wanted.iter().filter_map(of)
                })
                .collect();
            manifest(access, &names, &identity.cluster)
        });
        Some(manifests.collect())
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let label = format!("{}:{}", Self::ABOUT.name, self.access);
        Ok(Box::new(Kubernetes {
            cluster: Cluster::new(label, self.access.clone(), &REQUESTS, None, WORDS, site)?,
            identity: site.identity.clone(),
            signer_name: self.signer_name.clone(),
            request_lifetime: self.request_lifetime,
            caps: CAPS,
        }))
    }
}

/// The node's right to ask, and to name cert-manager's Issuers where it does; and for whoever approves and signs, a role
/// each that goes no further than these names.
fn manifest(access: &Access, names: &BTreeSet<String>, cluster: &str) -> String {
    let group = REQUESTS.group;
    let read = json!({"apiGroups": [group], "resources": [REQUESTS.plural], "verbs": ["get", "list", "watch"]});
    let decide = |part: &str, verb: &str| {
        let update = json!({
            "apiGroups": [group],
            "resources": [format!("{}/{part}", REQUESTS.plural)],
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
    // A management cluster has those of several clusters.
    let role = |what: &str| json!({"name": format!("nodepki-{what}-{cluster}")});
    let mut objects = vec![
        cluster::binding(
            "ClusterRoleBinding",
            json!({"name": "nodepki"}),
            "ClusterRole",
            "system:node-bootstrapper",
        ),
        cluster::role(
            "ClusterRole",
            role("approver"),
            decide("approval", "approve"),
        ),
        cluster::role("ClusterRole", role("signer"), decide("status", "sign")),
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
        let named = json!({"name": format!("nodepki-reference-{cluster}"), "namespace": namespace});
        let rules = json!([{
            "apiGroups": ["cert-manager.io"],
            "resources": ["signers"],
            "resourceNames": issuers,
            "verbs": ["reference"],
        }]);
        let role = format!("nodepki-reference-{cluster}");
        objects.push(cluster::binding(
            "RoleBinding",
            named.clone(),
            "Role",
            &role,
        ));
        objects.push(cluster::role("Role", named, rules));
    }
    let then = format!(
        "Bind nodepki-approver-{cluster} to whoever approves and nodepki-signer-{cluster} to the controller that \
         signs; to a node, neither."
    );
    cluster::manifest(access, &objects, &then)
}

/// A text as it may look with its placeholders filled in.
fn sample(text: &str) -> String {
    ["{certificate}", "{authority}", "{node}", "{cluster}"]
        .into_iter()
        .fold(text.to_owned(), |text, one| text.replace(one, "x"))
}

/// Asks for certificates with CertificateSigningRequests.
struct Kubernetes {
    cluster: Cluster,
    identity: Identity,
    signer_name: PerCertificate,
    request_lifetime: bool,
    caps: Caps,
}

impl Kubernetes {
    fn signer_name(&self, wanted: &Wanted) -> Result<SignerName, Rejection> {
        let rejection = |reason: String, advice: String| Rejection {
            signer: self.cluster.label().to_owned(),
            name: wanted.name,
            reason,
            advice,
        };
        let text = self.signer_name.of(wanted, &self.identity).ok_or_else(|| {
            rejection(
                "there is no signerName for it".to_owned(),
                format!(
                    "add `{}:` or `default:` below signerName, or give authority {} another signer",
                    wanted.name, wanted.authority
                ),
            )
        })?;
        SignerName::parse(&text)
            .map_err(|fault| rejection(format!("its signerName {}", fault.what), fault.fix))
    }

    fn draft(&self, request: &Request) -> Result<(Draft, SignerName), SignerError> {
        let signer = self.signer_name(&request.wanted).map_err(|rejection| {
            SignerError::config(rejection.to_string(), "run `nodepki plan`")
        })?;
        let profile = &request.wanted.profile;
        let mut annotations = JsonMap::new();
        let mut spec = JsonMap::new();
        spec.insert("request".to_owned(), cluster::pem_in_base64(request));
        spec.insert("signerName".to_owned(), json!(signer.as_str()));
        if self.request_lifetime {
            let seconds = profile.lifetime.as_secs().min(LONGEST);
            spec.insert("expirationSeconds".to_owned(), json!(seconds));
            if signer.is_cert_manager() {
                let duration = format_duration(Duration::from_secs(profile.lifetime.as_secs()));
                annotations.insert(DURATION_ANNOTATION.to_owned(), json!(duration));
            }
        }
        spec.insert("usages".to_owned(), json!(wire::usages(profile)));
        let draft = Draft {
            annotations,
            spec,
            telling: &["request", "signerName", "usages"],
        };
        Ok((draft, signer))
    }

    /// What the object says, in the order that counts: an approved request may be signed, failed or neither.
    fn judge(
        &self,
        request: &Request,
        draft: &Draft,
        signer: &SignerName,
        filed: Filed,
    ) -> Result<Answer, SignerError> {
        let cluster = &self.cluster;
        let object = cluster.object(&filed.name);
        let failed = |why: String| {
            format!(
                "{}: {} failed: {why}",
                cluster.label(),
                server::signing(request)
            )
        };
        // The API server keeps a certificate beside these two, and kubectl shows them first.
        if let Some(denied) = filed.condition("Denied") {
            return Ok(cluster.denied(request, draft, &filed, &denied.said()));
        }
        if let Some(failure) = filed.condition("Failed") {
            return Err(SignerError::permanent(
                failed(format!(
                    "the signer {} says of {object}: {}",
                    signer.as_str(),
                    failure.said()
                )),
                format!(
                    "mend what it names and remove the request ({}), or wait an hour for its removal; then run again",
                    cluster.kubectl("delete", &filed.name)
                ),
            ));
        }
        let certificate = filed.pem("certificate").map_err(|why| {
            SignerError::permanent(
                failed(format!("{object} is damaged: {why}")),
                "look at it with the administrators of the cluster",
            )
        })?;
        if let Some(certificate) = certificate {
            return Ok(Answer::Issued(certificate));
        }
        let note = match filed.condition("Approved") {
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
        };
        cluster.pending(request, filed, note)
    }
}

#[async_trait(?Send)]
impl Signer for Kubernetes {
    fn kind(&self) -> Kind {
        Kind::Kubernetes
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
        let signer = self.signer_name(wanted)?;
        let mut obstacles = signer.obstacles(wanted);
        if self.request_lifetime && wanted.profile.lifetime < SHORTEST {
            obstacles.push(format!(
                "the API takes no lifetime below {} ({} is wanted; requestLifetime: false leaves it to the signer)",
                format_duration(SHORTEST),
                format_duration(wanted.profile.lifetime)
            ));
        }
        if obstacles.is_empty() {
            return Ok(());
        }
        Err(Rejection {
            signer: self.cluster.label().to_owned(),
            name: wanted.name,
            reason: format!(
                "with signerName {}, {}",
                signer.as_str(),
                obstacles.join("; ")
            ),
            advice: format!(
                "give it another signerName, or authority {} another signer",
                wanted.authority
            ),
        })
    }

    async fn trust(&self, _authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(None)
    }

    async fn recover(
        &self,
        request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        let (draft, signer) = self.draft(request)?;
        let judge = |filed| self.judge(request, &draft, &signer, filed);
        self.cluster.recover(request, &draft, judge).await
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let (draft, signer) = self.draft(request)?;
        let judge = |filed| self.judge(request, &draft, &signer, filed);
        self.cluster.submit(request, &draft, judge).await
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        let (draft, signer) = self.draft(request)?;
        let judge = |filed| self.judge(request, &draft, &signer, filed);
        self.cluster.poll(request, &draft, ticket, judge).await
    }

    async fn settled(&self, request: &Request) -> Result<(), SignerError> {
        self.cluster.forget(request);
        Ok(())
    }
}
