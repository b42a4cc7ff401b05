package resume

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// The connections that were reset last are remembered, as many as there may be, and others not.
func TestEndingsAreTheLast(t *testing.T) {
	e := newEnds(t)
	token := func(i int) [16]byte { return [16]byte{byte(i), byte(i >> 8)} }
	const all = 2*maxEnded + 1
	for i := range all {
		c := e.newConn(nil, time.Minute, 0, token(i), "dest:1")
		c.served = &served{}
		testutil.NoError(t, e.add(c, &dial{}))
		testutil.NoError(t, c.Reset(nil))
	}
	for i := range all {
		c, err := e.find(token(i))
		testutil.Equal(t, err == nil, i >= all-maxEnded, "the connection %d of %d is remembered", i, all)
		testutil.Holds(t, err != nil || c.token == token(i) && c.m.Life() == Ended && c.served == nil, "what has used %d is kept, or another connection in the place", i)
	}
	testutil.Equal(t, e.Len(), 0, "connections")
}
