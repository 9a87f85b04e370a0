#!/bin/sh
# A signer for nodepki, as a start for your own: speaks signer.nodepki.dev/v1 (docs/signers/exec.md) and signs with OpenSSL.
# Needs jq and openssl. Replace `issue` by a request to your CA: a node must not have the keys of its CAs.
#
#   signer.sh DIRECTORY VERB
#
# DIRECTORY has the CAs as kubeadm names them (ca.crt, ca.key, etcd/ca.crt, …), and keeps each answer in issued/.
set -eu
umask 077
dir=$1 verb=$2
api=signer.nodepki.dev/v1
request=$(cat)

field() { printf '%s' "$request" | jq -r "$1"; }

# Prints the path of the CA without .crt and .key. An unknown name must never become a path.
authority() {
    case $(field .ca) in
        ca) echo "$dir/ca" ;;
        etcd-ca) echo "$dir/etcd/ca" ;;
        front-proxy-ca) echo "$dir/front-proxy-ca" ;;
        *) echo "unknown ca: $(field .ca)" >&2 && exit 1 ;;
    esac
}

# Prints a SignResponse with the fields in the arguments of jq.
respond() {
    jq -n --arg api "$api" --arg id "$id" "$@" \
        '{apiVersion: $api, kind: "SignResponse", requestId: $id} + $ARGS.named | del(.api, .id)'
}

# Writes the certificate into the file $1. The content comes from the request, never from extensions of the CSR.
issue() {
    ca=$(authority)
    work=$(mktemp -d)
    trap 'rm -r "$work"' EXIT
    field .csrPem >"$work/csr"
    field '
        {"digital signature": "digitalSignature", "key encipherment": "keyEncipherment",
         "server auth": "serverAuth", "client auth": "clientAuth"} as $names
        | ([.dnsNames[] | "DNS:" + .] + [.ipAddresses[] | "IP:" + .]) as $sans
        | if any($sans[]; test("^(DNS|IP):[A-Za-z0-9.:*_-]+$") | not) then error("not a name") else . end
        | [.usages[] | $names[.]] as $usages
        | "basicConstraints = critical,CA:false",
          "authorityKeyIdentifier = keyid",
          "keyUsage = critical," + ($usages | map(select(endswith("Auth") | not)) | join(",")),
          "extendedKeyUsage = " + ($usages | map(select(endswith("Auth"))) | join(",")),
          if $sans == [] then empty else "subjectAltName = " + ($sans | join(",")) end' >"$work/extensions"
    # A random serial number: a counter in a file would be a race between parallel calls.
    openssl x509 -req -in "$work/csr" -CA "$ca.crt" -CAkey "$ca.key" -extfile "$work/extensions" \
        -set_serial "0x$(openssl rand -hex 16)" -days "$(field '.durationSeconds / 86400 | ceil')" \
        -out "$work/crt" 2>"$work/log" || { cat "$work/log" >&2 && exit 1; }
    # In one step: a parallel call for the same request sees the whole answer or none.
    cp "$work/crt" "$1.$$"
    mv "$1.$$" "$1"
}

case $verb in
    info)
        jq -n --arg api "$api" '{kind: "InfoResponse", apiVersions: [$api], capabilities: {resubmit: "idempotent"}}'
        ;;
    trust)
        jq -n --arg api "$api" --rawfile ca "$(authority).crt" '{apiVersion: $api, kind: "TrustResponse", caPem: $ca}'
        ;;
    sign)
        id=$(field .requestId)
        case $id in '' | *[!0-9a-f]*) echo "not a request ID" >&2 && exit 1 ;; esac
        mkdir -p "$dir/issued"
        # The same request gets the same answer, also after a crash between issuing and answering.
        [ -e "$dir/issued/$id" ] || issue "$dir/issued/$id"
        respond --arg result issued --rawfile certificatePem "$dir/issued/$id"
        ;;
    poll)
        # This signer never answers `pending`.
        id=$(field .requestId)
        respond --arg result gone
        ;;
    *)
        echo "unknown verb: $verb" >&2
        exit 2
        ;;
esac
