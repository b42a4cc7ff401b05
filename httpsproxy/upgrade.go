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
	rec := x.rec
	rec.kind, rec.status = kindUpgrade, http.StatusSwitchingProtocols
	s.count(rec)
	c.detach(func() {
		defer s.log(rec)
		_ = near.SetWriteDeadline(time.Now().Add(replyTimeout))
		if _, rec.err = near.Write(head); rec.err != nil {
			_ = far.Reset(rec.err)
		} else {
			_ = near.SetWriteDeadline(time.Time{})
			rec.err = x.relay(c.ctx, near, far)
		}
		if rec.err != nil {
			rec.outcome = outcomeBroken
		}
		x.closed(rec.err)
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
	relay := &tunnel.Relay{A: near, B: far, Flow: x.rec.flow, Idle: x.server.Forwarder.Idle}
	return relay.Run(ctx)
}
