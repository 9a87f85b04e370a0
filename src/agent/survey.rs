//! Compares the files of the node with the plan. Reads only, takes no lock, needs no state directory.

mod keys;
mod replaced;
mod rotation;
mod service_account;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{ExitCode, Failure, Provided, ProvidedBundle};
use crate::kube::names::{Authority, CertName, NodePath};
use crate::node::{KubeletStoreState, NodeFile, NodeState};
use crate::process::machine;
use crate::signer::CurrentCertificate;
use crate::spec::assess::{
    self, Action, Age, BundleRefusal, CertCase, CertDecision, CertNote, CertReason, CertRefusal,
    DecisionMode, FoundKubeconfig, KubeletConfForm, KubeletLink, KubeletStoreContent, Observed,
    ObservedCert, assess_bundle, decide,
};
use crate::spec::compliance::KeyUse;
use crate::spec::policy::KeyPolicy;
use crate::spec::{
    self, BundleCopy, BundleSpec, CertFiles, CertSpec, ClientPairSpec, NodeSpec, PolicyDoubts,
};
use crate::store::{self, IssuedRecord, NodeRoot};
use crate::text::{hex, rfc3339};
use crate::x509::{AuthorityCrls, Chain, PrivateKey, RevocationList, TrustBundle, is_for_names};

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
    /// Faults of the files of an external etcd; also part of `notes`.
    pub external_etcd: Vec<String>,
    /// Warnings that do not stop the run.
    pub notes: Vec<String>,
    /// Faults that stop the run before any request is sent.
    pub refusals: Vec<SurveyRefusal>,
    /// The rules for the renewal of valid certificates; `None` for a bootstrap.
    pub(super) rotating: Option<Rotating>,
}

/// A fault that stops a bootstrap before any request is sent. A renewal stops only for what it concerns.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SurveyRefusal {
    /// Nothing is issued under an authority.
    #[error("{1}")]
    Bundle(Authority, BundleRefusal),
    /// The CA of an authority was replaced; with the fix.
    #[error("{refusal}; nothing is issued under it: {fix}")]
    ReplacedCa {
        /// The finding.
        refusal: BundleRefusal,
        /// The fix.
        fix: String,
    },
    /// The CA certificate has expired, and a kubeconfig contains a valid one.
    #[error("{0}")]
    ValidCopy(String),
    /// Nothing is done for a certificate.
    #[error("{1}")]
    Certificate(CertName, CertRefusal),
    /// The service-account pair is unusable.
    #[error("{0}")]
    ServiceAccount(ServiceAccountFault),
    /// A file of the cluster exists with other content.
    #[error(
        "{path} ({what}) differs from the one in {from}; find out which one is right; if it is the cluster's, move the file away and run again"
    )]
    ProvidedFile {
        /// The file.
        path: NodePath,
        /// Its purpose.
        what: String,
        /// Where the cluster provides it.
        from: String,
    },
}

/// One certificate, as found and judged.
pub struct SurveyedCert {
    /// Desired state.
    pub spec: CertSpec,
    /// Observed state.
    pub found: ObservedCert,
    /// What is done about it.
    pub decision: CertDecision,
    /// Age of the certificate; `None` if it is absent.
    pub age: Option<Age>,
    /// When its age makes it due.
    pub due: Option<OffsetDateTime>,
    /// Whether nodepki installed this certificate; `None` if it never installed one in this place.
    pub(super) installed: Option<bool>,
    /// Why it cannot be repaired.
    unrepairable: Option<CertRefusal>,
    /// Why it is not replaced as long as it serves.
    pub(super) held: Option<CertRefusal>,
}

impl SurveyedCert {
    /// Returns whether the certificate on disk is valid and usable, so a failure does not make the node worse.
    pub fn still_serves(&self, trust: Option<&TrustBundle>, now: OffsetDateTime) -> bool {
        self.found.still_serves(trust, now)
    }

    /// Returns whether the next renewal replaces the key by one of another algorithm.
    fn waits_for_renewal(&self) -> bool {
        matches!(&self.decision.action, Action::Keep { at_renewal, .. } if !at_renewal.is_empty())
    }

    /// Returns the remarks about a certificate that is kept: notes of the assessment, and changes of the policy that wait
    /// for the next renewal.
    pub(super) fn remarks(&self) -> Vec<CertNote> {
        let Action::Keep { notes, at_renewal } = &self.decision.action else {
            return Vec::new();
        };
        let waiting = at_renewal
            .iter()
            .cloned()
            .map(|difference| CertNote::AtRenewal {
                difference,
                due: self.due,
            });
        notes.iter().cloned().chain(waiting).collect()
    }

