//! `migrate to-external`: proves that a node does not need its CA keys, backs them up and removes them.
//!
//! 1. Prove: everything in place verifies, the signers of the configuration have the same CAs and sign, and nothing on
//!    the node reads the keys.
//! 2. Write an encrypted backup and read it back.
//! 3. Remove the keys in one commit.
//! 4. Read the backup again, and restore the keys if that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use time::OffsetDateTime;

use super::backup::{Backup, BackupOrigin, CaKey};
use super::report::{AuthorityRow, Direction, KeyAction, MigrationReport};
use crate::agent::audit::KEYS_REMOVED;
use crate::agent::{
    self, Clock, Failure, Progress, RunSetup, ServiceAccountAction, SignerAnswer, Survey,
    SurveyedBundle, SurveyedCert, audit,
};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{KUBERNETES_DIR, MANIFESTS_DIR};
use crate::process::failpoint;
use crate::spec::BundleSpec;
use crate::spec::assess::{Action, Observed};
use crate::store::{
    self, AuditEvent, AuditRecord, Commit, FileKind, KeyRemoval, Metadata, Mode, NodeRoot, Slot,
    Store, UnfinishedWork,
};
use crate::x509::{PrivateKey, TrustBundle};

#[derive(Debug, Default)]
pub(super) struct ToExternal {
    /// Only these authorities; all of them if empty.
    pub(super) authorities: BTreeSet<Authority>,
    /// Remove the keys, which needs a backup; otherwise only report.
    pub(super) apply: bool,
    pub(super) backup: Option<Backup>,
    /// Do not have the signers sign a certificate as proof.
    pub(super) skip_signing_proof: bool,
}

/// Proves that the node does not need its CA keys any more, and removes them if `wish.apply` is set.
///
/// # Errors
/// The node could not be examined. Reasons against the removal are in the report, and nothing is removed then.
pub(super) async fn to_external(
    root: &NodeRoot,
    setup: &RunSetup,
    wish: &ToExternal,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<MigrationReport, Failure> {
    let unfinished = root.unfinished_work()?;
    // If nothing is due, nothing is touched, including the lock.
    let work = examine(root, setup, wish, clock())?;
    if !wish.apply || (work.keys_here.is_empty() && unfinished.is_none()) {
        let mut report = prove(root, setup, wish, work, clock, progress)
            .await?
            .report;
        report.notes.extend(unfinished.map(|work| format!(
            "an earlier run was interrupted while it {}; the next run that writes completes or reverts that first",
            work.doing()
        )));
        return Ok(report);
    }
    let Some(backup) = &wish.backup else {
        return Err(Backup::required());
    };
    let is_removal = matches!(unfinished, Some(UnfinishedWork::KeyRemoval { .. }));
    refuse_second_backup(root, backup, unfinished)?;
    let (mut store, notes) = agent::open_store_with(
        root,
        setup,
        "migrate to-external",
        KeyRemoval::Abandon,
        clock,
    )?;
    // Another run may have changed the files before this one had the lock.
    let mut work = examine(root, setup, wish, clock())?;
    work.removed_before |= is_removal;
    let Proven {
        mut report,
        survey,
        keys,
        now,
    } = prove(root, setup, wish, work, clock, progress).await?;
    report.notes.extend(notes);
    if keys.is_empty() || !report.unproven.is_empty() {
        return Ok(report);
    }
    if wish.skip_signing_proof {
        report.notes.push(
            "whether the signers sign was not proven, because of --skip-signing-proof".to_owned(),
        );
    } else {
        // Last, since it costs a signature, for which a person may have to decide.
        prove_signing(&mut store, setup, &survey, &mut report, clock, progress).await;
        if !report.unproven.is_empty() {
            return Ok(report);
        }
    }
    failpoint::reached("migrate:proven");
    let written = backup.write(&BackupOrigin::Node(&setup.identity), &keys, now)?;
    failpoint::reached("migrate:backed-up");
    let mut commit = Commit::new();
    // Recovery has no passphrase: by the digest of this file it decides whether it may remove the remaining keys.
    commit.backed_up_in(written);
    for (authority, ours) in &keys {
        if let Some(spec) = setup.plan.bundle(*authority) {
            commit.remove(spec.key_path.clone(), &ours.bytes);
        }
    }
    let committed = store.commit(commit)?;
    failpoint::reached("migrate:committed");
    // From now on the backup is the only copy: it is read again while this process still has the keys.
    if let Some(why) = backup.lost(&keys) {
        return Err(restore_keys(&mut store, setup, &keys, backup, &why));
    }
    audit::append(store.root(), now, &keys_records(keys.keys(), KEYS_REMOVED));
    report.applied = true;
    report.backup = Some(backup.shown());
    report.removed = committed.removed;
    report
        .notes
        .extend(committed.notes.iter().map(ToString::to_string));
    report.replace_action(KeyAction::ToBeRemoved, KeyAction::Removed);
    Ok(report)
}

/// Refuses another backup than that of an interrupted run which has removed a part of the keys: neither file would contain
/// all of them.
fn refuse_second_backup(
    root: &NodeRoot,
    backup: &Backup,
    unfinished: Option<UnfinishedWork>,
) -> Result<(), Failure> {
    let Some(UnfinishedWork::KeyRemoval {
        backup: earlier,
        gone,
    }) = unfinished
    else {
        return Ok(());
    };
    if gone.is_empty() || backup.is_of(&earlier) || earlier.loss(root).is_some() {
        return Ok(());
    }
    let gone = gone
        .iter()
        .map(|path| root.node_path(path.as_path()).to_string());
    let gone: Vec<String> = gone.collect();
    let earlier = earlier.shown(root);
    Err(Failure::refused(format!(
        "an interrupted run has removed {} and written its backup to {}, so that {} would lack these keys",
        gone.join(", "),
        earlier.display(),
        backup.shown().display()
    ))
    .advise(format!(
        "run again with --backup {0} and its passphrase; for another backup, first restore the keys: nodepki migrate to-internal --backup {0} --passphrase-file FILE --apply",
        earlier.display()
    )))
}

/// Returns the records of a migration for the issuance log.
pub(in crate::commands) fn keys_records<'a>(
    authorities: impl Iterator<Item = &'a Authority>,
    action: &str,
) -> Vec<AuditRecord> {
    let records = authorities.map(|authority| AuditRecord {
        authority: Some(authority.to_string()),
        action: Some(action.to_owned()),
        ..AuditRecord::of(AuditEvent::Migration)
    });
    records.collect()
}

