
# ---- login: @TITLE_TEXT@
"$VAULT" auth list -format=json | grep -qF @LISTED@ ||
  "$VAULT" auth enable -path=@MOUNT@ @KIND@
