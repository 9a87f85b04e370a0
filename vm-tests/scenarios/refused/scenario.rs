//! The pin in the user data is another CA's. Nothing is installed, nobody tries for ever, and whoever asks cloud-init is
//! told that the node has failed.

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
        "65 is for a person, not for another try"
    );
    let installed = machine.done("find /etc/kubernetes -type f");
    assert_eq!(
        installed, "",
        "installed under a CA that is not the pinned one"
    );
    let status = machine.run("cloud-init status --long");
    assert!(status.said.contains("status: error"), "{}", status.said);
    // kubeadm was not run, and the reason is where a person would look.
    assert_eq!(
        machine.run("test -e /etc/kubernetes/kubeadm.done").status,
        1
    );
    let said = machine.done("cat /var/log/cloud-init-output.log");
    assert!(said.contains("pin"), "{said}");
}
