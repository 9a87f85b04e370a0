//! Examines the components of this node: which certificate they serve, and whether they are healthy.
//!
//! Changes nothing. Addresses of components are read from their manifests. Every `Err` is a clause with what was
//! observed.

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
use super::pod::{Pod, ServedAt};
use super::{ReloadSetup, chain_of};
use crate::agent::Clock;
use crate::cluster::api::{self, Api, ApiAccess};
use crate::http::{self, Call, Client, ClientIdentity, Endpoint, Files, Url};
use crate::kube::components::Component;
use crate::kube::kubeconfig::Kubeconfig;
use crate::kube::names::{Authority, CertName, NodePath};
use crate::spec::CertFiles;
use crate::spec::assess::read_kubeconfig;
use crate::store::{FormerContents, NodeRoot};
use crate::text::rfc3339;
use crate::x509::{Certificate, Chain, PrivateKey};
use crate::yaml::schema::SecretFile;

/// Upper bound for the kubelet's metrics, bytes. A node with hundreds of pods has some hundred KiB.
const MAX_METRICS_BYTES: usize = 16 << 20;
/// Namespace of the Leases by which kubelets report that they run.
const NODE_LEASES: &str = "kube-node-lease";

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a question whether a component is healthy (`timeoutSeconds` of the liveness probes in kubeadm's manifests).
const HEALTH_TIMEOUT: Duration = Duration::from_secs(15);
/// Default health endpoint of the kubelet, on loopback and without TLS.
const KUBELET_HEALTH: &str = "http://127.0.0.1:10248";
/// Time between the beginning of validity of a self-generated serving certificate and the start of the process
/// (client-go, `GenerateSelfSignedCertKey`).
const SELF_SIGNED_BACKDATING: Duration = Duration::from_secs(60 * 60);

/// Why a component is not healthy, or a question about it has no answer, as a clause.
pub(super) struct ProbeError {
    why: String,
    /// No complete answer has arrived: the component that was asked may be healthy, and busy.
    pub(super) is_late: bool,
}

impl ProbeError {
    #[cfg(test)]
    pub(super) fn late(why: &str) -> Self {
        ProbeError {
            why: why.to_owned(),
            is_late: true,
        }
    }
}

impl From<String> for ProbeError {
    fn from(why: String) -> Self {
        ProbeError {
            why,
            is_late: false,
        }
    }
}

impl From<api::ApiError> for ProbeError {
    fn from(error: api::ApiError) -> Self {
        match error {
            api::ApiError::Http(error) => error.into(),
            error => error.to_string().into(),
        }
    }
}

impl From<http::HttpError> for ProbeError {
    fn from(error: http::HttpError) -> Self {
        ProbeError {
            is_late: *error.kind() == http::HttpErrorKind::Lost,
            why: error.to_string(),
        }
    }
}

impl From<ProbeError> for String {
    fn from(error: ProbeError) -> Self {
        error.why
    }
}

/// Access to the components of this node, for reading.
pub(super) struct Probe<'a> {
    pub(super) root: &'a NodeRoot,
    pub(super) setup: &'a ReloadSetup,
    pub(super) clock: Clock,
}

/// The node's files.
struct NodeFiles(NodeRoot);

impl Files for NodeFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match self.0.read(path).map_err(io::Error::other)? {
            Some(content) => Ok(content.bytes),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "does not exist")),
        }
    }

    /// Accepts any mode: these files belong to the node's PKI, and the administrator may have changed their modes.
    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }

    fn shown(&self, path: &Path) -> PathBuf {
        self.0.on_this_machine(path)
    }
}

/// The node's files, with the former contents of some of them.
struct FormerFiles {
    files: Rc<dyn Files>,
    previous: Vec<FormerContents>,
}

