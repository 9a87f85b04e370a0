//! Commands of the administrator on a change of a CA or of the service-account key in the whole cluster, and what it shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::macros::format_description;

use super::evidence;
use super::judge::{Offer, TrustPart, fingerprint, named};
use super::lead;
use super::objects::{self, RotationMap};
use super::outside::outside;
use super::rotate::certificate;
use super::service_account::{self, PresentPair};
use super::{read_certificates, require_known_algorithm, require_pins};
use crate::agent::keys::require_self_test;
use crate::agent::load::{self, KubeconfigFile, Loaded};
use crate::agent::{ExitCode, Failure};
use crate::cluster::api::{Api, ApiError};
use crate::config::Argument;
use crate::kube::names::Authority;
use crate::spec::authority_rotation::{
    AuthorityRotation, CommandEffect, LeaderDecision, LeaderHold, NodeProof, NodeProofs, RotatedCa,
    RotationCommand, RotationPhase, RotationStart, RotationSubject, apply_command, decide_phase,
};
use crate::store::{ClusterRotations, NodeRoot, ServiceAccountKeys};
use crate::text::hex;
use crate::x509::{Certificate, PrivateKey, TrustBundle};

/// Number of attempts to change the ConfigMap while others change it too.
const MAX_ATTEMPTS: u32 = 10;

/// A change of a CA or of the service-account key in the whole cluster, with every node that uses it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotationView {
    /// The rotation.
    pub rotation: AuthorityRotation,
    /// The nodes, with their proofs.
    pub nodes: Vec<NodeView>,
    /// What the next phase waits for, in sentences; empty if it is about to begin, and after the end.
    pub waits: Vec<String>,
    /// What uses the old CA outside of the nodes, in sentences, as far as it was requested. nodepki does not change it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<String>,
}

/// One node in a [`RotationView`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Its name.
    pub node: String,
    /// True if the rotation does not wait for it.
    pub excluded: bool,
    /// True if it has proven the present phase.
    pub proven: bool,
    /// Its proof; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<NodeProof>,
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::refused(format!(
        "the rotation {key} in the ConfigMap kube-system/{name} is not valid: {why} (correct or remove the entry with kubectl -n kube-system edit configmap {name})",
        name = objects::NAME
    ))
}

fn api(root: &NodeRoot, kubeconfig: &KubeconfigFile) -> Result<Api, Failure> {
    load::cluster(root, kubeconfig)
}

fn failed(doing: &str) -> impl Fn(ApiError) -> Failure {
    move |error| Failure::of_cluster(doing, error)
}

/// The new CA of a rotation.
pub struct NewCa<'a> {
    /// File with its certificate.
    pub file: &'a Argument,
    /// See [`super::StepOrder::components_verify`].
    pub components_verify: bool,
}

/// Returns the order to change the CA of an authority to a new one, from the CA in place on this node.
///
/// # Errors
/// The certificate cannot become the CA, or this node has no such authority.
pub fn start(
    root: &NodeRoot,
    loaded: &Loaded,
    authority: Authority,
    ca: &NewCa<'_>,
    excluded: BTreeSet<String>,
    hold_before: BTreeSet<RotationPhase>,
    now: OffsetDateTime,
) -> Result<RotationCommand, Failure> {
    let setup = &loaded.setup;
    let state = setup.state(root);
    let survey = setup.survey_of(&state, now)?;
    let evidence = evidence::read(&state, setup, &survey, authority)?;
    let offered = read_certificates(root, ca.file)?;
    let record = root.cluster_rotations()?;
    let is_repeated = |new: &Certificate| {
        let present = record.in_progress(authority.into());
        present.is_some_and(|present| present.new.sha256 == fingerprint(new))
    };
    let offer = evidence.admit(&offered, now).map_err(Failure::refused)?;
    let new = match (offer, evidence.bundle.first()) {
        (Offer::New(new), _) => *new,
        // This node has removed the old CA.
        (Offer::InPlace, Some(first)) if is_repeated(first) => first.clone(),
        (Offer::InPlace, _) => {
            return Err(Failure::refused(format!(
                "{} is already the {authority} (name the certificate of another CA with --certificate)",
                offered.first().map(named).unwrap_or_default()
            )));
        }
    };
    require_known_algorithm(loaded, &new, ca.components_verify)?;
    let Some(old) = evidence.bundle.first() else {
        return Err(Failure::refused(format!("{} is empty", evidence.file)));
    };
    let trouble = evidence.signing_trouble();
    Failure::require_none(trouble)?;
    let target = evidence.rotated((old, &new), TrustPart::Add(&new), now);
    require_pins(setup, authority, &target)?;
    Ok(RotationCommand::Start(Box::new(RotationStart {
        id: id(&new.fingerprint(), now),
        subject: authority.into(),
        old: rotated(old),
        new: rotated(&new),
        hold_before,
        excluded,
        token_lifetime: None,
    })))
}

