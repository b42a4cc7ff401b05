package adapters

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// world is all that is around a sidecar: an agent, the network and the DNS behind
// it, the hosted cluster's API, and the network and the resolver of the sidecar's
// own pod.
type world struct {
	t   testing.TB
	opt Options

	mu       sync.Mutex
	inside   map[string]string       // what the agent reaches: host:port -> where it really is
	outside  map[string]string       // what the pod reaches
	services map[string][]string     // the hosted cluster's API: namespace/name -> clusterIPs
	guest    map[string][]netip.Addr // the hosted cluster's DNS
	system   map[string][]netip.Addr // the pod's resolver
	agent    bool
	dialed   []string      // by the agent
	direct   []string      // by the pod
	ids      []string      // of what the tunnel was asked for
	conns    []tunnel.Conn // through the tunnel
}

// newWorld has everything in place.
func newWorld(t testing.TB) *world {
	w := &world{t: t, inside: map[string]string{}, outside: map[string]string{}, services: map[string][]string{"openshift-dns/dns-default": {"10.0.0.10"}},
		guest: map[string][]netip.Addr{}, system: map[string][]netip.Addr{}, agent: true}
	w.inside["10.0.0.10:53"] = w.startDNS()
	api := httptest.NewServer(http.HandlerFunc(w.serveAPI))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	testutil.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, "clusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: c}}]\n", api.URL), 0o600))
	w.opt = Options{
		dialServer:  tunnel.DialerFunc(w.agentDial),
		proxyCADirs: []string{},
		lookupTime:  testutil.Patience, // the bounds are tested where time is fake
		Server:      ServerOptions{Address: testutil.Refusing(t), TLS: noCertificates{}},
		Hosted:      HostedOptions{Kubeconfig: kubeconfig},
		Direct:      DirectOptions{env: func(string) string { return "" }, lookup: w.lookup, dialTCP: w.podDial},
	}
	return w
}

// noCertificates are those for a server that is never reached.
type noCertificates struct{}

func (noCertificates) Client(string, ...string) *tls.Config { return new(tls.Config) }

// adapter composes and runs one until the test ends.
func (w *world) adapter() *Adapter {
	w.t.Helper()
	a := testutil.Must(New(w.opt))(w.t)
	testutil.Start(w.t, func(ctx context.Context) { _ = a.Run(ctx) })
	return a
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) agentDial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	w.mu.Lock()
	w.dialed, w.ids = append(w.dialed, f.Address), append(w.ids, f.ID)
	real, ok := w.inside[f.Address]
	agent := w.agent
	w.mu.Unlock()
	if !agent {
		return nil, &tunnel.DialError{Failure: tunnel.FailNoAgent, Reason: "no agent available"}
	}
	c, err := dialReal(ctx, f.Network, f.Address, real, ok)
	if err == nil {
		w.set(func() { w.conns = append(w.conns, c) })
	}
	return c, err
}

// loseAgent takes the agent away, and with it what it carried.
func (w *world) loseAgent() {
	w.set(func() {
		w.agent = false
		for _, c := range w.conns {
			_ = c.Reset(errors.New("agent lost"))
		}
	})
}

func dialReal(ctx context.Context, network, address, real string, ok bool) (tunnel.Conn, error) {
	if !ok {
		host, _, _ := net.SplitHostPort(address)
		if _, err := netip.ParseAddr(host); err != nil {
			return nil, &tunnel.DialError{Failure: tunnel.FailNoSuchHost, Address: address, Reason: "no such host"}
		}
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused, Address: address, Reason: "connection refused"}
	}
	c, err := new(net.Dialer).DialContext(ctx, network, real)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}

