// Package agent is the data plane's end of the tunnel: it dials the servers,
// stays connected to all of them, and serves the dials they ask for.
//
// Each part is a file. The set (set.go) has the rules for how internal/peers
// stays connected, and knows nothing of protocols; a connector (connector.go) turns an
// address into a session over TLS: a linkSession, or for old servers a legacySession
// over gRPC; the agent (agent.go) joins both and drains them at the end. Destinations
// are dialed by package egress.
//
// Its sessions have the states of internal/peers that its policy knows: Up until the
// server drains (Leaving) or the session is lost (Ended). A second session to one
// server is closed as a duplicate.
package agent
