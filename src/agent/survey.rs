//! What is on disk, read once and judged against the plan. Reads only, takes no lock, needs no state directory.

mod replaced;
mod rotation;

use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{Provided, ServiceAccount};
use crate::kube::names::{Authority, CertName, NodePath};
use crate::node::{KubeconfigFile, KubeletStore, NodeState};
use crate::process::machine;
use crate::signer::Current;
use crate::spec::assess::{
    self, Action, Age, COPY_SERVICE_ACCOUNT, Found, FoundCert, KubeletCurrent, KubeletForm, OnDisk,
    assess, assess_bundle,
};
use crate::spec::{BundleSpec, CertSpec, Output, Plan, ServiceAccountSpec};
use crate::store::{self, Issued};
use crate::x509::{
    Chain, KeyType, PrivateKey, PublicKey, RevocationList, Revocations, TrustBundle, hex,
    is_for_names, rfc3339,
};

pub(super) use rotation::Rotating;

/// The plan beside what was found.
pub struct Survey {
    /// One a certificate, in the plan's order.
    pub certs: Vec<SurveyedCert>,
    /// One an authority, in the plan's order.
    pub bundles: Vec<SurveyedBundle>,
    /// The service-account pair.
    pub service_account: Option<ServiceAccountAction>,
    /// Why the service-account pair cannot be used and is not touched; among the refusals too.
    pub(super) service_account_refused: Option<String>,
    /// Which of the files that the cluster handed over are missing, by their place in the list.
    pub missing_files: Vec<usize>,
    /// What is wrong with the files of an external etcd; among the notes too.
    pub external_etcd: Vec<String>,
    /// What deserves attention and stops nothing.
    pub notes: Vec<String>,
    /// What stops the run before anything is sent.
    pub refusals: Vec<String>,
    /// The rules by which what serves is renewed; `None` where nothing is.
    pub(super) rotating: Option<Rotating>,
}

/// One certificate as found and judged.
pub struct SurveyedCert {
    /// What is wanted.
    pub spec: CertSpec,
    /// What is there.
    pub found: FoundCert,
    /// What follows.
    pub action: Action,
    /// How old it is, where it is there.
    pub age: Option<Age>,
    /// When it will be due, by its age.
    pub due: Option<OffsetDateTime>,
    /// When to look again, once rotation had its say.
    pub(super) next: Option<OffsetDateTime>,
    /// A failure to replace it must be told.
    pub(super) urgent: bool,
    /// An administrator asked for it, and it was just renewed.
    pub(super) deferred: bool,
    /// A new one that ends no later would be no help.
    pub(super) for_age: bool,
    /// The new one is for the same key.
    pub(super) keep_key: bool,
    /// Whether nodepki installed this certificate; `None` if it never installed one in this place.
    pub(super) installed: Option<bool>,
}

impl SurveyedCert {
    fn new(spec: CertSpec, found: FoundCert, action: Action) -> Self {
        SurveyedCert {
            spec,
            found,
            action,
            age: None,
            due: None,
            next: None,
            urgent: true,
            deferred: false,
            for_age: false,
            keep_key: false,
            installed: None,
        }
    }

    /// What is there serves as it is: whatever happens now, the node is not worse off.
    pub fn still_serves(&self, trust: Option<&TrustBundle>, now: OffsetDateTime) -> bool {
        let (Some(chain), Some(key), Some(trust)) =
            (self.found.chain.present(), self.found.key.present(), trust)
        else {
            return false;
        };
        self.found.revoked.is_none() && assess::still_serves(chain, key.public_key(), trust, now)
    }
}

impl SurveyedCert {
    /// What is there, when a signer may take it in exchange: valid, and for the wanted subject and names.
    pub(super) fn exchangeable(&self, trust: &TrustBundle, now: OffsetDateTime) -> Option<Current> {
        let (chain, key) = (self.found.chain.present()?, self.found.key.present()?);
        let same = || is_for_names(chain, &self.spec.profile, self.spec.tolerance);
        (self.still_serves(Some(trust), now) && same()).then(|| Current {
            chain_pem: chain.to_pem().into_bytes(),
            key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
        })
    }

