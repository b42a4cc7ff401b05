// Package server is a konnectivity server: clients ask it for destinations, and it
// reaches them through agents, which connect to it from the data plane.
// cmd/konnectivity-server makes one of its flags.
//
// A Server owns its listeners from Run on, and for each cluster a runtime (cluster):
// agents, connections, limits, figures. A connection passes, in this order:
//
//	listener    a Frontend of the flags (fronts.go), or of one tenant (listeners.go), accepts it
//	handshake   its server name, certificate or port leads it to a cluster (handshake.go)
//	admission   the cluster admits it and finds its client (conn.go, package limits)
//	service     an agent joins the registry (agents.go), a client's requests are
//	            dialed (clients.go, dial.go)
//
// What another server forwards comes by a port of its own and names its cluster
// (peering.go, package reach).
//
// The states of a cluster, which the present view tells:
//
//	loading   it is made, and not in the view: no handshake leads to it
//	serving   handshakes lead to it, and it admits connections
//	draining  no handshake leads to it, it admits nobody, and its connections are cut
//	gone      its last connection and stream have ended, and it is not in the view
//
//	from      event                                           to        what happens
//	-         a tenant appears in the table of Dir            loading   limits, registry and reviewer of tokens are made
//	loading   the view that has it is published               serving
//	serving   its spec changes                                serving   who would not be admitted any more is cut
//	serving   it is missing in the table                      draining  all connections are cut, the reviewer stops
//	draining  connections, streams and resumable ends are over  gone    its figures are added to the past
//
// The server's own cluster is serving from New on. A tenant whose files were never
// usable has no runtime. Tables come one after the other, and tenants.replace
// publishes each result as a view that does not change: handshakes, metrics and the
// admin API read views without a lock. When the server drains, nothing changes any
// more once clients have ended; their clusters end with it.
package server
