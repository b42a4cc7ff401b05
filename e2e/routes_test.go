package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// scaled is the number for this run: with KONNECTIVITY_E2E=full the whole one,
// which takes long.
func scaled[T any](ci, whole T) T {
	if os.Getenv("KONNECTIVITY_E2E") == "full" {
		return whole
	}
	return ci
}

// route is a way through the suite as a dialer, so that a test can end a
// connection as it likes. A Dial whose ctx ends hangs up at once.
type route struct {
	name string
	tunnel.Dialer
}

// routes are all fronts that carry raw connections.
func (w *whole) routes(t testing.TB) []route {
	return []route{
		{"socks5", viaSOCKS5(w.socks.Address())},
		{"https", viaConnect("tcp", w.https.Address(), nil)},
		{"mtls", viaConnect("tcp", suite.Loopback(w.server.ClientPort), w.clientTLS(t))},
		{"uds", viaConnect("unix", w.server.UDS, nil)},
	}
}

// clientTLS is what kube-apiserver would be configured with.
func (w *whole) clientTLS(t testing.TB) *tls.Config {
	t.Helper()
	pair := must(tls.LoadX509KeyPair(w.PKI("client.crt"), w.PKI("client.key")))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(w.PKI("ca.crt")))(t))
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}}
}

func viaSOCKS5(front string) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		return open(ctx, "tcp", front, func(c net.Conn) (tunnel.Conn, error) {
			client, err := proxy.SOCKS5("tcp", front, nil, proxy.Direct)
			if err != nil {
				return nil, err
			}
			// Only this way keeps the raw connection.
			_, err = client.(interface {
				DialWithConn(context.Context, net.Conn, string, string) (net.Addr, error)
			}).DialWithConn(context.Background(), c, f.Network, f.Address)
			return tunnel.Wrap(c), err
		})
	})
}

// viaConnect goes by CONNECT, inside TLS if config is given.
func viaConnect(network, front string, config *tls.Config) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		return open(ctx, network, front, func(c net.Conn) (tunnel.Conn, error) {
			if config != nil {
				c = tls.Client(c, config)
			}
			return tunnel.Wrap(c), connect(c, f.Address)
		})
	})
}

// viaGRPC is kube-apiserver's gRPC mode by the real client: a tunnel for each connection.
func viaGRPC(uds string) tunnel.Dialer {
	return overGRPC("unix://"+uds, insecure.NewCredentials())
}

func overGRPC(server string, creds credentials.TransportCredentials) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		life, end := context.WithCancel(context.Background()) // which must not end with the dial's context
		t, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, life, server, grpc.WithTransportCredentials(creds))
		if err != nil {
			end()
			return nil, err
		}
		c, err := t.DialContext(ctx, f.Network, f.Address)
		if err != nil {
			end()
			return nil, err
		}
		return tunnel.With(tunnel.Wrap(c), tunnel.Parts{Ended: func() {
			<-t.Done() // Close does not wait for what was written before it
			end()
		}}), nil
	})
}

// open dials the front and runs a handshake that ends, with the connection,
// when ctx does.
func open(ctx context.Context, network, front string, handshake func(net.Conn) (tunnel.Conn, error)) (tunnel.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, front)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	c, err := handshake(raw)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

// statusError is an answer to CONNECT other than 200.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// connect reads no byte beyond the answer, so what follows is the tunnel's. Headers end with CRLF.
func connect(c net.Conn, address string, headers ...string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n%s\r\n", address, strings.Join(headers, "")); err != nil {
		return err
	}
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); {
		if _, err := io.ReadFull(c, b); err != nil {
			return fmt.Errorf("answer to CONNECT: %q, %w", head, err)
		}
		head = append(head, b...)
	}
	if strings.HasPrefix(string(head), "HTTP/1.1 200 ") {
		return nil
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(string(head)), c)), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return &statusError{res.StatusCode, string(body)}
}

// within is a context for things that take moments on an idle machine.
func within(t testing.TB, bound time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// eventually asks until the answer is yes, or fails with what was last seen.
func eventually(t testing.TB, bound time.Duration, what string, ask func() (ok bool, seen any)) {
	t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(50 * time.Millisecond) {
		ok, seen := ask()
		if ok {
			return
		}
		testutil.Requires(t, !time.Now().After(end), "%s: still %v after %v", what, seen, bound)
	}
}
