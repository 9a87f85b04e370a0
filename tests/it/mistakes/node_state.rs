//! Mistakes with the files of the node, the permissions of the user and the signers of the command line.

use super::{Situation, follow_scripts};
use crate::node::Node;

const BOOTSTRAP: &str = "nodepki bootstrap $N $L";

const fn on_node(
    name: &'static str,
    mistake: &'static str,
    code: i32,
    message: &'static str,
    fix: &'static str,
) -> Situation {
    Situation {
        name,
        mistake,
        command: BOOTSTRAP,
        code,
        message,
        fix,
        corrected: "",
    }
}

/// A request that a person has not answered, although the certificate is in place.
const REQUEST: &str = "mkdir -m 700 drop
    nodepki renew --force apiserver $N --signer directory:$D/drop --wait 0s && exit 1 || [ $? = 75 ]";
const WITHOUT_REQUEST: &str = "! nodepki doctor --root $D/root | grep pending-request";

/// Each fix of `doctor` for a pending request removes the finding.
#[rustfmt::skip]
const REQUESTS: &[Situation] = &[
    Situation {
        name: "request that waits for a person",
        mistake: REQUEST,
        command: "nodepki doctor --root $D/root",
        code: 0,
        message: "apiserver waits for directory:@/drop\n    fix: have the request signed, then run `nodepki --root @/root renew --force apiserver --signer directory:@/drop`, which continues with the same key; to give it up, remove @/root/var/lib/nodepki/pending/apiserver\n",
        fix: "openssl x509 -req -in drop/outbox/apiserver.csr -copy_extensions copy -CA ca/ca.crt -CAkey ca/ca.key -CAcreateserial -days 365 -out drop/inbox/apiserver.crt 2>/dev/null
            nodepki --root $D/root renew --force apiserver --signer directory:$D/drop",
        corrected: WITHOUT_REQUEST,
    },
    Situation {
        name: "request that is given up",
        mistake: REQUEST,
        command: "nodepki doctor --root $D/root",
        code: 0,
        message: "to give it up, remove @/root/var/lib/nodepki/pending/apiserver\n",
        fix: "rm -r $D/root/var/lib/nodepki/pending/apiserver",
        corrected: WITHOUT_REQUEST,
    },
    Situation {
        name: "several requests that wait for the same person",
        mistake: "mkdir -m 700 drop; nodepki renew --force apiserver etcd-peer $N --signer directory:$D/drop --wait 0s && exit 1 || [ $? = 75 ]",
        command: "nodepki doctor --root $D/root",
        code: 0,
        message: "apiserver, etcd-peer wait for directory:@/drop\n    fix: have the requests signed, then run `nodepki --root @/root renew --force apiserver etcd-peer --signer directory:@/drop`, which continues with the same keys; to give them up, remove @/root/var/lib/nodepki/pending/apiserver, @/root/var/lib/nodepki/pending/etcd-peer\n",
        fix: "rm -r $D/root/var/lib/nodepki/pending/apiserver $D/root/var/lib/nodepki/pending/etcd-peer",
        corrected: WITHOUT_REQUEST,
    },
    Situation {
        name: "request for a certificate that is missing",
        mistake: "mkdir -m 700 drop; rm root/etc/kubernetes/pki/apiserver.*
            nodepki bootstrap $N --signer directory:$D/drop --wait 0s && exit 1 || [ $? = 75 ]",
        command: "nodepki doctor --root $D/root",
        code: 65,
        message: "fix: have the request signed, then run `nodepki --root @/root bootstrap --signer directory:@/drop`, which continues with the same key\n",
        fix: "openssl x509 -req -in drop/outbox/apiserver.csr -copy_extensions copy -CA ca/ca.crt -CAkey ca/ca.key -CAcreateserial -days 365 -out drop/inbox/apiserver.crt 2>/dev/null
            nodepki --root $D/root bootstrap --signer directory:$D/drop",
        corrected: WITHOUT_REQUEST,
    },
];

