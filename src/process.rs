//! The running process: what it may do (landlock, core dumps, signals), how faults of the machine end it, and where
//! crash tests may stop it.

pub mod confine;
pub mod failpoint;
pub mod harden;
pub mod interrupt;
pub mod machine;
