package uplink

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"

	"konnectivity/tunnel/link"
)

// Addresses looks up where the server's name leads to now, as each connection
// that finds no fresh addresses does.
func (s *Server) Addresses(ctx context.Context) ([]netip.AddrPort, error) {
	return s.connector.servers.find(ctx)
}

// A Probe is one connection to the server that carries no request. It shows
// which step of the way there fails, why, and how long each takes. Its methods
// are the steps of every connection that a Server makes. They are called in
// order, by one goroutine at a time.
type Probe struct {
	connector *connector
	addr      netip.AddrPort
	raw       net.Conn
	tls       handshaken
}

// Probe makes the first step, a TCP connection to one of the Addresses.
func (s *Server) Probe(ctx context.Context, addr netip.AddrPort) (*Probe, error) {
	raw, err := s.connector.reach(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Probe{connector: s.connector, addr: addr, raw: raw}, nil
}

// Secure makes the TLS handshake, in which the server's certificate is judged.
// If that fails, the state is what there was of it by then.
func (p *Probe) Secure(ctx context.Context) (tls.ConnectionState, error) {
	h, err := p.connector.secure(ctx, p.raw, p.addr)
	if err == nil {
		p.tls = h
	}
	return h.ConnectionState(), err
}

// Linked says whether the server chose to speak the link, behind Secure.
func (p *Probe) Linked() bool { return p.tls.link() }

// Link exchanges greetings on the link, which the caller closes.
func (p *Probe) Link(ctx context.Context) (*link.Session, error) {
	return p.connector.greet(ctx, p.tls, "")
}

// Admitted says whether a server without links takes our certificate. Such a
// server then waits in silence for a request; the error is its refusal.
func (p *Probe) Admitted() error { return p.tls.listen(listenTime) }

// Conn is the connection behind Secure, for a request to a server without links.
func (p *Probe) Conn() net.Conn { return p.tls.Conn }

// Close ends the connection.
func (p *Probe) Close() { _ = p.raw.Close() }
