//! The leader of a change of a CA or of the service-account key in the whole cluster: writes the next phase once every node has proven the present one.
//!
//! One leader is enough, and two do no harm: a phase is written only over the version that was read. Before a phase that
//! removes the ability to verify from a client that has not followed, the leader also updates `cluster-info` and waits for
//! the ConfigMaps that other programs publish. After the end every control-plane node removes the other CA from what
//! kube-apiserver publishes.

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::cluster;
use super::objects::{self, RotationMap};
use super::rotate::certificate;
use crate::cluster::api::{Api, ApiError, CONFIG_MAP};
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::{AUTHENTICATION_CONFIG_MAP, Authority, SYSTEM_NAMESPACE};
use crate::spec::authority_rotation::{
    AuthorityRotation, LeaderDecision, LeaderHold, RotationPhase, RotationSubject, decide_phase,
};
use crate::x509::{Certificate, certificates_of};

const PUBLIC_NAMESPACE: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";

/// What the leader has done about one rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// It has written this phase.
    Advanced(RotationPhase),
    /// It waits for this, in words.
    Waits(String),
    /// It waits for a time, in words.
    WaitsForTime(String),
}

/// Takes the next action for each rotation that has not ended.
pub(super) async fn lead(
    api: &Api,
    now: OffsetDateTime,
) -> Result<Vec<(AuthorityRotation, Led)>, ApiError> {
    let rotations = RotationMap::read(api).await?.rotations().rotations;
    let mut led = Vec::new();
    for rotation in rotations.into_values() {
        if rotation.phase.is_end() {
            continue;
        }
        let proofs = objects::list_proofs(api, rotation.subject).await?;
        let done = match decide_phase(&rotation, &proofs, now) {
            LeaderDecision::Hold(hold @ LeaderHold::Tokens(_)) => {
                Led::WaitsForTime(hold.to_string())
            }
            LeaderDecision::Hold(hold) => Led::Waits(hold.to_string()),
            LeaderDecision::Advance(next) => match prepare(api, &rotation, next).await {
                Ok(None) => write(api, &rotation, rotation.in_phase(next)).await?,
                Ok(Some(why)) => Led::Waits(why),
                Err(error) => Led::Waits(error.to_string()),
            },
            LeaderDecision::Wait(wait) => write(api, &rotation, rotation.waiting(wait)).await?,
        };
        led.push((rotation, done));
    }
    Ok(led)
}

/// Writes a rotation over the version that the decision is of. Each one is a write of its own, since the others change the
/// version.
async fn write(
    api: &Api,
    decided: &AuthorityRotation,
    next: AuthorityRotation,
) -> Result<Led, ApiError> {
    let map = RotationMap::read(api).await?;
    let is_unchanged = map.rotations().rotations.get(&decided.subject) == Some(decided);
    let is_written = is_unchanged && map.write(api, &next).await?;
    Ok(match is_written {
        true if next.phase == decided.phase => {
            Led::WaitsForTime("the wait for the tokens of the former key begins".to_owned())
        }
        true => Led::Advanced(next.phase),
        false => Led::Waits("the rotation has just been changed".to_owned()),
    })
}

/// Updates what the cluster publishes before `next`. Returns what has to be waited for.
async fn prepare(
    api: &Api,
    rotation: &AuthorityRotation,
    next: RotationPhase,
) -> Result<Option<String>, ApiError> {
    let RotationSubject::Authority(authority) = rotation.subject else {
        return Ok(None);
    };
    // Verified when it was read.
    let (Ok(old), Ok(new)) = (certificate(&rotation.old), certificate(&rotation.new)) else {
        return Ok(Some("its certificates are unreadable".to_owned()));
    };
    let (add, remove) = match next {
        RotationPhase::Activate => (Some(&new), None),
        RotationPhase::Done => (Some(&new), Some(&old)),
        RotationPhase::Undone => (Some(&old), Some(&new)),
        _ => return Ok(None),
    };
    if authority == Authority::Ca && !update_cluster_info(api, add, remove).await? {
        return Ok(Some(format!("{CLUSTER_INFO} has just been changed")));
    }
    Ok(unpublished(api, rotation, next).await)
}

/// Returns what other programs have to publish before `next`, in a sentence. A ConfigMap that cannot be read counts as one
/// without the new CA.
pub(super) async fn unpublished(
    api: &Api,
    rotation: &AuthorityRotation,
    next: RotationPhase,
) -> Option<String> {
    let authority = rotation.subject.authority()?;
    if next != RotationPhase::Activate {
        return None;
    }
    let new = certificate(&rotation.new).ok()?;
    match cluster::lacking(api, authority, &new).await {
        Ok(lacking) => (!lacking.is_empty()).then(|| lacking.join("; ")),
        Err(error) => Some(format!(
            "whether the cluster publishes the new CA is unknown: {error}"
        )),
    }
}

