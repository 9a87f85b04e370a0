//! Revocation: fetches the lists that signers publish, verifies them, and installs them as the files that etcd reads. A
//! revoked certificate is not installed, and one in place is replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::try_join_all;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::request::{AnswerFault, IssuanceOutcome, Unsigned};
use super::retries::Retries;
use super::{
    Clock, ExitCode, Failure, Outcomes, Progress, ReportRow, RowAction, RowReason, RunReport,
    RunSetup, SignerOperation, Survey, open_store, sentence, signer_code,
};
use crate::kube::names::{Authority, CertName};
use crate::signer::{Carry, FailureClass, Signer, SignerError};
use crate::spec::{BundleSpec, crl_name};
use crate::store::{Commit, Mode, NodeRoot, READ_LIMIT, Slot, Store};
use crate::text::rfc3339;
use crate::x509::{AuthorityCrls, Chain, CrlError, ListScope, RevocationList, TrustBundle};

/// Fetches the revocation list of every authority whose signer publishes one, and writes the lists that have changed.
///
/// # Errors
/// A failure of the whole run. Failures of single lists are in the report.
pub async fn update_revocations(
    root: &NodeRoot,
    setup: &RunSetup,
    clock: Clock,
    progress: &dyn Progress,
) -> Result<RunReport, Failure> {
    let mut notes = Vec::new();
    // Otherwise the lists of an interrupted run could count as installed while one of their two forms is missing.
    if root.has_unfinished()? {
        notes = open_store(root, setup, "crl", clock)?.1;
    }
    let now = clock();
    let survey = setup.survey(root, now)?;
    notes.extend(survey.notes.iter().cloned());
    let fetch = CrlFetch {
        setup,
        retries: Retries {
            deadline: Instant::now() + setup.wait,
            jitter: setup.jitter,
            progress,
        },
    };
    let mut fetched = Vec::new();
    for bundle in &setup.plan.bundles {
        fetched.extend(fetch.list_of(bundle, &survey).await);
    }
    let judged = fetched.iter().map(|one| one.judge(setup, &survey, now));
    let mut judged: Vec<JudgedList> = judged.collect();
    let mut written = Vec::new();
    if judged.iter().any(|one| one.staged.is_some()) {
        let (mut store, more) = open_store(root, setup, "crl", clock)?;
        notes.extend(more);
        // While the signers answered, another run may have installed a newer list or another CA.
        let now = clock();
        let survey = setup.survey(root, now)?;
        let mut commit = Commit::new();
        for (one, judged) in fetched.iter().zip(&mut judged) {
            if judged.staged.is_some() {
                *judged = one.judge_again(setup, &survey, now);
            }
            if let Some(lists) = &judged.staged {
                let (pem, der) = (lists.to_pem().into_bytes(), lists.first_der().to_vec());
                let path = &one.bundle.crl_path;
                commit.file(path.clone(), pem, Mode::Public);
                commit.file(path.with_extension("der"), der, Mode::Public);
            }
        }
        let committed = store.commit(commit)?;
        notes.extend(committed.notes.iter().map(ToString::to_string));
        written = committed.written;
    }
    let mut report = RunReport {
        notes,
        written,
        ..RunReport::default()
    };
    for one in judged {
        report.rows.push(one.row);
        report.notes.extend(one.notes);
    }
    Ok(report)
}

/// Fetches the lists of all authorities.
struct CrlFetch<'a> {
    setup: &'a RunSetup,
    retries: Retries<'a>,
}

impl<'a> CrlFetch<'a> {
    /// Fetches the list of one authority. Returns `None` if its signer does not publish one.
    async fn list_of(&self, bundle: &'a BundleSpec, survey: &Survey) -> Option<FetchedList<'a>> {
        let (name, signer) = self.setup.signers.get(&bundle.authority)?;
        let signer = signer.as_ref();
        let published = match trust(self.setup, survey, bundle) {
            Ok(_) => match fetch(name, signer, bundle.authority, &self.retries).await {
                Ok(published) => Ok(published?),
                Err(error) => Err(Box::new(row(
                    bundle,
                    RowAction::Failed,
                    sentence(&error),
                    Some(signer_code(&error)),
                ))),
            },
            Err(row) => Err(row),
        };
        Some(FetchedList {
            bundle,
            signer,
            published,
        })
    }
}

/// What the signer of an authority publishes.
struct FetchedList<'a> {
    bundle: &'a BundleSpec,
    signer: &'a dyn Signer,
    /// The list, or the row that says why there is none.
    published: Result<Vec<u8>, Box<ReportRow>>,
}

