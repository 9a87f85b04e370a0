//! Key parameters: which kind of key each certificate, authority and the service-account pair gets.
//!
//! The shape and the precedence are those of OpenShift's PKI policy: an override for one name wins over the
//! category, the category over the defaults, the defaults over kubeadm's `encryptionAlgorithm`. Pure; it decides nothing
//! but the key.

mod read;

use std::collections::BTreeMap;
use std::fmt;

use self::KeyOwner::Leaf;
use crate::kube::kubeadm::Version;
use crate::kube::names::{Authority, CertName};
use crate::x509::KeyAlgorithm;
use crate::yaml::{Faults, Node, Spot};

/// OpenShift's groups of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Authorities.
    Signer,
    /// What a server shows; certificates for both usages count here.
    Serving,
    /// What a client shows.
    Client,
}

impl Category {
    /// The category of a leaf certificate.
    pub const fn of(name: CertName) -> Category {
        match name {
            CertName::Apiserver
            | CertName::EtcdServer
            | CertName::EtcdPeer
            | CertName::KubeletServing => Category::Serving,
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

/// Something that has a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOwner {
    /// An authority.
    Authority(Authority),
    /// A leaf certificate.
    Leaf(CertName),
    /// The pair that signs service-account tokens; it has no certificate and so no category.
    ServiceAccount,
}

impl KeyOwner {
    /// All of them, authorities first.
    pub fn all() -> impl Iterator<Item = KeyOwner> {
        Authority::ALL
            .into_iter()
            .map(KeyOwner::Authority)
            .chain(CertName::ALL.into_iter().map(Leaf))
            .chain([KeyOwner::ServiceAccount])
    }

    fn category(self) -> Option<Category> {
        match self {
            KeyOwner::Authority(_) => Some(Category::Signer),
            Leaf(name) => Some(Category::of(name)),
            KeyOwner::ServiceAccount => None,
        }
    }

    fn parse(text: &str) -> Option<KeyOwner> {
        KeyOwner::all().find(|owner| owner.to_string() == text)
    }
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyOwner::Authority(authority) => authority.fmt(f),
            Leaf(name) => name.fmt(f),
            KeyOwner::ServiceAccount => f.pad("sa"),
        }
    }
}

/// A key algorithm and where it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    key: KeyAlgorithm,
    spot: Spot,
}

/// The choices of one policy text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    defaults: Option<Choice>,
    categories: BTreeMap<Category, Choice>,
    overrides: BTreeMap<KeyOwner, Choice>,
}

impl Rules {
    /// True when nothing is chosen, as in a policy of mode `Unmanaged`.
    pub fn is_empty(&self) -> bool {
        self.defaults.is_none() && self.categories.is_empty() && self.overrides.is_empty()
    }

    fn choice(&self, owner: KeyOwner) -> Option<&Choice> {
        self.overrides
            .get(&owner)
            .or_else(|| {
                owner
                    .category()
                    .and_then(|category| self.categories.get(&category))
            })
            .or(self.defaults.as_ref())
    }
}

/// The answer to which key is made for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Rules,
    kubeadm: KeyAlgorithm,
}

impl Policy {
    /// The rules over kubeadm's own algorithm.
    pub fn new(rules: Rules, kubeadm: KeyAlgorithm) -> Self {
        Policy { rules, kubeadm }
    }

    /// Joins the settings' rules and the `PKI` documents found beside the kubeadm configuration.
    ///
    /// # Errors
    /// Faults of a document, or that the policy is given more than once.
    pub fn assemble(
        settings: Option<&Rules>,
        documents: &[Node],
        kubeadm: KeyAlgorithm,
    ) -> Result<(Policy, Faults), Faults> {
        let mut faults = Faults::default();
        let mut rules = settings.cloned();
        let mut first = settings.map(|_| "the pki block of the settings".to_owned());
        for document in documents {
            match Rules::from_document(document) {
                Ok((read, warnings)) => {
                    faults.extend(warnings);
                    if let Some(first) = &first {
                        let spot = Spot {
                            place: document.place.clone(),
                            field: String::new(),
                        };
                        let message = format!("a second PKI policy, the first is {first}");
                        faults.push(spot.error(message, "keep one of the two"));
                    } else {
                        first = Some(format!("at {}", document.place));
                        rules = Some(read);
                    }
                }
                Err(errors) => faults.extend(errors),
            }
        }
        faults.outcome(Policy::new(rules.unwrap_or_default(), kubeadm))
    }

    /// The key of a leaf certificate.
    pub fn key_for(&self, name: CertName) -> KeyAlgorithm {
        self.key_of(Leaf(name))
    }

    /// The key of an authority.
    pub fn key_for_authority(&self, authority: Authority) -> KeyAlgorithm {
        self.key_of(KeyOwner::Authority(authority))
    }

    /// The key that signs service-account tokens.
    pub fn key_for_service_account(&self) -> KeyAlgorithm {
        self.key_of(KeyOwner::ServiceAccount)
    }

    /// The key of anything that has one.
    pub fn key_of(&self, owner: KeyOwner) -> KeyAlgorithm {
        self.rules
            .choice(owner)
            .map_or(self.kubeadm, |choice| choice.key)
    }

    /// Choices of the policy that kubeadm on the node would not make, or that need care. kubeadm's own
    /// `encryptionAlgorithm` is warned about where it is read.
    pub fn warnings(&self, kubernetes: Option<&Version>) -> Faults {
        let mut owners: Vec<(&Choice, Vec<KeyOwner>)> = Vec::new();
        for owner in KeyOwner::all() {
            let Some(choice) = self.rules.choice(owner) else {
                continue;
            };
            match owners.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, list)) => list.push(owner),
                None => owners.push((choice, vec![owner])),
            }
        }
        let mut faults = Faults::default();
        for (choice, owners) in owners {
            let names: Vec<String> = owners
                .iter()
                .filter(|owner| **owner != KeyOwner::ServiceAccount)
                .map(KeyOwner::to_string)
                .collect();
            let renew = "kubeadm certs renew would make other keys; renew with nodepki only";
            match choice.key {
                KeyAlgorithm::EcdsaP521 => {
                    if !names.is_empty() {
                        faults.push(choice.spot.warning(
                            format!("kubeadm does not offer ECDSA-P521 (for {}); Kubernetes components load such keys, some clients and signers do not", names.join(", ")),
                            renew,
                        ));
                    }
                    if owners.contains(&KeyOwner::ServiceAccount) {
                        faults.push(choice.spot.warning(
                            "an ECDSA-P521 sa key signs tokens with ES512: kube-apiserver can, but kubeadm cannot make such a key and readers of tokens outside the cluster may not know it",
                            "add an override for sa with ECDSA P256 or RSA",
                        ));
                    }
                }
                KeyAlgorithm::EcdsaP384 => {
                    if let Some(version) = kubernetes
                        && !version.at_least(1, 34)
                    {
                        faults.push(choice.spot.warning(
                            format!("kubeadm offers ECDSA-P384 from 1.34 on, this cluster is {version}; its components load such keys"),
                            renew,
                        ));
                    }
                }
                _ => {}
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests;
