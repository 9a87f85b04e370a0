//! nodepki gives a Kubernetes control-plane node its PKI without a CA private key ever being on the node.
//!
//! This page is the architecture. `README.md` says what the tool is for and how to run it.
//!
//! # The way of a certificate
//!
//! ```text
//! kubeadm file ─ kubeadm ─▶ Cluster, Node ┐
//! settings ──── settings ─▶ Policy, trust ┴─ plan ─▶ CertSpec (what is wanted)
//!                                                       │
//! disk ── store::Root ─▶ Found (what is there) ── assess ─▶ Keep | Rewrite | Issue(why) | Refuse(why)
//!                                                       │ Issue
//!                    agent: key ─▶ CSR ─▶ pending slot ─▶ signer ─▶ answer
//!                                                       │
//!                         x509::satisfies(answer, wanted) ─▶ differences, or a verified chain
//!                                                       │
//!                                         store::commit ─▶ /etc/kubernetes
//! ```
//!
//! The upper half is pure: [`yaml`], [`kubeadm`], [`clusterinfo`], [`sharedcerts`], [`schema`], [`schedule`], [`policy`],
//! [`plan`], [`assess`], [`kubeconfig`], [`manifest`], [`jwks`], [`x509`] and [`names`] open no file and no socket and
//! look at no clock or environment; the time is an argument. The lower half is the edge: [`load`] brings the inputs
//! together, [`agent`] composes, [`signer`] asks, [`store`] writes.
//! Imports go downward only, in the order of the table; a test reads the `use` lines.
//!
//! | layer | modules |
//! | --- | --- |
//! | command line | [`cli`] |
//! | commands | [`demo`], [`capi`], [`migrate`], [`doctor`], [`daemon`], [`authority`] |
//! | the step of rotation | [`rotation`] |
//! | inputs | [`load`] |
//! | composition | [`join`], [`certs`], [`agent`], [`reload`], [`status`], [`offline`], [`metrics`] |
//! | edge | [`settings`], [`signer`], [`discovery`], [`kubeapi`], [`http`], [`store`], [`confine`], [`harden`], [`interrupt`], [`failpoint`], [`machine`] |
//! | pure | [`assess`], [`plan`], [`policy`], [`schedule`], [`components`], [`clusterinfo`], [`kubeadm`], [`sharedcerts`], [`kubeconfig`], [`manifest`], [`jwks`], [`x509`], [`yaml`], [`names`] |
//!
//! # What must always be true, and who sees to it
//!
//! - *A leaf private key never leaves the node.* A [`signer::Request`] has a CSR and no key; the signers have no
//!   other input.
//! - *Nothing is installed before it was checked against the wish.* `agent::install` takes only chains that
//!   `agent::request` has put through [`x509::satisfies`]; offline answers take the same road.
//! - *Files of one commit appear together or not at all.* [`store`] is the only writer below the root, and
//!   recovery is the only way to get a [`store::Store`].
//! - *A waiting request outlives the process.* Key, CSR and ticket are a pending slot on disk before the signer
//!   hears of them, and each step is recorded before it is taken.
//! - *What is wanted comes from configuration.* [`plan`] never sees the disk.
//! - *A path in a message can be opened from where the command was given.* Below another root, [`names::NodePath`],
//!   [`store::Root::on_this_machine`] and [`http::Files::shown`] give the path on this machine. Data keeps node paths.
//! - *Never worse than found.* Whole families or nothing: what one authority signs is installed together, and a
//!   certificate that still serves is not touched by a failure.
//!
//! # Where the shape differs from what one might expect
//!
//! Signers are asked concurrently on one thread; keys are made on plain threads and sent over a channel, so a
//! finished key is signed while the next is being searched. The journal of the store is a redo journal with the
//! contents in it: once it is on disk the commit happens, whatever is lost besides. Certificates are assessed
//! against *all* subjects that kubeadm versions have used, since the running cluster may depend on an older one.

pub mod agent;
pub mod assess;
pub mod authority;
pub mod capi;
pub mod certs;
pub mod cli;
pub mod clusterinfo;
pub mod components;
pub mod confine;
pub mod daemon;
pub mod demo;
pub mod discovery;
pub mod doctor;
pub mod failpoint;
pub mod harden;
pub mod http;
pub mod interrupt;
pub mod join;
pub mod jwks;
pub mod kubeadm;
pub mod kubeapi;
pub mod kubeconfig;
pub mod load;
pub mod machine;
pub mod manifest;
pub mod metrics;
pub mod migrate;
pub mod names;
pub mod offline;
pub mod plan;
pub mod policy;
pub mod reload;
pub mod rotation;
pub mod schedule;
pub mod schema;
pub mod settings;
pub mod sharedcerts;
pub mod signer;
pub mod status;
pub mod store;
pub mod x509;
pub mod yaml;
