//! Findings on a usable configuration, for `config check` and `preflight`: settings without effect, files that are still
//! missing, pins that do not match. A run reports each of them when it matters; here they are known before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use time::OffsetDateTime;

use super::{Loaded, contents, secrets};
use crate::agent::{ExitCode, Failure, Survey};
use crate::kube::kubeadm::KubeadmRole;
use crate::kube::names::Authority;
use crate::signer::{self, SignerKind};
use crate::spec::assess::Observed;
use crate::store::NodeRoot;

/// What an audit finds.
#[derive(Debug, Default)]
pub struct ConfigurationAudit {
    /// Faults that a run would refuse.
    pub errors: Vec<String>,
    /// Files whose content cannot serve their setting.
    pub unusable: Vec<String>,
    /// Accepted, but probably not intended or not complete.
    pub warnings: Vec<String>,
}

impl ConfigurationAudit {
    /// Returns the errors as a failure.
    ///
    /// # Errors
    /// If there is an error.
    pub fn require_usable(&self) -> Result<(), Failure> {
        let code = match (self.errors.is_empty(), self.unusable.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => ExitCode::Configuration,
            (false, _) => ExitCode::Refused,
        };
        let messages: Vec<String> = self.errors.iter().chain(&self.unusable).cloned().collect();
        Err(Failure::with_messages(code, messages))
    }
}

