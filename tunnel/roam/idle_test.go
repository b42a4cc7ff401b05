package roam

import (
	"context"
	"runtime"
	"testing"

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

// What an end needs only once it has lost its carrier, has to wait or is given a
// deadline takes no memory before.
func TestWhatAnIdleEndTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("under the race detector, memory is not what it is in the programs")
	}
	const n = 4096
	granted := tunnel.Grant{Window: DefaultWindow, Route: "route"}
	e := New(Options{Window: DefaultWindow})
	defer e.Wait()
	defer e.Close()
	dialer := e.Dialer(tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		f.Resume.Granted = granted
		return lean{}, nil
	}))
	opener := leaves(n, func() {
		if _, err := dialer.Dial(t.Context(), &tunnel.Flow{ID: "id", Address: "dest:1"}); err != nil {
			t.Fatal(err)
		}
	})
	acceptor := leaves(n, func() {
		r := &tunnel.Resume{Token: newToken(), Window: DefaultWindow}
		answer := func(tunnel.Conn, error) (tunnel.Conn, error) { return lean{}, nil }
		if _, err := e.answer(&tunnel.Flow{Address: "dest:1", Resume: r}, &trial{}, lean{}, nil, answer); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%d bytes for each that an opener has, %d for an acceptor's", opener, acceptor)
	if opener > 760 || acceptor > 680 {
		t.Errorf("each takes %d bytes at an opener and %d at an acceptor", opener, acceptor)
	}
}
