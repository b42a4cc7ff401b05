package legacy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// realDial connects by a tunnel of konnectivity-client for one use.
func (r *rig) realDial(ctx context.Context, address string) (*realConn, konnectivity.Tunnel, error) {
	r.t.Helper()
	c := &realConn{}
	tun, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(context.Background(), context.Background(), "passthrough:rig",
		append(r.dialOptions(), grpc.WithStreamInterceptor(c.listen))...)
	testutil.NoError(r.t, err)
	if c.Conn, err = tun.DialContext(ctx, "tcp", address); err != nil {
		return nil, tun, err
	}
	return c, tun, nil
}

// realConn is a connection of konnectivity-client, which ends its tunnel as soon
// as it has read CLOSE_RSP. Where its Close finds both of them done it returns
// the one or the other at random, so only the stream tells whether the server
// closed in order.
type realConn struct {
	net.Conn
	answered atomic.Bool // CLOSE_RSP came, without an error
}

func (c *realConn) Close() error {
	err := c.Conn.Close()
	if err != nil && err.Error() == "tunnel closed" && c.answered.Load() {
		return nil
	}
	return err
}

func (c *realConn) listen(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	return &listenedStream{s, c}, err
}

type listenedStream struct {
	grpc.ClientStream
	c *realConn
}

func (s *listenedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	p, ok := m.(*client.Packet)
	if err != nil || !ok {
		return err
	}
	if p.Type == client.PacketType_CLOSE_RSP {
		s.c.answered.Store(p.GetCloseResponse().Error == "")
	}
	return nil
}

func (r *rig) mustRealDial(address string) *realConn {
	r.t.Helper()
	c, _, err := r.realDial(context.Background(), address)
	testutil.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	return c
}

// viaAgents runs a test with frontends whose dials go out directly, and by an
// agent that knows half-close, and by an old one.
func viaAgents(t *testing.T, f func(t *testing.T, r *rig)) {
	for _, mode := range []string{"direct", "agent", "old agent"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, Limits{})
			if mode != "direct" {
				p, s := r.agent(mode == "old agent")
				r.dialer.Store(p)
				t.Cleanup(func() { r.idle(p, s) })
			}
			f(t, r)
			testutil.Eventually(t, "all streams have ended", func() bool { return r.proxy.Streams() == 0 })
		})
	}
}

func TestRealClientCarriesBytes(t *testing.T) {
	viaAgents(t, func(t *testing.T, r *rig) {
		addr := testutil.Echo(t)
		payload := pattern(6 << 20)
		var wg sync.WaitGroup
		for range 3 {
			c := r.mustRealDial(addr)
			wg.Go(func() {
				for p := payload; len(p) > 0; p = p[min(len(p), 20_000):] {
					if _, err := c.Write(p[:min(len(p), 20_000)]); err != nil {
						t.Error(err)
						return
					}
				}
			})
			wg.Go(func() {
				h := sha256.New()
				_, err := io.CopyN(h, c, int64(len(payload)))
				want := sha256.Sum256(payload)
				testutil.Succeeds(t, err, "the echo")
				testutil.EqualSlices(t, h.Sum(nil), want[:], "the echo's hash")
				testutil.Succeeds(t, c.Close(), "Close")
			})
		}
		wg.Wait()
	})
}

// The real client's Close is full, but what it wrote before arrives, and its end is not
// held back for an answer.
func TestRealClientsCloseLosesNothing(t *testing.T) {
	viaAgents(t, func(t *testing.T, r *rig) {
		got := make(chan []byte, 1)
		c := r.mustRealDial(testutil.Serve(t, gather(got)))
		payload := pattern(1 << 20)
		testutil.Must(c.Write(payload))(t)
		start := time.Now()
		testutil.Succeeds(t, c.Close(), "Close")
		testutil.Equal(t, bytes.Equal(<-got, payload), true, "all comes before the end by Close")
		testutil.AtMost(t, time.Since(start), answerWait-1, "time until the destination heard of the end")
	})
}

func TestRealClientReadsDialFailure(t *testing.T) {
	viaAgents(t, func(t *testing.T, r *rig) {
		_, tun, err := r.realDial(t.Context(), testutil.Refusing(t))
		testutil.ErrorSays(t, err, "connection refused", "the error")
		testutil.Receive(t, "the end of the tunnel", tun.Done())
	})
}

