package legacy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"konnectivity/tunnel"
)

// AgentServiceConfig is how a server takes agents.
type AgentServiceConfig struct {
	ServerID    string     // sent to every agent; must not be empty
	ServerCount func() int // asked at every connect; nil means 1

	// Accept decides on an agent: it authenticates it and makes it known to
	// whoever dials. Dials may come at once; they wait until the header is
	// out. leave, which may be nil, is called once when the agent is gone.
	// An error refuses the agent: its gRPC status where it has one, else
	// PermissionDenied with its text. It may block, within ctx.
	Accept func(ctx context.Context, peer *AgentPeer) (leave func(), err error)

	Limits  Limits
	Metrics Metrics            // nil: none
	Log     logrus.FieldLogger // nil: none
}

// AgentService is the server's side of agents' streams (/AgentService/Connect).
type AgentService struct{}

// NewAgentService returns a service; ServerID and Accept are required.
func NewAgentService(cfg AgentServiceConfig) (*AgentService, error) {
	return nil, errors.New("not yet")
}

// Register adds the service to a gRPC server, which must have been made with
// ServerCodec.
func (s *AgentService) Register(r grpc.ServiceRegistrar) {}

// Close ends all streams, refuses new ones (Unavailable), and returns when
// their goroutines have ended. Call it before the gRPC server's Stop.
func (s *AgentService) Close() error { return nil }

// AgentPeer is one agent's stream, at the server. It is a tunnel.Dialer. Its
// methods may be called from any goroutine.
//
// Connections it dials have no half-close on the wire (an agent takes
// CLOSE_REQ as the end of both directions). CloseWrite therefore holds the
// CLOSE_REQ back while an answer may still come; see conn.go.
type AgentPeer struct{}

// ID is the agent's id.
func (p *AgentPeer) ID() string { return "" }

// Identifiers is what the agent serves, as it said: a URL query, maybe empty,
// not checked.
func (p *AgentPeer) Identifiers() string { return "" }

// Token is the bearer token it sent, or "".
func (p *AgentPeer) Token() string { return "" }

// TLS is its TLS connection, or nil.
func (p *AgentPeer) TLS() *tls.ConnectionState { return nil }

// RemoteAddr is where it connected from.
func (p *AgentPeer) RemoteAddr() net.Addr { return nil }

// Dial asks the agent to connect; see tunnel.Dialer. It has no bound of its
// own but ctx: when that ends, the agent is told (DIAL_CLS), and a connection
// that it makes nevertheless is closed as soon as it says so. When the agent's
// stream ends the error has FailAgentLost at once.
func (p *AgentPeer) Dial(ctx context.Context, network, address string) (tunnel.Conn, error) {
	return nil, errors.New("not yet")
}

// Done is closed when the stream has ended.
func (p *AgentPeer) Done() <-chan struct{} { return nil }

// Err is why the stream ended: nil before that, and after an end in order.
func (p *AgentPeer) Err() error { return nil }

// Draining is closed when the agent said that it is about to go (DRAIN).
func (p *AgentPeer) Draining() <-chan struct{} { return nil }

// Drain tells the agent that this server is about to go (DRAIN). Our agents
// heed it, upstream's ignore it. It does not block.
func (p *AgentPeer) Drain() {}

// Streams is the number of connections and pending dials.
func (p *AgentPeer) Streams() int { return 0 }

// RTT is a moving average of how long the agent takes to answer a dial, the
// destination's own handshake included, since the protocol has no ping; 0
// before the first answer.
func (p *AgentPeer) RTT() time.Duration { return 0 }

// Close ends the stream and resets its connections (CodeShutdown). It does not
// wait; Done does.
func (p *AgentPeer) Close() error { return nil }
