package httpsproxy

import (
	"net/http"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
)

const (
	// expectTimeout is how long a client that asked for 100 (Continue) waits
	// for the destination's. Then this proxy sends it, since destinations that
	// do not know Expect wait for the content. curl and Go's clients wait as long:
	// what they send then is not read before this proxy's wait is over.
	expectTimeout = time.Second

	// tlsTimeout bounds a TLS handshake with a customer's proxy.
	tlsTimeout = 10 * time.Second

	// idleTimeout closes an unused connection to a destination before most servers
	// would. A request that crosses the server's close fails, and is sent again if it
	// may be.
	idleTimeout = 30 * time.Second

	// briefTime is idleTimeout for requests that are not sent again. It is less than
	// the shortest time for which common servers keep connections: gunicorn's 2 s.
	briefTime = time.Second

	// maxIdle and maxIdlePerHost bound the connections kept for reuse, which take
	// descriptors where they go direct. Most traffic of one sidecar goes to a few
	// hosts, or all to one proxy.
	maxIdle        = 256
	maxIdlePerHost = 32

	// maxResponseHeader bounds a response's header as maxHeader does a
	// request's. Once parsed, short fields take ten times as much memory, and
	// twice that after a copy, so either may have no more than maxFields.
	maxResponseHeader = maxHeader
	maxFields         = 1000
)

// newTransport returns a copy of Options.Transport with this front's own limits. Up to keep unused
// connections, 1 or more, stay open for later requests, each for as long as idle.
func (s *Server) newTransport(keep int, idle time.Duration) *http.Transport {
	o := s.opts
	t := o.Transport.Clone()
	t.DialContext = s.dial
	t.ResponseHeaderTimeout = o.responseTimeout
	t.ExpectContinueTimeout = expectTimeout
	t.TLSHandshakeTimeout = tlsTimeout
	t.IdleConnTimeout = idle
	t.MaxIdleConns = keep
	t.MaxIdleConnsPerHost = maxIdlePerHost
	t.MaxResponseHeaderBytes = maxResponseHeader
	t.DisableCompression = true // adds no Accept-Encoding to requests
	t.ForceAttemptHTTP2 = false
	return t
}

// newTransports returns the two that share the connections kept: one for requests that it may
// send again, and brief, with an eighth. They have a pool each, since net/http judges the age of
// an idle connection by its Transport, not by the request.
func (s *Server) newTransports() (repeating, brief *http.Transport) {
	pooled := admission.AtMost(maxIdle, admission.ShareOut(s.opts.Descriptors).Pooled)
	eighth := max(1, pooled/8)
	return s.newTransport(pooled-eighth, idleTimeout), s.newTransport(eighth, briefTime)
}

// serveHTTP is what net/http calls for every request.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c := clientOf(r.Context())
	if len(r.Header) > maxFields {
		s.turnAway(c, w, r, fieldsRefusal)
		return
	}
	if !s.admits(c, r) { // while it still waits, so it can be evicted
		s.challenge(c, w, r)
		return
	}
	if r.Method != http.MethodConnect && !c.keep(requestMemory(r)) { // while it still waits, so that what net/http keeps of it counts there
		s.turnAway(c, w, r, headerRefusal)
		return
	}
	var full *refusal
	switch why := s.Slots.Serve(c); {
	case why == admission.ErrEvicted:
		panic(http.ErrAbortHandler) // as its request arrived
	case why != nil:
		s.Metrics.Refuse(front.ReasonLimit)
		s.WarnFull()
		full = fullRefusal
	default:
		c.served.Store(true)
	}
	switch {
	case r.Method == http.MethodConnect:
		s.connect(c, w, r, full)
		return
	case full != nil:
		s.turnAway(c, w, r, full)
		return
	}
	x := s.newExchange(c, w, r)
	defer x.end()
	s.forward.ServeHTTP(x, x.req)
	x.finish()
}
