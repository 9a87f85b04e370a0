//! The table of the kinds of signer, and what each kind declares.

use std::fmt;

use serde_json::{Value, json};

use super::{
    Caps, Carry, NodeIdentity, RequestedCertificate, Signer, SignerError, Site, cert_manager,
    cfssl, directory, embedded, est, exec, kubernetes, local, puppet, step_ca, vault,
};
use crate::http::Files;
use crate::kubelets::KubeletPolicy;
use crate::yaml::schema::{self, MapKey};
use crate::yaml::settings::SettingsBlock;
use crate::yaml::{Field, Map};

/// Configuration of one kind of signer: everything that its file provides besides a [`Signer`].
pub trait Configured: SettingsBlock + Clone + PartialEq + fmt::Debug {
    /// The kind's row in the table of signers.
    const ABOUT: About;

    /// Reads the map under the kind's name, and checks settings that depend on each other. Returns `None` if a fault
    /// makes it unusable; the fault is then reported.
    fn read(map: &Map<'_>) -> Option<Self> {
        Self::read_keys(map)
    }

    /// Returns one script for an administrator of the servers, which lets these signers issue this node's certificates;
    /// `None` for a kind whose servers need no preparation.
    fn setup(_parts: &[Part<'_, Self>], _identity: &NodeIdentity) -> Option<String> {
        None
    }

    /// Returns why these settings cannot sign the requests of kubelets of other nodes; `None` if they can, as far as the
    /// settings show. Subject, names and key of such a request are those of the other node, and there is no bound on the
    /// number of nodes.
    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        (Self::ABOUT.caps.other_nodes == Carry::No).then(|| {
            let reason = format!("{} cannot certify other nodes", Self::ABOUT.name);
            SignerObstacle::new(reason, OTHER_SIGNER)
        })
    }

    /// Returns why these settings cannot sign for pods; `None` if they can, as far as the settings show.
    fn pod_obstacle(&self) -> Option<SignerObstacle> {
        (Self::ABOUT.caps.empty_csr == Carry::No).then(|| {
            let name = Self::ABOUT.name;
            SignerObstacle::new(
                format!("{name} takes the subject from the CSR, and that of a pod has none"),
                "configure another kind of signer for authority ca, or remove kubelets.signPods",
            )
        })
    }

    /// Returns the settings with the values that are read from other files of the node. `name` is that of the signer.
    ///
    /// # Errors
    /// A file that cannot be used.
    fn resolved(&self, _name: &str, _files: &dyn Files) -> Result<Self, SignerError> {
        Ok(self.clone())
    }

    /// Creates the signer, without network I/O.
    ///
    /// # Errors
    /// A setting that is valid but cannot be used on this node.
    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError>;
}

/// What to do if a signer cannot sign for kubelets whatever its settings.
pub(super) const OTHER_SIGNER: &str =
    "configure another kind of signer for authority ca, or remove kubelets.sign";

/// The reason why a signer cannot sign as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SignerObstacle {
    /// The problem.
    pub reason: String,
    /// What to do now.
    pub advice: String,
}

impl SignerObstacle {
    pub(super) fn new(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        SignerObstacle {
            reason: reason.into(),
            advice: advice.into(),
        }
    }
}

/// A configured signer with the certificates that this node requests from it.
pub struct Part<'a, C> {
    /// Name of the signer in the configuration.
    pub name: &'a str,
    /// Its settings.
    pub config: &'a C,
    /// The certificates that it signs.
    pub wanted: Vec<&'a RequestedCertificate>,
    /// The policy for other nodes' kubelets, if nodepki has their certificates signed by this signer.
    pub kubelets: Option<&'a KubeletPolicy>,
}

impl<'a, C> Part<'a, C> {
    /// Groups signers by a property of their settings, such as the server, in the order of the first of each group.
    pub(super) fn grouped<'p, K: PartialEq>(
        parts: &'p [Self],
        key: impl Fn(&'a C) -> K,
    ) -> Vec<(K, Vec<&'p Self>)> {
        let mut groups: Vec<(K, Vec<&Self>)> = Vec::new();
        for part in parts {
            let key = key(part.config);
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, group)) => group.push(part),
                None => groups.push((key, vec![part])),
            }
        }
        groups
    }
}

