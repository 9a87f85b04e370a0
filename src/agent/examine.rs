//! Examines the signers of a node: login, CA, and what each may sign. Requests no certificate and stores nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::retries::Retries;
use super::run::{RequestRun, belongs, same_authority};
use super::{ExitCode, Failure, RunSetup, Survey, signer_code};
use crate::kube::names::Authority;
use crate::signer::{Rejection, Signer, SignerError, SignerKind};
use crate::x509::TrustBundle;

/// An authority of certificates of this node for which the settings name no signer.
pub struct WithoutSigner {
    /// The authority.
    pub authority: Authority,
    /// Whether a certificate is to be issued under it now.
    pub is_due: bool,
    /// What a run says about it.
    pub failure: Failure,
}

impl WithoutSigner {
    /// Returns what follows for a node that needs no certificate now.
    pub fn consequence(&self) -> String {
        format!(
            "authority {} has no signer: its certificates are complete, and nothing renews them (before they expire, have the requests signed elsewhere: nodepki csr export DIR)",
            self.authority
        )
    }
}

/// State of all signers of a node.
pub struct Examination {
    /// Each signer that the certificates of this node need.
    pub signers: Vec<SignerExamination>,
    /// Authorities without a signer.
    pub without_signer: Vec<WithoutSigner>,
}

/// State of one signer.
pub struct SignerExamination {
    /// Name in the configuration.
    pub name: String,
    /// Kind and location.
    pub label: String,
    /// Result of the login.
    pub login: ExaminationVerdict,
    /// The authorities that it signs for.
    pub authorities: Vec<AuthorityExamination>,
}

/// What a signer has and may sign for one authority.
pub struct AuthorityExamination {
    /// The authority.
    pub authority: Authority,
    /// Comparison of its CA with the files of the node and the pins.
    pub ca: ExaminationVerdict,
    /// The CA certificates that the signer reports. Not verified.
    pub offered: Option<TrustBundle>,
    /// Result for the certificates; several if they are rejected for different reasons.
    pub certificates: Vec<ExaminationVerdict>,
}

/// Result of one examination.
pub enum ExaminationVerdict {
    /// Nothing stands against a request; what was found.
    Passed(String),
    /// Not examined, and why.
    Open(String),
    /// A request would fail.
    Failed {
        /// Exit status that a run would end with.
        code: ExitCode,
        /// Description of the fault.
        problem: String,
        /// What to do, if `problem` does not state it.
        fix: Option<String>,
    },
}

impl ExaminationVerdict {
    fn failed(failure: Failure) -> ExaminationVerdict {
        ExaminationVerdict::Failed {
            code: failure.code,
            problem: failure.texts().join("; "),
            fix: None,
        }
    }

    fn refused_by(error: &SignerError) -> ExaminationVerdict {
        let mut problem = error.detail.clone();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let text = cause.to_string();
            if !problem.contains(&text) {
                problem.push_str(&format!(": {text}"));
            }
            source = cause.source();
        }
        ExaminationVerdict::Failed {
            code: signer_code(error),
            problem,
            fix: Some(error.advice.clone()),
        }
    }
}

/// Why a signer's CA is unknown.
pub(super) enum OfferError {
    /// The signer cannot report it, and may still sign.
    NotReported(SignerError),
    /// The signer did not answer, or its answer shows that it cannot sign.
    Unanswered(SignerError),
    /// The answer is not a CA certificate.
    Unusable(Failure),
}

/// Returns the CA that a signer publishes; `None` for one that does not publish it.
pub(super) async fn offered(
    retries: &Retries<'_>,
    name: &str,
    signer: &dyn Signer,
    authority: Authority,
) -> Result<Option<TrustBundle>, OfferError> {
    match retries.ca(name, signer, authority).await {
        Ok(Some(published)) => published.bundle().map(Some).map_err(OfferError::Unusable),
        Ok(None) => Ok(None),
        Err(error) if error.may_still_sign() => Err(OfferError::NotReported(error)),
        Err(error) => Err(OfferError::Unanswered(error)),
    }
}

