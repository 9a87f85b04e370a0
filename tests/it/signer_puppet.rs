//! `puppet` against a real Puppet Server: its queue, what its statuses mean, and what it must never be sent.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodepki::config::Settings;
use nodepki::http::{Call, Client, Endpoint, Tls, Url};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Current, Kind, Request, Signer, SignerError, Ticket, Wanted};
use nodepki::x509::{
    Chain, ExtendedUsage, KeyAlgorithm, PrivateKey, Tolerance, TrustBundle, UsageExtensions, hex,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Rule, Upstream};
use crate::node::{INIT, Node, Ran};
use crate::rig::{Denial, Front, Rig};
use crate::servers::puppet::{AUTO, Puppet, shared, strict};
use crate::signer_bad::verdict;
use crate::signing::{
    PlainFiles, now, opened, openssl, request_for, run, wanted, write_authorities,
};

/// What Puppet Server 8.7 said to a request that it could not read.
const UNREADABLE: &str = include_str!("../golden/signers/puppet/unreadable-request.http");

const SHARED: Tolerance = Tolerance {
    extra_usages: true,
    own_name: true,
    max_lifetime: None,
};

/// A name that no other test uses.
fn tag() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A wish with this common name.
fn named(name: CertName, common_name: &str) -> Wanted {
    let mut wanted = wanted(name);
    wanted.profile.subject.common_name = common_name.to_owned();
    wanted.tolerance = SHARED;
    wanted
}

fn asking(name: CertName, common_name: &str) -> (Request, PrivateKey) {
    request_for(named(name, common_name), UsageExtensions::Omitted)
}

/// Settings with a Puppet CA for two authorities, `more` in it, and keys on disk for the third.
fn settings(keys: &Path, etcd: &str, front_proxy: &str, tag: &str) -> String {
    format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities:\n  ca: {{signer: disk}}\n  etcd-ca: {{signer: etcd, allowExtraUsages: true}}\n  \
         front-proxy-ca: {{signer: front, allowExtraUsages: true}}\n\
         commonNames:\n  etcd-server: \"etcd-server.{{node}}.{tag}\"\n  etcd-peer: \"etcd-peer.{{node}}.{tag}\"\n  \
         etcd-healthcheck-client: \"etcd-healthcheck-client.{{node}}.{tag}\"\n  \
         apiserver-etcd-client: \"apiserver-etcd-client.{{node}}.{tag}\"\n  \
         front-proxy-client: \"front-proxy-client.{{node}}.{tag}\"\n\
         signers:\n  disk: {{local: {{directory: {}}}}}\n  etcd: {{puppet: {{{etcd}}}}}\n  front: {{puppet: {{{front_proxy}}}}}\n",
        keys.display()
    )
}

/// The keys of a configuration for a server.
fn keys(url: &str, tls: &str) -> String {
    format!("url: \"{url}\", tls: {tls}, acceptSharedCA: true")
}

fn keys_of(server: &Puppet) -> String {
    keys(
        &server.url(),
        &format!("{{caFile: {}}}", server.ca_file().display()),
    )
}

/// A signer with these keys.
fn puppet(keys: &str) -> Box<dyn Signer> {
    let text = settings(Path::new("/nowhere"), keys, keys, "x");
    let (settings, faults) = Settings::from_fragments(&[("test.yaml", text)])
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(faults.is_empty(), "{faults}");
    let (_, config) = settings.signer_of(Authority::EtcdCa).unwrap();
    opened(config)
}

fn signer() -> Box<dyn Signer> {
    puppet(&keys_of(shared()))
}

/// The shared server behind a gateway, and a signer that asks there.
fn behind_gateway() -> (Gateway, Box<dyn Signer>) {
    let gateway = Gateway::to(Some(upstream(shared())));
    let signer = puppet(&keys(
        &gateway.url(),
        &format!("{{caFile: {}}}", gateway.ca_file().display()),
    ));
    (gateway, signer)
}

fn upstream(server: &Puppet) -> Upstream {
    Upstream::tls(server.address(), &server.ca_pem(), "localhost")
}

