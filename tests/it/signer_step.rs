//! step-ca: real ones, with the template that nodepki prints and without.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodepki::names::{Authority, CertName};
use nodepki::settings::Settings;
use nodepki::signer::{Kind, Request, Signer};
use nodepki::x509::hex;
use tempfile::TempDir;

use crate::rig::{Denial, Front, Rig};
use crate::servers::step_ca::{StepCa, StepCas};
use crate::signing::opened_with_memory;

const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";

/// X5C for ca, JWK for the others, each with provisioners that nobody else uses.
pub(crate) struct StepRig {
    dir: TempDir,
    twin: usize,
}

impl StepRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etcd")).unwrap();
        let cas = StepCas::shared();
        for authority in Authority::ALL {
            let file = dir.path().join(authority.base_name());
            fs::write(file.with_extension("crt"), cas.of(authority).root_pem()).unwrap();
        }
        StepRig {
            dir,
            twin: cas.twin(),
        }
    }

    fn provisioner(&self, authority: Authority) -> String {
        match authority {
            Authority::Ca => format!("x5c-{}", self.twin),
            _ => format!("jwk-{}", self.twin),
        }
    }

    /// Under `signers`: the step-ca of an authority at `url`, believed by what `trust` says.
    fn signer(&self, authority: Authority, url: &str, trust: &str) -> String {
        let auth = match authority {
            Authority::Ca => x5c("node"),
            _ => jwk(),
        };
        stanza(url, &self.provisioner(authority), trust, &auth)
    }

    fn direct(&self, authority: Authority) -> String {
        let ca = StepCas::shared().of(authority);
        self.signer(authority, &ca.url(), &by_fingerprint(ca))
    }
}

fn stanza(url: &str, provisioner: &str, trust: &str, auth: &str) -> String {
    format!("{{stepCA: {{url: '{url}', provisioner: {provisioner}, {trust}, auth: {auth}}}}}")
}

fn by_fingerprint(ca: &StepCa) -> String {
    format!("rootSHA256: '{}'", hex(&ca.fingerprint))
}

/// The certificate of this name that vouches.
fn x5c(name: &str) -> String {
    let dir = StepCas::shared().dir().display();
    format!("{{x5c: {{certificate: {dir}/{name}.crt, key: {dir}/{name}.key}}}}")
}

fn jwk() -> String {
    let file = StepCas::shared().jwk_file();
    format!("{{jwk: {{keyFile: {}}}}}", file.display())
}

impl Rig for StepRig {
    fn kind(&self) -> Kind {
        Kind::StepCa
    }

    fn settings(&self) -> String {
        format!(
            "{HEAD}authorities: {{ca: {{signer: k}}, etcd-ca: {{signer: e}}, front-proxy-ca: {{signer: f}}}}\n\
             signers:\n  k: {}\n  e: {}\n  f: {}\n",
            self.direct(Authority::Ca),
            self.direct(Authority::EtcdCa),
            self.direct(Authority::FrontProxyCa)
        )
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn deny(&self, _request: &Request) -> Option<Denial> {
        let ca = StepCas::shared().strict();
        Some(Denial {
            signer: self.opened(&stanza(&ca.url(), "jwk", &by_fingerprint(ca), &jwk())),
            ticket: None,
            reason: "not allowed",
        })
    }

    fn sent(&self) -> Vec<String> {
        Authority::ALL
            .into_iter()
            .flat_map(|authority| {
                StepCas::shared()
                    .of(authority)
                    .sent(&self.provisioner(authority))
            })
            .collect()
    }

    fn front(&self) -> Option<Front> {
        let ca = self.direct(Authority::Ca);
        let front_proxy = self.direct(Authority::FrontProxyCa);
        let etcd = self.signer(Authority::EtcdCa, "ADDRESS", "tls: TLS");
        Some(Front {
            upstream: StepCas::shared().of(Authority::EtcdCa).upstream(),
            submit: ("POST", "/1.0/sign"),
            settings: Box::new(move |url, tls| {
                let etcd = etcd.replace("ADDRESS", url).replace("TLS", tls);
                format!(
                    "{HEAD}authorities: {{ca: {{signer: k}}, etcd-ca: {{signer: e}}, front-proxy-ca: {{signer: f}}}}\n\
                     signers:\n  k: {ca}\n  e: {etcd}\n  f: {front_proxy}\n"
                )
            }),
            exceptions: &[],
        })
    }
}

impl StepRig {
    /// A signer as these keys describe it. It remembers in this rig's directory.
    fn opened(&self, stanza: &str) -> Rc<dyn Signer> {
        let text = format!("{HEAD}signers: {{s: {stanza}}}\n");
        let (settings, _) = Settings::from_fragments(&[("test.yaml", text)])
            .unwrap_or_else(|faults| panic!("{faults}"));
        let (_, config) = settings.signer_of(Authority::Ca).unwrap();
        opened_with_memory(config, self.dir.path()).into()
    }
}
