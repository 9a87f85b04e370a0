//! Checks of certificates and keys. Most of them report the problems that `status` has found.

use super::authorities::{DERIVE_PUBLIC, is_unusable, misplaced_key, replaced_authority, restored};
use super::finding::{CheckNote, FindingSeverity};
use super::picture::{Picture, Problem};
use super::reader::AuthorityKey;
use crate::agent::SurveyedCert;
use crate::kube::names::{Authority, CertName};
use crate::node::status::{
    CertStatus, FileProblem, FileStatus, RowFault, RowRemark, RowState, RowSubject,
};
use crate::signer::quoted;
use crate::spec::SYSTEM_MASTERS;
use crate::spec::assess::{Action, COPY_SERVICE_ACCOUNT, differences_from_spec, joined};
use crate::text::rfc3339;
use crate::x509::{CertDifference, path_differences};

/// Returns how to get a new certificate.
fn issue(picture: &Picture, subject: RowSubject) -> &'static str {
    if let Some(fix) = not_issued(picture, subject) {
        fix
    } else if picture.configuration.has_refused_program {
        "run `nodepki csr export DIR` and have the requests signed, or run `nodepki bootstrap --config FILE` with settings of this machine: no program that settings below the root directory name is started here"
    } else if picture.has_failing_signer() {
        "run `nodepki csr export DIR` and have the requests signed, or correct what `signer-login` reports and run `nodepki bootstrap`"
    } else if picture.signers.is_some() {
        "run `nodepki bootstrap`, which issues a new one; with the CA key on this node also kubeadm certs renew"
    } else {
        "run `nodepki bootstrap`, which issues a new one (with --online, this command asks the signers first; if none is reachable, `nodepki csr export DIR`); with the CA key on this node also kubeadm certs renew"
    }
}

/// Returns what to do about a certificate that no run issues.
fn not_issued(picture: &Picture, subject: RowSubject) -> Option<&'static str> {
    match subject {
        RowSubject::Certificate(name) => picture.not_issued(name),
        RowSubject::Authority(_) | RowSubject::ServiceAccount => None,
    }
}

/// Returns the faults of one kind, of authorities and leaves.
fn problems_of(
    picture: &Picture,
    is_wanted: impl Fn(&RowFault) -> bool,
) -> impl Iterator<Item = Problem<'_>> {
    let problems = picture.problems().into_iter();
    problems
        .filter(|problem| problem.subject != RowSubject::ServiceAccount)
        .filter(move |problem| is_wanted(problem.fault))
}

/// Returns whether a bootstrap issues a certificate anew.
fn is_issued(picture: &Picture, name: CertName) -> bool {
    let survey = picture.configuration.survey.as_ref();
    let cert = survey.and_then(|survey| survey.cert(name));
    cert.is_some_and(|cert| matches!(cert.decision.action, Action::Issue { .. }))
}

pub(super) fn unreadable(picture: &Picture) -> Vec<CheckNote> {
    // Other checks report the first two of kubeconfigs, but not of the files that these name.
    let is_reported =
        |problem: &Problem<'_>| match (problem.fault.file_problem(), problem.kubeconfig()) {
            (Some(FileProblem::Empty), Some(name)) => {
                picture.has_kubeconfig(name) && !picture.is_embedded(name)
            }
            (Some(FileProblem::NotAFile(_)), Some(name)) => picture.has_kubeconfig(name),
            (Some(FileProblem::Denied(_) | FileProblem::NoContext(_)) | None, _) => false,
            _ => !problem.fault.is_absence(),
        };
    const FIX: &str = "restore it from its source; a leaf certificate and its key may also be removed together, and `nodepki bootstrap` issues new ones";
    let problems = picture.problems().into_iter().filter(is_reported);
    let mut notes: Vec<CheckNote> = problems
        .map(|problem| {
            if let Some(fix) = not_issued(picture, problem.subject) {
                return problem.error(fix);
            }
            let is_empty = matches!(problem.fault.file_problem(), Some(FileProblem::Empty));
            let fix = match problem.subject {
                RowSubject::Authority(name) => restored(picture, name),
                // The fault is that of sa.pub.
                RowSubject::ServiceAccount if picture.service_account.present().is_some() => {
                    let [_, public] = picture.service_account_files();
                    if is_empty {
                        DERIVE_PUBLIC.to_owned()
                    } else {
                        let public = quoted(&public);
                        format!("remove it (`rm {public}`), then {DERIVE_PUBLIC}")
                    }
                }
                RowSubject::ServiceAccount if picture.status.sign_of_service.is_some() => {
                    COPY_SERVICE_ACCOUNT.to_owned()
                }
                RowSubject::Certificate(name) if is_issued(picture, name) => {
                    issue(picture, problem.subject).to_owned()
                }
                RowSubject::Certificate(name) if name.is_kubeconfig() => {
                    let files = picture.status.certificate(name).map(|row| row.files.as_slice());
                    let file = files.and_then(<[FileStatus]>::first);
                    let file = file.map(|file| quoted(&picture.here(file.path.as_ref())));
                    let file = file.unwrap_or_default();
                    format!(
                        "move it away (`mv {file} {file}.damaged`), then run `nodepki bootstrap`, which writes a new one"
                    )
                }
                _ => FIX.to_owned(),
            };
            problem.error(fix)
        })
        .collect();
    for (name, authority) in &picture.authorities {
        if let AuthorityKey::Unusable(why) = &authority.key {
            notes.push(CheckNote::error(
                format!(
                    "{name}: {} is unreadable: {why}",
                    picture.here(&authority.key_path)
                ),
                "restore it, or remove it from this node if an external signer has the key",
            ));
        }
    }
    notes
}

