//! The service-account key pair in a commit.

use super::CommitWork;
use crate::agent::{Failure, ReportRow, RowAction, RunSetup, ServiceAccountAction, report};
use crate::kube::components::ReplacedFile;
use crate::kube::names::Authority;
use crate::spec::ServiceAccountSpec;
use crate::store::Mode;
use crate::x509::{PrivateKey, PublicKey};

impl CommitWork<'_> {
    pub(super) fn service_account_change(
        &mut self,
        setup: &RunSetup,
        spec: &ServiceAccountSpec,
        action: &ServiceAccountAction,
        generated: Option<&PrivateKey>,
    ) -> Result<ReportRow, Failure> {
        let provided = setup.provided.service_account.as_ref();
        let key = match action {
            ServiceAccountAction::Install => provided.map(|provided| &provided.key),
            _ => generated,
        };
        let public = provided.map_or(&[][..], |provided| &provided.public);
        let done = self.service_account(spec, action, key, public)?;
        for path in [&spec.private, &spec.public] {
            self.commit
                .change(ReplacedFile::ServiceAccount, path.clone(), self.now);
        }
        Ok(report::service_account_row(spec, done))
    }

    fn service_account(
        &mut self,
        spec: &ServiceAccountSpec,
        action: &ServiceAccountAction,
        key: Option<&PrivateKey>,
        provided: &[PublicKey],
    ) -> Result<RowAction, Failure> {
        // A generated pair is useless until the API server has its certificate, and a refused run changes nothing.
        let is_held = match action {
            ServiceAccountAction::Install => self.refused,
            _ => self.incomplete.contains_key(&Authority::Ca),
        };
        Ok(match (action, key) {
            (ServiceAccountAction::Keep, _)
            | (ServiceAccountAction::Make | ServiceAccountAction::Install, None) => RowAction::Kept,
            _ if is_held => RowAction::HeldBack,
            (ServiceAccountAction::Make, Some(key)) => {
                let public = key.public_key().to_pem();
                self.service_account_private(spec, key);
                self.service_account_public(spec, public, Mode::Private);
                RowAction::Made
            }
            (ServiceAccountAction::Install, Some(key)) => {
                self.service_account_private(spec, key);
                // An existing sa.pub already contains the key; it may contain others.
                let found = self.root.read(&spec.public)?;
                if found.is_none_or(|found| found.bytes.is_empty()) {
                    // Mode of `kubeadm join`.
                    let public = provided.iter().map(PublicKey::to_pem).collect();
                    self.service_account_public(spec, public, Mode::Public);
                }
                RowAction::Written
            }
            (ServiceAccountAction::DerivePublic, _) => {
                self.derive_public(spec)?;
                RowAction::PublicDerived
            }
            (ServiceAccountAction::Tighten, _) => {
                if let Some(private) = self.root.read(&spec.private)? {
                    self.commit
                        .file(spec.private.clone(), private.bytes, Mode::Private);
                }
                RowAction::Tightened
            }
        })
    }

    fn service_account_private(&mut self, spec: &ServiceAccountSpec, key: &PrivateKey) {
        let private = key.to_pem().as_bytes().to_vec();
        self.commit
            .file_if_absent(spec.private.clone(), private, Mode::Private);
    }

    fn service_account_public(&mut self, spec: &ServiceAccountSpec, public: String, mode: Mode) {
        self.commit
            .file_if_absent(spec.public.clone(), public.into_bytes(), mode);
    }

    /// Writes sa.pub again from sa.key, and closes sa.key to other users.
    fn derive_public(&mut self, spec: &ServiceAccountSpec) -> Result<(), Failure> {
        let Some(private) = self.root.read(&spec.private)? else {
            return Ok(());
        };
        let key = PrivateKey::from_pem(&private.bytes)
            .map_err(|error| Failure::refused(spec.private.to_string()).caused_by(error))?;
        let public = key.public_key().to_pem().into_bytes();
        self.commit.file(spec.public.clone(), public, Mode::Private);
        if private.metadata.mode & 0o007 != 0 {
            self.commit
                .file(spec.private.clone(), private.bytes, Mode::Private);
        }
        Ok(())
    }
}
