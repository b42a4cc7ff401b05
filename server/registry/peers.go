package registry

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// ErrManyServers is about more servers than a routes.Table has room for.
var ErrManyServers = errors.New("there are too many links to other servers: at most 64 are used")

// Peers are the other servers that are linked, with what their agents serve. The
// registries of all clusters share it. Its methods may be called from any goroutine;
// the nil Peers has none.
type Peers struct {
	dialed func(err error) // is told how each dial by another server went

	mu    sync.RWMutex // taken after a registry's
	table routes.Table
	ways  [routes.MaxServers]*conn
	wake  chan struct{} // closed and replaced when dials that wait should look again

	sweeps  bool // a sweep is due
	settled bool // Settle was called
}

// NewPeers returns Peers that tell dialed how each dial by one of them went.
func NewPeers(dialed func(err error)) *Peers {
	return &Peers{dialed: dialed, wake: make(chan struct{})}
}

// Settle notes that all servers have told what their agents serve, as far as they can.
func (p *Peers) Settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.settled {
		p.settled = true
		p.newsLocked()
	}
}

// Join adds a server until leave is called. Learn and Count want its number.
func (p *Peers) Join(id, remote string, b Backend) (server int, leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	server = slices.Index(p.ways[:], nil)
	if server < 0 {
		return 0, nil, ErrManyServers
	}
	p.ways[server] = &conn{agent: Agent{ID: id, Via: viaServer, Remote: remote}, backend: b, since: time.Now()}
	return server, func() { p.leave(server) }, nil
}

func (p *Peers) leave(server int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Forget(server, tunnel.Now())
	p.ways[server] = nil
	p.newsLocked()
	p.sweepLater()
}

// Learn takes in what a server tells, and says whether it may change which clusters have
// agents.
func (p *Peers) Learn(server int, r routes.Record) (broad bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.table.Learn(server, r, tunnel.Now()); err != nil {
		return false, err
	}
	switch r.Op {
	case routes.There:
		p.newsLocked()
	case routes.Gone:
		p.sweepLater()
	}
	return r.Key.Kind.Broad(), nil
}

// newsLocked wakes the dials that wait.
func (p *Peers) newsLocked() {
	close(p.wake)
	p.wake = make(chan struct{})
}

// sweepLater sets a timer for the next sweep, if a key is waited for.
func (p *Peers) sweepLater() {
	if due, any := p.table.Due(); any && !p.sweeps {
		p.sweeps = true
		time.AfterFunc(max(0, time.Duration(due-tunnel.Now())), p.sweep)
	}
}

func (p *Peers) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Sweep(tunnel.Now())
	p.newsLocked()
	p.sweeps = false
	p.sweepLater()
}

// Count is how much a server has told.
func (p *Peers) Count(server int) routes.Count {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.table.Count(server)
}

// pick finds a server for a destination in a cluster by one strategy, never one that was
// asked; for a prefix, one with an agent that has a longer one than least bits. waited
// says that there was one a moment ago.
func (p *Peers) pick(cluster string, s Strategy, name string, addr netip.Addr, least int, asked []*conn, now tunnel.Moment) (c *conn, waited bool) {
	var at routes.Servers
	switch {
	case s == Default, s == DefaultRoute:
		at, waited = p.table.Find(cluster, routes.Key{Kind: broad[s]}, now)
	case s == DestHost:
		exact, loose := destHostKeys(name, addr)
		if at, waited = p.table.Find(cluster, exact, now); at == 0 && loose != exact {
			any, waits := p.table.Find(cluster, loose, now)
			at, waited = any, waited || waits
		}
	case s == DestCIDR:
		at, waited = p.table.Longest(cluster, addr, least, now)
	}
	return p.best(at, waited, asked, now)
}

// best chooses among servers. One whose link has ended, perhaps under the dial that asked
// it, will be forgotten in a moment.
func (p *Peers) best(at routes.Servers, waited bool, asked []*conn, now tunnel.Moment) (best *conn, _ bool) {
	for i, c := range p.ways {
		switch {
		case !at.Has(i):
		case c.backend.Ends().Happened():
			waited = true
		case slices.Contains(asked, c):
		case best == nil || c.before(best, now):
			best = c
		}
	}
	return best, waited
}

// before says that a server is to be asked rather than another: it does not drain, it has
// been heard of, and then as among agents.
func (c *conn) before(other *conn, now tunnel.Moment) bool {
	if a, b := c.backend.Drains().Happened(), other.backend.Drains().Happened(); a != b {
		return b
	}
	if a, b := c.silent(), other.silent(); a != b {
		return b
	}
	return c.better(other, now)
}

func (c *conn) silent() bool { return time.Since(heard(c.backend)) > link.SilentAfter }

// resume finds a server with an agent that has a route. waited says that another one, which was
// lost, had one a moment ago; wake is closed when there is news of one.
func (p *Peers) resume(cluster, route string, asked []*conn) (c *conn, waited bool, wake <-chan struct{}) {
	if p == nil {
		return nil, false, nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	now := tunnel.Now()
	at, waited := p.table.Find(cluster, routes.OfText(routes.Agent, route), now)
	c, waited = p.best(at, waited, asked, now)
	return c, waited, p.wake
}

// has says whether agents of other servers serve by a strategy.
func (p *Peers) has(cluster string, s Strategy) bool {
	if p == nil {
		return false
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	at, _ := p.table.Find(cluster, routes.Key{Kind: broad[s]}, tunnel.Now())
	return at != 0
}

// Share has the registry forward to the servers of p what its own agents do not serve,
// for a cluster, and tell what its agents do serve. It is called before the first agent
// joins; tell must not block.
func (r *Registry) Share(p *Peers, cluster string, tell func(k routes.Key, there bool)) {
	r.peers, r.cluster, r.index.told = p, cluster, tell
}

// TellAll calls tell for all that the agents serve now. Share's tell is not called
// meanwhile.
func (r *Registry) TellAll(tell func(routes.Key)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for k := range r.index.keyed.All() {
		if k.Kind != byID {
			tell(k)
		}
	}
	if r.index.all.count() > 0 {
		tell(routes.Key{Kind: routes.AnyAgent})
	}
}

// tries are the connections on which one dial has failed, and how long it may wait for others.
type tries struct {
	own   *conn   // of an agent of this server; nil: none
	asked []*conn // other servers
	local bool    // another server asks, so that none is asked

	patience <-chan time.Time // nil: it has not waited yet
	late     bool             // it waits no more
}

// again notes that a dial has failed by c, and says whether to go on by another. Each
// other server is asked once.
func (t *tries) again(ctx context.Context, c *conn, f *tunnel.Flow, err error) bool {
	second := t.own != nil
	if c.far() {
		t.asked, second = append(t.asked, c), false
	} else {
		t.own = c
	}
	return !second && ctx.Err() == nil && (retriable(f, err) || c.far() && tunnel.FailureOf(err) == tunnel.FailNoAgent)
}

// far says that it is another server.
func (c *conn) far() bool { return c.agent.Via == viaServer }

// role is its agent's, or the server's.
func (c *conn) role() string {
	if c.far() {
		return tunnel.RoleServer
	}
	return tunnel.RoleAgent
}
