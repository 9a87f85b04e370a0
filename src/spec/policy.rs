//! The key algorithm of each certificate, each authority and the service-account pair, and the lifetime of certificates.
//!
//! Form and precedence are those of OpenShift's PKI policy: an override for one name precedes its category, the category
//! precedes the defaults, and the defaults precede kubeadm's `encryptionAlgorithm` and validity periods. An entry without
//! a key or without a lifetime leaves that one to the next entry. `lifetime` is a field of nodepki, for which OpenShift's
//! proposal reserves the name. Pure.

mod object;
mod read;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub(crate) use self::object::{GROUP, VERSIONS, definition};
pub(crate) use self::read::SINGLETON;

use self::KeyOwner::Leaf;
use crate::kube::kubeadm::{self, KubernetesVersion};
use crate::kube::names::{Authority, CertName};
use crate::x509::{KeyAlgorithm, KeyFamily};
use crate::yaml::{Faults, FieldPosition, Node, format_duration};

words! {
    /// OpenShift's groups of certificates, by their names in a policy.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Category {
        /// CA certificates.
        Signer = "SignerCertificate",
        /// Server certificates, including those for both usages.
        Serving = "ServingCertificate",
        /// Client certificates.
        Client = "ClientCertificate",
    }
}

impl Category {
    /// Returns the category of a leaf certificate.
    pub fn of(name: CertName) -> Category {
        match name {
            CertName::Apiserver
            | CertName::EtcdServer
            | CertName::EtcdPeer
            | CertName::KubeletServing => Category::Serving,
            CertName::Registered(name) if !name.is_client() => Category::Serving,
            _ => Category::Client,
        }
    }

    fn parse(text: &str) -> Option<Category> {
        match text.strip_suffix("Certificate").unwrap_or(text) {
            "Signer" => Some(Category::Signer),
            "Serving" => Some(Category::Serving),
            "Client" => Some(Category::Client),
            _ => None,
        }
    }
}

/// The owner of a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOwner {
    /// An authority.
    Authority(Authority),
    /// A leaf certificate.
    Leaf(CertName),
    /// The pair that signs service-account tokens. It has no certificate and therefore no category.
    ServiceAccount,
    /// The authority of the etcd clients of Cluster API's controllers (`capi secrets --etcd-client-ca`).
    EtcdClientAuthority,
    /// Certificates of this name that nodepki has signed for the kubelets of all nodes; judged by the rules for that name.
    SignedForKubelets(CertName),
}

/// Name of [`KeyOwner::EtcdClientAuthority`].
const ETCD_CLIENT_AUTHORITY: &str = "etcd-client-ca";

impl KeyOwner {
    /// Returns the owners that kubeadm knows, authorities first.
    pub fn all() -> impl Iterator<Item = KeyOwner> {
        Authority::ALL
            .into_iter()
            .map(KeyOwner::Authority)
            .chain(CertName::ALL.into_iter().map(Leaf))
            .chain([KeyOwner::ServiceAccount])
    }

    /// Returns the authority that signs the owner's certificate; `None` for an authority and for the pair.
    pub(super) fn authority(self) -> Option<Authority> {
        match self {
            Leaf(name) => Some(name.authority()),
            KeyOwner::Authority(_)
            | KeyOwner::ServiceAccount
            | KeyOwner::EtcdClientAuthority
            | KeyOwner::SignedForKubelets(_) => None,
        }
    }

    /// Returns the category; `None` for the service-account pair.
    pub fn category(self) -> Option<Category> {
        match self {
            KeyOwner::Authority(_) | KeyOwner::EtcdClientAuthority => Some(Category::Signer),
            Leaf(name) | KeyOwner::SignedForKubelets(name) => Some(Category::of(name)),
            KeyOwner::ServiceAccount => None,
        }
    }

    /// Returns the owners that a policy can name, apart from registered certificates.
    fn named() -> impl Iterator<Item = KeyOwner> {
        KeyOwner::all().chain([KeyOwner::EtcdClientAuthority])
    }

