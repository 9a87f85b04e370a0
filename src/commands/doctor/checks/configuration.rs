//! Checks of the configuration, the clock, and the state of earlier runs.

use std::path::Path;

use super::finding::CheckNote;
use super::picture::Picture;
use super::reader::AuthorityKey;
use crate::agent;
use crate::agent::load;
use crate::config::COMMAND_LINE_SIGNER;
use crate::kube::paths::KUBERNETES_DIR;
use crate::node::status::{
    FileFault, FileProblem, NodeRole, PendingStatus, RowFault, RowState, UnregisteredCertificate,
};
use crate::signer::quoted;
use crate::store::{STATE_DIR, UnfinishedWork};
use crate::text::rfc3339;

pub(super) fn unusable(picture: &Picture) -> Vec<CheckNote> {
    let faults = picture.configuration.faults.iter();
    faults
        .map(|fault| {
            CheckNote::error(
                fault,
                if picture.configuration.is_refused {
                    "correct what it names, and verify it with `nodepki doctor`"
                } else {
                    "correct the configuration, and verify it with `nodepki config check`"
                },
            )
        })
        .collect()
}

/// Checks for secrets of the settings that other users can read or change.
pub(super) fn exposed_secrets(picture: &Picture) -> Vec<CheckNote> {
    let found = picture.configuration.exposed_secrets.iter();
    found
        .map(|found| {
            CheckNote::error(
                found,
                "run the command in parentheses, and replace the secret if another user may have read it",
            )
        })
        .collect()
}

/// Checks for a signer of kubelets' requests that does not know the networks of the nodes.
pub(super) fn any_network(picture: &Picture) -> Vec<CheckNote> {
    let kubelets = picture.configuration.kubelets.iter();
    kubelets
        .filter(|policy| policy.networks.is_empty())
        .map(|_| {
            CheckNote::warning(
                "kubelets.networks is not set, and each kubelet reports its own addresses",
                "list the networks of the nodes in kubelets.networks; public addresses require it",
            )
        })
        .collect()
}

/// Checks for signers of the settings whose CA private keys are on the node.
pub(super) fn local_signer(picture: &Picture) -> Vec<CheckNote> {
    let found = picture.configuration.local_ca_keys.iter();
    found
        .map(|found| CheckNote::warning(found, load::LOCAL_CA_KEYS_ADVICE))
        .collect()
}

pub(super) fn absent(picture: &Picture) -> Vec<CheckNote> {
    let configuration = &picture.configuration;
    if configuration.plan.is_some() || !configuration.faults.is_empty() {
        return Vec::new();
    }
    let evidence = match (configuration.exists, &configuration.node) {
        (false, _) => "there are neither settings nor a kubeadm configuration",
        (true, None) => "there is no kubeadm configuration",
        (true, Some(_)) => "the ClusterConfiguration is not on this node",
    };
    vec![CheckNote::info(
        evidence,
        "nothing, if this is intended (bootstrap and renew then need --kubeadm-config and --signer); otherwise name the files with --config and --kubeadm-config",
    )]
}

pub(super) fn empty(picture: &Picture) -> Vec<CheckNote> {
    if picture.status.role != NodeRole::Empty {
        return Vec::new();
    }
    if !picture.is_system {
        return vec![CheckNote::error(
            format!("there is no directory {}", picture.here("/etc".as_ref())),
            "mount the file system of the node there, or correct --root",
        )];
    }
    let notes = picture.status.notes.iter();
    notes
        .map(|note| {
            CheckNote::info(
                note,
                "run `nodepki bootstrap`, or correct --root and --cert-dir",
            )
        })
        .collect()
}

pub(super) fn hostname_override(picture: &Picture) -> Vec<CheckNote> {
    let node = picture.configuration.node.iter();
    node.filter_map(|node| {
        let other = node.hostname_override.as_ref()?;
        Some(CheckNote::warning(
            format!(
                "hostname-override is {other:?}, but the node name in the certificates is {:?}",
                node.name.as_str()
            ),
            "set nodeRegistration.name to the same name and remove hostname-override",
        ))
    })
    .collect()
}

