//! TEMP
use time::OffsetDateTime;
use crate::agent::{self, Clock, Failure, Progress, Report};
use crate::load::Loaded;
use crate::store::Root;
/// .
pub enum Scope { /// .
 Due }
/// What a step did.
pub struct Step {
    /// One row a certificate.
    pub report: Report,
    /// When something will be due, or may be tried again; `None` when nothing ever will.
    pub next: Option<OffsetDateTime>,
}
/// s
pub async fn step(
    root: &Root,
    loaded: &Loaded,
    _scope: &Scope,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Step, Failure> {
    let report = agent::bootstrap(root, &loaded.setup, clock, progress).await?;
    Ok(Step { report, next: None })
}
/// l
pub fn log(_step: &Step) {}