/// A fetched list, compared with the files of the node.
struct JudgedList {
    row: ReportRow,
    /// The lists to be written; `None` if the files stay as they are.
    staged: Option<AuthorityCrls>,
    notes: Vec<String>,
}

impl From<ReportRow> for JudgedList {
    fn from(row: ReportRow) -> Self {
        JudgedList {
            row,
            staged: None,
            notes: Vec::new(),
        }
    }
}

impl FetchedList<'_> {
    fn judge(&self, setup: &RunSetup, survey: &Survey, now: OffsetDateTime) -> JudgedList {
        match self.verified(setup, survey, now) {
            Ok(Ok(lists)) => self.compare(survey, lists),
            Ok(Err(error)) => self.refused(&error).into(),
            Err(row) => (*row).into(),
        }
    }

    /// As [`FetchedList::judge`], for a list that was to be written. A newer one in place is that of another run.
    fn judge_again(&self, setup: &RunSetup, survey: &Survey, now: OffsetDateTime) -> JudgedList {
        match (
            self.verified(setup, survey, now),
            survey.revocations(self.bundle.authority),
        ) {
            (Ok(Err(CrlError::Older { .. })), Some(newer)) => self.compare(survey, newer.clone()),
            _ => self.judge(setup, survey, now),
        }
    }

    /// Returns the lists if they may be installed.
    ///
    /// # Errors
    /// The row that says why there is no list, or no bundle that verifies it.
    fn verified(
        &self,
        setup: &RunSetup,
        survey: &Survey,
        now: OffsetDateTime,
    ) -> Result<Result<AuthorityCrls, CrlError>, Box<ReportRow>> {
        let published = self.published.as_ref().map_err(Clone::clone)?;
        let trust = trust(setup, survey, self.bundle)?;
        let authority = self.bundle.authority;
        let chains = chains(survey, authority);
        let in_place = survey.revocations(authority);
        let lists = parse_and_verify(published, trust, &chains, in_place, now);
        Ok(lists.and_then(|lists| {
            let scope = self.signer.crl_scope();
            // During a CA change, a signer publishes lists for certificates under one of both CAs only.
            let gap = if covers_any(&lists, scope, &chains) {
                None
            } else {
                chains.iter().find_map(|chain| lists.gap_in(scope, chain))
            };
            gap.or_else(|| unreadable(&lists)).map_or(Ok(lists), Err)
        }))
    }

    fn refused(&self, error: &CrlError) -> ReportRow {
        row(
            self.bundle,
            RowAction::Refused,
            format!(
                "{error}; the list in place is kept: check the list that {} publishes",
                self.signer.label()
            ),
            Some(ExitCode::Refused),
        )
    }

    /// Compares verified lists with those in place.
    fn compare(&self, survey: &Survey, lists: AuthorityCrls) -> JudgedList {
        let authority = self.bundle.authority;
        let is_in_place = survey.revocations(authority) == Some(&lists);
        let action = if is_in_place {
            RowAction::Kept
        } else {
            RowAction::Written
        };
        JudgedList {
            row: ReportRow {
                not_after: lists.next_update(),
                ..row(self.bundle, action, words(&lists), None)
            },
            notes: revoked_in_place(survey, authority, &lists),
            staged: (!is_in_place).then_some(lists),
        }
    }
}

/// Returns the bundle that verifies the list, or the row that says why there is none.
fn trust<'a>(
    setup: &RunSetup,
    survey: &'a Survey,
    bundle: &BundleSpec,
) -> Result<&'a TrustBundle, Box<ReportRow>> {
    let authority = bundle.authority;
    let Some(trust) = survey.trust(authority) else {
        return Err(Box::new(row(
            bundle,
            RowAction::Failed,
            "its CA certificate is not on this node yet; run nodepki bootstrap".to_owned(),
            Some(ExitCode::Pending),
        )));
    };
    // The owner of a different bundle could also sign revocation lists under it.
    let pins = setup.trust_source(authority).pins;
    trust.require_pins(&pins).map_err(|error| {
        Box::new(row(
            bundle,
            RowAction::Refused,
            format!(
                "{} does not match the pin: {error}; install the pinned CA certificate, or correct authorities.{authority}.trust.sha256",
                bundle.path
            ),
            Some(ExitCode::Refused),
        ))
    })?;
    Ok(trust)
}