/// Returns the rows with missing files: with `key`, those that lack only the key; otherwise those that lack the
/// certificate.
fn lacking(picture: &Picture, key: bool) -> impl Iterator<Item = (&CertStatus, Vec<&FileStatus>)> {
    let rows = picture.status.certificates.iter();
    rows.filter(|row| !row.name.is_kubeconfig())
        .filter(|row| row.findings.faults.iter().any(RowFault::is_absence))
        .map(|row| {
            let is_missing = |file: &&FileStatus| file.access.is_none_or(|access| !access.regular);
            (row, row.files.iter().filter(is_missing).collect::<Vec<_>>())
        })
        .filter(move |(_, missing)| {
            !missing.is_empty() && missing.iter().all(|file| file.secret) == key
        })
}

pub(super) fn missing_certificate(picture: &Picture) -> Vec<CheckNote> {
    let fix = |name: CertName| {
        let fix = picture.not_issued(name);
        fix.unwrap_or_else(|| {
            picture.unless_exported(issue(picture, RowSubject::Certificate(name)))
        })
    };
    let pairs = lacking(picture, false).map(|(row, missing)| {
        let names: Vec<String> = missing
            .iter()
            .map(|file| picture.here(file.path.as_ref()))
            .collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        let evidence = format!("{}: {} {verb} missing", row.name, names.join(" and "));
        (row.name, evidence)
    });
    let is_empty = |fault: &RowFault| matches!(fault.file_problem(), Some(FileProblem::Empty));
    let parts = problems_of(picture, RowFault::is_absence);
    let parts = parts.chain(problems_of(picture, is_empty));
    let parts = parts
        .filter_map(|problem| Some((problem.kubeconfig()?, problem)))
        .filter(|(name, _)| picture.is_embedded(*name))
        .map(|(name, problem)| problem.error(fix(name)));
    // Certificates that only the configuration requires.
    let planned = picture
        .configuration
        .plan
        .iter()
        .flat_map(|plan| &plan.certs);
    let planned = planned
        .map(|spec| spec.name())
        .filter(|name| picture.status.certificate(*name).is_none())
        .filter(|name| !name.is_kubeconfig())
        .map(|name| {
            let files = picture.files(name);
            let path = files.first().map(|path| picture.here(path));
            let evidence = format!("{name}: {} is missing", path.unwrap_or_default());
            (name, evidence)
        });
    let absent = |(name, evidence): (CertName, String)| {
        CheckNote::error(evidence, fix(name)).with_code(FileProblem::Absent.code())
    };
    pairs
        .map(absent)
        .chain(parts)
        .chain(planned.map(absent))
        .collect()
}

pub(super) fn missing_key(picture: &Picture) -> Vec<CheckNote> {
    lacking(picture, true)
        .flat_map(|(row, missing)| missing.into_iter().map(move |file| (row, file)))
        .map(|(row, file)| {
            CheckNote::error(
                format!(
                    "{}: {} is missing",
                    row.name,
                    picture.here(file.path.as_ref())
                ),
                issue(picture, RowSubject::Certificate(row.name)),
            )
        })
        .collect()
}

