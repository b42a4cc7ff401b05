package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/internal/source"
	"konnectivity/server/frontend"
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

// identity is who is told apart where something is shared: the holder of a
// certificate at one address. Hosted control planes give one certificate to all
// of their sidecars, so that alone would make one client of them; and whoever
// holds a certificate makes as many connections as it likes, so a connection is
// no client either.
type identity struct {
	tenant string            // on a server of many
	key    [sha256.Size]byte // of the certificate; zero: none
	from   netip.Prefix
}

func identityOf(c *frontend.Conn, tenant string) identity {
	who := identity{tenant: tenant, from: source.Of(c.RemoteAddr())}
	if state := c.TLS(); state != nil && len(state.PeerCertificates) > 0 {
		who.key = sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	}
	return who
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

// client is what one client more has.
func (p parts) client(tenant string) *account {
	return &account{tenant: tenant, of: p, dials: p.dials.Share(), resumes: p.resumes.Share(), budget: p.budget.Share(), grpc: p.grpc.Share()}
}

// account is what one client has of its parts. There is one as long as the
// client has a connection.
type account struct {
	tenant  string // "" on a server without tenants
	of      parts
	dials   *shares.Share
	resumes *shares.Share
	budget  *link.Budget
	grpc    *legacy.Budget

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
func (a *accounts) join(who identity, tenant parts) (acct *account, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acct = a.known[who]
	if acct == nil || acct.of != tenant {
		acct = tenant.client(who.tenant)
		a.known[who] = acct
	}
	acct.conns++
	return acct, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if acct.conns--; acct.conns == 0 && a.known[who] == acct {
			delete(a.known, who)
		}
	}
}

// accounted hands a client's connection to next, with its cluster and the
// client's account.
func (s *Server) accounted(next func(context.Context, *frontend.Conn, *cluster, *account)) frontend.Handler {
	return func(ctx context.Context, c *frontend.Conn) {
		cl := s.clusterOf(c)
		acct, leave := s.accounts.join(identityOf(c, cl.name), cl.parts)
		c.AtEnd(leave)
		if extra := certMemory(c.TLS()); extra > 0 {
			if !acct.budget.Take(extra) {
				c.Refuse(acct.noMemory())
				return
			}
			c.AtEnd(func() { acct.budget.Give(extra) })
		}
		next(ctx, c, cl, acct)
	}
}

// noMemory is what a client is told that has as much as it may.
const noMemory = "this client's share is used up: the server has no memory for more of its connections (--memory-budget-mib)"

// memoryBound is what it is told where it is its tenant that has.
const memoryBound = "bound reached: this cluster has as much of the server's memory as bounds.memoryMiB of its tenant allows"

// noMemory is what the client is told that there is no memory for.
func (a *account) noMemory() string {
	if a.budget.AtBound() {
		return memoryBound
	}
	return noMemory
}

// sharing carries the connections of one client, each with a hold on its
// account.
type sharing struct {
	next    tunnel.Carrier
	account *account
	memory  int // that a connection takes
}

// hold is what a connection has of its client's account, and of its tenant's
// bounds. It is the Owner of each Flow that a client asks for: dialers take, and
// who made the hold gives back when the connection has ended.
type hold struct {
	account *account
	memory  int  // that it takes
	taken   bool // memory, of the account
	seated  bool // among the tenant's connections
}

// holdOf is a client's Flow's.
func holdOf(f *tunnel.Flow) *hold { return f.Owner.(*hold) }

// Forward implements tunnel.Carrier.
func (f sharing) Forward(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer) error {
	h := &hold{account: f.account, memory: f.memory}
	flow.Owner = h
	flow.AtEnd(h.giveMemory)
	return f.next.Forward(ctx, flow, answer)
}

func (h *hold) takeMemory() bool {
	h.taken = h.account.budget.Take(h.memory)
	return h.taken
}

func (h *hold) giveMemory() {
	if h.taken {
		h.account.budget.Give(h.memory)
	}
}

// share lets a client dial within its share, once it is its turn. done must be called
// when the dial has ended.
func (s *Server) share(ctx context.Context, f *tunnel.Flow) (done func(), err error) {
	h := holdOf(f)
	acct := h.account
	if !h.takeMemory() {
		failure := tunnel.FailExhausted
		if acct.budget.AtBound() {
			failure = tunnel.FailBound
		}
		return nil, &tunnel.DialError{Failure: failure, Address: f.Address, Reason: acct.noMemory()}
	}
	dials := acct.dials
	if f.Resume.Again() {
		dials = acct.resumes
	}
	if !dials.Take(1) {
		return nil, exhausted(f.Address, fmt.Sprintf("this client's share is used up: it has %d pending dials", dials.Used()))
	}
	dialed, err := s.turns.wait(ctx, acct)
	if err != nil {
		dials.Give(1)
		return nil, tunnel.AsDialError(f.Address, err)
	}
	return func() {
		dialed()
		dials.Give(1)
	}, nil
}

// within has what is dialed under ctx count in the client's budgets.
func (a *account) within(ctx context.Context) context.Context {
	return legacy.WithBudget(link.WithBudget(ctx, a.budget), a.grpc)
}

func exhausted(address, reason string) error {
	return &tunnel.DialError{Failure: tunnel.FailExhausted, Address: address, Reason: reason}
}

// streamed carries what gRPC streams ask for. Each stream that admitStream has
// let in knows its connection, and so its cluster and its client's account.
type streamed struct{}

// Forward implements tunnel.Carrier.
func (streamed) Forward(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer) error {
	from, ok := authInfoOf(ctx)
	if !ok {
		return errNotHanded
	}
	return sharing{from.cluster, from.account, connMemory}.Forward(ctx, flow, answer)
}

// handleClientGRPC serves a client by gRPC.
func (s *Server) handleClientGRPC(ctx context.Context, c *frontend.Conn, cl *cluster, acct *account) {
	if !acct.budget.Take(clientMemory) {
		c.Refuse(acct.noMemory())
		return
	}
	defer acct.budget.Give(clientMemory)
	s.clientGRPC.handle(ctx, c, cl, acct)
}

// handedOver notes what a stream has received.
func handedOver(ctx context.Context, bytes int) {
	if from, ok := authInfoOf(ctx); ok {
		from.gathers.handedOver(bytes)
	}
}

// admitStream gives a gRPC stream its place, or says why there is none. A
// client's first stream shows that it means its connection.
func admitStream(ctx context.Context) (context.Context, func(), error) {
	from, ok := authInfoOf(ctx)
	if !ok {
		return nil, nil, errNotHanded
	}
	if err := prove(ctx); err != nil {
		return nil, nil, err
	}
	acct, n := from.account, streamMemory+extraMetadata(ctx)
	if !acct.budget.Take(n) {
		return nil, nil, status.Error(codes.ResourceExhausted, acct.noMemory())
	}
	end := from.gathers.begin()
	return legacy.WithBudget(ctx, acct.grpc), func() {
		end()
		acct.budget.Give(n)
	}, nil
}
