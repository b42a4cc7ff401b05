package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"konnectivity/internal/admission"
	"konnectivity/server/frontend"
	"konnectivity/server/limits"
	"konnectivity/tunnel"
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

	// streamWindow is how much a client may send on a stream that is not read. Since it
	// is set, gRPC does not enlarge it to up to 16 MiB; clients by gRPC are near. An
	// agent's one stream carries all its connections and may be far, so its window
	// grows.
	streamWindow = 64 << 10

	// connWindow is the same for all streams of a connection together. gRPC
	// renews it as bytes arrive, so it bounds no memory; it must not be what
	// streams wait for.
	connWindow = 1 << 20

	// maxAgentStreams bounds what an agent's connection, which needs one stream,
	// may ask for before it has shown who it is.
	maxAgentStreams = 2

	// maxAgentMessage bounds a message of an agent, which gRPC gathers before it shows
	// any of it. Upstream's agents send 4 KiB at a time, ours 64.
	maxAgentMessage = 128 << 10

	// maxMetadata bounds an agent's headers: identifiers and a token fit.
	maxMetadata = 64 << 10
)

// grpcFront is a gRPC server that is fed with connections whose handshake is
// over.
type grpcFront struct {
	server  *grpc.Server
	service service
	queue   *admission.HandOff
}

// service is a legacy.AgentService or a legacy.ProxyService.
type service interface {
	Register(grpc.ServiceRegistrar)
	Streams() int
	Close() error
}

func newGRPCFront(of service, every time.Duration, more ...grpc.ServerOption) *grpcFront {
	if every <= 0 {
		every = DefaultKeepalive
	}
	g := &grpcFront{
		service: of,
		queue:   admission.NewHandOff(&net.UnixAddr{Name: "frontend", Net: "unix"}),
		server: grpc.NewServer(append(more,
			legacy.ServerCodec(),
			grpc.Creds(fromFrontend{}),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: every, Timeout: keepaliveTimeout, MaxConnectionIdle: maxIdle}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
			grpc.ConnectionTimeout(frontend.HandshakeTimeout),
			grpc.MaxHeaderListSize(maxMetadata),
			grpc.WaitForHandlers(true),
			grpc.ChainStreamInterceptor(countStream),
		)...),
	}
	of.Register(g.server)
	return g
}

func (g *grpcFront) serve() error {
	err := g.server.Serve(g.queue)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil // stopped before it began
	}
	return err
}

// stop ends the streams in order, and then their connections. A nil grpcFront has none.
func (g *grpcFront) stop() {
	if g != nil {
		_ = g.service.Close()
		g.server.Stop()
	}
}

// handle serves a connection by gRPC; client is nil for an agent's. It begins with
// the first stream that is accepted: see acceptAgent and admitStream.
func (g *grpcFront) handle(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client) {
	c.Weigh(frontend.GRPCWeight)
	h := &handed{Conn: c.Whole(), from: c, life: ctx, client: client, cluster: cl}
	if client != nil {
		h.frames = limits.NewFrames(h.Conn, client.GRPC)
		h.Conn = h.frames
		defer h.frames.Finish()
	}
	defer func() {
		if h.denied.Load() || wasCut(ctx) {
			c.Deny()
		}
	}()
	if !g.queue.Give(ctx, h) {
		return
	}
	select {
	case <-h.done.Done():
	case <-ctx.Done():
		if wasCut(ctx) {
			h.tell()
		}
		_ = h.Close()
	}
}

// tellTime bounds how long a connection that is cut waits for its streams to be told.
const tellTime = time.Second

// tell returns when the connections that streams carry have ended, which end with the
// cause of the connection's own end.
func (h *handed) tell() {
	for end := time.Now().Add(tellTime); h.flows.Load() > 0 && time.Now().Before(end); {
		time.Sleep(tellTime / 100)
	}
}

// handed is a connection on its way into gRPC. It is the AuthInfo of its streams, too.
type handed struct {
	net.Conn
	credentials.CommonAuthInfo
	from    *frontend.Conn
	life    context.Context // the connection's
	cluster *cluster
	client  *tunnel.Client // nil: an agent's
	frames  *limits.Frames // nil: an agent's
	flows   atomic.Int64   // that streams carry
	denied  atomic.Bool    // an agent's stream was refused; another may be accepted
	done    tunnel.Event   // closed
}

// SetDeadline does nothing: gRPC would lift the frontend's deadline as soon as
// it has read the preface.
func (h *handed) SetDeadline(time.Time) error { return nil }

func (h *handed) Close() error {
	defer h.done.Happen()
	return h.Conn.Close()
}

var errNoRoom = status.Error(codes.Unavailable, "the server has no room for more connections")

