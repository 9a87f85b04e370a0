//! Power cuts at random moments of a first boot, from the first second of cloud-init to the last certificate. The next
//! boot completes the node without manual action, and every certificate matches its key.

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::container::Container;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;
use crate::time::wait_until;

/// Number of cuts before nodepki has written a file.
const EARLY_CUTS: u32 = 2;
/// Number of cuts after nodepki has created its state directory.
const WORKING_CUTS: u32 = 6;
/// Minimum number of cuts that interrupt nodepki: further cuts are made until it is reached.
const MIN_INTERRUPTED: u32 = 2;
const STATE_DIRECTORY: &str = "/var/lib/nodepki";
/// The file that a bootstrap writes last.
pub(crate) const LAST_FILE: &str = "/etc/kubernetes/pki/sa.pub";

pub(crate) fn run(bench: &Bench) {
    let mut dice = Dice::new(bench);
    let takes = {
        let machine = started(bench);
        until_exists(&machine, STATE_DIRECTORY);
        let begin = Instant::now();
        until_exists(&machine, LAST_FILE);
        begin.elapsed()
    };
    let (mut cuts, mut interrupted) = (0, 0);
    while cuts < EARLY_CUTS + WORKING_CUTS || interrupted < MIN_INTERRUPTED {
        assert!(
            cuts < 3 * WORKING_CUTS,
            "the cuts come too early or too late: {interrupted} of {cuts} interrupted nodepki"
        );
        let mut machine = started(bench);
        if cuts < EARLY_CUTS {
            dice.wait(Duration::from_millis(2500));
        } else {
            until_exists(&machine, STATE_DIRECTORY);
            dice.wait(takes);
        }
        machine.cut();
        cuts += 1;
        interrupted +=
            u32::from(machine.path(STATE_DIRECTORY).exists() && !machine.path(LAST_FILE).exists());
        machine.boot_node();
    }
    bench.say(&format!(
        "{interrupted} of {cuts} cuts interrupted nodepki, which takes {takes:.1?}"
    ));
}

/// Starts a machine with RSA keys, whose generation takes long enough to be interrupted.
fn started(bench: &Bench) -> Container {
    let mut machine = bench.container(Signer::Cfssl, include_str!("user-data.yaml"));
    machine.start();
    machine
}

fn until_exists(machine: &Container, path: &str) {
    wait_until(path, || machine.path(path).exists());
}
