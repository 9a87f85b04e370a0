//! Offline signing: the ordinary path of the agent, with a signer whose answers are imported files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::request::{
    IssuanceOrder, RequestContext, RequestStart, differences_of_request, prepare,
};
use super::survey::Survey;
use super::{
    Clock, ExitCode, Failure, Progress, RequestRun, RunReport, RunSetup, bootstrap_in, open_store,
    require_room,
};
use crate::kube::names::{Authority, CertName};
use crate::signer::bundle::{self, Candidate, Outstanding, Remark};
use crate::signer::{
    Answer, Caps, Rejection, Request, RequestLookup, RequestedCertificate, Resubmit, Signer,
    SignerError, SignerKind, Ticket,
};
use crate::spec::assess::joined;
use crate::store::{self, Durability, NodeRoot, OFFLINE_SIGNER, Slot, Store};
use crate::x509::{CertDifference, Csr, PrivateKey, PublicKey};

/// Maximum number of unused files that an import lists.
const MAX_REMARKS: usize = 50;

/// Generates and stores a key and a CSR for each certificate to be issued. A repeated export has the same requests.
///
/// `admit` receives the requests, and the keys for which requests are pending, before anything is stored, and may refuse
/// them. It returns the function that writes the requests, which may return the directory on the node that then contains
/// them.
///
/// # Errors
/// As for `bootstrap`, before a signer is contacted, and those of `admit` and of the function that writes.
pub async fn export_requests<W: FnOnce() -> Result<Option<PathBuf>, Failure>>(
    root: &NodeRoot,
    mut setup: RunSetup,
    clock: Clock,
    progress: &dyn Progress,
    admit: impl FnOnce(&[Request], Vec<PublicKey>) -> Result<W, Failure>,
) -> Result<(), Failure> {
    answer_from_files(&mut setup, Offline::default());
    let (store, notes) = open_store(root, &setup, "csr export", clock)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    let mut survey = setup.survey(root, clock())?;
    if !survey.refusals.is_empty() {
        return Err(survey.refused());
    }
    require_room(store.root(), &setup, &survey)?;
    // The service-account pair is not signed: the import generates it, and a pair generated here would be discarded.
    survey.service_account = None;
    let mut run = RequestRun::unchanged(&setup, &store, clock, progress, &mut survey, Vec::new())?;
    let context = RequestContext {
        store: &store,
        identity: setup.identity.clone(),
        clock,
        floor: None,
        deadline: Instant::now(),
        jitter: setup.jitter,
        progress,
        is_rotation: false,
        is_proof: false,
        set_aside: &BTreeMap::new(),
    };
    let mut start: BTreeMap<_, RequestStart> = std::mem::take(&mut run.resumed)
        .into_iter()
        .map(|(name, resumed)| (name, RequestStart::Resumed(Box::new(resumed))))
        .collect();
    while let Some(made) = run.keys.next().await {
        let slot = made.slot;
        let key = made.require()?;
        if let Slot::Certificate(name) = slot {
            start.insert(name, RequestStart::Key(key));
        }
    }
    let (mut requests, mut made) = (Vec::new(), Vec::new());
    for cert in survey.to_issue() {
        let Some(start) = start.remove(&cert.spec.name()) else {
            continue;
        };
        let (name, signer) = setup.signer(cert.spec.authority())?;
        let order = IssuanceOrder {
            outlives: None,
            replaces: None,
            spec: &cert.spec,
            signer: Rc::clone(signer),
            signer_name: name.clone(),
            current: None,
        };
        let prepared = prepare(&context, &order, start)?
            .map_err(|error| Failure::misconfigured("").caused_by(error))?;
        requests.push(order.request(&context, prepared.csr.clone()));
        made.push((order, prepared));
    }
    let pending = outstanding(&store, clock)?.into_iter();
    let write = admit(&requests, pending.map(|pending| pending.key).collect())?;
    setup.keep_record(&store, &survey)?;
    // Only now, as a refused export changes nothing.
    run.set_outdated_aside()?;
    for (order, prepared) in &mut made {
        prepared.keep(&context, order)?;
    }
    let directory = write()?;
    for (order, prepared) in made {
        let (name, mut record) = (order.spec.name(), prepared.record);
        // The request of another signer waits for that one.
        if record.signer_config == OFFLINE_SIGNER && record.exported_to != directory {
            record.exported_to.clone_from(&directory);
            store.update_ticket(name.into(), &record, Durability::Synced)?;
        }
    }
    Ok(())
}

