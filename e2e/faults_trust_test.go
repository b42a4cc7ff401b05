package e2e

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/pki"
)

// files are where one certificate of an authority and its key are.
func (a *authority) files(name string) (cert, key string) {
	base := filepath.Join(a.dir, a.name+"-"+name)
	return base + ".crt", base + ".key"
}

// make issues a certificate that is valid from and until, into files.
func (a *authority) make(t *testing.T, leaf pki.Leaf, from, until time.Time) (cert, key string) {
	t.Helper()
	cert, key = a.files(leaf.CommonName)
	pair := must(a.Issue(leaf))(t)
	block, _ := pem.Decode(a.KeyPEM)
	signer := must(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	made := *pair.TLS().Leaf
	made.NotBefore, made.NotAfter = from, until
	der := must(x509.CreateCertificate(rand.Reader, &made, a.Certificate(), made.PublicKey, signer))(t)
	replace(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	replace(t, key, pair.KeyPEM)
	return cert, key
}

const day = 24 * time.Hour

var here = []net.IP{net.IPv4(127, 0, 0, 1)}

// launched starts an agent that cannot connect, and waits for its admin port.
func (f *faulty) launched(t *testing.T, args ...string) (admin string) {
	t.Helper()
	a := must(f.LaunchAgent(f.server, args...))(t)
	at := agentAt(a)
	eventually(t, patience, "admin port of the agent", func() (bool, any) {
		_, status := page("http://" + at + "/api/v1/status")
		return status == 200, status
	})
	return at
}

func TestFaultWrongSAN(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	ca := newAuthority(t, s, "other-ca")
	cert, key := ca.make(t, pki.Leaf{CommonName: "lb", DNS: []string{"proxy.example.com"}, Server: true}, time.Now().Add(-day), time.Now().Add(day))
	f := &faulty{Suite: s, reachable: echoTarget(t)}
	f.server = must(s.StartServer("--server-id=server-1", "--server-cert="+cert, "--server-key="+key, "--cluster-cert="+cert, "--cluster-key="+key))(t)
	f.checkTells(t, f.reachable, []string{"--ca-cert-path=" + ca.file}, "it is not for 127.0.0.1 but for proxy.example.com", "add this one to its certificate")
	f.statusTells(t, slack, f.launched(t, "--ca-cert="+ca.file), "not ready: no servers connected", "its certificate is not for 127.0.0.1 but for proxy.example.com")
}

func TestFaultClientCertificateExpired(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	ca := newAuthority(t, s, "client-ca")
	cert, key := ca.make(t, pki.Leaf{CommonName: "late", Client: true}, time.Now().Add(-3*day), time.Now().Add(-day))
	f := &faulty{Suite: s, reachable: echoTarget(t)}
	f.server = must(s.StartServer("--server-id=server-1", "--server-ca-cert="+ca.file, "--cluster-ca-cert="+ca.file))(t)
	f.checkTells(t, f.reachable, []string{"--tls-cert-path=" + cert, "--tls-key-path=" + key}, "late.crt expired on", "Renew it")
	f.statusTells(t, slack, f.launched(t, "--agent-cert="+cert, "--agent-key="+key), "not ready: no servers connected", "expired")
}

// A clock that is off shows in certificates that seem not to be valid yet.
func TestFaultClockSkew(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	ca := newAuthority(t, s, "clock-ca")
	from, until := time.Now().Add(day), time.Now().Add(2*day)
	cert, key := ca.make(t, pki.Leaf{CommonName: "server", IPs: here, Server: true}, from, until)
	f := &faulty{Suite: s, reachable: echoTarget(t)}
	f.server = must(s.StartServer("--server-id=server-1", "--server-cert="+cert, "--server-key="+key, "--cluster-cert="+cert, "--cluster-key="+key,
		"--server-ca-cert="+ca.file))(t)
	trust := "--ca-cert-path=" + ca.file
	f.checkTells(t, f.reachable, []string{trust}, "the server's certificate is not valid before", "this machine's clock says", "is wrong")
	f.statusTells(t, slack, f.launched(t, "--ca-cert="+ca.file), "not ready: no servers connected", "its certificate is valid only from", "correct this machine's clock")

	mine, myKey := ca.make(t, pki.Leaf{CommonName: "client", Client: true}, from, until)
	f.checkTells(t, f.reachable, []string{trust, "--tls-cert-path=" + mine, "--tls-key-path=" + myKey},
		"client.crt is not valid before", "this machine's clock says", "The clock of this machine, or of the one that issued it, is wrong")
}

// What check says has to name the file, not only what is wrong.
func TestFaultFilesAreNamed(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil)
	missing := strings.TrimSuffix(f.PKI("ca.crt"), "ca.crt") + "none.crt"
	f.checkTells(t, f.reachable, []string{"--ca-cert-path=" + missing}, "none.crt does not exist")
}
