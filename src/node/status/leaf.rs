//! Judges a leaf certificate or kubeconfig, with the bundle of its authority. Pure.

use time::OffsetDateTime;

use super::files::{AuthorityFiles, LeafFiles};
use super::findings::RowFindings;
use super::phase::{CertProgress, phase};
use super::text::minute;
use super::{CertStatus, Facts, KubeconfigStatus, Trouble};
use crate::kube::names::CertName;
use crate::spec::assess::{self, ObservedKubeconfig};
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
    findings.key_form(found.key_form_is_ours);
    let chain = found.chain.as_ref().ok();
    let issued = found.issued();
    let verified = chain.and_then(|chain| {
        let certificate = chain.leaf();
        findings.validity(certificate, issued, now);
        if let Ok(key) = &found.key
            && key.public_key() != certificate.public_key()
        {
            findings.fault(
                Trouble::Torn,
                "the key does not match the certificate; issue the certificate again, or restore the file that was lost",
            );
        }
        let mut misplaced = assess::misplaced(found.name, certificate);
        misplaced.extend(server.and_then(|server| assess::lacks_host(certificate, server)));
        for difference in misplaced {
            findings.fault(Trouble::Misplaced, difference.to_string());
        }
        verify(found.name, chain, authority, now, &mut findings)
    });
    let kubeconfig = found
        .kubeconfig
        .as_ref()
        .map(|kubeconfig| kubeconfig_status(kubeconfig, authority, &mut findings));
    findings.faults(found.chain.as_ref().err().cloned());
    findings.faults(found.key.as_ref().err().cloned());
    findings.exposure(&found.files);
    let summary = findings.summary();
    CertStatus {
        name: found.name,
        authority: found.name.authority(),
        description: None,
        state: summary.state,
        phase: phase(summary.state, progress.request, progress.effect),
        problems: summary.problems,
        troubles: summary.troubles,
        remarks: summary.remarks,
        certificate: chain.map(|chain| Facts::of(chain.leaf(), chain.intermediates().len(), now)),
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
        findings.remark(format!(
            "not verified: {} is not on this node",
            name.authority()
        ));
        return None;
    };
    let trust = match &authority.trust {
        Ok(trust) => trust,
        Err(fault) => {
            findings.fault(
                Trouble::NoAuthority,
                format!("it cannot be verified: {}", fault.words),
            );
            return None;
        }
    };
    let mut good = true;
    for difference in path_differences(chain, trust, now) {
        match difference {
            CertDifference::NotUnderFirst { .. } => {
                findings.remark(difference.to_string());
                continue;
            }
            // `assess::misplaced` has reported this, without an authority.
            CertDifference::IsCa => {}
            _ => findings.fault(
                Trouble::Unverified,
                path_fault(&difference, chain, trust, &authority.here),
            ),
        }
        good = false;
    }
    let ends = trust.certificates().iter().map(Certificate::not_after);
    if let Some(end) = ends.max()
        && chain.leaf().not_after() > end
    {
        findings.remark(format!(
            "it outlives its authority, which expires at {}",
            minute(end)
        ));
    }
    Some(good)
}

/// Returns why a chain does not verify under the bundle at `here`.
fn path_fault(
    difference: &CertDifference,
    chain: &Chain,
    trust: &TrustBundle,
    here: &str,
) -> String {
    let leaf = chain.leaf();
    let anchors = || {
        format!(
            "in {here}: its issuer is {}, the anchor there is {trust}",
            leaf.issuer()
        )
    };
    let mut candidates = trust.certificates().iter();
    match difference {
        CertDifference::UntrustedIssuer { .. } => format!(
            "no certification path connects it with the authority {}; {}",
            anchors(),
            if candidates.any(|anchor| leaf.names_issuer(anchor)) {
                "the name is the same, the key is not"
            } else {
                "another authority signed it, or intermediates are missing in its file"
            }
        ),
        CertDifference::Path(why) => {
            format!(
                "it does not verify under the authority {} ({why})",
                anchors()
            )
        }
        other => other.to_string(),
    }
}

/// Judges the content of a kubeconfig other than its certificate.
fn kubeconfig_status(
    found: &ObservedKubeconfig,
    authority: Option<&AuthorityFiles>,
    findings: &mut RowFindings,
) -> KubeconfigStatus {
    for refusal in &found.refusals {
        findings.fault(
            Trouble::RefusedByClients,
            format!("every client of Kubernetes refuses it: {refusal}"),
        );
    }
    let own = match found.authority.as_deref().map(TrustBundle::from_pem) {
        Some(Ok(own)) => Some(own),
        Some(Err(error)) => {
            findings.fault(
                Trouble::Damaged,
                format!("its CA data is unreadable: {error}"),
            );
            None
        }
        None => {
            findings.remark("it does not embed CA data");
            None
        }
    };
    let trust = authority.and_then(|authority| authority.trust.as_ref().ok());
    let authority_is_first = match (own, trust) {
        (Some(own), Some(trust)) => Some(compare_authority(&own, trust, findings)),
        _ => None,
    };
    KubeconfigStatus {
        server: found.server.clone(),
        authority_is_first,
        by_file: found.by_file,
    }
}

/// Compares the CA data of a kubeconfig with `ca.crt`. Returns whether it is as kubeadm writes it.
fn compare_authority(own: &TrustBundle, trust: &TrustBundle, findings: &mut RowFindings) -> bool {
    let is_trusted = |certificate| trust.certificates().contains(certificate);
    let mut certificates = own.certificates().iter();
    // During a CA change the CA data contains the old and the new CA.
    let is_first = own.first() == trust.first() && certificates.clone().all(is_trusted);
    // A CA certificate that was renewed with its key verifies the same certificates.
    let has_common = certificates.any(|certificate| {
        let mut trusted = trust.certificates().iter();
        trusted.any(|trusted| is_same_authority(trusted, certificate))
    });
    if !has_common {
        findings.fault(
            Trouble::OtherAuthority,
            format!(
                "its CA data is {own}, but ca.crt holds {trust}: it does not trust the API server"
            ),
        );
    } else if !is_first {
        findings.remark(format!(
            "its CA data is {own}; kubeadm writes the first certificate of ca.crt"
        ));
    }
    is_first
}

/// Returns the host at which the components of this node expect its API server; `None` if they differ.
pub(super) fn local_server(leaves: &[LeafFiles]) -> Option<&str> {
    let server = |wanted: CertName| {
        let leaf = leaves.iter().find(|leaf| leaf.name == wanted)?;
        leaf.kubeconfig.as_ref()?.server.as_deref()
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