#[track_caller]
fn pending(answer: Result<Answer, SignerError>) -> (Ticket, String) {
    match answer {
        Ok(Answer::Pending { ticket, note, .. }) => (ticket, note),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn issued(answer: Result<Answer, SignerError>) -> Vec<u8> {
    match answer {
        Ok(Answer::Issued(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn failed<T>(answer: Result<T, SignerError>, class: Class, words: &[&str]) {
    let Err(error) = answer else {
        panic!("nothing failed that should have, with {words:?}")
    };
    assert_eq!(error.class, class, "{error}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

/// The authorities' certificates of the shared server, as a node has them.
fn authorities() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_puppet_authorities(dir.path());
    dir
}

fn write_puppet_authorities(dir: &Path) {
    write_authorities(dir);
    for authority in [Authority::EtcdCa, Authority::FrontProxyCa] {
        let file = dir.join(authority.base_name());
        fs::write(file.with_extension("crt"), shared().ca_pem()).unwrap();
        fs::remove_file(file.with_extension("key")).unwrap();
    }
}

/// The shared server for etcd and the front proxy, keys on disk for the rest. People sign.
pub(crate) struct PuppetRig {
    dir: TempDir,
    tag: String,
    asked: Cell<usize>,
}

impl PuppetRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_puppet_authorities(dir.path());
        PuppetRig {
            dir,
            tag: tag(),
            asked: Cell::new(0),
        }
    }

    fn asking(&self, name: CertName) -> Request {
        let certname = format!("{name}-{}.cp1.{}", self.asked.get(), self.tag);
        asking(name, &certname).0
    }
}

impl Rig for PuppetRig {
    fn kind(&self) -> Kind {
        Kind::Puppet
    }

    fn settings(&self) -> String {
        let keys = keys_of(shared());
        settings(self.dir.path(), &keys, &keys, &self.tag)
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn carries(&self, name: CertName) -> bool {
        name.authority() != Authority::Ca
    }

    fn approve(&self) {
        for (certname, state) in shared().holds(&self.tag) {
            if state == "requested" {
                shared().sign(&certname);
            }
        }
    }

    /// `puppetserver ca clean`, for each of them.
    fn make_room(&self) {
        for (certname, _) in shared().holds(&self.tag) {
            shared().revoke(&certname);
            shared().remove(&certname);
        }
    }

    fn deny(&self, request: &Request) -> Option<Denial> {
        let signer = self.open(request.wanted.authority);
        let (ticket, _) = pending(run(signer.submit(request)));
        shared().remove(&request.wanted.profile.subject.common_name);
        Some(Denial {
            signer,
            ticket: Some(ticket),
            reason: "was deleted at",
        })
    }

    fn sent(&self) -> Vec<String> {
        shared().sent(&self.tag)
    }

    fn front(&self) -> Option<Front> {
        let (dir, tag) = (self.dir.path().to_owned(), self.tag.clone());
        Some(Front {
            upstream: upstream(shared()),
            submit: ("PUT", "/puppet-ca/v1/certificate_request/"),
            settings: Box::new(move |url, tls| {
                settings(&dir, &keys(url, tls), &keys_of(shared()), &tag)
            }),
            exceptions: &[(
                "half a body, when it is to sign",
                75,
                "a request is taken without a word, and half of that is all of it",
            )],
        })
    }

    fn request(&self, name: CertName) -> Request {
        self.asked.set(self.asked.get() + 1);
        self.asking(name)
    }

    fn request_like(&self, name: CertName) -> Request {
        self.asking(name)
    }
}

// ---- the queue ----

#[test]
fn a_request_waits_under_its_certname_and_is_sent_once() {
    let (tag, signer, authorities) = (tag(), signer(), authorities());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, key) = asking(CertName::EtcdPeer, &certname);
    assert_eq!(run(signer.recover(&request, None)).unwrap(), None);
    let (ticket, note) = pending(run(signer.submit(&request)));
    for part in [
        "Requesting",
        &format!("puppetserver ca sign --certname {certname}"),
    ] {
        assert!(note.contains(part), "{note}");
    }
    // Again, by another process, and by one that lost its ticket.
    let once_more = self::signer();
    assert_eq!(pending(run(once_more.submit(&request))).0, ticket);
    assert_eq!(pending(run(once_more.poll(&request, &ticket))).0, ticket);
    let found = run(once_more.recover(&request, None)).unwrap().unwrap();
    assert_eq!(pending(Ok(found)).0, ticket);
    assert_eq!(shared().sent(&tag).len(), 1, "{:?}", shared().sent(&tag));

    shared().sign(&certname);
    let answer = issued(run(signer.poll(&request, &ticket)));
    assert_eq!(verdict(&request, &answer, authorities.path()), "");
    assert_eq!(issued(run(once_more.submit(&request))), answer);
    let found = run(once_more.recover(&request, None)).unwrap().unwrap();
    assert_eq!(issued(Ok(found)), answer);
    assert_eq!(shared().sent(&tag).len(), 1);

    // What others see.
    let text = String::from_utf8(openssl(&["x509", "-noout", "-text"], &answer)).unwrap();
    for part in [
        &*format!("Subject: CN = {certname}\n"),
        "Issuer: CN = Puppet CA: puppet.test\n",
        &format!("DNS:{certname}"),
        "DNS:localhost",
        "IP Address:192.0.2.11",
        "X509v3 Extended Key Usage: critical\n                TLS Web Server Authentication, TLS Web Client Authentication",
        "X509v3 Basic Constraints: critical\n                CA:FALSE",
        "X509v3 Key Usage: critical\n                Digital Signature, Key Encipherment",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    // The intermediate came along: a root is enough to believe it.
    let chain = Chain::from_answer(&answer, key.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
    let bundle = TrustBundle::from_pem(&shared().ca_pem()).unwrap();
    let [_, root] = bundle.certificates() else {
        panic!("{bundle}")
    };
    let dir = tempfile::tempdir().unwrap();
    let (ca, leaf) = (dir.path().join("ca"), dir.path().join("leaf"));
    fs::write(&ca, root.to_pem()).unwrap();
    fs::write(&leaf, chain.to_pem()).unwrap();
    let (ca, leaf) = (ca.to_str().unwrap(), leaf.to_str().unwrap());
    openssl(&["verify", "-CAfile", ca, "-untrusted", leaf, leaf], b"");
}

#[test]
fn what_is_autosigned_comes_at_once_for_every_kind_of_key() {
    let (tag, signer, authorities) = (tag(), signer(), authorities());
    for (number, algorithm) in [
        KeyAlgorithm::Rsa2048,
        KeyAlgorithm::EcdsaP256,
        KeyAlgorithm::EcdsaP384,
        KeyAlgorithm::EcdsaP521,
    ]
    .into_iter()
    .enumerate()
    {
        let mut wanted = named(
            CertName::EtcdServer,
            &format!("etcd-{number}.cp1.{tag}.{AUTO}"),
        );
        wanted.profile.key = algorithm;
        let (request, _) = request_for(wanted, UsageExtensions::Omitted);
        let answer = issued(run(signer.submit(&request)));
        assert_eq!(
            verdict(&request, &answer, authorities.path()),
            "",
            "{algorithm}"
        );
    }
}

#[test]
fn another_keys_request_or_certificate_is_neither_adopted_nor_replaced() {
    let (tag, signer) = (tag(), signer());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (theirs, _) = asking(CertName::EtcdPeer, &certname);
    let (ours, _) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&theirs)));
    let clean = format!("puppetserver ca clean --certname {certname}");
    let mut words = vec![
        "puppet:https://localhost",
        "etcd-peer",
        "etcd-ca",
        "a request of another key",
        &clean,
        "commonNames.etcd-peer",
    ];
    failed(run(signer.submit(&ours)), Class::Permanent, &words);
    failed(run(signer.recover(&ours, None)), Class::Permanent, &words);
    failed(run(signer.poll(&ours, &ticket)), Class::Permanent, &words);
    shared().sign(&certname);
    words[3] = "a certificate of another key";
    failed(run(signer.submit(&ours)), Class::Permanent, &words);
    failed(run(signer.recover(&ours, None)), Class::Permanent, &words);
    // Revoked is still there.
    shared().revoke(&certname);
    failed(run(signer.submit(&ours)), Class::Permanent, &words);
    assert_eq!(shared().sent(&tag).len(), 1);
    issued(run(signer.poll(&theirs, &ticket)));
    // What the advice says helps.
    shared().remove(&certname);
    pending(run(signer.submit(&ours)));
}

/// Between the look and the PUT somebody else was faster. The real server then says 400.
#[test]
fn a_400_that_says_already_is_looked_into() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (first, _) = asking(CertName::EtcdPeer, &certname);
    let (second, _) = asking(CertName::EtcdPeer, &certname);
    pending(run(self::signer().submit(&first)));
    let blind = || {
        gateway.behave();
        for kind in ["certificate", "certificate_request"] {
            let said = format!("Could not find {kind} {certname}").into_bytes();
            let path = format!("/{kind}/{certname}");
            gateway.rule(Rule::on("GET", &path).times(1).then(Action::Status(
                404,
                Vec::new(),
                said,
            )));
        }
    };
    blind();
    pending(run(signer.submit(&first)));
    blind();
    let words = ["a request of another key", "clean"];
    failed(run(signer.submit(&second)), Class::Permanent, &words);
    shared().sign(&certname);
    blind();
    issued(run(signer.submit(&first)));
    blind();
    let words = ["a certificate of another key", "clean"];
    failed(run(signer.submit(&second)), Class::Permanent, &words);
    assert_eq!(shared().sent(&tag).len(), 5);
}

#[test]
fn a_request_that_somebody_deleted_is_denied_and_stays_so() {
    let (tag, signer) = (tag(), signer());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, _) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&request)));
    shared().remove(&certname);
    for answer in [
        run(signer.poll(&request, &ticket)).unwrap(),
        run(signer.recover(&request, Some(&ticket)))
            .unwrap()
            .unwrap(),
    ] {
        let Answer::Denied { reason } = answer else {
            panic!("{answer:?}")
        };
        for part in [
            "deleted",
            &certname,
            "puppet:https://localhost",
            "/var/lib/nodepki/pending/etcd-peer",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
    }
    // Without a ticket nobody knows that it ever was there.
    assert_eq!(run(signer.recover(&request, None)).unwrap(), None);
    // A certificate that was made and cleaned away counts as deleted, too.
    let again = puppet(&format!("{}, resubmitAfterDelete: true", keys_of(shared())));
    assert_eq!(run(again.poll(&request, &ticket)).unwrap(), Answer::Gone);
    pending(run(again.submit(&request)));
    shared().sign(&certname);
    shared().remove(&certname);
    let answer = run(signer.poll(&request, &ticket)).unwrap();
    assert!(matches!(answer, Answer::Denied { .. }), "{answer:?}");
}

