//! What the kinds have in common that file their requests with a Kubernetes API server: the keys that say where it is,
//! the request as an object under a name of its own, and what the API server's refusals mean.
//!
//! The name of an object follows from everything that is asked for, CSR included, so that a request is found again
//! after a crash and is never there twice. Where somebody else sits on that name, a salt that this node keeps to
//! itself makes another one, which nobody can foresee. Objects are created and read, and never changed: the node needs
//! no right to update, and could not approve or sign if it wanted to.

use std::io;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Map as JsonMap, Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::shell::one_line;
use super::{
    Answer, Class, Identity, Memory, Request, SignerError, Site, Ticket, endpoint, printable,
    server,
};
use crate::cluster::api::{Access, Api, Error, Resource, Status, Token, unread_advice};
use crate::http::Method;
use crate::kube::names::CertName;
use crate::x509::hex;
use crate::yaml::schema::{Form, Key, SecretFile, key};
use crate::yaml::{self, Map, format_duration};

/// Bytes of somebody else's words in a message.
const SAID_LIMIT: usize = 512;
/// RFC 1123 subdomain, as the API has it for names.
const LONGEST_NAME: usize = 253;
/// Hexadecimal digits of a digest in a name.
const DIGITS: usize = 12;
const SALT: &str = "salt";

/// Read by [`read`], beside those of [`endpoint`].
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("server", Form::Url, "API server, https://HOST:6443."),
    key("tokenFile", Form::Secret, "File with a bootstrap token or a ServiceAccount token; read anew for each exchange."),
    key("kubeconfig", Form::Kubeconfig, "Instead of server, tls, proxy and tokenFile: a kubeconfig, whose current context counts."),
];

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

/// Reads where the API server is and who we are there.
pub(super) fn read(map: &Map<'_>) -> Option<Access> {
    let (kubeconfig, server) = (map.get("kubeconfig"), map.get("server"));
    let token = map.get("tokenFile");
    if let Some(kubeconfig) = kubeconfig {
        for (name, beside) in [
            ("server", server),
            ("tokenFile", token),
            ("tls", map.get("tls")),
            ("proxy", map.get("proxy")),
        ] {
            if let Some(field) = beside {
                field.error(
                    "stands beside kubeconfig, which has its own",
                    format!("remove {name}, or kubeconfig"),
                );
            }
        }
        return Some(Access::Kubeconfig {
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
    if endpoint.url.scheme() == "https" && endpoint.tls.trusts_nothing() {
        map.field().error(
            "does not say which API server is the right one",
            "add tls.caFile: with the API server's CA, or tls.sha256: with a pin of it",
        );
    }
    Some(Access::Direct {
        endpoint: Box::new(endpoint),
        token: match token {
            Some(file) => Some(Token::File(file?)),
            None => None,
        },
    })
}

/// Adds the keys above to what a signer shows of itself.
pub(super) fn redacted(access: &Access, keys: &mut JsonMap<String, Value>) {
    match access {
        Access::Direct { endpoint, token } => {
            keys.insert("server".to_owned(), json!(endpoint.url.as_str()));
            if let Some(Token::File(file)) = token {
                keys.insert("tokenFile".to_owned(), json!(file.to_string()));
            }
            endpoint::redacted(endpoint, keys);
        }
        Access::Kubeconfig { file, timeout } => {
            keys.insert("kubeconfig".to_owned(), json!(file.to_string()));
            keys.insert("timeout".to_owned(), json!(format_duration(*timeout)));
        }
    }
}

/// Group of the bootstrap tokens that the manifests below are for. Those of `system:bootstrappers` at large are the
/// cluster's own kubelets.
const BOOTSTRAPPERS: &str = "system:bootstrappers:nodepki";
const RBAC: &str = "rbac.authorization.k8s.io";

/// What `kubectl apply -f -` takes on the API server of `access`, with a word on what it is for.
pub(super) fn manifest(access: &Access, objects: &[Value], then: &str) -> String {
    let mut text = format!(
        "# For {}: as an administrator there, `kubectl apply -f -`.\n\
         # The node proves itself with a bootstrap token of the group {BOOTSTRAPPERS}:\n\
         #   kubeadm token create --usages authentication --groups {BOOTSTRAPPERS}\n\
         # Put another subject into the bindings for a ServiceAccount, a user or a group of client certificates.\n\
         # {}\n",
        one_line(&access.to_string()),
        one_line(then)
    );
    for object in objects {
        text.push_str("---\n");
        // JSON is YAML.
        text.push_str(&yaml::to_string(object).unwrap_or_else(|_| object.to_string()));
    }
    text
}

/// A Role or ClusterRole.
pub(super) fn role(kind: &str, metadata: Value, rules: Value) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata, "rules": rules})
}

