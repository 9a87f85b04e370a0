package main

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// object is what a case consists of: its kind and its bytes.
type object struct {
	Kind string `json:"kind"`
	Data []byte `json:"data"`
}

// reading is Go's error, or what Go reads in the object. Lists have the order of the object.
type reading struct {
	Error string `json:"error,omitempty"`
	Facts any    `json:"facts,omitempty"`
}

type certificateFacts struct {
	Serial        string   `json:"serial"`
	CommonNames   []string `json:"commonNames"`
	Organizations []string `json:"organizations"`
	DNS           []string `json:"dns"`
	IPs           []string `json:"ips"`
	NotBefore     int64    `json:"notBefore"`
	NotAfter      int64    `json:"notAfter"`
	IsCA          bool     `json:"isCA"`
	Usages        []string `json:"usages"`
	Key           string   `json:"key"`
}

type requestFacts struct {
	CommonNames   []string `json:"commonNames"`
	Organizations []string `json:"organizations"`
	DNS           []string `json:"dns"`
	IPs           []string `json:"ips"`
	Key           string   `json:"key"`
	Signed        bool     `json:"signed"`
}

type listFacts struct {
	Entries    int   `json:"entries"`
	ThisUpdate int64 `json:"thisUpdate"`
	NextUpdate int64 `json:"nextUpdate"`
}

type kubeconfigFacts struct {
	Server    string `json:"server"`
	Authority string `json:"authority"`
	Token     string `json:"token"`
}

func answerEach(lines *bufio.Scanner) {
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var one object
		err := json.Unmarshal(lines.Bytes(), &one)
		if err == nil {
			err = encoder.Encode(readObject(one))
		}
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "oracle:", err)
			os.Exit(1)
		}
	}
}

func readObject(one object) reading {
	var facts any
	var err error
	switch one.Kind {
	case "certificate":
		facts, err = readCertificate(one.Data)
	case "chain":
		_, err = parse(one.Data)
	case "request":
		facts, err = readRequest(one.Data)
	case "key":
		facts, err = readKey(one.Data)
	case "list":
		facts, err = readList(one.Data)
	case "kubeconfig":
		facts, err = readKubeconfig(one.Data)
	case "yaml":
		facts, err = readYAML(one.Data)
	default:
		err = errors.New("unknown kind " + one.Kind)
	}
	if err != nil {
		return reading{Error: err.Error()}
	}
	return reading{Facts: facts}
}

func readCertificate(der []byte) (any, error) {
	found, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	var usages []string
	for _, extension := range found.Extensions {
		if extension.Id.Equal([]int{2, 5, 29, 37}) {
			usages = []string{}
		}
	}
	for _, usage := range found.ExtKeyUsage {
		usages = append(usages, usage.OID().String())
	}
	for _, usage := range found.UnknownExtKeyUsage {
		usages = append(usages, usage.String())
	}
	slices.Sort(usages)
	return certificateFacts{
		Serial:        fmt.Sprintf("%x", found.SerialNumber),
		CommonNames:   values(found.Subject, "2.5.4.3"),
		Organizations: values(found.Subject, "2.5.4.10"),
		DNS:           found.DNSNames,
		IPs:           addresses(found.IPAddresses),
		NotBefore:     found.NotBefore.Unix(),
		NotAfter:      found.NotAfter.Unix(),
		IsCA:          found.BasicConstraintsValid && found.IsCA,
		Usages:        usages,
		Key:           digest(found.RawSubjectPublicKeyInfo),
	}, nil
}

func readRequest(text []byte) (any, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	found, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return requestFacts{
		CommonNames:   values(found.Subject, "2.5.4.3"),
		Organizations: values(found.Subject, "2.5.4.10"),
		DNS:           found.DNSNames,
		IPs:           addresses(found.IPAddresses),
		Key:           digest(found.RawSubjectPublicKeyInfo),
		Signed:        found.CheckSignature() == nil,
	}, nil
}

// readKey is ParsePrivateKeyPEM of k8s.io/client-go/util/keyutil.
func readKey(text []byte) (any, error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, errors.New("data does not contain a valid RSA or ECDSA private key")
		}
		var key any
		var err error
		switch block.Type {
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, errors.New("the key does not sign")
		}
		public, err := x509.MarshalPKIXPublicKey(signer.Public())
		if err != nil {
			return nil, err
		}
		return digest(public), nil
	}
}

func readList(der []byte) (any, error) {
	found, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, err
	}
	facts := listFacts{Entries: len(found.RevokedCertificateEntries), ThisUpdate: found.ThisUpdate.Unix()}
	if !found.NextUpdate.IsZero() {
		facts.NextUpdate = found.NextUpdate.Unix()
	}
	return facts, nil
}

// readKubeconfig reads the current context in the fields of clientcmd's api/v1, with the reader that it uses.
func readKubeconfig(text []byte) (any, error) {
	var config struct {
		CurrentContext string `json:"current-context"`
		Contexts       []struct {
			Name    string `json:"name"`
			Context struct {
				Cluster string `json:"cluster"`
				User    string `json:"user"`
			} `json:"context"`
		} `json:"contexts"`
		Clusters []struct {
			Name    string `json:"name"`
			Cluster struct {
				Server    string `json:"server"`
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			Name string `json:"name"`
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	for _, context := range config.Contexts {
		if context.Name != config.CurrentContext {
			continue
		}
		var facts kubeconfigFacts
		for _, cluster := range config.Clusters {
			if cluster.Name == context.Context.Cluster {
				facts.Server = cluster.Cluster.Server
				facts.Authority = hex.EncodeToString(cluster.Cluster.Authority)
				break
			}
		}
		for _, user := range config.Users {
			if user.Name == context.Context.User {
				facts.Token = user.User.Token
				break
			}
		}
		return facts, nil
	}
	return nil, errors.New("context was not found")
}

// readYAML returns the document as JSON, as every Kubernetes component reads it.
func readYAML(text []byte) (any, error) {
	converted, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	return json.RawMessage(bytes.TrimSpace(converted)), nil
}

func values(name pkix.Name, kind string) []string {
	var found []string
	for _, attribute := range name.Names {
		if attribute.Type.String() == kind {
			found = append(found, fmt.Sprint(attribute.Value))
		}
	}
	return found
}

func addresses(ips []net.IP) []string {
	var found []string
	for _, ip := range ips {
		found = append(found, strings.ToLower(ip.String()))
	}
	return found
}

func digest(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
