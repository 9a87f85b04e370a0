//! Mistakes with `csr export` and `csr import`: what comes back from the signer.

use super::{Situation, follow_scripts, shell};
use crate::node::Node;

const IMPORT: &str = "nodepki csr import bundle $N";

const fn import(
    name: &'static str,
    mistake: &'static str,
    code: i32,
    message: &'static str,
    fix: &'static str,
) -> Situation {
    Situation {
        name,
        mistake,
        command: IMPORT,
        code,
        message,
        fix,
        corrected: "",
    }
}

/// Signs the request again.
const SIGN: &str = "sign pki/apiserver bundle/pki/apiserver.crt";

#[rustfmt::skip]
const IMPORTS: &[Situation] = &[
    import("certificate of another key",
        "client; openssl x509 -req -in client.csr -extfile bundle/pki/apiserver.ext -CA ca/ca.crt -CAkey ca/ca.key -out bundle/pki/apiserver.crt 2>/dev/null",
        75,
        "pki/apiserver.crt (CN=cp1) is for a key of no pending request: sign the CSRs of the last `nodepki csr export`",
        SIGN),
    import("certificate of another request under this name",
        "cp bundle/pki/apiserver-kubelet-client.crt bundle/pki/apiserver.crt",
        75,
        "no certificate for its key was imported; have its CSR signed and import again",
        SIGN),
    import("chain in the wrong order",
        "cat ca/ca.crt bundle/pki/apiserver.crt > chain; mv chain bundle/pki/apiserver.crt",
        65,
        "the chain is reversed or out of order: its first certificate is CN=kubernetes, the leaf must come first",
        "openssl crl2pkcs7 -nocrl -certfile bundle/pki/apiserver.crt | openssl pkcs7 -print_certs | awk '/BEGIN/{n++} {print > \"part\" n}'; cat part2 part1 > bundle/pki/apiserver.crt"),
    import("signed without the extensions",
        "openssl x509 -req -in bundle/pki/apiserver.csr -CA ca/ca.crt -CAkey ca/ca.key -out bundle/pki/apiserver.crt 2>/dev/null",
        65,
        "SAN DNS:cp1 is missing",
        SIGN),
    import("signed by another authority",
        "openssl x509 -req -in bundle/pki/apiserver.csr -extfile bundle/pki/apiserver.ext -CA ca/front-proxy-ca.crt -CAkey ca/front-proxy-ca.key -out bundle/pki/apiserver.crt 2>/dev/null",
        65,
        "no path from it to the trusted CN=",
        SIGN),
    import("expired certificate",
        "openssl x509 -req -in bundle/pki/apiserver.csr -extfile bundle/pki/apiserver.ext -days -1 -CA ca/ca.crt -CAkey ca/ca.key -out bundle/pki/apiserver.crt 2>/dev/null",
        65,
        "it expired at ",
        SIGN),
    import("request in place of its certificate",
        "cp bundle/pki/apiserver.csr bundle/pki/apiserver.crt",
        75,
        "pki/apiserver.crt is not used: it contains a certificate signing request, not the certificate that was issued for it",
        SIGN),
    import("private key in place of a certificate",
        "cp ca/ca.key bundle/pki/apiserver.crt",
        75,
        "pki/apiserver.crt is not used: it contains a private key",
        SIGN),
    import("page of a proxy in place of a certificate",
        "echo '<html>' > bundle/pki/apiserver.crt",
        75,
        "pki/apiserver.crt is not used: it contains an HTML or XML page",
        SIGN),
    import("certificate cut off",
        "head -c 300 bundle/pki/apiserver.crt > cut; mv cut bundle/pki/apiserver.crt",
        75,
        "pki/apiserver.crt is not used: it contains a PEM block that is indented, cut off or follows a byte order mark",
        SIGN),
    import("one certificate forgotten",
        "rm bundle/scheduler.conf.crt",
        75,
        "no certificate for its key was imported; have its CSR signed and import again",
        "sign scheduler.conf bundle/scheduler.conf.crt"),
    import("nothing signed",
        "find bundle -name '*.crt' -delete",
        65,
        "the import contains no certificate for any request of this node; put each signed certificate next to its CSR as .crt and run again",
        "cd bundle; CA=../ca sh README 2>/dev/null"),
    import("directory that others can change",
        "chmod 777 bundle",
        65,
        "so that another user can change it (chmod go-w @/bundle)",
        "chmod go-w $D/bundle"),
    Situation {
        name: "names without .crt",
        mistake: "mkdir -m 755 signed; cp bundle/pki/apiserver.crt signed/apiserver.txt",
        command: "nodepki csr import signed $N",
        code: 78,
        message: "contains no certificate; apiserver.txt is not read (name each certificate as its CSR, with .crt instead of .csr)",
        fix: "rm -r signed; mkdir -m 755 signed; cp -r bundle/. signed/",
        corrected: "",
    },
    Situation {
        name: "directory misspelt",
        mistake: "",
        command: "nodepki csr import bundel $N",
        code: 78,
        message: "bundel: does not exist (name the directory with the signed certificates)",
        fix: "",
        corrected: IMPORT,
    },
    Situation {
        name: "certificate instead of its directory",
        mistake: "",
        command: "nodepki csr import bundle/pki/apiserver.crt $N",
        code: 78,
        message: "@/bundle/pki/apiserver.crt is not a directory (name the directory with the signed certificates)",
        fix: "",
        corrected: IMPORT,
    },
    Situation {
        name: "export to a file",
        mistake: "",
        command: "nodepki csr export bundle/README $N",
        code: 78,
        message: "@/bundle/README is not a directory (name another directory)",
        fix: "",
        corrected: "nodepki csr export bundle $N",
    },
    Situation {
        name: "bundle of another node",
        mistake: "mkdir other; cp -a ca other; mkdir -p other/root/etc/kubernetes; sed 's/cp1/cp9/; s/192.0.2.11/192.0.2.19/' kubeadm.yaml > other/kubeadm.yaml; for c in ca front-proxy-ca etcd/ca; do install -D -m 644 ca/$c.crt other/root/etc/kubernetes/pki/$c.crt; done",
        command: "nodepki csr import bundle --root $D/other/root --kubeadm-config $D/other/kubeadm.yaml",
        code: 65,
        message: "nodepki: the import contains the requests of node cp1, and this node is cp9: import it there, or name the directory with the requests of cp9",
        fix: "",
        corrected: IMPORT,
    },
    Situation {
        name: "export over the bundle of another node",
        mistake: "mkdir other; cp -a ca other; mkdir -p other/root/etc/kubernetes; sed 's/cp1/cp9/; s/192.0.2.11/192.0.2.19/' kubeadm.yaml > other/kubeadm.yaml; for c in ca front-proxy-ca etcd/ca; do install -D -m 644 ca/$c.crt other/root/etc/kubernetes/pki/$c.crt; done",
        command: "nodepki csr export bundle --root $D/other/root --kubeadm-config $D/other/kubeadm.yaml",
        code: 65,
        message: "bundle: it contains the requests of node cp1, which those of cp9 would overwrite (name another directory)",
        fix: "",
        corrected: IMPORT,
    },
    Situation {
        name: "export over the bundle of a node with the same name",
        mistake: "rm -r root/var/lib/nodepki; find bundle -name '*.crt' -delete",
        command: "nodepki csr export bundle $N",
        code: 65,
        message: "bundle: pki/apiserver.csr has a key that this node neither uses nor keeps for a pending request: it may be of another node with this name, or an earlier one of this node (name another directory, or remove this one if its requests are not needed any more)",
        fix: "",
        corrected: "nodepki csr export other $N",
    },
    Situation {
        name: "export with another address over certificates that are not imported",
        mistake: "sed 's/192.0.2.11/192.0.2.12/' kubeadm.yaml > other.yaml",
        command: "nodepki csr export bundle --accept-address-change --root $D/root --kubeadm-config $D/other.yaml",
        code: 65,
        message: "pki/apiserver.crt is the certificate for pki/apiserver.csr, which another request would replace, and it is not installed on this node (import the directory, or name another one)",
        fix: "",
        corrected: IMPORT,
    },
    Situation {
        name: "key algorithm changed after the requests were signed",
        mistake: "sed 's/ECDSA-P256/ECDSA-P384/' kubeadm.yaml > other.yaml; cp -r root/var/lib/nodepki before",
        command: "nodepki csr import bundle --root $D/root --kubeadm-config $D/other.yaml",
        code: 65,
        message: "nodepki: the requests were exported for another configuration, and certificates for them would be refused: apiserver, apiserver-kubelet-client, ",
        fix: "diff -r root/var/lib/nodepki/pending before/pending",
        corrected: IMPORT,
    },
    Situation {
        name: "name added after the requests were signed",
        mistake: "echo 'apiServer: {certSANs: [x.example.com]}' >> kubeadm.yaml",
        command: IMPORT,
        code: 65,
        message: "refused: apiserver (SAN DNS:x.example.com is missing); nothing was changed; undo the change and run again, or have other requests signed: nodepki csr export DIR, with another directory",
        fix: "nodepki csr export other $N; cd other; CA=../ca sh README 2>/dev/null",
        corrected: "nodepki csr import other $N",
    },
    Situation {
        name: "bundle of an earlier export for another configuration",
        mistake: "sed 's/192.0.2.11/192.0.2.12/' kubeadm.yaml > other.yaml; nodepki csr export root/other --accept-address-change --root $D/root --kubeadm-config $D/other.yaml",
        command: "nodepki csr import bundle --root $D/root --kubeadm-config $D/other.yaml",
        code: 75,
        message: "have the exported requests signed, then run nodepki csr import @/root/other --root",
        fix: "cd root/other; CA=../../ca sh README 2>/dev/null",
        corrected: "nodepki csr import root/other --root $D/root --kubeadm-config $D/other.yaml",
    },
    Situation {
        name: "export into the node's own directory",
        mistake: "",
        command: "nodepki csr export root/etc/kubernetes/pki $N",
        code: 78,
        message: "/etc/kubernetes/pki is for files of the node itself (name another directory)",
        fix: "",
        corrected: IMPORT,
    },
    Situation {
        name: "export into a directory whose part others can change",
        mistake: "rm -r bundle/pki/*; chmod 777 bundle/pki; sed 's/192.0.2.11/192.0.2.12/' kubeadm.yaml > other.yaml; cp -r root/var/lib/nodepki before",
        command: "nodepki csr export bundle --accept-address-change --root $D/root --kubeadm-config $D/other.yaml",
        code: 65,
        message: "bundle/pki: owned by",
        fix: "diff -r root/var/lib/nodepki/pending before/pending && cmp root/var/lib/nodepki/node.json before/node.json",
        corrected: "nodepki csr export other $N",
    },
    Situation {
        name: "export into a directory with other files",
        mistake: "mkdir -m 755 other; echo '# My project' > other/README",
        command: "nodepki csr export other $N",
        code: 65,
        message: "other: README is not of an earlier export of this node, and the export would overwrite it (name another directory)",
        fix: "",
        corrected: "nodepki csr export third $N",
    },
    Situation {
        name: "directory of the system",
        mistake: "mkdir -p -m 755 system/sub; touch system/adduser.conf; chown 4242 system/sub",
        command: "nodepki csr import system $N",
        code: 78,
        message: "system contains neither requests nor certificates, and a file that an import cannot read: @/system/sub: owned by user 4242 and group 0 with mode 0755, so that another user can change it (chown root:root @/system/sub); name the directory with the signed certificates",
        fix: "",
        corrected: IMPORT,
    },
];

