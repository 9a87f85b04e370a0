//! The real cloud-init runs the texts, over several boots: the order of programs, recovery from a power cut, and the
//! result of `cloud-init status`.

use std::fs;
use std::process::Command;

use super::machine::Machine;
use super::{EXAMPLES, composed, example, instance, kubeadm_takes, rendered};
use crate::servers::bin;

fn first() -> Machine {
    let machine = Machine::new();
    machine.user_data(&composed("user-data-first.yaml", "vault"));
    // The real nodepki writes the key with this mode.
    machine.stands_in(
        "nodepki",
        "[ \"$1\" != certs ] || (umask 077; echo key >\"$4\")",
    );
    machine.stands_in("kubeadm", "mkdir -p /etc/kubernetes");
    machine
}

/// Calls of a first boot in order, then the check of the unit.
const FIRST_BOOT_CALLS: [&str; 7] = [
    "systemctl enable --now --no-block nodepki-bootstrap.service",
    "systemctl enable --now --no-block nodepki-crl.timer",
    "nodepki bootstrap",
    "kubeadm init --config /etc/nodepki/kubeadm.yaml",
    "nodepki certs upload --certificate-key-out /etc/nodepki/certificate-key",
    "systemctl enable --now nodepki-renew.timer",
    "systemctl is-active nodepki-bootstrap.service",
];

#[test]
fn bootstraps_first_node_once() {
    let machine = first();
    let boot = machine.boot();
    boot.is("done");
    let mut order: Vec<&str> = boot
        .calls
        .iter()
        .map(String::as_str)
        .filter(|call| FIRST_BOOT_CALLS.contains(call))
        .collect();
    order.retain(|call| !call.contains("is-active"));
    assert_eq!(order, &FIRST_BOOT_CALLS[..6]);
    machine
        .nodepki(&["config", "check"])
        .done()
        .says("node cp1, cluster prod, 12 certificates");
    machine.assert_secrets_are_private();

    // A further boot verifies the PKI and repeats no other step.
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(
        (
            boot.count("nodepki bootstrap"),
            boot.count("kubeadm"),
            boot.count("nodepki certs")
        ),
        (1, 0, 0)
    );
}

