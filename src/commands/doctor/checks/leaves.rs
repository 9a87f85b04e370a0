//! What is wrong with certificates and keys, wherever they lie: mostly in the words of `status`.

use super::Note;
use super::authorities::{is_out, replaced_authority};
use super::cluster::MASTERS;
use super::picture::{AuthorityKey, Of, Picture, Problem};
use crate::agent::SurveyedCert;
use crate::kube::names::{Authority, CertName};
use crate::node::status::{CertStatus, FileStatus, State, Trouble};
use crate::spec::assess::{Action, COPY_SERVICE_ACCOUNT, faults};
use crate::x509::{Difference, path_differences};

const ISSUE: &str = "run `nodepki bootstrap`, which issues it anew (where no signer can be reached, `nodepki csr export DIR`); with the CA key on this node also kubeadm certs renew";

/// The problems of one kind, of authorities and leaves.
fn told(picture: &Picture, wanted: Trouble) -> Vec<Problem<'_>> {
    let mut problems = picture.problems();
    problems.retain(|problem| problem.trouble == wanted && problem.of != Of::ServiceAccount);
    problems
}

pub(super) fn unreadable(picture: &Picture) -> Vec<Note> {
    const FIX: &str = "restore it from where it came; of a leaf and its key both may be removed, and `nodepki bootstrap` issues them anew";
    let counts = |problem: &Problem<'_>| match (problem.trouble, problem.of) {
        (Trouble::Damaged, _) => true,
        // Kubeconfigs have findings of their own, what they name has not.
        (Trouble::Empty, Of::Leaf(name)) if name.is_kubeconfig() => {
            picture.has_kubeconfig(name) && !picture.is_embedded(name)
        }
        (Trouble::NotAFile, Of::Leaf(name)) if name.is_kubeconfig() => picture.has_kubeconfig(name),
        (trouble, _) => matches!(trouble, Trouble::Empty | Trouble::NotAFile),
    };
    let problems = picture.problems().into_iter().filter(counts);
    let mut notes: Vec<Note> = problems
        .map(|problem| {
            let fix = match problem.of {
                Of::ServiceAccount if picture.status.has_served => COPY_SERVICE_ACCOUNT,
                _ => FIX,
            };
            Note::error(problem.sentence(), fix)
        })
        .collect();
    for (name, authority) in &picture.authorities {
        if let AuthorityKey::Unusable(why) = &authority.key {
            notes.push(Note::error(
                format!(
                    "{name}: {} is unreadable: {why}",
                    picture.here(&authority.key_path)
                ),
                "restore it, or take it off this node if an external signer has the key",
            ));
        }
    }
    notes
}

/// The rows whose certificate, or whose key alone, is not there.
fn lacking(picture: &Picture, key: bool) -> impl Iterator<Item = (&CertStatus, Vec<&FileStatus>)> {
    let rows = picture.status.certificates.iter();
    rows.filter(|row| !row.name.is_kubeconfig())
        .filter(|row| row.troubles.contains(&Trouble::Absent))
        .map(|row| {
            let gone = |file: &&FileStatus| file.access.is_none_or(|access| !access.regular);
            (row, row.files.iter().filter(gone).collect::<Vec<_>>())
        })
        .filter(move |(_, gone)| !gone.is_empty() && gone.iter().all(|file| file.secret) == key)
}

pub(super) fn missing_certificate(picture: &Picture) -> Vec<Note> {
    let pairs = lacking(picture, false).map(|(row, gone)| {
        let names: Vec<String> = gone
            .iter()
            .map(|file| picture.here(file.path.as_ref()))
            .collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        format!("{}: {} {verb} not there", row.name, names.join(" and "))
    });
    let parts = told(picture, Trouble::Absent).into_iter();
    let parts = parts.chain(told(picture, Trouble::Empty));
    let parts = parts
        .filter(|problem| matches!(problem.of, Of::Leaf(name) if picture.is_embedded(name)))
        .map(|problem| problem.sentence());
    // What the files do not let on.
    let wanted = picture
        .configuration
        .plan
        .iter()
        .flat_map(|plan| &plan.certs);
    let wanted = wanted
        .map(|spec| spec.name)
        .filter(|name| picture.status.certificate(*name).is_none())
        .filter(|name| !name.is_kubeconfig())
        .map(|name| {
            format!(
                "{name}: {} is not there",
                picture
                    .files(name)
                    .first()
                    .map_or_else(String::new, |path| picture.here(path))
            )
        });
    pairs
        .chain(parts)
        .chain(wanted)
        .map(|words| Note::error(words, ISSUE))
        .collect()
}

