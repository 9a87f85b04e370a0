//! Judges the service-account pair of the node.

use super::Survey;
use super::keys::found_key;
use crate::agent::{Provided, ServiceAccount};
use crate::node::NodeState;
use crate::spec::ServiceAccountSpec;
use crate::spec::assess::{COPY_SERVICE_ACCOUNT, Observed};
use crate::spec::compliance::KeyUse;
use crate::spec::policy::KeyOwner;
use crate::store;
use crate::x509::{KeyType, PrivateKey, PublicKey};

/// The planned action for the service-account pair.
#[derive(Debug, PartialEq, Eq)]
pub enum ServiceAccountAction {
    /// Both files exist and are a pair.
    Keep,
    /// Generate both.
    Make,
    /// Install the cluster's pair.
    Install,
    /// `sa.pub` is missing and is derived from `sa.key`.
    DerivePublic,
    /// Every user can read `sa.key`.
    Tighten,
}

/// The service-account pair on disk.
struct FoundPair<'a> {
    spec: &'a ServiceAccountSpec,
    private: Observed<PrivateKey>,
    public: Observed<Vec<PublicKey>>,
    /// Every user can read `sa.key`.
    is_exposed: bool,
    /// The node already has certificates.
    has_served: bool,
}

impl Survey {
    pub(super) fn read_service_account(
        &mut self,
        state: &NodeState,
        spec: &ServiceAccountSpec,
        provided: &Provided,
    ) -> Result<(), store::StoreError> {
        let file = state.file(&spec.private);
        let pair = FoundPair {
            spec,
            private: file.parse(PrivateKey::from_pem)?,
            public: state.file(&spec.public).parse(PublicKey::all_from_pem)?,
            is_exposed: file.mode_if_exposed().is_some(),
            has_served: state.has_served(),
        };
        self.service_account_key = Some(KeyUse::of(
            KeyOwner::ServiceAccount,
            found_key(&pair.private, |key| key.public_key().key_type()),
        ));
        let provided = provided.service_account.as_ref();
        let action = match provided.and_then(|provided| pair.foreign(provided)) {
            Some(refusal) => Err(refusal),
            None => pair.action(provided.is_some()),
        };
        if let Ok(ServiceAccountAction::Keep | ServiceAccountAction::Tighten) = action {
            self.notes.extend(pair.weak_key());
        }
        match action {
            Ok(action) => self.service_account = Some(action),
            Err(refusal) => self.refusals.push(refusal),
        }
        Ok(())
    }
}

impl FoundPair<'_> {
    /// Returns why the pair is not that of the cluster; `None` if it is, or if there is none.
    fn foreign(&self, provided: &ServiceAccount) -> Option<String> {
        let ServiceAccount { from, key, .. } = provided;
        let cluster = key.public_key();
        let private = self.private.present();
        let public = self.public.present();
        let path = if private.is_some_and(|own| own.public_key() != cluster) {
            &self.spec.private
        } else if public.is_some_and(|own| !own.contains(cluster)) {
            &self.spec.public
        } else {
            return None;
        };
        Some(format!(
            "{path} is not the key of the cluster that this node joins: {from} has another one, and with two of them half of all service-account tokens fail; move sa.key and sa.pub away if the other one is right, and run again"
        ))
    }

    fn weak_key(&self) -> Option<String> {
        match self.private.present()?.key_type() {
            KeyType::Rsa(bits @ ..2048) => Some(format!(
                "{} is an RSA key of only {bits} bits",
                self.spec.private
            )),
            _ => None,
        }
    }

    /// Decides what to do, or why the pair is refused. `has_provided`: the cluster has provided its pair.
    fn action(&self, has_provided: bool) -> Result<ServiceAccountAction, String> {
        let spec = self.spec;
        let (key_path, public_path) = (&spec.private, &spec.public);
        let copy = format!(
            "{COPY_SERVICE_ACCOUNT} to {}, and run again",
            spec.private.directory()
        );
        match (&self.private, &self.public) {
            (
                Observed::Absent | Observed::Empty,
                Observed::Absent | Observed::Empty | Observed::Present(_),
            ) if has_provided => Ok(ServiceAccountAction::Install),
            (Observed::Present(private), Observed::Present(public))
                if public.contains(private.public_key()) =>
            {
                Ok(if self.is_exposed {
                    ServiceAccountAction::Tighten
                } else {
                    ServiceAccountAction::Keep
                })
            }
            (Observed::Present(_), Observed::Present(_)) if self.has_served => Err(format!(
                "{key_path} and {public_path} are not a pair: tokens signed with the one are refused by the other; {copy}"
            )),
            (Observed::Present(_), Observed::Present(_)) => Err(format!(
                "{key_path} and {public_path} are not a pair: tokens signed with the one are refused by the other; find out which of them the cluster uses (compare with another control-plane node), then remove the wrong one and run again"
            )),
            (Observed::Present(_), Observed::Absent | Observed::Empty) => {
                Ok(ServiceAccountAction::DerivePublic)
            }
            (Observed::Unreadable(why), _) if self.has_served => {
                Err(format!("{key_path} is not usable: {why}; {copy}"))
            }
            (Observed::Absent | Observed::Empty, _) if self.has_served => Err(format!(
                "{key_path} is absent, and this node has certificates already; {copy}"
            )),
            (_, Observed::Unreadable(why)) if self.has_served => {
                Err(format!("{public_path} is not usable: {why}; {copy}"))
            }
            (Observed::Absent | Observed::Empty, Observed::Absent | Observed::Empty)
                if spec.may_make =>
            {
                Ok(ServiceAccountAction::Make)
            }
            (Observed::Absent | Observed::Empty, Observed::Absent | Observed::Empty) => {
                Err(format!(
                    "{key_path} is absent and this node belongs to a cluster: a new pair would differ from that of the other control-plane nodes and service-account tokens would fail; have it fetched from kubeadm-certs (join.certificateKey, or controlPlane.certificateKey of the JoinConfiguration), or copy sa.key and sa.pub from a control-plane node to {}, and run again",
                    spec.private.directory()
                ))
            }
            (Observed::Absent | Observed::Empty, _) => Err(format!(
                "{public_path} exists but {key_path} does not; copy the matching sa.key from where sa.pub came, or remove sa.pub if the cluster is new, and run again"
            )),
            (Observed::Unreadable(why), _) => Err(format!(
                "{key_path} is not usable: {why}; restore it from another control-plane node and run again"
            )),
            (_, Observed::Unreadable(why)) => Err(format!(
                "{public_path} is not usable: {why}; remove it to have it derived from sa.key and run again"
            )),
        }
    }
}
