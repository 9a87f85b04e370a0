//! Judges a leaf certificate or kubeconfig, with the bundle of its authority. Pure.

use time::OffsetDateTime;

use super::fault::{FileFault, FilePart, FileProblem, RowFault, RowRemark};
use super::files::{AuthorityFiles, LeafFiles};
use super::findings::RowFindings;
use super::phase::{CertProgress, phase};
use super::{CertStatus, Facts, KubeconfigStatus};
use crate::kube::names::CertName;
use crate::node::NodeFile;
use crate::spec::assess::{self, CertNote, ObservedKubeconfig};
use crate::x509::{
    CertDifference, Certificate, Chain, TrustBundle, is_same_authority, path_differences,
};

/// Returns the row of a leaf. `server` is a host that the certificate must contain, for kube-apiserver's only.
pub(super) fn judge(
    found: &LeafFiles,
    authority: Option<&AuthorityFiles>,
    server: Option<&str>,
    progress: CertProgress,
    now: OffsetDateTime,
) -> CertStatus {
    let mut findings = RowFindings::default();
    findings.key_form(found.cert.found.key_form_is_ours);
    let chain = found.chain();
    let issued = found.issued();
    let verified = chain.and_then(|chain| {
        let certificate = chain.leaf();
        findings.validity(certificate, issued, now);
        if let Some(key) = found.cert.found.key.present()
            && key.public_key() != certificate.public_key()
        {
            findings.fault(RowFault::KeyMismatch);
        }
        let mut misplaced = assess::misplaced(found.name, certificate);
        misplaced.extend(server.and_then(|server| assess::lacks_host(certificate, server)));
        for difference in misplaced {
            findings.fault(RowFault::Misplaced(difference));
        }
        verify(found.name, chain, authority, now, &mut findings)
    });
    let kubeconfig = found.kubeconfig().map(|kubeconfig| {
        let named = found.cert.authority_file.as_deref();
        kubeconfig_status(kubeconfig, named, authority, now, &mut findings)
    });
    for fault in &found.faults {
        findings.file(fault);
    }
    findings.exposure(&found.files);
    let state = findings.state();
    CertStatus {
        name: found.name,
        authority: found.name.authority(),
        description: None,
        state,
        phase: phase(state, progress.request, progress.effect),
        findings,
        certificate: chain.map(|chain| Facts::of(chain.leaf(), chain.intermediates(), now)),
        verified,
        issued,
        kubeconfig,
        key_policy: None,
        files: found.files.iter().map(|file| file.status.clone()).collect(),
    }
}

/// Verifies a chain under the bundle of its authority. Returns `None` without a usable bundle.
fn verify(
    name: CertName,
    chain: &Chain,
    authority: Option<&AuthorityFiles>,
    now: OffsetDateTime,
    findings: &mut RowFindings,
) -> Option<bool> {
    let Some(authority) = authority else {
        findings.remark(RowRemark::NotVerified(name.authority()));
        return None;
    };
    let trust = match &authority.trust {
        Ok(trust) => trust,
        Err(fault) => {
            findings.fault(RowFault::AuthorityUnusable(fault.clone()));
            return None;
        }
    };
    let leaf = chain.leaf();
    let mut good = true;
    for difference in path_differences(chain, trust, now) {
        match difference {
            // It is accepted, as during a change of the CA, and is replaced with the activation.
            CertDifference::NotUnderFirst { .. } => {
                findings.remark(RowRemark::NotUnderFirst(difference));
                continue;
            }
            // `assess::misplaced` has reported this, without an authority.
            CertDifference::IsCa => {}
            CertDifference::UntrustedIssuer { .. } => {
                let mut anchors = trust.certificates().iter();
                findings.fault(RowFault::UntrustedIssuer {
                    path: authority.here.clone(),
                    issuer: leaf.issuer().to_string(),
                    trust: trust.clone(),
                    has_issuer_name: anchors.any(|anchor| leaf.names_issuer(anchor)),
                });
            }
            difference => findings.fault(RowFault::Unverified(difference)),
        }
        good = false;
    }
    if let Some(CertNote::OutlivesAuthority { authority_ends }) =
        assess::beyond_authority(chain, trust)
    {
        findings.remark(RowRemark::OutlivesAuthority(authority_ends));
    }
    Some(good)
}

