//! The components that read each file, and whether they notice a new one while they run.
//!
//! Owns the table from a [`ReplacedFile`] to the [`Component`]s that must be restarted for it. Pure; `agent::reload` restarts
//! them, and `store` records the pending restarts.
//!
//! The table is based on the sources of Kubernetes 1.36 and etcd 3.6. Of all renewed files, only two require a restart of a
//! static pod: controller-manager.conf and scheduler.conf. They are read once, and mounted as single files, so a running
//! container keeps the old inode. If they name the files of their certificate and key, a renewal replaces only these files,
//! and [`components_to_restart_for_named_pair`] decides. kube-apiserver watches its serving pair, its client CAs and its
//! client pairs in the directory (`dynamiccertificates`, `cert_rotation.go` of client-go). etcd reads its pairs at each
//! handshake.
//!
//! The table applies to all supported versions: each reload without a restart has existed since before 1.29, the oldest
//! supported release. After each renewal nodepki verifies the certificate that a server presents, which reveals a component
//! with the old pair. The one exception is the kubelet, which watches its client CA only since 1.36; it is restarted in any
//! version, which does not disturb pods.
//!
//! To add a reader, add a row to [`components_to_restart`] and its case to the test.

use std::str::FromStr;
use std::time::Duration;

use time::OffsetDateTime;

use crate::kube::names::{Authority, CertName, UnknownName};
use crate::kube::paths::{
    APISERVER_MANIFEST, CONTROLLER_MANAGER_MANIFEST, ETCD_MANIFEST, SCHEDULER_MANIFEST,
};

words! {
    /// A component of Kubernetes that reads certificates, in the order of restarts: servers before their clients.
    #[derive(PartialOrd, Ord, Hash)]
    #[allow(missing_docs, reason = "the serialized name is the documentation")]
    pub enum Component: Serialize, Deserialize {
        Etcd = "etcd",
        KubeApiserver = "kube-apiserver",
        KubeControllerManager = "kube-controller-manager",
        KubeScheduler = "kube-scheduler",
        Kubelet = "kubelet",
    }
}

impl Component {
    /// Returns the path of kubeadm's manifest; `None` if the component is not a static pod.
    pub const fn manifest(self) -> Option<&'static str> {
        match self {
            Component::Etcd => Some(ETCD_MANIFEST),
            Component::KubeApiserver => Some(APISERVER_MANIFEST),
            Component::KubeControllerManager => Some(CONTROLLER_MANAGER_MANIFEST),
            Component::KubeScheduler => Some(SCHEDULER_MANIFEST),
            Component::Kubelet => None,
        }
    }
}

as_text!(Component: FromStr "a component");

/// The kind of file that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplacedFile {
    /// A certificate with its key, or a kubeconfig.
    Certificate(CertName),
    /// The trust bundle of an authority, such as `ca.crt`.
    Bundle(Authority),
    /// `sa.key`, with `sa.pub`.
    ServiceAccount,
    /// `sa.pub` alone.
    ServiceAccountPublic,
    /// The kubelet's configuration file.
    KubeletConfiguration,
}

impl ReplacedFile {
    /// Returns all changes, except those of registered certificates.
    pub fn all() -> impl Iterator<Item = ReplacedFile> {
        let certificates = CertName::ALL.into_iter().map(ReplacedFile::Certificate);
        certificates
            .chain(Authority::ALL.into_iter().map(ReplacedFile::Bundle))
            .chain([
                ReplacedFile::ServiceAccount,
                ReplacedFile::ServiceAccountPublic,
                ReplacedFile::KubeletConfiguration,
            ])
    }

    /// Returns kubeadm's name of the file or pair.
    pub const fn as_str(self) -> &'static str {
        match self {
            ReplacedFile::Certificate(name) => name.as_str(),
            ReplacedFile::Bundle(authority) => authority.as_str(),
            ReplacedFile::ServiceAccount => "sa",
            ReplacedFile::ServiceAccountPublic => "sa.pub",
            ReplacedFile::KubeletConfiguration => "kubelet-configuration",
        }
    }

    /// Returns whether it is a file of the service-account pair.
    pub const fn is_service_account(self) -> bool {
        matches!(
            self,
            ReplacedFile::ServiceAccount | ReplacedFile::ServiceAccountPublic
        )
    }
}

as_text!(ReplacedFile: Display, Serialize, Deserialize);

impl FromStr for ReplacedFile {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let registered = || name.parse().ok().map(CertName::Registered);
        ReplacedFile::all()
            .find(|change| change.as_str() == name)
            .or_else(|| registered().map(ReplacedFile::Certificate))
            .ok_or_else(|| {
                let known: Vec<_> = ReplacedFile::all().map(ReplacedFile::as_str).collect();
                UnknownName::new("a change", name, &known)
            })
    }
}

