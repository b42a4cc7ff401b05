package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/observe"
	"konnectivity/internal/wait"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/lease"
	"konnectivity/server/limits"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/shares"
)

// Server is a konnectivity server. Make it with New and call Run once.
type Server struct {
	opts    Options
	metrics *metrics
	own     *cluster // that of the flags

	clientTokens *auth.Tokens // of its clients; nil: they have certificates
	access       *auth.Access // nil: the rules alone say what clients may reach
	tenants      *tenants
	limits       *limits.Limits
	table        *admin.Table      // nil: no admin port
	site         *admin.Site       // nil: no admin port
	leases       *lease.Controller // nil: none
	peering      *peering          // nil: it forwards to no other server
	grpc         legacy.Limits
	paused       func(time.Duration) // told of pauses of connections that were resumed; nil until New is over
	changes      changes

	trustChanged atomic.Int64 // when it last has, a tunnel.Moment; 0: not yet

	preAuth *frontend.PreAuth // of all ports
	local   *frontend.PreAuth // of unix sockets

	byGRPC [sides]*grpcFront // nil: not served

	fronts [sides][]*frontend.Frontend // as opts.listeners

	drains     context.Context // ends when Run was told to stop
	startDrain context.CancelFunc
}

// errStopped is why connections end that outlast the grace period.
var errStopped = &tunnel.ResetError{Code: tunnel.CodeShutdown}

// New puts a server together; it serves from Run on. The listeners are its to
// close once Run is called.
func New(opts Options) (*Server, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	grpc := legacy.Limits{Budget: shares.NewBudget(legacy.DefaultBudget)}
	all := limits.New(opts.Budget, grpc.Budget, opts.AgentMemory, toldRoutes(&opts), admission.ShareOut(admission.Descriptors()).Relayed)
	s := &Server{
		opts:    opts,
		metrics: newMetrics(opts.Registry),
		grpc:    grpc,
		changes: newChanges(),
		limits:  all,

		preAuth: frontend.NewPreAuth(admission.Descriptors()),
		local:   frontend.NewLocalPreAuth(admission.Descriptors()),
	}
	s.drains, s.startDrain = context.WithCancel(context.Background())
	opts.PolicyFile.OnChange(func() { wait.Signal(s.changes.policy) })
	if opts.Admin != nil {
		s.table = admin.NewTable()
	}
	if opts.Leases != nil {
		cfg := *opts.Leases
		cfg.ServerID, cfg.Metrics, cfg.Changed, cfg.Log = opts.ID, s.metrics, s.tellCount, opts.Log
		s.leases = lease.New(cfg)
	}
	if err := s.buildPeering(); err != nil {
		return nil, err
	}
	s.clientTokens = s.newTokens(opts.ClientTokens, opts.Log)
	if opts.AccessReviews != nil {
		s.access = auth.NewAccess(opts.AccessReviews, s.metrics.accessReviewed)
	}
	s.own = s.newCluster("", s.limits.Own(), opts.Strategies)
	s.own.config.Store(&config{spec: &tenant.Spec{APIServers: opts.APIServers}, gate: auth.Gate{Claims: opts.Claims, OwnIDs: opts.OwnIDs, Tokens: s.newTokens(opts.Tokens, opts.Log)}})
	s.tenants = newTenants(s, opts.Tenants)
	s.metrics.make.Add(s.figures())
	if err := s.metrics.make.Err(); err != nil {
		return nil, err
	}
	if err := observe.Resuming(opts.Registry, MetricsPrefix, s); err != nil {
		return nil, err
	}
	if opts.Admin != nil {
		s.site = admin.New(s.adminSource())
	}
	s.buildClients()
	s.buildAgents()
	return s, s.buildFronts()
}

// Ready returns nil while the server can serve, else why not in words.
func (s *Server) Ready() error {
	if s.drains.Err() != nil {
		return errors.New("the server is shutting down")
	}
	if s.opts.Tenants != nil {
		return s.tenants.ready()
	}
	return s.own.agents.Ready()
}

