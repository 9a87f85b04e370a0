module nodepki.io/tests/servers/handshake

go 1.27.0
