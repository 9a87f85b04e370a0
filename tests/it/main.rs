//! The integration tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing unwrap is a failing test"
)]

mod golden;
mod kubeadm;
mod offline;
mod openssl;
mod signer_bad;
mod signer_contract;
mod signer_directory;
mod signer_exec;
mod signing;