/// Gives a role to this node's bootstrap tokens.
pub(super) fn binding(kind: &str, metadata: Value, role_kind: &str, role: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": BOOTSTRAPPERS}],
    })
}

/// A request before it has a name.
pub(super) struct Draft {
    /// Of the object.
    pub(super) annotations: JsonMap<String, Value>,
    /// Everything that is asked for.
    pub(super) spec: JsonMap<String, Value>,
    /// The fields of `spec` that an object must have just so to be this request.
    pub(super) telling: &'static [&'static str],
}

impl Draft {
    /// `nodepki-cp1-etcd-server-3f9c0a1b2c4d`.
    pub(super) fn name(&self, identity: &Identity, slot: CertName, salt: Option<&str>) -> String {
        let mut digest = Sha256::new();
        let asked = json!([self.annotations, self.spec, salt]);
        digest.update(asked.to_string());
        let tail: String = hex(&digest.finalize()).chars().take(DIGITS).collect();
        let tail = format!("-{}-{tail}", slot.as_str().replace('.', "-"));
        let node: String = identity
            .node
            .to_ascii_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let mut head = format!("nodepki-{node}");
        head.truncate(LONGEST_NAME.saturating_sub(tail.len()));
        format!("{}{tail}", head.trim_end_matches('-'))
    }

    /// Whether an object asks for this.
    fn is(&self, object: &Value) -> bool {
        self.telling.iter().all(|field| {
            object.get("spec").and_then(|spec| spec.get(*field)) == self.spec.get(*field)
        })
    }
}

/// A request that the API server has.
#[derive(Debug)]
pub(super) struct Filed {
    /// Its name, which is its ticket.
    pub(super) name: String,
    /// As the API server has it.
    pub(super) object: Value,
}

impl Filed {
    /// PEM in a base64 field of the status.
    pub(super) fn pem(&self, field: &str) -> Result<Option<Vec<u8>>, String> {
        match self.object.pointer(&format!("/status/{field}")) {
            Some(Value::String(text)) if !text.is_empty() => BASE64
                .decode(text)
                .map(Some)
                .map_err(|_| format!("status.{field} is no base64")),
            _ => Ok(None),
        }
    }

    /// The condition of a type, if it holds. An early API left the status out.
    pub(super) fn condition(&self, kind: &str) -> Option<Condition> {
        self.condition_of(kind, "True")
    }

    /// The condition of a type with that status.
    pub(super) fn condition_of(&self, kind: &str, wanted: &str) -> Option<Condition> {
        let conditions = self.object.pointer("/status/conditions")?.as_array()?;
        let text = |condition: &Value, field: &str| {
            let text = condition.get(field).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        conditions
            .iter()
            .filter(|condition| text(condition, "type") == kind)
            .find(|condition| {
                let status = text(condition, "status");
                status == wanted || status.is_empty() && wanted == "True"
            })
            .map(|condition| Condition {
                reason: text(condition, "reason"),
                message: text(condition, "message"),
            })
    }

    /// Since when the API server has it, as it says so itself; fit for a terminal.
    pub(super) fn since(&self) -> String {
        let said = self.object.pointer("/metadata/creationTimestamp");
        let said = said.and_then(Value::as_str).unwrap_or("an unknown time");
        printable(said, SAID_LIMIT)
    }
}

/// Why somebody said what.
pub(super) struct Condition {
    pub(super) reason: String,
    pub(super) message: String,
}

impl Condition {
    /// "reason: message", fit for a terminal.
    pub(super) fn said(&self) -> String {
        let parts = [&self.reason, &self.message];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|part| !part.trim().is_empty())
            .map(|part| printable(part, SAID_LIMIT))
            .collect();
        match parts.is_empty() {
            true => "no reason given".to_owned(),
            false => parts.join(": "),
        }
    }
}

