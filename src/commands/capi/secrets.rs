//! The Secrets of a workload cluster in the management cluster: names, types, data keys, and their manifest.
//!
//! Pure. Cluster API finds a Secret by name, label and data keys, and adopts a Secret of its own type
//! (`cluster.x-k8s.io/secret`). The external-CA proposal wants none adopted ([`Format::kind`]). To add a Secret, extend
//! [`Purpose`] and `SecretMaterial::data`.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::kube::kubeadm::is_dns_subdomain;
use crate::kube::kubeconfig::wipe;
use crate::kube::names::Authority;
use crate::x509::{Chain, PrivateKey, TrustBundle};

/// Label by which Cluster API finds and caches a cluster's Secrets.
pub(super) const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// Label that names the program that manages a Secret.
pub(super) const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`] in the Secrets that nodepki creates.
pub(super) const MANAGED_BY_NODEPKI: &str = "nodepki";
/// Type of the Secrets that Cluster API creates, and adopts.
pub(super) const ADOPTED_TYPE: &str = "cluster.x-k8s.io/secret";
const OPAQUE_TYPE: &str = "Opaque";

/// Content of `tls.key` if Cluster API requires the entry and the key is not available.
pub(super) const KEY_PLACEHOLDER: &[u8] =
    b"The private key of this authority is held by an external signer.\n";

/// Maximum length of a name, in bytes, since names are also label values.
const MAX_NAME_LENGTH: usize = 63;

/// Names of a workload cluster and of the namespace of its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterTarget {
    cluster: String,
    namespace: String,
}

impl ClusterTarget {
    /// Verifies both names by the rules of the API server.
    pub(super) fn new(cluster: &str, namespace: &str) -> Result<Self, String> {
        if !is_dns_subdomain(cluster) || cluster.len() > MAX_NAME_LENGTH {
            return Err(format!(
                "{cluster:?} is not a valid cluster name (use the name of the Cluster object: lower-case letters, digits, - and ., at most {MAX_NAME_LENGTH})"
            ));
        }
        if !is_dns_subdomain(namespace)
            || namespace.len() > MAX_NAME_LENGTH
            || namespace.contains('.')
        {
            return Err(format!("{namespace:?} is not a valid namespace"));
        }
        Ok(ClusterTarget {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
        })
    }

    /// Returns the name of the Cluster object.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name of a Secret.
    pub(super) fn name(&self, purpose: Purpose) -> String {
        format!("{}-{}", self.cluster, purpose.as_str())
    }
}

words! {
    /// The content of a Secret, by the part of the Secret's name after the cluster's name. Authorities are first, since the
    /// other certificates are judged by them.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Purpose {
        /// The cluster CA's certificate.
        Ca = "ca",
        /// The etcd CA's certificate.
        Etcd = "etcd",
        /// The front-proxy CA's certificate.
        Proxy = "proxy",
        /// The controllers' client certificate for etcd, which they would also write for kube-apiserver with an external
        /// etcd.
        EtcdClient = "apiserver-etcd-client",
        /// The kubeconfig with which controllers and users access the workload cluster.
        Kubeconfig = "kubeconfig",
        /// The certificate and key of that kubeconfig as separate entries, as the proposal requires.
        Admin = "admin",
    }
}

impl Purpose {
    /// Returns the authority whose certificate the Secret contains, or that signed the certificate in it.
    pub(super) const fn authority(self) -> Authority {
        match self {
            Purpose::Ca | Purpose::Kubeconfig | Purpose::Admin => Authority::Ca,
            Purpose::Etcd | Purpose::EtcdClient => Authority::EtcdCa,
            Purpose::Proxy => Authority::FrontProxyCa,
        }
    }

    /// Returns whether the Secret contains the certificate of an authority, not of a client.
    pub(super) const fn is_authority(self) -> bool {
        matches!(self, Purpose::Ca | Purpose::Etcd | Purpose::Proxy)
    }

    /// Returns the purpose of the Secret with an authority's certificate.
    pub(super) const fn of(authority: Authority) -> Self {
        match authority {
            Authority::Ca => Purpose::Ca,
            Authority::EtcdCa => Purpose::Etcd,
            Authority::FrontProxyCa => Purpose::Proxy,
        }
    }
}

/// Consumer for which the Secrets are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Today's Cluster API: CA certificates in tls.crt
    Current,
    /// The external-CA proposal: CA certificates in ca.crt, and CLUSTER-admin
    Proposal,
    /// Both
    Both,
}

impl Format {
    /// Returns the Secrets of this format.
    pub(super) fn purposes(self, external_etcd: bool) -> impl Iterator<Item = Purpose> {
        Purpose::ALL.into_iter().filter(move |purpose| {
            let wanted = *purpose != Purpose::Admin || self != Format::Current;
            wanted && !(external_etcd && purpose.authority() == Authority::EtcdCa)
        })
    }

    /// Returns the type of a Secret. The kubeconfig never has Cluster API's type: KubeadmControlPlane adopts such a
    /// kubeconfig and renews it half a year before its expiry with the CA's private key, which does not exist here.
    pub(super) const fn kind(self, purpose: Purpose) -> &'static str {
        match (self, purpose) {
            (Format::Current, Purpose::Kubeconfig) => OPAQUE_TYPE,
            (Format::Current, _) => ADOPTED_TYPE,
            (Format::Proposal | Format::Both, _) => OPAQUE_TYPE,
        }
    }

    /// Returns the data keys that contain an authority's certificate.
    pub(super) const fn authority_keys(self) -> &'static [&'static str] {
        match self {
            Format::Current => &["tls.crt"],
            Format::Proposal => &["ca.crt"],
            Format::Both => &["ca.crt", "tls.crt"],
        }
    }
}

/// Certificates and keys for the Secrets.
pub(super) struct SecretMaterial {
    pub(super) authorities: BTreeMap<Authority, TrustBundle>,
    /// Client certificate and key for etcd; `None` with an external etcd.
    pub(super) etcd_client: Option<(Chain, PrivateKey)>,
    /// The administrator's certificate and key.
    pub(super) admin: (Chain, PrivateKey),
    /// Kubeconfig that contains `admin`.
    pub(super) kubeconfig: Zeroizing<Vec<u8>>,
}

impl SecretMaterial {
    /// Returns the Secrets. With `placeholders`, the authorities whose key Cluster API requires get a placeholder.
    pub(super) fn secrets(
        &self,
        target: &ClusterTarget,
        format: Format,
        placeholders: bool,
    ) -> Vec<SecretSpec> {
        let purposes = format.purposes(self.etcd_client.is_none());
        purposes
            .filter_map(|purpose| {
                Some(SecretSpec {
                    purpose,
                    target: target.clone(),
                    kind: format.kind(purpose),
                    data: self.data(purpose, format, placeholders)?,
                })
            })
            .collect()
    }

    fn data(&self, purpose: Purpose, format: Format, placeholders: bool) -> Option<Data> {
        let pair = |(chain, key): &(Chain, PrivateKey)| {
            Data::from([
                ("tls.crt", Zeroizing::new(chain.to_pem().into_bytes())),
                ("tls.key", Zeroizing::new(key.to_pem().as_bytes().to_vec())),
            ])
        };
        match purpose {
            Purpose::Ca | Purpose::Etcd | Purpose::Proxy => {
                let pem = self.authorities.get(&purpose.authority())?.to_pem();
                let keys = format.authority_keys().iter();
                let mut data: Data = keys
                    .map(|key| (*key, Zeroizing::new(pem.clone().into_bytes())))
                    .collect();
                // KubeadmControlPlane signs with any `tls.key` in `<cluster>-etcd`.
                if placeholders && purpose != Purpose::Etcd {
                    data.insert("tls.key", Zeroizing::new(KEY_PLACEHOLDER.to_vec()));
                }
                Some(data)
            }
            Purpose::EtcdClient => self.etcd_client.as_ref().map(pair),
            Purpose::Kubeconfig => Some(Data::from([("value", self.kubeconfig.clone())])),
            Purpose::Admin => Some(pair(&self.admin)),
        }
    }
}

/// Contents by data key.
type Data = BTreeMap<&'static str, Zeroizing<Vec<u8>>>;

/// A desired Secret.
pub(super) struct SecretSpec {
    pub(super) purpose: Purpose,
    /// Cluster to which it belongs.
    pub(super) target: ClusterTarget,
    /// `type` of the Secret.
    pub(super) kind: &'static str,
    pub(super) data: Data,
}

/// Omits the contents.
impl fmt::Debug for SecretSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, {:?})", self.name(), self.data.keys())
    }
}

impl SecretSpec {
    pub(super) fn name(&self) -> String {
        self.target.name(self.purpose)
    }

    /// Returns the required labels.
    pub(super) fn labels(&self) -> [(&'static str, &str); 2] {
        [
            (MANAGED_BY_LABEL, MANAGED_BY_NODEPKI),
            (CLUSTER_LABEL, &self.target.cluster),
        ]
    }

    /// Returns the object to create through the API.
    pub(super) fn object(&self) -> Object {
        let text = |text: &str| Value::String(text.to_owned());
        let labels: Map<String, Value> = self
            .labels()
            .map(|(label, value)| (label.to_owned(), text(value)))
            .into_iter()
            .collect();
        let data: Map<String, Value> = self
            .data
            .iter()
            .map(|(key, bytes)| ((*key).to_owned(), Value::String(BASE64.encode(bytes))))
            .collect();
        Object(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name(), "namespace": self.target.namespace, "labels": labels},
            "type": self.kind,
            "data": data,
        }))
    }
}

/// Returns the Secrets as one manifest for `kubectl apply -f`.
pub(super) fn manifest(secrets: &[SecretSpec]) -> Zeroizing<String> {
    // Written without an emitter, which would leave copies of keys in memory. Nothing needs escaping: the names are
    // verified, and base64 contains no quotes.
    let size =
        |secret: &SecretSpec| 1024 + secret.data.values().map(|v| v.len() * 2).sum::<usize>();
    let mut text = Zeroizing::new(String::with_capacity(secrets.iter().map(size).sum()));
    for secret in secrets {
        text.push_str("---\napiVersion: v1\nkind: Secret\nmetadata:\n  labels:\n");
        for (label, value) in secret.labels() {
            text.push_str(&format!("    {label}: \"{value}\"\n"));
        }
        let (name, namespace) = (secret.name(), &secret.target.namespace);
        text.push_str(&format!(
            "  name: \"{name}\"\n  namespace: \"{namespace}\"\ntype: {}\ndata:\n",
            secret.kind
        ));
        for (key, bytes) in &secret.data {
            text.push_str(&format!("  {key}: "));
            BASE64.encode_string(bytes, &mut text);
            text.push('\n');
        }
    }
    text
}

/// A Secret as JSON, wiped on drop.
pub(super) struct Object(pub(super) Value);

impl Drop for Object {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl Object {
    pub(super) fn name(&self) -> Option<&str> {
        self.0.pointer("/metadata/name")?.as_str()
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.0.pointer("/metadata/namespace")?.as_str()
    }

    /// Returns `type`; a Secret without one is `Opaque`.
    pub(super) fn kind(&self) -> &str {
        let kind = self.0.get("type").and_then(Value::as_str);
        kind.filter(|kind| !kind.is_empty()).unwrap_or(OPAQUE_TYPE)
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.0.get("metadata")?.get("labels")?.get(name)?.as_str()
    }

    /// Returns the owners, as `Kind/name`.
    pub(super) fn owners(&self) -> Vec<String> {
        let owners = self.0.pointer("/metadata/ownerReferences");
        let text = |owner: &Value, field| {
            let text = owner.get(field).and_then(Value::as_str);
            text.unwrap_or("?").to_owned()
        };
        let owners = owners.and_then(Value::as_array).into_iter().flatten();
        owners
            .map(|owner| format!("{}/{}", text(owner, "kind"), text(owner, "name")))
            .collect()
    }

    /// Returns the content of a data key. `stringData` takes precedence, as in the API server. A value that is not base64
    /// is returned unchanged; it is not a certificate in either form.
    pub(super) fn data(&self, key: &str) -> Option<Zeroizing<Vec<u8>>> {
        let entry = |part: &str| self.0.get(part)?.get(key)?.as_str();
        if let Some(text) = entry("stringData") {
            return Some(Zeroizing::new(text.as_bytes().to_vec()));
        }
        let text = entry("data")?;
        Some(Zeroizing::new(
            BASE64
                .decode(text)
                .unwrap_or_else(|_| text.as_bytes().to_vec()),
        ))
    }
}