/// The certificate is made after the first question and before the second: the request is gone, and nobody deleted it.
#[test]
fn signing_between_two_questions_does_not_look_like_a_deletion() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, _) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&request)));
    shared().sign(&certname);
    let too_early = || {
        let said = format!("Could not find certificate {certname}").into_bytes();
        let path = format!("/certificate/{certname}");
        gateway.behave();
        gateway.rule(
            Rule::on("GET", &path)
                .times(1)
                .then(Action::Status(404, Vec::new(), said)),
        );
    };
    too_early();
    issued(run(signer.poll(&request, &ticket)));
    too_early();
    issued(Ok(run(signer.recover(&request, Some(&ticket)))
        .unwrap()
        .unwrap()));
}

/// A load balancer, a server that is starting, an address of something else: no word from the CA, no denial.
#[test]
fn a_404_of_somebody_else_is_no_answer_of_the_ca() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, _) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&request)));
    for path in ["/certificate/", "/certificate_request/"] {
        for said in ["<h1>Not Found</h1>", "", "Not Found"] {
            gateway.behave();
            let body = said.as_bytes().to_vec();
            gateway.rule(Rule::on("GET", path).then(Action::Status(404, Vec::new(), body)));
            let words = ["404", "the Puppet CA itself"];
            failed(run(signer.poll(&request, &ticket)), Class::Config, &words);
            failed(run(signer.recover(&request, None)), Class::Config, &words);
        }
    }
    assert_eq!(shared().sent(&tag).len(), 1);
}

