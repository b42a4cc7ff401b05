package server

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"konnectivity/internal/admin"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/registry"
	"konnectivity/server/tenant"
	"konnectivity/tunnel/shares"
)

// tenants are the clusters of a server of many. Readers take a view, which does not change; the
// writer that has mu replaces it.
type tenants struct {
	server  *Server
	dir     *tenant.Dir          // nil: there are never any
	room    [sides]*shares.Pool  // connections that a port has room for
	moved   [sides]chan struct{} // what tenants listen on may have changed
	settled [sides]chan struct{} // closed by keepListeners in a drain

	running sync.WaitGroup  // what ends with life, or with a tenant
	life    context.Context // of the server, once it runs

	mu     sync.Mutex           // held to replace now
	now    atomic.Pointer[view] // never nil
	closed bool                 // now is not replaced any more
}

// view is which tenants there are, and whose a handshake is, at one moment.
type view struct {
	own      *cluster // the server's
	table    *tenant.Table
	tenants  map[string]*route // that are served, by name
	clusters []*cluster        // theirs, by name
	draining []*cluster
	past     past
	faults   [sides]map[string]error // why tenants, by name, cannot listen as they ask
}

// route is where a handshake leads: a cluster with the spec that is in force in a view.
type route struct {
	spec    *tenant.Spec
	cluster *cluster
	shared  [sides]*tlsreload.Guest // its handshakes on the ports of all
	own     [sides]*tlsreload.Guest // on ports of its own; nil: it has none
}

func newTenants(s *Server, dir *tenant.Dir) *tenants {
	t := &tenants{server: s, dir: dir}
	v := &view{own: s.own, table: new(tenant.Table)}
	if dir != nil {
		v.table = dir.Table()
	}
	t.now.Store(v)
	for side := range sides {
		t.room[side] = shares.NewPool(int64(s.roomOf(side)))
		t.moved[side] = make(chan struct{}, 1)
		t.settled[side] = make(chan struct{})
	}
	return t
}