/// Returns the certificates whose exported request is not what the plan asks for any more, with the differences. A
/// certificate for such a request would be refused.
///
/// # Errors
/// A record cannot be read.
pub fn outdated_exports(
    root: &NodeRoot,
    survey: &Survey,
) -> Result<BTreeMap<CertName, Vec<CertDifference>>, store::StoreError> {
    let mut outdated = BTreeMap::new();
    for cert in survey.to_issue() {
        let Some(recorded) = root.recorded_request(cert.spec.name().into())? else {
            continue;
        };
        let is_exported = recorded
            .ticket
            .is_some_and(|it| it.signer_config == OFFLINE_SIGNER);
        if is_exported && let Ok(csr) = Csr::from_pem(&recorded.csr_pem) {
            outdated.insert(
                cert.spec.name(),
                differences_of_request(Some(&csr), csr.public_key(), &cert.spec),
            );
        }
    }
    outdated.retain(|_, differences| !differences.is_empty());
    Ok(outdated)
}

/// Refuses to replace requests whose certificates may exist already.
fn require_current(
    store: &Store,
    survey: &Survey,
    candidates: &[Candidate],
) -> Result<(), Failure> {
    let mut outdated = outdated_exports(store.root(), survey)?;
    let has_key = |name: &CertName| {
        let mut candidates = candidates.iter();
        candidates.any(|candidate| candidate.name == *name && candidate.key.is_some())
    };
    outdated.retain(|name, _| !has_key(name));
    if outdated.is_empty() || !survey.refusals.is_empty() {
        return Ok(());
    }
    let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, differences) in &outdated {
        let differences = joined(differences);
        names.entry(differences).or_default().push(name.as_str());
    }
    let outdated: Vec<String> = names
        .into_iter()
        .map(|(differences, names)| format!("{} ({differences})", names.join(", ")))
        .collect();
    Err(Failure::refused(format!(
        "the requests were exported for another configuration, and certificates for them would be refused: {}; nothing was changed",
        outdated.join("; ")
    ))
    .advise("undo the change and run again, or have other requests signed: nodepki csr export DIR, with another directory"))
}

/// Installs the certificates in `files` (paths relative to the top of the tree) after the same verification as for other
/// signers.
///
/// # Errors
/// As for `bootstrap`.
pub async fn import_answers(
    root: &NodeRoot,
    mut setup: RunSetup,
    files: &[(PathBuf, Zeroizing<Vec<u8>>)],
    clock: Clock,
    progress: &dyn Progress,
) -> Result<RunReport, Failure> {
    let (mut store, mut notes) = open_store(root, &setup, "csr import", clock)?;
    let outstanding = outstanding(&store, clock)?;
    let survey = setup.survey(store.root(), clock())?;
    let is_settled = survey.refusals.is_empty() && survey.is_settled();
    let collection = bundle::collect(files, &outstanding, &installed(&survey));
    notes.extend(listed(&collection.remarks));
    let is_useless = collection.candidates.is_empty() && collection.installed.is_empty();
    require_current(&store, &survey, &collection.candidates)?;
    let own = &setup.identity.node;
    if is_useless && !collection.nodes.is_empty() && !collection.nodes.contains(own) {
        let nodes: Vec<&str> = collection.nodes.iter().map(String::as_str).collect();
        return Err(Failure::refused(format!(
            "the import contains the requests of node {}, and this node is {own}: import it there, or name the directory with the requests of {own}",
            nodes.join(", ")
        )));
    }
    // A repeated import finds the certificates in place, or only those of pending requests.
    if is_useless && !is_settled {
        let mut messages =
            vec![
                "the import contains no certificate for any request of this node; put each signed certificate next to its CSR as .crt and run again, or export the requests (nodepki csr export DIR)".to_owned(),
            ];
        messages.extend(notes);
        return Err(Failure::with_messages(ExitCode::Refused, messages));
    }
    let mut offline = Offline {
        authorities: collection
            .authorities
            .into_iter()
            .map(|(name, _, pem)| (name, pem))
            .collect(),
        ..Offline::default()
    };
    let mut imported = Vec::new();
    for candidate in collection.candidates {
        if candidate.key.is_some() && !is_due(&survey, candidate.name) {
            notes.push(format!(
                "{} is not used: the certificate of {} on this node needs no replacement",
                candidate.path.display(),
                candidate.name
            ));
            continue;
        }
        let key = match &candidate.key {
            Some(key) => key.public_key(),
            None => match outstanding.iter().find(|one| one.name == candidate.name) {
                Some(pending) => &pending.key,
                None => continue,
            },
        };
        let answer = (key.clone(), candidate.answer.clone());
        offline.answers.push(answer);
        if candidate.key.is_some() {
            imported.push(candidate);
        }
    }
    answer_from_files(&mut setup, offline);
    // All answers are here: a certificate that is missing does not arrive during the run.
    setup.wait = Duration::ZERO;
    bootstrap_in(&mut store, notes, &setup, clock, progress, imported).await
}

