//! The way out: proves that a node can do without its CA keys, backs them up and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use time::OffsetDateTime;

use super::{Backup, CaKey, Direction, Report, Row};
use crate::agent::{
    self, Answered, Clock, ExitCode, Failure, Progress, ServiceAccountAction, Setup, Survey,
    SurveyedBundle, SurveyedCert,
};
use crate::kube::manifest::MANIFESTS;
use crate::kube::names::{Authority, CertName};
use crate::process::failpoint;
use crate::spec::assess::{Action, Found};
use crate::spec::{BundleSpec, KUBECONFIG_DIR};
use crate::store::{self, Commit, FileKind, Metadata, Mode, Root, Store};
use crate::x509::{PrivateKey, TrustBundle};

/// The way out.
#[derive(Debug, Default)]
pub struct ToExternal {
    /// Only these authorities; all of them when empty.
    pub authorities: BTreeSet<Authority>,
    /// Do it; needs a backup.
    pub apply: bool,
    /// Where the keys go.
    pub backup: Option<Backup>,
    /// Believe the signers without a signature.
    pub skip_signing_proof: bool,
}

/// Proves that the CA keys are not needed on this node any more, and removes them when told to.
///
/// # Errors
/// When not even a look was possible. What is unproven is in the report, and then nothing was removed.
pub async fn to_external(
    root: &Root,
    setup: &Setup,
    wish: &ToExternal,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Report, Failure> {
    let unfinished = root.has_unfinished()?;
    // Where there is nothing to do nothing is touched, the lock included.
    let work = look(root, setup, wish, clock())?;
    if !wish.apply || (work.keys_here.is_empty() && !unfinished) {
        let mut report = prove(root, setup, wish, work, clock, progress)
            .await?
            .report;
        if unfinished {
            report.notes.push(
                "an earlier run was interrupted; the next one that may write finishes it first"
                    .to_owned(),
            );
        }
        return Ok(report);
    }
    let Some(backup) = &wish.backup else {
        return Err(Failure::new(
            ExitCode::Usage,
            "--apply removes CA keys and needs a place for them: give --backup FILE and --passphrase-file FILE",
        ));
    };
    let (mut store, notes) = agent::open_store(root, setup, "migrate to-external", clock)?;
    let work = look(root, setup, wish, clock())?;
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
        report
            .notes
            .push("that the signers sign was not proven, as --skip-signing-proof says".to_owned());
    } else {
        sign(&mut store, setup, &survey, &mut report, clock, progress).await;
        if !report.unproven.is_empty() {
            return Ok(report);
        }
    }
    failpoint::reached("migrate:proven");
    backup.write(setup, &keys, now)?;
    failpoint::reached("migrate:backed-up");
    let mut commit = Commit::new();
    for (authority, ours) in &keys {
        if let Some(spec) = setup.plan.bundle(*authority) {
            commit.remove(spec.key_path.clone(), &ours.bytes);
        }
    }
    let committed = store.commit(commit)?;
    failpoint::reached("migrate:committed");
    let lost = match backup.holds(&keys) {
        Ok(true) => None,
        Ok(false) => Some("the file does not exist".to_owned()),
        Err(failure) => Some(failure.to_string()),
    };
    if let Some(why) = lost {
        return Err(put_back(&mut store, setup, &keys, backup, &why));
    }
    report.applied = true;
    report.backup = Some(backup.shown());
    report.removed = committed.removed;
    report
        .notes
        .extend(committed.notes.iter().map(ToString::to_string));
    for row in &mut report.authorities {
        row.action = "removed";
    }
    Ok(report)
}

/// Puts the keys in place again after their backup was lost, and says so.
fn put_back(
    store: &mut Store,
    setup: &Setup,
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
        Ok(_) => Failure::new(
            ExitCode::Pending,
            format!(
                "{lost}; the keys are in place again: name another file with --backup and run again"
            ),
        ),
        Err(error) => Failure::new(
            ExitCode::Refused,
            format!(
                "{lost}; the keys could not be put back: {error}; restore them from another control-plane node"
            ),
        ),
    }
}