/// What a kind says about its rights and names, for messages.
pub(super) struct Words {
    /// How the right to create and read requests is given.
    pub(super) grant: &'static str,
    /// What to see to when the API server does not know the kind of object.
    pub(super) absent: &'static str,
}

/// The API server, the kind of object that requests are there, and what this node remembers of it.
pub(super) struct Cluster {
    label: String,
    api: Api,
    resource: &'static Resource,
    namespace: Option<String>,
    memory: Rc<dyn Memory>,
    words: Words,
}

impl Cluster {
    pub(super) fn new(
        label: String,
        access: Access,
        resource: &'static Resource,
        namespace: Option<String>,
        words: Words,
        site: &Site<'_>,
    ) -> Result<Self, SignerError> {
        let clock: fn() -> OffsetDateTime = site.clock;
        let api = Api::new(
            access,
            Rc::clone(&site.files),
            site.credentials.clone(),
            clock,
        )
        .map_err(|error| SignerError::config(format!("{label}: {error}"), advice(&error)))?;
        Ok(Cluster {
            label,
            api,
            resource,
            namespace,
            memory: Rc::clone(&site.memory),
            words,
        })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// "CertificateSigningRequest nodepki-…", for messages.
    pub(super) fn object(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{name}", self.resource.kind),
            None => format!("{} {name}", self.resource.kind),
        }
    }

    /// The arguments of kubectl for an object.
    pub(super) fn kubectl(&self, verb: &str, name: &str) -> String {
        let namespace = self.namespace.as_deref();
        let namespace = namespace.map_or(String::new(), |namespace| format!(" -n {namespace}"));
        let kind = self.resource.kind.to_ascii_lowercase();
        format!("kubectl{namespace} {verb} {kind} {name}")
    }