impl Files for FormerFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match former_of(path, &self.previous) {
            Some(former) => Ok(former.contents.clone()),
            None => self.files.read(path),
        }
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        match former_of(path, &self.previous) {
            Some(former) => Ok(former.contents.clone()),
            None => self.files.read_secret(path),
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
    /// Parses `/metrics` of a kubelet: `volume_manager_total_volumes` (`pkg/kubelet/volumemanager/metrics`).
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

    /// Returns whether all volumes are mounted.
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

    /// Returns the static pod of a component; `None` if it does not exist on this node.
    pub(super) fn pod(&self, component: Component) -> Result<Option<Pod>, String> {
        let Some(path) = component.manifest() else {
            return Ok(None);
        };
        let Some(found) = self.root.read(path).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let text =
            std::str::from_utf8(&found.bytes).map_err(|_| format!("{path} is not UTF-8 text"))?;
        Pod::read(text)
            .map(Some)
            .map_err(|why| format!("{path}: {why}"))
    }

    /// Returns a client for the cluster's API with this kubeconfig.
    pub(super) fn api(&self, kubeconfig: &Path) -> Result<Api, api::ApiError> {
        self.api_with(kubeconfig, self.files())
    }

    fn api_with(&self, kubeconfig: &Path, files: Rc<dyn Files>) -> Result<Api, api::ApiError> {
        let access = ApiAccess::Kubeconfig {
            file: SecretFile::Path(kubeconfig.to_owned()),
            timeout: REQUEST_TIMEOUT,
        };
        Api::new(access, files, None, self.clock)
    }

    /// Returns the certificate that a component serves. etcd requires a client certificate.
    pub(super) async fn served(
        &self,
        component: Component,
        address: SocketAddr,
    ) -> Result<Certificate, String> {
        let identity = match component {
            Component::Etcd => self.etcd_client(),
            _ => None,
        };
        http::presented_certificate(address, identity.as_ref(), self.clock, REQUEST_TIMEOUT)
            .await
            .map_err(|error| error.to_string())
    }

    fn etcd_client(&self) -> Option<ClientIdentity> {
        let (certificate, key) = self.pair(CertName::EtcdHealthcheckClient)?;
        Some(ClientIdentity {
            chain_pem: self.root.read(certificate).ok()??.bytes.to_vec(),
            key_pem: self.root.read(key).ok()??.bytes,
        })
    }

    fn pair(&self, name: CertName) -> Option<(NodePath, NodePath)> {
        match self.setup.outputs.get(&name)? {
            CertFiles::Pair {
                certificate, key, ..
            } => Some((certificate.clone(), key.clone())),
            _ => None,
        }
    }

    /// Returns a certificate on disk.
    pub(super) fn on_disk(&self, path: &Path) -> Result<Certificate, String> {
        let found = self.root.read(path).map_err(|error| error.to_string())?;
        let found = found.ok_or_else(|| format!("{} does not exist any more", path.display()))?;
        chain_of(&found.bytes)
            .map(|chain| chain.leaf().clone())
            .ok_or_else(|| format!("{} is unreadable", path.display()))
    }

    /// Returns whether a component that generates its certificate at start was started after `since`.
    pub(super) async fn started_after(
        &self,
        component: Component,
        pod: &Pod,
        since: OffsetDateTime,
    ) -> bool {
        if !generates_certificate(component, pod) {
            return false;
        }
        let Some(ServedAt { address, .. }) = pod.served_at(component) else {
            return false;
        };
        let served = self.served(component, address).await;
        served.is_ok_and(|shown| {
            shown.is_self_issued() && shown.not_before() + SELF_SIGNED_BACKDATING > since
        })
    }

    /// Returns why the API server rejects the identity of a kubeconfig; `None` also for all other errors.
    pub(super) async fn rejection(&self, kubeconfig: &Path) -> Option<String> {
        refused(&self.api(kubeconfig).ok()?).await
    }

    /// Returns the certificate of a former kubeconfig, in it or in the file that it names, or of a former file of a
    /// certificate. `previous` are all former files.
    pub(super) fn certificate_of(
        &self,
        former: &FormerContents,
        previous: &[FormerContents],
    ) -> Option<Chain> {
        let Ok(found) = read_kubeconfig(&former.path, Some(&former.contents)) else {
            return chain_of(&former.contents);
        };
        let Some([certificate, _]) = found.named_pair() else {
            return found.chain.present().cloned();
        };
        match former_of(certificate, previous) {
            Some(former) => chain_of(&former.contents),
            None => chain_of(&self.root.read(certificate).ok()??.bytes),
        }
    }

    /// Returns whether a former certificate or key would not match the other file of its pair: that one did not exist, and
    /// the new one stays.
    fn is_half_of_pair(&self, former: &FormerContents, previous: &[FormerContents]) -> bool {
        let contents = |path: &Path| match former_of(path, previous) {
            Some(former) => Some(former.contents.clone()),
            None => Some(self.root.read(path).ok()??.bytes),
        };
        self.setup.outputs.values().any(|output| {
            let paths = output.paths();
            let &[key, certificate, ..] = paths.as_slice() else {
                return false;
            };
            let is_former = |path: &NodePath| **path == *former.path;
            if !is_former(key) && !is_former(certificate) {
                return false;
            }
            let chain = contents(certificate).and_then(|pem| chain_of(&pem));
            let private = contents(key).and_then(|pem| PrivateKey::from_pem(&pem).ok());
            let both = chain.zip(private);
            both.is_some_and(|(chain, key)| chain.leaf().public_key() != key.public_key())
        })
    }

    /// Returns why a former file is certainly unusable: its certificate has expired, the other file of its pair did not
    /// exist, or the API server rejects it. `previous` are all former files.
    pub(super) async fn is_unusable(
        &self,
        former: &FormerContents,
        previous: &[FormerContents],
    ) -> Option<String> {
        let path = former.path.display();
        if let Some(chain) = self.certificate_of(former, previous)
            && chain.leaf().not_after() <= (self.clock)()
        {
            let end = rfc3339(chain.leaf().not_after());
            return Some(format!(
                "the certificate of the former {path} expired at {end}"
            ));
        }
        if self.is_half_of_pair(former, previous) {
            return Some(format!(
                "the former {path} does not match the other file of its pair"
            ));
        }
        let kubeconfig: &Path = match read_kubeconfig(&former.path, Some(&former.contents)) {
            // The kubelet's kubeconfig names its link.
            Err(_) if former.target.is_some() => self.kubelet_conf()?,
            Err(_) => return None,
            Ok(_) => &former.path,
        };
        let api = self.former_api(kubeconfig, previous).ok()?;
        let why = refused(&api).await?;
        Some(format!("the API server rejects the former {path} ({why})"))
    }

    /// Returns the client with a kubeconfig and the former files.
    fn former_api(
        &self,
        kubeconfig: &Path,
        previous: &[FormerContents],
    ) -> Result<Api, api::ApiError> {
        let files = FormerFiles {
            files: self.files(),
            previous: previous.to_vec(),
        };
        self.api_with(kubeconfig, Rc::new(files))
    }

    /// Returns the time at which the kubelet last renewed its Lease, read with the kubelet's own kubeconfig.
    pub(super) async fn node_lease(&self) -> Result<Option<OffsetDateTime>, api::ApiError> {
        match self.kubelet_conf() {
            Some(path) => self.lease_with(&self.api(path)?).await,
            None => Ok(None),
        }
    }

    /// As [`Probe::node_lease`], read with the kubeconfig and the pair that the kubelet still works with, if they are among
    /// the `previous` files. The present kubeconfig may name another server, and the API server may reject the present pair.
    pub(super) async fn node_lease_before(
        &self,
        previous: &[FormerContents],
    ) -> Result<Option<OffsetDateTime>, api::ApiError> {
        if !previous.is_empty()
            && let Some(path) = self.kubelet_conf()
            && let Ok(api) = self.former_api(path, previous)
            && let Ok(lease) = self.lease_with(&api).await
        {
            return Ok(lease);
        }
        self.node_lease().await
    }

    fn kubelet_conf(&self) -> Option<&NodePath> {
        match self.setup.outputs.get(&CertName::KubeletConf)? {
            CertFiles::Kubeconfig { path, .. } => Some(path),
            CertFiles::Pair { .. } => None,
        }
    }

    async fn lease_with(&self, api: &Api) -> Result<Option<OffsetDateTime>, api::ApiError> {
        let found = api
            .read(&LEASE, Some(NODE_LEASES), &self.setup.node)
            .await?;
        Ok(found.as_ref().and_then(lease::renewed))
    }

    /// Returns the numbers of volumes that the kubelet of this node needs for pods and has mounted.
    pub(super) async fn host_path_volumes(&self) -> Result<HostPathVolumes, api::ApiError> {
        let api = self.api(&self.setup.reload.lease.kubeconfig)?;
        let path = format!("/api/v1/nodes/{}/proxy/metrics", self.setup.node);
        Ok(HostPathVolumes::parse(
            &api.text(&path, MAX_METRICS_BYTES).await?,
        ))
    }

    /// Returns the leader among all processes of a component in the cluster; empty if there is none, `None` if they elect
    /// none or the cluster cannot be asked.
    pub(super) async fn leader(
        &self,
        component: Component,
        pod: &Pod,
    ) -> Result<Option<String>, ProbeError> {
        let leads = matches!(
            component,
            Component::KubeControllerManager | Component::KubeScheduler
        );
        if !leads || pod.flag("leader-elect") == Some("false") {
            return Ok(None);
        }
        let Ok(api) = self.api(&self.setup.reload.lease.kubeconfig) else {
            return Ok(None);
        };
        let lease = api.read(&LEASE, Some(NAMESPACE), component.as_str());
        Ok(lease.await?.map(|lease| lease::holder(&lease).to_owned()))
    }

    /// Checks `/healthz` of a component with a self-generated certificate.
    pub(super) async fn healthz(&self, address: SocketAddr) -> Result<(), String> {
        let client = self.client(&format!("https://{address}"))?;
        answer(&client.provisional(), "/healthz").await?;
        Ok(())
    }

    /// Checks `/healthz` of the kubelet.
    pub(super) async fn kubelet(&self) -> Result<(), String> {
        answer(&self.client(KUBELET_HEALTH)?, "/healthz").await?;
        Ok(())
    }

    /// Checks `/livez` of this node's API server; succeeds if the node has none.
    pub(super) async fn livez(&self) -> Result<(), ProbeError> {
        let Some(pod) = self.pod(Component::KubeApiserver)? else {
            return Ok(());
        };
        let Some(ServedAt { address, .. }) = pod.served_at(Component::KubeApiserver) else {
            return Ok(());
        };
        let mut endpoint = endpoint(&format!("https://{address}"))?;
        endpoint.tls.ca_file = self
            .setup
            .bundles
            .get(&Authority::Ca)
            .map(|path| path.to_path_buf());
        // Every kube-apiserver certificate contains this name, independent of its address.
        endpoint.tls.server_name = Some("kubernetes".to_owned());
        let mut client = Client::new(endpoint, self.files(), self.clock).map_err(words)?;
        if let Some(identity) = self.administrator() {
            client = client.with_identity(identity);
        }
        match answer(&client, "/livez").await {
            Ok(_) => Ok(()),
            Err(ProbeError { why, is_late }) => Err(ProbeError {
                why: format!("kube-apiserver is not healthy: {why}"),
                is_late,
            }),
        }
    }

    fn administrator(&self) -> Option<ClientIdentity> {
        let found = self.root.read(&self.setup.reload.lease.kubeconfig).ok()??;
        let text = std::str::from_utf8(&found.bytes).ok()?;
        let current = Kubeconfig::parse(text)
            .and_then(|kubeconfig| kubeconfig.current())
            .ok()?;
        Some(ClientIdentity {
            chain_pem: current.certificate?,
            key_pem: current.key?,
        })
    }

    /// Checks that etcd has a quorum, and with `all` that every member is healthy; succeeds if the node has no etcd.
    pub(super) async fn etcd(&self, all: bool) -> Result<(), ProbeError> {
        let Some(pod) = self.pod(Component::Etcd)? else {
            return Ok(());
        };
        let Some(ServedAt { address, .. }) = pod.served_at(Component::Etcd) else {
            return Ok(());
        };
        let own = format!("https://{address}");
        self.member(&own).await?;
        if !all {
            return Ok(());
        }
        let call = Call::post("/v3/cluster/member/list").json(&json!({}));
        let response = self.etcd_at(&own)?.send(call).await?;
        let list: Value = response
            .json()
            .map_err(|error| format!("the member list of etcd cannot be parsed: {error}"))?;
        let members = list.get("members").and_then(Value::as_array);
        for member in members.into_iter().flatten() {
            let url = member.pointer("/clientURLs/0").and_then(Value::as_str);
            let url = url.ok_or_else(|| "a member of etcd has not started yet".to_owned())?;
            self.member(url).await?;
        }
        Ok(())
    }

    /// Checks `/health` of a member, which requires a quorum.
    async fn member(&self, url: &str) -> Result<(), ProbeError> {
        let ProbeError { why, is_late } = match answer(&self.etcd_at(url)?, "/health").await {
            Ok(text) => {
                let health: Value = serde_json::from_str(&text).unwrap_or_default();
                if health.get("health").and_then(Value::as_str) == Some("true") {
                    return Ok(());
                }
                text.into()
            }
            Err(unhealthy) => unhealthy,
        };
        Err(ProbeError {
            why: format!("etcd at {url} is not healthy: {why}"),
            is_late,
        })
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

/// Returns why the API server rejects the identity of a kubeconfig; other errors do not prove this.
async fn refused(api: &Api) -> Option<String> {
    match api.read(&LEASE, Some(NAMESPACE), "kube-scheduler").await {
        Err(api::ApiError::Refused(status)) if status.code == 401 => Some(status.to_string()),
        Err(api::ApiError::Http(error)) if *error.kind() == http::HttpErrorKind::Refused => {
            Some(error.to_string())
        }
        _ => None,
    }
}

/// Returns whether a component generates its certificate at start: kube-controller-manager and kube-scheduler do, unless
/// they are configured with one.
pub(super) fn generates_certificate(component: Component, pod: &Pod) -> bool {
    let may = matches!(
        component,
        Component::KubeControllerManager | Component::KubeScheduler
    );
    may && pod.flag("tls-cert-file").is_none() && pod.flag("cert-dir").is_none()
}

fn endpoint(url: &str) -> Result<Endpoint, String> {
    let mut endpoint = Endpoint::new(Url::parse(url).map_err(|error| format!("{url}: {error}"))?);
    endpoint.timeout = HEALTH_TIMEOUT;
    Ok(endpoint)
}

async fn answer(client: &Client, path: &str) -> Result<String, ProbeError> {
    let response = client.send(Call::get(path)).await?;
    let text = http::printable(&response.text(), 400);
    if response.is_success() {
        Ok(text)
    } else {
        let (origin, status) = (client.origin(), response.status);
        Err(format!("{origin}{path} answers HTTP {status}: {text}").into())
    }
}

fn words(error: http::HttpError) -> String {
    error.to_string()
}

/// Returns the former content of a file, if there was one.
fn former_of<'p>(path: &Path, previous: &'p [FormerContents]) -> Option<&'p FormerContents> {
    let mut former = previous.iter().filter(|file| file.path == path);
    former.find(|file| !file.contents.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_former_content_that_exists() {
        let former = |path: &str, contents: &[u8]| FormerContents::new(path, contents.to_vec());
        let previous = [
            former("/a", b""),
            former("/b", b"old"),
            former("/c", b"other"),
        ];
        let found = |path: &str| former_of(Path::new(path), &previous).map(|file| &*file.contents);
        assert_eq!(found("/b").unwrap(), b"old");
        assert!(found("/a").is_none() && found("/d").is_none());
    }

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
