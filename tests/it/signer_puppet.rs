//! `puppet` against a real Puppet Server: its queue, the meaning of its responses, and what it must never receive.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodepki::http::{Call, Client, Endpoint, Tls, Url};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, FailureClass, Request, RequestedCertificate, Signer, SignerKind};
use nodepki::text::hex;
use nodepki::x509::{
    Chain, ExtendedUsage, KeyAlgorithm, PrivateKey, Tolerance, TrustBundle, UsageExtensions,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::contract::Recording;
use crate::gateway::{Action, Gateway, Rule, Upstream};
use crate::http::under_files;
use crate::http_dns::serve_records;
use crate::node::{INIT, Node, Ran};
use crate::rig::{Denial, Front, Rig};
use crate::servers::puppet::{AUTO, Puppet, packaged, shared, strict};
use crate::signer_bad::verdict;
use crate::signer_setup::print_setup;
use crate::signing::{
    HEAD, PlainFiles, contains, crl_text, current, denied, fails, issued, now, openssl, parsed,
    pending, recovered, request_for, run, wanted, write_authorities, x509_text,
};
use crate::time::{eventually, let_pass};

/// The tolerance that a shared Puppet CA needs.
const SHARED: Tolerance = Tolerance {
    extra_usages: true,
    common_name_as_dns: true,
    unread_attributes: false,
    max_lifetime: None,
};

/// Returns a name that no other test uses.
fn tag() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a desired certificate with this common name.
fn named(name: CertName, common_name: &str) -> RequestedCertificate {
    let mut wanted = wanted(name);
    wanted.profile.subject.common_name = common_name.to_owned();
    wanted.tolerance = SHARED;
    wanted
}

fn asking(name: CertName, common_name: &str) -> (Request, PrivateKey) {
    request_for(named(name, common_name), UsageExtensions::Omitted)
}

/// Returns settings with a Puppet CA for two authorities and CA keys on disk for the third.
fn settings(keys: &Path, etcd: &str, front_proxy: &str, tag: &str) -> String {
    format!(
        "{HEAD}authorities:\n  ca: {{signer: disk}}\n  etcd-ca: {{signer: etcd, allowExtraUsages: true}}\n  \
         front-proxy-ca: {{signer: front, allowExtraUsages: true}}\n\
         commonNames:\n  etcd-server: \"etcd-server.{{node}}.{tag}\"\n  etcd-peer: \"etcd-peer.{{node}}.{tag}\"\n  \
         etcd-healthcheck-client: \"etcd-healthcheck-client.{{node}}.{tag}\"\n  \
         apiserver-etcd-client: \"apiserver-etcd-client.{{node}}.{tag}\"\n  \
         front-proxy-client: \"front-proxy-client.{{node}}.{tag}\"\n\
         signers:\n  disk: {{local: {{directory: {}}}}}\n  etcd: {{puppet: {{{etcd}}}}}\n  front: {{puppet: {{{front_proxy}}}}}\n",
        keys.display()
    )
}

/// Returns the keys of a signer for a server.
fn keys(url: &str, tls: &str) -> String {
    format!("url: \"{url}\", tls: {tls}, acceptSharedCA: true")
}

fn keys_of(server: &Puppet) -> String {
    keys(
        &server.url(),
        &format!("{{caFile: {}}}", server.ca_file().display()),
    )
}

/// Opens a signer with these keys and no state.
fn puppet(keys: &str) -> Box<dyn Signer> {
    let text = settings(Path::new("/nowhere"), keys, keys, "x");
    let settings = parsed(&text);
    let (_, config) = settings.signer_of(Authority::EtcdCa).unwrap();
    crate::signing::opened(config)
}

fn signer() -> Box<dyn Signer> {
    puppet(&keys_of(shared()))
}

/// Runs until the server took part in every exchange: while it starts a thread or reads its revocation list again, it may
/// not accept a connection or complete a handshake in time.
fn ask(node: &Node) -> Ran {
    eventually(|| {
        let ran = node.ask();
        let said = ran.said();
        if said.contains("within the time allowed") || said.contains("no connection in time") {
            return Err(said);
        }
        Ok(ran)
    })
}

/// Returns a gateway in front of the shared server, and a signer that uses it.
fn behind_gateway() -> (Gateway, Box<dyn Signer>) {
    let gateway = Gateway::to(Some(upstream(shared())));
    let signer = puppet(&keys(&gateway.url(), &gateway.trusted()));
    (gateway, signer)
}

fn upstream(server: &Puppet) -> Upstream {
    Upstream::tls(server.address(), &server.ca_pem(), "localhost")
}

/// Returns a directory with the authorities of the shared server, as on a node.
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

/// The shared server for etcd and the front proxy, and CA keys on disk for authority ca. Requests wait for approval.
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
    fn kind(&self) -> SignerKind {
        SignerKind::Puppet
    }

    fn settings(&self) -> String {
        let keys = keys_of(shared());
        settings(self.dir.path(), &keys, &keys, &self.tag)
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

    /// Does what `puppetserver ca clean` does, for each certificate.
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
                "the response to an accepted request has no body, so that half of it is complete",
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
fn queues_request_under_its_certname() {
    let (tag, signer, authorities) = (tag(), signer(), authorities());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, key) = asking(CertName::EtcdPeer, &certname);
    assert_eq!(run(signer.recover(&request, None)).unwrap(), None);
    let (ticket, note) = pending(run(signer.submit(&request)));
    contains(
        &note,
        &[
            "Requesting",
            &format!("puppetserver ca sign --certname {certname}"),
        ],
    );
    // Another process, also one that has lost the ticket.
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

    // OpenSSL reads the same.
    let text = x509_text(&answer);
    contains(
        &text,
        &[
            &*format!("Subject: CN = {certname}\n"),
            "Issuer: CN = Puppet CA: puppet.test\n",
            &format!("DNS:{certname}"),
            "DNS:localhost",
            "IP Address:192.0.2.11",
            "X509v3 Extended Key Usage: critical\n                TLS Web Server Authentication, TLS Web Client Authentication",
            "X509v3 Basic Constraints: critical\n                CA:FALSE",
            "X509v3 Key Usage: critical\n                Digital Signature, Key Encipherment",
        ],
    );
    // The intermediate is included, so the root suffices for verification.
    let chain = Chain::from_response(&answer, key.public_key()).unwrap();
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
fn obtains_autosigned_certificate_for_every_key_algorithm() {
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
fn refuses_request_and_certificate_of_another_key() {
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
    fails(run(signer.submit(&ours)), FailureClass::Permanent, &words);
    fails(
        run(signer.recover(&ours, None)),
        FailureClass::Permanent,
        &words,
    );
    fails(
        run(signer.poll(&ours, &ticket)),
        FailureClass::Permanent,
        &words,
    );
    shared().sign(&certname);
    words[3] = "a certificate of another key";
    fails(run(signer.submit(&ours)), FailureClass::Permanent, &words);
    fails(
        run(signer.recover(&ours, None)),
        FailureClass::Permanent,
        &words,
    );
    // A revoked certificate is still stored.
    shared().revoke(&certname);
    fails(run(signer.submit(&ours)), FailureClass::Permanent, &words);
    assert_eq!(shared().sent(&tag).len(), 1);
    issued(run(signer.poll(&theirs, &ticket)));
    // The advice of the message helps.
    shared().remove(&certname);
    pending(run(signer.submit(&ours)));
}

/// Another process has sent the request between the lookup and the PUT; the real server then responds 400.
#[test]
fn looks_up_request_after_400_for_existing_name() {
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
            gateway.rule(
                Rule::on("GET", &path)
                    .times(1)
                    .then(Action::body(404, said)),
            );
        }
    };
    blind();
    pending(run(signer.submit(&first)));
    blind();
    let words = ["a request of another key", "clean"];
    fails(run(signer.submit(&second)), FailureClass::Permanent, &words);
    shared().sign(&certname);
    blind();
    issued(run(signer.submit(&first)));
    blind();
    let words = ["a certificate of another key", "clean"];
    fails(run(signer.submit(&second)), FailureClass::Permanent, &words);
    assert_eq!(shared().sent(&tag).len(), 5);
}

#[test]
fn reports_deleted_request_as_denied() {
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
        let reason = denied(Ok(answer));
        contains(
            &reason,
            &[
                "deleted",
                &certname,
                "puppet:https://localhost",
                "/var/lib/nodepki/pending/etcd-peer",
            ],
        );
    }
    // Without a ticket the earlier request is unknown.
    assert_eq!(run(signer.recover(&request, None)).unwrap(), None);
    // A certificate that was issued and removed counts as deleted too.
    let again = puppet(&format!("{}, resubmitAfterDelete: true", keys_of(shared())));
    assert_eq!(run(again.poll(&request, &ticket)).unwrap(), Answer::Gone);
    pending(run(again.submit(&request)));
    shared().sign(&certname);
    shared().remove(&certname);
    let answer = run(signer.poll(&request, &ticket)).unwrap();
    assert!(matches!(answer, Answer::Denied { .. }), "{answer:?}");
}

