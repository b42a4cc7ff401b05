package legacy

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// rttWeight is the share of a new measure in the moving average.
const rttWeight = 8

// AgentPeer is one agent's stream, at the server. It is a tunnel.Dialer. Its
// methods may be called from any goroutine.
//
// Connections it dials have no half-close on the wire where the agent is an
// old one, which takes CLOSE_REQ as the end of both directions. CloseWrite
// then holds CLOSE_REQ back while an answer may still come: 10 s for its first
// byte, 2 s where it pauses. With our agents half-close is whole.
type AgentPeer struct {
	hello  agentHello
	remote net.Addr
	tls    *tls.ConnectionState
	mux    *mux

	ends, drains, closing tunnel.Event // the stream has ended, the agent is about to go, Close was called

	mu      sync.Mutex
	pending map[int64]*pendingDial // nil: the stream has ended
	random  int64
	rtt     time.Duration
	err     error
}

// pendingDial is a dial without an answer yet. Whoever removes it from the map
// sends it its only answer.
type pendingDial struct {
	address string
	limits  Limits // of the connection
	start   time.Time
	answer  chan dialAnswer // of capacity 1
}

type dialAnswer struct {
	conn tunnel.Conn // nil: there is none
	err  error
}

func newAgentPeer(stream grpc.ServerStream, hello agentHello, cfg *AgentServiceConfig) *AgentPeer {
	p := &AgentPeer{
		hello:   hello,
		pending: map[int64]*pendingDial{},
	}
	p.mux = newMux(stream.SendMsg, FromAgent, ToAgent, cfg.Limits, cfg.Metrics, cfg.LogOf(stream.Context()).WithField("agent", hello.id))
	if info, ok := grpcpeer.FromContext(stream.Context()); ok {
		p.remote = info.Addr
		switch t := info.AuthInfo.(type) {
		case credentials.TLSInfo:
			p.tls = &t.State
		case interface{ TLS() *tls.ConnectionState }: // of a server that shakes hands itself
			p.tls = t.TLS()
		}
		if info.LocalAddr != nil {
			p.mux.localAddr = info.LocalAddr.String()
		}
	}
	return p
}

// ID is the agent's id.
func (p *AgentPeer) ID() string { return p.hello.id }

// Identifiers is what the agent serves, as it said: a URL query, maybe empty,
// not checked.
func (p *AgentPeer) Identifiers() string { return p.hello.identifiers }

// Token is the bearer token it sent, or "".
func (p *AgentPeer) Token() string { return p.hello.token }

// TLS is its TLS connection, or nil.
func (p *AgentPeer) TLS() *tls.ConnectionState { return p.tls }

// RemoteAddr is where it connected from.
func (p *AgentPeer) RemoteAddr() net.Addr { return p.remote }

// Ends happens with the end of the stream.
func (p *AgentPeer) Ends() *tunnel.Event { return &p.ends }

// Err is why the stream ended: nil before that, and after an end in order.
func (p *AgentPeer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Drains happens when the agent says that it is about to go (DRAIN), and not with the end of
// the stream.
func (p *AgentPeer) Drains() *tunnel.Event { return &p.drains }

// Drain tells the agent that this server is about to go (DRAIN). Our agents
// heed it, upstream's ignore it. It does not block.
func (p *AgentPeer) Drain() { p.mux.sender.tell(drain()) }

// Streams is the number of connections and pending dials.
func (p *AgentPeer) Streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) + p.mux.count()
}

// RTT is a moving average of how long the agent takes to answer a dial, the
// destination's own handshake included, since the protocol has no ping; 0
// before the first answer.
func (p *AgentPeer) RTT() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rtt
}

// Close ends the stream and resets its connections (CodeShutdown). It does not
// wait; Ends happens once the stream has ended.
func (p *AgentPeer) Close() error {
	p.closing.Happen()
	return nil
}

// Dial asks the agent to connect; see tunnel.Dialer. It has no bound of its
// own but ctx: when that ends, the agent is told (DIAL_CLS), and a connection
// that it makes nevertheless is closed as soon as it says so. When the agent's
// stream ends the error has FailAgentLost at once.
func (p *AgentPeer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if err := f.CheckTCP(); err != nil { // a text that is no UTF-8 would end the stream, since gRPC cannot encode it
		return nil, err
	}
	if f.Rules != "" {
		return nil, f.Unjudged()
	}
	if err := ctx.Err(); err != nil {
		return nil, tunnel.AsDialError(f.Address, err)
	}
	random, dial, err := p.startDial(f)
	if err != nil {
		return nil, err
	}
	request := dialRequest(random, f.Network, f.Address)
	if p.hello.duplex {
		setDialID(request, f.ID, f.Span.ID)
	}
	if !p.mux.sender.ask(request) {
		p.giveUp(random, dial)
		return nil, p.unasked(ctx, f.Address)
	}
	select {
	case a := <-dial.answer:
		return a.conn, a.err
	case <-ctx.Done():
		if p.giveUp(random, dial) && !p.mux.sender.retract(request) {
			p.mux.sender.tell(dialClose(random))
		}
		return nil, tunnel.AsDialError(f.Address, ctx.Err())
	}
}

// unasked is why a question could not be sent.
func (p *AgentPeer) unasked(ctx context.Context, address string) error {
	if p.mux.sender.failure() == nil {
		return &tunnel.DialError{Failure: tunnel.FailExhausted, Address: address, Reason: "the agent does not take any more requests just now"}
	}
	select { // until the reader has heard of the failure, as finish tells
	case <-p.ends.Done():
		return agentLost(address)
	case <-ctx.Done():
		return tunnel.AsDialError(address, ctx.Err())
	}
}

