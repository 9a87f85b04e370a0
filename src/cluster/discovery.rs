//! Finds and verifies the cluster that a node joins.
//!
//! [`discover`] follows a JoinConfiguration: `token` uses `cluster-info` and a bootstrap token, `file` a kubeconfig. Both
//! return trusted CA certificates, an API server that has proven to belong to one of them, and a credential
//! ([`Discovered`]). `kube::cluster_info` and `x509` decide what is trusted; this module decides which server is queried
//! when, how long to wait for missing objects, and what a failure means. Writes nothing.

mod file;
mod token;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::cluster::api::{self, Api, ApiAccess};
use crate::http::{self, Endpoint, Files, Url};
use crate::kube::cluster_info;
use crate::kube::kubeadm::{Discovery, JoinDiscovery};
use crate::x509::TrustBundle;

/// Interval between two requests for a missing object.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// A verified cluster.
#[derive(Debug)]
pub struct Discovered {
    /// URL of an API server whose certificate `authority` has issued.
    pub server: String,
    /// URL of the API server for a worker's kubelet.conf, as `kubeadm join` takes it from the discovery.
    pub kubelet_server: String,
    /// All trusted CA certificates.
    pub authority: TrustBundle,
    /// Notes for the user, as sentences.
    pub notes: Vec<String>,
    access: ApiAccess,
}

impl Discovered {
    /// Returns a client of the cluster's API that verifies the server by the authority and uses the bootstrap token or the
    /// credential of the discovery file.
    ///
    /// # Errors
    /// As [`Api::new`].
    pub fn api(
        &self,
        files: Rc<dyn Files>,
        credentials: Option<PathBuf>,
        clock: fn() -> OffsetDateTime,
    ) -> Result<Api, DiscoveryError> {
        Api::new(self.access.clone(), files, credentials, clock)
            .map_err(|error| DiscoveryError::call(&self.server, error))
    }
}

/// A failed discovery. Each message is a sentence with what to do now.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum DiscoveryError {
    #[error(
        "the JoinConfiguration has no discovery method; set discovery.bootstrapToken or discovery.file in it"
    )]
    Nothing,
    /// A failed call of the API.
    #[error("{doing}: {source}")]
    Call {
        doing: String,
        source: api::ApiError,
    },
    #[error(
        "{server} does not let anonymous clients read cluster-info (HTTP {status}); run on a control-plane node: kubeadm \
         init phase bootstrap-token, or, if anonymous access is disabled intentionally, copy a kubeconfig to the node and set \
         discovery.file.kubeConfigPath to its path"
    )]
    Anonymous { server: String, status: u16 },
    #[error(
        "{server} has no ConfigMap cluster-info in the namespace kube-public; run on a control-plane node: kubeadm init \
         phase bootstrap-token"
    )]
    NoClusterInfo { server: String },
    #[error(
        "cluster-info of {server} has no signature for token {id}: the token has expired, was deleted or belongs to another \
         cluster; run on a control-plane node: kubeadm token create --print-join-command (if a new token gets no \
         signature either, check that kube-controller-manager runs with --controllers=*,bootstrapsigner,tokencleaner)"
    )]
    NoSignature { server: String, id: String },
    /// The content is not trusted.
    #[error("cluster-info of {server} is refused: {source}")]
    Refused {
        server: String,
        source: cluster_info::ClusterInfoError,
    },
    #[error(
        "the secret of token {id} is not the one that {server} has signed cluster-info with; compare the token with what \
         `kubeadm token list` prints on a control-plane node (if it is right, cluster-info was changed and not signed again: \
         check that kube-controller-manager runs with --controllers=*,bootstrapsigner,tokencleaner)"
    )]
    WrongSecret { server: String, id: String },
    #[error(
        "cluster-info was changed on its way: the first copy from {server} does not match its signature for token {id}, and \
         differs from that of a server with the pinned CA; find out which server answers at this address"
    )]
    Tampered { server: String, id: String },
    #[error(
        "the server at {server} has not proven that it belongs to the cluster: {source}; cluster-info itself is valid and \
         contains {named}: use that as discovery.bootstrapToken.apiServerEndpoint, or find out which server answers at this \
         address"
    )]
    Impostor {
        server: String,
        named: String,
        source: Box<http::HttpError>,
    },
    #[error(
        "{server} does not have a certificate of a pinned CA, and cluster-info also contains {found}, which is not pinned; \
         print on a control-plane node whether the cluster changes its CA (nodepki authority watch ca): if so, add its pin to \
         discovery.bootstrapToken.caCertHashes, or run again when the change has reached {server}; otherwise a holder of the \
         token has added it: delete the token there with `kubeadm token delete {id}`: {source}"
    )]
    Unpinned {
        server: String,
        id: String,
        found: String,
        source: Box<http::HttpError>,
    },
    #[error(
        "cluster-info of {server} differed when it was read again over verified TLS; run again in case it was \
         just being changed, else find out which server answers at this address"
    )]
    Changed { server: String },
    #[error("the discovery file {file} {why}; {advice}")]
    File {
        file: String,
        why: String,
        advice: &'static str,
    },
    #[error(
        "the discovery file {file} cannot be used, since {} cannot be read: {source}; create it, or correct discovery.file.kubeConfigPath",
        path.display()
    )]
    Unread {
        file: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the discovery file {file} has no credentials and discovery.tlsBootstrapToken is not set, so the node cannot \
         authenticate; set discovery.tlsBootstrapToken to the output of this on a control-plane node: kubeadm token create"
    )]
    NoCredential { file: String },
}

