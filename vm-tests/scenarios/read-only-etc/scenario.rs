//! A renewal while /etc is mounted read-only: no file changes, the unit exits with the documented status, and the message
//! names the fix; once /etc is writable the renewal succeeds.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.boot_node();
    machine.done(include_str!("../drift.sh"));
    let before = machine.pki_sums();
    machine.done("mount --bind /etc /etc && mount -o remount,bind,ro /etc && ! touch /etc/written");

    machine.run("systemctl start nodepki-renew.service");
    let status = machine.done("systemctl show -P ExecMainStatus nodepki-renew.service");
    assert_eq!(status.trim(), "77");
    let said = machine.done("journalctl -q -b -o cat -u nodepki-renew.service");
    assert!(said.contains("read-only"), "{said}");
    let after = machine.pki_sums();
    assert_eq!(before, after);

    // Remounted, not unmounted: a file of /etc may be open.
    machine.done("mount -o remount,bind,rw /etc && touch /etc/written");
    machine.done("systemctl start nodepki-renew.service");
    let key = machine.done("openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -text");
    assert!(key.contains("P-384"), "{key}");
    machine.done("/usr/bin/kubelet /etc/kubernetes");
}
