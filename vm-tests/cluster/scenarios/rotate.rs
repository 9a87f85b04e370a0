//! A CA is changed on all nodes by one command, whose daemons coordinate through the cluster's API.

use std::fs;
use std::time::{Duration, Instant};

use crate::cluster::load::{self, Load};
use crate::cluster::node::Role;
use crate::cluster::{Cluster, checks, runbook};
use crate::machine::Machine;
use crate::time::let_pass;

/// How long no API server runs in [`without_api`].
const OUTAGE: Duration = Duration::from_secs(600);

/// The cluster CA with workloads: holds let the administrator restart Pods, and replace clients outside of the cluster.
pub(crate) fn ca(cluster: &mut Cluster) {
    let mut rotation = Rotation::prepare(cluster, "ca");
    let load = Load::start(cluster);
    rotation.start(cluster, "--hold-before activate --hold-before retire");
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and activate is held",
    );
    load.finish(cluster);
    restart_workloads(cluster);
    let load = Load::start(cluster);
    rotation.resume(cluster);
    rotation.switch_signer(cluster);
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and retire is held",
    );
    load.finish(cluster);
    let load = Load::start(cluster);
    rotation.resume(cluster);
    rotation.end(cluster, "done");
    load.finish(cluster);
}

/// The front proxy's CA, with clients at each API server from the first to the last moment.
pub(crate) fn front_proxy_ca(cluster: &mut Cluster) {
    let mut rotation = Rotation::prepare(cluster, "front-proxy-ca");
    let load = Load::start(cluster);
    rotation.start(cluster, "");
    rotation.switch_signer(cluster);
    rotation.end(cluster, "done");
    load.finish(cluster);
}

/// etcd's CA, with clients of the load balancer: etcd and the API server restart on every node, one node after the other.
pub(crate) fn etcd_ca(cluster: &mut Cluster) {
    delay_shutdown(cluster);
    let mut rotation = Rotation::prepare(cluster, "etcd-ca");
    let load = Load::start_at_balancer(cluster);
    rotation.start(cluster, "");
    rotation.switch_signer(cluster);
    rotation.end(cluster, "done");
    load.finish(cluster);
}

/// The power of each node is cut in each phase, with clients of the load balancer. In each phase another control-plane node
/// is the first.
pub(crate) fn with_power_cuts(cluster: &mut Cluster) {
    let mut rotation = Rotation::prepare(cluster, "ca");
    let load = Load::start_while_machines_are_lost(cluster);
    rotation.start(cluster, "--hold-before activate --hold-before retire");
    rotation.cut(cluster, ["cp3", "cp2", "cp1"]);
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and activate is held",
    );
    load.finish(cluster);
    restart_workloads(cluster);
    let load = Load::start_while_machines_are_lost(cluster);
    rotation.resume(cluster);
    rotation.switch_signer(cluster);
    rotation.cut(cluster, ["cp2", "cp1", "cp3"]);
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and retire is held",
    );
    load.finish(cluster);
    let load = Load::start_while_machines_are_lost(cluster);
    rotation.resume(cluster);
    rotation.cut(cluster, ["cp1", "cp3", "cp2"]);
    rotation.end(cluster, "done");
    load.finish(cluster);
}

/// Returns to the old CA while certificates are under the new one.
pub(crate) fn undo(cluster: &mut Cluster) {
    let mut rotation = Rotation::prepare(cluster, "front-proxy-ca");
    let load = Load::start(cluster);
    rotation.start(cluster, "--hold-before retire");
    rotation.switch_signer(cluster);
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and retire is held",
    );
    cluster.authorities.sign_with_former("front-proxy-ca");
    cluster
        .node("cp1")
        .done("nodepki authority undo front-proxy-ca");
    rotation.end(cluster, "undone");
    load.finish(cluster);
}

/// A control-plane machine joins while the new CA is activated.
pub(crate) fn with_join(cluster: &mut Cluster) {
    let mut rotation = Rotation::prepare(cluster, "ca");
    let load = Load::start(cluster);
    rotation.start(cluster, "--hold-before activate --hold-before retire");
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and activate is held",
    );
    load.finish(cluster);
    restart_workloads(cluster);
    let load = Load::start_while_machines_are_lost(cluster);
    cluster.lose("cp3");
    rotation.resume(cluster);
    rotation.switch_signer(cluster);
    cluster.join("cp3", Role::ControlPlane);
    enable(cluster, "cp3");
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and retire is held",
    );
    load.finish(cluster);
    let load = Load::start(cluster);
    rotation.resume(cluster);
    rotation.end(cluster, "done");
    load.finish(cluster);
}

