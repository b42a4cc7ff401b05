package admin

import (
	"net"
	"strings"

	"konnectivity/tunnel"
)

// Roles of neighbours: ends of connections without a link of the suite, of which only
// the connections are known.
const (
	RoleFrontend    = "frontend"    // clients: kube-apiserver, an old sidecar, a sidecar's own clients
	RoleDirect      = "direct"      // connections that bypass the tunnel
	RoleDestination = "destination" // hosts that an agent connects to
)

// keptNeighbours bounds the number of neighbours that a sample distinguishes; the rest
// count as "others". The page shows only a few. The first keptOfEach of a tenant are
// always distinguished, so that another tenant cannot take all names.
const (
	keptNeighbours = 256
	keptOfEach     = 8
)

// others is the name of the neighbours beyond the bound.
const others = "others"

// neighbour identifies an end of connections.
type neighbour struct{ tenant, role, name, protocol string }

// frontendOf returns the client of a connection; zero if it is a peer.
func frontendOf(f *tunnel.Flow) neighbour {
	if byPeer(f.Front) {
		return neighbour{}
	}
	return neighbour{f.Tenant(), RoleFrontend, hostOf(f.Source), f.Front}
}

// byPeer reports whether the connections of a front come from peers, which are listed
// themselves.
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

// addNeighbours adds a connection to the counts of its neighbours.
func (s *sums) addNeighbours(c *conn, by load) {
	if c.from.role != "" {
		s.addNeighbour(c.from, by)
	}
	switch {
	case c.Hop == tunnel.Hop{}:
		s.addNeighbour(neighbour{c.Tenant(), RoleDestination, c.Address, "tcp"}, by)
	case c.Hop == tunnel.Direct:
		s.addNeighbour(neighbour{c.Tenant(), RoleDirect, "bypassing the tunnel", "tcp"}, by)
	}
}

func (s *sums) addNeighbour(n neighbour, by load) {
	if _, ok := s.neighbours[n]; !ok {
		if len(s.neighbours) >= keptNeighbours && s.named[n.tenant] >= keptOfEach {
			n.name = others
		}
		s.named[n.tenant]++
	}
	s.neighbours[n] = s.neighbours[n].plus(by)
}

// peers returns the neighbours as the API shows them.
func (s *sums) peers() []Peer {
	var all []Peer
	for n, f := range s.neighbours {
		all = append(all, Peer{
			Tenant: n.tenant, Role: n.role, ID: n.name, Protocol: n.protocol, Streams: f.open, Stalled: f.stalled, Up: f.up, Down: f.down,
		})
	}
	return all
}

// unlinked returns the servers that carry connections by CONNECT, without a link: not
// those whose connections wait for another link. known are the peers with a link.
func (s *sums) unlinked(known []Peer) []Peer {
	linked := map[string]bool{}
	for _, p := range known {
		if p.Role == RoleServer {
			linked[p.ID], linked[p.Remote] = true, true
		}
	}
	var all []Peer
	for next, f := range s.byNext {
		if next.Role == RoleServer && !linked[next.ID] && f.open > f.resuming {
			all = append(all, Peer{Role: RoleServer, ID: next.ID, Remote: next.ID, Protocol: "connect", Streams: f.open, Stalled: f.stalled, Up: f.up, Down: f.down})
		}
	}
	return all
}
