//! The power is cut in the middle of renewals, again and again on one node. After each the next boot has every certificate
//! beside its own key, and finishes what was begun.

use std::time::Instant;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

const CUTS: u32 = 6;
const MET: u32 = 2;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.boot();
    machine.node_up();
    machine.well();
    renew_and_cut(bench, &mut machine, CUTS, MET);
}

/// On a node that is up; it is up afterwards. Luck decides what a cut meets: there are more than `wanted` until `met` of
/// them have left something for the next boot to finish.
pub(crate) fn renew_and_cut(bench: &Bench, machine: &mut impl Machine, wanted: u32, met: u32) {
    let mut dice = Dice::new(bench);
    let (mut cuts, mut unfinished) = (0, 0);
    want(machine, "P384");
    let begin = Instant::now();
    machine.done("systemctl start nodepki-renew.service");
    let takes = begin.elapsed();
    while cuts < wanted || unfinished < met {
        assert!(
            cuts < 3 * wanted,
            "the cuts come too late: {unfinished} of {cuts} met a renewal"
        );
        let curve = ["P256", "P384"][cuts as usize % 2];
        let before = serials(machine);
        want(machine, curve);
        machine.done("sync");
        machine.done("systemctl start --no-block nodepki-renew.service");
        dice.wait(takes);
        machine.cut();
        cuts += 1;
        machine.boot();
        machine.node_up();
        // What the stand-in of the kubelet cannot know: that it goes on to where it was to go.
        let curve = curve.replace('P', "P-");
        machine.until(
            &format!(
                "systemctl start nodepki-renew.service; cd /etc/kubernetes/pki
                 for leaf in apiserver front-proxy-client etcd/peer; do
                     openssl x509 -in $leaf.crt -noout -text | grep -q {curve} || exit 1
                 done"
            ),
            60,
        );
        machine.done("/usr/bin/kubelet /etc/kubernetes");
        machine.done("nodepki doctor");
        let after = machine.done("journalctl -q -b -o cat -t nodepki MESSAGE_ID=6525a2b8040940e59317ba1bf01216a6 | wc -l");
        unfinished += u32::from(after.trim() != "0");
        assert_ne!(before, serials(machine));
    }
    machine.well();
    bench.say(&format!(
        "{unfinished} of {cuts} renewals, {takes:.1?} each, were still to be done after the cut"
    ));
}

/// Makes everything due: its keys are to be on another curve.
fn want(machine: &mut impl Machine, curve: &str) {
    let settings = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         pki: {{defaults: {{key: {{algorithm: ECDSA, ecdsa: {{curve: {curve}}}}}}}}}"
    );
    machine.done(&format!(
        "echo '{settings}' >/etc/nodepki/config.d/90-keys.yaml"
    ));
    // What was issued within the hour is left alone, as far as nodepki remembers.
    machine.done("rm /var/lib/nodepki/issued.json");
}

fn serials(machine: &mut impl Machine) -> String {
    machine.done("cd /etc/kubernetes/pki; for c in *.crt etcd/*.crt; do openssl x509 -in $c -noout -serial; done")
}
