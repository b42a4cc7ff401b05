package link

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/internal/testutil"
)

// What waits in the kernel is 5 ms of the line, within bounds.
func TestUnsentFollowsTheRate(t *testing.T) {
	for rate, want := range map[uint64]int{
		0:           maxUnsent, // unknown
		1:           minUnsent,
		125_000:     minUnsent, // 1 Mbit/s
		6_250_000:   31_250,    // 50
		25_000_000:  125_000,   // 200
		125_000_000: maxUnsent, // 1,000
		1 << 63:     maxUnsent,
	} {
		if got := unsentAt(rate); got != want {
			t.Errorf("%d at %d bytes per second, want %d", got, rate, want)
		}
	}
}

// ask asks the kernel about a socket.
func ask[V any](t *testing.T, s socket, of func(fd int) (V, error)) (v V) {
	t.Helper()
	var err error
	testutil.NoError(t, s.raw.Control(func(fd uintptr) { v, err = of(int(fd)) }))
	testutil.NoError(t, err)
	return v
}

// Bulk that lasts has the bound that its rate asks for; bulk that begins, and all a
// link sends at first, the largest.
func TestOnlyBulkThatLastsIsBoundByTheRate(t *testing.T) {
	near, far := testutil.Pair(t)
	defer near.Close()
	defer far.Close()
	s := newSocket(near)
	bound := func() int {
		return ask(t, s, func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) })
	}
	if got := bound(); got != maxUnsent {
		t.Errorf("%d at first, want %d", got, maxUnsent)
	}
	_ = s.raw.Control(func(fd uintptr) { s.unsent.set(fd, minUnsent) })
	s.looked = time.Now()
	s.beforeTurn(bulkTurn, 0)
	if got := bound(); got != minUnsent {
		t.Errorf("%d within a second, want it as it was", got)
	}
	s.looked = time.Now().Add(-2 * lookEvery)
	s.beforeTurn(bulkTurn-1, 0)
	if got := bound(); got != minUnsent {
		t.Errorf("%d after a small message, want it as it was", got)
	}
	s.beforeTurn(bulkTurn, 0)
	if got := bound(); got != maxUnsent {
		t.Errorf("%d where bulk begins, want %d", got, maxUnsent)
	}
}
