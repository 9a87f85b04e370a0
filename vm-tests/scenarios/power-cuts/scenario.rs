//! The same as in containers, with a kernel and a disk that lose power: QEMU is killed in the middle of a bootstrap and of
//! a renewal.

use std::time::Duration;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

use super::renewal_cuts::renew_and_cut;

pub(crate) fn run(bench: &Bench) {
    let mut dice = Dice::new(bench);
    let mut machine = bench.emulated(Signer::Cfssl, "");
    machine.boot();
    machine.until("test -e /var/lib/nodepki", 60);
    dice.wait(Duration::from_secs(4));
    machine.cut();
    machine.boot();
    machine.node_up();
    machine.well();
    renew_and_cut(bench, &mut machine, 1, Duration::from_secs(5));
}
