package registry

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/memory"
	"konnectivity/tunnel"
)

// Backend is one connection of an agent, of either protocol.
type Backend interface {
	tunnel.Dialer

	// Ends happens once the connection is gone, and Err says why: nil before that, and
	// after an end in order over gRPC.
	Ends() *tunnel.Event
	Err() error
	// Drains happens once the agent asked for no new dials.
	Drains() *tunnel.Event
	// Streams is how many connections it carries. It must not block.
	Streams() int
	// RTT is its last measured round trip; 0 when unknown. It must not block.
	RTT() time.Duration
}

// Agent describes the agent at the other end of a Backend.
type Agent struct {
	ID          string
	Cert        string          // digest of the names in its certificate, which outlives a renewal; "": it has none
	Who         tunnel.Identity // as it has proved
	Identifiers Identifiers
	Via         Via
	Remote      string // its address, for people
}

// Via is how an Agent is reached, in words for logs and metrics.
type Via string

const (
	ViaGRPC   Via = "grpc"
	ViaLink   Via = "link"
	viaServer Via = tunnel.RoleServer // it is another server, which is asked as if it were an agent
)

// agentKey tells agents apart. The id alone does not, since agents choose theirs: an
// agent with another certificate takes no work away from one with the same id.
type agentKey struct{ id, cert string }

func (a Agent) key() agentKey { return agentKey{a.ID, a.Cert} }

// Registry holds the connected agents. All methods may be called from any
// goroutine.
type Registry struct {
	strategies atomic.Pointer[[]Strategy] // never nil
	log        logrus.FieldLogger

	settled <-chan struct{} // agents have yet to come, until it is closed; nil: none has

	// Set by Share, before the first agent joins.
	peers   *Peers // other servers; nil: none
	cluster string // whose agents these are

	mu    sync.RWMutex // held for bookkeeping only, never over I/O
	index index
	lost  index                         // those that may come back, and are waited for
	cut   memory.Memory[string, cutOff] // by route
	wake  chan struct{}                 // closed and replaced when an agent joins or leaves, or one is given up
}

// conn is one connection of an agent.
type conn struct {
	agent   Agent
	route   string // of agent
	backend Backend
	since   time.Time
	load    load

	draining bool // guarded by Registry.mu; last is, too
	last     bool // it has left, and its agent's id with it
}

func (c *conn) cost(now tunnel.Moment) int64 { return c.load.cost(c.backend.Streams(), now) }

// better says that a dial should rather go by c than by other.
func (c *conn) better(other *conn, now tunnel.Moment) bool {
	if denies := c.load.denies(now); denies != other.load.denies(now) {
		return !denies
	}
	return c.cost(now) < other.cost(now)
}

// New makes a registry that routes by the given strategies, in their order. Until settled
// is closed, a dial waits until other servers have told what their agents serve, and for an agent
// that serves it, for up to Patience in all; nil: it does not.
func New(settled <-chan struct{}, strategies []Strategy, log logrus.FieldLogger) *Registry {
	r := &Registry{log: log, settled: settled, cut: memory.New[string, cutOff](maxCut), wake: make(chan struct{})}
	r.SetStrategies(strategies)
	return r
}

// SetStrategies routes dials by others from now on.
func (r *Registry) SetStrategies(strategies []Strategy) {
	own := slices.Clone(strategies)
	r.strategies.Store(&own)
}

// order is the strategies in their order.
func (r *Registry) order() []Strategy { return *r.strategies.Load() }

// Joined is a connection that was added to a Registry.
type Joined struct {
	First bool // no other agent had its id then

	// Leave ends its dials, and reports whether its agent's id has gone with it. Its owner
	// must call it once the backend is done, and may call it again. It returns when the
	// connection takes no dials any more.
	Leave func() (last bool)
}

// Join adds a connection, which takes dials until it leaves. A second connection of the same
// agent, by id and certificate, is kept behind the first. Of several that come and go at the
// same time, one is the First, and one the last, of their id.
func (r *Registry) Join(a Agent, b Backend) Joined {
	c := &conn{agent: a, route: a.route(), backend: b, since: time.Now()}
	r.mu.Lock()
	other := r.index.first(a)
	before := r.index.of(a)
	r.index.join(c)
	r.lost.forget(a)
	r.backLocked(c.route)
	r.wakeWaiters()
	r.mu.Unlock()

	// Nothing runs for a connection that does nothing: a server has thousands.
	ended := b.Ends().Then(func() { r.leave(c) }) // even if its owner is slow to call leave
	drained := b.Drains().Then(func() { r.drains(c) })
	stop := r.doubtLater(c, other, before)
	return Joined{other == nil, sync.OnceValue(func() (last bool) {
		stop()
		last = r.leave(c)
		drained()
		ended()
		return last
	})}
}

// wakeWaiters wakes the dials that wait for an agent.
func (r *Registry) wakeWaiters() {
	close(r.wake)
	r.wake = make(chan struct{})
}

// warnOfTwo tells of two agents that use one id.
func (r *Registry) warnOfTwo(a, other Agent) {
	log := r.log.WithFields(logrus.Fields{"agent": a.ID, "remote": a.Remote, "other": other.Remote})
	switch {
	case a.Cert != other.Cert:
		log.Warn("two agents with different certificates use the same id, and both are given work: give each its own --agent-id, or find out who the second is")
	case !sameHost(other.Remote, a.Remote):
		log.Warn("two agents on different hosts use the same id; the second is used only when the first is gone: give each its own --agent-id")
	}
}

