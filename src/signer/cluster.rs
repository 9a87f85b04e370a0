//! Kinds of signer that create request objects on a Kubernetes API server.
//!
//! A kind implements [`Dialect`], which defines the form of its object and the meaning of its conditions;
//! [`ClusterSigner`] is the signer. The name of an object is derived from everything that is requested, the CSR
//! included, so a request is found again after a crash and never created twice. If another user has an object of
//! that name, a salt that only this node knows makes a second, unpredictable name. Objects are created and read, and
//! never changed: the node needs no right to update, and cannot approve or sign.

mod metadata;
mod object;
mod requests;

use async_trait::async_trait;
use serde_json::{Map as JsonMap, Value};

use super::shell::{filled, one_line};
use super::{
    Answer, Caps, Carry, FailureClass, NodeIdentity, Rejection, Request, RequestLookup,
    RequestedCertificate, Resubmit, Signer, SignerError, SignerKind, SignerObstacle, Site, Ticket,
    endpoint, server,
};
use crate::cluster::api::{ApiAccess, BearerToken, Resource};
use crate::kube::rbac;
use crate::yaml::schema::{MapKey, SecretFile, ValueForm};
use crate::yaml::settings::{Setting, insert};
use crate::yaml::{self, Field, Map};

pub use metadata::MetadataTexts;
pub(super) use metadata::{DURATION_ANNOTATION, read_annotations, read_labels};
pub(super) use object::{Draft, Filed, pem_in_base64};
pub(super) use requests::{Advice, Requests};

/// Keys in addition to `server`.
pub(super) const KEYS: &[MapKey] = &[
    MapKey::new(
        "tokenFile",
        ValueForm::Secret,
        "File with a bootstrap token or a ServiceAccount token; read again for each exchange.",
    ),
    MapKey {
        beside: endpoint::KEYS,
        ..MapKey::new(
            "kubeconfig",
            ValueForm::Kubeconfig,
            "Kubeconfig whose current context is used, in place of server, tls, proxy and tokenFile.",
        )
    },
];

/// Reads the address of the API server and the credential; `server` is the field with the address.
pub(super) fn read(map: &Map<'_>, server: Option<Field<'_>>) -> Option<ApiAccess> {
    let token = map.get("tokenFile");
    if let Some(kubeconfig) = map.get("kubeconfig") {
        for (name, beside) in [
            ("server", server),
            ("tokenFile", token),
            ("tls", map.get("tls")),
            ("proxy", map.get("proxy")),
        ] {
            if let Some(field) = beside {
                field.error(
                    "is set together with kubeconfig, which contains it",
                    format!("remove {name}, or kubeconfig"),
                );
            }
        }
        return Some(ApiAccess::Kubeconfig {
            file: SecretFile::read(&kubeconfig)?,
            timeout: endpoint::timeout(map),
        });
    }
    if server.is_none() {
        map.field().error(
            "has neither server nor kubeconfig",
            "add server: https://HOST:6443, or kubeconfig: with the absolute path of one",
        );
    }
    let token = token.map(|field| SecretFile::read(&field));
    let endpoint = endpoint::read(map, server)?;
    if token.is_none() && endpoint.tls.certificate.is_none() {
        map.field().error(
            "has no credential",
            "add tokenFile: with a bootstrap token or a ServiceAccount token, or tls.certificate and tls.key",
        );
    }
    endpoint::require_trust(
        &endpoint,
        map,
        false,
        "add tls.caFile: with the API server's CA, or tls.sha256: with a pin of it",
    );
    Some(ApiAccess::Direct {
        endpoint: Box::new(endpoint),
        token: match token {
            Some(file) => Some(BearerToken::File(file?)),
            None => None,
        },
    })
}

/// Adds the settings to `keys`, with the address under `key`.
pub(super) fn show(access: &ApiAccess, key: &str, keys: &mut JsonMap<String, Value>) {
    match access {
        ApiAccess::Direct { endpoint, token } => {
            if let Some(BearerToken::File(file)) = token {
                insert(keys, "tokenFile", file.shown());
            }
            endpoint::show(endpoint, key, keys);
        }
        ApiAccess::Kubeconfig { file, timeout } => {
            insert(keys, "kubeconfig", file.shown());
            insert(keys, "timeout", timeout.shown());
        }
    }
}

