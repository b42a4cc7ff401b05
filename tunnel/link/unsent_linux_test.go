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
		testutil.Equal(t, unsentAt(rate), want, "bound at %d bytes per second", rate)
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
	testutil.Equal(t, bound(), maxUnsent, "bound at first")
	_ = s.raw.Control(func(fd uintptr) { s.unsent.set(fd, minUnsent) })
	s.looked = time.Now()
	s.beforeTurn(bulkTurn, 0)
	testutil.Equal(t, bound(), minUnsent, "bound within a second")
	s.looked = time.Now().Add(-2 * lookEvery)
	s.beforeTurn(bulkTurn-1, 0)
	testutil.Equal(t, bound(), minUnsent, "bound after a small message")
	s.beforeTurn(bulkTurn, 0)
	testutil.Equal(t, bound(), maxUnsent, "bound where bulk begins")
}
