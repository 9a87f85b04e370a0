// The oracle reports how Go's crypto/x509 and crypto/tls judge a certificate: it reads one case per line from standard
// input, as JSON, and writes one verdict per line to standard output.
//
// A case contains the files of a node. The verdict has an empty string for each part that succeeds and Go's error for
// each that does not:
//
//	bundle      every certificate of ca.crt, as k8s.io/client-go/util/cert.ParseCertsPEM reads it
//	chain       every certificate of the certificate file
//	pair        tls.X509KeyPair, as every component loads its files
//	verify      the path to ca.crt for each usage, with each name
//	handshake   on request, TLS between two Go programs: as a server under the first name, and as a client of a server
//	            that demands a certificate
//
// A case without a key consists of the files of a path only: there is no pair and no handshake, and without usages the
// path may be used for any.
//
// With the argument `read` it reports what Go reads in one object per line, and answers each line at once; see read.go.
package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

type request struct {
	ID          string   `json:"id"`
	Certificate string   `json:"certificate"`
	Key         string   `json:"key"`
	CA          string   `json:"ca"`
	Usages      []string `json:"usages"`
	Names       []string `json:"names"`
	Time        int64    `json:"time"`
	// Whether to try a handshake, which takes longer than all other parts.
	Handshake bool `json:"handshake"`
}

type verdict struct {
	ID        string `json:"id"`
	Bundle    string `json:"bundle"`
	Chain     string `json:"chain"`
	Pair      string `json:"pair"`
	Verify    string `json:"verify"`
	Handshake string `json:"handshake"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	if len(os.Args) > 1 && os.Args[1] == "read" {
		answerEach(lines)
		return
	}
	var requests []request
	for lines.Scan() {
		var one request
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fmt.Fprintln(os.Stderr, "oracle:", err)
			os.Exit(1)
		}
		requests = append(requests, one)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
	verdicts := make([]verdict, len(requests))
	var work sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for i, one := range requests {
		work.Add(1)
		slots <- struct{}{}
		go func() {
			defer work.Done()
			verdicts[i] = judge(one)
			<-slots
		}()
	}
	work.Wait()
	out := json.NewEncoder(os.Stdout)
	for _, one := range verdicts {
		if err := out.Encode(one); err != nil {
			os.Exit(1)
		}
	}
}

func judge(one request) verdict {
	result := verdict{ID: one.ID}
	at := time.Unix(one.Time, 0)
	roots, err := parse([]byte(one.CA))
	result.Bundle = text(err)
	pool := x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root)
	}
	chain, err := parse([]byte(one.Certificate))
	result.Chain = text(err)
	if one.Key == "" {
		if len(chain) == 0 {
			result.Verify = "no certificate"
			return result
		}
		result.Verify = text(verify(one, chain, pool, at))
		return result
	}
	pair, err := tls.X509KeyPair([]byte(one.Certificate), []byte(one.Key))
	result.Pair = text(err)
	if err != nil || len(chain) == 0 {
		result.Verify, result.Handshake = "no certificate", "no certificate"
		return result
	}
	result.Verify = text(verify(one, chain, pool, at))
	if !one.Handshake {
		return result
	}
	for _, usage := range one.Usages {
		var err error
		if usage == "server auth" {
			err = serve(pair, pool, one.Names[0], at)
		} else {
			err = connect(pair, pool, at)
		}
		if err != nil {
			result.Handshake = usage + ": " + err.Error()
			break
		}
	}
	return result
}

// parse is ParseCertsPEM of client-go.
func parse(text []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	for len(text) > 0 {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		certificates, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return found, err
		}
		found = append(found, certificates...)
	}
	if len(found) == 0 {
		return nil, errors.New("data does not contain any valid certificates")
	}
	return found, nil
}

func verify(one request, chain []*x509.Certificate, roots *x509.CertPool, at time.Time) error {
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	usages := one.Usages
	if len(usages) == 0 {
		usages = []string{"any"}
	}
	for _, usage := range usages {
		options := x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: at}
		switch usage {
		case "any":
			options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
		case "server auth":
			options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		default:
			options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}
		if _, err := chain[0].Verify(options); err != nil {
			return fmt.Errorf("%s: %w", usage, err)
		}
	}
	for _, name := range one.Names {
		if err := chain[0].VerifyHostname(name); err != nil {
			return err
		}
	}
	return nil
}

// serve connects a client that trusts roots to a server with this pair.
func serve(pair tls.Certificate, roots *x509.CertPool, name string, at time.Time) error {
	clock := func() time.Time { return at }
	return handshake(
		&tls.Config{Certificates: []tls.Certificate{pair}, Time: clock},
		&tls.Config{RootCAs: roots, ServerName: name, Time: clock},
	)
}

// connect connects a client with this pair to a server that trusts roots for clients.
func connect(pair tls.Certificate, roots *x509.CertPool, at time.Time) error {
	clock := func() time.Time { return at }
	return handshake(
		&tls.Config{
			Certificates: []tls.Certificate{ownServer()},
			ClientCAs:    roots,
			ClientAuth:   tls.RequireAndVerifyClientCert,
			Time:         clock,
		},
		&tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, Time: clock},
	)
}

func handshake(server, client *tls.Config) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			served <- err
			return
		}
		defer connection.Close()
		connection.SetDeadline(time.Now().Add(20 * time.Second))
		session := tls.Server(connection, server)
		if err = session.Handshake(); err == nil {
			_, err = session.Write([]byte("."))
		}
		served <- err
	}()
	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(20 * time.Second))
	session := tls.Client(connection, client)
	// In TLS 1.3 the client receives the server's refusal at its first read.
	if err = session.Handshake(); err == nil {
		_, err = session.Read(make([]byte, 1))
	}
	connection.Close()
	if err := <-served; err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return err
}

var ownServer = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "oracle"},
		NotAfter:     time.Unix(1<<32, 0),
		DNSNames:     []string{"oracle"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
