package resume

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A route's limit follows the redials that were made: one that was not made tells nothing
// of the way.
func TestRedialLimitFollowsRedials(t *testing.T) {
	var q redialQueue
	q.add("a", waitingConn{c: new(Conn)})
	q.add("a", waitingConn{c: new(Conn)})
	_, r := q.next()
	for _, step := range []struct {
		failed bool
		took   time.Duration
		limit  int
	}{
		{false, longRedial - 1, redialsPerAgent},
		{false, longRedial, redialsPerAgent + 1},
		{false, 0, redialsPerAgent + 1},
		{false, longRedial, redialsPerAgent + 2},
		{true, longRedial, redialsPerAgent},
	} {
		q.done(r, step.failed, step.took)
		testutil.Equal(t, r.limit, step.limit, "the limit behind %+v", step)
		r.dialing++
	}
}