/// The service-account key, with clients of the load balancer: the API servers restart one after the other. Tokens of the
/// old key are accepted until all workloads have tokens of the new one.
pub(crate) fn service_account(cluster: &mut Cluster) {
    delay_shutdown(cluster);
    let mut rotation = Rotation::prepare(cluster, "sa");
    let load = Load::start_at_balancer(cluster);
    let before = token(cluster);
    rotation.start(cluster, "--token-lifetime 1m --hold-before retire");
    rotation.wait_for(
        cluster,
        "every node has proven the phase, and retire is held",
    );
    let after = token(cluster);
    load.finish(cluster);
    for name in cluster.names(Role::ControlPlane) {
        for token in [&before, &after] {
            assert_eq!(review(cluster, name, token), "true", "{name}");
        }
    }
    restart_workloads(cluster);
    let load = Load::start_at_balancer(cluster);
    rotation.resume(cluster);
    rotation.end(cluster, "done");
    load.finish(cluster);
    for name in cluster.names(Role::ControlPlane) {
        assert_ne!(review(cluster, name, &before), "true", "{name}");
        assert_eq!(review(cluster, name, &after), "true", "{name}");
    }
}

/// Lets kube-apiserver serve requests for some seconds after it is asked to stop, while load balancers and kube-proxy turn
/// to another one.
fn delay_shutdown(cluster: &mut Cluster) {
    for name in cluster.names(Role::ControlPlane) {
        cluster.node(name).done(DELAY_SHUTDOWN);
        cluster.until("the API server has restarted", |cluster| {
            cluster.kubectl(name, "get --raw /readyz")?;
            let running = "pgrep -f 'kube-apiserver .*--shutdown-delay-duration=8s'";
            let ran = cluster.node(name).machine.run(running);
            (ran.status == 0).then_some(()).ok_or(ran.said)
        });
    }
    checks::ready(cluster);
}

const DELAY_SHUTDOWN: &str = "cd /etc/kubernetes
     ! grep -q shutdown-delay manifests/kube-apiserver.yaml || exit 0
     sed 's/^    - kube-apiserver$/&\\n    - --shutdown-delay-duration=8s/' manifests/kube-apiserver.yaml >new.yaml
     mv new.yaml manifests/kube-apiserver.yaml";

/// Lets the administrator restart the workloads, which read the CA when they start.
fn restart_workloads(cluster: &mut Cluster) {
    cluster.node("cp1").done(&runbook::ca_change_block(2));
    load::wait_until_restarted(cluster);
}

/// Returns a new token of the workload's service account.
fn token(cluster: &mut Cluster) -> String {
    let token = cluster.kubectl("cp1", "create token work --duration=1h");
    token.unwrap().trim().to_owned()
}

/// Returns whether an API server accepts a token: `true`, or nothing.
fn review(cluster: &mut Cluster, name: &str, token: &str) -> String {
    let review = format!(
        r#"{{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {{"token": "{token}"}}}}"#
    );
    let file = cluster.site.path("review.json");
    fs::write(&file, review).unwrap();
    let create = format!(
        "create -f {} -o jsonpath={{.status.authenticated}}",
        file.display()
    );
    cluster.kubectl(name, &create).unwrap()
}

/// No API server runs for ten minutes in the middle. Clients at each API server run before and after.
pub(crate) fn without_api(cluster: &mut Cluster) {
    let mut rotation = Rotation::prepare(cluster, "front-proxy-ca");
    let load = Load::start(cluster);
    rotation.start(cluster, "");
    load.finish(cluster);
    for name in cluster.names(Role::ControlPlane) {
        cluster
            .node(name)
            .done("mv /etc/kubernetes/manifests/kube-apiserver.yaml /root/");
    }
    let_pass(OUTAGE);
    for name in cluster.names(Role::ControlPlane) {
        cluster
            .node(name)
            .done("mv /root/kube-apiserver.yaml /etc/kubernetes/manifests/");
    }
    for name in cluster.names(Role::ControlPlane) {
        wait_for_api(cluster, name);
    }
    let load = Load::start(cluster);
    rotation.switch_signer(cluster);
    rotation.end(cluster, "done");
    load.finish(cluster);
}

/// A rotation, and when it began.
struct Rotation {
    subject: &'static str,
    began: Instant,
}

