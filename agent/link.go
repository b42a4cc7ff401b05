package agent

import (
	"context"
	"crypto/tls"
	"errors"

	"konnectivity/internal/version"
	"konnectivity/tunnel/link"
)

// linkSession is a link to a server.
type linkSession struct {
	*link.Session
	metrics *metrics
}

// connectLink speaks the native protocol over a connection whose TLS handshake
// chose it.
func (c *dialConnector) connectLink(ctx context.Context, conn *tls.Conn) (session, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	ask, dead := keepaliveTimes(c.opts.Keepalive)
	s, err := link.Connect(ctx, conn, link.Config{
		Hello: link.Hello{
			Role: link.RoleAgent, Software: "konnectivity-agent " + version.Get().Version,
			ID: c.opts.ID, Identifiers: c.opts.Identifiers, Token: token,
			Features: c.ends.Features(),
		},
		Verify:    wantServer,
		Forwarder: c.ends.Forwarder(c.forwarder),
		Budget:    c.opts.Budget,

		PeerNumbersClients: true,
		PingInterval:       ask,
		DeadAfter:          dead,
		Log:                c.opts.Log,
	})
	if err != nil {
		return nil, err
	}
	c.metrics.links.Add(kindServer, s)
	return linkSession{s, c.metrics}, nil
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

// Err is nil for an end in order, as a session's has to be.
func (s linkSession) Err() error {
	err := s.Session.Err()
	var bye *link.GoAwayError
	if errors.Is(err, link.ErrClosed) || errors.As(err, &bye) && bye.Code == link.GoAwayShutdown {
		return nil
	}
	return err
}

// Close implements session.
func (s linkSession) Close() error {
	defer s.metrics.links.Remove(kindServer, s.Session)
	return s.Session.Close()
}

// CloseDuplicate implements session.
func (s linkSession) CloseDuplicate() error {
	defer s.metrics.links.Remove(kindServer, s.Session)
	return s.CloseWith(link.GoAwayDuplicate, "")
}
