//! The integration tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a failing unwrap is a failing test, in the functions around the tests too"
)]

mod access;
mod algorithms;
mod argument_paths;
mod arm64;
mod audit;
mod authority;
#[cfg(feature = "failpoints")]
mod authority_rollback;
mod authority_rotation;
mod bootstrap_golden;
mod bootstrap_kubeadm;
mod capi;
mod capi_migrate;
mod certificate_template;
mod certs;
mod cloud_init;
mod cluster_policy;
#[cfg(feature = "failpoints")]
mod concurrency;
mod confine;
mod contract;
mod crash;
mod crl;
mod daemon;
#[path = "../fixtures/der.rs"]
mod der_encoding;
mod discovery;
mod discovery_cluster;
mod doctor;
mod doctor_fixes;
mod documents;
mod etcd_members;
#[cfg(feature = "failpoints")]
mod exit_codes;
mod failures_configuration;
#[cfg(feature = "failpoints")]
mod failures_crash;
mod failures_exits;
mod failures_found;
mod failures_host;
mod failures_signer;
mod fleet;
mod gateway;
mod golden;
mod http;
mod http_dns;
mod identity;
mod init;
mod join_control_plane;
mod joining;
mod kubeadm;
mod kubeconfig_rules;
mod kubelet;
mod kubelet_rules;
mod kubelets;
mod layers;
mod limits;
mod log;
mod lying_signer;
mod machine;
mod manual;
mod message_paths;
mod messages;
mod metrics;
mod metrics_events;
mod migrate;
mod mistakes;
#[cfg(feature = "failpoints")]
mod named_pair;
mod node;
mod node_events;
mod node_report;
mod offline;
mod one_node;
mod openssl;
mod oracle;
mod output;
mod package_budget;
mod package_images;
mod package_install;
mod package_program;
mod package_provenance;
mod packages;
mod packaging;
mod pages;
mod path_validation;
mod picture;
mod plan_status;
mod policy;
mod preflight;
mod pty;
mod readme;
mod registered;
mod registered_webhook;
#[cfg(feature = "failpoints")]
mod reload;
mod reload_turns;
mod renew;
mod replaced_authority;
mod rig;
mod rotation_cluster;
mod runbook;
mod runner;
mod running;
mod sample;
mod secrets;
mod servers;
mod sessions;
mod signer_bad;
mod signer_cert_manager;
mod signer_cfssl;
mod signer_directory;
mod signer_est;
mod signer_exec;
mod signer_faults;
mod signer_globalsign;
mod signer_kubernetes;
mod signer_local;
mod signer_puppet;
mod signer_setup;
mod signer_step;
mod signer_vault;
mod signing;
mod static_pod_mounts;
mod store;
#[cfg(feature = "failpoints")]
mod store_crash;
mod store_system;
mod systemd_units;
mod terminal;
#[path = "../fixtures/time.rs"]
mod time;
mod tutorial;
mod untrusted_root;
mod waiting;
mod workers;
