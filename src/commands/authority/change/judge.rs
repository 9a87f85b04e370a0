//! What a CA change has come to on one node, and what the next step still lacks.
//!
//! Pure: certificates in, sentences out. What the node trusts is read off its files; the record only says which of the
//! certificates there is the old one. A new demand is one more sentence in [`Evidence::unstaged`] or
//! [`Evidence::unactivated`]; all of them are told at once.

mod offer;

use serde::{Deserialize, Serialize};
use std::path::Path;
use time::OffsetDateTime;

use crate::kube::components::Component;
use crate::kube::names::{Authority, NodePath};
use crate::store::AuthorityChange;
use crate::x509::{Certificate, Chain, Difference, TrustBundle, hex, path_differences};

pub use offer::Offer;

/// How far a CA change is on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No change is under way.
    Settled,
    /// Both CAs are trusted, and the old one is the CA.
    Staged,
    /// Both CAs are trusted, and the new one is the CA.
    Activated,
}

impl Phase {
    /// As in the report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Settled => "settled",
            Phase::Staged => "staged",
            Phase::Activated => "activated",
        }
    }
}

/// What lies on the node about one authority. Files are named as a person on this machine finds them.
pub struct Evidence {
    /// Which.
    pub authority: Authority,
    /// Its `ca.crt`.
    pub file: String,
    /// What is in it, in order.
    pub bundle: Vec<Certificate>,
    /// Kubeconfigs that trust it.
    pub kubeconfigs: Vec<Trusting>,
    /// What it has signed on this node.
    pub leaves: Vec<Leaf>,
    /// What kube-controller-manager signs with, for `ca`.
    pub signing: Vec<Signing>,
    /// What was recorded of a change.
    pub change: Option<AuthorityChange>,
    /// What is not known to work with what is there now, and what to do about it, in words.
    pub restarts: Vec<String>,
    /// Components that did not come back in a step of this authority's change.
    pub rolled_back: Vec<RolledBack>,
}

/// A component that did not come back with new CA certificates and has its former files.
pub struct RolledBack {
    /// Which one.
    pub component: Component,
    /// What went wrong, in words.
    pub why: String,
}

/// A file that says whom to trust.
pub struct Trusting {
    /// The kubeconfig.
    pub file: String,
    /// Its CA certificates, or why they cannot be told.
    pub certificates: Result<Vec<Certificate>, String>,
    /// They are in this file, which is not ours to write.
    pub elsewhere: Option<String>,
}

/// A certificate that the authority has signed.
pub struct Leaf {
    /// kubeadm's name, or what it is.
    pub name: String,
    /// Its file.
    pub file: String,
    /// It, or what is wrong with it.
    pub chain: Result<Chain, String>,
    /// For one that nodepki does not issue: who does.
    pub foreign: Option<&'static str>,
}

/// A `--cluster-signing-…-cert-file` of kube-controller-manager.
pub struct Signing {
    /// The flag, without dashes.
    pub flag: String,
    /// The file that it names.
    pub file: NodePath,
    /// That is the authority's bundle.
    pub is_bundle: bool,
    /// The manifest with the flag.
    pub manifest: NodePath,
    /// What is in the file.
    pub certificates: Vec<Certificate>,
}

/// What the files shall hold after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The bundle, in order.
    pub bundle: Vec<Certificate>,
    /// Trusted nowhere any more.
    pub dropped: Vec<Certificate>,
    /// What is to be remembered.
    pub change: Option<AuthorityChange>,
}

impl Target {
    /// The CA data of a kubeconfig that has `found` now: the roots of the bundle first, and whatever else somebody put
    /// there.
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

/// SHA-256 of a certificate, in hexadecimal.
pub fn fingerprint(certificate: &Certificate) -> String {
    hex(&certificate.fingerprint())
}

/// A certificate as sentences name it.
pub fn named(certificate: &Certificate) -> String {
    let print = fingerprint(certificate);
    format!(
        "{} (certificate sha256:{}…)",
        certificate.subject(),
        print.get(..16).unwrap_or(&print)
    )
}

/// What the new CA is to the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// The same name and key: the certificate alone is renewed, and what the old one has signed holds.
    Renewal,
    /// Another CA.
    Other,
}

impl Evidence {
    fn roots(&self) -> impl Iterator<Item = &Certificate> {
        self.bundle
            .iter()
            .filter(|certificate| is_root(certificate))
    }

    fn in_bundle(&self, print: &str) -> Option<&Certificate> {
        self.bundle
            .iter()
            .find(|certificate| fingerprint(certificate) == print)
    }

    /// Nothing of the old CA is left, or the new one has gone.
    fn is_finished(&self, change: &AuthorityChange) -> bool {
        let old = |print: &String| self.in_bundle(print).is_some();
        self.in_bundle(&change.new).is_none() || !change.old.iter().any(old)
    }

    /// The change that the bundle bears out.
    pub fn under_way(&self) -> Option<&AuthorityChange> {
        self.change
            .as_ref()
            .filter(|change| !self.is_finished(change))
    }

