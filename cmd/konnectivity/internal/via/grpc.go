package via

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"konnectivity/tunnel"
)

// grpcLife bounds the life of a tunnel of kube-apiserver's client, which ends with its
// context.
const grpcLife = 24 * time.Hour

// grpcSocket dials with kube-apiserver's own client: one gRPC stream over a unix socket
// for each connection.
func grpcSocket(socket string) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		life, end := context.WithTimeout(context.WithoutCancel(ctx), grpcLife)
		t, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, life, "unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			end()
			if unreached := reach(ctx, socket); unreached != nil {
				return nil, unreached // gRPC's error is a text, and a long one
			}
			return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: f.Address, Reason: "the server cannot be reached at " + socket, Err: err}
		}
		c, err := t.DialContext(ctx, f.Network, f.Address)
		if err != nil {
			end()
			<-t.Done()
			if ctx.Err() != nil {
				return nil, tunnel.AsDialError(f.Address, ctx.Err())
			}
			return nil, &tunnel.DialError{Failure: tunnel.GuessFailure(err.Error()), Address: f.Address, Err: err}
		}
		return tunnel.Wrap(grpcConn{c, end, t.Done()}), nil
	})
}

// reach is the error of a connection to a unix socket.
func reach(ctx context.Context, socket string) error {
	c, err := dialNetwork(ctx, "unix", socket)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// grpcConn is a connection of the packet protocol, which has no half-close: CloseWrite
// does nothing, and the far end must end by itself.
type grpcConn struct {
	net.Conn
	end  context.CancelFunc
	over <-chan struct{}
}

func (grpcConn) CloseWrite() error { return nil }

func (c grpcConn) Reset(error) error { return c.Close() }

// Close waits until the server has answered, so that nothing sent before is lost, for as long as
// the client does (client.CloseTimeout).
func (c grpcConn) Close() error {
	err := c.Conn.Close()
	<-c.over
	c.end()
	return err
}
