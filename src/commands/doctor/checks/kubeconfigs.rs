//! Checks of kubeconfigs, apart from their certificates.

use std::path::Path;

use super::authorities::{is_external, replaced_authority};
use super::finding::CheckNote;
use super::picture::{OWN_COPY, Picture, Problem};
use super::reader::authority_of;
use super::static_pods;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{ADMIN_CONF, SUPER_ADMIN_CONF};
use crate::node::status::{FileProblem, RowFault};
use crate::signer::quoted;
use crate::spec::CertFiles;
use crate::spec::assess::{Observed, ObservedKubeconfig};
use crate::text::rfc3339;

const BOOTSTRAP_OR_INIT_PHASE: &str = "run `nodepki bootstrap`, which writes a new one; with the CA key on this node also kubeadm init phase kubeconfig";
const RESTART: &str = "run `nodepki bootstrap`, which writes a new one, then restart the static pod that mounts it, since the pod still has the empty file";

/// Returns the faults of one kind, each with its kubeconfig.
fn problems_of(
    picture: &Picture,
    is_wanted: impl Fn(&RowFault) -> bool,
) -> impl Iterator<Item = (CertName, Problem<'_>)> {
    let problems = picture.problems().into_iter();
    let of_kubeconfigs = problems.filter_map(|problem| Some((problem.kubeconfig()?, problem)));
    of_kubeconfigs.filter(move |(_, problem)| is_wanted(problem.fault))
}

fn present(picture: &Picture) -> impl Iterator<Item = (CertName, &ObservedKubeconfig)> {
    let leaves = picture.leaves.iter();
    leaves.filter_map(|(name, leaf)| Some((*name, leaf.found.kubeconfig.as_ref()?)))
}

pub(super) fn missing(picture: &Picture) -> Vec<CheckNote> {
    let write = picture.unless_exported(BOOTSTRAP_OR_INIT_PHASE);
    let is_absent = |name| {
        let row = picture.status.certificate(name);
        let file = row.and_then(|row| row.files.first());
        file.is_some_and(|file| file.access.is_none_or(|access| !access.regular))
    };
    let on_disk = problems_of(picture, RowFault::is_absence)
        // The check `kubelet-no-identity` reports kubelet.conf.
        .filter(|(name, _)| is_absent(*name) && *name != CertName::KubeletConf)
        .filter(|(name, _)| {
            let plan = picture.configuration.plan.as_ref();
            plan.is_none_or(|plan| !plan.omitted.contains(name))
        })
        .map(|(_, problem)| problem.error_of_file(write));
    let plan = picture
        .configuration
        .plan
        .iter()
        .flat_map(|plan| &plan.certs);
    let planned = plan
        .map(|spec| spec.name())
        .filter(|name| name.is_kubeconfig() && *name != CertName::KubeletConf)
        .filter(|name| picture.status.certificate(*name).is_none())
        // super-admin.conf is needed by kubeadm init only, and should be removed afterwards.
        .filter(|name| *name != CertName::SuperAdminConf || picture.apiserver.is_none())
        .map(|name| {
            let files = picture.files(name);
            let path = files.first().map(|path| picture.here(path));
            let evidence = format!("{} is missing", path.unwrap_or_default());
            CheckNote::error(evidence, write).with_code(FileProblem::Absent.code())
        });
    on_disk.chain(planned).collect()
}

pub(super) fn empty(picture: &Picture) -> Vec<CheckNote> {
    let leaves = picture.leaves.iter();
    leaves
        .filter(|(name, leaf)| name.is_kubeconfig() && leaf.found.kubeconfig.is_none())
        .filter(|(_, leaf)| matches!(leaf.found.chain, Observed::Empty))
        .flat_map(|(name, _)| {
            picture
                .files(*name)
                .into_iter()
                .map(move |path| (*name, path))
        })
        .map(|(name, path)| {
            let is_mounted = matches!(
                name,
                CertName::ControllerManagerConf | CertName::SchedulerConf
            );
            let fix = picture.not_issued(name).unwrap_or(if is_mounted {
                RESTART
            } else {
                BOOTSTRAP_OR_INIT_PHASE
            });
            CheckNote::error(format!("{} is empty", picture.here(&path)), fix)
                .with_code(FileProblem::Empty.code())
        })
        .collect()
}

