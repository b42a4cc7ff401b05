package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/wait"
	"konnectivity/server/frontend"
	"konnectivity/server/reach"
	"konnectivity/server/registry"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// maxPeerConns is how many connections other servers may have: they are few.
const maxPeerConns = 256

const (
	// leaveTime is how long a server that drains stays linked to the others for agents
	// that do not leave it, and for connections that outlive it. Those of an agent that
	// knows no other server cannot go on before this one is back: the sooner it goes, the
	// sooner they do. It looks every leaveLook.
	leaveTime = 3 * time.Second
	leaveLook = 25 * time.Millisecond
)

// leaveMoves are the looks at which it asks for connections to be moved: by then, agents
// may be linked to other servers as well. One that is not would be moved in vain.
var leaveMoves = []int{20, 60, 140}

// frontServer is the front of requests that another server has forwarded.
const frontServer = "server"

// Peering is how servers forward to one another (docs/link-protocol.md §11). What its
// Listener accepts and what TLS dials must have proved that it is a server.
type Peering struct {
	Listener   Listener
	Addresses  []string // HOST:PORT of the others; a name may have several addresses
	ByLeases   bool     // the others are found by the addresses in their leases, too; needs ServerName and Options.Leases
	ServerName string   // that the others' certificates must have; "": the host of the address
	TLS        func(serverName string, nextProtos ...string) *tls.Config
}

// peering is the other servers. A nil one has none.
type peering struct {
	*reach.Servers
	known   *registry.Peers
	front   *frontend.Frontend
	clients link.Clients
}

// maxTold is how many routes and identifiers the agents of all clusters may have. An eighth
// of MaxRoutes is for the clusters themselves: up to four routes each.
const maxTold = routes.MaxRoutes / 8 * 7

// toldRoutes is maxTold where there are several clusters, or 0: the others end the link to a
// server that tells of more than MaxRoutes, so that one cluster's agents would take it from
// all.
func toldRoutes(o *Options) int64 {
	if o.Peering == nil || o.Tenants == nil {
		return 0
	}
	return maxTold
}

func (s *Server) buildPeering() (err error) {
	o := s.opts.Peering
	if o == nil {
		return nil
	}
	p := &peering{known: registry.NewPeers(s.metrics.peerDialed), clients: link.Clients{Of: s.budgetOf}}
	var found func(context.Context) ([]netip.AddrPort, error)
	if o.ByLeases {
		found = s.leases.Peers
	}
	p.Servers, err = reach.New(reach.Options{
		ID: s.opts.ID, Addresses: o.Addresses, Found: found, ServerName: o.ServerName, TLS: o.TLS, Link: s.peerLink,
		Admitted: s.admitServer,
		Known:    p.known, TellAll: s.tellRoutes, Changed: s.routesChanged, Fault: s.metrics.peerFault, Linked: s.linkedToPeer, Log: s.opts.Log,
	})
	if err != nil {
		return err
	}
	p.front, err = frontend.New(frontend.Config{
		Name: "servers", TLS: o.Listener.by(nil), MaxConns: maxPeerConns, PreAuth: s.preAuth, Metrics: s.metrics, Log: s.opts.Log,
		LinkALPN: link.ALPN, Link: s.servePeer, Prepare: link.Buffered,
	})
	s.peering = p
	return err
}

// share has a cluster forward, and tell other servers of its agents.
func (cl *cluster) share() {
	if p := cl.server.peering; p != nil {
		for name, of := range cl.registries() {
			of.Share(p.known, name, func(k routes.Key, there bool) { p.Tell(name, k, there) })
		}
	}
}

// besideSuffix follows a cluster's name where other servers are told of its agents beside
// the API server.
const besideSuffix = "/api"

// registries are a cluster's, by the name under which other servers are told of them.
func (cl *cluster) registries() map[string]*registry.Registry {
	return map[string]*registry.Registry{cl.name: cl.agents, cl.name + besideSuffix: cl.beside.Registry}
}

// tellAll tells of all of a cluster's agents.
func (cl *cluster) tellAll(tell func(cluster string, k routes.Key)) {
	for name, of := range cl.registries() {
		of.TellAll(func(k routes.Key) { tell(name, k) })
	}
}

// tellRoutes tells of all agents.
func (s *Server) tellRoutes(tell func(cluster string, k routes.Key)) {
	s.eachCluster(func(cl *cluster) { cl.tellAll(tell) })
}

// tellAgain tells other servers of all agents of a tenant. It is called when an earlier
// tenant of that name has ended, since the departure of its agents may have removed keys
// that agents of the present tenant have.
func (s *Server) tellAgain(name string) {
	if cl := s.clusterNamed(name); s.peering != nil && cl != nil {
		cl.tellAll(func(cluster string, k routes.Key) { s.peering.Tell(cluster, k, true) })
	}
}

// routesChanged tells clusters and clients whether agents of other servers serve.
func (s *Server) routesChanged() {
	s.eachCluster(func(cl *cluster) {
		cl.peers.tellServing(cl.serving)
	})
}

func (s *Server) linkedToPeer(session *link.Session) (ended func()) {
	s.metrics.links.Add(admin.RoleServer, session)
	return func() { s.metrics.links.Remove(admin.RoleServer, session) }
}