/// Restores the removed keys after their backup was lost, and returns the failure to report.
fn restore_keys(
    store: &mut Store,
    setup: &RunSetup,
    keys: &BTreeMap<Authority, CaKey>,
    backup: &Backup,
    why: &str,
) -> Failure {
    let mut commit = Commit::new();
    for (authority, ours) in keys {
        if let Some(spec) = setup.plan.bundle(*authority) {
            commit.file_if_absent(spec.key_path.clone(), ours.bytes.clone(), Mode::Private);
        }
    }
    let backup = backup.shown();
    let lost = format!(
        "the backup {} cannot be read back after the CA keys were removed: {why}",
        backup.display()
    );
    match store.commit(commit) {
        Ok(_) => Failure::pending(format!(
            "{lost}; the keys were restored (name another file with --backup and run again)"
        )),
        Err(error) => Failure::refused(format!("{lost}; the keys could not be restored"))
            .caused_by(error)
            .advise("copy them from another control-plane node"),
    }
}

/// State of the node before the proof.
struct MigrationWork {
    survey: Survey,
    /// Authorities whose key is on the node and is to be removed.
    keys_here: Vec<Authority>,
    /// Whether the issuance log or an unfinished commit shows that CA keys were removed from the node.
    removed_before: bool,
}

fn examine(
    root: &NodeRoot,
    setup: &RunSetup,
    wish: &ToExternal,
    now: OffsetDateTime,
) -> Result<MigrationWork, Failure> {
    let survey = setup.survey(root, now)?;
    let keys_here = survey
        .ca_keys()
        .map(|spec| spec.authority)
        .filter(|authority| wish.authorities.is_empty() || wish.authorities.contains(authority))
        .collect();
    let mut removed_before = false;
    // A log that cannot be read proves nothing.
    let _ = root.verify_audit(None, |entry, _| {
        removed_before |= entry.text("action") == Some(KEYS_REMOVED);
    });
    Ok(MigrationWork {
        survey,
        keys_here,
        removed_before,
    })
}

/// Result of the proof.
struct Proven {
    report: MigrationReport,
    survey: Survey,
    keys: BTreeMap<Authority, CaKey>,
    /// Time at which the certificates were judged.
    now: OffsetDateTime,
}

