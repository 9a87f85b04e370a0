//! The two conditions of the external-CA proposal, with its reasons and its words, and what they rest on.
//!
//! Pure: Secrets and the time in, findings out. A condition has one reason, so that a missing Secret hides an invalid one
//! there; the evidence has both. A Secret with a CA's private key in it is no fault in the proposal's sense and is noted.

use std::collections::BTreeMap;

use serde::Serialize;
use time::OffsetDateTime;

use super::secrets::{ADOPTED_TYPE, Format, Object, Purpose, Target};
use crate::kube::kubeconfig::{Current, Kubeconfig};
use crate::kube::names::Authority;
use crate::x509::{Chain, Difference, PrivateKey, TrustBundle, path_differences, rfc3339};

/// A `metav1.Condition` without `lastTransitionTime`, which only who keeps conditions can know.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// `ExternalCAsReady` or `ExternalClientCertificatesReady`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// `MissingSecret`, `InvalidCertificate`; `Ready` when all is well, for which the proposal has no word.
    pub reason: &'static str,
    /// The proposal's sentence; empty when all is well.
    pub message: String,
}

/// What became of one Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ready,
    /// There is none of that name.
    Missing,
    /// There, and of no use.
    Invalid,
}

impl State {
    /// In a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Missing => "missing",
            State::Invalid => "invalid",
        }
    }
}

/// What was found out about one Secret.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// Its name.
    pub secret: String,
    /// What became of it.
    pub state: State,
    /// End of validity of the certificate in it.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub not_after: Option<OffsetDateTime>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// What deserves attention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(skip)]
    of_authority: bool,
}

/// Both conditions and what they rest on.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// For the status of the KubeadmControlPlane.
    pub conditions: [Condition; 2],
    /// One a Secret.
    pub evidence: Vec<Evidence>,
}

impl Findings {
    /// Something is there and of no use.
    pub fn has_invalid(&self) -> bool {
        self.any(State::Invalid)
    }

    /// Something is not there.
    pub fn has_missing(&self) -> bool {
        self.any(State::Missing)
    }

    fn any(&self, state: State) -> bool {
        self.evidence.iter().any(|evidence| evidence.state == state)
    }
}

/// The Secrets whose state the conditions tell. The proposal's administrator has a Secret of its own; today it is the
/// kubeconfig.
pub fn judged(format: Format, external_etcd: bool) -> impl Iterator<Item = Purpose> {
    format
        .purposes(external_etcd)
        .filter(move |purpose| *purpose != Purpose::Kubeconfig || format != Format::Proposal)
}

/// Judges the Secrets of a cluster.
pub fn judge(
    target: &Target,
    format: Format,
    external_etcd: bool,
    found: &BTreeMap<Purpose, Object>,
    now: OffsetDateTime,
) -> Findings {
    let mut trusted = BTreeMap::new();
    let mut evidence = Vec::new();
    for purpose in judged(format, external_etcd) {
        let mut judge = Judge {
            target,
            format,
            now,
            faults: Vec::new(),
            notes: Vec::new(),
            not_after: None,
        };
        let object = found.get(&purpose);
        if let Some(object) = object {
            match purpose.is_authority() {
                true => {
                    if let Some(bundle) = judge.authority(object) {
                        trusted.insert(purpose.authority(), bundle);
                    }
                }
                false => judge.client(purpose, object, trusted.get(&purpose.authority())),
            }
        }
        let state = match (object, judge.faults.is_empty()) {
            (None, _) => State::Missing,
            (Some(_), true) => State::Ready,
            (Some(_), false) => State::Invalid,
        };
        evidence.push(Evidence {
            secret: target.name(purpose),
            state,
            not_after: judge.not_after,
            faults: judge.faults,
            notes: judge.notes,
            of_authority: purpose.is_authority(),
        });
    }
    let condition = |kind, of_authority, missing, invalid| {
        let in_state = |state| {
            let evidence = evidence.iter().filter(|evidence: &&Evidence| {
                evidence.of_authority == of_authority && evidence.state == state
            });
            let names: Vec<&str> = evidence.map(|evidence| evidence.secret.as_str()).collect();
            names.join(", ")
        };
        let (absent, unusable) = (in_state(State::Missing), in_state(State::Invalid));
        let (status, reason, message) = match (absent.is_empty(), unusable.is_empty()) {
            (false, _) => ("False", "MissingSecret", format!("{missing}: {absent}.")),
            (_, false) => (
                "False",
                "InvalidCertificate",
                format!("{invalid}: {unusable}."),
            ),
            _ => ("True", "Ready", String::new()),
        };
        Condition {
            kind,
            status,
            reason,
            message,
        }
    };
    let conditions = [
        condition(
            "ExternalCAsReady",
            true,
            "The following required CA Secrets are missing",
            "The following CA certificates are invalid or could not be parsed",
        ),
        condition(
            "ExternalClientCertificatesReady",
            false,
            "The following required client certificate Secrets are missing",
            "The following client certificates are invalid or could not be parsed",
        ),
    ];
    Findings {
        conditions,
        evidence,
    }
}

/// At work on one Secret.
struct Judge<'a> {
    target: &'a Target,
    format: Format,
    now: OffsetDateTime,
    faults: Vec<String>,
    notes: Vec<String>,
    not_after: Option<OffsetDateTime>,
}

