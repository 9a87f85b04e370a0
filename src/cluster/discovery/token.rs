//! Discovery by `cluster-info` and a bootstrap token.
//!
//! The first copy may come from any server. It is trusted because of its signature by the token, its certificates because
//! of the pins. Then the same object is read again from a server with a certificate of a pinned CA, which confirms further
//! CAs that are not pinned: there are two while a cluster changes its CA. The token is not sent before that.

use super::{Discovered, DiscoveryError, FailedRequest, Network, https, read_cluster_info};
use crate::cluster::api::{self, Api, ApiAccess, BearerToken};
use crate::http;
use crate::kube::cluster_info::{self, ClusterInfo, DiscoveredCluster, named, pinned};
use crate::kube::kubeadm::{BootstrapToken, HostPort};
use crate::x509::{Certificate, TrustBundle};

const DEFAULT_PORT: u16 = 6443;

pub(super) async fn discover(
    network: &Network,
    token: &BootstrapToken,
    bearer: &BootstrapToken,
    endpoint: &HostPort,
    pins: &[[u8; 32]],
) -> Result<Discovered, DiscoveryError> {
    let discovery = TokenDiscovery {
        network,
        token,
        pins,
        server: format!("https://{}", endpoint.authority(DEFAULT_PORT)),
    };
    let info = discovery.first_copy().await?;
    let (cluster, pinned) = match discovery.verify(&info) {
        Ok(verified) => verified,
        Err(cluster_info::ClusterInfoError::Signature { id }) => {
            return Err(discovery.explain_mismatch(&info, id).await);
        }
        Err(refusal) => return Err(discovery.refused(refusal)),
    };
    discovery.confirm(&info, &cluster, &pinned).await?;

    let server = discovery.server.clone();
    let mut notes = Vec::new();
    if pins.is_empty() {
        notes.push(format!(
            "the CA of the cluster is trusted because of the token's signature alone: {}; set \
             discovery.bootstrapToken.caCertHashes to its pin if it is right",
            named(cluster.authority.certificates())
        ));
    }
    let confirmed = unpinned(&cluster, &pinned);
    if !confirmed.is_empty() {
        notes.push(format!(
            "cluster-info also contains {}, which is not pinned: {server}, which has a certificate of a pinned CA, confirms it",
            named(confirmed)
        ));
    }
    // kubeadm uses the address in the JoinConfiguration for the discovery only.
    let is_usable = https(&cluster.server).is_ok();
    let kubelet_server = if is_usable { &cluster.server } else { &server };
    if cluster.server != server {
        notes.push(format!(
            "cluster-info names {} as the API server; {server} from the JoinConfiguration is verified and used, and the kubelet.conf of a worker gets {kubelet_server}",
            cluster.server
        ));
    }
    let held = BearerToken::Held(bearer.to_bearer());
    Ok(Discovered {
        access: discovery.access(Some(&cluster.authority), Some(held))?,
        kubelet_server: kubelet_server.clone(),
        server,
        authority: cluster.authority,
        notes,
    })
}

/// One discovery with its inputs.
struct TokenDiscovery<'a> {
    network: &'a Network,
    token: &'a BootstrapToken,
    pins: &'a [[u8; 32]],
    server: String,
}

