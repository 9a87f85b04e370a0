//! The two conditions of the external-CA proposal, with its reasons and messages, and their evidence.
//!
//! Pure: takes Secrets and the time, and returns findings. A condition has one reason, so a missing Secret hides an
//! invalid one; the evidence has both. By the proposal, a Secret that contains a CA's private key is not faulty; it gets a
//! note.

use std::collections::BTreeMap;

use serde::Serialize;
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::etcd_clients::{is_client_authority_key, without_client_authority};
use super::secrets::{ADOPTED_TYPE, ClusterTarget, Format, Object, Purpose};
use crate::kube::kubeconfig::{CurrentContext, Kubeconfig};
use crate::kube::names::Authority;
use crate::text::rfc3339;
use crate::x509::{
    CertDifference, Certificate, Chain, ExtendedUsage, PrivateKey, TrustBundle, path_differences,
};

/// A `metav1.Condition`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct SecretCondition {
    /// `ExternalCAsReady` or `ExternalClientCertificatesReady`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// `True` or `False`.
    pub(super) status: &'static str,
    /// `MissingSecret` or `InvalidCertificate`; `Ready` if the status is `True`, for which the proposal has no reason.
    pub(super) reason: &'static str,
    /// The proposal's message; empty if the status is `True`.
    pub(super) message: String,
    /// Time of the last change of the status, RFC 3339; `None` for a condition that is not stored.
    #[serde(rename = "lastTransitionTime", skip_serializing_if = "Option::is_none")]
    pub(super) last_transition_time: Option<String>,
}

words! {
    pub(super) enum SecretState: Serialize {
        Ready = "ready",
        Missing = "missing",
        /// The Secret exists and cannot be used.
        Invalid = "invalid",
    }
}

/// The judgement of one Secret.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretEvidence {
    /// Name of the Secret.
    pub(super) secret: String,
    pub(super) state: SecretState,
    /// End of validity of the certificate in the Secret.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub(super) not_after: Option<OffsetDateTime>,
    /// Why the Secret is invalid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) faults: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
    #[serde(skip)]
    of_authority: bool,
}

/// Both conditions and their evidence.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Findings {
    /// `ExternalCAsReady` and `ExternalClientCertificatesReady`.
    pub(super) conditions: [SecretCondition; 2],
    /// One element for each Secret.
    pub(super) evidence: Vec<SecretEvidence>,
}

impl Findings {
    /// Returns whether a Secret is in this state.
    pub(super) fn any(&self, state: SecretState) -> bool {
        self.evidence.iter().any(|evidence| evidence.state == state)
    }

    /// Adds a note to the evidence of a Secret.
    pub(super) fn note(&mut self, secret: &str, note: String) {
        let mut evidence = self.evidence.iter_mut();
        if let Some(evidence) = evidence.find(|evidence| evidence.secret == secret) {
            evidence.notes.push(note);
        }
    }
}

/// Returns the Secrets on which the conditions are based. In the proposal's format, the administrator's certificate is
/// judged in its own Secret; today it is in the kubeconfig only.
pub(super) fn judged(format: Format, external_etcd: bool) -> impl Iterator<Item = Purpose> {
    format
        .purposes(external_etcd)
        .filter(move |purpose| *purpose != Purpose::Kubeconfig || format != Format::Proposal)
}

/// Judges the Secrets of a workload cluster.
pub(super) fn judge(
    target: &ClusterTarget,
    format: Format,
    external_etcd: bool,
    found: &BTreeMap<Purpose, Object>,
    now: OffsetDateTime,
) -> Findings {
    let mut trusted = BTreeMap::new();
    let mut evidence = Vec::new();
    for purpose in judged(format, external_etcd) {
        let mut judge = SecretJudge {
            target,
            format,
            now,
            faults: Vec::new(),
            notes: Vec::new(),
            not_after: None,
        };
        let object = found.get(&purpose);
        if let Some(object) = object {
            if purpose.is_authority() {
                if let Some(anchors) = judge.authority(object) {
                    trusted.insert(purpose.authority(), anchors);
                }
            } else {
                judge.client(purpose, object, trusted.get(&purpose.authority()))
            }
        }
        let state = match (object, judge.faults.is_empty()) {
            (None, _) => SecretState::Missing,
            (Some(_), true) => SecretState::Ready,
            (Some(_), false) => SecretState::Invalid,
        };
        evidence.push(SecretEvidence {
            secret: target.name(purpose),
            state,
            not_after: judge.not_after,
            faults: judge.faults,
            notes: judge.notes,
            of_authority: purpose.is_authority(),
        });
    }
    Findings {
        conditions: [authorities_ready(&evidence), clients_ready(&evidence)],
        evidence,
    }
}

fn authorities_ready(evidence: &[SecretEvidence]) -> SecretCondition {
    condition(
        "ExternalCAsReady",
        evidence.iter().filter(|one| one.of_authority),
        "The following required CA Secrets are missing",
        "The following CA certificates are invalid or could not be parsed",
    )
}

fn clients_ready(evidence: &[SecretEvidence]) -> SecretCondition {
    condition(
        "ExternalClientCertificatesReady",
        evidence.iter().filter(|one| !one.of_authority),
        "The following required client certificate Secrets are missing",
        "The following client certificates are invalid or could not be parsed",
    )
}

