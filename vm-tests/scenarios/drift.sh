# Every certificate is to be issued anew, with another key; and what was issued within the hour would be left alone, as far
# as nodepki remembers.
rm /var/lib/nodepki/issued.json
cat >/etc/nodepki/config.d/90-keys.yaml <<'END'
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
pki: {defaults: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}
END
