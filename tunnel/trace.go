package tunnel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
)

type idKey struct{}

// NewID makes the id by which one connection can be followed across sidecar,
// server and agent: 16 hex digits.
func NewID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// WithID attaches a connection's id to the context its dial runs under; every
// Dialer passes it on to the next hop where the protocol can carry it.
func WithID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, idKey{}, id)
}

// ID returns the connection's id, or "" where none was attached.
func ID(ctx context.Context) string {
	id, _ := ctx.Value(idKey{}).(string)
	return id
}