// The client's process dies: its stream ends without CLOSE_REQ.
func TestEndedStreamClosesConnection(t *testing.T) {
	viaAgents(t, func(t *testing.T, r *rig) {
		ended := make(chan struct{})
		addr := testutil.Serve(t, func(c *net.TCPConn) { defer close(ended); _, _ = io.Copy(c, c) })
		ctx, cancel := context.WithCancel(context.Background())
		tun := testutil.Must(konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, ctx, "passthrough:rig", r.dialOptions()...))(t)
		testutil.Must(tun.DialContext(ctx, "tcp", addr))(t)
		cancel()
		testutil.Receive(t, "the end of the destination", ended)
		<-tun.Done()
	})
}

// A slow reader and a slow destination are held up by gRPC's flow control on
// their own stream; nothing is reset and nothing piles up.
func TestFrontendHasBackpressure(t *testing.T) {
	r := newRig(t, Limits{stallTimeout: 100 * time.Millisecond, Budget: shares.NewBudget(4 << 20)})
	payload := pattern(8 << 20)
	sum := make(chan []byte, 1)
	c := r.mustRealDial(testutil.Serve(t, func(c *net.TCPConn) {
		time.Sleep(700 * time.Millisecond) // several stall bounds
		h := sha256.New()
		_, _ = io.CopyN(h, c, int64(len(payload)))
		sum <- h.Sum(nil)
	}))
	for p := payload; len(p) > 0; p = p[min(len(p), 32<<10):] {
		testutil.Must(c.Write(p[:min(len(p), 32<<10)]))(t)
	}
	want := sha256.Sum256(payload)
	testutil.EqualSlices(t, <-sum, want[:], "the upload's hash")
	testutil.Equal(t, r.metrics.stalled.Load(), 0, "connections that were reset")
}

// rawFrontend plays a client by hand.
func (r *rig) rawFrontend(t *testing.T) (*rawPeer, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return &rawPeer{testutil.Must(client.NewProxyServiceClient(r.connect(true)).Proxy(ctx))(t), t}, cancel
}

func TestUnusualFrontendPackets(t *testing.T) {
	r := newRig(t, Limits{})
	c, _ := r.rawFrontend(t)
	closed := func(id int64, failed bool) {
		t.Helper()
		rsp := c.want(client.PacketType_CLOSE_RSP).GetCloseResponse()
		testutil.Equal(t, rsp.ConnectID, id, "closed")
		testutil.Equal(t, rsp.Error != "", failed, "it failed: %q", rsp.Error)
	}
	c.send(dataPacket(7, []byte("before any dial")))
	closed(7, true)
	c.send(closeRequest(8))
	closed(8, true)
	c.send(dialRequest(1, "udp", "127.0.0.1:53"))
	if rsp := c.want(client.PacketType_DIAL_RSP).GetDialResponse(); rsp.Random != 1 || rsp.ConnectID != 0 || !strings.Contains(rsp.Error, "tcp") {
		t.Errorf("got %v", rsp)
	}
	for _, kind := range []client.PacketType{42, client.PacketType_DIAL_CLS, client.PacketType_DIAL_RSP, client.PacketType_DATA, client.PacketType_DRAIN} {
		c.send(&client.Packet{Type: kind})
	}
	c.send(dialRequest(2, "tcp", testutil.Echo(t)))
	id := c.want(client.PacketType_DIAL_RSP).GetDialResponse().ConnectID
	testutil.Equal(t, id != 0, true, "there is a connection")
	c.send(dialRequest(3, "tcp", "a:1"))
	rsp := c.want(client.PacketType_DIAL_RSP).GetDialResponse()
	testutil.Holds(t, rsp.Random == 3 && rsp.Error != "", "a second dial fails: %v", rsp)
	c.send(dataPacket(id, []byte("echo")))
	got := c.want(client.PacketType_DATA).GetData()
	testutil.Equal(t, string(got.Data), "echo", "the echo")
	testutil.Equal(t, got.ConnectID, id, "its connection")
	testutil.NoError(t, c.CloseSend()) // it can send no CLOSE_REQ any more
	closed(id, false)
	testutil.Equal(t, c.RecvMsg(&client.Packet{}), io.EOF, "how the stream ended")
}

// answer does as konnectivity-client does with the questions behind DIAL_RSP.
func (p *rawPeer) answer(dialed *client.Packet) {
	p.t.Helper()
	for range questions {
		id := p.want(client.PacketType_DATA).GetData().ConnectID
		testutil.Equal(p.t, id, -dialed.GetDialResponse().ConnectID, "the connection that is asked about")
		p.send(closeRequest(id))
	}
}

