//! From verified answers to one commit: what is installed, what is held back, and what each row of the report says.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;

use super::request::Outcome;
use super::{
    ExitCode, Failure, Outcomes, Report, ServiceAccountAction, Setup, Survey, SurveyedCert, report,
};
use crate::assess::{Action, Found, beyond_authority};
use crate::failpoint;
use crate::kubeconfig::{Credentials, Kubeconfig, KubeconfigError};
use crate::names::Authority;
use crate::plan::{CertSpec, Output};
use crate::store::{Commit, Issued, Mode, Slot, Store};
use crate::x509::{Chain, PrivateKey, TrustBundle, hex};

/// Installs whole families: all that one authority was asked for, or nothing of it.
pub(super) async fn install(
    setup: &Setup,
    store: &mut Store,
    trust: &BTreeMap<Authority, TrustBundle>,
    survey: Survey,
    mut outcomes: Outcomes,
    now: OffsetDateTime,
) -> Result<Report, Failure> {
    let incomplete: Vec<Authority> = outcomes
        .certs
        .iter()
        .filter(|(_, outcome)| !matches!(outcome, Outcome::Signed { .. }))
        .map(|(name, _)| name.authority())
        .collect();
    let mut commit = Commit::new();
    let mut rows = Vec::new();
    let mut installed = Vec::new();
    for bundle in &survey.bundles {
        let authority = bundle.spec.authority;
        let trusted = trust
            .get(&authority)
            .filter(|_| !incomplete.contains(&authority));
        if let (Some(trusted), false) = (
            trusted,
            store
                .root()
                .metadata(&bundle.spec.path)?
                .is_some_and(|found| found.size > 0),
        ) {
            commit.file_if_absent(
                bundle.spec.path.clone(),
                trusted.to_pem().into_bytes(),
                Mode::Public,
            );
            rows.push(report::bundle_row(&bundle.spec, "written", trusted));
        } else if let Some(trusted) = bundle.found.present() {
            rows.push(report::bundle_row(&bundle.spec, "kept", trusted));
        }
    }
    for cert in survey.certs {
        let SurveyedCert {
            spec,
            found,
            action,
        } = cert;
        let authority = spec.authority;
        let Some(trusted) = trust.get(&authority) else {
            continue;
        };
        let whole = !incomplete.contains(&authority);
        let row = match (action, outcomes.certs.remove(&spec.name)) {
            (
                Action::Issue { reasons },
                Some(Outcome::Signed {
                    chain,
                    key,
                    request,
                }),
            ) if whole => {
                let written = Written {
                    spec: &spec,
                    chain: &chain,
                    key: &key,
                    trust: trusted,
                };
                written.into_commit(
                    &mut commit,
                    found.kubeconfig.map(|kubeconfig| kubeconfig.document),
                )?;
                commit.issued(spec.name, record(&chain, now));
                commit.completes(Slot::Certificate(spec.name));
                let mut row = report::cert_row(&spec, "issued", reasons, Some(&chain));
                row.reasons.extend(beyond_authority(&chain, trusted));
                installed.push((authority, request));
                row
            }
            (Action::Issue { reasons }, Some(Outcome::Signed { .. })) => {
                let mut row = report::cert_row(&spec, "held back", reasons, found.chain.present());
                row.reasons.push(format!(
                    "signed, and installed together with the rest of what {authority} signs"
                ));
                row.code = Some(ExitCode::Pending);
                row
            }
            (Action::Issue { .. }, Some(outcome)) => {
                let serves = SurveyedCert {
                    spec: spec.clone(),
                    found,
                    action: Action::Keep { notes: Vec::new() },
                };
                let still_serves = serves.still_serves(Some(trusted), now);
                report::failed_row(&spec, outcome, still_serves, serves.found.chain.present())
            }
            (Action::Rewrite { reasons }, _) if whole => {
                if let (Found::Present(chain), Found::Present(key)) = (&found.chain, &found.key) {
                    let written = Written {
                        spec: &spec,
                        chain,
                        key,
                        trust: trusted,
                    };
                    match found.kubeconfig {
                        Some(kubeconfig) if kubeconfig.by_file => {
                            written.cluster_into_commit(&mut commit, kubeconfig.document)?;
                        }
                        other => written.into_commit(
                            &mut commit,
                            other.map(|kubeconfig| kubeconfig.document),
                        )?,
                    }
                }
                report::cert_row(&spec, "rewritten", reasons, found.chain.present())
            }
            (Action::Keep { notes }, _) => {
                report::cert_row(&spec, "kept", notes, found.chain.present())
            }
            (Action::Issue { reasons } | Action::Rewrite { reasons }, _) => {
                report::cert_row(&spec, "held back", reasons, found.chain.present())
            }
            (Action::Refuse { reason }, _) => {
                report::cert_row(&spec, "refused", vec![reason], found.chain.present())
            }
        };
        rows.push(row);
    }
    if let (Some(spec), Some(action)) = (&setup.plan.service_account, &survey.service_account) {
        let made = match action {
            ServiceAccountAction::Keep => "kept",
            ServiceAccountAction::Make => {
                if let Some(key) = &outcomes.service_account {
                    commit.file_if_absent(
                        spec.private.clone(),
                        key.to_pem().as_bytes().to_vec(),
                        Mode::Private,
                    );
                    let public = key.public_key().to_pem().into_bytes();
                    commit.file_if_absent(spec.public.clone(), public, Mode::Private);
                }
                "made"
            }
            ServiceAccountAction::DerivePublic => {
                if let Some(private) = store.root().read(&spec.private)? {
                    let key = PrivateKey::from_pem(&private.bytes).map_err(|error| {
                        Failure::new(
                            ExitCode::Refused,
                            format!("{}: {error}", spec.private.display()),
                        )
                    })?;
                    commit.file(
                        spec.public.clone(),
                        key.public_key().to_pem().into_bytes(),
                        Mode::Private,
                    );
                }
                "sa.pub derived"
            }
        };
        rows.push(report::service_account_row(spec, made));
    }
    failpoint::reached("run:before-commit");
    let committed = store.commit(commit)?;
    failpoint::reached("run:committed");
    let mut notes = survey.notes;
    notes.extend(committed.notes.iter().map(ToString::to_string));
    for (authority, request) in installed {
        let (_, signer) = setup.signer(authority)?;
        if let Err(error) = signer.settled(&request).await {
            notes.push(error.to_string());
        }
    }
    Ok(Report {
        rows,
        notes,
        written: committed.written,
    })
}

