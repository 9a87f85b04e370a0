//! User data with the pin of another CA: nothing is installed, the unit does not retry, and cloud-init reports that the
//! node has failed.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, include_str!("user-data.yaml"));
    machine.boot();
    assert_eq!(machine.settled(), "degraded");
    let exit = machine.done("systemctl show -P ExecMainStatus nodepki-bootstrap.service");
    assert_eq!(exit.trim(), "65");
    let state = machine.done("systemctl show -P ActiveState nodepki-bootstrap.service");
    assert_eq!(
        state.trim(),
        "failed",
        "status 65 needs manual action and must not be retried"
    );
    let installed = machine.done("find /etc/kubernetes -type f");
    assert_eq!(
        installed, "",
        "files were installed under a CA that is not pinned"
    );
    let status = machine.run("cloud-init status --long");
    assert!(status.said.contains("status: error"), "{}", status.said);
    // kubeadm was not run, and cloud-init's log contains the reason.
    assert_eq!(
        machine.run("test -e /etc/kubernetes/kubeadm.done").status,
        1
    );
    let said = machine.done("cat /var/log/cloud-init-output.log");
    assert!(said.contains("pin"), "{said}");
}