pub(super) fn torn(picture: &Picture) -> Vec<CheckNote> {
    let leaves = problems_of(picture, |fault| matches!(fault, RowFault::KeyMismatch));
    // The check `sa-pair` reports a key that was exchanged with sa.key.
    let exchanged = misplaced_key(picture);
    let leaves = leaves.filter(|problem| {
        let files = match problem.subject {
            RowSubject::Certificate(name) => picture.files(name),
            _ => Vec::new(),
        };
        exchanged.is_none_or(|key| files.iter().all(|file| picture.here(file) != key.path))
    });
    let mut notes: Vec<CheckNote> = leaves
        .map(|problem| problem.error(issue(picture, problem.subject)))
        .collect();
    for (name, authority) in &picture.authorities {
        if let (Some(bundle), AuthorityKey::Usable(key)) =
            (authority.bundle.present(), &authority.key)
            && bundle.first().public_key() != key
            && replaced_authority(picture, *name).is_none()
        {
            notes.push(CheckNote::error(
                format!(
                    "{name}: {} does not belong to {}, the first certificate in {}",
                    picture.here(&authority.key_path),
                    bundle.first().subject(),
                    picture.here(&authority.path)
                ),
                "find out which of both the cluster uses (compare with another control-plane node); kubeadm signs nothing with this pair",
            ));
        }
    }
    notes
}

const CLOCK: &str = "if this time is in the past, correct the clock of this machine (timedatectl status); otherwise wait";

pub(super) fn expired(picture: &Picture) -> Vec<CheckNote> {
    const FIX: &str = "every certificate under it is rejected, including new ones: have the owner of the CA sign a new CA certificate for the same key and subject, which keeps all certificates under it valid, and install it on every node; with a different key, replace the authority first, then every leaf, kubeconfig and kubelet certificate";
    let found = problems_of(picture, |fault| matches!(fault, RowFault::Expired { .. }));
    found
        .map(|problem| match problem.subject {
            RowSubject::Authority(name) => CheckNote::error(
                format!("{}; {}", problem.sentence(), affected(picture, name)),
                valid_copy(picture, name).unwrap_or_else(|| FIX.to_owned()),
            )
            .with_code(problem.fault.code()),
            subject => problem.error(issue(picture, subject)),
        })
        .collect()
}

/// Returns the command that installs a valid certificate of the same CA, if a kubeconfig has one.
fn valid_copy(picture: &Picture, name: Authority) -> Option<String> {
    let row = picture.status.authority(name)?;
    let mut remarks = row.findings.remarks.iter();
    let copy = remarks.find(|remark| matches!(remark, RowRemark::ValidCopy(_)))?;
    Some(copy.to_string())
}

/// Returns a sentence with everything that fails together with an authority.
fn affected(picture: &Picture, authority: Authority) -> String {
    let registered = picture.leaves.keys().copied();
    let registered = registered.filter(|name| matches!(name, CertName::Registered(_)));
    let leaves: Vec<&str> = CertName::ALL
        .into_iter()
        .chain(registered)
        .filter(|name| name.authority() == authority)
        .map(CertName::as_str)
        .collect();
    let others = match authority {
        Authority::Ca => {
            "every kubelet and every kubeconfig on all nodes, and every client that verifies the API server with kube-root-ca.crt"
        }
        Authority::EtcdCa => {
            "every etcd member and the API servers' connections to etcd on all nodes"
        }
        Authority::FrontProxyCa => "every aggregated API server",
    };
    format!("this affects {}, {others}", leaves.join(", "))
}

pub(super) fn not_yet_valid(picture: &Picture) -> Vec<CheckNote> {
    problems_of(picture, |fault| matches!(fault, RowFault::NotYetValid(_)))
        .map(|problem| problem.error(CLOCK))
        .collect()
}

pub(super) fn expiring(picture: &Picture) -> Vec<CheckNote> {
    problems_of(picture, |fault| matches!(fault, RowFault::Expiring { .. }))
        .map(|problem| {
            let fix = match problem.subject {
                RowSubject::Certificate(name) => {
                    let fix = picture.not_issued(name);
                    fix.unwrap_or(if picture.status.ends_with_authority(name) {
                        "replace the authority in time: its certificate expires no later, so that a renewal would not prolong this one"
                    } else {
                        "run `nodepki renew`; nodepki bootstrap issues a new one only once it has expired or was removed; with the CA key on this node also kubeadm certs renew"
                    })
                }
                _ => {
                    "replace the authority in time: every leaf, kubeconfig and kubelet then needs a new certificate"
                }
            };
            CheckNote::warning(problem.sentence(), fix).with_code(problem.fault.code())
        })
        .collect()
}

