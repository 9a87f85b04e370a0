//! The paths and privileges that a run of this configuration needs, for [`confine`](crate::process::confine).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Loaded, places};
use crate::agent::Failure;
use crate::kube::names::NodePath;
use crate::kube::paths::MANIFESTS_DIR;
use crate::process::confine::Rights;
use crate::signer;
use crate::spec::CertFiles;
use crate::store::{NodeRoot, STATE_DIR};

impl Loaded {
    /// Returns the paths that a run writes to, and whether it starts other programs.
    ///
    /// # Errors
    /// A path of the settings cannot be resolved.
    pub fn reach(&self, root: &NodeRoot) -> Result<Rights, Failure> {
        let mut reach = Rights::default();
        let origin = self.settings.signer_origin;
        let signers = self.settings.signers.values();
        for signer in signers {
            match signer {
                signer::Config::Exec(_) => reach.programs |= places::is_trusted(root, origin),
                signer::Config::Directory(drop) => {
                    let found = places::defined(root, origin, &drop.path)?;
                    reach.writes.insert(found.on_this_machine());
                }
                _ => {}
            }
        }
        if !root.is_this_machine() {
            // Links in there lead elsewhere for the kernel than for the root.
            reach.writes.insert(root.path().to_owned());
            return Ok(reach);
        }
        reach.programs |= !self.settings.reload.hooks.is_empty();
        reach.writes.insert(STATE_DIR.into());
        reach.writes.extend(self.node_directories());
        let textfile = self.settings.metrics.textfile.as_deref();
        let directory = textfile.and_then(Path::parent).map(Path::to_owned);
        reach.writes_if_there.extend(directory);
        // An interrupted run, maybe of another configuration, is finished first.
        reach.writes.extend(root.staging_directories()?);
        Ok(reach)
    }

    /// Returns the directories of the files that a run writes on the node, apart from its own state and from the paths of
    /// settings that are not about certificates.
    pub(super) fn node_directories(&self) -> BTreeSet<PathBuf> {
        let mut directories = BTreeSet::from([PathBuf::from(MANIFESTS_DIR)]);
        let mut file = |path: &NodePath| directories.extend(path.parent().map(Path::to_owned));
        let plan = &self.setup.plan;
        for spec in &plan.certs {
            spec.output.paths().into_iter().for_each(&mut file);
        }
        for bundle in &plan.bundles {
            file(&bundle.path);
            file(&bundle.crl_path);
            bundle.copies.iter().for_each(|copy| file(&copy.path));
        }
        if let Some(pair) = &plan.service_account {
            file(&pair.private);
        }
        for provided in &self.setup.provided.files {
            file(&provided.path);
        }
        let stores = plan.certs.iter().filter_map(|spec| match &spec.output {
            CertFiles::Kubeconfig { store, .. } => store.as_ref(),
            CertFiles::Pair { .. } => None,
        });
        directories.extend(stores.map(|store| store.dir.to_path_buf()));
        directories
    }
}
