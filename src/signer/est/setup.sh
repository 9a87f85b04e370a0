#!/bin/sh
# Prepares EST servers for node @NODE@ of cluster @CLUSTER@.
#
# The profile of each label must issue exactly these certificates, with subject and alternative names from the request, and
# the credential of this node must be allowed these names and no others: it could otherwise obtain system:masters.
@TABLE@
# For libest and other servers that sign with `openssl ca`, this script writes a directory for each label, with the profile
# and the state of a CA. Run it where these directories belong; existing files are not changed. The certificate and the
# private key of each CA must be provided there, as ca.pem and ca.key. `openssl ca` cannot restrict names: the server's
# login has to. libest is started with
#   EST_OPENSSL_CACONFIG=DIRECTORY/ca.cnf EST_CACERTS_RESP=CHAIN.pem EST_TRUSTED_CERTS=CLIENTS.pem estserver ...
# A person signs a request with
#   openssl ca -config DIRECTORY/ca.cnf -batch -notext -in REQUEST.csr -out CERTIFICATE.crt
set -eu
umask 077
# Writes the profile of a label: directory, days, extended usages or nothing.
profile() {
  mkdir -p "$1/issued"
  directory=$(cd "$1" && pwd)
  [ -e "$1/index.txt" ] || : >"$1/index.txt"
  [ -e "$1/serial" ] || openssl rand -hex 16 >"$1/serial"
  cat >"$1/ca.cnf.new" <<END
[ca]
default_ca = authority
[authority]
database = $directory/index.txt
serial = $directory/serial
new_certs_dir = $directory/issued
certificate = $directory/ca.pem
private_key = $directory/ca.key
default_days = $2
default_md = sha256
policy = subject
email_in_dn = no
# A node that requests a certificate again has the same subject.
unique_subject = no
# Alternative names, and usages if they are not set below.
copy_extensions = copy
x509_extensions = leaf
[subject]
organizationName = optional
commonName = supplied
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature,keyEncipherment
${3:+extendedKeyUsage = $3}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[req]
distinguished_name = empty
[empty]
END
  if [ ! -e "$1/ca.cnf" ] || cmp -s "$1/ca.cnf" "$1/ca.cnf.new"; then
    mv "$1/ca.cnf.new" "$1/ca.cnf"
  else
    echo "$1/ca.cnf exists: compare it with $1/ca.cnf.new" >&2
  fi
}
@PROFILES@
@COPIED@
