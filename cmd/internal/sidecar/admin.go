package sidecar

import (
	"net"
	"net/http"

	"konnectivity/adapters/uplink"
	"konnectivity/internal/admin"
)

// loopback adds the loopback address to an address without a host: the status page shows
// who connects to what, and is open to the network only on request.
func loopback(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// adminHandler serves the status page and its API.
func (s *sidecar) adminHandler() http.Handler {
	return admin.Handler(http.NewServeMux(), admin.Source{
		Component: s.opts.Program, ID: s.adapter.ID(), Table: s.table, Ready: s.ready, Peers: s.adminPeers, Audit: s.Audit.Trouble,
		More: func(status *admin.Status) { status.Peers[admin.RoleServer] = len(s.adapter.Links()) },
	})
}

// ready includes whether agents serve, unlike /readyz: a missing agent must not take the
// application out of service.
func (s *sidecar) ready() error {
	if err := s.adapter.Ready(); err != nil {
		return err
	}
	return s.adapter.Serving()
}

// adminPeers lists the linked servers.
func (s *sidecar) adminPeers() []admin.Peer {
	var out []admin.Peer
	for _, l := range s.adapter.Links() {
		out = append(out, peerAt(l))
	}
	return out
}

// peerAt is the server at the other end of a link.
func peerAt(l uplink.Link) admin.Peer {
	p := admin.Peer{Role: admin.RoleServer, Remote: l.Address.String(), Since: admin.Past{Time: l.Since}, Draining: l.Draining}
	p.Linked(l.Peer, l.Heard, l.Stats)
	return p
}
