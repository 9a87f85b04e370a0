//! The power is cut in the middle of renewals, again and again on one node. After each the next boot has every certificate
//! beside its own key, and finishes what was begun.

use std::time::Duration;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

const CUTS: u32 = 8;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.boot();
    machine.node_up();
    machine.well();
    renew_and_cut(bench, &mut machine, CUTS, Duration::from_millis(700));
}

/// On a node that is up; it is up afterwards.
pub(crate) fn renew_and_cut(
    bench: &Bench,
    machine: &mut impl Machine,
    cuts: u32,
    within: Duration,
) {
    let mut dice = Dice::new(bench);
    let mut unfinished = 0;
    for cut in 0..cuts {
        let curve = ["P384", "P256"][cut as usize % 2];
        let before = serials(machine);
        let settings = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             pki: {{defaults: {{key: {{algorithm: ECDSA, ecdsa: {{curve: {curve}}}}}}}}}"
        );
        machine.done(&format!(
            "echo '{settings}' >/etc/nodepki/config.d/90-keys.yaml"
        ));
        // What was issued within the hour is left alone, as far as nodepki remembers.
        machine.done("rm /var/lib/nodepki/issued.json");
        machine.done("sync");
        machine.done("systemctl start --no-block nodepki-renew.service");
        // Every other time once the first certificate is in its place.
        if cut % 2 == 1 {
            machine.until("test -e /var/lib/nodepki/issued.json", 60);
        }
        dice.wait(within);
        machine.cut();
        machine.boot();
        machine.node_up();
        machine.well();
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
    bench.say(&format!(
        "{unfinished} of {cuts} renewals were still to be done after the cut"
    ));
}

fn serials(machine: &mut impl Machine) -> String {
    machine.done("cd /etc/kubernetes/pki; for c in *.crt etcd/*.crt; do openssl x509 -in $c -noout -serial; done")
}
