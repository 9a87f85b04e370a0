//! What the control plane of this node says of itself: who serves with what, and whether it is well.
//!
//! Reads and asks; changes nothing. Where a component listens stands in its manifest. Every `Err` is the second half of
//! a sentence: what was seen.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::lease::{self, LEASE, NAMESPACE};
use super::pod::Pod;
use super::{Setup, chain_of};
use crate::agent::Clock;
use crate::cluster::api::{self, Access, Api};
use crate::http::{self, Call, Client, Endpoint, Files, Identity, Url};
use crate::kube::components::Component;
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::{Authority, CertName, NodePath};
use crate::spec::Output;
use crate::store::{Previous, Root};
use crate::x509::{Certificate, rfc3339};
use crate::yaml::schema::SecretFile;

/// Upper bound for the kubelet's metrics, bytes. A node with hundreds of pods has some hundred KiB.
const METRICS_LIMIT: usize = 16 << 20;
/// Namespace of the Leases by which kubelets report that they run.
const NODE_LEASES: &str = "kube-node-lease";

/// For one question.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kubelet's default; it listens on loopback and speaks plain HTTP.
const KUBELET_HEALTH: &str = "http://127.0.0.1:10248";
/// How much before its start client-go lets a certificate begin that a server makes for itself
/// (`GenerateSelfSignedCertKey`).
const BEFORE_START: Duration = Duration::from_secs(60 * 60);

pub(super) struct Probe<'a> {
    pub(super) root: &'a Root,
    pub(super) setup: &'a Setup,
    pub(super) clock: Clock,
}

/// The node's files.
struct NodeFiles(Root);

impl Files for NodeFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match self.0.read(path).map_err(io::Error::other)? {
            Some(content) => Ok(content.bytes),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "does not exist")),
        }
    }

    /// They are what nodepki itself keeps on the node, with the mode that an administrator gave them.
    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }

    fn shown(&self, path: &Path) -> PathBuf {
        self.0.on_this_machine(path)
    }
}

/// The node's files, with one of them as it was before.
struct FormerFile {
    files: Rc<dyn Files>,
    path: PathBuf,
    contents: Zeroizing<Vec<u8>>,
}

impl Files for FormerFile {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match path == self.path {
            true => Ok(self.contents.clone()),
            false => self.files.read(path),
        }
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match path == self.path {
            true => Ok(self.contents.clone()),
            false => self.files.read_secret(path),
        }
    }

    fn shown(&self, path: &Path) -> PathBuf {
        self.files.shown(path)
    }
}

/// Volumes of the type hostPath as the kubelet's metrics count them. Static pods have no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HostPathVolumes {
    desired: u64,
    mounted: u64,
}

impl HostPathVolumes {
    /// From `/metrics` of a kubelet: `volume_manager_total_volumes`
    /// (`pkg/kubelet/volumemanager/metrics`).
    fn parse(metrics: &str) -> Self {
        let mut volumes = HostPathVolumes::default();
        for line in metrics.lines() {
            let Some(rest) = line.strip_prefix("volume_manager_total_volumes{") else {
                continue;
            };
            let Some((labels, value)) = rest.split_once("} ") else {
                continue;
            };
            if !labels.contains("plugin_name=\"kubernetes.io/host-path\"") {
                continue;
            }
            let count = value.trim().parse().unwrap_or_default();
            if labels.contains("state=\"desired_state_of_world\"") {
                volumes.desired = count;
            } else if labels.contains("state=\"actual_state_of_world\"") {
                volumes.mounted = count;
            }
        }
        volumes
    }

    /// Whether the kubelet waits for no volume.
    pub(super) fn are_mounted(self) -> bool {
        self.desired > 0 && self.desired == self.mounted
    }
}

impl fmt::Display for HostPathVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} mounted", self.mounted, self.desired)
    }
}

