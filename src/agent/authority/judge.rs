//! Judges the progress of a CA change on one node, and what the next step still requires.
//!
//! Pure: takes certificates, and returns sentences. The node's files determine what it trusts; the record only tells which
//! of the certificates is the old one. To add a requirement, add a sentence to [`Evidence::unstaged`] or
//! [`Evidence::unactivated`]; all of them are reported together.

mod offer;

use std::path::Path;

use time::OffsetDateTime;

use crate::kube::components::Component;
use crate::kube::names::{Authority, NodePath};
use crate::spec::assess::Observed;
use crate::store::AuthorityChange;
use crate::text::hex;
use crate::x509::{CertDifference, Certificate, Chain, TrustBundle, path_differences};

pub use offer::Offer;

words! {
    /// Progress of a CA change on this node.
    pub enum ChangePhase: Serialize, Deserialize {
        /// No change is in progress.
        Settled = "settled",
        /// Both CAs are trusted, and the old one is first.
        Staged = "staged",
        /// Both CAs are trusted, and the new one is first.
        Activated = "activated",
    }
}

/// The state of one authority on this node. File names are paths on this machine.
pub struct Evidence {
    /// The authority.
    pub authority: Authority,
    /// Path of the authority's `ca.crt`.
    pub file: String,
    /// Certificates in `ca.crt`, in order.
    pub bundle: Vec<Certificate>,
    /// Kubeconfigs that trust the authority, copies of its bundle, and other files with which static pods verify its
    /// certificates.
    pub kubeconfigs: Vec<TrustingFile>,
    /// Certificates on this node that the authority has signed.
    pub leaves: Vec<SignedLeaf>,
    /// Signing certificates of kube-controller-manager; for `ca` only.
    pub signing: Vec<SigningFlag>,
    /// The recorded change.
    pub change: Option<AuthorityChange>,
    /// Components that may not have read the present files yet, each with what to do, in sentences.
    pub restarts: Vec<String>,
    /// Components that were rolled back in a step of this authority's change.
    pub rolled_back: Vec<RolledBack>,
}

/// A component that did not become ready with new CA certificates and has its former files again.
pub struct RolledBack {
    /// The component.
    pub component: Component,
    /// The failure, as a clause.
    pub why: String,
}

/// A kubeconfig that trusts the authority, or a copy of its bundle.
pub struct TrustingFile {
    /// Path.
    pub file: String,
    /// The CA certificates in it, or why they are unreadable.
    pub certificates: Result<Vec<Certificate>, String>,
    /// File that contains the CA certificates, if they are not embedded. nodepki does not write it.
    pub elsewhere: Option<String>,
}

/// A certificate that the authority has signed.
pub struct SignedLeaf {
    /// kubeadm's name, or a description.
    pub name: String,
    /// Path of the file.
    pub file: String,
    /// The certificate chain.
    pub chain: Observed<Chain>,
    /// For a certificate that nodepki does not issue: how it is replaced.
    pub foreign: Option<&'static str>,
}

/// A `--cluster-signing-…-cert-file` flag of kube-controller-manager.
pub struct SigningFlag {
    /// Name of the flag, without dashes.
    pub flag: &'static str,
    /// Path in the flag.
    pub value: String,
    /// File on the node that the flag names.
    pub file: NodePath,
    /// Whether `file` is the authority's bundle.
    pub is_bundle: bool,
    /// Manifest that contains the flag.
    pub manifest: NodePath,
    /// Certificates in `file`.
    pub certificates: Vec<Certificate>,
}

/// Desired content of the files after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeTarget {
    /// Certificates of the bundle, in order.
    pub bundle: Vec<Certificate>,
    /// Certificates that are no longer trusted.
    pub dropped: Vec<Certificate>,
    /// The change to be recorded.
    pub change: Option<AuthorityChange>,
}

