//! The reasons of decisions: stable codes for conditions, events and metrics, each with a sentence.

use std::fmt;

/// Declares the reasons, with the sentence that documents each.
macro_rules! reasons {
    ($($meaning:literal $name:ident,)+) => {
        words! {
            /// The reason of a decision, in the order of the rules. The code is stable: it is written into conditions and
            /// events and is a label of metrics.
            #[derive(PartialOrd, Ord, Hash)]
            pub enum RequestReason {
                $(#[doc = $meaning] $name = stringify!($name),)+
            }
        }

        impl RequestReason {
            /// Returns what the code means, for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(RequestReason::$name => $meaning,)+
                }
            }
        }
    };
}

reasons! {
    "A field of the object exceeds its limit or is not valid." FieldOverLimit,
    "The requester is neither the node nor, for a client certificate, a bootstrap token." RequesterNotAllowed,
    "The requester's groups are not exactly those of a node, or of a bootstrap token that may join nodes." GroupsNotAllowed,
    "The usages are not exactly those of the signer name." UsagesNotAllowed,
    "The request is not exactly one PEM block with one PKCS#10 request in DER." RequestUnreadable,
    "The request's own signature does not verify." SignatureInvalid,
    "The subject is not exactly O=system:nodes and CN=system:node:NAME." SubjectNotAllowed,
    "The name in the subject is not a valid node name." NodeNameInvalid,
    "The name in the subject is reserved for the control plane, services, pods or every machine, or belongs to another node." NodeNameReserved,
    "The groups of the bootstrap token may not join a node of this name." NodeNameNotAllowed,
    "Another requester or key got a certificate for this name, and the Node does not exist yet." NodeNameTaken,
    "The name in the subject is that of another node than the requester." NameOfOtherNode,
    "The type or size of the key is not allowed." KeyNotAllowed,
    "The request contains an attribute other than an extension request." AttributeNotAllowed,
    "The request contains an extension other than subjectAltName." ExtensionNotAllowed,
    "A serving certificate requires a DNS name or an IP address." SanRequired,
    "A client certificate must not contain subject alternative names." SanNotAllowed,
    "A subject alternative name is neither a DNS name nor an IP address, or is not valid." SanNotValid,
    "A subject alternative name occurs twice." SanDuplicate,
    "An address is loopback, link-local, multicast, unspecified, broadcast or a service of the cloud, or a name means this machine." SanSpecial,
    "A name or an address belongs to a service or a pod." SanOfService,
    "A name or an address belongs to the API server or another component of the control plane." SanOfApiServer,
    "A name or an address belongs to another Node." SanOfOtherNode,
    "A name or an address belongs to this Node, and another one claims it." SanClaimedTwice,
    "An address is not in one of the configured networks; or no networks are configured, and it is public or translated." SanOutsideNetworks,
    "An address is not one of the Node's, or a name is neither its own nor given to it by the configuration." SanNotOfNode,
    "The Node does not exist." NodeNotFound,
    "The Node exists and is or was ready, so a bootstrap token must not replace its identity." NodeExists,
    "The Node is being deleted." NodeDeleting,
    "The Node was deleted and created again, which no bootstrap token and no administrator has confirmed." NodeReplaced,
    "The node's name is revoked." NodeRevoked,
    "The request repeats an earlier one that is not finished." RequestRepeated,
    "The same requester sent another request for the certificate at least 15 minutes later, and does not wait for this one." RequestAbandoned,
    "The requester has reached the limit of certificates, or of new nodes, within an hour." LimitReached,
    "All rules are satisfied, but nodepki is not configured to approve such requests." ApprovalRequired,
    "The request of a pod has annotations, and nodepki knows none." InvalidUnverifiedUserAnnotations,
    "The type or size of the key of a pod is not allowed." UnsupportedKeyType,
    "The pod does not exist, has ended, or is not the one of the request." PodNotFound,
    "The pod does not run on the node that the request names." PodOfOtherNode,
    "The pod is not the ServiceAccount that the request names, or that was created again." ServiceAccountDiffers,
    "The signer's certificate differs from the request, or the API server does not accept its validity." CertificateNotAccepted,
}

/// A reason, with one sentence about this request. The sentence is safe for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFinding {
    /// The code.
    pub reason: RequestReason,
    /// One sentence, without a full stop.
    pub message: String,
}

impl RuleFinding {
    pub(crate) fn new(reason: RequestReason, message: impl Into<String>) -> RuleFinding {
        RuleFinding {
            reason,
            message: message.into(),
        }
    }
}

impl fmt::Display for RuleFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}
