# With the key of the issuer of the node's token, and the claims that only this node has:
#   "$VAULT" write @CONFIG_WORD@ jwt_validation_pubkeys=@issuer.pub
#   "$VAULT" write @ROLE_WORD@ role_type=jwt user_claim=sub bound_subject=... bound_audiences=... token_policies=@POLICY_WORD@ token_no_default_policy=true token_ttl=1h