/// Returns the order to change the service-account key to a new one, which is created here, and the private keys of the
/// rotation.
///
/// # Errors
/// The pair of this node is not usable, or the key cannot be created.
pub fn start_service_account(
    root: &NodeRoot,
    loaded: &Loaded,
    excluded: BTreeSet<String>,
    hold_before: BTreeSet<RotationPhase>,
    token_lifetime: Option<Duration>,
    now: OffsetDateTime,
) -> Result<(RotationCommand, ServiceAccountKeys), Failure> {
    let spec = service_account::spec(&loaded.setup)?;
    let pair = PresentPair::read(root, spec)?;
    require_self_test()?;
    let key = PrivateKey::generate(spec.key).map_err(|error| {
        Failure::pending("the new service-account key cannot be generated")
            .caused_by(error)
            .advise("run the same command again; nothing was changed")
    })?;
    let start = RotationStart {
        id: id(&key.public_key().sha256(), now),
        subject: RotationSubject::ServiceAccount,
        old: service_account::rotated(pair.private.public_key()),
        new: service_account::rotated(key.public_key()),
        hold_before,
        excluded,
        token_lifetime: token_lifetime.map(|lifetime| lifetime.as_secs()),
    };
    let keys = ServiceAccountKeys {
        rotation: start.id.clone(),
        keys: service_account::joined(&pair.private, &key),
    };
    Ok((RotationCommand::Start(Box::new(start)), keys))
}

/// Returns the order as it is applied to the present rotation: a start with its new CA, or on a node that has its keys,
/// repeats the rotation in progress, whichever CA or key this node uses meanwhile.
fn repeated(
    root: &NodeRoot,
    command: &RotationCommand,
    present: Option<&AuthorityRotation>,
) -> Result<RotationCommand, Failure> {
    let present = present.filter(|present| !present.phase.is_end());
    let (RotationCommand::Start(start), Some(present)) = (command, present) else {
        return Ok(command.clone());
    };
    let is_repeated = match start.subject {
        RotationSubject::Authority(_) => start.new.sha256 == present.new.sha256,
        RotationSubject::ServiceAccount => service_account::kept(root, present)?.is_some(),
    };
    if !is_repeated {
        return Ok(command.clone());
    }
    Ok(RotationCommand::Start(Box::new(RotationStart {
        old: present.old.clone(),
        new: present.new.clone(),
        ..(**start).clone()
    })))
}

/// Returns a CA in the form of the rotation.
pub(super) fn rotated(ca: &Certificate) -> RotatedCa {
    RotatedCa {
        sha256: fingerprint(ca),
        certificate: ca.to_pem(),
    }
}

/// Returns the name of a rotation: its time, and a part that differs between certificates and keys.
fn id(new: &[u8; 32], now: OffsetDateTime) -> String {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let time = now.format(&format).unwrap_or_default();
    let digest = hex(&Sha256::digest(new));
    format!("{time}-{}", digest.get(..8).unwrap_or_default())
}

/// Applies a command. Returns the rotation, and whether the command has changed it. `keys` are those of a new
/// service-account key: they are in the state directory before the rotation is in the cluster.
///
/// # Errors
/// The command is refused; the cluster cannot be read or written.
pub async fn apply(
    root: &NodeRoot,
    kubeconfig: &KubeconfigFile,
    subject: RotationSubject,
    command: &RotationCommand,
    keys: Option<&ServiceAccountKeys>,
    is_dry_run: bool,
    now: OffsetDateTime,
) -> Result<(RotationView, bool), Failure> {
    let api = api(root, kubeconfig)?;
    for _ in 0..MAX_ATTEMPTS {
        let (map, proofs) = read(&api, subject).await?;
        let mut record = map.rotations();
        require_readable(&record, &BTreeSet::from([subject]))?;
        let present = record.rotations.remove(&subject);
        let command = &repeated(root, command, present.as_ref())?;
        let effect = apply_command(command, present.as_ref(), &proofs)
            .map_err(|error| Failure::caused(ExitCode::Refused, subject.to_string(), error))?;
        let changed = match effect {
            CommandEffect::Change(changed) if !is_dry_run => changed,
            CommandEffect::Change(rotation) | CommandEffect::None(rotation) => {
                return Ok((RotationView::of(rotation, proofs, now), false));
            }
        };
        if matches!(command, RotationCommand::Start(_)) {
            objects::permit_nodes(&api)
                .await
                .map_err(failed("permitting the nodes to read the rotation"))?;
            // A repeated start keeps those of the rotation in progress.
            if let Some(keys) = keys.filter(|keys| keys.rotation == changed.id) {
                root.keep_service_account_keys(keys)?;
            }
        }
        let written = map.write(&api, &changed).await;
        if written.map_err(failed("writing the rotation"))? {
            let mut view = RotationView::of(changed, proofs, now);
            view.outside = outside_of(&api, &view.rotation).await;
            return Ok((view, true));
        }
    }
    Err(Failure::pending(
        "the rotation is being changed by others; run the same command again",
    ))
}