// A client whose process stood still as the dial was answered reads all that a destination which
// speaks first has sent, and its end.
func TestClientThatStoodStillLosesNothing(t *testing.T) {
	r := newRig(t, Limits{})
	stoodStill := grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &stillStream{s}, err
	})
	for _, want := range [][]byte{pattern(300 << 10), nil} {
		address := testutil.Serve(t, func(c *net.TCPConn) { _, _ = c.Write(want) })
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				tun := testutil.Must(konnectivity.CreateSingleUseGrpcTunnelWithContext(t.Context(), context.Background(), "passthrough:rig", append(r.dialOptions(), stoodStill)...))(t)
				c := testutil.Must(tun.DialContext(t.Context(), "tcp", address))(t)
				defer c.Close()
				got := testutil.Must(io.ReadAll(c))(t)
				testutil.Equal(t, bytes.Equal(got, want), true, "%d bytes are the %d that were sent", len(got), len(want))
			})
		}
		wg.Wait()
	}
}

// stillStream hands over DIAL_RSP late, with the packets behind it. It lets the goroutine that
// dials run before it hands over a question, however busy the machine is.
type stillStream struct{ grpc.ClientStream }

func (s *stillStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	p, ok := m.(*client.Packet)
	switch {
	case !ok || err != nil:
	case p.Type == client.PacketType_DIAL_RSP:
		time.Sleep(3 * firstData)
	case p.GetData().GetConnectID() < 0:
		time.Sleep(2 * firstData)
	}
	return err
}

func TestDialIsCancelledWithItsStream(t *testing.T) {
	for _, how := range []string{"DIAL_CLS", "stream ends", "client hangs up"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, Limits{})
			var pending atomic.Int64
			p, _ := r.agentWith(true, AgentConfig{Forwarder: &tunnel.Forwarder{DialTimeout: time.Hour, Dialer: tunnel.DialerFunc(
				func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
					pending.Add(1)
					defer pending.Add(-1)
					return block(ctx, f)
				})}})
			r.dialer.Store(p)
			c, cancel := r.rawFrontend(t)
			c.send(dialRequest(9, "tcp", "a:1"))
			testutil.Eventually(t, "the dial is at the agent", func() bool { return pending.Load() == 1 })
			switch how {
			case "DIAL_CLS":
				c.send(dialClose(9))
			case "stream ends":
				_ = c.CloseSend()
			default:
				cancel()
			}
			testutil.Eventually(t, "the dial was given up", func() bool { return pending.Load() == 0 && p.Streams() == 0 })
		})
	}
}

// A dial that is read once the client is gone is not made.
func TestNoDialBehindTheEnd(t *testing.T) {
	s := NewProxyService(&tunnel.Forwarder{Dialer: tunnel.DialerFunc(pipeDialer)}, ProxyServiceConfig{})
	f := newFrontend(nil, s, &script{ctx: t.Context()})
	f.broken()
	f.dial(dialRequest(1, "tcp", "a:1").GetDialRequest())
	testutil.Equal(t, f.streams, 0, "connections of a client that is gone")
	testutil.Equal(t, tunnel.Closed(f.done), true, "it is done")
	testutil.NoError(t, s.Close())
}

func TestShutdownEndsFrontends(t *testing.T) {
	r := newRig(t, Limits{})
	c := r.mustRealDial(testutil.Echo(t))
	testutil.NoError(t, r.proxy.Close())
	testutil.Fails(t, testutil.Err(c.Read(make([]byte, 1))), "a read after the end")
	_, _, err := r.realDial(t.Context(), "a:1")
	testutil.Holds(t, err != nil && !errors.Is(err, context.Canceled), "a dial after the end: %v", err)
}

// A destination that answers and then resets, before the client has spoken: what it said waits
// for the client's dial as ever, and arrives, and so does the reset.
func TestResetBehindTheFirstData(t *testing.T) {
	r := newRig(t, Limits{})
	c, _ := r.rawFrontend(t)
	passed := &r.metrics.packets[ToClient][client.PacketType_DATA+1]
	c.send(dialRequest(1, "tcp", testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("go away"))
		for end := time.Now().Add(patience); r.limits.Budget.Used() == 0 && passed.Load() == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // until it was read: the reset would discard it
		}
		_ = c.SetLinger(0)
	})))
	dialed := c.want(client.PacketType_DIAL_RSP)
	start := time.Now() // of the pauses, in which nothing but a question comes
	c.answer(dialed)
	testutil.Equal(t, string(c.want(client.PacketType_DATA).GetData().Data), "go away", "what came")
	testutil.AtLeast(t, time.Since(start), firstData/2, "time from DIAL_RSP to data")
	rsp := c.want(client.PacketType_CLOSE_RSP).GetCloseResponse()
	testutil.Equal(t, rsp.Error != "", true, "it is closed with an error")
}