/// The request is signed between the lookup of the certificate and that of the request.
#[test]
fn tells_signing_between_two_lookups_from_deletion() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, _) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&request)));
    shared().sign(&certname);
    let too_early = || {
        let missing = Action::body(404, format!("Could not find certificate {certname}"));
        let lookup = Rule::on("GET", &format!("/certificate/{certname}"));
        gateway.only(lookup.times(1).then(missing));
    };
    too_early();
    issued(run(signer.poll(&request, &ticket)));
    too_early();
    issued(recovered(run(signer.recover(&request, Some(&ticket)))));
}

/// A load balancer, a starting server or another program responds in place of the CA.
#[test]
fn tells_404_of_another_server_from_404_of_the_ca() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let certname = format!("etcd-peer.cp1.{tag}");
    let (request, _) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&request)));
    for path in ["/certificate/", "/certificate_request/"] {
        for said in ["<h1>Not Found</h1>", "", "Not Found"] {
            gateway.behave();
            let body = said.as_bytes().to_vec();
            gateway.rule(Rule::on("GET", path).then(Action::body(404, body)));
            let words = ["404", "the Puppet CA itself"];
            fails(
                run(signer.poll(&request, &ticket)),
                FailureClass::Config,
                &words,
            );
            fails(
                run(signer.recover(&request, None)),
                FailureClass::Config,
                &words,
            );
        }
    }
    assert_eq!(shared().sent(&tag).len(), 1);
}

