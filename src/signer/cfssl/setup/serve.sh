# A server for each CA, which supports client certificates and, with -db-config, publishes a revocation list. Restrict
# access to its `revoke` to administrators:
#   cfssl serve -address 0.0.0.0 -port 8888 -ca @CERTIFICATE_WORD@ -ca-key @KEY_WORD@ -config @CONFIG_WORD@ -tls-cert server.crt -tls-key server.key@MUTUAL_TEXT@ -disable newcert,newkey,init_ca,gencrl,certadd,scan,scaninfo,bundle,ocspsign,/
