// Judges certificates as a Kubernetes component does; no part of nodepki itself. The rules for certificates are those of the
// Go release that builds it, which is the one of tests/servers/kubernetes; YAML is read by the module that Kubernetes uses.
module nodepki.io/tests/servers/oracle

go 1.26.0

godebug default=go1.26

require sigs.k8s.io/yaml v1.6.0

require go.yaml.in/yaml/v2 v2.4.3 // indirect
