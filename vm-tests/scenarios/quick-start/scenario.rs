//! The commands of the README's quick start, unchanged, on a machine with the package and the certificates of the CAs: once
//! with a signer, once with requests that are carried to the CA and back.

use crate::bench::Bench;
use crate::container::Container;
use crate::machine::Machine;

const README: &str = include_str!("../../../README.md");

pub(crate) fn run(bench: &Bench) {
    let mut machine = new_machine(bench);
    machine.put(
        "/usr/local/libexec/corp-signer",
        include_str!("corp-signer"),
    );
    machine.boot();
    machine.assert_booted();
    machine.done("chmod 755 /usr/local/libexec/corp-signer");
    for command in commands("On the first control-plane node") {
        machine.done(&command);
    }

    let mut machine = new_machine(bench);
    machine.boot();
    machine.assert_booted();
    let carried = commands("Without a network to the CA");
    let [export, import] = &carried[..] else {
        panic!("{carried:?}")
    };
    machine.done(export);
    // The CAs at the signing place are in kubeadm's layout.
    machine.done(
        "cd /opt/corp-ca && mkdir -p /root/ca/etcd
         for part in crt key; do
             cp ca.$part /root/ca/ && cp etcd_ca.$part /root/ca/etcd/ca.$part &&
                 cp front_proxy_ca.$part /root/ca/front-proxy-ca.$part || exit
         done
         cd /mnt/stick && CA=/root/ca sh README",
    );
    machine.done(import);
    machine.done("kubeadm init --config kubeadm.yaml");
}

fn new_machine(bench: &Bench) -> Container {
    let machine = bench.container_other(include_str!("user-data.yaml"));
    machine.put("/kubeadm.yaml", include_str!("kubeadm.yaml"));
    machine
}

/// Returns the commands of the block that follows the paragraph with these words.
fn commands(words: &str) -> Vec<String> {
    let (_, quick_start) = README.split_once("\n## Quick start\n").unwrap();
    let (_, after) = quick_start.split_once(words).unwrap();
    let (_, block) = after.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(str::to_owned).collect()
}
