//! Fuzz targets: the exchange of each signer with an HTTP server, whose responses are the input.
//!
//! The first byte selects the operation and the settings ([`Operation::of`]); the rest is the script of the responses, see
//! [`crate::http::fuzz`]. The key of the request is a file, so an input can contain its certificate: `@LEAF@` and the other
//! names in [`replacements`] become the files of `tests/fuzz/material` in the form that the protocol needs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{LEAF_CRT, LEAF_CSR, LEAF_KEY, NOW, request};
use crate::http::{Files, fuzz::with_responses};
use crate::kube::names::Authority;
use crate::signer::{
    Answer, Config, CurrentCertificate, Memory, Programs, Request, Signer, SignerError, SignerKind,
    Site,
};
use crate::text::is_hidden;
use crate::x509::{Chain, ExtendedUsage, KeyAlgorithm, TrustBundle, satisfies};
use crate::yaml::{self, Field, Walk};

const CA_CRT: &str = include_str!("../../../tests/fuzz/material/ca.crt");
const CA_CRL: &str = include_str!("../../../tests/fuzz/material/ca.crl");
const CA_P7: &str = include_str!("../../../tests/fuzz/material/ca.p7");
const LEAF_P7: &str = include_str!("../../../tests/fuzz/material/leaf.p7");
const CLIENT_CRT: &str = include_str!("../../../tests/fuzz/material/client.crt");
/// SHA-256 of the certificate in `ca.crt`.
const CA_SHA256: &str = "6c5ce617882810eb346549dca325dc2fee97d2a40f0ab2b2f9972acee1742314";

/// Name and function of each target.
pub(super) const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("vault-exchange", |bytes| exchange(SignerKind::Vault, bytes)),
    ("step-ca-exchange", |bytes| {
        exchange(SignerKind::StepCa, bytes)
    }),
    ("cfssl-exchange", |bytes| exchange(SignerKind::Cfssl, bytes)),
    ("est-exchange", |bytes| exchange(SignerKind::Est, bytes)),
    ("puppet-exchange", |bytes| {
        exchange(SignerKind::Puppet, bytes)
    }),
    ("kubernetes-exchange", |bytes| {
        exchange(SignerKind::Kubernetes, bytes)
    }),
    ("cert-manager-exchange", |bytes| {
        exchange(SignerKind::CertManager, bytes)
    }),
];

/// Returns the settings of a kind, of which an input selects one.
fn settings(kind: SignerKind) -> Vec<String> {
    let tls = "tls: {systemRoots: true}";
    match kind {
        SignerKind::Vault => vec![
            format!(
                "{{address: 'https://s.test', mount: pki, auth: {{tokenFile: /fuzz/token}}, {tls}}}"
            ),
            format!(
                "{{address: 'https://s.test', alsoAllow: ['https://t.test'], mount: pki, issuer: i, role: r, {tls}, \
                 auth: {{appRole: {{roleID: r, secretIDFile: /fuzz/token, wrapped: true}}}}}}"
            ),
        ],
        SignerKind::StepCa => vec![
            format!(
                "{{url: 'https://s.test', provisioner: p, {tls}, \
                 auth: {{x5c: {{certificate: /fuzz/client.crt, key: /fuzz/leaf.key}}}}}}"
            ),
            format!(
                "{{url: 'https://s.test', provisioner: p, rootSHA256: {CA_SHA256}, auth: {{jwk: {{keyFile: /fuzz/leaf.key}}}}}}"
            ),
        ],
        SignerKind::Cfssl => vec![
            format!("{{url: 'https://s.test', {tls}}}"),
            format!(
                "{{url: 'https://s.test', profile: server, label: l, auth: {{keyFile: /fuzz/token}}, {tls}}}"
            ),
        ],
        SignerKind::Est => vec![
            format!(
                "{{url: 'https://s.test', auth: {{basic: {{user: u, passwordFile: /fuzz/token}}}}, {tls}}}"
            ),
            format!("{{url: 'https://s.test', rootSHA256: {CA_SHA256}}}"),
        ],
        SignerKind::Puppet => vec![
            format!("{{url: 'https://s.test', acceptSharedCA: true, {tls}}}"),
            format!(
                "{{url: 'https://s.test', acceptSharedCA: true, resubmitAfterDelete: true, caSHA256: [{CA_SHA256}]}}"
            ),
        ],
        SignerKind::Kubernetes => vec![
            format!(
                "{{server: 'https://s.test', signerName: example.com/x, tokenFile: /fuzz/token, {tls}}}"
            ),
            format!(
                "{{server: 'https://s.test', signerName: clusterissuers.cert-manager.io/x, requestLifetime: false, \
                 tokenFile: /fuzz/token, {tls}}}"
            ),
        ],
        SignerKind::CertManager => vec![format!(
            "{{server: 'https://s.test', namespace: team, issuerRef: {{name: i}}, tokenFile: /fuzz/token, {tls}}}"
        )],
        other => panic!("{other} has no HTTP server"),
    }
}

