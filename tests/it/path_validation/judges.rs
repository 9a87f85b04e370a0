//! The four judges, and the comparison of their verdicts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nodepki::x509::{
    Chain, ExtendedUsage, TrustBundle, path_differences, usage_differences, verifies,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use serde_json::json;
use time::OffsetDateTime;
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter};

use crate::certificate_template::{pem, pem_of};

/// A leaf with everything that a verifier gets beside it; certificates as DER.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) leaf: Vec<u8>,
    pub(super) intermediates: Vec<Vec<u8>>,
    pub(super) roots: Vec<Vec<u8>>,
    /// Empty if the path may be used for anything.
    pub(super) usages: Vec<ExtendedUsage>,
    pub(super) at: OffsetDateTime,
}

/// Accepted, or the reason for the refusal.
pub(super) type Verdict = Result<(), String>;

pub(super) struct Verdicts {
    pub(super) nodepki: Verdict,
    pub(super) go: Verdict,
    pub(super) openssl: Verdict,
    pub(super) webpki: Verdict,
}

/// Judges all cases by all judges.
pub(super) fn judge(cases: &[Case]) -> Vec<Verdicts> {
    let folder = tempfile::tempdir().unwrap();
    let questions: Vec<_> = cases.iter().map(Case::question).collect();
    let go = crate::oracle::ask(&questions);
    let judged = cases.iter().zip(go).map(|(case, refused)| Verdicts {
        nodepki: case.by_nodepki(),
        go: if refused.is_empty() {
            Ok(())
        } else {
            Err(format!("{refused:?}"))
        },
        openssl: case.by_openssl(folder.path()),
        webpki: case.by_webpki().map_err(|error| error.to_string()),
    });
    judged.collect()
}

impl Case {
    fn bundle(&self) -> String {
        pem_of(&self.roots)
    }

    fn chain(&self) -> String {
        pem(&self.leaf) + &pem_of(&self.intermediates)
    }

    fn by_nodepki(&self) -> Verdict {
        let trust = TrustBundle::from_pem(self.bundle().as_bytes())
            .map_err(|error| format!("bundle: {error}"))?;
        let chain =
            Chain::from_pem(self.chain().as_bytes()).map_err(|error| format!("chain: {error}"))?;
        let mut found = usage_differences(chain.leaf(), &self.usages);
        if found.is_empty() && verifies(&chain, &trust, self.at) {
            return Ok(());
        }
        found.extend(path_differences(&chain, &trust, self.at));
        let found: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        if found.is_empty() {
            Err("the leaf is not valid at this time".to_owned())
        } else {
            Err(found.into_iter().collect::<Vec<_>>().join("; "))
        }
    }

    fn question(&self) -> serde_json::Value {
        json!({
            "id": self.name,
            "certificate": self.chain(),
            "ca": self.bundle(),
            "usages": self.usages.iter().map(|usage| match usage {
                ExtendedUsage::ServerAuth => "server auth",
                ExtendedUsage::ClientAuth => "client auth",
            }).collect::<Vec<_>>(),
            "time": self.at.unix_timestamp(),
        })
    }

