//! `est` against the server of GlobalSign, which is strict: it copies the names of a request, adds both extended usages,
//! and serves requirements for keys (`csrattrs`). It builds in seconds, so every run of the tests has a real signer.

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{FailureClass, Request, SignerKind};
use nodepki::x509::{Chain, KeyAlgorithm, UsageExtensions, certificates_of};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Rule};
use crate::node::Ran;
use crate::rig::{Rig, complete, node};
use crate::servers::est::{Est, like, with_authority};
use crate::signer_est::{
    called, curl, direct, fails, obtained, open, pending, run_get, settings_of, squeezed, through,
};
use crate::signing::{
    contains, issued, rejects, request, request_for, run, wanted, write_authorities,
};

/// A server of GlobalSign for each authority, with a label. It adds both extended usages to each certificate.
struct StrictRig {
    dir: TempDir,
    servers: [Est; 3],
}

impl StrictRig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let servers = [Authority::Ca, Authority::EtcdCa, Authority::FrontProxyCa]
            .map(|authority| Est::globalsign(like(&dir.path().join(authority.base_name()))));
        StrictRig { dir, servers }
    }
}

impl Rig for StrictRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Est
    }

    fn settings(&self) -> String {
        let signers = self.servers.each_ref().map(|server| {
            format!(
                "est: {{url: '{}', label: 'k8s-{{authority}}', tls: {{caFile: {}}}}}",
                server.url(),
                server.ca_file().display()
            )
        });
        settings_of(&signers)
            .replace("signer: ca", "allowExtraUsages: true, signer: ca")
            .replace("signer: etcd", "allowExtraUsages: true, signer: etcd")
            .replace("signer: proxy", "allowExtraUsages: true, signer: proxy")
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn sent(&self) -> Vec<String> {
        self.servers.iter().flat_map(Est::posts).collect()
    }
}

#[test]
fn rejects_key_algorithm_that_server_does_not_want() {
    let server = Est::globalsign(with_authority("est root"));
    // Different labels are asked when the authority is known.
    let label = "label: {default: other, etcd-server: servers}";
    let signer = open(&format!("{}, {label}", direct(&server)));
    run(signer.probe()).unwrap();
    run(signer.trust(Authority::EtcdCa)).unwrap().unwrap();
    signer.preflight(&wanted(CertName::EtcdServer)).unwrap();
    assert!(server.said().contains("/est/servers/csrattrs"));

    let gateway = Gateway::to(Some(server.upstream()));
    // A SET OF key sizes whose smallest is 3072, and id-ecPublicKey with secp384r1.
    let rsa = "MBwwGgYJKoZIhvcNAQEBMQ0CAgwAAgIQAAIDAQAB";
    let p384 = "MBQwEgYHKoZIzj0CATEHBgUrgQQAIg==";
    for (body, planned, parts) in [
        (
            rsa,
            KeyAlgorithm::EcdsaP256,
            Some("an RSA key of 3072 bits"),
        ),
        (rsa, KeyAlgorithm::Rsa4096, None),
        (p384, KeyAlgorithm::EcdsaP256, Some("ECDSA-P384")),
        (p384, KeyAlgorithm::EcdsaP384, None),
        (p384, KeyAlgorithm::Rsa2048, Some("RSA-2048 is planned")),
        ("MAA=", KeyAlgorithm::Rsa2048, None),
        ("", KeyAlgorithm::Rsa2048, None),
    ] {
        gateway.only(Rule::on("GET", "/csrattrs").then(Action::body(200, body)));
        let signer = open(&through(&gateway, &server));
        run(signer.probe()).unwrap();
        let mut wanted = wanted(CertName::Apiserver);
        wanted.profile.key = planned;
        match parts {
            None => signer.preflight(&wanted).unwrap(),
            Some(part) => drop(rejects(signer.as_ref(), &wanted, &[part])),
        }
    }
}

/// The example in RFC 7030, section 4.5.2, asks for two things that nodepki does not do.
#[test]
fn rejects_requirements_of_rfc_example() {
    let server = Est::globalsign(with_authority("est root"));
    let gateway = Gateway::to(Some(server.upstream()));
    // The server has the example under a label that nodepki rejects, so the gateway copies the response.
    let example = run_get(&server, "/.well-known/est/csrattrs/csrattrs");
    gateway.rule(Rule::on("GET", "/csrattrs").then(Action::body(200, example)));
    let signer = open(&through(&gateway, &server));
    run(signer.probe()).unwrap();
    let apiserver = wanted(CertName::Apiserver);
    let parts = ["challengePassword", "ECDSA-P384"];
    rejects(signer.as_ref(), &apiserver, &parts);
}

#[test]
fn sends_each_certificate_to_its_label() {
    let server = Est::globalsign(with_authority("est root"));
    let signer = open(&format!(
        "{}, label: {{default: 'clients of {{authority}}', apiserver: 'servers/{{node}}'}}",
        direct(&server)
    ));
    issued(run(signer.submit(&request(CertName::AdminConf))));
    let said = server.posts().join("\n");
    contains(&said, &["/.well-known/est/clients%20of%20ca/simpleenroll"]);
    // Two segments are more than this server knows.
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        FailureClass::Config,
        &["/.well-known/est/servers/cp1"],
    );
}

