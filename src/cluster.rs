//! A running cluster: the API client, watches, Leases, and discovery by bootstrap token or kubeconfig.

pub mod api;
pub mod discovery;
pub mod lease;
pub mod watch;
