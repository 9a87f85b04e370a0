//! Every way in which a server can fail, against every kind that has one: the real server behind a gateway that
//! misbehaves, the real binary before it. What is judged is the exit status and what the message names.

use std::net::TcpListener;
use std::time::Duration;

use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::Kind;

use crate::gateway::{Action, Gateway, Rule};
use crate::node::{Node, Ran};
use crate::rig::{Front, Rig, rig};
use crate::signer_bootstrap::node;

/// A rig whose kind has a server, the gateway before that server, and a node that asks it.
struct Stage {
    rig: Box<dyn Rig>,
    front: Front,
    gateway: Gateway,
    node: Node,
}

impl Stage {
    /// `None` for a kind without a server.
    fn of(kind: Kind) -> Option<Self> {
        let rig = rig(kind);
        let front = rig.front()?;
        let gateway = Gateway::to(Some(front.upstream.clone()));
        let node = node(rig.as_ref());
        let stage = Stage {
            rig,
            front,
            gateway,
            node,
        };
        stage.believe(&format!(
            "{{caFile: {}}}",
            stage.gateway.ca_file().display()
        ));
        Some(stage)
    }

    fn all() -> impl Iterator<Item = Stage> {
        Kind::ALL.into_iter().filter_map(Self::of)
    }

    /// The settings, with the gateway at its address believed by these `tls` keys.
    fn believe(&self, tls: &str) {
        self.configure(&self.gateway.url(), tls);
    }

    fn configure(&self, url: &str, tls: &str) {
        std::fs::write(
            self.node.outside("config.yaml"),
            (self.front.settings)(url, tls),
        )
        .unwrap();
    }

    fn run(&self) -> Ran {
        Ran::of(&mut self.node.ask_command("0s"))
    }

    /// A run that ends as `failure` does, says these words, and installs nothing of etcd-ca.
    fn fails(&self, failure: &str, code: i32, words: &[&str]) {
        let kind = self.rig.kind();
        let code = self.exception(failure).unwrap_or(code);
        let ran = self.run();
        assert_eq!(ran.code, Some(code), "{kind}, {failure}:\n{}", ran.said());
        for word in words.iter().chain(&[kind.as_str()]) {
            assert!(
                ran.said().contains(word),
                "{kind}, {failure}: {word:?} is missing in:\n{}",
                ran.said()
            );
        }
        for name in CertName::KUBEADM {
            if name.authority() == Authority::EtcdCa {
                assert!(self.node.leaf(name).is_none(), "{kind}, {failure}: {name}");
            }
        }
    }

    fn exception(&self, failure: &str) -> Option<i32> {
        let exceptions = self.front.exceptions.iter();
        let mut codes = exceptions.filter(|(name, ..)| *name == failure);
        codes.next().map(|(_, code, _)| *code)
    }

    fn answers(&self, action: Action) {
        self.gateway.behave();
        self.gateway.rule(Rule::on("*", "/").then(action));
    }

    fn submit_answers(&self, action: Action) {
        let (method, path) = self.front.submit;
        self.gateway.behave();
        self.gateway.rule(Rule::on(method, path).then(action));
    }
}

fn status(code: u16) -> Action {
    Action::Status(code, Vec::new(), b"so says the gateway".to_vec())
}

/// The name of a failure, what a server does, and how a run ends.
fn answers() -> Vec<(&'static str, Action, i32)> {
    let busy = vec![("Retry-After", "120".to_owned())];
    vec![
        ("401", status(401), 77),
        ("403", status(403), 77),
        ("404", status(404), 78),
        ("429", Action::Status(429, busy, Vec::new()), 69),
        ("500", status(500), 69),
        ("503", status(503), 69),
        ("10 MiB", Action::Huge, 65),
        ("no HTTP", Action::Garbage, 69),
        (
            "garbage",
            Action::Status(
                200,
                Vec::new(),
                b"\x00\xff<html>not what was asked for</html>".to_vec(),
            ),
            65,
        ),
        ("closed", Action::DropBefore, 69),
        (
            "elsewhere",
            Action::Redirect(307, "https://127.0.0.1:1/x".to_owned()),
            78,
        ),
        // Last: the server hears of it, and whoever adopts finds the request there from then on.
        ("half a body", Action::HalfBody, 69),
    ]
}

