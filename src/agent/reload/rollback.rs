//! Rolls back a restart after which a component did not become ready: restores the former files, and restarts it again.

use std::time::Duration;

use super::restart::{DueRestart, conf_of};
use super::{Run, names};
use crate::agent::{Event, Failure, RowAction, audit};
use crate::kube::components::ReplacedFile;
use crate::spec::authority_rotation::RotationSubject;
use crate::store::{AuditEvent, AuditRecord, Commit, FormerContents, Mode, Restart, RestartState};

impl Run<'_> {
    /// Restores the former files of a component that did not become ready, unless they are unusable by now.
    pub(super) async fn roll_back(&mut self, due: &DueRestart, why: String) -> Result<(), Failure> {
        let (restart, component) = (&due.restart, due.component());
        let step = self.trust_step_of(component)?;
        let old = restart.previous.iter();
        let old: Vec<&FormerContents> = old.filter(|file| !file.contents.is_empty()).collect();
        for file in &old {
            if let Some(unusable) = self.probe.is_unusable(file, &restart.previous).await {
                let detail = format!(
                    "did not become ready with the new {}: {why}; the new files are kept, since {unusable}; find the cause (log of the component, `crictl ps -a`), then run `nodepki renew` again",
                    names(&restart.causes)
                );
                self.report(component, RowAction::Failed, detail);
                return Ok(());
            }
        }
        let mut commit = Commit::new();
        for file in &old {
            let (path, contents) = (file.path.clone(), file.contents.clone());
            match &file.target {
                // A later renewal may have removed the file.
                Some(target) => commit
                    .file(path.with_file_name(target), contents, Mode::Private)
                    .link(path, target),
                // An existing file keeps its own mode.
                None => commit.file(path, contents, Mode::Other(0o600)),
            };
        }
        if let Some(name) = conf_of(component) {
            for file in &old {
                if let Some(failed) = self.probe.root.read(&file.path)? {
                    self.remove_unnamed_pair(name, &failed.bytes, &file.contents, &mut commit)?;
                }
            }
        }
        if !old.is_empty() {
            let is_of_step = |cause| step.as_ref().is_some_and(|it| it.changes.contains(cause));
            let causes = restart.causes.iter().filter(|cause| !is_of_step(cause));
            let causes: Vec<ReplacedFile> = causes.copied().collect();
            self.record_restored(&causes, &mut commit);
        }
        let mut recorded = Restart {
            // The files that it would go back to are in place now.
            previous: Vec::new(),
            state: RestartState::RolledBack { why: why.clone() },
            ..restart.clone()
        };
        let mut again = Vec::new();
        if let Some(step) = &step {
            let cause = cause_of(step.former.subject);
            if !recorded.causes.contains(&cause) {
                recorded.causes.push(cause);
            }
            again = self.roll_back_step(step, component, &old, &mut commit)?;
        }
        // In the commit of the files: a run that is killed during the restart must not try the new files again.
        commit.restart(recorded.clone());
        let restored = if old.is_empty() && step.is_none() {
            self.commit(commit).await?;
            "there are no former files to restore".to_owned()
        } else {
            self.restore(due, commit).await?
        };
        self.report_rollback(recorded, format!("{why}; {restored}"))
            .await?;
        for component in again {
            let detail = format!(
                "uses files that were rolled back, since {} did not become ready; run `nodepki renew`, which restarts it",
                restart.component
            );
            self.report(component, RowAction::Waits, detail);
        }
        Ok(())
    }

    /// Commits the former files and restarts the component. Returns the result, for the report.
    async fn restore(&mut self, due: &DueRestart, commit: Commit) -> Result<String, Failure> {
        let (component, pod) = (due.component(), due.pod.as_ref());
        // A late answer would delay the rollback.
        let before = self.observe(due, Duration::ZERO).await;
        let restarted = match self.annotated_manifest(due) {
            Ok(manifest) => self.commit_and_restart(due, manifest, commit).await?,
            Err(why) => {
                self.commit(commit).await?;
                Err(why)
            }
        };
        let ended = match restarted {
            Ok(()) => self.proof(component, pod, &before).await,
            Err(why) => Err(why),
        };
        Ok(match ended {
            Ok(proven) => format!("with the old files it is ready: {proven}"),
            Err(why) => format!("with the old files it is not ready either: {why}"),
        })
    }

    /// Records and reports the result of a rollback.
    async fn report_rollback(&mut self, mut recorded: Restart, why: String) -> Result<(), Failure> {
        recorded.state = RestartState::RolledBack { why: why.clone() };
        let mut commit = Commit::new();
        commit.restart(recorded.clone());
        self.commit(commit).await?;
        let detail = rollback_detail(&recorded, &why);
        let component = recorded.component.as_str();
        let names = recorded.causes.iter().map(|cause| cause.as_str());
        let rolled_back = AuditRecord {
            component: Some(component.to_owned()),
            certificate: Some(names.collect::<Vec<_>>().join(",")),
            reason: Some(why.clone()),
            ..AuditRecord::of(AuditEvent::RolledBack)
        };
        audit::append(self.probe.root, (self.probe.clock)(), &[rolled_back]);
        self.progress.event(Event::RolledBack { component, why });
        self.report(recorded.component, RowAction::RolledBack, detail);
        Ok(())
    }
}

