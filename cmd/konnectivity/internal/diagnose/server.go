package diagnose

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"time"

	"konnectivity/adapters"
	"konnectivity/cmd/konnectivity/internal/identify"
	"konnectivity/cmd/konnectivity/internal/screen"
	"konnectivity/internal/pki"
	"konnectivity/internal/version"
	"konnectivity/server/frontend"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// refusalTime is how long a server's refusal of our certificate may take
	// to come; with TLS 1.3 it follows the handshake.
	refusalTime = 500 * time.Millisecond

	// roundTripTime is how long to wait for a link's first measured round trip.
	roundTripTime = 2 * time.Second

	// maxRefusal bounds the answer to a request that is not CONNECT; ours has 300 bytes.
	maxRefusal = 16 << 10
)

// checkServer walks from the server's name to what it says of itself.
func (c *checker) checkServer(ctx context.Context) bool {
	c.group = "server"
	addrs, ok := c.resolveServer(ctx)
	if !ok {
		return false
	}
	reached := c.reachServer(ctx, addrs)
	if reached == "" {
		return false
	}
	return c.greetServer(ctx, reached)
}

func (c *checker) resolveServer(ctx context.Context) ([]netip.Addr, bool) {
	host := c.opts.Sidecar.ServerHost
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, true
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	start := time.Now()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	const step = "name of the server"
	var dns *net.DNSError
	switch {
	case err == nil && len(addrs) > 0:
		c.timed(step, fmt.Sprintf("%s is %s", host, screen.Addresses(addrs)), start)
		return addrs, true
	case errors.As(err, &dns) && dns.IsNotFound, err == nil:
		return nil, c.fail(step, host+" does not exist in DNS", "Check --konnectivity-hostname; inside a cluster a Service is NAME.NAMESPACE.svc.")
	default:
		return nil, c.fail(step, "DNS does not answer for "+host, "Check this machine's /etc/resolv.conf and whether that DNS server works; a network policy may block port 53.")
	}
}

// reachServer connects to every address, since each may be another server, and
// returns the first that answers.
func (c *checker) reachServer(ctx context.Context, addrs []netip.Addr) (reached string) {
	for _, ip := range addrs {
		at := netip.AddrPortFrom(ip.Unmap(), c.opts.Sidecar.ServerPort).String()
		dial, cancel := context.WithTimeout(ctx, c.opts.Timeout)
		start := time.Now()
		conn, err := new(net.Dialer).DialContext(dial, "tcp", at)
		cancel()
		if err == nil {
			_ = conn.Close()
			c.timed("TCP to the server", at, start)
			if reached == "" {
				reached = at
			}
			continue
		}
		hint := "Check the network between here and there: routes, firewalls, network policies."
		switch tunnel.FailureOf(err) {
		case tunnel.FailRefused:
			hint = "Nobody listens on that port. Check --konnectivity-port, and that the server runs and its Service has endpoints."
		case tunnel.FailTimeout:
			hint = "Packets are dropped on the way. Look for a firewall or a network policy."
		}
		c.fail("TCP to the server", at+": "+tunnel.FailureOf(err).String(), hint)
	}
	return reached
}

// greetServer makes a TLS connection and learns what the server speaks.
func (c *checker) greetServer(ctx context.Context, at string) bool {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	if err != nil {
		return c.fail("TLS with the server", err.Error(), "It answered a moment ago; it may be restarting.")
	}
	defer raw.Close()
	conn := tls.Client(raw, c.clientTLS())
	start := time.Now()
	err = conn.HandshakeContext(ctx)
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		return c.fail("TLS with the server", identify.At(ctx, at).Who+" answers there instead, without TLS",
			"Another program has taken the port, or --konnectivity-port names another one: health and admin ports have no TLS.")
	}
	if err != nil {
		cause, hint := c.handshakeTrouble(err)
		return c.fail("TLS with the server", cause, hint)
	}
	state := conn.ConnectionState()
	if cause, hint := c.verify(state.PeerCertificates); cause != "" {
		return c.fail("certificate of the server", cause, hint)
	}
	c.timed("certificate of the server", pki.Name(state.PeerCertificates[0])+role(state.PeerCertificates[0])+until(state.PeerCertificates[0].NotAfter), start)
	if state.NegotiatedProtocol == link.ALPN {
		return c.greetLink(ctx, conn)
	}
	return c.greetOld(conn)
}

