package httpsproxy

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// connectTarget returns the destination of a CONNECT, or why there is none. As
// in absolute form, a differing Host header is ignored (net/http drops it).
func connectTarget(c *client, r *http.Request) (string, *refusal) {
	// RFC 9112 §3.2.3: the request-target is host:port and nothing more.
	host, port, err := tunnel.SplitAddress(r.RequestURI)
	switch {
	case err != nil:
		return "", badAddress(err, "CONNECT needs host:port")
	case r.ContentLength != 0:
		// It could be content or the tunnel's first bytes.
		return "", invalid("CONNECT has no content.")
	case c.isSelf(host, port):
		return "", loopRefusal
	}
	return tunnel.JoinAddress(host, port), nil
}

// forwardTarget returns the destination of a request in absolute form (RFC 9112
// §3.2.2), or why there is none. net/http has set r.Host to that of the URI, so
// a differing Host header is ignored, as it must be. A user and password in the URI,
// which wget and Java leave there, are not passed on: no next hop expects them.
func forwardTarget(c *client, r *http.Request) (string, *refusal) {
	switch scheme := strings.ToLower(r.URL.Scheme); {
	case scheme == "https":
		return "", &refusal{http.StatusNotImplemented, "This proxy does no TLS for its clients: use CONNECT for https.", outcomeInvalid}
	case scheme != "http":
		return "", invalid("This proxy forwards http, and https by CONNECT, but no other scheme.")
	case r.URL.Opaque != "":
		return "", invalid("A proxy request needs a URI of the form http://host/path.")
	}
	name, port := r.URL.Hostname(), cmp.Or(r.URL.Port(), "80")
	host, number, err := tunnel.SplitAddress(net.JoinHostPort(name, port))
	switch {
	case err != nil:
		return "", badAddress(err, "the URI's authority is not an address")
	case c.isSelf(host, number):
		return "", loopRefusal
	}
	return tunnel.JoinAddress(host, number), nil
}

func badAddress(err error, otherwise string) *refusal {
	if dial, ok := errors.AsType[*tunnel.DialError](err); ok {
		return invalid(sentence(dial.Text()))
	}
	return invalid(sentence(otherwise))
}

// isSelf reports whether host and port, by any of this machine's addresses, are
// where this very connection was accepted.
func (c *client) isSelf(host string, port uint16) bool {
	own, err := netip.ParseAddrPort(c.conn.LocalAddr().String())
	if err != nil || own.Port() != port {
		return false
	}
	if tunnel.IsLocalhost(host) {
		return true
	}
	addr, ok := tunnel.ParseLooseIP(host)
	if !ok {
		return false
	}
	addr = addr.Unmap().WithZone("")
	return addr.IsUnspecified() || addr == own.Addr().Unmap().WithZone("") || front.IsOwn(addr)
}
