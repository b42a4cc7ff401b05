package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admin"
	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

const (
	// connectTimeout bounds an attempt: TCP, TLS, and the server's answer. It is
	// the bound that every handshake in the suite has.
	connectTimeout = 10 * time.Second
	// maxSearch bounds the attempts under way for servers that are missing,
	// beyond one for each address that no known server covers.
	maxSearch = 4
	// maxServers is as many as a server is believed to tell of, and as many as
	// are looked for.
	maxServers = 256
	// maxLeaving is how many servers that are about to go, and how many duplicates, may
	// take their time about it. There are not as many; but a server may drain each new
	// session and end none, or dial through duplicates though they drain.
	maxLeaving = maxServers
	// shortLife is how long a session must last for its end not to count as
	// a failure of its address.
	shortLife = 5 * time.Second
	// redialSpread spreads the first redial after a loss. Connections stand still
	// until then, so it is short; where thousands of agents lose a server at once,
	// their handshakes take longer than any spread.
	redialSpread = 100 * time.Millisecond
	// forgivenLosses is how many short sessions with an address are redialed so
	// soon, plus one more every 5 s. Links that a bad network or a balancer
	// cuts are worth it; a server that drops all that it accepts is not.
	forgivenLosses = 64
	// resolveEvery is how often names are looked up while nothing is missing.
	resolveEvery = 5 * time.Second
	// longestProbe stands for a --sync-interval-cap that means never, as six times it is
	// to be a duration still.
	longestProbe = 1000 * time.Hour
	// failGrowth is the growth of pauses after failures (upstream
	// pkg/agent/clientset.go has the same).
	failGrowth = 1.5
)

type member = peers.Member[address, session]

// set is the servers an agent is connected to: as many as there are, or as it is to have,
// each once.
type set struct {
	opts     Options
	log      logrus.FieldLogger
	resolver *resolver
	metrics  *metrics
	peers    *peers.Set[address, session]
	// connect returns a session, or an error when ctx ended first. It leaves nothing behind
	// when it fails.
	connect func(ctx context.Context, to address) (session, error)

	unlooked bool            // names failed to resolve, and that was logged; owned by peers' loop
	causes   causes          // of failed attempts, which were logged; owned by peers' loop
	closing  sync.WaitGroup  // of sessions that were one too many
	ending   context.Context // of peers' loop and of duplicates; close ends it
	end      context.CancelFunc
	running  sync.WaitGroup                // of peers' loop
	rests    bool                          // no server is looked for; owned by the caller of look
	draining atomic.Bool                   // servers are told to dial through others
	busy     atomic.Int32                  // duplicates that have not ended
	joins    atomic.Pointer[chan struct{}] // its channel is closed, and replaced, when a session joins
	opened   *resume.Manager               // of the node's connections to its API server that an agent beside that has dialed
	fault    atomic.Pointer[error]         // for status: why the last attempt failed; nil: it worked
}

func newSet(opts Options, connect func(context.Context, address) (session, error), m *metrics) *set {
	s := &set{opts: opts, log: opts.Log, connect: connect, resolver: newResolver(opts), metrics: m, causes: make(causes)}
	joins := make(chan struct{})
	s.joins.Store(&joins)
	s.setFault(nil)
	opened := resume.Options{Budget: opts.Budget, Log: opts.Log}
	if len(opts.API) > 0 {
		opened.Window = opts.ResumeWindow
	}
	s.opened = resume.New(opened)
	s.ending, s.end = context.WithCancel(context.Background())
	s.peers = peers.New(peers.Config[address, session]{
		Policy: s.policy(), ConnectTimeout: connectTimeout,
		Key:          func(a address) string { return a.dial },
		Resolve:      s.resolver.resolve,
		ResolveEvery: s.resolveEvery,
		Connect:      func(ctx context.Context, to address) (session, error) { return s.connect(ctx, to) },
		Silent:       func(s session) bool { return s.Protocol() != protocolLink },
		Retire:       s.retire,
		Events: peers.Events[address, session]{
			Joined: s.joined, Duplicate: s.duplicate, Failed: s.failed,
			Leaving: s.leaving, Ended: s.ended, Resolved: s.resolved, Changed: s.changed,
		},
	})
	return s
}

