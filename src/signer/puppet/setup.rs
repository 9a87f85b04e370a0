//! The script for the administrator of a Puppet CA: `ca.conf`, `auth.conf`, autosigning, and the certnames to sign.

use std::collections::BTreeSet;

use super::certname::{certname, not_a_certname};
use super::{CaServer, Config};
use crate::signer::shell::{filled, one_line};
use crate::signer::{NodeIdentity, Part};

/// Returns one script for the servers of all these signers: the settings are the same for each.
pub(super) fn print(parts: &[Part<'_, Config>], identity: &NodeIdentity) -> String {
    let servers: BTreeSet<String> = parts
        .iter()
        .map(|part| match &part.config.server {
            CaServer::Configured(endpoint) => endpoint.url.to_string(),
            CaServer::OfAgent(_) => "the CA server of this node's Puppet agent".to_owned(),
        })
        .map(|server| format!("#   {}", one_line(&server)))
        .collect();
    let certnames: BTreeSet<&str> = parts
        .iter()
        .flat_map(|part| &part.wanted)
        .map(|wanted| certname(wanted))
        // The signer refuses any other certname before it sends a request.
        .filter(|name| not_a_certname(name).is_none())
        .collect();
    let lines: String = certnames.iter().map(|name| format!("{name}\n")).collect();
    let commas = certnames.into_iter().collect::<Vec<_>>().join(",");
    let servers = servers.into_iter().collect::<Vec<_>>().join("\n");
    // Filled in one pass: a name of a cluster may contain any text.
    filled(
        include_str!("setup.sh"),
        &[
            ("NODE", &one_line(&identity.node)),
            ("CLUSTER", &one_line(&identity.cluster)),
            ("SERVERS", &servers),
            ("COMMAS", &commas),
            ("CERTNAMES", &lines),
        ],
    )
}
