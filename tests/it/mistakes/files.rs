//! Mistakes in the files that the settings name: CA files, credentials and client certificates.

use super::{Situation, follow_scripts_after, shell};
use crate::node::Node;

/// `config check` of a signer with these files; warnings count.
const CHECK: &str = "nodepki config check --strict --config config.yaml $N";

const fn file(
    name: &'static str,
    mistake: &'static str,
    message: &'static str,
    fix: &'static str,
) -> Situation {
    Situation {
        name,
        mistake,
        command: CHECK,
        code: 78,
        message,
        fix,
        corrected: "",
    }
}

const TOKEN: &str = "vault \"{tokenFile: $D/token}\" \"caFile: $D/server-ca.pem\"\n";

#[rustfmt::skip]
const CA_FILES: &[Situation] = &[
    file("private key",
        "cp ca/ca.key server-ca.pem; chmod 644 server-ca.pem",
        "signers.corp.vault.tls.caFile: @/server-ca.pem: it contains a private key, which does not belong into this file (put the certificate of the server's CA there, in PEM)",
        "cp ca/ca.crt server-ca.pem"),
    file("certificate with its private key",
        "cat ca/ca.crt ca/ca.key > server-ca.pem",
        "it contains a private key",
        "cp ca/ca.crt server-ca.pem"),
    file("DER",
        "openssl x509 -in ca/ca.crt -outform der -out server-ca.pem",
        "it contains a certificate in DER, not in PEM (openssl x509 -inform der -in FILE -out FILE.pem converts it)",
        "openssl x509 -inform der -in server-ca.pem -out server-ca.pem.pem; mv server-ca.pem.pem server-ca.pem"),
    file("PKCS#7",
        "openssl crl2pkcs7 -nocrl -certfile ca/ca.crt -out server-ca.pem",
        "it contains a PKCS#7 container (openssl pkcs7 -print_certs -in FILE -out FILE.pem converts it)",
        "openssl pkcs7 -print_certs -in server-ca.pem -out server-ca.pem.pem; mv server-ca.pem.pem server-ca.pem"),
    file("certificate signing request",
        "openssl req -new -key ca/ca.key -subj /CN=vault -out server-ca.pem",
        "it contains a certificate signing request, not the certificate that was issued for it (put the certificate of the server's CA there, in PEM)",
        "cp ca/ca.crt server-ca.pem"),
    file("public key",
        "openssl pkey -in ca/ca.key -pubout -out server-ca.pem",
        "it contains a public key (put the certificate of the server's CA there, in PEM)",
        "cp ca/ca.crt server-ca.pem"),
    file("page of a proxy",
        "echo '<html>403 Forbidden</html>' > server-ca.pem",
        "it contains an HTML or XML page (put the certificate of the server's CA there, in PEM)",
        "cp ca/ca.crt server-ca.pem"),
    file("base64 of PEM",
        "base64 -w0 ca/ca.crt > server-ca.pem",
        "it contains PEM text in base64 (base64 -d FILE decodes it)",
        "base64 -d server-ca.pem > decoded; mv decoded server-ca.pem"),
    file("empty file",
        ": > server-ca.pem",
        "@/server-ca.pem: it does not contain a certificate",
        "cp ca/ca.crt server-ca.pem"),
    file("file cut off",
        "head -c 300 ca/ca.crt > server-ca.pem",
        "(put the certificate of the server's CA there, in PEM)",
        "cp ca/ca.crt server-ca.pem"),
    file("absent file",
        "rm server-ca.pem",
        "signers.corp.vault.tls.caFile: @/server-ca.pem does not exist (put the certificate of the server's CA there)",
        "cp ca/ca.crt server-ca.pem"),
    file("directory",
        "rm server-ca.pem; mkdir server-ca.pem",
        "signers.corp.vault.tls.caFile: @/server-ca.pem is a directory (name the file in it, or remove it with rmdir and write the file)",
        "rmdir server-ca.pem; cp ca/ca.crt server-ca.pem"),
    file("leaf",
        "openssl req -x509 -key ca/ca.key -subj /CN=leaf -addext basicConstraints=critical,CA:FALSE -out server-ca.pem",
        "signers.corp.vault.tls.caFile: @/server-ca.pem: it contains no CA certificate, and only a server with exactly this certificate is trusted (put the certificate of the server's CA there)",
        "cp ca/ca.crt server-ca.pem"),
    file("expired CA",
        "openssl x509 -in ca/ca.crt -signkey ca/ca.key -days -1 -out server-ca.pem",
        "signers.corp.vault.tls.caFile: @/server-ca.pem: its CA certificate expired at ",
        "cp ca/ca.crt server-ca.pem"),
    file("CA of an authority is a private key",
        "vault \"{tokenFile: $D/token}\" \"caFile: $D/server-ca.pem\" \", trust: {file: $D/trust.pem}\"; cp ca/ca.key trust.pem; chmod 644 trust.pem",
        "authorities.ca.trust.file: @/trust.pem: it contains a private key (put the certificate of the CA there)",
        "cp ca/ca.crt trust.pem"),
    file("CA of an authority is a leaf",
        "vault \"{tokenFile: $D/token}\" \"caFile: $D/server-ca.pem\" \", trust: {file: $D/trust.pem}\"; openssl req -x509 -key ca/ca.key -subj /CN=leaf -addext basicConstraints=critical,CA:FALSE -out trust.pem",
        "is not a CA certificate, and kubeadm uses the first one as the CA (put the certificate of the CA there)",
        "cp ca/ca.crt trust.pem"),
];