    /// How far the change is, by the order of the bundle.
    pub fn phase(&self) -> Phase {
        match self.under_way() {
            None => Phase::Settled,
            Some(change) => match self.bundle.first() {
                Some(first) if fingerprint(first) == change.new => Phase::Activated,
                _ => Phase::Staged,
            },
        }
    }

    /// The certificate that comes.
    pub fn incoming(&self) -> Option<&Certificate> {
        self.in_bundle(&self.under_way()?.new)
    }

    /// The new CA of a change that is not under way, if kubeconfigs still trust it: `ca.crt` was rolled back or replaced
    /// without them.
    fn left_behind(&self) -> Option<&Certificate> {
        let change = self.change.as_ref()?;
        let trusted = self.kubeconfigs.iter();
        let trusted = trusted.filter_map(|trusting| trusting.certificates.as_ref().ok());
        let mut left = trusted.flatten().filter(|one| !self.bundle.contains(one));
        left.find(|one| fingerprint(one) == change.new)
    }

    /// The certificate that [`Evidence::undone`] removes: a staged one, or one that only kubeconfigs trust.
    pub fn unwanted(&self) -> Option<&Certificate> {
        self.incoming().or_else(|| self.left_behind())
    }

    /// The certificates that go.
    pub fn outgoing(&self) -> Vec<&Certificate> {
        let change = self.under_way();
        let prints = change.into_iter().flat_map(|change| &change.old);
        prints.filter_map(|print| self.in_bundle(print)).collect()
    }

    /// What `new` is to the CA that it replaces.
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

    /// Both trusted, in the order in which they are; a new one behind the rest. Kept when it is so already.
    pub fn staged(&self, new: &Certificate, now: OffsetDateTime) -> Result<Target, String> {
        let mut bundle = self.bundle.clone();
        if !bundle.contains(new) {
            bundle.push(new.clone());
        }
        let change = match self.under_way() {
            Some(change) => change.clone(),
            None => self.begun(new, now)?,
        };
        Ok(Target {
            bundle,
            dropped: Vec::new(),
            change: Some(change),
        })
    }