fn condition<'a>(
    kind: &'static str,
    evidence: impl Iterator<Item = &'a SecretEvidence> + Clone,
    missing: &str,
    invalid: &str,
) -> SecretCondition {
    let in_state = |state| {
        let evidence = evidence.clone().filter(|one| one.state == state);
        let names: Vec<&str> = evidence.map(|one| one.secret.as_str()).collect();
        names.join(", ")
    };
    let absent = in_state(SecretState::Missing);
    let unusable = in_state(SecretState::Invalid);
    let (status, reason, message) = match (absent.is_empty(), unusable.is_empty()) {
        (false, _) => ("False", "MissingSecret", format!("{missing}: {absent}.")),
        (_, false) => (
            "False",
            "InvalidCertificate",
            format!("{invalid}: {unusable}."),
        ),
        _ => ("True", "Ready", String::new()),
    };
    SecretCondition {
        kind,
        status,
        reason,
        message,
        last_transition_time: None,
    }
}

/// Collects the faults and notes of one Secret.
struct SecretJudge<'a> {
    target: &'a ClusterTarget,
    format: Format,
    now: OffsetDateTime,
    faults: Vec<String>,
    notes: Vec<String>,
    not_after: Option<OffsetDateTime>,
}

impl SecretJudge<'_> {
    fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }

    /// Judges an authority's Secret, and returns its certificates without the etcd client CA if they are valid.
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
        self.validity(first);
        for key in ["tls.key", "ca.key"] {
            let Some(bytes) = object.data(key) else {
                continue;
            };
            match PrivateKey::from_pem(&bytes) {
                Ok(private) if is_client_authority_key(&bundle, private.public_key()) => {
                    self.notes.push(format!(
                        "{key} is the private key of the etcd client CA, with which the controllers sign their etcd client certificates"
                    ))
                }
                Ok(private) if private.public_key() == first.public_key() => self.notes.push(format!(
                    "{key} is the private key of the authority, so that every reader of the Secret can sign for it (remove the entry once the key is stored elsewhere)"
                )),
                Ok(_) => self.fault(format!("{key} does not belong to the CA certificate")),
                Err(_) => self.notes.push(format!("{key} does not contain a private key")),
            }
        }
        let anchors = without_client_authority(bundle.clone());
        if let count @ 2.. = anchors.certificates().len() {
            self.notes.push(format!(
                "it contains {count} CA certificates, as during a change of the CA (see nodepki authority status on a node; after the last step, run nodepki capi secrets --apply)"
            ));
        }
        self.faults.is_empty().then_some(anchors)
    }

    /// Adds a fault if the certificate is not valid now.
    fn validity(&mut self, certificate: &Certificate) {
        let (begin, end) = (certificate.not_before(), certificate.not_after());
        self.not_after = Some(end);
        if self.now > end {
            self.fault(format!("it expired at {}", rfc3339(end)));
        }
        if self.now < begin {
            self.fault(format!("it is not valid before {}", rfc3339(begin)));
        }
    }

    /// Judges a client's Secret. If its authority is missing or invalid, which the other condition reports, the issuer is
    /// not verified.
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
        if key.is_some_and(|key| key.public_key() != leaf.public_key()) {
            self.fault("the private key does not belong to the certificate");
        }
        self.validity(leaf);
        if !leaf.allows(ExtendedUsage::ClientAuth) {
            self.fault("extended key usage client auth is missing");
        }
        match trust {
            Some(trust) => {
                for difference in path_differences(&chain, trust, self.now) {
                    match difference {
                        // Only kubeadm requires the first certificate.
                        CertDifference::NotUnderFirst { .. } => {
                            self.notes.push(difference.to_string())
                        }
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
            "its issuer was not verified, since {name} is missing or invalid"
        ));
    }

    fn kubeconfig(
        &mut self,
        object: &Object,
        trust: Option<&TrustBundle>,
    ) -> (Option<Chain>, Option<PrivateKey>) {
        if object.kind() == ADOPTED_TYPE {
            self.notes.push(format!(
                "its type is {ADOPTED_TYPE}: KubeadmControlPlane adopts it and renews it with the CA's private key (the type is immutable: delete the Secret and create it again)"
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
        let CurrentContext {
            server,
            authority,
            certificate,
            key,
            ..
        } = current;
        if server.is_none() {
            self.fault("the kubeconfig does not name a server");
        }
        let bundle = self.parse(
            "certificate-authority-data",
            authority.as_deref(),
            TrustBundle::from_pem,
        );
        if let (Some(bundle), Some(trust)) = (&bundle, trust) {
            let contains = |one: &Certificate| bundle.certificates().contains(one);
            if !trust.accepts(bundle) {
                self.fault(format!(
                    "the kubeconfig trusts {bundle}, the cluster's CA is {trust}"
                ));
            } else if !trust.certificates().iter().all(contains) {
                self.notes.push(format!(
                    "the kubeconfig trusts {bundle}, and {} contains {trust} (run nodepki capi secrets --apply after each step of a change of the CA)",
                    self.target.name(Purpose::Ca)
                ));
            }
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
