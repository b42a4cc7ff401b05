package server

import (
	"context"
	"crypto/tls"

	"google.golang.org/grpc/codes"

	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/registry"
)

// What an agent's connection takes by being there. Agents have no part of the
// budget for this: when a cluster's clients have used up its part, its agents are
// to get in all the same.
const (
	agentMemory      = 48 << 10
	identifierMemory = 1 << 10 // for each in the index
)

// usualCerts is what a peer's certificates may take before they count: what an
// ordinary chain does is counted with the connection.
const usualCerts = 16 << 10

// certMemory is what a peer's certificates take beyond what is usual.
func certMemory(state *tls.ConnectionState) int {
	if state == nil {
		return 0
	}
	return max(0, tlsreload.Weight(state.PeerCertificates)-usualCerts)
}

var errNoAgentRoom = &auth.Refusal{
	Code: codes.Unavailable, Reason: "the server has no memory for more agents of this cluster: they may take half of its memory limit, divided among clusters",
}

// takeRoom takes the memory of an agent's connection until give, or none. ctx is that
// of its stream, where it came by gRPC.
func (cl *cluster) takeRoom(ctx context.Context, who auth.Peer, ids registry.Identifiers) (give func(), err error) {
	if cl.room == nil {
		return func() {}, nil
	}
	n := int64(agentMemory + certMemory(who.TLS) + identifierMemory*ids.Len() + extraMetadata(ctx))
	if !cl.room.Take(n) {
		return func() {}, errNoAgentRoom
	}
	return func() { cl.room.Give(n) }, nil
}
