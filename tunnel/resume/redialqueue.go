package resume

import (
	"cmp"
	"container/heap"
	"time"

	"konnectivity/tunnel"
)

const (
	// redialsPerAgent is how many connections of one agent are redialed at a time, at
	// first. Each that succeeds and took longRedial, since the way is long, allows one
	// more; one that fails takes the limit back to this.
	redialsPerAgent = 64
	longRedial      = 10 * time.Millisecond

	// maxRedials is how many connections of a process are redialed at a time. So many
	// have 65,536 back within a window where the round trip takes 200 ms.
	maxRedials = 512
)

// redialQueue holds the connections that wait to be redialed, by route: while an agent is
// away, redials for its connections are slow and in vain. The route with the fewest
// redials under way is next; within it, the connection used last. The zero value is
// empty. Manager.mu guards it.
type redialQueue struct {
	byRoute map[string]*routeQueue
	ready   readyRoutes
}

// routeQueue is the part of one route.
type routeQueue struct {
	route   string
	waiting waitingConns
	dialing int // redials under way
	limit   int // of these
	index   int // in ready; -1: not there
}

// waitingConn waits to be redialed.
type waitingConn struct {
	c    *Conn
	used tunnel.Moment
}

// add queues a connection.
func (q *redialQueue) add(route string, w waitingConn) {
	r := q.byRoute[route]
	if r == nil {
		if q.byRoute == nil {
			q.byRoute = make(map[string]*routeQueue)
		}
		r = &routeQueue{route: route, limit: redialsPerAgent, index: -1}
		q.byRoute[route] = r
	}
	heap.Push(&r.waiting, w)
	q.update(r)
}

// next takes out the connection to redial now; nil: there is none. The caller passes its
// route to done once the redial has ended.
func (q *redialQueue) next() (*Conn, *routeQueue) {
	if len(q.ready) == 0 {
		return nil, nil
	}
	r := q.ready[0]
	w := heap.Pop(&r.waiting).(waitingConn)
	r.dialing++
	q.update(r)
	return w.c, r
}

// done takes in that a redial has failed or not, and how long it took; 0: it tells nothing
// of the way.
func (q *redialQueue) done(r *routeQueue, failed bool, took time.Duration) {
	r.dialing--
	switch {
	case failed:
		r.limit = redialsPerAgent
	case took >= longRedial:
		r.limit = min(r.limit+1, maxRedials)
	}
	q.update(r)
}

// update puts r where it belongs after it has changed.
func (q *redialQueue) update(r *routeQueue) {
	switch ready := len(r.waiting) > 0 && r.dialing < r.limit; {
	case ready && r.index < 0:
		heap.Push(&q.ready, r)
	case ready:
		heap.Fix(&q.ready, r.index)
	case r.index >= 0:
		heap.Remove(&q.ready, r.index)
	}
	if len(r.waiting) == 0 && r.dialing == 0 {
		delete(q.byRoute, r.route)
	}
}

// waitingConns is a heap; the first was used last.
type waitingConns []waitingConn

func (h waitingConns) Len() int           { return len(h) }
func (h waitingConns) Less(i, j int) bool { return h[i].used > h[j].used }
func (h waitingConns) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *waitingConns) Push(x any)        { *h = append(*h, x.(waitingConn)) }
func (h *waitingConns) Pop() any          { return pop((*[]waitingConn)(h)) }

// readyRoutes is a heap of the routes of which a connection may be redialed.
type readyRoutes []*routeQueue

func (h readyRoutes) Len() int { return len(h) }

func (h readyRoutes) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.dialing, b.dialing), cmp.Compare(b.waiting[0].used, a.waiting[0].used)) < 0
}

func (h readyRoutes) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *readyRoutes) Push(x any) {
	r := x.(*routeQueue)
	r.index = len(*h)
	*h = append(*h, r)
}

func (h *readyRoutes) Pop() any {
	r := pop((*[]*routeQueue)(h))
	r.index = -1
	return r
}

// pop takes the last of s out, and clears its place.
func pop[T any](s *[]T) (last T) {
	end := len(*s) - 1
	last, (*s)[end] = (*s)[end], last
	*s = (*s)[:end]
	return last
}
