package agent

import (
	"net/url"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel/link"
)

// session is a connection to one server, by either protocol. Its methods may be
// called from any goroutine.
type session interface {
	peers.Session
	ServerID() string // the server's, which is also the Key
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

const (
	// leastKeepalive keeps a tiny --keepalive-time from pinging all the time; the
	// replaced agent's gRPC has such a bound too, of 10 s.
	leastKeepalive = time.Second
	// keepaliveGrace is how long a server has to answer where the operator
	// chose the silence before the question.
	keepaliveGrace = 10 * time.Second
)

// keepaliveTimes are the silences after which a server is asked whether it lives, and given
// up, for an operator's --keepalive-time; 0 is none. Either protocol then notices a server
// that is gone without a word within 20 s.
func keepaliveTimes(keepalive time.Duration) (ask, dead time.Duration) {
	if keepalive <= 0 {
		return link.DefaultPingInterval, link.DefaultDeadAfter
	}
	keepalive = max(keepalive, leastKeepalive)
	return keepalive, keepalive + keepaliveGrace
}
