package resume

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// accounting counts what connections keep in the memory budget, and what becomes of them.
type accounting struct {
	budget    *link.Budget
	kept      atomic.Int64 // bytes
	relieving atomic.Bool  // relieve runs, or has a moment ago

	lost     atomic.Int64
	resumes  [tunnel.LossCauses]atomic.Int64 // by why the carrier before was lost
	moves    atomic.Int64                    // of these, those of bulk to another lane
	degraded atomic.Int64
	replayed atomic.Int64 // bytes
	ends     [Lives]atomic.Int64

	onResume atomic.Pointer[func(pause time.Duration)] // nil: no one listens
	logged   atomic.Pointer[logged]                    // in the last line of the log
	logging  atomic.Bool                               // a line is to come
}

// logged are figures of which the log has told, without bulk that has moved to another lane:
// that has lost nothing.
type logged struct {
	lost, resumed, givenUp int64
}

// Stats are figures for metrics; counters are since the start.
type Stats struct {
	Conns    int   // now
	Detached int64 // of them, those without a carrier
	Kept     int64 // bytes of memory for what may have to be sent again
	Lost     int64 // carriers that connections were to outlive
	Resumes  int64
	ByCause  [tunnel.LossCauses]int64 // Resumes, by why the carrier before was lost
	Degraded int64                    // connections that became plain, for lack of memory
	Replayed int64                    // bytes that were sent again
	GivenUp  map[string]int64
}

// Stats costs little.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	conns, detached := len(m.conns), m.detached.Len()
	m.mu.Unlock()
	n := &m.figures
	s := Stats{
		Conns: conns, Detached: int64(detached), Kept: n.kept.Load(), Lost: n.lost.Load(),
		Degraded: n.degraded.Load(), Replayed: n.replayed.Load(), GivenUp: map[string]int64{},
	}
	for cause := range n.resumes {
		s.ByCause[cause] = n.resumes[cause].Load()
		s.Resumes += s.ByCause[cause]
	}
	for l := Unconfirmed; l < Lives; l++ {
		s.GivenUp[l.Label()] = n.ends[l].Load()
	}
	return s
}

// Plus is the sum of both, with a map of its own.
func (s Stats) Plus(o Stats) Stats {
	s.Conns += o.Conns
	s.Detached += o.Detached
	s.Kept += o.Kept
	s.Lost += o.Lost
	s.Resumes += o.Resumes
	for cause, n := range o.ByCause {
		s.ByCause[cause] += n
	}
	s.Degraded += o.Degraded
	s.Replayed += o.Replayed
	both := make(map[string]int64, len(s.GivenUp))
	maps.Copy(both, s.GivenUp)
	for reason, n := range o.GivenUp {
		both[reason] += n
	}
	s.GivenUp = both
	return s
}

// givenUp is how many connections that were in use ended because they were not
// resumed.
func (s Stats) givenUp() (n int64) {
	for reason, of := range s.GivenUp {
		if reason != Unconfirmed.Label() {
			n += of
		}
	}
	return n
}

// OnResume calls f for every pause that ended with a new carrier; f must not
// block.
func (m *Manager) OnResume(f func(pause time.Duration)) { m.figures.onResume.Store(&f) }

// countEnd counts a connection that is over.
func (m *Manager) countEnd(l Life) {
	m.figures.ends[l].Add(1)
	if l >= Expired {
		m.logSoon()
	}
}

// countLoss counts a connection that has lost its carrier.
func (m *Manager) countLoss() {
	m.figures.lost.Add(1)
	m.logSoon()
}

// countResume counts a connection that has a carrier again, why it had lost the one before,
// and whether it is bulk that has moved to another lane.
func (m *Manager) countResume(cause tunnel.LossCause, moved bool, pause time.Duration) {
	if moved {
		m.figures.moves.Add(1)
	}
	m.figures.resumes[cause].Add(1)
	if f := m.figures.onResume.Load(); f != nil {
		(*f)(pause)
	}
	m.logSoon()
}

// logAfter is for how long losses and resumes are gathered for one line of the log: a
// link that is lost has many connections, which lose it one by one.
const logAfter = time.Second

// logSoon logs one line after logAfter, about all losses and resumes until then, unless m is
// closed by then.
func (m *Manager) logSoon() {
	if m.opt.Log != nil && m.figures.logging.CompareAndSwap(false, true) {
		time.AfterFunc(logAfter, func() { m.start(m.log) })
	}
}

// log logs what has changed since the last line, if anything has. The end that has accepted a
// connection knows only once it has moved that it was to move, so one that has been without a
// carrier for less than logAfter counts as lost in a later line, or not at all.
func (m *Manager) log() {
	n := &m.figures
	n.logging.Store(false)
	s, moves := m.Stats(), n.moves.Load()
	now, last := &logged{resumed: s.Resumes - moves, givenUp: s.givenUp()}, cmp.Or(n.logged.Load(), &logged{})
	long := m.detachedFor(logAfter)
	now.lost = now.resumed + now.givenUp + long
	n.logged.Store(now)
	if long < s.Detached {
		m.logSoon()
	}
	lost, resumed, givenUp := max(0, now.lost-last.lost), now.resumed-last.resumed, now.givenUp-last.givenUp
	log := m.opt.Log.WithFields(logrus.Fields{"lost": lost, "resumed": resumed, "given_up": givenUp, "waiting": s.Detached})
	switch {
	case givenUp > 0:
		log.Warn("connections were given up that could not be resumed")
	case lost > 0:
		log.Info("connections lost their link")
	case resumed > 0:
		log.Info("connections were resumed")
	}
}

// detachedFor is how many connections have been without a carrier for so long.
func (m *Manager) detachedFor(least time.Duration) (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.detached.Front(); e != nil && time.Since(e.Value.(*Conn).ResumeStatus().Lost) >= least; e = e.Next() {
		n++
	}
	return n
}

// filling reports whether memory is about to be scarce.
func (m *Manager) filling() bool { return m.figures.budget.Filling() }

// hold counts n more bytes as kept.
func (m *Manager) hold(n int) {
	a := &m.figures
	a.kept.Add(int64(n))
	a.budget.Hold(n)
	if n > 0 && a.budget.Short() && a.relieving.CompareAndSwap(false, true) && !m.start(m.relieve) {
		a.relieving.Store(false)
	}
}

// relieve makes connections plain, those first that were used longest ago, until memory is
// not short.
func (m *Manager) relieve() {
	defer time.AfterFunc(quiet, func() { m.figures.relieving.Store(false) }) // not at each write
	type candidate struct {
		c    *Conn
		used tunnel.Moment
	}
	var all []candidate
	for _, c := range m.all() {
		c.mu.Lock()
		if c.held > 0 {
			all = append(all, candidate{c, c.used})
		}
		c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.used, b.used) })
	for _, a := range all {
		if !m.figures.budget.Short() {
			return
		}
		a.c.degrade()
	}
}

// degrade makes c a plain connection, if it has a carrier.
func (c *Conn) degrade() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.Plain() || !c.m.Up() {
		return
	}
	c.manager.figures.degraded.Add(1)
	if c.opening == nil {
		c.st.Stay() // an opener that is asked to move it would end it
	}
	c.step(Event{Kind: Degraded})
}