    /// Returns the certificate on disk, if a signer may accept it in exchange: it is valid and has the desired subject
    /// and names.
    pub(super) fn exchangeable(
        &self,
        trust: &TrustBundle,
        now: OffsetDateTime,
    ) -> Option<CurrentCertificate> {
        let (chain, key) = (self.found.chain.present()?, self.found.key.present()?);
        let same = || {
            is_for_names(
                chain,
                &self.spec.requested.profile,
                self.spec.requested.tolerance,
            )
        };
        (self.still_serves(Some(trust), now) && same()).then(|| CurrentCertificate {
            chain_pem: chain.to_pem().into_bytes(),
            key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
        })
    }
}

/// One trust bundle, as found.
pub struct SurveyedBundle {
    /// Desired state.
    pub spec: BundleSpec,
    /// Observed state.
    pub found: Observed<TrustBundle>,
    /// The bundle is at its path in the plan; otherwise it comes from the configured file or from the cluster, or is still
    /// unknown.
    pub in_place: bool,
    /// Copies of the bundle that are absent or contain other certificates.
    pub outdated_copies: Vec<BundleCopy>,
    /// The CA's private key is on this node.
    pub has_key: bool,
    /// The verified revocation lists on disk.
    pub revocations: Option<AuthorityCrls>,
    /// Why nothing is issued under it; also part of the survey's refusals.
    pub(super) refused: Vec<BundleRefusal>,
}

impl SurveyedBundle {
    /// Returns whether the bundle and its copies are in place.
    pub(super) fn is_settled(&self) -> bool {
        self.in_place && self.outdated_copies.is_empty()
    }
}

/// Configured trust for one authority, in addition to the bundle at its path.
#[derive(Clone, Debug, Default)]
pub struct TrustSource {
    /// File to read the bundle from if none exists at its path.
    pub file: Option<TrustFile>,
    /// SHA-256 digests of the accepted public keys.
    pub pins: Vec<[u8; 32]>,
}

/// A file with CA certificates that the settings name.
#[derive(Clone, Debug)]
pub struct TrustFile {
    /// The node's root, or `/` of this machine for settings of this machine.
    pub root: NodeRoot,
    /// The absolute path inside `root`.
    pub path: PathBuf,
    /// Whether `root` is the node's.
    pub on_node: bool,
}

impl TrustFile {
    /// Returns the path on this machine, for messages.
    fn shown(&self) -> PathBuf {
        self.root.on_this_machine(&self.path)
    }

    /// Returns the file, unless it is the one at `path` on the node.
    fn other_than(&self, state: &NodeState, path: &Path) -> Option<Rc<NodeFile>> {
        match self.on_node {
            true if self.path == path => None,
            true => Some(state.file(&self.path)),
            false => Some(Rc::new(NodeFile::new(&self.root, &self.path))),
        }
    }
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
    let issued = state.root().issued().unwrap_or_default();
    for spec in &plan.certs {
        survey.read_cert(state, spec, issued.get(&spec.name()), now)?;
    }
    survey.read_revocations(state)?;
    survey.decide(&BTreeMap::new(), now);
    survey.refuse_certs();
    survey.judge_authorities(state.root(), trust, provided, now);
    survey.note_shared_authorities(|_| None);
    if let Some(spec) = &plan.service_account {
        survey.read_service_account(state, spec, provided)?;
    }
    survey.read_unmanaged_keys(state, plan, now);
    survey.read_provided_files(state, provided)?;
    if let Some(external) = &plan.external_etcd {
        survey.check_external_etcd(state, external, provided, now)?;
        survey.notes.extend(survey.external_etcd.iter().cloned());
    }
    Ok(survey)
}

impl Survey {
    /// Returns the bundle of an authority, if it exists and is valid.
    pub fn trust(&self, authority: Authority) -> Option<&TrustBundle> {
        self.bundles
            .iter()
            .find(|bundle| bundle.spec.authority == authority)?
            .found
            .present()
    }

    /// Returns the revocation lists of an authority, if they exist and are valid.
    pub fn revocations(&self, authority: Authority) -> Option<&AuthorityCrls> {
        self.bundles
            .iter()
            .find(|bundle| bundle.spec.authority == authority)?
            .revocations
            .as_ref()
    }

