//! Finding the cluster that a node joins, and making sure that it is the right one.
//!
//! [`discover`] follows a JoinConfiguration: `token` by `cluster-info` and a bootstrap token, `file` by a kubeconfig.
//! Either way it ends with certificates that are believed, an API server that has shown one of them to be behind it,
//! and a credential ([`Discovered`]). What is believed is decided in `clusterinfo` and `x509`; here is who is asked
//! when, how long a thing that is not there yet is waited for, and what a failure means. Writes nothing.

mod file;
mod token;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::cluster::api::{self, Access, Api};
use crate::http::{self, Endpoint, Files, Url};
use crate::kube::cluster_info;
use crate::kube::kubeadm::{Discovery, Join};
use crate::x509::TrustBundle;

/// Between two questions for what is not there yet.
const RETRY: Duration = Duration::from_secs(2);
/// For one question.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A cluster that was found.
#[derive(Debug)]
pub struct Discovered {
    /// URL of an API server that `authority` vouches for.
    pub server: String,
    /// The CA certificates that are believed, all of them.
    pub authority: TrustBundle,
    /// What a person should know, in whole sentences.
    pub notes: Vec<String>,
    access: Access,
}

impl Discovered {
    /// The API of the cluster, verified by the authority, as the holder of the bootstrap token or of what the
    /// discovery file has.
    ///
    /// # Errors
    /// As [`Api::new`].
    pub fn api(
        &self,
        files: Rc<dyn Files>,
        credentials: Option<PathBuf>,
        clock: fn() -> OffsetDateTime,
    ) -> Result<Api, Error> {
        Api::new(self.access.clone(), files, credentials, clock)
            .map_err(|error| Error::call(&self.server, error))
    }
}

/// Why no cluster was found, or none that is believed. Each is a whole sentence with what to do now.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum Error {
    #[error(
        "the JoinConfiguration does not say how the cluster is found; set discovery.bootstrapToken or discovery.file in it"
    )]
    Nothing,
    /// A call of the API that failed for a reason of its own.
    #[error("{doing}: {source}")]
    Call { doing: String, source: api::Error },
    #[error(
        "{server} does not let anonymous clients read cluster-info (HTTP {status}); run on a control-plane node: kubeadm \
         init phase bootstrap-token, or, where anonymous access is off on purpose, give the node a kubeconfig and name it \
         under discovery.file.kubeConfigPath"
    )]
    Anonymous { server: String, status: u16 },
    #[error(
        "{server} has no ConfigMap cluster-info in the namespace kube-public; run on a control-plane node: kubeadm init \
         phase bootstrap-token"
    )]
    NoClusterInfo { server: String },
    #[error(
        "cluster-info of {server} has no signature for token {id}: the token has expired, was deleted or is of another \
         cluster; run on a control-plane node: kubeadm token create --print-join-command (and where a new token gets no \
         signature either, see that kube-controller-manager runs with --controllers=*,bootstrapsigner,tokencleaner)"
    )]
    NoSignature { server: String, id: String },
    /// The content is not believed.
    #[error("cluster-info of {server} is refused: {source}")]
    Refused {
        server: String,
        source: cluster_info::Error,
    },
    #[error(
        "the secret of token {id} is not the one that {server} has signed cluster-info with; compare the token with what \
         `kubeadm token list` prints on a control-plane node (if it is right, cluster-info was changed and not signed anew: \
         see that kube-controller-manager runs with --controllers=*,bootstrapsigner,tokencleaner)"
    )]
    WrongSecret { server: String, id: String },
    #[error(
        "cluster-info was changed on its way: what came first from {server} does not fit its signature for token {id}, and \
         the pinned CA does not vouch for it; find out who answers at this address"
    )]
    Tampered { server: String, id: String },
    #[error(
        "what answers at {server} has not shown that it is of the cluster: {source}; cluster-info itself is sound and names \
         {named}: use that as discovery.bootstrapToken.apiServerEndpoint, or find out who answers at this address"
    )]
    Impostor {
        server: String,
        named: String,
        source: Box<http::Error>,
    },
    #[error(
        "cluster-info of {server} was another one when it was read again over verified TLS; run again in case it was \
         just being changed, else find out who answers at this address"
    )]
    Changed { server: String },
    #[error("the discovery file {file} {why}; {advice}")]
    File {
        file: String,
        why: String,
        advice: &'static str,
    },
    #[error(
        "the discovery file {file} cannot be used, as {} cannot be read: {source}; put it there, or correct discovery.file.kubeConfigPath",
        path.display()
    )]
    Unread {
        file: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the discovery file {file} has no credentials and discovery.tlsBootstrapToken is not set, so the node could not \
         prove itself; set discovery.tlsBootstrapToken to what this prints on a control-plane node: kubeadm token create"
    )]
    NoCredential { file: String },
}

