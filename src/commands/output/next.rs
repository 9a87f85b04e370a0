//! The next command after a run.

use std::error::Error as _;
use std::path::Path;

use crate::agent::load::{Loaded, NoConfiguration};
use crate::agent::{self, ExitCode, Failure, ReportRow, RowReason, RunReport, join};
use crate::commands::now;
use crate::commands::options::GlobalOptions;
use crate::kube::kubeadm::KubeadmRole;
use crate::kube::names::NodePath;
use crate::signer::{SignerError, quoted};
use crate::store::{NodeRoot, OFFLINE_SIGNER, RequestRecord};

/// The alternative to a signer that cannot be reached.
const OFFLINE: &str = "without the network: nodepki csr export DIR";

/// What the next command depends on.
pub(in super::super) struct NodeFacts {
    /// Whether kubeadm is still to run.
    kubeadm_follows: bool,
    role: KubeadmRole,
    /// The kubeadm configuration file that describes the node.
    kubeadm_file: Option<String>,
}

impl NodeFacts {
    pub(in super::super) fn of(loaded: &Loaded) -> NodeFacts {
        NodeFacts {
            kubeadm_follows: loaded.setup.kubeadm_follows,
            role: loaded.node.role,
            kubeadm_file: loaded.kubeadm_file.clone(),
        }
    }
}

/// Returns what to do after a run of `command` with this result.
pub(in super::super) fn after_run(
    global: &GlobalOptions,
    node: &NodeFacts,
    report: &RunReport,
    code: ExitCode,
    command: &str,
) -> Option<String> {
    if let Some(other) = other_command(report, command) {
        return Some(other);
    }
    let is_unfinished = |row: &ReportRow| row.code.is_some() || row.is_overdue();
    match code {
        // A failure that leaves valid certificates in place does not fail the run.
        ExitCode::Done if report.rows.iter().any(is_unfinished) => {
            Some(again(ExitCode::Pending, command))
        }
        ExitCode::Done => after_success(global, node, &report.ignore_preflight_errors),
        code => Some(again(code, command)),
    }
}

/// Returns the command that does what a run left out, if a repetition would leave it out as well.
pub(in super::super) fn other_command(report: &RunReport, command: &str) -> Option<String> {
    let left_out = || report.rows.iter().filter(|row| row.code.is_some());
    let first = left_out().next()?;
    let has = |row: &ReportRow, is_it: &dyn Fn(&RowReason) -> bool| row.reasons.iter().any(is_it);
    if left_out().all(|row| has(row, &RowReason::is_ended_by_force)) {
        return Some(format!("{command} --force, which renews it now"));
    }
    let authority = first.reasons.iter().find_map(RowReason::staged_authority)?;
    let waits = |reason: &RowReason| reason.staged_authority() == Some(authority);
    left_out().all(|row| has(row, &waits)).then(|| {
        format!("nodepki authority activate {authority}, once every node trusts the staged CA")
    })
}

/// Returns the command that uses the files of a complete node: kubeadm's if it has not run yet, or, if components still work
/// with former files, `nodepki renew`, or the last check before the boot of another system.
pub(in super::super) fn after_success(
    global: &GlobalOptions,
    node: &NodeFacts,
    ignored_errors: &[String],
) -> Option<String> {
    let root = NodeRoot::open(&global.root).ok()?;
    let is_here = root.is_this_machine();
    if !node.kubeadm_follows {
        let has_restarts = root.restarts().is_ok_and(|restarts| !restarts.is_empty());
        let command = if is_here {
            "nodepki renew, which restarts the components that use replaced files".to_owned()
        } else {
            // No component runs there; each reads its new files at the boot.
            "nodepki doctor, then boot the node".to_owned()
        };
        return has_restarts.then_some(command);
    }
    let verb = match node.role {
        KubeadmRole::Init => "init",
        KubeadmRole::Etcd => "init phase etcd local",
        KubeadmRole::Join | KubeadmRole::Worker => "join",
    };
    let has_handover = verb == "join" && root.metadata(join::HANDOVER).ok().flatten().is_some();
    let file = if has_handover {
        NodePath::from(join::HANDOVER)
            .below(&global.root)
            .to_string()
    } else {
        match node.kubeadm_file.clone() {
            Some(file) => file,
            None => {
                let command =
                    format!("kubeadm {verb} --config FILE, with the file that describes this node");
                return Some(if is_here {
                    command
                } else {
                    format!("nodepki doctor, then boot the node and run there: {command}")
                });
            }
        }
    };
    // Below another root, kubeadm runs once that system is booted, where the path has no root before it.
    let on_node = Path::new(&file)
        .strip_prefix(root.path())
        .ok()
        .filter(|_| !is_here)
        .map(|below| format!("/{}", below.display()));
    let there = match (&on_node, is_here) {
        (Some(path), _) => path.as_str(),
        (None, true) => file.as_str(),
        (None, false) => "FILE",
    };
    let mut command = format!("kubeadm {verb} --config {there}");
    if !ignored_errors.is_empty() {
        // The configuration that nodepki writes already contains them.
        let separator = if has_handover { ", or with" } else { "" };
        command.push_str(&format!(
            "{separator} --ignore-preflight-errors={}",
            ignored_errors.join(",")
        ));
    }
    Some(match (&on_node, is_here) {
        (_, true) => command,
        (Some(_), false) => {
            format!("nodepki doctor, then boot the node and run there: {command}")
        }
        (None, false) => format!(
            "nodepki doctor, then copy {file} to the node, boot it and run there: {command}"
        ),
    })
}

