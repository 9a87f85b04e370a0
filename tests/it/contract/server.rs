//! Clauses about a server's failures: the real server behind a gateway that misbehaves, and the real binary in front of
//! it. They judge the exit code and what the message names.

use std::fs;
use std::net::TcpListener;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{FailureClass, RequestLookup, SignerKind};

use super::node::assert_nothing_sent_twice;
use crate::gateway::{Action, Answer, Gateway, Rule};
use crate::node::{Node, Ran};
use crate::rig::{Front, Rig, node};
use crate::signing::{contains, fails, open, recovered, run};

/// A gateway in front of a rig's server for etcd-ca, and a node whose signer uses it.
struct Stage<'a> {
    rig: &'a dyn Rig,
    front: Front,
    gateway: Gateway,
    node: Node,
}

impl<'a> Stage<'a> {
    fn new(rig: &'a dyn Rig) -> Self {
        let front = rig.front().expect("the kind has a server");
        let gateway = Gateway::to(Some(front.upstream.clone()));
        let node = node(rig);
        let stage = Stage {
            rig,
            front,
            gateway,
            node,
        };
        stage.trust(&stage.gateway.trusted());
        stage
    }

    /// Configures the gateway's address and these `tls` keys.
    fn trust(&self, tls: &str) {
        self.configure(&self.gateway.url(), tls);
    }

    fn configure(&self, url: &str, tls: &str) {
        let settings = (self.front.settings)(url, tls);
        fs::write(self.node.outside("config.yaml"), settings).unwrap();
    }

    fn run(&self) -> Ran {
        Ran::of(&mut self.node.ask_command("0s"))
    }

    /// Runs, and asserts that the run ends with this code, names the kind and each part, and installs no certificate of
    /// etcd-ca.
    fn fails(&self, failure: &str, code: i32, parts: &[&str]) {
        let code = self.exception(failure).unwrap_or(code);
        let ran = self.run();
        assert_eq!(ran.code, Some(code), "{failure}:\n{}", ran.said());
        contains(&ran.said(), parts);
        contains(&ran.said(), &[self.rig.kind().as_str()]);
        for name in CertName::KUBEADM {
            if name.authority() == Authority::EtcdCa {
                assert!(self.node.leaf(name).is_none(), "{failure}: {name}");
            }
        }
    }

    fn exception(&self, failure: &str) -> Option<i32> {
        let exceptions = self.front.exceptions.iter();
        let mut codes = exceptions.filter(|(name, ..)| *name == failure);
        codes.next().map(|(_, code, _)| *code)
    }

    /// Returns the rule for the exchange that carries a CSR.
    fn on_submit(&self) -> Rule {
        let (method, path) = self.front.submit;
        Rule::on(method, path)
    }

    /// Without failures, runs until the node is complete.
    fn recovers(&self) {
        self.gateway.behave();
        for _ in 0..4 {
            let ran = self.run();
            if ran.code == Some(0) {
                break;
            }
            ran.ended(75);
            self.rig.approve();
        }
        self.run().done();
        self.node.assert_sound(&CertName::KUBEADM);
    }
}

/// Returns the name of a failure, the server's behaviour, and the exit code of a run.
fn bad_responses() -> Vec<(&'static str, Action, i32)> {
    let status = |code| Action::body(code, "response of the gateway");
    let busy = vec![("Retry-After", "120".to_owned())];
    let garbage = b"\x00\xff<html>not what was requested</html>";
    let elsewhere = "https://127.0.0.1:1/x".to_owned();
    vec![
        ("401", status(401), 77),
        ("403", status(403), 77),
        ("404", status(404), 78),
        ("429", Action::Status(429, busy, Vec::new()), 69),
        ("500", status(500), 69),
        ("503", status(503), 69),
        ("10 MiB", Action::Huge, 65),
        ("no HTTP", Action::Garbage, 69),
        ("garbage", Action::body(200, garbage), 65),
        ("closed", Action::DropBefore, 69),
        ("elsewhere", Action::Redirect(307, elsewhere), 78),
        // Last: the server receives the request, and a kind that adopts finds it from then on.
        ("half a body", Action::HalfBody, 69),
    ]
}

pub(super) fn reports_unreachable_and_untrusted_server(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let trusted = stage.gateway.trusted();
    stage.configure(&format!("https://127.0.0.1:{port}"), &trusted);
    stage.fails("unreachable", 69, &["etcd-ca", "cannot be reached"]);

    stage.trust(&Gateway::to(None).trusted());
    stage.fails("untrusted", 78, &["etcd-ca", "127.0.0.1"]);

    let pin = format!(", sha256: [\"{}\"]}}", "00".repeat(32));
    stage.trust(&trusted.replace('}', &pin));
    stage.fails("wrong pin", 78, &["etcd-ca", "pin"]);
    assert!(stage.gateway.requests().is_empty());
}

