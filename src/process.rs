//! The running process: its confinement (Landlock, core dumps, signals), faults of the machine, resource limits,
//! jitter, and the failpoints of crash tests.

pub mod confine;
pub mod failpoint;
pub mod harden;
pub mod interrupt;
pub(crate) mod jitter;
mod limits;
pub mod machine;