/// Returns the change that a step of this subject always contains.
fn cause_of(subject: RotationSubject) -> ReplacedFile {
    match subject {
        RotationSubject::Authority(authority) => ReplacedFile::Bundle(authority),
        RotationSubject::ServiceAccount => ReplacedFile::ServiceAccount,
    }
}

/// Returns the detail of a rolled-back restart, with the command that requests another attempt.
pub(super) fn rollback_detail(restart: &Restart, why: &str) -> String {
    let certificates: Vec<_> = restart
        .causes
        .iter()
        .filter(|cause| matches!(cause, ReplacedFile::Certificate(_)))
        .map(|cause| cause.as_str())
        .collect();
    let authority = restart.causes.iter().find_map(|cause| match cause {
        ReplacedFile::Bundle(authority) => Some(authority),
        _ => None,
    });
    let is_of_service_account = restart
        .causes
        .iter()
        .any(|cause| cause.is_service_account());
    let again = match (authority, certificates.as_slice()) {
        (Some(authority), _) => {
            format!("repeat the step that `nodepki authority status {authority}` names")
        }
        (None, []) if is_of_service_account => {
            "nodepki.service repeats the step of `nodepki authority watch sa`, or change it again"
                .to_owned()
        }
        (None, []) => "change it again".to_owned(),
        (None, names) => format!("run `nodepki renew --name {}`", names.join(",")),
    };
    format!(
        "did not become ready with the new {}: {why}; it is not retried automatically: find the cause (log of the component, `crictl ps -a`), then {again}",
        names(&restart.causes)
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use tempfile::TempDir;

    use super::super::ReloadSetup;
    use super::super::restart::RestartMethod;
    use super::super::tests::NOW;
    use super::*;
    use crate::config::reload::{Hook, On};
    use crate::kube::components::Component;
    use crate::kube::names::CertName;
    use crate::spec::CertFiles;
    use crate::store::{NodeRoot, UnverifiedChange};
    use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

    fn node(directory: &str) -> (TempDir, NodeRoot) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(directory)).unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        (dir, root)
    }

    /// Returns a restart for a certificate with these former files: path, contents, target of the link.
    fn due(
        component: Component,
        cause: ReplacedFile,
        previous: &[(&str, &str, Option<&str>)],
    ) -> DueRestart {
        let former = |(path, contents, target): &(&str, &str, Option<&str>)| FormerContents {
            path: path.into(),
            contents: contents.as_bytes().to_vec().into(),
            target: target.map(str::to_owned),
        };
        DueRestart {
            restart: Restart {
                previous: previous.iter().map(former).collect(),
                ..Restart::due(component, NOW, vec![cause])
            },
            pod: None,
            method: RestartMethod::Manual,
        }
    }

    #[tokio::test]
    async fn restores_link_of_kubelet_and_its_removed_target() {
        const CURRENT: &str = "var/lib/kubelet/pki/kubelet-client-current.pem";
        for is_removed in [false, true] {
            let (dir, root) = node("var/lib/kubelet/pki");
            let path = |name: &str| dir.path().join("var/lib/kubelet/pki").join(name);
            if !is_removed {
                fs::write(path("old.pem"), "old").unwrap();
            }
            fs::write(path("new.pem"), "new").unwrap();
            symlink("new.pem", dir.path().join(CURRENT)).unwrap();
            let setup = ReloadSetup::of_tests();
            let mut run = Run::of_tests(&root, &setup);
            let due = due(
                Component::Kubelet,
                ReplacedFile::Certificate(CertName::KubeletConf),
                &[(&format!("/{CURRENT}"), "old", Some("old.pem"))],
            );
            run.roll_back(&due, "it is rejected".to_owned())
                .await
                .unwrap();
            let target = fs::read_link(dir.path().join(CURRENT)).unwrap();
            assert_eq!(target, Path::new("old.pem"));
            assert_eq!(fs::read(path("old.pem")).unwrap(), b"old");
            let detail = run.rows[0].reasons[0].to_string();
            assert!(
                detail.contains("with the old files it is ready"),
                "{detail}"
            );
        }
    }

    /// A kubelet whose key was removed has both in memory; with the former certificate and the new key it would not start.
    #[tokio::test]
    async fn keeps_new_pair_if_former_certificate_had_no_key() {
        const CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet.crt";
        const KEY: &str = "/var/lib/kubelet/pki/kubelet.key";
        let certificate = |key: &PrivateKey, name: &str| {
            let key = PrivateKey::from_pem(key.to_pem().as_bytes());
            let hour = Duration::from_secs(3600);
            let made = CertificateAuthority::self_signed(name, key.unwrap(), NOW, hour);
            made.unwrap().bundle().first().to_pem()
        };
        let [old, new] = [(); 2].map(|()| PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap());
        let name = CertName::KubeletServing;
        for (former_key, is_restored) in [(&new, true), (&old, false)] {
            let (dir, root) = node("var/lib/kubelet/pki");
            let path = |path: &str| dir.path().join(&path[1..]);
            let (former, present) = (
                certificate(former_key, "former"),
                certificate(&new, "present"),
            );
            fs::write(path(CERTIFICATE), &present).unwrap();
            fs::write(path(KEY), new.to_pem().as_bytes()).unwrap();
            let mut setup = ReloadSetup::of_tests();
            let files = CertFiles::Pair {
                certificate: CERTIFICATE.into(),
                key: KEY.into(),
                group: None,
            };
            setup.outputs.insert(name, files);
            let mut run = Run::of_tests(&root, &setup);
            let due = due(
                Component::Kubelet,
                ReplacedFile::Certificate(name),
                &[(CERTIFICATE, &former, None), (KEY, "", None)],
            );
            run.roll_back(&due, "it does not serve".to_owned())
                .await
                .unwrap();
            let expected = if is_restored { former } else { present };
            assert_eq!(fs::read_to_string(path(CERTIFICATE)).unwrap(), expected);
            let detail = run.rows[0].reasons[0].to_string();
            let words = "kubelet.crt does not match the other file of its pair";
            assert_eq!(detail.contains(words), !is_restored, "{detail}");
        }
    }

    #[tokio::test]
    async fn records_restored_file_for_its_hook() {
        const CONF: &str = "etc/kubernetes/scheduler.conf";
        let change = ReplacedFile::Certificate(CertName::SchedulerConf);
        let hook = |on| Hook {
            on: vec![on],
            command: vec!["/bin/true".to_owned()],
            timeout: Duration::ZERO,
        };
        for (on, expected) in [
            (
                On::Change(change),
                vec![UnverifiedChange { change, at: NOW }],
            ),
            (On::Change(ReplacedFile::ServiceAccount), Vec::new()),
        ] {
            let (dir, root) = node("etc/kubernetes");
            fs::write(dir.path().join(CONF), "new").unwrap();
            let mut setup = ReloadSetup::of_tests();
            setup.reload.hooks = vec![hook(on)];
            let mut run = Run::of_tests(&root, &setup);
            let due = due(
                Component::KubeScheduler,
                change,
                &[(&format!("/{CONF}"), "old", None)],
            );
            run.roll_back(&due, "it does not serve".to_owned())
                .await
                .unwrap();
            assert_eq!(fs::read(dir.path().join(CONF)).unwrap(), b"old");
            assert_eq!(root.unsettled().unwrap().changed, expected);
        }
    }
}
