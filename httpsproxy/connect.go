package httpsproxy

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// replyTimeout bounds the write of a reply to a client that does not read.
const replyTimeout = 10 * time.Second

// connect serves CONNECT (RFC 9110 §9.3.6). The client's connection is taken
// from net/http before anything is dialed, because net/http would mistake a
// client that has sent everything and ended its side for one that left.
func (s *Server) connect(c *client, w http.ResponseWriter, r *http.Request) {
	address, refused := connectTarget(c, r)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is gone
	}
	_ = conn.SetDeadline(time.Time{})
	read, _ := rw.Reader.Peek(rw.Reader.Buffered())
	major, minor, id := r.ProtoMajor, r.ProtoMinor, requestID(r)
	ahead := newAhead(c.conn, read)
	c.detach(func() {
		answer := &connectAnswer{conn: c.conn, ahead: ahead, proto: fmt.Sprintf("HTTP/%d.%d", major, minor)}
		line := newAccess(c, kindConnect, address)
		line.id = id
		defer s.log(line)
		if refused != nil {
			line.status, line.outcome = refused.status, refused.outcome
			s.count(line)
			answer.refuse(refused)
			return
		}
		line.err = s.tunnel(c, answer, line)
	})
}

// requestID returns the id by which a request is followed across hops: the id
// from one of the suite's own programs, or the trace-id from its client (W3C
// Trace Context), so that logs lead from one to the other; or a new id.
func requestID(r *http.Request) string {
	if given := r.Header["Konnectivity-Id"]; len(given) == 1 && r.Method == http.MethodConnect {
		if id := tunnel.CleanID(given[0]); id != "" {
			return id
		}
	}
	if given := r.Header["Traceparent"]; len(given) == 1 {
		if id := tunnel.TraceParent(given[0]); id != "" {
			return id
		}
	}
	return tunnel.NewID()
}

// tunnel dials, answers and relays; it returns when the tunnel has ended.
func (s *Server) tunnel(c *client, answer *connectAnswer, line *access) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	answer.watch = admission.NewWatch(c.conn, answer.ahead, cancel)
	line.flow = &tunnel.Flow{ID: line.id, Front: line.kind, Network: "tcp", Address: line.destination, Source: c.RemoteAddr()}
	err := s.opts.Connect.Forward(ctx, line.flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		near, err := answer.give(far, err)
		line.status = answer.status
		if err != nil {
			line.outcome = tunnel.FailureOf(err).Label()
		}
		s.count(line)
		return near, err
	})
	line.up, line.down = line.flow.Sent()
	if err != nil && line.outcome == outcomeOK {
		line.outcome = outcomeBroken
	}
	return err
}

// connectAnswer answers the client of a CONNECT.
type connectAnswer struct {
	conn   tunnel.Conn
	ahead  *ahead
	watch  *admission.Watch // of the dial
	proto  string           // as the client's
	status int              // the status that was sent; 0 before
}

// give answers, and returns the client's end of the tunnel. Its error is err,
// or why the client could not be answered.
func (a *connectAnswer) give(far tunnel.Conn, err error) (tunnel.Conn, error) {
	if gone := a.watch.Stop(); gone != nil {
		a.ahead.drop()
		return nil, gone
	}
	if err != nil {
		a.refuse(refusalFor(err))
		return nil, err
	}
	a.status = http.StatusOK
	if err := a.write(a.proto + " 200 Connection Established\r\n\r\n"); err != nil {
		a.ahead.drop()
		return nil, err
	}
	return a.ahead.rest(), a.conn.SetDeadline(time.Time{})
}

// refuse sends an error response. The caller closes the connection.
func (a *connectAnswer) refuse(r *refusal) {
	defer a.ahead.drop()
	a.status = r.status
	text := r.text + "\n"
	head := fmt.Sprintf("%s %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		a.proto, r.status, http.StatusText(r.status), len(text))
	if a.write(head+text) == nil {
		hangUp(a.conn)
	}
}

func (a *connectAnswer) write(s string) error {
	_ = a.conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	_, err := a.conn.Write([]byte(s))
	return err
}
