package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// rotationBound is the promise: new handshakes use new files that soon.
const rotationBound = 60 * time.Second

// Every file is replaced while connections are open: first the CA by a bundle
// of the old and a new one, then every certificate by one of the new CA, and then
// the bundle by the new CA alone.
func TestRotationDropsNothing(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	streams := w.holdStreams(t, 5, "socks5", "https", "uds")
	direct := w.holdStreams(t, 5, "mtls") // which nothing carries on
	next := must(pki.NewCA("next CA"))(t)
	old := must(os.ReadFile(w.PKI("ca.crt")))(t)
	bundle := slices.Concat(old, next.CertPEM)
	programs := map[string]struct {
		url, prefix string
		names       []string
	}{
		"server": {w.server.HealthURL("/metrics"), "konnectivity_tls_", []string{"server", "cluster"}},
		"agent":  {w.agent.HealthURL("/metrics"), "konnectivity_tls_", []string{"agent"}},
	}
	reloaded := func(times float64) {
		t.Helper()
		for _, p := range programs {
			for _, name := range p.names {
				reaches(t, rotationBound, p.url, fmt.Sprintf(`%sreloads_total{name=%q,result="success"}`, p.prefix, name), times)
			}
		}
		for _, p := range []*suite.Process{w.socks.Process, w.https.Process} {
			eventually(t, rotationBound, p.Name+" reloads", func() (bool, any) {
				n := strings.Count(p.Output(), "certificate files changed")
				return n == int(times), n
			})
		}
		streams(t)
	}

	replace(t, w.PKI("ca.crt"), bundle)
	reloaded(1)
	direct(t)

	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	issuer := authority{CA: next}
	for name, leaf := range map[string]pki.Leaf{
		"server":  {CommonName: "server", DNS: []string{"localhost"}, IPs: loopback, Server: true},
		"cluster": {CommonName: "cluster", DNS: []string{"localhost"}, IPs: loopback, Server: true},
		"client":  {CommonName: "client", Client: true},
		"agent":   {CommonName: "konnectivity-agent", Organization: "kubernetes", Client: true, Holder: pki.Holder{TrustDomain: pki.DefaultTrustDomain, Role: pki.RoleAgent}}, // the same agent
	} {
		issuer.write(t, leaf, w.PKI(name+".crt"), w.PKI(name+".key"))
	}
	reloaded(2)
	client := must(tls.LoadX509KeyPair(w.PKI("client.crt"), w.PKI("client.key")))(t)
	for _, port := range []int{w.server.ClientPort, w.server.AgentPort} {
		shown := handshake(t, port, client)
		testutil.Succeeds(t, testutil.Err(shown.Verify(x509.VerifyOptions{Roots: next.Pool()})),
			"the certificate of port %d, by the new CA", port)
	}

	direct(t)

	// New peers need the new certificates on both sides, and so do those that are connected:
	// their links are made anew, and what these carry goes on.
	replace(t, w.PKI("ca.crt"), next.CertPEM)
	reloaded(3)
	reaches(t, patience, w.server.HealthURL("/metrics"), `server_connection_resets_total{cause="policy"}`, 5)
	logged(t, w.server.Process, patience, "peers were disconnected")
	_ = must(w.StartAgent(w.server))(t)
	socks := must(w.StartSOCKS5(w.server))(t)
	newcomer := dialed(t, viaSOCKS5(socks.Address()), testutil.Echo(t))
	pingPong(t, newcomer, "new certificates")

	testutil.Equal(t, metric(w.agent.HealthURL("/metrics"), `agent_server_disconnects_total{reason="lost"}`), 0,
		"servers that the agent lost")
}

// handshake returns the certificate that a port shows.
func handshake(t *testing.T, port int, client tls.Certificate) *x509.Certificate {
	t.Helper()
	c := must(tls.Dial("tcp", suite.Loopback(port), &tls.Config{Certificates: []tls.Certificate{client}, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}))(t)
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0]
}

// holdStreams opens n connections by each of some routes; the check sees that they all
// still carry bytes.
func (w *whole) holdStreams(t *testing.T, n int, routes ...string) (check func(testing.TB)) {
	t.Helper()
	target := testutil.Echo(t)
	held := map[string][]tunnel.Conn{}
	for _, r := range w.routes(t) {
		if !slices.Contains(routes, r.name) {
			continue
		}
		for range n {
			held[r.name] = append(held[r.name], dialed(t, r, target))
		}
	}
	round := 0
	return func(t testing.TB) {
		t.Helper()
		round++
		for name, conns := range held {
			for _, c := range conns {
				pingPong(t, c, fmt.Sprintf("%s, round %d", name, round))
			}
		}
	}
}

// pingPong wants back what it sends.
func pingPong(t testing.TB, c net.Conn, text string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	got := make([]byte, len(text))
	if _, err := io.WriteString(c, text); err != nil {
		t.Errorf("%s: %v", text, err)
	} else if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, []byte(text)) {
		t.Errorf("%s: came back as %q, %v", text, got, err)
	}
}
