package roam

import (
	"sync/atomic"
	"time"

	"konnectivity/tunnel/resume"
)

// counters are an Ends' figures.
type counters struct {
	resumes atomic.Int64
	reasons [resume.Reasons]atomic.Int64

	// Pause, where set, is told how long a connection had no carrier.
	pause atomic.Pointer[func(time.Duration)]
}

func (s *counters) resumed(pause time.Duration) {
	s.resumes.Add(1)
	if f := s.pause.Load(); f != nil {
		(*f)(pause)
	}
}

func (s *counters) gone(r resume.Reason) { s.reasons[r].Add(1) }

// Stats are figures for metrics.
type Stats struct {
	Conns   int   // now
	Without int64 // of them, those without a carrier
	Kept    int64 // bytes of memory for what may have to be sent again
	Resumes int64 // so far
	GivenUp map[string]int64
}

// Stats costs little.
func (e *Ends) Stats() Stats {
	s := Stats{Conns: e.Len(), Without: e.lone.Load(), Kept: e.kept.Load(), Resumes: e.stats.resumes.Load(), GivenUp: map[string]int64{}}
	for r := resume.Expired; r < resume.Reasons; r++ {
		s.GivenUp[r.Label()] = e.stats.reasons[r].Load()
	}
	return s
}

// OnResume has f told of every pause that ended with a new carrier; it must not
// block.
func (e *Ends) OnResume(f func(pause time.Duration)) { e.stats.pause.Store(&f) }
