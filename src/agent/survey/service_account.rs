//! Judges the service-account pair of the node.

use super::keys::found_key;
use super::{Survey, SurveyRefusal};
use crate::agent::{Provided, ServiceAccount};
use crate::kube::names::NodePath;
use crate::node::{NodeState, ServiceSign};
use crate::spec::assess::{
    COPY_SERVICE_ACCOUNT, CertRefusal, KeyFile, MisplacedKey, Observed,
    misplaced_service_account_keys,
};
use crate::spec::compliance::KeyUse;
use crate::spec::policy::KeyOwner;
use crate::spec::{CertFiles, ServiceAccountSpec};
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

/// The reason why the service-account pair is unusable and is not changed, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ServiceAccountFault {
    #[error(
        "{path} is not the key of the cluster that this node joins: {from} has another one, and with two of them half of all service-account tokens fail; move sa.key and sa.pub away if the other one is right, and run again"
    )]
    Foreign { path: NodePath, from: String },
    #[error(
        "{private} and {public} are not a pair: tokens signed with the one are refused by the other; {}",
        if *has_served { copy_to(&private.directory()) } else { "find out which of them the cluster uses (compare with another control-plane node), then remove the wrong one and run again".to_owned() }
    )]
    NotAPair {
        private: NodePath,
        public: NodePath,
        has_served: bool,
    },
    #[error("{0}: {fix}, then run again", fix = .0.fix())]
    Misplaced(MisplacedKey),
    #[error("{path} is not usable: {why}; {fix}")]
    Unusable {
        path: NodePath,
        why: String,
        fix: UnusableFix,
    },
    #[error("{private} is {lack}, and {}", after_use(sign, &private.directory()))]
    AbsentAfterUse {
        private: NodePath,
        lack: Lack,
        sign: ServiceSign,
    },
    #[error(
        "{private} is {lack} and this node belongs to a cluster: a new pair would differ from that of the other control-plane nodes and service-account tokens would fail; have it fetched from kubeadm-certs (join.certificateKey, or controlPlane.certificateKey of the JoinConfiguration), or copy sa.key and sa.pub from a control-plane node to {}, and run again",
        private.directory()
    )]
    AbsentInCluster { private: NodePath, lack: Lack },
    #[error(
        "{public} exists, and {private} is {lack}; copy the matching sa.key from where sa.pub came, or remove sa.pub if the cluster is new, and run again"
    )]
    OnlyPublic {
        private: NodePath,
        lack: Lack,
        public: NodePath,
    },
    #[error(
        "{public} is absent and kube-apiserver does not start without it; run nodepki bootstrap, which derives it from sa.key"
    )]
    PublicAbsent { public: NodePath },
    #[error(
        "sa.key and sa.pub of the cluster are not in {directory} yet; run nodepki bootstrap, which installs them"
    )]
    NotInstalled { directory: NodePath },
    #[error(
        "sa.key and sa.pub are absent from {directory}, and a new pair would differ from the cluster's; {COPY_SERVICE_ACCOUNT}"
    )]
    PairLost { directory: NodePath },
}

codes!(ServiceAccountFault {
    Foreign,
    NotAPair,
    Misplaced,
    Unusable,
    AbsentAfterUse,
    AbsentInCluster,
    OnlyPublic,
    PublicAbsent,
    NotInstalled,
    PairLost
});

/// Why a file has no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// It does not exist.
    #[error("absent")]
    Absent,
    /// It exists.
    #[error("empty")]
    Empty,
}

/// The fix for a file of the service-account pair that is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableFix {
    /// On a node that has served: the pair of another node, to this directory.
    #[error("{}", copy_to(.0))]
    Copy(NodePath),
    /// For `sa.key`.
    #[error("restore it from another control-plane node and run again")]
    Restore,
    /// For `sa.pub`.
    #[error("remove it to have it derived from sa.key and run again")]
    Derive,
}

fn copy_to(directory: &NodePath) -> String {
    format!("{COPY_SERVICE_ACCOUNT} to {directory}, and run again")
}

fn after_use(sign: &ServiceSign, directory: &NodePath) -> String {
    let copy = copy_to(directory);
    match sign {
        ServiceSign::Certificates => format!("this node has certificates already; {copy}"),
        ServiceSign::File(path) => format!(
            "{path} shows that this node belongs to a cluster, whose service-account tokens would fail with a new pair; {copy}{}",
            sign.way_out()
        ),
    }
}

/// The service-account pair on disk.
struct FoundPair<'a> {
    spec: &'a ServiceAccountSpec,
    private: Observed<PrivateKey>,
    public: Observed<Vec<PublicKey>>,
    /// Every user can read `sa.key`.
    is_exposed: bool,
    sign_of_service: Option<ServiceSign>,
    misplaced: Option<MisplacedKey>,
}