#[test]
fn a_lost_answer_is_found_and_not_sent_again() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    for (certname, queued) in [
        (format!("etcd-peer.cp1.{tag}"), true),
        (format!("etcd-peer.cp1.{tag}.{AUTO}"), false),
    ] {
        let (request, _) = asking(CertName::EtcdPeer, &certname);
        gateway.behave();
        gateway.rule(
            Rule::on("PUT", &certname)
                .times(1)
                .then(Action::DropAfterForward),
        );
        failed(run(signer.submit(&request)), Class::Ambiguous, &["lost"]);
        let found = run(signer.recover(&request, None)).unwrap().unwrap();
        assert_eq!(matches!(found, Answer::Pending { .. }), queued);
        assert_eq!(matches!(found, Answer::Issued(_)), !queued);
    }
    let puts = gateway.requests();
    let puts = puts.iter().filter(|one| one.method == "PUT");
    assert_eq!(puts.count(), 2);
}

// ---- what is refused ----

#[test]
fn what_the_server_may_not_certify_is_refused_and_says_that_it_stays_queued() {
    let tag = tag();
    let signer = puppet(&keys_of(strict()));
    let certname = format!("etcd-server.cp1.{tag}.{AUTO}");
    let (request, _) = asking(CertName::EtcdServer, &certname);
    let sign = format!("puppetserver ca sign --certname {certname}");
    let words = [
        "etcd-server",
        "extra subject alternative names",
        "stays queued",
        "allow-subject-alt-names: true",
        &sign,
    ];
    failed(run(signer.submit(&request)), Class::Permanent, &words);
    // The next run finds it, and whoever runs the CA can still sign it.
    let found = run(signer.recover(&request, None)).unwrap().unwrap();
    pending(Ok(found));
    pending(run(signer.submit(&request)));
    assert_eq!(strict().sent(&format!("{tag}.{AUTO}")).len(), 1);
    let said = strict().status(&certname, "signed");
    assert_eq!(said.status, 409, "{}", said.text());
    // A name that needs no alternative ones gets one all the same, and passes.
    let (client, _) = asking(
        CertName::FrontProxyClient,
        &format!("front-proxy-client.cp1.{tag}.{AUTO}"),
    );
    let answer = issued(run(signer.submit(&client)));
    assert_eq!(verdict(&client, &answer, authorities().path()), "");
}

