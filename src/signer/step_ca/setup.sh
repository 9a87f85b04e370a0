#!/bin/sh
# Sets a step-ca up for the control-plane nodes of cluster @CLUSTER@. Run it where `step` may administer that step-ca:
#   sh SCRIPT @CHOICES@
# A step-ca has one root, so each of kubeadm's authorities needs its own.
#
# A holder of a key that signs tokens for the provisioner can obtain every name that Kubernetes knows, system:masters
# included: use the roots of X5C or the key of JWK for nothing else.
#
# "crl": {"enabled": true, "generateOnRevoke": true} in its ca.json makes it publish revocation lists.
set -eu

# Without this template step-ca drops organizations, gives every certificate both server and client authentication,
# and adds the common name to certificates without alternative names.
TEMPLATE=${TEMPLATE:-nodepki.tpl}
cat > "$TEMPLATE" <<'END'
@TEMPLATE@END

case "${1:-@DEFAULT@}" in
@SIGNERS@*)
  echo "name the signer whose step-ca this is: @NAMES@" >&2
  exit 64
  ;;
esac
# Without remote administration, step-ca reads the change when it gets SIGHUP.
