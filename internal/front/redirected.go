package front

import (
	"errors"
	"net"
	"net/netip"
)

// maxRedirected bounds what a hostile neighbour can make the process hold.
const maxRedirected = 10000

// reasonNotRedirected is why a connection to the port itself is refused, as a metric's
// label.
const reasonNotRedirected = "not_redirected"

// redirected distinguishes the front of redirected connections.
var redirected = Traits{
	Name: "transparent", Connections: "redirected connections", MaxConns: maxRedirected, Metrics: Names{
		Prefix:   "konnectivity_transparent_",
		Refused:  "Connections to the transparent port that ended before anything was dialed, by reason.",
		Requests: "Redirected connections by outcome, counted when their destination answered or failed.",
		Open:     "Open redirected connections.",
		Reasons:  []string{ReasonLimit, reasonNotRedirected},
	},
}

// NewRedirected makes the front for programs that know no proxy. Netfilter redirects their
// connections to it (`konnectivity redirect`), and the kernel tells the original
// destination of each, on systems where Redirects is true.
func NewRedirected(o Options) (*Bare, error) { return newRedirected(o, original) }

// newRedirected is for tests, too, which redirect nothing.
func newRedirected(o Options, original func(net.Conn) (netip.AddrPort, error)) (*Bare, error) {
	b, err := NewBare(o, redirected)
	if err != nil {
		return nil, err
	}
	b.To = func(conn net.Conn) (network, address string, err error) {
		to, err := original(conn)
		if err == nil && to == localAddress(conn) {
			err = errors.New("it was made to this port itself")
		}
		if err != nil {
			b.Metrics.Refuse(reasonNotRedirected)
			b.Log.WithError(err).WithField("client", conn.RemoteAddr().String()).Debug("connection refused: it was not redirected")
		}
		return "tcp", to.String(), err
	}
	return b, nil
}

// localAddress is where a connection came to; not valid if it has no such
// address.
func localAddress(conn net.Conn) netip.AddrPort {
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		own := a.AddrPort()
		return netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
	}
	return netip.AddrPort{}
}