    fn strike_out(&mut self, lists: &Revocations, path: &NodePath) {
        let Some((what, since)) = self
            .found
            .chain
            .present()
            .and_then(|chain| lists.revokes(chain))
        else {
            return;
        };
        self.found.revoked = Some(format!(
            "{what} is revoked since {}, says {path}",
            rfc3339(since)
        ));
        if let Some(reason) = self.found.revoked.clone()
            && matches!(self.action, Action::Keep { .. } | Action::Rewrite { .. })
        {
            self.action = Action::Issue {
                reasons: vec![reason],
            };
        }
    }
}

/// One trust bundle as found.
pub struct SurveyedBundle {
    /// What is wanted.
    pub spec: BundleSpec,
    /// What is there.
    pub found: Found<TrustBundle>,
    /// It lies where it belongs; otherwise it was read from the configured file, or is not known yet.
    pub in_place: bool,
    /// The CA's private key lies beside it.
    pub has_key: bool,
    /// Its revocation lists on disk, verified.
    pub revocations: Option<Revocations>,
    /// Why nothing is issued under it; in more words among the survey's refusals too.
    pub(super) refused: Option<String>,
}

/// What to do about the service-account pair.
#[derive(Debug, PartialEq, Eq)]
pub enum ServiceAccountAction {
    /// Both there, and a pair.
    Keep,
    /// Make both.
    Make,
    /// Put the cluster's own in place.
    Install,
    /// `sa.pub` is missing and follows from `sa.key`.
    DerivePublic,
    /// `sa.key` is readable by everybody.
    Tighten,
}

/// What is trusted for one authority besides what lies in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustSource {
    /// A file to take the bundle from when its place is empty.
    pub file: Option<PathBuf>,
    /// SHA-256 of public keys.
    pub pins: Vec<[u8; 32]>,
}

