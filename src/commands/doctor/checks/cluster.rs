//! What only the cluster can tell, and what follows from it. Asked with the kubeconfig of the command line; the
//! questions are reads and access reviews, nothing is changed.

use serde_json::{Value, json};

use super::leaves::organizations;
use super::picture::Picture;
use super::{Note, Severity};
use crate::agent::load;
use crate::agent::{ExitCode, Failure};
use crate::cluster::api::{Api, Resource};
use crate::config::Argument;
use crate::kube::jwks;
use crate::kube::names::CertName;
use crate::spec::assess::may_be_in_masters;
use crate::store::Root;

const ACCESS_REVIEW: Resource = Resource {
    group: "authorization.k8s.io",
    version: "v1",
    plural: "subjectaccessreviews",
    kind: "SubjectAccessReview",
};

pub(super) use crate::spec::MASTERS;

/// What the cluster said.
#[derive(Default)]
pub(super) struct Answers {
    /// Why nothing more could be asked.
    pub(super) unreachable: Vec<String>,
    /// Questions without an answer.
    pub(super) refused: Vec<String>,
    /// The keys that service-account tokens are accepted of.
    pub(super) jwks: Option<Value>,
    /// Whether the subject of apiserver-kubelet-client may reach kubelets.
    pub(super) kubelet_client: Option<bool>,
    /// Whether the subject of admin.conf may do everything.
    pub(super) admin: Option<bool>,
}

pub(super) async fn ask(root: &Root, kubeconfig: &Argument, picture: &Picture) -> Answers {
    let mut answers = Answers::default();
    match load::cluster(root, kubeconfig) {
        Ok(api) => {
            if let Err(failure) = ask_all(&api, picture, &mut answers).await {
                answers.unreachable = failure.messages;
            }
        }
        Err(failure) => answers.unreachable = failure.messages,
    }
    answers
}

async fn ask_all(api: &Api, picture: &Picture, answers: &mut Answers) -> Result<(), Failure> {
    if picture.service_account.present().is_some() {
        let asked = api.document(jwks::PATH).await;
        let asked =
            asked.map_err(|error| Failure::of_cluster("reading the service-account keys", &error));
        answers.jwks = answers.take(asked)?;
    }
    let nodes = json!({"verb": "get", "resource": "nodes", "subresource": "proxy"});
    if let Some(review) = review(picture, CertName::ApiserverKubeletClient, nodes) {
        let asked = allowed(api, &review, "asking what apiserver-kubelet-client may do").await;
        answers.kubelet_client = answers.take(asked)?;
    }
    let everything = json!({"verb": "*", "group": "*", "resource": "*"});
    if let Some(review) = review(picture, CertName::AdminConf, everything) {
        let asked = allowed(api, &review, "asking what admin.conf may do").await;
        answers.admin = answers.take(asked)?;
    }
    Ok(())
}

