#!/bin/sh
# Sets Vault or OpenBao up for node @NODE_TEXT@ of cluster @CLUSTER_TEXT@ (signers @SIGNERS_TEXT@). Run it as an
# administrator of the server, once for each node. It can be run again without harm. It ends with 75 if a CA is missing.
# VAULT is the program: vault, or else bao, unless it is set.
set -eu
VAULT=${VAULT:-$(command -v vault || command -v bao || echo vault)}
without_ca=

# Writes an object and prints one line.
put() {
    "$VAULT" write "$@" >/dev/null
    echo "written: $1"
}
