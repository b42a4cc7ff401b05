package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"konnectivity/internal/pki"
	"konnectivity/tunnel/link"
)

// tenant is one cluster: what its agent and its sidecar know.
type tenant struct {
	name   string
	from   net.IP // their address, since clusters do not share one
	secure map[link.Role]*tls.Config

	ca     []byte
	issued map[link.Role][2][]byte // certificates and keys
}

// newTenants makes n clusters and the folder that the server reads. The names in
// their certificates are the same in all, and the CAs are not.
func newTenants(n int, dir string) ([]*tenant, error) {
	all := make([]*tenant, n)
	for i := range all {
		t := &tenant{name: fmt.Sprintf("cluster-%d", i), from: net.IPv4(127, 1, byte(i>>8), byte(i))}
		if err := t.make(filepath.Join(dir, t.name)); err != nil {
			return nil, fmt.Errorf("make %s: %w", t.name, err)
		}
		all[i] = t
	}
	return all, nil
}

// serverName is what its peers ask for.
func (t *tenant) serverName() string { return t.name + ".swarm.test" }

func (t *tenant) make(folder string) error {
	ca, err := pki.NewCA("cluster")
	if err != nil {
		return err
	}
	issue := func(leaf pki.Leaf, role pki.Role) (pair pki.Pair) {
		if err == nil {
			leaf.Holder = pki.Holder{Role: role, TrustDomain: pki.DefaultTrustDomain}
			pair, err = ca.Issue(leaf)
		}
		return pair
	}
	server := issue(pki.Leaf{CommonName: "server", DNS: []string{t.serverName()}, Server: true}, pki.RoleServer)
	agent := issue(pki.Leaf{CommonName: "agent", Client: true}, pki.RoleAgent)
	client := issue(pki.Leaf{CommonName: "client", Client: true}, pki.RoleClient)
	if err != nil {
		return err
	}
	pool := ca.Pool()
	t.ca = ca.CertPEM
	t.issued = map[link.Role][2][]byte{link.RoleAgent: {agent.CertPEM, agent.KeyPEM}, link.RoleClient: {client.CertPEM, client.KeyPEM}}
	t.secure = map[link.Role]*tls.Config{
		link.RoleAgent:  secure(t.serverName(), pool, agent.TLS()),
		link.RoleClient: secure(t.serverName(), pool, client.TLS()),
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"agents-ca.crt": ca.CertPEM, "clients-ca.crt": ca.CertPEM, "server.crt": server.CertPEM, "server.key": server.KeyPEM,
		"tenant.yaml": []byte("serverNames: [" + t.serverName() + "]\n"),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func secure(serverName string, cas *x509.CertPool, cert tls.Certificate) *tls.Config {
	return &tls.Config{
		ServerName: serverName, RootCAs: cas, Certificates: []tls.Certificate{cert},
		NextProtos: []string{link.ALPN}, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
}

// bound writes what the tenant may have into its folder; "" is no bound.
func (t *tenant) bound(dir, bounds string) error {
	text := "serverNames: [" + t.serverName() + "]\n"
	if bounds != "" {
		text += "bounds: {" + bounds + "}\n"
	}
	// Put in place of the old, which is noticed sooner than what is overwritten.
	folder := filepath.Join(dir, t.name)
	young := filepath.Join(folder, ".tenant.yaml")
	if err := os.WriteFile(young, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(young, filepath.Join(folder, "tenant.yaml"))
}
