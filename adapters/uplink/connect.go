package uplink

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// spareTime is how long the connection that showed a server to be without links
// waits for the request that wanted it.
const spareTime = 5 * time.Second

// connectSession is a server without links, at one address. Each dial makes a
// connection of its own, to any of the server's addresses, and asks by CONNECT.
type connectSession struct {
	*connector
	addr netip.AddrPort
	id   string

	ctx      context.Context // ends with the session
	end      context.CancelFunc
	watching sync.WaitGroup

	mu    sync.Mutex
	spare *handshaken // a connection without a request; nil: none
}

// newConnectSession begins one. It takes over spare, which may be nil: the
// connection in which the server chose HTTP/1.1.
func (c *connector) newConnectSession(addr netip.AddrPort, spare *handshaken) *connectSession {
	s := &connectSession{connector: c, addr: addr, id: tunnel.NewID(), spare: spare}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.watching.Go(s.watch)
	return s
}

// Key implements peers.Session.
func (s *connectSession) Key() string { return s.id }

// ServerCount implements peers.Session: the server does not say.
func (s *connectSession) ServerCount() int { return 0 }

// Streams implements peers.Session: connections do not depend on the session.
func (s *connectSession) Streams() int { return 0 }

// Done implements peers.Session.
func (s *connectSession) Done() <-chan struct{} { return s.ctx.Done() }

// Drains implements peers.Session: the server cannot say so.
func (s *connectSession) Drains() *tunnel.Event { return new(tunnel.Event) }

// Close implements peers.Session. Connections go on.
func (s *connectSession) Close() error {
	s.end()
	s.watching.Wait()
	return nil
}

// Dial implements tunnel.Dialer. A server that turns out to have links by now is
// offered to the set and dialed by its link.
func (s *connectSession) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if h := s.take(); h != nil {
		c, err := s.request(ctx, *h, f)
		if err == nil || ctx.Err() != nil || tunnel.FailureOf(err) != tunnel.FailUnavailable {
			return c, err
		} // it died while it waited
	}
	connecting, cancel := context.WithTimeout(ctx, s.opt.ConnectTimeout)
	defer cancel()
	h, l, err := s.open(connecting)
	switch {
	case err != nil:
		if ctx.Err() == nil { // a request that was given up says nothing about the server
			s.failed(err)
		}
		return nil, unavailable(f.Address, err)
	case l != nil:
		s.offer(l)
		s.end()
		return l.Dial(ctx, f)
	}
	return s.request(ctx, h, f)
}

// request asks for f.Address on h, which it takes over.
func (s *connectSession) request(ctx context.Context, h handshaken, f *tunnel.Flow) (tunnel.Conn, error) {
	f.Hop = tunnel.Hop{Role: tunnel.RoleServer, ID: h.addr.String()} // its id is not known
	token, err := s.opt.Token()
	if err != nil {
		_ = h.Close()
		s.failed(err)
		return nil, unavailable(f.Address, err)
	}
	ask := connect.Request{Address: f.Address, ID: f.ID, Span: f.Span.ID, UserAgent: s.opt.Software}
	if token != "" {
		ask.Authorization = "Bearer " + token
	}
	far, err := connect.Handshake(ctx, tunnel.Wrap(h), ask)
	var status *connect.StatusError
	var typed *tunnel.DialError
	switch {
	case err == nil:
		s.health.note(nil)
		return tunnel.To(far, f), nil
	case errors.As(err, &typed):
		return nil, err
	case errors.As(err, &status):
		s.health.note(nil)
		return nil, &tunnel.DialError{Failure: connect.ServerFailure(status), Address: f.Address, Err: err}
	case ctx.Err() != nil:
		return nil, tunnel.AsDialError(f.Address, err)
	default:
		s.failed(err)
		return nil, unavailable(f.Address, err)
	}
}

// failed ends the session, as the server cannot be reached.
func (s *connectSession) failed(err error) {
	s.health.note(err)
	s.end()
}

// take hands out the connection without a request; nil if there is none.
func (s *connectSession) take() *handshaken {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.spare
	s.spare = nil
	return h
}

// watch judges the server by the connection without a request, closes that when it
// waits for too long, and looks at the server every 30 s, until the session ends.
func (s *connectSession) watch() {
	defer s.drop()
	judge, spare, probe := time.NewTimer(listenTime), time.NewTimer(spareTime), time.NewTimer(peers.Jitter(probeEvery))
	defer judge.Stop()
	defer spare.Stop()
	defer probe.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-judge.C:
			s.judge()
		case <-spare.C:
			s.drop()
		case <-probe.C:
			if !s.probe() {
				s.end()
			}
			probe.Reset(peers.Jitter(probeEvery))
		}
	}
}

// judge notes whether the server has taken us, by the connection without a request,
// which had the time to hear a refusal.
func (s *connectSession) judge() {
	h := s.take()
	if h == nil {
		return // its request tells
	}
	if err := h.listen(time.Millisecond); err != nil {
		_ = h.NetConn().Close()
		s.failed(err)
		return
	}
	s.health.note(nil)
	s.mu.Lock()
	s.spare = h
	s.mu.Unlock()
}

// drop closes the connection without a request.
func (s *connectSession) drop() {
	if h := s.take(); h != nil {
		_ = h.NetConn().Close()
	}
}

// probe reports whether the server still answers, and without links.
func (s *connectSession) probe() bool {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ConnectTimeout)
	defer cancel()
	h, err := s.connectTo(ctx, s.addr)
	if err != nil {
		return false
	}
	defer h.NetConn().Close()
	if h.link() || h.listen(listenTime) != nil {
		return false
	}
	s.health.note(nil)
	return true
}
