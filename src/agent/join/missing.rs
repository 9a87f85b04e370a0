//! The files that a joining node lacks and takes from the Secret `kubeadm-certs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use time::OffsetDateTime;

use super::SHARED_CERTS_SECRET;
use crate::agent::{
    Failure, ProvidedBundle, ProvidedFile, RunSetup, ServiceAccount, Survey, SurveyedBundle,
};
use crate::cluster::discovery::Discovered;
use crate::kube::kubeadm_certs::{SharedCerts, SharedFile, UPLOAD_COMMAND};
use crate::kube::names::{Authority, NodePath};
use crate::signer::Signer;
use crate::signer::local::Local;
use crate::spec::ExternalEtcd;
use crate::store::{Mode, NodeRoot};
use crate::x509::{CertificateAuthority, PrivateKey, PublicKey, TrustBundle};

/// Name and label of the signer whose keys come from the Secret.
const SHARED_CERTS_SIGNER: &str = "kubeadm-certs";

/// The files that the node needs from `kubeadm-certs`.
#[derive(Default)]
pub(super) struct MissingFiles {
    pub(super) entries: BTreeSet<SharedFile>,
    /// Neither a file nor a pin says which certificate is trusted for the authority `ca`.
    pub(super) authority: bool,
    /// Only pins say which certificate is trusted for the authority `ca`.
    pinned: bool,
    /// The CA certificates on the node.
    pub(super) found: BTreeMap<Authority, TrustBundle>,
    /// Authorities without a configured signer that have to sign a certificate.
    unsigned: Vec<Authority>,
    /// Paths of the CA keys to be written to the node.
    pub(super) ca_keys: Vec<(Authority, NodePath)>,
    /// Missing files of an external etcd: the entry, the configuration field, the path.
    external_etcd: Vec<(SharedFile, &'static str, NodePath)>,
}

impl MissingFiles {
    /// Compares the files of the node with the setup.
    pub(super) fn on_node(
        root: &NodeRoot,
        setup: &RunSetup,
        write_ca_keys: bool,
        now: OffsetDateTime,
    ) -> Result<Self, Failure> {
        let plan = &setup.plan;
        let survey = setup.survey(root, now)?;
        let mut missing = MissingFiles::default();
        for bundle in &survey.bundles {
            missing.add_authority(root, setup, &survey, bundle, write_ca_keys)?;
        }
        if let Some(external) = &plan.external_etcd {
            missing.add_external_etcd(root, external)?;
        }
        if let Some(spec) = &plan.service_account
            && is_missing(root, &spec.private)?
        {
            missing.entries.insert(SharedFile::ServiceAccountKey);
        }
        if !missing.entries.is_empty() {
            // Every upload also contains these entries; they are compared with the files of the node.
            let bundles = plan.bundles.iter();
            missing
                .entries
                .extend(bundles.map(|bundle| authority_entry(setup, bundle.authority)));
            if plan.service_account.is_some() {
                let pair = [
                    SharedFile::ServiceAccountKey,
                    SharedFile::ServiceAccountPublic,
                ];
                missing.entries.extend(pair);
            }
        }
        Ok(missing)
    }

    fn add_authority(
        &mut self,
        root: &NodeRoot,
        setup: &RunSetup,
        survey: &Survey,
        bundle: &SurveyedBundle,
        write_ca_keys: bool,
    ) -> Result<(), Failure> {
        let authority = bundle.spec.authority;
        let entry = authority_entry(setup, authority);
        let pair = [entry, SharedFile::AuthorityKey(authority)];
        if bundle.found.present().is_none() {
            self.entries.insert(entry);
            if authority == Authority::Ca {
                let trust = setup.trust.get(&authority);
                self.pinned = trust.is_some_and(|trust| !trust.pins.is_empty());
                self.authority = !self.pinned;
            }
        }
        let found = bundle.found.present();
        self.found
            .extend(found.map(|found| (authority, found.clone())));
        let mut to_issue = survey.to_issue();
        if !setup.signers.contains_key(&authority)
            && to_issue.any(|cert| cert.spec.authority() == authority)
        {
            self.unsigned.push(authority);
            self.entries.extend(pair);
        }
        if write_ca_keys && is_missing(root, &bundle.spec.key_path)? {
            self.ca_keys.push((authority, bundle.spec.key_path.clone()));
            self.entries.extend(pair);
        }
        Ok(())
    }

