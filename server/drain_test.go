package server

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// TestDrain: connections go on, new ones do not come, everybody is told, and
// the end comes with the last connection.
func TestDrain(t *testing.T) {
	testutil.EachOf(t, clientKinds, func(t *testing.T, kind string) {
		t.Parallel()
		r := startServer(t, func(o *Options) { o.Grace = time.Minute })
		a := r.agent("grpc", agentHello{id: "a"}, echoing)
		b := r.agent("link", agentHello{id: "b"}, echoing)
		side := testutil.Must(r.clientLink())(t)
		c := r.mustDial(kind, "x:1")
		r.roundTrip(c, 1000)
		r.stop()
		for i, who := range []interface {
			Drains() *tunnel.Event
			Done() <-chan struct{}
		}{a, b, side} {
			select {
			case <-who.Drains().Done():
			case <-who.Done():
				testutil.Requires(t, i >= 2, // an idle sidecar's link may end at once
					"an agent was cut off")
			case <-time.After(20 * time.Second):
				t.Fatal("not told: ", []string{"agent by gRPC", "agent by link", "sidecar"}[i])
			}
		}
		r.silent("tcp", r.tcp)
		code, body := r.get(r.health, "/readyz")
		testutil.Holds(t, code == 500 && strings.Contains(body, "shutting down"), "readyz: %d %s", code, body)
		r.hasMetrics("draining 1")
		r.roundTrip(c, 100<<10)
		err := r.wait(100 * time.Millisecond)
		testutil.Requires(t, err != nil, "the server went while a connection was open")
		c.Close()
		r.ended()
		for _, agent := range []agent{a, b} {
			r.ends("the end of an agent's connection, with the server", agent.Done())
		}
	})
}

// What a client by gRPC wrote before it closed still goes its way: its connection has
// ended, and a slow destination has yet to read.
func TestDrainWaitsForWhatClosedClientsWrote(t *testing.T) {
	const size = 64 << 10
	r := startServer(t, func(o *Options) { o.Grace = time.Minute })
	far := make(chan net.Conn, 1)
	r.agent("link", agentHello{id: "a"}, func(context.Context, string) (tunnel.Conn, error) {
		near, f := net.Pipe()
		far <- f
		return tunnel.Wrap(near), nil
	})
	c := r.mustDial("grpc-tls", "x:1")
	end := <-far
	defer end.Close()
	testutil.Must(c.Write(make([]byte, size)))(t)
	testutil.NoError(t, c.Close())
	r.eventually("the client has gone", func() bool { return r.metric(`listener_connections{listener="clients"} 0`) })
	r.stop()
	r.silent("tcp", r.tcp)
	testutil.Fails(t, r.wait(100*time.Millisecond), "the server went before all was delivered")
	_ = end.SetReadDeadline(time.Now().Add(20 * time.Second))
	testutil.Equal(t, testutil.Must(io.Copy(io.Discard, end))(t), size, "bytes came")
	end.Close()
	r.ended()
}

func TestGraceEnds(t *testing.T) {
	for name, grace := range map[string]time.Duration{"over": 200 * time.Millisecond, "none": -1} {
		for _, kind := range clientKinds {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				r := startServer(t, func(o *Options) { o.Grace = grace })
				far := make(chan tunnel.Conn, 1)
				r.agent("link", agentHello{id: "b"}, func(ctx context.Context, _ string) (tunnel.Conn, error) {
					near, f := tcpPair()
					far <- f
					return near, nil
				})
				c := r.mustDial(kind, "x:1")
				end := <-far
				defer end.Close()
				r.stopped()
				_ = end.SetReadDeadline(time.Now().Add(20 * time.Second))
				testutil.ErrorIs(t, testutil.Err(end.Read(make([]byte, 1))), syscall.ECONNRESET,
					"the destination reads, want a reset")
				testutil.Fails(t, testutil.Err(c.Read(make([]byte, 1))), "the client reads on")
			})
		}
	}
}

// TestPendingDialIsCancelledByTheEnd: a dial that nobody answers does not hold
// a shutdown without grace.
func TestPendingDialIsCancelledByTheEnd(t *testing.T) {
	t.Parallel() // it waits
	for _, kind := range clientKinds {
		r := startServer(t, func(o *Options) { o.Grace = -1; o.DialTimeout = time.Hour })
		asked := make(chan struct{})
		r.agent("link", agentHello{id: "b"}, func(ctx context.Context, _ string) (tunnel.Conn, error) {
			close(asked)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		failed := testutil.Later(func() error { return testutil.Err(r.dial(kind, "x:1")) })
		<-asked
		r.stop()
		err := r.wait(20 * time.Second)
		testutil.Requires(t, err == nil, "%v %v", kind, err)
		testutil.Fails(t, <-failed, "a dial by %s", kind)
	}
}

// A pod is killed 30 s after it was asked to end, unless its manifest says
// otherwise. The longest drain and the steps after it take less.
func TestDefaultDrainFitsAPod(t *testing.T) {
	testutil.AtMost(t, DefaultGrace, 25*time.Second, "it lasts")
}

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
	secure := func(_ tlsreload.Choose, protos ...string) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protos}
	}
	near, far = bufconn.Listen(64<<10), bufconn.Listen(64<<10)
	opts := Options{
		ID: "s", Clients: []Listener{{Listener: near, TLS: secure}}, Agents: []Listener{{Listener: far, TLS: secure}},
		ResumeWindow: 30 * time.Second, Grace: time.Hour, Log: logging.Silent(), Registry: prometheus.NewRegistry(),
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
	testutil.EachInBubble(t, map[string]bool{"with a connection": true, "idle": false}, func(t *testing.T, open bool) {
		near, far, config, stop, left := inMemory(t, func(o *Options, _ *pki.CA) { o.NoGRPC, o.AgentsNeedLink = true, true })
		serves := func(context.Context, string) (tunnel.Conn, error) {
			c, d := net.Pipe()
			t.Cleanup(func() { d.Close() })
			return tunnel.Wrap(c), nil
		}
		agent := linkTo(t, far, config, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "a"}, Handler: forwarder(serves)})
		defer agent.Close()
		side := linkTo(t, near, config, link.Config{Hello: link.Hello{Role: link.RoleClient, ID: "sidecar"}})
		defer side.Close()
		synctest.Wait()
		told := time.Now()
		if open {
			c := testutil.Must(side.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
			stop()
			time.Sleep(time.Minute)
			testutil.Equal(t, len(left), 0, "it left while a connection was open")
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
			o.Clients[0].TLS, o.Agents[0].TLS = source.ServerFor, source.ServerFor
			o.TenantTokens = func(*tenant.Tokens) *auth.TokensConfig { return nil }
			o.TenantListener = func(tenant.Address) (Listener, error) {
				return Listener{Listener: own, TLS: o.Clients[0].TLS}, nil
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
	agent := linkTo(t, far, config, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "a"}, Handler: forwarder(func(context.Context, string) (tunnel.Conn, error) {
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
	_, err = io.ReadFull(c, got)
	testutil.Holds(t, err == nil && string(got) == "hello", "%q came back, %v", got, err)
	_ = c.Close()
	<-tun.Done()
	testutil.NoError(t, <-left)
}
