//! The paths of the files of a node's PKI.
//!
//! The only place that builds a path from the name of a certificate or authority. Two directories vary: kubeadm's
//! `certificatesDir` and the kubelet's `--cert-dir`. The files of an external etcd are where the ClusterConfiguration names
//! them, if nodepki issues the client certificate. The configuration may name the files of registered certificates.

use std::path::{Path, PathBuf};

use super::registered::{RegisteredCertificate, RegisteredNodes};
use crate::kube::kubeadm::Etcd;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{CERTIFICATES_DIR, KUBELET_CURRENT_LINK, KUBELET_PKI_DIR, KUBERNETES_DIR};

/// The paths of one node, as the node itself has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    certificates_dir: PathBuf,
    kubelet_pki: PathBuf,
    external_etcd: Option<ExternalEtcdFiles>,
    registered: Vec<RegisteredFiles>,
}

/// The files of an external etcd that kube-apiserver reads: `caFile`, `certFile` and `keyFile` of `etcd.external`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExternalEtcdFiles {
    authority: PathBuf,
    client: [PathBuf; 2],
}

/// The files of a registered certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RegisteredFiles {
    name: CertName,
    description: Option<String>,
    nodes: RegisteredNodes,
    pair: [PathBuf; 2],
}

impl Default for Layout {
    fn default() -> Self {
        Layout::new(None, None)
    }
}

impl Layout {
    /// `certificates_dir` is kubeadm's `certificatesDir`, `kubelet_cert_dir` the kubelet's `--cert-dir`; the defaults of
    /// kubeadm and the kubelet if absent.
    pub fn new(certificates_dir: Option<PathBuf>, kubelet_cert_dir: Option<PathBuf>) -> Layout {
        Layout {
            certificates_dir: certificates_dir.unwrap_or_else(|| CERTIFICATES_DIR.into()),
            kubelet_pki: kubelet_cert_dir.unwrap_or_else(|| KUBELET_PKI_DIR.into()),
            external_etcd: None,
            registered: Vec::new(),
        }
    }

    /// Returns the layout of a node that issues its own client certificate for an external etcd. It is unchanged for a local
    /// etcd, and for an external one without TLS.
    #[must_use]
    pub fn with_external_etcd(mut self, etcd: &Etcd) -> Layout {
        if let Etcd::External {
            ca_file: Some(authority),
            cert_file: Some(certificate),
            key_file: Some(key),
            ..
        } = etcd
        {
            self.external_etcd = Some(ExternalEtcdFiles {
                authority: authority.clone(),
                client: [certificate.clone(), key.clone()],
            });
        }
        self
    }

    /// Returns whether the node issues its own client certificate for an external etcd.
    pub fn has_external_etcd(&self) -> bool {
        self.external_etcd.is_some()
    }

    /// Adds the files of registered certificates.
    #[must_use]
    pub fn with_registered(mut self, registered: &[RegisteredCertificate]) -> Layout {
        let files = registered.iter().map(|one| RegisteredFiles {
            name: CertName::Registered(one.name),
            description: one.description.clone(),
            nodes: one.nodes,
            pair: one.pair(&self.certificates_dir),
        });
        self.registered = files.collect();
        self
    }

    /// Returns the names of all certificates that a node may hold: those that are always defined, then the registered ones.
    pub fn certificates(&self) -> impl Iterator<Item = CertName> {
        let registered = self.registered.iter().map(|one| one.name);
        CertName::ALL.into_iter().chain(registered)
    }

    /// Returns the registered certificates that a node of this kind holds.
    pub fn registered_on(&self, is_worker: bool) -> impl Iterator<Item = CertName> {
        let registered = self.registered.iter();
        registered
            .filter(move |one| one.nodes.contain(is_worker))
            .map(|one| one.name)
    }

    /// Returns the configured purpose of a registered certificate.
    pub fn description(&self, name: CertName) -> Option<&str> {
        let mut registered = self.registered.iter();
        let found = registered.find(|one| one.name == name)?;
        found.description.as_deref()
    }

    /// kubeadm's `certificatesDir`.
    pub fn certificates_dir(&self) -> &Path {
        &self.certificates_dir
    }

    /// Returns the directory of the kubelet's own certificates.
    pub fn kubelet_pki(&self) -> &Path {
        &self.kubelet_pki
    }

    /// Certificate and private key of an authority.
    pub fn authority(&self, name: Authority) -> [PathBuf; 2] {
        let [certificate, key] = self.below_certificates_dir(name.base_name());
        match &self.external_etcd {
            Some(external) if name == Authority::EtcdCa => [external.authority.clone(), key],
            _ => [certificate, key],
        }
    }

    /// Returns the revocation lists of an authority.
    pub fn revocation_lists(&self, name: Authority) -> PathBuf {
        self.certificates_dir.join(crl_name(name))
    }

    /// Certificate and private key. A kubeconfig contains both, so both are its path.
    pub fn pair(&self, name: CertName) -> [PathBuf; 2] {
        if let Some(files) = self.registered.iter().find(|one| one.name == name) {
            return files.pair.clone();
        }
        match (name, &self.external_etcd) {
            (CertName::ApiserverEtcdClient, Some(external)) => external.client.clone(),
            // The kubelet reads these files if its configuration names no others (`InitializeTLS`).
            (CertName::KubeletServing, _) => {
                ["kubelet.crt", "kubelet.key"].map(|file| self.kubelet_pki.join(file))
            }
            (name, _) if name.is_kubeconfig() => [kubeconfig_path(name), kubeconfig_path(name)],
            (name, _) => self.below_certificates_dir(name.base_name()),
        }
    }

