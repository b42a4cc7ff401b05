package admin

import (
	"net"
	"strings"

	"konnectivity/tunnel"
)

// Roles of neighbours: ends of connections that have no link of the suite, so
// only their connections are known.
const (
	RoleFrontend    = "frontend"    // clients: kube-apiserver, an old sidecar, a sidecar's own clients
	RoleDirect      = "direct"      // what bypasses the tunnel
	RoleDestination = "destination" // where an agent's connections lead
)

// keptNeighbours bounds the number of neighbours that a sample distinguishes;
// the rest count as "others". The page shows only a few. A tenant whose own are
// fewer than keptOfEach has them told apart in any case: those of another are not
// to take all names.
const (
	keptNeighbours = 256
	keptOfEach     = 8
)

// others is the neighbour that stands for those above the bound.
const others = "others"

// neighbour is one of them.
type neighbour struct{ tenant, role, name, protocol string }

// frontendOf returns who asked for a connection, unless that is a peer.
func frontendOf(f *tunnel.Flow) neighbour {
	if byPeer(f.Front) {
		return neighbour{}
	}
	return neighbour{f.Tenant(), RoleFrontend, hostOf(f.Source), f.Front}
}

// byPeer reports whether connections of a front arrive over a link or stream of
// a peer, which is listed already.
func byPeer(front string) bool { return front == "link" || front == "agent" }

// hostOf is an address without its port.
func hostOf(addr net.Addr) string {
	if addr == nil {
		return "unknown"
	}
	if strings.HasPrefix(addr.Network(), "unix") {
		return "unix socket"
	}
	host, _, err := net.SplitHostPort(addr.String())
	switch {
	case err == nil:
		return host
	case addr.String() == "" || addr.String() == "@":
		return "unix socket"
	default:
		return addr.String()
	}
}

// near adds a connection to the counts of its neighbours.
func (s *sums) near(c *conn, by load) {
	if c.from.role != "" {
		s.nearOne(c.from, by)
	}
	switch {
	case c.next == tunnel.Hop{}:
		s.nearOne(neighbour{c.tenant, RoleDestination, c.destination, "tcp"}, by)
	case c.next == tunnel.Direct:
		s.nearOne(neighbour{c.tenant, RoleDirect, "bypassing the tunnel", "tcp"}, by)
	}
}

func (s *sums) nearOne(n neighbour, by load) {
	if _, ok := s.neighbours[n]; !ok {
		if len(s.neighbours) >= keptNeighbours && s.named[n.tenant] >= keptOfEach {
			n.name = others
		}
		s.named[n.tenant]++
	}
	s.neighbours[n] = s.neighbours[n].plus(by)
}

// peers are the neighbours as the API shows them.
func (s *sums) peers() []Peer {
	var all []Peer
	for n, f := range s.neighbours {
		all = append(all, Peer{
			Tenant: n.tenant, Role: n.role, ID: n.name, Protocol: n.protocol, Streams: f.open, Stalled: f.stalled, Up: f.up, Down: f.down,
		})
	}
	return all
}

// unlinked returns the servers that carry connections without a link, since
// they know only CONNECT. known are those with a link.
func (s *sums) unlinked(known []Peer) []Peer {
	linked := map[string]bool{}
	for _, p := range known {
		if p.Role == RoleServer {
			linked[p.ID], linked[p.Remote] = true, true
		}
	}
	var all []Peer
	for next, f := range s.byNext {
		if next.Role == RoleServer && !linked[next.ID] {
			all = append(all, Peer{Role: RoleServer, ID: next.ID, Remote: next.ID, Protocol: "connect", Streams: f.open, Stalled: f.stalled, Up: f.up, Down: f.down})
		}
	}
	return all
}
