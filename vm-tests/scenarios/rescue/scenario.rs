//! A node that was off for two years: every certificate has expired, and it would not become ready. Its disk is mounted in
//! another machine, under /mnt, where `docs/runbook.md` is followed; then the node boots and becomes ready.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut node = bench.emulated(Signer::Cfssl, "");
    node.boot();
    node.wait_until_node_runs();
    node.assert_booted();
    let later = node.done("date -u -d '+2 years' +%Y-%m-%dT%H:%M:%S");
    node.power_off();

    let mut rescue = bench.emulated_other(include_str!("user-data.yaml"));
    rescue.take_disk_of(&node);
    rescue.set_clock(later.trim());
    rescue.boot();
    rescue.assert_booted();
    rescue.done("mount /dev/nvme1n1 /mnt");
    let status = rescue.done("nodepki --root /mnt status");
    assert!(status.contains("expired"), "{status}");
    let doctor = rescue.run("nodepki --root /mnt doctor");
    assert_eq!(doctor.status, 65, "{}", doctor.said);
    // 78: no signer is configured.
    let plan = rescue.run("nodepki --root /mnt plan");
    assert!([0, 78].contains(&plan.status), "{plan:?}");
    assert!(plan.said.contains("issue"), "{plan:?}");
    // The signer cannot be reached from here: section 4.
    let unreachable = rescue.run("nodepki --root /mnt bootstrap");
    assert!([69, 78].contains(&unreachable.status), "{unreachable:?}");
    rescue.done("nodepki --root /mnt csr export /media/usb/cp1");
    rescue.done("cd /media/usb/cp1 && CA=/media/ca sh README");
    rescue.done("nodepki --root /mnt csr import /media/usb/cp1");
    rescue.done("nodepki --root /mnt doctor");
    rescue.done("umount /mnt");
    rescue.power_off();

    node.set_clock(later.trim());
    node.boot();
    node.wait_until_node_runs();
    node.assert_booted();
    node.done("nodepki doctor");
}