#[test]
fn a_request_that_names_usages_is_not_sent() {
    let (tag, signer) = (tag(), signer());
    let wanted = named(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    let (request, _) = request_for(wanted, UsageExtensions::Requested);
    let words = ["etcd-peer", "names usages", "was not sent"];
    failed(run(signer.submit(&request)), Class::Permanent, &words);
    assert_eq!(shared().sent(&tag), [""; 0]);
}

#[test]
fn a_500_about_a_request_that_it_cannot_read_is_final() {
    // The recorded words are those of the real server.
    let garbage = b"garbage".to_vec();
    let said = ask_plainly(
        Call::put("/puppet-ca/v1/certificate_request/garbage.test").body("text/plain", garbage),
    );
    let (_, recorded) = UNREADABLE.split_once("\n\n").unwrap();
    assert_eq!((said.0, said.1.as_str()), (500, recorded.trim_end()));

    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let (request, _) = asking(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    for (body, class) in [
        (recorded, Class::Permanent),
        (
            "Internal Server Error: java.io.IOException: No space left on device",
            Class::Transient,
        ),
    ] {
        gateway.behave();
        let body = body.as_bytes().to_vec();
        gateway.rule(Rule::on("PUT", &tag).then(Action::Status(500, Vec::new(), body)));
        failed(run(signer.submit(&request)), class, &["500", "java."]);
    }
    // Whoever takes a request with words is no Puppet CA; one that keeps nothing of it may be asked again.
    for (body, class, words) in [
        ("<html>Welcome</html>", Class::Permanent, "unusable"),
        ("", Class::Transient, "shows nothing of it"),
    ] {
        gateway.behave();
        let body = body.as_bytes().to_vec();
        gateway.rule(Rule::on("PUT", &tag).then(Action::Status(200, Vec::new(), body)));
        failed(run(signer.submit(&request)), class, &[words]);
    }
}

/// Status and text of an exchange without a signer.
fn ask_plainly(call: Call<'_>) -> (u16, String) {
    let mut endpoint = Endpoint::new(Url::parse(&shared().url()).unwrap());
    endpoint.tls = Tls {
        ca_file: Some(shared().ca_file()),
        ..Tls::default()
    };
    let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
    let response = run(client.send(call)).unwrap();
    (response.status, response.text().into_owned())
}

#[test]
fn the_servers_no_is_told_with_what_to_allow() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let (request, _) = asking(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    let forbidden = "Forbidden request: /puppet-ca/v1/certificate_request/x (method :put). Please see the server logs for details.";
    gateway.rule(Rule::on("PUT", &tag).then(Action::Status(
        403,
        Vec::new(),
        forbidden.as_bytes().to_vec(),
    )));
    let words = [
        "signing etcd-peer for authority etcd-ca",
        "403",
        "auth.conf",
    ];
    failed(run(signer.submit(&request)), Class::Auth, &words);
    gateway.behave();
    let said = b"Certificate names must be lower case.".to_vec();
    gateway.rule(Rule::on("PUT", &tag).then(Action::Status(400, Vec::new(), said)));
    let words = ["400", "must be lower case", "there or in the configuration"];
    failed(run(signer.submit(&request)), Class::Permanent, &words);
}

#[test]
fn a_certificate_that_is_none_and_one_of_somebody_else() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let (request, _) = asking(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    let (other, _) = asking(CertName::EtcdPeer, &format!("other.cp1.{tag}.{AUTO}"));
    let other = issued(run(signer.submit(&other)));
    let (ticket, _) = pending(run(signer.submit(&request)));
    for (body, words) in [
        (b"not yet".to_vec(), "it is no certificate"),
        (other, "a certificate of another key"),
    ] {
        gateway.behave();
        gateway.rule(
            Rule::on("GET", "/certificate/etcd-peer").then(Action::Status(200, Vec::new(), body)),
        );
        failed(
            run(signer.poll(&request, &ticket)),
            Class::Permanent,
            &[words],
        );
    }
}

// ---- before a key is made ----

#[test]
fn preflight_refuses_what_it_cannot_carry_and_says_what_to_write() {
    let bare = format!(
        "url: \"https://localhost:1\", tls: {{caFile: {}}}",
        shared().ca_file().display()
    );
    let signer = puppet(&bare);
    let refusal = |wanted: &Wanted| signer.preflight(wanted).unwrap_err().to_string();
    let with = |name: CertName, common_name: Option<&str>, tolerance| {
        let mut one = wanted(name);
        if let Some(common_name) = common_name {
            one.profile.subject.common_name = common_name.to_owned();
        }
        one.tolerance = tolerance;
        one
    };
    let none = Tolerance::default();
    for (wanted, parts) in [
        (
            with(CertName::KubeletConf, None, SHARED),
            vec![
                "kubelet.conf",
                "O=system:nodes",
                "CN=system:node:cp1",
                "give authority ca a signer that can",
            ],
        ),
        (
            with(CertName::FrontProxyClient, None, none),
            vec![
                "CN=front-proxy-client is the same on every node",
                "commonNames: {front-proxy-client: \"front-proxy-client.{node}\"}",
                "certifies server auth as well",
                "authorities.front-proxy-ca.allowExtraUsages: true",
                "could speak for anybody",
                "signers.test.puppet.acceptSharedCA: true",
            ],
        ),
        (
            with(CertName::EtcdServer, None, none),
            vec![
                "CN=cp1 is the node's own name",
                "commonNames: {etcd-server: \"etcd-server.{node}\"}",
                "all of etcd",
            ],
        ),
        (
            with(CertName::EtcdPeer, Some("Peer.cp1"), none),
            vec!["certnames are lower case"],
        ),
        (
            with(CertName::EtcdPeer, Some("etcd peer cp1"), none),
            vec!["cannot be a certname"],
        ),
        (
            with(CertName::Apiserver, None, none),
            vec![
                "certifies client auth as well",
                "would be a client of kube-apiserver",
            ],
        ),
    ] {
        let message = refusal(&wanted);
        for part in parts {
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        }
    }
    // Nothing of these is left once it is configured as told.
    let signer = puppet(&format!("{bare}, acceptSharedCA: true"));
    for name in [
        CertName::Apiserver,
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::FrontProxyClient,
    ] {
        let wanted = named(name, &format!("{name}.cp1"));
        signer.preflight(&wanted).unwrap();
    }
}

#[test]
fn a_node_that_asks_too_much_of_it_sends_nothing_and_makes_no_key() {
    let node = Node::new();
    let tag = tag();
    let keys = keys_of(shared());
    let all = settings(&node.ca(), &keys, &keys, &tag)
        .replace("ca: {signer: disk}", "ca: {signer: etcd}");
    fs::write(node.outside("config.yaml"), all).unwrap();
    let ran = node.ask();
    ran.ended(78)
        .says("cannot sign admin.conf")
        .says("O=kubeadm:cluster-admins")
        .says("cannot sign scheduler.conf")
        .says("CN=system:kube-scheduler");
    assert!(!node.path("/var/lib/nodepki/pending").exists() || node_is_empty(&node));
    assert_eq!(shared().sent(&tag), [""; 0]);
}

fn node_is_empty(node: &Node) -> bool {
    let pending = fs::read_dir(node.path("/var/lib/nodepki/pending")).unwrap();
    pending.count() == 0
}

#[test]
fn faults_of_the_configuration_name_field_and_fix() {
    for (keys, expected) in [
        ("acceptSharedCA: true", "has no url"),
        (
            "url: https://p:8140",
            "says nothing by which the server could be believed",
        ),
        (
            "url: \"https://p:8140/puppet-ca/v1\", caSHA256: [\"PIN\"]",
            "leave out /puppet-ca/v1",
        ),
        (
            "url: https://p:8140, caSHA256: [\"PIN\"], tls: {caFile: /ca.pem}",
            "has caSHA256 beside tls.caFile",
        ),
        (
            "url: https://p:8140, caSHA256: [\"PIN\"], tls: {systemRoots: true}",
            "keep one of them",
        ),
        (
            "url: https://p:8140, caSHA256: [\"abc\"]",
            "is not a SHA-256 pin",
        ),
    ] {
        let keys = keys.replace("PIN", &"00".repeat(32));
        let text = settings(Path::new("/x"), &keys, &keys, "x");
        let faults = Settings::from_fragments(&[("c.yaml", text)]).unwrap_err();
        let faults = faults.to_string();
        assert!(faults.contains(expected), "{keys}: {faults}");
        assert!(faults.contains("signers.etcd.puppet"), "{faults}");
    }
}

// ---- trust, lists, renewal ----

#[test]
fn a_fingerprint_is_enough_to_begin_with() {
    let bundle = shared().ca_pem();
    let read = TrustBundle::from_pem(&bundle).unwrap();
    let [issuing, root] = read.certificates() else {
        panic!("{read}")
    };
    assert!(!issuing.is_self_issued() && root.is_self_issued());
    let with = |pin: &[u8]| {
        puppet(&format!(
            "url: \"{}\", acceptSharedCA: true, caSHA256: [\"{}\"]",
            shared().url(),
            hex(pin)
        ))
    };
    let tag = tag();
    let whole = Sha256::digest(&bundle);
    for (number, pin) in [
        root.fingerprint().to_vec(),
        root.public_key().sha256().to_vec(),
        whole.to_vec(),
    ]
    .iter()
    .enumerate()
    {
        let signer = with(pin);
        let (request, _) = asking(
            CertName::FrontProxyClient,
            &format!("client-{number}.cp1.{tag}.{AUTO}"),
        );
        // With and without the look that a run begins with.
        if number > 0 {
            run(signer.probe()).unwrap();
        }
        issued(run(signer.submit(&request)));
        let trusted = run(signer.trust(Authority::EtcdCa)).unwrap().unwrap();
        assert_eq!(TrustBundle::from_answer(&trusted).unwrap(), read);
        assert!(run(signer.crl(Authority::EtcdCa)).unwrap().is_some());
    }
    // The root would be believed unseen.
    for wrong in [issuing.fingerprint(), [0; 32]] {
        let signer = with(&wrong);
        let words = ["puppet:https://localhost", "caSHA256", "neither pinned"];
        failed(run(signer.probe()), Class::Config, &words);
        let (request, _) = asking(CertName::EtcdPeer, &format!("never.cp1.{tag}"));
        failed(run(signer.submit(&request)), Class::Config, &words);
    }
    assert_eq!(shared().sent(&tag), [""; 0]);
}

/// Somebody between the node and the server, with the right CA bundle and a certificate of another CA.
#[test]
fn a_copied_bundle_does_not_make_another_server_the_right_one() {
    let gateway = Gateway::to(Some(upstream(shared())));
    let whole = Sha256::digest(shared().ca_pem());
    let signer = puppet(&format!(
        "url: \"{}\", acceptSharedCA: true, caSHA256: [\"{}\"]",
        gateway.url(),
        hex(&whole)
    ));
    let tag = tag();
    let (request, _) = asking(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    run(signer.probe()).unwrap();
    failed(
        run(signer.submit(&request)),
        Class::Config,
        &["puppet:", "127.0.0.1"],
    );
    let paths: Vec<_> = gateway.requests().into_iter().map(|one| one.path).collect();
    assert!(
        paths
            .iter()
            .all(|path| path == "/puppet-ca/v1/certificate/ca"),
        "{paths:?}"
    );
}

#[test]
fn the_revocation_lists_come_whole_and_are_asked_for_only_when_newer() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let statuses = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&statuses);
    gateway.rule(
        Rule::on("GET", "/certificate_revocation_list/ca").then(Action::Replace(Box::new(
            move |answer| {
                seen.lock().unwrap().push(answer.status);
                answer
            },
        ))),
    );
    let certname = format!("etcd-peer.cp1.{tag}.{AUTO}");
    let (request, key) = asking(CertName::EtcdPeer, &certname);
    let answer = issued(run(signer.submit(&request)));
    let serial = openssl(&["x509", "-noout", "-serial"], &answer);
    let serial = String::from_utf8(serial).unwrap();
    let serial = format!(
        "Serial Number: {}",
        serial.trim().trim_start_matches("serial=")
    );

    let before = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    let lists = String::from_utf8(before.clone()).unwrap();
    assert_eq!(lists.matches("BEGIN X509 CRL").count(), 2);
    shared().revoke(&certname);
    let after = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    let revoked = |lists: &[u8]| {
        let text = openssl(&["crl", "-noout", "-text"], lists);
        String::from_utf8(text).unwrap().contains(&serial)
    };
    assert!(!revoked(&before));
    assert!(revoked(&after));
    // A list that was made in this very second may be sent twice.
    std::thread::sleep(Duration::from_millis(1100));
    let again = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    assert!(revoked(&again));
    let once_more = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    assert!(revoked(&once_more));
    let statuses = statuses.lock().unwrap().clone();
    assert!(
        statuses.starts_with(&[200, 200]),
        "the new list came: {statuses:?}"
    );
    let asked = gateway.requests();
    let since: Vec<_> = asked
        .iter()
        .filter(|one| one.path.contains("revocation_list"))
        .map(|one| one.header("If-Modified-Since").is_some())
        .collect();
    assert_eq!(since, [false, true, true, true]);
    // The certificate is handed out all the same: only the list tells.
    let found = run(signer.recover(&request, None)).unwrap().unwrap();
    let found = Chain::from_answer(&issued(Ok(found)), key.public_key()).unwrap();
    assert!(answer.starts_with(found.leaf().to_pem().as_bytes()));

    gateway.behave();
    gateway.rule(
        Rule::on("GET", "/certificate_revocation_list/").then(Action::Status(
            200,
            Vec::new(),
            b"<html>".to_vec(),
        )),
    );
    let words = ["revocation lists of authority etcd-ca", "unusable"];
    failed(run(signer.crl(Authority::EtcdCa)), Class::Permanent, &words);
}

/// A list that has not changed is not sent again. Beside other tests that revoke, it may change at any time.
#[test]
fn a_list_that_has_not_changed_is_not_sent_again() {
    let gateway = Gateway::to(Some(upstream(strict())));
    let signer = puppet(&keys(
        &gateway.url(),
        &format!("{{caFile: {}}}", gateway.ca_file().display()),
    ));
    let statuses = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&statuses);
    gateway.rule(
        Rule::on("GET", "list/ca").then(Action::Replace(Box::new(move |answer| {
            seen.lock().unwrap().push(answer.status);
            answer
        }))),
    );
    let first = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    let second = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    assert_eq!(first, second);
    assert_eq!(*statuses.lock().unwrap(), [200, 304]);
}