impl Probe<'_> {
    fn files(&self) -> Rc<dyn Files> {
        Rc::new(NodeFiles(self.root.clone()))
    }

    /// The static pod of a component; `None` where it is none here.
    pub(super) fn pod(&self, component: Component) -> Result<Option<Pod>, String> {
        let Some(path) = component.manifest() else {
            return Ok(None);
        };
        let Some(found) = self.root.read(path).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&found.bytes).map_err(|_| format!("{path} is no text"))?;
        Pod::read(text)
            .map(Some)
            .map_err(|why| format!("{path}: {why}"))
    }

    /// The API of the cluster, as somebody who has this kubeconfig.
    pub(super) fn api(&self, kubeconfig: &Path) -> Result<Api, api::Error> {
        self.api_with(kubeconfig, self.files())
    }

    fn api_with(&self, kubeconfig: &Path, files: Rc<dyn Files>) -> Result<Api, api::Error> {
        let access = Access::Kubeconfig {
            file: SecretFile::Path(kubeconfig.to_owned()),
            timeout: PATIENCE,
        };
        Api::new(access, files, None, self.clock)
    }

    /// The certificate that a component shows. etcd wants to see one of ours first.
    pub(super) async fn served(
        &self,
        component: Component,
        address: SocketAddr,
    ) -> Result<Certificate, String> {
        let identity = match component {
            Component::Etcd => self.etcd_client(),
            _ => None,
        };
        http::served(address, identity.as_ref(), self.clock, PATIENCE)
            .await
            .map_err(|error| error.to_string())
    }

    fn etcd_client(&self) -> Option<Identity> {
        let (certificate, key) = self.pair(CertName::EtcdHealthcheckClient)?;
        Some(Identity {
            chain_pem: self.root.read(certificate).ok()??.bytes.to_vec(),
            key_pem: self.root.read(key).ok()??.bytes,
        })
    }

    fn pair(&self, name: CertName) -> Option<(NodePath, NodePath)> {
        match self.setup.outputs.get(&name)? {
            Output::Pair { certificate, key } => Some((certificate.clone(), key.clone())),
            _ => None,
        }
    }

    /// A certificate on disk.
    pub(super) fn on_disk(&self, path: &Path) -> Result<Certificate, String> {
        let found = self.root.read(path).map_err(|error| error.to_string())?;
        let found = found.ok_or_else(|| format!("{} is gone", path.display()))?;
        chain_of(&found.bytes)
            .map(|chain| chain.leaf().clone())
            .ok_or_else(|| format!("{} is unreadable", path.display()))
    }

    /// Whether a component that makes its own certificate when it starts was started after `since`.
    pub(super) async fn started_after(
        &self,
        component: Component,
        pod: &Pod,
        since: OffsetDateTime,
    ) -> bool {
        if !makes_its_own(component, pod) {
            return false;
        }
        let Some(address) = pod.addresses(component).first().copied() else {
            return false;
        };
        let served = self.served(component, address).await;
        served
            .is_ok_and(|shown| shown.is_self_issued() && shown.not_before() + BEFORE_START > since)
    }

    /// Whether the API server knows who a kubeconfig says we are. Other trouble is no judgement of it.
    pub(super) async fn is_unknown(&self, kubeconfig: &Path) -> Option<String> {
        refused(&self.api(kubeconfig).ok()?).await
    }

    /// Why a former kubeconfig cannot be used any more, if that is certain: its certificate has expired, or the API server
    /// rejects it.
    pub(super) async fn is_unusable(&self, former: &Previous) -> Option<String> {
        let path = former.path.display();
        let text = std::str::from_utf8(&former.contents).ok()?;
        let kubeconfig = Kubeconfig::parse(text).ok()?;
        if let Some(chain) = kubeconfig.current().ok()?.certificate
            && let Some(chain) = chain_of(&chain)
            && chain.leaf().not_after() <= (self.clock)()
        {
            let end = rfc3339(chain.leaf().not_after());
            return Some(format!(
                "the certificate of the former {path} expired at {end}"
            ));
        }
        let files = FormerFile {
            files: self.files(),
            path: former.path.clone(),
            contents: former.contents.clone(),
        };
        let api = self.api_with(&former.path, Rc::new(files)).ok()?;
        let why = refused(&api).await?;
        Some(format!("the API server rejects the former {path} ({why})"))
    }

    /// When the kubelet renewed its Lease for the last time, as the API server tells it by the kubelet's own kubeconfig.
    pub(super) async fn node_lease(&self) -> Result<Option<OffsetDateTime>, api::Error> {
        let Some(Output::Kubeconfig { path, .. }) = self.setup.outputs.get(&CertName::KubeletConf)
        else {
            return Ok(None);
        };
        let api = self.api(path)?;
        let found = api
            .read(&LEASE, Some(NODE_LEASES), &self.setup.node)
            .await?;
        Ok(found.as_ref().and_then(lease::renewed))
    }

    /// The volumes that the kubelet of this node wants for pods and has mounted.
    pub(super) async fn host_path_volumes(&self) -> Result<HostPathVolumes, api::Error> {
        let api = self.api(&self.setup.reload.lease.kubeconfig)?;
        let path = format!("/api/v1/nodes/{}/proxy/metrics", self.setup.node);
        Ok(HostPathVolumes::parse(
            &api.text(&path, METRICS_LIMIT).await?,
        ))
    }

    /// Who leads, of all processes of a component in the cluster; empty for nobody, `None` where that is not known.
    pub(super) async fn leader(&self, component: Component, pod: &Pod) -> Option<String> {
        let leads = matches!(
            component,
            Component::KubeControllerManager | Component::KubeScheduler
        );
        if !leads || pod.flag("leader-elect") == Some("false") {
            return None;
        }
        let api = self.api(&self.setup.reload.lease.kubeconfig).ok()?;
        let lease = api.read(&LEASE, Some(NAMESPACE), component.as_str());
        Some(lease::holder(&lease.await.ok()??).to_owned())
    }

    /// `/healthz` of a component with a certificate of its own making.
    pub(super) async fn healthz(&self, address: SocketAddr) -> Result<(), String> {
        let client = self.client(&format!("https://{address}"))?;
        answer(&client.provisional(), "/healthz").await.map(drop)
    }

    /// Of the kubelet.
    pub(super) async fn kubelet(&self) -> Result<(), String> {
        answer(&self.client(KUBELET_HEALTH)?, "/healthz")
            .await
            .map(drop)
    }

    /// `/livez` of the API server of this node; nothing where it has none.
    pub(super) async fn livez(&self) -> Result<(), String> {
        let Some(pod) = self.pod(Component::KubeApiserver)? else {
            return Ok(());
        };
        let Some(address) = pod.addresses(Component::KubeApiserver).first().copied() else {
            return Ok(());
        };
        let mut endpoint = endpoint(&format!("https://{address}"))?;
        endpoint.tls.ca_file = self
            .setup
            .bundles
            .get(&Authority::Ca)
            .map(|path| path.to_path_buf());
        // Among the names of every kube-apiserver, whatever its address is.
        endpoint.tls.server_name = Some("kubernetes".to_owned());
        let mut client = Client::new(endpoint, self.files(), self.clock).map_err(words)?;
        if let Some(identity) = self.administrator() {
            client = client.with_identity(identity);
        }
        let told = answer(&client, "/livez").await;
        told.map(drop)
            .map_err(|why| format!("kube-apiserver is not well: {why}"))
    }

    fn administrator(&self) -> Option<Identity> {
        let found = self.root.read(&self.setup.reload.lease.kubeconfig).ok()??;
        let text = std::str::from_utf8(&found.bytes).ok()?;
        let current = Kubeconfig::parse(text)
            .and_then(|kubeconfig| kubeconfig.current())
            .ok()?;
        Some(Identity {
            chain_pem: current.certificate?,
            key_pem: current.key?,
        })
    }

    /// Whether etcd has a quorum, and with `all` whether every member is well; nothing where etcd is not this node's.
    pub(super) async fn etcd(&self, all: bool) -> Result<(), String> {
        let Some(pod) = self.pod(Component::Etcd)? else {
            return Ok(());
        };
        let Some(address) = pod.addresses(Component::Etcd).first().copied() else {
            return Ok(());
        };
        let own = format!("https://{address}");
        self.member(&own).await?;
        if !all {
            return Ok(());
        }
        let call = Call::post("/v3/cluster/member/list").json(&json!({}));
        let response = self.etcd_at(&own)?.send(call).await.map_err(words)?;
        let list: Value = response
            .json()
            .map_err(|error| format!("etcd does not tell its members: {error}"))?;
        let members = list.get("members").and_then(Value::as_array);
        for member in members.into_iter().flatten() {
            let url = member.pointer("/clientURLs/0").and_then(Value::as_str);
            let url = url.ok_or("a member of etcd has not started yet")?;
            self.member(url).await?;
        }
        Ok(())
    }

    /// `/health` reads through the quorum.
    async fn member(&self, url: &str) -> Result<(), String> {
        let unwell = |why: String| format!("etcd at {url} is not well: {why}");
        let text = answer(&self.etcd_at(url)?, "/health")
            .await
            .map_err(unwell)?;
        let health: Value = serde_json::from_str(&text).unwrap_or_default();
        match health.get("health").and_then(Value::as_str) {
            Some("true") => Ok(()),
            _ => Err(unwell(text)),
        }
    }

    fn etcd_at(&self, url: &str) -> Result<Client, String> {
        let mut endpoint = endpoint(url)?;
        endpoint.tls.ca_file = self
            .setup
            .bundles
            .get(&Authority::EtcdCa)
            .map(|path| path.to_path_buf());
        if let Some((certificate, key)) = self.pair(CertName::EtcdHealthcheckClient) {
            endpoint.tls.certificate = Some(certificate.into());
            endpoint.tls.key = Some(key.into());
        }
        Client::new(endpoint, self.files(), self.clock).map_err(words)
    }

    fn client(&self, url: &str) -> Result<Client, String> {
        Client::new(endpoint(url)?, self.files(), self.clock).map_err(words)
    }
}