impl DiscoveryError {
    fn call(server: &str, source: api::ApiError) -> Self {
        DiscoveryError::Call {
            doing: format!("reading cluster-info from {server}"),
            source,
        }
    }
}

/// Finds the cluster that `join` describes. Waits until `deadline` for objects that do not exist yet.
///
/// # Errors
/// See [`DiscoveryError`].
pub async fn discover(
    join: &JoinDiscovery,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: fn() -> OffsetDateTime,
    deadline: Instant,
) -> Result<Discovered, DiscoveryError> {
    let network = Network {
        files,
        credentials,
        clock,
        deadline,
    };
    match &join.discovery {
        None => Err(DiscoveryError::Nothing),
        Some(Discovery::Token {
            token,
            endpoint,
            pins,
            ..
        }) => {
            let bearer = join.tls_bootstrap_token.as_ref().unwrap_or(token);
            token::discover(&network, token, bearer, endpoint, pins).await
        }
        Some(Discovery::File(source)) => {
            file::discover(&network, source, join.tls_bootstrap_token.as_ref()).await
        }
    }
}

/// The inputs of every request.
struct Network {
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: fn() -> OffsetDateTime,
    deadline: Instant,
}

impl Network {
    fn api(&self, server: &str, access: ApiAccess) -> Result<Api, DiscoveryError> {
        Api::new(
            access,
            Rc::clone(&self.files),
            self.credentials.clone(),
            self.clock,
        )
        .map_err(|error| DiscoveryError::call(server, error))
    }

    /// Repeats a request until the answer is final, or the deadline does not allow another attempt.
    async fn retry<T>(
        &self,
        mut request: impl AsyncFnMut() -> Result<T, FailedRequest>,
    ) -> Result<T, DiscoveryError> {
        let mut reported = false;
        loop {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(FailedRequest::Final(error)) => return Err(error),
                Err(FailedRequest::NotYet(error))
                    if Instant::now() + RETRY_INTERVAL >= self.deadline =>
                {
                    return Err(error);
                }
                Err(FailedRequest::NotYet(error)) if !reported => {
                    reported = true;
                    tracing::info!("trying again every {} s: {error}", RETRY_INTERVAL.as_secs());
                }
                Err(FailedRequest::NotYet(_)) => {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// A failed request, and whether a later one may succeed.
enum FailedRequest {
    NotYet(DiscoveryError),
    Final(DiscoveryError),
}

impl FailedRequest {
    /// Classifies an error: faults of the network, and of API servers that start or stop, may pass.
    fn of(error: DiscoveryError) -> Self {
        let DiscoveryError::Call { source, .. } = &error else {
            return FailedRequest::Final(error);
        };
        let passes = match source {
            api::ApiError::Http(error) => {
                matches!(
                    error.kind(),
                    http::HttpErrorKind::Unreachable | http::HttpErrorKind::Lost
                )
            }
            api::ApiError::Refused(status) => matches!(status.code, 429 | 500..),
            _ => false,
        };
        if passes {
            FailedRequest::NotYet(error)
        } else {
            FailedRequest::Final(error)
        }
    }
}

async fn read_cluster_info(api: &Api) -> Result<Option<serde_json::Value>, api::ApiError> {
    api.read(&api::CONFIG_MAP, Some("kube-public"), "cluster-info")
        .await
}

fn https(server: &str) -> Result<Endpoint, String> {
    let url = Url::parse(server).map_err(|error| error.to_string())?;
    if url.scheme() != "https" {
        return Err("it does not start with https://".to_owned());
    }
    let mut endpoint = Endpoint::new(url);
    endpoint.timeout = REQUEST_TIMEOUT;
    Ok(endpoint)
}