/// `contract::puppet` covers a request that waits.
#[test]
fn finds_autosigned_certificate_after_lost_response() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let certname = format!("etcd-peer.cp1.{tag}.{AUTO}");
    let (request, _) = asking(CertName::EtcdPeer, &certname);
    gateway.only(Rule::on("PUT", &certname).then(Action::DropAfterForward));
    fails(
        run(signer.submit(&request)),
        FailureClass::Ambiguous,
        &["lost"],
    );
    issued(recovered(run(signer.recover(&request, None))));
    let puts = gateway.requests();
    assert_eq!(puts.iter().filter(|one| one.method == "PUT").count(), 1);
}

// ---- errors ----

#[test]
fn reports_disallowed_request_as_queued() {
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
    fails(
        run(signer.submit(&request)),
        FailureClass::Permanent,
        &words,
    );
    // The next run finds it, and the administrator of the CA can still sign it.
    let found = run(signer.recover(&request, None)).unwrap().unwrap();
    pending(Ok(found));
    pending(run(signer.submit(&request)));
    assert_eq!(strict().sent(&format!("{tag}.{AUTO}")).len(), 1);
    let said = strict().status(&certname, "signed");
    assert_eq!(said.status, 409, "{}", said.text());
    // A certificate without alternative names gets one from the server, which is accepted.
    let (client, _) = asking(
        CertName::FrontProxyClient,
        &format!("front-proxy-client.cp1.{tag}.{AUTO}"),
    );
    let answer = issued(run(signer.submit(&client)));
    assert_eq!(verdict(&client, &answer, authorities().path()), "");
}

#[test]
fn does_not_send_request_that_names_usages() {
    let (tag, signer) = (tag(), signer());
    let wanted = named(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    let (request, _) = request_for(wanted, UsageExtensions::Requested);
    let words = ["etcd-peer", "contains usages", "was not sent"];
    fails(
        run(signer.submit(&request)),
        FailureClass::Permanent,
        &words,
    );
    assert_eq!(shared().sent(&tag), [""; 0]);
}

/// The recorded response is that of the real server.
#[test]
fn reports_unreadable_request_as_final() {
    let path = "/puppet-ca/v1/certificate_request/garbage.test";
    let said = ask_plainly(Call::put(path).body("text/plain", b"garbage".to_vec()));
    let recorded = Recording::read(SignerKind::Puppet, "unreadable-request");
    let recorded = String::from_utf8(recorded.body).unwrap();
    assert_eq!((said.0, said.1.as_str()), (500, recorded.trim_end()));
}

/// Returns status and text of an exchange without a signer.
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
fn refuses_unreadable_certificate_and_that_of_another_key() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let (request, _) = asking(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}"));
    let (other, _) = asking(CertName::EtcdPeer, &format!("other.cp1.{tag}.{AUTO}"));
    let other = issued(run(signer.submit(&other)));
    let (ticket, _) = pending(run(signer.submit(&request)));
    for (body, words) in [
        (b"not yet".to_vec(), "it is not a certificate"),
        (other, "a certificate of another key"),
    ] {
        gateway.only(Rule::on("GET", "/certificate/etcd-peer").then(Action::body(200, body)));
        fails(
            run(signer.poll(&request, &ticket)),
            FailureClass::Permanent,
            &[words],
        );
    }
}

// ---- preflight ----