impl TokenDiscovery<'_> {
    /// Reads cluster-info from any server, and waits for the signature by the token: kube-controller-manager adds it some
    /// time after the token was created.
    async fn first_copy(&self) -> Result<ClusterInfo, DiscoveryError> {
        let api = self.api(None)?.provisional();
        let request = async || match read_cluster_info(&api).await {
            Ok(Some(object)) => match ClusterInfo::read(&object) {
                Ok(info) if info.is_signed_for(self.token) => Ok(info),
                Ok(_) => Err(FailedRequest::NotYet(DiscoveryError::NoSignature {
                    server: self.server.clone(),
                    id: self.token.id().to_owned(),
                })),
                Err(refusal) => Err(FailedRequest::NotYet(self.refused(refusal))),
            },
            Ok(None) => Err(FailedRequest::NotYet(DiscoveryError::NoClusterInfo {
                server: self.server.clone(),
            })),
            Err(api::ApiError::Refused(status)) if matches!(status.code, 401 | 403) => {
                let error = DiscoveryError::Anonymous {
                    server: self.server.clone(),
                    status: status.code,
                };
                // 401: anonymous access is disabled. 403: it is not allowed yet, which `kubeadm init` does late.
                Err(match status.code {
                    401 => FailedRequest::Final(error),
                    _ => FailedRequest::NotYet(error),
                })
            }
            Err(error) => Err(FailedRequest::of(DiscoveryError::call(&self.server, error))),
        };
        self.network.retry(request).await
    }

    fn verify(
        &self,
        info: &ClusterInfo,
    ) -> Result<(DiscoveredCluster, TrustBundle), cluster_info::ClusterInfoError> {
        info.verify(self.token)?;
        self.verify_pins(info)
    }

    /// Returns the cluster, and its CA certificates that are trusted because of the pins; without pins, all of them.
    fn verify_pins(
        &self,
        info: &ClusterInfo,
    ) -> Result<(DiscoveredCluster, TrustBundle), cluster_info::ClusterInfoError> {
        let cluster = info.cluster()?;
        let pinned = match self.pins {
            [] => cluster.authority.clone(),
            pins => pinned(&cluster.authority, pins, self.token)?,
        };
        Ok((cluster, pinned))
    }

    /// Reads cluster-info again from a server with a certificate of a pinned CA, and compares the two. While a cluster changes
    /// its CA, an API server has a certificate of either.
    async fn confirm(
        &self,
        info: &ClusterInfo,
        cluster: &DiscoveredCluster,
        pinned: &TrustBundle,
    ) -> Result<(), DiscoveryError> {
        let api = self.api(Some(pinned))?;
        let others = unpinned(cluster, pinned);
        let request = async || match read_cluster_info(&api).await {
            Ok(object) => match object.map(|object| ClusterInfo::read(&object)) {
                Some(Ok(second)) if second.says_the_same_as(info) => Ok(()),
                _ => Err(FailedRequest::Final(DiscoveryError::Changed {
                    server: self.server.clone(),
                })),
            },
            Err(api::ApiError::Http(source))
                if *source.kind() == http::HttpErrorKind::Untrusted && !others.is_empty() =>
            {
                Err(FailedRequest::NotYet(DiscoveryError::Unpinned {
                    server: self.server.clone(),
                    id: self.token.id().to_owned(),
                    found: named(others.iter().copied()),
                    source: Box::new(source),
                }))
            }
            Err(api::ApiError::Http(source))
                if *source.kind() == http::HttpErrorKind::Untrusted =>
            {
                Err(FailedRequest::Final(DiscoveryError::Impostor {
                    server: self.server.clone(),
                    named: cluster.server.clone(),
                    source: Box::new(source),
                }))
            }
            Err(error) => Err(FailedRequest::of(DiscoveryError::call(&self.server, error))),
        };
        self.network.retry(request).await
    }

    /// Finds out whether the content or the token's secret is wrong if the signature does not match: by the content from a
    /// server with a pinned CA.
    async fn explain_mismatch(&self, info: &ClusterInfo, id: String) -> DiscoveryError {
        let server = self.server.clone();
        let unknown = cluster_info::ClusterInfoError::Signature { id: id.clone() };
        // The content is from any server: without pins, no part of it can be trusted.
        let has_pins = !self.pins.is_empty();
        let trusted = has_pins.then(|| self.verify_pins(info).ok()).flatten();
        let Some(Ok(api)) = trusted.map(|(_, pinned)| self.api(Some(&pinned))) else {
            return self.refused(unknown);
        };
        match read_cluster_info(&api).await {
            Ok(Some(object)) => match ClusterInfo::read(&object) {
                Ok(second) if second == *info => DiscoveryError::WrongSecret { server, id },
                _ => DiscoveryError::Tampered { server, id },
            },
            Err(api::ApiError::Http(error)) if *error.kind() == http::HttpErrorKind::Untrusted => {
                DiscoveryError::Tampered { server, id }
            }
            _ => self.refused(unknown),
        }
    }

    fn api(&self, authority: Option<&TrustBundle>) -> Result<Api, DiscoveryError> {
        let access = self.access(authority, None)?;
        self.network.api(&self.server, access)
    }

    fn access(
        &self,
        authority: Option<&TrustBundle>,
        token: Option<BearerToken>,
    ) -> Result<ApiAccess, DiscoveryError> {
        let mut endpoint = https(&self.server).map_err(|why| {
            let invalid = api::ApiError::Local {
                file: format!("the address {}", self.server),
                why: format!("cannot be used: {why}"),
                advice: "correct discovery.bootstrapToken.apiServerEndpoint",
            };
            DiscoveryError::call(&self.server, invalid)
        })?;
        endpoint.tls.ca_pem = authority.map(|authority| authority.to_pem().into_bytes());
        Ok(ApiAccess::Direct {
            endpoint: Box::new(endpoint),
            token,
        })
    }

    fn refused(&self, source: cluster_info::ClusterInfoError) -> DiscoveryError {
        DiscoveryError::Refused {
            server: self.server.clone(),
            source,
        }
    }
}

/// Returns the CA certificates of a cluster that are not among the pinned ones.
fn unpinned<'c>(cluster: &'c DiscoveredCluster, pinned: &TrustBundle) -> Vec<&'c Certificate> {
    let all = cluster.authority.certificates().iter();
    all.filter(|one| !pinned.certificates().contains(one))
        .collect()
}
