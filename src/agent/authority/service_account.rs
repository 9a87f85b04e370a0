//! This node's steps of a change of the service-account key in the whole cluster.
//!
//! | part | `sa.key` | `sa.pub` | restarts |
//! | --- | --- | --- | --- |
//! | trust a key | | the key that signs, the others, the new one | kube-apiserver |
//! | sign with a key | that key | that key, the others | kube-apiserver, kube-controller-manager |
//! | remove a key | | without it | kube-apiserver |
//!
//! The key that signs is the first one in `sa.pub`: kubeadm compares only that one with `sa.key`, and ends with a panic if
//! it has another algorithm (`TryLoadPrivatePublicKeyFromDisk` of `cmd/kubeadm/app/util/pkiutil/pki_helpers.go`).
//! kube-apiserver verifies tokens with all keys of a file.
//!
//! The private keys of both phases are in the state directory ([`ServiceAccountKeys`]) until the end of the rotation;
//! [`exchange`](super::exchange) brings them there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::evidence;
use super::rotate::only;
use super::sealed;
use crate::agent::{self, Clock, Failure, RunSetup, audit};
use crate::kube::components::{Component, ReplacedFile};
use crate::kube::names::NodePath;
use crate::node::NodeState;
use crate::process::failpoint;
use crate::spec::ServiceAccountSpec;
use crate::spec::authority_rotation::{
    AuthorityRotation, NodeProof, NodeStep, RotatedCa, RotationSubject,
};
use crate::store::{
    AuditEvent, AuditRecord, Commit, FormerContents, FormerTrust, Mode, NodeRoot, Restart,
    ServiceAccountKeys,
};
use crate::text::hex;
use crate::x509::{PrivateKey, PublicKey};

const SUBJECT: RotationSubject = RotationSubject::ServiceAccount;

/// Returns the bundle of this node's pair in the plan.
pub(super) fn spec(setup: &RunSetup) -> Result<&ServiceAccountSpec, Failure> {
    setup.plan.service_account.as_ref().ok_or_else(|| {
        Failure::misconfigured(
            "this node has no service-account key (run the command on a control-plane node)",
        )
    })
}

/// Returns the form of a public key in a rotation.
pub(super) fn rotated(key: &PublicKey) -> RotatedCa {
    RotatedCa {
        sha256: digest(key),
        certificate: key.to_pem(),
    }
}

fn digest(key: &PublicKey) -> String {
    hex(&key.sha256())
}

/// Returns the public key of a rotation.
///
/// # Errors
/// It is not one public key with the SHA-256 that the rotation names.
pub(super) fn public_key(rotated: &RotatedCa) -> Result<PublicKey, String> {
    only(rotated, "public key", PublicKey::all_from_pem, digest)
}

/// The pair on the disk.
pub(super) struct PresentPair {
    pub(super) private: PrivateKey,
    pub(super) public: Vec<PublicKey>,
    former: Vec<FormerContents>,
}

impl PresentPair {
    /// Reads the pair.
    ///
    /// # Errors
    /// A file is absent or unusable, or they are not a pair.
    pub(super) fn read(root: &NodeRoot, spec: &ServiceAccountSpec) -> Result<Self, Failure> {
        let mut former = Vec::new();
        let mut bytes = |path: &NodePath| -> Result<Zeroizing<Vec<u8>>, Failure> {
            let found = root.read(path)?;
            let found = found.ok_or_else(|| unusable(path, "it is absent"))?;
            former.push(FormerContents::new(path.to_path_buf(), found.bytes.clone()));
            Ok(found.bytes)
        };
        let private = PrivateKey::from_pem(&bytes(&spec.private)?)
            .map_err(|error| unusable(&spec.private, error))?;
        let public = PublicKey::all_from_pem(&bytes(&spec.public)?)
            .map_err(|error| unusable(&spec.public, error))?;
        if !public.contains(private.public_key()) {
            return Err(unusable(
                &spec.public,
                format!("it does not contain the public key of {}", spec.private),
            ));
        }
        Ok(PresentPair {
            private,
            public,
            former,
        })
    }
}

fn unusable(path: &NodePath, why: impl std::fmt::Display) -> Failure {
    Failure::refused(format!(
        "{path}: {why} (copy both sa.key and sa.pub from another control-plane node)"
    ))
}

