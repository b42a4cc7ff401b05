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
	"strings"
	"time"

	"konnectivity/adapters/uplink"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/version"
	"konnectivity/server/frontend"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// roundTripTime bounds the wait for the first round trip of a link.
	roundTripTime = 2 * time.Second

	// maxRefusal bounds the answer to a request that is not CONNECT; ours has 300 bytes.
	maxRefusal = 16 << 10
)

// checkServer checks the server's name, port, certificate and protocol.
func (c *pathChecker) checkServer(ctx context.Context) bool {
	c.group = "server"
	way, err := c.serverPath()
	if err != nil {
		return c.fail("flags", err.Error(), "A sidecar would not start with them either.")
	}
	defer way.Close()
	addrs, ok := c.resolveServer(ctx, way)
	if !ok {
		return false
	}
	reached := c.reachServer(ctx, way, addrs)
	if !reached.IsValid() {
		return false
	}
	return c.secureServer(ctx, way, reached)
}

// serverPath returns the sidecar's connection to the server. Unlike that of the sidecar,
// it accepts servers without links even with --link=require, to report them.
func (c *pathChecker) serverPath() (*uplink.Server, error) {
	options := c.opts.Sidecar.Adapter(c.source, c.quiet).Server
	if options.Mode == link.Require {
		options.Mode = link.Auto
	}
	options.Software = "konnectivity-check/" + version.Get().Version
	return uplink.New(options)
}

func (c *pathChecker) resolveServer(ctx context.Context, way *uplink.Server) ([]netip.AddrPort, bool) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	start := time.Now()
	addrs, err := way.Addresses(ctx)
	const step = "name of the server"
	host := c.opts.Sidecar.ServerHost
	var dns *net.DNSError
	switch {
	case err == nil:
		if _, literal := netip.ParseAddr(host); literal != nil {
			c.timed(step, fmt.Sprintf("%s is %s", host, hosts(addrs)), start)
		}
		return addrs, true
	case errors.As(err, &dns) && dns.IsNotFound:
		return nil, c.fail(step, host+" does not exist in DNS", "Check --konnectivity-hostname; inside a cluster a Service is NAME.NAMESPACE.svc.")
	default:
		return nil, c.fail(step, "DNS does not answer for "+host, "Check this machine's /etc/resolv.conf and whether that DNS server works; a network policy may block port 53.")
	}
}

func hosts(addrs []netip.AddrPort) string {
	var ips []netip.Addr
	for _, a := range addrs {
		ips = append(ips, a.Addr())
	}
	return status.Addresses(ips)
}

// reachServer connects to every address, since each may be another server, and returns
// the first that answers. If one does, an address of a family that this machine has no
// route for is only a warning: a sidecar does without it.
func (c *pathChecker) reachServer(ctx context.Context, way *uplink.Server, addrs []netip.AddrPort) (reached netip.AddrPort) {
	const step = "TCP to the server"
	unreached := map[int]tunnel.Failure{} // by index in findings
	for _, at := range addrs {
		dial, cancel := context.WithTimeout(ctx, c.opts.Timeout)
		start := time.Now()
		probe, err := way.Probe(dial, at)
		cancel()
		if err != nil {
			unreached[len(c.findings)] = tunnel.FailureOf(err)
			c.fail(step, at.String()+": "+tunnel.FailureOf(err).String(), reachHint(tunnel.FailureOf(err)))
			continue
		}
		probe.Close()
		c.timed(step, at.String(), start)
		if !reached.IsValid() {
			reached = at
		}
	}
	for i, failure := range unreached {
		if reached.IsValid() && failure == tunnel.FailNetUnreach {
			c.findings[i].Result = Warning
		}
	}
	return reached
}

// reachHint says what to do about a server that cannot be reached.
func reachHint(failure tunnel.Failure) string {
	switch failure {
	case tunnel.FailRefused:
		return "Nobody listens on that port. Check --konnectivity-port, and that the server runs and its Service has endpoints."
	case tunnel.FailTimeout:
		return "Packets are dropped on the way. Look for a firewall or a network policy."
	case tunnel.FailNetUnreach:
		return "This machine has no route there, or no address of that family (IPv4 or IPv6)."
	default:
		return "Check the network between here and there: routes, firewalls, network policies."
	}
}

