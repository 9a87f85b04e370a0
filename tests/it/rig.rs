//! What stands around a signer in the tests that run against every kind: a server, the people at it, the authorities.
//!
//! A kind's rig is in the file of its tests. For a kind with a server it is the real server.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodepki::config::Settings;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Kind, Request, Signer, Ticket};

use crate::gateway::Upstream;
use crate::signing::{opened_with_memory, request_for, wanted};
use crate::{
    signer_cert_manager, signer_cfssl, signer_contract, signer_directory, signer_est, signer_exec,
    signer_kubernetes, signer_puppet, signer_step, signer_vault,
};

/// A kind of signer, ready to be asked.
pub(crate) trait Rig {
    /// Which kind.
    fn kind(&self) -> Kind;

    /// A `NodePKIConfiguration` whose signers serve the three authorities, as many of them as the kind can and by this
    /// kind. Names only files that exist.
    fn settings(&self) -> String;

    /// Holds `ca.crt`, `etcd/ca.crt` and `front-proxy-ca.crt`, as a node has them.
    fn authorities(&self) -> PathBuf;

    /// A directory of this rig's own, kept from opening to opening.
    fn scratch(&self) -> &Path;

    /// Whether it can carry a certificate. What it cannot, another kind signs in [`Rig::settings`].
    fn carries(&self, _name: CertName) -> bool {
        true
    }

    /// The people at the signer sign everything that waits.
    fn approve(&self) {}

    /// The people at the signer make room for certificates of other keys, where there is one certificate a name.
    fn make_room(&self) {}

    /// Has this request refused by a person or a policy; `None` for a kind that knows neither.
    fn deny(&self, _request: &Request) -> Option<Denial> {
        None
    }

    /// A line for each request that the signer's side holds or was sent, in an order of its own; nothing that changes
    /// by reading.
    fn sent(&self) -> Vec<String>;

    /// The server that signs for etcd-ca, for a gateway to stand before; `None` for a kind without a server.
    fn front(&self) -> Option<Front> {
        None
    }

    /// A request for one of the wishes of `signing::wanted`, with names that nobody else has asked for where that
    /// matters to the server, and a CSR as this kind wants it.
    fn request(&self, name: CertName) -> Request {
        let usages = self.kind().about().caps.usage_extensions;
        request_for(wanted(name), usages).0
    }

    /// A request for the same names as the last one, with another key.
    fn request_like(&self, name: CertName) -> Request {
        Rig::request(self, name)
    }

    /// The signer of an authority in a new process: what it had in memory is lost.
    fn open(&self, authority: Authority) -> Rc<dyn Signer> {
        let settings = self.settings();
        let (settings, faults) = Settings::from_fragments(&[("rig.yaml", settings)])
            .unwrap_or_else(|faults| panic!("{faults}"));
        assert!(faults.is_empty(), "{faults}");
        let (name, config) = settings.signer_of(authority).unwrap();
        let memory = self.scratch().join("memory").join(name);
        std::fs::create_dir_all(&memory).unwrap();
        opened_with_memory(config, &memory).into()
    }
}

/// A signer's server as a gateway sees it.
pub(crate) struct Front {
    pub(crate) upstream: Upstream,
    /// Method, and a part of the path, of the exchange that hands over a CSR.
    pub(crate) submit: (&'static str, &'static str),
    /// [`Rig::settings`], but the server of etcd-ca is at this address and believed by these keys of `tls`, a flow map
    /// (`{caFile: …}`). It must not be believed by anything else.
    pub(crate) settings: FrontSettings,
    /// Exit statuses of this kind that differ from the rule, by the name of the failure in `signer_failures`, or by that
    /// name and ", when it is to sign"; with the reason.
    pub(crate) exceptions: &'static [(&'static str, i32, &'static str)],
}

/// Of an address and `tls` keys.
pub(crate) type FrontSettings = Box<dyn Fn(&str, &str) -> String>;

/// A request that was refused.
pub(crate) struct Denial {
    /// Who says so.
    pub(crate) signer: Rc<dyn Signer>,
    /// What to poll with, where the request was taken first; otherwise submitting it shows the refusal.
    pub(crate) ticket: Option<Ticket>,
    /// A part of the reason.
    pub(crate) reason: &'static str,
}

/// A rig of each kind, fresh or on a server that this process shares.
pub(crate) fn rig(kind: Kind) -> Box<dyn Rig> {
    match kind {
        Kind::Embedded => Box::new(signer_contract::EmbeddedRig::new()),
        Kind::Local => Box::new(signer_contract::LocalRig::new()),
        Kind::Exec => Box::new(signer_exec::ExecRig::new()),
        Kind::Directory => Box::new(signer_directory::DirectoryRig::new()),
        Kind::Est => Box::new(signer_est::EstRig::new()),
        Kind::Kubernetes => Box::new(signer_kubernetes::KubernetesRig::new()),
        Kind::CertManager => Box::new(signer_cert_manager::CertManagerRig::new()),
        Kind::Vault => Box::new(signer_vault::VaultRig::new()),
        Kind::Puppet => Box::new(signer_puppet::PuppetRig::new()),
        Kind::StepCa => Box::new(signer_step::StepRig::new()),
        Kind::Cfssl => Box::new(signer_cfssl::CfsslRig::new()),
    }
}
