//! The exchange with the API server: creating and finding request objects, and what its refusals mean.

use std::fmt::Display;
use std::io;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::metadata::MANAGED_BY;
use super::object::{Draft, Filed};
use crate::cluster::api::{Api, ApiAccess, ApiError, ApiStatus, Resource, unread_advice};
use crate::http::Method;
use crate::signer::server::MAX_QUOTED;
use crate::signer::{
    Answer, FailureClass, Memory, Request, SignerError, Site, Ticket, printable, server,
};
use crate::text::hex;

/// Name under which the salt is stored.
const SALT_FILE: &str = "salt";

const SELF_SUBJECT_REVIEW: Resource = Resource {
    group: "authentication.k8s.io",
    version: "v1",
    plural: "selfsubjectreviews",
    kind: "SelfSubjectReview",
};

const SELF_SUBJECT_ACCESS_REVIEW: Resource = Resource {
    group: "authorization.k8s.io",
    version: "v1",
    plural: "selfsubjectaccessreviews",
    kind: "SelfSubjectAccessReview",
};

/// Advice of a kind for two failures.
pub(in crate::signer) struct Advice {
    /// How to grant the right to create and read requests.
    pub(in crate::signer) grant: &'static str,
    /// Advice if the API server does not serve the kind of object.
    pub(in crate::signer) unknown_kind: &'static str,
}

/// The request objects on one API server, and what this node remembers about them.
pub(in crate::signer) struct Requests {
    label: String,
    api: Api,
    resource: &'static Resource,
    namespace: Option<String>,
    memory: Rc<dyn Memory>,
    advice: Advice,
}

impl Requests {
    pub(super) fn new(
        label: String,
        access: ApiAccess,
        resource: &'static Resource,
        namespace: Option<String>,
        advice: Advice,
        site: &Site<'_>,
    ) -> Result<Self, SignerError> {
        let clock: fn() -> OffsetDateTime = site.clock;
        let api = Api::new(
            access,
            Rc::clone(&site.files),
            site.credentials.clone(),
            clock,
        )
        .map_err(|error| SignerError::config(format!("{label}: {error}"), advice_for(&error)))?;
        Ok(Requests {
            label,
            api,
            resource,
            namespace,
            memory: Rc::clone(&site.memory),
            advice,
        })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Returns "CertificateSigningRequest nodepki-…", for messages.
    pub(in crate::signer) fn object(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{name}", self.resource.kind),
            None => format!("{} {name}", self.resource.kind),
        }
    }

    /// Returns the kubectl command for an object.
    pub(in crate::signer) fn kubectl(&self, verb: &str, name: &str) -> String {
        let namespace = self.namespace.as_deref();
        let namespace = namespace.map_or(String::new(), |namespace| format!(" -n {namespace}"));
        let kind = self.resource.kind.to_ascii_lowercase();
        format!("kubectl{namespace} {verb} {kind} {name}")
    }

    /// Verifies the credential and its rights. Warns of rights that a node must not have.
    pub(super) async fn probe(&self) -> Result<(), SignerError> {
        let who = self.who_am_i().await?;
        for verb in ["create", "get"] {
            if self.may(verb, "").await? == Some(false) {
                let who = match &who {
                    Some(who) => format!("user {}", printable(who, MAX_QUOTED)),
                    None => "this node's credential".to_owned(),
                };
                return Err(SignerError::new(
                    FailureClass::Auth,
                    format!("{}: {who} may not {verb} {}", self.label, self.resources()),
                    self.advice.grant,
                ));
            }
        }
        if self.may("update", "approval").await? == Some(true) {
            tracing::warn!(
                signer = self.label,
                "the credential of this node may approve its own requests: give the node one that may only create \
                 and read them"
            );
        }
        Ok(())
    }

