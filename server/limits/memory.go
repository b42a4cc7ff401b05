package limits

import (
	"crypto/tls"

	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
)

// What of the budget a connection takes by being there, payload not counted:
// goroutines, TLS, buffers, bookkeeping.
const (
	ConnMemory   = 10 << 10 // one that is carried; more than docs/operations.md has measured
	ClientMemory = 24 << 10 // a client's TCP connection, whatever it speaks
	StreamMemory = 24 << 10 // a gRPC stream
)

// The same of an agent. Agents have a part of their own, so that they get in when
// their cluster's clients have used up theirs.
const (
	AgentMemory      = 48 << 10
	IdentifierMemory = 1 << 10 // for each in the index
)

// usualCerts is what a peer's certificates take in an ordinary chain. It is counted
// with the connection.
const usualCerts = 16 << 10

// CertMemory returns what a peer's certificates take beyond the usual.
func CertMemory(state *tls.ConnectionState) int {
	if state == nil {
		return 0
	}
	return max(0, tlsreload.Weight(state.PeerCertificates)-usualCerts)
}

const (
	// ShareUsedUp is what a client is told that has used up its share.
	ShareUsedUp = "this client's share is used up: the server has no memory for more of its connections (--memory-budget-mib)"

	// BoundReached is what a client is told whose tenant has reached its bound.
	BoundReached = "bound reached: this cluster has as much of the server's memory as bounds.memoryMiB of its tenant allows"
)

// NoMemory returns what a client is told that there is no memory for.
func NoMemory(c *tunnel.Client) string {
	if c.Budget.AtBound() {
		return BoundReached
	}
	return ShareUsedUp
}

// memoryOf returns what a connection takes of its client's budget. By CONNECT it is
// the client's own connection, too.
func memoryOf(f *tunnel.Flow) int {
	if f.Front == "connect" {
		return ClientMemory + ConnMemory
	}
	return ConnMemory
}
