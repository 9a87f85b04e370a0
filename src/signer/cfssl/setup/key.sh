# A holder of the key can obtain certificates for any organization, system:masters included: CFSSL's name_whitelist covers common names and DNS names only.
[ -s @KEY@ ] || (umask 077; openssl rand -hex 32 >@KEY@)