/// Returns the settings as read from the text.
fn parsed(kind: SignerKind, text: &str) -> Config {
    let nodes = yaml::parse("fuzz.yaml", text).expect("the settings are YAML");
    let walk = Walk::new(true);
    let config = nodes
        .first()
        .and_then(|node| kind.read(&Field::root(&walk, node)));
    let faults = walk.into_faults();
    assert!(faults.is_empty(), "{faults}");
    config.expect("the settings are valid")
}

fn configs(kind: SignerKind) -> &'static [Config] {
    // A process runs one target, so one kind.
    static CONFIGS: OnceLock<Vec<Config>> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let texts = settings(kind);
        texts.iter().map(|text| parsed(kind, text)).collect()
    })
}

/// Returns the texts that are replaced in responses.
fn replacements() -> &'static [(&'static str, String)] {
    static REPLACEMENTS: OnceLock<Vec<(&str, String)>> = OnceLock::new();
    REPLACEMENTS.get_or_init(|| {
        let json = |text: &str| text.replace('\n', "\\n");
        vec![
            ("@LEAF@", json(LEAF_CRT)),
            ("@LEAF-PEM@", LEAF_CRT.to_owned()),
            ("@LEAF-64@", STANDARD.encode(LEAF_CRT)),
            ("@LEAF-P7@", LEAF_P7.to_owned()),
            ("@CA@", json(CA_CRT)),
            ("@CA-PEM@", CA_CRT.to_owned()),
            ("@CA-64@", STANDARD.encode(CA_CRT)),
            ("@CA-P7@", CA_P7.to_owned()),
            ("@CRL-PEM@", CA_CRL.to_owned()),
            ("@CRL-64@", STANDARD.encode(CA_CRL)),
            ("@CSR-PEM@", LEAF_CSR.to_owned()),
        ]
    })
}

/// The files that the settings name.
struct FuzzFiles;

impl Files for FuzzFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        let text = match path.extension().and_then(|extension| extension.to_str()) {
            Some("crt") => CLIENT_CRT,
            Some("key") => LEAF_KEY,
            _ => "00112233",
        };
        Ok(Zeroizing::new(text.as_bytes().to_vec()))
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

/// Storage of a signer that ends with the input.
#[derive(Default)]
struct ShortMemory(RefCell<BTreeMap<String, Vec<u8>>>);

impl Memory for ShortMemory {
    fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        Ok(self.0.borrow().get(name).cloned().map(Zeroizing::new))
    }

    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        self.0.borrow_mut().remove(name);
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Operation {
    ProbeAndSubmit,
    Submit,
    Recover,
    Poll,
    Trust,
    RevocationLists,
    Renew,
    ProbeAndLeave,
}

impl Operation {
    /// Returns the operation for the first byte of an input, such that the digits 0 to 7 select one each, and `8` to `?` the
    /// same with the second settings.
    fn of(byte: u8) -> (Self, usize) {
        let operation = match byte % 8 {
            0 => Operation::ProbeAndSubmit,
            1 => Operation::Submit,
            2 => Operation::Recover,
            3 => Operation::Poll,
            4 => Operation::Trust,
            5 => Operation::RevocationLists,
            6 => Operation::Renew,
            _ => Operation::ProbeAndLeave,
        };
        (operation, usize::from(byte / 8))
    }
}

