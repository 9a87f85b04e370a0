//! The same as in containers, with a kernel and a disk that lose power: QEMU is killed, NODEPKI_VM_CUTS times in all, and
//! what comes up after that is whole.

use std::time::Duration;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

use super::bootstrap_cuts::LAST;
use super::renewal_cuts::renew_and_cut;

/// Less than a bootstrap with RSA keys takes, emulated.
const WITHIN: Duration = Duration::from_secs(6);
/// One in so many cuts has to meet nodepki at work; there are more until they have.
const MET: u32 = 4;

/// Of a bootstrap, and of a renewal; at least one of each.
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

/// One machine after the other, until there were enough cuts; each loses its power again and again until it is whole.
pub(crate) fn bootstrap(bench: &Bench) {
    let mut dice = Dice::new(bench);
    let [wanted, _] = cuts();
    let (mut cuts, mut at_work) = (0, 0);
    let enough = |cuts, at_work| cuts >= wanted && at_work >= wanted.div_ceil(MET);
    while !enough(cuts, at_work) {
        assert!(
            cuts < 3 * wanted,
            "the cuts come too late: {at_work} of {cuts} met nodepki at work"
        );
        let user_data = include_str!("../bootstrap-cuts/user-data.yaml");
        let mut machine = bench.emulated(Signer::Cfssl, user_data);
        machine.boot();
        while !enough(cuts, at_work) && !is_whole(&mut machine) {
            machine.until(
                "systemctl show -P ActiveState nodepki-bootstrap | grep -qE '^activ'",
                60,
            );
            dice.wait(WITHIN);
            machine.cut();
            cuts += 1;
            machine.boot();
            at_work += u32::from(!is_whole(&mut machine));
        }
        machine.node_up();
        machine.well();
    }
    bench.say(&format!("{at_work} of {cuts} cuts met nodepki at work"));
}

/// The shell is there before cloud-init is.
fn is_whole(machine: &mut impl Machine) -> bool {
    machine.run(&format!("test -e {LAST}")).status == 0
}

pub(crate) fn renewal(bench: &Bench) {
    let mut machine = bench.emulated(Signer::Cfssl, "");
    machine.boot();
    machine.node_up();
    machine.well();
    let [_, wanted] = cuts();
    renew_and_cut(bench, &mut machine, wanted, wanted.div_ceil(MET));
}
