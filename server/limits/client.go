package limits

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"

	"konnectivity/internal/admission"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
)

// identity tells clients apart: the holder of a certificate at one address. The
// address counts because hosted control planes give one certificate to all of their
// sidecars; connections do not count because the holder of a certificate makes any
// number of them.
type identity struct {
	cert [sha256.Size]byte // of the certificate's key and names, so that a renewal is the same client; zero: none
	from netip.Prefix
}

func identityOf(state *tls.ConnectionState, from net.Addr) (who identity, names []string) {
	who = identity{from: admission.SourceOf(from)}
	if state != nil && len(state.PeerCertificates) > 0 {
		cert := state.PeerCertificates[0]
		who.cert = sha256.Sum256(append([]byte(auth.Identity(state)), cert.RawSubjectPublicKeyInfo...))
		names = tenant.NamesOf(cert)
	}
	return who, names
}

// client is one that has a connection. Tenant.mu guards it.
type client struct {
	*tunnel.Client
	conns int
}

// JoinForwarded counts a connection of a client of another server, as that one numbers
// it, until leave is called.
func (t *Tenant) JoinForwarded(of tunnel.Origin) (_ *tunnel.Client, leave func()) {
	return t.join(identity{cert: sha256.Sum256(fmt.Appendf(nil, "%d %s", of.Client, of.Server))}, nil)
}

// Join counts a connection of a client, whose TLS state and address are given, until
// leave is called.
func (t *Tenant) Join(state *tls.ConnectionState, from net.Addr) (_ *tunnel.Client, leave func()) {
	return t.join(identityOf(state, from))
}

func (t *Tenant) join(who identity, names []string) (_ *tunnel.Client, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clients[who]
	if c == nil {
		c = &client{Client: &tunnel.Client{
			Tenant: t.name, Names: names,
			Dials: t.parts.dials.Share(), Resumes: t.parts.resumes.Share(), Budget: t.parts.budget.Share(), GRPC: t.parts.grpc.Share(),
		}}
		t.clients[who] = c
	}
	c.conns++
	return c.Client, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if c.conns--; c.conns == 0 {
			delete(t.clients, who)
		}
	}
}
