//! Revocation: fetches the lists that signers publish, verifies them, and installs them as the files that etcd reads. A
//! revoked certificate is not installed, and one in place is replaced.

use std::collections::BTreeMap;
use std::rc::Rc;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::request::{Enquiry, RequestOutcome};
use super::{
    Clock, ExitCode, Failure, Outcomes, Progress, ReportRow, RowAction, RunReport, RunSetup,
    SignerOperation, Survey, open_store, sentence, signer_code,
};
use crate::kube::names::Authority;
use crate::signer::{Carry, FailureClass, Signer, SignerError};
use crate::spec::{BundleSpec, crl_name};
use crate::store::{Commit, Mode, NodeRoot, READ_LIMIT, Store};
use crate::x509::{AuthorityCrls, Chain, CrlError, RevocationList, TrustBundle, rfc3339};

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
    let now = clock();
    let survey = setup.survey(root, now)?;
    let enquiry = Enquiry {
        deadline: Instant::now() + setup.wait,
        progress,
    };
    let mut report = RunReport {
        notes: survey.notes.clone(),
        ..RunReport::default()
    };
    let mut commit = Commit::new();
    let mut probed: BTreeMap<String, Result<(), Rc<SignerError>>> = BTreeMap::new();
    for bundle in &setup.plan.bundles {
        let authority = bundle.authority;
        let Some((name, signer)) = setup.signers.get(&authority) else {
            continue;
        };
        let Some(trust) = survey.trust(authority) else {
            report.rows.push(row(
                bundle,
                RowAction::Failed,
                "its CA certificate is not on this node yet; run nodepki bootstrap".to_owned(),
                Some(ExitCode::Pending),
            ));
            continue;
        };
        // The owner of a different bundle could also sign revocation lists under it.
        if let Err(error) = trust.require_pins(&setup.trust_source(authority).pins) {
            report.rows.push(row(
                bundle,
                RowAction::Refused,
                format!(
                    "{} does not match the pin: {error}; install the pinned CA certificate, or correct authorities.{authority}.trust.sha256",
                    bundle.path
                ),
                Some(ExitCode::Refused),
            ));
            continue;
        }
        let chains = chains(&survey, authority);
        let ready = match probed.get(name) {
            Some(before) => before.clone(),
            None => enquiry
                .ask(name, SignerOperation::Probe, || signer.probe())
                .await
                .map_err(Rc::new),
        };
        probed.insert(name.clone(), ready.clone());
        let fetched = match ready {
            Ok(()) => fetch(name, signer.as_ref(), authority, &enquiry)
                .await
                .map_err(Rc::new),
            Err(error) => Err(error),
        };
        let fetched = match fetched {
            Ok(Some(lists)) => lists,
            Ok(None) => continue,
            Err(error) => {
                let code = signer_code(&error);
                report.rows.push(row(
                    bundle,
                    RowAction::Failed,
                    sentence(error.as_ref()),
                    Some(code),
                ));
                continue;
            }
        };
        let in_place = survey.revocations(authority);
        report.rows.push(
            match parse_and_verify(&fetched, trust, &chains, in_place, now).and_then(|lists| {
                // During a CA change, a signer publishes lists for certificates under one of both CAs only.
                let gap = match covers_any(&lists, &chains) {
                    true => None,
                    false => chains.iter().find_map(|chain| lists.gap(chain)),
                };
                gap.or_else(|| unreadable(&lists)).map_or(Ok(lists), Err)
            }) {
                Ok(lists) => {
                    let same = in_place == Some(&lists);
                    if !same {
                        commit.file(
                            bundle.crl_path.clone(),
                            lists.to_pem().into_bytes(),
                            Mode::Public,
                        );
                        commit.file(
                            bundle.crl_path.with_extension("der"),
                            lists.first_der().to_vec(),
                            Mode::Public,
                        );
                    }
                    report
                        .notes
                        .extend(revoked_in_place(&survey, authority, &lists));
                    ReportRow {
                        not_after: lists.next_update(),
                        ..row(
                            bundle,
                            if same {
                                RowAction::Kept
                            } else {
                                RowAction::Written
                            },
                            words(&lists),
                            None,
                        )
                    }
                }
                Err(error) => row(
                    bundle,
                    RowAction::Refused,
                    format!(
                        "{error}; the list in place is kept: check the list that {} publishes",
                        signer.label()
                    ),
                    Some(ExitCode::Refused),
                ),
            },
        );
    }
    if !commit.is_empty() {
        let (mut store, notes) = open_store(root, setup, "crl", clock)?;
        report.notes.extend(notes);
        let committed = store.commit(commit)?;
        report
            .notes
            .extend(committed.notes.iter().map(ToString::to_string));
        report.written = committed.written;
    }
    Ok(report)
}