#[rustfmt::skip]
const NODE: &[Situation] = &[
    on_node("private key in place of the CA certificate",
        "cp ca/ca.key root/etc/kubernetes/pki/ca.crt",
        65,
        "@/root/etc/kubernetes/pki/ca.crt is not a usable trust bundle of ca: it contains a private key; put the CA certificate there and run again",
        "cp ca/ca.crt root/etc/kubernetes/pki/ca.crt"),
    on_node("request in place of the CA certificate",
        "openssl req -new -key ca/ca.key -subj /CN=ca -out root/etc/kubernetes/pki/ca.crt",
        65,
        "ca.crt is not a usable trust bundle of ca: it contains a certificate signing request",
        "cp ca/ca.crt root/etc/kubernetes/pki/ca.crt"),
    on_node("DER in place of PEM",
        "openssl x509 -in ca/ca.crt -outform der -out root/etc/kubernetes/pki/ca.crt",
        65,
        "it contains a certificate in DER, not in PEM (openssl x509 -inform der -in FILE -out FILE.pem converts it)",
        "cd root/etc/kubernetes/pki; openssl x509 -inform der -in ca.crt -out ca.crt.pem; mv ca.crt.pem ca.crt"),
    on_node("service-account keys that are not a pair",
        "openssl genrsa -out root/etc/kubernetes/pki/sa.key 2048 2>/dev/null; saved=$(mktemp -d saved.XXXX); cp backup/sa.* $saved",
        65,
        "sa.pub are not a pair: tokens signed with the one are refused by the other; copy both sa.key and sa.pub from another control-plane node (or from a backup of this one)",
        "cp backup/sa.key backup/sa.pub root/etc/kubernetes/pki/"),
    on_node("kubeconfig that is not one",
        "echo x > root/etc/kubernetes/admin.conf",
        65,
        "@/root/etc/kubernetes/admin.conf cannot be repaired without losing what is in it: it is not a kubeconfig (no mapping at the top); move it away and run again",
        "mv root/etc/kubernetes/admin.conf away"),
    on_node("file in place of a directory",
        "mv root/etc/kubernetes/pki/etcd etcd; echo x > root/etc/kubernetes/pki/etcd",
        65,
        "@/root/etc/kubernetes/pki/etcd is not a directory; move it away and run again",
        "mv root/etc/kubernetes/pki/etcd away; mv etcd root/etc/kubernetes/pki/etcd"),
    Situation {
        name: "another signer than the one of the node",
        mistake: "rm root/etc/kubernetes/pki/apiserver.*",
        command: "nodepki bootstrap $N --signer embedded",
        code: 65,
        message: "the embedded signer makes new authorities in every run and cannot sign for existing ones; use another signer",
        fix: "",
        corrected: BOOTSTRAP,
    },
    Situation {
        name: "CA keys at another path",
        mistake: "rm root/etc/kubernetes/pki/apiserver.*",
        command: "nodepki bootstrap $N --signer local:cas",
        code: 78,
        message: "does not exist; provide the key pair of authority ca there, or configure another signer for it",
        fix: "cp -a ca cas",
        corrected: "",
    },
    Situation {
        name: "plug-in that does not exist",
        mistake: "rm root/etc/kubernetes/pki/apiserver.*",
        command: "nodepki bootstrap $N --signer exec:/usr/libexec/sign-of-another-site",
        code: 78,
        message: "the command /usr/libexec/sign-of-another-site does not exist; install it there, or correct the path",
        fix: "",
        corrected: BOOTSTRAP,
    },
    Situation {
        name: "certificate that was just renewed",
        mistake: "nodepki renew --force $N $L apiserver",
        command: "nodepki renew $N $L apiserver",
        code: 75,
        message: "(--force renews it now)",
        fix: "",
        corrected: "nodepki renew --force $N $L apiserver",
    },
    Situation {
        name: "certificates of all that were just renewed",
        mistake: "nodepki renew --force --all $N $L",
        command: "nodepki renew --all $N $L",
        code: 75,
        message: "(--force renews it now)",
        fix: "",
        corrected: "nodepki renew --force --all $N $L",
    },
    Situation {
        name: "change of a CA without the new one",
        mistake: "",
        command: "nodepki authority stage ca $N $L",
        code: 78,
        message: "the new CA is not specified (name its certificate with --certificate FILE",
        fix: "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=new-ca -addext keyUsage=critical,keyCertSign,cRLSign -days 3650 -keyout new.key -out new.crt 2>/dev/null",
        corrected: "nodepki authority stage ca --certificate new.crt --dry-run $N $L",
    },
    Situation {
        name: "change of a CA with its private key",
        mistake: "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=new-ca -addext keyUsage=critical,keyCertSign,cRLSign -days 3650 -keyout new.key -out new.crt 2>/dev/null",
        command: "nodepki authority stage ca --certificate new.key --dry-run $N $L",
        code: 65,
        message: "--certificate new.key: it contains a private key; name a file with the new CA's certificate, PEM or DER",
        fix: "",
        corrected: "nodepki authority stage ca --certificate new.crt --dry-run $N $L",
    },
    Situation {
        name: "activation before the first step",
        mistake: "",
        command: "nodepki authority activate ca $N $L",
        code: 65,
        message: "no new ca is staged on this node (first run nodepki authority stage ca --certificate FILE on every node)",
        fix: "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=new-ca -addext keyUsage=critical,keyCertSign,cRLSign -days 3650 -keyout new.key -out new.crt 2>/dev/null",
        corrected: "nodepki authority stage ca --certificate new.crt --dry-run $N $L",
    },
    Situation {
        name: "passphrase in an absent file",
        mistake: "",
        command: "nodepki migrate to-external --apply --backup keys.pem --passphrase-file pass $N $L",
        code: 78,
        message: "cannot be read: does not exist; name an existing file or an open file descriptor",
        fix: "umask 77; openssl rand -base64 24 > pass",
        corrected: "",
    },
    Situation {
        name: "certificate key of another form",
        mistake: "echo secret > key; chmod 600 key",
        command: "nodepki certs upload --certificate-key-file $D/key --kubeconfig $D/absent.conf $N",
        code: 78,
        message: "a certificate key must have 64 hexadecimal digits; this one has 6 characters",
        fix: "rm key; nodepki certs key --out key",
        corrected: "test $(tr -d '\\n' < key | wc -c) = 64",
    },
    Situation {
        name: "kubeconfig of the cluster absent",
        mistake: "",
        command: "nodepki kubelets list --kubeconfig $D/absent.conf $N",
        code: 78,
        message: "@/absent.conf cannot be read: does not exist; put it there",
        fix: "cp root/etc/kubernetes/admin.conf absent.conf",
        corrected: "test -s absent.conf",
    },
];

