#!/bin/sh
# Prepares CFSSL for node @NODE_TEXT@. Run it in the directory in which CFSSL is started; it does not change existing files.
set -eu
umask 077
# Writes a file, unless it exists with other content, such as another node's profiles.
put() {
  cat >"$1.new"
  if [ ! -e "$1" ] || cmp -s "$1" "$1.new"; then
    mv "$1.new" "$1"
  else
    echo "$1 exists: add the content of $1.new (profiles, auth_keys, sections)" >&2
  fi
}