// secureServer makes a TLS connection, and checks the protocol that the server chooses.
func (c *pathChecker) secureServer(ctx context.Context, way *uplink.Server, at netip.AddrPort) bool {
	const tlsStep, certStep = "TLS with the server", "certificate of the server"
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	probe, err := way.Probe(ctx, at)
	if err != nil {
		return c.fail(tlsStep, err.Error(), "It answered a moment ago; it may be restarting.")
	}
	defer probe.Close()
	start := time.Now()
	state, err := probe.Secure(ctx)
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return c.fail(tlsStep, via.Identify(ctx, at.String()).Who+" answers there instead, without TLS",
			"Another program has taken the port, or --konnectivity-port names another one: health and admin ports have no TLS.")
	}
	if cause, hint := c.distrust(err); cause != "" {
		return c.fail(certStep, cause, hint)
	}
	if err != nil {
		return c.failHandshake(tlsStep, err)
	}
	leaf := state.PeerCertificates[0]
	if left, soon := expiresSoon(leaf, c.now()); soon {
		c.warn(certStep, fmt.Sprintf("%s%s expires in %s", pki.Name(leaf), role(leaf), left), "Find out why it was not renewed in time on the server.")
	} else {
		c.timed(certStep, pki.Name(leaf)+role(leaf)+until(leaf.NotAfter), start)
	}
	if probe.Linked() {
		return c.openLink(ctx, probe)
	}
	return c.checkConnect(probe)
}

// distrust says why a server's certificate is not trusted; cause is "" if it is.
func (c *pathChecker) distrust(err error) (cause, hint string) {
	var untrusted *tls.CertificateVerificationError
	var role *tlsreload.PeerError
	switch {
	case errors.As(err, &role):
		return role.Error(), "Give the server a certificate of its own, such as server.crt of `konnectivity certs`."
	case !errors.As(err, &untrusted):
		return "", ""
	}
	leaf := untrusted.UnverifiedCertificates[0]
	if cause, hint := invalidTime("the server's certificate", leaf, c.now(), "Renew it on the server."); cause != "" {
		return cause, hint
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("it is not for %s but for %s", host.Host, tlsreload.GoodFor(leaf)), c.nameHint()
	}
	trusted := "the system's CAs"
	if len(c.cas) > 0 {
		trusted = names(c.cas) + " of " + c.opts.Sidecar.Files.CA
	}
	return fmt.Sprintf("it was issued by %s, which does not lead to %s", pki.NameOf(leaf.Issuer), trusted),
		"Give the CA that issued the server's certificate as --ca-cert-path; a CA of the same name but another key does not do."
}

// nameHint says what to do about a server whose certificate is for other names.
func (c *pathChecker) nameHint() string {
	if c.opts.Sidecar.Out.Server.ServerName == "" {
		return "Reach the server by one of those names, ask for it with --server-name, or add this one to its certificate."
	}
	return "That is the name in --server-name: check its spelling. If it is to be a tenant's, the server has no such tenant, and shows its own certificate; `konnectivity tenants list` has their names. Or leave the flag out."
}

const unknownCA tls.AlertError = 48

// alerts describe the TLS alerts of a server (RFC 8446 §6.2), with what to do.
var alerts = map[tls.AlertError][2]string{
	42:        {"the server refuses our client certificate", "The server may trust another CA for clients (its --server-ca-cert), or want the role client in its name (its --require-peer-role), or this is its port for agents, which refuses clients. Its log says which."},
	43:        {"the server does not take our kind of client certificate", "Issue one with another key type."},
	44:        {"the server says that our client certificate was revoked", "Issue a new one."},
	45:        {"the server says that our client certificate expired", "If it has not, the server's clock is wrong."},
	46:        {"the server refuses our client certificate", "The server's log says why."},
	unknownCA: {"the server does not know the CA of our client certificate", "Use a client certificate of the CA in the server's --server-ca-cert or, where the name asked for is a tenant's, in that tenant's clients-ca.crt."},
	80:        {"the server has an internal error", "Look at the server's log."},
	112:       {"the server does not know the name we asked for", "Check --server-name, or without it --konnectivity-hostname. If the name is a tenant's, the tenant may have been removed or be broken."},
	116:       {"the server wants a client certificate", "Give --tls-cert-path and --tls-key-path. It takes tokens only with --client-service-accounts."},
	120:       {"the server speaks neither links nor HTTP CONNECT on this port", "Check --konnectivity-port: it may be the port for agents, or a gRPC-only server (--mode=grpc)."},
}