// clientTLS is the sidecar's, but for the verification: verify does that, since
// it can say more of a certificate than a failed handshake.
func (c *checker) clientTLS() *tls.Config {
	protos := []string{link.ALPN, "http/1.1"}
	if c.opts.Sidecar.Link == adapters.LinkOff {
		protos = protos[1:]
	}
	config := &tls.Config{
		ServerName: strings.TrimSuffix(c.opts.Sidecar.ServerHost, "."), NextProtos: protos, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // see verify; nothing is sent before it
	}
	if c.files.pair.Certificate != nil {
		config.Certificates = []tls.Certificate{c.files.pair}
	}
	return config
}

// verify says what is wrong with a server's certificate; "" is nothing.
func (c *checker) verify(chain []*x509.Certificate) (cause, hint string) {
	leaf, host := chain[0], strings.TrimSuffix(c.opts.Sidecar.ServerHost, ".")
	if cause, hint := invalidTime("the server's certificate", leaf, c.now(), "Renew it on the server."); cause != "" {
		return cause, hint
	}
	options := x509.VerifyOptions{Roots: c.files.roots, Intermediates: x509.NewCertPool(), CurrentTime: c.now()}
	for _, more := range chain[1:] {
		options.Intermediates.AddCert(more)
	}
	if _, err := leaf.Verify(options); err != nil {
		trusted := "the system's CAs"
		if len(c.files.cas) > 0 {
			trusted = names(c.files.cas) + " of " + c.opts.Sidecar.Files.CA
		}
		return fmt.Sprintf("it was issued by %s, which does not lead to %s", nameOf(leaf), trusted),
			"Give the CA that issued the server's certificate as --ca-cert-path; a CA of the same name but another key does not do."
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return fmt.Sprintf("it is not for %s but for %s", host, sans(leaf)), "Reach the server by one of those names, or add this one to its certificate."
	}
	if err := c.opts.Sidecar.Peers.Peer(pki.RoleServer)(leaf); err != nil {
		return err.Error(), "Give the server a certificate of its own, such as server.crt of `konnectivity certs`."
	}
	return "", ""
}

func nameOf(leaf *x509.Certificate) string {
	if leaf.Issuer.CommonName != "" {
		return leaf.Issuer.CommonName
	}
	return leaf.Issuer.String()
}

// maxSANs bounds how many names are told.
const maxSANs = 8

func sans(leaf *x509.Certificate) string {
	all := append([]string{}, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no name at all"
	}
	if len(all) > maxSANs {
		all = append(all[:maxSANs], "more")
	}
	return strings.Join(all, ", ")
}

const (
	unknownCA           = 48
	certificateRequired = 116
)

// alerts are what a server says of our certificate (RFC 8446 §6.2).
var alerts = map[uint64][2]string{
	42:                  {"the server refuses our client certificate", "The server may trust another CA for clients (its --server-ca-cert), or want the role client in its name (its --require-peer-role). Its log says which."},
	43:                  {"the server does not take our kind of client certificate", "Issue one with another key type."},
	44:                  {"the server says that our client certificate was revoked", "Issue a new one."},
	45:                  {"the server says that our client certificate expired", "If it has not, the server's clock is wrong."},
	46:                  {"the server refuses our client certificate", "The server's log says why."},
	unknownCA:           {"the server does not know the CA of our client certificate", "Use a client certificate of the CA in the server's --server-ca-cert."},
	80:                  {"the server has an internal error", "Look at the server's log."},
	112:                 {"the server does not know the name we asked for", "Check --konnectivity-hostname."},
	certificateRequired: {"the server wants a client certificate", "Give --tls-cert-path and --tls-key-path."},
	120:                 {"the server speaks neither links nor HTTP CONNECT on this port", "Check --konnectivity-port: it may be the port for agents, or a gRPC-only server (--mode=grpc)."},
}

