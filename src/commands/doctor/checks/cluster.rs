//! Checks that need the cluster. The requests are reads and access reviews with the kubeconfig of the command line;
//! nothing is changed.

use serde_json::{Value, json};

use super::finding::{CheckNote, FindingSeverity};
use super::leaves::organizations;
use super::picture::Picture;
use crate::agent::{Failure, load};
use crate::cluster::api::{Api, Resource};
use crate::config::Argument;
use crate::kube::jwks;
use crate::kube::names::CertName;
use crate::kube::paths::SUPER_ADMIN_CONF;
use crate::kubelets::{KubeletPolicy, rbac};
use crate::spec::SYSTEM_MASTERS;
use crate::spec::assess::may_be_in_masters;
use crate::store::NodeRoot;

pub(super) use super::answers::Answers;

const ACCESS_REVIEW: Resource = Resource {
    group: "authorization.k8s.io",
    version: "v1",
    plural: "subjectaccessreviews",
    kind: "SubjectAccessReview",
};

/// Asks the cluster for everything that the checks use.
pub(super) async fn ask(root: &NodeRoot, kubeconfig: &Argument, picture: &Picture) -> Answers {
    let mut answers = Answers::default();
    match load::cluster(root, kubeconfig) {
        Ok(api) => {
            if let Err(failure) = ask_all(&api, picture, &mut answers).await {
                answers.unreachable = failure.texts();
            }
        }
        Err(failure) => answers.unreachable = failure.texts(),
    }
    answers
}

async fn ask_all(api: &Api, picture: &Picture, answers: &mut Answers) -> Result<(), Failure> {
    if picture.service_account.present().is_some() {
        let answer = api.document(jwks::JWKS_PATH).await;
        let answer =
            answer.map_err(|error| Failure::of_cluster("reading the service-account keys", error));
        answers.jwks = answers.take(answer)?;
    }
    let nodes = json!({"verb": "get", "resource": "nodes", "subresource": "proxy"});
    if let Some(review) = review(picture, CertName::ApiserverKubeletClient, nodes) {
        let doing = "reviewing the permissions of apiserver-kubelet-client";
        answers.kubelet_client = answers.take(allowed(api, &review, doing).await)?;
    }
    if let Some(policy) = &picture.configuration.kubelets {
        ask_for_kubelet_signer(api, picture, policy, answers).await?;
    }
    let everything = json!({"verb": "*", "group": "*", "resource": "*"});
    if let Some(review) = review(picture, CertName::AdminConf, everything) {
        let doing = "reviewing the permissions of admin.conf";
        answers.admin = answers.take(allowed(api, &review, doing).await)?;
    }
    Ok(())
}