/// Returns the certificates of the configuration with their assessment.
fn surveyed(picture: &Picture) -> impl Iterator<Item = &SurveyedCert> {
    let surveys = picture.configuration.survey.iter();
    surveys.flat_map(|survey| &survey.certs)
}

pub(super) fn revoked(picture: &Picture) -> Vec<CheckNote> {
    surveyed(picture)
        .filter_map(|cert| {
            let why = cert.found.revoked.as_ref()?;
            let name = cert.spec.name();
            Some(CheckNote::error(
                format!("{name}: {why}"),
                issue(picture, RowSubject::Certificate(name)),
            ))
        })
        .collect()
}

pub(super) fn unverified(picture: &Picture) -> Vec<CheckNote> {
    problems_of(picture, |fault| {
        matches!(fault, RowFault::UntrustedIssuer { .. } | RowFault::Unverified(_))
    })
        // If the authority itself is unusable, its own finding is enough.
        .filter(|problem| match problem.subject {
            RowSubject::Certificate(name) => !is_unusable(picture, name.authority()),
            _ => true,
        })
        .map(|problem| {
            let fix = not_issued(picture, problem.subject);
            problem.error(fix.unwrap_or(
                "find out whether the certificate or the authority on this node is wrong (compare with another control-plane node); `nodepki bootstrap` issues a new certificate",
            ))
        })
        .collect()
}

pub(super) fn not_under_first(picture: &Picture) -> Vec<CheckNote> {
    let mut notes = Vec::new();
    for (name, leaf) in &picture.leaves {
        let (Some(chain), Some(bundle)) =
            (leaf.found.chain.present(), picture.bundle(name.authority()))
        else {
            continue;
        };
        let differences = path_differences(chain, bundle, picture.at);
        let found = differences
            .iter()
            .find(|difference| matches!(difference, CertDifference::NotUnderFirst { .. }));
        notes.extend(found.map(|difference| {
            CheckNote::warning(
                format!("{name}: {difference}"),
                format!(
                    "run `nodepki authority status {}`, which names the next step if this is the result of a CA change; otherwise move the certificate of the authority that signs to the beginning of its file",
                    name.authority()
                ),
            )
            .with_code(difference.code())
        }));
    }
    notes
}

pub(super) fn misplaced(picture: &Picture) -> Vec<CheckNote> {
    let is_wanted = |fault: &RowFault| match fault {
        // The check `system-masters` reports these in more detail.
        RowFault::Misplaced(CertDifference::OrganizationExtra(group)) => group != SYSTEM_MASTERS,
        fault => matches!(fault, RowFault::Misplaced(_)),
    };
    problems_of(picture, is_wanted)
        .map(|problem| problem.error(issue(picture, problem.subject)))
        .collect()
}

pub(super) fn not_as_configured(picture: &Picture) -> Vec<CheckNote> {
    const FIX: &str = "run `nodepki plan` to see what would change, then `nodepki bootstrap`";
    let mut notes = Vec::new();
    if picture.disputed_name().is_some() {
        // The check `kubelet-other-node` reports it; the differences may be from a wrong name.
        return notes;
    }
    for cert in surveyed(picture).filter(|cert| cert.found.revoked.is_none()) {
        let name = cert.spec.name();
        let Some(row) = picture.status.certificate(name).filter(|row| {
            matches!(
                row.state,
                RowState::Ok | RowState::Expiring | RowState::Unsafe
            )
        }) else {
            continue;
        };
        let (Some(trust), Action::Issue { .. }) =
            (picture.bundle(name.authority()), &cert.decision.action)
        else {
            continue;
        };
        let differences = differences_from_spec(&cert.spec, &cert.found, trust, picture.at);
        // The check `misplaced-certificate` reports the others.
        let is_new = |difference: &&CertDifference| {
            let mut known = row.findings.faults.iter();
            !known.any(|fault| matches!(fault, RowFault::Misplaced(one) if one == *difference))
        };
        let (errors, warnings): (Vec<&CertDifference>, Vec<&CertDifference>) = differences
            .iter()
            .filter(is_new)
            .partition(|fault| is_grave(fault));
        for (severity, faults) in [
            (FindingSeverity::Error, errors),
            (FindingSeverity::Warning, warnings),
        ] {
            if faults.is_empty() {
                continue;
            }
            let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
            let note = CheckNote::new(severity, format!("{name}: {}", texts.join("; ")), FIX);
            let codes = faults.into_iter().map(CertDifference::code);
            notes.push(codes.fold(note, CheckNote::with_code));
        }
    }
    notes.extend(waiting_for_renewal(picture));
    notes
}

