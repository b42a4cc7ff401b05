package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/race"
)

const (
	// listenTime is how long a refusal of our certificate may be under way.
	listenTime = 500 * time.Millisecond

	// http1 is the ALPN id of HTTP/1.1, which carries CONNECT (RFC 7301 §6).
	http1 = "http/1.1"
)

func protocols(mode link.Mode) []string {
	switch mode {
	case link.Off:
		return []string{http1}
	case link.Require:
		return []string{link.ALPN}
	default:
		return []string{link.ALPN, http1}
	}
}

// ErrTalks is the error about a peer that speaks first, which no konnectivity
// server does.
var ErrTalks = errors.New("the server speaks before it is asked; it is no konnectivity server")

var errNoLink = errors.New("the server does not speak the link protocol; use --link=auto")

// handshaken is a TLS connection to the server, before anything was said on it.
type handshaken struct {
	*tls.Conn
	addr  netip.AddrPort
	spare bool // it has waited for a request
}

// link says what ALPN chose.
func (h handshaken) link() bool { return h.ConnectionState().NegotiatedProtocol == link.ALPN }

// connectAny connects to one of the server's addresses. When all that are
// known fail, they are looked up anew, once.
func (s *Server) connectAny(ctx context.Context) (handshaken, error) {
	addrs, fresh, err := s.servers.addresses(ctx, false)
	if err != nil {
		return handshaken{}, err
	}
	h, err := s.raceTo(ctx, addrs)
	if err == nil || fresh || ctx.Err() != nil {
		return h, err
	}
	again, _, lookupErr := s.servers.addresses(ctx, true)
	if lookupErr != nil || sameSet(addrs, again) {
		return h, err
	}
	return s.raceTo(ctx, again)
}

func sameSet(a, b []netip.AddrPort) bool {
	if len(a) != len(b) {
		return false
	}
	for _, addr := range a {
		if !slices.Contains(b, addr) {
			return false
		}
	}
	return true
}

func (s *Server) raceTo(ctx context.Context, addrs []netip.AddrPort) (handshaken, error) {
	addrs = slices.Clone(addrs)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	h, _, err := race.Dial(ctx, addrs, s.connectTo, func(h handshaken) { _ = h.Close() })
	return h, err
}

// connectTo makes one connection, TCP and TLS.
func (s *Server) connectTo(ctx context.Context, addr netip.AddrPort) (handshaken, error) {
	raw, err := s.reach(ctx, addr)
	if err != nil {
		return handshaken{}, err
	}
	h, err := s.secure(ctx, raw, addr)
	if err == nil && s.opt.Mode == link.Require && !h.link() {
		err = errNoLink
	}
	if err != nil {
		_ = raw.Close()
		return handshaken{}, err
	}
	return h, nil
}

// reach connects by TCP.
func (s *Server) reach(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	raw, err := s.opt.dialTCP(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	raw = tunnel.Wrap(raw)
	if s.opt.Mode != link.Off {
		raw = link.Cork(raw)
	}
	return raw, nil
}

// secure makes the TLS handshake on raw. What it returns has the TLS state even
// if that fails.
func (s *Server) secure(ctx context.Context, raw net.Conn, addr netip.AddrPort) (handshaken, error) {
	c := tls.Client(raw, s.tls)
	return handshaken{Conn: c, addr: addr}, c.HandshakeContext(ctx)
}

// greet makes a link of h.
func (s *Server) greet(ctx context.Context, h handshaken, hello link.Hello) (*link.Session, error) {
	return link.Connect(ctx, h.Conn, link.Config{Hello: hello, Budget: s.budget, Log: s.opt.Log})
}

// connectOver asks for f.Address by HTTP CONNECT on h, which it takes over.
func (s *Server) connectOver(ctx context.Context, h handshaken, f *tunnel.Flow) (tunnel.Conn, error) {
	address := f.Address
	c, err := connect.Handshake(ctx, tunnel.Wrap(h.Conn), connect.Request{Address: address, ID: f.ID, UserAgent: s.opt.Software})
	if err == nil {
		s.note(nil)
		return c, nil
	}
	var status *connect.StatusError
	var typed *tunnel.DialError
	switch {
	case errors.As(err, &typed):
		return nil, err
	case errors.As(err, &status):
		s.note(nil)
		return nil, &tunnel.DialError{Failure: connect.ServerFailure(status), Address: address, Err: err}
	case ctx.Err() != nil:
		return nil, tunnel.AsDialError(address, err)
	default:
		s.note(err)
		return nil, s.unavailable(address, err)
	}
}

// listen gives an old server the time to refuse us. One that takes us waits in
// silence for our request.
func (h handshaken) listen() error {
	_ = h.SetReadDeadline(time.Now().Add(listenTime))
	_, err := h.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err == nil {
		err = ErrTalks
	}
	return err
}

// unavailable makes err, which kept us from the server, an error for clients.
func (s *Server) unavailable(address string, err error) error {
	var typed *tunnel.DialError
	if errors.As(err, &typed) && typed.Failure == tunnel.FailUnavailable {
		return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: typed.Reason, Err: typed.Err}
	}
	if errors.Is(err, context.Canceled) {
		return &tunnel.DialError{Failure: tunnel.FailCancelled, Address: address, Err: err}
	}
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: reason(err), Err: err}
}

// reason tells a client why the server cannot be reached, without addresses.
func reason(err error) string {
	const what = "the konnectivity server "
	var files *tlsreload.NotReadyError
	var untrusted *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var peer *tlsreload.PeerError
	var op *net.OpError
	var refused *link.GoAwayError
	var dns *net.DNSError
	switch failure := tunnel.FailureOf(err); {
	case errors.As(err, &files):
		return "the certificates for the konnectivity server are not in place"
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return what + "shows a certificate that is not trusted"
	case errors.As(err, &peer):
		return what + "shows a certificate of another role than a server's"
	case tlsreload.RefusedByPeer(err):
		return what + "does not take our client certificate, whose role may not be client; its log says why"
	case tlsreload.NameUnknown(err):
		return what + "does not know the name it was asked for; check --server-name, and whether its tenant was removed or is broken"
	case link.NoProtocol(err):
		return what + "speaks none of the protocols that --link allows here; with --link=auto all are tried"
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls's name for an alert
		return what + "refuses our TLS handshake"
	case errors.As(err, &refused):
		return what + "refuses the link"
	case errors.Is(err, errNoLink):
		return errNoLink.Error()
	case errors.As(err, &dns):
		return "the name of the konnectivity server cannot be resolved"
	case failure == tunnel.FailTimeout:
		return what + "does not answer in time"
	case failure == tunnel.FailRefused:
		return what + "refuses connections"
	default:
		return what + "cannot be reached"
	}
}
