// Package agent is the data plane's end of the tunnel: it dials the servers,
// stays connected to all of them, and serves the dials they ask for.
//
// Each part is a file. The set (set.go) has the rules for how internal/peers
// stays connected, and knows nothing of protocols; a connector (connect.go, link.go,
// legacy.go) turns an address into a session over TLS, by the native link or,
// for old servers, by gRPC; the agent (agent.go) joins both and drains them at
// the end. Destinations are dialed by package egress.
package agent
