#!/bin/sh
# Sets Vault or OpenBao up for node @NODE_TEXT@ of cluster @CLUSTER_TEXT@ (signers @SIGNERS_TEXT@). Run it as an
# administrator of the server, once for each node. It can be run again without harm.
# VAULT is the program: vault, or else bao, unless it is set.
set -eu
VAULT=${VAULT:-$(command -v vault || command -v bao || echo vault)}

# Writes an object and prints one line.
put() {
    "$VAULT" write "$@" >/dev/null
    echo "written: $1"
}