// peerLink is for a link to another server, either side's.
func (s *Server) peerLink() link.Config {
	cfg := s.linkConfig()
	cfg.Hello.Features = append(cfg.Hello.Features, link.FeatureIdentity, link.FeatureRules)
	cfg.Handler = resume.Splice(chosen((&forwarded{server: s}).handler))
	cfg.Budget, cfg.Clients = s.opts.Budget, &s.peering.clients
	cfg.Log = s.opts.Log
	return cfg
}

// budgetOf is the memory of a cluster's connections; nil: it is not served.
func (s *Server) budgetOf(cluster string) *link.Budget {
	if cl := s.clusterNamed(cluster); cl != nil {
		return cl.limits.Budget()
	}
	return nil
}

// clusterNamed is the server's own or a tenant's; nil: it is not served.
func (s *Server) clusterNamed(name string) *cluster {
	if name == "" {
		return s.own
	}
	return s.tenants.now.Load().cluster(name)
}

// admitServer adds a link that this server has made to another until leave. Its life ends at
// once if the certificate is not good any more, which was verified a moment ago.
func (s *Server) admitServer(chain []*x509.Certificate) (life context.Context, leave func()) {
	judge := s.opts.Peering.Listener.Recheck
	if judge == nil {
		return context.Background(), func() {}
	}
	c := &conn{side: servers, chain: tlsreload.CertsOf(chain), recheck: judge}
	life, leave, _ = s.own.add(context.Background(), c, nil) // which refuses none
	if s.unsettled() && judge(chain) != nil {
		c.cut(errCut)
	}
	return life, leave
}

// servePeer is the link of another server, from its handshake to its end.
func (s *Server) servePeer(ctx context.Context, c *frontend.Conn) {
	ctx, _, ok := entrance{s, servers, s.opts.Peering.Listener.Recheck}.enter(ctx, c)
	if !ok {
		return
	}
	cfg := s.peerLink()
	cfg.Verify = func(_ context.Context, peer link.Hello) error {
		if !peer.FromServer() {
			return fmt.Errorf("this port is for servers that forward, not for %ss", peer.Role)
		}
		if peer.ID == s.opts.ID {
			c.AtEnd(s.peering.Own(c.TLS()))
		}
		return nil
	}
	session := s.meetLink(ctx, c, cfg)
	if session == nil {
		return
	}
	itself := session.Peer().ID == s.opts.ID // which, or another with the same id, is about to notice
	c.Go(func() {
		var using sync.WaitGroup
		if !itself {
			s.peering.Retry() // it may be one that could not be linked a moment ago
			using.Go(func() { s.peering.Serve(session, c.RemoteAddr().String(), nil) })
		}
		serveLink(ctx, nil, session, func() { s.closeLink(session) })
		using.Wait()
	})
}

// forwarded serves what another server forwards by one link. It never forwards that
// again.
type forwarded struct {
	server *Server
	told   atomic.Bool // the other server has asked for routes
	tells  atomic.Bool // it is being told the state
}

// handler is a chosen.
func (w *forwarded) handler(f *tunnel.Flow) (tunnel.Handler, error) {
	switch f.Network {
	case link.NetworkRoutes:
		if w.told.Swap(true) {
			return nil, refusal(f, tunnel.FailExhausted, "the routes are being told on this link")
		}
		return &tunnel.Forwarder{Dialer: tunnel.DialerFunc(w.server.peering.Feed)}, nil
	case link.NetworkState:
		if w.server.site == nil {
			return nil, refusal(f, tunnel.FailUnavailable, "it has no admin port (--admin-port)")
		}
		if w.tells.Swap(true) {
			return nil, refusal(f, tunnel.FailExhausted, "the state is being told on this link")
		}
		return tunnel.HandlerFunc(w.tellState), nil
	}
	cl := w.server.clusterNamed(f.Origin.Cluster)
	if cl == nil || !cl.stay() {
		w.server.metrics.peerFault("tenant")
		return nil, refusal(f, tunnel.FailNoAgent, fmt.Sprintf("the server %.100q does not serve the tenant %.100q", w.server.opts.ID, f.Origin.Cluster))
	}
	f.AtEnd(cl.left.Done)
	client, leave := cl.limits.JoinForwarded(f.Origin)
	f.AtEnd(leave)
	f.Client, f.Front = client, frontServer
	return cl.forwarded, nil
}

func refusal(f *tunnel.Flow, failure tunnel.Failure, reason string) error {
	return &tunnel.DialError{Failure: failure, Address: f.Address, Reason: reason}
}

// local dials for another server, which has judged the request: by agents of this one,
// within the client's shares.
type local struct{ cluster *cluster }

// Dial implements tunnel.Dialer.
func (d local) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if f.Origin.Server == "" {
		return nil, errors.New("the request of another server does not name that server")
	}
	done, err := d.cluster.limits.Start(ctx, f)
	if err != nil {
		return nil, err
	}
	defer done()
	if f.Network == link.NetworkAPI {
		return d.cluster.beside.Dial(ctx, f)
	}
	return d.cluster.agents.Dial(ctx, f)
}

// leave returns when, in a drain, no link to another server carries anything that would be
// lost, and connections and agents have gone to other servers or were given the time to, or
// ctx has ended.
func (p *peering) leave(ctx context.Context, agents func() int) {
	p.front.Drain()
	p.Drain()
	began := time.Now()
	for n := 1; ctx.Err() == nil; n++ {
		late := time.Since(began) > leaveTime
		if p.Idle(!late) && (late || agents() == 0) {
			return
		}
		if slices.Contains(leaveMoves, n) {
			p.Move()
		}
		wait.For(ctx, leaveLook)
	}
}
