//! The integration tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a failing unwrap is a failing test, in the functions around the tests too"
)]

mod golden;
mod kubeadm;
mod openssl;
mod store;
#[cfg(feature = "failpoints")]
mod store_crash;
mod store_system;
