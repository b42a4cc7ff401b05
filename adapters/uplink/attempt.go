package uplink

import (
	"context"
	"net/netip"
	"time"

	"konnectivity/internal/peers"
)

// quickRetries are the pauses before a server that has just worked is tried
// again; a request waits for them.
var quickRetries = [...]time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

// rush makes a link to whichever address works first, or keeps the connection
// that showed the server to be old for one of those who wait.
func (s *Server) rush(ctx context.Context) (netip.AddrPort, *pooled, error) {
	if s.knownOld() { // found out since the request began
		return netip.AddrPort{}, nil, &peers.Reached{Again: listenTime}
	}
	h, l, err := s.connect(ctx)
	switch {
	case err != nil:
		return netip.AddrPort{}, nil, err
	case l != nil:
		return l.addr, l, nil
	default:
		s.keepSpare(h)
		return h.addr, nil, &peers.Reached{Again: listenTime} // not right behind it
	}
}

// keep makes a link to one address, or looks at the old server that is there.
func (s *Server) keep(ctx context.Context, addr netip.AddrPort) (*pooled, error) {
	h, err := s.connectTo(ctx, addr)
	if err != nil {
		return nil, err
	}
	if h.link() {
		return s.adopt(ctx, h)
	}
	err = h.listen()
	_ = h.NetConn().Close()
	if err != nil {
		return nil, err
	}
	s.note(nil)
	return nil, &peers.Reached{Again: probeEvery}
}

// connectAlone makes a connection for one request, unless the server has learnt
// to speak the link meanwhile.
func (s *Server) connectAlone(ctx context.Context) (*pooled, handshaken, error) {
	connecting, cancel := context.WithTimeout(ctx, s.opt.ConnectTimeout)
	defer cancel()
	h, l, err := s.connect(connecting)
	if err != nil && ctx.Err() == nil { // one who gave up says nothing about the server
		s.note(err)
	}
	if l != nil {
		s.set.Offer(l.addr, l)
	}
	if l != nil || err != nil {
		h = handshaken{}
	}
	return l, h, err
}

// connect connects to whichever of the server's addresses works: l is a link,
// or h is a connection to an old server. A server that has just worked is tried
// again a few times within a second, since it may be one that is being
// replaced.
func (s *Server) connect(ctx context.Context) (h handshaken, l *pooled, err error) {
	for n := 0; ; n++ {
		h, err = s.connectAny(ctx)
		if err == nil && h.link() {
			l, err = s.adopt(ctx, h)
		}
		if err == nil || n == len(quickRetries) || !s.health.good() {
			return h, l, err
		}
		select {
		case <-ctx.Done():
			return h, l, err
		case <-time.After(quickRetries[n]):
		}
	}
}
