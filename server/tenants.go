package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"konnectivity/internal/admin"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/registry"
	"konnectivity/server/tenancy"
	"konnectivity/tunnel/shares"
)

// tenants are the clusters of a server of many. A nil one has none.
type tenants struct {
	server *Server
	dir    *tenancy.Dir

	now    atomic.Pointer[hosting] // never nil
	places [sides]*shares.Pool     // connections that a port has room for
	moved  [sides]chan struct{}    // what tenants listen on may have changed

	settled [sides]chan struct{} // closed by keepPlaces in a drain

	running sync.WaitGroup  // what ends with life, or with a tenant
	life    context.Context // of the server, once it runs

	mu     sync.Mutex
	live   map[string]*cluster   // by name
	ending map[*cluster]struct{} // removed, and not over yet
	past   past                  // of those that are over

	unplaced [sides]map[string]error // what tenants ask to listen on and cannot have, by name
	closed   bool                    // nothing changes any more
}

// hosting is whose a handshake is, at one moment. It does not change.
type hosting struct {
	table *tenancy.Table
	hosts map[*tenancy.Tenant]*host
}

// host is a tenant, as its files have it at one moment, with its cluster, which
// stays the same.
type host struct {
	tenant  *tenancy.Tenant
	cluster *cluster
	guests  [sides]*tlsreload.Guest
	inside  [sides]*tlsreload.Guest // of its own ports
}

func (ts *tenants) newHost(t *tenancy.Tenant, cl *cluster) *host {
	h := &host{tenant: t, cluster: cl}
	for side := range sides {
		h.guests[side] = ts.newGuest(t, side)
		if side == agents && t.Listen.AgentPort > 0 || side == clients && t.Listen.ClientPort > 0 {
			h.inside[side] = ts.newGuest(t, side)
		}
	}
	return h
}

func (ts *tenants) newGuest(t *tenancy.Tenant, side side) *tlsreload.Guest {
	g := &tlsreload.Guest{Key: t.Name, Cert: t.Cert}
	if cas := side.cas(t); cas != nil {
		g.Key += " " + hex.EncodeToString(cas.Digest[:])
		g.CAs = cas.Pool
		if len(cas.Only) > 0 {
			g.Judge = func(cert *x509.Certificate) error { return ts.now.Load().table.Admit(t, cas, cert) }
		}
	}
	return g
}

// sideOf is the side that a connection came in by.
func (h *host) sideOf(c *frontend.Conn) side {
	if c.Port() == agents.String() {
		return agents
	}
	return clients
}

func newTenants(s *Server, dir *tenancy.Dir) *tenants {
	t := &tenants{server: s, dir: dir, live: make(map[string]*cluster), ending: make(map[*cluster]struct{})}
	t.now.Store(&hosting{table: dir.Table()})
	for side := range sides {
		t.places[side] = shares.NewPool(int64(s.roomOf(side)))
		t.moved[side] = make(chan struct{}, 1)
		t.settled[side] = make(chan struct{})
	}
	return t
}

// start follows the tenants until life ends.
func (t *tenants) start(life context.Context, parts *errgroup.Group) {
	if t == nil {
		return
	}
	t.life = life
	t.dir.OnChange(t.apply)
	parts.Go(func() error { t.keepFair(life); return nil })
	parts.Go(func() error {
		t.dir.Run(life)
		t.stop()
		t.running.Wait()
		return nil
	})
}

// ready is nil as soon as it is known which tenants there are: one cluster
// without agents is no reason to send those of others away.
func (t *tenants) ready() error {
	if !t.now.Load().table.Listed() {
		return errors.New("the tenants' Secrets could not be listed yet; the log says why")
	}
	return nil
}

// stop has nothing change any more.
func (t *tenants) stop() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// tlsOf is the TLS configuration of a listener.
func (s *Server) tlsOf(side side, l Listener) func(nextProtos ...string) *tls.Config {
	if s.tenants == nil || l.TLSFor == nil {
		return l.TLS
	}
	return func(nextProtos ...string) *tls.Config { return l.TLSFor(s.tenants.chooser(side), nextProtos...) }
}

