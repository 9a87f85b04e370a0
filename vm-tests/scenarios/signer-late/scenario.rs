//! A signer that is unreachable during the boot: the boot continues, the kubelet finds no partial PKI, and the node gets
//! its PKI without manual action once the signer answers.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.put("/etc/corp-ca-is-away", "");
    machine.boot();
    machine.until("test $(systemctl show -P ExecMainStatus nodepki-bootstrap.service) = 69");
    machine.until("systemctl is-active multi-user.target");
    // systemd retries after a delay instead of giving up.
    let state = machine.done("systemctl show -P ActiveState nodepki-bootstrap.service");
    assert_eq!(state.trim(), "activating");
    assert_ne!(
        machine.run("systemctl is-active kubelet").said.trim(),
        "failed"
    );
    let leaves = machine.done("find /etc/kubernetes -name '*.crt' -o -name '*.conf'");
    assert_eq!(leaves, "", "a part of the PKI is installed");
    let status = machine.run("cloud-init status").said;
    assert!(status.contains("status: running"), "{status}");

    machine.done("rm /etc/corp-ca-is-away; systemctl start corp-ca.service");
    machine.wait_until_node_runs();
    machine.assert_booted();
    let status = machine.done("cloud-init status");
    assert!(status.contains("status: done"), "{status}");
}
