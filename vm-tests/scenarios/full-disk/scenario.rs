//! A renewal on a full disk: valid certificates are not touched, the reason is reported, and the same renewal succeeds once
//! there is room.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "").with_disk_of(64);
    machine.boot_node();
    machine.done(include_str!("../drift.sh"));
    let before = machine.pki_sums();
    // Fill the last block too.
    machine.run("for size in 1M 4k 1; do dd if=/dev/zero of=/filler-$size bs=$size; done; sync");
    let free = machine.done("df --output=avail / | tail -n 1");
    assert_eq!(free.trim(), "0");

    // A fault of the machine fails the unit, although the certificates are valid for months. The journal has no room for
    // the reason either.
    machine.run("systemctl start nodepki-renew.service");
    let status = machine.done("systemctl show --property=ExecMainStatus nodepki-renew.service");
    assert_eq!(status.trim(), "ExecMainStatus=75");
    let said = machine.run("nodepki renew").said;
    assert!(said.contains("has room for 0 bytes"), "{said}");
    let after = machine.pki_sums();
    assert_eq!(before, after, "a file changed on a full disk");

    // The node boots and serves with a full disk.
    machine.cut();
    machine.boot();
    machine.wait_until_node_runs();
    machine.done("rm /filler-*");
    machine.done("systemctl start nodepki-renew.service");
    let key = machine.done("openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -text");
    assert!(key.contains("P-384"), "{key}");
    machine.done("/usr/bin/kubelet /etc/kubernetes");
    machine.done("nodepki doctor");
}
