//! The address of a Puppet CA: as configured, or that of the node's Puppet agent.

use std::path::Path;

use serde_json::{Map as JsonMap, Value};

use super::Config;
use super::agent::AgentConf;
use crate::http::{Endpoint, Files, Tls};
use crate::signer::endpoint::{self, Connection};
use crate::signer::{SignerError, SignerObstacle};
use crate::yaml::schema::MapKey;
use crate::yaml::settings::SettingsBlock;
use crate::yaml::{Field, Map};

/// The file of an agent from Puppet's own packages.
const AGENT_CONF: &str = "/etc/puppetlabs/puppet/puppet.conf";

/// Where the CA server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaServer {
    /// At this address.
    Configured(Endpoint),
    /// At the address that the node's Puppet agent uses.
    OfAgent(Connection),
}

impl CaServer {
    pub(super) fn tls(&self) -> &Tls {
        match self {
            CaServer::Configured(endpoint) => &endpoint.tls,
            CaServer::OfAgent(connection) => &connection.tls,
        }
    }
}

/// Keys in addition to `url`.
pub(super) const KEYS: &[MapKey] = endpoint::KEYS;

/// Reads the settings; `url` is the field with the address.
pub(super) fn read(map: &Map<'_>, url: Option<Field<'_>>) -> Option<CaServer> {
    match url {
        Some(url) => endpoint::read(map, Some(url)).map(CaServer::Configured),
        None => Connection::read_keys(map).map(CaServer::OfAgent),
    }
}

/// Adds the settings to `keys`, with the address under `key`.
pub(super) fn show(server: &CaServer, key: &str, keys: &mut JsonMap<String, Value>) {
    match server {
        CaServer::Configured(endpoint) => endpoint::show(endpoint, key, keys),
        CaServer::OfAgent(connection) => connection.show_keys(keys),
    }
}

impl Config {
    /// Returns the agent's file if the settings do not contain the address.
    pub(super) fn agent_conf(&self) -> Option<&Path> {
        match self.server {
            CaServer::Configured(_) => None,
            CaServer::OfAgent(_) => {
                Some(self.puppet_conf.as_deref().unwrap_or(Path::new(AGENT_CONF)))
            }
        }
    }

    /// Returns the endpoint: as configured, or with the address of the agent, and with its CA certificates if the settings
    /// do not say how the server is verified. `name` is that of the signer.
    pub(super) fn endpoint(&self, name: &str, files: &dyn Files) -> Result<Endpoint, SignerError> {
        let connection = match &self.server {
            CaServer::Configured(endpoint) => return Ok(endpoint.clone()),
            CaServer::OfAgent(connection) => connection.clone(),
        };
        let path = self.agent_conf().unwrap_or(Path::new(AGENT_CONF));
        let shown = files.shown(path).display().to_string();
        let bytes = files.read(path).map_err(|error| {
            let setting = format!("signers.{name}.puppet");
            SignerError::config(
                format!(
                    "{setting} has no url, and the settings of a Puppet agent cannot be read: {shown}: {error}"
                ),
                format!("set {setting}.url, or {setting}.puppetConf to the agent's file"),
            )
            .marked_by(&error)
        })?;
        self.of_agent(connection, path, &bytes).map_err(|fault| {
            SignerError::config(
                format!("{shown}: {fault}, and signers.{name}.puppet has no url"),
                fault.advice,
            )
        })
    }

    /// Returns the connection to the address in the agent's file, and its CA certificates if they are needed.
    fn of_agent(
        &self,
        connection: Connection,
        path: &Path,
        bytes: &[u8],
    ) -> Result<Endpoint, SignerObstacle> {
        let conf = AgentConf::parse(path, bytes)?;
        let mut endpoint = connection.to(conf.url()?);
        endpoint.service = conf.service()?;
        if self.ca_sha256.is_empty() && endpoint.tls.trusts_nothing() {
            endpoint.tls.ca_file = Some(conf.ca_file()?);
        }
        Ok(endpoint)
    }
}
