//! A real etcd on the node with the node's certificates, and the daemon. After ten months the daemon wakes and renews, and
//! etcd serves the new certificate without a restart.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

const SERVED: &str = "openssl s_client -connect 127.0.0.1:2379 -CAfile /etc/kubernetes/pki/etcd/ca.crt \
    -cert /etc/kubernetes/pki/etcd/healthcheck-client.crt -key /etc/kubernetes/pki/etcd/healthcheck-client.key \
    </dev/null 2>/dev/null | openssl x509 -noout -serial";
const ON_DISK: &str = "openssl x509 -in /etc/kubernetes/pki/etcd/server.crt -noout -serial";
const ETCDCTL: &str = "etcdctl --endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt \
    --cert /etc/kubernetes/pki/etcd/healthcheck-client.crt --key /etc/kubernetes/pki/etcd/healthcheck-client.key";

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.emulated(Signer::Cfssl, include_str!("user-data.yaml"));
    machine.boot_node();
    machine.until(&format!("{ETCDCTL} endpoint health"));
    machine.done(&format!("{ETCDCTL} put key value"));
    let old = machine.done(SERVED);
    assert_eq!(old, machine.done(ON_DISK));
    let process = machine.done("systemctl show -P MainPID etcd-node.service");

    // The daemon without the timer: otherwise either of them could renew first.
    machine.done(
        "systemctl disable -q --now nodepki-renew.timer; systemctl enable -q --now nodepki.service",
    );
    machine.done("date -s '+300 days'");
    machine.until(&format!("test \"$({ON_DISK})\" != '{}'", old.trim()));
    machine.until(&format!("test \"$({SERVED})\" = \"$({ON_DISK})\""));

    machine.until(&format!(
        "{ETCDCTL} get --print-value-only key | grep -qx value"
    ));
    assert_eq!(
        process,
        machine.done("systemctl show -P MainPID etcd-node.service"),
        "etcd was restarted"
    );
    machine.done(
        "openssl x509 -in /etc/kubernetes/pki/etcd/server.crt -noout -checkend $((200*86400))",
    );
    machine.done("/usr/bin/kubelet /etc/kubernetes");
    machine.done("systemctl is-active nodepki.service");
    machine.done("systemctl reload nodepki.service; systemctl is-active nodepki.service");
}
