package legacy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// lostGrace is how long, after the stream was lost, what had arrived for a
// destination may take to reach it.
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
	cfg         AgentConfig
	mux         *mux
	duplex      bool
	serverID    string
	serverCount int

	ctx    context.Context // of the connections it serves
	cancel context.CancelCauseFunc
	hangUp context.CancelFunc // ends the gRPC stream
	wg     sync.WaitGroup     // of the connections and the sender

	draining     chan struct{}
	drainingOnce sync.Once
	done         chan struct{}

	mu      sync.Mutex
	dials   map[int64]*agentDial // by the server's number, until the connection ends
	streams int                  // connections and pending dials; some may share a number
	nextID  int64
	ended   bool
	closed  bool
	err     error
}

// agentDial is one DIAL_REQ and the connection that came of it. It belongs to
// the session's lock.
type agentDial struct {
	cancel    context.CancelCauseFunc
	cancelled bool // the server wants no answer, or was told of a failure
	conn      *conn
}

// ConnectAgent opens the AgentService stream to a server and returns once the
// server's header with its id and count has arrived. ctx bounds only that; the
// session then lives until Close, or until the stream ends. Liveness is that of
// the gRPC connection: give it keepalive parameters. The connection stays the
// caller's to close, after the session. Errors carry a gRPC status where the
// server gave one (status.Code).
func ConnectAgent(ctx context.Context, conn grpc.ClientConnInterface, cfg AgentConfig) (*AgentSession, error) {
	if cfg.ID == "" || cfg.Forwarder == nil {
		return nil, errors.New("legacy: an agent needs an id and a forwarder")
	}
	cfg.Limits = cfg.Limits.withDefaults()
	cfg.Metrics, cfg.Log = orNothing(cfg.Metrics, cfg.Log)
	hello := agentHello{id: cfg.ID, identifiers: cfg.Identifiers}
	if cfg.Token != nil {
		token, err := cfg.Token()
		if err != nil {
			return nil, fmt.Errorf("read the agent's token: %w", err)
		}
		hello.token = token
	}
	s := &AgentSession{cfg: cfg, dials: map[int64]*agentDial{}, draining: make(chan struct{}), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	stream, err := s.open(ctx, conn, hello)
	if err != nil {
		s.cancel(err)
		return nil, err
	}
	go s.run(stream)
	return s, nil
}

// open starts the stream and waits for the server's header.
func (s *AgentSession) open(ctx context.Context, conn grpc.ClientConnInterface, hello agentHello) (grpc.ClientStream, error) {
	streamCtx, hangUp := context.WithCancel(hello.outgoing(s.ctx))
	s.hangUp = hangUp
	stop := context.AfterFunc(ctx, hangUp)
	stream, err := s.handshake(streamCtx, conn)
	if !stop() && err == nil { // ctx ended at the last moment and took the stream along
		err = ctx.Err()
	}
	if err != nil {
		hangUp()
		if ctx.Err() != nil {
			err = fmt.Errorf("connect to the server: %w", context.Cause(ctx))
		}
		return nil, err
	}
	return stream, nil
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
func (s *AgentSession) Done() <-chan struct{} { return s.done }

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
func (s *AgentSession) Drain() { s.mux.sender.reply(drain()) }

// Draining is closed when the server said that it is about to go (DRAIN toward
// an agent: our servers send it, upstream's do not).
func (s *AgentSession) Draining() <-chan struct{} { return s.draining }

// Close ends the session, resets its connections (CodeShutdown) and returns
// when all of its goroutines have ended.
func (s *AgentSession) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(&tunnel.ResetError{Code: tunnel.CodeShutdown})
	s.hangUp()
	<-s.done
	return nil
}

// run serves the stream until it ends, then everything that hung on it.
func (s *AgentSession) run(stream grpc.ClientStream) {
	defer close(s.done)
	s.wg.Go(func() { _ = s.mux.sender.run() })
	err := s.mux.read(stream.RecvMsg, s.handle, s.unknown)
	s.hangUp()
	s.finish(err)
	force := time.AfterFunc(lostGrace, func() { s.cancel(&tunnel.ResetError{Code: tunnel.CodeLost}) })
	s.wg.Wait()
	force.Stop()
	s.cancel(nil)
}

// finish gives up pending dials and ends the connections.
func (s *AgentSession) finish(err error) {
	s.mu.Lock()
	s.ended = true
	code := tunnel.CodeLost
	if s.closed {
		code = tunnel.CodeShutdown
	} else if !orderly(err) {
		s.err = err
	}
	for _, d := range s.dials {
		if d.conn == nil {
			d.cancelled = true
			d.cancel(&tunnel.ResetError{Code: code})
		}
	}
	s.mu.Unlock()
	s.mux.lose(&tunnel.ResetError{Code: code})
}

// unknown answers DATA for a connection that is not there.
func (s *AgentSession) unknown(id int64) { s.mux.sender.reply(closeResponse(id, textUnknown)) }

func (s *AgentSession) handle(packet *client.Packet) {
	switch packet.Type {
	case client.PacketType_DIAL_REQ:
		s.dial(packet.GetDialRequest())
	case client.PacketType_DIAL_CLS:
		s.dialClosed(packet.GetCloseDial().GetRandom())
	case client.PacketType_CLOSE_REQ:
		id := packet.GetCloseRequest().GetConnectID()
		if c := s.mux.get(id); c != nil {
			c.peerEnds()
		} else {
			s.unknown(id)
		}
	case client.PacketType_DRAIN:
		s.drainingOnce.Do(func() { close(s.draining) })
	default:
		s.mux.log.Debugf("ignored a %v packet", packet.Type)
	}
}

// dial starts to serve a DIAL_REQ.
func (s *AgentSession) dial(request *client.DialRequest) {
	random := request.GetRandom()
	if err := checkNetwork(request); err != nil {
		s.refuse(random, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Upstream's server passes on the numbers of its clients, who choose each for
	// itself: one that is in use may come again, once nobody waits for an answer to it.
	switch earlier := s.dials[random]; {
	case earlier != nil && earlier.conn == nil && !earlier.cancelled:
		s.mux.log.Debugf("ignored a second dial with the number %d", random)
		return
	case s.streams >= s.cfg.Limits.maxConns:
		s.refuse(random, &tunnel.DialError{Failure: tunnel.FailExhausted, Reason: "the agent has as many connections as it may have"})
		return
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	d := &agentDial{cancel: cancel}
	s.dials[random] = d
	s.streams++
	s.wg.Go(func() { s.forward(ctx, d, request) })
}

// refuse answers a dial that is not even tried. A server that floods with
// those and does not read goes unanswered.
func (s *AgentSession) refuse(random int64, err error) {
	s.mux.sender.reply(dialResponse(random, 0, dialText(err)))
}

// checkNetwork refuses what is not TCP; the address is the dialer's to judge.
func checkNetwork(request *client.DialRequest) error {
	switch request.GetProtocol() {
	case "tcp", "tcp4", "tcp6":
		return nil
	}
	return &tunnel.DialError{Failure: tunnel.FailBadAddress, Reason: "the only protocol served is tcp"}
}

// forward serves one dial and its connection.
func (s *AgentSession) forward(ctx context.Context, d *agentDial, request *client.DialRequest) {
	random := request.GetRandom()
	defer func() {
		d.cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.streams--
		if s.dials[random] == d {
			delete(s.dials, random)
		}
	}()
	flow := &tunnel.Flow{Request: tunnel.Request{ID: dialID(request), Front: "agent", Network: request.GetProtocol(), Address: request.GetAddress(), Source: s.cfg.Source}}
	err := s.cfg.Forwarder.Forward(ctx, flow, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
		return s.answer(d, random, flow.Address, err)
	})
	if err != nil {
		s.mux.log.WithField("id", flow.ID).WithError(err).Debugf("connection to %q ended", flow.Address)
	}
}

var errDialClosed = &tunnel.ResetError{Code: tunnel.CodeCancelled}

// answer tells the server how a dial ended.
func (s *AgentSession) answer(d *agentDial, random int64, address string, err error) (tunnel.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case d.cancelled || s.closed:
		return nil, errDialClosed // nobody waits for it
	case err != nil:
		d.cancelled = true
		s.mux.sender.tell(dialResponse(random, 0, dialText(err)))
		return nil, err
	}
	s.nextID++
	c := newServer(s.mux, s.nextID, s.duplex, address, d.cancel)
	if err := c.announce(random); err != nil {
		return nil, err
	}
	d.conn = c
	return c, nil
}

// dialClosed is called for DIAL_CLS. It comes for an established connection
// too, where the two crossed, or to reset it.
func (s *AgentSession) dialClosed(random int64) {
	s.mu.Lock()
	d := s.dials[random]
	var c *conn
	if d != nil {
		d.cancelled = true
		c = d.conn
	}
	s.mu.Unlock()
	switch {
	case c != nil:
		c.peerResets(errDialClosed)
	case d != nil:
		d.cancel(errDialClosed)
	}
}