/// The texts are the parts of a MIME message, which is cloud-init's own way to combine them.
#[test]
fn runs_two_parts_like_one_text() {
    let output = Command::new(bin("cloud-init"))
        .args([
            "devel",
            "make-mime",
            "-a",
            "user-data-first.yaml:cloud-config",
            "-a",
            "signers/vault.yaml:cloud-config",
        ])
        .current_dir(EXAMPLES)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let (one, two) = (first(), first());
    two.user_data(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(one.boot().is("done").calls, two.boot().is("done").calls);
    let names = |machine: &Machine| {
        let content = machine.content("etc/nodepki");
        let root = machine.root().to_owned();
        let relative = content
            .into_iter()
            .map(|(path, bytes)| (path.strip_prefix(&root).unwrap().to_owned(), bytes));
        relative.collect::<Vec<_>>()
    };
    assert!(names(&one) == names(&two));
}

/// Temporary failures are retried. After a permanent one kubeadm is not run, and the status is an error until the cause is
/// corrected.
#[test]
fn reports_failure_in_status_until_corrected() {
    let machine = first();
    machine.stands_in(
        "nodepki",
        "[ $calls -gt 2 ] || exit $((63 + calls * 6)); [ \"$1\" != certs ] || (umask 077; echo key >\"$4\")",
    );
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(
        (
            boot.count("nodepki bootstrap"),
            boot.count("kubeadm init"),
            boot.count("sleep")
        ),
        (3, 1, 2)
    );

    let machine = first();
    machine.stands_in("nodepki", "exit 78");
    let boot = machine.boot();
    boot.is("error");
    assert_eq!(
        (boot.count("nodepki"), boot.count("kubeadm")),
        (1, 0),
        "{:?}",
        boot.calls
    );
    assert_eq!(boot.count("journalctl"), 1, "the reason is shown");
    // systemd skips the unit if a condition is not met, without an error and without a PKI.
    machine.stands_in("systemctl", "[ \"$1\" != is-active ] || exit 3");
    let boot = machine.boot();
    boot.is("error");
    assert_eq!(boot.count("kubeadm"), 0, "{:?}", boot.calls);

    let machine = first();
    machine.stands_in("kubeadm", "exit 1");
    let boot = machine.boot();
    boot.is("error");
    assert_eq!((boot.count("kubeadm"), boot.count("nodepki certs")), (1, 0));
    machine.stands_in("kubeadm", "mkdir -p /etc/kubernetes");
    machine.boot().is("done");
    // The disk is full while the files are written.
    let machine = first();
    machine.stands_in("sync", "exit 1");
    let boot = machine.boot();
    boot.is("error");
    assert_eq!(boot.count("kubeadm"), 0, "{:?}", boot.calls);
}

/// The power fails while a file is written, while nodepki or kubeadm runs, or between them.
#[test]
fn completes_interrupted_boot_at_next_boot() {
    for (program, calls) in [("sync", 3), ("nodepki", 1), ("kubeadm", 1), ("nodepki", 2)] {
        let machine = first();
        let cut = "kill -9 -1";
        machine.stands_in(program, &format!("[ $calls -lt {calls} ] || {{ {cut}; }}"));
        let boot = machine.boot();
        assert_ne!(boot.status, "done", "{program} {calls}: {:?}", boot.calls);
        machine.stands_in(
            "nodepki",
            "[ \"$1\" != certs ] || (umask 077; echo key >\"$4\")",
        );
        machine.stands_in("kubeadm", "mkdir -p /etc/kubernetes");
        let _ = fs::remove_file(machine.path("programs/sync"));
        let boot = machine.boot();
        boot.is("done");
        assert_eq!(
            boot.count("nodepki bootstrap"),
            1,
            "{program} {calls}: {:?}",
            boot.calls
        );
        let done = (program, calls) == ("nodepki", 2);
        assert_eq!(
            boot.count("kubeadm init"),
            usize::from(!done),
            "{program} {calls}: {:?}",
            boot.calls
        );
        machine
            .nodepki(&["config", "check"])
            .done()
            .says("node cp1, cluster prod, 12 certificates");
    }
}

/// Name and address come from the instance data.
#[test]
fn joins_node() {
    let machine = Machine::new();
    machine.meta_data(&[("local-ipv4", "192.0.2.12")]);
    machine.user_data(&composed("user-data-join.yaml", "vault-identity"));
    machine.stands_in("kubeadm", "mkdir -p /etc/kubernetes");
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(boot.count("nodepki bootstrap"), 1);
    assert_eq!(
        boot.count("kubeadm join --config /var/lib/nodepki/kubeadm-join.yaml"),
        1
    );
    assert!(
        machine
            .read("etc/nodepki/kubeadm.yaml")
            .contains("advertiseAddress: \"192.0.2.12\"")
    );
    machine
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2");
    kubeadm_takes(&machine, "etc/nodepki/kubeadm.yaml");
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(
        (boot.count("nodepki bootstrap"), boot.count("kubeadm")),
        (1, 0)
    );
    // Both examples pin the same CA.
    let pin = "4f3c1c2a9d0b7e6f5a4b3c2d1e0f99887766554433221100ffeeddccbbaa9988";
    let rendered = rendered(&[example("user-data-join.yaml")], &instance(&[])).remove(0);
    assert!(rendered.contains(pin) && example("signers/vault.yaml").contains(pin));
}

/// The vendor data set up the node, and the user data remain available to the user.
#[test]
fn sets_up_node_from_vendor_data() {
    let machine = Machine::new();
    machine.stands_in("kubeadm", "mkdir -p /etc/kubernetes");
    machine.vendor_data(&example("vendor-data.yaml"));
    machine.user_data("#cloud-config\nruncmd:\n  - sleep 0\n");
    let address = ("local-ipv4", "192.0.2.12");
    machine.meta_data(&[address, ("nodepki-role", "first")]);
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(
        (boot.count("kubeadm init"), boot.count("sleep 0")),
        (1, 1),
        "{:?}",
        boot.calls
    );
    machine
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2, cluster prod, 12 certificates");

    let machine = Machine::new();
    machine.stands_in("kubeadm", "mkdir -p /etc/kubernetes");
    machine.vendor_data(&example("vendor-data.yaml"));
    let (token, key) = (
        ("join-token", "abcdef.0123456789abcdef"),
        ("certificate-key", &*"0f".repeat(32)),
    );
    machine.meta_data(&[address, token, key]);
    let boot = machine.boot();
    boot.is("done");
    assert_eq!(boot.count("kubeadm join"), 1, "{:?}", boot.calls);
    machine
        .nodepki(&["config", "check"])
        .done()
        .says("node cp2");
    kubeadm_takes(&machine, "etc/nodepki/kubeadm.yaml");
    assert_eq!(machine.read("etc/nodepki/certificate-key").trim(), key.1);
    machine.assert_secrets_are_private();
}
