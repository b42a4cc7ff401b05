package resume

import (
	"context"
	"errors"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// attempt bounds one try; a server waits for an agent no longer than some
	// hundred milliseconds.
	attempt = 5 * time.Second

	// firstPause and lastPause bound the wait between tries.
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

// search is what an opener knows about the carrier that it wants next.
type search struct {
	tries int    // in vain so far
	first string // the server to ask first, once; empty: any
	bulk  bool   // it is to have another carrier for being bulk
}

// searching is the search, which begins with the first call.
func (o *opening) searching() *search {
	if o.search == nil {
		o.search = new(search)
	}
	return o.search
}

// Dialer makes the connections that next dials outlive their carriers, as far
// as the other end takes part. A Flow that asks for that itself is somebody
// else's end, and passes.
func (e *Manager) Dialer(next tunnel.Dialer) tunnel.Dialer {
	if !e.Enabled() {
		return next
	}
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Resume != nil || e.budget.Scarce() {
			return next.Dial(ctx, f)
		}
		f.Resume = &tunnel.Resume{Token: newToken(), Window: e.opt.Window}
		far, err := repeated(ctx, next, f)
		asked := f.Resume
		f.Resume = nil
		if err != nil {
			return nil, err
		}
		return e.adopt(far, f, asked, next), nil
	})
}

// repeated dials, and asks again for as long as ctx lasts if what carries the dial
// is lost before it is answered. What comes of it then is why the first that was
// struck failed, if nothing better does.
func repeated(ctx context.Context, next tunnel.Dialer, f *tunnel.Flow) (tunnel.Conn, error) {
	far, err := next.Dial(ctx, f)
	if !tunnel.LostInFlight(err) {
		return far, err
	}
	struck, since := err, time.Now()
	for tries := 0; ctx.Err() == nil; tries++ {
		wait := time.NewTimer(pauseOf(tries))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, struck
		}
		f.Resume.Repeat()
		far, err = next.Dial(ctx, f)
		switch {
		case err == nil:
			return far, nil
		case tunnel.LostInFlight(err):
			since = time.Now()
		case ctx.Err() == nil && !passing(err, time.Since(since)):
			return nil, err
		}
	}
	return nil, struck
}

// passing says whether a try that fails so long after one that was struck tells
// nothing of the destination. What was lost with that one, the agent's link to
// the next server too, may be back soon. An agent that is not back within
// tunnel.BackTime has gone.
func passing(err error, behind time.Duration) bool {
	failure := tunnel.FailureOf(err)
	return failure.Retryable() || failure == tunnel.FailNoAgent && behind < tunnel.BackTime
}

// pauseOf is how long to wait after that many tries in vain.
func pauseOf(tries int) time.Duration { return min(firstPause<<min(tries, 10), lastPause) }

// adopt makes far an end where that was granted.
func (e *Manager) adopt(far tunnel.Conn, f *tunnel.Flow, asked *tunnel.Resume, next tunnel.Dialer) tunnel.Conn {
	st, ok := far.(Carrier)
	window := min(asked.Window, asked.Granted.Window)
	if !ok || window <= 0 {
		return far
	}
	c := e.newConn(st, window, asked.Attempt, asked.Token, f.Address)
	c.local, c.remote = far.LocalAddr(), far.RemoteAddr()
	c.opening = &opening{
		dialer: next, request: f.Request, route: asked.Granted.Route,
	}
	if e.add(c, nil) != nil {
		return far
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch(st, c.epoch)
	if asked.Attempt > 0 { // it may have been resumed
		c.acknowledge()
	}
	f.Resumable = c
	return c
}

// enqueue has c resumed when it is its turn.
func (e *Manager) enqueue(c *Conn) {
	c.mu.Lock()
	w := waiter{c, c.used}
	route := c.opening.route
	c.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting.add(route, w)
	e.resumeMore()
}

// resumeMore begins as many tries as there may be. The caller has the lock.
func (e *Manager) resumeMore() {
	for e.workers < maxAtOnce && !e.closed {
		c, l := e.waiting.next()
		if c == nil {
			return
		}
		e.workers++
		e.startLocked(func() { e.work(c, l) })
	}
}

// work resumes connections, c of l first, until none is to be.
func (e *Manager) work(c *Conn, l *line) {
	for c != nil {
		began := time.Now()
		how, again := c.resume(e.ctx)
		if again > 0 {
			e.enqueueIn(c, again)
		}
		c, l = e.after(l, how, time.Since(began))
	}
}

// enqueueIn is enqueue after a while.
func (e *Manager) enqueueIn(c *Conn, wait time.Duration) {
	time.AfterFunc(wait, func() { e.enqueue(c) })
}

// after takes in how a try in l ended, and says which is next for whoever made it;
// nil: none.
func (e *Manager) after(l *line, how outcome, took time.Duration) (*Conn, *line) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting.tried(l, how, took)
	e.workers--
	if e.closed {
		return nil, nil
	}
	c, next := e.waiting.next()
	if c != nil {
		e.workers++
		e.resumeMore() // there may be room for two
	}
	return c, next
}

