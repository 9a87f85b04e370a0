//! Checks of directories and files that other users can change.

use super::finding::CheckNote;
use super::picture::Picture;
use crate::signer::quoted;
use crate::store::{Exposure, is_personal};

/// Checks the directories that nodepki writes to, and their parents.
pub(super) fn directories(picture: &Picture) -> Vec<CheckNote> {
    let exposed = picture.exposed.iter();
    exposed
        .map(|exposed| {
            let fix =
                "run the commands in parentheses, then check for files that other users put there";
            match exposed.exposure {
                Exposure::Anyone => CheckNote::error(&exposed.message, fix),
                Exposure::Group => CheckNote::warning(&exposed.message, fix),
            }
        })
        .collect()
}

/// Checks for files that belong to a personal account. Service accounts are covered by the check of modes.
pub(super) fn owners(picture: &Picture) -> Vec<CheckNote> {
    let status = &picture.status;
    let certificates = status.certificates.iter().flat_map(|row| &row.files);
    let authorities = status.authorities.iter().flat_map(|row| &row.files);
    let pair = status.service_account.iter().flat_map(|row| &row.files);
    let files = authorities.chain(certificates).chain(pair);
    files
        .filter_map(|file| {
            let access = file.access?;
            if !is_personal(access.uid) {
                return None;
            }
            let can = if file.secret {
                "can read the private key in it, and every new one"
            } else {
                "can change it"
            };
            let path = picture.here(file.path.as_ref());
            Some(CheckNote::warning(
                format!(
                    "{path} belongs to user {} and has mode {:04o}: the user {can} (chown root:root {})",
                    access.uid,
                    access.mode,
                    quoted(&path)
                ),
                "run the command in parentheses, and issue a new key (nodepki renew --name NAME) if the user is not an administrator",
            ))
        })
        .collect()
}
