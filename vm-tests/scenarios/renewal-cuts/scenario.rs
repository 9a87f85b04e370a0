//! Repeated power cuts during renewals on one node. After each, the next boot has every certificate with its own key, and
//! completes the renewal.

use std::time::Instant;

use crate::bench::Bench;
use crate::dice::Dice;
use crate::machine::Machine;
use crate::seed::Signer;

const CUTS: u32 = 6;
const MIN_INTERRUPTED: u32 = 2;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Cfssl, "");
    machine.boot_node();
    renew_and_cut(bench, &mut machine, CUTS, MIN_INTERRUPTED);
}

/// Cuts the power during renewals of a complete node, which is complete afterwards. A cut may come too late, so further
/// cuts are made beyond `wanted` until `min_unfinished` of them have left work for the next boot.
pub(crate) fn renew_and_cut(
    bench: &Bench,
    machine: &mut impl Machine,
    wanted: u32,
    min_unfinished: u32,
) {
    let mut dice = Dice::new(bench);
    let (mut cuts, mut unfinished) = (0, 0);
    configure_curve(machine, "P384");
    let begin = Instant::now();
    machine.done("systemctl start nodepki-renew.service");
    let takes = begin.elapsed();
    while cuts < wanted || unfinished < min_unfinished {
        assert!(
            cuts < 3 * wanted,
            "the cuts come too late: {unfinished} of {cuts} interrupted a renewal"
        );
        let curve = ["P256", "P384"][cuts as usize % 2];
        let before = serials(machine);
        configure_curve(machine, curve);
        machine.done("sync");
        machine.done("systemctl start --no-block nodepki-renew.service");
        dice.wait(takes);
        machine.cut();
        cuts += 1;
        machine.boot();
        machine.wait_until_node_runs();
        // The kubelet's replacement does not check that the renewal reaches the configured curve.
        let curve = curve.replace('P', "P-");
        machine.until(&format!(
            "systemctl start nodepki-renew.service; cd /etc/kubernetes/pki
                 for leaf in apiserver front-proxy-client etcd/peer; do
                     openssl x509 -in $leaf.crt -noout -text | grep -q {curve} || exit 1
                 done"
        ));
        machine.done("/usr/bin/kubelet /etc/kubernetes");
        machine.done("nodepki doctor");
        let after = machine.done("journalctl -q -b -o cat -t nodepki MESSAGE_ID=6525a2b8040940e59317ba1bf01216a6 | wc -l");
        unfinished += u32::from(after.trim() != "0");
        assert_ne!(before, serials(machine));
    }
    machine.assert_booted();
    bench.say(&format!(
        "{unfinished} of {cuts} renewals, {takes:.1?} each, were incomplete after the cut"
    ));
}

/// Makes everything due by configuring another curve.
fn configure_curve(machine: &mut impl Machine, curve: &str) {
    let settings = format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         pki: {{defaults: {{key: {{algorithm: ECDSA, ecdsa: {{curve: {curve}}}}}}}}}\n\
         rotation: {{onPolicyChange: now}}"
    );
    machine.done(&format!(
        "echo '{settings}' >/etc/nodepki/config.d/90-keys.yaml"
    ));
    // Without the record, recently issued certificates have no cool-down.
    machine.done("rm /var/lib/nodepki/issued.json");
}

fn serials(machine: &mut impl Machine) -> String {
    machine.done("cd /etc/kubernetes/pki; for c in *.crt etcd/*.crt; do openssl x509 -in $c -noout -serial; done")
}