    fn parse(text: &str) -> Option<KeyOwner> {
        KeyOwner::named().find(|owner| owner.to_string() == text)
    }

    /// Returns the owner whose override applies.
    fn in_overrides(self) -> KeyOwner {
        match self {
            KeyOwner::SignedForKubelets(name) => Leaf(name),
            owner => owner,
        }
    }
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyOwner::Authority(authority) => authority.fmt(f),
            Leaf(name) => name.fmt(f),
            KeyOwner::ServiceAccount => f.pad("sa"),
            KeyOwner::EtcdClientAuthority => f.pad(ETCD_CLIENT_AUTHORITY),
            KeyOwner::SignedForKubelets(name) => f.pad(&format!("kubelets/{name}")),
        }
    }
}

/// The parameters of one entry of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    key: Option<ChosenValue<KeyAlgorithm>>,
    lifetime: Option<ChosenValue<Duration>>,
}

/// A configured value, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChosenValue<T> {
    value: T,
    spot: FieldPosition,
}

/// The choices of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRules {
    defaults: Option<Choice>,
    categories: BTreeMap<Category, Choice>,
    overrides: BTreeMap<KeyOwner, Choice>,
}

impl KeyRules {
    /// Returns true if nothing is chosen, as in a policy of mode `Unmanaged`.
    pub fn is_empty(&self) -> bool {
        self.defaults.is_none() && self.categories.is_empty() && self.overrides.is_empty()
    }

    /// Returns the entries for the name and the category of an owner, in the order of precedence.
    fn specific(&self, owner: KeyOwner) -> impl Iterator<Item = &Choice> {
        let category = owner.category();
        let category = category.and_then(|category| self.categories.get(&category));
        let of_name = self.overrides.get(&owner.in_overrides());
        of_name.into_iter().chain(category)
    }

    fn key(&self, owner: KeyOwner) -> Option<&ChosenValue<KeyAlgorithm>> {
        self.specific(owner)
            .chain(&self.defaults)
            .find_map(|choice| choice.key.as_ref())
    }

    fn lifetime(&self, owner: KeyOwner) -> Option<&ChosenValue<Duration>> {
        self.specific(owner)
            .chain(&self.defaults)
            .find_map(|choice| choice.lifetime.as_ref())
    }
}

/// The key algorithm of every key owner, and the lifetimes that precede those of kubeadm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPolicy {
    rules: KeyRules,
    kubeadm: KeyAlgorithm,
}

impl KeyPolicy {
    /// Creates a policy whose rules precede kubeadm's algorithm.
    pub fn new(rules: KeyRules, kubeadm: KeyAlgorithm) -> Self {
        KeyPolicy { rules, kubeadm }
    }

    /// Returns the policy with the rules of the cluster, if it has any, in place of the node's own.
    #[must_use]
    pub(crate) fn replaced_by(self, cluster: Option<KeyRules>) -> KeyPolicy {
        KeyPolicy {
            rules: cluster.unwrap_or(self.rules),
            ..self
        }
    }

    /// Combines the rules of the settings with the `PKI` documents among the kubeadm documents.
    ///
    /// # Errors
    /// The faults of a document, or a second policy.
    pub(crate) fn assemble(
        settings: Option<&KeyRules>,
        documents: &[Node],
        kubeadm: KeyAlgorithm,
    ) -> Result<(KeyPolicy, Faults), Faults> {
        let mut faults = Faults::default();
        let mut rules = settings.cloned();
        let mut first = settings.map(|_| "the pki block of the settings".to_owned());
        for document in documents {
            match KeyRules::from_document(document) {
                Ok((read, warnings)) => {
                    faults.extend(warnings);
                    if let Some(first) = &first {
                        let spot = FieldPosition::from(document.place.clone());
                        let message = format!("is a second PKI policy; the first is {first}");
                        faults.push(spot.error(message, "keep one of the two"));
                    } else {
                        first = Some(format!("at {}", document.place));
                        rules = Some(read);
                    }
                }
                Err(errors) => faults.extend(errors),
            }
        }
        faults.outcome(KeyPolicy::new(rules.unwrap_or_default(), kubeadm))
    }

