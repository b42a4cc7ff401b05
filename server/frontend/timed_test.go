package frontend

import (
	"net"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// Timing a connection must not hide what a relay wants to know of it: that it
// passes chunks, and which socket is under it.
func TestTimedHidesNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for what, conn := range map[string]tunnel.Conn{
		"a socket": tunnel.Wrap(c),
		"another":  tunnel.Wrap(struct{ net.Conn }{c}),
	} {
		timed := timed(conn, func(time.Duration) {})
		for hidden, has := range map[string]func(tunnel.Conn) bool{
			"chunks": func(c tunnel.Conn) bool { _, ok := c.(tunnel.ChunkReader); return ok },
			"a sink": func(c tunnel.Conn) bool { _, ok := c.(tunnel.Sink); return ok },
		} {
			if has(timed) != has(conn) {
				t.Errorf("%s: %s is hidden", what, hidden)
			}
		}
		if next, ok := timed.(interface{ NetConn() net.Conn }); !ok || next.NetConn() != conn {
			t.Errorf("%s: its connection is hidden", what)
		}
	}
}
