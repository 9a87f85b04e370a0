//! The kinds without a server: `local` and `embedded`.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Config, FailureClass, Request, Signer, SignerKind, embedded, local};
use nodepki::x509::Chain;
use tempfile::TempDir;

use crate::rig::Rig;
use crate::signing::{
    contains, fails, issued, now, opened, rejects, request, run, settings, wanted,
    write_authorities, write_secret, x509_text,
};

/// An `embedded` signer, which has no environment.
pub(crate) struct EmbeddedRig {
    dir: TempDir,
    signer: Rc<dyn Signer>,
}

impl EmbeddedRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let signer: Rc<dyn Signer> = opened(&Config::Embedded(embedded::Config)).into();
        fs::create_dir(dir.path().join("etcd")).unwrap();
        for authority in Authority::ALL {
            let trust = run(signer.trust(authority)).unwrap().unwrap();
            let file = dir.path().join(authority.base_name()).with_extension("crt");
            fs::write(file, trust).unwrap();
        }
        EmbeddedRig { dir, signer }
    }
}

impl Rig for EmbeddedRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Embedded
    }

    fn settings(&self) -> String {
        settings("embedded: {}")
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the same signer each time: its authorities exist only in this process.
    fn open(&self, _authority: Authority) -> Rc<dyn Signer> {
        Rc::clone(&self.signer)
    }

    fn sent(&self) -> Vec<String> {
        Vec::new()
    }
}

/// CA keys in files.
pub(crate) struct LocalRig(TempDir);

impl LocalRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        LocalRig(dir)
    }

    fn signer(&self) -> Rc<dyn Signer> {
        self.open(Authority::Ca)
    }
}

impl Rig for LocalRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Local
    }

    fn settings(&self) -> String {
        settings(&format!(
            "local: {{directory: {}}}",
            self.0.path().display()
        ))
    }

    fn scratch(&self) -> &Path {
        self.0.path()
    }

    fn sent(&self) -> Vec<String> {
        Vec::new()
    }
}

fn local(directory: &Path) -> Box<dyn Signer> {
    opened(&Config::Local(local::Config {
        directory: directory.to_owned(),
    }))
}

#[test]
fn names_missing_key_and_signs_for_other_authorities() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    fs::remove_file(dir.path().join("etcd/ca.key")).unwrap();
    write_secret(dir.path().join("front-proxy-ca.key"), "garbage");
    let signer = local(dir.path());
    signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    let etcd = request(CertName::EtcdServer);
    let parts = ["etcd/ca.key", "No such file", "etcd-ca"];
    rejects(signer.as_ref(), &etcd.wanted, &parts);
    fails(run(signer.submit(&etcd)), FailureClass::Config, &[]);
    // The certificate exists, and is enough for trust.
    assert!(run(signer.trust(Authority::EtcdCa)).unwrap().is_some());
    let proxy = wanted(CertName::FrontProxyClient);
    rejects(signer.as_ref(), &proxy, &["front-proxy-ca.key"]);
}

#[test]
fn rejects_key_of_another_authority() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    fs::copy(dir.path().join("ca.key"), dir.path().join("etcd/ca.key")).unwrap();
    let peer = wanted(CertName::EtcdPeer);
    rejects(local(dir.path()).as_ref(), &peer, &["does not belong"]);
}

#[test]
fn refuses_csr_that_differs_from_desired_certificate() {
    let rig = LocalRig::new();
    let mut odd = request(CertName::KubeletConf);
    odd.csr = request(CertName::AdminConf).csr;
    let result = run(rig.signer().submit(&odd));
    fails(result, FailureClass::Permanent, &["O=system:nodes"]);
}

#[test]
fn issues_certificate_as_kubeadm_does() {
    let rig = LocalRig::new();
    let bytes = issued(run(rig.signer().submit(&request(CertName::EtcdServer))));
    contains(
        &x509_text(&bytes),
        &[
            "DNS:cp1, DNS:localhost, IP Address:192.0.2.11, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1",
            "TLS Web Server Authentication, TLS Web Client Authentication",
            "X509v3 Basic Constraints: critical\n                CA:FALSE",
        ],
    );
    let chain = Chain::from_pem(&bytes).unwrap();
    let lifetime = chain.leaf().not_after() - chain.leaf().not_before();
    assert_eq!(lifetime.whole_seconds(), 365 * 24 * 60 * 60 + 300);
}

#[test]
fn derives_request_id_from_desired_certificate_and_key_only() {
    let one = request(CertName::Apiserver);
    assert_eq!(one.again(7, now(), Some(now())).id, one.id);
    let mut wanted = one.wanted.clone();
    wanted.profile.sans.dns.push("new.example.com".to_owned());
    let changed = Request::new(wanted, one.csr.clone(), one.identity.clone(), now());
    assert_ne!(changed.id, one.id);
    assert_ne!(request(CertName::Apiserver).id, one.id);
    assert_eq!(one.id.as_str().len(), 64);
}