    /// Returns the rules, without kubeadm's algorithm.
    pub(crate) fn rules(&self) -> &KeyRules {
        &self.rules
    }

    /// Returns kubeadm's algorithm, for certificates that no rule names.
    pub(crate) fn kubeadm(&self) -> KeyAlgorithm {
        self.kubeadm
    }

    /// Returns the key of a leaf certificate.
    pub(crate) fn key_for(&self, name: CertName) -> KeyAlgorithm {
        self.key_of(Leaf(name))
    }

    /// Returns the key of an authority.
    pub(crate) fn key_for_authority(&self, authority: Authority) -> KeyAlgorithm {
        self.key_of(KeyOwner::Authority(authority))
    }

    /// Returns the key that signs service-account tokens.
    pub(crate) fn key_for_service_account(&self) -> KeyAlgorithm {
        self.key_of(KeyOwner::ServiceAccount)
    }

    /// Returns the key of any owner.
    pub(crate) fn key_of(&self, owner: KeyOwner) -> KeyAlgorithm {
        self.required_of(owner).unwrap_or(self.kubeadm)
    }

    /// Returns the key that the rules require of an owner. kubeadm's algorithm requires nothing of a key that exists, such
    /// as that of an external CA: kubeadm only creates keys by it.
    pub(crate) fn required_of(&self, owner: KeyOwner) -> Option<KeyAlgorithm> {
        self.rules.key(owner).map(|chosen| chosen.value)
    }

    /// Returns the lifetime of a leaf certificate; `None` if kubeadm's validity period applies.
    pub(crate) fn lifetime_of(&self, name: CertName) -> Option<Duration> {
        self.required_lifetime_of(Leaf(name))
    }

    /// Returns the owners that the rules name, in a fixed order.
    pub(crate) fn overridden(&self) -> impl Iterator<Item = KeyOwner> {
        self.rules.overrides.keys().copied()
    }

    /// Returns the longest lifetime that the rules permit; `None` for authorities, to which no lifetime of a rule applies,
    /// and for the service-account pair, which has no certificate.
    pub(crate) fn required_lifetime_of(&self, owner: KeyOwner) -> Option<Duration> {
        match owner {
            Leaf(_) | KeyOwner::SignedForKubelets(_) => {
                self.rules.lifetime(owner).map(|chosen| chosen.value)
            }
            KeyOwner::Authority(_) | KeyOwner::ServiceAccount | KeyOwner::EtcdClientAuthority => {
                None
            }
        }
    }

    /// Returns warnings about lifetimes, and about keys that kubeadm cannot create or that some software cannot use. Those about kubeadm's own
    /// `encryptionAlgorithm` are added when it is read.
    pub fn warnings(&self, kubernetes: Option<&KubernetesVersion>) -> Faults {
        let mut faults = self.lifetime_warnings();
        for (choice, owners) in self.owners_by_choice() {
            match choice.value {
                KeyAlgorithm::EcdsaP521 => warn_of_p521(choice, &owners, &mut faults),
                KeyAlgorithm::MlDsa44 | KeyAlgorithm::MlDsa65 | KeyAlgorithm::MlDsa87 => {
                    warn_of_ml_dsa(choice, kubernetes, &mut faults);
                }
                KeyAlgorithm::EcdsaP384 => {
                    if let Some(version) = kubernetes
                        && !version.at_least(1, 34)
                    {
                        faults.push(choice.spot.warning(
                            format!("kubeadm offers ECDSA-P384 since 1.34, but this cluster is {version}; its components can load such keys"),
                            RENEW_WITH_NODEPKI,
                        ));
                    }
                }
                KeyAlgorithm::Rsa2048
                | KeyAlgorithm::Rsa3072
                | KeyAlgorithm::Rsa4096
                | KeyAlgorithm::EcdsaP256 => {}
            }
        }
        faults
    }

