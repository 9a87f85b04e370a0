//! The signer contract, run against every kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodepki::config::Settings;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{
    Answer, Carry, Class, Config, Kind, Lookup, Request, Resubmit, Signer, Ticket, embedded, exec,
    local,
};
use nodepki::x509::TrustBundle;
use tempfile::TempDir;

use crate::rig::{Rig, rig};
use crate::signer_bad::verdict;
use crate::signing::{now, opened, openssl, request, run, write_authorities, write_secret};

/// Nobody stands around it.
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
    fn kind(&self) -> Kind {
        Kind::Embedded
    }

    fn settings(&self) -> String {
        settings("embedded: {}")
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Its authorities die with the process; that is what it is for.
    fn open(&self, _authority: Authority) -> Rc<dyn Signer> {
        Rc::clone(&self.signer)
    }

    fn sent(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Authorities in files.
pub(crate) struct LocalRig(TempDir);

impl LocalRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        LocalRig(dir)
    }
}

impl Rig for LocalRig {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn settings(&self) -> String {
        settings(&format!(
            "local: {{directory: {}}}",
            self.0.path().display()
        ))
    }

    fn authorities(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.0.path()
    }

    fn sent(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One signer for all authorities.
pub(crate) fn settings(signer: &str) -> String {
    format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities: {{ca: {{signer: s}}, etcd-ca: {{signer: s}}, front-proxy-ca: {{signer: s}}}}\n\
         signers: {{s: {{{signer}}}}}\n"
    )
}

const SLOTS: [CertName; 4] = [
    CertName::Apiserver,
    CertName::KubeletConf,
    CertName::EtcdServer,
    CertName::FrontProxyClient,
];

fn slots(rig: &dyn Rig) -> impl Iterator<Item = CertName> {
    SLOTS.into_iter().filter(|slot| rig.carries(*slot))
}

/// Drives a request to its certificate; `None` when the signer will not take it.
fn finish(rig: &dyn Rig, signer: &dyn Signer, request: &Request) -> Option<Vec<u8>> {
    let kind = rig.kind();
    match run(signer.submit(request)) {
        Ok(Answer::Issued(bytes)) => Some(bytes),
        Ok(Answer::Pending { ticket, note, .. }) => {
            assert!(signer.caps().pends, "{kind} pends and does not say so");
            assert!(!note.is_empty());
            rig.approve();
            // The ticket survives the process as text.
            let kept: String = ticket.into();
            let ticket = Ticket::try_from(kept).unwrap();
            let signer = rig.open(request.wanted.authority);
            run(signer.probe()).unwrap();
            match run(signer.poll(request, &ticket)) {
                Ok(Answer::Issued(bytes)) => Some(bytes),
                other => panic!("{kind} {}: {other:?}", request.name()),
            }
        }
        Ok(other) => panic!("{kind} {}: {other:?}", request.name()),
        Err(error) => {
            assert_eq!(error.class, Class::Permanent, "{kind}: {error}");
            None
        }
    }
}

fn all(test: impl Fn(&dyn Rig)) {
    for kind in Kind::ALL {
        let rig = rig(kind);
        assert_eq!(rig.kind(), kind);
        test(rig.as_ref());
    }
}

/// The signer of a request's authority, asked for its state as a run does first.
fn signer_for(rig: &dyn Rig, request: &Request) -> Rc<dyn Signer> {
    let signer = rig.open(request.wanted.authority);
    assert_eq!(signer.kind(), rig.kind());
    run(signer.probe()).unwrap_or_else(|error| panic!("{}: {error}", rig.kind()));
    signer
}

#[test]
fn a_request_ends_in_its_own_certificate() {
    all(|rig| {
        let kind = rig.kind();
        for slot in slots(rig) {
            let request = rig.request(slot);
            let signer = signer_for(rig, &request);
            signer.preflight(&request.wanted).unwrap();
            let bytes = finish(rig, signer.as_ref(), &request).unwrap();
            assert_eq!(
                verdict(&request, &bytes, &rig.authorities()),
                "",
                "{kind} {slot}"
            );
            run(signer.settled(&request)).unwrap();
            run(signer.settled(&request)).unwrap();
        }
    });
}

#[test]
fn asking_again_never_gives_another_keys_certificate() {
    all(|rig| {
        let kind = rig.kind();
        let slot = slots(rig)
            .find(|slot| *slot == CertName::EtcdServer)
            .unwrap();
        let (old, new) = (rig.request(slot), rig.request_like(slot));
        assert_ne!(old.id, new.id);
        let signer = signer_for(rig, &old);
        let first = finish(rig, signer.as_ref(), &old).unwrap();
        assert_eq!(verdict(&old, &first, &rig.authorities()), "", "{kind}");
        let once_more = old.again(2, now(), None);
        if let Some(again) = finish(rig, signer.as_ref(), &once_more) {
            assert_eq!(verdict(&old, &again, &rig.authorities()), "", "{kind}");
        }
        // The same slot with another key: the old answer may still lie about.
        if let Some(bytes) = finish(rig, signer.as_ref(), &new) {
            assert_eq!(verdict(&new, &bytes, &rig.authorities()), "", "{kind}");
        }
    });
}

#[test]
fn recovering_creates_nothing() {
    all(|rig| {
        let kind = rig.kind();
        let request = rig.request(slots(rig).next().unwrap());
        let signer = signer_for(rig, &request);
        let before = rig.sent();
        assert_eq!(run(signer.recover(&request, None)).unwrap(), None, "{kind}");
        assert_eq!(rig.sent(), before, "{kind}");
        // After a submit whose answer was lost: found, or safe to send again.
        run(signer.submit(&request)).unwrap();
        let before = rig.sent();
        let signer = signer_for(rig, &request);
        let found = run(signer.recover(&request, None)).unwrap();
        assert_eq!(rig.sent(), before, "{kind}");
        match found {
            Some(Answer::Pending { .. }) => assert!(signer.caps().pends, "{kind}"),
            Some(Answer::Issued(bytes)) => {
                assert_eq!(verdict(&request, &bytes, &rig.authorities()), "", "{kind}");
            }
            None => assert_ne!(signer.caps().resubmit, Resubmit::Forbidden),
            other => panic!("{kind}: {other:?}"),
        }
    });
}

#[test]
fn an_unknown_ticket_is_gone() {
    all(|rig| {
        let request = rig.request(slots(rig).next().unwrap());
        let signer = signer_for(rig, &request);
        // Where sending again is the look-up there is nothing to be unknown.
        if signer.caps().lookup == Lookup::ByResubmit {
            return;
        }
        let ticket = Ticket::try_from("of-another-time".to_owned()).unwrap();
        let answer = run(signer.poll(&request, &ticket)).unwrap();
        assert_eq!(answer, Answer::Gone, "{}", rig.kind());
    });
}

#[test]
fn a_denial_carries_its_reason_and_stays() {
    all(|rig| {
        let kind = rig.kind();
        let request = rig.request(slots(rig).next().unwrap());
        let Some(denial) = rig.deny(&request) else {
            return;
        };
        run(denial.signer.probe()).unwrap();
        for _ in 0..2 {
            let answer = match &denial.ticket {
                Some(ticket) => run(denial.signer.poll(&request, ticket)),
                None => run(denial.signer.submit(&request)),
            };
            match answer.unwrap() {
                Answer::Denied { reason } => {
                    assert!(reason.contains(denial.reason), "{kind}: {reason}");
                }
                other => panic!("{kind}: {other:?}"),
            }
        }
    });
}

#[test]
fn trust_is_the_right_authority_or_nothing() {
    all(|rig| {
        let kind = rig.kind();
        for authority in Authority::ALL {
            let signer = rig.open(authority);
            if signer.kind() != kind {
                continue;
            }
            let Some(bytes) = run(signer.trust(authority)).unwrap() else {
                continue;
            };
            let bundle = TrustBundle::from_answer(&bytes).unwrap();
            let file = rig.authorities().join(authority.base_name());
            let pem = fs::read(file.with_extension("crt")).unwrap();
            let trusted = TrustBundle::from_pem(&pem).unwrap();
            let known = |key| {
                trusted
                    .certificates()
                    .iter()
                    .any(|one| one.public_key() == key)
            };
            assert!(
                bundle
                    .certificates()
                    .iter()
                    .any(|one| known(one.public_key())),
                "{kind} {authority}"
            );
            let again = run(signer.trust(authority)).unwrap().unwrap();
            assert_eq!(bytes, again, "{kind} {authority}");
        }
    });
}

#[test]
fn labels_say_kind_and_place() {
    all(|rig| {
        let label = rig.open(Authority::EtcdCa).label();
        assert!(label.starts_with(rig.kind().as_str()), "{label}");
    });
}

#[test]
fn every_kind_has_an_example_that_loads() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/examples/signers");
    for kind in Kind::ALL {
        let path = dir.join(format!("{kind}.yaml"));
        let text = fs::read_to_string(&path).unwrap_or_else(|_| panic!("{kind} has no example"));
        let (settings, faults) = Settings::from_fragments(&[(path.display().to_string(), text)])
            .unwrap_or_else(|faults| panic!("{faults}"));
        assert!(faults.is_empty(), "{faults}");
        for authority in Authority::ALL {
            let (_, signer) = settings.signer_of(authority).unwrap();
            // Kubeconfigs have common names with colons.
            let serves =
                authority != Authority::Ca || kind.about().caps.colon_common_name != Carry::No;
            assert_eq!(signer.kind() == kind, serves, "{kind} {authority}");
        }
    }
}

