# Copy the key to the node, as @FILES_TEXT@, with mode 0600. A holder of it can obtain certificates for any organization,
# system:masters included: CFSSL's name_whitelist covers common names and DNS names only.
[ -s @KEY@ ] || (umask 077; openssl rand -hex 32 >@KEY@)