    fn by_openssl(&self, folder: &Path) -> Verdict {
        let file = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let leaf = file("leaf.pem", pem(&self.leaf));
        let mut purposes: Vec<Option<&str>> = self
            .usages
            .iter()
            .map(|usage| match usage {
                ExtendedUsage::ServerAuth => Some("sslserver"),
                ExtendedUsage::ClientAuth => Some("sslclient"),
            })
            .collect();
        if purposes.is_empty() {
            purposes.push(None);
        }
        for purpose in purposes {
            let mut command = Command::new("openssl");
            command
                .arg("verify")
                .args(["-attime", &self.at.unix_timestamp().to_string()])
                .arg("-CAfile")
                .arg(file("roots.pem", self.bundle()));
            if !self.intermediates.is_empty() {
                let intermediates = file("intermediates.pem", pem_of(&self.intermediates));
                command.arg("-untrusted").arg(intermediates);
            }
            if let Some(purpose) = purpose {
                command.args(["-purpose", purpose]);
            }
            let output = command.arg(&leaf).output().unwrap();
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(text.lines().collect::<Vec<_>>().join(" "));
            }
        }
        Ok(())
    }

    /// The path that webpki builds itself, with all algorithms.
    fn by_webpki(&self) -> Result<(), webpki::Error> {
        let roots: Vec<CertificateDer<'_>> =
            self.roots.iter().map(|one| one.as_slice().into()).collect();
        let anchors = roots
            .iter()
            .map(webpki::anchor_from_trusted_cert)
            .collect::<Result<Vec<_>, _>>()?;
        let intermediates: Vec<CertificateDer<'_>> = self
            .intermediates
            .iter()
            .map(|one| one.as_slice().into())
            .collect();
        let leaf = self.leaf.as_slice().into();
        let leaf = EndEntityCert::try_from(&leaf)?;
        let seconds = self.at.unix_timestamp().try_into().unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let all = webpki::ALL_VERIFICATION_ALGS;
        let verify = |usage: Option<webpki::KeyUsage>| match usage {
            None => leaf
                .verify_for_usage(all, &anchors, &intermediates, at, AnyUsage, None, None)
                .map(drop),
            Some(usage) => leaf
                .verify_for_usage(all, &anchors, &intermediates, at, usage, None, None)
                .map(drop),
        };
        if self.usages.is_empty() {
            return verify(None);
        }
        self.usages.iter().try_for_each(|usage| {
            verify(Some(match usage {
                ExtendedUsage::ServerAuth => webpki::KeyUsage::server_auth(),
                ExtendedUsage::ClientAuth => webpki::KeyUsage::client_auth(),
            }))
        })
    }
}

struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

/// Compares the verdicts of all judges with nodepki's, and nodepki's with the expected one, if the case has one.
///
/// # Panics
/// With a list of the cases that break a rule of this suite, and with the rows of `reasons` that no case needs.
pub(super) fn compare(cases: &[Case], expected: &[Option<bool>], reasons: &[Reason]) {
    let (mut faults, mut needed) = (Vec::new(), BTreeSet::new());
    for ((case, verdicts), expected) in cases.iter().zip(judge(cases)).zip(expected) {
        let others = [
            ("Go", &verdicts.go),
            ("OpenSSL", &verdicts.openssl),
            ("webpki", &verdicts.webpki),
        ];
        let suite = match expected {
            Some(true) => Ok(()),
            Some(false) => Err("expected".to_owned()),
            None => verdicts.nodepki.clone(),
        };
        for (judge, verdict) in others.into_iter().chain([("the suite", &suite)]) {
            let (whose, other, why) = match (&verdicts.nodepki, verdict) {
                (Ok(()), Ok(())) | (Err(_), Err(_)) => continue,
                (Ok(()), Err(why)) => (judge, "nodepki", why),
                (Err(why), Ok(())) => ("nodepki", judge, why),
            };
            let text = format!("{}: {why}", case.name);
            let known = reasons.iter().position(|reason| {
                whose != "Go"
                    && reason.stricter == whose
                    && reason.than.is_none_or(|judge| judge == other)
                    && text.contains(reason.part)
            });
            match known {
                Some(row) => _ = needed.insert(row),
                None => faults.push(format!("{whose} refuses, and {other} accepts: {text}")),
            }
        }
    }
    let unused = (0..reasons.len()).filter(|row| !needed.contains(row));
    faults.extend(unused.map(|row| format!("no case needs the reason {:?}", reasons[row].part)));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Why one judge refuses what others accept.
pub(super) struct Reason {
    /// `nodepki`, `OpenSSL`, `webpki` or `the suite`. It is never Go.
    stricter: &'static str,
    /// The judge that accepts, if the reason holds for this one only.
    than: Option<&'static str>,
    /// A part of the name of the case, or of the stricter judge's message.
    part: &'static str,
    #[expect(dead_code, reason = "for the reader")]
    because: &'static str,
}

pub(super) const fn stricter(
    stricter: &'static str,
    part: &'static str,
    because: &'static str,
) -> Reason {
    Reason {
        stricter,
        than: None,
        part,
        because,
    }
}

/// A reason why nodepki is stricter than one judge.
pub(super) const fn stricter_than(
    judge: &'static str,
    part: &'static str,
    because: &'static str,
) -> Reason {
    Reason {
        than: Some(judge),
        ..stricter("nodepki", part, because)
    }
}
