//! The faults and remarks of a row, and the rules that all kinds of rows have in common: validity, and modes of files.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use time::{Duration, OffsetDateTime};

use super::fault::{FileFault, RowFault, RowRemark};
use super::files::RowFile;
use super::{FileAccess, RowState};
use crate::x509::Certificate;

/// The faults and remarks of a row.
#[derive(Clone, Debug, Default)]
pub struct RowFindings {
    /// Reasons for the state, gravest first.
    pub faults: Vec<RowFault>,
    /// Findings that do not change the state.
    pub remarks: Vec<RowRemark>,
}

impl RowFindings {
    /// Returns the text of each fault.
    pub fn problems(&self) -> Vec<String> {
        self.faults.iter().map(ToString::to_string).collect()
    }

    /// Returns the state that follows from the faults.
    pub(super) fn state(&self) -> RowState {
        let states = self.faults.iter().map(RowFault::state);
        states.fold(RowState::Ok, RowState::max)
    }

    /// Adds a fault after those that are as grave.
    pub(super) fn fault(&mut self, fault: RowFault) {
        let state = fault.state();
        let place = self.faults.partition_point(|known| known.state() >= state);
        self.faults.insert(place, fault);
    }

    /// Adds the fault of a file.
    pub(super) fn file(&mut self, fault: &FileFault) {
        self.fault(RowFault::File(fault.clone()));
    }

    pub(super) fn remark(&mut self, remark: RowRemark) {
        self.remarks.push(remark);
    }

    /// Remarks on the form of a private key.
    pub(super) fn key_form(&mut self, is_ours: bool) {
        if !is_ours {
            self.remark(RowRemark::KeyForm);
        }
    }

    /// Adds the faults of private keys that other users can read, and of files that they can change.
    pub(super) fn exposure(&mut self, files: &[RowFile]) {
        for RowFile { status, here } in files {
            let path = here.clone();
            match status.access.filter(|access| access.regular) {
                Some(FileAccess { mode, .. }) if status.secret && mode & 0o007 != 0 => {
                    self.fault(RowFault::KeyExposed { path, mode });
                }
                Some(FileAccess { mode, .. }) if mode & 0o002 != 0 => {
                    self.fault(RowFault::FileExposed { path, mode });
                }
                _ => {}
            }
        }
    }

    /// Adds the fault of a certificate that is not valid now, or soon expires. `issued` is the recorded time of issue.
    pub(super) fn validity(
        &mut self,
        certificate: &Certificate,
        issued: Option<OffsetDateTime>,
        now: OffsetDateTime,
    ) {
        let (not_before, at) = (certificate.not_before(), certificate.not_after());
        let (left, lifetime) = (at - now, at - issued.unwrap_or(not_before));
        if left.is_negative() {
            self.fault(RowFault::Expired { at, now });
        } else if now < not_before {
            self.fault(RowFault::NotYetValid(not_before));
        } else if left < Duration::days(30) && left < lifetime / 3 {
            self.fault(RowFault::Expiring { at, now });
        }
    }
}

impl Serialize for RowFindings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let remarks: Vec<String> = self.remarks.iter().map(ToString::to_string).collect();
        let fault_codes: Vec<&str> = self.faults.iter().map(RowFault::code).collect();
        let remark_codes: Vec<&str> = self.remarks.iter().map(RowRemark::code).collect();
        let mut row = serializer.serialize_struct("RowFindings", 4)?;
        row.serialize_field("problems", &self.problems())?;
        row.serialize_field("problemCodes", &fault_codes)?;
        row.serialize_field("remarks", &remarks)?;
        row.serialize_field("remarkCodes", &remark_codes)?;
        row.end()
    }
}
