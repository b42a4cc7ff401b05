package resume

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// attempt bounds one redial; a server waits for an agent for no more than some
	// hundred milliseconds.
	attempt = 5 * time.Second

	// firstPause and lastPause bound the wait between redials.
	firstPause = 20 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// opening is what an opener needs to resume a connection. Conn.mu guards what changes.
type opening struct {
	dialer  tunnel.Dialer
	request tunnel.Request // of the first dial
	route   string         // changes
	search  *search        // nil: there is a carrier, or it was lost a moment ago
}

// search is about the carrier that an opener wants next.
type search struct {
	tries int    // redials that have failed
	first string // the server to ask first, once; empty: any
	bulk  bool   // the connection moves because it is bulk
}

// searching returns the search, and begins one with the first call.
func (o *opening) searching() *search {
	if o.search == nil {
		o.search = new(search)
	}
	return o.search
}

// Dialer returns a Dialer that makes the connections of next outlive their carriers, if the
// other end takes part. A Flow with Resume belongs to another process's end, and passes
// unchanged.
func (m *Manager) Dialer(next tunnel.Dialer) tunnel.Dialer {
	if !m.Enabled() {
		return next
	}
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Resume != nil || m.figures.budget.Scarce() {
			return next.Dial(ctx, f)
		}
		f.Resume = &tunnel.Resume{Token: newToken(), Window: m.opt.Window}
		far, err := repeated(ctx, next, f)
		asked := f.Resume
		f.Resume = nil
		if err != nil {
			return nil, err
		}
		return m.adopt(far, f, asked, next), nil
	})
}

// repeated dials, and repeats the dial until ctx is done if its link is lost before the
// answer. An attempt that failed for a passing reason is repeated as well; if no other
// answer comes, the first loss is the error.
func repeated(ctx context.Context, next tunnel.Dialer, f *tunnel.Flow) (tunnel.Conn, error) {
	far, err := next.Dial(ctx, f)
	if !tunnel.LostInFlight(err) {
		return far, err
	}
	first, lost := err, time.Now()
	for tries := 0; ctx.Err() == nil; tries++ {
		wait := time.NewTimer(pauseOf(tries))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, first
		}
		f.Resume.Repeat()
		far, err = next.Dial(ctx, f)
		switch {
		case err == nil:
			return far, nil
		case tunnel.LostInFlight(err):
			lost = time.Now()
		case ctx.Err() == nil && !passing(err, time.Since(lost)):
			return nil, err
		}
	}
	return nil, first
}

// passing reports whether err tells nothing of the destination. since is the time since the
// last attempt was lost in flight: the link that was lost then, and the agent's link to the
// next server, may be back soon. An agent that is not back within tunnel.BackTime is gone.
func passing(err error, since time.Duration) bool {
	failure := tunnel.FailureOf(err)
	return failure.Retryable() || failure == tunnel.FailNoAgent && since < tunnel.BackTime
}

// pauseOf returns how long to wait after so many redials that failed.
func pauseOf(tries int) time.Duration { return min(firstPause<<min(tries, 10), lastPause) }

// adopt makes far the first carrier of a Conn, if the other end has granted a window.
func (m *Manager) adopt(far tunnel.Conn, f *tunnel.Flow, asked *tunnel.Resume, next tunnel.Dialer) tunnel.Conn {
	st, ok := far.(Carrier)
	window := min(asked.Window, asked.Granted.Window)
	if !ok || window <= 0 {
		return far
	}
	c := m.newConn(st, window, asked.Attempt, asked.Token, f.Address)
	c.local, c.remote = far.LocalAddr(), far.RemoteAddr()
	c.opening = &opening{
		dialer: next, request: f.Request, route: asked.Granted.Route,
	}
	c.mu.Lock() // Move may find it before its carrier is watched
	defer c.mu.Unlock()
	if m.add(c, nil) != nil {
		return far
	}
	c.watch(st)
	if asked.Attempt > 0 { // it may have been resumed
		c.acknowledge()
	}
	f.Resumable = c
	return c
}

// redialSoon queues c, whose lock the caller holds.
func (m *Manager) redialSoon(c *Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.redials.add(c.opening.route, waitingConn{c, c.used})
	m.redialMoreLocked()
}

