package main

import "konnectivity/internal/admin"

// adminSource describes the agent to the admin API.
func (p *process) adminSource() admin.Source {
	return admin.Source{
		Component: component, ID: p.id, Table: p.table, Ready: p.agent.Trouble, Peers: p.adminPeers,
		More: func(s *admin.Status) { s.Peers[admin.RoleServer] = len(p.agent.Servers()) },
	}
}

// adminPeers lists the connected servers.
func (p *process) adminPeers() []admin.Peer {
	var out []admin.Peer
	for _, s := range p.agent.Servers() {
		out = append(out, admin.Peer{
			Role: admin.RoleServer, ID: s.ID, Software: s.Software, Protocol: s.Protocol, Remote: s.Address, Since: s.Since,
			Draining: s.Draining, Streams: s.Streams, Silent: admin.SilentSeconds(s.Heard),
			RoundTrip: s.Link.RTT.Seconds(), Window: s.Link.LargestWindow, Unread: s.Link.Unread, Lanes: s.Link.Lanes,
		})
	}
	return out
}
