package resume

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// DefaultWindow is how long an end waits for a carrier: longer than it
	// takes to notice that a link is silent (20 s).
	DefaultWindow = 30 * time.Second

	// MaxWindow bounds what a peer, or a flag, may ask for.
	MaxWindow = 10 * time.Minute

	// quiet is how long a direction is silent before what was taken is
	// acknowledged, so that idle connections keep nothing.
	quiet = 100 * time.Millisecond

	// look is how often deadlines are looked at.
	look = time.Second

	// lastTime is what Close leaves to what is to be delivered, and lastLook how
	// often it looks at that.
	lastTime = time.Second
	lastLook = 5 * time.Millisecond
)

// CheckWindow says in words what is wrong with a window that somebody wants.
func CheckWindow(window time.Duration) error {
	if window < 0 || window > MaxWindow {
		return fmt.Errorf("want a duration from 0 (off) to %v", MaxWindow)
	}
	return nil
}

// Options are what an Manager needs.
type Options struct {
	Window time.Duration // 0 or less: connections do not outlive their carriers
	Budget *link.Budget  // that what is kept counts in; nil: it does not
	Log    logrus.FieldLogger

	// MaxDetached is how many connections that others have opened may be without a carrier
	// at once; 0: any number. Beyond it, those that have waited longest end.
	MaxDetached int
}

// Manager are the ends that a process has of connections which outlive their
// carriers. Its methods may be called from any goroutine.
type Manager struct {
	opt    Options
	budget *link.Budget // the part of this

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	kept, lone atomic.Int64 // bytes kept, connections without a carrier
	stats      counters
	relieving  atomic.Bool

	owed   later // acknowledgements, when the quiet is over
	timely later // deadlines, which are looked at

	mu     sync.Mutex
	closed bool
	all    map[*Conn]struct{}
	tokens map[[16]byte]*Conn  // of those that were accepted
	dials  map[[16]byte]*trial // for those that are to be
	alone  []left              // in order of time; some have a carrier again, or are over

	losses   []loss // told by links, not yet taken in
	handling bool

	waiting lines // to be resumed
	workers int   // that resume
}

// loss is a carrier that has failed.
type loss struct {
	w     watcher
	cause error
}

// New makes an Manager.
func New(opt Options) *Manager {
	e := &Manager{opt: opt, budget: opt.Budget.Share(), all: make(map[*Conn]struct{}), tokens: make(map[[16]byte]*Conn), dials: make(map[[16]byte]*trial)}
	e.owed = later{after: quiet, handle: (*Conn).pay}
	e.timely = later{after: look, handle: (*Conn).tick}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// Enabled says whether connections outlive their carriers at all.
func (e *Manager) Enabled() bool { return e != nil && e.opt.Window > 0 }

// Features is what HELLO names of this.
func (e *Manager) Features() []string {
	if !e.Enabled() {
		return nil
	}
	return []string{link.FeatureResume}
}

// newConn makes an end that st carries, by the so manieth attempt.
func (e *Manager) newConn(st Carrier, window time.Duration, number uint32, token [16]byte, address string) *Conn {
	c := &Conn{ends: e, token: token, address: address, end: newEnd(window), st: st, epoch: number, used: tunnel.Now()}
	c.end.Dialed(number)
	c.changed.L = &c.mu
	return c
}

// add takes c in, unless it is too late or the trial that it has come of, which
// is nil for an opener's, was given up.
func (e *Manager) add(c *Conn, of *trial) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case of != nil && of.givenUp:
		return errRepeated
	case e.closed:
		return errClosed
	case of != nil:
		e.tokens[c.token] = c
	}
	e.all[c] = struct{}{}
	return nil
}

// gone takes c out.
func (e *Manager) gone(c *Conn) {
	r := c.end.Reason()
	e.stats.reasons[r].Add(1)
	if r >= Expired {
		e.tellSoon()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, c)
	if e.tokens[c.token] == c {
		delete(e.tokens, c.token)
	}
}

// find is the accepted connection with that token; nil if there is none.
func (e *Manager) find(token [16]byte) *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tokens[token]
}

// hold has n more bytes count as kept.
func (e *Manager) hold(n int) {
	e.kept.Add(int64(n))
	e.budget.Hold(n)
	if n > 0 && e.budget.Short() && e.relieving.CompareAndSwap(false, true) && !e.start(e.relieve) {
		e.relieving.Store(false)
	}
}