/// Replaces the outcomes of revoked certificates, so that a run does not install them.
pub(super) async fn refuse_revoked(
    setup: &RunSetup,
    store: &Store,
    survey: &Survey,
    trust: &BTreeMap<Authority, TrustBundle>,
    outcomes: &mut Outcomes,
    enquiry: &Enquiry<'_>,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    for authority in Authority::ALL {
        let signed: Vec<_> = outcomes
            .certs
            .iter()
            .filter(|(name, outcome)| {
                name.authority() == authority && matches!(outcome, RequestOutcome::Signed { .. })
            })
            .map(|(name, _)| *name)
            .collect();
        let (Some(trust), false) = (trust.get(&authority), signed.is_empty()) else {
            continue;
        };
        let (name, signer) = setup.signer(authority)?;
        let published = match fetch(name, signer.as_ref(), authority, enquiry).await {
            Ok(None) => None,
            Ok(Some(bytes)) => {
                let chains: Vec<&Chain> = signed
                    .iter()
                    .filter_map(|name| match outcomes.certs.get(name) {
                        Some(RequestOutcome::Signed { chain, .. }) => Some(chain),
                        _ => None,
                    })
                    .collect();
                let in_place = survey.revocations(authority);
                let lists = parse_and_verify(&bytes, trust, &chains, in_place, now);
                let lists = lists.and_then(|lists| {
                    let gap = chains.iter().find_map(|chain| lists.gap(chain));
                    gap.map_or(Ok(lists), Err)
                });
                Some(lists.map_err(|error| {
                    let what = format!("the revocation list from {} is refused", signer.label());
                    refusal(what, error)
                }))
            }
            Err(error) => Some(Err(error)),
        };
        // If the signer has stopped publishing, the last list still becomes stale.
        let kept = survey
            .revocations(authority)
            .filter(|_| published.is_none());
        let published = match kept.and_then(|kept| kept.reason_not_to_install(None, now)) {
            Some(obstacle) => {
                let what = format!("{} no longer publishes a revocation list", signer.label());
                Some(Err(refusal(what, obstacle)))
            }
            None => published,
        };
        let published = match published.transpose() {
            Ok(published) => published,
            // The answers are kept: the next run fetches only the list again.
            Err(error) => {
                let error = Rc::new(error);
                for name in signed {
                    let failed = RequestOutcome::Failed(Rc::clone(&error));
                    outcomes.certs.insert(name, failed);
                }
                continue;
            }
        };
        for name in signed {
            let Some(RequestOutcome::Signed { chain, .. }) = outcomes.certs.get(&name) else {
                continue;
            };
            let lists = published.iter().chain(survey.revocations(authority));
            let Some((what, since)) = lists.into_iter().find_map(|lists| lists.revokes(chain))
            else {
                continue;
            };
            let why = format!(
                "{what} is revoked since {} by the list that {} publishes: ask the administrator of the signer for the reason; if the signer returns the same certificate again, it must be removed there",
                rfc3339(since),
                signer.label()
            );
            // A new key leads to a new request, so that the same certificate cannot be returned.
            store.set_slot_aside(crate::store::Slot::Certificate(name), &why, now)?;
            outcomes
                .certs
                .insert(name, RequestOutcome::Refused(vec![why]));
        }
    }
    Ok(())
}

async fn fetch(
    name: &str,
    signer: &dyn Signer,
    authority: Authority,
    enquiry: &Enquiry<'_>,
) -> Result<Option<Vec<u8>>, SignerError> {
    if signer.caps().crl == Carry::No {
        return Ok(None);
    }
    let ask = || signer.crl(authority);
    enquiry.ask(name, SignerOperation::Crl, ask).await
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

fn covers_any(lists: &AuthorityCrls, chains: &[&Chain]) -> bool {
    chains.is_empty() || chains.iter().any(|chain| lists.gap(chain).is_none())
}

/// Returns the error for lists that exceed the read limit as PEM, so that no later run could read them.
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
        reasons: vec![reason],
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