func (s *set) policy() peers.Policy {
	return peers.Policy{
		Backoff:   peers.Backoff{Base: s.opts.SyncInterval, Limit: s.opts.SyncIntervalCap, Growth: failGrowth},
		ShortLife: shortLife, Spread: redialSpread, Losses: forgivenLosses,
		MaxSearch: maxSearch, MaxPeers: maxServers, Most: s.opts.MaxServers, Client: s.opts.ID,
		Want:       func(heard, _ int) int { return s.want(heard) },
		ProbeEvery: s.probeEvery,
	}
}

// start keeps the set connected until close, except while look says otherwise.
func (s *set) start() {
	s.peers.Keep()
	s.running.Go(func() { s.peers.Run(s.ending) })
}

// look says whether servers that are missing are looked for. Sessions live on either way.
func (s *set) look(on bool) {
	switch {
	case on && s.rests:
		s.peers.Keep()
	case !on && !s.rests:
		s.peers.Rest()
	}
	s.rests = !on
}

// resolveEvery is how long to wait between look-ups.
func (s *set) resolveEvery(complete bool, _ error) time.Duration {
	if !complete {
		return s.opts.SyncInterval
	}
	return max(s.opts.SyncInterval, min(resolveEvery, s.opts.SyncIntervalCap))
}

// probeEvery is how often to look for more servers while none is missing. An
// old server tells of a new count only when it is dialed; at twice the cap (20
// s by default) the agent knows it soon enough to be right within 30 s. Servers
// on links tell by themselves, so there this is only a safety net.
func (s *set) probeEvery(silent bool) time.Duration {
	every := min(s.opts.SyncIntervalCap, longestProbe)
	switch {
	case s.opts.SyncForever:
		return every
	case silent:
		return 2 * every
	default:
		return 6 * every
	}
}

// want is the number of servers to be connected to, at least 1, of the count that
// servers told (0: none did).
func (s *set) want(heard int) int {
	heard = min(max(heard, 1), maxServers)
	if s.opts.Leases == nil {
		return heard
	}
	leases, known := s.opts.Leases.Count()
	switch {
	case !known:
		return heard
	case s.opts.CountSource == CountMax:
		return max(heard, leases)
	default:
		return max(leases, 1)
	}
}

func (s *set) joined(m member) {
	s.setFault(nil)
	if s.draining.Load() {
		m.Session.Drain()
	}
	joins := make(chan struct{})
	close(*s.joins.Swap(&joins))
	s.about(m).WithField("protocol", m.Session.Protocol()).Info("connected to server")
	if l, ok := m.Session.(linkSession); ok && s.opts.MaxServers > 0 && !l.Forwards() {
		link.WarnAlone(s.log, l.ServerID())
	}
}

// retire has a server dial through others that is one too many, and ends its session once
// nothing is open there that would be lost: what outlives it goes on by another. A server
// that is about to go ends its sessions itself.
func (s *set) retire(ctx context.Context, c session) {
	if c.Drains().Happened() {
		s.move(ctx, c)
		return
	}
	c.Drain()
	s.closing.Go(func() { s.move(ctx, c) })
	open := c.Streams
	if l, ok := c.(linkSession); ok {
		open = l.Bound
	}
	if drained(ctx, c, open) {
		_ = c.Close()
	}
}

// drained waits until nothing is open on a session that drains. It reports false if ctx or
// the session ended first.
func drained(ctx context.Context, c session, open func() int) bool {
	for {
		select {
		case <-time.After(drainQuiet): // longer than a dial is on its way that crossed this
		case <-c.Done():
			return false
		case <-ctx.Done():
			return false
		}
		if open() == 0 {
			return true
		}
	}
}

// about is the log for lines about a session.
func (s *set) about(m member) *logrus.Entry {
	return s.log.WithFields(logrus.Fields{
		"server": m.Session.ServerID(), "address": m.Address.dial, "connected": s.peers.Active(), "servers": s.peers.Want(),
	})
}