    /// Returns whether a file has several CA certificates, as while the cluster changes a CA.
    pub(super) fn has_several_cas(&self) -> bool {
        let mut found = self.found.values();
        found.any(|found| found.certificates().len() > 1)
    }

    fn add_external_etcd(
        &mut self,
        root: &NodeRoot,
        external: &ExternalEtcd,
    ) -> Result<(), Failure> {
        let authority = (
            SharedFile::ExternalEtcdAuthority,
            "etcd.external.caFile",
            external.authority.as_ref(),
        );
        let certificate = (
            SharedFile::ExternalEtcdCertificate,
            "etcd.external.certFile",
            external.certificate.as_ref(),
        );
        let key = (
            SharedFile::ExternalEtcdKey,
            "etcd.external.keyFile",
            external.key.as_ref(),
        );
        // A key is unusable with another certificate: a pair is fetched whole and compared with the files of the node.
        for group in [vec![authority], vec![certificate, key]] {
            let mut is_incomplete = false;
            for (.., path) in &group {
                is_incomplete |= path.map_or(Ok(false), |path| is_missing(root, path))?;
            }
            if !is_incomplete {
                continue;
            }
            for (entry, field, path) in group {
                if let Some(path) = path {
                    self.external_etcd.push((entry, field, path.clone()));
                    self.entries.insert(entry);
                }
            }
        }
        Ok(())
    }

    /// Adds the reason why CA private keys were needed to a failure.
    pub(super) fn explain_unsigned(&self, mut failure: Failure) -> Failure {
        if !self.unsigned.is_empty() {
            let names = self.unsigned.iter().map(|authority| authority.as_str());
            let names: Vec<&str> = names.collect();
            failure.messages.push(format!(
                "no signer is configured for {}, so that the CA's private key was looked for in {SHARED_CERTS_SECRET}: name one under authorities or with --signer if the key is elsewhere",
                names.join(", ")
            ).into());
        }
        failure
    }

