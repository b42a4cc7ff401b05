package resume

import (
	"container/list"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
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

	// quiet is the delay of an acknowledgement that is not due at once, so that the peer
	// of an idle connection keeps nothing.
	quiet = 100 * time.Millisecond

	// look is the interval at which deadlines are checked.
	look = time.Second

	// lastTime bounds how long Close waits for lingering connections, lastLook is the
	// interval at which it looks at them.
	lastTime = time.Second
	lastLook = 5 * time.Millisecond
)

// CheckWindow returns an error that tells the user the bounds of a window.
func CheckWindow(window time.Duration) error {
	if window < 0 || window > MaxWindow {
		return fmt.Errorf("want a duration from 0 (off) to %v", MaxWindow)
	}
	return nil
}

// Options are what a Manager needs.
type Options struct {
	Window time.Duration // 0 or less: connections do not outlive their carriers
	Budget *link.Budget  // for kept bytes; nil: they do not count
	Log    logrus.FieldLogger

	// MaxDetached is how many connections that others have opened may be without a
	// carrier at once; 0: any number. Beyond it, those that have waited longest end.
	MaxDetached int

	// Allow judges a connection that others want to resume: whether it could be dialed now,
	// as flow asks for it, at the address that it is connected to. An error is a DialError,
	// and ends the connection. nil: all may be resumed.
	Allow func(flow *tunnel.Flow, connected net.Addr) error
}

// Manager maps tokens to the connections of a process that outlive their carriers. Its
// methods may be called from any goroutine.
type Manager struct {
	opt    Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	figures   accounting
	acks      batchTimer // AckDue
	deadlines batchTimer // DeadlineDue
	tasks     taskQueue  // of links and connections that hold their locks

	mu        sync.Mutex
	closed    bool
	conns     map[[16]byte]*Conn
	dials     map[[16]byte]*dial // by acceptors, for connections to be
	detached  list.List          // *Conn without a carrier, in order of the loss
	redials   redialQueue
	redialing int           // goroutines that redial
	adopted   chan struct{} // closed by the next Adopt; nil: all connections of this end are here

	ended endings
}

// New makes a Manager. Close and Wait end it.
func New(opt Options) *Manager {
	m := &Manager{opt: opt, conns: make(map[[16]byte]*Conn), dials: make(map[[16]byte]*dial)}
	m.figures.budget = opt.Budget.Share()
	m.acks = batchTimer{after: quiet, handle: func(c *Conn) { c.happened((*Machine).AckDue) }}
	m.deadlines = batchTimer{after: look, handle: (*Conn).deadlineDue}
	m.tasks.start = m.start
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// happened is step for a caller without the lock, such as a timer.
func (c *Conn) happened(event func(*Machine) Actions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step(event(&c.m))
}

// Enabled reports whether connections outlive their carriers at all; nil: they do not.
func (m *Manager) Enabled() bool { return m != nil && m.opt.Window > 0 }

// Features is what HELLO names of this.
func (m *Manager) Features() []string {
	if !m.Enabled() {
		return nil
	}
	return []string{link.FeatureResume}
}

// newConn returns an end of a connection whose first carrier, st, has that number.
func (m *Manager) newConn(st Carrier, window time.Duration, number uint32, token [16]byte, address string) *Conn {
	c := &Conn{manager: m, token: token, address: address, m: newMachine(window, number), st: st, used: tunnel.Now()}
	c.changed.L = &c.mu
	return c
}

// add maps the token of c to it. It fails once the Manager is closed, or if the dial (nil at
// an opener) was given up.
func (m *Manager) add(c *Conn, of *dial) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case of != nil && of.givenUp || m.conns[c.token] != nil:
		return errRepeated
	case m.closed:
		return errLeaving
	}
	m.conns[c.token] = c
	return nil
}

// remove forgets a connection that is over.
func (m *Manager) remove(c *Conn) {
	m.countEnd(c.m.Life())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteEndLocked(c)
	m.attachedLocked(c)
	if m.conns[c.token] == c {
		delete(m.conns, c.token)
	}
}