impl Answers {
    /// An answer, or none where the cluster refuses just this one; anything else ends the asking.
    fn take<T>(&mut self, asked: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match asked {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.code == ExitCode::NotPermitted => {
                self.refused.extend(failure.messages);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Asks about the user that a certificate makes one.
fn review(picture: &Picture, name: CertName, attributes: Value) -> Option<Value> {
    let chain = picture.leaf(name)?.chain.present()?;
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
    let answer = answer.map_err(|error| Failure::of_cluster(doing, &error))?;
    Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
}

// ---- the checks ----

pub(super) fn unreachable(picture: &Picture) -> Vec<Note> {
    let answers = picture.answers.iter();
    answers
        .flat_map(|answers| &answers.unreachable)
        .map(|words| {
            Note::error(
                words,
                "see to that, or leave --kubeconfig out: all other findings are of this node alone",
            )
        })
        .collect()
}

pub(super) fn refused(picture: &Picture) -> Vec<Note> {
    let answers = picture.answers.iter();
    answers
        .flat_map(|answers| &answers.refused)
        .map(|words| Note::warning(words, "use the kubeconfig of an administrator"))
        .collect()
}

pub(super) fn service_account(picture: &Picture) -> Vec<Note> {
    const FIX: &str = "copy both sa.key and sa.pub from another control-plane node, whose tokens are accepted, then restart kube-apiserver and kube-controller-manager here";
    let jwks = picture
        .answers
        .as_ref()
        .and_then(|answers| answers.jwks.as_ref());
    let (Some(jwks), Some(key)) = (jwks, picture.service_account.present()) else {
        return Vec::new();
    };
    let evidence = match jwks::knows(jwks, key) {
        Ok(true) => return Vec::new(),
        Ok(false) => format!(
            "sa.key has the key id {}, the cluster knows {}",
            jwks::key_id(key),
            jwks::key_ids(jwks).unwrap_or_default().join(", ")
        ),
        Err(error) => format!(
            "what the cluster serves at {} cannot be used: {error}",
            jwks::PATH
        ),
    };
    vec![Note::error(evidence, FIX)]
}

pub(super) fn kubelet_client(picture: &Picture) -> Vec<Note> {
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
        "reach kubelets (get nodes/proxy)",
        &groups,
        binding,
    )
}

pub(super) fn admin(picture: &Picture) -> Vec<Note> {
    let Some(groups) = organizations(picture, CertName::AdminConf) else {
        return Vec::new();
    };
    if groups.iter().any(|group| group == MASTERS) {
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

pub(super) fn masters(picture: &Picture) -> Vec<Note> {
    let leaves = picture.leaves.keys();
    leaves
        .filter(|name| **name != CertName::SuperAdminConf)
        .filter(|name| {
            let groups = organizations(picture, **name).unwrap_or_default();
            groups.iter().any(|group| group == MASTERS)
        })
        .map(|name| {
            let words = format!("{name}: O={MASTERS}");
            match masters_severity(picture, *name) {
                Severity::Error => Note::error(
                    words,
                    "no version of kubeadm makes it so: find out who signed it, have it revoked where the API server checks that, and run `nodepki bootstrap`, which issues it anew; until it expires its holder is the cluster's administrator",
                ),
                severity => Note::new(
                    severity,
                    words,
                    format!("kubeadm before 1.29 made it so; once the cluster has kubeadm's role bindings run `nodepki renew --name {name}`, which issues it with the subject of the configured version"),
                ),
            }
        })
        .collect()
}

fn masters_severity(picture: &Picture, name: CertName) -> Severity {
    if !may_be_in_masters(name) {
        return Severity::Error;
    }
    let plan = picture.configuration.plan.as_ref();
    let wanted = plan.and_then(|plan| plan.cert(name));
    let of_version = wanted.is_none_or(|spec| {
        let mut groups = spec.profile.subject.organizations.iter();
        groups.any(|group| group == MASTERS)
    });
    match of_version {
        true => Severity::Info,
        false => Severity::Warning,
    }
}

fn rbac(
    picture: &Picture,
    answer: Option<bool>,
    who: &str,
    what: &str,
    groups: &[String],
    binding: &str,
) -> Vec<Note> {
    let group = match groups {
        [] => "no group".to_owned(),
        groups => groups.join(", "),
    };
    match answer {
        Some(true) => Vec::new(),
        Some(false) => vec![Note::error(
            format!("{who} (O: {group}) may not {what}"),
            format!(
                "apply this with `kubectl --kubeconfig {} apply -f FILE`, or as another administrator:\n{}",
                picture.here("/etc/kubernetes/super-admin.conf".as_ref()),
                binding.trim_end()
            ),
        )],
        None => vec![Note::info(
            format!(
                "{who} (O: {group}) may {what} only where the cluster has a role binding for it, which was not looked for"
            ),
            "run nodepki doctor with --kubeconfig FILE of an administrator",
        )],
    }
}

const CLUSTER_ADMINS: &str = "kubeadm:cluster-admins";

/// As kubeadm makes them.
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