// resume tries once to find another carrier, and says after how long to try again;
// 0: not.
func (c *Conn) resume(ctx context.Context) (how outcome, again time.Duration) {
	c.mu.Lock()
	if !c.calm(firstPause) {
		c.mu.Unlock()
		return untried, firstPause
	}
	if c.st != nil {
		c.mu.Unlock()
		return untried, 0
	}
	epoch, taken, err := c.end.Try(time.Now())
	c.settle()
	o := c.opening
	want := o.searching()
	f := &tunnel.Flow{Request: o.request, Resume: &tunnel.Resume{
		Token: c.token, Window: c.ends.opt.Window, Epoch: epoch, Route: o.route, Taken: taken, First: want.first, Bulk: want.bulk,
	}}
	want.first = ""
	c.mu.Unlock()
	if err != nil {
		return untried, 0
	}
	dialing, cancel := context.WithTimeout(context.Background(), attempt)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	far, err := o.dialer.Dial(dialing, f)
	if err != nil {
		return c.failed(err)
	}
	return c.reattach(far, epoch, f)
}

// failed takes in why a try was in vain.
func (c *Conn) failed(err error) (how outcome, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if tunnel.FailureOf(err) == tunnel.FailGone {
		c.end.End(Unknown)
	}
	c.settle()
	if c.end.Reason() != NotGone {
		return succeeded, 0
	}
	want := c.opening.searching()
	again = pauseOf(want.tries)
	want.tries++
	return failed, again
}

func (c *Conn) reattach(far tunnel.Conn, epoch uint32, f *tunnel.Flow) (how outcome, again time.Duration) {
	granted := f.Resume.Granted
	st, ok := far.(Carrier)
	if !ok || granted.Window <= 0 {
		_ = far.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
		return c.failed(errors.New("the peer resumed nothing"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.end.Out.Sent()
	err := c.end.Resumed(epoch, granted.Taken, time.Now())
	c.replays(sent, err)
	if err != nil {
		c.settle()
		st.Acknowledge(link.Ack{Offset: c.end.In.Tell()}) // so that what follows counts
		code := codeOver(c.end.Reason())
		if c.end.Abandoned() {
			code = c.code
		}
		_ = st.Reset(&tunnel.ResetError{Code: code})
		return succeeded, 0
	}
	c.opening.search = nil
	if granted.Route != "" {
		c.opening.route = granted.Route
	}
	st.Acknowledge(link.Ack{Offset: c.end.In.Tell(), End: c.end.In.Finished()}) // which shows that it is used
	c.attach(st, epoch, f)
	return succeeded, 0
}

// Move has the connections that a link carries find another, before it goes.
func (e *Manager) Move(ses *link.Session) {
	if !e.Enabled() {
		return
	}
	e.mu.Lock()
	all := make([]*Conn, 0, len(e.all))
	for c := range e.all {
		if c.opening != nil {
			all = append(all, c)
		}
	}
	e.mu.Unlock()
	for _, c := range all {
		c.move(ses, false)
	}
}

// move has c find another carrier if it is on ses; one that moves for being bulk
// asks the same server first, which has another lane for it.
func (c *Conn) move(ses *link.Session, bulk bool) {
	c.mu.Lock()
	if c.st == nil || c.st.Session() != ses || c.end.Plain() {
		c.mu.Unlock()
		return
	}
	left := c.broken(c.st, c.epoch, errLost)
	want := c.opening.searching()
	if want.bulk = bulk; bulk {
		want.first = ses.Peer().ID
	}
	c.mu.Unlock()
	if left != nil {
		c.ends.detach(c, left)
	}
}