/// What lies on the node.
struct Work {
    survey: Survey,
    /// Authorities whose key is here and is to go.
    keys_here: Vec<Authority>,
}

fn look(
    root: &Root,
    setup: &Setup,
    wish: &ToExternal,
    now: OffsetDateTime,
) -> Result<Work, Failure> {
    let survey = setup.survey(root, now)?;
    let keys_here = survey
        .ca_keys()
        .map(|spec| spec.authority)
        .filter(|authority| wish.authorities.is_empty() || wish.authorities.contains(authority))
        .collect();
    Ok(Work { survey, keys_here })
}

struct Proven {
    report: Report,
    survey: Survey,
    keys: BTreeMap<Authority, CaKey>,
    now: OffsetDateTime,
}

/// Everything that can be proven without having anything made.
async fn prove(
    root: &Root,
    setup: &Setup,
    wish: &ToExternal,
    work: Work,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<Proven, Failure> {
    let Work {
        mut survey,
        keys_here,
    } = work;
    let mut report = Report::new(Direction::ToExternal);
    let mut keys = BTreeMap::new();
    if keys_here.is_empty() {
        return Ok(Proven {
            report,
            survey,
            keys,
            now: clock(),
        });
    }
    let (now, note) = agent::believable_now(setup, &mut survey, clock, progress).await?;
    report.notes.extend(note);
    for message in &survey.refusals {
        report.refuse(message.clone());
    }
    match survey.service_account {
        None | Some(ServiceAccountAction::Keep) => {}
        Some(ServiceAccountAction::Make) => report.refuse("sa.key and sa.pub are absent: kube-apiserver does not start again without them, and with a new pair every token of the cluster would be worthless; copy them from another control-plane node and run this again"),
        Some(_) => report.refuse(
            "sa.key and sa.pub are not both in place as they should be; run nodepki bootstrap, which mends that, and run this again"),
    }
    for authority in keys_here {
        let mut proven = Vec::new();
        let bundle = survey
            .bundles
            .iter()
            .find(|bundle| bundle.spec.authority == authority);
        let Some(SurveyedBundle {
            spec,
            found,
            in_place,
            ..
        }) = bundle
        else {
            continue;
        };
        match read_key(root, spec, found.present())? {
            Ok(ours) => {
                keys.insert(authority, ours);
            }
            Err(message) => report.refuse(message),
        }
        prove_certificates(&survey, authority, now, &mut proven, &mut report);
        match found.present().filter(|_| *in_place) {
            // Any other certificate in the file is that of another key.
            Some(trust) => match agent::ask(setup, authority, &trust.first_alone()).await {
                Ok(answered) => proven.push(said(setup, authority, answered, wish, &mut report)),
                Err(failures) => report.unproven.extend(failures),
            },
            None => report.refuse(format!(
                "{} is not in place, and without it nothing can be proven of {authority}; restore it from another control-plane node and run this again",
                spec.path
            )),
        }
        still_read(root, spec, &mut report)?;
        report.authorities.push(Row {
            authority,
            key: spec.key_path.clone(),
            action: "to be removed",
            proven,
        });
    }
    if let Some(backup) = &wish.backup
        && !keys.is_empty()
    {
        if let Some(why) = backup.misplaced(root, setup)? {
            report.refuse(format!(
                "{} cannot be the backup of the CA keys: {why}; name a file on another disk or another machine with --backup",
                backup.shown().display()
            ));
        }
        match backup.holds(&keys) {
            Ok(false) => {}
            Ok(true) => report.notes.push(format!(
                "{} is the backup of these keys already",
                backup.shown().display()
            )),
            Err(failure) => report.unproven.push(failure),
        }
        report.backup = Some(backup.shown());
    }
    kubeadm_demands(root, setup, &survey, &keys, &mut report)?;
    report.changes = changes_without_keys(root, &report);
    report.keep_if_unproven();
    Ok(Proven {
        report,
        survey,
        keys,
        now,
    })
}

fn read_key(
    root: &Root,
    spec: &BundleSpec,
    trust: Option<&TrustBundle>,
) -> Result<Result<CaKey, String>, store::Error> {
    let path = &spec.key_path;
    let is_link = |found: Metadata| found.kind == FileKind::Symlink;
    if root.metadata(&spec.key_path)?.is_some_and(is_link) {
        return Ok(Err(format!(
            "{path} is a link, and without it the key would still be where it leads; put the file itself in its place, then run this again"
        )));
    }
    let Some(content) = root.read(&spec.key_path)? else {
        return Ok(Err(format!(
            "{path} was removed by somebody else just now; run this again"
        )));
    };
    let cannot = |why: &str, advice: &str| {
        Ok(Err(format!(
            "{path} cannot be backed up: {why}; {advice}, then run this again"
        )))
    };
    let mut keys = match PrivateKey::all_from_pem(&content.bytes) {
        Ok(keys) => keys,
        Err(error) => return cannot(&error.to_string(), "find out what it is and move it away"),
    };
    let (Some(key), true) = (keys.pop(), keys.is_empty()) else {
        return cannot(
            "it holds several private keys, of which kubeadm reads the first",
            "keep the others somewhere else and leave the first alone in the file",
        );
    };
    if let Some(trust) = trust
        && trust.first().public_key() != key.public_key()
    {
        return Ok(Err(format!(
            "{path} is not the key of {} ({trust}); find out whose it is and move it away",
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
    report: &mut Report,
) {
    let mut sound = Vec::new();
    for cert in survey
        .certs
        .iter()
        .filter(|cert| cert.spec.authority == authority)
    {
        let name = cert.spec.name;
        // One that a survey refuses is among its refusals.
        if is_left_out(cert) || matches!(cert.action, Action::Refuse { .. }) {
            continue;
        }
        match agent::unverified(cert, survey.trust(authority), now) {
            None => sound.push(name.as_str()),
            Some(why) => report.refuse(format!(
                "{name} would not do without the key of {authority}: {why}"
            )),
        }
    }
    if !sound.is_empty() {
        proven.push(format!("in place and good: {}", sound.join(", ")));
    }
}

/// People take super-admin.conf off a node, as kubeadm advises; nothing that runs needs it.
fn is_left_out(cert: &SurveyedCert) -> bool {
    cert.spec.name == CertName::SuperAdminConf && matches!(cert.found.chain, Found::Absent)
}

fn said(
    setup: &Setup,
    authority: Authority,
    answered: Answered,
    wish: &ToExternal,
    report: &mut Report,
) -> String {
    let label = setup
        .signers
        .get(&authority)
        .map_or_else(String::new, |(_, signer)| signer.label());
    match answered {
        Answered::SameAuthority => format!("{label} answers, with this CA"),
        Answered::Silent => {
            if wish.skip_signing_proof {
                report.refuse(format!("{label} does not say which CA it has, so that only a signature proves that it has {authority}; leave out --skip-signing-proof"));
            }
            format!("{label} answers, and does not say with which CA")
        }
    }
}

/// Static pods that name the key do not start again without it.
fn still_read(root: &Root, spec: &BundleSpec, report: &mut Report) -> Result<(), Failure> {
    let key = &spec.key_path;
    let written = Path::display(key).to_string();
    for name in root.list(MANIFESTS)?.unwrap_or_default() {
        let path = Path::new(MANIFESTS).join(&name);
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
        let scratch = root.node_path(KUBECONFIG_DIR).join(&name);
        report.refuse(match text.contains("--cluster-signing-key-file=") {
            true => format!(
                "{path} names {key}, and kube-controller-manager does not start without the files of its signer; take the signer away first, as kubeadm does for an external CA: sed -E 's#(--cluster-signing-(cert|key)-file=).*#\\1#' {path} > {scratch} && mv {scratch} {path}"
            ),
            false => format!("{path} names {key}, and may not start without it; change that first"),
        });
    }
    Ok(())
}

/// `ValidateKubeconfigsForExternalCA`, which every `kubeadm init phase` goes through once `ca.key` is gone.
fn kubeadm_demands(
    root: &Root,
    setup: &Setup,
    survey: &Survey,
    keys: &BTreeMap<Authority, CaKey>,
    report: &mut Report,
) -> Result<(), Failure> {
    // kubeadm looks no further where it is not a first node's.
    if !keys.contains_key(&Authority::Ca) || setup.plan.cert(CertName::SuperAdminConf).is_none() {
        return Ok(());
    }
    for name in [CertName::SuperAdminConf, CertName::KubeletConf] {
        let planned = survey.cert(name).is_some_and(|cert| !is_left_out(cert));
        let path = Path::new(KUBECONFIG_DIR).join(name.as_str());
        if !planned && root.metadata(&path)?.is_none() {
            report.notes.push(format!(
                "{} is absent: nothing that runs needs it, but kubeadm init and its phases refuse an external CA without it; nodepki bootstrap makes one",
                root.node_path(path)
            ));
        }
    }
    Ok(())
}

/// One signature an authority.
async fn sign(
    store: &mut Store,
    setup: &Setup,
    survey: &Survey,
    report: &mut Report,
    clock: Clock,
    progress: &dyn Progress,
) {
    for row in &mut report.authorities {
        let authority = row.authority;
        // The last of kubeadm's list is the least powerful that an authority signs.
        let mut certs = survey.certs.iter().rev();
        let cert = certs.find(|cert| cert.spec.authority == authority);
        let (Some(cert), Some(trust)) = (cert, survey.trust(authority)) else {
            report.unproven.push(Failure::new(
                ExitCode::Refused,
                format!("there is no certificate of {authority} on this node to prove with that its signer signs; --skip-signing-proof goes on without that"),
            ));
            continue;
        };
        match agent::rehearse(store, setup, cert, trust, clock, progress).await {
            Ok(()) => row.proven.push(format!(
                "it signed a certificate like {}, which was thrown away",
                cert.spec.name
            )),
            Err(failure) => report.unproven.push(failure),
        }
    }
    report.keep_if_unproven();
}

fn changes_without_keys(root: &Root, report: &Report) -> Vec<String> {
    let mut changes = Vec::new();
    let goes = |authority| {
        report
            .authorities
            .iter()
            .any(|row| row.authority == authority)
    };
    changes.push(
        "kubeadm takes these CAs for external from now on: kubeadm certs renew leaves alone what they sign (and ends with 0); nodepki renews it"
            .to_owned(),
    );
    if goes(Authority::Ca) || goes(Authority::FrontProxyCa) {
        changes.push(
            "kubeadm init phase upload-certs refuses; nodepki certs upload does it".to_owned(),
        );
    }
    if goes(Authority::Ca) {
        changes.push("kube-controller-manager of this node signs nothing: requests of kubelets that join or renew stay pending until somebody signs kubernetes.io/kube-apiserver-client-kubelet, and a kubelet whose client certificate ends is out of the cluster".to_owned());
    }
    changes.push(format!(
        "the keys still lie on every other control-plane node (run this on each), in copies of their files (nodepki doctor finds those below {}), and in the Secret kubeadm-certs if that is younger than two hours",
        root.node_path(KUBECONFIG_DIR)
    ));
    changes.push("the blocks of a removed file stay on the disk until they are written over; keep the backup and its passphrase apart, and both off this node".to_owned());
    changes
}
