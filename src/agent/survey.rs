//! Compares the files of the node with the plan. Reads only, takes no lock, needs no state directory.

mod bundle;
mod cert;
mod external_etcd;
mod keys;
mod refusal;
mod replaced;
mod rotation;
mod service_account;

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::{ExitCode, Failure, Provided};
use crate::kube::names::{Authority, CertName};
use crate::node::NodeState;
use crate::process::machine;
use crate::spec::assess::{Action, CertCase, CertReason, CertRefusal, DecisionMode, decide};
use crate::spec::compliance::KeyUse;
use crate::spec::policy::KeyPolicy;
use crate::spec::{BundleSpec, NodeSpec, PolicyDoubts};
use crate::store;
use crate::x509::{AuthorityCrls, Chain, RevocationList, TrustBundle};

pub use bundle::{SurveyedBundle, TrustFile, TrustSource};
pub use cert::SurveyedCert;
pub use refusal::SurveyRefusal;
pub(super) use rotation::Rotating;
pub use service_account::{ServiceAccountAction, ServiceAccountFault};

/// The plan, and the state of the node compared with it.
pub struct Survey {
    /// The certificates, in the plan's order.
    pub certs: Vec<SurveyedCert>,
    /// The trust bundles, in the plan's order.
    pub bundles: Vec<SurveyedBundle>,
    /// The service-account pair.
    pub service_account: Option<ServiceAccountAction>,
    /// The key of the service-account pair.
    service_account_key: Option<KeyUse>,
    /// The keys that nodepki does not manage and to which the key policy applies.
    unmanaged_keys: Vec<KeyUse>,
    policy: KeyPolicy,
    policy_doubts: PolicyDoubts,
    /// Whether this node signs the certificates of kubelets.
    signs_for_kubelets: bool,
    /// Why the service-account pair is unusable and is not changed; also part of `refusals`.
    pub(super) service_account_refused: Option<ServiceAccountFault>,
    /// Indices of the files provided by the cluster that are missing on the node.
    pub missing_files: Vec<usize>,
    /// Whether the node has an API server, which a change of a CA needs.
    pub has_cluster: bool,
    /// Faults of the files of an external etcd; also part of `notes`.
    pub external_etcd: Vec<String>,
    /// Warnings that do not stop the run.
    pub notes: Vec<String>,
    /// Faults that stop the run before any request is sent.
    pub refusals: Vec<SurveyRefusal>,
    /// The rules for the renewal of valid certificates; `None` for a bootstrap.
    pub(super) rotating: Option<Rotating>,
}

/// Judges the state of the node against the plan.
///
/// # Errors
/// A file that the store cannot read: a directory in its place, a file too large, an I/O error.
pub fn survey(
    state: &NodeState,
    plan: &NodeSpec,
    trust: impl Fn(Authority) -> TrustSource,
    provided: &Provided,
    now: OffsetDateTime,
) -> Result<Survey, store::StoreError> {
    let mut survey = Survey {
        certs: Vec::new(),
        bundles: Vec::new(),
        service_account: None,
        service_account_key: None,
        unmanaged_keys: Vec::new(),
        policy: plan.policy.clone(),
        policy_doubts: plan.policy_doubts.clone(),
        signs_for_kubelets: plan.cert(CertName::NodepkiConf).is_some(),
        service_account_refused: None,
        missing_files: Vec::new(),
        has_cluster: state.has_apiserver_manifest(),
        external_etcd: Vec::new(),
        notes: plan.notes.clone(),
        refusals: Vec::new(),
        rotating: None,
    };
    for spec in &plan.bundles {
        let handed = provided.bundles.get(&spec.authority);
        survey.read_bundle(state, spec, &trust(spec.authority), handed, now)?;
    }
    // `assess_ages` reports a damaged record.
    let issued = state.issued().ok();
    for spec in &plan.certs {
        let record = issued.and_then(|issued| issued.get(&spec.name()));
        survey.read_cert(state, spec, record, now)?;
    }
    if let Some(spec) = plan
        .service_account
        .as_ref()
        .filter(|_| provided.service_account.is_none())
    {
        survey.protect_service_account_key(state, spec)?;
    }
    // Before the decision, which replaces a revoked certificate.
    survey.read_revocations(state)?;
    survey.decide(&BTreeMap::new(), now);
    survey.refuse_certs();
    // After the faults of certificates and bundles: a replaced CA explains them, and its refusal takes their place.
    survey.judge_authorities(state.root(), trust, provided, now);
    survey.note_shared_authorities(|_| None);
    if let Some(spec) = &plan.service_account {
        survey.read_service_account(state, spec, provided)?;
    }
    survey.read_unmanaged_keys(state, plan);
    survey.read_provided_files(state, provided)?;
    if let Some(external) = &plan.external_etcd {
        survey.check_external_etcd(state, external, provided, now)?;
        survey.notes.extend(survey.external_etcd.iter().cloned());
    }
    Ok(survey)
}

