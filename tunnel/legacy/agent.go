package legacy

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"konnectivity/tunnel"
)

// AgentConfig is what an agent tells a server, and how it serves it.
type AgentConfig struct {
	ID          string                 // the agentID; must not be empty
	Identifiers string                 // a URL query: ipv4=..&ipv6=..&host=..&cidr=..&default-route=true
	Token       func() (string, error) // read at every connect; nil: no token is sent
	Forwarder   *tunnel.Forwarder      // serves what the server asks for, with Front "agent"
	Limits      Limits
	Metrics     Metrics            // nil: none
	Log         logrus.FieldLogger // nil: none
}

// AgentSession is an agent's connection to one server. Its methods may be
// called from any goroutine.
type AgentSession struct{}

// ConnectAgent opens the AgentService stream to a server and returns once the
// server's header with its id and count has arrived. ctx bounds only that; the
// session then lives until Close, or until the stream ends. Liveness is that of
// the gRPC connection: give it keepalive parameters. The connection stays the
// caller's to close, after the session. Errors carry a gRPC status where the
// server gave one (status.Code).
func ConnectAgent(ctx context.Context, conn grpc.ClientConnInterface, cfg AgentConfig) (*AgentSession, error) {
	return nil, errors.New("not yet")
}

// ServerID is the id the server gave in its header.
func (s *AgentSession) ServerID() string { return "" }

// ServerCount is how many servers there are, as the server said when the
// session began; at least 1.
func (s *AgentSession) ServerCount() int { return 0 }

// Done is closed when the session has ended and everything of it was freed.
func (s *AgentSession) Done() <-chan struct{} { return nil }

// Err is why the session ended: nil before that, and after an end in order
// (Close, or the server ended the stream without an error).
func (s *AgentSession) Err() error { return nil }

// Streams is the number of connections and pending dials.
func (s *AgentSession) Streams() int { return 0 }

// Drain tells the server to give this agent no new connections while another
// can serve (DRAIN). What is open goes on, and dials that come nevertheless
// are served. It does not block.
func (s *AgentSession) Drain() {}

// Draining is closed when the server said that it is about to go (DRAIN toward
// an agent: our servers send it, upstream's do not).
func (s *AgentSession) Draining() <-chan struct{} { return nil }

// Close ends the session, resets its connections (CodeShutdown) and returns
// when all of its goroutines have ended.
func (s *AgentSession) Close() error { return nil }
