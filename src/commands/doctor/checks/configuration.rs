//! The configuration, the clock, and what runs of nodepki left behind.

use std::path::Path;

use super::Note;
use super::picture::{AuthorityKey, Picture};
use crate::agent;
use crate::agent::load;
use crate::node::status::{Role, Trouble};
use crate::spec::KUBECONFIG_DIR;
use crate::store::STATE_DIR;
use crate::x509::rfc3339;

pub(super) fn unusable(picture: &Picture) -> Vec<Note> {
    let faults = picture.configuration.faults.iter();
    faults
        .map(|fault| {
            Note::error(
                fault,
                "mend it; `nodepki config check` says when it is sound",
            )
        })
        .collect()
}

/// Secrets of the settings that other users can read or change.
pub(super) fn exposed_secrets(picture: &Picture) -> Vec<Note> {
    let found = picture.configuration.exposed_secrets.iter();
    found
        .map(|found| {
            Note::error(
                found,
                "run the command in parentheses, and replace the secret if another user may have read it",
            )
        })
        .collect()
}

/// Signers of the settings whose CA private keys are on the node.
pub(super) fn local_signer(picture: &Picture) -> Vec<Note> {
    let found = picture.configuration.local_ca_keys.iter();
    found
        .map(|found| Note::warning(found, load::LOCAL_CA_KEYS_ADVICE))
        .collect()
}

pub(super) fn absent(picture: &Picture) -> Vec<Note> {
    let configuration = &picture.configuration;
    if configuration.plan.is_some() || !configuration.faults.is_empty() {
        return Vec::new();
    }
    let evidence = match (configuration.exists, &configuration.node) {
        (false, _) => "there are neither settings nor a kubeadm configuration",
        (true, None) => "there is no kubeadm configuration",
        (true, Some(_)) => "the cluster's own configuration is not on this node",
    };
    vec![Note::info(
        evidence,
        "nothing, if none is meant to be here; else name them with --config and --kubeadm-config",
    )]
}

pub(super) fn empty(picture: &Picture) -> Vec<Note> {
    if picture.status.role != Role::Empty {
        return Vec::new();
    }
    let notes = picture.status.notes.iter();
    notes
        .map(|words| {
            Note::info(
                words,
                "run `nodepki bootstrap`, or see that --root and --cert-dir are right",
            )
        })
        .collect()
}

pub(super) fn hostname_override(picture: &Picture) -> Vec<Note> {
    let node = picture.configuration.node.iter();
    node.filter_map(|node| {
        let other = node.hostname_override.as_ref()?;
        Some(Note::warning(
            format!(
                "hostname-override is {other:?}, the node name in the certificates is {:?}",
                node.name.as_str()
            ),
            "set nodeRegistration.name to the same name and remove hostname-override",
        ))
    })
    .collect()
}

pub(super) fn clock(picture: &Picture) -> Vec<Note> {
    let bundles = picture.authorities.values();
    let floor = agent::floor(bundles.filter_map(|authority| authority.bundle.present()));
    if picture.at >= floor.at {
        return Vec::new();
    }
    vec![Note::error(
        format!(
            "the clock shows {}, which cannot be right: {} ({})",
            rfc3339(picture.at),
            floor.because,
            rfc3339(floor.at)
        ),
        "start chrony or systemd-timesyncd (timedatectl status), or set the clock; what is said here about validity is said for the wrong time",
    )]
}

pub(super) fn not_permitted(picture: &Picture) -> Vec<Note> {
    let problems = picture.problems().into_iter();
    let problems = problems
        .filter(|problem| problem.trouble == Trouble::Denied)
        .map(|problem| problem.words.to_owned());
    let keys = picture.authorities.values();
    let keys = keys
        .filter(|authority| matches!(authority.key, AuthorityKey::Closed | AuthorityKey::Unknown));
    let keys = keys.map(|authority| authority.key_path.as_path());
    let denied = picture.trees.denied.iter().map(|path| path.as_path());
    let paths = keys
        .chain(denied)
        .map(|path| format!("{} could not be read", picture.here(path)));
    let mut told: Vec<String> = Vec::new();
    for words in problems.chain(paths) {
        let path = words.split_whitespace().find(|word| word.contains('/'));
        let path = path.map(|path| path.trim_end_matches(':').to_owned());
        if !told
            .iter()
            .any(|said| path.as_ref().is_some_and(|path| said.contains(path)))
        {
            told.push(words);
        }
    }
    told.into_iter()
        .map(|words| Note::warning(words, "run nodepki doctor as root"))
        .collect()
}

pub(super) fn unfinished(picture: &Picture) -> Vec<Note> {
    let note = || {
        Note::error(
            format!(
                "{} has the record of an interrupted run, or one is at work right now",
                picture.here(STATE_DIR.as_ref())
            ),
            "run `nodepki bootstrap`: it finishes or undoes what was begun before it does anything else",
        )
    };
    picture.unfinished.then(note).into_iter().collect()
}

pub(super) fn strays(picture: &Picture) -> Vec<Note> {
    let unfinished = picture.trees.unfinished.iter().map(|path| {
        Note::warning(
            format!("{} was never finished", picture.here(path)),
            "run `nodepki bootstrap`, which removes what an interrupted run left; remove by hand what remains after it",
        )
    });
    let requests = picture.trees.requests.iter().map(|path| {
        Note::info(
            format!("{} is a certificate signing request", picture.here(path)),
            "remove it once it is signed: kubeadm certs generate-csr refuses to run beside it",
        )
    });
    unfinished.chain(requests).collect()
}

pub(super) fn crowded(picture: &Picture) -> Vec<Note> {
    let limit = picture.trees.limit().into_iter();
    limit
        .map(|limit| {
            Note::warning(
                format!(
                    "{}, {} and the certificates directory contain more than {limit} entries: the others were not examined",
                    picture.here(Path::new(KUBECONFIG_DIR)),
                    picture.here(Path::new(STATE_DIR))
                ),
                "remove what does not belong there, then run `nodepki doctor` again",
            )
        })
        .collect()
}

pub(super) fn pending(picture: &Picture) -> Vec<Note> {
    let pending = picture.status.pending.iter();
    pending
        .map(|row| {
            let signer = row.signer.as_deref().unwrap_or("an unknown signer");
            let waits = format!("{} waits for {signer}", row.name);
            match &row.last_error {
                Some(error) => Note::warning(
                    format!("{waits}, which said: {}", error.detail),
                    "see to the signer, then run `nodepki bootstrap`, which goes on with the same key",
                ),
                None => Note::info(
                    waits,
                    "have the request signed, then run `nodepki bootstrap`, which goes on with the same key",
                ),
            }
        })
        .collect()
}