func (w *world) podDial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	w.direct = append(w.direct, address)
	real, ok := w.outside[address]
	w.mu.Unlock()
	c, err := dialReal(ctx, network, address, real, ok)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (w *world) lookup(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if addrs, ok := w.system[host]; ok {
		return addrs, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// serve runs handle for every connection to a new port until the test ends.
func serve(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	return testutil.Serve(t, func(c *net.TCPConn) { handle(c) })
}

// target says its name first, then echoes.
func target(t testing.TB, name string) string {
	return serve(t, func(c net.Conn) {
		fmt.Fprintln(c, name)
		_, _ = io.Copy(c, c)
		_ = c.(*net.TCPConn).CloseWrite()
	})
}

// serveAPI answers for the Services in w.services, one by one: none may be listed.
func (w *world) serveAPI(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	path := strings.Split(r.URL.Path, "/") // /api/v1/namespaces/NAMESPACE/services/NAME
	if len(path) != 7 {
		rw.WriteHeader(http.StatusForbidden)
		return
	}
	ips, ok := w.services[path[4]+"/"+path[6]]
	if !ok {
		rw.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(rw).Encode(map[string]any{"spec": map[string]any{"clusterIPs": ips}})
}

// startDNS serves the zone in w.guest over TCP.
func (w *world) startDNS() string {
	return serve(w.t, func(c net.Conn) {
		for {
			var size [2]byte
			if _, err := io.ReadFull(c, size[:]); err != nil {
				return
			}
			msg := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(c, msg); err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(msg) != nil {
				return
			}
			w.answer(&m)
			out, err := m.AppendPack(make([]byte, 2))
			if err != nil {
				return
			}
			binary.BigEndian.PutUint16(out, uint16(len(out)-2))
			_, _ = c.Write(out)
		}
	})
}

func (w *world) answer(m *dnsmessage.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m.Response = true
	q := m.Questions[0]
	addrs, ok := w.guest[strings.TrimSuffix(q.Name.String(), ".")]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addrs {
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 300}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
}

func ips(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// reaches wants the one named want to answer, or "!" and why none does, by a route.
func reaches(t testing.TB, d tunnel.Dialer, address, want string, route tunnel.Route) {
	t.Helper()
	got, trace := reached(t, d, address)
	testutil.Equal(t, got, want, "who answers at %s", address)
	testutil.Equal(t, trace.Route, route, "the route to %s", address)
}

// reached dials and returns who answered ("name"), or why not ("!label").
func reached(t testing.TB, d tunnel.Dialer, address string) (string, *tunnel.Flow) {
	t.Helper()
	trace := tunnel.NewFlow("tcp", address)
	c, err := d.Dial(testutil.Context(t), trace)
	if err != nil {
		return "!" + tunnel.FailureOf(err).Label(), trace
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	testutil.Succeeds(t, testutil.Err(io.WriteString(c, "ping")), "the write")
	testutil.Succeeds(t, c.CloseWrite(), "CloseWrite")
	got, err := io.ReadAll(c)
	name, echoed, _ := strings.Cut(string(got), "\n")
	testutil.Succeeds(t, err, "reading from %s", address)
	testutil.Equal(t, echoed, "ping", "the echo of %s", address)
	return name, trace
}

// customer is a customer's proxy (or the pod's): CONNECT and absolute-form.
type customer struct {
	name string
	auth string // required value of Proxy-Authorization
	tls  *tls.Config

	script func(c net.Conn) // serves a connection instead; nil: none does
}

func (p *customer) start(t testing.TB) string {
	return serve(t, func(raw net.Conn) {
		c := raw
		if p.tls != nil {
			c = tls.Server(raw, p.tls)
		}
		if p.script != nil {
			p.script(c)
			return
		}
		br := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			switch {
			case req.Header.Get("Proxy-Authorization") != p.auth:
				fmt.Fprint(c, "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
			case req.Method == http.MethodConnect:
				p.connect(c, br, req.Host)
				return
			default:
				body := p.name + " " + req.URL.String()
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		}
	})
}

// connect answers for the target itself: its name first, then an echo.
func (p *customer) connect(c net.Conn, br *bufio.Reader, address string) {
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n\r\n%s to %s\n", p.name, address)
	_, _ = io.Copy(c, br)
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
}

// customerTLS makes a certificate for hosts and the bundle that trusts it.
func customerTLS(t testing.TB, hosts ...string) (*tls.Config, string) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("customer"))(t)
	leaf := pki.Leaf{CommonName: "proxy", Server: true}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPs = append(leaf.IPs, ip)
		} else {
			leaf.DNS = append(leaf.DNS, h)
		}
	}
	pair := testutil.Must(ca.Issue(leaf))(t)
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	testutil.NoError(t, os.WriteFile(bundle, ca.CertPEM, 0o600))
	return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}, bundle
}
