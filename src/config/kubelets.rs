//! The block `kubelets`: nodepki as the signer of the kubelets' CertificateSigningRequests.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};

use super::names::{accepted, accepted_with_notes};
use crate::kube::kubeadm::{IpNet, is_dns_subdomain};
use crate::kubelets::{KubeletPolicy, NodeNamePattern, NodeNameRange};
use crate::x509::KeyAlgorithm;
use crate::yaml::schema::ValueForm;
use crate::yaml::settings::{Setting, choice_setting, settings, unless_empty};
use crate::yaml::{Field, format_duration};

/// Shortest lifetime: a kubelet may not ask for less (`expirationSeconds`).
const MIN_LIFETIME: Duration = Duration::from_secs(600);
const MAX_REQUESTS_PER_SECOND: u32 = 1000;
const MAX_NODES_PER_TOKEN: u32 = 100_000;
/// Prefix of the groups that a bootstrap token may have (`cluster-bootstrap/token/api/types.go`,
/// `BootstrapGroupPattern`).
const TOKEN_GROUP_PREFIX: &str = "system:bootstrappers:";

settings! {
    for KubeletPolicy {
        /// Sign the approved CertificateSigningRequests of kubelets with the signer of authority ca, on one control-plane
        /// node at a time. nodepki.conf is then issued as well.
        "sign" => sign: bool;
        /// Approve requests for serving certificates that satisfy all rules.
        "approveServing" => approve_serving: bool;
        /// Approve requests for client certificates that satisfy all rules, in place of kube-controller-manager.
        "approveClient" => approve_client: bool;
        /// Sign client certificates of pods (PodCertificateRequest, Kubernetes 1.37), by which a pod is its ServiceAccount.
        "signPods" => sign_pods: bool;
        /// Longest lifetime of a kubelet's certificate; a kubelet may ask for less, down to 10m.
        "lifetime" => lifetime: Duration, read lifetime;
        /// Longest lifetime of the first certificate of a kubelet, which a bootstrap token requests; the kubelet renews it.
        "tokenLifetime" => token_lifetime: Duration, read lifetime;
        /// Key type of which certificates are signed.
        "keys" => keys: Vec<KeyAlgorithm>, read keys;
        /// Further DNS name in a serving certificate, with {node}, as in {node}.nodes.example.com.
        "names" => names: Vec<NodeNamePattern>, show unless_empty::<NodeNamePattern>;
        /// Domain of a cloud's DNS, as in ec2.internal: allows the name directly below it that a Node reports, if it begins
        /// with the Node's name or is made of its address.
        "domains" => domains: Vec<String>, read domains, show unless_empty::<String>;
        /// Network that contains the addresses of kubelets, as in 192.0.2.0/24; by default any private one.
        "networks" => networks: Vec<IpNet>, show unless_empty::<IpNet>;
        /// Group of the bootstrap tokens that may join nodes.
        "tokenGroups" => token_groups: Vec<String>, read token_groups;
        /// Name of the nodes that a group of tokenGroups may join, by group, with * for any part of a label; by default any.
        "nodeNames" => node_names: BTreeMap<String, Vec<NodeNameRange>>;
        /// Largest number of nodes for which one bootstrap token gets client certificates within an hour, from 1 to 100000.
        "nodesPerToken" => nodes_per_token: u32, read nodes_per_token;
        /// Name of a node for which no certificate is signed, in addition to those of nodepki kubelets revoke.
        "revoked" => revoked: Vec<String>, read revoked, show unless_empty::<String>;
        /// Largest number of requests to the signer per second, from 1 to 1000.
        "requestsPerSecond" => requests_per_second: u32, read requests_per_second;
        /// Name of the Lease in kube-system that selects the node that signs.
        "lease" => lease: String, read lease;
    }
}

choice_setting!(KeyAlgorithm);

/// Implements [`Setting`] for a type that is written as its own text.
macro_rules! text_setting {
    ($type:ty) => {
        impl Setting for $type {
            const FORM: ValueForm = ValueForm::Text;

            fn read(field: &Field<'_>) -> Option<Self> {
                accepted(field, <$type>::from_str(&field.string()?))
            }

            fn shown(&self) -> Option<Value> {
                Some(json!(self.to_string()))
            }
        }
    };
}

text_setting!(NodeNamePattern);
text_setting!(NodeNameRange);