/// Returns a sentence for each flag of a component that names other files than the pair, which nodepki does not change.
fn flag_trouble(state: &NodeState, spec: &ServiceAccountSpec) -> Vec<String> {
    let flags = [
        (
            Component::KubeApiserver,
            "service-account-key-file",
            &spec.public,
        ),
        (
            Component::KubeApiserver,
            "service-account-signing-key-file",
            &spec.private,
        ),
        (
            Component::KubeControllerManager,
            "service-account-private-key-file",
            &spec.private,
        ),
    ];
    let troubles = flags.into_iter().filter_map(|(component, flag, expected)| {
        let manifest = state.component_manifest(component);
        let pod = manifest.present()?;
        let files = pod.flags(flag).map(|file| pod.on_node(Path::new(file)));
        let mut files = files.peekable();
        let first = files.peek()?.clone();
        let root = state.root();
        let names_pair = files.any(|file| root.is_same_entry(&file, expected));
        (!names_pair).then(|| {
            format!(
                "{component} uses {} (--{flag} in {}), and nodepki changes {expected} (name that file in the flag)",
                root.node_path(first),
                root.node_path(pod.path.as_path())
            )
        })
    });
    troubles.collect()
}

/// Returns the state of this node's pair, as its Node shall contain it, and the components that were rolled back.
///
/// # Errors
/// The records of the node cannot be read. An unusable pair is the failure of the proof, and so is one that a component does
/// not use.
pub(super) fn proof(
    root: &NodeRoot,
    setup: &RunSetup,
) -> Result<(NodeProof, Vec<String>), Failure> {
    let spec = spec(setup)?;
    let pair = PresentPair::read(root, spec);
    let trouble = flag_trouble(&setup.state(root), spec);
    let mut steps = root.rotation_steps()?;
    let (restarts, rolled_back) = evidence::unsettled(root, SUBJECT)?;
    let rollbacks = rolled_back.iter().map(|one| {
        format!(
            "{} did not become ready after its restart, and the old files were restored ({}); find out why",
            one.component, one.why
        )
    });
    let (mut trusted_by_all, mut under, mut failure) = match &pair {
        Ok(pair) => (
            pair.public.iter().map(digest).collect(),
            BTreeSet::from([digest(pair.private.public_key())]),
            None,
        ),
        Err(failure) => (BTreeSet::new(), BTreeSet::new(), Some(failure.one_line())),
    };
    let trusted_by_any = trusted_by_all.clone();
    if !trouble.is_empty() {
        trusted_by_all = BTreeSet::new();
        under = BTreeSet::new();
        failure = failure.or_else(|| Some(trouble.join("; ")));
    }
    let proof = NodeProof {
        begun: steps.begun.remove(&SUBJECT),
        trusted_by_all,
        trusted_by_any,
        certificates_under: under,
        restarts,
        switched: steps.switched,
        failure,
        ..NodeProof::default()
    };
    Ok((proof, rollbacks.collect()))
}

/// Adds to a proof the public key with which others encrypt for this node.
pub(super) fn with_sealing_key(root: &NodeRoot, proof: NodeProof) -> Result<NodeProof, Failure> {
    Ok(NodeProof {
        sealing_key: Some(sealed::sealing_key(root)?),
        ..proof
    })
}

/// Returns the private keys of the rotation in the state directory.
pub(super) fn kept(
    root: &NodeRoot,
    rotation: &AuthorityRotation,
) -> Result<Option<ServiceAccountKeys>, Failure> {
    let kept = root.service_account_keys()?;
    Ok(kept.filter(|kept| kept.rotation == rotation.id))
}

/// Returns the record of the private keys of a rotation.
///
/// # Errors
/// They are not those of the rotation, in a clause.
pub(super) fn verified_keys(
    rotation: &AuthorityRotation,
    keys: Zeroizing<Vec<u8>>,
) -> Result<ServiceAccountKeys, String> {
    for rotated in [&rotation.old, &rotation.new] {
        if private_key(&keys, &rotated.sha256).is_none() {
            return Err(format!(
                "it does not contain the private key of sha256:{}",
                rotated.sha256
            ));
        }
    }
    Ok(ServiceAccountKeys {
        rotation: rotation.id.clone(),
        keys,
    })
}

/// Returns the text with both private keys.
pub(super) fn joined(old: &PrivateKey, new: &PrivateKey) -> Zeroizing<Vec<u8>> {
    let parts = [old.to_pem(), new.to_pem()];
    let length = parts.iter().map(|part| part.len()).sum();
    // Allocated at once: a growing buffer would leave copies in freed memory.
    let mut text = Zeroizing::new(Vec::with_capacity(length));
    for part in &parts {
        text.extend_from_slice(part.as_bytes());
    }
    text
}