impl Loaded {
    /// Audits the configuration against the files of the node. Reads only.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn audit(
        &self,
        root: &NodeRoot,
        now: OffsetDateTime,
    ) -> Result<ConfigurationAudit, Failure> {
        let survey = self.setup.survey_of(&self.state, now)?;
        let mut audit = ConfigurationAudit {
            errors: self.mismatched_pins(&survey),
            unusable: contents::unusable_files(root, &self.settings, now),
            warnings: secrets::absent_files(root, &self.settings),
        };
        for fault in contents::unusable_programs(root, &self.settings) {
            if fault.is_absent {
                audit.warnings.push(fault.text);
            } else {
                audit.unusable.push(fault.text);
            }
        }
        let doubtful = contents::doubtful_authorities(root, &self.settings, now);
        audit.warnings.extend(doubtful);
        audit.warnings.extend(self.denied_to_units(root));
        audit.warnings.extend(self.missing_authorities(&survey));
        audit.warnings.extend(self.renewals_without_effect());
        audit.warnings.extend(self.shared_mounts());
        audit.warnings.extend(self.unsigned_authorities());
        Ok(audit)
    }

    /// Returns what stops a bootstrap, by the files of this machine alone: CA certificates that are missing, and files of the
    /// signers that it needs which are absent, exposed, or of no use.
    pub fn obstacles(
        &self,
        root: &NodeRoot,
        survey: &Survey,
        now: OffsetDateTime,
    ) -> ConfigurationAudit {
        let mut found = ConfigurationAudit {
            unusable: self.missing_authorities(survey),
            ..ConfigurationAudit::default()
        };
        let needed = survey.to_issue().map(|cert| cert.spec.authority());
        let needed = needed.filter_map(|authority| self.settings.signer_of(authority));
        let needed: BTreeSet<&str> = needed.map(|(name, _)| name).collect();
        if needed.is_empty() {
            return found;
        }
        let mut settings = self.settings.clone();
        settings
            .signers
            .retain(|name, _| needed.contains(name.as_str()));
        let programs = contents::unusable_programs(root, &settings).into_iter();
        found.errors.extend(secrets::exposed_files(root, &settings));
        found
            .unusable
            .extend(secrets::absent_files(root, &settings));
        found
            .unusable
            .extend(contents::unusable_files(root, &settings, now));
        found.unusable.extend(programs.map(|fault| fault.text));
        found
    }

    /// Authorities without a signer, although others have one.
    fn unsigned_authorities(&self) -> Vec<String> {
        let settings = &self.settings;
        let Some(name) = settings.signers.keys().next() else {
            return Vec::new();
        };
        let unsigned = Authority::ALL.into_iter().filter(|authority| {
            settings.signer_of(*authority).is_none()
                && self.setup.requested(*authority).next().is_some()
        });
        unsigned
            .map(|authority| {
                format!(
                    "authorities.{authority}.signer is not set, and several signers are defined: its certificates are signed with `nodepki csr export` only (add authorities: {{{authority}: {{signer: {name}}}}}, or the name of another signer)"
                )
            })
            .collect()
    }

    fn mismatched_pins(&self, survey: &Survey) -> Vec<String> {
        let bundles = survey.bundles.iter();
        bundles
            .filter_map(|bundle| {
                let authority = bundle.spec.authority;
                let pins = &self.settings.authorities.get(&authority)?.trust_sha256;
                let error = bundle.found.present()?.require_pins(pins).err()?;
                Some(format!(
                    "authorities.{authority}.trust.sha256 does not match {}: {error} (correct the pin or the file)",
                    bundle.spec.path
                ))
            })
            .collect()
    }

    /// Returns a message for each CA certificate that neither a file nor a pin provides. A joining node can take it
    /// from its cluster.
    fn missing_authorities(&self, survey: &Survey) -> Vec<String> {
        if !matches!(self.node.role, KubeadmRole::Init | KubeadmRole::Etcd) {
            return Vec::new();
        }
        let absent = survey
            .bundles
            .iter()
            .filter(|bundle| bundle.found.present().is_none());
        absent
            .filter_map(|bundle| {
                let authority = bundle.spec.authority;
                let (_, config) = self.settings.signer_of(authority)?;
                if matches!(config.kind(), SignerKind::Local | SignerKind::Embedded) {
                    return None;
                }
                let settings = self.settings.authorities.get(&authority)?;
                let path = &bundle.spec.path;
                match (&settings.trust_file, settings.trust_sha256.is_empty()) {
                    (Some(file), _) => Some(format!(
                        "authorities.{authority}.trust.file: {} does not contain a CA certificate (put it there, or into {path})",
                        file.display()
                    )),
                    (None, true) => Some(format!(
                        "{path} {}, and no pin confirms the CA of the signer (put the CA certificate there, or its pin under authorities.{authority}.trust.sha256)",
                        match bundle.found {
                            Observed::Empty => "is empty",
                            _ => "does not exist",
                        }
                    )),
                    (None, false) => None,
                }
            })
            .collect()
    }

    /// One warning for each lifetime, with the certificates that have it.
    fn renewals_without_effect(&self) -> Vec<String> {
        let mut names: BTreeMap<Duration, Vec<&str>> = BTreeMap::new();
        for spec in &self.setup.plan.certs {
            let lifetime = spec.requested.profile.lifetime;
            names
                .entry(lifetime)
                .or_default()
                .push(spec.name().as_str());
        }
        let is_only = names.len() == 1;
        let rotation = &self.settings.rotation;
        let warnings = names.into_iter().filter_map(|(lifetime, names)| {
            let warning = rotation.without_effect(lifetime)?;
            Some(if is_only {
                warning
            } else {
                format!("{}: {warning}", names.join(", "))
            })
        });
        warnings.collect()
    }

    /// Signers that get every authority's certificates from one CA.
    fn shared_mounts(&self) -> Vec<String> {
        let signers = self.settings.signers.iter();
        signers
            .filter_map(|(name, config)| {
                let signer::Config::Vault(vault) = config else {
                    return None;
                };
                let served: Vec<Authority> = Authority::ALL
                    .into_iter()
                    .filter(|authority| self.setup.requested(*authority).next().is_some())
                    .filter(|authority| {
                        let signer = self.settings.signer_of(*authority);
                        signer.is_some_and(|(signer, _)| signer == name)
                    })
                    .collect();
                let identity = &self.setup.identity;
                let mut issuers: Vec<_> =
                    served.iter().map(|one| vault.issuer_place(*one, identity)).collect();
                issuers.sort();
                issuers.dedup();
                if issuers.len() == served.len() {
                    return None;
                }
                let names: Vec<&str> = served.iter().map(|one| one.as_str()).collect();
                Some(format!(
                    "signers.{name}.vault.mount: {} signs for {} with one CA, whose client certificates then pass for those of the others (write {{authority}} in mount or issuer, as in pki/{{authority}})",
                    vault.mount,
                    names.join(", ")
                ))
            })
            .collect()
    }
}
