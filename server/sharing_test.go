package server

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// sharers is a server that clusters share, with listeners as the program has
// them.
type sharers struct {
	*rig
	dir    *tenant.Dir
	folder string
}

// sharer is one of the clusters. All have the same names in their certificates.
type sharer struct {
	of     *sharers
	name   string
	ca     *pki.CA
	cert   tls.Certificate
	dialed atomic.Int64 // by its agents
	got    atomic.Int64 // bytes that its destinations were sent
}

func startSharers(t *testing.T, settings ...func(*Options)) *sharers {
	t.Helper()
	s := &sharers{folder: t.TempDir()}
	s.rig = startServer(t, append(settings, func(o *Options) {
		var err error
		s.dir, err = tenant.Open(s.folder, o.Log)
		testutil.NoError(t, err)
		o.Tenants = s.dir
		if o.TenantTokens == nil {
			o.TenantTokens = func(*tenant.Tokens) *auth.TokensConfig { return nil }
		}
		source := listenerFiles(t)
		for _, l := range []*Listener{&o.Clients[0], &o.Agents[0]} {
			l.TLS = source.ServerFor
		}
	})...)
	return s
}

// listenerFiles are the server's own certificates, which are nobody's here.
func listenerFiles(t *testing.T) *tlsreload.Source {
	t.Helper()
	return sourceOf(t, testutil.Must(pki.NewCA("ca"))(t), "localhost", true, tlsreload.Options{Name: "server"})
}

// sourceOf makes files of a certificate that a CA issues for a server of that name. With trusts,
// peers need a certificate of the CA, too.
func sourceOf(t *testing.T, ca *pki.CA, name string, trusts bool, options tlsreload.Options) *tlsreload.Source {
	t.Helper()
	dir := t.TempDir()
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{name}, Server: true}))(t)
	files := tlsreload.Files{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	if trusts {
		files.CA = filepath.Join(dir, "ca")
	}
	for path, text := range map[string][]byte{files.Cert: pair.CertPEM, files.Key: pair.KeyPEM, filepath.Join(dir, "ca"): ca.CertPEM} {
		testutil.NoError(t, os.WriteFile(path, text, 0o600))
	}
	return testutil.Must(tlsreload.New(files, options))(t)
}

// add has the server serve a cluster, with further lines of tenant.yaml.
func (s *sharers) add(name, more string) *sharer {
	s.t.Helper()
	ca := testutil.Must(pki.NewCA("ca"))(s.t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "peer", Client: true}))(s.t)
	c := &sharer{of: s, name: name, ca: ca, cert: pair.TLS()}
	c.write(more)
	return c
}

// addServed is add, and waits until the server has taken the cluster up.
func (s *sharers) addServed(name, more string) *sharer {
	s.t.Helper()
	c := s.add(name, more)
	s.eventually(name+" is served", func() bool { return c.cluster() != nil })
	return c
}

// serverName is what its peers ask for.
func (c *sharer) serverName() string { return c.name + ".example" }

// write writes the cluster's folder anew, with further files by name.
func (c *sharer) write(more string, files ...[2]string) {
	c.of.t.Helper()
	writeTenant(c.of.t, c.of.folder, c.name, "serverNames: ["+c.serverName()+"]\n"+more, c.ca, files...)
	c.of.dir.Look()
}

// writeTenant writes a tenant's folder, whose peers are of the CA.
func writeTenant(t *testing.T, all, name, spec string, ca *pki.CA, files ...[2]string) {
	t.Helper()
	folder := filepath.Join(all, name)
	testutil.NoError(t, os.MkdirAll(folder, 0o755))
	for _, f := range append(files,
		[2]string{tenant.AgentsCAFile, string(ca.CertPEM)}, [2]string{tenant.ClientsCAFile, string(ca.CertPEM)}, [2]string{tenant.SettingsFile, spec},
	) {
		testutil.NoError(t, os.WriteFile(filepath.Join(folder, f[0]), []byte(f[1]), 0o644))
	}
}

// replaceCA gives the cluster another CA, with these lines of tenant.yaml.
func (c *sharer) replaceCA(more string) {
	c.of.t.Helper()
	c.ca = testutil.Must(pki.NewCA("ca"))(c.of.t)
	c.write(more)
}

// remove has the server serve the cluster no more.
func (c *sharer) remove() {
	c.of.t.Helper()
	testutil.NoError(c.of.t, os.RemoveAll(filepath.Join(c.of.folder, c.name)))
	c.of.dir.Look()
	c.of.dir.Look()
}

// secureFor asks for a cluster by name, with a certificate.
func secureFor(serverName string, cert tls.Certificate, protos ...string) *tls.Config {
	return &tls.Config{ServerName: serverName, InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, NextProtos: protos}
}

