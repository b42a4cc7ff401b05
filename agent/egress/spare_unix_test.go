//go:build unix

package egress

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"konnectivity/internal/nameserver"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Sockets for destinations, and for looking up their names, leave descriptors to all
// else, and there are new ones as soon as some are free again.
func TestDialsLeaveDescriptors(t *testing.T) {
	const few = 4
	l, err := net.Listen("tcp", "127.0.0.1:0") // whose queue takes them all
	testutil.NoError(t, err)
	defer l.Close()
	next, err := os.Open(os.DevNull)
	testutil.NoError(t, err)
	d := New(Options{})
	d.spare.most = int(next.Fd()) + few
	_ = next.Close()
	var open []tunnel.Conn
	for err == nil && len(open) < 1000 { // tests of before may free some, below
		var c tunnel.Conn
		if c, err = dial(t, d, l.Addr().String()); err == nil {
			open = append(open, c)
		}
	}
	wantFailure(t, err, tunnel.FailExhausted)
	testutil.Holds(t, errors.Is(err, syscall.EMFILE) && len(open) != 0, "after %d: %v", len(open), err)
	_ = open[0].Close()
	open[0], err = dial(t, d, l.Addr().String())
	testutil.Succeeds(t, err, "with a free one")
	for _, c := range open {
		_ = c.Close()
	}
	without := New(Options{Descriptors: 1})
	names, ok := without.opts.resolver.(*nameserver.Resolver)
	testutil.Requires(t, ok, "names are looked up by something else")
	if _, err := names.Dial(t.Context(), "udp", "127.0.0.1:53"); tunnel.FailureOf(err) != tunnel.FailExhausted {
		t.Errorf("a look-up: %v", err)
	}
	names.PreferGo = true // cgo's way asks without us
	_, err = dial(t, without, "a.test:80")
	wantFailure(t, err, tunnel.FailExhausted) // so that another agent is asked
}

// Where no port is left to connect from, it is the agent that has run out.
func TestOutOfPorts(t *testing.T) {
	d := New(Options{})
	d.dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} // the kernel says the same of this
	_, err := dial(t, d, "127.0.0.1:1")
	wantFailure(t, err, tunnel.FailExhausted)
}