/// Judges the state of the node against the plan.
///
/// # Errors
/// A file that the store cannot read at all: a directory in its place, a file too large, an I/O error.
pub fn survey(
    state: &NodeState,
    plan: &Plan,
    trust: impl Fn(Authority) -> TrustSource,
    provided: &Provided,
    now: OffsetDateTime,
) -> Result<Survey, store::Error> {
    let mut survey = Survey {
        certs: Vec::new(),
        bundles: Vec::new(),
        service_account: None,
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
    // A damaged record is reported elsewhere; without it only the finer points are missing.
    let issued = state.root().issued().unwrap_or_default();
    for spec in &plan.certs {
        survey.read_cert(state, spec, issued.get(&spec.name), now)?;
    }
    survey.judge_authorities(state.root(), trust, provided, now);
    survey.note_shared_authorities(|_| None);
    survey.read_revocations(state)?;
    if let Some(spec) = &plan.service_account {
        let before = survey.refusals.len();
        survey.read_service_account(state, spec, provided)?;
        survey.service_account_refused = survey.refusals.get(before).cloned();
    }
    survey.read_provided_files(state, provided)?;
    if let Some(external) = &plan.external_etcd {
        survey.check_external_etcd(state, external, provided, now)?;
        survey.notes.extend(survey.external_etcd.iter().cloned());
    }
    Ok(survey)
}

impl Survey {
    /// The bundle of an authority, when it is there and sound.
    pub fn trust(&self, authority: Authority) -> Option<&TrustBundle> {
        self.bundles
            .iter()
            .find(|bundle| bundle.spec.authority == authority)?
            .found
            .present()
    }

    /// The revocation lists of an authority, when they are there and sound.
    pub fn revocations(&self, authority: Authority) -> Option<&Revocations> {
        self.bundles
            .iter()
            .find(|bundle| bundle.spec.authority == authority)?
            .revocations
            .as_ref()
    }

    /// True when nothing is to be done.
    pub fn is_settled(&self) -> bool {
        self.certs
            .iter()
            .all(|cert| matches!(cert.action, Action::Keep { .. }))
            && self.bundles.iter().all(|bundle| bundle.in_place)
            && self.missing_files.is_empty()
            && matches!(
                self.service_account,
                None | Some(ServiceAccountAction::Keep)
            )
    }

    /// True when the cluster has handed over what is not in place yet.
    pub(super) fn has_to_take(&self, provided: &Provided) -> bool {
        let absent = |bundle: &SurveyedBundle| {
            !bundle.in_place && provided.bundles.contains_key(&bundle.spec.authority)
        };
        let missing = self.missing_files.iter();
        let mut missing = missing.filter_map(|place| provided.files.get(*place));
        self.bundles.iter().any(absent)
            || missing.any(|file| file.perishable)
            || self.service_account == Some(ServiceAccountAction::Install)
    }

    /// Judges the certificates anew, at another time or once their authority is known.
    pub fn reassess(
        &mut self,
        trust: impl Fn(Authority) -> Option<TrustBundle>,
        now: OffsetDateTime,
    ) {
        for cert in &mut self.certs {
            if !matches!(cert.action, Action::Refuse { .. }) {
                cert.action = assess(
                    &cert.spec,
                    &cert.found,
                    trust(cert.spec.authority).as_ref(),
                    now,
                );
            }
        }
        self.rotate(trust, now);
    }

    fn read_bundle(
        &mut self,
        state: &NodeState,
        spec: &BundleSpec,
        source: &TrustSource,
        handed: Option<&(String, TrustBundle)>,
        now: OffsetDateTime,
    ) -> Result<(), store::Error> {
        let refused_before = self.refusals.len();
        let mut file = state.file(&spec.path);
        let in_place = file.bytes()?.is_some_and(|bytes| !bytes.is_empty());
        if !in_place
            && let Some(configured) = &source.file
            && **configured != *spec.path
        {
            file = state.file(configured);
            if file.bytes()?.is_none() {
                self.refusals.push(format!(
                    "{} is absent; authorities.{}.trust.file names it as the CA certificate: put it there or correct the setting",
                    state.root().on_this_machine(configured).display(),
                    spec.authority
                ));
            }
        }
        let mut found = file.parse(TrustBundle::from_pem)?;
        match (&found, handed) {
            (Found::Absent | Found::Empty, Some((_, offered))) => {
                found = Found::Present(offered.clone());
            }
            (Found::Present(trusted), Some((from, offered))) if !trusted.vouches_for(offered) => {
                self.refusals.push(format!(
                    "{} is not the {} of the cluster: it holds {trusted}, {from} has {offered}; find out which is right, move the file away if it is the cluster's, and run again",
                    spec.path,
                    spec.authority
                ));
            }
            _ => {}
        }
        if let Err(refusal) = assess_bundle(spec, &found, &source.pins, now) {
            self.refusals.push(refusal);
        }
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
        let has_key = state.root().metadata(&spec.key_path)?.is_some();
        self.bundles.push(SurveyedBundle {
            spec: spec.clone(),
            found,
            in_place,
            has_key,
            revocations: None,
            refused: self
                .refusals
                .get(refused_before..)
                .and_then(|of_this| (!of_this.is_empty()).then(|| of_this.join("; "))),
        });
        Ok(())
    }

    fn read_cert(
        &mut self,
        state: &NodeState,
        spec: &CertSpec,
        issued: Option<&Issued>,
        now: OffsetDateTime,
    ) -> Result<(), store::Error> {
        let mut found = match &spec.output {
            Output::Pair { certificate, key } => {
                let key = state.file(key);
                FoundCert {
                    chain: state.file(certificate).parse(Chain::from_pem)?,
                    key_form_is_ours: key.bytes()?.is_none_or(assess::is_our_form),
                    key: key.parse(PrivateKey::from_pem)?,
                    exposed: key.mode_if_exposed(),
                    revoked: None,
                    kubeconfig: None,
                    store: None,
                }
            }
            Output::Kubeconfig { path, store, .. } => {
                let (found, form) = match state.kubeconfig(path)? {
                    KubeconfigFile::Embedded(found) => {
                        let form = match found.kubeconfig {
                            Some(_) => KubeletForm::Embedded,
                            None => KubeletForm::Nothing,
                        };
                        let exposed = state.file(path).mode_if_exposed();
                        (FoundCert { exposed, ..*found }, form)
                    }
                    KubeconfigFile::ByFile {
                        certificate,
                        key,
                        kubeconfig,
                    } => {
                        let found = FoundCert {
                            chain: Found::read(certificate.bytes_behind_link()?, Chain::from_pem),
                            key: Found::read(key.bytes_behind_link()?, PrivateKey::from_pem),
                            key_form_is_ours: true,
                            exposed: None,
                            revoked: None,
                            kubeconfig: Some(kubeconfig),
                            store: None,
                        };
                        let certificate = certificate.path().into();
                        let key = key.path().into();
                        (found, KubeletForm::ByFile { certificate, key })
                    }
                    KubeconfigFile::Unusable(error) => {
                        let reason = format!(
                            "{path} cannot be repaired without losing what is in it: {error}; move it away and run again"
                        );
                        self.refusals.push(reason.clone());
                        let found = FoundCert {
                            chain: Found::Unreadable(error.to_string()),
                            key: Found::Unreadable(error.to_string()),
                            key_form_is_ours: true,
                            exposed: None,
                            revoked: None,
                            kubeconfig: None,
                            store: None,
                        };
                        let refused = Action::Refuse { reason };
                        self.certs
                            .push(SurveyedCert::new(spec.clone(), found, refused));
                        return Ok(());
                    }
                };
                match store {
                    Some(store) => {
                        let on_disk = read_store(state, &assess::store_dir(&form, store))?;
                        assess::weigh(found, &form, store, on_disk, now)
                    }
                    None => found,
                }
            }
        };
        let chain = found.chain.present();
        let installed = chain
            .zip(issued)
            .map(|(chain, issued)| issued.sha256 == hex(&chain.leaf().fingerprint()));
        if let Some(store) = &mut found.store {
            store.requested_by_kubelet = installed != Some(true);
        }
        let action = assess(spec, &found, self.trust(spec.authority), now);
        self.certs.push(SurveyedCert {
            installed,
            ..SurveyedCert::new(spec.clone(), found, action)
        });
        Ok(())
    }

    /// Comes after bundles and certificates: lists are signed by the first or by the intermediates of the second.
    fn read_revocations(&mut self, state: &NodeState) -> Result<(), store::Error> {
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
                // As a damaged one: a list is no reason to leave the node without certificates.
                Err(error) => {
                    self.notes.push(format!("{path} is ignored: {error}"));
                    continue;
                }
            };
            let of_authority =
                |cert: &&mut SurveyedCert| cert.spec.authority == bundle.spec.authority;
            let chains: Vec<&Chain> = self
                .certs
                .iter()
                .filter(|cert| cert.spec.authority == bundle.spec.authority)
                .filter_map(|cert| cert.found.chain.present())
                .collect();
            let lists = RevocationList::read_all(bytes)
                .and_then(|lists| Revocations::verified(lists, trust, &chains));
            match lists {
                Ok(lists) => {
                    for cert in self.certs.iter_mut().filter(of_authority) {
                        cert.strike_out(&lists, path);
                    }
                    bundle.revocations = Some(lists);
                }
                Err(error) => self.notes.push(format!(
                    "{path} is ignored: {error}; nodepki crl fetches it anew"
                )),
            }
        }
        Ok(())
    }

    fn read_service_account(
        &mut self,
        state: &NodeState,
        spec: &ServiceAccountSpec,
        provided: &Provided,
    ) -> Result<(), store::Error> {
        let file = state.file(&spec.private);
        let private = file.parse(PrivateKey::from_pem)?;
        let exposed = file.mode_if_exposed();
        let public = state.file(&spec.public).parse(PublicKey::all_from_pem)?;
        let (key_path, public_path) = (&spec.private, &spec.public);
        let has_served = state.has_served();
        let copy = format!(
            "{COPY_SERVICE_ACCOUNT} to {}, and run again",
            spec.private.directory()
        );
        let handed = provided.service_account.as_ref();
        if let Some(ServiceAccount { from, key, .. }) = handed {
            let theirs = key.public_key();
            let found = [
                (
                    &spec.private,
                    private.present().map(|own| own.public_key() == theirs),
                ),
                (
                    &spec.public,
                    public.present().map(|own| own.contains(theirs)),
                ),
            ];
            let foreign = found.into_iter().find(|(_, same)| *same == Some(false));
            if let Some((path, _)) = foreign {
                self.refusals.push(format!(
                    "{path} is not the key of the cluster that this node joins: {from} has another one, and with two of them half of all service-account tokens fail; move sa.key and sa.pub away if the other one is right, and run again"
                ));
                return Ok(());
            }
        }
        let action = match (&private, &public) {
            (Found::Absent | Found::Empty, Found::Absent | Found::Empty | Found::Present(_))
                if handed.is_some() =>
            {
                Ok(ServiceAccountAction::Install)
            }
            (Found::Present(private), Found::Present(public))
                if public.contains(private.public_key()) =>
            {
                if let KeyType::Rsa(bits @ ..2048) = private.key_type() {
                    self.notes
                        .push(format!("{key_path} is an RSA key of only {bits} bits"));
                }
                Ok(if exposed.is_some() {
                    ServiceAccountAction::Tighten
                } else {
                    ServiceAccountAction::Keep
                })
            }
            (Found::Present(_), Found::Present(_)) if has_served => Err(format!(
                "{key_path} and {public_path} are not a pair: tokens signed with the one are refused by the other; {copy}"
            )),
            (Found::Present(_), Found::Present(_)) => Err(format!(
                "{key_path} and {public_path} are not a pair: tokens signed with the one are refused by the other; find out which of them the cluster uses (compare with another control-plane node), then remove the wrong one and run again"
            )),
            (Found::Present(_), Found::Absent | Found::Empty) => {
                Ok(ServiceAccountAction::DerivePublic)
            }
            (Found::Unreadable(why), _) if has_served => {
                Err(format!("{key_path} is not usable: {why}; {copy}"))
            }
            (Found::Absent | Found::Empty, _) if has_served => Err(format!(
                "{key_path} is absent, and this node has certificates already; {copy}"
            )),
            (_, Found::Unreadable(why)) if has_served => {
                Err(format!("{public_path} is not usable: {why}; {copy}"))
            }
            (Found::Absent | Found::Empty, Found::Absent | Found::Empty) if spec.may_make => {
                Ok(ServiceAccountAction::Make)
            }
            (Found::Absent | Found::Empty, Found::Absent | Found::Empty) => Err(format!(
                "{key_path} is absent and this node belongs to a cluster: a new pair would differ from that of the other control-plane nodes and service-account tokens would fail; have it fetched from kubeadm-certs (join.certificateKey, or controlPlane.certificateKey of the JoinConfiguration), or copy sa.key and sa.pub from a control-plane node to {}, and run again",
                spec.private.directory()
            )),
            (Found::Absent | Found::Empty, _) => Err(format!(
                "{public_path} is there but {key_path} is not; copy the matching sa.key from where sa.pub came, or remove sa.pub if the cluster is new, and run again"
            )),
            (Found::Unreadable(why), _) => Err(format!(
                "{key_path} is not usable: {why}; restore it from another control-plane node and run again"
            )),
            (_, Found::Unreadable(why)) => Err(format!(
                "{public_path} is not usable: {why}; remove it to have it derived from sa.key and run again"
            )),
        };
        match action {
            Ok(action) => self.service_account = Some(action),
            Err(refusal) => self.refusals.push(refusal),
        }
        Ok(())
    }

    fn read_provided_files(
        &mut self,
        state: &NodeState,
        provided: &Provided,
    ) -> Result<(), store::Error> {
        for (place, file) in provided.files.iter().enumerate() {
            match state.file(&file.path).bytes()? {
                Some(found) if same_text(found, &file.bytes) => {}
                Some(found) if !found.is_empty() && !file.ours => self.refusals.push(format!(
                    "{} ({}) differs from what {} has; find out which is right, move the file away if it is the cluster's, and run again",
                    file.path,
                    file.what,
                    file.from
                )),
                _ => self.missing_files.push(place),
            }
        }
        Ok(())
    }

    /// The files of an external etcd belong to somebody else: what is wrong with them is told, nothing is changed.
    fn check_external_etcd(
        &mut self,
        state: &NodeState,
        external: &crate::spec::ExternalEtcd,
        provided: &Provided,
        now: OffsetDateTime,
    ) -> Result<(), store::Error> {
        // A file that the cluster hands over counts before it is installed.
        let read = |path: &NodePath| {
            let handed = provided.files.iter().find(|file| *file.path == **path);
            let handed = handed.map(|file| file.bytes.to_vec());
            let found = state.file(path).bytes()?.map(<[u8]>::to_vec);
            Ok::<_, store::Error>(found.or(handed).map(Zeroizing::new))
        };
        let mut report = |field: &str, path: &NodePath, problem: &str| {
            self.external_etcd
                .push(format!("etcd.external.{field} {path}: {problem}"));
        };
        let mut bundle = None;
        if let Some(path) = &external.authority {
            match Found::read(
                read(path)?.as_deref().map(Vec::as_slice),
                TrustBundle::from_pem,
            ) {
                Found::Present(found) => bundle = Some(found),
                Found::Absent => report(
                    "caFile",
                    path,
                    "is absent; provide it before kube-apiserver starts",
                ),
                Found::Empty => report("caFile", path, "is empty"),
                Found::Unreadable(why) => report("caFile", path, &why),
            }
        }
        let (Some(certificate), Some(key)) = (&external.certificate, &external.key) else {
            return Ok(());
        };
        let chain = Found::read(
            read(certificate)?.as_deref().map(Vec::as_slice),
            Chain::from_pem,
        );
        let private = Found::read(
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

    /// CA private keys that lie on this node.
    pub fn ca_keys(&self) -> impl Iterator<Item = &BundleSpec> {
        self.bundles
            .iter()
            .filter(|bundle| bundle.has_key)
            .map(|bundle| &bundle.spec)
    }

    /// The certificates that need a new key and a signature.
    pub fn to_issue(&self) -> impl Iterator<Item = &SurveyedCert> {
        self.certs
            .iter()
            .filter(|cert| matches!(cert.action, Action::Issue { .. }))
    }

    /// One certificate.
    pub fn cert(&self, name: CertName) -> Option<&SurveyedCert> {
        self.certs.iter().find(|cert| cert.spec.name == name)
    }
}

/// Whether two PEM files say the same, whatever their line ends.
fn same_text(one: &[u8], other: &[u8]) -> bool {
    fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| !line.is_empty())
    }
    lines(one).eq(lines(other))
}

/// The kubelet's client certificate in its own directory.
fn read_store(state: &NodeState, dir: &Path) -> Result<OnDisk, store::Error> {
    let KubeletStore { file, link } = state.kubelet_store(dir)?;
    let is_link = link.is_some();
    let current = match link {
        Some(target) => KubeletCurrent::Link(target),
        None if state.root().metadata(file.path())?.is_some() => KubeletCurrent::File,
        None => KubeletCurrent::Nothing,
    };
    let bytes = match is_link {
        true => file.bytes_behind_link()?,
        false => file.bytes()?,
    };
    Ok(OnDisk {
        current,
        pem: bytes.map(|bytes| Zeroizing::new(bytes.to_vec())),
        exposed: file.mode_if_exposed(),
    })
}