pub(super) fn missing_key(picture: &Picture) -> Vec<Note> {
    lacking(picture, true)
        .flat_map(|(row, gone)| gone.into_iter().map(move |file| (row, file)))
        .map(|(row, file)| {
            Note::error(
                format!(
                    "{}: {} is not there",
                    row.name,
                    picture.here(file.path.as_ref())
                ),
                ISSUE,
            )
        })
        .collect()
}

pub(super) fn torn(picture: &Picture) -> Vec<Note> {
    let leaves = told(picture, Trouble::Torn).into_iter();
    let mut notes: Vec<Note> = leaves
        .map(|problem| Note::error(problem.sentence(), ISSUE))
        .collect();
    for (name, authority) in &picture.authorities {
        if let (Some(bundle), AuthorityKey::Usable(key)) =
            (authority.bundle.present(), &authority.key)
            && bundle.first().public_key() != key
            && replaced_authority(picture, *name).is_none()
        {
            notes.push(Note::error(
                format!(
                    "{name}: {} does not belong to {}, the first certificate in {}",
                    picture.here(&authority.key_path),
                    bundle.first().subject(),
                    picture.here(&authority.path)
                ),
                "find out which of them the cluster uses (compare with another control-plane node); kubeadm signs nothing with this pair",
            ));
        }
    }
    notes
}

const CLOCK: &str = "if the time is not in the future, the clock of this machine is wrong: see timedatectl status; else wait";

pub(super) fn expired(picture: &Picture) -> Vec<Note> {
    let found = told(picture, Trouble::Expired).into_iter();
    found
        .map(|problem| {
            match problem.of {
                Of::Authority(name) => Note::error(
                    format!("{}; {}{}", problem.sentence(), beneath(name), valid_copy(picture, name)),
                    "every certificate under it is refused, however new, so that new leaves do not help: have its owner sign a new CA certificate for the same key and subject, which leaves everything under it valid, and put it in place on every node; with another key a person must replace the authority first, then every leaf, kubeconfig and kubelet",
                ),
                _ => Note::error(problem.sentence(), ISSUE),
            }
        })
        .collect()
}

fn valid_copy(picture: &Picture, name: Authority) -> String {
    let row = picture.status.authority(name);
    let copy = row.and_then(|row| row.valid_copy.as_deref());
    copy.map_or_else(String::new, |copy| format!("; {copy}"))
}

/// All that fails with an authority.
fn beneath(authority: Authority) -> String {
    let leaves: Vec<&str> = CertName::ALL
        .into_iter()
        .filter(|name| name.authority() == authority)
        .map(CertName::as_str)
        .collect();
    let others = match authority {
        Authority::Ca => {
            "on every node every kubelet and every kubeconfig, and in the cluster whoever verifies the API server by kube-root-ca.crt"
        }
        Authority::EtcdCa => "on every node each etcd member and its API server's connection to it",
        Authority::FrontProxyCa => "every aggregated API server",
    };
    format!("with it fail {}, {others}", leaves.join(", "))
}

pub(super) fn not_yet_valid(picture: &Picture) -> Vec<Note> {
    let found = told(picture, Trouble::NotYetValid).into_iter();
    found
        .map(|problem| Note::error(problem.sentence(), CLOCK))
        .collect()
}

pub(super) fn expiring(picture: &Picture) -> Vec<Note> {
    let found = told(picture, Trouble::Expiring).into_iter();
    found
        .map(|problem| {
            Note::warning(
                problem.sentence(),
                match problem.is_of_authority() {
                    true => "replace the authority in time: every leaf, kubeconfig and kubelet needs a new certificate then",
                    false => "renew it: nodepki bootstrap issues it anew once it has expired or was removed; with the CA key on this node kubeadm certs renew",
                },
            )
        })
        .collect()
}

/// The certificates that the configuration wants, as they were found and judged.
fn surveyed(picture: &Picture) -> impl Iterator<Item = &SurveyedCert> {
    let surveys = picture.configuration.survey.iter();
    surveys.flat_map(|survey| &survey.certs)
}

pub(super) fn revoked(picture: &Picture) -> Vec<Note> {
    surveyed(picture)
        .filter_map(|cert| {
            let why = cert.found.revoked.as_ref()?;
            Some(Note::error(format!("{}: {why}", cert.spec.name), ISSUE))
        })
        .collect()
}

pub(super) fn unverified(picture: &Picture) -> Vec<Note> {
    let problems = told(picture, Trouble::Unverified).into_iter();
    problems
        // An authority that is out itself says it all.
        .filter(|problem| match problem.of {
            Of::Leaf(name) => !is_out(picture, name.authority()),
            _ => true,
        })
        .map(|problem| {
            Note::error(
                problem.sentence(),
                "find out whether the certificate or the authority on this node is the wrong one (compare with another control-plane node); `nodepki bootstrap` issues the certificate anew",
            )
        })
        .collect()
}