// ---- local ----

#[test]
fn local_names_the_file_that_is_missing_and_signs_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    fs::remove_file(dir.path().join("etcd/ca.key")).unwrap();
    write_secret(dir.path().join("front-proxy-ca.key"), "garbage");
    let signer = opened(&Config::Local(local::Config {
        directory: dir.path().to_owned(),
    }));
    signer
        .preflight(&request(CertName::Apiserver).wanted)
        .unwrap();
    let etcd = request(CertName::EtcdServer);
    let message = signer.preflight(&etcd.wanted).unwrap_err().to_string();
    for part in ["etcd-server", "etcd/ca.key", "No such file", "etcd-ca"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(run(signer.submit(&etcd)).unwrap_err().class, Class::Config);
    // The certificate is there, and known.
    assert!(run(signer.trust(Authority::EtcdCa)).unwrap().is_some());
    let proxy = request(CertName::FrontProxyClient);
    let message = signer.preflight(&proxy.wanted).unwrap_err().to_string();
    assert!(message.contains("front-proxy-ca.key"), "{message}");
}

#[test]
fn local_refuses_a_key_of_another_authority() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    fs::copy(dir.path().join("ca.key"), dir.path().join("etcd/ca.key")).unwrap();
    let signer = opened(&Config::Local(local::Config {
        directory: dir.path().to_owned(),
    }));
    let message = signer
        .preflight(&request(CertName::EtcdPeer).wanted)
        .unwrap_err()
        .to_string();
    assert!(message.contains("does not belong"), "{message}");
}

