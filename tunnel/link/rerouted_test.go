package link_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// placed is a connection between two addresses.
type placed struct {
	net.Conn
	own, peer net.Addr
}

func (p placed) LocalAddr() net.Addr  { return p.own }
func (p placed) RemoteAddr() net.Addr { return p.peer }

// Once addresses or routes have changed, a link ends at once whose own address is gone, and one
// that would now have another has to show that it works. Others go on as before.
func TestRerouted(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for name, c := range map[string]struct {
		own, peer net.Addr
		ends      time.Duration // after which the link ends; 0: not
		why       tunnel.LossCause
		answers   bool // the peer answers once, else something else arrives
	}{
		"as before":             {tcp("127.0.0.1"), tcp("127.0.0.1"), 0, 0, false},
		"in the form of IPv6":   {tcp("::ffff:127.0.0.1"), tcp("127.0.0.1"), 0, 0, false},
		"its address is gone":   {tcp("192.0.2.1"), tcp("127.0.0.1"), time.Nanosecond, tunnel.LossCut, false},
		"its peer has no route": {tcp("127.0.0.1"), tcp("fe80::1"), 6 * time.Second, tunnel.LossSilent, false},
		"its peer answers":      {tcp("127.0.0.1"), tcp("fe80::1"), 0, 0, true},
		"not by TCP":            {&net.UnixAddr{Name: "x"}, &net.UnixAddr{Name: "y"}, 0, 0, false},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			near, far := net.Pipe()
			r := newRig(t, placed{near, c.own, c.peer}, far, true, link.Config{PingInterval: time.Minute, DeadAfter: time.Minute})
			go discard(far)
			began := time.Now()
			arrives := frame{tInfo, 0, 0, nil} // the way back may work
			if c.answers {
				arrives = frame{tPing, ack, 0, u64(1)}
			}
			time.AfterFunc(time.Second, func() { r.sendQuietly(arrives) })
			reroute := func() {
				r.ses.Rerouted(func(to netip.Addr) netip.Addr { from, _ := tunnel.OwnAddr(to); return from })
			}
			time.AfterFunc(2*time.Second, reroute) // nothing has changed again
			r.ses.Probe()                          // for which anything is enough
			reroute()
			select {
			case <-r.ses.Done():
				testutil.Equal(t, time.Since(began), c.ends.Truncate(time.Second), "the time after which the link ended")
				testutil.Equal(t, tunnel.LossOf(r.ses.Err()), c.why, "the cause")
			case <-time.After(20 * time.Second):
				testutil.Equal(t, c.ends, 0, "when the link is to end, which lives")
			}
			_, _ = far.Close(), r.ses.Close()
		})
	}
}