    /// Returns the files of certificate and key that controller-manager.conf or scheduler.conf may name. Each component has a
    /// directory of its own, so a pod can mount it without the other keys.
    pub fn client_pair(&self, name: CertName) -> Option<[PathBuf; 2]> {
        let directory = match name {
            CertName::ControllerManagerConf => "controller-manager",
            CertName::SchedulerConf => "scheduler",
            _ => return None,
        };
        Some(self.below_certificates_dir(&format!("{directory}/client")))
    }

    /// Returns the files of a certificate: certificate and key, or the kubeconfig.
    pub fn files(&self, name: CertName) -> Vec<PathBuf> {
        if name.is_kubeconfig() {
            vec![kubeconfig_path(name)]
        } else {
            self.pair(name).to_vec()
        }
    }

    /// `sa.key` and `sa.pub`.
    pub fn service_account(&self) -> [PathBuf; 2] {
        ["sa.key", "sa.pub"].map(|file| self.certificates_dir.join(file))
    }

    /// Returns the link to the kubelet's newest client certificate.
    pub fn kubelet_link(&self) -> PathBuf {
        self.kubelet_pki.join(KUBELET_CURRENT_LINK)
    }

    // `Path::with_extension` would replace what follows a dot in the name.
    fn below_certificates_dir(&self, base_name: &str) -> [PathBuf; 2] {
        ["crt", "key"].map(|suffix| self.certificates_dir.join(format!("{base_name}.{suffix}")))
    }
}

/// Returns the path of a kubeconfig.
pub fn kubeconfig_path(name: CertName) -> PathBuf {
    Path::new(KUBERNETES_DIR).join(name.base_name())
}

/// Returns the file with an authority's revocation lists, below kubeadm's certificates directory: `etcd/crl.pem` beside
/// `etcd/ca.crt`, `front-proxy-crl.pem` beside `front-proxy-ca.crt`.
pub fn crl_name(authority: Authority) -> String {
    let base = authority.base_name();
    format!("{}crl.pem", base.strip_suffix("ca").unwrap_or(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lays_out_files_as_kubeadm_and_kubelet_do() {
        let layout = Layout::new(Some("/srv/pki".into()), Some("/srv/kubelet".into()));
        let cases = [
            (
                layout.pair(CertName::EtcdHealthcheckClient),
                "/srv/pki/etcd/healthcheck-client.crt /srv/pki/etcd/healthcheck-client.key",
            ),
            (
                layout.pair(CertName::KubeletServing),
                "/srv/kubelet/kubelet.crt /srv/kubelet/kubelet.key",
            ),
            (
                layout.pair(CertName::AdminConf),
                "/etc/kubernetes/admin.conf /etc/kubernetes/admin.conf",
            ),
            (
                layout.authority(Authority::FrontProxyCa),
                "/srv/pki/front-proxy-ca.crt /srv/pki/front-proxy-ca.key",
            ),
            (layout.service_account(), "/srv/pki/sa.key /srv/pki/sa.pub"),
        ];
        for ([one, two], expected) in cases {
            assert_eq!(format!("{} {}", one.display(), two.display()), expected);
        }
        assert_eq!(layout.files(CertName::AdminConf).len(), 1);
        let client = layout.client_pair(CertName::SchedulerConf).unwrap();
        let expected = ["client.crt", "client.key"];
        let expected = expected.map(|file| Path::new("/srv/pki/scheduler").join(file));
        assert_eq!(client, expected);
        assert_eq!(layout.client_pair(CertName::AdminConf), None);
        assert_eq!(
            layout.kubelet_link(),
            Path::new("/srv/kubelet/kubelet-client-current.pem")
        );
        let lists = Authority::ALL.map(|name| layout.revocation_lists(name));
        let expected = ["crl.pem", "front-proxy-crl.pem", "etcd/crl.pem"];
        for file in expected {
            assert!(lists.contains(&Path::new("/srv/pki").join(file)), "{file}");
        }
    }

    #[test]
    fn takes_only_files_of_etcd_clients_from_external_etcd() {
        let file = |name: &str| Some(PathBuf::from(name));
        let layout = Layout::default().with_external_etcd(&Etcd::External {
            endpoints: Vec::new(),
            ca_file: file("/e/ca.crt"),
            cert_file: file("/e/c.crt"),
            key_file: file("/e/c.key"),
        });
        assert!(layout.has_external_etcd());
        let own = Layout::default();
        for name in Authority::ALL {
            let [certificate, key] = own.authority(name);
            let expected = match name {
                Authority::EtcdCa => [PathBuf::from("/e/ca.crt"), key],
                _ => [certificate, key],
            };
            assert_eq!(layout.authority(name), expected, "{name}");
        }
        for name in CertName::ALL {
            let expected = match name {
                CertName::ApiserverEtcdClient => ["/e/c.crt", "/e/c.key"].map(PathBuf::from),
                _ => own.pair(name),
            };
            assert_eq!(layout.pair(name), expected, "{name}");
        }
    }
}
