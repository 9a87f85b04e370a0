//! A request as an object of the Kubernetes API: how it is named, and what its status says.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map as JsonMap, Value, json};
use sha2::{Digest, Sha256};

use crate::signer::server::MAX_QUOTED;
use crate::signer::{Request, printable};
use crate::text::hex;

/// Length of an RFC 1123 subdomain, the API's limit for names of objects.
const MAX_NAME_LENGTH: usize = 253;
/// Hexadecimal digits of the digest in a name.
const DIGEST_DIGITS: usize = 12;

/// Content of a request object before it has a name.
pub(in crate::signer) struct Draft {
    /// Annotations of the object.
    pub(in crate::signer) annotations: JsonMap<String, Value>,
    /// Labels of the object.
    pub(in crate::signer) labels: JsonMap<String, Value>,
    /// `spec` of the object.
    pub(in crate::signer) spec: JsonMap<String, Value>,
    /// Fields of `spec` that identify the request: an object with other values is another request.
    pub(in crate::signer) identifying_fields: &'static [&'static str],
}

impl Draft {
    /// Derives the name of the object from everything that is requested: `nodepki-cp1-etcd-server-3f9c0a1b2c4d`.
    pub(super) fn name(&self, request: &Request, salt: Option<&str>) -> String {
        let mut asked = vec![json!(self.annotations)];
        if !self.labels.is_empty() {
            asked.push(json!(self.labels));
        }
        asked.extend([json!(self.spec), json!(salt)]);
        // As in the id of the request: the CSR alone does not distinguish these.
        asked.extend(request.replaced.map(|replaced| json!(hex(&replaced))));
        asked.extend(request.object.as_ref().map(|uid| json!(uid)));
        let tail: String = hex(&Sha256::digest(json!(asked).to_string()))
            .chars()
            .take(DIGEST_DIGITS)
            .collect();
        let tail = format!("-{}-{tail}", request.name().as_str().replace('.', "-"));
        let node: String = request
            .identity
            .node
            .to_ascii_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let mut head = format!("nodepki-{node}");
        head.truncate(MAX_NAME_LENGTH.saturating_sub(tail.len()));
        format!("{}{tail}", head.trim_end_matches('-'))
    }

    /// Returns whether an object is this request.
    pub(super) fn is(&self, object: &Value) -> bool {
        self.identifying_fields.iter().all(|field| {
            object.get("spec").and_then(|spec| spec.get(*field)) == self.spec.get(*field)
        })
    }
}

/// A request object on the API server.
#[derive(Debug)]
pub(in crate::signer) struct Filed {
    /// Its name, which is also its ticket.
    pub(in crate::signer) name: String,
    /// The object as returned by the API server.
    pub(super) object: Value,
}

impl Filed {
    /// Returns the PEM in a base64 field of the status.
    pub(in crate::signer) fn pem(&self, field: &str) -> Result<Option<Vec<u8>>, String> {
        match self.object.pointer(&format!("/status/{field}")) {
            Some(Value::String(text)) if !text.is_empty() => BASE64
                .decode(text)
                .map(Some)
                .map_err(|_| format!("status.{field} is not base64")),
            _ => Ok(None),
        }
    }

    /// Returns the condition of a type if it is true. Early versions of the API omitted the status of a condition.
    pub(in crate::signer) fn condition(&self, kind: &str) -> Option<ObjectCondition> {
        self.condition_of(kind, "True")
    }

    /// Returns the condition of a type with the given status.
    pub(in crate::signer) fn condition_of(
        &self,
        kind: &str,
        wanted: &str,
    ) -> Option<ObjectCondition> {
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
            .map(|condition| ObjectCondition {
                reason: text(condition, "reason"),
                message: text(condition, "message"),
            })
    }

    /// Returns the creation time as stated by the API server, safe for a terminal.
    pub(in crate::signer) fn since(&self) -> String {
        let said = self.object.pointer("/metadata/creationTimestamp");
        let said = said.and_then(Value::as_str).unwrap_or("an unknown time");
        printable(said, MAX_QUOTED)
    }
}

