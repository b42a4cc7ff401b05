package agent

import (
	"context"
	"net/url"
)

// session is a connection to one server, by either protocol. Its methods may be
// called from any goroutine.
type session interface {
	ServerID() string
	ServerCount() int // as the server last said; 0 where it did not
	Protocol() string // "link" or "grpc"

	Done() <-chan struct{} // closed when it has ended
	Err() error            // why; nil for an end in order
	// Draining is closed when the server said that it is about to go; nil
	// where the protocol cannot say it.
	Draining() <-chan struct{}
	Streams() int

	Drain()       // asks the server to dial through others; does not block
	Close() error // ends it and returns when it is over; again is harmless
	// CloseDuplicate is Close for a server that is connected already.
	CloseDuplicate() error
}

// connector makes sessions.
type connector interface {
	// connect returns a session, or an error when ctx ended first. It leaves
	// nothing behind when it fails.
	connect(ctx context.Context, to address) (session, error)
}

// address is where to dial.
type address struct {
	dial  string   // host:port; the host is an address unless proxy is set
	host  string   // the name that the server's certificate must bear
	proxy *url.URL // dial by CONNECT through it; nil: directly
}