pub(super) fn directory(picture: &Picture) -> Vec<CheckNote> {
    let is_wanted =
        |fault: &RowFault| matches!(fault.file_problem(), Some(FileProblem::NotAFile(_)));
    problems_of(picture, is_wanted)
        .filter(|(name, _)| !picture.has_kubeconfig(*name))
        .map(|(name, problem)| {
            problem.error_of_file(picture.not_issued(name).unwrap_or(
                "remove it, run `nodepki bootstrap`, and restart the static pod that mounts it",
            ))
        })
        .collect()
}

pub(super) fn dangling(picture: &Picture) -> Vec<CheckNote> {
    let is_wanted =
        |fault: &RowFault| matches!(fault.file_problem(), Some(FileProblem::NoContext(_)));
    problems_of(picture, is_wanted)
        .map(|(_, problem)| {
            problem.error_of_file(
                "correct current-context (kubectl config use-context --kubeconfig FILE), or move the file away and run `nodepki bootstrap`",
            )
        })
        .collect()
}

pub(super) fn refused(picture: &Picture) -> Vec<CheckNote> {
    problems_of(picture, |fault| matches!(fault, RowFault::RefusedByClients(_)))
        .map(|(_, problem)| {
            problem.error(
                "run `nodepki plan`: it says whether `nodepki bootstrap` corrects the field; otherwise correct it, or move the file away and run `nodepki bootstrap`",
            )
        })
        .collect()
}

pub(super) fn authority(picture: &Picture) -> Vec<CheckNote> {
    const FIX: &str = "run `nodepki bootstrap`, which writes the first certificate of ca.crt to the file; restart the components that read the file";
    const FIX_OTHERS: &str = "run `nodepki bootstrap`, which moves the first certificate of ca.crt to the beginning, remove certificates that are not to be trusted, and restart the components that read the file";
    const FIX_KUBELET: &str = "write the certificates of ca.crt to its certificate-authority-data, in base64, and restart the kubelet; nodepki writes the file only with kubelet.identity: issue";
    const IN_CHANGE: &str = "run `nodepki authority status ca`, which names the next step if this is the result of a CA change; otherwise";
    let unplanned = |name| match picture.not_issued(name) {
        Some(_) if name == CertName::KubeletConf => Some(FIX_KUBELET),
        other => other,
    };
    // If the CA was replaced, the check `ca-replaced` reports these kubeconfigs.
    let replaced = replaced_authority(picture, Authority::Ca);
    let is_reported = |name| replaced.is_some_and(|replaced| replaced.names.contains(&name));
    let is_other = |fault: &RowFault| {
        matches!(
            fault,
            RowFault::OtherAuthority { .. } | RowFault::AuthorityDataExpired(_)
        )
    };
    let mut notes: Vec<CheckNote> = problems_of(picture, is_other)
        .filter(|(name, _)| !is_reported(*name))
        .map(|(name, problem)| problem.error(unplanned(name).unwrap_or(FIX)))
        .collect();
    for row in &picture.status.certificates {
        let not_first = row
            .kubeconfig
            .as_ref()
            .is_some_and(|found| found.authority_is_first == Some(false));
        if not_first && !row.findings.faults.iter().any(is_other) {
            notes.push(CheckNote::warning(
                format!(
                    "{}: its CA data does not begin with the first certificate of ca.crt, or contains certificates that ca.crt does not",
                    row.name
                ),
                format!("{IN_CHANGE} {}", unplanned(row.name).unwrap_or(FIX_OTHERS)),
            ));
        }
    }
    for (name, leaf) in &picture.leaves {
        if leaf.found.kubeconfig.is_some()
            && let Some(trouble) = authority_of(leaf).trouble()
        {
            notes.push(CheckNote::error(
                format!("{name}: its CA data {trouble}"),
                unplanned(*name).unwrap_or(FIX),
            ));
        }
    }
    notes
}

/// Returns the server by the plan, or by the address of this node's kube-apiserver.
fn expected_server(picture: &Picture, name: CertName) -> Option<String> {
    if let Some(plan) = &picture.configuration.plan {
        return match &plan.cert(name)?.output {
            CertFiles::Kubeconfig { server, .. } => Some(server.clone()),
            CertFiles::Pair { .. } => None,
        };
    }
    let local = matches!(
        name,
        CertName::ControllerManagerConf | CertName::SchedulerConf | CertName::NodepkiConf
    );
    let endpoint = static_pods::advertised(picture)?;
    local.then(|| format!("https://{endpoint}"))
}

