package agent

import (
	"context"
	"crypto/tls"
	"errors"

	"konnectivity/internal/peers"
	"konnectivity/internal/version"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// linkSession is a link to a server, of one or more lanes.
type linkSession struct {
	*lanes.Group
	metrics *metrics
}

var _ peers.Rerouter = (*linkSession)(nil)

// connectLink speaks the native protocol over a connection whose TLS handshake
// chose it.
func (c *connector) connectLink(ctx context.Context, conn *tls.Conn, to address) (session, error) {
	first := func(ctx context.Context, group string) (*link.Session, error) { return c.greet(ctx, conn, group) }
	lane := func(ctx context.Context, group string) (*link.Session, error) { return c.connectLane(ctx, to, group) }
	g, err := lanes.Connect(ctx, &c.lost, c.opts.Lanes, first, lane)
	if err != nil {
		return nil, err
	}
	c.metrics.links.Add(kindServer, g)
	return linkSession{g, c.metrics}, nil
}

// connectLane makes another link to the server at the same address.
func (c *connector) connectLane(ctx context.Context, to address, group string) (*link.Session, error) {
	conn, err := c.secure(ctx, to)
	if err != nil {
		return nil, err
	}
	if conn.ConnectionState().NegotiatedProtocol != link.ALPN {
		_ = conn.Close()
		return nil, errNoLink
	}
	return c.greet(ctx, conn, group)
}

// errNoLink is the error of a connection that cannot be a lane: a server of before
// answers at the address.
var errNoLink = errors.New("the server at this address does not speak the link protocol")

// hello introduces this agent on a link of the group.
func (c *connector) hello(group string) (link.Hello, error) {
	token, err := c.token()
	features := append(c.ends.Features(), link.FeatureIdentity, link.FeatureRules)
	if c.opts.BesideAPI {
		features = append(features, link.FeatureAPIServer)
	}
	if c.opts.Lanes > 1 {
		features = append(features, link.FeatureLanes)
	}
	if len(c.opts.API) > 0 {
		features = append(features, link.FeatureAPI)
	}
	return link.Hello{
		Role: link.RoleAgent, Software: "konnectivity-agent " + version.Get().Version,
		ID: c.opts.ID, Identifiers: c.opts.Identifiers, Token: token, Features: features,
		Group: group, Lost: c.lost.IDs(),
	}, err
}

// greet makes a link of conn, which it takes over.
func (c *connector) greet(ctx context.Context, conn *tls.Conn, group string) (*link.Session, error) {
	hello, err := c.hello(group)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	ask, dead := keepaliveTimes(c.opts.Keepalive)
	return link.Connect(ctx, conn, link.Config{
		Hello:        hello,
		Verify:       wantServer,
		Handler:      c.ends.Handler(c.forwarder),
		Budget:       c.opts.Budget,
		Clients:      &c.clients,
		PingInterval: ask,
		DeadAfter:    dead,
		Log:          c.opts.Log,
	})
}

// wantServer refuses a peer that is no server; two agents must not serve each other.
func wantServer(_ context.Context, peer link.Hello) error {
	if peer.Role != link.RoleServer || peer.ID == "" {
		return errors.New("an agent connects to servers that have an id")
	}
	return nil
}

// ServerID implements session.
func (s linkSession) ServerID() string { return s.Peer().ID }

// Key implements peers.Session: a second link to one server is one too many.
func (s linkSession) Key() string { return s.ServerID() }

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
func (s linkSession) Close() error { return s.CloseWith(link.GoAwayShutdown, "") }

// CloseDuplicate implements session.
func (s linkSession) CloseDuplicate() error { return s.CloseWith(link.GoAwayDuplicate, "") }

// CloseWith is the Group's, and takes the link out of the metrics.
func (s linkSession) CloseWith(code link.GoAwayCode, text string) error {
	defer s.metrics.links.Remove(kindServer, s.Group)
	return s.Group.CloseWith(code, text)
}
