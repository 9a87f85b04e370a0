//! Changes of CA on a cluster at work, by the README and section 8 of the runbook.

use std::fs;

use crate::cluster::load::Load;
use crate::cluster::node::Role;
use crate::cluster::{Cluster, checks, runbook};
use crate::machine::Machine;

pub(crate) fn front_proxy_ca(cluster: &mut Cluster) {
    change(cluster, "front-proxy-ca");
}

pub(crate) fn etcd_ca(cluster: &mut Cluster) {
    change(cluster, "etcd-ca");
}

pub(crate) fn ca(cluster: &mut Cluster) {
    change(cluster, "ca");
}

fn change(cluster: &mut Cluster, authority: &'static str) {
    let new = cluster.authorities.prepare(authority);
    // Workers have nothing to do with the others.
    let nodes: Vec<_> = match authority {
        "ca" => cluster.nodes.iter().map(|node| node.name).collect(),
        _ => cluster.names(Role::ControlPlane),
    };
    for node in &cluster.nodes {
        fs::write(node.machine.shared().join("new-ca.crt"), &new).unwrap();
    }

    // An API server asks the etcd of its own node alone, which stage and retire have to restart.
    let with_clients = authority != "etcd-ca";
    let load = with_clients.then(|| Load::start(cluster));
    step(
        cluster,
        &nodes,
        authority,
        "stage --certificate /run/tests/new-ca.crt",
    );
    if let Some(load) = load {
        load.finish(cluster);
    }
    if authority == "ca" {
        publish(cluster);
    }

    report(cluster, &nodes, authority);
    cluster.authorities.sign_with_newest(authority);
    let load = Load::start(cluster);
    step(cluster, &nodes, authority, "activate");
    load.finish(cluster);

    report(cluster, &nodes, authority);
    let load = with_clients.then(|| Load::start(cluster));
    step(cluster, &nodes, authority, "retire");
    if let Some(load) = load {
        load.finish(cluster);
    }
    if authority == "ca" {
        cluster.node("cp1").done(&runbook::block(8, 3));
    }
    // For nodes that join from now on.
    cluster.node("cp1").done(
        "rm /etc/nodepki/certificate-key; nodepki certs upload --certificate-key-out /etc/nodepki/certificate-key",
    );
}

/// One step on all nodes, with the other nodes' reports. A worker may not list the nodes: its command states that all others
/// have done the step before.
fn step(cluster: &mut Cluster, nodes: &[&str], authority: &str, step: &str) {
    let (verb, options) = step.split_once(' ').unwrap_or((step, ""));
    let statement = match verb {
        "activate" => "--all-nodes-staged",
        "retire" => "--all-nodes-activated",
        _ => "",
    };
    let command = format!(
        "set --; for report in /run/tests/report-*; do [ ! -e $report ] || set -- \"$@\" --peer-report $report; done
         [ -e /etc/kubernetes/manifests/kube-apiserver.yaml ] || set -- {statement}
         nodepki authority {verb} {authority} {options} \"$@\""
    );
    cluster.finish(nodes, &command, &command);
    cluster.say(&format!("{authority}: {verb} on {} nodes", nodes.len()));
}

/// Brings each node the reports of all others.
fn report(cluster: &mut Cluster, nodes: &[&str], authority: &str) {
    for name in nodes {
        let node = cluster.node(name);
        let status = format!("nodepki authority status {authority} -o json");
        let report = node.machine.run(&status);
        assert!([0, 75].contains(&report.status), "{name}: {report:?}");
        for other in cluster.nodes.iter().filter(|other| other.name != *name) {
            let file = other.machine.shared().join(format!("report-{name}.json"));
            fs::write(file, &report.said).unwrap();
        }
    }
}

/// What section 8 of the runbook has done between the first two steps.
fn publish(cluster: &mut Cluster) {
    cluster.node("cp1").done(&runbook::block(8, 0));
    cluster.until("each ConfigMap has the new CA", 120, |cluster| {
        let said = cluster.node("cp1").done(&runbook::block(8, 1));
        match said.contains("does not hold") {
            true => Err(said),
            false => Ok(()),
        }
    });
    cluster.node("cp1").done(&runbook::block(8, 2));
    cluster.until("all workloads have restarted", 180, |cluster| {
        cluster.kubectl("cp1", "rollout status daemonset/work --timeout=5s")?;
        for one in ["daemonset/kube-proxy", "deployment/coredns"] {
            let status = format!("rollout status --namespace kube-system {one} --timeout=5s");
            cluster.kubectl("cp1", &status)?;
        }
        Ok(())
    });
    checks::ready(cluster);
}