impl Error {
    fn call(server: &str, source: api::Error) -> Self {
        Error::Call {
            doing: format!("reading cluster-info from {server}"),
            source,
        }
    }
}

/// Finds the cluster that `join` describes. What may not be there yet is waited for until `deadline`.
///
/// # Errors
/// See [`Error`].
pub async fn discover(
    join: &Join,
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: fn() -> OffsetDateTime,
    deadline: Instant,
) -> Result<Discovered, Error> {
    let network = Network {
        files,
        credentials,
        clock,
        deadline,
    };
    match &join.discovery {
        None => Err(Error::Nothing),
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

/// What every question needs.
struct Network {
    files: Rc<dyn Files>,
    credentials: Option<PathBuf>,
    clock: fn() -> OffsetDateTime,
    deadline: Instant,
}

impl Network {
    fn api(&self, server: &str, access: Access) -> Result<Api, Error> {
        Api::new(
            access,
            Rc::clone(&self.files),
            self.credentials.clone(),
            self.clock,
        )
        .map_err(|error| Error::call(server, error))
    }

    /// Repeats a question until the answer is final, or there is no time for one more.
    async fn patiently<T>(
        &self,
        mut question: impl AsyncFnMut() -> Result<T, Refusal>,
    ) -> Result<T, Error> {
        let mut told = false;
        loop {
            match question().await {
                Ok(answer) => return Ok(answer),
                Err(Refusal::Final(error)) => return Err(error),
                Err(Refusal::NotYet(error)) if Instant::now() + RETRY >= self.deadline => {
                    return Err(error);
                }
                Err(Refusal::NotYet(error)) if !told => {
                    told = true;
                    tracing::info!("trying again every {} s: {error}", RETRY.as_secs());
                }
                Err(Refusal::NotYet(_)) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// An answer that is no good, and whether a later one may be better.
enum Refusal {
    NotYet(Error),
    Final(Error),
}

impl Refusal {
    /// Passing are the faults of the network, and of API servers that begin or end.
    fn of(error: Error) -> Self {
        let Error::Call { source, .. } = &error else {
            return Refusal::Final(error);
        };
        let passes = match source {
            api::Error::Http(error) => {
                matches!(error.kind(), http::Kind::Unreachable | http::Kind::Lost)
            }
            api::Error::Refused(status) => matches!(status.code, 429 | 500..),
            _ => false,
        };
        match passes {
            true => Refusal::NotYet(error),
            false => Refusal::Final(error),
        }
    }
}

async fn read_cluster_info(api: &Api) -> Result<Option<serde_json::Value>, api::Error> {
    api.read(&api::CONFIG_MAP, Some("kube-public"), "cluster-info")
        .await
}

fn https(server: &str) -> Result<Endpoint, String> {
    let url = Url::parse(server).map_err(|error| error.to_string())?;
    if url.scheme() != "https" {
        return Err("it does not begin with https://".to_owned());
    }
    let mut endpoint = Endpoint::new(url);
    endpoint.timeout = TIMEOUT;
    Ok(endpoint)
}
