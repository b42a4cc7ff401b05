package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/internal/source"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/tenancy"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/shares"
)

const (
	// maxDials bounds the dials under way for all clients together: seven
	// eighths of what an agent takes on one link. The rest is for dials that
	// were given up and that the agent has not let go of yet. At some 13 KiB
	// each they take 45 MiB.
	maxDials = link.MaxDials / 8 * 7

	// What of the budget a connection takes just by being there, payload not
	// counted: goroutines, TLS, buffers, books.
	connMemory   = 10 << 10 // one that is carried; more than docs/operations.md has measured
	clientMemory = 24 << 10 // a client's TCP connection, whatever it speaks
	streamMemory = 24 << 10 // a gRPC stream
)

// identity tells clients apart where something is divided: the holder of a
// certificate at one address. The address counts because hosted control planes give
// one certificate to all of their sidecars; connections do not count because the
// holder of a certificate makes any number of them.
type identity struct {
	tenant string            // on a server of many
	cert   [sha256.Size]byte // of the certificate's key and names, so that a renewal is the same client; zero: none
	from   netip.Prefix
}

func identityOf(state *tls.ConnectionState, from net.Addr, tenant string) (who identity, names []string) {
	who = identity{tenant: tenant, from: source.Of(from)}
	if state != nil && len(state.PeerCertificates) > 0 {
		cert := state.PeerCertificates[0]
		who.cert = sha256.Sum256(append([]byte(auth.Identity(state)), cert.RawSubjectPublicKeyInfo...))
		names = tenancy.NamesOf(cert)
	}
	return who, names
}

// parts are what all share, or one tenant of them: it is divided among those who
// are in it.
type parts struct {
	dials   *shares.Pool
	resumes *shares.Pool // dials of connections that exist: these do not fail for new ones, nor the other way round
	budget  *link.Budget
	grpc    *legacy.Budget
}

// divided is a part of all for one tenant more.
func (p parts) divided() parts {
	return parts{p.dials.Share().Divide(), p.resumes.Share().Divide(), p.budget.Divided(), p.grpc.Divided()}
}

// client returns what one more client has.
func (p parts) client(tenant string, names []string) *tunnel.Client {
	return &tunnel.Client{Tenant: tenant, Names: names, Dials: p.dials.Share(), Resumes: p.resumes.Share(), Budget: p.budget.Share(), GRPC: p.grpc.Share()}
}

// account is one client, for as long as it has a connection.
type account struct {
	*tunnel.Client
	of    parts
	conns int // guarded by accounts.mu
}

// accounts are the clients that are connected. All is divided among tenants first,
// so that one with many clients has no more than others.
type accounts struct {
	parts // of the server's own cluster; without tenants, all

	mu    sync.Mutex
	known map[identity]*account
}

func newAccounts(budget *link.Budget, grpc *legacy.Budget) *accounts {
	return &accounts{
		parts: parts{dials: shares.NewPool(maxDials), resumes: shares.NewPool(maxDials), budget: budget, grpc: grpc},
		known: make(map[identity]*account),
	}
}

// tenant is what a tenant's clients and agents have together; without a name, all.
func (a *accounts) tenant(name string) parts {
	if name == "" {
		return a.parts
	}
	return a.divided()
}

// join counts a connection of a client, which has of what its tenant has; leave
// must be called when it has ended. A tenant that went and came again has other
// parts, and what is left of the old one ends with its connections.
func (a *accounts) join(who identity, names []string, tenant parts) (client *tunnel.Client, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acct := a.known[who]
	if acct == nil || acct.of != tenant {
		acct = &account{Client: tenant.client(who.tenant, names), of: tenant}
		a.known[who] = acct
	}
	acct.conns++
	return acct.Client, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if acct.conns--; acct.conns == 0 && a.known[who] == acct {
			delete(a.known, who)
		}
	}
}

// accounted hands a client's connection to next, with its cluster and the client.
func (s *Server) accounted(next func(context.Context, *frontend.Conn, *cluster, *tunnel.Client)) frontend.Handler {
	return func(ctx context.Context, c *frontend.Conn) {
		cl := s.clusterOf(c)
		who, names := identityOf(c.TLS(), c.RemoteAddr(), cl.name)
		client, leave := s.accounts.join(who, names, cl.parts)
		c.AtEnd(leave)
		if extra := certMemory(c.TLS()); extra > 0 {
			if !client.Budget.Take(extra) {
				c.Refuse(noMemoryFor(client))
				return
			}
			c.AtEnd(func() { client.Budget.Give(extra) })
		}
		next(ctx, c, cl, client)
	}
}