// drains marks a connection whose agent asked for no new dials.
func (r *Registry) drains(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.draining = true
	r.index.changed(c)
}

// news are closed when a dial that waits for an agent should look again; zero: no dial
// waits.
type news struct{ own, far <-chan struct{} }

// pick finds a connection for a destination by the first strategy that has
// one, of an agent here or of a server that has one, but none that was tried.
// Where there is none, but may be soon, news are closed when it is time to look again.
func (r *Registry) pick(host string, t *tries) (*conn, Strategy, news) {
	now := tunnel.Now()
	name, addr := canonical(host)
	r.mu.RLock()
	defer r.mu.RUnlock()
	c, s, waited, wake := r.choose(name, addr, t, now)
	if c != nil || !waited && !r.expects(name, addr, t, now) {
		return c, s, news{}
	}
	return nil, "", news{r.wake, wake}
}

// expects reports whether an agent of this server may serve a destination soon: one that was lost,
// or has yet to come. None is expected while the agent of a try is still there, which serves the
// destination, and failed; but one whose connection is over is about to be taken out.
func (r *Registry) expects(name string, addr netip.Addr, t *tries, now tunnel.Moment) bool {
	if t.own != nil && r.index.knows(t.own.agent) {
		return r.index.has(t.own) && t.own.over()
	}
	c, _ := r.lost.choose(r.order(), name, addr, nil, now)
	return c != nil || r.awaits(t)
}

// awaits reports whether a dial may wait for agents that have yet to come. One that another
// server forwards may not: it was told of an agent here.
func (r *Registry) awaits(t *tries) bool { return !t.local && !t.late && r.starting() }

// starting reports whether agents have yet to come.
func (r *Registry) starting() bool { return r.settled != nil && !tunnel.Closed(r.settled) }

// choose picks by the first of the strategies that an agent here or another server
// serves. An agent here comes first, unless it is about to go, or a server has a longer
// prefix. waited says that another server was one that serves, a moment ago, or that others
// have yet to tell: an agent of theirs may suit better than one here. wake is closed when there
// is news of one.
func (r *Registry) choose(name string, addr netip.Addr, t *tries, now tunnel.Moment) (_ *conn, _ Strategy, waited bool, wake <-chan struct{}) {
	if r.peers == nil || t.local {
		c, s := r.index.choose(r.order(), name, addr, t.own, now)
		return c, s, false, nil
	}
	r.peers.mu.RLock()
	defer r.peers.mu.RUnlock()
	if !r.peers.settled && r.awaits(t) {
		return nil, "", true, r.peers.wake
	}
	for _, s := range r.order() {
		c, bits := r.index.pick(s, name, addr, t.own, now)
		if c == nil || c.draining || s == DestCIDR {
			if c == nil {
				bits = -1
			} else if c.draining {
				bits--
			}
			far, waits := r.peers.pick(r.cluster, s, name, addr, bits, t.asked, now)
			if far != nil {
				return far, s, false, nil
			}
			waited = waited || waits
		}
		if c != nil {
			return c, s, false, nil
		}
	}
	return nil, "", waited, r.peers.wake
}

// Ready returns nil when destinations can be served, else why not in words.
// Strategies that only know some destinations do not make a server ready while
// a broader one was asked for: with destHost,defaultRoute an agent with the
// default route must be there.
func (r *Registry) Ready() error {
	counts := r.Counts()
	for _, s := range r.order() {
		if counts.By[s] == 0 && r.peers.has(r.cluster, s) {
			counts.By[s] = 1 // as good as one here
		}
	}
	if counts.Agents == 0 && !r.peers.has(r.cluster, Default) {
		return errors.New("no connection to any proxy agent")
	}
	for _, broad := range []Strategy{Default, DefaultRoute} {
		if !slices.Contains(r.order(), broad) {
			continue
		}
		if counts.By[broad] > 0 {
			return nil
		}
		return fmt.Errorf("no agent for strategy %s: of %d connected none has the identifier default-route=true", broad, counts.Agents)
	}
	for _, s := range r.order() {
		if counts.By[s] > 0 {
			return nil
		}
	}
	return fmt.Errorf("no agent for any of the strategies %s: %d connected, none with identifiers these use", join(r.order()), counts.Agents)
}

func join(list []Strategy) string {
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

// Counts says how many agents are connected.
type Counts struct {
	Agents int              // distinct ids and identities
	By     map[Strategy]int // of those that each given strategy can use
}

// Counts returns the present numbers.
func (r *Registry) Counts() Counts {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c := Counts{Agents: r.index.all.count(), By: make(map[Strategy]int)}
	for _, s := range r.order() {
		c.By[s] = r.index.count(s)
	}
	return c
}

// Status is one connection as an operator sees it.
type Status struct {
	Agent
	Backend  Backend
	Since    time.Time
	Draining bool
	Pending  int // dials
}

// heard is when the peer of a backend last said anything, where it can tell.
func heard(b Backend) time.Time {
	if h, ok := b.(interface{ Heard() time.Time }); ok {
		return h.Heard()
	}
	return time.Time{}
}

// Agents lists the connections, by id and then by age. It is for status pages.
func (r *Registry) Agents() []Status {
	var out []Status
	r.mu.RLock()
	for _, m := range r.index.all.members.All() {
		for _, c := range m.conns {
			out = append(out, Status{Agent: c.agent, Backend: c.backend, Since: c.since, Draining: c.draining, Pending: int(c.load.pending.Load())})
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), a.Since.Compare(b.Since))
	})
	return out
}