impl Judge<'_> {
    fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }

    /// An authority's Secret; its certificates when they may be relied on.
    fn authority(&mut self, object: &Object) -> Option<TrustBundle> {
        let mut bundles: Vec<TrustBundle> = Vec::new();
        for key in self.format.authority_keys() {
            bundles.extend(self.read(object, key, TrustBundle::from_pem));
        }
        if let [one, other] = bundles.as_slice()
            && one != other
        {
            self.fault("ca.crt and tls.crt differ");
        }
        let bundle = bundles.into_iter().next()?;
        let first = bundle.first();
        self.not_after = Some(first.not_after());
        if self.now > first.not_after() {
            self.fault(format!("it expired at {}", rfc3339(first.not_after())));
        }
        if self.now < first.not_before() {
            self.fault(format!(
                "it is not valid before {}",
                rfc3339(first.not_before())
            ));
        }
        for key in ["tls.key", "ca.key"] {
            let Some(bytes) = object.data(key) else {
                continue;
            };
            match PrivateKey::from_pem(&bytes) {
                Ok(private) if private.public_key() == first.public_key() => self.notes.push(format!(
                    "{key} is the private key of the authority: whoever reads the Secret can sign for it; once the key is held elsewhere, remove the entry"
                )),
                Ok(_) => self.fault(format!("{key} is a private key of something else")),
                Err(_) => self.notes.push(format!("{key} holds no private key")),
            }
        }
        self.faults.is_empty().then_some(bundle)
    }

    /// A client's Secret. Without its authority it is judged by itself: the other condition tells of that one.
    fn client(&mut self, purpose: Purpose, object: &Object, trust: Option<&TrustBundle>) {
        let pair = match purpose {
            Purpose::Kubeconfig => self.kubeconfig(object, trust),
            _ => (
                self.read(object, "tls.crt", Chain::from_pem),
                self.read(object, "tls.key", PrivateKey::from_pem),
            ),
        };
        let (Some(chain), key) = pair else { return };
        let leaf = chain.leaf();
        self.not_after = Some(leaf.not_after());
        if key.is_some_and(|key| key.public_key() != leaf.public_key()) {
            self.fault("the private key does not belong to the certificate");
        }
        if self.now > leaf.not_after() {
            self.fault(format!("it expired at {}", rfc3339(leaf.not_after())));
        }
        if self.now < leaf.not_before() {
            self.fault(format!(
                "it is not valid before {}",
                rfc3339(leaf.not_before())
            ));
        }
        let says = |usages: &[String]| {
            usages
                .iter()
                .any(|usage| usage == "client auth" || usage == "any")
        };
        if !leaf.extended_usages().is_none_or(says) {
            self.fault("extended key usage client auth is missing");
        }
        match trust {
            Some(trust) => {
                for difference in path_differences(&chain, trust, self.now) {
                    match difference {
                        // That is kubeadm's rule alone.
                        Difference::NotUnderFirst { .. } => self.notes.push(difference.to_string()),
                        other => self.fault(other.to_string()),
                    }
                }
            }
            None => self.unverified(purpose.authority()),
        }
    }

    fn unverified(&mut self, authority: Authority) {
        let name = self.target.name(Purpose::of(authority));
        self.notes.push(format!(
            "whether its authority signed it is not known: see {name}"
        ));
    }

    fn kubeconfig(
        &mut self,
        object: &Object,
        trust: Option<&TrustBundle>,
    ) -> (Option<Chain>, Option<PrivateKey>) {
        if object.kind() == ADOPTED_TYPE {
            self.notes.push(format!(
                "its type is {ADOPTED_TYPE}: KubeadmControlPlane takes it for its own and renews it with the CA's private key; a type cannot be changed, so delete it and make it anew"
            ));
        }
        let parse = |text: &[u8]| {
            let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8 text".to_owned())?;
            Kubeconfig::parse(text)
                .and_then(|kubeconfig| kubeconfig.current())
                .map_err(|error| error.to_string())
        };
        let Some(current) = self.read(object, "value", parse) else {
            return (None, None);
        };
        let Current {
            server,
            authority,
            certificate,
            key,
            ..
        } = current;
        if server.is_none() {
            self.fault("the kubeconfig names no server");
        }
        let bundle = self.parse(
            "certificate-authority-data",
            authority.as_deref(),
            TrustBundle::from_pem,
        );
        if let (Some(bundle), Some(trust)) = (&bundle, trust)
            && !trust.vouches_for(bundle)
        {
            self.fault(format!(
                "the kubeconfig trusts {bundle}, the cluster's CA is {trust}"
            ));
        }
        (
            self.parse(
                "client-certificate-data",
                certificate.as_deref(),
                Chain::from_pem,
            ),
            self.parse(
                "client-key-data",
                key.as_deref().map(Vec::as_slice),
                PrivateKey::from_pem,
            ),
        )
    }

    fn read<T, E: ToString>(
        &mut self,
        object: &Object,
        key: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Option<T> {
        let bytes = object.data(key);
        self.parse(key, bytes.as_deref().map(Vec::as_slice), parse)
    }

    fn parse<T, E: ToString>(
        &mut self,
        what: &str,
        bytes: Option<&[u8]>,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Option<T> {
        let Some(bytes) = bytes else {
            self.fault(format!("it has no {what}"));
            return None;
        };
        match parse(bytes) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fault(format!("{what} is unreadable: {}", error.to_string()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
