//! The user data of `cloud-init/` for a first node, unchanged except for the pins, and the state after the boot.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn in_a_container(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.boot();
    // `date -s` in the shell would set the host's clock.
    let capabilities = machine.done("sed -n 's/^CapEff:\\s*//p' /proc/self/status");
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).unwrap();
    assert_eq!(capabilities >> 25 & 1, 0, "a container with CAP_SYS_TIME");
    first_boot(&mut machine);

    let before = machine.pki_sums();
    machine.power_off();
    machine.boot();
    machine.assert_booted();
    let after = machine.pki_sums();
    assert_eq!(before, after, "the second boot changed a file");
    machine.power_off();
}

pub(crate) fn emulated(bench: &Bench) {
    let mut machine = bench.emulated(Signer::Cfssl, "");
    machine.boot();
    first_boot(&mut machine);
    // A container may lack Landlock, the kernel of this machine has it: with full confinement nothing is logged.
    let unconfined =
        machine.run("journalctl -q -b -o cat -u nodepki-bootstrap.service -g confined");
    assert_eq!(unconfined.said, "");
}

fn first_boot(machine: &mut impl Machine) {
    machine.assert_booted();
    let status = machine.done("cloud-init status");
    assert!(status.contains("status: done"), "{status}");
    machine
        .done("systemctl is-active nodepki-bootstrap.service kubelet.service nodepki-renew.timer");

    // systemd's monotonic clock, which is never set.
    let at = |machine: &mut _, unit: &str, what: &str| -> u64 {
        let command = format!("systemctl show -P {what}TimestampMonotonic {unit}");
        Machine::done(machine, &command).trim().parse().unwrap()
    };
    let complete = at(machine, "nodepki-bootstrap.service", "ExecMainExit");
    let kubelet = at(machine, "kubelet.service", "ExecMainStart");
    assert!(
        complete > 0 && complete < kubelet,
        "complete at {complete} µs, the kubelet starts at {kubelet} µs"
    );
    let starts = machine.done("systemctl show -P NRestarts kubelet.service");
    assert_eq!(
        starts.trim(),
        "0",
        "the kubelet found an incomplete PKI at its first start"
    );

    let keys =
        machine.done("find /etc/kubernetes \\( -name ca.key -o -name front-proxy-ca.key \\)");
    assert_eq!(keys, "", "the node has a CA key");
    machine.done("nodepki doctor");
    machine.run("systemctl start nodepki-renew.service");
    let condition = machine.done("systemctl show -P Result nodepki-renew.service");
    assert_eq!(
        condition.trim(),
        "exec-condition",
        "a certificate is due on a new node"
    );
    journal(machine);
}

/// Asserts the fields that `packaging/journald.md` documents, for every issued certificate.
fn journal(machine: &mut impl Machine) {
    let issued = machine
        .done("journalctl -q -o json -t nodepki MESSAGE_ID=109b7f12a5064b7c8f39e0847a9002b7");
    let issued: Vec<Value> = issued
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: BTreeSet<_> = issued
        .iter()
        .map(|entry| entry["NODEPKI_CERTIFICATE"].as_str().unwrap())
        .collect();
    for name in [
        "apiserver",
        "etcd-server",
        "front-proxy-client",
        "admin.conf",
        "kubelet.conf",
    ] {
        assert!(names.contains(name), "no entry for {name}: {names:?}");
    }
    assert_eq!(issued.len(), names.len(), "a certificate was issued twice");
    for entry in &issued {
        assert_eq!(entry["NODEPKI_SIGNER"], "cfssl", "{entry}");
        assert_eq!(
            entry["_SYSTEMD_UNIT"], "nodepki-bootstrap.service",
            "{entry}"
        );
        assert!(
            entry["NODEPKI_NOT_AFTER"].as_str().unwrap().ends_with('Z'),
            "{entry}"
        );
    }
    let apiserver = issued
        .iter()
        .find(|entry| entry["NODEPKI_CERTIFICATE"] == "apiserver");
    let serial = machine.done("openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -serial");
    let serial = serial.trim().trim_start_matches("serial=").to_lowercase();
    assert_eq!(apiserver.unwrap()["NODEPKI_SERIAL"], serial.as_str());
    let explained =
        machine.done("journalctl -q -x -t nodepki MESSAGE_ID=109b7f12a5064b7c8f39e0847a9002b7");
    assert!(
        explained.contains("Subject: Certificate apiserver was issued"),
        "the catalogue is not installed:\n{explained}"
    );
}