impl Survey {
    /// Returns the bundle of an authority, in whatever state it is.
    pub(super) fn bundle(&self, authority: Authority) -> Option<&SurveyedBundle> {
        bundle_of(&self.bundles, authority)
    }

    /// Returns the bundle of an authority, if it exists and is valid.
    pub fn trust(&self, authority: Authority) -> Option<&TrustBundle> {
        self.bundle(authority)?.found.present()
    }

    /// Returns the revocation lists of an authority, if they exist and are valid.
    pub fn revocations(&self, authority: Authority) -> Option<&AuthorityCrls> {
        self.bundle(authority)?.revocations.as_ref()
    }

    /// Returns the failure of a run that the refusals stop.
    pub fn refused(&self) -> Failure {
        let refusals = self.refusals.iter().map(ToString::to_string);
        Failure::with_messages(ExitCode::Refused, refusals)
    }

    /// Returns the refusals that no row reports.
    pub fn refusals_without_row(&self) -> impl Iterator<Item = &SurveyRefusal> {
        let has_row = |refusal: &&SurveyRefusal| match refusal {
            SurveyRefusal::Bundle(authority, _) => self
                .bundle(*authority)
                .is_some_and(|bundle| !bundle.refused.is_empty()),
            SurveyRefusal::Certificate(name, _) => self.cert(*name).is_some(),
            _ => false,
        };
        let refusals = self.refusals.iter();
        refusals.filter(move |refusal| !has_row(refusal))
    }

    /// Returns whether there is nothing to do.
    pub fn is_settled(&self) -> bool {
        self.certs
            .iter()
            .all(|cert| matches!(cert.decision.action, Action::Keep { .. }))
            && self.bundles.iter().all(SurveyedBundle::is_settled)
            && self.missing_files.is_empty()
            && matches!(
                self.service_account,
                None | Some(ServiceAccountAction::Keep)
            )
    }

    /// Returns whether the cluster provided data that is not installed yet.
    pub(super) fn has_to_take(&self, provided: &Provided) -> bool {
        let absent = |bundle: &SurveyedBundle| {
            !bundle.in_place && provided.bundles.contains_key(&bundle.spec.authority)
        };
        let missing = self.missing_files.iter();
        let mut missing = missing.filter_map(|place| provided.files.get(*place));
        self.bundles.iter().any(absent)
            || missing.any(|file| file.may_vanish)
            || self.service_account == Some(ServiceAccountAction::Install)
    }

    /// Decides on each certificate, or decides again: at another time, or after an authority became known. `learned` are the
    /// bundles that are not on disk.
    pub fn decide(&mut self, learned: &BTreeMap<Authority, TrustBundle>, now: OffsetDateTime) {
        let Survey {
            certs,
            bundles,
            rotating,
            ..
        } = self;
        for cert in certs {
            let authority = cert.spec.authority();
            let bundle = bundle_of(bundles, authority);
            let on_disk = bundle.and_then(|bundle| bundle.found.present());
            // A bootstrap stops at a refused authority.
            let refused = bundle
                .filter(|bundle| rotating.is_some() && !bundle.refused.is_empty())
                .map(|bundle| CertRefusal::AuthorityRefused(bundle.refused.clone()));
            let case = CertCase {
                spec: &cert.spec,
                found: &cert.found,
                age: cert.age.as_ref(),
                trust: learned.get(&authority).or(on_disk),
                refused: refused.or_else(|| cert.unrepairable.clone()),
                held: cert.held.as_ref(),
            };
            let mode = rotating
                .as_ref()
                .map_or(DecisionMode::Bootstrap, |rotating| rotating.mode(authority));
            cert.decision = decide(case, mode, now);
        }
    }

