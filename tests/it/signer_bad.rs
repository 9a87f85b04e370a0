//! A signer that gets one thing wrong, for the tests of whoever must refuse its answers; and the proof that it
//! does get that thing wrong, and nothing else.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::wire::SignRequest;
use nodepki::signer::{
    Answer, Caps, Kind, Rejection, Request, Signer, SignerError, Ticket, Wanted, exec,
};
use nodepki::x509::{Chain, TrustBundle, satisfies};

use crate::signing::{BAD_SIGNER, now, request, run, run_program, write_authorities};

/// The modes whose answer must be refused, with words that the refusal has.
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
    ("garbage", "no certificate"),
    ("empty", "no certificate"),
];

/// The modes whose answer is odd and good.
pub(crate) const TAKEN: [&str; 5] = ["good", "leaf-root", "pkcs7", "der", "bom"];

/// Answers in this process with the bytes that `bad-signer.sh MODE` makes, whatever their form.
pub(crate) struct BadSigner {
    pub(crate) mode: String,
    /// The authorities, in kubeadm's layout.
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
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn label(&self) -> String {
        format!("bad:{}", self.mode)
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn preflight(&self, _wanted: &Wanted) -> Result<(), Rejection> {
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

/// The same as a plug-in, for the modes that fit into JSON (all but `der`).
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

/// What the verification says to an answer; empty when it is taken.
pub(crate) fn verdict(request: &Request, answer: &[u8], authorities: &Path) -> String {
    let key = request.csr.public_key();
    let chain = match Chain::from_answer(answer, key) {
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

/// A slot in which the mode shows.
fn telling_slot(mode: &str) -> CertName {
    match mode {
        "missing-o" | "extra-o" => CertName::KubeletConf,
        _ => CertName::Apiserver,
    }
}

#[test]
fn every_bad_answer_is_refused_and_every_odd_one_taken() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    for (mode, words) in REFUSED {
        let request = request(telling_slot(mode));
        let answer = run(BadSigner::new(mode, dir.path()).submit(&request)).unwrap();
        let Answer::Issued(bytes) = answer else {
            panic!("{mode}: {answer:?}")
        };
        let said = verdict(&request, &bytes, dir.path());
        assert!(said.contains(words), "{mode}: {said:?}");
    }
    for mode in TAKEN {
        for slot in [
            CertName::Apiserver,
            CertName::KubeletConf,
            CertName::EtcdPeer,
        ] {
            let request = request(slot);
            let answer = run(BadSigner::new(mode, dir.path()).submit(&request)).unwrap();
            let Answer::Issued(bytes) = answer else {
                panic!("{mode}: {answer:?}")
            };
            assert_eq!(verdict(&request, &bytes, dir.path()), "", "{mode} {slot}");
        }
    }
}

#[test]
fn the_plugin_gives_the_same_verdicts() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    for (mode, words) in REFUSED {
        let request = request(telling_slot(mode));
        let signer = exec::Exec::new(bad_plugin(mode, dir.path()), None).unwrap();
        match run(signer.submit(&request)) {
            Ok(Answer::Issued(bytes)) => {
                let said = verdict(&request, &bytes, dir.path());
                assert!(said.contains(words), "{mode}: {said:?}");
            }
            // No certificate at all breaks the plug-in contract itself.
            Err(error) if mode == "empty" => {
                assert!(error.detail.contains("without a certificatePem"), "{error}");
            }
            other => panic!("{mode}: {other:?}"),
        }
    }
}
