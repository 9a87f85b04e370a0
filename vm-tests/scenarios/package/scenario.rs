//! The package on a running node: upgraded, removed and purged. The administrator's changes are kept until the purge, the
//! daemon continues with the new program, and the node's PKI is never removed.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.boot_node();
    machine.done("systemctl enable -q --now nodepki.service");
    machine.done("echo '# of this node' >>/etc/nodepki/config.yaml");
    let pki = machine.pki_sums();
    let process = machine.done("systemctl show -P MainPID nodepki.service");

    machine.done(include_str!("upgrade.sh"));
    assert_eq!(
        machine.done("dpkg-query -W -f '${Version}' nodepki"),
        "9.0-1"
    );
    machine.done("grep -qx '# of this node' /etc/nodepki/config.yaml");
    machine.done("systemctl is-active nodepki.service nodepki-renew.timer");
    assert_ne!(
        process,
        machine.done("systemctl show -P MainPID nodepki.service"),
        "the daemon still is the old program"
    );
    assert_eq!(pki, machine.pki_sums());
    machine.done("nodepki doctor");

    machine.done("DEBIAN_FRONTEND=noninteractive dpkg --remove nodepki");
    machine
        .done("! systemctl is-active nodepki.service nodepki-renew.timer && ! command -v nodepki");
    machine.done("grep -qx '# of this node' /etc/nodepki/config.yaml");
    assert_eq!(pki, machine.pki_sums());

    machine.done("DEBIAN_FRONTEND=noninteractive dpkg --purge nodepki");
    machine.done("! test -e /etc/nodepki/config.yaml && ! test -e /var/lib/nodepki");
    machine.done(
        "! find /etc/systemd /usr/lib/systemd -name 'nodepki*' ! -path '*.service.d*' | grep .",
    );
    assert_eq!(
        pki,
        machine.pki_sums(),
        "the certificates are the node's, not the package's"
    );
    machine.done("/usr/bin/kubelet /etc/kubernetes");
    assert_eq!(machine.done("systemctl --failed --plain --no-legend"), "");
}
