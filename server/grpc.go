package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"konnectivity/server/frontend"
	"konnectivity/tunnel/legacy"
)

const (
	// minPing is how often a peer may ping before it is taken for a flood;
	// below every default in use (ours 5 s, upstream's agents 1 h).
	minPing = 4 * time.Second

	// maxIdle ends a gRPC connection that carries no stream.
	maxIdle = 5 * time.Minute

	// maxStreams bounds the streams of one connection, some 16 KiB each. The
	// real client has one or few of them; others wait, as HTTP/2 has it.
	maxStreams = 1000

	// streamWindow is what a client may send on a stream before anybody has
	// read it. To name it keeps gRPC from making it larger by itself, up to
	// 16 MiB; clients by gRPC are near. An agent's one stream has all its
	// connections and may be far, so its window grows.
	streamWindow = 64 << 10

	// connWindow is the same for all streams of a connection together. gRPC
	// renews it as bytes arrive, so it bounds no memory; it must not be what
	// streams wait for.
	connWindow = 1 << 20

	// maxMetadata bounds an agent's headers: identifiers and a token fit.
	maxMetadata = 64 << 10
)

// grpcFront is a gRPC server that is fed with connections whose handshake is
// over.
type grpcFront struct {
	server *grpc.Server
	queue  *queue
}

func newGRPCFront(every time.Duration, more ...grpc.ServerOption) *grpcFront {
	if every <= 0 {
		every = DefaultKeepalive
	}
	return &grpcFront{
		queue: newQueue(),
		server: grpc.NewServer(append(more,
			legacy.ServerCodec(),
			grpc.Creds(handshaken{}),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: every, Timeout: keepaliveTimeout, MaxConnectionIdle: maxIdle}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
			grpc.ConnectionTimeout(frontend.HandshakeTimeout),
			grpc.MaxHeaderListSize(maxMetadata),
			grpc.MaxConcurrentStreams(maxStreams),
			grpc.WaitForHandlers(true),
		)...),
	}
}

func (g *grpcFront) serve() error {
	err := g.server.Serve(g.queue)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil // stopped before it began
	}
	return err
}

// handle is the frontend's Handler for gRPC.
func (g *grpcFront) handle(ctx context.Context, c *frontend.Conn) {
	if !c.Begin() {
		return
	}
	h := &handed{Conn: c.Whole(), account: accountOf(ctx), tls: c.TLS() != nil, done: make(chan struct{})}
	if h.tls {
		h.state = credentials.TLSInfo{State: *c.TLS(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	if !g.queue.put(ctx, h) {
		return
	}
	select {
	case <-h.done:
	case <-ctx.Done():
		_ = h.Close()
	}
}

// handed is a connection on its way into gRPC.
type handed struct {
	net.Conn
	account *account // nil: an agent's
	tls     bool
	state   credentials.TLSInfo
	once    sync.Once
	done    chan struct{} // closed by Close
}

func (h *handed) Close() error {
	err := h.Conn.Close()
	h.once.Do(func() { close(h.done) })
	return err
}

// queue is the net.Listener that a gRPC server accepts from.
type queue struct {
	conns  chan *handed
	closed chan struct{}
	once   sync.Once
}

func newQueue() *queue { return &queue{conns: make(chan *handed), closed: make(chan struct{})} }

// put hands a connection over; false says that nobody takes it any more.
func (q *queue) put(ctx context.Context, h *handed) bool {
	select {
	case q.conns <- h:
		return true
	case <-q.closed:
	case <-ctx.Done():
	}
	return false
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case h := <-q.conns:
		return h, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

func (q *queue) Addr() net.Addr { return &net.UnixAddr{Name: "frontend", Net: "unix"} }

// handshaken are gRPC credentials for connections that come through a
// frontend: TLS is over, and peers get to see its state.
type handshaken struct{}

var errNotHanded = errors.New("the connection did not come through a frontend")

func (handshaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	h, ok := c.(*handed)
	switch {
	case !ok:
		return nil, nil, errNotHanded
	case h.account != nil:
		return h, clientInfo{h.state.CommonAuthInfo, h.account}, nil
	case h.tls:
		return h, h.state, nil
	default:
		return h, plain{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}, nil
	}
}

func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errNotHanded
}

func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "handshaken"}
}

func (h handshaken) Clone() credentials.TransportCredentials { return h }

func (handshaken) OverrideServerName(string) error { return nil }

// clientInfo is what a client's streams know of their connection.
type clientInfo struct {
	credentials.CommonAuthInfo
	account *account
}

// AuthType implements credentials.AuthInfo.
func (clientInfo) AuthType() string { return "account" }

// plain is the state of a connection without TLS.
type plain struct{ credentials.CommonAuthInfo }

func (plain) AuthType() string { return "insecure" }
