package agent

import (
	"net/url"

	"konnectivity/internal/peers"
)

// session is a connection to one server, by either protocol. Its methods may be
// called from any goroutine.
type session interface {
	peers.Session
	Protocol() string // "link" or "grpc"
	Err() error       // why it has ended; nil for an end in order
	Drain()           // asks the server to dial through others; does not block
	// CloseDuplicate is Close for a server that is connected already.
	CloseDuplicate() error
}

// address is where to dial.
type address struct {
	dial  string   // host:port; the host is an address unless proxy is set
	host  string   // the name that the server's certificate must bear
	proxy *url.URL // dial by CONNECT through it; nil: directly
}
