//! Shared certificates: what kubeadm copies between control-plane nodes by way of the Secret `kubeadm-certs`.
//!
//! Owns the way from the cluster to the files and back; the format is the matter of [`sharedcerts`].

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::agent::{ExitCode, Failure};
use crate::kubeadm::{Cluster, Etcd};
use crate::kubeapi::{Api, Resource};
use crate::names::Authority;
use crate::sharedcerts::{self, CertificateKey, Entry, NAMESPACE, SECRET, SharedCerts, UPLOAD};

/// Secrets of the core API.
const SECRETS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "secrets",
    kind: "Secret",
};

/// What a control-plane node of this cluster takes from the others, with or without the authorities' private keys.
pub fn needed(cluster: &Cluster, with_ca_keys: bool) -> BTreeSet<Entry> {
    let mut needed = BTreeSet::from([Entry::ServiceAccountKey, Entry::ServiceAccountPublic]);
    let mut authorities = vec![Authority::Ca, Authority::FrontProxyCa];
    match &cluster.etcd {
        Etcd::Local { .. } => authorities.push(Authority::EtcdCa),
        Etcd::External {
            ca_file,
            cert_file,
            key_file,
            ..
        } => {
            for (file, entry) in [
                (ca_file, Entry::ExternalEtcdAuthority),
                (cert_file, Entry::ExternalEtcdCertificate),
                (key_file, Entry::ExternalEtcdKey),
            ] {
                needed.extend(file.as_ref().map(|_| entry));
            }
        }
    }
    for authority in authorities {
        needed.insert(Entry::Authority(authority));
        if with_ca_keys {
            needed.insert(Entry::AuthorityKey(authority));
        }
    }
    needed
}

/// Reads the Secret and takes what is needed from it, and notes on what is not.
///
/// # Errors
/// When the Secret cannot be read, or does not have what is needed.
pub async fn fetch(
    api: &Api,
    key: &CertificateKey,
    needed: &BTreeSet<Entry>,
) -> Result<(SharedCerts, Vec<String>), Failure> {
    let secret = api
        .read(&SECRETS, Some(NAMESPACE), SECRET)
        .await
        .map_err(|error| {
            Failure::of_cluster(format!("reading the Secret {NAMESPACE}/{SECRET}"), &error)
        })?
        .ok_or_else(|| {
            Failure::new(
                ExitCode::Refused,
                format!(
                    "there is no Secret {NAMESPACE}/{SECRET}: nothing was uploaded, or it has expired, as it does two hours after each upload; upload again on a control-plane node, and use the certificate key that this prints: {UPLOAD}"
                ),
            )
        })?;
    sharedcerts::open(&data(&secret)?, key, needed).map_err(|error| Failure {
        code: ExitCode::Refused,
        messages: error.messages(),
    })
}

/// The API server gives each value in base64, and no `data` at all for a Secret without any.
fn data(secret: &Value) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let entries = secret.get("data").and_then(Value::as_object);
    entries
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let text = value.as_str().unwrap_or_default();
            match BASE64_STANDARD.decode(text) {
                Ok(bytes) => Ok((name.clone(), bytes)),
                Err(_) => Err(Failure::new(
                    ExitCode::Refused,
                    format!(
                        "{name:?} in the Secret {NAMESPACE}/{SECRET} is not base64, which no API server gives; make sure that the address is that of a Kubernetes API server"
                    ),
                )),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn names(cluster: &Cluster, with_ca_keys: bool) -> String {
        let names: Vec<_> = needed(cluster, with_ca_keys)
            .into_iter()
            .map(Entry::as_str)
            .collect();
        names.join(" ")
    }

    #[test]
    fn the_needed_set_follows_etcd() {
        let mut cluster = Cluster::default();
        assert_eq!(
            names(&cluster, false),
            "ca.crt etcd-ca.crt front-proxy-ca.crt sa.key sa.pub"
        );
        assert_eq!(
            names(&cluster, true),
            "ca.crt etcd-ca.crt front-proxy-ca.crt ca.key etcd-ca.key front-proxy-ca.key sa.key sa.pub"
        );
        let external = |name: Option<&str>| Etcd::External {
            endpoints: vec!["http://192.0.2.21:2379".to_owned()],
            ca_file: name.map(PathBuf::from),
            cert_file: name.map(PathBuf::from),
            key_file: name.map(PathBuf::from),
        };
        cluster.etcd = external(Some("/etc/etcd/file"));
        assert_eq!(
            names(&cluster, false),
            "ca.crt front-proxy-ca.crt sa.key sa.pub external-etcd-ca.crt external-etcd.crt external-etcd.key"
        );
        cluster.etcd = external(None);
        assert_eq!(
            names(&cluster, true),
            "ca.crt front-proxy-ca.crt ca.key front-proxy-ca.key sa.key sa.pub"
        );
    }
}