#[rustfmt::skip]
const PERMISSIONS: &[Situation] = &[
    Situation {
        name: "not root",
        mistake: "chmod 755 $D; chmod 644 kubeadm.yaml; rm root/etc/kubernetes/pki/apiserver.*",
        command: "setpriv --reuid 65534 --regid 65534 --clear-groups nodepki bootstrap $N $L",
        code: 77,
        message: "Permission denied; run as root",
        fix: "",
        corrected: BOOTSTRAP,
    },
    Situation {
        name: "file system that is read-only",
        mistake: "rm root/etc/kubernetes/pki/apiserver.*",
        command: "unshare --mount bash -c \"mount --bind root/etc/kubernetes root/etc/kubernetes; mount -o remount,bind,ro root/etc/kubernetes; nodepki bootstrap $N $L\"",
        code: 77,
        message: "the file system is read-only; mount it read-write (`mount -o remount,rw ...`)",
        fix: "",
        corrected: "unshare --mount bash -c \"mount --bind root/etc/kubernetes root/etc/kubernetes; mount -o remount,bind,ro root/etc/kubernetes; mount -o remount,bind,rw root/etc/kubernetes; nodepki bootstrap $N $L\"",
    },
    Situation {
        name: "another run in progress",
        mistake: "rm root/etc/kubernetes/pki/apiserver.*",
        command: "flock root/var/lib/nodepki/lock nodepki bootstrap --wait 0s $N $L",
        code: 75,
        message: "another nodepki process is running (pid ",
        fix: "",
        corrected: BOOTSTRAP,
    },
];

fn bootstrapped() -> Node {
    let node = Node::bootstrapped();
    let backup = node.outside("backup");
    std::fs::create_dir(&backup).unwrap();
    for file in ["sa.key", "sa.pub"] {
        let from = node.path("/etc/kubernetes/pki").join(file);
        std::fs::copy(from, backup.join(file)).unwrap();
    }
    node
}

#[test]
fn files_of_the_node() {
    follow_scripts(&bootstrapped(), NODE);
}

#[test]
fn pending_requests() {
    follow_scripts(&bootstrapped(), REQUESTS);
}

#[test]
fn permissions_of_the_user() {
    follow_scripts(&bootstrapped(), PERMISSIONS);
}