#[test]
fn classifies_responses_of_globalsign_test_label() {
    let server = Est::globalsign(with_authority("est root"));
    let gateway = Gateway::to(Some(server.upstream()));
    // The test label fails in the other operations too.
    for path in ["/cacerts", "/csrattrs"] {
        let body = run_get(&server, &format!("/.well-known/est{path}"));
        gateway.rule(Rule::on("GET", path).then(Action::body(200, body)));
    }
    let label = "label: triggererrors";
    let signer = open(&format!("{}, {label}", through(&gateway, &server)));
    run(signer.probe()).unwrap();
    let submit = |common_name: &str| {
        let wanted = called(CertName::FrontProxyClient, common_name);
        run(signer.submit(&request_for(wanted, UsageExtensions::Requested).0))
    };
    let (ticket, after) = pending(submit("Trigger Error Deferred"));
    assert_eq!(ticket.as_str(), "simpleenroll");
    assert_eq!(after, Some(Duration::from_secs(600)));
    let parts = [
        "triggered forbidden response",
        "front-proxy-client",
        "front-proxy-ca",
    ];
    fails(
        submit("Trigger Error Forbidden"),
        FailureClass::Auth,
        &parts,
    );
    let parts = ["HTTP 500", "internal server error"];
    fails(
        submit("Trigger Error Unknown"),
        FailureClass::Transient,
        &parts,
    );
    let direct = open(&format!("{}, {label}", direct(&server)));
    let parts = ["HTTP 500", "CA certificates"];
    fails(run(direct.probe()), FailureClass::Transient, &parts);
}

#[test]
fn renews_by_exchange_if_names_are_unchanged() {
    let server = Est::globalsign(with_authority("est root"));
    let signer = open(&format!(
        "url: '{}', tls: {{caFile: {}}}",
        server.url(),
        server.ca_file().display()
    ));
    for name in [
        CertName::EtcdServer,
        CertName::KubeletConf,
        CertName::Apiserver,
    ] {
        let current = obtained(signer.as_ref(), wanted(name));
        let next = request(name);
        let answer = issued(run(signer.renew(&next, &current)));
        assert!(Chain::from_response(&answer, next.csr.public_key()).is_ok());
        let said = server.posts().pop().unwrap();
        assert!(
            said.contains("/simplereenroll") && said.contains("\"200\""),
            "{said}"
        );
        let before = server.posts().len();
        // The desired names have changed, or their order.
        let mut other = wanted(name);
        if other.profile.sans.dns.is_empty() {
            other.profile.subject.common_name.push('x')
        } else {
            other.profile.sans.dns.reverse()
        }
        let other = request_for(other, UsageExtensions::Requested).0;
        fails(
            run(signer.renew(&other, &current)),
            FailureClass::Permanent,
            &[
                name.as_str(),
                "cannot be exchanged",
                "RFC 7030",
                "first certificate",
            ],
        );
        assert_eq!(server.posts().len(), before);
    }
}

/// Compares the server's rule with nodepki's, which refuses without asking the server.
#[test]
fn compares_names_like_globalsign() {
    let server = Est::globalsign(with_authority("est root"));
    let keys = format!(
        "url: '{}', tls: {{caFile: {}}}",
        server.url(),
        server.ca_file().display()
    );
    let current = obtained(open(&keys).as_ref(), wanted(CertName::EtcdServer));
    let file = server.ca_file().with_file_name("current.pem");
    fs::write(
        &file,
        [current.chain_pem.as_slice(), &current.key_pem].concat(),
    )
    .unwrap();
    let ask = |request: &Request| {
        let body = STANDARD.encode(request.csr.der());
        let url = format!("{}/.well-known/est/simplereenroll", server.url());
        curl(
            &server,
            &["--cert", file.to_str().unwrap(), &url],
            Some(body.as_bytes()),
        )
    };
    let mut reversed = wanted(CertName::EtcdServer);
    reversed.profile.sans.dns.reverse();
    let reversed = request_for(reversed, UsageExtensions::Requested).0;
    let said = String::from_utf8(ask(&reversed)).unwrap();
    assert!(said.contains("must be identical"), "{said}");
    let chain = Chain::from_pem(&current.chain_pem).unwrap();
    assert!(!reversed.csr.has_names_of(chain.leaf()));
    let same = request(CertName::EtcdServer);
    assert!(same.csr.has_names_of(chain.leaf()));
    assert!(certificates_of(&STANDARD.decode(squeezed(&ask(&same))).unwrap()).is_ok());
}

#[test]
fn bootstraps_and_renews_with_strict_server() {
    let rig = StrictRig::new();
    let node = node(&rig);
    complete(&node, &rig);
    node.assert_sound(&CertName::KUBEADM);
    let sent = rig.sent();
    assert_eq!(sent.len(), CertName::KUBEADM.len());
    assert!(
        sent.iter()
            .any(|line| line.contains("/est/k8s-etcd-ca/simpleenroll"))
    );
    node.ask().done();
    assert_eq!(rig.sent(), sent);
    node.change_keys("ECDSA-P384");
    complete(&node, &rig);
    node.assert_sound(&CertName::KUBEADM);
    let renewed = rig.sent();
    let exchanged = |line: &&String| line.contains("/simplereenroll") && line.contains("\"200\"");
    assert_eq!(
        renewed.iter().filter(exchanged).count(),
        CertName::KUBEADM.len()
    );
    for name in CertName::KUBEADM {
        let (chain, _) = node.leaf(name).unwrap();
        assert_eq!(
            chain.leaf().public_key().key_type().to_string(),
            "ECDSA-P384"
        );
    }
}

#[test]
fn refuses_extra_usages_unless_allowed() {
    let rig = StrictRig::new();
    let node = node(&rig);
    let strict = rig.settings().replace("allowExtraUsages: true, ", "");
    fs::write(node.outside("config.yaml"), strict).unwrap();
    let ran = Ran::of(&mut node.ask_command("1s"));
    ran.ended(65).says("apiserver");
    assert!(node.leaf(CertName::Apiserver).is_none());
}
