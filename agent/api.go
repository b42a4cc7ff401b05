package agent

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// maxAPIConns bounds what programs on the node and its pods can have the agent hold.
const maxAPIConns = 10000

// apiFront takes connections of the node's programs, which are carried to the API server
// by a link (docs/link-protocol.md §13).
type apiFront struct {
	front  *front.Bare
	set    *set
	totals tunnel.Totals // Up is to the API server
	warned atomic.Bool   // that it is not reached, since it was
}

// newAPIFront makes the front where opts ask for it; nil: they do not.
func newAPIFront(opts Options, s *set) (*apiFront, error) {
	if len(opts.API) == 0 {
		return nil, nil
	}
	a := &apiFront{set: s}
	bare, err := front.NewBare(front.Options{
		Forwarder: &tunnel.Forwarder{
			Dialer: s.opened.Dialer(tunnel.DialerFunc(a.dial)), DialTimeout: opts.DialTimeout, Total: &a.totals, Observers: opts.Observers,
		},
		Descriptors: admission.Descriptors(), Log: opts.Log, Registerer: opts.Registerer, Untold: true, // dialed tells
	}, front.Traits{
		Name: "api", Connections: "connections to the API server", MaxConns: maxAPIConns,
		Metrics: front.Names{
			Prefix:   MetricsPrefix + "api_",
			Refused:  "Number of connections of the node's programs that were refused, as too many are open.",
			Requests: "Number of connections of the node's programs to their API server, by outcome: ok, or why it was not reached.",
			Open:     "Current number of open connections of the node's programs to their API server.",
		},
	})
	if err != nil {
		return nil, err
	}
	a.front = bare
	bare.To = func(net.Conn) (network, address string, err error) { return link.NetworkAPI, link.APIAddress, nil }
	bare.Dialed = a.dialed
	carried := observe.NewFigures(MetricsPrefix, func() *tunnel.Totals { return &a.totals })
	carried.Bytes("api_bytes_total", "Payload carried to and from the API server, by direction.", (*tunnel.Totals).Load, "to_api", "from_api")
	return a, opts.Registerer.Register(carried)
}

// serve takes connections from all listeners until ctx ends, and then cuts those that are
// open: a client of the API holds its connection for ever, and dials again at once.
func (a *apiFront) serve(ctx context.Context, listeners []net.Listener, log logrus.FieldLogger) (wait func()) {
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() {
			if err := a.front.Serve(ctx, l); err != nil {
				log.WithError(err).WithField("address", l.Addr().String()).Error("--api-bind: the node's programs do not reach their API server here any more")
			}
		})
	}
	return serving.Wait
}

// dialed logs why the API server is not reached, once until it is: clients try again for ever.
func (a *apiFront) dialed(err error) {
	switch {
	case err == nil:
		a.warned.Store(false)
	case !errors.Is(err, admission.ErrLeft):
		level := logrus.WarnLevel
		if a.warned.Swap(true) {
			level = logrus.DebugLevel
		}
		a.front.Log.WithError(err).Log(level, "--api-bind: the API server was not reached")
	}
}

// dial implements tunnel.Dialer. Each server is asked once, and all are waited for while
// there is none.
func (a *apiFront) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	var tried []linkSession
	var last error
	lost := false // one try lost its link, whatever later ones say
	for {
		joins := *a.set.joins.Load()
		s, found, connected := pickAPI(a.set.peers.Members(), tried, f)
		switch {
		case found:
			if len(tried) > 0 && !f.Resume.Again() {
				f.Resume.Repeat()
			}
			tried = append(tried, s)
			f.Hop = tunnel.Hop{Role: tunnel.RoleServer, ID: s.ServerID()}
			c, err := s.Dial(ctx, f)
			gone := tunnel.FailureOf(err) == tunnel.FailGone // another server may lead to an agent that knows the connection
			if err == nil || ctx.Err() != nil || !gone && !tunnel.Elsewhere(err) {
				return c, err
			}
			last, lost = tunnel.GoneFirst(last, err), lost || tunnel.LostInFlight(err)
		case last != nil:
			return nil, tunnel.AlsoLost(f.Address, a.set.peers.Final(last), lost)
		case connected:
			return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address,
				Reason: "no server that is connected takes nodes to their API server: it is older, or is reached by gRPC (--link)"}
		default:
			select {
			case <-joins:
			case <-ctx.Done():
				return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address, Reason: "no server is connected"}
			}
		}
	}
}

// pickAPI returns the link of the server that is to be asked next. One that stays comes
// before one that leaves, or that is left. Of those, f may prefer one. Else it is that with
// the shortest round trip, which grows with a server's load as well as with its distance.
// connected says whether any server is connected.
func pickAPI(members []member, tried []linkSession, f *tunnel.Flow) (best linkSession, found, connected bool) {
	type rank struct {
		leaves, second int
		rtt            int64
	}
	var bestRank rank
	for _, m := range members {
		if tunnel.Closed(m.Session.Done()) {
			continue
		}
		connected = true
		l, linked := m.Session.(linkSession)
		if !linked || !l.API() || slices.Contains(tried, l) {
			continue
		}
		r := rank{rtt: int64(l.RTT())}
		if !m.Standing().Stays() {
			r.leaves = 1
		}
		if f.Resume == nil || f.Resume.First != l.ServerID() {
			r.second = 1
		}
		if !found || cmp.Or(cmp.Compare(r.leaves, bestRank.leaves), cmp.Compare(r.second, bestRank.second), cmp.Compare(r.rtt, bestRank.rtt)) < 0 {
			best, bestRank, found = l, r, true
		}
	}
	return best, found, connected
}

const (
	// firstMove and lastMove bound the pauses between moves of connections off a server
	// that is left: a dial may have crossed one, or have found no other server yet.
	firstMove = 50 * time.Millisecond
	lastMove  = time.Second
)

// staying are the members that neither leave nor are left.
func (s *set) staying() []member {
	return slices.DeleteFunc(slices.Clone(s.peers.Members()), func(m member) bool { return !m.State().Stays() })
}

// move has the node's connections go on by other servers than c's, until ctx ends or c.
func (s *set) move(ctx context.Context, c session) {
	l, linked := c.(linkSession)
	if !linked || !s.opened.Enabled() {
		return
	}
	for pause := firstMove; ; pause = min(2*pause, lastMove) {
		if _, found, _ := pickAPI(s.staying(), []linkSession{l}, new(tunnel.Flow)); found {
			for _, lane := range l.Sessions() {
				s.opened.Move(lane)
			}
		}
		select {
		case <-time.After(pause):
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}
