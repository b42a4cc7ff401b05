package admin

import (
	"sync"
	"time"
)

const (
	// interval and points make a history of 15 minutes, which takes 14 KiB.
	interval = 5 * time.Second
	points   = int(15 * time.Minute / interval)
)

// history holds the latest intervals, with the counts at the start of the current one.
type history struct {
	mu   sync.Mutex
	last [points]Point // the last n are in use, oldest first
	n    int

	// Used by the sampler alone: at the start of the interval.
	began         time.Time
	bytes         [2]int64
	dials, failed int64
}

// record is called after each sample. It ends the interval if its time is up.
func (t *Table) record(now time.Time, bytes [2]int64) {
	h := &t.history
	took := now.Sub(h.began)
	if took < interval {
		return
	}
	// A sample may miss a connection that closes while it is taken.
	bytes = [2]int64{max(bytes[0], h.bytes[0]), max(bytes[1], h.bytes[1])}
	dials, failed, sum := t.dials.total.Load(), t.dials.failed.Load(), t.sums.Load().all
	seconds := took.Seconds()
	p := Point{
		Time:  Past{now},
		Up:    float64(bytes[0]-h.bytes[0]) / seconds,
		Down:  float64(bytes[1]-h.bytes[1]) / seconds,
		Dials: float64(dials-h.dials) / seconds, Failed: float64(failed-h.failed) / seconds,
		Open: sum.open, Stalled: sum.stalled,
		DialMax: time.Duration(t.dials.max.Swap(0)).Seconds(),
	}
	if good := t.dials.good.Swap(0); good > 0 {
		p.DialSeconds = time.Duration(t.dials.sum.Swap(0) / good).Seconds()
	}
	h.began, h.bytes, h.dials, h.failed = now, bytes, dials, failed
	h.mu.Lock()
	defer h.mu.Unlock()
	copy(h.last[:], h.last[1:])
	h.last[points-1], h.n = p, min(h.n+1, points)
}

// list copies the history, oldest first.
func (h *history) list() []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Point{}, h.last[points-h.n:]...)
}

// newest returns the last completed interval; zero before the first.
func (h *history) newest() Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[points-1]
}
