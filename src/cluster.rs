//! A running cluster: the API client, and discovery by bootstrap token or kubeconfig.

pub mod api;
pub mod discovery;
