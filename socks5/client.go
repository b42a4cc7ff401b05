package socks5

import (
	"bufio"
	"context"
	"errors"
	"time"

	"konnectivity/internal/access"
	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// replyTimeout bounds the write of a reply to a client that does not read.
const replyTimeout = 10 * time.Second

// client is one connection. It is all the memory that a connection takes here
// while it is relayed.
type client struct {
	admission.Slot
	server *Server
	conn   tunnel.Conn

	// Set by request, for the goroutine that serves the connection.
	ctx    context.Context
	cancel context.CancelCauseFunc
	flow   tunnel.Flow
	asked  time.Time
	ahead  *bufio.Reader // what was read ahead; nil once answered
	watch  *admission.Watch
}

// Abandon implements admission.Holder: the connection gets no reply.
func (c *client) Abandon() {
	_ = c.conn.Reset(&tunnel.ResetError{Code: tunnel.CodeMemory})
}

// request prepares c to be forwarded, and starts to watch whether it leaves.
func (s *Server) request(ctx context.Context, c *client, req *request) {
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.asked = time.Now()
	c.flow.Front, c.flow.Network, c.flow.Address, c.flow.Source = "socks5", "tcp", req.address, c.conn.RemoteAddr()
	c.ahead = req.ahead
	c.watch = admission.NewWatch(c.conn, admission.Buffer{Reader: c.ahead}, c.cancel)
}

// answer implements tunnel.Answer: it sends the client the outcome of its dial.
func (c *client) answer(far tunnel.Conn, err error) (tunnel.Conn, error) {
	if gone := c.watch.Stop(); gone != nil {
		err = gone
	}
	ahead := c.ahead
	c.ahead, c.watch = nil, nil // the relay needs neither
	defer giveBack(ahead)
	c.server.count(err)
	switch {
	case errors.Is(err, admission.ErrLeft):
		return nil, err
	case err != nil:
		part(c.conn, replyTo(replyFor(tunnel.FailureOf(err))))
		return nil, err
	}
	pipelined, _ := ahead.Peek(ahead.Buffered())
	return tunnel.Unread(c.conn, pipelined), succeed(c.conn, far)
}

// count counts the outcome of a request's dial.
func (s *Server) count(err error) {
	s.metrics.Requests.WithLabelValues(access.Outcome(err)).Inc()
}

// succeed sends the reply for success, and leaves no deadline set.
func succeed(conn, far tunnel.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	if _, err := conn.Write(appendReply(nil, replySucceeded, boundAddress(far.LocalAddr()))); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
