package reach

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/server/registry"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// selfPause is how long an address that was this server's own is left alone.
const selfPause = time.Minute

// linked is a link that this server has made. Its key is one for each link, whatever servers
// call themselves, so that none can pretend to be linked already.
type linked struct {
	*link.Session
	key     string
	serving sync.WaitGroup
}

// Key implements peers.Session.
func (l *linked) Key() string { return l.key }

// ServerCount implements peers.Session: the addresses tell how many there are.
func (l *linked) ServerCount() int { return 0 }

// Close implements peers.Session.
func (l *linked) Close() error {
	err := l.Session.Close()
	l.serving.Wait()
	return err
}

// itself is the knowledge that an address is this server's own, in the place of a link to it.
type itself struct {
	key    string
	life   context.Context // ends with the knowledge
	forget context.CancelFunc
}

func newItself() *itself {
	i := &itself{key: tunnel.NewID()}
	i.life, i.forget = context.WithTimeout(context.Background(), selfPause)
	return i
}

// The methods of peers.Session.

func (i *itself) Key() string           { return i.key }
func (i *itself) ServerCount() int      { return 0 }
func (i *itself) Streams() int          { return 0 }
func (i *itself) Done() <-chan struct{} { return i.life.Done() }
func (i *itself) Drains() *tunnel.Event { return new(tunnel.Event) }
func (i *itself) Close() error          { i.forget(); return nil }

var errNoServer = errors.New("the peer is no konnectivity server that forwards; give the addresses of --peer-port of other servers")

// connect links to a server, and returns once its routes are known.
func (s *Servers) connect(ctx context.Context, to address) (peers.Session, error) {
	conn, err := s.secure(ctx, to)
	if err != nil {
		return nil, err
	}
	cfg := s.opts.Link()
	cfg.Verify = func(_ context.Context, peer link.Hello) error {
		if !peer.FromServer() {
			return errNoServer
		}
		return nil
	}
	ses, err := link.Connect(ctx, conn, cfg)
	if err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	if ses.Peer().ID != s.opts.ID {
		return s.use(ctx, ses, to, state.PeerCertificates)
	}
	own := s.accepted(&state)
	_ = ses.Close()
	if !own {
		return nil, fmt.Errorf("the server there has this server's own id, %q: give each a --server-id of its own", s.opts.ID)
	}
	return newItself(), nil
}

// secure connects by TLS to a server with links.
func (s *Servers) secure(ctx context.Context, to address) (*tls.Conn, error) {
	raw, err := (&net.Dialer{Control: s.path.Control}).DialContext(ctx, "tcp", to.at.String())
	if err != nil {
		return nil, err
	}
	conn := tls.Client(link.Buffered(tunnel.Wrap(raw)), s.tls[to.name])
	err = s.path.Secure(ctx, conn)
	if err == nil && conn.ConnectionState().NegotiatedProtocol != link.ALPN {
		err = errNoServer
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// use serves a link, and returns it once the peer's routes are known.
func (s *Servers) use(ctx context.Context, ses *link.Session, to address, chain []*x509.Certificate) (peers.Session, error) {
	l := &linked{Session: ses, key: tunnel.NewID()}
	told := make(chan error, 1)
	l.serving.Go(func() {
		life, leave := s.opts.Admitted(chain)
		defer leave()
		defer tunnel.After(life, func() { _ = ses.Close() })()
		s.Serve(ses, to.at.String(), told)
	})
	var err error
	select {
	case err = <-told:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Serve uses a link until it ends. It may have been made by either side. It sends nil to
// told once all routes of the peer are known, or the error that ended the link before.
func (s *Servers) Serve(ses *link.Session, remote string, told chan<- error) {
	ended := s.opts.Linked(ses)
	err := s.serve(ses, remote, told)
	log := s.opts.Log.WithField("server", ses.Peer().ID).WithField("remote", remote)
	switch {
	case errors.Is(err, registry.ErrManyServers):
		log.WithError(err).Error("the link to another server is ended")
	case errors.Is(err, routes.ErrFull):
		s.opts.Fault("full")
		log.WithError(err).Error("the link to another server is ended")
	case ses.Err() == nil:
		s.opts.Fault("protocol")
		log.WithError(err).Warn("the link to another server is ended: it stopped to tell its routes")
	}
	_ = ses.Close()
	ended()
	select {
	case told <- fmt.Errorf("its routes: %w", err):
	default: // connect has returned
	}
}

func (s *Servers) serve(ses *link.Session, remote string, told chan<- error) error {
	flow := tunnel.NewFlow(link.NetworkRoutes, remote)
	from, err := ses.Dial(context.Background(), flow)
	if err != nil {
		return err
	}
	defer from.Close()
	number, leave, err := s.opts.Known.Join(ses.Peer().ID, remote, ses)
	if err != nil {
		return err
	}
	l := &Link{Session: ses, Remote: remote, Since: time.Now(), number: number}
	s.enter(l)
	defer func() {
		s.mu.Lock()
		delete(s.links, l)
		s.mu.Unlock()
		leave()
		s.opts.Changed()
	}()
	return s.learn(l, bufio.NewReaderSize(from, 16<<10), told)
}

// enter adds a link, whose peer is told if this server drains.
func (s *Servers) enter(l *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[l] = struct{}{}
	if s.drains {
		l.Drain()
	}
}

// learn takes in what a peer tells of its routes, until that ends.
func (s *Servers) learn(l *Link, in *bufio.Reader, told chan<- error) error {
	changed := false
	for {
		r, err := routes.Read(in)
		if err != nil {
			return err
		}
		broad, err := s.opts.Known.Learn(l.number, r)
		if err != nil {
			return err
		}
		changed = changed || broad
		if changed && (r.Op == routes.All || in.Buffered() == 0) {
			changed = false
			s.opts.Changed()
		}
		if r.Op == routes.All {
			log := s.opts.Log.WithField("server", l.Peer().ID).WithField("remote", l.Remote)
			log.WithField("agents", s.Routes(l).Agents).Info("linked to another server")
			select {
			case told <- nil:
			default: // again
			}
		}
	}
}

// Link is a link to another server, as an operator sees it.
type Link struct {
	*link.Session
	Remote string
	Since  time.Time
	number int
}

// Links lists the links, in no order.
func (s *Servers) Links() []*Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.links))
}

// Routes is how much the server has told.
func (s *Servers) Routes(l *Link) routes.Count { return s.opts.Known.Count(l.number) }

// feedStreams are the streams of a link that carry no connection: each side opens one, for
// routes.
const feedStreams = 2

// Idle says that no link carries a connection; lasting ones, which outlive the link, count
// if they are to.
func (s *Servers) Idle(lasting bool) bool {
	return !slices.ContainsFunc(s.Links(), func(l *Link) bool {
		return l.Bound() > feedStreams/2 || lasting && l.Streams() > feedStreams
	})
}

// Move asks that connections which other servers have forwarded here be moved.
func (s *Servers) Move() {
	for _, l := range s.Links() {
		l.SendMoves()
	}
}

// Drain asks the other servers to forward nothing to this one that another may serve, also
// those that are yet to be linked.
func (s *Servers) Drain() {
	s.mu.Lock()
	s.drains = true
	s.mu.Unlock()
	for _, l := range s.Links() {
		l.Drain()
	}
}
