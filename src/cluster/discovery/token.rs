//! Discovery by `cluster-info` and a bootstrap token.
//!
//! What anybody may have sent is believed for the token's signature, its certificates for the pins, and then the same
//! is read again from a server that these certificates vouch for. Nobody learns the token before that.

use super::{Discovered, Error, Network, Refusal, https, read_cluster_info};
use crate::cluster::api::{self, Access, Api, Token};
use crate::http;
use crate::kube::cluster_info::{self, Cluster, ClusterInfo, named, require_pins};
use crate::kube::kubeadm::{BootstrapToken, Endpoint};
use crate::x509::TrustBundle;

const DEFAULT_PORT: u16 = 6443;

pub(super) async fn discover(
    network: &Network,
    token: &BootstrapToken,
    bearer: &BootstrapToken,
    endpoint: &Endpoint,
    pins: &[[u8; 32]],
) -> Result<Discovered, Error> {
    let inquiry = Inquiry {
        network,
        token,
        pins,
        server: format!("https://{}", endpoint.authority(DEFAULT_PORT)),
    };
    let info = inquiry.first_copy().await?;
    let cluster = match inquiry.judge(&info) {
        Ok(cluster) => cluster,
        Err(cluster_info::Error::Signature { id }) => return Err(inquiry.blame(&info, id).await),
        Err(refusal) => return Err(inquiry.refused(refusal)),
    };
    inquiry.confirm(&info, &cluster).await?;

    let server = inquiry.server.clone();
    let mut notes = Vec::new();
    if pins.is_empty() {
        notes.push(format!(
            "the CA of the cluster is believed for the token's signature alone: {}; set \
             discovery.bootstrapToken.caCertHashes to its pin if it is right",
            named(cluster.authority.certificates())
        ));
    }
    if cluster.server != server {
        notes.push(format!(
            "cluster-info names {} as the API server; {server}, which the JoinConfiguration names, is verified and used",
            cluster.server
        ));
    }
    let held = Token::Held(bearer.to_bearer());
    Ok(Discovered {
        access: inquiry.access(Some(&cluster.authority), Some(held))?,
        server,
        authority: cluster.authority,
        notes,
    })
}

/// One discovery and what it goes by.
struct Inquiry<'a> {
    network: &'a Network,
    token: &'a BootstrapToken,
    pins: &'a [[u8; 32]],
    server: String,
}

impl Inquiry<'_> {
    /// Whoever answers, when there is a signature by the token: kube-controller-manager adds it a while after the
    /// token was made.
    async fn first_copy(&self) -> Result<ClusterInfo, Error> {
        let api = self.api(None)?.provisional();
        let patient = async || match read_cluster_info(&api).await {
            Ok(Some(object)) => match ClusterInfo::read(&object) {
                Ok(info) if info.is_signed_for(self.token) => Ok(info),
                Ok(_) => Err(Refusal::NotYet(Error::NoSignature {
                    server: self.server.clone(),
                    id: self.token.id().to_owned(),
                })),
                Err(refusal) => Err(Refusal::NotYet(self.refused(refusal))),
            },
            Ok(None) => Err(Refusal::NotYet(Error::NoClusterInfo {
                server: self.server.clone(),
            })),
            Err(api::Error::Refused(status)) if matches!(status.code, 401 | 403) => {
                let error = Error::Anonymous {
                    server: self.server.clone(),
                    status: status.code,
                };
                // 401: anonymous access is off. 403: nobody has permitted it, which `kubeadm init` does late.
                Err(match status.code {
                    401 => Refusal::Final(error),
                    _ => Refusal::NotYet(error),
                })
            }
            Err(error) => Err(Refusal::of(Error::call(&self.server, error))),
        };
        self.network.patiently(patient).await
    }

    fn judge(&self, info: &ClusterInfo) -> Result<Cluster, cluster_info::Error> {
        info.verify(self.token)?;
        self.pinned(info)
    }

    fn pinned(&self, info: &ClusterInfo) -> Result<Cluster, cluster_info::Error> {
        let cluster = info.cluster()?;
        if !self.pins.is_empty() {
            require_pins(&cluster.authority, self.pins, self.token)?;
        }
        Ok(cluster)
    }

    /// The same from a server that the certificates vouch for.
    async fn confirm(&self, info: &ClusterInfo, cluster: &Cluster) -> Result<(), Error> {
        let api = self.api(Some(&cluster.authority))?;
        let patient = async || match read_cluster_info(&api).await {
            Ok(object) => match object.map(|object| ClusterInfo::read(&object)) {
                Some(Ok(second)) if second.says_the_same_as(info) => Ok(()),
                _ => Err(Refusal::Final(Error::Changed {
                    server: self.server.clone(),
                })),
            },
            Err(api::Error::Http(source)) if *source.kind() == http::Kind::Untrusted => {
                Err(Refusal::Final(Error::Impostor {
                    server: self.server.clone(),
                    named: cluster.server.clone(),
                    source: Box::new(source),
                }))
            }
            Err(error) => Err(Refusal::of(Error::call(&self.server, error))),
        };
        self.network.patiently(patient).await
    }

    /// Content and secret do not fit each other. A server that the pins vouch for knows which of the two is wrong.
    async fn blame(&self, info: &ClusterInfo, id: String) -> Error {
        let server = self.server.clone();
        let unknown = cluster_info::Error::Signature { id: id.clone() };
        let vouched = self.pinned(info).ok().filter(|_| !self.pins.is_empty());
        let Some(Ok(api)) = vouched.map(|cluster| self.api(Some(&cluster.authority))) else {
            return self.refused(unknown);
        };
        match read_cluster_info(&api).await {
            Ok(Some(object)) => match ClusterInfo::read(&object) {
                Ok(second) if second == *info => Error::WrongSecret { server, id },
                _ => Error::Tampered { server, id },
            },
            Err(api::Error::Http(error)) if *error.kind() == http::Kind::Untrusted => {
                Error::Tampered { server, id }
            }
            _ => self.refused(unknown),
        }
    }

    fn api(&self, authority: Option<&TrustBundle>) -> Result<Api, Error> {
        let access = self.access(authority, None)?;
        self.network.api(&self.server, access)
    }

    fn access(
        &self,
        authority: Option<&TrustBundle>,
        token: Option<Token>,
    ) -> Result<Access, Error> {
        let mut endpoint = https(&self.server).map_err(|why| {
            let unusable = api::Error::Local {
                file: format!("the address {}", self.server),
                why: format!("cannot be used: {why}"),
                advice: "correct discovery.bootstrapToken.apiServerEndpoint",
            };
            Error::call(&self.server, unusable)
        })?;
        endpoint.tls.ca_pem = authority.map(|authority| authority.to_pem().into_bytes());
        Ok(Access::Direct {
            endpoint: Box::new(endpoint),
            token,
        })
    }

    fn refused(&self, source: cluster_info::Error) -> Error {
        Error::Refused {
            server: self.server.clone(),
            source,
        }
    }
}