fn exchange(kind: SignerKind, bytes: &[u8]) {
    let Some((first, script)) = bytes.split_first() else {
        return;
    };
    let (operation, choice) = Operation::of(*first);
    let configs = configs(kind);
    let request = request();
    let site = Site {
        name: "s",
        now: NOW,
        clock: || NOW,
        identity: request.identity.clone(),
        authority_key: KeyAlgorithm::EcdsaP256,
        files: Rc::new(FuzzFiles),
        credentials: None,
        programs: Programs::Run,
        memory: Rc::new(ShortMemory::default()),
        login_memory: Rc::new(ShortMemory::default()),
        drop_dir: &|_, _| Err(io::ErrorKind::Unsupported.into()),
        user: &|_| Ok(None),
    };
    let config = &configs[choice % configs.len()];
    let signer = config.open(&site).expect("the signer can be opened");
    with_responses(script, replacements(), async || {
        run(operation, signer.as_ref(), request).await;
    });
}

async fn run(operation: Operation, signer: &dyn Signer, request: &Request) {
    match operation {
        Operation::ProbeAndSubmit => {
            examine(signer.probe().await);
            if let Err(rejection) = signer.preflight(&request.wanted) {
                examine_text(&rejection.to_string());
            }
            examine_answer(signer.submit(request).await, request);
        }
        Operation::Submit => examine_answer(signer.submit(request).await, request),
        Operation::Recover => {
            if let Some(Some(answer)) = examine(signer.recover(request, None).await) {
                examine_answer(Ok(answer), request);
            }
        }
        Operation::Poll => {
            let answer = examine(signer.submit(request).await);
            if let Some(Answer::Pending { ticket, .. }) = answer {
                examine_answer(signer.poll(request, &ticket).await, request);
                examine(signer.recover(request, Some(&ticket)).await);
            }
        }
        Operation::Trust => {
            if let Some(Some(bytes)) = examine(signer.trust(Authority::Ca).await) {
                let _ = TrustBundle::from_response(&bytes).map_err(|error| error.to_string());
            }
        }
        Operation::RevocationLists => drop(examine(signer.crl(Authority::Ca).await)),
        Operation::Renew => {
            let current = CurrentCertificate {
                chain_pem: CLIENT_CRT.as_bytes().to_vec(),
                key_pem: Zeroizing::new(LEAF_KEY.as_bytes().to_vec()),
            };
            examine_answer(signer.renew(request, &current).await, request);
        }
        Operation::ProbeAndLeave => {
            examine(signer.probe().await);
            examine(signer.leave().await);
            examine(signer.settled(&request.key()).await);
        }
    }
}

/// Returns the success; the message of an error must be fit for a terminal.
fn examine<T>(result: Result<T, SignerError>) -> Option<T> {
    result
        .map_err(|error| examine_text(&error.to_string()))
        .ok()
}

/// A certificate that the verification accepts has the key, the usage and the validity that were requested.
fn examine_answer(answer: Result<Answer, SignerError>, request: &Request) {
    match examine(answer) {
        Some(Answer::Issued(bytes)) => {
            let key = request.csr.public_key();
            let Ok(chain) = Chain::from_response(&bytes, key) else {
                return;
            };
            let leaf = chain.leaf();
            assert_eq!(leaf.public_key(), key);
            let trust = TrustBundle::from_pem(CA_CRT.as_bytes()).expect("the CA can be read");
            let wanted = &request.wanted;
            let differences =
                satisfies(&chain, &wanted.profile, wanted.tolerance, key, &trust, NOW);
            if differences.is_empty() {
                assert!(leaf.allows(ExtendedUsage::ServerAuth) && leaf.not_after() > NOW);
            }
            for difference in differences {
                examine_text(&difference.to_string());
            }
        }
        Some(Answer::Pending { note, .. }) => examine_text(&note),
        Some(Answer::Denied { reason }) => examine_text(&reason),
        Some(Answer::Gone) | None => {}
    }
}

/// Text from a server that reaches a terminal or a log contains no control or formatting characters.
pub(super) fn examine_text(text: &str) {
    let hidden = text.chars().find(|c| is_hidden(*c));
    assert_eq!(hidden, None, "a message has a hidden character: {text:?}");
}
