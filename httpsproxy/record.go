package httpsproxy

import (
	"cmp"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// What a request was, as a metric's label.
const (
	kindConnect = "connect"
	kindForward = "forward"
	kindUpgrade = "upgrade"
)

// How a request ended, as a metric's label, besides front.OutcomeOK and the labels
// of tunnel.Failure for a dial that failed.
const (
	outcomeInvalid = "invalid" // not a request for a proxy
	outcomeLoop    = "loop"    // for this proxy itself
	outcomeBroken  = "broken"  // broken off by the destination or the client
)

// names is what the front's metrics are called.
var names = front.Names{
	Prefix:   "konnectivity_https_proxy_",
	Refused:  "HTTP proxy client connections that were refused or evicted because too many are open.",
	Requests: "HTTP proxy requests, by kind and outcome, counted when their destination answered or failed.",
	Open:     "Open HTTP proxy client connections, those without a request included.",
	Kinds:    []string{kindConnect, kindForward, kindUpgrade},
}

// record holds the facts about a request that are counted and logged at its end.
type record struct {
	kind    string       // a metric's label
	flow    *tunnel.Flow // its destination, the way there, and the bytes of content
	start   time.Time
	status  int    // sent to the client; 0: none
	outcome string // a metric's label
	err     error  // why it ended; nil: in order
	refused error  // what the client was told, if it was refused
}

// refuse notes what the client gets instead of what it asked for.
func (r *record) refuse(why *refusal) { r.outcome, r.refused = why.outcome, why }

func newRecord(c *client, kind string, r *http.Request, destination string) *record {
	id, parent := requestID(r)
	return &record{
		kind: kind,
		flow: &tunnel.Flow{
			Request: tunnel.Request{ID: id, Front: kind, Network: "tcp", Address: destination, Source: c.RemoteAddr()},
			Span:    tunnel.Span{Parent: parent},
		},
		start: time.Now(), outcome: front.OutcomeOK,
	}
}

// count is called once for each request, when its destination has answered or
// failed.
func (s *Server) count(r *record) { s.Metrics.Requests.WithLabelValues(r.kind, r.outcome).Inc() }

// log writes the line of the access log. It includes an error only if that says
// more than the outcome.
func (s *Server) log(r *record) {
	if !s.Logs(r.outcome) {
		return
	}
	up, down := r.flow.Sent()
	own := logrus.Fields{"front": r.kind, "status": r.status, "bytes_up": up, "bytes_down": down}
	s.LogEnd("request ended", r.flow, r.start, r.outcome, cmp.Or(r.err, r.refused), own)
}
