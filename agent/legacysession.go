package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"konnectivity/internal/wait"
	"konnectivity/tunnel/legacy"
)

// legacySession is a packet session and the gRPC connection it has to itself.
type legacySession struct {
	*legacy.AgentSession
	conn    *grpc.ClientConn
	heard   *heardConn      // below conn
	watched <-chan struct{} // closed when the liveness of heard is watched no more
}

// connectLegacy speaks the packet protocol over a connection whose TLS
// handshake is done.
func (c *connector) connectLegacy(ctx context.Context, conn *tls.Conn, to address) (session, error) {
	heard := newHeardConn(conn)
	client, err := grpc.NewClient("passthrough:///server", // only a name: the connection is there
		grpc.WithContextDialer(once(heard)),
		grpc.WithTransportCredentials(overTLS{credentials.NewTLS(nil), conn.ConnectionState()}),
		grpc.WithAuthority(c.serverName(to)),
		grpc.WithNoProxy(), // the proxy is behind us
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0), // never: the session is the connection
	)
	if err != nil {
		return nil, err
	}
	s, err := legacy.ConnectAgent(ctx, client, legacy.AgentConfig{
		ID: c.opts.ID, Identifiers: c.opts.Identifiers, Token: c.token,
		Source: conn.RemoteAddr(), Forwarder: c.forwarder, Limits: c.opts.limits, Metrics: c.metrics, Log: c.opts.Log,
	})
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	watched := wait.Go(func() { watchLiveness(client, heard, c.opts.Keepalive, s.Done()) })
	return &legacySession{s, client, heard, watched}, nil
}

// Key implements peers.Session, as a link does.
func (s *legacySession) Key() string { return s.ServerID() }

// Protocol implements session.
func (s *legacySession) Protocol() string { return protocolGRPC }

// Err adds the cause that only the liveness check knows.
func (s *legacySession) Err() error {
	if s.heard.silent.Load() {
		return errSilent
	}
	return s.AgentSession.Err()
}

// Close ends the session, then its connection.
func (s *legacySession) Close() error {
	err := s.AgentSession.Close()
	_ = s.conn.Close()
	<-s.watched
	return err
}

// CloseDuplicate implements session; the packet protocol cannot say why.
func (s *legacySession) CloseDuplicate() error { return s.Close() }

// overTLS are gRPC's own credentials, but for a connection whose TLS handshake is done: the
// protocol is known only then, and a second handshake would cost a round trip.
type overTLS struct {
	credentials.TransportCredentials
	state tls.ConnectionState
}

// ClientHandshake implements credentials.TransportCredentials.
func (h overTLS) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, credentials.TLSInfo{
		State:          h.state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// Clone implements credentials.TransportCredentials.
func (h overTLS) Clone() credentials.TransportCredentials { return h }

// once is a dialer that returns conn for the first dial only. gRPC dials again when
// a connection breaks; by then the session on it is over.
func once(conn net.Conn) func(context.Context, string) (net.Conn, error) {
	var given atomic.Bool
	return func(context.Context, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, errors.New("the connection to the server is used up")
		}
		return conn, nil
	}
}

// heardConn knows when it was last read from with success. It measures from its
// beginning, so that a clock that is set does not look like silence.
type heardConn struct {
	net.Conn
	began time.Time
	last  atomic.Int64 // nanoseconds since then

	silent atomic.Bool // for too long: the server is dead
}

func newHeardConn(conn net.Conn) *heardConn { return &heardConn{Conn: conn, began: time.Now()} }

func (h *heardConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 {
		h.last.Store(int64(time.Since(h.began)))
	}
	return n, err
}

func (h *heardConn) heard() time.Time { return h.began.Add(time.Duration(h.last.Load())) }
