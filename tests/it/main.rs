//! The integration tests.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failing unwrap is a failing test, in the functions around the tests too"
)]

mod store;
#[cfg(feature = "failpoints")]
mod store_crash;
mod store_system;
