package resume

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// lean is a carrier by which nothing goes.
type lean struct{ Carrier }

func (lean) LocalAddr() net.Addr { return nil }

func (lean) RemoteAddr() net.Addr { return nil }

func (lean) Watch(link.Watcher) *link.Ack { return nil }

func (lean) Acknowledge(link.Ack) {}

func (lean) SetReadDeadline(time.Time) error { return nil }

func (lean) Reset(error) error { return nil }

func (lean) Failed() error { return net.ErrClosed }

func (lean) Detach() {}

// crowd is connections that lose their carriers all at once, in a bubble.
type crowd struct {
	t         *testing.T
	ends      *Manager
	conns     []*Conn // those used last come last
	roundTrip time.Duration

	mu     sync.Mutex
	order  []int // in which they were resumed
	last   time.Time
	trying map[string]int // by route
	most   map[string]int // at once
}

// away is the route of an agent that is not there.
const away = "away"

func newCrowd(t *testing.T, roundTrip time.Duration) *crowd {
	return &crowd{t: t, ends: New(Options{Window: DefaultWindow}), roundTrip: roundTrip, trying: map[string]int{}, most: map[string]int{}}
}

func (c *crowd) close() {
	c.ends.Close()
	c.ends.Wait()
}

// add makes n connections to an agent, one each millisecond.
func (c *crowd) add(n int, route string) {
	for range n {
		number := len(c.conns)
		dialer := c.ends.Dialer(tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			f.Resume.Granted = tunnel.Grant{Window: DefaultWindow, Route: route}
			if f.Resume.Again() {
				return c.try(route, number)
			}
			return lean{}, nil
		}))
		conn := testutil.Must(dialer.Dial(c.t.Context(), tunnel.NewFlow("tcp", "dest:1")))(c.t)
		c.conns = append(c.conns, conn.(*Conn))
		time.Sleep(time.Millisecond)
	}
}

// try is what a server answers, which waits for an agent that is not there.
func (c *crowd) try(route string, number int) (tunnel.Conn, error) {
	c.count(route, 1)
	defer c.count(route, -1)
	if route == away {
		time.Sleep(250 * time.Millisecond)
		return nil, &tunnel.DialError{Failure: tunnel.FailAgentLost}
	}
	time.Sleep(c.roundTrip)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order, c.last = append(c.order, number), time.Now()
	return lean{}, nil
}

func (c *crowd) count(route string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying[route] += n
	c.most[route] = max(c.most[route], c.trying[route])
}

// strike takes all carriers, some of those used first 100 ms after the others, waits until
// all windows have passed, and says how long it took until the last was resumed that was.
func (c *crowd) strike(late int) (took time.Duration) {
	struck := time.Now()
	c.lose(c.conns[late:])
	if late > 0 {
		time.Sleep(100 * time.Millisecond)
	}
	c.lose(c.conns[:late])
	time.Sleep(DefaultWindow + 2*look)
	synctest.Wait()
	return c.last.Sub(struck)
}

func (c *crowd) lose(conns []*Conn) {
	for _, conn := range conns {
		watcher{conn, conn.st, conn.m.epoch}.Lost(errLost)
	}
}

// scaled is a number of connections, a part of it where the test is to be short.
func scaled(n int) int {
	if testing.Short() {
		return n / 8
	}
	return n
}

// As many connections as there may be are all resumed within their windows, some at a
// time, and those first that were used last.
func TestAllAreResumedInTurn(t *testing.T) {
	for _, c := range []struct {
		roundTrip, bound time.Duration
		redialsPerAgent  int
	}{
		{time.Millisecond, 2 * time.Second, redialsPerAgent},
		{150 * time.Millisecond, 25 * time.Second, maxRedials},
	} {
		testutil.Bubble(t, fmt.Sprint(c.roundTrip), func(t *testing.T) {
			all := newCrowd(t, c.roundTrip)
			defer all.close()
			n := scaled(65536)
			all.add(n, "a")
			took := all.strike(0)
			s := all.ends.Stats()
			testutil.Equal(t, s.Conns, n, "connections")
			testutil.Equal(t, s.Resumes, int64(n), "resumptions")
			testutil.AtMost(t, took, c.bound, "the last one's wait")
			testutil.Equal(t, all.most["a"], c.redialsPerAgent, "redials at a time")
			all.newestFirst()
		})
	}
}

// newestFirst wants those used last to be resumed first, but for those of one turn,
// and those that had their turn before the others stood in line.
func (c *crowd) newestFirst() {
	c.t.Helper()
	for i, number := range c.order[min(redialsPerAgent, len(c.order)):] {
		if off := number - (len(c.conns) - 1 - i); off < -maxRedials || off > maxRedials {
			c.t.Fatalf("the connection with number %d of %d was resumed as number %d", number, len(c.conns), i)
		}
	}
}

// The connections of an agent that is away keep no others waiting, though they were used
// last; nor are more tried at a time as the windows of some pass.
func TestNobodyWaitsForAnAgentThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newCrowd(t, 10*time.Millisecond)
		defer all.close()
		n := scaled(16384)
		all.add(n, "there")
		all.add(n, away)
		took := all.strike(n + n/2)
		testutil.Equal(t, all.ends.Stats().Resumes, int64(n), "resumptions")
		testutil.AtMost(t, took, 2*time.Second, "the last one's wait")
		testutil.AtMost(t, all.most[away], redialsPerAgent, "tries in vain at a time")
	})
}