fn current(chain: &[u8], key: &PrivateKey) -> Current {
    let chain = Chain::from_answer(chain, key.public_key()).unwrap();
    Current {
        chain_pem: chain.to_pem().into_bytes(),
        key_pem: key.to_pem().as_bytes().to_vec().into(),
    }
}

#[test]
fn a_renewal_is_for_the_same_key_in_exchange_for_the_certificate() {
    let (tag, signer, authorities) = (tag(), signer(), authorities());
    let certname = format!("etcd-peer.cp1.{tag}.{AUTO}");
    let (request, key) = asking(CertName::EtcdPeer, &certname);
    let old = issued(run(signer.submit(&request)));
    let new = issued(run(signer.renew(&request, &current(&old, &key))));
    assert_eq!(verdict(&request, &new, authorities.path()), "");
    let leaf = |bytes: &[u8]| Chain::from_answer(bytes, key.public_key()).unwrap();
    let (old_leaf, new_leaf) = (leaf(&old), leaf(&new));
    assert_ne!(old_leaf.leaf().serial(), new_leaf.leaf().serial());
    // Sixty days, by that server's configuration.
    let life = new_leaf.leaf().not_after() - now();
    assert!((58..=60).contains(&life.whole_days()), "{life}");
    // It is what the CA hands out from now on.
    let found = run(signer.recover(&request, None)).unwrap().unwrap();
    assert_eq!(leaf(&issued(Ok(found))), new_leaf);

    let (other, _) = asking(CertName::EtcdPeer, &certname);
    let words = ["renewing etcd-peer", "for the same key only", "ca clean"];
    failed(
        run(signer.renew(&other, &current(&new, &key))),
        Class::Permanent,
        &words,
    );

    // Ends TLS, and the certificate with it.
    let (_gateway, behind) = behind_gateway();
    let words = ["403", "no proxy ends TLS"];
    failed(
        run(behind.renew(&request, &current(&new, &key))),
        Class::Auth,
        &words,
    );

    // The server as it comes does not renew.
    let strict = puppet(&keys_of(strict()));
    failed(
        run(strict.renew(&request, &current(&new, &key))),
        Class::Config,
        &["404", "allow-auto-renewal: true", &certname],
    );

    shared().revoke(&certname);
    // The server's TLS reads the list anew every few seconds; until then it renews what it has just revoked.
    let begin = Instant::now();
    let refused = loop {
        match run(signer.renew(&request, &current(&new, &key))) {
            Ok(_) if begin.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(500));
            }
            other => break other,
        }
    };
    failed(
        refused,
        Class::Auth,
        &[
            "renewing etcd-peer",
            "puppet:https://localhost",
            "refuses our client certificate",
        ],
    );
}

