//! A signer that answers by hand after the machine was off. The power is cut while requests are pending; after the next
//! boot the same requests are pending with the same keys, and the certificates are then installed.

use crate::bench::Bench;
use crate::machine::Machine;
use crate::seed::Signer;

pub(crate) fn run(bench: &Bench) {
    let mut machine = bench.container(Signer::Directory, "");
    // The administrator mounts this folder.
    machine.put(
        "/srv/nodepki/README",
        "requests go out, certificates come in\n",
    );
    machine.boot();
    pending(&mut machine);
    let before = requests(&mut machine);
    assert!(before.lines().count() >= 10, "{before}");
    machine.cut();

    machine.boot();
    pending(&mut machine);
    assert_eq!(
        before,
        requests(&mut machine),
        "the requests changed after the cut"
    );

    machine.done(include_str!("sign.sh"));
    machine.wait_until_node_runs();
    machine.assert_booted();
    // The API server's request precedes the cut, and its key is now served.
    let key = |file: &str| format!("openssl {file} -noout -pubkey");
    let served = machine.done(&key("x509 -in /etc/kubernetes/pki/apiserver.crt"));
    let requested = machine.done(&key("req -in /root/apiserver.csr"));
    assert_eq!(served, requested);
}

fn pending(machine: &mut impl Machine) {
    machine.until("test $(systemctl show -P ExecMainStatus nodepki-bootstrap.service) = 75");
}

fn requests(machine: &mut impl Machine) -> String {
    machine.done("cd /srv/nodepki/outbox; sha256sum *.csr")
}
