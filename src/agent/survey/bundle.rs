//! The trust bundles of the node as they were found.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use time::OffsetDateTime;

use super::{Survey, SurveyRefusal};
use crate::agent::ProvidedBundle;
use crate::node::{NodeFile, NodeState};
use crate::spec::assess::{self, BundleRefusal, Observed, assess_bundle};
use crate::spec::{BundleCopy, BundleSpec};
use crate::store::{self, NodeRoot};
use crate::text::rfc3339;
use crate::x509::{AuthorityCrls, TrustBundle};

/// One trust bundle, as found.
pub struct SurveyedBundle {
    /// Desired state.
    pub spec: BundleSpec,
    /// Observed state.
    pub found: Observed<TrustBundle>,
    /// The bundle is at its path in the plan; otherwise it comes from the configured file or from the cluster, or is still
    /// unknown.
    pub in_place: bool,
    /// Copies of the bundle that are absent or contain other certificates.
    pub outdated_copies: Vec<BundleCopy>,
    /// The CA's private key is on this node.
    pub has_key: bool,
    /// The verified revocation lists on disk.
    pub revocations: Option<AuthorityCrls>,
    /// Why nothing is issued under it; also part of the survey's refusals.
    pub(in crate::agent) refused: Vec<BundleRefusal>,
}

impl SurveyedBundle {
    /// Returns whether the bundle and its copies are in place.
    pub(in crate::agent) fn is_settled(&self) -> bool {
        self.in_place && self.outdated_copies.is_empty()
    }

    /// Returns whether the bundle is of another CA than the certificates of the node.
    pub fn is_replaced(&self) -> bool {
        let mut refused = self.refused.iter();
        refused.any(|refusal| matches!(refusal, BundleRefusal::Replaced { .. }))
    }
}

/// Configured trust for one authority, in addition to the bundle at its path.
#[derive(Clone, Debug, Default)]
pub struct TrustSource {
    /// File to read the bundle from if none exists at its path.
    pub file: Option<TrustFile>,
    /// SHA-256 digests of the accepted public keys.
    pub pins: Vec<[u8; 32]>,
}

/// A file with CA certificates that the settings name.
#[derive(Clone, Debug)]
pub struct TrustFile {
    /// The node's root, or `/` of this machine for settings of this machine.
    pub root: NodeRoot,
    /// The absolute path inside `root`.
    pub path: PathBuf,
    /// Whether `root` is the node's.
    pub on_node: bool,
}

impl TrustFile {
    /// Returns the path on this machine, for messages.
    pub(super) fn shown(&self) -> PathBuf {
        self.root.on_this_machine(&self.path)
    }

    /// Returns the file, unless it is the one at `path` on the node.
    fn other_than(&self, state: &NodeState, path: &Path) -> Option<Rc<NodeFile>> {
        match self.on_node {
            true if self.path == path => None,
            true => Some(state.file(&self.path)),
            false => Some(Rc::new(NodeFile::new(&self.root, &self.path))),
        }
    }
}

impl Survey {
    pub(super) fn read_bundle(
        &mut self,
        state: &NodeState,
        spec: &BundleSpec,
        source: &TrustSource,
        handed: Option<&ProvidedBundle>,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        let FoundBundle {
            file,
            found,
            in_place,
            mut refused,
        } = find_bundle(state, spec, source, handed)?;
        refused.extend(assess_bundle(spec, &found, &source.pins, now).err());
        let refusals = refused.iter().cloned();
        self.refusals
            .extend(refusals.map(|refusal| SurveyRefusal::Bundle(spec.authority, refusal)));
        self.note_expired(spec, found.present(), now);
        self.note_key(state, spec, &file, found.present())?;
        let mut outdated_copies = Vec::new();
        for copy in &spec.copies {
            let file = state.file(&copy.path);
            self.note_key(state, spec, &file, found.present())?;
            let copied = file.parse(TrustBundle::from_pem)?;
            let copied = copied.present().map(TrustBundle::certificates);
            if copied != found.present().map(TrustBundle::certificates) {
                outdated_copies.push(copy.clone());
            }
        }
        let has_key = state.root().metadata(&spec.key_path)?.is_some();
        self.bundles.push(SurveyedBundle {
            spec: spec.clone(),
            found,
            in_place,
            outdated_copies,
            has_key,
            revocations: None,
            refused,
        });
        Ok(())
    }

