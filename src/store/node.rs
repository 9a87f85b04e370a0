//! The identity that the pending requests of this node were made for: `node.json` in the state directory.
//!
//! Written before the first request of a run. Until all requests are answered, neither the kubeadm file (`/run` is
//! empty after a boot) nor the files of the node (kubelet.conf, the manifests) are a reliable description of the node.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::{Damage, StoreError};
use super::state_file::StateFile;
use super::{NodeRoot, STATE_DIR, Store};
use crate::kube::kubeadm::{HostPort, KubeadmRole, NodeConfig, join_host_port};

pub(super) const NODE: StateFile = StateFile::of_knowledge("node.json", 1);

words! {
    /// A part of a node's identity that a run changes only with explicit consent.
    #[derive(PartialOrd, Ord)]
    pub enum IdentityPart: Serialize, Deserialize {
        /// Name of the Node object, subject of kubelet.conf and of etcd's certificates.
        Name = "name",
        /// Address and port of the API server.
        Address = "address",
        /// First control-plane node, further control-plane node, worker, or etcd member.
        Role = "role",
    }
}

/// The identity that pending requests were made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The node, without its JoinConfiguration.
    pub node: NodeConfig,
    /// The parts that differed from the running node and were accepted with an option of the command line. A later run
    /// completes the change without that option.
    pub accepted: BTreeSet<IdentityPart>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeFile {
    name: String,
    role: KubeadmRole,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    advertise_address: Option<IpAddr>,
    bind_port: u16,
    /// URL of the API server in a worker's kubelet.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// `discovery.bootstrapToken.apiServerEndpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    join_endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname_override: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubelet_addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kubelet_cert_dir: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    accepted_changes: BTreeSet<IdentityPart>,
}

impl NodeFile {
    fn of(kept: &NodeRecord) -> NodeFile {
        let node = &kept.node;
        NodeFile {
            name: node.name.as_str().to_owned(),
            role: node.role,
            advertise_address: node.advertise_address,
            bind_port: node.bind_port,
            server: node.server.clone(),
            join_endpoint: node.join_endpoint.as_ref().map(|endpoint| {
                let HostPort { host, port } = endpoint;
                port.map_or_else(|| host.to_string(), |port| join_host_port(host, port))
            }),
            hostname_override: node.hostname_override.clone(),
            kubelet_addresses: node.kubelet_addresses.clone(),
            kubelet_cert_dir: node.kubelet_cert_dir.clone(),
            accepted_changes: kept.accepted.clone(),
        }
    }

    fn into_kept_node(self) -> Result<NodeRecord, Damage> {
        fn invalid<E>(field: &'static str) -> impl FnOnce(E) -> Damage
        where
            E: std::error::Error + Send + Sync + 'static,
        {
            move |source| Damage::Field {
                field,
                source: Arc::new(source),
            }
        }
        let join_endpoint = self.join_endpoint.as_deref().map(HostPort::parse);
        let join_endpoint = join_endpoint.transpose().map_err(invalid("joinEndpoint"))?;
        let node = NodeConfig {
            role: self.role,
            name: self.name.parse().map_err(invalid("name"))?,
            advertise_address: self.advertise_address,
            bind_port: self.bind_port,
            hostname_override: self.hostname_override,
            kubelet_addresses: self.kubelet_addresses,
            kubelet_cert_dir: self.kubelet_cert_dir,
            server: self.server,
            join_endpoint: join_endpoint.map(|(endpoint, _)| endpoint),
            join: None,
        };
        if node.role != KubeadmRole::Worker && node.advertise_address.is_none() {
            return Err(Damage::Missing("advertiseAddress"));
        }
        Ok(NodeRecord {
            node,
            accepted: self.accepted_changes,
        })
    }
}

/// Returns the path of the record, on the node.
pub(crate) fn node_record_path() -> PathBuf {
    NODE.path()
}

impl NodeRoot {
    /// Returns the identity of the last run with requests; `None` if no run recorded one.
    pub(crate) fn saved_node(&self) -> Result<Option<NodeRecord>, StoreError> {
        let file: Option<NodeFile> = self.record(&NODE)?;
        file.map(NodeFile::into_kept_node)
            .transpose()
            .map_err(|source| StoreError::Damaged {
                path: self.on_this_machine(node_record_path()),
                source,
            })
    }
}

impl Store {
    /// Records the identity of the node and `files` of the state directory, each atomically and durably.
    pub(crate) fn save_node<'a>(
        &self,
        kept: &NodeRecord,
        files: impl IntoIterator<Item = (&'a Path, &'a [u8])>,
    ) -> Result<(), StoreError> {
        for (path, bytes) in files {
            if let Ok(name) = path.strip_prefix(STATE_DIR) {
                self.state.write_atomic(name, bytes, 0o600)?;
            }
        }
        let json = to_json(kept);
        self.state
            .write_atomic(OsStr::new(NODE.name), &json, 0o600)?;
        Ok(())
    }
}

pub(super) fn to_json(kept: &NodeRecord) -> Vec<u8> {
    NODE.to_json(&NodeFile::of(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Result<NodeRecord, String> {
        let parsed = NODE.parse::<NodeFile>(text.as_bytes(), PathBuf::new());
        let file = parsed.map_err(|error| error.to_string())?;
        file.into_kept_node().map_err(|damage| damage.to_string())
    }

    #[test]
    fn reads_what_it_has_written() {
        for kept in [
            NodeRecord {
                node: NodeConfig {
                    role: KubeadmRole::Join,
                    name: "cp2".parse().unwrap(),
                    advertise_address: Some("fd00::2".parse().unwrap()),
                    bind_port: 7443,
                    hostname_override: Some("other".to_owned()),
                    kubelet_addresses: vec!["fd00::2".parse().unwrap()],
                    kubelet_cert_dir: Some("/var/lib/kubelet/certs".into()),
                    server: None,
                    join_endpoint: Some(HostPort::parse("[fd00::1]:6443").unwrap().0),
                    join: None,
                },
                accepted: BTreeSet::from([IdentityPart::Name, IdentityPart::Address]),
            },
            NodeRecord {
                node: NodeConfig {
                    role: KubeadmRole::Worker,
                    name: "w1".parse().unwrap(),
                    advertise_address: None,
                    bind_port: 6443,
                    hostname_override: None,
                    kubelet_addresses: Vec::new(),
                    kubelet_cert_dir: None,
                    server: Some("https://api.example.com/prod".to_owned()),
                    join_endpoint: Some(HostPort::parse("api.example.com").unwrap().0),
                    join: None,
                },
                accepted: BTreeSet::new(),
            },
        ] {
            let json = String::from_utf8(to_json(&kept)).unwrap();
            assert_eq!(node(&json), Ok(kept), "{json}");
        }
    }

    #[test]
    fn refuses_record_without_name_or_address() {
        for text in [
            r#"{"version":1,"role":"init","advertiseAddress":"192.0.2.1","bindPort":6443}"#,
            r#"{"version":1,"name":"a b","role":"init","advertiseAddress":"192.0.2.1","bindPort":6443}"#,
            r#"{"version":1,"name":"cp1","role":"init","bindPort":6443}"#,
            r#"{"version":1,"name":"cp1","role":"king","advertiseAddress":"192.0.2.1","bindPort":6443}"#,
        ] {
            assert!(node(text).is_err(), "{text}");
        }
    }
}
