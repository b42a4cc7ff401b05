package uplink

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Server is a tunnel.Dialer to all that the konnectivity server's agents reach.
// Its methods may be called from any goroutine.
type Server struct {
	opt       Options
	connector *connector
	health    *health
	set       *peers.Set[netip.AddrPort, session]
	ends      *resume.Manager
	dialer    tunnel.Dialer // dial, for connections that outlive their links
	lost      atomic.Int64  // links

	ctx   context.Context // of the set's loop
	end   context.CancelFunc
	begun sync.Once
	loop  sync.WaitGroup
}

// New makes a Server. It touches no network. It fails on options that can
// never work.
func New(opt Options) (*Server, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	budget := link.NewBudget(0)
	s := &Server{opt: opt}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.health = newHealth(s.ctx, opt)
	s.ends = resume.New(resume.Options{Window: opt.ResumeWindow, Budget: budget, Log: opt.Log})
	s.connector = newConnector(opt, s.health, budget, s.ends.Features())
	s.set = peers.New(peers.Config[netip.AddrPort, session]{
		Policy: policy(opt.MaxServers, s.connector.hello.ID), ConnectTimeout: opt.ConnectTimeout,
		Key:          netip.AddrPort.String,
		Resolve:      s.connector.servers.resolve,
		ResolveEvery: resolveEvery,
		Connect:      s.connector.sessionAt,
		Rush:         s.connector.rush,
		Serves:       serves,
		Server:       serverOf,
		Replace:      s.connector.linkAt,
		Retire:       s.retire,
		Events: peers.Events[netip.AddrPort, session]{
			Joined: s.joined, Failed: s.attemptFailed, Rushed: s.health.note, Resolved: s.resolved, Ended: s.sessionEnded,
		},
	})
	s.connector.offer = func(l *linkSession) { s.set.Offer(l.addr, l) }
	s.dialer = s.ends.Dialer(tunnel.DialerFunc(s.dial))
	return s, nil
}

// begin starts the set's loop, unless it runs or the Server is closed.
func (s *Server) begin() {
	s.begun.Do(func() {
		s.loop.Go(func() {
			s.set.Run(s.ctx)
			s.set.Close()
		})
	})
}

// sessions are the present ones.
func (s *Server) sessions() sessions { return s.set.Members() }

// now waits for a session.
func (s *Server) now(ctx context.Context) (session, error) {
	s.begin()
	return s.set.Now(ctx)
}

// joined warns where a link to one server does not stand for all.
func (s *Server) joined(m peers.Member[netip.AddrPort, session]) {
	if l, linked := m.Session.(*linkSession); linked && s.opt.MaxServers > 0 && !l.Forwards() {
		link.WarnAlone(s.opt.Log, l.Peer().ID)
	}
}

// attemptFailed notes why one address has no session.
func (s *Server) attemptFailed(f peers.Failure[netip.AddrPort]) {
	if best, _ := s.sessions().pick(); best != nil {
		s.health.noteBehind(f.Err)
	} else {
		s.health.note(f.Err)
	}
}

// resolved notes that no address of the server is known.
func (s *Server) resolved(known []netip.AddrPort, err error) {
	if err != nil && len(known) == 0 {
		s.health.note(err)
	}
}

// sessionEnded counts a link that has ended without having been asked to.
func (s *Server) sessionEnded(m peers.Member[netip.AddrPort, session], was peers.State) {
	if l, linked := m.Session.(*linkSession); linked && was < peers.Leaving {
		s.lost.Add(1)
		s.opt.Log.WithField("server", m.Address).WithFields(link.LossFields(l.Err())).Debug("lost a link")
	}
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

// Run keeps a session to each of the server's addresses until ctx ends, then
// closes the Server. It must be called at most once.
func (s *Server) Run(ctx context.Context) {
	defer s.Close()
	s.begin()
	if s.opt.Mode != link.Off {
		s.set.Warm() // the first request can have it
	}
	s.set.Keep()
	select {
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
}

// Retry tries failed connections again at once, for instance because the
// certificates have changed.
func (s *Server) Retry() { s.set.Retry() }

// Rerouted is for a caller who knows that addresses or routes of this machine have changed.
func (s *Server) Rerouted() { s.set.Rerouted() }

// Ready is nil while requests can be expected to get through, else why not.
func (s *Server) Ready() error {
	link, connect := s.sessions().stay()
	if link {
		return nil
	}
	return s.health.ready(connect)
}

// Serving is nil unless every server that is linked says that no agent serves;
// then it is why not. Servers that say nothing are taken to serve.
func (s *Server) Serving() error { return s.sessions().serving() }

// Links lists the links that are up. It costs one pass over their streams.
func (s *Server) Links() []Link { return s.sessions().list() }

// Resuming returns the figures of connections that outlive their links.
func (s *Server) Resuming() resume.Stats { return s.ends.Stats() }

// OnResume has f told of each pause of such a connection. f must not block.
func (s *Server) OnResume(f func(pause time.Duration)) { s.ends.OnResume(f) }

// Stats costs one pass over the links.
func (s *Server) Stats() Stats {
	out := Stats{Connects: s.health.connects.Load(), Failures: s.health.failures.Load(), Lost: s.lost.Load()}
	s.sessions().count(&out)
	return out
}

// Close ends all sessions and what runs for them, and returns when all has ended.
// Connections made by CONNECT are their owners'.
func (s *Server) Close() {
	s.ends.Close() // while the links are there to deliver by
	s.end()
	s.begin() // a loop that never ran refuses later dials, too
	s.loop.Wait()
	s.ends.Wait()
}
