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
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "hop", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true}))(t)
	config := &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, RootCAs: ca.Pool(), ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	target := serve(t, nil, bench.ServeTarget)
	end := serve(t, config, bench.Hop{}.Serve)
	middle := serve(t, config, bench.Hop{Next: end, Config: config}.Serve)
	front := serve(t, nil, bench.Hop{Next: middle, Config: config}.Serve)

	path := bench.Path{Name: "chain", Target: target, Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := net.Dial("tcp", front)
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), bench.AskHop(c, f.Address)
	})}
	testutil.Must(path.Bulk(t.Context(), bench.Up, 2, 1<<20))(t)
	testutil.Must(path.Bulk(t.Context(), bench.Down, 2, 1<<20))(t)
	testutil.Must(path.RoundTrip(t.Context(), 20*time.Millisecond))(t)
}
