//! `csr export` and `csr import`.
use super::*;
/// Offline signing.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// x
    Export,
}
impl Command {
    pub(super) fn run(self, _g: &Global) -> Result<ExitCode, Failure> {
        Ok(ExitCode::Done)
    }
}