    /// Compares the CA certificates that discovery verified with those of the Secret. If the setup has none for `ca`, adds
    /// them to it, to be compared with those on disk or to be written.
    pub(super) fn verify_discovered(
        &self,
        discovered: &Discovered,
        setup: &mut RunSetup,
    ) -> Result<(), Failure> {
        let verified = &discovered.authority;
        match setup.provided.bundles.get(&Authority::Ca) {
            Some(ProvidedBundle { from, bundle, .. })
                if !verified.accepts(bundle) && !bundle.accepts(verified) =>
            {
                Err(Failure::refused(format!(
                    "{} in {from} is not the CA of the cluster at {}: it contains {bundle}, but {verified} vouches for the API server; find out which of the two was changed, then run `{UPLOAD_COMMAND}` on a control-plane node",
                    SharedFile::Authority(Authority::Ca),
                    discovered.server
                )))
            }
            None if !self.pinned => {
                let from = format!("the cluster at {}", discovered.server);
                let bundle = ProvidedBundle::new(from, verified.clone());
                setup.provided.bundles.insert(Authority::Ca, bundle);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds the decrypted entries to the setup. Returns notes on the use of CA private keys.
    pub(super) fn add_to_setup(
        &self,
        shared: &SharedCerts,
        setup: &mut RunSetup,
    ) -> Result<Vec<String>, Failure> {
        for authority in Authority::ALL {
            let entry = authority_entry(setup, authority);
            if let Some(pem) = shared.contents(entry) {
                let bundle = TrustBundle::from_pem(pem).map_err(|error| unusable(entry, error))?;
                let bundle = ProvidedBundle::new(SHARED_CERTS_SECRET.to_owned(), bundle);
                setup.provided.bundles.insert(authority, bundle);
            }
        }
        let provided = &mut setup.provided;
        if let Some(pair) = service_account(shared)? {
            provided.service_account = Some(pair);
        }
        provided.files.extend(self.files(shared));
        self.add_signer(shared, setup)
    }

    /// Returns the missing CA keys and files of an external etcd.
    fn files(&self, shared: &SharedCerts) -> impl Iterator<Item = ProvidedFile> {
        let ca_keys = self.ca_keys.iter().map(|(authority, path)| {
            let entry = SharedFile::AuthorityKey(*authority);
            (entry, "CA private key", path, Mode::Private)
        });
        let external = self.external_etcd.iter().map(|(entry, field, path)| {
            let mode = match entry {
                SharedFile::ExternalEtcdKey => Mode::Private,
                _ => Mode::Public,
            };
            (*entry, *field, path, mode)
        });
        ca_keys
            .chain(external)
            .filter_map(|(entry, what, path, mode)| {
                Some(ProvidedFile {
                    what: what.to_owned(),
                    from: SHARED_CERTS_SECRET.to_owned(),
                    path: path.clone(),
                    bytes: shared.contents(entry)?.clone(),
                    mode,
                    ours: false,
                    may_vanish: true,
                })
            })
    }

    /// Adds a signer with the CA keys of the Secret for each authority without a configured one.
    fn add_signer(
        &self,
        shared: &SharedCerts,
        setup: &mut RunSetup,
    ) -> Result<Vec<String>, Failure> {
        let mut authorities = Vec::new();
        for authority in &self.unsigned {
            let (Some(certificate), Some(key)) = (
                shared.contents(SharedFile::Authority(*authority)),
                shared.contents(SharedFile::AuthorityKey(*authority)),
            ) else {
                continue;
            };
            let signing = CertificateAuthority::from_pem(certificate, key)
                .map_err(|error| unusable(SharedFile::AuthorityKey(*authority), error))?;
            authorities.push((*authority, signing));
        }
        if authorities.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = authorities
            .iter()
            .map(|(authority, _)| SharedFile::AuthorityKey(*authority).as_str())
            .collect();
        let note = format!(
            "no signer is configured: {} of {SHARED_CERTS_SECRET} sign in the memory of this run",
            keys.join(", ")
        );
        let signer: Rc<dyn Signer> = Rc::new(Local::in_memory(SHARED_CERTS_SIGNER, authorities));
        for authority in &self.unsigned {
            let signer = (SHARED_CERTS_SIGNER.to_owned(), Rc::clone(&signer));
            setup.signers.insert(*authority, signer);
        }
        Ok(vec![note])
    }
}

/// Returns the entry with the certificate of an authority. That of an external etcd has a name of its own.
fn authority_entry(setup: &RunSetup, authority: Authority) -> SharedFile {
    match authority {
        Authority::EtcdCa if setup.plan.layout.has_external_etcd() => {
            SharedFile::ExternalEtcdAuthority
        }
        authority => SharedFile::Authority(authority),
    }
}

fn is_missing(root: &NodeRoot, path: &Path) -> Result<bool, Failure> {
    Ok(root.metadata(path)?.is_none_or(|found| found.size == 0))
}

/// Returns the service-account pair of the Secret. An upload without `sa.pub` has the public key of `sa.key` only.
fn service_account(shared: &SharedCerts) -> Result<Option<ServiceAccount>, Failure> {
    let Some(pem) = shared.contents(SharedFile::ServiceAccountKey) else {
        return Ok(None);
    };
    let key = PrivateKey::from_pem(pem)
        .map_err(|error| unusable(SharedFile::ServiceAccountKey, error))?;
    let entry = SharedFile::ServiceAccountPublic;
    let public = shared
        .contents(entry)
        .map(|pem| PublicKey::all_from_pem(pem));
    let public = public.transpose().map_err(|error| unusable(entry, error))?;
    Ok(Some(ServiceAccount {
        from: SHARED_CERTS_SECRET.to_owned(),
        public: public.unwrap_or_else(|| vec![key.public_key().clone()]),
        key,
    }))
}

fn unusable(entry: SharedFile, error: impl std::error::Error + 'static) -> Failure {
    Failure::refused(format!(
        "{} in {SHARED_CERTS_SECRET} is unusable",
        entry.as_str()
    ))
    .caused_by(error)
    .advise(format!("run `{UPLOAD_COMMAND}` on a control-plane node"))
}
