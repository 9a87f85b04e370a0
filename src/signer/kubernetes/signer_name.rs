//! Signer names: which names the API server accepts, what the known signers sign, and which component to check if a
//! request is not signed.

use crate::kube::names::Authority;
use crate::signer::{RequestedCertificate, SignerObstacle};
use crate::x509::ExtendedUsage;

/// Limits of the API: of a subdomain, of a label, and of the whole name.
const MAX_DOMAIN_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;
const MAX_NAME_LENGTH: usize = 571;

/// Group of unrestricted users, which `kubernetes.io/kube-apiserver-client` never certifies.
const MASTERS: &str = "system:masters";

const BUILT_IN: &str = "kubernetes.io";
const ISSUERS: &str = "issuers.cert-manager.io";
const CLUSTER_ISSUERS: &str = "clusterissuers.cert-manager.io";

/// A name that the API server accepts and that a controller may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::signer) struct SignerName {
    text: String,
    server: SigningController,
}

/// The controller that serves a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SigningController {
    /// kube-controller-manager, for API clients.
    ApiserverClient,
    /// kube-controller-manager, for the kubelet as an API client.
    KubeletClient,
    /// kube-controller-manager, for the kubelet as a server.
    KubeletServing,
    /// cert-manager, for an issuer in a namespace or for the whole cluster.
    CertManager {
        namespace: Option<String>,
        issuer: String,
    },
    /// Another controller.
    Other,
}

impl SignerName {
    pub(super) fn parse(text: &str) -> Result<Self, SignerObstacle> {
        let fault =
            |what: &str, fix: &str| Err(SignerObstacle::new(format!("{text:?} {what}"), fix));
        let (domain, path) = match text.split_once('/') {
            Some((domain, path)) if !path.contains('/') => (domain, path),
            _ => {
                return fault(
                    "is not a signer name",
                    "write DOMAIN/NAME, as in pki.example.com/etcd",
                );
            }
        };
        if text.len() > MAX_NAME_LENGTH {
            return fault(
                &format!("has more than {MAX_NAME_LENGTH} characters"),
                "use a shorter name",
            );
        }
        let labels: Vec<&str> = domain.split('.').collect();
        // The API server requires a domain of at least two labels (`ValidateSignerName`).
        if labels.len() < 2
            || domain.len() > MAX_DOMAIN_LENGTH
            || !labels.iter().all(|label| is_label(label))
        {
            return fault(
                "does not begin with a domain of lower-case letters, digits and dashes with a dot in it",
                "write DOMAIN/NAME, as in pki.example.com/etcd",
            );
        }
        if !path.split('.').all(is_part) {
            return fault(
                "does not end in a name of lower-case letters, digits, dashes and dots",
                "write DOMAIN/NAME, as in pki.example.com/etcd",
            );
        }
        let server = match (domain, path) {
            (BUILT_IN, "kube-apiserver-client") => SigningController::ApiserverClient,
            (BUILT_IN, "kube-apiserver-client-kubelet") => SigningController::KubeletClient,
            (BUILT_IN, "kubelet-serving") => SigningController::KubeletServing,
            (BUILT_IN, "legacy-unknown") => {
                return fault(
                    "is refused by certificates.k8s.io/v1",
                    "use a signer name of your own, as in pki.example.com/etcd",
                );
            }
            (BUILT_IN, _) => {
                return fault(
                    "is not one of Kubernetes' own signers",
                    "use kubernetes.io/kube-apiserver-client, kubernetes.io/kube-apiserver-client-kubelet or \
                     kubernetes.io/kubelet-serving, or a domain of your own",
                );
            }
            (CLUSTER_ISSUERS, issuer) => SigningController::CertManager {
                namespace: None,
                issuer: issuer.to_owned(),
            },
            (ISSUERS, path) => match path.split_once('.') {
                Some((namespace, issuer)) => SigningController::CertManager {
                    namespace: Some(namespace.to_owned()),
                    issuer: issuer.to_owned(),
                },
                None => {
                    return fault(
                        "has no namespace, and cert-manager ignores it permanently",
                        &format!("write {ISSUERS}/NAMESPACE.{path}"),
                    );
                }
            },
            (
                "cert-manager.io" | "clusterissuer.cert-manager.io" | "issuer.cert-manager.io",
                path,
            ) => {
                return fault(
                    "is a name that cert-manager ignores permanently",
                    &format!(
                        "write {CLUSTER_ISSUERS}/{path} for a ClusterIssuer, or {ISSUERS}/NAMESPACE.{path} for an \
                         Issuer"
                    ),
                );
            }
            _ => SigningController::Other,
        };
        Ok(SignerName {
            text: text.to_owned(),
            server,
        })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether cert-manager serves the name.
    pub(super) fn is_cert_manager(&self) -> bool {
        matches!(self.server, SigningController::CertManager { .. })
    }

    /// Returns namespace and name of the Issuer that the requester must be allowed to `reference`.
    pub(super) fn referenced(&self) -> Option<(&str, &str)> {
        match &self.server {
            SigningController::CertManager {
                namespace: Some(namespace),
                issuer,
            } => Some((namespace, issuer)),
            _ => None,
        }
    }

    /// Returns why the signers of Kubernetes itself will never sign a certificate; empty for other signers. The rules
    /// are those of `k8s.io/kubernetes/pkg/apis/certificates` and of the admission plug-in
    /// CertificateSubjectRestriction.
    pub(super) fn obstacles(&self, wanted: &RequestedCertificate) -> Vec<String> {
        let profile = &wanted.profile;
        let usages = |only: ExtendedUsage| {
            (profile.usages != [only]).then(|| {
                let wanted: Vec<String> = profile.usages.iter().map(ToString::to_string).collect();
                format!("it signs only for {only}, not for {}", wanted.join(" and "))
            })
        };
        let nodes = || {
            let node = profile.subject.common_name.starts_with("system:node:")
                && profile.subject.organizations == ["system:nodes"];
            (!node).then(|| {
                format!(
                    "it signs only for O=system:nodes, CN=system:node:…, not for {}",
                    profile.subject
                )
            })
        };
        let found = match self.server {
            SigningController::ApiserverClient => {
                let masters = profile
                    .subject
                    .organizations
                    .iter()
                    .any(|one| one == MASTERS);
                let masters = masters.then(|| {
                    format!("the API server refuses {MASTERS} as an organization for that signer")
                });
                vec![usages(ExtendedUsage::ClientAuth), masters]
            }
            SigningController::KubeletClient => {
                let names = (!profile.sans.is_empty())
                    .then(|| format!("it allows no subject alternative names ({})", profile.sans));
                vec![usages(ExtendedUsage::ClientAuth), nodes(), names]
            }
            SigningController::KubeletServing => {
                let none = profile.sans.is_empty();
                let none = none.then(|| "it requires a subject alternative name".to_owned());
                vec![usages(ExtendedUsage::ServerAuth), nodes(), none]
            }
            SigningController::CertManager { .. } | SigningController::Other => return Vec::new(),
        };
        let authority = (wanted.authority != Authority::Ca).then(|| {
            format!(
                "kube-controller-manager signs it with the CA of its own cluster, not with {}",
                wanted.authority
            )
        });
        found.into_iter().chain([authority]).flatten().collect()
    }

    /// Returns which component an approved request waits for, and what to check; no condition reports a name that no
    /// controller serves.
    pub(super) fn missing(&self) -> String {
        match &self.server {
            SigningController::CertManager { namespace, issuer } => {
                let issuer = match namespace {
                    Some(namespace) => format!("Issuer {namespace}/{issuer}"),
                    None => format!("ClusterIssuer {issuer}"),
                };
                format!(
                    "for cert-manager: check that its {issuer} exists and is Ready, and that its controller runs with \
                     --feature-gates=ExperimentalCertificateSigningRequestControllers=true"
                )
            }
            SigningController::Other => format!(
                "for the signer {}: check that its controller runs and may update certificatesigningrequests/status \
                 and `sign` for that name",
                self.text
            ),
            _ => format!(
                "for kube-controller-manager to sign for {}: check that it runs the csrsigning controller with \
                 --cluster-signing-cert-file and --cluster-signing-key-file",
                self.text
            ),
        }
    }

    /// Returns who approves.
    pub(super) fn approver(&self) -> &'static str {
        match &self.server {
            SigningController::CertManager { .. } => {
                ", which cert-manager does not do automatically"
            }
            SigningController::KubeletClient => {
                ", which kube-controller-manager does for requesters with create on \
                 certificatesigningrequests/nodeclient or /selfnodeclient"
            }
            _ => "",
        }
    }
}

