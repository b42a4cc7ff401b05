package legacy

import (
	"cmp"
	"context"
	"sync"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// AgentServiceConfig is how a server takes agents. ServerID, ServerCount and Accept are
// required.
type AgentServiceConfig struct {
	ServerID    string     // sent to every agent
	ServerCount func() int // asked at every connect

	// Accept decides on an agent: it authenticates it and makes it known to
	// dialers. Dials may come at once; they wait until the header is
	// out. leave, which may be nil, is called once when the agent is gone.
	// An error refuses the agent: its gRPC status where it has one, else
	// PermissionDenied with its text. It may block, within ctx.
	Accept func(ctx context.Context, peer *AgentPeer) (leave func(), err error)

	Limits  Limits
	Metrics Metrics // nil: none

	// LogOf is the log for lines about a stream; nil: there is none. It must not block.
	LogOf func(stream context.Context) logrus.FieldLogger
}

// AgentService is the server's side of agents' streams (/AgentService/Connect).
type AgentService struct {
	cfg AgentServiceConfig
	*group
}

// NewAgentService returns a service.
func NewAgentService(cfg AgentServiceConfig) *AgentService {
	cfg.Limits = cfg.Limits.withDefaults()
	cfg.Metrics = cmp.Or(cfg.Metrics, Metrics(NoMetrics{}))
	if cfg.LogOf == nil {
		cfg.LogOf = quiet
	}
	return &AgentService{cfg: cfg, group: newGroup()}
}

// Register adds the service to a gRPC server, which must have been made with
// ServerCodec.
func (s *AgentService) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(bidi(agentServiceName, connectMethod, s.connect), nil)
}

// connect serves one agent.
func (s *AgentService) connect(stream grpc.ServerStream) error {
	hello, err := parseAgentHello(stream.Context())
	if err != nil {
		return err
	}
	peer := newAgentPeer(stream, hello, &s.cfg)
	if !s.enter() {
		return errShutdown
	}
	defer s.leave()

	s.cfg.Metrics.Stream(connectMethod, 1)
	defer s.cfg.Metrics.Stream(connectMethod, -1)
	left, err := s.cfg.Accept(stream.Context(), peer)
	if left != nil {
		defer left()
	}
	if err != nil {
		peer.finish(err)
		return refusal(err)
	}
	header := serverHeader(s.cfg.ServerID, s.cfg.ServerCount(), hello.duplex)
	if err := stream.SendHeader(header); err != nil {
		peer.finish(err)
		return err
	}
	return peer.serve(stream, s.group)
}

var errShutdown = status.Error(codes.Unavailable, "the server is shutting down")

// refusal gives an error a gRPC status.
func refusal(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.PermissionDenied, cleanText(err.Error()))
}

// group is the streams of a service, and those of its goroutines that may
// outlive a handler: gRPC releases them only once the handler has returned.
type group struct {
	closing context.Context // ends once Close was called
	end     context.CancelFunc

	mu      sync.Mutex
	streams int
	wg      sync.WaitGroup
}

func newGroup() *group {
	g := &group{}
	g.closing, g.end = context.WithCancel(context.Background())
	return g
}

// enter counts a stream; false after Close.
func (g *group) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing.Err() != nil {
		return false
	}
	g.streams++
	g.wg.Add(1)
	return true
}

func (g *group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streams--
	g.wg.Done()
}

// Streams is the number of streams that are open.
func (g *group) Streams() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.streams
}

// Close ends all streams and resets their connections, refuses new ones (Unavailable), and
// returns when their goroutines have ended. Call it before the gRPC server's Stop.
func (g *group) Close() error {
	g.mu.Lock()
	g.end()
	g.mu.Unlock()
	g.wg.Wait()
	return nil
}
