//! `migrate to-internal`: restores CA keys from backups, each next to its certificate.

use std::collections::BTreeSet;
use std::path::Path;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::backup::Backup;
use super::report::{AuthorityRow, Direction, KeyAction, MigrationReport};
use super::to_external::keys_records;
use crate::agent::{self, Clock, Failure, RunSetup, SurveyedBundle, audit};
use crate::kube::names::{Authority, NodePath};
use crate::kube::paths::MANIFESTS_DIR;
use crate::spec::assess::Observed;
use crate::store::{Commit, Mode, NodeRoot};
use crate::text::hex;
use crate::x509::PrivateKey;

#[derive(Debug)]
pub(super) struct ToInternal {
    /// Only these authorities; all that are in the backups if empty.
    pub(super) authorities: BTreeSet<Authority>,
    /// Write the keys; otherwise only report.
    pub(super) apply: bool,
    pub(super) backups: Vec<Backup>,
}

/// Restores the CA keys of backups if each belongs to its certificate on the node.
///
/// # Errors
/// The node could not be examined. Reasons against the restore are in the report, and nothing is written then.
pub(super) fn to_internal(
    root: &NodeRoot,
    setup: &RunSetup,
    wish: &ToInternal,
    clock: Clock,
) -> Result<MigrationReport, Failure> {
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
            row.action = KeyAction::Written;
        }
    }
    let rows = report.authorities.iter();
    let written = rows.filter(|row| row.action == KeyAction::Written);
    let records = keys_records(written.map(|row| &row.authority), "keys restored");
    audit::append(root, clock(), &records);
    report.written = committed.written;
    report.notes.extend(notes);
    report
        .notes
        .extend(committed.notes.iter().map(ToString::to_string));
    Ok(report)
}

/// Keys to be written, in PEM.
type MissingKeys = Vec<(NodePath, Zeroizing<String>)>;

/// Compares the keys of the backups with the node; returns the report and the keys that are missing on the node.
fn compare(
    root: &NodeRoot,
    setup: &RunSetup,
    wish: &ToInternal,
    now: OffsetDateTime,
) -> Result<(MigrationReport, MissingKeys), Failure> {
    let mut report = MigrationReport::new(Direction::ToInternal);
    let mut missing = MissingKeys::new();
    let survey = setup.survey(root, now)?;
    for backup in &wish.backups {
        let shown = backup.shown();
        for key in backup.open(&mut report)? {
            // Several authorities may share a key.
            let bundles = survey.bundles.iter().filter(|bundle| {
                let trust = bundle.found.present();
                trust.is_some_and(|trust| trust.first().public_key() == key.public_key())
            });
            let bundles: Vec<&SurveyedBundle> = bundles.collect();
            if bundles.is_empty() && wish.authorities.is_empty() {
                report.refuse(format!(
                    "{} contains a key (public key sha256:{}) that belongs to no CA certificate on this node (name the backup of this cluster, install the certificate first, or select authorities with --authority)",
                    shown.display(),
                    hex(&key.public_key().sha256())
                ));
            }
            for bundle in bundles {
                let authority = bundle.spec.authority;
                let wanted = wish.authorities.is_empty() || wish.authorities.contains(&authority);
                if wanted && !report.contains(authority) {
                    compare_key(root, bundle, &key, &mut report, &mut missing)?;
                }
            }
        }
    }
    report.require_keys(&wish.authorities, |authority| authority.to_string());
    if !report.unproven.is_empty() {
        report.replace_action(KeyAction::ToBeWritten, KeyAction::LeftOut);
    }
    Ok((report, missing))
}

/// Compares a key of a backup with the key file of its authority, and adds the row.
fn compare_key(
    root: &NodeRoot,
    bundle: &SurveyedBundle,
    key: &PrivateKey,
    report: &mut MigrationReport,
    missing: &mut MissingKeys,
) -> Result<(), Failure> {
    let spec = &bundle.spec;
    let content = root.read(&spec.key_path)?;
    let found = Observed::read(
        content.as_ref().map(|content| content.bytes.as_slice()),
        PrivateKey::from_pem,
    );
    let action = match &found {
        Observed::Absent | Observed::Empty => KeyAction::ToBeWritten,
        Observed::Present(found) if found.public_key() == key.public_key() => KeyAction::InPlace,
        Observed::Present(_) | Observed::Unreadable(_) => {
            report.refuse(format!(
                "{} exists, is not the key of {} and is not overwritten (find out which CA it belongs to, and move it away)",
                spec.key_path, spec.path
            ));
            KeyAction::Kept
        }
    };
    report.authorities.push(AuthorityRow {
        authority: spec.authority,
        key: spec.key_path.clone(),
        action,
        proven: vec![format!("the key belongs to {}", spec.path)],
    });
    if action == KeyAction::ToBeWritten {
        report.changes.extend(changes_with_key(root, bundle));
        missing.push((spec.key_path.clone(), key.to_pem()));
    }
    Ok(())
}

fn changes_with_key(root: &NodeRoot, bundle: &SurveyedBundle) -> Vec<String> {
    let spec = &bundle.spec;
    let manifests = root.node_path(MANIFESTS_DIR);
    let mut changes = vec![format!(
        "kubeadm manages {} again: kubeadm certs renew replaces the certificates under it",
        spec.authority
    )];
    if spec.authority == Authority::Ca {
        changes.push(format!(
            "kube-controller-manager signs again once {manifests}/kube-controller-manager.yaml has --cluster-signing-cert-file={} and --cluster-signing-key-file={}",
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
                "{} contains {certificates} certificates, but kube-controller-manager accepts exactly one: name a file that contains only the first",
                spec.path
            ));
        }
    }
    changes.push(format!(
        "nodepki continues to use the configured signer (to use the key, configure a local signer under authorities.{}.signer)",
        spec.authority
    ));
    changes
}