pub(super) fn clock(picture: &Picture) -> Vec<CheckNote> {
    let bundles = picture.authorities.values();
    let floor = agent::floor(bundles.filter_map(|authority| authority.bundle.present()));
    if picture.at >= floor.at {
        return Vec::new();
    }
    vec![CheckNote::error(
        format!(
            "the clock shows {}, which is impossible: {} ({})",
            rfc3339(picture.at),
            floor.because,
            rfc3339(floor.at)
        ),
        "start chrony or systemd-timesyncd (timedatectl status), or set the clock; other findings about validity are based on the wrong time",
    )]
}

pub(super) fn not_permitted(picture: &Picture) -> Vec<CheckNote> {
    const FIX: &str = "run nodepki doctor as root";
    let problems = picture.problems().into_iter();
    let problems = problems.filter_map(|problem| match problem.fault {
        RowFault::File(FileFault {
            path,
            problem: FileProblem::Denied(error),
            ..
        }) => {
            let note = CheckNote::warning(error.to_string(), FIX);
            Some((path.clone(), note.with_code(problem.fault.code())))
        }
        _ => None,
    });
    let keys = picture.authorities.values();
    let keys = keys
        .filter(|authority| matches!(authority.key, AuthorityKey::Closed | AuthorityKey::Unknown));
    let keys = keys.map(|authority| authority.key_path.as_path());
    let denied = picture.trees.denied.iter().map(|path| path.as_path());
    let paths = keys.chain(denied).map(|path| {
        let path = picture.here(path);
        let evidence = format!("{path} could not be read");
        (path, CheckNote::warning(evidence, FIX))
    });
    let mut reported: Vec<String> = Vec::new();
    let mut notes = Vec::new();
    for (path, note) in problems.chain(paths) {
        // A file below a directory stands for the directory.
        if !reported
            .iter()
            .any(|other| Path::new(other).starts_with(&path))
        {
            reported.push(path);
            notes.push(note);
        }
    }
    notes
}

pub(super) fn unfinished(picture: &Picture) -> Vec<CheckNote> {
    let note = |work: &UnfinishedWork| {
        CheckNote::error(
            format!(
                "{} contains the record of a run that was interrupted while it {}, or is in progress",
                picture.here(STATE_DIR.as_ref()),
                work.doing()
            ),
            "run `nodepki bootstrap`, which first completes or reverts the interrupted run",
        )
    };
    picture.unfinished.iter().map(note).collect()
}

pub(super) fn no_room(picture: &Picture) -> Vec<CheckNote> {
    let reasons = picture.configuration.no_room.iter();
    reasons
        .map(|why| {
            CheckNote::error(
                why,
                "do so before the other fixes: a run without room for its files ends before it sends a request",
            )
        })
        .collect()
}

pub(super) fn strays(picture: &Picture) -> Vec<CheckNote> {
    let unfinished = picture.trees.unfinished.iter().map(|path| {
        let path = picture.here(path);
        let command = format!("rm -f {}", quoted(&path));
        CheckNote::warning(
            format!("{path} is a temporary file of an interrupted run ({command})"),
            "run `nodepki bootstrap`, which completes or reverts an interrupted run, then the commands in parentheses",
        )
    });
    let requests = picture.trees.requests.iter().map(|path| {
        CheckNote::info(
            format!("{} is a certificate signing request", picture.here(path)),
            "remove it once it is signed: kubeadm certs generate-csr refuses to run if it exists",
        )
    });
    unfinished.chain(requests).collect()
}

pub(super) fn unregistered(picture: &Picture) -> Vec<CheckNote> {
    let found = picture.status.unregistered.iter();
    found
        .map(|one| CheckNote::info(one.fact(), UnregisteredCertificate::FIX))
        .collect()
}