// ---- the whole program ----

fn puppet_node(rig: &PuppetRig, settings: &str) -> Node {
    let node = crate::signer_bootstrap::node(rig);
    fs::write(node.outside("config.yaml"), settings).unwrap();
    node
}

#[test]
fn a_request_pends_over_restarts_until_it_is_denied() {
    let rig = PuppetRig::new();
    let node = puppet_node(&rig, &rig.settings());
    let ran = node.ask();
    let certname = format!("etcd-peer.cp1.{}", rig.tag);
    ran.ended(75)
        .row_says("etcd-peer", "Requesting")
        .says(&format!("puppetserver ca sign --certname {certname}"));
    assert_eq!(rig.sent().len(), 5);
    node.ask().ended(75);
    node.ask().ended(75);
    assert_eq!(rig.sent().len(), 5);
    shared().remove(&certname);
    rig.approve();
    for _ in 0..2 {
        let ran = node.ask();
        ran.ended(65)
            .row_says("etcd-peer", "denied")
            .row_says("etcd-server", "held back")
            .says("was deleted at");
        assert!(node.leaf(CertName::EtcdPeer).is_none());
        assert!(node.leaf(CertName::FrontProxyClient).is_some());
    }
    assert_eq!(rig.sent().len(), 5);
    // As the reason says.
    fs::remove_dir_all(node.path("/var/lib/nodepki/pending/etcd-peer")).unwrap();
    node.ask().ended(75);
    rig.approve();
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
    assert_eq!(rig.sent().len(), 6);
}

