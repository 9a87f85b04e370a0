{{- /* nodepki: subject and usages come from the signed token; the alternative names from the request, after
       step-ca has compared them with the token. `step ca token --set-file` puts claims below `user`. */ -}}
{{- $k8s := .Token.k8s -}}
{{- if not $k8s }}{{ with .Token.user }}{{ $k8s = .k8s }}{{ end }}{{ end -}}
{{- if not $k8s }}{{ fail "the token says nothing of organization and usages (claim k8s)" }}{{ end -}}
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
