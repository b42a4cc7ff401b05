package e2e

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
)

// authority is a CA of a test's own, in a file.
type authority struct {
	*pki.CA
	dir, name, file string
}

func newAuthority(t *testing.T, s *suite.Suite, name string) *authority {
	t.Helper()
	a := &authority{CA: must(pki.NewCA(name))(t), dir: s.Dir, name: name, file: filepath.Join(s.Dir, name+".crt")}
	if err := os.WriteFile(a.file, a.CertPEM, 0o644); err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// reach asks a web server behind the agents, over the unix socket.
func reach(srv *suite.Server) (int, error) {
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer target.Close()
	c := overUDS(srv.UDS)
	c.Timeout = patience
	res, err := c.Get(target.URL)
	if err != nil {
		return 0, err
	}
	res.Body.Close()
	return res.StatusCode, nil
}
