package server

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// linkTo connects to a listener in memory by the native protocol.
func linkTo(t *testing.T, l *bufconn.Listener, config *tls.Config, cfg link.Config) *link.Session {
	t.Helper()
	c := testutil.Must(l.Dial())(t)
	return testutil.Must(link.Connect(t.Context(), tls.Client(c, config), cfg))(t)
}

// inMemory runs a server without sockets, in fake time, until stop; left gets what Run
// returned. config is for peers by links, whose certificate is of the CA.
func inMemory(t *testing.T, set func(*Options, *pki.CA)) (near, far *bufconn.Listener, config *tls.Config, stop context.CancelFunc, left chan error) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"localhost"}, Server: true, Client: true}))(t)
	secure := func(protos ...string) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protos}
	}
	near, far = bufconn.Listen(64<<10), bufconn.Listen(64<<10)
	opts := Options{
		ID: "s", Clients: []Listener{{Listener: near, TLS: secure}}, Agents: []Listener{{Listener: far, TLS: secure}},
		ResumeWindow: 30 * time.Second, Grace: time.Hour, Log: quietLog(), Registry: prometheus.NewRegistry(),
	}
	set(&opts, ca)
	s := testutil.Must(New(opts))(t)
	ctx, stop := context.WithCancel(t.Context())
	left = make(chan error, 1)
	go func() { left <- s.Run(ctx) }()
	return near, far, secureFor("localhost", pair.TLS(), link.ALPN), stop, left
}

// A server that is told to go has left a moment after its last connection has ended,
// and at once where there is none, though sidecars and agents keep their links.
func TestAServerLeavesBehindItsLastConnection(t *testing.T) {
	const bound = 200 * time.Millisecond // of which listeners stay open for 100 ms
	for name, open := range map[string]bool{"with a connection": true, "idle": false} {
		testutil.Bubble(t, name, func(t *testing.T) {
			near, far, config, stop, left := inMemory(t, func(o *Options, _ *pki.CA) { o.NoGRPC, o.AgentsNeedLink = true, true })
			serves := func(context.Context, string) (tunnel.Conn, error) {
				c, d := net.Pipe()
				t.Cleanup(func() { d.Close() })
				return tunnel.Wrap(c), nil
			}
			agent := linkTo(t, far, config, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "a"}, Forwarder: forwarder(serves)})
			defer agent.Close()
			side := linkTo(t, near, config, link.Config{Hello: link.Hello{Role: link.RoleClient, ID: "sidecar"}})
			defer side.Close()
			synctest.Wait()
			told := time.Now()
			if open {
				c := testutil.Must(side.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
				stop()
				time.Sleep(time.Minute)
				if len(left) > 0 {
					t.Error("it did not wait for what was open")
				}
				told = time.Now()
				_ = c.Reset(nil)
			}
			stop()
			testutil.NoError(t, <-left)
			if took := time.Since(told); took > bound {
				t.Errorf("it took %v to leave", took)
			} else {
				t.Logf("it took %v to leave", took)
			}
		})
	}
}

// Whoever was accepted just before a server is told to go is served, also by gRPC, which
// takes no more connections once it stops.
func TestADrainTakesThoseInTheirHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far, config, stop, left := inMemory(t, func(*Options, *pki.CA) {})
		drainBesideAHandshake(t, near, far, config, stop, left)
	})
}

// It is so at a tenant's own port, too.
func TestADrainTakesThoseInTheirHandshakesAtATenantsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, source := bufconn.Listen(64<<10), listenerFiles(t)
		_, far, config, stop, left := inMemory(t, func(o *Options, ca *pki.CA) {
			o.Clients[0].TLSFor, o.Agents[0].TLSFor = source.ServerFor, source.ServerFor
			o.TenantTokens = func(*tenant.Tokens) *auth.TokensConfig { return nil }
			o.TenantListener = func(tenant.Address) (Listener, error) {
				return Listener{Listener: own, TLS: o.Clients[0].TLS, TLSFor: o.Clients[0].TLSFor}, nil
			}
			folder := t.TempDir()
			writeTenant(t, folder, "red", "serverNames: [localhost]\nlisten: {clientPort: 8443}\n", ca)
			o.Tenants = testutil.Must(tenant.Open(folder, o.Log))(t)
		})
		drainBesideAHandshake(t, own, far, config, stop, left)
	})
}

// drainBesideAHandshake has the server go while a client that it has accepted from near
// is still to say hello.
func drainBesideAHandshake(t *testing.T, near, far *bufconn.Listener, config *tls.Config, stop context.CancelFunc, left <-chan error) {
	agent := linkTo(t, far, config, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "a"}, Forwarder: forwarder(func(context.Context, string) (tunnel.Conn, error) {
		c, d := net.Pipe()
		go func() {
			defer d.Close()
			_, _ = io.Copy(d, d)
		}()
		return tunnel.Wrap(c), nil
	})})
	defer agent.Close()
	raw := testutil.Must(near.Dial())(t)
	synctest.Wait()
	stop()
	time.Sleep(time.Second)
	config.NextProtos = nil // gRPC has its own
	dialer := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return raw, nil })
	tun, err := client.CreateSingleUseGrpcTunnelWithContext(t.Context(), t.Context(), "passthrough:///localhost", dialer, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Error(err)
		<-left
		return
	}
	c := testutil.Must(tun.DialContext(t.Context(), "tcp", "x:1"))(t)
	got := make([]byte, 5)
	testutil.Must(c.Write([]byte("hello")))(t)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("%q came back, %v", got, err)
	}
	_ = c.Close()
	<-tun.Done()
	testutil.NoError(t, <-left)
}
