//! Which of the certificates that a file or a signer offers can be the new CA, and why the others cannot.

use time::OffsetDateTime;

use super::{Evidence, fingerprint, is_root, named};
use crate::x509::{Certificate, rfc3339};

/// What an offered certificate is good for.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// It is the CA already, and no other is trusted.
    InPlace,
    /// It may be staged, or is.
    New(Box<Certificate>),
}

impl Evidence {
    /// Finds the new CA among the certificates that a file or a signer offers.
    ///
    /// # Errors
    /// Why none of them can be it, and what to do.
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
                    "there are several new CA certificates: {}; give the right one alone with --certificate",
                    names.join(", ")
                ));
            }
        };
        if let Some(change) = &self.change
            && change.new != fingerprint(candidate)
            && !self.is_finished(change)
        {
            return Err(format!(
                "a change of {0} to the certificate sha256:{1}… is under way since {2}, and {3} is another one; finish it first, or take it back with `nodepki authority stage {0} --undo`",
                self.authority,
                change.new.get(..16).unwrap_or(&change.new),
                rfc3339(change.staged),
                named(candidate)
            ));
        }
        self.sound(candidate, now)?;
        let alone = self.roots().all(|root| root == candidate);
        let in_place = self.bundle.first() == Some(candidate) && alone;
        Ok(match in_place {
            true => Offer::InPlace,
            false => Offer::New(Box::new(candidate.clone())),
        })
    }

    /// All that is offered is trusted already: the one that is not the first is the one that comes.
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
                "{} holds all of the certificates that are offered, and nothing says which of them comes; give it with --certificate",
                self.file
            )),
        }
    }

    fn no_root(&self, offered: &[Certificate]) -> String {
        let names: Vec<String> = offered.iter().map(named).collect();
        let what = match offered {
            [one] if !one.is_ca() => format!("{} is not a CA certificate", named(one)),
            [one] if self.bundle.iter().any(|ours| one.names_issuer(ours)) => format!(
                "{} names a CA that this node trusts as its issuer: an intermediate, or a cross certificate. What it signs is trusted here through its root as long as signers hand it out with each certificate, so that nothing is to be staged; a new root must be there itself",
                named(one)
            ),
            _ => format!(
                "{} holds no self-signed CA certificate: kubeadm and OpenSSL need the root itself, intermediates come with each certificate",
                names.join(", ")
            ),
        };
        format!("{what}; give the root's certificate")
    }

    /// What Go and OpenSSL want of a CA certificate.
    fn sound(&self, candidate: &Certificate, now: OffsetDateTime) -> Result<(), String> {
        let refusal = |why: String| Err(format!("{} {why}", named(candidate)));
        if now > candidate.not_after() {
            return refusal(format!(
                "expired at {}; have a new one made",
                rfc3339(candidate.not_after())
            ));
        }
        if now < candidate.not_before() {
            return refusal(format!(
                "is not valid before {}; wait, or correct the clock",
                rfc3339(candidate.not_before())
            ));
        }
        if !candidate.may_sign() {
            return refusal(
                "may not sign certificates (its key usage lacks that); have it made as a CA certificate"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
