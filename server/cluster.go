package server

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/policy"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/registry"
	"konnectivity/server/tenancy"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
	"konnectivity/tunnel/shares"
)

// cluster is all that a server keeps of one cluster: its agents, what is open
// to them, and who is told of what. A server has one of its own, that of its
// flags, and one for each tenant. The TLS handshake decides which one a
// connection belongs to, and never what its peer says, so nothing leads from
// one cluster to another.
type cluster struct {
	server *Server
	name   string // the tenant's; "" is the server's own
	log    logrus.FieldLogger

	parts     parts         // of what all clusters share
	room      *shares.Share // of the memory for agents; nil: there is no bound
	agents    *registry.Registry
	ends      *resume.Manager // of connections that do not go on to a peer that keeps them
	forwarder *tunnel.Forwarder
	lanes     [sides]laneBooks // links that are lanes of one; a client's is never one of an agent's
	peers     peers            // who is told of a drain and of the number of servers

	terms   atomic.Pointer[terms] // never nil once it is in use
	traffic traffic               // of a tenant
	bounds  bounds                // the same
	paces   tunnel.Paces          // of its connections; the same
	places  [sides]*shares.Share  // that its connections take; the same
	hold    tunnel.Hold           // of its links
	metered int64                 // what it had carried when the meter last read it, whose alone it is

	mu     sync.Mutex
	tenant *tenancy.Tenant // as it is now; nil: the server's own
	guests map[*guest]struct{}
	over   bool // no more guests are taken in
	left   sync.WaitGroup
}

// terms are what a cluster's peers are held to. They are replaced as a whole.
type terms struct {
	gate   auth.Gate
	policy *policy.Policy // beside that of the flags; nil: none
	bounds tenancy.Bounds
	stop   context.CancelFunc // ends what the gate runs; nil: nothing
}

// newCluster makes one without terms.
func (s *Server) newCluster(name string, strategies []registry.Strategy) *cluster {
	cl := &cluster{server: s, name: name, log: s.opts.Log, parts: s.accounts.tenant(name), guests: make(map[*guest]struct{})}
	if name != "" {
		cl.log = cl.log.WithField("tenant", name)
	}
	if s.agentRoom != nil {
		cl.room = s.agentRoom.Share()
	}
	cl.agents = registry.New(strategies, cl.log)
	cl.ends = resume.New(resume.Options{Window: s.opts.ResumeWindow, Budget: cl.parts.budget, Log: cl.log})
	if s.paused != nil {
		cl.ends.OnResume(s.paused)
	}
	cl.forwarder = &tunnel.Forwarder{
		Dialer:      cl.newDialer(),
		DialTimeout: s.opts.DialTimeout,
		Total:       &s.metrics.Totals,
		Observers:   []tunnel.Observer{s.metrics, connectionLog{cl.log}},
	}
	if s.table != nil {
		cl.forwarder.Observers = append(cl.forwarder.Observers, s.table)
	}
	if name != "" {
		cl.forwarder.Total = &cl.traffic.totals
		cl.forwarder.Paces = &cl.paces
		cl.forwarder.Observers = append(cl.forwarder.Observers, &cl.traffic)
	}
	return cl
}

// Forward implements tunnel.Carrier.
func (cl *cluster) Forward(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer) error {
	return cl.forwarder.Forward(ctx, f, answer)
}

// gate is what agents pass.
func (cl *cluster) gate() *auth.Gate { return &cl.terms.Load().gate }

// clusterOf is the cluster that a connection is of.
func (s *Server) clusterOf(c *frontend.Conn) *cluster {
	if h, ok := c.Owner().(*host); ok {
		return h.cluster
	}
	return s.own
}

// eachCluster calls do for the server's own cluster and for each tenant's; do
// must not block.
func (s *Server) eachCluster(do func(*cluster)) {
	do(s.own)
	s.tenants.each(do)
}

// counts is how many agents there are in all clusters.
func (s *Server) counts() registry.Counts {
	sum := registry.Counts{By: make(map[registry.Strategy]int)}
	s.eachCluster(func(cl *cluster) {
		counts := cl.agents.Counts()
		sum.Agents += counts.Agents
		sum.Connections += counts.Connections
		for strategy, n := range counts.By {
			sum.By[strategy] += n
		}
	})
	return sum
}

// tellCount tells all peers how many servers there are.
func (s *Server) tellCount(n int) { s.eachCluster(func(cl *cluster) { cl.peers.count(n) }) }

// newTokens makes a reviewer of tokens; nil for nil.
func (s *Server) newTokens(cfg *auth.TokensConfig, log logrus.FieldLogger) *auth.Tokens {
	if cfg == nil {
		return nil
	}
	own := *cfg
	own.Called, own.Log = s.tokenReviewed, log
	return auth.NewTokens(own)
}

// closeEnds ends what the server itself has open to agents, in all clusters at
// once, since what is yet to be delivered takes some time.
func (s *Server) closeEnds() {
	s.tenants.stop()
	var closing sync.WaitGroup
	s.eachCluster(func(cl *cluster) { closing.Go(cl.ends.Close) })
	closing.Wait()
}

// waitEnds returns when what closeEnds ended has ended.
func (s *Server) waitEnds() {
	var all []*cluster
	s.eachCluster(func(cl *cluster) { all = append(all, cl) })
	for _, cl := range all {
		cl.ends.Wait()
	}
}
