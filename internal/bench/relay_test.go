package bench_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"konnectivity/internal/bench"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestRelayChain(t *testing.T) {
	ca := testutil.Must(pki.NewCA("bench"))(t)
	pair, err := ca.Issue(pki.Leaf{CommonName: "hop", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true})
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, RootCAs: ca.Pool(), ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	ctx, cancel := context.WithCancel(context.Background())
	run := func(wrap bool, serve func(context.Context, net.Listener) error) string {
		l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		address := l.Addr().String()
		if wrap {
			l = tls.NewListener(l, config)
		}
		done := make(chan error, 1)
		go func() { done <- serve(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return address
	}
	target := run(false, bench.ServeTarget)
	end := run(true, bench.Hop{}.Serve)
	middle := run(true, bench.NewHop(end, config).Serve)
	front := run(false, bench.NewHop(middle, config).Serve)

	path := bench.Path{Name: "chain", Target: target, Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := net.Dial("tcp", front)
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), bench.AskHop(c, f.Address)
	})}
	if _, err := path.Bulk(t.Context(), bench.Up, 2, 1<<20); err != nil {
		t.Error(err)
	}
	if _, err := path.Bulk(t.Context(), bench.Down, 2, 1<<20); err != nil {
		t.Error(err)
	}
	if _, err := path.RoundTrip(t.Context(), 20*time.Millisecond); err != nil {
		t.Error(err)
	}
}
