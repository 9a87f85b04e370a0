//! What the configuration says of the node, as far as it can be determined offline. Never fails: a fault is part of the result.

use std::collections::BTreeMap;
use std::path::Path;

use time::OffsetDateTime;

use crate::agent::load;
use crate::agent::{self, ExitCode, RunSetup, Survey, join};
use crate::config::{FRAGMENT_DIRECTORIES, MAIN_FILE};
use crate::kube::kubeadm;
use crate::kube::names::Authority;
use crate::kubelets::KubeletPolicy;
use crate::node::NodeState;
use crate::signer::SignerKind;
use crate::spec::NodeSpec;
use crate::spec::compliance::KeyUse;
use crate::store::{ErrorClass, NodeRoot, StoreError};

/// Desired state, as far as it can be determined offline.
#[derive(Default)]
pub(super) struct Configuration {
    /// Whether a configuration file exists, or was named on the command line.
    pub(super) exists: bool,
    pub(super) faults: Vec<String>,
    /// Whether the faults are in other files than the configuration, such as those of the state directory.
    pub(super) is_refused: bool,
    pub(super) node: Option<kubeadm::NodeConfig>,
    pub(super) plan: Option<NodeSpec>,
    pub(super) survey: Option<Survey>,
    /// The keys to which the key policy applies.
    pub(super) keys: Vec<KeyUse>,
    /// The files that the survey describes.
    pub(super) state: Option<NodeState>,
    /// The configured signers that keep the CA key outside this node, by authority.
    pub(super) external: BTreeMap<Authority, String>,
    /// Why the files of the next run cannot be written: too little space, or a read-only file system.
    pub(super) no_room: Vec<String>,
    /// The program of a signer is named below a root directory, where it is not started.
    pub(super) has_refused_program: bool,
    /// Secrets of the settings that other users can read or change.
    pub(super) exposed_secrets: Vec<String>,
    /// Signers of the settings whose CA keys are on the node.
    pub(super) local_ca_keys: Vec<String>,
    /// SHA-256 of the public keys that an authority may have; an empty list permits any.
    pub(super) pins: BTreeMap<Authority, Vec<[u8; 32]>>,
    /// The policy for requests of kubelets, if nodepki signs them.
    pub(super) kubelets: Option<KubeletPolicy>,
}

impl Configuration {
    pub(super) fn read(
        root: &NodeRoot,
        sources: &load::LoadInputs,
        now: OffsetDateTime,
    ) -> Configuration {
        let mut read = Configuration {
            exists: sources.config.is_some()
                || !sources.stand_ins.kubeadm_configs.is_empty()
                || sources.stand_ins.signer.is_some(),
            ..Configuration::default()
        };
        let exists = |path: &Path| !matches!(root.metadata(path), Ok(None));
        let has_entries =
            |path: &&str| matches!(root.list(path), Ok(Some(names)) if !names.is_empty());
        read.exists |= exists(Path::new(MAIN_FILE)) || FRAGMENT_DIRECTORIES.iter().any(has_entries);
        let settings = match load::read_settings(root, sources) {
            Ok((settings, _)) => settings,
            Err(failure) => {
                read.faults = failure.texts();
                return read;
            }
        };
        let starts_programs = load::is_trusted(root, settings.signer_origin);
        read.exposed_secrets = load::exposed_secrets(root, &settings);
        read.local_ca_keys = load::local_ca_keys(root, &settings);
        read.kubelets = settings.kubelets.sign.then(|| settings.kubelets.clone());
        for authority in Authority::ALL {
            if let Some((name, signer)) = settings.signer_of(authority)
                && !matches!(signer.kind(), SignerKind::Local | SignerKind::Embedded)
            {
                read.external.insert(authority, name.to_owned());
                read.has_refused_program |= signer.kind() == SignerKind::Exec && !starts_programs;
            }
        }
        let named = settings.kubeadm.cluster_configuration.iter();
        let has_copy = exists(Path::new(join::CLUSTER_CONFIGURATION_COPY));
        let mut files = settings.kubeadm.files.iter().chain(named);
        let has_kubeadm = !settings.kubeadm.arguments.is_empty() || files.any(|path| exists(path));
        let is_described = has_kubeadm || has_copy;
        if !is_described && !read.exists {
            return read;
        }
        read.exists = true;
        match load::load(root, sources, now) {
            Ok(loaded) => {
                // If the survey fails, the check of the file that caused it reports the fault.
                read.survey = loaded.setup.survey_of(&loaded.state, now).ok();
                if let Some(survey) = &read.survey {
                    if !survey.is_settled() {
                        read.no_room = lack_of_room(root, &loaded.setup, survey);
                    }
                    read.keys = survey.all_key_uses(loaded.state.root(), now);
                }
                read.state = Some(loaded.state);
                read.plan = Some(loaded.setup.plan);
                let trust = loaded.setup.trust.into_iter();
                read.pins = trust.map(|(name, source)| (name, source.pins)).collect();
                read.node = Some(loaded.node);
            }
            // Only a worker needs none: its own files are sufficient.
            Err(_) if !is_described => {}
            // Before its first run, the cluster of a joining node may be unknown while everything else is in order.
            Err(failure) => match load::check(root, sources, now) {
                Ok((loaded, None)) => read.node = Some(loaded.node),
                _ => {
                    read.is_refused = failure.code == ExitCode::Refused;
                    read.faults = failure.texts();
                }
            },
        }
        read
    }
}

/// Returns why the files of the next run cannot be written. Other checks report files and directories that it refuses.
fn lack_of_room(root: &NodeRoot, setup: &RunSetup, survey: &Survey) -> Vec<String> {
    let is_lack =
        |error: &StoreError| matches!(error.class(), ErrorClass::NoSpace | ErrorClass::ReadOnly);
    match agent::verify_room(root, setup, survey) {
        Ok(()) => Vec::new(),
        Err(errors) => errors
            .iter()
            .filter(|error| is_lack(error))
            .map(ToString::to_string)
            .collect(),
    }
}