fn private_key(keys: &[u8], sha256: &str) -> Option<PrivateKey> {
    let keys = PrivateKey::all_from_pem(keys).ok()?;
    keys.into_iter()
        .find(|key| digest(key.public_key()) == sha256)
}

/// Returns why the node cannot take a step yet: the private keys have not reached it.
pub(super) fn lacks_keys(
    root: &NodeRoot,
    rotation: &AuthorityRotation,
    own: &NodeProof,
) -> Result<Option<String>, Failure> {
    let has_key = own.certificates_under.contains(&rotation.issuing().sha256);
    let is_equipped = if rotation.phase.trusts_both() {
        // Either key may have to sign: the phase can be undone.
        kept(root, rotation)?.is_some()
    } else {
        has_key || kept(root, rotation)?.is_some()
    };
    if is_equipped {
        return Ok(None);
    }
    let lack = if rotation.phase.is_end() {
        "the rotation has ended, and its key did not reach this node (copy both sa.key and sa.pub from another control-plane node)"
    } else {
        "the private keys of the rotation have not reached this node yet"
    };
    Ok(Some(lack.to_owned()))
}

/// Result of a part.
pub(super) struct PairChange {
    /// The actions taken, in sentences.
    pub(super) done: Vec<String>,
    /// Files that were written.
    pub(super) written: Vec<PathBuf>,
}

/// Takes one part; `None` only records that the phase has begun, since its requirements are met.
///
/// # Errors
/// Nothing was changed.
pub(super) fn take(
    root: &NodeRoot,
    setup: &RunSetup,
    rotation: &AuthorityRotation,
    part: Option<&NodeStep>,
    clock: Clock,
) -> Result<PairChange, Failure> {
    let spec = spec(setup)?;
    let trouble = flag_trouble(&setup.state(root), spec);
    // The record of a phase replaces no file, so that the file which a flag names does not matter.
    if part.is_some() {
        Failure::require_none(trouble)?;
    }
    let (mut store, _) = agent::open_store(root, setup, "authority", clock)?;
    let now = clock();
    // Read under the lock, as another run may just have replaced the pair.
    let pair = PresentPair::read(root, spec)?;
    let mut steps = root.rotation_steps()?;
    let mut commit = Commit::new();
    let mut done = Vec::new();
    match part {
        Some(NodeStep::Trust(sha256)) => {
            let key = named(rotation, sha256)?;
            let public = trusting(&pair, &key);
            replace_public(&mut commit, spec, &pair, &public, now);
            done.push(format!("{} contains sha256:{sha256}", spec.public));
        }
        Some(NodeStep::Reissue(sha256)) => {
            let kept = kept(root, rotation)?;
            let key = kept.and_then(|kept| private_key(&kept.keys, sha256));
            let Some(key) = key else {
                return Err(Failure::pending(format!(
                    "the private key of sha256:{sha256} has not reached this node yet"
                )));
            };
            replace_private(&mut commit, spec, &pair, &key, now);
            // Unique on this node: each change takes longer than a nanosecond.
            steps.switched = Some(now.unix_timestamp_nanos().to_string());
            done.push(format!("{} signs with sha256:{sha256}", spec.private));
        }
        Some(NodeStep::Remove(sha256)) => {
            let key = named(rotation, sha256)?;
            // kube-apiserver verifies with sa.pub, and would refuse every token that this node signs.
            if *pair.private.public_key() == key {
                return Err(Failure::refused(format!(
                    "{} is the key sha256:{sha256}",
                    spec.private
                )));
            }
            let mut public = pair.public.clone();
            public.retain(|one| *one != key);
            replace_public(&mut commit, spec, &pair, &public, now);
            done.push(format!("{} does not contain sha256:{sha256}", spec.public));
        }
        Some(NodeStep::Restart) | None => {
            done.push(format!(
                "recorded that this node meets the requirements of phase {}",
                rotation.phase
            ));
            done.extend(repeat_restarts(root, &mut commit, now)?);
        }
    }
    steps.begun.insert(SUBJECT, rotation.begun());
    commit.rotation_steps(&steps);
    let committed = store.commit(commit)?;
    failpoint::reached("authority:committed");
    let audited = AuditRecord {
        authority: Some(SUBJECT.to_string()),
        action: Some("rotate".to_owned()),
        reason: Some(done.join("; ")),
        ..AuditRecord::of(AuditEvent::AuthorityStep)
    };
    audit::append(root, now, &[audited]);
    Ok(PairChange {
        done,
        written: committed.written,
    })
}