// failAlert fails the step for an alert of the server.
func (c *pathChecker) failAlert(step string, alert tls.AlertError) bool {
	words, ok := alerts[alert]
	switch {
	case !ok:
		return c.fail(step, "the server ended it: "+alert.Error(), "Look at the server's log.")
	case alert == unknownCA && c.source.Certificate() != nil:
		return c.fail(step, "the server does not accept client certificates issued by "+pki.NameOf(c.source.Certificate().Leaf.Issuer), words[1])
	default:
		return c.fail(step, words[0], words[1])
	}
}

// failHandshake fails the step for why TLS failed.
func (c *pathChecker) failHandshake(step string, err error) bool {
	alert, alerted := tlsreload.AlertOf(err)
	unheard, lost := errors.AsType[*link.UnheardError](err)
	switch {
	case lost:
		return c.fail(step, unheard.Error(), "A tunnel on the way may take smaller packets than this machine's, while ICMP, which would tell, is blocked: lower the MTU here or clamp the MSS at a router, or let ICMP pass. Agents and sidecars try small segments next. If those are lost, too, nothing gets through at the moment.")
	case alerted:
		return c.failAlert(step, alert)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return c.fail(step, "the server accepted the connection and then said nothing", "It hangs or is overloaded, or a load balancer has no server behind it.")
	default:
		return c.fail(step, "the connection ended: "+err.Error(), "A load balancer without a healthy server behind it does that, and a server that is shutting down.")
	}
}

// openLink exchanges HELLOs and measures a round trip.
func (c *pathChecker) openLink(ctx context.Context, probe *uplink.Probe) bool {
	session, err := probe.Link(ctx)
	var bye *link.GoAwayError
	switch {
	case errors.As(err, &bye):
		hint := "Check --konnectivity-port: the port for agents refuses clients."
		if c.opts.Sidecar.TokenFile != "" && strings.Contains(bye.Text, "token") { // it was judged
			hint = "The token must be of one of the server's --client-service-accounts, and for its --client-authentication-audience. The server's log says more."
		}
		return c.fail("link with the server", "the server ended it: "+bye.Error(), hint)
	case err != nil:
		return c.failHandshake("link with the server", err)
	}
	defer session.Close()
	c.linked = true
	peer := session.Peer()
	forwards := ""
	if session.Forwards() {
		forwards = ", and forwards to the others"
	}
	c.ok("link with the server", fmt.Sprintf("%s, id %s, one of %s%s", peer.Software, peer.ID, status.Plural(max(1, session.ServerCount()), "server"), forwards))
	for end := time.Now().Add(roundTripTime); session.RTT() == 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if rtt := session.RTT(); rtt > 0 {
		c.add(Finding{Step: "round trip to the server", Result: OK, Milliseconds: milliseconds(rtt)})
	} else {
		c.warn("round trip to the server", "no answer to a ping", "The server is overloaded, or the path to it is.")
	}
	c.serving = session.Serving()
	return true
}

// checkConnect checks a server without links.
func (c *pathChecker) checkConnect(probe *uplink.Probe) bool {
	const step, cause = "protocol of the server", "it speaks HTTP CONNECT only, no links"
	switch err := probe.Admitted(); {
	case errors.Is(err, uplink.ErrTalks):
		return c.fail(step, err.Error(), "Another program answers there. Check --konnectivity-port.")
	case err != nil:
		return c.failHandshake("certificate of this client", err)
	}
	const hint = "It is an old server, or one with --link=off. It works, but a connection costs a handshake, and one slow reader can stall others. Update it."
	switch c.opts.Sidecar.Out.Server.Mode {
	case link.Require:
		return c.fail(step, cause+", and --link=require demands them", hint+" Or use --link=auto.")
	case link.Off:
		c.ok(step, "HTTP CONNECT, as --link=off says")
	default:
		c.warn(step, cause, hint)
	}
	c.serving = queryServing(probe.Conn())
	return true
}

// queryServing asks a server without links whether its agents serve, by a request that
// dials nothing. Servers that do not know the request refuse it.
func queryServing(conn net.Conn) (serving link.Serving) {
	_ = conn.SetDeadline(time.Now().Add(roundTripTime))
	if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: konnectivity\r\nConnection: close\r\n\r\n"); err != nil {
		return serving
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxRefusal)), nil)
	if err != nil {
		return serving
	}
	defer response.Body.Close()
	answer, why, _ := strings.Cut(response.Header.Get(frontend.ServingHeader), ";")
	switch answer {
	case "yes":
		serving.Told = true
	case "no":
		serving = link.Serving{Told: true, Why: cmp.Or(strings.TrimSpace(why), "no agent serves")}
	}
	return serving
}
