package legacy

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"konnectivity/tunnel"
)

const (
	// firstDial is how long a stream may take to ask for its connection. The
	// real client asks at once.
	firstDial = 10 * time.Second

	// flushTime bounds how long the last packets of a stream may take to go.
	flushTime = 10 * time.Second
)

// ProxyServiceConfig is how a server takes frontends.
type ProxyServiceConfig struct {
	// Admit admits a stream: it returns the client that the stream's connection
	// belongs to, nil if that is unknown, and what to call when the stream has
	// ended; or the gRPC status that ends it at once. nil admits all streams.
	Admit func(stream context.Context) (client *tunnel.Client, leave func(), err error)

	// Received, which may be nil, is called with the size of each message that a stream
	// has received. It must not block.
	Received func(ctx context.Context, bytes int)

	Limits  Limits
	Metrics Metrics // nil: none

	// LogOf is the log for lines about a stream; nil: there is none. It must not block.
	LogOf func(stream context.Context) logrus.FieldLogger
}

// ProxyService is the server's side of frontends' streams
// (/ProxyService/Proxy): kube-apiserver in gRPC mode, or anything else with
// konnectivity-client. A stream carries one connection, as both kinds of that
// client's tunnels have it, so a slow reader or writer is held up by gRPC's own
// flow control.
type ProxyService struct {
	carrier tunnel.Handler
	cfg     ProxyServiceConfig
	nextID  atomic.Int64
	*group
}

// NewProxyService returns a service whose requests c carries, with Front "grpc".
func NewProxyService(c tunnel.Handler, cfg ProxyServiceConfig) *ProxyService {
	cfg.Limits = cfg.Limits.withDefaults()
	cfg.Metrics = cmp.Or(cfg.Metrics, Metrics(NoMetrics{}))
	if cfg.LogOf == nil {
		cfg.LogOf = quiet
	}
	if cfg.Admit == nil {
		cfg.Admit = func(context.Context) (*tunnel.Client, func(), error) { return nil, func() {}, nil }
	}
	return &ProxyService{carrier: c, cfg: cfg, group: newGroup()}
}

// Register adds the service to a gRPC server, which must have been made with
// ServerCodec.
func (s *ProxyService) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(bidi(proxyServiceName, proxyMethod, s.proxy), nil)
}

// receiving returns stream.RecvMsg, followed by a call of Received.
func (s *ProxyService) receiving(stream grpc.ServerStream) func(any) error {
	if s.cfg.Received == nil {
		return stream.RecvMsg
	}
	ctx := stream.Context()
	return func(m any) error {
		err := stream.RecvMsg(m)
		if err == nil {
			s.cfg.Received(ctx, m.(*packet).size)
		}
		return err
	}
}

// proxy serves one frontend's stream. What reads and writes the stream belongs
// to the group, since gRPC lets go of it only after the handler has returned.
func (s *ProxyService) proxy(stream grpc.ServerStream) error {
	client, leave, err := s.cfg.Admit(stream.Context())
	if err != nil {
		s.cfg.Metrics.StreamError(FromClient, status.Code(err), NoPacket)
		return err
	}
	defer leave()
	if !s.enter() {
		return errShutdown
	}
	defer s.leave()
	s.cfg.Metrics.Stream(proxyMethod, 1)
	defer s.cfg.Metrics.Stream(proxyMethod, -1)

	f := newFrontend(client, s, stream)
	sent, read := make(chan struct{}), make(chan error, 1)
	s.wg.Go(func() {
		defer close(sent)
		f.mux.sender.run()
	})
	s.wg.Go(func() { read <- f.mux.read(s.receiving(stream), f.handle, f.unknown) })
	err = f.wait(s.closing.Done(), read)
	f.mux.sender.finish()
	select {
	case <-sent:
	case <-stream.Context().Done():
	case <-time.After(flushTime):
	}
	f.mux.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
	return err
}