// relieve gives up what connections keep, those first that were least recently
// used, until memory is not scarce. They go on as plain ones.
func (e *Manager) relieve() {
	defer time.AfterFunc(quiet, func() { e.relieving.Store(false) }) // a look at all is not to follow each write
	e.mu.Lock()
	all := make([]waiter, 0, len(e.all))
	for c := range e.all {
		all = append(all, waiter{c: c})
	}
	e.mu.Unlock()
	for i, q := range all {
		q.c.mu.Lock()
		if q.c.held > 0 {
			all[i].used = q.c.used
		}
		q.c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b waiter) int { return cmp.Compare(a.used, b.used) })
	for _, q := range all {
		if !e.budget.Short() {
			return
		}
		if q.used != 0 && q.c.degrade() {
			e.stats.degraded.Add(1)
		}
	}
}

// degrade makes c a plain connection, if it can be one.
func (c *Conn) degrade() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st == nil || !c.end.Degrade() {
		return false
	}
	if c.opening == nil {
		c.st.Stay() // or what asks the opener to move it would end it
	}
	c.settle()
	return true
}

// left counts a connection that has lost its carrier.
func (e *Manager) left() {
	e.lone.Add(1)
	e.stats.lost.Add(1)
	e.tellSoon()
}

// resumed counts one that has a carrier again.
func (e *Manager) resumed(pause time.Duration) {
	e.lone.Add(-1)
	e.stats.resumed(pause)
	e.tellSoon()
}

// pay acknowledges what c took.
func (c *Conn) pay() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owing = false
	if c.st != nil && c.end.Carried() && c.end.In.Owes() {
		c.acknowledge()
	}
}

// tick looks at the deadline.
func (c *Conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = false
	if c.end.Reason() != NotGone {
		return
	}
	c.end.Tick(time.Now())
	c.settle()
}

// lost is told by links, with their locks held.
func (e *Manager) lost(w watcher, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.losses = append(e.losses, loss{w, cause})
	if !e.handling {
		e.handling = e.startLocked(e.handle)
	}
}

// handle takes in what was lost.
func (e *Manager) handle() {
	for {
		e.mu.Lock()
		losses := e.losses
		e.losses = nil
		if e.handling = len(losses) > 0; !e.handling {
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
		for _, l := range losses {
			c := l.w.c
			c.mu.Lock()
			left := c.broken(l.w.st, l.w.epoch, l.cause)
			c.mu.Unlock()
			if left != nil {
				c.detach(left)
				e.detach(c, nil)
			}
		}
	}
}

// detach ends left, if that is still to be done, and has an opener find another
// carrier. It does not block.
func (e *Manager) detach(c *Conn, left Carrier) {
	if left != nil {
		e.start(func() {
			c.detach(left)
			e.detach(c, nil)
		})
		return
	}
	if c.opening != nil {
		e.enqueue(c)
	}
}

// start runs f on a goroutine that Wait joins, unless it is too late for that.
func (e *Manager) start(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.startLocked(f)
}

func (e *Manager) startLocked(f func()) bool {
	if !e.closed {
		e.wg.Go(f)
	}
	return !e.closed
}

// resumes says whether there are to be carriers yet.
func (e *Manager) resumes() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closed
}

// Wait returns when nothing runs any more after Close; the links must be closed
// in between.
func (e *Manager) Wait() {
	if e != nil {
		e.wg.Wait()
	}
}

// Close ends all connections, and no other begins. Those that nobody uses any
// more are given a moment to deliver what they have.
func (e *Manager) Close() {
	if e == nil {
		return
	}
	for end := time.Now().Add(lastTime); e.delivers() && time.Now().Before(end); {
		time.Sleep(lastLook)
	}
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	for _, c := range e.conns() {
		_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeGone})
	}
	e.cancel()
}

func (e *Manager) conns() []*Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.all))
}

// delivers says whether a connection that nobody uses any more has a carrier,
// and something that the peer lacks.
func (e *Manager) delivers() bool {
	return slices.ContainsFunc(e.conns(), func(c *Conn) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.end.State() == Lingering && c.st != nil
	})
}

// Len is how many connections there are, with a carrier or without.
func (e *Manager) Len() int {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// known says whether a dial with that token is under way or has become a
// connection: one more attempt at it takes no more memory.
func (e *Manager) known(token [16]byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tokens[token] != nil || e.dials[token] != nil
}

func newToken() (t [16]byte) {
	_, _ = rand.Read(t[:])
	return t
}
