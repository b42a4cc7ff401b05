package resume

import (
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// counters are an Manager' figures.
type counters struct {
	lost, resumes atomic.Int64
	degraded      atomic.Int64
	replayed      atomic.Int64 // bytes
	reasons       [Reasons]atomic.Int64

	// pause, where set, is told how long a connection had no carrier.
	pause atomic.Pointer[func(time.Duration)]

	told    atomic.Pointer[Stats] // in the last line of the log
	telling atomic.Bool           // a line is to come
}

func (s *counters) resumed(pause time.Duration) {
	s.resumes.Add(1)
	if f := s.pause.Load(); f != nil {
		(*f)(pause)
	}
}

// Stats are figures for metrics; counters are since the start.
type Stats struct {
	Conns    int   // now
	Detached int64 // of them, those without a carrier
	Kept     int64 // bytes of memory for what may have to be sent again
	Lost     int64 // carriers that connections were to outlive
	Resumes  int64
	Degraded int64 // connections that became plain, for lack of memory
	Replayed int64 // bytes that were sent again
	GivenUp  map[string]int64
}

// Stats costs little.
func (e *Manager) Stats() Stats {
	c := &e.stats
	s := Stats{
		Conns: e.Len(), Detached: e.lone.Load(), Kept: e.kept.Load(), Lost: c.lost.Load(), Resumes: c.resumes.Load(),
		Degraded: c.degraded.Load(), Replayed: c.replayed.Load(), GivenUp: map[string]int64{},
	}
	for r := Unconfirmed; r < Reasons; r++ {
		s.GivenUp[r.Label()] = c.reasons[r].Load()
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
	s.Degraded += o.Degraded
	s.Replayed += o.Replayed
	both := make(map[string]int64, len(s.GivenUp))
	for _, given := range []map[string]int64{s.GivenUp, o.GivenUp} {
		for reason, n := range given {
			both[reason] += n
		}
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
func (e *Manager) OnResume(f func(pause time.Duration)) { e.stats.pause.Store(&f) }

// tellAfter is for how long what happens is gathered for one line of the log: a
// link that is lost has many connections, which lose it one by one.
const tellAfter = time.Second

// tellSoon logs one line, after a while, about what has happened and what will
// until then.
func (e *Manager) tellSoon() {
	if e.opt.Log != nil && e.stats.telling.CompareAndSwap(false, true) {
		time.AfterFunc(tellAfter, e.tell)
	}
}

func (e *Manager) tell() {
	e.stats.telling.Store(false)
	now := e.Stats()
	last := e.stats.told.Swap(&now)
	if last == nil {
		last = &Stats{}
	}
	lost, resumed, givenUp := now.Lost-last.Lost, now.Resumes-last.Resumes, now.givenUp()-last.givenUp()
	log := e.opt.Log.WithFields(logrus.Fields{"lost": lost, "resumed": resumed, "given_up": givenUp, "waiting": now.Detached})
	switch {
	case givenUp > 0:
		log.Warn("connections were given up that could not be resumed")
	case lost > 0:
		log.Info("connections lost their link")
	default:
		log.Info("connections were resumed")
	}
}
