package resume

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
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

// The route with the fewest redials under way is next, and of it the connection used last.
func TestRedialsAreInTurn(t *testing.T) {
	var q redialQueue
	conns := make(map[*Conn]int)
	for i, route := range []string{"c", "b", "b", "a", "a"} {
		c := new(Conn)
		conns[c] = i
		q.add(route, waitingConn{c, tunnel.Moment(i)})
	}
	var order []int
	var routes []*routeQueue
	for c, r := q.next(); c != nil; c, r = q.next() {
		order, routes = append(order, conns[c]), append(routes, r)
	}
	testutil.EqualSlices(t, order, []int{4, 2, 0, 3, 1}, "the order")
	for _, r := range routes {
		q.done(r, false, 0)
	}
	testutil.Equal(t, len(q.byRoute), 0, "routes that are kept")
}