pub(super) fn crowded(picture: &Picture) -> Vec<CheckNote> {
    let limit = picture.trees.limit().into_iter();
    limit
        .map(|limit| {
            CheckNote::warning(
                format!(
                    "{}, {} and the certificates directory contain more than {limit} entries: the others were not examined",
                    picture.here(Path::new(KUBERNETES_DIR)),
                    picture.here(Path::new(STATE_DIR))
                ),
                "remove files that do not belong there, then run `nodepki doctor` again",
            )
        })
        .collect()
}

/// Checks for requests that wait for a signer. Requests that differ only in the certificate are one note.
pub(super) fn pending(picture: &Picture) -> Vec<CheckNote> {
    let mut groups: Vec<Vec<&PendingStatus>> = Vec::new();
    for row in &picture.status.pending {
        let mut known = groups.iter_mut();
        let same = known.find(|group| {
            let mut group = group.iter();
            group.any(|other| waits_alike(picture, row, other))
        });
        match same {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
        .iter()
        .filter_map(|rows| {
            let first = *rows.first()?;
            let signer = signer_option(first).or(first.signer.as_deref());
            let signer = signer.unwrap_or("an unknown signer");
            let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
            let (verb, error, requests) = match names.len() {
                1 => ("waits", "its last error", "the request"),
                _ => ("wait", "the last error of the first", "the requests"),
            };
            let waits = format!("{} {verb} for {signer}", names.join(", "));
            let finish = finish(picture, first, &names);
            Some(match &first.last_error {
                Some(last) => CheckNote::warning(
                    format!("{waits}; {error}: {}", last.detail),
                    format!("correct the signer, then {finish}"),
                ),
                None => CheckNote::info(waits, format!("have {requests} signed, then {finish}")),
            })
        })
        .collect()
}

/// Returns whether two requests wait for the same signer, after the same error, and end in the same way.
fn waits_alike(picture: &Picture, one: &PendingStatus, other: &PendingStatus) -> bool {
    let place = |row: &PendingStatus| {
        let error = row.last_error.as_ref();
        let error = error.map(|error| error.detail.replace(&row.name, ""));
        (row.signer.clone(), row.signer_config.clone(), error)
    };
    place(one) == place(other) && is_usable(picture, one) == is_usable(picture, other)
}

/// Returns whether the certificate of a pending request is still usable.
fn is_usable(picture: &Picture, row: &PendingStatus) -> bool {
    let mut certificates = picture.status.certificates.iter();
    certificates.any(|found| {
        found.name.as_str() == row.name && matches!(found.state, RowState::Ok | RowState::Expiring)
    })
}

/// Returns the value of `--signer` with which the request was sent.
fn signer_option(row: &PendingStatus) -> Option<&str> {
    let config = row.signer_config.as_deref()?;
    (row.signer.as_deref() == Some(COMMAND_LINE_SIGNER)).then_some(config)
}

/// Returns how to end pending requests, of which `row` is the first. `bootstrap` leaves a certificate that is still usable as it is, and `renew` one that
/// was just renewed.
fn finish(picture: &Picture, row: &PendingStatus, names: &[&str]) -> String {
    if row.is_exported() {
        return "import the signed directory: nodepki csr import DIR".to_owned();
    }
    let is_usable = is_usable(picture, row);
    let mut command = if is_usable {
        format!("nodepki renew --force {}", names.join(" "))
    } else {
        "nodepki bootstrap".to_owned()
    };
    if let Some(signer) = signer_option(row) {
        command.push_str(&format!(" --signer {}", quoted(signer)));
    }
    let keys = if names.len() == 1 { "key" } else { "keys" };
    let mut finish = format!("run `{command}`, which continues with the same {keys}");
    if is_usable {
        let directory = Path::new(STATE_DIR).join("pending");
        let paths = names.iter().map(|name| picture.here(&directory.join(name)));
        let paths: Vec<String> = paths.collect();
        let what = if names.len() == 1 { "it" } else { "them" };
        finish.push_str(&format!("; to give {what} up, remove {}", paths.join(", ")));
    }
    finish
}