#[test]
fn local_refuses_a_csr_that_asks_for_something_else() {
    let rig = LocalRig::new();
    let signer = rig.open(Authority::Ca);
    let mut odd = request(CertName::KubeletConf);
    odd.csr = request(CertName::AdminConf).csr;
    let error = run(signer.submit(&odd)).unwrap_err();
    assert_eq!(error.class, Class::Permanent);
    assert!(error.to_string().contains("O=system:nodes"), "{error}");
}

#[test]
fn local_issues_as_kubeadm_does() {
    let rig = LocalRig::new();
    let signer = rig.open(Authority::Ca);
    let request = request(CertName::EtcdServer);
    let Answer::Issued(bytes) = run(signer.submit(&request)).unwrap() else {
        panic!()
    };
    let text = String::from_utf8(openssl(&["x509", "-noout", "-text"], &bytes)).unwrap();
    for part in [
        "DNS:cp1, DNS:localhost, IP Address:192.0.2.11, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "X509v3 Basic Constraints: critical\n                CA:FALSE",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let leaf = nodepki::x509::Chain::from_pem(&bytes).unwrap();
    let leaf = leaf.leaf();
    assert_eq!(
        (leaf.not_after() - leaf.not_before()).whole_seconds(),
        365 * 24 * 60 * 60 + 300
    );
}

// ---- request ids ----

#[test]
fn the_request_id_follows_wish_and_key_only() {
    let one = request(CertName::Apiserver);
    assert_eq!(one.again(7, now(), Some(now())).id, one.id);
    let mut wanted = one.wanted.clone();
    wanted.profile.sans.dns.push("new.example.com".to_owned());
    let changed = Request::new(wanted, one.csr.clone(), one.identity.clone(), now());
    assert_ne!(changed.id, one.id);
    assert_ne!(request(CertName::Apiserver).id, one.id);
    assert_eq!(one.id.as_str().len(), 64);
}

#[test]
fn an_exec_signer_needs_a_sane_configuration() {
    let relative = exec::Exec::new(exec::Config::new("sign"), None)
        .err()
        .unwrap();
    assert!(relative.to_string().contains("absolute path"), "{relative}");
    let slow = exec::Config {
        timeout: std::time::Duration::from_secs(601),
        ..exec::Config::new("/bin/true")
    };
    let slow = exec::Exec::new(slow, None).err().unwrap();
    assert!(slow.to_string().contains("between 1 and 600"), "{slow}");
}
