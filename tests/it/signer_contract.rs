//! The signer contract, run against every kind.

use std::fs;
use std::path::Path;

use nodepki::names::{Authority, CertName};
use nodepki::settings::Settings;
use nodepki::signer::{
    Answer, Class, Config, Kind, Request, Resubmit, Signer, Ticket, directory, embedded, exec,
    local,
};
use nodepki::x509::TrustBundle;
use tempfile::TempDir;

use crate::signer_bad::{bad_plugin, verdict};
use crate::signing::{now, opened, openssl, request, run, tree, write_authorities};

/// One signer, and what plays the people behind it.
struct Case {
    kind: Kind,
    signer: Box<dyn Signer>,
    /// Where the authorities are, unless the signer keeps them to itself.
    dir: TempDir,
}

impl Case {
    fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let config = match kind {
            Kind::Embedded => Config::Embedded(embedded::Config),
            Kind::Local => Config::Local(local::Config {
                directory: dir.path().to_owned(),
            }),
            Kind::Exec => Config::Exec(bad_plugin("pending", dir.path())),
            Kind::Directory => Config::Directory(directory::Config::new(dir.path().join("drop"))),
        };
        let signer = opened(&config);
        Case { kind, signer, dir }
    }

    /// The same signer in the next process.
    fn restarted(self) -> Self {
        match self.kind {
            // Its authorities die with the process; that is what it is for.
            Kind::Embedded => self,
            Kind::Local => Case {
                signer: opened(&Config::Local(local::Config {
                    directory: self.dir.path().to_owned(),
                })),
                ..self
            },
            Kind::Exec => Case {
                signer: opened(&Config::Exec(bad_plugin("pending", self.dir.path()))),
                ..self
            },
            Kind::Directory => Case {
                signer: opened(&Config::Directory(directory::Config::new(
                    self.dir.path().join("drop"),
                ))),
                ..self
            },
        }
    }

    /// A person signs what is waiting.
    fn approve(&self, request: &Request) {
        if self.kind == Kind::Directory {
            sign_by_hand(&self.dir.path().join("drop"), self.dir.path(), request);
        }
    }

    /// A person says no, or a signer of this kind that does; `None` for a kind that never does.
    fn denying(&self, request: &Request) -> Option<Box<dyn Signer>> {
        match self.kind {
            // They know no policy.
            Kind::Embedded | Kind::Local => None,
            Kind::Exec => Some(opened(&Config::Exec(bad_plugin("denied", self.dir.path())))),
            Kind::Directory => {
                let drop = self.dir.path().join("drop");
                let signer = opened(&Config::Directory(directory::Config::new(drop.clone())));
                run(signer.submit(request)).unwrap();
                let denied = drop.join(format!("inbox/{}.denied", request.name()));
                fs::write(denied, "not on a Friday\n").unwrap();
                Some(signer)
            }
        }
    }

    /// What verification says to an answer; empty when it is good.
    fn verdict(&self, request: &Request, answer: &[u8]) -> String {
        if self.kind != Kind::Embedded {
            return verdict(request, answer, self.dir.path());
        }
        let authority = request.wanted.authority;
        let trust = run(self.signer.trust(authority)).unwrap().unwrap();
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("etcd")).unwrap();
        let path = own.path().join(authority.base_name()).with_extension("crt");
        fs::write(path, trust).unwrap();
        verdict(request, answer, own.path())
    }
}

/// `openssl x509 -req` on the outbox, into the inbox.
pub(crate) fn sign_by_hand(drop: &Path, authorities: &Path, request: &Request) {
    let name = request.name();
    let ca = authorities.join(request.wanted.authority.base_name());
    let signed = openssl(
        &[
            "x509",
            "-req",
            "-copy_extensions",
            "copy",
            "-days",
            "365",
            "-in",
            drop.join(format!("outbox/{name}.csr")).to_str().unwrap(),
            "-CA",
            ca.with_extension("crt").to_str().unwrap(),
            "-CAkey",
            ca.with_extension("key").to_str().unwrap(),
        ],
        b"",
    );
    fs::write(drop.join(format!("inbox/{name}.crt")), signed).unwrap();
}

const SLOTS: [CertName; 4] = [
    CertName::Apiserver,
    CertName::KubeletConf,
    CertName::EtcdServer,
    CertName::FrontProxyClient,
];

#[test]
fn a_request_ends_in_its_own_certificate() {
    for kind in Kind::ALL {
        let mut case = Case::new(kind);
        assert_eq!(case.signer.kind(), kind);
        run(case.signer.probe()).unwrap();
        for slot in SLOTS {
            let request = request(slot);
            case.signer.preflight(&request.wanted).unwrap();
            let mut answer = run(case.signer.submit(&request)).unwrap();
            if let Answer::Pending { ticket, note, .. } = &answer {
                assert!(case.signer.caps().pends, "{kind} pends and does not say so");
                assert!(!note.is_empty());
                // The ticket survives the process as text.
                let kept: String = ticket.clone().into();
                let ticket = Ticket::try_from(kept).unwrap();
                case.approve(&request);
                case = case.restarted();
                answer = run(case.signer.poll(&request, &ticket)).unwrap();
            }
            let Answer::Issued(bytes) = answer else {
                panic!("{kind} {slot}: {answer:?}")
            };
            assert_eq!(case.verdict(&request, &bytes), "", "{kind} {slot}");
            run(case.signer.settled(&request)).unwrap();
            run(case.signer.settled(&request)).unwrap();
        }
    }
}

