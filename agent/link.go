package agent

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"

	"konnectivity/internal/version"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// linkSession is a link to a server, of one or more lanes.
type linkSession struct {
	*lanes.Group
	metrics *metrics
}

// connectLink speaks the native protocol over a connection whose TLS handshake
// chose it.
func (c *dialConnector) connectLink(ctx context.Context, conn *tls.Conn, to address) (session, error) {
	hello, err := c.hello()
	if err != nil {
		return nil, err
	}
	if c.opts.Lanes > 1 {
		hello.Group = newGroup()
	}
	first, err := c.greet(ctx, conn, hello)
	if err != nil {
		return nil, err
	}
	g := lanes.New(first, lanes.Options{
		Max: c.opts.Lanes,
		Dial: func(ctx context.Context) (*link.Session, error) {
			return c.connectLane(ctx, to, hello.Group, first.Peer().ID)
		},
	})
	c.metrics.links.Add(kindServer, g)
	return linkSession{g, c.metrics}, nil
}

// connectLane makes another link to the server with that id.
func (c *dialConnector) connectLane(ctx context.Context, to address, group, server string) (*link.Session, error) {
	conn, err := c.secure(ctx, to)
	if err != nil {
		return nil, err
	}
	hello, err := c.hello()
	if err == nil && conn.ConnectionState().NegotiatedProtocol != link.ALPN {
		err = errNoLane
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	hello.Group = group
	ses, err := c.greet(ctx, conn, hello)
	if err == nil && ses.Peer().ID != server {
		_ = ses.CloseWith(link.GoAwayDuplicate, "")
		err = errNoLane
	}
	return ses, err
}

// errNoLane is the error of a connection that cannot be a lane: a load balancer
// led it to another server.
var errNoLane = errors.New("another server answers at this address")

// newGroup is what the lanes to one server have in common.
func newGroup() string {
	var b [link.GroupSize]byte
	_, _ = rand.Read(b[:])
	return string(b[:])
}

// hello introduces this agent.
func (c *dialConnector) hello() (link.Hello, error) {
	token, err := c.token()
	features := c.ends.Features()
	if c.opts.Lanes > 1 {
		features = append(features, link.FeatureLanes)
	}
	return link.Hello{
		Role: link.RoleAgent, Software: "konnectivity-agent " + version.Get().Version,
		ID: c.opts.ID, Identifiers: c.opts.Identifiers, Token: token, Features: features,
	}, err
}

func (c *dialConnector) greet(ctx context.Context, conn *tls.Conn, hello link.Hello) (*link.Session, error) {
	ask, dead := keepaliveTimes(c.opts.Keepalive)
	return link.Connect(ctx, conn, link.Config{
		Hello:     hello,
		Verify:    wantServer,
		Forwarder: c.ends.Forwarder(c.forwarder),
		Budget:    c.opts.Budget,

		PeerNumbersClients: true,
		PingInterval:       ask,
		DeadAfter:          dead,
		Log:                c.opts.Log,
	})
}

// wantServer refuses what is no server; two agents must not serve each other.
func wantServer(_ context.Context, peer link.Hello) error {
	if peer.Role != link.RoleServer || peer.ID == "" {
		return errors.New("an agent connects to servers that have an id")
	}
	return nil
}

// ServerID implements session.
func (s linkSession) ServerID() string { return s.Peer().ID }

// Protocol implements session.
func (s linkSession) Protocol() string { return protocolLink }

// Err is nil for an end in order, as session demands.
func (s linkSession) Err() error {
	err := s.Group.Err()
	var bye *link.GoAwayError
	if errors.Is(err, link.ErrClosed) || errors.As(err, &bye) && bye.Code == link.GoAwayShutdown {
		return nil
	}
	return err
}

// Close implements session.
func (s linkSession) Close() error {
	defer s.metrics.links.Remove(kindServer, s.Group)
	return s.Group.Close()
}

// CloseDuplicate implements session.
func (s linkSession) CloseDuplicate() error {
	defer s.metrics.links.Remove(kindServer, s.Group)
	return s.CloseWith(link.GoAwayDuplicate, "")
}