/// Returns the components that must be restarted for a change, in this order; none if all of them notice it.
pub const fn components_to_restart(change: ReplacedFile) -> &'static [Component] {
    use Component as C;
    match change {
        ReplacedFile::Certificate(CertName::ControllerManagerConf) => &[C::KubeControllerManager],
        ReplacedFile::Certificate(CertName::SchedulerConf) => &[C::KubeScheduler],
        // The kubelet reads the file only at its start. The same applies to the pair that it may name: a kubelet that rotates
        // keeps its certificate in memory (`certificate_manager.go`). Only one that does not rotate watches the pair.
        ReplacedFile::Certificate(CertName::KubeletConf) => &[C::Kubelet],
        // The kubelet watches it only since 1.31 (ReloadKubeletServerCertificateFile).
        ReplacedFile::Certificate(CertName::KubeletServing) => &[C::Kubelet],
        ReplacedFile::Certificate(_) => &[],
        // As --client-ca-file it is watched; as --root-ca-file, and as clientCAFile of the kubelet, it is not.
        ReplacedFile::Bundle(Authority::Ca) => &[C::KubeControllerManager, C::Kubelet],
        ReplacedFile::Bundle(Authority::EtcdCa) => &[C::Etcd, C::KubeApiserver],
        ReplacedFile::Bundle(Authority::FrontProxyCa) => &[],
        ReplacedFile::ServiceAccount => &[C::KubeApiserver, C::KubeControllerManager],
        // kube-controller-manager reads only sa.key.
        ReplacedFile::ServiceAccountPublic => &[C::KubeApiserver],
        ReplacedFile::KubeletConfiguration => &[C::Kubelet],
    }
}

/// Returns the component that uses a certificate or kubeconfig; `None` if another program does.
pub const fn component_using(name: CertName) -> Option<Component> {
    match name {
        CertName::Apiserver
        | CertName::ApiserverKubeletClient
        | CertName::ApiserverEtcdClient
        | CertName::FrontProxyClient => Some(Component::KubeApiserver),
        CertName::EtcdServer | CertName::EtcdPeer => Some(Component::Etcd),
        CertName::ControllerManagerConf => Some(Component::KubeControllerManager),
        CertName::SchedulerConf => Some(Component::KubeScheduler),
        CertName::KubeletConf | CertName::KubeletServing => Some(Component::Kubelet),
        CertName::EtcdHealthcheckClient
        | CertName::AdminConf
        | CertName::SuperAdminConf
        | CertName::NodepkiConf
        | CertName::PodClient
        | CertName::Registered(_) => None,
    }
}

/// How often client-go looks for another certificate in the files that a kubeconfig names, and then closes its connections
/// (`CertCallbackRefreshDuration` in `transport/cert_rotation.go`, kubernetes#79083, since 1.18). A new connection reads the files
/// again in any case; on an open one the API server continues to verify the old certificate.
const CLIENT_PAIR_CHECK_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Time for client-go to find the files and to connect again, in addition to the interval.
const CLIENT_PAIR_CHECK_MARGIN: Duration = Duration::from_secs(60);

/// Returns the components that must be restarted for new files of the certificate and key that a kubeconfig names: none if
/// the component reads them while the old certificate is accepted. `accepted_until` is the end of the old certificate, or
/// `None` if it may be refused at any time.
pub fn components_to_restart_for_named_pair(
    name: CertName,
    accepted_until: Option<OffsetDateTime>,
    now: OffsetDateTime,
) -> &'static [Component] {
    let needed = CLIENT_PAIR_CHECK_INTERVAL + CLIENT_PAIR_CHECK_MARGIN;
    match accepted_until {
        Some(end) if end - now > needed => &[],
        _ => components_to_restart(ReplacedFile::Certificate(name)),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn restarts_only_component_that_uses_certificate() {
        for name in CertName::ALL {
            let user = component_using(name);
            for component in components_to_restart(ReplacedFile::Certificate(name)) {
                assert_eq!(Some(*component), user, "{name}");
            }
        }
    }

    #[test]
    fn restarts_for_named_pair_only_if_old_certificate_expires_first() {
        let now = datetime!(2026-11-24 12:00 UTC);
        for (name, left, expected) in [
            (CertName::SchedulerConf, Some(361), &[][..]),
            (
                CertName::SchedulerConf,
                Some(360),
                &[Component::KubeScheduler],
            ),
            (
                CertName::SchedulerConf,
                Some(-1),
                &[Component::KubeScheduler],
            ),
            // An unreadable certificate, or one of a CA that is about to be retired.
            (
                CertName::ControllerManagerConf,
                None,
                &[Component::KubeControllerManager],
            ),
        ] {
            let end = left.map(|left| now + time::Duration::seconds(left));
            let found = components_to_restart_for_named_pair(name, end, now);
            assert_eq!(found, expected, "{name} {left:?}");
        }
    }

    #[test]
    fn restarts_only_components_that_do_not_reload() {
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
nodepki.conf -
ca kube-controller-manager kubelet
front-proxy-ca -
etcd-ca etcd kube-apiserver
sa kube-apiserver kube-controller-manager
sa.pub kube-apiserver
kubelet-configuration kubelet
";
        let found: String = ReplacedFile::all()
            .map(|change| {
                let names: Vec<_> = components_to_restart(change)
                    .iter()
                    .map(|component| component.as_str())
                    .collect();
                let names = if names.is_empty() {
                    "-".to_owned()
                } else {
                    names.join(" ")
                };
                format!("{change} {names}\n")
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn parses_displayed_names() {
        for change in ReplacedFile::all() {
            assert_eq!(change.as_str().parse::<ReplacedFile>().unwrap(), change);
        }
        for component in Component::ALL {
            assert_eq!(component.as_str().parse::<Component>().unwrap(), component);
            let json = serde_json::to_value(component).unwrap();
            assert_eq!(json, component.as_str());
        }
        let registered = "konnectivity-server".parse().unwrap();
        let change = ReplacedFile::Certificate(CertName::Registered(registered));
        assert_eq!(change.as_str().parse::<ReplacedFile>().unwrap(), change);
        assert!("kube-apiserver".parse::<ReplacedFile>().is_err());
        assert!("kube-proxy".parse::<Component>().is_err());
        assert!("ca.crt".parse::<ReplacedFile>().is_err());
    }
}
