package httpsproxy

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"time"

	"konnectivity/tunnel"
)

// upgrade is a 101 response (RFC 9110 §15.2.2) and the connection it came on.
type upgrade struct {
	resp *http.Response
	conn net.Conn
}

// far is the destination's end. Reads go through the body, since the transport
// has read ahead; writes bypass the transport.
func (u *upgrade) far() tunnel.Conn {
	conn := u.conn
	if d, ok := conn.(*dialed); ok {
		conn = d.Conn
	}
	return tunnel.With(tunnel.Wrap(conn), tunnel.Parts{In: tunnel.CopySource(u.resp.Body)})
}

// switchProtocols answers the client and relays until both directions have
// ended.
func (x *exchange) switchProtocols() {
	s, c := x.server, x.client
	far := x.upgraded.far()
	conn, rw, err := x.rc.Hijack()
	if err != nil {
		_ = far.Reset(err)
		x.closed(err)
		panic(http.ErrAbortHandler) // the connection is gone
	}
	_ = conn.SetDeadline(time.Time{})
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	near := tunnel.Unread(c.conn, ahead)
	head := s.switchingHead(x.upgraded.resp)
	line := x.line
	line.kind, line.status = kindUpgrade, http.StatusSwitchingProtocols
	s.count(line)
	c.detach(func() {
		defer s.log(line)
		_ = near.SetWriteDeadline(time.Now().Add(replyTimeout))
		if _, line.err = near.Write(head); line.err != nil {
			_ = far.Reset(line.err)
		} else {
			_ = near.SetWriteDeadline(time.Time{})
			line.err = x.relay(c.ctx, near, far)
		}
		if line.err != nil {
			line.outcome = outcomeBroken
		}
		x.closed(line.err)
	})
}

// switchingHead returns the header of the 101 response for the client.
func (s *Server) switchingHead(resp *http.Response) []byte {
	protocol := resp.Header["Upgrade"]
	s.cleanResponse(resp)
	resp.Header["Connection"] = []string{"Upgrade"}
	resp.Header["Upgrade"] = protocol
	head := bytes.NewBufferString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = resp.Header.Write(head)
	head.WriteString("\r\n")
	return head.Bytes()
}

// relay does the second half of a Forwarder's work, for a flow that observers
// already know.
func (x *exchange) relay(ctx context.Context, near, far tunnel.Conn) error {
	relay := &tunnel.Relay{A: near, B: far, Flow: x.flow, Bounds: x.server.opts.Connect.Bounds}
	err := relay.Run(ctx)
	x.line.up, x.line.down = x.flow.Sent()
	return err
}