// errNotNoted refuses a handshake that would end in the server's own cluster,
// though it is a tenant's.
var errNotNoted = errors.New("whose the connection is cannot be noted on it")

// chooser says by the server name whose a handshake is, or leaves it to the
// certificate. The names of tenants that are broken or gone are refused: their
// peers are not to end up among others.
func (t *tenants) chooser(side side) tlsreload.Choose {
	return func(hello *tls.ClientHelloInfo) (*tlsreload.Guest, error) {
		now := t.now.Load()
		tenant, known := now.table.Find(hello.ServerName)
		if !known {
			return t.unnamed(side, hello, now), nil
		}
		if h := now.hosts[tenant]; tenant != nil && h != nil {
			if !frontend.Own(hello, h, nil) {
				return nil, errNotNoted
			}
			return h.guests[side], nil
		}
		err := fmt.Errorf("it asked for %.100q, whose tenant is broken or was removed", hello.ServerName)
		if now.table.Closed() {
			err = fmt.Errorf("it asked for %.100q, which no tenant has now; the server has had too many names to know whether one had it before, until it is restarted", hello.ServerName)
		}
		_ = frontend.Own(hello, nil, err) // for the log; it is refused anyway
		return nil, err
	}
}

// byCertificate is the Key of all peers whose certificate decides whose they are.
// It is no tenant's, which have no space after their name, or a digest.
const byCertificate = "by certificate"

// unnamed is who asks for no tenant's name. Where tenants are told by certificate,
// that decides, by the CAs of the moment when it is shown; nil: they are not.
func (t *tenants) unnamed(side side, hello *tls.ClientHelloInfo, now *hosting) *tlsreload.Guest {
	if side.issuers(now.table) == nil {
		return nil
	}
	return &tlsreload.Guest{Key: byCertificate, Verify: func(chain []*x509.Certificate) error {
		now := t.now.Load()
		issuers := side.issuers(now.table)
		if issuers == nil {
			return errors.New("no tenant is told by certificate any more")
		}
		tenant, err := issuers.Find(chain)
		if err != nil {
			return err
		}
		if err := now.table.Admit(tenant, side.cas(tenant), chain[0]); err != nil {
			return err
		}
		h := now.hosts[tenant]
		if h == nil {
			return fmt.Errorf("its tenant, %s, is not served", tenant.Name)
		}
		if !frontend.Own(hello, h, nil) {
			return errNotNoted
		}
		return nil
	}}
}

// apply puts a table into force. It is called for one after the other.
func (t *tenants) apply(table *tenancy.Table) {
	next, changed := t.prepare(table)
	if next == nil {
		return
	}
	// First, so that those are let in at once who come by what is new. Who came by
	// what was there before is looked at again when the handshake is over.
	for _, h := range changed {
		h.cluster.change(h.tenant, t.termsOf(h.tenant, h.cluster))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.now.Store(next)
	for side := range sides {
		t.tellMoved(side)
	}
	for name, cl := range t.live { // which no handshake leads to any more
		if table.Tenant(name) == nil {
			t.remove(name, cl)
		}
	}
}

// prepare makes a hosting of a table, with the clusters of new tenants, and says
// which tenants have changed; nil: nothing changes any more.
func (t *tenants) prepare(table *tenancy.Table) (next *hosting, changed []*host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil
	}
	old := t.now.Load()
	next = &hosting{table: table, hosts: make(map[*tenancy.Tenant]*host, len(table.Tenants()))}
	for name, tenant := range table.Tenants() {
		h := old.hosts[tenant]
		if cl := t.live[name]; h == nil && cl != nil {
			h = t.newHost(tenant, cl)
			changed = append(changed, h)
		} else if h == nil {
			h = t.newHost(tenant, t.add(tenant))
		}
		next.hosts[tenant] = h
	}
	return next, changed
}

// add makes a tenant's cluster. t.mu is held.
func (t *tenants) add(tenant *tenancy.Tenant) *cluster {
	cl := t.server.newCluster(tenant.Name, t.server.strategiesOf(tenant))
	cl.tenant = tenant
	for side := range sides {
		cl.places[side] = t.places[side].Share()
	}
	cl.terms.Store(t.termsOf(tenant, cl))
	select {
	case <-t.server.drains.Done(): // which its peers are not told by drain any more
		cl.peers.drain()
	default:
	}
	t.live[tenant.Name] = cl
	return cl
}