impl Setting for BTreeMap<String, Vec<NodeNameRange>> {
    const FORM: ValueForm = ValueForm::Map(&ValueForm::List(&ValueForm::Text));

    fn read(field: &Field<'_>) -> Option<Self> {
        let groups = field.map()?.named().into_iter();
        let read = groups.filter_map(|(group, names)| Some((group, Vec::read(&names)?)));
        Some(read.collect())
    }

    fn shown(&self) -> Option<Value> {
        let groups = self.iter();
        let shown = groups.map(|(group, names)| (group.clone(), json!(names.shown())));
        (!self.is_empty()).then(|| Value::Object(shown.collect()))
    }
}

impl Setting for IpNet {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        accepted_with_notes(field, IpNet::parse(&field.string()?))
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.to_string()))
    }
}

impl Setting for u32 {
    const FORM: ValueForm = ValueForm::Number;

    fn read(field: &Field<'_>) -> Option<Self> {
        let number = field.integer()?;
        let fits = u32::try_from(number).ok();
        if fits.is_none() {
            field.error(
                format!("{number} is out of range"),
                "write a smaller number that is not negative",
            );
        }
        fits
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self))
    }
}

fn lifetime(field: &Field<'_>) -> Option<Duration> {
    let lifetime = Duration::read(field)?;
    if lifetime < MIN_LIFETIME {
        field.error(
            format!("{} is too short", format_duration(lifetime)),
            "use at least 10m, the shortest lifetime that a kubelet may ask for",
        );
    }
    Some(lifetime)
}

fn keys(field: &Field<'_>) -> Option<Vec<KeyAlgorithm>> {
    let keys = <Vec<KeyAlgorithm>>::read(field)?;
    if field.list()?.is_empty() {
        field.error(
            "names no key type, so every request would be denied",
            "list at least one, or remove the key",
        );
    } else if !keys.contains(&KeyAlgorithm::EcdsaP256) {
        // `util/certificate/certificate_manager.go` of client-go, up to 1.37.
        field.warning(
            "a kubelet makes ECDSA-P256 keys only, so every request for its own certificates would be denied",
            "add ECDSA-P256",
        );
    }
    Some(keys)
}

/// Reads a text, and reports one that is not `what`.
fn text(
    field: &Field<'_>,
    is_valid: impl FnOnce(&str) -> bool,
    what: &str,
    fix: &str,
) -> Option<String> {
    let text = field.string()?;
    if !is_valid(&text) {
        field.error(format!("{text:?} is not {what}"), fix);
    }
    Some(text)
}

fn domains(field: &Field<'_>) -> Option<Vec<String>> {
    const FIX: &str = "write a domain such as ec2.internal, without a wildcard";
    let read = |item: &Field<'_>| text(item, is_dns_subdomain, "a DNS domain in lower case", FIX);
    Some(field.list()?.iter().filter_map(read).collect())
}

fn token_groups(field: &Field<'_>) -> Option<Vec<String>> {
    let fix = format!("write a group that begins with {TOKEN_GROUP_PREFIX}");
    let is_valid = |group: &str| group.starts_with(TOKEN_GROUP_PREFIX);
    let read = |item: &Field<'_>| text(item, is_valid, "a group of bootstrap tokens", &fix);
    Some(field.list()?.iter().filter_map(read).collect())
}

fn requests_per_second(field: &Field<'_>) -> Option<u32> {
    positive(field, MAX_REQUESTS_PER_SECOND)
}

fn nodes_per_token(field: &Field<'_>) -> Option<u32> {
    positive(field, MAX_NODES_PER_TOKEN)
}

fn positive(field: &Field<'_>, max: u32) -> Option<u32> {
    let number = u32::read(field)?;
    if !(1..=max).contains(&number) {
        field.error(
            format!("{number} is out of range"),
            format!("use a number from 1 to {max}"),
        );
    }
    Some(number)
}

fn revoked(field: &Field<'_>) -> Option<Vec<String>> {
    const FIX: &str = "write the name of the Node, as kubectl get nodes prints it";
    let read = |item: &Field<'_>| text(item, is_dns_subdomain, "a valid node name", FIX);
    Some(field.list()?.iter().filter_map(read).collect())
}

fn lease(field: &Field<'_>) -> Option<String> {
    const FIX: &str = "use lower-case letters, digits, - and .";
    text(field, is_dns_subdomain, "a valid name of a Lease", FIX)
}
