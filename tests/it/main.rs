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
mod openssl;