    /// Returns warnings about lifetimes of more than a year, of which kubeadm warns too.
    fn lifetime_warnings(&self) -> Faults {
        let chosen = CertName::ALL
            .into_iter()
            .filter_map(|name| self.rules.lifetime(Leaf(name)))
            .filter(|chosen| chosen.value > kubeadm::YEAR);
        let mut warned: Vec<&FieldPosition> = Vec::new();
        let mut faults = Faults::default();
        for ChosenValue { value, spot } in chosen {
            if !warned.contains(&spot) {
                warned.push(spot);
                let message = format!("{} is longer than a year", format_duration(*value));
                faults.push(spot.warning(message, "shorten it"));
            }
        }
        faults
    }

    /// Returns each chosen key with the owners to which it applies.
    fn owners_by_choice(&self) -> Vec<(&ChosenValue<KeyAlgorithm>, Vec<KeyOwner>)> {
        let mut groups: Vec<(&ChosenValue<KeyAlgorithm>, Vec<KeyOwner>)> = Vec::new();
        for owner in KeyOwner::all() {
            let Some(choice) = self.rules.key(owner) else {
                continue;
            };
            match groups.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, owners)) => owners.push(owner),
                None => groups.push((choice, vec![owner])),
            }
        }
        groups
    }
}

const RENEW_WITH_NODEPKI: &str =
    "kubeadm certs renew would create other keys; renew with nodepki only";

fn warn_of_p521(choice: &ChosenValue<KeyAlgorithm>, owners: &[KeyOwner], faults: &mut Faults) {
    let with_certificate: Vec<String> = owners
        .iter()
        .filter(|owner| **owner != KeyOwner::ServiceAccount)
        .map(KeyOwner::to_string)
        .collect();
    if !with_certificate.is_empty() {
        faults.push(choice.spot.warning(
            format!(
                "kubeadm does not offer ECDSA-P521 (for {}); Kubernetes components can load such keys, some clients and signers cannot",
                with_certificate.join(", ")
            ),
            RENEW_WITH_NODEPKI,
        ));
    }
    if owners.contains(&KeyOwner::ServiceAccount) {
        faults.push(choice.spot.warning(
            "an ECDSA-P521 sa key signs tokens with ES512: kube-apiserver supports it, but kubeadm cannot create such a key, and some verifiers outside the cluster may not support it",
            "add an override for sa with ECDSA P256 or RSA",
        ));
    }
}

/// Minor version of Kubernetes 1 whose components are the first to be built with Go 1.27, which can use ML-DSA.
const FIRST_ML_DSA_MINOR: u32 = 38;

fn warn_of_ml_dsa(
    choice: &ChosenValue<KeyAlgorithm>,
    kubernetes: Option<&KubernetesVersion>,
    faults: &mut Faults,
) {
    if let Some(why) = too_old_for(choice.value, kubernetes) {
        faults.push(choice.spot.warning(
            why,
            "use ECDSA until every component of the cluster, every client and etcd is new enough",
        ));
    }
}

/// Returns why the components of a cluster of this version cannot use keys of an algorithm; `None` if they can.
pub fn too_old_for(
    algorithm: KeyAlgorithm,
    kubernetes: Option<&KubernetesVersion>,
) -> Option<String> {
    let cluster = match kubernetes {
        _ if algorithm.family() != KeyFamily::MlDsa => return None,
        Some(version) if version.at_least(1, FIRST_ML_DSA_MINOR) => return None,
        Some(version) => format!("this cluster is {version}"),
        None => "the version of this cluster is not known".to_owned(),
    };
    Some(format!(
        "{algorithm} keys need components that are built with Go 1.27, as those of Kubernetes 1.{FIRST_ML_DSA_MINOR}; {cluster}, and older components do not start with such a key or trust such a CA"
    ))
}

#[cfg(test)]
mod tests;