// start follows the tenants until life ends.
func (t *tenants) start(life context.Context, parts *errgroup.Group) {
	if t.dir == nil {
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

// stop ends all changes.
func (t *tenants) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// replace puts a copy of the view into force, as it is after edit, unless nothing
// changes any more.
func (t *tenants) replace(edit func(*view)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	next := *t.now.Load()
	edit(&next)
	t.now.Store(&next)
}

// apply puts a table into force: it loads new tenants, changes others, and drains
// those that were removed.
func (t *tenants) apply(table *tenant.Table) {
	var added, removed []*cluster
	t.replace(func(v *view) {
		old := v.tenants
		v.table, v.tenants, v.clusters = table, make(map[string]*route, len(table.Tenants())), nil
		for name, spec := range table.Tenants() {
			is := old[name]
			switch {
			case is == nil:
				is = t.newRoute(spec, t.load(spec))
				added = append(added, is.cluster)
			case is.spec != spec:
				// Before the view is published, so that handshakes by the new spec are admitted.
				// Those by the old one are judged again when they end (cluster.add).
				is.cluster.change(t.configOf(spec, is.cluster))
				is = t.newRoute(spec, is.cluster)
			}
			v.tenants[name] = is
		}
		for _, name := range slices.Sorted(maps.Keys(v.tenants)) {
			v.clusters = append(v.clusters, v.tenants[name].cluster)
		}
		for name, was := range old {
			if v.tenants[name] == nil {
				removed = append(removed, was.cluster)
			}
		}
		v.draining = slices.Concat(v.draining, removed)
	})
	for _, cl := range added {
		if t.server.drains.Err() != nil { // of which the server told those alone that it knew
			cl.peers.drain()
		}
	}
	for _, cl := range removed {
		cl.drain()
		t.running.Go(func() { t.bury(cl) })
	}
	for side := range sides {
		t.tellMoved(side)
	}
}

// bury forgets a cluster that drains, once it is gone.
func (t *tenants) bury(cl *cluster) {
	cl.awaitEnd()
	t.server.table.Forget(cl.name)
	t.server.tellAgain(cl.name)
	t.replace(func(v *view) {
		v.draining = slices.DeleteFunc(slices.Clone(v.draining), func(one *cluster) bool { return one == cl })
		up, down := cl.traffic.totals.Load()
		v.past = past{v.past.up + up, v.past.down + down, v.past.resumed.Plus(cl.ends.Stats())}
	})
}

// load makes a tenant's cluster.
func (t *tenants) load(spec *tenant.Spec) *cluster {
	s := t.server
	cl := s.newCluster(spec.Name, s.limits.Tenant(spec.Name), s.strategiesOf(spec))
	for side := range sides {
		cl.room[side] = t.room[side].Share()
	}
	cl.config.Store(t.configOf(spec, cl))
	return cl
}

// newRoute makes the handshakes that lead to a cluster as spec has it.
func (t *tenants) newRoute(spec *tenant.Spec, cl *cluster) *route {
	is := &route{spec: spec, cluster: cl}
	for side := range sides {
		is.shared[side] = t.newGuest(spec, side)
		if side == agents && spec.Listen.AgentPort > 0 || side == clients && spec.Listen.ClientPort > 0 {
			is.own[side] = t.newGuest(spec, side)
		}
	}
	return is
}

func (t *tenants) newGuest(spec *tenant.Spec, side side) *tlsreload.Guest {
	g := &tlsreload.Guest{Key: spec.Name, Cert: spec.Cert}
	if cas := side.cas(spec); cas != nil {
		g.Key += " " + hex.EncodeToString(cas.Digest[:])
		g.CAs, g.Lists = cas.Pool, cas.Lists
		if len(cas.Only) > 0 {
			g.Judge = func(cert *x509.Certificate) error { return t.now.Load().table.Admit(spec, cas, cert) }
		}
	}
	return g
}

// strategiesOf are a tenant's, or those of the flags.
func (s *Server) strategiesOf(spec *tenant.Spec) []registry.Strategy {
	if len(spec.Strategies) > 0 {
		return spec.Strategies
	}
	return s.opts.Strategies
}

// configOf returns what a spec says, and puts its bounds into force. A reviewer of
// tokens that has not changed is kept, with all that it remembers.
func (t *tenants) configOf(spec *tenant.Spec, cl *cluster) *config {
	cl.limits.SetBounds(spec.Bounds)
	next := &config{spec: spec}
	if spec.Identifiers == tenant.NamesOfCertificate || spec.Identifiers == "" && t.server.opts.Claims != nil {
		next.gate.Claims = auth.OwnClaims()
	}
	next.gate.OwnIDs = spec.IDs == tenant.NamesOfCertificate || spec.IDs == "" && t.server.opts.OwnIDs
	if spec.Tokens == nil {
		return next
	}
	if was := cl.config.Load(); was != nil && was.spec.Tokens.Equal(spec.Tokens) {
		next.gate.Tokens, next.stop = was.gate.Tokens, was.stop
		return next
	}
	tokens := t.server.newTokens(t.server.opts.TenantTokens(spec.Tokens), cl.log)
	life, stop := context.WithCancel(t.life)
	next.gate.Tokens, next.stop = tokens, stop
	t.running.Go(func() { tokens.Run(life) })
	return next
}

// clusters are those that are served, by name. The slice must not be modified.
func (t *tenants) clusters() []*cluster { return t.now.Load().clusters }

// cluster is a tenant's that is served; nil: none is.
func (v *view) cluster(name string) *cluster {
	if is := v.tenants[name]; is != nil {
		return is.cluster
	}
	return nil
}

// eachCluster calls do for the server's own cluster and for each tenant's, by name;
// do must not block.
func (s *Server) eachCluster(do func(*cluster)) { s.tenants.now.Load().each(do) }

func (v *view) each(do func(*cluster)) {
	do(v.own)
	for _, cl := range v.clusters {
		do(cl)
	}
}

// all is each, for clusters that drain, too.
func (v *view) all(do func(*cluster)) {
	v.each(do)
	for _, cl := range v.draining {
		do(cl)
	}
}

// states is how many tenants there are by state.
func (t *tenants) states() map[string]int {
	count := make(map[string]int)
	v := t.now.Load()
	for _, s := range v.table.States() {
		count[v.status(s).State]++
	}
	return count
}

// list is for the admin API.
func (t *tenants) list() []admin.Tenant {
	v := t.now.Load()
	states := v.table.States()
	out := make([]admin.Tenant, 0, len(states))
	for _, s := range states {
		out = append(out, viewOf(v.status(s), v.cluster(s.Name)))
	}
	return out
}

// status is that of a tenant's files, with what the server has found wrong besides.
func (v *view) status(s tenant.Status) tenant.Status {
	for side := range sides {
		if err := v.faults[side][s.Name]; err != nil && s.State == tenant.StateServing {
			s.State, s.Error, s.Told = tenant.StateStale, err.Error(), err.Error()
		}
	}
	return s
}

// logOf is the log of what concerns a tenant.
func (t *tenants) logOf(name string) logrus.FieldLogger {
	return t.server.opts.Log.WithField("tenant", name)
}

// viewOf is a tenant as the admin API shows it; without a cluster, it is not
// served.
func viewOf(s tenant.Status, cl *cluster) admin.Tenant {
	v := admin.Tenant{
		Name: s.Name, State: s.State, Error: s.Error, Since: admin.Past{Time: s.Since}, Reason: "it is not served",
		ServerNames: append([]string{}, s.ServerNames...), Dials: admin.Dials{Failures: map[string]int64{}}, // never null
	}
	if s.Spec != nil {
		v.Digest = s.Spec.Digest()
		for _, p := range s.Spec.Addresses() {
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
