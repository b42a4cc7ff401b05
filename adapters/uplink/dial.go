package uplink

import (
	"context"
	"errors"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
)

// maxTries is how many links a request is tried on when they break under
// it before anything was answered.
const maxTries = 3

// dial is Dial for a connection that ends with what carries it.
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
			return nil, failed(address, unavailable(address, err), struck)
		case l != nil:
			s.pool.seek(l)
			f.Hop = tunnel.Hop{Role: "server", ID: l.Peer().ID}
			if len(tried) > 0 {
				f.Resume.Repeat()
			}
			c, err := l.Dial(ctx, f)
			if err == nil || ctx.Err() != nil || !elsewhere(err) {
				return c, err
			}
			tried, last, struck = append(tried, l), err, struck || tunnel.LostInFlight(err)
		case h.Conn != nil:
			f.Hop = tunnel.Hop{Role: "server", ID: h.addr.String()} // its id is not known
			c, err := s.connector.request(ctx, h, f)
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
	if !struck || tunnel.LostInFlight(err) {
		return err
	}
	marked := *tunnel.AsDialError(address, err) // others may hold the original
	marked.LostInFlight = true
	return &marked
}

// elsewhere says whether another link may do better: the destination was not
// asked, or another server may have an agent for it.
func elsewhere(err error) bool {
	failure := tunnel.FailureOf(err)
	return failure.Retryable() || failure == tunnel.FailNoAgent
}

// way finds what can carry a request: the best link that was not tried or,
// where none is up, a connection for this request alone. It returns neither if
// every link was tried.
func (s *Server) way(ctx context.Context, tried []*pooled) (*pooled, handshaken, error) {
	if l := s.pool.links().pick(tried...); l != nil {
		return l, handshaken{}, nil
	}
	if len(tried) > 0 && s.pool.links().pick() != nil {
		return nil, handshaken{}, nil
	}
	if h, ok := s.spare.take(); ok {
		return nil, h, nil
	}
	if s.health.isOld() {
		return s.connectAlone(ctx)
	}
	l, err := s.pool.now(ctx)
	var old *peers.Reached
	if !errors.As(err, &old) {
		return l, handshaken{}, err
	}
	if h, ok := s.spare.take(); ok {
		return nil, h, nil
	}
	return s.connectAlone(ctx)
}

// connectAlone makes a connection for one request, unless the server has learnt
// to speak the link meanwhile.
func (s *Server) connectAlone(ctx context.Context) (*pooled, handshaken, error) {
	connecting, cancel := context.WithTimeout(ctx, s.opt.ConnectTimeout)
	defer cancel()
	h, l, err := s.connector.whichever(connecting)
	if err != nil && ctx.Err() == nil { // one who gave up says nothing about the server
		s.health.note(err)
	}
	if l != nil {
		s.pool.offer(l)
	}
	if l != nil || err != nil {
		h = handshaken{}
	}
	return l, h, err
}

// resume finds another link for a connection that has lost its own. Each link
// is asked once, that of the server to ask first before the others. The caller
// tries again later.
func (s *Server) resume(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if s.pool.links().pick() == nil {
		_, _ = s.pool.now(ctx)
	}
	var tried []*pooled
	err := error(&tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address, Reason: "no link to a server that resumes connections"})
	for l := s.pool.links().first(f.Resume.First); l != nil; l = s.pool.links().pick(tried...) {
		s.pool.seek(l)
		tried = append(tried, l)
		if !l.Resumes() {
			continue
		}
		f.Hop = tunnel.Hop{Role: "server", ID: l.Peer().ID}
		var c tunnel.Conn
		if c, err = l.Dial(ctx, f); err == nil || ctx.Err() != nil || !tunnel.FailureOf(err).Retryable() {
			return c, err
		}
	}
	return nil, err
}
