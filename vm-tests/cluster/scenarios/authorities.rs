//! Changes of a CA in a running cluster, by the documentation.

use std::fs;

use crate::cluster::load::{self, Load};
use crate::cluster::node::Role;
use crate::cluster::{Cluster, runbook};
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
    // Workers have files of the cluster's CA only.
    let nodes: Vec<_> = match authority {
        "ca" => cluster.nodes.iter().map(|node| node.name).collect(),
        _ => cluster.names(Role::ControlPlane),
    };
    for node in &cluster.nodes {
        fs::write(node.machine.shared().join("new-ca.crt"), &new).unwrap();
    }

    // An API server uses the etcd of its own node only, which stage and retire must restart.
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
        cluster.node("cp1").done(&runbook::ca_change_block(3));
    }
    // For nodes that join later.
    cluster.node("cp1").done(
        "rm /etc/nodepki/certificate-key; nodepki certs upload --certificate-key-out /etc/nodepki/certificate-key",
    );
}

/// Takes one step on all nodes with the other nodes' reports. A worker may not list the nodes, so its command states that
/// all others have completed the previous step.
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

/// Copies the report of each node to all others.
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

/// Runs the commands of `docs/ca-change.md` between the first two steps.
fn publish(cluster: &mut Cluster) {
    cluster.node("cp1").done(&runbook::ca_change_block(0));
    cluster.until("each ConfigMap has the new CA", |cluster| {
        let said = cluster.node("cp1").done(&runbook::ca_change_block(1));
        match said.contains("does not hold") {
            true => Err(said),
            false => Ok(()),
        }
    });
    cluster.node("cp1").done(&runbook::ca_change_block(2));
    load::wait_until_restarted(cluster);
}
