package e2e

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
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
			testutil.Holds(t, !got.grows() || to < judgeAfter.Hours(), "%s of %s grows", m.name, name)
		}
	}
}

// draw makes a picture of all series: a panel for each measure, a line for each role.
func (w *watcher) draw(t *testing.T, path, title string) {
	if path == "" {
		return
	}
	const wide, high, left, top = 640.0, 110.0, 50.0, 40.0
	colors := []string{"#1b6ca8", "#c0392b", "#27803c", "#8e44ad", "#d68910", "#148f8f", "#7f5539", "#d63384", "#4a4a4a"}
	names := w.names()
	end := 0.0
	for _, r := range w.roles {
		end = max(end, slices.Max(r.hours))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="#fff"/><text x="8" y="18" font-size="13">%s</text>`+"\n",
		left+wide+130, top+float64(len(measures))*(high+30)+20, title)
	for i, m := range measures {
		y := top + float64(i)*(high+30) + high
		most, lines := 1.0, make([][2][]float64, len(names))
		for n, name := range names {
			at, values := w.roles[name].points(i, 0, end)
			lines[n] = [2][]float64{at, values}
			most = max(most, slices.Max(values))
		}
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.0f" width="%.1f" height="%.0f" fill="#eee"/><path d="M%[1]v %.0[5]fV%.0fH%.0[7]f" fill="none" stroke="#888"/>`, left, y-high, wide/3, high, y-high, y, left+wide)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f">%s</text><text x="%.0f" y="%.0f" text-anchor="end">%.0f</text><text x="%.0[4]f" y="%.0[7]f" text-anchor="end">0</text>`+"\n", left, y-high-5, m.name, left-4, y-high+9, most, y)
		for n, line := range lines {
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.3" points="`, colors[n%len(colors)])
			for p, h := range line[0] {
				fmt.Fprintf(&b, "%.1f,%.1f ", left+wide*h/end, y-high*line[1][p]/most)
			}
			fmt.Fprintln(&b, `"/>`)
		}
	}
	for n, name := range names {
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" fill="%s">%s</text>`+"\n", left+wide+12, top+15+float64(n)*16, colors[n%len(colors)], name)
	}
	fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" text-anchor="end">%.0f minutes; grey: not judged</text></svg>`+"\n", left+wide, top+float64(len(measures))*(high+30), end*60)
	testutil.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(b.String()), 0o644)))
}