#[rustfmt::skip]
const CREDENTIALS: &[Situation] = &[
    file("absent token",
        "rm token",
        "signers.corp.vault.auth.tokenFile: @/token does not exist (put the credential there, mode 0600)",
        "echo a-token > token; chmod 600 token"),
    file("absent role_id",
        "vault \"{appRole: {roleIDFile: $D/role, secretIDFile: $D/token}}\" \"caFile: $D/server-ca.pem\"",
        "signers.corp.vault.auth.appRole.roleIDFile: @/role does not exist (write its content there)",
        "echo cp1 > role"),
    file("directory in place of the token",
        "rm token; mkdir token",
        "signers.corp.vault.auth.tokenFile: @/token is a directory (name the file in it, or remove it with rmdir and write the file)",
        "rmdir token; echo a-token > token; chmod 600 token"),
    file("token that every user can read",
        "chmod 644 token",
        "signers.corp.vault.auth.tokenFile: mode 0644 lets other users read or change the secret (chmod 600 @/token)",
        "chmod 600 $D/token"),
    file("empty token",
        ": > token",
        "signers.corp.vault.auth.tokenFile: @/token: the file is empty (write the credential there)",
        "echo a-token > token"),
    file("token and another line",
        "printf 'a-token\\nlease 768h\\n' > token",
        "@/token: the file has several lines (write only the credential, in one line)",
        "head -n 1 token > first; cat first > token"),
    file("token in quotation marks",
        "echo '\"a-token\"' > token",
        "@/token: the credential is in quotation marks (remove them)",
        "tr -d '\"' < token > bare; cat bare > token"),
    file("plain secret_id with wrapped: true",
        "vault \"{appRole: {roleID: cp1, secretIDFile: $D/secret, wrapped: true}}\" \"caFile: $D/server-ca.pem\"; echo 6a4dcc5f-1b2c-4d3e-8f90-0123456789ab > secret; chmod 600 secret",
        "signers.corp.vault.auth.appRole.secretIDFile: @/secret contains a plain secret_id, not a wrapping token (remove auth.appRole.wrapped: true, or deliver a wrapped secret_id)",
        "sed -i 's/, wrapped: true//' config.yaml"),
    file("wrapping token without wrapped: true",
        "vault \"{appRole: {roleID: cp1, secretIDFile: $D/secret}}\" \"caFile: $D/server-ca.pem\"; echo hvs.CAESIJ3Z > secret; chmod 600 secret",
        "signers.corp.vault.auth.appRole.secretIDFile: @/secret contains a token, not a secret_id (set auth.appRole.wrapped: true if it is a wrapping token, or write the secret_id there)",
        "sed -i 's/secretIDFile:/wrapped: true, secretIDFile:/' config.yaml"),
    file("output of a command in place of the role_id",
        "vault \"{appRole: {roleIDFile: $D/role, secretIDFile: $D/token}}\" \"caFile: $D/server-ca.pem\"; echo 'role_id  6a4dcc5f' > role",
        "signers.corp.vault.auth.appRole.roleIDFile: @/role contains more than a role_id (write only the role_id there)",
        "echo 6a4dcc5f > role"),
    file("client certificate of another key",
        "vault '{certificate: {}}' \"caFile: $D/server-ca.pem, certificate: $D/client.crt, key: $D/client.key\"; client; openssl ecparam -name prime256v1 -genkey -noout -out client.key",
        "signers.corp.vault.tls.certificate: @/client.crt does not belong to the key in @/client.key (put a certificate and its key there)",
        "client"),
    file("expired client certificate",
        "vault '{certificate: {}}' \"caFile: $D/server-ca.pem, certificate: $D/client.crt, key: $D/client.key\"; client -1",
        "signers.corp.vault.tls.certificate: @/client.crt: the certificate expired at ",
        "client"),
    file("request in place of the client certificate",
        "vault '{certificate: {}}' \"caFile: $D/server-ca.pem, certificate: $D/client.csr, key: $D/client.key\"; client",
        "@/client.csr: it contains a certificate signing request, not the certificate that was issued for it (put the client certificate there, in PEM)",
        "cp client.crt client.csr"),
    file("client certificate in place of its key",
        "vault '{certificate: {}}' \"caFile: $D/server-ca.pem, certificate: $D/client.crt, key: $D/copy.crt\"; client; cp client.crt copy.crt; chmod 600 copy.crt",
        "@/copy.crt: the file does not contain a private key without a passphrase (write a PKCS#8, PKCS#1 or SEC1 key in PEM)",
        "cat client.key > copy.crt"),
    file("key with a passphrase",
        "vault '{certificate: {}}' \"caFile: $D/server-ca.pem, certificate: $D/client.crt, key: $D/client.key\"; client; openssl pkcs8 -topk8 -in client.key -out secret.key -passout pass:secret; cat secret.key > client.key",
        "@/client.key: the file does not contain a private key without a passphrase",
        "openssl pkey -in client.key -passin pass:secret -out plain.key; cat plain.key > client.key"),
    file("only one half of a client certificate",
        "vault '{certificate: {}}' \"caFile: $D/server-ca.pem, certificate: $D/client.crt\"; client",
        "signers.corp.vault.tls: has certificate alone (name both certificate and key; they may be the same file)",
        "sed -i \"s|certificate: $D/client.crt|&, key: $D/client.key|\" config.yaml"),
];

