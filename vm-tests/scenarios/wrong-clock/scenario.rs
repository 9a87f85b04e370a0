//! A clock that is years behind at the boot, as without a battery. No certificate is requested with it; once the clock is
//! set, the node gets its PKI with correct times.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.emulated(Signer::Cfssl, "");
    machine.set_clock("2019-03-01T00:00:00");
    machine.boot();
    machine.until(
        "journalctl -q -b -t nodepki MESSAGE_ID=00d20d44e2b84a3e9fe51bf6572216f0 | grep -q .",
    );
    let leaves = machine.done("find /etc/kubernetes -name '*.crt' -newer /proc/1; ls /etc/kubernetes/pki 2>/dev/null || true");
    assert!(
        !leaves.contains("apiserver.crt"),
        "issued with a wrong clock: {leaves}"
    );
    let active = machine
        .run("systemctl is-active nodepki-bootstrap.service")
        .said;
    assert_eq!(active.trim(), "activating");

    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    machine.done(&format!("date -s @{now}"));
    machine.wait_until_node_runs();
    machine.assert_booted();
    machine.done("openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -checkend 0");
    let status = machine.done("cloud-init status");
    assert!(status.contains("status: done"), "{status}");
}
