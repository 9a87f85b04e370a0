//! A signer whose answers are wrong in one respect, for tests of the verification; and tests that each answer is wrong in
//! that respect only.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::wire::SignRequest;
use nodepki::signer::{
    Answer, Caps, Rejection, Request, RequestedCertificate, Signer, SignerError, SignerKind,
    Ticket, exec,
};
use nodepki::x509::{Chain, TrustBundle, satisfies};

use crate::signing::{BAD_SIGNER, now, request, run, run_program, write_authorities};

/// Modes whose answer must be refused, with a part of the refusal.
pub(crate) const REFUSED: [(&str, &str); 14] = [
    ("wrong-key", "another key"),
    ("missing-san", "DNS"),
    ("extra-san", "evil.example.com"),
    ("missing-eku", "usage"),
    ("missing-o", "O"),
    ("extra-o", "system:masters"),
    ("ca", "CA"),
    ("expired", "2021"),
    ("future", "valid"),
    ("reversed", "reversed"),
    ("other-authority", "trust"),
    ("other-slot", "CN"),
    ("garbage", "does not contain a certificate"),
    ("empty", "does not contain a certificate"),
];

/// Modes whose answer is unusual and valid.
pub(crate) const TAKEN: [&str; 5] = ["good", "leaf-root", "pkcs7", "der", "bom"];

/// A signer that returns the bytes of `bad-signer.sh MODE`, in any encoding.
pub(crate) struct BadSigner {
    pub(crate) mode: String,
    /// Directory with the authorities in kubeadm's layout.
    pub(crate) authorities: PathBuf,
    caps: Caps,
}

impl BadSigner {
    pub(crate) fn new(mode: &str, authorities: &Path) -> Self {
        BadSigner {
            mode: mode.to_owned(),
            authorities: authorities.to_owned(),
            caps: Caps::everything(),
        }
    }
}

#[async_trait(?Send)]
impl Signer for BadSigner {
    fn kind(&self) -> SignerKind {
        SignerKind::Local
    }

    fn label(&self) -> String {
        format!("bad:{}", self.mode)
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn preflight(&self, _wanted: &RequestedCertificate) -> Result<(), Rejection> {
        Ok(())
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let path = self
            .authorities
            .join(authority.base_name())
            .with_extension("crt");
        Ok(Some(std::fs::read(path).unwrap()))
    }

    async fn recover(
        &self,
        _request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        Ok(None)
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        let document = serde_json::to_vec(&SignRequest::exchange(request, None)).unwrap();
        let dir = self.authorities.to_str().unwrap();
        let args = [BAD_SIGNER, &self.mode, dir, "bytes"];
        Ok(Answer::Issued(run_program("/bin/bash", &args, &document)))
    }

    async fn poll(&self, _request: &Request, _ticket: &Ticket) -> Result<Answer, SignerError> {
        Ok(Answer::Gone)
    }
}

/// Returns the same signer as a plug-in, for the modes that fit into JSON (all but `der`).
pub(crate) fn bad_plugin(mode: &str, authorities: &Path) -> exec::Config {
    exec::Config {
        args: vec![
            BAD_SIGNER.to_owned(),
            mode.to_owned(),
            authorities.to_str().unwrap().to_owned(),
        ],
        ..exec::Config::new("/bin/bash")
    }
}

/// Returns the differences that the verification finds in an answer; empty if it is accepted.
pub(crate) fn verdict(request: &Request, answer: &[u8], authorities: &Path) -> String {
    let key = request.csr.public_key();
    let chain = match Chain::from_response(answer, key) {
        Ok(chain) => chain,
        Err(error) => return error.to_string(),
    };
    let path = authorities
        .join(request.wanted.authority.base_name())
        .with_extension("crt");
    let trust = TrustBundle::from_pem(&std::fs::read(path).unwrap()).unwrap();
    let wanted = &request.wanted;
    let differences = satisfies(
        &chain,
        &wanted.profile,
        wanted.tolerance,
        key,
        &trust,
        now(),
    );
    let lines: Vec<_> = differences.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// Returns a certificate on which the mode has an effect.
fn affected_certificate(mode: &str) -> CertName {
    match mode {
        "missing-o" | "extra-o" => CertName::KubeletConf,
        _ => CertName::Apiserver,
    }
}

#[test]
fn refuses_every_wrong_answer_and_accepts_every_valid_one() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    for (mode, words) in REFUSED {
        let request = request(affected_certificate(mode));
        let answer = run(BadSigner::new(mode, dir.path()).submit(&request)).unwrap();
        let Answer::Issued(bytes) = answer else {
            panic!("{mode}: {answer:?}")
        };
        let said = verdict(&request, &bytes, dir.path());
        assert!(said.contains(words), "{mode}: {said:?}");
    }
    for mode in TAKEN {
        for name in [
            CertName::Apiserver,
            CertName::KubeletConf,
            CertName::EtcdPeer,
        ] {
            let request = request(name);
            let answer = run(BadSigner::new(mode, dir.path()).submit(&request)).unwrap();
            let Answer::Issued(bytes) = answer else {
                panic!("{mode}: {answer:?}")
            };
            assert_eq!(verdict(&request, &bytes, dir.path()), "", "{mode} {name}");
        }
    }
}

#[test]
fn judges_answers_of_plugin_equally() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    for (mode, words) in REFUSED {
        let request = request(affected_certificate(mode));
        let signer = exec::Exec::new(bad_plugin(mode, dir.path()), None).unwrap();
        match run(signer.submit(&request)) {
            Ok(Answer::Issued(bytes)) => {
                let said = verdict(&request, &bytes, dir.path());
                assert!(said.contains(words), "{mode}: {said:?}");
            }
            // An answer without a certificate breaks the plug-in contract itself.
            Err(error) if mode == "empty" => {
                assert!(error.detail.contains("without a certificatePem"), "{error}");
            }
            other => panic!("{mode}: {other:?}"),
        }
    }
}
