package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"konnectivity/agent"
	"konnectivity/agent/egress"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/server"
	"konnectivity/tunnel"
)

// A server with an agent runs beside all tests and examples. Its socket is in their folder,
// with a client's ca.crt, tls.crt and tls.key.
var (
	serverAddress string // of its port for clients
	webAddress    string // of a destination that says hello by HTTP
	rpcAddress    string // of one that speaks gRPC
)

const socketPath = "server.sock"

// world is what runs beside the tests.
type world struct{ m *testing.M }

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(world{m})) }

// Run implements goleak.TestingM.
func (w world) Run() int {
	dir, err := os.MkdirTemp("", "client")
	check(err)
	defer os.RemoveAll(dir)
	home, err := os.Getwd()
	check(err)
	moduleRoot = home + "/.."
	check(os.Chdir(dir))
	defer os.Chdir(home)
	certs := makeCertificates()

	clients, agents, socket := listen(), listen(), must(unixsocket.Listen(socketPath, unixsocket.Options{}))
	s := must(server.New(server.Options{
		ID:      "server",
		Clients: []server.Listener{{Listener: clients, TLS: certs.ServerFor}, {Listener: socket}},
		Agents:  []server.Listener{{Listener: agents, TLS: certs.ServerFor}},
		Grace:   time.Millisecond, ResumeWindow: time.Minute, Log: logging.Silent(), Registry: prometheus.NewRegistry(),
	}))
	a := must(agent.New(agent.Options{
		ID:      "agent",
		Servers: []string{agents.Addr().String()}, TLS: certs.Client, Dialer: noting{egress.New(egress.Options{})}, Grace: -1, ResumeWindow: time.Minute,
	}))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer web.Close()
	rpc, rpcs := listen(), grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(rpcs, health.NewServer())
	defer rpcs.Stop()
	serverAddress, webAddress, rpcAddress = clients.Addr().String(), web.Listener.Addr().String(), rpc.Addr().String()

	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { check(s.Run(ctx)) })
	running.Go(func() { check(a.Run(ctx)) })
	running.Go(func() { check(rpcs.Serve(rpc)) })
	defer running.Wait()
	defer rpcs.Stop()
	defer stop()
	for s.Ready() != nil { // it has no agent yet
		time.Sleep(time.Millisecond)
	}
	return w.m.Run()
}

// dialedID is the id of the connection that the agent has dialed last.
var dialedID atomic.Value

// noting is an agent's Dialer that notes it.
type noting struct{ *egress.Dialer }

func (n noting) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	dialedID.Store(f.ID)
	return n.Dialer.Dial(ctx, f)
}

// makeCertificates writes certificates that serve for all.
func makeCertificates() *tlsreload.Source {
	ca := must(pki.NewCA("client's tests"))
	pair := must(ca.Issue(pki.Leaf{CommonName: "all", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true}))
	check(pki.WriteCert("ca.crt", ca.CertPEM))
	check(pki.WriteCert("tls.crt", pair.CertPEM))
	check(pki.WriteKey("tls.key", pair.KeyPEM))
	return must(tlsreload.New(tlsreload.Files{CA: "ca.crt", Cert: "tls.crt", Key: "tls.key"}, tlsreload.Options{Name: "all"}))
}

func listen() net.Listener { return must(net.Listen("tcp", "127.0.0.1:0")) }

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// body reads an answer to its end.
func body(r *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
