package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// kubeAPIServer is an HTTP client whose connections go by the real
// konnectivity-client over the server's unix socket.
func kubeAPIServer(uds string) *http.Client {
	return &http.Client{Timeout: 3 * patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       overGRPC("unix://"+uds, insecure.NewCredentials()),
	}}
}

// overGRPC dials as kube-apiserver and others do, by a tunnel of the real
// konnectivity-client for each connection.
func overGRPC(server string, creds credentials.TransportCredentials) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// The tunnel's life must not end with the dial's context.
		t, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, context.Background(), server, grpc.WithTransportCredentials(creds))
		if err != nil {
			return nil, err
		}
		return t.DialContext(ctx, network, address)
	}
}

// overUDS goes by CONNECT over the same unix socket.
func overUDS(uds string) *http.Client {
	return &http.Client{Timeout: 3 * patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "unix", uds)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address)
			const ok = "HTTP/1.1 200 Connection Established\r\n\r\n"
			got := make([]byte, len(ok))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != ok {
				c.Close()
				return nil, fmt.Errorf("answer to CONNECT: %q, %v", got, err)
			}
			return c, nil
		},
	}}
}

// gRPC and CONNECT share one unix socket, at once.
func TestOneSocketServesBothOfKubeAPIServersModes(t *testing.T) {
	w := newWhole(t)
	const size = 300_000
	want := sum(4, size)
	var wg sync.WaitGroup
	for name, c := range map[string]*http.Client{"grpc": kubeAPIServer(w.server.UDS), "connect": overUDS(w.server.UDS)} {
		for range 50 {
			wg.Go(func() {
				res, err := c.Get(fmt.Sprintf("%s/4/%d", w.target.plain.URL, size))
				if err != nil {
					t.Error(name, err)
					return
				}
				defer res.Body.Close()
				if got, err := hashOf(res.Body); err != nil || got != want {
					t.Errorf("%s: body differs, %v", name, err)
				}
			})
		}
	}
	wg.Wait()
}
