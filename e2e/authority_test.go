package e2e

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// authority is a CA of a test's own, in a file.
type authority struct {
	*pki.CA
	dir, name, file string
}

func newAuthority(t *testing.T, s *suite.Suite, name string) *authority {
	t.Helper()
	a := &authority{CA: must(pki.NewCA(name))(t), dir: s.Dir, name: name, file: filepath.Join(s.Dir, name+".crt")}
	testutil.NoError(t, os.WriteFile(a.file, a.CertPEM, 0o644))
	return a
}

// issue writes a client certificate and returns the agent's flags for it.
func (a *authority) issue(t *testing.T, name, ip, dns string) []string {
	t.Helper()
	leaf := pki.Leaf{CommonName: name, Client: true}
	if ip != "" {
		leaf.IPs = []net.IP{net.ParseIP(ip)}
	}
	if dns != "" {
		leaf.DNS = []string{dns}
	}
	base := filepath.Join(a.dir, a.name+"-"+name)
	a.write(t, leaf, base+".crt", base+".key")
	return []string{"--agent-cert=" + base + ".crt", "--agent-key=" + base + ".key"}
}

// write puts a new pair in the place of old files.
func (a *authority) write(t *testing.T, leaf pki.Leaf, cert, key string) pki.Pair {
	t.Helper()
	pair := must(a.Issue(leaf))(t)
	replace(t, cert, pair.CertPEM)
	replace(t, key, pair.KeyPEM)
	return pair
}

// replace writes a file as rotation does: never half.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	testutil.NoError(t, os.WriteFile(path+".new", content, 0o600))
	testutil.NoError(t, os.Rename(path+".new", path))
}

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