/// Reviews every right that `config signer-setup kubelets` grants.
async fn ask_for_kubelet_signer(
    api: &Api,
    picture: &Picture,
    policy: &KubeletPolicy,
    answers: &mut Answers,
) -> Result<(), Failure> {
    for (right, attributes) in rbac::rights(policy) {
        let Some(review) = review(picture, CertName::NodepkiConf, attributes) else {
            return Ok(());
        };
        let doing = "reviewing the permissions of nodepki.conf";
        match answers.take(allowed(api, &review, doing).await)? {
            Some(true) => {}
            Some(false) => answers.missing_for_kubelets.push(right),
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Returns an access review for the user that a certificate authenticates.
fn review(picture: &Picture, name: CertName, attributes: Value) -> Option<Value> {
    let chain = picture.chain(name)?;
    let user = chain.leaf().subject().values("CN").next()?;
    let mut groups = organizations(picture, name)?;
    groups.push("system:authenticated".to_owned());
    Some(json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
    }))
}

async fn allowed(api: &Api, review: &Value, doing: &str) -> Result<bool, Failure> {
    let answer = api.create(&ACCESS_REVIEW, None, review).await;
    let answer = answer.map_err(|error| Failure::of_cluster(doing, error))?;
    Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
}

// ---- the checks ----

pub(super) fn unreachable(picture: &Picture) -> Vec<CheckNote> {
    let answers = picture.answers.iter();
    answers
        .flat_map(|answers| &answers.unreachable)
        .map(|message| {
            CheckNote::error(
                message,
                "correct this, or omit --kubeconfig: all other findings concern this node only",
            )
        })
        .collect()
}

pub(super) fn refused(picture: &Picture) -> Vec<CheckNote> {
    let answers = picture.answers.iter();
    answers
        .flat_map(|answers| &answers.refused)
        .map(|message| CheckNote::warning(message, "use the kubeconfig of an administrator"))
        .collect()
}

pub(super) fn service_account(picture: &Picture) -> Vec<CheckNote> {
    const FIX: &str = "copy both sa.key and sa.pub from a control-plane node whose tokens are accepted, then restart kube-apiserver and kube-controller-manager here";
    let jwks = picture
        .answers
        .as_ref()
        .and_then(|answers| answers.jwks.as_ref());
    let (Some(jwks), Some(key)) = (jwks, picture.service_account.present()) else {
        return Vec::new();
    };
    let evidence = match jwks::contains_key(jwks, key) {
        Ok(true) => return Vec::new(),
        Ok(false) => {
            let (id, ids) = (jwks::key_id(key), jwks::key_ids(jwks).unwrap_or_default());
            if ids.contains(&id.as_str()) {
                format!("sa.key has the key id {id}, under which the cluster publishes another key")
            } else {
                format!(
                    "sa.key has the key id {id}, but the cluster has {}",
                    ids.join(", ")
                )
            }
        }
        Err(error) => format!(
            "the response of the cluster for {} cannot be used: {error}",
            jwks::JWKS_PATH
        ),
    };
    vec![CheckNote::error(evidence, FIX)]
}

pub(super) fn kubelet_client(picture: &Picture) -> Vec<CheckNote> {
    let Some(groups) = organizations(picture, CertName::ApiserverKubeletClient) else {
        return Vec::new();
    };
    let binding = match groups.first().map(String::as_str) {
        None => KUBELET_API_ADMIN,
        Some(CLUSTER_ADMINS) => CLUSTER_ADMINS_BINDING,
        Some(_) => return Vec::new(),
    };
    rbac(
        picture,
        picture
            .answers
            .as_ref()
            .and_then(|answers| answers.kubelet_client),
        "apiserver-kubelet-client",
        "access kubelets (get nodes/proxy)",
        &groups,
        binding,
    )
}

pub(super) fn kubelet_signer(picture: &Picture) -> Vec<CheckNote> {
    let answers = picture.answers.iter();
    answers
        .flat_map(|answers| &answers.missing_for_kubelets)
        .map(|right| {
            CheckNote::error(
                format!("nodepki.conf is not allowed to {right}"),
                "run `nodepki config signer-setup kubelets` and apply its output with kubectl",
            )
        })
        .collect()
}

pub(super) fn admin(picture: &Picture) -> Vec<CheckNote> {
    let Some(groups) = organizations(picture, CertName::AdminConf) else {
        return Vec::new();
    };
    if groups.iter().any(|group| group == SYSTEM_MASTERS) {
        return Vec::new();
    }
    rbac(
        picture,
        picture.answers.as_ref().and_then(|answers| answers.admin),
        "admin.conf",
        "do everything",
        &groups,
        CLUSTER_ADMINS_BINDING,
    )
}

pub(super) fn masters(picture: &Picture) -> Vec<CheckNote> {
    let leaves = picture.leaves.keys();
    leaves
        .filter(|name| **name != CertName::SuperAdminConf)
        .filter(|name| {
            let groups = organizations(picture, **name).unwrap_or_default();
            groups.iter().any(|group| group == SYSTEM_MASTERS)
        })
        .map(|name| {
            let evidence = format!("{name}: O={SYSTEM_MASTERS}");
            match masters_severity(picture, *name) {
                FindingSeverity::Error => CheckNote::error(
                    evidence,
                    "no version of kubeadm uses this group here: find out which signer issued the certificate, have it revoked if the API server checks revocation, and run `nodepki bootstrap`, which issues a new one; until the certificate expires, its holder is an administrator of the cluster",
                ),
                severity => CheckNote::new(
                    severity,
                    evidence,
                    format!("kubeadm before 1.29 used this group; once the cluster has kubeadm's role bindings, run `nodepki renew --name {name}`, which uses the subject of the configured version"),
                ),
            }
        })
        .collect()
}

fn masters_severity(picture: &Picture, name: CertName) -> FindingSeverity {
    if !may_be_in_masters(name) {
        return FindingSeverity::Error;
    }
    let plan = picture.configuration.plan.as_ref();
    let wanted = plan.and_then(|plan| plan.cert(name));
    let of_version = wanted.is_none_or(|spec| {
        let mut groups = spec.requested.profile.subject.organizations.iter();
        groups.any(|group| group == SYSTEM_MASTERS)
    });
    if of_version {
        FindingSeverity::Info
    } else {
        FindingSeverity::Warning
    }
}

fn rbac(
    picture: &Picture,
    answer: Option<bool>,
    who: &str,
    what: &str,
    groups: &[String],
    binding: &str,
) -> Vec<CheckNote> {
    let group = match groups {
        [] => "no group".to_owned(),
        groups => groups.join(", "),
    };
    match answer {
        Some(true) => Vec::new(),
        Some(false) => vec![CheckNote::error(
            format!("{who} (O: {group}) is not allowed to {what}"),
            format!(
                "apply this with `kubectl --kubeconfig {} apply -f FILE`, or as another administrator:\n{}",
                picture.here(SUPER_ADMIN_CONF.as_ref()),
                binding.trim_end()
            ),
        )],
        None => vec![CheckNote::info(
            format!(
                "{who} (O: {group}) is allowed to {what} only if the cluster has a role binding for it, which was not checked"
            ),
            "run nodepki doctor with --kubeconfig FILE of an administrator",
        )],
    }
}

const CLUSTER_ADMINS: &str = "kubeadm:cluster-admins";

// Role bindings as kubeadm creates them.

const KUBELET_API_ADMIN: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kubeadm:apiserver-kubelet-client
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:kubelet-api-admin
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: kube-apiserver-kubelet-client
";
const CLUSTER_ADMINS_BINDING: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kubeadm:cluster-admins
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: cluster-admin
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: kubeadm:cluster-admins
";