impl ChangeTarget {
    /// Returns the CA data of a kubeconfig that has `found` now: the roots of the bundle, then other certificates that are
    /// not dropped.
    pub fn kubeconfig(&self, found: &[Certificate]) -> Vec<Certificate> {
        let first = self.bundle.first();
        let roots = self
            .bundle
            .iter()
            .filter(|certificate| Some(*certificate) == first || is_root(certificate));
        let mut wanted: Vec<Certificate> = roots.cloned().collect();
        for certificate in found {
            if !wanted.contains(certificate) && !self.dropped.contains(certificate) {
                wanted.push(certificate.clone());
            }
        }
        wanted
    }
}

fn is_root(certificate: &Certificate) -> bool {
    certificate.is_ca() && certificate.is_self_signed()
}

/// A part of a step of a cluster-wide rotation, with the CA that it concerns.
#[derive(Clone, Copy, Debug)]
pub enum TrustPart<'a> {
    /// Trust it too.
    Add(&'a Certificate),
    /// Place it first.
    Lead(&'a Certificate),
    /// Trust it no longer.
    Remove(&'a Certificate),
}

/// Returns the SHA-256 of a certificate, in hexadecimal.
pub fn fingerprint(certificate: &Certificate) -> String {
    hex(&certificate.fingerprint())
}

/// Returns the name of a certificate for messages.
pub fn named(certificate: &Certificate) -> String {
    let print = fingerprint(certificate);
    format!(
        "{} (certificate sha256:{}…)",
        certificate.subject(),
        print.get(..16).unwrap_or(&print)
    )
}

/// Relation of the new CA to the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// Same name and key: certificates under the old one stay valid.
    Renewal,
    /// Different name or key.
    Other,
}

impl Evidence {
    fn roots(&self) -> impl Iterator<Item = &Certificate> {
        self.bundle
            .iter()
            .filter(|certificate| is_root(certificate))
    }

    fn in_bundle(&self, sha256: &str) -> Option<&Certificate> {
        self.bundle
            .iter()
            .find(|certificate| fingerprint(certificate) == sha256)
    }

    /// Returns whether the bundle lacks the old CA or the new one.
    fn is_finished(&self, change: &AuthorityChange) -> bool {
        let is_left = |sha256: &String| self.in_bundle(sha256).is_some();
        self.in_bundle(&change.new).is_none() || !change.old.iter().any(is_left)
    }

    /// Returns the recorded change if the bundle agrees that it is in progress.
    pub fn in_progress(&self) -> Option<&AuthorityChange> {
        self.change
            .as_ref()
            .filter(|change| !self.is_finished(change))
    }

    /// Returns the phase, which follows from the order of the bundle.
    pub fn phase(&self) -> ChangePhase {
        match self.in_progress() {
            None => ChangePhase::Settled,
            Some(change) => match self.bundle.first() {
                Some(first) if fingerprint(first) == change.new => ChangePhase::Activated,
                _ => ChangePhase::Staged,
            },
        }
    }

    /// Returns the new certificate.
    pub fn incoming(&self) -> Option<&Certificate> {
        self.in_bundle(&self.in_progress()?.new)
    }

    /// Returns the new CA of a change that is not in progress, if kubeconfigs still trust it: `ca.crt` was rolled back or
    /// replaced without them.
    fn left_behind(&self) -> Option<&Certificate> {
        let change = self.change.as_ref()?;
        let trusted = self.kubeconfigs.iter();
        let trusted = trusted.filter_map(|trusting| trusting.certificates.as_ref().ok());
        let mut left = trusted.flatten().filter(|one| !self.bundle.contains(one));
        left.find(|one| fingerprint(one) == change.new)
    }

    /// Returns the certificate that [`Evidence::undone`] removes: a staged one, or one that only kubeconfigs trust.
    pub fn unwanted(&self) -> Option<&Certificate> {
        self.incoming().or_else(|| self.left_behind())
    }

    /// Returns the certificates to be retired.
    pub fn outgoing(&self) -> Vec<&Certificate> {
        let change = self.in_progress();
        let old = change.into_iter().flat_map(|change| &change.old);
        old.filter_map(|sha256| self.in_bundle(sha256)).collect()
    }

    /// Returns the relation of `new` to the CA that it replaces.
    pub fn kinship(&self, new: &Certificate) -> Kinship {
        let old = self.outgoing();
        let old = old.first().copied().or(self.bundle.first());
        match old {
            Some(old) if old.public_key() == new.public_key() && old.subject() == new.subject() => {
                Kinship::Renewal
            }
            _ => Kinship::Other,
        }
    }

    /// Returns the target of staging: the present certificates in their order, then the new one if it is missing.
    ///
    /// # Errors
    /// The certificate to be replaced is ambiguous.
    pub fn staged(&self, new: &Certificate, now: OffsetDateTime) -> Result<ChangeTarget, String> {
        let mut bundle = self.bundle.clone();
        if !bundle.contains(new) {
            bundle.push(new.clone());
        }
        let change = match self.in_progress() {
            Some(change) => change.clone(),
            None => self.new_change(new, now)?,
        };
        Ok(ChangeTarget {
            bundle,
            dropped: Vec::new(),
            change: Some(change),
        })
    }

    /// Returns the record of a change to `new`. If other software began the change, the order of the bundle tells whether
    /// the new CA is activated.
    fn new_change(
        &self,
        new: &Certificate,
        now: OffsetDateTime,
    ) -> Result<AuthorityChange, String> {
        let is_first = self.bundle.first() == Some(new);
        let mut roots = self.roots().filter(|root| *root != new);
        // Only the first certificate is the CA; others stay trusted.
        let old = if is_first {
            roots.next().filter(|_| roots.next().is_none())
        } else {
            self.bundle.first()
        };
        let Some(old) = old else {
            return Err(format!(
                "{} contains {} after {}, and the CA to be replaced is ambiguous (remove the obsolete certificates manually, there and in the kubeconfigs)",
                self.file,
                self.bundle
                    .iter()
                    .skip(1)
                    .map(named)
                    .collect::<Vec<_>>()
                    .join(", "),
                named(new)
            ));
        };
        let below = TrustBundle::from_certificates(
            std::iter::once(old)
                .chain(self.bundle.iter().filter(|one| !one.is_self_signed()))
                .cloned()
                .collect(),
        );
        let strangers = below.as_ref().map_or_else(
            |_| Vec::new(),
            |below| below.unpinned(&[old.public_key().sha256()]),
        );
        let mut replaced = vec![fingerprint(old)];
        let others = self.bundle.iter().filter(|one| !one.is_self_signed());
        replaced.extend(
            others
                .filter(|one| *one != old && !strangers.contains(one))
                .map(fingerprint),
        );
        Ok(AuthorityChange {
            old: replaced,
            new: fingerprint(new),
            staged: now,
            activated: is_first.then_some(now),
        })
    }

    /// Returns the target of activation: the new certificate first.
    pub fn activated(&self, now: OffsetDateTime) -> Option<ChangeTarget> {
        let (change, new) = (self.in_progress()?, self.incoming()?);
        let others = self.bundle.iter().filter(|one| *one != new);
        Some(ChangeTarget {
            bundle: std::iter::once(new).chain(others).cloned().collect(),
            dropped: Vec::new(),
            change: Some(AuthorityChange {
                activated: change.activated.or(Some(now)),
                ..change.clone()
            }),
        })
    }

    /// Returns the target that a cluster-wide rotation from `old` to `new` requires for a part of a step. Independent of the
    /// local phase: a node may have joined in any phase.
    pub fn rotated(
        &self,
        (old, new): (&Certificate, &Certificate),
        part: TrustPart<'_>,
        now: OffsetDateTime,
    ) -> ChangeTarget {
        let recorded = self.change.as_ref().filter(|change| {
            change.new == fingerprint(new) && change.old.first() == Some(&fingerprint(old))
        });
        let mut change = match recorded {
            Some(change) => change.clone(),
            None => AuthorityChange {
                old: vec![fingerprint(old)],
                new: fingerprint(new),
                staged: now,
                activated: None,
            },
        };
        let mut bundle = self.bundle.clone();
        let mut dropped = Vec::new();
        match part {
            TrustPart::Add(ca) => {
                if !bundle.contains(ca) {
                    bundle.push(ca.clone());
                }
            }
            TrustPart::Lead(ca) => {
                bundle.retain(|one| one != ca);
                bundle.insert(0, ca.clone());
            }
            TrustPart::Remove(ca) => {
                // With the old root, the CAs below it that the change has recorded: under them, its certificates would
                // still verify.
                let below = self.bundle.iter().filter(|one| {
                    ca == old && change.old.contains(&fingerprint(one)) && *one != ca
                });
                dropped.push(ca.clone());
                dropped.extend(below.cloned());
                bundle.retain(|one| !dropped.contains(one));
            }
        }
        change.activated = match bundle.first() {
            Some(first) if first == new => change.activated.or(Some(now)),
            _ => None,
        };
        ChangeTarget {
            bundle,
            change: dropped.is_empty().then_some(change),
            dropped,
        }
    }

    /// Returns the target of retirement: without the old certificates.
    pub fn retired(&self) -> Option<ChangeTarget> {
        self.in_progress()?;
        Some(self.without(&self.outgoing()))
    }

    /// Returns the target of `stage --undo`: without the new certificate.
    pub fn undone(&self) -> Option<ChangeTarget> {
        Some(self.without(&[self.unwanted()?]))
    }

    fn without(&self, dropped: &[&Certificate]) -> ChangeTarget {
        let kept = self.bundle.iter().filter(|one| !dropped.contains(one));
        ChangeTarget {
            bundle: kept.cloned().collect(),
            dropped: dropped.iter().copied().cloned().collect(),
            change: None,
        }
    }

    /// Returns what prevents that this node trusts both CAs; an empty result proves that the new CA is staged.
    pub fn unstaged(&self) -> Vec<String> {
        let Some(new) = self.incoming() else {
            return vec![format!(
                "no new CA is staged (run nodepki authority stage {} --certificate FILE)",
                self.authority
            )];
        };
        let mut missing = Vec::new();
        let old = self.outgoing();
        let both = || old.first().copied().into_iter().chain([new]);
        for trusting in &self.kubeconfigs {
            missing.extend(trusting.lacks(both(), self.authority));
        }
        missing.extend(self.restarts.iter().cloned());
        missing.extend(self.rollbacks());
        missing.extend(self.signing_trouble());
        missing
    }

    /// Returns what a rollback left on the node while no change is in progress, in sentences with the command to run.
    pub fn unsettled(&self) -> Vec<String> {
        let mut missing = self.rollbacks();
        if let Some(left) = self.left_behind() {
            let files = self.kubeconfigs.iter();
            let files: Vec<&str> = files
                .filter(|trusting| {
                    let trusted = trusting.certificates.as_ref();
                    trusted.is_ok_and(|trusted| trusted.contains(left))
                })
                .map(|trusting| trusting.file.as_str())
                .collect();
            missing.push(format!(
                "{} is trusted in {}, but not in {} (nodepki authority stage {authority} --certificate FILE adds it there, nodepki authority stage {authority} --undo removes it)",
                named(left),
                files.join(", "),
                self.file,
                authority = self.authority
            ));
        }
        missing
    }

    /// Returns the components that were rolled back, with the step to repeat. They do not block that step.
    pub fn rollbacks(&self) -> Vec<String> {
        let authority = self.authority;
        let again = match self.phase() {
            ChangePhase::Settled => format!(
                "`nodepki authority stage {authority} --certificate FILE` again, or `nodepki authority stage {authority} --undo` to keep the CA in place"
            ),
            ChangePhase::Staged => format!(
                "`nodepki authority stage {authority} --undo` again, or `nodepki authority stage {authority} --certificate FILE` to keep both"
            ),
            ChangePhase::Activated => format!("`nodepki authority retire {authority}` again"),
        };
        let rolled_back = self.rolled_back.iter();
        rolled_back
            .map(|RolledBack { component, why }| {
                format!(
                    "{component} did not become ready after its restart, and the old files were restored ({why}); find out why, then run {again}"
                )
            })
            .collect()
    }

    /// Returns what prevents that this node trusts only the new CA; an empty result proves that the new CA is activated.
    pub fn unactivated(&self, now: OffsetDateTime) -> Vec<String> {
        let Some(new) = self.incoming() else {
            return self.unstaged();
        };
        let mut missing = Vec::new();
        if self.bundle.first() != Some(new) {
            missing.push(format!(
                "{} still begins with {} (run nodepki authority activate {})",
                self.file,
                self.bundle.first().map(named).unwrap_or_default(),
                self.authority
            ));
        }
        for trusting in &self.kubeconfigs {
            missing.extend(trusting.lacks([new], self.authority));
        }
        for leaf in &self.leaves {
            missing.extend(leaf.not_under(new, self.authority, now));
        }
        missing.extend(self.restarts.iter().cloned());
        for signing in &self.signing {
            let old = self.outgoing();
            let signs_with_old =
                |one: &Certificate| old.contains(&one) && one.public_key() != new.public_key();
            if signing.certificates.iter().any(signs_with_old) {
                missing.push(format!(
                    "kube-controller-manager still signs kubelets' certificates with the old CA (--{}={} in {}); configure certificate and key of the new CA, or leave both flags empty and use another signer",
                    signing.flag,
                    signing.value,
                    signing.manifest
                ));
            }
        }
        missing
    }

    /// Returns the files with CA certificates to be removed that nodepki does not write, in sentences.
    pub fn retained(&self, removed: &[Certificate]) -> Vec<String> {
        let files = self.kubeconfigs.iter();
        let files = files.filter(|trusting| trusting.elsewhere.is_some());
        files
            .flat_map(|trusting| {
                let sentence = |one| trusting.retains(one, self.authority);
                removed.iter().filter_map(sentence)
            })
            .collect()
    }

    /// Returns why the new CA cannot be removed: the certificates that would not verify any more.
    pub fn stranded(&self, new: &Certificate, now: OffsetDateTime) -> Option<String> {
        let others = || self.bundle.iter().filter(|one| *one != new);
        let names: Vec<&str> = self
            .leaves
            .iter()
            .filter(|leaf| !leaf.under([new], now).is_empty())
            .filter(|leaf| leaf.under(others(), now).is_empty())
            .map(|leaf| leaf.name.as_str())
            .collect();
        (!names.is_empty()).then(|| {
            format!(
                "these certificates on this node are under {} only: {names} (continue with `nodepki authority activate {}`, or switch the signer back to the old CA and run `nodepki renew --name {names}` first)",
                named(new),
                self.authority,
                names = names.join(",")
            )
        })
    }

    /// Returns the signing flags of kube-controller-manager that name the bundle. kube-controller-manager accepts exactly
    /// one signing certificate, and stops signing if there is a second one.
    pub fn signing_trouble(&self) -> Vec<String> {
        let named = self.signing.iter().filter(|signing| signing.is_bundle);
        named
            .map(|signing| {
                let SigningFlag {
                    flag,
                    value,
                    file,
                    manifest,
                    ..
                } = signing;
                let separate = |path: &str| path.replace("ca.crt", "ca-signing.crt");
                let other = separate(value);
                let own = file.join(separate(&Path::display(file).to_string()));
                let scratch = manifest.directory().directory().join("kcm.yaml");
                format!(
                    "kube-controller-manager signs with {file} (--{flag} in {manifest}) and rejects a file with two certificates, so that no kubelet would get a certificate any more. First create a separate file for the flag: openssl x509 -in {file} -out {own} && sed 's#--{flag}={value}$#--{flag}={other}#' {manifest} > {scratch} && mv {scratch} {manifest}; then set controllerManager.extraArgs {flag}={other} in the ConfigMap kubeadm-config (kubectl -n kube-system edit configmap kubeadm-config), so that kubeadm upgrade keeps it; and run this again"
                )
            })
            .collect()
    }

    /// Returns the CA certificates that `ca.crt` or one of the other files contains.
    pub fn trusted_anywhere(&self) -> Vec<&Certificate> {
        let files = self.kubeconfigs.iter();
        let elsewhere = files.filter_map(|trusting| trusting.certificates.as_ref().ok());
        self.bundle.iter().chain(elsewhere.flatten()).collect()
    }

    /// Returns the certificates that the bundle and all kubeconfigs of this node contain.
    pub fn trusted_everywhere(&self) -> Vec<&Certificate> {
        let everywhere = |certificate: &&Certificate| {
            self.kubeconfigs.iter().all(|trusting| {
                trusting
                    .certificates
                    .as_ref()
                    .is_ok_and(|trusted| trusted.contains(certificate))
            })
        };
        self.bundle.iter().filter(everywhere).collect()
    }
}

impl TrustingFile {
    /// Returns a sentence if the file trusts a certificate.
    pub(super) fn retains(&self, removed: &Certificate, authority: Authority) -> Option<String> {
        let trusted = self.certificates.as_ref().ok()?;
        trusted.contains(removed).then(|| match &self.elsewhere {
            Some(file) => format!(
                "{} reads its CA from {file}, which contains {} (remove it there{})",
                self.file,
                named(removed),
                restart(authority)
            ),
            None => format!("{} trusts {}", self.file, named(removed)),
        })
    }

    pub(super) fn lacks<'a>(
        &self,
        wanted: impl IntoIterator<Item = &'a Certificate>,
        authority: Authority,
    ) -> Option<String> {
        let trusted = match &self.certificates {
            Ok(trusted) => trusted,
            Err(why) => return Some(format!("{}: {why}", self.file)),
        };
        let lacking: Vec<String> = wanted
            .into_iter()
            .filter(|one| !trusted.contains(one))
            .map(named)
            .collect();
        (!lacking.is_empty()).then(|| {
            let lacking = lacking.join(" and ");
            match &self.elsewhere {
                Some(file) => format!(
                    "{} reads its CA from {file}, which lacks {lacking} (add it there{})",
                    self.file,
                    restart(authority)
                ),
                None => format!(
                    "{} does not trust {lacking} (run nodepki authority stage {authority} again)",
                    self.file
                ),
            }
        })
    }
}