#[test]
fn a_server_that_cannot_be_reached_or_believed() {
    for stage in Stage::all() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = closed.local_addr().unwrap().port();
        drop(closed);
        let ca = stage.gateway.ca_file();
        let believed = format!("{{caFile: {}}}", ca.display());
        stage.configure(&format!("https://127.0.0.1:{port}"), &believed);
        stage.fails("unreachable", 69, &["etcd-ca", "cannot be reached"]);

        let other = Gateway::to(None);
        stage.believe(&format!("{{caFile: {}}}", other.ca_file().display()));
        stage.fails("untrusted", 78, &["etcd-ca", "127.0.0.1"]);

        let pin = "00".repeat(32);
        stage.believe(&format!(
            "{{caFile: {}, sha256: [\"{pin}\"]}}",
            ca.display()
        ));
        stage.fails("wrong pin", 78, &["etcd-ca", "pin"]);

        assert!(stage.gateway.requests().is_empty(), "{}", stage.rig.kind());
        stage.believe(&believed);
    }
}

#[test]
fn a_server_that_answers_badly_from_the_start() {
    for stage in Stage::all() {
        for (failure, action, code) in answers() {
            stage.answers(action);
            stage.fails(failure, code, &["etcd"]);
        }
        recovers(&stage);
    }
}

#[test]
fn a_server_that_answers_badly_when_it_is_to_sign() {
    for stage in Stage::all() {
        for (failure, action, code) in answers() {
            stage.submit_answers(action);
            let signing = format!("{failure}, when it is to sign");
            let code = stage.exception(&signing).unwrap_or(code);
            stage.fails(failure, code, &["etcd"]);
        }
        recovers(&stage);
    }
}

/// Once the server behaves, the next run ends well.
fn recovers(stage: &Stage) {
    stage.gateway.behave();
    for _ in 0..4 {
        let ran = stage.run();
        if ran.code == Some(0) {
            break;
        }
        assert_eq!(ran.code, Some(75), "{}:\n{}", stage.rig.kind(), ran.said());
        stage.rig.approve();
    }
    stage.run().done();
    stage.node.assert_sound(&CertName::KUBEADM);
}

/// The server has signed or queued, and the connection breaks before the answer: once a slot.
#[test]
fn an_answer_that_is_lost_after_the_server_had_signed() {
    for stage in Stage::all() {
        let (method, path) = stage.front.submit;
        let lost = Rule::on(method, path).times(1);
        stage.gateway.rule(lost.then(Action::DropAfterForward));
        let ran = stage.run();
        assert!(
            matches!(ran.code, Some(69 | 75)),
            "{}:\n{}",
            stage.rig.kind(),
            ran.said()
        );
        recovers(&stage);
    }
}

/// A certificate for another slot's key comes back, as from a cache gone wrong.
#[test]
fn a_certificate_for_another_key_is_refused() {
    for stage in Stage::all() {
        let (method, path) = stage.front.submit;
        let first = std::sync::Mutex::new(None);
        stage.gateway.rule(
            Rule::on(method, path).then(Action::Replace(Box::new(move |answer| {
                let mut first = first.lock().unwrap();
                match first.as_ref() {
                    Some(body) => crate::gateway::Answer {
                        body: Vec::clone(body),
                        ..answer
                    },
                    None => {
                        *first = Some(answer.body.clone());
                        answer
                    }
                }
            }))),
        );
        let mut ran = stage.run();
        if ran.code == Some(75) {
            // What pends is answered elsewhere; the kind's own tests swap that.
            continue;
        }
        assert_eq!(ran.code, Some(65), "{}:\n{}", stage.rig.kind(), ran.said());
        ran.says("another key");
        ran = stage.run();
        assert_ne!(ran.code, Some(0), "{}", ran.said());
        recovers(&stage);
    }
}

/// `Retry-After` is the earliest moment: a run that has no time for it ends, one that has waits.
#[test]
fn a_busy_server_is_asked_again_when_it_said() {
    for stage in Stage::all() {
        let busy = vec![("Retry-After", "2".to_owned())];
        let first = Rule::on("*", "/").times(1);
        stage
            .gateway
            .rule(first.then(Action::Status(429, busy, Vec::new())));
        let begin = std::time::Instant::now();
        let ran = Ran::of(&mut stage.node.ask_command("6s"));
        assert!(
            matches!(ran.code, Some(0 | 75)),
            "{}:\n{}",
            stage.rig.kind(),
            ran.said()
        );
        assert!(begin.elapsed() >= Duration::from_secs(2));
        recovers(&stage);
    }
}
