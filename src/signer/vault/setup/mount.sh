
# ---- authority @AUTHORITY_TEXT@: PKI engine @MOUNT_TEXT@
"$VAULT" secrets list -format=json | grep -qF @LISTED@ ||
  "$VAULT" secrets enable -path=@MOUNT@ -max-lease-ttl=@LIFETIME@ pki
# The CA must be provided. Without one, the script prints these commands at its end.
"$VAULT" list @MOUNT@/issuers >/dev/null 2>&1 || without_ca="$without_ca
$(
printf '%s: one of\n' @MOUNT@
printf '  %s %s\n' "$VAULT" @GENERATE@
printf '  %s %s\n' "$VAULT" @IMPORT@
)"
# A new revocation list every 15 minutes, valid for three days. Without auto_rebuild it expires three days after the last
# revocation; with the default grace period a revocation is published days later.
put @MOUNT@/config/crl expiry=72h auto_rebuild=true auto_rebuild_grace_period=71h45m