pub(super) fn not_under_first(picture: &Picture) -> Vec<Note> {
    let mut notes = Vec::new();
    for (name, leaf) in &picture.leaves {
        let (Some(chain), Some(bundle)) = (leaf.chain.present(), picture.bundle(name.authority()))
        else {
            continue;
        };
        let differences = path_differences(chain, bundle, picture.at);
        let found = differences
            .iter()
            .find(|difference| matches!(difference, Difference::NotUnderFirst { .. }));
        notes.extend(found.map(|difference| {
            Note::warning(
                format!("{name}: {difference}"),
                "put the certificate of the authority that signs first in its file",
            )
        }));
    }
    notes
}

pub(super) fn misplaced(picture: &Picture) -> Vec<Note> {
    let problems = told(picture, Trouble::Misplaced).into_iter();
    problems
        // `system-masters` has more to say about these.
        .filter(|problem| !problem.words.contains(MASTERS))
        .map(|problem| Note::error(problem.sentence(), ISSUE))
        .collect()
}

pub(super) fn not_as_configured(picture: &Picture) -> Vec<Note> {
    const FIX: &str = "run `nodepki plan` to see what would change, then `nodepki bootstrap`";
    let mut notes = Vec::new();
    for cert in surveyed(picture).filter(|cert| cert.found.revoked.is_none()) {
        let name = cert.spec.name;
        let Some(row) = picture
            .status
            .certificate(name)
            .filter(|row| matches!(row.state, State::Ok | State::Expiring | State::Unsafe))
        else {
            continue;
        };
        let (Some(trust), Action::Issue { .. }) = (picture.bundle(name.authority()), &cert.action)
        else {
            continue;
        };
        let faults = faults(&cert.spec, &cert.found, trust, picture.at);
        let is_new = |fault: &&Difference| !row.problems.contains(&fault.to_string());
        let (errors, warnings): (Vec<&Difference>, Vec<&Difference>) = faults
            .iter()
            .filter(is_new)
            .partition(|fault| is_grave(fault));
        let says = |faults: Vec<&Difference>| {
            let words: Vec<String> = faults.iter().map(ToString::to_string).collect();
            (!words.is_empty()).then(|| format!("{name}: {}", words.join("; ")))
        };
        notes.extend(says(errors).map(|words| Note::error(words, FIX)));
        notes.extend(says(warnings).map(|words| Note::warning(words, FIX)));
    }
    notes
}

/// Something that is needed is missing, or the certificate allows its holder more than its place does. Anything else is
/// drift.
fn is_grave(difference: &Difference) -> bool {
    !matches!(
        difference,
        Difference::KeyAlgorithm { .. }
            | Difference::SubjectAttribute(_)
            | Difference::DnsExtra(_)
            | Difference::IpExtra(_)
            | Difference::SanExtra(_)
    )
}

pub(super) fn external_etcd(picture: &Picture) -> Vec<Note> {
    let surveys = picture.configuration.survey.iter();
    let problems = surveys.flat_map(|survey| &survey.external_etcd);
    problems
        .map(|problem| {
            Note::error(
                problem,
                "put there what the administrators of etcd gave for this cluster; kube-apiserver does not start without it",
            )
        })
        .collect()
}

pub(super) fn modes(picture: &Picture) -> Vec<Note> {
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
        let says = |words: &str| format!("{here} has mode {:04o}: {words}", access.mode);
        if file.secret && access.mode & 0o007 != 0 {
            notes.push(Note::error(
                says("every user of this machine can get at the private key in it"),
                "chmod 600 the file, and think about a new key: it may be known",
            ));
        } else if file.secret && access.mode & 0o070 != 0 && access.gid != 0 {
            notes.push(Note::warning(
                says(&format!(
                    "group {} can get at the private key in it",
                    access.gid
                )),
                "chmod 600 the file, unless the static pods run under users of their own",
            ));
        } else if access.mode & 0o002 != 0 {
            notes.push(Note::error(
                says("every user of this machine can change whom this node trusts"),
                "chmod 644 the file, and compare it with that of another control-plane node",
            ));
        }
    }
    notes
}

/// The organizations of a certificate's subject.
pub(super) fn organizations(picture: &Picture, name: CertName) -> Option<Vec<String>> {
    let chain = picture.leaf(name)?.chain.present()?;
    let subject = chain.leaf().subject();
    Some(subject.values("O").map(str::to_owned).collect())
}
