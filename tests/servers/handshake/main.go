// handshake completes a TLS handshake with a client certificate, as clients of kube-apiserver do, sends a GET request and
// prints the TLS version, the key exchange, and the subject and key type of the server:
//
//	handshake CERT KEY CA ADDRESS NAME
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 6 {
		log.Fatal("usage: handshake CERT KEY CA ADDRESS NAME")
	}
	pair, err := tls.LoadX509KeyPair(os.Args[1], os.Args[2])
	check(err)
	bundle, err := os.ReadFile(os.Args[3])
	check(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		log.Fatalf("%s has no certificate", os.Args[3])
	}
	connection, err := tls.Dial("tcp", os.Args[4], &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ServerName:   os.Args[5],
	})
	check(err)
	// In TLS 1.3 the server judges the client's certificate after the handshake of the client.
	_, err = connection.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
	check(err)
	_, err = connection.Read(make([]byte, 1))
	check(err)
	state := connection.ConnectionState()
	peer := state.PeerCertificates[0]
	fmt.Printf("%s %s %q %T\n", tls.VersionName(state.Version), state.CurveID, peer.Subject, peer.PublicKey)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
