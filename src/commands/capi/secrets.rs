//! The Secrets of a workload cluster as the management cluster has them: names, type, data keys, and their text.
//!
//! Pure. Cluster API looks for name, label and data keys; a Secret of its own type (`cluster.x-k8s.io/secret`) it also
//! adopts. The external-CA proposal wants none adopted ([`Format::kind`]). To add a Secret, extend [`Purpose`] and
//! `Material::data`.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::kube::kubeadm::is_dns_subdomain;
use crate::kube::kubeconfig::wipe;
use crate::kube::names::Authority;
use crate::x509::{Chain, PrivateKey, TrustBundle};

/// The label by which Cluster API finds, and caches, a cluster's Secrets.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// The label that says who made a Secret.
pub const MADE_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const MADE_BY: &str = "nodepki";
/// The type of the Secrets that Cluster API makes itself.
pub const ADOPTED_TYPE: &str = "cluster.x-k8s.io/secret";
const OPAQUE: &str = "Opaque";

/// In `tls.key` where Cluster API wants something and there is nothing to be had.
const PLACEHOLDER: &[u8] = b"The private key of this authority is held by an external signer.\n";

/// A label's value has no more room.
const LONGEST_NAME: usize = 63;

/// A workload cluster and where its objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    cluster: String,
    namespace: String,
}

impl Target {
    /// Both names as the API server would take them.
    ///
    /// # Errors
    /// In words.
    pub fn new(cluster: &str, namespace: &str) -> Result<Self, String> {
        if !is_dns_subdomain(cluster) || cluster.len() > LONGEST_NAME {
            return Err(format!(
                "{cluster:?} is no name of a cluster; write it as in its Cluster object: small letters, digits, - and ., at most {LONGEST_NAME}"
            ));
        }
        if !is_dns_subdomain(namespace) || namespace.len() > LONGEST_NAME || namespace.contains('.')
        {
            return Err(format!("{namespace:?} is no name of a namespace"));
        }
        Ok(Target {
            cluster: cluster.to_owned(),
            namespace: namespace.to_owned(),
        })
    }

    /// Name of the Cluster object.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name of a Secret.
    pub fn name(&self, purpose: Purpose) -> String {
        format!("{}-{}", self.cluster, purpose.suffix())
    }
}

/// What a Secret is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The cluster CA's certificate.
    Ca,
    /// The etcd CA's.
    Etcd,
    /// The front-proxy CA's.
    Proxy,
    /// What the controllers show to etcd, and what they would write for kube-apiserver with an external etcd.
    EtcdClient,
    /// What the controllers, and people, reach the workload cluster with.
    Kubeconfig,
    /// The same certificate and key by themselves, as the proposal wants them.
    Admin,
}

impl Purpose {
    /// Authorities first: what they signed is judged by them.
    pub const ALL: [Purpose; 6] = [
        Purpose::Ca,
        Purpose::Etcd,
        Purpose::Proxy,
        Purpose::EtcdClient,
        Purpose::Kubeconfig,
        Purpose::Admin,
    ];

    /// What follows the cluster's name in the Secret's.
    pub const fn suffix(self) -> &'static str {
        match self {
            Purpose::Ca => "ca",
            Purpose::Etcd => "etcd",
            Purpose::Proxy => "proxy",
            Purpose::EtcdClient => "apiserver-etcd-client",
            Purpose::Kubeconfig => "kubeconfig",
            Purpose::Admin => "admin",
        }
    }

    /// Whose certificate it holds, or who signed the one in it.
    pub const fn authority(self) -> Authority {
        match self {
            Purpose::Ca | Purpose::Kubeconfig | Purpose::Admin => Authority::Ca,
            Purpose::Etcd | Purpose::EtcdClient => Authority::EtcdCa,
            Purpose::Proxy => Authority::FrontProxyCa,
        }
    }

    /// True for the certificate of an authority, false for a client's.
    pub const fn is_authority(self) -> bool {
        matches!(self, Purpose::Ca | Purpose::Etcd | Purpose::Proxy)
    }

    /// The Secret with the certificate of an authority.
    pub const fn of(authority: Authority) -> Self {
        match authority {
            Authority::Ca => Purpose::Ca,
            Authority::EtcdCa => Purpose::Etcd,
            Authority::FrontProxyCa => Purpose::Proxy,
        }
    }
}

/// Who is to read the Secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Cluster API as it is: authorities under `tls.crt`.
    Current,
    /// The external-CA proposal: authorities under `ca.crt`, the administrator's certificate by itself.
    Proposal,
    /// Either.
    Both,
}

