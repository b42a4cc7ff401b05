package sidecar

import (
	"net"
	"net/http"

	"konnectivity/internal/admin"
)

// loopback completes an address that names no host. The status page shows who
// connects whereto, which is not for the whole network unless it is asked for.
func loopback(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// adminHandler serves the status page and its API.
func (s *sidecar) adminHandler() http.Handler {
	return admin.Handler(http.NewServeMux(), admin.Source{
		Component: s.opts.Program, ID: s.adapter.ID(), Table: s.table, Ready: s.ready, Peers: s.adminPeers,
		More: func(status *admin.Status) { status.Peers[admin.RoleServer] = len(s.adapter.Links()) },
	})
}

// ready also says what servers say of their agents, unlike /readyz: an
// application is not to be taken out of service for want of an agent.
func (s *sidecar) ready() error {
	if err := s.adapter.Ready(); err != nil {
		return err
	}
	return s.adapter.Serving()
}

// adminPeers lists the servers that are linked.
func (s *sidecar) adminPeers() []admin.Peer {
	var out []admin.Peer
	for _, l := range s.adapter.Links() {
		out = append(out, admin.Peer{
			Role: admin.RoleServer, ID: l.Peer.ID, Software: l.Peer.Software, Protocol: "link", Remote: l.Address.String(), Since: l.Since,
			Draining: l.Draining, Streams: l.Stats.Streams,
			RoundTrip: l.Stats.RTT.Seconds(), Window: l.Stats.LargestWindow, Unread: l.Stats.Unread, Lanes: l.Stats.Lanes,
		})
	}
	return out
}
