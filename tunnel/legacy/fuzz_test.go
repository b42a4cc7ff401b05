package legacy

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// script is a gRPC stream whose peer says what the fuzzer made up.
type script struct {
	grpc.ServerStream
	ctx     context.Context
	packets []*client.Packet
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) RecvMsg(m any) error {
	if len(s.packets) == 0 {
		return io.EOF
	}
	p := s.packets[0]
	s.packets = s.packets[1:]
	out := m.(*packet)
	out.kind, out.rest = p.Type, p
	if p.Type == client.PacketType_DATA {
		out.id, out.rest = p.GetData().GetConnectID(), nil
		out.data = append(out.data, tunnel.CopyChunk(p.GetData().GetData()))
	}
	return nil
}

func (s *script) SendMsg(m any) error {
	bufs, err := newCodec().Marshal(m)
	if err == nil {
		bufs.Free()
	}
	return err
}

// play turns bytes into packets with few numbers, so that they meet.
func play(b []byte) []*client.Packet {
	var out []*client.Packet
	for ; len(b) >= 3; b = b[3:] {
		random, id := int64(b[1]%6), int64(b[2]%6)
		text := ""
		if b[1]&0x80 != 0 {
			text = "connection refused"
		}
		switch b[0] % 9 {
		case 0:
			out = append(out, dialRequest(random, "tcp", "a:1"))
		case 1, 2:
			out = append(out, dialResponse(random, id, text))
		case 3:
			out = append(out, closeRequest(id))
		case 4:
			out = append(out, closeResponse(id, text))
		case 5:
			out = append(out, dataPacket(id, make([]byte, int(b[1])*16)))
		case 6:
			out = append(out, dialClose(random))
		case 7:
			out = append(out, drain())
		default:
			out = append(out, &client.Packet{Type: client.PacketType(b[1] % 9)})
		}
	}
	return out
}

// FuzzPeers plays any sequence of packets to each role: whatever a peer says,
// no role panics, hangs or keeps memory.
func FuzzPeers(f *testing.F) {
	f.Add([]byte{1, 1, 1, 5, 9, 1, 4, 0, 1}, true)            // dial, data, close
	f.Add([]byte{1, 1, 1, 1, 2, 1, 5, 9, 1}, false)           // one number twice
	f.Add([]byte{0, 1, 0, 6, 1, 0, 5, 200, 1, 3, 0, 1}, true) // as a frontend or server says it
	f.Add([]byte{0, 1, 0, 5, 9, 1, 3, 0, 1, 3, 0, 1, 8, 4, 0}, true)
	f.Fuzz(func(t *testing.T, b []byte, duplex bool) {
		if len(b) > 300 {
			return
		}
		limits := Limits{connBuffer: 1 << 10, Budget: shares.NewBudget(64 << 10)}.withDefaults()
		fuzzAgentPeer(&script{ctx: t.Context(), packets: play(b)}, duplex, limits)
		fuzzAgentSession(&script{ctx: t.Context(), packets: play(b)}, duplex, AgentConfig{Limits: limits, Metrics: NoMetrics{}, Log: logging.Silent()})
		service := NewProxyService(&tunnel.Forwarder{Dialer: tunnel.DialerFunc(pipeDialer)}, ProxyServiceConfig{Limits: limits})
		_ = service.proxy(&script{ctx: t.Context(), packets: play(b)})
		_ = service.Close()
		testutil.Equal(t, limits.Budget.Used(), 0, "bytes of the budget are lost")
	})
}

func pipeDialer(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, far)
		far.Close()
	}()
	return tunnel.Wrap(near), nil
}

func newTestPeer(s *script, duplex bool, limits Limits) *AgentPeer {
	return newAgentPeer(s, agentHello{id: "a", duplex: duplex}, &AgentServiceConfig{Limits: limits, Metrics: NoMetrics{}, LogOf: quiet})
}

func fuzzAgentPeer(s *script, duplex bool, limits Limits) {
	p := newTestPeer(s, duplex, limits)
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	for i := range 5 { // the numbers 1 to 5, which the script knows
		wg.Go(func() {
			c, err := p.Dial(ctx, tunnel.NewFlow("tcp", "a:1"))
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello"))
			if i%2 == 0 {
				_ = c.CloseWrite()
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		})
	}
	g := newGroup()
	_ = p.serve(s, g)
	cancel()
	wg.Wait()
	_ = g.Close()
}

func fuzzAgentSession(s *script, duplex bool, cfg AgentConfig) {
	cfg.Forwarder = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(pipeDialer)}
	a := newAgentSession(s.ctx, cfg)
	a.duplex = duplex
	a.mux = newMux(s.SendMsg, ToAgent, FromAgent, cfg.Limits, cfg.Metrics, cfg.Log)
	a.run(scriptClient{ClientStream: nil, s: s})
}

// scriptClient is a script as the other kind of stream.
type scriptClient struct {
	grpc.ClientStream
	s *script
}

func (c scriptClient) RecvMsg(m any) error { return c.s.RecvMsg(m) }
