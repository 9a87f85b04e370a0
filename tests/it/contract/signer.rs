//! Clauses about the calls of the `Signer` trait.

use std::fs;
use std::rc::Rc;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, FailureClass, Request, Resubmit, Signer, SignerError, Ticket};
use nodepki::x509::TrustBundle;

use crate::rig::Rig;
use crate::signer_bad::verdict;
use crate::signing::{contains, denied, issued, now, pending, recovered, run};
use crate::time::eventually;

/// One certificate for each authority, and one whose common name contains a colon.
const NAMES: [CertName; 4] = [
    CertName::Apiserver,
    CertName::KubeletConf,
    CertName::EtcdServer,
    CertName::FrontProxyClient,
];

fn names(rig: &dyn Rig) -> impl Iterator<Item = CertName> {
    NAMES.into_iter().filter(|name| rig.carries(*name))
}

/// Returns a request for the first certificate that the kind can sign.
fn first_request(rig: &dyn Rig) -> Request {
    rig.request(names(rig).next().unwrap())
}

/// Opens the signer of a request's authority and probes it, as a run does first.
fn signer_for(rig: &dyn Rig, request: &Request) -> Rc<dyn Signer> {
    let signer = rig.open(request.wanted.authority);
    assert_eq!(signer.kind(), rig.kind());
    run(signer.probe()).unwrap();
    signer
}

/// Submits a request; again while the server cannot be reached, as a run does.
fn submit(signer: &dyn Signer, request: &Request) -> Result<Answer, SignerError> {
    eventually(|| match run(signer.submit(request)) {
        Err(error) if error.class == FailureClass::Transient => Err(error),
        answered => Ok(answered),
    })
}

/// Submits a request and, if it is queued, has it approved and polls; `None` if the signer refuses the request.
fn finish(rig: &dyn Rig, signer: &dyn Signer, request: &Request) -> Option<Vec<u8>> {
    match submit(signer, request) {
        Ok(Answer::Issued(bytes)) => Some(bytes),
        Ok(Answer::Pending { ticket, note, .. }) => {
            assert!(signer.caps().pends, "pends, contrary to its capabilities");
            assert!(!note.is_empty());
            rig.approve();
            // The next process reads the ticket from a file.
            let stored: String = ticket.into();
            let ticket = Ticket::try_from(stored).unwrap();
            let signer = signer_for(rig, request);
            Some(issued(run(signer.poll(request, &ticket))))
        }
        Ok(other) => panic!("{}: {other:?}", request.name()),
        Err(error) => {
            assert_eq!(error.class, FailureClass::Permanent, "{error}");
            None
        }
    }
}

#[track_caller]
fn assert_verified(rig: &dyn Rig, request: &Request, bytes: &[u8]) {
    let said = verdict(request, bytes, &rig.authorities());
    assert_eq!(said, "", "{}", request.name());
}

pub(super) fn issues_requested_certificate(rig: &dyn Rig) {
    for name in names(rig) {
        let request = rig.request(name);
        let signer = signer_for(rig, &request);
        signer.preflight(&request.wanted).unwrap();
        let bytes = finish(rig, signer.as_ref(), &request).unwrap();
        assert_verified(rig, &request, &bytes);
        run(signer.settled(&request.key())).unwrap();
        run(signer.settled(&request.key())).unwrap();
    }
}

pub(super) fn never_returns_certificate_of_another_key(rig: &dyn Rig) {
    let name = CertName::EtcdServer;
    let (old, new) = (rig.request(name), rig.request_like(name));
    assert_ne!(old.id, new.id);
    let signer = signer_for(rig, &old);
    let first = finish(rig, signer.as_ref(), &old).unwrap();
    assert_verified(rig, &old, &first);
    if let Some(again) = finish(rig, signer.as_ref(), &old.again(2, now(), None)) {
        assert_verified(rig, &old, &again);
    }
    // The server may still hold the answer for the old key.
    if let Some(bytes) = finish(rig, signer.as_ref(), &new) {
        assert_verified(rig, &new, &bytes);
    }
}

