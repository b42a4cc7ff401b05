package limits

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"

	"konnectivity/internal/admission"
	"konnectivity/server/auth"
	"konnectivity/tunnel"
)

// clientKey tells clients apart: the holder of a certificate at one address. The
// address counts because hosted control planes give one certificate to all of their
// sidecars; connections do not count because the holder of a certificate makes any
// number of them.
type clientKey struct {
	cert [sha256.Size]byte // of the certificate's key and names, so that a renewal is the same client; of what else it has proved; zero: nothing
	from netip.Prefix
}

func clientKeyOf(who tunnel.Identity, state *tls.ConnectionState, from net.Addr) clientKey {
	key := clientKey{from: admission.SourceOf(from)}
	if cert := auth.CertOf(state); cert != nil {
		key.cert = sha256.Sum256(append([]byte(auth.CertDigest(state)), cert.RawSubjectPublicKeyInfo...))
	} else if who != "" {
		key.cert = sha256.Sum256([]byte(who))
	}
	return key
}

// client is one that has a connection. Tenant.mu guards it.
type client struct {
	*tunnel.Client
	conns int
}

// JoinForwarded counts a connection of a client of another server, as that one numbers
// it, until leave is called.
func (t *Tenant) JoinForwarded(of tunnel.Origin) (_ *tunnel.Client, leave func()) {
	return t.join(clientKey{cert: sha256.Sum256(fmt.Appendf(nil, "%d %q %s", of.Client, of.Server, of.Who))}, of.Who)
}

// Join counts a connection of a client until leave is called. It takes the client's
// identity, TLS state and address.
func (t *Tenant) Join(who tunnel.Identity, state *tls.ConnectionState, from net.Addr) (_ *tunnel.Client, leave func()) {
	return t.join(clientKeyOf(who, state, from), who)
}

// JoinAgent is Join for an agent that asks for its cluster's API server. Its id counts as well:
// most agents of a cluster have one certificate, and may have one address as seen from here.
func (t *Tenant) JoinAgent(id string, who tunnel.Identity, state *tls.ConnectionState, from net.Addr) (_ *tunnel.Client, leave func()) {
	key := clientKeyOf(who, state, from)
	key.cert = sha256.Sum256(append(key.cert[:], id...))
	return t.join(key, who)
}

// TakeSocket counts a connection that the server itself makes for f's client until f ends,
// or says that the client has used up its share.
func TakeSocket(f *tunnel.Flow) error {
	sockets := f.Client.Sockets
	if !sockets.Take(1) {
		return &tunnel.DialError{Failure: tunnel.FailExhausted, Address: f.Address,
			Reason: fmt.Sprintf("this agent's share is used up: the server has %d connections for it", sockets.Used())}
	}
	f.AtEnd(func() { sockets.Give(1) })
	return nil
}

func (t *Tenant) join(key clientKey, who tunnel.Identity) (_ *tunnel.Client, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.connected.Get(key)
	if c == nil {
		c = &client{Client: &tunnel.Client{
			Tenant: t.name, Who: who,
			Dials: t.parts.dials.Share(), Resumes: t.parts.resumes.Share(), Budget: t.parts.budget.Share(), GRPC: t.parts.grpc.Share(),
			Sockets: t.parts.sockets.Share(),
		}}
		t.connected.Set(key, c)
	}
	c.conns++
	return c.Client, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if c.conns--; c.conns == 0 {
			t.connected.Delete(key)
		}
	}
}