/// Requests another restart of the components that were rolled back.
fn repeat_restarts(
    root: &NodeRoot,
    commit: &mut Commit,
    now: OffsetDateTime,
) -> Result<Option<String>, Failure> {
    let (_, rolled_back) = evidence::unsettled(root, SUBJECT)?;
    let names: Vec<&str> = rolled_back
        .iter()
        .map(|one| one.component.as_str())
        .collect();
    for one in &rolled_back {
        let causes = vec![ReplacedFile::ServiceAccount];
        commit.restart(Restart::due(one.component, now, causes));
    }
    Ok((!names.is_empty()).then(|| {
        format!(
            "restarted again with the files in place: {}",
            names.join(", ")
        )
    }))
}

fn named(rotation: &AuthorityRotation, sha256: &str) -> Result<PublicKey, Failure> {
    let mut both = [&rotation.old, &rotation.new].into_iter();
    let found = both.find(|rotated| rotated.sha256 == sha256);
    let found = found.ok_or_else(|| {
        Failure::refused(format!(
            "sha256:{sha256} is neither the old nor the new key"
        ))
    })?;
    public_key(found).map_err(Failure::refused)
}

/// Returns the trusted keys with another one: the key that signs is first.
fn trusting(pair: &PresentPair, key: &PublicKey) -> Vec<PublicKey> {
    let signing = pair.private.public_key();
    let others = pair.public.iter().chain([key]);
    let mut public = vec![signing.clone()];
    for other in others {
        if !public.contains(other) {
            public.push(other.clone());
        }
    }
    public
}

fn to_pem(public: &[PublicKey]) -> Vec<u8> {
    let pem: String = public.iter().map(PublicKey::to_pem).collect();
    pem.into_bytes()
}

fn replace_public(
    commit: &mut Commit,
    spec: &ServiceAccountSpec,
    pair: &PresentPair,
    public: &[PublicKey],
    now: OffsetDateTime,
) {
    commit.file(spec.public.clone(), to_pem(public), Mode::Public);
    commit.change(ReplacedFile::ServiceAccountPublic, spec.public.clone(), now);
    commit.trust_step(former(pair));
}

fn replace_private(
    commit: &mut Commit,
    spec: &ServiceAccountSpec,
    pair: &PresentPair,
    key: &PrivateKey,
    now: OffsetDateTime,
) {
    let mut public = vec![key.public_key().clone()];
    let others = pair.public.iter().filter(|one| *one != key.public_key());
    public.extend(others.cloned());
    let private = Zeroizing::new(key.to_pem().as_bytes().to_vec());
    commit.file(spec.private.clone(), private, Mode::Private);
    commit.file(spec.public.clone(), to_pem(&public), Mode::Public);
    for path in [&spec.private, &spec.public] {
        commit.change(ReplacedFile::ServiceAccount, path.clone(), now);
    }
    commit.trust_step(former(pair));
}

