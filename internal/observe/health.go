package observe

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"sync"
)

// condition is a named check. It returns nil, or a sentence about the missing part, and
// must not block.
type condition struct {
	name  string
	check func() error
}

// HealthOptions are the differences between the endpoints of upstream's programs.
type HealthOptions struct {
	// FailureStatus is the HTTP status of a failed check. 0 is 503, the
	// agent's; upstream's server answers 500 (cmd/server/app/server.go).
	FailureStatus int
	// Brief answers a failure with one line for each reason, like upstream's
	// server. Otherwise every check has a line, "[+]name ok" or "[-]name failed:
	// reason", like the agent and Kubernetes.
	Brief bool
}

// Health serves the health of a process: it is alive while it answers, and ready if all
// checks succeed. Checks may be added at any time; all methods are safe for concurrent
// use.
type Health struct {
	opts HealthOptions

	mu    sync.Mutex
	ready []condition
}

// NewHealth returns a Health without checks, which is live and ready.
func NewHealth(opts HealthOptions) *Health {
	opts.FailureStatus = cmp.Or(opts.FailureStatus, http.StatusServiceUnavailable)
	return &Health{opts: opts}
}

// Ready adds a check to /readyz and /ready.
func (h *Health) Ready(name string, check func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = append(h.ready, condition{name, check})
}

// Mount serves /healthz, /readyz and /ready on mux. Each answers "ok", or with ?verbose a
// line for every check.
func (h *Health) Mount(mux *http.ServeMux) {
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, []condition{alive}) })
	ready := func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, h.checks()) }
	mux.HandleFunc("/readyz", ready)
	mux.HandleFunc("/ready", ready) // the older name, still in use
}

// checks copies the list, so that no check runs under the lock.
func (h *Health) checks() []condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]condition{alive}, h.ready...)
}

// alive is the check of /healthz, which always succeeds.
var alive = condition{name: "ping", check: func() error { return nil }}

// answer runs checks and writes the result.
func (h *Health) answer(w http.ResponseWriter, r *http.Request, checks []condition) {
	var all, reasons bytes.Buffer
	for _, c := range checks {
		if err := c.check(); err != nil {
			fmt.Fprintf(&all, "[-]%s failed: %v\n", c.name, err)
			fmt.Fprintf(&reasons, "%v\n", err)
		} else {
			fmt.Fprintf(&all, "[+]%s ok\n", c.name)
		}
	}
	verbose := r.URL.Query().Has("verbose")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if failed := reasons.Len() > 0; failed {
		w.WriteHeader(h.opts.FailureStatus)
		if h.opts.Brief && !verbose {
			all = reasons
		}
	} else if verbose {
		all.WriteString("check passed\n")
	} else {
		all.Reset()
		all.WriteString("ok")
	}
	_, _ = w.Write(all.Bytes()) // not worth a log line: the prober went away
}