    /// The record of a change to `new`. Where somebody else has begun it, the order of the bundle tells how far.
    fn begun(&self, new: &Certificate, now: OffsetDateTime) -> Result<AuthorityChange, String> {
        let is_first = self.bundle.first() == Some(new);
        let mut roots = self.roots().filter(|root| *root != new);
        // What else is trusted stays: the CA is the first certificate alone.
        let old = match is_first {
            true => roots.next().filter(|_| roots.next().is_none()),
            false => self.bundle.first(),
        };
        let Some(old) = old else {
            return Err(format!(
                "{} holds {} behind {}, and nothing says which of them was the CA before; remove the one that is no longer wanted there and in the kubeconfigs by hand",
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
            |below| below.strangers(&[old.public_key().sha256()]),
        );
        let mut gone = vec![fingerprint(old)];
        let others = self.bundle.iter().filter(|one| !one.is_self_signed());
        gone.extend(
            others
                .filter(|one| *one != old && !strangers.contains(one))
                .map(fingerprint),
        );
        Ok(AuthorityChange {
            old: gone,
            new: fingerprint(new),
            staged: now,
            activated: is_first.then_some(now),
        })
    }

    /// The new one first.
    pub fn activated(&self, now: OffsetDateTime) -> Option<Target> {
        let (change, new) = (self.under_way()?, self.incoming()?);
        let others = self.bundle.iter().filter(|one| *one != new);
        Some(Target {
            bundle: std::iter::once(new).chain(others).cloned().collect(),
            dropped: Vec::new(),
            change: Some(AuthorityChange {
                activated: change.activated.or(Some(now)),
                ..change.clone()
            }),
        })
    }

    /// Without the old one.
    pub fn retired(&self) -> Option<Target> {
        self.under_way()?;
        Some(self.without(&self.outgoing()))
    }

    /// Without the new one.
    pub fn undone(&self) -> Option<Target> {
        Some(self.without(&[self.unwanted()?]))
    }

    fn without(&self, dropped: &[&Certificate]) -> Target {
        let kept = self.bundle.iter().filter(|one| !dropped.contains(one));
        Target {
            bundle: kept.cloned().collect(),
            dropped: dropped.iter().copied().cloned().collect(),
            change: None,
        }
    }

    /// What stands between this node and two trusted CAs: the proof of staging.
    pub fn unstaged(&self) -> Vec<String> {
        let Some(new) = self.incoming() else {
            return vec![format!(
                "no new CA is staged; nodepki authority stage {} --certificate FILE",
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

    /// What a rollback has left on the node while no change is under way, in words with the command to run.
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
                "{} is trusted in {}, but not in {}; nodepki authority stage {authority} --certificate FILE adds it there, nodepki authority stage {authority} --undo takes it out",
                named(left),
                files.join(", "),
                self.file,
                authority = self.authority
            ));
        }
        missing
    }

    /// What was rolled back, and the step to repeat. It does not block that step.
    pub fn rollbacks(&self) -> Vec<String> {
        let authority = self.authority;
        let again = match self.phase() {
            Phase::Settled => format!(
                "`nodepki authority stage {authority} --certificate FILE` again, or `nodepki authority stage {authority} --undo` to keep the CA in place"
            ),
            Phase::Staged => format!(
                "`nodepki authority stage {authority} --undo` again, or `nodepki authority stage {authority} --certificate FILE` to keep both"
            ),
            Phase::Activated => format!("`nodepki authority retire {authority}` again"),
        };
        let rolled_back = self.rolled_back.iter();
        rolled_back
            .map(|RolledBack { component, why }| {
                format!(
                    "{component} did not come back after its restart, and the old files were put in place again ({why}); find out why, then run {again}"
                )
            })
            .collect()
    }

    /// What stands between this node and the new CA alone: the proof of activation.
    pub fn unactivated(&self, now: OffsetDateTime) -> Vec<String> {
        let Some(new) = self.incoming() else {
            return self.unstaged();
        };
        let mut missing = Vec::new();
        if self.bundle.first() != Some(new) {
            missing.push(format!(
                "{} still begins with {}; nodepki authority activate {}",
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
                    "kube-controller-manager still signs kubelets' certificates with the old CA (--{}={} in {}); give it certificate and key of the new one, or leave the flag and that of the key empty, and have somebody else sign",
                    signing.flag,
                    Path::display(&signing.file),
                    signing.manifest
                ));
            }
        }
        missing
    }

    /// Why the new CA cannot be taken out again: what would be trusted no more.
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
                "under {} alone on this node: {names}; go on with `nodepki authority activate {}`, or have the signer sign with the old CA again and run `nodepki renew --name {names}` first",
                named(new),
                self.authority,
                names = names.join(",")
            )
        })
    }

    /// kube-controller-manager takes exactly one certificate to sign with, and stops signing at a second one.
    pub fn signing_trouble(&self) -> Vec<String> {
        let named = self.signing.iter().filter(|signing| signing.is_bundle);
        named
            .map(|signing| {
                let Signing {
                    flag,
                    file,
                    manifest,
                    ..
                } = signing;
                // In flags, paths are those on the node.
                let named = Path::display(file).to_string();
                let other = named.replace("ca.crt", "ca-signing.crt");
                let own = file.join(&other);
                let scratch = manifest.directory().directory().join("kcm.yaml");
                format!(
                    "kube-controller-manager signs with {file} (--{flag} in {manifest}) and takes no file with two certificates: at once no kubelet would get a certificate any more. Give the flag a file of its own first: openssl x509 -in {file} -out {own} && sed 's#--{flag}={named}$#--{flag}={other}#' {manifest} > {scratch} && mv {scratch} {manifest}; then set controllerManager.extraArgs {flag}={other} in the ConfigMap kubeadm-config (kubectl -n kube-system edit configmap kubeadm-config), so that kubeadm upgrade keeps it; and run this again"
                )
            })
            .collect()
    }

    /// Certificates that are trusted in every place of this node.
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

impl Trusting {
    fn lacks<'a>(
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
                    "{} takes its CA from {file}, which lacks {lacking}; add it there",
                    self.file
                ),
                None => format!(
                    "{} does not trust {lacking}; run nodepki authority stage {authority} again",
                    self.file
                ),
            }
        })
    }
}

impl Leaf {
    /// The certificates among these that it leads to, each taken alone.
    pub fn under<'a>(
        &self,
        authorities: impl IntoIterator<Item = &'a Certificate>,
        now: OffsetDateTime,
    ) -> Vec<&'a Certificate> {
        let Ok(chain) = &self.chain else {
            return Vec::new();
        };
        authorities
            .into_iter()
            .filter(|authority| leads_to(chain, authority, now))
            .collect()
    }

    fn not_under(
        &self,
        new: &Certificate,
        authority: Authority,
        now: OffsetDateTime,
    ) -> Option<String> {
        if let Err(why) = &self.chain {
            return Some(format!("{} ({}): {why}", self.name, self.file));
        }
        self.under([new], now).is_empty().then(|| match self.foreign {
            Some(who) => format!(
                "{} ({}) is not under the new CA yet; {who}",
                self.name, self.file
            ),
            None => format!(
                "{} ({}) is not under the new CA yet; nodepki authority activate {authority} issues it",
                self.name, self.file
            ),
        })
    }
}

/// Whether a chain leads to one certificate, whose own time does not matter here.
fn leads_to(chain: &Chain, authority: &Certificate, now: OffsetDateTime) -> bool {
    let Ok(alone) = TrustBundle::from_certificates(vec![authority.clone()]) else {
        return false;
    };
    path_differences(chain, &alone, now)
        .iter()
        .all(|difference| {
            matches!(
                difference,
                Difference::IssuerExpired { .. } | Difference::IssuerNotYetValid { .. }
            )
        })
}

#[cfg(test)]
mod tests;
