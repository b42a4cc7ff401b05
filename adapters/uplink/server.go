package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/roam"
)

const (
	// maxTries is how many links a request is tried on when they break under
	// it before anything was answered.
	maxTries = 3

	// readyAge is how old the last handshake with an old server may be for
	// the server to count as reachable; three probes.
	readyAge = 3 * probeEvery
)

// Server is a tunnel.Dialer to whatever the konnectivity server's agents reach.
// Its methods may be called from any goroutine.
type Server struct {
	opt    Options
	tls    *tls.Config // one for all, so that sessions are resumed
	budget *link.Budget
	ends   *roam.Ends
	dialer tunnel.Dialer
	hello  link.Hello

	ctx    context.Context // ends everything that was started here
	cancel context.CancelFunc
	wg     sync.WaitGroup
	begun  sync.Once

	set     *peers.Set[netip.AddrPort, *pooled] // the links
	servers *directory
	health  health
	seeker  seeker
	made    atomic.Int64 // links
	stats   struct{ connects, failures, lost atomic.Int64 }

	mu     sync.Mutex
	closed bool
	spare  *spare // a connection that showed the server to be old
}

// errClosed is why a closed Server dials nothing.
var errClosed = errors.New("shutting down")

// New makes a Server. It touches no network. It fails on options that can
// never work.
func New(opt Options) (*Server, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{opt: opt, budget: link.NewBudget(0), servers: newDirectory(opt)}
	s.tls = opt.TLS.Client(opt.ServerName, protocols(opt.Mode)...)
	s.ends = roam.New(roam.Options{Window: opt.ResumeWindow, Budget: s.budget, Log: opt.Log})
	s.dialer = s.ends.Dialer(tunnel.DialerFunc(s.dial))
	s.hello = link.Hello{Role: link.RoleClient, Software: opt.Software, ID: tunnel.NewID(), Features: s.ends.Features()}
	if opt.Lanes > 1 {
		s.hello.Features = append(s.hello.Features, link.FeatureLanes)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.set = s.newSet()
	return s, nil
}

// Is says whether to is one of the server's addresses, as looked up last.
func (s *Server) Is(to netip.AddrPort) bool { return s.servers.has(to) }

// ID is how the links introduce themselves. Each New makes another.
func (s *Server) ID() string { return s.hello.ID }

// Dial implements tunnel.Dialer: on the link with the fewest streams, or where
// no link is up, on a connection of its own. It waits for a server that cannot
// be reached no longer than Options.ConnectTimeout (FailUnavailable), and for
// the destination until ctx ends.
func (s *Server) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return s.dialer.Dial(ctx, f)
}

func (s *Server) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if f.Resume.Again() {
		return s.resume(ctx, f)
	}
	network, address := f.Network, f.Address
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, &tunnel.DialError{Failure: tunnel.FailBadAddress, Address: address, Reason: "only TCP goes through the tunnel"}
	}
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return nil, err
	}
	var tried []*pooled
	var last error
	struck := false // one try lost its link, whatever later ones say
	for range maxTries {
		l, h, err := s.way(ctx, tried)
		switch {
		case err != nil:
			return nil, failed(address, s.unavailable(address, err), struck)
		case l != nil:
			s.seek(l)
			f.Hop = tunnel.Hop{Role: "server", ID: l.Peer().ID}
			if len(tried) > 0 {
				f.Resume.Repeat()
			}
			c, err := l.Dial(ctx, f)
			if err == nil || ctx.Err() != nil || !elsewhere(err) {
				return c, err
			}
			tried, last, struck = append(tried, l), err, struck || tunnel.Struck(err)
		case h.Conn != nil:
			f.Hop = tunnel.Hop{Role: "server", ID: h.addr.String()} // its id is not known
			c, err := s.connectOver(ctx, h, f)
			if err == nil || ctx.Err() != nil || !h.spare || tunnel.FailureOf(err) != tunnel.FailUnavailable {
				return c, err
			}
			last = err // it died while it waited; that was no try
		default:
			return nil, failed(address, last, struck)
		}
	}
	return nil, failed(address, last, struck)
}

// failed is why a dial failed on all links, marked if one of them was lost
// under it.
func failed(address string, err error, struck bool) error {
	if !struck || tunnel.Struck(err) {
		return err
	}
	marked := *tunnel.AsDialError(address, err) // others may hold the original
	marked.Struck = true
	return &marked
}

// elsewhere says whether another link may do better: the destination was not
// asked, or another server may have an agent for it.
func elsewhere(err error) bool {
	failure := tunnel.FailureOf(err)
	return failure.Elsewhere() || failure == tunnel.FailNoAgent
}