// greeting is what all destinations of the cluster answer a first byte with. None
// speaks first: the real client drops what comes before it has taken note of the
// connection (konnectivity-client, client.go, DialContext).
func (c *sharer) greeting() string { return c.name + "\n" }

// network is that of the cluster's agents: whatever they dial greets, and counts
// what comes then.
func (c *sharer) network(context.Context, string) (tunnel.Conn, error) {
	c.dialed.Add(1)
	near, far := tcpPair()
	go func() {
		defer far.Close()
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			return
		}
		_, _ = io.WriteString(far, c.greeting())
		n, _ := io.Copy(io.Discard, far)
		c.got.Add(n)
	}()
	return near, nil
}

// greets says whether a connection leads to the cluster.
func (c *sharer) greets(conn net.Conn) bool {
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	defer func() { _ = conn.SetDeadline(time.Time{}) }()
	said := make([]byte, len(c.greeting()))
	_, err := io.WriteString(conn, "?")
	if err == nil {
		_, err = io.ReadFull(conn, said)
	}
	if err != nil || string(said) != c.greeting() {
		c.of.t.Logf("a destination said %q: %v", said, err)
		return false
	}
	return true
}

// reaches dials as one kind of client does, and wants to come to the cluster.
func (c *sharer) reaches(kind, address string) net.Conn {
	c.of.t.Helper()
	conn, err := c.dial(kind, address)
	testutil.Requires(c.of.t, err == nil && c.greets(conn), "%s's client by %s: %v", c.name, kind, err)
	return conn
}

// agentLink is the cluster's agent, as far as what it says is right.
func (c *sharer) agentLink(h link.Hello) (*link.Session, error) {
	return c.of.linked(c.of.agentAt, secureFor(c.serverName(), c.cert, link.ALPN), link.Config{Hello: h, Handler: forwarder(c.network)})
}

// hasAgent connects the cluster's only agent, and waits until the server has it.
func (c *sharer) hasAgent() *link.Session {
	c.of.t.Helper()
	ses := testutil.Must(c.agentLink(link.Hello{Role: link.RoleAgent, ID: "one"}))(c.of.t)
	c.has(1)
	return ses
}

// agentGRPC is agentLink by gRPC.
func (c *sharer) agentGRPC(h agentHello) (agent, error) {
	return c.of.agentBy(secureFor(c.serverName(), c.cert), h, c.network)
}

// clientLink is a sidecar of the cluster.
func (c *sharer) clientLink() (*link.Session, error) {
	return c.clientLinkAt(c.of.tcp, c.serverName())
}

// clientLinkAt is one that comes by some port of the server's and asks for a name.
func (c *sharer) clientLinkAt(at, name string) (*link.Session, error) {
	return c.of.linked(at, secureFor(name, c.cert, link.ALPN), link.Config{
		Hello: link.Hello{Role: link.RoleClient, ID: "sidecar", Features: []string{link.FeatureResume}},
	})
}

// sharedClients are the ways in which a cluster's clients come.
var sharedClients = []string{"connect", "grpc", "link"}

// dial reaches a destination as one kind of client does.
func (c *sharer) dial(kind, address string) (net.Conn, error) {
	return c.dialAt(kind, c.of.tcp, c.serverName(), address)
}

// dialAt is dial for one who comes by some port of the server's and asks for a name.
func (c *sharer) dialAt(kind, at, name, address string) (net.Conn, error) {
	r := c.of
	switch kind {
	case "connect":
		conn, err := tls.Dial("tcp", at, secureFor(name, c.cert, "http/1.1"))
		if err != nil {
			return nil, err
		}
		return r.connect(conn, address)
	case "grpc":
		return r.tunnel(address, at, credentials.NewTLS(secureFor(name, c.cert)))
	default:
		return r.byLink(c.clientLinkAt(at, name))(address)
	}
}

// reachesItsOwn has clients of these kinds come by a port under every name, and wants
// all of them to come to the cluster's own agents.
func (c *sharer) reachesItsOwn(at string, kinds ...string) {
	c.of.t.Helper()
	for _, name := range append([]string{c.serverName()}, commonNames...) {
		for _, kind := range kinds {
			conn, err := c.dialAt(kind, at, name, "10.0.0.1:443")
			testutil.Holds(c.of.t, err == nil && c.greets(conn),
				"%s by %s under %q does not come to its own: %v", c.name, kind, name, err)
		}
	}
}

// cluster is the tenant's runtime; nil: it is not served.
func (c *sharer) cluster() *cluster { return c.of.tenants.now.Load().cluster(c.name) }

// has waits until the server has so many connections of the cluster's agents.
func (c *sharer) has(agents int) {
	c.of.t.Helper()
	c.of.eventually("the agents of "+c.name, func() bool { return len(c.cluster().agents.Agents()) == agents })
}
