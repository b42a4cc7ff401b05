package tlsreload_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// dir is a directory of certificate files.
type dir struct {
	t    *testing.T
	path string
}

func newDir(t *testing.T) dir { return dir{t, t.TempDir()} }

func (d dir) file(name string) string { return filepath.Join(d.path, name) }

// files are the usual three.
func (d dir) files() tlsreload.Files {
	return tlsreload.Files{Cert: d.file("tls.crt"), Key: d.file("tls.key"), CA: d.file("ca.crt")}
}

func (d dir) write(name string, data []byte) {
	d.t.Helper()
	testutil.NoError(d.t, os.WriteFile(d.file(name), data, 0o600))
}

// put writes a pair and the CA to trust.
func (d dir) put(p pki.Pair, trust *pki.CA) {
	d.t.Helper()
	d.write("tls.crt", p.CertPEM)
	d.write("tls.key", p.KeyPEM)
	d.write("ca.crt", trust.CertPEM)
}

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	return testutil.Must(pki.NewCA("test CA"))(t)
}

// issue signs a certificate that is good for both sides of loopback, and for a link-local
// address.
func issue(t *testing.T, ca *pki.CA, name string) pki.Pair {
	t.Helper()
	return testutil.Must(ca.Issue(pki.Leaf{
		CommonName: name, DNS: []string{"server.test"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP("fe80::1")},
		Client: true, Server: true, Lifetime: time.Hour,
	}))(t)
}

func source(t *testing.T, files tlsreload.Files, o tlsreload.Options) *tlsreload.Source {
	t.Helper()
	return testutil.Must(tlsreload.New(files, o))(t)
}

// trusting is a client that takes any server, and resumes sessions. Version 0 is the newest.
func trusting(version uint16, certs ...tls.Certificate) *tls.Config {
	return &tls.Config{
		ServerName: "server.test", InsecureSkipVerify: true, Certificates: certs,
		MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
}

// outcome is what one handshake showed.
type outcome struct {
	client, server       tls.ConnectionState
	clientErr, serverErr error
}

func (o outcome) err() error { return errors.Join(o.clientErr, o.serverErr) }

// handshake runs one handshake over loopback and a byte each way, by which
// TLS 1.3 clients learn of session tickets and of refusals.
func handshake(t *testing.T, server, client *tls.Config) outcome {
	t.Helper()
	s, c := connect(t, server, client)
	defer s.Close()
	defer c.Close()
	return finish(s, c)
}

// connect joins the two by TCP, without a handshake yet.
func connect(t *testing.T, server, client *tls.Config) (*tls.Conn, *tls.Conn) {
	t.Helper()
	b, a := testutil.Pair(t)
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(testutil.Patience)) // no test may hang
	}
	return tls.Server(a, server), tls.Client(b, client)
}

// finish exchanges a byte each way over a pair.
func finish(s, c *tls.Conn) outcome {
	served := testutil.Later(func() error { return echo(s) })
	var o outcome
	o.clientErr = ping(c)
	if o.clientErr != nil {
		_ = c.NetConn().Close()
	}
	o.serverErr = <-served
	o.client, o.server = c.ConnectionState(), s.ConnectionState()
	return o
}

func echo(c *tls.Conn) error {
	b := make([]byte, 1)
	if _, err := io.ReadFull(c, b); err != nil {
		_ = c.NetConn().Close()
		return err
	}
	_, err := c.Write(b)
	return err
}

func ping(c *tls.Conn) error {
	b := []byte{'x'}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

// mustPass fails the test if the handshake did.
func mustPass(t *testing.T, o outcome) outcome {
	t.Helper()
	testutil.Requires(t, o.err() == nil, "handshake: client %v, server %v", o.clientErr, o.serverErr)
	return o
}

func serverCN(o outcome) string { return o.client.PeerCertificates[0].Subject.CommonName }

func clientCN(o outcome) string { return o.server.PeerCertificates[0].Subject.CommonName }
