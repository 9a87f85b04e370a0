//! Compares the CA Secrets with the CAs that the workload cluster trusts: no controller of Cluster API does, and a machine
//! that is created between a step on the nodes and its Secrets gets the wrong CA certificates.
//!
//! kube-controller-manager publishes its `ca.crt` in every namespace (`kube-root-ca.crt`, `publisher.go` in
//! `pkg/controller/certificates/rootcacertpublisher`). kube-apiserver publishes the front-proxy CA
//! (`extension-apiserver-authentication`), with all certificates that were there before and have not expired
//! (`combineCertLists` in `pkg/controlplane/controller/clusterauthenticationtrust`), so only a certificate that is
//! absent there is a difference. No object contains the etcd CA.
//!
//! Differences are notes: they are usual between two steps of a change, and the conditions do not depend on them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::conditions::Findings;
use super::etcd_clients::without_client_authority;
use super::migrate;
use super::secrets::{ClusterTarget, Object, Purpose};
use crate::cluster::api::{Api, ApiAccess, ApiError, CONFIG_MAP};
use crate::http::Files;
use crate::kube::names::{AUTHENTICATION_CONFIG_MAP, FRONT_PROXY_CA_FILE};
use crate::x509::{Certificate, TrustBundle};
use crate::yaml::schema::SecretFile;

const NAMESPACE: &str = "kube-system";
/// Time limit of a request to the workload cluster, which may be down while its Secrets are checked.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The kubeconfig in CLUSTER-kubeconfig as the only file: one that names files of this machine cannot be used.
struct HeldKubeconfig {
    /// Name of the Secret, for messages.
    name: PathBuf,
    content: Zeroizing<Vec<u8>>,
}

impl Files for HeldKubeconfig {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        if path == self.name {
            Ok(self.content.clone())
        } else {
            Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the kubeconfig in a Secret must contain its certificates and keys",
            ))
        }
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

/// Adds notes to the findings: each difference, or why the workload cluster cannot be read.
pub(super) async fn compare(
    target: &ClusterTarget,
    found: &BTreeMap<Purpose, Object>,
    findings: &mut Findings,
) {
    let kubeconfig = target.name(Purpose::Kubeconfig);
    let content = found
        .get(&Purpose::Kubeconfig)
        .and_then(|object| object.data("value"));
    // The conditions report a missing kubeconfig.
    let Some(content) = content else { return };
    let compared = async {
        let api = workload(&kubeconfig, content)?;
        compare_cluster_ca(&api, target, found, findings).await?;
        compare_front_proxy_ca(&api, target, found, findings).await
    };
    if let Err(error) = compared.await {
        findings.note(
            &target.name(Purpose::Ca),
            format!("it was not compared with the workload cluster: {error}"),
        );
    }
}

fn workload(kubeconfig: &str, content: Zeroizing<Vec<u8>>) -> Result<Api, ApiError> {
    let name = PathBuf::from(kubeconfig);
    let access = ApiAccess::Kubeconfig {
        file: SecretFile::Path(name.clone()),
        timeout: TIMEOUT,
    };
    let files = Rc::new(HeldKubeconfig { name, content });
    Api::new(access, files, None, OffsetDateTime::now_utc)
}

async fn compare_cluster_ca(
    api: &Api,
    target: &ClusterTarget,
    found: &BTreeMap<Purpose, Object>,
    findings: &mut Findings,
) -> Result<(), ApiError> {
    let published = published(api, "kube-root-ca.crt", "ca.crt").await?;
    let name = target.name(Purpose::Ca);
    let Some(published) = published else {
        findings.note(
            &name,
            "it was not compared: the workload cluster has no ConfigMap kube-system/kube-root-ca.crt (kube-controller-manager publishes it)".to_owned(),
        );
        return Ok(());
    };
    let Some(secret) = certificates(found, Purpose::Ca) else {
        return Ok(());
    };
    if let Some(missing) = without(&published, &secret) {
        findings.note(&name, format!(
            "it lacks {missing}, which the control plane trusts (copy the CA files of a node to --ca-dir and run nodepki capi secrets --apply before the next machine is created)"
        ));
    }
    if let Some(unknown) = without(&secret, &published) {
        findings.note(&name, format!(
            "it contains {unknown}, which is not in ca.crt of kube-controller-manager (complete the step of the change of the CA on the nodes, or run nodepki capi secrets --apply if the CA was retired)"
        ));
    }
    Ok(())
}

async fn compare_front_proxy_ca(
    api: &Api,
    target: &ClusterTarget,
    found: &BTreeMap<Purpose, Object>,
    findings: &mut Findings,
) -> Result<(), ApiError> {
    let published = published(api, AUTHENTICATION_CONFIG_MAP, FRONT_PROXY_CA_FILE).await?;
    let (Some(secret), Some(published)) = (certificates(found, Purpose::Proxy), published) else {
        return Ok(());
    };
    if let Some(unknown) = without(&secret, &published) {
        findings.note(&target.name(Purpose::Proxy), format!(
            "it contains {unknown}, which kube-apiserver does not trust for the front proxy (complete the step of the change of the CA on the nodes)"
        ));
    }
    Ok(())
}

/// Returns the certificates in an entry of a ConfigMap of the workload cluster; `None` if there are none.
async fn published(api: &Api, name: &str, entry: &str) -> Result<Option<TrustBundle>, ApiError> {
    let object = api.read(&CONFIG_MAP, Some(NAMESPACE), name).await?;
    let pem = object
        .as_ref()
        .and_then(|object| object.get("data")?.get(entry))
        .and_then(Value::as_str);
    Ok(pem.and_then(|pem| TrustBundle::from_pem(pem.as_bytes()).ok()))
}

/// Returns the certificates of an authority's Secret without the etcd client CA.
fn certificates(found: &BTreeMap<Purpose, Object>, purpose: Purpose) -> Option<TrustBundle> {
    let bundle = migrate::certificates(found.get(&purpose)?);
    bundle.ok().map(without_client_authority)
}

/// Returns the certificates of `one` that `other` does not contain; `None` if it contains all.
fn without(one: &TrustBundle, other: &TrustBundle) -> Option<TrustBundle> {
    let is_missing = |certificate: &&Certificate| !other.certificates().contains(certificate);
    let missing = one.certificates().iter().filter(is_missing).cloned();
    TrustBundle::from_certificates(missing.collect()).ok()
}
