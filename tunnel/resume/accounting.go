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
	budget    *link.Budget // the part of all connections whose client is not known
	clients   link.Clients // the parts of the clients for whom others have opened connections
	kept      atomic.Int64 // bytes
	relieving atomic.Bool  // relieve runs, or has a moment ago

	lost     atomic.Int64
	resumes  [tunnel.LossCauses]atomic.Uint64 // by why the carrier before was lost
	degraded atomic.Int64
	replayed atomic.Int64 // bytes
	ends     [Lives]atomic.Int64

	onResume atomic.Pointer[func(pause time.Duration)] // nil: no one listens
	news     news                                      // Manager.mu guards it
	logging  atomic.Bool                               // a line is to come
}

// news are what the next line of the log tells, without bulk that has moved to another lane:
// that has lost nothing.
type news struct {
	lost, resumed, givenUp int64
	why                    [Lives]bool // connections were given up
}

// reasons are those for which connections were given up, as in metrics.
func (n *news) reasons() (all []string) {
	for l, is := range n.why {
		if is {
			all = append(all, Life(l).Label())
		}
	}
	return all
}

// Stats are figures for metrics; counters are since the start.
type Stats struct {
	Conns    int   // now
	Detached int64 // of them, those without a carrier
	Kept     int64 // bytes of memory for what may have to be sent again
	Lost     int64 // carriers that connections were to outlive
	Resumes  int64
	ByCause  link.Losses // Resumes, by why the carrier before was lost
	Degraded int64       // connections that became plain, for lack of memory
	Replayed int64       // bytes that were sent again
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
		s.Resumes += int64(s.ByCause[cause])
	}
	for l := range Lives {
		if l.givenUp() {
			s.GivenUp[l.Label()] = n.ends[l].Load()
		}
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

// OnResume calls f for every pause that ended with a new carrier; f must not
// block.
func (m *Manager) OnResume(f func(pause time.Duration)) { m.figures.onResume.Store(&f) }

// countEnd counts a connection that is over.
func (m *Manager) countEnd(l Life) { m.figures.ends[l].Add(1) }

// countResume counts a connection that has a carrier again, and why it had lost the one
// before.
func (m *Manager) countResume(cause tunnel.LossCause, pause time.Duration) {
	m.figures.resumes[cause].Add(1)
	if f := m.figures.onResume.Load(); f != nil {
		(*f)(pause)
	}
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

// log writes a line if anything has changed since the last one. An acceptor learns that a
// connection moves only when it is resumed. So a connection counts as lost once it has had no
// carrier for logAfter, or is resumed without having moved.
func (m *Manager) log() {
	m.figures.logging.Store(false)
	n, waiting := m.takeNews()
	log := m.opt.Log.WithFields(logrus.Fields{"lost": n.lost, "resumed": n.resumed, "given_up": n.givenUp, "waiting": waiting})
	switch {
	case n.givenUp > 0:
		log.WithField("reasons", n.reasons()).Warn("connections were given up that could not be resumed")
	case n.lost > 0:
		log.Info("connections lost their link")
	case n.resumed > 0:
		log.Info("connections were resumed")
	}
}

// takeNews returns the news, and how many connections have no carrier. If some have had none
// for less than logAfter, another line is to come.
func (m *Manager) takeNews() (n news, waiting int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.detached.Front(); e != nil; e = e.Next() {
		c := e.Value.(*Conn)
		if time.Since(c.ResumeStatus().Lost) < logAfter {
			m.logSoon()
			break
		}
		m.noteLossLocked(c)
	}
	n, m.figures.news = m.figures.news, news{}
	return n, m.detached.Len()
}

// noteLossLocked has the log tell of the loss of c's carrier, once.
func (m *Manager) noteLossLocked(c *Conn) {
	if !c.lossNoted {
		c.lossNoted = true
		m.figures.news.lost++
	}
}

// noteResumeLocked has the log tell that c has a carrier again, unless c has moved before the
// log told of a loss.
func (m *Manager) noteResumeLocked(c *Conn, moved bool) {
	if !moved || c.lossNoted {
		m.noteLossLocked(c)
		m.figures.news.resumed++
		m.logSoon()
	}
	c.lossNoted = false
}

// noteEndLocked has the log tell that c is over, if it was given up.
func (m *Manager) noteEndLocked(c *Conn) {
	if l := c.m.Life(); l.givenUp() && l != Unconfirmed {
		m.noteLossLocked(c)
		m.figures.news.givenUp++
		m.figures.news.why[l] = true
		m.logSoon()
	}
}

// budgetOf returns what the connections of a client count in, so that what one leaves here
// makes no connection of another plain.
func (m *Manager) budgetOf(client tunnel.Origin) *link.Budget {
	if client.Client == 0 {
		return m.figures.budget
	}
	return m.figures.clients.Share(client, m.opt.Budget)
}

// budget returns what the connection counts in.
func (c *Conn) budget() *link.Budget {
	if c.served != nil {
		return c.served.budget
	}
	return c.manager.figures.budget
}

// hold counts n more bytes as kept, in b.
func (m *Manager) hold(b *link.Budget, n int) {
	a := &m.figures
	a.kept.Add(int64(n))
	b.Hold(n)
	if n > 0 && b.Short() && a.relieving.CompareAndSwap(false, true) && !m.start(m.relieve) {
		a.relieving.Store(false)
	}
}

// lingerMemory is what a connection that lingers takes besides what it keeps: itself, and the
// stream under it. How many are open is bounded by their sockets.
const lingerMemory = 8 << 10

// holdLingering counts one more connection that lingers, or one less, in b. So the budget bounds
// what a peer that acknowledges nothing leaves here: once memory is scarce, new connections do not
// outlive their links, and do not linger.
func holdLingering(b *link.Budget, one bool) {
	if one {
		b.Hold(lingerMemory)
	} else {
		b.Give(lingerMemory)
	}
}

// relieve makes connections plain, those first that were used longest ago, until memory is
// not short for their clients.
func (m *Manager) relieve() {
	defer time.AfterFunc(quiet, func() { m.figures.relieving.Store(false) }) // not at each write
	type candidate struct {
		c    *Conn
		used tunnel.Moment
	}
	var all []candidate
	for _, c := range m.all() {
		c.mu.Lock()
		if c.held > 0 || c.lingers {
			all = append(all, candidate{c, c.used})
		}
		c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.used, b.used) })
	for _, a := range all {
		if a.c.budget().Short() {
			a.c.degrade()
		}
	}
}

// deadlineDue ends c if it has waited too long, and a wait for acknowledgements sooner where
// memory is scarce: c is a plain connection then, of which a carrier that has taken all has taken
// the last.
func (c *Conn) deadlineDue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.m.Overstays(now) && c.budget().Scarce() {
		c.degradeLocked()
	}
	c.step(c.m.DeadlineDue(now))
}

// degrade makes c a plain connection, if it has a carrier.
func (c *Conn) degrade() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.degradeLocked()
}

func (c *Conn) degradeLocked() {
	if c.m.Plain() || !c.m.Up() {
		return
	}
	c.manager.figures.degraded.Add(1)
	if c.opening == nil {
		c.st.Stay() // an opener that is asked to move it would end it
	}
	c.step(c.m.Degraded())
}
