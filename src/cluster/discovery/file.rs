//! Discovery by a kubeconfig on the node or from an HTTPS server.
//!
//! The file is trusted because of its origin: the CA certificates in it are those of the cluster.
//! `discovery.tlsBootstrapToken` takes precedence over the credentials in it, as in kubeadm.

use std::path::Path;

use zeroize::Zeroizing;

use super::{
    Discovered, DiscoveryError, FailedRequest, Network, REQUEST_TIMEOUT, https, read_cluster_info,
};
use crate::cluster::api::{self, ApiAccess, BearerToken};
use crate::http::{self, Call, Client, Url};
use crate::kube::cluster_info::ClusterInfo;
use crate::kube::kubeadm::{BootstrapToken, DiscoveryFile};
use crate::kube::kubeconfig::{CurrentContext, Kubeconfig, resolve_path};
use crate::x509::TrustBundle;
use crate::yaml::schema::SecretFile;

const CREATE_KUBECONFIG: &str = "create it with: kubectl config view --raw --minify --flatten";

pub(super) async fn discover(
    network: &Network,
    source: &DiscoveryFile,
    token: Option<&BootstrapToken>,
) -> Result<Discovered, DiscoveryError> {
    let file = File { network, source };
    let text = file.read().await?;
    let current = file.parse(&text)?;
    let authority = file.authority(&current)?;
    let server = current
        .server
        .clone()
        .ok_or_else(|| file.invalid("names no server".to_owned(), CREATE_KUBECONFIG))?;
    let access = file.access(current, &server, &authority, token)?;
    let mut found = Discovered {
        kubelet_server: server.clone(),
        server,
        authority,
        notes: Vec::new(),
        access,
    };
    file.confirm(&mut found).await?;
    Ok(found)
}

struct File<'a> {
    network: &'a Network,
    source: &'a DiscoveryFile,
}