pub(super) fn server(picture: &Picture) -> Vec<CheckNote> {
    present(picture)
        // It differs between kubeadm versions, and both addresses work.
        .filter(|(name, _)| *name != CertName::KubeletConf)
        .filter_map(|(name, found)| {
            let expected = expected_server(picture, name)?;
            let server = found.server.as_deref().unwrap_or("not given");
            (server != expected).then(|| {
                CheckNote::warning(
                    format!("{name}: server is {server}, expected {expected}"),
                    "verify that the API server's certificate contains the expected name; `nodepki bootstrap` with the node's configuration corrects the file",
                )
            })
        })
        .collect()
}

pub(super) fn by_file(picture: &Picture) -> Vec<CheckNote> {
    present(picture)
        .filter(|(name, _)| *name != CertName::KubeletConf)
        .filter_map(|(name, found)| {
            let pair = found.pair.as_deref()?;
            let Some((_, obstacle)) = picture.own_pairs.iter().find(|(own, _)| own == pair) else {
                let files = pair.each_ref().map(|path| picture.here(path));
                return Some(CheckNote::warning(
                    format!("{name} names {}", files.join(" and ")),
                    "move the file away and run `nodepki bootstrap`, which writes a new one",
                ));
            };
            let why = obstacle.as_ref()?;
            Some(CheckNote::error(
                format!("{name} names files, but {why}"),
                "until then run `nodepki bootstrap`, which writes certificate and key to the kubeconfig, and restart the component",
            ))
        })
        .collect()
}

pub(super) fn stale_copy(picture: &Picture) -> Vec<CheckNote> {
    let copy = picture.own_copy.iter();
    copy.filter(|certificate| certificate.not_after() < picture.at)
        .map(|certificate| {
            CheckNote::warning(
                format!(
                    "the certificate of {} in {} expired at {}",
                    certificate.subject(),
                    picture.here(OWN_COPY.as_ref()),
                    rfc3339(certificate.not_after())
                ),
                format!(
                    "replace it (`cp {} {}`), or remove it",
                    quoted(&picture.here(ADMIN_CONF.as_ref())),
                    quoted(&picture.here(OWN_COPY.as_ref()))
                ),
            )
        })
        .collect()
}

pub(super) fn copies(picture: &Picture) -> Vec<CheckNote> {
    let own = Path::new(OWN_COPY).to_owned();
    let own = picture.own_copy.iter().map(|copy| (&own, copy));
    let others = picture.copies.iter().map(|(path, copy)| (path, copy));
    own.chain(others)
        .map(|(path, copy)| {
            let end = if copy.not_after() < picture.at { "expired at" } else { "is valid until" };
            CheckNote::info(
                format!(
                    "{} contains a certificate of {} that {end} {}",
                    picture.here(path),
                    copy.subject(),
                    rfc3339(copy.not_after())
                ),
                "nodepki never changes copies: they do not follow a renewal, and a valid copy can be used by every reader; remove copies that are not needed",
            )
        })
        .collect()
}

pub(super) fn super_admin(picture: &Picture) -> Vec<CheckNote> {
    let exists = picture
        .status
        .certificate(CertName::SuperAdminConf)
        .is_some();
    if !exists {
        return Vec::new();
    }
    let fix = format!(
        "once `kubectl --kubeconfig {} get nodes` works, move it to a safe place outside this node, and set `certificates: {{omit: [super-admin.conf]}}` in the settings, so that nodepki renew --all does not issue it again",
        picture.here(ADMIN_CONF.as_ref())
    );
    let path = picture.here(SUPER_ADMIN_CONF.as_ref());
    // If the CA key is on the node, removing the file changes little: the key can issue another one.
    let was_used = picture.apiserver.is_some() && is_external(picture, Authority::Ca);
    vec![if was_used {
        CheckNote::warning(
            format!("{path} still exists, although kubeadm init is complete"),
            fix,
        )
    } else {
        CheckNote::info(format!("{path} exists"), fix)
    }]
}