/// Replaces the outcomes of revoked certificates, so a run does not install them.
pub(super) async fn refuse_revoked(
    setup: &RunSetup,
    store: &Store,
    survey: &Survey,
    trust: &BTreeMap<Authority, TrustBundle>,
    outcomes: &mut Outcomes,
    retries: &Retries<'_>,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    let authorities: BTreeSet<Authority> = outcomes
        .certs
        .iter()
        .filter(|(_, outcome)| outcome.is_ok())
        .map(|(name, _)| name.authority())
        .collect();
    let trusted = authorities
        .into_iter()
        .filter_map(|authority| Some((authority, trust.get(&authority)?)));
    let fetched = trusted.map(|(authority, trust)| async move {
        let (name, signer) = setup.signer(authority)?;
        let published = fetch(name, signer.as_ref(), authority, retries).await;
        Ok::<_, Failure>((authority, trust, signer, published))
    });
    for (authority, trust, signer, published) in try_join_all(fetched).await? {
        let signed = outcomes.certs.iter().filter_map(|(name, outcome)| {
            let signed = outcome.as_ref().ok()?;
            (name.authority() == authority).then_some((*name, &signed.chain))
        });
        let signed: Vec<(CertName, &Chain)> = signed.collect();
        let in_place = survey.revocations(authority);
        let published = published.and_then(|bytes| {
            let chains: Vec<&Chain> = signed.iter().map(|(_, chain)| *chain).collect();
            current(signer.as_ref(), bytes, trust, &chains, in_place, now)
        });
        let mut replaced: Vec<(CertName, IssuanceOutcome)> = Vec::new();
        match published {
            Ok(published) => {
                for (name, chain) in signed {
                    let mut lists = published.iter().chain(in_place);
                    let Some((what, since)) = lists.find_map(|lists| lists.revokes(chain)) else {
                        continue;
                    };
                    let fault = AnswerFault::RevokedBySigner {
                        certificate: what,
                        since,
                        signer: signer.label(),
                    };
                    // A new key leads to a new request, so the same certificate cannot be returned.
                    store.set_slot_aside(Slot::Certificate(name), &fault.to_string(), now)?;
                    replaced.push((name, Err(Unsigned::Refused(vec![fault]).into())));
                }
            }
            // The answers are kept: the next run fetches only the list again.
            Err(error) => {
                let error = Rc::new(error);
                let failed = |(name, _)| (name, Err(Unsigned::Failed(Rc::clone(&error)).into()));
                replaced.extend(signed.into_iter().map(failed));
            }
        }
        outcomes.certs.extend(replaced);
    }
    Ok(())
}

/// Returns the lists that a signer publishes, if they may be installed; `None` if it publishes none and the last ones
/// are still current.
fn current(
    signer: &dyn Signer,
    published: Option<Vec<u8>>,
    trust: &TrustBundle,
    chains: &[&Chain],
    in_place: Option<&AuthorityCrls>,
    now: OffsetDateTime,
) -> Result<Option<AuthorityCrls>, SignerError> {
    let Some(bytes) = published else {
        // If the signer has stopped publishing, the last list still becomes stale.
        return match in_place.and_then(|kept| kept.reason_not_to_install(None, now)) {
            Some(obstacle) => {
                let what = format!("{} no longer publishes a revocation list", signer.label());
                Err(refusal(what, obstacle))
            }
            None => Ok(None),
        };
    };
    let lists = parse_and_verify(&bytes, trust, chains, in_place, now);
    let lists = lists.and_then(|lists| {
        let scope = signer.crl_scope();
        let gap = chains.iter().find_map(|chain| lists.gap_in(scope, chain));
        gap.map_or(Ok(lists), Err)
    });
    lists.map(Some).map_err(|error| {
        let what = format!("the revocation list from {} is refused", signer.label());
        refusal(what, error)
    })
}

async fn fetch(
    name: &str,
    signer: &dyn Signer,
    authority: Authority,
    retries: &Retries<'_>,
) -> Result<Option<Vec<u8>>, SignerError> {
    if signer.caps().crl == Carry::No {
        return Ok(None);
    }
    let ask = || signer.crl(authority);
    retries.call(name, SignerOperation::Crl, ask).await
}