impl File<'_> {
    async fn read(&self) -> Result<Zeroizing<String>, DiscoveryError> {
        let bytes = match self.source {
            DiscoveryFile::Path(path) => self.local(path)?,
            DiscoveryFile::Url(url) => Zeroizing::new(self.fetch(url).await?),
        };
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Zeroizing::new(text.to_owned())),
            Err(_) => Err(self.invalid("is not UTF-8 text".to_owned(), CREATE_KUBECONFIG)),
        }
    }

    fn local(&self, path: &Path) -> Result<Zeroizing<Vec<u8>>, DiscoveryError> {
        self.network
            .files
            .read(path)
            .map_err(|source| DiscoveryError::Unread {
                file: self.shown(),
                path: self.network.files.shown(path),
                source,
            })
    }

    /// Fetches the file, trusting the CAs of the operating system, as kubeadm does.
    async fn fetch(&self, address: &str) -> Result<Vec<u8>, DiscoveryError> {
        let invalid = |why: String| self.invalid(why, "correct discovery.file.kubeConfigPath");
        let url = Url::parse(address)
            .map_err(|error| invalid(format!("has no valid address: {error}")))?;
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let mut base = url;
        base.set_path("");
        base.set_query(None);
        let mut endpoint = http::Endpoint::new(base);
        endpoint.tls.system_roots = true;
        endpoint.timeout = REQUEST_TIMEOUT;
        let http = |error: http::HttpError| DiscoveryError::Call {
            doing: format!("fetching the discovery file {}", self.source),
            source: error.into(),
        };
        let client =
            Client::new(endpoint, self.network.files.clone(), self.network.clock).map_err(http)?;
        let request = async || match client.send(Call::get(&path)).await {
            Ok(answer) if answer.is_success() => Ok(answer.body),
            Ok(answer) => Err(FailedRequest::Final(invalid(format!(
                "cannot be fetched: HTTP {}",
                answer.status
            )))),
            Err(error) => Err(FailedRequest::of(http(error))),
        };
        self.network.retry(request).await
    }

    fn parse(&self, text: &str) -> Result<CurrentContext, DiscoveryError> {
        let current = Kubeconfig::parse(text)
            .and_then(|kubeconfig| kubeconfig.to_join())
            .map_err(|error| self.invalid(format!("cannot be used: {error}"), CREATE_KUBECONFIG))?;
        if current.beyond.is_empty() {
            return Ok(current);
        }
        Err(self.invalid(
            format!("has {}, which nodepki does not follow", current.beyond.join(", ")),
            "use one with certificate-authority-data, and with a token, a client certificate or no user",
        ))
    }

    fn authority(&self, current: &CurrentContext) -> Result<TrustBundle, DiscoveryError> {
        let pem = match (&current.authority, &current.authority_file, self.source) {
            (Some(pem), _, _) => pem.clone(),
            (None, Some(name), DiscoveryFile::Path(path)) => {
                self.local(&resolve_path(path, name))?.to_vec()
            }
            _ => {
                return Err(self.invalid(
                    "has no certificate-authority-data".to_owned(),
                    CREATE_KUBECONFIG,
                ));
            }
        };
        TrustBundle::from_pem(&pem).map_err(|error| {
            self.invalid(
                format!("has CA certificates that are not valid: {error}"),
                CREATE_KUBECONFIG,
            )
        })
    }

    /// Returns the server with the credential of the node.
    fn access(
        &self,
        mut current: CurrentContext,
        server: &str,
        authority: &TrustBundle,
        token: Option<&BootstrapToken>,
    ) -> Result<ApiAccess, DiscoveryError> {
        let has_certificate = current.certificate.is_some() || current.certificate_file.is_some();
        let has_token = current.token.is_some() || current.token_file.is_some();
        let held = match (token, self.source) {
            (Some(token), _) => token.to_bearer(),
            (None, _) if !has_certificate && !has_token => {
                return Err(DiscoveryError::NoCredential { file: self.shown() });
            }
            (None, DiscoveryFile::Path(path)) => {
                return Ok(ApiAccess::Kubeconfig {
                    file: SecretFile::Path(path.clone()),
                    timeout: REQUEST_TIMEOUT,
                });
            }
            (None, DiscoveryFile::Url(_)) => match current.token.take() {
                Some(token) if !has_certificate && current.token_file.is_none() => token,
                _ => {
                    return Err(self.invalid(
                        "has credentials that are not a token".to_owned(),
                        "store it on the node and set discovery.file.kubeConfigPath to its path",
                    ));
                }
            },
        };
        let invalid = |field: &str, why: String| {
            self.invalid(
                format!("has a {field} that is not a valid address: {why}"),
                CREATE_KUBECONFIG,
            )
        };
        let mut endpoint = https(server).map_err(|why| invalid("server", why))?;
        endpoint.tls.ca_pem = Some(authority.to_pem().into_bytes());
        endpoint.tls.server_name = current.server_name.take();
        if let Some(proxy) = &current.proxy {
            let proxy = Url::parse(proxy);
            endpoint.proxy = Some(proxy.map_err(|error| invalid("proxy-url", error.to_string()))?);
        }
        Ok(ApiAccess::Direct {
            endpoint: Box::new(endpoint),
            token: Some(BearerToken::Held(held)),
        })
    }

    /// Verifies that the server is reachable and has a trusted certificate. Its `cluster-info` is only compared; the server
    /// may allow it to anonymous clients only, so 403 is accepted too.
    async fn confirm(&self, found: &mut Discovered) -> Result<(), DiscoveryError> {
        let api = self.network.api(&found.server, found.access.clone())?;
        let request = async || match read_cluster_info(&api).await {
            Ok(object) => Ok(object),
            Err(api::ApiError::Refused(status)) if status.code == 403 => Ok(None),
            Err(error) => Err(FailedRequest::of(DiscoveryError::call(
                &found.server,
                error,
            ))),
        };
        let object = self.network.retry(request).await?;
        let info = object.and_then(|object| ClusterInfo::read(&object).ok());
        if let Some(cluster) = info.and_then(|info| info.cluster().ok())
            && cluster.server != found.server
        {
            found.notes.push(format!(
                "cluster-info names {} as the API server; {} from the discovery file is verified and used",
                cluster.server, found.server
            ));
        }
        Ok(())
    }

    fn shown(&self) -> String {
        match self.source {
            DiscoveryFile::Path(path) => self.network.files.shown(path).display().to_string(),
            DiscoveryFile::Url(_) => self.source.to_string(),
        }
    }

    fn invalid(&self, why: String, advice: &'static str) -> DiscoveryError {
        DiscoveryError::File {
            file: self.shown(),
            why,
            advice,
        }
    }
}