// way finds what can carry a request: the best link that was not tried or,
// where none is up, a connection for this request alone. It returns neither if
// every link was tried.
func (s *Server) way(ctx context.Context, tried []*pooled) (*pooled, handshaken, error) {
	if l := s.pick(tried); l != nil {
		return l, handshaken{}, nil
	}
	if len(tried) > 0 && s.pick(nil) != nil {
		return nil, handshaken{}, nil
	}
	if h, ok := s.takeSpare(); ok {
		return nil, h, nil
	}
	if s.knownOld() {
		return s.connectAlone(ctx)
	}
	if err := s.begin(); err != nil {
		return nil, handshaken{}, err
	}
	l, err := s.set.Now(ctx)
	var old *peers.Reached
	if !errors.As(err, &old) {
		return l, handshaken{}, err
	}
	if h, ok := s.takeSpare(); ok {
		return nil, h, nil
	}
	return s.connectAlone(ctx)
}

func (s *Server) knownOld() bool {
	old, _, _ := s.health.now()
	return old || s.opt.Mode == link.Off
}

// begin has the loop of the links run.
func (s *Server) begin() error {
	s.begun.Do(func() {
		s.start(func() {
			s.set.Run(s.ctx)
			s.set.Close()
		})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return nil
}

// Run keeps a link to each of the server's addresses until ctx ends, then
// closes the Server. An old server is looked at every 30 s. It must be called
// at most once.
func (s *Server) Run(ctx context.Context) {
	defer s.Close()
	if s.begin() != nil {
		return
	}
	if s.opt.Mode != link.Off {
		s.set.Warm(ctx) // the first request can have it
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

// start runs f on a goroutine that Close joins, unless it is too late.
func (s *Server) start(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Go(f)
	}
}

// Ready is nil while requests can be expected to get through, else why not.
func (s *Server) Ready() error {
	for _, m := range s.set.Members() {
		if l := m.Session; l.alive() && !l.isLeaving() {
			return nil
		}
	}
	old, okAt, fault := s.health.now()
	switch {
	case fault != nil:
		return errors.New(reason(fault))
	case (old || s.opt.Mode == link.Off) && time.Since(okAt) < readyAge:
		return nil
	default:
		return errors.New("no link to the konnectivity server is up yet")
	}
}

// Serving is nil unless every server that is linked says that no agent serves;
// then it is why not. Servers that say nothing are taken to serve.
func (s *Server) Serving() error {
	why := ""
	for _, m := range s.set.Members() {
		l := m.Session
		if !l.alive() {
			continue
		}
		said := l.Serving()
		if said.Why == "" {
			return nil
		}
		why = said.Why
	}
	if why == "" {
		return nil
	}
	return errors.New("the konnectivity server says: " + why)
}

// Link is a link to a server, as an operator sees it.
type Link struct {
	Peer     link.Hello // without its token
	Address  netip.AddrPort
	Since    time.Time
	Draining bool
	Stats    link.Stats
}

// Links lists the links that are up. It costs one pass over their streams.
func (s *Server) Links() []Link {
	var out []Link
	for _, m := range s.set.Members() {
		if l := m.Session; l.alive() {
			peer := l.Peer()
			peer.Token = ""
			out = append(out, Link{Peer: peer, Address: l.addr, Since: l.since, Draining: l.isLeaving(), Stats: l.Stats()})
		}
	}
	return out
}

// Stats are figures for metrics.
type Stats struct {
	Links    int   // that are up
	Lanes    int   // their TCP connections
	Streams  int   // on them
	Connects int64 // handshakes with the server that worked
	Failures int64 // those that did not
	Lost     int64 // links that ended without having been asked to
}

// Stats costs one pass over the links.
func (s *Server) Stats() Stats {
	out := Stats{Connects: s.stats.connects.Load(), Failures: s.stats.failures.Load(), Lost: s.stats.lost.Load()}
	for _, m := range s.set.Members() {
		if l := m.Session; l.alive() {
			out.Links++
			out.Lanes += len(l.Sessions())
			out.Streams += l.Streams()
		}
	}
	return out
}

// Close ends all links and what runs for them, and returns when all has ended.
// Connections made by CONNECT are their owners'.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	sp := s.spare
	s.mu.Unlock()
	s.ends.Close()
	s.cancel()
	if sp != nil && sp.timer.Stop() {
		s.dropSpare(sp)
	}
	s.wg.Wait()
	s.ends.Wait()
}