pub(super) fn reports_bad_responses_from_the_start(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    for (failure, action, code) in bad_responses() {
        stage.gateway.only(Rule::on("*", "/").then(action));
        stage.fails(failure, code, &["etcd"]);
    }
    stage.recovers();
}

/// Ends as bootstrap does, names the signer, and changes nothing.
pub(super) fn reports_bad_responses_in_preflight(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let before = stage.node.snapshot();
    for (failure, action, code) in bad_responses() {
        stage.gateway.only(Rule::on("*", "/").then(action));
        let ran = Ran::of(&mut stage.node.configured(["preflight", "--wait", "0s"]));
        // An API server that refuses the reviews of rights may still accept the request.
        let is_cluster = matches!(rig.kind(), SignerKind::Kubernetes | SignerKind::CertManager);
        if is_cluster && matches!(failure, "403" | "404") {
            ran.done();
            continue;
        }
        let code = stage.exception(failure).unwrap_or(code);
        assert_eq!(ran.code, Some(code), "{failure}:\n{}", ran.said());
        contains(&ran.said(), &[rig.kind().as_str(), "error", "skipped"]);
        before.unchanged(&stage.node.snapshot());
    }
    stage.gateway.behave();
    Ran::of(&mut stage.node.configured(["preflight", "--wait", "0s"])).done();
}

pub(super) fn reports_bad_responses_to_submit(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    for (failure, action, code) in bad_responses() {
        stage.gateway.only(stage.on_submit().then(action));
        let signing = format!("{failure}, when it is to sign");
        let code = stage.exception(&signing).unwrap_or(code);
        stage.fails(failure, code, &["etcd"]);
    }
    stage.recovers();
}

/// The server has accepted each request, and the connection closes before the response.
pub(super) fn recovers_after_lost_response(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let of_etcd = CertName::KUBEADM
        .iter()
        .filter(|name| name.authority() == Authority::EtcdCa);
    let lost = stage.on_submit().times(of_etcd.count());
    stage.gateway.rule(lost.then(Action::DropAfterForward));
    let ran = stage.run();
    assert!(matches!(ran.code, Some(69 | 75)), "{}", ran.said());
    stage.recovers();
    if rig.kind().about().caps.lookup == RequestLookup::ByName {
        assert_nothing_sent_twice(rig);
    }
}

pub(super) fn reports_lost_response_as_ambiguous(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let settings = (stage.front.settings)(&stage.gateway.url(), &stage.gateway.trusted());
    let memory = rig.scratch().join("memory");
    let signer = open(&settings, Authority::EtcdCa, &memory);
    let request = rig.request(CertName::EtcdServer);
    let lost = stage.on_submit().times(1).then(Action::DropAfterForward);
    stage.gateway.only(lost);
    let parts = ["etcd-server", "etcd-ca"];
    fails(
        run(signer.submit(&request)),
        FailureClass::Ambiguous,
        &parts,
    );
    if signer.caps().lookup == RequestLookup::ByName {
        let sent = rig.sent();
        let other = open(&settings, Authority::EtcdCa, &memory);
        recovered(run(other.recover(&request, None))).unwrap();
        run(other.submit(&request)).unwrap();
        assert_eq!(rig.sent(), sent);
    }
}

/// Each certificate of etcd-ca is answered with the first one, as by a broken cache. A queue answers a request before it
/// is signed; the tests of those kinds exchange the certificate where it is fetched.
pub(super) fn refuses_certificate_of_another_key(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let first = OnceLock::new();
    let same = Action::replace(move |answer| Answer {
        body: first.get_or_init(|| answer.body.clone()).clone(),
        ..answer
    });
    stage.gateway.rule(stage.on_submit().then(same));
    let ran = stage.run();
    if ran.code == Some(75) {
        return;
    }
    ran.ended(65).says("another key");
    let ran = stage.run();
    assert_ne!(ran.code, Some(0), "{}", ran.said());
    stage.recovers();
}

/// `Retry-After` is the earliest time of the next request: a run with enough time waits for it.
pub(super) fn waits_as_long_as_busy_server_says(rig: &dyn Rig) {
    let stage = Stage::new(rig);
    let busy = vec![("Retry-After", "2".to_owned())];
    let first = Rule::on("*", "/").times(1);
    stage
        .gateway
        .rule(first.then(Action::Status(429, busy, Vec::new())));
    let begin = Instant::now();
    let ran = Ran::of(&mut stage.node.ask_command("6s"));
    assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.said());
    assert!(begin.elapsed() >= Duration::from_secs(2));
    stage.recovers();
}