// alert says what an alert of the server means. Its type is not exported by
// crypto/tls, but is a uint8 for all versions of TLS.
func (c *checker) alert(err error) (cause, hint string) {
	number := uint64(0)
	if v := reflect.ValueOf(err); v.Kind() == reflect.Uint8 {
		number = v.Uint()
	}
	words, ok := alerts[number]
	switch {
	case !ok:
		return "the server ended it: " + err.Error(), "Look at the server's log."
	case number == certificateRequired && len(c.files.pair.Certificate) > 0:
		// A client does not show a certificate that the server does not ask for.
		return "the server takes no client certificate that was issued by " + nameOf(c.files.pair.Leaf), alerts[unknownCA][1]
	default:
		return words[0], words[1]
	}
}

// handshakeTrouble says why TLS failed.
func (c *checker) handshakeTrouble(err error) (cause, hint string) {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls's name for an alert
		return c.alert(op.Err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "the server accepted the connection and then said nothing", "It hangs or is overloaded, or a load balancer has nobody behind it."
	default:
		return "the connection ended: " + err.Error(), "A load balancer without a healthy server behind it does that, and a server that is shutting down."
	}
}

// greetLink exchanges HELLOs and takes a round trip.
func (c *checker) greetLink(ctx context.Context, conn *tls.Conn) bool {
	session, err := link.Connect(ctx, conn, link.Config{Hello: link.Hello{
		Role: link.RoleClient, Software: "konnectivity-check/" + version.Get().Version, ID: "check-" + tunnel.NewID(),
	}})
	var bye *link.GoAwayError
	switch {
	case errors.As(err, &bye):
		return c.fail("link with the server", "the server ended it: "+bye.Error(), "Check --konnectivity-port: the port for agents refuses clients.")
	case err != nil:
		cause, hint := c.handshakeTrouble(err)
		return c.fail("link with the server", cause, hint)
	}
	defer session.Close()
	c.linked = true
	peer := session.Peer()
	c.ok("link with the server", fmt.Sprintf("%s, id %s, one of %s", peer.Software, peer.ID, screen.Plural(max(1, session.ServerCount()), "server")))
	for end := time.Now().Add(roundTripTime); session.RTT() == 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if rtt := session.RTT(); rtt > 0 {
		c.add(Finding{Step: "round trip to the server", Result: OK, Milliseconds: milliseconds(rtt)})
	} else {
		c.warn("round trip to the server", "no answer to a ping", "The server is overloaded, or the way to it is.")
	}
	c.serving = session.Serving()
	return true
}

// greetOld is for a server without links: whether it lets us in shows in that
// it stays silent and waits for a request.
func (c *checker) greetOld(conn *tls.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(refusalTime))
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		cause, hint := c.handshakeTrouble(err)
		return c.fail("certificate of this client", cause, hint)
	}
	const step, cause = "protocol of the server", "it speaks HTTP CONNECT only, no links"
	const hint = "It is an old server, or one with --link=off. It works, but a connection costs a handshake, and one slow reader can stall others. Update it."
	switch c.opts.Sidecar.Link {
	case adapters.LinkRequire:
		return c.fail(step, cause+", and --link=require demands them", hint+" Or use --link=auto.")
	case adapters.LinkOff:
		c.ok(step, "HTTP CONNECT, as --link=off says")
	default:
		c.warn(step, cause, hint)
	}
	c.serving = askServing(conn)
	return true
}

// askServing asks a server without a link about its agents, by a request that
// dials nothing. Servers that do not know the question refuse it all the same.
func askServing(conn *tls.Conn) (told link.Serving) {
	_ = conn.SetDeadline(time.Now().Add(roundTripTime))
	if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: konnectivity\r\nConnection: close\r\n\r\n"); err != nil {
		return told
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxRefusal)), nil)
	if err != nil {
		return told
	}
	defer response.Body.Close()
	answer, why, _ := strings.Cut(response.Header.Get(frontend.ServingHeader), ";")
	switch answer {
	case "yes":
		told.Told = true
	case "no":
		told = link.Serving{Told: true, Why: cmp.Or(strings.TrimSpace(why), "no agent serves")}
	}
	return told
}