/// Examines every signer that the certificates of this node need, and compares each with the CAs in the survey.
pub async fn examine_signers(setup: &RunSetup, survey: &Survey) -> Examination {
    let mut without_signer = Vec::new();
    let mut needed: BTreeMap<&str, (Rc<dyn Signer>, Vec<Authority>)> = BTreeMap::new();
    for authority in Authority::ALL {
        if !setup
            .plan
            .certs
            .iter()
            .any(|spec| spec.authority() == authority)
        {
            continue;
        }
        match setup.signer(authority) {
            Ok((name, signer)) => {
                let entry = needed.entry(name);
                let (_, authorities) = entry.or_insert_with(|| (Rc::clone(signer), Vec::new()));
                authorities.push(authority);
            }
            Err(failure) => {
                let mut due = survey.to_issue();
                without_signer.push(WithoutSigner {
                    authority,
                    is_due: due.any(|cert| cert.spec.authority() == authority),
                    failure,
                });
            }
        }
    }
    let mut signers = Vec::new();
    for (name, (signer, authorities)) in needed {
        signers.push(examine(setup, survey, name, signer.as_ref(), authorities).await);
    }
    Examination {
        signers,
        without_signer,
    }
}

/// Returns each local signer that has another CA than this node, for certificates to be issued and CA certificates to be
/// fetched. Reads files of this machine only.
pub(super) async fn foreign_local_signers(setup: &RunSetup, survey: &Survey) -> Vec<Failure> {
    let retries = Retries::logged(setup);
    let due = survey.to_issue().map(|cert| cert.spec.authority());
    let absent = survey
        .bundles
        .iter()
        .filter(|bundle| bundle.found.present().is_none());
    let due = due.chain(absent.map(|bundle| bundle.spec.authority));
    let mut found = Vec::new();
    for authority in due.collect::<BTreeSet<_>>() {
        let Ok((name, signer)) = setup.signer(authority) else {
            continue;
        };
        if signer.kind() != SignerKind::Local {
            continue;
        }
        // The report names a key that cannot be used.
        if let Ok(Some(offered)) = offered(&retries, name, signer.as_ref(), authority).await {
            let compared = match survey.trust(authority) {
                Some(trusted) => same_authority(authority, signer.as_ref(), trusted, &offered),
                None => belongs(setup, survey, authority, &offered),
            };
            found.extend(compared.err());
        }
    }
    found
}

async fn examine(
    setup: &RunSetup,
    survey: &Survey,
    name: &str,
    signer: &dyn Signer,
    authorities: Vec<Authority>,
) -> SignerExamination {
    let retries = Retries::logged(setup);
    let login = match signer.probe_uses_up() {
        Some(why) => match signer.inspect_credential().await {
            Ok(()) => ExaminationVerdict::Open(format!("no login was tried: {why}")),
            Err(error) => ExaminationVerdict::refused_by(&error),
        },
        None => match retries.probe(name, signer).await {
            Ok(()) => ExaminationVerdict::Passed(format!(
                "{} answers and refuses nothing",
                signer.label()
            )),
            Err(error) => ExaminationVerdict::refused_by(&error),
        },
    };
    let mut examined = Vec::new();
    for authority in authorities {
        examined.push(match &login {
            ExaminationVerdict::Failed { .. } => AuthorityExamination {
                authority,
                ca: ExaminationVerdict::Open(format!("signer {name} must work first")),
                offered: None,
                certificates: vec![ExaminationVerdict::Open(format!(
                    "signer {name} must work first"
                ))],
            },
            login => {
                let is_known = matches!(login, ExaminationVerdict::Passed(_));
                let offered = offered(&retries, name, signer, authority).await;
                let (ca, offered) = judge_ca(setup, survey, signer, authority, offered);
                AuthorityExamination {
                    authority,
                    ca,
                    offered,
                    certificates: examine_certificates(setup, signer, authority, is_known),
                }
            }
        });
    }
    if let Err(error) = signer.leave().await {
        tracing::info!(signer = name, "{error}");
    }
    SignerExamination {
        name: name.to_owned(),
        label: signer.label(),
        login,
        authorities: examined,
    }
}

