package frontend

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Timing a connection must not hide what a relay wants to know of it: that it
// passes chunks, and which socket is under it.
func TestTimedKeepsTheSinkWhole(t *testing.T) {
	c, _ := testutil.Pair(t)
	for what, conn := range map[string]tunnel.Conn{
		"a socket": tunnel.Wrap(c),
		"another":  tunnel.Wrap(struct{ net.Conn }{c}),
	} {
		timed := timed(conn, func(time.Duration) {})
		testutil.Equal(t, timed.Out().Nonblocking(), conn.Out().Nonblocking(),
			"%s: whether it takes bytes on the spot is hidden", what)
		testutil.Equal(t, timed.In(), conn.In(), "%s: how it is read", what)
		next, ok := timed.(interface{ NetConn() net.Conn })
		testutil.Holds(t, ok && next.NetConn() == conn, "%s: its connection is hidden", what)
	}
}

// A write is timed whichever way it goes.
func TestTimedReportsEachWrite(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	told := 0
	c := timed(tunnel.Wrap(near), func(time.Duration) { told++ })
	writes := map[string]func() error{
		"Write":       func() error { return testutil.Err(io.Copy(c, strings.NewReader("x"))) }, // and it looks at n
		"WriteChunks": func() error { return c.Out().WriteChunks([]tunnel.Chunk{tunnel.CopyChunk([]byte("x"))}) },
	}
	for how, write := range writes {
		told = 0
		testutil.Holds(t, write() == nil && told == 1, "%s was told of %d times", how, told)
	}
	near.Close()
	for how, write := range writes {
		testutil.Fails(t, write(), "%s on a closed connection", how)
	}
}