// duplicate closes a session to a server that is connected already. By the old protocol,
// which cannot say why it ends, the server may have dialed through the session by now: that
// goes on to its end.
func (s *set) duplicate(to address, session session) {
	s.closing.Go(func() {
		defer s.busy.Add(-1)
		if s.busy.Add(1) <= maxLeaving && session.Protocol() != protocolLink {
			session.Drain()
			drained(s.ending, session, session.Streams)
		}
		_ = session.CloseDuplicate()
	})
	s.log.WithFields(logrus.Fields{"server": session.ServerID(), "address": to.dial}).Debug("server is connected already")
}

// failed takes in a failed attempt. Between two sessions each cause is logged once:
// behind a balancer, failures come between hits on known servers.
func (s *set) failed(f peers.Failure[address]) {
	s.metrics.connectFailed(f.Err)
	s.setFault(fmt.Errorf("%s: %w", f.Address.dial, f.Err))
	log := s.log.WithError(f.Err).WithField("address", f.Address.dial)
	switch {
	case f.Needless:
		log.Debug("cannot look for more servers")
	case s.causes.news(f.Address.dial, f.Err, f.First, time.Now()):
		log.Warn("cannot connect to server; retrying")
	default:
		log.Debug("cannot connect to server")
	}
}

func (s *set) leaving(m member) {
	s.log.WithField("server", m.Session.ServerID()).Info("server is shutting down")
	going := slices.DeleteFunc(slices.Clone(s.peers.Members()), func(m member) bool { return m.State() != peers.Leaving })
	if len(going) > maxLeaving {
		s.closing.Go(func() { _ = going[0].Session.Close() })
	}
}

func (s *set) ended(m member, was peers.State) {
	reason, log, err := "draining", s.about(m), m.Session.Err()
	switch {
	case was == peers.Replaced:
		log.Info("left a server: there are others, which are preferred")
	case was == peers.Leaving:
		log.Info("server closed the connection")
	case err == nil:
		reason = "closed"
		log.Info("server closed the connection")
	default:
		reason = "lost"
		log.WithFields(link.LossFields(err)).Warn("connection to server lost")
		if m.Session.Protocol() == protocolLink {
			s.metrics.linkLost(err)
		}
	}
	s.metrics.disconnects.WithLabelValues(reason).Inc()
}

// resolved takes in how a look-up went.
func (s *set) resolved(known []address, err error) {
	if err != nil && len(known) == 0 {
		s.setFault(err)
	}
	if err != nil && !s.unlooked {
		s.log.WithError(err).Warn("cannot look up a server's name; retrying with the known addresses")
	}
	s.unlooked = err != nil
}

func (s *set) changed(connected, wanted int) {
	s.metrics.serverConnections.Set(float64(connected))
	s.metrics.knownServers.Set(float64(wanted))
}

// status may be called from any goroutine.
func (s *set) status() []admin.Peer {
	var all []admin.Peer
	for _, m := range s.peers.Members() {
		c := m.Session
		if tunnel.Closed(c.Done()) {
			continue
		}
		p := admin.Peer{
			Role: admin.RoleServer, ID: c.ServerID(), Protocol: c.Protocol(), Remote: m.Address.dial, Since: admin.Past{Time: m.Since},
			Streams: c.Streams(), Draining: c.Drains().Happened(),
		}
		if l, ok := c.(linkSession); ok {
			p.Linked(l.Peer(), l.Heard(), l.Stats())
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b admin.Peer) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// trouble is why the last attempt to connect failed; nil if none has since one
// worked. It may be called from any goroutine.
func (s *set) trouble() error { return *s.fault.Load() }

func (s *set) setFault(err error) { s.fault.Store(&err) }

// drain tells every server, also those that are yet to come; it returns how many streams
// are open.
func (s *set) drain() int {
	s.draining.Store(true)
	for _, m := range s.peers.Members() {
		m.Session.Drain()
	}
	return s.streams()
}

func (s *set) streams() int {
	n := 0
	for _, m := range s.peers.Members() {
		n += m.Session.Streams()
	}
	return n
}

// gone says that every session has ended, and that none is about to come.
func (s *set) gone() bool {
	return !s.peers.Busy() && !slices.ContainsFunc(s.peers.Members(), func(m member) bool { return !tunnel.Closed(m.Session.Done()) })
}

// close ends every session and joins every helper.
func (s *set) close() {
	s.end()
	s.running.Wait()
	s.peers.Close()
	s.closing.Wait()
	s.metrics.serverConnections.Set(0)
}