/// Group of the bootstrap tokens that the manifests are for. The group `system:bootstrappers` itself contains the
/// cluster's kubelets.
const BOOTSTRAPPERS: &str = "system:bootstrappers:nodepki";

/// Returns the input of `kubectl apply -f -` for the API server of `access`, with `hint` as a comment.
pub(super) fn manifest(access: &ApiAccess, objects: &[Value], hint: &str) -> String {
    let mut text = filled(
        include_str!("cluster/manifest.tpl"),
        &[
            ("SERVER", &one_line(&access.to_string())),
            ("GROUP", BOOTSTRAPPERS),
            ("HINT", &one_line(hint)),
        ],
    );
    yaml::push_documents(&mut text, objects);
    text
}

/// Returns a binding of a role to this node's bootstrap tokens.
pub(super) fn binding(metadata: &Value, role: &str) -> Value {
    rbac::binding(metadata, role, &[rbac::group(BOOTSTRAPPERS)])
}

/// Capabilities of these kinds: the signer behind the API server determines what it certifies.
pub(super) const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ip_sans: Carry::AsConfigured,
    ml_dsa: Carry::No,
    other_nodes: Carry::AsConfigured,
    empty_csr: Carry::No,
    pends: true,
    lookup: RequestLookup::ByName,
    resubmit: Resubmit::Adopts,
    ..Caps::everything()
};

/// State of a request object.
pub(super) enum ObjectState {
    /// The certificate, with what else belongs to the chain.
    Issued(Vec<u8>),
    /// Denied, with the reason.
    Denied(String),
    /// Failed permanently.
    Failed {
        /// The failure.
        why: String,
        /// Required action.
        advice: String,
    },
    /// Not decided or not signed, with a note on what the request waits for.
    Pending(String),
}

/// The form of one kind of request object, and the meaning of its conditions.
pub(super) trait Dialect {
    /// The signer or issuer that signs a certificate.
    type Issuer;

    /// The kind of signer.
    const KIND: SignerKind;

    /// Returns the issuer of a certificate.
    fn issuer(
        &self,
        wanted: &RequestedCertificate,
        identity: &NodeIdentity,
    ) -> Result<Self::Issuer, SignerObstacle>;

    /// Returns why the issuer cannot sign a certificate, as far as it is known without asking.
    fn obstacle(
        &self,
        _wanted: &RequestedCertificate,
        _issuer: &Self::Issuer,
    ) -> Option<SignerObstacle> {
        None
    }

    /// Returns the annotations of the settings.
    fn annotations(&self) -> &MetadataTexts;

    /// Returns the labels of the settings.
    fn labels(&self) -> &MetadataTexts;

    /// Returns the content of the object, without annotations and labels of the settings.
    fn draft(&self, request: &Request, issuer: &Self::Issuer) -> Draft;

    /// Interprets the conditions of the object.
    fn outcome(&self, requests: &Requests, filed: &Filed, issuer: &Self::Issuer) -> ObjectState;
}

/// Returns the obstacle for a certificate without an issuer.
pub(super) fn no_issuer(what: &str, key: &str, wanted: &RequestedCertificate) -> SignerObstacle {
    SignerObstacle::new(
        format!("no {what} is configured for it"),
        format!(
            "add `{}:` or `default:` below {key}, or configure another signer for authority {}",
            wanted.name, wanted.authority
        ),
    )
}

/// Requests certificates through objects of a [`Dialect`].
pub(super) struct ClusterSigner<D> {
    requests: Requests,
    identity: NodeIdentity,
    dialect: D,
}