/// Returns warnings for certificates whose key parameters the next renewal changes. One command renews all of them.
fn waiting_for_renewal(picture: &Picture) -> Vec<CheckNote> {
    let waiting = surveyed(picture).filter_map(|cert| match &cert.decision.action {
        Action::Keep { at_renewal, .. } if !at_renewal.is_empty() => Some((cert, at_renewal)),
        _ => None,
    });
    let waiting: Vec<_> = waiting.collect();
    let names: Vec<&str> = waiting
        .iter()
        .map(|(cert, _)| cert.spec.name().as_str())
        .collect();
    let fix = format!(
        "wait, or run `nodepki renew --force {}`; rotation.onPolicyChange: now does not wait",
        names.join(" ")
    );
    let notes = waiting.iter().map(|(cert, at_renewal)| {
        let at = cert.due.map_or_else(String::new, |due| {
            format!(", which is due at {}", rfc3339(due))
        });
        let changes = joined(at_renewal);
        let name = cert.spec.name();
        CheckNote::warning(
            format!("{name}: {changes}; the next renewal{at} corrects this"),
            fix.clone(),
        )
    });
    notes.collect()
}

/// Returns whether the certificate lacks something that is needed, or grants its holder too much. Other differences are
/// drift.
fn is_grave(difference: &CertDifference) -> bool {
    !matches!(
        difference,
        CertDifference::KeyAlgorithm { .. }
            | CertDifference::SubjectAttribute(_)
            | CertDifference::DnsExtra(_)
            | CertDifference::IpExtra(_)
            | CertDifference::SanExtra(_)
    )
}

pub(super) fn external_etcd(picture: &Picture) -> Vec<CheckNote> {
    let surveys = picture.configuration.survey.iter();
    let problems = surveys.flat_map(|survey| &survey.external_etcd);
    problems
        .map(|problem| {
            CheckNote::error(
                problem,
                "install the file that the administrators of etcd provided for this cluster; kube-apiserver does not start without it",
            )
        })
        .collect()
}

pub(super) fn modes(picture: &Picture) -> Vec<CheckNote> {
    let status = &picture.status;
    let certificates = status.certificates.iter().flat_map(|row| &row.files);
    let authorities = status.authorities.iter().flat_map(|row| &row.files);
    let pair = status.service_account.iter().flat_map(|row| &row.files);
    let mut notes = Vec::new();
    for file in authorities.chain(certificates).chain(pair) {
        let Some(access) = file.access.filter(|access| access.regular) else {
            continue;
        };
        let here = picture.here(file.path.as_ref());
        let evidence = |problem: &str, mode: &str| {
            let file = quoted(&here);
            format!(
                "{here} has mode {:04o}: {problem} (chmod {mode} {file})",
                access.mode
            )
        };
        if file.secret && access.mode & 0o007 != 0 {
            notes.push(CheckNote::error(
                evidence(
                    "every user of this machine can access the private key in it",
                    "600",
                ),
                "run the command in parentheses, and consider a new key, since this one may be compromised",
            ));
        } else if file.secret && access.mode & 0o070 != 0 && access.gid != 0 {
            notes.push(CheckNote::warning(
                evidence(
                    &format!("group {} can access the private key in it", access.gid),
                    "600",
                ),
                "run the command in parentheses, unless the static pods run as dedicated users",
            ));
        } else if access.mode & 0o002 != 0 {
            notes.push(CheckNote::error(
                evidence(
                    "every user of this machine can change which certificates this node trusts",
                    "644",
                ),
                "run the command in parentheses, and compare the file with that of another control-plane node",
            ));
        }
    }
    notes
}

/// Returns the organizations in a certificate's subject.
pub(super) fn organizations(picture: &Picture, name: CertName) -> Option<Vec<String>> {
    let chain = picture.chain(name)?;
    let subject = chain.leaf().subject();
    Some(subject.values("O").map(str::to_owned).collect())
}