async fn read(api: &Api, subject: RotationSubject) -> Result<(RotationMap, NodeProofs), Failure> {
    let map = RotationMap::read(api).await;
    let map = map.map_err(failed("reading the rotation"))?;
    let proofs = objects::list_proofs(api, subject).await;
    Ok((map, proofs.map_err(failed("listing the nodes"))?))
}

/// Returns the rotations in the cluster, of these subjects or of all, and on request what uses the old CA outside of the
/// nodes.
///
/// # Errors
/// The cluster cannot be read, or contains one of these rotations that is not valid.
pub async fn view(
    root: &NodeRoot,
    kubeconfig: &KubeconfigFile,
    subjects: &BTreeSet<RotationSubject>,
    with_outside: bool,
    now: OffsetDateTime,
) -> Result<Vec<RotationView>, Failure> {
    let api = api(root, kubeconfig)?;
    let map = RotationMap::read(&api).await;
    let record = map.map_err(failed("reading the rotation"))?.rotations();
    require_readable(&record, subjects)?;
    let mut views = Vec::new();
    for (subject, rotation) in record.rotations {
        if subjects.is_empty() || subjects.contains(&subject) {
            let proofs = objects::list_proofs(&api, subject).await;
            let proofs = proofs.map_err(failed("listing the nodes"))?;
            let decision = decide_phase(&rotation, &proofs, now);
            let mut view = RotationView::of(rotation, proofs, now);
            if let LeaderDecision::Advance(next) = decision {
                let waits = lead::unpublished(&api, &view.rotation, next).await;
                view.waits.extend(waits);
            }
            if with_outside {
                view.outside = outside_of(&api, &view.rotation).await;
            }
            views.push(view);
        }
    }
    Ok(views)
}

/// Verifies that no entry of these subjects, or none at all without subjects, is refused.
fn require_readable(
    record: &ClusterRotations,
    subjects: &BTreeSet<RotationSubject>,
) -> Result<(), Failure> {
    let is_requested = |key: &str| {
        let mut names = subjects.iter().map(|subject| subject.as_str());
        subjects.is_empty() || names.any(|name| name == key)
    };
    let mut refused = record.refused.iter();
    match refused.find(|(key, _)| is_requested(key)) {
        Some((key, why)) => Err(invalid(key, why)),
        None => Ok(()),
    }
}

/// The CA certificates of an authority that is or was changed in the cluster.
#[derive(Clone, Debug)]
pub struct RotatedBundle {
    /// The certificates that nodes trust in the present phase.
    pub bundle: TrustBundle,
    /// The old and the new CA.
    cas: [Certificate; 2],
    has_ended: bool,
}

impl RotatedBundle {
    /// Reads the certificates of a rotation.
    ///
    /// # Errors
    /// The reason why they are unusable.
    pub fn of(rotation: &AuthorityRotation) -> Result<Self, String> {
        let trusted = rotation.trusted().into_iter().map(certificate);
        let trusted = trusted.collect::<Result<_, _>>()?;
        Ok(RotatedBundle {
            bundle: TrustBundle::from_certificates(trusted).map_err(|error| error.to_string())?,
            cas: [certificate(&rotation.old)?, certificate(&rotation.new)?],
            has_ended: rotation.phase.is_end(),
        })
    }

    /// Returns whether the rotation has ended, so that another CA may have replaced that of the rotation.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns whether certificates are only those of the rotation.
    pub fn contains(&self, bundle: &TrustBundle) -> bool {
        let mut certificates = bundle.certificates().iter();
        certificates.all(|one| self.cas.contains(one))
    }
}

/// Returns the CA certificates of each authority that is or was changed in the cluster, as of the present phase.
///
/// # Errors
/// The cluster cannot be read, or contains a rotation that is not valid.
pub async fn rotated_bundles(
    root: &NodeRoot,
    kubeconfig: &KubeconfigFile,
) -> Result<BTreeMap<Authority, RotatedBundle>, Failure> {
    let map = RotationMap::read(&api(root, kubeconfig)?).await;
    let record = map.map_err(failed("reading the rotation"))?.rotations();
    require_readable(&record, &BTreeSet::new())?;
    let rotations = record.rotations.into_iter();
    rotations
        .filter_map(|(subject, rotation)| Some((subject.authority()?, rotation)))
        .map(|(authority, rotation)| {
            let bundle = RotatedBundle::of(&rotation).map_err(Failure::refused)?;
            Ok((authority, bundle))
        })
        .collect()
}

