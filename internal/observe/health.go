package observe

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Health is what a health port serves. The process is alive while it answers, and ready if all
// checks succeed.
type Health struct {
	Metrics prometheus.Gatherer
	Checks  []Check // of /readyz and /ready

	// Server answers a failure like upstream's server (cmd/server/app/server.go): by the HTTP
	// status 500, and one line for each reason. Otherwise, as of the agent, it is 503, and every
	// check has a line, "[+]name ok" or "[-]name failed: reason", as in Kubernetes.
	Server bool
}

// Check is a named check. Do returns nil, or a sentence about the missing part, and must not
// block. Any goroutine may call it.
type Check struct {
	Name string
	Do   func() error
}

// Handler serves /metrics, and /healthz, /readyz and /ready, each of which answers "ok", or with
// ?verbose a line for every check.
func (h Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", Metrics(h.Metrics))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, alive) })
	ready := func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, append([]Check{alive}, h.Checks...)...) }
	mux.HandleFunc("/readyz", ready)
	mux.HandleFunc("/ready", ready) // the older name, still in use
	return mux
}

// alive is the check of /healthz, which always succeeds.
var alive = Check{Name: "ping", Do: func() error { return nil }}

// answer runs checks and writes the result.
func (h Health) answer(w http.ResponseWriter, r *http.Request, checks ...Check) {
	var all, reasons bytes.Buffer
	for _, c := range checks {
		if err := c.Do(); err != nil {
			fmt.Fprintf(&all, "[-]%s failed: %v\n", c.Name, err)
			fmt.Fprintf(&reasons, "%v\n", err)
		} else {
			fmt.Fprintf(&all, "[+]%s ok\n", c.Name)
		}
	}
	verbose := r.URL.Query().Has("verbose")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if failed := reasons.Len() > 0; failed {
		status := http.StatusServiceUnavailable
		if h.Server {
			status = http.StatusInternalServerError
		}
		w.WriteHeader(status)
		if h.Server && !verbose {
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
