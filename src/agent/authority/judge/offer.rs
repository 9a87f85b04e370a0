//! Selects the new CA among the certificates of a file or a signer.

use time::OffsetDateTime;

use super::{Evidence, fingerprint, is_root, named};
use crate::text::rfc3339;
use crate::x509::Certificate;

/// Result of the selection.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// The certificate is the CA already, and no other CA is trusted.
    InPlace,
    /// The certificate can be staged, or is staged.
    New(Box<Certificate>),
}

impl Evidence {
    /// Selects the new CA among the certificates of a file or a signer.
    ///
    /// # Errors
    /// A message with the reason why none of them can be the new CA, and what to do.
    pub fn admit(&self, offered: &[Certificate], now: OffsetDateTime) -> Result<Offer, String> {
        let mut roots: Vec<&Certificate> = Vec::new();
        for root in offered.iter().filter(|one| is_root(one)) {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        let fresh: Vec<&Certificate> = roots
            .iter()
            .copied()
            .filter(|root| !self.bundle.contains(root))
            .collect();
        let candidate = match (fresh.as_slice(), roots.as_slice()) {
            ([one], _) | ([], [one]) => *one,
            ([], []) => return Err(self.no_root(offered)),
            ([], [..]) => return self.admit_known(&roots),
            (several, _) => {
                let names: Vec<String> = several.iter().map(|one| named(one)).collect();
                return Err(format!(
                    "there are several new CA certificates: {} (name a file that contains only one with --certificate)",
                    names.join(", ")
                ));
            }
        };
        if let Some(change) = &self.change
            && change.new != fingerprint(candidate)
            && !self.is_finished(change)
        {
            return Err(format!(
                "a change of {0} to the certificate sha256:{1}… is in progress since {2}, and {3} is a different certificate (complete that change first, or revert it with `nodepki authority stage {0} --undo`)",
                self.authority,
                change.new.get(..16).unwrap_or(&change.new),
                rfc3339(change.staged),
                named(candidate)
            ));
        }
        self.require_sound(candidate, now)?;
        let alone = self.roots().all(|root| root == candidate);
        let in_place = self.bundle.first() == Some(candidate) && alone;
        Ok(if in_place {
            Offer::InPlace
        } else {
            Offer::New(Box::new(candidate.clone()))
        })
    }

    /// Selects the new CA if all certificates are trusted already: the recorded one, or the only one that is not first.
    fn admit_known(&self, roots: &[&Certificate]) -> Result<Offer, String> {
        let known = self.change.as_ref().map(|change| change.new.as_str());
        let recorded = roots
            .iter()
            .find(|root| Some(fingerprint(root).as_str()) == known);
        let others: Vec<_> = roots
            .iter()
            .filter(|root| self.bundle.first() != Some(**root))
            .collect();
        match (recorded, others.as_slice()) {
            (Some(new), _) => Ok(Offer::New(Box::new((*new).clone()))),
            (None, [new]) => Ok(Offer::New(Box::new((**new).clone()))),
            _ => Err(format!(
                "{} already contains all of these CA certificates, so that the new one is ambiguous (name it with --certificate)",
                self.file
            )),
        }
    }

    fn no_root(&self, offered: &[Certificate]) -> String {
        let names: Vec<String> = offered.iter().map(named).collect();
        let what = match offered {
            [one] if !one.is_ca() => format!("{} is not a CA certificate", named(one)),
            [one] if self.bundle.iter().any(|ours| one.names_issuer(ours)) => format!(
                "{} is an intermediate or cross certificate whose issuer this node trusts: certificates under it verify without staging, if the signer sends it with each certificate. A new root must be given itself",
                named(one)
            ),
            [] => "there is no self-signed CA certificate".to_owned(),
            _ => format!(
                "{}: there is no self-signed CA certificate, but kubeadm and OpenSSL need the root itself; signers send intermediates with each certificate",
                names.join(", ")
            ),
        };
        format!("{what} (name the certificate of the root)")
    }

    /// Verifies what Go and OpenSSL require of a CA certificate.
    fn require_sound(&self, candidate: &Certificate, now: OffsetDateTime) -> Result<(), String> {
        let refusal = |why: String| Err(format!("{} {why}", named(candidate)));
        if now > candidate.not_after() {
            return refusal(format!(
                "expired at {} (obtain a new one)",
                rfc3339(candidate.not_after())
            ));
        }
        if now < candidate.not_before() {
            return refusal(format!(
                "is not valid before {} (wait, or correct the clock)",
                rfc3339(candidate.not_before())
            ));
        }
        if !candidate.may_sign() {
            return refusal(
                "lacks the key usage certificate signing (have it issued as a CA certificate)"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