/// Returns what uses the old CA outside of the nodes, or a sentence on why that is unknown. Pods and webhooks use the cluster
/// CA only.
async fn outside_of(api: &Api, rotation: &AuthorityRotation) -> Vec<String> {
    let phases = [RotationPhase::Trust, RotationPhase::Activate];
    if rotation.subject != Authority::Ca.into() || !phases.contains(&rotation.phase) {
        return Vec::new();
    }
    let (Ok(old), Ok(new)) = (certificate(&rotation.old), certificate(&rotation.new)) else {
        return Vec::new();
    };
    outside(api, &old, &new).await.unwrap_or_else(|error| {
        let failure = failed("reading what uses the CA")(error);
        vec![failure.one_line()]
    })
}

impl RotationView {
    fn of(rotation: AuthorityRotation, proofs: NodeProofs, now: OffsetDateTime) -> Self {
        let waits = match decide_phase(&rotation, &proofs, now) {
            LeaderDecision::Advance(_)
            | LeaderDecision::Wait(_)
            | LeaderDecision::Hold(LeaderHold::Ended) => Vec::new(),
            LeaderDecision::Hold(LeaderHold::Unproven(nodes)) => {
                nodes.0.iter().map(ToString::to_string).collect()
            }
            LeaderDecision::Hold(other) => vec![other.to_string()],
        };
        let nodes = proofs.into_iter();
        RotationView {
            nodes: nodes
                .map(|(node, proof)| NodeView {
                    excluded: rotation.excluded.contains(&node),
                    proven: rotation.is_proven(proof.as_ref()),
                    node,
                    proof,
                })
                .collect(),
            rotation,
            waits,
            outside: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lead::tests::rotation;
    use super::*;
    use crate::spec::authority_rotation::RefusedCommand;

    #[test]
    fn refuses_unreadable_rotation_of_requested_subject() {
        let record = ClusterRotations {
            refused: BTreeMap::from([("ca".to_owned(), "it is not a rotation".to_owned())]),
            ..ClusterRotations::default()
        };
        let view = |subjects: &[RotationSubject]| {
            require_readable(&record, &subjects.iter().copied().collect())
        };
        for requested in [&[][..], &[Authority::Ca.into()]] {
            let failure = view(requested).unwrap_err();
            assert_eq!(failure.code, ExitCode::Refused);
            assert!(failure.one_line().starts_with("the rotation ca in the ConfigMap kube-system/nodepki-authority-rotation is not valid: it is not a rotation"));
        }
        assert!(view(&[Authority::EtcdCa.into()]).is_ok());
    }

    #[test]
    fn repeats_rotation_of_ca_after_this_node_has_activated() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let present = rotation(Authority::Ca).in_phase(RotationPhase::Activate);
        let start = |new: &RotatedCa| {
            RotationCommand::Start(Box::new(RotationStart {
                id: "2".to_owned(),
                subject: present.subject,
                // The first certificate in ca.crt.
                old: present.new.clone(),
                new: new.clone(),
                hold_before: BTreeSet::from([RotationPhase::Retire]),
                excluded: BTreeSet::new(),
                token_lifetime: None,
            }))
        };
        let applied = |new, present: &AuthorityRotation| {
            let command = repeated(&root, &start(new), Some(present)).unwrap();
            apply_command(&command, Some(present), &NodeProofs::new())
        };
        let expected = AuthorityRotation {
            hold_before: BTreeSet::from([RotationPhase::Retire]),
            ..present.clone()
        };
        assert_eq!(
            applied(&present.new, &present),
            Ok(CommandEffect::Change(expected))
        );
        let other = applied(&present.old, &present);
        assert!(matches!(other, Err(RefusedCommand::InProgress { .. })));
        let ended = present.in_phase(RotationPhase::Done);
        assert_eq!(applied(&present.new, &ended), Err(RefusedCommand::SameCa));
    }

    #[tokio::test]
    async fn shows_rotation_whose_uses_outside_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let api = load::cluster(&root, std::path::Path::new("/absent.conf")).unwrap();
        let found = outside_of(&api, &rotation(Authority::Ca)).await;
        assert_eq!(found.len(), 1);
        let sentence = &found[0];
        assert!(
            sentence.starts_with("reading what uses the CA"),
            "{sentence}"
        );
    }
}
