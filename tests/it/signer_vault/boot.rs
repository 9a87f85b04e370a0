//! What nodepki adds to the boot of a node: the time of `bootstrap` on a new control-plane node with an OpenBao that takes
//! 5, 50 and 500 ms for a signature, against the lower bound of one connection and one signature. `tests/run bench boot`.
//!
//! A bootstrap is more than a signature: it logs in, reads its rights and roles, the CAs and, after the signatures, the
//! revocation lists, each after the answer before it, and all of one kind at the same time.

use std::time::Instant;

use nodepki::http::{Call, Client, Endpoint, Url};
use zeroize::Zeroizing;

use super::*;
use crate::gateway::Options;
use crate::signing::{PlainFiles, now};

const SIGNING_TIMES: [u64; 3] = [5, 50, 500];
const RUNS: usize = 15;

/// OpenBao behind a gateway that delays signatures.
struct SlowBao {
    rig: VaultRig,
    gateway: Gateway,
}

impl SlowBao {
    fn new(signing_time: Duration) -> Self {
        let rig = VaultRig::new();
        let gateway = Gateway::start(Options {
            upstream: Some(rig.space.bao.upstream()),
            keep_alive: true,
            ..Options::default()
        });
        gateway.rule(Rule::on("POST", "/sign/").then(Action::Delay(signing_time)));
        SlowBao { rig, gateway }
    }

    /// Returns the time of a run on a new node.
    fn bootstrap(&self, program: &str) -> Duration {
        let node = crate::rig::node(&self.rig);
        let signer = self
            .rig
            .signer(&self.gateway.url(), &self.gateway.trusted());
        let settings = format!("{HEAD}signers: {{v: {signer}}}\n");
        fs::write(node.outside("config.yaml"), settings).unwrap();
        let prepared = node.ask_command("60s");
        let mut command = Command::new(program);
        command.args(prepared.get_args()).env_clear();
        let begin = Instant::now();
        let ran = Ran::of(&mut command);
        let time = begin.elapsed();
        ran.done();
        node.assert_sound(&CertName::KUBEADM);
        time
    }

    /// Returns the time of one signature on a new connection: a repetition of a request that nodepki has sent.
    fn sign_once(&self) -> Duration {
        let requests = self.gateway.requests();
        let request = requests.iter().find(|one| one.path.contains("/sign/"));
        let request = request.unwrap();
        let mut endpoint = Endpoint::new(Url::parse(&self.gateway.url()).unwrap());
        endpoint.tls.ca_file = Some(self.gateway.ca_file());
        let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let root = Zeroizing::new(self.rig.space.bao.root_token().to_owned());
        let call = Call::new(Method::POST, request.path.clone())
            .header("X-Vault-Request", "true")
            .header("X-Vault-Namespace", self.rig.space.namespace.as_str())
            .secret("X-Vault-Token", root)
            .json(&body);
        let begin = Instant::now();
        let response = run(client.send(call)).unwrap();
        assert_eq!(response.status, 200);
        begin.elapsed()
    }
}

#[test]
fn measures_bootstrap_against_one_signature() {
    let program = std::env::var("NODEPKI_BENCH_PROGRAM").unwrap_or(crate::node::NODEPKI.to_owned());
    println!(
        "| a signature | lower bound | `bootstrap`, median [min..max] of {RUNS} | ratio of medians |"
    );
    println!("| --- | --- | --- | --- |");
    for signing_time in SIGNING_TIMES {
        let bao = SlowBao::new(Duration::from_millis(signing_time));
        bao.bootstrap(&program);
        let (mut bounds, mut times) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            times.push(bao.bootstrap(&program).as_secs_f64() * 1e3);
            bounds.push(bao.sign_once().as_secs_f64() * 1e3);
        }
        for values in [&mut bounds, &mut times] {
            values.sort_by(f64::total_cmp);
        }
        let ratio = times[RUNS / 2] / bounds[RUNS / 2];
        println!(
            "| {signing_time} ms | {:.1} ms | {:.1} [{:.1}..{:.1}] ms | {ratio:.2} |",
            bounds[RUNS / 2],
            times[RUNS / 2],
            times[0],
            times[RUNS - 1]
        );
    }
}
