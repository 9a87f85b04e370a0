//! Answers of the cluster that the checks use.

use serde_json::Value;

use crate::agent::{ExitCode, Failure};

#[derive(Default)]
pub(super) struct Answers {
    /// The reason why further requests to the cluster are impossible.
    pub(super) unreachable: Vec<String>,
    /// Requests that the cluster refused.
    pub(super) refused: Vec<String>,
    /// JSON Web Key Set of the accepted service-account tokens.
    pub(super) jwks: Option<Value>,
    /// Whether the subject of apiserver-kubelet-client is allowed to access kubelets.
    pub(super) kubelet_client: Option<bool>,
    /// The rights for kubelets' requests that the subject of nodepki.conf lacks, as `verb resource name`.
    pub(super) missing_for_kubelets: Vec<String>,
    /// Whether the subject of admin.conf is allowed to do everything.
    pub(super) admin: Option<bool>,
}

impl Answers {
    /// Returns an answer, or `None` if the cluster refuses this request only.
    ///
    /// # Errors
    /// Any other failure, which also affects further requests.
    pub(super) fn take<T>(&mut self, answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.code == ExitCode::NotPermitted => {
                self.refused.extend(failure.texts());
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}