/// Lets the daemon of a node take part.
fn enable(cluster: &mut Cluster, name: &'static str) {
    let node = cluster.node(name);
    node.done(
        "printf '%s\\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' 'authorityRotation: {enabled: true}' >/etc/nodepki/config.d/50-rotation.yaml
         systemctl disable --now nodepki-renew.timer
         systemctl enable --now nodepki.service",
    );
}

/// Boots a machine whose power was cut, and waits until its API server, which needs etcd, is ready.
fn boot(cluster: &mut Cluster, name: &str) {
    cluster.node(name).boot();
    cluster.node(name).wait_until_joined();
    if cluster.node(name).role == Role::ControlPlane {
        wait_for_api(cluster, name);
    }
}

fn wait_for_api(cluster: &mut Cluster, name: &str) {
    cluster.until("the API server is back", |cluster| {
        cluster.kubectl(name, "get --raw /readyz").map(drop)
    });
}

impl Rotation {
    /// Starts the daemons, and makes the new CA if one is to be changed.
    fn prepare(cluster: &mut Cluster, subject: &'static str) -> Rotation {
        let names: Vec<_> = cluster.nodes.iter().map(|node| node.name).collect();
        for name in names {
            enable(cluster, name);
        }
        if subject != "sa" {
            let new = cluster.authorities.prepare(subject);
            let shared = cluster.node("cp1").machine.shared().join("new-ca.crt");
            fs::write(shared, new).unwrap();
        }
        Rotation {
            subject,
            began: Instant::now(),
        }
    }

    fn start(&mut self, cluster: &mut Cluster, options: &str) {
        let new = match self.subject {
            "sa" => "",
            _ => "--certificate /run/tests/new-ca.crt",
        };
        let rotate = format!("nodepki authority rotate {} {new} {options}", self.subject);
        // Each node reports on its Node soon after the start of its daemon.
        cluster.node("cp1").machine.until(&rotate);
        self.began = Instant::now();
    }

    /// Signs with the new CA once the phase demands it.
    fn switch_signer(&self, cluster: &mut Cluster) {
        self.wait_for(cluster, "phase activate");
        cluster.authorities.sign_with_newest(self.subject);
        self.say(cluster, "activate");
    }

    fn resume(&self, cluster: &mut Cluster) {
        self.say(cluster, "resumed");
        let resume = format!("nodepki authority resume {}", self.subject);
        cluster.node("cp1").done(&resume);
    }

    /// Waits until `authority watch` contains these words.
    fn wait_for(&self, cluster: &mut Cluster, words: &str) {
        let watch = format!("nodepki authority watch {} --once", self.subject);
        cluster.until(words, |cluster| {
            let ran = cluster.node("cp1").machine.run(&watch);
            match ran.said.contains(words) {
                true => Ok(()),
                false => Err(ran.said),
            }
        });
    }

    /// Cuts the power of the worker soon after the phase began, and of the control-plane nodes one after the other. The
    /// worker boots last: until then it holds the phase.
    fn cut(&self, cluster: &mut Cluster, names: [&str; 3]) {
        let_pass(Duration::from_secs(2));
        cluster.node("w1").machine.cut();
        self.say(cluster, "w1 has lost its power");
        for name in names {
            cluster.node(name).machine.cut();
            self.say(cluster, &format!("{name} has lost its power"));
            boot(cluster, name);
        }
        boot(cluster, "w1");
    }

    fn end(&self, cluster: &mut Cluster, phase: &str) {
        self.wait_for(cluster, &format!("phase {phase}"));
        self.say(cluster, phase);
        self.say_restarts(cluster);
        checks::ready(cluster);
        // For nodes that join later.
        cluster.node("cp1").done(
            "rm /etc/nodepki/certificate-key; nodepki certs upload --certificate-key-out /etc/nodepki/certificate-key",
        );
    }

    /// Prints how often each component was restarted on each node since the beginning.
    fn say_restarts(&self, cluster: &mut Cluster) {
        let since = self.began.elapsed().as_secs() + 1;
        let log = format!(
            "journalctl --no-pager -u nodepki -o cat --since=-{since}s | grep 'was restarted for' | cut -d : -f 1 | sort | uniq -c"
        );
        for name in cluster.names(Role::ControlPlane) {
            for line in cluster.node(name).done(&log).lines() {
                cluster.say(&format!("{name}: {}", line.trim()));
            }
        }
    }

    fn say(&self, cluster: &Cluster, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        cluster.say(&format!("{}: {what} after {seconds} s", self.subject));
    }
}
