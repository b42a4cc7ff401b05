package server

import (
	"net/http"
	"strings"

	"konnectivity/internal/admin"
	"konnectivity/internal/observe"
	"konnectivity/internal/observe/profiles"
	"konnectivity/server/registry"
	"konnectivity/tunnel/lanes"
)

// healthHandler is what the health port serves.
func (s *Server) healthHandler() http.Handler {
	// Status and body are upstream's (cmd/server/app/server.go).
	return observe.Health{
		Metrics: s.gatherer(), Checks: []observe.Check{{Name: "agents", Do: s.Ready}}, Server: true,
	}.Handler()
}

// adminHandler is what the admin port serves.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", s.adminMetrics())
	if s.opts.Profiles {
		profiles.Mount(mux, s.opts.ContentionProfiles)
	}
	return s.site.Handler(mux)
}

// adminSource is what the admin API shows of the server beside connections.
func (s *Server) adminSource() admin.Source {
	source := admin.Source{
		Component: "konnectivity-server", ID: s.opts.ID, Table: s.table,
		Ready: s.Ready, Peers: s.adminPeers, More: s.adminMore, Audit: s.opts.Audit, Policy: s.opts.PolicyFile.Trouble,
		Login: s.login(), Shown: []string{"/metrics"},
	}
	if s.opts.Tenants != nil {
		source.Tenants, source.Of = s.tenants.list, s.adminOf
	}
	if s.peering != nil {
		source.Others = s.peering.others
	}
	return source
}

// adminMore fills in what only servers have, for the operator.
func (s *Server) adminMore(status *admin.Status) {
	counts := s.counts()
	s.moreForAll(status, counts, s.opts.Strategies)
	status.Peers = map[string]int{admin.RoleAgent: counts.Agents}
	s.eachCluster(func(cl *cluster) { status.Peers[admin.RoleClient] += len(cl.peers.clients()) })
	if s.peering != nil {
		status.Peers[admin.RoleServer], _ = s.peering.count()
		status.Unlinked = s.peering.unlinked()
	}
	status.Tenants = s.tenants.states()
	status.Buffers = map[string]admin.Buffer{
		"link": {Used: s.opts.Budget.Used(), Limit: s.opts.Budget.Max()},
		"grpc": {Used: s.grpc.Budget.Used(), Limit: s.grpc.Budget.Max()},
	}
}

// moreForAll fills in what only servers have and a tenant's readers see, too: of the agents that
// are counted, and of strategies, these.
func (s *Server) moreForAll(status *admin.Status, agents registry.Counts, strategies []registry.Strategy) {
	status.ServerCount = s.serverCount()
	status.Strategies = map[string]int{}
	for _, strategy := range strategies {
		status.Strategies[string(strategy)] = agents.By[strategy]
	}
}

// adminPeers lists agents, then sidecars, cluster by cluster, and then other servers.
func (s *Server) adminPeers() []admin.Peer {
	var out []admin.Peer
	s.eachCluster(func(cl *cluster) { out = cl.addPeers(out) })
	return s.peering.addTo(out)
}

// addPeers lists those of one cluster.
func (cl *cluster) addPeers(out []admin.Peer) []admin.Peer {
	nodes := cl.agents.Agents()
	for i, a := range append(nodes, cl.beside.Agents()...) {
		p := admin.Peer{
			Tenant: cl.name, Role: admin.RoleAgent, ID: a.ID, Protocol: string(a.Via), Remote: a.Remote,
			Identity: a.Who.Names(), Identifiers: identifiersText(a.Identifiers), Since: admin.Past{Time: a.Since},
			Draining: a.Draining, Streams: a.Backend.Streams(), Pending: a.Pending, RoundTrip: a.Backend.RTT().Seconds(),
		}
		if g, ok := a.Backend.(*lanes.Group); ok {
			p.Linked(g.Peer(), g.Heard(), g.Stats())
		}
		if i >= len(nodes) {
			p.Identifiers = "beside the API server"
		}
		out = append(out, p)
	}
	for _, who := range cl.peers.clients() {
		p := admin.Peer{Tenant: cl.name, Role: admin.RoleClient, Remote: who.remote, Identity: who.who.Names(), Since: admin.Past{Time: who.since}}
		p.Linked(who.link.Peer(), who.link.Heard(), who.link.Stats())
		out = append(out, p)
	}
	return out
}

// maxIdentifiersText keeps an agent with a thousand addresses from filling the
// page; it is cut there.
const maxIdentifiersText = 300

func identifiersText(ids registry.Identifiers) string {
	var words []string
	if ids.DefaultRoute {
		words = append(words, "default-route")
	}
	words = append(words, ids.Hosts...)
	for _, cidr := range ids.CIDRs {
		words = append(words, cidr.String())
	}
	for _, addr := range ids.Addrs {
		words = append(words, addr.String())
	}
	text := strings.Join(words, " ")
	if len(text) > maxIdentifiersText {
		text = strings.ToValidUTF8(text[:maxIdentifiersText], "") + "…"
	}
	return text
}
