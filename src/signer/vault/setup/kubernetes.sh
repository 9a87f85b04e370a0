#   "$VAULT" write @CONFIG_WORD@ kubernetes_host=https://... kubernetes_ca_cert=@ca.pem
#   "$VAULT" write @ROLE_WORD@ bound_service_account_names=... bound_service_account_namespaces=... token_policies=@POLICY_WORD@ token_no_default_policy=true token_ttl=1h