/// Judges the content of a kubeconfig other than its certificate. `named` is the file that it names in place of CA data.
fn kubeconfig_status(
    found: &ObservedKubeconfig,
    named: Option<&NodeFile>,
    authority: Option<&AuthorityFiles>,
    now: OffsetDateTime,
    findings: &mut RowFindings,
) -> KubeconfigStatus {
    for refusal in &found.refusals {
        findings.fault(RowFault::RefusedByClients(refusal.clone()));
    }
    if found.authority.is_none() {
        findings.remark(RowRemark::NoAuthorityData);
    }
    // A file that cannot be read is among the refusals.
    let named = named.and_then(|file| file.bytes().ok()?);
    let own = found.authority.as_deref().or(named);
    let own = match own.map(TrustBundle::from_pem) {
        Some(Ok(own)) => Some(own),
        Some(Err(error)) => {
            findings.file(&FileFault {
                part: FilePart::AuthorityData,
                ..FileFault::new("", FileProblem::Damaged(error.to_string()))
            });
            None
        }
        None => None,
    };
    let trust = authority.and_then(|authority| authority.trust.as_ref().ok());
    let authority_is_first = match (own, trust) {
        (Some(own), Some(trust)) => Some(compare_authority(&own, trust, now, findings)),
        _ => None,
    };
    KubeconfigStatus {
        server: found.server.clone(),
        authority_is_first,
        by_file: found.by_file,
    }
}

/// Compares the CA data of a kubeconfig with `ca.crt`. Returns whether it is as kubeadm writes it.
fn compare_authority(
    own: &TrustBundle,
    trust: &TrustBundle,
    now: OffsetDateTime,
    findings: &mut RowFindings,
) -> bool {
    let is_trusted = |certificate| trust.certificates().contains(certificate);
    // During a CA change the CA data contains the old and the new CA.
    let is_first = own.first() == trust.first() && own.certificates().iter().all(is_trusted);
    // A CA certificate that was renewed with its key verifies the same certificates, until it expires: Go verifies the
    // validity of a root as well.
    let common = own.certificates().iter().filter(|certificate| {
        let mut trusted = trust.certificates().iter();
        trusted.any(|trusted| is_same_authority(trusted, certificate))
    });
    let end = common.map(Certificate::not_after).max();
    let mut trusted = trust.certificates().iter();
    match end {
        None => findings.fault(RowFault::OtherAuthority {
            found: own.clone(),
            trusted: trust.clone(),
        }),
        // The row of the authority reports one that has expired itself.
        Some(end) if end < now && trusted.any(|trusted| trusted.not_after() >= now) => {
            findings.fault(RowFault::AuthorityDataExpired(end));
        }
        Some(_) if !is_first => {
            findings.remark(RowRemark::NotFirstAuthority(own.clone()));
        }
        Some(_) => {}
    }
    is_first
}

/// Returns the host at which the components of this node expect its API server; `None` if they differ.
pub(super) fn local_server(leaves: &[LeafFiles]) -> Option<&str> {
    let server = |wanted: CertName| {
        let leaf = leaves.iter().find(|leaf| leaf.name == wanted)?;
        leaf.kubeconfig()?.server.as_deref()
    };
    let server = server(CertName::ControllerManagerConf)
        .filter(|one| server(CertName::SchedulerConf) == Some(*one))?;
    let authority = server.strip_prefix("https://")?.split('/').next()?;
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next(),
        None => Some(
            authority
                .rsplit_once(':')
                .map_or(authority, |(host, _)| host),
        ),
    }
}