    fn resources(&self) -> String {
        let place = match &self.namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None => "there".to_owned(),
        };
        format!("{}.{} {place}", self.resource.plural, self.resource.group)
    }

    /// Returns the user name of this node's credential; `None` for an API server without SelfSubjectReview.
    async fn who_am_i(&self) -> Result<Option<String>, SignerError> {
        let review = self.review(&SELF_SUBJECT_REVIEW, json!({})).await?;
        Ok(review.and_then(|review| {
            let user = review.pointer("/status/userInfo/username")?.as_str()?;
            Some(user.to_owned())
        }))
    }

    async fn may(&self, verb: &str, subresource: &str) -> Result<Option<bool>, SignerError> {
        let spec = json!({"resourceAttributes": {
            "namespace": self.namespace.as_deref().unwrap_or_default(),
            "verb": verb,
            "group": self.resource.group,
            "resource": self.resource.plural,
            "subresource": subresource,
        }});
        let review = self.review(&SELF_SUBJECT_ACCESS_REVIEW, spec).await?;
        Ok(review.and_then(|review| review.pointer("/status/allowed")?.as_bool()))
    }

    /// Creates a review, which the API server does not store; `None` if it does not offer or allow the review.
    async fn review(&self, resource: &Resource, spec: Value) -> Result<Option<Value>, SignerError> {
        let object = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": {},
            "spec": spec,
        });
        match self.api.create(resource, None, &object).await {
            Ok(review) => Ok(Some(review)),
            Err(ApiError::Refused(status)) if matches!(status.code, 403..=405) => Ok(None),
            Err(error) => Err(self.failure("querying this node's identity", &Method::GET, error)),
        }
    }

    /// Creates the object of a request, or finds the existing one.
    pub(super) async fn file(
        &self,
        request: &Request,
        draft: &Draft,
    ) -> Result<Filed, SignerError> {
        let doing = server::signing(request);
        let plain = draft.name(request, None);
        if let Some(filed) = self.file_as(&doing, plain, request, draft).await? {
            return Ok(filed);
        }
        let salt = match self.salt(&doing)? {
            Some(salt) => salt,
            None => self.new_salt(&doing)?,
        };
        let salted = draft.name(request, Some(&salt));
        match self.file_as(&doing, salted.clone(), request, draft).await? {
            Some(filed) => Ok(filed),
            None => Err(self.failed(
                FailureClass::Permanent,
                &doing,
                format!("{} exists and is not this node's", self.object(&salted)),
                "find out with the administrators of the cluster who creates such requests",
            )),
        }
    }

    /// Creates the object under `name`; `None` if another user has an object of this name.
    async fn file_as(
        &self,
        doing: &str,
        name: String,
        request: &Request,
        draft: &Draft,
    ) -> Result<Option<Filed>, SignerError> {
        let mut annotations = draft.annotations.clone();
        // Information for the approver.
        for (key, value) in [
            ("certificate", request.name().as_str()),
            ("authority", request.wanted.authority.as_str()),
            ("node", &request.identity.node),
            ("cluster", &request.identity.cluster),
        ] {
            annotations.insert(format!("nodepki.io/{key}"), json!(value));
        }
        let mut labels = draft.labels.clone();
        labels.insert(MANAGED_BY.to_owned(), json!("nodepki"));
        let mut metadata = json!({
            "name": name,
            "labels": labels,
            "annotations": annotations,
        });
        if let (Some(namespace), Some(metadata)) = (&self.namespace, metadata.as_object_mut()) {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        let object = json!({
            "apiVersion": self.resource.api_version(),
            "kind": self.resource.kind,
            "metadata": metadata,
            "spec": draft.spec,
        });
        let namespace = self.namespace.as_deref();
        match self.api.create(self.resource, namespace, &object).await {
            Ok(object) if draft.is(&object) => Ok(Some(Filed { name, object })),
            Ok(object) => {
                let asked = object.pointer("/spec/request") == draft.spec.get("request");
                let what = if asked {
                    "accepted it and changed its content"
                } else {
                    "returned a request for another key"
                };
                Err(self.failed(
                    FailureClass::Permanent,
                    doing,
                    format!("the API server received {} and {what}", self.object(&name)),
                    "find the admission webhook, the policy or the proxy that does this, and exempt these requests",
                ))
            }
            Err(ApiError::Refused(status)) if status.is_already_exists() => {
                match self.existing(doing, &name, request, draft).await? {
                    Existing::Ours(object) => Ok(Some(Filed { name, object })),
                    Existing::Foreign => {
                        tracing::warn!(
                            signer = self.label,
                            "{} exists, but was not created by this node for this certificate; another name is used",
                            self.object(&name)
                        );
                        Ok(None)
                    }
                    Existing::None => Err(self.failed(
                        FailureClass::Transient,
                        doing,
                        format!(
                            "{} existed and was removed at the same time",
                            self.object(&name)
                        ),
                        "no action is needed unless this persists",
                    )),
                }
            }
            Err(error) => Err(self.failure(doing, &Method::POST, error)),
        }
    }

    /// Finds an earlier request of this node, under either name.
    pub(super) async fn find(
        &self,
        request: &Request,
        draft: &Draft,
    ) -> Result<Option<Filed>, SignerError> {
        let doing = server::signing(request);
        let mut names = vec![draft.name(request, None)];
        if let Some(salt) = self.salt(&doing)? {
            names.push(draft.name(request, Some(&salt)));
        }
        for name in names {
            if let Existing::Ours(object) = self.existing(&doing, &name, request, draft).await? {
                return Ok(Some(Filed { name, object }));
            }
        }
        Ok(None)
    }

    /// Reads the object of a ticket; `None` if it was removed, or if the ticket is another request's.
    pub(super) async fn follow(
        &self,
        request: &Request,
        draft: &Draft,
        ticket: &Ticket,
    ) -> Result<Option<Filed>, SignerError> {
        let doing = server::signing(request);
        let name = ticket.as_str();
        let plain = draft.name(request, None);
        if name != plain {
            let salt = self.salt(&doing)?;
            let salted = salt.map(|salt| draft.name(request, Some(&salt)));
            if Some(name) != salted.as_deref() {
                return Ok(None);
            }
        }
        match self.existing(&doing, name, request, draft).await? {
            Existing::Ours(object) => Ok(Some(Filed {
                name: name.to_owned(),
                object,
            })),
            Existing::None => Ok(None),
            Existing::Foreign => {
                tracing::warn!(
                    signer = self.label,
                    "{} was replaced by another user, or its content was changed; it is no longer used",
                    self.object(name)
                );
                Ok(None)
            }
        }
    }

    async fn existing(
        &self,
        doing: &str,
        name: &str,
        request: &Request,
        draft: &Draft,
    ) -> Result<Existing, SignerError> {
        let Some(object) = self.read(doing, name).await? else {
            return Ok(Existing::None);
        };
        if !draft.is(&object) {
            return Ok(Existing::Foreign);
        }
        // UIDs are unique: an object with a known UID was examined before and stays accepted if the credential of this
        // node changes.
        if let (Some(seen), Some(uid)) = (self.seen(doing, request)?, uid(&object))
            && seen.name == name
            && seen.uid == uid
        {
            return Ok(Existing::Ours(object));
        }
        let by = object.pointer("/spec/username").and_then(Value::as_str);
        let by = by.filter(|by| !by.is_empty()).map(str::to_owned);
        // The CSR is this node's, so its certificate is useless to another user; but the approver judges the requester.
        if let Some(by) = by
            && self.who_am_i().await?.is_some_and(|me| me != by)
        {
            return Ok(Existing::Foreign);
        }
        Ok(Existing::Ours(object))
    }

    async fn read(&self, doing: &str, name: &str) -> Result<Option<Value>, SignerError> {
        self.api
            .read(self.resource, self.namespace.as_deref(), name)
            .await
            .map_err(|error| self.failure(doing, &Method::GET, error))
    }

    /// Returns the answer for an undecided request, and remembers the object.
    pub(super) fn pending(
        &self,
        request: &Request,
        filed: Filed,
        note: String,
    ) -> Result<Answer, SignerError> {
        self.remember(request, &filed);
        let ticket = Ticket::try_from(filed.name)
            .map_err(|error| SignerError::permanent(error.to_string(), "report this as a bug"))?;
        Ok(Answer::Pending {
            ticket,
            after: None,
            note,
            is_uniform: false,
        })
    }

    /// Returns the answer for a denied request. The denial is stored, because the API server removes the object later.
    pub(super) fn denied(
        &self,
        request: &Request,
        draft: &Draft,
        filed: &Filed,
        why: &str,
    ) -> Answer {
        let reason = format!(
            "{why} ({} at {}; the same request is never sent again: to request it again, remove {}/pending/{})",
            self.object(&filed.name),
            self.label,
            self.memory.state_dir(),
            request.name()
        );
        let verdict = RememberedDenial {
            request: draft.name(request, None),
            reason: reason.clone(),
        };
        let kept = serde_json::to_vec(&verdict)
            .map_err(io::Error::other)
            .and_then(|bytes| self.memory.keep(&denial_file(&request.key()), &bytes));
        if let Err(error) = kept {
            tracing::warn!(signer = self.label, "a denial cannot be stored: {error}");
        }
        Answer::Denied { reason }
    }

    /// Returns a stored denial of the same request.
    pub(super) fn denied_before(
        &self,
        request: &Request,
        draft: &Draft,
    ) -> Result<Option<Answer>, SignerError> {
        let doing = server::signing(request);
        let Some(bytes) = self.recall(&doing, &denial_file(&request.key()))? else {
            return Ok(None);
        };
        let verdict: Option<RememberedDenial> = serde_json::from_slice(&bytes).ok();
        let name = draft.name(request, None);
        Ok(verdict
            .filter(|verdict| verdict.request == name)
            .map(|verdict| Answer::Denied {
                reason: verdict.reason,
            }))
    }

    /// Removes what is stored about the finished request with this [`Request::key`].
    pub(super) fn forget(&self, key: &str) {
        for name in [denial_file(key), seen_file(key)] {
            if let Err(error) = self.memory.forget(&name) {
                tracing::debug!(
                    signer = self.label,
                    "stored data cannot be removed: {error}"
                );
            }
        }
    }

    /// Stores the UID of an object of this node. Without it the requester's name decides.
    fn remember(&self, request: &Request, filed: &Filed) {
        let Some(uid) = uid(&filed.object) else {
            return;
        };
        let seen = Seen {
            name: filed.name.clone(),
            uid,
        };
        let doing = server::signing(request);
        if matches!(self.seen(&doing, request), Ok(Some(before)) if before == seen) {
            return;
        }
        let kept = serde_json::to_vec(&seen)
            .map_err(io::Error::other)
            .and_then(|bytes| self.memory.keep(&seen_file(&request.key()), &bytes));
        if let Err(error) = kept {
            tracing::debug!(signer = self.label, "a UID cannot be stored: {error}");
        }
    }

    fn seen(&self, doing: &str, request: &Request) -> Result<Option<Seen>, SignerError> {
        let bytes = self.recall(doing, &seen_file(&request.key()))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn salt(&self, doing: &str) -> Result<Option<String>, SignerError> {
        let bytes = self.recall(doing, SALT_FILE)?;
        Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    fn new_salt(&self, doing: &str) -> Result<String, SignerError> {
        let mut bytes = [0; 16];
        let kept = getrandom::fill(&mut bytes)
            .map_err(io::Error::other)
            .and_then(|()| {
                let salt = hex(&bytes);
                self.memory.keep(SALT_FILE, salt.as_bytes()).map(|()| salt)
            });
        kept.map_err(|error| self.memory_failure(doing, error))
    }

    fn recall(&self, doing: &str, name: &str) -> Result<Option<Vec<u8>>, SignerError> {
        let recalled = self.memory.recall(name);
        recalled
            .map(|bytes| bytes.map(|bytes| bytes.to_vec()))
            .map_err(|error| self.memory_failure(doing, error))
    }

    fn memory_failure(&self, doing: &str, error: io::Error) -> SignerError {
        self.failed(
            FailureClass::Config,
            doing,
            "the stored data of this signer cannot be read or written",
            format!(
                "check {}: owner, mode, and that its file system is not full",
                self.memory.state_dir()
            ),
        )
        .caused_by(error)
    }

    pub(super) fn failure(&self, doing: &str, method: &Method, error: ApiError) -> SignerError {
        match error {
            ApiError::Http(error) => server::failure(&self.label, doing, method, error),
            ApiError::Refused(status) => self.refusal(doing, &status),
            ApiError::Unusable { .. } => {
                let advice = "check that the address is an API server's";
                self.failed(FailureClass::Permanent, doing, error, advice)
            }
            ApiError::Local { .. } | ApiError::Unread { .. } => self
                .failed(FailureClass::Config, doing, &error, advice_for(&error))
                .marked_by(&error),
        }
    }

    fn refusal(&self, doing: &str, status: &ApiStatus) -> SignerError {
        let said = |words: &str| status.message.contains(words);
        let (class, advice) = match status.code {
            300..=399 => (
                FailureClass::Config,
                "verify the address that it redirects to, then configure it",
            ),
            401 => (
                FailureClass::Auth,
                "provide a token or a client certificate that is known there and not expired; it is read again \
                 for each exchange",
            ),
            403 if status.is_unauthorized_user() => (FailureClass::Auth, self.advice.grant),
            // Admission plug-ins that are not ready, and quota that may be freed.
            403 if said("not yet ready to handle request")
                || said("status unknown for quota")
                || said("exceeded quota") =>
            {
                (
                    FailureClass::Transient,
                    "check the quota of the namespace if this persists",
                )
            }
            403 => (
                FailureClass::Permanent,
                "the API server never accepts this request: configure another signer for this certificate, or have the \
                 policy that it names changed",
            ),
            404 if said("namespaces \"") => (
                FailureClass::Config,
                "create the namespace, or correct its name in the configuration",
            ),
            404 | 405 | 410 => (FailureClass::Config, self.advice.unknown_kind),
            408 | 409 | 425 | 429 | 500..=599 => (
                FailureClass::Transient,
                "check the API server's log if this persists",
            ),
            _ => (
                FailureClass::Permanent,
                "correct what the API server names, there or in the configuration, and run again",
            ),
        };
        let said = server::answered(status.code, &status.message);
        self.failed(class, doing, said, advice)
            .retry_after(status.retry_after)
    }

    /// As [`SignerServer::failed`](server::SignerServer::failed).
    pub(super) fn failed(
        &self,
        class: FailureClass,
        doing: &str,
        what: impl Display,
        advice: impl Into<String>,
    ) -> SignerError {
        server::failed(&self.label, class, doing, what, advice)
    }
}

/// The object that exists under a name.
enum Existing {
    None,
    Ours(Value),
    Foreign,
}

/// Stored form of a denial.
#[derive(Serialize, Deserialize)]
struct RememberedDenial {
    request: String,
    reason: String,
}

/// Stored form of an object that was found to be this node's.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    name: String,
    uid: String,
}

fn uid(object: &Value) -> Option<String> {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    uid.filter(|uid| !uid.is_empty()).map(str::to_owned)
}

/// Returns the file name for the UID of the object of a request: one for each key, so kubelets' requests that wait
/// at the same time do not replace each other's, and the number of files is bounded.
fn seen_file(key: &str) -> String {
    format!("seen-{key}")
}

/// Returns the file name for the denial of a request: one for each key, as above.
fn denial_file(key: &str) -> String {
    format!("denied-{key}")
}

fn advice_for(error: &ApiError) -> String {
    match error {
        ApiError::Http(error) => error.advice().to_owned(),
        ApiError::Local { advice, .. } => (*advice).to_owned(),
        ApiError::Unread { source, .. } => unread_advice(source).to_owned(),
        _ => "check the address of the API server".to_owned(),
    }
}
