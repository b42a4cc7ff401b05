package httpsproxy

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

const (
	// replyTimeout bounds the write of a reply to a client that does not read.
	replyTimeout = 10 * time.Second
)

// connect serves CONNECT (RFC 9110 §9.3.6). The client's connection is taken
// from net/http before anything is dialed, because net/http would mistake a
// client that has sent everything and ended its side for one that left. Full, unless nil, is what
// it hears instead.
func (s *Server) connect(c *client, w http.ResponseWriter, r *http.Request, full *refusal) {
	address, refused := connectTarget(c, r)
	refused = cmp.Or(refused, full)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is gone
	}
	_ = conn.SetDeadline(time.Time{})
	read, _ := rw.Reader.Peek(rw.Reader.Buffered())
	major, minor, rec := r.ProtoMajor, r.ProtoMinor, newRecord(c, kindConnect, r, address)
	ahead := admission.NewLookahead(c.conn, read)
	answer := &connectAnswer{conn: c.conn, ahead: ahead, rec: rec, proto: fmt.Sprintf("HTTP/%d.%d", major, minor)}
	if refused == nil {
		go s.tunnel(c, answer)
		return
	}
	c.detach(func() {
		rec.refuse(refused)
		s.count(rec)
		answer.refuse(refused)
		s.log(rec)
	})
}

// requestID returns the id that follows a request across hops: the id from one of
// the suite's own programs, or the trace-id from its client (W3C Trace Context), so
// that logs lead from one to the other; or a new id. parent is the client's span, if it
// has told one.
func requestID(r *http.Request) (id string, parent uint64) {
	if given := r.Header["Traceparent"]; len(given) == 1 {
		id, parent = tunnel.TraceParent(given[0])
	}
	if given := r.Header["Konnectivity-Id"]; len(given) == 1 && r.Method == http.MethodConnect {
		id = cmp.Or(tunnel.CleanID(given[0]), id)
	}
	return cmp.Or(id, tunnel.NewID()), parent
}

// tunnel dials, answers and relays, and ends c with the tunnel, possibly after it has
// returned.
func (s *Server) tunnel(c *client, answer *connectAnswer) {
	rec := answer.rec
	ctx, cancel := context.WithCancelCause(c.ctx)
	answer.watch = admission.NewWatch(answer.ahead, cancel)
	s.Forwarder.Serve(ctx, rec.flow, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
		near, err := answer.give(err)
		if err != nil {
			rec.outcome = tunnel.FailureOf(err).Label()
		}
		s.count(rec)
		return near, err
	}, func(err error) {
		cancel(nil)
		if rec.err = err; err != nil && rec.outcome == front.OutcomeOK {
			rec.outcome = outcomeBroken
		}
		s.log(rec)
		c.ended()
	})
}

// connectAnswer answers the client of a CONNECT.
type connectAnswer struct {
	conn  tunnel.Conn
	ahead *admission.Lookahead
	watch *admission.Watch // of the dial
	rec   *record          // whose status is set
	proto string           // as the client's
}

// give answers, and returns the client's end of the tunnel. Its error is err,
// or why the client could not be answered.
func (a *connectAnswer) give(err error) (tunnel.Conn, error) {
	if gone := a.watch.Stop(); gone != nil {
		a.ahead.Drop()
		return nil, gone
	}
	if err != nil {
		a.refuse(refusalFor(err))
		return nil, err
	}
	a.rec.status = http.StatusOK
	if err := a.write([]byte(a.proto + " 200 Connection Established\r\n\r\n")); err != nil {
		a.ahead.Drop()
		return nil, err
	}
	return a.ahead.Rest(), a.conn.SetDeadline(time.Time{})
}

// refuse sends an error response. The caller closes the connection.
func (a *connectAnswer) refuse(r *refusal) {
	defer a.ahead.Drop()
	a.rec.status = r.status
	if a.write(r.message(a.proto)) == nil {
		admission.HangUp(a.conn, nil)
	}
}

func (a *connectAnswer) write(p []byte) error {
	_ = a.conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	_, err := a.conn.Write(p)
	return err
}