fn former(pair: &PresentPair) -> FormerTrust {
    FormerTrust {
        subject: SUBJECT,
        change: None,
        files: pair.former.clone(),
        kubeconfigs: Vec::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::spec::authority_rotation::RotationPhase;
    use crate::x509::KeyAlgorithm;

    fn key() -> PrivateKey {
        PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
    }

    fn between(old: &PrivateKey, new: &PrivateKey) -> AuthorityRotation {
        AuthorityRotation {
            token_lifetime: Some(60),
            ..AuthorityRotation::new(
                "1",
                SUBJECT,
                [old, new].map(|key| rotated(key.public_key())),
            )
        }
    }

    /// Returns a rotation with its private keys.
    pub(in crate::agent::authority) fn rotation() -> (AuthorityRotation, Zeroizing<Vec<u8>>) {
        let (old, new) = (key(), key());
        (between(&old, &new), joined(&old, &new))
    }

    /// Returns the proof of a node with this sealing key.
    pub(in crate::agent::authority) fn proof_with(sealing_key: &str) -> NodeProof {
        NodeProof {
            sealing_key: Some(sealing_key.to_owned()),
            ..NodeProof::default()
        }
    }

    fn pair(private: &PrivateKey, public: &[&PrivateKey]) -> PresentPair {
        PresentPair {
            private: PrivateKey::from_pem(private.to_pem().as_bytes()).unwrap(),
            public: public.iter().map(|key| key.public_key().clone()).collect(),
            former: Vec::new(),
        }
    }

    #[test]
    fn key_that_signs_is_first_in_public_file() {
        let (signing, new, other) = (key(), key(), key());
        let present = pair(&signing, &[&other, &signing]);
        let expected = [&signing, &other, &new].map(|key| key.public_key().clone());
        let public = trusting(&present, new.public_key());
        assert_eq!(public, expected);
        let again = pair(&signing, &[&signing, &other, &new]);
        assert_eq!(trusting(&again, new.public_key()), expected);
        assert_eq!(PublicKey::all_from_pem(&to_pem(&public)).unwrap(), expected);
    }

    #[test]
    fn reads_public_key_of_rotation_only_with_its_digest() {
        let (rotation, _) = rotation();
        let read = public_key(&rotation.new).unwrap();
        assert_eq!(rotated(&read), rotation.new);
        let other = RotatedCa {
            sha256: rotation.old.sha256.clone(),
            ..rotation.new.clone()
        };
        let refused = public_key(&other).unwrap_err();
        assert!(refused.contains("but is recorded with"), "{refused}");
        let several = RotatedCa {
            certificate: format!("{}{}", rotation.old.certificate, rotation.new.certificate),
            ..rotation.new.clone()
        };
        let refused = public_key(&several).unwrap_err();
        assert!(refused.ends_with("must be one public key, and there are 2"));
        let damaged = RotatedCa {
            certificate: String::new(),
            ..rotation.new
        };
        let refused = public_key(&damaged).unwrap_err();
        assert!(refused.contains("is unreadable: "), "{refused}");
    }

    #[test]
    fn requires_both_private_keys_while_rotation_can_be_undone() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let (trust, keys) = rotation();
        let own = NodeProof {
            certificates_under: BTreeSet::from([trust.new.sha256.clone()]),
            ..proof_with("key")
        };
        let lacks = |rotation: &AuthorityRotation| lacks_keys(&root, rotation, &own).unwrap();
        let retire = trust.in_phase(RotationPhase::Retire);
        let undone = trust.in_phase(RotationPhase::Undone);
        assert_eq!(
            lacks(&trust).unwrap(),
            "the private keys of the rotation have not reached this node yet"
        );
        assert_eq!(lacks(&retire), None);
        let ended = lacks(&undone).unwrap();
        assert!(ended.starts_with("the rotation has ended"), "{ended}");

        let kept = verified_keys(&trust, keys).unwrap();
        root.keep_service_account_keys(&kept).unwrap();
        assert_eq!(lacks(&trust), None);
        assert_eq!(lacks(&undone), None);
        let next = AuthorityRotation {
            id: "2".to_owned(),
            ..trust
        };
        assert!(lacks(&next).is_some());
    }

    #[test]
    fn names_flags_that_do_not_name_the_pair() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let pki = Path::new("/etc/kubernetes/pki");
        let spec = ServiceAccountSpec {
            private: pki.join("sa.key").into(),
            public: pki.join("sa.pub").into(),
            key: KeyAlgorithm::EcdsaP256,
            may_make: false,
        };
        let manifest = dir
            .path()
            .join("etc/kubernetes/manifests/kube-apiserver.yaml");
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        std::fs::create_dir_all(root.on_this_machine("/data/pki")).unwrap();
        std::os::unix::fs::symlink("/data/pki", root.on_this_machine(pki)).unwrap();
        let shown = |path: &str| root.on_this_machine(path).display().to_string();
        let other_key = format!(
            "kube-apiserver uses {} (--service-account-signing-key-file in ",
            shown("/data/pki/other.key")
        );
        let other_public = format!(
            "kube-apiserver uses {} (--service-account-key-file in ",
            shown("/data/pki/other.pub")
        );
        let own = "--service-account-key-file=/etc/kubernetes/pki/sa.pub";
        let other = "--service-account-key-file=/etc/kubernetes/pki/other.pub";
        let signing = "--service-account-signing-key-file=/etc/kubernetes/pki/other.key";
        for (flags, expected) in [
            (vec![], vec![]),
            (vec![own], vec![]),
            // kube-apiserver verifies with the keys of all files.
            (vec![own, other], vec![]),
            (vec![other], vec![other_public]),
            (vec![own, signing], vec![other_key]),
        ] {
            // The directory is a link, and the pod mounts what it leads to.
            let mount = serde_json::json!({"name": "pki", "mountPath": pki});
            let container = serde_json::json!({"command": flags, "volumeMounts": [mount]});
            let volume = serde_json::json!({"name": "pki", "hostPath": {"path": "/data/pki"}});
            let pod = serde_json::json!({"spec": {"containers": [container], "volumes": [volume]}});
            std::fs::write(&manifest, pod.to_string()).unwrap();
            let state = NodeState::new(&root, crate::spec::Layout::default());
            let found = flag_trouble(&state, &spec);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(&expected), "{found}");
            }
        }
    }
}