/// Parses published lists and verifies that they may be installed, for `crl` and before an installation.
fn parse_and_verify(
    bytes: &[u8],
    trust: &TrustBundle,
    chains: &[&Chain],
    in_place: Option<&AuthorityCrls>,
    now: OffsetDateTime,
) -> Result<AuthorityCrls, CrlError> {
    let lists = AuthorityCrls::verified(RevocationList::read_all(bytes)?, trust, chains)?;
    match lists.reason_not_to_install(in_place, now) {
        Some(obstacle) => Err(obstacle),
        None => Ok(lists),
    }
}

/// Returns the error for an unusable list. A stale or future list is temporary, since the signer may publish a current one
/// without a change of settings.
fn refusal(what: String, error: CrlError) -> SignerError {
    let class = match error {
        CrlError::Stale { .. } | CrlError::Future { .. } => FailureClass::Transient,
        _ => FailureClass::Permanent,
    };
    let advice = "the answers are kept, and the next run requests the list again; check with the administrator of the signer which list it publishes";
    SignerError::new(class, what, advice).caused_by(error)
}

fn covers_any(lists: &AuthorityCrls, scope: ListScope, chains: &[&Chain]) -> bool {
    let is_covered = |chain: &&Chain| lists.gap_in(scope, chain).is_none();
    chains.is_empty() || chains.iter().any(is_covered)
}

/// Returns the error for lists that exceed the read limit as PEM, so no later run could read them.
fn unreadable(lists: &AuthorityCrls) -> Option<CrlError> {
    let bytes = lists.to_pem().len();
    (bytes as u64 > READ_LIMIT).then_some(CrlError::TooLarge {
        bytes,
        limit: READ_LIMIT,
    })
}

fn chains(survey: &Survey, authority: Authority) -> Vec<&Chain> {
    survey
        .certs
        .iter()
        .filter(|cert| cert.spec.authority() == authority)
        .filter_map(|cert| cert.found.chain.present())
        .collect()
}

fn revoked_in_place(survey: &Survey, authority: Authority, lists: &AuthorityCrls) -> Vec<String> {
    survey
        .certs
        .iter()
        .filter(|cert| cert.spec.authority() == authority)
        .filter_map(|cert| {
            let (what, since) = lists.revokes(cert.found.chain.present()?)?;
            Some(format!(
                "{}: {what} is revoked since {}; run nodepki bootstrap, which replaces it",
                cert.spec.name(),
                rfc3339(since)
            ))
        })
        .collect()
}

fn words(lists: &AuthorityCrls) -> String {
    let words: Vec<String> = lists
        .lists()
        .iter()
        .map(|list| {
            format!(
                "{}: {} revoked, of {}",
                list.issuer(),
                list.len(),
                rfc3339(list.this_update())
            )
        })
        .collect();
    words.join("; ")
}

fn row(
    bundle: &BundleSpec,
    action: RowAction,
    reason: String,
    code: Option<ExitCode>,
) -> ReportRow {
    ReportRow {
        name: crl_name(bundle.authority),
        authority: Some(bundle.authority.to_string()),
        action,
        reasons: vec![RowReason::RevocationList(reason)],
        paths: vec![
            bundle.crl_path.clone(),
            bundle.crl_path.with_extension("der"),
        ],
        code,
        ..ReportRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_crl_over_pem_size_limit() {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap();
        let at = OffsetDateTime::UNIX_EPOCH;
        let list = |entries: u64| {
            let revoked = |serial| rcgen::RevokedCertParams {
                serial_number: rcgen::SerialNumber::from(u64::MAX - serial),
                revocation_time: at,
                reason_code: None,
                invalidity_date: None,
            };
            let list = rcgen::CertificateRevocationListParams {
                this_update: at,
                next_update: at + time::Duration::DAY,
                crl_number: 1.into(),
                issuing_distribution_point: None,
                revoked_certs: (0..entries).map(revoked).collect(),
                key_identifier_method: rcgen::KeyIdMethod::Sha256,
            };
            let list = list.signed_by(&authority).unwrap();
            let lists = RevocationList::read_all(list.der()).unwrap();
            let trust = TrustBundle::from_response(authority.der()).unwrap();
            AuthorityCrls::verified(lists, &trust, &[]).unwrap()
        };
        assert!(unreadable(&list(3)).is_none());
        // Below the limit as DER, above it as PEM.
        let large = list(33_000);
        assert!((large.first_der().len() as u64) < READ_LIMIT);
        let why = unreadable(&large).unwrap().to_string();
        assert!(why.contains("exceeds the limit of 1048576"), "{why}");
    }
}