    /// Returns the failure of a run that the refusals stop.
    pub fn refused(&self) -> Failure {
        let refusals = self.refusals.iter().map(ToString::to_string);
        Failure::with_messages(ExitCode::Refused, refusals)
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
            let mut bundles = bundles.iter();
            let bundle = bundles.find(|bundle| bundle.spec.authority == authority);
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

    fn read_bundle(
        &mut self,
        state: &NodeState,
        spec: &BundleSpec,
        source: &TrustSource,
        handed: Option<&ProvidedBundle>,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        let authority = spec.authority;
        let mut refused = Vec::new();
        let mut file = state.file(&spec.path);
        let mut in_place = file.bytes()?.is_some_and(|bytes| !bytes.is_empty());
        let configured = source.file.as_ref().and_then(|configured| {
            let other = configured.other_than(state, &spec.path)?;
            Some((configured, other))
        });
        let mut expected = None;
        if let Some((configured, other)) = configured
            && !(in_place && configured.on_node)
        {
            if other.bytes()?.is_none() {
                refused.push(BundleRefusal::TrustFileAbsent {
                    file: configured.shown(),
                    authority,
                });
            }
            if in_place {
                // A setting of this machine decides about the file below the root.
                if let Observed::Present(bundle) = other.parse(TrustBundle::from_pem)? {
                    expected = Some((configured.shown(), bundle));
                }
            } else {
                file = other;
            }
        }
        let mut found = file.parse(TrustBundle::from_pem)?;
        match (&found, handed) {
            (Observed::Absent | Observed::Empty, Some(handed)) => {
                found = Observed::Present(handed.bundle.clone());
            }
            (Observed::Present(trusted), Some(handed)) if handed.replaces(trusted) => {
                found = Observed::Present(handed.bundle.clone());
                in_place = false;
            }
            (Observed::Present(trusted), Some(ProvidedBundle { from, bundle, .. }))
                if !trusted.accepts(bundle) =>
            {
                refused.push(BundleRefusal::NotOfCluster {
                    path: spec.path.clone(),
                    authority,
                    found: trusted.to_string(),
                    from: from.clone(),
                    wanted: bundle.to_string(),
                });
            }
            _ => {}
        }
        if let (Some((from, expected)), Some(found)) = (expected, found.present())
            && !found.accepts(&expected)
        {
            refused.push(BundleRefusal::NotOfTrustFile {
                path: spec.path.clone(),
                authority,
                found: found.to_string(),
                file: from,
                wanted: expected.to_string(),
            });
        }
        refused.extend(assess_bundle(spec, &found, &source.pins, now).err());
        let refusals = refused.iter().cloned();
        self.refusals
            .extend(refusals.map(|refusal| SurveyRefusal::Bundle(authority, refusal)));
        if let Some(bundle) = found.present() {
            for certificate in bundle
                .certificates()
                .iter()
                .skip(1)
                .filter(|certificate| now > certificate.not_after())
            {
                self.notes.push(format!(
                    "{} also holds {}, which expired at {}; remove it when convenient",
                    spec.path,
                    certificate.subject(),
                    rfc3339(certificate.not_after())
                ));
            }
        }
        self.note_key(state, spec, &file, found.present())?;
        let mut outdated_copies = Vec::new();
        for copy in &spec.copies {
            let file = state.file(&copy.path);
            self.note_key(state, spec, &file, found.present())?;
            let copied = file.parse(TrustBundle::from_pem)?;
            let copied = copied.present().map(TrustBundle::certificates);
            if copied != found.present().map(TrustBundle::certificates) {
                outdated_copies.push(copy.clone());
            }
        }
        let has_key = state.root().metadata(&spec.key_path)?.is_some();
        self.bundles.push(SurveyedBundle {
            spec: spec.clone(),
            found,
            in_place,
            outdated_copies,
            has_key,
            revocations: None,
            refused,
        });
        Ok(())
    }

    /// Notes a private key among the CA certificates of a file.
    fn note_key(
        &mut self,
        state: &NodeState,
        spec: &BundleSpec,
        file: &NodeFile,
        bundle: Option<&TrustBundle>,
    ) -> Result<(), store::StoreError> {
        let path = state.root().on_this_machine(file.path());
        let content = file.bytes()?.unwrap_or_default();
        let note = assess::key_among_certificates(
            &path.display().to_string(),
            spec.authority,
            content,
            bundle,
        );
        self.notes.extend(note);
        Ok(())
    }

    fn read_cert(
        &mut self,
        state: &NodeState,
        spec: &CertSpec,
        issued: Option<&IssuedRecord>,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        let found = match &spec.output {
            CertFiles::Pair {
                certificate, key, ..
            } => Ok(read_pair(state, certificate, key)?),
            CertFiles::Kubeconfig {
                path, store, pair, ..
            } => read_kubeconfig(state, path, store.as_ref(), pair.as_ref(), now)?,
        };
        let (mut found, unrepairable) = match found {
            Ok(found) => (found, None),
            Err(Unrepairable { reason, found }) => (*found, Some(reason)),
        };
        let chain = found.chain.present();
        let installed = chain
            .zip(issued)
            .map(|(chain, issued)| issued.sha256 == hex(&chain.leaf().fingerprint()));
        if let Some(store) = &mut found.store {
            store.requested_by_kubelet = installed != Some(true);
        }
        self.certs.push(SurveyedCert {
            spec: spec.clone(),
            found,
            // The survey decides once everything is read.
            decision: CertDecision::now(Action::Keep {
                notes: Vec::new(),
                at_renewal: Vec::new(),
            }),
            age: None,
            due: None,
            installed,
            unrepairable,
            held: None,
        });
        Ok(())
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

    /// Reports faults of the files of an external etcd. nodepki does not manage these files and changes nothing.
    fn check_external_etcd(
        &mut self,
        state: &NodeState,
        external: &spec::ExternalEtcd,
        provided: &Provided,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        // A file provided by the cluster counts before it is installed.
        let read = |path: &NodePath| {
            let handed = provided.files.iter().find(|file| *file.path == **path);
            let handed = handed.map(|file| file.bytes.to_vec());
            let found = state.file(path).bytes()?.map(<[u8]>::to_vec);
            Ok::<_, store::StoreError>(found.or(handed).map(Zeroizing::new))
        };
        let mut report = |field: &str, path: &NodePath, problem: &str| {
            self.external_etcd
                .push(format!("etcd.external.{field} {path}: {problem}"));
        };
        let mut bundle = None;
        if let Some(path) = &external.authority {
            match Observed::read(
                read(path)?.as_deref().map(Vec::as_slice),
                TrustBundle::from_pem,
            ) {
                Observed::Present(found) => bundle = Some(found),
                Observed::Absent => report(
                    "caFile",
                    path,
                    "is absent; provide it before kube-apiserver starts",
                ),
                Observed::Empty => report("caFile", path, "is empty"),
                Observed::Unreadable(why) => report("caFile", path, &why),
            }
            let content = read(path)?.unwrap_or_default();
            self.notes.extend(assess::key_among_certificates(
                &path.to_string(),
                Authority::EtcdCa,
                &content,
                bundle.as_ref(),
            ));
        }
        let (Some(certificate), Some(key)) = (&external.certificate, &external.key) else {
            return Ok(());
        };
        let chain = Observed::read(
            read(certificate)?.as_deref().map(Vec::as_slice),
            Chain::from_pem,
        );
        let private = Observed::read(
            read(key)?.as_deref().map(Vec::as_slice),
            PrivateKey::from_pem,
        );
        for (field, path, problem) in [
            ("certFile", certificate, chain.trouble()),
            ("keyFile", key, private.trouble()),
        ] {
            if let Some(problem) = problem {
                report(field, path, &problem);
            }
        }
        if let (Some(chain), Some(private)) = (chain.present(), private.present()) {
            if chain.leaf().public_key() != private.public_key() {
                report(
                    "certFile",
                    certificate,
                    "does not belong to the key in keyFile",
                );
            } else if let Some(bundle) = &bundle
                && !assess::still_serves(chain, private.public_key(), bundle, now)
            {
                report(
                    "certFile",
                    certificate,
                    "does not verify under caFile at this time",
                );
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

/// A kubeconfig that nodepki cannot change without losing data.
struct Unrepairable {
    reason: CertRefusal,
    found: Box<ObservedCert>,
}

fn read_pair(
    state: &NodeState,
    certificate: &NodePath,
    key: &NodePath,
) -> Result<ObservedCert, store::StoreError> {
    let key = state.file(key);
    Ok(ObservedCert {
        chain: state.file(certificate).readable()?.chain(),
        key_form_is_ours: key.bytes()?.is_none_or(assess::is_our_form),
        key: key.key(),
        exposed: key.mode_if_exposed(),
        revoked: None,
        kubeconfig: None,
        store: None,
    })
}

fn read_kubeconfig(
    state: &NodeState,
    path: &NodePath,
    store: Option<&spec::KubeletStoreSpec>,
    pair: Option<&ClientPairSpec>,
    now: OffsetDateTime,
) -> Result<Result<ObservedCert, Unrepairable>, store::StoreError> {
    let (found, form) = match state.kubeconfig(path)? {
        FoundKubeconfig::Embedded(found) => {
            let form = match found.kubeconfig {
                Some(_) => KubeletConfForm::Embedded,
                None => KubeletConfForm::Nothing,
            };
            let exposed = state.file(path).mode_if_exposed();
            (ObservedCert { exposed, ..*found }, form)
        }
        FoundKubeconfig::ByFile {
            certificate,
            key,
            kubeconfig,
        } => {
            // Files of the kubelet and of other tools have a form of their choice.
            let is_ours = pair.is_some_and(|pair| pair.is(certificate.path(), key.path()));
            let key_bytes = key.bytes_behind_link()?;
            let found = ObservedCert {
                chain: certificate.behind_link(NodeFile::chain)?,
                key: key.behind_link(NodeFile::key)?,
                key_form_is_ours: !is_ours || key_bytes.is_none_or(assess::is_our_form),
                exposed: key.mode_if_exposed().filter(|_| is_ours),
                revoked: None,
                kubeconfig: Some(kubeconfig),
                store: None,
            };
            let certificate = certificate.path().into();
            let key = key.path().into();
            (found, KubeletConfForm::ByFile { certificate, key })
        }
        FoundKubeconfig::Unusable(error) => {
            let found = ObservedCert {
                chain: Observed::Unreadable(error.to_string()),
                key: Observed::Unreadable(error.to_string()),
                key_form_is_ours: true,
                exposed: None,
                revoked: None,
                kubeconfig: None,
                store: None,
            };
            return Ok(Err(Unrepairable {
                reason: CertRefusal::Unrepairable {
                    path: path.clone(),
                    error,
                },
                found: Box::new(found),
            }));
        }
    };
    Ok(Ok(match store {
        Some(store) => {
            let on_disk = read_store(state, &assess::store_dir(&form, store))?;
            assess::certificate_used_by_kubelet(found, &form, store, on_disk, now)
        }
        None => found,
    }))
}

/// Returns whether two PEM files are equal apart from line ends and blank lines.
fn same_text(one: &[u8], other: &[u8]) -> bool {
    fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| !line.is_empty())
    }
    lines(one).eq(lines(other))
}

/// Returns the kubelet's client certificate in its own directory.
fn read_store(state: &NodeState, dir: &Path) -> Result<KubeletStoreContent, store::StoreError> {
    let KubeletStoreState { file, link } = state.kubelet_store(dir)?;
    let is_link = link.is_some();
    let current = match link {
        Some(target) => KubeletLink::Link(target),
        None if state.root().metadata(file.path())?.is_some() => KubeletLink::File,
        None => KubeletLink::Nothing,
    };
    let bytes = if is_link {
        file.bytes_behind_link()?
    } else {
        file.bytes()?
    };
    Ok(KubeletStoreContent {
        current,
        pem: bytes.map(|bytes| Zeroizing::new(bytes.to_vec())),
        exposed: file.mode_if_exposed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_each_refusal_with_its_fix() {
        let provided = SurveyRefusal::ProvidedFile {
            path: "/pki/ca.crt".into(),
            what: "CA certificate".to_owned(),
            from: "cluster-info".to_owned(),
        };
        assert_eq!(
            provided.to_string(),
            "/pki/ca.crt (CA certificate) differs from the one in cluster-info; find out which one is right; if it is the cluster's, move the file away and run again"
        );
        let replaced = SurveyRefusal::ReplacedCa {
            refusal: BundleRefusal::TrustFileAbsent {
                file: "/ca.pem".into(),
                authority: Authority::Ca,
            },
            fix: "restore it".to_owned(),
        };
        assert_eq!(
            replaced.to_string(),
            "/ca.pem is absent, but authorities.ca.trust.file names it as the CA certificate: put the certificate there or correct the setting; nothing is issued under it: restore it"
        );
    }
}
