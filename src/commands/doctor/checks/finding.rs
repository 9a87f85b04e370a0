//! The findings of a diagnosis, made of the notes of checks.

use std::path::PathBuf;

use serde::Serialize;
use time::OffsetDateTime;

use crate::agent::load;
use crate::config::Argument;

words! {
    /// Severity of a finding, in descending order.
    #[derive(PartialOrd, Ord)]
    pub enum FindingSeverity: Serialize {
        /// Something does not work, or a key is where it must not be.
        Error = "error",
        /// Something will stop working, or does not work under all circumstances.
        Warning = "warning",
        /// Information only.
        Info = "info",
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable id of the check.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: FindingSeverity,
    /// The observations, one sentence for each object.
    pub evidence: Vec<String>,
    /// The codes of the faults among the observations that `status` reports as well, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<&'static str>,
    /// The required action.
    pub fix: String,
}

/// All findings of one node.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Time of the diagnosis.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The root on this machine.
    pub root: String,
    /// Findings by descending severity, then in the order of the checks.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Returns whether there is a finding of severity error.
    pub fn has_errors(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == FindingSeverity::Error)
    }
}

/// Parameters of a diagnosis.
#[derive(Clone, Debug, Default)]
pub struct DiagnosisInputs {
    /// Sources of the configuration.
    pub sources: load::LoadInputs,
    /// Certificates directory; `None` for that of the configuration, or kubeadm's default.
    pub certificates_dir: Option<PathBuf>,
    /// Kubeconfig for checks that need the cluster.
    pub kubeconfig: Option<Argument>,
    /// Whether the signers are asked.
    pub online: bool,
}

/// One result of a check. Notes with the same severity and fix become one finding.
pub(super) struct CheckNote {
    pub(super) severity: FindingSeverity,
    pub(super) evidence: String,
    /// The codes of the faults in the evidence.
    pub(super) codes: Vec<&'static str>,
    pub(super) fix: String,
}

impl CheckNote {
    pub(super) fn error(evidence: impl Into<String>, fix: impl Into<String>) -> CheckNote {
        CheckNote::new(FindingSeverity::Error, evidence, fix)
    }

    pub(super) fn warning(evidence: impl Into<String>, fix: impl Into<String>) -> CheckNote {
        CheckNote::new(FindingSeverity::Warning, evidence, fix)
    }

    pub(super) fn info(evidence: impl Into<String>, fix: impl Into<String>) -> CheckNote {
        CheckNote::new(FindingSeverity::Info, evidence, fix)
    }

    pub(super) fn new(
        severity: FindingSeverity,
        evidence: impl Into<String>,
        fix: impl Into<String>,
    ) -> CheckNote {
        CheckNote {
            severity,
            evidence: evidence.into(),
            codes: Vec::new(),
            fix: fix.into(),
        }
    }

    /// Adds the code of a fault in the evidence.
    pub(super) fn with_code(mut self, code: &'static str) -> CheckNote {
        self.codes.push(code);
        self
    }
}