/// Returns what to do about requests that all wait for `csr import`; `None` if one waits for another signer. `is_outdated`:
/// certificates for some of them would be refused. `command` adds the options of this run.
pub(in super::super) fn after_export<'a>(
    root: &NodeRoot,
    records: impl Iterator<Item = Option<&'a RequestRecord>>,
    is_outdated: bool,
    command: impl FnOnce(&str) -> String,
) -> Option<String> {
    let records: Vec<&RequestRecord> = records.collect::<Option<_>>()?;
    let directory = &records.first()?.exported_to;
    if records
        .iter()
        .any(|one| one.signer_config != OFFLINE_SIGNER)
    {
        return None;
    }
    if is_outdated {
        let export = command("csr export DIR");
        return Some(format!(
            "{export}, with another directory, since the last export was for another configuration"
        ));
    }
    let directory = directory
        .as_ref()
        .filter(|_| records.iter().all(|one| one.exported_to == *directory))
        .map(|path| quoted(&root.on_this_machine(path).display().to_string()));
    let import = command(&format!(
        "csr import {}",
        directory.as_deref().unwrap_or("DIR")
    ));
    Some(format!(
        "have the exported requests signed, then run {import}"
    ))
}

/// Returns what to do on a node without signers whose requests were exported.
pub(in super::super) fn awaited_import(
    root: &NodeRoot,
    loaded: &Loaded,
    command: impl FnOnce(&str) -> String,
) -> Option<String> {
    if !loaded.setup.signers.is_empty() {
        return None;
    }
    let survey = loaded.setup.survey(root, now()).ok()?;
    let outdated = agent::outdated_exports(root, &survey).ok()?;
    let tickets = root.tickets().ok()?;
    let records = tickets.iter().map(|(_, record)| record.as_ref());
    after_export(root, records, !outdated.is_empty(), command)
}

/// Returns what to do after a run that was not completed.
pub(in super::super) fn again(code: ExitCode, command: &str) -> String {
    match code {
        ExitCode::Done | ExitCode::Pending => {
            format!("{command}, which continues with the same keys")
        }
        ExitCode::Unreachable => format!("{command}, once the signer answers; {OFFLINE}"),
        _ => format!("correct this, then run {command}"),
    }
}

/// Adds a closing line to a failure that ended the whole run. A single message that ends with its fix is one.
pub(in super::super) fn closed(mut failure: Failure, command: &str) -> Failure {
    let count = failure.messages.len();
    let cause = failure.source();
    let is_of_signer = cause.is_some_and(|cause| cause.is::<SignerError>());
    let has_no_configuration = cause.is_some_and(|cause| cause.is::<NoConfiguration>());
    let closing = match failure.code {
        ExitCode::Usage => return failure,
        ExitCode::Unreachable if is_of_signer => {
            format!("next: {command}, once the signer answers; {OFFLINE}")
        }
        // With expired certificates, the server may never answer.
        ExitCode::Unreachable if has_no_configuration => format!(
            "next: {command} --kubeadm-config FILE, with the file that kubeadm was given, or {command}, once the server answers"
        ),
        ExitCode::Unreachable => format!("next: {command}, once the server answers"),
        ExitCode::Done | ExitCode::Pending => format!("next: {command}"),
        _ if count < 2 => return failure,
        _ => format!("{count} faults; next: correct them, then run {command}"),
    };
    failure.messages.push(closing.into());
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_configuration_file_before_server_that_may_never_answer() {
        let command = "nodepki renew";
        let missing = NoConfiguration("there is no kubeadm configuration".to_owned());
        let failure = Failure::new(ExitCode::Unreachable, "").caused_by(missing);
        assert_eq!(
            closed(failure, command).texts(),
            [
                "there is no kubeadm configuration",
                "next: nodepki renew --kubeadm-config FILE, with the file that kubeadm was given, or nodepki renew, once the server answers",
            ]
        );
        let failure = Failure::new(ExitCode::Unreachable, "no answer");
        assert_eq!(
            closed(failure, command).texts()[1],
            "next: nodepki renew, once the server answers"
        );
    }
}
