package socks5

import (
	"context"
	"time"

	"konnectivity/tunnel"
)

// replyTimeout bounds the write of a reply to a client that does not read.
const replyTimeout = 10 * time.Second

// forward dials, replies and relays; it returns when the connection has ended.
func (s *Server) forward(ctx context.Context, conn tunnel.Conn, req *request) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked := &tunnel.Request{Front: "socks5", Network: "tcp", Address: req.address, Source: conn.RemoteAddr()}
	forwarder := s.opts.Forwarder
	if s.logs() {
		ctx, forwarder = s.logged(ctx, forwarder)
	}
	watch := watchClient(conn, req.ahead, cancel)
	_ = forwarder.Forward(ctx, asked, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		gone := watch.stop()
		ahead := req.ahead
		req.ahead = nil // the relay may last for days; it needs no buffer
		defer giveBack(ahead)
		switch {
		case gone != nil:
			s.count(gone)
			return nil, gone
		case err != nil:
			s.count(err)
			part(conn, replyTo(replyFor(tunnel.FailureOf(err))))
			return nil, err
		}
		s.count(nil)
		pipelined, _ := ahead.Peek(ahead.Buffered())
		return tunnel.Unread(conn, pipelined), succeed(conn, far)
	})
}

// count notes how a request's dial ended.
func (s *Server) count(err error) {
	outcome := outcomeOK
	if err != nil {
		outcome = tunnel.FailureOf(err).Label()
	}
	s.metrics.requests.WithLabelValues(outcome).Inc()
}

// succeed tells the client to go ahead, and leaves no deadline set.
func succeed(conn, far tunnel.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	if _, err := conn.Write(appendReply(nil, replySucceeded, boundAddress(far.LocalAddr()))); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