/// Changes the CA certificates of cluster-info. The signatures of bootstrap tokens in it are kube-controller-manager's.
/// Returns false if another client has changed it meanwhile.
async fn update_cluster_info(
    api: &Api,
    add: Option<&Certificate>,
    remove: Option<&Certificate>,
) -> Result<bool, ApiError> {
    let found = api
        .read(&CONFIG_MAP, Some(PUBLIC_NAMESPACE), CLUSTER_INFO)
        .await?;
    // A cluster without bootstrap tokens may have none.
    let Some(object) = found else {
        return Ok(true);
    };
    let text = object.pointer("/data/kubeconfig").and_then(Value::as_str);
    let Some(changed) = text.and_then(|text| with_authorities(text, add, remove)) else {
        return Ok(true);
    };
    let place = (PUBLIC_NAMESPACE, CLUSTER_INFO);
    replace_entry(api, place, &object, "kubeconfig", &changed).await
}

/// Removes the CA that nodes trust no longer after a rotation from what kube-apiserver publishes to other API servers: it
/// keeps every certificate there until it expires (`combineCertLists` in
/// `pkg/controlplane/controller/clusterauthenticationtrust`).
pub(super) async fn unpublish(api: &Api, ended: &AuthorityRotation) -> Result<(), ApiError> {
    let authority = ended.subject.authority();
    let key = authority.and_then(Authority::client_ca_flag);
    // Verified when it was read.
    let (Some(key), Some(Ok(removed))) = (key, ended.removed().map(certificate)) else {
        return Ok(());
    };
    let place = (SYSTEM_NAMESPACE, AUTHENTICATION_CONFIG_MAP);
    let found = api.read(&CONFIG_MAP, Some(place.0), place.1).await?;
    let Some(object) = found else {
        return Ok(());
    };
    let text = object.get("data").and_then(|data| data.get(key)?.as_str());
    if let Some(changed) = text.and_then(|text| without(text, &removed)) {
        replace_entry(api, place, &object, key, &changed).await?;
    }
    Ok(())
}

/// Returns the certificates of a text without one of them; `None` if it does not contain that one, or no other.
fn without(text: &str, removed: &Certificate) -> Option<String> {
    let found = certificates_of(text.as_bytes()).ok()?;
    let kept = found.iter().filter(|one| *one != removed);
    let pem: String = kept.map(Certificate::to_pem).collect();
    (found.contains(removed) && !pem.is_empty()).then_some(pem)
}

/// Replaces an entry of a ConfigMap. Returns false if another client has changed it meanwhile.
async fn replace_entry(
    api: &Api,
    (namespace, name): (&str, &str),
    object: &Value,
    key: &str,
    text: &str,
) -> Result<bool, ApiError> {
    let version = object.pointer("/metadata/resourceVersion");
    let patch = json!({"metadata": {"resourceVersion": version}, "data": {key: text}});
    let written = api.merge(&CONFIG_MAP, Some(namespace), name, &patch).await;
    match written {
        // The next attempt of the leader sees the other change.
        Err(ApiError::Refused(status)) if status.is_conflict() => Ok(false),
        written => written.map(|_| true),
    }
}

/// Returns the kubeconfig with other CA certificates; `None` if it has them, or names none.
fn with_authorities(
    text: &str,
    add: Option<&Certificate>,
    remove: Option<&Certificate>,
) -> Option<String> {
    let mut document = Kubeconfig::parse(text).ok()?;
    let found = certificates_of(&document.to_join().ok()?.authority?).ok()?;
    let mut wanted = found.clone();
    wanted.retain(|one| Some(one) != remove);
    wanted.extend(add.filter(|add| !found.contains(add)).cloned());
    if wanted == found {
        return None;
    }
    let pem: String = wanted.iter().map(Certificate::to_pem).collect();
    document.set_authority_to_join(&pem).ok()?;
    Some(document.to_yaml().to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::super::command;
    use super::*;
    use crate::agent::load;
    use crate::spec::authority_rotation::RotatedCa;
    use crate::store::NodeRoot;
    use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};

    fn rotated(name: &str) -> RotatedCa {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let year = std::time::Duration::from_secs(365 * 24 * 3600);
        let ca = CertificateAuthority::self_signed(name, key, OffsetDateTime::now_utc(), year);
        command::rotated(ca.unwrap().bundle().first())
    }

    /// Returns a rotation in phase `trust`.
    pub(in crate::agent::authority) fn rotation(authority: Authority) -> AuthorityRotation {
        AuthorityRotation::new("1", authority, ["old", "new"].map(rotated))
    }

    #[test]
    fn removes_one_certificate_unless_it_is_the_last() {
        let [old, new] = ["old", "new"].map(|name| certificate(&rotated(name)).unwrap());
        let both = format!("{}{}", old.to_pem(), new.to_pem());
        assert_eq!(without(&both, &old), Some(new.to_pem()));
        assert_eq!(without(&new.to_pem(), &old), None);
        assert_eq!(without(&old.to_pem(), &old), None);
        assert_eq!(without("", &old), None);
    }

    #[tokio::test]
    async fn waits_before_activate_while_configmaps_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = NodeRoot::open(dir.path()).unwrap();
        let api = load::cluster(&root, Path::new("/absent.conf")).unwrap();
        let rotation = rotation(Authority::FrontProxyCa);
        let waits = prepare(&api, &rotation, RotationPhase::Activate).await;
        let waits = waits.unwrap().unwrap();
        assert!(
            waits.starts_with("whether the cluster publishes the new CA is unknown: "),
            "{waits}"
        );
        let retire = prepare(&api, &rotation, RotationPhase::Retire).await;
        assert_eq!(retire.unwrap(), None);
    }
}