/// Why the API server does not know the identity of a kubeconfig. Other errors are no statement about it.
async fn refused(api: &Api) -> Option<String> {
    match api.read(&LEASE, Some(NAMESPACE), "kube-scheduler").await {
        Err(api::Error::Refused(status)) if status.code == 401 => Some(status.to_string()),
        Err(api::Error::Http(error)) if *error.kind() == http::Kind::Refused => {
            Some(error.to_string())
        }
        _ => None,
    }
}

/// kube-controller-manager and kube-scheduler make a certificate when they start, unless they are given one.
pub(super) fn makes_its_own(component: Component, pod: &Pod) -> bool {
    let may = matches!(
        component,
        Component::KubeControllerManager | Component::KubeScheduler
    );
    may && pod.flag("tls-cert-file").is_none() && pod.flag("cert-dir").is_none()
}

fn endpoint(url: &str) -> Result<Endpoint, String> {
    let mut endpoint = Endpoint::new(Url::parse(url).map_err(|error| format!("{url}: {error}"))?);
    endpoint.timeout = PATIENCE;
    Ok(endpoint)
}

async fn answer(client: &Client, path: &str) -> Result<String, String> {
    let response = client.send(Call::get(path)).await.map_err(words)?;
    let text = http::printable(&response.text(), 400);
    match response.is_success() {
        true => Ok(text),
        false => Err(format!(
            "{}{path} answers HTTP {}: {text}",
            client.origin(),
            response.status
        )),
    }
}

fn words(error: http::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::HostPathVolumes;

    #[test]
    fn counts_host_path_volumes_of_the_kubelet() {
        let metrics = "\
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name=\"kubernetes.io/configmap\",state=\"desired_state_of_world\"} 1
volume_manager_total_volumes{plugin_name=\"kubernetes.io/host-path\",state=\"actual_state_of_world\"} 14
volume_manager_total_volumes{plugin_name=\"kubernetes.io/host-path\",state=\"desired_state_of_world\"} 16
";
        let volumes = HostPathVolumes::parse(metrics);
        assert_eq!(volumes.to_string(), "14 of 16 mounted");
        assert!(!volumes.are_mounted());
        assert!(HostPathVolumes::parse(&metrics.replace(" 14", " 16")).are_mounted());
        assert!(!HostPathVolumes::parse("").are_mounted());
    }
}
