package e2e

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// watcher looks at processes every few seconds. Those that come one after the other have a
// role in common, which has one series over all of them: what each gathers until its end is
// noise of that series, unless the next one inherits it.
type watcher struct {
	mu    sync.Mutex
	began time.Time
	roles map[string]*role
	over  chan struct{}
	looks sync.WaitGroup
}

// role is a process, and what it and those before it had: of each measure, a value an hour.
type role struct {
	process *suite.Process
	metrics string // URL
	printed int64  // by those before

	hours  []float64
	values [len(measures)][]float64
}

// measures are what the watcher reads. Growth is a part of the level, or of floor if that is more.
// Of what a process prints, it reads the sum, and judges the rate.
var measures = [...]struct {
	name  string
	floor float64
	rate  bool
}{{"memory, MiB", 16, false}, {"heap, MiB", 4, false}, {"goroutines", 50, false}, {"descriptors", 50, false}, {"log, KiB an hour", 60, true}}

func newWatcher() *watcher { return &watcher{roles: map[string]*role{}, over: make(chan struct{})} }

// plays gives a role to a process.
func (w *watcher) plays(name string, p *suite.Process, metrics string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.roles[name]
	if r == nil {
		r = &role{}
		w.roles[name] = r
	} else if r.process != p {
		r.printed += r.process.Printed()
	}
	r.process, r.metrics = p, metrics
}

// names are those of all roles.
func (w *watcher) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.roles))
}

func (w *watcher) start() {
	w.began = time.Now()
	w.looks.Go(func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-w.over:
				return
			case <-tick.C:
			}
			for _, name := range w.names() {
				w.look(name)
			}
		}
	})
}

func (w *watcher) end() {
	close(w.over)
	w.looks.Wait()
}

// look adds what the process of a role has, if it answers.
func (w *watcher) look(name string) {
	w.mu.Lock()
	r := w.roles[name]
	p, url, printed := r.process, r.metrics, r.printed
	w.mu.Unlock()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}} // which leaves no descriptor there
	res, err := client.Get(url)
	if err != nil {
		return
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	m, failed := p.Memory()
	if err != nil || failed != nil {
		return
	}
	r.hours = append(r.hours, time.Since(w.began).Hours())
	for i, v := range [len(measures)]float64{mib(m.Own), value(string(page), "go_memstats_heap_alloc_bytes") / (1 << 20),
		value(string(page), "go_goroutines"), value(string(page), "process_open_fds"), float64(printed+p.Printed()) / (1 << 10)} {
		r.values[i] = append(r.values[i], v)
	}
}

// points are what judge looks at: the least value of each window, or the mean of a rate.
func (r *role) points(measure int, from, to float64) (hours, values []float64) {
	if !measures[measure].rate {
		return windows(r.hours, r.values[measure], from, to, slices.Min)
	}
	sums, rates := r.values[measure], make([]float64, len(r.hours))
	for i := range max(len(rates)-1, 0) {
		rates[i+1] = (sums[i+1] - sums[i]) / (r.hours[i+1] - r.hours[i])
	}
	return windows(r.hours, rates, from, to, func(in []float64) (mean float64) {
		for _, v := range in {
			mean += v / float64(len(in))
		}
		return mean
	})
}

// judgeAfter is the least length of a run whose series are judged. In a shorter one, a leak is
// smaller than the noise.
const judgeAfter = 30 * time.Minute

// judge tells how each series goes between two times, and fails the test if one grows.
func (w *watcher) judge(t *testing.T, from, to float64) {
	for i, m := range measures {
		for _, name := range w.names() {
			at, values := w.roles[name].points(i, from, to)
			got := trendOf(m.floor, at, values)
			t.Logf("%-18s %-14s %v", m.name, name, got)
			if got.grows() && to >= judgeAfter.Hours() {
				t.Errorf("%s of %s grows", m.name, name)
			}
		}
	}
}
