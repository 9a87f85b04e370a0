
# ---- authority @AUTHORITY_TEXT@: PKI engine @MOUNT_TEXT@
"$VAULT" secrets list -format=json | grep -qF @LISTED@ ||
  "$VAULT" secrets enable -path=@MOUNT@ -max-lease-ttl=@LIFETIME@ pki
# The CA must be provided. If the engine has none yet, run one of
#   "$VAULT" write @MOUNT_WORD@/root/generate/internal common_name=@NAME_WORD@ key_type=ec key_bits=256 ttl=@LIFETIME@ exclude_cn_from_sans=true
#   "$VAULT" write @MOUNT_WORD@/issuers/import/bundle pem_bundle=@ca-and-key.pem
"$VAULT" list @MOUNT@/issuers >/dev/null 2>&1 || without_ca="$without_ca "@MOUNT@
# A new revocation list every 15 minutes, valid for three days. Without auto_rebuild it expires three days after the last
# revocation; with the default grace period a revocation is published days later.
put @MOUNT@/config/crl expiry=72h auto_rebuild=true auto_rebuild_grace_period=71h45m
