package adapters

import (
	"context"
	"errors"
	"net/http"

	"konnectivity/tunnel"
)

// Adapter is the composed way out of a sidecar. Its methods may be called from
// any goroutine.
type Adapter struct {
}

// New composes an Adapter. It touches no network and no file that may appear
// later, so it succeeds without server, API, DNS or certificates in place; it
// fails only on options that can never work, with a sentence that names the
// option and holds no password.
func New(Options) (*Adapter, error) { return nil, errors.New("not written yet") }

// Run keeps links, caches and health up to date until ctx ends, then closes
// the links, waits for everything it started and returns nil. The dialers work
// before Run and without it, but nothing warms up, fails back or is collected
// then. It must be called at most once.
func (a *Adapter) Run(ctx context.Context) error { return nil }

// SOCKS5 is the dialer of the SOCKS5 front: names are resolved as its
// ResolvePolicy says, or left to the agent.
//
// For all dialers here: errors are *tunnel.DialError; the connection's id is
// taken from the context (tunnel.WithID) or made; a *Trace in the context
// (WithTrace) is filled in; without a deadline in the context a dial is bounded
// by tunnel.DefaultDialTimeout.
func (a *Adapter) SOCKS5() tunnel.Dialer { return nil }

// Connect is the dialer of the HTTP(S) front's CONNECT: direct for what the
// bypass names, by the customer's https proxy unless no-proxy exempts the
// destination, else straight through the tunnel.
func (a *Adapter) Connect() tunnel.Dialer { return nil }

// Transport is a new http.Transport for plain requests (absolute-form http://)
// of the HTTP(S) front: by the customer's http proxy, direct or through the
// tunnel as for Connect. Proxy, DialContext and TLSClientConfig must be left as
// they are; limits and timeouts may be changed before first use. Compression is
// off and HTTP/2 is not attempted. Dial failures come out of RoundTrip wrapping
// a *tunnel.DialError (errors.As). The Trace of a request tells the route only
// if the request made a new connection. The caller closes idle connections.
func (a *Adapter) Transport() *http.Transport { return nil }

// Ready is nil while the server can be reached (a link is up, or the last
// handshake with a server without links worked), else one sentence why not.
func (a *Adapter) Ready() error { return nil }
