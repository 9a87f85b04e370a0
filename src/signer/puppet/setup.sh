#!/bin/sh
# Prepares a Puppet or OpenVox CA for node @NODE@ of cluster @CLUSTER@. Run it as root on the CA server:
@SERVERS@
# It changes ca.conf and auth.conf, of which it keeps copies as FILE.before-nodepki, and with enable-infra-crl it adds the
# certnames to infra_inventory.txt. It may be run again.
#
# Requests are not authenticated. An administrator compares the fingerprint of the request with that of the node before
# signing, and requests must not be signed automatically:
#   on the node:      openssl req -in /var/lib/nodepki/pending/NAME/request.csr -outform DER | sha256sum
#   on this server:   puppetserver ca list
#                     puppetserver ca sign --certname @COMMAS@
set -eu
if [ -z "${CONF:-}" ]; then
  CONF=/etc/puppetlabs/puppetserver/conf.d
  [ -d "$CONF" ] || CONF=/etc/puppet/puppetserver/conf.d
fi
for file in ca.conf auth.conf; do
  [ -f "$CONF/$file" ] || {
    echo "$CONF/$file: does not exist (set CONF to the directory conf.d of the CA server)" >&2
    exit 66
  }
  [ -e "$CONF/$file.before-nodepki" ] || cp -p "$CONF/$file" "$CONF/$file.before-nodepki"
done
certnames() {
  cat <<'END'
@CERTNAMES@END
}

# ---- autosigning: the first host that requests a certname would get the certificate
AUTOSIGN=${AUTOSIGN:-$(puppet config print autosign --section server)}
case $AUTOSIGN in
false) ;;
true)
  echo "autosign = true in puppet.conf signs the requests of every host (set autosign = false)" >&2
  exit 65
  ;;
*)
  if [ -x "$AUTOSIGN" ]; then
    echo "$AUTOSIGN: make sure that this program ends with 1 for these certnames:" >&2
    certnames >&2
  elif [ -f "$AUTOSIGN" ]; then
    # A pattern is a certname, or a domain with `*.` before it.
    certnames | while read -r certname; do
      while read -r pattern || [ -n "$pattern" ]; do
        # The shell expands no file names in a pattern of case.
        case $certname in
        $pattern)
          echo "$AUTOSIGN: the pattern $pattern signs the requests for $certname of every host (remove it)" >&2
          exit 65
          ;;
        esac
      done <"$AUTOSIGN"
    done
  fi
  ;;
esac

# ---- ca.conf
set_true() {
  if grep -Eq "^[^#]*$1[[:space:]]*[:=]" "$CONF/ca.conf"; then
    sed -i -E "/^[[:space:]]*#/! s/($1[[:space:]]*[:=][[:space:]]*)\"?(true|false)\"?/\\1true/" "$CONF/ca.conf"
  else
    sed -i -E "s/^([[:space:]]*certificate-authority[^{#]*\\{)/\\1\\n    $1: true\\n/" "$CONF/ca.conf"
  fi
  grep -Eq "^[^#]*$1[[:space:]]*[:=][[:space:]]*true" "$CONF/ca.conf" || {
    echo "$CONF/ca.conf: $1 cannot be set here (add $1: true to the block certificate-authority)" >&2
    exit 65
  }
}
# Names and addresses besides the certname. allow-authorization-extensions stays as it is: nodepki requests none.
set_true allow-subject-alt-names
# Renewals with the certificate that is replaced, by Puppet Server 8.1 or later.
set_true allow-auto-renewal

# ---- auth.conf: a file from before 8.1 denies renewals. The other paths are open to every host by default.
if ! grep -q '^[^#]*/puppet-ca/v1/certificate_renewal' "$CONF/auth.conf"; then
  rule='{ name: "nodepki renewal", sort-order: 500, allow: "*", match-request: { path: "/puppet-ca/v1/certificate_renewal", type: path, method: post } },'
  sed -i -E "s|^([[:space:]]*rules[[:space:]]*[:=][[:space:]]*\\[)|\\1\\n        $rule\\n|" "$CONF/auth.conf"
fi
for path in certificate certificate_request certificate_revocation_list certificate_renewal; do
  grep -Eq "^[^#]*/puppet-ca/v1/$path[^_a-z]" "$CONF/auth.conf" || {
    echo "$CONF/auth.conf: has no rule for /puppet-ca/v1/$path (restore the rule of the package)" >&2
    exit 65
  }
done

# ---- revocation: with enable-infra-crl the published list contains the certnames of the inventory only
if grep -Eq '^[^#]*enable-infra-crl[[:space:]]*[:=][[:space:]]*"?true' "$CONF/ca.conf"; then
  INVENTORY=${INVENTORY:-$(puppet config print cadir --section server)/infra_inventory.txt}
  certnames | while read -r certname; do
    grep -qxF -e "$certname" "$INVENTORY" 2>/dev/null || printf '%s\n' "$certname" >>"$INVENTORY"
  done
fi
echo "restart the CA server to put the settings in force: systemctl restart puppetserver"
