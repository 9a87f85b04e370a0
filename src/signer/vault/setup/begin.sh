#!/bin/sh
# Sets Vault or OpenBao up for node @NODE_TEXT@ of cluster @CLUSTER_TEXT@ (signers @SIGNERS_TEXT@). Run it as an
# administrator of the server, once for each node. It can be run again without harm.
# VAULT is the program: vault, or bao.
set -eu
VAULT=${VAULT:-vault}

# Writes an object and prints one line.
put() {
    "$VAULT" write "$@" >/dev/null
    echo "written: $1"
}
