// Judges certificates as a Kubernetes component does; no part of nodepki itself. Standard library only: the rules are those
// of the Go release that builds it, which is the one of tests/servers/kubernetes.
module nodepki.io/tests/servers/oracle

go 1.26.0

godebug default=go1.26
