package legacy

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// lostGrace is how long, after the stream was lost, received bytes may take to reach
// their destination.
const lostGrace = 5 * time.Second

// AgentConfig is what an agent tells a server, and how it serves it.
type AgentConfig struct {
	ID          string                 // the agentID; must not be empty
	Identifiers string                 // a URL query: ipv4=..&ipv6=..&host=..&cidr=..&default-route=true
	Token       func() (string, error) // asked at every connect; nil: no token is sent
	Forwarder   *tunnel.Forwarder      // serves what the server asks for, with Front "agent"
	Source      net.Addr               // of the server, told to the Forwarder's observers; may be nil
	Limits      Limits
	Metrics     Metrics            // nil: none
	Log         logrus.FieldLogger // nil: none
}

// AgentSession is an agent's connection to one server. Its methods may be
// called from any goroutine.
type AgentSession struct {
	acceptor
	cfg         AgentConfig
	serverID    string
	serverCount int

	running sync.WaitGroup // the connections and the sender
	lastID  atomic.Int64   // of connections

	drains tunnel.Event // the server is about to go
	ended  chan struct{}

	err error // guarded by the acceptor's mu
}

// ConnectAgent opens the AgentService stream to a server and returns once the
// server's header with its id and count has arrived. ctx bounds only that; the
// session then lives until Close, or until the stream ends. Liveness is that of
// the gRPC connection: give it keepalive parameters. The connection stays the
// caller's to close, after the session. Errors carry a gRPC status where the
// server gave one (status.Code).
func ConnectAgent(ctx context.Context, conn grpc.ClientConnInterface, cfg AgentConfig) (*AgentSession, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	cfg.Metrics = cmp.Or(cfg.Metrics, Metrics(NoMetrics{}))
	if cfg.Log == nil {
		cfg.Log = quiet(ctx)
	}
	hello := agentHello{id: cfg.ID, identifiers: cfg.Identifiers}
	if cfg.Token != nil {
		token, err := cfg.Token()
		if err != nil {
			return nil, fmt.Errorf("read the agent's token: %w", err)
		}
		hello.token = token
	}
	s := newAgentSession(ctx, cfg)
	stream, err := s.open(ctx, conn, hello)
	if err != nil {
		s.cancel(err)
		return nil, err
	}
	go s.run(stream)
	return s, nil
}

func newAgentSession(ctx context.Context, cfg AgentConfig) *AgentSession {
	s := &AgentSession{cfg: cfg, ended: make(chan struct{})}
	s.acceptor = acceptor{
		carrier: cfg.Forwarder, wg: &s.running, dials: map[int64]*accepted{},
		nextID: func() int64 { return s.lastID.Add(1) },
		ask: func(r *client.DialRequest) *tunnel.Flow {
			id, span := dialID(r)
			asks := tunnel.Request{ID: id, Front: "agent", Network: r.GetProtocol(), Address: r.GetAddress(), Source: cfg.Source}
			return &tunnel.Flow{Request: asks, Span: tunnel.Span{Parent: span}, Origin: tunnel.Origin{Server: s.serverID}}
		},
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// open starts the stream and waits for the server's header.
func (s *AgentSession) open(ctx context.Context, conn grpc.ClientConnInterface, hello agentHello) (grpc.ClientStream, error) {
	stop := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	stream, err := s.handshake(hello.outgoing(s.ctx), conn)
	if !stop() { // ctx has taken the stream along, at the last moment perhaps
		err = fmt.Errorf("connect to the server: %w", context.Cause(ctx))
	}
	return stream, err
}

func (s *AgentSession) handshake(ctx context.Context, conn grpc.ClientConnInterface) (grpc.ClientStream, error) {
	desc := &grpc.StreamDesc{StreamName: connectMethod, ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, desc, connectFullMethod, grpc.ForceCodecV2(newCodec()))
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	md, err := stream.Header()
	if err == nil && md.Len() == 0 { // ended without a header; the status says why
		err = stream.RecvMsg(&packet{})
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	if s.serverID, s.serverCount, err = parseServerHeader(md); err != nil {
		return nil, err
	}
	s.duplex = saysDuplex(md)
	s.mux = newMux(stream.SendMsg, ToAgent, FromAgent, s.cfg.Limits, s.cfg.Metrics, s.cfg.Log.WithField("server", s.serverID))
	if info, ok := peer.FromContext(stream.Context()); ok {
		s.mux.remoteAddr = info.Addr.String()
	}
	return stream, nil
}

// ServerID is the id the server gave in its header.
func (s *AgentSession) ServerID() string { return s.serverID }

// ServerCount is how many servers there are, as the server said when the
// session began; at least 1.
func (s *AgentSession) ServerCount() int { return s.serverCount }

// Done is closed when the session has ended and everything of it was freed.
func (s *AgentSession) Done() <-chan struct{} { return s.ended }

// Err is why the session ended: nil before that, and after an end in order
// (Close, or the server ended the stream without an error).
func (s *AgentSession) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Streams is the number of connections and pending dials.
func (s *AgentSession) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// Drain tells the server to give this agent no new connections while another
// can serve (DRAIN). What is open goes on, and dials that come nevertheless
// are served. It does not block.
func (s *AgentSession) Drain() { s.mux.sender.tell(drain()) }

// Drains happens when the server says that it is about to go (DRAIN toward an agent: our
// servers send it, upstream's do not), and not with the session.
func (s *AgentSession) Drains() *tunnel.Event { return &s.drains }

// Close ends the session, resets its connections (CodeShutdown) and returns
// when all of its goroutines have ended.
func (s *AgentSession) Close() error {
	s.cancel(&tunnel.ResetError{Code: tunnel.CodeShutdown})
	<-s.ended
	return nil
}

// run serves the stream until it ends, then everything that hung on it.
func (s *AgentSession) run(stream grpc.ClientStream) {
	defer close(s.ended)
	s.running.Go(s.mux.sender.run)
	s.finish(s.mux.read(stream.RecvMsg, s.handle, s.unknown))
	force := time.AfterFunc(lostGrace, func() { s.cancel(&tunnel.ResetError{Code: tunnel.CodeLost}) })
	s.running.Wait()
	force.Stop()
	s.cancel(nil)
}

// finish gives up pending dials and ends the connections.
func (s *AgentSession) finish(err error) {
	cause := cmp.Or(context.Cause(s.ctx), error(&tunnel.ResetError{Code: tunnel.CodeLost})) // Close has one
	s.mu.Lock()
	if !orderly(err) {
		s.err = err
	}
	for _, d := range s.dials {
		if d.conn == nil {
			d.cancel(cause)
		}
	}
	s.mu.Unlock()
	s.mux.lose(cause)
}

func (s *AgentSession) handle(packet *client.Packet) {
	if packet.Type == client.PacketType_DRAIN {
		s.drains.Happen()
		return
	}
	s.acceptor.handle(packet)
}