    /// Adds the certificates for which nothing is done to the refusals.
    fn refuse_certs(&mut self) {
        let refused = self.certs.iter().filter_map(|cert| {
            let Action::Refuse { reason } = &cert.decision.action else {
                return None;
            };
            Some(SurveyRefusal::Certificate(cert.spec.name(), reason.clone()))
        });
        self.refusals.extend(refused);
    }

    /// Requires the bundles and certificates: a list is signed by a CA of the bundle or by an intermediate of a certificate.
    fn read_revocations(&mut self, state: &NodeState) -> Result<(), store::StoreError> {
        for bundle in &mut self.bundles {
            let path = &bundle.spec.crl_path;
            let Some(trust) = bundle.found.present() else {
                continue;
            };
            let file = state.file(path);
            let bytes = match file.bytes() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(error) if machine::is_fault(&error) => return Err(error),
                // Like a damaged list: it must not leave the node without certificates.
                Err(error) => {
                    self.notes.push(format!("{path} is ignored: {error}"));
                    continue;
                }
            };
            let of_authority =
                |cert: &&mut SurveyedCert| cert.spec.authority() == bundle.spec.authority;
            let chains: Vec<&Chain> = self
                .certs
                .iter()
                .filter(|cert| cert.spec.authority() == bundle.spec.authority)
                .filter_map(|cert| cert.found.chain.present())
                .collect();
            let lists = RevocationList::read_all(bytes)
                .and_then(|lists| AuthorityCrls::verified(lists, trust, &chains));
            match lists {
                Ok(lists) => {
                    for cert in self.certs.iter_mut().filter(of_authority) {
                        let chain = cert.found.chain.present();
                        let revoked = chain.and_then(|chain| lists.revokes(chain));
                        cert.found.revoked =
                            revoked.map(|(certificate, since)| CertReason::Revoked {
                                certificate,
                                since,
                                list: path.clone(),
                            });
                    }
                    bundle.revocations = Some(lists);
                }
                Err(error) => self.notes.push(format!(
                    "{path} is ignored: {error}; nodepki crl fetches it again"
                )),
            }
        }
        Ok(())
    }

    fn read_provided_files(
        &mut self,
        state: &NodeState,
        provided: &Provided,
    ) -> Result<(), store::StoreError> {
        for (place, file) in provided.files.iter().enumerate() {
            match state.file(&file.path).bytes()? {
                Some(found) if same_text(found, &file.bytes) => {}
                Some(found) if !found.is_empty() && !file.ours => {
                    self.refusals.push(SurveyRefusal::ProvidedFile {
                        path: file.path.clone(),
                        what: file.what.clone(),
                        from: file.from.clone(),
                    });
                }
                _ => self.missing_files.push(place),
            }
        }
        Ok(())
    }

    /// Authorities whose CA private key is on this node.
    pub fn ca_keys(&self) -> impl Iterator<Item = &BundleSpec> {
        self.bundles
            .iter()
            .filter(|bundle| bundle.has_key)
            .map(|bundle| &bundle.spec)
    }

    /// Returns the certificates that need a new key and a signature.
    pub fn to_issue(&self) -> impl Iterator<Item = &SurveyedCert> {
        self.certs
            .iter()
            .filter(|cert| matches!(cert.decision.action, Action::Issue { .. }))
    }

    /// Returns one certificate.
    pub fn cert(&self, name: CertName) -> Option<&SurveyedCert> {
        self.certs.iter().find(|cert| cert.spec.name() == name)
    }
}

fn bundle_of(bundles: &[SurveyedBundle], authority: Authority) -> Option<&SurveyedBundle> {
    bundles
        .iter()
        .find(|bundle| bundle.spec.authority == authority)
}

/// Returns whether two PEM files are equal apart from line ends and blank lines.
fn same_text(one: &[u8], other: &[u8]) -> bool {
    fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| !line.is_empty())
    }
    lines(one).eq(lines(other))
}
