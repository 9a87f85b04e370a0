{{- /*
The certificate template that step-ca needs to sign for nodepki; this text as it is. Without it, step-ca drops
organizations, gives every certificate both server and client authentication, and certificates without alternative
names a made-up one. Here, subject and usages come from the token, which whoever made it has signed; the alternative
names come from the request, which step-ca has compared with the token.

1. Save it on step-ca's machine:
     nodepki config signer-setup stepCA > /etc/step-ca/kubernetes.tpl

2. Each of the authorities ca, etcd-ca and front-proxy-ca is a step-ca of its own, since one has one root. In each,
   make a provisioner that uses it. Either nodes sign tokens with a certificate that they got when they were made
   (X5C; the roots are those that issued it, which should issue for nothing else):
     step ca provisioner add nodepki --type X5C --x5c-roots bootstrap-ca.crt \
       --x509-template /etc/step-ca/kubernetes.tpl --x509-max-dur 8760h
   or with a key that they share (JWK), whose private half goes to them in plain:
     step crypto jwk create nodepki.pub nodepki.jwk --no-password --insecure
     step ca provisioner add nodepki --type JWK --public-key nodepki.pub \
       --x509-template /etc/step-ca/kubernetes.tpl --x509-max-dur 8760h
   In ca.json, that is
     {"type": "X5C", "name": "nodepki", "roots": "BASE64 OF bootstrap-ca.crt",
      "options": {"x509": {"templateFile": "/etc/step-ca/kubernetes.tpl"}},
      "claims": {"maxTLSCertDuration": "8760h"}}

3. Whoever can sign tokens for this provisioner can have every name that Kubernetes knows, system:masters too.

4. Tokens that are handed over instead carry organizations and usages as `user`:
     step ca token kube-apiserver --san cp1 --san 10.96.0.1 ... --set-file apiserver.json
   where apiserver.json is {"k8s": {"eku": ["serverAuth"]}}, with "o": ["GROUP"] where there is an organization.

5. "crl": {"enabled": true, "generateOnRevoke": true} in ca.json makes it publish what it revoked.
*/ -}}
{{- $k8s := .Token.k8s -}}
{{- if not $k8s }}{{ with .Token.user }}{{ $k8s = .k8s }}{{ end }}{{ end -}}
{{- if not $k8s }}{{ fail "the token says nothing of organizations and usages (claim k8s)" }}{{ end -}}
{{- if not $k8s.eku }}{{ fail "the token says nothing of usages (claim k8s.eku)" }}{{ end -}}
{
  "subject": {
    "commonName": {{ toJson .Token.sub }}
    {{- if $k8s.o }},
    "organization": {{ toJson $k8s.o }}
    {{- end }}
  },
  "dnsNames": {{ toJson .Insecure.CR.DNSNames }},
  "ipAddresses": {{ toJson .Insecure.CR.IPAddresses }},
  "keyUsage": ["keyEncipherment", "digitalSignature"],
  "extKeyUsage": {{ toJson $k8s.eku }}
}