impl Survey {
    /// Refuses to replace a private key of `sa.pub` in the key file of a certificate.
    pub(super) fn protect_service_account_key(
        &mut self,
        state: &NodeState,
        spec: &ServiceAccountSpec,
    ) -> Result<(), store::StoreError> {
        let public = state.file(&spec.public).parse(PublicKey::all_from_pem)?;
        let Some(public) = public.present() else {
            return Ok(());
        };
        let private = state.file(&spec.private).key();
        let certs = self.certs.iter().enumerate();
        let files: Vec<KeyFile<'_, (usize, &NodePath)>> = certs
            .filter_map(|(place, cert)| {
                let CertFiles::Pair { key: path, .. } = &cert.spec.output else {
                    return None;
                };
                let chain = cert.found.chain.present();
                Some(KeyFile {
                    file: (place, path),
                    key: cert.found.key.present()?.public_key(),
                    certified: chain.map(|chain| chain.leaf().public_key()),
                })
            })
            .collect();
        let own = private.present().map(PrivateKey::public_key);
        let is_alone = matches!(private, Observed::Absent | Observed::Empty);
        let misplaced = misplaced_service_account_keys(public, own, &files);
        let misplaced = misplaced.into_iter().map(|(place, path)| {
            let key = MisplacedKey {
                path: path.to_string(),
                private: spec.private.to_string(),
                is_alone,
            };
            (place, key)
        });
        for (place, key) in misplaced.collect::<Vec<_>>() {
            if let Some(cert) = self.certs.get_mut(place) {
                cert.unrepairable = Some(CertRefusal::ServiceAccountKey(key));
            }
        }
        Ok(())
    }

    pub(super) fn read_service_account(
        &mut self,
        state: &NodeState,
        spec: &ServiceAccountSpec,
        provided: &Provided,
    ) -> Result<(), store::StoreError> {
        let file = state.file(&spec.private);
        let pair = FoundPair {
            spec,
            private: file.readable()?.key(),
            public: state.file(&spec.public).parse(PublicKey::all_from_pem)?,
            is_exposed: file.mode_if_exposed().is_some(),
            sign_of_service: state.sign_of_service(),
            misplaced: self.certs.iter().find_map(|cert| match &cert.unrepairable {
                Some(CertRefusal::ServiceAccountKey(found)) => Some(found.clone()),
                _ => None,
            }),
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
            Err(fault) => {
                // The refusal of the certificate whose file has the key names it already.
                if !matches!(fault, ServiceAccountFault::Misplaced(_)) {
                    self.refusals
                        .push(SurveyRefusal::ServiceAccount(fault.clone()));
                }
                self.service_account_refused = Some(fault);
            }
        }
        Ok(())
    }
}

