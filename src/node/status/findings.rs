//! The faults and remarks of a row, and the rules that all kinds of rows have in common: validity, and modes of files.

use time::{Duration, OffsetDateTime};

use super::files::RowFile;
use super::text::minute;
use super::{FileAccess, RowState, Trouble, human_duration};
use crate::kube::kubeconfig::KubeconfigError;
use crate::store;
use crate::x509::Certificate;

/// Remark on a key in another form than kubeadm's.
const PKCS8_REMARK: &str = "the key is PKCS#8, which some components of Kubernetes cannot read; kubeadm writes PKCS#1 or SEC1";

/// A fault of a file or a certificate.
#[derive(Clone, Debug)]
pub(super) struct FileFault {
    pub(super) trouble: Trouble,
    /// Empty if another fault of the row says the same.
    pub(super) words: String,
}

impl FileFault {
    pub(super) fn new(trouble: Trouble, words: impl Into<String>) -> FileFault {
        FileFault {
            trouble,
            words: words.into(),
        }
    }

    pub(super) fn of_store(error: &store::StoreError) -> FileFault {
        let trouble = match error.class() {
            store::ErrorClass::Denied => Trouble::Denied,
            store::ErrorClass::Unsafe => Trouble::NotAFile,
            _ => Trouble::Damaged,
        };
        FileFault::new(trouble, error.to_string())
    }

    /// Returns the fault of the kubeconfig at `here`.
    pub(super) fn of_kubeconfig(here: &str, error: &KubeconfigError) -> FileFault {
        let trouble = match error {
            KubeconfigError::NoCurrentContext | KubeconfigError::Dangling(_) => Trouble::NoContext,
            _ => Trouble::Damaged,
        };
        FileFault::new(trouble, format!("{here} is unreadable: {error}"))
    }
}

/// The faults and remarks found so far.
#[derive(Default)]
pub(super) struct RowFindings {
    faults: Vec<FileFault>,
    remarks: Vec<String>,
}

/// The part that all kinds of rows have in common.
pub(super) struct RowSummary {
    pub(super) state: RowState,
    /// Text of each fault, gravest first.
    pub(super) problems: Vec<String>,
    /// The kind of each problem, in the same order.
    pub(super) troubles: Vec<Trouble>,
    pub(super) remarks: Vec<String>,
}

impl RowFindings {
    pub(super) fn fault(&mut self, trouble: Trouble, words: impl Into<String>) {
        self.faults.push(FileFault::new(trouble, words));
    }

    pub(super) fn faults(&mut self, faults: impl IntoIterator<Item = FileFault>) {
        self.faults.extend(faults);
    }

    pub(super) fn remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }

    /// Remarks on the form of a private key.
    pub(super) fn key_form(&mut self, is_ours: bool) {
        if !is_ours {
            self.remark(PKCS8_REMARK);
        }
    }

    /// Adds the faults of private keys that other users can read, and of files that they can change.
    pub(super) fn exposure(&mut self, files: &[RowFile]) {
        self.faults(files.iter().filter_map(exposure));
    }

    /// Adds the fault of a certificate that is not valid now, or soon expires. `issued` is the recorded time of issue.
    pub(super) fn validity(
        &mut self,
        certificate: &Certificate,
        issued: Option<OffsetDateTime>,
        now: OffsetDateTime,
    ) {
        self.faults(validity(certificate, issued, now));
    }

    pub(super) fn summary(mut self) -> RowSummary {
        let troubles = self.faults.iter().map(|fault| fault.trouble.state());
        let state = troubles.fold(RowState::Ok, RowState::max);
        self.faults
            .sort_by_key(|fault| std::cmp::Reverse(fault.trouble.state()));
        let (problems, troubles) = self
            .faults
            .into_iter()
            .filter(|fault| !fault.words.is_empty())
            .map(|fault| (fault.words, fault.trouble))
            .unzip();
        RowSummary {
            state,
            problems,
            troubles,
            remarks: self.remarks,
        }
    }
}

fn exposure(file: &RowFile) -> Option<FileFault> {
    let FileAccess { mode, .. } = file.status.access.filter(|access| access.regular)?;
    let here = &file.here;
    let words = if file.status.secret && mode & 0o007 != 0 {
        format!(
            "{here} holds a private key and has mode {mode:04o}: every user of this machine can read it; run chmod 600 {here}"
        )
    } else if mode & 0o002 != 0 {
        format!(
            "{here} has mode {mode:04o}: every user of this machine can change it; run chmod o-w {here}"
        )
    } else {
        return None;
    };
    Some(FileFault::new(Trouble::Exposed, words))
}

fn validity(
    certificate: &Certificate,
    issued: Option<OffsetDateTime>,
    now: OffsetDateTime,
) -> Option<FileFault> {
    let (not_before, not_after) = (certificate.not_before(), certificate.not_after());
    let left = not_after - now;
    if left.is_negative() {
        let ago = human_duration(-left.whole_seconds());
        return Some(FileFault::new(
            Trouble::Expired,
            format!("it expired at {}, {ago} ago", minute(not_after)),
        ));
    }
    if now < not_before {
        return Some(FileFault::new(
            Trouble::NotYetValid,
            format!(
                "it is not valid before {}; if that is not in the future, the clock of this machine is wrong",
                minute(not_before)
            ),
        ));
    }
    let lifetime = not_after - issued.unwrap_or(not_before);
    (left < Duration::days(30) && left < lifetime / 3).then(|| {
        FileFault::new(
            Trouble::Expiring,
            format!(
                "it expires at {}, in {}",
                minute(not_after),
                human_duration(left.whole_seconds())
            ),
        )
    })
}