/// Returns whether a text is a label by RFC 1123.
fn is_label(label: &str) -> bool {
    label.len() <= MAX_LABEL_LENGTH && is_part(label)
}

/// Returns whether a text is a label of the path, whose length the API does not limit.
fn is_part(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    label.starts_with(inner)
        && label.ends_with(inner)
        && label.chars().all(|c| inner(c) || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_same_names_as_api_server() {
        let long = format!("a.b/{}", "x".repeat(568));
        let label = format!("{}.b/c", "x".repeat(64));
        for (name, fault) in [
            ("pki.example.com/etcd", None),
            ("pki.example.com/etcd.of-2", None),
            ("kubernetes.io/kube-apiserver-client", None),
            ("clusterissuers.cert-manager.io/my.ca", None),
            ("issuers.cert-manager.io/pki.my.ca", None),
            ("etcd", Some("is not a signer name")),
            ("a.b/c/d", Some("is not a signer name")),
            ("localhost/etcd", Some("with a dot in it")),
            ("pki.Example.com/etcd", Some("lower-case")),
            ("pki..com/etcd", Some("lower-case")),
            (&label, Some("lower-case")),
            ("pki.example.com/", Some("does not end in a name")),
            ("pki.example.com/Etcd", Some("does not end in a name")),
            (&long, Some("more than 571")),
            ("kubernetes.io/legacy-unknown", Some("refused by")),
            (
                "kubernetes.io/kube-apiserver-serving",
                Some("not one of Kubernetes' own"),
            ),
            (
                "cert-manager.io/my-ca",
                Some("clusterissuers.cert-manager.io/my-ca"),
            ),
            (
                "clusterissuer.cert-manager.io/my-ca",
                Some("clusterissuers.cert-manager.io/my-ca"),
            ),
            (
                "issuers.cert-manager.io/my-ca",
                Some("issuers.cert-manager.io/NAMESPACE.my-ca"),
            ),
        ] {
            let shown = match SignerName::parse(name) {
                Ok(parsed) => {
                    assert_eq!(parsed.as_str(), name);
                    None
                }
                Err(fault) => Some(format!("{fault}; {}", fault.advice)),
            };
            match (shown, fault) {
                (None, None) => {}
                (Some(shown), Some(part)) => assert!(shown.contains(part), "{name}: {shown}"),
                (shown, _) => panic!("{name}: {shown:?}"),
            }
        }
        assert!(SignerName::parse(&format!("a.b/{}", "x".repeat(567))).is_ok());
    }
}