#[test]
fn asking_again_never_gives_another_keys_certificate() {
    for kind in Kind::ALL {
        let case = Case::new(kind);
        let (old, new) = (request(CertName::EtcdServer), request(CertName::EtcdServer));
        assert_ne!(old.id, new.id);
        let finish = |request: &Request| -> Option<Vec<u8>> {
            let answer = run(case.signer.submit(request)).unwrap();
            match answer {
                Answer::Issued(bytes) => Some(bytes),
                Answer::Pending { ticket, .. } => match run(case.signer.poll(request, &ticket)) {
                    Ok(Answer::Issued(bytes)) => Some(bytes),
                    Ok(Answer::Pending { .. }) => None,
                    other => panic!("{kind}: {other:?}"),
                },
                other => panic!("{kind}: {other:?}"),
            }
        };
        finish(&old);
        case.approve(&old);
        let first = finish(&old).unwrap();
        let again = finish(&old.again(2, now(), None)).unwrap();
        for bytes in [&first, &again] {
            assert_eq!(case.verdict(&old, bytes), "", "{kind}");
        }
        if case.signer.caps().resubmit == Resubmit::Adopts && kind == Kind::Directory {
            assert_eq!(first, again, "{kind}");
        }
        // The same slot with another key: the old answer still lies about where there is such a place.
        if let Some(bytes) = finish(&new) {
            assert_eq!(case.verdict(&new, &bytes), "", "{kind}");
        }
        case.approve(&new);
        let bytes = finish(&new).unwrap();
        assert_eq!(case.verdict(&new, &bytes), "", "{kind}");
    }
}

#[test]
fn recovering_creates_nothing() {
    for kind in Kind::ALL {
        let case = Case::new(kind);
        let request = request(CertName::Apiserver);
        let before = tree(case.dir.path());
        assert_eq!(
            run(case.signer.recover(&request, None)).unwrap(),
            None,
            "{kind}"
        );
        assert_eq!(tree(case.dir.path()), before, "{kind}");
        // After a submit whose answer was lost: found, or safe to send again.
        run(case.signer.submit(&request)).unwrap();
        let before = tree(case.dir.path());
        let found = run(case.signer.recover(&request, None)).unwrap();
        assert_eq!(tree(case.dir.path()), before, "{kind}");
        match found {
            Some(Answer::Pending { .. }) => {}
            None => assert_ne!(case.signer.caps().resubmit, Resubmit::Forbidden),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[test]
fn an_unknown_ticket_is_gone() {
    for kind in Kind::ALL {
        let case = Case::new(kind);
        let request = request(CertName::Apiserver);
        let ticket = Ticket::try_from("of another time".to_owned()).unwrap();
        let answer = run(case.signer.poll(&request, &ticket)).unwrap();
        assert_eq!(answer, Answer::Gone, "{kind}");
    }
}

#[test]
fn a_denial_carries_its_reason_and_stays() {
    for kind in Kind::ALL {
        let case = Case::new(kind);
        let request = request(CertName::Apiserver);
        let Some(signer) = case.denying(&request) else {
            continue;
        };
        for _ in 0..2 {
            match run(signer.submit(&request)).unwrap() {
                Answer::Denied { reason } => {
                    assert!(reason.contains("not on a Friday"), "{kind}: {reason}");
                }
                other => panic!("{kind}: {other:?}"),
            }
        }
    }
}

#[test]
fn trust_is_the_right_authority_or_nothing() {
    for kind in Kind::ALL {
        let case = Case::new(kind);
        for authority in Authority::ALL {
            let Some(bytes) = run(case.signer.trust(authority)).unwrap() else {
                assert_eq!(kind, Kind::Directory);
                continue;
            };
            let bundle = TrustBundle::from_answer(&bytes).unwrap();
            let cn: Vec<_> = bundle.first().subject().values("CN").collect();
            assert_eq!(cn, [authority.common_name()], "{kind}");
            let again = run(case.signer.trust(authority)).unwrap().unwrap();
            assert_eq!(bytes, again, "{kind} {authority}");
        }
    }
}

#[test]
fn labels_say_kind_and_place() {
    for kind in Kind::ALL {
        let case = Case::new(kind);
        let label = case.signer.label();
        assert!(label.starts_with(kind.as_str()), "{label}");
    }
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
            assert_eq!(signer.kind(), kind);
        }
    }
}

// ---- local ----

#[test]
fn local_names_the_file_that_is_missing_and_signs_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    fs::remove_file(dir.path().join("etcd/ca.key")).unwrap();
    fs::write(dir.path().join("front-proxy-ca.key"), "garbage").unwrap();
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
    let case = Case::new(Kind::Local);
    let mut odd = request(CertName::KubeletConf);
    odd.csr = request(CertName::AdminConf).csr;
    let error = run(case.signer.submit(&odd)).unwrap_err();
    assert_eq!(error.class, Class::Permanent);
    assert!(error.to_string().contains("O=system:nodes"), "{error}");
}

#[test]
fn local_issues_as_kubeadm_does() {
    let case = Case::new(Kind::Local);
    let request = request(CertName::EtcdServer);
    let Answer::Issued(bytes) = run(case.signer.submit(&request)).unwrap() else {
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
