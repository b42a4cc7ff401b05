package page

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// scene is a process as the page sees it, without the process: a table with
// connections that are only figures.
type scene struct {
	t       *testing.T
	table   *admin.Table
	source  admin.Source
	address string
	path    string // that look opens; "": /
	stop    func() // stops serving; serve starts again

	mu    sync.Mutex
	flows []flow
}

// flow is a connection that carries so much a second; a stalled one nothing.
type flow struct {
	*tunnel.Flow
	up, down int
}

// newScene serves until the test ends. change may alter what the process says
// of itself.
func newScene(t *testing.T, change func(*admin.Source)) *scene {
	t.Helper()
	s := &scene{t: t, table: admin.NewTable(), address: testutil.ReservedAddress(t)}
	s.source = admin.Source{Component: "konnectivity-server", ID: "server-1", Table: s.table, More: func(*admin.Status) {}}
	if change != nil {
		change(&s.source)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.table.Run(ctx) })
	running.Go(func() { s.flow(ctx) })
	s.serve()
	t.Cleanup(func() { s.stop(); cancel(); running.Wait() })
	return s
}

func (s *scene) url() string { return "http://" + s.address }

// serve starts to answer, at the same address each time.
func (s *scene) serve() {
	s.t.Helper()
	l := must(net.Listen("tcp", s.address))(s.t)
	server := &http.Server{Handler: admin.Handler(http.NewServeMux(), s.source), ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	s.stop = sync.OnceFunc(func() { _ = server.Close(); <-done })
}

// connect adds a connection with rates in bytes a second.
func (s *scene) connect(f *tunnel.Flow, up, down int) *tunnel.Flow {
	f.Opened = time.Now()
	s.table.Opened(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows = append(s.flows, flow{f, up, down})
	return f
}

// flow moves what all connections carry.
func (s *scene) flow(ctx context.Context) {
	const every = 200 * time.Millisecond
	wait.Every(ctx, every, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range s.flows {
			if f.up > 0 {
				f.Carry(true, f.up/int(time.Second/every))
			}
			if f.down > 0 {
				f.Carry(false, f.down/int(time.Second/every))
			}
		}
	})
}

func agentHop(id string) tunnel.Hop { return tunnel.Hop{Role: "agent", ID: id} }

func addr(text string) net.Addr { return tunnel.Addr{Net: "tcp", Text: text} }

// crowd adds n idle connections.
func (s *scene) crowd(n int) {
	for i := range n {
		s.connect(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprintf("id-%05d", i), Front: "link", Address: fmt.Sprintf("host-%d.prod.svc:443", i%500), Source: addr(fmt.Sprintf("10.128.%d.%d:50412", i%7, i%200))}, Result: tunnel.Result{Hop: agentHop(fmt.Sprintf("node-%d", i%1000))}}, 0, 0)
	}
}

// lively is a server in the middle of its day.
func lively(t *testing.T) *scene {
	s := newScene(t, func(o *admin.Source) {
		since := admin.Past{Time: time.Now().Add(-49 * time.Hour)}
		o.Peers = func() []admin.Peer {
			peers := []admin.Peer{
				{Role: admin.RoleClient, ID: "3f2a", Software: "konnectivity-socks5-proxy/v1.4.0", Protocol: "link", Remote: "10.128.0.31:50412", Since: since, Streams: 12, RoundTrip: 0.00042, Window: 4 << 20},
				{Role: admin.RoleClient, ID: "9b1c", Software: "konnectivity-https-proxy/v1.4.0", Protocol: "link", Remote: "10.128.0.32:41180", Since: since, Streams: 5, RoundTrip: 0.00051, Window: 1 << 20},
			}
			for i, ms := range []float64{31, 34, 29, 88} {
				p := admin.Peer{Role: admin.RoleAgent, ID: fmt.Sprintf("node-%d.eu-west.example", i+1), Software: "konnectivity-agent/v1.4.0", Protocol: "link",
					Remote: fmt.Sprintf("203.0.113.%d:61822", i+7), Since: since, Streams: 4 + i, RoundTrip: ms / 1000, Window: 8 << 20}
				if i == 3 {
					p.Software, p.Protocol, p.RoundTrip, p.Window = "", "grpc", 0, 0
				}
				peers = append(peers, p)
			}
			return peers
		}
		o.More = func(s *admin.Status) {
			s.ServerCount, s.Strategies, s.Peers = 1, map[string]int{"default": 4}, map[string]int{admin.RoleAgent: 4, admin.RoleClient: 2}
		}
	})
	agents := []tunnel.Hop{agentHop("node-1.eu-west.example"), agentHop("node-2.eu-west.example"), agentHop("node-3.eu-west.example"), agentHop("node-4.eu-west.example")}
	hosts := []string{"db.prod.svc:5432", "registry.internal:443", "172.30.14.7:10250", "metrics.monitoring.svc:9090", "172.30.14.9:10250", "webhook.cert-manager.svc:443"}
	for i := range 12 {
		s.connect(&tunnel.Flow{Request: tunnel.Request{ID: tunnel.NewID(), Front: "link", Source: addr("10.128.0.31:50412"), Address: hosts[i%6]}, Result: tunnel.Result{Hop: agents[i%3]}}, 900+i*i*731, 4000+i*i*i*977)
	}
	for i := range 5 {
		s.connect(&tunnel.Flow{Request: tunnel.Request{ID: tunnel.NewID(), Front: "link", Source: addr("10.128.0.32:41180"), Address: hosts[(i+3)%6]}, Result: tunnel.Result{Hop: agents[(i+1)%4]}}, 0, 0)
	}
	for i := range 4 {
		s.connect(&tunnel.Flow{Request: tunnel.Request{ID: tunnel.NewID(), Front: "grpc", Source: &net.UnixAddr{Net: "unix"}, Address: hosts[2+i%2*2]}, Result: tunnel.Result{Hop: agents[i]}}, 310, 54000+i*4111)
	}
	s.connect(&tunnel.Flow{Request: tunnel.Request{ID: tunnel.NewID(), Front: "connect", Source: addr("10.128.0.77:39912"), Address: hosts[3]}, Result: tunnel.Result{Hop: agents[0]}}, 120, 990)
	stuck := s.connect(&tunnel.Flow{Request: tunnel.Request{ID: "0af7651916cd43dd8448eb211c80319c", Front: "link", Source: addr("10.128.0.31:50412"), Address: "backup.prod.svc:9000"}, Result: tunnel.Result{Hop: agents[1]}}, 0, 0)
	stuck.Carry(false, 8<<20)
	stuck.Hold(false, true)
	for _, failure := range []tunnel.Failure{tunnel.FailTimeout, tunnel.FailRefused, tunnel.FailNoSuchHost} {
		s.table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: tunnel.NewID(), Front: "link", Source: addr("10.128.0.31:50412"), Address: hosts[failure%6]}, Result: tunnel.Result{Hop: agents[failure%3]}},
			3*time.Second, &tunnel.DialError{Failure: failure})
	}
	for i := range 40 {
		s.table.Dialed(&tunnel.Flow{}, time.Duration(20+i)*time.Millisecond, nil)
	}
	return s
}
