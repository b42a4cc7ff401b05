package socks5

import (
	"context"
	"time"

	"konnectivity/tunnel"
)

// replyTimeout bounds the write of a reply to a client that does not read.
const replyTimeout = 10 * time.Second

// forward dials, replies and relays; it returns when the connection has ended.
// What became of it is told to the Forwarder's observers.
func (s *Server) forward(ctx context.Context, conn tunnel.Conn, req *request) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := watchClient(conn, req.ahead, cancel)
	asked := &tunnel.Request{Front: "socks5", Network: "tcp", Address: req.address, Source: conn.RemoteAddr()}
	_ = s.opts.Forwarder.Forward(ctx, asked, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		gone := watch.stop()
		ahead := req.ahead
		req.ahead = nil // the relay may last for days; it needs no buffer
		defer giveBack(ahead)
		if gone != nil {
			return nil, gone
		}
		if err != nil {
			part(conn, replyTo(replyFor(tunnel.FailureOf(err))))
			return nil, err
		}
		pipelined, _ := ahead.Peek(ahead.Buffered())
		return tunnel.Unread(conn, pipelined), succeed(conn, far)
	})
}

// succeed tells the client to go ahead, and leaves no deadline set.
func succeed(conn, far tunnel.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	if _, err := conn.Write(appendReply(nil, replySucceeded, boundAddress(far.LocalAddr()))); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
