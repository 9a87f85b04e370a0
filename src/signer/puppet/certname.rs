//! The certname of a certificate, and what prevents a Puppet CA from issuing the certificate. No I/O.

use super::Puppet;
use crate::kube::names::Authority;
use crate::signer::RequestedCertificate;
use crate::x509::ExtendedUsage;

impl Puppet {
    /// Returns what prevents this CA, as configured, from issuing the certificate, each with the required action.
    pub(super) fn obstacles(&self, wanted: &RequestedCertificate) -> Vec<(String, String)> {
        let mut obstacles = Vec::new();
        let (name, authority, certname) = (wanted.name, wanted.authority, certname(wanted));
        let another_name = if name.has_free_common_name() {
            format!("add commonNames: {{{name}: \"{name}.{{node}}\"}}")
        } else {
            format!("configure another signer for authority {authority}, in `authorities`")
        };
        let node = &self.identity.node;
        if let Some(why) = not_a_certname(certname) {
            obstacles.push((
                format!("CN={certname} is not a valid certname: {why}"),
                another_name,
            ));
        } else if certname == node {
            obstacles.push((
                format!(
                    "CN={certname} is the node's own name: etcd-server, etcd-peer and the node's Puppet agent would share one certname, and a Puppet CA has one certificate per certname"
                ),
                another_name,
            ));
        } else if !names_node(certname, node) {
            obstacles.push((
                format!(
                    "CN={certname} is the same on every node, and a Puppet CA has one certificate per certname"
                ),
                another_name,
            ));
        }
        let both = [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth];
        let extra: Vec<_> = both
            .iter()
            .filter(|usage| !wanted.profile.usages.contains(usage))
            .map(ToString::to_string)
            .collect();
        if !extra.is_empty() && !wanted.tolerance.extra_usages {
            obstacles.push((
                format!("a Puppet CA certifies {} as well", extra.join(" and ")),
                format!("to accept this, add authorities.{authority}.allowExtraUsages: true"),
            ));
        }
        if !self.config.accept_shared_ca {
            let reach = match authority {
                Authority::EtcdCa => "could read and write all of etcd",
                Authority::FrontProxyCa => "with the right name could impersonate any user",
                Authority::Ca => "would be a client of kube-apiserver",
            };
            obstacles.push((
                format!("every other certificate of that Puppet CA, each agent's included, {reach}"),
                format!(
                    "use a Puppet CA for this cluster alone, and confirm it with signers.{}.puppet.acceptSharedCA: true",
                    self.name
                ),
            ));
        }
        obstacles
    }
}

pub(super) fn certname(wanted: &RequestedCertificate) -> &str {
    &wanted.profile.subject.common_name
}

/// Returns why a text is not a valid certname, by the rules of Puppet Server 8.
pub(super) fn not_a_certname(text: &str) -> Option<&'static str> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = |part: &str| {
        let bytes = part.as_bytes();
        bytes.iter().all(|byte| word(*byte) || *byte == b'-')
            && bytes.last().is_some_and(|byte| word(*byte))
    };
    if text == "ca" {
        Some("it is the name of the CA")
    } else if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Some("certnames are lower-case")
    } else if !text.bytes().next().is_some_and(word) || !text.split('.').all(good) {
        Some("use letters, digits, _ and - in parts separated by dots, none of them ending with -")
    } else {
        None
    }
}

/// Returns whether `certname` contains the node's name as a separate word.
fn names_node(certname: &str, node: &str) -> bool {
    certname.match_indices(node).any(|(at, found)| {
        let before = certname.get(..at).and_then(|text| text.chars().next_back());
        let after = certname
            .get(at + found.len()..)
            .and_then(|text| text.chars().next());
        [before, after]
            .iter()
            .all(|neighbour| neighbour.is_none_or(|one| !one.is_alphanumeric()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_same_certnames_as_puppet_server() {
        for (text, good) in [
            ("etcd-peer.cp1", true),
            ("kube_apiserver.cp1.example.com", true),
            ("_x", true),
            ("1", true),
            ("ca", false),
            ("", false),
            ("Etcd.cp1", false),
            ("-etcd.cp1", false),
            ("etcd-.cp1", false),
            ("etcd.cp1-", false),
            ("etcd..cp1", false),
            ("etcd.cp1.", false),
            ("*.cp1", false),
            ("system:node:cp1", false),
            ("etcd cp1", false),
            ("etcd/cp1", false),
            ("étcd.cp1", false),
        ] {
            assert_eq!(not_a_certname(text).is_none(), good, "{text}");
        }
    }

    #[test]
    fn finds_node_name_only_as_separate_word() {
        for (certname, named) in [
            ("etcd-peer.cp1", true),
            ("cp1.etcd", true),
            ("etcd-cp1-peer", true),
            ("etcd-peer.cp11", false),
            ("etcd-peer.xcp1", false),
            ("etcd-peer", false),
        ] {
            assert_eq!(names_node(certname, "cp1"), named, "{certname}");
        }
    }
}