#[test]
fn rejects_unsupported_certificate_and_names_remedy() {
    let bare = format!(
        "url: \"https://localhost:1\", tls: {{caFile: {}}}",
        shared().ca_file().display()
    );
    let signer = puppet(&bare);
    let refusal = |wanted: &RequestedCertificate| signer.preflight(wanted).unwrap_err().to_string();
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
                "configure a signer that can for authority ca",
            ],
        ),
        (
            with(CertName::FrontProxyClient, None, none),
            vec![
                "CN=front-proxy-client is the same on every node",
                "commonNames: {front-proxy-client: \"front-proxy-client.{node}\"}",
                "certifies server auth as well",
                "authorities.front-proxy-ca.allowExtraUsages: true",
                "could impersonate any user",
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
            vec!["certnames are lower-case"],
        ),
        (
            with(CertName::EtcdPeer, Some("etcd peer cp1"), none),
            vec!["is not a valid certname"],
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
    // The configuration that the messages advise is accepted.
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
fn rejects_unsupported_certificates_before_making_key() {
    let node = Node::new();
    let tag = tag();
    let keys = keys_of(shared());
    let all = settings(&node.ca(), &keys, &keys, &tag)
        .replace("ca: {signer: disk}", "ca: {signer: etcd}");
    fs::write(node.outside("config.yaml"), all).unwrap();
    let ran = ask(&node);
    ran.ended(78)
        .says("cannot sign admin.conf")
        .says("O=kubeadm:cluster-admins")
        .says("cannot sign scheduler.conf")
        .says("CN=system:kube-scheduler");
    let pending = fs::read_dir(node.path("/var/lib/nodepki/pending"));
    assert_eq!(pending.into_iter().flatten().count(), 0);
    assert_eq!(shared().sent(&tag), [""; 0]);
}

// ---- the settings of the node's Puppet agent ----

/// Returns the puppet.conf of an agent of the shared server.
fn agent_conf(server: &str) -> String {
    let (host, port) = shared().address();
    format!(
        "# Managed by Puppet\n[main]\nserver = puppet.example.com\nserverport = {port}\n\
         [agent]\nca_server = {server}\nlocalcacert = {}\n[server]\nca_server = {host}.invalid\n",
        shared().ca_file().display()
    )
}

/// Neither address nor trust is configured.
#[test]
fn uses_server_and_ca_certificates_of_puppet_agent() {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("puppet.conf");
    fs::write(&conf, agent_conf("localhost")).unwrap();
    let keys = format!("puppetConf: {}, acceptSharedCA: true", conf.display());
    let (tag, signer, authorities) = (tag(), puppet(&keys), authorities());
    assert_eq!(signer.label(), format!("puppet:{}", shared().url()));
    let (request, _) = asking(CertName::EtcdPeer, &format!("etcd-peer.cp1.{tag}.{AUTO}"));
    let answer = issued(run(signer.submit(&request)));
    assert_eq!(verdict(&request, &answer, authorities.path()), "");

    // A fingerprint takes the place of the agent's CA certificates.
    let pin = hex(&Sha256::digest(shared().ca_pem()));
    fs::write(
        &conf,
        agent_conf("localhost").replace("localcacert", "certname"),
    )
    .unwrap();
    run(puppet(&format!("{keys}, caSHA256: [\"{pin}\"]")).probe()).unwrap();
    fails(
        run(puppet(&keys).probe()),
        FailureClass::Config,
        &["puppet:https://localhost", "ssl/certs/ca.pem"],
    );
}

/// The commands name the address, and the file if it cannot be used.
#[test]
fn commands_show_address_of_puppet_agent() {
    let (node, tag) = (Node::new(), tag());
    for file in ["etcd/ca.crt", "front-proxy-ca.crt"] {
        node.write(format!("/etc/kubernetes/pki/{file}"), shared().ca_pem());
    }
    let conf = node.outside("puppet.conf");
    let keys = format!("puppetConf: {}, acceptSharedCA: true", conf.display());
    node.write_settings(&settings(&node.ca(), &keys, &keys, &tag));
    let config = node.outside("config.yaml");
    let config = config.to_str().unwrap();
    let show = ["config", "show", "--config", config];

    let missing = node.run(&show);
    missing
        .done()
        .says("signers.etcd.puppet has no url")
        .says("puppet.conf: ")
        .says("set signers.etcd.puppet.url, or signers.etcd.puppet.puppetConf");
    let configured = |arguments: &[&str]| Ran::of(&mut node.configured(arguments));
    configured(&["plan"])
        .says("front.puppet has no url")
        .ended(78);

    fs::write(&conf, agent_conf("local/host")).unwrap();
    let broken = configured(&["plan"]);
    broken
        .ended(78)
        .says(&format!(
            "{}: ca_server: \"local/host\" is not the name of a host",
            conf.display()
        ))
        .says("correct the file, or set url");

    fs::write(&conf, agent_conf("localhost")).unwrap();
    let label = format!("puppet:{}", shared().url());
    let shown = node.run(&show);
    shown
        .done()
        .says(&format!("url: {}", shared().url()))
        .says(&format!("caFile: {}", shared().ca_file().display()))
        .says_not("puppetConf");
    configured(&["preflight"]).says(&label);
    configured(&["plan", "-o", "json"]).done().says(&label);
}

/// The agent's setting `use_srv_records`.
#[test]
fn finds_server_by_dns() {
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(files.path().join("resolv.conf"), "nameserver 127.0.0.97\n").unwrap();
    let (_, port) = shared().address();
    serve_records(
        "127.0.0.97",
        vec![
            ("_x-puppet-ca._tcp.puppet.test", [1, 0, 1], "localhost"),
            ("_x-puppet-ca._tcp.puppet.test", [2, 0, port], "localhost"),
        ],
    );
    let (node, tag) = (Node::new(), tag());
    for file in ["etcd/ca.crt", "front-proxy-ca.crt"] {
        node.write(format!("/etc/kubernetes/pki/{file}"), shared().ca_pem());
    }
    let conf = node.outside("puppet.conf");
    let lines = "[main]\nserver = puppet.invalid\nuse_srv_records = true\nsrv_domain = puppet.test";
    let ca_file = shared().ca_file();
    fs::write(
        &conf,
        format!("{lines}\nlocalcacert = {}\n", ca_file.display()),
    )
    .unwrap();
    let keys = format!("puppetConf: {}, acceptSharedCA: true", conf.display());
    node.write_settings(&settings(&node.ca(), &keys, &keys, &tag));
    let configured = |arguments: &[&str]| {
        let command = node.configured(arguments);
        let mut under = under_files(files.path(), false);
        under.arg(command.get_program()).args(command.get_args());
        Ran::of(&mut under)
    };
    configured(&["preflight"])
        .done()
        .says("puppet:_x-puppet-ca._tcp.puppet.test");
    let config = node.outside("config.yaml");
    let shown = node.run(&["config", "show", "--config", config.to_str().unwrap()]);
    shown.done().says("puppetConf: ").says_not("puppet.invalid");

    // The shared server has each request, and no other one was asked.
    configured(&["bootstrap", "--wait", "0s", "--clock-wait", "0s"]).ended(75);
    assert!(!shared().holds(&tag).is_empty());
}

// ---- trust, CRLs, renewal ----

#[test]
fn trusts_server_by_fingerprint() {
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
        // With and without a probe.
        if number > 0 {
            run(signer.probe()).unwrap();
        }
        issued(run(signer.submit(&request)));
        let trusted = run(signer.trust(Authority::EtcdCa)).unwrap().unwrap();
        assert_eq!(TrustBundle::from_response(&trusted).unwrap(), read);
        assert!(run(signer.crl(Authority::EtcdCa)).unwrap().is_some());
    }
    // Neither a pin of the intermediate nor an unknown pin is enough.
    for wrong in [issuing.fingerprint(), [0; 32]] {
        let signer = with(&wrong);
        let words = ["puppet:https://localhost", "caSHA256", "neither pinned"];
        fails(run(signer.probe()), FailureClass::Config, &words);
        let (request, _) = asking(CertName::EtcdPeer, &format!("never.cp1.{tag}"));
        fails(run(signer.submit(&request)), FailureClass::Config, &words);
    }
    assert_eq!(shared().sent(&tag), [""; 0]);
}

/// A server in between has the right CA bundle and a certificate of another CA.
#[test]
fn rejects_server_with_copied_bundle() {
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
    fails(
        run(signer.submit(&request)),
        FailureClass::Config,
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
fn fetches_all_crls_and_only_if_newer() {
    let (tag, (gateway, signer)) = (tag(), behind_gateway());
    let statuses = watch_crl_statuses(&gateway);
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
    let revoked = |lists: &[u8]| crl_text(lists).contains(&serial);
    assert!(!revoked(&before));
    assert!(revoked(&after));
    // A CRL issued within the current second may be sent twice.
    let_pass(Duration::from_millis(1100));
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
    // The server still returns the certificate: only the CRL shows the revocation.
    let found = run(signer.recover(&request, None)).unwrap().unwrap();
    let found = Chain::from_response(&issued(Ok(found)), key.public_key()).unwrap();
    assert!(answer.starts_with(found.leaf().to_pem().as_bytes()));

    gateway
        .only(Rule::on("GET", "/certificate_revocation_list/").then(Action::body(200, "<html>")));
    let words = ["revocation lists of authority etcd-ca", "unusable"];
    fails(
        run(signer.crl(Authority::EtcdCa)),
        FailureClass::Permanent,
        &words,
    );
}

/// On a server where no other test revokes.
#[test]
fn does_not_transfer_unchanged_crl_again() {
    let gateway = Gateway::to(Some(upstream(strict())));
    let signer = puppet(&keys(&gateway.url(), &gateway.trusted()));
    let statuses = watch_crl_statuses(&gateway);
    let first = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    let second = run(signer.crl(Authority::EtcdCa)).unwrap().unwrap();
    assert_eq!(first, second);
    assert_eq!(*statuses.lock().unwrap(), [200, 304]);
}

/// Records the status of each response to a request for CRLs.
fn watch_crl_statuses(gateway: &Gateway) -> Arc<Mutex<Vec<u16>>> {
    let statuses = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&statuses);
    let record = Action::replace(move |answer| {
        seen.lock().unwrap().push(answer.status);
        answer
    });
    gateway.rule(Rule::on("GET", "/certificate_revocation_list/ca").then(record));
    statuses
}

#[test]
fn renews_with_same_key_by_exchange() {
    let (tag, signer, authorities) = (tag(), signer(), authorities());
    let certname = format!("etcd-peer.cp1.{tag}.{AUTO}");
    let (request, key) = asking(CertName::EtcdPeer, &certname);
    let old = issued(run(signer.submit(&request)));
    let new = issued(run(signer.renew(&request, &current(&old, &key))));
    assert_eq!(verdict(&request, &new, authorities.path()), "");
    let leaf = |bytes: &[u8]| Chain::from_response(bytes, key.public_key()).unwrap();
    let (old_leaf, new_leaf) = (leaf(&old), leaf(&new));
    assert_ne!(old_leaf.leaf().serial(), new_leaf.leaf().serial());
    // The server's configuration says sixty days.
    let life = new_leaf.leaf().not_after() - now();
    assert!((58..=60).contains(&life.whole_days()), "{life}");
    // The CA returns the new certificate from now on.
    let found = run(signer.recover(&request, None)).unwrap().unwrap();
    assert_eq!(leaf(&issued(Ok(found))), new_leaf);

    let (other, _) = asking(CertName::EtcdPeer, &certname);
    let words = ["renewing etcd-peer", "only for the same key", "ca clean"];
    fails(
        run(signer.renew(&other, &current(&new, &key))),
        FailureClass::Permanent,
        &words,
    );

    // A proxy that ends TLS removes the client certificate.
    let (_gateway, behind) = behind_gateway();
    let words = ["403", "no proxy ends TLS"];
    fails(
        run(behind.renew(&request, &current(&new, &key))),
        FailureClass::Auth,
        &words,
    );

    // By default the server does not renew.
    let strict = puppet(&keys_of(strict()));
    fails(
        run(strict.renew(&request, &current(&new, &key))),
        FailureClass::Config,
        &["404", "allow-auto-renewal: true", &certname],
    );

    shared().revoke(&certname);
    // The server's TLS rereads the CRL every few seconds; until then it renews a revoked certificate.
    let refused = eventually(|| match run(signer.renew(&request, &current(&new, &key))) {
        Ok(_) => Err("a revoked certificate is renewed"),
        refused => Ok(refused),
    });
    fails(
        refused,
        FailureClass::Auth,
        &[
            "renewing etcd-peer",
            "puppet:https://localhost",
            "refuses our client certificate",
        ],
    );
}

// ---- config signer-setup ----

/// Runs the printed script on the files in `conf`, and returns its exit status and output.
fn prepare(script: &Path, conf: &Path, variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new("sh");
    command.arg(script).env("CONF", conf);
    Ran::of(command.envs(variables.iter().copied()))
}

#[test]
fn prepares_packaged_server_by_signer_setup() {
    let (tag, authorities) = (tag(), authorities());
    let dir = tempfile::tempdir().unwrap();
    let keys = keys("https://puppet.test:8140", "{systemRoots: true}");
    let settings = settings(Path::new("/nowhere"), &keys, &keys, &tag);
    let printed = print_setup(dir.path(), &settings, INIT, &["puppet"]);
    let certname = format!("etcd-peer.cp1.{tag}");
    printed
        .done()
        .says("https://puppet.test:8140")
        .says(&format!("\n{certname}\n"));
    let script = dir.path().join("setup.sh");
    fs::write(&script, &printed.stdout).unwrap();
    let patterns = |name: &str, text: String| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (other, own) = (
        patterns("other", format!("*.{AUTO}\n")),
        patterns("own", format!("web.test\n*.{tag}")),
    );
    let server = packaged(|conf| {
        // As in an auth.conf from before Puppet Server 8.1.
        let auth = conf.join("auth.conf");
        let text = fs::read_to_string(&auth).unwrap();
        let renewal = "/puppet-ca/v1/certificate_renewal";
        assert!(text.contains(renewal));
        fs::write(&auth, text.replace(renewal, "/none")).unwrap();
        let ca = fs::read_to_string(conf.join("ca.conf")).unwrap();
        for (autosign, said) in [("true", "autosign = true"), (&*own, "the pattern *.")] {
            prepare(&script, conf, &[("AUTOSIGN", autosign)])
                .ended(65)
                .says(said);
        }
        assert_eq!(fs::read_to_string(conf.join("ca.conf")).unwrap(), ca);
        prepare(&script, conf, &[("AUTOSIGN", &other)])
            .done()
            .says("restart");
        let read = || ["ca.conf", "auth.conf"].map(|file| fs::read(conf.join(file)).unwrap());
        let once = read();
        prepare(&script, conf, &[("AUTOSIGN", &other)]).done();
        assert_eq!(read(), once, "a second run changes nothing");
        let kept = fs::read_to_string(conf.join("ca.conf.before-nodepki")).unwrap();
        assert_eq!(kept, ca);
    });
    let signer = puppet(&keys_of(&server));
    let (request, key) = asking(CertName::EtcdPeer, &certname);
    let (ticket, _) = pending(run(signer.submit(&request)));
    server.sign(&certname);
    let old = issued(run(signer.poll(&request, &ticket)));
    assert_eq!(verdict(&request, &old, authorities.path()), "");
    let new = issued(run(signer.renew(&request, &current(&old, &key))));
    assert_eq!(verdict(&request, &new, authorities.path()), "");
}

#[test]
fn lists_certnames_in_inventory_by_signer_setup() {
    let (tag, dir) = (tag(), tempfile::tempdir().unwrap());
    let keys = keys("https://puppet.test:8140", "{systemRoots: true}");
    let settings = settings(Path::new("/nowhere"), &keys, &keys, &tag);
    let printed = print_setup(dir.path(), &settings, INIT, &["puppet"]);
    let script = dir.path().join("setup.sh");
    fs::write(&script, &printed.done().stdout).unwrap();
    let ca = dir.path().join("ca.conf");
    fs::write(
        &ca,
        "certificate-authority: { allow-auto-renewal: false, enable-infra-crl: true }\n",
    )
    .unwrap();
    let paths = [
        "certificate/",
        "certificate_request\"",
        "certificate_revocation_list/ca",
    ];
    let rules = paths.map(|path| format!("  {{path: \"/puppet-ca/v1/{path}\"}}\n"));
    let auth = dir.path().join("auth.conf");
    let inventory = dir.path().join("inventory");
    let variables = [
        ("AUTOSIGN", "false"),
        ("INVENTORY", inventory.to_str().unwrap()),
    ];
    fs::write(&auth, "authorization: {\n rules: [\n ]\n}\n").unwrap();
    prepare(&script, dir.path(), &variables)
        .ended(65)
        .says("has no rule for /puppet-ca/v1/certificate ");
    fs::write(
        &auth,
        format!("authorization: {{\n rules: [\n{} ]\n}}\n", rules.concat()),
    )
    .unwrap();
    for _ in 0..2 {
        prepare(&script, dir.path(), &variables).done();
        let lines = fs::read_to_string(&inventory).unwrap();
        let certname = format!("etcd-server.cp1.{tag}");
        assert_eq!(
            lines.lines().filter(|line| *line == certname).count(),
            1,
            "{lines}"
        );
        let text = fs::read_to_string(&ca).unwrap();
        assert!(text.contains("allow-auto-renewal: true"), "{text}");
        assert_eq!(
            text.matches("allow-subject-alt-names: true").count(),
            1,
            "{text}"
        );
    }
}

// ---- whole runs ----

#[test]
fn waits_over_runs_until_request_is_denied() {
    let rig = PuppetRig::new();
    let node = crate::rig::node(&rig);
    let ran = ask(&node);
    let certname = format!("etcd-peer.cp1.{}", rig.tag);
    ran.ended(75)
        .row_says("etcd-peer", "Requesting")
        .says(&format!(
            "puppetserver ca sign --certname front-proxy-client.cp1.{}, and likewise for the others",
            rig.tag
        ));
    assert_eq!(rig.sent().len(), 5);
    ask(&node).ended(75);
    ask(&node).ended(75);
    assert_eq!(rig.sent().len(), 5);
    shared().remove(&certname);
    rig.approve();
    for _ in 0..2 {
        let ran = ask(&node);
        ran.ended(65)
            .row_says("etcd-peer", "denied")
            .row_says("etcd-server", "held back")
            .says("was deleted at");
        assert!(node.leaf(CertName::EtcdPeer).is_none());
        assert!(node.leaf(CertName::FrontProxyClient).is_some());
    }
    assert_eq!(rig.sent().len(), 5);
    // The advice of the reason helps.
    fs::remove_dir_all(node.path("/var/lib/nodepki/pending/etcd-peer")).unwrap();
    ask(&node).ended(75);
    rig.approve();
    ask(&node).done();
    node.assert_sound(&CertName::KUBEADM);
    assert_eq!(rig.sent().len(), 6);
}

/// The CA still returns a revoked certificate, so nodepki fetches the CRL.
#[test]
fn does_not_install_revoked_certificate() {
    let rig = PuppetRig::new();
    let node = crate::rig::node(&rig);
    ask(&node).ended(75);
    rig.approve();
    let certname = format!("etcd-peer.cp1.{}", rig.tag);
    shared().revoke(&certname);
    let path = format!("/puppet-ca/v1/certificate/{certname}");
    assert_eq!(ask_plainly(Call::get(path)).0, 200);
    ask(&node)
        .ended(65)
        .row_says("etcd-peer", "is revoked since");
    assert!(node.leaf(CertName::EtcdPeer).is_none());
    // The revoked certificate blocks the next key, and the message names the remedy.
    let clean = format!("puppetserver ca clean --certname {certname}");
    ask(&node).ended(65).says(&clean);
    shared().remove(&certname);
    ask(&node).ended(75);
    rig.approve();
    ask(&node).done();
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

/// The administrator of the CA must remove the old certificate; the installed one stays in use until then.
#[test]
fn waits_for_removal_of_certificate_of_another_key() {
    let rig = PuppetRig::new();
    let node = crate::rig::node(&rig);
    ask(&node).ended(75);
    rig.approve();
    ask(&node).done();
    let before = node.key_in_place(CertName::EtcdPeer);
    node.change_keys("ECDSA-P384");
    let clean = format!(
        "puppetserver ca clean --certname etcd-server.cp1.{}",
        rig.tag
    );
    for _ in 0..2 {
        ask(&node)
            .ended(65)
            .row_says("etcd-peer", "a certificate of another key")
            .says(&clean);
        assert_eq!(node.key_in_place(CertName::EtcdPeer), before);
    }
    assert_eq!(rig.sent().len(), 5);
    rig.make_room();
    // The installed certificate is valid, so waiting is not a failure.
    ask(&node).done().row_says("etcd-peer", "Requesting");
    rig.approve();
    ask(&node).done();
    assert_ne!(node.key_in_place(CertName::EtcdPeer), before);
    node.assert_sound(&CertName::KUBEADM);
}

/// The new request has the same key and names no usages: the server would refuse the old request and keep it.
#[test]
fn makes_new_request_after_change_of_signer() {
    let rig = PuppetRig::new();
    let node = crate::rig::node(&rig);
    let drop = node.outside("drop");
    let puppet = rig.settings();
    let (head, _) = puppet.split_once("signers:").unwrap();
    let elsewhere = format!(
        "{head}signers:\n  disk: {{local: {{directory: {}}}}}\n  etcd: {{directory: {{path: {1}}}}}\n  front: {{directory: {{path: {1}}}}}\n",
        rig.dir.path().display(),
        drop.display()
    );
    fs::write(node.outside("config.yaml"), elsewhere).unwrap();
    ask(&node).ended(75);
    let key = |name: &str| {
        let path = node.path(format!("/var/lib/nodepki/pending/{name}/key.pem"));
        let key = PrivateKey::from_pem(&fs::read(path).unwrap()).unwrap();
        hex(&key.public_key().sha256())
    };
    let before = key("etcd-peer");
    fs::write(node.outside("config.yaml"), &puppet).unwrap();
    ask(&node).ended(75);
    rig.approve();
    ask(&node).done();
    assert_eq!(node.key_in_place(CertName::EtcdPeer), before);
    assert_eq!(rig.sent().len(), 5);
}

#[test]
fn exits_with_65_for_certificate_of_another_key_and_taken_name() {
    let rig = PuppetRig::new();
    let gateway = Gateway::to(Some(upstream(shared())));
    let front = rig.front().unwrap();
    let node = crate::rig::node(&rig);
    let settings = (front.settings)(&gateway.url(), &gateway.trusted());
    fs::write(node.outside("config.yaml"), settings).unwrap();
    // The name is taken.
    let certname = format!("etcd-server.cp1.{}", rig.tag);
    let (theirs, _) = asking(CertName::EtcdServer, &certname);
    pending(run(signer().submit(&theirs)));
    ask(&node)
        .ended(65)
        .row_says("etcd-server", "another key")
        .says(&format!("puppetserver ca clean --certname {certname}"));
    shared().remove(&certname);
    rig.approve();
    // Every request is answered with the certificate of the peer.
    let (other, _) = asking(CertName::EtcdPeer, &format!("other.cp1.{}.{AUTO}", rig.tag));
    let other = issued(run(signer().submit(&other)));
    gateway.rule(Rule::on("GET", "/certificate/etcd-").then(Action::body(200, other)));
    ask(&node).ended(65).says("another key");
    assert!(node.leaf(CertName::EtcdPeer).is_none());
    gateway.behave();
    let ran = ask(&node);
    assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.said());
    rig.approve();
    ask(&node).done();
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn refuses_names_and_usages_of_puppet_unless_allowed() {
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
            "unexpected SAN DNS:front-proxy-client.cp1.{tag}.{AUTO}; unexpected extended key usage server auth"
        )
    );
}
