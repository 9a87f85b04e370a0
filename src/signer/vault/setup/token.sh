
# ---- login: a token
# The process that writes it there, with mode 0600, also renews it:
#   "$VAULT" token create -orphan -no-default-policy -policy=@POLICY_WORD@ -period=24h -field=token   # into @FILE_TEXT@
