package observe

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
)

const (
	// rest is the pause after a scrape, as a multiple of the time that it took. It
	// bounds scrapes to about a quarter of one processor.
	rest = 3

	// maxRest bounds the pause on a busy machine, or with many metrics.
	maxRest = 100 * time.Millisecond
)

// Metrics serves the metrics of gatherer. Concurrent requests share a scrape for each
// form, and scrapes are made one at a time: the port does not authenticate, and a scrape
// of a server with many clusters takes megabytes.
func Metrics(gatherer prometheus.Gatherer) http.Handler {
	return &scrapes{turn: make(chan struct{}, 1), next: make(map[form]*scrape), make: promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		// A collector that fails must not hide the others.
		ErrorHandling: promhttp.ContinueOnError,
	})}
}

type scrapes struct {
	make http.Handler
	turn chan struct{} // held while a scrape is made, and for the rest after it

	mu   sync.Mutex
	next map[form]*scrape // not begun yet
}

// form is the format and the coding of a scrape.
type form struct {
	format expfmt.Format
	gzip   bool
}

func formOf(h http.Header) form {
	coding := strings.ToLower(strings.ReplaceAll(h.Get("Accept-Encoding"), " ", ""))
	return form{expfmt.NegotiateAccept(h, expfmt.DefaultAcceptedFormats()...), strings.Contains(coding, "gzip") && !strings.Contains(coding, "gzip;q=0")}
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if got := s.get(r.Context(), r.Header); got != nil {
		got.send(w)
	}
}

// get returns a scrape that begins after the call; nil if ctx ends first.
func (s *scrapes) get(ctx context.Context, h http.Header) *scrape {
	want := formOf(h)
	s.mu.Lock()
	next := s.next[want]
	mine := next == nil
	if mine {
		next = &scrape{header: http.Header{}, done: make(chan struct{})}
		s.next[want] = next
	}
	s.mu.Unlock()
	if mine {
		s.fill(next, want, h.Get("Accept"))
	}
	select {
	case <-next.done:
		return next
	case <-ctx.Done():
		return nil
	}
}

// fill makes a scrape in its turn.
func (s *scrapes) fill(next *scrape, want form, accept string) {
	defer close(next.done)
	s.turn <- struct{}{}
	start := time.Now()
	defer func() { time.AfterFunc(min(rest*time.Since(start), maxRest), func() { <-s.turn }) }()
	s.mu.Lock()
	delete(s.next, want) // later requests need a later scrape
	s.mu.Unlock()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{"Accept": {accept}}}
	if want.gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	s.make.ServeHTTP(next, r)
	next.whole = true
}

// scrape is an answer for all requests that wait for it. It is an http.ResponseWriter
// until done is closed, and does not change afterwards.
type scrape struct {
	done   chan struct{}
	whole  bool // false if a gatherer panicked, which net/http reports for the first request
	status int  // 0 means http.StatusOK
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (s *scrape) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *scrape) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter.
func (s *scrape) Write(p []byte) (int, error) { return s.body.Write(p) }

// send writes the scrape to one client.
func (s *scrape) send(w http.ResponseWriter) {
	if !s.whole {
		http.Error(w, "gathering the metrics failed; the log says why", http.StatusInternalServerError)
		return
	}
	maps.Copy(w.Header(), s.header)
	w.WriteHeader(cmp.Or(s.status, http.StatusOK))
	_, _ = w.Write(s.body.Bytes()) // not worth a log line: the scraper went away
}
