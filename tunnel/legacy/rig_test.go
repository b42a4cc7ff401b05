package legacy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// patience bounds everything a test waits for, and its streams: what they carry
// takes its time under the race detector on a busy machine.
const patience = 3 * time.Minute

// counts is a Metrics that remembers.
type counts struct {
	NoMetrics
	stalled, full, unknown, streams atomic.Int64
	packets                         [Segments][8]atomic.Int64 // by type + 1
}

func (c *counts) Packet(s Segment, kind client.PacketType) { c.packets[s][kind+1].Add(1) }

func (c *counts) Stalled(Segment) { c.stalled.Add(1) }

func (c *counts) Full(_ Segment, delta int) { c.full.Add(int64(delta)) }

func (c *counts) UnknownDialResponse() { c.unknown.Add(1) }

func (c *counts) Stream(_ string, delta int) { c.streams.Add(int64(delta)) }

// rig is a server with both services, over an in-memory network.
type rig struct {
	t       testing.TB
	grpc    *grpc.Server
	lis     *bufconn.Listener
	agents  *AgentService
	proxy   *ProxyService
	metrics *counts
	limits  Limits
	peers   chan *AgentPeer
	left    atomic.Int64
	dialer  atomic.Pointer[AgentPeer] // where the proxy service dials
}

func newRig(t testing.TB, limits Limits) *rig {
	r := &rig{t: t, lis: bufconn.Listen(256 << 10), metrics: &counts{}, peers: make(chan *AgentPeer, 16)}
	r.limits = limits.withDefaults()
	r.agents = NewAgentService(AgentServiceConfig{
		ServerID:    "server-1",
		ServerCount: func() int { return 3 },
		Accept: func(_ context.Context, p *AgentPeer) (func(), error) {
			if p.Token() == "wrong" {
				return nil, errors.New("this token is not accepted")
			}
			r.peers <- p
			return func() { r.left.Add(1) }, nil
		},
		Limits: r.limits, Metrics: r.metrics,
	})
	forwarder := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if p := r.dialer.Load(); p != nil {
			return p.Dial(ctx, f)
		}
		return dialTCP(ctx, f)
	})}
	r.proxy = NewProxyService(forwarder, ProxyServiceConfig{Limits: r.limits, Metrics: r.metrics})
	r.grpc = grpc.NewServer(ServerCodec())
	r.agents.Register(r.grpc)
	r.proxy.Register(r.grpc)
	served := make(chan struct{})
	go func() { defer close(served); _ = r.grpc.Serve(r.lis) }()
	t.Cleanup(func() {
		_ = r.agents.Close()
		_ = r.proxy.Close()
		r.grpc.Stop()
		<-served
		testutil.Equal(t, r.limits.Budget.Used(), 0, "bytes of the budget are lost")
		testutil.Equal(t, r.metrics.full.Load(), 0, "connections that count as full for ever")
	})
	return r
}

// dialOptions lead to the rig.
func (r *rig) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.lis.DialContext(ctx) }),
	}
}

// connect is a gRPC connection to the rig. An old peer does not speak of
// half-close.
func (r *rig) connect(old bool) *grpc.ClientConn {
	r.t.Helper()
	opts := r.dialOptions()
	if old {
		opts = append(opts, grpc.WithStreamInterceptor(hideDuplex))
	}
	cc := testutil.Must(grpc.NewClient("passthrough:rig", opts...))(r.t)
	r.t.Cleanup(func() { cc.Close() })
	return cc
}

func hideDuplex(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	md.Delete(keyDuplex)
	return streamer(metadata.NewOutgoingContext(ctx, md), desc, cc, method, opts...)
}

// rawPeer is a peer that the test plays by hand, with gRPC's own codec.
type rawPeer struct {
	grpc.ClientStream
	t testing.TB
}

func (p *rawPeer) send(packet *client.Packet) {
	p.t.Helper()
	testutil.NoError(p.t, p.SendMsg(packet))
}

func (p *rawPeer) want(kind client.PacketType) *client.Packet {
	p.t.Helper()
	got := &client.Packet{}
	err := p.RecvMsg(got)
	testutil.Requires(p.t, err == nil && got.Type == kind, "want %v, got %v, %v", kind, got, err)
	return got
}

// agent connects one of our agents, whose dials go to the real network.
func (r *rig) agent(old bool) (*AgentPeer, *AgentSession) {
	r.t.Helper()
	return r.agentWith(old, AgentConfig{Forwarder: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(dialTCP)}})
}

func (r *rig) agentWith(old bool, cfg AgentConfig) (*AgentPeer, *AgentSession) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg.ID = "agent-1"
	cfg.Limits, cfg.Metrics = r.limits, r.metrics
	s := testutil.Must(ConnectAgent(ctx, r.connect(old), cfg))(r.t)
	r.t.Cleanup(func() { s.Close() })
	return <-r.peers, s
}

func dialTCP(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, f.Network, f.Address)
	if err != nil {
		return nil, err
	}
	return tunnel.Wrap(c), nil
}

// gather is a destination that passes on all that comes, up to the end.
func gather(to chan<- []byte) func(c *net.TCPConn) {
	return func(c *net.TCPConn) {
		all, _ := io.ReadAll(c)
		to <- all
	}
}

func dial(t testing.TB, d tunnel.Dialer, address string) tunnel.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := testutil.Must(d.Dial(ctx, tunnel.NewFlow("tcp", address)))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// idle waits until neither side has a connection or a dial.
func (r *rig) idle(p *AgentPeer, s *AgentSession) {
	r.t.Helper()
	testutil.Eventually(r.t, "no connection left", func() bool { return p.Streams() == 0 && s.Streams() == 0 && s.mux.count() == 0 })
}

// bothModes runs a test with an agent that knows half-close and an old one.
func bothModes(t *testing.T, f func(t *testing.T, r *rig, p *AgentPeer, s *AgentSession)) {
	for name, old := range map[string]bool{"duplex": false, "old": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Limits{})
			p, s := r.agent(old)
			testutil.Equal(t, p.hello.duplex == old || s.duplex == old, false, "the mode is not what the test wants")
			f(t, r, p, s)
		})
	}
}