/// Scripts of a bundle that is for another node, or that was changed.
#[rustfmt::skip]
const SCRIPTS: &[Situation] = &[
    Situation {
        name: "CA of another cluster",
        mistake: "rm -r bundle; nodepki csr export bundle $N; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=other -keyout ca/other.key -out ca/other.crt 2>/dev/null; cp -a ca wrong; cp ca/other.crt wrong/ca.crt; cp ca/other.key wrong/ca.key",
        command: "cd bundle; CA=../wrong sh README",
        code: 1,
        message: "../wrong/ca.crt is not the CA of this node, whose public key has the SHA-256 ",
        fix: "",
        corrected: "cd bundle; CA=../ca sh README 2>/dev/null; cd ..; nodepki csr import bundle $N",
    },
    Situation {
        name: "CA without its key",
        mistake: "rm -r bundle; nodepki csr export bundle $N; cp -a ca partial; rm partial/front-proxy-ca.key",
        command: "cd bundle; CA=../partial sh README",
        code: 1,
        message: "../partial/front-proxy-ca.key does not exist; nothing was signed",
        fix: "[ -z \"$(find bundle -name '*.crt')\" ]",
        corrected: "cd bundle; CA=../ca sh README 2>/dev/null; cd ..; nodepki csr import bundle $N",
    },
    Situation {
        name: "CA with the key of another CA",
        mistake: "rm -r bundle; nodepki csr export bundle $N; cp -a ca mixed; cp ca/ca.key mixed/front-proxy-ca.key",
        command: "cd bundle; CA=../mixed sh README",
        code: 1,
        message: "../mixed/front-proxy-ca.key is not the key of ../mixed/front-proxy-ca.crt; nothing was signed",
        fix: "[ -z \"$(find bundle -name '*.crt')\" ]",
        corrected: "cd bundle; CA=../ca sh README 2>/dev/null; cd ..; nodepki csr import bundle $N",
    },
    Situation {
        name: "request changed after the export",
        mistake: "rm -r bundle; nodepki csr export bundle $N; client; cp bundle/pki/apiserver.csr saved; cp client.csr bundle/pki/apiserver.csr",
        command: "cd bundle; CA=../ca sh README",
        code: 1,
        message: "pki/apiserver.csr was changed after its export; nothing was signed",
        fix: "cp saved bundle/pki/apiserver.csr",
        corrected: "cd bundle; CA=../ca sh README 2>/dev/null; cd ..; nodepki csr import bundle $N",
    },
    Situation {
        name: "bundle of another node than expected",
        mistake: "rm -r bundle; nodepki csr export bundle $N",
        command: "cd bundle; CA=../ca NODE=cp2 sh README",
        code: 1,
        message: "this bundle is for node cp1; nothing was signed",
        fix: "",
        corrected: "cd bundle; CA=../ca NODE=cp1 CLUSTER=kubernetes sh README 2>/dev/null",
    },
    Situation {
        name: "script without the CAs",
        mistake: "rm -r bundle; nodepki csr export bundle $N",
        command: "cd bundle; sh README",
        code: 2,
        message: "CA: set it to the directory of the CAs",
        fix: "",
        corrected: "cd bundle; CA=../ca sh README 2>/dev/null",
    },
];

