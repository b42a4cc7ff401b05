//go:build !windows

package via

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// slow is a server that connects to anything, and takes a moment to answer the end.
type slow struct {
	client.UnimplementedProxyServiceServer
	answered atomic.Bool
}

func (s *slow) Proxy(stream client.ProxyService_ProxyServer) error {
	for {
		p, err := stream.Recv()
		if err != nil {
			return err
		}
		switch p.Type {
		case client.PacketType_DIAL_REQ:
			answer := &client.DialResponse{Random: p.GetDialRequest().Random, ConnectID: 1}
			err = stream.Send(&client.Packet{Type: client.PacketType_DIAL_RSP, Payload: &client.Packet_DialResponse{DialResponse: answer}})
		case client.PacketType_CLOSE_REQ:
			time.Sleep(100 * time.Millisecond)
			s.answered.Store(true)
			err = stream.Send(&client.Packet{Type: client.PacketType_CLOSE_RSP, Payload: &client.Packet_CloseResponse{CloseResponse: &client.CloseResponse{ConnectID: 1}}})
		}
		if err != nil {
			return err
		}
	}
}

// The end of a connection waits for the server's answer: an earlier end of the stream would drop
// bytes that are under way.
func TestClosingByGRPCWaitsForTheServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l := testutil.Must(net.Listen("unix", socket))(t)
	server, slow := grpc.NewServer(), new(slow)
	client.RegisterProxyServiceServer(server, slow)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	c := testutil.Must(grpcSocket(socket).Dial(t.Context(), tunnel.NewFlow("tcp", "a.example:1")))(t)
	testutil.NoError(t, c.Close())
	testutil.Holds(t, slow.answered.Load(), "the connection ended before the server had answered")
}
