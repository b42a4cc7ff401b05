package uplink

import (
	"context"
	"net/netip"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Server is a tunnel.Dialer to whatever the konnectivity server's agents reach.
// Its methods may be called from any goroutine.
type Server struct {
	opt       Options
	connector *connector
	health    *health
	pool      *pool
	spare     *spare
	ends      *resume.Manager
	dialer    tunnel.Dialer // dial, for connections that outlive their links
	tasks     *tasks
}

// New makes a Server. It touches no network. It fails on options that can
// never work.
func New(opt Options) (*Server, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	budget := link.NewBudget(0)
	s := &Server{opt: opt, spare: new(spare), tasks: newTasks()}
	s.health = newHealth(s.tasks.ctx, opt)
	s.ends = resume.New(resume.Options{Window: opt.ResumeWindow, Budget: budget, Log: opt.Log})
	s.connector = newConnector(opt, s.health, budget, s.ends.Features())
	s.pool = newPool(opt, s.connector, s.spare, s.ends, s.tasks)
	s.dialer = s.ends.Dialer(tunnel.DialerFunc(s.dial))
	return s, nil
}

// Is says whether to is one of the server's addresses, as looked up last.
func (s *Server) Is(to netip.AddrPort) bool { return s.connector.servers.has(to) }

// ID is how the links introduce themselves. Each New makes another.
func (s *Server) ID() string { return s.connector.hello.ID }

// Dial implements tunnel.Dialer: on the link with the fewest streams, or where
// no link is up, on a connection of its own. It waits for a server that cannot
// be reached no longer than Options.ConnectTimeout (FailUnavailable), and for
// the destination until ctx ends.
func (s *Server) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return s.dialer.Dial(ctx, f)
}

// Run keeps a link to each of the server's addresses until ctx ends, then
// closes the Server. An old server is looked at every 30 s. It must be called
// at most once.
func (s *Server) Run(ctx context.Context) {
	defer s.Close()
	if s.pool.keep(ctx) != nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-s.tasks.ctx.Done():
	}
}

// Retry tries failed connections again at once, for instance because the
// certificates have changed.
func (s *Server) Retry() { s.pool.set.Retry() }

// Ready is nil while requests can be expected to get through, else why not.
func (s *Server) Ready() error {
	if s.pool.links().stay() {
		return nil
	}
	return s.health.ready()
}

// Serving is nil unless every server that is linked says that no agent serves;
// then it is why not. Servers that say nothing are taken to serve.
func (s *Server) Serving() error { return s.pool.links().serving() }

// Links lists the links that are up. It costs one pass over their streams.
func (s *Server) Links() []Link { return s.pool.links().list() }

// Ends are the ends of the connections that outlive their links.
func (s *Server) Ends() *resume.Manager { return s.ends }

// Stats costs one pass over the links.
func (s *Server) Stats() Stats {
	out := Stats{Connects: s.health.connects.Load(), Failures: s.health.failures.Load(), Lost: s.pool.lost.Load()}
	s.pool.links().count(&out)
	return out
}

// Close ends all links and what runs for them, and returns when all has ended.
// Connections made by CONNECT are their owners'.
func (s *Server) Close() {
	s.tasks.close()
	s.ends.Close() // while the links are there to deliver by
	s.spare.close()
	s.tasks.end()
	s.ends.Wait()
}