/// Summary of a kind. The table of signers in the documentation consists of these.
pub struct About {
    /// Name of the kind in the configuration.
    pub name: &'static str,
    /// The signing service, in a few words.
    pub signs_with: &'static str,
    /// How this node authenticates, in a few words.
    pub authentication: &'static str,
    /// Capabilities, as assumed before the first probe.
    pub caps: Caps,
    /// Its settings.
    pub keys: &'static [MapKey],
}

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident($module:ident),)+) => {
        /// The kinds of signer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SignerKind {
            $($(#[$doc])+ $kind,)+
        }

        impl SignerKind {
            /// Every kind.
            pub const ALL: [SignerKind; [$(SignerKind::$kind),+].len()] = [$(SignerKind::$kind),+];

            /// Returns the kind's row in the table of signers.
            pub const fn about(self) -> &'static About {
                match self {
                    $(SignerKind::$kind => const { &<$module::Config as Configured>::ABOUT },)+
                }
            }

            /// Returns the table of the kind's settings as Markdown; empty for a kind without settings.
            pub fn documentation(self) -> String {
                let rows = schema::rows("", self.about().keys);
                match rows.is_empty() {
                    true => String::new(),
                    false => schema::markdown(&rows),
                }
            }

            /// Returns the script for an administrator of the servers behind these signers, ignoring signers of other
            /// kinds; `None` for a kind whose servers need no preparation.
            pub fn setup(self, parts: &[Part<'_, Config>], identity: &NodeIdentity) -> Option<String> {
                match self {
                    $(SignerKind::$kind => {
                        let parts: Vec<_> = parts
                            .iter()
                            .filter_map(|part| match part.config {
                                Config::$kind(config) => Some(Part {
                                    name: part.name,
                                    config,
                                    wanted: part.wanted.clone(),
                                    kubelets: part.kubelets,
                                }),
                                _ => None,
                            })
                            .collect();
                        <$module::Config as Configured>::setup(&parts, identity)
                    })+
                }
            }

            /// Reads the value under the kind's name; faults are reported to the field's walk.
            pub fn read(self, field: &Field<'_>) -> Option<Config> {
                let map = field.map()?;
                let config = match self {
                    $(SignerKind::$kind => $module::Config::read(&map).map(Config::$kind),)+
                };
                map.finish();
                config
            }
        }

        /// A signer as configured, before it is opened.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "a handful of them, made once a run")]
        pub enum Config {
            $($(#[$doc])+ $kind($module::Config),)+
        }

        impl Config {
            /// Returns the kind.
            pub const fn kind(&self) -> SignerKind {
                match self {
                    $(Config::$kind(_) => SignerKind::$kind,)+
                }
            }

            /// Returns why these settings cannot sign the requests of kubelets of other nodes; see
            /// [`Configured::kubelet_obstacle`].
            pub fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
                match self {
                    $(Config::$kind(config) => config.kubelet_obstacle(),)+
                }
            }

            /// Returns why these settings cannot sign for pods; see [`Configured::pod_obstacle`].
            pub fn pod_obstacle(&self) -> Option<SignerObstacle> {
                match self {
                    $(Config::$kind(config) => config.pod_obstacle(),)+
                }
            }

            /// Returns the configuration in the shape of its file, without secrets.
            pub fn redacted(&self) -> Value {
                let keys = match self {
                    $(Config::$kind(config) => config.shown_keys(),)+
                };
                json!({self.kind().as_str(): keys})
            }

            /// Returns the settings with the values that are read from other files of the node; see
            /// [`Configured::resolved`].
            ///
            /// # Errors
            /// A file that cannot be used.
            pub fn resolved(&self, name: &str, files: &dyn Files) -> Result<Config, SignerError> {
                match self {
                    $(Config::$kind(config) => config.resolved(name, files).map(Config::$kind),)+
                }
            }

            /// Creates the signer, without network I/O.
            ///
            /// # Errors
            /// A setting that is valid but cannot be used on this node.
            pub fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
                match self {
                    $(Config::$kind(config) => config.open(site),)+
                }
            }
        }
    };
}

kinds! {
    /// CertificateSigningRequests of a Kubernetes API server.
    Kubernetes(kubernetes),
    /// cert-manager's CertificateRequests.
    CertManager(cert_manager),
    /// HashiCorp Vault and OpenBao.
    Vault(vault),
    /// Enrollment over Secure Transport.
    Est(est),
    /// smallstep's step-ca.
    StepCa(step_ca),
    /// Cloudflare's CFSSL.
    Cfssl(cfssl),
    /// The certificate authority of a Puppet server.
    Puppet(puppet),
    /// A program that speaks the plug-in contract.
    Exec(exec),
    /// Files in a directory, signed by an external process or an administrator.
    Directory(directory),
    /// CA keys in a directory.
    Local(local),
    /// Temporary authorities in memory.
    Embedded(embedded),
}

impl SignerKind {
    /// Returns whether the signer runs in this process, so it forgets its requests when the process ends.
    pub const fn is_in_process(self) -> bool {
        matches!(self, SignerKind::Embedded | SignerKind::Local)
    }

    /// Returns the kind's name in the configuration.
    pub const fn as_str(self) -> &'static str {
        self.about().name
    }
}

as_text!(SignerKind: Display);
