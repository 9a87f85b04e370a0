//! The way back: puts the CA keys of a backup in place, each beside its certificate.

use std::collections::BTreeSet;
use std::path::Path;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{Backup, Direction, Report, Row};
use crate::agent::{self, Clock, Failure, Setup, SurveyedBundle};
use crate::kube::manifest::MANIFESTS;
use crate::kube::names::{Authority, NodePath};
use crate::spec::assess::Found;
use crate::store::{Commit, Mode, Root};
use crate::x509::{PrivateKey, hex};

/// The way back.
#[derive(Debug)]
pub struct ToInternal {
    /// Only these authorities; all that are in the backups when empty.
    pub authorities: BTreeSet<Authority>,
    /// Do it.
    pub apply: bool,
    /// Where the keys are.
    pub backups: Vec<Backup>,
}

/// Puts the CA keys of backups in place, when each belongs to its certificate on the node.
///
/// # Errors
/// When not even a look was possible. What speaks against it is in the report, and then nothing was written.
pub fn to_internal(
    root: &Root,
    setup: &Setup,
    wish: &ToInternal,
    clock: Clock,
) -> Result<Report, Failure> {
    let (mut report, missing) = compare(root, setup, wish, clock())?;
    let unfinished = root.has_unfinished()?;
    if !wish.apply || !report.unproven.is_empty() || (missing.is_empty() && !unfinished) {
        return Ok(report);
    }
    let (mut store, notes) = agent::open_store(root, setup, "migrate to-internal", clock)?;
    let missing = match compare(root, setup, wish, clock())? {
        (again, _) if !again.unproven.is_empty() => return Ok(again),
        (again, missing) => {
            report = again;
            missing
        }
    };
    report.applied = !missing.is_empty();
    let mut commit = Commit::new();
    for (path, pem) in missing {
        commit.file_if_absent(path, pem.as_bytes().to_vec(), Mode::Private);
    }
    let committed = store.commit(commit)?;
    for row in &mut report.authorities {
        if committed.written.iter().any(|path| **path == *row.key) {
            row.action = "written";
        }
    }
    report.written = committed.written;
    report.notes.extend(notes);
    report
        .notes
        .extend(committed.notes.iter().map(ToString::to_string));
    Ok(report)
}

type Missing = Vec<(NodePath, Zeroizing<String>)>;

/// The keys of the backups beside what is on the node, and those that are missing there.
fn compare(
    root: &Root,
    setup: &Setup,
    wish: &ToInternal,
    now: OffsetDateTime,
) -> Result<(Report, Missing), Failure> {
    let mut report = Report::new(Direction::ToInternal);
    let mut missing = Missing::new();
    let survey = setup.survey(root, now)?;
    for backup in &wish.backups {
        let shown = backup.shown();
        let keys = match backup.read()? {
            Some(Ok(keys)) => keys,
            Some(Err(error)) => {
                report.refuse(format!(
                    "{} gives no keys: {error}; name the file and the passphrase that belong together",
                    shown.display()
                ));
                continue;
            }
            None => {
                report.refuse(format!(
                    "{} does not exist; name the backup",
                    shown.display()
                ));
                continue;
            }
        };
        for key in keys {
            // One key may be that of several authorities.
            let theirs = survey.bundles.iter().filter(|bundle| {
                let trust = bundle.found.present();
                trust.is_some_and(|trust| trust.first().public_key() == key.public_key())
            });
            let theirs: Vec<&SurveyedBundle> = theirs.collect();
            if theirs.is_empty() && wish.authorities.is_empty() {
                report.refuse(format!(
                    "{} holds a key (public key sha256:{}) that belongs to no CA certificate on this node; name the backup of this cluster's keys, bring the certificate first, or name the authorities that you want with --authority",
                    shown.display(),
                    hex(&key.public_key().sha256())
                ));
            }
            for bundle in theirs {
                let authority = bundle.spec.authority;
                let wanted = wish.authorities.is_empty() || wish.authorities.contains(&authority);
                let is_told = |row: &Row| row.authority == authority;
                if wanted && !report.authorities.iter().any(is_told) {
                    place(root, bundle, &key, &mut report, &mut missing)?;
                }
            }
        }
    }
    for authority in &wish.authorities {
        if report
            .authorities
            .iter()
            .all(|row| row.authority != *authority)
        {
            report.refuse(format!(
                "no backup holds the key of {authority}; name the one that does"
            ));
        }
    }
    if !report.unproven.is_empty() {
        for row in report
            .authorities
            .iter_mut()
            .filter(|row| row.action == "to be written")
        {
            row.action = "left out";
        }
    }
    Ok((report, missing))
}

fn place(
    root: &Root,
    bundle: &SurveyedBundle,
    key: &PrivateKey,
    report: &mut Report,
    missing: &mut Missing,
) -> Result<(), Failure> {
    let spec = &bundle.spec;
    let there = root.read(&spec.key_path)?;
    let there = Found::read(
        there.as_ref().map(|content| content.bytes.as_slice()),
        PrivateKey::from_pem,
    );
    let action = match &there {
        Found::Absent | Found::Empty => "to be written",
        Found::Present(there) if there.public_key() == key.public_key() => "in place",
        Found::Present(_) | Found::Unreadable(_) => {
            report.refuse(format!(
                "{} exists and is not the key of {}; it is not overwritten: find out whose it is and move it away",
                spec.key_path, spec.path
            ));
            "kept"
        }
    };
    report.authorities.push(Row {
        authority: spec.authority,
        key: spec.key_path.clone(),
        action,
        proven: vec![format!("the key belongs to {}", spec.path)],
    });
    if action == "to be written" {
        report.changes.extend(changes_with_key(root, bundle));
        missing.push((spec.key_path.clone(), key.to_pem()));
    }
    Ok(())
}

fn changes_with_key(root: &Root, bundle: &SurveyedBundle) -> Vec<String> {
    let spec = &bundle.spec;
    let manifests = root.node_path(MANIFESTS);
    let mut changes = vec![format!(
        "kubeadm takes {} for its own again: kubeadm certs renew replaces what it signs",
        spec.authority
    )];
    if spec.authority == Authority::Ca {
        changes.push(format!(
            "kube-controller-manager signs again once {manifests}/kube-controller-manager.yaml says --cluster-signing-cert-file={} and --cluster-signing-key-file={}",
            // In a manifest, paths are those on the node.
            Path::display(&spec.path),
            Path::display(&spec.key_path)
        ));
        let certificates = bundle
            .found
            .present()
            .map_or(0, |trust| trust.certificates().len());
        if certificates > 1 {
            changes.push(format!(
                "{} holds {certificates} certificates and kube-controller-manager signs only with one that stands alone: give it a file with the first",
                spec.path
            ));
        }
    }
    changes.push(format!(
        "nodepki goes on with the signer of the configuration; name local under authorities.{}.signer if it is to use the key",
        spec.authority
    ));
    changes
}