/// Compares the CA of a signer with that of the node, or with the pins.
fn judge_ca(
    setup: &RunSetup,
    survey: &Survey,
    signer: &dyn Signer,
    authority: Authority,
    offered: Result<Option<TrustBundle>, OfferError>,
) -> (ExaminationVerdict, Option<TrustBundle>) {
    let trusted = survey.trust(authority);
    let offered = match offered {
        Ok(offered) => offered,
        Err(OfferError::NotReported(error)) if trusted.is_some() => {
            let why = format!("{error}; each certificate is verified under the CA of this node");
            return (ExaminationVerdict::Open(why), None);
        }
        Err(OfferError::Unanswered(error) | OfferError::NotReported(error)) => {
            return (ExaminationVerdict::refused_by(&error), None);
        }
        Err(OfferError::Unusable(failure)) => return (ExaminationVerdict::failed(failure), None),
    };
    let label = signer.label();
    let verdict = match (trusted, &offered) {
        (Some(trusted), Some(offered)) => {
            match same_authority(authority, signer, trusted, offered) {
                Ok(()) => ExaminationVerdict::Passed(format!("{label} has the CA of this node")),
                Err(failure) => ExaminationVerdict::failed(failure),
            }
        }
        (Some(_), None) => ExaminationVerdict::Open(format!(
            "{label} does not report its CA; each certificate is verified under the CA of this node"
        )),
        (None, Some(offered)) => {
            let admitted = RequestRun::admit(setup, authority, signer, offered.clone());
            let known = admitted.and_then(|offered| {
                belongs(setup, survey, authority, &offered)?;
                Ok(offered)
            });
            match known {
                Ok(offered) => ExaminationVerdict::Passed(format!(
                    "the CA is not on this node yet; {label} offers {offered}, which is accepted"
                )),
                Err(failure) => ExaminationVerdict::failed(failure),
            }
        }
        (None, None) => ExaminationVerdict::failed(super::run::no_authority(setup, authority)),
    };
    (verdict, offered)
}

/// Asks for each certificate whether the signer, as configured, can issue it.
fn examine_certificates(
    setup: &RunSetup,
    signer: &dyn Signer,
    authority: Authority,
    is_known: bool,
) -> Vec<ExaminationVerdict> {
    let specs = setup.plan.certs.iter();
    let specs: Vec<_> = specs.filter(|spec| spec.authority() == authority).collect();
    let rejections = specs
        .iter()
        .filter_map(|spec| signer.preflight(&spec.requested).err());
    let rejected = by_reason(rejections.collect());
    if !rejected.is_empty() {
        let failed = |(names, rejection): (Vec<&str>, Rejection)| {
            let of_group = specs
                .iter()
                .filter(|spec| names.contains(&spec.name().as_str()));
            let omissions =
                of_group.filter_map(|spec| Some(super::report::omission(spec)?.to_string()));
            let fix: Vec<String> = std::iter::once(rejection.advice).chain(omissions).collect();
            ExaminationVerdict::Failed {
                code: ExitCode::Configuration,
                problem: format!(
                    "{} cannot sign {}: {}",
                    rejection.signer,
                    names.join(", "),
                    rejection.reason
                ),
                fix: Some(fix.join("; ")),
            }
        };
        return rejected.into_iter().map(failed).collect();
    }
    let count = match specs.len() {
        1 => "1 certificate".to_owned(),
        count => format!("{count} certificates"),
    };
    vec![if is_known {
        ExaminationVerdict::Passed(format!("{count}: no obstacle found"))
    } else {
        ExaminationVerdict::Open(format!(
            "{count}: what the signer allows is known only after a login"
        ))
    }]
}

/// Groups rejections with the same signer, reason and advice.
pub(super) fn by_reason(rejections: Vec<Rejection>) -> Vec<(Vec<&'static str>, Rejection)> {
    let mut grouped: Vec<(Vec<&'static str>, Rejection)> = Vec::new();
    for rejection in rejections {
        let same = grouped.iter_mut().find(|(_, known)| {
            (&known.signer, &known.reason, &known.advice)
                == (&rejection.signer, &rejection.reason, &rejection.advice)
        });
        match same {
            Some((names, _)) => names.push(rejection.name.as_str()),
            None => grouped.push((vec![rejection.name.as_str()], rejection)),
        }
    }
    grouped
}
