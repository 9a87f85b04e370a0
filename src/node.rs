//! The files of the node, read and judged.

pub mod status;
