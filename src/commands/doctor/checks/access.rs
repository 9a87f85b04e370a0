//! Directories and files that other users can change.

use super::Note;
use super::picture::Picture;
use crate::store::{Exposure, is_personal};

/// Directories that nodepki writes to, and everything above them.
pub(super) fn directories(picture: &Picture) -> Vec<Note> {
    let exposed = picture.exposed.iter();
    exposed
        .map(|exposed| {
            let fix =
                "run the commands in parentheses, then look for files that other users put there";
            match exposed.exposure {
                Exposure::Anyone => Note::error(&exposed.message, fix),
                Exposure::Group => Note::warning(&exposed.message, fix),
            }
        })
        .collect()
}

/// Files that belong to the account of a person. Accounts of services are left to the modes.
pub(super) fn owners(picture: &Picture) -> Vec<Note> {
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
            let can = match file.secret {
                true => "has the private key in it, and every new one",
                false => "can change it",
            };
            Some(Note::warning(
                format!(
                    "{} belongs to user {} (mode {:04o}), who {can}",
                    picture.here(file.path.as_ref()),
                    access.uid,
                    access.mode
                ),
                "run `chown root:root` on the file, and issue a new key (nodepki renew --name NAME) if the user is not an administrator",
            ))
        })
        .collect()
}