// redialMoreLocked begins as many redials as there may be.
func (m *Manager) redialMoreLocked() {
	for m.redialing < maxRedials && !m.closed {
		c, r := m.redials.next()
		if c == nil {
			return
		}
		m.redialing++
		m.startLocked(func() { m.redial(c, r) })
	}
}

// redial redials c, of r, once, and then begins others in its place.
func (m *Manager) redial(c *Conn, r *routeQueue) {
	began := time.Now()
	tells, again := c.redial(m.ctx)
	if again > 0 {
		time.AfterFunc(again, c.redialAgain)
	}
	took := time.Duration(0)
	if tells {
		took = time.Since(began)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.redialing--
	m.redials.done(r, again > 0, took)
	m.redialMoreLocked()
}

// redialInTime queues c at once, or behind a pause where carriers are lost one after the
// other.
func (c *Conn) redialInTime() {
	pause := c.m.Pause()
	if pause == 0 {
		c.manager.redialSoon(c)
		return
	}
	time.AfterFunc(pause/2+rand.N(pause/2+1), c.redialAgain)
}

// redialAgain queues c once more.
func (c *Conn) redialAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.manager.redialSoon(c)
}

// redial asks once for another carrier. tells says that this tells something of the way: there
// was something to ask for, and the connection was not over when it failed. again is how
// long to wait before the next attempt, 0: there is none.
func (c *Conn) redial(ctx context.Context) (tells bool, again time.Duration) {
	f, ok := c.request()
	if !ok {
		return false, 0
	}
	o := c.opening
	dialing, cancel := context.WithTimeout(context.Background(), attempt)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	far, err := o.dialer.Dial(dialing, f)
	if err != nil {
		again = c.redialFailed(err)
		return again > 0, again
	}
	return true, c.redialSucceeded(far, f)
}

// request returns what to ask for, if there is anything.
func (c *Conn) request() (f *tunnel.Flow, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.settle(c.m.Redial(time.Now()))
	defer c.do(a)
	if a&refuses != 0 {
		return nil, false
	}
	o := c.opening
	want := o.searching()
	first := want.first
	taken, _ := c.m.Tell()
	want.first = ""
	return &tunnel.Flow{Request: o.request, Resume: &tunnel.Resume{
		Token: c.token, Window: c.manager.opt.Window, Epoch: c.m.Epoch(), Route: o.route, Taken: taken, First: first, Bulk: want.bulk,
	}}, true
}

// redialFailed takes in why an attempt failed, and returns how long to wait before the
// next.
func (c *Conn) redialFailed(err error) (again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step(c.m.RedialFailed(err))
	if c.m.Over() {
		return 0
	}
	want := c.opening.searching()
	want.tries++
	return pauseOf(want.tries - 1)
}

// redialSucceeded goes on by far, as f was answered.
func (c *Conn) redialSucceeded(far tunnel.Conn, f *tunnel.Flow) (again time.Duration) {
	granted := f.Resume.Granted
	st, ok := far.(Carrier)
	if !ok || granted.Window <= 0 {
		_ = far.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
		return c.redialFailed(errors.New("the peer resumed nothing"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.resumeBy(c.m.CarrierUp, f.Resume.Epoch, granted.Taken)
	// The first acknowledgement shows that the carrier is used: without it, the reset below
	// would count as one more loss.
	taken, end := c.m.Tell()
	st.Acknowledge(link.Ack{Offset: taken, End: end})
	if a&refuses != 0 {
		c.do(a)
		_ = st.Reset(&tunnel.ResetError{Code: c.m.ResetCode()})
		return 0
	}
	c.opening.search = nil
	if granted.Route != "" {
		c.opening.route = granted.Route
	}
	c.attach(st, f)
	c.do(a)
	return 0
}

// Move redials the connections that a link carries before it goes.
func (m *Manager) Move(ses *link.Session) {
	if !m.Enabled() {
		return
	}
	for _, c := range m.all() {
		if c.opening != nil {
			c.move(ses, false)
		}
	}
}

// move redials c if it is on ses. A connection that moves for being bulk asks the same
// server first, which has another lane for it.
func (c *Conn) move(ses *link.Session, bulk bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.m.Up() || c.m.Plain() || c.st.Session() != ses {
		return
	}
	want := c.opening.searching()
	if want.bulk = bulk; bulk {
		want.first = ses.Peer().ID
	}
	c.step(c.m.CarrierLost(c.m.Epoch(), tunnel.Lost(tunnel.LossReplaced), time.Now()))
}