fn record(chain: &Chain, now: OffsetDateTime) -> Issued {
    let leaf = chain.leaf();
    Issued {
        at: now,
        serial: leaf.serial().to_owned(),
        not_after: leaf.not_after(),
        sha256: hex(&leaf.fingerprint()),
    }
}

/// A certificate with its key on the way to its place.
struct Written<'a> {
    spec: &'a CertSpec,
    chain: &'a Chain,
    key: &'a PrivateKey,
    trust: &'a TrustBundle,
}

impl Written<'_> {
    fn into_commit(self, commit: &mut Commit, existing: Option<Kubeconfig>) -> Result<(), Failure> {
        let (certificate_pem, key_pem) = (self.chain.to_pem(), self.key.to_pem());
        match &self.spec.output {
            Output::Pair { certificate, key } => {
                commit.file(key.clone(), key_pem.as_bytes().to_vec(), Mode::Private);
                commit.file(
                    certificate.clone(),
                    certificate_pem.into_bytes(),
                    Mode::Public,
                );
            }
            Output::Kubeconfig {
                path,
                server,
                cluster,
                user,
            } => {
                let authority = self.trust.first().to_pem();
                let credentials = Credentials {
                    server,
                    authority: &authority,
                    certificate: &certificate_pem,
                    key: &key_pem,
                };
                let document = match existing {
                    Some(mut document) => {
                        document
                            .set_credentials(&credentials)
                            .map_err(|error| unrepairable(path, &error))?;
                        document
                    }
                    None => Kubeconfig::new(cluster, user, &credentials),
                };
                commit.file(
                    path.clone(),
                    document.to_yaml().as_bytes().to_vec(),
                    Mode::Private,
                );
            }
        }
        Ok(())
    }

    /// For a kubeconfig that names its certificate by file: those files are the kubelet's.
    fn cluster_into_commit(
        self,
        commit: &mut Commit,
        mut document: Kubeconfig,
    ) -> Result<(), Failure> {
        if let Output::Kubeconfig { path, server, .. } = &self.spec.output {
            document
                .set_cluster(server, &self.trust.first().to_pem())
                .map_err(|error| unrepairable(path, &error))?;
            commit.file(
                path.clone(),
                document.to_yaml().as_bytes().to_vec(),
                Mode::Private,
            );
        }
        Ok(())
    }
}

fn unrepairable(path: &Path, error: &KubeconfigError) -> Failure {
    Failure::new(
        ExitCode::Refused,
        format!("{}: {error}; move it away and run again", path.display()),
    )
}