/// Reason and message of a condition.
pub(in crate::signer) struct ObjectCondition {
    pub(in crate::signer) reason: String,
    message: String,
}

impl ObjectCondition {
    /// Returns "reason: message", safe for a terminal.
    pub(in crate::signer) fn said(&self) -> String {
        let parts = [&self.reason, &self.message];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|part| !part.trim().is_empty())
            .map(|part| printable(part, MAX_QUOTED))
            .collect();
        if parts.is_empty() {
            "no reason given".to_owned()
        } else {
            parts.join(": ")
        }
    }
}

/// Returns the CSR in the API's form: PEM in base64.
pub(in crate::signer) fn pem_in_base64(request: &Request) -> Value {
    json!(BASE64.encode(request.csr.to_pem()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use time::OffsetDateTime;

    use super::*;
    use crate::kube::names::{Authority, CertName};
    use crate::signer::{NodeIdentity, RequestedCertificate};
    use crate::x509::{Csr, PrivateKey, Profile, Subject, UsageExtensions};

    fn draft(signer: &str) -> Draft {
        let mut spec = JsonMap::new();
        spec.insert("signerName".to_owned(), json!(signer));
        Draft {
            annotations: JsonMap::new(),
            labels: JsonMap::new(),
            spec,
            identifying_fields: &["signerName"],
        }
    }

    #[test]
    fn escapes_creation_time_of_an_object() {
        let filed = Filed {
            name: "x".to_owned(),
            object: json!({"metadata": {"creationTimestamp": "2026\u{1b}]0;x\u{7}"}}),
        };
        assert!(!filed.since().chars().any(char::is_control));
    }

    fn request(node: &str, name: CertName) -> Request {
        let wanted = RequestedCertificate {
            name,
            authority: Authority::Ca,
            profile: Profile::of_tests(
                Subject::new("kube-apiserver", &[]),
                &[],
                Duration::from_secs(86400),
            ),
            tolerance: Default::default(),
        };
        let key = PrivateKey::generate(wanted.profile.key).unwrap();
        let csr = Csr::create(&wanted.profile, &key, UsageExtensions::Requested).unwrap();
        let identity = NodeIdentity {
            node: node.to_owned(),
            cluster: "c".to_owned(),
        };
        Request::new(wanted, csr, identity, OffsetDateTime::UNIX_EPOCH)
    }

    #[test]
    fn derives_valid_object_name_from_request() {
        let cp1 = request("CP1.Example.com", CertName::AdminConf);
        let one = draft("a.b/c");
        let name = one.name(&cp1, None);
        assert!(
            name.starts_with("nodepki-cp1-example-com-admin-conf-"),
            "{name}"
        );
        assert_eq!(name.len(), "nodepki-cp1-example-com-admin-conf-".len() + 12);
        assert_eq!(name, draft("a.b/c").name(&cp1, None));
        let salted = one.name(&cp1, Some("s"));
        let other = draft("a.b/d").name(&cp1, None);
        assert!(name != salted && name != other);
        for node in ["x".repeat(300), "x-".repeat(150), "ä_".repeat(200)] {
            let name = one.name(&request(&node, CertName::ApiserverKubeletClient), None);
            assert!(name.len() <= 253 && name.contains("-apiserver-kubelet-client-"));
            assert!(!name.contains("--apiserver"), "{name}");
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            );
        }
    }

    #[test]
    fn names_object_after_what_distinguishes_equal_csrs() {
        let new = request("cp1", CertName::Apiserver);
        let requests = [
            new.clone(),
            new.clone().replacing(Some(&[1; 32])),
            new.clone().replacing(Some(&[2; 32])),
            new.clone().for_object("u1"),
            new.clone().for_object("u2"),
        ];
        let one = draft("a.b/c");
        let names = requests.iter().map(|request| one.name(request, None));
        let names: BTreeSet<String> = names.collect();
        assert_eq!(names.len(), requests.len(), "{names:?}");
        assert!(names.contains(&one.name(&new.replacing(None), None)));
    }
}
