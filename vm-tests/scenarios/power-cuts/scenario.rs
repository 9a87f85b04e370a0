//! The cuts of the container scenarios with a kernel and a disk that lose power: QEMU is killed, NODEPKI_VM_CUTS times in
//! all, and the node is complete afterwards.

use std::time::Duration;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

use super::bootstrap_cuts::LAST_FILE;
use super::renewal_cuts::renew_and_cut;

/// Less than the duration of an emulated bootstrap with RSA keys.
const MAX_DELAY: Duration = Duration::from_secs(6);
/// One in this many cuts must interrupt nodepki; further cuts are made until that is reached.
const CUTS_PER_INTERRUPTED: u32 = 4;

/// Number of cuts of a bootstrap and of a renewal; at least one of each.
fn cuts() -> [u32; 2] {
    let all: u32 = std::env::var("NODEPKI_VM_CUTS").map_or(20, |cuts| {
        let number = cuts.parse();
        number.unwrap_or_else(|error| panic!("NODEPKI_VM_CUTS={cuts}: {error}; it is a number"))
    });
    assert!(
        all >= 2,
        "NODEPKI_VM_CUTS={all}: at least 2, one of a bootstrap and one of a renewal"
    );
    let bootstraps = (all * 2 / 5).max(1);
    [bootstraps, all - bootstraps]
}

/// Boots new machines until there were enough cuts; each one is cut repeatedly until it is complete.
pub(crate) fn bootstrap(bench: &Bench) {
    let mut dice = Dice::new(bench);
    let [wanted, _] = cuts();
    let (mut cuts, mut interrupted) = (0, 0);
    let enough =
        |cuts, interrupted| cuts >= wanted && interrupted >= wanted.div_ceil(CUTS_PER_INTERRUPTED);
    while !enough(cuts, interrupted) {
        assert!(
            cuts < 3 * wanted,
            "the cuts come too late: {interrupted} of {cuts} interrupted nodepki"
        );
        let user_data = include_str!("../bootstrap-cuts/user-data.yaml");
        let mut machine = bench.emulated(Signer::Cfssl, user_data);
        machine.boot();
        while !enough(cuts, interrupted) && !is_complete(&mut machine) {
            machine.until("systemctl show -P ActiveState nodepki-bootstrap | grep -qE '^activ'");
            dice.wait(MAX_DELAY);
            machine.cut();
            cuts += 1;
            machine.boot();
            interrupted += u32::from(!is_complete(&mut machine));
        }
        machine.wait_until_node_runs();
        machine.assert_booted();
    }
    bench.say(&format!("{interrupted} of {cuts} cuts interrupted nodepki"));
}

/// Returns whether the bootstrap is complete. The shell is available before cloud-init runs.
fn is_complete(machine: &mut impl Machine) -> bool {
    machine.run(&format!("test -e {LAST_FILE}")).status == 0
}

pub(crate) fn renewal(bench: &Bench) {
    let mut machine = bench.emulated(Signer::Cfssl, "");
    machine.boot_node();
    let [_, wanted] = cuts();
    renew_and_cut(
        bench,
        &mut machine,
        wanted,
        wanted.div_ceil(CUTS_PER_INTERRUPTED),
    );
}
