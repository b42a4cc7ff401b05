package resume

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// newEnds returns a Manager that ends with the test.
func newEnds(t *testing.T) *Manager {
	e := New(Options{Window: time.Minute})
	t.Cleanup(func() { e.Close(); e.Wait() })
	return e
}

// newEnd returns an acceptor's end whose carrier is st, and its Manager.
func newEnd(t *testing.T, st Carrier) (*Manager, *Conn) {
	t.Helper()
	e := newEnds(t)
	c := e.newConn(st, time.Minute, 0, [16]byte{1}, "dest:1")
	testutil.NoError(t, e.add(c, nil))
	return e, c
}
