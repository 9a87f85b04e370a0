//! The environment of a signer in the tests that run against every kind: its server, the administrator who approves
//! requests there, and the authorities.
//!
//! A kind's rig is in the file of its tests. A kind with a server is tested against the real server, which starts when
//! the first rig of that kind is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Request, Signer, SignerKind, Ticket};

use crate::gateway::Upstream;
use crate::node::{Node, Ran};
use crate::signing::{opened_with_memory, parsed, request_for, wanted};
use crate::{
    signer_cert_manager, signer_cfssl, signer_directory, signer_est, signer_exec,
    signer_kubernetes, signer_local, signer_puppet, signer_step, signer_vault,
};

/// A configured signer of one kind with its server.
pub(crate) trait Rig {
    /// Returns the kind.
    fn kind(&self) -> SignerKind;

    /// Returns a `NodePKIConfiguration` for the three authorities. Signers of this kind serve each authority that the kind
    /// can serve. Every file named in it exists.
    fn settings(&self) -> String;

    /// Directory that only this rig uses, kept from one [`Rig::open`] to the next.
    fn scratch(&self) -> &Path;

    /// Directory with `ca.crt`, `etcd/ca.crt` and `front-proxy-ca.crt`, as on a node.
    fn authorities(&self) -> PathBuf {
        self.scratch().to_owned()
    }

    /// Returns whether this kind can sign a certificate. [`Rig::settings`] assigns the others to another kind.
    fn carries(&self, _name: CertName) -> bool {
        true
    }

    /// Signs every waiting request, as the signer's administrator does.
    fn approve(&self) {}

    /// Removes issued certificates from a server that keeps one certificate for each name, so another key can be
    /// certified.
    fn make_room(&self) {}

    /// Has this request refused by a person or a policy; `None` if the kind supports neither.
    fn deny(&self, _request: &Request) -> Option<Denial> {
        None
    }

    /// Returns one line for each request that the server has received, in any stable order. Reading it changes nothing.
    fn sent(&self) -> Vec<String>;

    /// Returns the server of etcd-ca, as seen by a gateway in front of it; `None` for a kind without a server.
    fn front(&self) -> Option<Front> {
        None
    }

    /// Returns a request for [`wanted`] with a CSR as this kind requires it. If the server keeps one certificate for
    /// each name, the name is new.
    fn request(&self, name: CertName) -> Request {
        let usages = self.kind().about().caps.usage_extensions;
        request_for(wanted(name), usages).0
    }

    /// Returns a request with the names of the previous one and another key.
    fn request_like(&self, name: CertName) -> Request {
        Rig::request(self, name)
    }

    /// Opens the signer of an authority as a new process does.
    fn open(&self, authority: Authority) -> Rc<dyn Signer> {
        let settings = parsed(&self.settings());
        let (name, config) = settings.signer_of(authority).unwrap();
        let memory = self.scratch().join("memory").join(name);
        fs::create_dir_all(&memory).unwrap();
        opened_with_memory(config, &memory).into()
    }
}

/// A signer's server as seen by a gateway.
pub(crate) struct Front {
    pub(crate) upstream: Upstream,
    /// Method and part of the path of the exchange that carries a CSR.
    pub(crate) submit: (&'static str, &'static str),
    /// [`Rig::settings`], with the server of etcd-ca at another address and trusted by nothing but these `tls` keys.
    pub(crate) settings: FrontSettings,
    /// Exit codes of this kind that differ from the rule in `contract/server.rs`: the name of the failure, with
    /// ", when it is to sign" where the submit exchange fails; the exit code; the reason.
    pub(crate) exceptions: &'static [(&'static str, i32, &'static str)],
}

/// Returns a configuration for a server address and `tls` keys as a flow map (`{caFile: …}`).
pub(crate) type FrontSettings = Box<dyn Fn(&str, &str) -> String>;

/// A refused request.
pub(crate) struct Denial {
    /// The signer that reports the refusal.
    pub(crate) signer: Rc<dyn Signer>,
    /// The ticket to poll with, if the request was accepted first; otherwise `submit` reports the refusal.
    pub(crate) ticket: Option<Ticket>,
    /// Part of the reason.
    pub(crate) reason: &'static str,
}

/// Makes a rig of a kind, with a server of its own or on one that this process shares.
pub(crate) fn rig(kind: SignerKind) -> Box<dyn Rig> {
    match kind {
        SignerKind::Embedded => Box::new(signer_local::EmbeddedRig::new()),
        SignerKind::Local => Box::new(signer_local::LocalRig::new()),
        SignerKind::Exec => Box::new(signer_exec::ExecRig::new()),
        SignerKind::Directory => Box::new(signer_directory::DirectoryRig::new()),
        SignerKind::Est => Box::new(signer_est::EstRig::new()),
        SignerKind::Kubernetes => Box::new(signer_kubernetes::KubernetesRig::new()),
        SignerKind::CertManager => Box::new(signer_cert_manager::CertManagerRig::new()),
        SignerKind::Vault => Box::new(signer_vault::VaultRig::new()),
        SignerKind::Puppet => Box::new(signer_puppet::PuppetRig::new()),
        SignerKind::StepCa => Box::new(signer_step::StepRig::new()),
        SignerKind::Cfssl => Box::new(signer_cfssl::CfsslRig::new()),
    }
}

/// Returns a node that has nothing but the authorities' certificates and the rig's settings.
pub(crate) fn node(rig: &dyn Rig) -> Node {
    let node = Node::new();
    for authority in Authority::ALL {
        let file = format!("{}.crt", authority.base_name());
        let pem = fs::read(rig.authorities().join(&file)).unwrap();
        node.write(format!("/etc/kubernetes/pki/{file}"), &pem);
    }
    fs::write(node.outside("config.yaml"), rig.settings()).unwrap();
    node
}

/// Runs `bootstrap` until it is complete, approving requests between the runs.
pub(crate) fn complete(node: &Node, rig: &dyn Rig) {
    let mut ran = Ran::of(&mut node.ask_command("1s"));
    for _ in 0..3 {
        // A run also ends with 0 while a valid certificate is still waiting for its successor.
        if ran.code == Some(0) && !ran.stdout.contains("pending") {
            break;
        }
        rig.approve();
        ran = Ran::of(&mut node.ask_command("1s"));
    }
    ran.done().says_not("pending");
}
