//! Who reads which file, and whether a new one is seen while the reader runs.
//!
//! Owns the table: from a [`Change`] to the [`Component`]s that must be started anew for it. Pure; how they are
//! restarted is `reload`'s matter, that they have to be is recorded by `store`.
//!
//! The table was read in the sources of Kubernetes 1.36 and etcd 3.6. Of everything that is renewed only two files need
//! a restart: controller-manager.conf and scheduler.conf, whose certificates are embedded, read once, and mounted as
//! single files, so that a running container keeps the old inode. kube-apiserver follows its serving pair, its client
//! CAs and its clients' pairs in the directory (`dynamiccertificates`, `cert_rotation.go` of client-go), etcd reads its
//! pairs at every handshake.
//!
//! Nothing depends on the version. What is said to be live here has been so since before 1.29, the oldest release that
//! nodepki serves; and what a server shows is proven after each renewal, so that a reader that stays with the old pair
//! is found. One row depends on it: the kubelet follows its client CA since 1.36 only, and is restarted whatever its
//! version, which disturbs no pod.
//!
//! To add a reader: a row in [`restarts`], and its case in the test.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kube::names::{Authority, CertName, UnknownName};

/// A program that reads certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the serialized name is the documentation")]
pub enum Component {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubelet,
}

impl Component {
    /// All, in the order in which they are restarted: who is asked before who asks.
    pub const ALL: [Component; 5] = [
        Component::Etcd,
        Component::KubeApiserver,
        Component::KubeControllerManager,
        Component::KubeScheduler,
        Component::Kubelet,
    ];

    /// The name of the static pod, or of the program.
    pub const fn as_str(self) -> &'static str {
        match self {
            Component::Etcd => "etcd",
            Component::KubeApiserver => "kube-apiserver",
            Component::KubeControllerManager => "kube-controller-manager",
            Component::KubeScheduler => "kube-scheduler",
            Component::Kubelet => "kubelet",
        }
    }

    /// Where kubeadm writes its static pod; `None` for what is none.
    pub const fn manifest(self) -> Option<&'static str> {
        match self {
            Component::Etcd => Some("/etc/kubernetes/manifests/etcd.yaml"),
            Component::KubeApiserver => Some("/etc/kubernetes/manifests/kube-apiserver.yaml"),
            Component::KubeControllerManager => {
                Some("/etc/kubernetes/manifests/kube-controller-manager.yaml")
            }
            Component::KubeScheduler => Some("/etc/kubernetes/manifests/kube-scheduler.yaml"),
            Component::Kubelet => None,
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Component {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Component::ALL
            .into_iter()
            .find(|component| component.as_str() == name)
            .ok_or_else(|| UnknownName::new("component", name))
    }
}

/// What was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// A certificate with its key, or a kubeconfig.
    Certificate(CertName),
    /// The certificates of an authority: `ca.crt` and its like.
    Bundle(Authority),
    /// `sa.key` or `sa.pub`.
    ServiceAccount,
    /// The kubelet's configuration file.
    KubeletConfiguration,
}

impl Change {
    /// All that there can be.
    pub fn all() -> impl Iterator<Item = Change> {
        let certificates = CertName::ALL.into_iter().map(Change::Certificate);
        certificates
            .chain(Authority::ALL.into_iter().map(Change::Bundle))
            .chain([Change::ServiceAccount, Change::KubeletConfiguration])
    }

    /// kubeadm's name of the file or pair.
    pub const fn as_str(self) -> &'static str {
        match self {
            Change::Certificate(name) => name.as_str(),
            Change::Bundle(authority) => authority.as_str(),
            Change::ServiceAccount => "sa",
            Change::KubeletConfiguration => "kubelet-configuration",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Change {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Change::all()
            .find(|change| change.as_str() == name)
            .ok_or_else(|| UnknownName::new("change", name))
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Change {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Who must be started anew to see a change, in this order; nobody where it is picked up live.
pub const fn restarts(change: Change) -> &'static [Component] {
    use Component as C;
    match change {
        Change::Certificate(CertName::ControllerManagerConf) => &[C::KubeControllerManager],
        Change::Certificate(CertName::SchedulerConf) => &[C::KubeScheduler],
        // The file is read at the start alone, and so is the pair that it may point to: a kubelet that rotates keeps its
        // certificate in memory (`certificate_manager.go`). Only one that does not rotate follows the pair.
        Change::Certificate(CertName::KubeletConf) => &[C::Kubelet],
        // Followed since 1.31 (ReloadKubeletServerCertificateFile).
        Change::Certificate(CertName::KubeletServing) => &[C::Kubelet],
        Change::Certificate(_) => &[],
        // As --client-ca-file it is followed; as --root-ca-file, and as clientCAFile of the kubelet, it is not.
        Change::Bundle(Authority::Ca) => &[C::KubeControllerManager, C::Kubelet],
        Change::Bundle(Authority::EtcdCa) => &[C::Etcd, C::KubeApiserver],
        Change::Bundle(Authority::FrontProxyCa) => &[],
        Change::ServiceAccount => &[C::KubeApiserver, C::KubeControllerManager],
        Change::KubeletConfiguration => &[C::Kubelet],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_reload_is_restarted_and_nothing_else() {
        let expected = "\
apiserver -
apiserver-kubelet-client -
front-proxy-client -
etcd-server -
etcd-peer -
etcd-healthcheck-client -
apiserver-etcd-client -
admin.conf -
super-admin.conf -
kubelet.conf kubelet
controller-manager.conf kube-controller-manager
scheduler.conf kube-scheduler
kubelet-serving kubelet
ca kube-controller-manager kubelet
front-proxy-ca -
etcd-ca etcd kube-apiserver
sa kube-apiserver kube-controller-manager
kubelet-configuration kubelet
";
        let found: String = Change::all()
            .map(|change| {
                let names: Vec<_> = restarts(change).iter().map(|who| who.as_str()).collect();
                let names = match names.is_empty() {
                    true => "-".to_owned(),
                    false => names.join(" "),
                };
                format!("{change} {names}\n")
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for change in Change::all() {
            assert_eq!(change.as_str().parse::<Change>().unwrap(), change);
        }
        for component in Component::ALL {
            assert_eq!(component.as_str().parse::<Component>().unwrap(), component);
            let json = serde_json::to_value(component).unwrap();
            assert_eq!(json, component.as_str());
        }
        assert!("kube-proxy".parse::<Component>().is_err());
        assert!("ca.crt".parse::<Change>().is_err());
    }
}