// noMemory is what a client is told that has as much as it may.
const noMemory = "this client's share is used up: the server has no memory for more of its connections (--memory-budget-mib)"

// memoryBound is what it is told where it is its tenant that has.
const memoryBound = "bound reached: this cluster has as much of the server's memory as bounds.memoryMiB of its tenant allows"

// noMemoryFor is what a client is told that there is no memory for.
func noMemoryFor(c *tunnel.Client) string {
	if c.Budget.AtBound() {
		return memoryBound
	}
	return noMemory
}

// memoryOf returns what a connection takes of its client's budget. By CONNECT it is
// the client's own connection, too.
func memoryOf(f *tunnel.Flow) int {
	if f.Front == "connect" {
		return clientMemory + connMemory
	}
	return connMemory
}

// requests carries what one client asks for.
type requests struct {
	next   tunnel.Carrier
	client *tunnel.Client
}

// Forward implements tunnel.Carrier.
func (r requests) Forward(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer) error {
	f.Client = r.client
	return r.next.Forward(ctx, f, answer)
}

// share lets a client dial within its share, once it is its turn. done must be called
// when the dial has ended; the connection's memory is given back at its own end.
func (s *Server) share(ctx context.Context, f *tunnel.Flow) (done func(), err error) {
	c, memory := f.Client, memoryOf(f)
	if !c.Budget.Take(memory) {
		failure := tunnel.FailExhausted
		if c.Budget.AtBound() {
			failure = tunnel.FailBound
		}
		return nil, &tunnel.DialError{Failure: failure, Address: f.Address, Reason: noMemoryFor(c)}
	}
	f.AtEnd(func() { c.Budget.Give(memory) })
	dials := c.Dials
	if f.Resume.Again() {
		dials = c.Resumes
	}
	if !dials.Take(1) {
		return nil, exhausted(f.Address, fmt.Sprintf("this client's share is used up: it has %d pending dials", dials.Used()))
	}
	dialed, err := s.turns.wait(ctx, c)
	if err != nil {
		dials.Give(1)
		return nil, tunnel.AsDialError(f.Address, err)
	}
	return func() {
		dialed()
		dials.Give(1)
	}, nil
}

func exhausted(address, reason string) error {
	return &tunnel.DialError{Failure: tunnel.FailExhausted, Address: address, Reason: reason}
}

// streamed carries what gRPC streams ask for, in the cluster of their connection.
type streamed struct{}

// Forward implements tunnel.Carrier.
func (streamed) Forward(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer) error {
	from, ok := authInfoOf(ctx)
	if !ok {
		return errNotHanded
	}
	return from.cluster.Forward(ctx, f, answer)
}

// handleClientGRPC serves a client by gRPC.
func (s *Server) handleClientGRPC(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client) {
	if !client.Budget.Take(clientMemory) {
		c.Refuse(noMemoryFor(client))
		return
	}
	defer client.Budget.Give(clientMemory)
	s.clientGRPC.handle(ctx, c, cl, client)
}

// handedOver notes what a stream has received.
func handedOver(ctx context.Context, bytes int) {
	if from, ok := authInfoOf(ctx); ok {
		from.gathers.handedOver(bytes)
	}
}

// admitStream admits a gRPC stream, or says why it cannot. A client's first stream
// shows that it means its connection.
func admitStream(ctx context.Context) (*tunnel.Client, func(), error) {
	from, ok := authInfoOf(ctx)
	if !ok {
		return nil, nil, errNotHanded
	}
	if err := prove(ctx); err != nil {
		return nil, nil, err
	}
	client, n := from.client, streamMemory+extraMetadata(ctx)
	if !client.Budget.Take(n) {
		return nil, nil, status.Error(codes.ResourceExhausted, noMemoryFor(client))
	}
	end := from.gathers.begin()
	return client, func() {
		end()
		client.Budget.Give(n)
	}, nil
}
