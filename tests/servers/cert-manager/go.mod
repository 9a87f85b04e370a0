// The module that cert-manager's CustomResourceDefinitions are taken from; nothing is built of it.
module nodepki.io/tests/servers/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.21.2