impl Format {
    /// The Secrets that are made.
    pub fn purposes(self, external_etcd: bool) -> impl Iterator<Item = Purpose> {
        Purpose::ALL.into_iter().filter(move |purpose| {
            let wanted = *purpose != Purpose::Admin || self != Format::Current;
            wanted && !(external_etcd && purpose.authority() == Authority::EtcdCa)
        })
    }

    /// The type of a Secret. Even today's kubeconfig is not of Cluster API's own: one that KubeadmControlPlane has adopted
    /// it renews, half a year before its end, with the CA's private key, which is not there.
    pub const fn kind(self, purpose: Purpose) -> &'static str {
        match (self, purpose) {
            (Format::Current, Purpose::Kubeconfig) => OPAQUE,
            (Format::Current, _) => ADOPTED_TYPE,
            (Format::Proposal | Format::Both, _) => OPAQUE,
        }
    }

    /// The data keys that an authority's certificate stands under.
    pub const fn authority_keys(self) -> &'static [&'static str] {
        match self {
            Format::Current => &["tls.crt"],
            Format::Proposal => &["ca.crt"],
            Format::Both => &["ca.crt", "tls.crt"],
        }
    }
}

/// What the Secrets are made of.
pub struct Material {
    /// The authorities' certificates.
    pub authorities: BTreeMap<Authority, TrustBundle>,
    /// kube-apiserver's identity at etcd; none with an external etcd.
    pub etcd_client: Option<(Chain, PrivateKey)>,
    /// The administrator's certificate and key.
    pub admin: (Chain, PrivateKey),
    /// Both in a kubeconfig.
    pub kubeconfig: Zeroizing<Vec<u8>>,
}

impl Material {
    /// The Secrets. With `placeholders`, the authorities that Cluster API wants a key of get one that is none.
    pub fn secrets(&self, target: &Target, format: Format, placeholders: bool) -> Vec<Secret> {
        let purposes = format.purposes(self.etcd_client.is_none());
        purposes
            .filter_map(|purpose| {
                Some(Secret {
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
                // KubeadmControlPlane takes whatever is in `<cluster>-etcd` for the etcd CA's key and signs with it.
                if placeholders && purpose != Purpose::Etcd {
                    data.insert("tls.key", Zeroizing::new(PLACEHOLDER.to_vec()));
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
pub type Data = BTreeMap<&'static str, Zeroizing<Vec<u8>>>;

/// A Secret that is wanted.
pub struct Secret {
    /// What for.
    pub purpose: Purpose,
    /// Whose.
    pub target: Target,
    /// `type`.
    pub kind: &'static str,
    /// Contents.
    pub data: Data,
}

/// Without the contents.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, {:?})", self.name(), self.data.keys())
    }
}

impl Secret {
    /// Its name.
    pub fn name(&self) -> String {
        self.target.name(self.purpose)
    }

    /// The labels that it must have.
    pub fn labels(&self) -> [(&'static str, &str); 2] {
        [
            (MADE_BY_LABEL, MADE_BY),
            (CLUSTER_LABEL, &self.target.cluster),
        ]
    }

    /// As the API takes it.
    pub fn object(&self) -> Object {
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

/// The Secrets as one file that `kubectl apply -f` takes.
pub fn manifest(secrets: &[Secret]) -> Zeroizing<String> {
    // Names are checked and base64 has no quotes: nothing in it needs an emitter, which would leave copies of keys behind.
    let size = |secret: &Secret| 1024 + secret.data.values().map(|v| v.len() * 2).sum::<usize>();
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

/// A Secret as JSON, wiped when it is dropped.
pub struct Object(pub Value);

impl Drop for Object {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl Object {
    /// `metadata.name`.
    pub fn name(&self) -> Option<&str> {
        self.0.pointer("/metadata/name")?.as_str()
    }

    /// `metadata.namespace`.
    pub fn namespace(&self) -> Option<&str> {
        self.0.pointer("/metadata/namespace")?.as_str()
    }

    /// `type`; a Secret without one is Opaque.
    pub fn kind(&self) -> &str {
        let kind = self.0.get("type").and_then(Value::as_str);
        kind.filter(|kind| !kind.is_empty()).unwrap_or(OPAQUE)
    }

    /// A label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.0.get("metadata")?.get("labels")?.get(name)?.as_str()
    }

    /// Who owns it, `Kind/name`.
    pub fn owners(&self) -> Vec<String> {
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

    /// The contents of a data key; `stringData` goes first, as in the API server. What is not base64 is as it stands,
    /// and no certificate either way.
    pub fn data(&self, key: &str) -> Option<Zeroizing<Vec<u8>>> {
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
