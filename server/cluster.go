package server

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/memory"
	"konnectivity/server/auth"
	"konnectivity/server/limits"
	"konnectivity/server/registry"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
	"konnectivity/tunnel/shares"
)

// cluster is the runtime of one cluster: its agents, its connections and its peers. A
// server has one of its own, that of its flags, and one for each tenant. The TLS handshake
// decides which one a connection belongs to, never what its peer says later, so nothing
// leads from one cluster to another.
type cluster struct {
	// Immutable.

	server    *Server
	name      string // the tenant's; "" is the server's own
	log       logrus.FieldLogger
	limits    *limits.Tenant
	startup   startup
	agents    *registry.Registry
	beside    *apiAgents
	ends      *resume.Manager // of connections that do not go on to a peer that keeps them
	forwarder *tunnel.Forwarder
	forwarded *tunnel.Forwarder // for other servers
	api       *tunnel.Forwarder // for agents, to the cluster's API server

	// Shared, each with a lock of its own.

	lanes   [sides]laneBooks // links that are lanes of one; a client's is never one of an agent's
	peers   peers            // to be notified of a drain and of the number of servers
	traffic traffic
	hold    tunnel.Hold // of its links
	config  atomic.Pointer[config]
	room    [sides]*shares.Share // for its connections on the ports of a side; nil: the server's own

	metered int64 // bytes carried when the meter last read them; only the meter uses it

	mu     sync.Mutex // held to replace config, too
	drains bool       // it admits no connections
	conns  memory.Map[*conn, bool]
	left   sync.WaitGroup // what draining waits for: connections and gRPC streams
}

// config is what a cluster's peers are held to. It is replaced as a whole.
type config struct {
	spec *tenant.Spec // of the server's own cluster it has APIServers alone
	gate auth.Gate
	stop context.CancelFunc // ends what the gate runs; nil: nothing
}

// newCluster returns a cluster without config.
func (s *Server) newCluster(name string, has *limits.Tenant, strategies []registry.Strategy) *cluster {
	cl := &cluster{server: s, name: name, log: s.opts.Log, limits: has}
	if name != "" {
		cl.log = cl.log.WithField("tenant", name)
	}
	cl.startup = s.newStartup()
	cl.agents = registry.New(cl.startup.over, strategies, cl.log)
	cl.beside = &apiAgents{Registry: registry.New(cl.startup.over, []registry.Strategy{registry.Default}, cl.log)}
	cl.share()
	cl.ends = resume.New(resume.Options{Window: s.opts.ResumeWindow, Budget: has.Budget(), Log: cl.log})
	if s.paused != nil {
		cl.ends.OnResume(s.paused)
	}
	cl.forwarder = &tunnel.Forwarder{
		Dialer:      cl.newDialer(),
		DialTimeout: s.opts.DialTimeout,
		Total:       &cl.traffic.totals,
		Observers:   append([]tunnel.Observer{s.metrics, connectionLog{cl.log}}, s.opts.Observers...),
		Flows:       &tunnel.Flows{Judge: cl.judge},
	}
	if s.table != nil {
		cl.forwarder.Observers = append(cl.forwarder.Observers, s.table)
	}
	if name != "" {
		cl.forwarder.Paces = &has.Paces
		cl.forwarder.Observers = append(cl.forwarder.Observers, &cl.traffic)
	}
	api := *cl.forwarder
	api.Dialer = cl.newAPIDialer()
	cl.api = &api
	if s.peering != nil {
		to := *cl.forwarder
		to.Dialer, to.Paces, to.Flows = local{cl}, nil, nil // the first server judges, and keeps to them
		cl.forwarded = &to
	}
	return cl
}

// gate is what agents pass.
func (cl *cluster) gate() *auth.Gate { return &cl.config.Load().gate }

// spec returns the spec in force.
func (cl *cluster) spec() *tenant.Spec { return cl.config.Load().spec }

// change puts a new config into force. It cuts exactly those connections that would not
// be admitted any more: of peers whose certificates no CA of the tenant has issued or a list
// names, of agents whose tokens another API has reviewed, and to destinations that its rules do
// not allow.
func (cl *cluster) change(next *config) {
	cl.agents.SetStrategies(cl.server.strategiesOf(next.spec))
	cl.peers.tellServing(cl.serving)
	cl.mu.Lock()
	was := cl.config.Swap(next)
	cl.mu.Unlock()
	old, now := was.spec, next.spec
	if was.stop != nil && was.gate.Tokens != next.gate.Tokens {
		was.stop()
	}
	rejudged := !now.Tokens.Same(old.Tokens) || old.Agents != nil && now.Agents == nil
	cl.cut(func(c *conn) error {
		err := c.judge(old, now)
		if err == nil && c.side == agents && rejudged {
			err = errCut
		}
		return err
	})
	if ended := cl.forwarder.Flows.JudgeAll(); ended > 0 {
		cl.log.WithField("connections", ended).Warn("open connections were ended that the tenant's new rules do not allow")
	}
}

// drain cuts all connections. The cluster admits no others from then on.
func (cl *cluster) drain() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.drains = true
	cl.startup.end()
	for c := range cl.conns.All() {
		c.cut(errCut)
	}
	if stop := cl.config.Load().stop; stop != nil {
		stop()
	}
}

// awaitEnd returns when a cluster that drains is gone.
func (cl *cluster) awaitEnd() {
	cl.left.Wait()
	cl.ends.Close()
	cl.ends.Wait()
}

// stay makes drain wait for a call of left.Done; false: the cluster drains.
func (cl *cluster) stay() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.drains {
		return false
	}
	cl.left.Add(1)
	return true
}

// counts is how many agents there are in all clusters.
func (s *Server) counts() registry.Counts {
	sum := registry.Counts{By: make(map[registry.Strategy]int)}
	s.eachCluster(func(cl *cluster) {
		counts := cl.agents.Counts()
		sum.Agents += counts.Agents
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

// closeEnds ends the connections of the server's own fronts to agents, in all clusters
// at once: it takes time to deliver what they still hold.
func (s *Server) closeEnds() {
	s.tenants.stop()
	var closing sync.WaitGroup
	s.eachCluster(func(cl *cluster) { closing.Go(cl.ends.Close) })
	closing.Wait()
}

// waitEnds returns when what closeEnds ended has ended.
func (s *Server) waitEnds() { s.eachCluster(func(cl *cluster) { cl.ends.Wait() }) }