#[rustfmt::skip]
const PROGRAMS: &[Situation] = &[
    file("absent program",
        "plugin $D/sign",
        "signers.corp.exec.command: the command @/sign does not exist (install it there, or correct the path)",
        "cp /bin/true sign; chmod 755 sign"),
    file("program that is not executable",
        "plugin $D/sign; cp /bin/true sign; chmod 600 sign",
        "signers.corp.exec.command: the command @/sign is not run: it is not executable (make it executable: chmod 0755",
        "chmod 0755 sign"),
    file("program that every user can change",
        "plugin $D/sign; cp /bin/true sign; chmod 777 sign",
        "signers.corp.exec.command: the command @/sign is not run: @/sign is writable by others (mode 0777)",
        "chmod go-w sign"),
    file("program with its arguments",
        "plugin \"'$D/sign --verbose'\"; cp /bin/true sign; chmod 755 sign",
        "signers.corp.exec.command: the command @/sign --verbose does not exist (name only the program in `command`, and its arguments in `args`)",
        "sed -i \"s|'$D/sign --verbose'|$D/sign, args: [--verbose]|\" config.yaml"),
    file("program from Windows",
        "plugin $D/sign; printf '#!/bin/sh\\r\\nexit 0\\r\\n' > sign; chmod 755 sign",
        "signers.corp.exec.command: the command @/sign is not run: its lines end with CR and LF (remove the CRs: sed -i 's/\\r$//' @/sign)",
        "sed -i 's/\\r$//' sign"),
    file("program without its interpreter",
        "plugin $D/sign; printf '#!/usr/bin/absent -u\\n' > sign; chmod 755 sign",
        "signers.corp.exec.command: the command @/sign is not run: its interpreter /usr/bin/absent does not exist (install it, or correct the first line of the program)",
        "cp /bin/true sign"),
    file("directory in place of the program",
        "plugin $D/sign; mkdir sign; chmod 755 sign",
        "signers.corp.exec.command: the command @/sign is not run: it is not a regular file",
        "rmdir sign; cp /bin/true sign; chmod 755 sign"),
    Situation {
        name: "settings in a file that is not read",
        mistake: "mkdir -p root/etc/nodepki/config.d
            printf '%s\\n' 'apiVersion: nodepki.io/v1alpha1' 'kind: NodePKIConfiguration' 'wait: 10s' > root/etc/nodepki/config.d/extra.yml
            chmod -R go-w root/etc",
        command: "nodepki config check --strict $N",
        code: 78,
        message: "@/root/etc/nodepki/config.d/extra.yml: is not read: the name of a settings file ends with .yaml (mv @/root/etc/nodepki/config.d/extra.yml @/root/etc/nodepki/config.d/extra.yaml)",
        fix: "mv $D/root/etc/nodepki/config.d/extra.yml $D/root/etc/nodepki/config.d/extra.yaml",
        corrected: "",
    },
];

/// Creates a node whose directory contains the settings of a signer with its files.
fn prepared() -> Node {
    let node = Node::new();
    let setup = "echo a-token > token; chmod 600 token; cp ca/ca.crt server-ca.pem";
    assert_eq!(shell(&node.outside(""), setup).code, Some(0));
    node
}

fn follow(situations: &[Situation]) {
    follow_scripts_after(&prepared(), TOKEN, situations);
}

#[test]
fn ca_files() {
    follow(CA_FILES);
}

#[test]
fn credential_files() {
    follow(CREDENTIALS);
}

#[test]
fn programs_and_settings_files() {
    follow(PROGRAMS);
}

/// A pin is accepted as OpenSSL and kubeadm print it.
#[test]
fn accepts_pins_in_every_usual_form() {
    let node = prepared();
    let script = format!(
        "{TOKEN}
        pin=$(openssl x509 -in ca/ca.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum | cut -d ' ' -f 1)
        colons=$(echo $pin | sed 's/../&:/g; s/:$//' | tr a-f A-F)
        for form in $pin sha256:$pin $colons; do
            vault \"{{tokenFile: $D/token}}\" \"caFile: $D/server-ca.pem\" \", trust: {{sha256: ['$form']}}\"
            {CHECK}
        done"
    );
    shell(&node.outside(""), &script).done();
}