pub(super) fn recovers_without_creating_anything(rig: &dyn Rig) {
    let request = first_request(rig);
    let signer = signer_for(rig, &request);
    let before = rig.sent();
    assert_eq!(run(signer.recover(&request, None)).unwrap(), None);
    assert_eq!(rig.sent(), before);
    // If the response to a submit is lost, the request is found, or may be sent again.
    run(signer.submit(&request)).unwrap();
    let before = rig.sent();
    let signer = signer_for(rig, &request);
    let found = run(signer.recover(&request, None)).unwrap();
    assert_eq!(rig.sent(), before);
    match found {
        Some(Answer::Pending { .. }) => assert!(signer.caps().pends),
        Some(Answer::Issued(bytes)) => assert_verified(rig, &request, &bytes),
        None => assert_ne!(signer.caps().resubmit, Resubmit::Forbidden),
        other => panic!("{other:?}"),
    }
}

pub(super) fn reports_unknown_ticket_as_gone(rig: &dyn Rig) {
    let request = first_request(rig);
    let signer = signer_for(rig, &request);
    let ticket = Ticket::try_from("of-another-time".to_owned()).unwrap();
    let answer = run(signer.poll(&request, &ticket)).unwrap();
    assert_eq!(answer, Answer::Gone);
}

pub(super) fn adopts_queued_request(rig: &dyn Rig) {
    let request = first_request(rig);
    let (ticket, _) = pending(run(signer_for(rig, &request).submit(&request)));
    let sent = rig.sent();
    // Another process, also one that has lost the ticket.
    let signer = signer_for(rig, &request);
    let again = request.again(2, now(), None);
    assert_eq!(pending(run(signer.submit(&again))).0, ticket);
    assert_eq!(pending(run(signer.poll(&request, &ticket))).0, ticket);
    let found = recovered(run(signer.recover(&request, None)));
    assert_eq!(pending(found).0, ticket);
    assert_eq!(rig.sent(), sent);
    rig.approve();
    let bytes = issued(run(signer.submit(&request)));
    assert_verified(rig, &request, &bytes);
    let found = recovered(run(signer.recover(&request, None)));
    assert_eq!(issued(found), bytes);
    assert_eq!(rig.sent(), sent);
}

pub(super) fn reports_denial_with_reason_each_time(rig: &dyn Rig) {
    let request = first_request(rig);
    let denial = rig.deny(&request).expect("the kind can deny a request");
    run(denial.signer.probe()).unwrap();
    // A server that was started for this test accepts no token from before its start.
    let request = request.again(1, now(), None);
    for _ in 0..2 {
        let answer = match &denial.ticket {
            Some(ticket) => run(denial.signer.poll(&request, ticket)),
            None => run(denial.signer.submit(&request)),
        };
        contains(&denied(answer), &[denial.reason]);
    }
}

pub(super) fn offers_trust_of_the_authority_or_none(rig: &dyn Rig) {
    for authority in Authority::ALL {
        let signer = rig.open(authority);
        if signer.kind() != rig.kind() {
            continue;
        }
        let Some(bytes) = run(signer.trust(authority)).unwrap() else {
            continue;
        };
        let offered = TrustBundle::from_response(&bytes).unwrap();
        let file = rig.authorities().join(authority.base_name());
        let pem = fs::read(file.with_extension("crt")).unwrap();
        let trusted = TrustBundle::from_pem(&pem).unwrap();
        let is_trusted = |key| {
            let mut certificates = trusted.certificates().iter();
            certificates.any(|one| one.public_key() == key)
        };
        let mut certificates = offered.certificates().iter();
        assert!(
            certificates.any(|one| is_trusted(one.public_key())),
            "{authority}"
        );
        let again = run(signer.trust(authority)).unwrap().unwrap();
        assert_eq!(bytes, again, "{authority}");
    }
}

pub(super) fn labels_itself_by_kind(rig: &dyn Rig) {
    let label = rig.open(Authority::EtcdCa).label();
    assert!(label.starts_with(rig.kind().as_str()), "{label}");
}
