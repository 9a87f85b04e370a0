# Configures another key algorithm, so that every certificate is reissued, and removes the record of issue times, so that
# none of them is within its cool-down.
rm /var/lib/nodepki/issued.json
cat >/etc/nodepki/config.d/90-keys.yaml <<'END'
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
pki: {defaults: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}
rotation: {onPolicyChange: now}
END
