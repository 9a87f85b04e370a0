//! The power is cut at any moment of a first boot, from the first second of cloud-init to the last certificate. The next
//! boot makes the node whole by itself: nobody has to run anything, and no certificate stands beside another's key.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

/// While the machine gets going, before nodepki has written anything.
const EARLY: u32 = 4;
/// From when nodepki has its state directory.
const AT_WORK: u32 = 8;

pub(crate) fn run(bench: &Bench) {
    let mut dice = Dice::new(bench);
    let mut at_work = 0;
    for cut in 0..EARLY + AT_WORK {
        // RSA keys, which take long enough to be met in the making.
        let mut machine = bench.container(Signer::Cfssl, include_str!("user-data.yaml"));
        machine.start();
        if cut < EARLY {
            dice.wait(Duration::from_millis(2500));
        } else {
            let end = Instant::now() + Duration::from_secs(60);
            while !machine.path("/var/lib/nodepki").exists() {
                assert!(Instant::now() < end, "nodepki was not started");
                sleep(Duration::from_millis(1));
            }
            dice.wait(Duration::from_millis(1500));
        }
        machine.cut();
        let whole = machine.path("/etc/kubernetes/pki/sa.pub").exists();
        at_work += u32::from(machine.path("/var/lib/nodepki").exists() && !whole);
        machine.boot();
        machine.node_up();
        machine.well();
    }
    bench.say(&format!("{at_work} cuts met nodepki at work"));
    assert!(
        at_work >= 3,
        "the cuts come too early or too late: {at_work} met nodepki at work"
    );
}