    /// Is the credential good, and may whoever it is do what is needed? Warns of rights that a node must not have.
    pub(super) async fn probe(&self) -> Result<(), SignerError> {
        let who = self.who_am_i().await?;
        for verb in ["create", "get"] {
            if self.may(verb, "").await? == Some(false) {
                let who = match &who {
                    Some(who) => format!("user {}", printable(who, SAID_LIMIT)),
                    None => "this node's credential".to_owned(),
                };
                return Err(SignerError::new(
                    Class::Auth,
                    format!("{}: {who} may not {verb} {}", self.label, self.resources()),
                    self.words.grant,
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

    /// `None` where the API server cannot tell, being older than the question.
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

    /// A question that leaves nothing behind; `None` when it may not be asked.
    async fn review(&self, resource: &Resource, spec: Value) -> Result<Option<Value>, SignerError> {
        let object = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": {},
            "spec": spec,
        });
        match self.api.create(resource, None, &object).await {
            Ok(review) => Ok(Some(review)),
            Err(Error::Refused(status)) if matches!(status.code, 403..=405) => Ok(None),
            Err(error) => Err(self.failure("asking who this node is", &Method::GET, error)),
        }
    }

    /// What became of an earlier object for this request; `judge` says what a found one means.
    pub(super) async fn recover(
        &self,
        request: &Request,
        draft: &Draft,
        judge: impl FnOnce(Filed) -> Result<Answer, SignerError>,
    ) -> Result<Option<Answer>, SignerError> {
        if let Some(denied) = self.denied_before(request, draft)? {
            return Ok(Some(denied));
        }
        self.find(request, draft).await?.map(judge).transpose()
    }

    /// Files an object, or finds the one that is there.
    pub(super) async fn submit(
        &self,
        request: &Request,
        draft: &Draft,
        judge: impl FnOnce(Filed) -> Result<Answer, SignerError>,
    ) -> Result<Answer, SignerError> {
        match self.denied_before(request, draft)? {
            Some(denied) => Ok(denied),
            None => judge(self.file(request, draft).await?),
        }
    }

    /// Looks at the object of a ticket again.
    pub(super) async fn poll(
        &self,
        request: &Request,
        draft: &Draft,
        ticket: &Ticket,
        judge: impl FnOnce(Filed) -> Result<Answer, SignerError>,
    ) -> Result<Answer, SignerError> {
        match self.follow(request, draft, ticket).await? {
            Some(filed) => judge(filed),
            None => Ok(self.denied_before(request, draft)?.unwrap_or(Answer::Gone)),
        }
    }

    /// Files the request, or finds that it is filed.
    async fn file(&self, request: &Request, draft: &Draft) -> Result<Filed, SignerError> {
        let doing = server::signing(request);
        let plain = draft.name(&request.identity, request.name(), None);
        if let Some(filed) = self.file_as(&doing, plain, request, draft).await? {
            return Ok(filed);
        }
        let salt = match self.salt(&doing)? {
            Some(salt) => salt,
            None => self.new_salt(&doing)?,
        };
        let salted = draft.name(&request.identity, request.name(), Some(&salt));
        match self.file_as(&doing, salted.clone(), request, draft).await? {
            Some(filed) => Ok(filed),
            None => Err(SignerError::permanent(
                format!(
                    "{}: {doing} failed: {} is there and is not this node's",
                    self.label,
                    self.object(&salted)
                ),
                "find out with the administrators of the cluster who makes such requests",
            )),
        }
    }

    /// `None` when somebody else has the name.
    async fn file_as(
        &self,
        doing: &str,
        name: String,
        request: &Request,
        draft: &Draft,
    ) -> Result<Option<Filed>, SignerError> {
        let mut annotations = draft.annotations.clone();
        // For whoever approves.
        for (key, value) in [
            ("certificate", request.name().as_str()),
            ("authority", request.wanted.authority.as_str()),
            ("node", &request.identity.node),
            ("cluster", &request.identity.cluster),
        ] {
            annotations.insert(format!("nodepki.io/{key}"), json!(value));
        }
        let mut metadata = json!({
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "nodepki"},
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
                let what = match asked {
                    true => "took it and changed what it asks for",
                    false => "answered with a request for another key",
                };
                Err(SignerError::permanent(
                    format!(
                        "{}: {doing} failed: the API server was given {} and {what}",
                        self.label,
                        self.object(&name)
                    ),
                    "find the admission webhook, the policy or the proxy that does this, and exempt these requests",
                ))
            }
            Err(Error::Refused(status)) if status.is_already_exists() => {
                match self.look(doing, &name, request, draft).await? {
                    Look::Ours(object) => Ok(Some(Filed { name, object })),
                    Look::Theirs => {
                        tracing::warn!(
                            signer = self.label,
                            "{} is there, but not by this node or not for this certificate; another name is used",
                            self.object(&name)
                        );
                        Ok(None)
                    }
                    Look::None => Err(SignerError::new(
                        Class::Transient,
                        format!(
                            "{}: {doing} failed: {} was there and was removed in the same moment",
                            self.label,
                            self.object(&name)
                        ),
                        "nothing is to be done if that passes",
                    )),
                }
            }
            Err(error) => Err(self.failure(doing, &Method::POST, error)),
        }
    }

    /// An earlier request of ours, under either name.
    async fn find(&self, request: &Request, draft: &Draft) -> Result<Option<Filed>, SignerError> {
        let doing = server::signing(request);
        let mut names = vec![draft.name(&request.identity, request.name(), None)];
        if let Some(salt) = self.salt(&doing)? {
            names.push(draft.name(&request.identity, request.name(), Some(&salt)));
        }
        for name in names {
            if let Look::Ours(object) = self.look(&doing, &name, request, draft).await? {
                return Ok(Some(Filed { name, object }));
            }
        }
        Ok(None)
    }

    /// The request with a ticket; `None` when it is there no more, or the ticket is another request's.
    async fn follow(
        &self,
        request: &Request,
        draft: &Draft,
        ticket: &Ticket,
    ) -> Result<Option<Filed>, SignerError> {
        let doing = server::signing(request);
        let name = ticket.as_str();
        let plain = draft.name(&request.identity, request.name(), None);
        if name != plain {
            let salt = self.salt(&doing)?;
            let salted =
                salt.map(|salt| draft.name(&request.identity, request.name(), Some(&salt)));
            if Some(name) != salted.as_deref() {
                return Ok(None);
            }
        }
        match self.look(&doing, name, request, draft).await? {
            Look::Ours(object) => Ok(Some(Filed {
                name: name.to_owned(),
                object,
            })),
            Look::None => Ok(None),
            Look::Theirs => {
                tracing::warn!(
                    signer = self.label,
                    "{} was replaced by another user, or asks for something else now; it is not used any more",
                    self.object(name)
                );
                Ok(None)
            }
        }
    }

    async fn look(
        &self,
        doing: &str,
        name: &str,
        request: &Request,
        draft: &Draft,
    ) -> Result<Look, SignerError> {
        let Some(object) = self.read(doing, name).await? else {
            return Ok(Look::None);
        };
        if !draft.is(&object) {
            return Ok(Look::Theirs);
        }
        // The API server gives each object a UID of its own: this one was examined before, whatever credential this
        // node has now.
        if let (Some(seen), Some(uid)) = (self.seen(doing, request)?, uid(&object))
            && seen.name == name
            && seen.uid == uid
        {
            return Ok(Look::Ours(object));
        }
        let by = object.pointer("/spec/username").and_then(Value::as_str);
        let by = by.filter(|by| !by.is_empty()).map(str::to_owned);
        // The CSR is ours, so its certificate is of no use to anybody else; but whoever approves judges the requester.
        if let Some(by) = by
            && self.who_am_i().await?.is_some_and(|me| me != by)
        {
            return Ok(Look::Theirs);
        }
        Ok(Look::Ours(object))
    }

    async fn read(&self, doing: &str, name: &str) -> Result<Option<Value>, SignerError> {
        self.api
            .read(self.resource, self.namespace.as_deref(), name)
            .await
            .map_err(|error| self.failure(doing, &Method::GET, error))
    }

    /// The answer that waits for somebody.
    pub(super) fn pending(
        &self,
        request: &Request,
        filed: Filed,
        note: String,
    ) -> Result<Answer, SignerError> {
        self.remember(request, &filed);
        let ticket = Ticket::try_from(filed.name)
            .map_err(|error| SignerError::permanent(error.to_string(), "report this fault"))?;
        Ok(Answer::Pending {
            ticket,
            after: None,
            note,
        })
    }

    /// The answer that says no; it is remembered longer than the API server remembers it.
    pub(super) fn denied(
        &self,
        request: &Request,
        draft: &Draft,
        filed: &Filed,
        why: &str,
    ) -> Answer {
        let reason = format!(
            "{why} ({} at {}; the same request is never made again: to ask anew, remove {}/pending/{})",
            self.object(&filed.name),
            self.label,
            self.memory.state_dir(),
            request.name()
        );
        let verdict = Verdict {
            request: draft.name(&request.identity, request.name(), None),
            reason: reason.clone(),
        };
        let kept = serde_json::to_vec(&verdict)
            .map_err(io::Error::other)
            .and_then(|bytes| self.memory.keep(&denial(request), &bytes));
        if let Err(error) = kept {
            tracing::warn!(
                signer = self.label,
                "a denial cannot be remembered: {error}"
            );
        }
        Answer::Denied { reason }
    }

    /// A denial of this very request, which the API server may have forgotten.
    fn denied_before(
        &self,
        request: &Request,
        draft: &Draft,
    ) -> Result<Option<Answer>, SignerError> {
        let doing = server::signing(request);
        let Some(bytes) = self.recall(&doing, &denial(request))? else {
            return Ok(None);
        };
        let verdict: Option<Verdict> = serde_json::from_slice(&bytes).ok();
        let name = draft.name(&request.identity, request.name(), None);
        Ok(verdict
            .filter(|verdict| verdict.request == name)
            .map(|verdict| Answer::Denied {
                reason: verdict.reason,
            }))
    }

    /// The request has come to a good end.
    pub(super) fn forget(&self, request: &Request) {
        for name in [denial(request), sighting(request)] {
            if let Err(error) = self.memory.forget(&name) {
                tracing::debug!(signer = self.label, "nothing was forgotten: {error}");
            }
        }
    }

    /// Keeps the UID of an object that is this node's. Without it the requester's name decides.
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
            .and_then(|bytes| self.memory.keep(&sighting(request), &bytes));
        if let Err(error) = kept {
            tracing::debug!(signer = self.label, "a UID is not remembered: {error}");
        }
    }

    fn seen(&self, doing: &str, request: &Request) -> Result<Option<Seen>, SignerError> {
        let bytes = self.recall(doing, &sighting(request))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn salt(&self, doing: &str) -> Result<Option<String>, SignerError> {
        let bytes = self.recall(doing, SALT)?;
        Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    fn new_salt(&self, doing: &str) -> Result<String, SignerError> {
        let mut bytes = [0; 16];
        let kept = getrandom::fill(&mut bytes)
            .map_err(io::Error::other)
            .and_then(|()| {
                let salt = hex(&bytes);
                self.memory.keep(SALT, salt.as_bytes()).map(|()| salt)
            });
        kept.map_err(|error| self.forgetful(doing, error))
    }

    fn recall(&self, doing: &str, name: &str) -> Result<Option<Vec<u8>>, SignerError> {
        let recalled = self.memory.recall(name);
        recalled
            .map(|bytes| bytes.map(|bytes| bytes.to_vec()))
            .map_err(|error| self.forgetful(doing, error))
    }

    fn forgetful(&self, doing: &str, error: io::Error) -> SignerError {
        SignerError::config(
            format!(
                "{}: {doing} failed: what is remembered of this signer cannot be read or written",
                self.label
            ),
            format!(
                "check {}: owner, mode, and that its file system is not full",
                self.memory.state_dir()
            ),
        )
        .caused_by(error)
    }

    pub(super) fn failure(&self, doing: &str, method: &Method, error: Error) -> SignerError {
        match error {
            Error::Http(error) => server::failure(&self.label, doing, method, error),
            Error::Refused(status) => self.refusal(doing, &status),
            Error::Unusable { .. } => SignerError::permanent(
                format!("{}: {doing} failed: {error}", self.label),
                "check that the address is an API server's and not another program's",
            ),
            Error::Local { .. } | Error::Unread { .. } => SignerError::config(
                format!("{}: {doing} failed: {error}", self.label),
                advice(&error),
            )
            .marked_by(&error),
        }
    }

    fn refusal(&self, doing: &str, status: &Status) -> SignerError {
        let said = |words: &str| status.message.contains(words);
        let (class, advice) = match status.code {
            300..=399 => (
                Class::Config,
                "configure the address that it redirects to, after making sure that it is the right one",
            ),
            401 => (
                Class::Auth,
                "put a token or a client certificate in place that is known there and not expired; it is read anew \
                 for each exchange",
            ),
            403 if status.is_unauthorized_user() => (Class::Auth, self.words.grant),
            // Plug-ins that have not read the cluster's state yet, and places that become free.
            403 if said("not yet ready to handle request")
                || said("status unknown for quota")
                || said("exceeded quota") =>
            {
                (
                    Class::Transient,
                    "look at the quota of the namespace if that goes on",
                )
            }
            403 => (
                Class::Permanent,
                "the API server will never take this request: have another signer sign this certificate, or have the \
                 policy that it names changed",
            ),
            404 if said("namespaces \"") => (
                Class::Config,
                "create the namespace, or correct its name in the configuration",
            ),
            404 | 405 | 410 => (Class::Config, self.words.absent),
            408 | 409 | 425 | 429 | 500..=599 => (
                Class::Transient,
                "look at the API server's own log if that goes on",
            ),
            _ => (
                Class::Permanent,
                "mend what the API server names, there or in the configuration, and run again",
            ),
        };
        SignerError::new(
            class,
            format!(
                "{}: {doing} failed: {}",
                self.label,
                server::answered(status.code, &status.message)
            ),
            advice,
        )
        .retry_after(status.retry_after)
    }
}

enum Look {
    None,
    Ours(Value),
    Theirs,
}

/// What is remembered of a denial.
#[derive(Serialize, Deserialize)]
struct Verdict {
    request: String,
    reason: String,
}

/// An object that was found to be this node's.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    name: String,
    uid: String,
}

fn uid(object: &Value) -> Option<String> {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    uid.filter(|uid| !uid.is_empty()).map(str::to_owned)
}

/// One for each certificate, like a denial.
fn sighting(request: &Request) -> String {
    format!("seen-{}", request.name())
}

/// One for each certificate, so that they cannot heap up.
fn denial(request: &Request) -> String {
    format!("denied-{}", request.name())
}

fn advice(error: &Error) -> String {
    match error {
        Error::Http(error) => error.advice().to_owned(),
        Error::Local { advice, .. } => (*advice).to_owned(),
        Error::Unread { source, .. } => unread_advice(source).to_owned(),
        _ => "check the address of the API server".to_owned(),
    }
}

/// The CSR as the API wants it: the base64 of PEM.
pub(super) fn pem_in_base64(request: &Request) -> Value {
    json!(BASE64.encode(request.csr.to_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(signer: &str) -> Draft {
        let mut spec = JsonMap::new();
        spec.insert("signerName".to_owned(), json!(signer));
        Draft {
            annotations: JsonMap::new(),
            spec,
            telling: &["signerName"],
        }
    }

    #[test]
    fn what_an_object_says_of_itself_is_fit_for_a_terminal() {
        let filed = Filed {
            name: "x".to_owned(),
            object: json!({"metadata": {"creationTimestamp": "2026\u{1b}]0;x\u{7}"}}),
        };
        assert!(!filed.since().chars().any(char::is_control));
    }

    #[test]
    fn names_are_subdomains_that_follow_from_the_request() {
        let identity = |node: &str| Identity {
            node: node.to_owned(),
            cluster: "c".to_owned(),
        };
        let one = draft("a.b/c");
        let name = one.name(&identity("CP1.Example.com"), CertName::AdminConf, None);
        assert!(
            name.starts_with("nodepki-cp1-example-com-admin-conf-"),
            "{name}"
        );
        assert_eq!(name.len(), "nodepki-cp1-example-com-admin-conf-".len() + 12);
        let again = draft("a.b/c").name(&identity("CP1.Example.com"), CertName::AdminConf, None);
        assert_eq!(name, again);
        let salted = one.name(&identity("CP1.Example.com"), CertName::AdminConf, Some("s"));
        let other = draft("a.b/d").name(&identity("CP1.Example.com"), CertName::AdminConf, None);
        assert!(name != salted && name != other);
        for node in ["x".repeat(300), "x-".repeat(150), "ä_".repeat(200)] {
            let name = one.name(&identity(&node), CertName::ApiserverKubeletClient, None);
            assert!(name.len() <= 253 && name.contains("-apiserver-kubelet-client-"));
            assert!(!name.contains("--apiserver"), "{name}");
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            );
        }
    }
}