func (p *AgentPeer) startDial(f *tunnel.Flow) (int64, *pendingDial, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		return 0, nil, agentLost(f.Address)
	}
	if len(p.pending)+p.mux.count() >= p.mux.limits.maxConns {
		return 0, nil, &tunnel.DialError{Failure: tunnel.FailExhausted, Address: f.Address, Reason: "the agent has as many connections as it may have"}
	}
	p.random++ // unique on this stream, which is all that is needed
	dial := &pendingDial{address: f.Address, limits: p.mux.limits.of(f.Client), start: time.Now(), answer: make(chan dialAnswer, 1)}
	p.pending[p.random] = dial
	return p.random, dial, nil
}

func agentLost(address string) error {
	return &tunnel.DialError{Failure: tunnel.FailAgentLost, Address: address, Reason: "the agent went away before it answered"}
}

// giveUp ends the wait for an answer. It returns false if the answer came at
// the same moment, or came before the question was asked, which no agent should
// do; what that brought is let go.
func (p *AgentPeer) giveUp(random int64, dial *pendingDial) bool {
	if p.claim(random) != nil {
		return true
	}
	if a := <-dial.answer; a.conn != nil {
		_ = a.conn.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
	}
	return false
}

// claim removes a dial from the pending ones.
func (p *AgentPeer) claim(random int64) *pendingDial {
	p.mu.Lock()
	defer p.mu.Unlock()
	dial := p.pending[random]
	delete(p.pending, random)
	return dial
}

// serve runs the stream. Its goroutines belong to g, since gRPC lets go of
// them only after the handler has returned.
func (p *AgentPeer) serve(stream grpc.ServerStream, g *group) error {
	read := make(chan error, 1)
	g.wg.Go(p.mux.sender.run)
	g.wg.Go(func() { read <- p.mux.read(stream.RecvMsg, p.handle, p.unknown) })
	select {
	case err := <-read:
		p.finish(err)
		return nil // the agent's doing; it needs no status
	case <-p.closing.Done():
	case <-g.closing.Done():
	}
	p.finish(errShutdown)
	return errShutdown
}

// finish ends everything of the stream.
func (p *AgentPeer) finish(err error) {
	code := tunnel.CodeLost
	if err == errShutdown {
		code, err = tunnel.CodeShutdown, nil
	}
	p.mu.Lock()
	if !orderly(err) {
		p.err = err
	}
	p.ends.Happen() // before its dials fail, or the registry would still find the agent
	pending := p.pending
	p.pending = nil
	p.mu.Unlock()
	for _, dial := range pending {
		dial.answer <- dialAnswer{err: agentLost(dial.address)}
	}
	p.mux.lose(&tunnel.ResetError{Code: code})
}

// unknown answers DATA for a connection that is not there.
func (p *AgentPeer) unknown(id int64) { p.mux.sender.reply(closeRequest(id)) }

func (p *AgentPeer) handle(packet *client.Packet) {
	switch packet.Type {
	case client.PacketType_DIAL_RSP:
		p.dialAnswered(packet.GetDialResponse())
	case client.PacketType_DIAL_CLS:
		if dial := p.claim(packet.GetCloseDial().GetRandom()); dial != nil {
			dial.answer <- dialAnswer{err: &tunnel.DialError{Failure: tunnel.FailCancelled, Address: dial.address, Reason: "the agent gave the dial up"}}
		}
	case client.PacketType_CLOSE_RSP:
		response := packet.GetCloseResponse()
		c := p.mux.get(response.GetConnectID())
		switch text := response.GetError(); {
		case c == nil:
		case text != "":
			c.peerResets(&tunnel.ResetError{Code: resetCode(text)})
		default:
			c.peerEnds()
		}
	case client.PacketType_DRAIN:
		p.drains.Happen()
	default:
		p.mux.log.Debugf("ignored a %v packet", packet.Type)
	}
}

func (p *AgentPeer) dialAnswered(response *client.DialResponse) {
	id, text := response.GetConnectID(), response.GetError()
	dial := p.claim(response.GetRandom())
	if dial == nil {
		p.mux.metrics.UnknownDialResponse()
		if id != 0 {
			p.mux.sender.ask(closeRequest(id)) // or the agent would keep it for ever
		}
		return
	}
	p.observe(time.Since(dial.start))
	failed := func(why string) error {
		return &tunnel.DialError{Failure: tunnel.FailInternal, Address: dial.address, Reason: "the agent " + why}
	}
	a := dialAnswer{}
	switch {
	case text != "":
		a.err = parseDialText(dial.address, text)
	case id == 0:
		a.err = failed("answered without a connection")
	default:
		c := newOpener(p.mux, response.GetRandom(), id, p.hello.duplex, dial.address)
		c.in.limits = &dial.limits
		switch ok, lost := p.mux.add(id, c); {
		case lost != nil:
			a.err = agentLost(dial.address)
		case !ok:
			a.err = failed("gave a connection's number twice")
		default:
			a.conn = c
		}
	}
	dial.answer <- a
}

func (p *AgentPeer) observe(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rtt == 0 {
		p.rtt = took
		return
	}
	p.rtt += (took - p.rtt) / rttWeight
}
