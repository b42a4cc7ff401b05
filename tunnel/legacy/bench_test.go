package legacy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/resources"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// BenchmarkCodec is DATA beside google.golang.org/protobuf, which gRPC uses.
func BenchmarkCodec(b *testing.B) {
	for _, size := range []int{64, 32 << 10} {
		payload, frames, c := pattern(size), received(b, size), newCodec()
		into := &packet{}
		for _, s := range []struct {
			name string
			once func()
		}{
			{"dir=send/by=codec", func() {
				bufs, _ := c.Marshal(&dataMessage{id: 7, chunk: tunnel.NewChunk(size)})
				bufs.Free()
			}},
			{"dir=send/by=protobuf", func() {
				bufs, _ := c.Marshal(dataPacket(7, payload))
				bufs.Free()
			}},
			{"dir=receive/by=codec", func() { decode(b, c, frames, into) }},
			{"dir=receive/by=protobuf", func() {
				buf := frames.MaterializeToBuffer(mem.DefaultBufferPool())
				_ = proto.Unmarshal(buf.ReadOnlyData(), &client.Packet{})
				buf.Free()
			}},
		} {
			b.Run(fmt.Sprintf("payload=%d/", size)+s.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.once()
				}
			})
		}
	}
}

// selfSigned is a TLS configuration for both ends.
func selfSigned() *tls.Config {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	conf := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	conf.Certificates, conf.ServerName, conf.DynamicRecordSizingDisabled = server.TLS.Certificates, "example.com", true
	return conf
}

// tlsPair is an agent connected over loopback TCP and TLS.
func tlsPair(t testing.TB, dialer tunnel.Dialer) *AgentPeer {
	conf := selfSigned()
	peers := make(chan *AgentPeer, 1)
	service := NewAgentService(AgentServiceConfig{ServerID: "s", ServerCount: func() int { return 1 }, Accept: func(_ context.Context, p *AgentPeer) (func(), error) {
		peers <- p
		return nil, nil
	}})
	server := grpc.NewServer(ServerCodec(), grpc.Creds(credentials.NewTLS(conf)))
	service.Register(server)
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() { _ = server.Serve(l) }()
	cc := testutil.Must(grpc.NewClient("passthrough:"+l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(conf))))(t)
	s := testutil.Must(ConnectAgent(context.Background(), cc, AgentConfig{ID: "a", Forwarder: &tunnel.Forwarder{Dialer: dialer}}))(t)
	t.Cleanup(func() {
		s.Close()
		cc.Close()
		service.Close()
		server.Stop()
	})
	return <-peers
}

func TestTLSStateIsKnown(t *testing.T) {
	p := tlsPair(t, tunnel.DialerFunc(dialTCP))
	if p.TLS() == nil || !p.TLS().HandshakeComplete {
		t.Errorf("TLS state %v", p.TLS())
	}
}

// BenchmarkOneConnection moves data over one connection of one agent, TLS on
// loopback, both ends, the target and its client in this process.
func BenchmarkOneConnection(b *testing.B) {
	const piece = 64 << 10
	run := func(b *testing.B, move func(c tunnel.Conn, n int64) error, serve func(c *net.TCPConn)) {
		p := tlsPair(b, tunnel.DialerFunc(dialTCP))
		c := dial(b, p, testutil.Serve(b, serve))
		_ = c.SetDeadline(time.Time{})
		b.SetBytes(piece)
		b.ReportAllocs()
		b.ResetTimer()
		cpu := resources.CPUTime().Seconds()
		testutil.NoError(b, move(c, int64(b.N)*piece))
		b.ReportMetric((resources.CPUTime().Seconds()-cpu)/(float64(b.N)*piece/(1<<30)), "CPU-s/GB")
	}
	b.Run("down", func(b *testing.B) {
		run(b, func(c tunnel.Conn, n int64) error {
			chunks := make([]tunnel.Chunk, 8)
			for n > 0 {
				k, err := c.In().ReadChunks(chunks)
				if err != nil {
					return err
				}
				for _, chunk := range chunks[:k] {
					n -= int64(chunk.Len())
				}
				tunnel.ReleaseAll(chunks[:k])
			}
			return nil
		}, func(c *net.TCPConn) { _ = flood(c) })
	})
	b.Run("up", func(b *testing.B) {
		arrived := make(chan int64, 1)
		want := make(chan int64, 1)
		run(b, func(c tunnel.Conn, n int64) error {
			want <- n
			for left := n; left > 0; left -= piece {
				if err := c.Out().WriteChunks([]tunnel.Chunk{tunnel.NewChunk(piece / 2), tunnel.NewChunk(piece / 2)}); err != nil {
					return err
				}
			}
			<-arrived
			return nil
		}, func(c *net.TCPConn) {
			n, _ := io.CopyN(io.Discard, c, <-want)
			arrived <- n
		})
	})
}

func BenchmarkDial(b *testing.B) {
	p := tlsPair(b, tunnel.DialerFunc(dialTCP))
	addr := testutil.Echo(b)
	for b.Loop() {
		c := testutil.Must(p.Dial(context.Background(), tunnel.NewFlow("tcp", addr)))(b)
		_ = c.Reset(nil)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	p := tlsPair(b, tunnel.DialerFunc(dialTCP))
	c := dial(b, p, testutil.Echo(b))
	_ = c.SetDeadline(time.Time{})
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		testutil.NoError(b, testutil.Err(c.Write(buf)))
		testutil.NoError(b, testutil.Err(io.ReadFull(c, buf)))
	}
}
