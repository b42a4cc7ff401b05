package resume

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// leaves is how many bytes each of n calls of f leaves allocated.
func leaves(n int, f func()) int {
	allocated := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := allocated()
	for range n {
		f()
	}
	return (allocated() - before) / n
}

// An end is one block of memory; what it needs only once it has lost its carrier, has
// to wait or is given a deadline takes none before. 480 and 144 are sizes of Go's
// allocator, which rounds up to one of these.
func TestWhatAnIdleEndTakes(t *testing.T) {
	testutil.Holds(t, strconv.IntSize != 64 || unsafe.Sizeof(Conn{}) <= 480 && unsafe.Sizeof(opening{}) <= 144,
		"an end takes %d bytes, and what an opener adds %d", unsafe.Sizeof(Conn{}), unsafe.Sizeof(opening{}))
	const n = 4096
	e := New(Options{Window: DefaultWindow})
	defer e.Wait()
	defer e.Close()
	dialer := e.Dialer(tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		f.Resume.Granted = tunnel.Grant{Window: DefaultWindow, Route: "route"}
		return lean{}, nil
	}))
	var c tunnel.Conn
	var err error
	opener := leaves(n, func() {
		if c, err = dialer.Dial(t.Context(), &tunnel.Flow{Request: tunnel.Request{ID: "id", Address: "dest:1"}}); err != nil {
			t.Fatal(err)
		}
	})
	hasNothingYet(t, c)
	acceptor := leaves(n, func() {
		r := &tunnel.Resume{Token: newToken(), Window: DefaultWindow}
		answer := func(tunnel.Conn, error) (tunnel.Conn, error) { return lean{}, nil }
		if c, err = e.answer(&tunnel.Flow{Request: tunnel.Request{Address: "dest:1"}, Resume: r}, &dial{}, lean{}, nil, answer); err != nil {
			t.Fatal(err)
		}
	})
	hasNothingYet(t, c)
	t.Logf("%d bytes for each that an opener has, %d for an acceptor's", opener, acceptor)
	// With the lists that it is in; the rest is for what else the process does meanwhile.
	if !testing.Short() && (opener > 900 || acceptor > 900) { // the race detector takes more
		t.Errorf("each takes %d bytes at an opener and %d at an acceptor", opener, acceptor)
	}
}

func hasNothingYet(t *testing.T, of tunnel.Conn) {
	t.Helper()
	c := of.(*Conn)
	testutil.Holds(t, c.status.Load() == nil && c.readBy == nil && c.writeBy == nil && (c.opening == nil || c.opening.search == nil),
		"an idle end has made what it does not need: %+v", c)
}
