package legacy

import (
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"konnectivity/tunnel"
)

// ProxyServiceConfig is how a server takes frontends.
type ProxyServiceConfig struct {
	Limits  Limits
	Metrics Metrics            // nil: none
	Log     logrus.FieldLogger // nil: none
}

// ProxyService is the server's side of frontends' streams
// (/ProxyService/Proxy): kube-apiserver in gRPC mode, or anything else with
// konnectivity-client. A stream carries one connection, as both kinds of that
// client's tunnels have it.
type ProxyService struct{}

// NewProxyService returns a service whose requests f serves, with Front "grpc".
func NewProxyService(f *tunnel.Forwarder, cfg ProxyServiceConfig) *ProxyService { return nil }

// Register adds the service to a gRPC server, which must have been made with
// ServerCodec.
func (s *ProxyService) Register(r grpc.ServiceRegistrar) {}

// Streams is the number of streams that are open.
func (s *ProxyService) Streams() int { return 0 }

// Close resets all connections, refuses new streams (Unavailable), and returns
// when their goroutines have ended. Call it before the gRPC server's Stop.
func (s *ProxyService) Close() error { return nil }
