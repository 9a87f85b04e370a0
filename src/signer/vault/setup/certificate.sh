# With the CA of the node's certificate, and a name that only this node has:
#   "$VAULT" write @ROLE_WORD@ certificate=@client-ca.pem allowed_common_names=... token_policies=@POLICY_WORD@ token_no_default_policy=true token_ttl=1h