/// The CA goes on handing a revoked certificate out. Only its list tells, and that is asked.
#[test]
fn a_revoked_certificate_that_is_still_handed_out_is_not_installed() {
    let rig = PuppetRig::new();
    let node = puppet_node(&rig, &rig.settings());
    node.ask().ended(75);
    rig.approve();
    let certname = format!("etcd-peer.cp1.{}", rig.tag);
    shared().revoke(&certname);
    let path = format!("/puppet-ca/v1/certificate/{certname}");
    assert_eq!(ask_plainly(Call::get(path)).0, 200);
    node.ask()
        .ended(65)
        .row_says("etcd-peer", "is revoked since");
    assert!(node.leaf(CertName::EtcdPeer).is_none());
    // The next key is in the way of the revoked certificate, and the message says what helps.
    let clean = format!("puppetserver ca clean --certname {certname}");
    node.ask().ended(65).says(&clean);
    shared().remove(&certname);
    node.ask().ended(75);
    rig.approve();
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
    let mut fetch = node.command(["crl"]);
    fetch
        .arg("--config")
        .arg(node.outside("config.yaml"))
        .arg("--kubeadm-config")
        .arg(node.outside("kubeadm.yaml"));
    Ran::of(&mut fetch).done();
    let lists = node.read("/etc/kubernetes/pki/etcd/crl.pem");
    assert_eq!(lists.matches("BEGIN X509 CRL").count(), 2);
    let text = openssl(&["crl", "-noout", "-issuer"], lists.as_bytes());
    assert_eq!(
        String::from_utf8(text).unwrap().trim(),
        "issuer=CN = Puppet CA: puppet.test"
    );
}

/// Whoever runs the CA has to make room for another key; what is in place serves until then.
#[test]
fn another_key_waits_for_room_under_its_certname() {
    let rig = PuppetRig::new();
    let node = puppet_node(&rig, &rig.settings());
    node.ask().ended(75);
    rig.approve();
    node.ask().done();
    let before = node.key_in_place(CertName::EtcdPeer);
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    let clean = format!("puppetserver ca clean --certname etcd-peer.cp1.{}", rig.tag);
    for _ in 0..2 {
        node.ask()
            .ended(65)
            .row_says("etcd-peer", "a certificate of another key")
            .says(&clean);
        assert_eq!(node.key_in_place(CertName::EtcdPeer), before);
    }
    assert_eq!(rig.sent().len(), 5);
    rig.make_room();
    // What is in place still serves, and so this is no failure.
    node.ask().done().row_says("etcd-peer", "Requesting");
    rig.approve();
    node.ask().done();
    assert_ne!(node.key_in_place(CertName::EtcdPeer), before);
    node.assert_sound(&CertName::KUBEADM);
}

/// The same key, but a request without usages: the server would refuse the old one and keep it.
#[test]
fn a_request_that_was_made_for_another_signer_is_made_anew() {
    let rig = PuppetRig::new();
    let node = puppet_node(&rig, &rig.settings());
    let drop = node.outside("drop");
    let puppet = rig.settings();
    let (head, _) = puppet.split_once("signers:").unwrap();
    let elsewhere = format!(
        "{head}signers:\n  disk: {{local: {{directory: {}}}}}\n  etcd: {{directory: {{path: {1}}}}}\n  front: {{directory: {{path: {1}}}}}\n",
        rig.dir.path().display(),
        drop.display()
    );
    fs::write(node.outside("config.yaml"), elsewhere).unwrap();
    node.ask().ended(75);
    let key = |name: &str| {
        let path = node.path(format!("/var/lib/nodepki/pending/{name}/key.pem"));
        let key = PrivateKey::from_pem(&fs::read(path).unwrap()).unwrap();
        hex(&key.public_key().sha256())
    };
    let before = key("etcd-peer");
    fs::write(node.outside("config.yaml"), &puppet).unwrap();
    node.ask().ended(75);
    rig.approve();
    node.ask().done();
    assert_eq!(node.key_in_place(CertName::EtcdPeer), before);
    assert_eq!(rig.sent().len(), 5);
}

#[test]
fn another_keys_certificate_and_a_taken_name_end_as_refused() {
    let rig = PuppetRig::new();
    let gateway = Gateway::to(Some(upstream(shared())));
    let front = rig.front().unwrap();
    let believed = format!("{{caFile: {}}}", gateway.ca_file().display());
    let node = puppet_node(&rig, &(front.settings)(&gateway.url(), &believed));
    // Somebody has the name already.
    let certname = format!("etcd-server.cp1.{}", rig.tag);
    let (theirs, _) = asking(CertName::EtcdServer, &certname);
    pending(run(signer().submit(&theirs)));
    node.ask()
        .ended(65)
        .row_says("etcd-server", "another key")
        .says(&format!("puppetserver ca clean --certname {certname}"));
    shared().remove(&certname);
    rig.approve();
    // The peer's certificate comes back for everybody.
    let (other, _) = asking(CertName::EtcdPeer, &format!("other.cp1.{}.{AUTO}", rig.tag));
    let other = issued(run(signer().submit(&other)));
    gateway.rule(Rule::on("GET", "/certificate/etcd-").then(Action::Status(
        200,
        Vec::new(),
        other,
    )));
    node.ask().ended(65).says("another key");
    assert!(node.leaf(CertName::EtcdPeer).is_none());
    gateway.behave();
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.said());
    rig.approve();
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn every_usage_and_name_that_puppet_adds_needs_to_be_allowed() {
    let (tag, signer, authorities) = (tag(), signer(), authorities());
    let (request, _) = asking(
        CertName::FrontProxyClient,
        &format!("front-proxy-client.cp1.{tag}.{AUTO}"),
    );
    assert_eq!(request.wanted.profile.usages, [ExtendedUsage::ClientAuth]);
    let answer = issued(run(signer.submit(&request)));
    let with = |tolerance| {
        let mut request = request.clone();
        request.wanted.tolerance = tolerance;
        verdict(&request, &answer, authorities.path())
    };
    assert_eq!(with(SHARED), "");
    assert_eq!(
        with(Tolerance::default()),
        format!(
            "SAN DNS:front-proxy-client.cp1.{tag}.{AUTO} is not wanted; extended key usage server auth is not wanted"
        )
    );
}