impl FoundPair<'_> {
    /// Returns why the pair is not that of the cluster; `None` if it is, or if there is none.
    fn foreign(&self, provided: &ServiceAccount) -> Option<ServiceAccountFault> {
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
        Some(ServiceAccountFault::Foreign {
            path: path.clone(),
            from: from.clone(),
        })
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
    fn action(&self, has_provided: bool) -> Result<ServiceAccountAction, ServiceAccountFault> {
        use ServiceAccountFault as F;
        let spec = self.spec;
        let (private, public) = (spec.private.clone(), spec.public.clone());
        let unusable = |path: NodePath, why: &str| F::Unusable {
            why: why.to_owned(),
            fix: match self.sign_of_service.is_some() {
                // Its private key is usable: an unusable one is refused first.
                _ if path == spec.public => UnusableFix::Derive,
                true => UnusableFix::Copy(spec.private.directory()),
                false => UnusableFix::Restore,
            },
            path,
        };
        if let Some(misplaced) = &self.misplaced {
            return Err(F::Misplaced(misplaced.clone()));
        }
        match (&self.private, &self.public) {
            (
                Observed::Absent | Observed::Empty,
                Observed::Absent | Observed::Empty | Observed::Present(_),
            ) if has_provided => Ok(ServiceAccountAction::Install),
            (Observed::Present(own), Observed::Present(public))
                if public.contains(own.public_key()) =>
            {
                Ok(if self.is_exposed {
                    ServiceAccountAction::Tighten
                } else {
                    ServiceAccountAction::Keep
                })
            }
            (Observed::Present(_), Observed::Present(_)) => Err(F::NotAPair {
                private,
                public,
                has_served: self.sign_of_service.is_some(),
            }),
            (Observed::Present(_), Observed::Absent | Observed::Empty) => {
                Ok(ServiceAccountAction::DerivePublic)
            }
            (Observed::Unreadable(why), _) => Err(unusable(private, why)),
            (own @ (Observed::Absent | Observed::Empty), found) => {
                let lack = match own {
                    Observed::Empty => Lack::Empty,
                    _ => Lack::Absent,
                };
                let is_alone = matches!(found, Observed::Absent | Observed::Empty);
                match self.sign_of_service.clone() {
                    Some(sign) => Err(F::AbsentAfterUse {
                        private,
                        lack,
                        sign,
                    }),
                    None if is_alone && spec.may_make => Ok(ServiceAccountAction::Make),
                    None if is_alone => Err(F::AbsentInCluster { private, lack }),
                    None => Err(F::OnlyPublic {
                        private,
                        lack,
                        public,
                    }),
                }
            }
            (_, Observed::Unreadable(why)) => Err(unusable(public, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::SurveyRefusal;
    use crate::x509::KeyAlgorithm;

    #[test]
    fn keeps_short_rsa_key_with_note() {
        let spec = ServiceAccountSpec {
            private: NodePath::from("/pki/sa.key"),
            public: NodePath::from("/pki/sa.pub"),
            key: KeyAlgorithm::Rsa2048,
            may_make: false,
        };
        let key = PrivateKey::of_rsa_bits(1024);
        let pair = FoundPair {
            spec: &spec,
            private: Observed::read(Some(key.to_pem().as_bytes()), PrivateKey::from_pem),
            public: Observed::Present(vec![key.public_key().clone()]),
            is_exposed: false,
            sign_of_service: None,
            misplaced: None,
        };
        assert_eq!(pair.action(false), Ok(ServiceAccountAction::Keep));
        assert_eq!(
            pair.weak_key().as_deref(),
            Some("/pki/sa.key is an RSA key of only 1024 bits")
        );
    }

    #[test]
    fn states_each_fault_with_its_fix() {
        use ServiceAccountFault as F;
        let (private, public) = (NodePath::from("/pki/sa.key"), NodePath::from("/pki/sa.pub"));
        let directory = private.directory();
        for (fault, code, text) in [
            (
                F::Foreign {
                    path: private.clone(),
                    from: "kubeadm-certs".to_owned(),
                },
                "Foreign",
                "/pki/sa.key is not the key of the cluster that this node joins: kubeadm-certs has another one, and with two of them half of all service-account tokens fail; move sa.key and sa.pub away if the other one is right, and run again",
            ),
            (
                F::AbsentAfterUse {
                    private: private.clone(),
                    lack: Lack::Absent,
                    sign: ServiceSign::File(NodePath::from("/var/lib/etcd/member")),
                },
                "AbsentAfterUse",
                "/pki/sa.key is absent, and /var/lib/etcd/member shows that this node belongs to a cluster, whose service-account tokens would fail with a new pair; copy both sa.key and sa.pub from another control-plane node (or from a backup of this one) to /pki, and run again; if its cluster is not needed any more, move /var/lib/etcd/member away instead",
            ),
            (
                F::AbsentAfterUse {
                    private: private.clone(),
                    lack: Lack::Empty,
                    sign: ServiceSign::Certificates,
                },
                "AbsentAfterUse",
                "/pki/sa.key is empty, and this node has certificates already; copy both sa.key and sa.pub from another control-plane node (or from a backup of this one) to /pki, and run again",
            ),
            (
                F::Misplaced(MisplacedKey {
                    path: "/pki/apiserver.key".to_owned(),
                    private: private.to_string(),
                    is_alone: true,
                }),
                "Misplaced",
                "/pki/apiserver.key contains the private key that belongs to sa.pub: move it (`mv /pki/apiserver.key /pki/sa.key`), then run again",
            ),
            (
                F::PublicAbsent {
                    public: public.clone(),
                },
                "PublicAbsent",
                "/pki/sa.pub is absent and kube-apiserver does not start without it; run nodepki bootstrap, which derives it from sa.key",
            ),
            (
                F::NotInstalled {
                    directory: directory.clone(),
                },
                "NotInstalled",
                "sa.key and sa.pub of the cluster are not in /pki yet; run nodepki bootstrap, which installs them",
            ),
            (
                F::PairLost { directory },
                "PairLost",
                "sa.key and sa.pub are absent from /pki, and a new pair would differ from the cluster's; copy both sa.key and sa.pub from another control-plane node (or from a backup of this one)",
            ),
            (
                F::Unusable {
                    path: public.clone(),
                    why: "it is empty".to_owned(),
                    fix: UnusableFix::Derive,
                },
                "Unusable",
                "/pki/sa.pub is not usable: it is empty; remove it to have it derived from sa.key and run again",
            ),
            (
                F::NotAPair {
                    private,
                    public,
                    has_served: false,
                },
                "NotAPair",
                "/pki/sa.key and /pki/sa.pub are not a pair: tokens signed with the one are refused by the other; find out which of them the cluster uses (compare with another control-plane node), then remove the wrong one and run again",
            ),
        ] {
            assert_eq!((fault.code(), fault.to_string().as_str()), (code, text));
            assert_eq!(SurveyRefusal::ServiceAccount(fault).to_string(), text);
        }
    }
}
