//! nodepki gives a Kubernetes control-plane node its PKI without a private key of its CAs on the node.
//!
//! This page lists the rooms of the source. `docs/architecture.md` has the data flow of a bootstrap and of a renewal, and
//! the invariants.
//!
//! Imports go downward only: a room uses the rooms below it in this table. Pure rooms open no file and no socket and read
//! no clock and no environment; the time is an argument. `tests/it/layers.rs` reads the table and verifies both.
//!
//! | room | pure | contains | start reading at |
//! | --- | --- | --- | --- |
//! | [`commands`] | no | one file a command: arguments, the call, the output | `commands.rs` |
//! | [`daemon`] | no | the rotation loop, its alarms and watches, metrics | `daemon/wake.rs`, which decides what is next and is pure |
//! | [`agent`] | no | bootstrap, renewal and CA changes: load the inputs, request, verify, install, restart components, join | `agent.rs`, `agent/request.rs` |
//! | [`node`] | no | the files of the node, read and judged | `node/read.rs`, `node/role.rs` |
//! | [`config`] | no | nodepki's settings: keys, defaults, sources, redaction | `config.rs` |
//! | [`signer`] | no | the contract of a signer, and the eleven kinds | `signer.rs` |
//! | [`cluster`] | no | what is requested from a running cluster: API client, discovery | `cluster/discovery.rs` |
//! | [`http`] | no | the only TLS client | `http.rs` |
//! | [`store`] | no | the only writer below the root: transactions, journal, locks, pending requests | `store.rs`, which explains the commit protocol |
//! | [`process`] | no | this process: confinement, signals, core dumps, faults of the machine, failpoints | `process/confine.rs` |
//! | [`spec`] | yes | the desired state: certificate table, key policy, schedule, and its comparison with the observed state | `spec.rs`, `spec/assess.rs` |
//! | [`kubelets`] | yes | the rules for kubelets' certificate requests: approval, signature, the signer's answer | `kubelets.rs`, `kubelets/judge.rs` |
//! | [`kube`] | yes | formats of Kubernetes: names, kubeadm documents, kubeconfig, manifests, cluster-info, kubeadm-certs | `kube/kubeadm.rs` |
//! | [`yaml`] | yes | YAML with positions, Go's durations, and the schema of settings | `yaml.rs` |
//! | [`table`] | yes | text tables for people: aligned columns that fit a terminal | `table.rs` |
//! | [`x509`] | yes | keys, CSRs, certificates, chains, revocation lists, verification | `x509/verify.rs` |
//! | [`text`] | yes | hexadecimal, times, and characters from outside that a terminal must not see | `text.rs` |
//!
//! # Invariants
//!
//! - *A leaf private key never leaves the node.* A [`signer::Request`] contains a CSR and no key; signers have no other
//!   input.
//! - *Nothing is installed unverified.* `agent::install` accepts only chains that `agent::request` has verified with
//!   [`x509::satisfies`]; imported certificates pass the same verification.
//! - *Files of one commit appear together or not at all.* [`store`] is the only writer below the root, and a
//!   [`store::Store`] is obtained through recovery only.
//! - *A pending request survives the process.* Key, CSR and ticket are on disk before the signer receives the request,
//!   and each step is recorded before it is taken.
//! - *The desired state comes from configuration.* [`spec`] never reads the disk.
//! - *Paths in messages exist on this machine.* Below another root, [`kube::names::NodePath`],
//!   [`store::NodeRoot::on_this_machine`] and [`http::Files::shown`] return the path on this machine. Data contains paths of
//!   the node.
//! - *A failure never makes a node worse.* Certificates of one authority are installed together, and a certificate that
//!   is still accepted is not touched by a failure.

/// Implements `code`, the stable name of each variant in documents and in the journal. Variants after the semicolon have the
/// code of the value that they contain.
macro_rules! codes {
    ($type:ty { $($variant:ident),* $(; $($outer:ident),+)? }) => {
        impl $type {
            /// Returns the stable code.
            pub fn code(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($variant),)*
                    $($(Self::$outer(inner) => inner.code(),)+)?
                }
            }
        }
    };
}

/// Declares an enum whose variants are words, with `ALL` in the order of declaration, `as_str` and `Display`. Serde's traits
/// after its name use the same words.
///
/// ```ignore
/// words! {
///     /// What happened to a request.
///     #[derive(Default)]
///     pub enum Verdict: Serialize {
///         /// It is not decided yet.
///         #[default]
///         Open = "open",
///         /// The signer denied it.
///         Denied = "denied by signer",
///     }
/// }
/// assert_eq!(Verdict::ALL.map(Verdict::as_str), ["open", "denied by signer"]);
/// ```
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $($serde:ident),+ {
        $($(#[$of:meta])* $variant:ident = $word:literal,)+
    }) => {
        words! {
            $(#[$meta])*
            #[derive($(serde::$serde),+)]
            $vis enum $name {
                $($(#[$of])* #[serde(rename = $word)] $variant = $word,)+
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$of:meta])* $variant:ident = $word:expr,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$of])* $variant,)+
        }

        #[allow(dead_code, reason = "not every enum is listed")]
        impl $name {
            /// All values.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word of the value.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        as_text!($name: Display);
    };
}

/// Implements these of `Display`, `FromStr`, `Serialize` and `Deserialize` by the type's `as_str` and, for `Deserialize`, its
/// `FromStr`. `FromStr` knows the values in `ALL`, and names the type with an article: `as_text!(Fruit: FromStr "a fruit")`.
macro_rules! as_text {
    ($type:ident: $($trait:ident $($what:literal)?),+) => {
        $(as_text!(@ $trait $type $($what)?);)+
    };
    (@ Display $type:ident) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
    (@ FromStr $type:ident $what:literal) => {
        impl std::str::FromStr for $type {
            type Err = $crate::kube::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let mut all = Self::ALL.into_iter();
                all.find(|known| known.as_str() == name)
                    .ok_or_else(|| Self::Err::new($what, name, &Self::ALL.map(Self::as_str)))
            }
        }
    };
    (@ Serialize $type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
    (@ Deserialize $type:ident) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

pub mod agent;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod daemon;
pub mod http;
pub mod kube;
pub mod kubelets;
pub mod node;
pub mod process;
pub mod signer;
pub mod spec;
pub mod store;
pub mod table;
pub mod text;
pub mod x509;
pub mod yaml;