/// Proves everything that can be proven without a signature.
async fn prove(
    root: &NodeRoot,
    setup: &RunSetup,
    wish: &ToExternal,
    work: MigrationWork,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Proven, Failure> {
    let MigrationWork {
        mut survey,
        keys_here,
        removed_before,
    } = work;
    let mut report = MigrationReport::new(Direction::ToExternal);
    report.has_signing_proof = !wish.skip_signing_proof;
    let mut keys = BTreeMap::new();
    if keys_here.is_empty() {
        if let Some(backup) = &wish.backup {
            if !removed_before {
                report.notes.push(format!(
                    "no backup was written to {}, since there is no key to write",
                    backup.shown().display()
                ));
                return Ok(Proven {
                    report,
                    survey,
                    keys,
                    now: clock(),
                });
            }
            let selected = survey.bundles.iter().filter(|bundle| {
                let authority = bundle.spec.authority;
                wish.authorities.is_empty() || wish.authorities.contains(&authority)
            });
            let certificates =
                selected.filter_map(|one| Some((one.spec.authority, one.found.present()?)));
            // There is nothing to write any more: the backup of the run that removed the keys is verified.
            backup.prove_earlier(certificates, "this node", &mut report)?;
        }
        return Ok(Proven {
            report,
            survey,
            keys,
            now: clock(),
        });
    }
    // By a clock that is behind, the certificates would not be valid yet.
    let (now, note) = agent::wait_for_plausible_clock(setup, &mut survey, clock, progress).await?;
    report.notes.extend(note);
    for message in &survey.refusals {
        report.refuse(message.to_string());
    }
    require_service_account(survey.service_account.as_ref(), &mut report);
    for authority in keys_here {
        let bundles = &survey.bundles;
        let bundle = bundles.iter().find(|one| one.spec.authority == authority);
        let Some(bundle) = bundle else { continue };
        match read_key(root, &bundle.spec, bundle.found.present())? {
            Ok(key) => {
                keys.insert(authority, key);
            }
            Err(message) => report.refuse(message),
        }
        let mut proven = Vec::new();
        prove_certificates(&survey, authority, now, &mut proven, &mut report);
        prove_signer(setup, bundle, wish, &mut proven, &mut report).await;
        refuse_readers(root, &bundle.spec, &mut report)?;
        report.authorities.push(AuthorityRow {
            authority,
            key: bundle.spec.key_path.clone(),
            action: KeyAction::ToBeRemoved,
            proven,
        });
    }
    if let Some(backup) = wish.backup.as_ref().filter(|_| !keys.is_empty()) {
        let misplaced = backup.misplaced(root, setup)?;
        backup.prove(misplaced, &keys, &mut report);
    }
    note_absent_kubeconfigs(root, setup, &survey, &keys, &mut report)?;
    report.changes = changes_without_keys(root, &report);
    report.keep_if_unproven();
    Ok(Proven {
        report,
        survey,
        keys,
        now,
    })
}

fn require_service_account(action: Option<&ServiceAccountAction>, report: &mut MigrationReport) {
    match action {
        None | Some(ServiceAccountAction::Keep) => {}
        Some(ServiceAccountAction::Make) => report.refuse(
            "sa.key and sa.pub are absent: kube-apiserver does not start without them, and a new pair would invalidate every token of the cluster (copy both from another control-plane node and run again)",
        ),
        Some(_) => report.refuse(
            "sa.key and sa.pub are not both in place as required (run nodepki bootstrap, which repairs them, and run again)",
        ),
    }
}

/// Asks the signer of an authority for its CA certificate.
async fn prove_signer(
    setup: &RunSetup,
    bundle: &SurveyedBundle,
    wish: &ToExternal,
    proven: &mut Vec<String>,
    report: &mut MigrationReport,
) {
    let authority = bundle.spec.authority;
    let Some(trust) = bundle.found.present().filter(|_| bundle.in_place) else {
        report.refuse(format!(
            "{} is not in place, so that nothing can be proven for {authority} (copy it from another control-plane node and run again)",
            bundle.spec.path
        ));
        return;
    };
    // The key on the node belongs to the first certificate; others in the file have other keys.
    let answered = match agent::verify_signer(setup, authority, &trust.first_alone()).await {
        Ok(answered) => answered,
        Err(failures) => {
            report.unproven.extend(failures);
            return;
        }
    };
    let signer = setup.signers.get(&authority);
    let label = signer.map_or_else(String::new, |(_, signer)| signer.label());
    match answered {
        SignerAnswer::SameAuthority => proven.push(format!("{label} answers and has this CA")),
        SignerAnswer::Silent => {
            if wish.skip_signing_proof {
                report.refuse(format!("{label} does not report its CA, so that only a signature proves that it has {authority} (omit --skip-signing-proof)"));
            }
            proven.push(format!("{label} answers, but does not report its CA"));
        }
    }
}

fn read_key(
    root: &NodeRoot,
    spec: &BundleSpec,
    trust: Option<&TrustBundle>,
) -> Result<Result<CaKey, String>, store::StoreError> {
    let path = &spec.key_path;
    let is_link = |found: Metadata| found.kind == FileKind::Symlink;
    if root.metadata(&spec.key_path)?.is_some_and(is_link) {
        return Ok(Err(format!(
            "{path} is a symbolic link, and removing the link would not remove the key (replace the link with the file, then run again)"
        )));
    }
    let Some(content) = root.read(&spec.key_path)? else {
        return Ok(Err(format!(
            "{path} was just removed by another process (run again)"
        )));
    };
    let cannot = |why: &str, advice: &str| {
        Ok(Err(format!(
            "{path} cannot be backed up: {why} ({advice}, then run again)"
        )))
    };
    let mut keys = match PrivateKey::all_from_pem(&content.bytes) {
        Ok(keys) => keys,
        Err(error) => return cannot(&error.to_string(), "find out what it is and move it away"),
    };
    let (Some(key), true) = (keys.pop(), keys.is_empty()) else {
        return cannot(
            "it contains several private keys, of which kubeadm reads the first",
            "keep only the first in the file, and store the others elsewhere",
        );
    };
    if let Some(trust) = trust
        && trust.first().public_key() != key.public_key()
    {
        return Ok(Err(format!(
            "{path} is not the key of {} ({trust}) (find out which CA it belongs to, and move it away)",
            spec.path
        )));
    }
    Ok(Ok(CaKey {
        key,
        bytes: content.bytes,
    }))
}

fn prove_certificates(
    survey: &Survey,
    authority: Authority,
    now: OffsetDateTime,
    proven: &mut Vec<String>,
    report: &mut MigrationReport,
) {
    let mut sound = Vec::new();
    for cert in survey
        .certs
        .iter()
        .filter(|cert| cert.spec.authority() == authority)
    {
        let name = cert.spec.name();
        // The survey's refusals contain the refused certificates.
        if is_left_out(cert) || matches!(cert.decision.action, Action::Refuse { .. }) {
            continue;
        }
        match agent::unverified(cert, survey.trust(authority), now) {
            None => sound.push(name.as_str()),
            Some(why) => report.refuse(format!(
                "{name} needs the key of {authority} to be repaired: {why}"
            )),
        }
    }
    if !sound.is_empty() {
        proven.push(format!("in place and valid: {}", sound.join(", ")));
    }
}

/// Returns whether a certificate is deliberately absent: kubeadm advises to remove super-admin.conf, and no component uses
/// it.
fn is_left_out(cert: &SurveyedCert) -> bool {
    cert.spec.name() == CertName::SuperAdminConf && matches!(cert.found.chain, Observed::Absent)
}

/// Refuses the removal if a static pod names the key, since the pod does not start again without it.
fn refuse_readers(
    root: &NodeRoot,
    spec: &BundleSpec,
    report: &mut MigrationReport,
) -> Result<(), Failure> {
    let key = &spec.key_path;
    let written = Path::display(key).to_string();
    for name in root.list(MANIFESTS_DIR)?.unwrap_or_default() {
        let path = Path::new(MANIFESTS_DIR).join(&name);
        let found = root.metadata(&path)?.map(|found| found.kind);
        if name.to_string_lossy().starts_with('.') || found == Some(FileKind::Directory) {
            continue;
        }
        let Some(content) = root.read(&path)? else {
            continue;
        };
        let text = String::from_utf8_lossy(&content.bytes);
        let named = text
            .lines()
            .any(|line| !line.trim_start().starts_with('#') && line.contains(&written));
        if !named {
            continue;
        }
        let path = root.node_path(path);
        let scratch = root.node_path(KUBERNETES_DIR).join(&name);
        report.refuse(if text.contains("--cluster-signing-key-file=") { format!(
            "{path} names {key}, and kube-controller-manager does not start without the files of its signer; first remove the signer, as kubeadm does for an external CA: sed -E 's#(--cluster-signing-(cert|key)-file=).*#\\1#' {path} > {scratch} && mv {scratch} {path}"
        ) } else { format!("{path} names {key}, and the pod may not start without it (change the manifest first)") });
    }
    Ok(())
}

/// Notes the kubeconfigs that `ValidateKubeconfigsForExternalCA` requires, which every `kubeadm init phase` calls if
/// `ca.key` is absent.
fn note_absent_kubeconfigs(
    root: &NodeRoot,
    setup: &RunSetup,
    survey: &Survey,
    keys: &BTreeMap<Authority, CaKey>,
    report: &mut MigrationReport,
) -> Result<(), Failure> {
    // kubeadm requires them on the first node only.
    if !keys.contains_key(&Authority::Ca) || setup.plan.cert(CertName::SuperAdminConf).is_none() {
        return Ok(());
    }
    for name in [CertName::SuperAdminConf, CertName::KubeletConf] {
        let planned = survey.cert(name).is_some_and(|cert| !is_left_out(cert));
        let path = Path::new(KUBERNETES_DIR).join(name.as_str());
        if !planned && root.metadata(&path)?.is_none() {
            report.notes.push(format!(
                "{} is absent: no component uses it, but kubeadm init and its phases refuse an external CA without it (nodepki bootstrap creates it)",
                root.node_path(path)
            ));
        }
    }
    Ok(())
}

/// Has the signer of each authority sign one certificate.
async fn prove_signing(
    store: &mut Store,
    setup: &RunSetup,
    survey: &Survey,
    report: &mut MigrationReport,
    clock: Clock,
    progress: &dyn Progress,
) {
    for row in &mut report.authorities {
        let authority = row.authority;
        let proof = rehearsed(store.root(), survey, authority);
        let (cert, trust) = match (proof, survey.trust(authority)) {
            (Ok(Some(cert)), Some(trust)) => (cert, trust),
            (Ok(_), _) => {
                report.unproven.push(Failure::refused(format!(
                    "this node has no certificate under {authority} with which to prove that its signer signs (--skip-signing-proof omits the proof)"
                )));
                continue;
            }
            (Err(failure), _) => {
                report.unproven.push(failure);
                continue;
            }
        };
        match agent::rehearse(store, setup, cert, trust, clock, progress).await {
            Ok(()) => row.proven.push(format!(
                "it signed a certificate like {}, which was discarded",
                cert.spec.name()
            )),
            Err(failure) => report.unproven.push(failure),
        }
    }
    report.keep_if_unproven();
}

/// Returns the certificate like which the signer of an authority signs one as proof: that of an earlier proof which is
/// pending, or one without a pending request, whose certificate must not be discarded. In kubeadm's order, the last
/// certificate of an authority has the fewest permissions.
fn rehearsed<'a>(
    root: &NodeRoot,
    survey: &'a Survey,
    authority: Authority,
) -> Result<Option<&'a SurveyedCert>, Failure> {
    let pending = root.tickets()?;
    let pending_for = |cert: &SurveyedCert| {
        let slot = Slot::Certificate(cert.spec.name());
        pending.iter().find(|(one, _)| *one == slot)
    };
    let is_proof = |cert: &&SurveyedCert| {
        let ticket = pending_for(cert).and_then(|(_, ticket)| ticket.as_ref());
        ticket.is_some_and(|ticket| ticket.is_proof)
    };
    let certs = survey.certs.iter().rev();
    let mut certs = certs.filter(|cert| {
        cert.spec.authority() == authority && !matches!(cert.found.chain, Observed::Absent)
    });
    let is_free = |cert: &&SurveyedCert| pending_for(cert).is_none();
    let cert = certs.clone().find(is_proof);
    let cert = cert.or_else(|| certs.clone().find(is_free));
    match (cert, certs.next()) {
        (None, Some(_)) => Err(Failure::pending(format!(
            "the requests for all certificates under {authority} are pending, and a proof that its signer signs would discard one; finish these renewals, then run this command again (--skip-signing-proof omits the proof)"
        ))),
        (cert, _) => Ok(cert),
    }
}

fn changes_without_keys(root: &NodeRoot, report: &MigrationReport) -> Vec<String> {
    let mut changes = Vec::new();
    changes.push(
        "kubeadm treats these CAs as external from now on: kubeadm certs renew skips the certificates under them (and exits with 0); nodepki renews them"
            .to_owned(),
    );
    if report.contains(Authority::Ca) || report.contains(Authority::FrontProxyCa) {
        changes.push(
            "kubeadm init phase upload-certs refuses to run; use nodepki certs upload".to_owned(),
        );
    }
    if report.contains(Authority::Ca) {
        changes.push("kube-controller-manager of this node signs nothing: CSRs of kubelets that join or renew stay pending until another signer signs for kubernetes.io/kube-apiserver-client-kubelet, and a kubelet whose client certificate expires loses access to the cluster".to_owned());
    }
    changes.push(format!(
        "the keys still exist on every other control-plane node (run this on each), in copies of their files (nodepki doctor finds those below {}), and in the Secret kubeadm-certs if it is younger than two hours",
        root.node_path(KUBERNETES_DIR)
    ));
    changes.push("the disk blocks of a removed file keep its content until they are overwritten; store the backup and its passphrase separately, and both away from this node".to_owned());
    changes
}
