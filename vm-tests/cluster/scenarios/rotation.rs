//! Renewals of all certificates on all nodes at once, and repeated renewals that restart components.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::cluster::load::Load;
use crate::machine::Machine;
use crate::time::let_pass;

/// Minimum number of component restarts in [`restarts`].
const MIN_RESTARTS: usize = 50;

/// Renews everything on all nodes at the same time, with clients at each API server.
pub(crate) fn under_load(cluster: &mut Cluster) {
    let load = Load::start(cluster);
    let before = cluster.signed();
    renew_everywhere(cluster);
    let signed = cluster.signed() - before;
    cluster.say(&format!("{signed} certificates were issued"));
    load.finish(cluster);
}

/// Runs `nodepki renew --all --force` on all nodes at the same time, until nothing is pending.
pub(super) fn renew_everywhere(cluster: &mut Cluster) {
    let names: Vec<_> = cluster.nodes.iter().map(|node| node.name).collect();
    cluster.finish(&names, "nodepki renew --all --force", "nodepki renew");
}

/// Cuts the power of the node that holds the Lease. The other nodes proceed without it, and it completes after its boot.
pub(crate) fn cut_in_lease(cluster: &mut Cluster) {
    let start = "systemd-run --quiet nodepki renew --all --force";
    cluster.node("cp2").done(start);
    cluster.until("cp2 has the Lease", |cluster| {
        let holder =
            "get lease --namespace kube-system nodepki-reload -o jsonpath={.spec.holderIdentity}";
        match cluster.kubectl("cp1", holder)? {
            holder if holder.starts_with("cp2") => Ok(()),
            holder => Err(format!("{holder:?} holds the Lease")),
        }
    });
    let_pass(Duration::from_secs(3));
    cluster.node("cp2").machine.cut();
    cluster.finish(
        &["cp1", "cp3"],
        "nodepki renew --all --force",
        "nodepki renew",
    );
    cluster.say("cp1 and cp3 are renewed while cp2, which had the Lease, is off");
    cluster.node("cp2").boot();
    cluster.node("cp2").wait_until_joined();
    cluster.finish(&["cp2"], "nodepki renew", "nodepki renew");
}

/// Restarts kube-controller-manager, kube-scheduler and the kubelet by renewals without a pause: none may be rolled back.
pub(crate) fn restarts(cluster: &mut Cluster) {
    let (mut restarts, mut renewals) = (0, 0);
    let mut slowest = Duration::ZERO;
    while restarts < MIN_RESTARTS {
        let begin = Instant::now();
        let ran = cluster.node("cp1").machine.run(
            "nodepki renew --force --name controller-manager.conf,scheduler.conf,kubelet.conf",
        );
        // 65 if a restart was rolled back.
        assert_eq!(ran.status, 0, "{}", ran.said);
        let done = ran.said.matches("was restarted for").count();
        assert_eq!(done, 3, "{}", ran.said);
        restarts += done;
        renewals += 1;
        slowest = slowest.max(begin.elapsed());
    }
    cluster.say(&format!(
        "{restarts} restarts in {renewals} renewals, none rolled back; the slowest renewal took {:.0} s",
        slowest.as_secs_f32()
    ));
}
