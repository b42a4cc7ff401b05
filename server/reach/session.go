package reach

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"konnectivity/server/registry"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// selfPause is how long an address that was this server's own is left alone.
const selfPause = time.Minute

// session is a link that this server has made, or the knowledge that an address is its
// own.
type session struct {
	*link.Session // nil: the address is this server's own
	id            string
	self          context.Context // ends with the knowledge
	end           context.CancelFunc
	serving       sync.WaitGroup
}

// Key implements peers.Session. It is one for each link, whatever servers call
// themselves, so that none can pretend to be linked already.
func (p *session) Key() string { return p.id }

func (p *session) ServerCount() int { return 0 }

func (p *session) Streams() int {
	if p.Session == nil {
		return 0
	}
	return p.Session.Streams()
}

func (p *session) Done() <-chan struct{} {
	if p.Session == nil {
		return p.self.Done()
	}
	return p.Session.Done()
}

func (p *session) Drains() context.Context {
	if p.Session == nil {
		return context.Background()
	}
	return p.Session.Drains()
}

func (p *session) Close() error {
	if p.Session == nil {
		p.end()
		return nil
	}
	err := p.Session.Close()
	p.serving.Wait()
	return err
}

var errNoServer = errors.New("the peer is no konnectivity server that forwards; give the addresses of --peer-port of other servers")

// connect links to a server, and returns once its routes are known.
func (s *Servers) connect(ctx context.Context, to address) (*session, error) {
	raw, err := (&net.Dialer{Control: s.path.Control}).DialContext(ctx, "tcp", to.at.String())
	if err != nil {
		return nil, err
	}
	conn := tls.Client(link.Buffered(tunnel.Wrap(raw)), s.tls[to.name])
	if err := s.path.Secure(ctx, conn); err != nil {
		_ = raw.Close()
		return nil, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != link.ALPN {
		_ = raw.Close()
		return nil, errNoServer
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
	p := &session{Session: ses, id: tunnel.NewID()}
	if ses.Peer().ID == s.opts.ID {
		itself := s.itself(&state)
		_ = ses.Close()
		if !itself {
			return nil, fmt.Errorf("the server there has this server's own id, %q: give each a --server-id of its own", s.opts.ID)
		}
		p.Session = nil
		p.self, p.end = context.WithTimeout(context.Background(), selfPause)
		return p, nil
	}
	told := make(chan error, 1)
	p.serving.Go(func() {
		life, leave := s.opts.Admitted(state.PeerCertificates)
		defer leave()
		defer tunnel.After(life, func() { _ = ses.Close() })()
		s.Serve(ses, to.at.String(), told)
	})
	select {
	case err = <-told:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
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
	from, err := ses.Dial(ses.Life(), flow)
	if err != nil {
		return err
	}
	defer from.Close()
	number, leave, err := s.opts.Known.Join(ses.Peer().ID, remote, ses)
	if err != nil {
		return err
	}
	l := &Link{Session: ses, Remote: remote, Since: time.Now(), number: number}
	s.mu.Lock()
	s.links[l] = struct{}{}
	drains := s.drains
	s.mu.Unlock()
	if drains {
		ses.Drain()
	}
	defer func() {
		s.mu.Lock()
		delete(s.links, l)
		s.mu.Unlock()
		leave()
		s.opts.Changed()
	}()
	in := bufio.NewReaderSize(from, 16<<10)
	changed := false
	for {
		r, err := routes.Read(in)
		if err != nil {
			return err
		}
		broad, err := s.opts.Known.Learn(number, r)
		if err != nil {
			return err
		}
		changed = changed || broad
		if changed && (r.Op == routes.All || in.Buffered() == 0) {
			changed = false
			s.opts.Changed()
		}
		if r.Op == routes.All {
			log := s.opts.Log.WithField("server", ses.Peer().ID).WithField("remote", remote)
			log.WithField("agents", s.opts.Known.Count(number).Agents).Info("linked to another server")
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
