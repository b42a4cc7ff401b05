package socks5

import (
	"context"
	"errors"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// replyTimeout bounds the write of a reply to a client that does not read.
const replyTimeout = 10 * time.Second

// client is one connection.
type client struct {
	front.Client
	server *Server

	// Of the handshake, and nil behind it.
	shaking context.Context // ends with the time that a check of credentials has
	hurry   context.CancelFunc
}

// request prepares c to be forwarded.
func (c *client) request(ctx context.Context, req *request) {
	c.shaking, c.hurry = nil, nil // the relay does not need them
	c.Ask(ctx, "socks5", req.address, req.ahead)
}

// answer implements tunnel.Answer: it sends the client the outcome of its dial.
func (c *client) answer(far tunnel.Conn, err error) (tunnel.Conn, error) {
	near, err := c.server.Answered(&c.Client, err)
	switch {
	case errors.Is(err, admission.ErrLeft):
		return nil, err
	case err != nil:
		admission.HangUp(c.Conn, replyTo(replyFor(tunnel.FailureOf(err))))
		return nil, err
	}
	return near, succeed(c.Conn, far)
}

// succeed sends the reply for success, and leaves no deadline set.
func succeed(conn, far tunnel.Conn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	if _, err := conn.Write(appendReply(nil, replySucceeded, boundAddress(far.LocalAddr()))); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