/// Returns the certificates that pending requests wait for.
fn outstanding(store: &Store, clock: Clock) -> Result<Vec<Outstanding>, Failure> {
    let pending = store.pending(clock())?.slots;
    let outstanding = pending.iter().filter_map(|pending| {
        let Slot::Certificate(name) = pending.slot else {
            return None;
        };
        let key = PrivateKey::from_pem(&pending.key_pem).ok()?;
        let key = key.public_key().clone();
        Some(Outstanding { name, key })
    });
    Ok(outstanding.collect())
}

fn is_due(survey: &Survey, name: CertName) -> bool {
    survey.to_issue().any(|cert| cert.spec.name() == name)
}

/// Returns the certificates in place that are not to be issued.
fn installed(survey: &Survey) -> Vec<Outstanding> {
    let kept = survey.certs.iter();
    let kept = kept.filter(|cert| !is_due(survey, cert.spec.name()));
    let installed = kept.filter_map(|cert| {
        let chain = cert.found.chain.present()?;
        Some(Outstanding {
            name: cert.spec.name(),
            key: chain.leaf().public_key().clone(),
        })
    });
    installed.collect()
}

/// Returns the remarks as notes, a limited number of them.
fn listed(remarks: &[Remark]) -> Vec<String> {
    let listed = remarks.iter().take(MAX_REMARKS);
    let mut notes: Vec<String> = listed.map(ToString::to_string).collect();
    if remarks.len() > MAX_REMARKS {
        notes.push(format!(
            "… and {} more files are not used; at most {MAX_REMARKS} are listed",
            remarks.len() - MAX_REMARKS
        ));
    }
    notes
}

fn answer_from_files(setup: &mut RunSetup, offline: Offline) {
    let signer: Rc<dyn Signer> = Rc::new(offline);
    setup.signers = Authority::ALL
        .into_iter()
        .map(|authority| (authority, (OFFLINE_SIGNER.to_owned(), Rc::clone(&signer))))
        .collect();
}

/// A signer whose answers are imported files.
struct Offline {
    answers: Vec<(PublicKey, Vec<u8>)>,
    authorities: BTreeMap<Authority, Vec<u8>>,
    caps: Caps,
}

impl Default for Offline {
    fn default() -> Self {
        let caps = Caps {
            pends: true,
            lookup: RequestLookup::ByName,
            resubmit: Resubmit::Adopts,
            ..Caps::everything()
        };
        Offline {
            answers: Vec::new(),
            authorities: BTreeMap::new(),
            caps,
        }
    }
}

impl Offline {
    fn find(&self, request: &Request) -> Result<Answer, SignerError> {
        if let Some((_, answer)) = self
            .answers
            .iter()
            .find(|(key, _)| key == request.csr.public_key())
        {
            return Ok(Answer::Issued(answer.clone()));
        }
        let ticket = Ticket::try_from(OFFLINE_SIGNER.to_owned())
            .map_err(|error| SignerError::permanent(error.to_string(), "report this as a bug"))?;
        let note = "no certificate for its key was imported; have its CSR signed and import again"
            .to_owned();
        Ok(Answer::Pending {
            ticket,
            after: None,
            note,
            is_uniform: true,
        })
    }
}

#[async_trait(?Send)]
impl Signer for Offline {
    fn kind(&self) -> SignerKind {
        // The most similar kind: CSRs and certificates are exchanged as files.
        SignerKind::Directory
    }

    fn label(&self) -> String {
        OFFLINE_SIGNER.to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn preflight(&self, _wanted: &RequestedCertificate) -> Result<(), Rejection> {
        Ok(())
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(self.authorities.get(&authority).cloned())
    }

    async fn recover(
        &self,
        request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        self.find(request).map(Some)
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        self.find(request)
    }

    async fn poll(&self, request: &Request, _ticket: &Ticket) -> Result<Answer, SignerError> {
        self.find(request)
    }
}