// lost notes that c has no carrier. Beyond MaxDetached, the accepted connection that has
// waited longest ends: most openers come within moments, and an opener that makes
// connections to leave them pushes out its own.
func (m *Manager) lost(c *Conn) {
	m.figures.lost.Add(1)
	m.mu.Lock()
	c.detached = m.detached.PushBack(c)
	m.logSoon()
	var longest *Conn
	if most := m.opt.MaxDetached; c.opening == nil && most > 0 && m.detached.Len() > most {
		longest = m.longestLocked()
	}
	m.mu.Unlock()
	if longest != nil {
		m.tasks.run(func() { longest.happened((*Machine).Evicted) })
	}
}

// longestLocked takes out the accepted connection that has waited longest.
func (m *Manager) longestLocked() *Conn {
	for e := m.detached.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*Conn); c.opening == nil {
			m.attachedLocked(c)
			return c
		}
	}
	return nil
}

// resumed notes that c, whose status was before, has a carrier again, and whether it is bulk
// that has moved to another lane.
func (m *Manager) resumed(c *Conn, before tunnel.ResumeStatus, moved bool) {
	m.countResume(before.Loss, time.Since(before.Lost))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteResumeLocked(c, moved)
	m.attachedLocked(c)
}

// attachedLocked takes c out of those without a carrier.
func (m *Manager) attachedLocked(c *Conn) {
	if c.detached != nil {
		m.detached.Remove(c.detached)
		c.detached = nil
	}
}

// acceptedLocked returns the connection with that token that others have opened; nil if
// there is none.
func (m *Manager) acceptedLocked(token [16]byte) *Conn {
	if c := m.conns[token]; c != nil && c.opening == nil {
		return c
	}
	return nil
}

// known reports whether a dial with that token is under way or has become a
// connection: one more attempt at it takes no more memory.
func (m *Manager) known(token [16]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.acceptedLocked(token) != nil || m.dials[token] != nil
}

// start runs f on a goroutine that Wait joins. It returns false where it is too late for
// that.
func (m *Manager) start(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.startLocked(f)
}

func (m *Manager) startLocked(f func()) bool {
	if !m.closed {
		m.wg.Go(f)
	}
	return !m.closed
}

// open reports whether connections may yet be resumed.
func (m *Manager) open() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.closed
}

// Wait returns when nothing runs any more after Close; the links must be closed
// in between.
func (m *Manager) Wait() {
	m.wg.Wait()
}

// Close ends all connections, and no other begins. Those that linger with a carrier are
// given a moment to deliver what they have.
func (m *Manager) Close() {
	for end := time.Now().Add(lastTime); m.delivers() && time.Now().Before(end); {
		time.Sleep(lastLook)
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	for _, c := range m.all() {
		_ = c.Reset(errClosed)
	}
	m.cancel()
}

func (m *Manager) all() []*Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.conns))
}

// delivers reports whether a connection lingers with a carrier.
func (m *Manager) delivers() bool {
	return slices.ContainsFunc(m.all(), func(c *Conn) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.m.State() == StateLingering && c.m.Up()
	})
}

// Len is how many connections there are, with a carrier or without.
func (m *Manager) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns)
}

func newToken() (t [16]byte) {
	_, _ = rand.Read(t[:])
	return t
}

// taskQueue runs tasks one after the other, on a goroutine that lives while there are
// any. It is for callers that hold a link's lock or a Conn's. A link that is lost with many
// connections thus starts one goroutine. It holds its lock over Manager.mu only.
type taskQueue struct {
	start func(func()) bool

	mu      sync.Mutex
	waiting []func()
	running bool
}

// run runs task soon, unless its Manager is closed.
func (q *taskQueue) run(task func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.running && !q.start(q.work) {
		return
	}
	q.running = true
	q.waiting = append(q.waiting, task)
}

func (q *taskQueue) work() {
	for {
		q.mu.Lock()
		tasks := q.waiting
		q.waiting = nil
		q.running = len(tasks) > 0
		q.mu.Unlock()
		if len(tasks) == 0 {
			return
		}
		for _, task := range tasks {
			task()
		}
	}
}