/// Creates a node with pending requests and a bundle of their certificates.
fn exported() -> Node {
    let node = Node::new();
    let script = "nodepki csr export bundle $N; cd bundle; CA=../ca sh README 2>/dev/null";
    shell(&node.outside(""), script).done();
    node
}

#[test]
fn imports() {
    follow_scripts(&exported(), IMPORTS);
}

#[test]
fn script_of_bundle_verifies_node_and_authorities() {
    let node = exported();
    let readme = std::fs::read_to_string(node.outside("bundle/README")).unwrap();
    assert!(
        readme.starts_with(
            "# Certificate signing requests of node cp1 of cluster kubernetes, by nodepki."
        ),
        "{readme}"
    );
    follow_scripts(&node, SCRIPTS);
}

#[test]
fn export_says_which_ca_certificates_the_import_needs() {
    let node = Node::new();
    let dir = node.outside("");
    shell(&dir, "rm root/etc/kubernetes/pki/etcd/ca.crt").done();
    let missing = node.path("/etc/kubernetes/pki/etcd/ca.crt");
    shell(&dir, "nodepki csr export bundle $N").done().says(&format!(
        "as .crt, put the CA certificates, which this node does not have, into {}, then run nodepki csr import",
        missing.display()
    ));
    let signed = "cp ca/etcd/ca.crt root/etc/kubernetes/pki/etcd/; cd bundle; CA=../ca sh README 2>/dev/null";
    shell(&dir, signed).done();
    shell(&dir, IMPORT).done();
}

/// Copies the command from the output of `csr export` into a shell.
#[test]
fn command_after_export_works_as_printed() {
    let node = Node::new();
    let dir = node.outside("");
    for bundle in ["bundle", "with space"] {
        let exported = shell(&dir, &format!("nodepki csr export '{bundle}' $N"));
        exported.done();
        let (_, command) = exported.stdout.trim_end().rsplit_once("then run ").unwrap();
        assert!(command.starts_with("nodepki csr import "), "{command}");
        shell(
            &dir,
            &format!("cd '{bundle}'; CA=../ca sh README 2>/dev/null"),
        )
        .done();
        shell(&dir, command).done();
        assert!(node.path("/etc/kubernetes/pki/apiserver.crt").exists());
        std::fs::remove_dir_all(node.path("/etc/kubernetes")).unwrap();
        let restore = "for c in ca front-proxy-ca etcd/ca; do install -D -m 644 ca/$c.crt root/etc/kubernetes/pki/$c.crt; done";
        shell(&dir, restore).done();
    }
}