/// Returns what a file that nodepki does not write requires after a change, as the end of a sentence.
const fn restart(authority: Authority) -> &'static str {
    match authority {
        Authority::EtcdCa => " and restart the component",
        Authority::Ca | Authority::FrontProxyCa => "",
    }
}

impl SignedLeaf {
    /// Returns the certificates among these under which the leaf verifies, each taken alone.
    pub fn under<'a>(
        &self,
        authorities: impl IntoIterator<Item = &'a Certificate>,
        now: OffsetDateTime,
    ) -> Vec<&'a Certificate> {
        let Some(chain) = self.chain.present() else {
            return Vec::new();
        };
        authorities
            .into_iter()
            .filter(|authority| verifies_under(chain, authority, now))
            .collect()
    }

    pub(super) fn not_under(
        &self,
        new: &Certificate,
        authority: Authority,
        now: OffsetDateTime,
    ) -> Option<String> {
        if let Some(why) = self.chain.trouble() {
            return Some(format!("{} ({}): {why}", self.name, self.file));
        }
        self.under([new], now).is_empty().then(|| match self.foreign {
            Some(who) => format!(
                "{} ({}) is not under the new CA yet; {who}",
                self.name, self.file
            ),
            None => format!(
                "{} ({}) is not under the new CA yet (nodepki authority activate {authority} issues it)",
                self.name, self.file
            ),
        })
    }
}

/// Returns whether a chain verifies under one CA certificate, ignoring the validity period of the CA certificate.
fn verifies_under(chain: &Chain, authority: &Certificate, now: OffsetDateTime) -> bool {
    let Ok(alone) = TrustBundle::from_certificates(vec![authority.clone()]) else {
        return false;
    };
    path_differences(chain, &alone, now)
        .iter()
        .all(|difference| {
            matches!(
                difference,
                CertDifference::IssuerExpired { .. } | CertDifference::IssuerNotYetValid { .. }
            )
        })
}

#[cfg(test)]
pub(super) mod tests;