// remove ends a tenant's cluster. t.mu is held.
func (t *tenants) remove(name string, cl *cluster) {
	delete(t.live, name)
	t.ending[cl] = struct{}{}
	t.running.Go(func() {
		cl.end()
		t.server.table.Forget(name)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.ending, cl)
		t.past.add(cl)
	})
}

// strategiesOf are a tenant's, or those of the flags.
func (s *Server) strategiesOf(t *tenancy.Tenant) []registry.Strategy {
	if len(t.Strategies) > 0 {
		return t.Strategies
	}
	return s.opts.Strategies
}

// termsOf are what a tenant's settings say. What has not changed is kept, with
// all that it remembers.
func (t *tenants) termsOf(tenant *tenancy.Tenant, cl *cluster) *terms {
	cl.parts.budget.Bound(int64(tenant.Bounds.MemoryMiB) << 20)
	cl.paces.Up.Set(tenant.Bounds.BytesPerSecond())
	cl.paces.Down.Set(tenant.Bounds.BytesPerSecond())
	next := &terms{policy: tenant.Policy, bounds: tenant.Bounds}
	if tenant.Identifiers == tenancy.IdentifiersCertificate || tenant.Identifiers == "" && t.server.opts.Claims != nil {
		next.gate.Claims = auth.OwnClaims(cl.log)
	}
	if tenant.Tokens == nil {
		return next
	}
	if was := cl.terms.Load(); was != nil && cl.tenant.Tokens.Equal(tenant.Tokens) {
		next.gate.Tokens, next.stop = was.gate.Tokens, was.stop
		return next
	}
	tokens := t.server.newTokens(t.server.opts.TenantTokens(tenant.Tokens), cl.log)
	life, stop := context.WithCancel(t.life)
	next.gate.Tokens, next.stop = tokens, stop
	t.running.Go(func() { tokens.Run(life) })
	return next
}

// each calls do for each tenant that is served.
func (t *tenants) each(do func(*cluster)) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(t.live)) {
		do(t.live[name])
	}
}

// states is how many tenants there are by state; nil: it is no server of many.
func (t *tenants) states() map[string]int {
	if t == nil {
		return nil
	}
	count := make(map[string]int)
	for _, s := range t.now.Load().table.States() {
		count[t.seen(s).State]++
	}
	return count
}

// list is for the admin API.
func (t *tenants) list() []admin.Tenant {
	clusters := make(map[string]*cluster)
	t.each(func(cl *cluster) { clusters[cl.name] = cl })
	states := t.now.Load().table.States()
	out := make([]admin.Tenant, 0, len(states))
	for _, s := range states {
		out = append(out, viewOf(t.seen(s), clusters[s.Name]))
	}
	return out
}

// logOf is the log of what concerns a tenant.
func (t *tenants) logOf(name string) logrus.FieldLogger {
	return t.server.opts.Log.WithField("tenant", name)
}

// cluster is a tenant's that is served; nil: none is.
func (t *tenants) cluster(name string) *cluster {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[name]
}

// viewOf is a tenant as the admin API shows it; without a cluster, it is not
// served.
func viewOf(s tenancy.Status, cl *cluster) admin.Tenant {
	v := admin.Tenant{
		Name: s.Name, State: s.State, Error: s.Error, Since: s.Since, Reason: "it is not served",
		ServerNames: append([]string{}, s.ServerNames...), Dials: admin.Dials{Failures: map[string]int64{}}, // never null
	}
	if s.Tenant != nil {
		for _, p := range s.Tenant.Places() {
			v.Listen = append(v.Listen, p.String())
		}
	}
	if cl != nil {
		cl.fill(&v)
	}
	return v
}

// fill adds what a tenant's cluster has.
func (cl *cluster) fill(v *admin.Tenant) {
	v.Agents, v.Clients = cl.agents.Counts().Agents, len(cl.peers.clients())
	err := cl.agents.Ready()
	v.Ready, v.Reason = err == nil, ""
	if err != nil {
		v.Reason = err.Error()
	}
	cl.traffic.fill(v)
}