    /// Notes CA certificates that have expired beside the first one.
    fn note_expired(
        &mut self,
        spec: &BundleSpec,
        found: Option<&TrustBundle>,
        now: OffsetDateTime,
    ) {
        let certificates = found.map(TrustBundle::certificates).unwrap_or_default();
        let others = certificates.iter().skip(1);
        for certificate in others.filter(|certificate| now > certificate.not_after()) {
            self.notes.push(format!(
                "{} also holds {}, which expired at {}; remove it when convenient",
                spec.path,
                certificate.subject(),
                rfc3339(certificate.not_after())
            ));
        }
    }

    /// Notes a private key among the CA certificates of a file.
    fn note_key(
        &mut self,
        state: &NodeState,
        spec: &BundleSpec,
        file: &NodeFile,
        bundle: Option<&TrustBundle>,
    ) -> Result<(), store::StoreError> {
        let path = state.root().on_this_machine(file.path());
        let content = file.bytes()?.unwrap_or_default();
        let note = assess::key_among_certificates(
            &path.display().to_string(),
            spec.authority,
            content,
            bundle,
        );
        self.notes.extend(note);
        Ok(())
    }
}

/// The file of a bundle, and its content.
struct FoundBundle {
    file: Rc<NodeFile>,
    found: Observed<TrustBundle>,
    in_place: bool,
    refused: Vec<BundleRefusal>,
}

/// Returns the bundle at its path, in the file that the settings name, or from the cluster, and compares those that exist.
fn find_bundle(
    state: &NodeState,
    spec: &BundleSpec,
    source: &TrustSource,
    handed: Option<&ProvidedBundle>,
) -> Result<FoundBundle, store::StoreError> {
    let authority = spec.authority;
    let mut refused = Vec::new();
    let mut file = state.file(&spec.path);
    // The kubelet creates an empty file for a missing hostPath (`FileOrCreate`), which is not a CA in place.
    let mut in_place = file.bytes()?.is_some_and(|bytes| !bytes.is_empty());
    let configured = source.file.as_ref().and_then(|configured| {
        let other = configured.other_than(state, &spec.path)?;
        Some((configured, other))
    });
    let mut expected = None;
    if let Some((configured, other)) = configured
        && !(in_place && configured.on_node)
    {
        if other.bytes()?.is_none() {
            refused.push(BundleRefusal::TrustFileAbsent {
                file: configured.shown(),
                authority,
            });
        }
        if in_place {
            // A setting of this machine decides about the file below the root.
            if let Observed::Present(bundle) = other.parse(TrustBundle::from_pem)? {
                expected = Some((configured.shown(), bundle));
            }
        } else {
            file = other;
        }
    }
    let mut found = file.parse(TrustBundle::from_pem)?;
    match (&found, handed) {
        (Observed::Absent | Observed::Empty, Some(handed)) => {
            found = Observed::Present(handed.bundle.clone());
        }
        // During a change of the CA in the cluster: until kubeadm has run, no component of this node depends on the file.
        (Observed::Present(trusted), Some(handed)) if handed.replaces(trusted) => {
            found = Observed::Present(handed.bundle.clone());
            in_place = false;
        }
        (Observed::Present(trusted), Some(ProvidedBundle { from, bundle, .. }))
            if !trusted.accepts(bundle) =>
        {
            refused.push(BundleRefusal::NotOfCluster {
                path: spec.path.clone(),
                authority,
                found: trusted.to_string(),
                from: from.clone(),
                wanted: bundle.to_string(),
            });
        }
        _ => {}
    }
    if let (Some((from, expected)), Some(found)) = (expected, found.present())
        && !found.accepts(&expected)
    {
        refused.push(BundleRefusal::NotOfTrustFile {
            path: spec.path.clone(),
            authority,
            found: found.to_string(),
            file: from,
            wanted: expected.to_string(),
        });
    }
    Ok(FoundBundle {
        file,
        found,
        in_place,
        refused,
    })
}