// serverCount is how many servers agents should find.
func (s *Server) serverCount() int {
	if s.leases != nil {
		if n := s.leases.Count(); n > 0 {
			return n
		}
	}
	return s.opts.Count
}

// Run serves until ctx ends or a listener fails. Then it drains: it is not
// ready, takes no new connections, and tells agents and sidecars; open
// connections have the grace period to end. It returns when everything it
// started has ended: nil after ctx, else the failure.
func (s *Server) Run(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	parts, failed := errgroup.WithContext(base) // failed ends when a part fails
	life, end := context.WithCancel(base)       // of what runs to the very end: health is probed during a drain, too
	defer end()
	s.background(life, parts)

	_, cutAgents := s.serve(base, parts, agents)
	clientsDone, cutClients := s.serve(base, parts, clients)
	cutPeers := s.reachOut(base, parts)
	leasing, release := context.WithCancel(base)
	defer release()
	released := wait.Go(func() {
		if s.leases != nil {
			s.leases.Run(leasing)
		}
	})

	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	release() // agents that count leases look elsewhere from now on
	s.drain(failed, clientsDone)
	cutClients()
	s.closeEnds()
	cutPeers()
	cutAgents()
	s.waitEnds()
	<-released
	end()
	return parts.Wait()
}

// serve runs one side's frontends, those of tenants alone included, and gRPC server as
// parts. done is closed when the frontends, and so all their connections, have ended. cut
// ends these, and returns then.
func (s *Server) serve(base context.Context, parts *errgroup.Group, side side) (done <-chan struct{}, cut func()) {
	life, end := context.WithCancelCause(base)
	var running sync.WaitGroup
	running.Go(func() { s.tenants.keepListeners(life, side) })
	for i, l := range s.opts.listeners(side) {
		f := s.fronts[side][i]
		running.Add(1)
		parts.Go(func() error {
			defer running.Done()
			return f.Serve(life, l)
		})
	}
	if g := s.byGRPC[side]; g != nil {
		parts.Go(g.serve)
	}
	done = wait.Go(running.Wait)
	return done, func() {
		s.byGRPC[side].stop()
		end(errStopped)
		<-done
	}
}

// reachOut links to other servers, and serves them, until cut, which returns when both have
// ended.
func (s *Server) reachOut(base context.Context, parts *errgroup.Group) (cut func()) {
	p := s.peering
	if p == nil {
		return func() {}
	}
	life, end := context.WithCancelCause(base)
	served := make(chan struct{})
	parts.Go(func() error {
		defer close(served)
		return p.front.Serve(life, s.opts.Peering.Listener)
	})
	dialing, stop := context.WithCancel(base)
	linked := wait.Go(func() { p.Run(dialing) })
	return func() {
		end(errStopped)
		<-served // first, since Run waits for what the others are told
		stop()
		<-linked
	}
}

// background starts what lives to the very end.
func (s *Server) background(life context.Context, parts *errgroup.Group) {
	parts.Go(func() error { s.rejudge(life); return nil })
	for _, run := range s.opts.Background {
		parts.Go(func() error { run(life); return nil })
	}
	for _, tokens := range []*auth.Tokens{s.own.gate().Tokens, s.clientTokens} {
		if tokens != nil {
			parts.Go(func() error { tokens.Run(life); return nil })
		}
	}
	s.tenants.start(life, parts)
	if l := s.opts.Health; l != nil {
		parts.Go(func() error { return observe.Serve(life, l, s.healthHandler(), s.opts.Log) })
	}
	if l := s.opts.Admin; l != nil {
		parts.Go(func() error { s.table.Run(life); return nil })
		parts.Go(func() error { return observe.ServeTLS(life, l, s.adminTLS(), s.adminHandler(), s.opts.Log) })
	}
}
