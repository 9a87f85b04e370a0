//! A running cluster: the API client, watches, Leases, Events, and discovery by bootstrap token or kubeconfig.

pub mod api;
pub mod discovery;
pub(crate) mod event;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod json;
pub mod lease;
pub mod node;
pub mod watch;