impl<D: Dialect> ClusterSigner<D> {
    pub(super) fn open(
        dialect: D,
        label: String,
        access: &ApiAccess,
        resource: &'static Resource,
        namespace: Option<String>,
        advice: Advice,
        site: &Site<'_>,
    ) -> Result<Self, SignerError> {
        Ok(ClusterSigner {
            requests: Requests::new(label, access.clone(), resource, namespace, advice, site)?,
            identity: site.identity.clone(),
            dialect,
        })
    }

    fn rejection(&self, wanted: &RequestedCertificate, obstacle: SignerObstacle) -> Rejection {
        let SignerObstacle { reason, advice } = obstacle;
        Rejection::new(self.requests.label(), wanted, reason, advice)
    }

    fn issuer(&self, wanted: &RequestedCertificate) -> Result<D::Issuer, Rejection> {
        let issuer = self.dialect.issuer(wanted, &self.identity);
        issuer.map_err(|obstacle| self.rejection(wanted, obstacle))
    }

    fn draft(&self, request: &Request) -> Result<(Draft, D::Issuer), SignerError> {
        let issuer = self.issuer(&request.wanted).map_err(|rejection| {
            SignerError::config(rejection.to_string(), "run `nodepki plan`")
        })?;
        let mut draft = self.dialect.draft(request, &issuer);
        let (wanted, identity) = (&request.wanted, &request.identity);
        let annotations = self.dialect.annotations().of(wanted, identity);
        draft.annotations.extend(annotations);
        draft.labels = self.dialect.labels().of(wanted, identity);
        Ok((draft, issuer))
    }

    fn judge(
        &self,
        request: &Request,
        draft: &Draft,
        issuer: &D::Issuer,
        filed: Filed,
    ) -> Result<Answer, SignerError> {
        match self.dialect.outcome(&self.requests, &filed, issuer) {
            ObjectState::Issued(chain) => Ok(Answer::Issued(chain)),
            ObjectState::Denied(reason) => {
                Ok(self.requests.denied(request, draft, &filed, &reason))
            }
            ObjectState::Pending(note) => self.requests.pending(request, filed, note),
            ObjectState::Failed { why, advice } => {
                let (class, doing) = (FailureClass::Permanent, server::signing(request));
                Err(self.requests.failed(class, &doing, why, advice))
            }
        }
    }
}

#[async_trait(?Send)]
impl<D: Dialect> Signer for ClusterSigner<D> {
    fn kind(&self) -> SignerKind {
        D::KIND
    }

    fn label(&self) -> String {
        self.requests.label().to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn probe(&self) -> Result<(), SignerError> {
        self.requests.probe().await
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        CAPS.carries(self.requests.label(), wanted)?;
        let issuer = self.issuer(wanted)?;
        let labels = self.dialect.labels();
        let obstacle = self.dialect.obstacle(wanted, &issuer);
        match obstacle.or_else(|| labels.label_obstacle(wanted, &self.identity)) {
            Some(obstacle) => Err(self.rejection(wanted, obstacle)),
            None => Ok(()),
        }
    }

    async fn recover(
        &self,
        request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        let (draft, issuer) = self.draft(request)?;
        if let Some(denied) = self.requests.denied_before(request, &draft)? {
            return Ok(Some(denied));
        }
        let filed = self.requests.find(request, &draft).await?;
        filed
            .map(|filed| self.judge(request, &draft, &issuer, filed))
            .transpose()
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let (draft, issuer) = self.draft(request)?;
        if let Some(denied) = self.requests.denied_before(request, &draft)? {
            return Ok(denied);
        }
        let filed = self.requests.file(request, &draft).await?;
        self.judge(request, &draft, &issuer, filed)
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        let (draft, issuer) = self.draft(request)?;
        match self.requests.follow(request, &draft, ticket).await? {
            Some(filed) => self.judge(request, &draft, &issuer, filed),
            None => {
                let denied = self.requests.denied_before(request, &draft)?;
                Ok(denied.unwrap_or(Answer::Gone))
            }
        }
    }

    async fn settled(&self, key: &str) -> Result<(), SignerError> {
        self.requests.forget(key);
        Ok(())
    }
}