// handedOf is the connection of a stream: fromFrontend lets no other through.
func handedOf(stream context.Context) *handed {
	p, _ := grpcpeer.FromContext(stream)
	return p.AuthInfo.(*handed)
}

// judgeStream gives an agent the time that it takes to judge it, and counts what
// it has made gRPC keep. It begins in acceptAgent.
func judgeStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	from := handedOf(stream.Context()).from
	from.Weigh(frontend.GRPCWeight + maxAgentStreams*metadataSize(stream.Context()))
	from.Allow(judgeTimeout + time.Second)
	return handler(srv, stream)
}

var errOver = status.Error(codes.Unavailable, "the tenant was removed")

// countStream makes the end of a cluster wait for its streams. They outlast their
// connections for a moment, and must not change the cluster's figures once these have
// been added to the past.
func countStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	cl := handedOf(stream.Context()).cluster
	if !cl.stay() {
		return errOver
	}
	defer cl.left.Done()
	return handler(srv, stream)
}

// usualMetadata is what a stream's metadata may take before it counts apart from
// the stream.
const usualMetadata = 4 << 10

// extraMetadata is what it takes beyond that: a header of 64 KiB full of names takes
// four times as much for as long as its stream lasts.
func extraMetadata(ctx context.Context) int { return max(0, int(metadataSize(ctx))-usualMetadata) }

// metadataSize is about what a stream's metadata takes in memory.
func metadataSize(ctx context.Context) (bytes int64) {
	const each = 64 // of a map's entry and a string's header
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		bytes += each + int64(len(key))
		for _, v := range values {
			bytes += each + int64(len(v))
		}
	}
	return bytes
}

// fromFrontend are gRPC credentials for connections that come through a
// frontend: TLS is over, and peers get to see its state.
type fromFrontend struct{}

var errNotHanded = errors.New("the connection did not come through a frontend")

func (fromFrontend) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	h, ok := c.(*handed)
	if !ok {
		return nil, nil, errNotHanded
	}
	h.SecurityLevel = credentials.NoSecurity
	if h.from.TLS() != nil {
		h.SecurityLevel = credentials.PrivacyAndIntegrity
	}
	return h, h, nil
}

func (fromFrontend) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errNotHanded
}

func (fromFrontend) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "handshaken"}
}

func (h fromFrontend) Clone() credentials.TransportCredentials { return h }

func (fromFrontend) OverrideServerName(string) error { return nil }

// AuthType implements credentials.AuthInfo.
func (*handed) AuthType() string { return "handshaken" }

// TLS is the connection's TLS state, or nil.
func (h *handed) TLS() *tls.ConnectionState { return h.from.TLS() }

// streams carries what gRPC streams ask for, in the cluster of their connection.
type streams struct{}

// Serve implements tunnel.Handler.
func (streams) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	h := handedOf(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() {
		if wasCut(h.life) { // else what the client wrote before it went is delivered
			cancel(context.Cause(h.life))
		}
	})
	h.flows.Add(1)
	f.AtEnd(func() {
		h.flows.Add(-1)
		stop()
		cancel(nil)
	})
	h.cluster.forwarder.Serve(ctx, f, answer, ended)
}

// serveGRPC serves a peer by gRPC. A client has its connection counted as its memory.
func (g *grpcFront) serveGRPC(ctx context.Context, c *frontend.Conn, cl *cluster, client *tunnel.Client) {
	if client != nil {
		if cl.server.clientTokens != nil && byToken(c) {
			c.Deny()
			cl.log.WithField("remote", c.RemoteAddr().String()).Warn("a client was refused: by gRPC it needs a certificate; tokens are for links and CONNECT")
			return
		}
		if !client.Budget.Take(limits.ClientMemory) {
			c.NoRoom(limits.NoMemory(client))
			return
		}
		defer client.Budget.Give(limits.ClientMemory)
	}
	g.handle(ctx, c, cl, client)
}

// received counts a message that a stream was handed.
func received(stream context.Context, bytes int) { handedOf(stream).frames.Received(bytes) }

// admitStream admits a client's stream, or says why it cannot. The first stream shows
// that the client means its connection.
func admitStream(stream context.Context) (*tunnel.Client, func(), error) {
	h := handedOf(stream)
	if !h.from.Begin() {
		return nil, nil, errNoRoom
	}
	n := limits.StreamMemory + extraMetadata(stream)
	if !h.client.Budget.Take(n) {
		return nil, nil, status.Error(codes.ResourceExhausted, limits.NoMemory(h.client))
	}
	end := h.frames.Begin()
	return h.client, func() {
		end()
		h.client.Budget.Give(n)
	}, nil
}
