//! The power is cut at any moment of a first boot, from the first second of cloud-init to the last certificate. The next
//! boot makes the node whole by itself: nobody has to run anything, and no certificate stands beside another's key.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::container::Container;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

/// While the machine gets going, before nodepki has written anything.
const EARLY: u32 = 2;
/// From when nodepki has its state directory, for as long as it takes then.
const AT_WORK: u32 = 6;
/// Of these cuts luck decides what they meet: there are more of them until so many have met nodepki at work.
const MET: u32 = 2;
const STATE: &str = "/var/lib/nodepki";
/// What a bootstrap writes in the end.
pub(crate) const LAST: &str = "/etc/kubernetes/pki/sa.pub";

pub(crate) fn run(bench: &Bench) {
    let mut dice = Dice::new(bench);
    let takes = {
        let machine = started(bench);
        until_exists(&machine, STATE);
        let begin = Instant::now();
        until_exists(&machine, LAST);
        begin.elapsed()
    };
    let (mut cuts, mut at_work) = (0, 0);
    while cuts < EARLY + AT_WORK || at_work < MET {
        assert!(
            cuts < 3 * AT_WORK,
            "the cuts come too early or too late: {at_work} of {cuts} met nodepki at work"
        );
        let mut machine = started(bench);
        if cuts < EARLY {
            dice.wait(Duration::from_millis(2500));
        } else {
            until_exists(&machine, STATE);
            dice.wait(takes);
        }
        machine.cut();
        cuts += 1;
        at_work += u32::from(machine.path(STATE).exists() && !machine.path(LAST).exists());
        machine.boot();
        machine.node_up();
        machine.well();
    }
    bench.say(&format!(
        "{at_work} of {cuts} cuts met nodepki at work, which takes {takes:.1?}"
    ));
}

/// With RSA keys, which take long enough to be met in the making.
fn started(bench: &Bench) -> Container {
    let mut machine = bench.container(Signer::Cfssl, include_str!("user-data.yaml"));
    machine.start();
    machine
}

fn until_exists(machine: &Container, path: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !machine.path(path).exists() {
        assert!(Instant::now() < end, "there is no {path} yet");
        sleep(Duration::from_millis(1));
    }
}
